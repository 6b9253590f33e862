// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of exponentials.
#ifndef DETENT_KERNELS_DEFINITIONS_EXPONENTIALS_HPP
#define DETENT_KERNELS_DEFINITIONS_EXPONENTIALS_HPP

#include <detent/config.hpp>
#include <detent/kernels/exponentials.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/exponentials.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/exponentials-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const exponential_kernels* exponential_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise) \
  case target::id: {                                 \
    static constexpr exponential_kernels kernels = { \
        .exp = &vectors::exp,                        \
        .log = &vectors::log,                        \
        .erf = &vectors::erf,                        \
        .tanh = &vectors::tanh,                      \
        .logistic = &vectors::logistic,              \
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
#endif  // DETENT_KERNELS_DEFINITIONS_EXPONENTIALS_HPP
