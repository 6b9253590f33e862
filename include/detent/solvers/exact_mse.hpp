// SPDX-License-Identifier: BSD-3-Clause
// A scale solver: the scale and zero point with the least squared error that exists, together with
// a proof.
//
// For fixed levels k_i the best scale is b / c and its error square_sum - b^2 / c (see
// detail::assignment), whichever levels those are. The least error of all is therefore square_sum
// less the largest b^2 / c of the levels met as the scale falls from beyond the largest value to 0.
// detail::assignment_search finds it.
//
// Sources: the sweep over breakpoints is that of Idelbayev, Molchanov, Shen, Yin, Carreira-Perpinan
// and Alvarez, "Optimal quantization using scaled codebook", CVPR 2021; the bounds that leave out
// most of them are our own.
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
#include <detent/solvers/assignment_search.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

struct exact_scale {
  best_assignment best;
  std::int32_t zero_point = 0;
};

/// The grids that may be the best: the one of symmetric schemes; else those of all zero points, or
/// only of one end of them if all values have one sign. The zero point of the range comes first.
[[nodiscard]] inline grid_candidates possible_grids(const distribution& d, quant_scheme scheme) {
  const grid levels = scheme.levels;
  const std::int32_t steps = levels.qmax - levels.qmin;
  const std::int32_t first =
      reference::params_from_range(d.range(), scheme).zero_point - levels.qmin;
  if (scheme.symmetric || !(d.magnitude() > 0.0)) {
    return {steps, first, first, first};
  }
  if (d.negative().size() == 0 || d.positive().size() == 0) {
    // Levels on a side without values are of no use.
    const std::int32_t negative = d.negative().size() == 0 ? 0 : steps;
    return {steps, negative, negative, negative};
  }
  return {steps, 0, steps, first};
}

/// The zero points of possible_grids(), the first one first.
[[nodiscard]] inline std::vector<std::int32_t> possible_zero_points(const distribution& d,
                                                                    quant_scheme scheme) {
  const grid_candidates candidates = possible_grids(d, scheme);
  std::vector<std::int32_t> zero_points{scheme.levels.qmin + candidates.first};
  for (std::int32_t i = candidates.least; i <= candidates.most; ++i) {
    if (i != candidates.first) {
      zero_points.push_back(scheme.levels.qmin + i);
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

/// Whether all values that are not zero have weight 1, and are not too many for plain_steps.
[[nodiscard]] inline bool has_unit_weights(const distribution& d) noexcept {
  const auto is_plain = [](const distribution_side& side) {
    return side.size() < (std::size_t{1} << 23) &&
           (side.size() == 0 || side.weight_above[0] == side.size());
  };
  return is_plain(d.negative()) && is_plain(d.positive());
}

/// The best scale and, for asymmetric schemes, the best zero point.
[[nodiscard]] inline exact_scale best_scale(const distribution& d, quant_scheme scheme) {
  const grid_candidates candidates = possible_grids(d, scheme);
  const best_assignment best = has_unit_weights(d)
                                   ? assignment_search<plain_steps>(d, candidates).run()
                                   : assignment_search<weighted_steps>(d, candidates).run();
  return {best, scheme.levels.qmin + best.negative};
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
/// Of scales whose errors differ by less than 1e-14 of the mean square, the smallest one that clips
/// nothing counts, then the largest one; of zero points that are equally good, that of the range,
/// then the smallest. Sums are integers, so that the result depends neither on the order of the
/// values nor on the CPU. Time grows with the number of values and with that of the levels which
/// they have at the best scale.
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
