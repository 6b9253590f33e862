// SPDX-License-Identifier: BSD-3-Clause
// Benchmarks of u8 x s8 convolutions to u8, channels last or (nchw) channels first. They report the
// mean GOPS, and the share of the instruction peak that the fastest iteration reached; the peak is
// probed in the same run. Where oneDNN is installed, its convolution is measured as well, with an
// input zero point and without one.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <detent/detent.hpp>

#include "limits.hpp"
#if DETENT_BENCH_ONEDNN
#include <omp.h>

#include "onednn.hpp"
#endif

namespace {

struct layer {
  const char* name;
  std::size_t in, out, groups, kernel, stride, size;

  [[nodiscard]] detent::filter_shape filters() const { return {out, in, groups, kernel, kernel}; }
  [[nodiscard]] detent::window window() const {
    detent::window w;
    w.in_height = w.in_width = size;
    w.stride_height = w.stride_width = stride;
    w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = kernel / 2;
    return w;
  }
};

constexpr layer layers[] = {
    {"3x3_64_64_56", 64, 64, 1, 3, 1, 56},     {"3x3_128_128_28", 128, 128, 1, 3, 1, 28},
    {"1x1_256_64_56", 256, 64, 1, 1, 1, 56},   {"1x1_64_256_56", 64, 256, 1, 1, 1, 56},
    {"3x3_512_512_7", 512, 512, 1, 3, 1, 7},   {"7x7s2_3_64_224", 3, 64, 1, 7, 2, 224},
    {"dw3x3_32_112", 32, 32, 32, 3, 1, 112},   {"dw3x3_144_56", 144, 144, 144, 3, 1, 56},
    {"dw3x3s2_64_112", 64, 64, 64, 3, 2, 112}, {"dw5x5_240_28", 240, 240, 240, 5, 1, 28},
    {"dw3x3_64_25x5", 64, 64, 64, 3, 1, 11},
};

constexpr std::int32_t usual_in_zero_point = 7;
constexpr std::int32_t out_zero_point = 3;

struct operands {
  std::vector<std::uint8_t> input, output;
  std::vector<std::int8_t> weights;
  std::vector<float> scales;
  std::vector<std::int32_t> bias;
  std::int32_t in_zero_point;
  double operations;

  operands(const layer& l, std::int32_t input_zero_point) : in_zero_point(input_zero_point) {
    const detent::filter_shape f = l.filters();
    const detent::window w = l.window();
    std::mt19937 random(1);
    input.resize(w.in_height * w.in_width * f.in_channels);
    output.resize(w.out_height(f) * w.out_width(f) * f.out_channels);
    weights.resize(f.size());
    for (auto& v : input) {
      v = static_cast<std::uint8_t>(random());
    }
    for (auto& v : weights) {
      v = static_cast<std::int8_t>(random());
    }
    for (std::size_t i = 0; i < f.out_channels; ++i) {
      scales.push_back(1e-4F + 1e-5F * static_cast<float>(i % 7));
      bias.push_back(static_cast<std::int32_t>(random() % 2001) - 1000);
    }
    operations = 2.0 * static_cast<double>(output.size() * f.group_in() * f.taps());
  }

  /// Whether 200 random outputs are what the formula gives.
  [[nodiscard]] bool right(const layer& l, detent::activation_layout layout) const {
    const detent::filter_shape f = l.filters();
    const detent::window w = l.window();
    const std::size_t in_pixels = w.in_height * w.in_width;
    const bool planar = layout == detent::activation_layout::nchw;
    const std::size_t out_width = w.out_width(f);
    std::mt19937 random(2);
    for (int i = 0; i < 200; ++i) {
      const std::size_t at = random() % output.size();
      const std::size_t out_pixels = output.size() / f.out_channels;
      const std::size_t channel = planar ? at / out_pixels : at % f.out_channels;
      const std::size_t pixel = planar ? at % out_pixels : at / f.out_channels;
      const std::size_t x = pixel % out_width;
      const std::size_t y = pixel / out_width;
      std::int32_t acc = bias[channel];
      for (std::size_t kh = 0; kh < f.kernel_height; ++kh) {
        for (std::size_t kw = 0; kw < f.kernel_width; ++kw) {
          const std::size_t iy = y * w.stride_height + kh - w.pad_top;  // wraps if above the image
          const std::size_t ix = x * w.stride_width + kw - w.pad_left;
          if (iy >= w.in_height || ix >= w.in_width) {
            continue;
          }
          for (std::size_t c = 0; c < f.group_in(); ++c) {
            const std::size_t from = channel / f.group_out() * f.group_in() + c;
            const std::size_t p = iy * w.in_width + ix;
            const std::size_t value = planar ? from * in_pixels + p : p * f.in_channels + from;
            acc += (input[value] - in_zero_point) *
                   weights[((channel * f.group_in() + c) * f.kernel_height + kh) * f.kernel_width +
                           kw];
          }
        }
      }
      if (output[at] != detent::reference::requantize(acc, scales[channel], out_zero_point,
                                                      detent::full_grid<std::uint8_t>)) {
        return false;
      }
    }
    return true;
  }
};

template <class Run>
void measure(benchmark::State& state, const layer& l, const operands& o,
             detent::activation_layout layout, double peak, const Run& run) {
  double best = std::numeric_limits<double>::infinity();
  run();  // on some targets, the first run prepares the weights
  for (auto _ : state) {
    const double start = detent_bench::seconds_now();
    run();
    benchmark::ClobberMemory();
    best = (std::min)(best, detent_bench::seconds_now() - start);
  }
  if (!o.right(l, layout)) {
    state.SkipWithError("wrong result");
    return;
  }
  state.counters["GOPS"] =
      benchmark::Counter(o.operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["best_share_of_peak"] = o.operations * 1e-9 / best / peak;
}

void convolve(benchmark::State& state, const layer& l, detent::activation_layout layout,
              detent::target target, std::int32_t in_zero_point = usual_in_zero_point) {
  detent::set_target(target);
  operands o(l, in_zero_point);
  const detent::packed_filters filters(l.filters(), o.weights,
                                       {.scales = o.scales, .bias = o.bias});
  detent::window w = l.window();
  w.input_layout = w.output_layout = layout;
  const detent::epilogue_options options{.lhs_zero_point = in_zero_point,
                                         .output = {1.0F, out_zero_point}};
  const std::span<std::uint8_t> output(o.output);
  measure(state, l, o, layout, detent_bench::integer_peak_gops(target),
          [&] { detent::convolve<std::uint8_t>(o.input, filters, w, output, options); });
}

#if DETENT_BENCH_ONEDNN
/// oneDNN's convolution, with the target's instructions at most.
void convolve_onednn(benchmark::State& state, const layer& l, detent::target target,
                     std::int32_t in_zero_point) {
  operands o(l, in_zero_point);
  detent_bench::onednn_convolution peer(l.filters(), l.window(), o.input.data(), o.weights.data(),
                                        o.bias, o.scales, in_zero_point, out_zero_point,
                                        o.output.data());
  measure(state, l, o, detent::activation_layout::nhwc, detent_bench::integer_peak_gops(target),
          [&] { peer.run(); });
}
#endif

}  // namespace

int main(int argc, char** argv) try {
#if DETENT_BENCH_ONEDNN
  omp_set_num_threads(1);
#endif
  for (const layer& l : layers) {
    for (const detent::target t : detent::available_targets()) {
      if (t != detent::target::portable) {
        benchmark::RegisterBenchmark(
            (std::string("conv_u8s8_u8/") + l.name + "/" + detent::name(t)).c_str(),
            [&l, t](benchmark::State& s) { convolve(s, l, detent::activation_layout::nhwc, t); });
        benchmark::RegisterBenchmark(
            (std::string("conv_u8s8_u8/") + l.name + "/" + detent::name(t) + "/nchw").c_str(),
            [&l, t](benchmark::State& s) { convolve(s, l, detent::activation_layout::nchw, t); });
      }
    }
#if DETENT_BENCH_ONEDNN
    const detent::target beside = detent_bench::target_beside_onednn();
    for (const std::int32_t zero_point : {usual_in_zero_point, 0}) {
      const std::string suffix = std::string("/") + detent::name(beside) + "/" + l.name +
                                 "/zero_point:" + std::to_string(zero_point);
      benchmark::RegisterBenchmark(
          ("beside_onednn/detent" + suffix).c_str(), [=, &l](benchmark::State& s) {
            convolve(s, l, detent::activation_layout::nhwc, beside, zero_point);
          });
      benchmark::RegisterBenchmark(
          ("beside_onednn/onednn" + suffix).c_str(),
          [=, &l](benchmark::State& s) { convolve_onednn(s, l, beside, zero_point); });
    }
#endif
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
