// SPDX-License-Identifier: BSD-3-Clause
// Probes of the limits of the processor: the peak rate of 8-bit products, and the rate of plain
// loads and stores. They are measured in the run that is compared with them.
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
#include <detent/kernels/amx.hpp>

namespace detent_bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__x86_64__)
// Ten copies of an instruction with different accumulators; two uses make a round of twenty. With
// so many independent accumulators (ten or twenty), the latency is hidden. The instructions are
// spelled out so that no compiler moves accumulators through memory.
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

__attribute__((target("avx2,avxvnni"))) inline void issue_vpdpbusd_ymm(std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    __asm__ volatile(DETENT_BENCH_TWENTY("%{vex%} vpdpbusd", "%%ymm14", "%%ymm15", "%%ymm")
                         DETENT_BENCH_TWENTY("%{vex%} vpdpbusd", "%%ymm14", "%%ymm15", "%%ymm")::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9");
  }
}

// Sums of products by three instructions, on processors without vpdpbusd.
#define DETENT_BENCH_PAIRS(r, n)                                                                  \
  "vpmaddubsw %%" r "14,%%" r "13,%%" r "12\nvpmaddwd %%" r "15,%%" r "12,%%" r "12\nvpaddd %%" r \
  "12,%%" r n ",%%" r n "\n"
#define DETENT_BENCH_TEN_PAIRS(r) \
  DETENT_BENCH_PAIRS(r, "0")      \
  DETENT_BENCH_PAIRS(r, "1")      \
  DETENT_BENCH_PAIRS(r, "2")      \
  DETENT_BENCH_PAIRS(r, "3")      \
  DETENT_BENCH_PAIRS(r, "4")      \
  DETENT_BENCH_PAIRS(r, "5")      \
  DETENT_BENCH_PAIRS(r, "6")      \
  DETENT_BENCH_PAIRS(r, "7") DETENT_BENCH_PAIRS(r, "8") DETENT_BENCH_PAIRS(r, "9")

__attribute__((target("avx2"))) inline void issue_pairs_ymm(std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    __asm__ volatile(DETENT_BENCH_TEN_PAIRS("ymm") DETENT_BENCH_TEN_PAIRS("ymm")::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm12");
  }
}

__attribute__((target("avx512bw"))) inline void issue_pairs_zmm(std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) {
    __asm__ volatile(DETENT_BENCH_TEN_PAIRS("zmm") DETENT_BENCH_TEN_PAIRS("zmm")::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm12");
  }
}

#if DETENT_KERNELS_AMX
// Four products of two left tiles and two right tiles, into four tiles of sums.
#define DETENT_BENCH_FOUR_TILES      \
  "tdpbusd %%tmm6, %%tmm4, %%tmm0\n" \
  "tdpbusd %%tmm7, %%tmm4, %%tmm1\n" \
  "tdpbusd %%tmm6, %%tmm5, %%tmm2\n" \
  "tdpbusd %%tmm7, %%tmm5, %%tmm3\n"

__attribute__((target("amx-tile,amx-int8"))) inline void issue_tiles(std::size_t times) {
  detent::kernels::tile_configuration c;
  c.palette = 1;
  for (std::size_t tile = 0; tile < detent::kernels::tile_count; ++tile) {
    c.set(tile, detent::kernels::tile_rows, detent::kernels::tile_row_bytes);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
  for (std::size_t i = 0; i < times; ++i) {
    __asm__ volatile(DETENT_BENCH_FOUR_TILES DETENT_BENCH_FOUR_TILES DETENT_BENCH_FOUR_TILES
                         DETENT_BENCH_FOUR_TILES DETENT_BENCH_FOUR_TILES ::
                             : "memory");
  }
  __asm__ volatile("tilerelease" ::: "memory");
}
#undef DETENT_BENCH_FOUR_TILES
#endif
#undef DETENT_BENCH_TEN_PAIRS
#undef DETENT_BENCH_PAIRS
#undef DETENT_BENCH_TWENTY
#endif

/// The best rate of `issue` in 1e9 operations per second, where a product counts as two operations.
/// issue(rounds) issues twenty instructions in each round, and each instruction makes `products`
/// products.
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

/// The peak rate of 8-bit products, in 1e9 operations per second, with the instructions of a
/// target: tdpbusd, vpdpbusd, or the three instructions vpmaddubsw, vpmaddwd and vpaddd. 0 for
/// targets without a probe.
inline double integer_peak_gops(detent::target t) {
  switch (t) {
#if defined(__x86_64__)
    case detent::target::avx2:
      return probe_gops(issue_pairs_ymm, 32.0);
    case detent::target::avx_vnni:
      return probe_gops(issue_vpdpbusd_ymm, 32.0);
    case detent::target::avx512:
      return probe_gops(issue_pairs_zmm, 64.0);
    case detent::target::avx512_vnni:
      return probe_gops(issue_vpdpbusd_zmm, 64.0);
#if DETENT_KERNELS_AMX
    case detent::target::amx_int8:
      return probe_gops(issue_tiles, 16.0 * 16.0 * 64.0);
#endif
#endif
    default:
      return 0.0;
  }
}

#if defined(__x86_64__)
/// Reads kRead cache lines and writes kWritten cache lines, `steps` times. With kStream, stores go
/// past the caches.
template <int kRead, int kWritten, bool kStream>
__attribute__((target("avx2"))) void touch(const __m256i* from, __m256i* to, std::size_t steps) {
  __m256i even = _mm256_setzero_si256();
  __m256i odd = even;
  for (std::size_t s = 0; s < steps; ++s, from += 2 * kRead, to += 2 * kWritten) {
    for (int i = 0; i < kRead; ++i) {
      even = _mm256_xor_si256(even, _mm256_load_si256(from + 2 * i));
      odd = _mm256_xor_si256(odd, _mm256_load_si256(from + 2 * i + 1));
    }
    for (int i = 0; i < 2 * kWritten; ++i) {
      if constexpr (kStream) {
        _mm256_stream_si256(to + i, even);
      } else {
        _mm256_store_si256(to + i, even);
      }
    }
  }
  __asm__ volatile("" : : "x"(even), "x"(odd) : "memory");
}

/// The rate, in GB per second, that plain loads and stores reach on `bytes` of memory if kRead
/// lines are read for every kWritten lines that are written. It is the better one of stores through
/// the caches and stores past them.
template <int kRead, int kWritten>
double memory_gb_per_s(std::size_t bytes) {
  constexpr std::size_t line = 64;
  const std::size_t steps = bytes / (line * (kRead + kWritten));
  std::vector<char> memory(bytes + 2 * line, 1);
  char* first = memory.data() + (line - reinterpret_cast<std::uintptr_t>(memory.data()) % line);
  const auto* from = reinterpret_cast<const __m256i*>(first);
  auto* to = reinterpret_cast<__m256i*>(first + steps * kRead * line);
  const std::size_t times = 1 + (std::size_t{4} << 20) / bytes;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    const double start = seconds_now();
    for (std::size_t k = 0; k < times; ++k) {
      if (i % 2 == 0) {
        touch<kRead, kWritten, false>(from, to, steps);
      } else {
        touch<kRead, kWritten, true>(from, to, steps);
      }
    }
    best = (std::min)(best, (seconds_now() - start) / static_cast<double>(times));
  }
  return static_cast<double>(steps * line * (kRead + kWritten)) * 1e-9 / best;
}
#endif

/// The rate, in GB per second, of plain loads and stores that read and write so many bytes for each
/// element, or 0 if there is no probe for these numbers or this processor.
inline double memory_gb_per_s(double read, double written, std::size_t elements) {
#if defined(__x86_64__)
  const auto bytes = static_cast<std::size_t>(static_cast<double>(elements) * (read + written));
  if (detent::kernels::cpu_supports(detent::target::avx2)) {
    return written == 0          ? memory_gb_per_s<8, 0>(bytes)
           : read == 4 * written ? memory_gb_per_s<4, 1>(bytes)
           : read == 8 * written ? memory_gb_per_s<8, 1>(bytes)
           : written == 4 * read ? memory_gb_per_s<1, 4>(bytes)
           : written == 8 * read ? memory_gb_per_s<1, 8>(bytes)
                                 : 0.0;
  }
#endif
  static_cast<void>(read), static_cast<void>(written), static_cast<void>(elements);
  return 0.0;
}

}  // namespace detent_bench

#endif  // DETENT_BENCH_LIMITS_HPP
