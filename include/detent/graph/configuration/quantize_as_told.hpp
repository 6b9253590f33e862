// SPDX-License-Identifier: BSD-3-Clause
// Does a quantization_job: quantizes a model in the approach that the job names.
#ifndef DETENT_GRAPH_CONFIGURATION_QUANTIZE_AS_TOLD_HPP
#define DETENT_GRAPH_CONFIGURATION_QUANTIZE_AS_TOLD_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/run/executor_options.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The outcome of a job.
struct quantization_outcome {
  model result;                       ///< The quantized model.
  std::optional<quantization> parts;  ///< Only of the static approach: what it was made of.
  std::map<std::string, scale_solution> solutions;  ///< By activation.
  std::map<std::string, std::string> methods;       ///< By activation: the method of its solution.
  std::vector<quantization_step> steps;             ///< What the method "auto" has tried.
  std::size_t layers = 0;                           ///< Number of quantized layers.
  /// With calibration states: the number of runs of the model that they have seen.
  std::uint64_t samples_of_states = 0;
};

/// How a job runs, besides what it says.
struct quantization_run {
  executor_options executor = {};  ///< Options of all executors; `parallel` is used by solvers too.
  /// Called while the method "auto" searches, and after each matrix of weight-only quantization.
  /// What it throws ends the job.
  std::function<void(const quantization_progress&)> on_progress = {};
  /// Called when the static approach has its parts, before the model is taken from them; it may
  /// replace them by others.
  std::function<void(std::optional<quantization>& parts)> on_parts = {};
  /// Called with constants that the dynamic and the weight-only approach make, as the options
  /// keep_constant of theirs; tensor_store::keep() puts those of large models in a file.
  std::function<tensor(tensor made)> keep_constant = {};
};

namespace detail {

/// The options of static quantization for a job whose method is not searched.
[[nodiscard]] inline static_quantization_options static_options_of(const quantization_job& job,
                                                                   const executor_options& runner) {
  static_quantization_options options{.method = job.method == "auto" ? "minmax" : job.method,
                                      .activations = job.activations,
                                      .weights = job.weights,
                                      .scope = job.scope};
  options.executor = runner;
  if (job.percentile != 0.0) {
    options.activations.observer.percentile = job.percentile;
  }
  options.bias.kind = job.bias_correction == "fast"   ? bias_correction::fast
                      : job.bias_correction == "full" ? bias_correction::full
                                                      : bias_correction::none;
  return options;
}

/// The options of weight-only quantization for a job.
[[nodiscard]] inline weight_only_options weight_only_options_of(const quantization_job& job,
                                                                const executor_options& runner) {
  weight_only_options options{.bits = job.bits == 0 ? 4 : job.bits,
                              .block_size = job.block_size,
                              .algorithm = job.weight_algorithm};
  // As published. With integer zero points and the scale of the range, no code would change.
  options.hqq.real_zero_points = true;
  options.scales = job.weights.scale;
  options.executor = runner;
  options.scope = job.scope;
  return options;
}

/// A function for activation_options::on_parameters that notes parameters in an outcome.
[[nodiscard]] inline auto noted_parameters(quantization_outcome& o) {
  return [&o](const std::string& name, const std::string& method, const scale_solution& s) {
    o.solutions[name] = s;
    o.methods[name] = method;
  };
}

/// Takes the model from the parts of static quantization.
inline void finish_static(const quantization_job& job, const quantization_run& run,
                          quantization_outcome& o) {
  if (run.on_parts) {
    run.on_parts(o.parts);
  }
  o.result = std::move(o.parts->result);
  o.layers = o.parts->plan.layers().size();
  if (job.format == "qoperator") {
    to_qoperator(o.result);
  }
}

/// Adds to options of weight-only quantization what an outcome and a run note.
inline void note_weights(weight_only_options& options, const quantization_run& run,
                         quantization_outcome& o) {
  options.keep_constant = run.keep_constant;
  options.on_layer = [&o](const weight_only_layer&) { ++o.layers; };
  if (run.on_progress) {
    options.on_solved = [&run](std::size_t done, std::size_t total) {
      run.on_progress({.step = "solving weights", .done = done, .total = total});
    };
  }
}

inline void quantize_statically(const quantization_job& job, const model& m,
                                const calibration_source& samples, const quantization_run& run,
                                quantization_outcome& o) {
  // Without a float output there is nothing to measure by.
  const bool can_be_judged = std::any_of(m.outputs.begin(), m.outputs.end(),
                                         [](const value_info& v) { return fits_float(v.type); });
  if (job.method == "auto" && can_be_judged) {
    automatic_quantization_options options{
        .activations = job.activations, .weights = job.weights, .scope = job.scope};
    options.activations.on_parameters = noted_parameters(o);
    options.executor = run.executor;
    options.on_step = [&o](const quantization_step& s) { o.steps.push_back(s); };
    options.on_progress = run.on_progress;
    if (job.budget) {
      options.budget.limit = search_budget::seconds(*job.budget);
    }
    o.parts = automatic_quantization(m, samples, options);
  } else {
    static_quantization_options options = static_options_of(job, run.executor);
    options.activations.on_parameters = noted_parameters(o);
    o.parts = static_quantization(m, samples, options);
  }
  finish_static(job, run, o);
}

inline void quantize_dynamically(const quantization_job& job, const model& m,
                                 const calibration_source& samples, const quantization_run& run,
                                 quantization_outcome& o) {
  dynamic_quantization_options options{.weights = job.weights, .scope = job.scope};
  options.weight_type = job.weight_type;
  options.keep_constant = run.keep_constant;
  options.executor = run.executor;
  const std::vector<std::string> unsupported = unsupported_nodes(m);
  require(unsupported.empty() || job.bias_correction != "fast", error_kind::unsupported, job.prefix,
          "bias-correction fast has to run the model, and there is no operator for ",
          unsupported.empty() ? std::string() : unsupported[0]);
  o.result =
      quantize_dynamic(m, options, job.bias_correction == "none" ? calibration_source() : samples);
  for (const node& n : o.result.nodes) {
    const bool is_layer =
        n.is("ConvInteger") || n.is("MatMulInteger") || n.op_type == "DynamicQuantizeLSTM";
    o.layers += is_layer ? 1U : 0U;
  }
}

inline void quantize_weights_as_told(const quantization_job& job, const model& m,
                                     const calibration_source& samples, const quantization_run& run,
                                     quantization_outcome& o) {
  weight_only_options options = weight_only_options_of(job, run.executor);
  note_weights(options, run, o);
  o.result = quantize_weights_only(m, options, samples);
}

}  // namespace detail

/// Quantizes a model as a job says. `samples` may be empty if job.needs_samples is. Throws what
/// automatic_quantization(), static_quantization(), quantize_dynamic() and quantize_weights_only()
/// throw, and what callbacks throw.
[[nodiscard]] DETENT_GRAPH_DECL quantization_outcome
quantize_as_told(const quantization_job& job, const model& m, const calibration_source& samples,
                 const quantization_run& run = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization_outcome quantize_as_told(const quantization_job& job, const model& m,
                                                        const calibration_source& samples,
                                                        const quantization_run& run) {
  quantization_outcome o;
  if (job.approach == "static") {
    detail::quantize_statically(job, m, samples, run, o);
  } else if (job.approach == "dynamic") {
    detail::quantize_dynamically(job, m, samples, run, o);
  } else {
    detail::quantize_weights_as_told(job, m, samples, run, o);
  }
  return o;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_CONFIGURATION_QUANTIZE_AS_TOLD_HPP
