// SPDX-License-Identifier: BSD-3-Clause
// The search of exact_mse(): the largest b^2 / c over all scales and several zero points.
//
// As the scale s falls from beyond the largest value to 0, element i steps from level k - 1 to k at
// s = |x_i| / (k - 1/2), that is, at equal distances 1 / |x_i| of the fineness 1 / s. A step adds
// |x_i| to b and 2k - 1 to c.
//
// Between two scales upper > lower with known b and c, a step at scale t adds t / 2 to b for each 1
// that it adds to c, so that along the way
//
//     b <= b(upper) + upper / 2 * (c - c(upper))       b <= b(lower) - lower / 2 * (c(lower) - c)
//
// and b^2 / c, which is convex in c along either line, is bounded by its values at the ends of the
// lines and where they cross. The search divides an interval of finenesses into equal parts, adds
// up what the steps of each part change, and drops the parts whose bound does not exceed the best
// value found. What is left is divided again until it has few steps, which are taken one by one.
//
// Few zero points matter at one scale: a grid that has levels to spare on one side while it clips
// on the other is no better than its neighbour with one level more there; and where one grid clips
// nothing, no other is better.
#ifndef DETENT_SOLVERS_ASSIGNMENT_SEARCH_HPP
#define DETENT_SOLVERS_ASSIGNMENT_SEARCH_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/uint128.hpp>
#include <detent/config.hpp>
#include <detent/solvers/assignment_steps.hpp>
#include <detent/statistics/distribution.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Grids with equally many levels. Each is told by how many of them are below its zero point.
struct grid_candidates {
  std::int32_t steps;  // qmax - qmin
  std::int32_t least;  // numbers of levels below the zero point: least, ..., most
  std::int32_t most;
  std::int32_t first;  // the one that wins where several are equally good

  [[nodiscard]] level_caps caps(std::int32_t negative) const noexcept {
    return {negative, steps - negative};
  }
};

/// The largest b^2 / c found, in units squared, with the scale that reaches it.
struct best_assignment {
  double gain = 0.0;
  double scale = 0.0;         // in real size, not in units
  std::int32_t negative = 0;  // the candidate
};

/// A grid, and the finenesses between which it may be the best one.
struct grid_interval {
  level_caps caps;
  double from;
  double to;
};

/// Searches the largest b^2 / c over all scales and several grids.
template <class Steps>
class assignment_search {
 public:
  assignment_search(const distribution& d, const grid_candidates& candidates)
      : d_(d), candidates_(candidates), unit_(d.unit()) {
    elements_.reserve(d.negative().size() + d.positive().size());
    add_elements(d.negative(), 0);
    add_elements(d.positive(), 1);
    largest_magnitude_ = (std::max)(largest_[0], largest_[1]);
  }

  best_assignment run() {
    best_.negative = candidates_.first;
    if (elements_.empty()) {
      return best_;
    }
    // If next to no error is left, the search ends.
    most_ = d_.square_sum() / (unit_ * unit_) * (1.0 - 1e-13);
    // The first scale that is tried clips nothing. It is near the best one with many levels, and
    // where several scales leave no error, it is the finest of them, which serves biases best.
    look_at_first(scale_of_range());
    if (best_.gain >= most_) {
      return best_;
    }
    look_at_finer_scales();
    choose_tasks();
    narrow_by_groups();
    if (!tasks_.empty()) {
      divide_until_few();
      take_one_by_one();
    }
    choose_first_of_equals();
    best_.gain = chosen_gain_;
    return best_;
  }

 private:
  using amount = typename Steps::amount;
  using to_level = typename Steps::to_level;
  using task = grid_interval;

  struct element {
    double magnitude;
    double inverse;
    amount change;  // by one step
  };
  /// Sums over the elements from one on.
  struct moments {
    double weight;
    double sum;
    double squares;
  };
  /// A part of the interval, for one task.
  struct live_part {
    std::size_t task;
    std::size_t part;
    double bound;
    Steps before;  // all steps at larger scales
    Steps inside;
  };
  /// The steps of an element in the interval. Places are in parts, with `fraction_bits` bits behind
  /// the point.
  struct places {
    std::uint64_t first;
    std::uint64_t distance;
  };
  struct step {
    double scale;
    std::uint32_t level;
    std::uint32_t side;
    std::size_t part;
    amount change;
  };

  // Measured for 64 to 4608 weights of 4 and 8 bits; none of them changes which scale is the best.
  static constexpr double steps_of_part = 8.0;
  static constexpr double fewest_parts = 16.0;
  static constexpr std::size_t few_steps = 64;  // and a quarter of the values
  static constexpr int fraction_bits = 40;
  static constexpr double most_levels = 0x1p18;

  template <class Other>
  friend class assignment_search;

  /// The search for groups of elements, see narrow_by_groups().
  template <class Other>
  assignment_search(const assignment_search<Other>& all, double width)
      : d_(all.d_),
        candidates_(all.candidates_),
        unit_(all.unit_),
        most_(std::numeric_limits<double>::infinity()),
        tasks_(all.tasks_) {
    for (std::size_t side = 0; side < 2; ++side) {
      begin_[side] = elements_.size();
      for (std::size_t i = all.begin_[side]; i < all.end_[side];) {
        i = add_group(all, side, i, width);
      }
      end_[side] = elements_.size();
    }
  }

  /// Adds the elements from `first` on that begin in one interval of the given width as one with
  /// their mean. Returns the first of the others.
  template <class Other>
  std::size_t add_group(const assignment_search<Other>& all, std::size_t side, std::size_t first,
                        double width) {
    const double low = all.elements_[first].magnitude;
    const double end = (std::floor(low / width) + 1.0) * width;
    uint128 sum;
    std::uint64_t weight = 0;
    std::size_t i = first;
    for (; i < all.end_[side] && (i == first || all.elements_[i].magnitude < end); ++i) {
      sum += Other::sum_in(all.elements_[i].change);
      weight += Other::weight_in(all.elements_[i].change);
    }
    const double high = all.elements_[i - 1].magnitude;
    const double mean =
        std::clamp(sum.to_double() / static_cast<double>(weight) * unit_, low, high);
    // The variance of values in an interval is at most (high - mean) * (mean - low).
    spread_ += rounded_product((high - mean) * (mean - low), static_cast<double>(weight));
    square_sum_ += rounded_product(mean * mean, static_cast<double>(weight));
    sum_ += mean;
    elements_.push_back({mean, 1.0 / mean, Steps::amount_of(sum, weight)});
    return i;
  }
  void add_elements(const distribution_side& side, std::size_t number) {
    begin_[number] = elements_.size();
    for (std::size_t i = 0; i < side.size();) {
      const std::size_t first = i++;
      if constexpr (Steps::merges_equals) {
        while (i < side.size() && side.values[i] == side.values[first]) {
          ++i;
        }
      }
      elements_.push_back({side.values[first], 1.0 / side.values[first],
                           Steps::amount_of(side.sum_above[first] - side.sum_above[i],
                                            side.weight_above[first] - side.weight_above[i])});
    }
    end_[number] = elements_.size();
    if (side.size() != 0) {
      largest_[number] = side.values.back();
      sum_ += side.sum_above[0].to_double() / static_cast<double>(side.weight_above[0]) * unit_ *
              static_cast<double>(side.size());
      last_step_ = (std::min)(last_step_, side.values.front() / most_levels);
    }
  }
  [[nodiscard]] static std::uint32_t cap_of(level_caps caps, std::size_t side) noexcept {
    return static_cast<std::uint32_t>(side == 0 ? caps.negative : caps.positive);
  }

  static double gain_of(double b, double c) noexcept { return c > 0.0 ? b * b / c : 0.0; }
  /// What a bound must exceed to matter.
  [[nodiscard]] double threshold() const noexcept {
    return needed_ < best_.gain ? needed_ : best_.gain * (1.0 + 1e-14);
  }
  /// Where a gain from approximate sums does not exceed this, the exact one is not the largest.
  [[nodiscard]] double least_gain() const noexcept { return best_.gain * (1.0 - 2e-14); }

  void look_at_first(double scale) {
    const assignment a = assign(d_, scale, candidates_.caps(candidates_.first));
    const double b = a.b.to_double();
    const double c = a.c.to_double();
    best_.gain = gain_of(b, c);
    best_.scale = c > 0.0 ? b / c * unit_ : 0.0;
    // Sums of equal errors may differ by rounding.
    chosen_gain_ = best_.gain;
    least_better_ = best_.gain * (1.0 + 1e-14);
    reached_at_ = scale;
  }
  /// Of gains that differ by no more than rounding, the one of the larger scale counts.
  /// Where few values are large, a scale that clips them is much better.
  void look_at_finer_scales() {
    constexpr double fall = 0.7;
    look_on(fall * reached_at_, fall, candidates_.first);
  }
  /// Looks at scales from `scale` on, each `factor` times the one before, until the gain falls.
  void look_on(double scale, double factor, std::int32_t negative) {
    double before = 0.0;
    for (double gain = 0.0; scale > last_step_; scale *= factor) {
      before = gain;
      gain = look_at(scale, candidates_.caps(negative));
      if (!(gain > before)) {
        return;
      }
    }
  }
  void consider(const Steps& s, const task& t, double reached_at) {
    consider(s.b().to_double(), s.c().to_double(), t.caps, reached_at);
  }
  void consider(double b, double c, level_caps caps, double reached_at) {
    const double gain = gain_of(b, c);
    if (!(gain > least_better_)) {
      return;
    }
    const double scale = b / c * unit_;
    const bool is_preferred =
        scale > best_.scale || (scale == best_.scale && rank(caps.negative) < rank(best_.negative));
    if (gain > chosen_gain_ * (1.0 + 1e-14) ||
        (gain >= best_.gain * (1.0 - 1e-14) && is_preferred)) {
      chosen_gain_ = gain;
      best_.scale = scale;
      best_.negative = caps.negative;
      reached_at_ = reached_at;
    }
    best_.gain = (std::max)(best_.gain, gain);
  }

  /// The order of grids that are equally good.
  [[nodiscard]] std::int32_t rank(std::int32_t negative) const noexcept {
    return negative == candidates_.first ? -1 : negative;
  }
  /// The gain at a scale.
  double look_at(double scale, level_caps caps) {
    const assignment a = assign(d_, scale, caps);
    const double b = a.b.to_double();
    const double c = a.c.to_double();
    consider(b, c, caps, scale);
    return gain_of(b, c);
  }

  /// The smallest scale at which the first grid clips nothing, neither a fraction of a step.
  [[nodiscard]] double scale_of_range() const noexcept {
    double scale = 0.0;
    for (std::size_t side = 0; side < 2; ++side) {
      const std::uint32_t cap = cap_of(candidates_.caps(candidates_.first), side);
      if (cap > 0) {
        scale = (std::max)(scale, largest_[side] / cap);
      }
    }
    return scale;
  }
  /// The scale above which no value needs a level beyond those of a grid.
  [[nodiscard]] double fitting_scale(std::int32_t negative) const noexcept {
    const level_caps caps = candidates_.caps(negative);
    return (std::max)(largest_[0] / (caps.negative + 0.5), largest_[1] / (caps.positive + 0.5));
  }
  /// The scale above which a side has a level to spare.
  [[nodiscard]] double spare_scale(std::size_t side, std::uint32_t cap) const noexcept {
    return cap == 0 ? std::numeric_limits<double>::infinity() : largest_[side] / (cap - 0.5);
  }

  /// Adds the error of the values of a side beyond the largest level. Stops beyond `allowed`.
  void add_clipping_error(std::size_t side, std::uint32_t cap, double scale, double allowed,
                          double& sum) const noexcept {
    const double end = cap * scale;
    if (!above_.empty()) {
      sum += clipping_error(side, end);
      return;
    }
    for (std::size_t i = end_[side];
         i-- > begin_[side] && elements_[i].magnitude > end && sum <= allowed;) {
      const double e = elements_[i].magnitude - end;
      sum += rounded_product(e * e, weight_of(elements_[i]));
    }
  }
  /// The same from sums, for many elements and grids.
  [[nodiscard]] double clipping_error(std::size_t side, double end) const noexcept {
    const auto at = [this](std::size_t i) {
      return elements_.begin() + static_cast<std::ptrdiff_t>(i);
    };
    const auto first =
        std::lower_bound(at(begin_[side]), at(end_[side]), end,
                         [](const element& e, double value) { return e.magnitude < value; });
    if (first == at(end_[side])) {
      return 0.0;
    }
    const moments& m = above_[static_cast<std::size_t>(first - elements_.begin())];
    return m.squares - rounded_product(2.0 * end, m.sum) + rounded_product(end * end, m.weight);
  }
  void sum_up_above() {
    above_.resize(elements_.size());
    for (std::size_t side = 0; side < 2; ++side) {
      moments m{};
      for (std::size_t i = end_[side]; i-- > begin_[side];) {
        const double weight = weight_of(elements_[i]);
        const double sum = elements_[i].magnitude * weight;
        m.weight += weight;
        m.sum += sum;
        m.squares += rounded_product(sum, elements_[i].magnitude);
        above_[i] = m;
      }
    }
  }
  static double weight_of(const element& e) noexcept {
    return static_cast<double>(Steps::weight_in(e.change));
  }

  /// Whether values beyond the largest levels alone have more error than allowed; this stays so as
  /// the scale falls.
  [[nodiscard]] bool clips_too_much(level_caps caps, double scale, double allowed) const noexcept {
    double sum = 0.0;
    add_clipping_error(0, cap_of(caps, 0), scale, allowed, sum);
    add_clipping_error(1, cap_of(caps, 1), scale, allowed, sum);
    return sum > allowed;
  }
  /// A scale below which a grid clips too much, not much too low.
  [[nodiscard]] double lowest_scale(level_caps caps, double scale, double allowed) const noexcept {
    constexpr double fall = 0.875;
    double low = scale;
    while (low > last_step_ && !clips_too_much(caps, low, allowed)) {
      low *= fall;
    }
    double high = (std::min)(scale, low / fall);
    for (int halving = 0; halving < 4; ++halving) {
      const double middle = 0.5 * (low + high);
      (clips_too_much(caps, middle, allowed) ? low : high) = middle;
    }
    return low;
  }

  /// The grid that clips nothing at the smallest scale.
  [[nodiscard]] std::int32_t widest_grid() const noexcept {
    const double share = largest_[0] / (largest_[0] + largest_[1]);
    std::int32_t widest = std::clamp(static_cast<std::int32_t>(candidates_.steps * share),
                                     candidates_.least, candidates_.most);
    while (widest < candidates_.most && fitting_scale(widest + 1) < fitting_scale(widest)) {
      ++widest;
    }
    while (widest > candidates_.least && fitting_scale(widest - 1) < fitting_scale(widest)) {
      --widest;
    }
    return widest;
  }

  /// Finds the intervals of finenesses in which grids may be the best ones. Tasks are in the order
  /// of grids.
  void choose_tasks() {
    constexpr std::size_t many = 2048;
    if (elements_.size() > many && candidates_.least < candidates_.most) {
      sum_up_above();
    }
    // Steps are at the values divided by k - 1/2, none of them above twice the largest value.
    const double top =
        1.0 / std::nextafter(2.0 * largest_magnitude_, std::numeric_limits<double>::infinity());
    const double error = d_.square_sum() - rounded_product(best_.gain, unit_ * unit_);
    const double allowed = error + d_.square_sum() * 1e-12;
    const std::int32_t widest = widest_grid();
    const double fitting = fitting_scale(widest);
    const auto add = [&](std::int32_t negative, double high) {
      const level_caps caps = candidates_.caps(negative);
      const double from = negative == widest ? top : 1.0 / high;
      tasks_.push_back({caps, from, 1.0 / lowest_scale(caps, high, allowed)});
    };
    // Towards either side the scales fall at which a grid clips on both sides, and it clips more
    // and more on the side that it has fewer levels on.
    for (const std::int32_t direction : {-1, 1}) {
      const std::size_t narrow = direction < 0 ? 0 : 1;
      for (std::int32_t i = widest + direction; i >= candidates_.least && i <= candidates_.most;
           i += direction) {
        const level_caps caps = candidates_.caps(i);
        const double high = (std::min)({fitting, spare_scale(0, cap_of(caps, 0)),
                                        spare_scale(1, cap_of(caps, 1))}) *
                            (1.0 + 1e-12);
        double clipped = 0.0;
        add_clipping_error(narrow, cap_of(caps, narrow), high, allowed, clipped);
        if (clipped > allowed) {
          break;
        }
        if (!clips_too_much(caps, high, allowed)) {
          add(i, high);
        }
      }
      if (direction < 0) {
        std::reverse(tasks_.begin(), tasks_.end());
        add(widest, fitting);
      }
    }
  }

  /// Sets the interval to that of all tasks. It is divided into parts of about `steps_of_part`
  /// steps.
  void set_interval() {
    from_ = tasks_[0].from;
    to_ = tasks_[0].to;
    for (const task& t : tasks_) {
      from_ = (std::min)(from_, t.from);
      to_ = (std::max)(to_, t.to);
    }
    const double steps = sum_ * (to_ - from_);
    parts_ = static_cast<std::size_t>(std::clamp(steps / steps_of_part, fewest_parts, most_parts_));
    per_fineness_ = static_cast<double>(parts_) / (to_ - from_);
    half_scales_.resize(parts_ + 1);
    per_half_scale_.resize(parts_);
    length_ = (to_ - from_) / static_cast<double>(parts_);
    double from = from_;
    half_scales_[0] = 0.5 / (from * unit_);
    for (std::size_t i = 0; i < parts_; ++i) {
      const double to = end_of_part(i + 1);
      half_scales_[i + 1] = 0.5 / (to * unit_);
      per_half_scale_[i] = 2.0 * unit_ * from * to * per_fineness_;
      from = to;
    }
  }
  /// The fineness at which a part begins and the one before it ends.
  [[nodiscard]] double end_of_part(std::size_t part) const noexcept {
    return part == parts_ ? to_ : from_ + rounded_product(static_cast<double>(part), length_);
  }

  /// The level of a value, at most `cap`.
  static std::uint32_t level_at(double magnitude, double fineness, double cap) noexcept {
    return static_cast<std::uint32_t>((std::min)(cap, rounded_product(magnitude, fineness) + 0.5));
  }
  /// Where the steps of an element to level `first` and beyond are.
  [[nodiscard]] places places_of(const element& e, std::uint32_t first) const noexcept {
    constexpr double one = static_cast<double>(std::uint64_t{1} << fraction_bits);
    const double place = (rounded_product(e.inverse, first - 0.5) - from_) * per_fineness_;
    // A distance beyond the interval is behind a single step.
    const double distance = (std::min)(e.inverse * per_fineness_, 2.0 * most_parts_);
    return {static_cast<std::uint64_t>((std::max)(0.0, place) * one),
            static_cast<std::uint64_t>(distance * one)};
  }

  /// Calls visit(element, side, level_before, last_level) for all elements that have steps before
  /// the end `to` of the interval, up to the given levels.
  template <class Visit>
  void for_each_element(level_caps caps, double to, const Visit& visit) const {
    for (std::size_t side = 0; side < 2; ++side) {
      const double cap = cap_of(caps, side);
      for (std::size_t i = end_[side]; i-- > begin_[side];) {
        const std::uint32_t last = level_at(elements_[i].magnitude, to, cap);
        if (last == 0) {
          break;  // nor have smaller ones
        }
        visit(elements_[i], side, level_at(elements_[i].magnitude, from_, cap), last);
      }
    }
  }

  /// Adds up the steps to levels that all tasks have.
  void add_common_steps(level_caps common) {
    sums_.assign(parts_ + 2, {});
    before_ = {};
    Steps* const sums = sums_.data();
    for_each_element(common, to_,
                     [&](const element& e, std::size_t, std::uint32_t level, std::uint32_t last) {
                       const amount change = e.change;
                       if (level > 0) {
                         before_.add_levels(change, level);
                       }
                       if (level >= last) {
                         return;
                       }
                       const places p = places_of(e, level + 1);
                       to_level next(level + 1);
                       std::uint64_t place = p.first;
                       for (std::uint32_t k = level; k < last; ++k) {
                         sums[place >> fraction_bits].add(change, next);
                         next.advance();
                         place += p.distance;
                       }
                     });
  }

  /// Adds or removes the steps to one level of one side.
  template <bool Adding>
  void change_level(std::size_t side, std::uint32_t level) {
    const to_level next(level);
    for (std::size_t i = end_[side]; i-- > begin_[side];) {
      const element& e = elements_[i];
      if (level_at(e.magnitude, to_, level) < level) {
        break;
      }
      Steps* sums = &before_;
      if (level_at(e.magnitude, from_, level) < level) {
        sums = &sums_[places_of(e, level).first >> fraction_bits];
      }
      if constexpr (Adding) {
        sums->add(e.change, next);
      } else {
        sums->remove(e.change, next);
      }
    }
  }

  /// Divides the interval of all tasks into parts, and finds those that may hold a better scale.
  void divide() {
    set_interval();
    level_caps caps = tasks_[0].caps;
    for (const task& t : tasks_) {
      caps = {(std::min)(caps.negative, t.caps.negative),
              (std::min)(caps.positive, t.caps.positive)};
    }
    add_common_steps(caps);
    live_.clear();
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const level_caps wanted = tasks_[t].caps;
      while (caps.negative < wanted.negative) {
        change_level<true>(0, static_cast<std::uint32_t>(++caps.negative));
      }
      while (caps.positive < wanted.positive) {
        change_level<true>(1, static_cast<std::uint32_t>(++caps.positive));
      }
      while (caps.positive > wanted.positive) {
        change_level<false>(1, static_cast<std::uint32_t>(caps.positive--));
      }
      look_at_parts(t);
    }
    drop_dead_parts();
  }

  void look_at_parts(std::size_t number) {
    const task& t = tasks_[number];
    const auto part_of = [&](double fineness) {
      const double at = (fineness - from_) * per_fineness_;
      return at > 0.0 ? (std::min)(parts_ - 1, static_cast<std::size_t>(at)) : 0;
    };
    // One part more at either end makes up for rounding.
    const std::size_t first = (std::max)(part_of(t.from), std::size_t{1}) - 1;
    const std::size_t last = (std::min)(parts_ - 1, part_of(t.to) + 1);
    Steps now = before_;
    for (std::size_t i = 0; i < first; ++i) {
      now += sums_[i];
    }
    sums_before_.resize(parts_ + 1);
    b_.resize(parts_ + 1);
    c_.resize(parts_ + 1);
    for (std::size_t i = first;; ++i) {
      sums_before_[i] = now;
      b_[i] = now.near_b();
      c_[i] = now.near_c();
      if (b_[i] * b_[i] > least_gain() * c_[i]) {
        consider(now, t, 2.0 * half_scales_[i] * unit_);
      }
      if (i > last) {
        break;
      }
      now += inside(i);
    }
    std::size_t first_live = parts_;
    std::size_t last_live = 0;
    for (std::size_t i = first; i <= last; ++i) {
      if (c_[i + 1] != c_[i] && may_matter(i)) {
        first_live = (std::min)(first_live, i);
        last_live = i;
        if (!is_of_groups()) {
          live_.push_back({number, i, bound_of(i), sums_before_[i], inside(i)});
        }
      }
    }
    if (is_of_groups() && first_live < parts_) {
      hulls_.push_back({t.caps, end_of_part(first_live), end_of_part(last_live + 1)});
    }
  }
  [[nodiscard]] bool is_of_groups() const noexcept {
    return needed_ < std::numeric_limits<double>::infinity();
  }
  /// The steps in a part. Rounding may have put some just behind the last one.
  [[nodiscard]] Steps inside(std::size_t part) const noexcept {
    Steps s = sums_[part];
    if (part + 1 == parts_) {
      s += sums_[parts_];
    }
    return s;
  }

  struct line_point {
    double b;
    double c;
  };
  /// Where the two lines that bound the sums in a part cross.
  [[nodiscard]] line_point crossing(std::size_t part) const noexcept {
    const double more_c = c_[part + 1] - c_[part];
    const double over = b_[part + 1] - b_[part] - rounded_product(half_scales_[part + 1], more_c);
    // Clamped, since rounding must not take it beyond the ends.
    const double at = (std::min)((std::max)(over * per_half_scale_[part], 0.0), more_c);
    return {b_[part] + rounded_product(half_scales_[part], at), c_[part] + at};
  }
  /// An upper bound of b^2 / c in a part.
  [[nodiscard]] double bound_of(std::size_t part) const noexcept {
    const line_point between = crossing(part);
    const double ends =
        (std::max)(gain_of(b_[part], c_[part]), gain_of(b_[part + 1], c_[part + 1]));
    return (std::max)(ends, gain_of(between.b, between.c)) * (1.0 + 1e-12);
  }
  /// Whether bound_of() may exceed threshold(), without its divisions.
  [[nodiscard]] bool may_matter(std::size_t part) const noexcept {
    const double least = threshold() * (1.0 - 2e-12);
    const line_point between = crossing(part);
    return between.b * between.b > least * between.c || b_[part] * b_[part] > least * c_[part] ||
           b_[part + 1] * b_[part + 1] > least * c_[part + 1];
  }

  void drop_dead_parts() {
    if (best_.gain >= most_) {
      live_.clear();
    }
    const double least = threshold();
    live_.erase(std::remove_if(live_.begin(), live_.end(),
                               [&](const live_part& p) { return !(p.bound > least); }),
                live_.end());
  }

  /// Narrows the intervals of tasks by groups of neighbouring elements, first large ones, then
  /// smaller ones. If each of n elements x_i moves by d_i, the root of the error of the nearest
  /// levels, a distance in a space of n dimensions, changes by the root of the sum of d_i^2 at
  /// most. So where the groups' means have more error than
  ///
  ///     (sqrt(least error found) + sqrt(spread of the elements around the means))^2
  ///
  /// the elements have more than the least error found.
  void narrow_by_groups() {
    constexpr double many = 5000.0;
    constexpr double growth = 4.0;
    const auto elements = static_cast<double>(elements_.size());
    if (elements > many) {
      look_around();
    }
    for (double groups = 512.0; elements > (std::max)(many, 4.0 * groups); groups *= growth) {
      assignment_search<weighted_steps> coarse(*this, largest_magnitude_ / groups);
      // With narrow parts, bounds are as sharp as groups allow; but each task looks at all of them.
      coarse.most_parts_ = tasks_.size() < 8 ? 512.0 : 256.0;
      coarse.needed_ = gain_needed_of(coarse);
      coarse.divide();
      tasks_ = coarse.hulls_;
      if (tasks_.empty()) {
        return;
      }
      // Near the best scale of the groups there is a good one.
      if (coarse.best_.scale > 0.0) {
        look_at(coarse.best_.scale, candidates_.caps(coarse.best_.negative));
      }
      if (best_.gain >= most_) {
        tasks_.clear();
        return;
      }
    }
  }
  /// Goes from the best scale found uphill in small steps.
  void look_around() {
    constexpr double fall = 0.95;
    const double scale = reached_at_;
    const std::int32_t negative = best_.negative;
    look_on(fall * scale, fall, negative);
    look_on(scale / fall, 1.0 / fall, negative);
  }
  /// The gain that groups must have where the elements may have the least error.
  [[nodiscard]] double gain_needed_of(const assignment_search<weighted_steps>& groups) const {
    const double squares = d_.square_sum();
    const double error = squares - rounded_product(best_.gain, unit_ * unit_) + squares * 1e-12;
    const double root = std::sqrt(error) + std::sqrt(groups.spread_);
    return (groups.square_sum_ - rounded_product(root, root) - squares * 1e-12) / (unit_ * unit_);
  }

  void divide_until_few() {
    const std::uint64_t few = few_steps + elements_.size() / 4;
    divide();
    std::uint64_t steps_before = std::numeric_limits<std::uint64_t>::max();
    while (!live_.empty()) {
      std::uint64_t steps = 0;
      for (const live_part& p : live_) {
        steps += p.inside.count();
      }
      // Where dividing does not help, many steps are at one scale.
      if (steps <= few || steps > steps_before / 4 * 3 || !((to_ - from_) * 1e9 > to_)) {
        return;
      }
      steps_before = steps;
      narrow_tasks();
      divide();
    }
  }

  /// Leaves the tasks that have parts, each with the interval of these.
  void narrow_tasks() {
    std::size_t count = 0;
    std::size_t previous = tasks_.size();
    for (const live_part& p : live_) {
      if (p.task != previous) {
        previous = p.task;
        tasks_[count++] = {tasks_[p.task].caps, end_of_part(p.part), 0.0};
      }
      tasks_[count - 1].to = end_of_part(p.part + 1);
    }
    tasks_.resize(count);
  }

  void take_one_by_one() {
    std::stable_sort(live_.begin(), live_.end(),
                     [](const live_part& a, const live_part& b) { return a.bound > b.bound; });
    // Steps are listed for some parts at a time. A gain that is found in the first parts often
    // rules out all others, so that their steps are never listed; and the lists stay small.
    const std::uint64_t most_steps = (std::max<std::uint64_t>)(1U << 12, elements_.size() / 4);
    std::uint64_t room = most_steps / 8;
    for (auto first = live_.begin(); first != live_.end() && first->bound > threshold();) {
      std::uint64_t steps = first->inside.count();
      auto last = first + 1;
      while (last != live_.end() && steps + last->inside.count() <= room) {
        steps += last->inside.count();
        ++last;
      }
      collect(std::span<const live_part>(first, last));
      for (; first != last && first->bound > threshold(); ++first) {
        take(*first);
      }
      first = last;
      room = most_steps;
    }
  }

  /// Lists the steps of some of the parts that are left, part by part.
  void collect(std::span<const live_part> parts) {
    std::size_t first = parts_;
    std::size_t last = 0;
    level_caps caps{0, 0};
    first_of_part_.assign(parts_ + 2, 0);
    for (const live_part& p : parts) {
      const level_caps own = tasks_[p.task].caps;
      caps = {(std::max)(caps.negative, own.negative), (std::max)(caps.positive, own.positive)};
      first = (std::min)(first, p.part);
      last = (std::max)(last, p.part);
      first_of_part_[p.part + 1] = 1;
    }
    // From a little before the first part to a little behind the last one.
    const double from = (std::max)(from_, end_of_part(first) - 0.01 * length_);
    const double to = (std::min)(to_, end_of_part(last + 1) + 0.01 * length_);
    std::vector<step>& steps = collected_;
    steps.clear();
    for_each_element(
        caps, to, [&](const element& e, std::size_t side, std::uint32_t level, std::uint32_t end) {
          const std::uint32_t skipped =
              (std::max)(level, level_at(e.magnitude, from, cap_of(caps, side)));
          if (skipped >= end) {
            return;
          }
          const places p = places_of(e, level + 1);
          std::uint64_t place = p.first + (skipped - level) * p.distance;
          for (std::uint32_t k = skipped + 1; k <= end; ++k, place += p.distance) {
            const std::size_t part =
                (std::min)(parts_ - 1, static_cast<std::size_t>(place >> fraction_bits));
            if (first_of_part_[part + 1] != 0) {
              steps.push_back(
                  {e.magnitude / (k - 0.5), k, static_cast<std::uint32_t>(side), part, e.change});
            }
          }
        });
    // A counting sort. While steps move, first_of_part_[i + 1] is the place of the next one of part
    // i; afterwards it is where part i ends, and part i + 1 begins.
    std::fill(first_of_part_.begin(), first_of_part_.end(), 0);
    for (const step& s : steps) {
      ++first_of_part_[s.part + 2];
    }
    for (std::size_t i = 1; i < first_of_part_.size(); ++i) {
      first_of_part_[i] += first_of_part_[i - 1];
    }
    steps_.resize(steps.size());
    for (const step& s : steps) {
      steps_[first_of_part_[s.part + 1]++] = s;
    }
  }

  /// The order in which steps are taken as the scale falls.
  static bool comes_first(const step& a, const step& b) noexcept {
    return a.scale != b.scale   ? a.scale > b.scale
           : a.level != b.level ? a.level < b.level
                                : a.side < b.side;
  }

  /// Takes the steps of one part one by one.
  void take(const live_part& p) {
    const task& t = tasks_[p.task];
    sorted_.clear();
    for (std::size_t i = first_of_part_[p.part]; i < first_of_part_[p.part + 1]; ++i) {
      if (steps_[i].level <= cap_of(t.caps, steps_[i].side)) {
        sorted_.push_back(steps_[i]);
      }
    }
    std::sort(sorted_.begin(), sorted_.end(), comes_first);
    Steps now = p.before;
    for (const step& s : sorted_) {
      now.add(s.change, to_level(s.level));
      const double b = now.near_b();
      if (b * b > least_gain() * now.near_c()) {
        consider(now, t, s.scale);
      }
    }
  }

  /// Other grids have the best assignment, too, if they have all of its levels. The first grid
  /// wins, then the one with the fewest levels below its zero point.
  void choose_first_of_equals() {
    const level_caps caps = candidates_.caps(best_.negative);
    std::int32_t needed[2];
    for (std::size_t side = 0; side < 2; ++side) {
      const std::uint32_t cap = cap_of(caps, side);
      std::uint32_t level = level_at(largest_[side], 1.0 / reached_at_, cap);
      while (level > 0 && largest_[side] / (level - 0.5) < reached_at_) {
        --level;
      }
      while (level < cap && largest_[side] / (level + 0.5) >= reached_at_) {
        ++level;
      }
      needed[side] = static_cast<std::int32_t>(level);
    }
    const bool first_has_them =
        candidates_.first >= needed[0] && candidates_.steps - candidates_.first >= needed[1];
    best_.negative = first_has_them ? candidates_.first : (std::max)(candidates_.least, needed[0]);
  }

  const distribution& d_;
  grid_candidates candidates_;
  double unit_;
  double most_ = 0.0;  // a gain that leaves next to no error
  best_assignment best_;
  double needed_ = std::numeric_limits<double>::infinity();  // what gains of groups must exceed
  double chosen_gain_ = 0.0;       // of best_.scale; best_.gain, up to rounding
  double least_better_ = 0.0;      // what a gain must exceed to replace that of the first scale
  double reached_at_ = 0.0;        // the scale of the best assignment's last step
  std::vector<element> elements_;  // in ascending order: of the negative side, then the positive
  std::vector<moments> above_;     // for each element, or empty
  std::size_t begin_[2] = {0, 0};
  std::size_t end_[2] = {0, 0};
  double largest_[2] = {0.0, 0.0};
  double largest_magnitude_ = 0.0;
  double most_parts_ = 256.0;
  double spread_ = 0.0;      // of the elements of groups around the means
  double square_sum_ = 0.0;  // of the means of groups
  double sum_ = 0.0;         // of magnitudes
  double last_step_ = std::numeric_limits<double>::infinity();  // no steps are at smaller scales
  std::vector<task> tasks_;
  // The interval of finenesses that is divided.
  double from_ = 0.0;
  double to_ = 0.0;
  std::size_t parts_ = 0;
  double length_ = 0.0;                 // of a part
  double per_fineness_ = 0.0;           // parts
  std::vector<double> half_scales_;     // at the ends of parts, in units
  std::vector<double> per_half_scale_;  // 1 / the difference of those at the ends of a part
  Steps before_;
  std::vector<Steps> sums_;         // of the steps in each part
  std::vector<Steps> sums_before_;  // of all steps before it
  std::vector<double> b_;           // the same as doubles
  std::vector<double> c_;
  std::vector<live_part> live_;
  std::vector<task> hulls_;      // of groups: the intervals of parts that are left
  std::vector<step> collected_;  // steps of some parts, in the order of the elements
  std::vector<step> steps_;      // the same steps, part by part
  std::vector<std::size_t> first_of_part_;
  std::vector<step> sorted_;  // those of one part, in the order in which they are taken
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ASSIGNMENT_SEARCH_HPP
