// SPDX-License-Identifier: BSD-3-Clause
// The table of float products.
#ifndef DETENT_KERNELS_DEFINITIONS_FLOAT_PRODUCTS_HPP
#define DETENT_KERNELS_DEFINITIONS_FLOAT_PRODUCTS_HPP

#include <detent/config.hpp>
#include <detent/kernels/float_products.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/float_products.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/gemm_f32-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

DETENT_DECL const float_product_kernels* float_product_kernels::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)   \
  case target::id: {                                   \
    static constexpr float_product_kernels kernels = { \
        .gemm_f32 = &vectors::gemm_f32,                \
        .depthwise_f32 = &vectors::depthwise_f32,      \
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
#endif  // DETENT_KERNELS_DEFINITIONS_FLOAT_PRODUCTS_HPP
