// SPDX-License-Identifier: BSD-3-Clause
// Runs the tests of an executable and says first on which CPU targets they run. With
// DETENT_TEST_EMULATE_AMX in the environment, AMX instructions run through the emulator.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // its handler of SIGILL would replace the emulator's
#include <algorithm>
#include <cstdlib>
#include <iostream>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "amx_emulator.hpp"
#include "for_each_target.hpp"

namespace {

constexpr int skipped = 77;  // what CTest's SKIP_RETURN_CODE expects

void print_targets() {
  const std::vector<detent::target>& tested = test::targets_under_test();
  for (const detent::target t : detent::compiled_targets()) {
    const bool is_tested = std::find(tested.begin(), tested.end(), t) != tested.end();
    std::cout << "target " << detent::name(t) << ": "
              << (is_tested                          ? "tested"
                  : detent::kernels::cpu_supports(t) ? "skipped, not asked for"
                                                     : "skipped, not supported by this processor")
              << '\n';
  }
}

bool is_known(std::string_view name) {
  // One past the last name, name() says "unknown".
  for (int i = 0; detent::name(static_cast<detent::target>(i)) != std::string_view("unknown");
       ++i) {
    if (detent::name(static_cast<detent::target>(i)) == name) {
      return true;
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("DETENT_TEST_EMULATE_AMX") != nullptr) {
#if DETENT_KERNELS_AMX
    const bool is_emulated = test::install_amx_emulator();
#else
    const bool is_emulated = false;
#endif
    if (!is_emulated) {
      std::cout << "AMX cannot be emulated: its kernels need Linux and AVX-512 VNNI\n";
      return skipped;
    }
    std::cout << "AMX instructions are emulated\n";
  }
  print_targets();
  if (test::targets_under_test().empty()) {
    std::cout << "DETENT_TEST_TARGET=" << test::requested_target() << " is not available here\n";
    return is_known(test::requested_target()) ? skipped : 1;
  }
  return doctest::Context(argc, argv).run();
}
