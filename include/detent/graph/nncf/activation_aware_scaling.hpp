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

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/layer_input_samples.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/weight_groups.hpp>

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

/// The weights of a layer with K inputs and N outputs, as a matrix.
struct weight_rows {
  std::span<const float> weights;
  const weight_groups& groups;  // divides the axis of the inputs

  [[nodiscard]] std::size_t inputs() const noexcept { return groups.middle; }
  [[nodiscard]] std::size_t outputs() const noexcept { return groups.outer * groups.inner; }
  [[nodiscard]] float at(std::size_t output, std::size_t input) const noexcept {
    return weights[(output / groups.inner * groups.middle + input) * groups.inner +
                   output % groups.inner];
  }
};

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

  [[nodiscard]] std::vector<float> run() const {
    std::vector<float> scales(w_.inputs(), 1.0F);
    for (const std::size_t group : groups_to_correct()) {
      const std::vector<float> best = scales_of(group * w_.groups.block);
      std::copy(best.begin(), best.end(),
                scales.begin() + static_cast<std::ptrdiff_t>(group * w_.groups.block));
    }
    return scales;
  }

 private:
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
    const auto begin = magnitudes_.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<float> m(begin, begin + static_cast<std::ptrdiff_t>(w_.groups.block));
    std::vector<float> sorted = m;
    std::sort(sorted.begin(), sorted.end());
    const double at = 0.1 * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = (std::min)(below + 1, sorted.size() - 1);
    const auto least = static_cast<float>(sorted[below] + (at - static_cast<double>(below)) *
                                                              (sorted[above] - sorted[below]));
    for (float& v : m) {
      v = (std::min)((std::max)(v, least), largest_magnitude);
    }
    return m;
  }

  /// The best scales of the group that begins at input `first`; 1 if none is good.
  [[nodiscard]] std::vector<float> scales_of(std::size_t first) const {
    const std::size_t size = w_.groups.block;
    const std::vector<float> magnitudes = limited_magnitudes(first);
    std::vector<float> weights(w_.outputs() * size);
    for (std::size_t n = 0; n < w_.outputs(); ++n) {
      for (std::size_t k = 0; k < size; ++k) {
        weights[n * size + k] = w_.at(n, first + k);
      }
    }
    std::vector<float> best(size, 1.0F);
    std::vector<float> scales(size, 1.0F);
    const std::vector<double> exact = products(weights, scales, first);
    double least = 0.0;
    for (const double y : exact) {
      least = (std::max)(least, std::abs(y));
    }
    double alpha = params_.alpha_min;
    for (std::size_t step = 0; step < params_.steps; ++step) {
      std::transform(magnitudes.begin(), magnitudes.end(), scales.begin(),
                     [&](float m) { return std::pow(m, static_cast<float>(alpha)); });
      for (std::size_t k = 0; k < size && !least_scales_.empty(); ++k) {
        scales[k] = (std::max)(scales[k], least_scales_[first + k]);
      }
      const double e = error(weights, scales, exact, first);
      if (e < least) {
        least = e;
        best = scales;
      }
      alpha += (params_.alpha_max - params_.alpha_min) / static_cast<double>(params_.steps);
    }
    return best;
  }

  /// The mean error of the outputs of a group with these scales; infinite if a product with them
  /// overflows.
  [[nodiscard]] double error(std::vector<float> weights, std::span<const float> scales,
                             std::span<const double> exact, std::size_t first) const {
    const weight_groups rows{w_.outputs(), scales.size(), 1, false, scales.size()};
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] *= scales[i % scales.size()];
      if (!std::isfinite(weights[i])) {
        return std::numeric_limits<double>::infinity();
      }
    }
    const integer_weights q = quantize_by_range(weights, rows, mode_);
    rows.for_each([&](std::size_t i, std::size_t g) { weights[i] = q.value(i, g); });
    const std::vector<double> outputs = products(weights, scales, first);
    double sum = 0.0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      sum += std::abs(outputs[i] - exact[i]);
    }
    return sum / static_cast<double>(outputs.size());
  }

  /// The outputs of a group for all samples: weights * (inputs / scales).
  [[nodiscard]] std::vector<double> products(std::span<const float> weights,
                                             std::span<const float> scales,
                                             std::size_t first) const {
    std::vector<double> outputs;
    outputs.reserve(samples_.size() * w_.outputs());
    std::vector<float> x(scales.size());
    for (const std::vector<float>& sample : samples_) {
      for (std::size_t k = 0; k < x.size(); ++k) {
        x[k] = sample[first + k] / scales[k];
      }
      for (std::size_t n = 0; n < w_.outputs(); ++n) {
        double sum = 0.0;
        for (std::size_t k = 0; k < x.size(); ++k) {
          sum += static_cast<double>(weights[n * x.size() + k]) * x[k];
        }
        outputs.push_back(sum);
      }
    }
    return outputs;
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
