// SPDX-License-Identifier: BSD-3-Clause
// The portable target: plain C++ that every compiler can vectorize, and the only target where
// Highway is absent.
#ifndef DETENT_KERNELS_PORTABLE_HPP
#define DETENT_KERNELS_PORTABLE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <detent/kernels/table.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 half to even, and vectorizes.
inline constexpr float rounding_bias = 12582912.0F;

/// reference::to_grid without branches; see there.
inline std::int32_t to_grid(float steps, std::int32_t zero_point, const grid_args& g) noexcept {
  const auto lowest = static_cast<float>(g.qmin - zero_point);
  const auto highest = static_cast<float>(g.qmax - zero_point);
  float v = steps == steps ? steps : 0.0F;
  v = v < lowest ? lowest : v;
  v = v > highest ? highest : v;
  v = (v + rounding_bias) - rounding_bias;
  return static_cast<std::int32_t>(v) + zero_point;
}

inline float clamp(float x, float lower, float upper) noexcept {
  x = x < lower ? lower : x;
  return x > upper ? upper : x;
}

template <class Q>
void quantize(const float* x, std::size_t n, const grid_args& g, Q* q) noexcept {
  if (g.column_scale != nullptr) {
    for (std::size_t i = 0; i < n; ++i) {
      q[i] = static_cast<Q>(to_grid(x[i] / g.column_scale[i], g.column_zero_point[i], g));
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    q[i] = static_cast<Q>(to_grid(x[i] / g.scale, g.zero_point, g));
  }
}

template <class Q>
void dequantize(const Q* q, std::size_t n, const grid_args& g, float* x) noexcept {
  if (g.column_scale != nullptr) {
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(q[i] - g.column_zero_point[i]) * g.column_scale[i];
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(q[i] - g.zero_point) * g.scale;
  }
}

template <class Q>
void requantize(const std::int32_t* acc, std::size_t n, const grid_args& g, Q* q) noexcept {
  if (g.column_scale != nullptr) {
    for (std::size_t i = 0; i < n; ++i) {
      const float steps = static_cast<float>(acc[i]) * g.column_scale[i];
      q[i] = static_cast<Q>(to_grid(steps, g.column_zero_point[i], g));
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    q[i] = static_cast<Q>(to_grid(static_cast<float>(acc[i]) * g.scale, g.zero_point, g));
  }
}

DETENT_DECL min_max_result min_max(const float* x, std::size_t n) noexcept {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  min_max_result r{infinity, -infinity, 0};
  for (std::size_t i = 0; i < n; ++i) {
    const float value = x[i] + 0.0F;
    r.lower = value < r.lower ? value : r.lower;
    r.upper = value > r.upper ? value : r.upper;
    r.count_nan += value != value ? 1U : 0U;
  }
  return r;
}

/// Sums modulo 2^32: the vector kernels' lanes wrap, and the caller has proved that the final value
/// fits.
inline std::uint32_t wrapping(std::int32_t v) noexcept { return static_cast<std::uint32_t>(v); }

inline void store(const integer_epilogue& e, std::uint32_t sum, std::size_t row, std::size_t column,
                  void* c, std::size_t index) noexcept {
  sum += wrapping(e.column_offset[column]);
  if (e.row_sum != nullptr) {
    sum -= wrapping(e.row_sum[row]) * wrapping(e.rhs_zero_point[column]);
  }
  const auto v = static_cast<std::int32_t>(sum);
  if (e.output == integer_output::s32) {
    static_cast<std::int32_t*>(c)[index] = v;
    return;
  }
  const float scaled = static_cast<float>(v) * e.multiplier[column];
  if (e.output == integer_output::f32) {
    static_cast<float*>(c)[index] = clamp(scaled, e.lower, e.upper);
    return;
  }
  const grid_args g{.qmin = e.qmin, .qmax = e.qmax};
  const std::int32_t q = to_grid(scaled, e.zero_point, g);
  if (e.output == integer_output::u8) {
    static_cast<std::uint8_t*>(c)[index] = static_cast<std::uint8_t>(q);
  } else {
    static_cast<std::int8_t*>(c)[index] = static_cast<std::int8_t>(q);
  }
}

DETENT_DECL void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  const std::size_t groups = (g.k + group_depth - 1) / group_depth;
  for (std::size_t column = 0; column < g.n; column += panel_columns) {
    const std::int8_t* panel = g.packed_b + column * groups * group_depth;
    const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
    for (std::size_t row = 0; row < g.m; ++row) {
      std::uint32_t sum[panel_columns] = {};
      for (std::size_t k = 0; k < g.k; ++k) {
        const std::int32_t a = g.a[row * g.lda + k];
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

DETENT_DECL void depthwise_u8(const depthwise_u8_args& d) noexcept {
  for (std::size_t p = 0; p < d.pixels; ++p) {
    for (std::size_t c = 0; c < d.channels; ++c) {
      std::uint32_t sum = 0;
      for (std::size_t t = 0; t < d.taps; ++t) {
        sum +=
            wrapping(std::int32_t{d.tap[p * d.taps + t][c]} * d.weights[t * d.channel_stride + c]);
      }
      store(d.epilogue, sum, 0, c, d.c, p * d.channels + c);
    }
  }
}

DETENT_DECL void gemm_f32(const gemm_f32_args& g) noexcept {
  for (std::size_t column = 0; column < g.n; column += panel_columns) {
    const float* panel = g.packed_b + column * g.k;
    const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
    for (std::size_t row = 0; row < g.m; ++row) {
      float sum[panel_columns];
      std::memcpy(sum, g.bias + column, sizeof sum);
      for (std::size_t k = 0; k < g.k; ++k) {
        const float a = g.a[row * g.lda + k];
        for (std::size_t j = 0; j < panel_columns; ++j) {
          sum[j] = std::fma(a, panel[k * panel_columns + j], sum[j]);
        }
      }
      for (std::size_t j = 0; j < columns; ++j) {
        g.c[row * g.ldc + column + j] = clamp(sum[j], g.lower, g.upper);
      }
    }
  }
}

DETENT_DECL void depthwise_f32(const depthwise_f32_args& d) noexcept {
  for (std::size_t p = 0; p < d.pixels; ++p) {
    for (std::size_t c = 0; c < d.channels; ++c) {
      float sum = d.bias[c];
      for (std::size_t t = 0; t < d.taps; ++t) {
        sum = std::fma(d.tap[p * d.taps + t][c], d.weights[t * d.channel_stride + c], sum);
      }
      d.c[p * d.channels + c] = clamp(sum, d.lower, d.upper);
    }
  }
}

inline constexpr kernel_table table = {
    target::portable,
    &min_max,
    &quantize<std::uint8_t>,
    &quantize<std::int8_t>,
    &dequantize<std::uint8_t>,
    &dequantize<std::int8_t>,
    &requantize<std::uint8_t>,
    &requantize<std::int8_t>,
    &gemm_f32,
    &depthwise_f32,
    &gemm_u8s8,
    &depthwise_u8,
};

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_HPP
