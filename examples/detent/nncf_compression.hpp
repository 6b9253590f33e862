// SPDX-License-Identifier: BSD-3-Clause
// `detent quantize --pipeline nncf --compress MODE`: its options, and the job.
#ifndef DETENT_CLI_NNCF_COMPRESSION_HPP
#define DETENT_CLI_NNCF_COMPRESSION_HPP

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/graph/quantize/calibration.hpp>

#include "commands.hpp"
#include "nncf_arguments.hpp"
#include "quantize_report.hpp"

namespace detent_cli {

/// The options that go with --compress, and --compress itself.
class nncf_compression_flags {
 public:
  explicit nncf_compression_flags(CLI::App& command);

  /// The names of the options, without dashes.
  [[nodiscard]] static const std::vector<std::string>& names();

  /// What the options say; nothing without --compress. `given` has the names of the options on the
  /// command line. Throws usage_error for options that do not go together.
  [[nodiscard]] std::optional<nncf_compression_arguments> arguments(
      const std::set<std::string>& given) const;

 private:
  nncf_compression_arguments a_;
};

/// Why a compression needs calibration samples; empty if it does not.
[[nodiscard]] std::string reason_for_samples(const nncf_compression_arguments& a);

/// Compresses the weights of a model. `samples` may be empty if they are not needed.
outcome compress_by_nncf(const quantize_arguments& a, const graph::model& m,
                         const graph::calibration_source& samples);

}  // namespace detent_cli

#endif  // DETENT_CLI_NNCF_COMPRESSION_HPP
