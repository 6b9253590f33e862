// SPDX-License-Identifier: BSD-3-Clause
// NNCF's scale estimation: the scales of weights that keep the outputs of a layer best on samples.
//
// Each group of weights w with its scale s, zero point z and codes q is handled alone. With X, the
// inputs of the group for each sample, and the target t = q - z:
//
//   importance i   the largest |X| of each input, 0 where t = 0, divided by its sum plus 2^-23
//   new scale      sign(s) * sum(i |w| / (|t| + 0.001 [t = 0]))
//   error          mean over the samples of (w . X - v . X)^2, v: the weights as the new scale
//                  rounds them, [plus weight_penalty * mean((v - w)^2), if that is positive]
//
// A new scale that is no worse than the best so far replaces it. First `initial_steps` times with
// the codes of the best scale so far, then `scale_steps` times with the codes of s, 0.95 s, 0.9 s,
// ... The zero point stays.
//
// Sums are computed in double here and in float32 by NNCF: scales agree to about six digits, unless
// two errors are so close that rounding decides.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/scale_estimation.py.
#ifndef DETENT_GRAPH_NNCF_SCALE_ESTIMATION_HPP
#define DETENT_GRAPH_NNCF_SCALE_ESTIMATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/layer_input_samples.hpp>
#include <detent/graph/nncf/weight_groups.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// Finds the scale of one group after the other.
class scale_estimator {
 public:
  /// `magnitudes` has the importance of each input, `samples` the inputs of each sample.
  scale_estimator(integer_mode mode, const scale_estimation_params& params,
                  std::span<const float> magnitudes, const std::vector<std::vector<float>>& samples)
      : mode_(mode), params_(params), magnitudes_(magnitudes), samples_(samples) {}

  /// The scale for the weights of the inputs from `first` on, which have this scale and zero point
  /// by their range.
  [[nodiscard]] float run(std::span<const float> weights, std::size_t first, float scale,
                          std::int32_t zero_point) {
    weights_ = weights;
    first_ = first;
    zero_point_ = static_cast<float>(zero_point);
    targets_ = targets(scale);
    set_importance();
    set_exact_outputs();
    best_ = scale;
    least_error_ = error(scale);
    for (std::size_t i = 0; i < params_.initial_steps; ++i) {
      try_scale(scale);
      targets_ = targets(best_);
    }
    for (std::size_t i = 0; i < params_.scale_steps; ++i) {
      targets_ = targets(static_cast<float>(1.0 - 0.05 * static_cast<double>(i)) * scale);
      try_scale(scale);
    }
    return best_;
  }

 private:
  /// The differences of the codes and the zero point.
  [[nodiscard]] std::vector<float> targets(float scale) const {
    std::vector<float> t(weights_.size());
    std::transform(weights_.begin(), weights_.end(), t.begin(), [&](float w) {
      const float code = reference::round_half_even(w / scale + zero_point_);
      return std::clamp(code, static_cast<float>(mode_.lowest()),
                        static_cast<float>(mode_.highest())) -
             zero_point_;
    });
    return t;
  }

  void set_importance() {
    importance_.assign(weights_.size(), 0.0);
    double sum = std::numeric_limits<float>::epsilon();
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      if (targets_[k] != 0.0F) {
        importance_[k] = magnitudes_[first_ + k];
        sum += importance_[k];
      }
    }
    for (double& i : importance_) {
      i /= sum;
    }
  }

  void set_exact_outputs() {
    outputs_.clear();
    for (const std::vector<float>& x : samples_) {
      double sum = 0.0;
      for (std::size_t k = 0; k < weights_.size(); ++k) {
        sum += static_cast<double>(weights_[k]) * x[first_ + k];
      }
      outputs_.push_back(sum);
    }
  }

  [[nodiscard]] double error(float scale) const {
    std::vector<float> v = targets(scale);
    for (float& value : v) {
      value *= scale;
    }
    double squares = 0.0;
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      double sum = 0.0;
      for (std::size_t k = 0; k < v.size(); ++k) {
        sum += static_cast<double>(v[k]) * samples_[s][first_ + k];
      }
      squares += (outputs_[s] - sum) * (outputs_[s] - sum);
    }
    double total = squares / static_cast<double>(samples_.size());
    if (params_.weight_penalty > 0.0) {
      double penalty = 0.0;
      for (std::size_t k = 0; k < v.size(); ++k) {
        const double difference = static_cast<double>(v[k]) - weights_[k];
        penalty += difference * difference;
      }
      total += params_.weight_penalty * penalty / static_cast<double>(v.size());
    }
    return total;
  }

  /// Takes the scale that the targets suggest, if it is no worse.
  void try_scale(float scale) {
    double sum = 0.0;
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const double t = targets_[k] == 0.0F ? smallest_target : std::abs(targets_[k]);
      sum += importance_[k] * std::abs(weights_[k]) / t;
    }
    const auto tried = static_cast<float>(std::copysign(sum, scale));
    if (tried == 0.0F) {
      return;  // no input matters
    }
    const double e = error(tried);
    if (e <= least_error_) {
      least_error_ = e;
      best_ = tried;
    }
  }

  static constexpr double smallest_target = 0.001;

  integer_mode mode_;
  const scale_estimation_params& params_;
  std::span<const float> magnitudes_;
  const std::vector<std::vector<float>>& samples_;
  std::span<const float> weights_;
  std::size_t first_ = 0;
  float zero_point_ = 0.0F;
  std::vector<float> targets_;
  std::vector<double> importance_;
  std::vector<double> outputs_;
  float best_ = 0.0F;
  double least_error_ = 0.0;
};

/// Gives `q`, the weights of a layer by their ranges, the scales that scale_estimator finds, and
/// the codes that belong to them. `groups` divides the axis of the layer's inputs.
inline void estimate_scales(std::span<const float> weights, const weight_groups& groups,
                            integer_mode mode, const scale_estimation_params& params,
                            const layer_input_samples& inputs, integer_weights& q) {
  const std::vector<float> magnitudes = inputs.magnitudes();
  const std::vector<std::vector<float>> samples = inputs.means(params.subset_size);
  scale_estimator estimator(mode, params, magnitudes, samples);
  const std::size_t blocks = groups.middle / groups.block;
  std::vector<float> group(groups.block);
  for (std::size_t o = 0; o < groups.outer; ++o) {
    for (std::size_t b = 0; b < blocks; ++b) {
      for (std::size_t n = 0; n < groups.inner; ++n) {
        for (std::size_t k = 0; k < groups.block; ++k) {
          group[k] = weights[(o * groups.middle + b * groups.block + k) * groups.inner + n];
        }
        const std::size_t g = (o * blocks + b) * groups.inner + n;
        q.scales[g] = estimator.run(group, b * groups.block, q.scales[g],
                                    q.zero_points.empty() ? 0 : q.zero_points[g]);
      }
    }
  }
  fill_codes(weights, groups, mode, q);
}

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_SCALE_ESTIMATION_HPP
