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
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/exponentials.hpp>
#include <detent/parallel.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/solvers/gram.hpp>
#include <detent/solvers/learned_rounding.hpp>
#include <detent/solvers/powers.hpp>
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
/// its own solution. Arrays have an element for each weight, so that they can be worked through by
/// vectors.
class adaround_rows {
 public:
  adaround_rows(const weight_problem& problem, const gram_matrix& g, std::size_t first_row,
                std::size_t row_count)
      : problem_(problem),
        gram_(g),
        first_row_(first_row),
        rows_(row_count),
        elements_(row_count * problem.columns),
        u_(elements_.size()),
        moments_(elements_.size()),
        sigmoid_(elements_.size()),
        h_(elements_.size()),
        pull_(elements_.size()),
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
        const std::size_t i = r * problem.columns + c;
        element& e = elements_[i];
        e.weight = static_cast<double>(problem.row(first_row + r)[c]);
        e.scale = static_cast<double>(p.scale);
        e.importance =
            rounded_product(rounded_product(e.scale * e.scale, g.diagonal(c)), normalizers_[r]);
        const double steps = e.weight / e.scale;
        e.interval = rounding_interval::of(steps, p.zero_point, levels);
        // At first, h is the fractional part of weight / scale.
        u_[i] = rectified_sigmoid::inverse(steps - e.interval.below);
      }
    }
  }

  void iterate(double beta, double regularization, const adam_corrections& corrections,
               const adam_options& optimizer) noexcept {
    take_h();
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      const element& e = elements_[i];
      error_[i] = rounded_product(e.scale, e.interval.at(h_[i])) - e.weight;
    }
    std::fill(gradient_.begin(), gradient_.end(), 0.0);
    gram_.add_products(rows_, 0, problem_.columns, error_.data(), gradient_.data());
    if (regularization > 0.0) {
      for (std::size_t i = 0; i < pull_.size(); ++i) {
        pull_[i] = std::fabs(rounding_centred(h_[i]));
      }
      replace_by_powers(pull_, beta - 1.0);
    }
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      const element& e = elements_[i];
      const rectified_sigmoid up(sigmoid_[i], h_[i]);
      double slope = 0.0;
      if (e.interval.is_free(up)) {
        slope = rounded_product(rounded_product(2.0 * e.scale, normalizers_[i / problem_.columns]),
                                gradient_[i]);
        if (regularization > 0.0) {
          const double weight = rounded_product(2.0 * regularization * beta, e.importance);
          slope -= rounded_product(weight, std::copysign(pull_[i], rounding_centred(h_[i])));
        }
        slope = rounded_product(slope, up.slope());
      }
      u_[i] -= adam_step(moments_[i], slope, corrections, optimizer);
    }
  }

  /// Writes the codes. Returns whether all h had come to rest at 0 or 1.
  [[nodiscard]] bool finish(quantized_weights& q) noexcept {
    take_h();
    bool decided = true;
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      const element& e = elements_[i];
      decided = decided && (e.importance == 0.0 || h_[i] < 0.05 || h_[i] > 0.95 ||
                            e.interval.below + 1.0 <= e.interval.lowest ||
                            e.interval.below >= e.interval.highest);
      const double steps = e.interval.rounded(h_[i]);
      const std::size_t r = first_row_ + i / problem_.columns;
      const std::size_t c = i % problem_.columns;
      const double zero_point = problem_.params(r, c / problem_.group_size).zero_point;
      q.codes[r * problem_.columns + c] = static_cast<std::int8_t>(steps + zero_point);
    }
    return decided;
  }

 private:
  /// What stays the same for a weight.
  struct element {
    double weight = 0.0;
    double scale = 1.0;
    double importance = 0.0;  // scale^2 G_jj, normalized
    rounding_interval interval;
  };

  /// Computes sigmoid and h from u.
  void take_h() noexcept {
    std::copy(u_.begin(), u_.end(), sigmoid_.begin());
    active<kernels::exponential_kernels>().logistic(sigmoid_.data(), sigmoid_.size());
    for (std::size_t i = 0; i < h_.size(); ++i) {
      h_[i] = rectified_sigmoid::h_of(sigmoid_[i]);
    }
  }

  const weight_problem& problem_;
  const gram_matrix& gram_;
  std::size_t first_row_;
  std::size_t rows_;
  std::vector<element> elements_;
  std::vector<double> u_;
  std::vector<adam_moments> moments_;
  std::vector<double> sigmoid_;
  std::vector<double> h_;
  std::vector<double> pull_;      // |2h - 1|^(beta - 1)
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
    std::fill_n(decided.begin() + static_cast<std::ptrdiff_t>(first_row), count,
                static_cast<char>(rows.finish(q)));
  });
  q.evidence.converged = std::all_of(decided.begin(), decided.end(), [](char d) { return d != 0; });
  detail::keep_better_rows(problem, g, nearest, q, parallel, where);
  return q;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ADAROUND_HPP
