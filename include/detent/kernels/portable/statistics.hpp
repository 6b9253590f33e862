// SPDX-License-Identifier: BSD-3-Clause
// Ranges, bins and sums in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_STATISTICS_HPP
#define DETENT_KERNELS_PORTABLE_STATISTICS_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <detent/kernels/statistics.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

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

DETENT_DECL void min_max_columns(const float* x, std::size_t rows, std::size_t columns,
                                 std::ptrdiff_t row_stride, float* lower, float* upper,
                                 std::uint64_t* count_nan) noexcept {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = x + static_cast<std::ptrdiff_t>(r) * row_stride;
    for (std::size_t c = 0; c < columns; ++c) {
      const float value = row[c] + 0.0F;
      lower[c] = value < lower[c] ? value : lower[c];
      upper[c] = value > upper[c] ? value : upper[c];
      count_nan[c] += value != value ? 1U : 0U;
    }
  }
}

DETENT_DECL bin_block bin_positions(const float* x, std::size_t n, std::uint32_t lowest,
                                    std::uint32_t* positions) noexcept {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  bin_block r{0, 0, infinity, -infinity};
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    constexpr std::uint32_t outside = bin_octaves << 23;
    const std::uint32_t above = magnitude - lowest;
    const std::uint32_t place = above < outside ? above : outside;
    positions[r.count] = place | (bits >> 31 << 28);
    r.count += magnitude != 0 ? 1U : 0U;
    r.largest = magnitude > r.largest ? magnitude : r.largest;
    const float value = x[i] + 0.0F;
    r.lower = value < r.lower ? value : r.lower;
    r.upper = value > r.upper ? value : r.upper;
  }
  return r;
}

template <class Q>
std::int32_t sum_codes(const Q* q, std::size_t n) noexcept {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += static_cast<std::uint32_t>(static_cast<std::int32_t>(q[i]));
  }
  return static_cast<std::int32_t>(sum);
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_STATISTICS_HPP
