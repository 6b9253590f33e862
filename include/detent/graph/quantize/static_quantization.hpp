// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/quantize/ turns float models into quantized ones: static quantization with
// calibration samples, automatic choice of its settings, dynamic and weight-only quantization,
// accuracy control, and their parts. It may include its own headers, graph/model/, graph/ops/,
// graph/run/, graph/learn/, graph/rewrite/ and everything below the graph part; it must not
// include any folder above it, such as graph/ppq/ or graph/nncf/.
//
// This header holds post-training static quantization: ranges come from calibration samples, and
// the result is an ONNX model with QuantizeLinear/DequantizeLinear pairs (QDQ; qoperator.hpp has
// the other form).
//
//   activations  uint8 or int8, per tensor                        by any observer of the registry
//   weights      int8, symmetric -127..127, per output channel    (or per tensor)
//                of Conv, ConvTranspose, Gemm and MatMul
//   bias         int32, scale = x_scale * w_scale, zero point 0
//
//   plan (what)  ->  calibrate (ranges)  ->  layer weights  ->  bias correction  ->  QDQ
#ifndef DETENT_GRAPH_QUANTIZE_STATIC_QUANTIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_STATIC_QUANTIZATION_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/partial_quantization.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observer_registry.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Options of static_quantization().
struct static_quantization_options {
  /// Name of the observer of the activations; `activations.observers` must have it. "isotone" is
  /// applied only to values that classifiers rank: values of rank 2 that the model returns or a
  /// Softmax takes. Other activations get "minmax" then.
  std::string method = "minmax";
  activation_options activations = {};  ///< Type, observers and overrides of the activations.
  layer_weight_options weights = {};    ///< Scales, bits and levels of the weights.
  /// Bias correction; by default there is none.
  bias_correction_options bias = {.kind = bias_correction::none};
  /// Calibration samples, at most, that bias correction is judged by: it is taken back if the noise
  /// of the model's outputs, as output_judge measures it by logits, grows. 0: it is not judged. Nor
  /// is it if no output is float. Memory: these samples with their float results.
  std::size_t judge_samples = 64;
  quantization_scope scope = {};  ///< Nodes that stay in float, and settings of single operators.
  /// Options of the executors that run models here; `parallel` is used by solvers, too.
  executor_options executor = {};
};

namespace detail {

/// The observers of all values of a plan. Throws invalid_argument for an unknown method, an
/// override that cannot be applied, and an activation type that is neither u8 nor s8.
[[nodiscard]] DETENT_GRAPH_DECL std::vector<observed_value> activation_observers(
    const quantization_plan& plan, const static_quantization_options& options);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<observed_value> activation_observers(
    const quantization_plan& plan, const static_quantization_options& options) {
  const observer_options observer = activation_observer(options.activations, options.method);
  for (const auto& [name, other] : options.activations.overrides) {
    require_override(plan, name, other, observer, options.activations.observers);
  }
  std::vector<observed_value> observed;
  for (const std::string& name : plan.values()) {
    const std::string own = own_method(plan, name, options.activations.overrides);
    observed.push_back({name, observer_for(plan, name, own.empty() ? options.method : own, observer,
                                           options.activations.observers)});
  }
  return observed;
}
#endif

/// The parameters of all values of a plan, by their names, from observers that have seen all
/// samples.
[[nodiscard]] DETENT_GRAPH_DECL std::map<std::string, quant_params> solved_activations(
    const quantization_plan& plan, const std::vector<observed_value>& observed,
    const static_quantization_options& options);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::map<std::string, quant_params> solved_activations(
    const quantization_plan& plan, const std::vector<observed_value>& observed,
    const static_quantization_options& options) {
  const quant_scheme scheme = activation_scheme(options.activations);
  std::map<std::string, quant_params> params;
  for (const observed_value& v : observed) {
    const scale_solution s = solution_of(plan, v, scheme, options.activations.overrides);
    params[v.name] = s.params;
    if (options.activations.on_parameters && plan.root(v.name) == v.name) {
      options.activations.on_parameters(
          v.name, method_name(plan, v.name, options.activations.overrides, options.method), s);
    }
  }
  share_parameters(plan, params);
  return params;
}
#endif

}  // namespace detail

/// Finds the parameters of all values of a plan, by the name of the value: one pass over the
/// samples for all of them together, or two if an observer needs that. Throws invalid_argument:
/// there are no samples; a value holds NaN or infinity (naming it and the sample); a method is
/// unknown; an override cannot be applied; the activation type is neither u8 nor s8.
[[nodiscard]] DETENT_GRAPH_DECL std::map<std::string, quant_params> calibrate_activations(
    const quantization_plan& plan, const calibration_source& samples,
    const static_quantization_options& options);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::map<std::string, quant_params> calibrate_activations(
    const quantization_plan& plan, const calibration_source& samples,
    const static_quantization_options& options) {
  std::vector<observed_value> observed = detail::activation_observers(plan, options);
  calibrate(plan.float_model(), observed, samples, options.executor);
  return detail::solved_activations(plan, observed, options);
}
#endif

/// Quantizes the weights of all layers of a plan; the result is by the index of the node.
/// `activations` must have the parameters of all layers' inputs, because the biases have to fit
/// their scales. Throws invalid_argument, naming the tensor or the node, if one is missing, a
/// weight or bias is not finite, or the number of bits is not in 2..8.
[[nodiscard]] DETENT_GRAPH_DECL std::map<std::size_t, layer_weights> quantize_layers(
    const quantization_plan& plan, const std::map<std::string, quant_params>& activations,
    const static_quantization_options& options);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::map<std::size_t, layer_weights> quantize_layers(
    const quantization_plan& plan, const std::map<std::string, quant_params>& activations,
    const static_quantization_options& options) {
  std::map<std::size_t, layer_weights> layers;
  for (const std::size_t i : plan.layers()) {
    const node& n = plan.float_model().nodes[i];
    layers.emplace(
        i, quantize_layer_weights(
               plan, i,
               detail::entry_of(activations, n.inputs[0], "parameters for the activation").scale,
               with_settings(options.weights, plan.settings(i)), options.executor.parallel));
  }
  return layers;
}
#endif

namespace detail {

/// Corrects the biases of a quantization whose model has been written, and writes the model again.
/// Takes that back if the outputs get worse.
inline void correct_if_better(quantization& q, const calibration_source& samples,
                              const static_quantization_options& options) {
  const model& float_model = q.plan.float_model();
  const bool is_judged =
      options.judge_samples > 0 &&
      std::any_of(float_model.outputs.begin(), float_model.outputs.end(), [&](const value_info& v) {
        const auto known = q.plan.known().find(v.name);
        return fits_float(v.type) ||
               (known != q.plan.known().end() && fits_float(known->second.type()));
      });
  if (!is_judged) {
    static_cast<void>(
        correct_biases(q.plan, q.parameters, samples, options.bias, options.executor));
    q.result = write_qdq(q.plan, q.parameters);
    return;
  }
  quantization corrected = q;
  static_cast<void>(
      correct_biases(corrected.plan, q.parameters, samples, options.bias, options.executor));
  corrected.result = write_qdq(corrected.plan, q.parameters);
  const output_judge judge(float_model, samples, options.judge_samples, true, options.executor);
  if (judge.noise_to_signal(corrected.result) <= judge.noise_to_signal(q.result)) {
    q.plan = std::move(corrected.plan);
    q.result = std::move(corrected.result);
  } else {
    q.bias_correction_taken_back = true;
  }
}

}  // namespace detail

/// Quantizes a float model with ranges from calibration samples: activations to uint8 or int8,
/// weights to int8, biases to int32. The result holds the plan, the parameters, and a model with
/// QuantizeLinear/DequantizeLinear pairs; for_execution() prepares it for an executor,
/// to_qoperator() converts it to integer operators for files.
///
/// @code{.cpp}
/// #include <cstddef>
/// #include <map>
/// #include <optional>
/// #include <string>
/// #include <utility>
/// #include <vector>
///
/// #include <detent/graph/onnx.hpp>
/// #include <detent/graph/quantize/static_quantization.hpp>
///
/// namespace graph = detent::graph;
/// using sample = std::map<std::string, graph::tensor>;  // inputs of one run, by name
///
/// void quantize_file(std::vector<sample> samples) {
///   const graph::calibration_source source = [samples = std::move(samples),
///                                             at = std::size_t{0}]() mutable {
///     const bool ended = at == samples.size();
///     std::optional<sample> next = ended ? std::nullopt : std::optional<sample>(samples[at]);
///     at = ended ? 0 : at + 1;  // the call after the end starts the next pass
///     return next;
///   };
///   graph::static_quantization_options options;
///   options.method = "percentile";
///   const graph::quantization q =
///       graph::static_quantization(graph::read_onnx("float.onnx"), source, options);
///   graph::write_onnx(q.result, "int8.onnx");
/// }
/// @endcode
///
/// `samples` is drawn once for each pass that the observers need, and again for bias correction,
/// which is taken back if it makes the outputs worse (`judge_samples`).
/// Each sample is run through the float executor; all values of the model are observed in the same
/// pass.
///
/// Nodes that the executor cannot run, because it has no operator for them or because they need the
/// results of such nodes, stay in float; `not_run` in the result says which and why.
///
/// Throws unsupported if the model is quantized already, or its opset is below 7 or beyond
/// newest_opset; bad_file for a node with a wrong number of inputs or outputs; invalid_argument if
/// there are no samples, if a tensor holds NaN or infinity (naming it), if a method is unknown
/// (listing those that exist), for a type of activations other than u8 and s8, for bits of
/// activations or weights outside of 2..8, if an ignored name or a rule matches nothing, or if an
/// override cannot be applied.
[[nodiscard]] DETENT_GRAPH_DECL quantization static_quantization(
    model m, const calibration_source& samples, const static_quantization_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization static_quantization(model m, const calibration_source& samples,
                                                   const static_quantization_options& options) {
  // Errors in the options come before anything is run.
  static_cast<void>(detail::activation_observer(options.activations, options.method));
  return detail::quantize_runnable_part(
      std::move(m), options.scope, [&](model runnable, const quantization_scope& scope) {
        quantization q{quantization_plan(std::move(runnable), scope), {}, {}};
        q.parameters.activation_type = options.activations.type;
        q.parameters.activation_bits = options.activations.bits;
        q.parameters.activations = calibrate_activations(q.plan, samples, options);
        q.parameters.layers = quantize_layers(q.plan, q.parameters.activations, options);
        q.result = write_qdq(q.plan, q.parameters);
        if (options.bias.kind != bias_correction::none) {
          detail::correct_if_better(q, samples, options);
        }
        return q;
      });
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_STATIC_QUANTIZATION_HPP
