// SPDX-License-Identifier: BSD-3-Clause
// Products of real rows with 8-bit weights: the left side is quantized on the way, from its own
// range.
//
//   p[i]   = params_from_range(range of row i, or of all rows, lhs_scheme)
//   q      = quantize(lhs, p)
//   out    = clamp(fma(float(acc), p.scale * scale[j], bias[j]) + residual[i,j], lower, upper)
//
// with the exact integer sum acc of gemm(); with 4-bit weights as int4_weights.hpp has it. Blocks
// of rows are quantized just before they are multiplied, so that nothing of the size of the left
// side is stored; per tensor, its range is computed first.
#ifndef DETENT_DYNAMIC_LINEAR_HPP
#define DETENT_DYNAMIC_LINEAR_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/dynamic_quantize.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/gemm.hpp>
#include <detent/int4_weights.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/products/left_rows.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// What a left side that is quantized on the way may hold.
template <class F>
concept linear_input =
    std::same_as<F, float> || std::same_as<F, float16> || std::same_as<F, bfloat16>;

/// Weights of 8 bits with the scales of columns, or of 4 bits with those of groups.
template <class W>
concept linear_weights = std::same_as<W, packed_weights> || std::same_as<W, packed_int4_weights>;

struct dynamic_linear_options {
  bool per_row = true;  // a range for each row (token), or one for the whole left side
  quant_scheme lhs_scheme = asymmetric<std::uint8_t>;
  std::span<const float> bias = {};  // none, or one for each column
  matrix_view<const float> residual = {};
  float lower = -std::numeric_limits<float>::infinity();
  float upper = std::numeric_limits<float>::infinity();
};

namespace detail {

template <linear_input F>
[[nodiscard]] float as_float(F value) noexcept {
  if constexpr (std::same_as<F, float>) {
    return value;
  } else {
    return to_float(value);
  }
}

/// Rows as floats: where they are, or converted to memory of the thread.
template <linear_input F>
[[nodiscard]] matrix_view<const float> float_rows(matrix_view<const F> x, std::size_t first,
                                                  std::size_t rows) {
  if (is_column_major(x)) {
    float* to = block_memory<float>(rows * x.columns);
    convert_columns(x, first, rows, to, [](F value) { return as_float(value); });
    return {to, rows, x.columns};
  }
  const F* from = x.data + static_cast<std::ptrdiff_t>(first) * x.row_stride;
  if constexpr (std::same_as<F, float>) {
    return {from, rows, x.columns, x.row_stride};
  } else {
    float* to = block_memory<float>(rows * x.columns);
    for (std::size_t i = 0; i < rows; ++i, from += x.row_stride) {
      for (std::size_t j = 0; j < x.columns; ++j) {
        to[i * x.columns + j] = as_float(from[j]);
      }
    }
    return {to, rows, x.columns};
  }
}

/// The parameters of all rows together.
template <linear_input F>
quant_params params_of_rows(matrix_view<const F> x, quant_scheme scheme, const char* where,
                            const parallel_for& parallel) {
  const std::size_t blocks = (x.rows + rows_per_task - 1) / rows_per_task;
  std::vector<kernels::min_max_result> ranges(
      blocks, active<kernels::statistics_kernels>().min_max(nullptr, 0));
  for_row_blocks(x.rows, rows_per_task, parallel, [&](std::size_t first, std::size_t rows) {
    kernels::min_max_result& range = ranges[first / rows_per_task];
    const matrix_view<const float> block = float_rows(x, first, rows);
    for (std::size_t i = 0; i < rows; ++i) {
      const kernels::min_max_result row = active<kernels::statistics_kernels>().min_max(
          block.data + static_cast<std::ptrdiff_t>(i) * block.row_stride, block.columns);
      range.lower = (std::min)(range.lower, row.lower);
      range.upper = (std::max)(range.upper, row.upper);
      range.count_nan += row.count_nan;
    }
  });
  kernels::min_max_result all = active<kernels::statistics_kernels>().min_max(nullptr, 0);
  for (const kernels::min_max_result& range : ranges) {
    all.lower = (std::min)(all.lower, range.lower);
    all.upper = (std::max)(all.upper, range.upper);
    all.count_nan += range.count_nan;
  }
  return dynamic_params(all, all.count_nan < x.rows * x.columns, scheme, where);
}

}  // namespace detail

/// lhs is M x K, out is M x N, both with dense rows at any row stride, or lhs with dense columns at
/// any column stride; out does not overlap lhs.
/// NaN becomes the zero point; an infinity is an invalid_argument, and rows before it may have been
/// written. Throws what gemm() throws. Thread-safe. Allocates O(M + N), and each thread keeps up to
/// 256 rows of K bytes, and 48 of K floats for other types than float and for column-major left
/// sides, besides what gemm() keeps.
template <linear_input F, linear_weights W>
void dynamic_linear(matrix_view<const F> lhs, const W& weights, matrix_view<float> out,
                    const dynamic_linear_options& options = {}, const parallel_for& parallel = {}) {
  constexpr const char* where = "dynamic_linear";
  detail::require_product(lhs, weights.depth(), weights.columns(), out);
  detail::require_grid<std::uint8_t>(options.lhs_scheme.levels, where);
  epilogue_options epilogue;
  epilogue.lower = options.lower;
  epilogue.upper = options.upper;
  epilogue.bias = options.bias;
  epilogue.residual = options.residual;
  if (!options.per_row) {
    const quant_params all = detail::params_of_rows(lhs, options.lhs_scheme, where, parallel);
    epilogue.lhs_scale = all.scale;
    epilogue.lhs_zero_point = all.zero_point;
  }
  const typename detail::product_with<float, W>::type product(std::type_identity<std::uint8_t>{},
                                                              lhs.rows, weights, out, epilogue);
  /// Rows as bytes, with their scales and zero points.
  struct quantized_rows {
    std::uint8_t* q;
    float scales[kernels::largest_rows_per_call];
    std::int32_t zero_points[kernels::largest_rows_per_call];
  };
  const auto quantize_some = [&](std::size_t first, std::size_t rows, std::uint8_t* q,
                                 float* scales, std::int32_t* zero_points) {
    const matrix_view<const float> block = detail::float_rows(lhs, first, rows);
    if (options.per_row) {
      dynamic_quantize_rows(block, matrix_view<std::uint8_t>(q, rows, lhs.columns),
                            std::span<float>(scales, rows),
                            std::span<std::int32_t>(zero_points, rows), {}, options.lhs_scheme);
      return;
    }
    kernels::elementwise_args a;
    a.rows = rows;
    a.columns = lhs.columns;
    a.in_stride = block.row_stride;
    a.out_stride = static_cast<std::ptrdiff_t>(lhs.columns);
    a.scale = &epilogue.lhs_scale;
    a.zero_point = &epilogue.lhs_zero_point;
    a.qmin = options.lhs_scheme.levels.qmin;
    a.qmax = options.lhs_scheme.levels.qmax;
    detail::quantize_row<std::uint8_t>::run(block.data, a, q);
  };
  const auto quantize_rows = [&](std::size_t first, std::size_t rows, quantized_rows& to) {
    // Floats that are made are read again while they are in a cache.
    const bool is_converted = !std::same_as<F, float> || detail::is_column_major(lhs);
    const std::size_t step = is_converted ? detail::rows_per_task : rows;
    for (std::size_t i = 0; i < rows; i += step) {
      quantize_some(first + i, (std::min)(step, rows - i), to.q + i * lhs.columns, to.scales + i,
                    to.zero_points + i);
    }
  };
  const auto multiply = [&](const quantized_rows& from, const detail::product_part& part) {
    product.multiply(from.q, lhs.columns, part, options.per_row ? from.zero_points : nullptr,
                     options.per_row ? from.scales : nullptr);
  };
  const detail::even_blocks blocks = product.row_tasks(lhs.rows, parallel);
  if (blocks.count() <= 1) {
    // One block of rows, quantized once; threads share its columns.
    detail::leased_memory<std::uint8_t> memory(lhs.rows * lhs.columns);
    quantized_rows all;
    all.q = memory.data();
    quantize_rows(0, lhs.rows, all);
    const detail::product_parts parts = product.parts(lhs.rows, parallel);
    detail::run_parallel(parallel, parts.size(), [&](std::size_t i) { multiply(all, parts[i]); });
    return;
  }
  detail::run_parallel(parallel, blocks.count(), [&](std::size_t i) {
    const std::size_t first = blocks.begin(i);
    const std::size_t rows = blocks.size(i);
    quantized_rows block;
    block.q = detail::block_memory<std::uint8_t>(rows * lhs.columns);
    quantize_rows(first, rows, block);
    multiply(block, {first, rows, 0, out.columns});
  });
}

/// Reads through a mutable view as through a const one.
template <linear_input F, linear_weights W>
void dynamic_linear(matrix_view<F> lhs, const W& weights, matrix_view<float> out,
                    const dynamic_linear_options& options = {}, const parallel_for& parallel = {}) {
  dynamic_linear(matrix_view<const F>(lhs), weights, out, options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_DYNAMIC_LINEAR_HPP
