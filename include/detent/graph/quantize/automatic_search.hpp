// SPDX-License-Identifier: BSD-3-Clause
// The search of automatic_quantization.hpp, which says what it tries and in which order.
#ifndef DETENT_GRAPH_QUANTIZE_AUTOMATIC_SEARCH_HPP
#define DETENT_GRAPH_QUANTIZE_AUTOMATIC_SEARCH_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/automatic_quantization_options.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/layer_means.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/range_trials.hpp>
#include <detent/graph/quantize/search_budget.hpp>
#include <detent/graph/quantize/weight_rounding.hpp>
#include <detent/graph/rewrite/channel_alignment.hpp>
#include <detent/graph/rewrite/channel_statistics.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/smooth_quant.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/observer.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Holds the state of automatic_quantization(): the best way to quantize so far, and cached
/// results.
class automatic_quantizer {
 public:
  automatic_quantizer(const model& float_model, const calibration_source& samples,
                      const automatic_quantization_options& options)
      : float_model_(float_model), options_(options), timer_(options.budget) {
    samples_ = within_budget(samples, timer_);
    while (samples_()) {
      ++count_;
    }
    // Half of fewer than 8 samples would be too few for ranges: all are then used for both
    // purposes.
    const bool halves = count_ >= 8;
    seen_ = halves ? within_budget(every_other_sample(samples, false), timer_) : samples_;
    unseen_ = halves ? within_budget(every_other_sample(samples, true), timer_) : samples_;
    std::erase_if(options_.methods,
                  [](const auto& m) { return detent::detail::lower_case(m) == "minmax"; });
    options_.methods.insert(options_.methods.begin(), "minmax");
    for (const std::string& method : options_.methods) {
      static_cast<void>(activation_observer(options_.activations, method));
    }
    if (options_.rounding) {
      options_.rounding->on_layer = [this](std::size_t) {
        timer_.check();
        advance();
      };
    }
  }

  quantization run() {
    begin("plain");
    plain_.emplace(float_model_, options_.scope);
    for (const auto& [name, own] : options_.activations.overrides) {
      require_override(*plain_, name, own, activation_observer(options_.activations, "minmax"),
                       options_.activations.observers);
    }
    state best = calibrated(*plain_, seen_, std::set<std::size_t>{0});
    finish(best, seen_);
    const search_budget::seconds ranges = timer_.elapsed();
    judge_.emplace(float_model_, unseen_, options_.judge_samples, true, options_.executor);
    best.noise = judge_->noise_to_signal(best.carried_out->result);
    kept_.push_back(best);
    report({"plain", best.noise, best.noise, true});
    // Afterwards, two models are compared with the float model by all samples that are judged.
    const double runs = static_cast<double>((std::min)(options_.judge_samples, count_)) /
                        static_cast<double>(judge_->samples());
    timer_.reserve(2.0 * ranges + 2.0 * runs * (timer_.elapsed() - ranges));
    timer_.enforce(true);
    try {
      timer_.check();
      search(best);
    } catch (const budget_ended&) {
      is_ended_ = true;
    }
    timer_.enforce(false);
    if (is_ended_) {
      const double noise = kept_.back().noise;
      report(
          {"the budget of " + shown_seconds() + " s ended the search", noise, noise, false, true});
    }
    return best_by_outputs();
  }

 private:
  /// One way to quantize the model, and what it has given so far.
  struct state {
    std::size_t form = 0;  // number of the rewrite; 0: the model as it is given
    std::optional<quantization_plan> plan;
    /// By value: the solutions of the methods that were tried, by their indices. Values whose
    /// parameters are given have solution 0 only.
    std::map<std::string, std::map<std::size_t, scale_solution>> solutions;
    std::map<std::string, std::size_t> chosen;  // by value; index of the method
    weight_scale weights = weight_scale::absmax;
    /// The weights that are rounded against the layers' outputs. Later steps keep them, changes of
    /// ranges among them. Empty: weights are rounded to nearest.
    std::map<std::size_t, layer_weights> rounded;
    /// Layers that were rounded by few rows, which more samples serve.
    std::set<std::size_t> few_rows;
    bias_correction correction = bias_correction::none;
    std::optional<quantization> carried_out;
    double noise = std::numeric_limits<double>::infinity();
  };

  void report(const quantization_step& s) const {
    if (options_.on_step) {
      options_.on_step(s);
    }
  }
  [[nodiscard]] std::string shown_seconds() const {
    return detent::detail::message(options_.budget.limit->count());
  }

  /// Begins a step of `total` layers or trials.
  void begin(const std::string& name, std::size_t total = 0) {
    progress_ = {name, 0, total, kept_.empty() ? 0.0 : kept_.back().noise};
    tell_progress();
  }
  void advance() {
    ++progress_.done;
    tell_progress();
  }
  void tell_progress() const {
    if (options_.on_progress) {
      options_.on_progress(progress_);
    }
  }

  void search(state& best) {
    try_rewrites(best);
    try_step(best, "weight scales of least squared error",
             [](state& s) { s.weights = weight_scale::exact_mse; });
    try_rounding(best);
    if (options_.methods.size() > 1) {
      begin("ranges");
      std::set<std::size_t> others;
      for (std::size_t k = 1; k < options_.methods.size(); ++k) {
        others.insert(k);
      }
      const state found = calibrated(*best.plan, seen_, others);
      for (const auto& [value, solutions] : found.solutions) {
        best.solutions[value].insert(solutions.begin(), solutions.end());
      }
    }
    for (std::size_t k = 1; k < options_.methods.size(); ++k) {
      try_step(best, "ranges: " + options_.methods[k], [&](state& s) { choose_all(s, k); });
    }
    try_single_ranges(best);
    for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
      const bool fast = kind == bias_correction::fast;
      try_step(best, fast ? "bias correction: fast" : "bias correction: full",
               [&](state& s) { s.correction = kind; });
    }
  }

  /// A state with the solutions of some methods, given by their indices, for the values of a plan.
  /// With method 0, min/max, all values are in it and have it chosen, also those whose parameters
  /// are given.
  [[nodiscard]] state calibrated(const quantization_plan& plan, const calibration_source& source,
                                 const std::set<std::size_t>& methods) const {
    return calibrated(plan, source, [&](const std::string&) { return methods; });
  }
  /// The same, with methods of its own for each value.
  [[nodiscard]] state calibrated(
      const quantization_plan& plan, const calibration_source& source,
      const std::function<std::set<std::size_t>(const std::string&)>& methods_of) const {
    state s;
    s.plan.emplace(plan);
    const observer_options observer = activation_observer(options_.activations, "minmax");
    std::vector<observed_value> observed;
    std::vector<std::size_t> methods;
    for (const std::string& name : s.plan->values()) {
      const std::string own = own_method(*s.plan, name, options_.activations.overrides);
      for (const std::size_t k : methods_of(name)) {
        if (k > 0 && !may_choose(*s.plan, name)) {
          continue;
        }
        observed.push_back(
            {name, observer_for(*s.plan, name, own.empty() ? options_.methods[k] : own, observer,
                                options_.activations.observers)});
        methods.push_back(k);
        s.chosen.emplace(name, k);
      }
    }
    calibrate(s.plan->float_model(), observed, source, options_.executor);
    for (std::size_t i = 0; i < observed.size(); ++i) {
      timer_.check();
      s.solutions[observed[i].name][methods[i]] =
          solution_of(*s.plan, observed[i], observer.scheme, options_.activations.overrides);
    }
    return s;
  }

  /// The weights of a layer on their grid, rounded to nearest. The scales that are found for a
  /// layer serve all states with the same weights.
  [[nodiscard]] layer_weights nearest_layer(const state& s, const quantization_parameters& p,
                                            std::size_t i) {
    const model& m = s.plan->float_model();
    const auto [found, is_new] = scales_.try_emplace({s.form, s.weights, i});
    if (is_new) {
      layer_weight_options weights = options_.weights;
      weights.scale = s.weights;
      found->second = find_weight_scales(m, m.nodes[i], with_settings(weights, s.plan->settings(i)),
                                         options_.executor.parallel);
    }
    return quantize_layer_weights(*s.plan, i, p.activations.at(m.nodes[i].inputs[0]).scale,
                                  found->second);
  }
  [[nodiscard]] std::map<std::size_t, layer_weights> nearest_layers(
      const state& s, const quantization_parameters& p) {
    std::map<std::size_t, layer_weights> layers;
    for (const std::size_t i : s.plan->layers()) {
      timer_.check();
      layers.emplace(i, nearest_layer(s, p, i));
    }
    return layers;
  }

  /// The parameters of the activations that a state has chosen.
  [[nodiscard]] quantization_parameters chosen_ranges(const state& s) const {
    quantization_parameters p;
    p.activation_type = options_.activations.type;
    p.activation_bits = options_.activations.bits;
    for (const auto& [value, method] : s.chosen) {
      p.activations[value] = s.solutions.at(value).at(method).params;
    }
    share_parameters(*s.plan, p.activations);
    return p;
  }

  /// Corrects the biases of a state by all samples or those that trials see; full correction by the
  /// first of them. Float means are collected once for each plan and set of samples.
  void correct(const state& s, quantization& q, const calibration_source& source) {
    if (s.correction == bias_correction::none) {
      return;
    }
    const bool all = &source == &samples_;
    const std::size_t samples = all || count_ < 8 ? count_ : (count_ + 1) / 2;
    const std::size_t used = s.correction == bias_correction::full
                                 ? (std::min)(samples, options_.correction_samples)
                                 : samples;
    const calibration_source some = first_samples(source, used);
    auto found = means_.find({s.form, all, used});
    if (found == means_.end()) {
      found = means_
                  .emplace(std::tuple(s.form, all, used),
                           gather_means(*s.plan, some, options_.executor))
                  .first;
    }
    static_cast<void>(correct_biases(q.plan, q.parameters, found->second, {.kind = s.correction},
                                     options_.executor, some));
  }

  /// Computes the quantization that a state describes.
  void finish(state& s, const calibration_source& source) {
    s.carried_out.emplace(quantization{*s.plan, chosen_ranges(s), {}});
    quantization_plan& plan = s.carried_out->plan;
    quantization_parameters& p = s.carried_out->parameters;
    p.layers = s.rounded.empty() ? nearest_layers(s, p) : s.rounded;
    correct(s, *s.carried_out, source);
    s.carried_out->result = write_qdq(plan, p);
  }

  /// Measures a state, reports it, and makes it the best one if it has less noise.
  void keep_if_better(state& best, state&& tried, const std::string& name) {
    tried.noise = judge_->noise_to_signal(tried.carried_out->result, [this] { timer_.check(); });
    const bool kept = tried.noise < best.noise;
    report({name, best.noise, tried.noise, kept});
    if (kept) {
      best = std::move(tried);
      kept_.push_back(best);
    }
  }

  template <class Change>
  void try_step(state& best, const std::string& name, const Change& change) {
    timer_.check();
    begin(name);
    state tried = best;
    change(tried);
    finish(tried, seen_);
    keep_if_better(best, std::move(tried), name);
  }

  /// Tries a rewrite of the float model: rewrite(model&) changes it and returns whether it did.
  template <class Rewrite>
  void try_rewrite(state& best, const std::string& name, const Rewrite& rewrite) {
    timer_.check();
    begin(name);
    model rewritten = best.plan->float_model();
    if (!rewrite(rewritten)) {
      return;
    }
    state tried = calibrated(quantization_plan(*plain_, std::move(rewritten)), seen_,
                             std::set<std::size_t>{0});
    tried.form = ++rewrites_;
    finish(tried, seen_);
    keep_if_better(best, std::move(tried), name);
  }

  /// Tries to even out the ranges of channels by rewrites that keep what the model computes.
  void try_rewrites(state& best) {
    try_rewrite(best, "equalization", [](model& m) {
      const equalization_result result = equalize(m);
      return std::any_of(result.pairs.begin(), result.pairs.end(),
                         [](const equalized_pair& p) { return p.changed > 0; });
    });
    try_smoothing(best);
    try_rewrite(best, "channel alignment", [this](model& m) {
      const std::map<std::string, std::size_t> axes = alignment_values(m);
      return !axes.empty() && !align_channels(m, channel_ranges(observed_channels(
                                                     m, axes, channel_alignment_observer())))
                                   .empty();
    });
  }

  /// The inputs of layers that SmoothQuant is tried on, with the axes of their features: those that
  /// are computed in float, by a normalization or an activation function for example. A Mul that is
  /// inserted behind such a node divides no chain of integer operators. The channels between two
  /// layers are left to equalization.
  [[nodiscard]] std::map<std::string, std::size_t> smoothed_values(
      const quantization_plan& plan) const {
    const model& m = plan.float_model();
    const links l(m);
    std::map<std::string, std::size_t> axes = smoothing_values(m);
    std::erase_if(axes, [&](const auto& entry) {
      const std::size_t maker = l.producer(entry.first);
      return maker == links::none || plan.quantizes(maker) || is_layer(m.nodes[maker]) ||
             !may_choose(plan, entry.first);
    });
    return axes;
  }

  /// Tries SmoothQuant with three exponents: all rewrite the same model, by the same magnitudes.
  void try_smoothing(state& best) {
    const quantization_plan before = *best.plan;
    const std::map<std::string, std::size_t> axes = smoothed_values(before);
    if (axes.empty()) {
      return;
    }
    begin("magnitudes for SmoothQuant");
    const channel_magnitude_map magnitudes = channel_magnitudes(
        observed_channels(before.float_model(), axes, any_observer(min_max_observer())));
    for (const auto& [alpha, name] :
         {std::pair(0.5F, "SmoothQuant: alpha 0.5"), std::pair(0.8F, "SmoothQuant: alpha 0.8"),
          std::pair(0.95F, "SmoothQuant: alpha 0.95")}) {
      graph_smoothing_options smoothing;
      smoothing.scales.alpha = alpha;
      try_rewrite(best, name, [&](model& m) {
        m = before.float_model();
        return !smooth_quant(m, magnitudes, smoothing).empty();
      });
    }
  }

  /// Statistics of the channels of values of a model, by the samples that trials see.
  [[nodiscard]] channel_statistics observed_channels(const model& m,
                                                     const std::map<std::string, std::size_t>& axes,
                                                     const any_observer& observer) const {
    return observe_channels(m, seen_, axes, observer, options_.executor);
  }

  /// Tries rounding with both kinds of scales, because a comparison of the two with nearest
  /// rounding says little about which is better here. The moments depend on the ranges alone, so
  /// both trials share them. This step comes before other ranges are tried: the noise of weights
  /// that are rounded to nearest would hide the effect of ranges.
  void try_rounding(state& best) {
    if (!options_.rounding || best.plan->layers().empty()) {
      return;
    }
    begin("moments for weight rounding");
    const state before = best;
    const quantization_parameters& nearest = before.carried_out->parameters;
    const input_moments moments =
        gather_moments(*before.plan, nearest, seen_, *options_.rounding, options_.executor);
    for (const weight_scale scale : {weight_scale::absmax, weight_scale::exact_mse}) {
      const std::string name = scale == weight_scale::absmax ? "weight rounding: absmax scales"
                                                             : "weight rounding: exact_mse scales";
      begin(name, best.plan->layers().size());
      state tried = before;
      tried.weights = scale;
      quantization_parameters p = nearest;
      p.layers = nearest_layers(tried, p);
      round_weights(*tried.plan, p, moments, *options_.rounding, options_.executor.parallel);
      tried.rounded = std::move(p.layers);
      for (const std::size_t i : tried.plan->layers()) {
        if (moments.left_out(i).empty() && moments.rows(i) < moments.features(i)) {
          tried.few_rows.insert(i);
        }
      }
      finish(tried, seen_);
      keep_if_better(best, std::move(tried), name);
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

  /// Ensures that the outputs themselves are not worse than with plain min/max: repeats the
  /// decisions of the last kept step for which that is true with all samples. If the budget has
  /// ended the search, only the last kept step is compared, with the samples that it was made with.
  /// The outputs are not used for any other choice: ranges have seen these samples.
  quantization best_by_outputs() {
    begin("comparing the kept steps", kept_.size() - 1);
    judge_.reset();
    const output_judge outputs(float_model_, samples_, options_.judge_samples, false,
                               options_.executor);
    state best = with_all_samples(kept_.front());
    const double plain = outputs.noise_to_signal(best.carried_out->result);
    bool is_plain = true;
    for (std::size_t k = kept_.size() - 1; k > 0 && is_plain && !timer_.is_exhausted(); --k) {
      state s = is_ended_ ? kept_[k] : with_all_samples(kept_[k]);
      const double noise = outputs.noise_to_signal(s.carried_out->result);
      is_plain = noise > plain;
      report({"result with " + std::to_string(k) + (k == 1 ? " step" : " steps") +
                  ", on its own samples",
              plain, noise, !is_plain});
      if (!is_plain) {
        best = std::move(s);
      }
      advance();
      if (is_ended_) {
        break;
      }
    }
    if (is_plain) {
      report({"result: plain min/max, on its own samples", plain, plain, true});
    }
    if (options_.activations.on_parameters) {
      for (const auto& [value, method] : best.chosen) {
        if (best.plan->root(value) == value) {
          options_.activations.on_parameters(
              value,
              method_name(*best.plan, value, options_.activations.overrides,
                          options_.methods[method]),
              best.solutions.at(value).at(method));
        }
      }
    }
    return std::move(*best.carried_out);
  }

  /// Repeats the decisions of a state with ranges and biases from all samples. Layers that were
  /// rounded by few rows are rounded again.
  [[nodiscard]] state with_all_samples(const state& s) {
    if (count_ < 8) {
      return s;  // it has seen them all
    }
    state t;
    t.plan.emplace(*s.plan);
    t.chosen = s.chosen;
    t.solutions = all_solutions(s);
    t.form = s.form;
    t.weights = s.weights;
    t.correction = s.correction;
    t.rounded = s.rounded;
    if (!s.few_rows.empty()) {
      round_again(t, s.few_rows);
    }
    finish(t, samples_);
    return t;
  }

  /// Rounds some layers of a state by all samples.
  void round_again(state& s, const std::set<std::size_t>& layers) {
    quantization_parameters p = chosen_ranges(s);
    p.layers = s.rounded;
    for (const std::size_t i : layers) {
      p.layers.at(i) = nearest_layer(s, p, i);
    }
    weight_rounding_options rounding = *options_.rounding;
    rounding.layers = layers;
    rounding.on_layer = {};  // the step that this is a part of counts something else
    round_weights(*s.plan, p, samples_, rounding, options_.executor);
    s.rounded = std::move(p.layers);
  }

  /// The solutions of all samples for the methods that a state has chosen. The first call for a
  /// plan finds those of all other kept states, too, so that the samples are run once.
  [[nodiscard]] const std::map<std::string, std::map<std::size_t, scale_solution>>& all_solutions(
      const state& s) {
    auto& found = all_solutions_[s.form];
    if (found.empty()) {
      found = calibrated(*s.plan, samples_, [&](const std::string& value) {
                std::set<std::size_t> methods;
                for (const state& k : kept_) {
                  if (k.form == s.form) {
                    methods.insert(k.chosen.at(value));
                  }
                }
                return methods;
              }).solutions;
    }
    return found;
  }

  static void choose_all(state& s, std::size_t method) {
    for (auto& [value, chosen] : s.chosen) {
      chosen = s.solutions.at(value).size() > 1 ? method : 0;
    }
  }

  /// Number of trials that try_single_ranges() may make.
  [[nodiscard]] static std::size_t single_trials(const state& s) {
    std::size_t trials = 0;
    for (const auto& [value, solutions] : s.solutions) {
      trials += can_change(s, value) ? solutions.size() - 1 : 0;
    }
    return trials;
  }

  /// Number of values that try_single_ranges() visits.
  [[nodiscard]] static std::size_t changeable(const state& s) {
    return static_cast<std::size_t>(
        std::count_if(s.solutions.begin(), s.solutions.end(),
                      [&](const auto& entry) { return can_change(s, entry.first); }));
  }

  /// Changes the range of one activation at a time, measured with a few samples. All changes
  /// together must then hold up with all of them.
  void try_single_ranges(state& best) {
    const std::size_t count = single_trials(best);
    if (count == 0) {
      return;
    }
    begin("ranges of single activations", changeable(best));
    state tried = best;
    range_trials trials(tried.carried_out->plan, *judge_,
                        std::clamp<std::size_t>(options_.single_runs / count, 4, 32),
                        tried.carried_out->parameters, options_.executor);
    std::size_t changed = 0;
    for (const auto& [value, solutions] : tried.solutions) {
      if (!can_change(tried, value)) {
        continue;
      }
      for (const auto& [k, solution] : solutions) {
        const std::size_t before = tried.chosen[value];
        if (solution.params == solutions.at(before).params) {
          continue;
        }
        timer_.check();
        tried.chosen[value] = k;
        quantization_parameters p = chosen_ranges(tried);
        p.layers = tried.rounded.empty() ? nearest_layers(tried, p) : tried.rounded;
        // A gain below 0.5 % is within the uncertainty of a few samples.
        if (trials.improves(p, 0.995)) {
          ++changed;
        } else {
          tried.chosen[value] = before;
        }
      }
      advance();
    }
    if (changed > 0) {
      finish(tried, seen_);
      keep_if_better(best, std::move(tried),
                     "ranges of " + std::to_string(changed) + " single activations");
    }
  }

  const model& float_model_;
  automatic_quantization_options options_;
  search_timer timer_;
  calibration_source samples_;
  calibration_source seen_;    // samples for the ranges and biases of trials
  calibration_source unseen_;  // samples for measuring them
  std::size_t count_ = 0;      // of all samples
  bool is_ended_ = false;      // by the budget
  std::optional<output_judge> judge_;
  std::vector<state> kept_;
  std::optional<quantization_plan> plain_;
  std::size_t rewrites_ = 0;  // that were tried
  /// By form.
  std::map<std::size_t, std::map<std::string, std::map<std::size_t, scale_solution>>>
      all_solutions_;
  /// By form, whether they are from all samples or from those that trials see, and the number of
  /// samples.
  std::map<std::tuple<std::size_t, bool, std::size_t>, layer_means> means_;
  quantization_progress progress_;
  /// By form, kind of scales and node.
  std::map<std::tuple<std::size_t, weight_scale, std::size_t>, layer_weight_scales> scales_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_AUTOMATIC_SEARCH_HPP
