// SPDX-License-Identifier: BSD-3-Clause
// What scale solvers work on: values in sorted order, with the exact sum of all values beyond each
// of them. The squared error of a scale then takes a few binary searches.
//
// Magnitudes are integers in units of 2^(e - 60), where 2^e is the power of two at or below the
// largest magnitude. This is exact for floats down to 2^-37 of the largest value; smaller ones are
// rounded to half a unit.
#ifndef DETENT_STATISTICS_DISTRIBUTION_HPP
#define DETENT_STATISTICS_DISTRIBUTION_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
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
#include <detent/statistics/sorting.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// How a scale was found and how good it is.
struct scale_evidence {
  std::string_view method;  ///< name of the method, a string literal
  double objective = 0.0;   ///< what the method minimizes, at the parameters that it returns
  /// No parameters of the scheme have a smaller objective; 0 if no bound is known.
  double lower_bound = 0.0;
  std::uint64_t count = 0;        ///< number of values
  float lower = 0.0F;             ///< the smallest value
  float upper = 0.0F;             ///< the largest value
  double clipped_fraction = 0.0;  ///< share of the values beyond the ends of the grid
};

/// A scale and a zero point, with the evidence for them.
struct scale_solution {
  quant_params params;      ///< the scale and the zero point
  scale_evidence evidence;  ///< how they were found and how good they are
};

namespace detail {

/// A sum of doubles that is about as accurate as if it had been computed exactly and rounded once
/// or twice (Neumaier).
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

/// The values of one sign, without zeros.
struct distribution_side {
  std::vector<double> values;  // magnitudes, ascending
  // Element i sums up values[i] and all larger values. One more element, 0, follows.
  std::vector<uint128> sum_above;           // of weight * magnitude, in units of unit()
  std::vector<std::uint64_t> weight_above;  // weights

  [[nodiscard]] std::size_t size() const noexcept { return values.size(); }
  /// How many values are below `bound`; the first `first` of them are known to be.
  [[nodiscard]] std::size_t below(double bound, std::size_t first = 0) const noexcept {
    return static_cast<std::size_t>(
        std::lower_bound(values.begin() + static_cast<std::ptrdiff_t>(first), values.end(), bound) -
        values.begin());
  }
  /// The same, faster if few values are between that and `bound`.
  [[nodiscard]] std::size_t below_next(double bound, std::size_t first) const noexcept {
    std::size_t last = first;
    for (std::size_t step = 1; last < size() && values[last] < bound; step += step) {
      first = last + 1;
      last += step;
    }
    const auto at = [this](std::size_t i) {
      return values.begin() + static_cast<std::ptrdiff_t>(i);
    };
    return static_cast<std::size_t>(
        std::lower_bound(at(first), at((std::min)(last, size())), bound) - values.begin());
  }
};

}  // namespace detail

/// A multiset of finite real values with integer weights, sorted and with prefix sums, as scale
/// solvers need it. Immutable after construction and thread-safe to read.
class distribution {
 public:
  /// The distribution of the values `x`, each with weight 1. Throws invalid_argument if there are
  /// none, or for null data, NaN and infinities.
  explicit distribution(std::span<const float> x) { take(x, {}); }

  /// The distribution of values with an importance weight each. Weights are rounded to multiples of
  /// 2^-24 of the largest one. Throws invalid_argument if there are no values, for null data, if a
  /// value is NaN or infinite, if a weight is negative or not finite, or if no weight is positive;
  /// shape_mismatch if the sizes differ.
  distribution(std::span<const float> x, std::span<const float> weights) {
    require(x.size() == weights.size(), error_kind::shape_mismatch, "distribution: ", x.size(),
            " values, ", weights.size(), " weights");
    require(weights.empty() || weights.data() != nullptr, error_kind::invalid_argument,
            "distribution: null weights with size ", weights.size());
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

  /// The distribution of the bins of a histogram whose range is `range`: all values of a bin count
  /// with their mean. Values in the smallest bin of either sign, below 2^-30 of the largest
  /// magnitude, count as zeros. Throws invalid_argument if there are no values or more than 2^48,
  /// for bins without sums, and for bins whose magnitudes, counts or sums are impossible in this
  /// range. Bins must be those of a histogram and ascend, which is not checked.
  distribution(std::span<const value_bin> bins, value_range range) { take(bins, range, false); }
  /// The distribution of a histogram: all values of a bin count with their mean. Throws what
  /// histogram::range() throws.
  explicit distribution(const histogram& h) { take(h.bins(), h.range(), false); }

  /// The distribution that puts each bin's values at the two ends of the bin, weighted so that the
  /// bin's mean stays; weights count in units of 2^-14 of a value. No values that the bins may
  /// stand for are spread wider, so that the error of the best scale for these values bounds that
  /// of the best scale for the values from below; see exact_mse() of bins. Throws like the
  /// constructor from bins.
  [[nodiscard]] static distribution of_bin_ends(std::span<const value_bin> bins,
                                                value_range range) {
    distribution d;
    d.take(bins, range, true);
    return d;
  }

  /// How many values there are, zeros included.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// The sum of all weights, zeros included.
  [[nodiscard]] std::uint64_t weight() const noexcept { return weight_; }
  /// The smallest and the largest value.
  [[nodiscard]] value_range range() const noexcept { return range_; }
  /// The real size of the unit in which sums of magnitudes are kept.
  [[nodiscard]] double unit() const noexcept { return unit_; }
  /// The sum of weight * x^2.
  [[nodiscard]] double square_sum() const noexcept { return square_sum_; }
  /// The values above zero.
  [[nodiscard]] const detail::distribution_side& positive() const noexcept { return positive_; }
  /// The magnitudes of the values below zero.
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

  /// Sets the unit so that `largest` has `bits` bits behind its leading one.
  void choose_unit(double largest, int bits = 60) {
    unit_ = largest > 0.0 ? std::ldexp(1.0, std::ilogb(largest) - bits) : 1.0;
    per_unit_ = 1.0 / unit_;  // exact, since both are powers of two
  }
  /// The magnitude in units, rounded; halves are rounded up.
  [[nodiscard]] std::uint64_t in_units(double magnitude) const noexcept {
    const double exact = magnitude * per_unit_;
    const auto whole = static_cast<std::int64_t>(exact);
    return static_cast<std::uint64_t>(whole + (exact - static_cast<double>(whole) >= 0.5 ? 1 : 0));
  }

  void take(std::span<const float> x, std::span<const std::uint64_t> weights) {
    require(!x.empty(), error_kind::invalid_argument, "distribution: there are no values");
    require(x.data() != nullptr, error_kind::invalid_argument, "distribution: null data with size ",
            x.size());
    const kernels::min_max_result r =
        detail::active<kernels::statistics_kernels>().min_max(x.data(), x.size());
    if (r.count_nan != 0 || !std::isfinite(r.lower) || !std::isfinite(r.upper)) {
      for (const float value : x) {
        require(std::isfinite(value), error_kind::invalid_argument, "distribution: the value ",
                value, " is not finite");
      }
    }
    range_ = {r.lower + 0.0F, r.upper + 0.0F};
    weight_ = weights.empty() ? x.size()
                              : std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
    // Sums of 2^16 levels times the magnitudes stay below 2^128.
    choose_unit(magnitude(), (std::min)(60, 111 - static_cast<int>(std::bit_width(weight_))));
    count_ = x.size();
    detail::compensated_sum squares;
    if (weights.empty()) {
      take_magnitudes(x, squares);
    } else {
      std::vector<element> below;
      std::vector<element> above;
      for (std::size_t i = 0; i < x.size(); ++i) {
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
    detail::require_bins_of(bins, range, histogram::largest_count, "distribution");
    range_ = range;
    // Ends of bins are multiples of 2^-39 of the largest magnitude. With fewer bits, their weights
    // of 2^14 for each value leave room for the sums.
    choose_unit(magnitude(), ends ? 52 : 60);
    for (const value_bin& bin : bins) {
      count_ += bin.count;
      require(bin.excess_known || bin.smallest == 0.0F, error_kind::invalid_argument,
              "distribution: bins without sums");
    }
    require(count_ > 0, error_kind::invalid_argument, "distribution: there are no values");
    constexpr int shift = kernels::bin_dropped_bits;
    weight_ = ends ? count_ << shift : count_;
    const auto is_negative = [](const value_bin& bin) { return bin.negative; };
    const auto negative_bins =
        static_cast<std::size_t>(std::count_if(bins.begin(), bins.end(), is_negative));
    std::vector<element> below;
    std::vector<element> above;
    below.reserve(negative_bins + 1);
    above.reserve(bins.size() - negative_bins + 1);
    for (const value_bin& bin : bins) {
      if (bin.smallest == 0.0F && (!bin.excess_known || bin.largest == 0.0F)) {
        continue;  // zeros, or as good as zeros
      }
      std::vector<element>& side = bin.negative ? below : above;
      if (ends) {
        add_ends(bin, side);
      } else {
        add_mean(bin, side);
      }
    }
    detail::compensated_sum squares;
    fill_side(below, negative_, squares);
    fill_side(above, positive_, squares);
    square_sum_ = squares.value();
  }

  void add_mean(const value_bin& bin, std::vector<element>& side) const {
    const detail::uint128 sum = detail::multiply(in_units(bin.smallest), bin.count) +
                                detail::multiply(in_units(bin.unit()), bin.excess);
    const double mean = sum.to_double() / static_cast<double>(bin.count) * unit_;
    side.push_back({mean, sum, bin.count});
  }
  /// The lower end counts for count - excess / 2^14 of the values, the upper end for excess / 2^14.
  /// Where the next bin begins, ends of both become one.
  void add_ends(const value_bin& bin, std::vector<element>& side) const {
    const auto add = [&](double end, std::uint64_t weight) {
      if (end == 0.0 || weight == 0) {
        return;
      }
      const element e{end, detail::multiply(in_units(end), weight), weight};
      if (!side.empty() && side.back().value == end) {
        side.back().sum += e.sum;
        side.back().weight += e.weight;
      } else {
        side.push_back(e);
      }
    };
    const std::uint64_t lower = (bin.count << kernels::bin_dropped_bits) - bin.excess;
    if (bin.negative) {  // such bins come from the largest magnitude down
      add(bin.end(), bin.excess);
      add(bin.smallest, lower);
    } else {
      add(bin.smallest, lower);
      add(bin.end(), bin.excess);
    }
  }

  /// Takes values with weight 1.
  void take_magnitudes(std::span<const float> x, detail::compensated_sum& squares) {
    // The bit patterns of magnitudes have the order of the magnitudes.
    std::vector<std::uint32_t> below(x.size());
    std::vector<std::uint32_t> above(x.size());
    std::size_t below_size = 0;
    std::size_t above_size = 0;
    for (const float value : x) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
      // Both are written, the sizes say which one counts: signs are hard to predict.
      below[below_size] = magnitude;
      above[above_size] = magnitude;
      const std::size_t is_not_zero = magnitude != 0 ? 1 : 0;
      const std::size_t is_negative = bits >> 31;
      below_size += is_not_zero & is_negative;
      above_size += is_not_zero & (is_negative ^ 1U);
    }
    below.resize(below_size);
    above.resize(above_size);
    std::vector<std::uint32_t> buffer;
    for (const bool is_negative : {true, false}) {
      std::vector<std::uint32_t>& magnitudes = is_negative ? below : above;
      detail::distribution_side& side = is_negative ? negative_ : positive_;
      detail::sort_ascending(magnitudes, buffer);
      const std::size_t n = magnitudes.size();
      reserve(side, n);
      for (std::size_t i = 0; i < n; ++i) {
        const double value = std::bit_cast<float>(magnitudes[i]);
        side.values[i] = value;
        side.weight_above[i] = n - i;
        squares.add(value * value);  // exact
      }
      detail::uint128 sum;
      for (std::size_t i = n; i-- > 0;) {
        sum += detail::uint128{0, in_units(side.values[i])};
        side.sum_above[i] = sum;
      }
    }
  }

  static void reserve(detail::distribution_side& side, std::size_t size) {
    side.values.resize(size);
    side.sum_above.resize(size + 1);
    side.weight_above.resize(size + 1);
  }

  static void fill_side(std::vector<element>& elements, detail::distribution_side& side,
                        detail::compensated_sum& squares) {
    // Bins of negative values come in the other order.
    if (elements.size() > 1 && elements.front().value > elements.back().value) {
      std::reverse(elements.begin(), elements.end());
    }
    detail::sort_nearly_sorted(std::span(elements), [](const element& a, const element& b) {
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
  double per_unit_ = 1.0;
  double square_sum_ = 0.0;
  std::uint64_t count_ = 0;
  std::uint64_t weight_ = 0;
};

namespace detail {

/// The range, extended to include zero and cut to [-clip, clip].
[[nodiscard]] inline value_range clipped(value_range range, float clip) noexcept {
  return {(std::max)((std::min)(range.lower, 0.0F), -clip),
          (std::min)((std::max)(range.upper, 0.0F), clip)};
}

/// How many levels a grid has below and above the zero point.
struct level_caps {
  std::int32_t negative;
  std::int32_t positive;
};
[[nodiscard]] constexpr level_caps caps_of(grid levels, std::int32_t zero_point) noexcept {
  return {zero_point - levels.qmin, levels.qmax - zero_point};
}

/// The sums that the squared error of a scale depends on. With k_i the level nearest to x_i / scale
/// and weights w_i,
///
///     b = sum of w_i * |x_i| * |k_i|
///     c = sum of w_i * k_i^2
///
/// so that sum w_i * (x_i - scale * k_i)^2 = square_sum - 2 * scale * b + scale^2 * c. For given
/// k_i this is least at the scale b / c, where it is square_sum - b^2 / c.
struct assignment {
  uint128 b;  // in units
  uint128 c;
  std::uint64_t levels = 0;  // sum of |k_i| without weights
};

/// Adds the values of a side one by one, which is faster if there are fewer than levels.
inline void assign_values(const distribution_side& side, double scale, std::int32_t cap,
                          assignment& a) noexcept {
  const double per_scale = 1.0 / scale;
  for (std::size_t i = side.size(); i-- > 0;) {
    const double x = side.values[i];
    auto k = static_cast<std::int32_t>((std::min)(static_cast<double>(cap), x * per_scale + 0.5));
    // What rounding may have changed.
    while (k > 0 && x < (k - 0.5) * scale) {
      --k;
    }
    while (k < cap && !(x < (k + 0.5) * scale)) {
      ++k;
    }
    if (k == 0) {
      break;
    }
    const auto level = static_cast<std::uint64_t>(k);
    a.b += multiply(side.sum_above[i] - side.sum_above[i + 1], level);
    a.c += multiply(side.weight_above[i] - side.weight_above[i + 1], level * level);
    a.levels += level;
  }
}

inline void assign(const distribution_side& side, double scale, std::int32_t cap,
                   assignment& a) noexcept {
  if (side.size() < static_cast<std::size_t>(cap) && scale > 0.0) {
    assign_values(side, scale, cap, a);
    return;
  }
  std::size_t first = 0;
  for (std::int32_t k = 1; k <= cap; ++k) {
    first = side.below_next((k - 0.5) * scale, first);
    if (first == side.size()) {
      break;
    }
    a.b += side.sum_above[first];
    a.c += multiply_by_small(side.weight_above[first], static_cast<std::uint64_t>(2 * k - 1));
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

/// The share, by weight, of values whose nearest level would lie beyond the grid.
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

/// The weighted mean of (x - dequantize(quantize(x)))^2 over the distribution, with x / scale taken
/// as exact. Throws invalid_argument if the scale is not positive and finite, the grid has fewer
/// than two levels or reaches beyond -65536..65535, or the zero point is outside the grid.
[[nodiscard]] inline double mean_squared_error(const distribution& d, quant_params p, grid levels) {
  detail::require_scale(p.scale, "mean_squared_error");
  detail::require_levels_for_range({levels, false}, "mean_squared_error");
  detail::require_zero_point(p.zero_point, levels, "mean_squared_error");
  return detail::mean_squared_error(d, p.scale, detail::caps_of(levels, p.zero_point));
}

DETENT_NAMESPACE_END

#endif  // DETENT_STATISTICS_DISTRIBUTION_HPP
