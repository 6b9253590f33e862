// SPDX-License-Identifier: BSD-3-Clause
// Which nodes of a model are left as they are.
#ifndef DETENT_GRAPH_QUANTIZE_IGNORED_SCOPE_HPP
#define DETENT_GRAPH_QUANTIZE_IGNORED_SCOPE_HPP

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Nodes that stay in float. A node without a name has that of its first output here.
struct ignored_scope {
  std::vector<std::string> names = {};  // of nodes
  std::vector<std::string> patterns =
      {};                               // regular expressions (ECMAScript) that match whole names
  std::vector<std::string> types = {};  // of operators
  bool first_layer = false;             // the first layer with constant weights
  bool last_layer = false;
  bool validate = true;  // an entry that matches nothing is an error that names it
};

/// The indices of the nodes that names, patterns and types speak of. Throws invalid_argument naming
/// an entry that matches nothing, or a pattern that is not a regular expression.
[[nodiscard]] inline std::set<std::size_t> matching_nodes(const model& m,
                                                          const ignored_scope& scope) {
  std::set<std::size_t> found;
  const auto add = [&](const char* kind, const std::string& entry, const auto& matches) {
    bool any = false;
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      if (matches(m.nodes[i])) {
        any = true;
        found.insert(i);
      }
    }
    require(any || !scope.validate, error_kind::invalid_argument, "ignored ", kind, " '", entry,
            "' matches no node of the model");
  };
  for (const std::string& name : scope.names) {
    add("name", name, [&](const node& n) { return name_or_output(n) == name; });
  }
  for (const std::string& type : scope.types) {
    add("type", type, [&](const node& n) { return n.op_type == type; });
  }
  for (const std::string& pattern : scope.patterns) {
    const node_pattern expression("ignored pattern", pattern);
    add("pattern", pattern, [&](const node& n) { return expression.matches(name_or_output(n)); });
  }
  return found;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_IGNORED_SCOPE_HPP
