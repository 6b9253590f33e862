// SPDX-License-Identifier: BSD-3-Clause
// What the help of commands says besides their options: groups of options, and examples.
#ifndef DETENT_CLI_COMMAND_HELP_HPP
#define DETENT_CLI_COMMAND_HELP_HPP

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace detent_cli {

/// Puts options of a command under a heading of its help.
void set_group(CLI::App& command, const std::string& heading,
               const std::vector<std::string>& options);

/// Command lines of a command that work in examples/digits, in this order: later ones may use what
/// earlier ones have written.
std::vector<std::string> examples_of(const std::string& command);

/// Gives each command its examples, and `detent quantize` its groups. To be called when all options
/// are there.
void complete_help(CLI::App& app);

}  // namespace detent_cli

#endif  // DETENT_CLI_COMMAND_HELP_HPP
