// SPDX-License-Identifier: BSD-3-Clause
// How the scales and zero points of activations are found: the options that static quantization and
// automatic quantization have in common, and the parts that apply them.
#ifndef DETENT_GRAPH_QUANTIZE_ACTIVATION_OPTIONS_HPP
#define DETENT_GRAPH_QUANTIZE_ACTIVATION_OPTIONS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/activation_levels.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
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

/// How activations are quantized: the options that static_quantization() and
/// automatic_quantization() have in common.
struct activation_options {
  /// Type of the activations: u8 or s8. ONNX Runtime 1.32 refuses models of opset 21 and later
  /// where values of s8 go through a MaxPool, Reshape, Squeeze or Transpose, unless its extended
  /// optimizations are off.
  element_type type = element_type::u8;
  /// Bits of the activations, 2..8: levels 0 .. 2^bits - 1 with u8, -2^(bits - 1) ..
  /// 2^(bits - 1) - 1 with s8. With fewer than 8, the model has a Clip before each QuantizeLinear.
  std::size_t bits = 8;
  /// Whether the zero point is 0 with s8 and 2^(bits - 1) with u8. With s8, the range is that of
  /// the levels -(2^(bits - 1) - 1) .. 2^(bits - 1) - 1; values beyond it may take the lowest
  /// level.
  bool symmetric = false;
  /// Options of the observers; the scheme is set from the type. Histograms are sparse by default,
  /// because there is one for each activation.
  observer_options observer = {.storage = bin_storage::sparse};
  /// The observers that methods name. A copy of default_observers() takes observers of your own.
  observer_registry observers = default_observers();
  /// Parameters, ranges or observers of single activations, by the name of the value. The trials of
  /// automatic_quantization() do not vary them.
  std::map<std::string, activation_override> overrides = {};
  /// Called with each activation that is quantized, in the order of names, its final parameters,
  /// and the name of the observer that they are from, or "given" if `overrides` sets them.
  std::function<void(const std::string& value, const std::string& method,
                     const scale_solution& solution)>
      on_parameters = {};
};

namespace detail {

/// The scheme of the activations. Throws invalid_argument for types other than u8 and s8, and for
/// numbers of bits other than 2..8.
[[nodiscard]] inline quant_scheme activation_scheme(const activation_options& o) {
  require(o.type == element_type::u8 || o.type == element_type::s8, error_kind::invalid_argument,
          "activations of type ", graph::name(o.type), "; they are uint8 or int8");
  require(o.bits >= 2 && o.bits <= 8, error_kind::invalid_argument, "activations of ", o.bits,
          " bits, expected 2..8");
  grid levels = activation_levels(o.type, o.bits);
  levels.qmin += o.symmetric && levels.qmin < 0 ? 1 : 0;
  return {levels, o.symmetric};
}

/// The options that observers are made with. Throws invalid_argument if the method is unknown.
[[nodiscard]] inline observer_options activation_observer(const activation_options& o,
                                                          const std::string& method) {
  observer_options with_scheme = o.observer;
  with_scheme.scheme = activation_scheme(o);
  static_cast<void>(make_observer(method, with_scheme, o.observers));
  return with_scheme;
}

/// The observer of one value. Constants, values whose elements are only moved, and values that
/// "isotone" does not apply to get a min_max_observer.
[[nodiscard]] inline any_observer observer_for(const quantization_plan& plan,
                                               const std::string& value, const std::string& method,
                                               const observer_options& options,
                                               const observer_registry& observers) {
  const std::string name = detent::detail::lower_case(method);
  const bool ranks = name == "isotone" || name == "ppq.isotone";
  const bool range_only = plan.float_model().initializer(value) != nullptr ||
                          plan.root(value) != value || (ranks && !plan.is_ranked(value));
  return range_only ? any_observer(min_max_observer()) : make_observer(method, options, observers);
}

/// Throws invalid_argument, naming the value, if an override cannot be applied: the value is not
/// quantized or only moved from another one, not exactly one member is set, the type does not have
/// the scale or zero point, or the method is unknown.
inline void require_override(const quantization_plan& plan, const std::string& name,
                             const activation_override& own, const observer_options& options,
                             const observer_registry& observers) {
  // What widen_floats() calls the value of an input or output of 16 bits.
  const std::string inner = name + "_float32";
  require(plan.values().count(name) != 0, error_kind::invalid_argument, "activation '", name,
          "' has parameters of its own, but is not quantized",
          plan.values().count(inner) != 0 ? "; '" + inner + "' is" : "");
  require(plan.root(name) == name, error_kind::invalid_argument, "activation '", name,
          "' has parameters of its own, but is made by moving elements of '", plan.root(name),
          "': it has those");
  const int members =
      int{own.params.has_value()} + int{own.range.has_value()} + int{!own.method.empty()};
  require(members == 1, error_kind::invalid_argument, "activation '", name, "' is given ", members,
          " of parameters, range and method; it takes one");
  if (!own.method.empty()) {
    of_tensor(name, [&] { static_cast<void>(make_observer(own.method, options, observers)); });
  }
  if (own.params) {
    // All levels of the type and number of bits, also the lowest one that a symmetric scheme
    // spares.
    grid levels = options.scheme.levels;
    levels.qmin = levels.qmin < 0 ? -levels.qmax - 1 : 0;
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

/// Parameters whose range does not exceed the bounds of the values, extended to contain 0: `p` if
/// that is so, else those of the range between the bounds. Observers of histograms may choose a
/// range that is a little wider than any value, and the rounding of a zero point or a scale may
/// move an end beyond a bound; then the scale is lowered, with the zero point beside it if that
/// lowers it less. If that would take more than 2 % of the range, as with few bits, or with a
/// symmetric scheme and bounds that differ, the range is left as it is. A wider range does no harm
/// to the values, but releases 1.21 to 1.30 of ONNX Runtime refuse a model whose Clip has narrower
/// bounds than the QuantizeLinear behind it.
[[nodiscard]] inline quant_params within_bounds(const quant_params& p, const quant_scheme& scheme,
                                                const activation_bounds& bounds) {
  const value_range most{(std::min)(bounds.lower, 0.0F), (std::max)(bounds.upper, 0.0F)};
  const auto range_of = [&](const quant_params& q) {
    const auto real = [&](std::int32_t level) {
      return q.scale * static_cast<float>(level - q.zero_point);
    };
    return value_range{real(scheme.levels.qmin), real(scheme.levels.qmax)};
  };
  const auto is_within = [&](const quant_params& q) {
    const value_range r = range_of(q);
    return (r.lower >= most.lower || scheme.symmetric) && r.upper <= most.upper;
  };
  if (is_within(p)) {
    return p;
  }
  const value_range r = range_of(p);
  const quant_params between = params_from_range(
      {(std::max)(r.lower, bounds.lower), (std::min)(r.upper, bounds.upper)}, scheme);
  if (is_within(between)) {
    return between;
  }
  quant_params best{0.0F, between.zero_point};
  for (const std::int32_t d : {0, -1, 1}) {
    quant_params q{between.scale, between.zero_point + d};
    const std::int32_t below = scheme.symmetric ? 0 : q.zero_point - scheme.levels.qmin;
    const std::int32_t above = scheme.levels.qmax - q.zero_point;
    if ((scheme.symmetric && d != 0) || below < 0 || above < 0) {
      continue;
    }
    if (above > 0) {
      q.scale = (std::min)(q.scale, most.upper / static_cast<float>(above));
    }
    if (below > 0) {
      q.scale = (std::min)(q.scale, -most.lower / static_cast<float>(below));
    }
    while (q.scale > 0.0F && !is_within(q)) {
      q.scale = std::nextafter(q.scale, 0.0F);
    }
    best = q.scale > best.scale ? q : best;
  }
  const bool is_rounding =
      best.scale >= 0.98F * between.scale && best.scale >= (std::numeric_limits<float>::min)();
  return is_rounding ? best : between;
}

/// The parameters that an observer found, or those that an override gives instead. What an observer
/// found does not exceed the bounds of the activation that makes the value.
[[nodiscard]] inline scale_solution solution_of(
    const quantization_plan& plan, const observed_value& v, const quant_scheme& scheme,
    const std::map<std::string, activation_override>& overrides) {
  return of_tensor(v.name, [&] {
    scale_solution s = v.observer.finalize(scheme);
    const auto own = overrides.find(v.name);
    if (own != overrides.end() && (own->second.params || own->second.range)) {
      s.params =
          own->second.params ? *own->second.params : params_from_range(*own->second.range, scheme);
      s.evidence.method = "override";
    } else if (s.evidence.method != "constant") {  // which does not look at the values
      s.params = within_bounds(s.params, scheme, plan.bounds(v.name));
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

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_ACTIVATION_OPTIONS_HPP
