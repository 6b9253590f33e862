// SPDX-License-Identifier: BSD-3-Clause
// Matrix products with packed weights: 8-bit integers, exact on every input and target, and floats.
#ifndef DETENT_GEMM_HPP
#define DETENT_GEMM_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <detent/aligned.hpp>
#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// What integer convolutions write; gemm() writes bfloat16, too.
template <class T>
concept integer_convolution_output =
    std::same_as<T, std::int32_t> || std::same_as<T, float> || quantized_byte<T>;
template <class T>
concept integer_gemm_output = integer_convolution_output<T> || std::same_as<T, bfloat16>;

namespace detail {

/// Rows in one unit of parallel work, where no kernel says how many it wants: enough to read the
/// weights for, few enough to share out.
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

inline void sum_rows(const kernels::kernel_table& table, const kernels::gemm_u8s8_args& g,
                     std::int32_t* sums) noexcept {
  for (std::size_t i = 0; i < g.m; ++i) {
    const std::uint8_t* row = g.a + i * g.lda;
    sums[i] = g.lhs_signed ? table.sum_s8(reinterpret_cast<const std::int8_t*>(row), g.k)
                           : table.sum_u8(row, g.k);
  }
}

/// Calls body(first row, rows) for blocks of `block` rows.
template <class Body>
void for_row_blocks(std::size_t rows, std::size_t block, const parallel_for& parallel,
                    const Body& body) {
  if (rows == 0) {
    return;
  }
  run_parallel(parallel, (rows + block - 1) / block, [&](std::size_t i) {
    const std::size_t first = i * block;
    body(first, (std::min)(block, rows - first));
  });
}

/// How a product is shared out: rows first, since whoever has some of the columns has to read and
/// prepare the rows again.
struct product_split {
  std::size_t rows, columns;  // of a task

  product_split(std::size_t m, std::size_t n, std::size_t k, std::size_t rows_per_call,
                bool is_parallel) noexcept
      : rows(rows_per_call), columns(n) {
    constexpr std::size_t wanted = 16;                          // tasks
    constexpr std::size_t worth_a_task = std::size_t{1} << 20;  // products
    constexpr std::size_t fewest_rows = 64;
    if (!is_parallel) {
      return;
    }
    while (rows > fewest_rows && (m + rows - 1) / rows < wanted) {
      rows /= 2;
    }
    const std::size_t row_tasks = (m + rows - 1) / rows;
    const std::size_t products = (std::min)(m, rows) * k;
    const std::size_t column_tasks =
        (std::min)(wanted / (std::max)(row_tasks, std::size_t{1}), n * products / worth_a_task);
    if (column_tasks > 1) {
      columns = round_up((n + column_tasks - 1) / column_tasks, kernels::strip_columns);
    }
  }
};

/// What one task multiplies.
struct product_part {
  std::size_t first, rows;
  std::size_t column, columns;
};

/// The parts of an m x n product.
class product_parts {
 public:
  product_parts(std::size_t m, std::size_t n, const product_split& split) noexcept
      : m_(m),
        n_(n),
        split_(split),
        columns_(n == 0 ? 1 : (n + split.columns - 1) / split.columns) {}

  [[nodiscard]] std::size_t size() const noexcept {
    return (m_ + split_.rows - 1) / split_.rows * columns_;
  }
  [[nodiscard]] product_part operator[](std::size_t i) const noexcept {
    const std::size_t first = i / columns_ * split_.rows;
    const std::size_t column = i % columns_ * split_.columns;
    return {first, (std::min)(split_.rows, m_ - first), column,
            (std::min)(split_.columns, n_ - column)};
  }

 private:
  std::size_t m_, n_;
  product_split split_;
  std::size_t columns_;
};

/// Signed bytes to unsigned ones that are 128 more.
inline void shift_to_unsigned(const std::int8_t* from, std::size_t n, std::uint8_t* to) noexcept {
  constexpr std::size_t step = 32;
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    std::uint64_t words[step / sizeof(std::uint64_t)];
    std::memcpy(words, from + i, step);
    for (std::uint64_t& word : words) {
      word ^= 0x8080808080808080U;
    }
    std::memcpy(to + i, words, step);
  }
  for (; i < n; ++i) {
    to[i] = static_cast<std::uint8_t>(from[i] + 128);
  }
}

/// The per-row arguments of an epilogue.
template <class T, class A>
void require_rows(std::size_t rows, std::size_t columns, const epilogue_options& o) {
  constexpr const char* where = "gemm";
  constexpr bool to_float = real_output<T>;
  require(o.lhs_scales.empty() || o.lhs_scales.size() == rows, error_kind::shape_mismatch, where,
          ": ", o.lhs_scales.size(), " scales for ", rows, " rows");
  require(o.lhs_zero_points.empty() || o.lhs_zero_points.size() == rows, error_kind::shape_mismatch,
          where, ": ", o.lhs_zero_points.size(), " zero points for ", rows, " rows");
  require(to_float || o.lhs_scales.empty(), error_kind::unsupported, where,
          ": scales of rows are for products to float");
  require(to_float || (o.bias.empty() && o.residual.data == nullptr), error_kind::unsupported,
          where, ": real biases and residuals are for products to float");
  require(o.bias.empty() || o.bias.size() == columns, error_kind::shape_mismatch, where, ": ",
          o.bias.size(), " biases for ", columns, " columns");
  require(o.residual.data == nullptr || (o.residual.rows == rows && o.residual.columns == columns),
          error_kind::shape_mismatch, where, ": the residual is ", o.residual.rows, " x ",
          o.residual.columns, ", not ", rows, " x ", columns);
  require(o.residual.data == nullptr || o.residual.column_stride == 1 || columns <= 1,
          error_kind::unsupported, where, ": rows must be dense (the residual's column stride is ",
          o.residual.column_stride, ")");
  require(o.residual.row_stride >= 0, error_kind::unsupported, where,
          ": the residual's row stride is ", o.residual.row_stride);
  for (const float scale : o.lhs_scales) {
    require_scale(scale, where);
  }
  for (const std::int32_t zero_point : o.lhs_zero_points) {
    require_zero_point(zero_point, full_grid<A>, where);
  }
}

/// Calls the kernel of the table with the memory that it wants.
inline void run_gemm(const kernels::kernel_table& table, kernels::gemm_u8s8_args& g) {
  const std::size_t size = table.gemm_workspace(g.k, g.segments);
  g.workspace = size == 0 ? nullptr : block_memory<std::byte>(size);
  table.gemm_u8s8(g);
}

/// What all blocks of a product have in common.
template <class T>
class integer_product {
 public:
  /// `A` is the type that the options speak of.
  template <class A>
  integer_product(std::type_identity<A> /*lhs*/, std::size_t rows, const packed_weights& weights,
                  matrix_view<T> out, const epilogue_options& options)
      : table_(active_table()), weights_(weights), out_(out), residual_(options.residual) {
    require_rows<T, A>(rows, weights.columns(), options);
    lhs_signed_ = std::same_as<A, std::int8_t> && table_.multiplies_signed;
    terms_.template prepare<T, A>(weights, options, "gemm", lhs_signed_ ? 0 : lhs_shift<A>);
    panels_ = weights.panels(table_);
  }

  /// Whether multiply() reads the bytes of a signed left side, instead of unsigned ones that are
  /// 128 more.
  [[nodiscard]] bool lhs_signed() const noexcept { return lhs_signed_; }

  /// The tasks of a product with `rows` rows.
  [[nodiscard]] product_split split(std::size_t rows, const parallel_for& parallel) const noexcept {
    return {rows, weights_.columns(), weights_.depth(), table_.rows_per_call, bool{parallel}};
  }

  /// The rows of a part, from a's bytes, times its columns (from a multiple of strip_columns on).
  /// Zero points and scales are those of these rows; null stands for what the options give to all
  /// rows.
  void multiply(const std::uint8_t* a, std::size_t lda, const product_part& part,
                const std::int32_t* zero_points, const float* scales) const {
    const auto [first, rows, column, columns] = part;
    std::int32_t row_sums[kernels::largest_rows_per_call];
    kernels::gemm_u8s8_args g;
    g.a = a;
    g.lhs_signed = lhs_signed_;
    g.lda = lda;
    g.b = panels_from(column);
    g.ldc = static_cast<std::size_t>(out_.row_stride);
    g.c = out_.data + first * g.ldc + column;
    g.m = rows;
    g.n = columns;
    g.k = weights_.depth();
    if (terms_.needs_row_sums()) {
      sum_rows(table_, g, row_sums);
    }
    g.epilogue = terms_.epilogue(row_sums, column);
    g.epilogue.row_zero_point = zero_points;
    g.epilogue.row_scale = scales;
    if (residual_.data != nullptr) {
      g.epilogue.residual =
          residual_.data + static_cast<std::ptrdiff_t>(first) * residual_.row_stride + column;
      g.epilogue.residual_stride = static_cast<std::size_t>(residual_.row_stride);
    }
    run_gemm(table_, g);
  }

 private:
  [[nodiscard]] kernels::packed_panels panels_from(std::size_t column) const noexcept {
    kernels::packed_panels p = panels_;
    const std::size_t panel = column / kernels::panel_columns;
    const std::size_t depth = round_up(weights_.depth(), kernels::group_depth);
    p.data += column * depth;
    if (p.paired != nullptr) {
      const std::size_t padded = round_up(weights_.depth(), kernels::block_depth);
      p.paired += column * padded;
      p.order += column / kernels::strip_columns * padded;
      p.first_correction += panel;
    }
    return p;
  }

  const kernels::kernel_table& table_;
  const packed_weights& weights_;
  matrix_view<T> out_;
  matrix_view<const float> residual_;
  column_terms terms_;
  kernels::packed_panels panels_;
  bool lhs_signed_ = false;
};

/// The class that multiplies by weights of a type, to outputs of type T.
template <class T, class Weights>
struct product_with;
template <class T>
struct product_with<T, packed_weights> {
  using type = integer_product<T>;
};

/// A product that was checked and prepared, as tasks that threads may run in any order.
template <class A, class Weights, class T>
class product_tasks {
 public:
  product_tasks(matrix_view<const A> lhs, const Weights& weights, matrix_view<T> out,
                const epilogue_options& options, const parallel_for& parallel)
      : lhs_((require_product(lhs, weights.depth(), weights.columns(), out), lhs)),
        options_(options),
        product_(std::type_identity<A>{}, lhs.rows, weights, out, options),
        parts_(lhs.rows, out.columns, product_.split(lhs.rows, parallel)) {}

  [[nodiscard]] std::size_t size() const noexcept { return parts_.size(); }

  void run(std::size_t task) const {
    const product_part part = parts_[task];
    const auto lda = static_cast<std::size_t>(lhs_.row_stride);
    const std::size_t depth = lhs_.columns;
    const std::int32_t* zero_points =
        options_.lhs_zero_points.empty() ? nullptr : options_.lhs_zero_points.data() + part.first;
    const float* scales =
        options_.lhs_scales.empty() ? nullptr : options_.lhs_scales.data() + part.first;
    const A* a = lhs_.data + part.first * lda;
    if (std::same_as<A, std::uint8_t> || product_.lhs_signed()) {
      product_.multiply(reinterpret_cast<const std::uint8_t*>(a), lda, part, zero_points, scales);
      return;
    }
    std::uint8_t* shifted = block_memory<std::uint8_t>(part.rows * depth);
    std::int32_t shifted_zero_points[kernels::largest_rows_per_call];
    for (std::size_t i = 0; i < part.rows; ++i) {
      shift_to_unsigned(reinterpret_cast<const std::int8_t*>(a + i * lda), depth,
                        shifted + i * depth);
      if (zero_points != nullptr) {
        shifted_zero_points[i] = zero_points[i] - lhs_shift<A>;
      }
    }
    product_.multiply(shifted, depth, part, zero_points != nullptr ? shifted_zero_points : nullptr,
                      scales);
  }

 private:
  matrix_view<const A> lhs_;
  epilogue_options options_;
  typename product_with<T, Weights>::type product_;
  product_parts parts_;
};

template <class A, class Weights, class T>
void multiply(matrix_view<const A> lhs, const Weights& weights, matrix_view<T> out,
              const epilogue_options& options, const parallel_for& parallel) {
  const product_tasks<A, Weights, T> tasks(lhs, weights, out, options, parallel);
  run_parallel(parallel, tasks.size(), [&](std::size_t i) { tasks.run(i); });
}

}  // namespace detail

/// out = epilogue(lhs * weights); see epilogue_options for the arithmetic of each output type.
/// lhs is M x K, out is M x N; both with dense rows at any row stride. They do not overlap.
/// Exact: throws overflow if the weights' certificate does not exclude sums beyond 32 bits.
/// Throws shape_mismatch, invalid_argument, unsupported. Thread-safe. Allocates O(N); for signed
/// left sides each thread keeps 48 rows of K bytes; on target amx_int8, for any, some 40 rows
/// and up to 100 KB.
template <integer_gemm_output T>
void gemm(matrix_view<const std::uint8_t> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(lhs, weights, out, options, parallel);
}
template <integer_gemm_output T>
void gemm(matrix_view<const std::int8_t> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(lhs, weights, out, options, parallel);
}

/// Reads through a mutable view of bytes as through a const one.
template <quantized_byte A, integer_gemm_output T>
void gemm(matrix_view<A> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(matrix_view<const A>(lhs), weights, out, options, parallel);
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
  const std::size_t block = parallel ? detail::rows_per_task : lhs.rows;
  detail::for_row_blocks(lhs.rows, block, parallel, [&](std::size_t first, std::size_t rows) {
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
