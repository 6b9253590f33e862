// SPDX-License-Identifier: BSD-3-Clause
// Weights as integers by NNCF's rules: which weights share a scale, their scales and zero points,
// codes, and the error of the codes.
//
//   asymmetric  scale = (max(0, w) - min(0, w)) / (2^bits - 1)
//               zero point = clamp(-round(min(0, w) / scale), 0, 2^bits - 1)
//               code = clamp(round(w / scale + zero point), 0, 2^bits - 1)
//   symmetric   scale = |min w| / 2^(bits-1), or -max w / 2^(bits-1) if max w > |min w|
//               code = clamp(round(w / scale), -2^(bits-1), 2^(bits-1) - 1)
//
// All in float32, ties to even. A scale below 2^-23 becomes 2^-23. No step depends on the order of
// the weights, so that the numbers are those of NNCF to the last bit.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/weight_lowering.py.
#ifndef DETENT_GRAPH_NNCF_WEIGHT_GROUPS_HPP
#define DETENT_GRAPH_NNCF_WEIGHT_GROUPS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// Which weights of a tensor share a scale. The tensor is viewed as [outer, middle, inner].
struct weight_groups {
  std::size_t outer = 1;
  std::size_t middle = 1;
  std::size_t inner = 1;
  /// Whether each index of the middle dimension has a scale. If not, `block` neighbours along the
  /// middle dimension share one, for each index of the other dimensions.
  bool per_middle = false;
  std::size_t block = 1;  ///< Divides `middle`.

  /// The number of scales.
  [[nodiscard]] std::size_t count() const noexcept {
    return per_middle ? middle : outer * (middle / block) * inner;
  }
  /// The number of weights that share a scale.
  [[nodiscard]] std::size_t size() const noexcept { return per_middle ? outer * inner : block; }
  /// Calls f(index of the weight, index of its scale) for all weights in their order.
  template <class Function>
  void for_each(const Function& f) const {
    std::size_t i = 0;
    for (std::size_t o = 0; o < outer; ++o) {
      for (std::size_t m = 0; m < middle; ++m) {
        const std::size_t row = per_middle ? m : (o * (middle / block) + m / block) * inner;
        for (std::size_t n = 0; n < inner; ++n, ++i) {
          f(i, per_middle ? row : row + n);
        }
      }
    }
  }
};

/// The integers of a mode: 4 or 8 bits, with or without zero points.
struct integer_mode {
  std::int32_t bits = 8;
  bool asymmetric = true;

  [[nodiscard]] static integer_mode of(compress_weights_mode mode) noexcept {
    return {
        mode == compress_weights_mode::int4_asym || mode == compress_weights_mode::int4_sym ? 4 : 8,
        mode == compress_weights_mode::int4_asym || mode == compress_weights_mode::int8_asym};
  }
  [[nodiscard]] std::int32_t lowest() const noexcept { return asymmetric ? 0 : -(1 << (bits - 1)); }
  [[nodiscard]] std::int32_t highest() const noexcept {
    return (asymmetric ? 1 << bits : 1 << (bits - 1)) - 1;
  }
};

/// Codes of weights. Weight i stands for (code - zero point) * scale in float32.
struct integer_weights {
  std::vector<std::int16_t> codes;        ///< In the order of the weights.
  std::vector<float> scales;              ///< One for each group.
  std::vector<std::int32_t> zero_points;  ///< One for each group; empty if symmetric.

  [[nodiscard]] float value(std::size_t weight, std::size_t group) const noexcept {
    const std::int32_t zero_point = zero_points.empty() ? 0 : zero_points[group];
    return static_cast<float>(codes[weight] - zero_point) * scales[group];
  }
};

/// Replaces a scale that is too small to divide by.
[[nodiscard]] inline float usable_scale(float scale) noexcept {
  constexpr float least = std::numeric_limits<float>::epsilon();
  return std::abs(scale) < least ? least : scale;
}

/// Computes the codes for given scales and zero points, which `q` has.
inline void fill_codes(std::span<const float> weights, const weight_groups& groups,
                       integer_mode mode, integer_weights& q) {
  q.codes.resize(weights.size());
  groups.for_each([&](std::size_t i, std::size_t g) {
    float v = weights[i] / q.scales[g];
    if (mode.asymmetric) {
      v += static_cast<float>(q.zero_points[g]);
    }
    v = std::clamp(reference::round_half_even(v), static_cast<float>(mode.lowest()),
                   static_cast<float>(mode.highest()));
    q.codes[i] = static_cast<std::int16_t>(v);
  });
}

/// Quantizes finite weights with the scales of their ranges.
[[nodiscard]] inline integer_weights quantize_by_range(std::span<const float> weights,
                                                       const weight_groups& groups,
                                                       integer_mode mode) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> lower(groups.count(), mode.asymmetric ? 0.0F : infinity);
  std::vector<float> upper(groups.count(), mode.asymmetric ? 0.0F : -infinity);
  groups.for_each([&](std::size_t i, std::size_t g) {
    lower[g] = (std::min)(lower[g], weights[i]);
    upper[g] = (std::max)(upper[g], weights[i]);
  });
  integer_weights q;
  for (std::size_t g = 0; g < lower.size(); ++g) {
    if (mode.asymmetric) {
      const float scale = usable_scale((upper[g] - lower[g]) / static_cast<float>(mode.highest()));
      q.scales.push_back(scale);
      const float zero_point = -reference::round_half_even(lower[g] / scale);
      q.zero_points.push_back(static_cast<std::int32_t>(
          std::clamp(zero_point, 0.0F, static_cast<float>(mode.highest()))));
    } else {
      const float end = std::abs(lower[g]) >= upper[g] ? std::abs(lower[g]) : -upper[g];
      q.scales.push_back(usable_scale(end / static_cast<float>(mode.highest() + 1)));
    }
  }
  fill_codes(weights, groups, mode, q);
  return q;
}

/// The sums of (value - weight)^2, one for each group.
[[nodiscard]] inline std::vector<double> squared_errors(std::span<const float> weights,
                                                        const weight_groups& groups,
                                                        const integer_weights& q) {
  std::vector<double> sums(groups.count(), 0.0);
  groups.for_each([&](std::size_t i, std::size_t g) {
    const double difference = q.value(i, g) - weights[i];
    sums[g] += difference * difference;
  });
  return sums;
}

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_WEIGHT_GROUPS_HPP
