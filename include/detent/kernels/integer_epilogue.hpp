// SPDX-License-Identifier: BSD-3-Clause
// The epilogue of an integer product: the arithmetic from its exact 32-bit sums to what is stored.
#ifndef DETENT_KERNELS_INTEGER_EPILOGUE_HPP
#define DETENT_KERNELS_INTEGER_EPILOGUE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The type of the elements that an epilogue writes.
enum class integer_output : std::uint8_t { s32, f32, bf16, u8, s8 };

/// The arithmetic from the 32-bit sum of row i and column j, which has no zero points yet, to what
/// is stored:
///
///   v = sum + column_offset[j] - row_sum[i] * rhs_zero_point[j]
///           - row_zero_point[i] * column_sum[j]                             (modulo 2^32)
///   m = multiplier[j], or row_scale[i] * multiplier[j] if there are row scales
///
///   s32     v, or v + addend[i, j] if there is an addend                    (modulo 2^32)
///   f32     clamp(float(v) * m, lower, upper) without bias and residual, else
///           clamp(fma(float(v), m, bias[j]) + residual[i, j], lower, upper)
///   bf16    as f32, then rounded to bfloat16, half to even
///   u8, s8  clamp(round_half_even(float(v) * multiplier[j]) + zero_point, qmin, qmax)
///
/// Arrays with a value for each column are readable up to the next multiple of panel_columns. The
/// rows of a depthwise product are its pixels; it has no arrays with a value for each row and no
/// addend, and its residual is as dense as C. The residual and the addend may be C itself.
struct integer_epilogue {
  integer_output output = integer_output::s32;
  const std::int32_t* column_offset = nullptr;   // bias and zero-point terms of the columns
  const std::int32_t* row_sum = nullptr;         // null if no rhs zero point is set
  const std::int32_t* rhs_zero_point = nullptr;  // null if row_sum is
  const std::int32_t* row_zero_point = nullptr;  // null, or zero points of the left side's rows
  const std::int32_t* column_sum = nullptr;      // read if row_zero_point is not null
  const float* multiplier = nullptr;             // null for s32
  const float* row_scale = nullptr;              // null, or with f32 and bf16 only
  const float* bias = nullptr;                   // null, or with f32 and bf16 only
  const float* residual = nullptr;               // null, or with f32 and bf16 only
  std::size_t residual_stride = 0;
  const std::int32_t* addend = nullptr;  // null, or with s32 only
  std::size_t addend_stride = 0;
  std::int32_t zero_point = 0;
  std::int32_t qmin = 0;
  std::int32_t qmax = 0;
  float lower = 0.0F;
  float upper = 0.0F;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_INTEGER_EPILOGUE_HPP
