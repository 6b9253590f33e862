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

/// The largest |x| of the channels between layers, over up to `steps` samples.
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

/// PPQ's LayerwiseEqualizationPass: equalize() of the float network with PPQ's limits. For a pair
/// of layers, u is the largest |weight| of a channel before, d that behind:
///
///   c = 1 / sqrt(u / d) in [0.1, 10];  weights and bias before *= c, weights behind /= c
///
///   iterations            sweeps over all pairs
///   value_threshold       channels with u + d below it stay as they are
///   including_bias        u is at least bias_multiplier * |bias|
///   including_activation  u is at least activation_multiplier * the largest |activation| of the
///                         channel, over up to calib_steps samples
///   optimize_level        1: layers with nothing between them but what trace_channels() passes. 2
///   is
///                         PPQ's name for going on through operators with several layers before
///                         them; it is not offered.
///
/// Comes before everything that quantizes: see require_unquantized(). Throws as that,
/// unsupported for another level, and as equalize() and observe_channels(); the graph is then as it
/// was.
struct layerwise_equalization_pass {
  int optimize_level = 1;
  std::size_t iterations = 10;
  double value_threshold = 0.5;
  bool including_bias = false;
  double bias_multiplier = 0.5;
  bool including_activation = false;
  double activation_multiplier = 0.5;
  std::size_t calib_steps = 32;

  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// The same, and what happened.
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

/// PPQ's SSDEqualizationPass: search_scaling() of the float network. The loss of a candidate is the
/// output_error() of the graph with it, after the passes of `quantizing`.
///
///   iterations      attempts at each pair
///   loss_threshold  an attempt is kept if the loss drops below this share of itself
///   calib_steps     samples, at most, for the magnitudes of activations
///   loss            the measure, and how many samples it takes, at most
///   quantizing      what makes a quantized graph of a candidate; empty: quantizing_passes()
///
/// Every attempt calibrates and runs a network: this takes its time. Comes before everything that
/// quantizes: see require_unquantized(). Throws as that, as search_scaling(), observe_channels()
/// and output_error(), what the passes throw, and invalid_argument for the measure cosine, which
/// grows where errors become smaller; the graph is then as it was.
struct ssd_equalization_pass {
  scaling_rule rule = scaling_rule::ssd;
  std::size_t iterations = 3;
  double loss_threshold = 0.8;
  std::size_t calib_steps = 32;
  error_method loss = error_method::snr;
  std::size_t loss_steps = 8;
  pipeline quantizing = {};

  void operator()(quantized_graph& g, pass_context& context) const {
    static_cast<void>(run(g, context));
  }
  /// The same, and what happened.
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
