// SPDX-License-Identifier: BSD-3-Clause
// Sums and products that the gradients of several families share.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_SUMS_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_SUMS_HPP

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The gradients of the single operators. find_gradient() chooses among them.
namespace gradients {

using detent::detail::rounded_product;
using detent::detail::sum_of;

/// Numbers as floats, each rounded.
[[nodiscard]] inline std::vector<float> as_floats(std::span<const double> values) {
  return {values.begin(), values.end()};
}

/// The matrix product lhs * rhs [lhs.rows, rhs.columns()] by the float kernels, row-major without
/// gaps.
[[nodiscard]] inline std::vector<float> product(const gradient_context& c,
                                                matrix_view<const float> lhs,
                                                const packed_floats& rhs) {
  std::vector<float> out(lhs.rows * rhs.columns());
  if (!out.empty() && lhs.columns > 0) {
    gemm(lhs, rhs, matrix_view<float>(out.data(), lhs.rows, rhs.columns()), {},
         *c.forward.parallel);
  }
  return out;
}
/// The matrix product lhs * rhs [lhs.rows, rhs.columns] by the float kernels, row-major without
/// gaps.
[[nodiscard]] inline std::vector<float> product(const gradient_context& c,
                                                matrix_view<const float> lhs,
                                                matrix_view<const float> rhs) {
  return rhs.rows == 0 ? std::vector<float>(lhs.rows * rhs.columns)
                       : product(c, lhs, packed_floats(rhs, {}));
}

/// sum[i] += values[i] * factor in double; each product is rounded before it is added.
inline void add_to(std::span<double> sum, std::span<const float> values, double factor = 1.0) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum[i] += rounded_product(static_cast<double>(values[i]), factor);
  }
}

/// Calls each(k, o, i) for all elements i of the output in order, where k is the element of an
/// operand of shape `dims` that element i is computed from, and o the element of another operand of
/// shape `other`. Both are broadcast to the output.
template <class Each>
void for_each_broadcast(const gradient_context& c, const shape& dims, const shape& other,
                        const Each& each) {
  if (c.output_gradient().empty()) {
    return;
  }
  const auto plan = ops::plan_broadcast<2>(c.output().dims(), {&dims, &other});
  ops::walk_runs<2>(
      plan, 0, plan.runs,
      [&](const std::array<std::size_t, 2>& at, std::size_t first, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          each(at[0] + i * plan.step[0], at[1] + i * plan.step[1], first + i);
        }
      });
}

/// Adds to `sum`, the gradient of an operand of shape `dims` that was broadcast to the output, the
/// output gradient times a factor: each element of the output contributes to the element of the
/// operand that it was computed from. The factor is factor(k, o, i), with the arguments of
/// for_each_broadcast().
template <class Factor>
void add_broadcast(const gradient_context& c, std::span<double> sum, const shape& dims,
                   const shape& other, const Factor& factor) {
  const std::span<const double> d = c.output_gradient();
  for_each_broadcast(c, dims, other, [&](std::size_t k, std::size_t o, std::size_t i) {
    sum[k] += rounded_product(d[i], factor(k, o, i));
  });
}

}  // namespace gradients

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_SUMS_HPP
