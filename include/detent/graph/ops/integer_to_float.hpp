// SPDX-License-Identifier: BSD-3-Clause
// The integer products of com.microsoft that are not in QLinear form: MatMulIntegerToFloat,
// DynamicQuantizeMatMul and MulInteger.
//
//   MatMulIntegerToFloat   Y = float(sum of (a - a_zero_point)(b - b_zero_point)) * (a_scale *
//                          b_scale) + bias: exact 32-bit sums, then one fused multiply-add
//   DynamicQuantizeMatMul  MatMulIntegerToFloat of a real A, which is first quantized to uint8 as
//                          DynamicQuantizeLinear does it
//   MulInteger             C = (a - a_zero_point)(b - b_zero_point) in int32, elementwise, with
//                          broadcasting
#ifndef DETENT_GRAPH_OPS_INTEGER_TO_FLOAT_HPP
#define DETENT_GRAPH_OPS_INTEGER_TO_FLOAT_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/scaled_sums.hpp>
#include <detent/quantize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Infers the output of a product of inputs 0 and 1 whose zero points `at` names.
inline void infer_float_matmul(operator_context& c, const integer_product_inputs& at) {
  require_types_of_zero_points(c, at);
  c.set_output(0, element_type::f32, matmul_shape(c, c.input(0).dims(), c.input(1).dims()).out);
}

/// The inputs of com.microsoft.DynamicQuantizeMatMul: a, b, b_scale, b_zero_point, bias.
inline constexpr integer_product_inputs dynamic_matmul_inputs{
    0, absent_input, absent_input, 1, 2, 3, absent_input, absent_input, absent_input, 4};

inline void run_dynamic_quantize_matmul(operator_context& c) {
  const dynamic_operand x(c);
  epilogue_options options = product_epilogue(c, dynamic_matmul_inputs);
  options.lhs_scale = x.params.scale;
  run_integer_matmul(c, dynamic_matmul_inputs, x.values, {&x.params.zero_point, 1}, options);
}

inline void run_matmul_integer_to_float(operator_context& c) {
  run_integer_matmul(c, scaled_sum_inputs);
  finish_scaled_sums(c, matmul_shape(c, c.inputs[0].dims(), c.inputs[1].dims()).n);
}

inline void run_dynamic_product(operator_context& c) {
  const dynamic_operand x(c);
  run_integer_matmul(c, dynamic_sum_inputs, x.values, {&x.params.zero_point, 1}, {});
  finish_scaled_sums(c, matmul_shape(c, c.inputs[0].dims(), c.inputs[1].dims()).n, x.params.scale,
                     2, 4);
}

/// Infers the output of MulInteger, whose inputs are a, a_zero_point, b, b_zero_point.
inline void infer_mul_integer(operator_context& c) {
  const tensor& a = c.input(0);
  const tensor& b = c.input(2);
  c.require(a.type() == b.type(), "operands of types ", graph::name(a.type()), " and ",
            graph::name(b.type()));
  require_type_of_zero_point(c, 1, a);
  require_type_of_zero_point(c, 3, b);
  c.set_output(0, element_type::s32, broadcast_dims(c, a.dims(), b.dims()));
}

inline void run_mul_integer(operator_context& c) {
  const tensor& a = c.inputs[0];
  const tensor& b = c.inputs[2];
  const std::int32_t za = read_zero_points(c, 1, 1)[0];
  const std::int32_t zb = read_zero_points(c, 3, 1)[0];
  tensor& y = c.make_output(0);
  using integers = type_list<std::uint8_t, std::int8_t>;
  for_type(c, integers{}, a.type(), [&]<class T>() {
    map_broadcast(
        c, [=](T x, T w) { return (std::int32_t{x} - za) * (std::int32_t{w} - zb); },
        operand<T>{a.data<T>().data(), &a.dims()}, operand<T>{b.data<T>().data(), &b.dims()},
        y.mutable_data<std::int32_t>(), y.dims());
  });
}

inline constexpr operator_definition integer_to_float_operators[] = {
    {"com.microsoft", "MatMulIntegerToFloat", 4, 7, layout_support::plain,
     [](operator_context& c) { infer_float_matmul(c, integer_to_float_inputs); },
     [](operator_context& c) { run_integer_matmul(c, integer_to_float_inputs); }, true},
    {"detent", "MatMulIntegerToFloat", 3, 7, layout_support::plain,
     [](operator_context& c) { infer_float_matmul(c, scaled_sum_inputs); },
     &run_matmul_integer_to_float, true},
    {"detent", "DynamicQuantizeMatMul", 2, 5, layout_support::plain,
     [](operator_context& c) { infer_float_matmul(c, dynamic_sum_inputs); }, &run_dynamic_product,
     true},
    {"com.microsoft", "DynamicQuantizeMatMul", 3, 5, layout_support::plain,
     [](operator_context& c) { infer_float_matmul(c, dynamic_matmul_inputs); },
     &run_dynamic_quantize_matmul, true},
    {"com.microsoft", "MulInteger", 1, 4, layout_support::plain, &infer_mul_integer,
     &run_mul_integer, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_INTEGER_TO_FLOAT_HPP
