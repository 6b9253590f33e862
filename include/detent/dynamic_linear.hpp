// SPDX-License-Identifier: BSD-3-Clause
// dynamic_linear(): products of float, float16 or bfloat16 matrices with packed 8-bit or 4-bit
// weights. The left side is quantized on the way, with parameters from its own range.
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

/// The element types of a left side of dynamic_linear(): float, float16 and bfloat16.
template <class F>
concept linear_input =
    std::same_as<F, float> || std::same_as<F, float16> || std::same_as<F, bfloat16>;

/// The classes of weights of dynamic_linear(): packed_weights (8 bits, a scale for each column) and
/// packed_int4_weights (4 bits, a scale for each quantization group of each column).
template <class W>
concept linear_weights = std::same_as<W, packed_weights> || std::same_as<W, packed_int4_weights>;

/// How dynamic_linear() quantizes the left side, and what it adds to the product.
struct dynamic_linear_options {
  /// True: each row (token) has a range, scale and zero point of its own. False: one for all rows.
  bool per_row = true;
  /// Grid of the quantized left side, within 0..255, and whether its range is made symmetric.
  quant_scheme lhs_scheme = asymmetric<std::uint8_t>;
  /// A real value for each of the N columns, which is added to the scaled sums. Empty means 0.
  std::span<const float> bias = {};
  /// An M x N matrix with dense rows that is added before the clamp; null means none. It may be the
  /// output itself.
  matrix_view<const float> residual = {};
  /// Lower bound of the output. NaN passes through the clamp.
  float lower = -std::numeric_limits<float>::infinity();
  /// Upper bound of the output; it wins where it is less than `lower`.
  float upper = std::numeric_limits<float>::infinity();
};

namespace detail {

/// The value as a float, exactly.
template <linear_input F>
[[nodiscard]] float as_float(F value) noexcept {
  if constexpr (std::same_as<F, float>) {
    return value;
  } else {
    return to_float(value);
  }
}

/// Rows first .. first + rows as dense float rows: a view of x if it has such rows, otherwise a
/// converted copy in memory of the thread (block_memory).
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

/// Scale and zero point from the range of all elements of x together.
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

/// The same options with the bias, residual and clamp of `options`.
[[nodiscard]] inline epilogue_options with_real_terms(epilogue_options epilogue,
                                                      const dynamic_linear_options& options) {
  epilogue.lower = options.lower;
  epilogue.upper = options.upper;
  epilogue.bias = options.bias;
  epilogue.residual = options.residual;
  return epilogue;
}

/// The options of the product that dynamic_linear() makes of its quantized left side. If there is
/// one range for all rows, it is computed here.
template <linear_input F>
[[nodiscard]] epilogue_options quantized_epilogue(matrix_view<const F> lhs,
                                                  const dynamic_linear_options& options,
                                                  const parallel_for& parallel) {
  constexpr const char* where = "dynamic_linear";
  const quant_scheme scheme = checked_scheme<std::uint8_t>(options.lhs_scheme, where);
  if (lhs.rows != 0 && options.per_row) {
    static_cast<void>(params_from_range({}, scheme));  // checks the grid before tasks use it
  }
  epilogue_options epilogue = with_real_terms({}, options);
  if (!options.per_row) {
    const quant_params all = params_of_rows(lhs, scheme, where, parallel);
    epilogue.lhs_scale = all.scale;
    epilogue.lhs_zero_point = all.zero_point;
  }
  return epilogue;
}

/// Quantizes the rows of lhs and calls multiply(left, part) for all parts of the product, on the
/// threads of `parallel`. The scheme of the options has been checked (quantized_epilogue). With
/// per_row, throws if a row cannot be quantized; the part that it is in is not multiplied.
template <linear_input F, class Product, class Multiply>
void for_quantized_parts(matrix_view<const F> lhs, std::size_t columns, const Product& product,
                         const epilogue_options& epilogue, const dynamic_linear_options& options,
                         const parallel_for& parallel, const Multiply& multiply_part) {
  // A block of quantized rows, with their scales and zero points.
  struct quantized_rows {
    std::uint8_t* q;
    float scales[kernels::largest_rows_per_call];
    std::int32_t zero_points[kernels::largest_rows_per_call];
  };
  const quant_scheme scheme{with_whole_range<std::uint8_t>(options.lhs_scheme.levels),
                            options.lhs_scheme.symmetric};
  refused_row refused;
  const auto raise_refused = [&] { refused.raise_if_noted(scheme, "dynamic_quantize_rows"); };
  // Both return whether all rows could be quantized; they do not throw if not, because threads of
  // the caller need not carry exceptions.
  const auto quantize_some = [&](std::size_t first, std::size_t rows, std::uint8_t* q,
                                 float* scales, std::int32_t* zero_points) {
    const matrix_view<const float> block = float_rows(lhs, first, rows);
    if (options.per_row) {
      return detail::quantize_rows<std::uint8_t>(
          {block, {q, rows, lhs.columns}, scales, zero_points, first}, scheme, refused);
    }
    kernels::elementwise_args a;
    a.rows = rows;
    a.columns = lhs.columns;
    a.in_stride = block.row_stride;
    a.out_stride = static_cast<std::ptrdiff_t>(lhs.columns);
    a.scale = &epilogue.lhs_scale;
    a.zero_point = &epilogue.lhs_zero_point;
    a.qmin = scheme.levels.qmin;
    a.qmax = scheme.levels.qmax;
    quantize_row<std::uint8_t>::run(block.data, a, q);
    return true;
  };
  const auto quantize_all = [&](std::size_t first, std::size_t rows, quantized_rows& to) {
    // Converted floats are read again (to quantize them) while they are in a cache: hence few rows.
    const bool is_converted = !std::same_as<F, float> || is_column_major(lhs);
    const std::size_t step = is_converted ? rows_per_task : rows;
    for (std::size_t i = 0; i < rows; i += step) {
      if (!quantize_some(first + i, (std::min)(step, rows - i), to.q + i * lhs.columns,
                         to.scales + i, to.zero_points + i)) {
        return false;
      }
    }
    return true;
  };
  const auto left_of = [&](const quantized_rows& rows) {
    left_part left;
    left.a = rows.q;
    left.lda = lhs.columns;
    left.zero_points = options.per_row ? rows.zero_points : nullptr;
    left.scales = options.per_row ? rows.scales : nullptr;
    return left;
  };
  const even_blocks blocks = product.row_tasks(lhs.rows, parallel);
  if (blocks.count() <= 1) {
    // A single block of rows is quantized once, and threads share its columns.
    leased_memory<std::uint8_t> memory(lhs.rows * lhs.columns);
    quantized_rows all;
    all.q = memory.data();
    static_cast<void>(quantize_all(0, lhs.rows, all));
    raise_refused();
    const product_parts parts = product.parts(lhs.rows, parallel);
    run_parallel(parallel, parts.size(), [&](std::size_t i) {
      multiply_part(left_of(all).from(parts[i].first), parts[i]);
    });
    return;
  }
  run_parallel(parallel, blocks.count(), [&](std::size_t i) {
    const std::size_t first = blocks.begin(i);
    const std::size_t rows = blocks.size(i);
    leased_memory<std::uint8_t> memory(rows * lhs.columns);
    quantized_rows block;
    block.q = memory.data();
    if (quantize_all(first, rows, block)) {
      multiply_part(left_of(block), product_part{first, rows, 0, columns});
    }
  });
  raise_refused();
}

}  // namespace detail

/// Multiplies a real M x K matrix by packed K x N weights, with a left side that is quantized to
/// unsigned bytes on the way. For packed_weights:
///
///     p[i]     = params_from_range(range of row i, or of all rows; lhs_scheme)
///     q[i,k]   = quantize(lhs[i,k], p[i])
///     acc      = weight_bias[j] + sum_k (q[i,k] - p[i].zero_point) * (b[k,j] - zero_point[j])
///     out[i,j] = clamp(fma(float(acc), p[i].scale * scale[j], bias[j]) + residual[i,j],
///                      lower, upper)
///
/// with the exact integer sum acc of gemm(). For packed_int4_weights, q is multiplied as gemm()
/// with 4-bit weights does it. A range is that of the values that are not NaN; it always covers 0.
/// NaN becomes the zero point. The bits are the same on every target and for every split into
/// threads.
///
/// lhs has dense rows at any row stride or dense columns at any column stride; out has dense rows;
/// they must not overlap. Throws what gemm() throws, and invalid_argument for an infinity in lhs, a
/// grid outside 0..255, and a grid of fewer than two levels (symmetric: three). With per_row, other
/// rows may have been written when an infinity is found, and the error is that of the first row
/// with one; the calls of `parallel` do not throw for it. Thread-safe.
///
/// Blocks of rows are quantized just before they are multiplied, so that no quantized copy of a
/// large left side is stored. Besides what gemm() uses, the call allocates O(M) bytes unless
/// per_row, and each thread with tasks keeps up to 256 rows of K bytes, and 48 rows of K floats if
/// lhs is column-major or not of floats.
template <linear_input F, linear_weights W>
void dynamic_linear(matrix_view<const F> lhs, const W& weights, matrix_view<float> out,
                    const dynamic_linear_options& options = {}, const parallel_for& parallel = {}) {
  detail::require_product(lhs, weights.depth(), weights.columns(), out);
  const epilogue_options epilogue = detail::quantized_epilogue(lhs, options, parallel);
  detail::require_rows<float, std::uint8_t>(lhs.rows, weights.columns(), epilogue);
  const typename detail::product_with<float, W>::type product(std::type_identity<std::uint8_t>{},
                                                              weights, epilogue);
  const detail::product_output<float> to(out, epilogue);
  detail::for_quantized_parts(lhs, out.columns, product, epilogue, options, parallel,
                              [&](const detail::left_part& left, const detail::product_part& part) {
                                product.multiply(left, part, to);
                              });
}

/// Accepts a left side that is a view of mutable elements; it is only read. The product is that of
/// dynamic_linear() with a view of const elements.
template <linear_input F, linear_weights W>
void dynamic_linear(matrix_view<F> lhs, const W& weights, matrix_view<float> out,
                    const dynamic_linear_options& options = {}, const parallel_for& parallel = {}) {
  dynamic_linear(matrix_view<const F>(lhs), weights, out, options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_DYNAMIC_LINEAR_HPP
