// SPDX-License-Identifier: BSD-3-Clause
// u8 x s8 products: GOPS (mean), and the share of the instruction peak, probed in the same run,
// that the fastest iteration reached: best against best, because a neighbour on the same core takes
// cache and issue slots from both at random.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/detent.hpp>

#include "limits.hpp"

namespace {

template <class T>
void gemm(benchmark::State& state, detent::target target) {
  detent::set_target(target);
  const auto m = static_cast<std::size_t>(state.range(0));
  const auto n = static_cast<std::size_t>(state.range(1));
  const auto k = static_cast<std::size_t>(state.range(2));
  std::mt19937 random(1);
  std::vector<std::uint8_t> a(m * k);
  std::vector<std::int8_t> b(k * n);
  for (auto& v : a) {
    v = static_cast<std::uint8_t>(random());
  }
  // Normally distributed, each column scaled to -127..127, as weights are.
  std::normal_distribution<float> normal;
  std::vector<float> values(k);
  for (std::size_t j = 0; j < n; ++j) {
    float largest = 0.0F;
    for (float& v : values) {
      v = normal(random);
      largest = (std::max)(largest, std::fabs(v));
    }
    for (std::size_t i = 0; i < k; ++i) {
      b[i * n + j] = static_cast<std::int8_t>(std::lrint(values[i] / largest * 127.0F));
    }
  }
  const auto weights = detent::pack_weights({b.data(), k, n});
  std::vector<T> c(m * n);
  const detent::matrix_view<const std::uint8_t> lhs(a.data(), m, k);
  const detent::matrix_view<T> out(c.data(), m, n);
  const detent::epilogue_options options{.lhs_zero_point = 7, .output = {4096.0F, 3}};
  const double peak = detent_bench::integer_peak_gops(target);
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const double start = detent_bench::seconds_now();
    detent::gemm(lhs, weights, out, options);
    benchmark::ClobberMemory();
    best = (std::min)(best, detent_bench::seconds_now() - start);
  }
  // Validated outside the timed loop, on a sample of the output.
  for (int i = 0; i < 100; ++i) {
    const std::size_t row = random() % m;
    const std::size_t column = random() % n;
    const auto acc = static_cast<std::int32_t>(detent::reference::dot(
        &a[row * k], &b[column], static_cast<std::ptrdiff_t>(n), k, 7, 0, 0));
    bool right = true;
    if constexpr (std::is_same_v<T, std::int32_t>) {
      right = c[row * n + column] == acc;
    } else {
      right = c[row * n + column] ==
              detent::reference::requantize(acc, 1.0F / 4096.0F, 3, detent::full_grid<T>);
    }
    if (!right) {
      state.SkipWithError("wrong result");
      return;
    }
  }
  state.counters["corrected_pairs"] = static_cast<double>(weights.pairs().corrected());
  const double operations = 2.0 * static_cast<double>(m * n * k);
  state.counters["GOPS"] =
      benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["best_share_of_peak"] = operations * 1e-9 / best / peak;
}

}  // namespace

int main(int argc, char** argv) {
  for (const detent::target t : detent::available_targets()) {
    if (t == detent::target::portable) {
      continue;
    }
    for (const auto& [m, n, k] : {std::tuple(1000, 1024, 1024), std::tuple(128, 768, 768),
                                  std::tuple(784, 128, 1152), std::tuple(1, 768, 768)}) {
      const std::string name = std::string("/") + detent::name(t);
      benchmark::RegisterBenchmark(("gemm_u8s8_s32" + name).c_str(), [t](benchmark::State& s) {
        gemm<std::int32_t>(s, t);
      })->Args({m, n, k});
      benchmark::RegisterBenchmark(("gemm_u8s8_u8" + name).c_str(), [t](benchmark::State& s) {
        gemm<std::uint8_t>(s, t);
      })->Args({m, n, k});
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
