// SPDX-License-Identifier: BSD-3-Clause
// Ranges made of the ranges of samples: means and medians of their ends.
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

/// What becomes of the lower and of the upper ends of the samples' ranges.
enum class sample_aggregator : std::uint8_t {
  min_max,  // the widest
  mean,
  median,            // the lower one of the two in the middle
  mean_no_outliers,  // without the outermost 1e-4 at either end, rounded up to whole samples
  median_no_outliers,
  narrowest,  // the largest lower and the smallest upper end
};

/// Each observe() is a sample. Its smallest and its largest value go into a histogram each, so that
/// memory does not grow with the number of samples, nor does their order matter. How values are
/// split into samples does matter: that is what it is about. Means are exact up to the rounding of
/// one double where all samples count; where a part of a bin counts, and for medians, values are
/// those of bins: at most 1/512 off, and exact where a bin holds one sample.
class sample_range_observer {
 public:
  explicit sample_range_observer(sample_aggregator aggregator)
      : aggregator_(aggregator), lower_(bin_storage::sparse), upper_(bin_storage::sparse) {}

  /// One sample; nothing if it has no values. Throws invalid_argument for a NaN or an infinity.
  void observe(std::span<const float> x) {
    if (x.empty()) {
      return;
    }
    min_max_observer sample;
    sample.observe(x);
    const value_range r = sample.range();
    lower_.observe(std::span<const float>(&r.lower, 1));
    upper_.observe(std::span<const float>(&r.upper, 1));
    count_ += x.size();
  }

  /// Throws invalid_argument for another aggregator.
  void merge(const sample_range_observer& other) {
    require(aggregator_ == other.aggregator_, error_kind::invalid_argument,
            "sample_range_observer: merging another aggregator");
    lower_.merge(other.lower_);
    upper_.merge(other.upper_);
    count_ += other.count_;
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t count_samples() const noexcept { return lower_.count(); }

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
        // What is left out is as many on either side: the middle stays where it is.
        return ordered(median(lower_), median(upper_));
      case sample_aggregator::narrowest:
        return ordered(lower_.range().upper, upper_.range().lower);
    }
    return {lower_.range().lower, upper_.range().upper};
  }
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme);
  }

  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint8_t>(aggregator_));
    out.put(count_);
    lower_.write(out);
    upper_.write(out);
  }
  /// Throws bad_file for what write() has not written.
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
    *this = std::move(next);
  }

 private:
  /// What comes of bins may be the wrong way round where the two are as good as equal, and the
  /// narrowest range where samples have nothing in common.
  static value_range ordered(float lower, float upper) {
    return {(std::min)(lower, upper), (std::max)(lower, upper)};
  }
  [[nodiscard]] std::uint64_t outliers() const {
    const auto n = count_samples();
    const std::uint64_t each = n / 10000 + (n % 10000 != 0 ? 1 : 0);
    return n > 2 * each ? each : 0;
  }

  /// The sum of all |x| of a bin.
  static double sum_of(const value_bin& bin) {
    const double excess = bin.excess_known
                              ? detail::rounded_product(static_cast<double>(bin.excess), bin.unit())
                              : 0.0;
    return excess + detail::rounded_product(static_cast<double>(bin.count), bin.smallest);
  }

  /// Of all but the first and the last `without`.
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
  detent::histogram lower_;  // of the samples' smallest values
  detent::histogram upper_;
  std::uint64_t count_ = 0;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_SAMPLE_RANGE_HPP
