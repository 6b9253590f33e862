// SPDX-License-Identifier: BSD-3-Clause
// Runs a float model and a quantized one side by side.
#ifndef DETENT_CLI_COMPARISON_HPP
#define DETENT_CLI_COMPARISON_HPP

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/error_analysis.hpp>

#include "samples.hpp"

namespace detent_cli {

using named_error = std::pair<std::string, detent::graph::signal_error>;

struct model_comparison {
  std::vector<named_error> tensors;  // that both have, in the order of the quantized model
  std::vector<named_error> outputs;
  std::size_t agreed = 0;  // samples of which both rank the same class first
  std::size_t judged = 0;
};

/// `on_value` is told of the float model's values. Throws shape_mismatch if the outputs differ in
/// number, type or shape.
model_comparison compare_models(
    const model& reference, const model& quantized, const sample_set& samples, std::size_t batch,
    const std::function<void(const std::string& name, const tensor& value)>& on_value = {});

/// The index of the largest score of each sample; the first one where several are equal.
std::size_t arg_max(const float* scores, std::size_t n);

/// Output 0 as one row of float scores for each sample.
struct score_rows {
  const float* data;
  std::size_t rows, columns;
  score_rows(const std::vector<tensor>& outputs, std::size_t batch);
};

/// How often the label is first, and among the first five. Equal scores count in the order of the
/// classes.
struct ranks {
  std::size_t top1 = 0, top5 = 0;
  /// Throws invalid_argument if the label is none of the classes; `where` is for that message.
  void add(const float* scores, std::size_t classes, std::int64_t label, const std::string& where);
};

double percent(std::size_t part, std::size_t whole);

/// The samples in one run: what the model fixes, or `asked`, or 1. Throws invalid_argument if the
/// model fixes another number than `asked`.
std::size_t batch_size(const sample_set& samples, std::size_t asked);

/// One integer for each sample. Throws naming the file.
std::vector<std::int64_t> read_labels(const std::string& path, std::size_t samples);

}  // namespace detent_cli

#endif  // DETENT_CLI_COMPARISON_HPP
