// SPDX-License-Identifier: BSD-3-Clause
// The family of 8-bit products: u8 x s8 and s8 x s8 to 32-bit sums, with an epilogue.
#ifndef DETENT_KERNELS_INTEGER_PRODUCTS_HPP
#define DETENT_KERNELS_INTEGER_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/kernels/cache_sizes.hpp>
#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// C[m x n] = epilogue(A[m x k] * B[k x n]); A unsigned and row-major, or, with `rows`, in segments
/// that may be anywhere: rows[s * m + i] is where segment s of row i is, and has k / segments
/// values, a multiple of group_depth. Tables with adds_pairs do not take those. The bytes of A may
/// be signed ones: tables that do not say multiplies_signed take them as 128 more, and not in
/// segments.
struct gemm_u8s8_args {
  const std::uint8_t* a = nullptr;
  bool lhs_signed = false;
  std::size_t lda = 0;
  const std::uint8_t* const* rows = nullptr;
  std::size_t segments = 1;
  packed_panels b;
  void* c = nullptr;  // of the epilogue's output type
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;
  std::size_t following_columns = 0;  // of B behind the n, which may be wanted next
  integer_epilogue epilogue;
  cache_sizes caches;
  std::byte* workspace = nullptr;  // gemm_workspace() bytes, at a multiple of 64
};

/// The largest rows_per_call of any table.
inline constexpr std::size_t largest_rows_per_call = 256;

/// How many rows a kernel of products is called with.
struct row_counts {
  std::size_t per_call;  // the most rows that it is worth calling the kernel with
  std::size_t per_tile;  // rows that it takes at a time; divides per_call
};

/// The kernels of 8-bit products. `gemm_u8s8` returns what gemm_u8s8_args says, modulo 2^32.
struct integer_product_kernels {
  bool adds_pairs;         // gemm_u8s8 reads packed_panels::paired
  bool multiplies_signed;  // and takes signed left sides as they are
  row_counts rows;         // of a call of gemm_u8s8
  // What gemm_u8s8_args::workspace has room for; the other arguments are known.
  std::size_t (*gemm_workspace)(const gemm_u8s8_args& args) noexcept;
  void (*gemm_u8s8)(const gemm_u8s8_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const integer_product_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_INTEGER_PRODUCTS_HPP
