// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of byte lookups.
#ifndef DETENT_KERNELS_DEFINITIONS_BYTE_LOOKUP_HPP
#define DETENT_KERNELS_DEFINITIONS_BYTE_LOOKUP_HPP

#include <detent/config.hpp>
#include <detent/kernels/byte_lookup.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/byte_lookup.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/byte_lookup-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const byte_lookup_kernels* byte_lookup_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise) \
  case target::id: {                                 \
    static constexpr byte_lookup_kernels kernels = { \
        .look_up = &vectors::look_up,                \
    };                                               \
    return &kernels;                                 \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_BYTE_LOOKUP_HPP
