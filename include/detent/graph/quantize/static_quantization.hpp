// SPDX-License-Identifier: BSD-3-Clause
// Post-training static quantization: ranges from calibration samples, the result as an ONNX model
// with QuantizeLinear/DequantizeLinear pairs (QDQ; see qoperator.hpp for the other form).
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

/// What is different for one activation: one of the members is set. A value whose elements are only
/// moved has the parameters of what they are moved from, and none of its own.
struct activation_override {
  std::optional<quant_params> params = {};  // these
  std::optional<value_range> range = {};    // from this range, which is made to hold 0
  std::string method = {};                  // by another observer
};

struct static_quantization_options {
  bool per_channel = true;  // one weight scale for each output channel, or one for the tensor
  /// Of the activations: a name that make_observer() knows. "isotone" is for what classifiers rank,
  /// results of rank 2 that the model returns or a Softmax takes; other activations have "minmax"
  /// then.
  std::string method = "minmax";
  observer_options observer = {};  // what it is made with; the scheme is set
  /// Told of each activation that is quantized, in the order of names, and of the observer that its
  /// parameters are from, or "given".
  std::function<void(const std::string& value, const std::string& method,
                     const scale_solution& solution)>
      on_parameters = {};
  executor_options executor = {};
  element_type activation_type = element_type::u8;  // or s8
  bool symmetric_activations = false;               // zero point 0 of s8 (-127..127), 128 of u8
  weight_scale weights = weight_scale::absmax;
  bool reduce_range = false;  // weights of 7 bits
  bias_correction_options bias = {.kind = bias_correction::none};
  ignored_scope ignored = {};
  operator_rules operators = {};  // what is different for some of them
  std::map<std::string, activation_override> activations = {};  // by name of the value
};

namespace detail {

[[nodiscard]] inline quant_scheme activation_scheme(const static_quantization_options& o) {
  require(o.activation_type == element_type::u8 || o.activation_type == element_type::s8,
          error_kind::invalid_argument, "activations of type ", graph::name(o.activation_type),
          "; they are uint8 or int8");
  if (o.activation_type == element_type::u8) {
    return o.symmetric_activations ? symmetric<std::uint8_t> : asymmetric<std::uint8_t>;
  }
  return o.symmetric_activations ? symmetric<std::int8_t> : asymmetric<std::int8_t>;
}

/// What observers are made with. Throws if there is no such method.
[[nodiscard]] inline observer_options activation_observer(const static_quantization_options& o) {
  observer_options with_scheme = o.observer;
  with_scheme.scheme = activation_scheme(o);
  static_cast<void>(make_observer(o.method, with_scheme));
  return with_scheme;
}

/// Whether the value is what a classifier ranks; see static_quantization_options::method.
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

/// The observer of one value: constants are what they are, and elements that are only moved take
/// the parameters of others.
[[nodiscard]] inline any_observer observer_for(const quantization_plan& plan,
                                               const std::string& value, const std::string& method,
                                               const observer_options& options) {
  const std::string name = detent::detail::lower_case(method);
  const bool ranks = name == "isotone" || name == "ppq.isotone";
  const bool range_only = plan.float_model().initializer(value) != nullptr ||
                          plan.root(value) != value || (ranks && !is_ranked(plan, value));
  return range_only ? any_observer(min_max_observer()) : make_observer(method, options);
}

/// Throws invalid_argument naming the value: one that is not quantized or only moved, not exactly
/// one member, a scale or a zero point that the type does not have, an unknown method.
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

/// The method that is wished for one value, by itself or by a rule; empty: none.
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

/// What an observer found, or what is said of the value instead.
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

/// Elements that are only moved keep the parameters they have.
inline void share_parameters(const quantization_plan& plan,
                             std::map<std::string, quant_params>& params) {
  for (auto& [name, p] : params) {
    const auto found = params.find(plan.root(name));
    p = found->second;
  }
}

}  // namespace detail

/// Finds the parameters of all values of a plan: one pass over the samples for all of them together
/// (two, if an observer wants that). Throws as static_quantization().
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

/// The integer weights of all layers of a plan.
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

/// Quantizes a float model. `samples` is drawn until it is empty, once for each pass that the
/// observer wants; each sample is run through the float executor, all tensors together. Throws
/// unsupported (naming the operator that cannot be run, or if the model is quantized already),
/// invalid_argument (no samples, NaN or infinity in a tensor, naming it; an unknown method, naming
/// those that there are; an ignored name or a rule that matches nothing; an override that cannot
/// be).
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
