// SPDX-License-Identifier: BSD-3-Clause
#include "parse_errors.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include <detent/graph/model/nearest_names.hpp>

namespace detent_cli {
namespace {

/// Whether an argument is written like an option: it begins with - and is no number.
bool is_like_option(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-' &&
         std::string("0123456789.").find(argument[1]) == std::string::npos;
}

/// The name of the option without the value that may stand behind it.
std::string name_of(const std::string& argument) {
  if (argument[1] != '-') {
    return argument.substr(0, 2);  // -oFILE
  }
  return argument.substr(0, argument.find('='));
}

/// The names of what stands without an option, such as MODEL, with spaces between them.
std::string positional_names(const CLI::App& command) {
  std::string names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) {
      names += (names.empty() ? "" : " ") + option->get_name(true);
    }
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

}  // namespace

std::string explained(const CLI::ParseError& error, const CLI::App& app,
                      const std::vector<std::string>& arguments) {
  const CLI::App* command = &app;
  std::size_t first = 0;
  for (const CLI::App* one : app.get_subcommands()) {
    command = one;
    first = 1;
  }
  const CLI::Option* several = nullptr;  // the last option, if it takes several values
  std::string several_name;
  std::string last_of_several;  // if it has taken two or more
  for (std::size_t i = first; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!is_like_option(argument)) {
      last_of_several = several != nullptr ? argument : last_of_several;
      continue;
    }
    if (argument == "--") {
      break;
    }
    const std::string name = name_of(argument);
    const CLI::Option* const option = command->get_option_no_throw(name);
    if (option == nullptr) {
      const std::vector<std::string> names = option_names(*command);
      return "there is no option '" + name + "'" +
             (name[1] == '-' && !names.empty()
                  ? "; the nearest is " + detent::graph::nearest_names(name, names, 1)
                  : "");
    }
    several = option->get_items_expected_max() > 1 ? option : nullptr;
    several_name = several != nullptr ? name : several_name;
    // The next argument is its value, even if it begins with -.
    i += option->get_items_expected_min() > 0 && name == argument ? 1U : 0U;
  }
  const std::string message = error.what();
  const std::string positional = positional_names(*command);
  const bool lacks_file =
      message.find(" is required") != message.npos &&
      (" " + positional + " ").find(" " + message.substr(0, message.find(' ')) + " ") !=
          message.npos;
  if (command != &app && !last_of_several.empty() && lacks_file) {
    return message + "; " + several_name + " has taken '" + last_of_several +
           "': write files that belong to no option first, as in detent " + command->get_name() +
           " " + positional + " " + several_name + " ...";
  }
  return message;
}

}  // namespace detent_cli
