// SPDX-License-Identifier: BSD-3-Clause
// The family of arithmetic on 8-bit tensors: sum, difference, product or quotient of two operands,
// each with its own scale and zero point.
#ifndef DETENT_KERNELS_QUANTIZED_BINARY_HPP
#define DETENT_KERNELS_QUANTIZED_BINARY_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// An 8-bit operand: byte b stands for ((b ^ flip) - zero_point) * scale. For signed types flip is
/// 0x80, which turns the value x into x + 128; zero_point is then 128 more, too. For unsigned types
/// flip is 0.
struct quantized_bytes {
  const std::uint8_t* data = nullptr;
  std::uint8_t flip = 0;
  std::int32_t zero_point = 0;
  float scale = 0.0F;
};

/// The operation on the real values of both operands.
enum class binary_function : std::uint8_t { add, sub, mul, div };

/// The result of the operation on two real values.
[[nodiscard]] inline float combine(binary_function f, float a, float b) noexcept {
  switch (f) {
    case binary_function::add:
      return a + b;
    case binary_function::sub:
      return a - b;
    case binary_function::mul:
      return a * b;
    case binary_function::div:
      break;
  }
  return a / b;
}

/// Arguments of quantized_binary: out[i] = reference::quantized_binary of a[i] and b[i]. `out` has
/// the bytes of u8 or s8 and may be the very buffer of an operand. Its zero point lies within qmin
/// .. qmax.
struct quantized_binary_args {
  binary_function function = binary_function::add;
  quantized_bytes a, b;
  void* out = nullptr;
  bool out_signed = false;
  float scale = 0.0F;
  std::int32_t zero_point = 0;
  std::int32_t qmin = 0, qmax = 0;
  std::size_t count = 0;
};

/// The kernels of arithmetic on 8-bit tensors.
struct quantized_binary_kernels {
  void (*quantized_binary)(const quantized_binary_args& args) noexcept;

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const quantized_binary_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_QUANTIZED_BINARY_HPP
