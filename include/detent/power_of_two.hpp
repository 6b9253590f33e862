// SPDX-License-Identifier: BSD-3-Clause
// Requantization by shifts alone, for engines whose scales are powers of two:
//
//   q = clamp(rounded(acc * 2^exponent) + zero_point, qmin, qmax)
//
// The product is exact and rounded once, by any rule of rounding.hpp that looks at the value alone.
// project_to_power_of_two() (scale_rules.hpp) makes such scales. Quantizing and dequantizing by
// them needs nothing of its own: dividing and multiplying floats by a power of two is exact.
// Scalar code, left to the compiler to vectorize.
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

/// 2^exponent, with exponent in [-62, 31]. Below, any 32-bit number times it is less than 2^-31.
struct power_of_two {
  int exponent = 0;
  friend constexpr bool operator==(const power_of_two&, const power_of_two&) = default;
};

/// A rule whose result depends on the value alone: all but stochastic.
template <class Rounding>
concept value_rounding_rule = std::invocable<const Rounding&, float> &&
    !std::invocable<const Rounding&, float, std::uint64_t>;

namespace reference {

/// acc * 2^exponent, rounded by the rule: with integers alone and for every accumulator.
///
/// A rule is told the parity of the whole part of |acc * 2^exponent| and in which quarter the rest
/// lies, which is all that any of them looks at.
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

/// The definition above.
template <value_rounding_rule Rounding = rounding::half_even>
[[nodiscard]] std::int32_t requantize(std::int32_t accumulator, power_of_two multiplier,
                                      std::int32_t zero_point, grid levels,
                                      const Rounding& rule = {}) noexcept {
  return offset_to_grid(scale_by(accumulator, multiplier, rule), zero_point, levels);
}

}  // namespace reference

/// The exponent of a multiplier that is a power of two. Throws invalid_argument if it is none, or
/// one beyond 2^-62 .. 2^31.
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
  require_grid<Q>(levels, where);
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

/// q[i] = reference::requantize(acc[i], ...). Per tensor. q is a span, an array or a vector of 8-
/// or 16-bit integers. levels within the type, zero_point within levels. Inputs and outputs do not
/// overlap. Thread-safe, allocates nothing, and throws detent::error (invalid_argument,
/// shape_mismatch) before it writes anything.
template <std::ranges::contiguous_range Out, value_rounding_rule Rounding = rounding::half_even>
requires quantized_type<std::ranges::range_value_t<Out>>
void requantize(std::span<const std::int32_t> acc, Out&& q, power_of_two multiplier,
                std::int32_t zero_point, grid levels = full_grid<std::ranges::range_value_t<Out>>,
                const Rounding& rule = {}) {
  detail::requantize_by_shifts(acc, std::span(q), std::span<const power_of_two>(&multiplier, 1),
                               zero_point, levels, rule);
}

/// The same per channel: acc is rows of multipliers.size() elements, column j takes multipliers[j].
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
