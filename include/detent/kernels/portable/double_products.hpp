// SPDX-License-Identifier: BSD-3-Clause
// Products of doubles in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_DOUBLE_PRODUCTS_HPP
#define DETENT_KERNELS_PORTABLE_DOUBLE_PRODUCTS_HPP

#include <cstddef>

#include <detent/base/arithmetic.hpp>
#include <detent/kernels/double_products.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

DETENT_DECL void add_products(const double_product_args& p) noexcept {
  for (std::size_t k = 0; k < p.depth;) {
    // Four rows of B at a time, so that C is read and written a quarter as often.
    const std::size_t count = p.depth - k < 4 ? 1 : 4;
    const double* const b = p.b + k * p.b_stride;
    for (std::size_t i = 0; i < p.rows; ++i) {
      const double* const a = p.a + i * p.a_row_stride + k * p.a_depth_stride;
      double* const c = p.c + i * p.c_stride;
      if (count == 4) {
        const double factors[] = {a[0], a[p.a_depth_stride], a[2 * p.a_depth_stride],
                                  a[3 * p.a_depth_stride]};
        detail::add_four_scaled(p.columns, factors, b, p.b_stride, c);
      } else {
        detail::add_scaled(p.columns, a[0], b, c);
      }
    }
    k += count;
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_DOUBLE_PRODUCTS_HPP
