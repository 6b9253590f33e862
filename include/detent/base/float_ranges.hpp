// SPDX-License-Identifier: BSD-3-Clause
// What reference.hpp and the kernels of statistics both speak of: the range of float data, and the
// bins that histograms count floats in. The types belong to the seam (namespace detent::kernels),
// which is the same whatever the flags of a translation unit are.
#ifndef DETENT_BASE_FLOAT_RANGES_HPP
#define DETENT_BASE_FLOAT_RANGES_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Smallest and largest value and the number of NaN: what reference::min_max returns.
struct min_max_result {
  float lower;
  float upper;
  std::size_t count_nan;
  friend bool operator==(const min_max_result&, const min_max_result&) = default;
};

/// Bins of floats by the top bits of their patterns: 9 bits of the mantissa, 31 octaves.
inline constexpr int bin_mantissa_bits = 9;
inline constexpr std::uint32_t bin_octaves = 31;
/// The bits of a pattern that a bin's number does not have.
inline constexpr int bin_dropped_bits = 23 - bin_mantissa_bits;

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_BASE_FLOAT_RANGES_HPP
