// SPDX-License-Identifier: BSD-3-Clause
#include "man_page.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "command_facts.hpp"
#include "command_help.hpp"

namespace detent_cli {
namespace {

/// A text as roff shows it as it is: backslashes and dashes are escaped, and a line that begins
/// like a request is none.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if ((result.empty() || result.back() == '\n') && (c == '.' || c == '\'')) {
      result += "\\&";
    }
    result += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return result;
}

/// The names of an option in bold, and what it takes.
std::string tag_of(const option_facts& o) {
  std::string tag;
  for (const std::string& name : o.names) {
    tag += (tag.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  }
  if (!o.is_positional && o.takes_value) {
    tag += " \\fIVALUE\\fR";
  }
  return tag;
}

/// What follows the name of a command in its synopsis.
std::string synopsis_of(const std::vector<option_facts>& options) {
  std::string text;
  for (const option_facts& o : options) {
    text += o.is_positional ? " \\fI" + roff(o.names[0]) + "\\fR" : "";
  }
  return text + " [\\fIOPTIONS\\fR]";
}

void add_command(const CLI::App& command, std::string& page) {
  const std::vector<option_facts> options = options_of(command);
  page += ".SH DETENT " + [&] {
    std::string upper = command.get_name();
    for (char& c : upper) {
      c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
    return upper;
  }() + "\n";
  page += "\\fBdetent " + roff(command.get_name()) + "\\fR" + synopsis_of(options) + "\n.PP\n" +
          roff(command.get_description()) + ".\n";
  // Options of one heading follow each other, headings in the order of their first option.
  std::vector<std::string> headings;
  for (const option_facts& o : options) {
    bool known = false;
    for (const std::string& heading : headings) {
      known = known || heading == o.heading;
    }
    if (!known) {
      headings.push_back(o.heading);
    }
  }
  for (const std::string& heading : headings) {
    if (headings.size() > 1) {
      page += ".SS " + roff(heading) + "\n";
    }
    for (const option_facts& o : options) {
      if (o.heading == heading) {
        page += ".TP\n" + tag_of(o) + "\n" + roff(o.description) + ".\n";
        std::string values;
        for (const std::string& choice : o.choices) {
          values.append(values.empty() ? "" : ", ").append(choice);
        }
        page += values.empty() ? "" : "Values: " + roff(values) + ".\n";
      }
    }
  }
}

}  // namespace

std::string man_page(const CLI::App& app, const std::string& version) {
  std::string page =
      ".\\\" Made by `detent man`.\n"
      ".TH DETENT 1 \"\" \"detent " +
      version +
      "\" \"User Commands\"\n"
      ".SH NAME\ndetent \\- quantizes, trains, runs and judges ONNX models\n"
      ".SH SYNOPSIS\n\\fBdetent\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n";
  page += ".SH DESCRIPTION\nThe commands are:\n";
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    page += ".TP\n\\fB" + roff(command->get_name()) + "\\fR\n" + roff(command->get_description()) +
            ".\n";
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    add_command(*command, page);
  }
  page += ".SH EXAMPLES\nIn the folder examples/digits of the sources:\n.PP\n.nf\n";
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    for (const std::string& example : examples_of(command->get_name())) {
      page += roff(example) + "\n";
    }
  }
  page +=
      ".fi\n"
      ".SH EXIT STATUS\n"
      ".TP\n\\fB0\\fR\nThe job is done.\n"
      ".TP\n\\fB1\\fR\nThe job failed; a line on standard error says why.\n"
      ".TP\n\\fB2\\fR\nThe command line is wrong.\n"
      ".TP\n\\fB130\\fR, \\fB143\\fR\nCtrl-C or SIGTERM ended the training, or the search for a "
      "model; the "
      "best one so far is written.\n";
  return page;
}

}  // namespace detent_cli
