// SPDX-License-Identifier: BSD-3-Clause
// The family of double products: matrix products in doubles, for solvers.
#ifndef DETENT_KERNELS_DOUBLE_PRODUCTS_HPP
#define DETENT_KERNELS_DOUBLE_PRODUCTS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Arguments of add_products:
///
///   C[i, j] += A[i, 0] * B[0, j], then += A[i, 1] * B[1, j], and so on to A[i, depth - 1]
///
/// with each product and each sum rounded to double. The elements of C do not depend on each other.
///
/// A[i, k] is at a[i * a_row_stride + k * a_depth_stride], so that a transposed matrix can be
/// multiplied; rows of B and C are dense. C overlaps neither A nor B.
struct double_product_args {
  std::size_t rows = 0, columns = 0, depth = 0;
  const double* a = nullptr;
  std::size_t a_row_stride = 0, a_depth_stride = 1;
  const double* b = nullptr;
  std::size_t b_stride = 0;
  double* c = nullptr;
  std::size_t c_stride = 0;
};

/// The kernels of double products.
struct double_product_kernels {
  void (*add_products)(const double_product_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const double_product_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_DOUBLE_PRODUCTS_HPP
