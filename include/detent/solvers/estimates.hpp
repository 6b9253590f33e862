// SPDX-License-Identifier: BSD-3-Clause
// Scale solvers that are faster than exact_mse(), or that other tools use: from the range, from a
// grid of ranges, or from a model of the distribution.
//
// All of them choose a clip value: the range seen, cut to [-clip, clip], gives scale and zero point
// by the canonical rule (params_from_range). If all values have one sign and the scheme is
// asymmetric, the grid's levels all lie on that side.
#ifndef DETENT_SOLVERS_ESTIMATES_HPP
#define DETENT_SOLVERS_ESTIMATES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <detent/base/arithmetic.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The canonical parameters for the range seen, cut to [-clip, clip].
[[nodiscard]] inline quant_params clipped_params(const distribution& d, double clip,
                                                 quant_scheme scheme) {
  return params_from_range(clipped(d.range(), static_cast<float>(clip)), scheme);
}

[[nodiscard]] inline scale_solution clipped_solution(const distribution& d, double clip,
                                                     quant_scheme scheme, std::string_view method) {
  scale_solution s;
  s.params = clipped_params(d, clip, scheme);
  s.evidence = evidence_of(d, method, s.params, scheme.levels);
  return s;
}

/// How many levels the magnitudes up to the clip value are divided into: those of one side of the
/// grid, but at least 1, or all levels if the scheme is asymmetric and all values have one sign.
[[nodiscard]] inline double levels_to_clip(const distribution& d, quant_scheme scheme) noexcept {
  const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
  const bool one_sided = d.negative().size() == 0 || d.positive().size() == 0;
  return one_sided && !scheme.symmetric ? steps : (std::max)(1.0, std::floor(steps / 2.0));
}

/// The sum of the weights and the weighted sum of the magnitudes beyond a bound.
struct tail {
  double weight;
  double sum;
};
[[nodiscard]] inline tail tail_of(const distribution& d, double bound) noexcept {
  const auto of = [&](const distribution_side& side) {
    // Values equal to the bound are not beyond it.
    const std::size_t first = side.below(std::nextafter(bound, 2.0 * d.magnitude() + 1.0));
    return tail{static_cast<double>(side.weight_above[first]),
                side.sum_above[first].to_double() * d.unit()};
  };
  tail t{0.0, 0.0};
  for (const distribution_side* side : {&d.negative(), &d.positive()}) {
    if (side->size() != 0) {
      const tail one = of(*side);
      t = {t.weight + one.weight, t.sum + one.sum};
    }
  }
  return t;
}

}  // namespace detail

/// The parameters for the whole range: nothing is clipped. Throws invalid_argument where
/// params_from_range() does. Thread-safe.
[[nodiscard]] inline scale_solution absmax(const distribution& d, quant_scheme scheme) {
  return detail::clipped_solution(d, d.magnitude(), scheme, "absmax");
}

/// Options of grid_mse().
struct grid_mse_options {
  std::size_t steps = 100;  ///< number of candidates
  /// The smallest candidate, as a share of the largest magnitude; in (0, 1].
  double lowest = 0.01;
};

/// The clip value of least squared error among `steps` candidates, equally spaced from `lowest` to
/// 1 times the largest magnitude. Of equally good ones the larger wins. Throws invalid_argument if
/// there are no steps, if `lowest` is not in (0, 1], or where params_from_range() does.
/// Thread-safe.
[[nodiscard]] inline scale_solution grid_mse(const distribution& d, quant_scheme scheme,
                                             grid_mse_options options = {}) {
  require(options.steps > 0, error_kind::invalid_argument, "grid_mse: 0 steps");
  require(options.lowest > 0.0 && options.lowest <= 1.0, error_kind::invalid_argument,
          "grid_mse: the lowest share ", options.lowest, " is not in (0, 1]");
  scale_solution best = detail::clipped_solution(d, d.magnitude(), scheme, "grid_mse");
  for (std::size_t i = 1; i < options.steps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(options.steps - 1);
    const double clip =
        d.magnitude() * (1.0 - detail::rounded_product(1.0 - options.lowest, share));
    const quant_params p = detail::clipped_params(d, clip, scheme);
    const double error =
        detail::mean_squared_error(d, p.scale, detail::caps_of(scheme.levels, p.zero_point));
    if (error < best.evidence.objective) {
      best.params = p;
      best.evidence.objective = error;
    }
  }
  best.evidence = detail::evidence_of(d, "grid_mse", best.params, scheme.levels);
  return best;
}

/// OCTAV: finds the clip value a that minimizes
///
///     a^2 / (12 n^2) * P(0 < |x| <= a) + E[(|x| - a)^2; |x| > a]
///
/// with n levels up to a, by iterating
///
///     a = E[|x|; |x| > a] / (P(0 < |x| <= a) / (12 n^2) + P(|x| > a))
///
/// from the mean magnitude on, for up to 100 steps or until a repeats. The minimum is that of a
/// model in which the noise is uniform in each step; exact_mse() is never worse. Throws
/// invalid_argument where params_from_range() does. Thread-safe.
///
/// Source: Sakr et al., "Optimal clipping and magnitude-aware differentiation for improved
/// quantization-aware training", ICML 2022, whose n is a power of two.
[[nodiscard]] inline scale_solution octav(const distribution& d, quant_scheme scheme) {
  const double n = detail::levels_to_clip(d, scheme);
  const double noise = 1.0 / (12.0 * n * n);
  const detail::tail all = detail::tail_of(d, 0.0);
  double clip = all.weight > 0.0 ? all.sum / all.weight : 0.0;
  for (int i = 0; i < 100 && clip > 0.0; ++i) {
    const detail::tail beyond = detail::tail_of(d, clip);
    const double inside = all.weight - beyond.weight;
    const double next = (std::min)(
        d.magnitude(), beyond.sum / (beyond.weight + detail::rounded_product(inside, noise)));
    if (!(next > 0.0) || next == clip) {
      break;
    }
    clip = next;
  }
  return detail::clipped_solution(d, clip, scheme, "octav");
}

/// The distribution that aciq() assumes.
enum class aciq_model : std::uint8_t {
  /// The one of the two whose ratio of mean magnitude to standard deviation is nearer to that of
  /// the values.
  best,
  laplace,  ///< Laplace, density exp(-|x| / b) / (2 b)
  gauss,    ///< normal with mean 0
};

/// ACIQ: finds the clip value a that is best for a model of the values, with n levels up to a:
///
///     laplace  a / b * exp(a / b) = 12 n^2                        b = mean |x|
///     gauss    a erfc(a / (s sqrt 2)) - s sqrt(2 / pi) exp(-a^2 / (2 s^2)) + a / (12 n^2) = 0
///              s = sqrt(mean x^2)
///
/// If all values have one sign, zeros do not count: the values are then taken for one half of a
/// symmetric distribution whose other half an activation has cut off. The transcendental functions
/// are those of the C++ library, whose last bits may differ between implementations. Throws
/// invalid_argument where params_from_range() does. Thread-safe.
///
/// Source: Banner, Nahshan and Soudry, "Post training 4-bit quantization of convolutional networks
/// for rapid-deployment", NeurIPS 2019, with the levels of the grid in place of powers of two.
[[nodiscard]] inline scale_solution aciq(const distribution& d, quant_scheme scheme,
                                         aciq_model model = aciq_model::best) {
  const detail::tail all = detail::tail_of(d, 0.0);
  const bool one_sided = d.negative().size() == 0 || d.positive().size() == 0;
  const double weight = one_sided ? all.weight : static_cast<double>(d.weight());
  if (!(all.sum > 0.0)) {
    return detail::clipped_solution(d, d.magnitude(), scheme, "aciq");
  }
  const double n = detail::levels_to_clip(d, scheme);
  const double mean = all.sum / weight;
  const double deviation = std::sqrt(d.square_sum() / weight);
  if (model == aciq_model::best) {
    constexpr double of_laplace = 0.70710678118654752;  // 1 / sqrt(2)
    constexpr double of_gauss = 0.79788456080286536;    // sqrt(2 / pi)
    model =
        mean / deviation > (of_laplace + of_gauss) / 2.0 ? aciq_model::gauss : aciq_model::laplace;
  }
  double clip = 0.0;
  if (model == aciq_model::laplace) {
    // Newton's method for w + log w = log(12 n^2), which is concave: from below it rises to the
    // root.
    const double target = std::log(12.0 * n * n);
    double w = 1.0;
    for (int i = 0; i < 50; ++i) {
      w += (target - w - std::log(w)) * w / (w + 1.0);
    }
    clip = mean * w;
  } else {
    // The function rises through its only root; bisection finds it to the last bits.
    const auto slope = [n](double a) {
      return a * std::erfc(a * 0.70710678118654752) - 0.79788456080286536 * std::exp(-0.5 * a * a) +
             a / (12.0 * n * n);
    };
    double low = 0.0;
    double high = 40.0;
    for (int i = 0; i < 100; ++i) {
      const double middle = 0.5 * (low + high);
      (slope(middle) < 0.0 ? low : high) = middle;
    }
    clip = deviation * 0.5 * (low + high);
  }
  return detail::clipped_solution(d, (std::min)(clip, d.magnitude()), scheme, "aciq");
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ESTIMATES_HPP
