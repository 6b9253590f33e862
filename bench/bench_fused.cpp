// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of fused epilogues: a product with a functor on its blocks beside the product with the
// built-in epilogue, and beside separate passes over the results. All variants run in turns, and
// the counters are ratios of the best times:
//
//   quantize_vs_built_in    the functor does what the built-in requantization does, by
//                           quantize_block(); 1.05 means 5 % more time
//   registers_vs_built_in   the same by integer sums in registers (batch::requantize)
//   <activation>_gain       the time of separate passes (product to floats, activation, quantize)
//   over
//                           the fused time
//   <activation>_limit      the time of separate passes over that of the product to floats alone:
//                           what would be gained if fused passes were free
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/batch.hpp>
#include <detent/detent.hpp>
#include <detent/fused_gemm.hpp>

#include "limits.hpp"

namespace {

namespace simd = detent::simd;
using detent::matrix_view;
using detent::product_block;

constexpr auto squared_relu = [](const auto& x) {
  const auto positive = simd::max(x, std::decay_t<decltype(x)>(0.0F));
  return positive * positive;
};
constexpr auto gelu = [](const auto& x) {
  using value = std::decay_t<decltype(x)>;
  const value inner = value(0.79788456F) * (x + value(0.044715F) * x * x * x);
  return value(0.5F) * x * (value(1.0F) + simd::tanh(inner));
};

/// The best time of each of several variants, which are run in turns.
template <std::size_t N>
class best_times {
 public:
  template <class Run>
  void time(std::size_t variant, const Run& run) {
    const double start = detent_bench::seconds_now();
    run();
    benchmark::ClobberMemory();
    best_[variant] = (std::min)(best_[variant], detent_bench::seconds_now() - start);
  }
  best_times() { best_.fill(std::numeric_limits<double>::infinity()); }
  [[nodiscard]] double ratio(std::size_t a, std::size_t b) const { return best_[a] / best_[b]; }

 private:
  std::array<double, N> best_;
};

void fused(benchmark::State& state) {
  const auto m = static_cast<std::size_t>(state.range(0));
  const auto n = static_cast<std::size_t>(state.range(1));
  const auto k = static_cast<std::size_t>(state.range(2));
  std::mt19937 random(1);
  std::vector<std::uint8_t> a(m * k);
  std::vector<std::int8_t> w(k * n);
  for (auto& v : a) v = static_cast<std::uint8_t>(random());
  for (auto& v : w) v = static_cast<std::int8_t>(random());
  const detent::packed_weights weights = detent::pack_weights({w.data(), k, n});
  const matrix_view<const std::uint8_t> lhs(a.data(), m, k);
  const detent::quant_params p{4096.0F, 128};
  const detent::grid levels = detent::full_grid<std::uint8_t>;
  const detent::epilogue_options options{.lhs_zero_point = 128, .output = p};
  const detent::epilogue_options to_real{.lhs_scale = 1.0F / 32768.0F, .lhs_zero_point = 128};
  const detent::quant_params q{0.125F, 3};
  std::array<std::vector<std::uint8_t>, 5> bytes;
  bytes.fill(std::vector<std::uint8_t>(m * n));
  const auto out = [&](std::size_t i) { return matrix_view<std::uint8_t>(bytes[i].data(), m, n); };
  std::vector<float> real(m * n);
  const matrix_view<float> reals(real.data(), m, n);

  const auto separate = [&](const auto& activation, std::vector<std::uint8_t>& to) {
    detent::gemm(lhs, weights, reals, to_real);
    constexpr std::size_t size = simd::lane_count<float>;
    for (std::size_t i = 0; i < real.size(); i += size) {
      const std::size_t count = (std::min)(size, real.size() - i);
      simd::store(activation(simd::load(&real[i], count)), &real[i], count);
    }
    detent::quantize(real, to, q);
  };
  const auto in_blocks = [&](const auto& activation, matrix_view<std::uint8_t> to) {
    detent::gemm(lhs, weights, detent::fused([&](const product_block<float>& block) {
                   detent::transform(activation, block);
                   detent::quantize_block(block, to, q);
                 }),
                 to_real);
  };
  best_times<8> times;
  for (auto _ : state) {
    times.time(0, [&] { detent::gemm(lhs, weights, out(0), options); });
    times.time(1, [&] {
      detent::gemm(lhs, weights, detent::fused([&](const product_block<float>& block) {
                     detent::quantize_block(block, out(1), p);
                   }),
                   options);
    });
    times.time(2, [&] {
      detent::gemm(lhs, weights, detent::fused_sums([&](const product_block<std::int32_t>& block) {
                     detent::for_each_batch(
                         [&](detent::batch_position at, const auto& sums) {
                           const auto codes = detent::batch::requantize(
                               sums, detent::quant_params{1.0F / 4096.0F, 128}, levels);
                           detent::batch::store_8bit(&bytes[2][at.row * n + at.column], codes,
                                                     at.count);
                         },
                         block);
                   }),
                   options);
    });
    times.time(3, [&] { in_blocks(squared_relu, out(3)); });
    times.time(4, [&] { separate(squared_relu, bytes[4]); });
    if (bytes[3] != bytes[4]) {
      state.SkipWithError("wrong result");
      return;
    }
    times.time(5, [&] { in_blocks(gelu, out(3)); });
    times.time(6, [&] { separate(gelu, bytes[4]); });
    times.time(7, [&] { detent::gemm(lhs, weights, reals, to_real); });
  }
  if (bytes[0] != bytes[1] || bytes[0] != bytes[2] || bytes[3] != bytes[4]) {
    state.SkipWithError("wrong result");
    return;
  }
  state.counters["quantize_vs_built_in"] = times.ratio(1, 0);
  state.counters["registers_vs_built_in"] = times.ratio(2, 0);
  state.counters["squared_relu_gain"] = times.ratio(4, 3);
  state.counters["squared_relu_limit"] = times.ratio(4, 7);
  state.counters["gelu_gain"] = times.ratio(6, 5);
  state.counters["gelu_limit"] = times.ratio(6, 7);
}

}  // namespace

BENCHMARK(fused)
    ->Args({128, 768, 768})
    ->Args({128, 3072, 768})
    ->Args({128, 3072, 64})
    ->Args({1024, 4096, 256})
    ->Args({4096, 2048, 64})
    ->MinTime(2.0);
BENCHMARK_MAIN();
