// SPDX-License-Identifier: BSD-3-Clause
// Requantization of 32-bit sums by shifts alone, for engines whose scales are powers of two:
//
//   q = clamp(rounded(acc * 2^exponent) + zero_point, qmin, qmax)
//
// The product is exact and rounded once, by any rule of rounding.hpp except stochastic.
// project_to_power_of_two() (scale_rules.hpp) makes such scales. quantize() and dequantize() need
// no special forms for them, because dividing and multiplying floats by a power of two is exact.
// The functions here are scalar code, which the compiler may vectorize.
#ifndef DETENT_POWER_OF_TWO_HPP
#define DETENT_POWER_OF_TWO_HPP

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>

#include <detent/elementwise/operands.hpp>
#include <detent/error.hpp>
#include <detent/fixed_point.hpp>
#include <detent/rounding.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The multiplier 2^exponent. With an exponent below -62, the product with any 32-bit number would
/// be at most 2^-32, so that such multipliers are not needed.
struct power_of_two {
  int exponent = 0;  ///< In [-62, 31].
  friend constexpr bool operator==(const power_of_two&, const power_of_two&) = default;
};

/// A rounding rule whose result depends on the value alone: every rule of namespace rounding except
/// stochastic.
template <class Rounding>
concept value_rounding_rule = std::invocable<const Rounding&, float> &&
    !std::invocable<const Rounding&, float, std::uint64_t>;

namespace reference {

/// accumulator * 2^exponent, rounded to an integer by the rule. The product is exact for every
/// accumulator, because it is computed with integers.
///
/// The rule is applied to a small float that has the sign of the product, the parity of its whole
/// part, and the fraction 0, 1/4, 1/2 or 3/4 in place of one that is 0, below 1/2, 1/2 or above. No
/// rule distinguishes more than that.
template <value_rounding_rule Rounding = rounding::half_even>
[[nodiscard]] std::int64_t scale_by(std::int32_t accumulator, power_of_two multiplier,
                                    const Rounding& rule = {}) noexcept {
  if (multiplier.exponent >= 0) {
    return static_cast<std::int64_t>(accumulator) * (std::int64_t{1} << multiplier.exponent);
  }
  const int right = -multiplier.exponent;
  const std::int64_t magnitude =
      accumulator < 0 ? -static_cast<std::int64_t>(accumulator) : accumulator;
  const std::int64_t rest = magnitude & ((std::int64_t{1} << right) - 1);
  const std::int64_t half = std::int64_t{1} << (right - 1);
  const std::int64_t whole = magnitude >> right;
  const float fraction = rest == 0 ? 0.0F : rest < half ? 0.25F : rest == half ? 0.5F : 0.75F;
  const float last = static_cast<float>(whole & 1) + fraction;
  const auto rounded = static_cast<std::int64_t>(rule(accumulator < 0 ? -last : last));
  const std::int64_t even = whole & ~std::int64_t{1};
  return accumulator < 0 ? rounded - even : rounded + even;
}

/// Requantizes one 32-bit sum: q = clamp(scale_by(accumulator, multiplier, rule) + zero_point,
/// qmin, qmax).
template <value_rounding_rule Rounding = rounding::half_even>
[[nodiscard]] std::int32_t requantize(std::int32_t accumulator, power_of_two multiplier,
                                      std::int32_t zero_point, grid levels,
                                      const Rounding& rule = {}) noexcept {
  return offset_to_grid(scale_by(accumulator, multiplier, rule), zero_point, levels);
}

}  // namespace reference

/// Converts a multiplier that is a power of two. Throws invalid_argument if it is not a power of
/// two or is outside 2^-62 .. 2^31. Thread-safe.
[[nodiscard]] inline power_of_two exact_power_of_two(double multiplier) {
  int exponent = 0;
  const bool is_power = std::isfinite(multiplier) && std::frexp(multiplier, &exponent) == 0.5;
  require(is_power && exponent >= -61 && exponent <= 32, error_kind::invalid_argument,
          "exact_power_of_two: ", multiplier, " is no power of two of 2^-62 .. 2^31");
  return {exponent - 1};
}

namespace detail {

template <class Q, std::size_t kExtent, class Rounding>
void requantize_by_shifts(std::span<const std::int32_t> acc, std::span<Q, kExtent> span,
                          std::span<const power_of_two> multipliers, std::int32_t zero_point,
                          grid levels, const Rounding& rule) {
  constexpr const char* where = "requantize";
  const std::span<Q> q = span;
  levels = checked_grid<Q>(levels, where);
  require_zero_point(zero_point, levels, where);
  require_spans(acc, q, where);
  require_columns(acc.size(), multipliers, where);
  for (const power_of_two m : multipliers) {
    require(m.exponent >= -62 && m.exponent <= 31, error_kind::invalid_argument, where,
            ": multiplier 2^", m.exponent, " is outside 2^-62 .. 2^31");
  }
  const std::size_t columns = multipliers.size();
  for (std::size_t row = 0; row < acc.size(); row += columns) {
    for (std::size_t j = 0; j < columns; ++j) {
      q[row + j] = static_cast<Q>(
          reference::requantize(acc[row + j], multipliers[j], zero_point, levels, rule));
    }
  }
}

}  // namespace detail

/// Requantizes 32-bit sums with one power-of-two multiplier:
///
///   q[i] = clamp(rounded(acc[i] * 2^exponent) + zero_point, qmin, qmax)
///
/// where the exact product is rounded once by the rule. q is a span, an array or a vector of 8- or
/// 16-bit integers and has the size of acc; they must not overlap. Throws shape_mismatch if the
/// sizes differ; invalid_argument if data is null, `levels` is not within q's type, zero_point is
/// not within `levels`, or the exponent is not in [-62, 31]. Nothing is written then. Thread-safe;
/// allocates nothing.
template <std::ranges::contiguous_range Out, value_rounding_rule Rounding = rounding::half_even>
requires quantized_type<std::ranges::range_value_t<Out>>
void requantize(std::span<const std::int32_t> acc, Out&& q, power_of_two multiplier,
                std::int32_t zero_point, grid levels = full_grid<std::ranges::range_value_t<Out>>,
                const Rounding& rule = {}) {
  detail::requantize_by_shifts(acc, std::span(q), std::span<const power_of_two>(&multiplier, 1),
                               zero_point, levels, rule);
}

/// Requantizes 32-bit sums with a power-of-two multiplier for each channel: acc is rows of
/// multipliers.size() elements, and in every row
///
///   q[j] = clamp(rounded(acc[j] * 2^multipliers[j].exponent) + zero_point, qmin, qmax)
///
/// where the exact product is rounded once by the rule. q is a span, an array or a vector of 8- or
/// 16-bit integers and has the size of acc; they must not overlap. Throws shape_mismatch if the
/// sizes differ or acc is not whole rows; invalid_argument if data is null, `levels` is not within
/// q's type, zero_point is not within `levels`, or an exponent is not in [-62, 31]. Nothing is
/// written then. Thread-safe; allocates nothing.
template <std::ranges::contiguous_range Out, value_rounding_rule Rounding = rounding::half_even>
requires quantized_type<std::ranges::range_value_t<Out>>
void requantize(std::span<const std::int32_t> acc, Out&& q,
                std::span<const power_of_two> multipliers, std::int32_t zero_point,
                grid levels = full_grid<std::ranges::range_value_t<Out>>,
                const Rounding& rule = {}) {
  detail::requantize_by_shifts(acc, std::span(q), multipliers, zero_point, levels, rule);
}

DETENT_NAMESPACE_END

#endif  // DETENT_POWER_OF_TWO_HPP
