// SPDX-License-Identifier: BSD-3-Clause
// How options refer to nodes: by name, or by regular expression.
#ifndef DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
#define DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP

#include <cstddef>
#include <memory>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>

#if DETENT_GRAPH_DEFINES_EXECUTION
// g++ 12 warns about uninitialised values inside <regex> when sanitizers are on.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <regex>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The name by which options and callbacks refer to a node: its name or, if it has none, that of
/// its first output that is asked for.
[[nodiscard]] inline const std::string& name_or_output(const node& n) {
  return n.name.empty() ? n.first_output() : n.name;
}

namespace detail {

/// A compiled regular expression, declared apart from <regex>, which takes seconds to compile.
class regular_expression;

/// Compiles an expression; throws as node_pattern().
[[nodiscard]] DETENT_GRAPH_DECL std::shared_ptr<const regular_expression> compile_expression(
    const char* what, const std::string& text);
/// Whether the expression matches all of `text`.
[[nodiscard]] DETENT_GRAPH_DECL bool matches_all(const regular_expression& expression,
                                                 const std::string& text);

#if DETENT_GRAPH_DEFINES_EXECUTION
class regular_expression {
 public:
  explicit regular_expression(const std::string& text) : compiled(text, syntax) {}
  std::regex compiled;

 private:
#if defined(__GLIBCXX__)
  // Matches in a time that is a product of both lengths. Its other way tries exponentially many
  // combinations for some names, and takes some of the stack for each character.
  static constexpr auto syntax = std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
  static constexpr auto syntax = std::regex::ECMAScript;
#endif
};

DETENT_GRAPH_DECL std::shared_ptr<const regular_expression> compile_expression(
    const char* what, const std::string& text) {
  constexpr std::size_t longest = 1000;  // std::regex needs some of the stack for each bracket
  require(text.size() <= longest, error_kind::invalid_argument, what, " '", text.substr(0, 40),
          "...' has ", text.size(), " characters; a regular expression may have ", longest);
  try {
    return std::make_shared<const regular_expression>(text);
  } catch (const std::regex_error& e) {
    raise(error_kind::invalid_argument, std::string("detent: ") + what + " '" + text +
                                            "' is not a regular expression: " + e.what());
  }
}

DETENT_GRAPH_DECL bool matches_all(const regular_expression& expression, const std::string& text) {
  return std::regex_match(text, expression.compiled);
}
#endif

}  // namespace detail

/// A regular expression (ECMAScript, without references to what a group has matched) that must
/// match a whole name or type.
class node_pattern {
 public:
  /// Compiles the expression `text`. Throws invalid_argument if it is not one, or has more than
  /// 1000 characters; the message contains `what`, which says what the expression is for, and
  /// `text`.
  node_pattern(const char* what, const std::string& text)
      : expression_(detail::compile_expression(what, text)) {}

  /// Whether the expression matches all of `text`.
  [[nodiscard]] bool matches(const std::string& text) const {
    return detail::matches_all(*expression_, text);
  }

 private:
  std::shared_ptr<const detail::regular_expression> expression_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
