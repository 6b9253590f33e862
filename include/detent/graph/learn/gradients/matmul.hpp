// SPDX-License-Identifier: BSD-3-Clause
// The gradients of products of matrices: Gemm, MatMul and Einsum.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_MATMUL_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_MATMUL_HPP

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/einsum.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The gradient of Gemm, Y = alpha A B + beta C, with A and B after their transpositions:
///
///   dA = alpha D B^T,  dB = alpha A^T D,  dC = beta D, summed where C was broadcast
inline void gemm_operator(const gradient_context& c) {
  const ops::gemm_shape s(c.forward);
  const auto alpha = static_cast<double>(c.n().get_float("alpha", 1.0F));
  const auto beta = static_cast<double>(c.n().get_float("beta", 1.0F));
  const std::vector<float> d = as_floats(c.output_gradient());
  const matrix_view<const float> rows(d.data(), s.m, s.n);
  const float* a = c.input(0).data<float>().data();
  if (c.wants(0)) {
    const std::vector<float> found =
        product(c, rows, s.rhs(c.input(1).data<float>().data()).transposed());
    add_to(c.gradient(0), s.transpose_a ? ops::transposed_copy(found.data(), s.m, s.k) : found,
           alpha);
  }
  if (c.wants(1)) {
    const std::vector<float> columns =
        s.transpose_a ? std::vector<float>(a, a + s.k * s.m) : ops::transposed_copy(a, s.m, s.k);
    const std::vector<float> found =
        product(c, matrix_view<const float>(columns.data(), s.k, s.m), rows);
    add_to(c.gradient(1), s.transpose_b ? ops::transposed_copy(found.data(), s.k, s.n) : found,
           alpha);
  }
  if (c.wants(2)) {
    const shape& dims = c.input(2).dims();
    add_broadcast(c, c.gradient(2), dims, dims,
                  [beta](std::size_t, std::size_t, std::size_t) { return beta; });
  }
}

/// The gradient of MatMul. For each product A B of the stacks of matrices:
///
///   dA += D B^T,  dB += A^T D
inline void matmul(const gradient_context& c) {
  const ops::matmul_shape s(c.forward, c.input(0).dims(), c.input(1).dims());
  const std::vector<float> upstream = as_floats(c.output_gradient());
  const float* a = c.input(0).data<float>().data();
  const float* b = c.input(1).data<float>().data();
  if (upstream.empty()) {
    return;
  }
  const bool stacked = s.stacked_rows();
  const std::size_t rows = stacked ? s.m * s.count() : s.m;
  for (std::size_t i = 0; i < (stacked ? 1 : s.count()); ++i) {
    const auto factors = s.factors_of(i);
    const std::size_t lhs = stacked ? 0 : factors.first * s.m * s.k;
    const std::size_t rhs = stacked ? 0 : factors.second * s.k * s.n;
    const matrix_view<const float> d(upstream.data() + i * s.m * s.n, rows, s.n);
    if (c.wants(0)) {
      const matrix_view<const float> right(b + rhs, s.k, s.n);
      add_to(c.gradient(0).subspan(lhs), product(c, d, right.transposed()));
    }
    if (c.wants(1)) {
      const std::vector<float> columns = ops::transposed_copy(a + lhs, rows, s.k);
      add_to(c.gradient(1).subspan(rhs),
             product(c, matrix_view<const float>(columns.data(), s.k, rows), d));
    }
  }
}

/// The gradient of Einsum: the output is a sum of products of one element of each operand, and each
/// of these contributes to the gradient of an operand D times the elements of the others. All
/// combinations of indices are visited, those of the output first.
inline void einsum(const gradient_context& c) {
  const ops::einsum::plan p = ops::einsum::read_plan(c.forward);
  const std::size_t count = c.forward.input_count();
  std::vector<std::array<std::size_t, ops::einsum::label_count>> steps(count);
  std::vector<const float*> operands;
  for (std::size_t i = 0; i < count; ++i) {
    const shape& dims = c.input(i).dims();
    const std::vector<std::ptrdiff_t> row_major = ops::row_major_steps(dims);
    steps[i].fill(0);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      // A label that occurs twice in a term walks along a diagonal.
      steps[i][p.operands[i][d]] += dims[d] == 1 ? 0 : static_cast<std::size_t>(row_major[d]);
    }
    operands.push_back(c.input(i).data<float>().data());
  }
  ops::einsum::index_walk outer(p, p.output, steps);
  ops::einsum::index_walk inner(p, p.summed, steps);
  const std::size_t products = inner.count();
  std::vector<std::size_t> offsets(count, 0);
  for (const double d : c.output_gradient()) {
    for (std::size_t k = 0; k < products; ++k) {
      for (std::size_t i = 0; i < count; ++i) {
        double term = d;
        for (std::size_t j = 0; c.wants(i) && j < count; ++j) {
          term *= j == i ? 1.0 : static_cast<double>(operands[j][offsets[j]]);
        }
        if (c.wants(i)) {
          c.gradient(i)[offsets[i]] += rounded_product(term, 1.0);
        }
      }
      inner.advance(offsets);
    }
    outer.advance(offsets);
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_MATMUL_HPP
