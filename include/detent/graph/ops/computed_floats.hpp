// SPDX-License-Identifier: BSD-3-Clause
// Right sides of float products that are computed in a run. Those that are constant are packed once
// and belong to the node (node_state.hpp); these are packed again in each run, and what that takes
// counts against the limit of memory.
#ifndef DETENT_GRAPH_OPS_COMPUTED_FLOATS_HPP
#define DETENT_GRAPH_OPS_COMPUTED_FLOATS_HPP

#include <cstddef>
#include <span>

#include <detent/config.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// Counts memory against the limit of the run while it lives.
class counted_bytes {
 public:
  /// Throws bad_file if the bytes do not fit.
  counted_bytes(const operator_context& c, std::size_t bytes) : counter_(c.counter), bytes_(bytes) {
    if (counter_ != nullptr) {
      counter_->take(bytes_);
    }
  }
  counted_bytes(const counted_bytes&) = delete;
  counted_bytes& operator=(const counted_bytes&) = delete;
  ~counted_bytes() {
    if (counter_ != nullptr) {
      counter_->give_back(bytes_);
    }
  }

 private:
  memory_counter* counter_;
  std::size_t bytes_;
};

/// The bytes of packed_floats of `depth` rows and `columns` columns.
[[nodiscard]] inline std::size_t packed_bytes(std::size_t depth, std::size_t columns) noexcept {
  constexpr std::size_t panel = kernels::panel_columns;
  return (depth + 1) * ((columns + panel - 1) / panel * panel) * sizeof(float);  // with the bias
}

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
