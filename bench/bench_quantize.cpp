// SPDX-License-Identifier: BSD-3-Clause
// f32 -> u8 by the canonical rule: bytes read and written a second, and the ratio to the plain
// scalar loop, measured in the same run.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/detent.hpp>

#include "limits.hpp"
#include "quantize_scalar.hpp"

namespace {

constexpr detent::quant_params params{0.02F, 128};

void quantize(benchmark::State& state, detent::target target) {
  detent::set_target(target);
  const auto n = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) {
    v = normal(random);
  }
  std::vector<std::uint8_t> q(n);
  double scalar = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double start = detent_bench::seconds_now();
    quantize_scalar(x.data(), n, params.scale, params.zero_point, q.data());
    scalar = (std::min)(scalar, detent_bench::seconds_now() - start);
    benchmark::ClobberMemory();
  }
  for (auto _ : state) {
    detent::quantize(x, q, params);
    benchmark::ClobberMemory();
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (q[i] != detent::reference::quantize(x[i], params, detent::full_grid<std::uint8_t>)) {
      state.SkipWithError("wrong result");
      return;
    }
  }
  const double bytes = static_cast<double>(n * (sizeof(float) + 1));
  state.counters["GB_per_s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["times_scalar"] =
      benchmark::Counter(scalar, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const detent::target t : detent::available_targets()) {
    for (const std::int64_t bytes : {std::int64_t{64} << 10, std::int64_t{4} << 20}) {
      benchmark::RegisterBenchmark((std::string("quantize_u8/") + detent::name(t)).c_str(),
                                   [t](benchmark::State& s) { quantize(s, t); })
          ->Arg(bytes);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
