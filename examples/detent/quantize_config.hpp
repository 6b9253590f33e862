// SPDX-License-Identifier: BSD-3-Clause
// A YAML file with options of `detent quantize`, and with what has no flag: single operators,
// single activations, nodes that stay in float.
#ifndef DETENT_CLI_QUANTIZE_CONFIG_HPP
#define DETENT_CLI_QUANTIZE_CONFIG_HPP

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/quantize/ignored_scope.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/static_quantization.hpp>

namespace detent_cli {

struct quantize_config {
  struct flag {
    std::string name;  // without the dashes
    std::vector<std::string> values;
    std::string where;  // FILE:LINE
  };
  std::vector<flag> flags;
  detent::graph::ignored_scope ignored;
  detent::graph::operator_rules operators;
  std::map<std::string, detent::graph::activation_override> activations;
};

/// Throws usage_error, with FILE:LINE, for what is not as examples/quantize.yaml has it; a file
/// that cannot be read is a detent::error.
quantize_config read_quantize_config(const std::string& path);

}  // namespace detent_cli

#endif  // DETENT_CLI_QUANTIZE_CONFIG_HPP
