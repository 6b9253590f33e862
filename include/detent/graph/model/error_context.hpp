// SPDX-License-Identifier: BSD-3-Clause
// Adds context to errors: the file, node or tensor that an error message is about.
#ifndef DETENT_GRAPH_MODEL_ERROR_CONTEXT_HPP
#define DETENT_GRAPH_MODEL_ERROR_CONTEXT_HPP

#include <string>
#include <string_view>

#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The value of a map for `key`. Throws invalid_argument if there is none: "there are no <what>
/// '<key>'".
template <class Map>
[[nodiscard]] const typename Map::mapped_type& entry_of(const Map& map,
                                                        const typename Map::key_type& key,
                                                        const char* what) {
  const auto found = map.find(key);
  require(found != map.end(), error_kind::invalid_argument, "there are no ", what, " '", key, "'");
  return found->second;
}

/// The message of an error without the prefix "detent: ", which most messages begin with.
[[nodiscard]] inline std::string message_of(const error& e) {
  constexpr std::string_view prefix = "detent: ";
  const std::string_view text = e.what();
  return std::string(text.substr(text.rfind(prefix, 0) == 0 ? prefix.size() : 0));
}

/// Returns f(). If f() throws a detent::error, throws one of the same kind whose message has `what`
/// in front and `where` behind.
template <class Function>
auto with_context(const std::string& what, const Function& f, const std::string& where = {}) {
  try {
    return f();
  } catch (const error& e) {
    detent::raise(e.kind(), "detent: " + what + ": " + message_of(e) + where);
  }
}

/// Returns f() and names the value `name` of a model in the errors that f() throws, like
/// with_context().
template <class Function>
auto of_tensor(const std::string& name, const Function& f, const std::string& where = {}) {
  return with_context("tensor '" + name + "'", f, where);
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_ERROR_CONTEXT_HPP
