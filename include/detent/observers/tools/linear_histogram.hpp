// SPDX-License-Identifier: BSD-3-Clause
// The growing histogram of the calibrators of ONNX Runtime and Intel Neural Compressor, and the
// searches on it that both tools share.
#ifndef DETENT_OBSERVERS_TOOLS_LINEAR_HISTOGRAM_HPP
#define DETENT_OBSERVERS_TOOLS_LINEAR_HISTOGRAM_HPP

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
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/observers/batch_extent.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/observers/tools/numpy_arithmetic.hpp>
#include <detent/observers/tools/parity.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The largest number of bins. A histogram that would grow further, because of one huge value in a
/// late batch, is refused.
inline constexpr std::size_t largest_histogram = std::size_t{1} << 22;
/// The largest number of bins of a histogram that entropy_search searches: half the bins are
/// candidates of half the bins on average, 2^32 in all (largest_search).
inline constexpr std::size_t largest_entropy_histogram = std::size_t{1} << 17;

inline void require_bins(float bins, std::size_t largest, const char* where) {
  require(bins <= static_cast<float>(largest), error_kind::unsupported, where,
          ": the histogram would grow to ", bins, " bins, more than ", largest,
          "; the largest value of the first batch is too small for those that followed");
}

/// Counts values in bins of equal width on -threshold .. threshold. A batch with a larger magnitude
/// adds whole bins of (about) the same width at both ends; the old counts keep their place.
class symmetric_histogram {
 public:
  /// It begins with `bins` bins and grows to at most `largest`.
  explicit symmetric_histogram(std::size_t bins, std::size_t largest = largest_histogram)
      : first_bins_(bins), largest_(largest) {}

  /// Counts the values of a batch, which is finite and not empty and whose range is `range`. Throws
  /// unsupported if it would grow too far, overflow if it would count more than 2^48 values.
  void add(std::span<const float> x, value_range range, const char* where) {
    require_room(counts_, x.size(), where);
    const float magnitude = std::max(std::fabs(range.lower), std::fabs(range.upper));
    const bool is_first = bins_.edges().empty();
    if (is_first || (magnitude > threshold_ && threshold_ == 0.0F)) {
      bins_ = numpy::uniform_bins(-magnitude, magnitude, first_bins_, where);
      counts_.resize(first_bins_);
      threshold_ = magnitude;
    } else if (magnitude > threshold_) {
      grow(magnitude, where);
    }
    bins_.count(x, counts_);
  }

  /// Adds the counts of another histogram, which has grown with the same batches. Throws
  /// invalid_argument if it has other edges, overflow if it would count more than 2^48 values.
  void merge(const symmetric_histogram& other, const char* where) {
    require(threshold_ == other.threshold_ && counts_.size() == other.counts_.size() &&
                is_empty() == other.is_empty(),
            error_kind::invalid_argument, where,
            ": merging a histogram that has grown with other batches");
    require_room(counts_, total_of(other.counts_), where);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      counts_[i] += other.counts_[i];
    }
  }

  /// The counts of the bins; empty if nothing was counted.
  [[nodiscard]] const std::vector<std::uint64_t>& counts() const noexcept { return counts_; }
  [[nodiscard]] const std::vector<float>& edges() const noexcept { return bins_.edges(); }

  [[nodiscard]] bool is_empty() const noexcept { return edges().empty(); }

  /// Appends u8 whether something was counted, and if so f32 threshold, u64 bins, u64 counts.
  void write(byte_writer& out) const {
    put_choice(out, !is_empty());
    if (!is_empty()) {
      out.put(threshold_);
      put_list(out, counts_);
    }
  }
  /// Reads what write() appended, into a histogram that has counted nothing. The counts must add up
  /// to at most `most`.
  void read(byte_reader& in, std::uint64_t most, const char* where) {
    if (!get_choice(in, true, where)) {
      return;
    }
    threshold_ = in.get<float>();
    counts_ = get_list<std::uint64_t>(in, largest_);
    require_state(threshold_ >= 0.0F, where, "the threshold is negative");
    require_state(counts_.size() >= first_bins_ && (counts_.size() - first_bins_) % 2 == 0, where,
                  "it does not grow to so many bins");
    require_saved_counts(counts_, most, where);
    bins_ =
        numpy::uniform_bins(-threshold_, threshold_, counts_.size(), where, error_kind::bad_file);
  }

  friend bool operator==(const symmetric_histogram&, const symmetric_histogram&) = default;

 private:
  void grow(float magnitude, const char* where) {
    const std::size_t old_bins = counts_.size();
    const float width = 2.0F * threshold_ / static_cast<float>(old_bins);
    const float added = numpy::floor_divide(magnitude - threshold_, width) + 1.0F;
    require_bins(static_cast<float>(old_bins) + 2.0F * added, largest_, where);
    const auto at_each_end = static_cast<std::size_t>(added);
    const float threshold = rounded_product(added, width) + threshold_;
    numpy::uniform_bins bins(-threshold, threshold, old_bins + 2 * at_each_end, where);
    std::vector<std::uint64_t> counts(old_bins + 2 * at_each_end);
    std::copy(counts_.begin(), counts_.end(),
              counts.begin() + static_cast<std::ptrdiff_t>(at_each_end));
    bins_ = std::move(bins);
    counts_ = std::move(counts);
    threshold_ = threshold;
  }

  std::size_t first_bins_;
  std::size_t largest_;
  float threshold_ = 0.0F;
  numpy::uniform_bins bins_;
  std::vector<std::uint64_t> counts_;
};

/// For each i, the share of all values that lies in bins 0..i. The shares of bins are quotients in
/// double, added up in order.
[[nodiscard]] inline std::vector<double> cumulative_shares(
    const std::vector<std::uint64_t>& counts) {
  const std::uint64_t total = total_of(counts);
  std::vector<double> shares(counts.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    sum += static_cast<double>(counts[i]) / static_cast<double>(total);
    shares[i] = sum;
  }
  return shares;
}

/// `range`, cut to the range of the values that were seen. The ends come from edges of bins and may
/// cross if all values lie in the last bin: 5 .. 4.995. Both tools extend the range by 0 before
/// they compute a scale, after which the ends are in order.
[[nodiscard]] inline value_range within(value_range range, value_range seen) noexcept {
  return {range.lower < seen.lower ? seen.lower : range.lower,
          range.upper > seen.upper ? seen.upper : range.upper};
}

/// The lower edges of the bins in which the cumulative share reaches (100 - percentile) / 200 and 1
/// - (100 - percentile) / 200, cut to `seen`.
[[nodiscard]] inline value_range percentile_range(const symmetric_histogram& histogram,
                                                  double percentile, value_range seen) {
  const std::vector<double> shares = cumulative_shares(histogram.counts());
  const double cut = (100.0 - percentile) / 200.0;
  return within({histogram.edges()[numpy::search_sorted(shares, cut)],
                 histogram.edges()[numpy::search_sorted(shares, 1.0 - cut)]},
                seen);
}

/// The arithmetic that sums up the divergence.
enum class entropy_arithmetic : std::uint8_t {
  numpy,  // quotient, logarithm and product are floats
  scipy,  // scipy.special.rel_entr: each term in double, rounded to float
};

/// Searches the pair of edges, symmetric about the middle of the histogram, between which the
/// counts have the least Kullback-Leibler divergence from their own quantization;
/// ort::entropy_observer has the definition.
class entropy_search {
 public:
  entropy_search(const std::vector<std::uint64_t>& counts, std::size_t quantized_bins,
                 parity behaviour, entropy_arithmetic arithmetic, const char* where)
      : counts_(counts),
        quantized_bins_(quantized_bins),
        behaviour_(behaviour),
        arithmetic_(arithmetic),
        where_(where) {}

  /// Indices of the two edges.
  [[nodiscard]] std::pair<std::size_t, std::size_t> best() {
    const std::size_t bins = counts_.size();
    const std::size_t middle = bins / 2;
    std::pair<std::size_t, std::size_t> edges{};
    float least = 0.0F;
    for (std::size_t half = quantized_bins_ / 2; half <= middle; ++half) {
      const std::size_t first = middle - half;
      const std::size_t last = std::min(middle + half + 1, bins);
      const float divergence = divergence_of(first, last);
      if (half == quantized_bins_ / 2 || divergence < least) {
        least = divergence;
        edges = {first, last};
      }
    }
    return edges;
  }

 private:
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  [[nodiscard]] std::uint64_t sum(std::size_t first, std::size_t last) const noexcept {
    return total_of(std::span(counts_).subspan(first, last - first));
  }

  [[nodiscard]] float divergence_of(std::size_t first, std::size_t last) {
    const std::size_t size = last - first;
    p_.resize(size);
    q_.assign(size, 0.0);
    for (std::size_t i = 0; i < size; ++i) {
      p_[i] = static_cast<double>(counts_[first + i]);
    }
    p_.front() += static_cast<double>(sum(0, first));
    p_.back() += static_cast<double>(sum(last, counts_.size()));

    const std::size_t merged = size / quantized_bins_;
    for (std::size_t group = 0; group < quantized_bins_; ++group) {
      const bool is_last = group + 1 == quantized_bins_;
      const std::size_t begin = group * merged;
      const std::size_t end = is_last ? size : begin + merged;
      const std::size_t spread_end =
          // as published, the bins behind the last whole group get nothing
          behaviour_ == parity::fixed ? end : begin + merged;
      const auto nonzero = std::count_if(p_.begin() + static_cast<std::ptrdiff_t>(begin),
                                         p_.begin() + static_cast<std::ptrdiff_t>(spread_end),
                                         [](double count) { return count != 0.0; });
      if (nonzero == 0) {
        continue;
      }
      const double share =
          static_cast<double>(sum(first + begin, first + end)) / static_cast<double>(nonzero);
      for (std::size_t i = begin; i < spread_end; ++i) {
        q_[i] = behaviour_ == parity::fixed ? (p_[i] != 0.0 ? share : 0.0) : std::floor(share);
      }
    }
    return smooth(p_, smooth_p_) && smooth(q_, smooth_q_) ? divergence() : infinity;
  }

  /// Gives 1e-4 to each zero and takes as much from all others together. Returns false if there are
  /// no others, or (parity::fixed) if a count would not stay positive; as published, that throws
  /// unsupported.
  [[nodiscard]] bool smooth(const std::vector<double>& counts, std::vector<float>& result) const {
    constexpr double given = 1e-4;
    const auto zeros = std::count(counts.begin(), counts.end(), 0.0);
    const auto others = static_cast<std::ptrdiff_t>(counts.size()) - zeros;
    if (others == 0) {
      return false;
    }
    const double taken = given * static_cast<double>(zeros) / static_cast<double>(others);
    result.resize(counts.size());
    bool is_positive = taken < 1.0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      result[i] =
          static_cast<float>(counts[i]) + static_cast<float>(counts[i] == 0.0 ? given : -taken);
      is_positive = is_positive && result[i] > 0.0F;
    }
    require(is_positive || behaviour_ == parity::fixed, error_kind::unsupported, where_,
            ": the tool's assertion fails: ", zeros, " bins are empty, ", others, " are not");
    return is_positive;
  }

  [[nodiscard]] float divergence() {
    const float p_sum = numpy::sum(smooth_p_);
    const float q_sum = numpy::sum(smooth_q_);
    // Neighbours are often equal, empty bins above all, so that the last term is kept. All
    // logarithms are taken together, by vectors.
    logs_.clear();
    for_runs(
        [&](std::size_t i) { logs_.push_back(ratio(smooth_p_[i] / p_sum, smooth_q_[i] / q_sum)); },
        [](std::size_t /*i*/) {});
    active<kernels::exponential_kernels>().log(logs_.data(), logs_.size());
    std::size_t next = 0;
    float term = 0.0F;
    for_runs(
        [&](std::size_t i) {
          term = term_of(smooth_p_[i] / p_sum, smooth_q_[i] / q_sum, logs_[next]);
          ++next;
        },
        [&](std::size_t i) { smooth_p_[i] = term; });
    return numpy::sum(smooth_p_);
  }

  /// Calls begin(i) for each bin whose P or Q differ from those of the bin before, and then each(i)
  /// for every bin. A first bin of zeros begins nothing.
  template <class Begin, class Each>
  void for_runs(const Begin& begin, const Each& each) const {
    float p_before = 0.0F;
    float q_before = 0.0F;
    for (std::size_t i = 0; i < smooth_p_.size(); ++i) {
      if (smooth_p_[i] != p_before || smooth_q_[i] != q_before) {
        p_before = smooth_p_[i];
        q_before = smooth_q_[i];
        begin(i);
      }
      each(i);
    }
  }

  /// p / q in the tool's arithmetic; 1 where term_of() takes no logarithm.
  [[nodiscard]] double ratio(float p, float q) const noexcept {
    if (!(p > 0.0F && q > 0.0F)) {
      return 1.0;
    }
    return arithmetic_ == entropy_arithmetic::numpy
               ? static_cast<double>(p / q)
               : static_cast<double>(p) / static_cast<double>(q);
  }
  /// p * log(p / q), where `log` is the logarithm of ratio().
  [[nodiscard]] float term_of(float p, float q, double log) const noexcept {
    if (!(p > 0.0F && q > 0.0F)) {
      return infinity;
    }
    return arithmetic_ == entropy_arithmetic::numpy
               ? rounded_product(p, static_cast<float>(log))
               : static_cast<float>(rounded_product(static_cast<double>(p), log));
  }

  const std::vector<std::uint64_t>& counts_;
  std::size_t quantized_bins_;
  parity behaviour_;
  entropy_arithmetic arithmetic_;
  const char* where_;
  std::vector<double> p_;
  std::vector<double> q_;
  std::vector<float> smooth_p_;
  std::vector<float> smooth_q_;
  std::vector<double> logs_;
};

/// The common part of both tools' entropy observers: a histogram and the search on it.
class entropy_histogram {
 public:
  entropy_histogram(std::size_t bins, std::size_t quantized_bins, parity behaviour,
                    const char* where)
      : quantized_bins_(quantized_bins),
        behaviour_(behaviour),
        histogram_(first_bins(bins, quantized_bins, behaviour, where), largest_entropy_histogram) {}

  /// How many bins a histogram begins with. Throws an error of `kind` if the options are
  /// impossible.
  static std::size_t first_bins(std::size_t bins, std::size_t quantized_bins, parity behaviour,
                                const char* where, error_kind kind = error_kind::invalid_argument) {
    require(quantized_bins > 0 && bins >= quantized_bins && bins <= largest_entropy_histogram, kind,
            where, ": ", bins, " bins for ", quantized_bins, " quantized ones; there are at most ",
            largest_entropy_histogram);
    const std::size_t first =
        behaviour == parity::fixed ? std::max(bins, sufficient * quantized_bins) : bins;
    require(first <= largest_entropy_histogram, kind, where, ": too many quantized bins, ",
            quantized_bins);
    return first;
  }

  void observe(std::span<const float> x, const char* where) {
    min_max_observer seen = seen_;
    const min_max_observer batch = observe_batch(seen, x, where);
    if (batch.is_finite()) {
      histogram_.add(x, batch.range(), where);
    }
    seen_ = seen;  // a batch that is refused was not seen
  }

  /// Grows with a batch that another histogram counts.
  void follow(const batch_extent& batch, const char* where) {
    histogram_.add({}, batch.range, where);
  }
  /// Adds what another histogram has counted that has grown with the same batches. Throws
  /// invalid_argument if it has other edges.
  void merge(const entropy_histogram& other, const char* where) {
    histogram_.merge(other.histogram_, where);
    seen_.merge(other.seen_);
  }

  [[nodiscard]] value_range range(entropy_arithmetic arithmetic, const char* where) const {
    const value_range seen = seen_.range(where);
    const auto [first, last] =
        entropy_search(histogram_.counts(), quantized_bins_, behaviour_, arithmetic, where).best();
    return within({histogram_.edges()[first], histogram_.edges()[last]}, seen);
  }

  [[nodiscard]] const min_max_observer& seen() const noexcept { return seen_; }

  /// Appends the range seen and the histogram.
  void write(byte_writer& out) const {
    seen_.write(out);
    histogram_.write(out);
  }
  /// Reads what write() appended, into an object that has seen nothing.
  void read(byte_reader& in, const char* where) {
    seen_.read(in);
    histogram_.read(in, seen_.count(), where);
    require_state(!histogram_.is_empty() || !seen_.is_finite(), where, "nothing was counted");
  }

  friend bool operator==(const entropy_histogram&, const entropy_histogram&) = default;

 private:
  static constexpr std::size_t sufficient = 16;

  std::size_t quantized_bins_;
  parity behaviour_;
  symmetric_histogram histogram_;
  min_max_observer seen_;
};

/// Throws an error of `kind` unless the percentile is in 0..100.
inline void require_percentile(double percentile, const char* where,
                               error_kind kind = error_kind::invalid_argument) {
  require(percentile >= 0.0 && percentile <= 100.0, kind, where, ": percentile ", percentile,
          " is not in 0..100");
}
/// Throws an error of `kind` unless the number of bins is in 1..2^22.
inline void require_histogram_bins(std::size_t bins, const char* where,
                                   error_kind kind = error_kind::invalid_argument) {
  require(bins > 0 && bins <= largest_histogram, kind, where, ": ", bins, " bins, not 1..",
          largest_histogram);
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_TOOLS_LINEAR_HISTOGRAM_HPP
