// SPDX-License-Identifier: BSD-3-Clause
// Calls of the integer kernels: their working memory, sums of left rows, and panels from a given
// column on.
#ifndef DETENT_PRODUCTS_RAW_PRODUCTS_HPP
#define DETENT_PRODUCTS_RAW_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/base/aligned.hpp>
#include <detent/cache_sizes.hpp>
#include <detent/kernels/definitions/integer_products.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/kernels/statistics.hpp>
#include <detent/pack.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Computes the sums of the left side's rows, of the values that the kernels of `products`
/// multiply, modulo 2^32. For kernels that add 128 to signed values, the sums include it.
inline void sum_rows(const kernels::integer_product_kernels& products,
                     const kernels::gemm_u8s8_args& g, std::int32_t* sums) noexcept {
  const auto& statistics = active<kernels::statistics_kernels>();
  for (std::size_t i = 0; i < g.m; ++i) {
    const std::uint8_t* row = g.a + i * g.lda;
    if (!g.lhs_signed) {
      sums[i] = statistics.sum_u8(row, g.k);
      continue;
    }
    const std::int32_t sum = statistics.sum_s8(reinterpret_cast<const std::int8_t*>(row), g.k);
    const std::size_t more = products.multiplies_signed ? 0 : 128 * g.k;
    sums[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum) +
                                        static_cast<std::uint32_t>(more));
  }
}

/// Calls the kernel with the working memory that it wants. If g.caches is not set, the sizes of the
/// processor's caches are filled in.
inline void run_gemm(const kernels::integer_product_kernels& products, kernels::gemm_u8s8_args& g) {
  if (g.caches == cache_sizes{}) {
    g.caches = kernels::processor_caches();
  }
  const std::size_t size = products.gemm_workspace(g);
  g.workspace = size == 0 ? nullptr : block_memory<std::byte>(size);
  products.gemm_u8s8(g);
}

/// The panels `p` of weights with `depth` rows, from a column on that is a multiple of
/// strip_columns.
[[nodiscard]] inline kernels::packed_panels panels_from(kernels::packed_panels p, std::size_t depth,
                                                        std::size_t column) noexcept {
  p.data += column * round_up(depth, kernels::group_depth);
  if (p.paired != nullptr) {
    const std::size_t padded = round_up(depth, kernels::block_depth);
    p.paired += column * padded;
    p.order += column / kernels::strip_columns * padded;
    p.complement += column / kernels::strip_columns * padded;
    p.offset += column;
    p.first_correction += column / kernels::panel_columns;
  }
  return p;
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_PRODUCTS_RAW_PRODUCTS_HPP
