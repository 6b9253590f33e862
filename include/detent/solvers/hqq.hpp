// SPDX-License-Identifier: BSD-3-Clause
// Half-quadratic quantization (HQQ): chooses zero points that make the errors of the weights
// sparse. It needs no inputs.
#ifndef DETENT_SOLVERS_HQQ_HPP
#define DETENT_SOLVERS_HQQ_HPP

#include <algorithm>
#include <array>
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
#include <detent/kernels/definitions/exponentials.hpp>
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

/// One group while its zero point is searched. Residuals are in `unit`.
class hqq_group {
 public:
  hqq_group(const float* weights, std::size_t n, double scale, grid levels,
            const hqq_options& options)
      : weights_(weights),
        n_(n),
        scale_(scale),
        levels_(levels),
        options_(options),
        unit_(options.relative ? scale : 1.0),
        places_(n),
        codes_(n),
        residuals_(n),
        logs_(n),
        powers_(n) {
    for (std::size_t i = 0; i < n; ++i) {
      places_[i] = static_cast<double>(weights[i]) / scale;
    }
  }

  [[nodiscard]] std::int32_t code(std::size_t i, double zero_point) const noexcept {
    const double place = places_[i] + zero_point;
    const double clamped = place < levels_.qmin   ? levels_.qmin
                           : place > levels_.qmax ? levels_.qmax
                                                  : place;
    return static_cast<std::int32_t>(reference::round_half_even(clamped));
  }
  /// The sum of |w - v|^p. Keeps the codes and the errors w - v of this zero point.
  [[nodiscard]] double objective(double zero_point) noexcept {
    for (std::size_t i = 0; i < n_; ++i) {
      codes_[i] = static_cast<double>(code(i, zero_point));
    }
    return objective_of_codes(zero_point);
  }
  /// The same for given codes. Those of nearest rounding may differ from code() at ties, because
  /// w / scale is a float there.
  [[nodiscard]] double objective_of(const std::int8_t* codes, double zero_point) noexcept {
    std::copy_n(codes, n_, codes_.begin());
    return objective_of_codes(zero_point);
  }

  /// The real zero point of least objective among those met on the way from `start`.
  [[nodiscard]] double search(double start, std::size_t& iterations) {
    double best = start;
    double best_objective = objective(start);
    double penalty = options_.penalty;
    double previous = std::numeric_limits<double>::infinity();
    for (iterations = 0; iterations < options_.iterations; ++iterations) {
      // Codes, residuals and their logarithms are those of the zero point judged last.
      if (unit_ != 1.0) {
        take_logs(unit_);
      }
      take_powers(options_.norm - 1.0);
      double sum = 0.0;
      double magnitudes = 0.0;
      for (std::size_t i = 0; i < n_; ++i) {
        const double r = residuals_[i] / unit_;
        const double e = rounded_product(shrunk(r, powers_[i], penalty), unit_);
        magnitudes += std::fabs(r);
        sum += codes_[i] - (static_cast<double>(weights_[i]) - e) / scale_;
      }
      if (!(magnitudes < previous)) {
        break;
      }
      previous = magnitudes;
      // Real zero points are stored as floats, so the rounded one is judged.
      const auto zero_point =
          static_cast<double>(static_cast<float>(sum / static_cast<double>(n_)));
      penalty = rounded_product(penalty, options_.growth);
      const double now = objective(zero_point);
      if (now < best_objective) {
        best_objective = now;
        best = zero_point;
      }
    }
    return best;
  }

 private:
  [[nodiscard]] double objective_of_codes(double zero_point) noexcept {
    for (std::size_t i = 0; i < n_; ++i) {
      residuals_[i] =
          static_cast<double>(weights_[i]) - rounded_product(scale_, codes_[i] - zero_point);
    }
    take_logs(1.0);
    take_powers(options_.norm);
    double sum = 0.0;
    for (std::size_t i = 0; i < n_; ++i) {
      sum += residuals_[i] == 0.0 ? 0.0 : powers_[i];
    }
    return sum;
  }
  /// log |residual / unit|, where it is not 0.
  void take_logs(double unit) noexcept {
    for (std::size_t i = 0; i < n_; ++i) {
      const double magnitude = std::fabs(residuals_[i] / unit);
      logs_[i] = magnitude == 0.0 ? 1.0 : magnitude;  // the power of 0 is not used
    }
    active<kernels::exponential_kernels>().log(logs_.data(), n_);
  }
  /// What portable_power() makes of these magnitudes, for a y that is not 0, or of 1.
  void take_powers(double y) noexcept {
    for (std::size_t i = 0; i < n_; ++i) {
      powers_[i] = rounded_product(y, logs_[i]);
    }
    active<kernels::exponential_kernels>().exp(powers_.data(), n_);
  }
  /// sign(r) max(|r| - |r|^(p - 1) / penalty, 0)
  [[nodiscard]] static double shrunk(double r, double power, double penalty) noexcept {
    const double magnitude = std::fabs(r);
    if (magnitude == 0.0) {
      return 0.0;
    }
    const double left = magnitude - power / penalty;
    return left > 0.0 ? std::copysign(left, r) : 0.0;
  }

  const float* weights_;
  std::size_t n_;
  double scale_;
  grid levels_;
  const hqq_options& options_;
  double unit_;
  std::vector<double> places_;  // w / scale
  std::vector<double> codes_;
  std::vector<double> residuals_;
  std::vector<double> logs_;
  std::vector<double> powers_;
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
    for (std::size_t at = first_row * problem.groups; at < (first_row + row_count) * problem.groups;
         ++at) {
      const std::size_t r = at / problem.groups;
      const std::size_t first = problem.first(at % problem.groups);
      const std::size_t n = problem.last(at % problem.groups) - first;
      detail::hqq_group group(problem.row(r) + first, n, static_cast<double>(q.params.scales[at]),
                              levels, options);
      const double start = q.params.zero_points[at];
      std::int8_t* const codes = q.codes.data() + r * problem.columns + first;
      before[at] = group.objective_of(codes, start);
      const double found = group.search(start, iterations[at]);
      const auto integer = [&](double z) {
        return z < levels.qmin   ? static_cast<double>(levels.qmin)
               : z > levels.qmax ? static_cast<double>(levels.qmax)
                                 : z;
      };
      double zero_point = start;
      after[at] = before[at];
      const std::array<double, 2> tried =
          options.real_zero_points
              ? std::array{found, start}
              : std::array{integer(std::floor(found)), integer(std::ceil(found))};
      for (const double z : std::span(tried).first(options.real_zero_points ? 1 : 2)) {
        if (z == start) {
          continue;  // nearest rounding, which is judged already
        }
        const double objective = group.objective(z);
        zero_point = objective < after[at] ? z : zero_point;
        after[at] = (std::min)(objective, after[at]);
      }
      if (options.real_zero_points) {
        q.real_zero_points[at] = static_cast<float>(zero_point);
      }
      if (zero_point == start) {
        continue;  // the codes of nearest rounding stay
      }
      q.params.zero_points[at] =
          static_cast<std::int32_t>(integer(reference::round_half_even(zero_point)));
      for (std::size_t i = 0; i < n; ++i) {
        codes[i] = static_cast<std::int8_t>(group.code(i, zero_point));
      }
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
