// SPDX-License-Identifier: BSD-3-Clause
// Many products at once: the heads of an attention layer, the experts of a mixture, the images of a
// batch. Shapes, weights and options may differ; all tasks of all products are shared out together.
#ifndef DETENT_GEMM_BATCH_HPP
#define DETENT_GEMM_BATCH_HPP

#include <algorithm>
#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/int4_weights.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// One gemm(). The weights are not copied.
template <quantized_byte A, class Weights, class T>
struct gemm_problem {
  matrix_view<const A> lhs;
  const Weights* weights = nullptr;
  matrix_view<T> out;
  epilogue_options options = {};
};

/// Runs gemm(p.lhs, *p.weights, p.out, p.options) for each problem. Outputs overlap neither each
/// other nor a left side. All problems are checked before the first output is written; throws what
/// gemm() throws, and invalid_argument for null weights. Thread-safe. Allocates for each problem
/// what gemm() does.
template <quantized_byte A, class Weights, class T>
void gemm_batch(std::span<const gemm_problem<A, Weights, T>> problems,
                const parallel_for& parallel = {}) {
  std::deque<detail::product_tasks<A, Weights, T>> products;  // which do not move
  std::vector<std::size_t> ends;                              // of the tasks of each product
  for (const gemm_problem<A, Weights, T>& p : problems) {
    require(p.weights != nullptr, error_kind::invalid_argument, "gemm_batch: problem ",
            products.size(), " has no weights");
    products.emplace_back(p.lhs, *p.weights, p.out, p.options, parallel);
    ends.push_back((ends.empty() ? 0 : ends.back()) + products.back().size());
  }
  if (products.empty()) {
    return;
  }
  detail::run_parallel(parallel, ends.back(), [&](std::size_t task) {
    const auto product =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), task) - ends.begin());
    products[product].run(task - (product == 0 ? 0 : ends[product - 1]));
  });
  for (const auto& product : products) {
    product.finish();
  }
}

/// `count` products of the same shape whose operands are equally far apart: product i reads at
/// lhs.data + i * lhs_step, writes at out.data + i * out_step, and multiplies by weights[i] (by
/// weights[0], if there is only one).
template <quantized_byte A, class Weights, class T>
void gemm_strided_batch(std::size_t count, matrix_view<const A> lhs, std::ptrdiff_t lhs_step,
                        std::span<const Weights> weights, matrix_view<T> out,
                        std::ptrdiff_t out_step, const epilogue_options& options = {},
                        const parallel_for& parallel = {}) {
  require(weights.size() == 1 || weights.size() == count, error_kind::shape_mismatch,
          "gemm_strided_batch: ", weights.size(), " weights for ", count, " products");
  std::vector<gemm_problem<A, Weights, T>> problems;
  for (std::size_t i = 0; i < count; ++i) {
    gemm_problem<A, Weights, T> p{lhs, &weights[weights.size() == 1 ? 0 : i], out, options};
    p.lhs.data += static_cast<std::ptrdiff_t>(i) * lhs_step;
    p.out.data += static_cast<std::ptrdiff_t>(i) * out_step;
    problems.push_back(p);
  }
  gemm_batch(std::span<const gemm_problem<A, Weights, T>>(problems), parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_GEMM_BATCH_HPP
