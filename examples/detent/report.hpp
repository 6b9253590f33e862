// SPDX-License-Identifier: BSD-3-Clause
// What a quantization did, as one HTML page that needs nothing else: no network, no script, no
// fonts. A function of its data alone: it reads no clock, no file and no environment.
//
// Everything is optional. What was not measured is left out or shown as a dash, an empty list has a
// sentence in place of its table. Texts are shown as they are, whatever is in them; numbers that
// are not finite are shown as such.
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
  std::optional<double> snr_db;     // 10 log10(signal / noise); infinite: nothing differs
  std::optional<double> cosine;     // of the two as vectors
  std::optional<double> max_error;  // largest |difference|
};

/// A float tensor that became an integer one.
struct report_activation {
  std::string tensor;
  std::string op;      // what makes it, as node::label() says; empty for inputs of the model
  double scale = 0.0;  // real = scale * (q - zero_point)
  std::int64_t zero_point = 0;
  std::string grid;    // the integers, such as "uint8"
  std::string method;  // what chose the scale
  double lower = 0.0;  // smallest and largest value that calibration saw
  double upper = 0.0;
  double clip_lower = 0.0;  // reals of the smallest and the largest integer: what lies outside is
  double clip_upper = 0.0;  // clipped
  std::optional<double> clipped_fraction;  // of the values seen, 0 .. 1
  report_difference difference;
  plot_histogram histogram;  // of the values seen; empty: no plot
};

/// A constant that became integers.
struct report_weight {
  std::string tensor;
  std::string op;  // the layer that it belongs to
  std::vector<std::int64_t> shape;
  std::string grid;         // "int8", "int4"
  std::string granularity;  // "per tensor", "per channel, axis 0", "groups of 32"
  std::string method;       // what chose the integers; may be empty
  std::size_t scales = 0;   // how many, and the smallest and largest of them; 0: not told
  double smallest_scale = 0.0;
  double largest_scale = 0.0;
  std::optional<double> mse;  // mean of (weight - its quantized form)^2
  std::optional<double> snr_db;
  plot_histogram before;  // of the weights, and of the reals that their integers stand
  plot_histogram after;   // for; see make_weight_plots()
};

/// An output of the graph.
struct report_output {
  std::string name;
  report_difference difference;
};

/// On labelled samples, in percent.
struct report_accuracy {
  double top1_before = 0.0;
  double top1_after = 0.0;
  std::optional<double> top5_before;
  std::optional<double> top5_after;
  std::size_t samples = 0;
};

enum class step_outcome : std::uint8_t {
  kept,     // it is part of the result
  dropped,  // it was tried and taken back
  skipped,  // there was nothing to do
};

/// A step of the pipeline: what was tried, what it did to the error, and what became of it.
struct report_step {
  std::string name;     // "bias correction"
  std::string detail;   // a sentence or a few words; may be empty
  std::string measure;  // of which error the numbers are: "MSE of the outputs"; smaller is better
  std::optional<double> error_before;
  std::optional<double> error_after;
  step_outcome outcome = step_outcome::kept;
};

struct report_data {
  std::string model;  // the file that was quantized, and the one that was written
  std::string output;
  std::uint64_t bytes_before = 0;  // sizes of the two files; 0: unknown
  std::uint64_t bytes_after = 0;
  std::size_t calibration_samples = 0;
  std::optional<double> seconds;  // that the quantization took
  std::optional<report_accuracy> accuracy;
  std::optional<double> agreement;  // percent of samples with the same class first in both models
  std::vector<report_activation> activations;  // in the order of the graph
  std::vector<report_weight> weights;          // in the order of the graph
  std::vector<report_output> outputs;
  std::vector<report_step> steps;  // in the order in which they were tried
  std::vector<std::pair<std::string, std::string>> options;  // names and values
  std::vector<std::string> notes;  // to know first: warnings, layers left in float
};

/// The page: UTF-8, well-formed as HTML and as XML. Throws nothing but std::bad_alloc.
[[nodiscard]] std::string html_report(const report_data& data);

}  // namespace detent_cli

#endif  // DETENT_CLI_REPORT_HPP
