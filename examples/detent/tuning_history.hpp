// SPDX-License-Identifier: BSD-3-Clause
// The file that keeps the trials of a search, so that a later one can go on from them.
#ifndef DETENT_CLI_TUNING_HISTORY_HPP
#define DETENT_CLI_TUNING_HISTORY_HPP

#include <string>
#include <vector>

#include <detent/graph/quantize/tuning_options.hpp>

namespace detent_cli {

class tuning_history {
 public:
  /// `subject` tells searches apart whose trials do not fit each other: the model, the data, the
  /// metric, the options of quantization. `path` is the file to write.
  tuning_history(std::string path, std::string subject)
      : path_(std::move(path)), subject_(std::move(subject)) {}

  /// The trials of a file, which from then on belong to this history, too. Throws detent::error,
  /// naming the file, if it cannot be read, is no history, or is one of another subject.
  [[nodiscard]] std::vector<detent::graph::tuning_trial> read(const std::string& path);

  /// Adds a trial, in the place of one with the same setting if there is one, and writes the file
  /// anew. Throws io if it cannot be written; the trial is kept all the same.
  void add(const detent::graph::tuning_trial& t);

 private:
  std::string path_;
  std::string subject_;
  std::vector<detent::graph::tuning_trial> trials_;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_TUNING_HISTORY_HPP
