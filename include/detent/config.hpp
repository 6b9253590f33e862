// SPDX-License-Identifier: BSD-3-Clause
// The macros that a user may set before including any header of detent, and the macros that follow
// from them: the ABI namespaces and the declaration of kernels.
//
//   DETENT_SEPARATE_COMPILATION  (defined or not) this translation unit only declares the kernels;
//                                one other unit, which includes <detent/src.hpp>, compiles them
//   DETENT_COMPILE_KERNELS       (defined or not) this translation unit is the one that compiles
//                                the kernels; <detent/src.hpp> defines it, and so does a file that
//                                uses the single header for this purpose
//   DETENT_WITH_HIGHWAY          (0 or 1) vector kernels through <hwy/highway.h>; by default 1 if
//                                that header is found, on x86-64 with GCC or Clang
//   DETENT_WITH_XSIMD            (0 or 1) register-level templates through <xsimd/xsimd.hpp>; by
//                                default 1 if that header is found
//   DETENT_WITH_EIGEN            (0 or 1) conversions to and from Eigen's matrices; by default 1 if
//                                <Eigen/Core> is found
//
// Without Highway or xsimd the same functions run through portable code and return the same bits,
// except simd::exp(), simd::tanh() and simd::erf().
// Without Eigen, <detent/solvers/eigen_views.hpp> cannot be included.
// The headers of graph/ have a macro of their own: see <detent/graph/src/execution.hpp>.
#ifndef DETENT_CONFIG_HPP
#define DETENT_CONFIG_HPP

#include <detent/version.hpp>

#if defined(DETENT_COMPILE_KERNELS) && !defined(DETENT_SEPARATE_COMPILATION)
/// Defined by the user where kernels are compiled in one translation unit (see src.hpp) and only
/// declared in all others. Left undefined, the library is header-only.
#define DETENT_SEPARATE_COMPILATION
#endif

#if __cplusplus < 202002L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 202002L)
#error "detent needs C++20: compile with -std=c++20"
#endif

// Parts of -ffast-math are refused as far as the compiler tells: g++ has a macro for each of these,
// clang and icx for __FAST_MATH__ and __FINITE_MATH_ONLY__ only.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error \
    "detent: -ffast-math and its parts (-ffinite-math-only, -fassociative-math, -freciprocal-math, -fno-signed-zeros) let the compiler change results; every detent result is defined to the bit"
#endif

#if defined(__x86_64__) || defined(_M_X64)
/// 1 on 64-bit x86 processors, else 0. Not to be set by users.
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
/// Set by the user, 0 or 1: whether vector kernels are compiled with Highway. The default is 1 on
/// x86-64 with GCC or Clang if `<hwy/highway.h>` is found, else 0. Results do not depend on it.
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
/// Set by the user, 0 or 1: whether simd.hpp and batch.hpp use xsimd. The default is 1 if
/// `<xsimd/xsimd.hpp>` is found, else 0. Without xsimd, the functions of both headers
/// take single values. Results do not depend on it, except those of simd::exp(), simd::tanh() and
/// simd::erf().
#define DETENT_WITH_XSIMD 0
#endif

#ifndef DETENT_WITH_EIGEN
#if defined(__has_include)
#if __has_include(<Eigen/Core>)
#define DETENT_WITH_EIGEN 1
#endif
#endif
#endif
#ifndef DETENT_WITH_EIGEN
/// Set by the user, 0 or 1: whether matrices of Eigen can be converted. The default is 1 if
/// `<Eigen/Core>` is found, else 0.
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
/// 1 if the translation unit is compiled with exceptions, else 0 (see error.hpp). Not to be set by
/// users.
#define DETENT_WITH_EXCEPTIONS 1
#else
#define DETENT_WITH_EXCEPTIONS 0
#endif

// The linker must not merge inline functions that were compiled with different -m flags or options:
// a caller built for an old processor would be handed AVX-512 code. Therefore everything is in an
// inline namespace whose name spells out what changes the generated code. The patch version is not
// part of that name.
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

// 1 if this translation unit defines the kernels, 0 if it only declares them.
#if !defined(DETENT_SEPARATE_COMPILATION) || defined(DETENT_COMPILE_KERNELS)
#define DETENT_DEFINES_KERNELS 1
#else
#define DETENT_DEFINES_KERNELS 0
#endif

// DETENT_DECL marks functions that separate compilation compiles only once. In that mode the name
// of their namespace (inside detent::kernels) must not depend on the flags of the calling
// translation unit, so that all units link to the same functions.
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

// Open and close detent::kernels, the private layer below the public functions.
#define DETENT_KERNELS_NAMESPACE_BEGIN \
  namespace detent {                   \
  namespace kernels {                  \
  inline namespace DETENT_KERNELS_ABI_NAMESPACE {
#define DETENT_KERNELS_NAMESPACE_END \
  }                                  \
  }                                  \
  }

#endif  // DETENT_CONFIG_HPP
