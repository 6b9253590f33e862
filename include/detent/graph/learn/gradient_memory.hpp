// SPDX-License-Identifier: BSD-3-Clause
// How much memory the values and gradients of a batch take.
#ifndef DETENT_GRAPH_LEARN_GRADIENT_MEMORY_HPP
#define DETENT_GRAPH_LEARN_GRADIENT_MEMORY_HPP

#include <cstddef>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The largest numbers of bytes that a run forwards and backwards holds at a time.
struct gradient_memory {
  /// Values that nodes compute; constants and inputs are not counted.
  std::size_t values = 0;
  /// Gradients, in double; vectors that wait for their next use are not counted.
  std::size_t gradients = 0;

  /// Values and gradients together, as if both were largest at the same time.
  [[nodiscard]] constexpr std::size_t total() const noexcept { return values + gradients; }
  /// Compares both numbers.
  friend constexpr bool operator==(const gradient_memory&, const gradient_memory&) = default;
};

/// A number of segments, and the memory that a run with it is estimated to take.
struct segment_choice {
  std::size_t segments = 1;     ///< The number of segments.
  gradient_memory memory = {};  ///< As estimate_memory() has it.
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENT_MEMORY_HPP
