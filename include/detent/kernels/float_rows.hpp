// SPDX-License-Identifier: BSD-3-Clause
// The family of float rows: sums, extremes, normalizations and Softmax of rows of floats, and sums,
// means and mixtures of rows side by side, for operators.
#ifndef DETENT_KERNELS_FLOAT_ROWS_HPP
#define DETENT_KERNELS_FLOAT_ROWS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The kernels of float rows. Each does with rows of n values what the function of
/// base/float_rows.hpp does, to the bit; which NaN it makes does not matter. Where there is a
/// number of rows, these stand one behind the other. x and y are the same memory or do not overlap;
/// y of mean_of_rows, means_of_windows and blend_rows overlaps none of the rows.
struct float_row_kernels {
  /// detail::sum_of_row() of each row.
  void (*sums)(const float* x, std::size_t rows, std::size_t n, double* sums) noexcept;
  /// detail::square_sum_of_row() of each row, with a centre of its own.
  void (*square_sums)(const float* x, std::size_t rows, std::size_t n, const double* centres,
                      double* sums) noexcept;
  /// detail::largest_of_row().
  float (*largest)(const float* x, std::size_t n) noexcept;
  /// detail::smallest_of_row().
  float (*smallest)(const float* x, std::size_t n) noexcept;
  /// detail::add_row().
  void (*add_row)(const float* x, std::size_t n, double* sums) noexcept;
  /// detail::mean_of_rows().
  void (*mean_of_rows)(const float* const* rows, std::size_t count, double divisor, std::size_t n,
                       float* y) noexcept;
  /// detail::means_of_windows() with a step of 1 or 2.
  void (*means_of_windows)(const float* const* taps, std::size_t count, std::size_t step,
                           std::size_t line_step, std::size_t lines, std::size_t n,
                           const double* factors, float* y) noexcept;
  /// detail::blend_rows().
  void (*blend_rows)(const float* x, const std::size_t* indices, const float* weights,
                     std::size_t count, std::size_t n, float* y) noexcept;
  /// detail::log_softmax_row() of each row.
  void (*log_softmax)(const float* x, std::size_t rows, std::size_t n, float* y) noexcept;
  /// detail::softmax_row() of each row.
  void (*softmax)(const float* x, std::size_t rows, std::size_t n, float* y) noexcept;
  /// detail::standardize_row().
  void (*standardize)(const float* x, std::size_t n, double centre, double factor,
                      const float* scale, const float* bias, float* y) noexcept;
  /// detail::map_row_by_line().
  void (*map_by_line)(const float* x, std::size_t n, double factor, double offset,
                      float* y) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const float_row_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_FLOAT_ROWS_HPP
