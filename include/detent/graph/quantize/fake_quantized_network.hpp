// SPDX-License-Identifier: BSD-3-Clause
// The network that a quantized model is trained as: the float model of a plan with fake quantizers
// in the places where the exported model has QuantizeLinear and DequantizeLinear.
#ifndef DETENT_GRAPH_QUANTIZE_FAKE_QUANTIZED_NETWORK_HPP
#define DETENT_GRAPH_QUANTIZE_FAKE_QUANTIZED_NETWORK_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/fake_quantize_operator.hpp>
#include <detent/graph/learn/fold_normalization.hpp>
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
#include <detent/graph/quantize/trained_normalization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How the grid of an activation is trained.
enum class activation_rule : std::uint8_t {
  straight_through,  ///< Not at all: scale and zero point stay as they are.
  lsq,               ///< The scale learns (LSQ, Esser et al. 2020); the zero point is fixed.
  /// The scale learns, and the real of code 0 (LSQ+, Bhalgat et al. 2020): the zero point is that
  /// offset divided by the scale, rounded and within the grid, in training as in the file.
  lsq_plus,
  /// Behind a Relu, or a Clip whose lower bound is not negative, the largest real of the grid
  /// learns from the values above it alone (PACT, Choi et al. 2018); other values have `lsq`.
  pact,
};

/// What the fake quantizers of a network do for a while.
struct fake_quantized_form {
  bool quantizes = true;     ///< Whether they quantize, or else let values through.
  bool ranges_learn = true;  ///< Whether scales and offsets of activations get gradients.
  /// Whether the normalizations that are trained use the statistics of the batch, and running ones
  /// follow; what is computed is then not what is exported, which has the running ones.
  bool batch_statistics = false;
  friend bool operator==(const fake_quantized_form&, const fake_quantized_form&) = default;
};

/// The float network of a plan with a FakeQuantize node behind each value that is stored in 8 bits
/// and each weight of a layer, and a FakeQuantizeBias node at each bias. It computes what the model
/// that write_qdq() makes of the same numbers computes as for_execution() runs it in integers, bit
/// for bit: where that model has an integer product or average, the network has the same integer
/// operator beside the float one. The codes of the integer operator, or its float result, become
/// the result, and gradients take the way of the float operator. One thing is decided by the scales
/// that training begins with: whether the constant of an Add that stays in float, behind a MatMul
/// and in front of a value stored in 8 bits, is rounded (lower_quantized()).
///
/// Scales are constants of the network, one for each activation and one for each output channel (or
/// one in all) of a layer, so that they can be trained. Values whose elements are only moved have
/// no fake quantizer of their own: they are on the grid already.
class fake_quantized_network {
 public:
  /// Takes the parameters of all activations of the plan, and the scales of its layers' weights by
  /// the index of the node, as find_weight_scales() gives them; as in quantize_layer_weights(),
  /// they are raised where a bias does not fit. Later they are what training makes of them, and a
  /// bias beyond 32 bits saturates. `plan` must outlive the object.
  ///
  /// `normalizations` are those that the simplification of the plan's model has folded into its
  /// layers (fold_batch_norm()). Of the layers of the plan that have one, the weights and the
  /// normalization's factor and shift are trained, and folded in each step by a FoldNormalization
  /// node before their weights are quantized; of other layers, the folded weights are trained. A
  /// normalization with a factor of 0 is not trained.
  /// Throws invalid_argument, naming it, if one is missing.
  fake_quantized_network(const quantization_plan& plan, const quantization_parameters& parameters,
                         std::map<std::size_t, layer_weight_scales> weights,
                         activation_rule rule = activation_rule::lsq,
                         std::vector<folded_normalization> normalizations = {})
      : plan_(plan),
        parameters_(parameters),
        weights_(std::move(weights)),
        rule_(rule),
        levels_(activation_levels(parameters.activation_type, parameters.activation_bits)),
        network_(plan.float_model()),
        writer_(network_) {
    fit_weight_scales();
    find_integer_operators();
    take_normalizations(normalizations);
    build();
  }

  /// The network, for a gradient_graph. Constants that are not parameters of quantizers have the
  /// names that they have in the plan's float model.
  [[nodiscard]] const model& network() const noexcept { return network_; }
  /// The network in another form, with the same constants.
  [[nodiscard]] model network(const fake_quantized_form& form) const {
    model m = form.batch_statistics ? with_batch_statistics() : network_;
    if (!form.quantizes) {
      std::erase_if(m.nodes, [](const node& n) {
        return n.is("QuantizeLinear") || n.op_type == "OffsetZeroPoint" ||
               n.op_type.rfind("QLinear", 0) == 0;
      });
    }
    std::set<std::string> activations;
    for (const auto& [value, result] : quantized_) {
      activations.insert(result);
    }
    for (node& n : m.nodes) {
      if (n.op_type != "FakeQuantize" && n.op_type != "FakeQuantizeBias" &&
          n.op_type != "StraightThrough") {
        continue;
      }
      if (!form.quantizes) {
        make_identity(n);
      } else if (!form.ranges_learn && activations.count(n.outputs[0]) != 0) {
        n.attributes["fixed"] = attribute::of(std::int64_t{1});
      }
    }
    return m;
  }

  /// The grid of the activations.
  [[nodiscard]] grid levels() const noexcept { return levels_; }
  /// The parameters that the activations begin with, by value: those that have a fake quantizer of
  /// their own, without constants.
  [[nodiscard]] std::map<std::string, quant_params> activation_parameters() const {
    std::map<std::string, quant_params> found;
    for (const auto& [value, a] : activations_) {
      found[value] = parameters_.activations.at(value);
    }
    return found;
  }
  /// The constants that give an activation of activation_parameters() other parameters, by name.
  [[nodiscard]] std::map<std::string, tensor> activation_constants(const std::string& value,
                                                                   quant_params p) const {
    const activation& a = activations_.at(value);
    const auto real = [](float v) { return tensor::of<float>(element_type::f32, {}, {&v, 1}); };
    std::map<std::string, tensor> found;
    if (a.rule == activation_rule::pact) {
      const auto span = static_cast<float>((std::max)(levels_.qmax - p.zero_point, 1));
      found[a.steps] = real(span);
      found[a.clip] = real(p.scale * span);
    } else {
      found[a.scale] = real(p.scale);
    }
    if (a.rule == activation_rule::lsq_plus) {
      found[a.offset] = real(-(static_cast<float>(p.zero_point) * p.scale));
    } else {
      found[a.zero_point] = tensor::of<std::int32_t>(element_type::s32, {}, {&p.zero_point, 1});
      found[a.typed_zero_point] = typed_zero_point(p.zero_point);
    }
    return found;
  }
  /// The constants that give the weights of `trained`, a network with the nodes of network(), the
  /// scales that `find` gives them, raised where a bias does not fit. `find` takes a model with the
  /// nodes of the plan's float model, and the index of a layer.
  template <class Find>
  [[nodiscard]] std::map<std::string, tensor> fitted_weight_scales(const model& trained,
                                                                   const Find& find) const {
    const model m = float_model_of(trained);
    std::map<std::string, tensor> found;
    for (const auto& [i, name] : weight_scales_) {
      layer_weight_scales w = find(m, i);
      const activation& x = activation_of(m.nodes[i].inputs[0]);
      detail::fit_bias(w.scales, w.is_zero, w.per_channel, trained_params(trained, x).scale,
                       m.initializer(plan_.bias_name(i)), m.nodes[i]);
      const tensor& before = network_.initializers.at(name);
      w.scales.resize(before.count());
      found[name] = tensor::of<float>(element_type::f32, before.dims(), w.scales);
    }
    return found;
  }
  /// The name that a value of the plan's float model has in the network, behind its fake quantizer
  /// if it has one.
  [[nodiscard]] const std::string& name_of(const std::string& value) const {
    const auto found = quantized_.find(value);
    return found == quantized_.end() ? value : found->second;
  }

  /// The constants that training changes: those of the plan's float model that
  /// trainable_constants() lists, without those that are stored in 8 bits as they are, and the
  /// parameters of quantizers. Offsets have the role of biases, upper ends that of scales.
  /// `clip_penalty` is the penalty of upper ends (trained_constant).
  [[nodiscard]] std::vector<trained_constant> constants(bool weight_scales, bool activation_scales,
                                                        double clip_penalty = 0.0) const {
    std::vector<trained_constant> all;
    std::set<std::string> folded;
    for (const auto& [i, f] : folds_) {
      folded.insert({f.folded_weights, f.folded_bias});
    }
    for (const trained_constant& c : trainable_constants(plan_.float_model())) {
      if (plan_.values().count(c.name) == 0 && folded.count(c.name) == 0) {
        all.push_back(c);
      }
    }
    for (const auto& [i, f] : folds_) {
      all.push_back({f.inputs[0], constant_role::weight});
      all.push_back({f.inputs[1], constant_role::bias});
      all.push_back({f.inputs[2], constant_role::bias});
    }
    for (const auto& [value, a] : activations_) {
      if (!activation_scales || a.rule == activation_rule::straight_through) {
        continue;
      }
      if (a.rule == activation_rule::pact) {
        all.push_back({a.clip, constant_role::scale, clip_penalty});
      } else {
        all.push_back({a.scale, constant_role::scale});
      }
      if (a.rule == activation_rule::lsq_plus) {
        all.push_back({a.offset, constant_role::bias});
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
    quantization q{quantization_plan(plan_, float_model_of(trained)), parameters_, {}};
    for (const auto& [value, a] : activations_) {
      q.parameters.activations.at(value) = trained_params(trained, a);
    }
    for (auto& [value, p] : q.parameters.activations) {
      p = q.parameters.activations.at(plan_.root(value));
    }
    q.parameters.layers.clear();
    for (const std::size_t i : q.plan.layers()) {
      const model& now = q.plan.float_model();
      layer_weight_scales scales = weights_.at(i);
      const auto learned = trained.initializers.at(weight_scales_.at(i)).data<float>();
      for (std::size_t k = 0; k < scales.scales.size(); ++k) {
        scales.scales[k] = learned[learned.size() == 1 ? 0 : k];
      }
      q.parameters.layers.emplace(i, round_layer_weights(now, now.nodes[i], scales));
    }
    q.result = write_qdq(q.plan, q.parameters);
    return q;
  }

 private:
  /// The constants and values that make the grid of an activation.
  struct activation {
    activation_rule rule = activation_rule::lsq;
    std::string scale;             // float32
    std::string zero_point;        // int32
    std::string typed_zero_point;  // the same number in the type of the activations
    std::string offset;            // with lsq_plus
    std::string clip;              // with pact: the largest real, steps * scale
    std::string steps;             // with pact: qmax - zero_point
  };
  /// The quantized weights and bias of a layer.
  struct quantized_layer {
    std::string weights;           // behind the fake quantizer
    std::string scale;             // float32
    std::string typed_zero_point;  // int8
    std::int64_t axis = 0;
    std::string bias;        // behind the fake quantizer; empty if there is no bias
    std::string bias_codes;  // int32; empty if there is no bias
  };

  /// Lets a fake quantizer return its first input.
  static void make_identity(node& n) {
    n.op_type = "Identity";
    n.domain.clear();
    n.attributes.clear();
    n.inputs.resize(1);
    n.outputs.resize(1);
  }

  [[nodiscard]] static float value_of(const model& m, const std::string& name) {
    return m.initializers.at(name).data<float>()[0];
  }

  /// The plan's float model with the constants of a trained network.
  [[nodiscard]] model float_model_of(const model& trained) const {
    model m = plan_.float_model();
    for (auto& [name, value] : m.initializers) {
      const auto found = trained.initializers.find(name);
      if (found != trained.initializers.end()) {
        value = found->second;
      }
    }
    for (const auto& [i, f] : folds_) {
      f.fold(trained, m);
    }
    return m;
  }

  /// Takes the normalizations of the plan's layers whose folded constants are those of the plan.
  void take_normalizations(const std::vector<folded_normalization>& normalizations) {
    const model& m = plan_.float_model();
    const auto same = [](const tensor* a, const tensor& b) {
      return a != nullptr && a->dims() == b.dims() &&
             std::equal(a->raw(), a->raw() + a->bytes(), b.raw());
    };
    for (const folded_normalization& n : normalizations) {
      const auto found = producers_.find(n.normalization.first_output());
      const std::size_t i = found == producers_.end() ? m.nodes.size() : found->second;
      const auto factors = n.constants.at(n.normalization.inputs[1]).data<float>();
      if (weights_.count(i) == 0 || std::count(factors.begin(), factors.end(), 0.0F) != 0 ||
          !same(detail::float_constant(m, m.nodes[i], 1), n.weights) ||
          !same(detail::float_constant(m, m.nodes[i], 2), n.bias)) {
        continue;
      }
      folds_[i] = detail::make_trained_normalization(n, m.nodes[i], network_, writer_);
    }
  }

  /// The network with normalizations of the batch behind the layers that have one. The layer
  /// computes with its quantized folded weights; that is divided by the factor, and normalized.
  [[nodiscard]] model with_batch_statistics() const {
    model m = network_;
    std::map<std::string, const detail::trained_normalization*> layers;  // by result
    std::set<std::string> dropped;                                       // codes
    for (const auto& [i, f] : folds_) {
      const auto product = float_products_.find(i);
      layers[product == float_products_.end() ? plan_.float_model().nodes[i].first_output()
                                              : product->second] = &f;
      const auto codes = folded_codes_.find(i);
      if (codes != folded_codes_.end()) {
        dropped.insert(codes->second);
      }
    }
    std::erase_if(m.nodes, [&](const node& n) { return dropped.count(n.first_output()) != 0; });
    std::vector<node> nodes = std::move(m.nodes);
    m.nodes.clear();
    for (node& n : nodes) {
      if (n.op_type == "FakeQuantize" && n.inputs.size() > 3 && dropped.count(n.inputs[3]) != 0) {
        n.inputs[3].clear();
      } else if (n.op_type == "StraightThrough" && dropped.count(n.inputs[1]) != 0) {
        make_identity(n);
      }
      const auto found = n.outputs.empty() ? layers.end() : layers.find(n.outputs[0]);
      if (found == layers.end()) {
        m.nodes.push_back(std::move(n));
        continue;
      }
      for (node& one : found->second->with_batch_statistics(std::move(n))) {
        m.nodes.push_back(std::move(one));
      }
    }
    if (m.opset() < 14) {
      upgrade_opset(m, 19);  // BatchNormalization has no training form before opset 14
    }
    return m;
  }

  [[nodiscard]] tensor typed_zero_point(std::int32_t zero_point) const {
    tensor t = tensor::allocate(parameters_.activation_type, {});
    t.mutable_raw()[0] = static_cast<std::byte>(zero_point & 0xFF);
    return t;
  }

  /// The parameters of an activation in a trained network, by the arithmetic of its nodes.
  [[nodiscard]] quant_params trained_params(const model& trained, const activation& a) const {
    quant_params p;
    p.scale = a.rule == activation_rule::pact
                  ? value_of(trained, a.clip) / value_of(trained, a.steps)
                  : value_of(trained, a.scale);
    p.zero_point = a.rule == activation_rule::lsq_plus
                       ? offset_zero_point(value_of(trained, a.offset), p.scale, levels_)
                       : trained.initializers.at(a.zero_point).data<std::int32_t>()[0];
    // Scales and zero points may be from a checkpoint file.
    detent::detail::require_fake_params(p, levels_, "the trained parameters of an activation");
    return p;
  }

  /// Raises the scales of weights to where biases fit, as they begin.
  void fit_weight_scales() {
    const model& m = plan_.float_model();
    for (const std::size_t i : plan_.layers()) {
      const node& n = m.nodes[i];
      const auto found = weights_.find(i);
      require(found != weights_.end(), error_kind::invalid_argument,
              "fake_quantized_network: there are no scales of weights for ", n.label());
      const quant_params x =
          detail::entry_of(parameters_.activations, n.inputs[0], "parameters for the activation");
      detail::fit_bias(found->second.scales, found->second.is_zero, found->second.per_channel,
                       x.scale, plan_.bias(i), n);
    }
  }

  /// Finds which values of the plan an integer operator computes, by lowering the exported model.
  void find_integer_operators() {
    quantization_parameters begin = parameters_;
    begin.layers.clear();
    for (const std::size_t i : plan_.layers()) {
      const model& m = plan_.float_model();
      begin.layers.emplace(i, round_layer_weights(m, m.nodes[i], weights_.at(i)));
    }
    const model written = write_qdq(plan_, begin);
    constexpr std::string_view suffix = "_QuantizeLinear";
    std::map<std::string, std::string> value_of_codes;
    for (const node& n : written.nodes) {
      if (n.is("QuantizeLinear") && n.name.size() > suffix.size() && n.name.ends_with(suffix)) {
        value_of_codes[n.outputs[0]] = n.name.substr(0, n.name.size() - suffix.size());
      }
    }
    const model& m = plan_.float_model();
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      for (const std::string& name : m.nodes[i].outputs) {
        producers_[name] = i;
      }
    }
    static constexpr std::string_view exact[] = {"QLinearConv", "QLinearGemm", "QLinearMatMul",
                                                 "QLinearAveragePool", "QLinearGlobalAveragePool"};
    for (const node& n : for_execution(written).nodes) {
      if (std::find(std::begin(exact), std::end(exact), n.op_type) == std::end(exact)) {
        continue;
      }
      const auto codes = value_of_codes.find(n.first_output());
      if (codes != value_of_codes.end()) {
        integer_operators_[codes->second] = n;
        continue;
      }
      const auto maker = producers_.find(n.first_output());
      if (maker != producers_.end() && plan_.values().count(n.first_output()) == 0) {
        integer_operators_[m.nodes[before_clamps(maker->second)].first_output()] = n;
      }
    }
  }

  /// The node of the plan with that index or, if it is a clamp, the one before the row of clamps
  /// that it ends.
  [[nodiscard]] std::size_t before_clamps(std::size_t i) const {
    const model& m = plan_.float_model();
    for (auto before = producers_.end(); clamping_activation(m, m.nodes[i]).has_value();
         i = before->second) {
      before = producers_.find(m.nodes[i].inputs[0]);
      if (before == producers_.end()) {
        break;
      }
    }
    return i;
  }

  /// The parameters of a value that is quantized.
  [[nodiscard]] const activation& activation_of(const std::string& value) const {
    const auto found = activations_.find(plan_.root(value));
    return found != activations_.end() ? found->second : constants_.at(value);
  }

  void build() {
    std::vector<node> nodes = std::move(network_.nodes);
    network_.nodes.clear();
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
          if (const auto biased = plan_.layer_of_bias(i)) {
            n.inputs[k] = layers_.at(*biased).bias;
            continue;
          }
          if (quantized_.count(n.inputs[k]) == 0) {
            quantize_value(n.inputs[k]);
          }
        }
        if (plan_.quantizes(i) || !plan_.is_also_float(n.inputs[k])) {
          n.inputs[k] = name_of(n.inputs[k]);
        }
      }
      if (is_layer) {
        quantize_layer(i, n);
      }
      const std::vector<std::string> outputs = n.outputs;
      network_.nodes.push_back(std::move(n));
      for (const std::string& name : outputs) {
        replace_float_result(i, name);
        quantize_value(name);
      }
    }
    for (value_info& v : network_.outputs) {
      v.name = plan_.is_also_float(v.name) ? v.name : name_of(v.name);
    }
    network_.opsets["detent"] = 1;
  }

  /// Puts the result of the integer operator that computes a value in float, if there is one, in
  /// the place of that of node `i`, which the network has just got.
  void replace_float_result(std::size_t i, const std::string& value) {
    const auto computed = integer_operators_.find(value);
    if (computed == integer_operators_.end() || plan_.values().count(value) != 0) {
      return;
    }
    const std::string product = writer_.fresh(value + "_float");
    network_.nodes.back().outputs[0] = product;
    const integer_product_of_node from = product_of(i, true);
    const std::string exact = add_integer_operator(value, from, computed->second, nullptr);
    network_.nodes.push_back(make_straight_through(product, exact, value));
    if (folds_.count(from.maker) != 0) {
      folded_codes_[from.maker] = exact;
      float_products_[from.maker] = product;
    }
  }

  /// Adds the fake quantizer of a value if it is stored in 8 bits.
  void quantize_value(const std::string& value) {
    if (plan_.values().count(value) == 0 || plan_.root(value) != value) {
      return;
    }
    const activation a = add_parameters(value);
    const std::string result = writer_.fresh(value + "_fake_quantized");
    node n = make_fake_quantize(value, a.scale, a.zero_point, result, levels_);
    if (a.rule == activation_rule::pact) {
      n.attributes["clips"] = attribute::of(std::int64_t{1});
    }
    const auto computed = integer_operators_.find(value);
    if (computed != integer_operators_.end()) {
      // The value behind a Relu or Clip that the integer operator has absorbed has its bounds.
      const std::size_t last = producers_.at(value);
      const std::size_t unclamped = before_clamps(last);
      const activation_bounds bounds =
          unclamped == last ? activation_bounds() : plan_.bounds(value);
      const integer_product_of_node from = product_of(unclamped, false);
      const std::string codes = add_integer_operator(value, from, computed->second, &a);
      add_codes(n, codes, bounds.lower, bounds.upper);
      if (folds_.count(from.maker) != 0) {
        folded_codes_[from.maker] = codes;
      }
    }
    if (a.rule == activation_rule::lsq_plus) {
      add_offset(n, a.offset);
    }
    network_.nodes.push_back(std::move(n));
    quantized_[value] = result;
  }

  /// Adds the constants of a value's grid, and the nodes that compute it.
  const activation& add_parameters(const std::string& value) {
    const quant_params p =
        detail::entry_of(parameters_.activations, value, "parameters for the activation");
    const bool is_constant = plan_.float_model().initializer(value) != nullptr;
    activation a;
    a.rule = is_constant ? activation_rule::straight_through : rule_;
    const auto span = static_cast<float>(levels_.qmax - p.zero_point);
    if (a.rule == activation_rule::pact && (!(plan_.bounds(value).lower >= 0.0F) || span == 0.0F)) {
      a.rule = activation_rule::lsq;
    }
    if (a.rule == activation_rule::pact) {
      a.clip = add_scalar(value + "_clip", p.scale * span);
      a.steps = add_scalar(value + "_steps", span);
      a.scale = writer_.fresh(value + "_scale");
      network_.nodes.push_back(
          writer_.make_node("Div", value + "_scale_Div", {a.clip, a.steps}, a.scale));
    } else {
      a.scale = add_scalar(value + "_scale", p.scale);
    }
    if (a.rule == activation_rule::lsq_plus) {
      a.offset = add_scalar(value + "_offset", -(static_cast<float>(p.zero_point) * p.scale));
      a.zero_point = writer_.fresh(value + "_zero_point");
      a.typed_zero_point = writer_.fresh(value + "_typed_zero_point");
      network_.nodes.push_back(
          make_offset_zero_point(a.offset, a.scale, a.zero_point, a.typed_zero_point, levels_));
    } else {
      a.zero_point = writer_.add_values<std::int32_t>(value + "_zero_point", element_type::s32, {},
                                                      {p.zero_point});
      a.typed_zero_point =
          writer_.add_initializer(value + "_typed_zero_point", typed_zero_point(p.zero_point));
    }
    return (is_constant ? constants_ : activations_)[value] = a;
  }

  std::string add_scalar(const std::string& name, float value) {
    return writer_.add_values<float>(name, element_type::f32, {}, {value});
  }

  /// What the integer operator of a node computes.
  struct integer_product_of_node {
    std::size_t maker = 0;    // the node of the plan whose product it is
    std::string bias_codes;   // a bias in integers that is not the layer's own; may be empty
    std::string bias_floats;  // a bias that is added to a float result; may be empty
  };

  /// What computes node `i` of the plan: the layer whose integer operator also computes it, or the
  /// node itself. An Add behind a layer that stays in float is part of the operator in the
  /// executor. The executor adds the constant summand to a float result, and stores it as a bias if
  /// the result has 8 bits; the nodes that store it are added here.
  integer_product_of_node product_of(std::size_t i, bool to_float) {
    if (const auto layer = plan_.layer_of_bias(i)) {
      return {*layer, {}, {}};
    }
    const node& n = plan_.float_model().nodes[i];
    for (std::size_t k = 0; n.is("Add") && k < 2; ++k) {
      const auto product = producers_.find(n.inputs[k]);
      const auto layer =
          product == producers_.end() ? layers_.end() : layers_.find(product->second);
      if (layer == layers_.end()) {
        continue;
      }
      const std::string& bias = n.inputs[1 - k];
      if (to_float) {
        return {layer->first, {}, bias};
      }
      const std::string codes = writer_.fresh(bias + "_quantized");
      const std::string& x = plan_.float_model().nodes[layer->first].inputs[0];
      network_.nodes.push_back(
          make_fake_quantize_bias(bias, activation_of(x).scale, layer->second.scale,
                                  writer_.fresh(bias + "_fake_quantized"), codes));
      return {layer->first, codes, {}};
    }
    return {i, {}, {}};
  }

  /// Adds the integer operator that computes the codes of a value on the grid `to`, or the value in
  /// float if that is null, from the codes of what its maker takes, before any clamp. Returns the
  /// name of its result.
  std::string add_integer_operator(const std::string& value, const integer_product_of_node& product,
                                   const node& lowered, const activation* to) {
    const node& from = plan_.float_model().nodes[product.maker];
    node n = lowered;
    n.name = value + "_codes";
    for (const char* clamp : {"qmin", "qmax", "lower", "upper"}) {
      n.attributes.erase(clamp);
    }
    const auto operand = [&](const std::string& name) {
      const activation& a = activation_of(name);
      n.inputs.insert(n.inputs.end(), {codes_of(name, a), a.scale, a.typed_zero_point});
    };
    n.inputs.clear();
    operand(from.inputs[0]);
    const auto own = layers_.find(product.maker);
    if (own != layers_.end()) {
      const quantized_layer& l = own->second;
      n.inputs.insert(n.inputs.end(), {codes(l.weights, l.scale, l.typed_zero_point, l.axis),
                                       l.scale, l.typed_zero_point});
    } else if (n.op_type == "QLinearMatMul") {
      operand(from.inputs[1]);
    }
    n.inputs.insert(n.inputs.end(), {to == nullptr ? std::string() : to->scale,
                                     to == nullptr ? std::string() : to->typed_zero_point});
    if (own != layers_.end()) {
      n.inputs.push_back(product.bias_codes.empty() ? own->second.bias_codes : product.bias_codes);
    }
    if (!product.bias_floats.empty()) {
      n.inputs.push_back(product.bias_floats);
    }
    n.outputs = {writer_.fresh(value + "_codes")};
    network_.nodes.push_back(std::move(n));
    return network_.nodes.back().outputs[0];
  }

  /// The codes of an activation that is on the grid of `a`.
  std::string codes_of(const std::string& value, const activation& a) {
    const auto [entry, is_new] = codes_.try_emplace(value);
    if (is_new) {
      entry->second = codes(name_of(value), a.scale, a.typed_zero_point, 0);
    }
    return entry->second;
  }
  std::string codes(const std::string& value, const std::string& scale,
                    const std::string& zero_point, std::int64_t axis) {
    node n = writer_.make_node("QuantizeLinear", value + "_QuantizeLinear",
                               {value, scale, zero_point}, writer_.fresh(value + "_quantized"));
    n.attributes["axis"] = attribute::of(axis);
    network_.nodes.push_back(std::move(n));
    return network_.nodes.back().outputs[0];
  }

  /// Adds the fake quantizers of a layer's weights and bias, and gives the layer their results.
  void quantize_layer(std::size_t i, node& n) {
    const layer_weight_scales& w = weights_.at(i);
    const std::vector<float> scales =
        w.per_channel ? w.scales : std::vector<float>{w.scales.front()};
    const shape dims = detail::parameter_shape(scales.size());
    const std::string base = n.inputs[1];
    std::string weights = base;
    std::string bias = plan_.bias_name(i);
    const auto own = folds_.find(i);
    if (own != folds_.end()) {
      const detail::trained_normalization& f = own->second;
      const bool is_image = is_convolution(plan_.float_model().nodes[i]);
      network_.nodes.push_back(make_fold_normalization(
          f.inputs, f.results, f.axis,
          is_image ? network_.initializers.at(base).rank() - 2 : std::size_t{0}, f.epsilon));
      weights = f.results[0];
      bias = f.results[1];
    }
    quantized_layer l;
    l.axis = static_cast<std::int64_t>(weight_channel_axis(plan_.float_model().nodes[i]));
    l.scale = writer_.add_values<float>(base + "_scale", element_type::f32, dims, scales);
    weight_scales_[i] = l.scale;
    const std::vector<std::int32_t> zero_points(scales.size(), w.zero_point);
    l.typed_zero_point = writer_.add_values<std::int8_t>(
        base + "_typed_zero_point", element_type::s8, dims,
        std::vector<std::int8_t>(scales.size(), static_cast<std::int8_t>(w.zero_point)));
    l.weights = writer_.fresh(base + "_fake_quantized");
    network_.nodes.push_back(
        make_fake_quantize(weights, l.scale,
                           writer_.add_values<std::int32_t>(base + "_zero_point", element_type::s32,
                                                            dims, zero_points),
                           l.weights, w.scheme.levels, l.axis));
    n.inputs[1] = l.weights;
    if (!bias.empty()) {
      l.bias = writer_.fresh(bias + "_fake_quantized");
      l.bias_codes = writer_.fresh(bias + "_quantized");
      const std::string& x = plan_.float_model().nodes[i].inputs[0];
      network_.nodes.push_back(
          make_fake_quantize_bias(bias, activation_of(x).scale, l.scale, l.bias, l.bias_codes));
      if (n.inputs.size() > 2) {  // else an Add behind the layer takes it
        n.inputs[2] = l.bias;
      }
    }
    layers_[i] = std::move(l);
  }

  const quantization_plan& plan_;
  quantization_parameters parameters_;
  std::map<std::size_t, layer_weight_scales> weights_;
  activation_rule rule_;
  grid levels_;
  model network_;
  detail::graph_writer writer_;
  std::map<std::string, node> integer_operators_;      // of the lowered model, by value
  std::map<std::size_t, std::string> float_products_;  // before they are replaced, by layer
  std::map<std::string, std::size_t> producers_;       // nodes of the plan, by value
  std::map<std::string, std::string> quantized_;       // results of fake quantizers, by value
  std::map<std::string, std::string> codes_;           // of activations, by value
  std::map<std::string, activation> activations_;      // by value
  std::map<std::string, activation> constants_;        // of constant operands, by value
  std::map<std::size_t, detail::trained_normalization> folds_;  // by layer
  std::map<std::size_t, std::string> folded_codes_;             // of integer operators, by layer
  std::map<std::size_t, quantized_layer> layers_;               // by node
  std::map<std::size_t, std::string> weight_scales_;            // constants, by layer
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_FAKE_QUANTIZED_NETWORK_HPP
