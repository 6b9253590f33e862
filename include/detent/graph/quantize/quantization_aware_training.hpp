// SPDX-License-Identifier: BSD-3-Clause
// Quantization-aware training: a model is trained as the quantized model that it becomes.
#ifndef DETENT_GRAPH_QUANTIZE_QUANTIZATION_AWARE_TRAINING_HPP
#define DETENT_GRAPH_QUANTIZE_QUANTIZATION_AWARE_TRAINING_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/train.hpp>
#include <detent/graph/learn/trainer.hpp>
#include <detent/graph/learn/training_data.hpp>
#include <detent/graph/learn/training_options.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/fake_quantized_network.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantizer_schedule.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Options of quantization_aware_training().
struct quantization_aware_training_options {
  training_options training = {};  ///< Loss, optimizer, epochs.
  /// Observer of the activations that gives the ranges that training begins with.
  std::string method = "mse";
  activation_options activations = {};  ///< Type, bits and overrides of the activations.
  /// Channels, bits and first scales of the weights.
  layer_weight_options weights = {.scale = weight_scale::exact_mse};
  quantization_scope scope = {};  ///< Nodes that stay in float, and settings of single operators.
  /// Samples that the first ranges are from, at most; at least 1.
  std::size_t calibration_samples = 256;
  bool learn_weight_scales = true;  ///< Whether the scales of weights are trained (LSQ).
  /// Whether the grids of activations are trained, as `rule` says.
  bool learn_activation_scales = true;
  activation_rule rule = activation_rule::lsq;  ///< How the grids of activations are trained.
  /// With activation_rule::pact: the loss has half of this times the sum of the squares of all
  /// upper ends. Finite and not negative.
  double clip_penalty = 0.0;
  quantizer_schedule schedule = {};  ///< When fake quantizers quantize, and ranges are observed.
};

namespace detail {

/// The number of samples that a run of a model takes: more than one if an input that differs from
/// sample to sample declares it.
[[nodiscard]] inline std::size_t samples_of_a_run(const model& m, const training_data& data) {
  constexpr std::array<std::size_t, 1> first{0};
  const training_batch one = data.batch(first);
  for (const value_info& v : m.inputs) {
    const auto given = one.inputs.find(v.name);
    if (v.has_shape && !v.dims.empty() && v.dims[0] > 1 && given != one.inputs.end() &&
        given->second.rank() > 0 && given->second.dim(0) == 1) {
      return static_cast<std::size_t>(v.dims[0]);
    }
  }
  return 1;
}

}  // namespace detail

/// What quantization_aware_training() returns.
struct quantization_aware_training_result {
  quantization quantized;            ///< The quantized model of the best epoch.
  std::vector<epoch_report> epochs;  ///< All epochs; they score the exported integer model.
  /// The score of the model that training begins with: static quantization with the same options.
  training_score before = {};
  /// The epoch that `quantized` is from, counted from 0; nothing if none was better than `before`.
  std::optional<std::size_t> best_epoch = {};
};

/// Trains a model as the quantized model that it becomes: with fake quantizers at the activations
/// and weights that static quantization stores in integers. Gradients pass through rounding as if
/// it were the identity (straight-through estimator), and scales learn by LSQ, or as the options
/// say. A step computes what the integer model that is written at that moment computes, bit for
/// bit. Behind each epoch the integer model is written and measured with the samples of
/// `validation`, as the executor runs it; the best one is returned, or static quantization with the
/// same options if none is better (see train() for what is better).
///
/// Training begins with static quantization of `m`: BatchNormalization is folded into the layers
/// before it, with the statistics of `m`, and stays so unless the schedule trains it; ranges are
/// from the first `calibration_samples` samples, one a run unless the model declares a larger
/// batch. With `training.loss.distillation` or hidden values, `m` teaches.
///
/// Deterministic: the result has the same bits on every processor, for any number of threads, and
/// whether training went on from a checkpoint or not.
///
/// Throws unsupported, naming the first one, if the executor cannot run a node (static quantization
/// would leave it in float); invalid_argument for calibration_samples of 0, a clip_penalty out of
/// its domain, and a schedule whose averaging is not in (0, 1] or whose quantize_after is not
/// smaller than the number of all steps; and what static_quantization() and train() throw.
///
/// Sources: Bengio, Leonard, Courville, Estimating or propagating gradients through stochastic
/// neurons (2013), for the estimator; Esser et al., Learned step size quantization (2020).
[[nodiscard]] DETENT_GRAPH_DECL quantization_aware_training_result quantization_aware_training(
    const model& m, const training_data& data, const training_data& validation,
    const quantization_aware_training_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization_aware_training_result quantization_aware_training(
    const model& m, const training_data& data, const training_data& validation,
    const quantization_aware_training_options& options) {
  const training_options& o = options.training;
  detail::require_valid(o);
  require(data.count > 0 && validation.count > 0, error_kind::invalid_argument,
          "training: ", data.count, " samples and ", validation.count, " samples for validation");
  require(options.calibration_samples > 0, error_kind::invalid_argument,
          "training: 0 calibration_samples");
  const std::size_t output = detail::labelled_output(m, o.loss);

  // One sample a run, unless the model has a fixed number of them.
  const std::size_t in_a_run = (std::min)(detail::samples_of_a_run(m, data), data.count);
  const std::size_t calibrated = (std::max)(
      (std::min)(options.calibration_samples, data.count) / in_a_run * in_a_run, in_a_run);
  const calibration_source samples =
      [&data, calibrated, in_a_run,
       at = std::size_t{0}]() mutable -> std::optional<std::map<std::string, tensor>> {
    if (at == calibrated) {
      at = 0;
      return std::nullopt;
    }
    std::vector<std::size_t> indices(in_a_run);
    std::iota(indices.begin(), indices.end(), at);
    at += in_a_run;
    return data.batch(indices).inputs;
  };
  quantization begin = static_quantization(m, samples,
                                           {.method = options.method,
                                            .activations = options.activations,
                                            .weights = options.weights,
                                            .scope = options.scope,
                                            .executor = o.executor});
  require(begin.not_run.empty(), error_kind::unsupported,
          "training: ", begin.not_run.empty() ? std::string() : begin.not_run.front());
  const auto scales_of = [&](const model& f, std::size_t i) {
    return find_weight_scales(f, f.nodes[i], with_settings(options.weights, begin.plan.settings(i)),
                              o.executor.parallel);
  };
  std::map<std::size_t, layer_weight_scales> weights;
  for (const std::size_t i : begin.plan.layers()) {
    weights.emplace(i, scales_of(begin.plan.float_model(), i));
    weights.at(i).scales = begin.parameters.layers.at(i).scales;
    weights.at(i).scales.resize(weights.at(i).is_zero.size(), weights.at(i).scales.front());
  }
  std::vector<folded_normalization> normalizations;
  if (options.schedule.freeze_statistics_after) {
    // As the plan does it.
    model simplified = m;
    remove_no_ops(simplified);
    fold_constants(simplified, false);
    fold_into_layers(simplified, &normalizations);
  }
  const fake_quantized_network network(begin.plan, begin.parameters, std::move(weights),
                                       options.rule, std::move(normalizations));
  const std::size_t steps = detail::steps_per_epoch(data, o);
  detail::quantizer_course course(
      network, options.schedule, steps, o.epochs * steps,
      detail::activation_scheme(options.activations), scales_of,
      [&](const std::string& value) { return options.activations.overrides.count(value) == 0; });

  const bool has_classes = o.loss.target == training_target::classes;
  const auto output_of = [&](const model& whole) {
    const std::string& name = whole.outputs[output].name;
    return has_classes ? detail::logits_of(whole, name) : name;
  };
  const auto score = [&](const quantization& q) {
    executor run(for_execution(has_classes ? detail::with_logits(q.result, output) : q.result),
                 o.executor);
    return evaluate(run, validation, o.loss, output, o.batch_size);
  };
  quantization_aware_training_result result{begin, {}, score(begin), std::nullopt};
  const bool is_taught = o.loss.distillation > 0.0 || !o.loss.hidden.empty();
  trainer t(network.network(course.form(0)),
            network.constants(options.learn_weight_scales, options.learn_activation_scales,
                              options.clip_penalty),
            o, o.epochs * steps, output_of(network.network()), is_taught ? &m : nullptr,
            output_of(m));
  course.attach(t);
  training_options led = o;
  fingerprint own;
  own.add(options.clip_penalty);
  for (const training_span& span :
       {options.schedule.quantize_after, options.schedule.observe_for}) {
    own.add(std::uint64_t{span.in_steps(steps)});
  }
  own.add(options.schedule.averaging);
  if (options.schedule.freeze_statistics_after) {
    own.add(std::uint64_t{options.schedule.freeze_statistics_after->in_steps(steps)});
  }
  led.subject += own.text();
  detail::training_calls calls;
  calls.measure = [&] {
    course.prepare_export(t);
    return score(network.exported(t.network()));
  };
  calls.after_step = [&] { course.after_step(t); };
  calls.save = [&](training_checkpoint& c) { c.ranges = course.ranges(); };
  calls.restore = [&](const training_checkpoint& c) { course.restore(t, c.state.steps, c.ranges); };
  calls.examine = [&] { static_cast<void>(network.exported(t.network())); };
  detail::training_course epochs = detail::run_epochs(t, data, led, result.before, calls);
  result.epochs = std::move(epochs.epochs);
  result.best_epoch = epochs.best_epoch;
  if (result.best_epoch) {
    result.quantized = network.exported(t.network());
  }
  return result;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QUANTIZATION_AWARE_TRAINING_HPP
