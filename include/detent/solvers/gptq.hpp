// SPDX-License-Identifier: BSD-3-Clause
// GPTQ: rounds weights column by column and lets the columns that follow make up for the error.
#ifndef DETENT_SOLVERS_GPTQ_HPP
#define DETENT_SOLVERS_GPTQ_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/double_products.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/cholesky.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of gptq().
struct gptq_options {
  /// What is added to the diagonal of G, as a fraction of its mean diagonal.
  double damping = 0.01;
  /// Number of columns between updates of all columns that follow. It affects the speed only.
  std::size_t block_size = 128;
  /// Whether columns are processed in descending order of G_jj instead of their own order.
  bool activation_order = false;
  /// Whether scales of groups come from the weights as they were given, not as they are when their
  /// group's turn comes. This is always so with activation_order, where groups have no turn, and
  /// with given scales.
  bool static_groups = false;
};

namespace detail {

/// H = G + damping as T T^T, T upper triangular in the order of processing: the shares T_jk / T_kk
/// of the error of column j that column k makes up for, and the pivots T_kk.
struct gptq_factor {
  std::vector<double> shares;  // T_jk / T_kk at [k * size + j], j <= k; empty for a diagonal G
  std::vector<double> pivots;  // T_kk; empty for a diagonal G
  std::vector<std::size_t> order;
  double damping;  // the one that was used
};

/// Factorizes H = G + damping * mean(diagonal) I in the order of processing; inputs that are always
/// zero get the mean diagonal (1 if all are). With J the reversal of rows, J H J = R^T R gives T =
/// J R^T J.
[[nodiscard]] inline gptq_factor factorize(const gram_matrix& g, const gptq_options& options,
                                           const parallel_for& parallel = {}) {
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
  const double largest_damping = (std::max)(1.0, options.damping);
  const auto next_damping = [&](double failed) {
    require(failed < largest_damping, error_kind::invalid_argument,
            "gptq: the Gram matrix is not positive definite, not even with a damping of ",
            largest_damping);
    return (std::min)((std::max)(10.0 * failed, 1e-6), largest_damping);
  };
  for (factor.damping = options.damping;; factor.damping = next_damping(factor.damping)) {
    const double added = rounded_product(factor.damping, mean);
    const auto diagonal = [&](std::size_t j) {
      return (g.diagonal(j) > 0.0 ? g.diagonal(j) : dead) + added;
    };
    if (g.is_diagonal()) {
      return factor;
    }
    std::vector<double>& h = factor.shares;
    h.resize(size * size);
    std::vector<double> least(size);
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t a = factor.order[size - 1 - i];
      for (std::size_t j = i; j < size; ++j) {
        const std::size_t b = factor.order[size - 1 - j];
        h[i * size + j] = a == b ? -diagonal(a) : -g(a, b);
      }
      // Nothing but rounding is left in a pivot that is not larger.
      least[i] = rounded_product(static_cast<double>(size) * std::numeric_limits<double>::epsilon(),
                                 diagonal(a));
    }
    if (!cholesky(h.data(), size, parallel).run(least)) {
      continue;
    }
    std::reverse(h.begin(), h.end());
    factor.pivots.resize(size);
    bool is_finite = true;
    for (std::size_t k = 0; k < size; ++k) {
      factor.pivots[k] = h[k * size + k];
      for (std::size_t j = 0; j <= k; ++j) {
        h[k * size + j] /= factor.pivots[k];
        is_finite = is_finite && std::isfinite(h[k * size + j]);
      }
    }
    if (is_finite) {
      return factor;
    }
  }
}

/// Several rows that are solved at the same time, so that the factor is read once for all of them,
/// and by vectors that have a row in each lane. Each has its own solution.
///
/// The published loop passes the error of each column on to all columns that follow, by a row of
/// the factor U of H^-1 = U^T U:
///
///     w_k -= (w_j - v_j) / U_jj * U_jk
///
/// Solved for the weights that were given, w0, the value that column k is rounded at is
///
///     w_k = w0_k + sum over j before k of (w0_j - v_j) T_jk / T_kk,   H = T T^T
///
/// which needs no inverse (Chee et al., QuIP, 2023). The sum runs from the first column to the
/// last.
class gptq_rows {
 public:
  /// How many rows there are at most.
  static constexpr std::size_t lanes = 32;

  gptq_rows(const weight_problem& problem, const gptq_factor& factor, const gptq_options& options,
            bool static_groups, std::size_t first_row, quantized_weights& q)
      : problem_(problem),
        factor_(factor),
        block_size_((std::min)(options.block_size, problem.columns)),
        static_groups_(static_groups),
        first_row_(first_row),
        rows_((std::min)(lanes, problem.rows - first_row)),
        q_(q),
        weights_(problem.columns * lanes),
        left_(problem.columns * lanes) {
    for (std::size_t j = 0; j < problem.columns; ++j) {
      for (std::size_t r = 0; r < rows_; ++r) {
        weights_[j * lanes + r] = static_cast<double>(problem.row(first_row + r)[factor.order[j]]);
      }
    }
    now_ = weights_;
    scales_.fill(1.0F);
    lowest_.fill(0.0F);
    highest_.fill(0.0F);
  }

  void run() {
    const std::size_t columns = problem_.columns;
    for (std::size_t first = 0; first < columns; first += block_size_) {
      const std::size_t last = (std::min)(columns, first + block_size_);
      for (std::size_t begin = first; begin < last; begin += step) {
        const std::size_t end = (std::min)(last, begin + step);
        for (std::size_t j = begin; j < end; ++j) {
          add_left(j, j + 1, begin, j, now_.data() + j * lanes, left_.data() + begin * lanes);
          const std::size_t column = factor_.order[j];
          const std::size_t group = column / problem_.group_size;
          // Before the first column, the weights are those that the parameters were chosen for.
          if (!static_groups_ && j != 0 && column % problem_.group_size == 0) {
            // Columns behind `end` lack what is left since `begin`, columns behind `last` what is
            // left since `first`.
            choose_params(j, first, begin, end, last);
          }
          if (j == 0 || group != group_) {
            take_params(group);
          }
          round_column(j, column);
        }
        add_left(end, last, begin, end, now_.data() + end * lanes, left_.data() + begin * lanes);
      }
      add_left(last, columns, first, last, now_.data() + last * lanes,
               left_.data() + first * lanes);
    }
  }

 private:
  /// How many columns are solved one by one before the rest of their block is updated.
  static constexpr std::size_t step = 16;

  /// Adds to `to`, columns [first, last), what they make up for of columns [low, high); `left` has
  /// the errors of the latter.
  void add_left(std::size_t first, std::size_t last, std::size_t low, std::size_t high, double* to,
                const double* left) const noexcept {
    if (factor_.shares.empty() || first == last || low == high) {
      return;
    }
    active<kernels::double_product_kernels>().add_products(
        {.rows = last - first,
         .columns = rows_,
         .depth = high - low,
         .a = factor_.shares.data() + first * problem_.columns + low,
         .a_row_stride = problem_.columns,
         .b = left,
         .b_stride = lanes,
         .c = to,
         .c_stride = lanes});
  }

  /// Copies the parameters of a group to the lanes.
  void take_params(std::size_t group) noexcept {
    group_ = group;
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::size_t at = (first_row_ + r) * problem_.groups + group;
      const std::int32_t zero_point = q_.params.zero_points[at];
      scales_[r] = q_.params.scales[at];
      lowest_[r] = static_cast<float>(problem_.scheme.levels.qmin - zero_point);
      highest_[r] = static_cast<float>(problem_.scheme.levels.qmax - zero_point);
    }
  }

  /// Rounds column j of the order as reference::quantize() does.
  void round_column(std::size_t j, std::size_t column) noexcept {
    std::array<float, lanes> steps;
    for (std::size_t r = 0; r < lanes; ++r) {  // all of them: a loop without an end to check
      // Adding 1.5 * 2^23 rounds half to even what is less than 2^22.
      constexpr float bias = 12582912.0F;
      const float place = static_cast<float>(now_[j * lanes + r]) / scales_[r];
      const float number = place == place ? place : 0.0F;  // NaN becomes the zero point
      const float low = number < lowest_[r] ? lowest_[r] : number;
      steps[r] = (low > highest_[r] ? highest_[r] : low) + bias - bias;
      left_[j * lanes + r] =
          weights_[j * lanes + r] -
          static_cast<double>(steps[r]) * static_cast<double>(scales_[r]);  // exact
    }
    std::int8_t* const codes = q_.codes.data() + first_row_ * problem_.columns + column;
    const float qmin = static_cast<float>(problem_.scheme.levels.qmin);
    for (std::size_t r = 0; r < rows_; ++r) {
      codes[r * problem_.columns] = static_cast<std::int8_t>(steps[r] - lowest_[r] + qmin);
    }
  }

  /// Chooses the parameters of the group that begins at column j from its weights as they are in
  /// the published loop: all columns before j are rounded, and these make up for them, as if none
  /// of the group had an error of its own.
  void choose_params(std::size_t j, std::size_t first, std::size_t begin, std::size_t end,
                     std::size_t last) {
    const std::size_t group = j / problem_.group_size;
    const std::size_t group_end = problem_.last(group);
    const std::size_t size = group_end - j;
    std::vector<double> now(now_.begin() + static_cast<std::ptrdiff_t>(j * lanes),
                            now_.begin() + static_cast<std::ptrdiff_t>(group_end * lanes));
    const auto complete = [&](std::size_t from, std::size_t to, std::size_t since) {
      const std::size_t low = (std::max)(from, j);
      const std::size_t high = (std::min)(to, group_end);
      if (low < high) {
        add_left(low, high, since, j, now.data() + (low - j) * lanes, left_.data() + since * lanes);
      }
    };
    complete(j + 1, end, begin);
    complete(end, last, begin);
    complete(last, group_end, first);
    // What the columns of the group would be short of w0, if they were what they are now.
    std::vector<double> short_of(size * lanes);
    for (std::size_t low = 0; low < size; low += step) {
      const std::size_t high = (std::min)(size, low + step);
      for (std::size_t i = low; i < high; ++i) {
        add_left(j + i, j + i + 1, j + low, j + i, now.data() + i * lanes,
                 short_of.data() + low * lanes);
        for (std::size_t r = 0; r < rows_; ++r) {
          short_of[i * lanes + r] = weights_[(j + i) * lanes + r] - now[i * lanes + r];
        }
      }
      add_left(j + high, group_end, j + low, j + high, now.data() + high * lanes,
               short_of.data() + low * lanes);
    }
    std::vector<float> weights(size);
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t i = 0; i < size; ++i) {
        weights[i] = static_cast<float>(now[i * lanes + r]);
      }
      const quant_params p = problem_.params_of(weights, 1.0F);
      const std::size_t at = (first_row_ + r) * problem_.groups + group;
      q_.params.scales[at] = p.scale;
      q_.params.zero_points[at] = p.zero_point;
    }
  }

  const weight_problem& problem_;
  const gptq_factor& factor_;
  std::size_t block_size_;
  bool static_groups_;
  std::size_t first_row_;
  std::size_t rows_;
  quantized_weights& q_;
  std::vector<double> weights_;  // w0
  std::vector<double> now_;      // the weights as columns before them have changed them
  std::vector<double> left_;     // w0 - v of the columns that are rounded
  // The group of the column that is rounded, and its parameters; ends of the grid are in steps from
  // the zero point.
  std::size_t group_ = 0;
  std::array<float, lanes> scales_;
  std::array<float, lanes> lowest_;
  std::array<float, lanes> highest_;
};

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
/// singular and damping is 0), damping becomes 1e-6 or ten times itself, at most 1, until it is;
/// evidence.damping is what was used.
///
/// The result is usually much better than nearest rounding, but that is not guaranteed: compare
/// evidence.objective, which is that of G without damping, with evidence.nearest_objective.
///
/// Throws what round_to_nearest() throws; also invalid_argument if damping is negative or not
/// finite, if block_size is 0, if H is not positive definite with a damping of 1, or if weights
/// that make up for others leave the range of floats before their group's scale is chosen. Time:
/// O(K^3) once, O(K^2) for each row. Thread-safe; the same bits everywhere, and for any `parallel`.
///
/// Sources: Frantar et al., GPTQ (2023); Chee et al., QuIP (2023), for the form that needs no
/// inverse.
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
  const detail::gptq_factor factor = detail::factorize(g, options, parallel);
  const bool static_groups =
      options.static_groups || options.activation_order || !format.scales.empty();
  using detail::gptq_rows;
  detail::run_parallel(
      parallel, (problem.rows + gptq_rows::lanes - 1) / gptq_rows::lanes, [&](std::size_t task) {
        gptq_rows(problem, factor, options, static_groups, task * gptq_rows::lanes, q).run();
      });
  q.evidence.objective = detail::ordered_sum(problem.objectives(g, q, parallel));
  q.evidence.iterations = 1;
  q.evidence.damping = factor.damping;
  detail::require_finite_objective(q.evidence.objective, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_GPTQ_HPP
