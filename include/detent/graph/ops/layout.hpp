// SPDX-License-Identifier: BSD-3-Clause
// Converts tensors between the order of their dimensions (batch, channel, spatial) and
// channels-last order (batch, spatial, channel), in which convolutions and pools work.
#ifndef DETENT_GRAPH_OPS_LAYOUT_HPP
#define DETENT_GRAPH_OPS_LAYOUT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/images/planes.hpp>
#include <detent/kernels/transposition.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Allocates at least `bytes` bytes, uninitialised and aligned for any element type, that are freed
/// with their last owner.
using allocator = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

/// An allocator that takes memory from the heap.
[[nodiscard]] inline std::shared_ptr<std::byte> allocate_from_heap(std::size_t bytes) {
  return {new std::byte[bytes + 1], [](const std::byte* p) { delete[] p; }};
}

/// True if a tensor of this shape is stored the same way in both orders: it has fewer than three
/// dimensions, one channel, or one pixel.
[[nodiscard]] inline bool has_one_order(const shape& dims) {
  if (dims.size() < 3 || dims[1] == 1) {
    return true;
  }
  for (std::size_t i = 2; i < dims.size(); ++i) {
    if (dims[i] != 1) {
      return false;
    }
  }
  return true;
}

namespace detail {
/// Transposes each of `batch` matrices [rows, columns] of elements of type T with the kernels.
template <class T>
void transpose_each(const tensor& t, std::size_t batch, std::size_t rows, std::size_t columns,
                    tensor& out) {
  kernels::transpose_args a;
  a.from_stride = columns;
  a.rows = a.to_stride = rows;
  a.columns = a.line = a.line_step = columns;
  for (std::size_t i = 0; i < batch; ++i) {
    a.from = t.raw() + i * rows * columns * sizeof(T);
    a.to = out.mutable_raw() + i * rows * columns * sizeof(T);
    detent::detail::transpose<T>(a);
  }
}

/// A copy of a tensor of rank 3 or more in the other order of elements.
inline tensor reorder(const tensor& t, bool to_channels_last, const allocator& allocate) {
  tensor out = t.form();
  out.set_channels_last(to_channels_last);
  if (!t.has_data()) {
    return out;
  }
  out.set_storage(allocate(out.bytes()));
  if (t.count() == 0) {
    return out;
  }
  const auto batch = static_cast<std::size_t>(t.dim(0));
  const auto channels = static_cast<std::size_t>(t.dim(1));
  const std::size_t pixels = t.count() / (batch * channels);
  const std::size_t rows = to_channels_last ? channels : pixels;
  const std::size_t columns = to_channels_last ? pixels : channels;
  switch (element_size(t.type())) {
    case sizeof(std::uint8_t):
      transpose_each<std::uint8_t>(t, batch, rows, columns, out);
      break;
    case sizeof(std::uint32_t):
      transpose_each<std::uint32_t>(t, batch, rows, columns, out);
      break;
    default: {
      const auto extent = [](std::size_t n) { return static_cast<std::int64_t>(n); };
      const std::array<std::size_t, 3> swapped{0, 2, 1};
      ops::transpose_bytes(t.raw(), out.mutable_raw(), element_size(t.type()),
                           {extent(batch), extent(rows), extent(columns)}, swapped);
    }
  }
  return out;
}
}  // namespace detail

/// The tensor with its elements in the order of its dimensions. Shares the elements if they are in
/// that order already, otherwise makes a copy in memory of `allocate`.
[[nodiscard]] inline tensor to_plain(const tensor& t,
                                     const allocator& allocate = allocate_from_heap) {
  if (!t.channels_last()) {
    return t;
  }
  if (has_one_order(t.dims())) {
    tensor same = t;
    same.set_channels_last(false);
    return same;
  }
  return detail::reorder(t, false, allocate);
}

/// The tensor (rank 3 or more) with its elements in channels-last order. Shares the elements if
/// they are in that order already, otherwise makes a copy in memory of `allocate`.
[[nodiscard]] inline tensor to_channels_last(const tensor& t,
                                             const allocator& allocate = allocate_from_heap) {
  if (t.channels_last()) {
    return t;
  }
  if (has_one_order(t.dims())) {
    tensor same = t;
    same.set_channels_last(true);
    return same;
  }
  return detail::reorder(t, true, allocate);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_LAYOUT_HPP
