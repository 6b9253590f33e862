// SPDX-License-Identifier: BSD-3-Clause
// The graph in which NNCF places quantizers: a vertex for each operator that depends on an input of
// the model, for each input and for each output. Constants, and what computes with nothing but
// constants or shapes, are not part of it.
#ifndef DETENT_GRAPH_NNCF_OPERATOR_GRAPH_HPP
#define DETENT_GRAPH_NNCF_OPERATOR_GRAPH_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

using namespace graph::detail;

/// A constant that a node of a model takes: an initializer, or what Constant, Identity, Transpose,
/// Reshape, QuantizeLinear and DequantizeLinear make of one.
[[nodiscard]] inline bool is_weight(const model& m, const links& l, const std::string& value) {
  static constexpr std::string_view passing[] = {"Identity", "Transpose", "Reshape",
                                                 "QuantizeLinear", "DequantizeLinear"};
  std::string name = value;
  for (std::size_t i = l.producer(name); i != links::none; i = l.producer(name)) {
    const node& n = m.nodes[i];
    if (n.is("Constant")) {
      return true;
    }
    if (std::find(std::begin(passing), std::end(passing), n.op_type) == std::end(passing)) {
      return false;
    }
    name = n.inputs.at(0);
  }
  return m.initializer(name) != nullptr;
}

/// Whether a Conv has one group for each channel of its input, and weights in the file.
[[nodiscard]] inline bool is_depthwise(const model& m, const node& n) {
  const tensor* w = n.inputs.size() > 1 ? m.initializer(n.inputs[1]) : nullptr;
  const std::int64_t groups = n.get_int("group", 1);
  if (w == nullptr || w->rank() < 2 || groups < 1) {
    return false;
  }
  return w->dim(1) == 1 && w->dim(0) > 0 && w->dim(0) % groups == 0;
}

/// The kind of an operator, by which all rules go: its type, but GroupConv and DepthwiseConv for a
/// Conv with groups, Relu for Clip, Add for Sum, and Embedding for a Gather of a float constant.
/// Empty for operators of other domains.
[[nodiscard]] inline std::string operator_kind(const model& m, const links& l, const node& n) {
  if (!n.domain.empty()) {
    return {};
  }
  if (n.is("Conv") && n.get_int("group", 1) != 1) {
    return is_depthwise(m, n) ? "DepthwiseConv" : "GroupConv";
  }
  if (n.is("Gather") && !n.inputs.empty() && is_weight(m, l, n.inputs[0])) {
    const tensor* table = m.initializer(n.inputs[0]);
    return table == nullptr || table->type() == element_type::f32 ? "Embedding" : "Gather";
  }
  return n.is("Clip") ? "Relu" : n.is("Sum") ? "Add" : n.op_type;
}

/// The kinds of the vertices that are no operators.
inline constexpr std::string_view input_kind = "input";
inline constexpr std::string_view output_kind = "output";

/// A vertex of an operator_graph.
struct operator_vertex {
  /// What the vertex takes: input `port` of its first node, which `value` is connected to.
  struct source {
    std::size_t from = 0;     ///< The vertex that makes the value.
    std::size_t port = 0;     ///< The index of the input.
    std::string value;        ///< The name of the value.
    bool is_integer = false;  ///< Whether its elements are not float32.
  };
  std::string kind;                ///< The kind of its first node, or input_kind or output_kind.
  std::vector<std::size_t> nodes;  ///< Its nodes, by their indices in the model, in their order.
  std::string value;               ///< The name of the value of an input or an output.
  std::vector<source> sources;     ///< Without constants, by their ports.
};

/// The vertices of a model, those of nodes in topological order.
struct operator_graph {
  std::vector<operator_vertex> vertices;  ///< Nodes, then inputs, then outputs.

  /// For each vertex, what takes its results: pairs of a vertex and an index of its sources.
  [[nodiscard]] std::vector<std::vector<std::pair<std::size_t, std::size_t>>> users() const {
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> all(vertices.size());
    for (std::size_t v = 0; v < vertices.size(); ++v) {
      for (std::size_t k = 0; k < vertices[v].sources.size(); ++k) {
        all[vertices[v].sources[k].from].emplace_back(v, k);
      }
    }
    return all;
  }
};

/// Builds the operator_graph of a model.
class operator_graph_builder {
 public:
  /// `known` has the types of values, as infer_shapes() finds them.
  operator_graph_builder(const model& m, const std::map<std::string, tensor>& known)
      : m_(m), known_(known), l_(m) {
    find_floats();
  }

  [[nodiscard]] operator_graph run() const {
    const std::set<std::size_t> kept = nodes_of_data();
    operator_graph g;
    std::map<std::string, std::size_t> makers;
    for (const std::size_t i : kept) {
      for (const std::string& out : m_.nodes[i].outputs) {
        makers.emplace(out, g.vertices.size());
      }
      g.vertices.push_back({operator_kind(m_, l_, m_.nodes[i]), {i}, {}, {}});
    }
    for (const value_info& v : m_.inputs) {
      makers.emplace(v.name, g.vertices.size());
      g.vertices.push_back({std::string(input_kind), {}, v.name, {}});
    }
    makers.erase("");
    for (operator_vertex& v : g.vertices) {
      for (std::size_t port = 0; !v.nodes.empty() && port < m_.nodes[v.nodes[0]].inputs.size();
           ++port) {
        connect(v, m_.nodes[v.nodes[0]].inputs[port], port, makers);
      }
    }
    for (const value_info& v : m_.outputs) {
      if (makers.count(v.name) != 0 && l_.producer(v.name) != links::none) {
        operator_vertex output{std::string(output_kind), {}, v.name, {}};
        connect(output, v.name, 0, makers);
        g.vertices.push_back(std::move(output));
      }
    }
    return g;
  }

 private:
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);

  void connect(operator_vertex& v, const std::string& value, std::size_t port,
               const std::map<std::string, std::size_t>& makers) const {
    const auto maker = makers.find(value);
    if (maker != makers.end()) {
      v.sources.push_back({maker->second, port, value, floats_.count(value) == 0});
    }
  }

  /// Finds the values of float32. Inference of shapes tells nothing of a value whose shape depends
  /// on elements of the model's inputs, unless the model declares it; then the operators tell.
  void find_floats() {
    std::map<std::string, element_type> types;
    for (const auto* list : {&m_.inputs, &m_.outputs, &m_.values}) {
      for (const value_info& v : *list) {
        types.emplace(v.name, v.type);
      }
    }
    for (const auto& [name, value] : m_.initializers) {
      types.insert_or_assign(name, value.type());
    }
    for (const auto& [name, value] : known_) {
      types.insert_or_assign(name, value.type());
    }
    for (const node& n : m_.nodes) {
      for (std::size_t k = 0; k < n.outputs.size(); ++k) {
        element_type& type = types.emplace(n.outputs[k], element_type::undefined).first->second;
        type = type == element_type::undefined ? type_of_result(n, k, types) : type;
      }
    }
    for (const auto& [name, type] : types) {
      if (type == element_type::f32) {
        floats_.insert(name);
      }
    }
  }

  /// The type of the elements of a node's result, as its operator has it. Operators that are not
  /// known make what they take.
  [[nodiscard]] static element_type type_of_result(
      const node& n, std::size_t output, const std::map<std::string, element_type>& types) {
    const auto is = [&](std::initializer_list<std::string_view> kinds) {
      return std::find(kinds.begin(), kinds.end(), n.op_type) != kinds.end();
    };
    if (is({"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "NonMaxSuppression"}) ||
        (output > 0 && is({"TopK", "MaxPool", "Unique"}))) {
      return element_type::s64;
    }
    if (is({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not",
            "IsNaN", "IsInf"})) {
      return element_type::boolean;
    }
    if (is({"Cast"})) {
      return static_cast<element_type>(n.get_int("to", 0));
    }
    const attribute* const value = n.find("value");  // of Constant and ConstantOfShape
    if (value != nullptr && value->kind == attribute::kind_type::t) {
      return value->t.type();
    }
    if (is({"ConstantOfShape", "If", "Loop", "Scan"})) {
      return element_type::f32;
    }
    const std::size_t like = is({"Where", "CastLike", "DequantizeLinear"}) ? 1
                             : is({"OneHot"})                              ? 2
                                                                           : 0;
    const auto found = like < n.inputs.size() ? types.find(n.inputs[like]) : types.end();
    return found == types.end() ? element_type::f32 : found->second;
  }

  /// The nodes that depend on an input of the model, or that look up an embedding, without those
  /// that compute with shapes.
  [[nodiscard]] std::set<std::size_t> nodes_of_data() const {
    std::vector<std::size_t> starts;
    for (const value_info& v : m_.inputs) {
      const auto users = l_.consumers(v.name);
      starts.insert(starts.end(), users.begin(), users.end());
    }
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      if (operator_kind(m_, l_, m_.nodes[i]) == "Embedding") {
        starts.push_back(i);
      }
    }
    std::set<std::size_t> reached = reach(starts, false);
    const std::set<std::size_t> data = reach(starts, true);
    for (const std::size_t i : shape_nodes(data)) {
      reached.erase(i);
    }
    return reached;
  }

  /// All nodes behind `starts`, those included; with `until_shapes`, neither Shape nor what is
  /// behind it.
  [[nodiscard]] std::set<std::size_t> reach(std::vector<std::size_t> starts,
                                            bool until_shapes) const {
    std::set<std::size_t> found;
    while (!starts.empty()) {
      const std::size_t i = starts.back();
      starts.pop_back();
      if ((until_shapes && m_.nodes[i].is("Shape")) || !found.insert(i).second) {
        continue;
      }
      for (const std::string& out : m_.nodes[i].outputs) {
        const auto users = l_.consumers(out);
        starts.insert(starts.end(), users.begin(), users.end());
      }
    }
    return found;
  }

  /// The Shape nodes of values in `data`, and all nodes that are connected to them without passing
  /// a node of `data`.
  [[nodiscard]] std::set<std::size_t> shape_nodes(const std::set<std::size_t>& data) const {
    std::vector<std::size_t> next;
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      const node& n = m_.nodes[i];
      const bool of_data =
          n.is("Shape") && std::any_of(n.inputs.begin(), n.inputs.end(), [&](const auto& in) {
            const std::size_t maker = l_.producer(in);
            return maker == links::none ? m_.initializer(in) == nullptr : data.count(maker) != 0;
          });
      if (of_data) {
        next.push_back(i);
      }
    }
    std::set<std::size_t> found;
    while (!next.empty()) {
      const std::size_t i = next.back();
      next.pop_back();
      if (data.count(i) != 0 || !found.insert(i).second) {
        continue;
      }
      for (const std::string& out : m_.nodes[i].outputs) {
        const auto users = l_.consumers(out);
        next.insert(next.end(), users.begin(), users.end());
      }
      if (!m_.nodes[i].is("Shape")) {
        for (const std::string& in : m_.nodes[i].inputs) {
          if (l_.producer(in) != links::none) {
            next.push_back(l_.producer(in));
          }
        }
      }
    }
    return found;
  }

  const model& m_;
  const std::map<std::string, tensor>& known_;
  links l_;
  std::set<std::string> floats_;  // the names of values of float32
};

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_OPERATOR_GRAPH_HPP
