// SPDX-License-Identifier: BSD-3-Clause
// Runs a test body once per CPU target that is compiled in and that this processor supports.
//
// DETENT_TEST_TARGET=avx2 in the environment narrows the loop to one target.
#ifndef DETENT_TESTS_FOR_EACH_TARGET_HPP
#define DETENT_TESTS_FOR_EACH_TARGET_HPP

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

namespace test {

/// The target that DETENT_TEST_TARGET asks for; empty for all.
inline std::string_view requested_target() {
  const char* value = std::getenv("DETENT_TEST_TARGET");
  return value != nullptr ? value : "";
}

/// The available targets, narrowed to the requested one.
inline const std::vector<detent::target>& targets_under_test() {
  static const std::vector<detent::target> targets = [] {
    std::vector<detent::target> all = detent::available_targets();
    const std::string_view only = requested_target();
    std::erase_if(all,
                  [only](detent::target t) { return !only.empty() && detent::name(t) != only; });
    return all;
  }();
  return targets;
}

/// Puts back the target that was active when it was made.
class target_restorer {
 public:
  target_restorer() = default;
  target_restorer(const target_restorer&) = delete;
  target_restorer& operator=(const target_restorer&) = delete;
  ~target_restorer() { detent::set_target(previous_); }

 private:
  detent::target previous_ = detent::active_target();
};

/// Calls body() with each target active. A plain loop instead of subcases: what a body compares
/// with is computed once, outside.
template <class Body>
void for_each_target(const Body& body) {
  const target_restorer restorer;
  for (const detent::target t : targets_under_test()) {
    detent::set_target(t);
    INFO("target ", std::string(detent::name(t)));  // as a pointer, doctest prints its address
    body();
  }
}

}  // namespace test

#endif  // DETENT_TESTS_FOR_EACH_TARGET_HPP
