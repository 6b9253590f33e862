// SPDX-License-Identifier: BSD-3-Clause
// Rows of floats in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_FLOAT_ROWS_HPP
#define DETENT_KERNELS_PORTABLE_FLOAT_ROWS_HPP

#include <cstddef>

#include <detent/base/float_rows.hpp>
#include <detent/kernels/float_rows.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

DETENT_DECL void sums(const float* x, std::size_t rows, std::size_t n, double* sums) noexcept {
  for (std::size_t row = 0; row < rows; ++row) {
    sums[row] = detail::sum_of_row(std::span(x + row * n, n));
  }
}
DETENT_DECL void square_sums(const float* x, std::size_t rows, std::size_t n, const double* centres,
                             double* sums) noexcept {
  for (std::size_t row = 0; row < rows; ++row) {
    sums[row] = detail::square_sum_of_row(std::span(x + row * n, n), centres[row]);
  }
}
DETENT_DECL float largest(const float* x, std::size_t n) noexcept {
  return detail::largest_of_row({x, n});
}
DETENT_DECL float smallest(const float* x, std::size_t n) noexcept {
  return detail::smallest_of_row({x, n});
}
DETENT_DECL void add_row(const float* x, std::size_t n, double* sums) noexcept {
  detail::add_row({x, n}, sums);
}
DETENT_DECL void mean_of_rows(const float* const* rows, std::size_t count, double divisor,
                              std::size_t n, float* y) noexcept {
  detail::mean_of_rows<float>({rows, count}, divisor, {y, n});
}
DETENT_DECL void means_of_windows(const float* const* taps, std::size_t count, std::size_t step,
                                  std::size_t line_step, std::size_t lines, std::size_t n,
                                  const double* factors, float* y) noexcept {
  detail::means_of_windows({taps, count}, step, line_step, lines, n, factors, y);
}
DETENT_DECL void blend_rows(const float* x, const std::size_t* indices, const float* weights,
                            std::size_t count, std::size_t n, float* y) noexcept {
  detail::blend_rows(x, {indices, count}, weights, {y, n});
}
DETENT_DECL void log_softmax(const float* x, std::size_t rows, std::size_t n, float* y) noexcept {
  for (std::size_t row = 0; row < rows; ++row) {
    detail::log_softmax_row({x + row * n, n}, y + row * n);
  }
}
DETENT_DECL void softmax(const float* x, std::size_t rows, std::size_t n, float* y) noexcept {
  for (std::size_t row = 0; row < rows; ++row) {
    detail::softmax_row({x + row * n, n}, y + row * n);
  }
}
DETENT_DECL void standardize(const float* x, std::size_t n, double centre, double factor,
                             const float* scale, const float* bias, float* y) noexcept {
  detail::standardize_row({x, n}, centre, factor, scale, bias, y);
}
DETENT_DECL void map_by_line(const float* x, std::size_t n, double factor, double offset,
                             float* y) noexcept {
  detail::map_row_by_line({x, n}, factor, offset, y);
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_FLOAT_ROWS_HPP
