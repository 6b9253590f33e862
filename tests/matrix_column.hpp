// SPDX-License-Identifier: BSD-3-Clause
// Addresses within matrices that may be empty.
#ifndef DETENT_TESTS_MATRIX_COLUMN_HPP
#define DETENT_TESTS_MATRIX_COLUMN_HPP

#include <cstddef>
#include <vector>

namespace test {

/// Where column j of a matrix begins. Null if the matrix has no elements: nothing may be added to
/// the null pointer that data() then returns.
template <class T>
[[nodiscard]] const T* column_of(const std::vector<T>& matrix, std::size_t j) noexcept {
  return matrix.empty() ? nullptr : matrix.data() + j;
}

}  // namespace test

#endif  // DETENT_TESTS_MATRIX_COLUMN_HPP
