// SPDX-License-Identifier: BSD-3-Clause
// The network that a quantized model is trained as: the float model of a plan with fake quantizers
// in the places where the exported model has QuantizeLinear and DequantizeLinear.
#ifndef DETENT_GRAPH_QUANTIZE_FAKE_QUANTIZED_NETWORK_HPP
#define DETENT_GRAPH_QUANTIZE_FAKE_QUANTIZED_NETWORK_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/learn/make_fake_quantize.hpp>
#include <detent/graph/learn/trained_constant.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/activation_levels.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The float network of a plan with a FakeQuantize node behind each value that is stored in 8 bits
/// and each weight of a layer. It computes what the model that write_qdq() makes of the same
/// numbers computes, but for the rounding of biases, which are float here.
///
/// Scales are constants of the network, one for each activation and one for each output channel (or
/// one in all) of a layer, so that they can be trained; zero points are fixed. Values whose
/// elements are only moved have no fake quantizer of their own: they are on the grid already.
class fake_quantized_network {
 public:
  /// Takes the parameters of all activations of the plan, and the scales of its layers' weights by
  /// the index of the node, as find_weight_scales() gives them. `plan` must outlive the object.
  /// Throws invalid_argument, naming it, if one is missing.
  fake_quantized_network(const quantization_plan& plan, const quantization_parameters& parameters,
                         std::map<std::size_t, layer_weight_scales> weights)
      : plan_(plan),
        parameters_(parameters),
        weights_(std::move(weights)),
        network_(plan.float_model()),
        writer_(network_) {
    build();
  }

  /// The network, for a gradient_graph. Constants that are not scales have the names that they have
  /// in the plan's float model.
  [[nodiscard]] const model& network() const noexcept { return network_; }
  /// The name that a value of the plan's float model has in the network, behind its fake quantizer
  /// if it has one.
  [[nodiscard]] const std::string& name_of(const std::string& value) const {
    const auto found = quantized_.find(value);
    return found == quantized_.end() ? value : found->second;
  }

  /// The constants that training changes: those of the plan's float model that
  /// trainable_constants() lists, without those that are stored in 8 bits as they are, and scales.
  [[nodiscard]] std::vector<trained_constant> constants(bool weight_scales,
                                                        bool activation_scales) const {
    std::vector<trained_constant> all;
    for (const trained_constant& c : trainable_constants(plan_.float_model())) {
      if (plan_.values().count(c.name) == 0) {
        all.push_back(c);
      }
    }
    for (const auto& [value, name] : activation_scales_) {
      if (activation_scales && plan_.float_model().initializer(value) == nullptr) {
        all.push_back({name, constant_role::scale});
      }
    }
    for (const auto& [layer, name] : weight_scales_) {
      if (weight_scales) {
        all.push_back({name, constant_role::scale});
      }
    }
    return all;
  }

  /// The quantized model that has the constants of `trained`, a network with the nodes of
  /// network(): its weights and biases, and the scales that they were trained with.
  [[nodiscard]] quantization exported(const model& trained) const {
    model m = plan_.float_model();
    for (auto& [name, value] : m.initializers) {
      const auto found = trained.initializers.find(name);
      if (found != trained.initializers.end()) {
        value = found->second;
      }
    }
    quantization q{quantization_plan(plan_, std::move(m)), parameters_, {}};
    for (const auto& [value, name] : activation_scales_) {
      q.parameters.activations.at(value).scale = trained.initializers.at(name).data<float>()[0];
    }
    for (auto& [value, p] : q.parameters.activations) {
      p = q.parameters.activations.at(plan_.root(value));
    }
    q.parameters.layers.clear();
    for (const std::size_t i : q.plan.layers()) {
      const model& now = q.plan.float_model();
      const node& n = now.nodes[i];
      layer_weight_scales scales = weights_.at(i);
      const auto learned = trained.initializers.at(weight_scales_.at(i)).data<float>();
      for (std::size_t k = 0; k < scales.scales.size(); ++k) {
        scales.scales[k] = learned[learned.size() == 1 ? 0 : k];
      }
      q.parameters.layers.emplace(
          i,
          quantize_layer_weights(now, n, q.parameters.activations.at(n.inputs[0]).scale, scales));
    }
    q.result = write_qdq(q.plan, q.parameters);
    return q;
  }

 private:
  void build() {
    const grid levels = activation_levels(parameters_.activation_type, parameters_.activation_bits);
    std::vector<node> nodes = std::move(network_.nodes);
    network_.nodes.clear();
    const auto quantize_value = [&](const std::string& value) {
      if (plan_.values().count(value) == 0 || plan_.root(value) != value) {
        return;
      }
      const quant_params p =
          detail::entry_of(parameters_.activations, value, "parameters for the activation");
      const std::string scale =
          writer_.add_values<float>(value + "_scale", element_type::f32, {}, {p.scale});
      activation_scales_[value] = scale;
      network_.nodes.push_back(
          make_fake_quantize(value, scale,
                             writer_.add_values<std::int32_t>(
                                 value + "_zero_point", element_type::s32, {}, {p.zero_point}),
                             quantized_[value] = writer_.fresh(value + "_fake_quantized"), levels));
    };
    for (const value_info& v : network_.inputs) {
      quantize_value(v.name);
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      node n = std::move(nodes[i]);
      const bool is_layer = weights_.count(i) != 0;
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        if (network_.initializer(n.inputs[k]) != nullptr) {
          // A constant operand is on the grid only where an operator on integers takes it.
          if (is_layer || !plan_.quantizes(i) || k >= quantization_plan::data_inputs(n)) {
            continue;
          }
          if (quantized_.count(n.inputs[k]) == 0) {
            quantize_value(n.inputs[k]);
          }
        }
        n.inputs[k] = name_of(n.inputs[k]);
      }
      if (is_layer) {
        n.inputs[1] = quantized_weights(i, n);
      }
      const std::vector<std::string> outputs = n.outputs;
      network_.nodes.push_back(std::move(n));
      for (const std::string& name : outputs) {
        quantize_value(name);
      }
    }
    for (value_info& v : network_.outputs) {
      v.name = name_of(v.name);
    }
    network_.opsets["detent"] = 1;
  }

  /// Adds the fake quantizer of a layer's weights, and returns the name of its result.
  std::string quantized_weights(std::size_t i, const node& n) {
    const layer_weight_scales& w = weights_.at(i);
    const std::vector<float> scales =
        w.per_channel ? w.scales : std::vector<float>{w.scales.front()};
    const shape dims = {static_cast<std::int64_t>(scales.size())};
    const std::string base = n.inputs[1];
    const std::string scale =
        writer_.add_values<float>(base + "_scale", element_type::f32, dims, scales);
    weight_scales_[i] = scale;
    const std::vector<std::int32_t> zero_points(scales.size(), w.zero_point);
    const std::string result = writer_.fresh(base + "_fake_quantized");
    network_.nodes.push_back(make_fake_quantize(
        base, scale,
        writer_.add_values<std::int32_t>(base + "_zero_point", element_type::s32, dims,
                                         zero_points),
        result, w.scheme.levels,
        static_cast<std::int64_t>(weight_channel_axis(plan_.float_model().nodes[i]))));
    return result;
  }

  const quantization_plan& plan_;
  quantization_parameters parameters_;
  std::map<std::size_t, layer_weight_scales> weights_;
  model network_;
  detail::graph_writer writer_;
  std::map<std::string, std::string> quantized_;          // results of fake quantizers, by value
  std::map<std::string, std::string> activation_scales_;  // constants, by value
  std::map<std::size_t, std::string> weight_scales_;      // constants, by layer
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_FAKE_QUANTIZED_NETWORK_HPP
