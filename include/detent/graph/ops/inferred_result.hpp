// SPDX-License-Identifier: BSD-3-Clause
// Helpers of operators whose output shapes depend on the elements of their inputs, as NonZero's do:
// infer() computes the result and keeps it for run().
#ifndef DETENT_GRAPH_OPS_INFERRED_RESULT_HPP
#define DETENT_GRAPH_OPS_INFERRED_RESULT_HPP

#include <cstdint>
#include <memory>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// Throws value_unknown if the elements of a tensor are not known, which happens only while shapes
/// are inferred.
inline void require_known(const tensor& t) {
  if (!t.has_data()) {
    throw value_unknown{};
  }
}

/// What infer() has computed for the run() that follows.
template <class Result>
struct inferred_result : operator_state {
  explicit inferred_result(Result r) : result(std::move(r)) {}
  Result result;
};

/// Keeps a result of infer(); does nothing if no run() follows.
template <class Result>
void keep_result(operator_context& c, Result result) {
  if (!c.shapes_only && c.state != nullptr) {
    *c.state = std::make_unique<inferred_result<Result>>(std::move(result));
  }
}

/// The result that infer() has kept. The node forgets it, so that its memory is free after run().
template <class Result>
[[nodiscard]] Result take_result(operator_context& c) {
  const std::unique_ptr<operator_state> kept = std::move(*c.state);
  return std::move(static_cast<inferred_result<Result>&>(*kept).result);
}

/// Calls `f.operator()<T>()` with that of double, uint64 and int64 which holds elements of the type
/// exactly (elements.hpp). Returns false, without a call, for strings and undefined types.
template <class Function>
[[nodiscard]] bool visit_widest(element_type type, const Function& f) {
  if (type == element_type::string || type == element_type::undefined) {
    return false;
  }
  if (is_floating(type)) {
    f.template operator()<double>();
  } else if (type == element_type::u64) {
    f.template operator()<std::uint64_t>();
  } else {
    f.template operator()<std::int64_t>();
  }
  return true;
}

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_INFERRED_RESULT_HPP
