// SPDX-License-Identifier: BSD-3-Clause
// `detent quantize --pipeline nncf`: its options, and the job. Another pipeline has a file of this
// form, its name in pipeline_names, and a line in quantize().
#ifndef DETENT_CLI_NNCF_PIPELINE_HPP
#define DETENT_CLI_NNCF_PIPELINE_HPP

#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/graph/quantize/calibration.hpp>

#include "commands.hpp"
#include "nncf_compression.hpp"
#include "quantize_report.hpp"

namespace detent_cli {

/// The options of --pipeline nncf.
class nncf_flags {
 public:
  explicit nncf_flags(CLI::App& command);

  /// What the options say, completed from those that all pipelines have: `bias_correction` is none,
  /// fast, full or auto. `given` has the names of all options that were given. Throws usage_error
  /// for options that the pipeline does not have.
  [[nodiscard]] nncf_arguments arguments(const std::set<std::string>& given,
                                         const std::string& bias_correction) const;
  /// Throws usage_error if one of the options was given, which another pipeline does not have.
  void require_none(const std::set<std::string>& given, const std::string& pipeline) const;

 private:
  nncf_compression_flags compression_;
  nncf_arguments a_;
  std::vector<std::string> ignored_;
  std::vector<float> alpha_;
};

/// Quantizes a model by NNCF's pipeline.
outcome quantize_by_nncf(const quantize_arguments& a, const graph::model& m,
                         const graph::calibration_source& samples);

}  // namespace detent_cli

#endif  // DETENT_CLI_NNCF_PIPELINE_HPP
