// SPDX-License-Identifier: BSD-3-Clause
// Compiles the text of a file for each pass of the integer kernels, laid out as
// for_each_target-inl.hpp says. A pass is a Highway target with the instruction that multiplies:
//
//   DETENT_PASS_NAMESPACE    the namespace of the pass
//   DETENT_PASS_ATTRIBUTES   the target string of its functions
//   DETENT_PASS_PAIRS        1 where products are added in pairs in 16 bits (vpmaddubsw), 0 where
//                            vpdpbusd adds four of them
//   DETENT_PASS_ASSEMBLY     1 where the largest tile is that of tile_vnni512-inl.hpp

#ifdef DETENT_KERNELS_LAST_TEXT
#error "detent: kernels are included in the middle of the text of others"
#endif

#if HWY_ATTAINABLE_TARGETS & HWY_AVX2
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX2
#include <hwy/ops/set_macros-inl.h>

#define DETENT_PASS_NAMESPACE avx2_pairs
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR
#define DETENT_PASS_PAIRS 1
#define DETENT_PASS_ASSEMBLY 0
#include DETENT_KERNELS_TEXT
#include <detent/kernels/vector/end_pass-inl.hpp>

#define DETENT_PASS_NAMESPACE avx2_vnni
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR ",avxvnni"
#define DETENT_PASS_PAIRS 0
#define DETENT_PASS_ASSEMBLY 0
#include DETENT_KERNELS_TEXT
#include <detent/kernels/vector/end_pass-inl.hpp>
#endif

#if HWY_ATTAINABLE_TARGETS & HWY_AVX3
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include <hwy/ops/set_macros-inl.h>

#define DETENT_PASS_NAMESPACE avx512_pairs
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR
#define DETENT_PASS_PAIRS 1
#define DETENT_PASS_ASSEMBLY 0
#include DETENT_KERNELS_TEXT
#include <detent/kernels/vector/end_pass-inl.hpp>

#define DETENT_PASS_NAMESPACE avx512_vnni
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR ",avx512vnni"
#define DETENT_PASS_PAIRS 0
#define DETENT_PASS_ASSEMBLY 1
#define DETENT_KERNELS_LAST_TEXT
#else
#undef DETENT_KERNELS_TEXT
#endif
