// SPDX-License-Identifier: BSD-3-Clause
// The memory of weights that a run computes. Constant weights are packed once and belong to the
// node (node_state.hpp); others are packed in each run, and what that takes counts against the
// limit of memory.
#ifndef DETENT_GRAPH_OPS_COUNTED_BYTES_HPP
#define DETENT_GRAPH_OPS_COUNTED_BYTES_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/images/depthwise.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/window.hpp>

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
  const std::size_t padded = detent::detail::round_up(columns, kernels::panel_columns);
  return (depth + 1) * padded * sizeof(float);  // with the bias
}

/// The most bytes that packed_weights take on any target, to within a few percent; the same number
/// on all targets. Counted are the panels, the pairs of targets without VNNI and their corrections
/// (or the slices of wide sums and their pairs), and what belongs to a column.
[[nodiscard]] inline std::size_t packed_integer_bytes(std::size_t depth,
                                                      std::size_t columns) noexcept {
  constexpr std::size_t forms = 3, of_column = 32;
  const std::size_t padded = detent::detail::round_up(columns, kernels::panel_columns);
  return (detent::detail::round_up(depth, kernels::block_depth) * forms + of_column) * padded;
}

/// The bytes of packed_float_filters, and of the matrix of a group that packing makes.
[[nodiscard]] inline std::size_t packed_float_filter_bytes(const filter_shape& f) noexcept {
  if (f.depthwise()) {
    return packed_bytes(f.taps(), f.out_channels);
  }
  const std::size_t depth = f.group_in() * f.taps();
  return f.groups * packed_bytes(depth, f.group_out()) + depth * f.group_out() * sizeof(float);
}

/// The same for packed_filters, and for the matrix of a group that packing makes.
[[nodiscard]] inline std::size_t packed_filter_bytes(const filter_shape& f) noexcept {
  using kernels::group_depth;
  const std::size_t line = detent::detail::round_up(f.kernel_width * f.group_in(), group_depth);
  const std::size_t depth = (line + group_depth) * f.kernel_height;
  if (f.depthwise()) {
    // Bytes, 16-bit words, and lines of 3 x 3 and 5 x 5 filters. Very large filters may be packed
    // as those of groups.
    constexpr std::size_t forms = 12;
    const std::size_t channels = detent::detail::round_up(f.out_channels, kernels::strip_columns);
    const bool may_be_wide = f.taps() > detent::detail::depthwise_weights::most_exact_taps;
    return depth * channels * forms + (may_be_wide ? f.groups * packed_integer_bytes(depth, 1) : 0);
  }
  return f.groups * packed_integer_bytes(depth, f.group_out()) + depth * f.group_out();
}

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_COUNTED_BYTES_HPP
