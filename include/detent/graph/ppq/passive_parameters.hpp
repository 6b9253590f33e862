// SPDX-License-Identifier: BSD-3-Clause
// The pass that computes the parameters of constants whose scale follows from other tensors:
// biases, the bounds of Clip and the value of Pad.
#ifndef DETENT_GRAPH_PPQ_PASSIVE_PARAMETERS_HPP
#define DETENT_GRAPH_PPQ_PASSIVE_PARAMETERS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <detent/bias.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/scale_rules.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// PPQ's PassiveParameterQuantizePass. It gives parameters to the configurations that are
/// PASSIVE_INIT or PASSIVE:
///
///   bias of Conv, ConvTranspose, Gemm   scale = input scale * weight scale in float, for each
///                                       output channel; zero point 0
///   bounds of Clip, value of Pad        the parameters of the operator's input, which becomes the
///                                       master
///
/// They become PASSIVE. The pass can be run again after scales have changed. Where the policy of
/// the operator's input is DYNAMIC, there is no scale to follow, and the configuration is switched
/// off (FP32).
///
/// Throws invalid_argument, naming the configuration, if the input or the weights of such an
/// operator are not quantized, or if the bias holds a NaN or an infinity; unsupported if the input
/// of a layer with a bias is quantized per channel. The graph is then as it was.
struct passive_parameter_pass {
  /// Whether scales of weights may change so that biases fit. The scale of a weight channel that is
  /// not baked is raised where the bias would not fit its grid (of a grid of 32 bits, only half is
  /// used; the rest is for the sums of products). Where all weights of a channel are zero, the
  /// scale is chosen so that the bias has 2^20 steps. Biases that stay in float count as well:
  /// ONNX Runtime from 1.23 on stores them in 32 bits itself, without a check. PPQ does neither: it
  /// lets such a bias saturate.
  bool fit_weight_scales = true;

  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& /*context*/) const {
    quantization_configs configs = g.configs;
    for (std::size_t i = 0; i < g.network.nodes.size(); ++i) {
      const node& n = g.network.nodes[i];
      const std::vector<config_id>& ids = g.operators[i].inputs;
      for (std::size_t slot = 1; slot < ids.size(); ++slot) {
        if (ids[slot] == no_config) {
          continue;
        }
        const quantization_state state = configs[ids[slot]].state();
        if (state == quantization_state::fp32 && is_compute_operator(n) &&
            slot == detail::bias_slot) {
          fit_float_bias_of(g, configs, i);
        }
        if (state != quantization_state::passive_init && state != quantization_state::passive) {
          continue;
        }
        if (ids[0] != no_config && configs.is_dynamic(ids[0])) {
          configs.dequantize(ids[slot]);
        } else if (detail::is_bound_slot(n, slot)) {
          require_quantized(configs, ids[slot], ids[0]);
          configs.master_by(ids[slot], ids[0]);
        } else if (is_compute_operator(n) && slot == detail::bias_slot) {
          quantize_bias_of(g, configs, i);
        }
      }
    }
    g.configs = std::move(configs);
  }

 private:
  /// Throws invalid_argument unless `id` has a scale, and neither it nor its root is switched off.
  static void require_quantized(const quantization_configs& configs, config_id passive,
                                config_id id) {
    require(id != no_config && !configs.parameters(id).empty() &&
                configs[configs.root(id)].state() != quantization_state::fp32 &&
                configs[id].state() != quantization_state::fp32,
            error_kind::invalid_argument, configs[passive].name, ": its scale follows from '",
            id == no_config ? std::string("an operand") : configs[id].name,
            "', which is not quantized");
  }

  void quantize_bias_of(const quantized_graph& g, quantization_configs& configs,
                        std::size_t index) const {
    const config_id input = g.operators[index].inputs[0];
    const config_id weight = g.operators[index].inputs[detail::weight_slot];
    const config_id bias = g.operators[index].inputs[detail::bias_slot];
    require_quantized(configs, bias, input);
    require_quantized(configs, bias, weight);
    const tensor_parameters& x = configs.parameters(input);
    require(x.scales.size() == 1, error_kind::unsupported, configs[bias].name, ": its input has ",
            x.scales.size(), " scales");
    const tensor& values = *g.network.initializer(configs[bias].variable);
    for (const float b : values.data<float>()) {
      require(std::isfinite(b), error_kind::invalid_argument, configs[bias].name, ": it holds ", b);
    }
    if (may_change(configs, weight)) {
      fit(g, configs, weight, values, x.scales[0], configs[bias].levels.qmax);
    }
    const std::vector<float>& w = configs.parameters(weight).scales;
    tensor_parameters p;
    const std::size_t channels = w.size() == 1 ? 1 : values.count();
    for (std::size_t c = 0; c < channels; ++c) {
      p.scales.push_back(x.scales[0] * w[c % w.size()]);  // groups of ConvTranspose share scales
    }
    p.zero_points.assign(channels, 0);
    configs.set_parameters(bias, std::move(p));
    configs.transition(bias, quantization_state::passive);
  }

  /// Whether the scales of weights may change so that a bias fits.
  [[nodiscard]] bool may_change(const quantization_configs& configs, config_id weight) const {
    return fit_weight_scales && configs[weight].state() == quantization_state::activated &&
           configs.source(weight) == weight;
  }

  /// Raises scales of weights where the bias, which stays in float, would not fit 32 bits.
  void fit_float_bias_of(const quantized_graph& g, quantization_configs& configs,
                         std::size_t index) const {
    const config_id input = g.operators[index].inputs[0];
    const config_id weight = g.operators[index].inputs[detail::weight_slot];
    const config_id bias = g.operators[index].inputs[detail::bias_slot];
    if (input == no_config || weight == no_config || configs.is_dynamic(input) ||
        configs[configs.root(input)].state() == quantization_state::fp32 ||
        configs[input].state() == quantization_state::fp32 ||
        configs.parameters(input).scales.size() != 1 || !may_change(configs, weight)) {
      return;
    }
    const tensor* const values = g.network.initializer(configs[bias].variable);
    if (values == nullptr) {
      return;
    }
    const auto floats = values->data<float>();
    if (std::all_of(floats.begin(), floats.end(), [](float b) { return std::isfinite(b); })) {
      fit(g, configs, weight, *values, configs.parameters(input).scales[0],
          std::numeric_limits<std::int32_t>::max());
    }
  }

  static void fit(const quantized_graph& g, quantization_configs& configs, config_id weight,
                  const tensor& bias, float input_scale, std::int32_t highest) {
    constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
    constexpr float fine = 1048576.0F;  // 2^20 steps
    const std::int32_t limit = (std::min)(highest, largest / 2);
    tensor_parameters p = configs.parameters(weight);
    const std::vector<bool> zero =
        zero_channels(*g.network.initializer(configs[weight].variable), configs[weight], p);
    for (std::size_t c = 0; c < bias.count(); ++c) {
      const float b = bias.data<float>()[c];
      float& scale = p.scales[c % p.scales.size()];
      if (b == 0.0F) {
        continue;
      }
      if (zero[c % p.scales.size()]) {
        const float least = std::fabs(b) / fine / input_scale;
        scale = c < p.scales.size() ? least : (std::max)(scale, least);
        scale = (std::max)(scale, (std::numeric_limits<float>::min)());
      }
      bias_safe_weight_scales({&b, 1}, input_scale, {&scale, 1}, {&scale, 1}, largest - limit);
    }
    if (configs[weight].policy.has(quantization_property::power_of_2)) {
      for (float& scale : p.scales) {
        scale = project_to_power_of_two(scale, power_of_two_rounding::up);
      }
    }
    configs.set_parameters(weight, std::move(p));
  }

  /// Which scales serve channels of nothing but zeros. The scale of a whole tensor never counts.
  static std::vector<bool> zero_channels(const tensor& weights, const quantizer_settings& s,
                                         const tensor_parameters& p) {
    std::vector<bool> zero(p.scales.size(), p.scales.size() > 1);
    if (p.scales.size() > 1) {
      std::size_t inner = 1;
      for (std::size_t d = *s.channel_axis + 1; d < weights.rank(); ++d) {
        inner *= static_cast<std::size_t>(weights.dim(d));
      }
      const auto values = weights.data<float>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i] != 0.0F) {
          zero[i / inner % p.scales.size()] = false;
        }
      }
    }
    return zero;
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_PASSIVE_PARAMETERS_HPP
