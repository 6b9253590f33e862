// SPDX-License-Identifier: BSD-3-Clause
// The kernel quantized_binary: sums, differences, products and quotients of quantized bytes.

#ifndef DETENT_KERNELS_VECTOR_QUANTIZED_BINARY_INL_HPP
#define DETENT_KERNELS_VECTOR_QUANTIZED_BINARY_INL_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/quantized_binary.hpp>
#include <detent/kernels/vector/quantize-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/quantized_binary-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// An operand whose bytes are dequantized when they are loaded.
class byte_operand {
  using byte_tag = hn::Rebind<std::uint8_t, float_tag>;

 public:
  explicit HWY_INLINE byte_operand(const quantized_bytes& q) noexcept
      : data_(q.data),
        flip_(hn::Set(byte_tag{}, q.flip)),
        zero_point_(hn::Set(int_tag{}, q.zero_point)),
        scale_(hn::Set(float_tag{}, q.scale)) {}

  /// Returns the real values of the bytes from number i on. The multiplication is a MulAdd with
  /// zero, so that compilers can't contract it with an addition that follows. Adding zero changes
  /// no product, since a step of 0 is +0 as a float.
  HWY_INLINE float_vector load(std::size_t i) const noexcept {
    const auto bytes = hn::Xor(hn::LoadU(byte_tag{}, data_ + i), flip_);
    const int_vector steps = hn::Sub(hn::PromoteTo(int_tag{}, bytes), zero_point_);
    const float_tag df;
    return hn::MulAdd(hn::ConvertTo(df, steps), scale_, hn::Zero(df));
  }

 private:
  const std::uint8_t* data_;
  hn::Vec<byte_tag> flip_;
  int_vector zero_point_;
  float_vector scale_;
};

/// The source of the floats that are quantized: the function of both operands. It finds elements by
/// their numbers and ignores the pointer.
struct binary_source {
  using element = std::uint8_t;
  binary_function function;
  byte_operand a, b;

  HWY_INLINE float_vector load(const std::uint8_t*, std::size_t i) const noexcept {
    const float_vector x = a.load(i);
    const float_vector y = b.load(i);
    switch (function) {
      case binary_function::add:
        return hn::Add(x, y);
      case binary_function::sub:
        return hn::Sub(x, y);
      case binary_function::mul:
        return hn::Mul(x, y);
      case binary_function::div:
        break;
    }
    return hn::Div(x, y);
  }
};

/// Computes all elements; `divisor` is that of the output's scale.
template <class Code, class Divisor>
HWY_INLINE void binary_elements(const quantized_binary_args& g, const Divisor& divisor,
                                typename Code::storage* out) noexcept {
  const one_divisor<Divisor> divisors{divisor};
  const one_zero_point z(g.zero_point);
  const code_writer<Code> writer(g.qmin, g.qmax);
  const binary_source all{g.function, byte_operand(g.a), byte_operand(g.b)};
  std::size_t i = 0;
  for (; i + group_size <= g.count; i += group_size) {
    quantize_group<Code>(g.a.data, all, divisors, z, writer, i, false, out + i);
  }
  if (i < g.count) {
    alignas(64) std::uint8_t bytes[2][group_size] = {};
    alignas(64) typename Code::storage codes[group_size];
    quantized_bytes a = g.a;
    quantized_bytes b = g.b;
    std::memcpy(bytes[0], a.data + i, g.count - i);
    std::memcpy(bytes[1], b.data + i, g.count - i);
    a.data = bytes[0];
    b.data = bytes[1];
    const binary_source last{g.function, byte_operand(a), byte_operand(b)};
    quantize_group<Code>(bytes[0], last, divisors, z, writer, 0, false, codes);
    std::memcpy(out + i, codes, g.count - i);
  }
}

/// Chooses how to divide by the output's scale, then computes all elements.
template <class Code>
HWY_INLINE void binary_codes(const quantized_binary_args& g) noexcept {
  auto* out = static_cast<typename Code::storage*>(g.out);
  divisor_array<1> divisors;
  if (divisors.assign(&g.scale, 1, 1, 1)) {
    binary_elements<Code>(g, divisors.one(0), out);
  } else {
    binary_elements<Code>(g, quotient_divisor{hn::Set(float_tag{}, g.scale)}, out);
  }
}

inline void quantized_binary(const quantized_binary_args& g) noexcept {
  if (g.out_signed) {
    binary_codes<s8_code>(g);
  } else {
    binary_codes<u8_code>(g);
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
