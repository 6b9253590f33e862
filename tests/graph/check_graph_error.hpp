// SPDX-License-Identifier: BSD-3-Clause
// Checks that a call throws detent::error, of which kind, and that its message is one line that
// names what is wrong.
#ifndef DETENT_TESTS_GRAPH_CHECK_GRAPH_ERROR_HPP
#define DETENT_TESTS_GRAPH_CHECK_GRAPH_ERROR_HPP

#include <initializer_list>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <detent/error.hpp>

namespace test {

using detent::error_kind;

template <class Call>
void check_graph_error(error_kind kind, std::initializer_list<std::string_view> words,
                       const Call& call) {
  try {
    call();
  } catch (const detent::error& e) {
    const std::string_view message = e.what();
    INFO("message: ", std::string(message));
    CHECK(e.kind() == kind);
    CHECK(message.find('\n') == std::string_view::npos);
    for (const std::string_view word : words) {
      INFO("word: ", std::string(word));
      CHECK(message.find(word) != std::string_view::npos);
    }
    return;
  }
  std::string all;
  for (const std::string_view word : words) {
    all.append(" ").append(word);
  }
  FAIL_CHECK("no error:", all);
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_CHECK_GRAPH_ERROR_HPP
