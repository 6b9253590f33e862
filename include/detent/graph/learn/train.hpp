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
#include <map>
#include <numeric>
#include <optional>
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
#include <detent/graph/learn/training_checkpoint.hpp>
#include <detent/graph/learn/training_data.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/learn/training_options.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/apply_node.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What train() returns.
struct training_result {
  model trained;                     ///< The model of the best epoch, or the one given.
  std::vector<epoch_report> epochs;  ///< All epochs, in their order.
  training_score before = {};        ///< The score of the model before training.
  /// The epoch that `trained` is from, counted from 0; nothing if none was better than `before`.
  std::optional<std::size_t> best_epoch = {};
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

/// Whether a Softmax or LogSoftmax that makes `output`, an output of a model, works along the last
/// axis. One that counts from the front is compared with the rank, which has to be known.
[[nodiscard]] inline bool is_along_last_axis(const model& m, const node& n,
                                             const std::string& output) {
  const std::int64_t axis = n.get_int("axis", opset_of(m, n) < 13 ? 1 : -1);
  if (axis == -1) {
    return true;
  }
  std::optional<std::size_t> rank = value_shapes(m, training_operators()).rank(n.inputs[0]);
  for (const value_info& v : m.outputs) {
    if (!rank && v.name == output && v.has_shape) {
      rank = v.dims.size();
    }
  }
  return rank && axis == static_cast<std::int64_t>(*rank) - 1;
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
    if ((n->is("Softmax") || n->is("LogSoftmax")) && is_along_last_axis(m, *n, output)) {
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

/// Throws invalid_argument, naming the input and the sample, if float inputs of a batch hold NaN or
/// +infinity. `indices` are those of its samples; `kind` is a word before "sample". -infinity may
/// be a mask.
inline void require_numbers(const training_batch& batch, std::span<const std::size_t> indices,
                            const char* kind) {
  for (const auto& [name, t] : batch.inputs) {
    if (t.count() == 0 || is_finite(t)) {
      continue;
    }
    const auto values = t.data<float>();
    const auto wrong = std::find_if(values.begin(), values.end(), [](float v) {
      return std::isnan(v) || v == std::numeric_limits<float>::infinity();
    });
    if (wrong == values.end()) {
      continue;
    }
    const auto at = static_cast<std::size_t>(wrong - values.begin());
    const std::size_t samples = indices.size();
    const bool counts_samples = t.rank() > 0 && t.dim(0) == static_cast<std::int64_t>(samples);
    const std::string sample =
        counts_samples ? std::to_string(indices[at / (values.size() / samples)]) : std::string();
    detent::raise(error_kind::invalid_argument, "training: input '", name, "'",
                  counts_samples ? std::string(" of ") + kind + "sample " : std::string(), sample,
                  counts_samples ? " (counted from 0)" : "", " holds ", *wrong);
  }
}

/// Whether a score is better than another one: a higher accuracy, or the same and a lower loss. A
/// score without a loss is the worst.
[[nodiscard]] inline bool is_better(const training_score& a, const training_score& b) {
  if (std::isnan(a.loss) || std::isnan(b.loss)) {
    return !std::isnan(a.loss);
  }
  return a.accuracy > b.accuracy || (!(a.accuracy < b.accuracy) && a.loss < b.loss);
}

/// What a checkpoint must have in common with training that goes on from it.
[[nodiscard]] inline std::uint64_t subject_of(const model& network, const training_options& o,
                                              std::size_t samples) {
  fingerprint f;
  f.add(network);
  for (const std::size_t n :
       {samples, o.epochs, o.batch_size, o.steps_per_epoch, o.schedule.warmup_steps,
        o.schedule.step_every, o.loss.hidden.size()}) {
    f.add(std::uint64_t{n});
  }
  for (const double v :
       {o.loss.label_smoothing, o.loss.distillation, o.loss.temperature, o.loss.hidden_weight,
        o.learning_rate, o.bias_rate, o.scale_rate, o.momentum, o.square_momentum, o.weight_decay,
        o.schedule.last, o.schedule.step_factor, o.max_gradient_norm}) {
    f.add(v);
  }
  f.add(o.seed);
  f.add(static_cast<std::uint8_t>(o.loss.target));
  f.add(static_cast<std::uint8_t>(o.optimizer));
  f.add(static_cast<std::uint8_t>(o.schedule.schedule));
  f.add(o.loss.output);
  for (const std::string& name : o.loss.hidden) {
    f.add(name);
  }
  if (o.augmentation) {
    f.add(o.augmentation->input);
    f.add(o.augmentation->flip);
    f.add(std::uint64_t{o.augmentation->shift});
    f.add(o.augmentation->fill);
  }
  f.add(o.subject);
  return f.value();
}

/// The number of steps of an epoch.
[[nodiscard]] inline std::size_t steps_per_epoch(const training_data& data,
                                                 const training_options& o) {
  const std::size_t all = data.count / o.batch_size + (data.count % o.batch_size != 0 ? 1 : 0);
  return o.steps_per_epoch == 0 ? all : (std::min)(all, o.steps_per_epoch);
}

/// What the epochs of a trainer call.
struct training_calls {
  /// Gives the score of the trainer's network as it is.
  std::function<training_score()> measure;
  std::function<void()> after_step = {};  ///< May be empty, as those below.
  /// Adds to a checkpoint what the caller keeps itself.
  std::function<void(training_checkpoint&)> save = {};
  /// Takes that from a checkpoint, before the trainer goes on from its state.
  std::function<void(const training_checkpoint&)> restore = {};
  /// Throws if a network with the best constants of a checkpoint cannot be the result.
  std::function<void()> examine = {};
};

/// What the epochs of a trainer gave.
struct training_course {
  std::vector<epoch_report> epochs;
  std::optional<std::size_t> best_epoch;
};

/// Checks that the scores in a checkpoint are scores, and that the best one is that of the last
/// epoch that was better than all before and than the network before training, whose score is
/// `before`. Throws invalid_argument.
inline void require_plausible_scores(const training_checkpoint& c, const training_score& before) {
  const auto is_score = [](double loss, double accuracy) {
    return !(loss < 0.0) && (std::isnan(accuracy) || (accuracy >= 0.0 && accuracy <= 1.0));
  };
  const auto is_same = [](double a, double b) {
    return a == b || (std::isnan(a) && std::isnan(b));
  };
  training_score best = before;
  bool has_best = false;
  for (const epoch_report& e : c.epochs) {
    const training_score score{e.validation_loss, e.accuracy};
    require(is_score(score.loss, score.accuracy) && std::isfinite(e.loss) &&
                is_better(score, best) == e.is_best,
            error_kind::invalid_argument, "training: the scores of epoch ", e.epoch,
            " of the checkpoint are impossible, or were measured with other samples");
    best = e.is_best ? score : best;
    has_best = has_best || e.is_best;
  }
  require(has_best == !c.best_constants.empty() &&
              (!has_best ||
               (is_same(best.loss, c.best.loss) && is_same(best.accuracy, c.best.accuracy))),
          error_kind::invalid_argument,
          "training: the best score of the checkpoint is that of none of its epochs");
}

/// Runs the epochs of a trainer, from the checkpoint if there is one, and leaves it with the
/// constants of the best epoch, if any is better than `before`.
[[nodiscard]] DETENT_GRAPH_DECL training_course run_epochs(trainer& t, const training_data& data,
                                                           const training_options& o,
                                                           const training_score& before,
                                                           const training_calls& calls);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL training_course run_epochs(trainer& t, const training_data& data,
                                             const training_options& o,
                                             const training_score& before,
                                             const training_calls& calls) {
  const std::size_t steps = steps_per_epoch(data, o);
  training_checkpoint now;
  now.subject = subject_of(t.network(), o, data.count);
  now.best = before;
  if (o.resumed) {
    require(o.resumed->subject == now.subject, error_kind::invalid_argument,
            "training: the checkpoint is one of another model, of other samples or other options");
    require(o.resumed->epochs.size() <= o.epochs &&
                o.resumed->state.steps == o.resumed->epochs.size() * steps,
            error_kind::invalid_argument, "training: the checkpoint has ", o.resumed->epochs.size(),
            " epochs and ", o.resumed->state.steps, " steps");
    require_plausible_scores(*o.resumed, before);
    now = *o.resumed;
    if (calls.restore) {
      calls.restore(now);
    }
    if (now.best_constants.empty()) {
      now.best = before;
    } else {  // what the end of training could not take is refused now
      t.show_constants(now.best_constants);
      if (calls.examine) {
        calls.examine();
      }
    }
    t.set_state(now.state);
  }
  bool is_cancelled = false;
  for (std::size_t epoch = now.epochs.size(); epoch < o.epochs; ++epoch) {
    const training_data samples =
        o.augmentation ? augmented(data, *o.augmentation, o.seed, epoch) : data;
    std::vector<std::size_t> order = shuffled(data.count, o.seed, epoch);
    order.resize((std::min)(order.size(), steps * o.batch_size));
    epoch_report r;
    r.epoch = epoch;
    for (std::size_t first = 0; first < order.size(); first += o.batch_size) {
      is_cancelled = o.cancelled && o.cancelled();
      if (is_cancelled) {
        break;
      }
      const std::size_t count = (std::min)(o.batch_size, order.size() - first);
      r.learning_rate = t.learning_rate();
      const auto indices = std::span<const std::size_t>(order).subspan(first, count);
      const training_batch batch = samples.batch(indices);
      require_numbers(batch, indices, "");
      const double loss = t.step(batch);
      r.loss += detent::detail::rounded_product(
          loss, static_cast<double>(count) / static_cast<double>(order.size()));
      if (calls.after_step) {
        calls.after_step();
      }
      if (o.on_step) {
        o.on_step(t.steps(), o.epochs * steps, loss);
      }
    }
    if (is_cancelled) {
      break;
    }
    const training_score score = calls.measure();
    r.validation_loss = score.loss;
    r.accuracy = score.accuracy;
    r.scales = t.mean_scales();
    r.is_best = is_better(score, now.best);
    if (r.is_best) {
      now.best = score;
      now.best_constants = t.constants();
    }
    now.epochs.push_back(r);
    if (o.on_epoch) {
      o.on_epoch(r);
    }
    if (o.on_checkpoint) {
      now.state = t.state();
      if (calls.save) {
        calls.save(now);
      }
      o.on_checkpoint(now);
    }
  }
  training_course course;
  for (const epoch_report& r : now.epochs) {
    course.best_epoch = r.is_best ? std::optional(r.epoch) : course.best_epoch;
  }
  if (course.best_epoch) {
    t.show_constants(now.best_constants);
  }
  course.epochs = std::move(now.epochs);
  return course;
}
#endif

}  // namespace detail

/// Runs a model on all samples, in batches of `batch_size`, and compares the output of index
/// `output` with the labels as `loss` says (without distillation and hidden values; without label
/// smoothing). The loss is NaN if an output holds NaN or infinity, and 0 if there are no samples.
/// Throws invalid_argument for a batch size of 0 and for samples that hold NaN or +infinity, and
/// what the executor and the losses throw.
[[nodiscard]] DETENT_GRAPH_DECL training_score evaluate(executor& run, const training_data& data,
                                                        const training_loss& loss,
                                                        std::size_t output, std::size_t batch_size);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL training_score evaluate(executor& run, const training_data& data,
                                          const training_loss& loss, std::size_t output,
                                          std::size_t batch_size) {
  require(batch_size > 0, error_kind::invalid_argument, "evaluate: a batch of 0 samples");
  training_score score;
  std::size_t correct = 0;
  std::size_t rows = 0;
  training_loss by_labels = loss;
  by_labels.label_smoothing = 0.0;
  std::vector<std::size_t> indices(data.count);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  for (std::size_t first = 0; first < data.count; first += batch_size) {
    const std::size_t count = (std::min)(batch_size, data.count - first);
    const auto of_batch = std::span<const std::size_t>(indices).subspan(first, count);
    const training_batch batch = data.batch(of_batch);
    detail::require_numbers(batch, of_batch, "validation ");
    const tensor found = to_plain(run.run(batch.inputs)[output]);
    const double own = is_finite(found) ? detail::label_loss(found, batch.labels, by_labels).value
                                        : std::numeric_limits<double>::quiet_NaN();
    score.loss += detent::detail::rounded_product(
        own, static_cast<double>(count) / static_cast<double>(data.count));
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
#endif

/// Runs a float model as train() measures it: the output is the one that `loss` names, and cross
/// entropy takes what goes into its Softmax. Throws invalid_argument if there is no such output,
/// and what the executor and the losses throw.
[[nodiscard]] DETENT_GRAPH_DECL training_score evaluate(const model& m, const training_data& data,
                                                        const training_loss& loss,
                                                        std::size_t batch_size,
                                                        const executor_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL training_score evaluate(const model& m, const training_data& data,
                                          const training_loss& loss, std::size_t batch_size,
                                          const executor_options& options) {
  const std::size_t output = detail::labelled_output(m, loss);
  executor run(loss.target == training_target::classes ? detail::with_logits(m, output) : m,
               options);
  return evaluate(run, data, loss, output, batch_size);
}
#endif

/// The float model with BatchNormalization nodes in training form: they use the statistics of the
/// batch, and compute running ones. Nodes in training form stay as they are. A model with other
/// ones is upgraded to opset 19 if it is older than opset 14, which brought that form. Throws what
/// upgrade_opset() throws.
[[nodiscard]] inline model training_form(model m) {
  const auto is_of_inference = [](const node& n) {
    return n.is("BatchNormalization") && n.get_int("training_mode", 0) == 0 && n.inputs.size() == 5;
  };
  if (m.opset() < 14 && std::any_of(m.nodes.begin(), m.nodes.end(), is_of_inference)) {
    upgrade_opset(m, 19);
  }
  unused_names names(m);
  for (node& n : m.nodes) {
    if (is_of_inference(n)) {
      n.attributes["training_mode"] = attribute::of(std::int64_t{1});
      n.outputs = {n.outputs[0], names.take(n.outputs[0] + "_running_mean"),
                   names.take(n.outputs[0] + "_running_variance")};
    }
  }
  return m;
}

namespace detail {

/// Folds the constants of a model that is to be trained, but for weights that are trained as they
/// are and transposed, too: those stay one constant.
inline void fold_untied_constants(model& m) {
  std::map<std::string, tensor> tied;
  for (const trained_constant& c : trainable_constants(m)) {
    const bool is_transposed = std::any_of(m.nodes.begin(), m.nodes.end(), [&](const node& n) {
      return n.is("Transpose") && !n.inputs.empty() && n.inputs[0] == c.name;
    });
    if (is_transposed) {
      tied.insert(m.initializers.extract(c.name));
    }
  }
  fold_constants(m, false);
  m.initializers.merge(tied);
  remove_unused(m);
}

}  // namespace detail

/// Trains the float constants of a model (trainable_constants(), behind fold_constants(): nodes
/// that compute constants from constants make way for these) with the samples of `data`, in an
/// order that the seed decides, and measures it behind each epoch with the samples of `validation`.
/// Returns the model of the best epoch: the one with the highest accuracy, and of equal ones that
/// with the lowest validation loss; where labels are no classes, the lowest validation loss. The
/// model is returned as it was if no epoch is better.
///
/// Where labels are classes and the output is that of a Softmax along the last axis, the loss takes
/// what goes into the Softmax.
///
/// BatchNormalization nodes normalize by the statistics of the batch while they are trained, and
/// their running means and variances follow; the result has them in the form of `m`. Dropout does
/// nothing. Distillation and hidden values need another model and are for
/// quantization_aware_training().
///
/// Deterministic: the result has the same bits on every processor, for any number of threads, and
/// whether training went on from a checkpoint or not. Memory: as trainer, and the model twice.
///
/// Throws unsupported, naming the node, if an operator on the way to the loss has no gradient;
/// overflow if the loss or a gradient is NaN or infinite; invalid_argument for options out of their
/// domain, if there are no samples, for samples that hold NaN or +infinity, and for a checkpoint of
/// something else; and what the losses throw for labels that do not fit.
[[nodiscard]] DETENT_GRAPH_DECL training_result train(const model& m, const training_data& data,
                                                      const training_data& validation,
                                                      const training_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL training_result train(const model& m, const training_data& data,
                                        const training_data& validation,
                                        const training_options& options) {
  detail::require_valid(options);
  require(data.count > 0 && validation.count > 0, error_kind::invalid_argument,
          "training: ", data.count, " samples and ", validation.count, " samples for validation");
  const std::size_t output = detail::labelled_output(m, options.loss);
  const bool has_classes = options.loss.target == training_target::classes;
  model folded = m;
  detail::fold_untied_constants(folded);
  const std::string& labelled = folded.outputs[output].name;
  trainer t(training_form(folded), trainable_constants(folded), options,
            options.epochs * detail::steps_per_epoch(data, options),
            has_classes ? detail::logits_of(folded, labelled) : labelled);
  training_result result{folded, {}, {}, std::nullopt};
  const auto take_constants = [&] {
    for (const std::string& name : t.constant_names()) {
      result.trained.initializers.at(name) = t.network().initializers.at(name);
    }
  };
  const auto measure = [&] {
    take_constants();
    return evaluate(result.trained, validation, options.loss, options.batch_size, options.executor);
  };
  result.before = measure();
  detail::training_course course =
      detail::run_epochs(t, data, options, result.before, {.measure = measure});
  result.epochs = std::move(course.epochs);
  result.best_epoch = course.best_epoch;
  if (result.best_epoch) {
    take_constants();
  } else {
    result.trained = m;
  }
  return result;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAIN_HPP
