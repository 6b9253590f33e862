// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic on 8-bit tensors in plain C++.
#ifndef DETENT_KERNELS_PORTABLE_QUANTIZED_BINARY_HPP
#define DETENT_KERNELS_PORTABLE_QUANTIZED_BINARY_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/portable/grid.hpp>
#include <detent/kernels/quantized_binary.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// What each byte stands for. Values from a table can't be contracted with what is done to them.
DETENT_DECL void dequantize_bytes(const quantized_bytes& q, float (&values)[256]) noexcept {
  for (std::int32_t byte = 0; byte < 256; ++byte) {
    values[byte] = static_cast<float>((byte ^ q.flip) - q.zero_point) * q.scale;
  }
}

DETENT_DECL void quantized_binary(const quantized_binary_args& g) noexcept {
  float a[256];
  float b[256];
  dequantize_bytes(g.a, a);
  dequantize_bytes(g.b, b);
  auto* out = static_cast<std::uint8_t*>(g.out);
  for (std::size_t i = 0; i < g.count; ++i) {
    const float value = combine(g.function, a[g.a.data[i]], b[g.b.data[i]]);
    out[i] = static_cast<std::uint8_t>(to_grid(value / g.scale, g.zero_point, g.qmin, g.qmax));
  }
}

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_QUANTIZED_BINARY_HPP
