// SPDX-License-Identifier: BSD-3-Clause
// The definitions themselves, against values derived by hand and against wider arithmetic.
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using detent::full_grid;
using detent::grid;
using detent::narrow_grid;
using detent::params_from_range;
using detent::quant_params;
using detent::quant_scheme;
using detent::value_range;
using test::random_source;
using test::same;
namespace reference = detent::reference;

using u8 = std::uint8_t;
using s8 = std::int8_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float flt_min = std::numeric_limits<float>::min();
constexpr float denorm_min = std::numeric_limits<float>::denorm_min();

}  // namespace

// --------------------------------------------------------------------------------------- rounding

TEST_CASE("round_half_even: the table of ties") {
  struct row {
    float x, rounded;
  };
  constexpr row table[] = {
      {-3.5F, -4.0F},
      {-2.5F, -2.0F},
      {-1.5F, -2.0F},
      {-0.5F, -0.0F},
      {0.5F, 0.0F},
      {1.5F, 2.0F},
      {2.5F, 2.0F},
      {3.5F, 4.0F},
      {126.5F, 126.0F},
      {127.5F, 128.0F},
      {4194303.5F, 4194304.0F},
      {8388606.5F, 8388606.0F},
      {8388607.5F, 8388608.0F},
      {-8388607.5F, -8388608.0F},
      // one step away from a tie
      {0x1.fffffep-2F, 0.0F},
      {0x1.000002p-1F, 1.0F},
      {0x1.7ffffep+0F, 1.0F},
      {0x1.800002p+0F, 2.0F},
      {0x1.3ffffep+1F, 2.0F},
      {0x1.400002p+1F, 3.0F},
      {-0x1.fffffep-2F, -0.0F},
      {-0x1.000002p-1F, -1.0F},
      // no tie
      {0.0F, 0.0F},
      {-0.0F, -0.0F},
      {1.0F, 1.0F},
      {-7.0F, -7.0F},
      {denorm_min, 0.0F},
      {-denorm_min, -0.0F},
      {8388608.0F, 8388608.0F},
      {8388609.0F, 8388609.0F},
      {-16777215.0F, -16777215.0F},
      {flt_max, flt_max},
      {infinity, infinity},
      {-infinity, -infinity},
  };
  for (const row& r : table) {
    INFO("x ", r.x);
    CHECK(same(reference::round_half_even(r.x), r.rounded));
  }
  CHECK(std::isnan(reference::round_half_even(quiet_nan)));
}

TEST_CASE("round_half_even is nearbyint, and does not depend on the rounding mode") {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 65537) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (int k = -600; k <= 600; ++k) {
    values.push_back(static_cast<float>(k) / 4.0F);
    values.push_back(std::nextafter(static_cast<float>(k) / 4.0F, infinity));
  }
  std::vector<float> expected;
  for (const float x : values) {
    expected.push_back(std::nearbyint(x));
  }
  for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::vector<float> rounded(values.size());
    std::fesetround(mode);
    for (std::size_t i = 0; i < values.size(); ++i) {
      rounded[i] = reference::round_half_even(values[i]);
    }
    std::fesetround(FE_TONEAREST);
    INFO("mode ", mode);
    CHECK(test::difference(rounded, expected) == "");
  }
}

// ---------------------------------------------------------------------------------------- to_grid

TEST_CASE("to_grid: NaN, infinities, bounds") {
  constexpr grid levels{3, 200};
  CHECK(reference::to_grid(quiet_nan, 77, levels) == 77);
  CHECK(reference::to_grid(-quiet_nan, 3, levels) == 3);
  CHECK(reference::to_grid(infinity, 77, levels) == 200);
  CHECK(reference::to_grid(-infinity, 77, levels) == 3);
  CHECK(reference::to_grid(flt_max, 77, levels) == 200);
  CHECK(reference::to_grid(-flt_max, 77, levels) == 3);
  CHECK(reference::to_grid(0.0F, 77, levels) == 77);
  CHECK(reference::to_grid(-0.0F, 77, levels) == 77);
  CHECK(reference::to_grid(denorm_min, 77, levels) == 77);
  // The zero point is added after rounding: the tie is even or odd without it.
  CHECK(reference::to_grid(0.5F, 77, levels) == 77);
  CHECK(reference::to_grid(1.5F, 77, levels) == 79);
  CHECK(reference::to_grid(-0.5F, 77, levels) == 77);
  CHECK(reference::to_grid(-1.5F, 77, levels) == 75);
  // 200 - 77 = 123 steps up, 3 - 77 = -74 down.
  CHECK(reference::to_grid(122.5F, 77, levels) == 199);
  CHECK(reference::to_grid(123.0F, 77, levels) == 200);
  CHECK(reference::to_grid(123.5F, 77, levels) == 200);
  CHECK(reference::to_grid(-73.5F, 77, levels) == 3);
  CHECK(reference::to_grid(-74.5F, 77, levels) == 3);
  CHECK(reference::to_grid(-72.5F, 77, levels) == 5);
  // One level only.
  CHECK(reference::to_grid(9.0F, 5, {5, 5}) == 5);
  CHECK(reference::to_grid(-infinity, 5, {5, 5}) == 5);
}

TEST_CASE("clamping before rounding is clamping after it") {
  for (const grid levels :
       {full_grid<u8>, full_grid<s8>, narrow_grid<s8>, grid{-7, 7}, grid{3, 200}}) {
    for (std::int32_t zero_point = levels.qmin; zero_point <= levels.qmax; zero_point += 3) {
      for (int quarter = -1100; quarter <= 1100; ++quarter) {
        const double steps = quarter / 4.0;
        const double q = std::nearbyint(steps) + zero_point;
        const double clamped = std::fmin(std::fmax(q, levels.qmin), levels.qmax);
        if (reference::to_grid(static_cast<float>(steps), zero_point, levels) != clamped) {
          FAIL("steps ", steps, " zero point ", zero_point);
        }
      }
    }
  }
}

TEST_CASE("quantize divides as IEEE does") {
  // A quotient that is rounded to double and then to float is rounded correctly: 53 >= 2 * 24 + 2.
  random_source random(1);
  INFO("seed ", random.seed());
  for (int i = 0; i < 20000; ++i) {
    const float scale = std::bit_cast<float>(random.integer<std::uint32_t>(0x1U, 0x7F7FFFFFU));
    const float x = i % 2 == 0 ? random.any_float() : random.real(-300.0F, 300.0F) * scale;
    const double quotient = static_cast<double>(x) / static_cast<double>(scale);
    const auto steps = static_cast<float>(quotient);
    CHECK(reference::quantize(x, {scale, 11}, full_grid<u8>) ==
          reference::to_grid(steps, 11, full_grid<u8>));
  }
  CHECK(reference::quantize(1.0F, {0.1F, 0}, full_grid<s8>) == 10);
  CHECK(reference::quantize(quiet_nan, {0.1F, -3}, full_grid<s8>) == -3);
}

TEST_CASE("dequantize") {
  CHECK(reference::dequantize(255, {0.5F, 1}) == 127.0F);
  CHECK(reference::dequantize(-128, {0.1F, 127}) == -255.0F * 0.1F);
  CHECK(same(reference::dequantize(7, {3.0F, 7}), 0.0F));
}

TEST_CASE("requantize") {
  CHECK(reference::requantize(5, 0.5F, 0, full_grid<s8>) == 2);
  CHECK(reference::requantize(7, 0.5F, 0, full_grid<s8>) == 4);
  CHECK(reference::requantize(-5, 0.5F, 10, full_grid<s8>) == 8);
  CHECK(reference::requantize(std::numeric_limits<std::int32_t>::min(), flt_max, 1,
                              full_grid<s8>) == -128);
  CHECK(reference::requantize(std::numeric_limits<std::int32_t>::max(), denorm_min, 1,
                              full_grid<u8>) == 1);
  // 2^24 + 1 becomes 2^24, so that this is a tie: 0.5 and not a little more.
  CHECK(reference::requantize(16777217, 0x1p-25F, 0, full_grid<u8>) == 0);
  CHECK(reference::requantize(16777219, 0x1p-25F, 0, full_grid<u8>) == 1);
}

TEST_CASE("requantize_multiplier rounds after each operation") {
  CHECK(reference::requantize_multiplier(0.5F, 0.25F, 2.0F) == 0.0625F);
  // (1 + 2^-23)^2 = 1 + 2^-22 + 2^-46
  CHECK(reference::requantize_multiplier(0x1.000002p0F, 0x1.000002p0F, 1.0F) == 0x1.000004p0F);
  CHECK(reference::requantize_multiplier(1e30F, 1e30F, 1e30F) == infinity);
  CHECK(reference::requantize_multiplier(1e-30F, 1e-30F, 1e-30F) == 0.0F);
  random_source random(2);
  INFO("seed ", random.seed());
  int rounded_twice = 0;
  for (int i = 0; i < 1000; ++i) {
    const float a = random.real(0.001F, 1.0F);
    const float b = random.real(0.001F, 1.0F);
    const float c = random.real(0.001F, 1.0F);
    const auto product = static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
    const auto twice = static_cast<float>(static_cast<double>(product) / static_cast<double>(c));
    CHECK(reference::requantize_multiplier(a, b, c) == twice);
    const double exact = static_cast<double>(a) * static_cast<double>(b) / static_cast<double>(c);
    rounded_twice += static_cast<float>(exact) != twice ? 1 : 0;
  }
  CHECK(rounded_twice > 0);  // else this has shown nothing
}

// ------------------------------------------------------------------------------ params_from_range

TEST_CASE("params_from_range: by hand") {
  struct row {
    const char* name;
    value_range range;
    quant_scheme scheme;
    quant_params expected;
  };
  constexpr quant_scheme symmetric_full_s8{full_grid<s8>, true};
  constexpr quant_scheme asymmetric_narrow_s8{narrow_grid<s8>, false};
  constexpr quant_scheme asymmetric_narrow_u8{narrow_grid<u8>, false};
  constexpr quant_scheme symmetric_narrow_u8{narrow_grid<u8>, true};
  constexpr auto asymmetric_u8 = detent::asymmetric<u8>;
  constexpr auto asymmetric_s8 = detent::asymmetric<s8>;
  constexpr auto symmetric_u8 = detent::symmetric<u8>;
  constexpr auto symmetric_s8 = detent::symmetric<s8>;
  // 2/255 rounds up to float, so that -1 lies a little less than 127.5 steps below zero.
  const float two_over_255 = 2.0F / 255.0F;
  const row rows[] = {
      {"as stored", {0.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"as stored, signed", {-128.0F, 127.0F}, asymmetric_s8, {1.0F, 0}},
      {"signed range in u8", {-128.0F, 127.0F}, asymmetric_u8, {1.0F, 128}},
      {"unsigned range in s8", {0.0F, 255.0F}, asymmetric_s8, {1.0F, -128}},
      {"zero is included from below", {10.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"zero is included from above", {-255.0F, -10.0F}, asymmetric_u8, {1.0F, 255}},
      {"negative in s8", {-255.0F, -10.0F}, asymmetric_s8, {1.0F, 127}},
      {"one point", {51.0F, 51.0F}, asymmetric_u8, {0.2F, 0}},
      {"-1..1", {-1.0F, 1.0F}, asymmetric_u8, {two_over_255, 127}},
      {"-1..1 signed", {-1.0F, 1.0F}, asymmetric_s8, {two_over_255, -1}},
      {"tie to even, down", {-2.5F, 252.5F}, asymmetric_u8, {1.0F, 2}},
      {"tie to even, up", {-3.5F, 251.5F}, asymmetric_u8, {1.0F, 4}},
      {"tie, signed", {-2.5F, 252.5F}, asymmetric_s8, {1.0F, -126}},
      {"narrow s8", {-127.0F, 127.0F}, asymmetric_narrow_s8, {1.0F, 0}},
      {"narrow u8", {0.0F, 254.0F}, asymmetric_narrow_u8, {1.0F, 1}},
      {"four bits", {-3.0F, 12.0F}, {{0, 15}, false}, {1.0F, 3}},
      {"odd grid", {0.0F, 197.0F}, {{3, 200}, false}, {1.0F, 3}},
      {"symmetric, lower counts", {-127.0F, 50.0F}, symmetric_s8, {1.0F, 0}},
      {"symmetric, upper counts", {-50.0F, 254.0F}, symmetric_s8, {2.0F, 0}},
      {"symmetric, positive range", {100.0F, 127.0F}, symmetric_s8, {1.0F, 0}},
      {"symmetric, whole s8", {-127.0F, 1.0F}, symmetric_full_s8, {1.0F, 0}},
      {"symmetric u8", {-254.0F, 10.0F}, symmetric_u8, {2.0F, 128}},
      {"symmetric narrow u8", {-127.0F, 10.0F}, symmetric_narrow_u8, {1.0F, 128}},
      {"symmetric four bits", {-14.0F, 3.0F}, {{-8, 7}, true}, {2.0F, 0}},
      {"symmetric, below zero", {-8.0F, 8.0F}, {{-10, -1}, true}, {2.0F, -5}},
      {"empty", {0.0F, 0.0F}, asymmetric_u8, {1.0F, 0}},
      {"empty s8", {0.0F, 0.0F}, asymmetric_s8, {1.0F, -128}},
      {"empty, symmetric", {0.0F, 0.0F}, symmetric_s8, {1.0F, 0}},
      {"empty, symmetric u8", {0.0F, 0.0F}, symmetric_u8, {1.0F, 128}},
      {"negative zeros", {-0.0F, -0.0F}, asymmetric_u8, {1.0F, 0}},
      {"the smallest number", {0.0F, denorm_min}, asymmetric_u8, {flt_min, 0}},
      {"the smallest number below", {-denorm_min, 0.0F}, asymmetric_u8, {flt_min, 0}},
      {"the smallest number, symmetric", {-denorm_min, 0.0F}, symmetric_s8, {flt_min, 0}},
      {"the smallest scale is exact", {0.0F, 255.0F * flt_min}, asymmetric_u8, {flt_min, 0}},
      {"just as large", {-128.0F * flt_min, 127.0F * flt_min}, asymmetric_u8, {flt_min, 128}},
      {"the scale is not smaller", {-64.0F * flt_min, 0.0F}, asymmetric_u8, {flt_min, 64}},
      {"large", {0.0F, 0x1.fep+127F}, asymmetric_u8, {0x1p+120F, 0}},
  };
  for (const row& r : rows) {
    INFO(std::string(r.name));
    const quant_params p = params_from_range(r.range, r.scheme);
    CHECK(p.scale == r.expected.scale);
    CHECK(p.zero_point == r.expected.zero_point);
  }
}

TEST_CASE("params_from_range: the scale rounds up where rounding down leaves an end uncovered") {
  // Half of the quotients round down to float and need the step up; none may be raised twice.
  for (const quant_scheme scheme : {detent::asymmetric<u8>, detent::symmetric<s8>}) {
    for (int i = 1; i < 1000; ++i) {
      const float upper = static_cast<float>(i) / 7.0F;
      const quant_params p = params_from_range({0.0F, upper}, scheme);
      const double steps = scheme.symmetric ? 127.0 : 255.0;
      CHECK(static_cast<double>(p.scale) * steps >= static_cast<double>(upper));
      const float below = std::nextafter(p.scale, 0.0F);
      CHECK(static_cast<double>(below) * steps < static_cast<double>(upper));
    }
  }
}

TEST_CASE("params_from_range: both ends and zero can be represented") {
  random_source random(3);
  INFO("seed ", random.seed());
  const quant_scheme schemes[] = {
      detent::asymmetric<u8>, detent::asymmetric<s8>,   detent::symmetric<u8>,
      detent::symmetric<s8>,  {narrow_grid<u8>, false}, {narrow_grid<s8>, false},
      {full_grid<s8>, true},  {{0, 15}, false},         {{-8, 7}, true},
      {{3, 200}, false},      {{-7, 7}, false},         {{0, 1}, false},
  };
  for (int round = 0; round < 20000; ++round) {
    float a = random.any_float();
    float b = random.chance(50) ? random.any_float() : a * random.real(-1.5F, 1.5F);
    // Beyond this, the real that an end is rounded to may itself overflow.
    if (!(std::fabs(a) < 1e38F && std::fabs(b) < 1e38F)) {
      continue;
    }
    if (a > b) {
      std::swap(a, b);
    }
    const quant_scheme scheme = schemes[random.size(0, std::size(schemes) - 1)];
    const grid levels = scheme.levels;
    const quant_params p = params_from_range({a, b}, scheme);
    INFO("range ", a, " .. ", b, " grid ", levels.qmin, "..", levels.qmax, " scale ", p.scale,
         " zero point ", p.zero_point);
    REQUIRE(std::isfinite(p.scale));
    REQUIRE(p.scale >= flt_min);
    REQUIRE(p.zero_point >= levels.qmin);
    REQUIRE(p.zero_point <= levels.qmax);
    CHECK(reference::quantize(0.0F, p, levels) == p.zero_point);
    CHECK(same(reference::dequantize(p.zero_point, p), 0.0F));
    // Half a step, and what the operations on the way round off.
    const double allowed = 0.5 * static_cast<double>(p.scale) * (1.0 + 1e-4);
    for (const float end : {a, b}) {
      const float back = reference::dequantize(reference::quantize(end, p, levels), p);
      CHECK(std::fabs(static_cast<double>(back) - static_cast<double>(end)) <= allowed);
    }
  }
}

TEST_CASE("params_from_range: the largest ranges") {
  for (const quant_scheme scheme : {detent::asymmetric<u8>, detent::asymmetric<s8>,
                                    detent::symmetric<u8>, detent::symmetric<s8>}) {
    for (const value_range range : {value_range{-flt_max, flt_max}, value_range{0.0F, flt_max},
                                    value_range{-flt_max, 0.0F}}) {
      const quant_params p = params_from_range(range, scheme);
      CHECK(std::isfinite(p.scale));
      const double steps = scheme.symmetric ? 127.0 : 255.0;
      const double extent =
          scheme.symmetric ? static_cast<double>(flt_max)
                           : static_cast<double>(range.upper) - static_cast<double>(range.lower);
      CHECK(static_cast<double>(p.scale) * steps >= extent);
      CHECK(p.zero_point >= scheme.levels.qmin);
      CHECK(p.zero_point <= scheme.levels.qmax);
    }
  }
}

// The scale must be a positive finite number whatever the grid.
TEST_CASE("params_from_range: grids of two levels") {
  CHECK(params_from_range({0.0F, 3.0F}, {{0, 1}, false}) == quant_params{3.0F, 0});
  CHECK(params_from_range({-3.0F, 0.0F}, {{0, 1}, false}) == quant_params{3.0F, 1});
  // Symmetric about 1, there is a step below and none above.
  bool refused = false;
  quant_params p;
  try {
    p = params_from_range({-1.0F, 3.0F}, {{0, 1}, true});
  } catch (const detent::error&) {
    refused = true;
  }
  CHECK((refused || (std::isfinite(p.scale) && p.scale > 0.0F)));
}

// ------------------------------------------------------------------------------------------- rest

TEST_CASE("clamp") {
  CHECK(reference::clamp(2.0F, 0.0F, 6.0F) == 2.0F);
  CHECK(reference::clamp(-2.0F, 0.0F, 6.0F) == 0.0F);
  CHECK(reference::clamp(7.0F, 0.0F, 6.0F) == 6.0F);
  CHECK(reference::clamp(infinity, 0.0F, 6.0F) == 6.0F);
  CHECK(reference::clamp(-infinity, -infinity, infinity) == -infinity);
  for (const float x : {-5.0F, 0.0F, 5.0F}) {
    CHECK(reference::clamp(x, 1.0F, -1.0F) == -1.0F);  // crossed: upper wins
  }
  CHECK(std::isnan(reference::clamp(quiet_nan, 0.0F, 6.0F)));
  CHECK(same(reference::clamp(-0.0F, 0.0F, 6.0F), -0.0F));  // equal to the bound, so not raised
}

TEST_CASE("min_max") {
  const float values[] = {3.0F, quiet_nan, -0.0F, 7.0F, -quiet_nan};
  CHECK(reference::min_max(values, 5) == reference::min_max_result{0.0F, 7.0F, 2});
  CHECK(same(reference::min_max(values, 3).lower, 0.0F));
  CHECK(reference::min_max(values, 0) == reference::min_max_result{infinity, -infinity, 0});
  CHECK(reference::min_max(values + 1, 1) == reference::min_max_result{infinity, -infinity, 1});
}

TEST_CASE("larger: NaN stays, the first of equal zeros stays") {
  struct row {
    float best, x, result;
  };
  const row rows[] = {{1.0F, 2.0F, 2.0F},
                      {2.0F, 1.0F, 2.0F},
                      {-infinity, -flt_max, -flt_max},
                      {flt_max, infinity, infinity},
                      {0.0F, denorm_min, denorm_min},
                      {0.0F, -0.0F, 0.0F},
                      {-0.0F, 0.0F, -0.0F},
                      {quiet_nan, infinity, quiet_nan},
                      {infinity, quiet_nan, quiet_nan},
                      {quiet_nan, -quiet_nan, -quiet_nan}};
  for (const row& r : rows) {
    CAPTURE(r.best);
    CAPTURE(r.x);
    CHECK(same(reference::larger(r.best, r.x), r.result));
  }
  CHECK(reference::larger(u8{255}, u8{0}) == 255);
  CHECK(reference::larger(s8{-128}, s8{127}) == 127);
}

TEST_CASE("dot") {
  const std::uint8_t lhs[] = {0, 255, 7};
  const std::int8_t rhs[] = {-128, 99, 127, 99, 5, 99};  // every other one
  CHECK(reference::dot(lhs, rhs, 2, 3, 0, 0, 10) == 255 * 127 + 7 * 5 + 10);
  CHECK(reference::dot(lhs, rhs, 2, 3, 255, -128, -1) == -248 * 133 - 1);
  CHECK(reference::dot(lhs, rhs, 2, 0, 255, -128, -1) == -1);
  // Fused: the product is not rounded, so that what it rounds off remains.
  const float a[] = {0x1.000002p0F};
  const float b[] = {0x1.000002p0F};
  CHECK(reference::dot(a, b, 1, 1, -0x1.000004p0F) == 0x1p-46F);
  CHECK(same(reference::dot(a, b, 1, 0, -0.0F), -0.0F));
}

TEST_CASE("grids and schemes") {
  CHECK(full_grid<u8> == grid{0, 255});
  CHECK(full_grid<s8> == grid{-128, 127});
  CHECK(narrow_grid<u8> == grid{1, 255});
  CHECK(narrow_grid<s8> == grid{-127, 127});
  CHECK(detent::symmetric<s8>.levels == narrow_grid<s8>);
  CHECK(detent::symmetric<u8>.levels == full_grid<u8>);
  CHECK(detent::asymmetric<s8>.levels == full_grid<s8>);
}
