// SPDX-License-Identifier: BSD-3-Clause
// Epilogues of the caller's own: a functor that products apply to each block of their results while
// it is in a cache, before the next block is computed. fused() marks such a functor;
// fused_gemm.hpp, fused_convolution.hpp and fused_dynamic_linear.hpp have the products that take
// it. The functor gets a product_block and may do anything with it: change the values, store them
// as bytes, write a second output, reduce them. for_each_batch() and transform() give it the values
// as registers:
//
//   const auto f = detent::fused([&](const detent::product_block<float>& block) {
//     detent::transform([](auto x) { return x * detent::simd::max(x, decltype(x)(0.0F)); }, block);
//     detent::quantize_block(block, out, params);
//   });
//   detent::gemm(lhs, weights, f, {.lhs_scale = scale, .lhs_zero_point = zero_point});
#ifndef DETENT_FUSED_EPILOGUE_HPP
#define DETENT_FUSED_EPILOGUE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include <detent/error.hpp>
#include <detent/kernels/elementwise.hpp>
#include <detent/quantize.hpp>
#include <detent/simd.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Some neighbouring rows and columns of the results of a product, which are not stored anywhere
/// else: T is float or std::int32_t. The values are valid until the functor that got the block
/// returns.
template <class T>
class product_block {
 public:
  /// A block at `values`, which has `rows` rows that are `stride` elements apart. `row` and
  /// `column` say where in the whole product it begins.
  product_block(std::size_t row, std::size_t column, std::size_t rows, std::size_t columns,
                T* values, std::size_t stride) noexcept
      : row_(row),
        column_(column),
        rows_(rows),
        columns_(columns),
        values_(values),
        stride_(stride) {}

  /// The number of the block's first row in the whole product.
  [[nodiscard]] std::size_t row() const noexcept { return row_; }
  /// The number of the block's first column in the whole product.
  [[nodiscard]] std::size_t column() const noexcept { return column_; }
  /// Number of rows.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  /// Number of columns.
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  /// The values of row i of the block, from 0 on. They may be changed.
  [[nodiscard]] std::span<T> operator[](std::size_t i) const noexcept {
    return {values_ + i * stride_, columns_};
  }
  /// Elements from one row to the next, at least columns().
  [[nodiscard]] std::size_t stride() const noexcept { return stride_; }
  /// The values as a view of rows() x columns(). They may be changed.
  [[nodiscard]] matrix_view<T> values() const noexcept {
    return {values_, rows_, columns_, static_cast<std::ptrdiff_t>(stride_)};
  }
  /// The part of a matrix of the size of the whole product that belongs to this block.
  template <class U>
  [[nodiscard]] matrix_view<U> part_of(const matrix_view<U>& whole) const noexcept {
    return {&whole(row_, column_), rows_, columns_, whole.row_stride, whole.column_stride};
  }

 private:
  std::size_t row_, column_, rows_, columns_;
  T* values_;
  std::size_t stride_;
};

/// A functor that a product applies to each block of its results; see fused() and fused_sums().
template <class F, class T>
struct fused_epilogue {
  F function;  ///< Called as function(const product_block<T>&), as const.
};

/// Marks `f` as the epilogue of a product with real results: f(const product_block<float>& block).
/// The values of a block are, bit for bit, those that the product would write to an output of
/// floats, so that they do not depend on how the product is divided into blocks.
///
/// f is called once for every block, and each element of the product belongs to one block. Blocks
/// come in any order and have any size. With a parallel_for, calls are concurrent, always for
/// different blocks: what f writes to must belong to the block, or be guarded. Reductions over rows
/// or columns merge the parts of several blocks; use operations whose order does not matter
/// (minimum, maximum, integer sums) where results should be the same for all divisions. f must not
/// throw if the parallel_for cannot carry exceptions; it may call other functions of the library.
template <class F>
[[nodiscard]] fused_epilogue<F, float> fused(F f) {
  return {std::move(f)};
}
/// Marks `f` as the epilogue of a product with 32-bit integer results, the exact sums that the
/// product would write to an output of std::int32_t: f(const product_block<std::int32_t>& block).
/// Calls are made as for fused().
template <class F>
[[nodiscard]] fused_epilogue<F, std::int32_t> fused_sums(F f) {
  return {std::move(f)};
}

/// Where a register of values lies.
struct batch_position {
  std::size_t row;     ///< The row in the whole product.
  std::size_t column;  ///< The column of the first lane in the whole product.
  std::size_t count;   ///< How many lanes, from the first on, hold results; the others hold 0.
};

/// Calls f(batch_position, registers...) for all values of one or more blocks of the same size, row
/// by row: each register has the values of one block. A register is an xsimd::batch<T, Arch>, by
/// default of the architecture that the flags of the translation unit allow; without xsimd it is a
/// single T. Every value goes through a register of the same kind, also in the last columns, where
/// it is filled up: so a functor without state gives the same bits in every division into blocks.
/// The position is that in the first block.
template <class Arch = simd::default_arch, class F, class T, class... Others>
void for_each_batch(const F& f, const product_block<T>& block,
                    const product_block<Others>&... others) {
  constexpr std::size_t size = simd::lane_count<T, Arch>;
  static_assert(((simd::lane_count<Others, Arch> == size) && ...));
  const std::size_t columns = block.columns();
  const std::size_t whole = columns / size * size;
  for (std::size_t i = 0; i < block.rows(); ++i) {
    const std::size_t row = block.row() + i;
    for (std::size_t j = 0; j < whole; j += size) {
      f(batch_position{row, block.column() + j, size}, simd::load<Arch>(block[i].data() + j),
        simd::load<Arch>(others[i].data() + j)...);
    }
    if (const std::size_t rest = columns - whole; rest != 0) {
      f(batch_position{row, block.column() + whole, rest},
        simd::load<Arch>(block[i].data() + whole, rest),
        simd::load<Arch>(others[i].data() + whole, rest)...);
    }
  }
}

/// Replaces each value of the first block by f(registers...), the values of all blocks at the same
/// place. Registers are those of for_each_batch(); f returns one of the type of the first block.
template <class Arch = simd::default_arch, class F, class T, class... Others>
void transform(const F& f, const product_block<T>& block, const product_block<Others>&... others) {
  for_each_batch<Arch>(
      [&](batch_position at, const auto&... registers) {
        T* const row = block[at.row - block.row()].data();
        simd::store<Arch>(f(registers...), row + (at.column - block.column()), at.count);
      },
      block, others...);
}

namespace detail {

/// Checks that a block lies within a matrix with dense rows.
template <class T, class U>
void require_block(const product_block<T>& block, const matrix_view<U>& whole, const char* where) {
  require(whole.data != nullptr, error_kind::invalid_argument, where, ": null data");
  require(
      block.row() + block.rows() <= whole.rows && block.column() + block.columns() <= whole.columns,
      error_kind::shape_mismatch, where, ": a block that ends at row ", block.row() + block.rows(),
      ", column ", block.column() + block.columns(), " of ", whole.rows, " x ", whole.columns);
  require(whole.column_stride == 1 || whole.columns <= 1, error_kind::unsupported, where,
          ": rows must be dense (the column stride is ", whole.column_stride, ")");
}

}  // namespace detail

/// Copies the values of a block to where they belong in a matrix of the size of the whole product,
/// whose rows are dense. Throws unsupported if they are not, shape_mismatch if the block is not
/// inside, and invalid_argument for null data. Thread-safe for different blocks.
template <class T>
void store_block(const product_block<T>& block, matrix_view<T> whole) {
  detail::require_block(block, whole, "store_block");
  const matrix_view<T> to = block.part_of(whole);
  for (std::size_t i = 0; i < block.rows(); ++i) {
    std::copy_n(block[i].data(), block.columns(), &to(i, 0));
  }
}

/// Quantizes the values of a block to where they belong in a matrix of the size of the whole
/// product, with the runtime-dispatched kernels:
///
///   whole(row, column) = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
///
/// bit for bit reference::quantize. NaN becomes the zero point; infinities saturate. The rows of
/// `whole` are dense. Throws unsupported if they are not; shape_mismatch if the block is not
/// inside; invalid_argument for null data, a scale that is not positive and finite, levels that are
/// not within Q, or a zero point that is not within levels. Thread-safe for different blocks.
template <quantized_byte Q>
void quantize_block(const product_block<float>& block, matrix_view<Q> whole,
                    const quant_params& params, grid levels = full_grid<Q>) {
  constexpr const char* where = "quantize_block";
  levels = detail::checked_grid<Q>(levels, where);
  detail::require_params<Q>(params, levels, where);
  detail::require_block(block, whole, where);
  kernels::elementwise_args a;
  a.rows = block.rows();
  a.columns = block.columns();
  a.in_stride = static_cast<std::ptrdiff_t>(block.stride());
  a.out_stride = whole.row_stride;
  a.scale = &params.scale;
  a.zero_point = &params.zero_point;
  a.qmin = levels.qmin;
  a.qmax = levels.qmax;
  detail::quantize_row<Q>::run(block.values().data, a, block.part_of(whole).data);
}

DETENT_NAMESPACE_END

#endif  // DETENT_FUSED_EPILOGUE_HPP
