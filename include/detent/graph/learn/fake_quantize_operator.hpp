// SPDX-License-Identifier: BSD-3-Clause
// The code of the operators FakeQuantize, FakeQuantizeBias, OffsetZeroPoint and StraightThrough of
// domain "detent"; see make_fake_quantize.hpp.
#ifndef DETENT_GRAPH_LEARN_FAKE_QUANTIZE_OPERATOR_HPP
#define DETENT_GRAPH_LEARN_FAKE_QUANTIZE_OPERATOR_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/config.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/bias_code.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The integer zero point of a grid whose code 0 stands for the real `offset`:
/// clamp(round_half_even(-offset / scale), qmin, qmax); NaN gives 0, clamped. Thread-safe.
[[nodiscard]] inline std::int32_t offset_zero_point(float offset, float scale,
                                                    grid levels) noexcept {
  return std::clamp(reference::quantize(-offset, quant_params{scale, 0}, grid{-65536, 65536}),
                    levels.qmin, levels.qmax);
}

namespace detail {

/// The operands of a FakeQuantize node after its checks. A tensor of any rank is viewed as [before,
/// channels, behind], where the middle dimension is the axis of the scales.
struct fake_quantize_operands {
  explicit fake_quantize_operands(const operator_context& c)
      : levels{level(c, "qmin"), level(c, "qmax")} {
    const tensor& x = c.input(0);
    const tensor& scale = c.input(1);
    const tensor& zero_point = c.input(2);
    c.require(x.type() == element_type::f32 && scale.type() == element_type::f32 &&
                  zero_point.type() == element_type::s32,
              "operands of types ", graph::name(x.type()), ", ", graph::name(scale.type()), ", ",
              graph::name(zero_point.type()), ", expected float32, float32, int32");
    c.require(scale.count() > 0 && scale.count() == zero_point.count(), scale.count(),
              " scales and ", zero_point.count(), " zero points");
    is_per_channel = scale.count() > 1;
    if (c.has_input(3)) {
      const element_type type = c.inputs[3].type();
      c.require(!is_per_channel && c.inputs[3].dims() == x.dims() &&
                    (type == element_type::u8 || type == element_type::s8),
                "codes of type ", graph::name(type), " and shape ", shown(c.inputs[3].dims()),
                " with ", scale.count(), " scales for shape ", shown(x.dims()));
    }
    if (c.has_input(4)) {
      c.require(
          !is_per_channel && c.inputs[4].type() == element_type::f32 && c.inputs[4].count() == 1,
          "an offset of type ", graph::name(c.inputs[4].type()), " and ", c.inputs[4].count(),
          " elements for ", scale.count(), " scales");
    }
    if (!is_per_channel) {
      dims[2] = x.count();
      return;
    }
    const std::size_t axis = c.axis(c.n().get_int("axis", 0), x.rank());
    c.require(static_cast<std::size_t>(x.dim(axis)) == scale.count(), scale.count(),
              " scales for axis ", axis, " of shape ", shown(x.dims()));
    for (std::size_t d = 0; d < x.rank(); ++d) {
      dims[d < axis ? 0 : d == axis ? 1 : 2] *= static_cast<std::size_t>(x.dim(d));
    }
  }

  [[nodiscard]] channel_quant_params channels(const operator_context& c) const {
    const auto scales = c.inputs[1].data<float>();
    const auto zero_points = c.inputs[2].data<std::int32_t>();
    return {1, {scales.begin(), scales.end()}, {zero_points.begin(), zero_points.end()}};
  }
  [[nodiscard]] quant_params one(const operator_context& c) const {
    return {c.inputs[1].data<float>()[0], c.inputs[2].data<std::int32_t>()[0]};
  }
  template <class T>
  [[nodiscard]] tensor_view<T> view(T* data) const {
    return {data, std::span<const std::size_t>(dims)};
  }

  grid levels;
  bool is_per_channel = false;
  std::size_t dims[3] = {1, 1, 1};

 private:
  static std::int32_t level(const operator_context& c, const char* key) {
    const std::int64_t value = c.n().get_int(key, std::numeric_limits<std::int64_t>::max());
    c.require(value >= -32768 && value <= 65535, key, " is ", value, ", not -32768..65535");
    return static_cast<std::int32_t>(value);
  }
};

/// The reals of codes that an integer operator has computed, behind the clamps of the node.
inline void run_fake_quantized_codes(operator_context& c, const fake_quantize_operands& o) {
  const quant_params p = o.one(c);
  detent::detail::require_fake_params(p, o.levels, "FakeQuantize");
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::int32_t lower = (std::max)(
      reference::quantize(c.n().get_float("lower", -infinity), p, o.levels), o.levels.qmin);
  const std::int32_t upper = (std::min)(
      reference::quantize(c.n().get_float("upper", infinity), p, o.levels), o.levels.qmax);
  const auto y = c.make_output(0).mutable_data<float>();
  const auto run = [&](const auto codes) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = reference::dequantize((std::min)((std::max)(std::int32_t{codes[i]}, lower), upper), p);
    }
  };
  if (c.inputs[3].type() == element_type::u8) {
    run(c.inputs[3].data<std::uint8_t>());
  } else {
    run(c.inputs[3].data<std::int8_t>());
  }
}

inline void run_fake_quantize(operator_context& c) {
  const fake_quantize_operands o(c);
  if (c.has_input(3)) {
    run_fake_quantized_codes(c, o);
    return;
  }
  const auto x = o.view(c.inputs[0].data<float>().data());
  const auto y = o.view(c.make_output(0).mutable_data<float>().data());
  if (o.is_per_channel) {
    fake_quantize(x, y, o.channels(c), o.levels);
  } else {
    fake_quantize(x, y, o.one(c), o.levels);
  }
}

inline void infer_fake_quantize_bias(operator_context& c) {
  const tensor& bias = c.input(0);
  const tensor& w_scale = c.input(2);
  c.require(bias.type() == element_type::f32 && bias.rank() == 1 &&
                c.input(1).type() == element_type::f32 && c.input(1).count() == 1 &&
                w_scale.type() == element_type::f32 && w_scale.count() > 0 &&
                bias.count() % w_scale.count() == 0,
            "a bias of type ", graph::name(bias.type()), " and shape ", shown(bias.dims()),
            ", scales of shapes ", shown(c.input(1).dims()), " and ", shown(w_scale.dims()));
  c.set_output(0, element_type::f32, bias.dims());
  c.set_output(1, element_type::s32, bias.dims());
}

inline void run_fake_quantize_bias(operator_context& c) {
  const auto bias = c.inputs[0].data<float>();
  const float x_scale = c.inputs[1].data<float>()[0];
  const auto w_scales = c.inputs[2].data<float>();
  const auto y = c.make_output(0).mutable_data<float>();
  const auto codes = c.make_output(1).mutable_data<std::int32_t>();
  for (std::size_t i = 0; i < bias.size(); ++i) {
    c.require(!std::isnan(bias[i]), "bias ", i, " is NaN");
    const float w_scale = w_scales[i % w_scales.size()];
    codes[i] = bias_code(bias[i], x_scale, w_scale);
    y[i] = static_cast<float>(codes[i]) * (x_scale * w_scale);
  }
}

/// The grid of an OffsetZeroPoint node. Throws bad_file, naming the node, unless it is one of 8
/// bits.
inline grid zero_point_grid(const operator_context& c) {
  const std::int64_t qmin = c.n().get_int("qmin", 0);
  const std::int64_t qmax = c.n().get_int("qmax", 255);
  c.require(qmin >= -128 && qmax <= (qmin < 0 ? 127 : 255) && qmin < qmax, "a grid of ", qmin, "..",
            qmax);
  return {static_cast<std::int32_t>(qmin), static_cast<std::int32_t>(qmax)};
}

inline void infer_offset_zero_point(operator_context& c) {
  c.require(c.input(0).type() == element_type::f32 && c.input(0).count() == 1 &&
                c.input(1).type() == element_type::f32 && c.input(1).count() == 1,
            "an offset and a scale of shapes ", shown(c.input(0).dims()), " and ",
            shown(c.input(1).dims()));
  c.set_output(0, element_type::s32, {});
  c.set_output(1, zero_point_grid(c).qmin < 0 ? element_type::s8 : element_type::u8, {});
}

inline void run_offset_zero_point(operator_context& c) {
  const std::int32_t zero_point = offset_zero_point(
      c.inputs[0].data<float>()[0], c.inputs[1].data<float>()[0], zero_point_grid(c));
  c.make_output(0).mutable_data<std::int32_t>()[0] = zero_point;
  c.make_output(1).mutable_raw()[0] = static_cast<std::byte>(zero_point & 0xFF);
}

inline void infer_straight_through(operator_context& c) {
  const tensor& x = c.input(0);
  const tensor& computed = c.input(1);
  c.require(x.type() == element_type::f32 && computed.type() == element_type::f32 &&
                x.dims() == computed.dims(),
            "values of types ", graph::name(x.type()), " and ", graph::name(computed.type()),
            " and shapes ", shown(x.dims()), " and ", shown(computed.dims()));
  c.set_output(0, element_type::f32, x.dims());
}

inline void run_straight_through(operator_context& c) { c.outputs[0] = c.inputs[1]; }

}  // namespace detail

/// The definition of detent.FakeQuantize, for registries of operators; see make_fake_quantize() for
/// its inputs and attributes.
inline constexpr operator_definition fake_quantize_operator{"detent",
                                                            "FakeQuantize",
                                                            3,
                                                            5,
                                                            layout_support::plain,
                                                            &infer_like_input,
                                                            &detail::run_fake_quantize};

/// The definition of detent.FakeQuantizeBias; see make_fake_quantize_bias().
inline constexpr operator_definition fake_quantize_bias_operator{"detent",
                                                                 "FakeQuantizeBias",
                                                                 3,
                                                                 3,
                                                                 layout_support::plain,
                                                                 &detail::infer_fake_quantize_bias,
                                                                 &detail::run_fake_quantize_bias};

/// The definition of detent.OffsetZeroPoint; see make_offset_zero_point().
inline constexpr operator_definition offset_zero_point_operator{"detent",
                                                                "OffsetZeroPoint",
                                                                2,
                                                                2,
                                                                layout_support::plain,
                                                                &detail::infer_offset_zero_point,
                                                                &detail::run_offset_zero_point};

/// The definition of detent.StraightThrough; see make_straight_through().
inline constexpr operator_definition straight_through_operator{"detent",
                                                               "StraightThrough",
                                                               2,
                                                               2,
                                                               layout_support::plain,
                                                               &detail::infer_straight_through,
                                                               &detail::run_straight_through};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_FAKE_QUANTIZE_OPERATOR_HPP
