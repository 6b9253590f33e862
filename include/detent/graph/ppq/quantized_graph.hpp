// SPDX-License-Identifier: BSD-3-Clause
// The quantized_graph that passes work on: a network with a quantization configuration for each
// float tensor that an operator of the target platform takes or makes.
#ifndef DETENT_GRAPH_PPQ_QUANTIZED_GRAPH_HPP
#define DETENT_GRAPH_PPQ_QUANTIZED_GRAPH_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/dispatcher.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The configurations of the tensors of one operator. An entry is no_config where a tensor is not
/// float or does not take part in the quantization. Both vectors are empty if the operator is not
/// quantized.
struct operator_configs {
  std::vector<config_id> inputs;   ///< One entry for each input of the node.
  std::vector<config_id> outputs;  ///< One entry for each output of the node.
  /// Whether the operator is quantized.
  [[nodiscard]] bool is_quantized() const noexcept { return !outputs.empty(); }
};

/// Options of make_quantized_graph().
struct quantizer_options {
  /// Which of the platform's operators are quantized.
  dispatch_scope scope = dispatch_scope::conservative;
  /// If given, operators for which it returns true stay float in any case.
  std::function<bool(const node&)> keep_float = {};
};

/// A network and its quantization configurations, made by make_quantized_graph(). It is a value:
/// copies are independent.
///
/// Passes may change the constants of `network` and the configurations. A pass that changes the
/// nodes of `network` must keep `operators` parallel to them, or leave that to rewrite_network().
struct quantized_graph {
  /// The float network. Its constants hold the values that baking or learning gave them.
  model network;
  /// `network` as it was when the configurations were made. Errors are measured against it.
  model float_model;
  /// The platform for which the configurations were made.
  platform target;
  /// The options with which the configurations were made.
  quantizer_options options;
  /// The configurations of all tensors.
  quantization_configs configs;
  /// The configurations of each node of `network`, in the order of the nodes.
  std::vector<operator_configs> operators;
  /// The values, by name, that constants of `network` had before they were baked, or learned for
  /// the grid of their configuration. A constant has these values while its configuration is FP32.
  std::map<std::string, tensor> float_constants;

  /// Whether a configuration is that of a constant.
  [[nodiscard]] bool is_parameter(config_id id) const {
    return network.initializer(configs[id].variable) != nullptr;
  }

  /// Calls f(config_id) for each configuration of the node at `index`: inputs first, then outputs.
  template <class Function>
  void for_each_config(std::size_t index, const Function& f) const {
    for (const std::vector<config_id>* ids :
         {&operators[index].inputs, &operators[index].outputs}) {
      for (const config_id id : *ids) {
        if (id != no_config) {
          f(id);
        }
      }
    }
  }
  /// Calls f(config_id) for each configuration of each node, in the order of the nodes.
  template <class Function>
  void for_each_config(const Function& f) const {
    for (std::size_t i = 0; i < operators.size(); ++i) {
      for_each_config(i, f);
    }
  }

  /// The configuration of `value` as the output of the node that makes it, or no_config if no
  /// quantized node makes it. `l` holds the links of `network`.
  [[nodiscard]] config_id producer_config(const links& l, const std::string& value) const {
    const std::size_t i = l.producer(value);
    if (i == links::none || !operators[i].is_quantized()) {
      return no_config;
    }
    const std::vector<std::string>& outputs = network.nodes[i].outputs;
    const auto at = std::find(outputs.begin(), outputs.end(), value) - outputs.begin();
    return operators[i].outputs[static_cast<std::size_t>(at)];
  }
};

namespace detail {

/// The indices of a layer's weights and of its bias among its inputs.
inline constexpr std::size_t weight_slot = 1;
inline constexpr std::size_t bias_slot = 2;

/// The inputs of a node that carry float values which are to be quantized. Other inputs, for
/// example the scales of Resize, are left out.
[[nodiscard]] inline std::vector<std::size_t> quantized_slots(const node& n) {
  std::size_t count = 1;
  if (n.is("Concat") || n.is("Sum")) {
    count = n.inputs.size();
  } else if (n.is("Conv") || n.is("ConvTranspose") || n.is("Gemm") || n.is("Clip")) {
    count = 3;
  } else if (n.is("Add") || n.is("Sub") || n.is("Mul") || n.is("Div") || n.is("MatMul") ||
             n.is("PRelu")) {
    count = 2;
  } else if (n.is("Pad")) {
    return n.inputs.size() > 2 ? std::vector<std::size_t>{0, 2} : std::vector<std::size_t>{0};
  }
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < count && i < n.inputs.size(); ++i) {
    slots.push_back(i);
  }
  return slots;
}

/// Whether an input is a bound of Clip or the value of Pad, which take the parameters of the
/// operator's first input.
[[nodiscard]] inline bool is_bound_slot(const node& n, std::size_t slot) {
  return (n.is("Clip") && slot > 0) || (n.is("Pad") && slot == 2);
}

/// The axis of a layer's weights along which the output channels run, if there is one.
[[nodiscard]] inline std::optional<std::size_t> weight_channel_axis(const node& n,
                                                                    const tensor& weights) {
  if (n.is("Conv") && weights.rank() > 1) {
    return 0;
  }
  if (n.is("ConvTranspose") && weights.rank() > 1) {
    return 1;
  }
  if (n.is("Gemm") && weights.rank() == 2) {
    return n.get_int("transB", 0) != 0 ? 0 : 1;
  }
  if (n.is("MatMul") && weights.rank() == 2) {
    return 1;
  }
  return std::nullopt;
}

/// The values of a model that follow from shapes and constants alone. They are no activations, even
/// where they are float.
[[nodiscard]] inline std::set<std::string> shape_values(const model& m) {
  std::set<std::string> found;
  for (const node& n : m.nodes) {
    bool of_shapes = true;
    const auto look_at = [&](const std::string& in) {
      of_shapes = of_shapes && (in.empty() || found.count(in) != 0 || m.initializer(in) != nullptr);
    };
    std::for_each(n.inputs.begin(), n.inputs.end(), look_at);
    const std::set<std::string> captured = captured_values(n);
    std::for_each(captured.begin(), captured.end(), look_at);
    if (of_shapes || n.is("Shape") || n.is("Size")) {
      found.insert(n.outputs.begin(), n.outputs.end());
    }
  }
  return found;
}

/// Makes a quantized_graph of a float model that simplify() has simplified.
class graph_quantizer {
 public:
  graph_quantizer(model m, const platform& target, const quantizer_options& options)
      : options_(options) {
    g_.network = std::move(m);
    g_.target = target;
    g_.options = options;
    known_ = infer_types(g_.network);
    shape_values_ = shape_values(g_.network);
  }

  quantized_graph run() {
    g_.operators.resize(g_.network.nodes.size());
    for (std::size_t i = 0; i < g_.network.nodes.size(); ++i) {
      if (is_chosen(g_.network.nodes[i])) {
        add_configs(i);
      }
    }
    g_.float_model = g_.network;
    return std::move(g_);
  }

 private:
  [[nodiscard]] const tensor* constant(const std::string& value) const {
    const tensor* t = g_.network.initializer(value);
    return t != nullptr && t->has_data() ? t : nullptr;
  }
  [[nodiscard]] bool is_float(const std::string& value) const {
    const auto found = known_.find(value);
    return found != known_.end() && found->second.type() == element_type::f32;
  }

  [[nodiscard]] bool is_activation(const std::string& value) const {
    return is_float(value) && constant(value) == nullptr && shape_values_.count(value) == 0;
  }

  [[nodiscard]] bool is_chosen(const node& n) const {
    const std::vector<std::string>& types = g_.target.op_types;
    if (!n.domain.empty() || n.inputs.empty() || n.outputs.empty() || !is_float(n.outputs[0]) ||
        std::find(types.begin(), types.end(), n.op_type) == types.end() ||
        (options_.keep_float && options_.keep_float(n))) {
      return false;
    }
    bool any = false;
    bool all_made = true;
    for (const std::size_t slot : quantized_slots(n)) {
      const std::string& value = n.inputs[slot];
      if (value.empty() || is_bound_slot(n, slot)) {
        continue;
      }
      if (const tensor* t = constant(value)) {
        // No scale is right for the -infinity of a mask; a layer with such weights is an error.
        if (t->type() != element_type::f32 || t->count() == 0 ||
            (!is_compute_operator(n) && !is_finite(*t))) {
          return false;
        }
        continue;
      }
      if (!is_activation(value)) {
        return false;
      }
      any = true;
      all_made = all_made && made_.count(value) != 0;
    }
    return any && (is_compute_operator(n) || is_in_scope(n, all_made));
  }

  /// Whether the scope takes an operator that is not a layer. `all_made` says whether quantized
  /// operators make all activations that it takes.
  [[nodiscard]] bool is_in_scope(const node& n, bool all_made) const {
    switch (options_.scope) {
      case dispatch_scope::all_in:
        return true;
      case dispatch_scope::pointwise:
        return all_made && is_pointwise_operator(n);
      case dispatch_scope::conservative:
        break;
    }
    return all_made;
  }

  void add_configs(std::size_t i) {
    const node& n = g_.network.nodes[i];
    operator_configs& o = g_.operators[i];
    o.inputs.assign(n.inputs.size(), no_config);
    o.outputs.assign(n.outputs.size(), no_config);
    for (const std::size_t slot : quantized_slots(n)) {
      const std::string& value = n.inputs[slot];
      if (!value.empty() && is_float(value) && shape_values_.count(value) == 0) {
        o.inputs[slot] = add_input(n, slot);
      }
    }
    for (std::size_t k = 0; k < n.outputs.size(); ++k) {
      if (is_float(n.outputs[k])) {
        o.outputs[k] = g_.configs.add(activation(n, "output", k, n.outputs[k]));
        made_.insert(n.outputs[k]);
      }
    }
  }

  static quantizer_settings of_preset(const tensor_preset& p, const node& n, const char* kind,
                                      std::size_t slot, const std::string& value) {
    quantizer_settings s;
    s.name = n.label() + ", " + kind + " " + std::to_string(slot) + " '" + value + "'";
    s.variable = value;
    s.policy = p.policy;
    s.rounding = p.rounding;
    s.bits = p.bits;
    s.levels = p.levels;
    s.observer = p.observer;
    return s;
  }
  [[nodiscard]] quantizer_settings activation(const node& n, const char* kind, std::size_t slot,
                                              const std::string& value) const {
    quantizer_settings s = of_preset(g_.target.activation, n, kind, slot, value);
    if (s.policy.is_per_channel()) {
      s.channel_axis = 1;
    }
    return s;
  }

  config_id add_input(const node& n, std::size_t slot) {
    const std::string& value = n.inputs[slot];
    const tensor* t = constant(value);
    if (t == nullptr || slot == 0) {
      return t == nullptr ? g_.configs.add(activation(n, "input", slot, value))
                          : add_constant(n, slot);
    }
    if (is_bound_slot(n, slot)) {
      quantizer_settings s = activation(n, "input", slot, value);
      s.visibility = visibility_policy::internal;
      return g_.configs.add(std::move(s), quantization_state::passive_init);
    }
    if (!is_compute_operator(n)) {
      return add_constant(n, slot);
    }
    return slot == weight_slot ? add_weights(n, *t) : add_bias(n, *t);
  }

  /// Adds the configuration of a constant operand. It is that of an activation, but the range is
  /// that of the values (minmax), because all of them are known.
  config_id add_constant(const node& n, std::size_t slot) {
    quantizer_settings s = activation(n, "input", slot, n.inputs[slot]);
    s.observer = "minmax";
    s.policy = s.policy.per_tensor().fixed_range();
    s.channel_axis.reset();
    return g_.configs.add(std::move(s));
  }

  config_id add_weights(const node& n, const tensor& weights) {
    quantizer_settings s =
        of_preset(g_.target.weight, n, "input", weight_slot, n.inputs[weight_slot]);
    if (s.policy.is_per_channel()) {
      s.channel_axis = weight_channel_axis(n, weights);
      s.policy = s.channel_axis ? s.policy : s.policy.per_tensor();
    }
    return g_.configs.add(std::move(s));
  }

  /// Adds the configuration of a bias. A bias that is not one value for each output channel stays
  /// float, and so does the bias of a Gemm with an alpha or a beta other than 1.
  config_id add_bias(const node& n, const tensor& bias) {
    const tensor* weights = constant(n.inputs[weight_slot]);
    const auto axis = weights == nullptr ? std::nullopt : weight_channel_axis(n, *weights);
    if (!axis || bias.rank() != 1 || n.get_float("alpha", 1.0F) != 1.0F ||
        n.get_float("beta", 1.0F) != 1.0F) {
      return no_config;
    }
    const std::int64_t groups = n.is("ConvTranspose") ? n.get_int("group", 1) : 1;
    if (bias.dim(0) != weights->dim(*axis) * groups) {
      return no_config;
    }
    const int bits = g_.target.bias_bits;
    quantizer_settings s;
    s.name = n.label() + ", input " + std::to_string(bias_slot) + " '" + n.inputs[bias_slot] + "'";
    s.variable = n.inputs[bias_slot];
    s.bits = bits == 0 ? 32 : bits;
    const auto highest = static_cast<std::int32_t>((std::int64_t{1} << (s.bits - 1)) - 1);
    s.levels = {-highest - 1, highest};
    if (g_.target.weight.policy.is_per_channel()) {
      s.policy =
          quantization_policy(quantization_property::per_channel | quantization_property::linear |
                              quantization_property::symmetrical);
      s.channel_axis = 0;
    }
    return g_.configs.add(std::move(s),
                          bits == 0 ? quantization_state::fp32 : quantization_state::passive_init);
  }

  const quantizer_options& options_;
  quantized_graph g_;
  std::map<std::string, tensor> known_;
  std::set<std::string> shape_values_;
  std::set<std::string> made_;  // by quantized operators
};

}  // namespace detail

/// Makes a quantized_graph of a float model: simplifies the model, brings it to opset 13 at least,
/// and adds a configuration for each float tensor that a quantized operator of the platform takes
/// or makes. Configurations are INITIAL, but those of biases, of the bounds of Clip and of the
/// value of Pad are PASSIVE_INIT, and those of biases are FP32 on platforms that leave biases in
/// float.
///
/// Where the shape of a tensor depends on the values of inputs, operators that make or take the
/// tensor stay float. So do operators that compute shapes, and operators other than layers that
/// take a constant with NaN or infinity, such as a mask of -infinity; bounds of Clip and the value
/// of Pad may be infinite.
///
/// Throws unsupported if the model is quantized already or has operators that the executor lacks,
/// naming the first such node, and what upgrade_opset() and infer_shapes() throw (bad_file,
/// unsupported).
[[nodiscard]] inline quantized_graph make_quantized_graph(model m, const platform& target,
                                                          const quantizer_options& options = {}) {
  for (const node& n : m.nodes) {
    require(!is_quantize_or_dequantize(n) && n.op_type.rfind("QLinear", 0) != 0,
            error_kind::unsupported, "the model is already quantized: ", n.label());
  }
  graph::require_supported(m);
  simplify(m);
  upgrade_opset(m);
  return detail::graph_quantizer(std::move(m), target, options).run();
}

/// Throws invalid_argument, naming the configuration and its state, unless all configurations are
/// as make_quantized_graph() made them. Only their settings may differ, and they may be switched on
/// or off. Passes that rewrite the float network call this, because they have to come before every
/// pass that quantizes it.
inline void require_unquantized(const quantized_graph& g) {
  const quantization_configs& configs = g.configs;
  g.for_each_config([&](config_id id) {
    const quantization_state state = configs[id].enabled_state();
    const bool begins =
        state == quantization_state::initial || state == quantization_state::passive_init;
    require(begins && configs.master(id) == no_config && configs.parameters(id).empty(),
            error_kind::invalid_argument, configs[id].name, " is ", name(state),
            begins ? " and has a scale or a master" : "",
            " already; passes that rewrite the float network come before fusion and calibration");
  });
}

namespace detail {

/// The index in another network of the node that stands for `n`: the node of the same operator that
/// makes the same value, else the node of the same operator with the same name, else links::none.
[[nodiscard]] inline std::size_t find_counterpart(const node& n, const model& other) {
  std::size_t by_name = links::none;
  for (std::size_t i = 0; i < other.nodes.size(); ++i) {
    const node& candidate = other.nodes[i];
    if (candidate.op_type != n.op_type || candidate.domain != n.domain ||
        candidate.outputs.empty()) {
      continue;
    }
    if (candidate.outputs[0] == n.outputs[0]) {
      return i;
    }
    if (by_name == links::none && !n.name.empty() && candidate.name == n.name) {
      by_name = i;
    }
  }
  return by_name;
}

/// Copies the settings of one configuration, but for name and variable, to another one. Switches
/// the other one off or on as the first one is.
inline void keep_settings(const quantization_configs& from, config_id old_id,
                          quantization_configs& to, config_id new_id) {
  quantizer_settings kept = from[old_id];
  quantizer_settings& made = to.settings(new_id);
  kept.name = made.name;
  kept.variable = made.variable;
  made = std::move(kept);
  if (from[old_id].state() == quantization_state::fp32) {
    to.dequantize(new_id);
  } else {
    to.restore(new_id);
  }
}

}  // namespace detail

/// Gives a graph another float network, which must compute the same function, and makes the
/// configurations anew. Where a node of the old network is in the new one (the same operator with
/// the same first output, or else with the same name), its configurations keep their settings, and
/// stay switched off if they were. float_model becomes the new network, because values between its
/// operators may have another meaning than before.
///
/// `parts` has the names of nodes that only the new network has, each with the name of the old node
/// that it is a part of. Such a node stays float if the old node did. A constant of it is switched
/// off if the old node's input in the same place was, its other inputs if the old node's first
/// input was, and its outputs if the old node's were; an Add among the parts takes outputs.
///
/// Throws what require_unquantized() and infer_shapes() throw; the graph is then as it was.
inline void rewrite_network(quantized_graph& g, model rewritten,
                            const std::map<std::string, std::string>& parts = {}) {
  require_unquantized(g);
  quantizer_options options = g.options;
  std::set<std::string> in_float;
  std::map<std::string, const operator_configs*> wholes;  // by the names of parts
  for (const auto& [part, whole] : parts) {
    for (std::size_t i = 0; i < g.operators.size(); ++i) {
      if (g.network.nodes[i].name == whole && g.operators[i].is_quantized()) {
        wholes[part] = &g.operators[i];
      }
    }
    if (wholes.count(part) == 0) {
      in_float.insert(part);
    }
  }
  if (!in_float.empty()) {
    options.keep_float = [in_float, others = g.options.keep_float](const node& n) {
      return in_float.count(n.name) != 0 || (others && others(n));
    };
  }
  quantized_graph next =
      detail::graph_quantizer(std::move(rewritten), g.target, std::move(options)).run();
  for (std::size_t i = 0; i < next.operators.size(); ++i) {
    const node& n = next.network.nodes[i];
    const auto whole = wholes.find(n.name);
    if (whole == wholes.end()) {
      continue;
    }
    const auto switch_off = [&](const std::vector<config_id>& from, std::size_t k, config_id to) {
      if (k < from.size() && from[k] != no_config && to != no_config &&
          g.configs[from[k]].state() == quantization_state::fp32) {
        next.configs.dequantize(to);
      }
    };
    const auto& [inputs, outputs] = *whole->second;
    for (std::size_t k = 0; k < next.operators[i].inputs.size(); ++k) {
      const config_id to = next.operators[i].inputs[k];
      const bool is_constant = next.network.initializer(n.inputs[k]) != nullptr;
      switch_off(n.is("Add") ? outputs : inputs, is_constant ? k : 0, to);
    }
    for (const config_id to : next.operators[i].outputs) {
      switch_off(outputs, 0, to);
    }
  }
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    const operator_configs& old_configs = g.operators[i];
    const std::size_t at = old_configs.is_quantized()
                               ? detail::find_counterpart(g.network.nodes[i], next.network)
                               : links::none;
    if (at == links::none) {
      continue;
    }
    const operator_configs& new_configs = next.operators[at];
    const auto keep = [&](const std::vector<config_id>& from, const std::vector<config_id>& to) {
      for (std::size_t k = 0; k < from.size() && k < to.size(); ++k) {
        if (from[k] != no_config && to[k] != no_config) {
          detail::keep_settings(g.configs, from[k], next.configs, to[k]);
        }
      }
    };
    keep(old_configs.inputs, new_configs.inputs);
    keep(old_configs.outputs, new_configs.outputs);
  }
  g = std::move(next);
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_QUANTIZED_GRAPH_HPP
