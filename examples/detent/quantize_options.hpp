// SPDX-License-Identifier: BSD-3-Clause
// The command line options of `detent quantize`.
#ifndef DETENT_CLI_QUANTIZE_OPTIONS_HPP
#define DETENT_CLI_QUANTIZE_OPTIONS_HPP

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>

#include "commands.hpp"
#include "nncf_pipeline.hpp"
#include "ppq_options.hpp"
#include "quantize_config.hpp"

namespace detent_cli {

/// The text in lower case; only ASCII letters change.
std::string lower_case(std::string text);

/// Gives options the values that a configuration file has for them, through the checks of the
/// command line; options that are on the command line keep their values. Throws usage_error, with
/// the place in the file, for options that do not exist and values that are refused.
void apply_flags(CLI::App& command, const std::vector<quantize_config::option>& flags);

/// Adds the options that say what is observed of samples: how ranges of activations are found, and
/// what else depends on samples.
void add_range_options(CLI::App& command, detent::graph::quantization_settings& s);

/// The long names of the options that are on the command line, or have values from a file.
std::set<std::string> given_options(const CLI::App& command);

using activation_overrides = std::map<std::string, detent::graph::activation_override>;

/// Throws usage_error if a configuration file had rules for nodes, operators or tensors, which
/// `with`, an option and its value, does not have.
void require_no_rules(const std::string& with, const detent::graph::quantization_scope& scope,
                      const activation_overrides& overrides);

/// Adds the nodes that a configuration file leaves in float to those of --ignore. Throws
/// usage_error for its other rules, which --pipeline nncf does not have.
void add_ignored_nodes(nncf_arguments& a, detent::graph::quantization_scope scope,
                       const activation_overrides& overrides);

class quantize_options {
 public:
  explicit quantize_options(CLI::App& command);

  /// Returns the arguments, completed from the configuration file and by what they imply. To be
  /// called after the command line was parsed. Throws usage_error for arguments that do not exist
  /// or do not go together.
  quantize_arguments arguments();

 private:
  [[nodiscard]] bool has(const char* flag) const { return !command_.get_option(flag)->empty(); }
  void read_tuning(const std::string& text);
  void read_config();
  void require_no_samples() const;
  void complete_from_states();
  void require_files();

  CLI::App& command_;
  quantize_arguments a_;
  std::string config_;
  std::string pipeline_ = "auto";
  std::optional<ppq_options> ppq_;
  detent::graph::quantization_settings s_;
  nncf_flags nncf_;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_QUANTIZE_OPTIONS_HPP
