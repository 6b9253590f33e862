// SPDX-License-Identifier: BSD-3-Clause
// e^x, erf, tanh and the logistic function of floats, with the same bits whatever the compiler, its
// options, the C library and the processor are.
//
// These are the definitions that the kernels of kernels/float_functions.hpp equal to the bit. All
// steps are in float, so that a vector has twice the elements of one of doubles; the functions of
// doubles are in base/elementary_functions.hpp. The largest errors, in units of the last place of
// the exact result, were found by trying all floats:
//
//   portable_exp       1.02
//   portable_erf       1.14
//   portable_tanh      2.61
//   portable_logistic  2.41
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

/// p * 2^n, rounded once, for p in [0.5, 2) and an integer n in -151..129.
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

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_FLOAT_FUNCTIONS_HPP
