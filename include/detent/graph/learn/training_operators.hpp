// SPDX-License-Identifier: BSD-3-Clause
// The operators that networks are trained with: which run forwards, and which have a gradient.
#ifndef DETENT_GRAPH_LEARN_TRAINING_OPERATORS_HPP
#define DETENT_GRAPH_LEARN_TRAINING_OPERATORS_HPP

#include <map>
#include <string_view>

#include <detent/config.hpp>
#include <detent/graph/learn/gradient_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/ops/operator.hpp>

#if DETENT_GRAPH_DEFINES
#include <detent/graph/learn/fake_quantize_operator.hpp>
#include <detent/graph/learn/gradient_operators.hpp>
#include <detent/graph/run/registry.hpp>
#endif

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The registry of all operators that gradient_graph runs by default: default_operators() and
/// detent.FakeQuantize. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL const operator_registry& training_operators();

/// The gradient of a node's operator, or null if there is none. These operators have one:
///
///   Conv (groups, strides, dilations, pads, auto_pad; one or two spatial axes), Gemm, MatMul, Add,
///   Sub, Sum, Mul with broadcasting, Relu, LeakyRelu, Clip, Sigmoid, MaxPool, AveragePool,
///   GlobalAveragePool, Flatten, Reshape, Squeeze, Unsqueeze, Identity, Transpose, Concat; and
///   detent.FakeQuantize, with rounding treated as the identity (straight-through estimator)
///
/// Where a function has a kink, its gradient is: for Relu 0 at 0, for LeakyRelu 1 at 0, for Clip 1
/// at its bounds, and for MaxPool all of it goes to the first of the largest elements. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL gradient_function find_gradient(const node& n);

#if DETENT_GRAPH_DEFINES
DETENT_GRAPH_DECL const operator_registry& training_operators() {
  static const operator_registry registry = [] {
    operator_registry r = default_operators();
    r.add(fake_quantize_operator);
    return r;
  }();
  return registry;
}

DETENT_GRAPH_DECL gradient_function find_gradient(const node& n) {
  static const std::map<std::string_view, gradient_function> table{
      {"Conv", &gradients::convolution},
      {"Gemm", &gradients::gemm_operator},
      {"MatMul", &gradients::matmul},
      {"Add", &gradients::sum},
      {"Sub", &gradients::sum},
      {"Sum", &gradients::sum},
      {"Mul", &gradients::multiplication},
      {"Relu", &gradients::relu},
      {"LeakyRelu", &gradients::leaky_relu},
      {"Clip", &gradients::clip},
      {"Sigmoid", &gradients::sigmoid},
      {"MaxPool", &gradients::max_pool},
      {"AveragePool", &gradients::average_pool},
      {"GlobalAveragePool", &gradients::global_average_pool},
      {"Flatten", &gradients::same_elements},
      {"Reshape", &gradients::same_elements},
      {"Squeeze", &gradients::same_elements},
      {"Unsqueeze", &gradients::same_elements},
      {"Identity", &gradients::same_elements},
      {"Transpose", &gradients::transpose},
      {"Concat", &gradients::concat},
  };
  if (n.domain == "detent" && n.op_type == "FakeQuantize") {
    return &gradients::straight_through;
  }
  const auto found = n.domain.empty() ? table.find(n.op_type) : table.end();
  return found == table.end() ? nullptr : found->second;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINING_OPERATORS_HPP
