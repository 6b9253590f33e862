// SPDX-License-Identifier: BSD-3-Clause
// The folder vector/ holds the kernels that are written with Highway, once for all CPU targets. It
// may include what the folder kernels/ may, and Highway.
//
// This is the only header that includes Highway's operations, for each CPU target that kernels are
// written for; other headers include macros of Highway only. Highway's own dispatch
// (foreach_target.h, HWY_EXPORT) needs its compiled library and works once per translation unit;
// here Highway only provides the operations of each target, and the library dispatches itself.
#ifndef DETENT_KERNELS_VECTOR_HIGHWAY_HPP
#define DETENT_KERNELS_VECTOR_HIGHWAY_HPP

#if defined(HWY_HIGHWAY_INCLUDED) || defined(HIGHWAY_HWY_FOREACH_TARGET_H_) || \
    defined(HWY_TARGET_TOGGLE)
#error \
    "detent: Highway is already in use in this translation unit. Define DETENT_SEPARATE_COMPILATION (and link detent::kernels, or compile one file that includes <detent/src.hpp>), or include nothing of Highway in it."
#endif

// Without these two, Highway would call its compiled library for aborts in debug builds.
#ifndef HWY_HEADER_ONLY
#define HWY_HEADER_ONLY
#endif
#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0
#endif

#include <hwy/cache_control.h>
#include <hwy/detect_targets.h>

// Whenever HWY_TARGET_TOGGLE is defined or undefined, Highway's headers can be included again, for
// another HWY_TARGET.
#if HWY_ATTAINABLE_TARGETS & HWY_AVX2
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX2
#include <hwy/highway.h>
#define HWY_TARGET_TOGGLE
#endif

#if HWY_ATTAINABLE_TARGETS & HWY_AVX3
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include <hwy/highway.h>
#ifdef HWY_TARGET_TOGGLE
#undef HWY_TARGET_TOGGLE
#else
#define HWY_TARGET_TOGGLE
#endif
#endif

// Unrolls the loop that follows: arrays of vectors stay in registers only if all indices are
// constants.
#if defined(__clang__)
#define DETENT_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DETENT_UNROLL _Pragma("GCC unroll 16")
#else
#define DETENT_UNROLL
#endif

#endif  // DETENT_KERNELS_VECTOR_HIGHWAY_HPP
