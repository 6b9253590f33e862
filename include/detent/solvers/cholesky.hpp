// SPDX-License-Identifier: BSD-3-Clause
// The Cholesky factor of a matrix, with the same bits on every target and for any number of
// threads, which the factors of linear algebra libraries do not have.
#ifndef DETENT_SOLVERS_CHOLESKY_HPP
#define DETENT_SOLVERS_CHOLESKY_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/kernels/definitions/double_products.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Computes R with A = R^T R, R upper triangular, in place and row by row.
///
/// The matrix that is given is -A, of which only the upper triangle counts: then every step adds
/// products, as the kernels do. Halves are solved recursively, so that nearly all work is in
/// products of large blocks:
///
///     A11 = R11^T R11,   R12 = R11^-T A12,   A22 - R12^T R12 = R22^T R22
class cholesky {
 public:
  /// `negated` has n x n elements and outlives this object.
  cholesky(double* negated, std::size_t n, const parallel_for& parallel)
      : a_(negated), n_(n), parallel_(parallel) {}

  /// Replaces the upper triangle by R. Returns false, with the matrix in an unspecified state, if a
  /// pivot is not larger than its element of `least_pivots`: then A is not positive definite to
  /// working precision. What is below the diagonal is unspecified.
  [[nodiscard]] bool run(std::span<const double> least_pivots) {
    return factorize(0, n_, least_pivots);
  }

 private:
  /// Blocks of this size are solved row by row.
  static constexpr std::size_t leaf = 16;
  /// How many rows a task takes, and from how many multiplications on tasks are worth it.
  static constexpr std::size_t rows_per_task = 64;
  static constexpr std::size_t much_work = std::size_t{1} << 21;

  [[nodiscard]] double& at(std::size_t i, std::size_t j) const noexcept { return a_[i * n_ + j]; }

  bool factorize(std::size_t first, std::size_t last, std::span<const double> least_pivots) {
    if (last - first > leaf) {
      const std::size_t middle = first + (last - first) / 2;
      if (!factorize(first, middle, least_pivots)) {
        return false;
      }
      solve(first, middle, middle, last);
      const std::size_t size = last - middle;
      const bool is_much = size * size * (middle - first) > much_work;
      run_parallel(is_much ? parallel_ : parallel_for{}, (size + rows_per_task - 1) / rows_per_task,
                   [&](std::size_t task) {
                     // From the diagonal on.
                     const std::size_t row = middle + task * rows_per_task;
                     add_products(row, (std::min)(row + rows_per_task, last), row, last, first,
                                  middle);
                   });
      return factorize(middle, last, least_pivots);
    }
    for (std::size_t i = first; i < last; ++i) {
      const double pivot = -at(i, i);
      if (!(pivot > least_pivots[i])) {
        return false;
      }
      at(i, i) = std::sqrt(pivot);
      for (std::size_t j = i + 1; j < last; ++j) {
        at(i, j) = -at(i, j) / at(i, i);
      }
      for (std::size_t k = i + 1; k < last; ++k) {
        for (std::size_t j = k; j < last; ++j) {
          at(k, j) += rounded_product(at(i, k), at(i, j));
        }
      }
    }
    return true;
  }

  /// Replaces the block B of rows [first, last) and columns [left, right) by R11^-T B, where R11 is
  /// the triangle at [first, last).
  void solve(std::size_t first, std::size_t last, std::size_t left, std::size_t right) {
    if (last - first > leaf) {
      const std::size_t middle = first + (last - first) / 2;
      solve(first, middle, left, right);
      const std::size_t size = last - middle;
      const bool is_much = size * (right - left) * (middle - first) > much_work;
      run_parallel(is_much ? parallel_ : parallel_for{}, (size + rows_per_task - 1) / rows_per_task,
                   [&](std::size_t task) {
                     const std::size_t row = middle + task * rows_per_task;
                     add_products(row, (std::min)(row + rows_per_task, last), left, right, first,
                                  middle);
                   });
      solve(middle, last, left, right);
      return;
    }
    for (std::size_t i = first; i < last; ++i) {
      add_products(i, i + 1, left, right, first, i);
      for (std::size_t j = left; j < right; ++j) {
        at(i, j) = -at(i, j) / at(i, i);
      }
    }
  }

  /// Adds R_ki R_kj for k in [low, high) to each element (i, j) of a block.
  void add_products(std::size_t first_row, std::size_t last_row, std::size_t first_column,
                    std::size_t last_column, std::size_t low, std::size_t high) const noexcept {
    active<kernels::double_product_kernels>().add_products({.rows = last_row - first_row,
                                                            .columns = last_column - first_column,
                                                            .depth = high - low,
                                                            .a = &at(low, first_row),
                                                            .a_row_stride = 1,
                                                            .a_depth_stride = n_,
                                                            .b = &at(low, first_column),
                                                            .b_stride = n_,
                                                            .c = &at(first_row, first_column),
                                                            .c_stride = n_});
  }

  double* a_;
  std::size_t n_;
  const parallel_for& parallel_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_CHOLESKY_HPP
