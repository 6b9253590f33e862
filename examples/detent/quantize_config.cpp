// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_config.hpp"

#include <string>

#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>

#include "usage_error.hpp"

namespace detent_cli {

quantize_config read_quantize_config(const std::string& path) {
  const std::string text = detent::graph::read_file(path);
  try {
    return detent::graph::parse_quantization_text(text, path);
  } catch (const detent::error& e) {
    throw usage_error(e.what());
  }
}

}  // namespace detent_cli
