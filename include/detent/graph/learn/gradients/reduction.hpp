// SPDX-License-Identifier: BSD-3-Clause
// The gradients of reductions over axes, CumSum and CumProd.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_REDUCTION_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_REDUCTION_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/axis_view.hpp>
#include <detent/graph/ops/normalization.hpp>
#include <detent/graph/ops/reduction.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// Calls each(i, k) for all elements i of the input in order, where k is the element of the output
/// that element i is reduced to. InputSince is the opset since which the axes are an input.
template <std::int64_t InputSince, class Each>
void for_each_reduced(const gradient_context& c, const Each& each) {
  ops::for_each_in_groups(c.input(0).dims(), ops::reduced_axes<InputSince>(c.forward),
                          c.input(0).count(), each);
}

/// The gradient of a reduction: D times slope(x, y, k) for each element x of the input, where y is
/// the result number k that the element is reduced to.
template <std::int64_t InputSince = 18, class Slope>
void reduced(const gradient_context& c, const Slope& slope) {
  if (!c.wants(0)) {
    return;
  }
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  for_each_reduced<InputSince>(c, [&](std::size_t i, std::size_t k) {
    c.gradient(0)[i] += rounded_product(
        c.output_gradient()[k], slope(static_cast<double>(x[i]), static_cast<double>(y[k]), k));
  });
}

/// The gradient of ReduceSum: D.
inline void reduce_sum(const gradient_context& c) {
  reduced<13>(c, [](double, double, std::size_t) { return 1.0; });
}
/// The gradient of ReduceMean: D divided by the number of elements of a mean.
inline void reduce_mean(const gradient_context& c) {
  const double share =
      static_cast<double>(c.output().count()) / static_cast<double>(c.input(0).count());
  reduced(c, [share](double, double, std::size_t) { return share; });
}
/// The gradient of ReduceL1: D sign(x), 0 at 0.
inline void reduce_l1(const gradient_context& c) {
  reduced(c, [](double x, double, std::size_t) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0; });
}
/// The gradient of ReduceL2: D x / y, 0 if y is 0.
inline void reduce_l2(const gradient_context& c) {
  reduced(c, [](double x, double y, std::size_t) { return y > 0.0 ? x / y : 0.0; });
}
/// The gradient of ReduceSumSquare: 2 D x.
inline void reduce_sum_square(const gradient_context& c) {
  reduced(c, [](double x, double, std::size_t) { return 2.0 * x; });
}
/// The gradient of ReduceLogSum: D / (sum of x).
inline void reduce_log_sum(const gradient_context& c) {
  reduced(c, [](double, double y, std::size_t) { return detent::detail::portable_exp(-y); });
}
/// The gradient of ReduceLogSumExp: D e^(x - y).
inline void reduce_log_sum_exp(const gradient_context& c) {
  reduced(c, [](double x, double y, std::size_t) { return detent::detail::portable_exp(x - y); });
}
/// The gradient of ReduceMax and ReduceMin: D goes to the first element that is the result.
inline void reduce_extremum(const gradient_context& c) {
  std::vector<bool> taken(c.output().count(), false);
  reduced(c, [&taken](double x, double y, std::size_t k) {
    const bool is_first = x == y && !taken[k];
    taken[k] = taken[k] || is_first;
    return is_first ? 1.0 : 0.0;
  });
}
/// The gradient of ReduceProd: D times the product of the other elements.
inline void reduce_product(const gradient_context& c) {
  struct factors {
    std::size_t zeros = 0;
    double others = 1.0;  // the product of those that are not 0
  };
  std::vector<factors> all(c.output().count());
  const auto x = c.input(0).data<float>();
  for_each_reduced<18>(c, [&](std::size_t i, std::size_t k) {
    all[k].zeros += x[i] == 0.0F ? 1U : 0U;
    all[k].others *= x[i] == 0.0F ? 1.0 : static_cast<double>(x[i]);
  });
  reduced(c, [&all](double value, double, std::size_t k) {
    const std::size_t zeros = all[k].zeros - (value == 0.0 ? 1U : 0U);
    return zeros > 0 ? 0.0 : value == 0.0 ? all[k].others : all[k].others / value;
  });
}

// --- CumSum and CumProd --------------------------------------------------------------------------

/// Calls row(at) for each row along the axis of a CumSum or CumProd, where at(i) is the index of
/// the element that the operator takes as number i.
template <class Row>
void for_each_cumulative(const gradient_context& c, const Row& row) {
  const shape& dims = c.input(0).dims();
  const ops::axis_view v =
      ops::view_axis(dims, c.forward.axis(c.forward.integers(1).at(0), dims.size()));
  const bool reverse = c.n().get_int("reverse", 0) != 0;
  for (std::size_t r = 0; c.wants(0) && v.length > 0 && r < v.outer * v.inner; ++r) {
    const std::size_t first = r / v.inner * v.length * v.inner + r % v.inner;
    row(v.length, [&v, first, reverse](std::size_t i) {
      return first + (reverse ? v.length - 1 - i : i) * v.inner;
    });
  }
}

/// The gradient of CumSum: for element j, the sum of D over the results that it is part of. These
/// are those from j on, or with `exclusive` those behind it.
inline void cumulative_sum(const gradient_context& c) {
  const bool exclusive = c.n().get_int("exclusive", 0) != 0;
  for_each_cumulative(c, [&](std::size_t length, const auto& at) {
    double sum = 0.0;
    for (std::size_t j = length; j-- > 0;) {
      const double d = c.output_gradient()[at(j)];
      c.gradient(0)[at(j)] += exclusive ? sum : sum + d;
      sum += d;
    }
  });
}

/// The gradient of CumProd: for element j, the sum of D_k times the product of the other factors of
/// result k, over the results that element j is a factor of.
inline void cumulative_product(const gradient_context& c) {
  const bool exclusive = c.n().get_int("exclusive", 0) != 0;
  const auto x = c.input(0).data<float>();
  for_each_cumulative(c, [&](std::size_t length, const auto& at) {
    double before = 1.0;  // the product of the elements before j
    for (std::size_t j = 0; j < length; ++j) {
      double sum = 0.0;
      double others = before;
      for (std::size_t k = j; k < length; ++k) {
        // `others` has the elements up to k but for j; result k has those, or those before k.
        if (k > j && !exclusive) {
          others *= static_cast<double>(x[at(k)]);
        }
        if (k > j || !exclusive) {
          sum += rounded_product(c.output_gradient()[at(k)], others);
        }
        if (k > j && exclusive) {
          others *= static_cast<double>(x[at(k)]);
        }
      }
      c.gradient(0)[at(j)] += sum;
      before *= static_cast<double>(x[at(j)]);
    }
  });
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_REDUCTION_HPP
