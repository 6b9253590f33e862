// SPDX-License-Identifier: BSD-3-Clause
// The epilogue of integer products in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_STORE_SUMS_HPP
#define DETENT_KERNELS_PORTABLE_STORE_SUMS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/base/arithmetic.hpp>
#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/panels.hpp>
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

/// Stores the sums of `count` columns of a row, from `column` on, as c[index], c[index + 1], ...
inline void store_row(const integer_epilogue& e, const std::uint32_t* sums, std::size_t row,
                      std::size_t column, std::size_t count, void* c, std::size_t index) noexcept {
  const std::uint32_t row_sum = e.row_sum != nullptr ? wrapping(e.row_sum[row]) : 0;
  const std::uint32_t row_zero_point =
      e.row_zero_point != nullptr ? wrapping(e.row_zero_point[row]) : 0;
  const float row_scale = e.row_scale != nullptr ? e.row_scale[row] : 1.0F;
  for (std::size_t first = 0; first < count; first += panel_columns) {
    const std::size_t part = count - first < panel_columns ? count - first : panel_columns;
    const std::size_t at = column + first;
    std::int32_t v[panel_columns];
    for (std::size_t j = 0; j < part; ++j) {
      std::uint32_t sum = sums[first + j] + wrapping(e.column_offset[at + j]);
      if (e.row_sum != nullptr) {
        sum -= row_sum * wrapping(e.rhs_zero_point[at + j]);
      }
      if (e.row_zero_point != nullptr) {
        sum -= row_zero_point * wrapping(e.column_sum[at + j]);
      }
      if (e.addend != nullptr) {
        sum += wrapping(e.addend[row * e.addend_stride + at + j]);
      }
      v[j] = static_cast<std::int32_t>(sum);
    }
    const std::size_t to = index + first;
    if (e.output == integer_output::s32) {
      std::memcpy(static_cast<std::int32_t*>(c) + to, v, part * sizeof v[0]);
    } else if (e.output == integer_output::f32 || e.output == integer_output::bf16) {
      for (std::size_t j = 0; j < part; ++j) {
        const auto exact = static_cast<float>(v[j]);
        const float multiplier = row_scale * e.multiplier[at + j];
        // The C library's fma() takes long where the processor has no instruction for it.
        float real;
        if (e.bias != nullptr) {
          real = std::fma(exact, multiplier, e.bias[at + j]);
        } else if (e.residual != nullptr) {
          real = detent::detail::rounded_product(exact, multiplier);  // not contracted with the sum
        } else {
          real = exact * multiplier;
        }
        if (e.residual != nullptr) {
          real += e.residual[row * e.residual_stride + at + j];
        }
        real = clamp(real, e.lower, e.upper);
        if (e.output == integer_output::f32) {
          static_cast<float*>(c)[to + j] = real;
        } else {
          static_cast<std::uint16_t*>(c)[to + j] = to_bfloat16(real);
        }
      }
    } else {
      // Bytes of u8 and s8 are stored alike.
      for (std::size_t j = 0; j < part; ++j) {
        const float scaled = static_cast<float>(v[j]) * e.multiplier[at + j];
        static_cast<std::uint8_t*>(c)[to + j] =
            static_cast<std::uint8_t>(to_grid(scaled, e.zero_point, e.qmin, e.qmax));
      }
    }
  }
}

inline void store(const integer_epilogue& e, std::uint32_t sum, std::size_t row, std::size_t column,
                  void* c, std::size_t index) noexcept {
  store_row(e, &sum, row, column, 1, c, index);
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_STORE_SUMS_HPP
