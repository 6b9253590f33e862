// SPDX-License-Identifier: BSD-3-Clause
// Tuning by accuracy: tries one way to quantize a model after the other until a metric of the
// user's is good enough, or until time or trials are used up, and returns the best model found.
//
// Source: Intel Neural Compressor. Differences: a search always returns the best model, also if
// none meets the goal; where lower is better, a metric equal to the target meets the goal.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_HPP

#include <algorithm>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/tuning_options.hpp>
#include <detent/graph/quantize/tuning_search.hpp>
#include <detent/graph/quantize/tuning_strategies.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Throws unsupported, naming an operator, if a search has to run more of a model than can be run.
inline void check_runs(const model& float_model, const tuning_options& o) {
  const std::vector<std::string> lacking = unsupported_nodes(float_model);
  if (lacking.empty()) {
    return;
  }
  const auto refuse = [&](const std::string& what, const char* instead) {
    raise(error_kind::unsupported, what + " runs the whole model, and there is no operator for " +
                                       lacking[0] + "; " + instead);
  };
  const bool is_dynamic = o.quantizer.is_dynamic;
  if (is_dynamic && std::any_of(o.space.corrections.begin(), o.space.corrections.end(),
                                [](bias_correction c) { return c != bias_correction::none; })) {
    refuse("bias correction with dynamic quantization", "leave it out of the tuning space");
  }
  if (o.performance_only) {
    return;
  }
  if (is_dynamic && ranks_by_samples(o.strategy)) {
    refuse(std::string("strategy ") + name(o.strategy) + " with dynamic quantization",
           "choose another one");
  }
  for (const weighted_objective& wanted : o.objectives) {
    const tuning_objective t = wanted.objective;
    if (o.timeout > 0.0 && (t == tuning_objective::latency || t == tuning_objective::footprint)) {
      refuse(std::string("objective ") + name(t), "choose model_size, metric, or no timeout");
    }
  }
}

inline void check_tuning(const calibration_source& samples, const model_metric& metric,
                         const tuning_options& o) {
  constexpr auto invalid = error_kind::invalid_argument;
  require(o.performance_only || static_cast<bool>(metric), invalid, "tuning needs a metric");
  require(o.quantizer.is_dynamic || static_cast<bool>(samples), invalid,
          "static quantization needs calibration samples");
  require(o.max_trials > 0 && o.ranking_samples > 0 && o.measured_runs > 0, invalid,
          "max_trials, ranking_samples and measured_runs are at least 1");
  require(o.space.size() > 0, invalid, "a list of the tuning space is empty");
  require(o.timeout >= 0.0, invalid, "a timeout of ", o.timeout, " seconds");
  require_goal(o.goal);
  require(static_cast<bool>(samples) || o.performance_only || !ranks_by_samples(o.strategy),
          invalid, "strategy ", name(o.strategy), " ranks nodes by samples, and there are none");
  require(static_cast<bool>(samples) ||
              std::all_of(o.space.corrections.begin(), o.space.corrections.end(),
                          [](bias_correction c) { return c == bias_correction::none; }),
          invalid, "bias correction needs samples");
}

}  // namespace detail

/// Searches a way to quantize a model whose metric meets a goal. `metric` is called once with the
/// float model and once for each trial with a quantized model, which for static quantization has
/// QuantizeLinear/DequantizeLinear pairs. `samples` are for calibration, ranking and latency; it
/// may be empty for dynamic quantization where none of these needs it.
///
/// The search ends when a trial meets the goal and `timeout` is 0, when the time is up, when
/// `max_trials` trials were made, or when the strategy has nothing left to try. It returns the best
/// model: of those that meet the goal, the one with the lowest objective, else the one with the
/// best metric.
///
/// Deterministic for a seed, on any number of threads, unless time decides: a timeout, or latency
/// as an objective.
///
/// @code{.cpp}
/// #include <detent/graph/onnx.hpp>
/// #include <detent/graph/quantize/tuning.hpp>
///
/// detent::graph::model tuned(const detent::graph::model& m,
///                            const detent::graph::calibration_source& samples,
///                            const detent::graph::model_metric& accuracy) {
///   detent::graph::tuning_options options;
///   options.strategy = detent::graph::tuning_strategy::mse;
///   options.goal.max_drop = 0.01;  // one percent of the accuracy of the float model
///   options.space.methods = {"minmax", "kl"};
///   return detent::graph::tune(m, samples, accuracy, options).best;
/// }
/// @endcode
///
/// Operators that the executor lacks stay in float. In static quantization so do the nodes that
/// need their results, nodes are ranked by the values of the part that can be run, and `not_run` in
/// the result says what stayed in float and why. `metric` is called with the whole model, so it has
/// to run such operators itself, or judge by outputs that do not depend on them. What would have to
/// run the whole model is refused: the objectives latency and footprint; with dynamic quantization,
/// bias correction and the strategies mse, mse_v2 and hawq_v2.
///
/// Throws unsupported for such a search, naming the operator; invalid_argument for options that
/// contradict each other, naming them, for a dynamic model without samples where some are needed,
/// and for a metric of the float model that is NaN; what static_quantization(), quantize_dynamic()
/// and `metric` throw. A trial that throws ends the search with its exception.
[[nodiscard]] DETENT_GRAPH_DECL tuning_result tune(const model& float_model,
                                                   const calibration_source& samples,
                                                   const model_metric& metric,
                                                   const tuning_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL tuning_result tune(const model& float_model, const calibration_source& samples,
                                     const model_metric& metric, const tuning_options& options) {
  detail::check_tuning(samples, metric, options);
  detail::check_runs(float_model, options);
  detail::tuning_search search(float_model, samples, metric, options);
  detail::run_strategy(options.strategy, search);
  return search.result();
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_HPP
