// SPDX-License-Identifier: BSD-3-Clause
// The family of byte lookups: tables of a function of one 8-bit value.
#ifndef DETENT_KERNELS_BYTE_LOOKUP_HPP
#define DETENT_KERNELS_BYTE_LOOKUP_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Arguments of look_up: out[r * out_stride + i] = table[in[r * in_stride + i]] for r < rows and i
/// < columns. `out` may be `in` if the strides are the same, and overlaps it in no other way.
struct byte_lookup_args {
  const std::uint8_t* in = nullptr;
  std::size_t in_stride = 0;
  const std::uint8_t* table = nullptr;  // 256 entries
  std::uint8_t* out = nullptr;
  std::size_t out_stride = 0;
  std::size_t rows = 0, columns = 0;
};

/// The kernels of byte lookups.
struct byte_lookup_kernels {
  void (*look_up)(const byte_lookup_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const byte_lookup_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_BYTE_LOOKUP_HPP
