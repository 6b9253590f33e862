// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of 3x3 convolutions of floats, by direct sums and by Winograd's algorithm with tiles
// of 2 x 2 and of 4 x 4 outputs. They report GFLOPS of the direct sums, whichever way computes
// them, and the error: the root of the mean square over the sampled outputs, in parts of their root
// mean square, times 2^24.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/detent.hpp>
#include <detent/winograd.hpp>

namespace {

struct layer {
  std::size_t in, out, size;

  [[nodiscard]] detent::filter_shape filters() const { return {out, in, 1, 3, 3}; }
  [[nodiscard]] detent::window window() const {
    detent::window w;
    w.in_height = w.in_width = size;
    w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = 1;
    return w;
  }
};

constexpr layer layers[] = {{3, 16, 32},    {8, 16, 160},  {16, 16, 32},  {32, 32, 16},
                            {64, 64, 8},    {64, 64, 56},  {48, 192, 13}, {128, 128, 28},
                            {256, 256, 14}, {512, 512, 7}, {256, 512, 13}};

struct operands {
  std::vector<float> input, weights, output;

  explicit operands(const layer& l)
      : input(l.size * l.size * l.in), weights(l.in * l.out * 9), output(l.size * l.size * l.out) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : input) {
      x = (std::fmax)(normal(random), 0.0F);  // as behind a Relu
    }
    for (float& x : weights) {
      x = normal(random);
    }
  }

  /// The error of some outputs beside sums in double, in parts of their root mean square.
  [[nodiscard]] double error(const layer& l) const {
    std::mt19937 random(2);
    double errors = 0.0;
    double squares = 0.0;
    for (int i = 0; i < 2000; ++i) {
      const std::size_t at = random() % output.size();
      const std::size_t channel = at % l.out;
      const std::size_t x = at / l.out % l.size;
      const std::size_t y = at / l.out / l.size;
      double sum = 0.0;
      for (std::size_t tap = 0; tap < 9; ++tap) {
        const std::size_t iy = y + tap / 3 - 1;  // wraps around above the image
        const std::size_t ix = x + tap % 3 - 1;
        for (std::size_t c = 0; iy < l.size && ix < l.size && c < l.in; ++c) {
          sum += static_cast<double>(input[(iy * l.size + ix) * l.in + c]) *
                 static_cast<double>(weights[(channel * l.in + c) * 9 + tap]);
        }
      }
      const double e = static_cast<double>(output[at]) - sum;
      errors += e * e;
      squares += sum * sum;
    }
    return std::sqrt(errors / squares);
  }
};

template <class Filters>
void convolve(benchmark::State& state, const layer& l, detent::target target,
              const Filters& filters) {
  detent::set_target(target);
  operands o(l);
  const detent::window w = l.window();
  const std::span<const float> input(o.input);
  const std::span<float> output(o.output);
  for (auto _ : state) {
    detent::convolve(input, filters, w, output);
    benchmark::ClobberMemory();
  }
  const double error = o.error(l);
  if (!(error < 1e-5)) {
    state.SkipWithError("wrong result");
    return;
  }
  const double operations = 18.0 * static_cast<double>(l.in * l.out * l.size * l.size);
  state.counters["GFLOPS"] =
      benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["error"] = error * 0x1p24;
}

}  // namespace

int main(int argc, char** argv) try {
  for (const layer& l : layers) {
    for (const detent::target t : detent::available_targets()) {
      if (t != detent::target::avx2 && t != detent::available_targets().back()) {
        continue;  // float kernels differ by the width of vectors only
      }
      const std::string shape = std::string(detent::name(t)) + "/" + std::to_string(l.in) + "/" +
                                std::to_string(l.out) + "/" + std::to_string(l.size);
      benchmark::RegisterBenchmark(
          ("winograd/direct/" + shape).c_str(), [&l, t](benchmark::State& s) {
            convolve(s, l, t, detent::packed_float_filters(l.filters(), operands(l).weights));
          });
      for (const std::size_t tile : {std::size_t{2}, std::size_t{4}}) {
        benchmark::RegisterBenchmark(
            ("winograd/tile_" + std::to_string(tile) + "/" + shape).c_str(),
            [&l, t, tile](benchmark::State& s) {
              convolve(s, l, t,
                       detent::winograd_filters(l.filters(), operands(l).weights, {}, tile));
            });
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
  return 1;
}
