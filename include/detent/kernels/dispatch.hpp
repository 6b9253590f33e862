// SPDX-License-Identifier: BSD-3-Clause
// The only place that includes Highway: compiles the kernels for each target, lists their tables,
// and keeps the one that is in use.
//
// Highway's own dispatch (foreach_target.h, HWY_EXPORT) needs its compiled library and works once
// per translation unit. Here Highway is only the per-target vocabulary: each pass sets HWY_TARGET,
// includes the kernels' text and flips the toggle that lets Highway's headers be read again.
#ifndef DETENT_KERNELS_DISPATCH_HPP
#define DETENT_KERNELS_DISPATCH_HPP

#include <atomic>
#include <cstddef>

#include <detent/config.hpp>
#include <detent/kernels/amx.hpp>
#include <detent/kernels/table.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

struct table_list {
  const kernel_table* const* first;
  std::size_t size;
};

/// The tables that were compiled, worst target first.
[[nodiscard]] DETENT_DECL table_list compiled_tables() noexcept;

/// The table in use; null until the first call of active_table(). One per program and ABI
/// namespace.
[[nodiscard]] DETENT_DECL std::atomic<const kernel_table*>& active_table_slot() noexcept;

DETENT_KERNELS_NAMESPACE_END

// In separate mode only the unit that compiles the kernels goes on.
#if !defined(DETENT_SEPARATE_COMPILATION) || defined(DETENT_COMPILE_KERNELS)

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include <detent/kernels/cpuid.hpp>
#include <detent/kernels/portable.hpp>

#if DETENT_WITH_HIGHWAY

#if defined(HWY_HIGHWAY_INCLUDED) || defined(HIGHWAY_HWY_FOREACH_TARGET_H_) || \
    defined(HWY_TARGET_TOGGLE)
#error \
    "detent: Highway is already in use in this translation unit. Define DETENT_SEPARATE_COMPILATION (and link detent::kernels, or compile one file that includes <detent/src.hpp>), or include nothing of Highway in it."
#endif

// Without these, Highway would call its compiled library for aborts in debug builds.
#ifndef HWY_HEADER_ONLY
#define HWY_HEADER_ONLY
#endif
#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0
#endif

#include <hwy/cache_control.h>
#include <hwy/detect_targets.h>

#if defined(__clang__)
#define DETENT_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DETENT_UNROLL _Pragma("GCC unroll 16")
#else
#define DETENT_UNROLL
#endif

#if HWY_ATTAINABLE_TARGETS & HWY_AVX2
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX2
#include <hwy/highway.h>

#include <detent/kernels/vectors-inl.hpp>

#define DETENT_PASS_NEAREST(v) \
  hn::Vec<int_tag> { _mm256_cvtps_epi32((v).raw) }
#include <detent/kernels/dequantize-inl.hpp>
#include <detent/kernels/gemm_f32-inl.hpp>
#include <detent/kernels/quantize-inl.hpp>
#include <detent/kernels/quantize_dynamic-inl.hpp>
#include <detent/kernels/quantized_binary-inl.hpp>
#include <detent/kernels/reduce-inl.hpp>
#include <detent/kernels/transpose-inl.hpp>

#define DETENT_PASS_NAMESPACE avx2_pairs
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR
#define DETENT_PASS_DOT(sum, a, b) add_pair_products(sum, a, b)
#define DETENT_PASS_PAIRS 1
#define DETENT_PASS_ROWS 4
#define DETENT_PASS_PANELS 1
#define DETENT_PASS_ASSEMBLY 0
#include <detent/kernels/pass-inl.hpp>

#define DETENT_PASS_NAMESPACE avx2_vnni
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR ",avxvnni"
#define DETENT_PASS_DOT(sum, a, b) \
  hn::Vec<int_tag> { _mm256_dpbusd_avx_epi32((sum).raw, (a).raw, (b).raw) }
#define DETENT_PASS_PAIRS 0
#define DETENT_PASS_ROWS 6
#define DETENT_PASS_PANELS 1
#define DETENT_PASS_ASSEMBLY 0
#include <detent/kernels/pass-inl.hpp>

#undef DETENT_PASS_NEAREST

#ifdef HWY_TARGET_TOGGLE
#undef HWY_TARGET_TOGGLE
#else
#define HWY_TARGET_TOGGLE
#endif
#endif  // HWY_AVX2

#if HWY_ATTAINABLE_TARGETS & HWY_AVX3
#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include <hwy/highway.h>

#include <detent/kernels/vectors-inl.hpp>

// With a mask of all lanes: GCC 12 warns that the other form leaves its result uninitialized.
#define DETENT_PASS_NEAREST(v) \
  hn::Vec<int_tag> { _mm512_maskz_cvtps_epi32(0xFFFF, (v).raw) }
#include <detent/kernels/dequantize-inl.hpp>
#include <detent/kernels/gemm_f32-inl.hpp>
#include <detent/kernels/quantize-inl.hpp>
#include <detent/kernels/quantize_dynamic-inl.hpp>
#include <detent/kernels/quantized_binary-inl.hpp>
#include <detent/kernels/reduce-inl.hpp>
#include <detent/kernels/transpose-inl.hpp>

#define DETENT_PASS_NAMESPACE avx512_pairs
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR
#define DETENT_PASS_DOT(sum, a, b) add_pair_products(sum, a, b)
#define DETENT_PASS_PAIRS 1
#define DETENT_PASS_ROWS 8
#define DETENT_PASS_PANELS 2
#define DETENT_PASS_ASSEMBLY 0
#include <detent/kernels/pass-inl.hpp>

#define DETENT_PASS_NAMESPACE avx512_vnni
#define DETENT_PASS_ATTRIBUTES HWY_TARGET_STR ",avx512vnni"
#define DETENT_PASS_DOT(sum, a, b) \
  hn::Vec<int_tag> { _mm512_dpbusd_epi32((sum).raw, (a).raw, (b).raw) }
#define DETENT_PASS_PAIRS 0
#define DETENT_PASS_ROWS 6
#define DETENT_PASS_PANELS 4
#define DETENT_PASS_ASSEMBLY 1
#include <detent/kernels/pass-inl.hpp>

#if DETENT_KERNELS_AMX
#include <detent/kernels/gemm_amx-inl.hpp>
#endif

#undef DETENT_PASS_NEAREST

#ifdef HWY_TARGET_TOGGLE
#undef HWY_TARGET_TOGGLE
#else
#define HWY_TARGET_TOGGLE
#endif
#endif  // HWY_AVX3

#undef DETENT_UNROLL

#endif  // DETENT_WITH_HIGHWAY

DETENT_KERNELS_NAMESPACE_BEGIN

#if DETENT_WITH_HIGHWAY
/// `elementwise` is the namespace of a Highway target, `integer` that of a pass
/// (pass-inl.hpp).
#define DETENT_KERNEL_TABLE(id, elementwise, integer) \
  inline constexpr kernel_table integer##_table = {   \
      id,                                             \
      integer::adds_pairs,                            \
      integer::multiplies_signed,                     \
      integer::rows_per_call,                         \
      integer::rows_per_tile,                         \
      &integer::gemm_workspace,                       \
      &elementwise::min_max,                          \
      &elementwise::min_max_columns,                  \
      &elementwise::bin_positions,                    \
      &elementwise::sum_codes<std::uint8_t>,          \
      &elementwise::sum_codes<std::int8_t>,           \
      &elementwise::quantize<u4_code>,                \
      &elementwise::quantize<s4_code>,                \
      &elementwise::quantize<u8_code>,                \
      &elementwise::quantize<s8_code>,                \
      &elementwise::quantize<u16_code>,               \
      &elementwise::quantize<s16_code>,               \
      &elementwise::dynamic_rows<u8_code>,            \
      &elementwise::dynamic_rows<s8_code>,            \
      &elementwise::dynamic_rows<u16_code>,           \
      &elementwise::dynamic_rows<s16_code>,           \
      &elementwise::dequantize<u4_code>,              \
      &elementwise::dequantize<s4_code>,              \
      &elementwise::dequantize<u8_code>,              \
      &elementwise::dequantize<s8_code>,              \
      &elementwise::dequantize<u16_code>,             \
      &elementwise::dequantize<s16_code>,             \
      &elementwise::dequantize<s32_code>,             \
      &elementwise::requantize<u8_code>,              \
      &elementwise::requantize<s8_code>,              \
      &elementwise::requantize<u16_code>,             \
      &elementwise::requantize<s16_code>,             \
      &elementwise::quantized_binary,                 \
      &elementwise::gemm_f32,                         \
      &elementwise::depthwise_f32,                    \
      &integer::gemm_u8s8,                            \
      &integer::depthwise_u8,                         \
      integer::depthwise_lines,                       \
      &integer::gemm_u8u4,                            \
      &elementwise::transpose<std::uint8_t>,          \
      &elementwise::transpose<std::uint16_t>,         \
      &elementwise::transpose<std::uint32_t>,         \
  };
#if HWY_ATTAINABLE_TARGETS & HWY_AVX2
DETENT_KERNEL_TABLE(target::avx2, N_AVX2, avx2_pairs)
DETENT_KERNEL_TABLE(target::avx_vnni, N_AVX2, avx2_vnni)
#endif
#if HWY_ATTAINABLE_TARGETS & HWY_AVX3
DETENT_KERNEL_TABLE(target::avx512, N_AVX3, avx512_pairs)
DETENT_KERNEL_TABLE(target::avx512_vnni, N_AVX3, avx512_vnni)
#if DETENT_KERNELS_AMX
DETENT_KERNEL_TABLE(target::amx_int8, N_AVX3, amx_int8)
#endif
#endif
#undef DETENT_KERNEL_TABLE
#endif

DETENT_DECL table_list compiled_tables() noexcept {
  static constexpr const kernel_table* tables[] = {
    &portable::table,
#if DETENT_WITH_HIGHWAY
#if HWY_ATTAINABLE_TARGETS & HWY_AVX2
    &avx2_pairs_table,
    &avx2_vnni_table,
#endif
#if HWY_ATTAINABLE_TARGETS & HWY_AVX3
    &avx512_pairs_table,
    &avx512_vnni_table,
#if DETENT_KERNELS_AMX
    &amx_int8_table,
#endif
#endif
#endif
  };
  return {tables, sizeof tables / sizeof tables[0]};
}

DETENT_DECL std::atomic<const kernel_table*>& active_table_slot() noexcept {
  static std::atomic<const kernel_table*> slot{nullptr};
  return slot;
}

DETENT_KERNELS_NAMESPACE_END

#endif  // the definitions
#endif  // DETENT_KERNELS_DISPATCH_HPP
