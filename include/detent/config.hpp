// SPDX-License-Identifier: BSD-3-Clause
// Every macro that a user may set, and what follows from it. All options are 0 or 1.
//
//   DETENT_SEPARATE_COMPILATION  (defined or not) the kernels are compiled in one other translation
//                                unit, which includes <detent/src.hpp>; this one only declares them
//   DETENT_COMPILE_KERNELS       (defined or not) this is that other unit: what <detent/src.hpp>
//                                defines, and what a file defines that has only the single header
//   DETENT_WITH_HIGHWAY          vector kernels through <hwy/highway.h>; default: if it is found
//   DETENT_WITH_XSIMD            register-level templates through <xsimd/xsimd.hpp>; default: if it
//                                is found
//   DETENT_WITH_EIGEN            the solvers that need <Eigen/Core> and what goes with it; default:
//                                if it is found
//
// Without Highway or xsimd the same functions run through portable code and return the same bits.
// Without Eigen, <detent/solvers/gptq.hpp> and <detent/solvers/eigen_views.hpp> are not there.
#ifndef DETENT_CONFIG_HPP
#define DETENT_CONFIG_HPP

#include <detent/version.hpp>

#if defined(DETENT_COMPILE_KERNELS) && !defined(DETENT_SEPARATE_COMPILATION)
#define DETENT_SEPARATE_COMPILATION
#endif

#if defined(__FAST_MATH__)
#error \
    "detent: -ffast-math lets the compiler change results; every detent result is defined to the bit"
#endif

#if defined(__x86_64__) || defined(_M_X64)
#define DETENT_ARCH_X86_64 1
#else
#define DETENT_ARCH_X86_64 0
#endif

#ifndef DETENT_WITH_HIGHWAY
#if defined(__has_include) && DETENT_ARCH_X86_64 && (defined(__GNUC__) || defined(__clang__))
#if __has_include(<hwy/highway.h>)
#define DETENT_WITH_HIGHWAY 1
#endif
#endif
#endif
#ifndef DETENT_WITH_HIGHWAY
#define DETENT_WITH_HIGHWAY 0
#endif

#ifndef DETENT_WITH_XSIMD
#if defined(__has_include)
#if __has_include(<xsimd/xsimd.hpp>)
#define DETENT_WITH_XSIMD 1
#endif
#endif
#endif
#ifndef DETENT_WITH_XSIMD
#define DETENT_WITH_XSIMD 0
#endif

#ifndef DETENT_WITH_EIGEN
#if defined(__has_include)
#if __has_include(<Eigen/Cholesky>)
#define DETENT_WITH_EIGEN 1
#endif
#endif
#endif
#ifndef DETENT_WITH_EIGEN
#define DETENT_WITH_EIGEN 0
#endif

// Products with pmaddwd: of the portable target on x86-64, and, where there is no Highway, of AVX2.
#if DETENT_ARCH_X86_64 && (defined(__GNUC__) || defined(__clang__))
#define DETENT_WITH_SSE2_WORDS 1
#else
#define DETENT_WITH_SSE2_WORDS 0
#endif
#if DETENT_WITH_SSE2_WORDS && !DETENT_WITH_HIGHWAY
#define DETENT_WITH_AVX2_WORDS 1
#else
#define DETENT_WITH_AVX2_WORDS 0
#endif

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define DETENT_WITH_EXCEPTIONS 1
#else
#define DETENT_WITH_EXCEPTIONS 0
#endif

// Inline functions that were compiled with other -m flags or other options must not be merged by
// the linker: a caller built for an old processor would be handed AVX-512 code. Hence an inline
// namespace whose name spells out what changes the generated code. The patch version is not part of
// it.
#define DETENT_ABI_EPOCH v0
#if defined(__AVX512FP16__)
#define DETENT_ABI_ISA _avx512fp16
#elif defined(__AVX512VBMI2__)
#define DETENT_ABI_ISA _avx512vbmi2
#elif defined(__AVX512VNNI__)
#define DETENT_ABI_ISA _avx512vnni
#elif defined(__AVX512F__)
#define DETENT_ABI_ISA _avx512
#elif defined(__AVX2__)
#define DETENT_ABI_ISA _avx2
#elif defined(__AVX__)
#define DETENT_ABI_ISA _avx
#elif defined(__SSE4_1__)
#define DETENT_ABI_ISA _sse4
#else
#define DETENT_ABI_ISA _baseline
#endif
#if DETENT_WITH_XSIMD
#define DETENT_ABI_XSIMD _xsimd
#else
#define DETENT_ABI_XSIMD
#endif
#if DETENT_WITH_HIGHWAY
#define DETENT_ABI_HIGHWAY _hwy
#else
#define DETENT_ABI_HIGHWAY
#endif

#if DETENT_WITH_EIGEN
#define DETENT_ABI_EIGEN _eigen
#else
#define DETENT_ABI_EIGEN
#endif

#if DETENT_WITH_EXCEPTIONS
#define DETENT_ABI_EXCEPTIONS
#else
#define DETENT_ABI_EXCEPTIONS _noexcept
#endif

#define DETENT_CONCAT6_(a, b, c, d, e, f) a##b##c##d##e##f
#define DETENT_CONCAT6(a, b, c, d, e, f) DETENT_CONCAT6_(a, b, c, d, e, f)

// Whether this translation unit defines kernels, or only declares them.
#if !defined(DETENT_SEPARATE_COMPILATION) || defined(DETENT_COMPILE_KERNELS)
#define DETENT_DEFINES_KERNELS 1
#else
#define DETENT_DEFINES_KERNELS 0
#endif

// DETENT_DECL marks what is compiled once in separate mode. The seam to that code (namespace
// detent::kernels) must then be the same whatever the flags of the calling translation unit are.
#if defined(DETENT_SEPARATE_COMPILATION)
#define DETENT_DECL
#define DETENT_ABI_NAMESPACE                                                                      \
  DETENT_CONCAT6(DETENT_ABI_EPOCH, DETENT_ABI_ISA, _separate, DETENT_ABI_XSIMD, DETENT_ABI_EIGEN, \
                 DETENT_ABI_EXCEPTIONS)
#define DETENT_KERNELS_ABI_NAMESPACE v0_separate
#else
#define DETENT_DECL inline
#define DETENT_ABI_NAMESPACE                                                             \
  DETENT_CONCAT6(DETENT_ABI_EPOCH, DETENT_ABI_ISA, DETENT_ABI_HIGHWAY, DETENT_ABI_XSIMD, \
                 DETENT_ABI_EIGEN, DETENT_ABI_EXCEPTIONS)
#define DETENT_KERNELS_ABI_NAMESPACE DETENT_ABI_NAMESPACE
#endif

#define DETENT_NAMESPACE_BEGIN \
  namespace detent {           \
  inline namespace DETENT_ABI_NAMESPACE {
#define DETENT_NAMESPACE_END \
  }                          \
  }

// detent::kernels: the private floor below the numerics.
#define DETENT_KERNELS_NAMESPACE_BEGIN \
  namespace detent {                   \
  namespace kernels {                  \
  inline namespace DETENT_KERNELS_ABI_NAMESPACE {
#define DETENT_KERNELS_NAMESPACE_END \
  }                                  \
  }                                  \
  }

#endif  // DETENT_CONFIG_HPP
