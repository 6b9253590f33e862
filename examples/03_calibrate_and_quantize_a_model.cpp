// SPDX-License-Identifier: BSD-3-Clause
// Reads a float ONNX model, finds the ranges of its values by running it on samples, quantizes it
// (activations uint8, weights int8 with a scale for each channel), writes the result as an ONNX
// model with QuantizeLinear and DequantizeLinear nodes, and compares both models on the samples.
// The model has one input, and the first axis of SAMPLES.npy counts samples. Needs protozero.
// Build (sh examples/run.sh prepares build/release), and run; examples/digits holds both files:
//   cmake --build build/release --target example_03_calibrate_and_quantize_a_model
//   build/release/examples/03_calibrate_and_quantize_a_model MODEL.onnx SAMPLES.npy OUT.onnx
#include <cstddef>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <string>

#include <detent/graph/model/samples.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

namespace {

namespace graph = detent::graph;

double calibrate_and_quantize(const std::string& in, const std::string& samples,
                              const std::string& out) {
  const graph::model float_model = graph::read_onnx(in);
  const graph::sample_set rows(float_model, {samples});

  // Each call returns the inputs of one run by name, here one row, or nothing at the end of a pass.
  // The call after that begins the next pass.
  const graph::calibration_source source =
      [&, at = std::size_t{0}]() mutable -> std::optional<std::map<std::string, graph::tensor>> {
    if (at == rows.size()) {
      at = 0;
      return std::nullopt;
    }
    return rows.batch(at++, 1);
  };

  graph::static_quantization_options options;
  options.method = "percentile";  // any name of detent::default_observers().names()
  graph::write_onnx(graph::static_quantization(float_model, source, options).result, out);

  // for_execution() turns the quantized regions of the written model into integer operators.
  graph::executor reference(graph::for_execution(float_model));
  graph::executor quantized(graph::for_execution(graph::read_onnx(out)));
  graph::signal_error error;
  while (const auto inputs = source()) {
    error.add(reference.run(*inputs)[0].data<float>(), quantized.run(*inputs)[0].data<float>());
  }
  std::printf("%s: %.1f dB signal-to-noise, largest error %.3g\n", out.c_str(), error.snr_db(),
              error.largest());
  return error.snr_db();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL.onnx SAMPLES.npy OUT.onnx\n", argv[0]);
    return 2;
  }
  try {
    return calibrate_and_quantize(argv[1], argv[2], argv[3]) >= 20.0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
