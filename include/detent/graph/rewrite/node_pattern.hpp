// SPDX-License-Identifier: BSD-3-Clause
// How options speak of nodes: by names, or by regular expressions.
#ifndef DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
#define DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP

#include <string>

// g++ 12 takes parts of <regex> for uses of uninitialised values, with sanitizers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <regex>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The name by which options and callbacks know a node.
[[nodiscard]] inline const std::string& name_or_output(const node& n) {
  return n.name.empty() && !n.outputs.empty() ? n.outputs[0] : n.name;
}

/// A regular expression (ECMAScript) that matches whole names or types.
class node_pattern {
 public:
  /// Throws invalid_argument, with `what` it is for and its text, if it is not one.
  node_pattern(const char* what, const std::string& text) {
    try {
      expression_.assign(text);
    } catch (const std::regex_error& e) {
      raise(error_kind::invalid_argument, std::string("detent: ") + what + " '" + text +
                                              "' is not a regular expression: " + e.what());
    }
  }

  [[nodiscard]] bool matches(const std::string& text) const {
    return std::regex_match(text, expression_);
  }

 private:
  std::regex expression_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
