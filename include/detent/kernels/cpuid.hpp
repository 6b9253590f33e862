// SPDX-License-Identifier: BSD-3-Clause
// What CPUID tells: cpu_supports(), from feature groups and the state that the operating system
// saves, and the sizes of caches.
#ifndef DETENT_KERNELS_CPUID_HPP
#define DETENT_KERNELS_CPUID_HPP

#include <initializer_list>

#include <detent/kernels/amx.hpp>
#include <detent/kernels/table.hpp>
#include <detent/target.hpp>

#if DETENT_ARCH_X86_64
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

#if DETENT_ARCH_X86_64

struct cpuid_registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

DETENT_DECL cpuid_registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) noexcept {
  cpuid_registers r;
#if defined(_MSC_VER) && !defined(__clang__)
  int words[4];
  __cpuidex(words, static_cast<int>(leaf), static_cast<int>(subleaf));
  r = {static_cast<std::uint32_t>(words[0]), static_cast<std::uint32_t>(words[1]),
       static_cast<std::uint32_t>(words[2]), static_cast<std::uint32_t>(words[3])};
#else
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) {
    r = {};
  }
#endif
  return r;
}

/// XCR0: which register states the operating system saves. Only callable where OSXSAVE is set.
DETENT_DECL std::uint64_t read_xcr0() noexcept {
#if defined(_MSC_VER) && !defined(__clang__)
  return _xgetbv(0);
#else
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
#endif
}

DETENT_DECL bool cpu_supports(target t) noexcept {
  struct features {
    bool avx2 = false;
    bool avx_vnni = false;
    bool avx512 = false;
    bool avx512_vnni = false;
    bool amx_int8 = false;
  };
  static const features found = [] {
    const auto all = [](std::uint32_t word, std::initializer_list<int> bits) {
      for (const int bit : bits) {
        if ((word >> bit & 1U) == 0) {
          return false;
        }
      }
      return true;
    };
    features f;
    const cpuid_registers basic = cpuid(1, 0);
    constexpr int osxsave = 27;
    if (!all(basic.ecx, {osxsave})) {
      return f;
    }
    const std::uint64_t xcr0 = read_xcr0();
    const cpuid_registers extended = cpuid(7, 0);
    const cpuid_registers extended1 = extended.eax >= 1 ? cpuid(7, 1) : cpuid_registers{};
    const cpuid_registers amd = cpuid(0x80000001U, 0);
    // sse3, pclmulqdq, ssse3, fma, sse4.1, sse4.2, popcnt, aes, avx, f16c
    f.avx2 = (xcr0 & 0x6U) == 0x6U && all(basic.ecx, {0, 1, 9, 12, 19, 20, 23, 25, 28, 29}) &&
             all(extended.ebx, {3, 5, 8}) &&  // bmi1, avx2, bmi2
             all(amd.ecx, {5});               // lzcnt
    f.avx_vnni = f.avx2 && all(extended1.eax, {4});
    // avx512 f, dq, cd, bw, vl; opmask and both halves of the zmm state
    f.avx512 = f.avx2 && (xcr0 & 0xE6U) == 0xE6U && all(extended.ebx, {16, 17, 28, 30, 31});
    f.avx512_vnni = f.avx512 && all(extended.ecx, {11});
    // amx-tile, amx-int8; the tiles' configuration and data
    f.amx_int8 = f.avx512_vnni &&
                 (amx_is_emulated() || ((xcr0 & 0x60000U) == 0x60000U &&
                                        all(extended.edx, {24, 25}) && request_amx_permission()));
    return f;
  }();
  switch (t) {
    case target::portable:
      return true;
    case target::avx2:
      return found.avx2;
    case target::avx_vnni:
      return found.avx_vnni;
    case target::avx512:
      return found.avx512;
    case target::avx512_vnni:
      return found.avx512_vnni;
    case target::amx_int8:
      return found.amx_int8;
  }
  return false;
}

/// Adds the caches that a leaf describes, cache by cache: 4 of Intel's, 0x8000001D of AMD's. Both
/// have the same layout; a processor without the leaf returns zeros.
DETENT_DECL void read_cache_leaf(std::uint32_t leaf, cache_sizes& sizes) noexcept {
  constexpr std::uint32_t most_caches = 16;
  for (std::uint32_t i = 0; i < most_caches; ++i) {
    const cpuid_registers r = cpuid(leaf, i);
    const std::uint32_t type = r.eax & 0x1FU;  // 0 none, 1 data, 2 instructions, 3 both
    if (type == 0) {
      return;
    }
    const std::size_t ways = (r.ebx >> 22) + std::size_t{1};
    const std::size_t partitions = (r.ebx >> 12 & 0x3FFU) + std::size_t{1};
    const std::size_t line = (r.ebx & 0xFFFU) + std::size_t{1};
    const std::size_t sets = r.ecx + std::size_t{1};
    const std::size_t size = ways * partitions * line * sets;
    const std::uint32_t level = r.eax >> 5 & 7U;
    if (type != 2 && level == 1) {
      sizes.first_level = size;
    } else if (type != 2 && level == 2) {
      sizes.second_level = size;
    } else if (type != 2 && level == 3) {
      sizes.third_level = size;
    }
  }
}

#else

DETENT_DECL bool cpu_supports(target t) noexcept { return t == target::portable; }

#endif  // DETENT_ARCH_X86_64

DETENT_DECL const cache_sizes& processor_caches() noexcept {
  static const cache_sizes found = [] {
    cache_sizes sizes;
#if DETENT_ARCH_X86_64
    read_cache_leaf(4, sizes);
    if (sizes == cache_sizes{}) {
      read_cache_leaf(0x8000001DU, sizes);
    }
#endif
    const auto or_usual = [](std::size_t size, std::size_t usual) {
      return size != 0 ? size : usual;
    };
    sizes.first_level = or_usual(sizes.first_level, std::size_t{32} << 10);
    sizes.second_level = or_usual(sizes.second_level, std::size_t{1} << 20);
    sizes.third_level = or_usual(sizes.third_level, std::size_t{16} << 20);
    return sizes;
  }();
  return found;
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_CPUID_HPP
