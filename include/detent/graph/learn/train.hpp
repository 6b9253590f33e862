// SPDX-License-Identifier: BSD-3-Clause
// Trains a float model over epochs, and keeps the best one.
#ifndef DETENT_GRAPH_LEARN_TRAIN_HPP
#define DETENT_GRAPH_LEARN_TRAIN_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/loss.hpp>
#include <detent/graph/learn/trained_constant.hpp>
#include <detent/graph/learn/trainer.hpp>
#include <detent/graph/learn/training_data.hpp>
#include <detent/graph/learn/training_options.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How well a model does on labelled samples.
struct training_score {
  double loss = 0.0;  ///< Mean loss by labels, of the samples' batches weighted by their sizes.
  /// Share of the rows whose largest logit is their label; NaN if the labels are no classes.
  double accuracy = std::numeric_limits<double>::quiet_NaN();
};

/// What train() returns.
struct training_result {
  model trained;                     ///< The model of the best epoch.
  std::vector<epoch_report> epochs;  ///< All epochs, in their order.
  std::size_t best_epoch = 0;        ///< The epoch that `trained` is from, counted from 0.
};

namespace detail {

inline void require_valid(const training_options& o) {
  require(o.epochs > 0, error_kind::invalid_argument, "training: 0 epochs");
  require(o.batch_size > 0, error_kind::invalid_argument, "training: batches of 0 samples");
  for (const auto& [name, value] : {std::pair("bias_rate", o.bias_rate),
                                    {"scale_rate", o.scale_rate},
                                    {"temperature", o.loss.temperature}}) {
    require(std::isfinite(value) && value > 0.0, error_kind::invalid_argument, "training: ", name,
            " is ", value, ", not positive and finite");
  }
  require(o.loss.distillation >= 0.0 && o.loss.distillation <= 1.0, error_kind::invalid_argument,
          "training: a weight of distillation of ", o.loss.distillation, " is not in [0, 1]");
  require(std::isfinite(o.loss.hidden_weight) && o.loss.hidden_weight >= 0.0,
          error_kind::invalid_argument, "training: hidden_weight is ", o.loss.hidden_weight);
}

/// The index of the output that has labels.
[[nodiscard]] inline std::size_t labelled_output(const model& m, const training_loss& loss) {
  require(!m.outputs.empty(), error_kind::invalid_argument, "training: the model has no outputs");
  if (loss.output.empty()) {
    return 0;
  }
  for (std::size_t i = 0; i < m.outputs.size(); ++i) {
    if (m.outputs[i].name == loss.output) {
      return i;
    }
  }
  detent::raise(error_kind::invalid_argument, "training: the model has no output '", loss.output,
                "'");
}

/// The logits of an output: what goes into the Softmax or LogSoftmax along the last axis that makes
/// it, also where Identity nodes stand behind, or else the output itself. Cross entropy takes
/// logits, and both give the same order of classes.
[[nodiscard]] inline std::string logits_of(const model& m, const std::string& output) {
  std::string made = output;
  for (auto n = m.nodes.rbegin(); n != m.nodes.rend(); ++n) {
    if (n->outputs.empty() || n->outputs[0] != made) {
      continue;
    }
    if ((n->is("Softmax") || n->is("LogSoftmax")) && n->get_int("axis", -1) == -1) {
      return n->inputs[0];
    }
    if (!n->is("Identity")) {
      return output;
    }
    made = n->inputs[0];
  }
  return output;
}

/// The model with the logits in place of an output.
[[nodiscard]] inline model with_logits(model m, std::size_t output) {
  m.outputs[output].name = logits_of(m, m.outputs[output].name);
  return m;
}

/// Runs the epochs of a trainer. `measure` gives the score of the trainer's network as it is, and
/// `keep` is called behind the epochs that are the best so far.
[[nodiscard]] inline std::vector<epoch_report> run_epochs(
    trainer& t, const training_data& data, const training_options& o,
    const std::function<training_score()>& measure, const std::function<void()>& keep) {
  std::vector<epoch_report> reports;
  const std::size_t batches = (data.count + o.batch_size - 1) / o.batch_size;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t epoch = 0; epoch < o.epochs; ++epoch) {
    const training_data samples =
        o.augmentation ? augmented(data, *o.augmentation, o.seed, epoch) : data;
    const std::vector<std::size_t> order = shuffled(data.count, o.seed, epoch);
    epoch_report r;
    r.epoch = epoch;
    for (std::size_t first = 0; first < order.size(); first += o.batch_size) {
      const std::size_t count = (std::min)(o.batch_size, order.size() - first);
      r.learning_rate = t.learning_rate();
      const double loss =
          t.step(samples.batch(std::span<const std::size_t>(order).subspan(first, count)));
      r.loss += detent::detail::rounded_product(
          loss, static_cast<double>(count) / static_cast<double>(order.size()));
      if (o.on_step) {
        o.on_step(t.steps(), o.epochs * batches, loss);
      }
    }
    const training_score score = measure();
    r.validation_loss = score.loss;
    r.accuracy = score.accuracy;
    // A higher accuracy is better, then a lower loss. The loss divided by itself plus one is below
    // one, so that it decides among equal accuracies only.
    const double loss_part = std::isfinite(score.loss) ? score.loss / (score.loss + 1.0) : 1.0;
    const double rank =
        std::isnan(score.accuracy) ? score.loss : -score.accuracy * 1e12 + loss_part;
    r.is_best = reports.empty() || rank < best;
    if (r.is_best) {
      best = rank;
      keep();
    }
    reports.push_back(r);
    if (o.on_epoch) {
      o.on_epoch(r);
    }
  }
  return reports;
}

}  // namespace detail

/// Runs a model on all samples, in batches of `batch_size`, and compares the output of index
/// `output` with the labels as `loss` says (without distillation and hidden values; without label
/// smoothing). Throws what the executor and the losses throw.
[[nodiscard]] inline training_score evaluate(executor& run, const training_data& data,
                                             const training_loss& loss, std::size_t output,
                                             std::size_t batch_size) {
  training_score score;
  std::size_t correct = 0;
  std::size_t rows = 0;
  training_loss by_labels = loss;
  by_labels.label_smoothing = 0.0;
  std::vector<std::size_t> indices(data.count);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  for (std::size_t first = 0; first < data.count; first += batch_size) {
    const std::size_t count = (std::min)(batch_size, data.count - first);
    const training_batch batch =
        data.batch(std::span<const std::size_t>(indices).subspan(first, count));
    const tensor found = to_plain(run.run(batch.inputs)[output]);
    score.loss += detent::detail::rounded_product(
        detail::label_loss(found, batch.labels, by_labels).value,
        static_cast<double>(count) / static_cast<double>(data.count));
    if (loss.target == training_target::classes) {
      correct += correct_predictions(found, batch.labels.data<std::int64_t>());
      rows += batch.labels.count();
    }
  }
  if (rows > 0) {
    score.accuracy = static_cast<double>(correct) / static_cast<double>(rows);
  }
  return score;
}

/// The float model with BatchNormalization nodes in training form: they use the statistics of the
/// batch, and compute running ones. Nodes in training form stay as they are.
[[nodiscard]] inline model training_form(model m) {
  unused_names names(m);
  for (node& n : m.nodes) {
    if (n.is("BatchNormalization") && n.get_int("training_mode", 0) == 0 && n.inputs.size() == 5) {
      n.attributes["training_mode"] = attribute::of(std::int64_t{1});
      n.outputs = {n.outputs[0], names.take(n.outputs[0] + "_running_mean"),
                   names.take(n.outputs[0] + "_running_variance")};
    }
  }
  return m;
}

/// Trains the float constants of a model (trainable_constants()) with the samples of `data`, in an
/// order that the seed decides, and measures it behind each epoch with the samples of `validation`.
/// Returns the model of the best epoch: the one with the highest accuracy, and of equal ones that
/// with the lowest validation loss; where labels are no classes, the lowest validation loss.
///
/// Where labels are classes and the output is that of a Softmax along the last axis, the loss takes
/// what goes into the Softmax.
///
/// BatchNormalization nodes normalize by the statistics of the batch while they are trained, and
/// their running means and variances follow; the result has them in the form of `m`. Dropout does
/// nothing. Distillation and hidden values need another model and are for
/// quantization_aware_training().
///
/// Deterministic: the result has the same bits on every processor and for any number of threads.
/// Memory: as trainer, and the model twice.
///
/// Throws unsupported, naming the node, if an operator on the way to the loss has no gradient;
/// overflow if the loss or a gradient is NaN or infinite; invalid_argument for options out of their
/// domain and if there are no samples; and what the losses throw for labels that do not fit.
[[nodiscard]] inline training_result train(const model& m, const training_data& data,
                                           const training_data& validation,
                                           const training_options& options = {}) {
  detail::require_valid(options);
  require(data.count > 0 && validation.count > 0, error_kind::invalid_argument,
          "training: ", data.count, " samples and ", validation.count, " samples for validation");
  const std::size_t output = detail::labelled_output(m, options.loss);
  const std::size_t batches = (data.count + options.batch_size - 1) / options.batch_size;
  const bool has_classes = options.loss.target == training_target::classes;
  trainer t(training_form(m), trainable_constants(m), options, options.epochs * batches,
            has_classes ? detail::logits_of(m, m.outputs[output].name) : m.outputs[output].name);
  training_result result;
  model now = m;
  const auto take_constants = [&] {
    for (auto& [name, value] : now.initializers) {
      value = t.network().initializers.at(name);
    }
  };
  result.epochs = detail::run_epochs(
      t, data, options,
      [&] {
        take_constants();
        executor run(has_classes ? detail::with_logits(now, output) : now, options.executor);
        return evaluate(run, validation, options.loss, output, options.batch_size);
      },
      [&] { result.trained = now; });
  for (const epoch_report& r : result.epochs) {
    result.best_epoch = r.is_best ? r.epoch : result.best_epoch;
  }
  return result;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAIN_HPP
