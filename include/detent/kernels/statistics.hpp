// SPDX-License-Identifier: BSD-3-Clause
// The family of statistics: ranges, bins of floats, sums of codes.
#ifndef DETENT_KERNELS_STATISTICS_HPP
#define DETENT_KERNELS_STATISTICS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/base/float_ranges.hpp>
#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// What bin_positions() returns; see reference::bin_position.
struct bin_block {
  std::size_t count;  // positions written: values that are not zero
  std::uint32_t
      largest;         // the largest pattern of an |x|: infinity or above where one is not finite
  float lower, upper;  // as min_max_result
  friend bool operator==(const bin_block&, const bin_block&) = default;
};

/// The kernels of statistics.
struct statistics_kernels {
  // See reference::min_max.
  min_max_result (*min_max)(const float* x, std::size_t n) noexcept;
  // Per column of a matrix, accumulated into lower, upper and count_nan; see reference::min_max.
  void (*min_max_columns)(const float* x, std::size_t rows, std::size_t columns,
                          std::ptrdiff_t row_stride, float* lower, float* upper,
                          std::uint64_t* count_nan) noexcept;
  // Positions of the values that are not zero, in their order; writes up to 16 beyond them.
  bin_block (*bin_positions)(const float* x, std::size_t n, std::uint32_t lowest,
                             std::uint32_t* positions) noexcept;
  // The sum of the codes, modulo 2^32.
  std::int32_t (*sum_u8)(const std::uint8_t* q, std::size_t n) noexcept;
  std::int32_t (*sum_s8)(const std::int8_t* q, std::size_t n) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const statistics_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_STATISTICS_HPP
