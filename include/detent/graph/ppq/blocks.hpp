// SPDX-License-Identifier: BSD-3-Clause
// A network as blocks with a single way in and a single way out, which can be looked at apart from
// the rest.
#ifndef DETENT_GRAPH_PPQ_BLOCKS_HPP
#define DETENT_GRAPH_PPQ_BLOCKS_HPP

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
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

/// Nodes that depend on nothing but one value and constants, and of which the rest of the network
/// uses nothing but one other value.
struct network_block {
  std::string entry;
  std::string exit;
  std::vector<std::size_t> nodes;  // of quantized_graph::network, in its order
  std::size_t layers = 0;          // compute operators among them
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
  /// The block from the input of one layer on that has the most layers, and of those that end with
  /// the same layers the one that goes furthest.
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

  /// Whether the node depends on the entry alone, at most block_size layers behind it.
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

  /// What the first output of node `last` needs, if that is a block.
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
        const std::vector<std::size_t>& users = links_.consumers(out);
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

/// Blocks of at most `block_size` compute operators, in the order of the network. Each begins with
/// the input of a quantized layer that is in no block yet, and holds as much as it may: a residual
/// connection is within a block if its layers fit, and what follows the last layer belongs to it.
/// Layers that do not depend on a single value have no block (products of two activations of
/// different origin, branches that begin elsewhere).
///
/// Blocks go no further than to operators that `may_contain` says no to. If the layer at which a
/// block begins is one, it is a block of its own.
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
