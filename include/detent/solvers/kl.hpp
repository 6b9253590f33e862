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

/// The bins of one sign, joined where they are narrower than a given width, with sums over all
/// smaller bins.
struct divergence_side {
  std::vector<double> centre;
  std::vector<double> end;
  std::vector<double> width;
  std::vector<std::uint64_t> count;  // [i]: values in bins before i
  std::vector<double> extent;        // [i]: widths of bins before i
  std::vector<double> information;   // [i]: count * log(count / width) of bins before i

  [[nodiscard]] std::size_t size() const noexcept { return centre.size(); }
  [[nodiscard]] std::uint64_t count_of(std::size_t i) const noexcept {
    return count[i + 1] - count[i];
  }

  /// Adds a bin; bins come in ascending order. Bins whose centres round down to the same multiple
  /// of `narrowest` become one.
  void add(const value_bin& bin, double narrowest) {
    const double w = bin.end() - static_cast<double>(bin.smallest);
    const double c = std::fma(0.5, w, static_cast<double>(bin.smallest));
    const double multiple = std::floor(c / narrowest);
    if (size() == 0) {
      count.push_back(0);
    }
    if (size() != 0 && multiple == last_multiple_) {
      end.back() = bin.largest;
      count.back() += bin.count;
      return;
    }
    last_multiple_ = multiple;
    centre.push_back(w < narrowest ? (multiple + 0.5) * narrowest : c);
    width.push_back((std::max)(w, narrowest));
    end.push_back(bin.largest);
    count.push_back(count.back() + bin.count);
  }
  /// Fills in the sums of widths and information after the last add().
  void finish() {
    extent.assign(1, 0.0);
    information.assign(1, 0.0);
    std::vector<double> logs;
    logs.reserve(size());
    for (std::size_t i = 0; i < size(); ++i) {
      logs.push_back(static_cast<double>(count_of(i)) / width[i]);
    }
    active<kernels::exponential_kernels>().log(logs.data(), logs.size());
    for (std::size_t i = 0; i < size(); ++i) {
      extent.push_back(extent.back() + width[i]);
      information.push_back(information.back() +
                            rounded_product(static_cast<double>(count_of(i)), logs[i]));
    }
  }
  /// How many of the first `last` bins have their centre below `bound`; the first `first` are known
  /// to.
  [[nodiscard]] std::size_t below(double bound, std::size_t first,
                                  std::size_t last) const noexcept {
    return static_cast<std::size_t>(
        std::lower_bound(centre.begin() + static_cast<std::ptrdiff_t>(first),
                         centre.begin() + static_cast<std::ptrdiff_t>(last), bound) -
        centre.begin());
  }

 private:
  double last_multiple_ = -1.0;
};

/// How many bins of the narrowest width kept span the reference magnitude.
inline constexpr double divergence_bins = 2048.0;

/// Searches the clip value of least divergence; kl() has the definition.
class divergence_search {
 public:
  divergence_search(std::span<const value_bin> bins, value_range range, quant_scheme scheme)
      : range_(range), scheme_(scheme) {
    // Symmetric schemes treat both signs alike.
    const std::vector<value_bin> merged =
        scheme.symmetric ? magnitudes(bins) : std::vector<value_bin>(bins.begin(), bins.end());
    const double largest = reference_magnitude(merged, range);
    const double narrowest = largest / divergence_bins;
    const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
    const double levels = scheme.symmetric ? std::floor(steps / 2.0) : steps;
    smallest_clip_ = (std::min)(levels / divergence_bins, 1.0) * largest;
    for (const value_bin& bin : merged) {
      if (!bin.negative && bin.smallest > 0.0F) {
        sides_[1].add(bin, narrowest);
      }
    }
    for (std::size_t i = merged.size(); i-- > 0;) {
      if (merged[i].negative && merged[i].smallest > 0.0F) {
        sides_[0].add(merged[i], narrowest);
      }
    }
    for (divergence_side& side : sides_) {
      side.finish();
      total_ += side.size() == 0 ? 0 : side.count.back();
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
    // From the largest down, so that of two equally good candidates the one that clips less wins.
    // Below smallest_clip_, levels would be narrower than the bins, which then tell nothing.
    for (std::size_t i = candidates.size(); i-- > 0;) {
      if (candidates[i] < smallest_clip_ && i + 1 < candidates.size()) {
        break;
      }
      const double divergence = of_clip(candidates[i], best.divergence);
      if (divergence < best.divergence) {
        best = {candidates[i], divergence};
      }
    }
    return best;
  }

 private:
  /// The largest magnitude, halved as long as at most 1e-4 of the values that are not zero are
  /// larger than the half: a few values far out do not decide how narrow the bins of all others
  /// are.
  [[nodiscard]] static double reference_magnitude(std::span<const value_bin> bins,
                                                  value_range range) noexcept {
    double largest = static_cast<double>((std::max)(-range.lower, range.upper));
    std::uint64_t all = 0;
    for (const value_bin& bin : bins) {
      all += bin.largest > 0.0F ? bin.count : 0;
    }
    while (largest > 0.0) {
      std::uint64_t beyond = 0;
      for (const value_bin& bin : bins) {
        beyond += static_cast<double>(bin.largest) > largest / 2.0 ? bin.count : 0;
      }
      if (beyond > all / 10000) {
        break;
      }
      largest /= 2.0;
    }
    return largest;
  }

  /// How many bins of a side end at or below a clip value.
  [[nodiscard]] static std::size_t kept_bins(const divergence_side& side, double clip) noexcept {
    return static_cast<std::size_t>(std::upper_bound(side.end.begin(), side.end.end(), clip) -
                                    side.end.begin());
  }

  /// The divergence for a clip value, or infinity as soon as it is known to exceed `limit`.
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
    for (int s = 0; s < 2; ++s) {
      const divergence_side& side = sides_[s];
      kept_count[s] = kept_bins(side, clip);
      kept += kept_count[s] == 0 ? 0.0 : static_cast<double>(side.count[kept_count[s]]);
    }
    const double total = static_cast<double>(total_);
    double sum = rounded_product(total, portable_log(kept / total));
    // P adds the clipped values to the last bin of their side; Q does not have them.
    for (int s = 0; s < 2; ++s) {
      const divergence_side& side = sides_[s];
      const double tail = side.size() == 0
                              ? 0.0
                              : static_cast<double>(side.count.back() - side.count[kept_count[s]]);
      if (tail == 0.0) {
        continue;
      }
      if (kept_count[s] == 0) {
        return infinity;  // no bin is left to take the clipped values
      }
      const std::size_t last = kept_count[s] - 1;
      const double level = std::floor(side.centre[last] / scale + 0.5);
      const std::size_t first = side.below((level - 0.5) * scale, 0, kept_count[s]);
      double mass = static_cast<double>(side.count[kept_count[s]] - side.count[first]);
      double extent = side.extent[kept_count[s]] - side.extent[first];
      const divergence_side& other = sides_[1 - s];
      if (level == 0.0 && kept_count[1 - s] != 0) {  // level 0 has bins of both sides
        const std::size_t shared = other.below(0.5 * scale, 0, kept_count[1 - s]);
        mass += static_cast<double>(other.count[shared]);
        extent += other.extent[shared];
      }
      const double count = static_cast<double>(side.count_of(last));
      const double with_tail = count + tail;
      sum += rounded_product(with_tail, portable_log(with_tail)) -
             rounded_product(count, portable_log(count));
      sum -= rounded_product(tail, portable_log(side.width[last]) + portable_log(mass / extent));
      // The divergence of the coarser distribution with two events, the last bin and everything
      // else, is a lower bound.
      const double p = with_tail / total;
      const double q = (std::min)(mass / extent * side.width[last] / kept, 1.0);
      const double rest =
          p < 1.0 && q < 1.0 ? rounded_product(1.0 - p, portable_log((1.0 - p) / (1.0 - q))) : 0.0;
      if (rounded_product(p, portable_log(p / q)) + rest > limit) {
        return infinity;
      }
    }
    // Level 0 holds bins of both sides.
    std::size_t first[2];
    double mass = 0.0;
    double extent = 0.0;
    for (int s = 0; s < 2; ++s) {
      first[s] = sides_[s].below(0.5 * scale, 0, kept_count[s]);
      if (first[s] != 0) {
        mass += static_cast<double>(sides_[s].count[first[s]]);
        extent += sides_[s].extent[first[s]];
      }
    }
    sum -= mass > 0.0 ? rounded_product(mass, portable_log(mass / extent)) : 0.0;
    for (int s = 0; s < 2; ++s) {
      const divergence_side& side = sides_[s];
      sum += kept_count[s] == 0 ? 0.0 : side.information[kept_count[s]];
      masses_.clear();
      logs_.clear();
      for (double level = 1.0; first[s] < kept_count[s]; ++level) {
        const std::size_t next = side.below((level + 0.5) * scale, first[s], kept_count[s]);
        if (next > first[s]) {
          const double m = static_cast<double>(side.count[next] - side.count[first[s]]);
          masses_.push_back(m);
          logs_.push_back(m / (side.extent[next] - side.extent[first[s]]));
        }
        first[s] = next;
      }
      active<kernels::exponential_kernels>().log(logs_.data(), logs_.size());
      for (std::size_t i = 0; i < logs_.size(); ++i) {
        sum -= rounded_product(masses_[i], logs_[i]);
      }
    }
    return (std::max)(sum / total, 0.0);
  }

  value_range range_;
  quant_scheme scheme_;
  divergence_side sides_[2];  // negative, positive
  double smallest_clip_ = 0.0;
  std::uint64_t total_ = 0;
  // Of the levels of one side: the counts, and the logarithms of counts / widths.
  std::vector<double> masses_;
  std::vector<double> logs_;
};

}  // namespace detail

/// Finds the clip value T of least Kullback-Leibler divergence (in nats) between the distribution P
/// of the values, clipped at T, and its quantized version Q. Candidates for T are the ends of all
/// bins. With M the reference magnitude (the largest magnitude, halved as long as at most 1e-4 of
/// the values that are not zero exceed the half):
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
/// P and Q are divided by their sums. The range seen, cut to [-T, T], gives the parameters by the
/// canonical rule (params_from_range). Candidates below M * levels / 2048 are not judged, except
/// the largest candidate. Zeros, which every grid can represent, and values below 2^-30 of the
/// largest magnitude do not count. Of all other candidates most are ruled out by a lower bound of
/// their divergence.
///
/// The evidence's objective is the divergence. `bins` must ascend and be those of a histogram with
/// the given range. Throws invalid_argument if there are no bins, for bins that no histogram with
/// this range has, or where params_from_range() does.
/// Thread-safe.
///
/// Source: after Migacz, "8-bit inference with TensorRT", GTC 2017, with densities in place of bins
/// of one width.
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
