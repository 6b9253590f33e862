// SPDX-License-Identifier: BSD-3-Clause
// A weight solver that lowers a linear layer's output error by changing one code or one scale at a
// time.
#ifndef DETENT_SOLVERS_COORDINATE_DESCENT_HPP
#define DETENT_SOLVERS_COORDINATE_DESCENT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of coordinate_descent().
struct coordinate_descent_options {
  /// Limit for each row; an iteration visits all its scales, then all its codes.
  std::size_t max_iterations = 100;
  bool fixed_scales = false;  ///< whether scales stay and only codes change
};

namespace detail {

/// A row while its codes and scales change; e = w - v and g = G e are kept up to date.
class row_descent {
 public:
  row_descent(const weight_problem& problem, const gram_matrix& g, std::size_t row,
              quantized_weights& q)
      : problem_(problem),
        gram_(g),
        weights_(problem.row(row)),
        codes_(q.codes.data() + row * problem.columns),
        scales_(q.params.scales.data() + row * problem.groups),
        zero_points_(q.params.zero_points.data() + row * problem.groups),
        e_(problem.columns),
        g_(problem.columns),
        buffer_(problem.columns) {
    refresh();
    // Smaller gains cannot be told from rounding or, for scales, are not worth the iterations that
    // go on and on where scales of neighbouring groups depend on each other. Both bound the number
    // of steps.
    smallest_code_gain_ = rounded_product(1e-12, objective());
    smallest_scale_gain_ = rounded_product(1e-8, objective());
  }

  [[nodiscard]] double objective() const noexcept {
    return ordered_dot(e_.size(), e_.data(), g_.data());
  }

  /// Sets the code of column j to the best one while all others stay: if v_j moves by t, the
  /// objective changes by G_jj t^2 - 2 g_j t. Returns whether the code changed.
  bool improve_code(std::size_t j) noexcept {
    const double diagonal = gram_.diagonal(j);
    if (!(diagonal > 0.0)) {
      return false;
    }
    const grid levels = problem_.scheme.levels;
    const auto scale = static_cast<double>(scales_[j / problem_.group_size]);
    const double lowest = levels.qmin - codes_[j];
    const double highest = levels.qmax - codes_[j];
    const double steps = g_[j] / rounded_product(diagonal, scale);
    if (std::isnan(steps)) {
      return false;
    }
    const double d = reference::round_half_even(steps < lowest    ? lowest
                                                : steps > highest ? highest
                                                                  : steps);
    const double t = scale * d;  // exact
    if (!(gain(g_[j], diagonal, t) > smallest_code_gain_)) {
      return false;
    }
    codes_[j] = static_cast<std::int8_t>(codes_[j] + static_cast<int>(d));
    refresh_error(j);
    gram_.add_scaled_column(j, -t, g_.data(), 0, g_.size());
    is_fresh_ = false;
    return true;
  }

  /// Sets the scale of a group to the best one while all else stays: with c the group's codes minus
  /// the zero point, this is scale + (c^T g) / (c^T G c); with one group it is (w^T G c) / (c^T G
  /// c). Returns whether the scale changed.
  bool improve_scale(std::size_t group) noexcept {
    const std::size_t first = problem_.first(group);
    const std::size_t last = problem_.last(group);
    std::fill(buffer_.begin(), buffer_.end(), 0.0);  // G c
    double slope = 0.0;
    for (std::size_t j = first; j < last; ++j) {
      if (const double c = codes_[j] - zero_points_[group]; c != 0.0) {
        gram_.add_scaled_column(j, c, buffer_.data(), 0, buffer_.size());
        slope += rounded_product(c, g_[j]);
      }
    }
    double curvature = 0.0;
    for (std::size_t j = first; j < last; ++j) {
      curvature += rounded_product(codes_[j] - zero_points_[group], buffer_[j]);
    }
    if (!(curvature > 0.0)) {
      return false;
    }
    const double old = scales_[group];
    const auto scale = static_cast<float>(old + slope / curvature);
    if (!(scale >= std::numeric_limits<float>::min()) || !std::isfinite(scale)) {
      return false;
    }
    const double change = static_cast<double>(scale) - old;
    if (!(gain(slope, curvature, change) > smallest_scale_gain_)) {
      return false;
    }
    scales_[group] = scale;
    for (std::size_t j = first; j < last; ++j) {
      refresh_error(j);
    }
    add_scaled(g_.size(), -change, buffer_.data(), g_.data());
    is_fresh_ = false;
    return true;
  }

  /// Performs one iteration. Returns whether anything changed. If nothing did, g has no rounding
  /// errors of earlier changes: where they might hide an improvement, it is computed anew and all
  /// codes are visited again.
  bool iterate(bool fixed_scales) noexcept {
    bool changed = false;
    for (std::size_t group = 0; group < problem_.groups && !fixed_scales; ++group) {
      changed = improve_scale(group) || changed;
    }
    changed = improve_codes() || changed;
    if (!changed && !is_fresh_) {
      refresh();
      changed = improve_codes();
    }
    return changed;
  }

  /// Computes e and g from the codes and scales.
  void refresh() noexcept {
    if (is_fresh_) {
      return;
    }
    std::fill(g_.begin(), g_.end(), 0.0);
    for (std::size_t j = 0; j < e_.size(); ++j) {
      refresh_error(j);
      if (e_[j] != 0.0) {
        gram_.add_scaled_column(j, e_[j], g_.data(), 0, g_.size());
      }
    }
    is_fresh_ = true;
  }

 private:
  [[nodiscard]] static double gain(double slope, double curvature, double t) noexcept {
    return rounded_product(t, 2.0 * slope - rounded_product(curvature, t));
  }
  void refresh_error(std::size_t j) noexcept {
    const std::size_t group = j / problem_.group_size;
    e_[j] =
        static_cast<double>(weights_[j]) -  // the product is exact
        static_cast<double>(codes_[j] - zero_points_[group]) * static_cast<double>(scales_[group]);
  }
  bool improve_codes() noexcept {
    bool changed = false;
    for (std::size_t j = 0; j < e_.size(); ++j) {
      changed = improve_code(j) || changed;
    }
    return changed;
  }

  const weight_problem& problem_;
  const gram_matrix& gram_;
  const float* weights_;
  std::int8_t* codes_;
  float* scales_;
  const std::int32_t* zero_points_;
  std::vector<double> e_;
  std::vector<double> g_;
  std::vector<double> buffer_;
  bool is_fresh_ = false;  // whether e and g were computed from the codes as they are
  double smallest_code_gain_ = 0.0;
  double smallest_scale_gain_ = 0.0;
};

}  // namespace detail

/// Minimizes (w - v)^T G (w - v) of each row, v = scale * (code - zero_point). It begins with
/// nearest rounding and alternates
///
///     scale of a group  += c^T G (w - v) / (c^T G c), rounded to float
///                          with c = code - zero_point in the group, else 0
///                          (with one group, the new scale is (w^T G c) / (c^T G c))
///     code of column j  += round_half_even((G (w - v))_j / (G_jj * scale)), clamped to the grid
///
/// Each step is the best for its variable while the others stay, and is taken only if the objective
/// falls by more than 1e-12 (scales: 1e-8) of its first value. So the objective never rises, the
/// result is never worse than nearest rounding, and the steps come to an end. evidence.converged
/// says that this end was reached within max_iterations: no single code can be changed for the
/// better. Zero points stay. Columns with G_jj = 0 keep their nearest codes.
///
/// Time: O(K^2) for each row and iteration, O(K) with a diagonal G. Throws what round_to_nearest()
/// throws, and invalid_argument if max_iterations is 0. Thread-safe; blocks of rows are shared out
/// by `parallel`, and the result does not depend on it.
///
/// Source: the closed form of the scale and coordinate descent are textbook least squares; rounding
/// one weight at a time against the layer's output is in the manner of QuantEase (2023).
[[nodiscard]] inline quantized_weights coordinate_descent(
    matrix_view<const float> weights, const gram_matrix& g, const weight_format& format = {},
    const coordinate_descent_options& options = {}, const parallel_for& parallel = {}) {
  constexpr const char* where = "coordinate_descent";
  const detail::weight_problem problem(weights, format, where);
  problem.require_gram(g, where);
  require(options.max_iterations > 0, error_kind::invalid_argument, where, ": max_iterations is 0");
  const quantized_weights nearest = problem.nearest();
  quantized_weights q = nearest;
  q.evidence.method = where;
  std::vector<double> before(problem.rows);
  std::vector<double> after(problem.rows);
  std::vector<std::size_t> iterations(problem.rows);
  std::vector<char> converged(problem.rows);
  problem.for_row_blocks(parallel, [&](std::size_t first_row, std::size_t count) {
    for (std::size_t r = first_row; r < first_row + count; ++r) {
      detail::row_descent descent(problem, g, r, q);
      before[r] = descent.objective();
      while (iterations[r] < options.max_iterations && converged[r] == 0) {
        ++iterations[r];
        converged[r] = descent.iterate(options.fixed_scales) ? 0 : 1;
      }
      descent.refresh();
      after[r] = descent.objective();
    }
  });
  for (std::size_t r = 0; r < problem.rows; ++r) {
    q.evidence.iterations = (std::max)(q.evidence.iterations, iterations[r]);
    q.evidence.converged = q.evidence.converged && converged[r] != 0;
  }
  detail::keep_better_rows(problem, nearest, before, std::move(after), q, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_COORDINATE_DESCENT_HPP
