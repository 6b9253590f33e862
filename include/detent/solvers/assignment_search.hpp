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
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/uint128.hpp>
#include <detent/statistics/distribution.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The largest b^2 / c found, in units squared, with the scale that reaches it.
struct best_assignment {
  double gain = 0.0;
  double scale = 0.0;  // in real size, not in units
  std::size_t candidate = 0;
};

/// What steps of values with weight 1 add to b and c. Sums of the two halves of magnitudes need no
/// carries for up to 2^32 steps.
struct plain_steps {
  struct amount {
    std::uint64_t low;
    std::uint64_t high;
  };
  static amount amount_of(const uint128& sum, std::uint64_t /*weight*/) noexcept {
    return {sum.low & 0xFFFFFFFFU, sum.low >> 32};
  }

  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::uint64_t c_sum = 0;
  std::uint64_t count = 0;

  void add(const amount& a, std::uint64_t odd) noexcept {
    low += a.low;
    high += a.high;
    c_sum += odd;
    ++count;
  }
  void remove(const amount& a, std::uint64_t odd) noexcept {
    low -= a.low;
    high -= a.high;
    c_sum -= odd;
    --count;
  }
  /// The first `level` steps of a value.
  void add_levels(const amount& a, std::uint64_t level) noexcept {
    low += a.low * level;
    high += a.high * level;
    c_sum += level * level;
    count += level;
  }
  plain_steps& operator+=(const plain_steps& other) noexcept {
    low += other.low;
    high += other.high;
    c_sum += other.c_sum;
    count += other.count;
    return *this;
  }
  [[nodiscard]] uint128 b() const noexcept {
    return uint128{high >> 32, high << 32} + uint128{0, low};
  }
  [[nodiscard]] uint128 c() const noexcept { return {0, c_sum}; }
};

/// What steps of values with any weights add to b and c.
struct weighted_steps {
  struct amount {
    uint128 sum;
    std::uint64_t weight;
  };
  static amount amount_of(const uint128& sum, std::uint64_t weight) noexcept {
    return {sum, weight};
  }

  uint128 b_sum;
  uint128 c_sum;
  std::uint64_t count = 0;

  void add(const amount& a, std::uint64_t odd) noexcept {
    b_sum += a.sum;
    c_sum += multiply_by_small(a.weight, odd);
    ++count;
  }
  void remove(const amount& a, std::uint64_t odd) noexcept {
    b_sum -= a.sum;
    c_sum -= multiply_by_small(a.weight, odd);
    --count;
  }
  void add_levels(const amount& a, std::uint64_t level) noexcept {
    b_sum += multiply(a.sum, level);
    c_sum += multiply(a.weight, level * level);
    count += level;
  }
  weighted_steps& operator+=(const weighted_steps& other) noexcept {
    b_sum += other.b_sum;
    c_sum += other.c_sum;
    count += other.count;
    return *this;
  }
  [[nodiscard]] uint128 b() const noexcept { return b_sum; }
  [[nodiscard]] uint128 c() const noexcept { return c_sum; }
};

/// Searches the largest b^2 / c over all scales and several candidates, whose grids have equally
/// many levels and reach differently far to either side. Among candidates that are equally good
/// because they clip nothing, the first one wins.
template <class Steps>
class assignment_search {
 public:
  assignment_search(const distribution& d, const std::vector<level_caps>& candidates)
      : d_(d), candidates_(candidates) {
    add_elements(d.negative(), 0);
    add_elements(d.positive(), 1);
  }

  best_assignment run() {
    const double largest = (std::max)(largest_[0], largest_[1]);
    if (!(largest > 0.0)) {
      return best_;
    }
    // If next to no error is left, the search ends.
    most_ = d_.square_sum() / (d_.unit() * d_.unit()) * (1.0 - 1e-13);
    // The first scale that is tried clips nothing. It is near the best one with many levels, and
    // where several scales leave no error, it is the finest of them, which serves biases best.
    const double whole = scale_of_range(candidates_[0]);
    consider_first(assign(d_, whole, candidates_[0]), whole);
    if (best_.gain >= most_) {
      return best_;
    }
    choose_tasks(largest);
    divide_until_few();
    take_one_by_one();
    choose_first_of_equals();
    return best_;
  }

 private:
  using amount = typename Steps::amount;
  struct element {
    double magnitude;
    double inverse;
    amount step;
  };
  /// A candidate, and the finenesses between which it may be the best one.
  struct task {
    std::size_t candidate;
    double from;
    double to;
  };
  /// A part of the interval, for one candidate.
  struct live_part {
    std::size_t task;
    std::size_t part;
    double bound;
    Steps before;  // all steps of the candidate at larger scales
    Steps inside;
  };
  struct step {
    double scale;
    std::uint32_t level;
    std::uint32_t side;
    std::size_t part;
    amount change;
  };
  /// The steps of an element between the ends of the interval.
  struct element_steps {
    std::uint32_t first;
    std::uint32_t last;
    std::uint64_t place;     // of the first one, in parts, with `fraction_bits` bits of fraction
    std::uint64_t distance;  // from step to step
  };

  static constexpr int fraction_bits = 40;
  static constexpr std::uint32_t most_levels = 1U << 18;

  void add_elements(const distribution_side& side, std::size_t number) {
    begin_[number] = elements_.size();
    elements_.reserve(elements_.size() + side.size());
    for (std::size_t i = 0; i < side.size(); ++i) {
      elements_.push_back({side.values[i], 1.0 / side.values[i],
                           Steps::amount_of(side.sum_above[i] - side.sum_above[i + 1],
                                            side.weight_above[i] - side.weight_above[i + 1])});
    }
    end_[number] = elements_.size();
    largest_[number] = side.size() != 0 ? side.values.back() : 0.0;
    if (side.size() != 0) {
      last_step_ = (std::min)(last_step_, side.values.front() / most_levels);
    }
  }

  [[nodiscard]] static std::uint32_t cap_of(level_caps caps, std::size_t side) noexcept {
    return static_cast<std::uint32_t>(side == 0 ? caps.negative : caps.positive);
  }

  static double gain_of(double b, double c) noexcept { return c > 0.0 ? b * b / c : 0.0; }
  /// What a bound must exceed to matter.
  [[nodiscard]] double threshold() const noexcept { return best_.gain * (1.0 + 1e-14); }

  void consider_first(const assignment& a, double scale) {
    const double b = a.b.to_double();
    const double c = a.c.to_double();
    best_ = {gain_of(b, c), c > 0.0 ? b / c * d_.unit() : 0.0, 0};
    first_gain_ = best_.gain * (1.0 + 1e-14);
    reached_at_ = scale;
  }
  /// Sums of equal errors may differ by rounding, so the gain must exceed that of the first scale
  /// by more than that. Of equal gains, the larger scale's counts.
  void consider(const Steps& s, std::size_t candidate, double scale) {
    const double b = s.b().to_double();
    const double c = s.c().to_double();
    const double gain = gain_of(b, c);
    if (gain > best_.gain && gain > first_gain_) {
      best_ = {gain, b / c * d_.unit(), candidate};
      reached_at_ = scale;
    }
  }

  /// The smallest scale at which a candidate clips nothing, neither by a fraction of a step.
  [[nodiscard]] double scale_of_range(level_caps caps) const noexcept {
    double scale = 0.0;
    for (std::size_t side = 0; side < 2; ++side) {
      if (largest_[side] > 0.0 && cap_of(caps, side) > 0) {
        scale = (std::max)(scale, largest_[side] / cap_of(caps, side));
      }
    }
    return scale;
  }
  /// The scale above which the largest value of a side needs no level beyond `cap`.
  [[nodiscard]] double fitting_scale(std::size_t side, std::uint32_t cap) const noexcept {
    return largest_[side] / (cap + 0.5);
  }
  /// The scale above which the largest value of a side does not need level `cap`.
  [[nodiscard]] double spare_scale(std::size_t side, std::uint32_t cap) const noexcept {
    return cap == 0 ? std::numeric_limits<double>::infinity() : largest_[side] / (cap - 0.5);
  }

  /// The least error that values beyond the largest level have; it grows as the scale falls.
  [[nodiscard]] double clipping_error(std::size_t side, std::uint32_t cap, double scale) const {
    const double end = cap * scale;
    double sum = 0.0;
    for (std::size_t i = end_[side]; i-- > begin_[side] && elements_[i].magnitude > end;) {
      const double e = elements_[i].magnitude - end;
      sum += e * e * weight_of(elements_[i].step);
    }
    return sum;
  }
  [[nodiscard]] double clipping_error(level_caps caps, double scale) const {
    return clipping_error(0, cap_of(caps, 0), scale) + clipping_error(1, cap_of(caps, 1), scale);
  }
  static double weight_of(const plain_steps::amount& /*a*/) noexcept { return 1.0; }
  static double weight_of(const weighted_steps::amount& a) noexcept {
    return static_cast<double>(a.weight);
  }

  /// A scale below which a candidate clips more than it may.
  [[nodiscard]] double lowest_scale(level_caps caps, double scale, double allowed) const {
    double low = scale;
    while (low > last_step_ && clipping_error(caps, low) <= allowed) {
      low *= 0.875;
    }
    return low;
  }

  void choose_tasks(double largest) {
    // Steps are at the values divided by k - 1/2, none of them above twice the largest value.
    const double top = 1.0 / std::nextafter(2.0 * largest, std::numeric_limits<double>::infinity());
    const double error = d_.square_sum() - rounded_product(best_.gain, d_.unit() * d_.unit());
    const double allowed = error + d_.square_sum() * 1e-12;
    const auto fits = [&](std::size_t i) {
      return (std::max)(fitting_scale(0, cap_of(candidates_[i], 0)),
                        fitting_scale(1, cap_of(candidates_[i], 1)));
    };
    widest_ = 0;
    for (std::size_t i = 1; i < candidates_.size(); ++i) {
      widest_ = fits(i) < fits(widest_) ? i : widest_;
    }
    const double fitting = fits(widest_);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const level_caps caps = candidates_[i];
      double high = fitting;
      if (i != widest_) {
        for (std::size_t side = 0; side < 2; ++side) {
          high = (std::min)(high, spare_scale(side, cap_of(caps, side)));
        }
        high *= 1.0 + 1e-12;
        if (clipping_error(caps, high) > allowed) {
          continue;
        }
      }
      tasks_.push_back(
          {i, i == widest_ ? top : 1.0 / high, 1.0 / lowest_scale(caps, high, allowed)});
    }
    std::sort(tasks_.begin(), tasks_.end(), [&](const task& a, const task& b) {
      return candidates_[a.candidate].negative < candidates_[b.candidate].negative;
    });
  }

  void set_interval(std::size_t parts) {
    from_ = tasks_[0].from;
    to_ = tasks_[0].to;
    for (const task& t : tasks_) {
      from_ = (std::min)(from_, t.from);
      to_ = (std::max)(to_, t.to);
    }
    parts_ = parts;
    per_fineness_ = static_cast<double>(parts) / (to_ - from_);
    half_scales_.resize(parts + 1);
    const double length = (to_ - from_) / static_cast<double>(parts);
    for (std::size_t i = 0; i <= parts; ++i) {
      const double fineness =
          i == parts ? to_ : from_ + rounded_product(length, static_cast<double>(i));
      half_scales_[i] = 0.5 / (fineness * d_.unit());
    }
  }

  /// The level of a value, at most `cap`.
  static std::uint32_t level_at(double magnitude, double fineness, std::uint32_t cap) noexcept {
    return static_cast<std::uint32_t>(
        (std::min)(static_cast<double>(cap), rounded_product(magnitude, fineness) + 0.5));
  }
  void set_places(const element& e, element_steps& s) const noexcept {
    constexpr double one = static_cast<double>(std::uint64_t{1} << fraction_bits);
    const double distance = e.inverse * per_fineness_;
    const double place =
        rounded_product(e.inverse, s.first - 0.5) - from_;  // in finenesses, so without FMA
    s.place = static_cast<std::uint64_t>((std::max)(0.0, place * per_fineness_) * one);
    // A distance beyond the interval is that of a single step.
    s.distance = static_cast<std::uint64_t>((std::min)(distance, 2.0 * parts_) * one);
  }

  /// Adds up the steps of all elements up to the levels that all tasks have.
  void sum_up_common_steps() {
    sums_.assign(parts_ + 2, {});
    before_ = {};
    for (std::size_t side = 0; side < 2; ++side) {
      std::uint32_t cap = std::numeric_limits<std::uint32_t>::max();
      for (const task& t : tasks_) {
        cap = (std::min)(cap, cap_of(candidates_[t.candidate], side));
      }
      common_[side] = cap;
      for (std::size_t i = end_[side]; i-- > begin_[side];) {
        const element& e = elements_[i];
        const std::uint32_t last = level_at(e.magnitude, to_, cap);
        if (last == 0) {
          break;
        }
        const std::uint32_t level = level_at(e.magnitude, from_, cap);
        before_.add_levels(e.step, level);
        if (level >= last) {
          continue;
        }
        element_steps s{level + 1, last, 0, 0};
        set_places(e, s);
        std::uint64_t odd = 2 * s.first - 1;
        const std::uint64_t end = 2 * s.last - 1;
        for (std::uint64_t place = s.place; odd <= end; odd += 2, place += s.distance) {
          sums_[place >> fraction_bits].add(e.step, odd);
        }
      }
    }
  }

  /// Adds or removes the steps to one level of one side.
  template <bool Adding>
  void change_level(std::size_t side, std::uint32_t level) {
    for (std::size_t i = end_[side]; i-- > begin_[side];) {
      const element& e = elements_[i];
      if (level_at(e.magnitude, to_, level) < level) {
        break;
      }
      Steps* sums = &before_;
      if (level_at(e.magnitude, from_, level) < level) {
        element_steps s{level, level, 0, 0};
        set_places(e, s);
        sums = &sums_[s.place >> fraction_bits];
      }
      if constexpr (Adding) {
        sums->add(e.step, 2 * level - 1);
      } else {
        sums->remove(e.step, 2 * level - 1);
      }
    }
  }

  /// Divides the interval of all tasks into parts, and finds those that may hold a better scale.
  void divide(std::size_t parts) {
    set_interval(parts);
    sum_up_common_steps();
    live_.clear();
    std::uint32_t caps[2] = {common_[0], common_[1]};
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      for (std::size_t side = 0; side < 2; ++side) {
        const std::uint32_t cap = cap_of(candidates_[tasks_[t].candidate], side);
        for (; caps[side] < cap; ++caps[side]) {
          change_level<true>(side, caps[side] + 1);
        }
        for (; caps[side] > cap; --caps[side]) {
          change_level<false>(side, caps[side]);
        }
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
    std::size_t first = part_of(t.from);
    first -= first > 0 ? 1 : 0;
    const std::size_t last = (std::min)(parts_ - 1, part_of(t.to) + 1);
    Steps now = before_;
    for (std::size_t i = 0; i < first; ++i) {
      now += sums_[i];
    }
    b_.resize(parts_ + 1);
    c_.resize(parts_ + 1);
    running_.resize(parts_ + 1);
    running_[first] = now;
    for (std::size_t i = first; i <= last; ++i) {
      b_[i] = now.b().to_double();
      c_[i] = now.c().to_double();
      now += sums_[i];
      if (i + 1 == parts_) {
        now += sums_[parts_];
      }
      running_[i + 1] = now;
    }
    b_[last + 1] = now.b().to_double();
    c_[last + 1] = now.c().to_double();
    for (std::size_t i = first; i <= last + 1; ++i) {
      if (b_[i] * b_[i] > best_.gain * c_[i]) {
        consider(running_[i], t.candidate, 2.0 * half_scales_[i] * d_.unit());
      }
    }
    const double least = threshold() * (1.0 - 1e-12);
    for (std::size_t i = first; i <= last; ++i) {
      const double more_b = b_[i + 1] - b_[i];
      const double more_c = c_[i + 1] - c_[i];
      if (more_c == 0.0) {
        continue;
      }
      const double bound = bound_of(b_[i], c_[i], more_b, more_c, half_scales_[i],
                                    half_scales_[i + 1]);
      if (bound > least) {
        Steps inside = sums_[i];
        if (i + 1 == parts_) {
          inside += sums_[parts_];
        }
        live_.push_back({number, i, bound, running_[i], inside});
      }
    }
  }

  /// An upper bound of b^2 / c between two scales, up to rounding.
  static double bound_of(double b, double c, double more_b, double more_c, double upper,
                         double lower) noexcept {
    // Where the two lines cross, in [0, more_c]; clamped, since rounding must not take it beyond.
    const double over = more_b - rounded_product(lower, more_c);
    const double crossing = std::clamp(over / (upper - lower), 0.0, more_c);
    const double ends = (std::max)(gain_of(b, c), gain_of(b + more_b, c + more_c));
    const double between = gain_of(b + rounded_product(upper, crossing), c + crossing);
    return (std::max)(ends, between) * (1.0 + 1e-12);
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

  void divide_until_few() {
    divide(first_parts);
    std::uint64_t steps_before = std::numeric_limits<std::uint64_t>::max();
    while (!live_.empty()) {
      std::uint64_t steps = 0;
      for (const live_part& p : live_) {
        steps += p.inside.count;
      }
      if (steps <= few_steps || steps > steps_before / 2 + steps_before / 4 ||
          !((to_ - from_) * 1e9 > to_)) {
        return;
      }
      steps_before = steps;
      narrow_tasks();
      divide(more_parts);
    }
  }

  /// Leaves the tasks that have parts, each with the interval of these.
  void narrow_tasks() {
    const double length = (to_ - from_) / static_cast<double>(parts_);
    std::vector<task> narrow;
    std::size_t previous = tasks_.size();
    for (const live_part& p : live_) {
      const double from = from_ + rounded_product(length, static_cast<double>(p.part));
      const double to = p.part + 1 == parts_
                            ? to_
                            : from_ + rounded_product(length, static_cast<double>(p.part + 1));
      if (p.task != previous) {
        narrow.push_back({tasks_[p.task].candidate, from, to});
        previous = p.task;
      }
      narrow.back().to = to;
    }
    tasks_ = std::move(narrow);
  }

  /// The order in which steps are taken as the scale falls.
  static bool comes_first(const step& a, const step& b) noexcept {
    return a.scale != b.scale   ? a.scale > b.scale
           : a.level != b.level ? a.level < b.level
                                : a.side < b.side;
  }

  void take_one_by_one() {
    if (live_.empty()) {
      return;
    }
    collect();
    std::stable_sort(live_.begin(), live_.end(),
                     [](const live_part& a, const live_part& b) { return a.bound > b.bound; });
    for (const live_part& p : live_) {
      if (p.bound > threshold()) {
        take(p);
      }
    }
  }

  /// Lists the steps of all parts that are left.
  void collect() {
    first_of_part_.assign(parts_ + 1, 0);
    std::uint32_t caps[2] = {0, 0};
    for (const live_part& p : live_) {
      first_of_part_[p.part + 1] = 1;
      for (std::size_t side = 0; side < 2; ++side) {
        caps[side] =
            (std::max)(caps[side], cap_of(candidates_[tasks_[p.task].candidate], side));
      }
    }
    std::vector<step> steps;
    for (std::size_t side = 0; side < 2; ++side) {
      for (std::size_t i = end_[side]; i-- > begin_[side];) {
        const element& e = elements_[i];
        const std::uint32_t last = level_at(e.magnitude, to_, caps[side]);
        if (last == 0) {
          break;
        }
        const std::uint32_t level = level_at(e.magnitude, from_, caps[side]);
        if (level >= last) {
          continue;
        }
        element_steps s{level + 1, last, 0, 0};
        set_places(e, s);
        for (std::uint32_t k = s.first; k <= s.last; ++k, s.place += s.distance) {
          const std::size_t part =
              (std::min)(parts_ - 1, static_cast<std::size_t>(s.place >> fraction_bits));
          if (first_of_part_[part + 1] != 0) {
            steps.push_back({e.magnitude / (k - 0.5), k, static_cast<std::uint32_t>(side), part,
                             e.step});
          }
        }
      }
    }
    std::fill(first_of_part_.begin(), first_of_part_.end(), 0);
    for (const step& s : steps) {
      ++first_of_part_[s.part + 1];
    }
    for (std::size_t i = 0; i < parts_; ++i) {
      first_of_part_[i + 1] += first_of_part_[i];
    }
    steps_.resize(steps.size());
    std::vector<std::size_t> next = first_of_part_;
    for (const step& s : steps) {
      steps_[next[s.part]++] = s;
    }
  }

  /// Takes the steps of one part one by one.
  void take(const live_part& p) {
    const level_caps caps = candidates_[tasks_[p.task].candidate];
    sorted_.clear();
    for (std::size_t i = first_of_part_[p.part]; i < first_of_part_[p.part + 1]; ++i) {
      if (steps_[i].level <= cap_of(caps, steps_[i].side)) {
        sorted_.push_back(steps_[i]);
      }
    }
    std::sort(sorted_.begin(), sorted_.end(), comes_first);
    Steps now = p.before;
    for (const step& s : sorted_) {
      now.add(s.change, 2 * s.level - 1);
      const double b = now.b().to_double();
      if (b * b > best_.gain * now.c().to_double()) {
        consider(now, tasks_[p.task].candidate, s.scale);
      }
    }
  }

  /// Other candidates have the best assignment, too, if they have all of its levels.
  void choose_first_of_equals() {
    std::uint32_t needed[2];
    for (std::size_t side = 0; side < 2; ++side) {
      const std::uint32_t cap = cap_of(candidates_[best_.candidate], side);
      std::uint32_t level = level_at(largest_[side], 1.0 / reached_at_, cap);
      while (level > 0 && largest_[side] / (level - 0.5) < reached_at_) {
        --level;
      }
      while (level < cap && largest_[side] / (level + 0.5) >= reached_at_) {
        ++level;
      }
      needed[side] = level;
    }
    for (std::size_t i = 0; i < best_.candidate; ++i) {
      if (cap_of(candidates_[i], 0) >= needed[0] && cap_of(candidates_[i], 1) >= needed[1]) {
        best_.candidate = i;
      }
    }
  }

 public:
  static inline std::size_t first_parts = 256;
  static inline std::size_t more_parts = 512;
  static inline std::uint64_t few_steps = 1000;

 private:
  const distribution& d_;
  const std::vector<level_caps>& candidates_;
  best_assignment best_;
  double first_gain_ = 0.0;
  double reached_at_ = 0.0;  // the scale of the best assignment's last step
  std::size_t widest_ = 0;   // the candidate that clips nothing at the smallest scale
  std::vector<element> elements_;
  std::size_t begin_[2] = {0, 0};
  std::size_t end_[2] = {0, 0};
  double largest_[2] = {0.0, 0.0};
  double last_step_ = std::numeric_limits<double>::infinity();  // no steps are at smaller scales
  double most_ = 0.0;  // a gain that leaves next to no error
  std::vector<task> tasks_;
  double from_ = 0.0;
  double to_ = 0.0;
  double per_fineness_ = 0.0;
  std::size_t parts_ = 0;
  std::uint32_t common_[2] = {0, 0};
  std::vector<double> half_scales_;  // at the ends of parts, in units
  std::vector<Steps> sums_;
  Steps before_;
  std::vector<double> b_;
  std::vector<double> c_;
  std::vector<Steps> running_;
  std::vector<live_part> live_;
  std::vector<step> steps_;
  std::vector<std::size_t> first_of_part_;
  std::vector<step> sorted_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ASSIGNMENT_SEARCH_HPP
