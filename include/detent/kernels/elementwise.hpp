// SPDX-License-Identifier: BSD-3-Clause
// The families of elementwise operations: quantize, dequantize, requantize, and quantization of
// rows with parameters from their own ranges. Each integer type has a family of its own, so that a
// translation unit compiles only the types that it uses.
#ifndef DETENT_KERNELS_ELEMENTWISE_HPP
#define DETENT_KERNELS_ELEMENTWISE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// An integer type of the elementwise kernels. Codes of four bits are stored two to a byte, the
/// first one in the low half.
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

/// A matrix of rows x columns elements whose rows are dense, and the parameters of the elements:
///
///   element (r, c) has scale[r * parameter_step + (per_column ? c : 0)]
///
/// and the zero point and the bias at the same index. Strides count elements, for 4-bit types too,
/// whose strides and number of columns are even.
struct elementwise_args {
  std::size_t rows = 1, columns = 0;
  std::ptrdiff_t in_stride = 0, out_stride = 0;
  const float* scale = nullptr;  // quantize, dequantize: the scale; requantize: the multiplier
  const std::int32_t* zero_point = nullptr;
  std::ptrdiff_t parameter_step = 0;
  bool per_column = false;
  const std::int32_t* bias = nullptr;  // requantize: added to the sums first, or null
  std::int32_t qmin = 0, qmax = 0;
  bool stream = false;         // write past the caches, in rows that start on a cache line
  std::size_t read_ahead = 0;  // bytes from what is read to what is prefetched; 0: no prefetch
};

/// The kernel of reference::quantize: float to `Code`.
template <class Code>
struct quantize_kernels {
  void (*quantize)(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const quantize_kernels* of(target t) noexcept;
};

/// The kernel of reference::dequantize: `Code` to float.
template <class Code>
struct dequantize_kernels {
  void (*dequantize)(const typename Code::storage* q, const elementwise_args& a, float* x) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const dequantize_kernels* of(target t) noexcept;
};

/// The kernel of reference::requantize: 32-bit sums to `Code`.
template <class Code>
struct requantize_kernels {
  void (*requantize)(const std::int32_t* acc, const elementwise_args& a,
                     typename Code::storage* q) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const requantize_kernels* of(target t) noexcept;
};

/// Arguments of dynamic_rows: a matrix of rows x columns floats whose rows are dense. Each row r is
/// quantized with parameters from its own range, which the kernel writes:
///
///   range of row r = reference::min_max of the row, or 0 .. 0 if it has no number
///   scale[r], zero_point[r] = reference::params_from_range of that range, on qmin .. qmax
struct dynamic_rows_args {
  std::size_t rows = 0, columns = 0;
  std::ptrdiff_t in_stride = 0, out_stride = 0;
  float* scale = nullptr;
  std::int32_t* zero_point = nullptr;
  bool symmetric = false;
  std::int32_t qmin = 0, qmax = 0;
};

/// The kernel that quantizes rows (reference::quantize) with parameters from their own ranges.
template <class Code>
struct dynamic_quantize_kernels {
  // Returns the number of rows that are done: all rows before the first one whose scale would not
  // be finite.
  std::size_t (*dynamic_rows)(const float* x, const dynamic_rows_args& a,
                              typename Code::storage* q) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const dynamic_quantize_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_ELEMENTWISE_HPP
