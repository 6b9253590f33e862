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

#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/ir.hpp>
#include <detent/graph/ppq/alignment.hpp>
#include <detent/graph/ppq/baking.hpp>
#include <detent/graph/ppq/calibration.hpp>
#include <detent/graph/ppq/fusion.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/passive_parameters.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The passes of default_pipeline(); each may be configured, and baking left out.
struct pipeline_options {
  fusion_pass fusion = {};
  parameter_quantization_pass parameters = {};
  runtime_calibration_pass calibration = {};
  alignment_pass alignment = {};
  passive_parameter_pass passive_parameters = {};
  bool bake = true;
};

/// "fusion", "parameter quantization", "runtime calibration", "alignment", "passive parameters"
/// and, if asked for, "baking".
[[nodiscard]] inline pipeline default_pipeline(const pipeline_options& options = {}) {
  pipeline passes{{"fusion", options.fusion},
                  {"parameter quantization", options.parameters},
                  {"runtime calibration", options.calibration},
                  {"alignment", options.alignment},
                  {"passive parameters", options.passive_parameters}};
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
