// SPDX-License-Identifier: BSD-3-Clause
// The calibrators of ONNX Runtime's quantization tool, with the same ranges to the bit.
//
// A call of observe() stands for a call of collect_data() of the tool: a batch, or several batches
// that the tool would have read at once, one behind the other. How values are split into such calls
// matters to every observer here except the min_max_observer without moving average.
//
// A batch with a NaN or an infinity makes range() throw; the tool leaves out NaN where it takes the
// extremes of a batch, and fails on infinities. An empty batch changes nothing; the tool includes 0
// in the range, or fails. Objects are values and not thread-safe; use one per thread.
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
#include <detent/observers/batch_extent.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/linear_histogram.hpp>
#include <detent/observers/tools/numpy_arithmetic.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// Observers that reproduce the calibrators of ONNX Runtime's quantization tool.
namespace ort {

/// Options of ort::min_max_observer.
struct min_max_options {
  bool symmetric = false;            ///< whether ranges are made symmetric about 0
  bool moving_average = false;       ///< whether ranges are averaged instead of united
  float averaging_constant = 0.01F;  ///< weight of the newest collection, in 0..1
  /// How many batches one collection holds; 0: all of them. Only the moving average depends on it.
  /// The tool's quantize_static() makes one collection of all batches unless it is given a stride
  /// (CalibStridedMinMax), and so never uses the averaging constant.
  std::size_t batches_per_collection = 1;
  friend bool operator==(const min_max_options&, const min_max_options&) = default;
};

/// Reproduces MinMaxCalibrater. With lower_i and upper_i of batch i, the range is
///
///     plain           (min_i lower_i, max_i upper_i)
///     moving average  (mean of lower_i, mean of upper_i) of each collection; the first one is the
///                     average, then average += averaging_constant * (collection - average)
///     symmetric       (-m, m), m = max(|lower|, |upper|), of each collection before it is averaged
///
/// in float: the mean adds up as np.mean does, and every operation is rounded. Batches matter to
/// the moving average alone, which keeps two floats for each batch of the collection that has
/// begun. Not thread-safe.
class min_max_observer {
 public:
  /// Throws invalid_argument unless averaging_constant is in 0..1.
  explicit min_max_observer(min_max_options options = {}) : options_(options) {
    detail::require_averaging_constant(options.averaging_constant, where);
  }

  /// How many passes over the data are needed: 1.
  [[nodiscard]] static constexpr std::size_t phases() noexcept { return 1; }
  /// Allowed for phase 0 as long as nothing was observed, otherwise throws invalid_argument.
  void begin_phase(std::size_t phase) {
    detail::require_next_phase(phase, 0, phases(), seen_.count() > 0, where);
  }

  /// Observes one batch; an empty one changes nothing, a NaN or an infinity makes range() throw.
  /// Throws invalid_argument for null data, or if the batch ends a collection and the average
  /// overflows a float; then the batch was not seen.
  void observe(std::span<const float> x) {
    detent::min_max_observer seen = seen_;
    const detent::min_max_observer batch = detail::observe_batch(seen, x, where);
    if (options_.moving_average && batch.is_finite()) {
      add_to_collection(batch.range());
    }
    seen_ = seen;  // a batch that is refused was not seen
  }

  /// Whether merge() works with the options, in any order: not for a moving average.
  [[nodiscard]] bool merges_in_any_order() const noexcept { return !options_.moving_average; }
  /// Afterwards this observer is in the state it would have if it had also seen everything that
  /// `other` has seen. Throws invalid_argument if the options differ, unsupported for a moving
  /// average, which depends on the order of batches.
  void merge(const min_max_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    require(merges_in_any_order(), error_kind::unsupported, where,
            ": a moving average cannot be merged");
    seen_.merge(other.seen_);
  }

  /// The range of everything observed. Throws invalid_argument if nothing, a NaN or an infinity was
  /// seen, or if the average overflows a float.
  [[nodiscard]] value_range range() const {
    const value_range seen = seen_.range(where);
    if (!options_.moving_average) {
      return symmetrized(seen);
    }
    const value_range average = lower_.empty() ? average_ : with_collection();
    detail::require_finite_average(average, where);
    return average;
  }

  /// Scale and zero point of range() by scale_rule::ort. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(range(), scheme, scale_rule::ort);
  }

  /// Appends u8 symmetric, u8 moving_average, f32 averaging_constant, u64 batches_per_collection;
  /// the range seen; lists of f32 lower and upper ends of the batches of the collection that has
  /// begun; u8 whether there is an average, and f32 its ends.
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
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
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
  void add_to_collection(value_range batch) {
    lower_.push_back(batch.lower);
    upper_.push_back(batch.upper);
    if (lower_.size() != options_.batches_per_collection) {
      return;
    }
    const value_range average = with_collection();
    if (!detail::is_finite(average)) {
      lower_.pop_back();
      upper_.pop_back();
    }
    detail::require_finite_average(average, where);
    average_ = average;
    has_average_ = true;
    lower_.clear();
    upper_.clear();
  }
  /// The average, with the collection that has begun as its newest one.
  [[nodiscard]] value_range with_collection() const noexcept {
    const value_range mean =
        symmetrized({detail::numpy::mean(lower_), detail::numpy::mean(upper_)});
    return has_average_ ? detail::moving_average(average_, mean, options_.averaging_constant)
                        : mean;
  }

  min_max_options options_;
  detent::min_max_observer seen_;
  std::vector<float> lower_;  // lower ends of the batches of the collection that has begun
  std::vector<float> upper_;  // their upper ends
  value_range average_;
  bool has_average_ = false;
};

/// Options of ort::entropy_observer.
struct entropy_options {
  std::size_t num_bins = 128;            ///< bins of the histogram that the first batch makes
  std::size_t num_quantized_bins = 128;  ///< groups that candidates are quantized to
  bool symmetric = false;  ///< accepted like in the tool, where it makes no difference either
  /// Whether the tool's bugs are reproduced or repaired.
  parity behaviour = parity::as_published;
  friend bool operator==(const entropy_options&, const entropy_options&) = default;
};

/// Reproduces EntropyCalibrater. It keeps a histogram of `num_bins` bins on -m .. m, m = max |x| of
/// the first batch. When a batch exceeds it, h = floor((max |x| - m) / w) + 1 bins are added at
/// each end, where w = 2 m / bins, and m grows by h * w. Values are counted in the histogram as it
/// is when they come.
///
/// Candidates are the pairs of edges middle - i and min(middle + i + 1, bins) for i =
/// num_quantized_bins / 2 .. middle, where middle = bins / 2. Each candidate has
///
///     P  the counts between the edges, with all that lies outside added to the first and the last
///     Q  the counts between the edges in num_quantized_bins groups of size / num_quantized_bins
///        bins, the last of which also holds the rest; every bin of a group becomes the group's
///        count divided by the number of its P that are not zero
///
/// Zeros of either become 1e-4, which is taken from all other bins, and P and Q are normalized. The
/// candidate with the least sum of P * log(P / Q) wins, the first of several. The result is cut to
/// the range that was seen. All of it is in float. Logarithms are rounded correctly except for one
/// in some millions; so the tool, whose logarithms vary with the processor, may choose otherwise
/// where candidates differ in their last bits.
///
/// Bugs of the tool:
/// - With the default of 128 bins there is one candidate, the whole histogram, as long as it has
///   not grown.
/// - Q is cut to integers, so that sparse groups become zeros, and is given to bins whose P is
///   zero.
/// - The bins behind the last whole group get no Q, though their counts are in it.
/// - If there are more than 10^4 empty bins for each one that is not empty, an assertion fails;
///   then range() throws unsupported.
///
/// parity::fixed begins with at least 16 * num_quantized_bins bins, does not cut Q, spreads it only
/// over the bins whose P is not zero, including those behind the last whole group, and passes over
/// candidates that fail the assertion.
///
/// Time: O(bins^2) for range(). Memory: O(bins). Not thread-safe; observers merge() after all have
/// observed or followed the same batches.
class entropy_observer {
 public:
  /// Throws invalid_argument unless 0 < num_quantized_bins <= num_bins <= 2^17, or if parity::fixed
  /// would begin with more than 2^17 bins.
  explicit entropy_observer(entropy_options options = {})
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
  void merge(const entropy_observer& other) {
    require(options_ == other.options_, error_kind::invalid_argument, where,
            ": merging other options");
    histogram_.merge(other.histogram_, where);
  }

  /// The range of the best candidate. Throws invalid_argument if nothing, a NaN or an infinity was
  /// seen, and unsupported where the tool's assertion fails.
  [[nodiscard]] value_range range() const {
    return histogram_.range(detail::entropy_arithmetic::numpy, where);
  }

  /// Scale and zero point, by scale_rule::ort, of range() extended by 0. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(reference::including_zero(range()), scheme, scale_rule::ort);
  }

  /// Appends u64 num_bins, u64 num_quantized_bins, u8 symmetric, u8 behaviour; the range seen; u8
  /// whether something was counted, and if so f32 threshold, u64 bins, u64 counts.
  void write(detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(options_.num_bins));
    out.put(static_cast<std::uint64_t>(options_.num_quantized_bins));
    detail::put_choice(out, options_.symmetric);
    detail::put_choice(out, options_.behaviour);
    histogram_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    entropy_options options;
    options.num_bins = in.get_size(detail::largest_entropy_histogram);
    options.num_quantized_bins = in.get_size(detail::largest_entropy_histogram);
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

/// Options of ort::percentile_observer.
struct percentile_options {
  std::size_t num_bins = 2048;  ///< bins of the histogram that the first batch makes
  double percentile = 99.999;   ///< share of the values inside the range, in percent, in 0..100
  /// Whether the range is symmetric about 0. The default is that of quantize_static(); the
  /// calibrator itself defaults to false.
  bool symmetric = true;
  friend bool operator==(const percentile_options&, const percentile_options&) = default;
};

/// Reproduces PercentileCalibrater.
///
///     symmetric   A histogram of |x| in num_bins bins on min |x| .. max |x| of the first batch.
///                 Bins of the width of the first one are appended when a batch exceeds it;
///                 values below the first batch's least are not counted. The range is (-t, t),
///                 where t is the lower edge of the bin in which the cumulative share reaches
///                 percentile / 100.
///     asymmetric  The histogram of entropy_observer. The range is the lower edges of the bins in
///                 which the cumulative share reaches (100 - percentile) / 200 and 1 minus that.
///
/// The result is cut to the range that was seen; where all values lie in the last bin, its lower
/// end may then be above the upper one. Shares are in double. Edges are in float, except those that
/// the symmetric histogram appends: a batch that appends is counted between double edges.
///
/// Time: O(log bins) for a value. Memory: O(bins). Not thread-safe; observers merge() after all
/// have observed or followed the same batches.
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

  /// Grows the histogram with a batch that another observer counts. Throws unsupported if it would
  /// grow beyond 2^22 bins.
  void follow(const batch_extent& batch) {
    if (options_.symmetric) {
      magnitude_edges_ = as_floats(grown_edges(batch.least_magnitude, batch.largest_magnitude()));
      magnitude_counts_.resize(magnitude_edges_.size() - 1);
    } else {
      histogram_.add({}, batch.range, where);
    }
  }
  /// Adds what `other` has counted. Both must have observed or followed the same batches, in the
  /// same order. Throws invalid_argument if the options differ, or the edges of the histograms,
  /// overflow if more than 2^48 values would be counted.
  void merge(const percentile_observer& other) {
    require(options_ == other.options_ && magnitude_edges_ == other.magnitude_edges_,
            error_kind::invalid_argument, where,
            ": merging other options, or a histogram that has grown with other batches");
    histogram_.merge(other.histogram_, where);
    detail::require_room(magnitude_counts_, detail::total_of(other.magnitude_counts_), where);
    for (std::size_t i = 0; i < magnitude_counts_.size(); ++i) {
      magnitude_counts_[i] += other.magnitude_counts_[i];
    }
    seen_.merge(other.seen_);
  }

  /// The range that the class describes. Throws invalid_argument if nothing, a NaN or an infinity
  /// was seen.
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

  /// Scale and zero point, by scale_rule::ort, of range() extended by 0. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] quant_params finalize(quant_scheme scheme) const {
    return params_from_range(reference::including_zero(range()), scheme, scale_rule::ort);
  }

  /// Appends u64 num_bins, f64 percentile, u8 symmetric; the range seen; if symmetric, lists of u64
  /// counts and f32 edges, else the histogram as entropy_observer appends it.
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
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
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
    // A histogram that grows may round its number of bins up.
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
    detail::require_saved_counts(magnitude_counts_, seen_.count(), where);
  }

  void observe_magnitudes(std::span<const float> x) {
    detail::require_room(magnitude_counts_, x.size(), where);
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
    const std::vector<double> edges = grown_edges(*least, *largest);
    magnitude_counts_.resize(edges.size() - 1);
    detail::numpy::count_between(edges, magnitudes, magnitude_counts_);
    magnitude_edges_ = as_floats(edges);
  }

  /// The edges for a batch of magnitudes: those there are, or the first ones, and those that the
  /// batch appends.
  [[nodiscard]] std::vector<double> grown_edges(float least, float largest) const {
    if (magnitude_edges_.empty()) {
      const detail::numpy::uniform_bins bins(least, largest, options_.num_bins, where);
      return {bins.edges().begin(), bins.edges().end()};
    }
    std::vector<double> edges(magnitude_edges_.begin(), magnitude_edges_.end());
    if (largest > magnitude_edges_.back()) {
      const float width = magnitude_edges_[1] - magnitude_edges_[0];
      const float first = magnitude_edges_.back() + width;
      const float end = largest + width;
      detail::require_bins(static_cast<float>(edges.size()) + (end - first) / width,
                           detail::largest_histogram, where);
      const std::vector<double> appended = detail::numpy::arange(first, end, width);
      edges.insert(edges.end(), appended.begin(), appended.end());
    }
    return edges;
  }
  [[nodiscard]] static std::vector<float> as_floats(const std::vector<double>& edges) {
    std::vector<float> floats(edges.size());
    std::transform(edges.begin(), edges.end(), floats.begin(),
                   [](double edge) { return static_cast<float>(edge); });
    return floats;
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
