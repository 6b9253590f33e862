// SPDX-License-Identifier: BSD-3-Clause
// The command `detent train`: trains a float model, or a model as the quantized one that it
// becomes.
#ifndef DETENT_CLI_TRAIN_HPP
#define DETENT_CLI_TRAIN_HPP

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/quantization_aware_training.hpp>

#include "commands.hpp"
#include "common_arguments.hpp"

namespace detent_cli {

struct train_arguments : common_arguments {
  std::string model, output;
  std::vector<std::string> data;  // files of samples, as sample_set takes them
  std::string labels;             // .npy with their labels
  // Samples that measure each epoch; without any, a share of the others is held out.
  std::vector<std::string> validation;
  std::string validation_labels;
  double hold_out = 0.1;        // 0: epochs are measured with the samples of training
  bool is_quantized = true;     // approach qat; else float
  bool is_qoperator = false;    // format
  bool has_batch_size = false;  // whether the size of a batch was asked for
  detent::graph::quantization_aware_training_options options;
  std::string checkpoint;  // folder; may be empty
  std::string report;      // HTML file; may be empty
  std::size_t threads = 1;
  // A model of so many bytes or more is written with external data.
  std::size_t external_data_from = std::size_t{1} << 31U;
  // What the accuracy may lose against the float model; a warning says if it is missed.
  std::optional<detent::graph::accuracy_goal> goal;
};

int train(const train_arguments& a);

/// Trains as a configuration of Neural Compressor says (quantize_arguments::tuning), with the
/// approach quant_aware_training. Throws usage_error for options that have no effect then.
int train_as_configured(const quantize_arguments& a);

}  // namespace detent_cli

#endif  // DETENT_CLI_TRAIN_HPP
