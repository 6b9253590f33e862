// SPDX-License-Identifier: BSD-3-Clause
// The arguments that all commands take.
#ifndef DETENT_CLI_COMMON_ARGUMENTS_HPP
#define DETENT_CLI_COMMON_ARGUMENTS_HPP

#include <algorithm>
#include <cstddef>

#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/run/executor_options.hpp>

namespace detent_cli {

/// The arguments that all commands take, and what follows from them.
struct common_arguments {
  bool json = false;
  std::size_t memory_limit = 0;   // in bytes; 0: the defaults of the library
  std::size_t winograd_tile = 0;  // of eval, run and compare; 0: exact float convolutions

  /// The limits for models that are read.
  [[nodiscard]] detent::graph::read_limits read_limits() const {
    detent::graph::read_limits limits;
    if (memory_limit != 0) {
      limits.max_constant_bytes = memory_limit;
      limits.max_tensor_bytes = (std::min)(limits.max_tensor_bytes, memory_limit);
    }
    return limits;
  }

  /// The options for runs of models.
  [[nodiscard]] detent::graph::executor_options executor_options() const {
    detent::graph::executor_options options;
    if (memory_limit != 0) {
      options.max_memory_bytes = memory_limit;
      options.max_tensor_bytes = (std::min)(options.max_tensor_bytes, memory_limit);
    }
    options.winograd_tile = winograd_tile;
    return options;
  }
};

}  // namespace detent_cli

#endif  // DETENT_CLI_COMMON_ARGUMENTS_HPP
