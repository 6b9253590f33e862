// SPDX-License-Identifier: BSD-3-Clause
// Finds where a factor for each channel can pass through a model: from the input of a layer back to
// the node that makes the channels, through operators f with f(s x) = s f(x) for s > 0.
#ifndef DETENT_GRAPH_REWRITE_CHANNEL_PATH_HPP
#define DETENT_GRAPH_REWRITE_CHANNEL_PATH_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/full_pads.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The axis of a value along which its channels lie. Behind a Flatten each channel has several
/// neighbouring indices on that axis.
struct channel_axis {
  std::size_t rank = 0;    ///< Number of dimensions of the value.
  std::size_t axis = 0;    ///< Axis of the channels.
  std::size_t length = 0;  ///< Number of indices along the axis.
  /// Whether all three members are equal.
  friend bool operator==(const channel_axis&, const channel_axis&) = default;
};

/// A path that factors of channels can take: from a value back to the node that makes the channels.
struct channel_path {
  /// A node on the path, and the axis of the channels in its output.
  struct step {
    std::size_t node_index;  ///< Index of the node in the model.
    channel_axis output;     ///< Axis of the channels in the node's output.
  };
  /// Index of the node at the end; links::none if that is an input or a constant.
  std::size_t source = links::none;
  std::string value;          ///< Name of the value that the source makes.
  channel_axis layout;        ///< Axis of the channels in that value.
  std::vector<step> between;  ///< The nodes between, from the start of the path back to the source.
};

namespace detail {

/// The product of the dimensions from `first` on; nothing if one of them is open or 0, or if it is
/// above 2^40. Beside a dimension of 0, others may be as large as they like.
[[nodiscard]] inline std::optional<std::size_t> size_from(const shape& dims, std::size_t first) {
  constexpr std::size_t most = std::size_t{1} << 40U;
  std::size_t size = 1;
  for (std::size_t d = first; d < dims.size(); ++d) {
    if (dims[d] <= 0 || static_cast<std::size_t>(dims[d]) > most / size) {
      return std::nullopt;
    }
    size *= static_cast<std::size_t>(dims[d]);
  }
  return size;
}

/// For a node that keeps the flat order of elements (a reshape): the axis of the channels in its
/// input, given their axis in its output. Only axis 1 is supported. Returns nothing unless each
/// index along axis 1 of the output belongs to one channel of the input.
[[nodiscard]] inline std::optional<channel_axis> before_reshape(const shape& in, const shape& out,
                                                                channel_axis at) {
  if (at.axis != 1 || in.size() < 2 || out.size() < 2 || in[1] <= 0 ||
      out[1] != static_cast<std::int64_t>(at.length)) {
    return std::nullopt;
  }
  // The first dimensions agree if the products of all others do: input and output have the same
  // number of elements.
  const auto inner_in = size_from(in, 2);
  const auto inner_out = size_from(out, 2);
  if (!inner_in || !inner_out || *inner_in % *inner_out != 0 ||
      static_cast<std::size_t>(in[1]) * *inner_in != at.length * *inner_out) {
    return std::nullopt;
  }
  return channel_axis{in.size(), 1, static_cast<std::size_t>(in[1])};
}

/// Whether a Pad keeps channels apart: it adds zeros, or elements of the same channel, and nothing
/// along the axis of the channels.
[[nodiscard]] inline bool pads_channels_apart(const model& m, const node& n, channel_axis at) {
  std::optional<std::vector<std::int64_t>> pads = n.get_ints("pads");
  if (pads->empty()) {
    pads = constant_integers(m, n, 1);
  }
  if (pads && n.inputs.size() > 3 && !n.inputs[3].empty()) {
    const auto axes = constant_integers(m, n, 3);
    pads = axes ? pads_of_all_dimensions(*pads, *axes, at.rank) : std::nullopt;
  }
  if (!pads || pads->size() != 2 * at.rank || (*pads)[at.axis] != 0 ||
      (*pads)[at.rank + at.axis] != 0) {
    return false;
  }
  if (n.get_string("mode", "constant") != "constant") {
    return true;
  }
  if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
    const tensor* value = float_constant(m, n, 2);
    return value != nullptr && value->count() == 1 && value->data<float>()[0] == 0.0F;
  }
  return n.get_float("value", 0.0F) == 0.0F;
}

/// Input `i` of a node with two inputs, if it is a float constant that is broadcast to the result
/// without adding dimensions to it and the other input is not a constant; else null.
[[nodiscard]] inline const tensor* broadcast_constant(const model& m, const node& n, std::size_t i,
                                                      channel_axis at) {
  const tensor* t = float_constant(m, n, i);
  if (n.inputs.size() != 2 || t == nullptr || t->count() == 0 || t->rank() > at.rank ||
      m.initializer(n.inputs[1 - i]) != nullptr) {
    return nullptr;
  }
  const std::size_t own = at.axis + t->rank();
  const auto length = static_cast<std::int64_t>(at.length);
  return own < at.rank || t->dim(own - at.rank) == 1 || t->dim(own - at.rank) == length ? t
                                                                                        : nullptr;
}

/// Which input of an Add, Mul or Div is a constant, if the other one carries the channels.
[[nodiscard]] inline std::optional<std::size_t> constant_operand(const model& m, const node& n,
                                                                 channel_axis at) {
  if (n.is("Add") || n.is("Mul") || n.is("Div")) {
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (broadcast_constant(m, n, i, at) != nullptr && (i == 1 || !n.is("Div"))) {
        return i;
      }
    }
  }
  return std::nullopt;
}

/// The input of a node that carries the channels, and the axis of the channels in it.
struct channel_input {
  std::size_t input;
  channel_axis layout;
};

/// The input from which the channels at axis `at` of a node's output come, if factors of channels
/// can pass the node; else nothing.
[[nodiscard]] inline std::optional<channel_input> before_node(const model& m,
                                                              const value_shapes& shapes,
                                                              const node& n, channel_axis at) {
  if (n.inputs.empty() || n.inputs[0].empty()) {
    return std::nullopt;
  }
  const channel_input same{0, at};
  if (n.is("Relu") || n.is("LeakyRelu") || n.is("Identity") || n.is("Abs") || n.is("Neg")) {
    return same;
  }
  if (n.is("PRelu")) {  // homogeneous for any slopes
    return n.inputs.size() == 2 ? std::optional(same) : std::nullopt;
  }
  if (n.is("Clip")) {
    const auto bounds = clamping_activation(m, n);
    const bool is_relu =
        bounds && bounds->lower == 0.0F && bounds->upper >= (std::numeric_limits<float>::max)();
    return is_relu ? std::optional(same) : std::nullopt;
  }
  if (n.is("MaxPool") || n.is("AveragePool") || n.is("GlobalAveragePool") ||
      n.is("GlobalMaxPool")) {
    return at.axis == 1 && at.rank > 2 ? std::optional(same) : std::nullopt;
  }
  if (n.is("Pad")) {
    return pads_channels_apart(m, n, at) ? std::optional(same) : std::nullopt;
  }
  if (n.is("Transpose")) {
    std::vector<std::int64_t> order = n.get_ints("perm");
    for (std::size_t d = order.empty() ? at.rank : 0; d > 0; --d) {
      order.push_back(static_cast<std::int64_t>(d) - 1);
    }
    if (order.size() != at.rank || order[at.axis] < 0 ||
        order[at.axis] >= static_cast<std::int64_t>(at.rank)) {
      return std::nullopt;
    }
    at.axis = static_cast<std::size_t>(order[at.axis]);
    return channel_input{0, at};
  }
  if (n.is("Flatten") || n.is("Reshape") || n.is("Squeeze") || n.is("Unsqueeze")) {
    const auto in = shapes.dims(n.inputs[0]);
    const auto out = shapes.dims(n.outputs[0]);
    const auto before = in && out && out->size() == at.rank ? before_reshape(*in, *out, at)
                                                            : std::optional<channel_axis>();
    return before ? std::optional(channel_input{0, *before}) : std::nullopt;
  }
  if (const auto constant = constant_operand(m, n, at)) {
    // The other operand must have the rank of the result; else `at` is not an axis of it.
    const std::string& value = n.inputs[1 - *constant];
    const bool keeps_rank =
        shapes.rank(value) == at.rank || m.initializers.at(n.inputs[*constant]).rank() <= 1;
    return keeps_rank ? std::optional(channel_input{1 - *constant, at}) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace detail

/// Follows the channels of `value` back to the node that makes them. `layout` is their axis in
/// `value`.
///
/// The path ends at the first node that factors cannot pass, or for which `stops` returns true:
/// that node is its source. It ends earlier, without a source, at an input, a constant or an output
/// of the graph, at a value that has other uses, and at a node with several outputs. `value` itself
/// must have `uses` uses, all other values on the path must have one.
///
/// Factors pass these nodes: Relu, LeakyRelu, PRelu, Clip from zero without an upper bound, Abs,
/// Neg, Identity, Transpose; pooling; Pad with zeros or with elements of the same channel; Mul and
/// Div with a constant; Add of a constant, which scale_path() has to scale, too; and Flatten,
/// Reshape, Squeeze and Unsqueeze where the shapes prove that each element stays with its channel,
/// where a channel may become several neighbouring features. They do not pass Clip(0, 6) or any
/// other operator that is not homogeneous.
[[nodiscard]] inline channel_path trace_channels(
    const model& m, const links& l, const value_shapes& shapes, const std::string& value,
    channel_axis layout, std::size_t uses = 1, const std::function<bool(const node&)>& stops = {}) {
  channel_path path;
  path.value = value;
  path.layout = layout;
  for (;;) {
    const std::size_t producer = l.producer(path.value);
    if (producer == links::none || m.is_output(path.value) ||
        l.consumers(path.value).size() != uses) {
      return path;
    }
    const node& n = m.nodes[producer];
    const auto made = std::count_if(n.outputs.begin(), n.outputs.end(),
                                    [](const std::string& out) { return !out.empty(); });
    if (made != 1 || n.outputs[0] != path.value) {
      return path;
    }
    uses = 1;
    const auto before = stops && stops(n) ? std::optional<detail::channel_input>()
                                          : detail::before_node(m, shapes, n, path.layout);
    if (!before) {
      path.source = producer;
      return path;
    }
    path.between.push_back({producer, path.layout});
    path.value = n.inputs[before->input];
    path.layout = before->layout;
  }
}

/// Adapts the nodes of a path to a source that makes channel c `factors[c]` times larger: scales
/// the constants that Add nodes on the path add. All other nodes of a path stay as they are.
///
/// Throws, naming the node: shape_mismatch if there are not as many factors as channels, overflow
/// if a scaled constant is not finite as a float. If it throws, the model is unchanged.
inline void scale_path(model& m, const channel_path& path, std::span<const double> factors) {
  struct change {
    std::size_t node_index;
    std::size_t input;
    tensor value;
  };
  std::vector<change> changes;
  for (const channel_path::step& step : path.between) {
    const node& n = m.nodes[step.node_index];
    if (!n.is("Add")) {
      continue;
    }
    const channel_axis at = step.output;
    require(factors.size() == path.layout.length, error_kind::shape_mismatch, n.label(), ": ",
            factors.size(), " factors for ", path.layout.length, " channels");
    std::vector<double> own(at.length);
    for (std::size_t i = 0; i < at.length; ++i) {
      own[i] = factors[i * factors.size() / at.length];
    }
    const std::size_t constant = *detail::constant_operand(m, n, at);
    changes.push_back({step.node_index, constant,
                       detail::scaled_constant(m.initializers.at(n.inputs[constant]), at.rank,
                                               at.axis, own, n.label())});
  }
  for (change& c : changes) {
    detail::replace_constant(m, m.nodes[c.node_index], c.input, std::move(c.value));
  }
}

/// The axis of the channels (features) that a layer takes as its input, or nothing if the rank of
/// the input is not known: axis 1 for convolutions, the last axis for products.
[[nodiscard]] inline std::optional<channel_axis> input_channels(const model& m,
                                                                const value_shapes& shapes,
                                                                const linear_layer& layer) {
  const node& n = m.nodes[layer.node_index];
  if (layer.is_spatial) {
    return channel_axis{layer.weights.rank(), 1, layer.inputs};
  }
  const auto rank = n.is("Gemm") ? std::optional(std::size_t{2}) : shapes.rank(n.inputs[0]);
  return rank && *rank > 0 ? std::optional(channel_axis{*rank, *rank - 1, layer.inputs})
                           : std::nullopt;
}
/// The axis of the channels that a layer makes, or nothing if the rank of its input is not known:
/// axis 1 for convolutions, the last axis for products.
[[nodiscard]] inline std::optional<channel_axis> output_channels(const model& m,
                                                                 const value_shapes& shapes,
                                                                 const linear_layer& layer) {
  auto channels = input_channels(m, shapes, layer);
  if (channels) {
    channels->length = layer.outputs;
  }
  return channels;
}

/// Two layers between which each channel can be scaled: the output of the first one goes to the
/// second one only, through operators that factors can pass.
struct layer_pair {
  linear_layer upstream;    ///< The layer that makes the channels.
  linear_layer downstream;  ///< The layer that takes them.
  channel_path path;        ///< From the input of `downstream` back to the output of `upstream`.

  /// The channel of `upstream` that input `i` of `downstream` belongs to.
  [[nodiscard]] std::size_t channel_of_input(std::size_t i) const noexcept {
    return i * upstream.outputs / downstream.inputs;
  }
};

/// Finds all pairs of layers between which channels can be scaled, in the order of their downstream
/// layers. trace_channels() defines what may lie between them.
///
/// The bias of the upstream layer must be constant or absent. A depthwise convolution between two
/// other layers is part of two pairs. Residual connections and branches are part of none. The
/// indices in the result are valid until nodes are added to the model or removed.
[[nodiscard]] inline std::vector<layer_pair> cross_layer_pairs(const model& m) {
  const links l(m);
  const value_shapes shapes(m);
  std::vector<layer_pair> pairs;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    auto downstream = linear_layer_of(m, i);
    const auto layout =
        downstream ? input_channels(m, shapes, *downstream) : std::optional<channel_axis>();
    if (!layout) {
      continue;
    }
    channel_path path = trace_channels(m, l, shapes, m.nodes[i].inputs[0], *layout);
    auto upstream = path.source == links::none ? std::optional<linear_layer>()
                                               : linear_layer_of(m, path.source);
    if (!upstream || !upstream->known_bias) {
      continue;
    }
    // A Transpose may have moved the channels away from the axis that the layer makes them on.
    if (output_channels(m, shapes, *upstream) == path.layout) {
      pairs.push_back({std::move(*upstream), std::move(*downstream), std::move(path)});
    }
  }
  return pairs;
}

/// Lists the values that the downstream layers of all cross_layer_pairs() take, each with the axis
/// of its features. Pass the result to observe_channels() to measure their magnitudes.
[[nodiscard]] inline std::map<std::string, std::size_t> pair_values(const model& m) {
  const value_shapes shapes(m);
  std::map<std::string, std::size_t> axes;
  for (const layer_pair& pair : cross_layer_pairs(m)) {
    const node& n = m.nodes[pair.downstream.node_index];
    axes[n.inputs[0]] = input_channels(m, shapes, pair.downstream)->axis;
  }
  return axes;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_CHANNEL_PATH_HPP
