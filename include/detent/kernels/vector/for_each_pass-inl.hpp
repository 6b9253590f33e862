// SPDX-License-Identifier: BSD-3-Clause
// Compiles the text of a file once for each pass of the integer kernels; the file has the layout
// that for_each_target-inl.hpp describes. A pass is a Highway target together with the instruction
// that the kernels multiply with. Each pass defines:
//
//   DETENT_PASS_NAMESPACE    the namespace of the pass
//   DETENT_PASS_ATTRIBUTES   the target string of its functions
//   DETENT_PASS_PAIRS        1 if products are added in pairs in 16 bits (vpmaddubsw), 0 if four
//                            products are added in 32 bits (vpdpbusd)
//   DETENT_PASS_ASSEMBLY     1 if the largest tile is the one of tile_vnni512-inl.hpp

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
