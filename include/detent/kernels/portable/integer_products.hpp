// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit integers in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_INTEGER_PRODUCTS_HPP
#define DETENT_KERNELS_PORTABLE_INTEGER_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/portable/grid.hpp>
#include <detent/kernels/portable/store_sums.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

inline constexpr bool adds_pairs = false;
inline constexpr bool multiplies_signed = false;

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
      for (std::size_t j = 0; j < columns; ++j) {
        store(g.epilogue, sum[j], row, column + j, g.c, row * g.ldc + column + j);
      }
    }
  }
}

DETENT_DECL std::size_t gemm_workspace(const gemm_u8s8_args& /*g*/) noexcept { return 0; }

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_INTEGER_PRODUCTS_HPP
