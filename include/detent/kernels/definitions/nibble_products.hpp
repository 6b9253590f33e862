// SPDX-License-Identifier: BSD-3-Clause
// The table of products with 4-bit weights.
#ifndef DETENT_KERNELS_DEFINITIONS_NIBBLE_PRODUCTS_HPP
#define DETENT_KERNELS_DEFINITIONS_NIBBLE_PRODUCTS_HPP

#include <detent/config.hpp>
#include <detent/kernels/nibble_products.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/nibble_products.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/gemm_amx_u8u4.hpp>
#include <detent/kernels/vector/gemm_u8u4-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const nibble_product_kernels* nibble_product_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)                \
  case target::id: {                                                \
    static constexpr nibble_product_kernels kernels = {             \
        .rows = {products::rows_per_call, products::rows_per_tile}, \
        .gemm_u8u4 = &products::gemm_u8u4,                          \
    };                                                              \
    return &kernels;                                                \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_NIBBLE_PRODUCTS_HPP
