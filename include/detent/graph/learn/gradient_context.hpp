// SPDX-License-Identifier: BSD-3-Clause
// What the gradient of an operator is computed from, and the type of the functions that compute it.
#ifndef DETENT_GRAPH_LEARN_GRADIENT_CONTEXT_HPP
#define DETENT_GRAPH_LEARN_GRADIENT_CONTEXT_HPP

#include <cstddef>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// One application of an operator and the gradient of its output: what a gradient_function
/// receives. All tensors have their elements in the order of their dimensions.
class gradient_context {
 public:
  /// The forward application. Set are: node, opset, inputs, parallel, and outputs[0] with its
  /// elements. State, allocator and sub-graphs are not set.
  operator_context forward;
  std::span<const double> output_gradient;  ///< Gradient of the loss for each element of output 0.
  /// For each input, where its gradient is to be added, one number for each element; empty if it is
  /// not wanted.
  std::vector<std::span<double>> input_gradients;
  std::vector<bool> wanted;  ///< For each input, whether its gradient is wanted.

  /// True if the gradient of input i is wanted; false for inputs that the node does not have.
  [[nodiscard]] bool wants(std::size_t i) const { return i < wanted.size() && wanted[i]; }
  /// Where the gradient of input i is to be added. Call it only if wants(i) is true.
  [[nodiscard]] std::span<double> gradient(std::size_t i) const { return input_gradients[i]; }
  /// Input i of the forward application. Throws bad_file, naming the node, if it is absent.
  [[nodiscard]] const tensor& input(std::size_t i) const { return forward.input(i); }
  /// Output 0 of the forward application.
  [[nodiscard]] const tensor& output() const { return forward.outputs[0]; }
  /// The gradient of output 0, each number rounded to float.
  [[nodiscard]] std::vector<float> output_gradient_as_float() const {
    return {output_gradient.begin(), output_gradient.end()};
  }
};

/// A function that adds to the wanted input gradients of a context what the output gradient
/// contributes to them by the chain rule.
using gradient_function = void (*)(const gradient_context&);

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENT_CONTEXT_HPP
