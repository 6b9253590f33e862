// SPDX-License-Identifier: BSD-3-Clause
#include "tune.hpp"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/tuning.hpp>

#include "calibration_data.hpp"
#include "evaluator.hpp"
#include "float_model.hpp"
#include "json_output.hpp"
#include "model_output.hpp"
#include "overwriting.hpp"
#include "progress.hpp"
#include "samples.hpp"
#include "signals.hpp"
#include "tuning_history.hpp"
#include "tuning_json.hpp"
#include "warnings.hpp"

namespace detent_cli {

namespace graph = detent::graph;
using detent::one_line;
using graph::inc::configuration;

namespace {

void require_names(const std::vector<std::string>& names, const std::vector<value_info>& values,
                   const char* what) {
  for (const std::string& name : names) {
    bool known = false;
    std::string all;
    for (const value_info& v : values) {
      known = known || v.name == name;
      all.append(all.empty() ? "'" : ", '").append(v.name).append("'");
    }
    require(known, error_kind::invalid_argument, "the model has no ", what, " '", name,
            "', which the configuration names; there are ", all);
  }
}

/// The command, step by step.
class tuning_run {
 public:
  tuning_run(const quantize_arguments& a, graph::model m)
      : a_(a), c_(*a.tuning), model_(std::move(m)) {
    require_data_apart(model_, a.model, a.output);
    graph::require_writable(a.output);
    require_names(c_.inputs, model_.inputs, "input");
    require_names(c_.outputs, model_.outputs, "output");
    for (const std::string& note : c_.notes) {
      std::fprintf(stderr, "detent: %s\n", one_line(note).c_str());
    }
    c_.tuning.quantizer.executor = a.executor_options();
    open_samples();
    open_evaluation();
  }

  int run() {
    const signal_guard interrupt(SIGINT);
    const signal_guard termination(SIGTERM);
    c_.tuning.cancelled = [] { return interrupted != 0; };
    std::optional<tuning_history> history;
    if (evaluator_) {
      history.emplace(history_path(), subject());
      if (!c_.resume.empty()) {
        c_.tuning.known = history->read(in_folder(c_.resume));
      }
    }
    c_.tuning.on_trial = [&](const graph::tuning_trial& t) {
      if (history) {
        keep(t, *history);
      }
      if (evaluator_ && !a_.json) {
        print(t);
      }
    };
    graph::model_metric metric;
    if (evaluator_) {
      metric = [this](const graph::model& m) {
        return &m == &model_ ? evaluator_->of_float_model() : (*evaluator_)(m);
      };
    }
    graph::tuning_result r = graph::tune(model_, source_, metric, c_.tuning);
    if (c_.form == graph::inc::framework::qlinear_operators) {
      graph::to_qoperator(r.best);
    }
    const graph::written_onnx written =
        graph::write_onnx(r.best, a_.output, {.external_data_from = a_.external_data_from});
    warn_of_nodes_in_float(r.not_run);
    report(r);
    if (!a_.json) {
      print_external_data(written);
    }
    return interrupted != 0 ? 128 + interrupted : 0;
  }

 private:
  /// Adds a trial to the history. A file that cannot be written is no reason to lose the search.
  void keep(const graph::tuning_trial& t, tuning_history& history) {
    try {
      history.add(t);
    } catch (const detent::error& e) {
      if (!warned_of_history_) {
        std::fprintf(stderr, "detent: warning: the trials are not kept: %s\n",
                     one_line(e.what()).c_str());
      }
      warned_of_history_ = true;
    }
  }

  void open_samples() {
    const bool from_file = a_.calibration.empty() && c_.calibration;
    if (from_file && !c_.calibration->dummy_shapes.empty()) {
      source_ = random_source(
          model_, *c_.calibration, c_.tuning.seed,
          {.most_runs = most_runs(), .most_bytes = a_.read_limits().max_tensor_bytes});
      return;
    }
    const std::vector<std::string>& texts = from_file ? c_.calibration->inputs : a_.calibration;
    if (!texts.empty()) {
      samples_.emplace(open(texts, "--calib "));
      source_ = source_of(*samples_, bar_.emplace("calibrating", samples_->size()));
    }
  }

  /// The number of runs that no trial needs more of.
  [[nodiscard]] std::size_t most_runs() const {
    std::size_t most = c_.tuning.ranking_samples;
    for (const std::size_t count : c_.tuning.space.samples) {
      most = (std::max)(most, count == 0 ? (std::numeric_limits<std::size_t>::max)() : count);
    }
    return most;
  }

  void open_evaluation() {
    const std::vector<std::string>& texts = !a_.validation.empty() ? a_.validation
                                            : c_.evaluation        ? c_.evaluation->inputs
                                                                   : none_;
    const std::string& labels = !a_.labels.empty() ? a_.labels
                                : c_.evaluation    ? c_.evaluation->labels
                                                   : no_labels_;
    if (c_.metrics.empty() && !labels.empty()) {
      c_.metrics.emplace_back();  // top-1
      c_.tuning.goal.higher_is_better = true;
    }
    untuned_ = c_.tuning.performance_only ? "performance_only is set"
               : texts.empty()            ? "the evaluation has no samples (--validation)"
               : c_.metrics.empty()       ? "the evaluation has neither a metric nor labels"
                                          : "";
    c_.tuning.performance_only = !untuned_.empty();
    if (untuned_.empty()) {
      evaluated_.emplace(open(texts, "--validation "));
      const std::size_t labelled = evaluated_->size();
      if (c_.evaluation_samples != 0) {
        evaluated_->limit(c_.evaluation_samples);
      }
      evaluator_.emplace(model_, c_.outputs.empty() ? std::string() : c_.outputs[0], *evaluated_,
                         labels, labelled, c_.metrics, c_.tuning.goal,
                         c_.tuning.quantizer.executor);
      c_.tuning.goal = evaluator_->goal();
    }
    if (!source_ && evaluated_ && needs_samples()) {
      std::fprintf(stderr,
                   "detent: calibration has no samples of its own: it takes those of the "
                   "evaluation\n");
      source_ = source_of(*evaluated_, bar_.emplace("calibrating", evaluated_->size()));
    }
    require(source_ || c_.tuning.quantizer.is_dynamic, error_kind::invalid_argument,
            "static quantization needs calibration samples: --calib X.npy, or "
            "quantization.calibration.dataloader in the configuration");
  }

  /// Whether a search has to run models on samples beside the evaluation: to calibrate, to correct
  /// biases, to rank nodes, or to measure time and memory.
  [[nodiscard]] bool needs_samples() const {
    const graph::tuning_options& t = c_.tuning;
    const bool corrects =
        std::any_of(t.space.corrections.begin(), t.space.corrections.end(),
                    [](graph::bias_correction c) { return c != graph::bias_correction::none; });
    return !t.quantizer.is_dynamic || t.timeout > 0.0 || corrects ||
           graph::ranks_by_samples(t.strategy);
  }

  [[nodiscard]] sample_set open(const std::vector<std::string>& texts, const char* option) const {
    graph::sample_options options;
    options.limits = a_.read_limits();
    options.option = option;
    return sample_set(model_, texts, options);
  }

  /// What trials must have in common to be compared: model, data, metrics, form, and the options
  /// of quantization that no trial chooses.
  [[nodiscard]] std::string subject() const {
    graph::fingerprint f;
    f.add(graph::read_file(a_.model));
    f.add(model_);  // constants may be in other files
    for (std::size_t i = 0; i < evaluated_->size(); ++i) {
      f.add(evaluated_->batch(i, 1));
    }
    if (source_) {
      while (const auto inputs = source_()) {
        f.add(*inputs);
      }
    }
    for (const graph::inc::metric& m : c_.metrics) {
      f.add(evaluator::name(m) + (m.compare_label ? " label " : " float ") +
            std::to_string(m.map_points) + " " + std::to_string(m.weight) + " " +
            std::to_string(int{m.is_higher_better()}));
    }
    f.add(c_.outputs.empty() ? std::string() : c_.outputs[0]);
    f.add(evaluator_->combination());
    const std::string& labels = !a_.labels.empty() ? a_.labels
                                : c_.evaluation    ? c_.evaluation->labels
                                                   : no_labels_;
    f.add(labels.empty() ? std::string() : graph::read_file(labels));
    add_options(f);
    return f.text();
  }
  void add_options(graph::fingerprint& f) const {
    const auto number = [&f](auto value) { f.add(std::to_string(static_cast<int>(value))); };
    // Members without a value have a number that no value has.
    const auto optional = [&number](const auto& value) {
      number(value ? static_cast<int>(*value) : -1);
    };
    number(c_.form);
    const graph::setting_quantizer_options& q = c_.tuning.quantizer;
    number(q.is_dynamic);
    number(q.weight_type);
    number(q.activations.type);
    number(q.activations.bits);
    number(q.weights.bits);
    number(q.weights.asymmetric);
    number(q.weights.reduce_range);
    number(q.scope.ignored.first_layer);
    number(q.scope.ignored.last_layer);
    for (const auto* rules : {&q.scope.operators.types, &q.scope.operators.names}) {
      number(rules->size());
      for (const graph::operator_rule& rule : *rules) {
        const graph::operator_settings& s = rule.settings;
        f.add(rule.pattern);
        optional(s.quantize);
        optional(s.per_channel);
        optional(s.weight_bits);
        optional(s.weight_scales);
        f.add(s.method.value_or(""));
      }
    }
  }

  [[nodiscard]] static std::string in_folder(const std::string& path) {
    return std::filesystem::is_directory(path) ? path + "/history.json" : path;
  }
  [[nodiscard]] std::string history_path() const {
    if (c_.workspace.empty()) {
      return a_.output + ".history.json";
    }
    std::error_code failed;
    std::filesystem::create_directories(c_.workspace, failed);
    require(!failed, error_kind::invalid_argument, "cannot make the folder ", c_.workspace, ": ",
            failed.message());
    return c_.workspace + "/history.json";
  }

  void print(const graph::tuning_trial& t) {
    ++printed_;
    std::string setting = t.setting.per_channel ? "per-channel" : "per-tensor";
    if (!c_.tuning.quantizer.is_dynamic) {
      setting += ", " + t.setting.method + " of " +
                 (t.setting.samples == 0 || (samples_ && t.setting.samples >= samples_->size())
                      ? "all"
                      : std::to_string(t.setting.samples)) +
                 " samples";
    }
    if (t.setting.weights == graph::weight_scale::exact_mse) {
      setting += ", exact-mse";
    }
    if (t.setting.correction != graph::bias_correction::none) {
      setting += ", bias correction";
    }
    if (t.setting.symmetric_activations && !c_.tuning.quantizer.is_dynamic) {
      setting += ", symmetric activations";
    }
    if (!t.setting.in_float.empty()) {
      setting += ", " + std::to_string(t.setting.in_float.size()) + " in float";
    }
    std::printf("%4zu  %12.6g  %s%s  %s\n", printed_, t.metric, t.meets_goal ? "met" : "   ",
                t.is_best ? " *" : "  ", setting.c_str());
    std::fflush(stdout);
  }

  void report(const graph::tuning_result& r) const {
    const double target = c_.tuning.goal.target(r.float_metric);
    if (evaluator_ && !r.goal_met) {
      std::fprintf(stderr, "detent: warning: the goal of %.6g is missed by %.6g\n", target,
                   r.missed_by);
    }
    if (a_.json) {
      json_object trials = json_object::array();
      for (const graph::tuning_trial& t : r.trials) {
        trials.push_back(to_json(t));
      }
      print_json({{"model", a_.model},
                  {"output", a_.output},
                  {"approach", c_.tuning.quantizer.is_dynamic ? "dynamic" : "static"},
                  {"strategy", graph::name(c_.tuning.strategy)},
                  {"tuned", evaluator_.has_value()},
                  {"float_metric", evaluator_ ? json_object(r.float_metric) : json_object(nullptr)},
                  {"target", evaluator_ ? json_object(target) : json_object(nullptr)},
                  {"goal_met", evaluator_ ? json_object(r.goal_met) : json_object(nullptr)},
                  {"missed_by", r.missed_by},
                  {"end", graph::name(r.end)},
                  {"not_run", r.not_run},
                  {"best", to_json(r.best_trial)},
                  {"trials", trials}});
      return;
    }
    if (!evaluator_) {
      std::printf("%s: %s, so nothing was tuned\n", one_line(a_.output).c_str(), untuned_.c_str());
      return;
    }
    std::printf("%s: %.6g, in float %.6g, goal %.6g %s; %zu trials, ended by %s\n",
                one_line(a_.output).c_str(), r.best_trial.metric, r.float_metric, target,
                r.goal_met ? "met" : "missed", r.trials.size(), graph::name(r.end));
  }

  const quantize_arguments& a_;
  configuration c_;
  graph::model model_;
  std::optional<sample_set> samples_;
  std::optional<sample_set> evaluated_;
  std::optional<evaluator> evaluator_;
  std::optional<progress> bar_;
  graph::calibration_source source_;
  std::size_t printed_ = 0;
  bool warned_of_history_ = false;
  std::string untuned_;  // why there is no evaluation; empty if there is one
  const std::vector<std::string> none_;
  const std::string no_labels_;
};

}  // namespace

int tune(const quantize_arguments& a) {
  graph::model m = read_float_model(a.model, a.read_limits());
  return graph::with_file_name(a.model, [&] { return tuning_run(a, std::move(m)).run(); });
}

}  // namespace detent_cli
