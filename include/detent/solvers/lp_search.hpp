// SPDX-License-Identifier: BSD-3-Clause
// Branch and bound for the scale with the least sum of |x - k * scale|^p, p >= 1.
//
// As long as a value keeps its level k, its error |x - k * scale|^p is convex in the scale. The sum
// of such errors lies above its tangent, in which the slopes of values above their levels and of
// values below them largely cancel. On an interval of scales the tangent is a bound with a loss of
// second order, since few values change their level within a short interval. Each of those few is
// bounded by its distance from all levels that the interval has,
//
//     the union of [k * lower, k * upper] for all k,
//
// and values beyond the grid by the distance from the end of the grid. Values come in groups of
// neighbours whose mean is known: a convex function summed over a group is no less than its value
// at the mean. Wide intervals are bounded with coarse groups, which takes little time, narrow
// intervals with the finest ones. Intervals are halved, the most promising first, until no bound is
// much below the best error found.
//
// The bounds are our own.
#ifndef DETENT_SOLVERS_LP_SEARCH_HPP
#define DETENT_SOLVERS_LP_SEARCH_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/solvers/fixed_power.hpp>
#include <detent/statistics/distribution.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// `weight` values with low <= |x| <= high, whose mean magnitude is `mean`.
struct value_group {
  double low;
  double high;
  double mean;
  double weight;
};

/// Joins neighbouring groups whose means share the exponent and the first `bits` bits of the
/// mantissa.
[[nodiscard]] inline std::vector<value_group> joined(const std::vector<value_group>& groups,
                                                     int bits) {
  const auto key = [bits](double x) { return std::bit_cast<std::uint64_t>(x) >> (52 - bits); };
  std::vector<value_group> result;
  for (std::size_t first = 0; first < groups.size();) {
    std::size_t last = first;
    double weight = 0.0;
    double sum = 0.0;
    for (; last < groups.size() && key(groups[last].mean) == key(groups[first].mean); ++last) {
      weight += groups[last].weight;
      sum += rounded_product(groups[last].weight, groups[last].mean);
    }
    value_group joint = groups[first];
    if (last - first > 1) {
      joint.high = groups[last - 1].high;
      joint.weight = weight;
      joint.mean = std::clamp(sum / weight, joint.low, joint.high);
    }
    result.push_back(joint);
    first = last;
  }
  return result;
}

/// The groups of one sign, at the resolution given and at coarser ones.
class lp_side {
 public:
  struct resolution {
    int bits = 0;  // bits of the mantissa that the members of a group share
    std::vector<value_group> groups;
    std::vector<double> power_sums;  // [i]: sum of weight * mean^p over groups before i
  };

  lp_side(std::vector<value_group> groups, const fixed_power& power) {
    add(finest_bits, std::move(groups), power);
    for (int bits = 9; bits >= 4; --bits) {
      std::vector<value_group> coarser = joined(resolutions_.back().groups, bits);
      if (coarser.size() * 4 <= resolutions_.back().groups.size() * 3) {
        add(bits, std::move(coarser), power);
      }
    }
  }

  [[nodiscard]] const resolution& finest() const noexcept { return resolutions_.front(); }
  /// The coarsest resolution whose groups are about as narrow, relative to their size, as the
  /// interval [lower, upper].
  [[nodiscard]] const resolution& for_interval(double lower, double upper) const noexcept {
    const int bits = -std::ilogb((upper - lower) / upper);
    std::size_t i = resolutions_.size() - 1;
    while (i > 0 && resolutions_[i].bits < bits) {
      --i;
    }
    return resolutions_[i];
  }

 private:
  static constexpr int finest_bits = 52;

  void add(int bits, std::vector<value_group> groups, const fixed_power& power) {
    resolution r{bits, std::move(groups), {0.0}};
    double sum = 0.0;
    for (const value_group& g : r.groups) {
      sum += rounded_product(g.weight, g.mean * power(g.mean));
      r.power_sums.push_back(sum);
    }
    resolutions_.push_back(std::move(r));
  }

  std::vector<resolution> resolutions_;
};

/// The result of lp_search; errors are sums over all values.
struct lp_optimum {
  double error = 0.0;  // sum over the groups' means
  double scale = 0.0;  // a float, in the unit of the values
  std::size_t candidate = 0;
  double bound_of_means = 0.0;   // no scale has a smaller error for the means
  double bound_of_values = 0.0;  // nor for any values that the groups may stand for
};

/// Searches the least error over all scales and several zero points, which differ in how far the
/// grid reaches to either side. Magnitudes are below 2; `unit` is the power of two that a magnitude
/// of 1 stands for.
class lp_search {
 public:
  /// `power` computes x^(p - 1).
  lp_search(std::vector<value_group> negative, std::vector<value_group> positive,
            std::vector<level_caps> candidates, double unit, double p, const fixed_power& power)
      : power_(power),
        p_(p),
        unit_(unit),
        candidates_(std::move(candidates)),
        sides_{lp_side(std::move(negative), power), lp_side(std::move(positive), power)} {}

  /// Searches until the bound is within `tolerance` of the error found, or about `work` values were
  /// looked at. It tries `first_scale` and some smaller scales first.
  lp_optimum run(double first_scale, double tolerance, std::uint64_t work) {
    share_ = 1.0 - tolerance;
    double largest = 0.0;
    double all = 0.0;
    for (const lp_side& side : sides_) {
      all += side.finest().power_sums.back();
      largest = side.finest().groups.empty()
                    ? largest
                    : (std::max)(largest, side.finest().groups.back().high);
    }
    // If next to no error is left, the search ends.
    const double least = all * portable_power(0x1p-20, p_);
    best_.error = std::numeric_limits<double>::infinity();
    for (double scale = first_scale; scale > first_scale / 40.0; scale *= 0.75) {
      consider(scale, 0);
    }
    // At scales of twice the largest magnitude and beyond, all levels are 0 and the error is the
    // sum of all |x|^p, as in the limit of scale 0. All other scales lie in this interval.
    interval root{0.0, std::nextafter(2.0 * largest, 4.0), 0.0, {}};
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      root.alive.push_back({i, 0.0, 0.0});
    }
    bound_of_means_ = all;
    bound_of_values_ = all;
    push(root.lower, root.upper, root.alive);
    while (!heap_.empty() && best_.error > least && visited_ < work) {
      std::pop_heap(heap_.begin(), heap_.end(), less_promising);
      const interval i = std::move(heap_.back());
      heap_.pop_back();
      if (i.bound >= threshold() || i.upper - i.lower <= i.upper * 0x1p-30) {
        resolve(i);
        continue;
      }
      const double middle = i.lower == 0.0            ? i.upper / 8.0
                            : i.upper > 2.0 * i.lower ? std::sqrt(i.lower * i.upper)
                                                      : 0.5 * (i.lower + i.upper);
      push(middle, i.upper, i.alive);
      push(i.lower, middle, i.alive);
    }
    for (const interval& i : heap_) {
      resolve(i);
    }
    descend();
    best_.bound_of_means = (std::min)(bound_of_means_, best_.error);
    best_.bound_of_values = (std::min)(bound_of_values_, best_.error);
    return best_;
  }

 private:
  using resolution = lp_side::resolution;

  /// A candidate that may be the best in an interval, and lower bounds of its error there.
  struct contender {
    std::size_t candidate;
    double bound_of_means;
    double bound_of_values;
  };
  struct interval {
    double lower;
    double upper;
    double bound;
    std::vector<contender> alive;
  };

  /// A bound that is linear in the scale: value + slope * (scale - middle), on an interval.
  struct line {
    double value = 0.0;
    double slope = 0.0;
    // the sum of the slope's terms without signs; it bounds their rounding
    double steepness = 0.0;

    line& operator+=(const line& other) noexcept {
      value += other.value;
      slope += other.slope;
      steepness += other.steepness;
      return *this;
    }
    [[nodiscard]] double least(double half_width) const noexcept {
      const double drop = rounded_product(std::fabs(slope), half_width);
      const double rounding =
          rounded_product(value + rounded_product(steepness, half_width), 1e-11);
      return (std::max)(0.0, value - drop - rounding);
    }
  };
  struct lines {
    line of_means;
    line of_values;
    void add(const line& both) noexcept {
      of_means += both;
      of_values += both;
    }
  };
  /// One side on an interval: for each level k, the bound for all groups below the cell of level k.
  struct walk {
    const resolution* at = nullptr;
    std::vector<lines> below;
    std::vector<std::size_t> begin;  // the first group in or above the cell
  };
  struct scales {
    double lower;
    double middle;
    double upper;
    double covered;  // from this magnitude on, every value may lie on a level
    [[nodiscard]] double half_width() const noexcept { return 0.5 * (upper - lower); }
  };

  static bool less_promising(const interval& a, const interval& b) noexcept {
    // Ties go to the narrower interval, so that a search whose optimum is 0 reaches it instead of
    // halving everywhere at once.
    return a.bound != b.bound                       ? a.bound > b.bound
           : a.upper - a.lower != b.upper - b.lower ? a.upper - a.lower > b.upper - b.lower
                                                    : a.upper < b.upper;
  }
  [[nodiscard]] double threshold() const noexcept { return best_.error * share_; }

  void resolve(const contender& c) noexcept {
    bound_of_means_ = (std::min)(bound_of_means_, c.bound_of_means);
    bound_of_values_ = (std::min)(bound_of_values_, c.bound_of_values);
  }
  void resolve(const interval& i) noexcept {
    for (const contender& c : i.alive) {
      resolve(c);
    }
  }

  /// The tangent, at the middle of the interval, of the errors of groups [first, last) at level k.
  [[nodiscard]] line at_level(const resolution& r, std::size_t first, std::size_t last,
                              std::int32_t k, double middle) const noexcept {
    if (k == 0) {
      return {r.power_sums[last] - r.power_sums[first], 0.0, 0.0};
    }
    const double level = rounded_product(static_cast<double>(k), middle);
    double sum = 0.0;
    double above = 0.0;  // shares of groups above the level, less those below it
    double all = 0.0;
    for (std::size_t i = first; i < last; ++i) {
      const double distance = r.groups[i].mean - level;
      const double share = rounded_product(r.groups[i].weight, power_(std::fabs(distance)));
      sum += rounded_product(share, std::fabs(distance));
      above += std::copysign(share, distance);
      all += share;
    }
    const double factor = p_ * static_cast<double>(k);
    return {sum, -rounded_product(factor, above), rounded_product(factor, all)};
  }

  [[nodiscard]] double power_of(double distance, double weight) const noexcept {
    return rounded_product(weight, distance * power_(distance));
  }

  /// The distance of [low, high] from the nearest of all levels that the scales of an interval
  /// have.
  [[nodiscard]] static double distance(double low, double high, const scales& s) noexcept {
    const double k = std::ceil(low / s.upper);
    const double next = rounded_product(k, s.lower);
    if (next <= high) {
      return 0.0;
    }
    return (std::max)(0.0, (std::min)(low - rounded_product(k - 1.0, s.upper), next - high));
  }

  /// Adds the bounds of groups [first, last), whose values may change their level within the
  /// interval.
  void add_changing(const resolution& r, std::size_t first, std::size_t last, const scales& s,
                    bool finest, lines& to) const noexcept {
    for (std::size_t i = first; i < last && r.groups[i].low < s.covered; ++i) {
      const value_group& g = r.groups[i];
      line of_values;
      of_values.value = power_of(distance(g.low, g.high, s), g.weight);
      to.of_values += of_values;
      if (!finest || g.low == g.high) {
        to.of_means += of_values;
        continue;
      }
      const double k = std::floor(g.mean / s.middle + 0.5);
      if (g.mean >= (k - 0.5) * s.upper && g.mean <= (k + 0.5) * s.lower) {
        to.of_means += at_level(r, i, i + 1, static_cast<std::int32_t>(k), s.middle);
      } else {
        to.of_means.value += power_of(distance(g.mean, g.mean, s), g.weight);
      }
    }
  }

  void walk_side(const lp_side& side, const scales& s, std::int32_t largest_cap, walk& w) {
    w.at = &side.for_interval(s.lower, s.upper);
    const resolution& r = *w.at;
    const bool finest = w.at == &side.finest();
    const std::size_t n = r.groups.size();
    const auto levels = static_cast<std::size_t>(largest_cap) + 1;
    w.below.resize(levels);
    w.begin.resize(levels);
    lines sum;
    std::size_t at = 0;
    for (std::size_t k = 0; k < levels; ++k) {
      const auto level = static_cast<double>(k);
      const std::size_t open = at;
      while (at < n && r.groups[at].low < (level - 0.5) * s.upper) {
        ++at;
      }
      add_changing(r, open, at, s, finest, sum);
      w.below[k] = sum;
      w.begin[k] = at;
      if (k + 1 == levels) {
        break;
      }
      const std::size_t first = at;
      while (at < n && r.groups[at].high < (level + 0.5) * s.lower) {
        ++at;
      }
      if (at != first) {
        sum.add(at_level(r, first, at, static_cast<std::int32_t>(k), s.middle));
      }
    }
    visited_ += at + levels;
  }

  /// The bound for groups above the cells below `cap`: all of them are at that level, however far
  /// beyond.
  [[nodiscard]] line beyond(const walk& w, std::int32_t cap, const scales& s) {
    const resolution& r = *w.at;
    const std::size_t n = r.groups.size();
    if (cap == 0) {
      return at_level(r, 0, n, 0, s.middle);
    }
    const std::size_t first = w.begin[static_cast<std::size_t>(cap)];
    const auto levels = static_cast<double>(cap);
    if (levels * (s.upper - s.lower) <= s.upper) {
      visited_ += n - first;
      return at_level(r, first, n, cap, s.middle);
    }
    // The interval is too wide for tangents. At the largest scale of the interval these groups are
    // clipped least, so that its error bounds that of all others.
    const double end = rounded_product(levels, s.upper);
    line clipped;
    for (std::size_t i = n; i-- > first && r.groups[i].mean > end;) {
      clipped.value += power_of(r.groups[i].mean - end, r.groups[i].weight);
      ++visited_;
    }
    return clipped;
  }

  [[nodiscard]] static bool is_within(const lp_side& side, std::int32_t cap,
                                      double scale) noexcept {
    const std::vector<value_group>& groups = side.finest().groups;
    return groups.empty() || groups.back().high <= (static_cast<double>(cap) + 0.5) * scale;
  }

  /// Bounds an interval, and keeps it if something in it may be better than the best.
  void push(double lower, double upper, const std::vector<contender>& contenders) {
    scales s{lower, 0.5 * (lower + upper), upper, 0.0};
    s.covered = rounded_product(std::ceil(lower / (upper - lower)), lower);
    level_caps largest{0, 0};
    for (const contender& c : contenders) {
      largest.negative = (std::max)(largest.negative, candidates_[c.candidate].negative);
      largest.positive = (std::max)(largest.positive, candidates_[c.candidate].positive);
    }
    walk_side(sides_[0], s, largest.negative, negative_);
    walk_side(sides_[1], s, largest.positive, positive_);
    visited_ += contenders.size();
    interval next{lower, upper, std::numeric_limits<double>::infinity(), {}};
    bool any_within = false;
    double least = std::numeric_limits<double>::infinity();
    std::size_t best = 0;
    for (contender c : contenders) {
      if (c.bound_of_means >= threshold()) {
        resolve(c);
        continue;
      }
      const level_caps caps = candidates_[c.candidate];
      // Where nothing is clipped, all zero points are equally good: one of them suffices.
      if (is_within(sides_[0], caps.negative, lower) &&
          is_within(sides_[1], caps.positive, lower)) {
        if (any_within) {
          continue;
        }
        any_within = true;
      }
      lines sum = negative_.below[static_cast<std::size_t>(caps.negative)];
      const lines& other = positive_.below[static_cast<std::size_t>(caps.positive)];
      sum.of_means += other.of_means;
      sum.of_values += other.of_values;
      sum.add(beyond(negative_, caps.negative, s));
      sum.add(beyond(positive_, caps.positive, s));
      c.bound_of_means = (std::max)(c.bound_of_means, sum.of_means.least(s.half_width()));
      c.bound_of_values = (std::max)(c.bound_of_values, sum.of_values.least(s.half_width()));
      if (sum.of_means.value < least) {
        least = sum.of_means.value;
        best = c.candidate;
      }
      if (c.bound_of_means >= threshold()) {
        resolve(c);
        continue;
      }
      next.bound = (std::min)(next.bound, c.bound_of_means);
      next.alive.push_back(c);
    }
    if (least < best_.error) {  // otherwise the middle cannot be better
      consider(s.middle, best);
    }
    if (!next.alive.empty()) {
      heap_.push_back(std::move(next));
      std::push_heap(heap_.begin(), heap_.end(), less_promising);
    }
  }

  /// The error of the groups' means at a scale, and its slope.
  [[nodiscard]] line error_at(double scale, level_caps caps) {
    line sum;
    for (std::size_t i = 0; i < 2; ++i) {
      const resolution& r = sides_[i].finest();
      const std::int32_t cap = i == 0 ? caps.negative : caps.positive;
      const std::size_t n = r.groups.size();
      visited_ += n;
      std::size_t at = 0;
      for (std::int32_t k = 0; at < n; ++k) {
        const std::size_t first = at;
        const double end = (static_cast<double>(k) + 0.5) * scale;
        while (at < n && (k == cap || r.groups[at].mean < end)) {
          ++at;
        }
        sum += at_level(r, first, at, k, scale);
      }
    }
    return sum;
  }

  /// The float nearest to a scale, limited to scales that quantization accepts.
  [[nodiscard]] double rounded_scale(double scale) const noexcept {
    constexpr double largest = std::numeric_limits<float>::max();
    constexpr double smallest = std::numeric_limits<float>::min();
    const double clamped = std::clamp(scale * unit_, smallest, largest);
    return static_cast<double>(static_cast<float>(clamped)) / unit_;
  }

  line consider(double scale, std::size_t candidate) {
    const double rounded = rounded_scale(scale);
    const line error = error_at(rounded, candidates_[candidate]);
    if (error.value < best_.error) {
      best_.error = error.value;
      best_.scale = rounded;
      best_.candidate = candidate;
    }
    return error;
  }

  /// Goes downhill from the best scale, in steps that become smaller.
  void descend() {
    line at = error_at(best_.scale, candidates_[best_.candidate]);
    for (double step = best_.scale * 0x1p-10; step > best_.scale * 0x1p-25;) {
      const double before = best_.error;
      const line next =
          consider(at.slope > 0.0 ? best_.scale - step : best_.scale + step, best_.candidate);
      if (best_.error < before) {
        at = next;
      } else {
        step *= 0.5;
      }
    }
  }

  const fixed_power& power_;
  double p_;
  double unit_;
  double share_ = 1.0;
  std::vector<level_caps> candidates_;
  lp_side sides_[2];  // negative, positive
  lp_optimum best_;
  double bound_of_means_ = 0.0;
  double bound_of_values_ = 0.0;
  std::uint64_t visited_ = 0;
  std::vector<interval> heap_;
  walk negative_;  // scratch of push()
  walk positive_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_LP_SEARCH_HPP
