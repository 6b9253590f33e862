// SPDX-License-Identifier: BSD-3-Clause
// Products of doubles.
//
// Each element is one chain of sums in the order of k, so a tile needs enough independent elements
// to hide the latency of an addition: 4 rows of 4 vectors with 32 registers, of 2 with 16. A single
// row is multiplied by twice as many vectors.

#ifndef DETENT_KERNELS_VECTOR_DOUBLE_PRODUCTS_INL_HPP
#define DETENT_KERNELS_VECTOR_DOUBLE_PRODUCTS_INL_HPP

#include <cstddef>

#include <detent/kernels/double_products.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/double_products-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

inline constexpr std::size_t double_lanes = hn::MaxLanes(double_tag{});
/// How many vectors of a row a tile holds, and how many rows.
inline constexpr std::size_t double_tile_vectors = double_lanes == 8 ? 4 : 2;
inline constexpr std::size_t double_tile_rows = 4;
/// How many rows of B are multiplied before the next rows of A are: with a tile's columns, 64 or 16
/// KiB.
inline constexpr std::size_t double_tile_depth = 256;

/// Multiplies kRows rows from `row` on by kVectors vectors of columns from `column` on, for k in
/// [first, last). If kVectors is 1, only the first `count` columns of the vector are there.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void add_products_tile(const double_product_args& p, std::size_t row, std::size_t column,
                                  std::size_t first, std::size_t last, std::size_t count) noexcept {
  const double_tag dd;
  const bool whole = kVectors > 1 || count == double_lanes;
  double* const c = p.c + row * p.c_stride + column;
  double_vector sum[kRows][kVectors];
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const double* const from = c + r * p.c_stride + v * double_lanes;
      sum[r][v] = whole ? hn::LoadU(dd, from) : hn::LoadN(dd, from, count);
    }
  }
  const double* a = p.a + row * p.a_row_stride + first * p.a_depth_stride;
  const double* b = p.b + first * p.b_stride + column;
  for (std::size_t k = first; k < last; ++k, a += p.a_depth_stride, b += p.b_stride) {
    double_vector bv[kVectors];
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const double* const from = b + v * double_lanes;
      bv[v] = whole ? hn::LoadU(dd, from) : hn::LoadN(dd, from, count);
    }
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const double_vector av = hn::Set(dd, a[r * p.a_row_stride]);
      DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::Add(sum[r][v], product(av, bv[v]));
      }
    }
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      double* const to = c + r * p.c_stride + v * double_lanes;
      if (whole) {
        hn::StoreU(sum[r][v], dd, to);
      } else {
        hn::StoreN(sum[r][v], dd, to, count);
      }
    }
  }
}

/// Multiplies all rows by kVectors vectors of columns.
template <std::size_t kVectors>
void add_products_columns(const double_product_args& p, std::size_t column,
                          std::size_t count) noexcept {
  for (std::size_t first = 0; first < p.depth; first += double_tile_depth) {
    const std::size_t last =
        p.depth - first < double_tile_depth ? p.depth : first + double_tile_depth;
    std::size_t row = 0;
    for (; row + double_tile_rows <= p.rows; row += double_tile_rows) {
      add_products_tile<double_tile_rows, kVectors>(p, row, column, first, last, count);
    }
    for (; row + 2 <= p.rows; row += 2) {
      add_products_tile<2, kVectors>(p, row, column, first, last, count);
    }
    if (row < p.rows) {
      add_products_tile<1, kVectors>(p, row, column, first, last, count);
    }
  }
}

inline void add_products(const double_product_args& p) noexcept {
  constexpr std::size_t tile_columns = double_tile_vectors * double_lanes;
  if (p.depth == 0) {
    return;  // B may be null, to which nothing may be added
  }
  std::size_t column = 0;
  if (p.rows == 1) {
    for (; column + 2 * tile_columns <= p.columns; column += 2 * tile_columns) {
      add_products_tile<1, 2 * double_tile_vectors>(p, 0, column, 0, p.depth, double_lanes);
    }
  }
  for (; column + tile_columns <= p.columns; column += tile_columns) {
    add_products_columns<double_tile_vectors>(p, column, double_lanes);
  }
  for (; column < p.columns; column += double_lanes) {
    const std::size_t left = p.columns - column;
    add_products_columns<1>(p, column, left < double_lanes ? left : double_lanes);
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
