// SPDX-License-Identifier: BSD-3-Clause
// Converts tensors of float16 and bfloat16 to float and back.
#ifndef DETENT_GRAPH_OPS_HALF_TENSOR_HPP
#define DETENT_GRAPH_OPS_HALF_TENSOR_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/layout.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

[[nodiscard]] inline bool is_half(element_type type) noexcept {
  return type == element_type::f16 || type == element_type::bf16;
}

/// A tensor of float16 or bfloat16 as float32, exactly, in the same order of elements, in
/// memory of `allocate`. A tensor without elements stays without.
[[nodiscard]] inline tensor half_to_float(const tensor& t,
                                          const allocator& allocate = allocate_from_heap) {
  tensor out(element_type::f32, t.dims());
  out.set_channels_last(t.channels_last());
  if (!t.has_data()) {
    return out;
  }
  out.set_storage(allocate(out.bytes()));
  const auto bits = t.data<std::uint16_t>();
  auto values = out.mutable_data<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        t.type() == element_type::f16 ? to_float(float16{bits[i]}) : to_float(bfloat16{bits[i]});
  }
  return out;
}

/// A float32 tensor rounded to `type` (float16 or bfloat16), in the same order of elements, in
/// memory of `allocate`. A tensor without elements stays without.
[[nodiscard]] inline tensor float_to_half(const tensor& t, element_type type,
                                          const allocator& allocate = allocate_from_heap) {
  tensor out(type, t.dims());
  out.set_channels_last(t.channels_last());
  if (!t.has_data()) {
    return out;
  }
  out.set_storage(allocate(out.bytes()));
  const auto values = t.data<float>();
  auto bits = out.mutable_data<std::uint16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    bits[i] = type == element_type::f16 ? round_to<float16>(values[i]).bits
                                        : round_to<bfloat16>(values[i]).bits;
  }
  return out;
}

}  // namespace detail

/// Whether float32 holds all values of this type of floats: float32, float16, bfloat16.
[[nodiscard]] inline bool fits_float(element_type type) noexcept {
  return type == element_type::f32 || detail::is_half(type);
}

/// A tensor of a type that fits_float() names as float32: itself, or a converted copy.
[[nodiscard]] inline tensor as_float32(const tensor& t) {
  return detail::is_half(t.type()) ? detail::half_to_float(t) : t;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_HALF_TENSOR_HPP
