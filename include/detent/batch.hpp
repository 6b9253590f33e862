// SPDX-License-Identifier: BSD-3-Clause
// The quantizer on xsimd registers, for callers who fuse it into their own loops:
//
//   using floats = xsimd::batch<float>;
//   const floats x = xsimd::max(floats::load_unaligned(in) + bias, floats(0.0F));
//   detent::batch::store_8bit(out, detent::batch::quantize(x, params, levels));
//
// In every lane, a function returns the bits of the function of the same name in namespace
// detent::reference, for every input, under every policy of rounding.hpp and on every architecture,
// whether or not the compiler contracts products and sums. This says nothing about the caller's own
// operations before and after it.
//
// Parameters are either one pair for all lanes (quant_params) or one pair for each lane
// (lane_params), which suits loops whose lanes are channels. As in namespace reference, nothing is
// checked: scales are positive and finite, qmin <= zero_point <= qmax, all in -65536..65535. The
// functions have no state, rely on the default rounding mode, and are compiled at the flags of the
// including translation unit. Without xsimd, quantize(), dequantize(), requantize(),
// fake_quantize() and store_8bit() take single values instead of registers, so that functors which
// are written for `auto` compile there, too.
#ifndef DETENT_BATCH_HPP
#define DETENT_BATCH_HPP

#include <detent/config.hpp>
#include <detent/rounding.hpp>
#include <detent/types.hpp>

#if DETENT_WITH_XSIMD

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <xsimd/xsimd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own AVX-512 intrinsics, which leave operands undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

DETENT_NAMESPACE_BEGIN
/// The quantizer on xsimd registers: every lane gets the bits of the function of the same name in
/// namespace reference. Arguments are not checked.
namespace batch {

/// A register of floats on the xsimd architecture Arch.
template <class Arch>
using floats = xsimd::batch<float, Arch>;
/// A register of 32-bit integers on the xsimd architecture Arch.
template <class Arch>
using integers = xsimd::batch<std::int32_t, Arch>;

/// A scale and a zero point for each lane. requantize() takes the multiplier as the scale.
template <class Arch>
struct lane_params {
  floats<Arch> scale;         ///< Scales, or multipliers of requantize(); positive and finite.
  integers<Arch> zero_point;  ///< Zero points.

  /// Parameters that may differ from lane to lane.
  lane_params(const floats<Arch>& scale_, const integers<Arch>& zero_point_) noexcept
      : scale(scale_), zero_point(zero_point_) {}
  /// One scale and one zero point for all lanes.
  lane_params(quant_params p) noexcept  // NOLINT(google-explicit-constructor)
      : scale(p.scale), zero_point(p.zero_point) {}
};

}  // namespace batch

namespace detail {

/// The uniform random numbers of the elements index, index + 1, ... of the rule's sequence.
template <class Arch>
[[nodiscard]] batch::floats<Arch> uniform_lanes(const rounding::stochastic& rule,
                                                std::uint64_t index) noexcept {
  alignas(Arch::alignment()) float lanes[batch::floats<Arch>::size];
  for (float& lane : lanes) {
    lane = rule.uniform(index++);
  }
  return batch::floats<Arch>::load_aligned(lanes);
}

/// Rounds by the rule to int32. Requires |x| < 2^23, not NaN.
template <class Rounding, class Arch>
[[nodiscard]] batch::integers<Arch> round_lanes(const batch::floats<Arch>& x, const Rounding& rule,
                                                [[maybe_unused]] std::uint64_t index) noexcept {
  using floats = batch::floats<Arch>;
  using integers = batch::integers<Arch>;
  if constexpr (std::same_as<Rounding, rounding::half_even>) {
    return xsimd::nearbyint_as_int(x);  // one instruction on most processors
  } else {
    const floats magnitude = xsimd::abs(x);
    const integers whole = xsimd::to_int(magnitude);
    const rounding_parts<floats, xsimd::batch_bool<float, Arch>> parts{
        magnitude - xsimd::to_float(whole), x < floats(0.0F)};
    const auto rounds_away = [&] {
      if constexpr (std::same_as<Rounding, rounding::stochastic>) {
        return rule.rounds_away(parts, uniform_lanes<Arch>(rule, index));
      } else {
        return rule.rounds_away(parts);
      }
    }();
    const integers rounded = xsimd::select(xsimd::batch_bool_cast<std::int32_t>(rounds_away),
                                           whole + integers(1), whole);
    return xsimd::select(xsimd::batch_bool_cast<std::int32_t>(parts.negative), -rounded, rounded);
  }
}

}  // namespace detail

namespace batch {

/// reference::to_grid in every lane: rounds reals that are given in steps of the grid, adds the
/// zero point and saturates. NaN gives the zero point; infinities saturate. For rules that need the
/// element's index (rounding::stochastic), lane i is element index + i.
template <class Arch, class Policy = quantize_policy<>>
[[nodiscard]] integers<Arch> clamp_round(const floats<Arch>& steps,
                                         const std::type_identity_t<integers<Arch>>& zero_point,
                                         grid levels, const Policy& policy = {},
                                         std::uint64_t index = 0) noexcept {
  // NaN is replaced by 0, which becomes the zero point in both orders. Clamping comes first for the
  // reasons that reference::to_grid gives, and keeps the conversion to int32 in range.
  const floats<Arch> number = xsimd::select(xsimd::isnan(steps), floats<Arch>(0.0F), steps);
  const floats<Arch> clamped =
      xsimd::clip(number, xsimd::to_float(integers<Arch>(levels.qmin) - zero_point),
                  xsimd::to_float(integers<Arch>(levels.qmax) - zero_point));
  if constexpr (std::same_as<typename Policy::order_type, zero_point_order::before_rounding>) {
    return detail::round_lanes(clamped + xsimd::to_float(zero_point), policy.rounding, index);
  } else {
    return detail::round_lanes(clamped, policy.rounding, index) + zero_point;
  }
}

/// reference::quantize in every lane: q = clamp(round(x / scale) + zero_point, qmin, qmax), with
/// the rounding, division and order of the policy. NaN gives the zero point; infinities saturate.
/// Lane i is element index + i for rules that need the element's index.
template <class Arch, class Policy = quantize_policy<>>
[[nodiscard]] integers<Arch> quantize(const floats<Arch>& x,
                                      const std::type_identity_t<lane_params<Arch>>& p, grid levels,
                                      const Policy& policy = {}, std::uint64_t index = 0) noexcept {
  const floats<Arch> steps = typename Policy::division_type{}(x, p.scale);
  return clamp_round(steps, p.zero_point, levels, policy, index);
}

/// reference::dequantize in every lane: x = float(q - zero_point) * scale.
template <class Arch>
[[nodiscard]] floats<Arch> dequantize(const integers<Arch>& q,
                                      const std::type_identity_t<lane_params<Arch>>& p) noexcept {
  return xsimd::to_float(q - p.zero_point) * p.scale;
}

/// reference::requantize in every lane:
/// q = clamp(round(float(accumulator) * p.scale) + p.zero_point, qmin, qmax), where p.scale is the
/// multiplier and p.zero_point the zero point of the output. Lane i is element index + i for rules
/// that need the element's index.
template <class Arch, class Policy = quantize_policy<>>
[[nodiscard]] integers<Arch> requantize(const integers<Arch>& accumulator,
                                        const std::type_identity_t<lane_params<Arch>>& p,
                                        grid levels, const Policy& policy = {},
                                        std::uint64_t index = 0) noexcept {
  const floats<Arch> steps = xsimd::to_float(accumulator) * p.scale;
  return clamp_round(steps, p.zero_point, levels, policy, index);
}

/// dequantize(quantize(x)) in every lane: the real that the quantized x stands for. NaN gives 0;
/// infinities saturate. Lane i is element index + i for rules that need the element's index.
template <class Arch, class Policy = quantize_policy<>>
[[nodiscard]] floats<Arch> fake_quantize(const floats<Arch>& x,
                                         const std::type_identity_t<lane_params<Arch>>& p,
                                         grid levels, const Policy& policy = {},
                                         std::uint64_t index = 0) noexcept {
  return dequantize(quantize(x, p, levels, policy, index), p);
}

/// Writes the lanes to out[0], out[1], ... as 8- or 16-bit integers of the type Q. `out` need not
/// be aligned. The values must be in the range of Q; this is not checked.
template <quantized_type Q, class Arch>
void store_8bit(Q* out, const integers<Arch>& q) noexcept {
  alignas(Arch::alignment()) std::int32_t lanes[integers<Arch>::size];
  q.store_aligned(lanes);
  for (std::size_t i = 0; i < integers<Arch>::size; ++i) {
    out[i] = static_cast<Q>(lanes[i]);
  }
}

/// Writes the first `count` lanes to out[0] .. out[count - 1] as 8- or 16-bit integers of the type
/// Q. Nothing behind them is written.
template <quantized_type Q, class Arch>
void store_8bit(Q* out, const integers<Arch>& q, std::size_t count) noexcept {
  if (count >= integers<Arch>::size) {
    store_8bit(out, q);
    return;
  }
  alignas(Arch::alignment()) std::int32_t lanes[integers<Arch>::size];
  q.store_aligned(lanes);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<Q>(lanes[i]);
  }
}

}  // namespace batch
DETENT_NAMESPACE_END

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#else  // DETENT_WITH_XSIMD

#include <cstddef>
#include <cstdint>

#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace batch {

/// The quantized value of a single real, reference::quantize.
template <class Policy = quantize_policy<>>
[[nodiscard]] std::int32_t quantize(float x, quant_params p, grid levels, const Policy& policy = {},
                                    std::uint64_t index = 0) noexcept {
  return reference::quantize(x, p, levels, policy, index);
}
/// The real that a single quantized value stands for, reference::dequantize.
[[nodiscard]] inline float dequantize(std::int32_t q, quant_params p) noexcept {
  return reference::dequantize(q, p);
}
/// The quantized value of a single 32-bit sum, reference::requantize with p.scale as multiplier.
template <class Policy = quantize_policy<>>
[[nodiscard]] std::int32_t requantize(std::int32_t accumulator, quant_params p, grid levels,
                                      const Policy& policy = {}, std::uint64_t index = 0) noexcept {
  return reference::requantize(accumulator, p.scale, p.zero_point, levels, policy, index);
}
/// dequantize(quantize(x)) of a single real.
template <class Policy = quantize_policy<>>
[[nodiscard]] float fake_quantize(float x, quant_params p, grid levels, const Policy& policy = {},
                                  std::uint64_t index = 0) noexcept {
  return dequantize(quantize(x, p, levels, policy, index), p);
}
/// Writes the value to out[0] as an 8- or 16-bit integer of the type Q.
template <quantized_type Q>
void store_8bit(Q* out, std::int32_t q) noexcept {
  *out = static_cast<Q>(q);
}
/// Writes the value to out[0] as an 8- or 16-bit integer of the type Q, if `count` is not 0.
template <quantized_type Q>
void store_8bit(Q* out, std::int32_t q, std::size_t count) noexcept {
  if (count != 0) {
    *out = static_cast<Q>(q);
  }
}

}  // namespace batch
DETENT_NAMESPACE_END

#endif  // DETENT_WITH_XSIMD

#endif  // DETENT_BATCH_HPP
