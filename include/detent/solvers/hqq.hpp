// SPDX-License-Identifier: BSD-3-Clause
// Half-quadratic quantization (HQQ): chooses zero points that make the errors of the weights
// sparse. It needs no inputs.
#ifndef DETENT_SOLVERS_HQQ_HPP
#define DETENT_SOLVERS_HQQ_HPP

#include <algorithm>
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
#include <detent/kernels/definitions/half_quadratic.hpp>
#include <detent/kernels/half_quadratic.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of hqq().
struct hqq_options {
  double norm = 0.7;            ///< exponent p of the error |w - v|^p, in (0, 1]
  double penalty = 10.0;        ///< beta of the first iteration
  double growth = 1.01;         ///< factor that beta is multiplied by after each iteration
  std::size_t iterations = 20;  ///< limit of the number of iterations
  /// Whether errors are measured in steps of the grid instead of the units of the weights (as
  /// published). Then weights that are twice as large get the same codes.
  bool relative = false;
  /// Whether zero points are real numbers (as published) instead of integers of the grid.
  bool real_zero_points = false;
};

namespace detail {

/// One group while its zero point is searched. Errors are in steps of its grid, which makes them
/// smaller by the factor `scale`, and their powers by scale^p.
class hqq_group {
 public:
  /// `places`: memory for a number for each weight.
  hqq_group(std::span<const float> weights, double scale, grid levels, const hqq_options& options,
            std::vector<double>& places)
      : options_(options),
        power_of_scale_(portable_power(scale, options.norm)),
        // |w - v|^(p - 1) / beta in steps of the grid, where errors are not measured in steps.
        shrinkage_(options.relative ? 1.0 : portable_power(scale, options.norm - 2.0)) {
    places.resize(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      places[i] = static_cast<double>(weights[i]) / scale;
    }
    args_.places = places.data();
    args_.n = places.size();
    args_.qmin = levels.qmin;
    args_.qmax = levels.qmax;
    args_.exponent = options.norm - 1.0;
  }

  /// Writes the nearest codes: round_half_even(clamp(w / scale + zero_point)).
  void round(double zero_point, std::int8_t* codes) noexcept {
    args_.zero_point = zero_point;
    active<kernels::half_quadratic_kernels>().round(args_, codes);
  }
  /// The sum of |w - v|^p with the nearest codes.
  [[nodiscard]] double objective(double zero_point) noexcept {
    return objective_of(sums(zero_point, options_.penalty));
  }

  /// A zero point and its objective.
  struct judged {
    double zero_point;
    double objective;
  };
  /// What was judged on the way.
  struct path {
    judged first;            ///< the given codes
    judged best;             ///< the real zero point of least objective, the first one included
    std::size_t iterations;  ///< number of iterations
  };

  /// Looks for a real zero point, from given codes with an integer zero point on. Codes of nearest
  /// rounding may differ from those of round() at ties, because w / scale is a float there.
  [[nodiscard]] path search(const std::int8_t* codes, double start) noexcept {
    double penalty = options_.penalty;
    args_.codes = codes;
    kernels::half_quadratic_sums now = sums(start, penalty);
    args_.codes = nullptr;
    const judged first{start, objective_of(now)};
    path found{first, first, 0};
    double previous = std::numeric_limits<double>::infinity();
    for (; found.iterations < options_.iterations && now.magnitudes < previous;
         ++found.iterations) {
      previous = now.magnitudes;
      // Real zero points are stored as floats, so the rounded one is judged.
      const auto zero_point = static_cast<double>(
          static_cast<float>((now.distances + now.shrunk) / static_cast<double>(args_.n)));
      penalty = rounded_product(penalty, options_.growth);
      now = sums(zero_point, penalty);
      if (objective_of(now) < found.best.objective) {
        found.best = {zero_point, objective_of(now)};
      }
    }
    return found;
  }

 private:
  [[nodiscard]] kernels::half_quadratic_sums sums(double zero_point, double penalty) noexcept {
    args_.zero_point = zero_point;
    args_.shrinkage = shrinkage_ / penalty;
    return active<kernels::half_quadratic_kernels>().sums(args_);
  }
  [[nodiscard]] double objective_of(const kernels::half_quadratic_sums& s) const noexcept {
    return rounded_product(power_of_scale_, s.objective);
  }

  const hqq_options& options_;
  double power_of_scale_;
  double shrinkage_;
  kernels::half_quadratic_args args_;
};

}  // namespace detail

/// HQQ: lowers the sum of |w - v|^p of each group, v = scale * (code - zero_point), over a real
/// zero point; scales stay. With code = clamp(round_half_even(w / scale + zero_point)), it repeats
///
///     r           = w - v
///     e           = sign(r) max(|r| - |r|^(p - 1) / beta, 0)
///     zero_point  = mean over the group of code - (w - e) / scale
///     beta       *= growth
///
/// `iterations` times, or until the mean of |r| no longer falls. Of all zero points met, including
/// the first one (nearest rounding), it takes the one with the least sum; so the sum never rises.
///
/// With real_zero_points, these zero points are returned as they are
/// (quantized_weights::real_zero_points). Otherwise they are integers of the grid: the better one
/// of the two neighbours of the real zero point, if it is better than the first zero point. That
/// happens with scales that clip: a whole step moves all codes alike, and where the scale is that
/// of the range, it can only make one of them leave the grid.
///
/// evidence.objective and nearest_objective are those sums of |w - v|^p; kept_nearest counts
/// groups; converged says whether all groups stopped before `iterations`.
///
/// Throws what round_to_nearest() throws, and invalid_argument if the scheme is symmetric (its zero
/// points are not free), p is not in (0, 1], or the penalty or its growth is not positive and
/// finite. Thread-safe; the same bits everywhere.
///
/// Source: Badri and Shaji, Half-Quadratic Quantization (2023).
[[nodiscard]] inline quantized_weights hqq(matrix_view<const float> weights,
                                           const weight_format& format,
                                           const hqq_options& options = {},
                                           const parallel_for& parallel = {}) {
  constexpr const char* where = "hqq";
  require(!format.scheme.symmetric, error_kind::invalid_argument, where,
          ": the scheme is symmetric, and its zero points are not free");
  require(options.norm > 0.0 && options.norm <= 1.0, error_kind::invalid_argument, where,
          ": the norm ", options.norm, " is not in (0, 1]");
  for (const double positive : {options.penalty, options.growth}) {
    require(std::isfinite(positive) && positive > 0.0, error_kind::invalid_argument, where,
            ": the penalty ", options.penalty, " or its growth ", options.growth,
            " is not positive and finite");
  }
  const detail::weight_problem problem(weights, format, where);
  quantized_weights q = problem.nearest();
  q.evidence.method = where;
  const std::size_t count = problem.rows * problem.groups;
  if (options.real_zero_points) {
    q.real_zero_points.resize(count);
  }
  const grid levels = problem.scheme.levels;
  std::vector<double> before(count);
  std::vector<double> after(count);
  std::vector<std::size_t> iterations(count);
  problem.for_row_blocks(parallel, [&](std::size_t first_row, std::size_t row_count) {
    std::vector<double> places;
    for (std::size_t at = first_row * problem.groups; at < (first_row + row_count) * problem.groups;
         ++at) {
      const std::size_t r = at / problem.groups;
      const std::size_t first = problem.first(at % problem.groups);
      const std::size_t n = problem.last(at % problem.groups) - first;
      detail::hqq_group group({problem.row(r) + first, n}, static_cast<double>(q.params.scales[at]),
                              levels, options, places);
      std::int8_t* const codes = q.codes.data() + r * problem.columns + first;
      const detail::hqq_group::path found = group.search(codes, q.params.zero_points[at]);
      detail::hqq_group::judged best = found.first;
      if (options.real_zero_points) {
        best = found.best;
      } else {
        for (const double real :
             {std::floor(found.best.zero_point), std::ceil(found.best.zero_point)}) {
          const double z = std::clamp<double>(real, levels.qmin, levels.qmax);
          const double objective =
              z == found.first.zero_point ? found.first.objective : group.objective(z);
          best = objective < best.objective ? detail::hqq_group::judged{z, objective} : best;
        }
      }
      before[at] = found.first.objective;
      after[at] = best.objective;
      iterations[at] = found.iterations;
      if (options.real_zero_points) {
        q.real_zero_points[at] = static_cast<float>(best.zero_point);
      }
      if (!(best.objective < found.first.objective)) {
        continue;  // the codes of nearest rounding stay
      }
      q.params.zero_points[at] = static_cast<std::int32_t>(reference::round_half_even(
          std::clamp<double>(best.zero_point, levels.qmin, levels.qmax)));
      group.round(best.zero_point, codes);
    }
  });
  q.evidence.nearest_objective = detail::ordered_sum(before);
  q.evidence.objective = detail::ordered_sum(after);
  for (std::size_t at = 0; at < count; ++at) {
    q.evidence.kept_nearest += after[at] < before[at] ? 0U : 1U;
    q.evidence.iterations = (std::max)(q.evidence.iterations, iterations[at]);
    q.evidence.converged = q.evidence.converged && iterations[at] < options.iterations;
  }
  detail::require_finite_objective(q.evidence.objective, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_HQQ_HPP
