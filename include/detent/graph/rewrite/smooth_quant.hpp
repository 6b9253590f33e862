// SPDX-License-Identifier: BSD-3-Clause
// SmoothQuant on models: the inputs of linear layers are divided by a factor for each feature, and
// the weights are multiplied by it. The formula is that of solvers/smooth_quant.hpp:
//
//   s_j = a_j^alpha / w_j^(1 - alpha), clipped
#ifndef DETENT_GRAPH_REWRITE_SMOOTH_QUANT_HPP
#define DETENT_GRAPH_REWRITE_SMOOTH_QUANT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/solvers/smooth_quant.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How layers that take the same value agree on one vector of scales.
enum class shared_smoothing : std::uint8_t {
  stacked,  ///< w_j is the largest |w| of feature j over all of the layers.
  /// Each layer proposes a vector of its own; the one with the largest min / max is taken (NNCF).
  best_ratio,
};

/// Options of smooth_quant() for models.
struct graph_smoothing_options {
  smooth_quant_options scales = {};  ///< Formula and limits of the scales of Gemm and MatMul.
  /// The alpha of Conv and ConvTranspose. Without it they are left alone.
  std::optional<float> convolution_alpha = std::nullopt;
  /// How layers that take the same value agree on one vector of scales.
  shared_smoothing sharing = shared_smoothing::stacked;
  /// Whether a Mul is inserted where no node before the layers can take the inverse scales. If not,
  /// such a value is left alone.
  bool insert_mul = true;

  /// NNCF's settings: alpha 0.95, scales in [their quantile 0.1, 100],
  /// shared_smoothing::best_ratio.
  [[nodiscard]] static graph_smoothing_options nncf() {
    graph_smoothing_options o;
    o.scales.alpha = 0.95F;
    o.scales.smallest_quantile = 0.1F;
    o.scales.largest = 100.0F;
    o.sharing = shared_smoothing::best_ratio;
    return o;
  }
  /// The settings of Intel Neural Compressor: alpha 0.5, and no limits other than the defaults.
  [[nodiscard]] static graph_smoothing_options inc() { return {}; }
};

/// Report of what smooth_quant() did to one value.
struct smoothed_value {
  std::string value;                ///< Name of the value.
  std::vector<std::string> layers;  ///< Labels of the layers that take it.
  std::vector<float> scales;  ///< Scale of each feature, by which the weights were multiplied.
  /// Label of the node that took the inverse scales; empty if a Mul was inserted.
  std::string into;
};

namespace detail {

/// Layers of one kind that take one value along one axis.
struct smoothing_group {
  std::string value;
  channel_axis layout;
  std::vector<linear_layer> layers;
};

/// All groups of layers that the options admit, in the order of their first layers.
[[nodiscard]] inline std::vector<smoothing_group> smoothing_groups(
    const model& m, const value_shapes& shapes, const graph_smoothing_options& options) {
  std::vector<smoothing_group> groups;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    auto layer = linear_layer_of(m, i);
    if (!layer || (layer->is_spatial && !options.convolution_alpha)) {
      continue;
    }
    const std::string& value = m.nodes[i].inputs[0];
    const auto layout = input_channels(m, shapes, *layer);
    if (!layout || m.initializer(value) != nullptr) {
      continue;
    }
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const smoothing_group& group) {
          return group.value == value && group.layout == *layout &&
                 group.layers[0].is_spatial == layer->is_spatial;
        });
    if (found != groups.end()) {
      found->layers.push_back(std::move(*layer));
    } else {
      groups.push_back({value, *layout, {}});
      groups.back().layers.push_back(std::move(*layer));
    }
  }
  return groups;
}

/// The scale of each feature of a group.
[[nodiscard]] inline std::vector<float> smoothing_scales(const smoothing_group& group,
                                                         std::span<const float> activations,
                                                         const graph_smoothing_options& options) {
  smooth_quant_options of_group = options.scales;
  if (group.layers[0].is_spatial) {
    of_group.alpha = *options.convolution_alpha;
  }
  const auto scales_of = [&](const std::vector<float>& magnitudes) {
    return smooth_quant_scales(
        activations, matrix_view<const float>(magnitudes.data(), 1, magnitudes.size()), of_group);
  };
  std::vector<float> best;
  float best_ratio = -1.0F;
  std::vector<float> stacked(group.layout.length, 0.0F);
  for (const linear_layer& layer : group.layers) {
    const std::vector<float> magnitudes = input_magnitudes(layer);
    for (std::size_t j = 0; j < stacked.size(); ++j) {
      stacked[j] = (std::max)(stacked[j], magnitudes[j]);
    }
    if (options.sharing == shared_smoothing::best_ratio) {
      std::vector<float> scales = scales_of(magnitudes);
      const auto [least, largest] = std::minmax_element(scales.begin(), scales.end());
      if (*least / *largest > best_ratio) {
        best_ratio = *least / *largest;
        best = std::move(scales);
      }
    }
  }
  return options.sharing == shared_smoothing::best_ratio ? best : scales_of(stacked);
}

/// Whether the node can multiply its result by one factor for each channel at no cost, by changing
/// its constants.
[[nodiscard]] inline bool takes_factors(const model& m, const value_shapes& shapes, const node& n,
                                        std::size_t i, channel_axis at) {
  if (const auto layer = linear_layer_of(m, i)) {
    return layer->known_bias && output_channels(m, shapes, *layer) == at;
  }
  const auto dims = shapes.dims(n.outputs[0]);
  if (!dims || dims->size() != at.rank ||
      (*dims)[at.axis] != static_cast<std::int64_t>(at.length)) {
    return false;
  }
  if (n.is("LayerNormalization")) {
    const bool has_bias = n.inputs.size() > 2 && !n.inputs[2].empty();
    for (const std::size_t k : {std::size_t{1}, std::size_t{2}}) {
      const tensor* t = float_constant(m, n, k);
      if ((k == 1 || has_bias) && (t == nullptr || t->count() == 0 || t->rank() > at.rank)) {
        return false;
      }
    }
    return true;
  }
  return (n.is("Mul") || n.is("Div")) && constant_operand(m, n, at).has_value();
}

/// Changes the constants of node i so that its result is multiplied by the factors.
inline void give_factors(model& m, std::size_t i, channel_axis at,
                         std::span<const double> factors) {
  if (const auto layer = linear_layer_of(m, i)) {
    scale_outputs(m, *layer, factors);
    return;
  }
  node& n = m.nodes[i];
  const auto scale = [&](std::size_t input, std::span<const double> by) {
    replace_constant(
        m, n, input,
        scaled_constant(m.initializers.at(n.inputs[input]), at.rank, at.axis, by, n.label()));
  };
  if (n.is("LayerNormalization")) {
    scale(1, factors);
    if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
      scale(2, factors);
    }
    return;
  }
  const std::size_t constant = *constant_operand(m, n, at);
  std::vector<double> own(factors.begin(), factors.end());
  if (n.is("Div")) {
    std::transform(own.begin(), own.end(), own.begin(), [](double f) { return 1.0 / f; });
  }
  scale(constant, own);
}

}  // namespace detail

/// Lists the values that smooth_quant() needs magnitudes for, each with the axis of its features.
/// Pass the result to observe_channels().
[[nodiscard]] inline std::map<std::string, std::size_t> smoothing_values(
    const model& m, const graph_smoothing_options& options = {}) {
  const value_shapes shapes(m);
  std::map<std::string, std::size_t> axes;
  for (const detail::smoothing_group& group : detail::smoothing_groups(m, shapes, options)) {
    axes.try_emplace(group.value, group.layout.axis);
  }
  return axes;
}

/// Applies SmoothQuant to a float model, which simplify() should have prepared: divides the inputs
/// of layers with constant weights by one scale for each feature, and multiplies the weights by it.
/// For a feature j with a_j = its largest |x| and w_j = its largest |w|,
///
///     s_j = a_j^alpha / w_j^(1 - alpha), clipped as the options say
///
/// The model computes the same function up to rounding; with `scales.power_of_two` it computes
/// exactly the same bits, unless a value leaves the range of normal floats. Layers that take the
/// same value share one vector of scales. The inverse scales are multiplied into the constants of
/// the LayerNormalization, Conv, ConvTranspose, Gemm, MatMul, Mul or Div that makes the value, if
/// the value serves these layers only, directly or through operators that factors pass (see
/// trace_channels()). Else a Mul is inserted between the value and the layers.
///
/// `activations` has the largest |x| of each feature of the values that smoothing_values() names.
/// Values that are missing from it are left alone, and so are values whose scales are all 1.
/// Returns one entry for each value that was smoothed. Results are bit-identical on all platforms.
///
/// Throws what smooth_quant_scales() throws, naming the tensor; shape_mismatch if the number of
/// magnitudes is not that of the features; overflow if a constant would not be finite as a float.
/// If it throws, the model is unchanged.
///
/// Source: Xiao et al., SmoothQuant (2023).
DETENT_GRAPH_DECL std::vector<smoothed_value> smooth_quant(
    model& m, const channel_magnitude_map& activations,
    const graph_smoothing_options& options = {});

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL std::vector<smoothed_value> smooth_quant(model& m,
                                                           const channel_magnitude_map& activations,
                                                           const graph_smoothing_options& options) {
  const value_shapes shapes(m);
  const links l(m);
  model next = m;
  std::vector<smoothed_value> result;
  std::map<std::size_t, std::vector<node>> inserted;  // each before the node with that index
  for (const detail::smoothing_group& group : detail::smoothing_groups(m, shapes, options)) {
    const auto found = activations.find(group.value);
    if (found == activations.end()) {
      continue;
    }
    require(found->second.size() == group.layout.length, error_kind::shape_mismatch, "tensor '",
            group.value, "': ", found->second.size(), " magnitudes for ", group.layout.length,
            " channels");
    // Read from `next`: earlier groups may have changed the outputs of these layers.
    detail::smoothing_group now{group.value, group.layout, {}};
    smoothed_value evidence;
    evidence.value = group.value;
    for (const linear_layer& layer : group.layers) {
      now.layers.push_back(*linear_layer_of(next, layer.node_index));
      evidence.layers.push_back(layer.label);
    }
    evidence.scales = detail::of_tensor(
        group.value, [&] { return detail::smoothing_scales(now, found->second, options); });
    if (std::all_of(evidence.scales.begin(), evidence.scales.end(),
                    [](float s) { return s == 1.0F; })) {
      continue;
    }
    std::vector<double> factors;
    std::vector<double> inverse;
    for (const float s : evidence.scales) {
      factors.push_back(static_cast<double>(s));
      inverse.push_back(1.0 / static_cast<double>(s));
    }
    const channel_path path =
        trace_channels(m, l, shapes, group.value, group.layout, group.layers.size(),
                       [](const node& n) { return n.is("Mul") || n.is("Div"); });
    const bool folds =
        path.source != links::none && path.layout.length == group.layout.length &&
        detail::takes_factors(next, shapes, next.nodes[path.source], path.source, path.layout);
    if (!folds && !options.insert_mul) {
      continue;
    }
    for (const linear_layer& layer : now.layers) {
      scale_inputs(next, layer, factors);
    }
    if (folds) {
      evidence.into = next.nodes[path.source].label();
      scale_path(next, path, inverse);
      detail::give_factors(next, path.source, path.layout, inverse);
    } else {
      shape dims(group.layout.rank - group.layout.axis, 1);
      dims[0] = static_cast<std::int64_t>(inverse.size());
      node mul;
      mul.op_type = "Mul";
      // The name of the Mul is also that of its constant, which keeps the names of two groups with
      // the same value apart.
      unused_names names(next);
      mul.name = names.take(group.value + "_smooth");
      mul.inputs = {group.value, mul.name};
      mul.outputs = {names.take(mul.name + "_out")};
      const tensor one =
          tensor::of<float>(element_type::f32, shape(dims.size(), 1), std::vector<float>{1.0F});
      next.initializers[mul.inputs[1]] =
          detail::scaled_constant(one, dims.size(), 0, inverse, mul.name);
      for (const linear_layer& layer : now.layers) {
        next.nodes[layer.node_index].inputs[0] = mul.outputs[0];
      }
      inserted[now.layers[0].node_index].push_back(std::move(mul));
    }
    result.push_back(std::move(evidence));
  }
  std::vector<node> nodes;
  for (std::size_t i = 0; i < next.nodes.size(); ++i) {
    for (node& n : inserted[i]) {
      nodes.push_back(std::move(n));
    }
    nodes.push_back(std::move(next.nodes[i]));
  }
  next.nodes = std::move(nodes);
  m = std::move(next);
  return result;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_SMOOTH_QUANT_HPP
