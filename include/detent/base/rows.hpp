// SPDX-License-Identifier: BSD-3-Clause
// Loops over strided views, one line of the last dimension at a time, and a check of strides.
#ifndef DETENT_BASE_ROWS_HPP
#define DETENT_BASE_ROWS_HPP

#include <array>
#include <cstddef>
#include <numeric>

#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Whether two elements of a matrix have one address. Such elements are i rows and j columns apart,
/// i * row_stride = j * column_stride in magnitude, with i < rows and j < columns, not both 0.
template <class T>
[[nodiscard]] bool has_shared_elements(matrix_view<T> m) noexcept {
  const auto magnitude = [](std::ptrdiff_t stride) {
    const auto bits = static_cast<std::size_t>(stride);
    return stride < 0 ? std::size_t{0} - bits : bits;
  };
  const std::size_t row = magnitude(m.row_stride);
  const std::size_t column = magnitude(m.column_stride);
  if (row == 0 && column == 0) {
    return m.rows > 0 && m.columns > 0 && (m.rows > 1 || m.columns > 1);
  }
  const std::size_t common = std::gcd(row, column);
  return column / common < m.rows && row / common < m.columns;
}

/// Calls f(data, size, stride, index) for each line of the last dimension of x, in order. `data` is
/// the first element of the line and `index` holds its place in the other dimensions. x must not be
/// empty; a view of rank 0 has one line of one element.
template <class T, class F>
void for_each_row(tensor_view<T> x, const F& f) {
  std::array<std::size_t, max_rank> index{};
  if (x.rank == 0) {
    f(x.data, std::size_t{1}, std::ptrdiff_t{1}, index);
    return;
  }
  const std::size_t last = x.rank - 1;
  while (true) {
    std::ptrdiff_t offset = 0;
    for (std::size_t i = 0; i < last; ++i) {
      offset += static_cast<std::ptrdiff_t>(index[i]) * x.strides[i];
    }
    f(x.data + offset, x.shape[last], x.strides[last], index);
    std::size_t i = last;
    while (i > 0 && ++index[i - 1] == x.shape[i - 1]) {
      index[--i] = 0;
    }
    if (i == 0) {
      return;
    }
  }
}

/// The same elements in the same order with as few dimensions as strides allow: for_each_row()
/// then has as few and as long lines as possible. A dense view becomes a single line.
template <class T>
[[nodiscard]] tensor_view<T> merge_dimensions(tensor_view<T> x) {
  tensor_view<T> merged;
  merged.data = x.data;
  for (std::size_t i = 0; i < x.rank; ++i) {
    const auto extent = static_cast<std::ptrdiff_t>(x.shape[i]);
    if (extent == 1) {
      continue;
    }
    const std::size_t last = merged.rank - 1;
    if (merged.rank > 0 && merged.strides[last] == extent * x.strides[i]) {
      merged.shape[last] *= x.shape[i];
      merged.strides[last] = x.strides[i];
    } else {
      merged.shape[merged.rank] = x.shape[i];
      merged.strides[merged.rank] = x.strides[i];
      ++merged.rank;
    }
  }
  return merged;
}

/// Calls f(channel, data, size, stride) for pieces of x that have one channel (index along `axis`)
/// each: lines of the last dimension, or single elements if `axis` is the last dimension. x must
/// not be empty.
template <class T, class F>
void for_each_channel_run(tensor_view<T> x, std::size_t axis, const F& f) {
  for_each_row(x, [&](T* row, std::size_t n, std::ptrdiff_t stride,
                      const std::array<std::size_t, max_rank>& index) {
    if (axis + 1 != x.rank) {
      f(index[axis], row, n, stride);
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      f(i, row + static_cast<std::ptrdiff_t>(i) * stride, std::size_t{1}, std::ptrdiff_t{1});
    }
  });
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_ROWS_HPP
