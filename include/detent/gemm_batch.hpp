// SPDX-License-Identifier: BSD-3-Clause
// gemm_batch(): many matrix products in one call, such as the heads of an attention layer, the
// experts of a mixture or the images of a batch. Threads share the tasks of all products.
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

/// The arguments of one product of a batch. Nothing is copied: views, weights and the spans in the
/// options must stay valid during the call.
template <quantized_byte A, class Weights, class T>
struct gemm_problem {
  matrix_view<const A> lhs;          ///< The left side, M x K; row- or column-major as for gemm().
  const Weights* weights = nullptr;  ///< packed_weights or packed_int4_weights, K x N; not null.
  matrix_view<T> out;                ///< The output, M x N, with dense rows.
  epilogue_options options = {};     ///< The epilogue of this product.
};

/// Computes gemm(p.lhs, *p.weights, p.out, p.options) for each problem p, with the same bits as
/// separate calls. Shapes, weights and options may differ from problem to problem; the types may
/// not. Threads share the tasks of all products together, so that many small products keep them
/// busy.
///
/// An output must not overlap another output or any left side. All problems are checked before the
/// first output is written. Throws what gemm() throws, and invalid_argument for null weights. An
/// overflow is reported for the first problem that has one, after all products have run. An empty
/// span does nothing. Thread-safe. The memory is that of gemm(), with what the calling thread or
/// the call owns once for each problem.
template <quantized_byte A, class Weights, class T>
void gemm_batch(std::span<const gemm_problem<A, Weights, T>> problems,
                const parallel_for& parallel = {}) {
  std::deque<detail::product_tasks<A, Weights, T>> products;  // a deque: they cannot be moved
  std::vector<std::size_t> ends;  // where the tasks of each product end in the common numbering
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
/// Computes the products of a vector of problems: gemm_batch() of a span of them.
template <quantized_byte A, class Weights, class T>
void gemm_batch(const std::vector<gemm_problem<A, Weights, T>>& problems,
                const parallel_for& parallel = {}) {
  gemm_batch(std::span<const gemm_problem<A, Weights, T>>(problems), parallel);
}

/// Computes `count` products of one shape, with one set of options, whose operands lie at equal
/// distances: product i reads its left side at lhs.data + i * lhs_step, writes its output at
/// out.data + i * out_step (steps in elements), and multiplies by weights[i], or by weights[0] if
/// `weights` has one element. Throws shape_mismatch if `weights` has neither 1 nor `count`
/// elements, and what gemm_batch() throws. A view without elements may be null, with any step.
/// Thread-safe. Aliasing and memory are those of gemm_batch().
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
    // Nothing may be added to null, which gemm_batch() refuses unless there are no elements.
    p.lhs.data += lhs.data == nullptr ? 0 : static_cast<std::ptrdiff_t>(i) * lhs_step;
    p.out.data += out.data == nullptr ? 0 : static_cast<std::ptrdiff_t>(i) * out_step;
    problems.push_back(p);
  }
  gemm_batch(std::span<const gemm_problem<A, Weights, T>>(problems), parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_GEMM_BATCH_HPP
