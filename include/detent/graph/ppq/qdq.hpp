// SPDX-License-Identifier: BSD-3-Clause
// Exports a quantized_graph as an ONNX model with QuantizeLinear/DequantizeLinear pairs.
#ifndef DETENT_GRAPH_PPQ_QDQ_HPP
#define DETENT_GRAPH_PPQ_QDQ_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/fusion.hpp>
#include <detent/graph/ppq/integers.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/rewrite/onnxruntime_guards.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/renaming.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Options of to_qdq() and to_qdq_model(): where to write pairs besides those that are needed.
struct qdq_options {
  /// Whether OVERLAPPED configurations get pairs as well, with the parameters of their root.
  /// Between a layer and an activation function that changes the range, such as Sigmoid, such a
  /// pair changes results.
  bool overlapped = false;
  /// Whether pairs are written after operators that only move elements, where the configuration of
  /// the operator's input quantizes for its output. These pairs change no value, and they let
  /// engines run such operators, and the layers after them, on integers.
  bool moved_values = false;
};

/// A value of a QDQ model that comes out of a pair, or out of the DequantizeLinear of a constant.
struct quantized_value {
  /// The configuration with whose parameters the value is quantized.
  config_id id = no_config;
  /// The name of the value that is quantized. For a constant it is the name in
  /// quantized_graph::network, for other values the name in the QDQ model, before the Clip of
  /// narrow grids.
  std::string source;
  /// Whether the value is a constant.
  bool is_constant = false;
  /// Whether the pair stands where the value is made, not before a user of the value.
  bool at_producer = false;
  /// Whether scale and zero point are computed from the value in each run.
  bool is_dynamic = false;
};

/// A QDQ model, and where it has the values of the quantized_graph that it was made of.
struct qdq_model {
  /// The model with QuantizeLinear/DequantizeLinear pairs.
  model network;
  /// The name in the QDQ model of a value as operators make it, before quantization, by its name in
  /// quantized_graph::network. Values that are not listed have kept their name.
  std::map<std::string, std::string> computed;
  /// The name in the QDQ model of a value after quantization, by its name in
  /// quantized_graph::network. The pair is that of the configuration that makes the value, or, if
  /// none does, that of its first user. Values that are not listed are not quantized there.
  std::map<std::string, std::string> quantized;
  /// What comes out of pairs and of the DequantizeLinear of constants, by name in the QDQ model.
  /// A pair with policy DYNAMIC is listed only if it stands where the value is made, and then
  /// without id and source.
  std::map<std::string, quantized_value> pairs;
};

namespace detail {

using graph::detail::make_node;

class qdq_writer {
 public:
  qdq_writer(const quantized_graph& g, const qdq_options& options)
      : g_(g),
        options_(options),
        links_(g.network),
        out_{g.network, {}, {}, {}},
        writer_(out_.network) {}

  qdq_model run() {
    model& m = out_.network;
    find_pairs();
    m.nodes.clear();
    for (std::size_t i = 0; i < g_.network.nodes.size(); ++i) {
      node n = g_.network.nodes[i];
      for (std::size_t slot = 0; slot < n.inputs.size(); ++slot) {
        n.inputs[slot] = input_of(i, slot);
      }
      std::map<std::string, std::string> captured;
      for (const std::string& value : captured_values(n)) {
        captured[value] = stored_name(value);
      }
      graph::detail::replace_captured(n, captured);
      for (std::string& output : n.outputs) {
        const auto renamed = out_.computed.find(output);
        output = renamed == out_.computed.end() ? output : renamed->second;
      }
      m.nodes.push_back(std::move(n));
      for (const std::string& output : g_.network.nodes[i].outputs) {
        add_maker_pair(output);
      }
    }
    m.values.clear();
    graph::detail::set_producer(m);
    remove_unused(m);
    sort_and_check(m);
    add_onnxruntime_guards(m);
    return std::move(out_);
  }

 private:
  /// Pairs with equal keys are the same pair. A key has the value, scales, zero points, qmin, qmax,
  /// axis, rounding and policy. Dynamic configurations have no scales, but a policy; for others the
  /// policy is 0.
  using pair_key =
      std::tuple<std::string, std::vector<float>, std::vector<std::int32_t>, std::int32_t,
                 std::int32_t, std::size_t, rounding_policy, std::uint32_t>;

  static constexpr std::size_t no_axis = static_cast<std::size_t>(-1);

  /// The key of the pair of a configuration. `value` is the name in quantized_graph::network.
  [[nodiscard]] pair_key key(const std::string& value, config_id id) const {
    if (g_.configs.is_dynamic(id)) {
      const quantizer_settings& s = dynamic_settings(id);
      return {value,         {},      {},         s.levels.qmin,
              s.levels.qmax, no_axis, s.rounding, s.policy.properties()};
    }
    const tensor_parameters& p = g_.configs.parameters(id);
    const tensor_quantization_config& c = g_.configs[id];
    const std::size_t axis = p.scales.size() > 1 ? c.channel_axis.value_or(no_axis) : no_axis;
    return {value, p.scales, p.zero_points, c.levels.qmin, c.levels.qmax, axis, c.rounding, 0};
  }
  /// The settings of the configuration that quantizes for a dynamic one.
  [[nodiscard]] const quantizer_settings& dynamic_settings(config_id id) const {
    return g_.configs[g_.configs.source(id)];
  }

  [[nodiscard]] bool is_written(config_id id) const {
    return id != no_config && g_.configs.is_exportable(id, options_.overlapped);
  }

  // -------------------------------------------------------------------------------- preparation

  /// Finds the configuration that quantizes each value where it is made, and the pairs that users
  /// of the value ask for.
  void find_pairs() {
    for (std::size_t i = 0; i < g_.network.nodes.size(); ++i) {
      const operator_configs& o = g_.operators[i];
      for (std::size_t slot = 0; slot < o.inputs.size(); ++slot) {
        if (is_written(o.inputs[slot])) {
          const std::string& value = g_.network.nodes[i].inputs[slot];
          asked_for_.insert(key(value, o.inputs[slot]));
        }
      }
      for (std::size_t k = 0; k < o.outputs.size(); ++k) {
        const std::string& value = g_.network.nodes[i].outputs[k];
        if (is_written(o.outputs[k]) || is_moved(i, o.outputs[k])) {
          makers_[value] = o.outputs[k];
          if (g_.network.is_output(value)) {  // the outputs of the graph keep their names
            out_.computed[value] = writer_.fresh(value + "_float");
          }
        }
      }
    }
  }
  [[nodiscard]] bool is_moved(std::size_t i, config_id output) const {
    const config_id input = g_.operators[i].is_quantized() ? g_.operators[i].inputs[0] : no_config;
    return options_.moved_values && output != no_config && input != no_config &&
           !g_.configs.is_dynamic(output) && is_passive_operator(g_.network.nodes[i]) &&
           g_.configs[output].state() == quantization_state::overlapped &&
           g_.configs.source(output) == g_.configs.source(input) &&
           g_.configs.is_active(g_.configs.source(output)) &&
           g_.configs.is_exportable(output, true);
  }

  // ------------------------------------------------------------------------------------ writing

  /// The name of the value in the QDQ model that takes the place of an input of a node. Writes the
  /// pair or the DequantizeLinear that makes it, if need be.
  std::string input_of(std::size_t i, std::size_t slot) {
    const std::string& value = g_.network.nodes[i].inputs[slot];
    const config_id id =
        slot < g_.operators[i].inputs.size() ? g_.operators[i].inputs[slot] : no_config;
    if (value.empty()) {
      return value;
    }
    const tensor* t = g_.network.initializer(value);
    if (t != nullptr) {
      if (is_written(id)) {
        return quantize_constant(value, *t, id);
      }
      const auto before = g_.float_constants.find(value);
      if (id != no_config && g_.configs[id].state() == quantization_state::fp32 &&
          before != g_.float_constants.end()) {
        out_.network.initializers[value] = before->second;  // baked ones have no other user
      }
      return value;
    }
    const auto maker = makers_.find(value);
    const std::string base = stored_name(value);
    if (id == no_config || !g_.configs.has_parameters(id)) {
      return base;
    }
    const pair_key k = key(value, id);
    if (maker != makers_.end() && key(value, maker->second) == k) {
      return base;
    }
    // A dominated configuration takes the pair of another user of the value, if there is an equal
    // one.
    const bool switched_off = g_.configs[id].state() == quantization_state::fp32;
    if (!is_written(id) && (switched_off || asked_for_.count(k) == 0)) {
      return base;
    }
    const auto done = pairs_.find(k);
    if (done != pairs_.end()) {
      return done->second;
    }
    std::string pair = add_pair(value, base, id, writer_.fresh(value + "_dequantized"));
    out_.quantized.try_emplace(value, pair);
    return pair;
  }

  [[nodiscard]] std::string computed_name(const std::string& value) const {
    const auto renamed = out_.computed.find(value);
    return renamed == out_.computed.end() ? value : renamed->second;
  }

  /// The name of a value after the pair where it is made, or, if there is none, as it is computed.
  [[nodiscard]] std::string stored_name(const std::string& value) const {
    const auto made = out_.quantized.find(value);
    return makers_.count(value) != 0 && made != out_.quantized.end() ? made->second
                                                                     : computed_name(value);
  }

  void add_maker_pair(const std::string& value) {
    const auto maker = makers_.find(value);
    if (maker != makers_.end()) {
      const std::string result =
          g_.network.is_output(value) ? value : writer_.fresh(value + "_dequantized");
      out_.quantized[value] = add_pair(value, computed_name(value), maker->second, result);
      out_.pairs[result].at_producer = true;
    }
  }

  /// The 8-bit type that can hold all levels of a grid, if there is one.
  [[nodiscard]] static std::optional<element_type> byte_type(grid levels) {
    if (levels.qmin >= 0 && levels.qmax <= 255) {
      return element_type::u8;
    }
    return levels.qmin >= -128 && levels.qmax <= 127 ? std::optional(element_type::s8)
                                                     : std::nullopt;
  }

  std::string add_bytes(const std::string& wish, element_type type, shape dims,
                        const std::vector<std::int32_t>& values) {
    const std::vector<std::uint8_t> bytes(values.begin(), values.end());  // two's complement
    return writer_.add_values<std::uint8_t>(wish, type, std::move(dims), bytes);
  }
  /// Adds constants for the scales and, if there is an 8-bit type, the zero points. Returns names.
  std::vector<std::string> add_parameters(const std::string& base, const tensor_parameters& p,
                                          std::optional<element_type> type) {
    const shape dims = graph::detail::parameter_shape(p.scales.size());
    std::vector<std::string> names{
        writer_.add_values(base + "_scale", element_type::f32, dims, p.scales)};
    if (type) {
      names.push_back(add_bytes(base + "_zero_point", *type, dims, p.zero_points));
    }
    return names;
  }
  void set_axis(node& n, config_id id) const {
    const tensor_quantization_config& c = g_.configs[id];
    if (g_.configs.parameters(id).scales.size() > 1) {
      require(c.channel_axis.has_value(), error_kind::invalid_argument, c.name,
              ": several scales without a channel axis");
      n.attributes["axis"] = attribute::of(static_cast<std::int64_t>(*c.channel_axis));
    }
  }

  /// Adds QuantizeLinear and DequantizeLinear on `from`, which stands for `value`. The result is
  /// named `result`, which is also returned.
  std::string add_pair(const std::string& value, const std::string& from, config_id id,
                       const std::string& result) {
    if (g_.configs.is_dynamic(id)) {
      return add_dynamic_pair(value, from, id, result);
    }
    const tensor_quantization_config& c = g_.configs[id];
    const std::optional<element_type> type = byte_type(c.levels);
    require(type.has_value(), error_kind::unsupported, c.name, ": grid ", c.levels.qmin, "..",
            c.levels.qmax, " fits neither int8 nor uint8");
    const tensor_parameters& p = g_.configs.parameters(id);
    const std::string clamped = clamp_to_grid(value, from, id, *type);
    const std::vector<std::string> params = add_parameters(value, p, type);
    const std::string q = writer_.fresh(value + "_quantized");
    std::vector<node>& nodes = out_.network.nodes;
    nodes.push_back(writer_.make_node("QuantizeLinear", value + "_QuantizeLinear",
                                      {clamped, params[0], params[1]}, q));
    set_axis(nodes.back(), id);
    nodes.push_back(writer_.make_node("DequantizeLinear", value + "_DequantizeLinear",
                                      {q, params[0], params[1]}, result));
    set_axis(nodes.back(), id);
    pairs_[key(value, id)] = result;
    out_.pairs[result] = {id, from, false, false, false};
    return result;
  }

  /// Adds a pair as add_pair() does, but with scale and zero point computed from the tensor in each
  /// run.
  std::string add_dynamic_pair(const std::string& value, const std::string& from, config_id id,
                               const std::string& result) {
    const quantizer_settings& s = dynamic_settings(id);
    const bool symmetric = s.policy.is_symmetrical();
    // On other symmetric grids, the largest value would round to a level outside the grid.
    const bool is_closed = s.levels == full_grid<std::int8_t> ||
                           (s.levels.qmin == -s.levels.qmax && s.levels.qmax <= 127);
    require(!s.policy.is_per_channel() && !s.policy.has(quantization_property::power_of_2) &&
                (symmetric ? is_closed : s.levels == full_grid<std::uint8_t>),
            error_kind::unsupported, g_.configs[id].name, ": policy ",
            quantization_policy::describe(s.policy.properties()), " on ", s.levels.qmin, "..",
            s.levels.qmax, " has no form in ONNX's operators");
    const std::string q = writer_.fresh(value + "_quantized");
    std::vector<std::string> inputs{q, writer_.fresh(value + "_scale")};
    std::vector<node>& nodes = out_.network.nodes;
    if (symmetric) {
      const auto then = [&](const char* op, std::vector<std::string> of, std::string output) {
        nodes.push_back(writer_.make_node(op, value + "_" + op, std::move(of), std::move(output)));
        return nodes.back().outputs[0];
      };
      const float half_steps = static_cast<float>(s.levels.qmax - s.levels.qmin) / 2.0F;
      const std::string magnitudes = then("Abs", {from}, writer_.fresh(value + "_magnitudes"));
      const std::string largest =
          then("ReduceMax", {magnitudes}, writer_.fresh(value + "_largest"));
      nodes.back().attributes["keepdims"] = attribute::of(std::int64_t{0});
      const std::string divisor =
          writer_.add_values<float>(value + "_half_steps", element_type::f32, {}, {half_steps});
      const std::string quotient =
          then("Div", {largest, divisor}, writer_.fresh(value + "_quotient"));
      const std::string least =
          writer_.add_values<float>(value + "_least_scale", element_type::f32, {}, {1e-8F});
      then("Max", {quotient, least}, inputs[1]);
      inputs.push_back(add_bytes(value + "_zero_point", element_type::s8, {}, {0}));
      then("QuantizeLinear", {from, inputs[1], inputs[2]}, q);
    } else {
      inputs.push_back(writer_.fresh(value + "_zero_point"));
      nodes.push_back(
          writer_.make_node("DynamicQuantizeLinear", value + "_DynamicQuantizeLinear", {from}, q));
      nodes.back().outputs = inputs;
    }
    nodes.push_back(writer_.make_node("DequantizeLinear", value + "_DequantizeLinear",
                                      std::move(inputs), result));
    pairs_[key(value, id)] = result;
    out_.pairs[result] = {id, from, false, false, true};
    return result;
  }

  /// QuantizeLinear saturates at the ends of its type: a narrower grid needs a Clip before, at the
  /// real ends of the grid, which quantize to its outer levels.
  std::string clamp_to_grid(const std::string& value, const std::string& from, config_id id,
                            element_type type) {
    const tensor_quantization_config& c = g_.configs[id];
    const tensor_parameters& p = g_.configs.parameters(id);
    const grid full = type == element_type::u8 ? grid{0, 255} : grid{-128, 127};
    const bool below = c.levels.qmin > full.qmin && !is_non_negative(value);
    const bool above = c.levels.qmax < full.qmax;
    if (!below && !above) {
      return from;
    }
    require(p.scales.size() == 1, error_kind::unsupported, c.name, ": grid ", c.levels.qmin, "..",
            c.levels.qmax, " with several scales has no form in QuantizeLinear");
    const auto end = [&](std::int32_t level) {
      return std::vector<float>{static_cast<float>(level - p.zero_points[0]) * p.scales[0]};
    };
    std::vector<std::string> inputs{from, ""};
    if (below) {
      inputs[1] = writer_.add_values(value + "_lowest", element_type::f32, {}, end(c.levels.qmin));
    }
    if (above) {
      inputs.push_back(
          writer_.add_values(value + "_highest", element_type::f32, {}, end(c.levels.qmax)));
    }
    out_.network.nodes.push_back(writer_.make_node("Clip", value + "_Clip", std::move(inputs),
                                                   writer_.fresh(value + "_clipped")));
    return out_.network.nodes.back().outputs[0];
  }
  [[nodiscard]] bool is_non_negative(const std::string& value) const {
    const std::size_t i = links_.producer(value);
    if (i == links::none) {
      return false;
    }
    const node& n = g_.network.nodes[i];
    const auto bounds = clamping_activation(g_.network, n);
    return n.is("Sigmoid") || n.is("Softmax") || (bounds && bounds->lower >= 0.0F);
  }

  /// Stores a constant as integers, adds its DequantizeLinear, and returns the name of the result.
  std::string quantize_constant(const std::string& value, const tensor& t, config_id id) {
    const pair_key k = key(value, id);
    const auto done = pairs_.find(k);
    if (done != pairs_.end()) {
      return done->second;
    }
    const tensor_quantization_config& c = g_.configs[id];
    const tensor_parameters& p = g_.configs.parameters(id);
    require(!p.empty(), error_kind::unsupported, c.name, ": a constant with policy DYNAMIC");
    const std::optional<element_type> type = byte_type(c.levels);
    const bool no_zero_point = std::all_of(p.zero_points.begin(), p.zero_points.end(),
                                           [](std::int32_t z) { return z == 0; });
    require(type || no_zero_point, error_kind::unsupported, c.name, ": grid ", c.levels.qmin, "..",
            c.levels.qmax, " with a zero point fits neither int8 nor uint8");
    const std::vector<std::int32_t> q = quantized_integers(t, c, p);
    std::vector<std::string> inputs{
        type ? add_bytes(value + "_quantized", *type, t.dims(), q)
             : writer_.add_values(value + "_quantized", element_type::s32, t.dims(), q)};
    for (std::string& name : add_parameters(value, p, type)) {
      inputs.push_back(std::move(name));
    }
    node n = writer_.make_node("DequantizeLinear", value + "_DequantizeLinear", std::move(inputs),
                               writer_.fresh(value + "_dequantized"));
    set_axis(n, id);
    out_.network.nodes.push_back(n);
    out_.pairs[n.outputs[0]] = {id, value, true, false, false};
    return pairs_[k] = n.outputs[0];
  }

  const quantized_graph& g_;
  qdq_options options_;
  links links_;
  qdq_model out_;
  graph::detail::graph_writer writer_;
  std::map<std::string, config_id> makers_;  // for values that are quantized where they are made
  std::set<pair_key> asked_for_;
  std::map<pair_key, std::string> pairs_;  // the names of their results
};

}  // namespace detail

/// Exports the network of a graph with its exportable configurations as
/// QuantizeLinear/DequantizeLinear pairs:
///
///   activations  There is a pair where the value is made, for all its users, and one more before
///                users whose configuration has other parameters. A Clip stands before the pair if
///                the grid is narrower than int8 or uint8.
///   constants    They are stored as integers (biases as int32), with a DequantizeLinear.
///   DYNAMIC      An asymmetric policy on 0..255 becomes DynamicQuantizeLinear. A symmetric one on
///                -128..127 or on -n..n becomes QuantizeLinear with
///                scale = max(max |x| / ((qmax - qmin) / 2), 1e-8), computed in float by nodes
///                before it.
///
/// Constants whose configuration is FP32 have the values they had before they were baked.
///
/// An executor of the model computes what quantization does: q = clamp(round(x / scale) +
/// zero_point), and (q - zero_point) * scale. QuantizeLinear rounds half to even, so on platforms
/// with other rounding rules activations differ at ties. Constants are rounded by the rule of their
/// configuration.
///
/// Throws unsupported, naming the configuration, for activations whose grid fits neither -128..127
/// nor 0..255, for constants on such grids with a zero point other than 0, for activations on grids
/// narrower than their type with several scales, for constants with policy DYNAMIC, and for DYNAMIC
/// policies with channels, powers of 2 or another grid.
[[nodiscard]] DETENT_GRAPH_DECL qdq_model to_qdq_model(const quantized_graph& g,
                                                       const qdq_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL qdq_model to_qdq_model(const quantized_graph& g, const qdq_options& options) {
  return detail::qdq_writer(g, options).run();
}
#endif
/// Exports a graph as to_qdq_model() does, and returns the model alone.
[[nodiscard]] DETENT_GRAPH_DECL model to_qdq(const quantized_graph& g,
                                             const qdq_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL model to_qdq(const quantized_graph& g, const qdq_options& options) {
  return to_qdq_model(g, options).network;
}
#endif

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_QDQ_HPP
