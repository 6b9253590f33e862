// SPDX-License-Identifier: BSD-3-Clause
// What the observers of other tools have in common: whether a tool's bugs are reproduced or
// repaired, the order of phases, and functions that every machine computes to the same bits.
#ifndef DETENT_OBSERVERS_PARITY_HPP
#define DETENT_OBSERVERS_PARITY_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// What an observer does where the tool that it stands for has a bug. Each observer that has the
/// choice says what `fixed` changes.
enum class parity : std::uint8_t {
  as_published,  // what the tool returns
  fixed,         // what it would return without the bug
};

namespace detail {

/// The check of begin_phase(). Phase 0 has begun when an observer is made; to begin it once more
/// is allowed as long as nothing was observed, so that a loop over all phases can begin each.
inline void require_next_phase(std::size_t phase, std::size_t current, std::size_t phases,
                               bool observed, const char* where) {
  const bool is_first = phase == 0 && current == 0 && !observed;
  require(is_first || (phase == current + 1 && phase < phases), error_kind::invalid_argument, where,
          ": phase ", phase, " of ", phases, " can't begin in phase ", current,
          observed ? "" : ", in which nothing was observed");
}

/// Adds a batch to `all` and returns it on its own.
inline min_max_observer observe_batch(min_max_observer& all, std::span<const float> x,
                                      const char* where) {
  require(x.empty() || x.data() != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", x.size());
  min_max_observer batch;
  batch.observe(x);
  all.merge(batch);
  return batch;
}

/// a * b rounded to double, which no compiler contracts with a sum that follows. A product of -0 is
/// +0.
[[nodiscard]] inline double rounded_product(double a, double b) noexcept {
  return std::fma(a, b, 0.0);
}
/// The same for floats.
[[nodiscard]] inline float rounded_product(float a, float b) noexcept {
  return reference::nncf::product(a, b);
}

/// average + constant * (x - average), every operation rounded to float.
[[nodiscard]] inline float moving_average(float average, float x, float constant) noexcept {
  return average + rounded_product(constant, x - average);
}
[[nodiscard]] inline value_range moving_average(value_range average, value_range x,
                                                float constant) noexcept {
  return {moving_average(average.lower, x.lower, constant),
          moving_average(average.upper, x.upper, constant)};
}

/// The natural logarithm of a positive normal number to two units in the last place: the same bits
/// everywhere, which std::log does not promise.
///
///   x = m * 2^e with sqrt(1/2) <= m < sqrt(2), s = (m - 1) / (m + 1)
///   log(x) = e * log(2) + 2 * (s + s^3 / 3 + s^5 / 5 + ...)
///
/// s^2 < 0.0295: what follows the term of s^23 is less than 2^-63 of the sum.
[[nodiscard]] inline double natural_log(double x) noexcept {
  constexpr double sqrt_half = 0x1.6a09e667f3bcdp-1;
  constexpr double log2_high = 0x1.62e42fefa3800p-1;  // 11 bits short: e * log2_high is exact
  constexpr double log2_low = 0x1.ef35793c76730p-45;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < sqrt_half) {
    mantissa = mantissa + mantissa;
    --exponent;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double s2 = rounded_product(s, s);
  double series = 0.0;
  for (int n = 23; n >= 3; n -= 2) {
    series = std::fma(series, s2, 1.0 / n);
  }
  const double twice_s = s + s;
  const double log_mantissa = std::fma(rounded_product(series, s2), twice_s, twice_s);
  const auto e = static_cast<double>(exponent);
  return std::fma(e, log2_high, std::fma(e, log2_low, log_mantissa));
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_OBSERVERS_PARITY_HPP
