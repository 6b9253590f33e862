// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_scalar.hpp"

#include <cmath>

void quantize_scalar(const float* x, std::size_t n, float scale, std::int32_t zero_point,
                     std::uint8_t* q) {
  for (std::size_t i = 0; i < n; ++i) {
    float v = std::nearbyint(x[i] / scale) + static_cast<float>(zero_point);
    v = v < 0.0F ? 0.0F : v > 255.0F ? 255.0F : v;
    q[i] = static_cast<std::uint8_t>(v);
  }
}
