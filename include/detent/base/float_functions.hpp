// SPDX-License-Identifier: BSD-3-Clause
// e^x, log, erf, tanh, the logistic function and activations made of them, of floats, with the same
// bits whatever the compiler, its options, the C library and the processor are.
//
// These are the definitions that the kernels of kernels/float_functions.hpp equal to the bit. All
// steps are in float, so that a vector has twice the elements of one of doubles; the functions of
// doubles are in base/elementary_functions.hpp. The largest errors, in units of the last place of
// the exact result, were found by trying all floats:
//
//   portable_exp       1.02
//   portable_expm1     1.47
//   portable_log       0.92
//   portable_erf       1.14
//   portable_tanh      2.61
//   portable_logistic  2.41
//   portable_softplus  1.75
//   portable_mish      4.66, in units of the last place of 2^-118 where the result is smaller
//
// NaN gives NaN. All functions are pure: no state, no floating-point exceptions or rounding modes
// are looked at.
//
// The coefficients of polynomials are those of least relative error, found by Lawson's algorithm
// and rounded to float one after the other, each time with the best of the rest.
#ifndef DETENT_BASE_FLOAT_FUNCTIONS_HPP
#define DETENT_BASE_FLOAT_FUNCTIONS_HPP

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The constants of the functions of floats.
struct float_functions {
  // e^x is 0 below, and infinity above.
  static constexpr float least_exponent = -104.0F;
  static constexpr float largest_exponent = 89.0F;
  static constexpr float inverse_ln2 = 0x1.715476p+0F;
  // The high part of log(2) has 15 bits, so that its product with an exponent is exact.
  static constexpr float ln2_high = 0x1.62e4p-1F;
  static constexpr float ln2_low = 0x1.7f7d1cp-20F;
  // Adding 1.5 * 2^23 to a number below 2^22 rounds it to an integer, half to even.
  static constexpr float rounding_bias = 12582912.0F;
  // (e^r - 1 - r) / r^2 as a polynomial of r, for |r| <= log(2) / 2; the last one is constant.
  static constexpr float exp_series[] = {0x1.6a4d60p-10F, 0x1.12398ep-7F, 0x1.5558b0p-5F,
                                         0x1.555492p-3F, 0x1.fffffcp-2F};

  // Up to here erf(x) is x + x * (a polynomial of x^2), from here on 1 - e^-(x * (one of x)).
  static constexpr float erf_near_zero_end = 0.84375F;
  static constexpr float erf_near_zero[] = {-0x1.4e3b52p-11F, 0x1.4bbc48p-8F,  -0x1.b73f58p-6F,
                                            0x1.ce25e8p-4F,   -0x1.812728p-2F, 0x1.06eba8p-3F};
  static constexpr float erf_away_from_zero[] = {-0x1.c49652p-13F, 0x1.a75890p-9F, -0x1.77ce32p-6F,
                                                 0x1.af73b8p-4F,   0x1.4575aep-1F, 0x1.20e75ep+0F};
  // 1 - erf(x) is less than half a unit in the last place of 1 from here on.
  static constexpr float erf_is_one = 3.9375F;

  // 1 - tanh(x) is less than half a unit in the last place of 1 from here on.
  static constexpr float tanh_is_one = 9.125F;

  // e^x is less than half a unit in the last place of 1 up to here.
  static constexpr float expm1_is_minus_one = -18.0F;
  // 1 - 2^-n, rounded, is 1 for this n and larger ones, so that no smaller 2^-n is needed.
  static constexpr int largest_power = 30;

  // (log(1 + f) - f) / f^2 as a polynomial of f, for 1 + f from sqrt(1/2) to sqrt(2).
  static constexpr float log_series[] = {-0x1.37fbd2p-4F, 0x1.085336p-3F,  -0x1.0f473ap-3F,
                                         0x1.227026p-3F,  -0x1.542534p-3F, 0x1.99a404p-3F,
                                         -0x1.000434p-2F, 0x1.555550p-2F,  -0x1.fffff8p-2F};
  static constexpr std::int32_t sqrt_half_bits = 0x3F3504F3;
  static constexpr float sqrt_2_minus_1 = 0x1.a8279ap-2F;

  // mish(x) is x from here on.
  static constexpr float mish_is_line = 20.0F;

  static constexpr float sqrt_half = 0x1.6a09e6p-1F;
  // 2 sqrt(2 / pi), and 0.044715 times that.
  static constexpr float gelu_factor = 0x1.988454p+0F;
  static constexpr float gelu_cubic_factor = 0x1.2444f2p-4F;
};

/// The polynomial with these coefficients, the last one constant, by Horner's rule. Each step is
/// fused.
template <std::size_t N>
[[nodiscard]] inline float polynomial(const float (&coefficients)[N], float x) noexcept {
  float sum = coefficients[0];
  for (std::size_t k = 1; k < N; ++k) {
    sum = std::fma(sum, x, coefficients[k]);
  }
  return sum;
}

/// p * 2^n, rounded once, for an integer n in -151..129, where |p| 2^(n / 2) is neither below the
/// normal numbers nor above the largest one, or n is 0 or 1.
[[nodiscard]] inline float times_power_of_two(float p, int n) noexcept {
  const auto power = [](int e) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
  };
  const int half = n >> 1;  // neither factor is beyond the range of normal numbers
  return rounded_product(p * power(half), power(n - half));
}

/// x as n log(2) + r with an integer n and |r| <= log(2) / 2, and beyond = e^r - 1, which is
/// r + r^2 * (a polynomial of r).
struct reduced_exponent {
  int n;
  float beyond;
  explicit reduced_exponent(float x) noexcept {
    using c = float_functions;
    const float rounded = std::fma(x, c::inverse_ln2, c::rounding_bias) - c::rounding_bias;
    const float r = std::fma(-rounded, c::ln2_low, std::fma(-rounded, c::ln2_high, x));
    n = static_cast<int>(rounded);
    beyond = std::fma(rounded_product(r, r), polynomial(c::exp_series, r), r);
  }
};

/// e^x = 2^n (1 + beyond). Above 89 the result is infinity, below -104 it is 0.
[[nodiscard]] inline float portable_exp(float x) noexcept {
  using c = float_functions;
  if (!(x == x)) {
    return x;
  }
  const float raised = x > c::least_exponent ? x : c::least_exponent;
  const float inside = raised < c::largest_exponent ? raised : c::largest_exponent;
  const reduced_exponent e(inside);
  return times_power_of_two(1.0F + e.beyond, e.n);
}

/// The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
[[nodiscard]] inline float portable_erf(float x) noexcept {
  using c = float_functions;
  if (!(x == x)) {
    return x;
  }
  const float distance = std::fabs(x);
  if (distance < c::erf_near_zero_end) {
    return std::fma(x, polynomial(c::erf_near_zero, rounded_product(x, x)), x);
  }
  const float m = distance < c::erf_is_one ? distance : c::erf_is_one;
  const float exponent = rounded_product(m, polynomial(c::erf_away_from_zero, m));
  return std::copysign(1.0F - portable_exp(-exponent), x);
}

/// The hyperbolic tangent: t / (t + 2) with t = e^(2 |x|) - 1 = 2^n * beyond + (2^n - 1), and the
/// sign of x.
[[nodiscard]] inline float portable_tanh(float x) noexcept {
  using c = float_functions;
  if (!(x == x)) {
    return x;
  }
  const float distance = std::fabs(x);
  const float m = distance < c::tanh_is_one ? distance : c::tanh_is_one;
  const reduced_exponent e(m + m);
  const auto power = static_cast<float>(std::uint32_t{1} << e.n);
  const float t = std::fma(power, e.beyond, power - 1.0F);
  return std::copysign(t / (t + 2.0F), x);
}

/// 1 / (1 + e^-x), computed from e^-|x|, which does not overflow.
[[nodiscard]] inline float portable_logistic(float x) noexcept {
  if (!(x == x)) {
    return x;
  }
  const float e = portable_exp(-std::fabs(x));
  return (x < 0.0F ? e : 1.0F) / (1.0F + e);
}

/// e^x - 1 = 2^n (1 - 2^-n + beyond). Above 89 the result is infinity, below -18 it is -1; zeros
/// keep their sign.
[[nodiscard]] inline float portable_expm1(float x) noexcept {
  using c = float_functions;
  if (!(x > 0.0F || x < 0.0F)) {
    return x;
  }
  const float raised = x > c::expm1_is_minus_one ? x : c::expm1_is_minus_one;
  const float inside = raised < c::largest_exponent ? raised : c::largest_exponent;
  const reduced_exponent e(inside);
  const int n = e.n < c::largest_power ? e.n : c::largest_power;
  const auto inverse = std::bit_cast<float>(static_cast<std::uint32_t>(127 - n) << 23);
  return times_power_of_two((1.0F - inverse) + e.beyond, e.n);
}

/// log(1 + f) + k log(2), for 1 + f from sqrt(1/2) to sqrt(2) and integers k.
[[nodiscard]] inline float log_of_parts(float f, float k) noexcept {
  using c = float_functions;
  const float log_m = std::fma(rounded_product(f, f), polynomial(c::log_series, f), f);
  return std::fma(k, c::ln2_high, std::fma(k, c::ln2_low, log_m));
}

/// The natural logarithm of x = 2^k (1 + f). -infinity for zeros, NaN for numbers below.
[[nodiscard]] inline float portable_log(float x) noexcept {
  using c = float_functions;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (!(x > 0.0F)) {
    return x == 0.0F ? -infinity : std::numeric_limits<float>::quiet_NaN();
  }
  if (x == infinity) {
    return x;
  }
  const bool denormal = x < std::numeric_limits<float>::min();
  const auto bits = std::bit_cast<std::int32_t>(denormal ? x * 0x1p23F : x) - c::sqrt_half_bits;
  const float f = std::bit_cast<float>((bits & 0x7FFFFF) + c::sqrt_half_bits) - 1.0F;
  const auto k = static_cast<float>(bits >> 23);
  return log_of_parts(f, denormal ? k - 23.0F : k);
}

/// log(1 + e^x): log(1 + e^-|x|), and x more if x is positive.
[[nodiscard]] inline float portable_softplus(float x) noexcept {
  if (!(x == x)) {
    return x;
  }
  const float e = portable_exp(-std::fabs(x));
  // Where 1 + e exceeds sqrt(2), its logarithm is that of (1 + e) / 2, and log(2).
  const bool halved = e > float_functions::sqrt_2_minus_1;
  const float rest = log_of_parts(halved ? 0.5F * (e - 1.0F) : e, halved ? 1.0F : 0.0F);
  return x > 0.0F ? x + rest : rest;
}

/// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2). The result of -infinity is NaN.
[[nodiscard]] inline float portable_mish(float x) noexcept {
  using c = float_functions;
  if (!(x == x)) {
    return x;
  }
  const float e = portable_exp(x < c::mish_is_line ? x : c::mish_is_line);
  const float n = rounded_product(e, e + 2.0F);
  return rounded_product(x, n / (n + 2.0F));
}

/// x (1 + erf(x / sqrt(2))) / 2. The error is at most 2^-22 |x|, and 2^-23 |x| for negative x,
/// where the sum cancels: below x = -5.6 the result is -0, and that of -infinity is NaN.
[[nodiscard]] inline float portable_gelu(float x) noexcept {
  const float sum = 1.0F + portable_erf(rounded_product(float_functions::sqrt_half, x));
  return rounded_product(rounded_product(0.5F, x), sum);
}

/// The approximation of Gelu by tanh, x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3),
/// which is x / (1 + e^-2u). The error is at most 2^-22 |x|. The result of -infinity is NaN.
[[nodiscard]] inline float portable_gelu_tanh(float x) noexcept {
  using c = float_functions;
  const float factor = std::fma(rounded_product(x, x), c::gelu_cubic_factor, c::gelu_factor);
  return rounded_product(x, portable_logistic(rounded_product(x, factor)));
}

/// positive * x for positive x, and negative * (e^(x / divisor) - 1) for others: Elu, Celu and
/// Selu.
[[nodiscard]] inline float portable_exponential_linear(float x, float positive, float negative,
                                                       float divisor) noexcept {
  return x > 0.0F ? rounded_product(positive, x)
                  : rounded_product(negative, portable_expm1(x / divisor));
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_FLOAT_FUNCTIONS_HPP
