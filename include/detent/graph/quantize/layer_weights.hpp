// SPDX-License-Identifier: BSD-3-Clause
// Integer weights and biases of layers.
//
//   weights   int8, symmetric, one scale for each output channel or one for the tensor; the groups
//             of a ConvTranspose share the scales of their channels
//   bias      int32, scale = input scale * weight scale, zero point 0
//
// A weight scale is raised where the bias would not fit 2^30 steps, and chosen from the bias where
// all weights of a channel are zero.
#ifndef DETENT_GRAPH_QUANTIZE_LAYER_WEIGHTS_HPP
#define DETENT_GRAPH_QUANTIZE_LAYER_WEIGHTS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/bias_code.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/scale_rules.hpp>
#include <detent/solvers/exact_mse.hpp>
#include <detent/solvers/parts.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How the weights of layers are quantized: the options that quantize_layer_weights() and all forms
/// of quantization with integer products have in common.
struct layer_weight_options {
  /// Whether there is one scale for each output channel, or else one for the tensor.
  bool per_channel = true;
  weight_scale scale = weight_scale::absmax;  ///< How the scales are chosen.
  /// Bits of the weights, 2..8: levels -(2^(bits - 1) - 1) .. 2^(bits - 1) - 1.
  std::size_t bits = 8;
  /// Whether the levels are -64..64 instead of -127..127, so that no pair of products exceeds 16
  /// bits. It has an effect with 8 bits only.
  bool reduce_range = false;
  /// Whether the tensor has a zero point and levels -128..127. It has an effect only without
  /// `per_channel` and `reduce_range`, and with 8 bits.
  bool asymmetric = false;
};

/// The weights of a layer on their grid: weight = scale * (code - zero_point).
struct layer_weights {
  tensor codes;          ///< The codes, int8, in the shape of the weights.
  std::size_t axis = 0;  ///< Axis of the output channels.
  /// One scale for each channel along `axis`, or one for all. Output channel c of the layer has
  /// scale c % scales.size(): a ConvTranspose has a channel of each group for one along `axis`.
  std::vector<float> scales;
  std::int32_t zero_point = 0;                  ///< Zero point of all channels.
  grid levels = symmetric<std::int8_t>.levels;  ///< Range of the codes.
};

namespace detail {

/// Raises weight scales until the bias of each channel fits 2^30 steps of x_scale * weight scale.
/// Where all weights of a channel are zero, the scale is such that the bias has 2^20 steps. Throws
/// invalid_argument if a bias is not finite.
inline void fit_bias(std::vector<float>& scales, const std::vector<bool>& is_zero, bool per_channel,
                     float x_scale, const tensor* bias, const node& n) {
  constexpr float fine = 1048576.0F;       // 2^20 steps: for channels whose weights are all 0
  constexpr float coarse = 1073741824.0F;  // 2^30 steps: leaves half of the int32 range to the sums
  std::vector<float> biases(scales.size(), 0.0F);  // the largest magnitude for each scale
  for (std::size_t c = 0; bias != nullptr && c < bias->count(); ++c) {
    const float b = std::fabs(bias->data<float>()[c]);
    require(std::isfinite(b), error_kind::invalid_argument, n.label(), ": its bias holds ", b);
    float& most = biases[c % biases.size()];
    most = (std::max)(most, b);
  }
  float largest = 0.0F;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const bool zero = is_zero[i] && per_channel;
    const float b = biases[i];
    if (b > 0.0F) {
      const float least = b / (zero ? fine : coarse) / x_scale;
      scales[i] = zero ? (std::max)(least, std::numeric_limits<float>::min())
                       : (std::max)(scales[i], least);
    }
    largest = (std::max)(largest, scales[i]);
  }
  if (!per_channel) {
    std::fill(scales.begin(), scales.end(), largest);
  }
}

}  // namespace detail

/// Returns `options` with bits, scales and channels replaced by those that the settings of an
/// operator have.
[[nodiscard]] inline layer_weight_options with_settings(layer_weight_options options,
                                                        const operator_settings& settings) {
  options.per_channel = settings.per_channel.value_or(options.per_channel);
  options.bits = settings.weight_bits.value_or(options.bits);
  options.scale = settings.weight_scales.value_or(options.scale);
  return options;
}

/// Scales of a layer's weights as its weights alone determine them. They serve any scale of its
/// input; quantize_layer_weights() then raises them where the bias needs it.
struct layer_weight_scales {
  quant_scheme scheme = symmetric<std::int8_t>;  ///< The grid of the codes.
  bool per_channel = true;                       ///< Whether each channel has its own scale.
  std::vector<float> scales;    ///< One scale for each output channel, also if they are equal.
  std::vector<bool> is_zero;    ///< Whether all weights of a channel are zero.
  std::int32_t zero_point = 0;  ///< Zero point of all channels.
};

/// Chooses the scales of a layer's weights. `parallel` runs the channels of
/// weight_scale::exact_mse; empty: the calling thread runs them.
///
/// Throws invalid_argument, naming the tensor or the node, if the weights are no float constant, if
/// a weight is not finite, or if the number of bits is not in 2..8.
[[nodiscard]] DETENT_GRAPH_DECL layer_weight_scales
find_weight_scales(const model& m, const node& n, const layer_weight_options& options = {},
                   const parallel_for& parallel = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL layer_weight_scales find_weight_scales(const model& m, const node& n,
                                                         const layer_weight_options& options,
                                                         const parallel_for& parallel) {
  const tensor* constant = detail::float_constant(m, n, 1);
  require(constant != nullptr, error_kind::invalid_argument, n.label(),
          " has no constant float weights");
  const tensor& weights = *constant;
  const std::size_t axis = weight_channel_axis(n);
  const tensor_view<const float> view = tensor_view_of<float>(weights);
  require(options.bits >= 2 && options.bits <= 8, error_kind::invalid_argument, n.label(),
          ": weights of ", options.bits, " bits, expected 2..8");
  const bool has_8_bits = options.bits == 8;
  const bool is_asymmetric =
      options.asymmetric && !options.per_channel && !options.reduce_range && has_8_bits;
  const std::int32_t largest = (1 << (options.bits - 1)) - 1;
  layer_weight_scales result;
  result.per_channel = options.per_channel;
  result.scheme = is_asymmetric                        ? asymmetric<std::int8_t>
                  : options.reduce_range && has_8_bits ? quant_scheme{{-64, 64}, true}
                                                       : quant_scheme{{-largest, largest}, true};

  channel_min_max_observer observer(axis);
  observer.observe(view);
  value_range whole{0.0F, 0.0F};
  for (const min_max_observer& channel : observer.channels()) {
    const value_range r = detail::of_tensor(n.inputs[1], [&] { return channel.range(); });
    whole = {(std::min)(whole.lower, r.lower), (std::max)(whole.upper, r.upper)};
    result.is_zero.push_back(r.lower == 0.0F && r.upper == 0.0F);
    result.scales.push_back(params_from_range(r, result.scheme).scale);
  }
  if (options.scale == weight_scale::exact_mse && options.per_channel) {
    const auto solutions = solve_channels(
        view, axis, result.scheme,
        [](const distribution& d, quant_scheme s) { return exact_mse(d, s); }, parallel);
    for (std::size_t i = 0; i < solutions.size(); ++i) {
      result.scales[i] = solutions[i].params.scale;
    }
  } else if (!options.per_channel) {
    const quant_params params =
        options.scale == weight_scale::exact_mse
            ? exact_mse(distribution(weights.data<float>()), result.scheme).params
            : params_from_range(whole, result.scheme);
    result.scales.assign(result.scales.size(), params.scale);
    result.zero_point = params.zero_point;
  }
  return result;
}
#endif

/// Rounds a layer's weights to nearest even with these scales, whatever its bias is. Throws
/// invalid_argument, naming the node, if the weights are no float constant.
[[nodiscard]] DETENT_GRAPH_DECL layer_weights round_layer_weights(const model& m, const node& n,
                                                                  const layer_weight_scales& found);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL layer_weights round_layer_weights(const model& m, const node& n,
                                                    const layer_weight_scales& found) {
  const tensor* weights = detail::float_constant(m, n, 1);
  require(weights != nullptr, error_kind::invalid_argument, n.label(),
          " has no constant float weights");
  layer_weights result{tensor::allocate(element_type::s8, weights->dims()), weight_channel_axis(n),
                       found.scales, found.zero_point, found.scheme.levels};
  const channel_quant_params p{result.axis, result.scales,
                               std::vector<std::int32_t>(result.scales.size(), result.zero_point)};
  quantize(tensor_view_of<float>(*weights), mutable_view_of<std::int8_t>(result.codes), p,
           result.levels);
  if (!found.per_channel) {
    result.scales.resize(1);
  }
  return result;
}
#endif

namespace detail {

/// The weights of a layer with scales that are raised where `bias`, which may be null, needs it.
[[nodiscard]] inline layer_weights fitted_layer_weights(const model& m, const node& n,
                                                        const tensor* bias, float x_scale,
                                                        layer_weight_scales scales) {
  fit_bias(scales.scales, scales.is_zero, scales.per_channel, x_scale, bias, n);
  return round_layer_weights(m, n, scales);
}

}  // namespace detail

/// Rounds a layer's weights to nearest even with scales that find_weight_scales() has found for
/// them. `x_scale` is the scale of the layer's input. The bias must fit 2^30 steps of x_scale *
/// weight scale: a weight scale is raised where it would not. Where all weights of a channel are
/// zero and scales are per channel, the scale comes from the bias.
///
/// Throws invalid_argument, naming the tensor or the node, if the weights are no float constant or
/// a bias is not finite.
[[nodiscard]] DETENT_GRAPH_DECL layer_weights quantize_layer_weights(
    const model& m, const node& n, float x_scale, const layer_weight_scales& found);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL layer_weights quantize_layer_weights(const model& m, const node& n, float x_scale,
                                                       const layer_weight_scales& found) {
  return detail::fitted_layer_weights(m, n, detail::float_constant(m, n, 2), x_scale, found);
}
#endif

/// The same for a layer of a plan, given by its index, whose bias may be added by an Add behind it.
[[nodiscard]] inline layer_weights quantize_layer_weights(const quantization_plan& plan,
                                                          std::size_t layer, float x_scale,
                                                          const layer_weight_scales& found) {
  const model& m = plan.float_model();
  return detail::fitted_layer_weights(m, m.nodes[layer], plan.bias(layer), x_scale, found);
}

/// Chooses the scales of a layer's weights with find_weight_scales(), and rounds the weights with
/// them. Throws what find_weight_scales() and the other form throw.
[[nodiscard]] DETENT_GRAPH_DECL layer_weights
quantize_layer_weights(const model& m, const node& n, float x_scale,
                       const layer_weight_options& options = {}, const parallel_for& parallel = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL layer_weights quantize_layer_weights(const model& m, const node& n, float x_scale,
                                                       const layer_weight_options& options,
                                                       const parallel_for& parallel) {
  return quantize_layer_weights(m, n, x_scale, find_weight_scales(m, n, options, parallel));
}
#endif

/// The same for a layer of a plan, given by its index.
[[nodiscard]] inline layer_weights quantize_layer_weights(const quantization_plan& plan,
                                                          std::size_t layer, float x_scale,
                                                          const layer_weight_options& options = {},
                                                          const parallel_for& parallel = {}) {
  const model& m = plan.float_model();
  return quantize_layer_weights(plan, layer, x_scale,
                                find_weight_scales(m, m.nodes[layer], options, parallel));
}

/// The weights that a quantized layer computes with, as float32: scale * (code - zero_point).
[[nodiscard]] inline tensor dequantized(const layer_weights& w) {
  tensor out = tensor::allocate(element_type::f32, w.codes.dims());
  const tensor_view<const std::int8_t> from = tensor_view_of<std::int8_t>(w.codes);
  const tensor_view<float> to = mutable_view_of<float>(out);
  if (w.scales.size() == 1) {
    dequantize(from, to, quant_params{w.scales[0], w.zero_point});
  } else {
    dequantize(
        from, to,
        channel_quant_params{w.axis, w.scales, std::vector<std::int32_t>(w.scales.size(), 0)});
  }
  return out;
}

/// The bias as int32 with scale x_scale * weight scale: bias_code() of each element. It does not
/// saturate with weights that quantize_layer_weights() made for the same x_scale and bias.
[[nodiscard]] inline std::vector<std::int32_t> quantize_bias(const tensor& bias, float x_scale,
                                                             const layer_weights& w) {
  std::vector<std::int32_t> q;
  q.reserve(bias.count());
  for (std::size_t i = 0; i < bias.count(); ++i) {
    q.push_back(bias_code(bias.data<float>()[i], x_scale, w.scales[i % w.scales.size()]));
  }
  return q;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_LAYER_WEIGHTS_HPP
