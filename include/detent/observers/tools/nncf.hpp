// SPDX-License-Identifier: BSD-3-Clause
// NNCF's range estimators: a statistic of each sample, aggregated over the samples.
//
// A call of observe() stands for one sample: one batch, or one item of a batch where NNCF looks at
// items (batchwise_statistics). How values are split into samples matters to everything except the
// extremes of extremes.
//
// A sample with a NaN or an infinity makes range() throw, and so does one whose mean overflows a
// float; NNCF lets them through. An empty sample changes nothing, as in NNCF. Objects are values
// and not thread-safe; use one per thread.
//
// Source: NNCF 3.4, common/tensor_statistics/collectors.py and quantization/range_estimator.py, on
// NumPy tensors. NumPy's part was checked with NumPy 2; NNCF itself was not run.
#ifndef DETENT_OBSERVERS_TOOLS_NNCF_HPP
#define DETENT_OBSERVERS_TOOLS_NNCF_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/numpy_arithmetic.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// Observers that reproduce NNCF's range estimators.
namespace nncf {

/// The statistic that is computed for each sample.
enum class statistic : std::uint8_t {
  min,      ///< the smallest value
  max,      ///< the largest value
  abs_max,  ///< the largest |x|
  /// The quantile outlier_probability for the lower end of a range, 1 - outlier_probability for the
  /// upper end, by linear interpolation.
  quantile,
  abs_quantile,  ///< the same quantiles of |x|
  mean,          ///< the arithmetic mean
};

/// How the statistics of all samples become one value.
enum class aggregator : std::uint8_t {
  min,     ///< the smallest
  max,     ///< the largest
  mean,    ///< the arithmetic mean
  median,  ///< the median; half the sum of the middle two for an even number
  /// The mean of the statistics between their quantiles outlier_probability and 1 -
  /// outlier_probability.
  mean_no_outliers,
  /// The median of the statistics between their quantiles outlier_probability and 1 -
  /// outlier_probability.
  median_no_outliers,
};

/// How one end of a range is found.
struct end_options {
  statistic of_sample = statistic::min;      ///< what is computed for each sample
  aggregator of_samples = aggregator::mean;  ///< how the samples' statistics are combined
  double outlier_probability = 1e-4;         ///< for quantiles and outliers, in 0..0.5
  friend bool operator==(const end_options&, const end_options&) = default;
};

/// Options of nncf::range_observer.
struct range_options {
  end_options lower{statistic::min, aggregator::mean};  ///< how the lower end is found
  end_options upper{statistic::max, aggregator::mean};  ///< how the upper end is found
  /// Whether the statistic max of the upper end is replaced by abs_max, as NNCF does for symmetric
  /// quantizers.
  bool use_abs_max = false;
  friend bool operator==(const range_options&, const range_options&) = default;
};

/// NNCF's preset for weights and for per-channel ranges: the extremes of the samples' extremes.
inline constexpr range_options min_max{.lower = {statistic::min, aggregator::min},
                                       .upper = {statistic::max, aggregator::max}};
/// NNCF's preset for per-tensor ranges: the means of the samples' extremes.
inline constexpr range_options mean_min_max{};
/// NNCF's preset of the medians of the samples' extremes.
inline constexpr range_options median_min_max{.lower = {statistic::min, aggregator::median},
                                              .upper = {statistic::max, aggregator::median}};
/// NNCF's preset of the means, without outliers, of the samples' extremes.
inline constexpr range_options mean_no_outliers_min_max{
    .lower = {statistic::min, aggregator::mean_no_outliers},
    .upper = {statistic::max, aggregator::mean_no_outliers}};
/// NNCF's preset of the means of the samples' quantiles.
inline constexpr range_options mean_quantile{.lower = {statistic::quantile, aggregator::mean},
                                             .upper = {statistic::quantile, aggregator::mean}};

namespace detail {

using namespace detent::detail;

/// np.mean of floats that were converted to double, with `count` for their number.
[[nodiscard]] inline double mean_of_floats(const std::vector<double>& x, std::size_t count) {
  std::vector<float> values(x.size());
  std::transform(x.begin(), x.end(), values.begin(),
                 [](double value) { return static_cast<float>(value); });
  return static_cast<double>(numpy::sum(values)) / static_cast<double>(count);
}

}  // namespace detail

/// Reproduces a range estimator with any statistics and aggregators. Statistics are floats, where a
/// mean adds up as np.mean does; quantiles are doubles:
///
///     p = (n - 1) * q, i = floor(p), x[i] + (p - i) * (x[i + 1] - x[i]) of sorted values
///
/// Aggregators compute in the type of the statistic; the bounds of outliers, and what remains
/// within them, are in double. The median of an even number is half the sum of the middle two.
///
/// Bug of NNCF: since quantiles are interpolated, "no outliers" always drops the least and the
/// greatest of up to 10^4 distinct statistics; of two that differ it drops both, and the result is
/// 0. NNCF also goes on in double from quantiles and means without outliers, whereas this observer
/// rounds the range to float: NNCF's scale may then differ in the last bit.
///
/// Memory: two doubles a sample, except for the aggregators min and max. Not thread-safe.
class range_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Throws invalid_argument unless both outlier probabilities are in 0..0.5.
  explicit range_observer(range_options options = {}) : options_(options) {
    require_options(options, error_kind::invalid_argument);
    if (options_.use_abs_max && options_.upper.of_sample == statistic::max) {
      options_.upper.of_sample = statistic::abs_max;
    }
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes one sample; an empty one changes nothing; a NaN, an infinity, or a mean that
  /// overflows a float makes range() throw. Throws invalid_argument for null data.
  void observe(std::span<const float> x) {
    const min_max_observer sample = detail::observe_batch(seen_, x, where);
    if (!sample.is_finite()) {
      return;
    }
    const value_range range = sample.range();
    const end_options& lower = options_.lower;
    const end_options& upper = options_.upper;
    add(lower_, lower, of_sample(lower, lower.outlier_probability, x, range));
    add(upper_, upper, of_sample(upper, 1.0 - upper.outlier_probability, x, range));
  }

  /// Whether merge() works with the options, in any order: if both aggregators are min or max.
  [[nodiscard]] bool merges_in_any_order() const noexcept {
    return is_online(options_.lower) && is_online(options_.upper);
  }
  /// Afterwards this observer is in the state it would have if the samples of `later` had come
  /// after its own. Throws invalid_argument if `later` has other options.
  void append(const range_observer& later) {
    require(options_ == later.options_, error_kind::invalid_argument, where,
            ": appending other options");
    const range_observer samples = later;  // it may be this object
    seen_.merge(samples.seen_);
    for (const double value : samples.lower_) {
      add(lower_, options_.lower, value);
    }
    for (const double value : samples.upper_) {
      add(upper_, options_.upper, value);
    }
  }
  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen. Throws invalid_argument for other options, unsupported unless both
  /// aggregators are min or max: all others depend on the order of samples, at least in the last
  /// bits.
  void merge(const range_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    require(merges_in_any_order(), error_kind::unsupported, where,
            ": only the aggregators min and max can be merged");
    seen_.merge(other.seen_);
    if (!other.lower_.empty()) {
      add(lower_, options_.lower, other.lower_.front());
      add(upper_, options_.upper, other.upper_.front());
    }
  }

  /// The range, rounded to float. Its ends are found independently; for some statistics the lower
  /// end may be above the upper end. Throws invalid_argument if nothing, a NaN, an infinity or a
  /// sample whose mean overflows a float was seen.
  [[nodiscard]] value_range range() const {
    static_cast<void>(seen_.range(where));
    require(are_finite(lower_) && are_finite(upper_), error_kind::invalid_argument, where,
            ": the mean of a sample overflows a float");
    return {static_cast<float>(of_samples(options_.lower, lower_)),
            static_cast<float>(of_samples(options_.upper, upper_))};
  }

  /// Scale and zero point of range() by scale_rule::nncf. For symmetric schemes NNCF takes the
  /// upper end alone for the magnitude, which is the same with use_abs_max. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::nncf);
  }

  /// Appends, for the lower and the upper end, u8 of_sample, u8 of_samples, f64
  /// outlier_probability; u8 use_abs_max; the range seen; lists of f64 statistics for the lower and
  /// the upper end, infinity standing for all that are not finite.
  void write(detail::byte_writer& out) const {
    for (const end_options& end : {options_.lower, options_.upper}) {
      detail::put_choice(out, end.of_sample);
      detail::put_choice(out, end.of_samples);
      out.put(end.outlier_probability);
    }
    detail::put_choice(out, options_.use_abs_max);
    seen_.write(out);
    detail::put_list(out, lower_);
    detail::put_list(out, upper_);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    range_options options;
    for (end_options* end : {&options.lower, &options.upper}) {
      end->of_sample = detail::get_choice(in, statistic::mean, where);
      end->of_samples = detail::get_choice(in, aggregator::median_no_outliers, where);
      end->outlier_probability = in.get<double>();
    }
    options.use_abs_max = detail::get_choice(in, true, where);
    require_options(options, error_kind::bad_file);
    range_observer next(options);
    next.seen_.read(in);
    next.lower_ = detail::get_list<double>(in, next.seen_.count());
    next.upper_ = detail::get_list<double>(in, next.seen_.count());
    const auto is_float = [](double x) {
      return std::fabs(x) <= static_cast<double>(std::numeric_limits<float>::max()) ||
             x == not_finite;
    };
    const std::size_t lower = next.lower_.size();
    const std::size_t upper = next.upper_.size();
    detail::require_state(std::all_of(next.lower_.begin(), next.lower_.end(), is_float) &&
                              std::all_of(next.upper_.begin(), next.upper_.end(), is_float),
                          where, "a statistic is not a float");
    detail::require_state(
        (is_online(options.lower) || is_online(options.upper) ? (lower == 0) == (upper == 0)
                                                              : lower == upper) &&
            (!is_online(options.lower) || lower <= 1) &&
            (!is_online(options.upper) || upper <= 1) && (lower != 0 || !next.seen_.is_finite()),
        where, "the number of statistics");
    *this = std::move(next);
  }

  friend bool operator==(const range_observer&, const range_observer&) = default;

 private:
  static constexpr const char* where = "nncf::range_observer";

  static void require_options(const range_options& options, error_kind kind) {
    for (const double p : {options.lower.outlier_probability, options.upper.outlier_probability}) {
      require(p >= 0.0 && p <= 0.5, kind, where, ": outlier probability ", p, " is not in 0..0.5");
    }
  }

  [[nodiscard]] static bool is_online(const end_options& end) noexcept {
    return end.of_samples == aggregator::min || end.of_samples == aggregator::max;
  }
  [[nodiscard]] static bool is_quantile(const end_options& end) noexcept {
    return end.of_sample == statistic::quantile || end.of_sample == statistic::abs_quantile;
  }

  /// Stands for a statistic that is NaN or an infinity, and stays whatever is added to it, so that
  /// the order of samples does not matter.
  static constexpr double not_finite = std::numeric_limits<double>::infinity();

  [[nodiscard]] static bool are_finite(const std::vector<double>& samples) noexcept {
    return std::all_of(samples.begin(), samples.end(), [](double x) { return std::isfinite(x); });
  }

  static void add(std::vector<double>& samples, const end_options& end, double value) {
    if (samples.empty() || !is_online(end)) {
      samples.push_back(std::isfinite(value) ? value : not_finite);
      return;
    }
    double& kept = samples.front();
    if (!std::isfinite(kept) || !std::isfinite(value)) {
      kept = not_finite;
    } else {
      kept = end.of_samples == aggregator::min ? std::min(kept, value) : std::max(kept, value);
    }
  }

  [[nodiscard]] static double of_sample(const end_options& end, double q, std::span<const float> x,
                                        value_range range) {
    switch (end.of_sample) {
      case statistic::min:
        return static_cast<double>(range.lower);
      case statistic::max:
        return static_cast<double>(range.upper);
      case statistic::abs_max:
        return static_cast<double>(std::max(std::fabs(range.lower), std::fabs(range.upper)));
      case statistic::mean:
        return static_cast<double>(detail::numpy::mean(x));
      case statistic::quantile:
      case statistic::abs_quantile:
        break;
    }
    const bool magnitudes = end.of_sample == statistic::abs_quantile;
    std::vector<double> sorted(x.size());
    std::transform(x.begin(), x.end(), sorted.begin(), [magnitudes](float v) {
      return static_cast<double>(magnitudes ? std::fabs(v) : v + 0.0F);
    });
    std::sort(sorted.begin(), sorted.end());
    return detail::numpy::quantile(sorted, q);
  }

  [[nodiscard]] static double of_samples(const end_options& end,
                                         const std::vector<double>& samples) {
    if (is_online(end)) {
      return samples.front();
    }
    std::vector<double> kept = samples;
    std::size_t count = kept.size();
    std::vector<double> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    if (end.of_samples == aggregator::mean_no_outliers ||
        end.of_samples == aggregator::median_no_outliers) {
      const double low = detail::numpy::quantile(sorted, end.outlier_probability);
      const double high = detail::numpy::quantile(sorted, 1.0 - end.outlier_probability);
      const auto is_outlier = [=](double v) { return v < low || v > high; };
      sorted.erase(std::remove_if(sorted.begin(), sorted.end(), is_outlier), sorted.end());
      // Zeros stay in the places of outliers, as in a masked sum.
      std::replace_if(kept.begin(), kept.end(), is_outlier, 0.0);
      count = sorted.size();
    }
    if (count == 0) {
      return 0.0;
    }
    if (end.of_samples == aggregator::mean || end.of_samples == aggregator::mean_no_outliers) {
      return is_quantile(end) ? detail::numpy::sum(kept) / static_cast<double>(count)
                              : detail::mean_of_floats(kept, count);
    }
    const double left = sorted[(count - 1) / 2];
    const double right = sorted[count / 2];
    return is_quantile(end)
               ? (left + right) / 2.0
               : static_cast<double>((static_cast<float>(left) + static_cast<float>(right)) / 2.0F);
  }

  range_options options_;
  min_max_observer seen_;
  std::vector<double> lower_;
  std::vector<double> upper_;
};

}  // namespace nncf
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_NNCF_HPP
