// SPDX-License-Identifier: BSD-3-Clause
// Which trained constants a loss depends on by gradients, and which operators stand in the way.
#ifndef DETENT_GRAPH_LEARN_GRADIENT_PATHS_HPP
#define DETENT_GRAPH_LEARN_GRADIENT_PATHS_HPP

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <set>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The values of the network that are known not to hold floats before a run.
[[nodiscard]] inline std::set<std::string> values_without_gradient(const model& m) {
  static const std::set<std::string, std::less<>> never_floats = {
      "And",  "ArgMax",      "ArgMin",  "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN",
      "Less", "LessOrEqual", "NonZero", "Not",   "Or",      "Shape",          "Size",  "Xor"};
  std::set<std::string> names;
  for (const node& n : m.nodes) {
    if (n.domain.empty() && never_floats.count(n.op_type) != 0) {
      names.insert(n.outputs.begin(), n.outputs.end());
    }
  }
  try {
    for (const auto& [name, t] : infer_shapes(m, {}, training_operators())) {
      if (t.type() != element_type::undefined && !ops::is_floating(t.type())) {
        names.insert(name);
      }
    }
  } catch (const error&) {
    return names;  // the run tells what does not fit together
  }
  return names;
}

/// Those of the constants `wanted` that the values `seeds` depend on by gradients. `output` is the
/// value that has labels, for messages. Throws unsupported if there are none, and, naming it, for a
/// node without gradient between one of the constants and a seed. Shapes, indices and conditions
/// are no way for gradients.
[[nodiscard]] inline std::set<std::string> constants_with_gradient(
    const model& m, const std::set<std::string>& wanted, const std::set<std::string>& seeds,
    const std::string& output) {
  const std::set<std::string> without = values_without_gradient(m);
  std::set<std::string> needed = seeds;
  for (std::size_t i = m.nodes.size(); i-- > 0;) {
    if (std::any_of(m.nodes[i].outputs.begin(), m.nodes[i].outputs.end(),
                    [&](const std::string& name) { return needed.count(name) != 0; })) {
      const gradient_definition* gradient = find_gradient(m.nodes[i]);
      for (std::size_t k = 0; k < m.nodes[i].inputs.size(); ++k) {
        const std::string& name = m.nodes[i].inputs[k];
        if (without.count(name) == 0 && (gradient == nullptr || gradient->passes_to(k))) {
          needed.insert(name);
        }
      }
    }
  }
  std::set<std::string> found;
  std::copy_if(wanted.begin(), wanted.end(), std::inserter(found, found.end()),
               [&](const std::string& name) { return needed.count(name) != 0; });
  require(!found.empty(), error_kind::unsupported, "training: output '", output,
          "' depends on none of the trained constants in a way that has a gradient");
  std::set<std::string> trained = wanted;
  for (const node& n : m.nodes) {
    const bool depends = std::any_of(
        n.inputs.begin(), n.inputs.end(),
        [&](const std::string& name) { return !name.empty() && trained.count(name) != 0; });
    const bool is_needed =
        std::any_of(n.outputs.begin(), n.outputs.end(),
                    [&](const std::string& name) { return needed.count(name) != 0; });
    require(!depends || !is_needed || find_gradient(n) != nullptr, error_kind::unsupported,
            "training: ", n.label(), ": its operator has no gradient");
    if (depends) {
      trained.insert(n.outputs.begin(), n.outputs.end());
    }
  }
  return found;
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENT_PATHS_HPP
