// SPDX-License-Identifier: BSD-3-Clause
// The shapes of a model's values before it runs, where inputs of the model may have open
// dimensions.
#ifndef DETENT_GRAPH_REWRITE_VALUE_SHAPES_HPP
#define DETENT_GRAPH_REWRITE_VALUE_SHAPES_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The shapes of a model's values, as far as they are certain before a run.
///
/// For a model whose inputs have open dimensions, shapes are inferred twice, with sizes that are
/// far apart: every open dimension as 1, then the first one of each input as 2 and all others as
/// 251. Dimensions that differ between the two are reported as open.
class value_shapes {
 public:
  /// Infers the shapes, with the operators of `registry`. If the model does not run with the
  /// inferred sizes, they stay unknown; this is not an error.
  explicit value_shapes(const model& m, const operator_registry& registry = default_operators()) {
    constexpr std::int64_t larger_batch = 2;
    constexpr std::int64_t larger_size = 251;  // more than layers with strides reduce to 1
    std::map<std::string, shape> larger;
    for (const value_info& v : m.inputs) {
      shape dims = v.dims;
      for (std::size_t d = 0; d < dims.size(); ++d) {
        is_open_ = is_open_ || dims[d] < 0;
        dims[d] = dims[d] >= 0 ? dims[d] : d == 0 ? larger_batch : larger_size;
      }
      if (dims != v.dims) {
        larger[v.name] = std::move(dims);
      }
    }
    // A model may reject these sizes. Its shapes are unknown then.
    try {
      known_ = infer_shapes(m, {}, registry);
      if (is_open_) {
        other_ = infer_shapes(m, larger, registry);
      }
    } catch (const error&) {
      other_.clear();
    }
  }

  /// The number of dimensions of a value, or nothing if it is not known.
  [[nodiscard]] std::optional<std::size_t> rank(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() ? std::nullopt : std::optional(found->second.rank());
  }
  /// The shape of a value, or nothing if it is not known. Dimensions that depend on the open
  /// dimensions of the inputs are -1.
  [[nodiscard]] std::optional<shape> dims(const std::string& value) const {
    const auto found = known_.find(value);
    if (found == known_.end()) {
      return std::nullopt;
    }
    shape dims = found->second.dims();
    if (!is_open_) {
      return dims;
    }
    const auto other = other_.find(value);
    if (other == other_.end() || other->second.rank() != dims.size()) {
      return std::nullopt;
    }
    for (std::size_t d = 0; d < dims.size(); ++d) {
      dims[d] = dims[d] == other->second.dim(d) ? dims[d] : -1;
    }
    return dims;
  }

 private:
  std::map<std::string, tensor> known_;
  std::map<std::string, tensor> other_;
  bool is_open_ = false;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_VALUE_SHAPES_HPP
