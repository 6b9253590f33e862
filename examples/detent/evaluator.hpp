// SPDX-License-Identifier: BSD-3-Clause
// Measures a model by the metrics of a Neural Compressor file.
#ifndef DETENT_CLI_EVALUATOR_HPP
#define DETENT_CLI_EVALUATOR_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/run/executor_options.hpp>

#include "samples.hpp"

namespace detent_cli {

/// Runs models on the samples of an evaluation. Metrics are computed from one output.
class evaluator {
 public:
  /// Runs the float model, or what `output` depends on if it has operators that the executor lacks.
  /// `output` is the name of an output, or empty for the first one. Throws unsupported, naming such
  /// an operator, if that output cannot be computed. `labels` is a .npy file with labels for the
  /// first `labelled` samples of the files, or empty if no metric needs labels; `samples` may hold
  /// only the first ones of these. `goal` is for each of the metrics, of which there is at least
  /// one. Throws detent::error, naming the file and the metric, if they do not fit together; if a
  /// metric needs labels and the output does not have one row for each sample, all of the same
  /// size; if a top-k counts more scores than a row has; if drops of several metrics are relative
  /// and a metric of the float model is 0.
  evaluator(const model& float_model, const std::string& output, const sample_set& samples,
            const std::string& labels, std::size_t labelled,
            std::vector<detent::graph::inc::metric> metrics,
            const detent::graph::accuracy_goal& goal, detent::graph::executor_options options);

  /// One number for all metrics, to be compared with goal(): the metric itself if there is one; the
  /// weighted sum if there are weights, where metrics of which less is better count negative; else
  /// the largest drop of a metric against the float model, negated.
  double operator()(const model& m) const { return combined(metrics(m)); }

  /// The same number for the float model, which the constructor has run.
  [[nodiscard]] double of_float_model() const { return combined(float_metrics_); }

  /// The goal for that number, made from the goal for the metrics.
  [[nodiscard]] const detent::graph::accuracy_goal& goal() const noexcept { return goal_; }

  /// How that number is made from the metrics, other than by their weights: numbers that are made
  /// in different ways cannot be compared.
  [[nodiscard]] const char* combination() const noexcept {
    return !counts_drops_ ? "sum" : is_relative_ ? "largest relative drop" : "largest drop";
  }

  /// All metrics of a model, in their order.
  [[nodiscard]] std::vector<double> metrics(const model& m) const;

  /// The name of a metric, such as "top-1".
  [[nodiscard]] static std::string name(const detent::graph::inc::metric& m);

 private:
  struct outputs {
    std::vector<float> values;
    std::size_t rows = 0;
  };
  [[nodiscard]] outputs run(const model& m) const;
  [[nodiscard]] double compute(const detent::graph::inc::metric& m, const outputs& o) const;
  [[nodiscard]] double combined(const std::vector<double>& values) const;

  const sample_set& samples_;
  std::string output_;  // empty: the first one
  std::vector<detent::graph::inc::metric> metrics_;
  detent::graph::executor_options options_;
  std::vector<std::int64_t> classes_;   // labels that are one class for each sample
  std::vector<std::uint8_t> relevant_;  // labels that are 0 or 1 for each sample and class
  std::vector<float> expected_;         // labels that are values
  std::vector<float> float_outputs_;    // what the float model computes
  std::vector<double> float_metrics_;
  detent::graph::accuracy_goal goal_;
  bool needs_labels_ = false;
  bool counts_drops_ = false;  // several metrics without weights
  bool is_relative_ = true;    // drops are shares of the metric of the float model
};

}  // namespace detent_cli

#endif  // DETENT_CLI_EVALUATOR_HPP
