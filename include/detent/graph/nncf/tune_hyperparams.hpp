// SPDX-License-Identifier: BSD-3-Clause
// NNCF's tune_hyperparams: a search for the quantization parameters that keep most of a metric.
//
//   subset   the `subset_size` samples on which the metrics of the float and the quantized model,
//            each of the sample alone, differ most in favour of the float model; all models are
//            measured on it
//   steps    SmoothQuant, if the model gets it; then quantizers, ranges and bias correction. What a
//            step has found stays for the next one
//   search   in each step, one parameter after the other, in the order of the table: its value so
//            far and all values of the table are tried, with the others as they are; the first of
//            the best ones stays
//
//       smooth_quant_alphas          matmul 0.15, 0.25, 0.5, 0.75, 0.95, convolutions off
//       quantizer_propagation_rule   merge_if_all_branches_same
//       preset                       performance, mixed
//       weights_range_estimator      min_max
//       activations_range_estimator  all pairs of a lower end (the least value of all samples, or
//                                    the mean of the samples' quantiles 1e-3 or 1e-4) and of an
//                                    upper end of the same kinds
//       fast_bias_correction         true, false; only if biases are corrected
//
// No combination is measured twice: at most 6 models in the first step and 16 in the second one.
//
// Source: NNCF 3.4, HyperparameterTuner and its table of parameters, for validation functions that
// return one number. Channel alignment, which NNCF does not have for ONNX models, is not searched.
#ifndef DETENT_GRAPH_NNCF_TUNE_HYPERPARAMS_HPP
#define DETENT_GRAPH_NNCF_TUNE_HYPERPARAMS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/placement.hpp>
#include <detent/graph/nncf/quantize.hpp>
#include <detent/graph/nncf/range_estimator.hpp>
#include <detent/graph/nncf/smooth_quant.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/observers/tools/nncf.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// Computes the metric of a model on samples. The source of samples begins anew after it has given
/// nothing.
using validation_function = std::function<double(const model&, const calibration_source&)>;

/// Parameters of quantization that were changed: names of members of quantize_options, and texts
/// that stand for their values, in the order of the search.
using changed_parameters = std::vector<std::pair<std::string, std::string>>;

/// A model that the search for quantization parameters has measured.
struct tuning_trial {
  changed_parameters changed;  ///< What was different from the options at the beginning.
  double metric = 0.0;         ///< The metric of the model on the subset of samples.
};

/// The result of the search for quantization parameters.
struct tuned_options {
  quantize_options best;             ///< The options that the search ended with.
  changed_parameters changed;        ///< What is different in them.
  std::vector<tuning_trial> trials;  ///< All models that were measured, in the order of time.
};

namespace detail {

/// A parameter of quantization, and the values of it that are tried.
struct hyperparameter {
  struct setting {
    std::string text;
    std::function<void(quantize_options&)> apply;
  };
  std::string name;
  std::vector<setting> settings;
};

using hyperparameters = std::vector<hyperparameter>;

[[nodiscard]] inline hyperparameters smooth_quant_parameters() {
  hyperparameter alphas{"smooth_quant_alphas", {}};
  for (const auto& [alpha, text] :
       {std::pair(0.15F, "0.15"), std::pair(0.25F, "0.25"), std::pair(0.5F, "0.5"),
        std::pair(0.75F, "0.75"), std::pair(0.95F, "0.95")}) {
    alphas.settings.push_back({text, [value = alpha](quantize_options& o) {
                                 o.smooth_quant_alphas = {};
                                 o.smooth_quant_alphas.matmul = value;
                               }});
  }
  return {std::move(alphas)};
}

/// The range estimators of activations that are tried.
[[nodiscard]] inline hyperparameter activation_estimators() {
  using detent::nncf::aggregator;
  using detent::nncf::end_options;
  using detent::nncf::statistic;
  const std::vector<std::pair<std::string, end_options>> quantiles = {
      {"quantile 1e-3", {statistic::quantile, aggregator::mean, 1e-3}},
      {"quantile 1e-4", {statistic::quantile, aggregator::mean, 1e-4}}};
  std::vector<std::pair<std::string, end_options>> lower = quantiles;
  std::vector<std::pair<std::string, end_options>> upper = quantiles;
  lower.insert(lower.begin(), {"min", {statistic::min, aggregator::min}});
  upper.insert(upper.begin(), {"max", {statistic::max, aggregator::max}});
  hyperparameter estimators{"activations_range_estimator", {}};
  for (const auto& [low_text, low] : lower) {
    for (const auto& [high_text, high] : upper) {
      const range_estimator estimator{.ends = {.lower = low, .upper = high}};
      estimators.settings.push_back({low_text + ", " + high_text, [estimator](quantize_options& o) {
                                       o.activations_range_estimator = estimator;
                                     }});
    }
  }
  return estimators;
}

[[nodiscard]] inline hyperparameters quantizer_parameters_to_tune(bool corrects_biases) {
  hyperparameters all = {
      {"quantizer_propagation_rule",
       {{"merge_if_all_branches_same",
         [](quantize_options& o) {
           o.quantizer_propagation_rule = propagation_rule::merge_if_all_branches_same;
         }}}},
      {"preset",
       {{"performance", [](quantize_options& o) { o.preset = preset::performance; }},
        {"mixed", [](quantize_options& o) { o.preset = preset::mixed; }}}},
      {"weights_range_estimator",
       {{"min_max", [](quantize_options& o) { o.weights_range_estimator = min_max; }}}},
      activation_estimators()};
  if (corrects_biases) {
    all.push_back({"fast_bias_correction",
                   {{"true", [](quantize_options& o) { o.fast_bias_correction = true; }},
                    {"false", [](quantize_options& o) { o.fast_bias_correction = false; }}}});
  }
  return all;
}

/// The search for quantization parameters.
class hyperparameter_tuner {
 public:
  hyperparameter_tuner(const model& float_model, const dataset& calibration,
                       const dataset& validation, const validation_function& validate,
                       const quantize_options& options, bool higher_is_better)
      : float_model_(float_model),
        calibration_(calibration),
        validation_(validation),
        validate_(validate),
        higher_is_better_(higher_is_better) {
    require(options.mode == quantization_mode::int8, error_kind::unsupported,
            "tune_hyperparams tries presets, which modes of floats do not have");
    result_.best = options;
  }

  /// `quantized` is the model that the options at the beginning make.
  [[nodiscard]] tuned_options run(const model& quantized) {
    select_subset(quantized);
    const quantize_options& o = result_.best;
    if (o.model_type == model_type::transformer &&
        (o.smooth_quant_alphas.convolution >= 0.0F || o.smooth_quant_alphas.matmul >= 0.0F)) {
      run_step(smooth_quant_parameters());
    }
    run_step(quantizer_parameters_to_tune(!o.disable_bias_correction));
    return std::move(result_);
  }

 private:
  /// For each parameter of a step, 0 for the value at the beginning, or 1 + the index of a setting.
  using combination = std::vector<std::size_t>;

  /// A number that is higher for better metrics. NaN is the worst.
  [[nodiscard]] double score_of(double metric) const {
    if (std::isnan(metric)) {
      return -std::numeric_limits<double>::infinity();
    }
    return higher_is_better_ ? metric : -metric;
  }

  /// Takes the samples on which the quantized model loses most; of equals, the later ones.
  void select_subset(const model& quantized) {
    std::vector<double> losses;
    const calibration_source samples = validation_.samples();
    while (const auto item = samples()) {
      const auto alone = [&](const model& m) {
        return validate_(m, [&item, given = false]() mutable {
          given = !given;
          return given ? item : std::nullopt;
        });
      };
      const double exact = alone(float_model_);
      const double loss = alone(quantized);
      losses.push_back(higher_is_better_ ? exact - loss : loss - exact);
    }
    std::vector<std::size_t> order(losses.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::reverse(order.begin(), order.end());
    const auto loses_more = [&](std::size_t a, std::size_t b) {
      const bool is_lost = std::isnan(losses[a]);
      return is_lost || std::isnan(losses[b]) ? is_lost && !std::isnan(losses[b])
                                              : losses[a] > losses[b];
    };
    std::stable_sort(order.begin(), order.end(), loses_more);
    order.resize((std::min)(order.size(), result_.best.subset_size));
    subset_.insert(order.begin(), order.end());
  }

  /// The chosen samples, in their order.
  [[nodiscard]] calibration_source chosen_samples() const {
    return [this, samples = validation_.samples(), at = std::size_t{0}]() mutable {
      while (auto item = samples()) {
        if (subset_.count(at++) != 0) {
          return item;
        }
      }
      at = 0;
      return std::optional<std::map<std::string, tensor>>();
    };
  }

  /// The options of a combination, and what is different in them.
  [[nodiscard]] std::pair<quantize_options, changed_parameters> options_of(
      const hyperparameters& step, const combination& c) const {
    std::pair<quantize_options, changed_parameters> made(result_.best, result_.changed);
    for (std::size_t p = 0; p < step.size(); ++p) {
      if (c[p] > 0) {
        const hyperparameter::setting& s = step[p].settings[c[p] - 1];
        s.apply(made.first);
        made.second.emplace_back(step[p].name, s.text);
      }
    }
    return made;
  }

  /// Measures a model, unless it was measured before.
  double measure(const hyperparameters& step, const combination& c,
                 std::map<combination, double>& scores) {
    const auto known = scores.find(c);
    if (known != scores.end()) {
      return known->second;
    }
    auto [options, changed] = options_of(step, c);
    options.on_parameters = {};
    const quantization q = quantize(float_model_, calibration_, options);
    const double metric = validate_(q.result, chosen_samples());
    result_.trials.push_back({std::move(changed), metric});
    return scores.emplace(c, score_of(metric)).first->second;
  }

  void run_step(const hyperparameters& step) {
    std::map<combination, double> scores;
    combination best(step.size(), 0);
    std::optional<double> best_score;
    for (std::size_t p = 0; p < step.size(); ++p) {
      combination top = best;
      std::optional<double> top_score;
      for (std::size_t v = 0; v <= step[p].settings.size(); ++v) {
        combination c = best;
        c[p] = v;
        const double score = measure(step, c, scores);
        if (!top_score || score > *top_score) {
          top_score = score;
          top = std::move(c);
        }
      }
      if (!best_score || *best_score <= *top_score) {
        best_score = top_score;
        best = std::move(top);
      }
    }
    std::tie(result_.best, result_.changed) = options_of(step, best);
  }

  const model& float_model_;
  const dataset& calibration_;
  const dataset& validation_;
  const validation_function& validate_;
  bool higher_is_better_;
  std::set<std::size_t> subset_;  // of the samples of the validation
  tuned_options result_;
};

}  // namespace detail

/// Searches for the parameters of quantize() with which a model keeps most of its metric.
///
/// `quantized` is the result of quantize() with `options`, which the search begins with. `validate`
/// is called with the float model and `quantized` for each single sample of `validation`, then with
/// each model that is tried and the `options.subset_size` samples on which these two differ most.
/// `options.on_parameters` is not called. Throws unsupported for modes of floats, and what
/// quantize() and `validate` throw.
[[nodiscard]] DETENT_GRAPH_DECL tuned_options
tune_hyperparams(const model& float_model, const model& quantized, const dataset& calibration,
                 const dataset& validation, const validation_function& validate,
                 const quantize_options& options = {}, bool higher_is_better = true);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL tuned_options tune_hyperparams(const model& float_model, const model& quantized,
                                                 const dataset& calibration,
                                                 const dataset& validation,
                                                 const validation_function& validate,
                                                 const quantize_options& options,
                                                 bool higher_is_better) {
  return detail::hyperparameter_tuner(float_model, calibration, validation, validate, options,
                                      higher_is_better)
      .run(quantized);
}
#endif

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_TUNE_HYPERPARAMS_HPP
