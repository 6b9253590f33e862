// SPDX-License-Identifier: BSD-3-Clause
// The shapes, ranks and types of a model's values before it runs, where inputs of the model may
// have open dimensions.
#ifndef DETENT_GRAPH_REWRITE_VALUE_SHAPES_HPP
#define DETENT_GRAPH_REWRITE_VALUE_SHAPES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/graph/run/value_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Whether an input of the model has an open dimension.
[[nodiscard]] inline bool has_open_dims(const model& m) {
  return std::any_of(m.inputs.begin(), m.inputs.end(), [](const value_info& v) {
    return std::any_of(v.dims.begin(), v.dims.end(), [](std::int64_t dim) { return dim < 0; });
  });
}

/// The shapes of all inputs, with `first` for an open first dimension and `other` for other ones.
/// Dimensions of one name have one size, that of the first of them.
[[nodiscard]] inline std::map<std::string, shape> sized_inputs(const model& m, std::int64_t first,
                                                               std::int64_t other) {
  std::map<std::string, shape> sized;
  std::map<std::string, std::int64_t> named;
  for (const value_info& v : m.inputs) {
    shape dims = v.dims;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      const std::int64_t size = d == 0 ? first : other;
      const bool has_name = d < v.params.size() && !v.params[d].empty();
      dims[d] = dims[d] >= 0 ? dims[d]
                : has_name   ? named.emplace(v.params[d], size).first->second
                             : size;
    }
    if (v.has_shape) {
      sized[v.name] = std::move(dims);
    }
  }
  return sized;
}

/// Whether each element that the node makes is an element, or for Shape a dimension, of its first
/// input, and which one the other inputs and the attributes say. For Concat it may be one of any
/// input.
[[nodiscard]] inline bool selects_elements(const node& n) {
  static constexpr std::string_view names[] = {"Shape",     "Gather", "Slice", "Squeeze",
                                               "Unsqueeze", "Concat", "Cast",  "Identity",
                                               "Reshape",   "Flatten"};
  return n.domain.empty() &&
         std::find(std::begin(names), std::end(names), n.op_type) != std::end(names);
}

}  // namespace detail

/// The shapes of a model's values before it runs.
///
/// For a model whose inputs have open dimensions, shapes are inferred for several sizes that are
/// far apart, up to 251, and what differs between them is reported as open or unknown. What is the
/// same for these sizes is taken to be the same for all: a dimension that is N / 1000, rounded up,
/// would be taken for 1. An If whose condition may depend on an open dimension counts as undecided,
/// even if the condition is the same for these sizes.
class value_shapes {
 public:
  /// Infers the shapes, with the operators of `registry`. Nodes that do not run with the sizes
  /// leave what they make unknown, but for operators that broadcast, of two sizes of which the
  /// larger one counts. So do all nodes if one does not run and no dimension is open. Neither is an
  /// error.
  explicit value_shapes(const model& m, const operator_registry& registry = default_operators())
      : is_open_(detail::has_open_dims(m)) {
    if (!is_open_) {
      try {
        smallest_ = infer_shapes(m, {}, registry);
      } catch (const error&) {
        smallest_.clear();
      }
      return;
    }
    try {
      infer(m, registry, {});
      if (std::any_of(m.nodes.begin(), m.nodes.end(), detail::has_choice)) {
        const std::set<const node*> undecided = undecided_nodes(m);
        if (!undecided.empty()) {
          infer(m, registry, undecided);
        }
      }
    } catch (const error&) {  // an input is too large for any size
      smallest_.clear();
      larger_.clear();
      one_of_larger_.clear();
    }
  }

  /// The number of dimensions of a value, or nothing if it is not known or depends on the open
  /// dimensions of the inputs.
  [[nodiscard]] std::optional<std::size_t> rank(const std::string& value) const {
    const tensor* const small = find_small(value);
    if (small == nullptr || !is_open_) {
      return small == nullptr ? std::nullopt : std::optional(small->rank());
    }
    // Constants may have been made for one image, so that nodes do not run with more of them.
    const tensor* const more = find(larger_, value);
    const tensor* const large = more != nullptr ? more : find(one_of_larger_, value);
    return large != nullptr && large->rank() == small->rank() ? std::optional(small->rank())
                                                              : std::nullopt;
  }
  /// The shape of a value, or nothing if it is not known. Dimensions that depend on the open
  /// dimensions of the inputs are -1.
  [[nodiscard]] std::optional<shape> dims(const std::string& value) const {
    const tensor* const small = find(smallest_, value);
    if (small == nullptr) {
      return std::nullopt;
    }
    shape dims = small->dims();
    if (!is_open_) {
      return dims;
    }
    const tensor* const large = find(larger_, value);
    if (large == nullptr || large->rank() != dims.size()) {
      return std::nullopt;
    }
    for (std::size_t d = 0; d < dims.size(); ++d) {
      dims[d] = dims[d] == large->dim(d) ? dims[d] : -1;
    }
    return dims;
  }

 private:
  using values = std::map<std::string, tensor>;

  [[nodiscard]] static const tensor* find(const values& known, const std::string& value) {
    const auto found = known.find(value);
    return found == known.end() ? nullptr : &found->second;
  }
  /// The value where the first dimensions are 1.
  [[nodiscard]] const tensor* find_small(const std::string& value) const {
    const tensor* const found = find(smallest_, value);
    return found == nullptr ? find(one_of_larger_, value) : found;
  }

  /// Infers all values for the sizes to compare.
  void infer(const model& m, const operator_registry& registry,
             const std::set<const node*>& undecided) {
    // Larger than what strides, or a division by a constant, usually reduce to 1, and different, so
    // that it is no coincidence if two values fit together. Values with elements stay few.
    const auto [larger_batch, larger_size] = larger_sizes(m);
    const auto infer_sized = [&](std::int64_t first, std::int64_t other) {
      return detail::infer_leniently(m, detail::sized_inputs(m, first, other), registry, undecided);
    };
    smallest_ = infer_sized(1, 1);
    larger_ = infer_sized(larger_batch, larger_size);
    // Windows may not fit into images of one pixel, and constants may be for one image.
    one_of_larger_.clear();
    const auto lacks = [](const values& some, const values& others) {
      return std::any_of(others.begin(), others.end(),
                         [&](const auto& entry) { return some.count(entry.first) == 0; });
    };
    if (lacks(smallest_, larger_) || lacks(larger_, smallest_)) {
      one_of_larger_ = infer_sized(1, larger_size);
    }
  }

  /// The largest pair of sizes with which no input has many elements: values inside the model may
  /// have thousands of times as many, and at most 2^40.
  [[nodiscard]] static std::pair<std::int64_t, std::int64_t> larger_sizes(const model& m) {
    constexpr double most_elements = 0x1p26;
    constexpr std::pair<std::int64_t, std::int64_t> sizes[] = {
        {241, 251}, {59, 61}, {23, 29}, {11, 13}, {5, 7}, {3, 5}, {2, 3}};
    for (const auto& pair : sizes) {
      const auto sized = detail::sized_inputs(m, pair.first, pair.second);
      const bool fits = std::all_of(sized.begin(), sized.end(), [&](const auto& entry) {
        double count = 1.0;
        for (const std::int64_t dim : entry.second) {
          count *= static_cast<double>(dim);
        }
        return count <= most_elements;
      });
      if (fits) {
        return pair;
      }
    }
    return sizes[std::size(sizes) - 1];
  }

  /// Whether shape or elements of a value are not the same for all sizes, or are not known.
  [[nodiscard]] bool differs(const std::string& value) const {
    const tensor* const small = find_small(value);
    const tensor* const large = find(larger_, value);
    if (small == nullptr || large == nullptr || small->dims() != large->dims() ||
        small->has_data() != large->has_data()) {
      return true;
    }
    return small->has_data() && small->raw() != large->raw() &&
           std::memcmp(small->raw(), large->raw(), small->bytes()) != 0;
  }
  [[nodiscard]] bool has_elements(const std::string& value) const {
    const tensor* const small = find_small(value);
    const tensor* const large = find(larger_, value);
    return small == nullptr || large == nullptr || small->has_data() || large->has_data();
  }

  /// The nodes of the model with an If, themselves or in their sub-graphs, that may depend on an
  /// open dimension.
  [[nodiscard]] std::set<const node*> undecided_nodes(const model& m) const {
    // Values that may depend on an open dimension although they are the same for all sizes that are
    // compared: for example, whether N is 7.
    detail::name_set doubtful;
    std::set<const node*> undecided;
    const auto is_doubtful = [&](const std::string& value) { return doubtful.count(value) != 0; };
    const auto varies = [&](const std::string& value) {
      return !value.empty() && (is_doubtful(value) || differs(value));
    };
    for (const node& n : m.nodes) {
      std::vector<std::string> used = n.inputs;
      const std::set<std::string> captured = captured_values(n);
      used.insert(used.end(), captured.begin(), captured.end());
      if (std::none_of(used.begin(), used.end(), varies)) {
        continue;
      }
      const bool is_undecided = n.is("If") && !n.inputs.empty() && varies(n.inputs[0]);
      if (is_undecided || detail::has_choice_within(n)) {
        undecided.insert(&n);
        doubtful.insert(n.outputs.begin(), n.outputs.end());
        continue;
      }
      // A selected element is the same for all sizes if it is the same for those compared. So are
      // the dimensions of what any operator makes, as long as it depends on nothing doubtful.
      const bool takes_doubtful = std::any_of(used.begin(), used.end(), is_doubtful);
      const bool is_selection =
          detail::selects_elements(n) &&
          (n.op_type == "Concat" ||
           std::none_of(n.inputs.begin() + (n.inputs.empty() ? 0 : 1), n.inputs.end(), varies));
      for (const std::string& out : n.outputs) {
        if (takes_doubtful || (!is_selection && has_elements(out))) {
          doubtful.insert(out);
        }
      }
    }
    return undecided;
  }

  bool is_open_;
  values smallest_;       // open dimensions are 1
  values larger_;         // they are larger
  values one_of_larger_;  // first ones are 1, unless they have the name of another; others larger
};

namespace detail {

/// The types of a model's values before it runs, and their ranks where these do not depend on the
/// open dimensions of its inputs.
class value_types {
 public:
  /// Throws what infer_types() throws.
  explicit value_types(const model& m) : known_(infer_types(m)) {
    if (has_open_dims(m)) {
      shapes_.emplace(m);
    }
  }

  /// The type of a value, or undefined if it is not known.
  [[nodiscard]] element_type type(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() ? element_type::undefined : found->second.type();
  }
  /// The number of dimensions of a value, or nothing if it is not known.
  [[nodiscard]] std::optional<std::size_t> rank(const std::string& value) const {
    if (shapes_) {
      return shapes_->rank(value);
    }
    const auto found = known_.find(value);
    return found == known_.end() ? std::nullopt : std::optional(found->second.rank());
  }

 private:
  std::map<std::string, tensor> known_;
  std::optional<value_shapes> shapes_;  // of a model with open dimensions
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_VALUE_SHAPES_HPP
