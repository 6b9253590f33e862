// SPDX-License-Identifier: BSD-3-Clause
// Divides a network into blocks of nodes with a single input value and a single output value, which
// can be trained and measured apart from the rest of the network.
#ifndef DETENT_GRAPH_PPQ_BLOCKS_HPP
#define DETENT_GRAPH_PPQ_BLOCKS_HPP

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// A set of nodes that depend on one value and constants only, and of whose results the rest of the
/// network uses one value only.
struct network_block {
  std::string entry;               ///< The value that the nodes depend on.
  std::string exit;                ///< The value that the rest of the network uses.
  std::vector<std::size_t> nodes;  ///< Indices of the nodes in quantized_graph::network, ascending.
  std::size_t layers = 0;          ///< Number of layers (compute operators) among the nodes.
};

namespace detail {

class block_finder {
 public:
  block_finder(const quantized_graph& g, std::size_t block_size,
               const std::function<bool(const node&)>& may_contain)
      : g_(g), links_(g.network), block_size_(block_size), may_contain_(may_contain) {}

  std::vector<network_block> run() {
    std::vector<network_block> blocks;
    for (std::size_t i = 0; i < g_.network.nodes.size(); ++i) {
      const node& n = g_.network.nodes[i];
      if (taken_.count(i) == 0 && is_compute_operator(n) && g_.operators[i].is_quantized() &&
          !n.inputs[0].empty() && g_.network.initializer(n.inputs[0]) == nullptr) {
        network_block block = largest_from(i);
        if (!block.nodes.empty()) {
          taken_.insert(block.nodes.begin(), block.nodes.end());
          blocks.push_back(std::move(block));
        }
      }
    }
    return blocks;
  }

 private:
  /// Of the blocks that begin with the input of the layer at index `start`, the one with the most
  /// layers; among blocks with equally many layers, the one that goes furthest.
  network_block largest_from(std::size_t start) {
    network_block best;
    best.entry = g_.network.nodes[start].inputs[0];
    depths_ = {{best.entry, 0}};
    const bool goes_on = may_contain_(g_.network.nodes[start]);
    for (std::size_t i = start; i < g_.network.nodes.size(); ++i) {
      if (!reach(i, i == start)) {
        if (i == start) {
          return best;
        }
        continue;
      }
      const network_block found = behind(best.entry, start, i);
      if (!found.nodes.empty() && found.layers >= best.layers) {
        best = found;
      }
      if (!goes_on) {
        return best;
      }
    }
    return best;
  }

  /// Whether node i depends on the entry and constants alone, and there are at most block_size
  /// layers on every way from the entry through it. If so, notes the depths of its results.
  bool reach(std::size_t i, bool is_start) {
    const node& n = g_.network.nodes[i];
    if (taken_.count(i) != 0 || (!is_start && !may_contain_(n))) {
      return false;
    }
    bool any = false;
    std::size_t depth = 0;
    for (const std::string& in : n.inputs) {
      if (in.empty() || g_.network.initializer(in) != nullptr) {
        continue;
      }
      const auto found = depths_.find(in);
      if (found == depths_.end()) {
        return false;
      }
      any = true;
      depth = (std::max)(depth, found->second);
    }
    depth += is_compute_operator(n) ? 1U : 0U;
    if (!any || depth > block_size_) {
      return false;
    }
    for (const std::string& out : n.outputs) {
      depths_[out] = depth;
    }
    return true;
  }

  /// The nodes between the entry and the first output of node `last`, or a block without nodes if
  /// they are no block that holds the layer at `start`.
  [[nodiscard]] network_block behind(const std::string& entry, std::size_t start,
                                     std::size_t last) const {
    network_block block;
    block.entry = entry;
    block.exit = g_.network.nodes[last].outputs[0];
    std::set<std::size_t> needed{last};
    for (auto at = needed.rbegin(); at != needed.rend(); ++at) {
      for (const std::string& in : g_.network.nodes[*at].inputs) {
        const std::size_t producer = in == entry ? links::none : links_.producer(in);
        if (producer != links::none) {
          needed.insert(producer);  // before *at: the nodes are in order
        }
      }
    }
    for (const std::size_t i : needed) {
      const node& n = g_.network.nodes[i];
      block.layers += is_compute_operator(n) ? 1U : 0U;
      for (const std::string& out : n.outputs) {
        const std::span<const std::size_t> users = links_.consumers(out);
        if (out != block.exit && (g_.network.is_output(out) ||
                                  !std::all_of(users.begin(), users.end(), [&](std::size_t user) {
                                    return needed.count(user) != 0;
                                  }))) {
          return {};
        }
      }
    }
    if (needed.count(start) == 0 || block.layers > block_size_) {
      return {};
    }
    block.nodes.assign(needed.begin(), needed.end());
    return block;
  }

  const quantized_graph& g_;
  links links_;
  std::size_t block_size_;
  const std::function<bool(const node&)>& may_contain_;
  std::set<std::size_t> taken_;
  std::map<std::string, std::size_t> depths_;  // layers between the entry and a value
};

}  // namespace detail

/// Divides a network into blocks of at most `block_size` layers (compute operators), in the order
/// of the network. Each block begins with the input of a quantized layer that is in no block yet,
/// and is as large as possible: a residual connection is within a block if its layers fit, and the
/// operators that follow the last layer belong to the block. Layers that do not depend on a single
/// value have no block, for example products of two activations of different origin, or layers on
/// branches that begin elsewhere.
///
/// Blocks do not contain operators for which `may_contain` returns false, and end before them. If
/// the layer at which a block would begin is such an operator, it is a block of its own.
///
/// Differs from PPQ, whose block_size counts operators of all kinds along the longest way. Throws
/// invalid_argument if block_size is 0.
[[nodiscard]] inline std::vector<network_block> find_blocks(
    const quantized_graph& g, std::size_t block_size,
    const std::function<bool(const node&)>& may_contain = [](const node&) { return true; }) {
  require(block_size > 0, error_kind::invalid_argument, "a block_size of 0");
  return detail::block_finder(g, block_size, may_contain).run();
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_BLOCKS_HPP
