// SPDX-License-Identifier: BSD-3-Clause
// Times the steps of training a model as the quantized one that it becomes.
//
//   bench_training MODEL.onnx IMAGES.npy LABELS.npy BITS_OF_WEIGHTS BITS_OF_ACTIVATIONS EPOCHS
//
// Prints a line "epoch loss seconds" for each epoch: the mean loss of its steps, and the processor
// time that its batches take, from gathering the samples to the step of the optimizer. Calibration
// and the validation behind each epoch are not timed. bench/training.py puts this beside PyTorch.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <span>
#include <string>

#include <detent/graph/learn/training_data.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>

namespace {

namespace graph = detent::graph;

int run(char** arguments) {
  const graph::model m = graph::read_onnx(arguments[1]);
  const graph::training_data samples = graph::in_memory(
      {{m.inputs.at(0).name, graph::read_npy(arguments[2])}}, graph::read_npy(arguments[3]));
  constexpr std::size_t batch_size = 32;
  std::clock_t begin = 0;
  graph::training_data timed = samples;
  timed.batch = [&](std::span<const std::size_t> indices) {
    begin = std::clock();
    return samples.batch(indices);
  };
  graph::quantization_aware_training_options options;
  options.weights.bits = std::strtoul(arguments[4], nullptr, 10);
  options.activations.bits = std::strtoul(arguments[5], nullptr, 10);
  options.training.epochs = std::strtoul(arguments[6], nullptr, 10);
  options.training.batch_size = batch_size;
  options.training.learning_rate = 1e-3;
  options.training.schedule.schedule = graph::learning_rate_schedule::constant;
  double seconds = 0.0;
  options.training.on_step = [&](std::size_t, std::size_t, double) {
    seconds += static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  options.training.on_epoch = [&](const graph::epoch_report& r) {
    std::printf("%zu %.6f %.6f\n", r.epoch, r.loss, seconds);
    seconds = 0.0;
  };
  // The validation has one batch, since only the steps are of interest.
  graph::training_data few = samples;
  few.count = batch_size;
  static_cast<void>(graph::quantization_aware_training(m, timed, few, options));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) {
    std::fprintf(stderr,
                 "usage: bench_training MODEL IMAGES LABELS BITS_OF_WEIGHTS BITS_OF_ACTIVATIONS "
                 "EPOCHS\n");
    return 2;
  }
  try {
    return run(arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
