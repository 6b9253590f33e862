// SPDX-License-Identifier: BSD-3-Clause
// Winograd convolutions: bit for bit what reference.hpp defines, and the convolution itself where
// nothing is rounded.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>
#include <detent/winograd.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "convolution_loops.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::activation_layout;
using detent::error_kind;
using detent::filter_shape;
using detent::window;
using test::difference;
using test::for_each_product;
using test::for_each_target;
using test::geometry;
using test::laid_out;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The values of one channel of a tile; 0 outside of the image.
template <std::size_t kTile>
using tile_values = std::array<float, (kTile + 2) * (kTile + 2)>;

template <std::size_t kTile>
tile_values<kTile> input_of_tile(const geometry& g, const std::vector<float>& input, std::size_t n,
                                 std::size_t top, std::size_t left, std::size_t c) {
  constexpr std::size_t side = kTile + 2;
  tile_values<kTile> d{};
  for (std::size_t i = 0; i < side; ++i) {
    for (std::size_t j = 0; j < side; ++j) {
      const std::size_t y = top + i - g.w.pad_top;  // wraps around before the image
      const std::size_t x = left + j - g.w.pad_left;
      if (y < g.w.in_height && x < g.w.in_width) {
        d[i * side + j] = input[((n * g.w.in_height + y) * g.w.in_width + x) * g.f.in_channels + c];
      }
    }
  }
  tile_values<kTile> columns{};
  for (std::size_t j = 0; j < side; ++j) {
    detent::reference::winograd_input<kTile>(d.data() + j, side, columns.data() + j, side);
  }
  for (std::size_t i = 0; i < side; ++i) {
    detent::reference::winograd_input<kTile>(columns.data() + i * side, 1, d.data() + i * side, 1);
  }
  return d;
}

template <std::size_t kTile>
tile_values<kTile> transformed_weights(const float* filter) {
  constexpr std::size_t side = kTile + 2;
  std::array<double, 9> g;
  std::copy_n(filter, 9, g.begin());
  std::array<double, 3 * side> rows{};
  std::array<double, side * side> u{};
  for (std::size_t i = 0; i < 3; ++i) {
    detent::reference::winograd_weights<kTile>(g.data() + i * 3, 1, rows.data() + i * side, 1);
  }
  for (std::size_t j = 0; j < side; ++j) {
    detent::reference::winograd_weights<kTile>(rows.data() + j, side, u.data() + j, side);
  }
  tile_values<kTile> rounded{};
  std::copy(u.begin(), u.end(), rounded.begin());
  return rounded;
}

/// What the definitions of reference.hpp give, channels last.
template <std::size_t kTile>
std::vector<float> expected_outputs(const geometry& g, const std::vector<float>& input,
                                    const std::vector<float>& weights,
                                    const std::vector<float>& bias) {
  constexpr std::size_t side = kTile + 2;
  std::vector<float> out(g.out_size());
  std::vector<tile_values<kTile>> u;
  for (std::size_t i = 0; i < g.f.out_channels * g.f.in_channels; ++i) {
    u.push_back(transformed_weights<kTile>(weights.data() + i * 9));
  }
  for (std::size_t n = 0; n < g.w.batch; ++n) {
    for (std::size_t top = 0; top < g.out_height(); top += kTile) {
      for (std::size_t left = 0; left < g.out_width(); left += kTile) {
        std::vector<tile_values<kTile>> v;
        for (std::size_t c = 0; c < g.f.in_channels; ++c) {
          v.push_back(input_of_tile<kTile>(g, input, n, top, left, c));
        }
        for (std::size_t k = 0; k < g.f.out_channels; ++k) {
          tile_values<kTile> m{};
          for (std::size_t p = 0; p < m.size(); ++p) {
            for (std::size_t c = 0; c < g.f.in_channels; ++c) {
              m[p] = std::fma(v[c][p], u[k * g.f.in_channels + c][p], m[p]);
            }
          }
          std::array<float, kTile * side> columns{};
          for (std::size_t j = 0; j < side; ++j) {
            detent::reference::winograd_output<kTile>(m.data() + j, side, columns.data() + j, side);
          }
          for (std::size_t i = 0; i < kTile && top + i < g.out_height(); ++i) {
            std::array<float, kTile> line{};
            detent::reference::winograd_output<kTile>(columns.data() + i * side, 1, line.data(), 1);
            for (std::size_t j = 0; j < kTile && left + j < g.out_width(); ++j) {
              const std::size_t pixel = (n * g.out_height() + top + i) * g.out_width() + left + j;
              out[pixel * g.f.out_channels + k] = line[j] + (bias.empty() ? 0.0F : bias[k]);
            }
          }
        }
      }
    }
  }
  return out;
}

geometry random_geometry(random_source& random, std::size_t most_channels) {
  geometry g;
  g.f.kernel_height = g.f.kernel_width = 3;
  g.f.in_channels = random.size(1, most_channels);
  g.f.out_channels = random.size(1, most_channels);
  g.w.batch = random.size(1, 3);
  g.w.in_height = random.size(1, 13);
  g.w.in_width = random.size(1, 13);
  if (random.chance(70)) {
    g.w.pad_top = random.size(0, 2);
    g.w.pad_left = random.size(0, 2);
    g.w.pad_bottom = random.size(0, 2);
    g.w.pad_right = random.size(0, 2);
  }
  return g;
}

template <std::size_t kTile>
void check_random(random_source& random, const detent::parallel_for& parallel) {
  const geometry g = random_geometry(random, random.chance(50) ? 9 : 40);
  INFO("tile ", kTile, " channels ", g.f.in_channels, " -> ", g.f.out_channels, " on ", g.w.batch,
       " x ", g.w.in_height, " x ", g.w.in_width, " pads ", g.w.pad_top, " ", g.w.pad_left, " ",
       g.w.pad_bottom, " ", g.w.pad_right);
  std::vector<float> input = random.reals(g.in_size(), -2.0F, 2.0F);
  const std::vector<float> weights = random.reals(g.f.size(), -2.0F, 2.0F);
  const std::vector<float> bias =
      random.chance(70) ? random.reals(g.f.out_channels, -2.0F, 2.0F) : std::vector<float>();
  if (random.chance(20) && !input.empty()) {
    constexpr float special[] = {
        -0.0F, infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 1e38F, 1e-40F};
    input[random.size(0, input.size() - 1)] = special[random.size(0, std::size(special) - 1)];
  }
  const float lower = random.chance(50) ? -infinity : random.real(-9.0F, 3.0F);
  const float upper = random.chance(50) ? infinity : random.real(-3.0F, 9.0F);
  const std::vector<float> residual =
      random.chance(50) ? random.reals(g.out_size(), -9.0F, 9.0F) : std::vector<float>();
  std::vector<float> sums = expected_outputs<kTile>(g, input, weights, bias);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = residual.empty() ? sums[i] : sums[i] + residual[i];
    sums[i] = detent::reference::clamp(sums[i], lower, upper);
  }
  const detent::winograd_filters filters(g.f, weights, bias, kTile);
  const std::size_t pixels = g.out_height() * g.out_width();
  test::guarded_memory memory(g.out_size() * sizeof(float) + 64);
  const bool at_end = random.chance(50);
  const auto out = at_end ? memory.back<float>(sums.size())
                          : memory.front<float>(sums.size(), random.size(0, 3));
  for (const auto in_layout : {activation_layout::nhwc, activation_layout::nchw}) {
    for (const auto out_layout : {activation_layout::nhwc, activation_layout::nchw}) {
      window w = g.w;
      w.input_layout = in_layout;
      w.output_layout = out_layout;
      const std::vector<float> x =
          laid_out(input, in_layout, w.batch, w.in_height * w.in_width, g.f.in_channels);
      const std::vector<float> wanted =
          laid_out(sums, out_layout, w.batch, pixels, g.f.out_channels);
      const std::vector<float> added =
          residual.empty() ? residual
                           : laid_out(residual, out_layout, w.batch, pixels, g.f.out_channels);
      const bool in_place = random.chance(50);
      for_each_target([&] {
        memory.repaint();
        detent::float_epilogue_options options{lower, upper, {}};
        if (!residual.empty()) {
          const bool planes = out_layout == activation_layout::nchw;
          if (in_place) {
            std::copy(added.begin(), added.end(), out.begin());
          }
          options.residual = {in_place ? out.data() : added.data(),
                              w.batch * (planes ? g.f.out_channels : pixels),
                              planes ? pixels : g.f.out_channels};
        }
        detent::convolve(std::span<const float>(x), filters, w, out, options, parallel);
        CHECK(difference(out, wanted) == "");
        CHECK(memory.intact_around(out));
      });
    }
  }
}

}  // namespace

TEST_CASE("winograd: random shapes, with the bits of the definition") {
  random_source random(1);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    INFO("round ", round);
    check_random<2>(random, {});
    check_random<4>(random, {});
  }
}

TEST_CASE("winograd: the same bits on threads") {
  random_source random(2);
  detent::thread_pool pool(3);
  const detent::parallel_for parallel = pool.parallel();
  for (int round = 0; round < 20; ++round) {
    check_random<2>(random, parallel);
    check_random<4>(random, parallel);
  }
  // Large enough that the rows of tiles are divided, and that a task has several of them.
  geometry g;
  g.f = {40, 24, 1, 3, 3};
  g.w = {.batch = 2, .in_height = 61, .in_width = 35, .pad_top = 1, .pad_left = 1};
  const std::vector<float> input = random.reals(g.in_size(), -1.0F, 1.0F);
  const std::vector<float> weights = random.reals(g.f.size(), -1.0F, 1.0F);
  for (const std::size_t tile : {2U, 4U}) {
    const detent::winograd_filters filters(g.f, weights, {}, tile);
    const std::vector<float> expected = tile == 2 ? expected_outputs<2>(g, input, weights, {})
                                                  : expected_outputs<4>(g, input, weights, {});
    for_each_target([&] {
      std::vector<float> alone(g.out_size());
      std::vector<float> together(g.out_size());
      detent::convolve(std::span<const float>(input), filters, g.w, std::span<float>(alone));
      detent::convolve(std::span<const float>(input), filters, g.w, std::span<float>(together), {},
                       parallel);
      CHECK(difference(alone, expected) == "");
      CHECK(difference(together, expected) == "");
    });
  }
}

TEST_CASE("winograd: where nothing is rounded, it is the convolution") {
  // Weights that 576 = 24 * 24 divides have integers for transforms.
  random_source random(3);
  for (int round = 0; round < 40; ++round) {
    const geometry g = random_geometry(random, 6);
    std::vector<float> input(g.in_size());
    std::vector<float> weights(g.f.size());
    for (float& x : input) {
      x = static_cast<float>(random.integer(-3, 3));
    }
    for (float& x : weights) {
      x = static_cast<float>(576 * random.integer(-2, 2));
    }
    std::vector<float> expected(g.out_size());
    for_each_product(
        g, [&](std::size_t out, std::size_t /*channel*/) { expected[out] = 0.0F; },
        [&](std::size_t out, std::ptrdiff_t in, std::size_t weight) {
          expected[out] += in < 0 ? 0.0F : input[static_cast<std::size_t>(in)] * weights[weight];
        });
    for (const std::size_t tile : {2U, 4U}) {
      const detent::winograd_filters filters(g.f, weights, {}, tile);
      for_each_target([&] {
        std::vector<float> out(g.out_size());
        detent::convolve(std::span<const float>(input), filters, g.w, std::span<float>(out));
        CHECK(difference(out, expected) == "");
      });
    }
  }
}

TEST_CASE("winograd: the rounding errors are as small as stated") {
  random_source random(4);
  geometry g;
  g.f = {16, 64, 1, 3, 3};
  g.w = {.in_height = 32,
         .in_width = 32,
         .pad_top = 1,
         .pad_left = 1,
         .pad_bottom = 1,
         .pad_right = 1};
  const std::vector<float> input = random.reals(g.in_size(), -1.0F, 1.0F);
  const std::vector<float> weights = random.reals(g.f.size(), -1.0F, 1.0F);
  std::vector<double> exact(g.out_size());
  for_each_product(
      g, [](std::size_t, std::size_t) {},
      [&](std::size_t out, std::ptrdiff_t in, std::size_t weight) {
        exact[out] += in < 0 ? 0.0
                             : static_cast<double>(input[static_cast<std::size_t>(in)]) *
                                   static_cast<double>(weights[weight]);
      });
  const auto error_of = [&](const auto& filters) {
    std::vector<float> out(g.out_size());
    detent::convolve(std::span<const float>(input), filters, g.w, std::span<float>(out));
    double squares = 0.0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double e = static_cast<double>(out[i]) - exact[i];
      squares += e * e;
    }
    return std::sqrt(squares / static_cast<double>(out.size()));
  };
  const double direct = error_of(detent::packed_float_filters(g.f, weights));
  const double of_2 = error_of(detent::winograd_filters(g.f, weights, {}, 2));
  const double of_4 = error_of(detent::winograd_filters(g.f, weights, {}, 4));
  MESSAGE("errors: direct ", direct, ", tiles of 2 ", of_2 / direct, " times, of 4 ", of_4 / direct,
          " times");
  CHECK(of_2 < direct);
  CHECK(of_4 < 5.0 * direct);
}

TEST_CASE("winograd: arguments are checked") {
  const std::vector<float> weights(2 * 3 * 9);
  const std::vector<float> three(3);
  using filters = detent::winograd_filters;
  test::check_error(error_kind::unsupported, {"3 x 1"}, [&] {
    static_cast<void>(filters({2, 3, 1, 3, 1}, std::span<const float>(weights).first(18)));
  });
  test::check_error(error_kind::unsupported, {"3 groups"}, [&] {
    static_cast<void>(filters({3, 3, 3, 3, 3}, std::span<const float>(weights).first(27)));
  });
  test::check_error(error_kind::invalid_argument, {"tile", "3"}, [&] {
    static_cast<void>(filters({2, 3, 1, 3, 3}, weights, {}, 3));
  });
  test::check_error(error_kind::shape_mismatch, {"3 biases", "2 channels"}, [&] {
    static_cast<void>(filters({2, 3, 1, 3, 3}, weights, three));
  });
  test::check_error(error_kind::shape_mismatch, {"54"}, [&] {
    static_cast<void>(filters({2, 4, 1, 3, 3}, weights));
  });
  const filters good({2, 3, 1, 3, 3}, weights);
  const std::vector<float> input(3 * 25);
  std::vector<float> out(2 * 4, 7.0F);
  window w{.in_height = 5, .in_width = 5, .stride_height = 2, .stride_width = 2};
  test::check_error(error_kind::unsupported, {"strides"}, [&] {
    detent::convolve(std::span<const float>(input), good, w, std::span<float>(out));
  });
  CHECK(std::count(out.begin(), out.end(), 7.0F) == 8);
  CHECK(!filters::fits(good.shape(), w));
  w.stride_height = w.stride_width = 1;
  CHECK(filters::fits(good.shape(), w));
  test::check_error(error_kind::shape_mismatch, {"output"}, [&] {
    detent::convolve(std::span<const float>(input), good, w, std::span<float>(out));
  });
  filters moved = good;
  const filters taken = std::move(moved);
  CHECK(taken.positions().size() == 36);
  CHECK(moved.tile() == 0);  // NOLINT: what a moved-from bank is
}
