// SPDX-License-Identifier: BSD-3-Clause
// How options refer to nodes: by name, or by regular expression.
#ifndef DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
#define DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP

#include <string>

// g++ 12 warns about uninitialised values inside <regex> when sanitizers are on.
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

/// The name by which options and callbacks refer to a node: its name or, if it has none, that of
/// its first output.
[[nodiscard]] inline const std::string& name_or_output(const node& n) {
  return n.name.empty() && !n.outputs.empty() ? n.outputs[0] : n.name;
}

/// A regular expression (ECMAScript) that must match a whole name or type.
class node_pattern {
 public:
  /// Compiles the expression `text`. Throws invalid_argument if it is not one; the message contains
  /// `what`, which says what the expression is for, and `text`.
  node_pattern(const char* what, const std::string& text) {
    try {
      expression_.assign(text);
    } catch (const std::regex_error& e) {
      raise(error_kind::invalid_argument, std::string("detent: ") + what + " '" + text +
                                              "' is not a regular expression: " + e.what());
    }
  }

  /// Whether the expression matches all of `text`.
  [[nodiscard]] bool matches(const std::string& text) const {
    return std::regex_match(text, expression_);
  }

 private:
  std::regex expression_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
