// SPDX-License-Identifier: BSD-3-Clause
// Gradient descent with momentum, plain or Nesterov's.
#ifndef DETENT_SOLVERS_MOMENTUM_DESCENT_HPP
#define DETENT_SOLVERS_MOMENTUM_DESCENT_HPP

#include <cstddef>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/solvers/optimizer_checks.hpp>

DETENT_NAMESPACE_BEGIN

/// Options of momentum_descent.
struct momentum_descent_options {
  double learning_rate = 1e-2;  ///< step size, positive and finite
  double momentum = 0.9;        ///< weight of the past in the velocity, in [0, 1)
  bool nesterov = false;        ///< looks ahead along the velocity; needs a momentum above 0
  double weight_decay = 0.0;    ///< multiple of the parameters that is added to the gradient
};

/// Gradient descent with momentum on a number of parameters that are learned together:
///
///     g  = gradient + weight_decay x
///     v  = momentum v + g                                v is 0 before the first step
///     x -= learning_rate v                               plain
///     x -= learning_rate (g + momentum v)                Nesterov
///
/// This is the definition of PyTorch's SGD without dampening, where the learning rate is no part of
/// the velocity. All of it is in double and has the same bits everywhere. Not thread-safe.
///
/// Source: Sutskever, Martens, Dahl, Hinton, On the importance of initialization and momentum in
/// deep learning (2013).
class momentum_descent {
 public:
  /// Prepares for `count` parameters. Throws invalid_argument unless the learning rate is positive
  /// and finite, the momentum is in [0, 1), and above 0 with `nesterov`, and the weight decay is
  /// finite and not negative.
  explicit momentum_descent(std::size_t count, const momentum_descent_options& options = {})
      : options_(options), velocities_(count) {
    detail::require_learning_rate(options.learning_rate, where);
    detail::require_momentum(options.momentum, where);
    detail::require_weight_decay(options.weight_decay, where);
    require(!options.nesterov || options.momentum > 0.0, error_kind::invalid_argument, where,
            ": nesterov with a momentum of 0");
  }

  /// Takes one step: updates the velocities from `gradient` and the parameters `x` in place, with a
  /// learning rate of `pace` times that of the options. Throws shape_mismatch unless both have as
  /// many elements as there are parameters.
  void step(std::span<double> x, std::span<const double> gradient, double pace = 1.0) {
    detail::require_parameters(x.size(), gradient.size(), velocities_.size(), where);
    const double rate = pace * options_.learning_rate;
    for (std::size_t i = 0; i < x.size(); ++i) {
      double slope = gradient[i];
      if (options_.weight_decay > 0.0) {
        slope += detail::rounded_product(options_.weight_decay, x[i]);
      }
      velocities_[i] = detail::rounded_product(options_.momentum, velocities_[i]) + slope;
      const double direction =
          options_.nesterov ? slope + detail::rounded_product(options_.momentum, velocities_[i])
                            : velocities_[i];
      x[i] -= detail::rounded_product(rate, direction);
    }
  }

  /// What the next steps depend on besides the options, to be saved: the velocities, one for each
  /// parameter. (Steps are not counted, because they do not depend on their number.)
  [[nodiscard]] std::vector<double> state() const { return velocities_; }

  /// Goes on from a state that state() gave for as many parameters: later steps have the bits that
  /// they would have had without saving. Throws invalid_argument for another size and for values
  /// that are not finite; the object is unchanged then.
  void set_state(std::span<const double> state) {
    detail::require_saved_numbers(state, velocities_.size(), where);
    velocities_.assign(state.begin(), state.end());
  }

 private:
  static constexpr const char* where = "momentum_descent";
  momentum_descent_options options_;
  std::vector<double> velocities_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_MOMENTUM_DESCENT_HPP
