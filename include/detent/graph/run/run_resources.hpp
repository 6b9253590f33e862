// SPDX-License-Identifier: BSD-3-Clause
// What all nodes of a run share: the options, the memory, and what is left of the limits.
#ifndef DETENT_GRAPH_RUN_RUN_RESOURCES_HPP
#define DETENT_GRAPH_RUN_RUN_RESOURCES_HPP

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/buffer_pool.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

struct inference_scope;

/// What an executor and the executors of its sub-graphs share. One run uses it at a time. Values
/// that were allocated with it may outlive it.
struct run_resources {
  /// `reuses_memory`: buffers that are freed are kept for later runs.
  explicit run_resources(executor_options o, bool reuses_memory = false)
      : run_resources(o, buffer_pool(o.max_memory_bytes, reuses_memory)) {}
  /// Shares the buffers and the limit of a pool.
  run_resources(executor_options o, buffer_pool shared)
      : options(std::move(o)),
        pool(std::move(shared)),
        allocate([this](std::size_t bytes) { return pool.allocate(bytes); }) {
    work.max_iterations = options.max_iterations;
    work.max_multiply_adds = options.max_multiply_adds;
  }
  run_resources(const run_resources&) = delete;
  run_resources& operator=(const run_resources&) = delete;
  ~run_resources() = default;

  /// Whether an operator was stopped because it exceeded a limit since the last call of this
  /// function.
  [[nodiscard]] bool forget_refusal() noexcept {
    const bool of_memory = pool.forget_refusal();
    return std::exchange(work.refused, false) || of_memory;
  }

  const executor_options options;
  buffer_pool pool;
  allocator allocate;  // allocates from the pool
  run_work work;
  std::string refusal;  // of the operator whose infer() was called last; see operator_context
  // What sub-graphs are inferred in; null in runs of executors of whole models.
  inference_scope* inference = nullptr;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_RUN_RESOURCES_HPP
