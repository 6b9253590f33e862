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
// Groups of several outputs are handled side by side. No sum depends on how many there are: results
// have the same bits on every processor and for any number of threads.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/scale_estimation.py.
#ifndef DETENT_GRAPH_NNCF_SCALE_ESTIMATION_HPP
#define DETENT_GRAPH_NNCF_SCALE_ESTIMATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/layer_input_samples.hpp>
#include <detent/graph/nncf/weight_groups.hpp>
#include <detent/graph/nncf/weight_lanes.hpp>
#include <detent/graph/nncf/weight_rows.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// The inputs of a layer, as scale_estimator takes them.
struct estimation_inputs {
  std::vector<float> magnitudes;  // the importance of each input
  sample_rows samples;
};

/// Finds the scales of a tile of groups, lane_count outputs with the same inputs, side by side.
class scale_estimator {
 public:
  /// `block` is the number of inputs of a group.
  scale_estimator(integer_mode mode, const scale_estimation_params& params,
                  const estimation_inputs& inputs, std::size_t block)
      : params_(params),
        inputs_(inputs),
        rounding_(mode.rounding()),
        weights_(block),
        targets_(block),
        tried_targets_(block),
        shares_(block),
        values_(block),
        exact_outputs_(inputs.samples.count * lane_count),
        outputs_(inputs.samples.count * lane_count) {}

  /// Replaces the scales in `q`, which are those of the ranges, for the groups of one tile and the
  /// inputs from `first` on.
  void run(const weight_rows& w, std::size_t tile, std::size_t first, integer_weights& q) {
    w.copy_tile(tile, first, weights_);
    first_ = first;
    take_params(w, tile, q);
    estimate();
    for (std::size_t l = 0; l < w.tile_outputs(tile); ++l) {
      q.scales[w.group(tile * lane_count + l, first)] = best_[l];
    }
  }

 private:
  /// Lanes without an output have weights of 0 and keep the scale 1.
  void take_params(const weight_rows& w, std::size_t tile, const integer_weights& q) {
    range_scales_.fill(1.0F);
    rounding_.zero_points.fill(0.0F);
    for (std::size_t l = 0; l < w.tile_outputs(tile); ++l) {
      const std::size_t g = w.group(tile * lane_count + l, first_);
      range_scales_[l] = q.scales[g];
      if (!q.zero_points.empty()) {
        rounding_.zero_points[l] = static_cast<float>(q.zero_points[g]);
      }
    }
  }

  void estimate() {
    set_targets(range_scales_, targets_);
    set_shares();
    set_exact_outputs();
    best_ = range_scales_;
    least_errors_ = errors(targets_, best_);
    for (std::size_t i = 0; i < params_.initial_steps; ++i) {
      if (!try_scales()) {
        break;  // all further steps would try the same scales again
      }
      set_targets(best_, targets_);
    }
    for (std::size_t i = 0; i < params_.scale_steps; ++i) {
      const auto factor =
          static_cast<float>(1.0 - detent::detail::rounded_product(0.05, static_cast<double>(i)));
      lanes<float> smaller = range_scales_;
      for (float& scale : smaller) {
        scale *= factor;
      }
      set_targets(smaller, targets_);
      try_scales();
    }
  }

  /// The differences of the codes and the zero points.
  void set_targets(const lanes<float>& scales, std::vector<lanes<float>>& targets) {
    rounding_.scales = scales;
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      targets[k] = rounding_.targets(weights_[k]);
    }
  }

  /// Sets importance * |w| of each weight.
  void set_shares() {
    lanes<double> sums;
    sums.fill(std::numeric_limits<float>::epsilon());
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const auto magnitude = static_cast<double>(inputs_.magnitudes[first_ + k]);
      for (std::size_t l = 0; l < lane_count; ++l) {
        sums[l] += targets_[k][l] == 0.0F ? 0.0 : magnitude;
      }
    }
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const auto magnitude = static_cast<double>(inputs_.magnitudes[first_ + k]);
      lanes<double> shares;
      for (std::size_t l = 0; l < lane_count; ++l) {
        const double importance = (targets_[k][l] == 0.0F ? 0.0 : magnitude) / sums[l];
        shares[l] = importance * static_cast<double>(std::abs(weights_[k][l]));
      }
      shares_[k] = shares;
    }
  }

  void set_exact_outputs() {
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      values_.set(k, weights_[k]);
    }
    values_.multiply(inputs_.samples, first_, exact_outputs_.data(), lane_count);
  }

  /// The values that targets and scales stand for.
  [[nodiscard]] static lanes<float> values_of(const lanes<float>& targets,
                                              const lanes<float>& scales) noexcept {
    lanes<float> v;
    for (std::size_t l = 0; l < lane_count; ++l) {
      v[l] = targets[l] * scales[l];
    }
    return v;
  }

  /// The error of each group if its weights are what targets and scales stand for.
  [[nodiscard]] lanes<double> errors(const std::vector<lanes<float>>& targets,
                                     const lanes<float>& scales) {
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      values_.set(k, values_of(targets[k], scales));
    }
    values_.multiply(inputs_.samples, first_, outputs_.data(), lane_count);
    lanes<double> total{};
    for (std::size_t i = 0; i < outputs_.size(); i += lane_count) {
      for (std::size_t l = 0; l < lane_count; ++l) {
        const double difference = exact_outputs_[i + l] - outputs_[i + l];
        total[l] += detent::detail::rounded_product(difference, difference);
      }
    }
    for (double& error : total) {
      error /= static_cast<double>(inputs_.samples.count);
    }
    if (params_.weight_penalty > 0.0) {
      add_penalties(targets, scales, total);
    }
    return total;
  }

  void add_penalties(const std::vector<lanes<float>>& targets, const lanes<float>& scales,
                     lanes<double>& total) const {
    lanes<double> squares{};
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const lanes<float> v = values_of(targets[k], scales);
      for (std::size_t l = 0; l < lane_count; ++l) {
        const double difference = static_cast<double>(v[l]) - static_cast<double>(weights_[k][l]);
        squares[l] += detent::detail::rounded_product(difference, difference);
      }
    }
    for (std::size_t l = 0; l < lane_count; ++l) {
      total[l] += params_.weight_penalty * squares[l] / static_cast<double>(weights_.size());
    }
  }

  /// The scales that the targets suggest.
  [[nodiscard]] lanes<float> suggested_scales() const {
    lanes<double> sums{};
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      for (std::size_t l = 0; l < lane_count; ++l) {
        const auto size = static_cast<double>(std::abs(targets_[k][l]));
        sums[l] += shares_[k][l] / (size == 0.0 ? smallest_target : size);
      }
    }
    lanes<float> scales;
    for (std::size_t l = 0; l < lane_count; ++l) {
      scales[l] = static_cast<float>(std::copysign(sums[l], range_scales_[l]));
    }
    return scales;
  }

  /// Takes the scales that the targets suggest where they are no worse, and their targets. Returns
  /// whether there are other scales than before.
  bool try_scales() {
    lanes<float> tried = suggested_scales();
    lanes<bool> is_scale{};  // not where no input matters, or sums overflowed
    for (std::size_t l = 0; l < lane_count; ++l) {
      is_scale[l] = tried[l] != 0.0F && !std::isnan(tried[l]);
      tried[l] = is_scale[l] ? tried[l] : 1.0F;
    }
    set_targets(tried, tried_targets_);
    const lanes<double> e = errors(tried_targets_, tried);
    bool has_changed = false;
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (is_scale[l] && e[l] <= least_errors_[l]) {
        has_changed = has_changed || tried[l] != best_[l];
        least_errors_[l] = e[l];
        best_[l] = tried[l];
      }
    }
    return has_changed;
  }

  static constexpr double smallest_target = 0.001;

  const scale_estimation_params& params_;
  const estimation_inputs& inputs_;
  lane_rounding rounding_;
  std::size_t first_ = 0;
  lanes<float> range_scales_{};
  std::vector<lanes<float>> weights_;
  std::vector<lanes<float>> targets_;
  std::vector<lanes<float>> tried_targets_;
  std::vector<lanes<double>> shares_;
  tile_values values_;
  std::vector<double> exact_outputs_;  // [samples, lanes]
  std::vector<double> outputs_;
  lanes<float> best_{};
  lanes<double> least_errors_{};
};

/// Gives `q`, the weights of a layer by their ranges, the scales that scale_estimator finds, and
/// the codes that belong to them. `groups` divides the axis of the layer's inputs. Tiles are shared
/// out over `parallel`; the result does not depend on it.
inline void estimate_scales(std::span<const float> weights, const weight_groups& groups,
                            integer_mode mode, const scale_estimation_params& params,
                            const layer_input_samples& inputs, integer_weights& q,
                            const parallel_for& parallel = {}) {
  constexpr std::size_t tiles_per_task = 4;
  const estimation_inputs known{inputs.magnitudes(), rows_of(inputs.means(params.subset_size))};
  const weight_rows w{weights, groups};
  const std::size_t blocks = groups.middle / groups.block;
  const std::size_t count = blocks * w.tiles();
  detent::detail::run_parallel(
      parallel, (count + tiles_per_task - 1) / tiles_per_task, [&](std::size_t task) {
        scale_estimator estimator(mode, params, known, groups.block);
        const std::size_t last = (std::min)(count, (task + 1) * tiles_per_task);
        for (std::size_t i = task * tiles_per_task; i < last; ++i) {
          estimator.run(w, i / blocks, i % blocks * groups.block, q);
        }
      });
  fill_codes(weights, groups, mode, q);
}

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_SCALE_ESTIMATION_HPP
