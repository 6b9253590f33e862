// SPDX-License-Identifier: BSD-3-Clause
// Matrix products with packed weights: 8-bit integers, exact on every input and target, and floats.
#ifndef DETENT_GEMM_HPP
#define DETENT_GEMM_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

template <class T>
concept integer_gemm_output =
    std::same_as<T, std::int32_t> || std::same_as<T, float> || quantized_byte<T>;

namespace detail {

/// Rows in one unit of parallel work: enough to read the weights for, few enough to share out.
inline constexpr std::size_t rows_per_task = 48;

template <class T, class U>
void require_product(matrix_view<const T> lhs, std::size_t depth, std::size_t columns,
                     matrix_view<U> out) {
  require_matrix(lhs, "gemm");
  require_matrix(out, "gemm");
  require(lhs.columns == depth, error_kind::shape_mismatch, "gemm: K is ", lhs.columns,
          " in the left side, ", depth, " in the weights");
  require(out.rows == lhs.rows && out.columns == columns, error_kind::shape_mismatch,
          "gemm: the output is ", out.rows, " x ", out.columns, ", not ", lhs.rows, " x ", columns);
  require((lhs.column_stride == 1 || lhs.columns <= 1) && (out.column_stride == 1 || columns <= 1),
          error_kind::unsupported, "gemm: rows must be dense (column strides are ",
          lhs.column_stride, " and ", out.column_stride, ")");
  require((lhs.row_stride >= static_cast<std::ptrdiff_t>(lhs.columns) || lhs.rows <= 1) &&
              (out.row_stride >= static_cast<std::ptrdiff_t>(columns) || out.rows <= 1),
          error_kind::invalid_argument, "gemm: rows overlap (row strides are ", lhs.row_stride,
          " and ", out.row_stride, ")");
}

inline void sum_rows(const std::uint8_t* a, std::size_t lda, std::size_t rows, std::size_t depth,
                     std::int32_t* sums) noexcept {
  for (std::size_t i = 0; i < rows; ++i) {
    sums[i] = active_table().sum_u8(a + i * lda, depth);
  }
}

/// Calls body(first row, rows) for the blocks that the rows are shared out in.
template <class Body>
void for_row_blocks(std::size_t rows, const parallel_for& parallel, const Body& body) {
  if (!parallel) {
    body(std::size_t{0}, rows);
    return;
  }
  run_parallel(parallel, (rows + rows_per_task - 1) / rows_per_task, [&](std::size_t block) {
    const std::size_t first = block * rows_per_task;
    body(first, (std::min)(rows_per_task, rows - first));
  });
}

}  // namespace detail

/// out = epilogue(lhs * weights); see epilogue_options for the arithmetic of each output type.
/// lhs is M x K, out is M x N; both with dense rows at any row stride. They do not overlap.
/// Exact: throws overflow if the weights' certificate does not exclude sums beyond 32 bits.
/// Throws shape_mismatch, invalid_argument. Thread-safe. Allocates O(N) (and O(M) where the weights
/// have zero points).
template <integer_gemm_output T>
void gemm(matrix_view<const std::uint8_t> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::require_product(lhs, weights.depth(), weights.columns(), out);
  detail::column_terms terms;
  terms.prepare<T>(weights, options, "gemm");
  const auto lda = static_cast<std::size_t>(lhs.row_stride);
  const auto ldc = static_cast<std::size_t>(out.row_stride);
  std::vector<std::int32_t> row_sums(terms.needs_row_sums() ? lhs.rows : 0);
  const kernels::kernel_table& table = detail::active_table();
  const kernels::packed_panels panels = weights.panels(table);
  detail::for_row_blocks(lhs.rows, parallel, [&](std::size_t first, std::size_t rows) {
    kernels::gemm_u8s8_args g;
    g.a = lhs.data + first * lda;
    g.lda = lda;
    g.b = panels;
    g.c = out.data + first * ldc;
    g.ldc = ldc;
    g.m = rows;
    g.n = weights.columns();
    g.k = weights.depth();
    if (terms.needs_row_sums()) {
      detail::sum_rows(g.a, lda, rows, g.k, row_sums.data() + first);
    }
    g.epilogue = terms.epilogue(row_sums.data() + first);
    table.gemm_u8s8(g);
  });
}

/// Writes through a mutable view of bytes as through a const one.
template <integer_gemm_output T>
void gemm(matrix_view<std::uint8_t> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  gemm(matrix_view<const std::uint8_t>(lhs), weights, out, options, parallel);
}

/// out = clamp(bias + lhs * weights, lower, upper), each element one chain of fused multiply-adds
/// in the order of k (reference::dot): the same bits on every target and for every split into
/// threads.
inline void gemm(matrix_view<const float> lhs, const packed_floats& weights, matrix_view<float> out,
                 float lower = -std::numeric_limits<float>::infinity(),
                 float upper = std::numeric_limits<float>::infinity(),
                 const parallel_for& parallel = {}) {
  detail::require_product(lhs, weights.depth(), weights.columns(), out);
  const auto lda = static_cast<std::size_t>(lhs.row_stride);
  const auto ldc = static_cast<std::size_t>(out.row_stride);
  const auto kernel = detail::active_table().gemm_f32;
  detail::for_row_blocks(lhs.rows, parallel, [&](std::size_t first, std::size_t rows) {
    kernels::gemm_f32_args g;
    g.a = lhs.data + first * lda;
    g.lda = lda;
    g.packed_b = weights.data().data();
    g.bias = weights.bias().data();
    g.c = out.data + first * ldc;
    g.ldc = ldc;
    g.m = rows;
    g.n = weights.columns();
    g.k = weights.depth();
    g.lower = lower;
    g.upper = upper;
    kernel(g);
  });
}

DETENT_NAMESPACE_END

#endif  // DETENT_GEMM_HPP
