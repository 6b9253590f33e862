// SPDX-License-Identifier: BSD-3-Clause
// Multiplies two float matrices in 8 bits and compares the result with their product in floats.
// Build: g++ -std=c++20 -O2 -I include examples/02_gemm.cpp -pthread
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include <detent/detent.hpp>

int main() {
  constexpr std::size_t M = 32, K = 256, N = 64;
  std::vector<float> x(M * K), w(K * N), y(M * N);
  std::mt19937 random;
  for (float& v : x) v = std::uniform_real_distribution<float>(-1.0F, 3.0F)(random);
  for (float& v : w) v = std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);

  // Activations: uint8 with one scale and zero point, from the observed range.
  detent::min_max_observer observer;
  observer.observe(x);
  const detent::quant_params p = observer.finalize(detent::asymmetric<std::uint8_t>);
  std::vector<std::uint8_t> x8(M * K);
  detent::quantize(x, x8, p);  // x8 = clamp(round_half_even(x / scale) + zero_point)

  // Weights: int8 with a scale for each column (axis 1), packed once for all products.
  const detent::tensor_view<const float> weights(w.data(), {K, N});
  detent::channel_min_max_observer columns(1);
  columns.observe(weights);
  const detent::channel_quant_params c = columns.finalize(detent::symmetric<std::int8_t>);
  std::vector<std::int8_t> w8(K * N);
  detent::quantize(weights, w8, c);
  const auto packed = detent::pack_weights({w8.data(), K, N}, {.scales = c.scales});

  // Exact integer sums, then scales: y is float here, and may be int32, bfloat16, uint8 or int8.
  detent::gemm(detent::matrix_view(x8.data(), M, K), packed, detent::matrix_view(y.data(), M, N),
               {.lhs_scale = p.scale, .lhs_zero_point = p.zero_point});

  float error = 0.0F, largest = 0.0F;
  for (std::size_t i = 0; i < M * N; ++i) {
    float sum = 0.0F;
    for (std::size_t k = 0; k < K; ++k) sum += x[i / N * K + k] * w[k * N + i % N];
    error = std::fmax(error, std::fabs(y[i] - sum));
    largest = std::fmax(largest, std::fabs(sum));
  }
  std::printf("largest error %g, largest value %g\n", double{error}, double{largest});
  return error < 0.01F * largest ? 0 : 1;
}
