// SPDX-License-Identifier: BSD-3-Clause
// Adam: gradient descent in which each parameter has its own step size.
#ifndef DETENT_SOLVERS_ADAM_HPP
#define DETENT_SOLVERS_ADAM_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/solvers/optimizer_checks.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of adam.
struct adam_options {
  double learning_rate = 1e-3;     ///< step size, positive and finite
  double momentum = 0.9;           ///< weight of the past in the mean of gradients, in [0, 1)
  double square_momentum = 0.999;  ///< weight of the past in the mean of their squares, in [0, 1)
  double epsilon = 1e-8;      ///< added to the divisor, so that steps stay finite without gradients
  double weight_decay = 0.0;  ///< pull of the parameters towards 0, finite and not negative
  /// True: the parameters themselves are scaled down (AdamW). False: weight_decay * x is added to
  /// the gradient and passes through the moments, as in PyTorch's Adam.
  bool decoupled = true;
};

namespace detail {

/// The running means that Adam keeps for one parameter.
struct adam_moments {
  double mean = 0.0;
  double square = 0.0;
};

/// The powers momentum^t and square_momentum^t behind step t.
struct adam_powers {
  double mean = 1.0;
  double square = 1.0;
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
    powers_.mean = rounded_product(powers_.mean, o.momentum);
    powers_.square = rounded_product(powers_.square, o.square_momentum);
    return {1.0 - powers_.mean, 1.0 - powers_.square};
  }

  /// The powers of the last step, from which set_powers() goes on.
  [[nodiscard]] adam_powers powers() const noexcept { return powers_; }
  void set_powers(adam_powers powers) noexcept { powers_ = powers; }

 private:
  adam_powers powers_;
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

}  // namespace detail

/// Adam on a number of parameters that are learned together:
///
///     m  = momentum m + (1 - momentum) g
///     v  = square_momentum v + (1 - square_momentum) g^2
///     x -= learning_rate * (m / (1 - momentum^t)) / (sqrt(v / (1 - square_momentum^t)) + epsilon)
///
/// With a weight decay that is decoupled (AdamW), x -= learning_rate * weight_decay * x comes
/// before; with one that is not, g is the gradient plus weight_decay * x.
///
/// All of it is in double and has the same bits everywhere. Not thread-safe.
///
/// Sources: Kingma, Ba, Adam (2015); Loshchilov, Hutter, Decoupled weight decay regularization
/// (2019), with the learning rate as a factor of the decay as in PyTorch.
class adam {
 public:
  /// Prepares for `count` parameters. Throws invalid_argument unless the learning rate is positive
  /// and finite, the momenta are in [0, 1), epsilon is positive and finite, and the weight decay is
  /// finite and not negative.
  explicit adam(std::size_t count, const adam_options& options = {})
      : options_(options), moments_(count) {
    detail::require_learning_rate(options.learning_rate, where);
    detail::require_momentum(options.momentum, where);
    detail::require_momentum(options.square_momentum, where);
    detail::require_weight_decay(options.weight_decay, where);
    require(std::isfinite(options.epsilon) && options.epsilon > 0.0, error_kind::invalid_argument,
            where, ": an epsilon of ", options.epsilon);
  }

  /// Takes one step: updates the moments from `gradient` and the parameters `x` in place, with a
  /// learning rate of `pace` times that of the options. Throws shape_mismatch unless both have as
  /// many elements as there are parameters.
  void step(std::span<double> x, std::span<const double> gradient, double pace = 1.0) {
    detail::require_parameters(x.size(), gradient.size(), moments_.size(), where);
    const detail::adam_corrections c = clock_.next(options_);
    ++steps_;
    const bool decays = options_.weight_decay > 0.0;
    const double shrinkage = pace * options_.learning_rate * options_.weight_decay;
    for (std::size_t i = 0; i < x.size(); ++i) {
      double slope = gradient[i];
      if (decays && options_.decoupled) {
        x[i] -= detail::rounded_product(shrinkage, x[i]);
      } else if (decays) {
        slope += detail::rounded_product(options_.weight_decay, x[i]);
      }
      x[i] -= detail::rounded_product(pace, detail::adam_step(moments_[i], slope, c, options_));
    }
  }

  /// What the next steps depend on besides the options, to be saved: the number of steps, the
  /// powers momentum^steps and square_momentum^steps, and the moments m and v of each parameter.
  [[nodiscard]] std::vector<double> state() const {
    const detail::adam_powers powers = clock_.powers();
    std::vector<double> state{static_cast<double>(steps_), powers.mean, powers.square};
    state.reserve(size_of_clock + 2 * moments_.size());
    for (const detail::adam_moments& m : moments_) {
      state.push_back(m.mean);
      state.push_back(m.square);
    }
    return state;
  }

  /// Goes on from a state that state() gave for as many parameters: later steps have the bits that
  /// they would have had without saving. Throws invalid_argument for another size, for values that
  /// are not finite, and for values that no state has: a number of steps that is no integer from 0
  /// to 2^53, powers that are not 1 before the first step or not in [0, 1) behind it, and negative
  /// v. The object is unchanged then.
  void set_state(std::span<const double> state) {
    detail::require_saved_numbers(state, size_of_clock + 2 * moments_.size(), where);
    const double steps = state[0];
    require(steps >= 0.0 && steps <= 0x1p53 && steps == std::floor(steps),
            error_kind::invalid_argument, where, ": a state after ", steps, " steps");
    for (const double power : state.subspan(1, 2)) {
      require(steps > 0.0 ? power >= 0.0 && power < 1.0 : power == 1.0,
              error_kind::invalid_argument, where, ": a state with a power of ", power, " after ",
              steps, " steps");
    }
    const std::span<const double> moments = state.subspan(size_of_clock);
    for (std::size_t i = 0; i < moments_.size(); ++i) {
      require(moments[2 * i + 1] >= 0.0, error_kind::invalid_argument, where,
              ": a state with a mean of squares of ", moments[2 * i + 1], " for parameter ", i);
    }
    steps_ = static_cast<std::uint64_t>(steps);
    clock_.set_powers({state[1], state[2]});
    for (std::size_t i = 0; i < moments_.size(); ++i) {
      moments_[i] = {moments[2 * i], moments[2 * i + 1]};
    }
  }

 private:
  static constexpr const char* where = "adam";
  static constexpr std::size_t size_of_clock = 3;  // of a saved state: steps and powers
  adam_options options_;
  std::uint64_t steps_ = 0;
  detail::adam_clock clock_;
  std::vector<detail::adam_moments> moments_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_ADAM_HPP
