// SPDX-License-Identifier: BSD-3-Clause
// What an operator keeps for one node between runs: packed weights or tables, which all executors
// of the model share, and what belongs to one executor.
#ifndef DETENT_GRAPH_OPS_NODE_STATE_HPP
#define DETENT_GRAPH_OPS_NODE_STATE_HPP

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/ops/counted_bytes.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// The second part of a node_state that has none.
struct nothing_else {};

/// A state of two parts. `packed` is made from constant inputs and never changed afterwards, so
/// that executors on several threads may share it. `own` belongs to one executor, and begins empty
/// in each.
template <class Packed, class Own = nothing_else>
struct node_state : operator_state {
  std::optional<counted_bytes> counted;  // of a packed part that is made in each run
  std::shared_ptr<const Packed> packed;
  Own own;

  [[nodiscard]] std::unique_ptr<operator_state> share() const override {
    auto shared = std::make_unique<node_state>();
    shared->packed = packed;
    return shared;
  }
};

/// The state of the node, whose packed part make(packed) fills. `is_constant`: all inputs that it
/// reads are the same in every run, so that it is made once; otherwise it is made in each run,
/// which it does not outlive, and `bytes`, its size or what it may be at most, count against the
/// limit of memory meanwhile. Throws bad_file if they do not fit.
template <class Packed, class Own = nothing_else, class Make>
node_state<Packed, Own>& cached_state(operator_context& c, bool is_constant, std::size_t bytes,
                                      const Make& make) {
  if (*c.state == nullptr || !is_constant) {
    auto fresh = std::make_unique<node_state<Packed, Own>>();
    if (!is_constant) {
      fresh->counted.emplace(c, bytes);
    }
    auto packed = std::make_shared<Packed>();
    make(*packed);
    fresh->packed = std::move(packed);
    fresh->for_one_run = !is_constant;
    *c.state = std::move(fresh);
  }
  return static_cast<node_state<Packed, Own>&>(**c.state);
}

/// The same for a packed part that is made from the inputs listed in `from`.
template <class Packed, class Own = nothing_else, class Make>
node_state<Packed, Own>& cached_state(operator_context& c, std::initializer_list<std::size_t> from,
                                      std::size_t bytes, const Make& make) {
  return cached_state<Packed, Own>(c, c.are_constant(from), bytes, make);
}

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_NODE_STATE_HPP
