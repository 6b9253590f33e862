// SPDX-License-Identifier: BSD-3-Clause
// AdaRound: rounds each weight up or down, whichever is better for the layer's output. Learned by
// gradients that are known in closed form.
#ifndef DETENT_SOLVERS_ADAROUND_HPP
#define DETENT_SOLVERS_ADAROUND_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/error.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/learned_rounding.hpp>
#include <detent/solvers/quantized_weights.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of adaround().
struct adaround_options {
  std::size_t iterations = 1000;  ///< number of steps of gradient descent
  double learning_rate = 0.01;    ///< learning rate of Adam
  double regularization = 0.3;    ///< strength of the term that drives roundings to 0 or 1
  double warm_up = 0.2;           ///< part of the iterations without regularization, in [0, 1)
  /// The regularizer's exponent at the end of the warm-up. 20 is as published; 4 is often better if
  /// inputs are correlated.
  double first_beta = 20.0;
  /// The regularizer's exponent at the end; it falls linearly from first_beta after the warm-up.
  double last_beta = 2.0;
};

namespace detail {

/// Several rows that are solved at the same time, so that G is read once for all of them. Each has
/// its own solution.
class adaround_rows {
 public:
  adaround_rows(const weight_problem& problem, const gram_matrix& g, std::size_t first_row,
                std::size_t row_count)
      : problem_(problem),
        gram_(g),
        first_row_(first_row),
        rows_(row_count),
        elements_(row_count * problem.columns),
        error_(elements_.size()),
        gradient_(elements_.size()),
        normalizers_(row_count, 1.0) {
    const grid levels = problem.scheme.levels;
    const double mean = g.mean_diagonal();
    for (std::size_t r = 0; r < rows_; ++r) {
      // The loss is measured in steps of the row's largest scale, and G in units of its mean
      // diagonal.
      double largest = 0.0;
      for (std::size_t group = 0; group < problem.groups; ++group) {
        largest =
            (std::max)(largest, static_cast<double>(problem.params(first_row + r, group).scale));
      }
      const double unit = rounded_product(largest, largest);
      normalizers_[r] = mean > 0.0 ? 1.0 / rounded_product(unit, mean) : 0.0;
      for (std::size_t c = 0; c < problem.columns; ++c) {
        const quant_params p = problem.params(first_row + r, c / problem.group_size);
        element& e = elements_[r * problem.columns + c];
        const double steps =
            static_cast<double>(problem.row(first_row + r)[c]) / static_cast<double>(p.scale);
        e.scale = static_cast<double>(p.scale);
        e.importance =
            rounded_product(rounded_product(e.scale * e.scale, g.diagonal(c)), normalizers_[r]);
        e.interval = rounding_interval::of(steps, p.zero_point, levels);
        // At first, h is the fractional part of weight / scale.
        e.v = rectified_sigmoid::inverse(steps - e.interval.below);
      }
    }
  }

  void iterate(double beta, double regularization, const adam_corrections& corrections,
               const adam_options& optimizer) noexcept {
    const std::size_t columns = problem_.columns;
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      element& e = elements_[i];
      e.up = rectified_sigmoid(e.v);
      e.is_free = e.interval.is_free(e.up);
      error_[i] = rounded_product(e.scale, e.interval.at(e.up.h)) -
                  static_cast<double>(problem_.row(first_row_ + i / columns)[i % columns]);
    }
    std::fill(gradient_.begin(), gradient_.end(), 0.0);
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t r = 0; r < rows_; ++r) {
        gram_.add_scaled_column(c, error_[r * columns + c], gradient_.data() + r * columns, 0,
                                columns);
      }
    }
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      element& e = elements_[i];
      double slope = 0.0;
      if (e.is_free) {
        slope = rounded_product(rounded_product(2.0 * e.scale, normalizers_[i / columns]),
                                gradient_[i]);
        if (regularization > 0.0) {
          const double weight = rounded_product(2.0 * regularization * beta, e.importance);
          slope -= rounded_product(weight, rounding_pull(e.up.h, beta));
        }
        slope = rounded_product(slope, e.up.slope());
      }
      e.v -= adam_step(e.moments, slope, corrections, optimizer);
    }
  }

  /// Writes the codes. Returns whether all h had come to rest at 0 or 1.
  [[nodiscard]] bool finish(quantized_weights& q) const noexcept {
    bool decided = true;
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      const element& e = elements_[i];
      const double h =
          rounding_gamma + rounded_product(rounding_stretch, 1.0 / (1.0 + portable_exp(-e.v)));
      decided = decided && (e.importance == 0.0 || h < 0.05 || h > 0.95 ||
                            e.interval.below + 1.0 <= e.interval.lowest ||
                            e.interval.below >= e.interval.highest);
      const double steps = e.interval.rounded(h);
      const std::size_t r = first_row_ + i / problem_.columns;
      const std::size_t c = i % problem_.columns;
      const double zero_point = problem_.params(r, c / problem_.group_size).zero_point;
      q.codes[r * problem_.columns + c] = static_cast<std::int8_t>(steps + zero_point);
    }
    return decided;
  }

 private:
  struct element {
    double scale = 1.0;
    double importance = 0.0;  // scale^2 G_jj, normalized
    rounding_interval interval;
    double v = 0.0;
    rectified_sigmoid up{0.0};
    adam_moments moments;
    bool is_free = false;
  };

  const weight_problem& problem_;
  const gram_matrix& gram_;
  std::size_t first_row_;
  std::size_t rows_;
  std::vector<element> elements_;
  std::vector<double> error_;     // v - w
  std::vector<double> gradient_;  // G (v - w)
  std::vector<double> normalizers_;
};

}  // namespace detail

/// AdaRound for one linear layer. For each row it minimizes, by Adam on one u for each weight,
///
///     (v - w)^T G (v - w) / (s^2 m) + sum over columns of r (1 - |2h - 1|^beta)
///     r = regularization * scale^2 G_jj / (s^2 m)
///     v = scale * clamp(floor(w / scale) + h, qmin - zero_point, qmax - zero_point)
///     h = clamp(1.2 / (1 + exp(-u)) - 0.1, 0, 1), at first the fractional part of w / scale
///
/// where s is the row's largest scale and m the mean diagonal of G; so results do not change with
/// the units of weights and inputs. (In the paper all weights have the same r. Where inputs have
/// different sizes, however, one r is too much for some weights and too little for others.) After
/// the warm-up, beta falls linearly from first_beta to last_beta, which drives h to 0 or 1. In the
/// end, h < 1/2 means down. Rows that are then no better than nearest rounding, in (w - v)^T G (w -
/// v), are rounded to nearest; evidence.kept_nearest counts them. Scales and zero points stay.
/// evidence.converged says that all h were close to 0 or 1 at the end.
///
/// No random numbers are used. Time: O(K^2) for each row and iteration, O(K) with a diagonal G.
/// Throws what round_to_nearest() throws, and invalid_argument if there are no iterations, warm_up
/// is not in [0, 1), the learning rate is not positive and finite, a beta is below 1 or not finite,
/// or the regularization is negative or not finite. Thread-safe; the same bits everywhere.
///
/// Source: Nagel et al., Up or Down? Adaptive Rounding (2020).
[[nodiscard]] inline quantized_weights adaround(matrix_view<const float> weights,
                                                const gram_matrix& g,
                                                const weight_format& format = {},
                                                const adaround_options& options = {},
                                                const parallel_for& parallel = {}) {
  constexpr const char* where = "adaround";
  const detail::weight_problem problem(weights, format, where);
  problem.require_gram(g, where);
  require(options.iterations > 0, error_kind::invalid_argument, where, ": 0 iterations");
  const detail::rounding_annealing annealing{options.warm_up, options.first_beta,
                                             options.last_beta};
  annealing.require_valid(where);
  detail::require_learning_rate(options.learning_rate, where);
  detail::require_regularization(options.regularization, where);

  struct step {
    detail::rounding_annealing::moment time;
    detail::adam_corrections corrections;
  };
  const adam_options optimizer{.learning_rate = options.learning_rate};
  detail::adam_clock clock;
  std::vector<step> steps(options.iterations);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i] = {annealing.at(i, steps.size()), clock.next(optimizer)};
  }

  const quantized_weights nearest = problem.nearest();
  quantized_weights q = nearest;
  q.evidence.method = where;
  q.evidence.iterations = options.iterations;
  std::vector<char> decided(problem.rows);
  problem.for_row_blocks(parallel, [&](std::size_t first_row, std::size_t count) {
    detail::adaround_rows rows(problem, g, first_row, count);
    for (const step& s : steps) {
      rows.iterate(s.time.beta, s.time.is_warm ? options.regularization : 0.0, s.corrections,
                   optimizer);
    }
    decided[first_row] = rows.finish(q) ? 1 : 0;
    std::fill_n(decided.begin() + static_cast<std::ptrdiff_t>(first_row), count,
                decided[first_row]);
  });
  q.evidence.converged = std::all_of(decided.begin(), decided.end(), [](char d) { return d != 0; });
  detail::keep_better_rows(problem, g, nearest, q, parallel, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ADAROUND_HPP
