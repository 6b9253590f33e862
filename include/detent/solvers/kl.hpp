// SPDX-License-Identifier: BSD-3-Clause
// A scale solver: the clip value whose quantized distribution has the least Kullback-Leibler
// divergence from the original, among all candidates that a histogram offers.
#ifndef DETENT_SOLVERS_KL_HPP
#define DETENT_SOLVERS_KL_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/quantize.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// What the search needs of a bin, in less memory than a value_bin: there are thousands of them.
struct magnitude_bin {
  float smallest;
  float largest;
  std::uint64_t count;
};

/// The bins of one sign, joined where they are narrower than a given width, with sums over all
/// smaller bins. Sums of counts are doubles: exact below 2^53, else rounded.
struct divergence_side {
  std::vector<double> centre;
  std::vector<double> end;
  std::vector<double> width;
  std::vector<double> count;        // [i]: values in bins before i
  std::vector<double> extent;       // [i]: widths of bins before i
  std::vector<double> information;  // [i]: count * log(count / width) of bins before i
  std::vector<double> log_count;    // of the values in bin i
  std::vector<double> log_width;

  [[nodiscard]] std::size_t size() const noexcept { return centre.size(); }
  [[nodiscard]] double count_of(std::size_t i) const noexcept { return count[i + 1] - count[i]; }

  /// Adds a bin; bins come in ascending order. Bins whose centres round down to the same multiple
  /// of `narrowest` become one.
  void add(const magnitude_bin& bin, double narrowest) {
    const double w = value_bin{.smallest = bin.smallest}.end() - static_cast<double>(bin.smallest);
    // Half of a power of two is exact: the sum is rounded once.
    const double c = static_cast<double>(bin.smallest) + 0.5 * w;
    if (size() != 0 && (c < surely_joined_ || std::floor(c / narrowest) == last_multiple_)) {
      end.back() = bin.largest;
      count.back() += static_cast<double>(bin.count);
      return;
    }
    last_multiple_ = std::floor(c / narrowest);
    // Far enough below the next multiple, the rounded quotient is below it, too; centres ascend.
    surely_joined_ = rounded_product(last_multiple_ + 1.0, narrowest) * (1.0 - 0x1p-50);
    if (size() == 0) {
      count.push_back(0.0);
    }
    centre.push_back(w < narrowest ? (last_multiple_ + 0.5) * narrowest : c);
    width.push_back((std::max)(w, narrowest));
    end.push_back(bin.largest);
    count.push_back(count.back() + static_cast<double>(bin.count));
  }
  /// Fills in the sums of widths and information, logarithms and places after the last add().
  void finish(double narrowest) {
    extent.assign(1, 0.0);
    information.assign(1, 0.0);
    std::vector<double> logs(size());
    log_count.resize(size());
    log_width = width;
    for (std::size_t i = 0; i < size(); ++i) {
      log_count[i] = count_of(i);
      logs[i] = log_count[i] / width[i];
    }
    const auto& kernels = active<kernels::exponential_kernels>();
    kernels.log(logs.data(), logs.size());
    kernels.log(log_count.data(), log_count.size());
    kernels.log(log_width.data(), log_width.size());
    for (std::size_t i = 0; i < size(); ++i) {
      extent.push_back(extent.back() + width[i]);
      information.push_back(information.back() + rounded_product(count_of(i), logs[i]));
    }
    find_places(narrowest);
  }
  /// How many of the first `last` bins have their centre below `bound`; the first `first` are known
  /// to.
  [[nodiscard]] std::size_t below(double bound, std::size_t first,
                                  std::size_t last) const noexcept {
    const double place = bound * per_place_;
    if (!(place < static_cast<double>(places_.size()))) {
      return static_cast<std::size_t>(
          std::lower_bound(centre.begin() + static_cast<std::ptrdiff_t>(first),
                           centre.begin() + static_cast<std::ptrdiff_t>(last), bound) -
          centre.begin());
    }
    // A step or two from there: bins are about as wide as places.
    std::size_t i = place > 0.0 ? places_[static_cast<std::size_t>(place)] : 0;
    i = (std::min)((std::max)(i, first), last);
    while (i > first && !(centre[i - 1] < bound)) {
      --i;
    }
    while (i < last && centre[i] < bound) {
      ++i;
    }
    return i;
  }

 private:
  /// Notes how many bins have their centre below each multiple of `narrowest`, as far as bins are
  /// dense.
  void find_places(double narrowest) {
    constexpr double most_places = 8192.0;
    if (size() == 0) {
      return;
    }
    per_place_ = 1.0 / narrowest;
    const double end_place = (std::min)(most_places, centre.back() * per_place_ + 1.0);
    places_.resize(static_cast<std::size_t>(end_place));
    std::size_t i = 0;
    for (std::size_t place = 0; place < places_.size(); ++place) {
      const double bound = static_cast<double>(place) * narrowest;
      while (i < size() && centre[i] < bound) {
        ++i;
      }
      places_[place] = static_cast<std::uint32_t>(i);
    }
  }

  double last_multiple_ = -1.0;
  double surely_joined_ = 0.0;  // all centres below this round down to last_multiple_
  double per_place_ = 0.0;
  std::vector<std::uint32_t> places_;
};

/// How many bins of the narrowest width kept span the reference magnitude.
inline constexpr double divergence_bins = 2048.0;

/// Searches the clip value of least divergence; kl() has the definition.
class divergence_search {
 public:
  divergence_search(std::span<const value_bin> bins, value_range range, quant_scheme scheme)
      : range_(range), scheme_(scheme) {
    std::vector<magnitude_bin> of_sign[2];
    take_bins(bins, of_sign);
    const double largest = reference_magnitude(of_sign, range);
    const double narrowest = largest / divergence_bins;
    const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
    const double levels = scheme.symmetric ? std::floor(steps / 2.0) : steps;
    smallest_clip_ = (std::min)(levels / divergence_bins, 1.0) * largest;
    for (std::size_t s = 0; s < 2; ++s) {
      for (const magnitude_bin& bin : of_sign[s]) {
        if (bin.smallest > 0.0F) {
          sides_[s].add(bin, narrowest);
        }
      }
    }
    for (divergence_side& side : sides_) {
      side.finish(narrowest);
      total_ += side.size() == 0 ? 0.0 : side.count.back();
      margin_ += static_cast<double>(side.size() + 1) * 0x1p-41;
    }
  }

  struct result {
    double clip;
    double divergence;
  };
  [[nodiscard]] result run() {
    std::vector<double> candidates;
    for (const divergence_side& side : sides_) {
      candidates.insert(candidates.end(), side.end.begin(), side.end.end());
    }
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    result best{0.0, std::numeric_limits<double>::infinity()};
    if (candidates.empty()) {
      return {0.0, 0.0};
    }
    // Below smallest_clip_, levels would be narrower than the bins, which then tell nothing.
    const auto above = std::lower_bound(candidates.begin(), candidates.end() - 1, smallest_clip_);
    candidates.erase(candidates.begin(), above);
    find_sufficient(candidates);
    // From the largest down, so that of two equally good candidates the one that clips less wins.
    for (std::size_t i = candidates.size(); i-- > 0;) {
      const double divergence = of_clip(candidates[i], best.divergence);
      if (divergence < best.divergence) {
        best = {candidates[i], divergence};
      }
    }
    return best;
  }

 private:
  /// The bins of each sign that are not zeros, ascending in magnitude. Symmetric schemes treat both
  /// signs alike: bins of the same magnitudes become one.
  void take_bins(std::span<const value_bin> bins, std::vector<magnitude_bin> (&of_sign)[2]) const {
    const auto take = [](const value_bin& bin, std::vector<magnitude_bin>& to) {
      if (bin.largest > 0.0F) {
        to.push_back({bin.smallest, bin.largest, bin.count});
      }
    };
    for (std::vector<magnitude_bin>& side : of_sign) {
      side.reserve(bins.size());
    }
    for (std::size_t i = bins.size(); i-- > 0;) {
      if (bins[i].negative) {
        take(bins[i], of_sign[0]);
      }
    }
    for (const value_bin& bin : bins) {
      if (!bin.negative) {
        take(bin, of_sign[1]);
      }
    }
    if (!scheme_.symmetric || of_sign[0].empty()) {
      return;
    }
    std::vector<magnitude_bin> both;
    both.reserve(of_sign[0].size() + of_sign[1].size());
    auto above = of_sign[1].begin();
    for (magnitude_bin bin : of_sign[0]) {
      for (; above != of_sign[1].end() && above->smallest < bin.smallest; ++above) {
        both.push_back(*above);
      }
      if (above != of_sign[1].end() && above->smallest == bin.smallest) {
        bin.largest = (std::max)(bin.largest, above->largest);
        bin.count += above->count;
        ++above;
      }
      both.push_back(bin);
    }
    both.insert(both.end(), above, of_sign[1].end());
    of_sign[0].clear();
    of_sign[1] = std::move(both);
  }

  /// The largest magnitude, halved as long as at most 1e-4 of the values that are not zero are
  /// larger than the half: a few values far out do not decide how narrow the bins of all others
  /// are.
  [[nodiscard]] static double reference_magnitude(const std::vector<magnitude_bin> (&of_sign)[2],
                                                  value_range range) noexcept {
    double largest = static_cast<double>((std::max)(-range.lower, range.upper));
    std::uint64_t all = 0;
    for (const std::vector<magnitude_bin>& side : of_sign) {
      for (const magnitude_bin& bin : side) {
        all += bin.count;
      }
    }
    if (all == 0) {
      return 0.0;
    }
    // Bins ascend: those beyond half a magnitude follow downwards on those beyond the magnitude.
    std::uint64_t beyond = 0;
    std::size_t rest[2] = {of_sign[0].size(), of_sign[1].size()};
    for (;; largest /= 2.0) {
      for (std::size_t s = 0; s < 2; ++s) {
        while (rest[s] != 0 &&
               static_cast<double>(of_sign[s][rest[s] - 1].largest) > largest / 2.0) {
          beyond += of_sign[s][--rest[s]].count;
        }
      }
      if (beyond > all / 10000) {
        return largest;
      }
    }
  }

  /// How many bins of a side end at or below a clip value.
  [[nodiscard]] static std::size_t kept_bins(const divergence_side& side, double clip) noexcept {
    return static_cast<std::size_t>(std::upper_bound(side.end.begin(), side.end.end(), clip) -
                                    side.end.begin());
  }

  /// Tries a few candidates, so that bounds rule out most of the others, also those that are looked
  /// at before the best one.
  void find_sufficient(std::span<const double> candidates) {
    std::size_t first = 0;
    std::size_t last = candidates.size();
    std::size_t best = last - 1;
    for (std::size_t step : {64U, 16U, 4U}) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t i = last; i > first; i -= (std::min)(step, i - first)) {
        const double divergence = of_clip(candidates[i - 1], least);
        if (divergence < least) {
          least = divergence;
          best = i - 1;
        }
      }
      sufficient_ = (std::min)(sufficient_, least);
      first = best - (std::min)(best, step);
      last = (std::min)(candidates.size(), best + step + 1);
    }
  }
  /// Whether a lower bound of total * divergence shows that the computed divergence exceeds that of
  /// a candidate already known. Either is a sum of at most four terms for each bin, whose partial
  /// sums are below 2^8 for each value: rounding changes each of the two sums by less than half of
  /// margin_.
  [[nodiscard]] bool is_hopeless(double bound) const noexcept {
    return bound > rounded_product(sufficient_ + margin_, total_);
  }

  /// The divergence for a clip value, or infinity as soon as it is known to exceed `limit` or that
  /// of another candidate.
  [[nodiscard]] double of_clip(double clip, double limit) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const double lower = (std::max)(-clip, static_cast<double>(range_.lower));
    const double upper = (std::min)(clip, static_cast<double>(range_.upper));
    const double steps = static_cast<double>(scheme_.levels.qmax) - scheme_.levels.qmin;
    const double bottom = (std::min)(lower, 0.0);
    const double top = (std::max)(upper, 0.0);
    const double scale =
        scheme_.symmetric ? clip / std::floor(steps / 2.0) : (top - bottom) / steps;

    std::size_t kept_count[2];
    double kept = 0.0;
    double tails[2];
    for (int s = 0; s < 2; ++s) {
      const divergence_side& side = sides_[s];
      kept_count[s] = kept_bins(side, clip);
      kept += kept_count[s] == 0 ? 0.0 : side.count[kept_count[s]];
      tails[s] = side.size() == 0 ? 0.0 : side.count.back() - side.count[kept_count[s]];
      if (tails[s] != 0.0 && kept_count[s] == 0) {
        return infinity;  // no bin is left to take the clipped values
      }
    }
    // Level 0 holds bins of both sides.
    std::size_t first[2];
    double mass_of_zero = 0.0;
    double extent_of_zero = 0.0;
    for (int s = 0; s < 2; ++s) {
      first[s] = sides_[s].below(0.5 * scale, 0, kept_count[s]);
      if (first[s] != 0) {
        mass_of_zero += sides_[s].count[first[s]];
        extent_of_zero += sides_[s].extent[first[s]];
      }
    }
    // All logarithms that are not those of levels are taken at once.
    struct clipped_side {
      double p;
      double q;
      double density;
    };
    clipped_side clipped[2];
    constexpr std::size_t of_side = 4;
    double logs[2 + 2 * of_side];
    std::fill(std::begin(logs), std::end(logs), 1.0);
    logs[0] = kept / total_;
    logs[1] = mass_of_zero > 0.0 ? mass_of_zero / extent_of_zero : 1.0;
    for (std::size_t s = 0; s < 2; ++s) {
      const divergence_side& side = sides_[s];
      if (tails[s] == 0.0) {
        continue;
      }
      const std::size_t last = kept_count[s] - 1;
      const double level = std::floor(side.centre[last] / scale + 0.5);
      const std::size_t begin = side.below((level - 0.5) * scale, 0, kept_count[s]);
      double mass = side.count[kept_count[s]] - side.count[begin];
      double extent = side.extent[kept_count[s]] - side.extent[begin];
      if (level == 0.0 && first[1 - s] != 0) {  // level 0 has bins of both sides
        mass += sides_[1 - s].count[first[1 - s]];
        extent += sides_[1 - s].extent[first[1 - s]];
      }
      clipped_side& c = clipped[s];
      const double with_tail = side.count_of(last) + tails[s];
      c.p = with_tail / total_;
      c.density = mass / extent;
      c.q = (std::min)(c.density * side.width[last] / kept, 1.0);
      double* const own = logs + 2 + of_side * s;
      own[0] = with_tail;
      own[1] = c.density;
      own[2] = c.p / c.q;
      own[3] = c.p < 1.0 && c.q < 1.0 ? (1.0 - c.p) / (1.0 - c.q) : 1.0;
    }
    kernels_.log(logs, std::size(logs));
    const double all_clipped = tails[0] + tails[1];
    // Q sums up to kept / total: the divergence of Q divided by its sum, and this.
    const double lost = -logs[0] - all_clipped / total_;
    double sum = -all_clipped;
    // P adds the clipped values to the last bin of their side; Q does not have them.
    for (std::size_t s = 0; s < 2; ++s) {
      const divergence_side& side = sides_[s];
      if (tails[s] == 0.0) {
        continue;
      }
      const clipped_side& c = clipped[s];
      const double* const own = logs + 2 + of_side * s;
      const std::size_t last = kept_count[s] - 1;
      const double count = side.count_of(last);
      sum +=
          rounded_product(count + tails[s], own[0]) - rounded_product(count, side.log_count[last]);
      sum -= rounded_product(tails[s], side.log_width[last] + own[1]);
      // The divergence of the coarser distribution with two events, the last bin and everything
      // else, is a lower bound.
      const double rest = c.p < 1.0 && c.q < 1.0 ? rounded_product(1.0 - c.p, own[3]) : 0.0;
      if (rounded_product(c.p, own[2]) + rest + lost > limit) {
        return infinity;
      }
    }
    sum -= mass_of_zero > 0.0 ? rounded_product(mass_of_zero, logs[1]) : 0.0;
    // The information of a level's bins is no less than that of the level as one bin (the log sum
    // inequality): what the first levels have is a lower bound.
    double bound = sum;
    for (std::size_t s = 0; s < 2; ++s) {
      bound += first[s] == 0 ? 0.0 : sides_[s].information[first[s]];
    }
    // Both sides in turn: the levels next to zero lose most.
    level_cursor cursors[2];
    for (std::size_t s = 0; s < 2; ++s) {
      cursors[s].bin = first[s];
      masses_[s].resize(kept_count[s] + 1);
      logs_[s].resize(kept_count[s] + 1);
    }
    while (cursors[0].bin < kept_count[0] || cursors[1].bin < kept_count[1]) {
      for (std::size_t s = 0; s < 2; ++s) {
        if (cursors[s].bin == kept_count[s]) {
          continue;
        }
        if (is_hopeless(bound)) {
          return infinity;
        }
        bound += add_levels(s, cursors[s], scale, kept_count[s]);
      }
    }
    if (is_hopeless(bound)) {
      return infinity;
    }
    for (std::size_t s = 0; s < 2; ++s) {
      sum += kept_count[s] == 0 ? 0.0 : sides_[s].information[kept_count[s]];
      for (std::size_t i = 0; i < cursors[s].count; ++i) {
        sum -= rounded_product(masses_[s][i], logs_[s][i]);
      }
    }
    return (std::max)(sum / total_, 0.0);
  }
  /// Where a pass over the levels of a side is.
  struct level_cursor {
    std::size_t bin = 0;    // the first bin of the next level
    std::size_t count = 0;  // the levels with bins that the pass has seen
    double level = 1.0;     // the next level
  };
  /// Takes the next levels of a side: the mass and the logarithm of the density of each that has
  /// bins. Returns how much information they lose.
  [[nodiscard]] double add_levels(std::size_t s, level_cursor& cursor, double scale,
                                  std::size_t kept) {
    const divergence_side& side = sides_[s];
    double* const masses = masses_[s].data() + cursor.count;
    double* const logs = logs_[s].data() + cursor.count;
    const std::size_t begin = cursor.bin;
    std::size_t at = begin;
    std::size_t n = 0;
    for (; at < kept && n < levels_at_once; ++cursor.level) {
      const std::size_t next = side.below((cursor.level + 0.5) * scale, at, kept);
      const double mass = side.count[next] - side.count[at];
      masses[n] = mass;
      logs[n] = next > at ? mass / (side.extent[next] - side.extent[at]) : 1.0;
      n += next > at ? 1 : 0;
      at = next;
    }
    kernels_.log(logs, n);
    cursor.bin = at;
    cursor.count += n;
    return side.information[at] - side.information[begin] - product_sum(masses, logs, n);
  }
  /// The sum of a[i] * b[i] in an order that does not wait for each addition.
  [[nodiscard]] static double product_sum(const double* a, const double* b,
                                          std::size_t n) noexcept {
    double sums[4] = {};
    std::size_t i = 0;
    for (; i + 4 <= n; i += 4) {
      for (std::size_t k = 0; k < 4; ++k) {
        sums[k] += a[i + k] * b[i + k];
      }
    }
    for (; i < n; ++i) {
      sums[0] += a[i] * b[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  static constexpr std::size_t levels_at_once = 16;

  const kernels::exponential_kernels& kernels_ = active<kernels::exponential_kernels>();
  value_range range_;
  quant_scheme scheme_;
  divergence_side sides_[2];  // negative, positive
  double smallest_clip_ = 0.0;
  double total_ = 0.0;
  double margin_ = 0.0;  // 2^-41 for each bin; a rounding is at most 2^8 * 2^-53 for each term
  // A divergence that a candidate is known to have.
  double sufficient_ = std::numeric_limits<double>::infinity();
  // Each side has a count for each level, and the logarithm of count / width.
  std::vector<double> masses_[2];
  std::vector<double> logs_[2];
};

}  // namespace detail

/// Finds the clip value T of least Kullback-Leibler divergence (in nats) between the distribution P
/// of the values, clipped at T, and its quantized version Q, which lacks the clipped values.
/// Candidates for T are the ends of all bins. With M the reference magnitude (the largest
/// magnitude, halved as long as at most 1e-4 of the values that are not zero exceed the half):
///
///     bins   those of the histogram; where they are narrower than M / 2048, groups of that
///            width, so that levels near zero do not have more bins than others
///     scale  T / (levels on one side) for symmetric schemes, else
///            (min(T, upper) - max(-T, lower)) / (qmax - qmin), the range including zero
///     P      the counts of the bins up to T; those beyond are added to the last bin of their
///            side
///     Q      the counts of the bins up to T, shared out anew within each level: in proportion
///            to the widths of the bins that are not empty and whose centre rounds to that level
///
/// P and Q are divided by the number of all values, so that Q sums up to less than 1 if values are
/// clipped, and the divergence is the one for sums that differ:
///
///     sum of P log(P / Q) - P + Q
///
/// If a part t of the values is clipped, that is t^2 / 2 + t^3 / 3 + ... more than for a Q divided
/// by its own sum: next to nothing for a few values far out. Without it, a T that clips all values
/// but those of one bin would have no divergence at all, as both were the same single bin.
///
/// The range seen, cut to [-T, T], gives the parameters by the canonical rule (params_from_range).
/// Candidates below M * min(levels / 2048, 1) are not judged, except the largest candidate. Zeros,
/// which every grid can represent, and values below 2^-30 of the largest magnitude do not count. A
/// lower bound of the divergence rules out most other candidates early, which does not change the
/// result.
///
/// The evidence's objective is the divergence. `bins` must ascend and be those of a histogram with
/// the given range. Throws invalid_argument if there are no bins, for bins whose magnitudes,
/// counts or sums are impossible in this range, or where params_from_range() does. Thread-safe.
///
/// Sources: after Migacz, "8-bit inference with TensorRT", GTC 2017, with densities in place of
/// bins of one width; Csiszar, "Why least squares and maximum entropy?" (1991), for sums that
/// differ.
[[nodiscard]] inline scale_solution kl(std::span<const value_bin> bins, value_range range,
                                       quant_scheme scheme) {
  // Checks the range and the grid.
  const quant_params whole = params_from_range(range, scheme);
  require(!bins.empty(), error_kind::invalid_argument, "kl: there are no values");
  detail::require_bins_of(bins, range, histogram::largest_count, "kl");
  const detail::divergence_search::result best =
      detail::divergence_search(bins, range, scheme).run();
  const auto clip = static_cast<float>(best.clip);
  scale_solution s;
  // If all values are zero or count as zero, the whole range stays.
  s.params = clip > 0.0F ? params_from_range(detail::clipped(range, clip), scheme) : whole;
  s.evidence.method = "kl";
  s.evidence.objective = best.divergence;
  s.evidence.lower = range.lower;
  s.evidence.upper = range.upper;
  std::uint64_t clipped = 0;
  for (const value_bin& bin : bins) {
    s.evidence.count += bin.count;
    clipped += clip > 0.0F && bin.largest > clip ? bin.count : 0;
  }
  s.evidence.clipped_fraction =
      static_cast<double>(clipped) / static_cast<double>(s.evidence.count);
  return s;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_KL_HPP
