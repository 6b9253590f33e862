// SPDX-License-Identifier: BSD-3-Clause
// The levels of quantized activations.
#ifndef DETENT_GRAPH_QUANTIZE_ACTIVATION_LEVELS_HPP
#define DETENT_GRAPH_QUANTIZE_ACTIVATION_LEVELS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The levels of activations of 2 to 8 bits: 0 .. 2^bits - 1 for type u8, -2^(bits - 1) ..
/// 2^(bits - 1) - 1 for type s8.
[[nodiscard]] constexpr grid activation_levels(element_type type, std::size_t bits) noexcept {
  const std::int32_t count = std::int32_t{1} << bits;
  return type == element_type::u8 ? grid{0, count - 1} : grid{-count / 2, count / 2 - 1};
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_ACTIVATION_LEVELS_HPP
