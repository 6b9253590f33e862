// SPDX-License-Identifier: BSD-3-Clause
// What Dropout meant before opset 7.
#ifndef DETENT_GRAPH_OPS_DROPOUT_HPP
#define DETENT_GRAPH_OPS_DROPOUT_HPP

#include <cstdint>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// Whether a Dropout node drops elements by its attributes alone: before opset 7 it does, unless
/// is_test is 1 or ratio is 0. False for later opsets.
[[nodiscard]] inline bool is_dropout_in_training(const node& n, std::int64_t opset) {
  return opset < 7 && n.get_int("is_test", 0) == 0 && n.get_float("ratio", 0.5F) != 0.0F;
}

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_DROPOUT_HPP
