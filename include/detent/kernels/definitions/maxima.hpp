// SPDX-License-Identifier: BSD-3-Clause
// The tables of the family of maxima.
#ifndef DETENT_KERNELS_DEFINITIONS_MAXIMA_HPP
#define DETENT_KERNELS_DEFINITIONS_MAXIMA_HPP

#include <detent/config.hpp>
#include <detent/kernels/maxima.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/maxima.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/maxima-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

template <class T>
const maximum_kernels<T>* maximum_kernels<T>::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise) \
  case target::id: {                                 \
    static constexpr maximum_kernels<T> kernels = {  \
        .max_of_rows = &vectors::max_of_rows<T>,     \
    };                                               \
    return &kernels;                                 \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

#if defined(DETENT_COMPILE_KERNELS)
template struct maximum_kernels<float>;
template struct maximum_kernels<std::uint8_t>;
template struct maximum_kernels<std::int8_t>;
#endif

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_MAXIMA_HPP
