// SPDX-License-Identifier: BSD-3-Clause
// Scale and zero point from a range as other tools compute them, bit for bit and with their bugs,
// for callers who must reproduce a model that another tool has quantized. The library's own rule is
// reference::params_from_range.
//
// In the formulas, [lower, upper] is the range extended to include zero, magnitude =
// max(-lower, upper), steps = qmax - qmin, and round() is round_half_even. "In double" and "in
// float" name the precision that a rule works in. Every operation is rounded once; a scale computed
// in double is rounded to float at the very end.
#ifndef DETENT_SCALE_RULES_HPP
#define DETENT_SCALE_RULES_HPP

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <detent/base/arithmetic.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// The tool whose arithmetic makes a scale and a zero point from a range.
enum class scale_rule : std::uint8_t {
  canonical,  ///< The library's own rule, reference::params_from_range.
  ppq,        ///< PPQ; reference::params_from_range_ppq.
  ort,        ///< The quantization tool of ONNX Runtime; reference::params_from_range_ort.
  inc,        ///< Intel Neural Compressor, ONNX Runtime adaptor; reference::params_from_range_inc.
  nncf,       ///< NNCF; reference::params_from_range_nncf.
  torch,      ///< The observers of PyTorch; reference::params_from_range_torch.
  tensorrt,   ///< TensorRT; reference::params_from_range_tensorrt.
};

/// The name of a rule in command lines and messages: its enumerator, such as "ppq".
[[nodiscard]] constexpr const char* name(scale_rule rule) noexcept {
  switch (rule) {
    case scale_rule::canonical:
      return "canonical";
    case scale_rule::ppq:
      return "ppq";
    case scale_rule::ort:
      return "ort";
    case scale_rule::inc:
      return "inc";
    case scale_rule::nncf:
      return "nncf";
    case scale_rule::torch:
      return "torch";
    case scale_rule::tensorrt:
      return "tensorrt";
  }
  return "unknown";
}

/// How log2(scale) is rounded to the exponent of a power of two.
enum class power_of_two_rounding : std::uint8_t {
  up,       ///< ceil(log2(scale)): PPQ's ROUND_UP, which its min/max observers use.
  half_up,  ///< floor(log2(scale) + 1/2): PPQ's ROUND_HALF_UP, which its KL observer uses.
};

namespace reference {

/// The smallest range that contains `range` and zero.
[[nodiscard]] inline value_range including_zero(value_range range) noexcept {
  return {range.lower < 0.0F ? range.lower : 0.0F, range.upper > 0.0F ? range.upper : 0.0F};
}

/// The largest |x| of a range that includes zero.
[[nodiscard]] inline float magnitude(value_range range) noexcept {
  return -range.lower > range.upper ? -range.lower : range.upper;
}

/// The length that the rules in double divide by the number of steps. Only the subtraction rounds.
/// With [lower, upper] = including_zero(range):
///
///   asymmetric  upper - lower
///   symmetric   2 * max(-lower, upper)
[[nodiscard]] inline double extent(value_range range, bool symmetric) noexcept {
  const value_range r = including_zero(range);
  return symmetric ? 2.0 * static_cast<double>(magnitude(r))
                   : static_cast<double>(r.upper) - static_cast<double>(r.lower);
}

/// The rule of PPQ for a whole tensor, from ends that may be doubles, as PPQ's MSE observer passes
/// them. [lower, upper] is extended to include zero, magnitude = max(-lower, upper), steps = qmax -
/// qmin. Computed in double, the scale rounded to float at the end; round() is round_half_even:
///
///   asymmetric  scale = max((upper - lower) / steps, 1e-8)
///               zero_point = round(-lower / scale)
///   symmetric   scale = max(2 * magnitude / steps, 1e-8)
///               zero_point = 0
///
/// Bugs of PPQ: the asymmetric zero point leaves out qmin, so that it is right only on grids that
/// begin at 0 and may lie outside of other grids. The symmetric zero point is 0 on unsigned grids,
/// too. On -128..127 the symmetric divisor is 127.5, so that `magnitude` itself is clipped by half
/// a step. Per channel, PPQ computes upper - lower in float; that differs from this function only
/// for asymmetric schemes.
///
/// Source: PPQ 0.6.6, minmax_to_scale_offset.
[[nodiscard]] inline quant_params params_from_ends_ppq(double lower, double upper,
                                                       quant_scheme scheme) noexcept {
  constexpr double smallest_scale = 1e-8;
  const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
  const double low = lower < 0.0 ? lower : 0.0;
  const double high = upper > 0.0 ? upper : 0.0;
  const double length = scheme.symmetric ? 2.0 * (-low > high ? -low : high) : high - low;
  const double quotient = length / steps;
  const double scale = quotient > smallest_scale ? quotient : smallest_scale;
  return {static_cast<float>(scale),
          scheme.symmetric ? 0 : static_cast<std::int32_t>(round_half_even(-low / scale))};
}
/// The rule of PPQ for the range of a whole tensor; see params_from_ends_ppq() for the formula and
/// the bugs of PPQ.
[[nodiscard]] inline quant_params params_from_range_ppq(value_range range,
                                                        quant_scheme scheme) noexcept {
  return params_from_ends_ppq(range.lower, range.upper, scheme);
}

/// The rule of ONNX Runtime's quantization tool, without a minimum real range. [lower, upper] is
/// the range extended to include zero, magnitude = max(-lower, upper), steps = qmax - qmin.
/// Computed in double, the scale rounded to float at the end; round() is round_half_even:
///
///   asymmetric  scale = (upper - lower) / steps
///               zero_point = round(qmin - lower / scale)
///   symmetric   scale = 2 * magnitude / steps
///               zero_point = round((qmin + qmax) / 2)
///   both        scale = 1 and zero_point = 0 if scale < FLT_MIN
///
/// Requires qmin <= 0 <= qmax. The tool's own grids are 0..255, -128..127, symmetric 0..254 and
/// -127..127, reduced 0..127 and -64..64. The tool rounds the sum, not the quotient: on a grid with
/// an odd qmin, a tie goes the other way than in the canonical rule. The zero point of the range
/// 0 .. 0 is 0 on signed grids as well.
///
/// Source: ONNX Runtime 1.31, compute_scale_zp. Earlier releases took upper - lower in float.
[[nodiscard]] inline quant_params params_from_range_ort(value_range range,
                                                        quant_scheme scheme) noexcept {
  const double qmin = scheme.levels.qmin;
  const double qmax = scheme.levels.qmax;
  const double scale = extent(range, scheme.symmetric) / (qmax - qmin);
  if (scale < static_cast<double>(std::numeric_limits<float>::min())) {
    return {1.0F, 0};
  }
  const double lower = including_zero(range).lower;
  const double exact_zero_point = scheme.symmetric ? (qmin + qmax) / 2.0 : qmin - lower / scale;
  return {static_cast<float>(scale), static_cast<std::int32_t>(round_half_even(exact_zero_point))};
}

/// The rule of Intel Neural Compressor's ONNX Runtime adaptor for a whole tensor. [lower, upper] is
/// the range extended to include zero, magnitude = max(-lower, upper), steps = qmax - qmin.
/// Computed in double, the scale rounded to float at the end; round() is round_half_even:
///
///   asymmetric  on 0..255 or 0..127 (reduced)
///               scale = (upper - lower) / steps, zero_point = round(-lower / scale)
///   symmetric   on -127..127 or -64..64 (reduced)
///               scale = 2 * magnitude / steps, zero_point = 0
///   both        scale = 1 and zero_point = 0 for the range 0 .. 0
///
/// Bugs of the tool: if the scale in double is exactly 1, the zero point is 0 whatever the range
/// is. A tiny scale may round to the float 0. Per channel, symmetric scales are the same except
/// that 2 * magnitude is computed in float, which matters only where it overflows.
///
/// Source: Intel Neural Compressor 2.6, calculate_scale_zp. Its capability tables list int8 only as
/// symmetric and uint8 only as asymmetric.
[[nodiscard]] inline quant_params params_from_range_inc(value_range range,
                                                        quant_scheme scheme) noexcept {
  const double steps = static_cast<double>(scheme.levels.qmax) - scheme.levels.qmin;
  const double length = extent(range, scheme.symmetric);
  const double scale = length > 0.0 ? length / steps : 1.0;
  const double lower = including_zero(range).lower;
  const bool zero = scheme.symmetric || scale == 1.0;
  return {static_cast<float>(scale),
          zero ? 0 : static_cast<std::int32_t>(round_half_even(-lower / scale))};
}

/// The parts of NNCF's rule, params_from_range_nncf().
namespace nncf {

/// NNCF's range tuning: moves one end of a range so that zero falls on an integer level, q.
/// Requires a range that includes zero and has a positive length. N = steps. Computed in float;
/// round() is round_half_even:
///
///   q = round(-lower * (N / (upper - lower)))
///   lower' = q / (q - N) * upper  if q < N, else lower
///   upper' = (q - N) / q * lower  if q > 0, else upper
///   result = (lower', upper) if upper - lower' > upper' - lower, else (lower, upper')
///
/// One of the two candidates is a larger range than the given one and the other a smaller range;
/// the larger one is taken. If q is 0 or N, the range stays as it is: then an end that is less than
/// half a step from zero keeps zero off the levels.
[[nodiscard]] inline value_range tuned(value_range range, float steps) noexcept {
  const float steps_per_unit = steps / (range.upper - range.lower);
  const float q = reference::round_half_even(detail::rounded_product(-range.lower, steps_per_unit));
  const float lower =
      q < steps ? detail::rounded_product(q / (q - steps), range.upper) : range.lower;
  const float upper =
      q > 0.0F ? detail::rounded_product((q - steps) / q, range.lower) : range.upper;
  return range.upper - lower > upper - range.lower ? value_range{lower, range.upper}
                                                   : value_range{range.lower, upper};
}

/// NNCF's scale and zero point for an asymmetric scheme; see params_from_range_nncf().
[[nodiscard]] inline quant_params asymmetric_params(value_range range, grid levels) noexcept {
  constexpr float shortest = 8e-4F;
  constexpr float smallest_scale = std::numeric_limits<float>::epsilon();
  const float length = range.upper - range.lower;
  if (length > std::numeric_limits<float>::max()) {
    return {smallest_scale, levels.qmin};
  }
  const float widening = length > shortest ? 0.0F : shortest;
  const auto steps = static_cast<float>(levels.qmax - levels.qmin);
  const value_range r =
      tuned(including_zero({range.lower - widening, range.upper + widening}), steps);
  const float scale = (std::max)((r.upper - r.lower) / steps, smallest_scale);
  return {scale, to_grid(-r.lower / scale, levels.qmin, levels)};
}

/// NNCF's scale and zero point for a symmetric scheme; see params_from_range_nncf().
[[nodiscard]] inline quant_params symmetric_params(value_range range, grid levels,
                                                   float largest_magnitude) noexcept {
  constexpr float dead_channel = 0.01F;
  constexpr float smallest_magnitude = 8e-5F;
  constexpr float smallest_scale = std::numeric_limits<float>::epsilon();
  const float own = magnitude(including_zero(range));
  const float relative_floor = dead_channel * largest_magnitude;
  const float floor = relative_floor > smallest_magnitude ? relative_floor : smallest_magnitude;
  const float high = own > floor ? own : floor;

  const bool narrow = levels.qmin == -levels.qmax;
  const bool is_unsigned = levels.qmin == 0;
  const auto steps = static_cast<float>(levels.qmax - levels.qmin);
  const float low = is_unsigned && !(range.lower < 0.0F) ? 0.0F
                    : narrow                             ? -high
                                                         : -high * (steps + 1.0F) / (steps - 1.0F);
  const float scale = (high - low) / steps;
  if (scale < smallest_scale) {
    return {smallest_scale, to_grid(-low / smallest_scale, levels.qmin, levels)};
  }
  return {scale, is_unsigned && low < 0.0F ? (levels.qmax + 1) / 2 : 0};
}

}  // namespace nncf

/// The rule of NNCF's min-max algorithm: the scale and zero point that it exports to ONNX.
/// magnitude is the largest |x| of the range, steps = qmax - qmin. Computed in float; round() is
/// round_half_even:
///
///   asymmetric  [lower, upper] = the range with both ends moved out by 8e-4 if it is no longer
///               than 8e-4, then extended to include zero, then nncf::tuned
///               scale = max((upper - lower) / steps, FLT_EPSILON)
///               zero_point = qmin - round(lower / scale)
///   symmetric   high = max(magnitude, 0.01 * largest_magnitude, 8e-5)
///               low = -high on a narrow grid (-127..127, NNCF's weights)
///                     0 on an unsigned grid if the range has nothing negative
///                     -high * levels / (levels - 2) otherwise, with levels = steps + 1
///               scale = max((high - low) / steps, FLT_EPSILON)
///               zero_point = qmin - round(low / scale); if the scale is above FLT_EPSILON, that is
///               0, or the middle of an unsigned grid whose `low` is negative
///
/// `largest_magnitude` is the largest |x| over all channels of the tensor if `range` is the range
/// of one channel. It keeps the scale of a dead channel (all values near 0) from becoming tiny.
/// Pass 0 for a tensor of one channel. Asymmetric schemes ignore it. The constants are the nearest
/// floats, as in NumPy 2 and PyTorch; under NumPy 1 the lower bound of a dead channel may differ in
/// the last bit.
///
/// The grid must have 2^bits levels or be the narrow symmetric one. NNCF itself chooses int8 for
/// weights and for activations with anything negative, otherwise uint8. Here the given grid
/// decides, and a signed grid corresponds to NNCF's "signedness forced". With 8 bits FLT_EPSILON
/// never acts, because the lower bounds of the range are higher. NNCF's overflow fix doubles the
/// symmetric scale exactly (254 / 127).
///
/// Bug of NNCF: if upper - lower overflows, the widening is NaN, NaN compares as not below zero,
/// both ends become 0, and the scale is FLT_EPSILON with zero_point qmin.
///
/// Source: NNCF 2.14, nncf/quantization/fake_quantize.py.
[[nodiscard]] inline quant_params params_from_range_nncf(value_range range, quant_scheme scheme,
                                                         float largest_magnitude = 0.0F) noexcept {
  return scheme.symmetric ? nncf::symmetric_params(range, scheme.levels, largest_magnitude)
                          : nncf::asymmetric_params(range, scheme.levels);
}

/// The rule of PyTorch's observers (MinMax, MovingAverage, Histogram and their variants) on a CPU.
/// [lower, upper] is the range extended to include zero, magnitude = max(-lower, upper), steps =
/// qmax - qmin. Computed in float; round() is round_half_even:
///
///   asymmetric  scale = max((upper - lower) / steps, FLT_EPSILON)
///               zero_point = qmin - round(lower / scale)
///   symmetric   scale = max(magnitude / (steps / 2), FLT_EPSILON)
///               zero_point = 0 on signed grids, 128 on 0..255, floor((qmin + qmax) / 2) on other
///               unsigned grids
///
/// Requires qmin <= 0 <= qmax. Two choices of PyTorch cannot be told from the grid and are not
/// reproduced. PyTorch takes 128 for every unsigned grid whose ends the caller has not given, even
/// for the 0..127 of reduce_range, where 128 lies outside; and it takes 127 for a 0..255 whose ends
/// the caller has given. On a GPU, PyTorch may multiply by the reciprocal of the divisor.
///
/// Source: torch.ao.quantization, UniformQuantizationObserverBase, from knowledge of PyTorch 2.
[[nodiscard]] inline quant_params params_from_range_torch(value_range range,
                                                          quant_scheme scheme) noexcept {
  constexpr float smallest_scale = std::numeric_limits<float>::epsilon();
  const grid levels = scheme.levels;
  const value_range r = including_zero(range);
  const auto steps = static_cast<float>(levels.qmax - levels.qmin);
  const float quotient =
      scheme.symmetric ? magnitude(r) / (steps / 2.0F) : (r.upper - r.lower) / steps;
  const float scale = quotient > smallest_scale ? quotient : smallest_scale;
  if (!scheme.symmetric) {
    return {scale, to_grid(-r.lower / scale, levels.qmin, levels)};
  }
  const bool is_signed = levels.qmin < 0;
  return {scale, is_signed ? 0 : levels == full_grid<std::uint8_t> ? 128 : levels.qmax / 2};
}

/// The rule of TensorRT. With magnitude = the largest |x| of the range, computed in float:
///
///   scale = magnitude / 127, zero_point = 0
///
/// It serves symmetric schemes on -128..127 (where TensorRT clips) or -127..127, with the same
/// scale. The scale of the range 0 .. 0 is 0, which TensorRT refuses.
///
/// Source: TensorRT's documentation of explicit quantization. That the quotient is computed in
/// float is from knowledge of NVIDIA's toolkits.
[[nodiscard]] inline quant_params params_from_range_tensorrt(value_range range) noexcept {
  return {magnitude(including_zero(range)) / 127.0F, 0};
}

/// The power of two that a positive finite scale is projected to: 2^ceil(log2(scale)) or
/// 2^floor(log2(scale) + 1/2). The result is exact: the exponent is read from the number, not
/// computed, and the mantissa is compared with the halfway point sqrt(1/2), which is irrational.
/// PPQ computes log2 in double; the two agree for every float. The argument is a double because
/// PPQ's KL observer projects before it rounds the scale to float.
///
///   scale     0.25  0.3   0.354  0.5
///   up        0.25  0.5   0.5    0.5
///   half_up   0.25  0.25  0.5    0.5
[[nodiscard]] inline double project_to_power_of_two(double scale,
                                                    power_of_two_rounding rounding) noexcept {
  constexpr double sqrt_half = 0x1.6a09e667f3bcdp-1;  // the smallest double above sqrt(1/2)
  int exponent = 0;
  const double mantissa = std::frexp(scale, &exponent);  // 0.5 <= mantissa < 1
  const bool down = rounding == power_of_two_rounding::up ? mantissa == 0.5 : mantissa < sqrt_half;
  return std::ldexp(1.0, down ? exponent - 1 : exponent);
}

}  // namespace reference

namespace detail {

[[nodiscard]] inline bool is_nncf_scheme(quant_scheme scheme) noexcept {
  const auto qmin = scheme.levels.qmin;
  const auto above_qmax = static_cast<std::uint32_t>(scheme.levels.qmax) + 1U;
  const bool narrow = scheme.symmetric && qmin == -scheme.levels.qmax;
  const bool full = qmin == 0 || (qmin < 0 && static_cast<std::uint32_t>(-qmin) == above_qmax);
  return scheme.levels.qmax > 0 && std::has_single_bit(above_qmax) && (narrow || full);
}

/// Whether the tool behind a rule has quantizers of this scheme at all.
[[nodiscard]] inline bool is_expressible(quant_scheme scheme, scale_rule rule) noexcept {
  const grid levels = scheme.levels;
  switch (rule) {
    case scale_rule::canonical:
    case scale_rule::ppq:
      return true;
    case scale_rule::ort:
    case scale_rule::torch:
      return levels.qmin <= 0 && levels.qmax >= 0;
    case scale_rule::inc:
      return scheme.symmetric ? levels == narrow_grid<std::int8_t> || levels == grid{-64, 64}
                              : levels == full_grid<std::uint8_t> || levels == grid{0, 127};
    case scale_rule::nncf:
      return is_nncf_scheme(scheme);
    case scale_rule::tensorrt:
      return scheme.symmetric &&
             (levels == full_grid<std::int8_t> || levels == narrow_grid<std::int8_t>);
  }
  return false;
}

}  // namespace detail

/// The scale and zero point of `range` as the tool named by `rule` computes them, bit for bit. The
/// enumerators of scale_rule name the functions of namespace reference that define each rule.
///
/// `largest_magnitude` is the largest |x| over all channels of the tensor if `range` is the range
/// of one channel, or 0 if there is only one channel. Only scale_rule::nncf uses it.
///
/// The zero point is the one that the tool would store. With scale_rule::ppq it may lie outside the
/// grid, and then quantize() refuses it.
///
/// Throws invalid_argument for a range or grid that the canonical params_from_range() refuses, if
/// largest_magnitude is negative or not finite, or if the scale is not a positive finite number
/// (inc if it rounds to 0, tensorrt for the range 0 .. 0, overflow in float); unsupported if the
/// tool has no such scheme. Thread-safe.
[[nodiscard]] inline quant_params params_from_range(value_range range, quant_scheme scheme,
                                                    scale_rule rule,
                                                    float largest_magnitude = 0.0F) {
  quant_params p = params_from_range(range, scheme);  // checks the range and the grid
  require(std::isfinite(largest_magnitude) && largest_magnitude >= 0.0F,
          error_kind::invalid_argument, "params_from_range: largest magnitude ", largest_magnitude,
          " is negative or not finite");
  require(detail::is_expressible(scheme, rule), error_kind::unsupported, "params_from_range: rule ",
          name(rule), " has no ", scheme.symmetric ? "symmetric" : "asymmetric", " scheme on ",
          scheme.levels.qmin, "..", scheme.levels.qmax);
  switch (rule) {
    case scale_rule::canonical:
      break;
    case scale_rule::ppq:
      p = reference::params_from_range_ppq(range, scheme);
      break;
    case scale_rule::ort:
      p = reference::params_from_range_ort(range, scheme);
      break;
    case scale_rule::inc:
      p = reference::params_from_range_inc(range, scheme);
      break;
    case scale_rule::nncf:
      p = reference::params_from_range_nncf(range, scheme, largest_magnitude);
      break;
    case scale_rule::torch:
      p = reference::params_from_range_torch(range, scheme);
      break;
    case scale_rule::tensorrt:
      p = reference::params_from_range_tensorrt(range);
      break;
  }
  require(std::isfinite(p.scale) && p.scale > 0.0F, error_kind::invalid_argument,
          "params_from_range: rule ", name(rule), " gives ", range.lower, " .. ", range.upper,
          " the scale ", p.scale);
  return p;
}

/// The power of two that `scale` is projected to: 2^ceil(log2(scale)) or 2^floor(log2(scale) +
/// 1/2), exact; reference::project_to_power_of_two defines it.
///
/// With power_of_two_rounding::up on a scale that scale_rule::ppq computed for a symmetric scheme,
/// this is PPQ's POWER_OF_2 policy to the bit. (PPQ projects the scale in double. That makes no
/// difference: the quotient of a float magnitude is either a power of two or over half a float's
/// step above it.)
///
/// Throws invalid_argument if the scale is not a positive finite number, or if it rounds up to
/// 2^128. Thread-safe.
[[nodiscard]] inline float project_to_power_of_two(float scale, power_of_two_rounding rounding) {
  detail::require_scale(scale, "project_to_power_of_two");
  const auto power = static_cast<float>(reference::project_to_power_of_two(scale, rounding));
  require(std::isfinite(power), error_kind::invalid_argument, "project_to_power_of_two: scale ",
          scale, " rounds up to 2^128");
  return power;
}

DETENT_NAMESPACE_END

#endif  // DETENT_SCALE_RULES_HPP
