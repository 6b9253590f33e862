// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of images that are quantized on the way: they equal their steps, and stay close to
// the float convolution.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::filter_shape;
using detent::window;
using test::difference;
using test::for_each_target;
using test::random_source;

struct image_case {
  filter_shape f;
  window w;
  std::vector<float> input;
  std::vector<std::int8_t> weights;
  std::vector<float> scales, bias, residual;
  detent::dynamic_convolution_options options;

  image_case(random_source& random, const filter_shape& shape) : f(shape) {
    w.batch = random.size(1, 3);
    w.in_height = random.size(1, 9) + f.kernel_height - 1;
    w.in_width = random.size(1, 9) + f.kernel_width - 1;
    w.stride_height = random.size(1, 2);
    w.stride_width = random.size(1, 2);
    w.pad_top = random.size(0, 2);
    w.pad_right = random.size(0, 2);
    weights = random.integers<std::int8_t>(f.size());
    scales = random.reals(f.out_channels, 0.001F, 0.1F);
    if (random.chance(60)) {
      bias = random.reals(f.out_channels, -3.0F, 3.0F);
      options.bias = bias;
    }
    if (random.chance(50)) {
      residual = random.reals(out_size(), -3.0F, 3.0F);
    }
    for (std::size_t i = 0; i < w.batch; ++i) {
      // Images of different ranges, some of which do not hold 0.
      const float lower = random.real(-4.0F, 1.0F);
      const auto image = random.reals(w.in_height * w.in_width * f.in_channels, lower,
                                      lower + random.real(0.5F, 9.0F));
      input.insert(input.end(), image.begin(), image.end());
    }
    options.per_image = random.chance(60);
    if (random.chance(40)) {
      options.lower = 0.0F;
      options.upper = random.real(1.0F, 9.0F);
    }
  }
  [[nodiscard]] std::size_t out_size() const {
    return w.batch * w.out_height(f) * w.out_width(f) * f.out_channels;
  }
  [[nodiscard]] detent::packed_filters pack() const { return {f, weights, {.scales = scales}}; }

  /// With the residual, channels last.
  [[nodiscard]] detent::dynamic_convolution_options all_options() const {
    detent::dynamic_convolution_options o = options;
    if (!residual.empty()) {
      o.residual = {residual.data(), residual.size() / f.out_channels, f.out_channels};
    }
    return o;
  }

  /// Range, parameters, codes, and the integer convolution of each part.
  template <class T = float>
  [[nodiscard]] std::vector<T> by_steps() const {
    const detent::packed_filters filters = pack();
    std::vector<T> out(out_size());
    const std::size_t parts = options.per_image ? w.batch : 1;
    for (std::size_t i = 0; i < parts; ++i) {
      const std::size_t in = input.size() / parts;
      const float* x = input.data() + i * in;
      const auto range = detent::reference::min_max(x, in);
      const detent::quant_params p =
          detent::reference::params_from_range({range.lower, range.upper}, options.input_scheme);
      std::vector<std::uint8_t> q;
      for (std::size_t j = 0; j < in; ++j) {
        q.push_back(static_cast<std::uint8_t>(
            detent::reference::quantize(x[j], p, options.input_scheme.levels)));
      }
      window part = w;
      part.batch = w.batch / parts;
      const std::size_t size = out.size() / parts;
      detent::epilogue_options epilogue{.lhs_scale = p.scale,
                                        .lhs_zero_point = p.zero_point,
                                        .lower = options.lower,
                                        .upper = options.upper,
                                        .bias = options.bias};
      if (!residual.empty()) {
        epilogue.residual = {residual.data() + i * size, size / f.out_channels, f.out_channels};
      }
      detent::convolve(std::span<const std::uint8_t>(q), filters, part,
                       std::span<T>(out).subspan(i * size, size), epilogue);
    }
    return out;
  }
};

/// Values that are channels last, with their channels first.
std::vector<float> channels_first(const std::vector<float>& values, std::size_t batch,
                                  std::size_t channels) {
  std::vector<float> planes(values.size());
  const std::size_t pixels = values.size() / batch / channels;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t image = i / channels / pixels;
    planes[(image * channels + i % channels) * pixels + i / channels % pixels] = values[i];
  }
  return planes;
}

}  // namespace

TEST_CASE("dynamic convolution: channels first") {
  random_source random(85);
  INFO("seed ", random.seed());
  const filter_shape shapes[] = {
      {5, 3, 1, 3, 3}, {16, 16, 16, 3, 3}, {8, 4, 2, 1, 5}, {20, 7, 1, 1, 1}, {33, 32, 1, 3, 3}};
  for (int round = 0; round < 40; ++round) {
    const image_case c(random, shapes[round % 5]);
    const std::vector<float> expected = c.by_steps();
    const detent::packed_filters filters = c.pack();
    const std::vector<float> planes = channels_first(c.input, c.w.batch, c.f.in_channels);
    const std::vector<float> residual_planes =
        channels_first(c.residual, c.w.batch, c.f.out_channels);
    window w = c.w;
    w.input_layout = detent::activation_layout::nchw;
    for_each_target([&] {
      std::vector<float> out(expected.size());
      detent::dynamic_convolution_options options = c.all_options();
      w.output_layout = detent::activation_layout::nhwc;
      detent::dynamic_convolve(planes, filters, w, out, options);
      CHECK(difference(out, expected) == "");
      w.output_layout = detent::activation_layout::nchw;
      if (!c.residual.empty()) {
        options.residual = {residual_planes.data(), w.batch * c.f.out_channels,
                            residual_planes.size() / w.batch / c.f.out_channels};
      }
      detent::dynamic_convolve(planes, filters, w, out, options);
      CHECK(difference(out, channels_first(expected, w.batch, c.f.out_channels)) == "");
    });
  }
}

TEST_CASE("dynamic convolution equals its steps") {
  random_source random(81);
  INFO("seed ", random.seed());
  detent::thread_pool pool(3);
  const filter_shape shapes[] = {{5, 3, 1, 3, 3},  {16, 16, 16, 3, 3}, {8, 4, 2, 1, 5},
                                 {20, 7, 1, 1, 1}, {6, 6, 6, 5, 5},    {33, 32, 1, 3, 3}};
  for (int round = 0; round < 60; ++round) {
    const image_case c(random, shapes[round % 6]);
    const std::vector<float> expected = c.by_steps();
    const std::vector<detent::bfloat16> expected_halves = c.by_steps<detent::bfloat16>();
    const detent::packed_filters filters = c.pack();
    for_each_target([&] {
      std::vector<float> out(expected.size());
      const detent::parallel_for parallel =
          round % 2 == 0 ? pool.parallel() : detent::parallel_for{};
      detent::dynamic_convolve(c.input, filters, c.w, out, c.all_options(), parallel);
      CHECK(difference(out, expected) == "");
      std::vector<detent::bfloat16> halves(expected.size());
      detent::dynamic_convolve(c.input, filters, c.w, halves, c.all_options(), parallel);
      CHECK(difference(halves, expected_halves) == "");
    });
  }
}

TEST_CASE("dynamic convolution stays within half a step for each product") {
  random_source random(82);
  INFO("seed ", random.seed());
  for (int round = 0; round < 20; ++round) {
    image_case c(random, {7, 5, 1, 3, 3});
    c.options.lower = -std::numeric_limits<float>::infinity();
    c.options.upper = std::numeric_limits<float>::infinity();
    std::vector<float> weights;
    float largest = 0.0F;  // the sum of the magnitudes of a filter
    for (std::size_t o = 0; o < c.f.out_channels; ++o) {
      float sum = 0.0F;
      for (std::size_t i = 0; i < 45; ++i) {
        weights.push_back(static_cast<float>(c.weights[o * 45 + i]) * c.scales[o]);
        sum += std::fabs(weights.back());
      }
      largest = (std::max)(largest, sum);
    }
    std::vector<float> exact(c.out_size());
    std::vector<float> out(c.out_size());
    detent::convolve(c.input, detent::packed_float_filters(c.f, weights, c.bias), c.w, exact);
    detent::dynamic_convolve(c.input, c.pack(), c.w, out, c.options);
    const float step = 14.0F / 255.0F;  // ranges are -4..10 at the widest
    for (std::size_t i = 0; i < out.size(); ++i) {
      REQUIRE(std::fabs(out[i] - exact[i]) <= 0.501F * largest * step);  // float sums round, too
    }
  }
}

TEST_CASE("an image's result does not depend on the batch") {
  random_source random(83);
  INFO("seed ", random.seed());
  for (int round = 0; round < 10; ++round) {
    image_case c(random, {6, 4, 1, 3, 3});
    c.options.per_image = true;
    const detent::packed_filters filters = c.pack();
    std::vector<float> all(c.out_size());
    detent::dynamic_convolve(c.input, filters, c.w, all, c.options);
    window one = c.w;
    one.batch = 1;
    const std::size_t in = c.input.size() / c.w.batch;
    const std::size_t out = all.size() / c.w.batch;
    for (std::size_t i = 0; i < c.w.batch; ++i) {
      std::vector<float> alone(out);
      detent::dynamic_convolve(std::span<const float>(c.input).subspan(i * in, in), filters, one,
                               alone, c.options);
      CHECK(difference(alone, std::span<const float>(all).subspan(i * out, out)) == "");
    }
  }
}

TEST_CASE("dynamic convolution: what does not fit is refused") {
  random_source random(84);
  image_case c(random, {6, 4, 1, 3, 3});
  const detent::packed_filters filters = c.pack();
  std::vector<float> out(c.out_size());
  const auto fails = [&](error_kind kind, const char* text) {
    test::check_error(kind, {text},
                      [&] { detent::dynamic_convolve(c.input, filters, c.w, out, c.options); });
  };
  const std::vector<float> few(5, 1.0F);
  c.options.bias = few;
  fails(error_kind::shape_mismatch, "5 biases for 6 channels");
  c.options.bias = {};
  c.options.residual = {few.data(), 1, 5};
  fails(error_kind::shape_mismatch, "the residual is 1 x 5");
  c.options.residual = {};
  c.options.input_scheme.levels = {-1, 255};
  fails(error_kind::invalid_argument, "-1");
  c.options.input_scheme = detent::asymmetric<std::uint8_t>;
  c.input[3] = std::numeric_limits<float>::infinity();
  fails(error_kind::invalid_argument, "dynamic_quantize");
  out.pop_back();
  fails(error_kind::shape_mismatch, "outputs");
}
