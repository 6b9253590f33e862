// SPDX-License-Identifier: BSD-3-Clause
// Floating-point formats narrower than float: types that hold the bits of a value, and the
// definitions of the conversions to float and from float and double, one value at a time.
//
//                    exponent  mantissa  largest      smallest normal  smallest  infinity
//   float16          5 bits    10 bits   65504        2^-14            2^-24     yes
//   bfloat16         8         7         about 2^128  2^-126           2^-133    yes
//   float8_e4m3fn    4         3         448          2^-6             2^-9      no
//   float8_e5m2      5         2         57344        2^-14            2^-16     yes
//
// float16 is IEEE 754 binary16. The 8-bit formats are those of Micikevicius et al., "FP8 Formats
// for Deep Learning" (2022), as ONNX names them. Everything here is exact or integer arithmetic on
// the bits, so that no result depends on the floating-point environment.
#ifndef DETENT_FLOAT_FORMATS_HPP
#define DETENT_FLOAT_FORMATS_HPP

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN

// In each format the sign is the highest bit; the exponent and the mantissa follow. Equality
// compares bits: -0 differs from +0, and a NaN equals itself.

/// IEEE 754 binary16: 5 bits of exponent, 10 bits of mantissa, finite up to 65504. Comparison for
/// equality compares the bits.
struct float16 {
  /// The type that holds the bits.
  using bits_type = std::uint16_t;
  static constexpr int mantissa_bits = 10;  ///< Bits of the mantissa without the hidden one.
  static constexpr int exponent_bias = 15;  ///< The stored exponent of the number 1.
  /// The largest finite magnitude; larger ones are infinities or NaN.
  static constexpr bits_type max_bits = 0x7BFF;
  /// The magnitude of a result that overflows without saturation: infinity.
  static constexpr bits_type overflow_bits = 0x7C00;
  static constexpr bits_type nan_bits = 0x7E00;  ///< The canonical NaN.

  bits_type bits;  ///< Sign, exponent and mantissa, from the highest bit down.
  friend constexpr bool operator==(float16, float16) = default;
};

/// The upper 16 bits of a float: 8 bits of exponent, 7 bits of mantissa, finite up to about 2^128.
/// Comparison for equality compares the bits.
struct bfloat16 {
  /// The type that holds the bits.
  using bits_type = std::uint16_t;
  static constexpr int mantissa_bits = 7;    ///< Bits of the mantissa without the hidden one.
  static constexpr int exponent_bias = 127;  ///< The stored exponent of the number 1.
  /// The largest finite magnitude; larger ones are infinities or NaN.
  static constexpr bits_type max_bits = 0x7F7F;
  /// The magnitude of a result that overflows without saturation: infinity.
  static constexpr bits_type overflow_bits = 0x7F80;
  static constexpr bits_type nan_bits = 0x7FC0;  ///< The canonical NaN.

  bits_type bits;  ///< Sign, exponent and mantissa, from the highest bit down.
  friend constexpr bool operator==(bfloat16, bfloat16) = default;
};

/// The 8-bit format E4M3 of Micikevicius et al., "FP8 Formats for Deep Learning" (2022): 4 bits of
/// exponent, 3 bits of mantissa, finite up to 448. It has no infinities and one NaN of each sign.
/// Comparison for equality compares the bits.
struct float8_e4m3fn {
  /// The type that holds the bits.
  using bits_type = std::uint8_t;
  static constexpr int mantissa_bits = 3;  ///< Bits of the mantissa without the hidden one.
  static constexpr int exponent_bias = 7;  ///< The stored exponent of the number 1.
  /// The largest finite magnitude; larger ones are infinities or NaN.
  static constexpr bits_type max_bits = 0x7E;
  /// The magnitude of a result that overflows without saturation: NaN.
  static constexpr bits_type overflow_bits = 0x7F;
  static constexpr bits_type nan_bits = 0x7F;  ///< The only NaN, but for its sign.

  bits_type bits;  ///< Sign, exponent and mantissa, from the highest bit down.
  friend constexpr bool operator==(float8_e4m3fn, float8_e4m3fn) = default;
};

/// The 8-bit format E5M2 of Micikevicius et al., "FP8 Formats for Deep Learning" (2022): the upper
/// 8 bits of a float16, with 5 bits of exponent and 2 bits of mantissa, finite up to 57344.
/// Comparison for equality compares the bits.
struct float8_e5m2 {
  /// The type that holds the bits.
  using bits_type = std::uint8_t;
  static constexpr int mantissa_bits = 2;   ///< Bits of the mantissa without the hidden one.
  static constexpr int exponent_bias = 15;  ///< The stored exponent of the number 1.
  /// The largest finite magnitude; larger ones are infinities or NaN.
  static constexpr bits_type max_bits = 0x7B;
  /// The magnitude of a result that overflows without saturation: infinity.
  static constexpr bits_type overflow_bits = 0x7C;
  static constexpr bits_type nan_bits = 0x7F;  ///< The one of three NaN that ONNX Runtime writes.

  bits_type bits;  ///< Sign, exponent and mantissa, from the highest bit down.
  friend constexpr bool operator==(float8_e5m2, float8_e5m2) = default;
};

/// The 8-bit formats: float8_e4m3fn and float8_e5m2.
template <class T>
concept float8_format = std::same_as<T, float8_e4m3fn> || std::same_as<T, float8_e5m2>;

/// The formats narrower than float: float16, bfloat16, float8_e4m3fn and float8_e5m2.
template <class T>
concept float_format = std::same_as<T, float16> || std::same_as<T, bfloat16> || float8_format<T>;

namespace detail {

/// The layout of float and double, from which round_to() rounds.
template <class Real>
struct real_layout;
template <>
struct real_layout<float> {
  using bits_type = std::uint32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_bias = 127;  ///< The stored exponent of the number 1.
};
template <>
struct real_layout<double> {
  using bits_type = std::uint64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int exponent_bias = 1023;
};

template <class T>
concept binary_real = std::same_as<T, float> || std::same_as<T, double>;

/// The pattern, without sign, of the NaN that a NaN is rounded to. A bfloat16 keeps the upper bits
/// of the payload, as the conversions of processors do; the other formats get their canonical NaN.
template <float_format F, binary_real Real>
[[nodiscard]] constexpr unsigned nan_magnitude(
    typename real_layout<Real>::bits_type magnitude) noexcept {
  if constexpr (std::same_as<F, bfloat16>) {
    constexpr int dropped = real_layout<Real>::mantissa_bits - F::mantissa_bits;
    constexpr unsigned mantissa_mask = (1U << F::mantissa_bits) - 1U;
    return F::nan_bits | (static_cast<unsigned>(magnitude >> dropped) & mantissa_mask);
  } else {
    return F::nan_bits;
  }
}

/// round_to(), with the magnitude that a result becomes if it overflows.
template <float_format F, binary_real Real>
[[nodiscard]] constexpr F round_to(Real x, unsigned overflow) noexcept {
  using source = real_layout<Real>;
  using source_bits = typename source::bits_type;
  constexpr int sign_position = 8 * static_cast<int>(sizeof(Real)) - 1;
  constexpr source_bits one = 1;
  constexpr source_bits hidden = one << source::mantissa_bits;
  constexpr source_bits infinity = (one << sign_position) - hidden;

  const auto pattern = std::bit_cast<source_bits>(x);
  const auto negative = static_cast<unsigned>(pattern >> sign_position);
  const source_bits magnitude = pattern & ((one << sign_position) - 1);
  const unsigned sign = negative << (8 * sizeof(F) - 1);
  if (magnitude > infinity) {
    const unsigned nan = nan_magnitude<F, Real>(magnitude);
    return {static_cast<typename F::bits_type>(sign | nan)};
  }

  // |x| = significand * 2^(exponent - source::mantissa_bits). An infinity is read as the power of
  // two after the finite reals, and overflows as such.
  const auto biased = static_cast<int>(magnitude >> source::mantissa_bits);
  const source_bits significand = biased == 0 ? magnitude : (magnitude & (hidden - 1)) | hidden;
  const int exponent = std::max(biased, 1) - source::exponent_bias;

  // The significand loses the bits that the format lacks, and below the format's smallest normal
  // number one more bit for each power of two. If all bits are lost, the rest may still round up to
  // one unit; if one more is lost, the result is zero, and further ones would change nothing.
  constexpr int smallest_exponent = 1 - F::exponent_bias;
  constexpr int all = source::mantissa_bits + 1;
  const int below = std::max(smallest_exponent - exponent, 0);
  const int lost = std::min(source::mantissa_bits - F::mantissa_bits + below, all + 1);
  const source_bits odd = significand >> lost & 1;
  const source_bits rounded = (significand + ((one << (lost - 1)) - 1) + odd) >> lost;

  // The hidden bit, and the carry out of a mantissa of ones, add one to the exponent.
  const auto above = static_cast<source_bits>(std::max(exponent - smallest_exponent, 0));
  const source_bits result = (above << F::mantissa_bits) + rounded;
  const unsigned bounded = result > F::max_bits ? overflow : static_cast<unsigned>(result);
  return {static_cast<typename F::bits_type>(sign | bounded)};
}

}  // namespace detail

/// Converts a narrow float to float, exactly. Signed zeros, infinities and the sign of a NaN are
/// kept. The payload of a NaN becomes the upper bits of the float's payload, unchanged, so that a
/// signalling NaN stays one.
template <float_format F>
[[nodiscard]] constexpr float to_float(F x) noexcept {
  constexpr int sign_position = 8 * static_cast<int>(sizeof(F)) - 1;
  constexpr int widening = 23 - F::mantissa_bits;
  constexpr int rebias = 127 - F::exponent_bias;
  const auto bits = static_cast<std::uint32_t>(x.bits);
  const std::uint32_t sign = bits >> sign_position << 31;
  const std::uint32_t magnitude = bits & ((1U << sign_position) - 1U);
  if (magnitude > F::max_bits) {
    return std::bit_cast<float>(sign | 0x7F800000U | (magnitude << widening & 0x7FFFFFU));
  }
  if constexpr (rebias != 0) {
    if (magnitude >> F::mantissa_bits == 0) {
      // A subnormal number is normal as a float: an integer times a power of two.
      constexpr auto unit =
          std::bit_cast<float>(static_cast<std::uint32_t>(rebias + 1 - F::mantissa_bits) << 23);
      const float value = static_cast<float>(static_cast<int>(magnitude)) * unit;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }
  }
  return std::bit_cast<float>(sign | ((magnitude << widening) + (std::uint32_t{rebias} << 23)));
}

/// Rounds a float or a double to the nearest value of the format F, ties to the one with an even
/// mantissa. A double is rounded once, too (through float, 1 + 2^-11 + 2^-40 would become the
/// float16 1 rather than 1 + 2^-10). Other argument types are not accepted, so that no conversion
/// rounds before this function does.
///
///   overflow   a value that rounds beyond the largest finite one becomes infinity in float16 and
///              bfloat16, and saturates to +-448 or +-57344 in the 8-bit formats
///   infinity   becomes what overflow becomes
///   underflow  rounds to a subnormal number or to zero; zeros keep their sign
///   NaN        becomes F::nan_bits and keeps its sign; in a bfloat16 it also keeps the upper
///              bits of the payload
template <float_format F, detail::binary_real Real>
[[nodiscard]] constexpr F round_to(Real x) noexcept {
  return detail::round_to<F>(x, float8_format<F> ? F::max_bits : F::overflow_bits);
}

/// Rounds a float or a double to the nearest value of an 8-bit format, with the attribute
/// `saturate` of ONNX's Cast and QuantizeLinear (true by default there). With saturation this is
/// round_to(x). Without it, overflow and infinity become NaN in float8_e4m3fn and infinity in
/// float8_e5m2, with the sign of x. Overflow is decided after rounding: in float8_e4m3fn, 464
/// becomes 448 either way and every larger number overflows; in float8_e5m2, 61440 is the smallest
/// number that overflows.
template <float8_format F, detail::binary_real Real>
[[nodiscard]] constexpr F round_to(Real x, bool saturate) noexcept {
  return detail::round_to<F>(x, saturate ? F::max_bits : F::overflow_bits);
}

DETENT_NAMESPACE_END

#endif  // DETENT_FLOAT_FORMATS_HPP
