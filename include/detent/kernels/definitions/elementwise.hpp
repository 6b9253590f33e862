// SPDX-License-Identifier: BSD-3-Clause
// The tables of the elementwise families.
#ifndef DETENT_KERNELS_DEFINITIONS_ELEMENTWISE_HPP
#define DETENT_KERNELS_DEFINITIONS_ELEMENTWISE_HPP

#include <detent/config.hpp>
#include <detent/kernels/elementwise.hpp>

#if DETENT_DEFINES_KERNELS

#include <detent/kernels/portable/dynamic_quantize.hpp>
#include <detent/kernels/portable/elementwise.hpp>
#include <detent/kernels/target_rows.hpp>
#if DETENT_WITH_HIGHWAY
#include <detent/kernels/vector/dequantize-inl.hpp>
#include <detent/kernels/vector/quantize-inl.hpp>
#include <detent/kernels/vector/quantize_dynamic-inl.hpp>
#endif

DETENT_KERNELS_NAMESPACE_BEGIN

template <class Code>
const quantize_kernels<Code>* quantize_kernels<Code>::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)    \
  case target::id: {                                    \
    static constexpr quantize_kernels<Code> kernels = { \
        .quantize = &vectors::quantize<Code>,           \
    };                                                  \
    return &kernels;                                    \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

template <class Code>
const dequantize_kernels<Code>* dequantize_kernels<Code>::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)      \
  case target::id: {                                      \
    static constexpr dequantize_kernels<Code> kernels = { \
        .dequantize = &vectors::dequantize<Code>,         \
    };                                                    \
    return &kernels;                                      \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

template <class Code>
const requantize_kernels<Code>* requantize_kernels<Code>::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)      \
  case target::id: {                                      \
    static constexpr requantize_kernels<Code> kernels = { \
        .requantize = &vectors::requantize<Code>,         \
    };                                                    \
    return &kernels;                                      \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

template <class Code>
const dynamic_quantize_kernels<Code>* dynamic_quantize_kernels<Code>::of(target t) noexcept {
  switch (t) {
#define DETENT_ROW(id, vectors, products, depthwise)            \
  case target::id: {                                            \
    static constexpr dynamic_quantize_kernels<Code> kernels = { \
        .dynamic_rows = &vectors::dynamic_rows<Code>,           \
    };                                                          \
    return &kernels;                                            \
  }
    DETENT_FOR_EACH_TARGET(DETENT_ROW)
#undef DETENT_ROW
    default:
      return nullptr;
  }
}

#if defined(DETENT_COMPILE_KERNELS)
template struct quantize_kernels<u4_code>;
template struct quantize_kernels<s4_code>;
template struct quantize_kernels<u8_code>;
template struct quantize_kernels<s8_code>;
template struct quantize_kernels<u16_code>;
template struct quantize_kernels<s16_code>;
template struct dequantize_kernels<u4_code>;
template struct dequantize_kernels<s4_code>;
template struct dequantize_kernels<u8_code>;
template struct dequantize_kernels<s8_code>;
template struct dequantize_kernels<u16_code>;
template struct dequantize_kernels<s16_code>;
template struct dequantize_kernels<s32_code>;
template struct requantize_kernels<u8_code>;
template struct requantize_kernels<s8_code>;
template struct requantize_kernels<u16_code>;
template struct requantize_kernels<s16_code>;
template struct dynamic_quantize_kernels<u8_code>;
template struct dynamic_quantize_kernels<s8_code>;
template struct dynamic_quantize_kernels<u16_code>;
template struct dynamic_quantize_kernels<s16_code>;
#endif

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_DEFINES_KERNELS
#endif  // DETENT_KERNELS_DEFINITIONS_ELEMENTWISE_HPP
