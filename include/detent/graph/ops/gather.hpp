// SPDX-License-Identifier: BSD-3-Clause
// Gather, GatherElements and GatherND: operators that pick elements of any type by indices.
#ifndef DETENT_GRAPH_OPS_GATHER_HPP
#define DETENT_GRAPH_OPS_GATHER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace movement {

inline void require_indices(const operator_context& c) {
  const element_type type = c.input(1).type();
  c.require(type == element_type::s64 || type == element_type::s32, "indices are ", name(type),
            ", not int64 or int32");
}
/// Brings an index, which counts from the end if it is negative, into [0, dim). Throws bad_file,
/// naming the node, if it is out of range.
[[nodiscard]] inline std::size_t checked_index(const operator_context& c, std::int64_t index,
                                               std::int64_t dim) {
  c.require(index >= -dim && index < dim, "index ", index, " in a dimension of ", dim);
  return static_cast<std::size_t>(index < 0 ? index + dim : index);
}

inline void infer_gather(operator_context& c) {
  const tensor& in = c.input(0);
  const shape& indices = c.input(1).dims();
  require_indices(c);
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  const auto at = static_cast<std::ptrdiff_t>(axis);
  shape dims(in.dims().begin(), in.dims().begin() + at);
  dims.insert(dims.end(), indices.begin(), indices.end());
  dims.insert(dims.end(), in.dims().begin() + at + 1, in.dims().end());
  c.set_output(0, in.type(), std::move(dims));
}
inline void run_gather(operator_context& c) {
  const tensor& in = c.input(0);
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  index_map map(c.memory);
  for (const std::int64_t i : load_all<std::int64_t>(c, c.input(1))) {
    map.push_back(checked_index(c, i, in.dim(axis)));
  }
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  // The input seen as outer x axis, with elements of `inner` contiguous ones.
  const std::size_t outer = product(in.dims(), 0, axis);
  const std::size_t inner = product(in.dims(), axis + 1, in.rank());
  index_map every(outer, c.memory);
  for (std::size_t i = 0; i < outer; ++i) {
    every[i] = i;
  }
  mapped_copy(element_size(in.type()) * inner, {static_cast<std::int64_t>(outer), in.dim(axis)},
              {std::move(every), std::move(map)})
      .run(in.raw(), out.mutable_raw(), c.parallel);
}

inline void infer_gather_elements(operator_context& c) {
  const tensor& in = c.input(0);
  const shape& indices = c.input(1).dims();
  require_indices(c);
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  bool fits = indices.size() == in.rank();
  for (std::size_t i = 0; fits && i < indices.size(); ++i) {
    fits = i == axis || indices[i] <= in.dim(i);
  }
  c.require(fits, "indices of shape ", shown(indices), " for a tensor of shape ", shown(in.dims()),
            " on axis ", axis);
  c.set_output(0, in.type(), indices);
}
inline void run_gather_elements(operator_context& c) {
  const tensor& in = c.input(0);
  const std::size_t size = element_size(in.type());
  const std::size_t axis = c.axis(c.n().get_int("axis", 0), in.rank());
  const std::pmr::vector<std::int64_t> indices = load_all<std::int64_t>(c, c.input(1));
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  const std::vector<std::ptrdiff_t> steps = row_major_steps(in.dims());
  const auto axis_step = static_cast<std::size_t>(steps[axis]);
  std::vector<std::int64_t> at(out.rank(), 0);
  std::size_t base = 0;  // offset of index `at` in the input, without the part of the axis
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t from = base + checked_index(c, indices[i], in.dim(axis)) * axis_step;
    std::memcpy(out.mutable_raw() + i * size, in.raw() + from * size, size);
    for (std::size_t d = out.rank(); d-- > 0;) {
      const std::size_t step = d == axis ? 0 : static_cast<std::size_t>(steps[d]);
      base += step;
      if (++at[d] < out.dim(d)) {
        break;
      }
      base -= step * static_cast<std::size_t>(at[d]);
      at[d] = 0;
    }
  }
}

/// The ranks that GatherND works with. The first `batch` dimensions of data and indices correspond
/// to each other, and each index consists of `depth` numbers; with 0 it takes all that the batch
/// dimensions leave.
struct gather_nd_ranks {
  std::size_t batch;
  std::size_t depth;
};
/// Reads the ranks of a GatherND node and checks that its inputs fit together.
[[nodiscard]] inline gather_nd_ranks gather_ranks(const operator_context& c) {
  const shape& in = c.input(0).dims();
  const shape& indices = c.input(1).dims();
  const std::int64_t batch = c.opset >= 12 ? c.n().get_int("batch_dims", 0) : 0;
  c.require(!in.empty() && !indices.empty(), "a scalar has no elements to gather");
  c.require(batch >= 0 && batch < static_cast<std::int64_t>((std::min)(in.size(), indices.size())),
            "batch_dims ", batch, " for shapes ", shown(in), " and ", shown(indices));
  const auto b = static_cast<std::size_t>(batch);
  const std::int64_t depth = indices.back();
  c.require(depth >= 0 && depth <= static_cast<std::int64_t>(in.size() - b), "indices of ", depth,
            " numbers for a tensor of shape ", shown(in), " with batch_dims ", batch);
  c.require(std::equal(in.begin(), in.begin() + batch, indices.begin()), "shapes ", shown(in),
            " and ", shown(indices), " differ in the first ", batch, " dimensions");
  return {b, static_cast<std::size_t>(depth)};
}
inline void infer_gather_nd(operator_context& c) {
  const shape& in = c.input(0).dims();
  const shape& indices = c.input(1).dims();
  require_indices(c);
  const gather_nd_ranks r = gather_ranks(c);
  shape dims(indices.begin(), indices.end() - 1);
  dims.insert(dims.end(), in.begin() + static_cast<std::ptrdiff_t>(r.batch + r.depth), in.end());
  c.set_output(0, c.input(0).type(), std::move(dims));
}
inline void run_gather_nd(operator_context& c) {
  const tensor& in = c.input(0);
  const gather_nd_ranks r = gather_ranks(c);
  const std::pmr::vector<std::int64_t> indices = load_all<std::int64_t>(c, c.input(1));
  tensor& out = c.make_output(0);
  if (out.bytes() == 0) {
    return;
  }
  const std::size_t inner = product(in.dims(), r.batch + r.depth, in.rank());
  const std::size_t batches = product(in.dims(), 0, r.batch);
  const std::size_t tuples = out.count() / inner;
  const std::size_t bytes = inner * element_size(in.type());
  for (std::size_t i = 0; i < tuples; ++i) {
    std::size_t row = i / (tuples / batches);
    for (std::size_t k = 0; k < r.depth; ++k) {
      const std::int64_t dim = in.dim(r.batch + k);
      row = row * static_cast<std::size_t>(dim) + checked_index(c, indices[i * r.depth + k], dim);
    }
    std::memcpy(out.mutable_raw() + i * bytes, in.raw() + row * bytes, bytes);
  }
}

}  // namespace movement

inline constexpr operator_definition gather_operators[] = {
    {"", "Gather", 2, 2, layout_support::plain, movement::infer_gather, movement::run_gather, true},
    {"", "GatherElements", 2, 2, layout_support::plain, movement::infer_gather_elements,
     movement::run_gather_elements},
    {"", "GatherND", 2, 2, layout_support::plain, movement::infer_gather_nd,
     movement::run_gather_nd},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_GATHER_HPP
