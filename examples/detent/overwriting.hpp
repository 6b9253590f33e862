// SPDX-License-Identifier: BSD-3-Clause
// Refuses to write over files that a command reads.
#ifndef DETENT_CLI_OVERWRITING_HPP
#define DETENT_CLI_OVERWRITING_HPP

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/graph/model/ir.hpp>

namespace detent_cli {

/// A file and the option that names it, for messages.
struct named_file {
  std::string option;  // such as "--report"
  std::string path;
};

/// The files that exist among the values of an option, which may be of the form
/// `NAME=FILE:suffix`.
std::vector<named_file> files_named_by(const std::string& option,
                                       const std::vector<std::string>& values);

/// Throws usage_error if a file that is written is one that is read, or another one that is
/// written, under whatever name: a link, "./file". Devices may be both.
void require_apart(const std::vector<named_file>& read, const std::vector<named_file>& written);

/// require_apart() for all files that the options of a command name, as it was parsed: models,
/// samples, labels, states and settings are read, --output, --report, --error-report and --export
/// are written. `in_place`: whether --output may be the model that is read, in whose place it
/// comes.
void require_nothing_overwritten(const CLI::App& command, bool in_place = false);

/// Throws usage_error if the external data of a model that is written to `output` would replace
/// data of the model `m`, which was read from `input`. A model that is written in the place of its
/// original takes its data along.
void require_data_apart(const detent::graph::model& m, const std::string& input,
                        const std::string& output);

}  // namespace detent_cli

#endif  // DETENT_CLI_OVERWRITING_HPP
