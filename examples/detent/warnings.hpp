// SPDX-License-Identifier: BSD-3-Clause
// Warnings that several commands print on standard error.
#ifndef DETENT_CLI_WARNINGS_HPP
#define DETENT_CLI_WARNINGS_HPP

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/half_weights.hpp>

namespace detent_cli {

/// Says how many nodes stay in float because they cannot be run, and why the first one does.
/// `reasons` has one line for each of them, as quantization::not_run.
inline void warn_of_nodes_in_float(const std::vector<std::string>& reasons) {
  if (!reasons.empty()) {
    std::fprintf(stderr, "detent: warning: %zu %s in float: %s%s\n", reasons.size(),
                 reasons.size() > 1 ? "nodes stay" : "node stays",
                 detent::one_line(reasons[0]).c_str(),
                 reasons.size() > 1 ? "; --json lists all" : "");
  }
}

/// What to say of a quantized model: that nothing was quantized, and which layers have weights of
/// 16 bits; empty if all is well. `file`: where the float model `m` came from. `layers`: how many
/// layers were quantized.
inline std::string layers_left(const std::string& file, const detent::graph::model& m,
                               std::size_t layers) {
  const std::string reason = detent::graph::half_weights_reason(m);
  if (layers > 0) {
    return reason;
  }
  return file + " has no layer that was quantized" + (reason.empty() ? reason : ": " + reason);
}

}  // namespace detent_cli

#endif  // DETENT_CLI_WARNINGS_HPP
