// SPDX-License-Identifier: BSD-3-Clause
// Powers of many numbers by vectors.
#ifndef DETENT_SOLVERS_POWERS_HPP
#define DETENT_SOLVERS_POWERS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/kernels/definitions/exponentials.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Replaces each x by x^y with the bits of portable_power(). Each x is 0 or positive and normal.
inline void replace_by_powers(std::span<double> x, double y) noexcept {
  if (y == 0.0) {
    std::fill(x.begin(), x.end(), 1.0);
    return;
  }
  const double power_of_zero = y > 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  const auto& kernels = active<kernels::exponential_kernels>();
  constexpr std::size_t block = 256;
  std::array<double, block> powers;
  for (std::size_t first = 0; first < x.size(); first += block) {
    const std::span<double> some = x.subspan(first, (std::min)(block, x.size() - first));
    for (std::size_t i = 0; i < some.size(); ++i) {
      powers[i] = some[i] == 0.0 ? 1.0 : some[i];
    }
    kernels.log(powers.data(), some.size());
    for (std::size_t i = 0; i < some.size(); ++i) {
      powers[i] = rounded_product(y, powers[i]);
    }
    kernels.exp(powers.data(), some.size());
    for (std::size_t i = 0; i < some.size(); ++i) {
      some[i] = some[i] == 0.0 ? power_of_zero : powers[i];
    }
  }
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_SOLVERS_POWERS_HPP
