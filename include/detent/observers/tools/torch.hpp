// SPDX-License-Identifier: BSD-3-Clause
// Observers of PyTorch, per tensor, on a CPU.
//
// A call of observe() stands for one call of the PyTorch observer, a batch. Both observers here
// depend on how values are split into batches and on the order of batches; hence they have no
// merge(), but append() batches in their order.
//
// A batch with a NaN or an infinity makes range() throw; PyTorch lets NaN through, and its
// histogram leaves out infinities. An empty batch changes nothing, as in PyTorch. Objects are
// values and not thread-safe; use one per thread.
//
// Source: torchao 0.18, quantization/pt2e/observer.py, whose classes are those of
// torch.ao.quantization in PyTorch 2.
#ifndef DETENT_OBSERVERS_TOOLS_TORCH_HPP
#define DETENT_OBSERVERS_TOOLS_TORCH_HPP

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
#include <detent/observers/batch_extent.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/observers/tools/torch_arithmetic.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// Observers that reproduce those of PyTorch.
namespace torch {

/// Options of torch::moving_average_min_max_observer.
struct moving_average_min_max_options {
  float averaging_constant = 0.01F;  ///< weight of the newest batch, in 0..1
  friend bool operator==(const moving_average_min_max_options&,
                         const moving_average_min_max_options&) = default;
};

/// Reproduces MovingAverageMinMaxObserver, with the same bits as PyTorch. The first batch sets the
/// range to its own; each later batch does, in float with every operation rounded,
///
///     lower += averaging_constant * (smallest value of the batch - lower)
///     upper += averaging_constant * (largest value of the batch - upper)
///
/// Not thread-safe; it has append(), but no merge().
class moving_average_min_max_observer {
 public:
  /// Throws invalid_argument unless 0 <= averaging_constant <= 1.
  explicit moving_average_min_max_observer(moving_average_min_max_options options = {})
      : options_(options) {
    detail::require_averaging_constant(options.averaging_constant, where);
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws invalid_argument for null data or if the average overflows a float; then the batch was
  /// not seen.
  void observe(std::span<const float> x) {
    min_max_observer seen = seen_;
    const min_max_observer batch = detail::observe_batch(seen, x, where);
    if (batch.is_finite()) {
      average_ = averaged(batch.range());
    }
    seen_ = seen;  // a batch that is refused was not seen
  }

  /// Afterwards this observer is in the state it would have if it had also seen the one batch that
  /// `later` has seen. Throws invalid_argument if `later` has other options or the average
  /// overflows a float; then nothing has changed.
  void append(const moving_average_min_max_observer& later) {
    require(options_ == later.options_, error_kind::invalid_argument, where,
            ": appending other options");
    if (later.seen_.count() == 0) {
      return;
    }
    average_ = averaged(later.average_);
    seen_.merge(later.seen_);
  }

  /// The averaged range. Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    static_cast<void>(seen_.range(where));
    return average_;
  }

  /// Scale and zero point of range() by scale_rule::torch. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::torch);
  }

  /// Appends f32 averaging_constant; the range seen; f32 ends of the average.
  void write(detail::byte_writer& out) const {
    out.put(options_.averaging_constant);
    seen_.write(out);
    detail::put_range(out, average_);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    moving_average_min_max_options options;
    options.averaging_constant = in.get<float>();
    detail::require_averaging_constant(options.averaging_constant, where, error_kind::bad_file);
    moving_average_min_max_observer next(options);
    next.seen_.read(in);
    next.average_ = detail::get_finite_range(in, where);
    detail::require_state(next.seen_.count() != 0 || next.average_ == value_range(), where,
                          "an average of nothing");
    *this = next;
  }

  friend bool operator==(const moving_average_min_max_observer&,
                         const moving_average_min_max_observer&) = default;

 private:
  static constexpr const char* where = "torch::moving_average_min_max_observer";

  /// The average with the range of one more batch.
  [[nodiscard]] value_range averaged(value_range batch) const {
    if (seen_.count() == 0) {
      return batch;
    }
    const value_range average =
        detail::moving_average(average_, batch, options_.averaging_constant);
    detail::require_finite_average(average, where);
    return average;
  }

  moving_average_min_max_options options_;
  min_max_observer seen_;
  value_range average_;
};

/// Options of torch::histogram_observer.
struct histogram_options {
  std::size_t bins = 2048;  ///< number of bins, in 2..2^16
  /// Parts that a bin is divided into when the range grows, in 1..1024.
  std::size_t upsample_rate = 16;
  unsigned bits = 8;  ///< bits of the type that is quantized to, in 1..16
  friend bool operator==(const histogram_options&, const histogram_options&) = default;
};

/// Reproduces HistogramObserver. It keeps a histogram of `bins` bins on the range of everything
/// seen. When a batch exceeds it, every bin is divided into `upsample_rate` parts of equal count,
/// and each part goes where its middle lies in the new histogram.
///
/// range() begins with all bins and the quantiles alpha = 0, beta = 1. Each step looks at which
/// bins would be left out at either end if alpha grew or beta shrank by 1e-5, and takes the end
/// that loses more bins, the upper one if both lose as many. The search ends before the first
/// interval whose error is greater than the last one's, or when alpha reaches beta. The error of an
/// interval divided into 2^bits equal levels is the sum over all bins of
///
///     count / width * (integral of (x - middle of the level of x)^2 over the bin)
///
/// where levels between the bin's first and last level count in full, and values outside belong to
/// the outermost level. Terms are in float, as in PyTorch. The first step is taken whatever its
/// error, so that the whole range is never the result.
///
/// The sum of the terms is in double here and in float in PyTorch, which adds in another order on
/// every processor; its vectorized linspace for the bins' middles depends on the processor as well.
/// If two errors differ in their last bits, or a middle falls on an edge, PyTorch may end a step
/// sooner or later.
///
/// Time: O(bins) for each of at most `bins` steps; hence the limit of `bins`. Memory: O(bins). Not
/// thread-safe; it has append() and follow(), but no merge().
class histogram_observer {
 public:
  /// Throws invalid_argument unless 2 <= bins <= 2^16, 0 < upsample_rate <= 2^10 and 1 <= bits <=
  /// 16.
  explicit histogram_observer(histogram_options options = {}) : options_(options) {
    require_options(options, error_kind::invalid_argument);
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws invalid_argument for null data or if the length of the range overflows a float; then
  /// the batch was not seen.
  void observe(std::span<const float> x) {
    min_max_observer seen = seen_;
    const min_max_observer batch = detail::observe_batch(seen, x, where);
    if (!batch.is_finite()) {
      seen_ = seen;
      return;
    }
    const value_range added = batch.range();
    const value_range now = with(added);
    std::vector<float> counts(options_.bins);
    detail::pytorch::add_histogram<float>(x, now.lower, now.upper, counts, where);
    add(std::move(counts), now);
    seen_ = seen;  // a batch that is refused was not seen
  }
  /// Widens the range of the histogram to come by that of a batch that another observer counts. To
  /// be called before observe(), for all batches before the one that is observed here. Throws
  /// invalid_argument if this observer has counted values, or if the length of the range overflows
  /// a float.
  void follow(const batch_extent& batch) {
    require(counts_.empty(), error_kind::invalid_argument, where,
            ": it has counted values, and cannot follow");
    const value_range now = with(batch.range);
    detail::pytorch::require_length(now.lower, now.upper, where);
    counted_ = now;
    has_range_ = true;
  }
  /// Afterwards this observer is in the state it would have if it had also seen the one batch that
  /// `later` has seen after it followed all batches seen here. Throws invalid_argument if `later`
  /// has other options, or a range that does not contain the range here, overflow if a bin would
  /// count more than 2^64 values; then nothing has changed.
  void append(const histogram_observer& later) {
    require(options_ == later.options_, error_kind::invalid_argument, where,
            ": appending other options");
    if (!later.counts_.empty()) {
      require(with(later.counted_) == later.counted_, error_kind::invalid_argument, where,
              ": appending an observer that has not followed the batches before");
      add(later.counts_, later.counted_);
    }
    seen_.merge(later.seen_);
  }

  /// The range of the bins that the search ends with. Throws invalid_argument if nothing, a NaN or
  /// an infinity was seen.
  [[nodiscard]] value_range range() const {
    static_cast<void>(seen_.range(where));
    const auto [first, last] = best_bins();
    const float width = (counted_.upper - counted_.lower) / static_cast<float>(options_.bins);
    return {counted_.lower + detail::rounded_product(width, static_cast<float>(first)),
            counted_.lower + detail::rounded_product(width, static_cast<float>(last + 1))};
  }

  /// Scale and zero point of range() by scale_rule::torch. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::torch);
  }

  /// Appends u64 bins, u64 upsample_rate, u32 bits; the range seen; f32 ends of the range counted,
  /// and the list of f32 counts, which is empty if nothing was counted. What was followed before
  /// anything was counted is not part of it.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.bins));
    out.put(static_cast<std::uint64_t>(options_.upsample_rate));
    out.put(static_cast<std::uint32_t>(options_.bits));
    seen_.write(out);
    detail::put_range(out, counts_.empty() ? value_range() : counted_);
    detail::put_list(out, counts_);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    histogram_options options;
    options.bins = in.get_size(largest_bins);
    options.upsample_rate = in.get_size(largest_upsample_rate);
    options.bits = in.get<std::uint32_t>();
    require_options(options, error_kind::bad_file);
    histogram_observer next(options);
    next.seen_.read(in);
    next.counted_ = detail::get_finite_range(in, where);
    next.counts_ = detail::get_finite_list<float>(in, options.bins, where);
    const value_range counted = next.counted_;
    if (next.counts_.empty()) {
      detail::require_state(counted == value_range() && !next.seen_.is_finite(), where,
                            "nothing was counted");
    } else {
      detail::require_state(next.counts_.size() == options.bins && counted.lower <= counted.upper &&
                                std::isfinite(counted.upper - counted.lower),
                            where, "the range of the histogram");
      const auto [least, most] = std::minmax_element(next.counts_.begin(), next.counts_.end());
      detail::require_state(*least >= 0.0F, where, "a count is negative");
      detail::require_state(*most <= largest_counted, where, "a count is too large");
      next.has_range_ = true;
    }
    *this = std::move(next);
  }

  friend bool operator==(const histogram_observer&, const histogram_observer&) = default;

 private:
  static constexpr const char* where = "torch::histogram_observer";
  static constexpr std::size_t largest_bins = std::size_t{1} << 16;  // 2^32 in all steps
  static constexpr std::size_t largest_upsample_rate = 1024;
  static constexpr float largest_counted = 0x1p64F;  // in one bin; more than any number of values

  static void require_options(const histogram_options& options, error_kind kind) {
    require(options.bins >= 2 && options.bins <= largest_bins, kind, where, ": ", options.bins,
            " bins, not 2..2^16");
    require(options.upsample_rate > 0 && options.upsample_rate <= largest_upsample_rate, kind,
            where, ": upsample rate ", options.upsample_rate, " is not in 1..1024");
    require(options.bits >= 1 && options.bits <= 16, kind, where, ": ", options.bits,
            " bits, not 1..16");
  }

  [[nodiscard]] static double sum(const std::vector<float>& values) noexcept {
    double total = 0.0;
    for (const float value : values) {
      total += static_cast<double>(value);
    }
    return total;
  }

  /// The range of the histogram, widened by another one.
  [[nodiscard]] value_range with(value_range added) const noexcept {
    return has_range_ ? value_range{std::min(counted_.lower, added.lower),
                                    std::max(counted_.upper, added.upper)}
                      : added;
  }
  /// Adds the counts of a batch on `now`, which contains the range so far.
  void add(std::vector<float> counts, value_range now) {
    if (!counts_.empty()) {
      const std::vector<float> kept = now == counted_ ? counts_ : rescaled(counted_, now);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        counts[i] += kept[i];
      }
      require(*std::max_element(counts.begin(), counts.end()) <= largest_counted,
              error_kind::overflow, where, ": a bin would count more than 2^64 values");
    }
    counts_ = std::move(counts);
    counted_ = now;
    has_range_ = true;
  }

  /// The histogram on `old` converted to one on `now`, which contains `old`.
  [[nodiscard]] std::vector<float> rescaled(value_range old, value_range now) const {
    std::vector<float> counts(options_.bins);
    if (old.lower == old.upper) {
      detail::pytorch::add_histogram<float>(std::span<const float>(&old.lower, 1), now.lower,
                                            now.upper, counts, where);
      const auto total = static_cast<float>(sum(counts_));
      std::transform(counts.begin(), counts.end(), counts.begin(),
                     [total](float one) { return one * total; });
      return counts;
    }
    const std::size_t parts = options_.bins * options_.upsample_rate;
    const float part = (old.upper - old.lower) / static_cast<float>(parts);
    const std::vector<float> edges =
        detail::pytorch::linspace(now.lower, now.upper, options_.bins + 1);
    for (std::size_t i = 0; i < parts; ++i) {
      // One by one: there may be 2^26 parts.
      const float begin = detail::pytorch::linspace_value(old.lower, old.upper, parts + 1, i);
      const float middle = begin + 0.5F * part;
      const auto above = std::upper_bound(edges.begin(), edges.end(), middle) - edges.begin();
      const auto bin =
          std::min(static_cast<std::size_t>(std::max<std::ptrdiff_t>(above, 1)), options_.bins) - 1;
      counts[bin] +=
          counts_[i / options_.upsample_rate] / static_cast<float>(options_.upsample_rate);
    }
    return counts;
  }

  /// The first and the last bin of the interval that the search ends with.
  [[nodiscard]] std::pair<std::size_t, std::size_t> best_bins() const {
    constexpr double step = 1e-5;
    std::vector<float> cumulative(counts_.size());
    double running = 0.0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      running += static_cast<double>(counts_[i]);
      cumulative[i] = static_cast<float>(running);
    }
    const auto total = static_cast<double>(static_cast<float>(running));
    double alpha = 0.0;
    double beta = 1.0;
    std::size_t first = 0;
    std::size_t last = options_.bins - 1;
    float least = std::numeric_limits<float>::infinity();
    while (alpha < beta) {
      const double next_alpha = alpha + step;
      const double next_beta = beta - step;
      const auto low = static_cast<float>(next_alpha * total);
      const auto high = static_cast<float>(next_beta * total);
      std::size_t left = first;
      std::size_t right = last;
      while (left < last && cumulative[left] < low) {
        ++left;
      }
      while (right > first && cumulative[right] > high) {
        --right;
      }
      std::size_t next_first = first;
      std::size_t next_last = last;
      if (left - first > last - right) {
        next_first = left;
        alpha = next_alpha;
      } else {
        next_last = right;
        beta = next_beta;
      }
      if (next_first == first && next_last == last) {
        continue;
      }
      const float error = error_of(next_first, next_last);
      if (error > least) {
        break;
      }
      least = error;
      first = next_first;
      last = next_last;
    }
    return {first, last};
  }

  /// density * (end^3 - begin^3) / 3, in float.
  [[nodiscard]] static float squared_error(float begin, float end, float density) noexcept {
    const float cubes =
        detail::rounded_product(end * end, end) - detail::rounded_product(begin * begin, begin);
    return detail::rounded_product(density, cubes / 3.0F);
  }

  [[nodiscard]] float error_of(std::size_t first, std::size_t last) const {
    const double bin_width =
        (static_cast<double>(counted_.upper) - static_cast<double>(counted_.lower)) /
        static_cast<double>(options_.bins);
    const auto levels = static_cast<double>(std::size_t{1} << options_.bits);
    const double level_width = bin_width * static_cast<double>(last - first + 1) / levels;
    if (level_width == 0.0) {
      return 0.0F;
    }
    const auto bin = static_cast<float>(bin_width);
    const auto level = static_cast<float>(level_width);
    const auto half_level = static_cast<float>(level_width / 2.0);
    const auto last_level = static_cast<float>(levels - 1.0);
    double total = 0.0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0.0F) {
        continue;
      }
      const float density = counts_[i] / bin;
      const float begin =
          detail::rounded_product(static_cast<float>(i) - static_cast<float>(first), bin);
      const float end = begin + bin;
      const float level_of_begin = level_of(begin, level, last_level);
      const float level_of_end = level_of(end, level, last_level);
      const float middle_of_begin = detail::rounded_product(level_of_begin + 0.5F, level);
      const float middle_of_end = detail::rounded_product(level_of_end, level) + half_level;
      float error = squared_error(begin - middle_of_begin, half_level, density);
      error += detail::rounded_product(level_of_end - level_of_begin - 1.0F,
                                       squared_error(-half_level, half_level, density));
      error += squared_error(-half_level, end - middle_of_end, density);
      total += static_cast<double>(error);
    }
    return static_cast<float>(total);
  }

  [[nodiscard]] static float level_of(float x, float level, float last_level) noexcept {
    const float remainder = std::fmod(x, level);
    float quotient = (x - remainder) / level;
    quotient -= remainder < 0.0F ? 1.0F : 0.0F;
    float floor = std::floor(quotient);
    floor += quotient - floor > 0.5F ? 1.0F : 0.0F;
    return std::clamp(floor, 0.0F, last_level);
  }

  histogram_options options_;
  min_max_observer seen_;
  bool has_range_ = false;  // whether counted_ is a range
  value_range counted_;
  std::vector<float> counts_;
};

}  // namespace torch
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_TORCH_HPP
