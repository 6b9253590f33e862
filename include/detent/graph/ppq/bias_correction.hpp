// SPDX-License-Identifier: BSD-3-Clause
// The pass that corrects biases for the shift that quantization gives to the means of channels.
#ifndef DETENT_GRAPH_PPQ_BIAS_CORRECTION_HPP
#define DETENT_GRAPH_PPQ_BIAS_CORRECTION_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/state.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/channel_sums.hpp>
#include <detent/graph/quantize/settled_front.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// What bias correction did to a block of layers.
struct corrected_block {
  /// The labels of the layers whose bias was corrected.
  std::vector<std::string> layers;
  /// The mean squared error of the values that leave the block, before the corrections.
  double loss_before = 0.0;
  /// The mean squared error with the corrections, whether they were kept or not.
  double loss_after = 0.0;
  /// Whether the corrections were kept, because the error did not grow.
  bool kept = false;
};

namespace detail {

class block_bias_corrector {
 public:
  block_bias_corrector(quantized_graph& g, const executor_options& runner,
                       const calibration_source& samples)
      : g_(g), float_runs_(samples, runner), quantized_runs_(samples, runner, simulation) {
    for (const std::size_t i : quantized_layers(g_)) {
      means_.emplace(g_.network.nodes[i].outputs[0], sums_of(g_.network.nodes[i]));
    }
    executor float_executor(g_.float_model, runner);
    bool any = false;
    while (const auto sample = samples()) {
      any = true;
      static_cast<void>(
          float_executor.run(*sample, [&](const std::string& name, const tensor& value) {
            const auto found = means_.find(name);
            if (found != means_.end()) {
              found->second.add(value);
            }
          }));
    }
    require(any, error_kind::invalid_argument, "there are no calibration samples");
    settle(0);
  }

  /// Corrects the layers of a block one by one, and takes the corrections back if the loss has
  /// grown.
  corrected_block correct(const std::vector<std::size_t>& layers, std::size_t end) {
    corrected_block block;
    const std::vector<std::string> values = values_leaving(layers.front(), end);
    if (values.empty()) {
      return block;
    }
    std::vector<std::vector<tensor>> expected;
    float_runs_.run(g_.float_model, {}, values,
                    [&](const std::vector<tensor>& results) { expected.push_back(results); });
    block.loss_before = loss(values, expected);
    const quantized_graph before = g_;
    for (const std::size_t i : layers) {
      if (const auto bias = correctable_bias(i)) {
        correct_layer(i, *bias);
        block.layers.push_back(g_.network.nodes[i].label());
      }
    }
    block.loss_after = block.layers.empty() ? block.loss_before : loss(values, expected);
    block.kept = block.loss_after <= block.loss_before;
    if (!block.kept) {
      g_ = before;
      written_.reset();
    }
    return block;
  }

  /// Lets runs begin with the values at node `end`: no bias of a node before it changes any more.
  void settle(std::size_t end) {
    const std::set<std::string> across = graph::detail::values_across(g_.network, end);
    quantized_runs_.advance(written().network, written().computed, across);
    float_runs_.advance(g_.float_model, {}, across);
  }

 private:
  /// The QDQ model of the graph as it is now.
  [[nodiscard]] const qdq_model& written() {
    if (!written_) {
      written_ = to_qdq_model(g_);
    }
    return *written_;
  }

  /// The quantized values of nodes first .. end - 1 that later nodes or the caller of the network
  /// use.
  [[nodiscard]] std::vector<std::string> values_leaving(std::size_t first, std::size_t end) const {
    const links l(g_.network);
    std::vector<std::string> values;
    for (std::size_t i = first; i < end; ++i) {
      for (std::size_t k = 0; k < g_.operators[i].outputs.size(); ++k) {
        const std::string& value = g_.network.nodes[i].outputs[k];
        const std::span<const std::size_t> users = l.consumers(value);
        const bool leaves =
            g_.network.is_output(value) ||
            std::any_of(users.begin(), users.end(), [&](std::size_t user) { return user >= end; });
        if (leaves && g_.operators[i].outputs[k] != no_config) {
          values.push_back(value);
        }
      }
    }
    return values;
  }

  /// The mean squared error of some values, over values and samples. `expected` has the values of
  /// the float network for each sample.
  [[nodiscard]] double loss(const std::vector<std::string>& values,
                            const std::vector<std::vector<tensor>>& expected) {
    const std::map<std::string, std::string> names =
        quantized_names(written(), {values.begin(), values.end()});
    std::vector<std::string> quantized_values;
    for (const std::string& value : values) {
      quantized_values.push_back(names.at(value));
    }
    mean_of_errors mean(error_method::mse);
    quantized_runs_.run(written().network, written().computed, quantized_values,
                        [&, sample = std::size_t{0}](const std::vector<tensor>& results) mutable {
                          mean.add(results, expected[sample++]);
                        });
    return mean.value("bias_correction_pass");
  }

  /// The bias of a layer, if it is a constant with a value for each output channel.
  [[nodiscard]] std::optional<tensor> correctable_bias(std::size_t i) const {
    const node& n = g_.network.nodes[i];
    const auto layer = linear_layer_of(g_.network, i);
    const bool is_plain = layer && layer->bias.rank() == 1 &&
                          layer->bias.count() == layer->outputs &&
                          n.get_float("beta", 1.0F) == 1.0F;
    return is_plain ? std::optional(layer->bias) : std::nullopt;
  }

  [[nodiscard]] static graph::detail::channel_sums sums_of(const node& layer) {
    return graph::detail::channel_sums(layer.is("Conv") || layer.is("ConvTranspose"));
  }

  void correct_layer(std::size_t i, const tensor& bias) {
    node& n = g_.network.nodes[i];
    const std::string& value = n.outputs[0];
    const std::map<std::string, std::string>& names = written().computed;
    const auto computed = names.find(value);
    graph::detail::channel_sums sums = sums_of(n);
    quantized_runs_.run(written().network, names,
                        {computed == names.end() ? value : computed->second},
                        [&](const std::vector<tensor>& results) { sums.add(results[0]); });
    const std::vector<double> shift =
        graph::detail::mean_difference(means_.at(value), sums, n.label());
    if (shift.size() != bias.count()) {
      return;  // the samples give the layer no values
    }
    tensor corrected = tensor::allocate(element_type::f32, bias.dims());
    for (std::size_t c = 0; c < bias.count(); ++c) {
      corrected.mutable_data<float>()[c] =
          static_cast<float>(static_cast<double>(bias.data<float>()[c]) + shift[c]);
    }
    graph::detail::replace_constant(g_.network, n, bias_slot, std::move(corrected));
    const config_id id = g_.operators[i].inputs[bias_slot];
    if (id != no_config) {
      g_.configs.settings(id).variable = n.inputs[bias_slot];
    }
    written_.reset();
  }

  quantized_graph& g_;
  std::optional<qdq_model> written_;  // the graph, until it changes
  graph::detail::settled_front float_runs_;
  graph::detail::settled_front quantized_runs_;  // up to the values as operators make them
  std::map<std::string, graph::detail::channel_sums> means_;  // of the outputs of the float layers
};

}  // namespace detail

/// PPQ's BiasCorrectionPass, to be run after the passive parameters and before baking. For each
/// quantized layer that has a bias for each output channel, in the order of the network, it adds to
/// the bias of each channel
///
///   mean of the float layer's output - mean of the quantized layer's output
///
/// with means over space and up to `steps` samples, summed up in double. The quantized layer takes
/// quantized inputs from a network in which earlier biases are corrected already; its output is
/// taken before it is quantized.
///
/// A block is `block_size` successive layers, each with the operators that follow it. If the mean
/// squared error of the values that leave a block has grown, the biases of that block stay as they
/// were. Differs from PPQ, where a block is `block_size` operators deep.
///
/// Scales stay as they are. Where biases are quantized, passive_parameter_pass has to run after
/// this pass so that they fit their grids; default_pipeline() sees to that.
///
/// Throws invalid_argument for a block_size or steps of 0, without samples, and, naming the
/// configuration and its state, for a configuration that waits for its scale or is baked; and what
/// to_qdq() and the executor throw. The graph is then as it was.
struct bias_correction_pass {
  /// The number of layers in a block; at least 1.
  std::size_t block_size = 4;
  /// The largest number of samples that are used; at least 1.
  std::size_t steps = 32;

  /// Runs the pass on the samples of the context.
  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// Runs the pass, and returns what was done to each block, in the order of the network.
  std::vector<corrected_block> run(quantized_graph& g, pass_context& context) const {
    require(block_size > 0 && steps > 0, error_kind::invalid_argument,
            "bias_correction_pass: block_size ", block_size, " and steps ", steps,
            " must not be 0");
    require_order(g);
    quantized_graph next = g;
    require(static_cast<bool>(context.samples), error_kind::invalid_argument,
            "there are no calibration samples");
    detail::block_bias_corrector corrector(next, context.executor,
                                           first_samples(context.samples, steps));
    const std::vector<std::size_t> layers = detail::quantized_layers(g);
    std::vector<corrected_block> blocks;
    for (std::size_t first = 0; first < layers.size(); first += block_size) {
      const std::size_t last = (std::min)(first + block_size, layers.size());
      const std::size_t end = last < layers.size() ? layers[last] : g.network.nodes.size();
      blocks.push_back(corrector.correct({layers.begin() + static_cast<std::ptrdiff_t>(first),
                                          layers.begin() + static_cast<std::ptrdiff_t>(last)},
                                         end));
      if (last < layers.size()) {
        corrector.settle(end);
      }
    }
    g = std::move(next);
    return blocks;
  }

 private:
  static void require_order(const quantized_graph& g) {
    g.for_each_config([&](config_id id) {
      const quantization_state state = g.configs[id].state();
      const bool waits =
          state == quantization_state::initial || state == quantization_state::passive_init;
      const bool is_baked =
          state == quantization_state::baked || state == quantization_state::passive_baked;
      require(!waits && !is_baked, error_kind::invalid_argument, g.configs[id].name, " is ",
              name(state), waits ? " still" : " already",
              "; bias correction comes after passive parameters and before baking");
    });
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_BIAS_CORRECTION_HPP
