// SPDX-License-Identifier: BSD-3-Clause
// Rounding rules, division and the place of the zero point as types, for code that must return what
// another engine returns. The canonical quantizer is quantize_policy<>: half_even, IEEE division,
// zero point added after rounding.
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
//   stochastic           floor(x) or floor(x) + 1, by chance and in proportion
//
// A rule is a callable on a float. It is exact for every float, independent of the floating-point
// environment's mode, keeps the sign of zeros (-0.25 rounds to -0), and returns integers,
// infinities and NaN as they are.
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

/// What a rule may look at. Of the magnitude, because |x| - trunc(|x|) is exact for every float;
/// x - floor(x) is not, for small negative x. Real and Bool are float and bool, or batches of them.
template <class Real, class Bool>
struct rounding_parts {
  Real fraction;  // of |x|, 0 <= fraction < 1
  Bool negative;  // x < 0; either for zeros
};

/// Rounds x away from zero if `rounds_away` says so for its parts, else toward zero.
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
  [[nodiscard]] float operator()(float x) const noexcept {
    return round_by(x, [](const auto& parts) { return Rule::rounds_away(parts); });
  }
};

/// Rounds by the rule, which may or may not need the element's index.
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

namespace rounding {

/// The nearest integer, ties to the even one: reference::round_half_even. The canonical rule.
struct half_even {
  [[nodiscard]] float operator()(float x) const noexcept { return reference::round_half_even(x); }
};

/// The nearest integer, ties toward +inf: floor(x + 1/2) in exact arithmetic.
struct half_up : detail::value_rounding<half_up> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.5F || (x.fraction == 0.5F && !x.negative);
  }
};

/// The nearest integer, ties toward -inf: ceil(x - 1/2) in exact arithmetic.
struct half_down : detail::value_rounding<half_down> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.5F || (x.fraction == 0.5F && x.negative);
  }
};

/// The nearest integer, ties toward zero: sign(x) * ceil(|x| - 1/2) in exact arithmetic.
struct half_toward_zero : detail::value_rounding<half_toward_zero> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.5F;
  }
};

/// The nearest integer, ties away from zero: sign(x) * floor(|x| + 1/2) in exact arithmetic.
struct half_away_from_zero : detail::value_rounding<half_away_from_zero> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction >= 0.5F;
  }
};

/// ceil(x).
struct up : detail::value_rounding<up> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.0F && !x.negative;
  }
};

/// floor(x).
struct down : detail::value_rounding<down> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x) noexcept {
    return x.fraction > 0.0F && x.negative;
  }
};

/// trunc(x).
struct toward_zero : detail::value_rounding<toward_zero> {
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>&) noexcept {
    return Bool(false);
  }
};

/// floor(x) + (uniform(index) < x - floor(x) ? 1 : 0), compared in exact arithmetic: the mean of
/// the result is x within 2^-24, and integers are never changed.
///
/// `index` is the element's position in its tensor. The random bits depend on the seed and on it
/// alone, so that any split of a tensor over calls, threads or lanes gives the same result.
struct stochastic {
  std::uint64_t seed = 0;

  /// Output number `index`, counted from 0, of the generator SplitMix64 started from `seed`. Its
  /// state is a counter, so that every output can be computed by itself. G. L. Steele, D. Lea,
  /// C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the finalizer is
  /// variant 13 of D. Stafford's.
  [[nodiscard]] std::uint64_t bits(std::uint64_t index) const noexcept {
    std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  /// A multiple of 2^-24 in [0, 1): the 24 highest bits.
  [[nodiscard]] float uniform(std::uint64_t index) const noexcept {
    return static_cast<float>(static_cast<std::int32_t>(bits(index) >> 40)) * 0x1p-24F;
  }

  /// Below zero, where x - floor(x) = 1 - fraction, both sides are taken from 1: 1 - uniform is
  /// exact, 1 - fraction need not be.
  template <class Real, class Bool>
  [[nodiscard]] static Bool rounds_away(const detail::rounding_parts<Real, Bool>& x,
                                        const Real& uniform) noexcept {
    return (x.fraction > uniform && !x.negative) ||
           (x.fraction >= Real(1.0F) - uniform && x.negative);
  }

  [[nodiscard]] float operator()(float x, std::uint64_t index) const noexcept {
    return detail::round_by(
        x, [u = uniform(index)](const auto& parts) { return rounds_away(parts, u); });
  }
};

}  // namespace rounding

/// How a real becomes a number of steps, on floats or on batches of them.
namespace division {

/// x / scale, the IEEE quotient. Canonical.
struct divide {
  template <class Real>
  [[nodiscard]] Real operator()(const Real& x, const Real& scale) const noexcept {
    return x / scale;
  }
};

/// x * (1 / scale), with the reciprocal and the product rounded once each. It differs from the
/// quotient in the last bit, which shows next to ties. The reciprocal of a scale up to 2^-128 is
/// +inf: every x but 0 saturates, and 0 gives the zero point as ever.
struct reciprocal {
  template <class Real>
  [[nodiscard]] Real operator()(const Real& x, const Real& scale) const noexcept {
    return x * (Real(1.0F) / scale);
  }
};

}  // namespace division

/// Where the zero point is added.
namespace zero_point_order {

/// q = clamp(round(steps) + zero_point). Canonical: ties do not move with the zero point.
struct after_rounding {};

/// q = clamp(round(steps + float(zero_point))), with the sum rounded to float.
struct before_rounding {};

}  // namespace zero_point_order

/// A quantizer's rules. A policy without a seed is empty: quantize_policy<rounding::half_up>{}.
template <class Rounding = rounding::half_even, class Division = division::divide,
          class Order = zero_point_order::after_rounding>
struct quantize_policy {
  using division_type = Division;
  using order_type = Order;
  Rounding rounding{};
};

namespace reference {

/// to_grid by the policy's rounding rule and order. NaN gives the zero point; infinities saturate.
/// qmin <= zero_point <= qmax, all in -65536..65535. `index` is the element's, for rules that need
/// it.
template <class Policy>
[[nodiscard]] std::int32_t to_grid(float steps, std::int32_t zero_point, grid levels,
                                   const Policy& policy, std::uint64_t index = 0) noexcept {
  if (std::isnan(steps)) {
    return zero_point;
  }
  // As in the canonical to_grid, clamping first changes no result: rules and sums are monotonic,
  // and the bounds are integers, which they keep. It also stands between a product and the sum with
  // the zero point, which must not be contracted.
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

/// q = clamp(round(x / scale) + zero_point, qmin, qmax), with the policy's rounding rule, division
/// and order. Arguments as of to_grid; scale is positive and finite. With quantize_policy<> the
/// canonical quantize.
template <class Policy>
[[nodiscard]] std::int32_t quantize(float x, quant_params p, grid levels, const Policy& policy,
                                    std::uint64_t index = 0) noexcept {
  const float steps = typename Policy::division_type{}(x, p.scale);
  return to_grid(steps, p.zero_point, levels, policy, index);
}

/// q = clamp(round(float(accumulator) * multiplier) + zero_point, qmin, qmax), with the policy's
/// rounding rule and order; there is nothing to divide. float(accumulator) rounds half to even
/// above 2^24 under every policy.
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
