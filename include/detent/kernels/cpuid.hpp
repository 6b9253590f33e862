// SPDX-License-Identifier: BSD-3-Clause
// cpu_supports(): reads from CPUID and XCR0 which targets the processor and the operating system
// can run.
#ifndef DETENT_KERNELS_CPUID_HPP
#define DETENT_KERNELS_CPUID_HPP

#include <initializer_list>

#include <detent/kernels/amx.hpp>
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

/// The result of CPUID; GCC and Clang return zeros for a leaf above the processor's largest one.
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

/// XCR0, whose bits say which register states the operating system saves. May be called only where
/// CPUID reports OSXSAVE.
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
    // XCR0 bits 1 and 2: the xmm and ymm state. Leaf 1, ecx: sse3, pclmulqdq, ssse3, fma, sse4.1,
    // sse4.2, popcnt, aes, avx, f16c.
    f.avx2 = (xcr0 & 0x6U) == 0x6U && all(basic.ecx, {0, 1, 9, 12, 19, 20, 23, 25, 28, 29}) &&
             all(extended.ebx, {3, 5, 8}) &&  // bmi1, avx2, bmi2
             all(amd.ecx, {5});               // lzcnt
    f.avx_vnni = f.avx2 && all(extended1.eax, {4});
    // avx512 f, dq, cd, bw, vl; XCR0 bits 5 to 7: the opmask and both halves of the zmm state.
    f.avx512 = f.avx2 && (xcr0 & 0xE6U) == 0xE6U && all(extended.ebx, {16, 17, 28, 30, 31});
    f.avx512_vnni = f.avx512 && all(extended.ecx, {11});
    // amx-tile, amx-int8; XCR0 bits 17 and 18: the tiles' configuration and data.
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

#else

DETENT_DECL bool cpu_supports(target t) noexcept { return t == target::portable; }

#endif  // DETENT_ARCH_X86_64

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_CPUID_HPP
