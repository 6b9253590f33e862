// SPDX-License-Identifier: BSD-3-Clause
// The passes that divide large weights of the float network into smaller ones, before anything is
// quantized: by channels that are made twice, or by layers that are made twice.
#ifndef DETENT_GRAPH_PPQ_SPLITTING_HPP
#define DETENT_GRAPH_PPQ_SPLITTING_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/rewrite/channel_split.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// PPQ's ChannelSplitPass: split_channels() of the float network, whose configurations are then
/// made anew. A channel between two layers whose largest |weight| exceeds the threshold both before
/// and after it is made twice, with the weights of both copies multiplied by sqrt(1/2) on both
/// sides.
///
/// The pass has to come before every pass that quantizes. Throws what require_unquantized() and
/// split_channels() throw; the graph is then as it was.
struct channel_split_pass {
  /// The largest number of rounds; each splits all channels, copies included, over the threshold.
  std::size_t iterations = 10;
  /// The |weight| above which channels are split; positive.
  double threshold = 0.5;
  /// The number of channels of a pair of layers grows at most to this times what it was; at
  /// least 1. PPQ has no such limit.
  double largest_growth = 2.0;

  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// Runs the pass, and returns the pairs of layers that have grown.
  std::vector<channel_split_pair> run(quantized_graph& g, pass_context& /*context*/) const {
    require_unquantized(g);
    model network = g.network;
    std::vector<channel_split_pair> result = split_channels(
        network,
        {.iterations = iterations, .threshold = threshold, .largest_growth = largest_growth});
    rewrite_network(g, std::move(network));
    return result;
  }
};

/// PPQ's WeightSplitPass: split_weights() of the named layers of the float network, whose
/// configurations are then made anew. A layer with weights over the threshold becomes two layers
/// with smaller weights, whose results are added; what was switched off for the layer, or left in
/// float, is so for all three.
///
/// The pass has to come before every pass that quantizes. Throws what require_unquantized() and
/// split_weights() throw; the graph is then as it was.
struct weight_split_pass {
  /// The names of the layers' nodes. If there are none, the pass changes no layer.
  std::vector<std::string> layers = {};
  /// The |weight| above which a weight is split; not negative.
  float threshold = 2.0F;
  /// How a weight is divided into two.
  weight_split_mode mode = weight_split_mode::balance;
  /// The seed of the mode random.
  std::uint64_t seed = 0;

  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// Runs the pass, and returns for each of `layers` the number of weights that were split.
  std::vector<std::size_t> run(quantized_graph& g, pass_context& /*context*/) const {
    require_unquantized(g);
    model network = g.network;
    std::vector<std::size_t> result;
    std::map<std::string, std::string> parts;
    for (const std::string& layer : layers) {
      result.push_back(
          split_weights(network, layer, {.threshold = threshold, .mode = mode, .seed = seed}));
      if (result.back() != 0) {
        const auto split_before = parts.find(layer);
        const std::string whole = split_before == parts.end() ? layer : split_before->second;
        parts[rest_of_split(layer)] = whole;
        parts[sum_of_split(layer)] = whole;
      }
    }
    rewrite_network(g, std::move(network), parts);
    return result;
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_SPLITTING_HPP
