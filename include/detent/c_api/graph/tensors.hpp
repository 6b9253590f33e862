// SPDX-License-Identifier: BSD-3-Clause
// The folder c_api/graph/ implements the C interface of the graph part, <detent/c_api_graph.h>. It
// may include everything below graph/ and the shared parts of c_api/; nothing includes it. Its .cpp
// files make the library detent_graph_c.
//
// This file turns the caller's tensors into the library's and back.
#ifndef DETENT_C_API_GRAPH_TENSORS_HPP
#define DETENT_C_API_GRAPH_TENSORS_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/c_api_graph.h>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/sub_byte.hpp>

#include "../calls.hpp"

namespace detent_c {

namespace graph = detent::graph;

/// Types of the C interface and of graphs that are the same.
inline constexpr std::pair<detent_type, graph::element_type> type_pairs[] = {
    {DETENT_U8, graph::element_type::u8},
    {DETENT_S8, graph::element_type::s8},
    {DETENT_S32, graph::element_type::s32},
    {DETENT_F32, graph::element_type::f32},
    {DETENT_BF16, graph::element_type::bf16},
    {DETENT_F16, graph::element_type::f16},
    {DETENT_U16, graph::element_type::u16},
    {DETENT_S16, graph::element_type::s16},
    {DETENT_F8E4M3FN, graph::element_type::f8e4m3fn},
    {DETENT_F8E5M2, graph::element_type::f8e5m2},
    {DETENT_U4, graph::element_type::u4},
    {DETENT_S4, graph::element_type::s4},
    {DETENT_F64, graph::element_type::f64},
    {DETENT_U32, graph::element_type::u32},
    {DETENT_U64, graph::element_type::u64},
    {DETENT_S64, graph::element_type::s64},
    {DETENT_BOOL, graph::element_type::boolean}};

/// DETENT_NO_TYPE for types that the C interface does not have.
inline detent_type type_of(graph::element_type type) noexcept {
  for (const auto& [here, there] : type_pairs) {
    if (there == type) {
      return here;
    }
  }
  return DETENT_NO_TYPE;
}

/// Throws invalid_argument for types that tensors of graphs do not have.
inline graph::element_type type_of(detent_type type, const std::string& what) {
  for (const auto& [here, there] : type_pairs) {
    if (here == type) {
      return there;
    }
  }
  detent::raise(error_kind::invalid_argument,
                detent::detail::message("detent: ", what, ": type ", static_cast<int>(type),
                                        " is no type of tensors"));
}

/// Whether two elements share a byte in the C interface; in graphs, each has a byte of its own.
inline bool is_packed(graph::element_type type) noexcept {
  return type == graph::element_type::u4 || type == graph::element_type::s4;
}

/// Bytes of the elements in the C interface.
inline std::size_t caller_bytes(const graph::tensor& t) noexcept {
  return is_packed(t.type()) ? t.count() / 2 + t.count() % 2 : t.bytes();
}

/// The tensor without its elements. Throws invalid_argument for extents that no tensor has: the
/// caller made them, so that the error is not bad_file as for those of a model.
inline graph::tensor form_of(graph::element_type type, graph::shape dims, const std::string& what) {
  try {
    return {type, std::move(dims)};
  } catch (const detent::error& e) {
    detent::raise(error_kind::invalid_argument,
                  detent::detail::message("detent: ", what, ": ", graph::detail::message_of(e)));
  }
}

/// A copy of the caller's tensor; `what` names it in messages. Throws invalid_argument and
/// shape_mismatch for a tensor that contradicts itself, before memory for it is allocated.
inline graph::tensor tensor_of(const detent_tensor& given, const std::string& what) {
  const auto invalid = error_kind::invalid_argument;
  const graph::element_type type = type_of(given.type, what);
  require(given.rank <= graph::max_tensor_rank, invalid, what, ": rank ", given.rank, " is over ",
          graph::max_tensor_rank);
  require(given.rank == 0 || given.shape != nullptr, invalid, what, ": null shape");
  const graph::tensor form =
      form_of(type, graph::shape(given.shape, given.shape + given.rank), what);
  require(given.bytes == caller_bytes(form), error_kind::shape_mismatch, what, ": ", given.bytes,
          " bytes for a tensor of ", caller_bytes(form));
  require(given.data != nullptr || form.count() == 0, invalid, what, ": null data");
  graph::tensor t = graph::tensor::allocate(type, form.dims());
  if (t.count() == 0) {
    return t;
  }
  if (!is_packed(type)) {
    std::memcpy(t.mutable_raw(), given.data, t.bytes());
    return t;
  }
  const auto unpack = [&]<class Q>() {
    const detent::packed_span<const Q> from(
        std::span(static_cast<const std::uint8_t*>(given.data), given.bytes), t.count());
    const auto to = t.mutable_data<typename Q::value_type>();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = from.get(i);
    }
  };
  type == graph::element_type::u4 ? unpack.template operator()<detent::uint4>()
                                  : unpack.template operator()<detent::int4>();
  return t;
}

/// The elements of a tensor of 4-bit integers, two to a byte; empty for other types.
inline std::vector<std::uint8_t> packed_elements(const graph::tensor& t) {
  std::vector<std::uint8_t> bytes;
  if (is_packed(t.type())) {
    bytes.resize(caller_bytes(t));
    const std::span<const std::uint8_t> from = t.data<std::uint8_t>();
    for (std::size_t i = 0; i < from.size(); ++i) {
      bytes[i / 2] |= static_cast<std::uint8_t>((from[i] & 15U) << (i % 2 * 4));
    }
  }
  return bytes;
}

}  // namespace detent_c

#endif  // DETENT_C_API_GRAPH_TENSORS_HPP
