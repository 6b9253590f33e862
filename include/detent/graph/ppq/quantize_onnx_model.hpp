// SPDX-License-Identifier: BSD-3-Clause
// PPQ's quantize_onnx_model() as one call: a model, samples, a setting and a platform give a
// quantized network.
//
//   auto quantized = quantize_onnx_model({.onnx_import_file = "model.onnx",
//                                         .calib_dataloader = samples,
//                                         .calib_steps = 32,
//                                         .input_shape = {1, 3, 224, 224},
//                                         .setting = quantization_setting_factory::trt_setting(),
//                                         .platform = find_platform("TRT_INT8")});
//   write_onnx(to_qdq(quantized), "quantized.onnx");
#ifndef DETENT_GRAPH_PPQ_QUANTIZE_ONNX_MODEL_HPP
#define DETENT_GRAPH_PPQ_QUANTIZE_ONNX_MODEL_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ppq/observing.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/setting.hpp>
#include <detent/graph/ppq/setting_conversion.hpp>
#include <detent/graph/ppq/state.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// A source of calibration samples that are at hand: the inputs of one run each, by name.
[[nodiscard]] inline calibration_source samples_in_memory(
    std::vector<std::map<std::string, tensor>> samples) {
  return [samples = std::move(samples),
          next = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
    if (next == samples.size()) {
      next = 0;
      return std::nullopt;
    }
    return samples[next++];
  };
}

/// A model to quantize: the path of an ONNX file, or a model that has been read.
class onnx_import {
 public:
  /// The model in a file, which take() reads.
  onnx_import(const char* path) : source_(std::filesystem::path(path)) {}  // NOLINT: implicit
  /// The model in a file, which take() reads.
  onnx_import(const std::string& path)  // NOLINT: implicit
      : source_(std::filesystem::path(path)) {}
  /// The model in a file, which take() reads.
  onnx_import(std::filesystem::path path) : source_(std::move(path)) {}  // NOLINT: implicit
  /// A model that has been read.
  onnx_import(model m) : source_(std::move(m)) {}  // NOLINT: implicit

  /// The model; throws what read_onnx() throws.
  [[nodiscard]] model take() && {
    if (const auto* path = std::get_if<std::filesystem::path>(&source_)) {
      return read_onnx(*path);
    }
    return std::get<model>(std::move(source_));
  }

 private:
  std::variant<std::filesystem::path, model> source_;
};

/// The arguments of quantize_onnx_model(), in the order of PPQ's documentation.
struct quantize_onnx_arguments {
  /// The model: a path, or a model that has been read.
  onnx_import onnx_import_file;
  /// The calibration samples: the inputs of one run each.
  calibration_source calib_dataloader = {};
  /// The number of calibration runs, 8..512. If there are fewer samples, they are taken again.
  std::size_t calib_steps = 32;
  /// The shape of the only input, which the model must be able to take; empty: not checked.
  std::vector<std::int64_t> input_shape = {};
  /// What is done. The default is PPQ's default_setting().
  quantization_setting setting = {};
  /// If given, it makes the inputs of a run from each sample.
  std::function<std::map<std::string, tensor>(std::map<std::string, tensor>)> collate_fn = {};
  /// The target platform.
  ppq::platform platform = find_platform("ONNXRUNTIME");
  /// "cpu", or "cuda" as PPQ has it, which gives a warning: all is computed on the processor.
  std::string device = "cpu";
  /// With 1, the result has a report.
  int verbose = 0;
  /// Without it, the network gets its configurations, and no pass runs.
  bool do_quantize = true;
  /// Which observers PPQ's names stand for: the library's own, or, with a value, PPQ's, together
  /// with PPQ's rules for aligned ranges and biases.
  ppq_parity parity = {};
  /// The observers that settings and platforms name.
  observer_registry observers = default_observers();
  /// How networks are run.
  executor_options executor = {};
};

/// A quantized network, and what a user should know about it.
struct quantized_onnx_model : quantized_graph {
  /// One sentence each: few samples, fields of the setting without effect, configurations that are
  /// left in a state in which they do not quantize.
  std::vector<std::string> warnings;
  /// With verbose: the numbers of operators and of configurations by their states, as a table.
  std::string report;
};

/// How many operators of a network are quantized, and how many configurations are in each state, as
/// a table of text with a line for each.
[[nodiscard]] inline std::string quantization_report(const quantized_graph& g) {
  std::size_t quantized = 0;
  for (const operator_configs& o : g.operators) {
    quantized += o.is_quantized() ? 1U : 0U;
  }
  std::array<std::size_t, quantization_state_count + 1> counts{};
  g.for_each_config(
      [&](config_id id) { ++counts[static_cast<std::size_t>(g.configs[id].state())]; });
  std::string text = "platform       " + g.target.name + "\noperators      " +
                     std::to_string(g.operators.size()) + "\nquantized      " +
                     std::to_string(quantized) + "\n";
  for (std::size_t i = 1; i < counts.size(); ++i) {
    std::string name = ppq::name(static_cast<quantization_state>(i));
    name.resize(15, ' ');
    text += name + std::to_string(counts[i]) + "\n";
  }
  return text;
}

namespace detail {

/// Throws unless the model has one input that can have this shape.
inline void require_input_shape(const model& m, const std::vector<std::int64_t>& wanted) {
  if (wanted.empty()) {
    return;
  }
  require(m.inputs.size() == 1, error_kind::invalid_argument,
          "quantize_onnx_model: input_shape is for models with one input; this one has ",
          m.inputs.size());
  const value_info& input = m.inputs[0];
  bool fits = !input.has_shape || input.dims.size() == wanted.size();
  for (std::size_t i = 0; fits && input.has_shape && i < wanted.size(); ++i) {
    fits = wanted[i] > 0 && (input.dims[i] < 0 || input.dims[i] == wanted[i]);
  }
  require(fits, error_kind::shape_mismatch, "quantize_onnx_model: input_shape ", shown(wanted),
          " does not fit the input '", input.name, "' ", shown(input.dims));
}

/// A source that applies a function to each sample, and counts the samples of the first pass.
[[nodiscard]] inline calibration_source counted(const quantize_onnx_arguments& a,
                                                std::size_t& count) {
  return [source = a.calib_dataloader, collate = a.collate_fn, at_end = false,
          &count]() mutable -> std::optional<std::map<std::string, tensor>> {
    std::optional<std::map<std::string, tensor>> sample = source();
    if (!sample) {
      at_end = true;
      return sample;
    }
    count += at_end ? 0U : 1U;
    return collate ? collate(std::move(*sample)) : std::move(sample);
  };
}

/// A sentence about configurations that calibration was to give parameters and that have none.
inline void warn_of_states(const quantized_graph& g, std::vector<std::string>& warnings) {
  std::map<quantization_state, std::vector<std::string>> unfit;
  g.for_each_config([&](config_id id) {
    const quantization_state state = g.configs[id].state();
    if (state == quantization_state::initial || state == quantization_state::passive_init) {
      unfit[state].push_back(g.configs[id].name);
    }
  });
  for (const auto& [state, names] : unfit) {
    warnings.push_back(std::to_string(names.size()) + " configurations are still " +
                       ppq::name(state) + " and do not quantize, the first of them " + names[0]);
  }
}

}  // namespace detail

/// PPQ's quantize_onnx_model(): reads the model, makes the configurations of the platform, and runs
/// the passes that the setting asks for. to_qdq() makes a model of the result, the headers
/// export_*.hpp the files of other engines. `calib_dataloader` is left at its beginning.
///
/// Throws what read_onnx(), make_quantized_graph(), to_pipeline_options(), to_quantizer_options()
/// and the passes throw; invalid_argument for another device, for an input_shape of a model that
/// has not exactly one input, and, with do_quantize, for calib_steps that are not 8..512 and an
/// empty calib_dataloader; shape_mismatch for an input_shape that the model cannot take. All that
/// is checked before the first run.
[[nodiscard]] inline quantized_onnx_model quantize_onnx_model(quantize_onnx_arguments a) {
  const std::string device = detent::detail::lower_case(a.device);
  require(device == "cpu" || device.rfind("cuda", 0) == 0, error_kind::invalid_argument,
          "quantize_onnx_model: there is no device '", a.device, "'; there is cpu");
  require(!a.do_quantize || (a.calib_steps >= 8 && a.calib_steps <= 512),
          error_kind::invalid_argument, "quantize_onnx_model: calib_steps ", a.calib_steps,
          " is not 8..512");
  require(!a.do_quantize || static_cast<bool>(a.calib_dataloader), error_kind::invalid_argument,
          "quantize_onnx_model: calib_dataloader is empty");
  pipeline_options base = a.parity ? parity_options(*a.parity) : pipeline_options();
  base.parameters.observers = a.observers;
  base.calibration.observers = a.observers;
  base.calibration.calib_steps = a.calib_steps;
  const pipeline_options options = to_pipeline_options(a.setting, std::move(base));
  const platform target = with_setting(std::move(a.platform), a.setting);
  const quantizer_options choice = to_quantizer_options(a.setting, target);
  model m = std::move(a.onnx_import_file).take();
  detail::require_input_shape(m, a.input_shape);

  quantized_onnx_model result;
  result.warnings = setting_warnings(a.setting, m);
  if (device != "cpu") {
    result.warnings.push_back("device " + a.device + ": all is computed on the processor");
  }
  model without_constants = m;  // of which only the names of nodes are needed
  without_constants.initializers.clear();
  static_cast<quantized_graph&>(result) = make_quantized_graph(std::move(m), target, choice);
  for (std::string& warning :
       merged_operator_warnings(a.setting, without_constants, result.network)) {
    result.warnings.push_back(std::move(warning));
  }
  if (a.do_quantize) {
    switch_off(result, a.setting);
    std::size_t count = 0;
    pass_context context{.samples = detail::counted(a, count), .executor = a.executor};
    run_pipeline(result, default_pipeline(options), context);
    if (count > 0 && count < 8) {
      result.warnings.push_back("there are " + std::to_string(count) +
                                " calibration samples; with fewer than 8, ranges are unreliable");
    }
    detail::warn_of_states(result, result.warnings);
  }
  if (a.verbose != 0) {
    result.report = quantization_report(result);
  }
  return result;
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_QUANTIZE_ONNX_MODEL_HPP
