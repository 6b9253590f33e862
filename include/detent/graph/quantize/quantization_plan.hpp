// SPDX-License-Identifier: BSD-3-Clause
// Decides which parts of a float model are quantized: which layers get integer weights, which
// values are stored in 8 bits, and which of those share their parameters.
#ifndef DETENT_GRAPH_QUANTIZE_QUANTIZATION_PLAN_HPP
#define DETENT_GRAPH_QUANTIZE_QUANTIZATION_PLAN_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/element_movement.hpp>
#include <detent/graph/quantize/embedding_tables.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/rewrite/gemm_factors.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>
#include <detent/observers/min_max.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {

/// Throws unsupported, naming the node, if the model has an operator on quantized values.
inline void require_not_quantized(const model& m) {
  for (const node& n : m.nodes) {
    const bool integer = n.op_type.find("Integer") != std::string::npos ||
                         n.op_type == "DynamicQuantizeLinear" ||
                         n.op_type == "DynamicQuantizeMatMul" || n.op_type == "MatMulNBits";
    require(!is_quantize_or_dequantize(n) && n.op_type.rfind("QLinear", 0) != 0 && !integer,
            error_kind::unsupported, "the model is already quantized: ", n.label());
  }
}

}  // namespace detail

/// Whether a node is a Conv or ConvTranspose of ONNX's own domain: the channels of its input and of
/// its result are dimension 1.
[[nodiscard]] inline bool is_convolution(const node& n) {
  return n.is("Conv") || n.is("ConvTranspose");
}

/// Whether a node is a Conv, ConvTranspose, Gemm or MatMul of ONNX's own domain.
[[nodiscard]] inline bool is_layer(const node& n) {
  return is_convolution(n) || n.is("Gemm") || n.is("MatMul");
}

/// The axis of the output channels in the weights of a layer: 0 for Conv and for Gemm with transB,
/// 1 for other Gemm, for MatMul and for ConvTranspose. In the weights of a ConvTranspose, [inputs,
/// outputs / group, kernel ...], index c of the axis stands for the output channels c, c + outputs
/// / group, ..., one for each group. The node must be one that is_quantizable_layer() accepts.
[[nodiscard]] inline std::size_t weight_channel_axis(const node& n) {
  return n.is("MatMul") || n.is("ConvTranspose") ? 1 : detail::output_channel_axis(n).value_or(0);
}

/// Whether a node is a Conv, ConvTranspose, Gemm or MatMul that can get integer weights: the
/// weights are a float32 constant (of rank 2 for Gemm and MatMul, at least 3 for convolutions), the
/// input is not a constant, and the bias, if there is one, is a float32 constant with one value for
/// each output channel. A Gemm must not have transA, and its alpha and beta must be 1; see
/// fold_gemm_factors().
[[nodiscard]] inline bool is_quantizable_layer(const model& m, const node& n) {
  const tensor* weights = detail::float_constant(m, n, 1);
  if (!is_layer(n) || n.outputs.empty() || weights == nullptr || weights->count() == 0 ||
      m.initializer(n.inputs[0]) != nullptr) {
    return false;
  }
  if (n.is("MatMul")) {
    return weights->rank() == 2;
  }
  // A convolution has output channels, input channels, and at least one spatial axis.
  if (n.is("Gemm") ? !detail::output_channel_axis(n) || weights->rank() != 2
                   : weights->rank() < 3) {
    return false;
  }
  if (n.inputs.size() < 3 || n.inputs[2].empty()) {
    return true;
  }
  const tensor* bias = detail::float_constant(m, n, 2);
  const std::int64_t groups = n.is("ConvTranspose") ? n.get_int("group", 1) : 1;
  return bias != nullptr && bias->rank() == 1 && groups > 0 && bias->dim(0) % groups == 0 &&
         bias->dim(0) / groups == weights->dim(weight_channel_axis(n));
}

/// The decisions of quantization for one model: which layers get integer weights, which values are
/// stored in 8 bits, and which of those share their parameters.
///
/// Layers with constant weights are quantized, with the Add of a bias behind a MatMul, and
/// operators that can run on 8-bit tensors if their inputs are 8-bit and their results are taken in
/// 8 bits. A value is stored in 8 bits only where
///
///   - a quantized node takes it,
///   - a quantized node makes it, and the graph returns it or a Softmax takes it as a matrix,
///   - a convolution makes it: runtimes have no convolutions of integers with float results, or
///   - it is an operand of a product of two values that quantized nodes make, and the result of the
///     product is stored.
///
/// So what only float operators take stays float: the sums of a transformer that a normalization
/// takes, for example, whose few large channels 8 bits for all channels would drown. A float
/// operator that takes a stored value gets its levels if a quantized node makes the value, else the
/// value as it is (is_also_float()).
///
/// Tables of embeddings are stored in 8 bits (quantize_embeddings()) with one scale for each row,
/// or one for the table where a rule says per_channel = false. Parameters are in
/// quantization_parameters; write_qdq() makes a model of both. Constant members may be called from
/// several threads at a time.
class quantization_plan {
 public:
  /// Simplifies the model with simplify(), upgrades it to an opset that has per-channel
  /// QuantizeLinear, and decides. `scope` selects nodes that stay in float and gives settings to
  /// single operators; it may name nodes that the simplification merges into others.
  ///
  /// Operators that the executor lacks are no error: they stay in float, and so does what needs
  /// 8-bit inputs from them. Layers behind them are part of the plan.
  ///
  /// Throws unsupported if the model is quantized already or its opset is beyond newest_opset;
  /// bad_file as require_arity(); invalid_argument if an entry of `scope` matches nothing or is not
  /// a regular expression, or if weights of a quantized layer hold NaN or infinity.
  explicit quantization_plan(model float_model, const quantization_scope& scope = {})
      : m_(std::move(float_model)) {
    detail::require_not_quantized(m_);
    require_known_opset(m_);
    require_arity(m_);
    // Simplification may merge nodes, so names are looked up in the model as it is in the file.
    std::map<std::size_t, ranked_settings> matching = matching_rules(m_, scope.operators);
    for (const std::size_t i : matching_nodes(m_, scope.ignored)) {
      matching[i][0].quantize = false;
    }
    std::vector<std::pair<std::vector<std::string>, ranked_settings>> candidates;
    const links before(m_);
    for (const auto& [i, ranked] : matching) {
      for (const std::string& name : m_.nodes[i].outputs) {
        if (!name.empty()) {  // empty: an output that is not asked for
          candidates.emplace_back(names_after_merging(name, before), ranked);
        }
      }
    }
    fold_constants(m_, false);  // weights of a Gemm may be a Transpose of a constant
    fold_gemm_factors(m_);
    simplify(m_);
    const links after(m_);
    // The rules of nodes that have become one are sorted before they are combined, so that a rule
    // for a merged node counts no more than its rank says. Those of one rank are the same rule.
    std::map<std::string, ranked_settings> merged;
    for (const auto& [names, ranked] : candidates) {
      const auto name = std::find_if(names.begin(), names.end(), [&](const std::string& value) {
        return after.producer(value) != links::none;
      });
      if (name != names.end()) {
        merged[*name].insert(ranked.begin(), ranked.end());
      }
    }
    for (const auto& [name, ranked] : merged) {
      settings_[name] = combined(ranked);
    }
    quantizes_first_layer_ = !scope.ignored.first_layer;
    quantizes_last_layer_ = !scope.ignored.last_layer;
    prepare();
  }

  /// Makes the decisions of `plan` for another model: the plan's model with other constants, and
  /// perhaps with more nodes and biases. The scope and the rules of `plan` are kept, also where
  /// they name nodes that its model has already merged.
  quantization_plan(const quantization_plan& plan, model rewritten)
      : m_(std::move(rewritten)),
        settings_(plan.settings_),
        quantizes_first_layer_(plan.quantizes_first_layer_),
        quantizes_last_layer_(plan.quantizes_last_layer_) {
    fold_constants(m_, false);  // weights of a Gemm may be a Transpose of a constant
    fold_gemm_factors(m_);
    simplify(m_);
    prepare();
  }

  /// The simplified float model that the plan is for.
  [[nodiscard]] const model& float_model() const noexcept { return m_; }
  /// Type and shape of every value for which they are known before a run, by name.
  [[nodiscard]] const std::map<std::string, tensor>& known() const noexcept { return known_; }
  /// Names of the values that are stored in 8 bits: activations, and constant operands.
  [[nodiscard]] const std::set<std::string>& values() const noexcept { return values_; }
  /// Whether the node with that index is quantized.
  [[nodiscard]] bool quantizes(std::size_t node_index) const {
    return nodes_.count(node_index) != 0;
  }
  /// Whether the scope, a rule or leave_out() leaves the node with that index in float.
  [[nodiscard]] bool ignores(std::size_t node_index) const {
    return ignored_.count(node_index) != 0;
  }
  /// Whether a value of values() is taken as it is, too: it is an input of the graph or made in
  /// float, and a float operator takes it or it is an output of the graph.
  [[nodiscard]] bool is_also_float(const std::string& value) const {
    return also_float_.count(value) != 0;
  }
  /// Indices of the layers that get integer weights, in topological order.
  [[nodiscard]] const std::vector<std::size_t>& layers() const noexcept { return layers_; }

  /// The layer, a MatMul, whose bias the node with that index adds: an Add of one float constant
  /// for each column that alone takes the product. Both are one integer operator, so the product
  /// itself is not stored in 8 bits. Nothing for other nodes.
  [[nodiscard]] std::optional<std::size_t> layer_of_bias(std::size_t node_index) const {
    const auto found = layers_of_biases_.find(node_index);
    return found == layers_of_biases_.end() ? std::nullopt : std::optional(found->second);
  }
  /// The name of the bias of the layer with that index, whether the layer takes it or an Add behind
  /// it: a float32 constant of rank 1. Empty if it has none.
  [[nodiscard]] const std::string& bias_name(std::size_t layer) const {
    static const std::string none;
    const auto addition = biases_.find(layer);
    if (addition != biases_.end()) {
      return m_.nodes[addition->second.node].inputs[addition->second.input];
    }
    const node& n = m_.nodes[layer];
    return n.inputs.size() > 2 ? n.inputs[2] : none;
  }
  /// The bias that bias_name() names; null if there is none.
  [[nodiscard]] const tensor* bias(std::size_t layer) const {
    return m_.initializer(bias_name(layer));
  }

  /// The settings that rules give to a node; without any values if there are none.
  [[nodiscard]] const operator_settings& settings(std::size_t node_index) const {
    static const operator_settings none;
    const auto found = settings_.find(m_.nodes[node_index].first_output());
    return found == settings_.end() ? none : found->second;
  }
  /// The name of the observer that rules give to a value, also through the values that its elements
  /// are moved to; empty if there is none. If several operators take the value, the first of them
  /// in topological order that has a method decides.
  [[nodiscard]] std::string method(const std::string& value) const {
    const auto found = methods_.find(value);
    return found == methods_.end() ? std::string() : found->second;
  }

  /// The value whose parameters `value` has: the one that its elements are moved from, or itself if
  /// it is not made by moving elements.
  [[nodiscard]] const std::string& root(const std::string& value) const {
    const auto found = share_.find(value);
    return found == share_.end() ? value : found->second;
  }

  /// The bounds that no element of a value exceeds: those of the Relu or Clip that makes it, or
  /// infinite ones.
  [[nodiscard]] activation_bounds bounds(const std::string& value) const {
    const auto found = bounds_.find(value);
    return found == bounds_.end() ? activation_bounds() : found->second;
  }

  /// Whether a value is one that a classifier ranks: a matrix that is an output of the graph or
  /// that a Softmax takes.
  [[nodiscard]] bool is_ranked(const std::string& value) const {
    const auto found = known_.find(value);
    return found != known_.end() && found->second.rank() == 2 && ranked_.count(value) != 0;
  }

  /// Number of inputs of a node that carry tensors, as opposed to axes, sizes and the like.
  [[nodiscard]] static std::size_t data_inputs(const node& n) {
    return n.is("Add") || n.is("Mul") ? 2 : n.is("Concat") ? n.inputs.size() : 1;
  }

  /// Leaves more nodes, given by their indices, in float, and with them everything that needs their
  /// results in 8 bits. A layer among them gets back the bias that it had before set_bias(), and so
  /// does one whose Add of a bias is among them.
  /// Indices of nodes do not change.
  void leave_out(const std::set<std::size_t>& nodes) {
    for (const std::size_t i : nodes) {
      ignored_.insert(i);
      const std::size_t layer = layer_of_bias(i).value_or(i);
      const auto before = biases_before_.find(layer);
      if (before != biases_before_.end()) {
        give_bias(layer, before->second);
        biases_before_.erase(before);
      }
    }
    nodes_.clear();
    layers_.clear();
    biases_.clear();
    layers_of_biases_.clear();
    values_.clear();
    also_float_.clear();
    share_.clear();
    bounds_.clear();
    choose();
  }

  /// Replaces the bias of a layer, given by the index of its node, or adds one if it had none.
  /// `bias` is float32 with one value for each output channel. Throws invalid_argument for a MatMul
  /// without a bias: nothing adds one to its product.
  void set_bias(std::size_t layer, tensor bias) {
    require(!m_.nodes[layer].is("MatMul") || biases_.count(layer) != 0,
            error_kind::invalid_argument, m_.nodes[layer].label(), " has no bias");
    biases_before_.emplace(layer, bias_name(layer));
    give_bias(layer, add_bias_constant(layer, std::move(bias)));
  }

 private:
  /// Where a bias is an input of an Add behind its layer.
  struct bias_addition {
    std::size_t node = 0;   ///< Index of the Add.
    std::size_t input = 0;  ///< Which of its inputs is the bias.
  };

  /// Makes the constant `name` the bias of a layer; if it is empty, the layer has none afterwards.
  void give_bias(std::size_t layer, const std::string& name) {
    const auto addition = biases_.find(layer);
    if (addition != biases_.end()) {
      m_.nodes[addition->second.node].inputs[addition->second.input] = name;
      return;
    }
    std::vector<std::string>& inputs = m_.nodes[layer].inputs;
    inputs.resize(name.empty() ? 2 : 3);
    if (!name.empty()) {
      inputs[2] = name;
    }
  }

  /// Adds a constant for the bias of a layer to the model, and returns its name.
  std::string add_bias_constant(std::size_t layer, tensor bias) {
    if (!names_) {
      names_.emplace(m_);
    }
    std::string name = names_->take(m_.nodes[layer].outputs[0] + "_bias");
    known_[name] = bias;
    m_.initializers[name] = std::move(bias);
    return name;
  }

  /// A value, and the names that it may have after other nodes are merged into the layer that makes
  /// it: a Gemm made of MatMul and Add has the name of the result of the Add, and so on.
  [[nodiscard]] std::vector<std::string> names_after_merging(const std::string& value,
                                                             const links& l) const {
    std::vector<std::string> names{value};
    const std::size_t maker = l.producer(value);
    const bool absorbs = maker != links::none && is_layer(m_.nodes[maker]);
    for (std::size_t k = 0; k < names.size(); ++k) {
      const auto& users = l.consumers(names[k]);
      for (const std::size_t i : users) {
        const node& n = m_.nodes[i];
        if (n.outputs.empty() || n.inputs.empty() || n.inputs[0].empty()) {
          continue;
        }
        const bool bypassed = n.is("Identity") || n.is("Dropout");
        const bool merges = absorbs && users.size() == 1 && !m_.is_output(names[k]) &&
                            (n.is("BatchNormalization") || n.is("Add"));
        if (bypassed || merges) {
          names.push_back(n.outputs[0]);
        }
      }
    }
    return names;
  }

  /// Upgrades the model, finds the nodes to ignore, and decides.
  void prepare() {
    upgrade_opset(m_);
    store_embeddings();
    known_ = infer_types(m_);
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      const std::vector<std::string>& outputs = m_.nodes[i].outputs;
      if (std::any_of(outputs.begin(), outputs.end(), [&](const std::string& name) {
            const auto found = settings_.find(name);
            return found != settings_.end() && !found->second.quantize.value_or(true);
          })) {
        ignored_.insert(i);
      }
    }
    const std::vector<std::size_t> all = quantizable_layers();
    if (!quantizes_first_layer_ && !all.empty()) {
      ignored_.insert(all.front());
    }
    if (!quantizes_last_layer_ && !all.empty()) {
      ignored_.insert(all.back());
    }
    choose();
    require_finite_weights();
  }

  /// Throws invalid_argument, naming the layer, if its weights hold NaN or infinity. Without this
  /// check, the first value that they make not finite is named, as if its sample were wrong.
  void require_finite_weights() const {
    for (const std::size_t i : layers_) {
      const node& n = m_.nodes[i];
      detail::with_context(n.label() + ": weights '" + n.inputs[1] + "'", [&] {
        const tensor& weights = *detail::float_constant(m_, n, 1);
        min_max_observer range;
        range.observe(weights.data<float>());
        static_cast<void>(range.range());
        release_pages(weights);
      });
    }
  }

  /// The settings that rules give to the node that makes a value.
  [[nodiscard]] operator_settings settings_of(const std::string& value) const {
    const auto found = settings_.find(value);
    return found == settings_.end() ? operator_settings() : found->second;
  }

  /// Stores the tables of embeddings in 8 bits, but for those that rules leave in float.
  void store_embeddings() {
    quantize_embeddings(m_, [&](const node& n) {
      const operator_settings own = settings_of(n.first_output());
      return own.quantize.value_or(true) ? std::optional<bool>(own.per_channel.value_or(true))
                                         : std::nullopt;
    });
    remove_unused(m_);
  }

  [[nodiscard]] bool is_float(const std::string& value) const {
    const auto found = known_.find(value);
    return found != known_.end() && found->second.type() == element_type::f32;
  }

  [[nodiscard]] std::vector<std::size_t> quantizable_layers() const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      if (is_quantizable_layer(m_, m_.nodes[i])) {
        all.push_back(i);
      }
    }
    return all;
  }

  /// Whether a sum has a constant that 8 bits cannot hold beside the other addend: attention masks
  /// add -infinity or numbers like -10000 to the input of a Softmax.
  [[nodiscard]] bool adds_mask(const node& n) const {
    constexpr float limit = 5000.0F;
    return n.is("Add") && std::any_of(n.inputs.begin(), n.inputs.end(), [&](const auto& name) {
             const tensor* t = m_.initializer(name);
             if (t == nullptr || t->type() != element_type::f32) {
               return false;
             }
             const auto values = t->data<float>();
             return std::any_of(values.begin(), values.end(), [](float v) { return v <= -limit; });
           });
  }

  /// Whether a node runs on 8-bit tensors if its inputs are 8-bit.
  [[nodiscard]] bool follows(const node& n) const {
    static constexpr std::string_view names[] = {
        "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"};
    return n.domain.empty() &&
           (moves_elements(n) || clamping_activation(m_, n).has_value() ||
            std::find(std::begin(names), std::end(names), n.op_type) != std::end(names)) &&
           !adds_mask(n);
  }

  /// Decides, in topological order, which nodes are quantized and which values are stored in 8
  /// bits.
  void choose() {
    const links l(m_);
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      const node& n = m_.nodes[i];
      if (n.outputs.empty() || n.inputs.empty() || ignored_.count(i) != 0) {
        continue;
      }
      if (is_quantizable_layer(m_, n)) {
        values_.insert(n.inputs[0]);
        nodes_.insert(i);
        layers_.push_back(i);
        take_result(i, l);
        continue;
      }
      if (nodes_.count(i) != 0 || !follows(n) || n.outputs.size() != 1) {
        continue;
      }
      bool ready = true;
      bool any = false;
      for (std::size_t k = 0; k < data_inputs(n); ++k) {
        const bool constant = detail::float_constant(m_, n, k) != nullptr;
        any = any || (!constant && values_.count(n.inputs[k]) != 0);
        ready = ready && (constant || values_.count(n.inputs[k]) != 0);
      }
      if (!ready || !any || !is_float(n.outputs[0])) {
        continue;
      }
      nodes_.insert(i);
      for (std::size_t k = 0; k < data_inputs(n); ++k) {
        if (detail::float_constant(m_, n, k) != nullptr) {
          values_.insert(n.inputs[k]);
        }
      }
      take_result(i, l);
      if (moves_elements(n)) {
        share_[n.outputs[0]] = root(n.inputs[0]);
      }
    }
    ranked_.clear();
    for (const value_info& v : m_.outputs) {
      ranked_.insert(v.name);
    }
    for (const node& n : m_.nodes) {
      if (n.is("Softmax") && !n.inputs.empty()) {
        ranked_.insert(n.inputs[0]);
      }
    }
    drop_unused(l);
    methods_.clear();
    for (std::size_t i = 0; i < m_.nodes.size() && !settings_.empty(); ++i) {
      if (settings(i).method) {
        for (const std::string& name : m_.nodes[i].inputs) {
          methods_.emplace(root(name), *settings(i).method);  // the first operator decides
        }
      }
    }
  }

  /// Whether the graph or a classifier takes the result of a quantized node in 8 bits.
  [[nodiscard]] bool is_result(const std::string& value) const {
    return m_.is_output(value) || is_ranked(value);
  }

  /// Whether a node makes the stored result of a quantized convolution: the convolution itself, or
  /// the clamp behind it.
  [[nodiscard]] bool makes_convolution_result(std::size_t i, const links& l) const {
    const node& n = m_.nodes[i];
    const std::size_t before = l.producer(n.inputs[0]);
    return is_convolution(n) ||
           (before != links::none && nodes_.count(before) != 0 &&
            is_convolution(m_.nodes[before]) && values_.count(n.inputs[0]) == 0);
  }

  /// Whether a node is a product of two values that quantized nodes make. It is on integers if its
  /// result is stored.
  [[nodiscard]] bool is_product_of_values(const node& n, const links& l) const {
    return n.is("MatMul") && n.inputs.size() == 2 &&
           std::all_of(n.inputs.begin(), n.inputs.end(), [&](const std::string& value) {
             return values_.count(value) != 0 && quantizes(l.producer(value));
           });
  }

  /// Leaves in float what nothing takes in 8 bits, and the operators that make only such values.
  void drop_unused(const links& l) {
    std::set<std::string> used;
    for (std::size_t i = m_.nodes.size(); i-- > 0;) {
      const node& n = m_.nodes[i];
      if (!quantizes(i)) {
        if (n.outputs.size() == 1 && used.count(n.outputs[0]) != 0 && is_product_of_values(n, l)) {
          used.insert(n.inputs.begin(), n.inputs.end());
        }
        continue;
      }
      if (is_result(n.outputs[0]) || makes_convolution_result(i, l)) {
        used.insert(n.outputs[0]);
      }
      if (is_layer(n)) {
        used.insert(n.inputs[0]);
      } else if (!layer_of_bias(i) && used.count(n.outputs[0]) != 0) {
        // With the result that a clamp follows, which is not stored.
        const auto count = static_cast<std::ptrdiff_t>(data_inputs(n));
        used.insert(n.inputs.begin(), n.inputs.begin() + count);
      }
    }
    std::erase_if(nodes_, [&](std::size_t i) {
      const node& n = m_.nodes[i];
      return !is_layer(n) && !layer_of_bias(i) && used.count(n.outputs[0]) == 0;
    });
    const auto is_unused = [&](const std::string& value) { return used.count(value) == 0; };
    const auto has_unused = [&](const auto& entry) { return is_unused(entry.first); };
    std::erase_if(values_, is_unused);
    std::erase_if(share_, has_unused);
    std::erase_if(bounds_, has_unused);
    for (const std::string& value : values_) {
      const std::size_t maker = l.producer(value);
      const bool is_made_in_integers =
          maker != links::none && (quantizes(maker) || is_product_of_values(m_.nodes[maker], l));
      const auto users = l.consumers(value);
      if (!is_made_in_integers && m_.initializer(value) == nullptr &&
          (m_.is_output(value) ||
           std::any_of(users.begin(), users.end(), [&](std::size_t i) { return !quantizes(i); }))) {
        also_float_.insert(value);
      }
    }
  }

  /// Whether an Add behind layer `i` adds its bias; see layer_of_bias(). If so, takes note of it. A
  /// bias of a shape like [1, 1, columns] is replaced by one of rank 1.
  bool take_bias(std::size_t i, const links& l) {
    const std::size_t next =
        m_.nodes[i].is("MatMul") ? detail::sole_consumer(m_, l, i) : links::none;
    if (next == links::none || ignored_.count(next) != 0 || !m_.nodes[next].is("Add") ||
        m_.nodes[next].inputs.size() != 2 || adds_mask(m_.nodes[next])) {
      return false;
    }
    const std::string& product = m_.nodes[i].outputs[0];
    const std::size_t input = m_.nodes[next].inputs[0] == product ? 1 : 0;
    const tensor* bias = detail::float_constant(m_, m_.nodes[next], input);
    // A product has at least one axis, that of its columns.
    const bool has_axes = bias != nullptr && bias->rank() > 1;
    if (has_axes && !types_) {
      types_.emplace(m_);
    }
    const std::size_t rank = has_axes ? types_->rank(product).value_or(1) : 1;
    const std::int64_t columns = detail::float_constant(m_, m_.nodes[i], 1)->dim(1);
    if (bias == nullptr || !detail::is_row_of_channels(bias->dims(), columns, 0, rank)) {
      return false;
    }
    biases_[i] = {next, input};
    layers_of_biases_[next] = i;
    if (bias->rank() != 1) {
      give_bias(i, add_bias_constant(i, bias->reshaped({columns})));
    }
    return true;
  }

  /// Marks the result of a node as stored in 8 bits. The result of a layer, an addition or a
  /// product is stored once: behind the addition of its bias and the clamping activation that
  /// follow it, if there are such.
  void take_result(std::size_t i, const links& l) {
    if (is_layer(m_.nodes[i]) && take_bias(i, l)) {
      i = biases_.at(i).node;
      nodes_.insert(i);
    }
    const node& n = m_.nodes[i];
    const std::size_t next =
        is_layer(n) || n.is("Add") || n.is("Mul") ? detail::sole_consumer(m_, l, i) : links::none;
    const auto bounds = next == links::none || ignored_.count(next) != 0
                            ? std::optional<activation_bounds>()
                            : clamping_activation(m_, m_.nodes[next]);
    if (bounds) {
      nodes_.insert(next);
      values_.insert(m_.nodes[next].outputs[0]);
      bounds_[m_.nodes[next].outputs[0]] = *bounds;
      return;
    }
    values_.insert(n.outputs[0]);
    if (const auto own = clamping_activation(m_, n)) {
      bounds_[n.outputs[0]] = *own;
    }
  }

  model m_;
  std::map<std::string, tensor> known_;
  std::optional<detail::value_types> types_;  // where a number of dimensions has to be certain
  std::map<std::string, operator_settings> settings_;  // by the names of their outputs
  bool quantizes_first_layer_ = true;
  bool quantizes_last_layer_ = true;
  std::set<std::size_t> ignored_;
  std::set<std::size_t> nodes_;
  std::vector<std::size_t> layers_;
  std::map<std::size_t, bias_addition> biases_;          // by layer
  std::map<std::size_t, std::size_t> layers_of_biases_;  // by the node that adds the bias
  std::set<std::string> values_;
  std::set<std::string> also_float_;                  // of the values
  std::map<std::string, std::string> share_;          // the root of each value that is only moved
  std::map<std::string, activation_bounds> bounds_;   // of what a Relu or Clip makes
  std::set<std::string> ranked_;                      // outputs of the graph, inputs of Softmax
  std::map<std::string, std::string> methods_;        // that rules give to roots
  std::optional<unused_names> names_;                 // made when first needed
  std::map<std::size_t, std::string> biases_before_;  // names, by layer that set_bias() changed
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QUANTIZATION_PLAN_HPP
