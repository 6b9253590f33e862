// SPDX-License-Identifier: BSD-3-Clause
// How the learning rate changes over a training run, and the limit on the size of gradients.
#ifndef DETENT_GRAPH_LEARN_LEARNING_RATE_HPP
#define DETENT_GRAPH_LEARN_LEARNING_RATE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What the learning rate does after the warm-up.
enum class learning_rate_schedule : std::uint8_t {
  constant,  ///< It stays.
  cosine,    ///< It falls along half a wave of the cosine.
  step,      ///< It is multiplied by a factor again and again.
};

/// Options of learning_rate_factor().
struct learning_rate_options {
  learning_rate_schedule schedule = learning_rate_schedule::constant;  ///< After the warm-up.
  std::size_t warmup_steps = 0;  ///< Steps over which the factor rises to 1.
  double last = 0.0;             ///< cosine: the factor after the last step, in [0, 1].
  std::size_t step_every = 0;    ///< step: the number of steps between two multiplications.
  double step_factor = 0.1;      ///< step: what is multiplied by, in (0, 1].
};

namespace detail {

/// cos(pi x) for x in [0, 1], within 1e-15; exact for 0, 1/2 and 1. The argument is brought to
/// [0, 1/4], where the first term that Taylor's series leaves out is below 1e-17.
[[nodiscard]] inline double cosine_of_half_turns(double x) noexcept {
  constexpr double pi = 3.14159265358979323846;
  const bool mirrored = x > 0.5;
  const double near = mirrored ? 1.0 - x : x;
  const bool is_sine = near > 0.25;
  const double angle = pi * (is_sine ? 0.5 - near : near);
  const double square = angle * angle;
  // The series of sin(a) / a or of cos(a): 1 - a^2 / (k (k - 1)) (1 - ...).
  double sum = 1.0;
  for (int k = is_sine ? 17 : 16; k >= 2; k -= 2) {
    sum = 1.0 - detent::detail::rounded_product(square, sum) / (k * (k - 1));
  }
  const double cosine = is_sine ? detent::detail::rounded_product(angle, sum) : sum;
  return mirrored ? -cosine : cosine;
}

/// base^exponent by repeated squaring, whose products are rounded in the same order everywhere.
[[nodiscard]] inline double integer_power(double base, std::size_t exponent) noexcept {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) {
      power *= base;
    }
    base *= base;
  }
  return power;
}

inline void require_schedule(const learning_rate_options& o) {
  constexpr const char* where = "learning_rate_factor";
  switch (o.schedule) {
    case learning_rate_schedule::constant:
      return;
    case learning_rate_schedule::cosine:
      require(o.last >= 0.0 && o.last <= 1.0, error_kind::invalid_argument, where,
              ": a last factor of ", o.last, " is not in [0, 1]");
      return;
    case learning_rate_schedule::step:
      require(o.step_every > 0, error_kind::invalid_argument, where, ": step_every is 0");
      require(o.step_factor > 0.0 && o.step_factor <= 1.0, error_kind::invalid_argument, where,
              ": a step factor of ", o.step_factor, " is not in (0, 1]");
      return;
  }
  detent::raise(error_kind::invalid_argument, "detent: ", where, ": there is no schedule ",
                static_cast<int>(o.schedule));
}

}  // namespace detail

/// What the learning rate is multiplied by in step `step` of `total_steps`, counted from 0. With
/// w = warmup_steps:
///
///     step < w   (step + 1) / w
///     constant   1
///     cosine     (1 + c) / 2 + last (1 - c) / 2,    c = cos(pi (step - w) / (total_steps - w))
///     step       step_factor ^ floor((step - w) / step_every)
///
/// So the warm-up ends with a factor of 1, and the cosine reaches `last` at `total_steps`, one step
/// after the last one, so that no step is wasted on a rate of 0; from there on it is `last`. The
/// factor is in [0, 1] and has the same bits everywhere. Thread-safe.
///
/// Throws invalid_argument for options of the schedule that are out of their domain.
///
/// Sources: Goyal et al., Accurate, large minibatch SGD (2017), for the warm-up; Loshchilov,
/// Hutter, SGDR: Stochastic gradient descent with warm restarts (2017), for the cosine.
[[nodiscard]] inline double learning_rate_factor(const learning_rate_options& options,
                                                 std::size_t step, std::size_t total_steps) {
  detail::require_schedule(options);
  if (step < options.warmup_steps) {
    return static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const std::size_t past = step - options.warmup_steps;
  if (options.schedule == learning_rate_schedule::step) {
    return detail::integer_power(options.step_factor, past / options.step_every);
  }
  if (options.schedule == learning_rate_schedule::constant) {
    return 1.0;
  }
  if (step >= total_steps) {
    return options.last;
  }
  const double c = detail::cosine_of_half_turns(
      static_cast<double>(past) / static_cast<double>(total_steps - options.warmup_steps));
  return 0.5 * (1.0 + c) + detent::detail::rounded_product(options.last, 0.5 * (1.0 - c));
}

/// Scales gradients down together so that their joint L2 norm, the square root of the sum of the
/// squares of all elements, is `max_norm`, within rounding; leaves them alone if it is not larger.
/// Returns the norm before.
///
/// If an element is NaN or infinite, so is the returned norm, and the gradients are left alone: the
/// caller may skip the step. Elements are added up in their order, with a common power of two
/// divided out, so that squares of very large or small elements neither overflow nor vanish. Same
/// bits everywhere. Not thread-safe for the same gradients.
///
/// Throws invalid_argument unless `max_norm` is above 0; infinity limits nothing.
///
/// Source: Pascanu, Mikolov, Bengio, On the difficulty of training recurrent neural networks
/// (2013).
inline double clip_gradients(std::span<const std::span<double>> gradients, double max_norm) {
  require(max_norm > 0.0, error_kind::invalid_argument, "clip_gradients: a largest norm of ",
          max_norm);
  double largest = 0.0;
  for (const std::span<double> gradient : gradients) {
    for (const double g : gradient) {
      largest = std::fabs(g) > largest || std::isnan(g) ? std::fabs(g) : largest;
    }
  }
  if (largest == 0.0 || !std::isfinite(largest)) {
    return largest;
  }
  int exponent = 0;
  static_cast<void>(std::frexp(largest, &exponent));
  exponent = (std::max)(exponent, -1000);  // whose inverse power of two is a finite number
  const double unit = std::ldexp(1.0, -exponent);
  double sum = 0.0;
  for (const std::span<double> gradient : gradients) {
    for (const double g : gradient) {
      const double scaled = g * unit;
      sum += detent::detail::rounded_product(scaled, scaled);
    }
  }
  const double norm = std::sqrt(sum);
  const double limit = std::ldexp(max_norm, -exponent);
  if (norm > limit) {
    for (const std::span<double> gradient : gradients) {
      for (double& g : gradient) {
        g = detent::detail::rounded_product(g, limit / norm);
      }
    }
  }
  return std::ldexp(norm, exponent);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_LEARNING_RATE_HPP
