// SPDX-License-Identifier: BSD-3-Clause
// What scale solvers work on: values in order, with exact sums of all that lie beyond each of them,
// so that the squared error of a scale takes the time of a few binary searches.
//
// Magnitudes are integers in units of 2^(e - 60), 2^e being the power of two at or below the
// largest of them: exact for floats down to 2^-37 of the largest value, and rounded to half a unit
// below.
#ifndef DETENT_STATISTICS_DISTRIBUTION_HPP
#define DETENT_STATISTICS_DISTRIBUTION_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/uint128.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// How a scale was found and how good it is.
struct scale_evidence {
  std::string_view method;  // its name; a literal
  double objective = 0.0;   // what the method minimizes, at the parameters that it returns
  double lower_bound =
      0.0;                  // no parameters of the scheme have a smaller one; 0 where none is known
  std::uint64_t count = 0;  // values
  float lower = 0.0F;       // their range
  float upper = 0.0F;
  double clipped_fraction = 0.0;  // of the values, beyond the ends of the grid
};

struct scale_solution {
  quant_params params;
  scale_evidence evidence;
};

namespace detail {

/// A sum of doubles that is as good as if it had been rounded once or twice (Neumaier).
class compensated_sum {
 public:
  void add(double x) noexcept {
    const double next = sum_ + x;
    rest_ += std::fabs(sum_) >= std::fabs(x) ? (sum_ - next) + x : (x - next) + sum_;
    sum_ = next;
  }
  [[nodiscard]] double value() const noexcept { return sum_ + rest_; }

 private:
  double sum_ = 0.0;
  double rest_ = 0.0;
};

/// The values of one sign that are not zero.
struct distribution_side {
  std::vector<double> values;  // magnitudes, ascending
  // [i] is of values[i] and all larger ones; one more element, 0, behind the last.
  std::vector<uint128> sum_above;  // of weight * magnitude, in units
  std::vector<std::uint64_t> weight_above;

  [[nodiscard]] std::size_t size() const noexcept { return values.size(); }
  /// How many values are below `bound`, of which `first` are known to be.
  [[nodiscard]] std::size_t below(double bound, std::size_t first = 0) const noexcept {
    return static_cast<std::size_t>(
        std::lower_bound(values.begin() + static_cast<std::ptrdiff_t>(first), values.end(), bound) -
        values.begin());
  }
};

}  // namespace detail

/// A multiset of finite reals with integer weights. Thread-safe to read.
class distribution {
 public:
  /// Of values, each with weight 1. Throws invalid_argument if there are none, for null data, NaN
  /// and infinities.
  explicit distribution(std::span<const float> x) { take(x, {}); }

  /// Of values with a weight each, its importance: rounded to multiples of 2^-24 of the largest.
  /// Throws besides if a weight is negative or not finite, or none is positive; shape_mismatch.
  distribution(std::span<const float> x, std::span<const float> weights) {
    require(x.size() == weights.size(), error_kind::shape_mismatch, "distribution: ", x.size(),
            " values, ", weights.size(), " weights");
    float largest = 0.0F;
    for (const float w : weights) {
      require(std::isfinite(w) && w >= 0.0F, error_kind::invalid_argument,
              "distribution: the weight ", w, " is negative or not finite");
      largest = (std::max)(largest, w);
    }
    require(largest > 0.0F, error_kind::invalid_argument, "distribution: no weight is positive");
    std::vector<std::uint64_t> integers(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double share = static_cast<double>(weights[i]) / static_cast<double>(largest);
      integers[i] = static_cast<std::uint64_t>(std::llround(share * 0x1p24));
    }
    take(x, integers);
  }

  /// Of the bins of a histogram that has `range`: each as its mean. Values in the smallest bin of
  /// either sign, below 2^-30 of the largest magnitude, are zeros.
  distribution(std::span<const value_bin> bins, value_range range) { take(bins, range, false); }
  /// Throws as histogram::range().
  explicit distribution(const histogram& h) { take(h.bins(), h.range(), false); }

  /// Of bins: each as its two ends, weighted so that their mean is that of the bin, in units of
  /// 2^-14 of a value. No values that the bins may stand for are spread wider, so that no scale
  /// serves them better than these; see exact_mse() of bins.
  [[nodiscard]] static distribution of_bin_ends(std::span<const value_bin> bins,
                                                value_range range) {
    distribution d;
    d.take(bins, range, true);
    return d;
  }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// All weights together, zeros included.
  [[nodiscard]] std::uint64_t weight() const noexcept { return weight_; }
  [[nodiscard]] value_range range() const noexcept { return range_; }
  /// Real size of the unit of sums.
  [[nodiscard]] double unit() const noexcept { return unit_; }
  /// The sum of weight * x^2.
  [[nodiscard]] double square_sum() const noexcept { return square_sum_; }
  [[nodiscard]] const detail::distribution_side& positive() const noexcept { return positive_; }
  [[nodiscard]] const detail::distribution_side& negative() const noexcept { return negative_; }
  /// The largest |x|.
  [[nodiscard]] double magnitude() const noexcept {
    return static_cast<double>((std::max)(-range_.lower, range_.upper));
  }

 private:
  struct element {
    double value;
    detail::uint128 sum;  // weight * value / unit
    std::uint64_t weight;
  };

  distribution() = default;

  /// The unit for magnitudes up to `largest`, which have so many bits then.
  void choose_unit(double largest, int bits = 60) {
    unit_ = largest > 0.0 ? std::ldexp(1.0, std::ilogb(largest) - bits) : 1.0;
  }
  [[nodiscard]] std::uint64_t in_units(double magnitude) const {
    return static_cast<std::uint64_t>(std::llround(magnitude / unit_));
  }

  void take(std::span<const float> x, std::span<const std::uint64_t> weights) {
    require(!x.empty(), error_kind::invalid_argument, "distribution: there are no values");
    require(x.data() != nullptr, error_kind::invalid_argument, "distribution: null data with size ",
            x.size());
    range_ = {x[0] + 0.0F, x[0] + 0.0F};
    for (const float value : x) {
      require(std::isfinite(value), error_kind::invalid_argument, "distribution: the value ", value,
              " is not finite");
      range_ = {(std::min)(range_.lower, value) + 0.0F, (std::max)(range_.upper, value) + 0.0F};
    }
    choose_unit(magnitude());
    count_ = x.size();
    detail::compensated_sum squares;
    if (weights.empty()) {
      weight_ = x.size();
      std::vector<float> below;
      std::vector<float> above;
      for (const float value : x) {
        if (value != 0.0F) {
          (value < 0.0F ? below : above).push_back(std::fabs(value));
        }
      }
      const auto fill = [&](std::vector<float>& values, detail::distribution_side& side) {
        std::sort(values.begin(), values.end());
        reserve(side, values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double value = values[i];
          side.values[i] = value;
          side.weight_above[i] = values.size() - i;
          squares.add(value * value);  // exact
        }
        for (std::size_t i = values.size(); i-- > 0;) {
          side.sum_above[i] = side.sum_above[i + 1] + detail::uint128{0, in_units(side.values[i])};
        }
      };
      fill(below, negative_);
      fill(above, positive_);
    } else {
      std::vector<element> below;
      std::vector<element> above;
      for (std::size_t i = 0; i < x.size(); ++i) {
        weight_ += weights[i];
        const double value = std::fabs(static_cast<double>(x[i]));
        if (value != 0.0 && weights[i] != 0) {
          (x[i] < 0.0F ? below : above)
              .push_back({value, detail::multiply(in_units(value), weights[i]), weights[i]});
        }
      }
      fill_side(below, negative_, squares);
      fill_side(above, positive_, squares);
    }
    square_sum_ = squares.value();
  }

  void take(std::span<const value_bin> bins, value_range range, bool ends) {
    range_ = range;
    // Ends of bins are multiples of 2^-39 of the largest magnitude; with fewer bits their weights,
    // 2^14 for each value, leave sums room.
    choose_unit(magnitude(), ends ? 52 : 60);
    for (const value_bin& bin : bins) {
      count_ += bin.count;
      require(bin.excess_known || bin.smallest == 0.0F, error_kind::invalid_argument,
              "distribution: bins without sums");
    }
    require(count_ > 0 && count_ <= histogram::largest_count, error_kind::invalid_argument,
            "distribution: bins of ", count_, " values");
    constexpr int shift = kernels::bin_dropped_bits;
    weight_ = ends ? count_ << shift : count_;
    std::vector<element> below;
    std::vector<element> above;
    for (const value_bin& bin : bins) {
      if (bin.smallest == 0.0F && (!bin.excess_known || bin.largest == 0.0F)) {
        continue;  // zeros, or as good as zeros
      }
      std::vector<element>& side = bin.negative ? below : above;
      const std::uint64_t first = in_units(bin.smallest);
      if (!ends) {
        const std::uint64_t step = in_units(bin.unit());
        element e{0.0, detail::multiply(first, bin.count) + detail::multiply(step, bin.excess),
                  bin.count};
        e.value = e.sum.to_double() / static_cast<double>(bin.count) * unit_;
        side.push_back(e);
        continue;
      }
      // count - excess / 2^14 of the values at the first end, excess / 2^14 at the other.
      const std::uint64_t lower_weight = (bin.count << shift) - bin.excess;
      if (bin.smallest != 0.0F) {
        side.push_back({bin.smallest, detail::multiply(first, lower_weight), lower_weight});
      }
      if (bin.excess != 0) {
        side.push_back({bin.end(), detail::multiply(in_units(bin.end()), bin.excess), bin.excess});
      }
    }
    detail::compensated_sum squares;
    fill_side(below, negative_, squares);
    fill_side(above, positive_, squares);
    square_sum_ = squares.value();
  }

  static void reserve(detail::distribution_side& side, std::size_t size) {
    side.values.resize(size);
    side.sum_above.resize(size + 1);
    side.weight_above.resize(size + 1);
  }

  static void fill_side(std::vector<element>& elements, detail::distribution_side& side,
                        detail::compensated_sum& squares) {
    std::sort(elements.begin(), elements.end(), [](const element& a, const element& b) {
      return a.value != b.value ? a.value < b.value : a.weight < b.weight;
    });
    reserve(side, elements.size());
    for (std::size_t i = elements.size(); i-- > 0;) {
      const element& e = elements[i];
      side.values[i] = e.value;
      side.sum_above[i] = side.sum_above[i + 1] + e.sum;
      side.weight_above[i] = side.weight_above[i + 1] + e.weight;
      squares.add(detail::rounded_product(e.value * e.value, static_cast<double>(e.weight)));
    }
  }

  detail::distribution_side negative_;
  detail::distribution_side positive_;
  value_range range_;
  double unit_ = 1.0;
  double square_sum_ = 0.0;
  std::uint64_t count_ = 0;
  std::uint64_t weight_ = 0;
};

namespace detail {

/// What is left of a range, with zero, in [-clip, clip].
[[nodiscard]] inline value_range clipped(value_range range, float clip) noexcept {
  return {(std::max)((std::min)(range.lower, 0.0F), -clip),
          (std::min)((std::max)(range.upper, 0.0F), clip)};
}

/// How far the integers of a grid reach from the zero point, to either side.
struct level_caps {
  std::int32_t negative;
  std::int32_t positive;
};
[[nodiscard]] constexpr level_caps caps_of(grid levels, std::int32_t zero_point) noexcept {
  return {zero_point - levels.qmin, levels.qmax - zero_point};
}

/// With k_i the level nearest to x_i / scale, and weights w_i:
///
///   b = sum of w_i * |x_i| * |k_i|     c = sum of w_i * k_i^2
///
/// so that sum w_i * (x_i - scale * k_i)^2 = square_sum - 2 * scale * b + scale^2 * c, which is
/// square_sum - b^2 / c at the best scale for these k_i.
struct assignment {
  uint128 b;  // in units
  uint128 c;
  std::uint64_t levels = 0;  // sum of |k_i|, weights left out
};

inline void assign(const distribution_side& side, double scale, std::int32_t cap,
                   assignment& a) noexcept {
  std::size_t first = 0;
  for (std::int32_t k = 1; k <= cap; ++k) {
    first = side.below((k - 0.5) * scale, first);
    if (first == side.size()) {
      break;
    }
    a.b += side.sum_above[first];
    a.c += multiply(side.weight_above[first], static_cast<std::uint64_t>(2 * k - 1));
    a.levels += side.size() - first;
  }
}
[[nodiscard]] inline assignment assign(const distribution& d, double scale,
                                       level_caps caps) noexcept {
  assignment a;
  assign(d.negative(), scale, caps.negative, a);
  assign(d.positive(), scale, caps.positive, a);
  return a;
}

/// sum w_i * (x_i - scale * k_i)^2 / sum w_i, not below 0.
[[nodiscard]] inline double mean_squared_error(const distribution& d, double scale,
                                               level_caps caps) noexcept {
  const assignment a = assign(d, scale, caps);
  const double less = d.square_sum() - rounded_product(a.b.to_double() * d.unit(), 2.0 * scale);
  const double sum = less + rounded_product(a.c.to_double(), scale * scale);
  return (std::max)(0.0, sum) / static_cast<double>(d.weight());
}

/// Values that are nearer to a level beyond the grid, by weight.
[[nodiscard]] inline double clipped_fraction(const distribution& d, double scale,
                                             level_caps caps) noexcept {
  const auto beyond = [scale](const distribution_side& side, std::int32_t cap) {
    return side.weight_above[side.below((cap + 0.5) * scale)];
  };
  const std::uint64_t clipped =
      (d.negative().size() == 0 ? 0 : beyond(d.negative(), caps.negative)) +
      (d.positive().size() == 0 ? 0 : beyond(d.positive(), caps.positive));
  return static_cast<double>(clipped) / static_cast<double>(d.weight());
}

[[nodiscard]] inline scale_evidence evidence_of(const distribution& d, std::string_view method,
                                                quant_params p, grid levels) {
  scale_evidence e;
  e.method = method;
  e.objective = mean_squared_error(d, p.scale, caps_of(levels, p.zero_point));
  e.count = d.count();
  e.lower = d.range().lower;
  e.upper = d.range().upper;
  e.clipped_fraction = clipped_fraction(d, p.scale, caps_of(levels, p.zero_point));
  return e;
}

}  // namespace detail

/// The mean of the weighted squares of x - dequantize(quantize(x)), with the quotient taken as
/// exact. Throws invalid_argument if `p` is not of the grid.
[[nodiscard]] inline double mean_squared_error(const distribution& d, quant_params p, grid levels) {
  detail::require_scale(p.scale, "mean_squared_error");
  detail::require_zero_point(p.zero_point, levels, "mean_squared_error");
  return detail::mean_squared_error(d, p.scale, detail::caps_of(levels, p.zero_point));
}

DETENT_NAMESPACE_END

#endif  // DETENT_STATISTICS_DISTRIBUTION_HPP
