// SPDX-License-Identifier: BSD-3-Clause
// Nodes of the operators of domain "detent" that networks are trained with for quantization.
// FakeQuantize, quantization followed by dequantization on any grid, stands for QuantizeLinear
// followed by DequantizeLinear; FakeQuantizeBias does the same to biases. They are never written to
// files. StraightThrough puts the float result of an integer operator in the place of what is
// differentiated.
#ifndef DETENT_GRAPH_LEARN_MAKE_FAKE_QUANTIZE_HPP
#define DETENT_GRAPH_LEARN_MAKE_FAKE_QUANTIZE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Makes a node of detent.FakeQuantize, which computes y = fake_quantize(x), that is
/// (clamp(round_half_even(x / scale) + zero_point, qmin, qmax) - zero_point) * scale; NaN gives 0.
///
/// The arguments are names of values: x and y are float32 tensors of one shape; scale (float32) and
/// zero_point (int32) have one element each or one for each index of x along `axis`, which counts
/// from the end if negative and is ignored if there is one scale. `levels` is the grid, within
/// -32768..65535. Nothing is checked here; the operator throws when operands do not fit.
///
/// The operator takes more, which add_codes() and add_offset() give a node:
///
///   input 3, codes    uint8 or int8, of the shape of x; there is one scale. An integer operator
///                     has computed the codes already: y = (clamp(clamp(codes, quantize(lower),
///                     quantize(upper)), qmin, qmax) - zero_point) * scale, with the attributes
///                     `lower` and `upper`, the bounds of a Relu or Clip between the operator and
///                     x. Gradients are those at x.
///   input 4, offset   float32, one element: the trained offset that zero_point is made of by
///                     detent.OffsetZeroPoint. The gradients of scale and offset are those of LSQ+.
///   attribute fixed   If not 0, scale and offset get no gradient.
///   attribute clips   If not 0, the scale learns from values above the grid alone (PACT).
[[nodiscard]] inline node make_fake_quantize(std::string x, std::string scale,
                                             std::string zero_point, std::string y, grid levels,
                                             std::int64_t axis = 0) {
  node n;
  n.op_type = "FakeQuantize";
  n.domain = "detent";
  n.name = y;
  n.inputs = {std::move(x), std::move(scale), std::move(zero_point)};
  n.outputs = {std::move(y)};
  n.attributes["qmin"] = attribute::of(std::int64_t{levels.qmin});
  n.attributes["qmax"] = attribute::of(std::int64_t{levels.qmax});
  n.attributes["axis"] = attribute::of(axis);
  return n;
}

/// Gives a FakeQuantize node the codes that an integer operator has computed of x, before a clamp
/// of their reals to lower .. upper.
inline void add_codes(node& fake_quantize, std::string codes, float lower, float upper) {
  fake_quantize.inputs.resize((std::max)(fake_quantize.inputs.size(), std::size_t{4}));
  fake_quantize.inputs[3] = std::move(codes);
  fake_quantize.attributes["lower"] = attribute::of(lower);
  fake_quantize.attributes["upper"] = attribute::of(upper);
}

/// Gives a FakeQuantize node the offset that its zero point is made of.
inline void add_offset(node& fake_quantize, std::string offset) {
  fake_quantize.inputs.resize(5);
  fake_quantize.inputs[4] = std::move(offset);
}

/// Makes a node of detent.OffsetZeroPoint, the zero point of a grid whose code 0 stands for the
/// real `offset`: clamp(round_half_even(-offset / scale), qmin, qmax). `offset` and `scale` are
/// float32 with one element; `zero_point` is int32, and `typed` the same number in the type of the
/// codes, int8 if qmin is negative and else uint8. NaN gives 0, clamped. The operator has no
/// gradient: FakeQuantize computes that of the offset.
[[nodiscard]] inline node make_offset_zero_point(std::string offset, std::string scale,
                                                 std::string zero_point, std::string typed,
                                                 grid levels) {
  node n;
  n.op_type = "OffsetZeroPoint";
  n.domain = "detent";
  n.name = zero_point;
  n.inputs = {std::move(offset), std::move(scale)};
  n.outputs = {std::move(zero_point), std::move(typed)};
  n.attributes["qmin"] = attribute::of(std::int64_t{levels.qmin});
  n.attributes["qmax"] = attribute::of(std::int64_t{levels.qmax});
  return n;
}

/// Makes a node of detent.FakeQuantizeBias, the bias of an integer layer:
///
///   codes[c] = quantize_bias(bias[c]), with the scale x_scale * w_scale[c] in double
///   y[c]     = float(codes[c]) * (x_scale * w_scale[c]), in float, as DequantizeLinear gives it
///
/// `bias` is float32 [C], `x_scale` float32 with one element, `w_scale` float32 with one element or
/// n, of which channel c has element c % n; y is float32 [C] and codes int32 [C]. Codes saturate at
/// +-(2^31 - 1); NaN is refused. The gradient of y passes to the bias (straight-through estimator),
/// and the scales get none.
[[nodiscard]] inline node make_fake_quantize_bias(std::string bias, std::string x_scale,
                                                  std::string w_scale, std::string y,
                                                  std::string codes) {
  node n;
  n.op_type = "FakeQuantizeBias";
  n.domain = "detent";
  n.name = y;
  n.inputs = {std::move(bias), std::move(x_scale), std::move(w_scale)};
  n.outputs = {std::move(y), std::move(codes)};
  return n;
}

/// Makes a node of detent.StraightThrough: y = computed, and the gradient of y passes to x. Both
/// are float32 of one shape: x is the result of a float operator on fake-quantized operands, and
/// `computed` that of an integer operator on their codes, which rounds once where the float
/// operator rounds each sum.
[[nodiscard]] inline node make_straight_through(std::string x, std::string computed,
                                                std::string y) {
  node n;
  n.op_type = "StraightThrough";
  n.domain = "detent";
  n.name = y;
  n.inputs = {std::move(x), std::move(computed)};
  n.outputs = {std::move(y)};
  return n;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_MAKE_FAKE_QUANTIZE_HPP
