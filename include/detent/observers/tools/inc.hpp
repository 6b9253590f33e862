// SPDX-License-Identifier: BSD-3-Clause
// The histogram calibrators of Intel Neural Compressor for ONNX Runtime. They descend from ONNX
// Runtime's own (ort.hpp) and share their histogram.
//
// A call of observe() stands for one array that the tool collects: a batch, or several of equal
// shape that it would join. Results depend on how values are split into such calls.
//
// A batch with a NaN or an infinity makes range() throw; the tool fails on either. An empty batch
// changes nothing. Objects are values and not thread-safe; use one per thread.
//
// Source: Intel Neural Compressor 2.6, adaptor/ox_utils/calibrator.py, under NumPy 2.
#ifndef DETENT_OBSERVERS_TOOLS_INC_HPP
#define DETENT_OBSERVERS_TOOLS_INC_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/batch_extent.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/linear_histogram.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// Observers that reproduce the histogram calibrators of Intel Neural Compressor.
namespace inc {

/// Options of inc::kl_observer.
struct kl_options {
  std::size_t num_bins = 128;            ///< bins of the histogram that the first batch makes
  std::size_t num_quantized_bins = 128;  ///< groups that candidates are quantized to
  /// Whether the tool's bugs are reproduced or repaired.
  parity behaviour = parity::as_published;
  friend bool operator==(const kl_options&, const kl_options&) = default;
};

/// Reproduces KLCalibrator. It has the histogram, the candidates and the bugs of
/// ort::entropy_observer, whose documentation also says what parity::fixed changes. P * log(P / Q)
/// is computed in double and rounded to float, as scipy.special.rel_entr does; where candidates
/// differ in their last bits, another SciPy may choose otherwise.
///
/// Time: O(bins^2) for range(). Memory: O(bins). Not thread-safe; observers merge() after all have
/// observed or followed the same batches.
class kl_observer {
 public:
  /// Throws invalid_argument unless 0 < num_quantized_bins <= num_bins <= 2^17, or if parity::fixed
  /// would begin with more than 2^17 bins.
  explicit kl_observer(kl_options options = {})
      : options_(options),
        histogram_(options.num_bins, options.num_quantized_bins, options.behaviour, where) {}

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), histogram_.seen().count() > 0, where);
  }

  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws unsupported if the histogram would grow beyond 2^17 bins, overflow if it would count
  /// more than 2^48 values, invalid_argument for null data or if no floats lie between its edges;
  /// then the batch was not seen.
  void observe(std::span<const float> x) { histogram_.observe(x, where); }

  /// Grows the histogram with a batch that another observer counts. Throws unsupported if it would
  /// grow beyond 2^17 bins.
  void follow(const batch_extent& batch) { histogram_.follow(batch, where); }
  /// Adds what `other` has counted. Both must have observed or followed the same batches, in the
  /// same order. Throws invalid_argument if the options differ, or the edges of the histograms,
  /// overflow if more than 2^48 values would be counted.
  void merge(const kl_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    histogram_.merge(other.histogram_, where);
  }

  /// The range of the best candidate. Throws invalid_argument if nothing, a NaN or an infinity was
  /// seen, and unsupported where the tool's assertion fails.
  [[nodiscard]] value_range range() const {
    return histogram_.range(detail::entropy_arithmetic::scipy, where);
  }

  /// Scale and zero point, by scale_rule::inc, of range() extended by 0. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(reference::including_zero(range()), scheme, scale_rule::inc);
  }

  /// Appends u64 num_bins, u64 num_quantized_bins, u8 behaviour; the range seen and the histogram
  /// as ort::entropy_observer appends them.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(static_cast<std::uint64_t>(options_.num_quantized_bins));
    detail::put_choice(out, options_.behaviour);
    histogram_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    kl_options options;
    options.num_bins = in.get_size(detail::largest_entropy_histogram);
    options.num_quantized_bins = in.get_size(detail::largest_entropy_histogram);
    options.behaviour = detail::get_choice(in, parity::fixed, where);
    static_cast<void>(
        detail::entropy_histogram::first_bins(options.num_bins, options.num_quantized_bins,
                                              options.behaviour, where, error_kind::bad_file));
    kl_observer next(options);
    next.histogram_.read(in, where);
    *this = std::move(next);
  }

  friend bool operator==(const kl_observer&, const kl_observer&) = default;

 private:
  static constexpr const char* where = "inc::kl_observer";

  kl_options options_;
  detail::entropy_histogram histogram_;
};

/// Options of inc::percentile_observer.
struct percentile_options {
  std::size_t num_bins = 2048;  ///< bins of the histogram that the first batch makes
  double percentile = 99.999;   ///< share of the values inside the range, in percent, in 0..100
  friend bool operator==(const percentile_options&, const percentile_options&) = default;
};

/// Reproduces PercentileCalibrator, which computes the same range as an asymmetric
/// ort::percentile_observer. Memory: O(bins). Not thread-safe; observers merge() after all have
/// observed or followed the same batches.
class percentile_observer {
 public:
  /// Throws invalid_argument unless 0 < num_bins <= 2^22 and 0 <= percentile <= 100.
  explicit percentile_observer(percentile_options options = {})
      : options_(options), histogram_(options.num_bins) {
    detail::require_histogram_bins(options.num_bins, where);
    detail::require_percentile(options.percentile, where);
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws unsupported if the histogram would grow beyond 2^22 bins, overflow if it would count
  /// more than 2^48 values, invalid_argument for null data or if no floats lie between its edges;
  /// then the batch was not seen.
  void observe(std::span<const float> x) {
    min_max_observer seen = seen_;
    const min_max_observer batch = detail::observe_batch(seen, x, where);
    if (batch.is_finite()) {
      histogram_.add(x, batch.range(), where);
    }
    seen_ = seen;  // a batch that is refused was not seen
  }

  /// Grows the histogram with a batch that another observer counts. Throws unsupported if it would
  /// grow beyond 2^22 bins.
  void follow(const batch_extent& batch) { histogram_.add({}, batch.range, where); }
  /// Adds what `other` has counted. Both must have observed or followed the same batches, in the
  /// same order. Throws invalid_argument if the options differ, or the edges of the histograms,
  /// overflow if more than 2^48 values would be counted.
  void merge(const percentile_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    histogram_.merge(other.histogram_, where);
    seen_.merge(other.seen_);
  }

  /// The lower edges of the bins in which the cumulative share reaches (100 - percentile) / 200 and
  /// 1 minus that, cut to the range seen. Throws invalid_argument if nothing, a NaN or an infinity
  /// was seen.
  [[nodiscard]] value_range range() const {
    const value_range seen = seen_.range(where);
    return detail::percentile_range(histogram_, options_.percentile, seen);
  }

  /// Scale and zero point, by scale_rule::inc, of range() extended by 0. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(reference::including_zero(range()), scheme, scale_rule::inc);
  }

  /// Appends u64 num_bins, f64 percentile; the range seen and the histogram as
  /// ort::entropy_observer appends them.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(options_.percentile);
    seen_.write(out);
    histogram_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    percentile_options options;
    options.num_bins = in.get_size(detail::largest_histogram);
    options.percentile = in.get<double>();
    detail::require_histogram_bins(options.num_bins, where, error_kind::bad_file);
    detail::require_percentile(options.percentile, where, error_kind::bad_file);
    percentile_observer next(options);
    next.seen_.read(in);
    next.histogram_.read(in, next.seen_.count(), where);
    detail::require_state(!next.histogram_.is_empty() || !next.seen_.is_finite(), where,
                          "nothing was counted");
    *this = std::move(next);
  }

  friend bool operator==(const percentile_observer&, const percentile_observer&) = default;

 private:
  static constexpr const char* where = "inc::percentile_observer";

  percentile_options options_;
  min_max_observer seen_;
  detail::symmetric_histogram histogram_;
};

}  // namespace inc
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_INC_HPP
