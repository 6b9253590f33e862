// SPDX-License-Identifier: BSD-3-Clause
// exhaustive_functions: gives all 2^32 floats to each function of floats, on every CPU target. The
// kernels must have the bits of the definitions, and these the errors that float_functions.hpp
// promises. Takes some minutes of processor time.
#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <vector>

#include <detent/detent.hpp>

#include "float_function_cases.hpp"

namespace {

/// True if two results are the same; which NaN it is does not matter.
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

bool passes(const test::float_function& f, detent::thread_pool& pool) {
  constexpr std::uint64_t chunk = std::uint64_t{1} << 14;  // stays in the first-level cache
  constexpr std::size_t tasks = 1024;
  constexpr std::uint64_t per_task = (std::uint64_t{1} << 32) / tasks;
  std::mutex mutex;
  std::uint64_t wrong = 0;
  double worst = 0.0;
  float worst_at = 0.0F;
  pool.parallel()(tasks, [&](std::size_t task) {
    std::vector<float> x(chunk);
    std::vector<float> expected(chunk);
    std::vector<float> actual(chunk);
    std::uint64_t differences = 0;
    double largest = 0.0;
    float at = 0.0F;
    for (std::uint64_t first = task * per_task; first < (task + 1) * per_task; first += chunk) {
      for (std::size_t i = 0; i < chunk; ++i) {
        x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
        expected[i] = f.definition(x[i]);
        const auto value = static_cast<double>(x[i]);
        const double error = test::error_in_units(expected[i], f.exact(value), f.size(value));
        if (error > largest) {
          largest = error;
          at = x[i];
        }
      }
      for (const detent::target t : detent::available_targets()) {
        f.run(*test::float_function_kernels::of(t), x.data(), chunk, actual.data());
        for (std::size_t i = 0; i < chunk; ++i) {
          if (!same(actual[i], expected[i])) {
            ++differences;
          }
        }
      }
    }
    const std::lock_guard lock(mutex);
    wrong += differences;
    if (largest > worst) {
      worst = largest;
      worst_at = at;
    }
  });
  std::cout << f.name << ": " << wrong << " differences, largest error " << worst << " units at "
            << std::hexfloat << worst_at << std::defaultfloat << std::endl;
  return wrong == 0 && worst <= f.error;
}

}  // namespace

int main() {
  for (const detent::target t : detent::available_targets()) {
    std::cout << "target " << detent::name(t) << '\n';
  }
  detent::thread_pool pool;
  bool all = true;
  for (const test::float_function& f : test::float_functions) {
    all = passes(f, pool) && all;
  }
  return all ? 0 : 1;
}
