// SPDX-License-Identifier: BSD-3-Clause
#include "evaluator.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <detent/error.hpp>
#include <detent/graph/quantize/metrics.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

#include "comparison.hpp"

namespace detent_cli {

namespace graph = detent::graph;
using graph::drop_type;
using graph::inc::metric;
using graph::inc::metric_kind;

namespace {

/// The model whose first output is `output`, or that of `m` if this is empty: all of `m` if all of
/// it can be run, else what that output depends on.
model evaluated_part(model m, const std::string& output) {
  const auto at = std::find_if(m.outputs.begin(), m.outputs.end(),
                               [&](const value_info& v) { return v.name == output; });
  if (at != m.outputs.end()) {
    std::rotate(m.outputs.begin(), at, at + 1);
  }
  if (m.outputs.empty() || graph::unsupported_nodes(m).empty()) {
    return m;
  }
  m.outputs.resize(1);
  graph::remove_unused(m);
  const std::vector<std::string> lacking = graph::unsupported_nodes(m);
  require(lacking.empty(), error_kind::unsupported, "the evaluation needs output '",
          m.outputs[0].name, "', and there is no operator for ",
          lacking.empty() ? std::string() : lacking[0],
          ", which it depends on; without an evaluation, everything else is quantized");
  return m;
}

bool compares_values(const metric& m) {
  return m.kind == metric_kind::mse || m.kind == metric_kind::rmse || m.kind == metric_kind::mae;
}

}  // namespace

evaluator::evaluator(const model& float_model, const std::string& output, const sample_set& samples,
                     const std::string& labels, std::size_t labelled, std::vector<metric> metrics,
                     const graph::accuracy_goal& goal, graph::executor_options options)
    : samples_(samples),
      output_(output),
      metrics_(std::move(metrics)),
      options_(std::move(options)),
      goal_(goal),
      needs_labels_(
          std::any_of(metrics_.begin(), metrics_.end(),
                      [](const metric& m) { return m.compare_label || !compares_values(m); })),
      counts_drops_(metrics_.size() > 1 &&
                    std::all_of(metrics_.begin(), metrics_.end(),
                                [](const metric& m) { return m.weight == 0.0; })),
      is_relative_(goal.drop == drop_type::relative) {
  goal_.higher_is_better = goal.higher_is_better || metrics_.size() > 1;
  if (counts_drops_) {
    goal_.drop = drop_type::absolute;
  }
  const outputs reference = run(float_model);
  float_outputs_ = reference.values;
  const std::size_t columns = reference.values.size() / reference.rows;
  const auto used = static_cast<std::ptrdiff_t>(reference.values.size());
  for (const metric& m : metrics_) {
    if (compares_values(m) && !m.compare_label) {
      continue;
    }
    require(m.kind != metric_kind::top_k || m.k <= columns, error_kind::invalid_argument, "metric ",
            name(m), " counts more scores than the ", columns, " that the model has for a sample");
    require(!labels.empty(), error_kind::invalid_argument, "metric ", name(m),
            " needs labels; write labels: Y.npy beside the inputs of the dataset");
    if (compares_values(m)) {
      const tensor t = read_npy(labels);
      require(t.type() == graph::element_type::f32 && t.count() == labelled * columns,
              error_kind::shape_mismatch, labels, " holds ", graph::name(t.type()), " ",
              to_string(t.dims()), ", metric ", name(m), " needs float32 for ", labelled, " x ",
              columns, " outputs");
      expected_.assign(t.data<float>().begin(), t.data<float>().begin() + used);
    } else if (m.kind == metric_kind::mean_average_precision && read_npy(labels).rank() == 2) {
      const tensor t = read_npy(labels);
      require(graph::element_size(t.type()) == 1 && t.count() == labelled * columns,
              error_kind::shape_mismatch, labels, " holds ", graph::name(t.type()), " ",
              to_string(t.dims()), ", metric ", name(m), " needs bool or uint8 for ", labelled,
              " x ", columns, " scores");
      relevant_.resize(reference.values.size());
      std::transform(t.raw(), t.raw() + used, relevant_.begin(),
                     [](std::byte b) { return static_cast<std::uint8_t>(b); });
    } else {
      classes_ = read_labels(labels, labelled);
      // Of the samples that are evaluated: run() has seen to it that each has one row.
      classes_.resize((std::min)(reference.rows, classes_.size()));
    }
  }
  for (const metric& m : metrics_) {
    float_metrics_.push_back(compute(m, reference));
    require(!counts_drops_ || !is_relative_ || float_metrics_.back() != 0.0,
            error_kind::invalid_argument, "metric ", name(m),
            " of the float model is 0, of which no drop is a share; write "
            "accuracy_criterion: {absolute: ...}, or weights for the metrics");
  }
}

std::string evaluator::name(const metric& m) {
  switch (m.kind) {
    case metric_kind::top_k:
      return "top-" + std::to_string(m.k);
    case metric_kind::f1:
      return "F1";
    case metric_kind::mean_average_precision:
      return "mAP";
    case metric_kind::roc:
      return "ROC";
    case metric_kind::mse:
      return "MSE";
    case metric_kind::rmse:
      return "RMSE";
    case metric_kind::mae:
      return "MAE";
  }
  return "metric";
}

evaluator::outputs evaluator::run(const model& m) const {
  const model evaluated = evaluated_part(m, output_);
  graph::executor runner(graph::for_execution(evaluated), options_);
  const std::size_t batch = batch_size(samples_, 0);
  outputs all;
  std::size_t columns = 0;
  for (std::size_t at = 0; at < samples_.size(); at += batch) {
    const std::size_t real = (std::min)(batch, samples_.size() - at);
    const score_rows scores(runner.run(samples_.batch(at, batch)), evaluated.outputs, samples_,
                            batch);
    if (needs_labels_) {
      scores.require_rows(batch);
      columns = at == 0 ? scores.columns : columns;
      require(scores.columns == columns, error_kind::unsupported, "output '",
              evaluated.outputs[0].name, "' has ", columns, " scores for the first sample and ",
              scores.columns, " for sample ", at, "; metrics with labels need as many for each");
    }
    const std::size_t rows = scores.rows == batch ? real : scores.rows;
    all.values.insert(all.values.end(), scores.data, scores.data + rows * scores.columns);
    all.rows += rows;
  }
  return all;
}

double evaluator::compute(const metric& m, const outputs& o) const {
  const graph::score_matrix scores{o.values, o.rows, o.values.size() / o.rows};
  const std::vector<float>& expected = m.compare_label ? expected_ : float_outputs_;
  switch (m.kind) {
    case metric_kind::top_k:
      return graph::top_k_accuracy(scores, classes_, m.k);
    case metric_kind::f1:
      return graph::f1_score(scores, classes_);
    case metric_kind::roc:
      return graph::roc_area(scores, classes_);
    case metric_kind::mean_average_precision: {
      if (!relevant_.empty()) {
        return graph::mean_average_precision(scores, relevant_, m.map_points);
      }
      std::vector<std::uint8_t> relevant(o.values.size());
      for (std::size_t i = 0; i < classes_.size(); ++i) {
        require(classes_[i] >= 0 && static_cast<std::size_t>(classes_[i]) < scores.columns,
                error_kind::invalid_argument, "label ", i, " is ", classes_[i], ", and there are ",
                scores.columns, " classes");
        relevant[i * scores.columns + static_cast<std::size_t>(classes_[i])] = 1;
      }
      return graph::mean_average_precision(scores, relevant, m.map_points);
    }
    case metric_kind::mse:
      return graph::mean_squared_error(o.values, expected);
    case metric_kind::rmse:
      return std::sqrt(graph::mean_squared_error(o.values, expected));
    case metric_kind::mae:
      return graph::mean_absolute_error(o.values, expected);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::vector<double> evaluator::metrics(const model& m) const {
  const outputs o = run(m);
  std::vector<double> all;
  for (const metric& one : metrics_) {
    all.push_back(compute(one, o));
  }
  return all;
}

double evaluator::combined(const std::vector<double>& values) const {
  if (values.size() == 1) {
    return values[0];
  }
  double sum = 0.0;
  double worst = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double sign = metrics_[i].is_higher_better() ? 1.0 : -1.0;
    sum += sign * metrics_[i].weight * values[i];
    const double scale = is_relative_ ? std::fabs(float_metrics_[i]) : 1.0;
    const double drop = sign * (float_metrics_[i] - values[i]);
    const double share = drop == 0.0 ? 0.0 : drop / scale;
    // NaN stays: no drop is worse than a metric that is no number.
    worst = i == 0 || std::isnan(share) || share > worst ? share : worst;
  }
  return counts_drops_ ? 0.0 - worst : sum;  // not -0
}

}  // namespace detent_cli
