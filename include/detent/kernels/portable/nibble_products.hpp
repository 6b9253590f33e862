// SPDX-License-Identifier: BSD-3-Clause
// Products with 4-bit weights in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_NIBBLE_PRODUCTS_HPP
#define DETENT_KERNELS_PORTABLE_NIBBLE_PRODUCTS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <detent/kernels/nibble_products.hpp>
#include <detent/kernels/portable/grid.hpp>
#include <detent/kernels/portable/integer_products.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

DETENT_DECL void gemm_u8u4(const gemm_u8u4_args& g) noexcept {
  const std::size_t steps = (g.k + nibble_depth - 1) / nibble_depth;
  const std::size_t groups = (g.k + g.b.group_size - 1) / g.b.group_size;
  for (std::size_t i = 0; i < g.m; ++i) {
    for (std::size_t j = 0; j < g.n; ++j) {
      const std::size_t panel = j / panel_columns;
      const std::size_t first =
          panel * steps * nibble_panel_bytes + j % panel_columns * group_depth;
      float real = 0.0F;
      for (std::size_t group = 0; group < groups; ++group) {
        const std::size_t parameter = (panel * groups + group) * panel_columns + j % panel_columns;
        const std::size_t end = (std::min)((group + 1) * g.b.group_size, g.k);
        // Modulo 2^32, as vector lanes.
        std::uint32_t sum = 0;
        for (std::size_t k = group * g.b.group_size; k < end; ++k) {
          const std::uint8_t both =
              g.b.data[first + k / nibble_depth * nibble_panel_bytes + k % group_depth];
          const int code = k % nibble_depth < group_depth ? both & 0x0F : both >> 4;
          sum +=
              static_cast<std::uint32_t>(g.a[i * g.lda + k] * (code - g.b.zero_point[parameter]));
        }
        sum -= static_cast<std::uint32_t>(g.row_zero_point[i]) *
               static_cast<std::uint32_t>(g.b.column_sum[parameter]);
        real = std::fma(static_cast<float>(static_cast<std::int32_t>(sum)), g.b.scale[parameter],
                        real);
      }
      float x = std::fma(real, g.row_scale[i], g.bias != nullptr ? g.bias[j] : 0.0F);
      if (g.residual != nullptr) {
        x += g.residual[i * g.residual_stride + j];
      }
      g.c[i * g.ldc + j] = clamp(x, g.lower, g.upper);
    }
  }
}

}  // namespace portable

#if DETENT_WITH_AVX2_WORDS
namespace portable_avx2 {
using portable::gemm_u8u4;
}
#endif
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_NIBBLE_PRODUCTS_HPP
