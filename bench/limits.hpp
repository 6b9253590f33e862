// SPDX-License-Identifier: BSD-3-Clause
// What the processor can do at the most, measured in the run that is compared with it.
#ifndef DETENT_BENCH_LIMITS_HPP
#define DETENT_BENCH_LIMITS_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <detent/detent.hpp>

namespace detent_bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__x86_64__)
// Twenty independent accumulators hide the latency; the instructions are spelled out so that no
// compiler moves them through memory.
#define DETENT_BENCH_TWENTY(op, a, b, r)                                                          \
  op " " a "," b "," r "0\n" op " " a "," b "," r "1\n" op " " a "," b "," r "2\n" op " " a "," b \
     "," r "3\n" op " " a "," b "," r "4\n" op " " a "," b "," r "5\n" op " " a "," b "," r       \
     "6\n" op " " a "," b "," r "7\n" op " " a "," b "," r "8\n" op " " a "," b "," r "9\n"

__attribute__((target("avx512f,avx512vnni"))) inline void issue_vpdpbusd_zmm(std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    __asm__ volatile(DETENT_BENCH_TWENTY("vpdpbusd", "%%zmm30", "%%zmm31", "%%zmm")
                         DETENT_BENCH_TWENTY("vpdpbusd", "%%zmm30", "%%zmm31", "%%zmm1")::
                             : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7",
                               "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15",
                               "zmm16", "zmm17", "zmm18", "zmm19");
  }
}

__attribute__((target("avx2"))) inline void issue_vpmaddwd_ymm(std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    __asm__ volatile(DETENT_BENCH_TWENTY("vpmaddwd", "%%ymm14", "%%ymm15", "%%ymm")
                         DETENT_BENCH_TWENTY("vpmaddwd", "%%ymm14", "%%ymm15", "%%ymm")::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9");
  }
}
#undef DETENT_BENCH_TWENTY
#endif

/// Best rate of `issue`, in 1e9 operations (two for each product) a second; `products` for each of
/// the twenty instructions that one round issues.
template <class Issue>
double probe_gops(const Issue& issue, double products) {
  constexpr std::size_t rounds = 20000;
  double best = 0.0;
  for (int i = 0; i < 5; ++i) {
    const double start = seconds_now();
    issue(rounds);
    best = (std::max)(best, 2.0 * products * 20.0 * rounds / (seconds_now() - start) * 1e-9);
  }
  return best;
}

/// The peak of 8-bit products: vpdpbusd on 512 bits where there is one, else vpmaddwd on 256 bits.
inline double integer_peak_gops() {
#if defined(__x86_64__)
  if (detent::kernels::cpu_supports(detent::target::avx512_vnni)) {
    return probe_gops(issue_vpdpbusd_zmm, 64.0);
  }
  if (detent::kernels::cpu_supports(detent::target::avx2)) {
    return probe_gops(issue_vpmaddwd_ymm, 16.0);
  }
#endif
  return 0.0;
}

#if defined(__x86_64__)
/// Reads `read` bytes and writes `written`, in steps that keep their ratio.
template <bool kStream>
__attribute__((target("avx2"))) void touch(const char* from, std::size_t read, char* to,
                                           std::size_t written) {
  constexpr std::size_t line = 64;
  const std::size_t steps = (std::max)(read, written) / (8 * line);
  const std::size_t read_lines = read / line;
  const std::size_t written_lines = written / line;
  __m256i sum = _mm256_setzero_si256();
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t i = read_lines * s / steps; i < read_lines * (s + 1) / steps; ++i) {
      sum = _mm256_xor_si256(sum,
                             _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i * line)));
      sum = _mm256_xor_si256(
          sum, _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i * line + line / 2)));
    }
    for (std::size_t i = written_lines * s / steps; i < written_lines * (s + 1) / steps; ++i) {
      auto* first = reinterpret_cast<__m256i*>(to + i * line);
      if constexpr (kStream) {
        _mm256_stream_si256(first, sum);
        _mm256_stream_si256(first + 1, sum);
      } else {
        _mm256_store_si256(first, sum);
        _mm256_store_si256(first + 1, sum);
      }
    }
  }
  __asm__ volatile("" : : "x"(sum) : "memory");
}
#endif

/// What plain loads and stores reach on fresh memory of that size: the better of stores through and
/// past the caches.
inline double memory_gb_per_s(std::size_t read, std::size_t written) {
#if defined(__x86_64__)
  if (detent::kernels::cpu_supports(detent::target::avx2)) {
    constexpr std::size_t line = 64;
    std::vector<char> memory(read + written + 2 * line, 1);
    char* from = memory.data() + (line - reinterpret_cast<std::uintptr_t>(memory.data()) % line);
    char* to = from + read / line * line;
    double best = std::numeric_limits<double>::infinity();
    const std::size_t times = 1 + (std::size_t{4} << 20) / (read + written);
    for (int i = 0; i < 12; ++i) {
      const double start = seconds_now();
      for (std::size_t k = 0; k < times; ++k) {
        if (i % 2 == 0) {
          touch<false>(from, read, to, written);
        } else {
          touch<true>(from, read, to, written);
        }
      }
      best = (std::min)(best, (seconds_now() - start) / static_cast<double>(times));
    }
    return static_cast<double>(read + written) * 1e-9 / best;
  }
#endif
  return 0.0;
}

}  // namespace detent_bench

#endif  // DETENT_BENCH_LIMITS_HPP
