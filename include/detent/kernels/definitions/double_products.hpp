// SPDX-License-Identifier: BSD-3-Clause
// The table of the family of double products.
#ifndef DETENT_KERNELS_DEFINITIONS_DOUBLE_PRODUCTS_HPP
#define DETENT_KERNELS_DEFINITIONS_DOUBLE_PRODUCTS_HPP

#include <detent/config.hpp>
#include <detent/kernels/double_products.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/double_products.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/double_products-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const double_product_kernels* double_product_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)    \
  case target::id: {                                    \
    static constexpr double_product_kernels kernels = { \
        .add_products = &vectors::add_products,         \
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
#endif  // DETENT_KERNELS_DEFINITIONS_DOUBLE_PRODUCTS_HPP
