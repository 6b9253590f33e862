// SPDX-License-Identifier: BSD-3-Clause
// Static quantization that chooses by measuring: each of its steps is tried on the calibration
// samples and kept only if what the model returns comes closer to the float model.
//
//   1. plain            min/max ranges, absmax weights: what the others must beat
//   2. equalization     of ranges of channels across pairs of layers
//   3. weight scales    of least squared error
//   4. weight rounding  against the outputs of each layer, with either scales
//   5. ranges           all activations by another observer
//   6. range of one     activation by another observer, one at a time
//   7. bias correction  fast, full
//
// The measure is output_judge::noise_to_signal() of the outputs, or of what goes into a Softmax
// that makes them; ranges and biases of what is tried come from one half of the samples, the
// measure from the other. What is kept is carried out with all samples; at the end, the outputs
// themselves are measured, and steps taken back until they are no worse than with plain min/max.
// Memory: observers (at most a histogram for each activation and method), `judge_samples` samples
// with their float results, and the moments that weights are rounded by.
#ifndef DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
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
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// One thing that was tried.
struct quantization_step {
  std::string name;
  double noise_before = 0.0;  // noise / signal
  double noise_after = 0.0;
  bool kept = false;
};

struct automatic_quantization_options {
  bool per_channel = true;
  element_type activation_type = element_type::u8;
  bool symmetric_activations = false;
  bool reduce_range = false;  // weights of 7 bits
  ignored_scope ignored = {};
  operator_rules operators = {};  // what is different for some of them; it is not tried otherwise
  std::map<std::string, activation_override> activations = {};  // by name of the value; likewise
  /// Observers for ranges. "minmax" is always there, and first.
  std::vector<std::string> methods = {"mse", "percentile"};
  observer_options observer = {};
  std::size_t judge_samples = 64;  // runs that steps are measured with
  /// Runs that changing one activation at a time may take in all, if measures of 4 runs do; with
  /// fewer activations, measures are of up to 32.
  std::size_t single_runs = 2000;
  /// Tried with both scales of the weights. Nothing: weights are rounded to nearest.
  std::optional<weight_rounding_options> rounding = weight_rounding_options{};
  std::size_t correction_samples = 16;  // runs that full bias correction takes for each layer
  std::function<void(const quantization_step&)> on_step = {};
  /// Told of the final parameters of each activation, and of the observer that they are from,
  /// or "given".
  std::function<void(const std::string& value, const std::string& method,
                     const scale_solution& solution)>
      on_parameters = {};
  executor_options executor = {};
};

namespace detail {

class automatic_quantizer {
 public:
  automatic_quantizer(const model& float_model, const calibration_source& samples,
                      const automatic_quantization_options& options)
      : float_model_(float_model),
        samples_(samples),
        seen_(samples),
        unseen_(samples),
        options_(options) {
    std::size_t count = 0;
    while (samples()) {
      ++count;
    }
    // Half of very few samples would not do for ranges.
    if (count >= 8) {
      seen_ = every_other_sample(samples, false);
      unseen_ = every_other_sample(samples, true);
    }
    judge_.emplace(float_model, unseen_, options.judge_samples, true, options.executor);
    std::erase_if(options_.methods,
                  [](const auto& m) { return detent::detail::lower_case(m) == "minmax"; });
    options_.methods.insert(options_.methods.begin(), "minmax");
  }

  quantization run() {
    plain_.emplace(float_model_, options_.ignored, options_.operators);
    for (const auto& [name, own] : options_.activations) {
      require_override(*plain_, name, own, activation_observer(fixed_options()));
    }
    state best = calibrated(*plain_, seen_);
    finish(best, seen_);
    best.noise = judge_->noise_to_signal(best.carried_out->result);
    kept_.push_back(best);
    report({"plain", best.noise, best.noise, true});
    try_equalization(best);
    try_step(best, "weight scales of least squared error",
             [](state& s) { s.weights = weight_scale::exact_mse; });
    try_rounding(best);
    for (std::size_t k = 1; k < options_.methods.size(); ++k) {
      try_step(best, "ranges: " + options_.methods[k], [&](state& s) { choose_all(s, k); });
    }
    try_single_ranges(best);
    for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
      const bool fast = kind == bias_correction::fast;
      try_step(best, fast ? "bias correction: fast" : "bias correction: full",
               [&](state& s) { s.correction = kind; });
    }
    return kept_promise();
  }

 private:
  /// A way to quantize the model.
  struct state {
    bool is_equalized = false;
    std::optional<quantization_plan> plan;
    std::map<std::string, std::vector<scale_solution>> solutions;  // by value, one for each method
    std::map<std::string, std::size_t> chosen;                     // index of the method
    weight_scale weights = weight_scale::absmax;
    bool rounds_weights = false;  // by the layers' outputs
    /// What that made. Steps behind it, ranges among them, keep it; empty: it has to be done.
    std::map<std::size_t, layer_weights> rounded;
    bias_correction correction = bias_correction::none;
    std::optional<quantization> carried_out;
    double noise = std::numeric_limits<double>::infinity();
  };

  void report(const quantization_step& s) const {
    if (options_.on_step) {
      options_.on_step(s);
    }
  }

  /// All methods' solutions for a plan, min/max chosen.
  [[nodiscard]] state calibrated(quantization_plan plan, const calibration_source& source) const {
    state s;
    s.plan.emplace(std::move(plan));
    const observer_options observer = activation_observer(fixed_options());
    std::vector<observed_value> observed;
    for (const std::string& name : s.plan->values()) {
      const std::string own = own_method(*s.plan, name, options_.activations);
      for (const std::string& method : options_.methods) {
        observed.push_back(
            {name, observer_for(*s.plan, name, own.empty() ? method : own, observer)});
        if (!may_choose(*s.plan, name)) {
          break;
        }
      }
      s.chosen[name] = 0;
    }
    calibrate(s.plan->float_model(), observed, source, options_.executor);
    for (const observed_value& v : observed) {
      s.solutions[v.name].push_back(solution_of(v, observer.scheme, options_.activations));
    }
    return s;
  }

  /// The weights on their grid, rounded to nearest. Steps that change the range of one activation
  /// change the weights of few layers: the others are remembered.
  [[nodiscard]] std::map<std::size_t, layer_weights> nearest_layers(
      const state& s, const quantization_parameters& p) {
    const model& m = s.plan->float_model();
    std::map<std::size_t, layer_weights> layers;
    for (const std::size_t i : s.plan->layers()) {
      const float x_scale = p.activations.at(m.nodes[i].inputs[0]).scale;
      auto& [last_scale, last] = nearest_[{s.is_equalized, s.weights, i}];
      if (last_scale != x_scale) {
        const layer_weight_options all{.per_channel = options_.per_channel,
                                       .scale = s.weights,
                                       .reduce_range = options_.reduce_range,
                                       .parallel = options_.executor.parallel};
        last =
            quantize_layer_weights(m, m.nodes[i], x_scale, with_settings(all, s.plan->settings(i)));
        last_scale = x_scale;
      }
      layers.emplace(i, last);
    }
    return layers;
  }

  /// Carries a state out.
  void finish(state& s, const calibration_source& source) {
    s.carried_out.emplace(quantization{*s.plan, {}, {}});
    quantization_plan& plan = s.carried_out->plan;
    quantization_parameters& p = s.carried_out->parameters;
    p.activation_type = options_.activation_type;
    for (const auto& [value, method] : s.chosen) {
      p.activations[value] = s.solutions.at(value)[method].params;
    }
    share_parameters(plan, p.activations);
    p.layers = s.rounded.empty() ? nearest_layers(s, p) : s.rounded;
    if (s.rounds_weights && s.rounded.empty()) {
      round_weights(plan, p, source, *options_.rounding, options_.executor);
      s.rounded = p.layers;
    }
    static_cast<void>(correct_biases(
        plan, p, source,
        {.kind = s.correction,
         .max_samples = s.correction == bias_correction::full ? options_.correction_samples : 0},
        options_.executor));
    s.carried_out->result = write_qdq(plan, p);
  }

  void keep_if_better(state& best, state&& tried, const std::string& name) {
    tried.noise = judge_->noise_to_signal(tried.carried_out->result);
    const bool kept = tried.noise < best.noise;
    report({name, best.noise, tried.noise, kept});
    if (kept) {
      best = std::move(tried);
      kept_.push_back(best);
    }
  }

  template <class Change>
  void try_step(state& best, const std::string& name, const Change& change) {
    state tried = best;
    change(tried);
    finish(tried, seen_);
    keep_if_better(best, std::move(tried), name);
  }

  void try_equalization(state& best) {
    model equalized = plain_->float_model();
    const equalization_result result = equalize(equalized);
    if (std::none_of(result.pairs.begin(), result.pairs.end(),
                     [](const equalized_pair& p) { return p.changed > 0; })) {
      return;
    }
    equalized_.emplace(*plain_, std::move(equalized));
    state tried = calibrated(*equalized_, seen_);
    tried.is_equalized = true;
    finish(tried, seen_);
    keep_if_better(best, std::move(tried), "equalization");
  }

  /// With both scales of the weights: which are better to round to nearest says little. The moments
  /// are the same, they depend on the ranges alone. It comes before other ranges are tried: the
  /// noise of weights rounded to nearest would hide what those are worth.
  void try_rounding(state& best) {
    if (!options_.rounding || best.plan->layers().empty()) {
      return;
    }
    const state before = best;
    const quantization_parameters& nearest = before.carried_out->parameters;
    const input_moments moments =
        gather_moments(*before.plan, nearest, seen_, *options_.rounding, options_.executor);
    for (const weight_scale scale : {weight_scale::absmax, weight_scale::exact_mse}) {
      state tried = before;
      tried.weights = scale;
      tried.rounds_weights = true;
      quantization_parameters p = nearest;
      p.layers = nearest_layers(tried, p);
      round_weights(*tried.plan, p, moments, *options_.rounding, options_.executor.parallel);
      tried.rounded = std::move(p.layers);
      finish(tried, seen_);
      keep_if_better(best, std::move(tried),
                     scale == weight_scale::absmax ? "weight rounding: absmax scales"
                                                   : "weight rounding: exact_mse scales");
    }
  }

  /// What the observers of all that is tried have in common.
  [[nodiscard]] static_quantization_options fixed_options() const {
    return {.observer = options_.observer,
            .activation_type = options_.activation_type,
            .symmetric_activations = options_.symmetric_activations};
  }

  /// Whether it is not said how the parameters of a value are found.
  [[nodiscard]] bool may_choose(const quantization_plan& plan, const std::string& value) const {
    return options_.activations.count(value) == 0 && plan.method(value).empty();
  }

  [[nodiscard]] static bool can_change(const state& s, const std::string& value) {
    return s.plan->root(value) == value && s.solutions.at(value).size() > 1 &&
           s.plan->float_model().initializer(value) == nullptr;
  }

  /// What the model returns must not have become worse either: goes back to the last step of which
  /// that is true.
  quantization kept_promise() {
    const output_judge outputs(float_model_, samples_, options_.judge_samples, false,
                               options_.executor);
    state best = with_all_samples(kept_.front());
    const double before = outputs.noise_to_signal(best.carried_out->result);
    for (; kept_.size() > 1; kept_.pop_back()) {
      state s = with_all_samples(kept_.back());
      const double after = outputs.noise_to_signal(s.carried_out->result);
      report({std::to_string(kept_.size() - 1) + " kept steps, by the outputs", before, after,
              after <= before});
      if (after <= before) {
        best = std::move(s);
        break;
      }
    }
    if (options_.on_parameters) {
      for (const auto& [value, method] : best.chosen) {
        if (best.plan->root(value) == value) {
          options_.on_parameters(
              value, method_name(*best.plan, value, options_.activations, options_.methods[method]),
              best.solutions.at(value)[method]);
        }
      }
    }
    return std::move(*best.carried_out);
  }

  /// The same decisions, with ranges, rounding and biases from all samples.
  [[nodiscard]] state with_all_samples(const state& s) {
    std::optional<state>& all = all_samples_[s.is_equalized ? 1 : 0];
    if (!all) {
      all = calibrated(s.is_equalized ? *equalized_ : *plain_, samples_);
      all->is_equalized = s.is_equalized;
    }
    state t = *all;
    t.chosen = s.chosen;
    t.weights = s.weights;
    t.rounds_weights = s.rounds_weights;
    t.correction = s.correction;
    finish(t, samples_);
    return t;
  }

  static void choose_all(state& s, std::size_t method) {
    for (auto& [value, chosen] : s.chosen) {
      chosen = s.solutions.at(value).size() > 1 ? method : 0;
    }
  }

  /// Changes one activation at a time, measured with a few samples; all changes together must hold
  /// with all of them.
  void try_single_ranges(state& best) {
    std::size_t trials = 0;
    for (const auto& [value, solutions] : best.solutions) {
      trials += can_change(best, value) ? solutions.size() - 1 : 0;
    }
    if (trials == 0) {
      return;
    }
    const std::size_t runs = std::clamp<std::size_t>(options_.single_runs / trials, 4, 32);
    const output_judge few(float_model_, unseen_, runs, true, options_.executor);
    state tried = best;
    double noise = few.noise_to_signal(tried.carried_out->result);
    std::size_t changed = 0;
    for (const auto& [value, solutions] : best.solutions) {
      if (!can_change(best, value)) {
        continue;
      }
      for (std::size_t k = 0; k < solutions.size(); ++k) {
        const std::size_t before = tried.chosen[value];
        if (solutions[k].params == solutions[before].params) {
          continue;
        }
        tried.chosen[value] = k;
        finish(tried, seen_);
        const double now = few.noise_to_signal(tried.carried_out->result);
        // Less is within what a few samples tell.
        if (now < 0.995 * noise) {
          noise = now;
          ++changed;
        } else {
          tried.chosen[value] = before;
        }
      }
    }
    if (changed == 0) {
      return;
    }
    finish(tried, seen_);
    keep_if_better(best, std::move(tried),
                   "ranges of " + std::to_string(changed) + " single activations");
  }

  const model& float_model_;
  const calibration_source& samples_;
  calibration_source seen_;    // ranges and biases of what is tried come from these,
  calibration_source unseen_;  // and it is measured with these
  automatic_quantization_options options_;
  std::optional<output_judge> judge_;
  std::vector<state> kept_;
  std::optional<quantization_plan> plain_;
  std::optional<quantization_plan> equalized_;
  std::optional<state> all_samples_[2];  // plain, equalized
  /// The scale of the input that a layer's weights were rounded with, and what came out.
  std::map<std::tuple<bool, weight_scale, std::size_t>, std::pair<float, layer_weights>> nearest_;
};

}  // namespace detail

/// Quantizes a float model as well as these steps can; see the top of this file. The samples are
/// drawn many times. Throws as static_quantization(), and unsupported if the model returns no float
/// tensor. Deterministic.
[[nodiscard]] inline quantization automatic_quantization(
    const model& float_model, const calibration_source& samples,
    const automatic_quantization_options& options = {}) {
  detail::require_not_quantized(float_model);
  graph::require_supported(float_model);
  return detail::automatic_quantizer(float_model, samples, options).run();
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP
