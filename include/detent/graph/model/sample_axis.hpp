// SPDX-License-Identifier: BSD-3-Clause
// Cuts tensors into samples along one of their axes, and joins them again.
#ifndef DETENT_GRAPH_MODEL_SAMPLE_AXIS_HPP
#define DETENT_GRAPH_MODEL_SAMPLE_AXIS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The bytes of a tensor around one of its axes: `outer` blocks of `size` steps of `step` bytes.
/// Not meaningful for a tensor without elements.
struct axis_layout {
  std::size_t outer = 1;  // the product of the extents before the axis
  std::size_t size = 0;   // the extent of the axis
  std::size_t step = 0;   // bytes from one index of the axis to the next

  axis_layout(element_type type, const shape& dims, std::size_t axis)
      : size(static_cast<std::size_t>(dims[axis])), step(element_size(type)) {
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (i != axis) {
        (i < axis ? outer : step) *= static_cast<std::size_t>(dims[i]);
      }
    }
  }
};

/// Throws shape_mismatch unless a tensor of shape `dims` has the indices first .. first + count - 1
/// along an axis.
inline void require_samples(const shape& dims, std::size_t axis, std::size_t first,
                            std::size_t count) {
  const std::size_t all = axis < dims.size() ? static_cast<std::size_t>(dims[axis]) : 0;
  require(axis < dims.size() && first <= all && count <= all - first, error_kind::shape_mismatch,
          "samples ", first, " to ", first + count, " along axis ", axis, " of a tensor of shape ",
          shown(dims));
}

}  // namespace detail

/// A copy of the samples first .. first + count - 1 of a tensor, which `axis` counts. Throws
/// shape_mismatch if the tensor does not have this axis or so many samples.
[[nodiscard]] inline tensor slice_samples(const tensor& t, std::size_t first, std::size_t count,
                                          std::size_t axis = 0) {
  detail::require_samples(t.dims(), axis, first, count);
  shape dims = t.dims();
  dims[axis] = static_cast<std::int64_t>(count);
  tensor out = tensor::allocate(t.type(), std::move(dims));
  if (out.bytes() == 0) {
    return out;
  }
  const detail::axis_layout from(t.type(), t.dims(), axis);
  for (std::size_t o = 0; o < from.outer; ++o) {
    std::memcpy(out.mutable_raw() + o * count * from.step,
                t.raw() + (o * from.size + first) * from.step, count * from.step);
  }
  return out;
}

/// Joins tensors along an axis, in their order. Throws shape_mismatch, with both shapes, if they
/// differ in the type of their elements, in rank, or in another axis, or do not have the axis;
/// invalid_argument if there are none. Messages begin with `what`.
[[nodiscard]] inline tensor join_samples(const std::vector<tensor>& pieces, const std::string& what,
                                         std::size_t axis = 0) {
  require(!pieces.empty(), error_kind::invalid_argument, what, ": there is nothing to join");
  const tensor& first = pieces[0];
  std::int64_t count = 0;
  for (const tensor& piece : pieces) {
    bool fits = piece.type() == first.type() && piece.rank() == first.rank() && piece.rank() > axis;
    for (std::size_t i = 0; fits && i < piece.rank(); ++i) {
      fits = i == axis || piece.dim(i) == first.dim(i);
    }
    require(fits, error_kind::shape_mismatch, what, ": ", graph::name(piece.type()), " ",
            to_string(piece.dims()), " does not fit behind ", graph::name(first.type()), " ",
            to_string(first.dims()));
    count += piece.dim(axis);
  }
  shape dims = first.dims();
  dims[axis] = count;
  tensor whole = tensor::allocate(first.type(), std::move(dims));
  if (whole.bytes() == 0) {
    return whole;
  }
  const detail::axis_layout to(whole.type(), whole.dims(), axis);
  std::size_t at = 0;  // the first index along the axis of the next piece
  for (const tensor& piece : pieces) {
    const auto size = static_cast<std::size_t>(piece.dim(axis));
    for (std::size_t o = 0; size > 0 && o < to.outer; ++o) {
      std::memcpy(whole.mutable_raw() + (o * to.size + at) * to.step,
                  piece.raw() + o * size * to.step, size * to.step);
    }
    at += size;
  }
  return whole;
}

/// The tensor with its last sample repeated until there are `count` samples along an axis. Throws
/// shape_mismatch if the tensor does not have the axis, or has no sample or more than `count`.
[[nodiscard]] inline tensor pad_samples(const tensor& t, std::size_t count, std::size_t axis = 0) {
  detail::require_samples(t.dims(), axis, 0, 1);
  const auto real = static_cast<std::size_t>(t.dim(axis));
  require(real <= count, error_kind::shape_mismatch, "a tensor of shape ", shown(t.dims()),
          " has more than ", count, " samples along axis ", axis);
  if (real == count) {
    return t;
  }
  shape dims = t.dims();
  dims[axis] = static_cast<std::int64_t>(count);
  tensor out = tensor::allocate(t.type(), std::move(dims));
  const detail::axis_layout from(t.type(), t.dims(), axis);
  for (std::size_t o = 0; out.bytes() > 0 && o < from.outer; ++o) {
    const std::byte* const block = t.raw() + o * real * from.step;
    std::byte* to = out.mutable_raw() + o * count * from.step;
    std::memcpy(to, block, real * from.step);
    for (std::size_t i = real; i < count; ++i) {
      std::memcpy(to + i * from.step, block + (real - 1) * from.step, from.step);
    }
  }
  return out;
}

/// The tensor with an axis moved to the front: its samples one after the other. Throws
/// shape_mismatch if the tensor does not have the axis.
[[nodiscard]] inline tensor samples_first(const tensor& t, std::size_t axis) {
  detail::require_samples(t.dims(), axis, 0, 0);
  if (axis == 0 || t.bytes() == 0) {
    return t;
  }
  shape dims = t.dims();
  std::rotate(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(axis),
              dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
  tensor out = tensor::allocate(t.type(), std::move(dims));
  const detail::axis_layout from(t.type(), t.dims(), axis);
  for (std::size_t i = 0; i < from.size; ++i) {
    for (std::size_t o = 0; o < from.outer; ++o) {
      std::memcpy(out.mutable_raw() + (i * from.outer + o) * from.step,
                  t.raw() + (o * from.size + i) * from.step, from.step);
    }
  }
  return out;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_SAMPLE_AXIS_HPP
