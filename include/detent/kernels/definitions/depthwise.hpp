// SPDX-License-Identifier: BSD-3-Clause
// The table of 8-bit depthwise products.
#ifndef DETENT_KERNELS_DEFINITIONS_DEPTHWISE_HPP
#define DETENT_KERNELS_DEFINITIONS_DEPTHWISE_HPP

#include <detent/config.hpp>
#include <detent/kernels/depthwise.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/depthwise.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/depthwise_u8-inl.hpp>
#include <detent/kernels/vector/depthwise_u8_lines-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const depthwise_kernels* depthwise_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)   \
  case target::id: {                                   \
    static constexpr depthwise_kernels kernels = {     \
        .depthwise_u8 = &depthwise::depthwise_u8,      \
        .depthwise_lines = depthwise::depthwise_lines, \
    };                                                 \
    return &kernels;                                   \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_DEPTHWISE_HPP
