// SPDX-License-Identifier: BSD-3-Clause
// The family of maxima: the largest of several rows, column by column, as max pools need them.
#ifndef DETENT_KERNELS_MAXIMA_HPP
#define DETENT_KERNELS_MAXIMA_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Arguments of max_of_rows: for p < pixels and i < columns, out[p * columns + i] is the largest of
/// rows[0][p * step + i], ..., rows[row_count - 1][p * step + i], as reference::larger takes them
/// one after the other. `out` overlaps no row.
template <class T>
struct max_of_rows_args {
  const T* const* rows = nullptr;
  std::size_t row_count = 0;  // not 0
  std::size_t columns = 0;
  std::size_t pixels = 0, step = 0;
  T* out = nullptr;
};

/// The kernels of maxima. T: float, std::uint8_t or std::int8_t.
template <class T>
struct maximum_kernels {
  void (*max_of_rows)(const max_of_rows_args<T>& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const maximum_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_MAXIMA_HPP
