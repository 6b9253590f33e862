// SPDX-License-Identifier: BSD-3-Clause
// What a model may use when it runs.
#ifndef DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP
#define DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

struct executor_options {
  /// Who runs the parallel parts of large operators; default: the calling thread.
  parallel_for parallel = {};
  /// A node that would make a larger output is an error: files are not trusted.
  std::size_t max_tensor_bytes = std::size_t{2} << 30U;
  /// A Loop that goes on for longer is an error: files are not trusted.
  std::size_t max_iterations = std::size_t{1} << 24U;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP
