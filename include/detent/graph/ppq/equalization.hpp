// SPDX-License-Identifier: BSD-3-Clause
// The passes that scale channels between layers of the float network, before anything is quantized.
#ifndef DETENT_GRAPH_PPQ_EQUALIZATION_HPP
#define DETENT_GRAPH_PPQ_EQUALIZATION_HPP

#include <cstddef>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/quantizing_passes.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/channel_statistics.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/scaling_search.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/min_max.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// The largest |x| of each channel between two layers, over up to `steps` samples.
[[nodiscard]] inline channel_magnitude_map observe_pairs(const model& m,
                                                         const pass_context& context,
                                                         std::size_t steps) {
  require(static_cast<bool>(context.samples), error_kind::invalid_argument,
          "there are no calibration samples");
  const auto axes = pair_values(m);
  return axes.empty()
             ? channel_magnitude_map()
             : channel_magnitudes(observe_channels(m, first_samples(context.samples, steps), axes,
                                                   min_max_observer(), context.executor));
}

}  // namespace detail

/// PPQ's LayerwiseEqualizationPass: equalize() of the float network with PPQ's limits. For each
/// channel between a pair of layers, let u be the largest |weight| of the layer before it and d the
/// largest |weight| of the layer after it. A sweep computes
///
///   c = 1 / sqrt(u / d), clamped to [0.1, 10]
///
/// and multiplies the weights and the bias before the channel by c, and divides the weights after
/// it by c.
///
/// The pass has to come before every pass that quantizes. Throws what require_unquantized(),
/// equalize() and observe_channels() throw, and unsupported for an optimize_level other than 1; the
/// graph is then as it was.
struct layerwise_equalization_pass {
  /// Which pairs of layers are equalized. 1 takes layers with nothing between them but what
  /// trace_channels() passes. 2 is PPQ's name for going on through operators with several layers
  /// before them; it is not offered.
  int optimize_level = 1;
  /// The largest number of sweeps over all pairs.
  std::size_t iterations = 10;
  /// Channels with u + d below this value stay as they are.
  double value_threshold = 0.5;
  /// Whether u is at least bias_multiplier * |bias|.
  bool including_bias = false;
  /// The factor of |bias|.
  double bias_multiplier = 0.5;
  /// Whether u is at least activation_multiplier * the largest |activation| of the channel.
  bool including_activation = false;
  /// The factor of the largest |activation|.
  double activation_multiplier = 0.5;
  /// The largest number of samples on which activations are observed.
  std::size_t calib_steps = 32;

  /// Runs the pass. It needs samples only if including_activation is set.
  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// Runs the pass, and returns what equalize() has done to each pair.
  equalization_result run(quantized_graph& g, pass_context& context) const {
    require(optimize_level == 1, error_kind::unsupported,
            "layerwise_equalization_pass: optimize_level ", optimize_level, "; there is 1");
    require_unquantized(g);
    equalization_options options = equalization_options::ppq();
    options.iterations = iterations;
    options.value_threshold = value_threshold;
    options.bias_multiplier = including_bias ? bias_multiplier : 0.0;
    if (including_activation) {
      options.activation_multiplier = activation_multiplier;
      options.activations = detail::observe_pairs(g.network, context, calib_steps);
    }
    model network = g.network;
    equalization_result result = equalize(network, options);
    rewrite_network(g, std::move(network));
    return result;
  }
};

/// PPQ's SSDEqualizationPass: search_scaling() of the float network, which scales channels between
/// two layers and keeps a scaling only if a measured loss drops. The loss of a candidate network is
/// the output_error() of the graph with that network, after the passes of `quantizing`, against the
/// network as it was before.
///
/// Every attempt calibrates and runs a network, so the pass is slow. It has to come before every
/// pass that quantizes. Throws what require_unquantized(), search_scaling(), observe_channels(),
/// output_error() and the passes of `quantizing` throw, and invalid_argument for the measure
/// cosine, which grows where errors become smaller; the graph is then as it was.
struct ssd_equalization_pass {
  /// The formula of the factors.
  scaling_rule rule = scaling_rule::ssd;
  /// The largest number of attempts at each pair of layers.
  std::size_t iterations = 3;
  /// An attempt is kept if the loss falls below this times the loss before it.
  double loss_threshold = 0.8;
  /// The largest number of samples on which the magnitudes of activations are observed.
  std::size_t calib_steps = 32;
  /// The measure of the loss, snr or mse.
  error_method loss = error_method::snr;
  /// The largest number of samples on which a loss is measured.
  std::size_t loss_steps = 8;
  /// The passes that make a quantized graph of a candidate. If empty, they are those of
  /// quantizing_passes().
  pipeline quantizing = {};

  /// Runs the pass on the samples of the context.
  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// Runs the pass, and returns what search_scaling() has done to each pair.
  scaling_search_result run(quantized_graph& g, pass_context& context) const {
    require(loss != error_method::cosine, error_kind::invalid_argument,
            "ssd_equalization_pass: the cosine is no loss");
    require_unquantized(g);
    const pipeline passes = quantizing.empty() ? quantizing_passes() : quantizing;
    const channel_magnitude_map activations =
        detail::observe_pairs(g.network, context, calib_steps);
    const detail::result_comparison results(
        g.network, detail::take_samples(context.samples, loss_steps),
        {.method = loss, .steps = loss_steps, .executor = context.executor});
    const auto measure = [&](const model& candidate) {
      quantized_graph attempt = g;
      rewrite_network(attempt, candidate);
      run_pipeline(attempt, passes, context);
      return results.mean_error(to_qdq(attempt), "ssd_equalization_pass");
    };
    model network = g.network;
    scaling_search_result result =
        search_scaling(network, activations, measure,
                       {.rule = rule, .iterations = iterations, .loss_threshold = loss_threshold});
    rewrite_network(g, std::move(network));
    return result;
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_EQUALIZATION_HPP
