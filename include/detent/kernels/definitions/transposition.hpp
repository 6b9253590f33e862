// SPDX-License-Identifier: BSD-3-Clause
// The tables of the family of transpositions.
#ifndef DETENT_KERNELS_DEFINITIONS_TRANSPOSITION_HPP
#define DETENT_KERNELS_DEFINITIONS_TRANSPOSITION_HPP

#include <detent/config.hpp>
#include <detent/kernels/transposition.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/transposition.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/transpose-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

template <class Element>
const transposition_kernels<Element>* transposition_kernels<Element>::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)            \
  case target::id: {                                            \
    static constexpr transposition_kernels<Element> kernels = { \
        .transpose = &vectors::transpose<Element>,              \
    };                                                          \
    return &kernels;                                            \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

#if defined(DETENT_COMPILE_KERNELS)
template struct transposition_kernels<std::uint8_t>;
template struct transposition_kernels<std::uint16_t>;
template struct transposition_kernels<std::uint32_t>;
#endif

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_TRANSPOSITION_HPP
