// SPDX-License-Identifier: BSD-3-Clause
// Measures what training gains over static quantization where there are few labelled samples.
//
//   bench_training_accuracy MODEL IMAGES.npy LABELS.npy HELD_OUT SPLITS FOLDER W,A...
//
// The samples are divided at random into HELD_OUT ones, which play no part, and the others, for
// SPLITS seeds from 0 on. For each split and each pair of bits of weights and activations it prints
// "seed weights activations float static trained": top-1 accuracies on the held-out samples, in
// percent, of the float model, of static quantization, and of the model that was trained from it.
// FOLDER gets the quantized models and the indices of the held-out samples
// (tests/graph/trained_models.py).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/learn/train.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

namespace {

namespace graph = detent::graph;

/// Some of the samples, by their indices.
graph::training_data chosen(const graph::training_data& all, std::vector<std::size_t> which) {
  graph::training_data some;
  some.count = which.size();
  some.batch = [batch = all.batch, which = std::move(which)](std::span<const std::size_t> indices) {
    std::vector<std::size_t> of_all;
    for (const std::size_t index : indices) {
      of_all.push_back(which.at(index));
    }
    return batch(of_all);
  };
  return some;
}

/// Top-1 accuracy in percent.
double accuracy(const graph::model& m, const graph::training_data& data) {
  graph::executor run(graph::for_execution(m));
  return 100.0 * graph::evaluate(run, data, {}, 0, 50).accuracy;
}

graph::quantization without_training(const graph::model& m, const graph::training_data& data,
                                     const graph::quantization_aware_training_options& options) {
  const graph::calibration_source samples =
      [&, at = std::size_t{0}]() mutable -> std::optional<std::map<std::string, graph::tensor>> {
    if (at == (std::min)(options.calibration_samples, data.count)) {
      at = 0;
      return std::nullopt;
    }
    const std::size_t index = at++;
    return data.batch({&index, 1}).inputs;
  };
  return graph::static_quantization(
      m, samples,
      {.method = options.method, .activations = options.activations, .weights = options.weights});
}

int run(const std::vector<std::string>& arguments) {
  const graph::model m = graph::read_onnx(arguments[0]);
  const graph::training_data all = graph::in_memory(
      {{m.inputs.at(0).name, graph::read_npy(arguments[1])}}, graph::read_npy(arguments[2]));
  const std::size_t held_out_count = std::strtoul(arguments[3].c_str(), nullptr, 10);
  const std::size_t splits = std::strtoul(arguments[4].c_str(), nullptr, 10);
  const std::string& folder = arguments[5];
  std::printf("seed weights activations float static trained\n");
  for (std::size_t seed = 0; seed < splits; ++seed) {
    const std::vector<std::size_t> order = graph::shuffled(all.count, seed, 0);
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(held_out_count);
    const graph::training_data held_out = chosen(all, {order.begin(), middle});
    const graph::training_data data = chosen(all, {middle, order.end()});
    const std::vector<std::int64_t> indices(order.begin(), middle);
    graph::write_npy(
        folder + "/" + std::to_string(seed) + ".held_out.npy",
        graph::tensor::of(graph::element_type::s64, {static_cast<std::int64_t>(indices.size())},
                          std::span<const std::int64_t>(indices)));
    for (std::size_t k = 6; k < arguments.size(); ++k) {
      graph::quantization_aware_training_options options;
      options.weights.bits = std::strtoul(arguments[k].c_str(), nullptr, 10);
      options.activations.bits =
          std::strtoul(arguments[k].c_str() + arguments[k].find(',') + 1, nullptr, 10);
      options.training.epochs = 20;
      options.training.seed = seed;
      options.training.learning_rate = 1e-3;
      options.training.loss.distillation = 0.5;
      const graph::model before = without_training(m, data, options).result;
      // The epoch is chosen by the samples that are trained with.
      const graph::model after =
          graph::quantization_aware_training(m, data, data, options).quantized.result;
      const std::string name = folder + "/" + std::to_string(seed) + ".w" +
                               std::to_string(options.weights.bits) + "a" +
                               std::to_string(options.activations.bits);
      graph::write_onnx(before, name + ".static.onnx");
      graph::write_onnx(after, name + ".trained.onnx");
      std::printf("%zu %zu %zu %.2f %.2f %.2f\n", seed, options.weights.bits,
                  options.activations.bits, accuracy(m, held_out), accuracy(before, held_out),
                  accuracy(after, held_out));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 8) {
    std::fprintf(
        stderr,
        "usage: bench_training_accuracy MODEL IMAGES LABELS HELD_OUT SPLITS FOLDER W,A...\n");
    return 2;
  }
  try {
    return run({arguments + 1, arguments + count});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
