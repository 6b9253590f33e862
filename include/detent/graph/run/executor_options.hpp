// SPDX-License-Identifier: BSD-3-Clause
// The options of an executor: threads, and limits on what a model may use when it runs.
#ifndef DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP
#define DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How an executor runs a model: its threads, and limits for models that are not trusted.
struct executor_options {
  /// Runs the parallel parts of large operators, for example thread_pool::parallel(). Empty: the
  /// calling thread runs everything. Results have the same bits either way.
  parallel_for parallel = {};
  /// The largest output of a node in bytes. A node that would make a larger one throws bad_file,
  /// because a small hostile file can ask for very large tensors. Default: 2 GiB.
  std::size_t max_tensor_bytes = std::size_t{2} << 30U;
  /// The largest number of iterations of a Loop or Scan. One that takes more throws bad_file.
  std::size_t max_iterations = std::size_t{1} << 24U;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP
