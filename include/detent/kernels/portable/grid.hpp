// SPDX-License-Identifier: BSD-3-Clause
// What the portable kernels share: rounding to a grid, clamping, sums modulo 2^32.
#ifndef DETENT_KERNELS_PORTABLE_GRID_HPP
#define DETENT_KERNELS_PORTABLE_GRID_HPP

#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 half to even, and vectorizes.
inline constexpr float rounding_bias = 12582912.0F;

/// reference::to_grid without branches; see there.
inline std::int32_t to_grid(float steps, std::int32_t zero_point, std::int32_t qmin,
                            std::int32_t qmax) noexcept {
  const auto lowest = static_cast<float>(qmin - zero_point);
  const auto highest = static_cast<float>(qmax - zero_point);
  float v = steps == steps ? steps : 0.0F;
  v = v < lowest ? lowest : v;
  v = v > highest ? highest : v;
  v = (v + rounding_bias) - rounding_bias;
  return static_cast<std::int32_t>(v) + zero_point;
}

inline float clamp(float x, float lower, float upper) noexcept {
  x = x < lower ? lower : x;
  return x > upper ? upper : x;
}

/// Sums modulo 2^32: the vector kernels' lanes wrap, and the caller has proved that the final value
/// fits.
inline std::uint32_t wrapping(std::int32_t v) noexcept { return static_cast<std::uint32_t>(v); }

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_GRID_HPP
