// SPDX-License-Identifier: BSD-3-Clause
// Tells which operators only move elements, for passes that move quantization across nodes.
#ifndef DETENT_GRAPH_OPS_ELEMENT_MOVEMENT_HPP
#define DETENT_GRAPH_OPS_ELEMENT_MOVEMENT_HPP

#include <algorithm>
#include <iterator>
#include <string_view>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// True if the node moves elements without looking at them, or only compares them, as MaxPool does.
/// Such a node commutes with quantization if its input and output share their parameters. A Resize
/// that writes a number of its own outside of the input (tf_crop_and_resize) does not.
[[nodiscard]] inline bool moves_elements(const node& n) {
  static constexpr std::string_view names[] = {
      "Reshape", "Flatten", "Transpose", "Squeeze",      "Unsqueeze",    "Slice",   "Gather",
      "Expand",  "MaxPool", "Tile",      "SpaceToDepth", "DepthToSpace", "Identity"};
  if (n.is("Resize") || n.is("Upsample")) {
    return n.get_string("mode", "nearest") == "nearest" &&
           n.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize";
  }
  return n.domain.empty() &&
         std::find(std::begin(names), std::end(names), n.op_type) != std::end(names);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ELEMENT_MOVEMENT_HPP
