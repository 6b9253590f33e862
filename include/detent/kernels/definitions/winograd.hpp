// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of Winograd convolutions.
#ifndef DETENT_KERNELS_DEFINITIONS_WINOGRAD_HPP
#define DETENT_KERNELS_DEFINITIONS_WINOGRAD_HPP

#include <detent/config.hpp>
#include <detent/kernels/winograd.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/winograd.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/winograd-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const winograd_kernels* winograd_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise) \
  case target::id: {                                 \
    static constexpr winograd_kernels kernels = {    \
        .input_2 = &vectors::winograd_input<2>,      \
        .input_4 = &vectors::winograd_input<4>,      \
        .output_2 = &vectors::winograd_output<2>,    \
        .output_4 = &vectors::winograd_output<4>,    \
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
#endif  // DETENT_KERNELS_DEFINITIONS_WINOGRAD_HPP
