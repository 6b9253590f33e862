// SPDX-License-Identifier: BSD-3-Clause
// Quantizes a vector of floats to uint8 and back. Scale and zero point come from an observer, which
// sees the values in batches. No value is off by more than half a step, that is, scale / 2.
// Build: g++ -std=c++20 -O2 -I include examples/01_quantize.cpp -pthread
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>

int main() {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 1.0F + 2.0F * std::sin(static_cast<float>(i));  // between -1 and 3
  }

  // Two batches; any other split of the values gives the same parameters.
  detent::min_max_observer observer;
  observer.observe(std::span(x).first(600));
  observer.observe(std::span(x).subspan(600));
  const detent::quant_params p = observer.finalize(detent::asymmetric<std::uint8_t>);

  std::vector<std::uint8_t> q(x.size());
  detent::quantize(x, q, p);  // q = clamp(round_half_even(x / scale) + zero_point, 0, 255)

  std::vector<float> restored(x.size());
  detent::dequantize(q, restored, p);  // restored = (q - zero_point) * scale

  float largest_error = 0.0F;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest_error = std::max(largest_error, std::fabs(restored[i] - x[i]));
  }
  std::printf("scale %.6f, zero point %d, largest error %.6f (scale / 2 is %.6f)\n",
              static_cast<double>(p.scale), p.zero_point, static_cast<double>(largest_error),
              static_cast<double>(p.scale / 2.0F));
  return largest_error <= p.scale / 2.0F ? 0 : 1;
}
