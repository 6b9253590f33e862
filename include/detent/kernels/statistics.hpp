// SPDX-License-Identifier: BSD-3-Clause
// The family of statistics: ranges of floats, positions of floats in bins, sums of codes.
#ifndef DETENT_KERNELS_STATISTICS_HPP
#define DETENT_KERNELS_STATISTICS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/base/float_ranges.hpp>
#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The result of bin_positions(); see reference::bin_position.
struct bin_block {
  std::size_t count;  // positions written: values that are not zero
  // The largest bit pattern of an |x|; at least that of infinity if a value is not finite.
  std::uint32_t largest;
  float lower, upper;  // as in min_max_result
  friend bool operator==(const bin_block&, const bin_block&) = default;
};

/// The kernels of statistics.
struct statistics_kernels {
  // The range of x and its number of NaN; see reference::min_max.
  min_max_result (*min_max)(const float* x, std::size_t n) noexcept;
  /// Extends lower, upper and count_nan of each column of a matrix by the column's values; see
  /// reference::min_max.
  void (*min_max_columns)(const float* x, std::size_t rows, std::size_t columns,
                          std::ptrdiff_t row_stride, float* lower, float* upper,
                          std::uint64_t* count_nan) noexcept;
  // Writes reference::bin_position of the values that are not zero, in their order. Up to 16
  // elements behind the last position are overwritten.
  bin_block (*bin_positions)(const float* x, std::size_t n, std::uint32_t lowest,
                             std::uint32_t* positions) noexcept;
  // Sums of codes, modulo 2^32.
  std::int32_t (*sum_u8)(const std::uint8_t* q, std::size_t n) noexcept;
  std::int32_t (*sum_s8)(const std::int8_t* q, std::size_t n) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const statistics_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_STATISTICS_HPP
