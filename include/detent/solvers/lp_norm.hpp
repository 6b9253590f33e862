// SPDX-License-Identifier: BSD-3-Clause
// A scale solver: the scale and zero point with the least L^p error, with a lower bound that shows
// how good they are.
//
// The exponent p = 1 weighs all deviations alike, p = 2 is the squared error, and the larger p is,
// the less is clipped. For p = 2 there is a closed form, exact_mse(); for other p the best scale is
// found by branch and bound (lp_search.hpp).
#ifndef DETENT_SOLVERS_LP_NORM_HPP
#define DETENT_SOLVERS_LP_NORM_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/fixed_power.hpp>
#include <detent/solvers/lp_search.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/statistics/histogram.hpp>
#include <detent/statistics/value_bins.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of lp_norm().
struct lp_norm_options {
  double p = 2.4;  ///< exponent of the error, in 1..8
  /// How far the lower bound may stay below the error, as a share of the error; in (0, 1).
  double tolerance = 1e-3;
  /// About how many values the search may look at, at a few nanoseconds each, before it returns the
  /// best scale found so far. The lower bound holds in any case.
  std::uint64_t work = 16'000'000;
};

namespace detail {

inline void require_exponent(double p, const char* where,
                             error_kind kind = error_kind::invalid_argument) {
  require(p >= 1.0 && p <= 8.0, kind, where, ": p ", p, " is not in 1..8");
}

/// The power of two that magnitudes are divided by before powers are taken; the quotients are below
/// 2.
[[nodiscard]] inline double unit_of(const distribution& d) {
  return d.magnitude() > 0.0 ? std::ldexp(1.0, std::ilogb(d.magnitude())) : 1.0;
}

/// The error |a - k * scale| of a magnitude a, where k is the nearest level of 0..cap.
[[nodiscard]] inline double level_error(double magnitude, double scale, double cap) noexcept {
  const double k = (std::min)(cap, std::floor(magnitude / scale + 0.5));
  return std::fabs(magnitude - rounded_product(k, scale));
}

/// The weighted mean of the p-th powers of errors, in the given unit; `power` computes x^(p - 1).
[[nodiscard]] inline double mean_power_error(const distribution& d, double unit, double scale,
                                             level_caps caps, const fixed_power& power) {
  compensated_sum sum;
  const auto add = [&](const distribution_side& side, std::int32_t cap) {
    for (std::size_t i = 0; i < side.size(); ++i) {
      const auto weight = static_cast<double>(side.weight_above[i] - side.weight_above[i + 1]);
      const double e = level_error(side.values[i] / unit, scale / unit, cap);
      sum.add(rounded_product(weight, e * power(e)));
    }
  };
  add(d.negative(), caps.negative);
  add(d.positive(), caps.positive);
  return sum.value() / static_cast<double>(d.weight());
}

/// The values of one side as groups. If there are more than 2^13 different ones, neighbours that
/// share 10 bits of mantissa are joined.
[[nodiscard]] inline std::vector<value_group> groups_of(const distribution_side& side,
                                                        double unit) {
  constexpr std::size_t many = std::size_t{1} << 13;
  constexpr int bits = 10;
  std::vector<value_group> groups;
  for (std::size_t i = 0; i < side.size(); ++i) {
    const double value = side.values[i] / unit;
    const auto weight = static_cast<double>(side.weight_above[i] - side.weight_above[i + 1]);
    if (!groups.empty() && groups.back().low == value) {
      groups.back().weight += weight;
    } else {
      groups.push_back({value, value, value, weight});
    }
  }
  return groups.size() > many ? joined(groups, bits) : groups;
}

/// The bins of one sign as groups, ascending in magnitude; bins that count as zero are left out.
[[nodiscard]] inline std::vector<value_group> groups_of(std::span<const value_bin> bins,
                                                        bool negative, double unit) {
  std::vector<value_group> groups;
  for (const value_bin& bin : bins) {
    if (bin.negative != negative || bin.smallest == 0.0F) {
      continue;
    }
    const auto count = static_cast<double>(bin.count);
    const double low = bin.smallest;
    const double above = bin.unit() * (static_cast<double>(bin.excess) / count);
    const double high = (std::max)(static_cast<double>(bin.largest), low);
    groups.push_back({low / unit, high / unit, (std::min)(low + above, high) / unit, count});
  }
  if (negative) {
    std::reverse(groups.begin(), groups.end());
  }
  return groups;
}

/// The largest sum that the errors of a group's values can have, given their mean: as long as all
/// have the same level, the error is convex, so that values at the two ends have the most.
[[nodiscard]] inline double largest_power_error(const value_group& g, double scale, double cap,
                                                const fixed_power& power) noexcept {
  const auto error = [&](double magnitude) {
    const double e = level_error(magnitude, scale, cap);
    return e * power(e);
  };
  const double low = error(g.low);
  const double high = error(g.high);
  const auto level = [&](double magnitude) {
    return (std::min)(cap, std::floor(magnitude / scale + 0.5));
  };
  if (level(g.low) == level(g.high)) {
    const double share = g.high > g.low ? (g.mean - g.low) / (g.high - g.low) : 0.0;
    return rounded_product(g.weight, low + rounded_product(share, high - low));
  }
  const double half = 0.5 * scale;
  return g.weight * (std::max)((std::max)(low, high), half * power(half));
}

struct lp_scale {
  lp_optimum best;
  quant_params params;
};

[[nodiscard]] inline lp_scale best_lp_scale(const distribution& d,
                                            std::vector<value_group> negative,
                                            std::vector<value_group> positive, quant_scheme scheme,
                                            const lp_norm_options& options,
                                            const fixed_power& power) {
  const double unit = unit_of(d);
  const std::vector<std::int32_t> zero_points = possible_zero_points(d, scheme);
  lp_search search(std::move(negative), std::move(positive), caps_of(scheme.levels, zero_points),
                   unit, options.p, power);
  const double whole = reference::params_from_range(d.range(), scheme).scale;
  const lp_optimum best = search.run(whole / unit, options.tolerance, options.work);
  return {best, {static_cast<float>(best.scale * unit), zero_points[best.candidate]}};
}

inline void require_lp(quant_scheme scheme, value_range range, const lp_norm_options& options) {
  constexpr const char* where = "lp_norm";
  require_searchable_grid(scheme, where);
  static_cast<void>(params_from_range(range, scheme));  // checks the grid
  require_exponent(options.p, where);
  require(options.tolerance > 0.0 && options.tolerance < 1.0, error_kind::invalid_argument, where,
          ": the tolerance ", options.tolerance, " is not between 0 and 1");
}

[[nodiscard]] inline scale_solution lp_solution(const distribution& d, quant_params params,
                                                double lower_bound, double objective,
                                                quant_scheme scheme, double p) {
  // The error is in powers of the unit 2^e: 2^(e p).
  const double unit = portable_power(unit_of(d), p);
  scale_solution s;
  s.params = params;
  s.evidence = evidence_of(d, "lp_norm", params, scheme.levels);
  s.evidence.objective = objective > 0.0 ? rounded_product(objective, unit) : 0.0;
  s.evidence.lower_bound = (std::min)(
      s.evidence.objective, rounded_product(lower_bound / static_cast<double>(d.weight()), unit));
  return s;
}

}  // namespace detail

/// The weighted mean of |x - dequantize(quantize(x))|^p over the distribution, with x / scale taken
/// as exact; accurate to about 1e-12 of the result, and infinite or 0 where the result does not fit
/// a double. Throws invalid_argument if p is not in 1..8, the scale is not positive and finite, the
/// grid has fewer than two levels or reaches beyond -65536..65535, or the zero point is outside the
/// grid. Thread-safe.
[[nodiscard]] inline double mean_power_error(const distribution& d, quant_params params,
                                             grid levels, double p) {
  constexpr const char* where = "mean_power_error";
  detail::require_scale(params.scale, where);
  detail::require_levels_for_range({levels, false}, where);
  detail::require_zero_point(params.zero_point, levels, where);
  detail::require_exponent(p, where);
  const double unit = detail::unit_of(d);
  const double error =
      detail::mean_power_error(d, unit, params.scale, detail::caps_of(levels, params.zero_point),
                               detail::fixed_power(p - 1.0));
  return error > 0.0 ? detail::rounded_product(error, detail::portable_power(unit, p)) : 0.0;
}

/// Finds the parameters with the least weighted mean of |x - dequantize(quantize(x))|^p, p real in
/// 1..8, over all scales and, if the scheme is asymmetric, over all zero points of the grid. The
/// scale is a float and at least FLT_MIN; if all values are zero, it is 1. The evidence has
///
///     objective    the error of the parameters returned
///     lower_bound  no real scale has a smaller error, up to 1e-9 of it
///
/// with lower_bound >= (1 - tolerance) * objective, except in three cases: the work of the options
/// was used up first; next to no error is left (2^-20 of the values' size); or there are more than
/// 2^13 different values of a sign, which the search joins to groups 2^-10 wide. Then the bound is
/// lower by what the groups leave open: some percent on grids of 8 bits, more for a large p and
/// where the error is much smaller than the groups are wide. The bound itself holds in each case.
///
/// Time: a few milliseconds for 4 bits and some tens for 8, the most for p = 1, plus the time to
/// look at each value once.
///
/// p = 2 is exact_mse(). The result does not depend on the order of the values, the CPU or the
/// compiler. Throws unsupported for grids of more than 256 levels, invalid_argument if p is not in
/// 1..8 or the tolerance not in (0, 1), or where params_from_range() does. Thread-safe.
[[nodiscard]] inline scale_solution lp_norm(const distribution& d, quant_scheme scheme,
                                            const lp_norm_options& options = {}) {
  detail::require_lp(scheme, d.range(), options);
  if (options.p == 2.0 || d.magnitude() == 0.0) {
    return exact_mse(d, scheme);
  }
  const detail::fixed_power power(options.p - 1.0);
  const double unit = detail::unit_of(d);
  const detail::lp_scale found =
      detail::best_lp_scale(d, detail::groups_of(d.negative(), unit),
                            detail::groups_of(d.positive(), unit), scheme, options, power);
  const double objective = detail::mean_power_error(
      d, unit, found.params.scale, detail::caps_of(scheme.levels, found.params.zero_point), power);
  return detail::lp_solution(d, found.params, found.best.bound_of_values, objective, scheme,
                             options.p);
}
/// lp_norm() of values with weight 1. Throws invalid_argument if there are none, or for NaN and
/// infinities.
[[nodiscard]] inline scale_solution lp_norm(std::span<const float> x, quant_scheme scheme,
                                            const lp_norm_options& options = {}) {
  return lp_norm(distribution(x), scheme, options);
}

/// lp_norm() of the bins of a histogram whose range is `range`. The values are known to lie in
/// their bins and to have the bins' means; the parameters are the best ones for those means. The
/// evidence has
///
///     objective    an upper bound of the error that the values have with these parameters
///     lower_bound  a lower bound of the error that they have with any parameters
///
/// Apart from the tolerance, the two differ by what is not known of the values. If all values of a
/// bin have the same level, their errors are no less than that of the mean and no more than those
/// of values at the bin's ends; in other bins, each is no less than that of the nearest end, and no
/// more than the larger of half a step and the errors at the ends. Throws what the form for
/// distributions throws, and invalid_argument for bins without sums.
[[nodiscard]] inline scale_solution lp_norm(std::span<const value_bin> bins, value_range range,
                                            quant_scheme scheme,
                                            const lp_norm_options& options = {}) {
  detail::require_lp(scheme, range, options);
  if (options.p == 2.0) {
    return exact_mse(bins, range, scheme);
  }
  const distribution means(bins, range);
  if (means.magnitude() == 0.0) {
    return exact_mse(means, scheme);
  }
  const detail::fixed_power power(options.p - 1.0);
  const double unit = detail::unit_of(means);
  std::vector<detail::value_group> sides[] = {detail::groups_of(bins, true, unit),
                                              detail::groups_of(bins, false, unit)};
  const detail::lp_scale found =
      detail::best_lp_scale(means, sides[0], sides[1], scheme, options, power);
  const detail::level_caps caps = detail::caps_of(scheme.levels, found.params.zero_point);
  const double scale = static_cast<double>(found.params.scale) / unit;
  detail::compensated_sum most;
  for (std::size_t i = 0; i < 2; ++i) {
    for (const detail::value_group& g : sides[i]) {
      most.add(
          detail::largest_power_error(g, scale, i == 0 ? caps.negative : caps.positive, power));
    }
  }
  for (const value_bin& bin : bins) {
    if (bin.smallest == 0.0F) {  // their error is at most |x|, that of level 0
      const double largest = static_cast<double>(bin.largest) / unit;
      most.add(detail::rounded_product(static_cast<double>(bin.count), largest * power(largest)));
    }
  }
  return detail::lp_solution(means, found.params, found.best.bound_of_values,
                             most.value() / static_cast<double>(means.weight()), scheme, options.p);
}
/// lp_norm() of the bins of a histogram. Throws also invalid_argument if the histogram has seen
/// nothing, a NaN or an infinity.
[[nodiscard]] inline scale_solution lp_norm(const histogram& h, quant_scheme scheme,
                                            const lp_norm_options& options = {}) {
  return lp_norm(h.bins(), h.range(), scheme, options);
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_LP_NORM_HPP
