// SPDX-License-Identifier: BSD-3-Clause
// The command line options of `detent train`.
#ifndef DETENT_CLI_TRAIN_OPTIONS_HPP
#define DETENT_CLI_TRAIN_OPTIONS_HPP

#include <cstddef>
#include <string>

#include <CLI/CLI.hpp>

#include "train.hpp"

namespace detent_cli {

class train_options {
 public:
  explicit train_options(CLI::App& command);

  /// Returns the arguments, completed from the configuration file and by what they imply. To be
  /// called after the command line was parsed. Throws usage_error for arguments that do not exist
  /// or do not go together.
  train_arguments arguments();

 private:
  [[nodiscard]] bool has(const char* flag) const { return !command_.get_option(flag)->empty(); }
  void add_training();
  void add_quantization();
  /// Ends the descriptions of options with the values that they have if they are not given.
  void add_defaults();
  void read_config();
  void complete_training();
  void complete_quantization();
  void require_effect() const;

  CLI::App& command_;
  train_arguments a_;
  std::string config_;
  std::string approach_ = "qat";
  std::string format_ = "qdq";
  std::string optimizer_ = "adamw";
  std::string schedule_ = "cosine";
  std::string activations_ = "u8";
  std::string rule_ = "lsq";
  std::string granularity_ = "per-channel";
  double clip_gradients_ = 0.0;
  double flip_ = 0.0;
  std::size_t shift_ = 0;
  std::size_t freeze_statistics_after_ = 0;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_TRAIN_OPTIONS_HPP
