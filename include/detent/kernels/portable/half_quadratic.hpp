// SPDX-License-Identifier: BSD-3-Clause
// Half-quadratic quantization in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_HALF_QUADRATIC_HPP
#define DETENT_KERNELS_PORTABLE_HALF_QUADRATIC_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/kernels/half_quadratic.hpp>
#include <detent/reference.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// The nearest code of a place.
inline double half_quadratic_code(const half_quadratic_args& group, double place) noexcept {
  return reference::round_half_even(std::clamp(place + group.zero_point, group.qmin, group.qmax));
}

DETENT_DECL void half_quadratic_round(const half_quadratic_args& group,
                                      std::int8_t* codes) noexcept {
  for (std::size_t i = 0; i < group.n; ++i) {
    codes[i] = static_cast<std::int8_t>(half_quadratic_code(group, group.places[i]));
  }
}

DETENT_DECL half_quadratic_sums half_quadratic_sum(const half_quadratic_args& group) noexcept {
  constexpr std::size_t parts = 8;
  std::array<double, parts> objective{};
  std::array<double, parts> magnitudes{};
  std::array<double, parts> distances{};
  std::array<double, parts> shrunk{};
  for (std::size_t i = 0; i < group.n; ++i) {
    const double place = group.places[i];
    const double code = group.codes != nullptr ? static_cast<double>(group.codes[i])
                                               : half_quadratic_code(group, place);
    const double t = place - (code - group.zero_point);
    const double magnitude = std::fabs(t);
    const double base = magnitude < (std::numeric_limits<double>::min)() ? 1.0 : magnitude;
    const double power =
        detail::portable_exp(detail::rounded_product(group.exponent, detail::portable_log(base)));
    const double left = magnitude - detail::rounded_product(group.shrinkage, power);
    const std::size_t part = i % parts;
    objective[part] += detail::rounded_product(power, magnitude);
    magnitudes[part] += magnitude;
    distances[part] += code - place;
    shrunk[part] += left > 0.0 ? std::copysign(left, t) : 0.0;
  }
  return {detail::sum_of(objective), detail::sum_of(magnitudes), detail::sum_of(distances),
          detail::sum_of(shrunk)};
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_HALF_QUADRATIC_HPP
