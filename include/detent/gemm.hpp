// SPDX-License-Identifier: BSD-3-Clause
// Matrix products with packed weights: 8-bit integers, exact on every input and target, and floats.
#ifndef DETENT_GEMM_HPP
#define DETENT_GEMM_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include <detent/base/aligned.hpp>
#include <detent/cache_sizes.hpp>
#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/kernels/definitions/float_products.hpp>
#include <detent/kernels/definitions/integer_products.hpp>
#include <detent/kernels/float_products.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/products/left_rows.hpp>
#include <detent/products/product_parts.hpp>
#include <detent/products/raw_products.hpp>
#include <detent/products/wide_sums.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// What integer products write, convolutions as well.
template <class T>
concept integer_gemm_output = std::same_as<T, std::int32_t> || std::same_as<T, float> ||
    std::same_as<T, bfloat16> || quantized_byte<T>;

namespace detail {

template <class T, class U>
void require_product(matrix_view<const T> lhs, std::size_t depth, std::size_t columns,
                     matrix_view<U> out) {
  require_matrix(lhs, "gemm");
  require_matrix(out, "gemm");
  require(lhs.columns == depth, error_kind::shape_mismatch, "gemm: K is ", lhs.columns,
          " in the left side, ", depth, " in the weights");
  require(out.rows == lhs.rows && out.columns == columns, error_kind::shape_mismatch,
          "gemm: the output is ", out.rows, " x ", out.columns, ", not ", lhs.rows, " x ", columns);
  const bool by_columns = is_column_major(lhs);
  require((lhs.column_stride == 1 || lhs.columns <= 1 || by_columns) &&
              (out.column_stride == 1 || columns <= 1),
          error_kind::unsupported, "gemm: rows must be dense (column strides are ",
          lhs.column_stride, " and ", out.column_stride, ")");
  require(!by_columns || lhs.column_stride >= static_cast<std::ptrdiff_t>(lhs.rows),
          error_kind::invalid_argument, "gemm: columns overlap (the column stride is ",
          lhs.column_stride, " for ", lhs.rows, " rows)");
  require(
      (lhs.row_stride >= static_cast<std::ptrdiff_t>(lhs.columns) || lhs.rows <= 1 || by_columns) &&
          (out.row_stride >= static_cast<std::ptrdiff_t>(columns) || out.rows <= 1),
      error_kind::invalid_argument, "gemm: rows overlap (row strides are ", lhs.row_stride, " and ",
      out.row_stride, ")");
}

/// What is added to each element of an output, if there is any.
template <class T>
void require_addend(matrix_view<const T> addend, const char* name, std::size_t rows,
                    std::size_t columns, const char* where) {
  if (addend.data == nullptr) {
    return;
  }
  require(addend.rows == rows && addend.columns == columns, error_kind::shape_mismatch, where,
          ": the ", name, " is ", addend.rows, " x ", addend.columns, ", not ", rows, " x ",
          columns);
  require(addend.column_stride == 1 || columns <= 1, error_kind::unsupported, where,
          ": rows must be dense (the ", name, "'s column stride is ", addend.column_stride, ")");
  require(addend.row_stride >= 0, error_kind::unsupported, where, ": the ", name,
          "'s row stride is ", addend.row_stride);
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
  require(std::same_as<T, std::int32_t> || o.addend.data == nullptr, error_kind::unsupported, where,
          ": integer addends are for products to 32-bit integers");
  require_addend(o.residual, "residual", rows, columns, where);
  require_addend(o.addend, "addend", rows, columns, where);
  for (const float scale : o.lhs_scales) {
    require_scale(scale, where);
  }
  for (const std::int32_t zero_point : o.lhs_zero_points) {
    require_zero_point(zero_point, full_grid<A>, where);
  }
}

/// What all blocks of a product have in common.
template <class T>
class integer_product {
 public:
  /// `A` is the type that the options speak of.
  template <class A>
  integer_product(std::type_identity<A> /*lhs*/, std::size_t rows, const packed_weights& weights,
                  matrix_view<T> out, const epilogue_options& options)
      : kernels_(active<kernels::integer_product_kernels>()),
        weights_(weights),
        out_(out),
        residual_(options.residual),
        addend_(options.addend),
        caches_(resolved_caches(options.caches)) {
    require_rows<T, A>(rows, weights.columns(), options);
    lhs_signed_ = std::same_as<A, std::int8_t>;
    shift_ = kernels_.multiplies_signed ? 0 : lhs_shift<A>;
    terms_.template prepare<T, A>(weights, options, "gemm", shift_);
    const bool is_narrow = weights.certificate().fits_s32();
    if (is_narrow) {
      panels_ = packed_access::panels(weights, kernels_.adds_pairs);
    }
    if (!is_narrow || addend_.data != nullptr) {
      wide_.emplace(kernels_, weights,
                    options.lhs_zero_points.empty() ? options.lhs_zero_point - shift_ : 0);
    }
  }

  /// Whether multiply() reads the bytes of a signed left side, instead of unsigned ones that are
  /// 128 more.
  static constexpr bool takes_signed = true;

  /// The tasks of a product with `rows` rows.
  [[nodiscard]] product_parts parts(std::size_t rows, const parallel_for& parallel) const noexcept {
    return {rows, weights_.columns(), weights_.depth(), kernels_.rows, bool{parallel}, caches_};
  }
  [[nodiscard]] even_blocks row_tasks(std::size_t rows,
                                      const parallel_for& parallel) const noexcept {
    return detail::row_tasks(rows, kernels_.rows, bool{parallel});
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
    g.ldc = static_cast<std::size_t>(out_.row_stride);
    g.c = out_.data + first * g.ldc + column;
    g.m = rows;
    g.n = columns;
    g.k = weights_.depth();
    g.following_columns = weights_.columns() - column - columns;
    g.caches = caches_;
    g.epilogue = terms_.epilogue(row_sums, column);
    std::int32_t shifted_zero_points[kernels::largest_rows_per_call];
    g.epilogue.row_zero_point = shifted(zero_points, rows, shift_, shifted_zero_points);
    g.epilogue.row_scale = scales;
    if (residual_.data != nullptr) {
      g.epilogue.residual =
          residual_.data + static_cast<std::ptrdiff_t>(first) * residual_.row_stride + column;
      g.epilogue.residual_stride = static_cast<std::size_t>(residual_.row_stride);
    }
    if (addend_.data != nullptr) {
      g.epilogue.addend =
          addend_.data + static_cast<std::ptrdiff_t>(first) * addend_.row_stride + column;
      g.epilogue.addend_stride = static_cast<std::size_t>(addend_.row_stride);
    }
    if (wide_ && !fits_s32_with(g.epilogue.addend, rows, columns)) {
      wide_->template multiply<T>(g, column, {overflow_, first, column});
      return;
    }
    if (terms_.needs_row_sums()) {
      sum_rows(kernels_, g, row_sums);
    }
    g.b = panels_from(panels_, weights_.depth(), column);
    run_gemm(kernels_, g);
  }

  /// To be called when all parts are done: throws overflow if a sum did not fit the output.
  void finish() const { overflow_.raise_if_noted("gemm"); }

 private:
  /// Whether no sum leaves 32 bits, on the way to them neither, when a part of the addend comes
  /// with it.
  [[nodiscard]] bool fits_s32_with(const std::int32_t* addend, std::size_t rows,
                                   std::size_t columns) const noexcept {
    std::int64_t bound = weights_.certificate().accumulator_bound;
    if (fits_s32(bound) && addend != nullptr) {
      bound += magnitude_bound(
          matrix_view<const std::int32_t>(addend, rows, columns, addend_.row_stride));
    }
    return fits_s32(bound);
  }

  const kernels::integer_product_kernels& kernels_;
  const packed_weights& weights_;
  matrix_view<T> out_;
  matrix_view<const float> residual_;
  matrix_view<const std::int32_t> addend_;
  cache_sizes caches_;
  column_terms terms_;
  kernels::packed_panels panels_;
  bool lhs_signed_ = false;
  std::int32_t shift_ = 0;            // of the left side's values to those that the kernel takes
  std::optional<wide_product> wide_;  // where sums may leave 32 bits
  mutable overflow_record overflow_;
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
  using product_type = typename product_with<T, Weights>::type;

 public:
  product_tasks(matrix_view<const A> lhs, const Weights& weights, matrix_view<T> out,
                const epilogue_options& options, const parallel_for& parallel)
      : lhs_((require_product(lhs, weights.depth(), weights.columns(), out), lhs)),
        options_(options),
        product_(std::type_identity<A>{}, lhs.rows, weights, out, options),
        parts_(product_.parts(lhs.rows, parallel)) {}

  [[nodiscard]] std::size_t size() const noexcept { return parts_.size(); }

  void run(std::size_t task) const {
    const product_part part = parts_[task];
    const std::size_t depth = lhs_.columns;
    const std::int32_t* zero_points =
        options_.lhs_zero_points.empty() ? nullptr : options_.lhs_zero_points.data() + part.first;
    const float* scales =
        options_.lhs_scales.empty() ? nullptr : options_.lhs_scales.data() + part.first;
    const bool shift = std::same_as<A, std::int8_t> && !product_type::takes_signed;
    if (!shift && !is_column_major(lhs_)) {
      const auto lda = static_cast<std::size_t>(lhs_.row_stride);
      product_.multiply(reinterpret_cast<const std::uint8_t*>(lhs_.data + part.first * lda), lda,
                        part, zero_points, scales);
      return;
    }
    std::uint8_t* copy = block_memory<std::uint8_t>(part.rows * depth);
    copy_rows(lhs_, part.first, part.rows, shift, copy);
    product_.multiply(copy, depth, part, zero_points, scales);
  }

  /// To be called when all tasks have run: throws what they found.
  void finish() const { product_.finish(); }

 private:
  matrix_view<const A> lhs_;
  epilogue_options options_;
  product_type product_;
  product_parts parts_;
};

template <class A, class Weights, class T>
void multiply(matrix_view<const A> lhs, const Weights& weights, matrix_view<T> out,
              const epilogue_options& options, const parallel_for& parallel) {
  const product_tasks<A, Weights, T> tasks(lhs, weights, out, options, parallel);
  run_parallel(parallel, tasks.size(), [&](std::size_t i) { tasks.run(i); });
  tasks.finish();
}

}  // namespace detail

/// out = epilogue(lhs * weights); see epilogue_options for the arithmetic of each output type.
/// lhs is M x K, with dense rows at any row stride or dense columns at any column stride (the
/// transposed() view of a row-major K x M matrix); out is M x N with dense rows. They do not
/// overlap.
///
/// Exact on every input. Where the weights' certificate does not exclude sums beyond 32 bits, K is
/// taken in slices that are added up in 64 bits, which costs a second copy of weights with K above
/// 65536 and up to 200 KB for each thread; sums are rounded to float once. Throws overflow, with
/// the first such sum, if an output of 32-bit integers has no room for one; elements that have no
/// room are then as they were, all others are written.
///
/// Throws shape_mismatch, invalid_argument, unsupported. Thread-safe. Threads keep memory from call
/// to call, so that nothing is allocated when the same sizes come again (but for sums beyond 32
/// bits): O(N); up to 256 rows of K bytes for column-major left sides, and as many with 128 bytes
/// besides for signed ones on targets with VNNI; on target amx_int8 some 40 rows and up to 100 KB.
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
/// threads. lhs may be column-major; each thread then keeps 48 rows of K floats.
inline void gemm(matrix_view<const float> lhs, const packed_floats& weights, matrix_view<float> out,
                 float lower = -std::numeric_limits<float>::infinity(),
                 float upper = std::numeric_limits<float>::infinity(),
                 const parallel_for& parallel = {}) {
  detail::require_product(lhs, weights.depth(), weights.columns(), out);
  const bool by_columns = detail::is_column_major(lhs);
  const auto ldc = static_cast<std::size_t>(out.row_stride);
  const auto kernel = detail::active<kernels::float_product_kernels>().gemm_f32;
  const std::size_t block = parallel || by_columns ? detail::rows_per_task : lhs.rows;
  detail::for_row_blocks(lhs.rows, block, parallel, [&](std::size_t first, std::size_t rows) {
    kernels::gemm_f32_args g;
    if (by_columns) {
      float* copy = detail::block_memory<float>(rows * lhs.columns);
      detail::convert_columns(lhs, first, rows, copy, [](float x) { return x; });
      g.a = copy;
      g.lda = lhs.columns;
    } else {
      g.lda = static_cast<std::size_t>(lhs.row_stride);
      g.a = lhs.data + first * g.lda;
    }
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
