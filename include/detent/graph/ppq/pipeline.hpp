// SPDX-License-Identifier: BSD-3-Clause
// The main header of graph/ppq/: quantization of ONNX models with the method of PPQ, its target
// platforms, states and passes, for those who want PPQ's passes or have to reproduce its numbers.
// Its headers may include each other, the folders model/, ops/, run/, learn/, rewrite/ and
// quantize/ of the graph part, and the core of the library; they do not include graph/nncf/.
//
// This header holds default_pipeline(), the list of passes in PPQ's order. A model is quantized so:
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
#include <detent/graph/model/separate_compilation.hpp>
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
/// Quantization with the states, passes and target platforms of PPQ.
namespace ppq {

/// The passes of default_pipeline() and their settings. An optional pass runs if it is given; PPQ's
/// default settings have none of them.
struct pipeline_options {
  /// Scales channels between layers.
  std::optional<layerwise_equalization_pass> equalization = {};
  /// Splits layers with large weights into two.
  std::optional<weight_split_pass> weight_split = {};
  /// Makes channels with large weights twice.
  std::optional<channel_split_pass> channel_split = {};
  /// Searches scalings of channels by a measured loss. If its own list of quantizing passes is
  /// empty, it takes the five passes from fusion to passive_parameters of these options.
  std::optional<ssd_equalization_pass> ssd_equalization = {};
  /// Finds configurations that do not have to quantize.
  fusion_pass fusion = {};
  /// Finds the parameters of constants.
  parameter_quantization_pass parameters = {};
  /// Finds the parameters of activations from samples.
  runtime_calibration_pass calibration = {};
  /// Gives tensors of one operator the same parameters.
  alignment_pass alignment = {};
  /// Computes parameters that follow from others, such as those of biases.
  passive_parameter_pass passive_parameters = {};
  /// Corrects biases for the shift of means. After it, the passive parameters are computed again.
  std::optional<bias_correction_pass> bias_correction = {};
  /// Trains scales, weights and biases. Its own passive_parameters are replaced by those of these
  /// options.
  std::optional<learned_step_size_pass> learned_step_size = {};
  /// Learns whether weights are rounded up or down.
  std::optional<adaround_pass> adaround = {};
  /// Whether constants are baked in the end.
  bool bake = true;
};

/// The passes of the options as a pipeline in PPQ's order. "fusion", "parameter quantization",
/// "runtime calibration", "alignment" and "passive parameters" always run. Before them come, if the
/// options have them, "weight split", "channel split", "layerwise equalization" and "ssd
/// equalization". After them come, if the options have them, "bias correction" and "passive
/// parameters" once more, "learned step size", "adaround" and "baking".
[[nodiscard]] DETENT_GRAPH_DECL pipeline default_pipeline(const pipeline_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL pipeline default_pipeline(const pipeline_options& options) {
  const pipeline quantizing =
      quantizing_passes(options.fusion, options.parameters, options.calibration, options.alignment,
                        options.passive_parameters);
  pipeline passes;
  if (options.weight_split) {
    passes.push_back({"weight split", *options.weight_split});
  }
  if (options.channel_split) {
    passes.push_back({"channel split", *options.channel_split});
  }
  if (options.equalization) {
    passes.push_back({"layerwise equalization", *options.equalization});
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
#endif

/// The options with which default_pipeline() computes PPQ's numbers throughout: its observers, with
/// or without their bugs as `behaviour` says, its rule for aligned ranges, and weight scales that
/// do not change where a bias does not fit.
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
