// SPDX-License-Identifier: BSD-3-Clause
// Finds the nodes of a model that cannot be run: there is no operator for them, or they do not have
// the inputs and outputs that it requires.
#ifndef DETENT_GRAPH_RUN_UNSUPPORTED_NODES_HPP
#define DETENT_GRAPH_RUN_UNSUPPORTED_NODES_HPP

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The newest version of ONNX's operators that the library supports. Models with a newer opset are
/// rejected, because operators might mean something else there.
inline constexpr std::int64_t newest_opset = 28;

namespace detail {

/// Text that says where a sub-graph is: in the attribute `key` of a node that is at `place` itself.
/// The innermost places come first; of many or long ones, only the first 512 bytes are told.
[[nodiscard]] inline std::string place_within(const std::string& key, const node& n,
                                              const std::string& place) {
  return cut_text(" in " + cut_text(key, 64) + " of " + n.label() + place, 512);
}

/// Appends descriptions of the unsupported nodes of a graph and its sub-graphs to `all`.
/// `functions`: those of the model that the graph is or belongs to. `place`: text that says where
/// the graph is, empty for the model's own.
inline void find_unsupported(const graph_body& g, const function_table& functions,
                             const std::string& place, const operator_registry& registry,
                             std::vector<std::string>& all) {
  for (const node& n : g.nodes) {
    if (functions.function_of(n) != nullptr) {
      all.push_back(n.label() + place + ", which calls a function of the model");
    } else if (registry.find(n.domain, n.op_type) == nullptr) {
      all.push_back(n.label() + place);
    }
    for_each_body(n, [&](const std::string& key, const graph_body& body) {
      find_unsupported(body, functions, place_within(key, n, place), registry, all);
    });
  }
}

/// Whether the attributes of a node say that it makes strings.
[[nodiscard]] inline bool makes_strings(const node& n) {
  if (n.is("Cast")) {
    return n.get_int("to", 0) == static_cast<std::int64_t>(element_type::string);
  }
  const attribute* const value = n.find("value");
  return n.is("Constant") &&
         (n.find("value_string") != nullptr || n.find("value_strings") != nullptr ||
          (value != nullptr && value->t.type() == element_type::string));
}

/// Adds the constants and inputs of a graph that are strings to `names`.
inline void add_strings(const graph_body& g, std::set<std::string>& names) {
  for (const auto& [name, t] : g.initializers) {
    if (t.type() == element_type::string) {
      names.insert(name);
    }
  }
  for (const value_info& v : g.inputs) {
    if (v.type == element_type::string) {
      names.insert(v.name);
    }
  }
}

/// Appends descriptions of the nodes of a graph and its sub-graphs that take or make strings, as
/// find_unsupported() does. `outside`: the names of values around the graph that are strings. Nodes
/// that only take results of these nodes are not found.
inline void find_string_nodes(const graph_body& g, const std::set<std::string>& outside,
                              const std::string& place, std::vector<std::string>& all) {
  std::set<std::string> own;
  add_strings(g, own);
  if (!own.empty()) {
    own.insert(outside.begin(), outside.end());
  }
  const std::set<std::string>& strings = own.empty() ? outside : own;
  for (const node& n : g.nodes) {
    const bool takes = !n.is("Shape") && !n.is("Size") &&
                       std::any_of(n.inputs.begin(), n.inputs.end(),
                                   [&](const std::string& in) { return strings.count(in) != 0; });
    if (takes || makes_strings(n)) {
      all.push_back(n.label() + place + ", which " + (takes ? "takes" : "makes") + " strings");
    }
    for_each_body(n, [&](const std::string& key, const graph_body& body) {
      find_string_nodes(body, strings, place_within(key, n, place), all);
    });
  }
}

/// require_arity() for the nodes of a graph and its sub-graphs.
inline void require_arity_of_nodes(const graph_body& g, const operator_registry& registry) {
  for (const node& n : g.nodes) {
    if (const operator_definition* d = registry.find(n.domain, n.op_type)) {
      require_arity(n, *d);
    }
    for_each_body(n, [&](const std::string& /*attribute*/, const graph_body& body) {
      require_arity_of_nodes(body, registry);
    });
  }
}

}  // namespace detail

/// Throws bad_file as require_arity(node, definition) for the first node of a model that does not
/// fit its operator in `registry`, nodes of sub-graphs included. Nodes without an operator pass.
/// The readers of graph/onnx.hpp call it, so that code behind them may rely on what is required.
inline void require_arity(const model& m, const operator_registry& registry = default_operators()) {
  detail::require_arity_of_nodes(m, registry);
}

/// Describes each node that has no operator in `registry`, nodes of sub-graphs included. Nodes that
/// call functions which the model defines are listed too, and so are nodes that make strings or
/// take constants or inputs of strings: no operator computes with strings. The result is empty if
/// the model can be run, provided its opset is supported (require_supported()).
[[nodiscard]] inline std::vector<std::string> unsupported_nodes(
    const model& m, const operator_registry& registry = default_operators()) {
  std::vector<std::string> all;
  detail::find_unsupported(m, function_table(m), std::string(), registry, all);
  detail::find_string_nodes(m, {}, std::string(), all);
  return all;
}

/// Throws unsupported if the opset of the model is beyond newest_opset.
inline void require_known_opset(const model& m) {
  require(m.opset() <= newest_opset, error_kind::unsupported, "the model has opset ", m.opset(),
          "; operators are known up to opset ", newest_opset);
}

/// Throws unsupported if the opset of the model is beyond newest_opset or if a node has no operator
/// in `registry`; the message names the first such node and says how many more there are. Nodes of
/// strings pass: a run refuses them where it comes to them. Throws bad_file as require_arity().
inline void require_supported(const model& m,
                              const operator_registry& registry = default_operators()) {
  require_known_opset(m);
  std::vector<std::string> nodes;
  detail::find_unsupported(m, function_table(m), std::string(), registry, nodes);
  if (!nodes.empty()) {
    raise(error_kind::unsupported,
          "unsupported operator: " + nodes[0] +
              (nodes.size() > 1 ? " and " + std::to_string(nodes.size() - 1) + " more nodes"
                                : std::string()));
  }
  require_arity(m, registry);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_UNSUPPORTED_NODES_HPP
