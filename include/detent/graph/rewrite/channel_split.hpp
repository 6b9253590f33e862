// SPDX-License-Identifier: BSD-3-Clause
// Makes large weights smaller by dividing their work: channels are duplicated, or a layer is
// computed as the sum of two layers.
#ifndef DETENT_GRAPH_REWRITE_CHANNEL_SPLIT_HPP
#define DETENT_GRAPH_REWRITE_CHANNEL_SPLIT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/rounding.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Options of split_channels().
struct channel_split_options {
  std::size_t iterations = 10;  ///< Rounds of splitting, at most.
  double threshold = 0.5;  ///< Channels with a magnitude above it on both sides are split; > 0.
  /// Limit of (channels after) / (channels before) of a pair; at least 1.
  double largest_growth = 2.0;
};

/// Report of what split_channels() did to one pair of layers.
struct channel_split_pair {
  std::string upstream;             ///< Label of the node that makes the channels.
  std::string downstream;           ///< Label of the node that takes them.
  std::size_t channels_before = 0;  ///< Number of channels before.
  std::size_t channels_after = 0;   ///< Number of channels with their copies.
};

namespace detail {

/// New channels as copies of old ones: channel i is channel `origins[i]` times `factors[i]`.
struct channel_copies {
  std::vector<std::size_t> origins;
  std::vector<double> factors;
};

/// A constant in which index i along `axis` is a copy of index `origins[i]` of `t`, times
/// `factors[i]`. Without factors the elements are copied unchanged. Throws shape_mismatch if `t`
/// does not have those indices.
[[nodiscard]] inline tensor copy_channels(const tensor& t, std::size_t axis,
                                          std::span<const std::size_t> origins,
                                          std::span<const double> factors,
                                          const std::string& label) {
  shape dims = t.dims();
  require(axis < dims.size() &&
              std::all_of(origins.begin(), origins.end(),
                          [&](std::size_t i) { return static_cast<std::int64_t>(i) < dims[axis]; }),
          error_kind::shape_mismatch, label, ": a constant of shape ", shown(dims),
          " does not have the channels of the layer");
  const auto length = static_cast<std::size_t>(dims[axis]);
  dims[axis] = static_cast<std::int64_t>(origins.size());
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < dims.size(); ++d) {
    inner *= static_cast<std::size_t>(dims[d]);
  }
  tensor out = tensor::allocate(element_type::f32, dims);
  const auto from = t.data<float>();
  const auto to = out.mutable_data<float>();
  for (std::size_t k = 0; k < to.size(); ++k) {
    const std::size_t i = k / inner % origins.size();
    const std::size_t outer = k / inner / origins.size();
    const float x = from[(outer * length + origins[i]) * inner + k % inner];
    to[k] = factors.empty() ? x : scaled_value(x, factors[i], label);
  }
  return out;
}

/// Whether every node between the layers accepts any number of channels, or has constants that can
/// be extended. Both layers must have one group.
[[nodiscard]] inline bool can_grow(const model& m, const layer_pair& pair) {
  return pair.upstream.group == 1 && pair.downstream.group == 1 &&
         std::all_of(
             pair.path.between.begin(), pair.path.between.end(),
             [&](const channel_path::step& step) {
               const node& n = m.nodes[step.node_index];
               return !n.is("Reshape") &&
                      (!n.is("PRelu") || broadcast_constant(m, n, 1, step.output) != nullptr);
             });
}

/// The copies that the options ask for, given the magnitude of each channel in the weights before
/// it and behind it.
[[nodiscard]] inline channel_copies copies_of(std::span<const float> before,
                                              std::span<const float> behind,
                                              const channel_split_options& options) {
  channel_copies copies;
  for (std::size_t c = 0; c < before.size(); ++c) {
    copies.origins.push_back(c);
    copies.factors.push_back(1.0);
  }
  const double limit = static_cast<double>(before.size()) * options.largest_growth;
  for (std::size_t iteration = 0; iteration < options.iterations; ++iteration) {
    // Sort by magnitude: the limit of the growth may allow only some of them to be split.
    std::vector<std::pair<double, std::size_t>> large;
    for (std::size_t i = 0; i < copies.origins.size(); ++i) {
      const auto u = static_cast<double>(before[copies.origins[i]]) * copies.factors[i];
      const auto d = static_cast<double>(behind[copies.origins[i]]) * copies.factors[i];
      if (u > options.threshold && d > options.threshold) {
        large.emplace_back((std::min)(u, d), i);
      }
    }
    std::stable_sort(large.begin(), large.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [magnitude, i] : large) {
      if (static_cast<double>(copies.origins.size() + 1) > limit) {
        return copies;
      }
      constexpr double sqrt_half = 0x1.6a09e667f3bcdp-1;
      copies.factors[i] *= sqrt_half;
      copies.origins.push_back(copies.origins[i]);
      copies.factors.push_back(copies.factors[i]);
    }
    if (large.empty()) {
      break;
    }
  }
  return copies;
}

/// Duplicates the channels between two layers, in both layers and in all constants between them.
inline void grow_pair(model& m, const layer_pair& pair, const channel_copies& copies) {
  const std::size_t channels = pair.upstream.outputs;
  const linear_layer upstream = *linear_layer_of(m, pair.upstream.node_index);
  const linear_layer downstream = *linear_layer_of(m, pair.downstream.node_index);
  // The copies for an axis on which every channel has `repeat` neighbouring indices.
  const auto repeated = [&](std::size_t repeat) {
    channel_copies all;
    for (std::size_t i = 0; i < copies.origins.size(); ++i) {
      for (std::size_t r = 0; r < repeat; ++r) {
        all.origins.push_back(copies.origins[i] * repeat + r);
        all.factors.push_back(copies.factors[i]);
      }
    }
    return all;
  };
  node& first = m.nodes[pair.upstream.node_index];
  replace_constant(m, first, 1,
                   copy_channels(upstream.weights, upstream.outputs_first ? 0 : 1, copies.origins,
                                 copies.factors, upstream.label));
  if (upstream.bias.defined()) {
    const tensor bias = bias_by_output(upstream);
    replace_constant(
        m, first, 2,
        copy_channels(bias, bias.rank() - 1, copies.origins, copies.factors, upstream.label));
  }
  detail::name_set changed{pair.path.value};
  for (const channel_path::step& step : pair.path.between) {
    node& n = m.nodes[step.node_index];
    changed.insert(n.outputs[0]);
    const auto constant =
        n.is("PRelu") ? std::optional<std::size_t>(1) : constant_operand(m, n, step.output);
    if (!constant) {
      continue;
    }
    const channel_copies all = repeated(step.output.length / channels);
    const auto rest = static_cast<std::ptrdiff_t>(step.output.rank - step.output.axis);
    tensor t = m.initializers.at(n.inputs[*constant]);
    if (n.is("Add")) {
      const std::vector<double> ones(step.output.length, 1.0);
      t = scaled_constant(t, step.output.rank, step.output.axis, ones, n.label());
    }
    const auto axis = static_cast<std::ptrdiff_t>(t.rank()) - rest;
    if (axis < 0 || (t.dim(static_cast<std::size_t>(axis)) == 1 && !n.is("Add"))) {
      continue;  // one value for all channels
    }
    replace_constant(m, n, *constant,
                     copy_channels(t, static_cast<std::size_t>(axis), all.origins,
                                   n.is("Add") ? std::span<const double>(all.factors)
                                               : std::span<const double>(),
                                   n.label()));
  }
  const channel_copies inputs = repeated(downstream.inputs / channels);
  replace_constant(m, m.nodes[pair.downstream.node_index], 1,
                   copy_channels(downstream.weights, downstream.outputs_first ? 1 : 0,
                                 inputs.origins, inputs.factors, downstream.label));
  // The declared shapes of these values have the old number of channels.
  std::erase_if(m.values, [&](const value_info& v) { return changed.count(v.name) != 0; });
}

}  // namespace detail

/// Splits channels between two layers. A channel whose largest |weight| exceeds the threshold both
/// in the layer before it and in the layer behind it is duplicated. In both copies, the weights and
/// bias before and the weights behind are multiplied by sqrt(1/2), so that the copies together
/// contribute as much as the channel did.
///
/// This is repeated for all channels, copies included, for at most `iterations` rounds; the largest
/// channels are split first. Copies are placed behind the existing channels. It applies to those
/// cross_layer_pairs() whose layers both have one group, with no Reshape between them. The model
/// computes the same function up to rounding.
///
/// Returns the pairs that have grown. Throws invalid_argument if a weight is not finite (naming the
/// node), if the threshold is not positive, or if the growth limit is below 1; the model is
/// unchanged then.
///
/// Source: PPQ 0.6.6, channel split. The growth limit is an addition.
inline std::vector<channel_split_pair> split_channels(model& m,
                                                      const channel_split_options& options = {}) {
  require(options.threshold > 0.0, error_kind::invalid_argument, "split_channels: the threshold ",
          options.threshold, " is not positive");
  require(options.largest_growth >= 1.0, error_kind::invalid_argument,
          "split_channels: the growth ", options.largest_growth, " is below 1");
  model next = m;
  std::vector<channel_split_pair> result;
  for (const layer_pair& pair : cross_layer_pairs(m)) {
    if (!detail::can_grow(m, pair)) {
      continue;
    }
    const auto upstream = linear_layer_of(next, pair.upstream.node_index);
    const auto downstream = linear_layer_of(next, pair.downstream.node_index);
    const std::vector<float> inputs = input_magnitudes(*downstream);
    const detail::channel_copies copies =
        detail::copies_of(output_magnitudes(*upstream),
                          detail::largest_of_channels<float>(pair, inputs, "magnitudes"), options);
    if (copies.origins.size() == pair.upstream.outputs) {
      continue;
    }
    detail::grow_pair(next, pair, copies);
    result.push_back(
        {pair.upstream.label, pair.downstream.label, pair.upstream.outputs, copies.origins.size()});
  }
  m = std::move(next);
  return result;
}

/// How split_weights() divides a weight W into W1 + W2.
enum class weight_split_mode : std::uint8_t {
  balance,  ///< W1 = W2 = W / 2.
  random,   ///< W1 = u W and W2 = W - W1, with u uniform in [0, 1) from the seed.
};

/// Options of split_weights().
struct weight_split_options {
  float threshold = 2.0F;  ///< Weights with |w| above it are split; not negative.
  weight_split_mode mode = weight_split_mode::balance;  ///< How a weight is divided.
  std::uint64_t seed = 0;                               ///< Seed of weight_split_mode::random.
};

/// The name of the second of the two layers that split_weights() makes of one; the first one keeps
/// its name.
[[nodiscard]] inline std::string rest_of_split(const std::string& layer_name) {
  return layer_name + "_rest";
}
/// The name of the Add of the two layers that split_weights() makes of one.
[[nodiscard]] inline std::string sum_of_split(const std::string& layer_name) {
  return layer_name + "_sum";
}

/// Replaces a layer by the sum of two layers with smaller weights:
///
///     y = W x + b    becomes    y = (W1 x + b) + W2 x    with W1 + W2 = W
///
/// A weight with |w| above the threshold is split as the mode says; any other weight is in W1, with
/// 0 in W2. The purpose: a scale that is half as large has a quarter of the squared rounding error.
/// W1 + W2 equals W exactly in mode balance, and up to rounding in mode random. Results are
/// bit-identical on all platforms.
///
/// `layer_name` is the name of the node. Returns the number of weights that were split; if it is 0,
/// the model is unchanged.
///
/// Throws invalid_argument if no node or more than one has that name, if the node is not a
/// linear_layer, if the threshold is negative or NaN, or if a weight is not finite.
///
/// Source: PPQ 0.6.6, weight split.
inline std::size_t split_weights(model& m, const std::string& layer_name,
                                 const weight_split_options& options = {}) {
  const auto invalid = error_kind::invalid_argument;
  require(options.threshold >= 0.0F, invalid, "split_weights: the threshold is ",
          options.threshold);
  std::size_t at = links::none;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (m.nodes[i].name == layer_name) {
      require(at == links::none, invalid, "split_weights: two nodes are called '", layer_name, "'");
      at = i;
    }
  }
  require(at != links::none && !layer_name.empty(), invalid, "split_weights: there is no node '",
          layer_name, "'");
  const auto layer = linear_layer_of(m, at);
  require(layer.has_value(), invalid, "split_weights: ", m.nodes[at].label(),
          " is not a layer with constant float weights");
  tensor parts[2];
  for (tensor& part : parts) {
    part = tensor::allocate(element_type::f32, layer->weights.dims());
  }
  const auto w = layer->weights.data<float>();
  std::size_t split = 0;
  const rounding::stochastic random{options.seed};  // one number for each weight position
  for (std::size_t k = 0; k < w.size(); ++k) {
    require(std::isfinite(w[k]), invalid, layer->label, ": the weight ", k, " is ", w[k]);
    float first = w[k];
    float second = 0.0F;
    if (std::fabs(w[k]) > options.threshold) {
      ++split;
      if (options.mode == weight_split_mode::balance) {
        first = detent::detail::rounded_product(w[k], 0.5F);
      } else {
        first = detent::detail::rounded_product(w[k], random.uniform(k));
      }
      second = w[k] - first;
    }
    parts[0].mutable_data<float>()[k] = first;
    parts[1].mutable_data<float>()[k] = second;
  }
  if (split == 0) {
    return 0;
  }
  const std::string result = m.nodes[at].outputs[0];
  node rest = m.nodes[at];
  rest.name = rest_of_split(layer_name);
  rest.inputs.resize(2);
  unused_names names(m);
  rest.inputs[1] = names.take(m.nodes[at].inputs[1] + "_rest");
  m.initializers[rest.inputs[1]] = std::move(parts[1]);
  rest.outputs = {names.take(result + "_rest")};
  detail::replace_constant(m, m.nodes[at], 1, std::move(parts[0]));
  m.nodes[at].outputs = {names.take(result + "_main")};
  node sum;
  sum.op_type = "Add";
  sum.name = sum_of_split(layer_name);
  sum.inputs = {m.nodes[at].outputs[0], rest.outputs[0]};
  sum.outputs = {result};
  const auto behind = m.nodes.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  m.nodes.insert(behind, {std::move(rest), std::move(sum)});
  return split;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_CHANNEL_SPLIT_HPP
