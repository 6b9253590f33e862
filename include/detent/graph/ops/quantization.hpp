// SPDX-License-Identifier: BSD-3-Clause
// The operators QuantizeLinear and DequantizeLinear, of ONNX and of com.microsoft, and
// DynamicQuantizeLinear.
#ifndef DETENT_GRAPH_OPS_QUANTIZATION_HPP
#define DETENT_GRAPH_OPS_QUANTIZATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/float8_levels.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The grid of an integer element type of 4, 8 or 16 bits. Throws unsupported, naming the node, for
/// any other type.
inline grid type_grid(const operator_context& c, element_type type) {
  switch (type) {
    case element_type::u8:
      return {0, 255};
    case element_type::s8:
      return {-128, 127};
    case element_type::u16:
      return {0, 65535};
    case element_type::s16:
      return {-32768, 32767};
    case element_type::u4:
      return {0, 15};
    case element_type::s4:
      return {-8, 7};
    default:
      c.require_supported(false, "quantized type ", shown(type));
      return {0, 0};
  }
}

/// The type in which a tensor holds elements of this type in memory: 4-bit integers are held in
/// bytes.
inline element_type unpacked_type(element_type type) {
  return type == element_type::u4   ? element_type::u8
         : type == element_type::s4 ? element_type::s8
                                    : type;
}

/// Which scale of a QuantizeLinear or DequantizeLinear node belongs to which element: one scale for
/// all elements, one for each index of an axis, or one for each block_size elements along the axis.
/// The tensor is viewed as [outer, axis, inner].
struct scale_layout {
  std::size_t outer = 1, axis = 1, inner = 1;
  std::size_t block = 0;  // elements along the axis that share a scale; 0: one scale for all

  scale_layout(const operator_context& c, const shape& dims, const tensor& scale) {
    const std::int64_t block_size = c.n().get_int("block_size", 0);
    if (block_size == 0 && scale.count() == 1 && scale.rank() <= 1) {
      inner = element_count(dims);
      return;
    }
    const std::size_t at = c.axis(c.n().get_int("axis", 1), dims.size());
    axis = static_cast<std::size_t>(dims[at]);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      (i < at ? outer : inner) *= i == at ? 1 : static_cast<std::size_t>(dims[i]);
    }
    if (block_size == 0) {
      c.require(scale.rank() == 1 && scale.count() == axis, "scale of shape ", shown(scale.dims()),
                " for ", axis, " channels");
      block = 1;
      per_axis_ = true;
      return;
    }
    c.require(block_size > 0, "block_size ", block_size);
    shape expected = dims;
    expected[at] = dims[at] / block_size + (dims[at] % block_size != 0 ? 1 : 0);
    c.require(scale.dims() == expected, "scale of shape ", shown(scale.dims()), ", expected ",
              shown(expected));
    block = static_cast<std::size_t>(block_size);
  }

  template <class T>
  [[nodiscard]] tensor_view<T> view(T* data) const {
    return {data, {outer, axis, inner}};
  }

  /// The position of the scale that belongs to an element. Both are counted in row-major order.
  [[nodiscard]] std::size_t scale_of(std::size_t element) const noexcept {
    if (block == 0) {
      return 0;
    }
    const std::size_t at = element / inner % axis;
    if (per_axis_) {
      return at;
    }
    const std::size_t blocks = (axis + block - 1) / block;
    return (element / (axis * inner) * blocks + at / block) * inner + element % inner;
  }

  /// Calls run(parameters) with the scales and zero points of the node, its inputs 1 and 2, as
  /// quant_params, channel_quant_params or block_quant_params for axis 1 of view().
  template <class Run>
  void with_parameters(const operator_context& c, const Run& run) const {
    if (block == 0) {
      run(read_params(c, 1, 2));
      return;
    }
    std::vector<float> scales = read_scales(c, 1);
    std::vector<std::int32_t> zero_points = read_zero_points(c, 2, scales.size());
    if (per_axis_) {
      run(channel_quant_params{1, std::move(scales), std::move(zero_points)});
    } else {
      run(block_quant_params{1, block, std::move(scales), std::move(zero_points)});
    }
  }

 private:
  bool per_axis_ = false;
};

/// The types, but for floats of 16 bits, that as_float() takes.
using quantized_sources = type_list<float, double, std::int32_t>;

/// The tensor as float32: itself if it has that type, otherwise a converted copy. Takes float16,
/// bfloat16, double and int32.
inline tensor as_float(const operator_context& c, const tensor& t) {
  if (t.type() == element_type::f32) {
    return t;
  }
  tensor out(element_type::f32, t.dims());
  out.set_channels_last(t.channels_last());
  out.set_storage(c.allocate(out.bytes()));
  auto to = out.mutable_data<float>();
  if (t.type() == element_type::f16 || t.type() == element_type::bf16) {
    const auto bits = t.data<std::uint16_t>();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] =
          t.type() == element_type::f16 ? to_float(float16{bits[i]}) : to_float(bfloat16{bits[i]});
    }
    return out;
  }
  for_type(c, quantized_sources{}, t.type(), [&]<class T>() {
    const auto from = t.data<T>();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = static_cast<float>(from[i]);
    }
  });
  return out;
}

/// Whether the node's input is channels-last and may stay so: only if there is one scale for all
/// elements.
inline bool keeps_order(const operator_context& c) {
  return c.input(0).channels_last() && c.input(1).count() == 1 &&
         c.n().get_int("block_size", 0) == 0;
}

/// Throws unsupported, naming the node, for a zero point of a float type (input 2, if present) that
/// is not 0: the operators' definition adds it, but it gives a code no meaning.
inline void require_no_float8_offset(const operator_context& c) {
  if (c.has_input(2)) {
    for (const std::uint8_t bits : c.inputs[2].data<std::uint8_t>()) {
      c.require_supported((bits & 0x7FU) == 0, "a zero point of type ", shown(c.inputs[2].type()),
                          " other than 0");
    }
  }
}

/// QuantizeLinear to floats of 8 bits: y = x / scale, rounded to nearest, ties to even. The
/// attribute `saturate` says what becomes of overflow. `scale_of(i)`: the scale of element i.
template <class ScaleOf>
void quantize_to_float8(operator_context& c, const tensor& x, const ScaleOf& scale_of, tensor& y) {
  require_no_float8_offset(c);
  const bool saturate = c.n().get_int("saturate", 1) != 0;
  for_pieces(c, x.count(), cheap_piece, [&](std::size_t begin, std::size_t end) {
    detail::quantize_float8(x, y, begin, end, scale_of, saturate);
  });
}

/// The type in which QuantizeLinear divides: since opset 23 that of the attribute `precision`, or
/// of the scale if it is absent; float before.
inline element_type division_type(const operator_context& c) {
  if (c.opset < 23) {
    return element_type::f32;
  }
  const auto declared = static_cast<element_type>(c.n().get_int("precision", 0));
  c.require_supported(declared == element_type::undefined || fits_float(declared), "precision ",
                      shown(declared));
  return declared == element_type::undefined ? c.inputs[1].type() : declared;
}

/// x / scale in a type of 16-bit floats: elements, scales and quotients are rounded to it. Throws
/// bad_file, naming the node, if a scale is 0 or infinite then.
inline tensor divided_in(element_type type, const operator_context& c, const tensor& x,
                         const scale_layout& layout) {
  const auto rounded = [&](float v) {
    return type == element_type::f16 ? to_float(round_to<float16>(v))
                                     : to_float(round_to<bfloat16>(v));
  };
  std::vector<float> scales = read_scales(c, 1);
  for (float& s : scales) {
    const float exact = s;
    s = rounded(s);
    c.require(s > 0.0F && std::isfinite(s), "scale ", exact, " is ", s, " in ", shown(type));
  }
  tensor quotients(element_type::f32, x.dims());
  quotients.set_channels_last(x.channels_last());
  quotients.set_storage(c.allocate(quotients.bytes()));
  const auto from = x.data<float>();
  const auto to = quotients.mutable_data<float>();
  for_pieces(c, to.size(), cheap_piece, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      to[i] = rounded(rounded(from[i]) / scales[layout.scale_of(i)]);
    }
  });
  return quotients;
}

/// DequantizeLinear of floats of 8 bits: y = x * scale, in float.
inline void dequantize_float8(operator_context& c, const tensor& q, const scale_layout& layout,
                              tensor& y) {
  require_no_float8_offset(c);
  const std::vector<float> scales = read_scales(c, 1);
  for_pieces(c, q.count(), cheap_piece, [&](std::size_t begin, std::size_t end) {
    detail::dequantize_float8(q, y, begin, end,
                              [&](std::size_t i) { return scales[layout.scale_of(i)]; });
  });
}

inline void infer_quantize(operator_context& c) {
  element_type type = element_type::u8;
  const std::int64_t declared = c.n().get_int("output_dtype", 0);
  if (c.has_input(2)) {
    type = c.inputs[2].type();
    c.require(declared == 0 || static_cast<element_type>(declared) == type, "output_dtype is ",
              shown(static_cast<element_type>(declared)), ", the zero point ", shown(type));
  } else if (declared != 0) {
    type = static_cast<element_type>(declared);
  }
  if (!is_float8(type)) {
    static_cast<void>(type_grid(c, type));
  }
  expect_type(c, quantized_sources{}, c.input(0).type());
  c.set_output(0, type, c.input(0).dims());
  c.outputs[0].set_channels_last(keeps_order(c));
}

inline void run_quantize(operator_context& c) {
  const tensor x =
      as_float(c, c.outputs[0].channels_last() ? c.inputs[0] : to_plain(c.inputs[0], c.allocate));
  const scale_layout layout(c, x.dims(), c.inputs[1]);
  tensor& y = c.make_output(0);
  const element_type division = division_type(c);
  const bool is_divided = detail::is_half(division);
  const tensor quotients = is_divided ? divided_in(division, c, x, layout) : tensor();
  if (is_float8(y.type())) {
    if (is_divided) {
      quantize_to_float8(
          c, quotients, [](std::size_t) { return 1.0F; }, y);
    } else {
      const std::vector<float> scales = read_scales(c, 1);
      quantize_to_float8(
          c, x, [&](std::size_t i) { return scales[layout.scale_of(i)]; }, y);
    }
    return;
  }
  const grid levels = type_grid(c, y.type());
  using integers = type_list<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t>;
  for_type(c, integers{}, unpacked_type(y.type()), [&]<class Q>() {
    if (is_divided) {
      const auto zero_points = read_zero_points(c, 2, c.inputs[1].count());
      const auto codes = y.mutable_data<Q>();
      for_pieces(c, codes.size(), cheap_piece, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          codes[i] = static_cast<Q>(reference::quantize(
              quotients.data<float>()[i], {1.0F, zero_points[layout.scale_of(i)]}, levels));
        }
      });
      return;
    }
    const auto from = layout.view<const float>(x.data<float>().data());
    const auto to = layout.view<Q>(y.mutable_data<Q>().data());
    layout.with_parameters(
        c, [&](const auto& p) { quantize(from, to, p, levels, {.parallel = *c.parallel}); });
  });
}

inline void infer_dequantize(operator_context& c) {
  require_type_of_zero_point(c, 2, c.input(0));
  const element_type type = c.input(1).type();
  c.require_supported(
      type == element_type::f32 || type == element_type::f16 || type == element_type::bf16,
      "scale of type ", shown(type));
  const auto declared = static_cast<element_type>(
      c.n().get_int("output_dtype", static_cast<std::int64_t>(type)));  // since opset 23
  const element_type result = declared == element_type::undefined ? type : declared;
  c.require_supported(
      result == element_type::f32 || result == element_type::f16 || result == element_type::bf16,
      "output_dtype ", shown(result));
  c.set_output(0, result, c.input(0).dims());
  c.outputs[0].set_channels_last(keeps_order(c));
}

/// Whether scales are float32 and one of them is negative, as symmetric weights have it whose
/// largest value stands at the lower end of their levels. ONNX defines DequantizeLinear for these,
/// too.
inline bool has_negative_scale(const tensor& scales) {
  if (scales.type() != element_type::f32) {
    return false;
  }
  const auto values = scales.data<float>();
  return std::any_of(values.begin(), values.end(), [](float s) { return s < 0.0F; });
}

/// DequantizeLinear with scales of both signs: y = (q - zero_point) * scale, in float. Throws
/// bad_file, naming the node, for a scale that is 0 or not finite.
template <class Q>
void dequantize_signed(const operator_context& c, const scale_layout& layout, std::span<const Q> q,
                       std::span<float> y) {
  const auto scales = c.inputs[1].data<float>();
  for (const float s : scales) {
    c.require(std::isfinite(s) && s != 0.0F, "scale ", s, " is 0 or not finite");
  }
  const std::vector<std::int32_t> zero_points = read_zero_points(c, 2, scales.size());
  for_pieces(c, y.size(), cheap_piece, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t k = layout.scale_of(i);
      y[i] = reference::dequantize(q[i], {scales[k], zero_points[k]});
    }
  });
}

inline void run_dequantize(operator_context& c) {
  const tensor q = c.outputs[0].channels_last() ? c.inputs[0] : to_plain(c.inputs[0], c.allocate);
  const scale_layout layout(c, q.dims(), c.inputs[1]);
  tensor y(element_type::f32, q.dims());
  y.set_storage(c.allocate(y.bytes()));
  float* to = y.mutable_data<float>().data();
  if (is_float8(q.type())) {
    dequantize_float8(c, q, layout, y);
  } else {
    using integers =
        type_list<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t>;
    for_type(c, integers{}, unpacked_type(q.type()), [&]<class Q>() {
      if (has_negative_scale(c.inputs[1])) {
        dequantize_signed(c, layout, q.data<Q>(), std::span<float>(to, q.count()));
        return;
      }
      const auto from = layout.view<const Q>(q.data<Q>().data());
      layout.with_parameters(c, [&](const auto& p) {
        dequantize(from, layout.view<float>(to), p, {.parallel = *c.parallel});
      });
    });
  }
  if (c.outputs[0].type() == element_type::f32) {
    c.share_output(0, y);
    return;
  }
  auto bits = c.make_output(0).mutable_data<std::uint16_t>();
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = c.outputs[0].type() == element_type::f16 ? round_to<float16>(to[i]).bits
                                                       : round_to<bfloat16>(to[i]).bits;
  }
}

inline void infer_dynamic_quantize(operator_context& c) {
  c.set_output(0, element_type::u8, c.input(0).dims());
  c.outputs[0].set_channels_last(c.inputs[0].channels_last());
  c.set_output(1, element_type::f32, {});
  c.set_output(2, element_type::u8, {});
}

/// The parameters of DynamicQuantizeLinear for some values, computed in float as the ONNX function
/// does it: scale = (max - min) / 255 over a range that includes 0, zero_point =
/// clamp(round_half_even(-min / scale)). If all values are 0, the scale is 1.
inline quant_params dynamic_quantize_params(const operator_context& c,
                                            std::span<const float> values) {
  const kernels::min_max_result r =
      detent::detail::active<kernels::statistics_kernels>().min_max(values.data(), values.size());
  const float lower = (std::min)(r.lower, 0.0F);
  const float upper = (std::max)(r.upper, 0.0F);
  const float scale = (upper - lower) / 255.0F;
  quant_params p{scale > 0.0F ? scale : 1.0F, 0};
  c.require(std::isfinite(p.scale), "the range ", lower, " .. ", upper, " is not finite");
  p.zero_point = reference::to_grid(-lower / p.scale, 0, {0, 255});
  return p;
}

/// The parameters of DynamicQuantizeLinear for a tensor.
inline quant_params dynamic_quantize_params(const operator_context& c, const tensor& x) {
  c.require_supported(x.type() == element_type::f32, "elements of type ", shown(x.type()));
  return dynamic_quantize_params(c, x.data<float>());
}

inline void run_dynamic_quantize(operator_context& c) {
  const tensor& x = c.inputs[0];
  const quant_params p = dynamic_quantize_params(c, x);
  quantize(x.data<float>(), c.make_output(0).mutable_data<std::uint8_t>(), p);
  if (c.has_output(1)) {
    c.make_output(1).mutable_data<float>()[0] = p.scale;
  }
  if (c.has_output(2)) {
    c.make_output(2).mutable_data<std::uint8_t>()[0] = static_cast<std::uint8_t>(p.zero_point);
  }
}

inline constexpr operator_definition quantization_operators[] = {
    {"", "QuantizeLinear", 2, 3, layout_support::any, &infer_quantize, &run_quantize, true},
    {"", "DequantizeLinear", 2, 3, layout_support::any, &infer_dequantize, &run_dequantize, true},
    {"com.microsoft", "QuantizeLinear", 2, 3, layout_support::any, &infer_quantize, &run_quantize,
     true},
    {"com.microsoft", "DequantizeLinear", 2, 3, layout_support::any, &infer_dequantize,
     &run_dequantize, true},
    {"", "DynamicQuantizeLinear", 1, 1, layout_support::any, &infer_dynamic_quantize,
     &run_dynamic_quantize, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_QUANTIZATION_HPP
