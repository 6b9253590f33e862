// SPDX-License-Identifier: BSD-3-Clause
// What the commands say about a model that they have written.
#ifndef DETENT_CLI_MODEL_OUTPUT_HPP
#define DETENT_CLI_MODEL_OUTPUT_HPP

#include <cstdint>
#include <cstdio>

#include <detent/error.hpp>
#include <detent/graph/model/onnx_writer.hpp>

#include "json_output.hpp"

namespace detent_cli {

/// Prints where the external data of a model are, if it has some.
inline void print_external_data(const detent::graph::written_onnx& written) {
  if (!written.external.empty()) {
    std::printf("external data in %s, %ju bytes: the model is read with this file beside it\n",
                detent::one_line(written.external.string()).c_str(),
                static_cast<std::uintmax_t>(written.external_bytes));
  }
}

/// The path of the external data of a model, or null if it has none.
inline json_object external_data_json(const detent::graph::written_onnx& written) {
  return written.external.empty() ? json_object(nullptr) : json_object(written.external.string());
}

}  // namespace detent_cli

#endif  // DETENT_CLI_MODEL_OUTPUT_HPP
