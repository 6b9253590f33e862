// SPDX-License-Identifier: BSD-3-Clause
// How options refer to nodes: by name, or by regular expression.
#ifndef DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
#define DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

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

/// An upper bound of the number of places of an expression at which a match may stand, with
/// repeated parts counted as often as they are repeated. A group counts one itself: `(ab){3}` has
/// nine. Stops counting above `most`.
[[nodiscard]] inline std::size_t pattern_places(const std::string& text, std::size_t most) {
  std::vector<std::size_t> groups{0};  // places of the groups that are open, the whole first
  std::size_t last = 0;                // places of the part that a repetition would repeat
  for (std::size_t i = 0; i < text.size() && groups.back() <= most; ++i) {
    if (text[i] == '(') {
      groups.push_back(1);
      continue;
    }
    if (text[i] == ')' && groups.size() > 1) {
      last = groups.back();
      groups.pop_back();
      groups.back() += last;
      continue;
    }
    if (text[i] == '{') {
      std::size_t times = 1;
      std::size_t number = 0;
      for (const std::size_t end = (std::min)(text.find('}', i), text.size()); i < end; ++i) {
        const bool is_digit = text[i] >= '0' && text[i] <= '9';
        number =
            is_digit ? (std::min)(number * 10 + static_cast<std::size_t>(text[i] - '0'), most) : 0;
        times = (std::max)(times, number);
      }
      groups.back() += last * (times - 1);
      last *= times;
      continue;
    }
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '[') {
      while (i < text.size() && text[i] != ']') {
        i += text[i] == '\\' ? 2U : 1U;
      }
    }
    last = 1;
    ++groups.back();
  }
  return *std::max_element(groups.begin(), groups.end());
}

/// Compiles an expression; throws as node_pattern().
[[nodiscard]] DETENT_GRAPH_DECL std::shared_ptr<const regular_expression> compile_expression(
    const char* what, const std::string& text);
/// Whether the expression matches all of `text`.
[[nodiscard]] DETENT_GRAPH_DECL bool matches_all(const regular_expression& expression,
                                                 const std::string& text);

#if DETENT_GRAPH_DEFINES_EXECUTION
class regular_expression {
 public:
  explicit regular_expression(const std::string& text)
      : compiled(text, syntax), places(pattern_places(text, most_places)) {}

  static constexpr std::size_t most_places = 2000;

  std::regex compiled;
  std::size_t places;  // a comparison with a name takes about so many steps for each character

 private:
#if defined(__GLIBCXX__)
  // Matches in a time that is a product of both lengths. Its other way tries exponentially many
  // combinations for some names, and takes some of the stack for each character.
  static constexpr auto syntax =
      std::regex::ECMAScript | std::regex::nosubs | std::regex_constants::__polynomial;
#else
  static constexpr auto syntax = std::regex::ECMAScript | std::regex::nosubs;
#endif
};

DETENT_GRAPH_DECL std::shared_ptr<const regular_expression> compile_expression(
    const char* what, const std::string& text) {
  constexpr std::size_t longest = 1000;  // std::regex needs some of the stack for each bracket
  require(text.size() <= longest, error_kind::invalid_argument, what, " '", text.substr(0, 40),
          "...' has ", text.size(), " characters; a regular expression may have ", longest);
  constexpr std::size_t most_places = regular_expression::most_places;
  require(pattern_places(text, most_places) <= most_places, error_kind::invalid_argument, what,
          " '", cut_text(text, 40),
          "' repeats too much: with its repetitions written out, it has more than ", most_places,
          " characters");
  try {
    return std::make_shared<const regular_expression>(text);
  } catch (const std::regex_error& e) {
    raise(error_kind::invalid_argument, std::string("detent: ") + what + " '" + text +
                                            "' is not a regular expression: " + e.what());
  }
}

DETENT_GRAPH_DECL bool matches_all(const regular_expression& expression, const std::string& text) {
  constexpr std::size_t most_steps = std::size_t{1} << 24U;
  const std::size_t longest = most_steps / (std::max)(expression.places, std::size_t{1});
  require(text.size() <= longest, error_kind::bad_file, "the name '", cut_text(text, 40), "' has ",
          text.size(), " characters; this regular expression is compared with up to ", longest);
  return std::regex_match(text, expression.compiled);
}
#endif

}  // namespace detail

/// A regular expression (ECMAScript, without references to what a group has matched) that must
/// match a whole name or type.
class node_pattern {
 public:
  /// Compiles the expression `text`. Throws invalid_argument if it is not one, has more than 1000
  /// characters, or more than 2000 with its repetitions written out; the message contains `what`,
  /// which says what the expression is for, and `text`.
  node_pattern(const char* what, const std::string& text)
      : expression_(detail::compile_expression(what, text)) {}

  /// Whether the expression matches all of `text`. Throws bad_file if the product of both lengths,
  /// that of the expression with its repetitions written out, is above 2^24.
  [[nodiscard]] bool matches(const std::string& text) const {
    return detail::matches_all(*expression_, text);
  }

 private:
  std::shared_ptr<const detail::regular_expression> expression_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_NODE_PATTERN_HPP
