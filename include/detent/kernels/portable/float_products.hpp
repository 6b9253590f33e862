// SPDX-License-Identifier: BSD-3-Clause
// Float products in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_FLOAT_PRODUCTS_HPP
#define DETENT_KERNELS_PORTABLE_FLOAT_PRODUCTS_HPP

#include <cmath>
#include <cstddef>
#include <cstring>

#include <detent/kernels/float_products.hpp>
#include <detent/kernels/portable/depthwise_rows.hpp>
#include <detent/kernels/portable/grid.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

DETENT_DECL void gemm_f32(const gemm_f32_args& g) noexcept {
  for (std::size_t column = 0; column < g.n; column += panel_columns) {
    const float* panel = g.packed_b + column * g.k;
    const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
    for (std::size_t row = 0; row < g.m; ++row) {
      float sum[panel_columns];
      std::memcpy(sum, g.bias + column, sizeof sum);
      const float* b = panel;
      for (std::size_t s = 0; s < g.segments; ++s) {
        const float* a = g.rows != nullptr ? g.rows[s * g.m + row] : g.a + row * g.lda;
        for (std::size_t k = 0; k < g.k / g.segments; ++k, b += panel_columns) {
          for (std::size_t j = 0; j < panel_columns; ++j) {
            sum[j] = std::fma(a[k], b[j], sum[j]);
          }
        }
      }
      if (g.residual != nullptr) {
        const float* residual = g.residual + row * g.residual_stride + column;
        for (std::size_t j = 0; j < columns; ++j) {
          sum[j] += residual[j];
        }
      }
      for (std::size_t j = 0; j < columns; ++j) {
        g.c[row * g.ldc + column + j] = clamp(sum[j], g.lower, g.upper);
      }
    }
  }
}

DETENT_DECL void depthwise_f32(const depthwise_f32_args& d) noexcept {
  for_each_pixel(d.rows, [&](const float* const* taps, std::size_t offset, std::size_t pixel) {
    for (std::size_t c = 0; c < d.rows.channels; ++c) {
      float sum = d.bias[c];
      for (std::size_t t = 0; t < d.rows.tap_count; ++t) {
        sum = std::fma(taps[t][offset + c], d.weights[t * d.channel_stride + c], sum);
      }
      const std::size_t at = pixel * d.rows.channels + c;
      if (d.residual != nullptr) {
        sum += d.residual[at];
      }
      d.c[at] = clamp(sum, d.lower, d.upper);
    }
  });
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_FLOAT_PRODUCTS_HPP
