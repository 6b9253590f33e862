// SPDX-License-Identifier: BSD-3-Clause
// What a quantization_setting of PPQ means here: the options of the pipeline and of the graph. A
// setting that asks for what is not offered is an error that names the field.
#ifndef DETENT_GRAPH_PPQ_SETTING_CONVERSION_HPP
#define DETENT_GRAPH_PPQ_SETTING_CONVERSION_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/graph/ppq/alignment.hpp>
#include <detent/graph/ppq/calibration.hpp>
#include <detent/graph/ppq/dispatcher.hpp>
#include <detent/graph/ppq/observing.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/setting.hpp>
#include <detent/graph/ppq/state.hpp>
#include <detent/graph/ppq/target_platform.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Throws unsupported, naming the field and its value, unless `offered`.
template <class T>
void require_offered(bool offered, const char* field, const T& value, const char* why) {
  require(offered, error_kind::unsupported, "the setting ", field, " ", value,
          " is not offered: ", why);
}

inline void require_all_layers(const std::vector<std::string>& layers, const char* field) {
  require(layers.empty(), error_kind::unsupported, "the setting ", field, " '",
          layers.empty() ? std::string() : layers[0],
          "' is not offered: the pass takes all layers");
}

/// The way of alignment of that name; throws invalid_argument, naming the field and the nearest
/// name, for a name that is none.
[[nodiscard]] inline alignment_method find_alignment(const std::string& name, const char* field) {
  static const std::vector<std::pair<std::string, alignment_method>> all = {
      {"none", alignment_method::none},
      {"align to large", alignment_method::to_large},
      {"align to input", alignment_method::to_input},
      {"align to output", alignment_method::to_output}};
  const std::string key = detent::detail::lower_case(name);
  std::vector<std::string> names;
  for (const auto& [known, method] : all) {
    if (known == key) {
      return method;
    }
    names.push_back(known);
  }
  raise(error_kind::invalid_argument,
        detent::detail::message("detent: the setting ", field, " has no value '", name,
                                "'; the nearest is ", graph::nearest_names(key, names, 1)));
}

/// Throws unsupported for settings without an equivalent that would change results.
inline void require_offered(const quantization_setting& s) {
  const ppq::graph_format_setting& format = s.graph_format_setting;
  const auto always = [](bool on, const char* field) {
    require_offered(on, field, "false", "networks are always simplified");
  };
  always(format.format_constant_op, "graph_format_setting.format_constant_op");
  always(format.fuse_conv_bn, "graph_format_setting.fuse_conv_bn");
  always(format.format_paramters, "graph_format_setting.format_paramters");
  always(format.format_cast, "graph_format_setting.format_cast");
  always(format.delete_isolate, "graph_format_setting.delete_isolate");
  require_offered(!s.extension, "extension", "true", "add a pass of your own to the pipeline");
  require_offered(!s.advanced_optimization, "advanced_optimization", "true",
                  "lsq_optimization took its place in PPQ 0.6.5");
}

[[nodiscard]] inline ssd_equalization_pass to_pass(const ssd_setting& s) {
  require_offered(s.opt_level == 1, "ssd_setting.opt_level", s.opt_level, "there is 1");
  require_offered(s.channel_ratio == 0.5, "ssd_setting.channel_ratio", s.channel_ratio,
                  "there is 0.5");
  require_offered(!s.layer_norm, "ssd_setting.layer_norm", "true", "weights are not normalized");
  ssd_equalization_pass pass;
  pass.iterations = s.iteration;
  pass.loss_threshold = s.loss_threshold;
  return pass;
}

[[nodiscard]] inline layerwise_equalization_pass to_equalization(const channel_setting& s) {
  require_offered(s.opt_level == 1, "equalization_setting.opt_level", s.opt_level, "there is 1");
  layerwise_equalization_pass pass;
  pass.iterations = s.iterations;
  pass.value_threshold = s.value_threshold;
  pass.including_bias = s.including_bias;
  pass.bias_multiplier = s.bias_multiplier;
  pass.including_activation = s.including_act;
  pass.activation_multiplier = s.act_multiplier;
  return pass;
}

[[nodiscard]] inline channel_split_pass to_channel_split(const channel_setting& s) {
  require_offered(s.opt_level == 1, "channel_split_setting.opt_level", s.opt_level, "there is 1");
  require_offered(!s.including_bias, "channel_split_setting.including_bias", "true",
                  "channels are split by their weights");
  require_offered(!s.including_act, "channel_split_setting.including_act", "true",
                  "channels are split by their weights");
  channel_split_pass pass;
  pass.iterations = s.iterations;
  pass.threshold = s.value_threshold;
  return pass;
}

[[nodiscard]] inline weight_split_pass to_pass(const weight_split_setting& s) {
  const std::string method = detent::detail::lower_case(s.method);
  require(method == "balance" || method == "random", error_kind::invalid_argument,
          "the setting weight_split_setting.method has no value '", s.method,
          "'; there are balance, random");
  weight_split_pass pass;
  pass.layers = s.interested_layers;
  pass.threshold = static_cast<float>(s.value_threshold);
  pass.mode = method == "random" ? weight_split_mode::random : weight_split_mode::balance;
  return pass;
}

[[nodiscard]] inline learned_step_size_pass to_learned_step_size(const training_setting& s) {
  require_all_layers(s.interested_layers, "lsq_optimization_setting.interested_layers");
  require_offered(s.is_scale_trainable, "lsq_optimization_setting.is_scale_trainable", "false",
                  "the pass trains scales");
  learned_step_size_pass pass;
  pass.learning_rate = s.lr;
  pass.steps = s.steps;
  pass.gamma = s.gamma;
  pass.blocks.block_size = s.block_size;
  return pass;
}

[[nodiscard]] inline adaround_pass to_adaround(const training_setting& s) {
  require_all_layers(s.interested_layers, "blockwise_reconstruction_setting.interested_layers");
  require_offered(!s.is_scale_trainable, "blockwise_reconstruction_setting.is_scale_trainable",
                  "true", "the pass trains roundings; lsq_optimization trains scales");
  adaround_pass pass;
  pass.learning_rate = s.lr;
  pass.steps = s.steps;
  pass.gamma = s.gamma;
  pass.blocks.block_size = s.block_size;
  return pass;
}

[[nodiscard]] inline bias_correction_pass to_pass(const bias_correct_setting& s) {
  require_all_layers(s.interested_layers, "bias_correct_setting.interested_layers");
  return {.block_size = s.block_size, .steps = s.steps};
}

/// Sets what fusion and alignment do. Without `fusion` neither does anything.
inline void apply_fusion(const quantization_setting& setting, pipeline_options& to) {
  const ppq::fusion_setting& s = setting.fusion_setting;
  to.fusion.fuse_activation = setting.fusion && s.fuse_activation;
  to.fusion.fuse_passive_op = setting.fusion && s.fuse_passive_op;
  to.fusion.remove_useless = setting.fusion && s.remove_useless_quantization;
  const bool aligns = setting.fusion && s.align_quantization;
  const auto method = [&](const std::string& name, const char* field) {
    const alignment_method found = find_alignment(name, field);
    return aligns ? found : alignment_method::none;
  };
  to.alignment.average_pool = method(s.align_avgpooling_to, "fusion_setting.align_avgpooling_to");
  to.alignment.elementwise = method(s.align_elementwise_to, "fusion_setting.align_elementwise_to");
  to.alignment.concat = method(s.align_concat_to, "fusion_setting.align_concat_to");
  to.alignment.resize = method(s.align_resize_to, "fusion_setting.align_resize_to");
  to.alignment.force_overlap = s.force_alignment_overlap;
}

/// Throws invalid_argument, naming the field and listing the observers that there are, for an
/// observer that does not exist.
inline void require_observers(const quantization_setting& setting,
                              const runtime_calibration_pass& calibration) {
  const auto check = [&](const std::optional<std::string>& algorithm, const std::string& field) {
    if (algorithm && !algorithm->empty()) {
      graph::detail::with_context("the setting " + field + ".calib_algorithm", [&] {
        static_cast<void>(observer_name(*algorithm, calibration.parity, calibration.observers));
      });
    }
  };
  check(setting.quantize_activation_setting.calib_algorithm, "quantize_activation_setting");
  check(setting.quantize_parameter_setting.calib_algorithm, "quantize_parameter_setting");
}

}  // namespace detail

/// The passes that a setting asks for, with their settings. What a setting does not speak of (the
/// parity of observers, the number of calibration runs) stays as `base` has it. Throws unsupported,
/// naming field and value, for what is not offered, and invalid_argument, naming the field, for
/// names that do not exist, those of observers among them; a switch that is off makes its settings
/// count for nothing.
[[nodiscard]] inline pipeline_options to_pipeline_options(const quantization_setting& setting,
                                                          pipeline_options base = {}) {
  detail::require_offered(setting);
  detail::require_observers(setting, base.calibration);
  if (setting.ssd_equalization) {
    base.ssd_equalization = detail::to_pass(setting.ssd_setting);
    base.ssd_equalization->calib_steps = base.calibration.calib_steps;
  }
  if (setting.equalization) {
    base.equalization = detail::to_equalization(setting.equalization_setting);
    base.equalization->calib_steps = base.calibration.calib_steps;
  }
  if (setting.weight_split) {
    base.weight_split = detail::to_pass(setting.weight_split_setting);
  }
  if (setting.channel_split) {
    base.channel_split = detail::to_channel_split(setting.channel_split_setting);
  }
  if (setting.lsq_optimization) {
    base.learned_step_size = detail::to_learned_step_size(setting.lsq_optimization_setting);
  }
  if (setting.blockwise_reconstruction) {
    base.adaround = detail::to_adaround(setting.blockwise_reconstruction_setting);
  }
  if (setting.bias_correct) {
    base.bias_correction = detail::to_pass(setting.bias_correct_setting);
  }
  detail::apply_fusion(setting, base);
  base.calibration.method = setting.quantize_activation_setting.calib_algorithm.value_or("");
  base.bake = setting.quantize_parameter && setting.quantize_parameter_setting.baking_parameter;
  return base;
}

/// The platform with what a setting says about weights: their observer.
[[nodiscard]] inline platform with_setting(platform target, const quantization_setting& setting) {
  if (const auto& algorithm = setting.quantize_parameter_setting.calib_algorithm) {
    target.weight.observer = *algorithm;
  }
  return target;
}

/// Which operators a setting quantizes on a platform: the dispatcher's choice without those that
/// the dispatching table sends to FP32, FP16, BF16 or SOI. Throws what find_dispatcher() throws;
/// invalid_argument, naming the operator, for a number that is no TargetPlatform; and unsupported,
/// naming the operator, for a table that sends an operator to another platform that quantizes: a
/// network has one platform.
[[nodiscard]] inline quantizer_options to_quantizer_options(const quantization_setting& setting,
                                                            const platform& target) {
  std::set<std::string> in_float;
  for (const auto& [operation, value] : setting.dispatching_table.dispatchings) {
    const target_platform* p = find_target_platform(value);
    require(p != nullptr, error_kind::invalid_argument, "the setting dispatching_table sends '",
            operation, "' to ", value, ", which is no TargetPlatform");
    if (p->name == "FP32" || p->name == "FP16" || p->name == "BF16" || p->name == "SOI") {
      in_float.insert(operation);
      continue;
    }
    require(p->preset == target.name || p->name == "UNSPECIFIED", error_kind::unsupported,
            "the setting dispatching_table sends '", operation, "' to ", p->name,
            ", but the platform is ", target.name);
  }
  quantizer_options options;
  options.scope = find_dispatcher(setting.dispatcher);
  if (!in_float.empty()) {
    options.keep_float = [in_float = std::move(in_float)](const node& n) {
      return in_float.count(n.name) != 0;
    };
  }
  return options;
}

/// Switches off (FP32) the configurations that a setting does not quantize: those of activations
/// and what follows from them without quantize_activation, those of constants without
/// quantize_parameter, biases and bounds also without quantize_passive_parameter. To be called
/// before any pass.
inline void switch_off(quantized_graph& g, const quantization_setting& setting) {
  const bool passive = setting.quantize_activation && setting.quantize_parameter &&
                       setting.quantize_parameter_setting.quantize_passive_parameter;
  g.for_each_config([&](config_id id) {
    const bool is_passive = g.configs[id].state() == quantization_state::passive_init;
    const bool wanted = is_passive           ? passive
                        : g.is_parameter(id) ? setting.quantize_parameter
                                             : setting.quantize_activation;
    if (!wanted) {
      g.configs.dequantize(id);
    }
  });
}

/// What a user should know of a setting for a network: fields without effect, a version of PPQ
/// whose fields may have had another meaning, and operators in the dispatching table that the
/// network does not have.
[[nodiscard]] inline std::vector<std::string> setting_warnings(const quantization_setting& setting,
                                                               const model& network) {
  std::vector<std::string> warnings;
  if (setting.matrix_factorization) {
    warnings.emplace_back("the setting matrix_factorization has no effect, as in PPQ since 0.6.5");
  }
  if (setting.version != setting_version) {
    warnings.push_back("the setting is of PPQ " + setting.version +
                       "; its fields are read as those of " + std::string(setting_version));
  }
  if (setting.weight_split && setting.weight_split_setting.interested_layers.empty()) {
    warnings.emplace_back("the setting weight_split names no interested_layers, and splits none");
  }
  std::set<std::string> names;
  for (const node& n : network.nodes) {
    names.insert(n.name);
  }
  for (const auto& [operation, value] : setting.dispatching_table.dispatchings) {
    if (names.count(operation) == 0) {
      warnings.push_back("the setting dispatching_table names the operator '" + operation +
                         "', which the network does not have; the nearest is " +
                         graph::nearest_names(operation, {names.begin(), names.end()}, 1));
    }
  }
  return warnings;
}

/// A warning for each operator in the dispatching table that `network` has and that is not in
/// `quantized`, which was made of it: a normalization that is folded into a layer is quantized, or
/// left in float, with that layer.
[[nodiscard]] inline std::vector<std::string> merged_operator_warnings(
    const quantization_setting& setting, const model& network, const model& quantized) {
  const auto has = [](const model& m, const std::string& name) {
    return std::any_of(m.nodes.begin(), m.nodes.end(),
                       [&](const node& n) { return n.name == name; });
  };
  std::vector<std::string> warnings;
  for (const auto& [operation, platform_value] : setting.dispatching_table.dispatchings) {
    if (has(network, operation) && !has(quantized, operation)) {
      warnings.push_back("the setting dispatching_table names the operator '" + operation +
                         "', which simplification has removed or made part of another one");
    }
  }
  return warnings;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_SETTING_CONVERSION_HPP
