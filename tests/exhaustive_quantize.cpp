// SPDX-License-Identifier: BSD-3-Clause
// exhaustive_quantize u8|s8 [FIRST [LAST]]: quantizes all 2^32 floats with each scale of a list, or
// with those at positions FIRST..LAST of it, on every CPU target. What is expected is the quotient
// that the processor's division makes (the portable target), itself compared with reference.hpp on
// a sample. A scale takes some twenty seconds of one core, so that this is not part of the usual
// run.
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include <detent/detent.hpp>

#include "random.hpp"
#include "scales.hpp"

namespace {

/// Those that are hard in some way, then random mantissas with exponents from end to end.
std::vector<float> all_scales() {
  std::vector<float> scales(std::begin(test::hard_scales), std::end(test::hard_scales));
  test::random_source random(0);
  for (std::uint32_t exponent = 1; exponent < 255; exponent += 6) {
    scales.push_back(std::bit_cast<float>(exponent << 23 |
                                          (static_cast<std::uint32_t>(random.bits()) & 0x7FFFFFU)));
  }
  return scales;
}

template <class Q>
using row = void (*)(const float*, const detent::kernels::elementwise_args&, Q*) noexcept;

template <class Q>
row<Q> row_of(detent::target t) {
  return detent::kernels::quantize_kernels<detent::detail::code_of<Q>>::of(t)->quantize;
}

template <class Q>
std::uint64_t differences(float scale, detent::thread_pool& pool) {
  constexpr std::uint64_t chunk = std::uint64_t{1} << 14;  // stays in the first-level cache
  constexpr std::size_t tasks = 1024;
  const std::int32_t zero_point = std::is_signed_v<Q> ? 3 : 128;
  detent::kernels::elementwise_args a;
  a.columns = chunk;
  a.scale = &scale;
  a.zero_point = &zero_point;
  a.qmin = detent::full_grid<Q>.qmin;
  a.qmax = detent::full_grid<Q>.qmax;
  const std::vector<detent::target> targets = detent::available_targets();
  std::atomic<std::uint64_t> count{0};
  std::mutex output;
  const auto report = [&](std::string_view who, float x, int actual, int expected) {
    if (++count <= 10) {
      const std::lock_guard lock(output);
      std::cout << who << ": " << std::hexfloat << x << " / " << scale << std::dec << " is "
                << actual << ", not " << expected << '\n';
    }
  };
  pool.parallel()(tasks, [&](std::size_t task) {
    std::vector<float> x(chunk);
    std::vector<Q> expected(chunk);
    std::vector<Q> actual(chunk);
    constexpr std::uint64_t per_task = (std::uint64_t{1} << 32) / tasks;
    for (std::uint64_t first = task * per_task; first < (task + 1) * per_task; first += chunk) {
      for (std::size_t i = 0; i < chunk; ++i) {
        x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
      }
      row<Q> done[8] = {row_of<Q>(detent::target::portable)};
      done[0](x.data(), a, expected.data());
      for (std::size_t i = first / chunk % 61; i < chunk; i += 61) {
        const std::int32_t q =
            detent::reference::quantize(x[i], {scale, zero_point}, detent::full_grid<Q>);
        if (q != expected[i]) {
          report("portable", x[i], expected[i], q);
        }
      }
      std::size_t rows = 1;
      for (const detent::target t : targets) {
        // Targets that differ in their products only share a row.
        if (std::find(done, done + rows, row_of<Q>(t)) != done + rows) {
          continue;
        }
        done[rows++] = row_of<Q>(t);
        row_of<Q>(t)(x.data(), a, actual.data());
        if (actual == expected) {
          continue;
        }
        for (std::size_t i = 0; i < chunk; ++i) {
          if (actual[i] != expected[i]) {
            report(detent::name(t), x[i], actual[i], expected[i]);
          }
        }
      }
    }
  });
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<float> scales = all_scales();
  const std::string_view type = argc >= 2 ? argv[1] : "";
  const std::size_t first = argc >= 3 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const std::size_t last = argc >= 4   ? std::strtoul(argv[3], nullptr, 10)
                           : argc == 3 ? first
                                       : scales.size() - 1;
  if ((type != "u8" && type != "s8") || first > last) {
    std::cerr << "usage: exhaustive_quantize u8|s8 [FIRST [LAST]], of 0.." << scales.size() - 1
              << '\n';
    return 2;
  }
  for (const detent::target t : detent::available_targets()) {
    std::cout << "target " << detent::name(t) << '\n';
  }
  detent::thread_pool pool;
  std::uint64_t wrong = 0;
  for (std::size_t i = first; i <= last && i < scales.size(); ++i) {
    const std::uint64_t count = type == "u8" ? differences<std::uint8_t>(scales[i], pool)
                                             : differences<std::int8_t>(scales[i], pool);
    std::cout << type << ' ' << i << ' ' << std::hexfloat << scales[i] << std::dec << ": " << count
              << " differences" << std::endl;
    wrong += count;
  }
  return wrong == 0 ? 0 : 1;
}
