// SPDX-License-Identifier: BSD-3-Clause
// Rounding of several weights side by side. A lane is one place of an array of fixed size; loops
// over all lanes have no end to check and no sums of their own, so that compilers make SIMD code of
// them that gives the bits of the plain loop.
#ifndef DETENT_GRAPH_NNCF_WEIGHT_LANES_HPP
#define DETENT_GRAPH_NNCF_WEIGHT_LANES_HPP

#include <array>
#include <cstddef>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// The number of weights that are handled side by side.
inline constexpr std::size_t lane_count = 32;

/// One value for each lane.
template <class T>
using lanes = std::array<T, lane_count>;

/// The scales and zero points of the lanes, and the range of their codes, which lies in -2^21 ..
/// 2^21.
struct lane_rounding {
  lanes<float> scales{};
  lanes<float> zero_points{};
  float lowest = 0.0F;
  float highest = 0.0F;

  /// clamp(round(w / scale + zero point), lowest, highest), ties to even, for each lane. No
  /// quotient is NaN.
  [[nodiscard]] lanes<float> codes(const lanes<float>& w) const noexcept {
    // Adding 1.5 * 2^23 rounds half to even what is less than 2^22. Clamping before that gives the
    // same codes as clamping after it, because the bounds are integers.
    constexpr float bias = 12582912.0F;
    lanes<float> rounded;
    for (std::size_t l = 0; l < lane_count; ++l) {
      const float place = w[l] / scales[l] + zero_points[l];
      const float low = place < lowest ? lowest : place;
      rounded[l] = ((low > highest ? highest : low) + bias) - bias;
    }
    return rounded;
  }

  /// The differences of the codes and the zero points.
  [[nodiscard]] lanes<float> targets(const lanes<float>& w) const noexcept {
    lanes<float> t = codes(w);
    for (std::size_t l = 0; l < lane_count; ++l) {
      t[l] -= zero_points[l];
    }
    return t;
  }
};

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_WEIGHT_LANES_HPP
