// SPDX-License-Identifier: BSD-3-Clause
// The family of products with 4-bit weights: u8 x u4, with scales and zero points for quantization
// groups, that is for every group_size consecutive k.
#ifndef DETENT_KERNELS_NIBBLE_PRODUCTS_HPP
#define DETENT_KERNELS_NIBBLE_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// From fewest_unpacked_rows rows on, kernels unpack the 4-bit weights to memory before they
/// multiply them, at most unpacked_depth k of a strip at a time. unpacked_bytes is the room for
/// that, with 64 bytes behind each panel. unpacked_workspace adds a 32-bit sum and a float for each
/// of largest_rows_per_call rows and each column of the strip.
inline constexpr std::size_t fewest_unpacked_rows = 9;
inline constexpr std::size_t unpacked_depth = 2048;
inline constexpr std::size_t unpacked_bytes =
    unpacked_depth * strip_columns + strip_columns / panel_columns * 64;
inline constexpr std::size_t unpacked_workspace =
    unpacked_bytes + largest_rows_per_call * strip_columns * (sizeof(std::int32_t) + sizeof(float));

/// Arguments of gemm_u8u4. For quantization groups g:
///
///   sum[g]  = sum_(k in g) A[i, k] * (B[k, j] - zero_point[g, j])
///             - row_zero_point[i] * column_sum[g, j]
///   real    = fma(float(sum[last]), scale[last, j], ... fma(float(sum[0]), scale[0, j], 0) ...)
///   C[i, j] = clamp(fma(real, row_scale[i], bias[j]) + residual[i, j], lower, upper)
///
/// A has unsigned bytes in rows that are lda apart. The bias and the residual may be null, which
/// counts as 0; the residual may be C itself.
struct gemm_u8u4_args {
  const std::uint8_t* a = nullptr;
  std::size_t lda = 0;
  packed_nibbles b;
  float* c = nullptr;
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;               // m: at most largest_rows_per_call
  const std::int32_t* row_zero_point = nullptr;  // 0..255
  const float* row_scale = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  std::size_t residual_stride = 0;
  float lower = 0.0F, upper = 0.0F;
  /// unpacked_workspace bytes, 64-byte aligned; may be null for fewer than fewest_unpacked_rows
  /// rows.
  std::byte* workspace = nullptr;
};

/// The kernels of products with 4-bit weights.
struct nibble_product_kernels {
  row_counts rows;  // for calls of gemm_u8u4
  void (*gemm_u8u4)(const gemm_u8u4_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const nibble_product_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_NIBBLE_PRODUCTS_HPP
