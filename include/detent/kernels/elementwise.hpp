// SPDX-License-Identifier: BSD-3-Clause
// The families of elementwise operations: quantize, dequantize, requantize, and quantization of
// rows with parameters of their own. Each is a family for each integer type, so that a translation
// unit compiles the types that it uses.
#ifndef DETENT_KERNELS_ELEMENTWISE_HPP
#define DETENT_KERNELS_ELEMENTWISE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The integer types of the elementwise rows. Those of four bits stand two in a byte, the first in
/// the low half.
template <class Storage, int kBits, bool kSigned>
struct code {
  using storage = Storage;
  static constexpr int bits = kBits;
  static constexpr bool is_signed = kSigned;
};
using u4_code = code<std::uint8_t, 4, false>;
using s4_code = code<std::uint8_t, 4, true>;
using u8_code = code<std::uint8_t, 8, false>;
using s8_code = code<std::int8_t, 8, true>;
using u16_code = code<std::uint16_t, 16, false>;
using s16_code = code<std::int16_t, 16, true>;
using s32_code = code<std::int32_t, 32, true>;

/// A block of rows x columns, dense in the columns, and the parameters of its elements:
///
///   element (r, c) has scale[r * parameter_step + (per_column ? c : 0)] and the zero point there
///
/// Strides are in elements (of 4-bit types too, where they and the number of columns are even).
struct elementwise_args {
  std::size_t rows = 1, columns = 0;
  std::ptrdiff_t in_stride = 0, out_stride = 0;
  const float* scale = nullptr;  // quantize, dequantize: the scale; requantize: the multiplier
  const std::int32_t* zero_point = nullptr;
  std::ptrdiff_t parameter_step = 0;
  bool per_column = false;
  const std::int32_t* bias = nullptr;  // requantize: null, or what is added first, as the scale
  std::int32_t qmin = 0, qmax = 0;
  bool stream = false;  // write past the caches, where rows of the output start on cache lines
  std::size_t read_ahead = 0;  // bytes from what is read to what is prefetched; 0: nothing is
};

/// reference::quantize: float to `Code`.
template <class Code>
struct quantize_kernels {
  void (*quantize)(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const quantize_kernels* of(target t) noexcept;
};

/// reference::dequantize: `Code` to float.
template <class Code>
struct dequantize_kernels {
  void (*dequantize)(const typename Code::storage* q, const elementwise_args& a, float* x) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const dequantize_kernels* of(target t) noexcept;
};

/// reference::requantize: 32-bit sums to `Code`.
template <class Code>
struct requantize_kernels {
  void (*requantize)(const std::int32_t* acc, const elementwise_args& a,
                     typename Code::storage* q) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const requantize_kernels* of(target t) noexcept;
};

/// A block of rows x columns, dense in the columns, of which each row is quantized with parameters
/// of its own:
///
///   range of row r = reference::min_max of it, or 0 .. 0 if it has no number
///   scale[r], zero_point[r] = reference::params_from_range of that, on qmin .. qmax
struct dynamic_rows_args {
  std::size_t rows = 0, columns = 0;
  std::ptrdiff_t in_stride = 0, out_stride = 0;
  float* scale = nullptr;
  std::int32_t* zero_point = nullptr;
  bool symmetric = false;
  std::int32_t qmin = 0, qmax = 0;
};

/// reference::quantize of rows, each with parameters of its own.
template <class Code>
struct dynamic_quantize_kernels {
  // Returns how many rows are done: those before the first one whose scale would not be finite.
  std::size_t (*dynamic_rows)(const float* x, const dynamic_rows_args& a,
                              typename Code::storage* q) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const dynamic_quantize_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_ELEMENTWISE_HPP
