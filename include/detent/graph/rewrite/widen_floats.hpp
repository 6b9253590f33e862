// SPDX-License-Identifier: BSD-3-Clause
// Rewrites models of 16-bit floats so that they compute in float32.
#ifndef DETENT_GRAPH_REWRITE_WIDEN_FLOATS_HPP
#define DETENT_GRAPH_REWRITE_WIDEN_FLOATS_HPP

#include <algorithm>
#include <array>
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
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/rewrite/renaming.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Rewrites a model that holds float16 or bfloat16 so that it computes in float32, the only floats
/// that are quantized: constants are converted, which is exact, and values between the nodes are no
/// longer rounded to 16 bits. Sub-graphs are rewritten, too. Constants take twice the memory.
/// Inputs and outputs keep their names and types: the nodes take and make NAME_float32 (with a
/// number behind it if there is such a name), and a Cast stands between the two.
///
/// Returns whether the model was changed. It is not if it has no 16-bit floats but for inputs and
/// outputs behind Casts, if widening_obstacle() names a node, or if values would keep 16 bits
/// because an operator makes them whatever its inputs are. Throws what infer_shapes() throws.
DETENT_GRAPH_DECL bool widen_floats(model& m,
                                    const operator_registry& registry = default_operators());

/// Why widen_floats() leaves a model of 16-bit floats as it is: the first node, also in a
/// sub-graph, that has no operator in `registry`, so that nothing is known of the types that it
/// takes, or that is a BitCast, which looks at bits. Empty if there is none, or if there are no
/// 16-bit floats to widen.
[[nodiscard]] DETENT_GRAPH_DECL std::string widening_obstacle(
    const model& m, const operator_registry& registry = default_operators());

#if DETENT_GRAPH_DEFINES_EXECUTION
namespace detail {

/// Whether an attribute names a type of floats of 16 bits: those of Cast, EyeLike, QuantizeLinear,
/// DequantizeLinear, LayerNormalization, Attention and their like.
[[nodiscard]] inline bool names_half(const std::string& key, const attribute& a) {
  static constexpr std::array<std::string_view, 6> keys{
      "to", "dtype", "output_dtype", "precision", "softmax_precision", "stash_type"};
  return a.kind == attribute::kind_type::i &&
         std::find(keys.begin(), keys.end(), key) != keys.end() &&
         is_half(static_cast<element_type>(a.i));
}

/// Whether a graph or a sub-graph of it holds floats of 16 bits, in values that are declared,
/// constants or attributes.
[[nodiscard]] inline bool holds_half(const graph_body& g) {
  const auto is_declared_half = [](const value_info& v) { return is_half(v.type); };
  bool holds = false;
  for (const auto* list : {&g.inputs, &g.outputs, &g.values}) {
    holds = holds || std::any_of(list->begin(), list->end(), is_declared_half);
  }
  for (const auto& [name, t] : g.initializers) {
    holds = holds || is_half(t.type());
  }
  for (const node& n : g.nodes) {
    for (const auto& [key, a] : n.attributes) {
      holds =
          holds || names_half(key, a) || (a.kind == attribute::kind_type::t && is_half(a.t.type()));
    }
    for_each_body(
        n, [&](const std::string&, const graph_body& body) { holds = holds || holds_half(body); });
  }
  return holds;
}

/// Whether a model holds floats of 16 bits other than in inputs that only Casts to float32 take, in
/// outputs that Casts make, and in outputs that are inputs.
[[nodiscard]] inline bool computes_in_half(const model& m) {
  if (!holds_half(m)) {
    return false;
  }
  const links l(m);
  const auto casts_to = [](const node& n, bool (*is_type)(element_type)) {
    return n.is("Cast") && is_type(static_cast<element_type>(n.get_int("to", 0)));
  };
  const auto is_float = [](element_type type) { return type == element_type::f32; };
  graph_body inner = m;  // without what does not count
  for (value_info& v : inner.inputs) {
    const auto users = l.consumers(v.name);
    const bool is_cast = std::all_of(users.begin(), users.end(),
                                     [&](std::size_t i) { return casts_to(m.nodes[i], is_float); });
    v.type = is_cast ? element_type::f32 : v.type;
  }
  for (value_info& v : inner.outputs) {
    const std::size_t i = l.producer(v.name);
    if (i == links::none) {
      v.type = element_type::f32;  // an input, or a constant, which counts itself
    } else if (l.consumers(v.name).empty() &&
               casts_to(m.nodes[i], [](element_type type) { return is_half(type); })) {
      v.type = element_type::f32;
      inner.nodes[i].attributes.clear();
    }
  }
  return holds_half(inner);
}

/// widening_obstacle() of the nodes of a graph. `functions`: those of the model that it belongs to.
[[nodiscard]] inline std::string obstacle_in(const graph_body& g, const function_table& functions,
                                             const operator_registry& registry) {
  for (const node& n : g.nodes) {
    if (functions.function_of(n) != nullptr || registry.find(n.domain, n.op_type) == nullptr) {
      return n.label() + " has no operator here, so the types that it takes are unknown";
    }
    if (n.is("BitCast")) {
      return n.label() + " looks at the bits of floats";
    }
    std::string inner;
    for_each_body(n, [&](const std::string&, const graph_body& body) {
      inner = inner.empty() ? obstacle_in(body, functions, registry) : inner;
    });
    if (!inner.empty()) {
      return inner;
    }
  }
  return {};
}

inline void widen_constant(tensor& t) {
  if (is_half(t.type())) {
    t = half_to_float(t);
  }
}

/// Makes the constants and attributes of a graph and its sub-graphs those of float32, and what is
/// declared of its values but for inputs and outputs.
inline void widen_body(graph_body& g) {
  for (auto& [name, t] : g.initializers) {
    widen_constant(t);
  }
  const auto widen = [](std::vector<value_info>& list) {
    for (value_info& v : list) {
      v.type = is_half(v.type) ? element_type::f32 : v.type;
    }
  };
  widen(g.values);
  for (node& n : g.nodes) {
    for (auto& [key, a] : n.attributes) {
      widen_constant(a.t);
      if (names_half(key, a)) {
        a.i = static_cast<std::int64_t>(element_type::f32);
      }
    }
    if (has_bodies(n)) {
      change_bodies(n, [&](graph_body& body) {
        widen(body.inputs);
        widen(body.outputs);
        widen_body(body);
      });
    }
  }
}

/// A Cast node of a model.
[[nodiscard]] inline node cast_node(const std::string& from, const std::string& to,
                                    element_type type) {
  node n;
  n.op_type = "Cast";
  n.name = to + "_cast";
  n.inputs = {from};
  n.outputs = {to};
  n.attributes["to"] = attribute::of(static_cast<std::int64_t>(type));
  return n;
}

}  // namespace detail

DETENT_GRAPH_DECL std::string widening_obstacle(const model& m, const operator_registry& registry) {
  return detail::computes_in_half(m) ? detail::obstacle_in(m, function_table(m), registry)
                                     : std::string();
}

DETENT_GRAPH_DECL bool widen_floats(model& m, const operator_registry& registry) {
  if (!detail::computes_in_half(m) ||
      !detail::obstacle_in(m, function_table(m), registry).empty()) {
    return false;
  }
  const model original = m;
  // Outputs whose type is not declared may have 16 bits, too.
  const std::map<std::string, tensor> before = infer_types(m, registry);
  const auto type_of = [&](const value_info& v) {
    const auto known = before.find(v.name);
    return v.type == element_type::undefined && known != before.end() ? known->second.type()
                                                                      : v.type;
  };
  detail::widen_body(m);
  const links used(m);
  unused_names names(m);
  detail::renaming renamed(m);
  std::vector<node> nodes;
  std::vector<node> last;
  std::set<std::string> inputs;
  for (const value_info& v : m.inputs) {
    inputs.insert(v.name);
    if (detail::is_half(v.type) && !used.consumers(v.name).empty()) {
      const std::string inner = names.take(v.name + "_float32");
      renamed.rename(v.name, inner);
      nodes.push_back(detail::cast_node(v.name, inner, element_type::f32));
    }
  }
  std::set<std::string> outputs;
  for (const value_info& v : m.outputs) {
    const bool is_new = outputs.insert(v.name).second;  // an output may be listed twice
    if (!is_new || !detail::is_half(type_of(v)) || inputs.count(v.name) != 0) {
      continue;
    }
    const std::string inner = names.take(v.name + "_float32");
    renamed.rename(v.name, inner);
    if (auto constant = m.initializers.extract(v.name)) {
      constant.key() = inner;
      m.initializers.insert(std::move(constant));
    }
    last.push_back(detail::cast_node(inner, v.name, type_of(v)));
  }
  renamed.apply_to(m);
  for (value_info& v : m.values) {
    v.name = renamed.name_of(v.name);
  }
  std::move(m.nodes.begin(), m.nodes.end(), std::back_inserter(nodes));
  std::move(last.begin(), last.end(), std::back_inserter(nodes));
  m.nodes = std::move(nodes);
  const std::map<std::string, tensor> after = infer_types(m, registry);
  for (const auto& [name, t] : after) {
    if (detail::is_half(t.type()) && inputs.count(name) == 0 && outputs.count(name) == 0) {
      m = original;
      return false;
    }
  }
  // What were conversions to and from 16 bits are copies now.
  for (node& n : m.nodes) {
    if (n.is("Cast") && n.get_int("to", 0) == static_cast<std::int64_t>(element_type::f32)) {
      const auto known = after.find(n.inputs[0]);
      if (known != after.end() && known->second.type() == element_type::f32) {
        n.op_type = "Identity";
        n.attributes.clear();
      }
    }
  }
  return true;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_WIDEN_FLOATS_HPP
