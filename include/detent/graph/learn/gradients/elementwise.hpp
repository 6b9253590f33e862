// SPDX-License-Identifier: BSD-3-Clause
// The gradients of operators that compute each element of the output from one element of each
// input, but for functions of a single input (slopes.hpp).
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_ELEMENTWISE_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_ELEMENTWISE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <vector>

#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/slopes.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/unary_functions.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// Adds D times factor(i) to the gradient of each input i that is wanted, summed where the input
/// was broadcast.
template <class Factor>
void weighted_sum(const gradient_context& c, const Factor& factor) {
  for (std::size_t i = 0; i < c.forward.input_count(); ++i) {
    if (c.wants(i)) {
      const shape& dims = c.input(i).dims();
      const double weight = factor(i);
      add_broadcast(c, c.gradient(i), dims, dims,
                    [weight](std::size_t, std::size_t, std::size_t) { return weight; });
    }
  }
}

/// The gradient of Add and Sum: D for each input, summed where an input was broadcast.
inline void sum(const gradient_context& c) {
  weighted_sum(c, [](std::size_t) { return 1.0; });
}
/// The gradient of Sub: D for the first input and -D for the second.
inline void difference(const gradient_context& c) {
  weighted_sum(c, [](std::size_t i) { return i == 0 ? 1.0 : -1.0; });
}
/// The gradient of Mean: D divided by the number of inputs.
inline void mean(const gradient_context& c) {
  const auto count = static_cast<double>(c.forward.input_count());
  weighted_sum(c, [count](std::size_t) { return 1.0 / count; });
}

/// The gradient of an operator of two operands. slope_a(a, b, y) is the derivative for the first
/// operand at elements a and b with the result y, slope_b(a, b, y) that for the second.
template <class SlopeA, class SlopeB>
void binary(const gradient_context& c, const SlopeA& slope_a, const SlopeB& slope_b) {
  const auto a = ops::load_all<double>(c.forward, c.input(0));
  const auto b = ops::load_all<double>(c.forward, c.input(1));
  const auto y = c.output().data<float>();
  const shape& dims_a = c.input(0).dims();
  const shape& dims_b = c.input(1).dims();
  if (c.wants(0)) {
    add_broadcast(c, c.gradient(0), dims_a, dims_b,
                  [&](std::size_t k, std::size_t o, std::size_t i) {
                    return slope_a(a[k], b[o], static_cast<double>(y[i]));
                  });
  }
  if (c.wants(1)) {
    add_broadcast(c, c.gradient(1), dims_b, dims_a,
                  [&](std::size_t k, std::size_t o, std::size_t i) {
                    return slope_b(a[o], b[k], static_cast<double>(y[i]));
                  });
  }
}

/// The gradient of Mul: dA = D B, dB = D A.
inline void multiplication(const gradient_context& c) {
  binary(
      c, [](double, double b, double) { return b; }, [](double a, double, double) { return a; });
}
/// The gradient of Div: dA = D / B, dB = -D A / B^2.
inline void division(const gradient_context& c) {
  binary(
      c, [](double, double b, double) { return 1.0 / b; },
      [](double a, double b, double) { return -a / b / b; });
}
/// The gradient of Mod, Y = A - n B with a whole number n: dA = D, dB = -n D.
inline void modulo(const gradient_context& c) {
  binary(
      c, [](double, double, double) { return 1.0; },
      [](double a, double b, double y) { return -std::nearbyint((a - y) / b); });
}

/// The gradient of Pow, Y = A^B: dA = D B Y / A, dB = D Y log A. Where A = 0, dA is D B 0^(B - 1);
/// where A <= 0, dB is 0, because there Y is a power for single exponents only.
inline void power(const gradient_context& c) {
  binary(
      c,
      [](double a, double b, double y) {
        if (a != 0.0) {
          return b * y / a;
        }
        return b == 0.0 ? 0.0 : b * detent::detail::portable_power(0.0, b - 1.0);
      },
      [](double a, double, double y) {
        return a > 0.0 ? y * detent::detail::portable_log(a) : 0.0;
      });
}

/// The gradient of Max and Min: D goes to the first input whose element is the result.
inline void extremum(const gradient_context& c) {
  const auto y = c.output().data<float>();
  std::vector<bool> taken(y.size(), false);
  for (std::size_t i = 0; i < c.forward.input_count(); ++i) {
    const shape& dims = c.input(i).dims();
    const auto x = c.input(i).data<float>();
    const std::span<double> sum = c.wants(i) ? c.gradient(i) : std::span<double>{};
    for_each_broadcast(c, dims, dims, [&](std::size_t k, std::size_t, std::size_t at) {
      if (!taken[at] && x[k] == y[at]) {
        taken[at] = true;
        if (!sum.empty()) {
          sum[k] += c.output_gradient()[at];
        }
      }
    });
  }
}

/// The gradient of PRelu: dX = D S where X < 0, else D; dS = D X where X < 0, else 0.
inline void prelu(const gradient_context& c) {
  binary(
      c, [](double x, double s, double) { return x < 0.0 ? s : 1.0; },
      [](double x, double, double) { return x < 0.0 ? x : 0.0; });
}

/// The gradient of SwiGLU, Y = swish(G) X: dG = D X swish'(G), dX = D swish(G).
inline void swiglu(const gradient_context& c) {
  const unary::swish f(c.n());
  binary(
      c, [&f](double g, double x, double) { return x * slope(f, g, 0.0); },
      [&f](double g, double, double) { return g * portable_logistic(f.alpha * g); });
}

/// The gradient of Clip: D for elements from one bound to the other, both included. The gradient of
/// a bound is the sum of D over the elements that it replaces.
inline void clip(const gradient_context& c) {
  const float lower =
      ops::clip_bound<float>(c.forward, 1, "min", std::numeric_limits<float>::lowest());
  const float upper =
      ops::clip_bound<float>(c.forward, 2, "max", (std::numeric_limits<float>::max)());
  const auto x = c.input(0).data<float>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float raised = x[i] < lower ? lower : x[i];
    const std::size_t from = raised > upper ? 2 : x[i] < lower ? 1 : 0;
    if (c.wants(from)) {
      c.gradient(from)[from == 0 ? i : 0] += c.output_gradient()[i];
    }
  }
}

/// True for a Cast to a floating-point type.
[[nodiscard]] inline bool casts_to_floating(const node& n) {
  return ops::is_floating(static_cast<element_type>(n.get_int("to", 0)));
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_ELEMENTWISE_HPP
