// SPDX-License-Identifier: BSD-3-Clause
// PPQ's order of passes, and quantization of a model with it.
//
//   quantized_graph g = make_quantized_graph(model, find_platform("tensorrt"));
//   pipeline passes = default_pipeline({.calibration = {.method = "kl"}});
//   passes.insert(passes.begin() + 3, {"mine", [](quantized_graph& g, pass_context& c) { ... }});
//   run_pipeline(g, passes, context);
//   model result = to_qdq(g);
#ifndef DETENT_GRAPH_PPQ_PIPELINE_HPP
#define DETENT_GRAPH_PPQ_PIPELINE_HPP

#include <optional>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/adaround.hpp>
#include <detent/graph/ppq/alignment.hpp>
#include <detent/graph/ppq/baking.hpp>
#include <detent/graph/ppq/bias_correction.hpp>
#include <detent/graph/ppq/calibration.hpp>
#include <detent/graph/ppq/equalization.hpp>
#include <detent/graph/ppq/fusion.hpp>
#include <detent/graph/ppq/learned_step_size.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/passive_parameters.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/quantizing_passes.hpp>
#include <detent/graph/ppq/splitting.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The passes of default_pipeline(); each may be configured. Those that are optional run if they
/// are given; PPQ's default settings have none of them.
struct pipeline_options {
  std::optional<layerwise_equalization_pass> equalization = {};
  std::optional<weight_split_pass> weight_split = {};
  std::optional<channel_split_pass> channel_split = {};
  /// Without passes of its own, it quantizes with those below.
  std::optional<ssd_equalization_pass> ssd_equalization = {};
  fusion_pass fusion = {};
  parameter_quantization_pass parameters = {};
  runtime_calibration_pass calibration = {};
  alignment_pass alignment = {};
  passive_parameter_pass passive_parameters = {};
  std::optional<bias_correction_pass> bias_correction = {};
  std::optional<learned_step_size_pass> learned_step_size = {};  // its passive parameters: as above
  std::optional<adaround_pass> adaround = {};
  bool bake = true;
};

/// In PPQ's order: of "layerwise equalization", "weight split", "channel split" and "ssd
/// equalization" those that are asked for; "fusion", "parameter quantization", "runtime
/// calibration", "alignment", "passive parameters"; if asked for, "bias correction" and "passive
/// parameters" again, "learned step size", "adaround", and "baking".
[[nodiscard]] inline pipeline default_pipeline(const pipeline_options& options = {}) {
  const pipeline quantizing =
      quantizing_passes(options.fusion, options.parameters, options.calibration, options.alignment,
                        options.passive_parameters);
  pipeline passes;
  if (options.equalization) {
    passes.push_back({"layerwise equalization", *options.equalization});
  }
  if (options.weight_split) {
    passes.push_back({"weight split", *options.weight_split});
  }
  if (options.channel_split) {
    passes.push_back({"channel split", *options.channel_split});
  }
  if (options.ssd_equalization) {
    ssd_equalization_pass ssd = *options.ssd_equalization;
    if (ssd.quantizing.empty()) {
      ssd.quantizing = quantizing;
    }
    passes.push_back({"ssd equalization", std::move(ssd)});
  }
  passes.insert(passes.end(), quantizing.begin(), quantizing.end());
  if (options.bias_correction) {
    passes.push_back({"bias correction", *options.bias_correction});
    passes.push_back(quantizing.back());
  }
  if (options.learned_step_size) {
    learned_step_size_pass learned = *options.learned_step_size;
    learned.passive_parameters = options.passive_parameters;
    passes.push_back({"learned step size", std::move(learned)});
  }
  if (options.adaround) {
    passes.push_back({"adaround", *options.adaround});
  }
  if (options.bake) {
    passes.push_back({"baking", parameter_baking_pass()});
  }
  return passes;
}

/// With PPQ's numbers throughout: its observers and its rule for aligned ranges, weight scales as
/// they are whatever the bias.
[[nodiscard]] inline pipeline_options parity_options(detent::parity behaviour) {
  pipeline_options options;
  options.parameters.parity = behaviour;
  options.calibration.parity = behaviour;
  options.alignment.parity = behaviour;
  options.passive_parameters.fit_weight_scales = false;
  return options;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_PIPELINE_HPP
