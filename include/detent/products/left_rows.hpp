// SPDX-License-Identifier: BSD-3-Clause
// Copies of left sides in the form that kernels read: dense rows, with signed bytes turned into
// unsigned ones for kernels that want those.
#ifndef DETENT_PRODUCTS_LEFT_ROWS_HPP
#define DETENT_PRODUCTS_LEFT_ROWS_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Whether the elements of a column are neighbours in memory, and those of a row are not.
template <class T>
[[nodiscard]] bool is_column_major(const matrix_view<T>& m) noexcept {
  return m.columns > 1 && m.column_stride != 1 && (m.rows <= 1 || m.row_stride == 1);
}

/// Converts signed bytes to unsigned ones by adding 128: to[i] = from[i] + 128.
inline void shift_to_unsigned(const std::int8_t* from, std::size_t n, std::uint8_t* to) noexcept {
  constexpr std::size_t step = 32;
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    std::uint64_t words[step / sizeof(std::uint64_t)];
    std::memcpy(words, from + i, step);
    for (std::uint64_t& word : words) {
      word ^= 0x8080808080808080U;
    }
    std::memcpy(to + i, words, step);
  }
  for (; i < n; ++i) {
    to[i] = static_cast<std::uint8_t>(from[i] + 128);
  }
}

/// Exchanges the bits of `upper` below `mask` with those of `lower` that are `shift` higher.
inline void exchange_bits(std::uint64_t& lower, std::uint64_t& upper, int shift,
                          std::uint64_t mask) noexcept {
  const std::uint64_t difference = (lower >> shift ^ upper) & mask;
  upper ^= difference;
  lower ^= difference << shift;
}

/// Transposes 8 x 8 bytes: word c holds a column, with row r in its byte r (in the order of
/// memory); afterwards word r holds row r, with column c in its byte c. Blocks of 4 x 4 bytes are
/// exchanged first, then blocks of 2 x 2 within them, then single bytes.
inline void transpose_words(std::uint64_t (&w)[8]) noexcept {
  static_assert(std::endian::native == std::endian::little);
  for (std::size_t c = 0; c < 4; ++c) {
    exchange_bits(w[c], w[c + 4], 32, 0x00000000FFFFFFFFU);
  }
  for (const std::size_t c : {0U, 1U, 4U, 5U}) {
    exchange_bits(w[c], w[c + 2], 16, 0x0000FFFF0000FFFFU);
  }
  for (const std::size_t c : {0U, 2U, 4U, 6U}) {
    exchange_bits(w[c], w[c + 1], 8, 0x00FF00FF00FF00FFU);
  }
}

/// Transposes bytes and flips bits: to[r * columns + c] = from[c * stride + r] ^ flip.
inline void transpose_bytes(const std::uint8_t* from, std::ptrdiff_t stride, std::size_t rows,
                            std::size_t columns, std::uint8_t flip, std::uint8_t* to) noexcept {
  constexpr std::size_t step = 8;
  constexpr std::size_t line = 64;  // so many columns of a row fill a cache line of `to`
  const auto column = [=](std::size_t c) { return from + static_cast<std::ptrdiff_t>(c) * stride; };
  const auto copy_bytes = [=](std::size_t row, std::size_t end_row, std::size_t first,
                              std::size_t end) {
    for (std::size_t r = row; r < end_row; ++r) {
      for (std::size_t c = first; c < end; ++c) {
        to[r * columns + c] = static_cast<std::uint8_t>(column(c)[r] ^ flip);
      }
    }
  };
  if constexpr (std::endian::native == std::endian::little) {
    const std::uint64_t flips = flip * std::uint64_t{0x0101010101010101U};
    const std::size_t whole_rows = rows / step * step;
    const std::size_t whole_columns = columns / step * step;
    for (std::size_t first = 0; first < whole_columns; first += line) {
      const std::size_t end = (std::min)(first + line, whole_columns);
      for (std::size_t r = 0; r < whole_rows; r += step) {
        for (std::size_t c = first; c < end; c += step) {
          std::uint64_t words[step];
          for (std::size_t i = 0; i < step; ++i) {
            std::memcpy(&words[i], column(c + i) + r, step);
          }
          transpose_words(words);
          for (std::size_t i = 0; i < step; ++i) {
            words[i] ^= flips;
            std::memcpy(to + (r + i) * columns + c, &words[i], step);
          }
        }
      }
    }
    copy_bytes(0, whole_rows, whole_columns, columns);
    copy_bytes(whole_rows, rows, 0, columns);
  } else {
    copy_bytes(0, rows, 0, columns);
  }
}

/// Copies the rows first .. first + rows of a byte matrix to dense rows at `to`. With `shift`, 128
/// is added to each value, which turns signed bytes into unsigned ones.
template <quantized_byte A>
void copy_rows(const matrix_view<const A>& m, std::size_t first, std::size_t rows, bool shift,
               std::uint8_t* to) noexcept {
  if (is_column_major(m)) {
    transpose_bytes(reinterpret_cast<const std::uint8_t*>(m.data) + first, m.column_stride, rows,
                    m.columns, shift ? 0x80 : 0, to);
    return;
  }
  for (std::size_t r = 0; r < rows; ++r, to += m.columns) {
    const A* from = m.data + static_cast<std::ptrdiff_t>(first + r) * m.row_stride;
    if (shift) {
      shift_to_unsigned(reinterpret_cast<const std::int8_t*>(from), m.columns, to);
    } else if (m.columns != 0) {
      std::memcpy(to, from, m.columns);
    }
  }
}

/// Copies the rows first .. first + rows of a column-major matrix to dense rows at `to`, with each
/// value passed through `convert`.
template <class From, class To, class Convert>
void convert_columns(const matrix_view<const From>& m, std::size_t first, std::size_t rows, To* to,
                     const Convert& convert) {
  for (std::size_t c = 0; c < m.columns; ++c) {
    const From* from = m.data + first + static_cast<std::ptrdiff_t>(c) * m.column_stride;
    for (std::size_t r = 0; r < rows; ++r) {
      to[r * m.columns + c] = convert(from[r]);
    }
  }
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_PRODUCTS_LEFT_ROWS_HPP
