// SPDX-License-Identifier: BSD-3-Clause
// Quantizes one model by many settings without repeating what two settings have in common: ranges
// of activations are collected once for each method and number of samples, when a setting first
// needs them, and weights are quantized once for each way to choose their scales.
//
// In static quantization, nodes that the executor cannot run stay in float, as in
// static_quantization().
#ifndef DETENT_GRAPH_QUANTIZE_SETTING_QUANTIZER_HPP
#define DETENT_GRAPH_QUANTIZE_SETTING_QUANTIZER_HPP

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/partial_quantization.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/tuning_space.hpp>
#include <detent/graph/rewrite/runnable_part.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What the settings of a search have in common.
struct setting_quantizer_options {
  /// Whether ranges of activations are found in each run (quantize_dynamic()) instead of from
  /// samples (static_quantization()).
  bool is_dynamic = false;
  element_type weight_type = element_type::u8;  ///< Stored type of dynamically quantized weights.
  activation_options activations = {};  ///< Type, observers and overrides of the activations.
  layer_weight_options weights = {};    ///< Bits and levels of the weights.
  quantization_scope scope = {};  ///< Nodes that stay in float, and settings of single operators.
  /// Options of the executors that run models here; `parallel` is used by solvers, too.
  executor_options executor = {};
};

/// Quantizes one model by many settings. Not thread-safe.
class setting_quantizer {
 public:
  /// `methods` are the observers that settings may name. `samples` is drawn when a setting first
  /// needs it, once or twice for each method and number of samples, and again by bias correction.
  ///
  /// Throws as quantization_plan, and invalid_argument if a method is unknown or an override cannot
  /// be applied.
  setting_quantizer(model m, calibration_source samples, std::vector<std::string> methods,
                    setting_quantizer_options options)
      : options_(std::move(options)),
        samples_(std::move(samples)),
        methods_(std::move(methods)),
        divided_(options_.is_dynamic ? std::nullopt
                                     : detail::divided_for_calibration(m, options_.scope)),
        plan_(options_.is_dynamic
                  ? detail::dynamic_plan(std::move(m), options_.scope)
                  : quantization_plan(divided_ ? divided_->runnable() : std::move(m),
                                      options_.scope)) {
    if (options_.is_dynamic) {
      return;
    }
    for (const std::string& method : methods_) {
      const observer_options observer = detail::activation_observer(options_.activations, method);
      for (const auto& [name, own] : options_.activations.overrides) {
        detail::require_override(plan_, name, own, observer, options_.activations.observers);
      }
    }
  }

  /// The plan without any node that a setting leaves in float. In static quantization it is for the
  /// part of the model that can be run.
  [[nodiscard]] const quantization_plan& plan() const noexcept { return plan_; }

  /// Why nodes stay in float whatever the setting is, as quantization::not_run has it.
  [[nodiscard]] std::vector<std::string> not_run() const {
    return divided_ ? divided_->reasons() : std::vector<std::string>();
  }

  /// The nodes that a setting may leave in float, by the names of their first outputs, in
  /// topological order: layers, and for static quantization also the sums, products, averages and
  /// functions that are computed in 8 bits.
  [[nodiscard]] std::vector<std::string> nodes() const {
    static constexpr std::string_view computing[] = {
        "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"};
    std::vector<std::string> names;
    const std::vector<node>& all = plan_.float_model().nodes;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_quantized_layer =
          std::binary_search(plan_.layers().begin(), plan_.layers().end(), i);
      const bool computes = std::find(std::begin(computing), std::end(computing), all[i].op_type) !=
                            std::end(computing);
      const bool is_own = computes && plan_.quantizes(i) && !plan_.layer_of_bias(i);
      if (is_quantized_layer || (!options_.is_dynamic && is_own)) {
        names.push_back(all[i].outputs[0]);
      }
    }
    return names;
  }

  /// The quantized model of a setting, with QuantizeLinear/DequantizeLinear pairs or, for dynamic
  /// quantization, integer operators. Throws invalid_argument, naming what is wrong, for a method
  /// that the constructor was not given, for a node that nodes() does not list, and as
  /// static_quantization() and quantize_dynamic().
  [[nodiscard]] model quantize(const tuning_setting& s) {
    model quantized = quantize_planned(s);
    return divided_ ? divided_->joined(std::move(quantized)) : quantized;
  }

  /// As quantize(), but only the model of plan(): in static quantization all of it can be run.
  [[nodiscard]] model quantize_planned(const tuning_setting& s) {
    quantization_plan plan = plan_;
    plan.leave_out(indices_of(s.in_float));
    quantization_parameters p;
    p.activation_type = options_.activations.type;
    p.activation_bits = options_.activations.bits;
    if (!options_.is_dynamic) {
      require(std::find(methods_.begin(), methods_.end(), s.method) != methods_.end(),
              error_kind::invalid_argument, "method '", s.method, "' is not one of the search");
      const ranges& found = ranges_of(s.method, s.samples, s.symmetric_activations);
      for (const std::string& value : plan.values()) {
        p.activations[value] = found.at(value);
      }
      detail::share_parameters(plan, p.activations);
    }
    for (const std::size_t i : plan.layers()) {
      p.layers.emplace(i, weights_of(plan, i, s, p));
    }
    if (s.correction != bias_correction::none && !p.layers.empty()) {
      static_cast<void>(correct_biases(plan, p, some_samples(s.samples), {.kind = s.correction},
                                       options_.executor));
    }
    if (!options_.is_dynamic) {
      return write_qdq(plan, p);
    }
    dynamic_quantization_options dynamic;
    dynamic.weight_type = options_.weight_type;
    return detail::dynamic_quantizer(plan, detail::known_weights(p), dynamic).run();
  }

 private:
  using ranges = std::map<std::string, quant_params>;  // of each value

  [[nodiscard]] calibration_source some_samples(std::size_t count) const {
    return count == 0 ? samples_ : first_samples(samples_, count);
  }

  [[nodiscard]] std::set<std::size_t> indices_of(const std::set<std::string>& outputs) const {
    std::set<std::size_t> indices;
    const std::vector<node>& all = plan_.float_model().nodes;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (outputs.count(all[i].outputs[0]) != 0 && !plan_.layer_of_bias(i)) {
        indices.insert(i);
      }
    }
    require(indices.size() == outputs.size(), error_kind::invalid_argument,
            "a node that stays in float is not in the model, or adds the bias of a layer");
    return indices;
  }

  const ranges& ranges_of(const std::string& method, std::size_t samples, bool is_symmetric) {
    const auto [found, is_new] = ranges_.try_emplace({method, samples, is_symmetric});
    if (!is_new) {
      return found->second;
    }
    try {
      found->second = calibrated(method, samples, is_symmetric);
    } catch (...) {
      ranges_.erase(found);
      throw;
    }
    return found->second;
  }

  [[nodiscard]] ranges calibrated(const std::string& method, std::size_t samples,
                                  bool is_symmetric) const {
    activation_options activations = options_.activations;
    activations.symmetric = is_symmetric;
    const observer_options observer = detail::activation_observer(activations, method);
    std::vector<observed_value> observed;
    for (const std::string& value : plan_.values()) {
      const std::string own = detail::own_method(plan_, value, activations.overrides);
      observed.push_back({value, detail::observer_for(plan_, value, own.empty() ? method : own,
                                                      observer, activations.observers)});
    }
    calibrate(plan_.float_model(), observed, some_samples(samples), options_.executor);
    ranges found;
    for (const observed_value& v : observed) {
      found.emplace(v.name,
                    detail::solution_of(plan_, v, observer.scheme, activations.overrides).params);
    }
    return found;
  }

  /// The weights of a layer. Their scales depend on the scale of the input only where the bias
  /// would not fit, so a new input scale means to quantize again.
  const layer_weights& weights_of(const quantization_plan& plan, std::size_t layer,
                                  const tuning_setting& s, const quantization_parameters& p) {
    const node& n = plan.float_model().nodes[layer];
    const float x_scale = options_.is_dynamic ? 1.0F : p.activations.at(n.inputs[0]).scale;
    auto& known = weights_[{layer, s.per_channel, s.weights}];
    const auto found = known.find(x_scale);
    if (found != known.end()) {
      return found->second;
    }
    layer_weight_options weights = options_.weights;
    weights.per_channel = s.per_channel;
    weights.scale = s.weights;
    const layer_weight_scales scales =
        find_weight_scales(plan.float_model(), n, with_settings(weights, plan.settings(layer)),
                           options_.executor.parallel);
    // In dynamic quantization the bias is added in float, so it puts no limit on the scales.
    return known
        .emplace(x_scale, options_.is_dynamic
                              ? round_layer_weights(plan.float_model(), n, scales)
                              : quantize_layer_weights(plan, layer, x_scale, scales))
        .first->second;
  }

  setting_quantizer_options options_;
  calibration_source samples_;
  std::vector<std::string> methods_;
  std::optional<divided_model> divided_;  // nothing if there is no rest that stays in float
  quantization_plan plan_;
  /// By method, samples, and whether symmetric.
  std::map<std::tuple<std::string, std::size_t, bool>, ranges> ranges_;
  /// By layer, channels and rule; then by the scale of the input.
  std::map<std::tuple<std::size_t, bool, weight_scale>, std::map<float, layer_weights>> weights_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_SETTING_QUANTIZER_HPP
