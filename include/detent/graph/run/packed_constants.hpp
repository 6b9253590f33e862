// SPDX-License-Identifier: BSD-3-Clause
// What the executors of one model have packed of its constants, which they share.
#ifndef DETENT_GRAPH_RUN_PACKED_CONSTANTS_HPP
#define DETENT_GRAPH_RUN_PACKED_CONSTANTS_HPP

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Packed constants of a model, node by node, which its executors put here after their first run
/// and take from here before it. Executors that run for the first time at the same time pack each
/// for itself, and keep what the first one has put here. Thread-safe.
class packed_constants {
 public:
  explicit packed_constants(std::size_t nodes) : nodes_(nodes) {}

  /// Gives an executor what is here for node i, if anything is: `state` and those of `values` that
  /// are constant, in the order of elements and the type that the operator took.
  void take(std::size_t i, std::span<const bool> constant, std::unique_ptr<operator_state>& state,
            std::span<tensor> values) {
    const std::lock_guard lock(mutex_);
    give(nodes_[i], constant, state, values);
  }
  /// Takes over what an executor has packed for node i, if nothing is here; otherwise as take().
  void exchange(std::size_t i, std::span<const bool> constant,
                std::unique_ptr<operator_state>& state, std::span<tensor> values) {
    const std::lock_guard lock(mutex_);
    packed_node& here = nodes_[i];
    if (!here.is_set) {
      here.state = state != nullptr ? state->share() : nullptr;
      here.values.resize(values.size());
      for (std::size_t k = 0; k < values.size(); ++k) {
        here.values[k] = constant[k] ? values[k] : tensor();
      }
      here.is_set = true;
    } else {
      give(here, constant, state, values);
    }
  }

 private:
  struct packed_node {
    bool is_set = false;
    std::unique_ptr<operator_state> state;  // null if the operator shares nothing
    std::vector<tensor> values;             // of the inputs; only those that are constant
  };

  static void give(const packed_node& from, std::span<const bool> constant,
                   std::unique_ptr<operator_state>& state, std::span<tensor> values) {
    if (!from.is_set) {
      return;
    }
    if (from.state != nullptr) {
      state = from.state->share();
    }
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (constant[k]) {
        values[k] = from.values[k];
      }
    }
  }

  std::mutex mutex_;
  std::vector<packed_node> nodes_;
};

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_PACKED_CONSTANTS_HPP
