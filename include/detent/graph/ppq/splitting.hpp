// SPDX-License-Identifier: BSD-3-Clause
// The passes that share the work of large weights, in the float network, before anything is
// quantized.
#ifndef DETENT_GRAPH_PPQ_SPLITTING_HPP
#define DETENT_GRAPH_PPQ_SPLITTING_HPP

#include <cstddef>
#include <cstdint>
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

/// PPQ's ChannelSplitPass: split_channels() of the float network, with new configurations for it.
/// Channels whose largest |weight| is over the threshold both before and behind them are made
/// twice, each times sqrt(1/2) on both sides.
///
/// Comes before everything that quantizes: see require_unquantized(). Throws as that and as
/// split_channels(); the graph is then as it was.
struct channel_split_pass {
  std::size_t iterations = 10;
  double threshold = 0.5;
  double largest_growth = 2.0;  // of a pair's channels; PPQ has no such limit

  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// The same; the pairs that have grown.
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

/// PPQ's WeightSplitPass: split_weights() of the layers of these names, with new configurations for
/// the network. A layer with weights over the threshold becomes two whose results are added.
///
/// Comes before everything that quantizes: see require_unquantized(). Throws as that and as
/// split_weights(); the graph is then as it was.
struct weight_split_pass {
  std::vector<std::string> layers = {};  // names of nodes; none: nothing happens
  float threshold = 2.0F;
  weight_split_mode mode = weight_split_mode::balance;
  std::uint64_t seed = 0;

  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// The same; how many weights of each layer were split.
  std::vector<std::size_t> run(quantized_graph& g, pass_context& /*context*/) const {
    require_unquantized(g);
    model network = g.network;
    std::vector<std::size_t> result;
    for (const std::string& layer : layers) {
      result.push_back(
          split_weights(network, layer, {.threshold = threshold, .mode = mode, .seed = seed}));
    }
    rewrite_network(g, std::move(network));
    return result;
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_SPLITTING_HPP
