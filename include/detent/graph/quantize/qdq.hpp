// SPDX-License-Identifier: BSD-3-Clause
// Writes a quantized model with QuantizeLinear/DequantizeLinear pairs (QDQ): the float graph with a
// pair around each value that is stored in 8 bits. All other forms are made from this one.
#ifndef DETENT_GRAPH_QUANTIZE_QDQ_HPP
#define DETENT_GRAPH_QUANTIZE_QDQ_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/activation_levels.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/onnxruntime_guards.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/renaming.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The numbers that complete a quantization_plan: parameters of the activations, and integer
/// weights.
struct quantization_parameters {
  element_type activation_type = element_type::u8;  ///< Type of the activations: u8 or s8.
  std::size_t activation_bits = 8;                  ///< Bits of the activations, 2..8.
  /// Parameters of every value of the plan, by its name.
  std::map<std::string, quant_params> activations;
  /// Integer weights of each layer, by the index of its node.
  std::map<std::size_t, layer_weights> layers;
};

namespace detail {

/// Writes the model of a plan, or a part of it, with Q and DQ nodes.
class qdq_writer {
 public:
  qdq_writer(const quantization_plan& plan, const quantization_parameters& parameters)
      : plan_(plan),
        p_(parameters),
        m_(plan.float_model()),
        params_(parameters.activations.begin(), parameters.activations.end()),
        writer_(m_) {}
  /// For a part of the plan's float model; `nodes` are the indices of its nodes in the plan. Inputs
  /// and outputs of the part are treated as those of the graph.
  qdq_writer(const quantization_plan& plan, const quantization_parameters& parameters, model part,
             const std::vector<std::size_t>& nodes)
      : plan_(plan), p_(parameters), m_(std::move(part)), nodes_of_plan_(&nodes), writer_(m_) {
    const auto take = [this](const std::string& name) {
      const auto found = p_.activations.find(name);
      if (found != p_.activations.end()) {
        params_.insert(*found);
      }
    };
    for (const value_info& v : m_.inputs) {
      take(v.name);
    }
    for (const node& n : m_.nodes) {
      std::for_each(n.inputs.begin(), n.inputs.end(), take);
      std::for_each(n.outputs.begin(), n.outputs.end(), take);
    }
  }

  model run() {
    // Graph outputs keep their names: the float value that is quantized gets another one, unless it
    // is the output.
    const links l(m_);
    renaming names(m_);
    for (const value_info& v : m_.outputs) {
      if (params_.count(v.name) != 0 && l.producer(v.name) != links::none &&
          !plan_.is_also_float(v.name)) {
        const std::string inner = writer_.fresh(v.name + "_float");
        names.rename(v.name, inner);  // nothing hides a name that is new
        auto entry = params_.extract(v.name);
        entry.key() = inner;
        params_.insert(std::move(entry));
        final_name_[inner] = v.name;
      }
    }
    names.apply_to(m_);
    for (const value_info& v : m_.inputs) {
      add_pair(v.name);
    }
    std::vector<node> originals = std::move(m_.nodes);
    m_.nodes.clear();
    nodes_.reserve(4 * originals.size());
    for (std::size_t i = 0; i < originals.size(); ++i) {
      node n = std::move(originals[i]);
      const std::vector<std::string> outputs = n.outputs;
      const std::string left = n.inputs.empty() ? std::string() : n.inputs[0];
      const std::size_t of_plan = nodes_of_plan_ == nullptr ? i : (*nodes_of_plan_)[i];
      const bool quantized = plan_.quantizes(of_plan);
      const auto layer = p_.layers.find(of_plan);
      const bool is_layer = layer != p_.layers.end();
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        if (quantized && !is_layer && m_.initializer(n.inputs[k]) != nullptr &&
            k < quantization_plan::data_inputs(n)) {
          const auto biased = plan_.layer_of_bias(of_plan);
          n.inputs[k] = biased ? dequantized_bias(*biased) : quantize_constant(n.inputs[k]);
        } else if (dequantized_.count(n.inputs[k]) != 0 &&
                   (quantized || !plan_.is_also_float(n.inputs[k]))) {
          n.inputs[k] = dequantized_[n.inputs[k]];
        }
      }
      // Sub-graphs capture the values that float operators take.
      std::map<std::string, std::string> captured;
      for (const std::string& name : captured_values(n)) {
        if (dequantized_.count(name) != 0 && !plan_.is_also_float(name)) {
          captured[name] = dequantized_[name];
        }
      }
      replace_captured(n, captured);
      if (is_layer) {
        quantize_layer(n, entry_of(params_, left, "parameters for the activation").scale,
                       layer->second);
      }
      nodes_.push_back(std::move(n));
      for (const std::string& out : outputs) {
        add_pair(out);
      }
    }
    m_.nodes = std::move(nodes_);
    m_.values.clear();
    set_producer(m_);
    remove_unused(m_);
    sort_and_check(m_);
    add_onnxruntime_guards(m_);
    return std::move(m_);
  }

  /// The name that a value of the float model has after run(), if it is an output of the graph that
  /// is quantized; else the name of the value.
  [[nodiscard]] const std::string& name_of(const std::string& value) const {
    for (const auto& [inner, name] : final_name_) {
      if (name == value) {
        return inner;
      }
    }
    return value;
  }

  /// The value that a QuantizeLinear with this input quantizes: the input itself, or the value
  /// before the Clip of fewer than 8 bits.
  [[nodiscard]] const std::string& quantized_by(const std::string& input) const {
    const auto found = clipped_.find(input);
    return found == clipped_.end() ? input : found->second;
  }

 private:
  /// Adds Q and DQ nodes behind a value if it is quantized.
  void add_pair(const std::string& value) {
    const auto found = params_.find(value);
    if (found == params_.end()) {
      return;
    }
    const auto final_name = final_name_.find(value);
    const std::string base = final_name != final_name_.end() ? final_name->second : value;
    const std::string q = writer_.fresh(base + "_quantized");
    const std::string dq =
        final_name != final_name_.end() ? base : writer_.fresh(base + "_dequantized");
    const auto [scale, zero_point] = add_params(base, found->second);
    nodes_.push_back(writer_.make_node("QuantizeLinear", base + "_QuantizeLinear",
                                       {clipped(value, base, found->second), scale, zero_point},
                                       q));
    nodes_.push_back(writer_.make_node("DequantizeLinear", base + "_DequantizeLinear",
                                       {q, scale, zero_point}, dq));
    dequantized_[value] = dq;
  }

  /// The value that is to be quantized: with fewer than 8 bits, the result of a Clip to the reals
  /// of the outer levels, because QuantizeLinear saturates at the ends of its type. `base` is the
  /// name of the value in the plan. Elements that are only moved are between these reals already.
  std::string clipped(const std::string& value, const std::string& base, quant_params p) {
    if (p_.activation_bits == 8 || plan_.root(base) != base) {
      return value;
    }
    const grid levels = activation_levels(p_.activation_type, p_.activation_bits);
    const auto bound = [&](const char* suffix, std::int32_t level) {
      return writer_.add_values<float>(base + suffix, element_type::f32, {},
                                       {static_cast<float>(level - p.zero_point) * p.scale});
    };
    const std::string result = writer_.fresh(base + "_clipped");
    nodes_.push_back(writer_.make_node(
        "Clip", base + "_Clip", {value, bound("_lower", levels.qmin), bound("_upper", levels.qmax)},
        result));
    clipped_[result] = value;
    return result;
  }

  std::pair<std::string, std::string> add_params(const std::string& base, quant_params p) {
    tensor zero_point = tensor::allocate(p_.activation_type, {});
    zero_point.mutable_raw()[0] = static_cast<std::byte>(p.zero_point & 0xFF);
    return {writer_.add_values<float>(base + "_scale", element_type::f32, {}, {p.scale}),
            writer_.add_initializer(base + "_zero_point", std::move(zero_point))};
  }

  /// Stores a constant operand in the type of the activations; returns the name of its dequantized
  /// form.
  std::string quantize_constant(const std::string& name) {
    const auto done = constants_.find(name);
    if (done != constants_.end()) {
      return done->second;
    }
    const tensor& t = m_.initializers.at(name);
    const quant_params p = entry_of(params_, name, "parameters for the constant");
    tensor q = tensor::allocate(p_.activation_type, t.dims());
    const grid levels = activation_levels(p_.activation_type, p_.activation_bits);
    if (p_.activation_type == element_type::u8) {
      quantize(t.data<float>(), q.mutable_data<std::uint8_t>(), p, levels);
    } else {
      quantize(t.data<float>(), q.mutable_data<std::int8_t>(), p, levels);
    }
    const auto [scale, zero_point] = add_params(name, p);
    nodes_.push_back(writer_.make_node(
        "DequantizeLinear", name + "_DequantizeLinear",
        {writer_.add_initializer(name + "_quantized", std::move(q)), scale, zero_point},
        writer_.fresh(name + "_dequantized")));
    return constants_[name] = nodes_.back().outputs[0];
  }

  void quantize_layer(node& n, float x_scale, const layer_weights& w) {
    const std::string base = n.inputs[1];
    const shape dims = parameter_shape(w.scales.size());
    const std::vector<std::int8_t> zeros(w.scales.size(), static_cast<std::int8_t>(w.zero_point));
    node dq =
        writer_.make_node("DequantizeLinear", base + "_DequantizeLinear",
                          {writer_.add_initializer(base + "_quantized", w.codes),
                           writer_.add_values(base + "_scale", element_type::f32, dims, w.scales),
                           writer_.add_values(base + "_zero_point", element_type::s8, dims, zeros)},
                          writer_.fresh(base + "_dequantized"));
    if (!dims.empty()) {
      dq.attributes["axis"] = attribute::of(static_cast<std::int64_t>(w.axis));
    }
    n.inputs[1] = dq.outputs[0];
    nodes_.push_back(std::move(dq));
    if (const tensor* bias = float_constant(m_, n, 2)) {
      n.inputs[2] = dequantized_bias(n.inputs[2], *bias, x_scale, w);
    }
  }

  /// The dequantized bias of a layer of the plan that an Add adds.
  std::string dequantized_bias(std::size_t layer) {
    const node& n = plan_.float_model().nodes[layer];
    return dequantized_bias(
        plan_.bias_name(layer), *plan_.bias(layer),
        entry_of(p_.activations, n.inputs[0], "parameters for the activation").scale,
        entry_of(p_.layers, layer, "integer weights for the layer with index"));
  }

  std::string dequantized_bias(const std::string& name, const tensor& bias, float x_scale,
                               const layer_weights& w) {
    std::vector<float> scales;
    for (std::size_t c = 0; c < (w.scales.size() == 1 ? 1 : bias.count()); ++c) {
      scales.push_back(x_scale * w.scales[c % w.scales.size()]);
    }
    const std::vector<std::int32_t> levels = quantize_bias(bias, x_scale, w);
    const shape dims = parameter_shape(scales.size());
    node dq =
        writer_.make_node("DequantizeLinear", name + "_DequantizeLinear",
                          {writer_.add_values(name + "_quantized", element_type::s32,
                                              {static_cast<std::int64_t>(levels.size())}, levels),
                           writer_.add_values(name + "_scale", element_type::f32, dims, scales)},
                          writer_.fresh(name + "_dequantized"));
    if (!dims.empty()) {
      dq.attributes["axis"] = attribute::of(std::int64_t{0});
    }
    nodes_.push_back(dq);
    return dq.outputs[0];
  }

  const quantization_plan& plan_;
  const quantization_parameters& p_;
  model m_;
  const std::vector<std::size_t>* nodes_of_plan_ = nullptr;  // null: the same indices
  detail::name_map<quant_params> params_;
  graph_writer writer_;
  std::vector<node> nodes_;
  detail::name_map<std::string> dequantized_;  // activations
  // Constant operands in dequantized form. A layer or a float operator that uses one of them takes
  // the constant itself.
  detail::name_map<std::string> constants_;
  std::map<std::string, std::string> final_name_;
  detail::name_map<std::string> clipped_;  // the value that each result is of
};

}  // namespace detail

/// Writes the float model of a plan with QuantizeLinear and DequantizeLinear nodes around all
/// values that it stores in 8 bits, and a DequantizeLinear behind integer weights and biases.
/// Inputs and outputs of the graph keep their names and stay float. `parameters` must have all
/// values and layers of the plan; throws invalid_argument, naming what is missing, if not.
[[nodiscard]] DETENT_GRAPH_DECL model write_qdq(const quantization_plan& plan,
                                                const quantization_parameters& parameters);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL model write_qdq(const quantization_plan& plan,
                                  const quantization_parameters& parameters) {
  return detail::qdq_writer(plan, parameters).run();
}
#endif

/// A quantized network: the decisions, the numbers and the model that was made of them.
struct quantization {
  quantization_plan plan;              ///< What is quantized.
  quantization_parameters parameters;  ///< The numbers.
  model result;                        ///< The model, with QuantizeLinear/DequantizeLinear pairs.
  /// Why nodes stayed in float that the executor cannot run, one line for each of them as
  /// divided_model::reasons() has them. The plan does not have these nodes. Empty if all nodes can
  /// be run.
  std::vector<std::string> not_run = {};
  /// Whether static_quantization() took bias correction back, because it made the outputs worse.
  bool bias_correction_taken_back = false;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QDQ_HPP
