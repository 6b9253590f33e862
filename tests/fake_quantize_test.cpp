// SPDX-License-Identifier: BSD-3-Clause
// fake_quantize and its gradients: the bits of the definitions, whatever the layout; the
// definitions against values derived by hand and against finite differences.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/fake_quantize.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"
#include "scales.hpp"
#include "strided.hpp"

namespace {

using detent::channel_quant_params;
using detent::error_kind;
using detent::fake_quantize;
using detent::fake_quantize_backward;
using detent::full_grid;
using detent::grid;
using detent::quant_params;
using detent::quant_params_gradient;
using detent::tensor_view;
using test::check_error;
using test::difference;
using test::random_source;
using test::same;
namespace reference = detent::reference;
using partials = reference::fake_quantize_partials;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float denorm_min = std::numeric_limits<float>::denorm_min();

constexpr grid grids[] = {
    {0, 3},      {-2, 1},  {-1, 1},  {0, 1},      {-8, 7},         {0, 15},    {-7, 300},
    {-128, 127}, {0, 255}, {3, 200}, {-127, 127}, {-32768, 32767}, {0, 65535}, {-5, -1},
};

std::vector<std::int32_t> zero_points_of(grid levels) {
  return {levels.qmin, levels.qmax, (levels.qmin + levels.qmax) / 2,
          std::clamp(0, levels.qmin, levels.qmax)};
}

/// Ties and their neighbours within and around the grid, special values, random bits.
std::vector<float> hard_inputs(random_source& random, quant_params p, grid levels) {
  std::vector<float> values = {0.0F,    -0.0F,      infinity,   -infinity,   quiet_nan,
                               flt_max, -flt_max,   denorm_min, -denorm_min, 8388608.0F,
                               -1e10F,  4194304.5F, 1e-40F,     -quiet_nan,  12582912.0F};
  std::vector<std::int32_t> steps;
  for (std::int32_t k = -4; k <= 4; ++k) {
    steps.insert(steps.end(), {k, levels.qmin - p.zero_point + k, levels.qmax - p.zero_point + k});
  }
  for (int i = 0; i < 60; ++i) {
    steps.push_back(random.integer(levels.qmin - 20, levels.qmax + 20) - p.zero_point);
  }
  for (const std::int32_t k : steps) {
    const float tie = (static_cast<float>(k) + 0.5F) * p.scale;
    values.insert(values.end(), {tie, std::nextafter(tie, -infinity), std::nextafter(tie, infinity),
                                 static_cast<float>(k) * p.scale});
  }
  for (int i = 0; i < 60; ++i) {
    values.push_back(random.any_float());
  }
  return values;
}

template <class Check>
void for_each_grid(random_source& random, const Check& check) {
  for (const grid levels : grids) {
    for (const std::int32_t zero_point : zero_points_of(levels)) {
      for (const float scale : test::hard_scales) {
        const quant_params p{scale, zero_point};
        INFO("grid ", levels.qmin, "..", levels.qmax, " scale ", scale, " zero point ", zero_point);
        check(hard_inputs(random, p, levels), p, levels);
      }
    }
  }
}

float rounded_trip(float x, quant_params p, grid levels) {
  return reference::dequantize(reference::quantize(x, p, levels), p);
}

}  // namespace

// ----------------------------------------------------------------------------------------- values

TEST_CASE("fake_quantize is dequantize of quantize, in place too") {
  random_source random(1);
  INFO("seed ", random.seed());
  for_each_grid(random, [](std::vector<float> x, quant_params p, grid levels) {
    std::vector<float> expected;
    for (const float value : x) {
      expected.push_back(rounded_trip(value, p, levels));
      CHECK(same(reference::fake_quantize(value, p, levels), expected.back()));
    }
    std::vector<float> y(x.size(), -1.0F);
    fake_quantize(x, y, p, levels);
    CHECK(difference(y, expected) == "");
    fake_quantize(x, x, p, levels);
    CHECK(difference(x, expected) == "");
  });
}

TEST_CASE_TEMPLATE("fake_quantize is what the kernels of every target store and read back", Q,
                   std::uint8_t, std::int8_t) {
  random_source random(2);
  INFO("seed ", random.seed());
  for (const float scale : {0.1F, 1.0F / 3.0F, 0x1.fffffep-3F, 1e-40F, 1e30F}) {
    const quant_params p{scale, random.integer(full_grid<Q>.qmin, full_grid<Q>.qmax)};
    const std::vector<float> x = hard_inputs(random, p, full_grid<Q>);
    std::vector<float> y(x.size());
    fake_quantize(x, y, p, full_grid<Q>);
    test::for_each_target([&] {
      std::vector<Q> q(x.size());
      std::vector<float> back(x.size());
      detent::quantize(x, q, p);
      detent::dequantize(q, back, p);
      CHECK(difference(back, y) == "");
    });
  }
}

TEST_CASE("fake_quantize: every size, nothing beside") {
  const quant_params p{0.25F, 3};
  constexpr grid levels{0, 15};
  for (std::size_t n = 0; n <= 70; ++n) {
    std::vector<float> x(n + 2, 1.6F);
    std::vector<float> y(n + 2, 42.0F);
    fake_quantize(std::span<const float>(x).subspan(1, n), std::span<float>(y).subspan(1, n), p,
                  levels);
    std::vector<float> expected(n + 2, 1.5F);
    expected.front() = 42.0F;
    expected.back() = 42.0F;
    CHECK(difference(y, expected) == "");
  }
}

namespace {

channel_quant_params random_channels(random_source& random, std::size_t axis, std::size_t channels,
                                     grid levels) {
  channel_quant_params p;
  p.axis = axis;
  for (std::size_t i = 0; i < channels; ++i) {
    p.scales.push_back(random.real(0.01F, 2.0F));
    p.zero_points.push_back(random.integer(levels.qmin, levels.qmax));
  }
  return p;
}

/// The parameters of one element.
quant_params params_at(const channel_quant_params& p, const test::tensor_index& index) {
  return {p.scales[index[p.axis]], p.zero_points[index[p.axis]]};
}

/// One value in thirty is not a number or not finite.
float awkward(random_source& random, float reach) {
  if (random.chance(3)) {
    constexpr float values[] = {quiet_nan, infinity, -infinity};
    return values[random.size(0, 2)];
  }
  return random.real(-reach, reach);
}

}  // namespace

TEST_CASE("fake_quantize of views") {
  random_source random(3);
  INFO("seed ", random.seed());
  constexpr float untouched = 42.125F;
  for (int round = 0; round < 300; ++round) {
    const grid levels = grids[random.size(0, std::size(grids) - 1)];
    const bool per_channel = random.chance(60);
    const auto shape = test::random_shape(random, per_channel ? 1 : 0);
    auto x = test::random_layout<float>(random, shape, 0.0F);
    auto y = test::random_layout<float>(random, shape, untouched);
    channel_quant_params channels;
    const quant_params p{random.real(0.01F, 2.0F), random.integer(levels.qmin, levels.qmax)};
    if (per_channel) {
      const std::size_t axis = random.size(0, shape.size() - 1);
      channels = random_channels(random, axis, shape[axis], levels);
    }
    auto expected = y.storage;
    test::for_each_index(shape, [&](const test::tensor_index& index) {
      x[index] = awkward(random, 300.0F);
      expected[test::offset_of(y.view, y.storage.data(), index)] =
          rounded_trip(x[index], per_channel ? params_at(channels, index) : p, levels);
    });
    auto in_place = x;
    in_place.view.data = in_place.storage.data() + (x.view.data - x.storage.data());
    if (per_channel) {
      fake_quantize(x.view, y.view, channels, levels);
      fake_quantize(in_place.view, in_place.view, channels, levels);
    } else {
      fake_quantize(x.view, y.view, p, levels);
      fake_quantize(in_place.view, in_place.view, p, levels);
    }
    REQUIRE(difference(y.storage, expected) == "");
    test::for_each_index(
        shape, [&](const test::tensor_index& index) { REQUIRE(same(in_place[index], y[index])); });
  }
}

TEST_CASE("views without elements take no time, whatever their other extents are") {
  constexpr std::size_t many = std::size_t{1} << 47U;
  for (const std::size_t axis : {std::size_t{0}, std::size_t{1}}) {
    const detent::tensor_view<const float> x(nullptr, {axis == 0 ? 0 : many, axis == 0 ? many : 0});
    const detent::tensor_view<float> y(nullptr, {axis == 0 ? 0 : many, axis == 0 ? many : 0});
    fake_quantize(x, y, quant_params{0.5F, 0}, grid{-128, 127});
    const channel_quant_params one{axis, {}, {}};
    fake_quantize(x, y, one, grid{-128, 127});
    fake_quantize_backward(x, x, one, {-128, 127}, y, {}, {});
  }
}

// ------------------------------------------------------------------------------------ derivatives

TEST_CASE("derivatives: by hand") {
  struct row {
    float x;
    quant_params p;
    grid levels;
    partials expected;
  };
  constexpr grid s8 = full_grid<std::int8_t>;
  constexpr grid u8 = full_grid<std::uint8_t>;
  const row rows[] = {
      // on the grid, between, at a tie
      {3.0F, {1.0F, 0}, s8, {1.0F, 0.0F, 0.0F}},
      {3.25F, {1.0F, 0}, s8, {1.0F, -0.25F, 0.0F}},
      {3.75F, {1.0F, 0}, s8, {1.0F, 0.25F, 0.0F}},
      {2.5F, {1.0F, 0}, s8, {1.0F, -0.5F, 0.0F}},
      {3.5F, {1.0F, 0}, s8, {1.0F, 0.5F, 0.0F}},
      {-2.5F, {1.0F, 0}, s8, {1.0F, 0.5F, 0.0F}},
      {-0.3125F, {0.25F, 0}, s8, {1.0F, 0.25F, 0.0F}},
      {0.0F, {0.1F, 7}, u8, {1.0F, 0.0F, 0.0F}},
      {-0.0F, {0.1F, 7}, u8, {1.0F, 0.0F, 0.0F}},
      // the upper end: 127.5 goes to 128, which is outside; the last float below goes to 127
      {127.0F, {1.0F, 0}, s8, {1.0F, 0.0F, 0.0F}},
      {0x1.fdfffep+6F, {1.0F, 0}, s8, {1.0F, 127.0F - 0x1.fdfffep+6F, 0.0F}},
      {127.5F, {1.0F, 0}, s8, {0.0F, 127.0F, -1.0F}},
      {128.0F, {1.0F, 0}, s8, {0.0F, 127.0F, -1.0F}},
      // the lower end: -128.5 goes to -128, which is inside; the next float below does not
      {-128.0F, {1.0F, 0}, s8, {1.0F, 0.0F, 0.0F}},
      {-128.5F, {1.0F, 0}, s8, {1.0F, 0.5F, 0.0F}},
      {-0x1.010002p+7F, {1.0F, 0}, s8, {0.0F, -128.0F, -1.0F}},
      {-129.0F, {1.0F, 0}, s8, {0.0F, -128.0F, -1.0F}},
      // with a zero point the outer r is 245 and -10: a tie of 245 goes outside, of -10 inside
      {245.5F * 0.5F, {0.5F, 10}, u8, {0.0F, 245.0F, -0.5F}},
      {245.25F * 0.5F, {0.5F, 10}, u8, {1.0F, -0.25F, 0.0F}},
      {-10.5F * 0.5F, {0.5F, 10}, u8, {1.0F, 0.5F, 0.0F}},
      {-10.75F * 0.5F, {0.5F, 10}, u8, {0.0F, -10.0F, -0.5F}},
      // zero on the edge: below it, qmin - zero_point is 0
      {-0.5F, {1.0F, 0}, u8, {1.0F, 0.5F, 0.0F}},
      {-0.75F, {1.0F, 0}, u8, {0.0F, 0.0F, -1.0F}},
      {300.0F, {1.0F, 0}, u8, {0.0F, 255.0F, -1.0F}},
      {0.75F, {1.0F, 127}, s8, {0.0F, 0.0F, -1.0F}},
      // small and large grids
      {1.5F, {1.0F, 0}, {-2, 1}, {0.0F, 1.0F, -1.0F}},
      {1.4375F, {1.0F, 0}, {-2, 1}, {1.0F, -0.4375F, 0.0F}},
      {32767.5F * 2.0F, {2.0F, 0}, {-32768, 32767}, {0.0F, 32767.0F, -2.0F}},
      {65535.25F, {1.0F, 0}, {0, 65535}, {1.0F, -0.25F, 0.0F}},
      {-65535.25F, {1.0F, 65535}, {0, 65535}, {1.0F, 0.25F, 0.0F}},
      // beyond all floats and none at all
      {infinity, {0.5F, 1}, s8, {0.0F, 126.0F, -0.5F}},
      {-infinity, {0.5F, 1}, s8, {0.0F, -129.0F, -0.5F}},
      {flt_max, {denorm_min, 0}, s8, {0.0F, 127.0F, -denorm_min}},
      {quiet_nan, {0.5F, 1}, s8, {0.0F, 0.0F, 0.0F}},
  };
  for (const row& r : rows) {
    INFO("x ", r.x, " scale ", r.p.scale, " zero point ", r.p.zero_point, " grid ", r.levels.qmin,
         "..", r.levels.qmax);
    const partials d = reference::fake_quantize_derivatives(r.x, r.p, r.levels);
    CHECK(d.x == r.expected.x);
    CHECK(d.scale == r.expected.scale);
    CHECK(d.zero_point == r.expected.zero_point);
  }
}

TEST_CASE("inside is where clamping changes nothing, and the derivative for the scale is exact") {
  random_source random(4);
  INFO("seed ", random.seed());
  for_each_grid(random, [](const std::vector<float>& x, quant_params p, grid levels) {
    for (const float value : x) {
      const float steps = value / p.scale;
      if (!(std::fabs(steps) < 1e6F)) {
        continue;
      }
      const double unclamped = std::nearbyint(static_cast<double>(steps)) + p.zero_point;
      const bool inside = unclamped >= levels.qmin && unclamped <= levels.qmax;
      const partials d = reference::fake_quantize_derivatives(value, p, levels);
      REQUIRE(d.x == (inside ? 1.0F : 0.0F));
      REQUIRE(d.zero_point == (inside ? 0.0F : -p.scale));
      if (inside) {
        const double rounding =
            std::nearbyint(static_cast<double>(steps)) - static_cast<double>(steps);
        REQUIRE(static_cast<double>(d.scale) == rounding);
      } else {
        // xhat = d.scale * scale, as for any value that is clipped.
        REQUIRE(same(d.scale * p.scale, rounded_trip(value, p, levels)));
      }
    }
  });
}

TEST_CASE("derivatives are those of the surrogate whose rounding error is held fixed") {
  // f(x, s, z) = (clamp(x / s + error + z, qmin, qmax) - z) * s, error = round(x / s) - x / s at
  // the point itself: rounding taken for the identity.
  random_source random(5);
  INFO("seed ", random.seed());
  int clipped = 0;
  int tried = 0;
  for (int i = 0; i < 20000; ++i) {
    const grid levels = grids[random.size(0, std::size(grids) - 1)];
    const quant_params p{random.real(0.05F, 4.0F), random.integer(levels.qmin, levels.qmax)};
    const auto reach = static_cast<float>(levels.qmax - levels.qmin) * p.scale;
    const float x = random.real(-2.0F * reach, 2.0F * reach);
    const auto x0 = static_cast<double>(x);
    const auto s0 = static_cast<double>(p.scale);
    const auto z0 = static_cast<double>(p.zero_point);
    const double error = static_cast<double>(reference::round_half_even(x / p.scale)) - x0 / s0;
    const auto f = [&](double dx, double ds, double dz) {
      const double s = s0 + ds;
      const double z = z0 + dz;
      const double q = std::clamp((x0 + dx) / s + error + z, static_cast<double>(levels.qmin),
                                  static_cast<double>(levels.qmax));
      return (q - z) * s;
    };
    const double q = x0 / s0 + error + z0;
    if (std::fabs(q - levels.qmin) < 0.25 || std::fabs(q - levels.qmax) < 0.25) {
      continue;  // at the edge the surrogate has a kink
    }
    const double h = 1e-6 * s0;
    const double quotient_rounding = std::ldexp(std::fabs(x0 / s0), -24);
    const auto tolerance = [&](double value) {
      return 1e-3 + quotient_rounding + 1e-4 * std::fabs(value);
    };
    const partials d = reference::fake_quantize_derivatives(x, p, levels);
    INFO("x ", x, " scale ", p.scale, " zero point ", p.zero_point, " grid ", levels.qmin, "..",
         levels.qmax);
    const double for_x = (f(h, 0, 0) - f(-h, 0, 0)) / (2 * h);
    const double for_scale = (f(0, h, 0) - f(0, -h, 0)) / (2 * h);
    const double for_zero_point = (f(0, 0, 1e-6) - f(0, 0, -1e-6)) / 2e-6;
    REQUIRE(std::fabs(static_cast<double>(d.x) - for_x) < tolerance(for_x));
    REQUIRE(std::fabs(static_cast<double>(d.scale) - for_scale) < tolerance(for_scale));
    REQUIRE(std::fabs(static_cast<double>(d.zero_point) - for_zero_point) <
            tolerance(for_zero_point));
    clipped += d.x == 0.0F ? 1 : 0;
    ++tried;
  }
  CHECK(tried > 10000);
  CHECK(clipped > 2000);
  CHECK(tried - clipped > 2000);
}

// --------------------------------------------------------------------------------------- backward

namespace {

/// The sums as they are documented, the long way.
class documented_sums {
 public:
  void add(float grad_y, float derivative) {
    terms_.push_back(
        derivative == 0.0F ? 0.0 : static_cast<double>(grad_y) * static_cast<double>(derivative));
  }
  [[nodiscard]] float in_blocks(float factor) const {
    double total = 0.0;
    for (std::size_t first = 0; first < terms_.size(); first += 1024) {
      const auto begin = terms_.begin() + static_cast<std::ptrdiff_t>(first);
      const auto end =
          terms_.begin() + static_cast<std::ptrdiff_t>(std::min(first + 1024, terms_.size()));
      std::array<double, 8> s{};
      for (auto term = begin; term != end; ++term) {
        s[static_cast<std::size_t>(term - begin) % 8] += *term;
      }
      total += ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
    }
    return static_cast<float>(total * static_cast<double>(factor));
  }
  [[nodiscard]] float at_once(float factor) const {
    double total = 0.0;
    for (const double term : terms_) {
      total += term;
    }
    return static_cast<float>(total * static_cast<double>(factor));
  }

 private:
  std::vector<double> terms_;
};

/// Gradients whose sum depends on the order: some are large, and each of these comes back with the
/// other sign.
std::vector<float> cancelling(random_source& random, std::size_t n) {
  std::vector<float> values = random.reals(n, -1.0F, 1.0F);
  constexpr std::size_t gap = 10;
  const std::size_t last = n / gap;
  for (std::size_t i = 0; i < last; ++i) {
    values[i * gap] = random.real(0x1p45F, 0x1p50F);
  }
  for (std::size_t i = 0; i < last; ++i) {
    values[i * gap + 1] = -values[(last - 1 - i) * gap];
  }
  return values;
}

}  // namespace

TEST_CASE("backward: by hand") {
  //          inside, below, above, tie, NaN, on the grid
  const std::vector<float> x = {0.625F, -5.0F, 9.0F, 1.25F, quiet_nan, 1.0F};
  const std::vector<float> grad_y = {2.0F, 3.0F, -4.0F, 8.0F, 100.0F, 16.0F};
  const quant_params p{0.5F, 2};
  constexpr grid levels{0, 7};
  // x / s = 1.25, -10, 18, 2.5, -, 2; r = 1, -10, 18, 2, -, 2; r + z inside 0..7 except the two.
  // dscale = -0.25, -2, 5, -0.5, 0, 0: 2 * -0.25 + 3 * -2 - 4 * 5 + 8 * -0.5 = -30.5
  // dzero_point = 0, -0.5, -0.5, 0, 0, 0: 3 * -0.5 - 4 * -0.5 = 0.5
  const std::vector<float> expected = {2.0F, 0.0F, 0.0F, 8.0F, 0.0F, 16.0F};
  std::vector<float> grad_x(x.size(), 42.0F);
  CHECK(fake_quantize_backward(x, grad_y, p, levels, grad_x) ==
        quant_params_gradient{-30.5F, 0.5F});
  CHECK(difference(grad_x, expected) == "");
  CHECK(fake_quantize_backward(x, grad_y, p, levels, grad_x, 0.25F) ==
        quant_params_gradient{-7.625F, 0.125F});
  CHECK(difference(grad_x, expected) == "");  // the factor is for the parameters alone

  // The same as columns of a 2 x 3 tensor, each with other parameters.
  const channel_quant_params channels{1, {0.5F, 1.0F, 2.0F}, {2, 7, 0}};
  // column 0: 0.625 and 1.25 with s 0.5, z 2: 2 * -0.25 + 8 * -0.5 = -4.5
  // column 1: -5 with s 1, z 7 is inside, NaN: 0
  // column 2: 9 and 1 with s 2, z 0: 4.5 -> 4, -0.5; 0.5 -> 0, -0.5: -4 * -0.5 + 16 * -0.5 = -6
  std::vector<float> scales(3, 42.0F);
  std::vector<float> zero_points(3, 42.0F);
  fake_quantize_backward(tensor_view<const float>(x.data(), {2, 3}),
                         tensor_view<const float>(grad_y.data(), {2, 3}), channels, levels,
                         tensor_view<float>(grad_x.data(), {2, 3}), scales, zero_points);
  CHECK(difference(scales, std::vector<float>{-4.5F, 0.0F, -6.0F}) == "");
  CHECK(difference(zero_points, std::vector<float>{0.0F, 0.0F, 0.0F}) == "");
  CHECK(difference(grad_x, std::vector<float>{2.0F, 3.0F, -4.0F, 8.0F, 0.0F, 16.0F}) == "");
}

TEST_CASE("backward: NaN and infinite gradients stay where the derivative is 0") {
  const quant_params p{1.0F, 0};
  constexpr grid levels{0, 7};
  float grad_x = 42.0F;
  const auto run = [&](float x, float grad_y) {
    return fake_quantize_backward(std::span<const float>(&x, 1), std::span<const float>(&grad_y, 1),
                                  p, levels, std::span<float>(&grad_x, 1));
  };
  for (const float bad : {quiet_nan, infinity, -infinity}) {
    INFO("gradient ", bad);
    quant_params_gradient g = run(3.0F, bad);  // inside, on the grid
    CHECK(same(grad_x, bad));
    CHECK(g == quant_params_gradient{});
    g = run(3.25F, bad);  // inside, off the grid
    CHECK(same(grad_x, bad));
    CHECK(same(g.scale, -bad));
    CHECK(same(g.zero_point, 0.0F));
    g = run(-3.0F, bad);  // below, at the zero point
    CHECK(same(grad_x, 0.0F));
    CHECK(same(g.scale, 0.0F));
    CHECK(same(g.zero_point, -bad));
    g = run(30.0F, bad);  // above
    CHECK(same(grad_x, 0.0F));
    CHECK(same(g.scale, bad));
    CHECK(same(g.zero_point, -bad));
    g = run(quiet_nan, bad);
    CHECK(same(grad_x, 0.0F));
    CHECK(g == quant_params_gradient{});
  }
}

TEST_CASE("backward: the bits of the definitions") {
  random_source random(6);
  INFO("seed ", random.seed());
  for_each_grid(random, [&](const std::vector<float>& x, quant_params p, grid levels) {
    const std::vector<float> grad_y = random.reals(x.size(), -3.0F, 3.0F);
    std::vector<float> expected;
    documented_sums scale;
    documented_sums zero_point;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const partials d = reference::fake_quantize_derivatives(x[i], p, levels);
      expected.push_back(d.x == 1.0F ? grad_y[i] : 0.0F);
      scale.add(grad_y[i], d.scale);
      zero_point.add(grad_y[i], d.zero_point);
    }
    std::vector<float> grad_x(x.size(), 42.0F);
    const quant_params_gradient g = fake_quantize_backward(x, grad_y, p, levels, grad_x, 0.3F);
    CHECK(difference(grad_x, expected) == "");
    CHECK(same(g.scale, scale.in_blocks(0.3F)));
    CHECK(same(g.zero_point, zero_point.in_blocks(0.3F)));
  });
}

TEST_CASE("backward: sums go in blocks of 1024 elements") {
  CHECK(reference::gradient_block == 1024);
  CHECK(reference::gradient_lanes == 8);
  random_source random(7);
  INFO("seed ", random.seed());
  const quant_params p{0.37F, 4};
  constexpr grid levels{-8, 7};
  int differ = 0;
  constexpr std::size_t sizes[] = {0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 5000, 10240, 20001};
  for (const std::size_t n : sizes) {
    for (int round = 0; round < 5; ++round) {
      // Every other time all are above the grid, so that large gradients do cancel.
      const std::vector<float> x = random.reals(n, round % 2 == 0 ? 2.0F : -6.0F, 3.0F);
      const std::vector<float> grad_y = cancelling(random, n);
      documented_sums scale;
      documented_sums zero_point;
      for (std::size_t i = 0; i < n; ++i) {
        const partials d = reference::fake_quantize_derivatives(x[i], p, levels);
        scale.add(grad_y[i], d.scale);
        zero_point.add(grad_y[i], d.zero_point);
      }
      std::vector<float> grad_x(n);
      const quant_params_gradient g = fake_quantize_backward(x, grad_y, p, levels, grad_x);
      INFO("size ", n);
      CHECK(same(g.scale, scale.in_blocks(1.0F)));
      CHECK(same(g.zero_point, zero_point.in_blocks(1.0F)));
      differ += same(zero_point.at_once(1.0F), zero_point.in_blocks(1.0F)) ? 0 : 1;
    }
  }
  CHECK(differ > 0);  // else this has shown nothing
}

namespace {

struct backward_case {
  std::vector<std::size_t> shape;
  channel_quant_params channels;  // no scales: one for the tensor
  quant_params p;
  grid levels;
};

/// Runs both forms on random layouts and compares with the definitions in element order.
void check_backward_of_views(random_source& random, const backward_case& t) {
  constexpr float untouched = 42.125F;
  constexpr float factor = 0.7F;
  const bool per_channel = !t.channels.scales.empty();
  const std::size_t channels = per_channel ? t.channels.scales.size() : 1;
  auto x = test::random_layout<float>(random, t.shape, 0.0F);
  auto grad_y = test::random_layout<float>(random, t.shape, 0.0F);
  auto grad_x = test::random_layout<float>(random, t.shape, untouched);
  std::size_t size = 1;
  for (const std::size_t extent : t.shape) {
    size *= extent;
  }
  const std::vector<float> gradients = cancelling(random, size);
  std::vector<documented_sums> scale(channels);
  std::vector<documented_sums> zero_point(channels);
  auto expected = grad_x.storage;
  std::size_t next = 0;
  test::for_each_index(t.shape, [&](const test::tensor_index& index) {
    x[index] = awkward(random, 9.0F);
    grad_y[index] = gradients[next++];
    const quant_params p = per_channel ? params_at(t.channels, index) : t.p;
    const std::size_t channel = per_channel ? index[t.channels.axis] : 0;
    const partials d = reference::fake_quantize_derivatives(x[index], p, t.levels);
    expected[test::offset_of(grad_x.view, grad_x.storage.data(), index)] =
        d.x == 1.0F ? grad_y[index] : 0.0F;
    scale[channel].add(grad_y[index], d.scale);
    zero_point[channel].add(grad_y[index], d.zero_point);
  });
  std::vector<float> grad_scales(channels, untouched);
  std::vector<float> grad_zero_points(channels, untouched);
  const auto run = [&](tensor_view<float> to) {
    if (per_channel) {
      fake_quantize_backward(x.view, grad_y.view, t.channels, t.levels, to, grad_scales,
                             grad_zero_points, factor);
    } else {
      const quant_params_gradient g =
          fake_quantize_backward(x.view, grad_y.view, t.p, t.levels, to, factor);
      grad_scales[0] = g.scale;
      grad_zero_points[0] = g.zero_point;
    }
    for (std::size_t c = 0; c < channels; ++c) {
      REQUIRE(same(grad_scales[c], scale[c].in_blocks(factor)));
      REQUIRE(same(grad_zero_points[c], zero_point[c].in_blocks(factor)));
    }
  };
  run(grad_x.view);
  REQUIRE(difference(grad_x.storage, expected) == "");
  auto& in_place = random.chance(50) ? x : grad_y;
  run(in_place.view);
  test::for_each_index(t.shape, [&](const test::tensor_index& index) {
    REQUIRE(same(in_place[index], grad_x[index]));
  });
}

}  // namespace

TEST_CASE("backward of views") {
  random_source random(8);
  INFO("seed ", random.seed());
  for (int round = 0; round < 400; ++round) {
    backward_case t;
    t.levels = grids[random.size(0, std::size(grids) - 1)];
    t.p = {random.real(0.01F, 2.0F), random.integer(t.levels.qmin, t.levels.qmax)};
    const bool per_channel = random.chance(60);
    t.shape = test::random_shape(random, per_channel ? 1 : 0);
    if (per_channel) {
      const std::size_t axis = random.size(0, t.shape.size() - 1);
      t.channels = random_channels(random, axis, t.shape[axis], t.levels);
      if (t.shape[axis] == 0) {
        continue;
      }
    }
    check_backward_of_views(random, t);
  }
}

TEST_CASE("backward of views: more channels and elements than are taken together") {
  random_source random(9);
  INFO("seed ", random.seed());
  const std::vector<std::size_t> shapes[] = {{63, 2}, {64, 3}, {65, 4}, {200, 7}, {3, 1500}};
  for (const auto& shape : shapes) {
    for (std::size_t axis = 0; axis < 2; ++axis) {
      backward_case t{shape, {}, {}, {-8, 7}};
      t.channels = random_channels(random, axis, shape[axis], t.levels);
      check_backward_of_views(random, t);
    }
    check_backward_of_views(random, {shape, {}, {0.5F, 1}, {-8, 7}});
  }
}

TEST_CASE("backward of views: term i of a channel goes to lane i % 8, whatever its pieces are") {
  // Two channels of three pieces of nine elements. All are above the grid, so that the derivative
  // for the scale is 7. Terms 9 and 17 are in one lane, where they cancel; in lanes of their own,
  // each would swallow the small terms there.
  const std::vector<float> x(54, 1e6F);
  std::vector<float> grad_y(54, 0.0F);
  const auto term = [&](std::size_t channel, std::size_t i) -> float& {
    return grad_y[(i / 9 * 2 + channel) * 9 + i % 9];
  };
  term(0, 9) = 0x1p60F;
  term(0, 17) = -0x1p60F;
  term(0, 0) = 1.0F;
  term(0, 26) = 2.0F;
  term(1, 3) = 1.0F;
  const channel_quant_params channels{1, {1.0F, 2.0F}, {0, 0}};
  std::vector<float> grad_x(54);
  std::vector<float> scales(2);
  std::vector<float> zero_points(2);
  fake_quantize_backward(tensor_view<const float>(x.data(), {3, 2, 9}),
                         tensor_view<const float>(grad_y.data(), {3, 2, 9}), channels, {-8, 7},
                         tensor_view<float>(grad_x.data(), {3, 2, 9}), scales, zero_points);
  CHECK(scales == std::vector<float>{21.0F, 7.0F});
}

TEST_CASE("backward without elements: the sums are 0") {
  const channel_quant_params p{1, {1.0F, 2.0F}, {0, 0}};
  std::vector<float> scales(2, 42.0F);
  std::vector<float> zero_points(2, 42.0F);
  const tensor_view<const float> nothing(nullptr, {0, 2});
  fake_quantize_backward(nothing, nothing, p, {0, 3}, tensor_view<float>(nullptr, {0, 2}), scales,
                         zero_points);
  CHECK(difference(scales, std::vector<float>(2, 0.0F)) == "");
  CHECK(difference(zero_points, std::vector<float>(2, 0.0F)) == "");
  CHECK(fake_quantize_backward(std::span<const float>(), std::span<const float>(),
                               quant_params{1.0F, 0}, {0, 3},
                               std::span<float>()) == quant_params_gradient{});
}

TEST_CASE("lsq_gradient_factor") {
  CHECK(detent::lsq_gradient_factor(4, {-4, 4}) == 0.25F);
  CHECK(detent::lsq_gradient_factor(1, {0, 1}) == 1.0F);
  CHECK(detent::lsq_gradient_factor(255, {0, 255}) == 1.0F / 255.0F);
  CHECK(detent::lsq_gradient_factor(std::size_t{1} << 40, {0, 65535}) ==
        static_cast<float>(std::ldexp(1.0 / std::sqrt(65535.0), -20)));
  constexpr auto invalid = error_kind::invalid_argument;
  check_error(invalid, {"lsq_gradient_factor", "count is 0"}, [] {
    static_cast<void>(detent::lsq_gradient_factor(0, {0, 1}));
  });
  check_error(invalid, {"lsq_gradient_factor", "qmax 0"}, [] {
    static_cast<void>(detent::lsq_gradient_factor(1, {-5, 0}));
  });
}

// ----------------------------------------------------------------------------------------- errors

TEST_CASE("fake_quantize and its gradients refuse") {
  constexpr auto invalid = error_kind::invalid_argument;
  constexpr auto mismatch = error_kind::shape_mismatch;
  constexpr grid good{0, 15};
  const std::vector<float> x(6, 1.0F);
  std::vector<float> y(6, 42.0F);
  std::vector<float> grad_scales(3, 42.0F);
  std::vector<float> grad_zero_points(3, 42.0F);
  const tensor_view<const float> x_view(x.data(), {2, 3});
  const tensor_view<float> y_view(y.data(), {2, 3});

  // All forms with the same parameters.
  const auto refuse = [&](error_kind kind, std::initializer_list<std::string_view> words,
                          quant_params p, grid levels) {
    const channel_quant_params channels{
        1, {1.0F, 1.0F, p.scale}, {levels.qmin, levels.qmin, p.zero_point}};
    check_error(kind, words, [&] { fake_quantize(x, y, p, levels); });
    check_error(kind, words, [&] { fake_quantize(x_view, y_view, p, levels); });
    check_error(kind, words, [&] { fake_quantize(x_view, y_view, channels, levels); });
    check_error(kind, words, [&] { fake_quantize_backward(x, x, p, levels, y); });
    check_error(kind, words, [&] { fake_quantize_backward(x_view, x_view, p, levels, y_view); });
    check_error(kind, words, [&] {
      fake_quantize_backward(x_view, x_view, channels, levels, y_view, grad_scales,
                             grad_zero_points);
    });
  };
  for (const float scale : {0.0F, -1.0F, quiet_nan, infinity}) {
    refuse(invalid, {"fake_quantize", "scale"}, {scale, 3}, good);
  }
  refuse(invalid, {"fake_quantize", "zero point -1", "0..15"}, {1.0F, -1}, good);
  refuse(invalid, {"fake_quantize", "zero point 16", "0..15"}, {1.0F, 16}, good);
  refuse(invalid, {"fake_quantize", "grid 5..5"}, {1.0F, 5}, {5, 5});
  refuse(invalid, {"fake_quantize", "grid 6..5"}, {1.0F, 5}, {6, 5});
  refuse(invalid, {"fake_quantize", "grid 0..65536"}, {1.0F, 5}, {0, 65536});
  refuse(invalid, {"fake_quantize", "grid -32769..5"}, {1.0F, 5}, {-32769, 5});
  refuse(invalid, {"fake_quantize", "grid -1..65535"}, {1.0F, 5}, {-1, 65535});
  constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t highest = std::numeric_limits<std::int32_t>::max();
  refuse(invalid, {"fake_quantize", "grid"}, {1.0F, 5}, {lowest, highest});

  const quant_params p{1.0F, 3};
  const channel_quant_params channels{1, {1.0F, 1.0F, 1.0F}, {0, 0, 0}};
  const std::span<const float> in(x);
  const std::span<float> out(y);
  check_error(mismatch, {"fake_quantize", "6", "5", "y"},
              [&] { fake_quantize(in, out.first(5), p, good); });
  check_error(mismatch, {"fake_quantize_backward", "6", "5", "grad_y"},
              [&] { fake_quantize_backward(in, in.first(5), p, good, out); });
  check_error(mismatch, {"fake_quantize_backward", "6", "5", "grad_x"},
              [&] { fake_quantize_backward(in, in, p, good, out.first(5)); });
  check_error(mismatch, {"fake_quantize", "rank 2", "1"},
              [&] { fake_quantize(x_view, tensor_view<float>(y.data(), {6}), p, good); });
  check_error(mismatch, {"fake_quantize", "dimension 0"}, [&] {
    fake_quantize(x_view, tensor_view<float>(y.data(), {3, 2}), channels, good);
  });
  check_error(invalid, {"fake_quantize", "null", "6"}, [&] {
    fake_quantize(std::span<const float>(static_cast<const float*>(nullptr), 6), out, p, good);
  });
  check_error(invalid, {"fake_quantize_backward", "null", "6"}, [&] {
    fake_quantize_backward(in, in, p, good, std::span<float>(static_cast<float*>(nullptr), 6));
  });
  check_error(invalid, {"fake_quantize", "axis 2", "rank 2"}, [&] {
    fake_quantize(x_view, y_view, channel_quant_params{2, {1.0F}, {0}}, good);
  });
  check_error(mismatch, {"fake_quantize", "2 scales", "3 zero points", "3 channels"}, [&] {
    fake_quantize(x_view, y_view, channel_quant_params{1, {1.0F, 1.0F}, {0, 0, 0}}, good);
  });
  check_error(mismatch, {"fake_quantize_backward", "2 scales", "3 zero points"}, [&] {
    fake_quantize_backward(x_view, x_view, channels, good, y_view,
                           std::span<float>(grad_scales).first(2), grad_zero_points);
  });
  check_error(mismatch, {"fake_quantize_backward", "3 scales", "0 zero points"}, [&] {
    fake_quantize_backward(x_view, x_view, channels, good, y_view, grad_scales, {});
  });
  for (const float factor : {0.0F, -1.0F, quiet_nan, infinity}) {
    check_error(invalid, {"fake_quantize_backward", "gradient factor"},
                [&] { fake_quantize_backward(x, x, p, good, y, factor); });
    check_error(invalid, {"fake_quantize_backward", "gradient factor"}, [&] {
      fake_quantize_backward(x_view, x_view, channels, good, y_view, grad_scales, grad_zero_points,
                             factor);
    });
  }
  CHECK(y == std::vector<float>(6, 42.0F));
  CHECK(grad_scales == std::vector<float>(3, 42.0F));
  CHECK(grad_zero_points == std::vector<float>(3, 42.0F));
}
