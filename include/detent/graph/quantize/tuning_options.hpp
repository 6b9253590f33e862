// SPDX-License-Identifier: BSD-3-Clause
// The options of tune(), and what it tells of its trials.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_OPTIONS_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_OPTIONS_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/setting_quantizer.hpp>
#include <detent/graph/quantize/tuning_space.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// In what order tune() tries settings. basic, mse, mse_v2 and hawq_v2 begin with the settings of
/// the space, in their order. They leave nodes in float if none of these meets the goal; with a
/// timeout, basic, mse and hawq_v2 do so in any case, to look for a better model.
enum class tuning_strategy : std::uint8_t {
  /// Leaves each node alone in float, from the outputs backward, and sorts the nodes by the metric
  /// that they reach; then leaves them in float one after the other, in that order, keeping those
  /// that help; then all of them, one more at a time.
  basic,
  /// Starts from the float model and quantizes one kind of operator after the other, the most
  /// costly first, then the nodes of the kinds that failed one by one; keeps what meets the goal.
  /// Without a timeout it takes the last such model. Of the space it takes the first setting only.
  conservative,
  /// Sorts the nodes by the squared error of their results in the quantized model and leaves one
  /// more at a time in float, the worst first.
  mse,
  /// Leaves in float, again and again, the node that lowers the error of the outputs most; when the
  /// goal is met, quantizes nodes again, those first that helped least. Without a timeout it takes
  /// the last model that meets the goal.
  mse_v2,
  /// As mse, but nodes are sorted by the effect that rounding their weights has on the outputs to
  /// second order: the trace of the Gauss-Newton matrix of the weights times the mean square of
  /// their rounding errors. The trace is estimated by changing all weights of a layer by +-epsilon
  /// at random (Hutchinson), so that no gradients are needed. Nodes without weights come last.
  hawq_v2,
  /// Chooses, after a few random settings, the one with the largest expected improvement by a
  /// Gaussian process over all members of a setting.
  bayesian,
  random,      ///< Random settings, none of them twice.
  exhaustive,  ///< All settings, with no node in float first, then each one, then each pair, ...
};

/// The name of a strategy, such as "mse_v2".
[[nodiscard]] constexpr const char* name(tuning_strategy strategy) noexcept {
  switch (strategy) {
    case tuning_strategy::basic:
      return "basic";
    case tuning_strategy::conservative:
      return "conservative";
    case tuning_strategy::mse:
      return "mse";
    case tuning_strategy::mse_v2:
      return "mse_v2";
    case tuning_strategy::hawq_v2:
      return "hawq_v2";
    case tuning_strategy::bayesian:
      return "bayesian";
    case tuning_strategy::random:
      return "random";
    case tuning_strategy::exhaustive:
      return "exhaustive";
  }
  return "unknown";
}

/// Whether a strategy ranks nodes by runs of models on samples.
[[nodiscard]] constexpr bool ranks_by_samples(tuning_strategy strategy) noexcept {
  return strategy == tuning_strategy::mse || strategy == tuning_strategy::mse_v2 ||
         strategy == tuning_strategy::hawq_v2;
}

/// What is made small, or large in the case of the metric, among models that meet the goal.
enum class tuning_objective : std::uint8_t {
  metric,      ///< The metric itself.
  latency,     ///< Time of a run, in seconds.
  model_size,  ///< Bytes of the model's file.
  footprint,   ///< Bytes of constants and of the values that are alive at a time in a run.
};

/// The name of an objective, such as "model_size".
[[nodiscard]] constexpr const char* name(tuning_objective objective) noexcept {
  switch (objective) {
    case tuning_objective::metric:
      return "metric";
    case tuning_objective::latency:
      return "latency";
    case tuning_objective::model_size:
      return "model_size";
    case tuning_objective::footprint:
      return "footprint";
  }
  return "unknown";
}

/// One objective of several.
struct weighted_objective {
  tuning_objective objective = tuning_objective::metric;  ///< What counts.
  double weight = 1.0;                                    ///< How much it counts.
};

/// One quantized model that was measured.
struct tuning_trial {
  tuning_setting setting = {};  ///< How the model was quantized.
  double metric = 0.0;          ///< Its metric.
  /// The weighted sum of its objectives, each divided by that of the float model. The metric counts
  /// with its drop: by how much it is worse than that of the float model, divided by the magnitude
  /// of that one (not divided if that is 0). Lower is better. 0 if no objective was measured.
  double objective = 0.0;
  bool meets_goal = false;  ///< Whether the metric meets the goal.
  /// Whether it was the best trial when it was made. The last such trial is the result.
  bool is_best = false;
};

/// Why a search ended.
enum class tuning_end : std::uint8_t {
  /// A trial met the goal, and no time was given to look for a better one; or performance_only took
  /// the first model.
  goal,
  timeout,    ///< The time was up.
  trials,     ///< As many trials were made as are allowed.
  exhausted,  ///< The strategy had nothing left to try.
  cancelled,  ///< The caller asked for an end.
};

/// The name of a reason, such as "max_trials".
[[nodiscard]] constexpr const char* name(tuning_end end) noexcept {
  switch (end) {
    case tuning_end::goal:
      return "goal";
    case tuning_end::timeout:
      return "timeout";
    case tuning_end::trials:
      return "max_trials";
    case tuning_end::exhausted:
      return "exhausted";
    case tuning_end::cancelled:
      return "cancelled";
  }
  return "unknown";
}

/// Options of tune().
struct tuning_options {
  tuning_strategy strategy = tuning_strategy::basic;  ///< The order of the trials.
  /// The goal; by default a relative drop of 1 %.
  accuracy_goal goal = {.max_drop = 0.01, .drop = drop_type::relative};
  /// What makes one model that meets the goal better than another. They are measured only if the
  /// search goes on after the goal is met, that is with a timeout.
  std::vector<weighted_objective> objectives = {{tuning_objective::latency, 1.0}};
  /// Seconds after which no further trial begins and no more nodes are ranked; the search then
  /// returns the best trial that meets the goal. 0: the search ends at the first trial that meets
  /// the goal.
  double timeout = 0.0;
  std::size_t max_trials = 100;  ///< Trials, at most; those of an earlier search count. At least 1.
  /// Whether the first trial is taken, and neither its metric nor its objectives are measured.
  bool performance_only = false;
  std::uint64_t seed = 1978;  ///< Seed of the strategies random, bayesian and hawq_v2.
  tuning_space space = {};    ///< The settings to choose from.
  setting_quantizer_options quantizer = {};  ///< What all settings have in common.
  /// Samples by which mse, mse_v2 and hawq_v2 rank nodes, at most. At least 1.
  std::size_t ranking_samples = 2;
  /// Runs by which latency is measured: the first ones are not counted, and the median of the
  /// others is taken. Runs of the float and the quantized model take turns.
  std::size_t warmup_runs = 5;
  std::size_t measured_runs = 20;  ///< See `warmup_runs`. At least 1.
  /// Trials of an earlier search with the same model, data, metric and `quantizer`. The metric of a
  /// setting among them is not computed again; goal and objectives may be others than they were.
  std::vector<tuning_trial> known = {};
  /// Called with each trial, in the order of time, also with those that are `known`.
  std::function<void(const tuning_trial&)> on_trial = {};
  /// Called before each trial but the first one, and often while nodes are ranked; the search ends
  /// if it returns true. May be empty.
  std::function<bool()> cancelled = {};
  /// A clock in seconds for `timeout` and latency. Empty: std::chrono::steady_clock.
  std::function<double()> clock = {};
};

/// The result of tune().
struct tuning_result {
  model best;                 ///< The best quantized model that was found.
  tuning_trial best_trial;    ///< Its setting and what was measured.
  double float_metric = 0.0;  ///< Metric of the float model.
  bool goal_met = false;      ///< Whether `best` meets the goal.
  double missed_by = 0.0;     ///< Distance of the metric of `best` from the target; 0 if it is met.
  tuning_end end = tuning_end::exhausted;  ///< Why the search ended.
  std::vector<tuning_trial> trials;        ///< All trials, in the order of time.
  /// Why nodes of all trials stayed in float, as quantization::not_run has it.
  std::vector<std::string> not_run = {};
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_OPTIONS_HPP
