// SPDX-License-Identifier: BSD-3-Clause
// Quantization of the 32-bit bias of an integer product, and the search for weight scales with
// which the bias cannot overflow.
//
//   bias_q[c] = saturate(round_half_even(bias[c] / (input_scale * weight_scale[c])))
//
// All functions are thread-safe, allocate nothing, and throw detent::error before they write
// anything.
#ifndef DETENT_BIAS_HPP
#define DETENT_BIAS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace reference {

/// The bias in steps of the product's scale, not saturated:
/// round_half_even(bias / (input_scale * weight_scale)). Computed in double, where the product of
/// two floats is exact; the quotient is rounded once. NaN and infinities are returned as they are.
[[nodiscard]] inline double bias_steps(float bias, float input_scale, float weight_scale) noexcept {
  const double scale = static_cast<double>(input_scale) * static_cast<double>(weight_scale);
  return round_half_even(static_cast<double>(bias) / scale);
}

/// The quantized bias: bias_steps() saturated to 32 bits. NaN gives 0, the zero point of a bias;
/// infinities saturate. Both scales must be positive and finite.
[[nodiscard]] inline std::int32_t quantize_bias(float bias, float input_scale,
                                                float weight_scale) noexcept {
  constexpr double lowest = std::numeric_limits<std::int32_t>::min();
  constexpr double highest = std::numeric_limits<std::int32_t>::max();
  const double steps = bias_steps(bias, input_scale, weight_scale);
  if (std::isnan(steps)) {
    return 0;
  }
  return static_cast<std::int32_t>(steps < lowest ? lowest : steps > highest ? highest : steps);
}

/// Whether |bias_steps(...)| + accumulator_bound <= 2^31 - 1. Then no sum of the integer product
/// can overflow with the bias included, if `accumulator_bound` is the largest |sum| without it.
[[nodiscard]] inline bool is_bias_safe(float bias, float input_scale, float weight_scale,
                                       std::int64_t accumulator_bound) noexcept {
  const double limit =
      static_cast<double>(std::numeric_limits<std::int32_t>::max() - accumulator_bound);
  return std::fabs(bias_steps(bias, input_scale, weight_scale)) <= limit;
}

/// The smallest float >= weight_scale for which is_bias_safe() is true, or FLT_MAX if there is
/// none. `bias` must be finite, both scales positive and finite, and accumulator_bound in
/// 0..2^31-1.
///
/// With limit = 2^31 - 1 - accumulator_bound, real arithmetic would ask for
///
///   |bias| / (input_scale * scale) <= limit + 1/2    (< if limit is odd: ties go to even)
///
/// The search begins at the float nearest to bound = |bias| / (input_scale * (limit + 1/2)), or at
/// weight_scale if that is larger, and steps upwards.
///
/// The result is safe: the search ends at a float that is_bias_safe() has accepted, and this is the
/// promise itself, tested on the numbers that quantize_bias() computes. It needs no error analysis.
///
/// The result is the smallest one: is_bias_safe() is monotone in the scale (the product is exact,
/// and rounding a quotient keeps its order). It is therefore enough that the float before the one
/// where the search begins is not safe. If the search begins at weight_scale, there is nothing to
/// show. Otherwise that float is below the bound by at least half its step, 2^-25 of its value. Its
/// quotient is as far above limit + 1/2, and the rounding errors in double, 2^-51 together, cannot
/// bridge that.
[[nodiscard]] inline float bias_safe_weight_scale(float bias, float input_scale, float weight_scale,
                                                  std::int64_t accumulator_bound) noexcept {
  constexpr float largest = std::numeric_limits<float>::max();
  if (is_bias_safe(bias, input_scale, weight_scale, accumulator_bound)) {
    return weight_scale;
  }
  const double limit =
      static_cast<double>(std::numeric_limits<std::int32_t>::max() - accumulator_bound);
  const double bound =
      std::fabs(static_cast<double>(bias)) / (static_cast<double>(input_scale) * (limit + 0.5));
  float scale = bound < static_cast<double>(largest) ? static_cast<float>(bound) : largest;
  scale = scale > weight_scale ? scale : weight_scale;
  while (scale < largest && !is_bias_safe(bias, input_scale, scale, accumulator_bound)) {
    scale = std::nextafter(scale, largest);
  }
  return scale;
}

}  // namespace reference

namespace detail {

/// The scale of a channel; `weight_scales` has one scale for each channel, or one for all.
[[nodiscard]] inline float weight_scale_of(std::span<const float> weight_scales,
                                           std::size_t channel) noexcept {
  return weight_scales.size() == 1 ? weight_scales[0] : weight_scales[channel];
}

template <class Out>
void require_bias_arguments(std::span<const float> bias, float input_scale,
                            std::span<const float> weight_scales, std::span<Out> out,
                            const char* where) {
  require_spans(bias, out, where);
  require(weight_scales.size() == 1 || weight_scales.size() == bias.size(),
          error_kind::shape_mismatch, where, ": ", weight_scales.size(), " weight scales for ",
          bias.size(), " channels");
  require(std::isfinite(input_scale) && input_scale > 0.0F, error_kind::invalid_argument, where,
          ": input scale ", input_scale, " is not a positive finite number");
  for (std::size_t c = 0; c < weight_scales.size(); ++c) {
    require(std::isfinite(weight_scales[c]) && weight_scales[c] > 0.0F,
            error_kind::invalid_argument, where, ": weight scale ", weight_scales[c],
            " of channel ", c, " is not a positive finite number");
  }
}

}  // namespace detail

/// Quantizes the bias of an integer product to 32 bits:
///
///   out[c] = saturate(round_half_even(bias[c] / (input_scale * weight_scale[c])))
///
/// where the left side of the product has the scale input_scale and the weights have one scale for
/// each channel, or one for all. Product and quotient are computed in double; infinities saturate.
/// `out` must not overlap an input.
///
/// Throws shape_mismatch if `out` does not have the size of `bias`, or `weight_scales` has neither
/// that size nor one element; invalid_argument if data is null, a scale is not positive and finite,
/// or a bias is NaN. Nothing is written then. Thread-safe.
inline void quantize_bias(std::span<const float> bias, float input_scale,
                          std::span<const float> weight_scales, std::span<std::int32_t> out) {
  detail::require_bias_arguments(bias, input_scale, weight_scales, out, "quantize_bias");
  for (std::size_t c = 0; c < bias.size(); ++c) {
    require(!std::isnan(bias[c]), error_kind::invalid_argument, "quantize_bias: bias of channel ",
            c, " is NaN");
  }
  for (std::size_t c = 0; c < bias.size(); ++c) {
    out[c] =
        reference::quantize_bias(bias[c], input_scale, detail::weight_scale_of(weight_scales, c));
  }
}

/// Raises weight scales as little as possible so that the quantized bias does not overflow: out[c]
/// is the smallest float >= the given scale of channel c for which
///
///   |round_half_even(bias[c] / (input_scale * out[c]))| + accumulator_bound <= 2^31 - 1
///
/// Then neither the bias saturates nor a sum overflows: a channel with tiny weights and a large
/// bias gets coarser weights instead of a wrong bias. The inequality holds for the floats
/// themselves, as quantize_bias() computes with them; reference::bias_safe_weight_scale has the
/// proof.
///
/// `accumulator_bound` is the largest |sum| that the product can reach without the bias. A bound
/// that was found with the given scales remains valid, because raising the scale of a weight makes
/// no integer larger. If one scale serves all channels, the largest element of `out` is safe for
/// each of them.
///
/// `out` may be the array of `weight_scales` if that has a scale for each channel; otherwise it
/// must not overlap an input.
///
/// Throws shape_mismatch if `out` does not have the size of `bias`, or `weight_scales` has neither
/// that size nor one element; invalid_argument if data is null, a scale is not positive and finite,
/// a bias is not finite, or accumulator_bound is not in 0..2^31-1; overflow if no finite scale is
/// large enough. Errors about a bias name its channel. Nothing is written then. Thread-safe.
inline void bias_safe_weight_scales(std::span<const float> bias, float input_scale,
                                    std::span<const float> weight_scales, std::span<float> out,
                                    std::int64_t accumulator_bound = 0) {
  detail::require_bias_arguments(bias, input_scale, weight_scales, out, "bias_safe_weight_scales");
  require(accumulator_bound >= 0 && accumulator_bound <= std::numeric_limits<std::int32_t>::max(),
          error_kind::invalid_argument, "bias_safe_weight_scales: accumulator bound ",
          accumulator_bound, " is outside 0..2147483647");
  for (std::size_t c = 0; c < bias.size(); ++c) {
    require(std::isfinite(bias[c]), error_kind::invalid_argument, "bias_safe_weight_scales: bias ",
            bias[c], " of channel ", c, " is not finite");
    require(reference::is_bias_safe(bias[c], input_scale, std::numeric_limits<float>::max(),
                                    accumulator_bound),
            error_kind::overflow, "bias_safe_weight_scales: bias ", bias[c], " of channel ", c,
            " fits 32 bits with no finite weight scale");
  }
  for (std::size_t c = 0; c < bias.size(); ++c) {
    out[c] = reference::bias_safe_weight_scale(
        bias[c], input_scale, detail::weight_scale_of(weight_scales, c), accumulator_bound);
  }
}

DETENT_NAMESPACE_END

#endif  // DETENT_BIAS_HPP
