// SPDX-License-Identifier: BSD-3-Clause
// The table of arithmetic on 8-bit tensors.
#ifndef DETENT_KERNELS_DEFINITIONS_QUANTIZED_BINARY_HPP
#define DETENT_KERNELS_DEFINITIONS_QUANTIZED_BINARY_HPP

#include <detent/config.hpp>
#include <detent/kernels/quantized_binary.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/quantized_binary.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/quantized_binary-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const quantized_binary_kernels* quantized_binary_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)      \
  case target::id: {                                      \
    static constexpr quantized_binary_kernels kernels = { \
        .quantized_binary = &vectors::quantized_binary,   \
    };                                                    \
    return &kernels;                                      \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_QUANTIZED_BINARY_HPP
