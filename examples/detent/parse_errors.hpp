// SPDX-License-Identifier: BSD-3-Clause
// What is wrong with a command line, in words that name it.
#ifndef DETENT_CLI_PARSE_ERRORS_HPP
#define DETENT_CLI_PARSE_ERRORS_HPP

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace detent_cli {

/// The message for arguments that `app` has refused with an error: an option that does not exist,
/// with the nearest one that does, or a file that was written behind an option which takes several
/// values; otherwise what the error itself says. `arguments` begin with the command.
std::string explained(const CLI::ParseError& error, const CLI::App& app,
                      const std::vector<std::string>& arguments);

}  // namespace detent_cli

#endif  // DETENT_CLI_PARSE_ERRORS_HPP
