// SPDX-License-Identifier: BSD-3-Clause
// The integer that a layer with integer weights stores for an element of its bias.
#ifndef DETENT_GRAPH_OPS_BIAS_CODE_HPP
#define DETENT_GRAPH_OPS_BIAS_CODE_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The code of a bias in units of x_scale * w_scale: round_half_even(bias / (x_scale * w_scale)),
/// with product and quotient in double, saturated to +-(2^31 - 1); 0 if the quotient is NaN.
/// Thread-safe.
[[nodiscard]] inline std::int32_t bias_code(float bias, float x_scale, float w_scale) noexcept {
  const double scale = static_cast<double>(x_scale) * static_cast<double>(w_scale);
  const double steps = static_cast<double>(bias) / scale;
  if (std::isnan(steps)) {
    return 0;
  }
  return static_cast<std::int32_t>(std::clamp(std::nearbyint(steps), -2147483647.0, 2147483647.0));
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_BIAS_CODE_HPP
