// SPDX-License-Identifier: BSD-3-Clause
// Convolutions whose sums leave 32 bits: exact or an error, on every target, path and layout.
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "convolution_loops.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::activation_layout;
using detent::epilogue_options;
using detent::error_kind;
using detent::window;
using test::difference;
using test::for_each_target;
using test::geometry;
using test::laid_out;
using test::random_source;

constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();

bool fits(std::int64_t sum) { return sum >= smallest && sum <= largest; }

/// Runs tasks backwards, so that nothing may depend on their order.
void run_backwards(std::size_t count, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = count; i-- > 0;) {
    body(i);
  }
}

struct guarded_images {
  test::guarded_memory in{1 << 21};
  test::guarded_memory out{1 << 20};
  test::guarded_memory residual{1 << 20};
};

/// A convolution and its sums, computed by plain loops in 64 bits.
struct wide_case {
  geometry g;
  std::vector<std::uint8_t> input;
  std::vector<std::int8_t> weights;
  std::vector<float> scales, real_bias, residual;
  std::vector<std::int32_t> zero_points, bias;
  epilogue_options options;
  std::vector<std::int64_t> sums;  // channels last

  wide_case(random_source& random, const geometry& geometry_)
      : g(geometry_),
        input(random.integers<std::uint8_t>(g.in_size())),
        weights(random.integers<std::int8_t>(g.f.size())) {
    // Codes that lead far: near one end of their type.
    if (random.chance(70)) {
      const bool upper = random.chance(50);
      for (std::uint8_t& x : input) {
        x = static_cast<std::uint8_t>(upper ? 255 - x % 16 : x % 16);
      }
      for (std::int8_t& w : weights) {
        w = static_cast<std::int8_t>(upper ? 127 - (w & 15) : -128 + (w & 15));
      }
    }
    const bool has_zero_points = random.chance(50);
    for (std::size_t i = 0; i < g.f.out_channels; ++i) {
      scales.push_back(random.real(0.001F, 0.1F));
      zero_points.push_back(has_zero_points ? random.integer(-128, 127) : 0);
      bias.push_back(random.chance(50) ? random.integer(smallest, largest)
                                       : random.integer(-1000, 1000));
    }
    bias[random.size(0, bias.size() - 1)] = random.chance(50) ? smallest : largest;
    options.lhs_scale = random.real(0.001F, 0.1F);
    options.lhs_zero_point = random.integer(0, 255);
    real_bias =
        random.chance(50) ? random.reals(g.f.out_channels, -1e8F, 1e8F) : std::vector<float>();
    residual = random.chance(50) ? random.reals(g.out_size(), -1e8F, 1e8F) : std::vector<float>();
    if (random.chance(50)) {
      options.lower = random.real(-1e9F, 0.0F);
      options.upper = random.real(0.0F, 1e9F);
    }
    add_up();
    // So that the largest of the outputs are somewhere in the grid, and some are outside.
    std::int64_t extent = 1;
    for (const std::int64_t sum : sums) {
      extent = std::max(extent, std::abs(sum));
    }
    options.output.scale =
        options.lhs_scale * 0.05F * static_cast<float>(extent) / random.real(50.0F, 300.0F);
    options.output.zero_point = random.integer(0, 127);
  }

  void add_up() {
    sums.assign(g.out_size(), 0);
    std::int64_t zero_point = 0;
    test::for_each_product(
        g,
        [&](std::size_t out, std::size_t channel) {
          sums[out] = bias[channel];
          zero_point = zero_points[channel];
        },
        [&](std::size_t out, std::ptrdiff_t in, std::size_t weight) {
          if (in >= 0) {
            const std::int64_t x = input[static_cast<std::size_t>(in)];
            sums[out] += (x - options.lhs_zero_point) * (weights[weight] - zero_point);
          }
        });
  }

  [[nodiscard]] detent::packed_filters pack() const {
    return {g.f, weights, {.scales = scales, .zero_points = zero_points, .bias = bias}};
  }

  template <class T>
  [[nodiscard]] T expected(std::size_t element) const {
    const std::size_t channel = element % g.f.out_channels;
    const std::int64_t sum = sums[element];
    if constexpr (std::same_as<T, float> || std::same_as<T, detent::bfloat16>) {
      float real = std::fma(static_cast<float>(sum), options.lhs_scale * scales[channel],
                            real_bias.empty() ? 0.0F : real_bias[channel]);
      if (!residual.empty()) {
        real += residual[element];
      }
      real = std::min(std::max(real, options.lower), options.upper);
      if constexpr (std::same_as<T, float>) {
        return real;
      } else {
        return detent::round_to<T>(real);
      }
    } else {
      const float multiplier = options.lhs_scale * scales[channel] / options.output.scale;
      const auto steps = static_cast<double>(static_cast<float>(sum) * multiplier);
      const double q = std::nearbyint(steps) + options.output.zero_point;
      return static_cast<T>(std::clamp(q, static_cast<double>(detent::full_grid<T>.qmin),
                                       static_cast<double>(detent::full_grid<T>.qmax)));
    }
  }

  [[nodiscard]] std::size_t pixels() const { return g.out_height() * g.out_width(); }

  /// Calls run(window, expected values) for each layout of the output, with the input that belongs
  /// to it in `in`; the input's layout is the other one or the same.
  template <class T, class Run>
  void for_layouts(random_source& random, const std::vector<T>& right, std::span<std::uint8_t> in,
                   const Run& run) const {
    for (const activation_layout out : {activation_layout::nhwc, activation_layout::nchw}) {
      window w = g.w;
      w.input_layout = random.chance(50) ? activation_layout::nhwc : activation_layout::nchw;
      w.output_layout = out;
      INFO("channels first: ", w.input_layout == activation_layout::nchw ? "input " : "",
           out == activation_layout::nchw ? "output" : "");
      const std::vector<std::uint8_t> x =
          laid_out(input, w.input_layout, w.batch, w.in_height * w.in_width, g.f.in_channels);
      std::copy(x.begin(), x.end(), in.begin());
      run(w, laid_out(right, out, w.batch, pixels(), g.f.out_channels));
    }
  }

  template <class T>
  void check(random_source& random, const detent::packed_filters& filters, guarded_images& memory,
             const detent::parallel_for& parallel) const {
    std::vector<T> right;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      right.push_back(expected<T>(i));
    }
    epilogue_options o = options;
    const bool at_end = random.chance(50);
    const auto in = at_end ? memory.in.back<std::uint8_t>(input.size())
                           : memory.in.front<std::uint8_t>(input.size());
    const auto out = at_end ? memory.out.back<T>(sums.size()) : memory.out.front<T>(sums.size());
    constexpr bool real = std::same_as<T, float> || std::same_as<T, detent::bfloat16>;
    const auto added = at_end ? memory.residual.back<float>(residual.size())
                              : memory.residual.front<float>(residual.size());
    if (real) {
      o.bias = real_bias;
    }
    INFO("output of ", sizeof(T), " bytes");
    for_layouts(random, right, in, [&](const window& w, const std::vector<T>& wanted) {
      if (real && !residual.empty()) {
        const auto values =
            laid_out(residual, w.output_layout, w.batch, pixels(), g.f.out_channels);
        std::copy(values.begin(), values.end(), added.begin());
        o.residual = {added.data(), w.batch * pixels(), g.f.out_channels};
        if (w.output_layout == activation_layout::nchw) {
          o.residual = {added.data(), w.batch * g.f.out_channels, pixels()};
        }
      }
      for_each_target([&] {
        memory.out.repaint();
        detent::convolve(std::span<const std::uint8_t>(in), filters, w, out, o, parallel);
        CHECK(difference(out, wanted) == "");
        CHECK(memory.out.intact_around(out));
      });
    });
  }

  /// Integers: those that fit are there, others as they were, the first of which is the error.
  void check_sums(random_source& random, const detent::packed_filters& filters,
                  guarded_images& memory, const detent::parallel_for& parallel) const {
    const auto misfit =
        static_cast<std::size_t>(std::find_if_not(sums.begin(), sums.end(), fits) - sums.begin());
    std::vector<std::int32_t> before, right;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      before.push_back(random.integer(smallest, largest));
      right.push_back(fits(sums[i]) ? static_cast<std::int32_t>(sums[i]) : before[i]);
    }
    const auto in = memory.in.back<std::uint8_t>(input.size());
    const auto out = memory.out.back<std::int32_t>(sums.size());
    const auto run_on = [&](const window& w) {
      detent::convolve(std::span<const std::uint8_t>(in), filters, w, out, options, parallel);
    };
    for_layouts(random, right, in, [&](const window& w, const std::vector<std::int32_t>& wanted) {
      const auto old = laid_out(before, w.output_layout, w.batch, pixels(), g.f.out_channels);
      for_each_target([&] {
        memory.out.repaint();
        std::copy(old.begin(), old.end(), out.begin());
        if (misfit == sums.size()) {
          run_on(w);
        } else {
          test::check_error(error_kind::overflow,
                            {"convolution: the sum " + std::to_string(sums[misfit]) + " of pixel " +
                             std::to_string(misfit / g.f.out_channels) + ", channel " +
                             std::to_string(misfit % g.f.out_channels) + " does not fit 32 bits"},
                            [&] { run_on(w); });
        }
        CHECK(difference(out, wanted) == "");
        CHECK(memory.out.intact_around(out));
      });
    });
  }
};

void check(random_source& random, const geometry& g, guarded_images& memory,
           const detent::parallel_for& parallel = {}) {
  INFO("channels ", g.f.in_channels, " -> ", g.f.out_channels, " groups ", g.f.groups, " kernel ",
       g.f.kernel_height, " x ", g.f.kernel_width, " on ", g.w.batch, " x ", g.w.in_height, " x ",
       g.w.in_width, " strides ", g.w.stride_height, " ", g.w.stride_width, " dilations ",
       g.w.dilation_height, " ", g.w.dilation_width);
  const wide_case c(random, g);
  const detent::packed_filters filters = c.pack();
  const auto& groups = filters.groups();
  REQUIRE(std::any_of(groups.begin(), groups.end(),
                      [](const detent::packed_weights& w) { return !w.certificate().fits_s32(); }));
  c.check_sums(random, filters, memory, parallel);
  c.check<float>(random, filters, memory, parallel);
  c.check<detent::bfloat16>(random, filters, memory, parallel);
  c.check<std::uint8_t>(random, filters, memory, parallel);
  c.check<std::int8_t>(random, filters, memory, parallel);
}

}  // namespace

TEST_CASE("convolution: sums beyond 32 bits because of their biases") {
  random_source random(301);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (int round = 0; round < 80; ++round) {
    INFO("round ", round);
    geometry g;
    const std::size_t inputs = random.chance(50) ? 4 * random.size(1, 5) : random.size(1, 9);
    g.f.groups = random.chance(60) ? 1 : random.size(2, 4);
    g.f.in_channels = g.f.groups * inputs;
    g.f.out_channels = g.f.groups * random.size(1, 40);
    g.f.kernel_height = random.size(1, 4);
    g.f.kernel_width = random.size(1, 4);
    g.w = test::random_window(random);
    // At least one pixel.
    g.w.in_height += g.w.dilation_height * (g.f.kernel_height - 1);
    g.w.in_width += g.w.dilation_width * (g.f.kernel_width - 1);
    check(random, g, memory);
  }
}

TEST_CASE("convolution: sums beyond 32 bits, 1 x 1") {
  random_source random(302);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (int round = 0; round < 20; ++round) {
    geometry g;
    g.f.groups = random.chance(60) ? 1 : 2;
    g.f.in_channels = g.f.groups * random.size(1, 40);
    g.f.out_channels = g.f.groups * random.size(1, 70);
    g.w = {.batch = random.size(1, 3),
           .in_height = random.size(1, 12),
           .in_width = random.size(1, 12)};
    check(random, g, memory);
  }
}

TEST_CASE("convolution: sums beyond 32 bits, depthwise") {
  random_source random(303);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (std::size_t channels = 2; channels <= 70; channels += random.size(1, 4)) {
    geometry g;
    g.f = {channels, channels, channels, random.size(1, 5), random.size(1, 5)};
    g.w = test::random_window(random);
    g.w.in_height += g.w.dilation_height * (g.f.kernel_height - 1);
    g.w.in_width += g.w.dilation_width * (g.f.kernel_width - 1) + random.size(0, 20);
    check(random, g, memory);
  }
  check(random, {{16, 16, 16, 3, 3}, {.in_height = 4, .in_width = 40, .pad_top = 1}}, memory);
  check(random, {{131, 131, 131, 3, 3}, {.in_height = 3, .in_width = 30, .pad_left = 1}}, memory);
}

TEST_CASE("convolution: sums beyond 32 bits because windows are large") {
  random_source random(304);
  INFO("seed ", random.seed());
  guarded_images memory;
  constexpr std::size_t slice = detent::packed_weights::slice_depth;
  // 1 x 1, with channels around one and two slices.
  check(random, {{5, slice + 3, 1, 1, 1}, {.in_height = 2, .in_width = 3}}, memory);
  check(random, {{18, 2 * slice, 1, 1, 1}, {.in_width = 3}}, memory);
  check(random, {{4, 2 * slice + 10, 2, 1, 1}, {.in_width = 4}}, memory);
  // Kernel rows longer than a slice, and slices that end within one.
  check(random, {{3, 1, 1, 1, slice + 1}, {.in_width = slice + 6, .pad_left = 2}}, memory);
  check(random, {{6, 7300, 1, 3, 3}, {.in_height = 5, .in_width = 4, .pad_top = 1}}, memory);
  check(random, {{2, 3, 1, 150, 147}, {.in_height = 151, .in_width = 149, .pad_right = 1}}, memory);
  check(random,
        {{4, 2, 2, 2, slice / 2 + 5},
         {.in_height = 4, .in_width = slice / 2 + 20, .stride_width = 3, .dilation_height = 2}},
        memory);
}

TEST_CASE("convolution: sums beyond 32 bits, depthwise with many taps") {
  random_source random(305);
  INFO("seed ", random.seed());
  guarded_images memory;
  constexpr std::size_t most = detent::detail::depthwise_weights::most_exact_taps;
  // The most that a tap can be, up to where products alone leave 32 bits, and beyond.
  for (const std::size_t taps : {most - 1, most, most + 1, 2 * most}) {
    INFO("taps ", taps);
    geometry g;
    g.f = {3, 3, 3, 1, taps};
    g.w = {.in_width = taps + 2};
    wide_case c(random, g);
    std::fill(c.input.begin(), c.input.end(), std::uint8_t{255});
    std::fill(c.weights.begin(), c.weights.end(), std::int8_t{-128});
    c.zero_points = {127, 0, 127};
    c.bias = {100, largest, smallest};
    c.options.lhs_zero_point = 0;
    c.add_up();
    CHECK(c.sums[0] == 100 - std::int64_t{255 * 255} * static_cast<std::int64_t>(taps));
    const detent::packed_filters filters = c.pack();
    CHECK(filters.is_depthwise() == (taps <= most));
    c.check_sums(random, filters, memory, {});
    c.check<float>(random, filters, memory, {});
    c.check<std::uint8_t>(random, filters, memory, {});
    check(random, g, memory);
  }
  // As many taps whose sums the certificate shows to fit stay as they are.
  const std::vector<std::int8_t> small(2 * (most + 1), 1);
  CHECK(detent::packed_filters({2, 2, 2, 1, most + 1}, small).is_depthwise());
}

TEST_CASE("convolution: sums beyond 32 bits do not depend on threads") {
  random_source random(306);
  INFO("seed ", random.seed());
  guarded_images memory;
  detent::thread_pool pool(3);
  const geometry shapes[] = {
      {{9, 20, 1, 3, 3}, {.batch = 2, .in_height = 19, .in_width = 17, .pad_top = 1}},
      {{70, 12, 2, 1, 1}, {.batch = 3, .in_height = 22, .in_width = 19}},
      {{40, 40, 40, 3, 3}, {.batch = 3, .in_height = 12, .in_width = 31, .pad_left = 1}},
      {{6, 6, 3, 2, 3}, {.batch = 2, .in_height = 30, .in_width = 21}},
      {{2, 70000, 1, 1, 1}, {.batch = 2, .in_height = 2, .in_width = 7}},
  };
  for (const geometry& g : shapes) {
    check(random, g, memory, pool.parallel());
    check(random, g, memory, &run_backwards);
  }
}

TEST_CASE("convolution: the largest and the smallest sum that fit, and the next ones") {
  // The certificate speaks of the worst input; what counts is the sum itself.
  const std::vector<std::uint8_t> input = {1, 0, 255, 2};
  struct one {
    std::int32_t bias;
    std::size_t pixel;
    bool fits;
  };
  for (const std::size_t groups : {std::size_t{1}, std::size_t{2}}) {  // dense, depthwise
    // Two channels; the first one's sums are 1 * 1 and 255 * -1 besides the bias.
    const detent::filter_shape f{2, 2, groups, 1, 1};
    const std::vector<std::int8_t> weights =
        groups == 1 ? std::vector<std::int8_t>{1, 0, 0, 1} : std::vector<std::int8_t>{1, 1};
    for (const one& o : {one{largest - 1, 0, true}, one{largest, 0, false}, one{largest, 1, false},
                         one{largest - 254, 1, false}, one{smallest, 1, true}}) {
      const std::int32_t bias[] = {o.bias, 0};
      const detent::packed_filters filters(f, weights, {.bias = bias});
      REQUIRE(!filters.groups()[0].certificate().fits_s32());
      const std::int64_t sum = std::int64_t{o.bias} + (o.pixel == 0 ? 1 : 255);
      CHECK(fits(sum) == o.fits);
      for_each_target([&] {
        std::vector<std::int32_t> out = {42, 42};
        const auto run = [&] {
          detent::convolve(std::span<const std::uint8_t>(input).subspan(2 * o.pixel, 2), filters,
                           window{}, std::span<std::int32_t>(out));
        };
        if (o.fits) {
          run();
          CHECK(out[0] == sum);
        } else {
          test::check_error(error_kind::overflow,
                            {"convolution: the sum " + std::to_string(sum), "of pixel 0, channel 0",
                             "does not fit 32 bits"},
                            run);
          CHECK(out[0] == 42);
        }
        CHECK(out[1] == (o.pixel == 0 ? 0 : 2));
        std::vector<float> real(2);
        detent::convolve(std::span<const std::uint8_t>(input).subspan(2 * o.pixel, 2), filters,
                         window{}, std::span<float>(real));
        CHECK(real[0] == static_cast<float>(sum));
      });
    }
  }
}

TEST_CASE("convolution: filters of which only some groups leave 32 bits") {
  random_source random(307);
  INFO("seed ", random.seed());
  guarded_images memory;
  for (int round = 0; round < 10; ++round) {
    geometry g;
    g.f = {6, 9, 3, 2, 2};
    g.w = {.in_height = random.size(2, 9), .in_width = random.size(2, 9), .pad_left = 1};
    wide_case c(random, g);
    const std::size_t wide = random.size(0, 2);
    for (std::size_t i = 0; i < 6; ++i) {
      c.bias[i] = i / 2 == wide ? smallest : 1000;
    }
    c.add_up();
    const detent::packed_filters filters = c.pack();
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE(filters.groups()[i].certificate().fits_s32() == (i != wide));
    }
    c.check_sums(random, filters, memory, {});
    c.check<float>(random, filters, memory, {});
    c.check<std::int8_t>(random, filters, memory, {});
  }
}

TEST_CASE("dynamic convolution: sums beyond 32 bits") {
  random_source random(308);
  INFO("seed ", random.seed());
  for (const std::size_t groups : {std::size_t{1}, std::size_t{2}, std::size_t{6}}) {
    geometry g;
    g.f = {6, 6, groups, 3, 2};
    g.w = {.batch = 2, .in_height = 5, .in_width = 6, .pad_top = 1, .pad_right = 1};
    wide_case c(random, g);
    std::fill(c.bias.begin(), c.bias.end(), random.chance(50) ? largest - 100 : smallest + 100);
    const std::vector<float> x = random.reals(g.in_size(), -1.0F, 3.0F);
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const detent::quant_params p =
        detent::reference::params_from_range({*low, *high}, detent::asymmetric<std::uint8_t>);
    for (std::size_t i = 0; i < x.size(); ++i) {
      c.input[i] = static_cast<std::uint8_t>(
          detent::reference::quantize(x[i], p, detent::full_grid<std::uint8_t>));
    }
    c.options.lhs_scale = p.scale;
    c.options.lhs_zero_point = p.zero_point;
    c.real_bias.clear();
    c.residual.clear();
    c.add_up();
    CHECK(std::any_of(c.sums.begin(), c.sums.end(), [](std::int64_t sum) { return !fits(sum); }));
    std::vector<float> right;
    for (std::size_t i = 0; i < c.sums.size(); ++i) {
      right.push_back(c.expected<float>(i));
    }
    const detent::packed_filters filters = c.pack();
    for_each_target([&] {
      std::vector<float> out(right.size());
      detent::dynamic_convolve(
          x, filters, g.w, out,
          {.per_image = false, .lower = c.options.lower, .upper = c.options.upper});
      CHECK(difference(out, right) == "");
    });
  }
}
