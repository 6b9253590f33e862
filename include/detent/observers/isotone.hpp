// SPDX-License-Identifier: BSD-3-Clause
// An observer for the outputs of classifiers: it looks for a scale that keeps the order of the
// largest values of each row.
#ifndef DETENT_OBSERVERS_ISOTONE_HPP
#define DETENT_OBSERVERS_ISOTONE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/rows.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of isotone_observer.
struct isotone_options {
  /// The scheme that finalize() will be called with.
  quant_scheme scheme = asymmetric<std::uint8_t>;
  /// How many of the largest values of a row must be apart from the next one.
  std::size_t top_k = 1;
  /// The axis along which rows run; negative values count from the last.
  std::ptrdiff_t axis = -1;
};

/// Looks for the scale with which the top_k largest values of the most rows are neither clipped nor
/// close together. A row is a run of values along the axis; its values are taken as L1 >= L2 >=
/// ..., as magnitudes if the scheme is symmetric. With c levels above the zero point, a row fits a
/// scale s if
///
///     L2 / (c - 0.51) <= s <= 2 * min over j <= k of (Lj - max(Lj+1, 0))
///
/// since then L2 is not clipped and neighbours are at least half a step apart. (Neighbours that are
/// less than one step apart may still get the same level.) These intervals are
/// collected in two histograms, one of their lower and one of their upper ends. finalize() tests
/// the ends of bins, where the number of rows is known exactly, and returns the smallest scale that
/// the most rows surely fit. If all scales near 0 are such, as for rows with a single positive
/// value, it returns the largest one up to the scale of the range seen. Its evidence has
///
///     objective    share of rows for which that is not certain, 1 - rows(s) / rows
///     lower_bound  no scale has a smaller share
///
/// If no row has such an interval, the parameters are those of the range seen. Symmetric schemes
/// take one pass. Asymmetric ones take two: the first finds the range, which fixes the zero point
/// by the canonical rule, the second looks at the rows. Memory: 504 KiB. The result does not depend
/// on batches or their order, as long as rows stay whole. Not thread-safe: use one per thread, then
/// merge().
///
/// Source: PPQ's isotone observer, which has k = 1 and zero point 0 (ppq::isotone_observer
/// reproduces it to the bit); larger k, zero points and bounded memory are our own.
class isotone_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Throws invalid_argument if top_k is 0 or for a grid that params_from_range() refuses.
  explicit isotone_observer(isotone_options options = {}) : options_(options) {
    require(options.top_k > 0, error_kind::invalid_argument, "isotone_observer: top_k is 0");
    // Checks the grid.
    static_cast<void>(params_from_range({0.0F, 1.0F}, options.scheme));
    cap_ = half_levels();
  }

  /// How many passes over the data are needed: 1 for symmetric schemes, else 2.
  [[nodiscard]] std::size_t phases() const noexcept { return options_.scheme.symmetric ? 1 : 2; }
  /// Announces that pass `phase` begins; a call for phase 0 does nothing. Throws invalid_argument
  /// for a phase that there is not, or if the first pass has seen nothing, a NaN or an infinity.
  void begin_phase(std::size_t phase) {
    if (phase == 0) {
      return;
    }
    require(phase < phases(), error_kind::invalid_argument, "isotone_observer: there is no phase ",
            phase);
    zero_point_ = params_from_range(range_.range("isotone_observer"), options_.scheme).zero_point;
    cap_ = options_.scheme.levels.qmax - zero_point_;
    second_ = true;
  }

  /// Observes rows along the axis of the options. A view of rank 0 is one row of one value,
  /// whatever the axis; an empty view changes nothing. A row with a NaN or an infinity makes
  /// finalize() throw. Throws invalid_argument for null data or an axis that the view does not
  /// have.
  void observe(tensor_view<const float> x) {
    if (x.size() == 0) {
      return;
    }
    const bool is_single = x.rank == 0;
    if (is_single) {
      const std::size_t shape[] = {1};
      x = tensor_view<const float>(x.data, shape);
    }
    require(x.data != nullptr, error_kind::invalid_argument,
            "isotone_observer: null data with size ", x.size());
    // The axis is swapped with the last one, so that rows can be walked.
    const auto rank = static_cast<std::ptrdiff_t>(x.rank);
    const std::ptrdiff_t axis = is_single           ? 0
                                : options_.axis < 0 ? options_.axis + rank
                                                    : options_.axis;
    require(axis >= 0 && axis < rank, error_kind::invalid_argument, "isotone_observer: axis ",
            options_.axis, " of a tensor of rank ", rank);
    std::swap(x.shape[static_cast<std::size_t>(axis)], x.shape[x.rank - 1]);
    std::swap(x.strides[static_cast<std::size_t>(axis)], x.strides[x.rank - 1]);
    detail::for_each_row(
        x, [&](const float* row, std::size_t n, std::ptrdiff_t stride, const auto& /*index*/) {
          values_.resize(n);
          for (std::size_t i = 0; i < n; ++i) {
            values_[i] = row[static_cast<std::ptrdiff_t>(i) * stride];
          }
          if (!second_) {
            range_.observe(values_);
          }
          if (second_ || options_.scheme.symmetric) {
            observe_row();
          }
        });
  }
  /// Observes a single row.
  void observe(std::span<const float> x) {
    const std::size_t shape[] = {x.size()};
    observe(tensor_view<const float>(x.data(), shape));
  }

  /// Afterwards this observer is in the state it would have if it had also seen the rows of
  /// `other`. Throws invalid_argument if the options, the pass, or the zero point of the second
  /// pass differ.
  void merge(const isotone_observer& other) {
    require(options_.top_k == other.options_.top_k && options_.axis == other.options_.axis &&
                second_ == other.second_ &&
                options_.scheme.symmetric == other.options_.scheme.symmetric &&
                options_.scheme.levels == other.options_.scheme.levels && cap_ == other.cap_,
            error_kind::invalid_argument,
            "isotone_observer: merging other options or another pass");
    if (!second_) {
      range_.merge(other.range_);
    }
    lower_.merge(other.lower_);
    upper_.merge(other.upper_);
    rows_ = detail::saturating_sum(rows_, other.rows_);
  }

  /// How many rows were observed in the pass that counts rows.
  [[nodiscard]] std::uint64_t count_rows() const noexcept { return rows_; }

  /// The scale and zero point, with the evidence that the class describes. Throws
  /// invalid_argument if `scheme` is not that of the options, if the second pass of an asymmetric
  /// scheme has not begun or has seen nothing, or if nothing, a NaN or an infinity was seen.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    require(
        scheme.symmetric == options_.scheme.symmetric && scheme.levels == options_.scheme.levels,
        error_kind::invalid_argument, "isotone_observer: it was made for another scheme");
    const value_range seen = range_.range("isotone_observer");
    require(second_ || scheme.symmetric, error_kind::invalid_argument,
            "isotone_observer: the second pass has not begun");
    require(rows_ > 0 || !second_, error_kind::invalid_argument,
            "isotone_observer: the second pass has not seen the data of the first");
    scale_solution s;
    s.params = params_from_range(seen, scheme);
    s.evidence.method = "isotone";
    s.evidence.count = range_.count();
    s.evidence.lower = seen.lower;
    s.evidence.upper = seen.upper;
    if (lower_.count() == 0) {
      s.evidence.objective = rows_ > 0 ? 1.0 : 0.0;
      s.evidence.lower_bound = s.evidence.objective;
      return s;
    }
    // The number of rows that allow a scale: those whose intervals begin at or below it, less those
    // whose intervals end below it.
    const std::vector<value_bin> begins = lower_.bins();
    const std::vector<value_bin> ends = upper_.bins();
    const float widest = s.params.scale;  // clips nothing
    std::uint64_t begun = 0;
    std::uint64_t ended_surely = 0;   // below the candidate
    std::uint64_t ended_perhaps = 0;  // at or below the candidate
    std::size_t sure = 0;
    std::size_t perhaps = 0;
    std::uint64_t most = 0;
    std::uint64_t bound = 0;
    for (const value_bin& bin : begins) {
      const value_range b = bin.range();
      while (sure < ends.size() && ends[sure].range().upper < b.lower) {
        ended_surely += ends[sure++].count;
      }
      const float candidate = (std::max)(b.upper, std::numeric_limits<float>::min());
      while (perhaps < ends.size() && ends[perhaps].range().lower < candidate) {
        ended_perhaps += ends[perhaps++].count;
      }
      begun += bin.count;
      bound = (std::max)(bound, begun - ended_surely);
      const std::uint64_t now = begun - (std::min)(begun, ended_perhaps);
      if (now > most) {
        most = now;
        s.params.zero_point = scheme.symmetric ? s.params.zero_point : zero_point_;
        // The rows fit all scales below the first end of an interval.
        s.params.scale = b.upper > 0.0F
                             ? candidate
                             : (std::max)((std::min)(widest, ends[0].range().lower), candidate);
      }
    }
    s.evidence.objective = 1.0 - static_cast<double>(most) / static_cast<double>(rows_);
    s.evidence.lower_bound = 1.0 - static_cast<double>(bound) / static_cast<double>(rows_);
    return s;
  }

  /// Appends i32 qmin, i32 qmax, u8 symmetric, u8 whether the second pass has begun, u64 top_k, i64
  /// axis, i32 zero point, u64 rows, and the states of the range and of both histograms.
  void write(detail::byte_writer& out) const {
    out.put(options_.scheme.levels.qmin);
    out.put(options_.scheme.levels.qmax);
    out.put(static_cast<std::uint8_t>(options_.scheme.symmetric));
    out.put(static_cast<std::uint8_t>(second_));
    out.put(static_cast<std::uint64_t>(options_.top_k));
    out.put(static_cast<std::int64_t>(options_.axis));
    out.put(zero_point_);
    out.put(rows_);
    range_.write(out);
    lower_.write(out);
    upper_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    isotone_options options;
    options.scheme.levels.qmin = in.get<std::int32_t>();
    options.scheme.levels.qmax = in.get<std::int32_t>();
    options.scheme.symmetric = in.get<std::uint8_t>() != 0;
    const bool second = in.get<std::uint8_t>() != 0;
    options.top_k = in.get_size(std::uint64_t{1} << 32);
    options.axis = static_cast<std::ptrdiff_t>(in.get<std::int64_t>());
    const auto zero_point = in.get<std::int32_t>();
    const auto rows = in.get<std::uint64_t>();
    detail::require_levels_for_range(options.scheme, "isotone_observer", error_kind::bad_file);
    const bool has_zero_point =
        zero_point >= options.scheme.levels.qmin && zero_point <= options.scheme.levels.qmax;
    require(options.top_k > 0 &&
                (second ? has_zero_point && !options.scheme.symmetric : zero_point == 0),
            error_kind::bad_file, "isotone_observer: the state is impossible");
    isotone_observer next(options);
    next.second_ = second;
    next.zero_point_ = zero_point;
    next.cap_ = second ? options.scheme.levels.qmax - zero_point : next.cap_;
    next.rows_ = rows;
    next.range_.read(in);
    next.lower_.read(in);
    next.upper_.read(in);
    require(next.lower_.count() == next.upper_.count() && next.lower_.count() <= rows &&
                next.are_intervals(),
            error_kind::bad_file, "isotone_observer: the state is impossible");
    *this = std::move(next);
  }

 private:
  /// The number of levels on the shorter side of the middle of the grid.
  [[nodiscard]] std::int32_t half_levels() const noexcept {
    const grid levels = options_.scheme.levels;
    const std::int32_t middle = (levels.qmin + levels.qmax + 1) >> 1;
    return (std::min)(levels.qmax - middle, middle - levels.qmin);
  }

  /// Whether the histograms may hold the ends of intervals: finite values of which no more upper
  /// ends than lower ends surely lie below any value. Sums of such histograms are such histograms.
  [[nodiscard]] bool are_intervals() const {
    if (lower_.count() == 0) {
      return true;
    }
    if (lower_.count_nan() + lower_.count_infinite() + upper_.count_nan() +
            upper_.count_infinite() !=
        0) {
      return false;
    }
    const std::vector<value_bin> ends = upper_.bins();
    std::size_t next = 0;
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    for (const value_bin& bin : lower_.bins()) {
      while (next < ends.size() && ends[next].range().upper < bin.range().lower) {
        ended += ends[next++].count;
      }
      if (ended > begun) {
        return false;
      }
      begun += bin.count;
    }
    return true;
  }

  void add_row() noexcept { rows_ = detail::saturating_sum(rows_, std::uint64_t{1}); }

  void observe_row() {
    for (const float value : values_) {
      if (!std::isfinite(value)) {
        add_row();  // range() will throw for this row
        return;
      }
    }
    add_row();
    if (options_.scheme.symmetric) {
      for (float& value : values_) {
        value = std::fabs(value);
      }
    }
    const std::size_t first = options_.top_k < values_.size() ? options_.top_k + 1 : values_.size();
    std::partial_sort(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(first),
                      values_.end(), std::greater<>());
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double gap = infinity;
    for (std::size_t i = 0; i + 1 < first; ++i) {
      const double next = (std::max)(values_[i + 1], 0.0F);
      gap = (std::min)(gap, static_cast<double>(values_[i]) - next);
    }
    // A row of one value has no order to keep.
    const double second = first > 1 ? (std::max)(static_cast<double>(values_[1]), 0.0) : 0.0;
    const double lower = cap_ > 0 ? second / (cap_ - 0.51) : infinity;
    const double upper = 2.0 * gap;
    if (!(lower < upper) || !(values_[0] > 0.0F)) {
      return;
    }
    // The ends are rounded inwards, so that the interval of floats lies within the exact one.
    constexpr float largest = std::numeric_limits<float>::max();
    auto begin = static_cast<float>((std::min)(lower, static_cast<double>(largest)));
    begin = static_cast<double>(begin) < lower ? std::nextafter(begin, largest) : begin;
    auto end = upper > static_cast<double>(largest) ? largest : static_cast<float>(upper);
    end = static_cast<double>(end) > upper ? std::nextafter(end, 0.0F) : end;
    if (begin <= end) {
      lower_.observe(std::span<const float>(&begin, 1));
      upper_.observe(std::span<const float>(&end, 1));
    }
  }

  isotone_options options_;
  std::int32_t cap_ = 0;  // levels above the zero point
  std::int32_t zero_point_ = 0;
  bool second_ = false;
  std::uint64_t rows_ = 0;
  min_max_observer range_;
  count_histogram lower_;      // the smallest possible scale of each row
  count_histogram upper_;      // the largest possible scale of each row
  std::vector<float> values_;  // the row being observed
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_ISOTONE_HPP
