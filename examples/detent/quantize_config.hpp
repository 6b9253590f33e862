// SPDX-License-Identifier: BSD-3-Clause
// Reads the YAML configuration file of `detent quantize`. It can hold all options, and settings
// that have no flag: those of single operators, of single activations, and nodes that stay in
// float.
#ifndef DETENT_CLI_QUANTIZE_CONFIG_HPP
#define DETENT_CLI_QUANTIZE_CONFIG_HPP

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>

namespace detent_cli {

struct quantize_config {
  struct flag {
    std::string name;  // the flag without its dashes
    std::vector<std::string> values;
    std::string where;  // FILE:LINE, for messages
  };
  std::vector<flag> flags;
  detent::graph::quantization_scope scope;
  std::map<std::string, detent::graph::activation_override> activations;
};

/// Reads a configuration file. examples/quantize.yaml shows its form. Throws usage_error, with
/// FILE:LINE, for entries of another form, and detent::error if the file cannot be read.
quantize_config read_quantize_config(const std::string& path);

}  // namespace detent_cli

#endif  // DETENT_CLI_QUANTIZE_CONFIG_HPP
