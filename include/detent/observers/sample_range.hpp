// SPDX-License-Identifier: BSD-3-Clause
// An observer whose range combines the ranges of samples: the mean, the median or an extreme of
// their ends.
#ifndef DETENT_OBSERVERS_SAMPLE_RANGE_HPP
#define DETENT_OBSERVERS_SAMPLE_RANGE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// How the ranges of samples become one range. It applies to the samples' lower ends and,
/// separately, to their upper ends.
enum class sample_aggregator : std::uint8_t {
  min_max,  ///< the smallest lower and the largest upper end
  mean,     ///< the arithmetic mean
  median,   ///< the median; the lower of the middle two for an even number of samples
  /// The mean without ceil(n * 1e-4) of the n samples' ends at either side. Up to two
  /// samples have no outliers.
  mean_no_outliers,
  /// The same value as `median`, since as many outliers are left out on either side.
  median_no_outliers,
  narrowest,  ///< the largest lower and the smallest upper end
};

/// Combines the ranges of samples, where each call of observe() is one sample. The smallest and the
/// largest value of a sample each go into a histogram, so that memory does not grow with the number
/// of samples and their order does not matter. How values are split into samples does matter.
///
/// Accuracy, with M the largest magnitude of the lower or of the upper ends: ends below 2^-30 * M
/// share a bin without a sum. Means count them as 0, and a median among them is the middle of that
/// bin. Apart from that, a mean over all samples adds up exact sums of bins in double. Medians, and
/// means that count a part of a bin, use the values of bins: from 2^-30 * M on these are at most
/// 1/512 off unless they are denormal, and exact where a bin holds one sample. Not thread-safe: use
/// one per thread, then merge().
class sample_range_observer {
 public:
  /// Combines ranges as `aggregator` says.
  explicit sample_range_observer(sample_aggregator aggregator)
      : aggregator_(aggregator), lower_(bin_storage::sparse), upper_(bin_storage::sparse) {}

  /// Observes one sample; an empty one changes nothing. Throws invalid_argument for null data, a
  /// NaN or an infinity.
  void observe(std::span<const float> x) {
    if (x.empty()) {
      return;
    }
    min_max_observer sample;
    sample.observe(x);
    const value_range r = sample.range("sample_range_observer");
    lower_.observe(std::span<const float>(&r.lower, 1));
    upper_.observe(std::span<const float>(&r.upper, 1));
    count_ = detail::saturating_sum(count_, std::uint64_t{x.size()});
  }

  /// Afterwards this observer is in the state it would have if it had also seen the samples of
  /// `other`. Throws invalid_argument if `other` has another aggregator.
  void merge(const sample_range_observer& other) {
    require(aggregator_ == other.aggregator_, error_kind::invalid_argument,
            "sample_range_observer: merging another aggregator");
    lower_.merge(other.lower_);
    upper_.merge(other.upper_);
    count_ = detail::saturating_sum(count_, other.count_);
  }

  /// How many values were observed.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// How many samples that were not empty were observed.
  [[nodiscard]] std::uint64_t count_samples() const noexcept { return lower_.count(); }

  /// The combined range. If the two ends cross, as `narrowest` can make them do, they are swapped.
  /// Throws invalid_argument if nothing was observed.
  [[nodiscard]] value_range range() const {
    require(count_samples() > 0, error_kind::invalid_argument,
            "sample_range_observer: nothing was observed");
    switch (aggregator_) {
      case sample_aggregator::min_max:
        break;
      case sample_aggregator::mean:
        return ordered(mean(lower_, 0), mean(upper_, 0));
      case sample_aggregator::median:
        return ordered(median(lower_), median(upper_));
      case sample_aggregator::mean_no_outliers:
        return ordered(mean(lower_, outliers()), mean(upper_, outliers()));
      case sample_aggregator::median_no_outliers:
        // As many samples are left out on either side, so that the middle stays where it is.
        return ordered(median(lower_), median(upper_));
      case sample_aggregator::narrowest:
        return ordered(lower_.range().upper, upper_.range().lower);
    }
    return {lower_.range().lower, upper_.range().upper};
  }
  /// The canonical scale and zero point of range() (params_from_range). Throws what those two
  /// throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme);
  }

  /// Appends u8 aggregator, u64 number of values, and the histograms of the lower and of the upper
  /// ends.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint8_t>(aggregator_));
    out.put(count_);
    lower_.write(out);
    upper_.write(out);
  }
  /// Replaces the state by one that write() appended for the same aggregator. Throws bad_file for
  /// an impossible state.
  void read(detail::byte_reader& in) {
    sample_range_observer next(aggregator_);
    const auto aggregator = in.get<std::uint8_t>();
    require(aggregator == static_cast<std::uint8_t>(aggregator_), error_kind::bad_file,
            "sample_range_observer: the state is of another aggregator");
    next.count_ = in.get<std::uint64_t>();
    next.lower_.read(in);
    next.upper_.read(in);
    require(next.lower_.count() == next.upper_.count() && next.lower_.count() <= next.count_ &&
                next.lower_.count_nan() + next.upper_.count_nan() == 0 &&
                next.lower_.count_infinite() + next.upper_.count_infinite() == 0,
            error_kind::bad_file, "sample_range_observer: the state is impossible");
    if (next.lower_.count() > 0) {
      const value_range low = next.lower_.range();
      const value_range high = next.upper_.range();
      require(low.lower <= high.lower && low.upper <= high.upper, error_kind::bad_file,
              "sample_range_observer: a sample ends below its beginning");
    }
    *this = std::move(next);
  }

 private:
  /// Puts the two ends in order. Ends read from bins may cross where they are almost equal, those
  /// of the narrowest range where samples have no value in common.
  static value_range ordered(float lower, float upper) {
    return {(std::min)(lower, upper), (std::max)(lower, upper)};
  }
  /// How many samples are left out at either end.
  [[nodiscard]] std::uint64_t outliers() const {
    const auto n = count_samples();
    const std::uint64_t each = n / 10000 + (n % 10000 != 0 ? 1 : 0);
    return n > 2 * each ? each : 0;
  }

  /// The sum of |x| over the values of a bin.
  static double sum_of(const value_bin& bin) {
    const double excess = bin.excess_known
                              ? detail::rounded_product(static_cast<double>(bin.excess), bin.unit())
                              : 0.0;
    return excess + detail::rounded_product(static_cast<double>(bin.count), bin.smallest);
  }

  /// The mean of all values in order but the first `without` and the last `without`.
  static float mean(const detent::histogram& h, std::uint64_t without) {
    detail::compensated_sum sum;
    std::uint64_t at = 0;
    const std::uint64_t end = h.count() - without;
    for (const value_bin& bin : h.bins()) {
      const std::uint64_t first = (std::max)(at, without);
      const std::uint64_t last = (std::min)(at + bin.count, end);
      at += bin.count;
      if (first < last) {
        const double share = static_cast<double>(last - first) / static_cast<double>(bin.count);
        sum.add(detail::rounded_product(bin.negative ? -sum_of(bin) : sum_of(bin), share));
      }
    }
    return static_cast<float>(sum.value() / static_cast<double>(end - without));
  }

  static float median(const detent::histogram& h) {
    const value_range r = order_statistic(h.bins(), (h.count() + 1) / 2);
    return static_cast<float>(0.5 * (static_cast<double>(r.lower) + static_cast<double>(r.upper)));
  }

  sample_aggregator aggregator_;
  detent::histogram lower_;  // the smallest value of each sample
  detent::histogram upper_;  // the largest value of each sample
  std::uint64_t count_ = 0;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_SAMPLE_RANGE_HPP
