// SPDX-License-Identifier: BSD-3-Clause
// Compiled with -fno-exceptions -fno-rtti: errors go to the handler.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <detent/all.hpp>

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error "compile this with -fno-exceptions -fno-rtti"
#endif

int main() {
  detent::error_handler_without_exceptions() = [](detent::error_kind kind, const char* message) {
    std::printf("handler: %s\n", message);
    std::fflush(stdout);
    std::_Exit(kind == detent::error_kind::invalid_argument ? 0 : 1);
  };
  detent::thread_pool pool(2);
  std::vector<int> seen(100);
  pool.run(seen.size(), [&](std::size_t i) { seen[i] = 1; });
  for (const int one : seen) {
    if (one != 1) {
      return 1;
    }
  }
  const std::vector<float> x(3);
  std::vector<std::uint8_t> q(3);
  detent::quantize(x, std::span(q), {-1.0F, 0});
  return 1;
}
