// SPDX-License-Identifier: BSD-3-Clause
// The family of float products: matrix products and depthwise products in 32-bit floats.
#ifndef DETENT_KERNELS_FLOAT_PRODUCTS_HPP
#define DETENT_KERNELS_FLOAT_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/kernels/depthwise_rows.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Arguments of gemm_f32:
///
///   C[i, j] = clamp((bias[j] + sum_k A[i, k] * B[k, j]) + residual[i, j], lower, upper)
///
/// where the sum in parentheses is one chain of fused multiply-adds in the order of k, beginning
/// with the bias. The residual may be null, which adds nothing, or C itself. B is stored in panels
/// without groups: packed_b[(panel * K + k) * 16 + column].
///
/// Row i of A is at a + i * lda, or, if `rows` is not null, consists of `segments` segments of K /
/// segments values each, of which segment s is at rows[s * m + i].
struct gemm_f32_args {
  const float* a = nullptr;
  std::size_t lda = 0;
  const float* const* rows = nullptr;
  std::size_t segments = 1;
  const float* packed_b = nullptr;
  const float* bias = nullptr;  // readable up to the next multiple of panel_columns
  const float* residual = nullptr;
  std::size_t residual_stride = 0;
  float* c = nullptr;
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;
  float lower = 0.0F, upper = 0.0F;
};

/// Arguments of depthwise_f32. Channel c of a pixel is
///
///   clamp((bias[c] + sum_t x_t[c] * weights[t * channel_stride + c]) + residual[c], lower, upper)
///
/// where x_t is what tap t reads (depthwise_run) and the sum in parentheses is one chain of fused
/// multiply-adds in the order of t, beginning with the bias. The residual has a value for each
/// result, in the same order, and may be null, which adds nothing, or the results' memory. The bias
/// and each row of weights are readable up to the next multiple of panel_columns.
///
/// If row_taps is not 0, it divides the number of taps, and in runs of more than one pixel this
/// many taps at a time read neighbouring pixels of the input:
///
///   taps[tap + t + i] = taps[tap + t] + i * channels   for t = 0, row_taps, ..., 0 <= i < row_taps
struct depthwise_f32_args {
  depthwise_rows<float> rows;
  std::size_t row_taps = 0;
  const float* weights = nullptr;
  std::size_t channel_stride = 0;
  const float* bias = nullptr;
  const float* residual = nullptr;
  float* c = nullptr;
  float lower = 0.0F, upper = 0.0F;
};

/// The kernels of float products.
struct float_product_kernels {
  void (*gemm_f32)(const gemm_f32_args& args) noexcept;
  void (*depthwise_f32)(const depthwise_f32_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const float_product_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_FLOAT_PRODUCTS_HPP
