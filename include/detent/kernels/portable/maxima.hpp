// SPDX-License-Identifier: BSD-3-Clause
// Maxima in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_MAXIMA_HPP
#define DETENT_KERNELS_PORTABLE_MAXIMA_HPP

#include <algorithm>
#include <cstddef>

#include <detent/kernels/maxima.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

template <class T>
void max_of_rows(const max_of_rows_args<T>& a) noexcept {
  for (std::size_t p = 0; p < a.pixels; ++p) {
    T* out = a.out + p * a.columns;
    std::copy_n(a.rows[0] + p * a.step, a.columns, out);
    for (std::size_t r = 1; r < a.row_count; ++r) {
      const T* row = a.rows[r] + p * a.step;
      for (std::size_t i = 0; i < a.columns; ++i) {
        out[i] = row[i] > out[i] || row[i] != row[i] ? row[i] : out[i];
      }
    }
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_MAXIMA_HPP
