// SPDX-License-Identifier: BSD-3-Clause
// gemm(): matrix products with packed weights. The integer form multiplies 8-bit left sides by
// 8-bit weights, exactly on every input and every target; the other form multiplies floats.
#ifndef DETENT_GEMM_HPP
#define DETENT_GEMM_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
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

/// The element types that integer products and integer convolutions can write: std::int32_t, float,
/// bfloat16, std::uint8_t and std::int8_t. epilogue_options gives the formula for each.
template <class T>
concept integer_gemm_output = std::same_as<T, std::int32_t> || std::same_as<T, float> ||
    std::same_as<T, bfloat16> || quantized_byte<T>;

namespace detail {

/// Checks the shape, strides and pointer of the left side of a product with weights of `depth`
/// rows.
template <class T>
void require_left_side(matrix_view<const T> lhs, std::size_t depth) {
  require_matrix(lhs, "gemm");
  require(lhs.columns == depth, error_kind::shape_mismatch, "gemm: K is ", lhs.columns,
          " in the left side, ", depth, " in the weights");
  const bool by_columns = is_column_major(lhs);
  require(lhs.column_stride == 1 || lhs.columns <= 1 || by_columns, error_kind::unsupported,
          "gemm: rows must be dense (the left side's column stride is ", lhs.column_stride, ")");
  require(!by_columns || lhs.column_stride >= static_cast<std::ptrdiff_t>(lhs.rows),
          error_kind::invalid_argument, "gemm: columns overlap (the column stride is ",
          lhs.column_stride, " for ", lhs.rows, " rows)");
  require(lhs.row_stride >= static_cast<std::ptrdiff_t>(lhs.columns) || lhs.rows <= 1 || by_columns,
          error_kind::invalid_argument, "gemm: rows overlap (the left side's row stride is ",
          lhs.row_stride, ")");
}

/// Checks the shape, strides and pointer of the output of a product.
template <class U>
void require_output(matrix_view<U> out, std::size_t rows, std::size_t columns) {
  require_matrix(out, "gemm");
  require(out.rows == rows && out.columns == columns, error_kind::shape_mismatch,
          "gemm: the output is ", out.rows, " x ", out.columns, ", not ", rows, " x ", columns);
  require(out.column_stride == 1 || columns <= 1, error_kind::unsupported,
          "gemm: rows must be dense (the output's column stride is ", out.column_stride, ")");
  require(out.row_stride >= static_cast<std::ptrdiff_t>(columns) || out.rows <= 1,
          error_kind::invalid_argument, "gemm: rows overlap (the output's row stride is ",
          out.row_stride, ")");
}

/// Checks the shapes, strides and pointers of a product of lhs with `depth` x `columns` weights.
template <class T, class U>
void require_product(matrix_view<const T> lhs, std::size_t depth, std::size_t columns,
                     matrix_view<U> out) {
  require_left_side(lhs, depth);
  require_output(out, lhs.rows, columns);
}

/// Checks the shape and strides of a matrix that is added to the output (a residual or an integer
/// addend); a null matrix is absent and passes. A row stride of 0 adds one row to all rows.
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

/// Checks those options of an epilogue whose sizes depend on the shape of the product: scales and
/// zero points of rows, biases, residual and addend. T is the output type, A that of the left side.
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
  require_data(o.lhs_scales, where, "scales of rows");
  require_data(o.lhs_zero_points, where, "zero points of rows");
  require_data(o.bias, where, "biases");
  require_addend(o.residual, "residual", rows, columns, where);
  require_addend(o.addend, "addend", rows, columns, where);
  for (std::size_t i = 0; i < o.lhs_scales.size(); ++i) {
    require_scale_of("left row", i, o.lhs_scales[i], where);
  }
  for (std::size_t i = 0; i < o.lhs_zero_points.size(); ++i) {
    require_zero_point_of("left row", i, o.lhs_zero_points[i], full_grid<A>, where);
  }
}

/// The output of one product with the matrices that are added to it, and the record of sums that it
/// has no room for.
template <class T>
class product_output {
 public:
  /// An output that nothing is added to.
  explicit product_output(matrix_view<T> out) noexcept : out_(out) {}
  product_output(matrix_view<T> out, const epilogue_options& options) noexcept
      : out_(out), residual_(options.residual), addend_(options.addend) {}

  /// The first element of a part.
  [[nodiscard]] T* data(const product_part& part) const noexcept { return at(out_, part); }
  /// Elements from row to row.
  [[nodiscard]] std::size_t stride() const noexcept {
    return static_cast<std::size_t>(out_.row_stride);
  }
  /// The residual's first element for a part, or null.
  [[nodiscard]] const float* residual(const product_part& part) const noexcept {
    return residual_.data == nullptr ? nullptr : at(residual_, part);
  }
  [[nodiscard]] std::size_t residual_stride() const noexcept {
    return static_cast<std::size_t>(residual_.row_stride);
  }
  /// The addend's first element for a part, or null.
  [[nodiscard]] const std::int32_t* addend(const product_part& part) const noexcept {
    return addend_.data == nullptr ? nullptr : at(addend_, part);
  }
  [[nodiscard]] std::size_t addend_stride() const noexcept {
    return static_cast<std::size_t>(addend_.row_stride);
  }

  [[nodiscard]] overflow_record& overflow() const noexcept { return overflow_; }
  /// Throws overflow if a sum did not fit the output. Call it when all parts are done.
  void finish() const { overflow_.raise_if_noted("gemm"); }

 private:
  template <class U>
  [[nodiscard]] static U* at(const matrix_view<U>& m, const product_part& part) noexcept {
    return m.data + static_cast<std::ptrdiff_t>(part.first) * m.row_stride + part.column;
  }

  matrix_view<T> out_;
  matrix_view<const float> residual_;
  matrix_view<const std::int32_t> addend_;
  mutable overflow_record overflow_;
};

/// Some rows of the left side of a product.
struct left_part {
  const std::uint8_t* a = nullptr;  // the first row
  std::size_t lda = 0;              // bytes from row to row
  // One value for each row; null means that the single value of the options serves all rows.
  const std::int32_t* zero_points = nullptr;
  const float* scales = nullptr;
  bool is_shifted = false;  // signed bytes that 128 has been added to

  /// The rows from number `row` on.
  [[nodiscard]] left_part from(std::size_t row) const noexcept {
    left_part p = *this;
    p.a += row * lda;
    p.zero_points = zero_points != nullptr ? zero_points + row : nullptr;
    p.scales = scales != nullptr ? scales + row : nullptr;
    return p;
  }
};

/// The checked and prepared state that all parts of one integer product share, and all products
/// with the same weights and options.
template <class T>
class integer_product {
 public:
  /// `A` is the left side's type, in which lhs_zero_point and lhs_zero_points are given.
  template <class A>
  integer_product(std::type_identity<A> /*lhs*/, const packed_weights& weights,
                  const epilogue_options& options, terms_memory memory = terms_memory::leased)
      : kernels_(active<kernels::integer_product_kernels>()),
        weights_(weights),
        caches_(resolved_caches(options.caches)) {
    lhs_signed_ = std::same_as<A, std::int8_t>;
    shift_ = kernels_.multiplies_signed ? 0 : lhs_shift<A>;
    terms_.template prepare<T, A>(weights, options, "gemm", shift_, memory);
    const bool is_narrow = weights.certificate().fits_s32();
    if (is_narrow) {
      panels_ = packed_access::panels(weights, kernels_.adds_pairs);
    }
    is_near_ =
        caches_.third_level == 0 ||
        weights.columns() * (std::max)(weights.depth(), std::size_t{1}) <= caches_.third_level / 2;
    if (!is_narrow || options.addend.data != nullptr) {
      wide_.emplace(kernels_, weights,
                    options.lhs_zero_points.empty() ? options.lhs_zero_point - shift_ : 0);
    }
  }

  /// multiply() reads the bytes of a signed left side as they are. (A class with `false` wants a
  /// copy of unsigned bytes, with 128 added to each value.)
  static constexpr bool takes_signed = true;
  /// Whether the kernels add 128 to signed bytes, each time they multiply them.
  [[nodiscard]] bool shifts_rows() const noexcept { return shift_ != 0; }

  /// The parts (rows and columns) that a product with `rows` rows is divided into.
  [[nodiscard]] product_parts parts(std::size_t rows, const parallel_for& parallel) const noexcept {
    return {rows, weights_.columns(), weights_.depth(), kernels_.rows, bool{parallel}, caches_};
  }
  /// Whether parts() is a single part with all rows and columns. It says so without any division,
  /// for products that take less than a microsecond.
  [[nodiscard]] bool is_one_part(std::size_t rows, const parallel_for& parallel) const noexcept {
    return rows != 0 && rows <= kernels_.rows.per_call && is_near_ && weights_.columns() != 0 &&
           stays_on_one_thread(rows, weights_.columns() * weights_.depth(), parallel);
  }
  /// Blocks of rows alone, for callers that prepare the rows of a block before they multiply them.
  [[nodiscard]] even_blocks row_tasks(std::size_t rows,
                                      const parallel_for& parallel) const noexcept {
    return detail::row_tasks(rows, weights_.columns() * weights_.depth(), kernels_.rows,
                             bool{parallel});
  }
  /// The kernels, those of the target that was active when the object was made.
  [[nodiscard]] const kernels::integer_product_kernels& target_kernels() const noexcept {
    return kernels_;
  }
  /// Rows of the largest tile of the kernels.
  [[nodiscard]] std::size_t tile_rows() const noexcept { return kernels_.rows.per_tile; }

  /// Multiplies the rows of `part`, which are those of `left`, by its columns and stores the
  /// results from `c` on, in rows that are `ldc` elements apart. `to` has the residual and the
  /// addend. The first column is a multiple of strip_columns.
  void multiply(const left_part& left, const product_part& part, const product_output<T>& to, T* c,
                std::size_t ldc) const {
    const auto [first, rows, column, columns] = part;
    std::int32_t row_sums[kernels::largest_rows_per_call];
    kernels::gemm_u8s8_args g;
    g.a = left.a;
    g.lhs_signed = lhs_signed_ && !left.is_shifted;
    g.lda = left.lda;
    g.c = c;
    g.ldc = ldc;
    g.m = rows;
    g.n = columns;
    g.k = weights_.depth();
    g.following_columns = weights_.columns() - column - columns;
    g.caches = caches_;
    g.epilogue = terms_.epilogue(row_sums, column);
    std::int32_t shifted_zero_points[kernels::largest_rows_per_call];
    g.epilogue.row_zero_point = shifted(left.zero_points, rows, shift_, shifted_zero_points);
    g.epilogue.row_scale = left.scales;
    g.epilogue.residual = to.residual(part);
    g.epilogue.residual_stride = to.residual_stride();
    g.epilogue.addend = to.addend(part);
    g.epilogue.addend_stride = to.addend_stride();
    if (wide_ && !fits_s32_with(g.epilogue, rows, columns)) {
      wide_->template multiply<T>(g, column, {to.overflow(), first, column});
      return;
    }
    if (terms_.needs_row_sums()) {
      sum_rows(kernels_, g, row_sums);
    }
    g.b = panels_from(panels_, weights_.depth(), column);
    run_gemm(kernels_, g);
  }
  /// Multiplies a part and stores it where it belongs in the output.
  void multiply(const left_part& left, const product_part& part,
                const product_output<T>& to) const {
    multiply(left, part, to, to.data(part), to.stride());
  }

 private:
  /// Whether all sums fit 32 bits, without an addend and with the given part of it: the bound of
  /// the certificate plus a bound of the addend's magnitudes covers the partial sums, too.
  [[nodiscard]] bool fits_s32_with(const kernels::integer_epilogue& e, std::size_t rows,
                                   std::size_t columns) const noexcept {
    std::int64_t bound = weights_.certificate().accumulator_bound;
    if (fits_s32(bound) && e.addend != nullptr) {
      bound += magnitude_bound(matrix_view<const std::int32_t>(
          e.addend, rows, columns, static_cast<std::ptrdiff_t>(e.addend_stride)));
    }
    return fits_s32(bound);
  }

  const kernels::integer_product_kernels& kernels_;
  const packed_weights& weights_;
  cache_sizes caches_;
  column_terms terms_;
  kernels::packed_panels panels_;
  bool lhs_signed_ = false;
  bool is_near_ = false;    // whether the weights fit half of the third-level cache
  std::int32_t shift_ = 0;  // subtracted from the left side's values before the kernel sees them
  std::optional<wide_product> wide_;  // set if sums may leave 32 bits, or may with the addend
};

/// Maps a class of weights to the class that multiplies by them and writes outputs of type T.
template <class T, class Weights>
struct product_with;
template <class T>
struct product_with<T, packed_weights> {
  using type = integer_product<T>;
};

/// Sets the zero points and scales of the rows of a part.
inline void set_row_options(left_part& left, const product_part& part,
                            const epilogue_options& options) noexcept {
  left.zero_points =
      options.lhs_zero_points.empty() ? nullptr : options.lhs_zero_points.data() + part.first;
  left.scales = options.lhs_scales.empty() ? nullptr : options.lhs_scales.data() + part.first;
}

/// The rows of `part` of a left side in the form that a product reads: the matrix itself, or a copy
/// in memory(bytes), which has 128 added to each value if `shifts`.
template <class A, class Memory>
[[nodiscard]] left_part left_rows_of(const matrix_view<const A>& lhs, const product_part& part,
                                     bool shifts, const epilogue_options& options,
                                     const Memory& memory) {
  left_part left;
  set_row_options(left, part, options);
  if (!shifts && !is_column_major(lhs)) {
    left.lda = static_cast<std::size_t>(lhs.row_stride);
    left.a = reinterpret_cast<const std::uint8_t*>(lhs.data + part.first * left.lda);
    return left;
  }
  std::uint8_t* copy = memory(part.rows * lhs.columns);
  copy_rows(lhs, part.first, part.rows, shifts, copy);
  left.a = copy;
  left.lda = lhs.columns;
  left.is_shifted = shifts;
  return left;
}

/// Multiplies the rows of `part` of a left side, after a copy if the product needs one.
template <class A, class Product, class T>
void multiply_part(const Product& product, const matrix_view<const A>& lhs,
                   const product_part& part, const epilogue_options& options,
                   const product_output<T>& to) {
  constexpr bool shifts = std::same_as<A, std::int8_t> && !Product::takes_signed;
  product.multiply(left_rows_of(lhs, part, shifts, options, &block_memory<std::uint8_t>), part, to);
}

/// Multiplies a whole left side and reports errors. Of the options, only those of rows are read.
template <class A, class Product, class T>
void run_product(const Product& product, const matrix_view<const A>& lhs, std::size_t columns,
                 const epilogue_options& options, const product_output<T>& to,
                 const parallel_for& parallel) {
  if (product.is_one_part(lhs.rows, parallel)) {
    multiply_part(product, lhs, {0, lhs.rows, 0, columns}, options, to);
  } else {
    const product_parts parts = product.parts(lhs.rows, parallel);
    run_parallel(parallel, parts.size(),
                 [&](std::size_t i) { multiply_part(product, lhs, parts[i], options, to); });
  }
  to.finish();
}

/// One checked and prepared product, divided into tasks that threads may run in any order.
template <class A, class Weights, class T>
class product_tasks {
  using product_type = typename product_with<T, Weights>::type;

 public:
  product_tasks(matrix_view<const A> lhs, const Weights& weights, matrix_view<T> out,
                const epilogue_options& options, const parallel_for& parallel)
      : lhs_((require_product(lhs, weights.depth(), weights.columns(), out), lhs)),
        options_((require_rows<T, A>(lhs.rows, weights.columns(), options), options)),
        product_(std::type_identity<A>{}, weights, options),
        out_(out, options),
        parts_(product_.parts(lhs.rows, parallel)) {}

  [[nodiscard]] std::size_t size() const noexcept { return parts_.size(); }

  void run(std::size_t task) const { multiply_part(product_, lhs_, parts_[task], options_, out_); }

  /// Throws the error that tasks noted (an overflow of the output). Call it when all have run.
  void finish() const { out_.finish(); }

 private:
  matrix_view<const A> lhs_;
  epilogue_options options_;
  product_type product_;
  product_output<T> out_;
  product_parts parts_;
};

/// The body of all integer gemm() functions.
template <class A, class Weights, class T>
void multiply(matrix_view<const A> lhs, const Weights& weights, matrix_view<T> out,
              const epilogue_options& options, const parallel_for& parallel) {
  require_product(lhs, weights.depth(), weights.columns(), out);
  require_rows<T, A>(lhs.rows, weights.columns(), options);
  const typename product_with<T, Weights>::type product(std::type_identity<A>{}, weights, options);
  run_product(product, lhs, weights.columns(), options, product_output<T>(out, options), parallel);
}

}  // namespace detail

/// Multiplies an unsigned 8-bit M x K matrix by packed 8-bit K x N weights, as
/// out = epilogue(lhs * weights). epilogue_options gives the formula for each type of output.
///
/// @code{.cpp}
/// #include <cstdint>
/// #include <vector>
///
/// #include <detent/gemm.hpp>
///
/// // Activations with scale 0.02 and zero point 128, M rows of K, to floats.
/// std::vector<float> layer(const std::vector<std::uint8_t>& a, std::size_t rows,
///                          const detent::packed_weights& weights) {
///   std::vector<float> out(rows * weights.columns());
///   detent::gemm(detent::matrix_view<const std::uint8_t>(a.data(), rows, weights.depth()),
///                weights, detent::matrix_view<float>(out.data(), rows, weights.columns()),
///                {.lhs_scale = 0.02F, .lhs_zero_point = 128});
///   return out;
/// }
/// @endcode
///
/// Layout: lhs has dense rows at any row stride of at least K, or dense columns at any column
/// stride of at least M (the transposed() view of a row-major K x M matrix). out is M x N and has
/// dense rows at any row stride of at least N. lhs and out must not overlap; a residual or an
/// addend may be out itself.
///
/// Exactness: the integer sums are exact on every input, and the results are the same bits on every
/// target and for every split into threads. If the weights' certificate does not exclude sums
/// beyond 32 bits, K is taken in slices whose sums are added up in 64 bits; each sum is then
/// rounded to float once.
///
/// Errors: shape_mismatch if K, N, the output or the options' arrays differ in size;
/// invalid_argument for null data, overlapping rows or columns, or a scale, zero point, grid or
/// multiplier out of its domain; unsupported for rows that are not dense, and for a bias, a
/// residual, an addend or scales of rows where the type of the output has none; other options that
/// an output does not have are not read. All of these are thrown before anything is written.
/// overflow is thrown if an output of 32-bit integers has no room for a sum (the message names the
/// first one, row by row); such elements keep their values, all others are written.
///
/// Thread-safe. The table lists the memory besides the arguments; K and N are those of the weights.
/// Kept memory is used again by later calls of its thread, so that a call whose sizes came before
/// allocates only what the table calls freed. packed_weights::prepare() makes what belongs to the
/// weights ahead of the first product; prepared_product also keeps what belongs to the options.
///
/// | condition | bytes | owner |
/// |---|---|---|
/// | always | up to 12 * N (N rounded up to 16) | calling thread, kept |
/// | lhs is column-major | up to 256 * K | each thread with tasks, kept |
/// | lhs is signed, target avx_vnni or avx512_vnni | up to 240 * (K + 127) | each thread, kept |
/// | target amx_int8 | about 33 * (K + 128), and sums of 4 or 8 KB | each thread, kept |
/// | target portable on x86-64, avx2 without Highway | up to 128 * (K + 3) | each thread, kept |
/// | target avx2 or avx512 (weight pairs) | at most K * N and a little more, once | the weights |
/// | sums may leave 32 bits, or there is an addend | up to 12 * N | the call, freed |
/// | sums may leave 32 bits | up to 200 KB | each thread with tasks, kept |
/// | sums may leave 32 bits and K is above 65536 | a copy of the weights, once | the weights |
template <integer_gemm_output T>
void gemm(matrix_view<const std::uint8_t> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(lhs, weights, out, options, parallel);
}
/// Multiplies a signed 8-bit M x K matrix by packed 8-bit K x N weights, as
/// out = epilogue(lhs * weights), with zero points of the left side in -128..127. Layout,
/// exactness, errors, thread safety and memory are those of gemm() with an unsigned left side.
template <integer_gemm_output T>
void gemm(matrix_view<const std::int8_t> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(lhs, weights, out, options, parallel);
}

/// Accepts a left side that is a view of mutable bytes (signed or unsigned); it is only read. The
/// product is that of gemm() with a view of const bytes.
template <quantized_byte A, integer_gemm_output T>
void gemm(matrix_view<A> lhs, const packed_weights& weights, matrix_view<T> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(matrix_view<const A>(lhs), weights, out, options, parallel);
}

/// Multiplies a float M x K matrix by packed float K x N weights, as
/// out = clamp((bias + lhs * weights) + residual, lower, upper).
///
/// The sum in parentheses is one chain of fused multiply-adds in the order of k that starts from
/// the bias (reference::dot). Then the residual is added, if there is one, and the result clamped
/// (reference::clamp: NaN passes through). The bits are the same on every target and for every
/// split into threads.
///
/// lhs has dense rows at any row stride or dense columns at any column stride, out has dense rows;
/// they must not overlap, but the residual may be `out` itself. Throws shape_mismatch,
/// invalid_argument (null data, overlapping rows or columns) and unsupported (rows that are not
/// dense). Thread-safe. If lhs is column-major, each thread with tasks keeps up to 48 rows of K
/// floats.
inline void gemm(matrix_view<const float> lhs, const packed_floats& weights, matrix_view<float> out,
                 const float_epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::require_product(lhs, weights.depth(), weights.columns(), out);
  detail::require_addend(options.residual, "residual", out.rows, out.columns, "gemm");
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
    if (options.residual.data != nullptr) {
      g.residual_stride = static_cast<std::size_t>(options.residual.row_stride);
      g.residual = options.residual.data + first * g.residual_stride;
    }
    g.c = out.data + first * ldc;
    g.ldc = ldc;
    g.m = rows;
    g.n = weights.columns();
    g.k = weights.depth();
    g.lower = options.lower;
    g.upper = options.upper;
    kernel(g);
  });
}

DETENT_NAMESPACE_END

#endif  // DETENT_GEMM_HPP
