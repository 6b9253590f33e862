// SPDX-License-Identifier: BSD-3-Clause
// Transposition in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_TRANSPOSITION_HPP
#define DETENT_KERNELS_PORTABLE_TRANSPOSITION_HPP

#include <cstddef>
#include <cstring>

#include <detent/kernels/transposition.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

template <class T>
void transpose(const transpose_args& a) noexcept {
  // Columns that are written side by side: what is read of a row should be a whole cache line.
  constexpr std::size_t block = 64 / sizeof(T);
  const auto* from = static_cast<const T*>(a.from);
  for (std::size_t first = 0; first < a.columns; first += block) {
    const std::size_t count = a.columns - first < block ? a.columns - first : block;
    T* to[block];
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t column = first + i;
      to[i] = static_cast<T*>(a.to) + column / a.line * a.line_step + column % a.line * a.to_stride;
    }
    for (std::size_t row = 0; row < a.rows; ++row) {
      const T* columns = from + row * a.from_stride + first;
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(to[i] + row, columns + i, sizeof(T));
      }
    }
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_TRANSPOSITION_HPP
