// SPDX-License-Identifier: BSD-3-Clause
// Convolutions against nested loops that are written from the formula.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "convolution_loops.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "oracle.hpp"
#include "random.hpp"

namespace {

using detent::activation_layout;
using detent::epilogue_options;
using detent::filter_shape;
using detent::window;
using test::difference;
using test::for_each_product;
using test::for_each_target;
using test::geometry;
using test::laid_out;
using test::layout_pair;
using test::random_source;
using test::random_window;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// An integer convolution with its weights' parameters and its exact sums.
struct integer_case {
  geometry g;
  std::vector<std::uint8_t> input;
  std::vector<std::int8_t> weights;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
  std::vector<std::int32_t> bias;
  std::vector<float> real_bias;  // of real outputs; may be empty
  std::vector<float> residual;   // of real outputs, channels last; may be empty
  epilogue_options options;

  integer_case(random_source& random, const geometry& geometry_)
      : g(geometry_),
        input(random.integers<std::uint8_t>(g.in_size())),
        weights(random.integers<std::int8_t>(g.f.size())) {
    if (random.chance(15)) {  // the most that a product can be
      std::fill(input.begin(), input.end(), std::uint8_t{255});
      std::fill(weights.begin(), weights.end(), std::int8_t{-128});
    }
    const bool has_zero_points = random.chance(40);
    for (std::size_t i = 0; i < g.f.out_channels; ++i) {
      scales.push_back(random.real(0.001F, 0.1F));
      zero_points.push_back(has_zero_points ? random.integer(-128, 127) : 0);
      bias.push_back(random.integer(-100000, 100000));
    }
    if (random.chance(50)) {
      real_bias = random.reals(g.f.out_channels, -3.0F, 3.0F);
    }
    if (random.chance(50)) {
      residual = random.reals(g.out_size(), -9.0F, 9.0F);
    }
    options.lhs_scale = random.real(0.001F, 0.1F);
    options.lhs_zero_point = random.chance(20) ? 0 : random.integer(0, 255);
    options.output = {random.real(0.05F, 5.0F), random.integer(0, 127)};
    if (random.chance(40)) {
      options.levels = {random.integer(0, 60), random.integer(60, 127)};
      options.lower = random.real(-5.0F, 5.0F);
      options.upper = random.real(-5.0F, 5.0F);
    }
  }

  [[nodiscard]] detent::packed_filters pack() const {
    return {g.f, weights, {.scales = scales, .zero_points = zero_points, .bias = bias}};
  }
  [[nodiscard]] std::vector<std::int64_t> sums() const {
    std::vector<std::int64_t> all(g.out_size());
    std::int64_t zero_point = 0;
    for_each_product(
        g,
        [&](std::size_t out, std::size_t channel) {
          all[out] = bias[channel];
          zero_point = zero_points[channel];
        },
        [&](std::size_t out, std::ptrdiff_t in, std::size_t weight) {
          if (in >= 0) {  // padding stands for the real number 0
            const std::int64_t x = input[static_cast<std::size_t>(in)];
            all[out] += (x - options.lhs_zero_point) * (weights[weight] - zero_point);
          }
        });
    return all;
  }
};

/// Calls run(window, input, expected output), everything channels last and then in another layout.
template <class In, class Out, class Run>
void for_layouts(const geometry& g, const std::vector<In>& input, const std::vector<Out>& expected,
                 activation_layout in, activation_layout out, const Run& run) {
  run(g.w, input, expected);
  window w = g.w;
  w.input_layout = in;
  w.output_layout = out;
  INFO("channels first: ", in == activation_layout::nchw ? "input " : "",
       out == activation_layout::nchw ? "output" : "");
  run(w, laid_out(input, in, w.batch, w.in_height * w.in_width, g.f.in_channels),
      laid_out(expected, out, w.batch, g.out_height() * g.out_width(), g.f.out_channels));
}

/// Room for the largest case, reused: mapping pages costs more than most cases.
struct guarded_images {
  test::guarded_memory in{1 << 20};
  test::guarded_memory out{1 << 20};
  test::guarded_memory residual{1 << 20};
};

template <class T>
constexpr bool is_real = std::is_same_v<T, float> || std::is_same_v<T, detent::bfloat16>;

/// What is stored for the sum of an element.
template <class T>
T expected_value(const integer_case& c, std::int64_t sum, std::size_t element) {
  const std::size_t channel = element % c.g.f.out_channels;
  if constexpr (is_real<T>) {
    float real = std::fma(static_cast<float>(static_cast<std::int32_t>(sum)),
                          c.options.lhs_scale * c.scales[channel],
                          c.real_bias.empty() ? 0.0F : c.real_bias[channel]);
    if (!c.residual.empty()) {
      real += c.residual[element];
    }
    real = detent::reference::clamp(real, c.options.lower, c.options.upper);
    if constexpr (std::is_same_v<T, float>) {
      return real;
    } else {
      return detent::round_to<T>(real);
    }
  } else {
    return test::stored_value<T>(sum, c.scales[channel], c.options);
  }
}

template <class T>
void check_output(const integer_case& c, const std::vector<std::int64_t>& sums,
                  guarded_images& memory, bool at_end, const layout_pair& layouts,
                  const detent::parallel_for& parallel) {
  std::vector<T> expected;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    expected.push_back(expected_value<T>(c, sums[i], i));
  }
  epilogue_options options = c.options;
  const bool adds = is_real<T> && !c.residual.empty();
  // An output of float may be its own residual.
  const bool in_place = adds && std::is_same_v<T, float> && at_end;
  if (is_real<T>) {
    options.bias = c.real_bias;
  }
  const auto in = at_end ? memory.in.back<std::uint8_t>(c.input.size())
                         : memory.in.front<std::uint8_t>(c.input.size());
  const auto out = at_end ? memory.out.back<T>(sums.size()) : memory.out.front<T>(sums.size());
  const auto residual =
      at_end ? memory.residual.back<float>(sums.size()) : memory.residual.front<float>(sums.size());
  const detent::packed_filters filters = c.pack();
  INFO("output of ", sizeof(T), " bytes", adds ? ", residual" : "", in_place ? " in place" : "");
  for_layouts(
      c.g, c.input, expected, layouts.in, layouts.out,
      [&](const window& w, const std::vector<std::uint8_t>& input, const std::vector<T>& wanted) {
        std::copy(input.begin(), input.end(), in.begin());
        const std::size_t pixels = c.g.out_height() * c.g.out_width();
        if (adds) {
          const std::vector<float> values =
              laid_out(c.residual, w.output_layout, w.batch, pixels, c.g.f.out_channels);
          std::copy(values.begin(), values.end(), residual.begin());
          const bool planes = w.output_layout == activation_layout::nchw;
          options.residual = {residual.data(), w.batch * (planes ? c.g.f.out_channels : pixels),
                              planes ? pixels : c.g.f.out_channels};
        }
        for_each_target([&] {
          memory.out.repaint();
          if constexpr (std::is_same_v<T, float>) {
            if (in_place) {
              std::copy(residual.begin(), residual.end(), out.begin());
              options.residual.data = out.data();
            }
          }
          detent::convolve(std::span<const std::uint8_t>(in), filters, w, out, options, parallel);
          CHECK(difference(out, wanted) == "");
          CHECK(memory.out.intact_around(out));
        });
      });
}

void check_integer(random_source& random, const geometry& g, guarded_images& memory,
                   const detent::parallel_for& parallel) {
  const integer_case c(random, g);
  const std::vector<std::int64_t> sums = c.sums();
  const bool at_end = random.chance(50);
  check_output<std::int32_t>(c, sums, memory, at_end, layout_pair(random), parallel);
  check_output<float>(c, sums, memory, at_end, layout_pair(random), parallel);
  check_output<detent::bfloat16>(c, sums, memory, at_end, layout_pair(random), parallel);
  check_output<std::uint8_t>(c, sums, memory, at_end, layout_pair(random), parallel);
  check_output<std::int8_t>(c, sums, memory, at_end, layout_pair(random), parallel);
}

void check_float(random_source& random, const geometry& g, guarded_images& memory,
                 const detent::parallel_for& parallel) {
  std::vector<float> input = random.reals(g.in_size(), -2.0F, 2.0F);
  std::vector<float> weights = random.reals(g.f.size(), -2.0F, 2.0F);
  const std::vector<float> bias =
      random.chance(70) ? random.reals(g.f.out_channels, -2.0F, 2.0F) : std::vector<float>();
  if (random.chance(20)) {
    for (std::vector<float>* values : {&input, &weights}) {
      for (float& value : *values) {
        if (random.chance(5)) {
          constexpr float special[] = {
              0.0F,  -0.0F, infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
              1e30F, 1e-40F};
          value = special[random.size(0, std::size(special) - 1)];
        }
      }
    }
  }
  const float lower = random.chance(50) ? -infinity : random.real(-3.0F, 3.0F);
  const float upper = random.chance(50) ? infinity : random.real(-3.0F, 3.0F);
  std::vector<float> expected(g.out_size());
  for_each_product(
      g,
      [&](std::size_t out, std::size_t channel) {
        expected[out] = bias.empty() ? 0.0F : bias[channel];
      },
      [&](std::size_t out, std::ptrdiff_t in, std::size_t weight) {
        const float x = in >= 0 ? input[static_cast<std::size_t>(in)] : 0.0F;
        expected[out] = std::fma(x, weights[weight], expected[out]);
      });
  const std::vector<float> residual =
      random.chance(50) ? random.reals(g.out_size(), -9.0F, 9.0F) : std::vector<float>();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += residual.empty() ? -0.0F : residual[i];
    expected[i] = detent::reference::clamp(expected[i], lower, upper);
  }
  const bool at_end = random.chance(50);
  const bool in_place = random.chance(50);
  const auto in =
      at_end ? memory.in.back<float>(input.size()) : memory.in.front<float>(input.size());
  const auto out =
      at_end ? memory.out.back<float>(expected.size()) : memory.out.front<float>(expected.size());
  const auto added = at_end ? memory.residual.back<float>(residual.size())
                            : memory.residual.front<float>(residual.size());
  const detent::packed_float_filters filters(g.f, weights, bias);
  const layout_pair layouts(random);
  INFO("residual: ", !residual.empty(), ", in place: ", in_place);
  for_layouts(g, input, expected, layouts.in, layouts.out,
              [&](const window& w, const std::vector<float>& x, const std::vector<float>& wanted) {
                std::copy(x.begin(), x.end(), in.begin());
                detent::float_epilogue_options options{lower, upper, {}};
                const bool planes = w.output_layout == activation_layout::nchw;
                const std::size_t pixels = g.out_height() * g.out_width();
                if (!residual.empty()) {
                  const std::vector<float> values =
                      laid_out(residual, w.output_layout, w.batch, pixels, g.f.out_channels);
                  std::copy(values.begin(), values.end(), added.begin());
                  options.residual = {in_place ? out.data() : added.data(),
                                      w.batch * (planes ? g.f.out_channels : pixels),
                                      planes ? pixels : g.f.out_channels};
                }
                for_each_target([&] {
                  memory.out.repaint();
                  if (!residual.empty() && in_place) {
                    std::copy(added.begin(), added.end(), out.begin());
                  }
                  detent::convolve(std::span<const float>(in), filters, w, out, options, parallel);
                  CHECK(difference(out, wanted) == "");
                  CHECK(memory.out.intact_around(out));
                });
              });
}

void check(random_source& random, const geometry& g, guarded_images& memory,
           const detent::parallel_for& parallel = {}) {
  const filter_shape& f = g.f;
  const window& w = g.w;
  INFO("channels ", f.in_channels, " -> ", f.out_channels, " groups ", f.groups, " kernel ",
       f.kernel_height, " x ", f.kernel_width, " on ", w.batch, " x ", w.in_height, " x ",
       w.in_width);
  INFO("strides ", w.stride_height, " ", w.stride_width, " dilations ", w.dilation_height, " ",
       w.dilation_width, " pads ", w.pad_top, " ", w.pad_left, " ", w.pad_bottom, " ", w.pad_right);
  CHECK(w.out_height(f) == g.out_height());
  CHECK(w.out_width(f) == g.out_width());
  check_integer(random, g, memory, parallel);
  check_float(random, g, memory, parallel);
}

}  // namespace

TEST_CASE("convolution: random shapes, with and without groups") {
  random_source random(1);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (int round = 0; round < 150; ++round) {
    geometry g;
    g.f.groups = random.chance(60) ? 1 : random.size(2, 4);
    g.f.in_channels = g.f.groups * random.size(1, 9);
    g.f.out_channels = g.f.groups * (random.chance(80) ? random.size(1, 9) : random.size(10, 40));
    g.f.kernel_height = random.size(1, 4);
    g.f.kernel_width = random.size(1, 4);
    g.w = random_window(random);
    INFO("round ", round);
    check(random, g, memory);
  }
}

TEST_CASE("convolution: {} means the default options of floats, which clamp nothing") {
  const detent::packed_float_filters filters({1, 1, 1, 1, 1}, std::vector<float>{1.0F}, {});
  const std::vector<float> input = {-1.5F};
  std::vector<float> out(1);
  detent::convolve(input, filters, {.in_height = 1, .in_width = 1}, out, {});
  CHECK(out[0] == -1.5F);
  detent::convolve(input, filters, {.in_height = 1, .in_width = 1}, out, {.lower = -1.0F}, {});
  CHECK(out[0] == -1.0F);
}

TEST_CASE("convolution: floats without a residual keep the sign of zero") {
  for (const std::size_t groups : {1U, 20U}) {
    const filter_shape f{20, 20, groups, 3, 3};
    const detent::packed_float_filters filters(f, std::vector<float>(f.size(), -1.0F),
                                               std::vector<float>(20, -0.0F));
    const window w{.in_height = 3, .in_width = 3};
    const std::vector<float> input(9 * 20);
    std::vector<float> out(20);
    const std::vector<float> residual(20);
    for_each_target([&] {
      detent::convolve(input, filters, w, out);
      CHECK(difference(out, std::vector<float>(20, -0.0F)) == "");
      detent::convolve(input, filters, w, out,
                       detent::float_epilogue_options{.residual = {residual.data(), 1, 20}});
      CHECK(difference(out, residual) == "");
    });
  }
}

TEST_CASE("convolution: depthwise, every number of channels") {
  random_source random(2);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (std::size_t channels = 1; channels <= 70; ++channels) {
    geometry g;
    g.f = {channels, channels, channels, random.size(1, 4), random.size(1, 4)};
    g.w = random_window(random);
    check(random, g, memory);
  }
  for (const std::size_t channels : {std::size_t{127}, std::size_t{128}, std::size_t{131}}) {
    check(random,
          {{channels, channels, channels, 3, 3}, {.in_height = 3, .in_width = 3, .pad_top = 1}},
          memory);
  }
  // Taps that lie apart in one direction only.
  for (const std::size_t kernel : {3U, 5U}) {
    geometry g{{70, 70, 70, kernel, kernel}, {.in_height = 12, .in_width = 14}};
    g.w.dilation_width = 2;
    check(random, g, memory);
    std::swap(g.w.dilation_height, g.w.dilation_width);
    check(random, g, memory);
  }
}

TEST_CASE("convolution: depthwise, rows of pixels that share their taps") {
  random_source random(9);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (const std::size_t channels :
       {1U, 8U, 16U, 24U, 31U, 32U, 40U, 48U, 56U, 64U, 65U, 96U, 160U}) {
    for (const std::size_t kernel : {2U, 3U, 5U, 7U}) {
      geometry g;
      g.f = {channels, channels, channels, random.size(1, 6), kernel};
      g.w.in_height = random.size(1, 5);
      g.w.in_width = random.size(8, 20);
      g.w.stride_width = random.chance(70) ? 1 : 2;
      g.w.dilation_width = random.chance(80) ? 1 : 2;
      g.w.pad_top = g.w.pad_bottom = g.f.kernel_height - 1;
      g.w.pad_left = random.size(0, kernel);
      g.w.pad_right = random.size(0, kernel);
      check(random, g, memory);
    }
  }
}

TEST_CASE("convolution: depthwise, 3 x 3 on lines of every length") {
  // Floats are computed in groups of four pixels or, with eight channels, of four pairs of pixels.
  random_source random(10);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (const std::size_t channels : {8U, 16U, 24U, 64U, 107U}) {
    for (std::size_t width = 1; width <= 27; ++width) {
      geometry g;
      g.f = {channels, channels, channels, 3, 3};
      g.w.in_height = random.size(1, 4);
      g.w.in_width = width;
      g.w.stride_width = random.chance(70) ? 1 : 2;
      g.w.pad_top = g.w.pad_bottom = 1;
      g.w.pad_left = g.w.pad_right = width < 3 ? 2 : random.size(0, 2);
      check(random, g, memory);
    }
  }
}

TEST_CASE("convolution: depthwise, filters that go line by line") {
  random_source random(14);
  INFO("seed ", random.seed());
  guarded_images memory;
  detent::thread_pool pool(3);
  struct filter {
    std::size_t size, stride;
  };
  for (const std::size_t channels :
       {1U, 7U, 16U, 17U, 24U, 32U, 33U, 47U, 64U, 65U, 80U, 96U, 101U, 128U, 144U}) {
    for (const filter& of : {filter{3, 1}, filter{3, 2}, filter{5, 1}}) {
      for (const bool is_long : {false, true}) {
        geometry g;
        g.f = {channels, channels, channels, of.size, of.size};
        g.w.batch = is_long ? 1 : random.size(1, 2);
        g.w.in_height = random.size(1, is_long ? 3 : 9);
        // Long lines have several hundred bytes of few channels, and are done in parts.
        const std::size_t pixels = channels <= 16 ? 140 : channels <= 32 ? 70 : 36;
        g.w.in_width = is_long ? of.stride * random.size(pixels, pixels + 9) : random.size(1, 11);
        g.w.stride_height = g.w.stride_width = of.stride;
        if (random.chance(20)) {  // taps that lie apart: not line by line then
          (random.chance(50) ? g.w.dilation_height : g.w.dilation_width) = 2;
        }
        g.w.pad_top = random.size(0, is_long ? 2 : of.size + 1);
        g.w.pad_bottom = random.size(0, is_long ? 2 : of.size + 1);
        g.w.pad_left = random.size(0, of.size + 1);
        g.w.pad_right = random.size(0, of.size + 1);
        integer_case c(random, g);
        const bool largest = random.chance(25);
        for (std::size_t i = 0; i < c.weights.size(); ++i) {  // [channel][row][column]
          std::int32_t& zero_point = c.zero_points[i / g.f.taps()];
          if (i % g.f.taps() == 0) {
            zero_point = largest ? -random.integer(0, 1) * 100 : random.integer(-64, 63);
          }
          // Less their zero points they just fit a byte.
          const std::int32_t less = largest ? (zero_point == 0 ? -128 : 127)
                                            : random.integer(-64 - zero_point, 63 - zero_point);
          c.weights[i] = static_cast<std::int8_t>(less + zero_point);
        }
        if (largest) {
          std::fill(c.input.begin(), c.input.end(), std::uint8_t{255});
        }
        INFO(channels, " channels, ", of.size, " x ", of.size, ", stride ", of.stride, ", ",
             g.w.in_height, " x ", g.w.in_width);
        const std::vector<std::int64_t> sums = c.sums();
        const auto parallel = random.chance(50) ? pool.parallel() : detent::parallel_for();
        check_output<std::uint8_t>(c, sums, memory, true, layout_pair(random), parallel);
        check_output<std::int8_t>(c, sums, memory, false, layout_pair(random), parallel);
        // All values of a byte, which need no clamping.
        c.options.levels = {};
        check_output<std::uint8_t>(c, sums, memory, false, layout_pair(random), parallel);
        check_output<std::int8_t>(c, sums, memory, true, layout_pair(random), parallel);
      }
    }
  }
}

TEST_CASE("convolution: rows of windows that are read where they are") {
  random_source random(10);
  INFO("seed ", random.seed());
  guarded_images memory;
  detent::thread_pool pool(3);
  for (int round = 0; round < 60; ++round) {
    geometry g;
    g.f.in_channels = 4 * random.size(1, 24);
    g.f.out_channels = random.size(1, 70);
    g.f.kernel_height = random.size(1, 4);
    g.f.kernel_width = random.size(1, 5);
    g.w = random_window(random);
    g.w.in_width = random.size(1, 16);
    g.w.dilation_width = 1;
    INFO("round ", round);
    check(random, g, memory, random.chance(50) ? pool.parallel() : detent::parallel_for());
  }
  // Segments longer than what a tile takes at a time.
  check(random, {{17, 520, 1, 2, 3}, {.in_height = 3, .in_width = 4, .pad_left = 1}}, memory);
}

TEST_CASE("convolution: lines of padding that are zeros") {
  // Kernels leave out what lies above or below an image, for as many pixels as a tile has.
  random_source random(77);
  INFO("seed ", random.seed());
  guarded_images memory;
  detent::thread_pool pool(2);
  for (int round = 0; round < 120; ++round) {
    geometry g;
    g.f.in_channels = random.chance(50) ? random.size(1, 9) : 4 * random.size(1, 24);
    g.f.out_channels = random.size(1, 70);
    g.f.kernel_height = random.size(1, 5);
    g.f.kernel_width = random.size(1, 4);
    g.w = random_window(random);
    g.w.in_width = random.size(1, 16);
    g.w.pad_top = random.size(0, 4);
    g.w.pad_bottom = random.size(0, 7);
    g.w.dilation_width = 1;
    integer_case c(random, g);
    c.options.lhs_zero_point = 0;
    INFO("round ", round, " channels ", g.f.in_channels, " kernel ", g.f.kernel_height, " x ",
         g.f.kernel_width, " pads ", g.w.pad_top, " ", g.w.pad_bottom);
    const std::vector<std::int64_t> sums = c.sums();
    const auto parallel = random.chance(50) ? pool.parallel() : detent::parallel_for();
    const bool at_end = random.chance(50);
    check_output<std::int32_t>(c, sums, memory, at_end, layout_pair(random), parallel);
    check_output<float>(c, sums, memory, at_end, layout_pair(random), parallel);
    check_output<std::uint8_t>(c, sums, memory, at_end, layout_pair(random), parallel);
  }
  // A kernel as wide as the image, and channels that are no multiple of 4: a kernel row also reads
  // values of the next line, whose weights equal the zero point. They are no zeros.
  for (int round = 0; round < 20; ++round) {
    integer_case c(
        random, {{5, 3, 1, 3, 3}, {.in_height = 6, .in_width = 3, .pad_top = 1, .pad_bottom = 3}});
    std::fill(c.zero_points.begin(), c.zero_points.end(), random.integer(1, 127));
    c.options.lhs_zero_point = 0;
    check_output<std::int32_t>(c, c.sums(), memory, true, layout_pair(random), {});
  }
}

TEST_CASE_TEMPLATE("convolution: depthwise, multipliers of every size", T, std::uint8_t,
                   std::int8_t) {
  random_source random(12);
  INFO("seed ", random.seed());
  constexpr float largest = std::numeric_limits<float>::max();
  constexpr std::int32_t qmin = std::numeric_limits<T>::min();
  constexpr std::int32_t qmax = std::numeric_limits<T>::max();
  for (int round = 0; round < 80; ++round) {
    INFO("round ", round);
    const std::size_t channels = random.size(1, 3) == 1 ? random.size(1, 70) : 64;
    geometry g;
    g.f = {channels, channels, channels, random.chance(70) ? 3U : 5U, 3};
    g.w.in_height = random.size(5, 6);
    g.w.in_width = random.size(5, 14);
    integer_case c(random, g);
    // All below 1, as a rule; or about 1, or so large that no step fits 32 bits; or that only
    // behind the channels that come first.
    const int kind = round % 4;
    for (float& scale : c.scales) {
      const bool is_first = &scale - c.scales.data() < 16;
      constexpr float about_one[] = {0.99999994F, 1.0F, 1.0000001F, 2.0F};
      constexpr float huge[] = {1.0F, 3e4F, 1e9F, 1e30F, largest};
      scale = kind == 0 || (kind == 3 && is_first) ? random.real(1e-4F, 1e-2F)
              : kind == 1                          ? about_one[random.size(0, 3)]
                                                   : huge[random.size(0, 4)];
    }
    for (std::int32_t& bias : c.bias) {  // up to where sums just fit 32 bits
      constexpr std::int32_t extremes[] = {-2145000000, -32768, 0, 32767, 2145000000};
      bias = random.chance(50) ? extremes[random.size(0, 4)] : random.integer(-300, 300);
    }
    c.options.lhs_scale = 1.0F;
    c.options.output = {1.0F, random.integer(qmin, qmax)};
    c.options.levels = {};
    if (random.chance(60)) {
      c.options.levels.qmin = random.integer(qmin, qmax);
      c.options.levels.qmax = random.integer(c.options.levels.qmin, qmax);
    }
    const std::vector<std::int64_t> sums = c.sums();
    std::vector<T> expected;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      expected.push_back(test::stored_value<T>(sums[i], c.scales[i % channels], c.options));
    }
    const detent::packed_filters filters = c.pack();
    for_each_target([&] {
      std::vector<T> out(expected.size());
      detent::convolve(std::span<const std::uint8_t>(c.input), filters, g.w, std::span<T>(out),
                       c.options);
      CHECK(difference(out, expected) == "");
    });
  }
}

TEST_CASE("convolution: groups with several outputs for each input, and the reverse") {
  random_source random(3);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (const std::size_t groups : {std::size_t{2}, std::size_t{5}, std::size_t{17}}) {
    check(random, {{groups * 2, groups, groups, 3, 3}, random_window(random)}, memory);
    check(random, {{groups, groups * 3, groups, 2, 3}, random_window(random)}, memory);
  }
}

TEST_CASE("convolution: 1 x 1, in place and not") {
  random_source random(4);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (int round = 0; round < 40; ++round) {
    geometry g;
    g.f.groups = random.chance(60) ? 1 : 2;
    g.f.in_channels = g.f.groups * random.size(1, 40);
    g.f.out_channels = g.f.groups * random.size(1, 40);
    g.w.batch = random.size(1, 2);
    g.w.in_height = random.size(1, 8);
    g.w.in_width = random.size(1, 8);
    if (random.chance(60)) {
      g.w.stride_height = g.w.stride_width = random.size(1, 2);
      // Padding on one side only, too: the input is no left side of a product then.
      std::size_t* const pads[] = {&g.w.pad_top, &g.w.pad_left, &g.w.pad_bottom, &g.w.pad_right};
      *pads[random.size(0, 3)] = random.size(0, 1);
      g.w.dilation_height = random.size(1, 5);  // of one row: no effect
    }
    check(random, g, memory);
  }
}

TEST_CASE("convolution: 1-D") {
  random_source random(5);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (int round = 0; round < 40; ++round) {
    geometry g;
    g.f.groups = random.size(1, 3);
    g.f.in_channels = g.f.groups * random.size(1, 5);
    g.f.out_channels = g.f.groups * random.size(1, 5);
    g.f.kernel_width = random.size(1, 7);
    g.w.in_width = random.size(1, 50);
    g.w.stride_width = random.size(1, 3);
    g.w.dilation_width = random.size(1, 3);
    g.w.pad_left = random.size(0, 6);
    g.w.pad_right = random.size(0, 6);
    check(random, g, memory);
  }
}

TEST_CASE("convolution: padding wider than the kernel, kernels larger than the input") {
  random_source random(6);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (const std::size_t channels : {std::size_t{1}, std::size_t{3}}) {
    for (const std::size_t groups : {std::size_t{1}, channels}) {
      const filter_shape f{channels, channels, groups, 3, 3};
      // Whole pixels read nothing but padding.
      check(random,
            {f,
             {.in_height = 2,
              .in_width = 1,
              .pad_top = 5,
              .pad_left = 4,
              .pad_bottom = 6,
              .pad_right = 7}},
            memory);
      // No pixel at all, in one direction or both.
      check(random, {f, {.in_height = 2, .in_width = 5}}, memory);
      check(random, {f, {.in_height = 5, .in_width = 2}}, memory);
      check(random, {f, {.in_height = 1, .in_width = 1, .pad_top = 1}}, memory);
      check(random, {f, {.in_height = 6, .in_width = 6, .dilation_height = 3}}, memory);
      // No image.
      check(random, {f, {.batch = 0, .in_height = 6, .in_width = 6}}, memory);
      // The kernel just fits.
      check(random, {f, {.in_height = 3, .in_width = 3}}, memory);
    }
  }
}

TEST_CASE("convolution: depthwise, images without pixels and padding around them") {
  const auto is_blank = [](auto result, std::size_t kernel, std::size_t channels,
                           std::size_t height, std::size_t width) {
    using T = decltype(result);
    const detent::filter_shape f{.out_channels = channels,
                                 .in_channels = channels,
                                 .groups = channels,
                                 .kernel_height = kernel,
                                 .kernel_width = kernel};
    const detent::window w{.batch = 1,
                           .in_height = height,
                           .in_width = width,
                           .pad_top = 12,
                           .pad_left = 12,
                           .pad_bottom = 12,
                           .pad_right = 12};
    std::vector<T> out(w.out_height(f) * w.out_width(f) * channels, T{1});
    CHECK(out.size() > 100);
    if constexpr (std::is_same_v<T, double>) {  // stands for float input
      const std::vector<float> weights(f.size(), 1.0F);
      const detent::packed_float_filters filters(f, weights, {});
      std::vector<float> real(out.size(), 1.0F);
      detent::convolve(std::span<const float>(), filters, w, std::span(real));
      std::copy(real.begin(), real.end(), out.begin());
    } else {
      const std::vector<std::int8_t> weights(f.size(), 1);
      const detent::packed_filters filters(f, weights);
      detent::convolve(std::span<const std::uint8_t>(), filters, w, std::span(out),
                       {.lhs_zero_point = 7});
    }
    return std::all_of(out.begin(), out.end(), [](T v) { return v == T{}; });
  };
  for_each_target([&] {
    for (const std::size_t kernel : {3U, 4U, 5U}) {
      for (const std::size_t channels : {2U, 16U, 64U}) {
        INFO(kernel, " x ", kernel, ", ", channels, " channels");
        for (const auto& size : {std::array<std::size_t, 2>{4, 0}, {0, 4}, {0, 0}}) {
          INFO("image of ", size[0], " x ", size[1]);
          CHECK(is_blank(float{}, kernel, channels, size[0], size[1]));
          CHECK(is_blank(std::int32_t{}, kernel, channels, size[0], size[1]));
          CHECK(is_blank(std::uint8_t{}, kernel, channels, size[0], size[1]));
          CHECK(is_blank(double{}, kernel, channels, size[0], size[1]));
        }
      }
    }
  });
}

TEST_CASE("convolution: many blocks of pixels, threads") {
  random_source random(7);
  INFO("seed ", random.seed());
  guarded_images memory;
  const geometry shapes[] = {
      {{5, 3, 1, 3, 3}, {.batch = 2, .in_height = 25, .in_width = 29, .pad_top = 1, .pad_left = 1}},
      {{8, 8, 8, 3, 3}, {.batch = 3, .in_height = 13, .in_width = 11, .pad_top = 1, .pad_left = 2}},
      {{7, 6, 1, 1, 1}, {.batch = 2, .in_height = 22, .in_width = 20}},
      {{4, 120, 2, 5, 5}, {.in_height = 14, .in_width = 14, .pad_top = 2, .pad_right = 4}},
  };
  for (const std::size_t threads :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}}) {
    detent::thread_pool pool(threads);
    for (const geometry& g : shapes) {
      INFO("threads ", threads);
      check(random, g, memory, pool.parallel());
    }
  }
  for (const geometry& g : shapes) {
    check(random, g, memory);
  }
}

TEST_CASE("convolution: channels first, blocks of many shapes") {
  random_source random(11);
  INFO("seed ", random.seed());
  guarded_images memory;
  detent::thread_pool pool(3);
  const geometry shapes[] = {
      // Three planes of colours, lines with tails.
      {{16, 3, 1, 7, 7},
       {.in_height = 30,
        .in_width = 37,
        .stride_height = 2,
        .stride_width = 2,
        .pad_top = 3,
        .pad_left = 3,
        .pad_bottom = 3,
        .pad_right = 3}},
      // Small images, whose pixels share blocks.
      {{64, 64, 1, 1, 1}, {.batch = 5, .in_height = 7, .in_width = 7}},
      {{80, 72, 1, 3, 3}, {.batch = 5, .in_height = 3, .in_width = 5, .pad_top = 1}},
      {{65, 67, 1, 1, 1}, {.batch = 3, .in_height = 4, .in_width = 4}},
      {{96, 96, 96, 3, 3}, {.batch = 3, .in_height = 5, .in_width = 5, .pad_left = 1}},
      {{48, 96, 4, 1, 1}, {.batch = 3, .in_height = 6, .in_width = 5}},
      // Wide ones, depthwise: transposed without their padding.
      {{33, 33, 33, 3, 3},
       {.batch = 2, .in_height = 6, .in_width = 40, .pad_top = 1, .pad_left = 1, .pad_right = 1}},
      {{64, 64, 64, 5, 5}, {.in_height = 9, .in_width = 21, .pad_left = 2, .pad_bottom = 2}},
      // More output than waits to be transposed at a time.
      {{700, 8, 1, 1, 1}, {.batch = 2, .in_height = 12, .in_width = 13}},
      {{1400, 8, 1, 1, 3}, {.in_width = 170}},
      {{2000, 2000, 2000, 1, 1}, {.in_height = 3, .in_width = 20}},
      {{70000, 70000, 70000, 1, 2}, {.in_width = 3}},
      // Every other pixel of a 1 x 1 filter's.
      {{40, 130, 1, 1, 1}, {.in_height = 8, .in_width = 9, .stride_height = 2, .stride_width = 2}},
  };
  for (const geometry& g : shapes) {
    check(random, g, memory);
    check(random, g, memory, pool.parallel());
  }
}

TEST_CASE("convolution: by hand, channels first") {
  // Planes 1 2 3 4 and 10 20 30 40; output channels are the difference and the sum of 2 x 1 taps.
  const std::uint8_t input[] = {1, 2, 3, 4, 10, 20, 30, 40};
  const std::int8_t weights[] = {-1, 0, 1, 0, 1, 1, 1, 1};
  const detent::packed_filters filters({2, 2, 1, 1, 2}, weights);
  window w{.in_height = 2, .in_width = 2};
  w.input_layout = w.output_layout = activation_layout::nchw;
  for_each_target([&] {
    std::int32_t out[4];
    detent::convolve(std::span<const std::uint8_t>(input), filters, w,
                     std::span<std::int32_t>(out));
    CHECK(out[0] == 9);   // 10 - 1
    CHECK(out[1] == 27);  // 30 - 3
    CHECK(out[2] == 33);  // 1 + 2 + 10 + 20
    CHECK(out[3] == 77);  // 3 + 4 + 30 + 40
  });
}

TEST_CASE("convolution: by hand") {
  // A row 1 2 3 with zero point 1 and a kernel 1 -1, padded on both sides.
  const std::uint8_t input[] = {1, 2, 3};
  const std::int8_t kernel[] = {1, -1};
  const detent::packed_filters filters({1, 1, 1, 1, 2}, kernel);
  const window w{.in_width = 3, .pad_left = 1, .pad_right = 1};
  for_each_target([&] {
    std::int32_t out[4];
    detent::convolve(std::span<const std::uint8_t>(input), filters, w, std::span<std::int32_t>(out),
                     {.lhs_zero_point = 1});
    CHECK(out[0] == 0);   // 0 0
    CHECK(out[1] == -1);  // 0 1
    CHECK(out[2] == -1);  // 1 2
    CHECK(out[3] == 2);   // 2 0
  });
}

TEST_CASE("convolution: one value for all channels") {
  random_source random(8);
  INFO("seed ", random.seed());
  const float scale = 0.25F;
  const std::int32_t zero_point = -3;
  const std::int32_t bias = 1000;
  for (const std::size_t groups : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
    const filter_shape f{4, 4, groups, 2, 2};
    const window w{.in_height = 4, .in_width = 4};
    const auto input = random.integers<std::uint8_t>(64);
    const auto weights = random.integers<std::int8_t>(f.size());
    const std::vector<float> scales(4, scale);
    const std::vector<std::int32_t> zero_points(4, zero_point);
    const std::vector<std::int32_t> biases(4, bias);
    const detent::packed_filters one(
        f, weights, {.scales = {&scale, 1}, .zero_points = {&zero_point, 1}, .bias = {&bias, 1}});
    const detent::packed_filters all(
        f, weights, {.scales = scales, .zero_points = zero_points, .bias = biases});
    for_each_target([&] {
      std::vector<float> a(36);
      std::vector<float> b(36);
      detent::convolve(std::span<const std::uint8_t>(input), one, w, std::span(a));
      detent::convolve(std::span<const std::uint8_t>(input), all, w, std::span(b));
      CHECK(difference(a, b) == "");
    });
  }
}

TEST_CASE("convolution: a thread that waits may do other convolutions meanwhile") {
  random_source random(44);
  INFO("seed ", random.seed());
  // Runs its first task, something else of the same kind, then the other tasks.
  const auto interrupted_by = [](auto&& other) {
    return [other](std::size_t count, const std::function<void(std::size_t)>& body) {
      for (std::size_t i = 0; i < count; ++i) {
        body(i);
        if (i == 0) {
          other();
        }
      }
    };
  };
  const auto shape = [](std::size_t channels, std::size_t groups, std::size_t width) {
    geometry g;
    g.f = {channels, channels, groups, 3, 3};
    g.w.in_height = 40;
    g.w.in_width = width;
    g.w.pad_top = g.w.pad_left = g.w.pad_bottom = g.w.pad_right = 1;
    return g;
  };
  for (const geometry& g : {shape(8, 1, 20), shape(16, 16, 9), shape(6, 2, 20)}) {
    const integer_case outer(random, g);
    const integer_case inner(random, shape(16, g.f.groups == 1 ? 1 : 2, 50));
    const detent::packed_filters filters = outer.pack();
    const detent::packed_filters inner_filters = inner.pack();
    for_each_target([&] {
      std::vector<std::int32_t> alone(g.out_size());
      std::vector<std::int32_t> together(g.out_size());
      std::vector<std::int32_t> other(inner.g.out_size());
      detent::convolve(std::span<const std::uint8_t>(outer.input), filters, g.w,
                       std::span<std::int32_t>(alone), outer.options);
      detent::convolve(std::span<const std::uint8_t>(outer.input), filters, g.w,
                       std::span<std::int32_t>(together), outer.options, interrupted_by([&] {
                         detent::convolve(std::span<const std::uint8_t>(inner.input), inner_filters,
                                          inner.g.w, std::span<std::int32_t>(other), inner.options);
                       }));
      CHECK(difference(together, alone) == "");
    });
  }
}

TEST_CASE("convolution: padding out of all proportion is refused") {
  const std::vector<std::uint8_t> input(4, 1);
  const std::int8_t weight[4] = {1, 1, 1, 1};
  const detent::packed_filters filters({1, 4, 1, 1, 1}, weight);
  std::vector<std::int32_t> out(2);
  const auto fails = [&](detent::error_kind kind, const char* text, std::size_t pad) {
    for (const activation_layout layout : {activation_layout::nhwc, activation_layout::nchw}) {
      window w;
      w.pad_top = w.stride_height = pad;
      w.input_layout = w.output_layout = layout;
      test::check_error(kind, {text}, [&] {
        detent::convolve(std::span<const std::uint8_t>(input), filters, w,
                         std::span<std::int32_t>(out));
      });
    }
  };
  fails(detent::error_kind::invalid_argument, "beyond 2^32", std::size_t{1} << 62);
  fails(detent::error_kind::unsupported, "padded to 4294967297 x 1", std::size_t{1} << 32);
  // Unusual, but in proportion.
  window w;
  w.pad_top = w.stride_height = 1000;
  detent::convolve(std::span<const std::uint8_t>(input), filters, w, std::span<std::int32_t>(out));
  CHECK(out == std::vector<std::int32_t>{0, 4});
}

TEST_CASE("convolution: without input channels, kernels and padding of any size take no time") {
  // Each of these kernels has 2^46 places, and there are 2^24 lines of padding around each image.
  constexpr std::size_t side = std::size_t{1} << 23;
  const detent::filter_shape f{3, 0, 1, side, side};
  window w;
  w.batch = 2;
  w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = side;
  w.dilation_height = w.dilation_width = 2;
  const std::vector<float> bias = {1.0F, -2.0F, 3.0F};
  const std::vector<std::int32_t> whole_bias = {1, -2, 3};
  const detent::packed_float_filters floats(f, {}, bias);
  const detent::packed_filters integers(f, {}, {.bias = whole_bias});
  for (const activation_layout layout : {activation_layout::nhwc, activation_layout::nchw}) {
    w.input_layout = w.output_layout = layout;
    std::vector<float> expected;
    for (std::size_t i = 0; i < 2 * 3 * 9; ++i) {
      expected.push_back(bias[layout == activation_layout::nhwc ? i % 3 : i / 9 % 3]);
    }
    for_each_target([&] {
      std::vector<float> out(expected.size());
      detent::convolve(std::span<const float>(), floats, w, std::span<float>(out));
      CHECK(out == expected);
      std::vector<std::int32_t> sums(expected.size());
      detent::convolve(std::span<const std::uint8_t>(), integers, w, std::span<std::int32_t>(sums),
                       {.lhs_zero_point = 7});
      CHECK(std::equal(sums.begin(), sums.end(), expected.begin(), expected.end(),
                       [](std::int32_t a, float b) { return static_cast<float>(a) == b; }));
    });
  }
}
