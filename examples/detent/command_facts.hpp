// SPDX-License-Identifier: BSD-3-Clause
// What the command line parser knows of a command, for completion and for the manual page.
#ifndef DETENT_CLI_COMMAND_FACTS_HPP
#define DETENT_CLI_COMMAND_FACTS_HPP

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace detent_cli {

/// An option or a positional argument of a command.
struct option_facts {
  std::vector<std::string> names;    // with their dashes; of a positional argument its name
  std::string description;           // one line
  std::string heading;               // of its group in the help
  bool is_positional = false;        // without dashes
  bool takes_value = false;          // false: a flag
  std::vector<std::string> choices;  // the values that it may have; empty: any, such as a file
};

/// The options of a command in their order, without those that are not shown.
std::vector<option_facts> options_of(const CLI::App& command);

}  // namespace detent_cli

#endif  // DETENT_CLI_COMMAND_FACTS_HPP
