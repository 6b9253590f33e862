// SPDX-License-Identifier: BSD-3-Clause
// The room graph/quantize/ turns float models into quantized ones: static quantization with
// calibration samples, automatic choice of its settings, dynamic and weight-only quantization,
// accuracy control, and their parts. It may include its own headers, graph/model/, graph/ops/,
// graph/run/, graph/rewrite/ and everything below the graph floor; it must not include any room
// above it, such as graph/ppq/ or graph/nncf/.
//
// This header holds post-training static quantization: ranges come from calibration samples, and
// the result is an ONNX model with QuantizeLinear/DequantizeLinear pairs (QDQ; qoperator.hpp has
// the other form).
//
//   activations  uint8 or int8, per tensor                        by any observer of the registry
//   weights      int8, symmetric -127..127, per output channel    (or per tensor)
//   bias         int32, scale = x_scale * w_scale, zero point 0
//
//   plan (what)  ->  calibrate (ranges)  ->  layer weights  ->  bias correction  ->  QDQ
#ifndef DETENT_GRAPH_QUANTIZE_STATIC_QUANTIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_STATIC_QUANTIZATION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observer_registry.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Sets the parameters of one activation; exactly one member must be set. A value whose elements
/// are only moved from another value has the parameters of that value, and cannot have an override.
struct activation_override {
  std::optional<quant_params> params = {};  ///< Scale and zero point.
  /// A range, which is extended to contain 0; parameters are computed from it.
  std::optional<value_range> range = {};
  std::string method = {};  ///< Name of the observer that finds the parameters.
};

/// Options of static_quantization().
struct static_quantization_options {
  /// Whether weights have one scale for each output channel, or else one for the tensor.
  bool per_channel = true;
  /// Name of the observer of the activations; make_observer() must know it. "isotone" is applied
  /// only to values that classifiers rank: values of rank 2 that the model returns or a Softmax
  /// takes. Other activations get "minmax" then.
  std::string method = "minmax";
  /// Options of the observers; the scheme is set from the activation type.
  observer_options observer = {};
  /// Called with each activation that is quantized, in the order of names, its parameters, and the
  /// name of the observer that they are from, or "given" if `activations` sets them.
  std::function<void(const std::string& value, const std::string& method,
                     const scale_solution& solution)>
      on_parameters = {};
  /// Options of the executors that run models here; `parallel` is used by solvers, too.
  executor_options executor = {};
  element_type activation_type = element_type::u8;  ///< Type of the activations: u8 or s8.
  /// Whether the zero point is 0 with s8 (levels -127..127) and 128 with u8.
  bool symmetric_activations = false;
  weight_scale weights = weight_scale::absmax;  ///< How the scales of the weights are chosen.
  bool reduce_range = false;                    ///< Whether weights have 7 bits: levels -64..64.
  /// Bias correction; by default there is none.
  bias_correction_options bias = {.kind = bias_correction::none};
  ignored_scope ignored = {};     ///< Nodes that stay in float.
  operator_rules operators = {};  ///< Settings for single operators.
  /// Parameters, ranges or observers of single activations, by the name of the value.
  std::map<std::string, activation_override> activations = {};
};

namespace detail {

/// The scheme of the activations. Throws invalid_argument for types other than u8 and s8.
[[nodiscard]] inline quant_scheme activation_scheme(const static_quantization_options& o) {
  require(o.activation_type == element_type::u8 || o.activation_type == element_type::s8,
          error_kind::invalid_argument, "activations of type ", graph::name(o.activation_type),
          "; they are uint8 or int8");
  if (o.activation_type == element_type::u8) {
    return o.symmetric_activations ? symmetric<std::uint8_t> : asymmetric<std::uint8_t>;
  }
  return o.symmetric_activations ? symmetric<std::int8_t> : asymmetric<std::int8_t>;
}

/// The options that observers are made with. Throws invalid_argument if the method is unknown.
[[nodiscard]] inline observer_options activation_observer(const static_quantization_options& o) {
  observer_options with_scheme = o.observer;
  with_scheme.scheme = activation_scheme(o);
  static_cast<void>(make_observer(o.method, with_scheme));
  return with_scheme;
}

/// Whether a value is one that a classifier ranks, for which static_quantization_options::method
/// allows "isotone".
[[nodiscard]] inline bool is_ranked(const quantization_plan& plan, const std::string& value) {
  const model& m = plan.float_model();
  const auto found = plan.known().find(value);
  if (found == plan.known().end() || found->second.rank() != 2) {
    return false;
  }
  return m.is_output(value) || std::any_of(m.nodes.begin(), m.nodes.end(), [&](const node& n) {
           return n.is("Softmax") && !n.inputs.empty() && n.inputs[0] == value;
         });
}

/// The observer of one value. Constants, values whose elements are only moved, and values that
/// "isotone" does not apply to get a min_max_observer.
[[nodiscard]] inline any_observer observer_for(const quantization_plan& plan,
                                               const std::string& value, const std::string& method,
                                               const observer_options& options) {
  const std::string name = detent::detail::lower_case(method);
  const bool ranks = name == "isotone" || name == "ppq.isotone";
  const bool range_only = plan.float_model().initializer(value) != nullptr ||
                          plan.root(value) != value || (ranks && !is_ranked(plan, value));
  return range_only ? any_observer(min_max_observer()) : make_observer(method, options);
}

/// Throws invalid_argument, naming the value, if an override cannot be applied: the value is not
/// quantized or only moved from another one, not exactly one member is set, the type does not have
/// the scale or zero point, or the method is unknown.
inline void require_override(const quantization_plan& plan, const std::string& name,
                             const activation_override& own, const observer_options& options) {
  require(plan.values().count(name) != 0, error_kind::invalid_argument, "activation '", name,
          "' has parameters of its own, but is not quantized");
  require(plan.root(name) == name, error_kind::invalid_argument, "activation '", name,
          "' has parameters of its own, but is made by moving elements of '", plan.root(name),
          "': it has those");
  const int members =
      int{own.params.has_value()} + int{own.range.has_value()} + int{!own.method.empty()};
  require(members == 1, error_kind::invalid_argument, "activation '", name, "' is given ", members,
          " of parameters, range and method; it takes one");
  if (!own.method.empty()) {
    of_tensor(name, [&] { static_cast<void>(make_observer(own.method, options)); });
  }
  if (own.params) {
    const grid levels =
        options.scheme.levels.qmin < 0 ? full_grid<std::int8_t> : full_grid<std::uint8_t>;
    of_tensor(name, [&] {
      detent::detail::require_scale(own.params->scale, "parameters of its own");
      detent::detail::require_zero_point(own.params->zero_point, levels, "parameters of its own");
    });
  }
}

/// The method that an override or a rule asks for; empty if there is none.
[[nodiscard]] inline std::string own_method(
    const quantization_plan& plan, const std::string& name,
    const std::map<std::string, activation_override>& overrides) {
  const auto own = overrides.find(name);
  return own != overrides.end() && !own->second.method.empty() ? own->second.method
                                                               : plan.method(name);
}

/// Where the parameters of a value come from: "given", or the name of an observer.
[[nodiscard]] inline std::string method_name(
    const quantization_plan& plan, const std::string& name,
    const std::map<std::string, activation_override>& overrides, const std::string& otherwise) {
  const auto own = overrides.find(name);
  if (own != overrides.end() && own->second.method.empty()) {
    return "given";
  }
  const std::string method = own_method(plan, name, overrides);
  return method.empty() ? otherwise : method;
}

/// The parameters that an observer found, or those that an override gives instead.
[[nodiscard]] inline scale_solution solution_of(
    const observed_value& v, const quant_scheme& scheme,
    const std::map<std::string, activation_override>& overrides) {
  return of_tensor(v.name, [&] {
    scale_solution s = v.observer.finalize(scheme);
    const auto own = overrides.find(v.name);
    if (own != overrides.end() && (own->second.params || own->second.range)) {
      s.params =
          own->second.params ? *own->second.params : params_from_range(*own->second.range, scheme);
      s.evidence.method = "override";
    }
    return s;
  });
}

/// Gives values whose elements are only moved the parameters of the values that they are moved
/// from.
inline void share_parameters(const quantization_plan& plan,
                             std::map<std::string, quant_params>& params) {
  for (auto& [name, p] : params) {
    const auto found = params.find(plan.root(name));
    p = found->second;
  }
}

}  // namespace detail

/// Finds the parameters of all values of a plan, by the name of the value: one pass over the
/// samples for all of them together, or two if an observer needs that. Throws invalid_argument:
/// there are no samples; a value holds NaN or infinity (naming it and the sample); a method is
/// unknown; an override cannot be applied; the activation type is neither u8 nor s8.
[[nodiscard]] inline std::map<std::string, quant_params> calibrate_activations(
    const quantization_plan& plan, const calibration_source& samples,
    const static_quantization_options& options) {
  const observer_options observer = detail::activation_observer(options);
  for (const auto& [name, other] : options.activations) {
    detail::require_override(plan, name, other, observer);
  }
  std::vector<observed_value> observed;
  for (const std::string& name : plan.values()) {
    const std::string own = detail::own_method(plan, name, options.activations);
    observed.push_back(
        {name, detail::observer_for(plan, name, own.empty() ? options.method : own, observer)});
  }
  calibrate(plan.float_model(), observed, samples, options.executor);
  std::map<std::string, quant_params> params;
  for (const observed_value& v : observed) {
    const scale_solution s = detail::solution_of(v, observer.scheme, options.activations);
    params[v.name] = s.params;
    if (options.on_parameters && plan.root(v.name) == v.name) {
      options.on_parameters(
          v.name, detail::method_name(plan, v.name, options.activations, options.method), s);
    }
  }
  detail::share_parameters(plan, params);
  return params;
}

/// Quantizes the weights of all layers of a plan; the result is by the index of the node.
/// `activations` must have the parameters of all layers' inputs, because the biases have to fit
/// their scales. Throws invalid_argument, naming the tensor or the node, if a weight or bias is not
/// finite or the number of bits is not in 2..8.
[[nodiscard]] inline std::map<std::size_t, layer_weights> quantize_layers(
    const quantization_plan& plan, const std::map<std::string, quant_params>& activations,
    const static_quantization_options& options) {
  std::map<std::size_t, layer_weights> layers;
  const layer_weight_options weights{.per_channel = options.per_channel,
                                     .scale = options.weights,
                                     .reduce_range = options.reduce_range,
                                     .parallel = options.executor.parallel};
  for (const std::size_t i : plan.layers()) {
    const node& n = plan.float_model().nodes[i];
    layers.emplace(i,
                   quantize_layer_weights(plan.float_model(), n, activations.at(n.inputs[0]).scale,
                                          with_settings(weights, plan.settings(i))));
  }
  return layers;
}

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
/// `samples` is drawn once for each pass that the observers need, and again for bias correction.
/// Each sample is run through the float executor; all values of the model are observed in the same
/// pass.
///
/// Throws unsupported if the model is quantized already, or if the executor lacks an operator
/// (naming it); invalid_argument if there are no samples, if a tensor holds NaN or infinity (naming
/// it), if a method is unknown (listing those that exist), if an ignored name or a rule matches
/// nothing, or if an override cannot be applied.
[[nodiscard]] inline quantization static_quantization(
    model m, const calibration_source& samples, const static_quantization_options& options = {}) {
  static_cast<void>(detail::activation_observer(options));  // errors before anything is run
  quantization q{quantization_plan(std::move(m), options.ignored, options.operators), {}, {}};
  q.parameters.activation_type = options.activation_type;
  q.parameters.activations = calibrate_activations(q.plan, samples, options);
  q.parameters.layers = quantize_layers(q.plan, q.parameters.activations, options);
  static_cast<void>(correct_biases(q.plan, q.parameters, samples, options.bias, options.executor));
  q.result = write_qdq(q.plan, q.parameters);
  return q;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_STATIC_QUANTIZATION_HPP
