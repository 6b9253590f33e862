// SPDX-License-Identifier: BSD-3-Clause
// The options of automatic_quantization(), and what it tells while it searches.
#ifndef DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_OPTIONS_HPP
#define DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_OPTIONS_HPP

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/search_budget.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// One step of automatic_quantization() that was tried. Noise is relative to the signal: the
/// squared error of the outputs divided by their squared values, as output_judge::noise_to_signal()
/// combines them.
struct quantization_step {
  std::string name;           ///< What was tried, in words, or what ended the search.
  double noise_before = 0.0;  ///< Noise / signal of the best model before this step.
  double noise_after = 0.0;   ///< Noise / signal of the model with this step.
  bool kept = false;          ///< Whether the step was kept.
  /// Whether this is no step: the budget has ended the search here. Both noises are then those of
  /// the best model.
  bool is_end_of_budget = false;
};

/// How far automatic_quantization() has come.
struct quantization_progress {
  std::string step;         ///< What is being tried, in words.
  std::size_t done = 0;     ///< Layers or trials of the step that are done.
  std::size_t total = 0;    ///< Layers or trials of the step; 0 if it is not counted.
  double best_noise = 0.0;  ///< Noise / signal of the best model so far; 0 before there is one.
};

/// Options of automatic_quantization().
struct automatic_quantization_options {
  /// Names of the observers that ranges are tried with; `activations.observers` must have them.
  /// "minmax" is always the first one, whether it is listed or not.
  std::vector<std::string> methods = {"mse", "percentile"};
  activation_options activations = {};  ///< Type, observers and overrides of the activations.
  /// Channels, bits and levels of the weights. Trials choose the rule for their scales.
  layer_weight_options weights = {};
  /// Nodes that stay in float, and settings of single operators, which trials do not vary.
  quantization_scope scope = {};
  std::size_t judge_samples = 64;  ///< Samples that steps are measured with, at most.
  /// Model runs that step "range of one activation" may take, about. Each of its trials is measured
  /// with `single_runs` / (number of trials) samples, but with at least 4 and at most 32.
  std::size_t single_runs = 2000;
  /// How weights are rounded against the outputs of their layers; it is tried with absmax scales
  /// and with scales of least squared error. Without a value, weights are rounded to nearest.
  std::optional<weight_rounding_options> rounding = weight_rounding_options{};
  /// Samples that full bias correction runs for each layer, at most.
  std::size_t correction_samples = 16;
  /// Limit of the time. When it is reached, the best quantization so far is returned, if its
  /// outputs are no worse than those with plain min/max ranges, else the latter. The result then
  /// depends on the speed of the machine. Plain min/max is always carried out, whatever time that
  /// takes.
  search_budget budget = {};
  /// Called with each step that was tried, in the order of time.
  std::function<void(const quantization_step&)> on_step = {};
  /// Called at the beginning of each step and with each of its layers or trials.
  std::function<void(const quantization_progress&)> on_progress = {};
  /// Options of all executors that run models here; `parallel` is used by solvers, too.
  executor_options executor = {};
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_OPTIONS_HPP
