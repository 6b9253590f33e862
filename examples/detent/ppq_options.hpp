// SPDX-License-Identifier: BSD-3-Clause
// The command line options of `detent quantize --pipeline ppq`.
#ifndef DETENT_CLI_PPQ_OPTIONS_HPP
#define DETENT_CLI_PPQ_OPTIONS_HPP

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "ppq_arguments.hpp"

namespace detent_cli {

class ppq_options {
 public:
  explicit ppq_options(CLI::App& command);

  /// Returns the arguments. To be called after the command line was parsed, for --pipeline ppq.
  /// Throws usage_error for options of other pipelines.
  ppq_arguments arguments();

  /// Throws usage_error if one of these options is given, for other pipelines than ppq.
  void require_unused() const;

 private:
  CLI::App& command_;
  ppq_arguments a_;
  std::vector<std::string> exports_;  // KIND=FILE
};

}  // namespace detent_cli

#endif  // DETENT_CLI_PPQ_OPTIONS_HPP
