// SPDX-License-Identifier: BSD-3-Clause
// Products of 32-bit floats: matrix products and depthwise products.
//
// Each element is one chain of fused multiply-adds in the order of k (reference.hpp), so a tile
// needs enough independent elements to hide the latency of 4 cycles at 2 per cycle: 6 x 64 with 32
// registers of 16 lanes (24 accumulators), 6 x 16 with 16 registers of 8 lanes (12 accumulators).

#ifndef DETENT_KERNELS_VECTOR_GEMM_F32_INL_HPP
#define DETENT_KERNELS_VECTOR_GEMM_F32_INL_HPP

#include <cstddef>

#include <detent/kernels/float_products.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/gemm_f32-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// Multiplies kRows rows by kPanels panels and stores the results.
template <std::size_t kRows, std::size_t kPanels>
HWY_INLINE void gemm_f32_tile(const gemm_f32_args& g, std::size_t row,
                              std::size_t column) noexcept {
  constexpr std::size_t kVectors = kPanels * vectors_per_panel;
  const float_tag df;
  const float* a[kRows];
  float_vector sum[kRows][kVectors];
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    a[r] = g.a + (row + r) * g.lda;
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::LoadU(df, g.bias + column + v * lanes);
    }
  }
  const float* b = g.packed_b + column * g.k;
  const std::size_t panel_stride = g.k * panel_columns;
  for (std::size_t k = 0; k < g.k; ++k, b += panel_columns) {
    float_vector bv[kVectors];
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      bv[v] =
          hn::LoadU(df, b + v / vectors_per_panel * panel_stride + v % vectors_per_panel * lanes);
    }
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const float_vector av = hn::Set(df, a[r][k]);
      DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
      }
    }
  }
  const float_vector lower = hn::Set(df, g.lower);
  const float_vector upper = hn::Set(df, g.upper);
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    float* c = g.c + (row + r) * g.ldc + column;
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const std::size_t offset = v * lanes;
      const float_vector out = clamp_ordered(sum[r][v], lower, upper);
      if (column + offset + lanes <= g.n) {
        hn::StoreU(out, df, c + offset);
      } else if (column + offset < g.n) {
        hn::StoreN(out, df, c + offset, g.n - column - offset);
      }
    }
  }
}

/// Multiplies all rows by kPanels panels from `column` on.
template <std::size_t kPanels>
void gemm_f32_columns(const gemm_f32_args& g, std::size_t column) noexcept {
  std::size_t row = 0;
  for (; row + 6 <= g.m; row += 6) {
    gemm_f32_tile<6, kPanels>(g, row, column);
  }
  for (; row + 2 <= g.m; row += 2) {
    gemm_f32_tile<2, kPanels>(g, row, column);
  }
  if (row < g.m) {
    gemm_f32_tile<1, kPanels>(g, row, column);
  }
}

inline void gemm_f32(const gemm_f32_args& g) noexcept {
  std::size_t column = 0;
  if constexpr (vectors_per_panel == 1) {
    for (; column + 3 * panel_columns < g.n; column += 4 * panel_columns) {
      gemm_f32_columns<4>(g, column);
    }
    if (column + panel_columns < g.n) {
      gemm_f32_columns<2>(g, column);
      column += 2 * panel_columns;
    }
  }
  for (; column < g.n; column += panel_columns) {
    gemm_f32_columns<1>(g, column);
  }
}

/// Computes one pixel of a depthwise product.
HWY_INLINE void depthwise_f32_pixel(const depthwise_f32_args& d, const float* const* tap,
                                    std::size_t offset, float* out) noexcept {
  const float_tag df;
  const float_vector lower = hn::Set(df, d.lower);
  const float_vector upper = hn::Set(df, d.upper);
  const std::size_t channels = d.rows.channels;
  std::size_t c = 0;
  for (; c + 2 * lanes <= channels; c += 2 * lanes) {
    float_vector sum0 = hn::LoadU(df, d.bias + c);
    float_vector sum1 = hn::LoadU(df, d.bias + c + lanes);
    const float* w = d.weights + c;
    for (std::size_t t = 0; t < d.rows.tap_count; ++t, w += d.channel_stride) {
      const float* x = tap[t] + offset + c;
      sum0 = hn::MulAdd(hn::LoadU(df, x), hn::LoadU(df, w), sum0);
      sum1 = hn::MulAdd(hn::LoadU(df, x + lanes), hn::LoadU(df, w + lanes), sum1);
    }
    hn::StoreU(clamp_ordered(sum0, lower, upper), df, out + c);
    hn::StoreU(clamp_ordered(sum1, lower, upper), df, out + c + lanes);
  }
  for (; c < channels; c += lanes) {
    const std::size_t count = channels - c < lanes ? channels - c : lanes;
    float_vector sum = hn::LoadN(df, d.bias + c, count);
    const float* w = d.weights + c;
    for (std::size_t t = 0; t < d.rows.tap_count; ++t, w += d.channel_stride) {
      sum = hn::MulAdd(hn::LoadN(df, tap[t] + offset + c, count), hn::LoadN(df, w, count), sum);
    }
    hn::StoreN(clamp_ordered(sum, lower, upper), df, out + c, count);
  }
}

inline void depthwise_f32(const depthwise_f32_args& d) noexcept {
  for (std::size_t r = 0; r < d.rows.run_count; ++r) {
    const depthwise_run& run = d.rows.runs[r];
    for (std::size_t p = 0; p < run.pixels; ++p) {
      depthwise_f32_pixel(d, d.rows.taps + run.tap, p * d.rows.step,
                          d.c + (run.pixel + p) * d.rows.channels);
    }
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
