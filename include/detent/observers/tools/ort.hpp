// SPDX-License-Identifier: BSD-3-Clause
// The calibrators of ONNX Runtime's quantization tool: the same ranges, to the bit.
//
// A call of observe() stands for a call of collect_data() of the tool: a batch, or several that
// the tool would have read at once, one behind the other. That makes a difference to every
// observer here but the plain min_max_observer.
//
// A batch with a NaN or an infinity makes range() throw; the tool leaves out NaN where it takes the
// extremes of a batch, and fails on infinities. An empty batch changes nothing; the tool includes
// 0 in the range, or fails. Objects are values and not thread-safe; one per thread.
//
// Source: ONNX Runtime 1.31, onnxruntime/quantization/calibrate.py, under NumPy 2.
#ifndef DETENT_OBSERVERS_TOOLS_ORT_HPP
#define DETENT_OBSERVERS_TOOLS_ORT_HPP

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
#include <detent/observers/tools/linear_histogram.hpp>
#include <detent/observers/tools/numpy_arithmetic.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace ort {

struct min_max_options {
  bool symmetric = false;
  bool moving_average = false;
  float averaging_constant = 0.01F;
  /// How many batches one collection holds; 0: all of them. Only the moving average looks at it.
  /// The tool's quantize_static() makes one collection of all batches unless it is told a stride
  /// (CalibStridedMinMax), and so never uses the averaging constant.
  std::size_t batches_per_collection = 1;
  friend bool operator==(const min_max_options&, const min_max_options&) = default;
};

/// MinMaxCalibrater. With lower_i and upper_i of batch i:
///
///   plain           (min_i lower_i, max_i upper_i)
///   moving average  (mean of lower_i, mean of upper_i) of each collection; the first one is the
///                   average, then average += averaging_constant * (collection - average)
///   symmetric       (-m, m), m = max(|lower|, |upper|): of each collection, before it is averaged
///
/// In float: the mean adds up as np.mean does, every operation is rounded. Batches matter to the
/// moving average alone, which keeps two floats for each one of a collection.
class min_max_observer {
 public:
  explicit min_max_observer(min_max_options options = {}) : options_(options) {
    detail::require_averaging_constant(options.averaging_constant, where);
  }

  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  void observe(std::span<const float> x) {
    const detent::min_max_observer batch = detail::observe_batch(seen_, x, where);
    if (!options_.moving_average || !batch.is_finite()) {
      return;
    }
    lower_.push_back(batch.range().lower);
    upper_.push_back(batch.range().upper);
    if (lower_.size() == options_.batches_per_collection) {
      average_ = with_collection();
      has_average_ = true;
      lower_.clear();
      upper_.clear();
    }
  }

  /// As if everything that `other` has seen had been seen here. Throws invalid_argument if one of
  /// the two is a moving average, which depends on the order of batches, or if the options differ.
  void merge(const min_max_observer& other) {
    require(options_ == other.options_ && !options_.moving_average, error_kind::invalid_argument,
            where, ": only plain observers with equal options can be merged");
    seen_.merge(other.seen_);
  }

  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    const value_range seen = seen_.range(where);
    if (!options_.moving_average) {
      return symmetrized(seen);
    }
    return lower_.empty() ? average_ : with_collection();
  }

  /// scale_rule::ort of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ort);
  }

  /// u8 symmetric, u8 moving_average, f32 averaging_constant, u64 batches_per_collection; the range
  /// seen; of the collection that has begun, lists of f32 lower and upper ends; u8 whether there is
  /// an average, and f32 its ends.
  void write(detail::byte_writer& out) const {
    detail::put_choice(out, options_.symmetric);
    detail::put_choice(out, options_.moving_average);
    out.put(options_.averaging_constant);
    out.put(static_cast<std::uint64_t>(options_.batches_per_collection));
    seen_.write(out);
    detail::put_list(out, lower_);
    detail::put_list(out, upper_);
    detail::put_choice(out, has_average_);
    detail::put_range(out, average_);
  }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) {
    min_max_options options;
    options.symmetric = detail::get_choice(in, true, where);
    options.moving_average = detail::get_choice(in, true, where);
    options.averaging_constant = in.get<float>();
    options.batches_per_collection = in.get_size(std::numeric_limits<std::size_t>::max());
    detail::require_averaging_constant(options.averaging_constant, where, error_kind::bad_file);
    min_max_observer next(options);
    next.seen_.read(in);
    next.lower_ = detail::get_finite_list<float>(in, next.seen_.count(), where);
    next.upper_ = detail::get_finite_list<float>(in, next.seen_.count(), where);
    next.has_average_ = detail::get_choice(in, true, where);
    next.average_ = detail::get_finite_range(in, where);
    const std::size_t begun = next.lower_.size();
    detail::require_state(begun == next.upper_.size() && (options.batches_per_collection == 0 ||
                                                          begun < options.batches_per_collection),
                          where, "the collection that has begun");
    const bool averages = next.has_average_ || begun != 0;
    detail::require_state(options.moving_average ? averages || !next.seen_.is_finite() : !averages,
                          where, "what was averaged is not what was seen");
    detail::require_state(next.has_average_ || next.average_ == value_range(), where,
                          "an average of nothing");
    *this = std::move(next);
  }

  friend bool operator==(const min_max_observer&, const min_max_observer&) = default;

 private:
  static constexpr const char* where = "ort::min_max_observer";

  [[nodiscard]] value_range symmetrized(value_range range) const noexcept {
    const float magnitude = std::max(std::fabs(range.lower), std::fabs(range.upper));
    return options_.symmetric ? value_range{-magnitude, magnitude} : range;
  }
  /// The average with the collection that has begun.
  [[nodiscard]] value_range with_collection() const noexcept {
    const value_range mean =
        symmetrized({detail::numpy::mean(lower_), detail::numpy::mean(upper_)});
    return has_average_ ? detail::moving_average(average_, mean, options_.averaging_constant)
                        : mean;
  }

  min_max_options options_;
  detent::min_max_observer seen_;
  std::vector<float> lower_;  // of the collection that has begun
  std::vector<float> upper_;
  value_range average_;
  bool has_average_ = false;
};

struct entropy_options {
  std::size_t num_bins = 128;
  std::size_t num_quantized_bins = 128;
  bool symmetric = false;  // the tool takes it, too, and makes no difference either
  parity behaviour = parity::as_published;
  friend bool operator==(const entropy_options&, const entropy_options&) = default;
};

/// EntropyCalibrater. A histogram of `num_bins` bins on -m .. m, m = max |x| of the first batch.
/// When a batch exceeds it, h = floor((max |x| - m) / w) + 1 bins are added at each end, w = 2 m /
/// bins, and m grows by h * w; values are counted in the histogram of their time.
///
/// Candidates are the edges middle - i and min(middle + i + 1, bins) for i = num_quantized_bins / 2
/// .. middle, middle = bins / 2. Of each:
///
///   P  the counts between the edges, with all that lies outside added to the first and the last
///   Q  the counts between the edges in num_quantized_bins groups of size / num_quantized_bins
///      bins, the last of which holds the rest, too; every bin of a group becomes the group's count
///      divided by how many of its P are not zero
///
/// Zeros of either become 1e-4, what that takes is taken from all others, and P and Q are
/// normalized. The candidate with the least sum of P * log(P / Q) wins, the first one of several.
/// The result is cut to what was seen. In float; logarithms are rounded correctly but for one in
/// some millions, so that the tool, whose logarithms vary with the processor, may choose otherwise
/// where candidates differ in their last bits.
///
/// Bugs of the tool: with the default of 128 bins there is one candidate, the whole histogram, as
/// long as it has not grown. Q is cut to integers, so that sparse groups become zeros, and is given
/// to bins whose P is zero. The bins behind the last whole group get no Q, though their counts are
/// in it. Where more than 10^4 bins are empty for each one that is not, an assertion fails: then
/// range() throws unsupported. parity::fixed begins with at least 16 * num_quantized_bins bins,
/// does not cut Q, spreads it over the bins whose P is not zero only, those behind the last whole
/// group included, and passes over candidates that fail the assertion.
///
/// Time: O(bins^2). Memory: O(bins).
class entropy_observer {
 public:
  /// Throws invalid_argument unless 0 < num_quantized_bins <= num_bins <= 2^22.
  explicit entropy_observer(entropy_options options = {})
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
    return histogram_.range(detail::entropy_arithmetic::numpy, where);
  }

  /// scale_rule::ort of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ort);
  }

  /// u64 num_bins, u64 num_quantized_bins, u8 symmetric, u8 behaviour; the range seen; u8 whether
  /// something was counted, and if so f32 threshold, u64 bins, u64 counts.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(static_cast<std::uint64_t>(options_.num_quantized_bins));
    detail::put_choice(out, options_.symmetric);
    detail::put_choice(out, options_.behaviour);
    histogram_.write(out);
  }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) {
    entropy_options options;
    options.num_bins = in.get_size(detail::largest_histogram);
    options.num_quantized_bins = in.get_size(detail::largest_histogram);
    options.symmetric = detail::get_choice(in, true, where);
    options.behaviour = detail::get_choice(in, parity::fixed, where);
    static_cast<void>(
        detail::entropy_histogram::first_bins(options.num_bins, options.num_quantized_bins,
                                              options.behaviour, where, error_kind::bad_file));
    entropy_observer next(options);
    next.histogram_.read(in, where);
    *this = std::move(next);
  }

  friend bool operator==(const entropy_observer&, const entropy_observer&) = default;

 private:
  static constexpr const char* where = "ort::entropy_observer";

  entropy_options options_;
  detail::entropy_histogram histogram_;
};

struct percentile_options {
  std::size_t num_bins = 2048;
  double percentile = 99.999;
  bool symmetric = true;  // of quantize_static(); the calibrator itself defaults to false
  friend bool operator==(const percentile_options&, const percentile_options&) = default;
};

/// PercentileCalibrater.
///
///   symmetric   A histogram of |x| in num_bins bins on min |x| .. max |x| of the first batch.
///               Bins of the width of the first one are appended when a batch exceeds it; values
///               below the first batch's least are not counted. The range is (-t, t), t the lower
///               edge of the bin in which the cumulative share reaches percentile / 100.
///   asymmetric  The histogram of entropy_observer. The range is the lower edges of the bins in
///               which the cumulative share reaches (100 - percentile) / 200 and 1 minus that.
///
/// The result is cut to what was seen. The shares are in double. Edges are in float, but for those
/// that the symmetric histogram appends: a batch that appends is counted between double edges.
///
/// Time: O(log bins) for a value. Memory: O(bins).
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
    detent::min_max_observer seen = seen_;
    const detent::min_max_observer batch = detail::observe_batch(seen, x, where);
    if (batch.is_finite()) {
      if (options_.symmetric) {
        observe_magnitudes(x);
      } else {
        histogram_.add(x, batch.range(), where);
      }
    }
    seen_ = seen;  // a batch that is refused was not seen
  }

  /// Throws invalid_argument if nothing, a NaN or an infinity was seen.
  [[nodiscard]] value_range range() const {
    const value_range seen = seen_.range(where);
    if (!options_.symmetric) {
      return detail::percentile_range(histogram_, options_.percentile, seen);
    }
    const std::vector<double> shares = detail::cumulative_shares(magnitude_counts_);
    const float t =
        magnitude_edges_[detail::numpy::search_sorted(shares, options_.percentile / 100.0)];
    return detail::within({-t, t}, seen);
  }

  /// scale_rule::ort of the range; throws what params_from_range throws besides.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ort);
  }

  /// u64 num_bins, f64 percentile, u8 symmetric; the range seen. Symmetric: lists of u64 counts and
  /// f32 edges. Asymmetric: the histogram as entropy_observer has it.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(options_.percentile);
    detail::put_choice(out, options_.symmetric);
    seen_.write(out);
    if (options_.symmetric) {
      detail::put_list(out, magnitude_counts_);
      detail::put_list(out, magnitude_edges_);
    } else {
      histogram_.write(out);
    }
  }
  /// Throws bad_file for what write() has not written.
  void read(detail::byte_reader& in) {
    percentile_options options;
    options.num_bins = in.get_size(detail::largest_histogram);
    options.percentile = in.get<double>();
    options.symmetric = detail::get_choice(in, true, where);
    detail::require_histogram_bins(options.num_bins, where, error_kind::bad_file);
    detail::require_percentile(options.percentile, where, error_kind::bad_file);
    percentile_observer next(options);
    next.seen_.read(in);
    if (options.symmetric) {
      next.read_magnitudes(in);
    } else {
      next.histogram_.read(in, next.seen_.count(), where);
    }
    detail::require_state(
        !next.seen_.is_finite() || !next.magnitude_edges_.empty() || !next.histogram_.is_empty(),
        where, "nothing was counted");
    *this = std::move(next);
  }

  friend bool operator==(const percentile_observer&, const percentile_observer&) = default;

 private:
  static constexpr const char* where = "ort::percentile_observer";

  void read_magnitudes(detail::byte_reader& in) {
    // Growing, a histogram may round its number of bins up.
    constexpr std::uint64_t most = detail::largest_histogram + 2;
    magnitude_counts_ = detail::get_list<std::uint64_t>(in, most);
    magnitude_edges_ = detail::get_finite_list<float>(in, most + 1, where);
    const std::vector<float>& edges = magnitude_edges_;
    if (edges.empty()) {
      detail::require_state(magnitude_counts_.empty(), where, "counts without edges");
      return;
    }
    detail::require_state(edges.size() == magnitude_counts_.size() + 1 &&
                              edges.size() > options_.num_bins &&
                              std::is_sorted(edges.begin(), edges.end()) && edges[0] < edges[1],
                          where, "the edges of the histogram");
    detail::require_state(detail::are_within(magnitude_counts_, seen_.count()), where,
                          "more was counted than was seen");
  }

  void observe_magnitudes(std::span<const float> x) {
    std::vector<float> magnitudes(x.size());
    std::transform(x.begin(), x.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
    const auto [least, largest] = std::minmax_element(magnitudes.begin(), magnitudes.end());
    if (magnitude_edges_.empty()) {
      const detail::numpy::uniform_bins bins(*least, *largest, options_.num_bins, where);
      magnitude_counts_.resize(options_.num_bins);
      bins.count(magnitudes, magnitude_counts_);
      magnitude_edges_ = bins.edges();
      return;
    }
    std::vector<double> edges(magnitude_edges_.begin(), magnitude_edges_.end());
    if (*largest > magnitude_edges_.back()) {
      const float width = magnitude_edges_[1] - magnitude_edges_[0];
      const float first = magnitude_edges_.back() + width;
      const float end = *largest + width;
      detail::require_bins(static_cast<float>(edges.size()) + (end - first) / width, where);
      const std::vector<double> appended = detail::numpy::arange(first, end, width);
      edges.insert(edges.end(), appended.begin(), appended.end());
    }
    magnitude_counts_.resize(edges.size() - 1);
    detail::numpy::count_between(edges, magnitudes, magnitude_counts_);
    magnitude_edges_.resize(edges.size());
    std::transform(edges.begin(), edges.end(), magnitude_edges_.begin(),
                   [](double edge) { return static_cast<float>(edge); });
  }

  percentile_options options_;
  detent::min_max_observer seen_;
  detail::symmetric_histogram histogram_;
  std::vector<std::uint64_t> magnitude_counts_;
  std::vector<float> magnitude_edges_;
};

}  // namespace ort
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_ORT_HPP
