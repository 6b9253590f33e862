// SPDX-License-Identifier: BSD-3-Clause
// The operator form of a quantized model: QLinearConv, QLinearMatMul and the operators of
// com.microsoft in place of float operators between QuantizeLinear and DequantizeLinear.
//
//   ONNX           QLinearConv, QLinearMatMul
//   com.microsoft  QGemm, QLinearAdd, QLinearMul, QLinearConcat, QLinearAveragePool,
//                  QLinearGlobalAveragePool, QLinearSigmoid, QLinearLeakyRelu
//   on 8 bits      Reshape, Transpose, MaxPool and others that move elements
//
// What none of them expresses (a clamp inside the output's range, other functions) keeps its float
// operator between Q and DQ, and so do layers with types that ONNX Runtime has no kernel for (a
// result of another type than the input, uint8 weights with int8 activations, filters whose zero
// points differ). ONNX leaves open in which order QLinearConv and QLinearMatMul multiply
// the three scales: runtimes may differ by a step where a result is next to a tie.
#ifndef DETENT_GRAPH_QUANTIZE_QOPERATOR_HPP
#define DETENT_GRAPH_QUANTIZE_QOPERATOR_HPP

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/rewrite/lower.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Rewrites a QDQ model, whoever wrote it; the result computes the same.
inline void to_qoperator(model& m) { detail::lowering(m, detail::integer_operators::onnx).run(); }

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QOPERATOR_HPP
