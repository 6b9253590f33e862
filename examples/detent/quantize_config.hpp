// SPDX-License-Identifier: BSD-3-Clause
// Reads the YAML configuration file of `detent quantize`. It can hold all options, and settings
// that have no flag: those of single operators, of single activations, and nodes that stay in
// float.
#ifndef DETENT_CLI_QUANTIZE_CONFIG_HPP
#define DETENT_CLI_QUANTIZE_CONFIG_HPP

#include <string>

#include <detent/graph/configuration/quantization_text.hpp>

namespace detent_cli {

using quantize_config = detent::graph::quantization_text;

/// The text of a configuration file. Throws detent::error if it cannot be read, or has more than
/// 16 MiB.
std::string read_config_file(const std::string& path);

/// Reads a configuration file. examples/quantize.yaml shows its form. Throws usage_error, with
/// FILE:LINE, for entries of another form, and detent::error if the file cannot be read.
quantize_config read_quantize_config(const std::string& path);

}  // namespace detent_cli

#endif  // DETENT_CLI_QUANTIZE_CONFIG_HPP
