// SPDX-License-Identifier: BSD-3-Clause
// The layers whose weights NNCF can compress, in the order in which it looks at them.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression/{algorithm,onnx_backend}.py.
#ifndef DETENT_GRAPH_NNCF_WEIGHTED_LAYERS_HPP
#define DETENT_GRAPH_NNCF_WEIGHTED_LAYERS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/weight_groups.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// What a layer does with its weights.
enum class layer_kind : std::uint8_t {
  product,     ///< MatMul or Gemm.
  embedding,   ///< Gather of a constant.
  convolution  ///< Conv that has one group or is depthwise, ConvTranspose, DeformConv.
};

/// A node and its constant weights.
struct weighted_layer {
  std::size_t node = 0;  ///< Index of the node.
  std::size_t port = 0;  ///< The input that is the constant.
  std::string weights;   ///< Name of the constant.
  layer_kind kind = layer_kind::product;
  std::size_t channel_axis = 0;  ///< The axis whose indices have scales of their own.
  /// The axis that groups divide; nothing if weights of several axes share a scale.
  std::optional<std::size_t> reduced_axis = {};
  bool is_supported = true;  ///< Whether the constant can be compressed: float32, two axes or more.

  /// The input that is no constant.
  [[nodiscard]] std::size_t activation_port() const noexcept {
    return kind == layer_kind::embedding ? 1 : 1 - port;
  }
};

/// The nodes in NNCF's order: each after those that it depends on, else in the order of the file.
/// A node that takes an input of the model is ready when all nodes before that input's turn are.
[[nodiscard]] inline std::vector<std::size_t> topological_order(const model& m, const links& l) {
  std::vector<std::size_t> missing(m.nodes.size(), 0);
  const auto for_each_user = [&](std::size_t v, const auto& f) {
    const auto visit = [&](const std::string& value) {
      const auto users = l.consumers(value);
      std::for_each(users.begin(), users.end(), f);
    };
    if (v >= m.nodes.size()) {
      visit(m.inputs[v - m.nodes.size()].name);
    } else {
      std::for_each(m.nodes[v].outputs.begin(), m.nodes[v].outputs.end(), visit);
    }
  };
  const std::size_t count = m.nodes.size() + m.inputs.size();
  for (std::size_t v = 0; v < count; ++v) {
    for_each_user(v, [&](std::size_t user) { ++missing[user]; });
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t v = 0; v < count; ++v) {
    if (v >= m.nodes.size() || missing[v] == 0) {
      ready.push(v);
    }
  }
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    const std::size_t v = ready.top();
    ready.pop();
    if (v < m.nodes.size()) {
      order.push_back(v);
    }
    for_each_user(v, [&](std::size_t user) {
      if (--missing[user] == 0) {
        ready.push(user);
      }
    });
  }
  return order;
}

/// The kind of a layer by the kind of its operator; nothing for other operators.
[[nodiscard]] inline std::optional<layer_kind> layer_kind_of(const std::string& kind) {
  if (is_among(kind, {"MatMul", "Gemm"})) {
    return layer_kind::product;
  }
  if (kind == "Embedding") {
    return layer_kind::embedding;
  }
  return is_among(kind, {"Conv", "DepthwiseConv", "ConvTranspose", "DeformConv"})
             ? std::optional<layer_kind>(layer_kind::convolution)
             : std::nullopt;
}

/// The layer that a node is, if exactly one of the inputs that may be weights is a constant.
[[nodiscard]] inline std::optional<weighted_layer> weighted_layer_of(const model& m, const links& l,
                                                                     std::size_t i) {
  const node& n = m.nodes[i];
  const std::optional<layer_kind> kind = layer_kind_of(operator_kind(m, l, n));
  if (!kind || n.inputs.size() < 2) {
    return std::nullopt;
  }
  const auto is_constant = [&](std::size_t port) {
    const tensor* t = m.initializer(n.inputs[port]);
    return t != nullptr && t->has_data();
  };
  weighted_layer layer;
  layer.node = i;
  layer.kind = *kind;
  if (*kind == layer_kind::product) {
    if (is_constant(0) == is_constant(1)) {
      return std::nullopt;
    }
    layer.port = is_constant(1) ? 1 : 0;
  } else {
    layer.port = *kind == layer_kind::embedding ? 0 : 1;
    if (!is_constant(layer.port)) {
      return std::nullopt;
    }
  }
  layer.weights = n.inputs[layer.port];
  const tensor& w = *m.initializer(layer.weights);
  const std::size_t rank = w.rank();
  layer.is_supported = w.type() == element_type::f32 && rank >= 2 && w.count() != 0;
  if (!layer.is_supported) {
    return layer;
  }
  if (*kind == layer_kind::product) {
    const bool is_turned = n.is("Gemm") && n.get_int(layer.port == 1 ? "transB" : "transA", 0) != 0;
    const bool channels_last = n.is("MatMul") || (layer.port == 1 ? !is_turned : is_turned);
    layer.channel_axis = channels_last ? rank - 1 : rank - 2;
    if (rank <= 3) {
      layer.reduced_axis = channels_last ? rank - 2 : rank - 1;
    }
  } else {
    layer.channel_axis = n.is("ConvTranspose") ? 1 : 0;
    if (rank == 2) {
      layer.reduced_axis = 1 - layer.channel_axis;
    }
  }
  return layer;
}

/// All layers with constant weights, in NNCF's order.
[[nodiscard]] inline std::vector<weighted_layer> weighted_layers(const model& m, const links& l) {
  std::vector<weighted_layer> found;
  for (const std::size_t i : topological_order(m, l)) {
    if (auto layer = weighted_layer_of(m, l, i)) {
      found.push_back(std::move(*layer));
    }
  }
  return found;
}

/// Which weights of a layer share a scale: all of a channel if `group_size` is 0, else so many
/// neighbours along the reduced axis, which must have a multiple of that. Weights of a MatMul with
/// three axes have a scale for each index of the first axis, too.
[[nodiscard]] inline weight_groups groups_of(const weighted_layer& layer, const shape& dims,
                                             std::size_t group_size) {
  const auto product = [&](std::size_t first, std::size_t last) {
    std::size_t all = 1;
    for (std::size_t i = first; i < last; ++i) {
      all *= static_cast<std::size_t>(dims[i]);
    }
    return all;
  };
  weight_groups g;
  const std::size_t axis = layer.reduced_axis.value_or(layer.channel_axis);
  g.outer = product(0, axis);
  g.middle = product(axis, axis + 1);
  g.inner = product(axis + 1, dims.size());
  g.per_middle = !layer.reduced_axis;
  g.block = group_size == 0 ? g.middle : group_size;
  return g;
}

/// The MatMul nodes that compute angles of positional encodings, which NNCF leaves alone:
/// MatMul, Transpose, Concat, then Cos and Sin; or MatMul, Mul, then Cos and Sin, then Concat.
[[nodiscard]] inline std::set<std::size_t> positional_products(const model& m, const links& l) {
  const auto users = [&](std::size_t i, const char* op) {
    std::vector<std::size_t> found;
    for (const std::size_t user : l.consumers(m.nodes[i].first_output())) {
      if (m.nodes[user].is(op)) {
        found.push_back(user);
      }
    }
    return found;
  };
  const auto has_angle = [&](std::size_t i) {
    return !users(i, "Cos").empty() && !users(i, "Sin").empty();
  };
  const auto joins_angles = [&](std::size_t i) {
    for (const std::size_t cosine : users(i, "Cos")) {
      for (const std::size_t sine : users(i, "Sin")) {
        const auto a = users(cosine, "Concat");
        const auto b = users(sine, "Concat");
        if (std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end()) {
          return true;
        }
      }
    }
    return false;
  };
  std::set<std::size_t> found;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (!m.nodes[i].is("MatMul")) {
      continue;
    }
    for (const std::size_t turned : users(i, "Transpose")) {
      const auto joined = users(turned, "Concat");
      if (std::any_of(joined.begin(), joined.end(), has_angle)) {
        found.insert(i);
      }
    }
    const auto scaled = users(i, "Mul");
    if (std::any_of(scaled.begin(), scaled.end(), joins_angles)) {
      found.insert(i);
    }
  }
  return found;
}

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_WEIGHTED_LAYERS_HPP
