// SPDX-License-Identifier: BSD-3-Clause
// Included before everything else in a build of mutants (mutants.py): says which mutant is switched
// on, and notes which ones a process has come to.
#ifndef DETENT_TESTS_MUTANTS_SWITCH_HPP
#define DETENT_TESTS_MUTANTS_SWITCH_HPP

#if __cplusplus >= 202002L  // CMake's own checks are compiled with less

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <type_traits>

#include <unistd.h>

namespace detent_mutants {

inline constexpr int most = 1000;

/// The number in DETENT_MUTANT; no mutant without one.
inline const int active =
    std::getenv("DETENT_MUTANT") != nullptr ? std::atoi(std::getenv("DETENT_MUTANT")) : -1;

/// The mutants whose code was run, which the process writes into the folder DETENT_MUTANTS_REACHED
/// when it ends.
struct reached_mutants {
  std::atomic<bool> numbers[most] = {};
  ~reached_mutants() {
    if (const char* folder = std::getenv("DETENT_MUTANTS_REACHED")) {
      std::ofstream out(std::string(folder) + "/" + std::to_string(getpid()), std::ios::app);
      for (int i = 0; i < most; ++i) {
        if (numbers[i]) {
          out << i << '\n';
        }
      }
    }
  }
};
inline reached_mutants reached;

inline bool is_active(int number) noexcept {
  reached.numbers[number].store(true, std::memory_order_relaxed);
  return number == active;
}

/// Whether a mutant is switched on. Constant expressions have no mutants.
constexpr bool on(int number) noexcept {
  return std::is_constant_evaluated() ? false : is_active(number);
}

}  // namespace detent_mutants

#endif  // __cplusplus
#endif  // DETENT_TESTS_MUTANTS_SWITCH_HPP
