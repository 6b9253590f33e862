// SPDX-License-Identifier: BSD-3-Clause
// Compares a float model and a quantized model that run on the same samples: errors of values, and
// ranks of classes.
#ifndef DETENT_CLI_COMPARISON_HPP
#define DETENT_CLI_COMPARISON_HPP

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/error_analysis.hpp>

#include "samples.hpp"

namespace detent_cli {

using named_error = std::pair<std::string, detent::graph::signal_error>;

/// How a tensor of the quantized model differs from that of the float model with the same name.
struct tensor_comparison {
  std::string name;
  detent::graph::signal_error error;
  /// The SNR without a factor for each channel by which the two differ, if they do.
  std::optional<double> rescaled_snr;
};

struct model_comparison {
  /// Those that both models have, in the quantized model's order.
  std::vector<tensor_comparison> tensors;
  std::vector<named_error> outputs;
  std::size_t agreed =
      0;  // number of rows of scores in which both models rank the same class first
  std::size_t judged = 0;  // number of rows of scores to rank: one for each sample, see score_rows
};

/// Runs both models on all samples. `on_value`, if it is given, is called with each value of the
/// float model. Throws shape_mismatch if the outputs differ in number, type or shape.
model_comparison compare_models(
    const model& reference, const model& quantized, const sample_set& samples, std::size_t batch,
    const detent::graph::executor_options& options,
    const std::function<void(const std::string& name, const tensor& value)>& on_value = {});

/// The index of the largest of n scores; the first one if several are equal, and none if one of
/// them is NaN.
std::optional<std::size_t> arg_max(const float* scores, std::size_t n);

/// The first output of a run of `batch` samples as rows of float scores: one for each sample or, if
/// each sample has a run of its own, one for each index of the first axis. Throws unsupported if it
/// is something else.
struct score_rows {
  tensor scores;
  const float* data;
  std::size_t rows, columns;
  score_rows(const std::vector<tensor>& outputs, const std::vector<value_info>& declared,
             const sample_set& samples, std::size_t batch);
  /// Throws unsupported unless there is one row for each of `batch` samples.
  void require_rows(std::size_t batch) const;
};

/// An output of a run of `batch` samples, reordered if another axis than the first counts samples.
tensor in_rows(const tensor& output, const value_info& declared, const sample_set& samples,
               std::size_t batch);

/// How often the label has the highest score, and how often one of the five highest scores. Equal
/// scores rank in the order of the classes.
struct ranks {
  std::size_t top1 = 0, top5 = 0;
  /// Counts one sample. Throws invalid_argument, with `where` in the message, if the label is none
  /// of the classes.
  void add(const float* scores, std::size_t classes, std::int64_t label, const std::string& where);
};

double percent(std::size_t part, std::size_t whole);

/// The number of samples in one run: the number that model and samples fix, else `asked`, or 1 if
/// `asked` is 0. Throws invalid_argument if they fix another number than `asked`.
std::size_t batch_size(const sample_set& samples, std::size_t asked);

/// Reads a .npy file that has one integer for each sample. Errors name the file.
std::vector<std::int64_t> read_labels(const std::string& path, std::size_t samples);

}  // namespace detent_cli

#endif  // DETENT_CLI_COMPARISON_HPP
