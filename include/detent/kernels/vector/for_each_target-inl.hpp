// SPDX-License-Identifier: BSD-3-Clause
// Compiles the text of a file once for each Highway target. Every file foo-inl.hpp of kernels has
// this layout:
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
// The first inclusion of foo-inl.hpp includes this file, which includes foo-inl.hpp again for every
// target except the last one; then the first inclusion continues with the text for the last target.
// So foo-inl.hpp can be included anywhere, any number of times, and an editor that opens it alone
// shows the text for the last target.
//
// Integer kernels include for_each_pass-inl.hpp instead of this file.

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
