// SPDX-License-Identifier: BSD-3-Clause
// NNCF's modified AWQ: the inputs of a layer that follow an activation function are divided by
// scales, one for each input, and its weights multiplied by them, so that the weights lose less. A
// layer behind a Mul of what another layer makes, as in a feed-forward part with a gate, divides
// the weights of that other layer.
//
// Without samples, the scale of an input is 1 / max(mean |w|, 2^-23) over its weights.
//
// With samples, only the groups that hold the inputs of the largest magnitudes get scales. For a
// group with weights w, inputs X (the mean of each sample) and magnitudes m (the largest |X|),
// which are limited to between their 10 % quantile and 100:
//
//   scale = m^alpha,  alpha = alpha_min + k (alpha_max - alpha_min) / steps,  k = 0 .. steps - 1
//
// where alpha makes the mean of |v X / scale - w X| over outputs and samples least. v: w * scale as
// its range rounds it. The scale is 1 where none of them is better than the largest |w X|. Where
// the weights of another layer are divided, scales do not let its results exceed a quarter of what
// float16 holds.
//
// Sums are computed in double here and in float32 by NNCF: scales agree to about six digits, unless
// two alphas are so close that rounding decides.
//
// Several outputs are handled side by side, and several alphas at the same time. No sum depends on
// that: results have the same bits for any number of threads.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/{awq,awq_patterns}.py.
#ifndef DETENT_GRAPH_NNCF_ACTIVATION_AWARE_SCALING_HPP
#define DETENT_GRAPH_NNCF_ACTIVATION_AWARE_SCALING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/layer_input_samples.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/weight_groups.hpp>
#include <detent/graph/nncf/weight_lanes.hpp>
#include <detent/graph/nncf/weight_rows.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// Where the inputs of a layer can be scaled: a value, and the node that takes it, which is the
/// layer or a Mul before it.
struct scaling_place {
  std::string value;
  std::size_t user = 0;
};

/// The place before a layer whose input is `input`: behind a MatMul or Gemm, as the layer is, and
/// before a Mul; else behind an activation function, perhaps before a Mul. Nothing else takes the
/// values in between. Nothing if there is no such place.
[[nodiscard]] inline std::optional<scaling_place> scaling_place_before(const model& m,
                                                                       const links& l,
                                                                       std::size_t layer,
                                                                       const std::string& input) {
  const auto maker_of = [&](const std::string& value) -> const node* {
    const std::size_t i = l.producer(value);
    const bool is_alone = l.consumers(value).size() == 1 && !l.is_output(value);
    return i == links::none || !is_alone ? nullptr : &m.nodes[i];
  };
  const auto is_activation = [&](const std::string& value) {
    const node* n = maker_of(value);
    return n != nullptr && is_among(operator_kind(m, l, *n),
                                    {"Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "PRelu",
                                     "Sigmoid", "HardSigmoid", "HardSwish", "Selu"});
  };
  const auto is_product = [&](const std::string& value) {
    const node* n = maker_of(value);
    return n != nullptr && n->is(m.nodes[layer].op_type);
  };
  if (is_activation(input)) {
    return scaling_place{input, layer};
  }
  const node* const maker = maker_of(input);
  if (maker == nullptr || !maker->is("Mul")) {
    return std::nullopt;
  }
  auto found = std::find_if(maker->inputs.begin(), maker->inputs.end(), is_product);
  if (found == maker->inputs.end()) {
    found = std::find_if(maker->inputs.begin(), maker->inputs.end(), is_activation);
  }
  return found == maker->inputs.end()
             ? std::nullopt
             : std::optional<scaling_place>(scaling_place{*found, l.producer(input)});
}

/// The scales of the inputs by the weights alone.
[[nodiscard]] inline std::vector<float> scales_of_weights(const weight_rows& w) {
  std::vector<float> scales(w.inputs());
  for (std::size_t k = 0; k < scales.size(); ++k) {
    double sum = 0.0;
    for (std::size_t n = 0; n < w.outputs(); ++n) {
      sum += std::abs(w.at(n, k));
    }
    const auto mean = static_cast<float>(sum / static_cast<double>(w.outputs()));
    scales[k] = 1.0F / (std::max)(mean, std::numeric_limits<float>::epsilon());
  }
  return scales;
}

/// The least scales of the inputs of a layer that let no result of the layer before, whose weights
/// they divide, exceed a quarter of the largest float16, as NNCF estimates the results: the mean
/// |w| of the output times the largest magnitude of the inputs times `size`.
[[nodiscard]] inline std::vector<float> least_scales(const weight_rows& before,
                                                     const layer_input_samples& inputs,
                                                     std::size_t size) {
  constexpr double limit = 0.25 * 65504.0;
  const std::vector<float> magnitudes = inputs.magnitudes();
  const double largest = *std::max_element(magnitudes.begin(), magnitudes.end());
  std::vector<float> least(before.outputs());
  for (std::size_t n = 0; n < least.size(); ++n) {
    double sum = 0.0;
    for (std::size_t k = 0; k < before.inputs(); ++k) {
      sum += std::abs(before.at(n, k));
    }
    least[n] = static_cast<float>(sum / static_cast<double>(before.inputs()) * largest *
                                  static_cast<double>(size) / limit);
  }
  return least;
}

/// Finds the scales of the inputs of one layer by samples.
class activation_aware_scaler {
 public:
  /// `least` bounds the scales from below; empty for no bounds.
  activation_aware_scaler(const weight_rows& w, integer_mode mode, const awq_params& params,
                          const layer_input_samples& inputs, std::span<const float> least)
      : w_(w),
        mode_(mode),
        params_(params),
        least_scales_(least),
        magnitudes_(inputs.magnitudes()),
        samples_(inputs.means(params.subset_size)) {}

  /// The exponents are shared out over `parallel`; the result does not depend on it.
  [[nodiscard]] std::vector<float> run(const parallel_for& parallel = {}) const {
    std::vector<float> scales(w_.inputs(), 1.0F);
    for (const std::size_t group : groups_to_correct()) {
      const std::vector<float> best = scales_of(group * w_.groups.block, parallel);
      std::copy(best.begin(), best.end(),
                scales.begin() + static_cast<std::ptrdiff_t>(group * w_.groups.block));
    }
    return scales;
  }

 private:
  /// What belongs to the group that begins at input `first`.
  struct group_problem {
    std::size_t first = 0;
    std::vector<float> magnitudes;
    std::vector<lanes<float>> weights;  // [tiles, inputs]
    std::vector<double> exact_outputs;  // [samples, tiles, lanes]
  };

  /// The groups of the inputs with the largest magnitudes.
  [[nodiscard]] std::set<std::size_t> groups_to_correct() const {
    std::vector<std::size_t> order(magnitudes_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return magnitudes_[a] > magnitudes_[b]; });
    const auto part =
        static_cast<std::size_t>(static_cast<double>(order.size()) * params_.percent_to_apply);
    order.resize((std::max)((std::min)(part, order.size()), std::size_t{1}));
    std::set<std::size_t> groups;
    for (const std::size_t k : order) {
      groups.insert(k / w_.groups.block);
    }
    return groups;
  }

  /// The magnitudes of a group, limited to between their 10 % quantile and 100.
  [[nodiscard]] std::vector<float> limited_magnitudes(std::size_t first) const {
    using detent::detail::rounded_product;
    const auto begin = magnitudes_.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<float> m(begin, begin + static_cast<std::ptrdiff_t>(w_.groups.block));
    std::vector<float> sorted = m;
    std::sort(sorted.begin(), sorted.end());
    const double at = rounded_product(0.1, static_cast<double>(sorted.size() - 1));
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = (std::min)(below + 1, sorted.size() - 1);
    const auto difference = static_cast<double>(sorted[above] - sorted[below]);
    const auto least =
        static_cast<float>(static_cast<double>(sorted[below]) +
                           rounded_product(at - static_cast<double>(below), difference));
    for (float& v : m) {
      v = (std::min)((std::max)(v, least), largest_magnitude);
    }
    return m;
  }

  /// The number of outputs with those that no lane has.
  [[nodiscard]] std::size_t output_stride() const noexcept { return w_.tiles() * lane_count; }

  [[nodiscard]] group_problem problem_of(std::size_t first) const {
    const std::size_t size = w_.groups.block;
    group_problem p{first, limited_magnitudes(first), {}, {}};
    p.weights.resize(w_.tiles() * size);
    p.exact_outputs.resize(samples_.size() * output_stride());
    const sample_rows inputs = divided_rows(samples_, first, std::vector<float>(size, 1.0F));
    tile_values values(size);
    for (std::size_t tile = 0; tile < w_.tiles(); ++tile) {
      const std::span<lanes<float>> weights = std::span(p.weights).subspan(tile * size, size);
      w_.copy_tile(tile, first, weights);
      for (std::size_t k = 0; k < size; ++k) {
        values.set(k, weights[k]);
      }
      values.multiply(inputs, 0, p.exact_outputs.data() + tile * lane_count, output_stride());
    }
    return p;
  }

  /// The best scales of the group that begins at input `first`; 1 if none is good.
  [[nodiscard]] std::vector<float> scales_of(std::size_t first,
                                             const parallel_for& parallel) const {
    const group_problem p = problem_of(first);
    std::vector<double> alphas(params_.steps, params_.alpha_min);
    for (std::size_t step = 1; step < alphas.size(); ++step) {
      alphas[step] = alphas[step - 1] +
                     (params_.alpha_max - params_.alpha_min) / static_cast<double>(params_.steps);
    }
    std::vector<double> errors(alphas.size());
    detent::detail::run_parallel(parallel, alphas.size(), [&](std::size_t step) {
      errors[step] = error(p, scales_of_exponent(p, alphas[step]));
    });
    double least = 0.0;
    for (const double y : p.exact_outputs) {
      least = (std::max)(least, std::abs(y));
    }
    std::optional<double> best;
    for (std::size_t step = 0; step < alphas.size(); ++step) {
      if (errors[step] < least) {
        least = errors[step];
        best = alphas[step];
      }
    }
    return best ? scales_of_exponent(p, *best) : std::vector<float>(p.magnitudes.size(), 1.0F);
  }

  [[nodiscard]] std::vector<float> scales_of_exponent(const group_problem& p, double alpha) const {
    std::vector<float> scales(p.magnitudes.size());
    std::transform(p.magnitudes.begin(), p.magnitudes.end(), scales.begin(),
                   [exponent = static_cast<double>(static_cast<float>(alpha))](float m) {
                     return static_cast<float>(
                         detent::detail::portable_power(static_cast<double>(m), exponent));
                   });
    for (std::size_t k = 0; k < scales.size() && !least_scales_.empty(); ++k) {
      scales[k] = (std::max)(scales[k], least_scales_[p.first + k]);
    }
    return scales;
  }

  /// The mean error of the outputs of a group with these scales; infinite if a product with them
  /// overflows.
  [[nodiscard]] double error(const group_problem& p, std::span<const float> scales) const {
    const std::size_t size = scales.size();
    const sample_rows inputs = divided_rows(samples_, p.first, scales);
    std::vector<lanes<float>> scaled(size);
    tile_values values(size);
    std::vector<double> outputs(p.exact_outputs.size());
    for (std::size_t tile = 0; tile < w_.tiles(); ++tile) {
      if (!scale_tile(std::span(p.weights).subspan(tile * size, size), scales, scaled)) {
        return std::numeric_limits<double>::infinity();
      }
      round_tile(scaled, values);
      values.multiply(inputs, 0, outputs.data() + tile * lane_count, output_stride());
    }
    // In the order of the outputs of one sample after the other.
    double sum = 0.0;
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      for (std::size_t i = s * output_stride(); i < s * output_stride() + w_.outputs(); ++i) {
        sum += std::abs(outputs[i] - p.exact_outputs[i]);
      }
    }
    return sum / static_cast<double>(samples_.size() * w_.outputs());
  }

  /// Multiplies the weights of a tile by the scales of their inputs. Returns whether all products
  /// are finite.
  [[nodiscard]] static bool scale_tile(std::span<const lanes<float>> weights,
                                       std::span<const float> scales,
                                       std::vector<lanes<float>>& scaled) {
    lanes<float> probes{};  // NaN where a product is not finite
    for (std::size_t k = 0; k < weights.size(); ++k) {
      lanes<float> products;
      for (std::size_t l = 0; l < lane_count; ++l) {
        products[l] = weights[k][l] * scales[k];
        probes[l] += products[l] - products[l];
      }
      scaled[k] = products;
    }
    return std::none_of(probes.begin(), probes.end(), [](float p) { return std::isnan(p); });
  }

  /// Sets the values that stand for the weights of a tile with the scales of their ranges.
  void round_tile(std::span<const lanes<float>> weights, tile_values& values) const {
    lanes<float> lower;
    lanes<float> upper;
    lower.fill(mode_.first_lower());
    upper.fill(-mode_.first_lower());
    for (const lanes<float>& w : weights) {
      for (std::size_t l = 0; l < lane_count; ++l) {
        lower[l] = (std::min)(lower[l], w[l]);
        upper[l] = (std::max)(upper[l], w[l]);
      }
    }
    lane_rounding rounding = mode_.rounding();
    for (std::size_t l = 0; l < lane_count; ++l) {
      const group_params params = params_of_range(lower[l], upper[l], mode_);
      rounding.scales[l] = params.scale;
      rounding.zero_points[l] = static_cast<float>(params.zero_point);
    }
    for (std::size_t k = 0; k < weights.size(); ++k) {
      lanes<float> v = rounding.targets(weights[k]);
      for (std::size_t l = 0; l < lane_count; ++l) {
        v[l] *= rounding.scales[l];
      }
      values.set(k, v);
    }
  }

  static constexpr float largest_magnitude = 100.0F;

  weight_rows w_;
  integer_mode mode_;
  const awq_params& params_;
  std::span<const float> least_scales_;
  std::vector<float> magnitudes_;
  std::vector<std::vector<float>> samples_;
};

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_ACTIVATION_AWARE_SCALING_HPP
