// SPDX-License-Identifier: BSD-3-Clause
// Adam: gradient descent in which each parameter has its own step size.
#ifndef DETENT_SOLVERS_ADAM_HPP
#define DETENT_SOLVERS_ADAM_HPP

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of adam.
struct adam_options {
  double learning_rate = 1e-3;     ///< step size, positive and finite
  double momentum = 0.9;           ///< weight of the past in the mean of gradients, in [0, 1)
  double square_momentum = 0.999;  ///< weight of the past in the mean of their squares, in [0, 1)
  double epsilon = 1e-8;  ///< added to the divisor, so that steps stay finite without gradients
};

namespace detail {

/// The running means that Adam keeps for one parameter.
struct adam_moments {
  double mean = 0.0;
  double square = 0.0;
};

/// Divisors that correct for moments that begin at zero: 1 - momentum^t and 1 - square_momentum^t
/// at step t.
struct adam_corrections {
  double mean = 1.0;
  double square = 1.0;
};

/// Computes the corrections of one step after the other, from t = 1.
class adam_clock {
 public:
  adam_corrections next(const adam_options& o) noexcept {
    mean_power_ = rounded_product(mean_power_, o.momentum);
    square_power_ = rounded_product(square_power_, o.square_momentum);
    return {1.0 - mean_power_, 1.0 - square_power_};
  }

 private:
  double mean_power_ = 1.0;
  double square_power_ = 1.0;
};

/// What is to be subtracted from the parameter.
[[nodiscard]] inline double adam_step(adam_moments& m, double slope, const adam_corrections& c,
                                      const adam_options& o) noexcept {
  m.mean = rounded_product(o.momentum, m.mean) + rounded_product(1.0 - o.momentum, slope);
  m.square = rounded_product(o.square_momentum, m.square) +
             rounded_product(1.0 - o.square_momentum, rounded_product(slope, slope));
  const double step = (m.mean / c.mean) / (std::sqrt(m.square / c.square) + o.epsilon);
  return rounded_product(o.learning_rate, step);
}

inline void require_learning_rate(double rate, const char* where) {
  require(std::isfinite(rate) && rate > 0.0, error_kind::invalid_argument, where,
          ": a learning rate of ", rate);
}

}  // namespace detail

/// Adam on a number of parameters that are learned together:
///
///     m  = momentum m + (1 - momentum) g
///     v  = square_momentum v + (1 - square_momentum) g^2
///     x -= learning_rate * (m / (1 - momentum^t)) / (sqrt(v / (1 - square_momentum^t)) + epsilon)
///
/// All of it is in double and has the same bits everywhere. Not thread-safe.
///
/// Source: Kingma, Ba, Adam (2015).
class adam {
 public:
  /// Prepares for `count` parameters. Throws invalid_argument unless the learning rate is positive
  /// and finite, the momenta are in [0, 1), and epsilon is positive and finite.
  explicit adam(std::size_t count, const adam_options& options = {})
      : options_(options), moments_(count) {
    constexpr const char* where = "adam";
    detail::require_learning_rate(options.learning_rate, where);
    for (const double momentum : {options.momentum, options.square_momentum}) {
      require(momentum >= 0.0 && momentum < 1.0, error_kind::invalid_argument, where,
              ": a momentum of ", momentum, " is not in [0, 1)");
    }
    require(std::isfinite(options.epsilon) && options.epsilon > 0.0, error_kind::invalid_argument,
            where, ": an epsilon of ", options.epsilon);
  }

  /// Takes one step: updates the moments from `gradient` and the parameters `x` in place, with a
  /// learning rate of `pace` times that of the options. Throws shape_mismatch unless both have as
  /// many elements as there are parameters.
  void step(std::span<double> x, std::span<const double> gradient, double pace = 1.0) {
    require(x.size() == moments_.size() && gradient.size() == moments_.size(),
            error_kind::shape_mismatch, "adam: ", x.size(), " parameters and ", gradient.size(),
            " gradients, not ", moments_.size());
    const detail::adam_corrections c = clock_.next(options_);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] -=
          detail::rounded_product(pace, detail::adam_step(moments_[i], gradient[i], c, options_));
    }
  }

 private:
  adam_options options_;
  detail::adam_clock clock_;
  std::vector<detail::adam_moments> moments_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ADAM_HPP
