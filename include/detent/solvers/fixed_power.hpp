// SPDX-License-Identifier: BSD-3-Clause
// Raises many numbers to the same power, with the same bits on every machine, for a dozen
// multiplications each.
#ifndef DETENT_SOLVERS_FIXED_POWER_HPP
#define DETENT_SOLVERS_FIXED_POWER_HPP

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Computes x^q for one q in 0..7 and many x in [0, 16), with a relative error of at most 1e-12; 0
/// for x < 2^-96.
///
///     x = 2^e * c * (1 + r)    with c the middle of one of 128 parts of [1, 2), |r| < 2^-8
///     x^q = 2^(e q) * c^q * (1 + q r + q (q - 1) / 2 r^2 + ...)
///
/// The first two factors come from tables. Five terms of the series follow the 1; the remainder is
/// at most 7 r^6 of the result.
class fixed_power {
 public:
  explicit fixed_power(double q) {
    for (std::size_t i = 0; i < octaves; ++i) {
      of_octave_[i] = portable_power(std::ldexp(1.0, static_cast<int>(i) + lowest), q);
    }
    for (std::size_t i = 0; i < parts; ++i) {
      middle_[i] = 1.0 + (static_cast<double>(i) + 0.5) / static_cast<double>(parts);
      inverse_[i] = 1.0 / middle_[i];
      of_middle_[i] = portable_power(middle_[i], q);
    }
    double coefficient = 1.0;
    for (std::size_t i = 0; i < terms; ++i) {
      const auto n = static_cast<double>(i);
      coefficient = coefficient * (q - n) / (n + 1.0);
      coefficients_[i] = coefficient;
    }
  }

  [[nodiscard]] double operator()(double x) const noexcept {
    constexpr std::uint64_t one = 0x3FF0000000000000U;
    const auto bits = std::bit_cast<std::uint64_t>(x);
    const std::uint64_t exponent = bits >> 52;
    constexpr auto first = static_cast<std::uint64_t>(1023 + lowest);
    if (exponent < first) {
      return 0.0;
    }
    const auto part = static_cast<std::size_t>(bits >> 45 & (parts - 1));
    const auto mantissa = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFU) | one);
    const double r = rounded_product(mantissa - middle_[part], inverse_[part]);
    double series = coefficients_[terms - 1];
    for (std::size_t i = terms - 1; i-- > 0;) {
      series = coefficients_[i] + rounded_product(series, r);
    }
    series = 1.0 + rounded_product(series, r);
    return of_octave_[static_cast<std::size_t>(exponent - first)] * of_middle_[part] * series;
  }

 private:
  static constexpr int lowest = -96;
  static constexpr std::size_t octaves = 100;
  static constexpr std::size_t parts = 128;
  static constexpr std::size_t terms = 5;

  std::array<double, octaves> of_octave_;
  std::array<double, parts> middle_;
  std::array<double, parts> inverse_;
  std::array<double, parts> of_middle_;
  std::array<double, terms> coefficients_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_FIXED_POWER_HPP
