// SPDX-License-Identifier: BSD-3-Clause
// Static quantization that chooses by measuring: each step is tried on the calibration samples and
// kept only if the outputs of the model come closer to those of the float model.
//
//   1. plain            min/max ranges, absmax weights: the baseline
//   2. equalization     of the ranges of channels across pairs of layers
//   3. weight scales    of least squared error
//   4. weight rounding  against the outputs of each layer, with the scales of 1 and with those of 3
//   5. ranges           all activations by another observer
//   6. range of one     activation by another observer, one at a time
//   7. bias correction  fast, full
//
// The measure is output_judge::noise_to_signal() of the outputs, or of the input of a Softmax that
// makes them. Ranges and biases of a trial come from one half of the samples, the measure from the
// other half. The steps that are kept are then carried out with all samples; finally the outputs
// themselves are measured, and steps are taken back until the outputs are no worse than with plain
// min/max.
//
// Memory: observers (at most a histogram for each activation and method), `judge_samples` samples
// with their float results, and the moments by which weights are rounded.
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
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/partial_quantization.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// One step of automatic_quantization() that was tried. Noise is relative to the signal: the
/// squared error of the outputs divided by their squared values, as output_judge::noise_to_signal()
/// combines them.
struct quantization_step {
  std::string name;           ///< What was tried, in words.
  double noise_before = 0.0;  ///< Noise / signal of the best model before this step.
  double noise_after = 0.0;   ///< Noise / signal of the model with this step.
  bool kept = false;          ///< Whether the step was kept.
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
  /// Called with each step that was tried, in the order of time.
  std::function<void(const quantization_step&)> on_step = {};
  /// Options of all executors that run models here; `parallel` is used by solvers, too.
  executor_options executor = {};
};

namespace detail {

/// Holds the state of automatic_quantization(): the best way to quantize so far, and cached
/// results.
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
    // Half of fewer than 8 samples would be too few for ranges: all are then used for both
    // purposes.
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
    plain_.emplace(float_model_, options_.scope);
    for (const auto& [name, own] : options_.activations.overrides) {
      require_override(*plain_, name, own, activation_observer(options_.activations, "minmax"),
                       options_.activations.observers);
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
  /// One way to quantize the model, and what it has given so far.
  struct state {
    bool is_equalized = false;
    std::optional<quantization_plan> plan;
    std::map<std::string, std::vector<scale_solution>> solutions;  // by value; one for each method
    std::map<std::string, std::size_t> chosen;                     // by value; index of the method
    weight_scale weights = weight_scale::absmax;
    bool rounds_weights = false;  // against the layers' outputs
    /// The rounded weights. Later steps keep them, changes of ranges among them. Empty: rounding
    /// has yet to be done.
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

  /// The solutions of all methods for the values of a plan, with min/max chosen.
  [[nodiscard]] state calibrated(quantization_plan plan, const calibration_source& source) const {
    state s;
    s.plan.emplace(std::move(plan));
    const observer_options observer = activation_observer(options_.activations, "minmax");
    std::vector<observed_value> observed;
    for (const std::string& name : s.plan->values()) {
      const std::string own = own_method(*s.plan, name, options_.activations.overrides);
      for (const std::string& method : options_.methods) {
        observed.push_back({name, observer_for(*s.plan, name, own.empty() ? method : own, observer,
                                               options_.activations.observers)});
        if (!may_choose(*s.plan, name)) {
          break;
        }
      }
      s.chosen[name] = 0;
    }
    calibrate(s.plan->float_model(), observed, source, options_.executor);
    for (const observed_value& v : observed) {
      s.solutions[v.name].push_back(
          solution_of(*s.plan, v, observer.scheme, options_.activations.overrides));
    }
    return s;
  }

  /// The weights on their grid, rounded to nearest. A step that changes the range of one activation
  /// changes the weights of few layers, so those of the others are cached.
  [[nodiscard]] std::map<std::size_t, layer_weights> nearest_layers(
      const state& s, const quantization_parameters& p) {
    const model& m = s.plan->float_model();
    std::map<std::size_t, layer_weights> layers;
    for (const std::size_t i : s.plan->layers()) {
      const float x_scale = p.activations.at(m.nodes[i].inputs[0]).scale;
      auto& [last_scale, last] = nearest_[{s.is_equalized, s.weights, i}];
      if (last_scale != x_scale) {
        layer_weight_options weights = options_.weights;
        weights.scale = s.weights;
        last = quantize_layer_weights(m, m.nodes[i], x_scale,
                                      with_settings(weights, s.plan->settings(i)),
                                      options_.executor.parallel);
        last_scale = x_scale;
      }
      layers.emplace(i, last);
    }
    return layers;
  }

  /// Computes the quantization that a state describes.
  void finish(state& s, const calibration_source& source) {
    s.carried_out.emplace(quantization{*s.plan, {}, {}});
    quantization_plan& plan = s.carried_out->plan;
    quantization_parameters& p = s.carried_out->parameters;
    p.activation_type = options_.activations.type;
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

  /// Measures a state, reports it, and makes it the best one if it has less noise.
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

  /// Tries rounding with both kinds of scales, because a comparison of the two with nearest
  /// rounding says little about which is better here. The moments depend on the ranges alone, so
  /// both trials share them. This step comes before other ranges are tried: the noise of weights
  /// that are rounded to nearest would hide the effect of ranges.
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

  /// Whether the options leave open how the parameters of a value are found.
  [[nodiscard]] bool may_choose(const quantization_plan& plan, const std::string& value) const {
    return options_.activations.overrides.count(value) == 0 && plan.method(value).empty();
  }

  /// Whether a value has parameters of its own that another observer can change.
  [[nodiscard]] static bool can_change(const state& s, const std::string& value) {
    return s.plan->root(value) == value && s.solutions.at(value).size() > 1 &&
           s.plan->float_model().initializer(value) == nullptr;
  }

  /// Ensures that the outputs themselves are not worse than with plain min/max: returns to the last
  /// kept step for which that is true.
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
    if (options_.activations.on_parameters) {
      for (const auto& [value, method] : best.chosen) {
        if (best.plan->root(value) == value) {
          options_.activations.on_parameters(
              value,
              method_name(*best.plan, value, options_.activations.overrides,
                          options_.methods[method]),
              best.solutions.at(value)[method]);
        }
      }
    }
    return std::move(*best.carried_out);
  }

  /// Repeats the decisions of a state with ranges, rounding and biases from all samples.
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

  /// Changes the range of one activation at a time, measured with a few samples. All changes
  /// together must then hold up with all of them.
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
        // A smaller gain is within the uncertainty of a few samples.
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
  calibration_source seen_;    // samples for the ranges and biases of trials
  calibration_source unseen_;  // samples for measuring them
  automatic_quantization_options options_;
  std::optional<output_judge> judge_;
  std::vector<state> kept_;
  std::optional<quantization_plan> plain_;
  std::optional<quantization_plan> equalized_;
  std::optional<state> all_samples_[2];  // plain, equalized
  /// By whether the model is equalized, kind of scales and node: the scale of the input for which
  /// the layer's weights were rounded, and the result.
  std::map<std::tuple<bool, weight_scale, std::size_t>, std::pair<float, layer_weights>> nearest_;
};

}  // namespace detail

/// Quantizes a float model, and chooses how by measuring: tries cross-layer equalization, weight
/// scales of least squared error, weight rounding against the layers' outputs, other observers for
/// the ranges, and bias correction, and keeps each step only if it lowers the noise of the model's
/// outputs relative to the float model. The result is no worse, by the outputs for `judge_samples`
/// samples, than static quantization with min/max ranges and absmax weights.
///
/// @code{.cpp}
/// #include <detent/graph/onnx.hpp>
/// #include <detent/graph/quantize/automatic_quantization.hpp>
///
/// detent::graph::model quantize(const detent::graph::model& m,
///                               const detent::graph::calibration_source& samples) {
///   detent::graph::automatic_quantization_options options;
///   options.methods = {"mse", "percentile", "kl"};
///   options.judge_samples = 32;
///   return detent::graph::automatic_quantization(m, samples, options).result;
/// }
/// @endcode
///
/// `samples` is drawn many times. With 8 samples or more, ranges and biases of the trials come from
/// every other sample and the noise is measured with the rest; the final result uses all samples.
/// Deterministic: the result does not depend on the threads.
///
/// If the executor lacks operators of the model, static_quantization() says what happens; the noise
/// is then that of the values which the nodes that cannot be run take from the others, and of the
/// outputs that do not depend on such nodes. If none of these is float, ranges are min/max.
///
/// Throws what static_quantization() throws, and unsupported if the model has no float output.
[[nodiscard]] inline quantization automatic_quantization(
    const model& float_model, const calibration_source& samples,
    const automatic_quantization_options& options = {}) {
  return detail::quantize_runnable_part(
      float_model, options.scope, [&](const model& runnable, const quantization_scope& scope) {
        const auto returns_float = [](const model& m) {
          return std::any_of(m.outputs.begin(), m.outputs.end(), [](const value_info& v) {
            return v.type == element_type::f32 || v.type == element_type::undefined;
          });
        };
        if (!returns_float(runnable) && returns_float(float_model)) {
          // There is nothing to measure in the part that can be run.
          static_quantization_options plain{
              .activations = options.activations, .weights = options.weights, .scope = scope};
          plain.executor = options.executor;
          return static_quantization(runnable, samples, plain);
        }
        automatic_quantization_options within = options;
        within.scope = scope;
        return detail::automatic_quantizer(runnable, samples, within).run();
      });
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_AUTOMATIC_QUANTIZATION_HPP
