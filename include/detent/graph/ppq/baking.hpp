// SPDX-License-Identifier: BSD-3-Clause
// The pass that stores quantized constants with the values that quantization gives them.
#ifndef DETENT_GRAPH_PPQ_BAKING_HPP
#define DETENT_GRAPH_PPQ_BAKING_HPP

#include <cstddef>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/integers.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// PPQ's ParameterBakingPass. Constants of `network` whose configuration is ACTIVATED or PASSIVE
/// take the values of fake_quantized(), and their configurations become BAKED or PASSIVE_BAKED. A
/// constant that has other users keeps its values for them, and the baked values become a new
/// constant. The values before are kept in float_constants.
///
/// Quantizing baked values once more does not change them, except for the last bit of biases beyond
/// 2^24 steps.
struct parameter_baking_pass {
  /// Runs the pass. It needs no samples.
  void operator()(quantized_graph& g, pass_context& /*context*/) const {
    const links l(g.network);
    unused_names names(g.network);
    for (std::size_t i = 0; i < g.operators.size(); ++i) {
      for (std::size_t slot = 0; slot < g.operators[i].inputs.size(); ++slot) {
        const config_id id = g.operators[i].inputs[slot];
        if (id != no_config && g.configs.is_active(id) && g.is_parameter(id)) {
          bake(g, l, names, g.network.nodes[i].inputs[slot], id);
        }
      }
    }
  }

 private:
  static void bake(quantized_graph& g, const links& l, unused_names& names, std::string& input,
                   config_id id) {
    const tensor values = *g.network.initializer(input);
    tensor baked = fake_quantized(values, g.configs[id], g.configs.parameters(id));
    if (l.consumers(input).size() > 1 || l.is_output(input)) {
      input = names.take(input + "_baked");
      g.configs.settings(id).variable = input;
    }
    g.network.initializers[input] = std::move(baked);
    // An entry that is there already stays: it holds the values before learning.
    g.float_constants.try_emplace(input, values);
    g.configs.transition(id, g.configs[id].state() == quantization_state::activated
                                 ? quantization_state::baked
                                 : quantization_state::passive_baked);
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_BAKING_HPP
