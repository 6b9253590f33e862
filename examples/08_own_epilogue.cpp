// SPDX-License-Identifier: BSD-3-Clause
// Epilogues of your own: functors that products apply to their results while these are in a cache.
// They are templates that your compiler inlines into loops over registers, which no compiled
// library can offer. Three of them here:
//
//   GELU of a layer's results, as bytes for the next layer;
//   SwiGLU of two products with the same left side, silu(x * gate) * (x * up);
//   the range of each row, so that the next layer is quantized dynamically without another pass.
//
// With xsimd on the include path, functors work on registers, without it on single values.
//
// Build: g++ -std=c++20 -O2 -march=native -I include examples/08_own_epilogue.cpp -pthread
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include <detent/detent.hpp>
#include <detent/fused_dynamic_linear.hpp>
#include <detent/fused_gemm.hpp>
#include <detent/row_ranges.hpp>

namespace {

namespace simd = detent::simd;
using detent::matrix_view;
using detent::product_block;

constexpr std::size_t tokens = 50, width = 96, hidden = 200;

/// x * sigmoid(x), of a register or a value.
constexpr auto silu = [](const auto& x) {
  const std::decay_t<decltype(x)> one(1.0F);
  return x / (one + simd::exp(-x));
};

/// x * Phi(x) with the normal distribution's Phi, of a register or a value.
constexpr auto gelu = [](const auto& x) {
  using value = std::decay_t<decltype(x)>;
  return value(0.5F) * x * (value(1.0F) + simd::erf(x * value(0.70710678F)));
};

std::vector<float> random_values(std::size_t n, std::mt19937& random) {
  std::vector<float> values(n);
  for (float& v : values) v = std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);
  return values;
}

/// Weights of 8 bits with a scale for each column.
detent::packed_weights pack(const std::vector<float>& values, std::size_t rows,
                            std::size_t columns) {
  const detent::tensor_view<const float> w(values.data(), {rows, columns});
  detent::channel_min_max_observer observer(1);
  observer.observe(w);
  const detent::channel_quant_params p = observer.finalize(detent::symmetric<std::int8_t>);
  std::vector<std::int8_t> q(values.size());
  detent::quantize(w, q, p);
  return detent::pack_weights({q.data(), rows, columns}, {.scales = p.scales});
}

/// The largest difference between bytes of fused GELU and those of a second pass in double.
double check_gelu(matrix_view<const std::uint8_t> x, const detent::packed_weights& weights,
                  const detent::epilogue_options& options) {
  const detent::quant_params p{0.05F, 10};
  std::vector<std::uint8_t> bytes(x.rows * weights.columns());
  const matrix_view<std::uint8_t> out(bytes.data(), x.rows, weights.columns());
  detent::gemm(x, weights, detent::fused([&](const product_block<float>& block) {
                 detent::transform(gelu, block);         // in registers, at your compiler's flags
                 detent::quantize_block(block, out, p);  // by the library's fastest kernel
               }),
               options);

  std::vector<float> sums(bytes.size());
  detent::gemm(x, weights, matrix_view<float>(sums.data(), x.rows, weights.columns()), options);
  double largest = 0.0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double v = sums[i];
    const double exact = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
    const double steps = std::clamp(exact / double{p.scale} + p.zero_point, 0.0, 255.0);
    largest = std::max(largest, std::fabs(steps - bytes[i]));
  }
  return largest;
}

/// The feed-forward part of a transformer layer: out = (silu(x * gate) * (x * up)) * down.
std::vector<float> feed_forward(matrix_view<const float> x, const detent::packed_weights& gate,
                                const detent::packed_weights& up,
                                const detent::packed_weights& down) {
  std::vector<float> gated(x.rows * gate.columns());
  const matrix_view<float> inner(gated.data(), x.rows, gate.columns());
  detent::row_ranges ranges(x.rows);
  detent::dynamic_linear(
      x, gate, up, detent::fused([&](const product_block<float>& g, const product_block<float>& u) {
        detent::transform([](const auto& a, const auto& b) { return silu(a) * b; }, g, u);
        ranges.include(g);
        detent::store_block(g, inner);
      }));

  // What dynamic_linear() would find out in a pass of its own is known already.
  const detent::channel_quant_params p = ranges.finalize(detent::asymmetric<std::uint8_t>);
  std::vector<std::uint8_t> bytes(gated.size());
  detent::quantize(detent::tensor_view<const float>(gated.data(), {x.rows, gate.columns()}), bytes,
                   p);
  std::vector<float> out(x.rows * down.columns());
  detent::gemm(matrix_view<const std::uint8_t>(bytes.data(), x.rows, gate.columns()), down,
               matrix_view<float>(out.data(), x.rows, down.columns()),
               {.lhs_scales = p.scales, .lhs_zero_points = p.zero_points});
  return out;
}

/// The same by separate passes of the library.
std::vector<float> unfused(matrix_view<const float> x, const detent::packed_weights& gate,
                           const detent::packed_weights& up, const detent::packed_weights& down) {
  std::vector<float> g(x.rows * gate.columns());
  std::vector<float> u(g.size());
  detent::dynamic_linear(x, gate, matrix_view<float>(g.data(), x.rows, gate.columns()));
  detent::dynamic_linear(x, up, matrix_view<float>(u.data(), x.rows, up.columns()));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1.0F + std::exp(-g[i])) * u[i];
  std::vector<float> out(x.rows * down.columns());
  detent::dynamic_linear(matrix_view<const float>(g.data(), x.rows, gate.columns()), down,
                         matrix_view<float>(out.data(), x.rows, down.columns()));
  return out;
}

}  // namespace

int main() {
  std::mt19937 random;
  const std::vector<float> x = random_values(tokens * width, random);
  const detent::packed_weights gate = pack(random_values(width * hidden, random), width, hidden);
  const detent::packed_weights up = pack(random_values(width * hidden, random), width, hidden);
  const detent::packed_weights down = pack(random_values(hidden * width, random), hidden, width);

  std::vector<std::uint8_t> x8(x.size());
  const detent::quant_params p =
      detent::params_from_range({-1.0F, 1.0F}, detent::asymmetric<std::uint8_t>);
  detent::quantize(x, x8, p);
  const double steps = check_gelu({x8.data(), tokens, width}, gate,
                                  {.lhs_scale = p.scale, .lhs_zero_point = p.zero_point});
  std::printf("GELU to bytes: at most %.3f steps from the exact value\n", steps);

  const matrix_view<const float> rows(x.data(), tokens, width);
  const std::vector<float> fused = feed_forward(rows, gate, up, down);
  const std::vector<float> plain = unfused(rows, gate, up, down);
  float error = 0.0F, largest = 0.0F;
  for (std::size_t i = 0; i < fused.size(); ++i) {
    error = std::max(error, std::fabs(fused[i] - plain[i]));
    largest = std::max(largest, std::fabs(plain[i]));
  }
  std::printf("SwiGLU: largest difference to separate passes %g, largest value %g\n", double{error},
              double{largest});
  // Half a step by rounding, and a little for the approximation of erf; the exponentials of xsimd
  // and of the standard library differ in the last bits, which may move a byte by one step.
  return steps < 0.51 && error < 0.01F * largest ? 0 : 1;
}
