// SPDX-License-Identifier: BSD-3-Clause
// GPTQ: rounds weights column by column and lets the columns that follow make up for the error.
// Needs Eigen, for the Cholesky factor.
#ifndef DETENT_SOLVERS_GPTQ_HPP
#define DETENT_SOLVERS_GPTQ_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <detent/config.hpp>

#if !DETENT_WITH_EIGEN
#error "detent: gptq.hpp needs Eigen (3.4 or later) on the include path and DETENT_WITH_EIGEN=1"
#endif

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of gptq().
struct gptq_options {
  /// What is added to the diagonal of G, as a fraction of its mean diagonal.
  double damping = 0.01;
  /// Number of columns between updates of all columns that follow. It affects the speed, and the
  /// result by rounding only.
  std::size_t block_size = 128;
  /// Whether columns are processed in descending order of G_jj instead of their own order.
  bool activation_order = false;
  /// Whether scales of groups come from the weights as they were given, not as they are when their
  /// group's turn comes. This is always so with activation_order, where groups have no turn, and
  /// with given scales.
  bool static_groups = false;
};

namespace detail {

using gptq_matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The upper triangular U with (G + damping)^-1 = U^T U, with columns in the order of processing.
struct gptq_factor {
  gptq_matrix u;  // for a diagonal G a single row: the diagonal of U
  std::vector<std::size_t> order;
  double damping;  // the one that was used
};

/// Factorizes H = G + damping * mean(diagonal) I in the order of processing; inputs that are always
/// zero get the mean diagonal (1 if all are). With J the reversal of rows, J H J = L L^T gives U =
/// J L^-1 J: one factorization, and no inverse of H.
[[nodiscard]] inline gptq_factor factorize(const gram_matrix& g, const gptq_options& options) {
  const std::size_t size = g.size();
  gptq_factor factor;
  factor.order.resize(size);
  std::iota(factor.order.begin(), factor.order.end(), std::size_t{0});
  if (options.activation_order) {
    std::stable_sort(factor.order.begin(), factor.order.end(),
                     [&](std::size_t a, std::size_t b) { return g.diagonal(a) > g.diagonal(b); });
  }
  const double mean = g.mean_diagonal();
  const double dead = mean > 0.0 ? mean : 1.0;
  const auto n = static_cast<Eigen::Index>(size);
  constexpr double largest_damping = 1.0;
  for (factor.damping = options.damping;;
       factor.damping = (std::max)(10.0 * factor.damping, 1e-6)) {
    require(factor.damping <= (std::max)(largest_damping, options.damping),
            error_kind::invalid_argument,
            "gptq: the Gram matrix is not positive definite, with a damping of ", largest_damping,
            " neither");
    const double added = factor.damping * mean;
    const auto diagonal = [&](std::size_t j) {
      return (g.diagonal(j) > 0.0 ? g.diagonal(j) : dead) + added;
    };
    if (g.is_diagonal()) {
      factor.u.resize(1, n);
      for (std::size_t j = 0; j < size; ++j) {
        factor.u(0, static_cast<Eigen::Index>(j)) = 1.0 / std::sqrt(diagonal(factor.order[j]));
      }
    } else {
      gptq_matrix h(n, n);
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t j = 0; j < size; ++j) {
          const std::size_t a = factor.order[size - 1 - i];
          const std::size_t b = factor.order[size - 1 - j];
          h(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) =
              a == b ? diagonal(a) : g(a, b);
        }
      }
      const Eigen::LLT<Eigen::Ref<gptq_matrix>> llt(h);
      if (llt.info() != Eigen::Success) {
        continue;
      }
      // The matrix is singular to working precision if nothing but rounding is left in a pivot.
      const auto pivots = h.diagonal().array().square();
      bool is_singular = false;
      for (Eigen::Index i = 0; i < n; ++i) {
        const double before = diagonal(factor.order[size - 1 - static_cast<std::size_t>(i)]);
        is_singular =
            is_singular ||
            !(pivots(i) > static_cast<double>(n) * std::numeric_limits<double>::epsilon() * before);
      }
      if (is_singular) {
        continue;
      }
      gptq_matrix inverse = gptq_matrix::Identity(n, n);
      h.triangularView<Eigen::Lower>().solveInPlace(inverse);
      factor.u = inverse.reverse();
    }
    if (factor.u.allFinite()) {
      return factor;
    }
  }
}

/// How many rows are solved together, so that U is read once for all of them. Results depend on it,
/// since Eigen's products round differently for different sizes.
inline constexpr std::size_t gptq_rows = 32;

inline void gptq_block_of_rows(const weight_problem& problem, const gptq_factor& factor,
                               const gptq_options& options, bool static_groups,
                               std::size_t first_row, quantized_weights& q) {
  const std::size_t count = (std::min)(gptq_rows, problem.rows - first_row);
  const auto rows = static_cast<Eigen::Index>(count);
  const auto columns = static_cast<Eigen::Index>(problem.columns);
  const bool is_diagonal = factor.u.rows() != columns || columns == 1;
  gptq_matrix w(rows, columns);  // columns in the order of processing
  for (Eigen::Index r = 0; r < rows; ++r) {
    for (Eigen::Index j = 0; j < columns; ++j) {
      w(r, j) = static_cast<double>(problem.row(
          first_row + static_cast<std::size_t>(r))[factor.order[static_cast<std::size_t>(j)]]);
    }
  }
  const auto block_size =
      static_cast<Eigen::Index>((std::min)(options.block_size, problem.columns));
  gptq_matrix errors(rows, block_size);
  std::vector<float> group_weights;
  for (Eigen::Index first = 0; first < columns; first += block_size) {
    const Eigen::Index last = (std::min)(columns, first + block_size);
    for (Eigen::Index j = first; j < last; ++j) {
      const std::size_t column = factor.order[static_cast<std::size_t>(j)];
      const std::size_t group = column / problem.group_size;
      const bool begins_group = !static_groups && column % problem.group_size == 0;
      const double pivot = factor.u(is_diagonal ? 0 : j, j);
      for (Eigen::Index r = 0; r < rows; ++r) {
        const std::size_t row = first_row + static_cast<std::size_t>(r);
        const std::size_t at = row * problem.groups + group;
        if (begins_group) {
          // The errors of this block have not yet been passed on to the rest of the group beyond
          // the block.
          const auto size = static_cast<Eigen::Index>(problem.last(group) - column);
          Eigen::Matrix<double, 1, Eigen::Dynamic> now = w.block(r, j, 1, size);
          if (!is_diagonal && j + size > last) {
            const Eigen::Index late = j + size - last;
            now.tail(late).noalias() -=
                errors.block(r, 0, 1, j - first) * factor.u.block(first, last, j - first, late);
          }
          group_weights.resize(static_cast<std::size_t>(size));
          for (Eigen::Index i = 0; i < size; ++i) {
            group_weights[static_cast<std::size_t>(i)] = static_cast<float>(now(i));
          }
          const quant_params p = problem.params_of(group_weights, 1.0F);
          q.params.scales[at] = p.scale;
          q.params.zero_points[at] = p.zero_point;
        }
        const quant_params p{q.params.scales[at], q.params.zero_points[at]};
        const std::int32_t code =
            reference::quantize(static_cast<float>(w(r, j)), p, problem.scheme.levels);
        q.codes[row * problem.columns + column] = static_cast<std::int8_t>(code);
        const double value =
            static_cast<double>(code - p.zero_point) * static_cast<double>(p.scale);
        errors(r, j - first) = (w(r, j) - value) / pivot;
      }
      if (!is_diagonal && j + 1 < last) {
        w.block(0, j + 1, rows, last - j - 1).noalias() -=
            errors.col(j - first) * factor.u.block(j, j + 1, 1, last - j - 1);
      }
    }
    if (!is_diagonal && last < columns) {
      w.rightCols(columns - last).noalias() -=
          errors.leftCols(last - first) * factor.u.block(first, last, last - first, columns - last);
    }
  }
}

}  // namespace detail

/// GPTQ. With H = G + damping * mean(diagonal of G) * I and H^-1 = U^T U, U upper triangular, does
/// for each column j in its turn:
///
///     code_j = clamp(round_half_even(w_j / scale) + zero_point)     w_j rounded to float
///     w_k   -= (w_j - v_j) / U_jj * U_jk                            for all k after j
///
/// If G is zero off its diagonal, this is nearest rounding to the bit. The scale and zero point of
/// a group are those of its weights' range when its first column is reached, unless they are given
/// or static (gptq_options). Inputs that were always zero (G_jj = 0) are rounded to nearest and
/// affect no other column. If H is not positive definite in double (for example because G is
/// singular and damping is 0), damping becomes 1e-6 or ten times itself, until it is;
/// evidence.damping is what was used.
///
/// The result is usually much better than nearest rounding, but that is not guaranteed: compare
/// evidence.objective, which is that of G without damping, with evidence.nearest_objective.
///
/// Throws what round_to_nearest() throws; also invalid_argument if damping is negative or not
/// finite, if block_size is 0, if H is not positive definite with a damping of 1, or if weights
/// that make up for others leave the range of floats. Time: O(K^3) once, O(K^2) for each row.
/// Thread-safe; the result does not depend on `parallel`, but it depends on how Eigen adds: expect
/// the same bits only from the same program on the same kind of processor. Eigen's functions have
/// the same names for any -m flags: do not link units that include this header and differ in those
/// flags.
///
/// Source: Frantar et al., GPTQ (2023).
[[nodiscard]] inline quantized_weights gptq(matrix_view<const float> weights, const gram_matrix& g,
                                            const weight_format& format = {},
                                            const gptq_options& options = {},
                                            const parallel_for& parallel = {}) {
  constexpr const char* where = "gptq";
  const detail::weight_problem problem(weights, format, where);
  problem.require_gram(g, where);
  require(std::isfinite(options.damping) && options.damping >= 0.0, error_kind::invalid_argument,
          where, ": damping of ", options.damping);
  require(options.block_size > 0, error_kind::invalid_argument, where, ": the block size is 0");
  quantized_weights q = problem.nearest();
  q.evidence.method = where;
  q.evidence.nearest_objective = detail::ordered_sum(problem.objectives(g, q, parallel));
  const detail::gptq_factor factor = detail::factorize(g, options);
  const bool static_groups =
      options.static_groups || options.activation_order || !format.scales.empty();
  detail::run_parallel(parallel, (problem.rows + detail::gptq_rows - 1) / detail::gptq_rows,
                       [&](std::size_t task) {
                         detail::gptq_block_of_rows(problem, factor, options, static_groups,
                                                    task * detail::gptq_rows, q);
                       });
  q.evidence.objective = detail::ordered_sum(problem.objectives(g, q, parallel));
  q.evidence.iterations = 1;
  q.evidence.damping = factor.damping;
  detail::require_finite_objective(q.evidence.objective, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_GPTQ_HPP
