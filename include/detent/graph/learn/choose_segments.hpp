// SPDX-License-Identifier: BSD-3-Clause
// Estimates the memory of a batch, and finds the number of segments for which it fits a limit.
#ifndef DETENT_GRAPH_LEARN_CHOOSE_SEGMENTS_HPP
#define DETENT_GRAPH_LEARN_CHOOSE_SEGMENTS_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/gradient_memory.hpp>
#include <detent/graph/learn/node_segments.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Types and shapes of values by name, as tensors without elements.
using value_forms = std::map<std::string, tensor>;

/// The types and shapes that all values of a model have in a run with these inputs. Runs the model
/// once, and keeps no value beyond its last use. Throws as executor::run().
[[nodiscard]] inline value_forms find_forms(
    const model& m, const std::map<std::string, tensor>& inputs, const executor_options& options,
    const operator_registry& registry = training_operators()) {
  value_forms forms;
  for (const auto& [name, value] : m.initializers) {
    forms[name] = value.form();
  }
  executor run(m, options, registry);
  static_cast<void>(run.run(
      inputs, [&](const std::string& name, const tensor& value) { forms[name] = value.form(); }));
  return forms;
}

/// The memory of gradient_graph with these segments. `forms` has the forms of all values,
/// `seeds` names the values that gradients begin with, `wanted` those that gradients are asked for.
/// The number for values is exact if a gradient reaches each segment; that for gradients is an
/// upper limit, because some are written over others. Throws invalid_argument, naming it, for a
/// value without a form.
[[nodiscard]] inline gradient_memory estimate_memory(const model& m, const node_segments& segments,
                                                     const value_forms& forms,
                                                     const std::set<std::string>& seeds,
                                                     const std::set<std::string>& wanted) {
  const auto form = [&](const std::string& name) -> const tensor& {
    const auto found = forms.find(name);
    require(found != forms.end(), error_kind::invalid_argument,
            "estimate_memory: nothing tells the shape of '", name, "'");
    return found->second;
  };
  gradient_memory most;
  std::size_t kept = 0;
  for (std::size_t s = 0; s < segments.count(); ++s) {
    std::size_t inside = 0;
    for (std::size_t i = segments.begin(s); i < segments.end(s); ++i) {
      for (const std::string& name : m.nodes[i].outputs) {
        if (!name.empty()) {
          (segments.keeps(name) ? kept : inside) += form(name).bytes();
        }
      }
    }
    most.values = (std::max)(most.values, inside);
  }
  most.values += kept;

  const std::set<std::string> active = detail::values_computed_from(m, wanted);
  std::set<std::string> held = seeds;
  std::size_t now = 0;
  for (const std::string& name : seeds) {
    now += form(name).count();
  }
  std::size_t largest = now;
  for (auto n = m.nodes.rbegin(); n != m.nodes.rend(); ++n) {
    if (std::none_of(n->outputs.begin(), n->outputs.end(),
                     [&](const std::string& name) { return held.count(name) != 0; })) {
      continue;
    }
    for (const std::string& name : n->inputs) {
      if (active.count(name) != 0 && ops::is_floating(form(name).type()) &&
          held.insert(name).second) {
        now += form(name).count();
      }
    }
    largest = (std::max)(largest, now);
    for (const std::string& name : n->outputs) {
      if (wanted.count(name) == 0 && held.erase(name) != 0) {
        now -= form(name).count();
      }
    }
  }
  most.gradients = largest * sizeof(double);
  return most;
}

/// The smallest of 1, 2, 4, ... and the number of nodes for which the estimate_memory() of both
/// values and gradients is at most `limit` bytes. `kept` are the values that node_segments is asked
/// to keep; the other arguments are those of estimate_memory(). Throws invalid_argument, with the
/// smallest estimate, if no number is enough.
[[nodiscard]] inline segment_choice choose_segments(const model& m, const value_forms& forms,
                                                    const std::set<std::string>& kept,
                                                    const std::set<std::string>& seeds,
                                                    const std::set<std::string>& wanted,
                                                    std::size_t limit) {
  const std::size_t nodes = (std::max)(m.nodes.size(), std::size_t{1});
  segment_choice best;
  for (std::size_t k = 1;; k = (std::min)(2 * k, nodes)) {
    const gradient_memory memory =
        estimate_memory(m, node_segments(m, k, kept), forms, seeds, wanted);
    if (memory.total() <= limit) {
      return {k, memory};
    }
    if (k == 1 || memory.total() < best.memory.total()) {
      best = {k, memory};
    }
    if (k == nodes) {
      break;
    }
  }
  detent::raise(error_kind::invalid_argument, "training: values and gradients of a batch take ",
                best.memory.total(), " bytes with ", best.segments,
                best.segments == 1 ? " segment" : " segments",
                ", the least of 1, 2, 4, ... segments; the limit is ", limit,
                " bytes. Smaller batches take less");
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_CHOOSE_SEGMENTS_HPP
