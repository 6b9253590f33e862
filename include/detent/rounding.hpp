// SPDX-License-Identifier: BSD-3-Clause
// Rounding rules, kinds of division and places of the zero point as types, and the quantizer that
// they configure, for code that must return what another engine returns. The canonical quantizer is
// quantize_policy<>: half_even, IEEE division, zero point added after rounding.
//
//   x                    -2.5  -1.5 -0.75  -0.5 -0.25  0.25   0.5  0.75   1.5   2.5
//   half_even              -2    -2    -1    -0    -0     0     0     1     2     2
//   half_up                -2    -1    -1    -0    -0     0     1     1     2     3
//   half_down              -3    -2    -1    -1    -0     0     0     1     1     2
//   half_toward_zero       -2    -1    -1    -0    -0     0     0     1     1     2
//   half_away_from_zero    -3    -2    -1    -1    -0     0     1     1     2     3
//   up                     -2    -1    -0    -0    -0     1     1     1     2     3
//   down                   -3    -2    -1    -1    -1     0     0     0     1     2
//   toward_zero            -2    -1    -0    -0    -0     0     0     0     1     2
//   stochastic           floor(x) or floor(x) + 1, at random, such that the mean is x
//
// A rule is a callable on a float. It is exact for every float, does not depend on the rounding
// mode of the floating-point environment, keeps the sign of zeros (-0.25 rounds to -0), and returns
// integers, infinities and NaN as they are.
#ifndef DETENT_ROUNDING_HPP
#define DETENT_ROUNDING_HPP

#include <cmath>
#include <concepts>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The properties of x that a rule may look at. The fraction is that of the magnitude, because
/// |x| - trunc(|x|) is exact for every float, while x - floor(x) is not for small negative x. Real
/// and Bool are float and bool, or batches of them.
template <class Real, class Bool>
struct rounding_parts {
  Real fraction;  // |x| - trunc(|x|), 0 <= fraction < 1
  Bool negative;  // whether x < 0; may be either for zeros
};

/// Rounds x away from zero if `rounds_away` is true for its parts, else toward zero.
template <class Predicate>
[[nodiscard]] float round_by(float x, Predicate rounds_away) noexcept {
  constexpr float no_fraction = 8388608.0F;  // 2^23: every larger float is an integer
  const float magnitude = std::fabs(x);
  if (!(magnitude < no_fraction)) {
    return x;
  }
  const auto whole = static_cast<std::int32_t>(magnitude);
  const rounding_parts<float, bool> parts{magnitude - static_cast<float>(whole), std::signbit(x)};
  return std::copysign(static_cast<float>(rounds_away(parts) ? whole + 1 : whole), x);
}

/// A rule whose decision, Rule::rounds_away(parts), depends on the value alone.
template <class Rule>
struct value_rounding {
  /// The integer that x is rounded to.
  [[nodiscard]] float operator()(float x) const noexcept {
    return round_by(x, [](const auto& parts) { return Rule::rounds_away(parts); });
  }
};

/// Rounds x by the rule, passing the element's index if the rule takes one.
template <class Rounding>
[[nodiscard]] float round_element(float x, const Rounding& rule,
                                  [[maybe_unused]] std::uint64_t index) noexcept {
  if constexpr (std::invocable<const Rounding&, float, std::uint64_t>) {
    return rule(x, index);
  } else {
    return rule(x);
  }
}

}  // namespace detail

/// Rules that round a float to an integer. A rule is exact for every float, keeps the sign of
/// zeros, and returns integers, infinities and NaN as they are.
namespace rounding {

/// Rounds to the nearest integer, ties to the even one: reference::round_half_even. This is the
/// canonical rule.
struct half_even {
  /// The integer that x is rounded to.
  [[nodiscard]] float operator()(float x) const noexcept { return reference::round_half_even(x); }
};

/// Rounds to the nearest integer, ties toward +inf: floor(x + 1/2) in exact arithmetic.
struct half_up : detail::value_rounding<half_up> {
  /// Whether |x| is rounded up; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.5F || (x.fraction == 0.5F && !x.negative);
  }
};

/// Rounds to the nearest integer, ties toward -inf: ceil(x - 1/2) in exact arithmetic.
struct half_down : detail::value_rounding<half_down> {
  /// Whether |x| is rounded up; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.5F || (x.fraction == 0.5F && x.negative);
  }
};

/// Rounds to the nearest integer, ties toward zero: sign(x) * ceil(|x| - 1/2) in exact arithmetic.
struct half_toward_zero : detail::value_rounding<half_toward_zero> {
  /// Whether |x| is rounded up; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.5F;
  }
};

/// Rounds to the nearest integer, ties away from zero: sign(x) * floor(|x| + 1/2) in exact
/// arithmetic.
struct half_away_from_zero : detail::value_rounding<half_away_from_zero> {
  /// Whether |x| is rounded up; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction >= 0.5F;
  }
};

/// Rounds toward +inf: ceil(x).
struct up : detail::value_rounding<up> {
  /// Whether |x| is rounded up; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.0F && !x.negative;
  }
};

/// Rounds toward -inf: floor(x).
struct down : detail::value_rounding<down> {
  /// Whether |x| is rounded up; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.0F && x.negative;
  }
};

/// Rounds toward zero: trunc(x).
struct toward_zero : detail::value_rounding<toward_zero> {
  /// Always false; Real and Bool are float and bool, or batches of them.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>&) noexcept {
    return Bool(false);
  }
};

/// Rounds down or up at random: floor(x) + (uniform(index) < x - floor(x) ? 1 : 0), compared in
/// exact arithmetic. The mean of the result is x within 2^-24, and integers are never changed.
///
/// `index` is the element's position in its tensor. The random bits depend only on the seed and the
/// index, so that any split of a tensor over calls, threads or lanes gives the same result.
struct stochastic {
  std::uint64_t seed = 0;  ///< Selects the sequence of random numbers.

  /// The output number `index`, counted from 0, of the generator SplitMix64 started from `seed`.
  /// The state of this generator is a counter, so that every output can be computed by itself.
  /// Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
  /// OOPSLA 2014; the finalizer is variant 13 of D. Stafford's.
  [[nodiscard]] std::uint64_t bits(std::uint64_t index) const noexcept {
    std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  /// The random number of element `index`: a multiple of 2^-24 in [0, 1), made of the 24 highest
  /// bits of bits(index).
  [[nodiscard]] float uniform(std::uint64_t index) const noexcept {
    return static_cast<float>(static_cast<std::int32_t>(bits(index) >> 40)) * 0x1p-24F;
  }

  /// Whether |x| is rounded up, given the random number of the element. For negative x, where
  /// x - floor(x) = 1 - fraction, both sides of the comparison are subtracted from 1, because
  /// 1 - uniform is exact and 1 - fraction need not be.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x,
                                        const Real& uniform) noexcept {
    return (x.fraction > uniform && !x.negative) ||
           (x.fraction >= Real(1.0F) - uniform && x.negative);
  }

  /// The integer that x is rounded to as element `index` of its tensor.
  [[nodiscard]] float operator()(float x, std::uint64_t index) const noexcept {
    return detail::round_by(
        x, [u = uniform(index)](const auto& parts) { return rounds_away(parts, u); });
  }
};

}  // namespace rounding

/// Ways to divide a real by the scale, for floats and for batches of them.
namespace division {

/// Divides: x / scale, the IEEE quotient. This is the canonical way.
struct divide {
  /// x / scale.
  template <class Real>
  [[nodiscard]] Real operator()(const Real& x, const Real& scale) const noexcept {
    return x / scale;
  }
};

/// Multiplies by the reciprocal: x * (1 / scale), with the reciprocal and the product rounded once
/// each. The result can differ from the quotient in the last bit, which changes quantized values
/// next to ties. The reciprocal of a scale up to 2^-128 is +inf: then every x but 0 saturates, and
/// 0 gives the zero point as always.
struct reciprocal {
  /// x * (1 / scale).
  template <class Real>
  [[nodiscard]] Real operator()(const Real& x, const Real& scale) const noexcept {
    return x * (Real(1.0F) / scale);
  }
};

}  // namespace division

/// The two places where a quantizer may add the zero point: after or before rounding.
namespace zero_point_order {

/// q = clamp(round(steps) + zero_point). This is the canonical order: ties do not move with the
/// zero point.
struct after_rounding {};

/// q = clamp(round(steps + float(zero_point))), where the sum is rounded to float before the rule
/// rounds it to an integer.
struct before_rounding {};

}  // namespace zero_point_order

/// The choices that make up a quantizer: a rounding rule, a kind of division and the place of the
/// zero point. `quantize_policy<>` is the canonical quantizer. Only rounding::stochastic has a
/// value to set, its seed; other policies are written `quantize_policy<rounding::half_up>{}`.
template <class Rounding = rounding::half_even, class Division = division::divide,
          class Order = zero_point_order::after_rounding>
struct quantize_policy {
  using division_type = Division;  ///< division::divide or division::reciprocal.
  using order_type = Order;        ///< A type of namespace zero_point_order.
  Rounding rounding{};             ///< The rounding rule.
};

namespace reference {

/// Puts a real, given in steps of the grid, on the grid with the policy's rounding rule and place
/// of the zero point: clamp(round(steps) + zero_point, qmin, qmax), or with the zero point added
/// before rounding. NaN gives the zero point; infinities saturate. Requires qmin <= zero_point <=
/// qmax, all in -65536..65535. `index` is the position of the element in its tensor, for rules that
/// need it.
template <class Policy>
[[nodiscard]] std::int32_t to_grid(float steps, std::int32_t zero_point, grid levels,
                                   const Policy& policy, std::uint64_t index = 0) noexcept {
  if (std::isnan(steps)) {
    return zero_point;
  }
  // Clamping first changes no result, as in the canonical to_grid: rules and sums are monotonic and
  // leave the bounds, which are integers, as they are. Clamping also separates a product from the
  // sum with the zero point, so that the compiler cannot contract them.
  const float clamped = clamp(steps, static_cast<float>(levels.qmin - zero_point),
                              static_cast<float>(levels.qmax - zero_point));
  if constexpr (std::same_as<typename Policy::order_type, zero_point_order::before_rounding>) {
    const float shifted = clamped + static_cast<float>(zero_point);
    return static_cast<std::int32_t>(detail::round_element(shifted, policy.rounding, index));
  } else {
    return static_cast<std::int32_t>(detail::round_element(clamped, policy.rounding, index)) +
           zero_point;
  }
}

/// Quantizes one float with the policy's rounding rule, division and place of the zero point:
/// q = clamp(round(x / scale) + zero_point, qmin, qmax). With `quantize_policy<>` this is the
/// canonical quantize(). NaN gives the zero point; infinities saturate. Requires a positive finite
/// scale and qmin <= zero_point <= qmax, all in -65536..65535. `index` is the position of the
/// element in its tensor, for rules that need it.
template <class Policy>
[[nodiscard]] std::int32_t quantize(float x, quant_params p, grid levels, const Policy& policy,
                                    std::uint64_t index = 0) noexcept {
  const float steps = typename Policy::division_type{}(x, p.scale);
  return to_grid(steps, p.zero_point, levels, policy, index);
}

/// Requantizes one 32-bit sum with the policy's rounding rule and place of the zero point:
/// q = clamp(round(float(accumulator) * multiplier) + zero_point, qmin, qmax). The policy's
/// division is not used. float(accumulator) rounds half to even above 2^24 under every policy.
/// Requires qmin <= zero_point <= qmax, all in -65536..65535. `index` is the position of the
/// element in its tensor, for rules that need it.
template <class Policy>
[[nodiscard]] std::int32_t requantize(std::int32_t accumulator, float multiplier,
                                      std::int32_t zero_point, grid levels, const Policy& policy,
                                      std::uint64_t index = 0) noexcept {
  const float steps = static_cast<float>(accumulator) * multiplier;
  return to_grid(steps, zero_point, levels, policy, index);
}

}  // namespace reference
DETENT_NAMESPACE_END

#endif  // DETENT_ROUNDING_HPP
