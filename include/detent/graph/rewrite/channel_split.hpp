// SPDX-License-Identifier: BSD-3-Clause
// Large weights made smaller by sharing their work: channels that stand twice, layers that are
// computed in two parts.
#ifndef DETENT_GRAPH_REWRITE_CHANNEL_SPLIT_HPP
#define DETENT_GRAPH_REWRITE_CHANNEL_SPLIT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/rounding.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

struct channel_split_options {
  std::size_t iterations = 10;
  double threshold = 0.5;
  double largest_growth = 2.0;  // the channels of a pair grow to at most so many times their number
};

/// What happened to a pair of layers.
struct channel_split_pair {
  std::string upstream;  // labels of the nodes
  std::string downstream;
  std::size_t channels_before = 0;
  std::size_t channels_after = 0;
};

namespace detail {

/// Channels that are copies of others, times factors.
struct channel_copies {
  std::vector<std::size_t> origins;
  std::vector<double> factors;
};

/// The indices along `axis` of a constant, copied. Without factors they stay as they are.
[[nodiscard]] inline tensor copy_channels(const tensor& t, std::size_t axis,
                                          std::span<const std::size_t> origins,
                                          std::span<const double> factors,
                                          const std::string& label) {
  shape dims = t.dims();
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

/// Whether every node between the layers takes any number of channels, or has constants that can be
/// made to fit.
[[nodiscard]] inline bool can_grow(const model& m, const layer_pair& pair) {
  return pair.upstream.group == 1 && pair.downstream.group == 1 &&
         std::all_of(pair.path.between.begin(), pair.path.between.end(),
                     [&](const channel_path::step& step) {
                       const node& n = m.nodes[step.node_index];
                       return !n.is("Reshape") &&
                              (!n.is("PRelu") || float_constant(m, n, 1) != nullptr);
                     });
}

/// The copies of a pair's channels that the options ask for.
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
    // The largest first, in case not all of them may be split.
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

inline void grow_pair(model& m, const layer_pair& pair, const channel_copies& copies) {
  const std::size_t channels = pair.upstream.outputs;
  const linear_layer upstream = *linear_layer_of(m, pair.upstream.node_index);
  const linear_layer downstream = *linear_layer_of(m, pair.downstream.node_index);
  // Of an axis on which every channel has `repeat` indices.
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
  std::unordered_set<std::string> changed{pair.path.value};
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
      continue;  // the same for all channels
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
  // What was declared of these values tells the old number of channels.
  std::erase_if(m.values, [&](const value_info& v) { return changed.count(v.name) != 0; });
}

}  // namespace detail

/// Splits channels between two layers: where the largest |weight| of a channel is over the
/// threshold both before and behind it, the channel is made twice, and the weights and the bias of
/// both copies are multiplied by sqrt(1/2) on both sides. That is repeated for all channels, copies
/// too. Copies stand behind the others. Of the cross_layer_pairs() those are split of which both
/// layers have one group and no Reshape is in between. The model computes the same function up to
/// rounding.
///
/// Returns the pairs that have grown. Throws invalid_argument (weights that are not finite, naming
/// the node; a threshold that is not positive, a growth below 1); the model is then as before.
///
/// Source: PPQ 0.6.6, channel split; the limit of the growth is not PPQ's.
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

enum class weight_split_mode : std::uint8_t {
  balance,  // W1 = W2 = W / 2
  random,   // W1 = u W and W2 = W - W1 with u uniform in [0, 1), from the seed
};

struct weight_split_options {
  float threshold = 2.0F;
  weight_split_mode mode = weight_split_mode::balance;
  std::uint64_t seed = 0;
};

/// Computes the layer of that name in two parts whose weights are smaller:
///
///   y = W x + b    becomes    y = (W1 x + b) + W2 x    with W1 + W2 = W
///
/// Weights with |w| over the threshold are split as the mode says; others are in W1, with 0 in W2.
/// A scale that is half as large has a quarter of the squared rounding error. The sum W1 + W2 is
/// exact in balance, up to rounding otherwise. Returns how many weights were split; where there are
/// none, nothing changes. The same bits everywhere.
///
/// Throws invalid_argument if there is no node of that name, more than one, or it is not a
/// linear_layer; if the threshold is negative or NaN or a weight is not finite.
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
  const rounding::stochastic random{options.seed};  // a number for each weight's place
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
  rest.name += "_rest";
  rest.inputs.resize(2);
  rest.inputs[1] = unused_name(m, m.nodes[at].inputs[1] + "_rest");
  m.initializers[rest.inputs[1]] = std::move(parts[1]);
  rest.outputs = {unused_name(m, result + "_rest")};
  detail::replace_constant(m, m.nodes[at], 1, std::move(parts[0]));
  m.nodes[at].outputs = {unused_name(m, result + "_main")};
  node sum;
  sum.op_type = "Add";
  sum.name = layer_name + "_sum";
  sum.inputs = {m.nodes[at].outputs[0], rest.outputs[0]};
  sum.outputs = {result};
  const auto behind = m.nodes.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  m.nodes.insert(behind, {std::move(rest), std::move(sum)});
  return split;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_CHANNEL_SPLIT_HPP
