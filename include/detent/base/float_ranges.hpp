// SPDX-License-Identifier: BSD-3-Clause
// Types that reference.hpp shares with the kernels of statistics: the range of float data, and the
// bins in which histograms count floats. They are in namespace detent::kernels because in
// separate compilation the name of that namespace does not depend on the flags of a translation
// unit, so that the kernels of another unit can take them.
#ifndef DETENT_BASE_FLOAT_RANGES_HPP
#define DETENT_BASE_FLOAT_RANGES_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The result of reference::min_max: the range of the values that are not NaN, with -0 taken as +0.
/// Without any such value, lower is +infinity and upper is -infinity.
struct min_max_result {
  float lower;            ///< Smallest value.
  float upper;            ///< Largest value.
  std::size_t count_nan;  ///< Number of NaN.
  friend bool operator==(const min_max_result&, const min_max_result&) = default;
};

/// Histogram bins divide each octave (power of two) by the first 9 bits of the mantissa.
inline constexpr int bin_mantissa_bits = 9;
/// Number of octaves that a histogram has bins for.
inline constexpr std::uint32_t bin_octaves = 31;
/// Low bits of a float's mantissa that do not take part in the number of its bin.
inline constexpr int bin_dropped_bits = 23 - bin_mantissa_bits;

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_BASE_FLOAT_RANGES_HPP
