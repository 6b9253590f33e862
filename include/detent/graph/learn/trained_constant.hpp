// SPDX-License-Identifier: BSD-3-Clause
// Which constants of a model are trained.
#ifndef DETENT_GRAPH_LEARN_TRAINED_CONSTANT_HPP
#define DETENT_GRAPH_LEARN_TRAINED_CONSTANT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What a constant is to the operator that takes it. Weights alone are pulled towards 0 by the
/// decay of weights; each role has its own factor of the learning rate.
enum class constant_role : std::uint8_t {
  weight,  ///< It multiplies activations.
  bias,    ///< It is added to activations, or is a factor of a normalization.
  scale,   ///< It is a scale of a fake quantizer.
};

/// A constant of a model that is trained.
struct trained_constant {
  std::string name;                            ///< The name of the initializer.
  constant_role role = constant_role::weight;  ///< What it is to the operators that take it.
  /// The loss has penalty / 2 times the sum of its squares; finite and not negative.
  double penalty = 0.0;
};

namespace detail {

/// The role of input `slot` of a node if it is a parameter of the operator's kind; `is_one` says
/// that the constant has a single element. Returns false if it is not trained.
inline bool is_parameter(const node& n, std::size_t slot, bool is_one, constant_role& role) {
  if (n.domain != "" && n.domain != "com.microsoft") {
    return false;
  }
  const std::string& op = n.op_type;
  role = slot == 1 ? constant_role::weight : constant_role::bias;
  if (op == "Conv" || op == "ConvTranspose" || op == "Gemm") {
    return slot == 1 || slot == 2;
  }
  if (op == "MatMul" || op == "Gather") {
    role = constant_role::weight;
    return op == "MatMul" || slot == 0;
  }
  if (op == "LSTM" || op == "GRU" || op == "RNN") {
    role = slot == 3 ? constant_role::bias : constant_role::weight;
    return slot >= 1 && slot <= 3;
  }
  role = constant_role::bias;
  if (op == "BatchNormalization" || op == "LayerNormalization" || op == "InstanceNormalization" ||
      op == "GroupNormalization" || op == "RMSNormalization") {
    return slot == 1 || slot == 2;
  }
  if (op == "PRelu") {
    return slot == 1;
  }
  // A single factor or summand, such as the divisor of an attention, is part of the network's form.
  return (op == "Add" || op == "Mul" || op == "Sub") && !is_one;
}

/// Whether a constant is a summand that switches elements off.
[[nodiscard]] inline bool is_mask(const node& n, const tensor& t) {
  const auto values = t.data<float>();
  return (n.op_type == "Add" || n.op_type == "Sub") &&
         std::any_of(values.begin(), values.end(), [](float v) { return std::isinf(v); });
}

}  // namespace detail

/// The float32 constants of a model that training changes by default, in the order in which nodes
/// take them: weights and biases of Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU and RNN; tables of
/// Gather; factors and biases of normalizations; slopes of PRelu; and constant operands of Add, Sub
/// and Mul that have more than one element. A constant that any node takes in another place, as the
/// bounds of a Clip, is not among them (a Transpose is no such place), nor are constants that
/// sub-graphs take or that the model returns, nor summands that hold infinities: they are masks.
[[nodiscard]] inline std::vector<trained_constant> trainable_constants(const model& m) {
  std::vector<trained_constant> found;
  std::map<std::string, bool> is_trained;
  for (const node& n : m.nodes) {
    for (std::size_t slot = 0; slot < n.inputs.size(); ++slot) {
      const tensor* t = m.initializer(n.inputs[slot]);
      if (t == nullptr || n.is("Transpose")) {  // gradients pass through it
        continue;
      }
      constant_role role = constant_role::weight;
      const bool trained = t->type() == element_type::f32 && t->has_data() && t->count() > 0 &&
                           detail::is_parameter(n, slot, t->count() == 1, role) &&
                           !detail::is_mask(n, *t);
      const auto [entry, is_new] = is_trained.try_emplace(n.inputs[slot], trained);
      if (is_new && trained) {
        found.push_back({n.inputs[slot], role});
      }
      entry->second = entry->second && trained;
    }
    for (const std::string& name : captured_values(n)) {
      is_trained[name] = false;
    }
  }
  std::erase_if(found, [&](const trained_constant& c) {
    return !is_trained.at(c.name) || m.is_output(c.name);
  });
  return found;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINED_CONSTANT_HPP
