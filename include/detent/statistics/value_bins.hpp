// SPDX-License-Identifier: BSD-3-Clause
// The bins of a histogram as a list of intervals with counts, and what follows from them for order
// statistics.
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

/// A bin: `count` values of one sign with smallest <= |x| <= largest, where both lie in one octave
/// or smallest is 0. With the distance unit() between floats of that octave, the sum of all |x| is
/// exactly
///
///     count * smallest + excess * unit()
///
/// unless excess_known is false.
struct value_bin {
  bool negative = false;    ///< whether the values are below zero
  float smallest = 0.0F;    ///< the smallest magnitude that the bin can hold
  float largest = 0.0F;     ///< the largest magnitude that the bin can hold
  std::uint64_t count = 0;  ///< how many values the bin holds
  std::uint64_t excess =
      0;  ///< how far the values exceed `smallest`, summed up, in units of unit()
  bool excess_known = true;  ///< whether `excess` is known; if not, it is 0
  friend bool operator==(const value_bin&, const value_bin&) = default;

  /// The distance between neighbouring floats in the octave of `smallest`.
  [[nodiscard]] double unit() const noexcept {
    const std::uint64_t exponent = std::bit_cast<std::uint32_t>(smallest) >> 23;
    return std::bit_cast<double>(((exponent > 0 ? exponent : 1) + (1023 - 150)) << 52);
  }
  /// Where the next bin of a histogram would begin; for the last bin of all floats this is beyond
  /// them.
  [[nodiscard]] double end() const noexcept {
    // The product of powers of two is exact.
    constexpr double units = std::uint64_t{1} << kernels::bin_dropped_bits;
    return static_cast<double>(smallest) + units * unit();
  }

  /// The interval of values x (with their sign) that the bin may hold. It is a single value if that
  /// is known: for one value, or if all are `smallest`.
  [[nodiscard]] value_range range() const noexcept {
    const bool known = excess_known && (count == 1 || excess == 0);
    const float low = known ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(smallest) +
                                                   static_cast<std::uint32_t>(excess))
                            : smallest;
    const float high = known ? low : largest;
    return negative ? value_range{-high, -low} : value_range{low, high};
  }
};

namespace detail {

/// Throws invalid_argument unless the bins may be those of a histogram whose range is `range`: the
/// range is finite and ordered; each bin holds at least one value, and only magnitudes up to the
/// largest one of the range; values exceed the smallest one of their bin by no more than a bin is
/// wide; and there are no more than `most` values, of which 2^14 times as many fit 64 bits.
inline void require_bins_of(std::span<const value_bin> bins, value_range range, std::uint64_t most,
                            const char* where) {
  require(std::isfinite(range.lower) && std::isfinite(range.upper) && range.lower <= range.upper,
          error_kind::invalid_argument, where, ": ", range.lower, " .. ", range.upper,
          " is not a finite range");
  const float magnitude = (std::max)(-range.lower, range.upper);
  std::uint64_t count = 0;
  for (const value_bin& bin : bins) {
    require(bin.smallest >= 0.0F && bin.smallest <= bin.largest && bin.largest <= magnitude,
            error_kind::invalid_argument, where, ": a bin of the magnitudes ", bin.smallest, " .. ",
            bin.largest, " in the range ", range.lower, " .. ", range.upper);
    require(bin.count > 0 && bin.count <= most - count, error_kind::invalid_argument, where,
            ": a bin of ", bin.count, " values after ", count);
    count += bin.count;
    require(bin.excess <= bin.count << kernels::bin_dropped_bits, error_kind::invalid_argument,
            where, ": ", bin.count, " values of a bin exceed the smallest one by ", bin.excess);
  }
}

}  // namespace detail

/// An interval that contains the value of the given rank, where `bins` ascend and ranks count from
/// 1 to the sum of all counts. Throws invalid_argument for another rank.
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

/// The rank of the quantile `fraction` of `count` values: the smallest rank with at least fraction
/// * count values at or below it.
///
///     rank = clamp(ceil(fraction * count), 1, count)
///
/// The product is computed in double. If it is within 2^-50 of an integer, relatively, it is that
/// integer: a decimal fraction such as 0.07 or 99.9 / 100 is no double, and of 100 values or 1000
/// it would be one rank too high.
///
/// Throws invalid_argument if `fraction` is not in [0, 1] or `count` is 0.
[[nodiscard]] inline std::uint64_t quantile_rank(double fraction, std::uint64_t count) {
  require(fraction >= 0.0 && fraction <= 1.0, error_kind::invalid_argument,
          "quantile_rank: the fraction ", fraction, " is not in [0, 1]");
  require(count > 0, error_kind::invalid_argument, "quantile_rank: there are no values");
  const double product = fraction * static_cast<double>(count);
  const double nearest = std::round(product);
  const double rank =
      std::fabs(product - nearest) <= product * 0x1p-50 ? nearest : std::ceil(product);
  return rank < 1.0                           ? 1
         : rank >= static_cast<double>(count) ? count
                                              : (std::min)(static_cast<std::uint64_t>(rank), count);
}

/// The bins of |x|, in ascending order, for bins of x that ascend. A negative and a positive bin
/// that hold the same magnitudes become one.
[[nodiscard]] inline std::vector<value_bin> magnitudes(std::span<const value_bin> bins) {
  std::vector<value_bin> result;
  result.reserve(bins.size());
  const auto nonnegative =
      std::find_if(bins.begin(), bins.end(), [](const value_bin& bin) { return !bin.negative; });
  auto below = nonnegative;  // negative bins, walked from the smallest magnitude up
  auto above = nonnegative;
  while (below != bins.begin() || above != bins.end()) {
    const value_bin* negative = below != bins.begin() ? &*(below - 1) : nullptr;
    const value_bin* positive = above != bins.end() ? &*above : nullptr;
    // `largest` may have been cut to what was observed, `smallest` never is: it identifies the bin.
    const bool take_negative =
        negative != nullptr && (positive == nullptr || negative->smallest <= positive->smallest);
    const bool take_positive =
        positive != nullptr && (negative == nullptr || positive->smallest <= negative->smallest);
    value_bin bin = take_negative ? *negative : *positive;
    bin.negative = false;
    if (take_negative && take_positive) {
      // Zero is a bin of its own, [0, 0]; the smallest magnitudes of the other sign are another
      // one.
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
