// SPDX-License-Identifier: BSD-3-Clause
// The kernels of float rows, and sums and moments of rows of any type, in double and in the parts
// of base/float_rows.hpp.
#ifndef DETENT_GRAPH_OPS_ROW_KERNELS_HPP
#define DETENT_GRAPH_OPS_ROW_KERNELS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include <detent/base/float_rows.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/kernels/definitions/float_rows.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The kernels of float rows for this machine.
[[nodiscard]] inline const kernels::float_row_kernels& row_kernels() {
  return detent::detail::active<kernels::float_row_kernels>();
}

/// The sum of each row of `size` values, one behind the other, in parts.
template <class T>
void sum_rows(const T* x, std::size_t size, std::span<double> sums) {
  if constexpr (std::is_same_v<T, float>) {
    row_kernels().sums(x, sums.size(), size, sums.data());
  } else {
    for (std::size_t row = 0; row < sums.size(); ++row) {
      sums[row] = detent::detail::sum_of_row(std::span(x + row * size, size));
    }
  }
}

/// The sum of the squares of the distances of each row's values from its centre, in parts.
template <class T>
void sum_squares(const T* x, std::size_t size, std::span<const double> centres,
                 std::span<double> sums) {
  if constexpr (std::is_same_v<T, float>) {
    row_kernels().square_sums(x, sums.size(), size, centres.data(), sums.data());
  } else {
    for (std::size_t row = 0; row < sums.size(); ++row) {
      const std::span values(x + row * size, size);
      sums[row] = detent::detail::square_sum_of_row(values, centres[row]);
    }
  }
}

/// The sum of the squares of some values, in parts.
template <class T>
[[nodiscard]] double square_sum(std::span<const T> values) {
  const double centre = 0.0;
  double sum = 0.0;
  sum_squares(values.data(), values.size(), std::span(&centre, 1), std::span(&sum, 1));
  return sum;
}

/// Mean and variance of the elements themselves (the sum of squares is divided by their number).
struct moments {
  double mean = 0.0;      ///< The sum divided by the number of elements.
  double variance = 0.0;  ///< The mean of the squared distances from the mean.
};

/// Calls visit(row, moments) for the rows [begin, end) of `size` values, one behind the other. The
/// moments are found in two passes; both are 0 if there are no values.
template <class T, class Visit>
void for_each_moments(std::span<const T> x, std::size_t size, std::size_t begin, std::size_t end,
                      const Visit& visit) {
  // Rows that are summed together: the kernels take several, but they should stay in the cache.
  constexpr std::size_t most = 8;
  constexpr std::size_t cached = std::size_t{1} << 13;
  const std::size_t together = size == 0 ? 1 : std::clamp(cached / size, std::size_t{1}, most);
  const auto count = static_cast<double>(size);
  std::array<double, most> means;
  std::array<double, most> squares;
  for (std::size_t first = begin; first < end; first += together) {
    const std::size_t rows = (std::min)(together, end - first);
    if (size == 0) {
      visit(first, moments{});
      continue;
    }
    const T* const values = x.data() + first * size;
    sum_rows(values, size, std::span(means).first(rows));
    for (std::size_t k = 0; k < rows; ++k) {
      means[k] /= count;
    }
    sum_squares(values, size, std::span<const double>(means).first(rows),
                std::span(squares).first(rows));
    for (std::size_t k = 0; k < rows; ++k) {
      visit(first + k, moments{means[k], squares[k] / count});
    }
  }
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ROW_KERNELS_HPP
