// SPDX-License-Identifier: BSD-3-Clause
// Quantization that meets an accuracy goal: layers are left in float, the most harmful first, until
// a metric of the user's is good enough.
//
//   1. measure the metric of the float model and of the model with all layers quantized
//   2. rank the layers by the effect of leaving each one alone in float
//   3. leave one after the other in float, the most harmful first, until the goal is met; a step
//      that makes the metric worse is taken back, once, and the other layers are ranked again
//   4. quantize layers of step 3 again if the goal is met without leaving them in float
//
// There is always a result: the best that was found, with a record of everything that was tried.
//
// Sources: NNCF, quantize_with_accuracy_control (2, 3), and Intel Neural Compressor (accuracy
// criterion, trials, and step 4 from its strategy mse_v2).
#ifndef DETENT_GRAPH_QUANTIZE_ACCURACY_CONTROL_HPP
#define DETENT_GRAPH_QUANTIZE_ACCURACY_CONTROL_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Computes the quality of a model; the user provides it. It is called with the float model and
/// with models that have QuantizeLinear/DequantizeLinear nodes. An executor runs these fastest
/// after for_execution().
using model_metric = std::function<double(const model&)>;

/// How accuracy_goal::max_drop is meant.
enum class drop_type : std::uint8_t {
  absolute,  ///< In units of the metric.
  relative   ///< As a fraction of the |metric| of the float model.
};

/// How much worse than the float model a quantized model may be.
struct accuracy_goal {
  /// Largest drop that is tolerated; with drop_type::relative between -1 and 1, exclusive.
  double max_drop = 0.01;
  drop_type drop = drop_type::absolute;  ///< Whether `max_drop` is absolute or relative.
  /// Whether a higher metric is better. Set it to false for errors and losses.
  bool higher_is_better = true;

  /// The worst metric that is good enough:
  ///
  ///     absolute  float_metric - max_drop                     with + where lower is better
  ///     relative  float_metric - max_drop * |float_metric|    with + where lower is better
  [[nodiscard]] double target(double float_metric) const {
    const double tolerated =
        drop == drop_type::absolute ? max_drop : max_drop * std::fabs(float_metric);
    return higher_is_better ? float_metric - tolerated : float_metric + tolerated;
  }
  /// Whether `metric` is the target or better. NaN never is. (Neural Compressor demands less than
  /// the target where lower is better.)
  [[nodiscard]] bool is_met(double float_metric, double metric) const {
    return higher_is_better ? metric >= target(float_metric) : metric <= target(float_metric);
  }
  /// Whether metric `a` is better than `b`. Any number is better than NaN.
  [[nodiscard]] bool is_better(double a, double b) const {
    return !std::isnan(a) && (std::isnan(b) || (higher_is_better ? a > b : a < b));
  }
};

/// By what layers are ranked.
enum class layer_ranking : std::uint8_t {
  output_error,  ///< Noise / signal of the model's outputs, as output_judge measures it.
  metric,        ///< The user's metric.
};

/// Why a model was measured.
enum class trial_kind : std::uint8_t {
  all_quantized,  ///< The model with all layers quantized.
  ranking,        ///< One more group of layers in float, to compare it with other groups.
  revert,         ///< A step of the search: one more group of layers in float.
  quantize,  ///< A group quantized again, because the goal may be met without leaving it in float.
};

/// One quantized model that was measured.
struct accuracy_trial {
  trial_kind kind = trial_kind::all_quantized;  ///< Why it was measured.
  std::vector<std::string> left_in_float;       ///< Labels of all layers in float.
  double metric = 0.0;                          ///< Its metric.
  bool meets_goal = false;                      ///< Whether the metric meets the goal.
  bool accepted = false;                        ///< Whether the search continued from this model.
};

/// Options of control_accuracy().
struct accuracy_control_options {
  accuracy_goal goal = {};  ///< The goal to meet.
  /// Steps of the search, at most; models measured for ranking do not count.
  std::size_t max_iterations = (std::numeric_limits<std::size_t>::max)();
  /// Quantized models that the metric is computed for, at most; all kinds of trials count. At least
  /// 1.
  std::size_t max_trials = (std::numeric_limits<std::size_t>::max)();
  /// By what layers are ranked.
  layer_ranking ranking = layer_ranking::output_error;
  /// Number of samples by which layer_ranking::output_error measures: those on which the float
  /// model and the model with all layers quantized differ most. Their float results are kept in
  /// memory. At least 1.
  std::size_t ranking_subset_size = 300;
  /// Whether layers that take the same value are left in float together, as in NNCF, where they
  /// share quantizers. If not, each layer is a group of its own.
  bool group_by_input = false;
  /// Whether layers are quantized again at the end if the goal is met without leaving them in
  /// float.
  bool quantize_again = true;
  /// Called with each trial, in the order of time.
  std::function<void(const accuracy_trial&)> on_trial = {};
  executor_options executor = {};  ///< Options of all executors that run models here.
};

/// The result of control_accuracy(), with the trials that led to it.
struct accuracy_control_result {
  quantization best;                       ///< The best quantization that was found.
  double float_metric = 0.0;               ///< Metric of the float model.
  double metric = 0.0;                     ///< Metric of `best`.
  bool goal_met = false;                   ///< Whether `best` meets the goal.
  std::vector<std::string> left_in_float;  ///< Labels of the layers that `best` has in float.
  std::vector<accuracy_trial> trials;      ///< All trials, in the order of time.
};

/// Returns a copy of a quantization with some of its layers in float, given by the indices of their
/// nodes. These layers get back the biases that they had before correction. Values that nothing
/// takes in 8 bits any more become float. All other numbers stay as they are. Throws
/// invalid_argument if a node is not a quantized layer.
[[nodiscard]] inline quantization leave_in_float(const quantization& all,
                                                 const std::set<std::size_t>& layers) {
  for (const std::size_t i : layers) {
    require(all.parameters.layers.count(i) != 0, error_kind::invalid_argument,
            "leave_in_float: node ", i, " is not a quantized layer");
  }
  quantization rest = all;
  rest.plan.leave_out(layers);
  std::erase_if(rest.parameters.activations,
                [&](const auto& entry) { return rest.plan.values().count(entry.first) == 0; });
  for (const std::size_t i : layers) {
    rest.parameters.layers.erase(i);
  }
  rest.result = write_qdq(rest.plan, rest.parameters);
  return rest;
}

namespace detail {

/// Throws invalid_argument for a drop that is not finite, or relative and not between -1 and 1.
inline void require_goal(const accuracy_goal& goal) {
  require(std::isfinite(goal.max_drop) &&
              (goal.drop == drop_type::absolute || std::fabs(goal.max_drop) < 1.0),
          error_kind::invalid_argument, "a maximal drop of ", goal.max_drop,
          "; a relative one lies between -1 and 1");
}

/// Returns the metric of the float model. Throws invalid_argument if it is NaN: no other metric
/// could be compared with it.
[[nodiscard]] inline double reference_metric(double of_float_model) {
  require(!std::isnan(of_float_model), error_kind::invalid_argument,
          "the metric of the float model is NaN");
  return of_float_model;
}

/// A source of the `count` samples (or all, if there are fewer) on which two models differ most in
/// their outputs or logits, in their original order. Draws all samples once.
[[nodiscard]] inline calibration_source most_different(const model& float_model,
                                                       const model& quantized,
                                                       calibration_source samples,
                                                       std::size_t count,
                                                       const executor_options& options) {
  const auto judged = [](model m, bool integer) {
    expose_logits(m);
    remove_unused(m);
    return for_execution(std::move(m), integer);
  };
  executor reference(judged(float_model, false), options);
  executor other(judged(quantized, true), options);
  std::vector<std::pair<double, std::size_t>> errors;  // negated: the largest come first
  while (const auto inputs = samples()) {
    const std::vector<tensor> expected = reference.run(*inputs);
    std::vector<signal_error> outputs(expected.size());
    add_outputs(outputs, expected, other.run(*inputs));
    errors.emplace_back(-noise_to_signal(outputs), errors.size());
  }
  std::sort(errors.begin(), errors.end());
  errors.resize((std::min)(errors.size(), count));
  std::set<std::size_t> chosen;
  for (const auto& [error, index] : errors) {
    chosen.insert(index);
  }
  return [samples = std::move(samples), chosen = std::move(chosen),
          at = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
    while (auto next = samples()) {
      if (chosen.count(at++) != 0) {
        return next;
      }
    }
    at = 0;
    return std::nullopt;
  };
}

/// Holds the state of control_accuracy(): the models that were measured, and the trials.
class accuracy_controller {
 public:
  accuracy_controller(const model& float_model, const quantization& all,
                      const calibration_source& samples, const model_metric& validate,
                      const accuracy_control_options& options)
      : float_model_(float_model),
        all_(all),
        samples_(samples),
        validate_(validate),
        options_(options),
        result_{all, 0.0, 0.0, false, {}, {}} {
    require_goal(options.goal);
    require(options.max_trials > 0, error_kind::invalid_argument, "max_trials 0: nothing to try");
    require(options.ranking_subset_size > 0, error_kind::invalid_argument,
            "ranking_subset_size 0: no samples");
    require(static_cast<bool>(validate), error_kind::invalid_argument,
            "accuracy control without a metric");
  }

  accuracy_control_result run() {
    result_.float_metric = reference_metric(validate_(float_model_));
    group current;
    double metric = measure(current);
    record(trial_kind::all_quantized, current, true);
    if (!is_met(metric)) {
      search(current, metric);
    }
    finish();
    return std::move(result_);
  }

 private:
  using group = std::set<std::size_t>;  // indices of layers

  [[nodiscard]] bool is_met(double metric) const {
    return options_.goal.is_met(result_.float_metric, metric);
  }
  [[nodiscard]] bool may_measure(const group& in_float) const {
    return metrics_.count(in_float) != 0 || metrics_.size() < options_.max_trials;
  }
  [[nodiscard]] static group with(group a, const group& b) {
    a.insert(b.begin(), b.end());
    return a;
  }

  /// Computes the metric of the model with these layers in float; nothing is measured twice.
  double measure(const group& in_float) {
    const auto known = metrics_.find(in_float);
    if (known != metrics_.end()) {
      return known->second;
    }
    const double metric =
        validate_(in_float.empty() ? all_.result : leave_in_float(all_, in_float).result);
    metrics_.emplace(in_float, metric);
    return metric;
  }

  void record(trial_kind kind, const group& in_float, bool accepted) {
    const double metric = metrics_.at(in_float);
    result_.trials.push_back({kind, labels(in_float), metric, is_met(metric), accepted});
    if (options_.on_trial) {
      options_.on_trial(result_.trials.back());
    }
  }

  [[nodiscard]] std::vector<std::string> labels(const group& layers) const {
    std::vector<std::string> names;
    for (const std::size_t i : layers) {
      names.push_back(all_.plan.float_model().nodes[i].label());
    }
    return names;
  }

  [[nodiscard]] std::vector<group> groups() const {
    std::vector<group> all;
    std::map<std::string, std::size_t> by_input;
    for (const auto& [i, weights] : all_.parameters.layers) {
      const std::string& input = all_.plan.root(all_.plan.float_model().nodes[i].inputs[0]);
      const auto [found, added] = by_input.emplace(input, all.size());
      if (added || !options_.group_by_input) {
        all.emplace_back();
      }
      (options_.group_by_input ? all[found->second] : all.back()).insert(i);
    }
    return all;
  }

  /// Sorts groups by how much good leaving each one in float does, in addition to those of
  /// `current`: the most first. Equal groups keep their order.
  void rank(std::vector<group>& groups, const group& current) {
    if (groups.size() < 2) {
      return;
    }
    const bool by_metric = options_.ranking == layer_ranking::metric;
    if (!by_metric && !judge_) {
      judge_.emplace(float_model_,
                     most_different(float_model_, all_.result, samples_,
                                    options_.ranking_subset_size, options_.executor),
                     options_.ranking_subset_size, true, options_.executor);
    }
    accuracy_goal order = options_.goal;
    order.higher_is_better = by_metric && order.higher_is_better;
    std::vector<std::pair<double, group>> scored;
    for (group& g : groups) {
      const group tried = with(current, g);
      double score = std::numeric_limits<double>::quiet_NaN();
      if (!by_metric) {
        score = judge_->noise_to_signal(leave_in_float(all_, tried).result);
      } else if (may_measure(tried)) {
        score = measure(tried);
        record(trial_kind::ranking, tried, false);
      }
      scored.emplace_back(score, std::move(g));
    }
    std::stable_sort(scored.begin(), scored.end(), [&](const auto& a, const auto& b) {
      return order.is_better(a.first, b.first);
    });
    groups.clear();
    for (auto& [score, g] : scored) {
      groups.push_back(std::move(g));
    }
  }

  void search(group& current, double& metric) {
    if (options_.max_iterations == 0) {
      return;
    }
    std::vector<group> left = groups();
    rank(left, current);
    std::vector<group> taken;
    bool can_step_back = true;
    std::size_t iterations = 0;
    while (!is_met(metric) && !left.empty() && iterations < options_.max_iterations) {
      const group next = left.front();
      const group tried = with(current, next);
      if (!may_measure(tried)) {
        return;
      }
      ++iterations;
      const double now = measure(tried);
      const bool worse = options_.goal.is_better(metric, now);
      const bool accepted = !worse || !can_step_back || left.size() == 1;
      record(trial_kind::revert, tried, accepted);
      left.erase(left.begin());
      if (accepted) {
        current = tried;
        metric = now;
        taken.push_back(next);
      }
      if (worse) {
        rank(left, current);
      }
      if (!accepted) {
        left.push_back(next);
      }
      can_step_back = accepted;
    }
    if (is_met(metric) && options_.quantize_again && taken.size() > 1) {
      quantize_again(current, taken, iterations);
    }
  }

  /// Quantizes groups again if the goal is still met. The last group of `taken` met the goal, so it
  /// stays in float; the others are tried from the least harmful on.
  void quantize_again(group& current, std::vector<group>& taken, std::size_t iterations) {
    for (std::size_t k = taken.size() - 1; k-- > 0 && iterations < options_.max_iterations;) {
      group tried;
      for (const std::size_t i : current) {
        if (taken[k].count(i) == 0) {
          tried.insert(i);
        }
      }
      if (!may_measure(tried)) {
        return;
      }
      ++iterations;
      const bool accepted = is_met(measure(tried));
      record(trial_kind::quantize, tried, accepted);
      if (accepted) {
        current = tried;
      }
    }
  }

  /// Chooses the result: among models that meet the goal the one with the fewest layers in float,
  /// else the one with the best metric. Ties are broken by the other of the two criteria, then by
  /// the order of the sets of layers.
  void finish() {
    const auto is_preferred = [&](const auto& a, const auto& b) {
      const bool a_meets = is_met(a.second);
      if (a_meets != is_met(b.second)) {
        return a_meets;
      }
      const bool better = options_.goal.is_better(a.second, b.second);
      const bool worse = options_.goal.is_better(b.second, a.second);
      const bool fewer = a.first.size() < b.first.size();
      const bool more = a.first.size() > b.first.size();
      return a_meets ? fewer || (!more && better) : better || (!worse && fewer);
    };
    const auto best = std::min_element(metrics_.begin(), metrics_.end(), is_preferred);
    result_.metric = best->second;
    result_.goal_met = is_met(best->second);
    result_.left_in_float = labels(best->first);
    if (!best->first.empty()) {
      result_.best = leave_in_float(all_, best->first);
    }
  }

  const model& float_model_;
  const quantization& all_;
  const calibration_source& samples_;
  const model_metric& validate_;
  const accuracy_control_options& options_;
  accuracy_control_result result_;
  std::map<group, double> metrics_;
  std::optional<output_judge> judge_;
};

}  // namespace detail

/// Leaves layers of a quantization of `float_model` in float until `validate` meets the goal. `all`
/// is the quantization with all layers, for example that of static_quantization().
///
/// The layers are ranked by the effect of leaving each one alone in float, then one after the other
/// is left in float, the most harmful first. A step that makes the metric worse is taken back,
/// unless the step before it was taken back or no other layer is left; the remaining layers are
/// then ranked again. When the goal is met, layers are quantized again if it is met without leaving
/// them in float. The result is, of the models that meet the goal, the one with the fewest layers
/// in float; if none does, it is the one with the best metric, and `goal_met` is false.
/// Deterministic if the metric is.
///
/// `samples` is used only for layer_ranking::output_error, which draws it twice: to find the
/// samples on which the models differ most, and to keep these.
///
/// Throws invalid_argument if an option is out of its domain, if there is no metric, if it is NaN
/// for the float model, or if there are no samples; with layer_ranking::output_error, unsupported
/// if the model has no float output, and what the executor throws; and what the metric throws.
///
/// Sources: NNCF, quantize_with_accuracy_control; Intel Neural Compressor, strategy mse_v2.
[[nodiscard]] DETENT_GRAPH_DECL accuracy_control_result control_accuracy(
    const model& float_model, const quantization& all, const calibration_source& samples,
    const model_metric& validate, const accuracy_control_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL accuracy_control_result control_accuracy(
    const model& float_model, const quantization& all, const calibration_source& samples,
    const model_metric& validate, const accuracy_control_options& options) {
  return detail::accuracy_controller(float_model, all, samples, validate, options).run();
}
#endif

/// Quantizes a float model with static_quantization(), then leaves layers in float with
/// control_accuracy() until the metric meets the goal. Throws what these two throw.
[[nodiscard]] DETENT_GRAPH_DECL accuracy_control_result quantize_with_accuracy_control(
    const model& float_model, const calibration_source& calibration, const model_metric& validate,
    const accuracy_control_options& options = {},
    const static_quantization_options& quantization_options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL accuracy_control_result quantize_with_accuracy_control(
    const model& float_model, const calibration_source& calibration, const model_metric& validate,
    const accuracy_control_options& options,
    const static_quantization_options& quantization_options) {
  return control_accuracy(float_model,
                          static_quantization(float_model, calibration, quantization_options),
                          calibration, validate, options);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_ACCURACY_CONTROL_HPP
