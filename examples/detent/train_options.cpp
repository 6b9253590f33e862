// SPDX-License-Identifier: BSD-3-Clause
#include "train_options.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/inc/yaml.hpp>

#include "overwriting.hpp"
#include "quantize_config.hpp"
#include "quantize_options.hpp"
#include "usage_error.hpp"
#include "whole_number.hpp"

namespace detent_cli {
namespace {

namespace graph = detent::graph;

/// A check for a finite number in [least, most], or in ]least, most] with `is_open`.
auto number_in(double least, double most, bool is_open, const char* what) {
  return [=](const std::string& text) {
    double value = 0.0;
    const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    const bool is_in = is_number && value <= most && (is_open ? value > least : value >= least);
    return is_in ? std::string() : "'" + text + "' is not " + what;
  };
}
constexpr double largest = 1e300;
constexpr std::uint64_t most_steps = std::uint64_t{1} << 31U;  // of epochs, too: 2^62 fit

}  // namespace

train_options::train_options(CLI::App& command) : command_(command) {
  command.add_option("MODEL", a_.model, "Float ONNX model")->required();
  command.add_option("-o,--output", a_.output, "Trained model to write")->required();
  command.add_option("--config", config_,
                     "YAML file with these options by their names, and rules for single operators "
                     "and tensors; options of the command line go before it");
  command.add_option("--data", a_.data,
                     "[NAME=]X.npy: samples to train with; the first axis counts them");
  command.add_option("--labels", a_.labels,
                     "Y.npy: integers (classes), or float32 (values that the output shall have)");
  command.add_option("--validation", a_.validation,
                     "[NAME=]X.npy: samples that each epoch is measured with");
  command.add_option("--validation-labels", a_.validation_labels, "Y.npy: their labels");
  command
      .add_option("--hold-out", a_.hold_out,
                  "Without --validation: share of the samples that measures epochs instead of "
                  "training; 0: all train and measure")
      ->check(number_in(0.0, 0.9, false, "in [0, 0.9]"));
  command
      .add_option("--approach", approach_,
                  "Train the model as the quantized one that it becomes (qat), or in float")
      ->check(CLI::IsMember({"qat", "float"}));
  add_training();
  add_quantization();
  command.add_option("--checkpoint", a_.checkpoint,
                     "Folder: keeps the state behind each epoch, and goes on from it if there is "
                     "one");
  command.add_option("--report", a_.report, "HTML page with curves");
  command
      .add_option("--threads", a_.threads, "Threads; the result does not depend on their number")
      ->transform(whole_number(1, 1024));
  add_defaults();
}

void train_options::add_defaults() {
  for (const char* name :
       {"--hold-out",    "--approach",     "--epochs",       "--batch",
        "--lr",          "--bias-rate",    "--scale-rate",   "--optimizer",
        "--momentum",    "--weight-decay", "--schedule",     "--step-factor",
        "--temperature", "--seed",         "--bits-weights", "--bits-activations",
        "--activations", "--granularity",  "--method",       "--calibration-samples",
        "--rule",        "--averaging",    "--format",       "--threads"}) {
    CLI::Option* const option = command_.get_option(name);
    option->capture_default_str();
    option->description(option->get_description() + " (" + option->get_default_str() + ")");
    option->default_str("");
  }
}

void train_options::add_training() {
  graph::training_options& t = a_.options.training;
  const CLI::Validator count = whole_number(1, most_steps);
  const auto positive = number_in(0.0, largest, true, "a positive number");
  const auto share = number_in(0.0, 1.0, false, "in [0, 1]");
  const auto momentum = number_in(0.0, 0.999999, false, "in [0, 1)");
  command_.add_option("--epochs", t.epochs, "Passes over the samples")->transform(count);
  command_.add_option("--batch", t.batch_size, "Samples of a step")->transform(count);
  command_.add_option("--steps-per-epoch", t.steps_per_epoch, "Steps of an epoch, at most")
      ->transform(count);
  command_.add_option("--lr", t.learning_rate, "Learning rate")->check(positive);
  command_.add_option("--bias-rate", t.bias_rate, "Factor of the learning rate of biases")
      ->check(positive);
  command_.add_option("--scale-rate", t.scale_rate, "Factor of the learning rate of scales")
      ->check(positive);
  command_.add_option("--optimizer", optimizer_, "sgd|adam|adamw")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}));
  command_.add_option("--momentum", t.momentum, "Momentum of the optimizer")->check(momentum);
  command_.add_option("--weight-decay", t.weight_decay, "Weight decay of the optimizer")
      ->check(number_in(0.0, largest, false, "a number of at least 0"));
  command_.add_option("--schedule", schedule_, "Course of the learning rate: constant|cosine|step")
      ->check(CLI::IsMember({"constant", "cosine", "step"}));
  command_
      .add_option("--step-every", t.schedule.step_every, "Steps between two of --schedule step")
      ->transform(count);
  command_.add_option("--step-factor", t.schedule.step_factor, "Factor of --schedule step")
      ->check(number_in(0.0, 1.0, true, "in (0, 1]"));
  command_
      .add_option("--warmup", t.schedule.warmup_steps, "Steps over which the learning rate rises")
      ->transform(whole_number(0, most_steps));
  command_
      .add_option("--clip-gradients", clip_gradients_, "Largest norm of the gradients of a step")
      ->check(positive);
  command_
      .add_option("--label-smoothing", t.loss.label_smoothing,
                  "Share of the target that goes to all classes alike")
      ->check(number_in(0.0, 0.999, false, "in [0, 1)"));
  command_
      .add_option("--distill", t.loss.distillation,
                  "Weight of what the float model says, in [0, 1]; 0.5 without a value (qat)")
      ->expected(0, 1)
      ->default_str("0.5")
      ->check(share);
  command_.add_option("--temperature", t.loss.temperature, "Temperature of --distill")
      ->check(positive);
  command_.add_option(
      "--distill-hidden", t.loss.hidden,
      "Values inside the float model whose mean squared errors are part of the loss "
      "(qat)");
  command_.add_option("--hidden-weight", t.loss.hidden_weight, "Weight of --distill-hidden; 1")
      ->check(number_in(0.0, largest, false, "a number of at least 0"));
  command_.add_option("--output-name", t.loss.output, "Output that has labels; the first one");
  command_.add_option("--flip", flip_, "Probability that an image is mirrored")->check(share);
  command_.add_option("--shift", shift_, "Pixels by which images are moved at random, at most")
      ->transform(whole_number(1, std::uint64_t{1} << 20U));
  command_.add_option("--seed", t.seed, "Decides the order of samples, and what is held out")
      ->transform(whole_number(0, (std::numeric_limits<std::uint64_t>::max)()));
}

void train_options::add_quantization() {
  command_.add_option("--bits-weights", a_.options.weights.bits, "Bits of weights, 2 to 8 (qat)")
      ->transform(whole_number(2, 8));
  command_
      .add_option("--bits-activations", a_.options.activations.bits,
                  "Bits of activations, 2 to 8 (qat)")
      ->transform(whole_number(2, 8));
  command_.add_option("--activations", activations_, "Type of activations (qat)")
      ->check(CLI::IsMember({"u8", "s8"}));
  command_.add_option("--granularity", granularity_, "Scales of weights (qat)")
      ->check(CLI::IsMember({"per-channel", "per-tensor"}));
  command_
      .add_option("--method", a_.options.method,
                  "How the first ranges of activations are found (qat)")
      ->check([](const std::string& text) {
        std::string all;
        for (const std::string& name : detent::graph::range_method_names()) {
          if (name == lower_case(text)) {
            return std::string();
          }
          all += (all.empty() ? "" : ", ") + name;
        }
        return "'" + text + "' is not a value of --method; there are " + all;
      });
  command_
      .add_option("--calibration-samples", a_.options.calibration_samples,
                  "Samples that the first ranges are taken from, at most (qat)")
      ->transform(whole_number(1, most_steps));
  command_
      .add_option("--rule", rule_,
                  "How grids of activations are trained (qat): straight-through (they stay), lsq, "
                  "lsq-plus (the zero point, too), pact (the upper end behind a Relu)")
      ->check(CLI::IsMember({"straight-through", "lsq", "lsq-plus", "pact"}));
  command_
      .add_option("--clip-penalty", a_.options.clip_penalty,
                  "Pulls the upper ends of --rule pact down")
      ->check(number_in(0.0, largest, false, "a number of at least 0"));
  command_
      .add_option("--quantize-after", a_.options.schedule.quantize_after.epochs,
                  "Epochs in float before the model is trained as the quantized one (qat)")
      ->transform(whole_number(0, most_steps));
  command_
      .add_option("--observe-for", a_.options.schedule.observe_for.epochs,
                  "Epochs in which ranges of activations are moving averages of the batches "
                  "(qat)")
      ->transform(whole_number(0, most_steps));
  command_
      .add_option("--freeze-statistics-after", freeze_statistics_after_,
                  "Epochs in which BatchNormalization is trained, folded in each step, with the "
                  "statistics of batches; then they are frozen (qat)")
      ->transform(whole_number(0, most_steps));
  command_
      .add_option("--averaging", a_.options.schedule.averaging,
                  "Weight of a batch in these averages")
      ->check(number_in(0.0, 1.0, true, "in (0, 1]"));
  command_.add_option("--format", format_, "How the model is written (qat: qdq|qoperator)")
      ->check(CLI::IsMember({"qdq", "qoperator"}));
}

train_arguments train_options::arguments() {
  if (has("--config")) {
    read_config();
  }
  require_nothing_overwritten(command_);
  complete_training();
  complete_quantization();
  require_effect();
  return std::move(a_);
}

void train_options::read_config() {
  if (config_.empty()) {
    throw usage_error("--config names no file");
  }
  if (graph::inc::is_configuration(read_config_file(config_))) {
    throw usage_error(
        config_ + " is a configuration of Neural Compressor: detent quantize --config takes it");
  }
  quantize_config file = read_quantize_config(config_);
  apply_flags(command_, file.options);
  a_.options.scope = std::move(file.scope);
  a_.options.activations.overrides = std::move(file.activations);
}

void train_options::complete_training() {
  graph::training_options& t = a_.options.training;
  t.optimizer = optimizer_ == "sgd"    ? graph::training_optimizer::sgd
                : optimizer_ == "adam" ? graph::training_optimizer::adam
                                       : graph::training_optimizer::adamw;
  t.schedule.schedule = schedule_ == "constant" ? graph::learning_rate_schedule::constant
                        : schedule_ == "step"   ? graph::learning_rate_schedule::step
                                                : graph::learning_rate_schedule::cosine;
  if (has("--clip-gradients")) {
    t.max_gradient_norm = clip_gradients_;
  }
  if (has("--flip") || has("--shift")) {
    t.augmentation = graph::image_augmentation{.flip = flip_, .shift = shift_};
  }
  if (has("--distill") && command_.get_option("--distill")->results()[0].empty()) {
    t.loss.distillation = 0.5;
  }
  a_.has_batch_size = has("--batch");
}

void train_options::complete_quantization() {
  a_.is_quantized = approach_ == "qat";
  a_.is_qoperator = format_ == "qoperator";
  a_.options.method = lower_case(a_.options.method);
  a_.options.activations.type =
      activations_ == "s8" ? graph::element_type::s8 : graph::element_type::u8;
  a_.options.rule = rule_ == "straight-through" ? graph::activation_rule::straight_through
                    : rule_ == "lsq-plus"       ? graph::activation_rule::lsq_plus
                    : rule_ == "pact"           ? graph::activation_rule::pact
                                                : graph::activation_rule::lsq;
  if (has("--freeze-statistics-after")) {
    a_.options.schedule.freeze_statistics_after =
        graph::training_span{.epochs = freeze_statistics_after_};
  }
  a_.options.weights.per_channel = granularity_ == "per-channel";
}

/// Throws usage_error for options that are missing, or would have no effect.
void train_options::require_effect() const {
  if (a_.data.empty() || a_.labels.empty()) {
    throw usage_error(a_.data.empty() ? "training needs samples: --data X.npy"
                                      : "training needs labels: --labels Y.npy");
  }
  if (a_.validation.empty() != a_.validation_labels.empty()) {
    throw usage_error(a_.validation.empty() ? "--validation-labels needs --validation"
                                            : "--validation needs --validation-labels");
  }
  if (!a_.validation.empty() && has("--hold-out")) {
    throw usage_error("--hold-out has no effect with --validation");
  }
  const auto refuse = [this](bool is_so, const std::string& with,
                             std::initializer_list<const char*> flags, const char* why = "") {
    for (const char* flag : flags) {
      if (is_so && has(flag)) {
        throw usage_error(with + " has no " + flag + why);
      }
    }
  };
  refuse(!a_.is_quantized, "--approach float",
         {"--bits-weights", "--bits-activations", "--activations", "--granularity", "--method",
          "--calibration-samples", "--format", "--distill", "--temperature", "--distill-hidden",
          "--hidden-weight", "--scale-rate", "--rule", "--clip-penalty", "--quantize-after",
          "--observe-for", "--averaging", "--freeze-statistics-after"});
  if (!a_.is_quantized) {
    require_no_rules("--approach float", a_.options.scope, a_.options.activations.overrides);
  }
  refuse(rule_ != "pact", "--rule " + rule_, {"--clip-penalty"});
  refuse(!has("--observe-for"), "training without --observe-for", {"--averaging"});
  if (a_.options.schedule.quantize_after.epochs >= a_.options.training.epochs) {
    throw usage_error("--quantize-after leaves none of the --epochs");
  }
  refuse(a_.is_qoperator && a_.options.activations.bits != 8, "--format qoperator",
         {"--bits-activations"}, ": its operators saturate at the ends of their types");
  refuse(!has("--distill"), "training without --distill", {"--temperature"});
  refuse(!has("--distill-hidden"), "training without --distill-hidden", {"--hidden-weight"});
  refuse(schedule_ != "step", "--schedule " + schedule_, {"--step-every", "--step-factor"});
  if (schedule_ == "step" && !has("--step-every")) {
    throw usage_error("--schedule step needs --step-every");
  }
}

}  // namespace detent_cli
