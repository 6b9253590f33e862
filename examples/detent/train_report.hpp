// SPDX-License-Identifier: BSD-3-Clause
// A report on training as one HTML page that needs nothing else: curves of loss, accuracy, learning
// rate and scales over the epochs, and what it did to the model. The page is a function of its data
// alone.
#ifndef DETENT_CLI_TRAIN_REPORT_HPP
#define DETENT_CLI_TRAIN_REPORT_HPP

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/learn/training_checkpoint.hpp>

namespace detent_cli {

struct train_report_data {
  std::string model;   // the file that was trained
  std::string output;  // the file that was written
  std::size_t samples = 0;
  std::size_t validation_samples = 0;
  std::optional<detent::graph::training_score> float_score;  // of the float model, if it is another
  detent::graph::training_score before;
  std::vector<detent::graph::epoch_report> epochs;
  std::optional<std::size_t> best_epoch;
  std::vector<std::pair<std::string, std::string>> options;  // names and values
  std::vector<std::string> notes;                            // shown first
};

/// The report as a page in UTF-8 that is well-formed as HTML and as XML. Throws nothing but
/// std::bad_alloc.
[[nodiscard]] std::string html_report(const train_report_data& data);

}  // namespace detent_cli

#endif  // DETENT_CLI_TRAIN_REPORT_HPP
