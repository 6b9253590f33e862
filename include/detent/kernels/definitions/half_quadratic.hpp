// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of half-quadratic quantization.
#ifndef DETENT_KERNELS_DEFINITIONS_HALF_QUADRATIC_HPP
#define DETENT_KERNELS_DEFINITIONS_HALF_QUADRATIC_HPP

#include <detent/config.hpp>
#include <detent/kernels/half_quadratic.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/half_quadratic.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/half_quadratic-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const half_quadratic_kernels* half_quadratic_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)    \
  case target::id: {                                    \
    static constexpr half_quadratic_kernels kernels = { \
        .round = &vectors::half_quadratic_round,        \
        .sums = &vectors::half_quadratic_sum,           \
    };                                                  \
    return &kernels;                                    \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_HALF_QUADRATIC_HPP
