// SPDX-License-Identifier: BSD-3-Clause
// An observer whose range leaves out a small share of the values at either end.
#ifndef DETENT_OBSERVERS_PERCENTILE_HPP
#define DETENT_OBSERVERS_PERCENTILE_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/scale_rules.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of percentile_observer.
struct percentile_options {
  double percentile = 99.99;  ///< share of the values inside the range, in percent, in (0, 100]
  /// Whether asymmetric schemes, too, use the percentile q of the magnitudes: the range is then the
  /// range seen, extended to 0 and cut to [-q, q].
  bool absolute = false;
  /// Whether a second pass finds the exact order statistics. One pass gives the outer end of the
  /// bin in which an order statistic lies, at most 1/512 too far out.
  bool exact = false;
};

/// The range between two order statistics of the values, or up to one order statistic of their
/// magnitudes. With n values and rank r = quantile_rank(percentile / 100, n):
///
///     asymmetric             lower = value of rank n + 1 - r, upper = value of rank r
///     symmetric or absolute  the range seen, extended to 0 and cut to [-q, q], where
///                            q = magnitude of rank r
///
/// The canonical rule makes the parameters from that range. For asymmetric ranges the percentile
/// must be over 50. Values below 2^-30 of the largest magnitude share a bin and are not told apart,
/// not even with two passes: if a rank falls among them, the end of the range is that bound. The
/// same holds for denormal values below 2^-135.
///
/// Memory: 252 KiB with dense storage, and in the second pass 128 KiB for each of up to three bins.
/// The result does not depend on the order of values or batches. Not thread-safe: use one per
/// thread, then merge().
class percentile_observer {
 public:
  /// Values are never refused, also NaN and infinities.
  static constexpr bool takes_any_batch = true;

  /// Throws invalid_argument if the percentile is not in (0, 100].
  explicit percentile_observer(percentile_options options = {},
                               bin_storage storage = bin_storage::dense)
      : options_(options), histogram_(storage) {
    require(options.percentile > 0.0 && options.percentile <= 100.0, error_kind::invalid_argument,
            "percentile_observer: the percentile ", options.percentile, " is not in (0, 100]");
  }

  /// How many passes over the data are needed: 2 if the options say exact, else 1.
  [[nodiscard]] std::size_t phases() const noexcept { return options_.exact ? 2 : 1; }
  /// Announces that pass `phase` begins; a call for phase 0 does nothing. Throws invalid_argument
  /// for a phase that there is not, or if the first pass has seen nothing, a NaN or an infinity.
  void begin_phase(std::size_t phase) {
    if (phase == 0) {
      return;
    }
    require(options_.exact && phase == 1, error_kind::invalid_argument,
            "percentile_observer: there is no phase ", phase);
    static_cast<void>(histogram_.range(where));  // the error has the observer's name
    const std::vector<value_bin> bins = histogram_.bins();
    const std::uint64_t count = histogram_.count();
    for (std::size_t which = 0; which < aims_.size(); ++which) {
      const bool of_magnitudes = which == 2;
      aims_[which] =
          aim_at(of_magnitudes ? magnitudes(bins) : bins, rank_of_end(which, count), of_magnitudes);
    }
    second_ = true;
  }

  /// Observes one batch. In the first pass, NaN and infinities are counted and make range() and
  /// finalize() throw; in the second they are ignored. Throws invalid_argument for null data,
  /// overflow for more than 2^48 values.
  void observe(std::span<const float> x) {
    if (!second_) {
      histogram_.observe(x);
      return;
    }
    require(x.empty() || x.data() != nullptr, error_kind::invalid_argument,
            "percentile_observer: null data with size ", x.size());
    for (const float value : x) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
      for (aim& a : aims_) {
        if (!a.counts.empty() && magnitude >> shift == a.key &&
            (a.both_signs || a.negative == (bits >> 31 != 0))) {
          ++a.counts[magnitude & mask];
        }
      }
    }
  }
  /// Observes one batch on several threads in the first pass, as the histogram does, and on the
  /// calling thread in the second. The result is that of one thread.
  void observe(std::span<const float> x, const parallel_for& parallel) {
    if (second_) {
      observe(x);
    } else {
      histogram_.observe(x, parallel);
    }
  }

  /// Afterwards this observer is in the state it would have if it had also seen, in the current
  /// pass, what `other` has seen. Throws invalid_argument if the two are in different passes, or if
  /// their first passes led to different bins; overflow for more than 2^48 values. Then nothing has
  /// changed. The options of this observer stay.
  void merge(const percentile_observer& other) {
    require(second_ == other.second_, error_kind::invalid_argument,
            "percentile_observer: merging the first pass with the second");
    if (!second_) {
      histogram_.merge(other.histogram_);
      return;
    }
    for (std::size_t i = 0; i < aims_.size(); ++i) {  // all of them before anything is changed
      const aim& a = aims_[i];
      const aim& b = other.aims_[i];
      require(a.key == b.key && a.rank == b.rank && a.count == b.count &&
                  a.negative == b.negative && a.counts.size() == b.counts.size(),
              error_kind::invalid_argument,
              "percentile_observer: merging second passes over different data");
    }
    for (std::size_t i = 0; i < aims_.size(); ++i) {
      for (std::size_t k = 0; k < aims_[i].counts.size(); ++k) {
        aims_[i].counts[k] += other.aims_[i].counts[k];
      }
    }
  }

  /// The histogram of the first pass.
  [[nodiscard]] const count_histogram& histogram() const noexcept { return histogram_; }

  /// The range for a symmetric or an asymmetric scheme. Throws invalid_argument if nothing, a NaN
  /// or an infinity was seen, if the percentile of an asymmetric range is not over 50, or if the
  /// second pass of an exact percentile has not seen the data of the first.
  [[nodiscard]] value_range range(bool symmetric) const {
    const value_range seen = histogram_.range(where);
    require(second_ || !options_.exact, error_kind::invalid_argument,
            "percentile_observer: the second pass has not begun");
    if (symmetric || options_.absolute) {
      const float q = outer_end(2, true);
      return detail::clipped(seen, q);
    }
    require(options_.percentile > 50.0, error_kind::invalid_argument,
            "percentile_observer: the percentile ", options_.percentile,
            " of an asymmetric range is not over 50");
    return {outer_end(0, false), outer_end(1, true)};
  }

  /// The canonical scale and zero point of range(). The evidence's objective is the clipped
  /// fraction: the share of the values outside the range extended to 0, counted by whole bins.
  /// After a second pass, the values of the bins that hold the ends of the range are counted one by
  /// one, but for those below 2^-30 of the largest magnitude. Throws what range() and
  /// params_from_range() throw.
  [[nodiscard]] scale_solution finalize(quant_scheme scheme) const {
    const value_range r = range(scheme.symmetric);
    scale_solution s;
    s.params = params_from_range(r, scheme);
    s.evidence.method = options_.absolute ? "absolute_percentile" : "percentile";
    s.evidence.count = histogram_.count();
    s.evidence.lower = histogram_.range().lower;
    s.evidence.upper = histogram_.range().upper;
    s.evidence.clipped_fraction =
        static_cast<double>(count_outside(reference::including_zero(r), scheme.symmetric)) /
        static_cast<double>(s.evidence.count);
    s.evidence.objective = s.evidence.clipped_fraction;
    return s;
  }

  /// Appends f64 percentile, u8 absolute, u8 exact, and the histogram. Throws unsupported in the
  /// second pass, whose state cannot be saved.
  void write(detail::byte_writer& out) const {
    require(!second_, error_kind::unsupported,
            "percentile_observer: the second pass cannot be saved");
    out.put(options_.percentile);
    out.put(static_cast<std::uint8_t>(options_.absolute));
    out.put(static_cast<std::uint8_t>(options_.exact));
    histogram_.write(out);
  }
  /// Replaces the options and the state by those that write() appended. Throws bad_file for an
  /// impossible state.
  void read(detail::byte_reader& in) {
    percentile_options options;
    options.percentile = in.get<double>();
    options.absolute = in.get<std::uint8_t>() != 0;
    options.exact = in.get<std::uint8_t>() != 0;
    require(options.percentile > 0.0 && options.percentile <= 100.0, error_kind::bad_file,
            "percentile_observer: the percentile ", options.percentile, " is not in (0, 100]");
    histogram_.read(in);
    options_ = options;
    second_ = false;
  }

 private:
  static constexpr const char* where = "percentile_observer";
  static constexpr int shift = kernels::bin_dropped_bits;
  static constexpr std::uint32_t mask = (1U << shift) - 1U;

  /// A bin whose values are counted one by one in the second pass.
  struct aim {
    std::uint32_t key = 0;  // the upper bits of its magnitudes
    bool negative = false;
    bool both_signs = false;
    std::uint64_t rank = 0;   // within the bin, ascending
    std::uint64_t count = 0;  // of the values that the first pass has seen in the bin
    // [lower bits of the magnitude]; empty if the bin is one value
    std::vector<std::uint64_t> counts;
  };

  /// The rank of an end of the range; `which` is as for outer_end(). The ends of an asymmetric
  /// range do not cross, although a percentile next to 50 may be taken as 50.
  [[nodiscard]] std::uint64_t rank_of_end(std::size_t which, std::uint64_t count) const {
    const std::uint64_t rank = quantile_rank(options_.percentile / 100.0, count);
    const std::uint64_t upper = (std::max)(rank, count / 2 + 1);
    return which == 2 ? rank : which == 1 ? upper : count + 1 - upper;
  }

  /// How many values lie outside a range that range() returned: those of bins that lie outside as a
  /// whole, and those counted one by one in bins that the second pass looked into.
  [[nodiscard]] std::uint64_t count_outside(value_range r, bool symmetric) const {
    std::uint64_t outside = 0;
    for (const value_bin& bin : histogram_.bins()) {
      const value_range b = bin.range();
      outside += b.upper < r.lower || b.lower > r.upper ? bin.count : 0;
    }
    for (std::size_t i = 0; i < aims_.size() && second_; ++i) {
      const bool of_magnitudes = symmetric || options_.absolute;
      if (of_magnitudes != (i == 2)) {
        continue;
      }
      for (std::uint32_t place = 0; place < aims_[i].counts.size(); ++place) {
        const auto magnitude = std::bit_cast<float>(aims_[i].key << shift | place);
        const float x = aims_[i].negative && !of_magnitudes ? -magnitude : magnitude;
        const bool is_outside = of_magnitudes ? x > (std::max)(-r.lower, r.upper)
                                : i == 0      ? x < r.lower
                                              : x > r.upper;
        outside += is_outside ? aims_[i].counts[place] : 0;
      }
    }
    return outside;
  }

  /// The bin that holds the value of a rank.
  static aim aim_at(std::span<const value_bin> bins, std::uint64_t rank, bool both_signs) {
    aim a;
    a.both_signs = both_signs;
    std::uint64_t below = 0;
    for (const value_bin& bin : bins) {
      if (rank - below <= bin.count) {
        a.rank = rank - below;
        a.count = bin.count;
        a.negative = bin.negative;
        if (bin.largest > bin.smallest && bin.smallest > 0.0F) {
          a.key = std::bit_cast<std::uint32_t>(bin.smallest) >> shift;
          a.counts.resize(mask + 1);
        }
        return a;
      }
      below += bin.count;
    }
    return a;
  }

  /// An order statistic, or where it is not known exactly the outer end of its bin. `which` is the
  /// index in aims_: 0 lower end, 1 upper end, 2 magnitude.
  [[nodiscard]] float outer_end(std::size_t which, bool upper) const {
    const std::uint64_t rank = rank_of_end(which, histogram_.count());
    const std::vector<value_bin> bins = histogram_.bins();
    const aim& a = aims_[which];
    if (second_ && !a.counts.empty()) {
      std::uint64_t all = 0;
      for (const std::uint64_t n : a.counts) {
        all += n;
      }
      require(all == a.count, error_kind::invalid_argument,
              "percentile_observer: the second pass has not seen the data of the first");
      // From the smallest value up: for negative values, that is from the largest magnitude down.
      std::uint64_t below = 0;
      for (std::uint32_t i = 0; i <= mask; ++i) {
        const std::uint32_t place = a.negative && !a.both_signs ? mask - i : i;
        below += a.counts[place];
        if (below >= a.rank) {
          const auto magnitude = std::bit_cast<float>(a.key << shift | place);
          return a.negative && !a.both_signs ? -magnitude : magnitude;
        }
      }
    }
    const value_range r = order_statistic(which == 2 ? magnitudes(bins) : bins, rank);
    return upper ? r.upper : r.lower;
  }

  percentile_options options_;
  count_histogram histogram_;
  bool second_ = false;
  std::array<aim, 3> aims_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_PERCENTILE_HPP
