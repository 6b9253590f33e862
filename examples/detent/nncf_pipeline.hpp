// SPDX-License-Identifier: BSD-3-Clause
// `detent quantize --pipeline nncf`: its options, and the job; and `detent observe --pipeline
// nncf`, which keeps what the job needs of samples. Another pipeline has a file of this form, its
// name in pipeline_names, and a line in quantize().
#ifndef DETENT_CLI_NNCF_PIPELINE_HPP
#define DETENT_CLI_NNCF_PIPELINE_HPP

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/graph/run/executor_options.hpp>

#include "commands.hpp"
#include "nncf_compression.hpp"
#include "quantize_report.hpp"

namespace detent_cli {

/// Whether a state is that of `detent observe --pipeline nncf`. Throws bad_file or unsupported,
/// naming the state, if it is damaged or unknown.
[[nodiscard]] bool is_state_of_nncf(const graph::saved_state& state);

/// The options of --pipeline nncf.
class nncf_flags {
 public:
  /// Adds all options, for `detent quantize`, or with `observes` those that decide what is kept of
  /// samples.
  explicit nncf_flags(CLI::App& command, bool observes = false);

  /// What the options say, completed from those that all pipelines have: `bias_correction` is none,
  /// fast, full or auto. `given` has the names of all options that were given. Throws usage_error
  /// for options that the pipeline does not have, and for those that a state cannot go with.
  [[nodiscard]] nncf_arguments arguments(const std::set<std::string>& given,
                                         const std::string& bias_correction) const;
  /// Completes arguments by what a state was collected with: SmoothQuant, and with it the model
  /// type, unless they are given.
  static void complete_from_state(nncf_arguments& a, const std::set<std::string>& given,
                                  const graph::saved_state& state);
  /// Throws usage_error if one of the options was given, which another pipeline does not have.
  void require_none(const std::set<std::string>& given, const std::string& pipeline) const;

 private:
  bool observes_;
  std::optional<nncf_compression_flags> compression_;
  nncf_arguments a_;
  std::vector<std::string> ignored_;
  std::vector<float> alpha_;
};

/// Collects what NNCF's pipeline needs of samples.
graph::observed_state observe_for_nncf(const nncf_arguments& a, const graph::model& m,
                                       const graph::calibration_source& samples,
                                       const graph::executor_options& runner);

/// Quantizes a model by NNCF's pipeline, with samples or with the state in `a.states`.
outcome quantize_by_nncf(const quantize_arguments& a, const graph::model& m,
                         const graph::calibration_source& samples);

}  // namespace detent_cli

#endif  // DETENT_CLI_NNCF_PIPELINE_HPP
