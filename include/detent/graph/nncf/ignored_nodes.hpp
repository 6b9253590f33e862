// SPDX-License-Identifier: BSD-3-Clause
// NNCF's IgnoredScope: the nodes of a model that stay in float, by their names, patterns of names,
// types, and as parts of the model between given nodes.
#ifndef DETENT_GRAPH_NNCF_IGNORED_NODES_HPP
#define DETENT_GRAPH_NNCF_IGNORED_NODES_HPP

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/quantize/ignored_scope.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// NNCF's Subgraph: all nodes on the ways from one of `inputs` to one of `outputs`, those included.
/// A node without a name is known by the name of its first output.
struct ignored_subgraph {
  std::vector<std::string> inputs = {};   ///< Names of the nodes that begin it.
  std::vector<std::string> outputs = {};  ///< Names of the nodes that end it.
};

namespace detail {

/// The indices of the nodes with these names. Throws invalid_argument for a name that no node has.
[[nodiscard]] inline std::vector<std::size_t> nodes_named(const model& m,
                                                          const std::vector<std::string>& names) {
  std::vector<std::size_t> found;
  for (const std::string& name : names) {
    const std::size_t before = found.size();
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      if (name_or_output(m.nodes[i]) == name) {
        found.push_back(i);
      }
    }
    require(found.size() > before, error_kind::invalid_argument, "ignored subgraph: no node '",
            name, "' in the model");
  }
  return found;
}

/// All nodes that can be reached from some, those included; with `up`, against the data's way.
[[nodiscard]] inline std::set<std::size_t> reachable(const model& m, const links& l,
                                                     std::vector<std::size_t> from, bool up) {
  std::set<std::size_t> found;
  while (!from.empty()) {
    const std::size_t i = from.back();
    from.pop_back();
    if (!found.insert(i).second) {
      continue;
    }
    for (const std::string& name : up ? m.nodes[i].inputs : m.nodes[i].outputs) {
      if (!up) {
        const auto users = l.consumers(name);
        from.insert(from.end(), users.begin(), users.end());
      } else if (l.producer(name) != links::none) {
        from.push_back(l.producer(name));
      }
    }
  }
  return found;
}

/// The nodes of a part of the model. Throws invalid_argument if there are none.
[[nodiscard]] inline std::set<std::size_t> nodes_between(const model& m,
                                                         const ignored_subgraph& part) {
  const links l(m);
  const std::set<std::size_t> behind = reachable(m, l, nodes_named(m, part.inputs), false);
  const std::set<std::size_t> before = reachable(m, l, nodes_named(m, part.outputs), true);
  std::set<std::size_t> found;
  for (const std::size_t i : behind) {
    if (before.count(i) != 0) {
      found.insert(i);
    }
  }
  require(!found.empty(), error_kind::invalid_argument,
          "ignored subgraph: no way from its inputs to its outputs");
  return found;
}

/// The names of the first results of all nodes that are ignored: they are the same in a model whose
/// nodes have moved.
[[nodiscard]] inline std::set<std::string> ignored_results(
    const model& m, const ignored_scope& scope, const std::vector<ignored_subgraph>& parts) {
  std::set<std::size_t> nodes = matching_nodes(m, scope);
  for (const ignored_subgraph& part : parts) {
    nodes.merge(nodes_between(m, part));
  }
  if (scope.first_layer || scope.last_layer) {
    std::vector<std::size_t> layers;
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      if (is_quantizable_layer(m, m.nodes[i])) {
        layers.push_back(i);
      }
    }
    if (scope.first_layer && !layers.empty()) {
      nodes.insert(layers.front());
    }
    if (scope.last_layer && !layers.empty()) {
      nodes.insert(layers.back());
    }
  }
  std::set<std::string> results;
  for (const std::size_t i : nodes) {
    results.insert(m.nodes[i].first_output());
  }
  return results;
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_IGNORED_NODES_HPP
