// SPDX-License-Identifier: BSD-3-Clause
// The options of an executor: threads, and limits on what a model may use when it runs.
#ifndef DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP
#define DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP

#include <cstddef>
#include <cstdint>

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
  /// The largest number of bytes that are in use at a time for values that nodes compute, memory
  /// that is kept for later runs, and scratch memory of operators whose size depends on tensors.
  /// A node that needs more throws bad_file. Constants, inputs, and the packed forms of weights are
  /// not counted: the model's file and the caller determine them. Default: 16 GiB.
  std::size_t max_memory_bytes = std::size_t{16} << 30U;
  /// The largest number of iterations of all Loop and Scan nodes of a run together. A node that
  /// begins one more throws bad_file.
  std::size_t max_iterations = std::size_t{1} << 24U;
  /// The largest number of multiply-adds of a run: one for each element that a node computes and
  /// each term of a product, convolution, pool or reduction. The node that would exceed it throws
  /// bad_file before it computes anything. Default: no limit; a limit bounds the time that a run
  /// takes.
  std::uint64_t max_multiply_adds = static_cast<std::uint64_t>(-1);
  /// 2 or 4: convolutions of floats with 3x3 filters, one group, and strides and dilations of 1 are
  /// computed by Winograd's algorithm with tiles of 2 x 2 or 4 x 4 outputs where that is faster
  /// (winograd.hpp, docs/winograd.md). 0, the default: each output is one chain of fused
  /// multiply-adds, as reference::dot() has it. Rounding errors, and so the last bits of results,
  /// depend on the choice, but not on the processor or the threads. Integers are never affected. An
  /// executor throws invalid_argument for other values.
  std::size_t winograd_tile = 0;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_EXECUTOR_OPTIONS_HPP
