// SPDX-License-Identifier: BSD-3-Clause
// The formulas of learned rounding (AdaRound) for one weight: how far it is rounded up, and the
// regularizer that drives this to 0 or 1.
//
//     h(u) = clamp(1.2 / (1 + exp(-u)) - 0.1, 0, 1)      0: down, 1: up
//     regularizer  1 - |2h - 1|^beta, where beta falls after a warm-up
//
// Source: Nagel et al., Up or Down? Adaptive Rounding (2020).
#ifndef DETENT_SOLVERS_LEARNED_ROUNDING_HPP
#define DETENT_SOLVERS_LEARNED_ROUNDING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/error.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

inline constexpr double rounding_zeta = 1.1;
inline constexpr double rounding_gamma = -0.1;
inline constexpr double rounding_stretch = rounding_zeta - rounding_gamma;

/// The function h(u), together with the sigmoid that it comes from.
struct rectified_sigmoid {
  double sigmoid = 0.5;
  double h = 0.5;

  explicit rectified_sigmoid(double u) noexcept : sigmoid(portable_logistic(u)), h(h_of(sigmoid)) {}
  rectified_sigmoid(double sigmoid_of_u, double h_of_u) noexcept
      : sigmoid(sigmoid_of_u), h(h_of_u) {}

  /// The h of a u from the logistic function of u.
  [[nodiscard]] static double h_of(double sigmoid) noexcept {
    return std::clamp(rounded_product(rounding_stretch, sigmoid) + rounding_gamma, 0.0, 1.0);
  }

  /// Whether h is between its ends; only there do gradients pass.
  [[nodiscard]] bool is_free() const noexcept { return h > 0.0 && h < 1.0; }
  /// dh / du where h is free.
  [[nodiscard]] double slope() const noexcept {
    return rounded_product(rounding_stretch, rounded_product(sigmoid, 1.0 - sigmoid));
  }

  /// The u for which h(u) is the given number in [0, 1].
  [[nodiscard]] static double inverse(double h) noexcept {
    return -portable_log(rounding_stretch / (h - rounding_gamma) - 1.0);
  }
};

/// The two levels around a weight, in steps of its scale from the zero point.
struct rounding_interval {
  double below = 0.0;   // the level at or below the weight
  double lowest = 0.0;  // ends of the grid
  double highest = 0.0;

  /// The interval of a weight, with `steps` = weight / scale.
  [[nodiscard]] static rounding_interval of(double steps, std::int32_t zero_point,
                                            grid levels) noexcept {
    return {std::floor(steps), static_cast<double>(levels.qmin - zero_point),
            static_cast<double>(levels.qmax - zero_point)};
  }

  [[nodiscard]] double at(double h) const noexcept {
    return std::clamp(below + h, lowest, highest);
  }
  [[nodiscard]] bool is_free(const rectified_sigmoid& up) const noexcept {
    return below + up.h > lowest && below + up.h < highest && up.is_free();
  }
  /// Where the weight ends up: h below 1/2 means down.
  [[nodiscard]] double rounded(double h) const noexcept { return at(h < 0.5 ? 0.0 : 1.0); }
};

/// 2h - 1
[[nodiscard]] inline double rounding_centred(double h) noexcept {
  return 2.0 * h - 1.0;  // the product is exact
}

/// |2h - 1|^(beta - 1) with the sign of 2h - 1: the slope of the regularizer divided by -2 beta.
[[nodiscard]] inline double rounding_pull(double h, double beta) noexcept {
  const double centred = rounding_centred(h);
  return std::copysign(portable_power(std::fabs(centred), beta - 1.0), centred);
}

/// The schedule of beta: without regularization during the warm-up, then linear from first_beta to
/// last_beta.
struct rounding_annealing {
  double warm_up = 0.2;  // part of the time without regularization
  double first_beta = 20.0;
  double last_beta = 2.0;

  struct moment {
    bool is_warm;  // whether the regularizer is on
    double beta;
  };

  /// The state at step i of `total` steps.
  [[nodiscard]] moment at(std::size_t i, std::size_t total) const noexcept {
    const double time = static_cast<double>(i) / static_cast<double>(total);
    const bool is_warm = time >= warm_up;
    const double part = is_warm ? (time - warm_up) / (1.0 - warm_up) : 0.0;
    return {is_warm, last_beta + rounded_product(first_beta - last_beta, 1.0 - part)};
  }

  /// Throws invalid_argument unless warm_up is in [0, 1) and the betas are finite and 1 or more.
  void require_valid(const char* where) const {
    require(warm_up >= 0.0 && warm_up < 1.0, error_kind::invalid_argument, where, ": a warm-up of ",
            warm_up, " is not in [0, 1)");
    for (const double beta : {first_beta, last_beta}) {
      require(std::isfinite(beta) && beta >= 1.0, error_kind::invalid_argument, where,
              ": a beta of ", beta, " is not finite or below 1");
    }
  }
};

inline void require_regularization(double regularization, const char* where) {
  require(std::isfinite(regularization) && regularization >= 0.0, error_kind::invalid_argument,
          where, ": a regularization of ", regularization);
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_LEARNED_ROUNDING_HPP
