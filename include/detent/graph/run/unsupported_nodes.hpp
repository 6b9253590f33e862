// SPDX-License-Identifier: BSD-3-Clause
// Which nodes of a model have no operator here.
#ifndef DETENT_GRAPH_RUN_UNSUPPORTED_NODES_HPP
#define DETENT_GRAPH_RUN_UNSUPPORTED_NODES_HPP

#include <cstdint>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The newest opset of ONNX of which it is known that it leaves the operators here what they were.
inline constexpr std::int64_t newest_opset = 27;

namespace detail {

/// `of`: the model that the graph is or belongs to. `place`: where the graph is, for messages.
inline void find_unsupported(const graph_body& g, const model& of, const std::string& place,
                             const operator_registry& registry, std::vector<std::string>& all) {
  for (const node& n : g.nodes) {
    if (of.function_of(n) != nullptr) {
      all.push_back(n.label() + place + ", which calls a function of the model");
    } else if (registry.find(n.domain, n.op_type) == nullptr) {
      all.push_back(n.label() + place);
    }
    for_each_body(n, [&](const std::string& key, const graph_body& body) {
      find_unsupported(body, of, " in " + key + " of " + n.label() + place, registry, all);
    });
  }
}

}  // namespace detail

/// The nodes that have no operator here, described one by one, those of sub-graphs as well. Calls
/// of functions that the model defines are among them. Empty if the model can be run, its opset
/// permitting.
[[nodiscard]] inline std::vector<std::string> unsupported_nodes(
    const model& m, const operator_registry& registry = default_operators()) {
  std::vector<std::string> all;
  detail::find_unsupported(m, m, std::string(), registry, all);
  return all;
}

/// Throws unsupported, naming the first node that has no operator here and how many more there are,
/// or an opset after newest_opset.
inline void require_supported(const model& m,
                              const operator_registry& registry = default_operators()) {
  require(m.opset() <= newest_opset, error_kind::unsupported, "the model has opset ", m.opset(),
          "; operators are known up to opset ", newest_opset);
  const std::vector<std::string> nodes = unsupported_nodes(m, registry);
  if (!nodes.empty()) {
    raise(error_kind::unsupported,
          "unsupported operator: " + nodes[0] +
              (nodes.size() > 1 ? " and " + std::to_string(nodes.size() - 1) + " more nodes"
                                : std::string()));
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_UNSUPPORTED_NODES_HPP
