// SPDX-License-Identifier: BSD-3-Clause
// Where NNCF quantizes a model: its activations, by quantizer_propagation, and its weights.
//
// What stays in float:
//   - operators that the ignored scope selects, and their weights
//   - blocks of squeeze and excitation
//   - what is between the last layers and an output, if a TopK or NonMaxSuppression is there
//   - in a transformer: sums, differences, products by elements, averages, norms, and the product
//   of
//     the attention's weights with its values
#ifndef DETENT_GRAPH_NNCF_PLACEMENT_HPP
#define DETENT_GRAPH_NNCF_PLACEMENT_HPP

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
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
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_patterns.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/quantizer_propagation.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// An input of a node.
struct node_input {
  std::size_t node = 0;   ///< Index of the node in the model.
  std::size_t input = 0;  ///< Index of the input.
  friend bool operator==(const node_input&, const node_input&) = default;
  /// Inputs are ordered by their nodes, then by their places.
  friend auto operator<=>(const node_input&, const node_input&) = default;
};

/// A quantizer of a model.
struct placed_quantizer {
  std::string value;        ///< Name of the value that it quantizes.
  quantizer_config config;  ///< Its form.
  /// The only input that takes the quantized value; by default, all nodes that take the value do.
  std::optional<node_input> only = {};
  /// The input of the layer whose weights the quantizer is for; none for activations.
  std::optional<node_input> weights_of = {};
  /// Number of the group of quantizers that share one range; none if it is alone.
  std::optional<std::size_t> group = {};
  /// The nodes that the quantizer is for, by their indices.
  std::set<std::size_t> serves = {};
};

/// What decides the placement of quantizers.
struct placement_options {
  bool symmetric_activations = true;     ///< The preset's mode of activations.
  bool transformer = false;              ///< Whether the model is a transformer.
  bool products_in_float = true;         ///< In a transformer: whether Mul stays in float.
  bool quantize_outputs = false;         ///< Whether outputs of the model are quantized.
  bool attention_values = false;         ///< Whether the third operand of Attention is quantized.
  std::set<std::size_t> ignored = {};    ///< Nodes that stay in float, by their indices.
  quantization_params activations = {};  ///< Restrictions of the quantizers of activations.
  quantization_params weights = {};      ///< Restrictions of the quantizers of weights.
  /// What becomes of the quantizers below a value that several nodes take.
  propagation_rule rule = propagation_rule::merge_all_in_one;
};

namespace detail {

/// The inputs of a node at which NNCF looks for weights.
[[nodiscard]] inline std::vector<std::size_t> weight_inputs(const model& m, const links& l,
                                                            std::size_t i, std::string_view kind) {
  const node& n = m.nodes[i];
  std::vector<std::size_t> found;
  const auto add = [&](std::size_t k) {
    const tensor* t = k < n.inputs.size() ? m.initializer(n.inputs[k]) : nullptr;
    const bool is_constant = k < n.inputs.size() && is_weight(m, l, n.inputs[k]);
    if (is_constant && (t == nullptr || (t->type() == element_type::f32 && t->count() > 0))) {
      found.push_back(k);
    }
  };
  if (is_among(kind, {"Conv", "GroupConv", "DepthwiseConv", "ConvTranspose"})) {
    add(1);
  } else if (is_among(kind, {"Gemm", "MatMul"})) {
    add(0);
    add(1);
  } else if (kind == "Embedding") {
    add(0);
  }
  return found;
}

/// Places the quantizers of a model.
class quantizer_placer {
 public:
  quantizer_placer(const model& m, const placement_options& options)
      : m_(m),
        options_(options),
        known_(infer_types(m)),
        l_(m),
        plain_(operator_graph_builder(m, known_).run()),
        g_(with_fused_operators(plain_)) {}

  [[nodiscard]] std::vector<placed_quantizer> run() {
    find_ignored();
    std::vector<vertex_rules> rules;
    for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
      rules.push_back(rules_of(v));
    }
    quantizer_propagation propagation(g_, rules, options_.rule, options_.quantize_outputs,
                                      options_.attention_values);
    std::map<std::size_t, moving_quantizer> found = propagation.run();
    std::vector<placed_quantizer> all = weights(found, propagation.at_embeddings());
    for (const auto& [number, q] : found) {
      add_activation(all, q, found);
    }
    number_groups(all);
    std::stable_sort(all.begin(), all.end(),
                     [&](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
    return all;
  }

 private:
  [[nodiscard]] static std::string label(const model& m, const operator_vertex& v) {
    return v.nodes.empty() ? v.value : m.nodes[v.nodes[0]].label();
  }

  /// The index of the first node that takes what a quantizer makes.
  [[nodiscard]] std::size_t order_of(const placed_quantizer& q) const {
    if (q.only) {
      return q.only->node;
    }
    const auto users = l_.consumers(q.value);
    return users.empty() ? m_.nodes.size() : users.front();
  }

  void find_ignored() {
    ignored_ = options_.ignored;
    pattern_matcher matcher(plain_);
    for (const auto& match : matcher.run(ignored_patterns(options_.transformer), false)) {
      for (const std::size_t v : match) {
        ignored_.insert(plain_.vertices[v].nodes.begin(), plain_.vertices[v].nodes.end());
      }
    }
    in_float_.clear();
    for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
      if (options_.transformer &&
          is_in_float_in_transformers(g_.vertices[v].kind, options_.products_in_float)) {
        in_float_.insert(v);
      }
    }
    find_postprocessing();
  }

  /// Leaves in float what is between the last layers with weights, or the inputs, and an output, on
  /// the ways on which there is a TopK or NonMaxSuppression.
  ///
  /// A vertex is on such a way if a way from an output leads to it and a way from it to a layer or
  /// an input, one of which is marked by such an operator. Both are found by walks that visit each
  /// vertex twice at most, with and without a mark: there may be very many ways.
  void find_postprocessing() {
    const std::size_t count = g_.vertices.size();
    std::vector<bool> ends(count), is_mark(count);
    for (std::size_t v = 0; v < count; ++v) {
      ends[v] = has_weights(v) || g_.vertices[v].kind == input_kind;
      is_mark[v] = is_among(g_.vertices[v].kind, {"TopK", "NonMaxSuppression"});
    }
    // Up from the outputs, against the edges; `users` are the edges that were taken.
    const auto index_of = [](std::size_t v, bool marked) { return 2 * v + (marked ? 1U : 0U); };
    std::vector<bool> above(2 * count), below(2 * count);
    std::vector<std::vector<std::size_t>> users(count);
    std::vector<std::size_t> waiting;
    const auto visit = [&](std::vector<bool>& reached, std::size_t v, bool marked) {
      const std::size_t at = index_of(v, marked || is_mark[v]);
      if (!reached[at]) {
        reached[at] = true;
        waiting.push_back(at);
      }
    };
    for (std::size_t v = 0; v < count; ++v) {
      if (g_.vertices[v].kind == output_kind) {
        visit(above, v, false);
      }
    }
    while (!waiting.empty()) {
      const std::size_t v = waiting.back() / 2;
      const bool marked = waiting.back() % 2 != 0;
      waiting.pop_back();
      if (!ends[v]) {
        for (const operator_vertex::source& s : g_.vertices[v].sources) {
          users[s.from].push_back(v);
          visit(above, s.from, marked);
        }
      }
    }
    const auto is_above = [&](std::size_t v) { return above[2 * v] || above[2 * v + 1]; };
    // Back down from where the ways end.
    for (std::size_t v = 0; v < count; ++v) {
      if (ends[v] && is_above(v)) {
        visit(below, v, false);
      }
    }
    while (!waiting.empty()) {
      const std::size_t v = waiting.back() / 2;
      const bool marked = waiting.back() % 2 != 0;
      waiting.pop_back();
      for (const std::size_t user : users[v]) {
        visit(below, user, marked);
      }
    }
    for (std::size_t v = 0; v < count; ++v) {
      const bool marked_above = above[2 * v + 1] && (below[2 * v] || below[2 * v + 1]);
      const bool marked_below = is_above(v) && below[2 * v + 1];
      const bool is_layer = ends[v] && g_.vertices[v].kind != input_kind;
      if ((marked_above || marked_below) && !is_layer && g_.vertices[v].kind != output_kind) {
        in_float_.insert(v);
      }
    }
  }

  [[nodiscard]] bool has_weights(std::size_t v) const {
    const std::vector<std::size_t>& nodes = g_.vertices[v].nodes;
    return std::any_of(nodes.begin(), nodes.end(), [&](std::size_t i) {
      return !weight_inputs(m_, l_, i, operator_kind(m_, l_, m_.nodes[i])).empty();
    });
  }

  [[nodiscard]] bool is_ignored(std::size_t v) const {
    const std::vector<std::size_t>& nodes = g_.vertices[v].nodes;
    return g_.vertices[v].kind != input_kind && !nodes.empty() && ignored_.count(nodes[0]) != 0;
  }

  [[nodiscard]] vertex_rules rules_of(std::size_t v) const {
    const operator_vertex& vertex = g_.vertices[v];
    if (is_ignored(v)) {
      return {};
    }
    vertex_rules r{trait::in_float, {}, vertex.kind};
    if (in_float_.count(v) == 0) {
      r.of = trait_of(vertex.kind);
      if (r.of == trait::takes_integers || vertex.kind == output_kind) {
        r.options = activation_configs(vertex.kind, options_.activations,
                                       options_.symmetric_activations, label(m_, vertex));
      }
    }
    return r;
  }

  /// The quantizers of weights, those of tables of embeddings included. A quantizer of an
  /// activation that a table's own quantizer can stand for is taken out of `found`.
  [[nodiscard]] std::vector<placed_quantizer> weights(
      std::map<std::size_t, moving_quantizer>& found,
      const std::map<std::size_t, std::size_t>& at_embeddings) {
    std::vector<placed_quantizer> all;
    std::set<std::string> done;
    for (std::size_t v = 0; v < g_.vertices.size(); ++v) {
      const operator_vertex& vertex = g_.vertices[v];
      // Weights of other operators than the first of a vertex stay in float.
      if (vertex.nodes.empty() || vertex.kind == input_kind || in_float_.count(v) != 0 ||
          ignored_.count(vertex.nodes[0]) != 0) {
        continue;
      }
      const std::size_t i = vertex.nodes[0];
      const std::vector<std::size_t> inputs = weight_inputs(m_, l_, i, vertex.kind);
      if (inputs.empty()) {
        continue;
      }
      configs options = weight_configs(vertex.kind, options_.weights, true, label(m_, vertex));
      std::optional<std::size_t> group;
      for (const auto& [q, table] : at_embeddings) {
        if (table == v) {
          share_with_table(found, q, options, group);
        }
      }
      for (const std::size_t k : inputs) {
        if (done.insert(m_.nodes[i].inputs[k]).second) {
          all.push_back({m_.nodes[i].inputs[k], options.front(), {}, node_input{i, k}, group, {i}});
        }
      }
    }
    return all;
  }

  /// Lets a table's quantizer stand for quantizer q of its results, if a form fits both.
  static void share_with_table(std::map<std::size_t, moving_quantizer>& found, std::size_t q,
                               configs& options, std::optional<std::size_t>& group) {
    const auto quantizer = found.find(q);
    if (quantizer == found.end()) {
      return;
    }
    configs common;
    for (const quantizer_config& c : options) {
      const quantizer_config& a = quantizer->second.options[0];
      quantizer_config any_sign = c;
      any_sign.is_signed = a.is_signed;
      const bool fits = any_sign == a && (!a.is_signed || c.is_signed == a.is_signed);
      if (fits && !c.per_channel) {
        common.push_back(c);
      }
    }
    if (common.empty()) {
      return;
    }
    options = common;
    group = quantizer->second.group;
    for (auto& [other, m] : found) {
      if (group && m.group == group) {
        m.options = {common.front()};
      }
    }
    found.erase(quantizer);
  }

  void add_activation(std::vector<placed_quantizer>& all, const moving_quantizer& q,
                      const std::map<std::size_t, moving_quantizer>& found) const {
    placed_quantizer p{{}, q.options[0], {}, {}, q.group, {}};
    std::set<std::size_t> serves = q.serves;
    for (const std::size_t lower : q.stricter) {
      const auto other = found.find(lower);
      if (other != found.end()) {
        std::erase_if(serves, [&](std::size_t v) { return other->second.serves.count(v) != 0; });
      }
    }
    for (const std::size_t v : serves) {
      if (!g_.vertices[v].nodes.empty()) {
        p.serves.insert(g_.vertices[v].nodes[0]);
      }
    }
    if (options_.transformer && multiplies_activations(p.serves)) {
      p.config.symmetric = true;
    }
    const operator_vertex& vertex = g_.vertices[q.at.vertex];
    if (q.at.source) {
      const operator_vertex::source& s = vertex.sources[*q.at.source];
      p.value = s.value;
      if (!vertex.nodes.empty()) {
        p.only = node_input{vertex.nodes[0], s.port};
      }
      all.push_back(std::move(p));
      return;
    }
    for_each_result(q.at.vertex, [&](const std::string& value) {
      p.value = value;
      all.push_back(p);
    });
  }

  /// Calls f with the results of a vertex that are taken. Results of a model's input are the input
  /// itself.
  template <class Function>
  void for_each_result(std::size_t v, const Function& f) const {
    const operator_vertex& vertex = g_.vertices[v];
    if (vertex.nodes.empty()) {
      f(vertex.value);
      return;
    }
    for (const std::string& out : m_.nodes[vertex.nodes.back()].outputs) {
      if (!out.empty() && (!l_.consumers(out).empty() || m_.is_output(out))) {
        f(out);
      }
    }
  }

  /// Whether one of the nodes is a matrix product without constant weights.
  [[nodiscard]] bool multiplies_activations(const std::set<std::size_t>& nodes) const {
    return std::any_of(nodes.begin(), nodes.end(), [&](std::size_t i) {
      const std::string kind = operator_kind(m_, l_, m_.nodes[i]);
      return is_among(kind, {"MatMul", "Gemm"}) && weight_inputs(m_, l_, i, kind).empty();
    });
  }

  /// Numbers the groups from 0 on; a group of one is none.
  static void number_groups(std::vector<placed_quantizer>& all) {
    std::map<std::size_t, std::size_t> members;
    for (const placed_quantizer& q : all) {
      if (q.group) {
        ++members[*q.group];
      }
    }
    std::map<std::size_t, std::size_t> numbers;
    for (placed_quantizer& q : all) {
      if (q.group && members[*q.group] > 1) {
        q.group = numbers.emplace(*q.group, numbers.size()).first->second;
      } else {
        q.group.reset();
      }
    }
  }

  const model& m_;
  const placement_options& options_;
  std::map<std::string, tensor> known_;
  links l_;
  operator_graph plain_;
  operator_graph g_;
  std::set<std::size_t> ignored_;   // nodes
  std::set<std::size_t> in_float_;  // vertices
};

}  // namespace detail

/// The quantizers that NNCF places in a float model, in the order of the nodes that take what they
/// quantize. The nodes of the model must be in topological order (sort_and_check()).
///
/// Throws invalid_argument if restrictions leave no quantizer for an operator, naming it.
[[nodiscard]] inline std::vector<placed_quantizer> place_quantizers(
    const model& m, const placement_options& options = {}) {
  return detail::quantizer_placer(m, options).run();
}

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_PLACEMENT_HPP
