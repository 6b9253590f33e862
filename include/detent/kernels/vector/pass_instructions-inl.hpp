// SPDX-License-Identifier: BSD-3-Clause
// The instruction that a pass multiplies with, and the size of the largest tile of sums that its
// registers hold.

#ifndef DETENT_KERNELS_VECTOR_PASS_INSTRUCTIONS_INL_HPP
#define DETENT_KERNELS_VECTOR_PASS_INSTRUCTIONS_INL_HPP

#include <cstddef>

#include <detent/kernels/panels.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace HWY_NAMESPACE;  // NOLINT: float_tag, grid_vectors, ... of the pass's target

/// Rows and panels of the largest tile of a pass.
#if DETENT_PASS_PAIRS
inline constexpr std::size_t rows_of_tile = lanes == panel_columns ? 8 : 4;
inline constexpr std::size_t panels_of_tile = lanes == panel_columns ? 2 : 1;
#else
inline constexpr std::size_t rows_of_tile = 6;
inline constexpr std::size_t panels_of_tile = lanes == panel_columns ? 4 : 1;
#endif

/// Returns sum + a0*b0 + a1*b1 + a2*b2 + a3*b3 in each 32-bit lane, modulo 2^32, for unsigned bytes
/// a and signed bytes b. With DETENT_PASS_PAIRS, a0*b0 + a1*b1 and a2*b2 + a3*b3 saturate at 16
/// bits.
template <class Unsigned, class Signed>
HWY_INLINE int_vector dot(int_vector sum, Unsigned a, Signed b) noexcept {
#if DETENT_PASS_PAIRS
  return add_pair_products(sum, a, b);
#elif HWY_TARGET == HWY_AVX2
  return int_vector{_mm256_dpbusd_avx_epi32(sum.raw, a.raw, b.raw)};
#else
  return int_vector{_mm512_dpbusd_epi32(sum.raw, a.raw, b.raw)};
#endif
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
