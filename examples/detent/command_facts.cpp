// SPDX-License-Identifier: BSD-3-Clause
#include "command_facts.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/ppq/target_platform.hpp>

#include "ppq_arguments.hpp"

namespace detent_cli {
namespace {

/// The values between the braces of a type, "TEXT:{a,b}", by which the parser describes a set.
std::vector<std::string> set_of(const std::string& type) {
  std::vector<std::string> values;
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) {
    return values;
  }
  for (std::size_t at = open + 1; at < close;) {
    std::size_t comma = type.find(',', at);
    comma = comma == std::string::npos || comma > close ? close : comma;
    values.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return values;
}

/// The values of options whose check is not a set.
std::vector<std::string> known_values(const std::string& option) {
  std::vector<std::string> values;
  if (option == "--method") {
    values = detent::graph::range_method_names();
    values.emplace_back("auto");
  } else if (option == "--platform") {
    values = detent::graph::ppq::quantizing_platform_names();
  } else if (option == "--export") {
    for (const std::string& kind : ppq_export_kinds) {
      values.push_back(kind + "=");
    }
  }
  return values;
}

}  // namespace

std::vector<option_facts> options_of(const CLI::App& command) {
  std::vector<option_facts> all;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) {
      continue;
    }
    option_facts facts;
    for (const std::string& name : option->get_snames()) {
      facts.names.push_back("-" + name);
    }
    for (const std::string& name : option->get_lnames()) {
      facts.names.push_back("--" + name);
    }
    facts.is_positional = facts.names.empty();
    if (facts.is_positional) {
      facts.names.push_back(option->get_name());
    }
    facts.description = option->get_description();
    facts.heading = option->get_group();
    facts.takes_value = option->get_items_expected_max() > 0;
    facts.choices = set_of(option->get_type_name());
    if (facts.choices.empty()) {
      facts.choices = known_values(facts.names.back());
    }
    all.push_back(std::move(facts));
  }
  return all;
}

}  // namespace detent_cli
