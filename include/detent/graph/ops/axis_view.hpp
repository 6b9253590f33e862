// SPDX-License-Identifier: BSD-3-Clause
// Tensors seen as three axes: what is before an axis, the axis, and what is behind it.
#ifndef DETENT_GRAPH_OPS_AXIS_VIEW_HPP
#define DETENT_GRAPH_OPS_AXIS_VIEW_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// A tensor seen as [outer, length, inner].
struct axis_view {
  std::size_t outer = 1;   ///< The product of the dimensions before the axis.
  std::size_t length = 1;  ///< The dimension of the axis.
  std::size_t inner = 1;   ///< The product of the dimensions behind the axis.
};

/// A tensor seen as [outer, length, inner], where `length` is made of dimensions [first, last).
[[nodiscard]] inline axis_view view_dims(const shape& dims, std::size_t first, std::size_t last) {
  axis_view v;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    std::size_t& part = i < first ? v.outer : (i < last ? v.length : v.inner);
    part *= static_cast<std::size_t>(dims[i]);
  }
  return v;
}

/// A tensor seen as [outer, length, inner], where `length` is one axis.
[[nodiscard]] inline axis_view view_axis(const shape& dims, std::size_t axis) {
  return view_dims(dims, axis, axis + 1);
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_AXIS_VIEW_HPP
