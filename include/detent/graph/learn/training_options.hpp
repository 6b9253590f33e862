// SPDX-License-Identifier: BSD-3-Clause
// The options of training: the loss, the optimizer, and the course of the epochs.
#ifndef DETENT_GRAPH_LEARN_TRAINING_OPTIONS_HPP
#define DETENT_GRAPH_LEARN_TRAINING_OPTIONS_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/learn/gradient_memory.hpp>
#include <detent/graph/learn/image_augmentation.hpp>
#include <detent/graph/learn/learning_rate.hpp>
#include <detent/graph/learn/training_checkpoint.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What is minimized over the labels of the samples.
enum class training_target : std::uint8_t {
  classes,  ///< The cross entropy of logits, whose last axis counts the classes; int64 labels.
  values,   ///< The mean squared error; float32 labels of the shape of the output.
};

/// The loss of a batch, with the logits or values z of one output, those of the float model that
/// teaches, t, and pairs of hidden values h of both:
///
///     (1 - distillation) * loss(z, labels) + distillation * distillation(z, t, temperature)
///       + hidden_weight * sum over `hidden` of mean_squared_error(h, h of the teacher)
struct training_loss {
  training_target target = training_target::classes;  ///< What the labels are.
  std::string output = {};       ///< The output that has labels; empty: the first output.
  double label_smoothing = 0.0;  ///< As in cross_entropy_options.
  double distillation = 0.0;     ///< Weight of what the float model teaches, in [0, 1].
  double temperature = 2.0;      ///< Temperature of distillation(), positive.
  /// Values of the float model, by name, to which those of the same names in the trained model are
  /// drawn. In a quantized model these are what a node computes, before they are rounded
  /// themselves. Folding may remove values, such as what goes into a BatchNormalization.
  std::vector<std::string> hidden = {};
  double hidden_weight = 1.0;  ///< Weight of their errors, finite and not negative.
};

/// The rule by which constants follow their gradients.
enum class training_optimizer : std::uint8_t {
  sgd,    ///< momentum_descent; the decay of weights is added to the gradient.
  adam,   ///< adam; the decay of weights is added to the gradient.
  adamw,  ///< adam; the decay of weights is apart from the gradient.
};

/// Options of train() and quantization_aware_training().
struct training_options {
  std::size_t epochs = 10;      ///< Passes over the samples, at least 1.
  std::size_t batch_size = 32;  ///< Samples of a step, at least 1; the last batch may have fewer.
  /// Steps of an epoch, at most: it takes the first samples of its order. 0: all samples.
  std::size_t steps_per_epoch = 0;
  std::uint64_t seed = 0;   ///< Decides the order of samples and how they are augmented.
  training_loss loss = {};  ///< What is minimized.
  training_optimizer optimizer = training_optimizer::adamw;  ///< How constants follow gradients.
  double learning_rate = 1e-3;     ///< Step size of weights, positive and finite.
  double bias_rate = 1.0;          ///< Factor of the step size of biases, positive and finite.
  double scale_rate = 1.0;         ///< Factor of the step size of scales, positive and finite.
  double momentum = 0.9;           ///< As the optimizers have it, in [0, 1).
  double square_momentum = 0.999;  ///< As adam has it, in [0, 1).
  double weight_decay = 0.0;       ///< Of weights, finite and not negative.
  /// How the learning rate changes from step to step.
  learning_rate_options schedule = {.schedule = learning_rate_schedule::cosine};
  /// The largest norm of the gradients of a step, as clip_gradients() takes it.
  double max_gradient_norm = std::numeric_limits<double>::infinity();
  std::optional<image_augmentation> augmentation = {};  ///< Changes of images; none by default.
  /// Called behind each epoch.
  std::function<void(const epoch_report&)> on_epoch = {};
  /// Called behind each epoch, after on_epoch, with all that a later run needs to go on.
  std::function<void(const training_checkpoint&)> on_checkpoint = {};
  /// Where training goes on. The result then has the bytes of training without a break.
  std::optional<training_checkpoint> resumed = {};
  /// Tells checkpoints apart besides the model, the options and the number of samples: for example
  /// a fingerprint of the samples.
  std::string subject = {};
  /// Asked before each step: training ends if it returns true. The epoch that it is in does not
  /// count.
  std::function<bool()> cancelled = {};
  /// Called behind each step with the number of steps made, their number in all, and the loss.
  std::function<void(std::size_t done, std::size_t total, double loss)> on_step = {};
  /// Segments of the network, as node_segments has them: forward values inside a segment are
  /// computed again for its gradients instead of being kept. More than one take less memory and
  /// more time; the result has the same bits. 0: as choose_segments() finds them for the first
  /// batch, and again for each batch with larger inputs and each other form of the network, with
  /// executor.max_memory_bytes as the limit.
  std::size_t segments = 1;
  /// Called with what choose_segments() has found.
  std::function<void(const segment_choice&)> on_segments = {};
  executor_options executor = {};  ///< Limits and threads; the result does not depend on threads.
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINING_OPTIONS_HPP
