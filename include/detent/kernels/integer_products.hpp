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

/// Arguments of gemm_u8s8: C[m x n] = epilogue(A[m x k] * B[k x n]).
///
/// A has unsigned bytes, in rows that are lda apart (`a`) or, if `rows` is not null, in segments
/// that may be anywhere: rows[s * m + i] is where segment s of row i begins; it has k / segments
/// values, a multiple of group_depth. Tables with adds_pairs do not take segments. If zero_segment
/// is not null, segments at that address are zeros, and kernels may leave their products out.
///
/// If lhs_signed is true, A has signed bytes. Tables with multiplies_signed multiply them as they
/// are; other tables add 128 to each (which the caller's epilogue takes into account) and do not
/// take them in segments.
struct gemm_u8s8_args {
  const std::uint8_t* a = nullptr;
  bool lhs_signed = false;
  std::size_t lda = 0;
  const std::uint8_t* const* rows = nullptr;
  std::size_t segments = 1;
  const std::uint8_t* zero_segment = nullptr;
  packed_panels b;
  void* c = nullptr;  // elements have the epilogue's output type
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;
  std::size_t following_columns = 0;  // columns behind the n that may be multiplied next
  integer_epilogue epilogue;
  cache_sizes caches;
  std::byte* workspace = nullptr;  // gemm_workspace() bytes, 64-byte aligned
};

/// The largest row_counts::per_call of any table.
inline constexpr std::size_t largest_rows_per_call = 256;

/// Numbers of rows that suit a kernel of products.
struct row_counts {
  std::size_t per_call;  // the most rows that are worth a call
  std::size_t per_tile;  // rows of its largest tile; divides per_call
};

/// The kernels of 8-bit products. `gemm_u8s8` computes what gemm_u8s8_args says, with sums modulo
/// 2^32.
struct integer_product_kernels {
  bool adds_pairs;         // gemm_u8s8 reads packed_panels::paired
  bool multiplies_signed;  // gemm_u8s8 multiplies signed bytes of A as they are
  row_counts rows;         // for calls of gemm_u8s8
  // The size in bytes of gemm_u8s8_args::workspace, once the other arguments are set.
  std::size_t (*gemm_workspace)(const gemm_u8s8_args& args) noexcept;
  void (*gemm_u8s8)(const gemm_u8s8_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const integer_product_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_INTEGER_PRODUCTS_HPP
