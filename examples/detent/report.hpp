// SPDX-License-Identifier: BSD-3-Clause
// A report on a quantization as one HTML page that needs nothing else: no network, no script, no
// fonts. The page is a function of its data alone: it depends on no clock, no file and no
// environment.
//
// All data are optional. Values that were not measured are left out or shown as a dash, and an
// empty list has a sentence in place of its table. Texts are shown as they are, whatever is in
// them; numbers that are not finite are shown as such.
#ifndef DETENT_CLI_REPORT_HPP
#define DETENT_CLI_REPORT_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "histogram_plot.hpp"

namespace detent_cli {

/// How far the values of the quantized model are from those of the original one.
struct report_difference {
  std::optional<double> snr_db;     // 10 log10(signal / noise); infinite if nothing differs
  std::optional<double> cosine;     // of the angle between the values as vectors
  std::optional<double> max_error;  // largest |difference|
};

/// A float tensor that became an integer one.
struct report_activation {
  std::string tensor;
  std::string op;      // node::label() of the node that makes it; empty for inputs of the model
  double scale = 0.0;  // real = scale * (q - zero_point)
  std::int64_t zero_point = 0;
  std::string grid;         // the integers, such as "uint8"
  std::string method;       // the method that chose the scale
  double lower = 0.0;       // the smallest value that calibration saw
  double upper = 0.0;       // the largest value that calibration saw
  double clip_lower = 0.0;  // the value of the smallest integer; values below it are clipped
  double clip_upper = 0.0;  // the value of the largest integer; values above it are clipped
  std::optional<double> clipped_fraction;  // share of the values seen that are clipped, 0 .. 1
  report_difference difference;
  plot_histogram histogram;  // of the values seen; without counts there is no plot
};

/// A constant that became integers.
struct report_weight {
  std::string tensor;
  std::string op;  // the layer that it belongs to
  std::vector<std::int64_t> shape;
  std::string grid;         // the integers, such as "int8" or "int4"
  std::string granularity;  // such as "per tensor", "per channel, axis 0" or "groups of 32"
  std::string method;       // the method that chose the integers; may be empty
  std::size_t scales = 0;   // number of scales; 0: nothing is known of the scales
  double smallest_scale = 0.0;
  double largest_scale = 0.0;
  std::optional<double> mse;  // mean of (weight - its quantized form)^2
  std::optional<double> snr_db;
  plot_histogram before;  // of the weights; make_weight_plots() makes both plots
  plot_histogram after;   // of the values that their integers stand for
};

/// An output of the graph.
struct report_output {
  std::string name;
  report_difference difference;
};

/// The accuracy of both models on labelled samples, in percent.
struct report_accuracy {
  double top1_before = 0.0;
  double top1_after = 0.0;
  std::optional<double> top5_before;
  std::optional<double> top5_after;
  std::size_t samples = 0;
};

enum class step_outcome : std::uint8_t {
  kept,     // the step is part of the result
  dropped,  // the step was tried and taken back
  skipped,  // the step had nothing to do
};

/// A step of the pipeline: what was tried, what it did to the error, and what became of it.
struct report_step {
  std::string name;     // such as "bias correction"
  std::string detail;   // a sentence or a few words; may be empty
  std::string measure;  // the kind of error, such as "MSE of the outputs"; smaller is better
  std::optional<double> error_before;
  std::optional<double> error_after;
  step_outcome outcome = step_outcome::kept;
};

struct report_data {
  std::string model;               // the file that was quantized
  std::string output;              // the file that was written
  std::uint64_t bytes_before = 0;  // the size of `model`; 0: unknown
  std::uint64_t bytes_after = 0;   // the size of `output`; 0: unknown
  std::size_t calibration_samples = 0;
  std::optional<double> seconds;  // the time that the quantization took
  std::optional<report_accuracy> accuracy;
  std::optional<double> agreement;  // percent of samples with the same class first in both models
  std::vector<report_activation> activations;  // in the order of the graph
  std::vector<report_weight> weights;          // in the order of the graph
  std::vector<report_output> outputs;
  std::vector<report_step> steps;  // in the order in which they were tried
  std::vector<std::pair<std::string, std::string>> options;  // names and values
  std::vector<std::string> notes;  // shown first: warnings, layers left in float
};

/// The report as a page in UTF-8 that is well-formed as HTML and as XML. Throws nothing but
/// std::bad_alloc.
[[nodiscard]] std::string html_report(const report_data& data);

}  // namespace detent_cli

#endif  // DETENT_CLI_REPORT_HPP
