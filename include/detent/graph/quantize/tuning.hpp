// SPDX-License-Identifier: BSD-3-Clause
// Tuning by accuracy: tries one way to quantize a model after the other until a metric of the
// user's is good enough, or until time or trials are used up, and returns the best model found.
//
// Source: Intel Neural Compressor. Differences: a search always returns the best model, also if
// none meets the goal; where lower is better, a metric equal to the target meets the goal.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/tuning_options.hpp>
#include <detent/graph/quantize/tuning_search.hpp>
#include <detent/graph/quantize/tuning_strategies.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

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
  require(std::isfinite(o.goal.max_drop) &&
              (o.goal.drop == drop_type::absolute || std::fabs(o.goal.max_drop) < 1.0),
          invalid, "a drop of ", o.goal.max_drop,
          o.goal.drop == drop_type::absolute ? "" : ", which as a fraction is between -1 and 1");
  const tuning_strategy s = o.strategy;
  require(
      static_cast<bool>(samples) || (s != tuning_strategy::mse && s != tuning_strategy::mse_v2 &&
                                     s != tuning_strategy::hawq_v2),
      invalid, "strategy ", name(s), " ranks nodes by samples, and there are none");
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
/// Throws invalid_argument for options that contradict each other, naming them, and for a dynamic
/// model without samples where some are needed; what static_quantization(), quantize_dynamic() and
/// `metric` throw. A trial that throws ends the search with its exception.
[[nodiscard]] inline tuning_result tune(const model& float_model, const calibration_source& samples,
                                        const model_metric& metric,
                                        const tuning_options& options = {}) {
  detail::check_tuning(samples, metric, options);
  detail::tuning_search search(float_model, samples, metric, options);
  detail::run_strategy(options.strategy, search);
  return search.result();
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_HPP
