// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit integers with pmaddwd, for programs without Highway: compiled once for the
// baseline of x86-64 (SSE2) and once for AVX2 by portable/integer_products.hpp, which defines
//
//   DETENT_WORDS_NAMESPACE   the namespace
//   DETENT_WORDS_AVX2        1 with vectors of 32 bytes, 0 with vectors of 16
//
// Both operands are widened to 16 bits before they are multiplied. pmaddwd then adds the products
// of two neighbouring k in 32 bits, and nothing can saturate: |255 * -128| * 2 is far below 2^31.
// The rows are widened once per call, a panel of weights once for all rows of the call.
//
// A tile is 3 rows times 4 vectors of weights: its 12 sums, the values of 3 rows and one product
// fill the 16 registers. A vector holds the group (4 k) of 2 columns, or of 4 with AVX2, so each
// column has two sums, of k % 4 in {0, 1} and {2, 3}, which are added at the end.

#if !defined(DETENT_WORDS_NAMESPACE)  // an editor opened this file alone
#define DETENT_WORDS_NAMESPACE portable
#define DETENT_WORDS_AVX2 0
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/portable/grid.hpp>
#include <detent/kernels/portable/store_sums.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_WORDS_NAMESPACE {

#if DETENT_WORDS_AVX2
using word_vector = __m256i;
#else
using word_vector = __m128i;
#endif

inline constexpr std::size_t tile_vectors = 4;
inline constexpr std::size_t vector_words = sizeof(word_vector) / sizeof(std::int16_t);
inline constexpr std::size_t tile_columns = tile_vectors * vector_words / group_depth;
inline constexpr std::size_t tile_rows = 3;

inline constexpr bool adds_pairs = false;
inline constexpr bool multiplies_signed = false;
inline constexpr std::size_t rows_per_call = 48;
inline constexpr std::size_t rows_per_tile = tile_rows;
static_assert(rows_per_call % rows_per_tile == 0);

/// Words of a row, or of a column of a panel: whole groups.
[[nodiscard]] inline std::size_t padded_depth(std::size_t k) noexcept {
  return (k + group_depth - 1) / group_depth * group_depth;
}

/// Memory for a call's rows and for one panel, in words.
DETENT_DECL std::size_t gemm_workspace(const gemm_u8s8_args& g) noexcept {
  const std::size_t rows = g.m < rows_per_call ? g.m : rows_per_call;
  return (rows + panel_columns) * padded_depth(g.k) * sizeof(std::int16_t);
}

[[nodiscard]] inline word_vector load(const std::int16_t* words) noexcept {
#if DETENT_WORDS_AVX2
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
#else
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
#endif
}

/// The four words of a row's group, once for each column of a vector.
[[nodiscard]] inline word_vector load_group(const std::int16_t* words) noexcept {
  const __m128i group = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words));
#if DETENT_WORDS_AVX2
  return _mm256_broadcastq_epi64(group);
#else
  return _mm_unpacklo_epi64(group, group);
#endif
}

/// sum += a0*b0 + a1*b1 in each 32-bit lane, modulo 2^32, in the register that sum is in: a
/// compiler that sees an addition computes all products of a tile first, more than there are
/// registers for.
inline void add_products(word_vector& sum, word_vector a, word_vector b) noexcept {
#if DETENT_WORDS_AVX2
  const word_vector products = _mm256_madd_epi16(a, b);
  __asm__("{vpaddd %1, %0, %0|vpaddd %0, %0, %1}" : "+x"(sum) : "x"(products));
#else
  const word_vector products = _mm_madd_epi16(a, b);
  __asm__("{paddd %1, %0|paddd %0, %1}" : "+x"(sum) : "x"(products));
#endif
}

/// Adds the two sums of each column of a vector.
inline void store_columns(word_vector sum, std::uint32_t* to) noexcept {
  std::uint32_t halves[vector_words / 2];
#if DETENT_WORDS_AVX2
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves), sum);
#else
  _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), sum);
#endif
  for (std::size_t j = 0; j < vector_words / group_depth; ++j) {
    to[j] = halves[2 * j] + halves[2 * j + 1];
  }
}

/// Sets the sums of kRows rows times the columns of a tile. Rows are `stride` words apart; the
/// weights are [group][vector].
template <std::size_t kRows>
void multiply_tile(const std::int16_t* a, std::size_t stride, const std::int16_t* b,
                   std::size_t depth, std::uint32_t (*sums)[panel_columns]) noexcept {
  word_vector sum[kRows][tile_vectors] = {};
  for (std::size_t k = 0; k < depth; k += group_depth) {
    word_vector row[kRows];
#pragma GCC unroll 4
    for (std::size_t r = 0; r < kRows; ++r) {
      row[r] = load_group(a + r * stride + k);
    }
#pragma GCC unroll 4
    for (std::size_t v = 0; v < tile_vectors; ++v) {
      const word_vector weights = load(b + k * tile_columns + v * vector_words);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < kRows; ++r) {
        add_products(sum[r][v], weights, row[r]);
      }
    }
  }
  // Only constant indices: a compiler keeps an array whose address is taken in memory.
#pragma GCC unroll 4
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < tile_vectors; ++v) {
      store_columns(sum[r][v], sums[r] + v * vector_words / group_depth);
    }
  }
}

/// Widens the rows first .. first + rows, with zeros behind their ends.
inline void widen_rows(const gemm_u8s8_args& g, std::size_t first, std::size_t rows,
                       std::int16_t* to) noexcept {
  const std::size_t segment = g.k / g.segments;
  const std::size_t padded = padded_depth(g.k);
  const unsigned turned = g.lhs_signed ? 0x80 : 0;
  for (std::size_t i = 0; i < rows; ++i, to += padded) {
    std::size_t k = 0;
    for (std::size_t s = 0; s < g.segments; ++s) {
      const std::uint8_t* from =
          g.rows == nullptr ? g.a + (first + i) * g.lda : g.rows[s * g.m + first + i];
      for (std::size_t j = 0; j < segment; ++j, ++k) {
        to[k] = static_cast<std::int16_t>(from[j] ^ turned);
      }
    }
    for (; k < padded; ++k) {
      to[k] = 0;
    }
  }
}

/// Widens a panel into the tiles of its columns, one after the other, each [group][column][k % 4].
inline void widen_panel(const std::int8_t* panel, std::size_t depth, std::int16_t* to) noexcept {
  constexpr std::size_t tile_bytes = tile_columns * group_depth;
  for (std::size_t column = 0; column < panel_columns; column += tile_columns) {
    for (std::size_t k = 0; k < depth; k += group_depth) {
      const std::int8_t* const from = panel + k * panel_columns + column * group_depth;
      for (std::size_t i = 0; i < tile_bytes; i += 8) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i));
        const __m128i words = _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), words);
      }
      to += tile_bytes;
    }
  }
}

DETENT_DECL void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  const std::size_t padded = padded_depth(g.k);
  auto* const weights = reinterpret_cast<std::int16_t*>(g.workspace);
  std::int16_t* const left = weights + panel_columns * padded;
  for (std::size_t first = 0; first < g.m; first += rows_per_call) {
    const std::size_t rows = g.m - first < rows_per_call ? g.m - first : rows_per_call;
    widen_rows(g, first, rows, left);
    for (std::size_t column = 0; column < g.n; column += panel_columns) {
      const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
      widen_panel(g.b.data + column * padded, padded, weights);
      for (std::size_t row = 0; row < rows;) {
        const std::size_t count = rows - row < tile_rows ? 1 : tile_rows;
        std::uint32_t sums[tile_rows][panel_columns];
        for (std::size_t j = 0; j < panel_columns; j += tile_columns) {
          const std::int16_t* a = left + row * padded;
          const std::int16_t* b = weights + j * padded;
          auto* to = reinterpret_cast<std::uint32_t(*)[panel_columns]>(&sums[0][j]);
          if (count == tile_rows) {
            multiply_tile<tile_rows>(a, padded, b, padded, to);
          } else {
            multiply_tile<1>(a, padded, b, padded, to);
          }
        }
        for (std::size_t r = 0; r < count; ++r) {
          const std::size_t i = first + row + r;
          portable::store_row(g.epilogue, sums[r], i, column, columns, g.c, i * g.ldc + column);
        }
        row += count;
      }
    }
  }
}

}  // namespace DETENT_WORDS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
