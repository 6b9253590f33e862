// SPDX-License-Identifier: BSD-3-Clause
// Byte lookups in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_BYTE_LOOKUP_HPP
#define DETENT_KERNELS_PORTABLE_BYTE_LOOKUP_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/byte_lookup.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

inline void look_up(const byte_lookup_args& a) noexcept {
  const std::uint8_t* const table = a.table;
  for (std::size_t r = 0; r < a.rows; ++r) {
    const std::uint8_t* in = a.in + r * a.in_stride;
    std::uint8_t* out = a.out + r * a.out_stride;
    for (std::size_t i = 0; i < a.columns; ++i) {
      out[i] = table[in[i]];
    }
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_BYTE_LOOKUP_HPP
