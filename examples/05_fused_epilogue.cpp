// SPDX-License-Identifier: BSD-3-Clause
// Bias, ReLU and quantization of a buffer in one pass over memory, with detent::batch on xsimd
// registers. The library's own two passes give the same bytes. Needs xsimd 13 or later on the
// include path.
//
// Build: g++ -std=c++20 -O2 -I include examples/05_fused_epilogue.cpp -pthread
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <xsimd/xsimd.hpp>

#include <detent/batch.hpp>
#include <detent/quantize.hpp>

namespace {

constexpr detent::grid levels = detent::full_grid<std::uint8_t>;

/// out = quantize(max(x + bias, 0)), in one pass.
void fused(std::span<const float> x, float bias, std::span<std::uint8_t> out,
           detent::quant_params p) {
  using floats = xsimd::batch<float>;
  std::size_t i = 0;
  for (; i + floats::size <= x.size(); i += floats::size) {
    const floats sum = floats::load_unaligned(&x[i]) + floats(bias);
    const floats activated = xsimd::max(sum, floats(0.0F));
    detent::batch::store_8bit(&out[i], detent::batch::quantize(activated, p, levels));
  }
  for (; i < x.size(); ++i) {
    const float activated = std::max(x[i] + bias, 0.0F);
    out[i] = static_cast<std::uint8_t>(detent::reference::quantize(activated, p, levels));
  }
}

/// The same with an intermediate buffer.
void unfused(std::span<const float> x, float bias, std::span<std::uint8_t> out,
             detent::quant_params p) {
  std::vector<float> activated(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    activated[i] = std::max(x[i] + bias, 0.0F);
  }
  detent::quantize(activated, out, p, levels);
}

}  // namespace

int main() {
  std::vector<float> x(100003);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 4.0F * std::sin(static_cast<float>(i));
  }
  const float bias = 0.25F;
  const detent::quant_params p =
      detent::params_from_range({0.0F, 4.25F}, detent::asymmetric<std::uint8_t>);

  std::vector<std::uint8_t> one_pass(x.size());
  std::vector<std::uint8_t> two_passes(x.size());
  fused(x, bias, one_pass, p);
  unfused(x, bias, two_passes, p);

  const bool equal = one_pass == two_passes;
  std::printf("%zu values, fused and unfused bytes are %s\n", x.size(),
              equal ? "equal" : "DIFFERENT");
  return equal ? 0 : 1;
}
