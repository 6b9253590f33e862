// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/rewrite/ holds passes that change a model: simplification, opset upgrades,
// lowering to integer operators, and rewrites that make a float model easier to quantize
// (equalization, channel alignment and splitting, SmoothQuant). It may include its own headers,
// graph/model/, graph/ops/, graph/run/ and everything below the graph part; it must not include
// graph/quantize/ or any other folder above it.
//
// This header holds rewrites that preserve what a model computes: constant folding, folding of
// batch normalization and bias additions into the layer before, fusion of activations into a layer,
// and removal of unused nodes.
#ifndef DETENT_GRAPH_REWRITE_OPTIMIZE_HPP
#define DETENT_GRAPH_REWRITE_OPTIMIZE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/dropout.hpp>
#include <detent/graph/ops/folded_channels.hpp>
#include <detent/graph/rewrite/full_pads.hpp>
#include <detent/graph/rewrite/renaming.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/run_resources.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Removes nodes, initializers and value declarations that no output depends on. Sub-graphs stay as
/// they are; the values that they capture are kept as long as the node that they belong to.
inline void remove_unused(model& m) {
  detail::name_table<detail::no_value> used(m.nodes.size() + m.initializers.size());
  for (const value_info& v : m.outputs) {
    used.add(v.name);
  }
  std::vector<bool> keep(m.nodes.size(), false);
  for (std::size_t i = m.nodes.size(); i-- > 0;) {
    for (const std::string& out : m.nodes[i].outputs) {
      keep[i] = keep[i] || (!out.empty() && used.has(out));
    }
    if (keep[i]) {
      for (const std::string& name : m.nodes[i].inputs) {
        used.add(name);
      }
      for (const std::string& name : captured_values(m.nodes[i])) {
        used.add(name);
      }
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (keep[i] && kept++ != i) {
      m.nodes[kept - 1] = std::move(m.nodes[i]);
    }
  }
  m.nodes.resize(kept);
  std::erase_if(m.initializers, [&](const auto& entry) { return !used.has(entry.first); });
  if (!m.values.empty()) {
    detail::name_set made;
    for (const node& n : m.nodes) {
      made.insert(n.outputs.begin(), n.outputs.end());
    }
    std::erase_if(m.values, [&](const value_info& v) { return made.count(v.name) == 0; });
  }
}

/// Whether a node is QuantizeLinear or DequantizeLinear, of ONNX or com.microsoft.
[[nodiscard]] inline bool is_quantize_or_dequantize(const node& n) {
  return n.is("QuantizeLinear") || n.is("DequantizeLinear");
}

namespace detail {

/// Whether the model has a node with one of these operators. A pass that needs such a node asks
/// before it builds an index of the whole model.
[[nodiscard]] inline bool has_any(const model& m,
                                  std::initializer_list<std::string_view> operators) {
  return std::any_of(m.nodes.begin(), m.nodes.end(), [&](const node& n) {
    return std::find(operators.begin(), operators.end(), n.op_type) != operators.end();
  });
}

/// The only node that takes the output of node i, or links::none. It is none also if node i has
/// several outputs, or if the output is one of the graph or is captured by a sub-graph.
inline std::size_t sole_consumer(const model& m, const links& l, std::size_t i) {
  const node& n = m.nodes[i];
  if (n.outputs.empty() || l.is_output(n.outputs[0])) {
    return links::none;
  }
  for (std::size_t k = 1; k < n.outputs.size(); ++k) {
    if (!n.outputs[k].empty()) {
      return links::none;
    }
  }
  const auto& users = l.consumers(n.outputs[0]);
  if (users.size() != 1) {
    return links::none;
  }
  const std::vector<std::string>& taken = m.nodes[users[0]].inputs;
  const bool is_taken = std::find(taken.begin(), taken.end(), n.outputs[0]) != taken.end();
  return is_taken ? users[0] : links::none;
}

/// Merges node `second` into node `first`, whose output is its only input: `first` takes over its
/// output.
inline void absorb(model& m, std::size_t first, std::size_t second) {
  m.nodes[first].outputs = {m.nodes[second].outputs[0]};
  m.nodes[second].op_type.clear();  // removed by erase_absorbed()
}

inline void erase_absorbed(model& m) {
  std::erase_if(m.nodes, [](const node& n) { return n.op_type.empty(); });
}

/// Input `i` of a node if it is a float32 constant whose elements are in memory, else null.
inline const tensor* float_constant(const model& m, const node& n, std::size_t i) {
  const tensor* t = i < n.inputs.size() ? m.initializer(n.inputs[i]) : nullptr;
  return t != nullptr && t->type() == element_type::f32 && t->has_data() ? t : nullptr;
}

/// The axis of the output channels in the weights of a Conv, or of a Gemm without transA whose
/// alpha and beta are 1; nothing for all other nodes.
inline std::optional<std::size_t> output_channel_axis(const node& n) {
  if (n.is("Conv")) {
    return 0;
  }
  if (n.is("Gemm") && n.get_int("transA", 0) == 0 && n.get_float("alpha", 1.0F) == 1.0F &&
      n.get_float("beta", 1.0F) == 1.0F) {
    return n.get_int("transB", 0) != 0 ? 0 : 1;
  }
  return std::nullopt;
}

/// Whether a node is an Identity, a Sum of one value, or a Dropout that does not train by its
/// inputs or attributes.
[[nodiscard]] inline bool is_no_op(const model& m, const node& n) {
  return (n.is("Identity") || n.is("Dropout") || (n.is("Sum") && n.inputs.size() == 1)) &&
         !n.inputs.empty() && !n.inputs[0].empty() && !n.outputs.empty() && !n.outputs[0].empty() &&
         !(n.is("Dropout") && ((n.inputs.size() > 2 && !n.inputs[2].empty()) ||
                               ops::is_dropout_in_training(n, m.opset())));
}

/// For each no-op of a model, whether a Gemm, MatMul or Transpose takes the value that it passes
/// on, there or behind other no-ops, which all may give it their names.
[[nodiscard]] inline std::vector<bool> no_ops_beside_products(const model& m) {
  detail::name_map<std::string> passed_on;  // by the output of a no-op
  const auto origin = [&](const std::string& value) {
    const auto found = passed_on.find(value);
    return found == passed_on.end() ? value : found->second;
  };
  detail::name_set taken;
  for (const node& n : m.nodes) {
    if (is_no_op(m, n)) {
      passed_on[n.outputs[0]] = origin(n.inputs[0]);
    } else if (n.is("Gemm") || n.is("MatMul") || n.is("Transpose")) {
      for (const std::string& in : n.inputs) {
        taken.insert(origin(in));
      }
    }
  }
  std::vector<bool> beside(m.nodes.size(), false);
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    beside[i] = is_no_op(m, m.nodes[i]) && taken.count(origin(m.nodes[i].inputs[0])) != 0;
  }
  return beside;
}

}  // namespace detail

/// Removes Identity nodes, Sum nodes of one value, and Dropout nodes that do nothing in inference,
/// and connects what takes their output to their input. A node stays if its mask is used, if it has
/// an input for the training mode or is in training by its attributes, if it connects an input of
/// the graph to an output, if a sub-graph would hide the name, or if it makes an output of the
/// graph from a value that a Gemm, MatMul or Transpose takes, too, directly or behind other such
/// nodes: releases of ONNX Runtime up to 1.26 fuse those with a Transpose before them and then lack
/// the value if it is an output.
DETENT_GRAPH_DECL void remove_no_ops(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void remove_no_ops(model& m) {
  if (!detail::has_any(m, {"Identity", "Sum", "Dropout"})) {
    return;
  }
  const links l(m);
  const std::vector<bool> is_beside_product = detail::no_ops_beside_products(m);
  detail::renaming names(m);
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    node& n = m.nodes[i];
    if (!detail::is_no_op(m, n)) {
      continue;
    }
    const bool has_mask = n.outputs.size() > 1 && !n.outputs[1].empty() &&
                          (!l.consumers(n.outputs[1]).empty() || l.is_output(n.outputs[1]));
    if (has_mask) {
      continue;
    }
    // The input may have got another name from the nodes before. The output has not: it is behind
    // them, and only the input of a node that makes an output of the graph is renamed.
    const std::string in = names.name_of(n.inputs[0]);
    const std::string out = n.outputs[0];
    const bool removable = l.is_output(out) ? l.producer(in) != links::none && !l.is_output(in) &&
                                                  !is_beside_product[i] && names.rename(in, out)
                                            : names.rename(out, in);
    if (removable) {
      n.op_type.clear();
      n.inputs.clear();
      n.outputs.clear();
    }
  }
  names.apply_to(m);
  detail::erase_absorbed(m);
}
#endif

/// Computes nodes whose inputs, captured values included, are all constants, and replaces them by
/// initializers. Loop and Scan nodes are not computed, because they can make large tensors from few
/// constants, and neither are nodes once the constants that were made have more bytes together than
/// 64 MiB and eight times the constants of the model. Nodes that make an output of the graph stay.
///
/// QuantizeLinear and DequantizeLinear are left alone unless `dequantize` is true, because they
/// mark which weights are quantized. Sub-graphs stay as they are. `registry` has the operators that
/// can be computed; others stay. A node also stays if it would need more than twice that memory or
/// 2^20 iterations, or if all computed nodes together would need more than 2^30 multiply-adds and
/// 256 for each element of the model's constants. Throws what the operators throw.
DETENT_GRAPH_DECL void fold_constants(model& m, bool dequantize,
                                      const operator_registry& registry = default_operators());

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void fold_constants(model& m, bool dequantize,
                                      const operator_registry& registry) {
  std::size_t room = std::size_t{64} << 20U;  // for new constants, in bytes
  executor_options limits;
  limits.max_iterations = std::size_t{1} << 20U;
  limits.max_multiply_adds = std::uint64_t{1} << 30U;
  for (const auto& [name, t] : m.initializers) {
    room += 8 * t.bytes();
    limits.max_multiply_adds += 256 * static_cast<std::uint64_t>(t.count());
  }
  limits.max_memory_bytes = 2 * room;  // for the results of a node, and scratch memory
  const auto resources = std::make_shared<detail::run_resources>(limits);
  detail::inference_scope scope(m);
  resources->inference = &scope;
  std::set<std::string> outputs_of_graph;
  for (const value_info& v : m.outputs) {
    outputs_of_graph.insert(v.name);
  }
  for (node& n : m.nodes) {
    if (is_quantize_or_dequantize(n) && !dequantize) {
      continue;
    }
    const operator_definition* definition = registry.find(n.domain, n.op_type);
    // Nodes of sub-graphs may call functions, too.
    bool constant = definition != nullptr && scope.functions.function_of(n) == nullptr &&
                    detail::is_brief(n) && (m.functions.empty() || !has_bodies(n));
    detail::node_inputs inputs;
    const auto look_up = [&](const std::string& name) {
      const tensor* t = name.empty() ? nullptr : m.initializer(name);
      constant = constant && (name.empty() || (t != nullptr && t->has_data()));
      return t == nullptr ? tensor() : *t;
    };
    for (const std::string& name : n.inputs) {
      inputs.add(look_up(name));
    }
    detail::subgraph_runner subgraphs(m, n, resources, registry);
    for (std::size_t i = 0; i < subgraphs.captured().size(); ++i) {
      subgraphs.set_captured(i, look_up(subgraphs.captured()[i]), true);
    }
    for (const std::string& out : n.outputs) {
      constant = constant && outputs_of_graph.count(out) == 0;
    }
    if (!constant) {
      continue;
    }
    std::unique_ptr<operator_state> state;
    const auto apply = [&](bool shapes_only) {
      return detail::apply(n, *definition, detail::opset_of(m, n), inputs, {}, state, *resources,
                           shapes_only, &subgraphs);
    };
    const auto fits = [&](const std::vector<tensor>& made) {
      std::size_t size = 0;
      for (const tensor& t : made) {
        size += t.bytes();
      }
      return size <= room;
    };
    std::vector<tensor> outputs;
    try {
      if (!has_bodies(n) && !fits(apply(true))) {
        continue;
      }
      outputs = apply(false);
    } catch (const value_unknown&) {
      continue;  // an operator wants more than constants
    } catch (const error&) {
      if (!resources->forget_refusal()) {
        throw;
      }
      continue;  // it needs more than the limits
    }
    if (!fits(outputs)) {
      continue;
    }
    for (const tensor& t : outputs) {
      room -= t.bytes();
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!n.outputs[i].empty()) {
        m.initializers[n.outputs[i]] = to_plain(outputs[i]);
      }
    }
    n.op_type.clear();
  }
  detail::erase_absorbed(m);
}
#endif

namespace detail {

/// Whether a constant of these dimensions has one element for each of `channels` channels, and
/// added to a result of rank `rank`, with `after_channel` axes behind that of the channels, neither
/// varies along another axis nor adds one.
[[nodiscard]] inline bool is_row_of_channels(const shape& dims, std::int64_t channels,
                                             std::size_t after_channel, std::size_t rank) {
  if (dims.size() > rank || dims.size() <= after_channel) {
    return false;
  }
  const std::size_t channel = dims.size() - 1 - after_channel;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] != (d == channel ? channels : 1)) {
      return false;
    }
  }
  return true;
}

}  // namespace detail

/// A BatchNormalization that fold_batch_norm() has made part of a layer.
struct folded_normalization {
  node layer;          ///< The layer as it was; inputs 1 and 2 are its weights and its bias.
  node normalization;  ///< The node that is no more; inputs 1..4 are its parameters.
  std::map<std::string, tensor> constants;  ///< Those inputs of both, by name.
  tensor weights;                           ///< The weights of the folded layer.
  tensor bias;                              ///< The bias of the folded layer.
};

/// Folds BatchNormalization into the weights and bias of the Conv, ConvTranspose (with one group)
/// or Gemm whose result it alone takes, as folded_channels has it. Each is added to `found` if that
/// is not null. It needs float constants with one value for each channel, and is not done in
/// training mode. The new constants have new names, because other nodes may use the old ones.
DETENT_GRAPH_DECL void fold_batch_norm(model& m,
                                       std::vector<folded_normalization>* found = nullptr);

#if DETENT_GRAPH_DEFINES_EXECUTION
namespace detail {

/// Whether a node makes its first output alone. A BatchNormalization before opset 14 that makes
/// others is in training.
[[nodiscard]] inline bool has_one_output(const node& n) {
  return std::all_of(n.outputs.begin() + 1, n.outputs.end(),
                     [](const std::string& name) { return name.empty(); });
}

}  // namespace detail

DETENT_GRAPH_DECL void fold_batch_norm(model& m, std::vector<folded_normalization>* found) {
  if (!detail::has_any(m, {"BatchNormalization"})) {
    return;
  }
  const links l(m);
  unused_names names(m);
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    node& n = m.nodes[i];
    const bool transposed = n.is("ConvTranspose");
    const auto axis = transposed ? std::optional<std::size_t>(1) : detail::output_channel_axis(n);
    if (!axis || n.inputs.size() < 2) {
      continue;
    }
    const std::size_t next = detail::sole_consumer(m, l, i);
    if (next == links::none || !m.nodes[next].is("BatchNormalization") ||
        m.nodes[next].inputs.size() != 5 || m.nodes[next].inputs[0] != n.outputs[0] ||
        m.nodes[next].get_int("training_mode", 0) != 0 || !detail::has_one_output(m.nodes[next])) {
      continue;
    }
    const node& bn = m.nodes[next];
    const tensor* weights = detail::float_constant(m, n, 1);
    const bool has_bias = n.inputs.size() > 2 && !n.inputs[2].empty();
    const tensor* bias = detail::float_constant(m, n, 2);
    const tensor* parameters[4];
    bool known = weights != nullptr && (!has_bias || bias != nullptr);
    for (std::size_t k = 0; k < 4; ++k) {
      parameters[k] = detail::float_constant(m, bn, k + 1);
      known = known && parameters[k] != nullptr;
    }
    const std::int64_t group = n.get_int("group", 1);
    if (!known || weights->rank() <= *axis || (transposed && group != 1)) {
      continue;
    }
    const auto channels = static_cast<std::size_t>(weights->dim(*axis));
    bool fits =
        !has_bias || detail::is_row_of_channels(bias->dims(), static_cast<std::int64_t>(channels),
                                                0, bias->rank());
    for (const tensor* p : parameters) {
      fits = fits && p->count() == channels;
    }
    if (!fits) {
      continue;
    }
    const folded_channels folded{parameters[0]->data<float>(), parameters[1]->data<float>(),
                                 parameters[2]->data<float>(), parameters[3]->data<float>(),
                                 static_cast<double>(bn.get_float("epsilon", 1e-5F))};
    tensor new_bias = tensor::allocate(element_type::f32, {static_cast<std::int64_t>(channels)});
    std::vector<double> factor(channels);
    for (std::size_t ch = 0; ch < channels; ++ch) {
      factor[ch] = folded.factor(ch);
      new_bias.mutable_data<float>()[ch] =
          folded.bias(ch, has_bias ? static_cast<double>(bias->data<float>()[ch]) : 0.0);
    }
    tensor new_weights = tensor::allocate(element_type::f32, weights->dims());
    std::size_t inner = 1;
    for (std::size_t d = *axis + 1; d < weights->rank(); ++d) {
      inner *= static_cast<std::size_t>(weights->dim(d));
    }
    for (std::size_t k = 0; k < weights->count(); ++k) {
      new_weights.mutable_data<float>()[k] = static_cast<float>(
          static_cast<double>(weights->data<float>()[k]) * factor[k / inner % channels]);
    }
    if (found != nullptr) {
      found->push_back({n, bn, {}, new_weights, new_bias});
      for (const node* from : {&found->back().layer, &found->back().normalization}) {
        for (std::size_t k = 1; k < from->inputs.size(); ++k) {
          if (!from->inputs[k].empty()) {
            found->back().constants[from->inputs[k]] = m.initializers.at(from->inputs[k]);
          }
        }
      }
    }
    // Other nodes may use the old tensors, so the new ones have new names.
    const std::string weights_name = names.take(n.inputs[1] + "_folded");
    m.initializers[weights_name] = std::move(new_weights);
    const std::string bias_name = names.take(n.outputs[0] + "_bias");
    m.initializers[bias_name] = std::move(new_bias);
    n.inputs.resize(3);
    n.inputs[1] = weights_name;
    n.inputs[2] = bias_name;
    detail::absorb(m, i, next);
  }
  detail::erase_absorbed(m);
}
#endif

/// Turns the addition of a constant to each channel behind a Conv or Gemm without a bias into its
/// bias. Before that, a MatMul of a matrix (a value known to have rank 2) and constant weights
/// becomes a Gemm, so that a constant row that is added to its result becomes its bias, too. A rank
/// that depends on an open dimension of an input counts as unknown.
DETENT_GRAPH_DECL void fold_bias_add(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
namespace detail {

/// Turns each MatMul of a matrix and constant weights into a Gemm.
inline void use_gemm_for_matrices(model& m) {
  const auto has_constant_weights = [&](const node& n) {
    const tensor* weights = n.is("MatMul") ? float_constant(m, n, 1) : nullptr;
    return weights != nullptr && weights->rank() == 2;
  };
  if (std::none_of(m.nodes.begin(), m.nodes.end(), has_constant_weights)) {
    return;  // shapes take long to infer
  }
  const value_types types(m);
  for (node& n : m.nodes) {
    if (has_constant_weights(n) && types.rank(n.inputs[0]) == std::size_t{2}) {
      n.op_type = "Gemm";
    }
  }
}

}  // namespace detail

DETENT_GRAPH_DECL void fold_bias_add(model& m) {
  if (!detail::has_any(m, {"Add", "MatMul"})) {
    return;
  }
  detail::use_gemm_for_matrices(m);
  const links l(m);
  unused_names names(m);
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    node& n = m.nodes[i];
    const auto axis = detail::output_channel_axis(n);
    const tensor* weights = detail::float_constant(m, n, 1);
    const std::size_t next =
        axis && weights != nullptr ? detail::sole_consumer(m, l, i) : links::none;
    if (next == links::none || !m.nodes[next].is("Add") || m.nodes[next].inputs.size() != 2 ||
        (n.inputs.size() > 2 && !n.inputs[2].empty())) {
      continue;
    }
    const node& add = m.nodes[next];
    const std::size_t constant = add.inputs[0] == n.outputs[0] ? 1 : 0;
    const tensor* value = detail::float_constant(m, add, constant);
    if (value == nullptr || weights->rank() <= *axis) {
      continue;
    }
    const auto channels = weights->dim(*axis);
    const std::size_t after_channel = n.is("Conv") ? weights->rank() - 2 : 0;
    const std::size_t rank = n.is("Conv") ? weights->rank() : 2;
    if (!detail::is_row_of_channels(value->dims(), channels, after_channel, rank)) {
      continue;
    }
    const std::string name = names.take(n.outputs[0] + "_bias");
    m.initializers[name] = value->reshaped({channels});
    n.inputs.resize(3);
    n.inputs[2] = name;
    detail::absorb(m, i, next);
  }
  detail::erase_absorbed(m);
}
#endif

/// The bounds that a clamping activation has: Relu, or Clip with constant bounds.
struct activation_bounds {
  float lower = -std::numeric_limits<float>::infinity();  ///< Smallest result.
  float upper = std::numeric_limits<float>::infinity();   ///< Largest result.
};

/// The bounds of a node that is a Relu (0 and infinity) or a Clip whose bounds are constants. A
/// bound that Clip leaves out is the lowest or largest float, as ONNX defines it. Returns nothing
/// for other nodes, for a Clip whose bounds are not constant, and if a bound is NaN or the lower
/// one exceeds the upper.
[[nodiscard]] inline std::optional<activation_bounds> clamping_activation(const model& m,
                                                                          const node& n) {
  activation_bounds b;
  if (n.is("Relu")) {
    b.lower = 0.0F;
    return b;
  }
  if (!n.is("Clip")) {
    return std::nullopt;
  }
  b.lower = n.get_float("min", std::numeric_limits<float>::lowest());  // ONNX: not infinity
  b.upper = n.get_float("max", (std::numeric_limits<float>::max)());
  for (std::size_t i = 1; i < n.inputs.size() && i < 3; ++i) {
    if (n.inputs[i].empty()) {
      continue;
    }
    const tensor* bound = detail::float_constant(m, n, i);
    if (bound == nullptr || bound->count() != 1) {
      return std::nullopt;
    }
    (i == 1 ? b.lower : b.upper) = bound->data<float>()[0];
  }
  return std::isnan(b.lower) || std::isnan(b.upper) || b.lower > b.upper
             ? std::nullopt
             : std::optional<activation_bounds>(b);
}

/// The bounds of two clamps in a row as those of one. Returns nothing if the ranges do not overlap.
[[nodiscard]] inline std::optional<activation_bounds> joined_bounds(const activation_bounds& first,
                                                                    const activation_bounds& then) {
  const activation_bounds both{(std::max)(first.lower, then.lower),
                               (std::min)(first.upper, then.upper)};
  return both.lower > both.upper ? std::nullopt : std::optional<activation_bounds>(both);
}

/// Whether a node is one that fuse_dynamic_products() makes.
[[nodiscard]] inline bool is_fused_dynamic(const node& n) {
  return n.domain == "detent" &&
         (n.op_type == "ConvIntegerToFloat" || n.op_type == "MatMulIntegerToFloat" ||
          n.op_type == "DynamicQuantizeConv" || n.op_type == "DynamicQuantizeMatMul");
}

/// Fuses a Relu or Clip, or several in a row, into the Conv or Gemm whose result they alone take:
/// the layer moves to the domain "detent" and gets the attributes `lower` and `upper`. The layers
/// that fuse_dynamic_products() and fuse_additions() have made get these attributes, too. The
/// result is for execution, not for files.
DETENT_GRAPH_DECL void fuse_activations(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void fuse_activations(model& m) {
  if (!detail::has_any(m, {"Relu", "Clip"})) {
    return;
  }
  const links l(m);
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    node& n = m.nodes[i];
    const bool is_sum = n.domain == "detent" && (n.op_type == "Conv" || n.op_type == "MatMul");
    if (!n.is("Conv") && !n.is("Gemm") && !is_sum && !is_fused_dynamic(n)) {
      continue;
    }
    activation_bounds bounds;  // those of an earlier call, if the node has any
    bounds.lower = n.get_float("lower", bounds.lower);
    bounds.upper = n.get_float("upper", bounds.upper);
    std::size_t last = i;
    for (std::size_t next = detail::sole_consumer(m, l, i);
         next != links::none && m.nodes[next].inputs[0] == m.nodes[last].outputs[0];
         next = detail::sole_consumer(m, l, next)) {
      const auto clamp = clamping_activation(m, m.nodes[next]);
      const auto both = clamp ? joined_bounds(bounds, *clamp) : std::nullopt;
      if (!both) {
        break;
      }
      bounds = *both;
      detail::absorb(m, i, next);
      last = next;
    }
    if (last == i) {
      continue;
    }
    n.domain = "detent";
    m.opsets["detent"] = 1;
    n.attributes["lower"] = attribute::of(bounds.lower);
    n.attributes["upper"] = attribute::of(bounds.upper);
  }
  detail::erase_absorbed(m);
}
#endif

/// Calls fold_bias_add() and fold_batch_norm() in turns until nothing is left to fold, so that a
/// layer takes a row of additions and normalizations into itself, and a second call changes
/// nothing. `found` is that of fold_batch_norm().
DETENT_GRAPH_DECL void fold_into_layers(model& m,
                                        std::vector<folded_normalization>* found = nullptr);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void fold_into_layers(model& m, std::vector<folded_normalization>* found) {
  std::size_t before = 0;
  do {
    before = m.nodes.size();
    fold_bias_add(m);
    fold_batch_norm(m, found);
  } while (m.nodes.size() < before);
}
#endif

/// Applies all rewrites whose result is still an ONNX model, in this order: remove_unused(),
/// remove_no_ops(), fold_constants() without quantization nodes, fold_into_layers(),
/// write_full_pads(), and remove_unused() again. Unused nodes go first: most rewrites need a value
/// that one node alone takes, and an unused node would count as a second one.
DETENT_GRAPH_DECL void simplify(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void simplify(model& m) {
  remove_unused(m);
  remove_no_ops(m);
  fold_constants(m, false);
  fold_into_layers(m);
  write_full_pads(m);
  remove_unused(m);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_OPTIMIZE_HPP
