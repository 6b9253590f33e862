// SPDX-License-Identifier: BSD-3-Clause
// The text of a configuration file of `detent quantize`, of either kind.
#include <cstddef>
#include <cstdint>
#include <string>

#include <detent/graph/inc/yaml.hpp>

#include "../../examples/detent/quantize_config.hpp"
#include "../../examples/detent/usage_error.hpp"
#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzz::as_file({data, size}, ".yaml");
  fuzz::harmless("configuration", [&] {
    try {
      static_cast<void>(detent_cli::read_quantize_config(path));
    } catch (const detent_cli::usage_error&) {
      // The tool prints it and ends with code 2.
    }
  });
  fuzz::harmless("configuration of Neural Compressor", [&] {
    const std::string text(reinterpret_cast<const char*>(data), size);
    static_cast<void>(detent::graph::inc::is_configuration(text));
    static_cast<void>(detent::graph::inc::parse_yaml(text, "conf.yaml"));
  });
  return 0;
}
