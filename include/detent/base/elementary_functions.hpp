// SPDX-License-Identifier: BSD-3-Clause
// e^x, logarithms, powers, erf, tanh and the logistic function, with the same bits whatever the
// compiler, its options, the C library and the processor are. Those of the C library differ between
// releases and processors.
//
// These are the definitions that the kernels of kernels/exponentials.hpp equal to the bit. Errors
// are a few units in the last place of a double, unless a function says otherwise; NaN gives NaN in
// the functions of one argument. All functions are pure: no state,
// no floating-point exceptions or rounding modes are looked at.
//
// The coefficients of polynomials are those of Chebyshev interpolation, computed with 60 digits.
#ifndef DETENT_BASE_ELEMENTARY_FUNCTIONS_HPP
#define DETENT_BASE_ELEMENTARY_FUNCTIONS_HPP

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// The polynomial with these coefficients, the last one constant, by Horner's rule:
/// ((c[0] x + c[1]) x + c[2]) x + ... Each step is fused.
template <std::size_t N>
[[nodiscard]] inline double polynomial(const double (&coefficients)[N], double x) noexcept {
  double sum = coefficients[0];
  for (std::size_t k = 1; k < N; ++k) {
    sum = std::fma(sum, x, coefficients[k]);
  }
  return sum;
}

/// The high part of log(2) has 33 bits, so that its product with an exponent is exact.
inline constexpr double ln2_high = 0x1.62e42fee00000p-1;
inline constexpr double ln2_low = 0x1.a39ef35793c76p-33;
inline constexpr double inverse_ln2 = 0x1.71547652b82fep+0;
/// Adding 1.5 * 2^52 to a number below 2^51 rounds it to an integer, half to even.
inline constexpr double rounding_bias = 6755399441055744.0;
/// Outside of these e^x is 0 or infinity.
inline constexpr double least_exponent = -708.0;
inline constexpr double largest_exponent = 709.0;
/// Taylor's series of e^x: for |x| <= 0.35 the first term left out is below 1e-17.
inline constexpr double exp_series[] = {1.0 / 6227020800,
                                        1.0 / 479001600,
                                        1.0 / 39916800,
                                        1.0 / 3628800,
                                        1.0 / 362880,
                                        1.0 / 40320,
                                        1.0 / 5040,
                                        1.0 / 720,
                                        1.0 / 120,
                                        1.0 / 24,
                                        1.0 / 6,
                                        0.5,
                                        1.0,
                                        1.0};

/// m * 2^e for |m| in [1/2, 2) and e in -1021..1023: a normal number, so that nothing is rounded.
[[nodiscard]] inline double times_power_of_two(double m, int e) noexcept {
  return m * std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
}

/// e^x. Above 709 the result is infinity, below -708 it is 0.
///
///   x = n log(2) + r with an integer n, |r| <= log(2) / 2
///   e^x = 2^n (1 + r + r^2 / 2! + ... + r^13 / 13!)
[[nodiscard]] inline double portable_exp(double x) noexcept {
  if (!(x <= largest_exponent)) {
    return x > largest_exponent ? std::numeric_limits<double>::infinity() : x;
  }
  if (x < least_exponent) {
    return 0.0;
  }
  const double n = std::fma(x, inverse_ln2, rounding_bias) - rounding_bias;
  const double r = std::fma(-n, ln2_low, std::fma(-n, ln2_high, x));
  return times_power_of_two(polynomial(exp_series, r), static_cast<int>(n));
}
/// log(2) for logarithms: the high part is 11 bits short, so that its product with an exponent is
/// exact.
inline constexpr double log2_high = 0x1.62e42fefa3800p-1;
inline constexpr double log2_low = 0x1.ef35793c76730p-45;
/// The factors of f^22, f^20, ..., 1 in portable_log().
inline constexpr double log_series[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                        1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};

/// The natural logarithm of a positive normal number, to about one unit in the last place.
///
///   x = m * 2^e with sqrt(1/2) <= m < sqrt(2), f = (m - 1) / (m + 1)
///   log(x) = e * log(2) + 2 * (f + f^3 / 3 + f^5 / 5 + ...)
///
/// Since f^2 < 0.0295, the terms after f^23 / 23 are together less than 2^-63 of the sum.
[[nodiscard]] inline double portable_log(double x) noexcept {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m += m;
    --exponent;
  }
  const double f = (m - 1.0) / (m + 1.0);
  const double square = rounded_product(f, f);
  const double series = polynomial(log_series, square);
  const double twice = f + f;
  const double log_m = std::fma(rounded_product(series, square), twice, twice);
  const auto e = static_cast<double>(exponent);
  return std::fma(e, log2_high, std::fma(e, log2_low, log_m));
}

/// x^y for finite x >= 0 and y that is not NaN. 0^0 = 1, 0^y = 0 for y > 0 and infinity for y < 0.
/// The relative error is about 2^-52 * max(1, |y log x|): some hundred units in the last place
/// where the result is far from 1.
[[nodiscard]] inline double portable_power(double x, double y) noexcept {
  if (y == 0.0) {
    return 1.0;
  }
  if (x == 0.0) {
    return y > 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return portable_exp(rounded_product(y, portable_log(x)));
}

/// erf(x) / x as a polynomial of x^2, for |x| <= 1.
inline constexpr double erf_near_zero[] = {
    -0x1.ac9585a44fe29p-31, 0x1.d76af6ca49787p-27, -0x1.5c131500d3f88p-23, 0x1.b981d78881a5dp-20,
    -0x1.f4ca838adb73bp-17, 0x1.f9a2be4f731a1p-14, -0x1.c02db0665e53dp-11, 0x1.565bccfa44156p-8,
    -0x1.b82ce31203772p-6,  0x1.ce2f21a040f66p-4,  -0x1.812746b0379c1p-2,  0x1.20dd750429b6dp+0};
/// e^(x^2) (1 - erf(x)) as a polynomial of (x - 2) / (x + 2), for x in [1, 6].
inline constexpr double erf_away_from_zero[] = {
    0x1.06de90fce20e3p-18,  0x1.e89749bb276c3p-20, -0x1.d8072f8b2af1ep-17, -0x1.cfd845cfda3f9p-16,
    0x1.ce18d5b499621p-16,  0x1.6dac8e32716eep-13, 0x1.6d5bf00483674p-15,  -0x1.016b61e9c90a9p-10,
    -0x1.bc25a2a5685b8p-11, 0x1.ca95ed5c92a4bp-8,  0x1.e9471595c0b9dp-9,   -0x1.437f0b68c2dc0p-4,
    0x1.eeea7dc8a7932p-3,   -0x1.b57034efd3f69p-2, 0x1.058671b52c776p-2};
/// 1 - erf(x) is less than half a unit in the last place of 1 from here on.
inline constexpr double erf_is_one = 6.0;

/// The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
[[nodiscard]] inline double portable_erf(double x) noexcept {
  if (!(x == x)) {
    return x;
  }
  const double distance = std::fabs(x);
  const double m = distance < erf_is_one ? distance : erf_is_one;
  const double square = rounded_product(m, m);
  if (m < 1.0) {
    return std::copysign(rounded_product(m, polynomial(erf_near_zero, square)), x);
  }
  const double rest = polynomial(erf_away_from_zero, (m - 2.0) / (m + 2.0));
  return std::copysign(std::fma(-portable_exp(-square), rest, 1.0), x);
}

/// (tanh(x) / x - 1) / x^2 as a polynomial of x^2, for |x| < 1/4.
inline constexpr double tanh_near_zero[] = {
    -0x1.5d8ce3a0d6b4bp-10, 0x1.d578fd2c2365bp-9, -0x1.226a8b66370d4p-7, 0x1.664f3e4c9bb5cp-6,
    -0x1.ba1ba1ac8748ap-5,  0x1.111111110dad2p-3, -0x1.5555555555551p-2};
/// From here on 1 - e^(-2 |x|) loses too few digits to matter.
inline constexpr double tanh_near_zero_end = 0.25;

/// The hyperbolic tangent, (1 - e^(-2 |x|)) / (1 + e^(-2 |x|)) with the sign of x.
[[nodiscard]] inline double portable_tanh(double x) noexcept {
  const double m = std::fabs(x);
  if (m < tanh_near_zero_end) {
    const double square = rounded_product(m, m);
    const double cube = rounded_product(m, square);
    return std::copysign(std::fma(cube, polynomial(tanh_near_zero, square), m), x);
  }
  const double e = portable_exp(-2.0 * m);
  return std::copysign((1.0 - e) / (1.0 + e), x);
}

/// 1 / (1 + e^-x).
[[nodiscard]] inline double portable_logistic(double x) noexcept {
  return 1.0 / (1.0 + portable_exp(-x));
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_BASE_ELEMENTARY_FUNCTIONS_HPP
