// SPDX-License-Identifier: BSD-3-Clause
// What the strategies of tune() have in common: to measure a setting, to remember the best one, and
// to know when to end.
#ifndef DETENT_GRAPH_QUANTIZE_TUNING_SEARCH_HPP
#define DETENT_GRAPH_QUANTIZE_TUNING_SEARCH_HPP

#include <cmath>
#include <cstddef>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/setting_quantizer.hpp>
#include <detent/graph/quantize/tuning_objectives.hpp>
#include <detent/graph/quantize/tuning_options.hpp>
#include <detent/graph/quantize/tuning_space.hpp>
#include <detent/graph/rewrite/lower.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Thrown by tuning_search::check_end(), and caught where the strategy was called.
class search_ended : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the search has ended"; }
};

/// The state of a search.
class tuning_search {
 public:
  /// All arguments must outlive the search. `samples` may be empty for dynamic quantization if no
  /// objective and no strategy needs to run the model.
  tuning_search(const model& float_model, const calibration_source& samples,
                const model_metric& metric, const tuning_options& options)
      : float_model_(float_model),
        samples_(samples),
        metric_(metric),
        options_(options),
        start_(now()),
        quantizer_(float_model, samples, options.space.methods, options.quantizer) {
    for (const tuning_trial& t : options.known) {
      known_.emplace(t.setting, t.metric);
    }
    float_metric_ = options.performance_only ? 0.0 : reference_metric(metric(float_model));
  }

  /// Measures a setting, or takes what was measured before. Returns nothing, without having done
  /// anything, if the search is to end: a strategy then returns at once.
  std::optional<tuning_trial> evaluate(const tuning_setting& setting) {
    if (has_ended()) {
      return std::nullopt;
    }
    const auto seen = index_.find(setting);
    if (seen != index_.end()) {
      return trials_[seen->second];
    }
    // Of a known trial only the metric is taken over: this search may have another goal, and
    // objectives that were not measured then.
    tuning_trial t;
    t.setting = setting;
    const auto known = known_.find(setting);
    const bool is_known = known != known_.end();
    t.metric = is_known ? known->second : 0.0;
    if (!is_known || options_.timeout > 0.0) {
      model made = quantizer_.quantize(setting);
      if (!options_.performance_only) {
        t.metric = is_known ? t.metric : metric_(made);
        t.objective = objective_of(made, t.metric);
      }
      last_ = std::move(made);
      last_setting_ = setting;
    }
    t.meets_goal = !options_.performance_only && options_.goal.is_met(float_metric_, t.metric);
    const bool replaces = t.meets_goal && takes_latest_ && options_.timeout <= 0.0;
    t.is_best = trials_.empty() || replaces || is_better(t, trials_[best_]);
    if (t.is_best) {
      best_ = trials_.size();
    }
    index_.emplace(setting, trials_.size());
    trials_.push_back(std::move(t));
    if (options_.on_trial) {
      options_.on_trial(trials_.back());
    }
    return trials_.back();
  }

  /// From now on, a trial that meets the goal does not end the search. Without a timeout, for which
  /// no objectives are measured, it is the best one whatever those before it are: the strategy
  /// itself sees to it that it is. With one, objectives decide as before.
  void take_latest() noexcept { takes_latest_ = true; }

  /// Whether the search is to end now; the reason is then known.
  [[nodiscard]] bool has_ended() {
    if (end_) {
      return true;
    }
    if (trials_.empty()) {
      return false;  // there is always a result
    }
    if (options_.performance_only ||
        (trials_[best_].meets_goal && options_.timeout <= 0.0 && !takes_latest_)) {
      end_ = tuning_end::goal;
    } else if (trials_.size() >= options_.max_trials) {
      end_ = tuning_end::trials;
    } else if (options_.timeout > 0.0 && now() - start_ >= options_.timeout) {
      end_ = tuning_end::timeout;
    } else if (options_.cancelled && options_.cancelled()) {
      end_ = tuning_end::cancelled;
    }
    return end_.has_value();
  }
  /// Throws search_ended if the search is to end: for use inside of long computations.
  void check_end() {
    if (has_ended()) {
      throw search_ended();
    }
  }

  /// The best trial so far; there is at least one.
  [[nodiscard]] const tuning_trial& best() const { return trials_[best_]; }
  [[nodiscard]] const std::vector<tuning_trial>& trials() const noexcept { return trials_; }
  /// The nodes that a setting may leave in float, in topological order.
  [[nodiscard]] std::vector<std::string> nodes() const { return quantizer_.nodes(); }
  [[nodiscard]] setting_quantizer& quantizer() noexcept { return quantizer_; }
  [[nodiscard]] const tuning_options& options() const noexcept { return options_; }
  /// The first samples, by which nodes are ranked.
  [[nodiscard]] calibration_source ranking_samples() const {
    return first_samples(samples_, options_.ranking_samples);
  }

  /// Whether one trial is better than another: it meets the goal and the other does not; both meet
  /// it and its objective is lower; or neither does and its metric is better.
  [[nodiscard]] bool is_better(const tuning_trial& a, const tuning_trial& b) const {
    if (a.meets_goal != b.meets_goal) {
      return a.meets_goal;
    }
    if (a.meets_goal && a.objective != b.objective) {
      return a.objective < b.objective;
    }
    return options_.goal.is_better(a.metric, b.metric);
  }

  /// The result of the search. Throws invalid_argument if it has made no trial.
  [[nodiscard]] tuning_result result() {
    require(!trials_.empty(), error_kind::invalid_argument, "the search has made no trial");
    static_cast<void>(has_ended());  // the last trial may have met the goal
    tuning_result r;
    r.best_trial = trials_[best_];
    r.best = last_ && last_setting_ == r.best_trial.setting
                 ? std::move(*last_)
                 : quantizer_.quantize(r.best_trial.setting);
    r.float_metric = float_metric_;
    r.goal_met = r.best_trial.meets_goal;
    r.missed_by = r.goal_met || options_.performance_only
                      ? 0.0
                      : std::fabs(options_.goal.target(float_metric_) - r.best_trial.metric);
    r.end = end_.value_or(tuning_end::exhausted);
    r.trials = std::move(trials_);
    r.not_run = quantizer_.not_run();
    return r;
  }

 private:
  [[nodiscard]] double now() const { return options_.clock ? options_.clock() : steady_seconds(); }

  /// The inputs of one run.
  [[nodiscard]] const std::map<std::string, tensor>& sample() {
    if (!sample_) {
      require(static_cast<bool>(samples_), error_kind::invalid_argument,
              "the objectives of tuning need a sample to run the model on");
      sample_ = samples_();
      while (samples_()) {  // the rest of the pass
      }
      require(sample_.has_value(), error_kind::invalid_argument,
              "there are no calibration samples");
    }
    return *sample_;
  }

  /// The value of an objective for the quantized model divided by that for the float model; of the
  /// metric, its drop.
  [[nodiscard]] double ratio_of(tuning_objective objective, const model& quantized, double metric) {
    const executor_options& executor = options_.quantizer.executor;
    double own = 0.0;
    double& reference = float_objectives_[objective];
    const auto once = [&](const auto& measure) {
      if (reference == 0.0) {
        reference = static_cast<double>(measure());
      }
    };
    switch (objective) {
      case tuning_objective::metric:
        reference = std::fabs(float_metric_);
        own = options_.goal.higher_is_better ? float_metric_ - metric : metric - float_metric_;
        break;
      case tuning_objective::latency:
        std::tie(reference, own) =
            latencies(float_model_, quantized, sample(), options_.warmup_runs,
                      options_.measured_runs, executor, [this] { return now(); });
        break;
      case tuning_objective::model_size:
        once([&] { return onnx_size(float_model_); });
        own = static_cast<double>(onnx_size(quantized));
        break;
      case tuning_objective::footprint:
        once([&] { return footprint(for_execution(float_model_, false), sample(), executor); });
        own = static_cast<double>(footprint(for_execution(quantized), sample(), executor));
        break;
    }
    return reference == 0.0 ? own : own / reference;
  }

  [[nodiscard]] double objective_of(const model& quantized, double metric) {
    if (options_.timeout <= 0.0) {
      return 0.0;  // the first trial that meets the goal is taken
    }
    double sum = 0.0;
    for (const weighted_objective& o : options_.objectives) {
      sum += o.weight * ratio_of(o.objective, quantized, metric);
    }
    return sum;
  }

  const model& float_model_;
  const calibration_source& samples_;
  const model_metric& metric_;
  const tuning_options& options_;
  double start_;
  setting_quantizer quantizer_;
  double float_metric_ = 0.0;
  std::map<tuning_setting, double> known_;  // metrics of an earlier search
  std::vector<tuning_trial> trials_;
  std::map<tuning_setting, std::size_t> index_;  // of the trials
  std::size_t best_ = 0;
  bool takes_latest_ = false;
  std::optional<tuning_end> end_;
  std::optional<model> last_;  // the model of the last trial that was measured
  tuning_setting last_setting_;
  std::optional<std::map<std::string, tensor>> sample_;
  std::map<tuning_objective, double> float_objectives_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TUNING_SEARCH_HPP
