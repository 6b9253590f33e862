// SPDX-License-Identifier: BSD-3-Clause
// What the library's own operators for the layers of dynamic quantization do beside the product.
//
// fuse_dynamic_products() makes them of the nodes with which dynamic quantization expresses a
// layer. They are of the domain "detent" and never written to files. Their inputs are those of the
// operators of com.microsoft:
//
//   ConvIntegerToFloat, MatMulIntegerToFloat     x, w, x_scale, w_scale, x_zero_point,
//   w_zero_point,
//                                                bias
//   DynamicQuantizeConv, DynamicQuantizeMatMul   x, w, w_scale, w_zero_point, bias; a real x, which
//                                                is first quantized as by DynamicQuantizeLinear
//
// All but x, w and x_scale may be absent. With sum, the exact product of the integers:
//
//   y = clamp(float(sum) * (x_scale * w_scale) + bias, lower, upper)
//
// Each operation is rounded to float, as in the nodes that the operator replaces, so that both give
// the same bits. (com.microsoft's operators add the bias by a fused multiply-add.)
#ifndef DETENT_GRAPH_OPS_SCALED_SUMS_HPP
#define DETENT_GRAPH_OPS_SCALED_SUMS_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/float_inputs.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// Where ConvIntegerToFloat and MatMulIntegerToFloat have the inputs of the product itself, which
/// gives the sums as floats.
inline constexpr integer_product_inputs scaled_sum_inputs{
    0, absent_input, 4, 1, absent_input, 5, absent_input, absent_input, absent_input};
/// The same of DynamicQuantizeConv and DynamicQuantizeMatMul.
inline constexpr integer_product_inputs dynamic_sum_inputs{
    0, absent_input, absent_input, 1, absent_input, 3, absent_input, absent_input, absent_input};

/// Input i as one float for each of `columns` columns, which it has or of which it has one for all;
/// `otherwise` for each if it is absent. Uses `room` if the values have to be written down.
inline const float* column_floats(const operator_context& c, std::size_t i, std::size_t columns,
                                  float otherwise, std::pmr::vector<float>& room) {
  if (!c.has_input(i)) {
    room.assign(columns, otherwise);
    return room.data();
  }
  const std::span<const float> values = optional_floats(c, i, c.inputs[i].count());
  c.require(values.size() == 1 || values.size() == columns, "input ", i, " has ", values.size(),
            " values for ", columns, " columns");
  if (values.size() == columns) {
    return values.data();
  }
  room.assign(columns, values[0]);
  return room.data();
}

/// Turns the sums in the output, rows of `columns` floats, into the result. `weight_scale` and
/// `bias`: which inputs hold them.
inline void finish_scaled_sums(operator_context& c, std::size_t columns, float x_scale,
                               std::size_t weight_scale, std::size_t bias) {
  const std::span<float> y = c.outputs[0].mutable_data<float>();
  if (y.empty()) {
    return;
  }
  std::pmr::vector<float> scale_room(c.memory);
  std::pmr::vector<float> bias_room(c.memory);
  const float* const scales = column_floats(c, weight_scale, columns, 1.0F, scale_room);
  // A sum with -0 is the other addend, whichever that is.
  const float* const addends = column_floats(c, bias, columns, -0.0F, bias_room);
  const fused_clamp clamp(c.n());
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool clamps = clamp.lower > -infinity || clamp.upper < infinity;
  for_pieces(c, y.size() / columns, cheap_piece / columns, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      float* const row = y.data() + i * columns;
      detent::detail::scale_and_add(columns, x_scale, scales, addends, row);
      for (std::size_t j = 0; clamps && j < columns; ++j) {
        row[j] = reference::clamp(row[j], clamp.lower, clamp.upper);
      }
    }
  });
}

/// finish_scaled_sums() of ConvIntegerToFloat and MatMulIntegerToFloat.
inline void finish_scaled_sums(operator_context& c, std::size_t columns) {
  c.require(c.input(2).count() == 1, "x_scale has ", c.input(2).count(), " values");
  finish_scaled_sums(c, columns, optional_floats(c, 2, 1)[0], 3, 6);
}

/// The real input 0, quantized as DynamicQuantizeLinear does it.
struct dynamic_operand {
  tensor values;
  quant_params params;

  explicit dynamic_operand(const operator_context& c)
      : values(c.inputs[0].form().retyped(element_type::u8)),
        params(dynamic_quantize_params(c, c.inputs[0])) {
    values.set_storage(c.allocate(values.bytes()));
    quantize(c.inputs[0].data<float>(), values.mutable_data<std::uint8_t>(), params);
  }
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_SCALED_SUMS_HPP
