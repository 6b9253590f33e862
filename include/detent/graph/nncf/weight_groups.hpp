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

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/weight_lanes.hpp>
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
  /// What the search for the least weight of a group begins with; that for the largest one begins
  /// with its negative. With zero points, ranges include 0.
  [[nodiscard]] float first_lower() const noexcept {
    return asymmetric ? 0.0F : std::numeric_limits<float>::infinity();
  }
  /// Rounding to these integers with scales of 1 and zero points of 0.
  [[nodiscard]] lane_rounding rounding() const noexcept {
    lane_rounding r;
    r.scales.fill(1.0F);
    r.lowest = static_cast<float>(lowest());
    r.highest = static_cast<float>(highest());
    return r;
  }
};

/// Codes of weights. Weight i stands for (code - zero point) * scale in float32.
struct integer_weights {
  std::vector<std::int16_t> codes;        ///< In the order of the weights.
  std::vector<float> scales;              ///< One for each group.
  std::vector<std::int32_t> zero_points;  ///< One for each group; empty if symmetric.

  [[nodiscard]] float value(std::size_t weight, std::size_t group) const noexcept {
    const std::int32_t zero_point = zero_points.empty() ? 0 : zero_points[group];
    return detent::detail::rounded_product(static_cast<float>(codes[weight] - zero_point),
                                           scales[group]);
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
  lane_rounding rounding = mode.rounding();
  const auto fill = [&](std::size_t first, std::size_t count) {
    lanes<float> w{};
    std::copy_n(weights.data() + first, count, w.data());
    const lanes<float> codes = rounding.codes(w);
    lanes<std::int16_t> integers;
    for (std::size_t l = 0; l < lane_count; ++l) {
      integers[l] = static_cast<std::int16_t>(codes[l]);
    }
    std::copy_n(integers.data(), count, q.codes.data() + first);
  };
  groups.for_each([&](std::size_t i, std::size_t g) {
    const std::size_t lane = i % lane_count;
    rounding.scales[lane] = q.scales[g];
    if (mode.asymmetric) {
      rounding.zero_points[lane] = static_cast<float>(q.zero_points[g]);
    }
    if (lane + 1 == lane_count) {
      fill(i - lane, lane_count);
    }
  });
  const std::size_t rest = weights.size() % lane_count;
  fill(weights.size() - rest, rest);
}

/// The scale and the zero point of one group; 0 if symmetric.
struct group_params {
  float scale = 1.0F;
  std::int32_t zero_point = 0;
};

/// The parameters of weights that lie between `lower` and `upper`, which includes 0 if the mode is
/// asymmetric.
[[nodiscard]] inline group_params params_of_range(float lower, float upper, integer_mode mode) {
  if (mode.asymmetric) {
    const auto highest = static_cast<float>(mode.highest());
    const float scale = usable_scale((upper - lower) / highest);
    const float zero_point = -reference::round_half_even(lower / scale);
    return {scale, static_cast<std::int32_t>(std::clamp(zero_point, 0.0F, highest))};
  }
  const float end = std::abs(lower) >= upper ? std::abs(lower) : -upper;
  return {usable_scale(end / static_cast<float>(mode.highest() + 1)), 0};
}

/// Quantizes finite weights with the scales of their ranges.
[[nodiscard]] inline integer_weights quantize_by_range(std::span<const float> weights,
                                                       const weight_groups& groups,
                                                       integer_mode mode) {
  std::vector<float> lower(groups.count(), mode.first_lower());
  std::vector<float> upper(groups.count(), -mode.first_lower());
  groups.for_each([&](std::size_t i, std::size_t g) {
    lower[g] = (std::min)(lower[g], weights[i]);
    upper[g] = (std::max)(upper[g], weights[i]);
  });
  integer_weights q;
  for (std::size_t g = 0; g < lower.size(); ++g) {
    const group_params params = params_of_range(lower[g], upper[g], mode);
    q.scales.push_back(params.scale);
    if (mode.asymmetric) {
      q.zero_points.push_back(params.zero_point);
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
