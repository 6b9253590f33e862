// SPDX-License-Identifier: BSD-3-Clause
#include "command_help.hpp"

#include <map>
#include <string>
#include <vector>

namespace detent_cli {
namespace {

using text_lines = std::vector<std::string>;

const std::map<std::string, text_lines>& all_examples() {
  static const std::map<std::string, text_lines> all = {
      {"quantize",
       {"detent quantize digits.onnx -o int8.onnx --calib calibration_images.npy",
        "detent quantize digits.onnx -o dynamic.onnx --approach dynamic",
        "detent quantize digits.onnx -o nncf.onnx --pipeline nncf --preset mixed --calib "
        "calibration_images.npy",
        "detent quantize digits.onnx -o int4.onnx --pipeline nncf --compress int4-sym "
        "--group-size 16 --all-layers",
        "detent quantize digits.onnx -o trt.onnx --pipeline ppq --platform TRT_INT8 --calib "
        "calibration_images.npy --export trt-json=trt.json"}},
      {"observe",
       {"detent observe digits.onnx --calib calibration_images.npy --method kl -o 1.states",
        "detent observe digits.onnx --states 1.states -o all.states",
        "detent observe digits.onnx --calib calibration_images.npy --pipeline nncf -o "
        "nncf.states"}},
      {"train",
       {"detent train digits.onnx -o trained.onnx --data training_images.npy --labels "
        "training_labels.npy --bits-weights 2 --epochs 2"}},
      {"eval", {"detent eval digits.onnx --data test_images.npy --labels test_labels.npy"}},
      {"run", {"detent run digits.onnx --input test_images.npy -o outputs"}},
      {"compare", {"detent compare digits.onnx int8.onnx --data test_images.npy --samples 0:50"}},
      {"inspect", {"detent inspect digits.onnx"}},
      {"conformance", {"detent conformance node_tests"}},
      {"targets", {"detent targets --json"}},
      {"completion", {"detent completion bash > detent.bash"}},
      {"man", {"detent man > detent.1"}},
      {"help", {"detent help quantize"}},
  };
  return all;
}

}  // namespace

void set_group(CLI::App& command, const std::string& heading, const text_lines& options) {
  for (const std::string& name : options) {
    command.get_option(name)->group(heading);
  }
}

text_lines examples_of(const std::string& command) {
  const auto found = all_examples().find(command);
  return found == all_examples().end() ? text_lines() : found->second;
}

void complete_help(CLI::App& app) {
  CLI::App& quantize = *app.get_subcommand("quantize");
  set_group(quantize, "Files",
            {"--output", "--config", "--report", "--plugin", "--external-data-from"});
  set_group(quantize, "Samples", {"--calib", "--samples", "--states", "--validation", "--labels"});
  set_group(quantize, "What is made",
            {"--pipeline", "--approach", "--format", "--granularity", "--bits", "--reduce-range"});
  set_group(quantize, "Static quantization",
            {"--activations", "--activation-bits", "--symmetric-activations", "--method",
             "--percentile", "--bias-correction", "--weight-scales", "--max-drop", "--budget"});
  set_group(quantize, "Dynamic quantization", {"--weights"});
  set_group(quantize, "Weight-only quantization", {"--weight-algorithm", "--block-size"});
  set_group(quantize, "NNCF (--pipeline nncf)",
            {"--mode", "--preset", "--model-type", "--target-device", "--ignore", "--smooth-quant",
             "--overflow-fix"});
  set_group(quantize, "NNCF's compression of weights (--pipeline nncf --compress)",
            {"--compress", "--ratio", "--group-size", "--group-size-fallback", "--sensitivity",
             "--backup", "--all-layers", "--awq", "--scale-estimation"});
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    std::string text;
    for (const std::string& example : examples_of(command->get_name())) {
      text += (text.empty() ? "Examples, in the folder examples/digits:\n  " : "\n  ") + example;
    }
    command->footer(text);
  }
}

}  // namespace detent_cli
