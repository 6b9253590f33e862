// SPDX-License-Identifier: BSD-3-Clause
// Operators that report shapes, change shapes, or make tensors of a given shape. An output that has
// the elements of the input in their order shares them instead of copying.
#ifndef DETENT_GRAPH_OPS_SHAPE_HPP
#define DETENT_GRAPH_OPS_SHAPE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace shaping {

inline void run_share_input(operator_context& c) { c.share_output(0, c.input(0)); }

inline void infer_reshape(operator_context& c) {
  const tensor& in = c.input(0);
  static_cast<void>(c.input(1));
  const std::vector<std::int64_t> asked = c.integers(1);
  const bool allow_zero = c.opset >= 14 && c.n().get_int("allowzero", 0) != 0;
  shape dims = asked;
  std::size_t unknown = dims.size();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !allow_zero) {
      c.require(i < in.rank(), "shape ", shown(asked), " copies dimension ", i,
                " of a tensor of shape ", shown(in.dims()));
      dims[i] = in.dim(i);
    } else if (dims[i] == -1) {
      c.require(unknown == dims.size(), "shape ", shown(asked), " has more than one -1");
      unknown = i;
      dims[i] = 1;
    }
    c.require(dims[i] >= 0, "shape ", shown(asked), " has a negative dimension");
  }
  const std::size_t known = element_count(dims);
  if (unknown < dims.size()) {
    c.require(known != 0 && in.count() % known == 0, "cannot reshape ", shown(in.dims()), " to ",
              shown(asked));
    dims[unknown] = static_cast<std::int64_t>(in.count() / known);
  }
  c.require(element_count(dims) == in.count(), "cannot reshape ", shown(in.dims()), " to ",
            shown(asked));
  c.set_output(0, in.type(), std::move(dims));
}

inline void infer_flatten(operator_context& c) {
  const tensor& in = c.input(0);
  const std::size_t axis = c.axis(c.n().get_int("axis", 1), in.rank(), true);
  shape dims = {1, 1};
  for (std::size_t i = 0; i < in.rank(); ++i) {
    std::int64_t& side = dims[i < axis ? 0 : 1];
    side = multiply_sizes(c, side, in.dim(i));
  }
  c.set_output(0, in.type(), std::move(dims));
}

inline void infer_squeeze(operator_context& c) {
  const tensor& in = c.input(0);
  const auto axes = attribute_or_input(c, "axes", 1, 13);
  // No axes, and an empty list of them, mean every dimension of 1.
  const bool all = !axes || axes->empty();
  const std::vector<bool> gone = axis_set(c, all ? std::vector<std::int64_t>{} : *axes, in.rank());
  shape dims;
  for (std::size_t i = 0; i < in.rank(); ++i) {
    c.require(!gone[i] || in.dim(i) == 1, "axis ", i, " of shape ", shown(in.dims()),
              " cannot be removed, it is not 1");
    if (!gone[i] && !(all && in.dim(i) == 1)) {
      dims.push_back(in.dim(i));
    }
  }
  c.set_output(0, in.type(), std::move(dims));
}

inline void infer_unsqueeze(operator_context& c) {
  const tensor& in = c.input(0);
  const auto axes = attribute_or_input(c, "axes", 1, 13);
  c.require(axes.has_value(), "no axes");
  const std::vector<bool> added = axis_set(c, *axes, in.rank() + axes->size());
  shape dims;
  std::size_t next = 0;
  for (const bool is_new : added) {
    dims.push_back(is_new ? 1 : in.dim(next));
    next += is_new ? 0 : 1;
  }
  c.set_output(0, in.type(), std::move(dims));
}

/// The dimensions [first, last) that Shape reports. The attributes start and end (since opset 15)
/// are clamped to the rank.
struct dimension_range {
  std::size_t first;
  std::size_t last;
};
[[nodiscard]] inline dimension_range reported_dimensions(const operator_context& c) {
  const auto rank = static_cast<std::int64_t>(c.input(0).rank());
  const auto clamp = [rank](std::int64_t i) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(i < 0 ? i + rank : i, 0, rank));
  };
  const bool has_range = c.opset >= 15;
  const std::size_t first = has_range ? clamp(c.n().get_int("start", 0)) : 0;
  const std::size_t last = has_range ? clamp(c.n().get_int("end", rank)) : clamp(rank);
  return {first, (std::max)(first, last)};
}
inline void infer_shape(operator_context& c) {
  const dimension_range range = reported_dimensions(c);
  c.set_output(0, element_type::s64, {static_cast<std::int64_t>(range.last - range.first)});
}
inline void run_shape(operator_context& c) {
  const dimension_range range = reported_dimensions(c);
  const std::span<std::int64_t> out = c.make_output(0).mutable_data<std::int64_t>();
  const shape& dims = c.input(0).dims();
  for (std::size_t i = range.first; i < range.last; ++i) {
    out[i - range.first] = dims[i];
  }
}

inline void infer_size(operator_context& c) {
  static_cast<void>(c.input(0));
  c.set_output(0, element_type::s64, {});
}
inline void run_size(operator_context& c) {
  c.make_output(0).mutable_data<std::int64_t>()[0] = static_cast<std::int64_t>(c.input(0).count());
}

/// The value of a Constant node, whichever attribute gives it.
[[nodiscard]] inline tensor constant_value(const operator_context& c) {
  using kind = attribute::kind_type;
  const auto& attributes = c.n().attributes;
  c.require(attributes.size() == 1, "a constant needs one value, there are ", attributes.size(),
            " attributes");
  const auto& [key, a] = *attributes.begin();
  if (key == "value" && a.kind == kind::t) {
    c.require(a.t.has_data() || a.t.has_strings(), "attribute value has no data");
    return a.t;
  }
  if (key == "value_float" && a.kind == kind::f) {
    return tensor::of<float>(element_type::f32, {}, {&a.f, 1});
  }
  if (key == "value_int" && a.kind == kind::i) {
    return tensor::of<std::int64_t>(element_type::s64, {}, {&a.i, 1});
  }
  if (key == "value_floats" && a.kind == kind::floats) {
    return tensor::of<float>(element_type::f32, {static_cast<std::int64_t>(a.floats.size())},
                             a.floats);
  }
  if (key == "value_ints" && a.kind == kind::ints) {
    return tensor::of<std::int64_t>(element_type::s64, {static_cast<std::int64_t>(a.ints.size())},
                                    a.ints);
  }
  if (key == "value_string" && a.kind == kind::s) {
    return tensor::of_strings({}, {a.s});
  }
  if (key == "value_strings" && a.kind == kind::strings) {
    return tensor::of_strings({static_cast<std::int64_t>(a.strings.size())}, a.strings);
  }
  c.require_supported(false, "no code for a constant given by attribute ", key);
  return {};
}
inline void infer_constant(operator_context& c) {
  const tensor value = constant_value(c);
  c.set_output(0, value.type(), value.dims());
}
inline void run_constant(operator_context& c) { c.share_output(0, constant_value(c)); }

/// The element that ConstantOfShape repeats, as a tensor of one element; null for the default, a
/// float 0.
[[nodiscard]] inline const tensor* repeated_value(const operator_context& c) {
  const attribute* a = c.n().find("value");
  if (a == nullptr) {
    return nullptr;
  }
  c.require(a->kind == attribute::kind_type::t && a->t.has_data() && a->t.count() == 1,
            "attribute value is not a tensor of one element");
  return &a->t;
}
inline void infer_constant_of_shape(operator_context& c) {
  static_cast<void>(c.input(0));
  const std::vector<std::int64_t> dims = c.integers(0);
  const tensor* value = repeated_value(c);
  c.set_output(0, value == nullptr ? element_type::f32 : value->type(), dims);
}
inline void run_constant_of_shape(operator_context& c) {
  const tensor* value = repeated_value(c);
  tensor& out = c.make_output(0);
  constexpr float zero = 0.0F;
  const void* element = value == nullptr ? static_cast<const void*>(&zero) : value->raw();
  fill_elements(out.mutable_raw(), out.count(), static_cast<const std::byte*>(element),
                element_size(out.type()));
}

inline void infer_expand(operator_context& c) {
  const tensor& in = c.input(0);
  static_cast<void>(c.input(1));
  const std::vector<std::int64_t> asked = c.integers(1);
  const std::size_t rank = (std::max)(in.rank(), asked.size());
  shape dims(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    // Both shapes are aligned at their ends.
    const std::size_t in_skip = rank - in.rank();
    const std::size_t asked_skip = rank - asked.size();
    const std::int64_t from = i < in_skip ? 1 : in.dim(i - in_skip);
    const std::int64_t to = i < asked_skip ? 1 : asked[i - asked_skip];
    c.require(to >= 0 && (from == to || from == 1 || to == 1), "shape ", shown(in.dims()),
              " does not expand to ", shown(asked));
    dims[i] = from == 1 ? to : from;
  }
  c.set_output(0, in.type(), std::move(dims));
}
inline void run_expand(operator_context& c) {
  const tensor& in = c.input(0);
  if (in.count() == c.outputs.at(0).count()) {
    c.share_output(0, in);
    return;
  }
  tensor& out = c.make_output(0);
  if (out.count() == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> in_steps = row_major_steps(in.dims());
  const std::vector<std::ptrdiff_t> out_steps = row_major_steps(out.dims());
  const std::size_t skip = out.rank() - in.rank();
  std::vector<copy_loop> loops;
  for (std::size_t i = 0; i < out.rank(); ++i) {
    const bool repeats = i < skip || in.dim(i - skip) == 1;
    loops.push_back(
        {static_cast<std::size_t>(out.dim(i)), repeats ? 0 : in_steps[i - skip], out_steps[i]});
  }
  copy_elements(in.raw(), out.mutable_raw(), element_size(in.type()), std::move(loops), c.parallel);
}

using range_types = type_list<float, double, std::int16_t, std::int32_t, std::int64_t>;

/// The element of input i, which must be a single one of type T. Throws value_unknown if it is not
/// known, which happens only while shapes are inferred.
template <class T>
[[nodiscard]] T single_value(const operator_context& c, std::size_t i) {
  const tensor& t = c.input(i);
  c.require(t.type() == type_of<T>() && t.count() == 1, "input ", i, " is ", name(t.type()), " ",
            shown(t.dims()), ", not one ", name(type_of<T>()));
  if (!t.has_data()) {
    throw value_unknown{};
  }
  return t.data<T>()[0];
}

/// The number of elements of Range, max(0, ceil((limit - start) / delta)). Throws bad_file, naming
/// the node, if delta is 0 or there are more than 2^40.
template <class T>
[[nodiscard]] std::int64_t range_length(const operator_context& c, T start, T limit, T delta) {
  c.require(delta != T{0}, "delta is 0");
  if constexpr (std::is_floating_point_v<T>) {
    const double steps = std::ceil((static_cast<double>(limit) - static_cast<double>(start)) /
                                   static_cast<double>(delta));
    c.require(steps <= 0x1p40, "a range from ", start, " to ", limit, " by ",
              delta);  // also fails for NaN
    return static_cast<std::int64_t>((std::max)(steps, 0.0));
  } else {
    const auto up = delta > 0;
    if (up ? limit <= start : limit >= start) {
      return 0;
    }
    // Unsigned, because the distance of two integers need not fit their type.
    const auto a = static_cast<std::uint64_t>(static_cast<std::int64_t>(start));
    const auto b = static_cast<std::uint64_t>(static_cast<std::int64_t>(limit));
    const auto d = static_cast<std::uint64_t>(static_cast<std::int64_t>(delta));
    const std::uint64_t steps = ((up ? b - a : a - b) - 1) / (up ? d : 0 - d) + 1;
    c.require(steps <= std::uint64_t{1} << 40, "a range from ", start, " to ", limit, " by ",
              delta);
    return static_cast<std::int64_t>(steps);
  }
}
inline void infer_range(operator_context& c) {
  for_type(c, range_types{}, c.input(0).type(), [&]<class T>() {
    const std::int64_t length =
        range_length(c, single_value<T>(c, 0), single_value<T>(c, 1), single_value<T>(c, 2));
    c.set_output(0, c.input(0).type(), {length});
  });
}
inline void run_range(operator_context& c) {
  for_type(c, range_types{}, c.input(0).type(), [&]<class T>() {
    const T start = single_value<T>(c, 0);
    const T delta = single_value<T>(c, 2);
    const std::span<T> out = c.make_output(0).mutable_data<T>();
    for (std::size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_floating_point_v<T>) {
        // In double the product is exact for floats: the same bits with and without contraction.
        out[i] = static_cast<T>(start + static_cast<double>(i) * static_cast<double>(delta));
      } else {  // unsigned: the sum is in range, the product need not be
        out[i] = static_cast<T>(static_cast<std::uint64_t>(start) +
                                static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(delta));
      }
    }
  });
}

}  // namespace shaping

inline constexpr operator_definition shape_operators[] = {
    {"", "Reshape", 2, 2, layout_support::plain, shaping::infer_reshape, shaping::run_share_input},
    {"", "Flatten", 1, 1, layout_support::plain, shaping::infer_flatten, shaping::run_share_input,
     true},
    {"", "Squeeze", 1, 2, layout_support::plain, shaping::infer_squeeze, shaping::run_share_input},
    {"", "Unsqueeze", 1, 2, layout_support::plain, shaping::infer_unsqueeze,
     shaping::run_share_input},
    {"", "Shape", 1, 1, layout_support::any, shaping::infer_shape, shaping::run_shape},
    {"", "Size", 1, 1, layout_support::any, shaping::infer_size, shaping::run_size},
    {"", "Constant", 0, 0, layout_support::plain, shaping::infer_constant, shaping::run_constant},
    {"", "ConstantOfShape", 1, 1, layout_support::plain, shaping::infer_constant_of_shape,
     shaping::run_constant_of_shape},
    {"", "Expand", 2, 2, layout_support::plain, shaping::infer_expand, shaping::run_expand},
    {"", "Range", 3, 3, layout_support::plain, shaping::infer_range, shaping::run_range},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_SHAPE_HPP
