// SPDX-License-Identifier: BSD-3-Clause
// The pass that finds configurations which do not have to quantize, because another configuration
// does it for them: between a layer and its activation function, after operators that only move
// elements, and where a value is quantized twice in the same way.
#ifndef DETENT_GRAPH_PPQ_FUSION_HPP
#define DETENT_GRAPH_PPQ_FUSION_HPP

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/element_movement.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Whether the results of a node are elements of its first input (for Pad, or its padding value):
/// nodes that move elements, and Pad, Split, Dropout and GlobalMaxPool. Resize and Upsample do not
/// count; alignment_pass takes care of them.
[[nodiscard]] inline bool is_passive_operator(const node& n) {
  const bool more = n.is("Pad") || n.is("Split") || n.is("Dropout") || n.is("GlobalMaxPool");
  return more || (moves_elements(n) && !n.is("Resize") && !n.is("Upsample"));
}

/// PPQ's QuantizeFusionPass and QuantizeSimplifyPass. It makes configurations that need not
/// quantize dominated by (OVERLAPPED under) the configuration that does, by the three rules of its
/// members, in the order of the members.
///
/// Configurations that are dominated already, or whose state cannot become OVERLAPPED, are left
/// alone. PPQ's list of passive operators lacks Dropout and Slice, by mistake; here they are
/// passive.
struct fusion_pass {
  /// Where the only user of a layer's output is an activation function, the layer's output and the
  /// activation's input become dominated by the activation's output.
  bool fuse_activation = true;
  /// The outputs of operators that only move elements become dominated by the operator's input.
  bool fuse_passive_op = true;
  /// An input becomes dominated by the output that makes its value, if both have the same settings
  /// (policy, rounding, bits, levels, channel axis, observer and visibility). If no configuration
  /// makes a value, its later users become dominated by its first user.
  bool remove_useless = true;

  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& /*context*/) const {
    const links l(g.network);
    for (std::size_t i = 0; fuse_activation && i < g.network.nodes.size(); ++i) {
      const std::size_t next = graph::detail::sole_consumer(g.network, l, i);
      if (!is_compute_operator(g.network.nodes[i]) || next == links::none ||
          !g.operators[i].is_quantized() || !g.operators[next].is_quantized()) {
        continue;
      }
      const node& activation = g.network.nodes[next];
      if (is_fused_activation(activation) &&
          activation.inputs[0] == g.network.nodes[i].outputs[0]) {
        dominate(g, g.operators[i].outputs[0], g.operators[next].outputs[0]);
        dominate(g, g.operators[next].inputs[0], g.operators[next].outputs[0]);
      }
    }
    for (std::size_t i = 0; fuse_passive_op && i < g.network.nodes.size(); ++i) {
      if (g.operators[i].is_quantized() && is_passive_operator(g.network.nodes[i])) {
        for (const config_id out : g.operators[i].outputs) {
          dominate(g, out, g.operators[i].inputs[0]);
        }
      }
    }
    if (remove_useless) {
      share_values(g, l);
    }
  }

 private:
  static bool may_overlap(const quantized_graph& g, config_id id) {
    const quantization_state state = g.configs[id].state();
    return state != quantization_state::fp32 && is_legal(state, quantization_state::overlapped);
  }

  static void dominate(quantized_graph& g, config_id id, config_id dominator) {
    if (id == no_config || dominator == no_config || !may_overlap(g, g.configs.root(id)) ||
        g.configs.is_dominated(id) || g.configs.source(id) == g.configs.source(dominator)) {
      return;
    }
    g.configs.dominated_by(id, dominator);
  }

  static bool same_scheme(const quantized_graph& g, config_id a, config_id b) {
    const quantizer_settings& x = g.configs[a];
    const quantizer_settings& y = g.configs[b];
    return x.policy == y.policy && x.rounding == y.rounding && x.bits == y.bits &&
           x.levels == y.levels && x.channel_axis == y.channel_axis && x.observer == y.observer &&
           x.visibility == y.visibility;
  }

  static void share_values(quantized_graph& g, const links& l) {
    std::map<std::string, config_id> makers;  // by value: the configuration that quantizes it
    for (std::size_t i = 0; i < g.network.nodes.size(); ++i) {
      const node& n = g.network.nodes[i];
      for (std::size_t slot = 0; slot < g.operators[i].inputs.size(); ++slot) {
        const config_id id = g.operators[i].inputs[slot];
        if (id == no_config || g.is_parameter(id) || detail::is_bound_slot(n, slot)) {
          continue;
        }
        const config_id made = g.producer_config(l, n.inputs[slot]);
        const config_id first =
            makers.try_emplace(n.inputs[slot], made == no_config ? id : made).first->second;
        if (first != id && same_scheme(g, id, first)) {
          dominate(g, id, first);
        }
      }
    }
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_FUSION_HPP
