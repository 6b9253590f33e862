// SPDX-License-Identifier: BSD-3-Clause
// Trains the digits network from random weights, quantizes it with several numbers of bits, and
// trains each quantized model as what it is. Prints a table of top-1 accuracies on the held-out
// images, none of which plays a part in training: epochs are chosen by the training images. With a
// second folder, the models are written to it. Fails if the float network is worse than 99 %, one
// with 8 or 4 bits 0.5 points worse than that, or one with 2 bits for weights and 8 for activations
// worse than 95 %.
// Build (sh examples/run.sh prepares build/release), and run; it takes half a minute:
//   cmake --build build/release --target example_train_digits
//   build/release/examples/train_digits examples/digits [FOLDER_FOR_MODELS]
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <random>
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

/// Adds nodes that each take what the one before makes.
class chain {
 public:
  chain() {
    network_.ir_version = 8;
    network_.opsets[""] = 17;
    network_.graph_name = "digits";
    network_.inputs.push_back(value("image", {-1, 1, 8, 8}));
  }

  /// A convolution with He's random weights, BatchNormalization and Relu.
  void convolution(const std::string& name, std::int64_t outputs, std::int64_t inputs,
                   std::int64_t kernel, std::int64_t groups) {
    const std::int64_t pad = kernel / 2;
    // The first layer takes pixels of 0..16.
    const float range = network_.nodes.empty() ? 1.0F / 16.0F : 1.0F;
    add("Conv", name, {{"weight", random({outputs, inputs, kernel, kernel}, range)}},
        {{"group", graph::attribute::of(groups)},
         {"kernel_shape", graph::attribute::of(std::vector{kernel, kernel})},
         {"pads", graph::attribute::of(std::vector{pad, pad, pad, pad})}});
    add("BatchNormalization", name + "_bn",
        {{"scale", all(outputs, 1.0F)},
         {"bias", all(outputs, 0.0F)},
         {"mean", all(outputs, 0.0F)},
         {"var", all(outputs, 1.0F)}});
    add("Relu", name + "_relu");
  }

  using constants = std::vector<std::pair<std::string, graph::tensor>>;
  using attributes = std::map<std::string, graph::attribute, std::less<>>;
  void add(const std::string& op_type, const std::string& name, const constants& taken = {},
           attributes given = {}) {
    graph::node n;
    n.op_type = op_type;
    n.name = name;
    n.inputs = {last_};
    for (const auto& [key, t] : taken) {
      n.inputs.push_back(name + "_" + key);
      network_.initializers[n.inputs.back()] = t;
    }
    n.outputs = {last_ = name + "_out"};
    n.attributes = std::move(given);
    network_.nodes.push_back(std::move(n));
  }

  [[nodiscard]] graph::model finish() {
    network_.nodes.back().outputs = {"logits"};
    network_.outputs.push_back(value("logits", {-1, 10}));
    return network_;
  }

  /// Weights of equal distribution, whose squares are 2 / (inputs of an output) in the mean.
  [[nodiscard]] graph::tensor random(graph::shape dims, float range = 1.0F) {
    const std::size_t count = graph::element_count(dims);
    const auto inputs = static_cast<float>(count / static_cast<std::size_t>(dims[0]));
    std::vector<float> values(count);
    for (float& v : values) {
      // A whole multiple of 2^-31, from -1 on; std::mt19937 gives the same bits everywhere.
      const float unit = static_cast<float>(bits_() >> 8) * 0x1p-23F - 1.0F;
      v = unit * std::sqrt(6.0F / inputs) * range;
    }
    return graph::tensor::of(graph::element_type::f32, std::move(dims),
                             std::span<const float>(values));
  }
  [[nodiscard]] static graph::tensor all(std::int64_t count, float value) {
    const std::vector<float> values(static_cast<std::size_t>(count), value);
    return graph::tensor::of(graph::element_type::f32, {count}, std::span<const float>(values));
  }

 private:
  static graph::value_info value(const std::string& name, graph::shape dims) {
    graph::value_info v;
    v.name = name;
    v.type = graph::element_type::f32;
    v.has_shape = true;
    v.params.resize(dims.size());
    v.params[0] = "batch";
    v.dims = std::move(dims);
    return v;
  }

  graph::model network_;
  std::string last_ = "image";
  std::mt19937 bits_{1998};
};

/// The network of digits.onnx (train.py) with random weights.
graph::model untrained() {
  chain c;
  c.convolution("conv1", 16, 1, 3, 1);
  c.convolution("conv2_dw", 16, 1, 3, 16);
  c.convolution("conv2_pw", 32, 16, 1, 1);
  c.add("MaxPool", "pool", {},
        {{"kernel_shape", graph::attribute::of(std::vector<std::int64_t>{2, 2})},
         {"strides", graph::attribute::of(std::vector<std::int64_t>{2, 2})}});
  c.convolution("conv3_dw", 32, 1, 3, 32);
  c.convolution("conv3_pw", 64, 32, 1, 1);
  c.add("GlobalAveragePool", "global_pool");
  c.add("Flatten", "flatten");
  c.add("Gemm", "classifier", {{"weight", c.random({10, 64})}, {"bias", chain::all(10, 0.0F)}},
        {{"transB", graph::attribute::of(std::int64_t{1})}});
  return c.finish();
}

/// The samples of two files; images may be stored in bytes.
graph::training_data samples(const std::string& images, const std::string& labels) {
  graph::tensor pixels = graph::read_npy(images);
  if (pixels.type() == graph::element_type::u8) {
    const std::vector<float> values(pixels.data<std::uint8_t>().begin(),
                                    pixels.data<std::uint8_t>().end());
    pixels =
        graph::tensor::of(graph::element_type::f32, pixels.dims(), std::span<const float>(values));
  }
  return graph::in_memory({{"image", pixels}}, graph::read_npy(labels));
}

/// Top-1 accuracy in percent.
double accuracy(const graph::model& m, const graph::training_data& data) {
  graph::executor run(graph::for_execution(m));
  return 100.0 * graph::evaluate(run, data, {}, 0, 120).accuracy;
}

/// The accuracies of a model whose rounding was chosen without training, and with it.
struct accuracies {
  double before, trained;
};

accuracies quantize(const graph::model& network, const graph::training_data& data,
                    const graph::training_data& held_out, std::size_t weights,
                    std::size_t activations, const std::string& file) {
  graph::quantization_aware_training_options options;
  options.weights.bits = weights;
  options.activations.bits = activations;
  options.training.epochs = 20;
  options.training.learning_rate = 1e-3;
  // The float network has all training images right, so it has more to teach than the labels.
  options.training.loss.distillation = 1.0;
  const auto trained = graph::quantization_aware_training(network, data, data, options);
  const graph::calibration_source images =
      [&, at = std::size_t{0}]() mutable -> std::optional<std::map<std::string, graph::tensor>> {
    if (at == options.calibration_samples) {
      at = 0;
      return std::nullopt;
    }
    const std::size_t index = at++;
    return data.batch({&index, 1}).inputs;
  };
  const graph::quantization before = graph::static_quantization(
      network, images,
      {.method = options.method, .activations = options.activations, .weights = options.weights});
  if (!file.empty()) {
    graph::write_onnx(before.result, file + ".static.onnx");
    graph::write_onnx(trained.quantized.result, file + ".trained.onnx");
  }
  return {accuracy(before.result, held_out), accuracy(trained.quantized.result, held_out)};
}

int run(const std::string& folder, const std::string& models) {
  const graph::training_data data =
      samples(folder + "/training_images.npy", folder + "/training_labels.npy");
  const graph::training_data held_out =
      samples(folder + "/test_images.npy", folder + "/test_labels.npy");
  graph::training_options options;
  options.epochs = 40;
  options.batch_size = 16;
  options.learning_rate = 1e-2;
  options.weight_decay = 0.2;
  options.loss.label_smoothing = 0.1;
  const graph::model network = graph::train(untrained(), data, data, options).trained;
  if (!models.empty()) {
    graph::write_onnx(network, models + "/float.onnx");
  }
  const double of_float = accuracy(network, held_out);
  std::printf("float: %.2f\nweights activations static trained\n", of_float);
  bool good = of_float >= 99.0;
  for (const auto& [weights, activations] :
       {std::pair<std::size_t, std::size_t>{8, 8}, {4, 4}, {3, 8}, {2, 8}, {2, 4}}) {
    const std::string name = "w" + std::to_string(weights) + "a" + std::to_string(activations);
    const accuracies a = quantize(network, data, held_out, weights, activations,
                                  models.empty() ? models : models + "/" + name);
    std::printf("%zu %zu %.2f %.2f\n", weights, activations, a.before, a.trained);
    const double least = weights >= 4 ? of_float - 0.5 : activations == 8 ? 95.0 : 90.0;
    good = good && a.trained >= least;
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2 && count != 3) {
    std::fprintf(stderr, "usage: train_digits FOLDER_OF_DIGITS [FOLDER_FOR_MODELS]\n");
    return 2;
  }
  try {
    return run(arguments[1], count == 3 ? arguments[2] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
