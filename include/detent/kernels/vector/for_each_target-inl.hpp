// SPDX-License-Identifier: BSD-3-Clause
// Compiles the text of a file for each Highway target. A file foo-inl.hpp of kernels is laid out
// so:
//
//   #ifndef DETENT_KERNELS_VECTOR_FOO_INL_HPP
//   #define DETENT_KERNELS_VECTOR_FOO_INL_HPP
//   ... #includes: all that the text needs ...
//   #define DETENT_KERNELS_TEXT <detent/kernels/vector/foo-inl.hpp>
//   #include <detent/kernels/vector/for_each_target-inl.hpp>
//   #endif
//   #ifdef DETENT_KERNELS_TEXT
//   ... the text, in namespace HWY_NAMESPACE ...
//   #include <detent/kernels/vector/end_text-inl.hpp>
//   #endif
//
// The first inclusion of the file comes here, which includes it again for every target but the last
// one and then goes on with the text for the last target. So the file can be included anywhere, any
// number of times, and an editor that opens it alone shows the text for the last target.
//
// Text for the passes of integer kernels includes for_each_pass-inl.hpp instead.

#ifdef DETENT_KERNELS_LAST_TEXT
#error "detent: kernels are included in the middle of the text of others"
#endif

#if HWY_ATTAINABLE_TARGETS & HWY_AVX2
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX2
#include <hwy/ops/set_macros-inl.h>
#include DETENT_KERNELS_TEXT
#endif

#if HWY_ATTAINABLE_TARGETS & HWY_AVX3
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include <hwy/ops/set_macros-inl.h>
#define DETENT_KERNELS_LAST_TEXT
#else
#undef DETENT_KERNELS_TEXT
#endif
