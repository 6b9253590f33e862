// SPDX-License-Identifier: BSD-3-Clause
// Reads models that are to be quantized or trained.
#ifndef DETENT_CLI_FLOAT_MODEL_HPP
#define DETENT_CLI_FLOAT_MODEL_HPP

#include <cstdio>
#include <string>

#include <detent/error.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/widen_floats.hpp>

namespace detent_cli {

/// Reads a model whose floats of 16 bits, if it has any, become float32 if that is possible. A
/// warning tells of either.
[[nodiscard]] inline detent::graph::model read_float_model(
    const std::string& path, const detent::graph::read_limits& limits) {
  detent::graph::model m = detent::graph::read_onnx(path, limits);
  const bool is_changed =
      detent::graph::with_file_name(path, [&] { return detent::graph::widen_floats(m); });
  const std::string obstacle = is_changed ? std::string() : detent::graph::widening_obstacle(m);
  if (!obstacle.empty()) {
    std::fprintf(stderr, "detent: warning: %s holds floats of 16 bits that stay as they are: %s\n",
                 detent::one_line(path).c_str(), detent::one_line(obstacle).c_str());
  }
  if (is_changed) {
    std::fprintf(stderr,
                 "detent: warning: %s holds floats of 16 bits; it is made a model of float32 "
                 "first\n",
                 detent::one_line(path).c_str());
  }
  return m;
}

}  // namespace detent_cli

#endif  // DETENT_CLI_FLOAT_MODEL_HPP
