// SPDX-License-Identifier: BSD-3-Clause
// The family of transpositions: matrices whose elements have 8, 16 or 32 bits.
#ifndef DETENT_KERNELS_TRANSPOSITION_HPP
#define DETENT_KERNELS_TRANSPOSITION_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Arguments of transpose: a matrix and where its transpose goes. Strides count elements. Element
/// (r, c) goes to
///
///   to[c / line * line_step + c % line * to_stride + r]
///
/// so that columns may be the pixels of an image (`line` pixels to a line) whose lines are
/// line_step apart. What is read and what is written do not overlap.
struct transpose_args {
  const void* from = nullptr;
  std::size_t from_stride = 0;
  std::size_t rows = 0, columns = 0;  // not 0
  void* to = nullptr;
  std::size_t to_stride = 0;
  std::size_t line = 0, line_step = 0;  // not 0
};

/// The kernels of transposition. `Element`: std::uint8_t, std::uint16_t or std::uint32_t, which
/// stands for any type of its size.
template <class Element>
struct transposition_kernels {
  void (*transpose)(const transpose_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const transposition_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_TRANSPOSITION_HPP
