// SPDX-License-Identifier: BSD-3-Clause
// Rewrites a quantized model from QuantizeLinear/DequantizeLinear pairs to integer operators for
// files:
//
//   ONNX           QLinearConv, QLinearMatMul
//   com.microsoft  QGemm, QLinearAdd, QLinearMul, QLinearConcat, QLinearAveragePool,
//                  QLinearGlobalAveragePool, QLinearSigmoid, QLinearLeakyRelu;
//                  MatMulIntegerToFloat for MatMul with a float result or an added bias; Gemm
//                  with a float result is a QGemm, too
//   on 8 bits      Reshape, Transpose, MaxPool and others that move elements
//
// Anything that none of them can express (ConvTranspose, a clamp inside the output's range, other
// functions) stays a float operator between Q and DQ nodes, and so do layers with types that ONNX
// Runtime has no kernel for (a result of another type than the input, uint8 weights with int8
// activations, filters whose zero points differ).
#ifndef DETENT_GRAPH_QUANTIZE_QOPERATOR_HPP
#define DETENT_GRAPH_QUANTIZE_QOPERATOR_HPP

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/rewrite/lower.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Rewrites a model with QuantizeLinear/DequantizeLinear pairs, from any tool, to ONNX's
/// QLinearConv and QLinearMatMul and to the integer operators of com.microsoft, in place. Regions
/// that these operators or ONNX Runtime's kernels for them cannot express stay as they are. The
/// result computes the same, up to the float rounding of MatMulIntegerToFloat.
///
/// ONNX does not define in which order QLinearConv and QLinearMatMul multiply the three scales, so
/// runtimes may differ from each other by one step where a result is next to a tie.
inline void to_qoperator(model& m) { detail::lowering(m, detail::integer_operators::onnx).run(); }

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QOPERATOR_HPP
