// SPDX-License-Identifier: BSD-3-Clause
// Requantization of 32-bit sums with integer arithmetic alone, as engines do whose multiplier is a
// 31-bit integer and a shift:
//
//   real multiplier = mantissa * 2^(shift - 31)
//   q = clamp(rounded(acc * real multiplier) + zero_point, qmin, qmax)
//
// The engines differ in how they round (requantize_dialect). For a multiplier that is a float, use
// requantize() of quantize.hpp, round_half_even(float(acc) * multiplier), which XNNPACK calls
// "fp32". That one has vector kernels; the functions here are scalar code.
#ifndef DETENT_FIXED_POINT_HPP
#define DETENT_FIXED_POINT_HPP

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// A non-negative multiplier mantissa * 2^(shift - 31), as quantize_multiplier() makes it.
struct fixed_point_multiplier {
  std::int32_t mantissa = 0;  ///< In [2^30, 2^31), or 0.
  int shift = 0;              ///< In [-31, 30]; positive shifts to the left.
  friend constexpr bool operator==(const fixed_point_multiplier&,
                                   const fixed_point_multiplier&) = default;
};

/// How a fixed-point product is rounded.
enum class requantize_dialect : std::uint8_t {
  double_rounding,          ///< As gemmlowp, and TensorFlow Lite by default:
                            ///< reference::requantize_double_rounding.
  single_rounding,          ///< As TensorFlow Lite with TFLITE_SINGLE_ROUNDING:
                            ///< reference::requantize_single_rounding.
  rndnu = single_rounding,  ///< XNNPACK's name of single_rounding.
};

namespace reference {

/// The high half of 2 * a * b, "SQRDMULH": a * b / 2^31 rounded to the nearest integer, ties
/// upwards. The only product that does not fit, INT32_MIN * INT32_MIN, saturates to INT32_MAX.
/// Source: gemmlowp's SaturatingRoundingDoublingHighMul.
///
///   a * b / 2^31   -1.5 -0.5  0.5  1.5
///   result         -1    0    1    2
[[nodiscard]] constexpr std::int32_t saturating_rounding_doubling_high_mul(
    std::int32_t a, std::int32_t b) noexcept {
  constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
  if (a == smallest && b == smallest) {
    return std::numeric_limits<std::int32_t>::max();
  }
  const std::int64_t product = std::int64_t{a} * b;
  return static_cast<std::int32_t>((product + (std::int64_t{1} << 30)) >> 31);
}

/// x / 2^exponent rounded to the nearest integer, ties away from zero. Requires 0 <= exponent
/// <= 31. Source: gemmlowp's RoundingDivideByPOT.
///
///   x / 2^exponent   -1.5 -0.5  0.5  1.5
///   result           -2   -1    1    2
[[nodiscard]] constexpr std::int32_t rounding_divide_by_power_of_two(std::int32_t x,
                                                                     int exponent) noexcept {
  const std::int64_t divisor = std::int64_t{1} << exponent;
  const std::int64_t remainder = x & (divisor - 1);
  const std::int64_t above = ((divisor - 1) >> 1) + (x < 0 ? 1 : 0);
  return (x >> exponent) + (remainder > above ? 1 : 0);
}

/// x * 2^n, saturated to 32 bits. Requires 0 <= n <= 31.
[[nodiscard]] constexpr std::int32_t saturating_left_shift(std::int32_t x, int n) noexcept {
  constexpr std::int64_t smallest = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::clamp(std::int64_t{x} << n, smallest, largest));
}

/// Adds the zero point and saturates to the grid: min(max(scaled + zero_point, qmin), qmax).
[[nodiscard]] constexpr std::int32_t offset_to_grid(std::int64_t scaled, std::int32_t zero_point,
                                                    grid levels) noexcept {
  const std::int64_t smallest = levels.qmin;
  const std::int64_t largest = levels.qmax;
  return static_cast<std::int32_t>(std::clamp(scaled + zero_point, smallest, largest));
}

/// Requantizes one 32-bit sum, rounding twice: the product to 32 bits, ties upwards; then the
/// division by the rest of the shift, ties away from zero. As a consequence, 1 * 0.25 becomes 1.
/// With left = max(shift, 0) and right = max(-shift, 0):
///
///   scaled = rounding_divide_by_power_of_two(
///                saturating_rounding_doubling_high_mul(acc * 2^left, mantissa), right)
///   q      = clamp(scaled + zero_point, qmin, qmax)
///
/// Source: gemmlowp, TensorFlow Lite's MultiplyByQuantizedMultiplier. In these, acc * 2^left is
/// undefined where it overflows; here it saturates, which gives the same integer as the exact
/// product on every grid of at most 16 bits.
[[nodiscard]] constexpr std::int32_t requantize_double_rounding(std::int32_t accumulator,
                                                                fixed_point_multiplier m,
                                                                std::int32_t zero_point,
                                                                grid levels) noexcept {
  const std::int32_t shifted = saturating_left_shift(accumulator, std::max(m.shift, 0));
  const std::int32_t high = saturating_rounding_doubling_high_mul(shifted, m.mantissa);
  return offset_to_grid(rounding_divide_by_power_of_two(high, std::max(-m.shift, 0)), zero_point,
                        levels);
}

/// Requantizes one 32-bit sum, rounding once, ties upwards. No intermediate result overflows:
///
///   n = 31 - shift
///   q = clamp(((int64(acc) * mantissa + 2^(n - 1)) >> n) + zero_point, qmin, qmax)
///
/// Source: XNNPACK's "rndnu" (round to nearest, up).
[[nodiscard]] constexpr std::int32_t requantize_rndnu(std::int32_t accumulator,
                                                      fixed_point_multiplier m,
                                                      std::int32_t zero_point,
                                                      grid levels) noexcept {
  const int n = 31 - m.shift;
  const std::int64_t product = std::int64_t{accumulator} * m.mantissa;
  return offset_to_grid((product + (std::int64_t{1} << (n - 1))) >> n, zero_point, levels);
}

/// Requantizes one 32-bit sum, rounding once, ties upwards, as TensorFlow Lite's
/// MultiplyByQuantizedMultiplier with TFLITE_SINGLE_ROUNDING does, and likewise those of ruy and
/// CMSIS-NN. This is the same function as requantize_rndnu().
[[nodiscard]] constexpr std::int32_t requantize_single_rounding(std::int32_t accumulator,
                                                                fixed_point_multiplier m,
                                                                std::int32_t zero_point,
                                                                grid levels) noexcept {
  return requantize_rndnu(accumulator, m, zero_point, levels);
}

}  // namespace reference

/// The fixed-point multiplier nearest to a real one. With multiplier = f * 2^shift, f in [0.5, 1),
/// the mantissa is f * 2^31 rounded half up; 2^31 carries into the shift. This is TensorFlow Lite's
/// QuantizeMultiplier, also at the ends of the range:
///
///   rounded below 2^-32   0: a product with any 32-bit number is less than one half
///   2^30 and more         (2^31 - 1) * 2^-1: every product other than 0 is off every 16-bit grid
///
/// Throws invalid_argument if the multiplier is negative or not finite. Thread-safe.
[[nodiscard]] inline fixed_point_multiplier quantize_multiplier(double multiplier) {
  require(std::isfinite(multiplier) && multiplier >= 0.0, error_kind::invalid_argument,
          "quantize_multiplier: multiplier ", multiplier, " is not a finite number of at least 0");
  constexpr std::int64_t two_to_31 = std::int64_t{1} << 31;
  int shift = 0;
  const double fraction = std::frexp(multiplier, &shift);
  auto mantissa = static_cast<std::int64_t>(std::round(fraction * static_cast<double>(two_to_31)));
  if (mantissa == two_to_31) {
    mantissa /= 2;
    ++shift;
  }
  if (shift < -31) {
    return {0, 0};
  }
  if (shift > 30) {
    return {std::numeric_limits<std::int32_t>::max(), 30};
  }
  return {static_cast<std::int32_t>(mantissa), shift};
}

namespace detail {

inline void require_multiplier(fixed_point_multiplier m, const char* where) {
  const bool normalized = m.mantissa == 0 || m.mantissa >= std::int32_t{1} << 30;
  require(normalized && m.shift >= -31 && m.shift <= 30, error_kind::invalid_argument, where,
          ": multiplier ", m.mantissa, " * 2^(", m.shift,
          " - 31) does not have a mantissa of 0 or 2^30..2^31-1 and a shift of -31..30");
}

/// Requantizes rows of as many elements as there are multipliers: column j takes multiplier j. A
/// single multiplier serves all elements.
template <auto Definition, class Q>
void requantize_rows(std::span<const std::int32_t> acc, std::span<Q> q,
                     std::span<const fixed_point_multiplier> multipliers, std::int32_t zero_point,
                     grid levels) noexcept {
  const bool is_per_tensor = multipliers.size() == 1;
  const std::size_t columns = is_per_tensor ? acc.size() : multipliers.size();
  const std::size_t step = is_per_tensor ? 0 : 1;
  for (std::size_t row = 0; row < acc.size(); row += columns) {
    for (std::size_t j = 0; j < columns; ++j) {
      q[row + j] =
          static_cast<Q>(Definition(acc[row + j], multipliers[step * j], zero_point, levels));
    }
  }
}

/// Checks that the elements are whole rows of as many columns as there are multipliers.
template <class Multiplier>
void require_columns(std::size_t elements, std::span<const Multiplier> multipliers,
                     const char* where) {
  require(multipliers.empty() || multipliers.data() != nullptr, error_kind::invalid_argument, where,
          ": null data with ", multipliers.size(), " multipliers");
  require(multipliers.empty() ? elements == 0 : elements % multipliers.size() == 0,
          error_kind::shape_mismatch, where, ": ", multipliers.size(), " multipliers for ",
          elements, " elements, which are no whole rows");
}

template <class Q>
void requantize_fixed_point(std::span<const std::int32_t> acc, std::span<Q> q,
                            std::span<const fixed_point_multiplier> multipliers,
                            std::int32_t zero_point, grid levels, requantize_dialect dialect) {
  constexpr const char* where = "requantize";
  levels = checked_grid<Q>(levels, where);
  require_zero_point(zero_point, levels, where);
  require_spans(acc, q, where);
  require_columns(acc.size(), multipliers, where);
  for (const fixed_point_multiplier m : multipliers) {
    require_multiplier(m, where);
  }
  require(dialect <= requantize_dialect::single_rounding, error_kind::invalid_argument, where,
          ": no dialect has the number ", static_cast<int>(dialect));
  switch (dialect) {
    case requantize_dialect::double_rounding:
      requantize_rows<reference::requantize_double_rounding>(acc, q, multipliers, zero_point,
                                                             levels);
      return;
    case requantize_dialect::single_rounding:
      requantize_rows<reference::requantize_single_rounding>(acc, q, multipliers, zero_point,
                                                             levels);
      return;
  }
}

}  // namespace detail

// requantize() with fixed-point multipliers for the four element types: overloads rather than
// templates, so that vectors and arrays convert to spans.
#define DETENT_FIXED_POINT_OVERLOADS(Q)                                                        \
  /** Requantizes 32-bit sums with one fixed-point multiplier:                                 \
     q[i] = clamp(rounded(acc[i] * real) + zero_point, qmin, qmax), where                      \
     real = m.mantissa * 2^(m.shift - 31). The product is rounded as `dialect` says, by the    \
     function of namespace reference that it names. q has the size of acc and must not overlap \
     it. Throws shape_mismatch if the sizes differ; invalid_argument if data is null, `levels` \
     is not within the type of q, zero_point is not within `levels`, or m is not normalized (a \
     mantissa of 0 or 2^30..2^31-1, a shift of -31..30), or for an unknown dialect. Nothing is \
     written then. Thread-safe; allocates nothing. */                                          \
  inline void requantize(std::span<const std::int32_t> acc, std::span<Q> q,                    \
                         fixed_point_multiplier m, std::int32_t zero_point, grid levels,       \
                         requantize_dialect dialect) {                                         \
    detail::requantize_fixed_point(acc, q, std::span<const fixed_point_multiplier>(&m, 1),     \
                                   zero_point, levels, dialect);                               \
  }                                                                                            \
  /** Requantizes 32-bit sums with a fixed-point multiplier for each channel: acc is rows      \
     of multipliers.size() elements, and column j takes multipliers[j], as the overload for    \
     one multiplier does. q has the size of acc and must not overlap it. Throws                \
     shape_mismatch if the sizes differ or acc is not whole rows; invalid_argument if data is  \
     null, `levels` is not within the type of q, zero_point is not within `levels`, a          \
     multiplier is not normalized, or for an unknown dialect. Nothing is written then.         \
     Thread-safe; allocates nothing. */                                                        \
  inline void requantize(std::span<const std::int32_t> acc, std::span<Q> q,                    \
                         std::span<const fixed_point_multiplier> multipliers,                  \
                         std::int32_t zero_point, grid levels, requantize_dialect dialect) {   \
    detail::requantize_fixed_point(acc, q, multipliers, zero_point, levels, dialect);          \
  }

DETENT_FIXED_POINT_OVERLOADS(std::uint8_t)
DETENT_FIXED_POINT_OVERLOADS(std::int8_t)
DETENT_FIXED_POINT_OVERLOADS(std::uint16_t)
DETENT_FIXED_POINT_OVERLOADS(std::int16_t)
#undef DETENT_FIXED_POINT_OVERLOADS

DETENT_NAMESPACE_END

#endif  // DETENT_FIXED_POINT_HPP
