// SPDX-License-Identifier: BSD-3-Clause
// The table of 8-bit products.
#ifndef DETENT_KERNELS_DEFINITIONS_INTEGER_PRODUCTS_HPP
#define DETENT_KERNELS_DEFINITIONS_INTEGER_PRODUCTS_HPP

#include <detent/config.hpp>
#include <detent/kernels/integer_products.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/integer_products.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/gemm_amx.hpp>
#include <detent/kernels/vector/gemm_u8s8-inl.hpp>
#include <detent/kernels/vector/gemm_u8s8_pairs-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const integer_product_kernels* integer_product_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)                \
  case target::id: {                                                \
    static constexpr integer_product_kernels kernels = {            \
        .adds_pairs = products::adds_pairs,                         \
        .multiplies_signed = products::multiplies_signed,           \
        .rows = {products::rows_per_call, products::rows_per_tile}, \
        .gemm_workspace = &products::gemm_workspace,                \
        .gemm_u8s8 = &products::gemm_u8s8,                          \
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
#endif  // DETENT_KERNELS_DEFINITIONS_INTEGER_PRODUCTS_HPP
