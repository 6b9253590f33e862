// SPDX-License-Identifier: BSD-3-Clause
// Products whose sums may leave 32 bits. Kernels add up a slice of K at a time, whose sums fit 32
// bits (packed_weights::slices); slices, zero points and biases are then added up in 64 bits:
//
//   sum = bias[j] + addend[i,j] + sum_slices(sum_k a[i,k] * b[k,j])
//         - b_zero_point[j] * sum_k a[i,k]
//         - a_zero_point[i] * (sum_k b[k,j] - K * b_zero_point[j])
//
// The stored value is the one that kernels store for sums that fit 32 bits (see
// kernels::integer_epilogue); each sum is rounded to float once.
#ifndef DETENT_PRODUCTS_WIDE_SUMS_HPP
#define DETENT_PRODUCTS_WIDE_SUMS_HPP

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <tuple>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/products/raw_products.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Whether a sum fits a signed 32-bit integer.
[[nodiscard]] constexpr bool fits_s32(std::int64_t sum) noexcept {
  return sum >= std::numeric_limits<std::int32_t>::min() &&
         sum <= std::numeric_limits<std::int32_t>::max();
}

/// Records the first sum, row by row, that a 32-bit output has no room for. Tasks only note it; the
/// error is raised when all have returned. So the error is the same for every split into threads,
/// and the caller's threads need not carry exceptions. note() is thread-safe.
class overflow_record {
 public:
  /// Notes a sum that does not fit.
  void note(std::size_t row, std::size_t column, std::int64_t sum) {
    const std::lock_guard lock(mutex_);
    if (!is_noted_ || std::tie(row, column) < std::tie(row_, column_)) {
      is_noted_ = true;
      row_ = row;
      column_ = column;
      sum_ = sum;
    }
  }
  /// Throws overflow if a sum was noted. Call it when no task runs any more. `row` and `column` are
  /// the words that the message uses for them.
  void raise_if_noted(const char* where, const char* row = "row",
                      const char* column = "column") const {
    require(!is_noted_, error_kind::overflow, where, ": the sum ", sum_, " of ", row, " ", row_,
            ", ", column, " ", column_, " does not fit 32 bits");
  }

 private:
  std::mutex mutex_;
  bool is_noted_ = false;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  std::int64_t sum_ = 0;
};

/// The record of an output, and the position of a part in it: sums are noted relative to the part.
struct part_overflow {
  overflow_record& record;
  std::size_t row, column;
};

/// An upper bound of the magnitudes in the matrix: at least 1, and at most twice the largest one if
/// that is not 0.
[[nodiscard]] inline std::int64_t magnitude_bound(matrix_view<const std::int32_t> m) noexcept {
  std::uint32_t bits = 0;  // the bits of all values, of -1 - value for negative ones
  for (std::size_t r = 0; r < m.rows; ++r) {
    const std::int32_t* row = m.data + static_cast<std::ptrdiff_t>(r) * m.row_stride;
    for (std::size_t c = 0; c < m.columns; ++c) {
      bits |= static_cast<std::uint32_t>(row[c] < 0 ? ~row[c] : row[c]);
    }
  }
  return std::int64_t{bits} + 1;
}

/// The value that an output of type T (not a 32-bit integer) stores for a sum. `row` and `column`
/// count from the first row and column that `e` describes.
template <class T>
[[nodiscard]] T stored_sum(std::int64_t sum, const kernels::integer_epilogue& e, std::size_t row,
                           std::size_t column) noexcept {
  if constexpr (real_output<T>) {
    const float multiplier =
        e.row_scale != nullptr ? e.row_scale[row] * e.multiplier[column] : e.multiplier[column];
    float real =
        std::fma(static_cast<float>(sum), multiplier, e.bias != nullptr ? e.bias[column] : 0.0F);
    if (e.residual != nullptr) {
      real += e.residual[row * e.residual_stride + column];
    }
    real = reference::clamp(real, e.lower, e.upper);
    if constexpr (std::same_as<T, float>) {
      return real;
    } else {
      return detent::round_to<T>(real);
    }
  } else {
    return static_cast<T>(
        reference::requantize(sum, e.multiplier[column], e.zero_point, {e.qmin, e.qmax}));
  }
}

/// Stores a sum, with its addend if there is one; a sum that a 32-bit output has no room for is
/// noted instead. `row` and `column` count from the beginning of the part.
template <class T>
void store_wide_sum(std::int64_t sum, const kernels::integer_epilogue& e, std::size_t row,
                    std::size_t column, const part_overflow& overflow, T& to) {
  if constexpr (std::same_as<T, std::int32_t>) {
    if (e.addend != nullptr) {
      sum += e.addend[row * e.addend_stride + column];
    }
    if (fits_s32(sum)) {
      to = static_cast<std::int32_t>(sum);
    } else {
      overflow.record.note(overflow.row + row, overflow.column + column, sum);
    }
  } else {
    to = stored_sum<T>(sum, e, row, column);
  }
}

/// A product by weights whose sums are computed in 64 bits.
class wide_product {
 public:
  /// `lhs_zero_point` is the zero point of all rows of the left side, in the values that the
  /// kernels multiply; zero points of single rows are subtracted in addition.
  wide_product(const kernels::integer_product_kernels& products, const packed_weights& weights,
               std::int32_t lhs_zero_point)
      : kernels_(products),
        weights_(weights),
        lhs_zero_point_(lhs_zero_point),
        zeros_(round_up((std::min)(weights.columns(), block_elements), kernels::panel_columns)),
        distance_sums_(weights.columns()) {
    const auto depth = static_cast<std::int64_t>(weights.depth());
    for (std::size_t j = 0; j < distance_sums_.size(); ++j) {
      const std::int64_t zero_point = weights.zero_points()[j];
      if (weights.certificate().fits_s32()) {
        // The certificate bounds this sum, too: it fits 32 bits, so that its value modulo 2^32
        // determines it, whatever K is.
        const auto modulo =
            static_cast<std::uint32_t>(weights.column_sums()[j]) -
            static_cast<std::uint32_t>(depth) * static_cast<std::uint32_t>(zero_point);
        distance_sums_[j] = static_cast<std::int32_t>(modulo);
        continue;
      }
      std::int64_t sum = 0;
      for (const packed_weights& slice : weights.slices()) {
        sum += slice.column_sums()[j];
      }
      distance_sums_[j] = sum - depth * zero_point;
    }
  }

  /// Computes a part of the output with up to largest_rows_per_call rows. Reads from `g`: a, lda,
  /// lhs_signed, m, n, caches, c, ldc, and the epilogue, which describes the part, except its terms
  /// of integer sums (column_offset, row_sum, rhs_zero_point, column_sum); k and b are ignored. The
  /// g.n columns are those of the weights from `first_column` on. Sums that a 32-bit output has no
  /// room for are noted and not stored.
  template <class T>
  void multiply(const kernels::gemm_u8s8_args& g, std::size_t first_column,
                const part_overflow& overflow) const {
    const std::size_t together =
        (std::max)(block_elements / (std::max)(g.m, std::size_t{1}) / kernels::strip_columns,
                   std::size_t{1}) *
        kernels::strip_columns;
    std::int64_t row_sums[kernels::largest_rows_per_call] = {};
    if (weights_.has_zero_points()) {
      add_row_sums(g, row_sums);
    }
    for (std::size_t j = 0; j < g.n; j += together) {
      const std::size_t columns = (std::min)(together, g.n - j);
      std::int64_t* sums = block_memory<std::int64_t>(g.m * columns);
      add_slices(g, first_column + j, columns, sums);
      for (std::size_t i = 0; i < g.m; ++i) {
        const std::int64_t row_zero_point =
            lhs_zero_point_ +
            (g.epilogue.row_zero_point != nullptr ? g.epilogue.row_zero_point[i] : 0);
        T* to = static_cast<T*>(g.c) + i * g.ldc + j;
        for (std::size_t c = 0; c < columns; ++c) {
          const std::size_t column = first_column + j + c;
          const std::int64_t sum = sums[i * columns + c] + weights_.bias()[column] -
                                   row_sums[i] * weights_.zero_points()[column] -
                                   row_zero_point * distance_sums_[column];
          store_wide_sum(sum, g.epilogue, i, j + c, overflow, to[c]);
        }
      }
    }
  }

 private:
  /// Number of sums that are computed at a time: they stay in the second-level cache.
  static constexpr std::size_t block_elements = std::size_t{1} << 13;

  /// Calls f(slice, arguments) for each slice of the weights, where the arguments describe the left
  /// side of the slice.
  template <class F>
  void for_slices(const kernels::gemm_u8s8_args& g, const F& f) const {
    kernels::gemm_u8s8_args part;
    part.a = g.a;
    part.lda = g.lda;
    part.lhs_signed = g.lhs_signed;
    part.m = g.m;
    part.caches = g.caches;
    for (const packed_weights& slice : weights_.slices()) {
      part.k = slice.depth();
      f(slice, part);
      part.a += part.k;
    }
  }

  /// Adds the sum of each left row to row_sums, in 64 bits.
  void add_row_sums(const kernels::gemm_u8s8_args& g, std::int64_t* row_sums) const {
    for_slices(g, [&](const packed_weights& /*slice*/, const kernels::gemm_u8s8_args& part) {
      std::int32_t sums[kernels::largest_rows_per_call];
      sum_rows(kernels_, part, sums);
      for (std::size_t i = 0; i < part.m; ++i) {
        row_sums[i] += sums[i];
      }
    });
  }

  /// Sets sums[i * columns + c] to the raw product of row i and column `column` + c, in 64 bits.
  void add_slices(const kernels::gemm_u8s8_args& g, std::size_t column, std::size_t columns,
                  std::int64_t* sums) const {
    const std::size_t size = g.m * columns;
    std::int32_t* products = block_memory<std::int32_t>(size);
    std::fill_n(sums, size, std::int64_t{0});
    for_slices(g, [&](const packed_weights& slice, kernels::gemm_u8s8_args part) {
      part.b = panels_from(packed_access::panels(slice, kernels_.adds_pairs), part.k, column);
      part.c = products;
      part.ldc = columns;
      part.n = columns;
      part.epilogue.output = kernels::integer_output::s32;
      part.epilogue.column_offset = zeros_.data();
      run_gemm(kernels_, part);
      for (std::size_t i = 0; i < size; ++i) {
        sums[i] += products[i];
      }
    });
  }

  const kernels::integer_product_kernels& kernels_;
  const packed_weights& weights_;
  std::int32_t lhs_zero_point_;
  std::vector<std::int32_t> zeros_;          // the column offsets of raw products
  std::vector<std::int64_t> distance_sums_;  // sum_k (b[k,j] - zero_point[j]) of each column
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_PRODUCTS_WIDE_SUMS_HPP
