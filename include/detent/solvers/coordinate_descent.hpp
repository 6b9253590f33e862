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
#include <numeric>
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

/// A row while its codes and scales change. Kept up to date are
///
///     e    = w - v
///     g    = G e
///     p_i  = G c_i for each group i, where c_i is code - zero_point in the group and 0 elsewhere
///
/// so that a scale is improved without a product, and a change of a code costs two columns of G.
class row_descent {
 public:
  /// The arrays outlive this object: `e` and `g` have an element for each column, `products` has
  /// that for each group, and is not used if scales are fixed.
  row_descent(const weight_problem& problem, const gram_matrix& gram, std::size_t row,
              quantized_weights& q, double* e, double* g, double* products)
      : problem_(problem),
        gram_(gram),
        weights_(problem.row(row)),
        codes_(q.codes.data() + row * problem.columns),
        scales_(q.params.scales.data() + row * problem.groups),
        zero_points_(q.params.zero_points.data() + row * problem.groups),
        e_(e),
        g_(g),
        products_(products),
        quiet_(problem.columns) {
    take_errors();
    for (std::size_t group = 0; group < problem.groups; ++group) {
      take_quiet(group);
    }
  }

  /// Writes c_i of a group, without the zeros elsewhere.
  void take_coefficients(std::size_t group, double* c) const noexcept {
    const std::size_t first = problem_.first(group);
    for (std::size_t j = first; j < problem_.last(group); ++j) {
      c[j - first] = codes_[j] - zero_points_[group];
    }
  }

  [[nodiscard]] double objective() const noexcept { return ordered_dot(problem_.columns, e_, g_); }

  /// Called when all arrays are complete.
  void begin() noexcept {
    is_fresh_ = true;
    // Smaller gains cannot be told from rounding or, for scales, are not worth the iterations that
    // go on and on where scales of neighbouring groups depend on each other. Both bound the number
    // of steps.
    const double first = (std::max)(objective(), 0.0);  // rounding may make it negative
    smallest_code_gain_ = rounded_product(1e-12, first);
    smallest_scale_gain_ = rounded_product(1e-8, first);
  }

  /// Sets the scale of a group to the best one while all else stays: this is scale + (c_i^T g) /
  /// (c_i^T p_i); with one group it is (w^T p) / (c^T p). Returns whether the scale changed.
  bool improve_scale(std::size_t group) noexcept {
    const std::size_t first = problem_.first(group);
    const std::size_t last = problem_.last(group);
    const double* const product = products_ + group * problem_.columns;
    double slope = 0.0;
    double curvature = 0.0;
    for (std::size_t j = first; j < last; ++j) {
      const double c = codes_[j] - zero_points_[group];
      slope += rounded_product(c, g_[j]);
      curvature += rounded_product(c, product[j]);
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
      take_error(j);
    }
    take_quiet(group);
    add_scaled(problem_.columns, -change, product, g_);
    is_fresh_ = false;
    return true;
  }

  /// Sets the code of column j to the best one while all others stay: if v_j moves by t, the
  /// objective changes by G_jj t^2 - 2 g_j t. Returns whether the code changed.
  bool improve_code(std::size_t j) noexcept {
    const double diagonal = gram_.diagonal(j);
    if (!(diagonal > 0.0)) {
      return false;
    }
    const grid levels = problem_.scheme.levels;
    const std::size_t group = j / problem_.group_size;
    const auto scale = static_cast<double>(scales_[group]);
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
    take_error(j);
    gram_.add_scaled_column(j, -t, g_, 0, problem_.columns);
    if (products_ != nullptr) {
      gram_.add_scaled_column(j, d, products_ + group * problem_.columns, 0, problem_.columns);
    }
    is_fresh_ = false;
    return true;
  }

  /// Visits all scales. Returns whether any changed.
  bool improve_scales() noexcept {
    bool changed = false;
    for (std::size_t group = 0; group < problem_.groups; ++group) {
      changed = improve_scale(group) || changed;
    }
    return changed;
  }

  /// Visits all codes. Returns whether any changed.
  bool improve_codes() noexcept {
    bool changed = false;
    for (std::size_t j = 0; j < problem_.columns; ++j) {
      // A step of less than half a level is none.
      if (!(std::fabs(g_[j]) <= quiet_[j])) {
        changed = improve_code(j) || changed;
      }
    }
    return changed;
  }

  /// Whether g has no rounding errors of changes since it was computed from e.
  [[nodiscard]] bool is_fresh() const noexcept { return is_fresh_; }
  /// Called when g was computed from e.
  void refreshed() noexcept { is_fresh_ = true; }

 private:
  [[nodiscard]] static double gain(double slope, double curvature, double t) noexcept {
    return rounded_product(t, 2.0 * slope - rounded_product(curvature, t));
  }
  void take_error(std::size_t j) noexcept {
    const std::size_t group = j / problem_.group_size;
    e_[j] =
        static_cast<double>(weights_[j]) -  // the product is exact
        static_cast<double>(codes_[j] - zero_points_[group]) * static_cast<double>(scales_[group]);
  }
  void take_errors() noexcept {
    for (std::size_t j = 0; j < problem_.columns; ++j) {
      take_error(j);
    }
  }
  /// Where |g_j| is at most this, the code of column j surely stays.
  void take_quiet(std::size_t group) noexcept {
    const auto scale = static_cast<double>(scales_[group]);
    for (std::size_t j = problem_.first(group); j < problem_.last(group); ++j) {
      quiet_[j] = rounded_product(0.499, rounded_product(gram_.diagonal(j), scale));
    }
  }

  const weight_problem& problem_;
  const gram_matrix& gram_;
  const float* weights_;
  std::int8_t* codes_;
  float* scales_;
  const std::int32_t* zero_points_;
  double* e_;
  double* g_;
  double* products_;           // null if scales are fixed
  std::vector<double> quiet_;  // see take_quiet()
  bool is_fresh_ = false;
  double smallest_code_gain_ = 0.0;
  double smallest_scale_gain_ = 0.0;
};

/// Several rows that are solved at the same time, so that G is read once for all of them where all
/// of it is multiplied. Each has its own solution.
class descent_of_rows {
 public:
  descent_of_rows(const weight_problem& problem, const gram_matrix& gram, bool fixed_scales,
                  std::size_t first_row, std::size_t row_count, quantized_weights& q)
      : problem_(problem),
        gram_(gram),
        fixed_scales_(fixed_scales),
        e_(row_count * problem.columns),
        g_(row_count * problem.columns),
        products_(fixed_scales ? 0 : row_count * problem.groups * problem.columns) {
    const std::size_t columns = problem.columns;
    rows_.reserve(row_count);
    for (std::size_t r = 0; r < row_count; ++r) {
      rows_.emplace_back(problem, gram, first_row + r, q, e_.data() + r * columns,
                         g_.data() + r * columns,
                         fixed_scales ? nullptr : products_.data() + r * problem.groups * columns);
    }
    gram.add_products(row_count, 0, columns, e_.data(), g_.data());
    if (!fixed_scales) {
      take_products();
    }
    for (row_descent& row : rows_) {
      row.begin();
    }
  }

  /// A row, of the `row_count`.
  [[nodiscard]] row_descent& row(std::size_t r) noexcept { return rows_[r]; }

  /// Runs until no row changes or `max_iterations` are done. Writes the iterations of each row, and
  /// whether it converged.
  void run(std::size_t max_iterations, std::size_t* iterations, char* converged) {
    std::vector<std::size_t> active(rows_.size());
    std::iota(active.begin(), active.end(), std::size_t{0});
    for (std::size_t i = 0; i < max_iterations && !active.empty(); ++i) {
      std::vector<std::size_t> remaining;
      std::vector<std::size_t> unsure;
      for (const std::size_t r : active) {
        const bool any_scale = !fixed_scales_ && rows_[r].improve_scales();
        const bool any_code = rows_[r].improve_codes();
        ++iterations[r];
        if (any_scale || any_code) {
          remaining.push_back(r);
        } else if (!rows_[r].is_fresh()) {
          unsure.push_back(r);
        } else {
          converged[r] = 1;
        }
      }
      // Rounding errors of earlier changes might hide an improvement.
      refresh(unsure);
      for (const std::size_t r : unsure) {
        if (rows_[r].improve_codes()) {
          remaining.push_back(r);
        } else {
          converged[r] = 1;
        }
      }
      active = std::move(remaining);
    }
  }

 private:
  /// Computes p_i of all rows.
  void take_products() {
    const std::size_t columns = problem_.columns;
    std::vector<double> coefficients(rows_.size() * problem_.group_size);
    std::vector<double> products(rows_.size() * columns);
    for (std::size_t group = 0; group < problem_.groups; ++group) {
      const std::size_t size = problem_.last(group) - problem_.first(group);
      for (std::size_t r = 0; r < rows_.size(); ++r) {
        rows_[r].take_coefficients(group, coefficients.data() + r * size);
      }
      std::fill(products.begin(), products.end(), 0.0);
      gram_.add_products(rows_.size(), problem_.first(group), size, coefficients.data(),
                         products.data());
      for (std::size_t r = 0; r < rows_.size(); ++r) {
        std::copy_n(products.begin() + static_cast<std::ptrdiff_t>(r * columns), columns,
                    products_.begin() +
                        static_cast<std::ptrdiff_t>((r * problem_.groups + group) * columns));
      }
    }
  }

  /// Computes g of some rows from e.
  void refresh(const std::vector<std::size_t>& rows) {
    const std::size_t columns = problem_.columns;
    std::vector<double> e(rows.size() * columns);
    std::vector<double> g(rows.size() * columns);
    for (std::size_t n = 0; n < rows.size(); ++n) {
      std::copy_n(e_.begin() + static_cast<std::ptrdiff_t>(rows[n] * columns), columns,
                  e.begin() + static_cast<std::ptrdiff_t>(n * columns));
    }
    gram_.add_products(rows.size(), 0, columns, e.data(), g.data());
    for (std::size_t n = 0; n < rows.size(); ++n) {
      std::copy_n(g.begin() + static_cast<std::ptrdiff_t>(n * columns), columns,
                  g_.begin() + static_cast<std::ptrdiff_t>(rows[n] * columns));
      rows_[rows[n]].refreshed();
    }
  }

  const weight_problem& problem_;
  const gram_matrix& gram_;
  bool fixed_scales_;
  std::vector<double> e_;
  std::vector<double> g_;
  std::vector<double> products_;
  std::vector<row_descent> rows_;
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
/// Time: O(K^2) for each row, O(K) for each iteration and each change. Memory: a double for each
/// column and group of a row that is being solved. Throws what round_to_nearest()
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
  std::vector<std::size_t> iterations(problem.rows);
  std::vector<char> converged(problem.rows);
  // Rows that are solved at the same time take this many doubles at most.
  constexpr std::size_t most_products = std::size_t{1} << 22;
  const std::size_t at_once =
      (std::max)(std::size_t{1}, most_products / (problem.groups * problem.columns));
  problem.for_row_blocks(parallel, [&](std::size_t first_row, std::size_t count) {
    for (std::size_t done = 0; done < count; done += at_once) {
      const std::size_t first = first_row + done;
      const std::size_t some = (std::min)(at_once, count - done);
      detail::descent_of_rows(problem, g, options.fixed_scales, first, some, q)
          .run(options.max_iterations, iterations.data() + first, converged.data() + first);
    }
  });
  for (std::size_t r = 0; r < problem.rows; ++r) {
    q.evidence.iterations = (std::max)(q.evidence.iterations, iterations[r]);
    q.evidence.converged = q.evidence.converged && converged[r] != 0;
  }
  detail::keep_better_rows(problem, g, nearest, q, parallel, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_COORDINATE_DESCENT_HPP
