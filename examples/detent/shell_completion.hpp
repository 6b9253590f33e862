// SPDX-License-Identifier: BSD-3-Clause
// Scripts that complete command lines of the tool in shells, made from what the parser knows.
#ifndef DETENT_CLI_SHELL_COMPLETION_HPP
#define DETENT_CLI_SHELL_COMPLETION_HPP

#include <string>

#include <CLI/CLI.hpp>

namespace detent_cli {

/// The script for bash (4 or later), zsh or fish; `shell` is one of these names. It completes
/// commands, options, and values from sets; anything else is completed as a file.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace detent_cli

#endif  // DETENT_CLI_SHELL_COMPLETION_HPP
