// SPDX-License-Identifier: BSD-3-Clause
// NNCF's quantize_with_accuracy_control: nncf::quantize(), then groups of quantizers are taken away
// until the quantized model's metric is close enough to that of the float model.
//
//   groups   quantizers that serve the same operators are taken away together, with the corrected
//            biases of these operators
//   ranking  the effect of taking each group away alone
//   search   the groups are taken away one after the other, the most harmful first. A step that
//            makes the metric worse is accepted only if it is the first one after a ranking; any
//            other such step is taken back, and the groups that are left are ranked anew. The
//            search ends at the goal, after `max_iterations`, or when no group is left
//
// With `tune_hyperparams`, a model that misses the goal is first quantized with the parameters that
// tune_hyperparams.hpp finds, and the search goes on from the better one of both models.
//
// Source: NNCF 3.4, QuantizationAccuracyRestorer and Ranker. One thing differs: after the search
// NNCF returns the last model, here the result is the best one.
#ifndef DETENT_GRAPH_NNCF_QUANTIZE_WITH_ACCURACY_CONTROL_HPP
#define DETENT_GRAPH_NNCF_QUANTIZE_WITH_ACCURACY_CONTROL_HPP

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/quantize.hpp>
#include <detent/graph/nncf/tune_hyperparams.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// The options of accuracy control, with NNCF's defaults.
struct accuracy_control_options {
  /// The goal: by default an absolute drop of the metric of at most 0.01.
  accuracy_goal goal = {};
  /// Steps of the search, at most.
  std::size_t max_iterations = (std::numeric_limits<std::size_t>::max)();
  /// By what groups are ranked. Ranking by the metric computes it once for each group.
  layer_ranking ranking = layer_ranking::output_error;
  /// Number of samples for layer_ranking::output_error: those on which the float and the quantized
  /// model differ most. At least 1.
  std::size_t ranking_subset_size = 300;
  /// Whether parameters of quantization are searched for before any quantizer is taken away.
  bool tune_hyperparams = false;
  /// Called with each trial, in the order of time; not with those of the search for parameters. A
  /// trial that is taken back is shown with accepted = true; accuracy_control_result::trials has
  /// the final value.
  std::function<void(const accuracy_trial&)> on_trial = {};
  executor_options executor = {};  ///< Options of all executors that run models here.
};

/// The result of quantize_with_accuracy_control().
struct accuracy_control_result {
  quantization best;                       ///< The best quantization that was found.
  double float_metric = 0.0;               ///< Metric of the float model.
  double metric = 0.0;                     ///< Metric of `best`.
  bool goal_met = false;                   ///< Whether `best` meets the goal.
  std::vector<std::string> left_in_float;  ///< Labels of the operators that were left in float.
  std::vector<accuracy_trial> trials;      ///< All trials, in the order of time.
  /// What the search for parameters has changed. `best` has these parameters only if the second
  /// trial is accepted; the first two trials are then those of the models before and after it.
  changed_parameters tuned;
  std::vector<tuning_trial> tuning_trials;  ///< The trials of the search for parameters.
};

/// Quantizers that are taken away together, and the operators that they serve, by their indices in
/// quantization::quantizers and in the nodes of quantization::float_model.
struct quantizer_group {
  std::set<std::size_t> quantizers;  ///< The quantizers.
  std::set<std::size_t> nodes;       ///< The nodes.
};

/// The groups of quantizers that serve the same operators, in the order of their first quantizers.
[[nodiscard]] inline std::vector<quantizer_group> quantizer_groups(const quantization& q) {
  std::vector<quantizer_group> groups;
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    quantizer_group next{{k}, q.quantizers[k].serves};
    std::erase_if(groups, [&](const quantizer_group& g) {
      const bool shares = std::any_of(g.nodes.begin(), g.nodes.end(), [&](std::size_t node) {
        return next.nodes.count(node) != 0;
      });
      if (shares) {
        next.quantizers.insert(g.quantizers.begin(), g.quantizers.end());
        next.nodes.insert(g.nodes.begin(), g.nodes.end());
      }
      return shares;
    });
    groups.push_back(std::move(next));
  }
  std::sort(groups.begin(), groups.end(), [](const quantizer_group& a, const quantizer_group& b) {
    return *a.quantizers.begin() < *b.quantizers.begin();
  });
  return groups;
}

/// A copy of a quantization without some of its quantizers, given by their indices. Layers whose
/// weights are float again get back the biases that they had before correction. Throws
/// invalid_argument for an index that is too large.
[[nodiscard]] inline quantization without_quantizers(const quantization& q,
                                                     const std::set<std::size_t>& removed) {
  require(removed.empty() || *removed.rbegin() < q.quantizers.size(), error_kind::invalid_argument,
          "without_quantizers: there are ", q.quantizers.size(), " quantizers");
  quantization rest = q;
  rest.quantizers.clear();
  rest.parameters.clear();
  std::set<std::size_t> layers;
  const links l(rest.float_model);
  for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
    if (removed.count(k) == 0) {
      rest.quantizers.push_back(q.quantizers[k]);
      rest.parameters.push_back(q.parameters[k]);
    } else if (q.quantizers[k].weights_of) {
      const std::span<const std::size_t> users = l.consumers(q.quantizers[k].value);
      layers.insert(users.begin(), users.end());  // several layers may have the same weights
    }
  }
  std::erase_if(rest.biases_before, [&](const auto& entry) {
    node& n = rest.float_model.nodes[entry.first.node];
    bool restores = layers.count(entry.first.node) != 0;
    for (const std::string& in : n.inputs) {  // the bias of a MatMul is that of an Add behind it
      const std::size_t maker = l.producer(in);
      restores = restores || (maker != links::none && n.is("Add") && layers.count(maker) != 0);
    }
    if (restores) {
      n.inputs[entry.first.input] = entry.second;
    }
    return restores;
  });
  rest.result =
      write_quantized(rest.float_model, rest.quantizers, rest.parameters, rest.quantize_outputs);
  return rest;
}

namespace detail {

inline void check_accuracy_control(const validation_function& validate,
                                   const accuracy_control_options& o) {
  require_goal(o.goal);
  require(o.ranking_subset_size > 0, error_kind::invalid_argument,
          "accuracy control: ranking_subset_size 0");
  require(static_cast<bool>(validate), error_kind::invalid_argument,
          "accuracy control without a metric");
}

/// The search for the quantizers to take away.
class accuracy_restorer {
 public:
  accuracy_restorer(const model& float_model, quantization all, const dataset& validation,
                    const validation_function& validate, const accuracy_control_options& options)
      : float_model_(float_model),
        all_(std::move(all)),
        validation_(validation),
        validate_(validate),
        options_(options) {}

  /// `tune` searches for parameters, given the quantization so far.
  [[nodiscard]] accuracy_control_result run(
      const std::function<tuned_options(const model&)>& tune,
      const std::function<quantization(const quantize_options&)>& quantize_again) {
    result_.float_metric = reference_metric(validate_(float_model_, validation_.samples()));
    double first = measure({}, trial_kind::all_quantized);
    if (!result_.goal_met && options_.tune_hyperparams) {
      tuned_options found = tune(all_.result);
      result_.tuned = std::move(found.changed);
      result_.tuning_trials = std::move(found.trials);
      quantization before = std::exchange(all_, quantize_again(found.best));
      const double metric = measure({}, trial_kind::all_quantized);
      if (options_.goal.is_better(metric, first)) {
        first = metric;
      } else {
        result_.trials.back().accepted = false;
        all_ = std::move(before);
      }
    }
    if (!result_.goal_met) {
      search(first);
    }
    return std::move(result_);
  }

 private:
  using removed_set = std::set<std::size_t>;  // of groups

  [[nodiscard]] removed_set quantizers_of(const removed_set& removed) const {
    removed_set quantizers;
    for (const std::size_t g : removed) {
      quantizers.insert(groups_[g].quantizers.begin(), groups_[g].quantizers.end());
    }
    return quantizers;
  }
  [[nodiscard]] std::vector<std::string> labels_of(const removed_set& removed) const {
    std::vector<std::string> labels;
    for (const std::size_t g : removed) {
      for (const std::size_t i : groups_[g].nodes) {
        labels.push_back(all_.float_model.nodes[i].label());
      }
    }
    return labels;
  }

  /// The metric of the model without some groups; it becomes the result if it is the best one.
  double measure(const removed_set& removed, trial_kind kind) {
    quantization q = without_quantizers(all_, quantizers_of(removed));
    const double metric = validate_(q.result, validation_.samples());
    const bool meets = options_.goal.is_met(result_.float_metric, metric);
    const bool is_first = result_.trials.empty();
    if (kind != trial_kind::ranking &&
        (is_first || options_.goal.is_better(metric, result_.metric))) {
      result_.best = std::move(q);
      result_.metric = metric;
      result_.goal_met = meets;
      result_.left_in_float = labels_of(removed);
    }
    result_.trials.push_back(
        {kind, labels_of(removed), metric, meets, kind != trial_kind::ranking});
    if (options_.on_trial) {
      options_.on_trial(result_.trials.back());
    }
    return metric;
  }

  /// Ranks the groups that are left, beside those that were removed: the most harmful one comes
  /// last.
  [[nodiscard]] std::vector<std::size_t> ranked(const std::vector<std::size_t>& left,
                                                const removed_set& removed,
                                                const output_judge* judge) {
    std::vector<std::pair<double, std::size_t>> scores;
    for (const std::size_t g : left) {
      removed_set more = removed;
      more.insert(g);
      double score = 0.0;
      if (judge != nullptr) {
        score = -judge->noise_to_signal(without_quantizers(all_, quantizers_of(more)).result);
      } else {
        const double metric = measure(more, trial_kind::ranking);
        score = options_.goal.higher_is_better ? metric : -metric;
      }
      scores.emplace_back(score, g);
    }
    std::stable_sort(scores.begin(), scores.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::size_t> order;
    for (const auto& [score, g] : scores) {
      order.push_back(g);
    }
    return order;
  }

  void search(double previous) {
    groups_ = quantizer_groups(all_);
    std::optional<output_judge> judge;
    if (options_.ranking == layer_ranking::output_error) {
      const calibration_source some =
          most_different(float_model_, all_.result, validation_.samples(),
                         options_.ranking_subset_size, options_.executor);
      judge.emplace(float_model_, some, options_.ranking_subset_size, true, options_.executor);
    }
    const output_judge* by = judge ? &*judge : nullptr;
    removed_set removed;
    std::vector<std::size_t> left(groups_.size());
    for (std::size_t g = 0; g < left.size(); ++g) {
      left[g] = g;
    }
    left = ranked(left, removed, by);
    bool may_get_worse = true;
    for (std::size_t i = 0; i < options_.max_iterations && !left.empty(); ++i) {
      const std::size_t group = left.back();
      left.pop_back();
      removed.insert(group);
      const double metric = measure(removed, trial_kind::revert);
      if (result_.goal_met || left.empty()) {
        return;
      }
      const bool is_worse = options_.goal.is_better(previous, metric);
      previous = metric;
      if (!is_worse || may_get_worse) {
        may_get_worse = false;
        continue;
      }
      result_.trials.back().accepted = false;
      removed.erase(group);
      left.push_back(group);
      may_get_worse = true;
      left = ranked(left, removed, by);
    }
  }

  const model& float_model_;
  quantization all_;
  const dataset& validation_;
  const validation_function& validate_;
  const accuracy_control_options& options_;
  std::vector<quantizer_group> groups_;
  accuracy_control_result result_;
};

}  // namespace detail

/// Quantizes a float model with nncf::quantize() on the samples of `calibration`, then takes away
/// groups of quantizers, the most harmful ones first, until the metric meets the goal of `control`.
///
/// `validate` is called with the float model and with quantized models, each time with all samples
/// of `validation`, but by tune_hyperparams() with some of them. The ranking by output errors takes
/// its samples from `validation`, too. The result says whether the goal is met; if not, it is the
/// model with the best metric. Throws what nncf::quantize(), tune_hyperparams() and `validate`
/// throw, and invalid_argument for a ranking_subset_size of 0, for an empty `validate`, for a
/// drop that is not finite, or relative and not between -1 and 1, and for a metric of the float
/// model that is NaN.
[[nodiscard]] DETENT_GRAPH_DECL accuracy_control_result quantize_with_accuracy_control(
    const model& float_model, const dataset& calibration, const dataset& validation,
    const validation_function& validate, const quantize_options& options = {},
    const accuracy_control_options& control = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL accuracy_control_result quantize_with_accuracy_control(
    const model& float_model, const dataset& calibration, const dataset& validation,
    const validation_function& validate, const quantize_options& options,
    const accuracy_control_options& control) {
  detail::check_accuracy_control(validate, control);
  return detail::accuracy_restorer(float_model, quantize(float_model, calibration, options),
                                   validation, validate, control)
      .run(
          [&](const model& quantized) {
            return tune_hyperparams(float_model, quantized, calibration, validation, validate,
                                    options, control.goal.higher_is_better);
          },
          [&](const quantize_options& o) { return quantize(float_model, calibration, o); });
}
#endif

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZE_WITH_ACCURACY_CONTROL_HPP
