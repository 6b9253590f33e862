// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit integers without Highway: with the instructions that every x86-64 has, and,
// where nothing better is compiled in, with AVX2; on other processors in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_INTEGER_PRODUCTS_HPP
#define DETENT_KERNELS_PORTABLE_INTEGER_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/config.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/portable/grid.hpp>
#include <detent/kernels/portable/store_sums.hpp>

#if DETENT_WITH_SSE2_WORDS
#include <immintrin.h>
#endif

#if DETENT_WITH_SSE2_WORDS

#define DETENT_WORDS_NAMESPACE portable
#define DETENT_WORDS_AVX2 0
#include <detent/kernels/portable/word_products-inl.hpp>
#undef DETENT_WORDS_NAMESPACE
#undef DETENT_WORDS_AVX2

#if DETENT_WITH_AVX2_WORDS
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define DETENT_WORDS_NAMESPACE portable_avx2
#define DETENT_WORDS_AVX2 1
#include <detent/kernels/portable/word_products-inl.hpp>
#undef DETENT_WORDS_NAMESPACE
#undef DETENT_WORDS_AVX2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // DETENT_WITH_AVX2_WORDS

#else

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

inline constexpr bool adds_pairs = false;
inline constexpr bool multiplies_signed = false;
inline constexpr std::size_t rows_per_call = 48;
inline constexpr std::size_t rows_per_tile = 4;

DETENT_DECL void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  const std::size_t groups = (g.k + group_depth - 1) / group_depth;
  const std::size_t segment = g.k / g.segments;
  const unsigned turned = g.lhs_signed ? 0x80 : 0;
  for (std::size_t column = 0; column < g.n; column += panel_columns) {
    const std::int8_t* panel = g.b.data + column * groups * group_depth;
    const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
    for (std::size_t row = 0; row < g.m; ++row) {
      std::uint32_t sum[panel_columns] = {};
      for (std::size_t k = 0; k < g.k; ++k) {
        const std::uint8_t* from =
            g.rows == nullptr ? g.a + row * g.lda : g.rows[k / segment * g.m + row];
        const auto a = static_cast<std::int32_t>(from[k % segment] ^ turned);
        const std::int8_t* b =
            panel + k / group_depth * group_depth * panel_columns + k % group_depth;
        for (std::size_t j = 0; j < panel_columns; ++j) {
          sum[j] += wrapping(a * b[j * group_depth]);
        }
      }
      store_row(g.epilogue, sum, row, column, columns, g.c, row * g.ldc + column);
    }
  }
}

DETENT_DECL std::size_t gemm_workspace(const gemm_u8s8_args& /*g*/) noexcept { return 0; }

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_ARCH_X86_64

#endif  // DETENT_KERNELS_PORTABLE_INTEGER_PRODUCTS_HPP
