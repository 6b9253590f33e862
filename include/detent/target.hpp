// SPDX-License-Identifier: BSD-3-Clause
// The CPU targets that kernels are written for, and the test whether this processor can run one.
#ifndef DETENT_TARGET_HPP
#define DETENT_TARGET_HPP

#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// A set of CPU instructions that kernels are compiled for, from the slowest to the fastest. The
/// numbers are stable: packed weights and tools may store them.
enum class target : std::uint8_t {
  portable = 0,     ///< Plain C++ at the flags of the translation unit that holds the kernels.
  avx2 = 1,         ///< AVX2 with all that compilers may emit with it: FMA, F16C, BMI, AES, ...
  avx_vnni = 2,     ///< avx2, and vpdpbusd on 256-bit vectors in VEX encoding.
  avx512 = 3,       ///< AVX-512 F, CD, VL, DQ and BW.
  avx512_vnni = 4,  ///< avx512, and vpdpbusd on 512-bit vectors.
  amx_int8 = 5,     ///< avx512_vnni, and tiles of 8-bit products; Linux only.
};

/// The name of a target in command lines and test output: its enumerator, such as "avx2".
[[nodiscard]] constexpr const char* name(target t) noexcept {
  switch (t) {
    case target::portable:
      return "portable";
    case target::avx2:
      return "avx2";
    case target::avx_vnni:
      return "avx_vnni";
    case target::avx512:
      return "avx512";
    case target::avx512_vnni:
      return "avx512_vnni";
    case target::amx_int8:
      return "amx_int8";
  }
  return "unknown";
}

/// Returns true if this processor and operating system can run code for the target. Thread-safe.
///
/// A compiler may emit any instruction of a target's feature group, so the whole group is tested.
/// XCR0 tells whether the operating system saves the registers.
[[nodiscard]] DETENT_DECL bool cpu_supports(target t) noexcept;

DETENT_KERNELS_NAMESPACE_END

DETENT_NAMESPACE_BEGIN
using kernels::name;
using kernels::target;
DETENT_NAMESPACE_END

#endif  // DETENT_TARGET_HPP
