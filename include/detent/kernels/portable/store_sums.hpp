// SPDX-License-Identifier: BSD-3-Clause
// The epilogue of integer products in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_STORE_SUMS_HPP
#define DETENT_KERNELS_PORTABLE_STORE_SUMS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/portable/grid.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// Rounds half to even; NaN keeps its sign and the upper half of its payload, and is quiet.
inline std::uint16_t to_bfloat16(float x) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(std::isnan(x) ? bits >> 16 | 0x40U
                                                  : (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

inline void store(const integer_epilogue& e, std::uint32_t sum, std::size_t row, std::size_t column,
                  void* c, std::size_t index) noexcept {
  sum += wrapping(e.column_offset[column]);
  if (e.row_sum != nullptr) {
    sum -= wrapping(e.row_sum[row]) * wrapping(e.rhs_zero_point[column]);
  }
  if (e.row_zero_point != nullptr) {
    sum -= wrapping(e.row_zero_point[row]) * wrapping(e.column_sum[column]);
  }
  if (e.output == integer_output::s32) {
    if (e.addend != nullptr) {
      sum += wrapping(e.addend[row * e.addend_stride + column]);
    }
    static_cast<std::int32_t*>(c)[index] = static_cast<std::int32_t>(sum);
    return;
  }
  const auto v = static_cast<std::int32_t>(sum);
  if (e.output == integer_output::f32 || e.output == integer_output::bf16) {
    const float multiplier =
        e.row_scale != nullptr ? e.row_scale[row] * e.multiplier[column] : e.multiplier[column];
    float real =
        std::fma(static_cast<float>(v), multiplier, e.bias != nullptr ? e.bias[column] : 0.0F);
    if (e.residual != nullptr) {
      real += e.residual[row * e.residual_stride + column];
    }
    real = clamp(real, e.lower, e.upper);
    if (e.output == integer_output::f32) {
      static_cast<float*>(c)[index] = real;
    } else {
      static_cast<std::uint16_t*>(c)[index] = to_bfloat16(real);
    }
    return;
  }
  const float scaled = static_cast<float>(v) * e.multiplier[column];
  const std::int32_t q = to_grid(scaled, e.zero_point, e.qmin, e.qmax);
  if (e.output == integer_output::u8) {
    static_cast<std::uint8_t*>(c)[index] = static_cast<std::uint8_t>(q);
  } else {
    static_cast<std::int8_t*>(c)[index] = static_cast<std::int8_t>(q);
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_STORE_SUMS_HPP
