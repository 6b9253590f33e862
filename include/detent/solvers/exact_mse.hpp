// SPDX-License-Identifier: BSD-3-Clause
// A scale solver: the scale and zero point with the least squared error that exists, together with
// a proof.
//
// For fixed levels k_i the best scale is b / c and its error square_sum - b^2 / c (see
// detail::assignment), whichever levels those are. The least error of all is therefore square_sum
// less the largest b^2 / c of the levels met as the scale falls from beyond the largest value to 0.
// At the scale |x_i| / (k - 1/2) element i steps from level k - 1 to k; that adds |x_i| to b and 2k
// - 1 to c.
//
// Between two scales upper > lower with known b and c, a step at scale t adds t / 2 to b for each 1
// that it adds to c, so that along the way
//
//     b <= b(upper) + upper / 2 * (c - c(upper))       b <= b(lower) - lower / 2 * (c(lower) - c)
//
// and b^2 / c, which is convex in c along either line, is bounded by its values at the ends of the
// lines and where they cross. Intervals are halved, the most promising first, until they hold few
// steps, which are then taken one by one, or until no bound exceeds the best value found.
//
// Sources: the sweep over breakpoints is that of Idelbayev, Molchanov, Shen, Yin, Carreira-Perpinan
// and Alvarez, "Optimal quantization using scaled codebook", CVPR 2021; the bounds are our own.
#ifndef DETENT_SOLVERS_EXACT_MSE_HPP
#define DETENT_SOLVERS_EXACT_MSE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The largest b^2 / c found, in units squared, with the scale that reaches it.
struct best_assignment {
  double gain = 0.0;
  double scale = 0.0;  // in real size, not in units
  std::size_t candidate = 0;
};

/// Searches the largest b^2 / c over all scales and several zero points, which differ in how far
/// the grid reaches to either side. The effect of a scale on one side is computed once for all of
/// them.
class assignment_search {
 public:
  assignment_search(const distribution& d, std::vector<level_caps> candidates)
      : d_(d), candidates_(std::move(candidates)) {
    for (const level_caps& caps : candidates_) {
      negative_ = (std::max)(negative_, static_cast<std::size_t>(caps.negative));
      positive_ = (std::max)(positive_, static_cast<std::size_t>(caps.positive));
    }
  }

  best_assignment run() {
    // Steps are at the values divided by k - 1/2, none of them above twice the largest value.
    double largest = 0.0;
    for (const distribution_side* side : {&d_.negative(), &d_.positive()}) {
      largest = side->size() != 0 ? (std::max)(largest, side->values.back()) : largest;
    }
    const double top = std::nextafter(2.0 * largest, std::numeric_limits<double>::infinity());
    // If next to no error is left, the search ends.
    const double most = d_.square_sum() / (d_.unit() * d_.unit()) * (1.0 - 1e-13);
    // The first scale that is tried clips nothing. It is near the best one with many levels, and
    // where several scales leave no error, it is the finest of them, which serves biases best.
    rungs_.push_back(end_rung(top));
    rungs_.push_back(end_rung(0.0));
    add_differences(rungs_[1], rungs_[0]);
    const std::size_t whole = add_rung(scale_of_range(), 0, 1);
    interval above{0, whole, 0.0, {}};
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      above.alive.push_back(i);
      consider(rungs_[whole].at[i], i);
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      consider(rungs_[1].at[i], i);
    }
    interval below{whole, 1, 0.0, above.alive};
    push(std::move(above));
    push(std::move(below));
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), less_promising);
      const interval i = std::move(heap_.back());
      heap_.pop_back();
      if (!(i.bound > threshold()) || best_.gain >= most) {
        break;  // no other interval can do better
      }
      const double upper = rungs_[i.upper].scale;
      const double lower = rungs_[i.lower].scale;
      const double middle = lower > 0.0 ? std::sqrt(lower * upper) : upper / 8.0;
      /// An interval that cannot be divided has many steps at one scale.
      const bool divisible = middle < upper && middle > lower;
      if (!divisible || most_steps(i) <= (i.alive.size() > 1 ? few_steps_each : few_steps)) {
        for (const std::size_t candidate : i.alive) {
          if (bound_of(i, candidate) > threshold()) {
            sweep(i, candidate);
          }
        }
        continue;
      }
      const std::size_t between = add_rung(middle, i.upper, i.lower);
      for (const std::size_t candidate : i.alive) {
        consider(rungs_[between].at[candidate], candidate);
      }
      push({i.upper, between, 0.0, i.alive});
      push({between, i.lower, 0.0, i.alive});
    }
    return best_;
  }

 private:
  /// A scale, and the levels at it.
  struct rung {
    double scale;
    std::vector<assignment> at;  // for each candidate
    /// How many magnitudes are below k - 1/2 times the scale, for k = 1, 2, ...: first of the
    /// negative values, then of the positive ones.
    std::vector<std::size_t> below;
  };
  struct interval {
    std::size_t upper;  // index of a rung
    std::size_t lower;  // index of a rung
    double bound;
    std::vector<std::size_t> alive;  // candidates that may exceed the best found
  };
  struct step {
    double scale;
    std::int32_t level;
    std::uint32_t side;
    std::size_t index;
    std::size_t part = 0;  // of the interval that is swept
  };

  /// Intervals with at most so many steps are swept. A sweep is for one candidate, halving an
  /// interval for all of them, so that with several candidates only short intervals are worth it.
  static constexpr std::uint64_t few_steps = 768;
  static constexpr std::uint64_t few_steps_each = 96;
  static constexpr std::size_t steps_of_part = 8;

  static bool less_promising(const interval& a, const interval& b) noexcept {
    return a.bound != b.bound ? a.bound < b.bound : a.upper < b.upper;
  }
  /// A gain must exceed this to count as larger: equal sums may differ by rounding.
  [[nodiscard]] double threshold() const noexcept { return best_.gain * (1.0 + 1e-14); }

  static double gain_of(double b, double c) noexcept { return c > 0.0 ? b * b / c : 0.0; }

  void consider(const assignment& a, std::size_t candidate) {
    const double b = a.b.to_double();
    const double c = a.c.to_double();
    // Most gains are not larger, which a product shows sooner than the division does.
    if (b * b <= best_.gain * c) {
      return;
    }
    const double gain = gain_of(b, c);
    if (gain > threshold()) {
      best_ = {gain, b / c * d_.unit(), candidate};
    }
  }

  /// The smallest scale at which the first candidate clips nothing.
  [[nodiscard]] double scale_of_range() const noexcept {
    double scale = 0.0;
    const auto widen = [&scale](const distribution_side& side, std::int32_t cap) {
      if (side.size() != 0 && cap > 0) {
        scale = (std::max)(scale, side.values.back() / cap);
      }
    };
    widen(d_.negative(), candidates_[0].negative);
    widen(d_.positive(), candidates_[0].positive);
    return scale;
  }

  /// A rung above all steps, or, for scale 0, below all steps; without its assignments.
  [[nodiscard]] rung end_rung(double scale) const {
    rung r{scale, std::vector<assignment>(candidates_.size()), {}};
    r.below.resize(negative_ + positive_, scale > 0.0 ? d_.positive().size() : 0);
    std::fill_n(r.below.begin(), negative_, scale > 0.0 ? d_.negative().size() : 0);
    return r;
  }

  /// Adds a rung between two others. Their levels leave few places to search for its own.
  std::size_t add_rung(double scale, std::size_t upper, std::size_t lower) {
    rung r = rungs_[upper];
    r.scale = scale;
    const std::size_t* const least = rungs_[lower].below.data();
    const auto search = [&](const distribution_side& side, std::size_t first, std::size_t caps) {
      for (std::size_t k = 0; k < caps && least[first + k] < side.size(); ++k) {
        std::size_t& below = r.below[first + k];
        if (below != least[first + k]) {
          const auto at = [&](std::size_t i) {
            return side.values.begin() + static_cast<std::ptrdiff_t>(i);
          };
          below =
              static_cast<std::size_t>(std::lower_bound(at(least[first + k]), at(below),
                                                        (static_cast<double>(k) + 0.5) * scale) -
                                       side.values.begin());
        }
      }
    };
    search(d_.negative(), 0, negative_);
    search(d_.positive(), negative_, positive_);
    add_differences(r, rungs_[upper]);
    rungs_.push_back(std::move(r));
    return rungs_.size() - 1;
  }

  /// Adds to the assignments of a rung by how much its levels exceed those of the rung `upper`.
  void add_differences(rung& r, const rung& upper) {
    add_differences(d_.negative(), r.below.data(), upper.below.data(), negative_, of_negative_);
    add_differences(d_.positive(), r.below.data() + negative_, upper.below.data() + negative_,
                    positive_, of_positive_);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      for (const assignment* a :
           {&of_negative_[static_cast<std::size_t>(candidates_[i].negative)],
            &of_positive_[static_cast<std::size_t>(candidates_[i].positive)]}) {
        r.at[i].b += a->b;
        r.at[i].c += a->c;
        r.at[i].levels += a->levels;
      }
    }
  }
  /// Those of one side, for each cap up to the largest.
  static void add_differences(const distribution_side& side, const std::size_t* below,
                              const std::size_t* below_upper, std::size_t caps,
                              std::vector<assignment>& of_cap) {
    of_cap.resize(caps + 1);
    assignment a;
    for (std::size_t k = 0; k < caps; ++k) {
      if (below[k] != below_upper[k]) {
        a.b += side.sum_above[below[k]] - side.sum_above[below_upper[k]];
        a.c += multiply_by_small(side.weight_above[below[k]] - side.weight_above[below_upper[k]],
                                 2 * k + 1);
        a.levels += below_upper[k] - below[k];
      }
      of_cap[k + 1] = a;
    }
  }

  [[nodiscard]] std::uint64_t most_steps(const interval& i) const noexcept {
    std::uint64_t most = 0;
    for (const std::size_t candidate : i.alive) {
      most = (std::max)(
          most, rungs_[i.lower].at[candidate].levels - rungs_[i.upper].at[candidate].levels);
    }
    return most;
  }

  /// An upper bound of b^2 / c between two rungs; 0 if no level changes there.
  [[nodiscard]] double bound_of(const interval& i, std::size_t candidate) const noexcept {
    const assignment& from = rungs_[i.upper].at[candidate];
    const assignment& to = rungs_[i.lower].at[candidate];
    return from.levels == to.levels
               ? 0.0
               : bound_of(from, to, rungs_[i.upper].scale, rungs_[i.lower].scale);
  }
  [[nodiscard]] double bound_of(const assignment& from, const assignment& to, double upper_scale,
                                double lower_scale) const noexcept {
    const double upper = upper_scale / d_.unit() / 2.0;
    const double lower = lower_scale / d_.unit() / 2.0;
    const double b = from.b.to_double();
    const double c = from.c.to_double();
    const double more_b = (to.b - from.b).to_double();
    const double more_c = (to.c - from.c).to_double();
    // Where the two lines cross, in [0, more_c]; clamped, since rounding must not take it beyond.
    const double over = more_b - rounded_product(lower, more_c);
    const double crossing = std::clamp(over / (upper - lower), 0.0, more_c);
    const double ends = (std::max)(gain_of(b, c), gain_of(b + more_b, c + more_c));
    const double between = gain_of(b + rounded_product(upper, crossing), c + crossing);
    return (std::max)(ends, between) * (1.0 + 1e-12);
  }

  void push(interval i) {
    const auto is_dead = [&](std::size_t candidate) {
      const double bound = bound_of(i, candidate);
      i.bound = (std::max)(i.bound, bound);
      return !(bound > threshold());
    };
    i.alive.erase(std::remove_if(i.alive.begin(), i.alive.end(), is_dead), i.alive.end());
    if (!i.alive.empty()) {
      heap_.push_back(std::move(i));
      std::push_heap(heap_.begin(), heap_.end(), less_promising);
    }
  }

  void collect(const distribution_side& side, std::uint32_t number, std::int32_t cap,
               const std::size_t* below, const std::size_t* below_upper) {
    for (std::int32_t k = 1; k <= cap; ++k) {
      for (std::size_t i = below[k - 1]; i < below_upper[k - 1]; ++i) {
        steps_.push_back({side.values[i] / (k - 0.5), k, number, i});
      }
    }
  }

  /// Adds what a step changes.
  void take(const step& s, assignment& a) const noexcept {
    const distribution_side& side = s.side == 0 ? d_.negative() : d_.positive();
    a.b += side.sum_above[s.index] - side.sum_above[s.index + 1];
    a.c += multiply_by_small(side.weight_above[s.index] - side.weight_above[s.index + 1],
                             static_cast<std::uint64_t>(2 * s.level - 1));
    ++a.levels;
  }

  /// The order in which steps are taken as the scale falls.
  static bool comes_first(const step& a, const step& b) noexcept {
    return a.scale != b.scale   ? a.scale > b.scale
           : a.level != b.level ? a.level < b.level
           : a.side != b.side   ? a.side < b.side
                                : a.index < b.index;
  }

  /// Divides an interval into parts of equal length, with what the steps of each part change. Only
  /// the steps of parts whose bound exceeds the best value are sorted and taken one by one.
  void sweep(const interval& i, std::size_t candidate) {
    const rung& upper = rungs_[i.upper];
    const rung& lower = rungs_[i.lower];
    steps_.clear();
    collect(d_.negative(), 0, candidates_[candidate].negative, lower.below.data(),
            upper.below.data());
    collect(d_.positive(), 1, candidates_[candidate].positive, lower.below.data() + negative_,
            upper.below.data() + negative_);
    const std::size_t parts = steps_.size() / steps_of_part + 1;
    const double length = (upper.scale - lower.scale) / static_cast<double>(parts);
    const auto part_of = [&](const step& s) {
      const double at = (upper.scale - s.scale) / length;  // never falls from a step to the next
      return at > 0.0 ? (std::min)(parts - 1, static_cast<std::size_t>(at)) : 0;
    };
    changes_.assign(parts, {});
    for (step& s : steps_) {
      s.part = part_of(s);
      take(s, changes_[s.part]);
    }
    assignment before = upper.at[candidate];
    for (std::size_t part = 0; part < parts; ++part) {
      if (changes_[part].levels == 0) {
        continue;
      }
      assignment behind = before;
      behind.b += changes_[part].b;
      behind.c += changes_[part].c;
      const double above = upper.scale - rounded_product(length, static_cast<double>(part));
      if (bound_of(before, behind, above, (std::max)(0.0, above - length)) > threshold()) {
        take_one_by_one(part, before, candidate);
      }
      before = behind;
    }
  }

  void take_one_by_one(std::size_t part, assignment a, std::size_t candidate) {
    sorted_.clear();
    for (const step& s : steps_) {
      if (s.part == part) {
        sorted_.push_back(s);
      }
    }
    std::sort(sorted_.begin(), sorted_.end(), comes_first);
    for (const step& s : sorted_) {
      take(s, a);
      consider(a, candidate);
    }
  }

  const distribution& d_;
  std::vector<level_caps> candidates_;
  best_assignment best_;
  std::vector<rung> rungs_;
  std::vector<interval> heap_;
  std::vector<step> steps_;          // of the interval that is swept
  std::vector<assignment> changes_;  // by the steps of each of its parts
  std::vector<step> sorted_;         // steps of one part, in the order in which they are taken
  std::size_t negative_ = 0;         // the largest caps of all candidates
  std::size_t positive_ = 0;
  std::vector<assignment> of_negative_;  // what add_differences() found, for each cap
  std::vector<assignment> of_positive_;
};

struct exact_scale {
  best_assignment best;
  std::int32_t zero_point = 0;
};

/// The zero points that may be the best: the middle of the grid for symmetric schemes; else all of
/// the grid, or only one end of it if all values have one sign.
[[nodiscard]] inline std::vector<std::int32_t> possible_zero_points(const distribution& d,
                                                                    quant_scheme scheme) {
  const grid levels = scheme.levels;
  // The zero point of the range comes first: it wins where several are equally good.
  std::vector<std::int32_t> zero_points{reference::params_from_range(d.range(), scheme).zero_point};
  if (!scheme.symmetric && d.magnitude() > 0.0) {
    const bool no_negative = d.negative().size() == 0;
    if (no_negative || d.positive().size() == 0) {
      // Levels on a side without values are of no use.
      zero_points = {no_negative ? levels.qmin : levels.qmax};
    } else {
      for (std::int32_t z = levels.qmin; z <= levels.qmax; ++z) {
        if (z != zero_points[0]) {
          zero_points.push_back(z);
        }
      }
    }
  }
  return zero_points;
}
[[nodiscard]] inline std::vector<level_caps> caps_of(grid levels,
                                                     const std::vector<std::int32_t>& zero_points) {
  std::vector<level_caps> caps;
  for (const std::int32_t zero_point : zero_points) {
    caps.push_back(caps_of(levels, zero_point));
  }
  return caps;
}

/// The best scale and, for asymmetric schemes, the best zero point.
[[nodiscard]] inline exact_scale best_scale(const distribution& d, quant_scheme scheme) {
  const std::vector<std::int32_t> zero_points = possible_zero_points(d, scheme);
  const best_assignment best = assignment_search(d, caps_of(scheme.levels, zero_points)).run();
  return {best, zero_points[best.candidate]};
}

inline void require_searchable_grid(quant_scheme scheme, const char* where) {
  const grid levels = scheme.levels;
  require(levels.qmin < levels.qmax && levels.qmin >= -65536 && levels.qmax <= 65536 &&
              levels.qmax - levels.qmin <= 255,
          error_kind::unsupported, where, ": the grid ", levels.qmin, "..", levels.qmax,
          " has not 2 to 256 levels");
}

[[nodiscard]] inline quant_params params_of(const exact_scale& e) noexcept {
  quant_params p;
  p.zero_point = e.zero_point;
  if (e.best.scale > 0.0) {
    p.scale = static_cast<float>(e.best.scale);
    if (p.scale < std::numeric_limits<float>::min()) {
      p.scale = std::numeric_limits<float>::min();
    }
  }
  return p;
}

/// (square_sum - gain) / weight, less the rounding of a few doubles of the size of square_sum: no
/// scale has a smaller error.
[[nodiscard]] inline double least_error(const distribution& d, double square_sum, double gain) {
  const double exact = square_sum - rounded_product(gain, d.unit() * d.unit());
  return (std::max)(0.0, exact - square_sum * 1e-13) / static_cast<double>(d.weight());
}

}  // namespace detail

/// Finds the parameters with the least weighted mean of (x - dequantize(quantize(x)))^2, over all
/// scales and, if the scheme is asymmetric, over all zero points of the grid. The scale is rounded
/// to float at the end and is at least FLT_MIN; if all values are zero, it is 1. The evidence has
///
///     objective    the error of the parameters returned
///     lower_bound  no real scale has a smaller error, up to 1e-13 of the mean square of the values
///
/// Sums are integers, so that the result depends neither on the order of the values nor on the CPU.
/// Time grows with the sort of the values and with about 2 to 30 steps for each of them.
/// Thread-safe; uses no threads itself. Throws unsupported for grids of more than 256 levels,
/// invalid_argument where params_from_range() does.
[[nodiscard]] inline scale_solution exact_mse(const distribution& d, quant_scheme scheme) {
  detail::require_searchable_grid(scheme, "exact_mse");
  static_cast<void>(params_from_range(d.range(), scheme));  // checks the grid
  const detail::exact_scale best = detail::best_scale(d, scheme);
  scale_solution s;
  s.params = detail::params_of(best);
  s.evidence = detail::evidence_of(d, "exact_mse", s.params, scheme.levels);
  s.evidence.lower_bound = detail::least_error(d, d.square_sum(), best.best.gain);
  return s;
}
/// exact_mse() of values with weight 1. Throws invalid_argument if there are none, or for NaN and
/// infinities.
[[nodiscard]] inline scale_solution exact_mse(std::span<const float> x, quant_scheme scheme) {
  return exact_mse(distribution(x), scheme);
}

/// exact_mse() of the bins of a histogram whose range is `range`. The values are known to lie in
/// their bins and to have the bins' means; the parameters are the best ones for those means. The
/// evidence has
///
///     objective    an upper bound of the error that the values have with these parameters
///     lower_bound  a lower bound of the error that they have with any parameters
///
/// With x in [lo, hi], mean m, and g(x) = min over k of (x - k s)^2 - x^2, which is concave: the
/// squares sum up to no less than m^2 each and no more than m^2 + (hi - m)(m - lo); g to no more
/// than g(m) and no less than what values at the two ends would have. Throws what the form for
/// distributions throws, and invalid_argument for bins without sums.
[[nodiscard]] inline scale_solution exact_mse(std::span<const value_bin> bins, value_range range,
                                              quant_scheme scheme) {
  detail::require_searchable_grid(scheme, "exact_mse");
  const distribution means(bins, range);
  scale_solution s = exact_mse(means, scheme);
  // How far the values of bins may be away from their means.
  detail::compensated_sum spread;
  for (const value_bin& bin : bins) {
    const double count = static_cast<double>(bin.count);
    const double largest = bin.largest;
    const double smallest = bin.smallest;
    if (!bin.excess_known) {
      spread.add(detail::rounded_product(largest * largest, count));
      continue;
    }
    if (bin.largest == 0.0F) {
      continue;
    }
    const double above = bin.unit() * (static_cast<double>(bin.excess) / count);
    spread.add(detail::rounded_product((std::max)(0.0, largest - smallest - above) * above, count));
  }
  s.evidence.objective += spread.value() / static_cast<double>(means.weight());
  const distribution ends = distribution::of_bin_ends(bins, range);
  const detail::exact_scale widest = detail::best_scale(ends, scheme);
  // The gain of the ends counts each value with a weight of 2^14.
  const double squares = means.square_sum() * static_cast<double>(1U << kernels::bin_dropped_bits);
  s.evidence.lower_bound = detail::least_error(ends, squares, widest.best.gain);
  return s;
}
/// exact_mse() of the bins of a histogram. Throws also invalid_argument if the histogram has seen
/// nothing, a NaN or an infinity.
[[nodiscard]] inline scale_solution exact_mse(const histogram& h, quant_scheme scheme) {
  return exact_mse(h.bins(), h.range(), scheme);
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_EXACT_MSE_HPP
