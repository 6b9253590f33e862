// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/learn/gradients/ holds the gradients of the operators: from the gradients of a
// loss with respect to the outputs of an operator, each function computes the gradients with
// respect to its inputs. There is one header for each family of operators. The folder may include
// itself, graph/ops/, graph/model/ and the numeric part.
//
// Gradients are kept in double. Products of matrices run on the float kernels (reference::dot); all
// other sums are made in double in a fixed order, with products rounded before they are added, so
// that results have the same bits on every machine and for any number of threads. In the formulas,
// D is the gradient of the loss with respect to the output, and dX the contribution to the gradient
// with respect to X.
//
// This file holds what the gradient of an operator is computed from, and the type of the functions
// that compute it. Only this file is meant for users.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_GRADIENT_CONTEXT_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_GRADIENT_CONTEXT_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// One application of an operator and the gradients of its outputs: what a gradient_function
/// receives. All tensors have their elements in the order of their dimensions.
class gradient_context {
 public:
  /// The forward application. Set are: node, opset, inputs, parallel, and the outputs that the node
  /// asks for, with their elements. State, allocator and sub-graphs are not set.
  operator_context forward;
  const operator_definition* definition = nullptr;  ///< The operator of the forward application.
  /// For each output, the gradient of the loss for each of its elements; empty if the loss does not
  /// depend on the output.
  std::vector<std::span<const double>> output_gradients;
  /// For each input, where its gradient is to be added, one number for each element; empty if it is
  /// not wanted.
  std::vector<std::span<double>> input_gradients;
  std::vector<bool> wanted;  ///< For each input, whether its gradient is wanted.
  /// Whether the gradient of input 0 is in the very buffer of the gradient of output 0 and is to be
  /// written over it, not added. Only for functions with gradient_definition::in_place.
  bool overwrites = false;

  /// The node to which the operator is applied.
  [[nodiscard]] const node& n() const noexcept { return forward.n(); }
  /// True if the gradient of input i is wanted; false for inputs that the node does not have.
  [[nodiscard]] bool wants(std::size_t i) const { return i < wanted.size() && wanted[i]; }
  /// Where the gradient of input i is to be added. Call it only if wants(i) is true.
  [[nodiscard]] std::span<double> gradient(std::size_t i) const { return input_gradients[i]; }
  /// Input i of the forward application. Throws bad_file, naming the node, if it is absent.
  [[nodiscard]] const tensor& input(std::size_t i) const { return forward.input(i); }
  /// Output i of the forward application.
  [[nodiscard]] const tensor& output(std::size_t i = 0) const { return forward.outputs[i]; }
  /// The gradient of output i; empty if the loss does not depend on it, or the node has no such
  /// output.
  [[nodiscard]] std::span<const double> output_gradient(std::size_t i = 0) const {
    return i < output_gradients.size() ? output_gradients[i] : std::span<const double>{};
  }
};

/// A function that adds to the wanted input gradients of a context what the output gradients
/// contribute to them by the chain rule.
using gradient_function = void (*)(const gradient_context&);

/// The gradient of an operator.
struct gradient_definition {
  gradient_function function = nullptr;  ///< Computes the gradients of the inputs.
  /// Whether the function looks at the gradients of all outputs. Otherwise it takes the gradient of
  /// output 0, which is there whenever the function is called, and others have none.
  bool every_output = false;
  /// Whether the function takes inputs and outputs of all floating-point types; otherwise it takes
  /// float32 alone.
  bool any_floating = false;
  /// Whether the function can write the gradient of input 0, which has the size of output 0, over
  /// that of output 0; see gradient_context::overwrites.
  bool in_place = false;
  /// Bit k is set if input k never gets a gradient, so that what makes it needs none.
  std::uint32_t inputs_without_gradient = 0;
  /// Whether input k may get a gradient.
  [[nodiscard]] bool passes_to(std::size_t k) const noexcept {
    return k >= 32 || (inputs_without_gradient >> k & 1U) == 0;
  }
  /// Tells whether this node has the gradient, for operators of which only some forms have one;
  /// null if all have it.
  bool (*applies)(const node&) = nullptr;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_GRADIENT_CONTEXT_HPP
