// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_config.hpp"

#include <cstdint>
#include <string>

#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>

#include "usage_error.hpp"

namespace detent_cli {

std::string read_config_file(const std::string& path) {
  constexpr std::uint64_t most = std::uint64_t{16} << 20U;
  const std::uint64_t size = detent::graph::input_file(path).size();
  detent::require(size <= most, detent::error_kind::io, path, " has ", size,
                  " bytes; a configuration has at most ", most);
  return detent::graph::read_file(path);
}

quantize_config read_quantize_config(const std::string& path) {
  const std::string text = read_config_file(path);
  try {
    return detent::graph::parse_quantization_text(text, path);
  } catch (const detent::error& e) {
    throw usage_error(e.what());
  }
}

}  // namespace detent_cli
