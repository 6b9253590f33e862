// SPDX-License-Identifier: BSD-3-Clause
// Products of 32-bit floats: matrix products and depthwise products.
//
// Each element is one chain of fused multiply-adds in the order of k (reference.hpp), so a tile
// needs enough independent elements to hide the latency of 4 cycles at 2 per cycle: 6 x 64 with 32
// registers of 16 lanes (24 accumulators), 8 x 16 if there are no more columns, and 6 x 16 with 16
// registers of 8 lanes (12 accumulators).

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
    a[r] = g.a + (row + r) * g.lda;  // not read if there are segments
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::LoadU(df, g.bias + column + v * lanes);
    }
  }
  const float* b = g.packed_b + column * g.k;
  const std::size_t panel_stride = g.k * panel_columns;
  const std::size_t depth = g.k / g.segments;
  for (std::size_t s = 0; s < g.segments; ++s) {
    if (g.rows != nullptr) {
      DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) { a[r] = g.rows[s * g.m + row + r]; }
    }
    for (std::size_t k = 0; k < depth; ++k, b += panel_columns) {
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
  }
  const float_vector lower = hn::Set(df, g.lower);
  const float_vector upper = hn::Set(df, g.upper);
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    float* c = g.c + (row + r) * g.ldc + column;
    const float* residual =
        g.residual == nullptr ? nullptr : g.residual + (row + r) * g.residual_stride + column;
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const std::size_t offset = v * lanes;
      float_vector out = sum[r][v];
      if (column + offset + lanes <= g.n) {
        out = residual != nullptr ? hn::Add(out, hn::LoadU(df, residual + offset)) : out;
        hn::StoreU(clamp_ordered(out, lower, upper), df, c + offset);
      } else if (column + offset < g.n) {
        const std::size_t count = g.n - column - offset;
        out = residual != nullptr ? hn::Add(out, hn::LoadN(df, residual + offset, count)) : out;
        hn::StoreN(clamp_ordered(out, lower, upper), df, c + offset, count);
      }
    }
  }
}

/// Multiplies all rows by kPanels panels from `column` on.
template <std::size_t kPanels>
void gemm_f32_columns(const gemm_f32_args& g, std::size_t column) noexcept {
  constexpr std::size_t most = kPanels * vectors_per_panel == 1 ? 8 : 6;
  std::size_t row = 0;
  for (; row + most <= g.m; row += most) {
    gemm_f32_tile<most, kPanels>(g, row, column);
  }
  if constexpr (most > 6) {
    if (row + 4 <= g.m) {
      gemm_f32_tile<4, kPanels>(g, row, column);
      row += 4;
    }
  }
  for (; row + 2 <= g.m; row += 2) {
    gemm_f32_tile<2, kPanels>(g, row, column);
  }
  if (row < g.m) {
    gemm_f32_tile<1, kPanels>(g, row, column);
  }
}

/// Multiplies kRows rows by the last panel, of which at most 8 columns count. Where vectors have 16
/// lanes, those of 8 multiply the same rows in half the time.
template <std::size_t kRows>
HWY_INLINE void gemm_f32_half_tile(const gemm_f32_args& g, std::size_t row,
                                   std::size_t column) noexcept {
  const hn::CappedTag<float, panel_columns / 2> dh;
  using half_vector = hn::Vec<hn::CappedTag<float, panel_columns / 2>>;
  const float* a[kRows];
  half_vector sum[kRows];
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    a[r] = g.a + (row + r) * g.lda;  // not read if there are segments
    sum[r] = hn::LoadU(dh, g.bias + column);
  }
  const float* b = g.packed_b + column * g.k;
  const std::size_t depth = g.k / g.segments;
  for (std::size_t s = 0; s < g.segments; ++s) {
    if (g.rows != nullptr) {
      DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) { a[r] = g.rows[s * g.m + row + r]; }
    }
    for (std::size_t k = 0; k < depth; ++k, b += panel_columns) {
      const half_vector bv = hn::LoadU(dh, b);
      DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        sum[r] = hn::MulAdd(hn::Set(dh, a[r][k]), bv, sum[r]);
      }
    }
  }
  const half_vector lower = hn::Set(dh, g.lower);
  const half_vector upper = hn::Set(dh, g.upper);
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    const std::size_t count = g.n - column;
    half_vector out = sum[r];
    if (g.residual != nullptr) {
      const float* residual = g.residual + (row + r) * g.residual_stride + column;
      out = hn::Add(out, hn::LoadN(dh, residual, count));
    }
    hn::StoreN(hn::Min(upper, hn::Max(lower, out)), dh, g.c + (row + r) * g.ldc + column, count);
  }
}

/// Multiplies all rows by the last panel, of which at most 8 columns count.
inline void gemm_f32_half_panel(const gemm_f32_args& g, std::size_t column) noexcept {
  std::size_t row = 0;
  for (; row + 8 <= g.m; row += 8) {
    gemm_f32_half_tile<8>(g, row, column);
  }
  for (; row < g.m; ++row) {
    gemm_f32_half_tile<1>(g, row, column);
  }
}

inline void gemm_f32(const gemm_f32_args& g) noexcept {
  std::size_t column = 0;
  if constexpr (vectors_per_panel == 1) {
    for (; column + 3 * panel_columns < g.n; column += 4 * panel_columns) {
      gemm_f32_columns<4>(g, column);
    }
    if (column + panel_columns + panel_columns / 2 < g.n) {
      gemm_f32_columns<2>(g, column);
      column += 2 * panel_columns;
    }
  }
  for (; column < g.n; column += panel_columns) {
    if constexpr (vectors_per_panel == 1) {
      if (g.n - column <= panel_columns / 2) {
        gemm_f32_half_panel(g, column);
        continue;
      }
    }
    gemm_f32_columns<1>(g, column);
  }
}

/// Loads a vector of channels, or the first `count` of them if it is not whole.
template <bool kWhole>
HWY_INLINE float_vector load_channels(const float* from, std::size_t count) noexcept {
  const float_tag df;
  return kWhole ? hn::LoadU(df, from) : hn::LoadN(df, from, count);
}

/// Adds the residual to a vector of sums, clamps it and stores it from result `at` on as
/// load_channels() loads.
template <bool kWhole>
HWY_INLINE void store_channels(const depthwise_f32_args& d, float_vector sum, std::size_t at,
                               std::size_t count) noexcept {
  const float_tag df;
  float* const to = d.c + at;
  if (d.residual != nullptr) {
    sum = hn::Add(sum, load_channels<kWhole>(d.residual + at, count));
  }
  const float_vector y = clamp_ordered(sum, hn::Set(df, d.lower), hn::Set(df, d.upper));
  if constexpr (kWhole) {
    hn::StoreU(y, df, to);
  } else {
    hn::StoreN(y, df, to, count);
  }
}

/// Computes a vector of channels, from channel c on, of kPixels pixels of a run from pixel p on.
/// The weights of a tap are loaded once for all of them, whose chains hide each other's latency.
template <std::size_t kPixels, bool kWhole>
HWY_INLINE void depthwise_f32_pixels(const depthwise_f32_args& d, const depthwise_run& run,
                                     std::size_t p, std::size_t c) noexcept {
  const float_tag df;
  const std::size_t count = d.rows.channels - c;  // of a vector that is not whole
  const std::size_t step = d.rows.step;
  float_vector sum[kPixels];
  DETENT_UNROLL for (std::size_t i = 0; i < kPixels; ++i) { sum[i] = hn::LoadU(df, d.bias + c); }
  const float* weights = d.weights + c;
  for (std::size_t t = 0; t < d.rows.tap_count; ++t, weights += d.channel_stride) {
    const float* x = d.rows.taps[run.tap + t] + p * step + c;
    const float_vector w = hn::LoadU(df, weights);
    DETENT_UNROLL for (std::size_t i = 0; i < kPixels; ++i) {
      sum[i] = hn::MulAdd(load_channels<kWhole>(x + i * step, count), w, sum[i]);
    }
  }
  const std::size_t to = (run.pixel + p) * d.rows.channels + c;
  DETENT_UNROLL for (std::size_t i = 0; i < kPixels; ++i) {
    store_channels<kWhole>(d, sum[i], to + i * d.rows.channels, count);
  }
}

/// Computes a vector of channels of all pixels of a run.
template <bool kWhole>
HWY_INLINE void depthwise_f32_run(const depthwise_f32_args& d, const depthwise_run& run,
                                  std::size_t c) noexcept {
  std::size_t p = 0;
  for (; p + 4 <= run.pixels; p += 4) {
    depthwise_f32_pixels<4, kWhole>(d, run, p, c);
  }
  for (; p < run.pixels; ++p) {
    depthwise_f32_pixels<1, kWhole>(d, run, p, c);
  }
}

/// Computes kVectors whole vectors of channels, from channel c on, of the kPixels pixels of a run.
template <std::size_t kPixels, std::size_t kVectors>
HWY_INLINE void depthwise_f32_channels(const depthwise_f32_args& d, const depthwise_run& run,
                                       std::size_t c) noexcept {
  const float_tag df;
  float_vector sum[kPixels][kVectors];
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    const auto bias = hn::LoadU(df, d.bias + c + v * lanes);
    DETENT_UNROLL for (std::size_t i = 0; i < kPixels; ++i) { sum[i][v] = bias; }
  }
  const float* weights = d.weights + c;
  for (std::size_t t = 0; t < d.rows.tap_count; ++t, weights += d.channel_stride) {
    const float* x = d.rows.taps[run.tap + t] + c;
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const auto w = hn::LoadU(df, weights + v * lanes);
      DETENT_UNROLL for (std::size_t i = 0; i < kPixels; ++i) {
        sum[i][v] = hn::MulAdd(hn::LoadU(df, x + i * d.rows.step + v * lanes), w, sum[i][v]);
      }
    }
  }
  DETENT_UNROLL for (std::size_t i = 0; i < kPixels; ++i) {
    const std::size_t to = (run.pixel + i) * d.rows.channels + c;
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      store_channels<true>(d, sum[i][v], to + v * lanes, lanes);
    }
  }
}

/// Computes a run of at most three pixels, which are at the borders of images and in narrow ones:
/// the chains of several vectors of channels hide each other's latency, as there are few pixels.
/// Returns the number of channels that are computed, whole groups of vectors.
template <std::size_t kPixels>
HWY_NOINLINE std::size_t depthwise_f32_short_run(const depthwise_f32_args& d,
                                                 const depthwise_run& run) noexcept {
  constexpr std::size_t group = 4;
  std::size_t c = 0;
  for (; c + group * lanes <= d.rows.channels; c += group * lanes) {
    depthwise_f32_channels<kPixels, group>(d, run, c);
  }
  for (; c + 2 * lanes <= d.rows.channels; c += 2 * lanes) {
    depthwise_f32_channels<kPixels, 2>(d, run, c);
  }
  return c;
}

/// How far things that follow each other lie apart in a product with filters of three rows of three
/// taps: the results of a group, what they read, and the taps of a row.
struct three_by_three_steps {
  std::size_t pixel, tap, out;
};

/// Computes kVectors vectors of results with filters of three rows of three taps, whose rows begin
/// at x. The chains of a group hide each other's latency.
template <std::size_t kVectors, bool kWhole>
HWY_INLINE void depthwise_f32_group(const depthwise_f32_args& d, const float_vector (&w)[9],
                                    float_vector bias, const float* const (&x)[3],
                                    const three_by_three_steps& step, std::size_t to,
                                    std::size_t count) noexcept {
  float_vector sum[kVectors];
  DETENT_UNROLL for (std::size_t q = 0; q < kVectors; ++q) { sum[q] = bias; }
  DETENT_UNROLL for (std::size_t r = 0; r < 3; ++r) {
    DETENT_UNROLL for (std::size_t i = 0; i < 3; ++i) {
      DETENT_UNROLL for (std::size_t q = 0; q < kVectors; ++q) {
        sum[q] = hn::MulAdd(load_channels<kWhole>(x[r] + q * step.pixel + i * step.tap, count),
                            w[3 * r + i], sum[q]);
      }
    }
  }
  DETENT_UNROLL for (std::size_t q = 0; q < kVectors; ++q) {
    store_channels<kWhole>(d, sum[q], to + q * step.out, count);
  }
}

/// Computes `vectors` vectors of results, group by group.
template <bool kWhole>
HWY_INLINE void depthwise_f32_groups(const depthwise_f32_args& d, const float_vector (&w)[9],
                                     float_vector bias, const float* (&x)[3],
                                     const three_by_three_steps& step, std::size_t to,
                                     std::size_t vectors, std::size_t count) noexcept {
  std::size_t v = 0;
  for (; v + 4 <= vectors; v += 4, to += 4 * step.out) {
    depthwise_f32_group<4, kWhole>(d, w, bias, x, step, to, count);
    DETENT_UNROLL for (std::size_t r = 0; r < 3; ++r) { x[r] += 4 * step.pixel; }
  }
  switch (vectors - v) {
    case 3:
      depthwise_f32_group<3, kWhole>(d, w, bias, x, step, to, count);
      break;
    case 2:
      depthwise_f32_group<2, kWhole>(d, w, bias, x, step, to, count);
      break;
    case 1:
      depthwise_f32_group<1, kWhole>(d, w, bias, x, step, to, count);
      break;
    default:
      break;
  }
}

/// Pixels first .. end - 1 of a run, of filters of three rows of three taps that lie side by side
/// (depthwise_f32_args::row_taps): the nine weights stay in registers.
template <bool kWhole>
HWY_INLINE void depthwise_f32_three(const depthwise_f32_args& d, const depthwise_run& run,
                                    std::size_t first, std::size_t end, std::size_t c) noexcept {
  const float_tag df;
  const std::size_t channels = d.rows.channels;
  const std::size_t step = d.rows.step;
  float_vector w[9];
  DETENT_UNROLL for (std::size_t t = 0; t < 9; ++t) {
    w[t] = hn::LoadU(df, d.weights + t * d.channel_stride + c);
  }
  const float* x[3];
  DETENT_UNROLL for (std::size_t r = 0; r < 3; ++r) {
    x[r] = d.rows.taps[run.tap + 3 * r] + first * step + c;
  }
  depthwise_f32_groups<kWhole>(d, w, hn::LoadU(df, d.bias + c), x, {step, channels, channels},
                               (run.pixel + first) * channels + c, end - first, channels - c);
}

/// The same for all pixels of a run with half as many channels as a vector has lanes, which lie
/// side by side in input and output: a vector holds two pixels.
HWY_INLINE void depthwise_f32_pairs(const depthwise_f32_args& d,
                                    const depthwise_run& run) noexcept {
  const float_tag df;
  const hn::Half<float_tag> dh;
  constexpr std::size_t channels = lanes / 2;
  const auto twice = [&](const float* from) HWY_ATTR {
    const auto half = hn::LoadU(dh, from);
    return hn::Combine(df, half, half);
  };
  float_vector w[9];
  DETENT_UNROLL for (std::size_t t = 0; t < 9; ++t) {
    w[t] = twice(d.weights + t * d.channel_stride);
  }
  const float* x[3];
  DETENT_UNROLL for (std::size_t r = 0; r < 3; ++r) { x[r] = d.rows.taps[run.tap + 3 * r]; }
  depthwise_f32_groups<true>(d, w, twice(d.bias), x, {lanes, channels, lanes}, run.pixel * channels,
                             run.pixels / 2, 0);
  if (run.pixels % 2 != 0) {
    depthwise_f32_three<false>(d, run, run.pixels - 1, run.pixels, 0);
  }
}

inline void depthwise_f32(const depthwise_f32_args& d) noexcept {
  const bool three = d.row_taps == 3 && d.rows.tap_count == 9;
  for (std::size_t r = 0; r < d.rows.run_count; ++r) {
    const depthwise_run& run = d.rows.runs[r];
    std::size_t c = 0;
    switch (run.pixels) {
      case 1:
        c = depthwise_f32_short_run<1>(d, run);
        break;
      case 2:
        c = depthwise_f32_short_run<2>(d, run);
        break;
      case 3:
        c = depthwise_f32_short_run<3>(d, run);
        break;
      default:
        break;
    }
    if (c == 0 && three && run.pixels > 1) {
      if (lanes == 16 && 2 * d.rows.channels == lanes && d.rows.step == d.rows.channels) {
        depthwise_f32_pairs(d, run);
        continue;
      }
      constexpr std::size_t most = 40;
      for (std::size_t p = 0; p < run.pixels; p += most) {
        const std::size_t end = p + most < run.pixels ? p + most : run.pixels;
        for (c = 0; c + lanes <= d.rows.channels; c += lanes) {
          depthwise_f32_three<true>(d, run, p, end, c);
        }
        if (c < d.rows.channels) {
          depthwise_f32_three<false>(d, run, p, end, c);
        }
      }
      continue;
    }
    for (; c + lanes <= d.rows.channels; c += lanes) {
      depthwise_f32_run<true>(d, run, c);
    }
    if (c < d.rows.channels) {
      depthwise_f32_run<false>(d, run, c);
    }
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
