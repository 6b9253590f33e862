// SPDX-License-Identifier: BSD-3-Clause
// The list of the targets that kernels are compiled for, written once. Each family of kernels
// expands it to make its table for every target. Only headers that define kernels include this
// file.
//
//   DETENT_FOR_EACH_TARGET(row)   expands row(target, vectors, products, depthwise) for each
//                                 target, worst target first
//
// The arguments of `row` after the target are namespaces: `products` has the target's integer
// products, `depthwise` its 8-bit depthwise products, `vectors` all other kernels.
#ifndef DETENT_KERNELS_TARGET_ROWS_HPP
#define DETENT_KERNELS_TARGET_ROWS_HPP

#include <detent/config.hpp>
#include <detent/kernels/amx.hpp>

#if DETENT_WITH_HIGHWAY
#include <hwy/detect_targets.h>
#endif

#if DETENT_WITH_HIGHWAY && (HWY_ATTAINABLE_TARGETS & HWY_AVX2)
#define DETENT_ROWS_AVX2(row) \
  row(avx2, N_AVX2, avx2_pairs, avx2_pairs) row(avx_vnni, N_AVX2, avx2_vnni, avx2_vnni)
#elif DETENT_WITH_AVX2_WORDS
#define DETENT_ROWS_AVX2(row) row(avx2, portable, portable_avx2, portable)
#else
#define DETENT_ROWS_AVX2(row)
#endif

#if DETENT_WITH_HIGHWAY && (HWY_ATTAINABLE_TARGETS & HWY_AVX3)
#define DETENT_ROWS_AVX512(row) \
  row(avx512, N_AVX3, avx512_pairs, avx512_pairs) row(avx512_vnni, N_AVX3, avx512_vnni, avx512_vnni)
#else
#define DETENT_ROWS_AVX512(row)
#endif

#if DETENT_WITH_HIGHWAY && (HWY_ATTAINABLE_TARGETS & HWY_AVX3) && DETENT_KERNELS_AMX
#define DETENT_ROWS_AMX(row) row(amx_int8, N_AVX3, amx_int8, avx512_vnni)
#else
#define DETENT_ROWS_AMX(row)
#endif

#define DETENT_FOR_EACH_TARGET(row)                                                         \
  row(portable, portable, portable, portable) DETENT_ROWS_AVX2(row) DETENT_ROWS_AVX512(row) \
      DETENT_ROWS_AMX(row)

#endif  // DETENT_KERNELS_TARGET_ROWS_HPP
