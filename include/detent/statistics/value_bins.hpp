// SPDX-License-Identifier: BSD-3-Clause
// What histograms tell: how many values lie in each of a list of intervals, and what follows from
// that for order statistics.
#ifndef DETENT_STATISTICS_VALUE_BINS_HPP
#define DETENT_STATISTICS_VALUE_BINS_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/float_ranges.hpp>
#include <detent/error.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// `count` values of one sign, smallest <= |x| <= largest, both of one octave or smallest = 0.
///
/// With unit() = the distance of the floats in that octave, the sum of all |x| is
///
///   count * smallest + excess * unit()
///
/// exactly, unless `excess_known` is false.
struct value_bin {
  bool negative = false;
  float smallest = 0.0F;
  float largest = 0.0F;
  std::uint64_t count = 0;
  std::uint64_t excess = 0;
  bool excess_known = true;
  friend bool operator==(const value_bin&, const value_bin&) = default;

  /// The distance of the floats in its octave.
  [[nodiscard]] double unit() const noexcept {
    const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(smallest) >> 23);
    return std::ldexp(1.0, (exponent > 0 ? exponent : 1) - 150);
  }
  /// Where a bin of a histogram ends that begins here; beyond the floats for the last one.
  [[nodiscard]] double end() const noexcept {
    return static_cast<double>(smallest) + std::ldexp(unit(), kernels::bin_dropped_bits);
  }

  /// The interval of x itself; a single value where there is no doubt.
  [[nodiscard]] value_range range() const noexcept {
    const bool known = excess_known && (count == 1 || excess == 0);
    const float low = known ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(smallest) +
                                                   static_cast<std::uint32_t>(excess))
                            : smallest;
    const float high = known ? low : largest;
    return negative ? value_range{-high, -low} : value_range{low, high};
  }
};

/// The order statistic of `rank`, 1 <= rank <= all counts together, of bins that ascend: it lies in
/// [lower, upper]. Throws invalid_argument for another rank.
[[nodiscard]] inline value_range order_statistic(std::span<const value_bin> bins,
                                                 std::uint64_t rank) {
  std::uint64_t below = 0;
  for (const value_bin& bin : bins) {
    if (rank > below && rank - below <= bin.count) {
      return bin.range();
    }
    below += bin.count;
  }
  raise(error_kind::invalid_argument,
        detail::message("detent: order_statistic: rank ", rank, " of ", below, " values"));
}

/// The rank of the quantile `fraction` of `count` values: the smallest that has at least
/// fraction * count values at or below it.
///
///   rank = clamp(ceil(fraction * count), 1, count)             in double
///
/// Throws invalid_argument if `fraction` is not in [0, 1] or there are no values.
[[nodiscard]] inline std::uint64_t quantile_rank(double fraction, std::uint64_t count) {
  require(fraction >= 0.0 && fraction <= 1.0, error_kind::invalid_argument,
          "quantile_rank: the fraction ", fraction, " is not in [0, 1]");
  require(count > 0, error_kind::invalid_argument, "quantile_rank: there are no values");
  const double rank = std::ceil(fraction * static_cast<double>(count));
  return rank < 1.0                           ? 1
         : rank >= static_cast<double>(count) ? count
                                              : (std::min)(static_cast<std::uint64_t>(rank), count);
}

/// The same values without their signs, ascending. Bins of both signs that hold the same magnitudes
/// become one.
[[nodiscard]] inline std::vector<value_bin> magnitudes(std::span<const value_bin> bins) {
  std::vector<value_bin> result;
  const auto nonnegative =
      std::find_if(bins.begin(), bins.end(), [](const value_bin& bin) { return !bin.negative; });
  auto below = nonnegative;  // of the negative ones, from the smallest magnitude up
  auto above = nonnegative;
  while (below != bins.begin() || above != bins.end()) {
    const value_bin* negative = below != bins.begin() ? &*(below - 1) : nullptr;
    const value_bin* positive = above != bins.end() ? &*above : nullptr;
    // The largest of a bin may have been cut to what was seen, the smallest never is.
    const bool take_negative =
        negative != nullptr && (positive == nullptr || negative->smallest <= positive->smallest);
    const bool take_positive =
        positive != nullptr && (negative == nullptr || positive->smallest <= negative->smallest);
    value_bin bin = take_negative ? *negative : *positive;
    bin.negative = false;
    if (take_negative && take_positive) {
      // Zero is a bin of its own, [0, 0], and the smallest magnitudes of the other sign another.
      if (negative->largest == 0.0F || positive->largest == 0.0F) {
        const bool zero_is_negative = negative->largest == 0.0F;
        bin = zero_is_negative ? *negative : *positive;
        bin.negative = false;
        result.push_back(bin);
        zero_is_negative ? --below : ++above;
        continue;
      }
      bin.largest = (std::max)(negative->largest, positive->largest);
      bin.count = negative->count + positive->count;
      bin.excess = negative->excess + positive->excess;
      bin.excess_known = negative->excess_known && positive->excess_known;
    }
    result.push_back(bin);
    below -= take_negative ? 1 : 0;
    above += take_positive ? 1 : 0;
  }
  return result;
}

DETENT_NAMESPACE_END

#endif  // DETENT_STATISTICS_VALUE_BINS_HPP
