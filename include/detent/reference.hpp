// SPDX-License-Identifier: BSD-3-Clause
// The normative definitions of the numbers that the library computes, one value at a time, written
// to be read. Every kernel on every target returns the same bits; the tests compare with this
// header.
//
// A float operation here is that of IEEE 754 binary32 with round-half-even, and each operation is
// rounded once: products and sums are contracted only where std::fma is called.
#ifndef DETENT_REFERENCE_HPP
#define DETENT_REFERENCE_HPP

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/base/float_ranges.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// The definitions: plain functions of single values that say what the bits of every result are.
/// The functions of namespace detent and the kernels of every target return the same bits.
/// Functions here check no arguments and are thread-safe. They assume, as the whole library does,
/// the default floating-point environment: rounding to nearest, denormals neither flushed to 0 nor
/// read as 0.
namespace reference {

/// The nearest integer, ties to the even one. The result has the sign of x (-0.25 gives -0). NaN
/// and infinities are returned as they are.
///
///   x      -2.5 -1.5 -0.5  0.5  1.5  2.5
///   result -2   -2   -0    0    2    2
[[nodiscard]] inline float round_half_even(float x) noexcept {
  constexpr float no_fraction = 8388608.0F;  // 2^23: every larger float is an integer
  if (!(std::fabs(x) < no_fraction)) {
    return x;
  }
  const float below = std::floor(x);
  const float fraction = x - below;  // exact where it decides
  const bool below_is_odd = below != 2.0F * std::floor(below / 2.0F);
  const bool up = fraction > 0.5F || (fraction == 0.5F && below_is_odd);
  return std::copysign(up ? below + 1.0F : below, x);
}

/// The nearest integer of a double, ties to the even one, whatever the rounding mode of the
/// floating-point environment is. The result has the sign of x. NaN and infinities are returned as
/// they are.
[[nodiscard]] inline double round_half_even(double x) noexcept {
  const double below = std::floor(x);
  const double fraction = x - below;
  const bool below_is_odd = below != 2.0 * std::floor(below / 2.0);
  const bool up = fraction > 0.5 || (fraction == 0.5 && below_is_odd);
  return std::copysign(up ? below + 1.0 : below, x);
}

/// Puts a real, given in steps of the grid, on the grid:
/// clamp(round_half_even(steps) + zero_point, qmin, qmax). NaN gives the zero point; infinities
/// saturate. Requires qmin <= zero_point <= qmax, all in -65536..65535.
[[nodiscard]] inline std::int32_t to_grid(float steps, std::int32_t zero_point,
                                          grid levels) noexcept {
  if (std::isnan(steps)) {
    return zero_point;
  }
  // Clamping before rounding gives the same integer as clamping after it, because the bounds are
  // integers, and keeps the conversion to an integer in range.
  const auto lowest = static_cast<float>(levels.qmin - zero_point);
  const auto highest = static_cast<float>(levels.qmax - zero_point);
  const float clamped = steps < lowest ? lowest : steps > highest ? highest : steps;
  return static_cast<std::int32_t>(round_half_even(clamped)) + zero_point;
}

/// Quantizes one float: q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax), with the
/// IEEE quotient. NaN gives the zero point; infinities saturate. Requires qmin <= zero_point <=
/// qmax and a positive finite scale.
[[nodiscard]] inline std::int32_t quantize(float x, quant_params p, grid levels) noexcept {
  return to_grid(x / p.scale, p.zero_point, levels);
}

/// Quantizes one double: q = clamp(round_half_even(x / double(scale)) + zero_point, qmin, qmax),
/// with the IEEE quotient of doubles. NaN gives the zero point; infinities saturate. Requires qmin
/// <= zero_point <= qmax and a positive finite scale.
[[nodiscard]] inline std::int32_t quantize(double x, quant_params p, grid levels) noexcept {
  const double steps = x / static_cast<double>(p.scale);
  if (std::isnan(steps)) {
    return p.zero_point;
  }
  const double lowest = levels.qmin - p.zero_point;
  const double highest = levels.qmax - p.zero_point;
  const double clamped = steps < lowest ? lowest : steps > highest ? highest : steps;
  return static_cast<std::int32_t>(round_half_even(clamped)) + p.zero_point;
}

/// The real that q stands for: x = float(q - zero_point) * scale, rounded to float.
[[nodiscard]] inline float dequantize(std::int32_t q, quant_params p) noexcept {
  return static_cast<float>(q - p.zero_point) * p.scale;
}

/// Requantizes one 32-bit sum:
/// q = clamp(round_half_even(float(accumulator) * multiplier) + zero_point, qmin, qmax), the "fp32"
/// dialect of FBGEMM, ONNX Runtime and XNNPACK. float(accumulator) rounds half to even above 2^24.
/// Requires a positive finite multiplier and qmin <= zero_point <= qmax.
[[nodiscard]] inline std::int32_t requantize(std::int32_t accumulator, float multiplier,
                                             std::int32_t zero_point, grid levels) noexcept {
  return to_grid(static_cast<float>(accumulator) * multiplier, zero_point, levels);
}

/// Requantizes one sum of up to 64 bits:
/// q = clamp(round_half_even(float(accumulator) * multiplier) + zero_point, qmin, qmax). The sum is
/// rounded to float once, half to even. A sum that fits 32 bits gives the same integer as the
/// 32-bit overload.
[[nodiscard]] inline std::int32_t requantize(std::int64_t accumulator, float multiplier,
                                             std::int32_t zero_point, grid levels) noexcept {
  return to_grid(static_cast<float>(accumulator) * multiplier, zero_point, levels);
}

/// The multiplier that requantizes a product of quantized tensors to output_scale:
/// (lhs_scale * rhs_scale) / output_scale, each operation rounded to float.
[[nodiscard]] inline float requantize_multiplier(float lhs_scale, float rhs_scale,
                                                 float output_scale) noexcept {
  const float product = lhs_scale * rhs_scale;
  return product / output_scale;
}

/// The canonical rule for the scale and zero point whose grid covers [lower, upper] and zero.
/// Computed in double.
///
///   lower' = min(lower, 0), upper' = max(upper, 0)
///   asymmetric  scale = (upper' - lower') / (qmax - qmin)
///               zero_point = clamp(qmin + round_half_even(-lower' / scale), qmin, qmax)
///   symmetric   zero_point = the middle of the grid, ceil((qmin + qmax) / 2)
///               scale = max(-lower', upper') / min(qmax - zero_point, zero_point - qmin)
///
/// The scale is rounded to float. If rounding down would leave the range uncovered, it is raised by
/// one step of float; and it is at least FLT_MIN, so that its reciprocal is finite. The zero point
/// is computed with this rounded scale. The range 0 .. 0 gives scale 1.
[[nodiscard]] inline quant_params params_from_range(value_range range,
                                                    quant_scheme scheme) noexcept {
  const double lower = range.lower < 0.0F ? static_cast<double>(range.lower) : 0.0;
  const double upper = range.upper > 0.0F ? static_cast<double>(range.upper) : 0.0;
  const grid levels = scheme.levels;
  const std::int32_t middle = (levels.qmin + levels.qmax + 1) >> 1;
  const std::int32_t half =
      levels.qmax - middle < middle - levels.qmin ? levels.qmax - middle : middle - levels.qmin;

  const double extent = scheme.symmetric ? (-lower > upper ? -lower : upper) : upper - lower;
  const double steps = scheme.symmetric ? half : static_cast<double>(levels.qmax) - levels.qmin;
  quant_params p;
  if (extent > 0.0) {
    p.scale = static_cast<float>(extent / steps);
    if (static_cast<double>(p.scale) * steps < extent) {
      p.scale = std::nextafter(p.scale, std::numeric_limits<float>::infinity());
    }
    if (p.scale < std::numeric_limits<float>::min()) {
      p.scale = std::numeric_limits<float>::min();
    }
  }
  if (scheme.symmetric) {
    p.zero_point = middle;
    return p;
  }
  const double z = levels.qmin + round_half_even(-lower / static_cast<double>(p.scale));
  p.zero_point = z > levels.qmax ? levels.qmax : static_cast<std::int32_t>(z);
  return p;
}

/// The result of min_max(): `lower` and `upper` are the smallest and the largest of the values that
/// are not NaN, `count_nan` is the number of NaN.
using kernels::min_max_result;

/// The smallest and the largest of n values, and the number of NaN among them. NaN is ignored
/// otherwise, and -0 is taken as +0. Without any number, lower is +infinity and upper is -infinity.
[[nodiscard]] inline min_max_result min_max(const float* x, std::size_t n) noexcept {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  min_max_result r{infinity, -infinity, 0};
  for (std::size_t i = 0; i < n; ++i) {
    const float value = x[i] + 0.0F;  // -0 becomes +0
    if (std::isnan(value)) {
      ++r.count_nan;
      continue;
    }
    r.lower = value < r.lower ? value : r.lower;
    r.upper = value > r.upper ? value : r.upper;
  }
  return r;
}

/// The position of a finite nonzero float in a histogram. A bin of the histogram holds the floats
/// that share sign, exponent and the first 9 bits of the mantissa. `lowest` is the bit pattern of
/// the power of two where the bins begin.
///
///   position = (pattern of |x|) - lowest    if that is in 0 .. 31 * 2^23 - 1
///              31 * 2^23                    otherwise
///              + 2^28                       if x is negative
///
/// Bits 14..27 of the position are the number of the bin, bits 0..13 are the rest of the mantissa,
/// and bit 28 is the sign. Bin 31 * 2^9 takes all values below `lowest`. Callers choose `lowest`
/// such that no value lies above the last bin.
[[nodiscard]] inline std::uint32_t bin_position(float x, std::uint32_t lowest) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  constexpr std::uint32_t outside = kernels::bin_octaves << 23;
  const bool is_inside = magnitude >= lowest && magnitude - lowest < outside;
  return (is_inside ? magnitude - lowest : outside) | (bits >> 31 << 28);
}

/// One element of an integer matrix product with zero points on both sides, exact in 64 bits:
///
///   bias + sum over i < k of (lhs[i] - lhs_zero_point) * (rhs[i * rhs_stride] - rhs_zero_point)
template <quantized_byte A, quantized_byte B>
[[nodiscard]] std::int64_t dot(const A* lhs, const B* rhs, std::ptrdiff_t rhs_stride, std::size_t k,
                               std::int32_t lhs_zero_point, std::int32_t rhs_zero_point,
                               std::int32_t bias) noexcept {
  std::int64_t sum = bias;
  for (std::size_t i = 0; i < k; ++i) {
    const std::int64_t a = std::int64_t{lhs[i]} - lhs_zero_point;
    const std::int64_t b =
        std::int64_t{rhs[static_cast<std::ptrdiff_t>(i) * rhs_stride]} - rhs_zero_point;
    sum += a * b;
  }
  return sum;
}

/// One element of a product with weights that have one scale and one zero point for each
/// quantization group of `group_size` consecutive k (the last group may be shorter). Group g has
/// scales[g * parameter_stride] and zero_points[g * parameter_stride]. The integer sum of each
/// group is exact and must fit 32 bits; the sums are combined by a chain of fused multiply-adds in
/// the order of the groups, starting from 0:
///
///   real = fma(float(sum of group g), scale of group g, real)
template <quantized_byte A, quantized_byte B>
[[nodiscard]] float grouped_dot(const A* lhs, const B* rhs, std::ptrdiff_t rhs_stride,
                                std::size_t k, std::size_t group_size, std::int32_t lhs_zero_point,
                                const float* scales, const std::int32_t* zero_points,
                                std::ptrdiff_t parameter_stride) noexcept {
  float real = 0.0F;
  for (std::size_t first = 0; first < k; first += group_size) {
    const auto group = static_cast<std::ptrdiff_t>(first / group_size) * parameter_stride;
    const std::size_t count = k - first < group_size ? k - first : group_size;
    const std::int64_t sum = dot(lhs + first, rhs + static_cast<std::ptrdiff_t>(first) * rhs_stride,
                                 rhs_stride, count, lhs_zero_point, zero_points[group], 0);
    real = std::fma(static_cast<float>(static_cast<std::int32_t>(sum)), scales[group], real);
  }
  return real;
}

/// A pair of 8-bit weights b of neighbouring k, split into two summands: b = safe + rest. With
/// them, a0 * safe[0] + a1 * safe[1] fits 16 bits for all a0 and a1 in 0..255. The excess is taken
/// from the weight with the larger magnitude.
///
///   b      100 28   100 29   -128 -1   -128 -128   127 127   100 -100
///   safe   100 28    99 29   -127 -1      0 -128     1 127   100 -100
///   rest     0  0     1  0     -1  0   -128    0   126   0     0    0
struct pair_split {
  std::int8_t safe[2];  ///< The part whose sums with unsigned bytes cannot overflow 16 bits.
  std::int8_t rest[2];  ///< What is left of the weights; at least one of the two is 0.
};

/// Splits a pair of weights as pair_split describes; `first` has the smaller k. Both rests are 0 if
/// the signs differ or |first + second| <= 128.
[[nodiscard]] constexpr pair_split split_pair(std::int8_t first, std::int8_t second) noexcept {
  constexpr int limit = 128;  // 128 * 255 <= 2^15 - 1
  const int b[2] = {first, second};
  const bool same_sign = (b[0] < 0) == (b[1] < 0);
  const int sum = b[0] + b[1];
  const int excess = !same_sign ? 0 : sum > limit ? sum - limit : sum < -limit ? sum + limit : 0;
  const bool from_first = sum > 0 ? b[0] >= b[1] : b[0] <= b[1];
  const int rest[2] = {from_first ? excess : 0, from_first ? 0 : excess};
  return {{static_cast<std::int8_t>(b[0] - rest[0]), static_cast<std::int8_t>(b[1] - rest[1])},
          {static_cast<std::int8_t>(rest[0]), static_cast<std::int8_t>(rest[1])}};
}

/// One element of a float matrix product: a chain of fused multiply-adds over i = 0..k-1 that
/// starts from the bias, sum = fma(lhs[i], rhs[i * rhs_stride], sum). The chain is never split, so
/// that every target returns the same bits.
[[nodiscard]] inline float dot(const float* lhs, const float* rhs, std::ptrdiff_t rhs_stride,
                               std::size_t k, float bias) noexcept {
  float sum = bias;
  for (std::size_t i = 0; i < k; ++i) {
    sum = std::fma(lhs[i], rhs[static_cast<std::ptrdiff_t>(i) * rhs_stride], sum);
  }
  return sum;
}

/// Winograd's way to compute convolutions of 3x3 filters with a stride of 1, F(t x t, 3 x 3) for
/// tiles of t x t outputs, t = 2 or 4. A tile reads (t + 2) x (t + 2) inputs D of each channel.
///
///     U = G g G^T       of each filter and channel g, once: winograd_weights()
///     V = B^T D B       of each tile and channel: winograd_input()
///     M = the sum of U V over the channels, element by element: dot() from a bias of 0
///     Y = A^T M A       of each tile and filter: winograd_output(); the bias is added at last
///
/// A tile takes (t + 2)^2 products for each pair of channels, not 9 t^2: less by 2.25 for t = 2, by
/// 4 for t = 4. The result is that of the convolution but for rounding. Errors are about those of
/// direct sums for t = 2, and two to three bits larger for t = 4. An infinity or a NaN may
/// reach any output of its tile.
///
/// Each function works on one line of elements that are `stride` apart; B^T D B and A^T M A take
/// columns first, then rows, and the weights rows first. Source: Lavin and Gray, "Fast Algorithms
/// for Convolutional Neural Networks", 2016.
template <std::size_t kTile>
void winograd_input(const float* in, std::ptrdiff_t stride, float* out,
                    std::ptrdiff_t out_stride) noexcept {
  static_assert(kTile == 2 || kTile == 4);
  const auto d = [&](std::ptrdiff_t i) { return in[i * stride]; };
  float v[kTile + 2];
  if constexpr (kTile == 2) {
    v[0] = d(0) - d(2);
    v[1] = d(1) + d(2);
    v[2] = d(2) - d(1);
    v[3] = d(1) - d(3);
  } else {
    const float even = std::fma(-4.0F, d(2), d(4));
    const float odd = std::fma(-4.0F, d(1), d(3));
    const float from_4 = d(4) - d(2);
    const float from_3 = d(3) - d(1);
    v[0] = std::fma(4.0F, d(0) - d(2), from_4);
    v[1] = even + odd;
    v[2] = even - odd;
    v[3] = std::fma(2.0F, from_3, from_4);
    v[4] = std::fma(-2.0F, from_3, from_4);
    v[5] = std::fma(-4.0F, from_3, d(5) - d(3));
  }
  for (std::size_t i = 0; i < kTile + 2; ++i) {
    out[static_cast<std::ptrdiff_t>(i) * out_stride] = v[i];
  }
}

/// The outputs of a line; see winograd_input().
template <std::size_t kTile>
void winograd_output(const float* in, std::ptrdiff_t stride, float* out,
                     std::ptrdiff_t out_stride) noexcept {
  static_assert(kTile == 2 || kTile == 4);
  const auto m = [&](std::ptrdiff_t i) { return in[i * stride]; };
  float y[kTile];
  if constexpr (kTile == 2) {
    y[0] = (m(0) + m(1)) + m(2);
    y[1] = (m(1) - m(2)) - m(3);
  } else {
    const float sum_1 = m(1) + m(2);
    const float difference_1 = m(1) - m(2);
    const float sum_2 = m(3) + m(4);
    const float difference_2 = m(3) - m(4);
    y[0] = (m(0) + sum_1) + sum_2;
    y[1] = std::fma(2.0F, difference_2, difference_1);
    y[2] = std::fma(4.0F, sum_2, sum_1);
    y[3] = std::fma(8.0F, difference_2, difference_1) + m(5);
  }
  for (std::size_t i = 0; i < kTile; ++i) {
    out[static_cast<std::ptrdiff_t>(i) * out_stride] = y[i];
  }
}

/// The kTile + 2 factors of a line of three weights; see winograd_input(). They are computed in
/// double, and rounded to float once, after both passes.
template <std::size_t kTile>
void winograd_weights(const double* in, std::ptrdiff_t stride, double* out,
                      std::ptrdiff_t out_stride) noexcept {
  static_assert(kTile == 2 || kTile == 4);
  const double g0 = in[0];
  const double g1 = in[stride];
  const double g2 = in[2 * stride];
  double u[kTile + 2];
  if constexpr (kTile == 2) {
    u[0] = g0;
    u[1] = 0.5 * ((g0 + g2) + g1);
    u[2] = 0.5 * ((g0 + g2) - g1);
    u[3] = g2;
  } else {
    u[0] = 0.25 * g0;
    u[1] = ((g0 + g2) + g1) / -6.0;
    u[2] = ((g0 + g2) - g1) / -6.0;
    const double even = std::fma(4.0, g2, g0);
    u[3] = std::fma(2.0, g1, even) / 24.0;
    u[4] = std::fma(-2.0, g1, even) / 24.0;
    u[5] = g2;
  }
  for (std::size_t i = 0; i < kTile + 2; ++i) {
    out[static_cast<std::ptrdiff_t>(i) * out_stride] = u[i];
  }
}

/// min(max(x, lower), upper). The result is `upper` if lower > upper. NaN is returned as it is.
[[nodiscard]] inline float clamp(float x, float lower, float upper) noexcept {
  const float raised = x < lower ? lower : x;
  return raised > upper ? upper : raised;
}

/// x * clamp(x + 3, 0, 6) / 6; the sixth is rounded to float and multiplied with the clamped sum
/// first.
[[nodiscard]] inline float hard_swish(float x) noexcept {
  return x * (clamp(x + 3.0F, 0.0F, 6.0F) * (1.0F / 6.0F));
}

/// clamp(alpha * x + beta, 0, 1), with a fused product.
[[nodiscard]] inline float hard_sigmoid(float x, float alpha, float beta) noexcept {
  return clamp(std::fma(alpha, x, beta), 0.0F, 1.0F);
}

/// The larger of two elements of a maximum that takes one after the other: x if it exceeds `best`
/// or is NaN, else `best`. A NaN stays, and of two zeros the first one does.
template <class T>
[[nodiscard]] T larger(T best, T x) noexcept {
  return x > best || x != x ? x : best;
}

}  // namespace reference
DETENT_NAMESPACE_END

#endif  // DETENT_REFERENCE_HPP
