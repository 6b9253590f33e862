// SPDX-License-Identifier: BSD-3-Clause
// The command line options of `detent observe`.
#ifndef DETENT_CLI_OBSERVE_OPTIONS_HPP
#define DETENT_CLI_OBSERVE_OPTIONS_HPP

#include <string>

#include <CLI/CLI.hpp>

#include <detent/graph/configuration/quantization_job.hpp>

#include "commands.hpp"
#include "nncf_pipeline.hpp"

namespace detent_cli {

class observe_options {
 public:
  explicit observe_options(CLI::App& command);

  /// Returns the arguments, completed from the configuration file, from the states to go on from,
  /// and by what they imply. To be called after the command line was parsed. Throws usage_error for
  /// arguments that do not exist or do not go together.
  observe_arguments arguments();

 private:
  [[nodiscard]] bool has(const char* flag) const { return !command_.get_option(flag)->empty(); }
  void read_config();
  void read_nncf();

  CLI::App& command_;
  observe_arguments a_;
  std::string config_;
  std::string pipeline_ = "auto";
  detent::graph::quantization_settings s_;
  nncf_flags nncf_;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_OBSERVE_OPTIONS_HPP
