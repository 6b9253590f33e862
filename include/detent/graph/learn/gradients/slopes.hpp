// SPDX-License-Identifier: BSD-3-Clause
// The derivatives of the functions of unary_functions.hpp.
//
// slope(f, x, y) is the derivative of the function object f at x, where f(x) = y. Where y is known
// to float precision only, the derivative is computed from x if it would lose digits otherwise.
// Exponentials are those of base/elementary_functions.hpp, whose bits do not depend on the C
// library. At a kink the derivative is that of the side on which the function is constant, or else
// the one that is given here.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_SLOPES_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_SLOPES_HPP

#include <cmath>
#include <cstddef>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/unary_functions.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

namespace unary = ops::unary;
using detent::detail::portable_exp;
using detent::detail::portable_logistic;
using detent::detail::portable_tanh;

// ------------------------------------------------------------------------------------- arithmetic

/// -1.
[[nodiscard]] inline double slope(const unary::neg&, double, double) { return -1.0; }
/// The sign of x, 0 at 0.
[[nodiscard]] inline double slope(const unary::abs&, double x, double) {
  return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0;
}
/// -y^2.
[[nodiscard]] inline double slope(const unary::reciprocal&, double, double y) { return -(y * y); }
/// 1 / (2 y).
[[nodiscard]] inline double slope(const unary::sqrt&, double, double y) { return 0.5 / y; }
/// y.
[[nodiscard]] inline double slope(const unary::exp&, double, double y) { return y; }
/// 1 / x.
[[nodiscard]] inline double slope(const unary::log&, double x, double) { return 1.0 / x; }
/// 2 / sqrt(pi) e^(-x^2).
[[nodiscard]] inline double slope(const unary::erf&, double x, double) {
  constexpr double two_over_root_pi = 1.12837916709551257390;
  return two_over_root_pi * portable_exp(-(x * x));
}

// ----------------------------------------------------------------- trigonometry and its relatives

/// cos x, by the C library.
[[nodiscard]] inline double slope(const unary::sin&, double x, double) { return std::cos(x); }
/// -sin x, by the C library.
[[nodiscard]] inline double slope(const unary::cos&, double x, double) { return -std::sin(x); }
/// 1 + y^2.
[[nodiscard]] inline double slope(const unary::tan&, double, double y) {
  return 1.0 + rounded_product(y, y);
}
/// 1 / sqrt(1 - x^2).
[[nodiscard]] inline double slope(const unary::asin&, double x, double) {
  return 1.0 / std::sqrt(1.0 - rounded_product(x, x));
}
/// -1 / sqrt(1 - x^2).
[[nodiscard]] inline double slope(const unary::acos&, double x, double) {
  return -1.0 / std::sqrt(1.0 - rounded_product(x, x));
}
/// 1 / (1 + x^2).
[[nodiscard]] inline double slope(const unary::atan&, double x, double) {
  return 1.0 / (1.0 + rounded_product(x, x));
}
/// cosh x.
[[nodiscard]] inline double slope(const unary::sinh&, double x, double) {
  return 0.5 * (portable_exp(x) + portable_exp(-x));
}
/// sinh x.
[[nodiscard]] inline double slope(const unary::cosh&, double x, double) {
  return 0.5 * (portable_exp(x) - portable_exp(-x));
}
/// 1 / sqrt(x^2 + 1).
[[nodiscard]] inline double slope(const unary::asinh&, double x, double) {
  return 1.0 / std::sqrt(rounded_product(x, x) + 1.0);
}
/// 1 / sqrt(x^2 - 1).
[[nodiscard]] inline double slope(const unary::acosh&, double x, double) {
  return 1.0 / std::sqrt(rounded_product(x, x) - 1.0);
}
/// 1 / (1 - x^2).
[[nodiscard]] inline double slope(const unary::atanh&, double x, double) {
  return 1.0 / (1.0 - rounded_product(x, x));
}

// ------------------------------------------------------------------------------------ activations

/// 1 below -lambd and above lambd, else 0.
[[nodiscard]] inline double slope(const unary::shrink& f, double x, double) {
  return std::fabs(x) > static_cast<double>(f.lambd) ? 1.0 : 0.0;
}
/// 1 where x > 0, else 0 (also at 0 and for NaN).
[[nodiscard]] inline double slope(const unary::relu&, double x, double) {
  return x > 0.0 ? 1.0 : 0.0;
}
/// alpha where x < 0, else 1 (also at 0).
[[nodiscard]] inline double slope(const unary::leaky_relu& f, double x, double) {
  const auto alpha = static_cast<double>(f.alpha);
  return x < 0.0 ? alpha : 1.0;
}
/// Of Elu, Selu and Celu: positive where x > 0, else negative / divisor * e^(x / divisor), also at
/// 0.
[[nodiscard]] inline double slope(const unary::exponential_linear& f, double x, double) {
  return x > 0.0 ? f.positive : f.negative / f.divisor * portable_exp(x / f.divisor);
}
/// 1 where x > alpha, else 0.
[[nodiscard]] inline double slope(const unary::thresholded_relu& f, double x, double) {
  return x > static_cast<double>(f.alpha) ? 1.0 : 0.0;
}
/// y (1 - y).
[[nodiscard]] inline double slope(const unary::sigmoid&, double, double y) { return y * (1.0 - y); }
/// 1 - y^2.
[[nodiscard]] inline double slope(const unary::tanh&, double, double y) {
  return (1.0 - y) * (1.0 + y);
}
/// alpha where 0 < alpha x + beta < 1, else 0.
[[nodiscard]] inline double slope(const unary::hard_sigmoid& f, double x, double) {
  const auto alpha = static_cast<double>(f.alpha);
  const double line = rounded_product(alpha, x) + static_cast<double>(f.beta);
  return line > 0.0 && line < 1.0 ? alpha : 0.0;
}
/// 0 where x <= -3, 1 where x >= 3, (2 x + 3) / 6 between.
[[nodiscard]] inline double slope(const unary::hard_swish&, double x, double) {
  return x <= -3.0 ? 0.0 : x >= 3.0 ? 1.0 : (rounded_product(2.0, x) + 3.0) / 6.0;
}
/// 1 / (1 + e^-x).
[[nodiscard]] inline double slope(const unary::softplus&, double x, double) {
  return portable_logistic(x);
}
/// 1 / (1 + |x|)^2.
[[nodiscard]] inline double slope(const unary::softsign&, double x, double) {
  const double sum = 1.0 + std::fabs(x);
  return 1.0 / (sum * sum);
}
/// P + x p with the distribution P and the density p of the normal distribution. P is y / x, which
/// has the precision of y, or near 0 a series. With tanh, y = x (1 + t) / 2 where t = tanh u,
/// u = r (x + 0.044715 x^3) and r = sqrt(2 / pi):
///
///   (1 + t) / 2 + x (1 - t^2) r (1 + 0.134145 x^2) / 2
[[nodiscard]] inline double slope(const unary::gelu& f, double x, double y) {
  constexpr double density_at_0 = 0.39894228040143267794;
  constexpr double sqrt_2_over_pi = 0.79788456080286535588;
  const double square = rounded_product(x, x);
  if (f.by_tanh) {
    const double t = portable_tanh(sqrt_2_over_pi * x * (1.0 + rounded_product(0.044715, square)));
    const double inner = sqrt_2_over_pi * (1.0 + rounded_product(0.134145, square));
    return 0.5 * (1.0 + t) + rounded_product(0.5 * x, (1.0 - t) * (1.0 + t) * inner);
  }
  const double below = std::fabs(x) > 0x1p-10 ? y / x : 0.5 + rounded_product(density_at_0, x);
  return below + rounded_product(x, density_at_0 * portable_exp(-0.5 * square));
}
/// s + alpha x s (1 - s) with s = 1 / (1 + e^(-alpha x)).
[[nodiscard]] inline double slope(const unary::swish& f, double x, double) {
  const double s = portable_logistic(f.alpha * x);
  return s + rounded_product(f.alpha * x * s, 1.0 - s);
}
/// t + x (1 - t^2) / (1 + e^-x) with t = tanh(log(1 + e^x)) = (e^2x + 2 e^x) / (e^2x + 2 e^x + 2).
[[nodiscard]] inline double slope(const unary::mish&, double x, double) {
  const double e = portable_exp(x < 40.0 ? x : 40.0);  // t is 1 from there on
  const double product = rounded_product(e, e + 2.0);
  const double t = product / (product + 2.0);
  return t + rounded_product(x * portable_logistic(x), (1.0 - t) * (1.0 + t));
}

// --------------------------------------------------------------------------------------- operators

/// The gradient of the operator of a function object F: dX = D f'(X).
template <class F>
void unary_function(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const F f = ops::make_function<F>(c.n());
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  const std::span<const double> d = c.output_gradient();
  const std::span<double> sum = c.gradient(0);
  const auto slope_at = [&](std::size_t i) {
    return slope(f, static_cast<double>(x[i]), static_cast<double>(y[i]));
  };
  ops::for_pieces(c.forward, x.size(),
                  ops::has_kernels<F> ? ops::costly_piece : ops::piece_of<F, float>,
                  [&](std::size_t begin, std::size_t end) {
                    if (c.overwrites) {
                      double* to = sum.data();
                      for (std::size_t i = begin; i < end; ++i) {
                        to[i] *= slope_at(i);
                      }
                      return;
                    }
                    for (std::size_t i = begin; i < end; ++i) {
                      sum[i] += rounded_product(d[i], slope_at(i));
                    }
                  });
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_SLOPES_HPP
