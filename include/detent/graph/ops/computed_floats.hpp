// SPDX-License-Identifier: BSD-3-Clause
// Right sides of float products that are computed in a run. Those that are constant are packed once
// and belong to the node (node_state.hpp); these are packed again in each run, and what that takes
// counts against the limit of memory.
#ifndef DETENT_GRAPH_OPS_COMPUTED_FLOATS_HPP
#define DETENT_GRAPH_OPS_COMPUTED_FLOATS_HPP

#include <span>

#include <detent/config.hpp>
#include <detent/graph/ops/counted_bytes.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// A packed matrix whose memory is counted while it lives.
class computed_floats {
 public:
  /// Packs the matrix, with a bias of one element for each column unless it is empty. Throws
  /// bad_file if the memory exceeds the limit of the run.
  computed_floats(const operator_context& c, matrix_view<const float> w,
                  std::span<const float> bias = {})
      : counted_(c, packed_bytes(w.rows, w.columns)), packed_(w, bias) {}

  /// The packed matrix.
  [[nodiscard]] const packed_floats& packed() const noexcept { return packed_; }

 private:
  counted_bytes counted_;
  packed_floats packed_;
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_COMPUTED_FLOATS_HPP
