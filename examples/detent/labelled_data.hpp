// SPDX-License-Identifier: BSD-3-Clause
// Samples with labels from files, for training.
#ifndef DETENT_CLI_LABELLED_DATA_HPP
#define DETENT_CLI_LABELLED_DATA_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/learn/training_data.hpp>
#include <detent/graph/model/fingerprint.hpp>

#include "samples.hpp"

namespace detent_cli {

/// Samples and their labels, held in memory.
struct labelled_data {
  std::map<std::string, tensor> inputs;  // the first axis counts the samples
  std::map<std::string, tensor> fixed;   // what each run takes as a whole
  tensor labels;                         // int64: classes; float32: values
  std::size_t fixed_batch = 0;           // samples in a run, if the model fixes their number

  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(labels.dim(0)); }
  /// All samples, or those of some indices.
  [[nodiscard]] detent::graph::training_data all() const;
  [[nodiscard]] detent::graph::training_data part(std::vector<std::size_t> indices) const;
  void add_to(detent::graph::fingerprint& f) const;
};

/// Reads the samples that `texts` (the values of `option`) name and a .npy file with a label for
/// each. Labels of any integer type are classes; float32 and float64 labels are values. Throws
/// usage_error and detent::error, which name the option or the file, if something is missing or
/// does not fit: samples count along another axis than the first, or are in a folder; there are
/// more samples than labels, or fewer.
labelled_data read_labelled_data(const model& m, const std::vector<std::string>& texts,
                                 const std::string& option, const std::string& labels,
                                 const common_arguments& a);

}  // namespace detent_cli

#endif  // DETENT_CLI_LABELLED_DATA_HPP
