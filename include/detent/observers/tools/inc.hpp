// SPDX-License-Identifier: BSD-3-Clause
// The histogram calibrators of Intel Neural Compressor for ONNX Runtime. They descend from ONNX
// Runtime's own (ort.hpp) and share their histogram.
//
// A call of observe() stands for one array that the tool collects: a batch, or several of equal
// shape that it would join. Results depend on that.
//
// A batch with a NaN or an infinity makes range() throw; the tool fails on either. An empty batch
// changes nothing. Objects are values and not thread-safe; one per thread.
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
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/linear_histogram.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace inc {

struct kl_options {
  std::size_t num_bins = 128;
  std::size_t num_quantized_bins = 128;
  parity behaviour = parity::as_published;
  friend bool operator==(const kl_options&, const kl_options&) = default;
};

/// KLCalibrator: the histogram, the candidates and the bugs of ort::entropy_observer, which also
/// says what parity::fixed changes. P * log(P / Q) is computed in double and rounded to float, as
/// by scipy.special.rel_entr; where candidates differ in their last bits, another SciPy may choose
/// otherwise.
///
/// Time: O(bins^2). Memory: O(bins).
class kl_observer {
 public:
  /// Throws invalid_argument unless 0 < num_quantized_bins <= num_bins <= 2^22.
  explicit kl_observer(kl_options options = {})
      : options_(options),
        histogram_(options.num_bins, options.num_quantized_bins, options.behaviour, where) {}

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), histogram_.seen().count() > 0, where);
  }

  /// Throws unsupported if the histogram would grow beyond 2^22 bins, invalid_argument if no floats
  /// lie between its edges.
  void observe(std::span<const float> x) { histogram_.observe(x, where); }

  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    return histogram_.range(detail::entropy_arithmetic::scipy, where);
  }

  /// scale_rule::inc of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::inc);
  }

  /// u64 num_bins, u64 num_quantized_bins, u8 behaviour; the rest as ort::entropy_observer.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(static_cast<std::uint64_t>(options_.num_quantized_bins));
    detail::put_choice(out, options_.behaviour);
    histogram_.write(out);
  }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) {
    kl_options options;
    options.num_bins = in.get_size(detail::largest_histogram);
    options.num_quantized_bins = in.get_size(detail::largest_histogram);
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

struct percentile_options {
  std::size_t num_bins = 2048;
  double percentile = 99.999;
  friend bool operator==(const percentile_options&, const percentile_options&) = default;
};

/// PercentileCalibrator: ort::percentile_observer where that is asymmetric.
///
/// Memory: O(bins).
class percentile_observer {
 public:
  /// Throws invalid_argument unless 0 < num_bins <= 2^22 and 0 <= percentile <= 100.
  explicit percentile_observer(percentile_options options = {})
      : options_(options), histogram_(options.num_bins) {
    detail::require_histogram_bins(options.num_bins, where);
    detail::require_percentile(options.percentile, where);
  }

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Throws unsupported if the histogram would grow beyond 2^22 bins, invalid_argument if no floats
  /// lie between its edges.
  void observe(std::span<const float> x) {
    min_max_observer seen = seen_;
    const min_max_observer batch = detail::observe_batch(seen, x, where);
    if (batch.is_finite()) {
      histogram_.add(x, batch.range(), where);
    }
    seen_ = seen;  // a batch that is refused was not seen
  }

  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    const value_range seen = seen_.range(where);
    return detail::percentile_range(histogram_, options_.percentile, seen);
  }

  /// scale_rule::inc of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::inc);
  }

  /// u64 num_bins, f64 percentile; the range seen and the histogram as ort::entropy_observer.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(options_.percentile);
    seen_.write(out);
    histogram_.write(out);
  }
  /// Throws bad_file for what write() has not written.
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
