// SPDX-License-Identifier: BSD-3-Clause
#include "shell_completion.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "command_facts.hpp"

namespace detent_cli {
namespace {

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string all;
  for (const std::string& word : words) {
    all.append(all.empty() ? "" : between).append(word);
  }
  return all;
}

/// The text with a backslash before each of these characters.
std::string escaped(std::string_view text, std::string_view characters) {
  std::string result;
  for (const char c : text) {
    result.append(characters.find(c) == std::string_view::npos ? "" : "\\").append(1, c);
  }
  return result;
}

/// A text between single quotes, as zsh and bash read it.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return result + "'";
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands(nullptr);
}

// ------------------------------------------------------------------------------------------- bash

/// The branches that complete values of options, and the words of each command.
void add_bash_command(const std::string& command, const std::vector<option_facts>& options,
                      std::string& values, std::string& words) {
  std::vector<std::string> names;
  std::vector<std::string> arguments;
  for (const option_facts& o : options) {
    if (o.is_positional) {
      arguments.insert(arguments.end(), o.choices.begin(), o.choices.end());
      continue;
    }
    names.insert(names.end(), o.names.begin(), o.names.end());
    if (!o.takes_value) {
      continue;
    }
    std::vector<std::string> patterns;
    for (const std::string& name : o.names) {
      patterns.push_back(command + "," + name);
    }
    values += "        " + joined(patterns, "|") + ")\n            _detent_" +
              (o.choices.empty() ? std::string("files")
                                 : "words " + shell_quoted(joined(o.choices, " "))) +
              "\n            return\n            ;;\n";
  }
  words += "        " + (command.empty() ? "''" : command) +
           ")\n            options=" + shell_quoted(joined(names, " ")) +
           "\n            arguments=" + shell_quoted(joined(arguments, " ")) + "\n            ;;\n";
}

std::string bash_script(const CLI::App& app) {
  std::string values;
  std::string words;
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
  }
  std::vector<option_facts> top = options_of(app);
  top.push_back({{"COMMAND"}, {}, {}, true, true, names});
  add_bash_command("", top, values, words);
  for (const CLI::App* command : commands_of(app)) {
    add_bash_command(command->get_name(), options_of(*command), values, words);
  }
  return R"(# Completion of detent for bash; made by `detent completion bash`.

_detent_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current")
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

_detent_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
}

_detent() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command='' options='' arguments='' i
    COMPREPLY=()
    # "=" is a word of its own in --option=value.
    if [[ $current == '=' ]]; then
        current=''
    elif [[ $previous == '=' && $COMP_CWORD -ge 2 ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            command=${COMP_WORDS[i]}
            break
        fi
    done
    case "$command,$previous" in
)" + values +
         R"(    esac
    case "$command" in
)" + words +
         R"(    esac
    if [[ $current == -* ]]; then
        _detent_words "$options"
    elif [[ -n $arguments ]]; then
        _detent_words "$arguments"
    else
        _detent_files
    fi
}

complete -F _detent detent
)";
}

// -------------------------------------------------------------------------------------------- zsh

/// One line of _arguments for an option.
std::string zsh_option(const option_facts& o) {
  const std::string text = "[" + escaped(o.description, "[]\\:") + "]";
  const std::string value = !o.takes_value      ? ""
                            : o.choices.empty() ? ":file:_files"
                                                : ":value:(" + joined(o.choices, " ") + ")";
  if (o.is_positional) {
    return "            " +
           shell_quoted("*:" + escaped(o.names[0], ":") +
                        (o.choices.empty() ? ":_files" : ":(" + joined(o.choices, " ") + ")"));
  }
  std::vector<std::string> lines;
  for (const std::string& name : o.names) {
    lines.push_back("            " + shell_quoted("*" + name + text + value));
  }
  return joined(lines, " \\\n");
}

std::string zsh_script(const CLI::App& app) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : commands_of(app)) {
    commands +=
        "        " +
        shell_quoted(command->get_name() + ":" + escaped(command->get_description(), ":\\")) + "\n";
    std::vector<std::string> lines;
    bool has_positional = false;
    for (const option_facts& o : options_of(*command)) {
      // One rule for all positional arguments: _arguments takes one with a star.
      if (!o.is_positional || !has_positional) {
        lines.push_back(zsh_option(o));
      }
      has_positional = has_positional || o.is_positional;
    }
    cases += "    " + command->get_name() + ")\n        _arguments \\\n" + joined(lines, " \\\n") +
             "\n        ;;\n";
  }
  return R"(#compdef detent
# Completion of detent for zsh; made by `detent completion zsh`.

_detent() {
    local -a commands
    commands=(
)" + commands +
         R"(    )
    if (( CURRENT == 2 )); then
        _describe 'command' commands
        _arguments '--help[Print the help]' '--version[Print the version]'
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
)" + cases +
         R"(    esac
}

if [[ $funcstack[1] == _detent ]]; then
    _detent "$@"
else
    compdef _detent detent
fi
)";
}

// ------------------------------------------------------------------------------------------- fish

std::string fish_quoted(std::string_view text) { return "'" + escaped(text, "'\\") + "'"; }

std::string fish_script(const CLI::App& app) {
  std::string text =
      "# Completion of detent for fish; made by `detent completion fish`.\n\n"
      "complete -c detent -n __fish_use_subcommand -f -l version -d 'Print the version'\n";
  for (const CLI::App* command : commands_of(app)) {
    text += "complete -c detent -n __fish_use_subcommand -f -a " + command->get_name() + " -d " +
            fish_quoted(command->get_description()) + "\n";
  }
  for (const CLI::App* command : commands_of(app)) {
    const std::string start =
        "complete -c detent -n '__fish_seen_subcommand_from " + command->get_name() + "'";
    for (const option_facts& o : options_of(*command)) {
      if (o.is_positional && o.choices.empty()) {
        continue;  // a file, which fish completes by itself
      }
      text += start;
      for (const std::string& name : o.names) {
        if (!o.is_positional) {
          text += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
        }
      }
      if (!o.choices.empty()) {
        text += (o.is_positional ? " -f -a " : " -x -a ") + fish_quoted(joined(o.choices, " "));
      } else if (o.takes_value) {
        text += " -r";
      }
      text += " -d " + fish_quoted(o.description) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  return shell == "bash" ? bash_script(app) : shell == "zsh" ? zsh_script(app) : fish_script(app);
}

}  // namespace detent_cli
