// SPDX-License-Identifier: BSD-3-Clause
// Selects nodes of a model that quantization leaves as they are.
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

/// Selects the nodes that stay in float. A node without a name is known here by the name of its
/// first output.
struct ignored_scope {
  std::vector<std::string> names = {};  ///< Names of nodes.
  /// Regular expressions (ECMAScript) that match whole names of nodes.
  std::vector<std::string> patterns = {};
  std::vector<std::string> types = {};  ///< Operator types, such as "Conv".
  bool first_layer = false;  ///< Whether the first layer with constant weights is left in float.
  bool last_layer = false;   ///< Whether the last layer with constant weights is left in float.
  bool validate = true;      ///< Whether an entry that matches no node is an error.
};

/// The indices of all nodes that the names, patterns and types of `scope` select; `first_layer` and
/// `last_layer` are not considered. Throws invalid_argument, naming the entry, if one matches no
/// node and `validate` is set, or if a pattern is not a regular expression.
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
