// SPDX-License-Identifier: BSD-3-Clause
// The rules of other tools: vectors derived by hand, what ONNX Runtime returned for the golden
// data, what other tools' own code returned, and what the rules refuse.
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <detent/scale_rules.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::full_grid;
using detent::grid;
using detent::narrow_grid;
using detent::params_from_range;
using detent::power_of_two_rounding;
using detent::project_to_power_of_two;
using detent::quant_params;
using detent::quant_scheme;
using detent::scale_rule;
using detent::value_range;
using test::check_error;
using test::random_source;
namespace reference = detent::reference;

using u8 = std::uint8_t;
using s8 = std::int8_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float flt_min = std::numeric_limits<float>::min();
constexpr float flt_epsilon = std::numeric_limits<float>::epsilon();
constexpr float denorm_min = std::numeric_limits<float>::denorm_min();

constexpr auto asymmetric_u8 = detent::asymmetric<u8>;
constexpr auto asymmetric_s8 = detent::asymmetric<s8>;
constexpr auto narrow_s8 = detent::symmetric<s8>;
constexpr quant_scheme full_s8{full_grid<s8>, true};
constexpr quant_scheme symmetric_u8{full_grid<u8>, true};
constexpr quant_scheme reduced_u8{{0, 127}, false};
constexpr quant_scheme symmetric_reduced_u8{{0, 127}, true};
constexpr quant_scheme reduced_s8{{-64, 64}, true};

// With x = 2^-8: (2 FLT_MAX) / 255 = 2^121 (1 - x^3) / (1 - x) = 2^121 (1 + x + x^2), exactly. And
// FLT_MAX divided by that is 128 (1 - x) = 127.5, exactly.
constexpr float twice_flt_max_over_255 = 0x1.0101p+121F;
constexpr float flt_max_over_255 = 0x1.0101p+120F;
// With x = 2^-7: FLT_MAX / 127 = 2^121 (1 - 2^-24) / (1 - x)
//   = 2^121 (1 + x + x^2 + x^3 - 2^-24 + 2^-28 - ...), and what follows x^3 is less than half a
//   step.
constexpr float flt_max_over_127 = 0x1.020408p+121F;

struct vector {
  const char* name;
  value_range range;
  quant_scheme scheme;
  quant_params expected;
};

void check_vectors(scale_rule rule, std::span<const vector> vectors) {
  for (const vector& v : vectors) {
    INFO(std::string(detent::name(rule)), ": ", std::string(v.name));
    const quant_params p = params_from_range(v.range, v.scheme, rule);
    CHECK(p.scale == v.expected.scale);
    CHECK(p.zero_point == v.expected.zero_point);
  }
}

constexpr scale_rule all_rules[] = {scale_rule::canonical, scale_rule::ppq,  scale_rule::ort,
                                    scale_rule::inc,       scale_rule::nncf, scale_rule::torch,
                                    scale_rule::tensorrt};

/// Some scheme that every one of the rules but `tensorrt` has, or its symmetric counterpart.
[[nodiscard]] quant_scheme scheme_for(scale_rule rule, bool symmetric) {
  return symmetric || rule == scale_rule::tensorrt ? narrow_s8 : asymmetric_u8;
}

/// A range with ends of any magnitude below `limit`, or as a tensor has them.
[[nodiscard]] value_range random_range(random_source& random, float limit) {
  while (true) {
    float a = random.chance(50) ? random.any_float() : random.real(-20.0F, 20.0F);
    float b = random.chance(30) ? random.any_float() : a * random.real(-1.5F, 1.5F);
    if (std::fabs(a) < limit && std::fabs(b) < limit) {
      if (a > b) {
        std::swap(a, b);
      }
      return {a, b};
    }
  }
}

}  // namespace

// ------------------------------------------------------------------------------- vectors by hand

TEST_CASE("canonical is the overload without a rule") {
  random_source random(11);
  INFO("seed ", random.seed());
  for (int i = 0; i < 2000; ++i) {
    const value_range range = random_range(random, 1e38F);
    for (const quant_scheme scheme : {asymmetric_u8, asymmetric_s8, narrow_s8, symmetric_u8}) {
      CHECK(params_from_range(range, scheme, scale_rule::canonical) ==
            params_from_range(range, scheme));
    }
  }
}

TEST_CASE("ppq") {
  const vector vectors[] = {
      // scale = (upper - lower) / 255, zero_point = round(-lower / scale)
      {"as stored", {0.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"zero is included from below", {10.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"zero is included from above", {-255.0F, -10.0F}, asymmetric_u8, {1.0F, 255}},
      {"tie to even, down", {-2.5F, 252.5F}, asymmetric_u8, {1.0F, 2}},
      {"tie to even, up", {-3.5F, 251.5F}, asymmetric_u8, {1.0F, 4}},
      // qmin is left out: 128 and 255 where 0 and 127 are meant
      {"outside the grid", {-128.0F, 127.0F}, asymmetric_s8, {1.0F, 128}},
      {"far outside the grid", {-255.0F, 0.0F}, asymmetric_s8, {1.0F, 255}},
      {"below the grid", {0.0F, 197.0F}, {{3, 200}, false}, {1.0F, 0}},
      // 2 * 127.5 / 255, and 2 * 127 / 254 on the narrow grid
      {"symmetric divides by 127.5", {-1.0F, 127.5F}, full_s8, {1.0F, 0}},
      {"narrow divides by 127", {-127.0F, 5.0F}, narrow_s8, {1.0F, 0}},
      {"symmetric unsigned has no middle", {-127.5F, 5.0F}, symmetric_u8, {1.0F, 0}},
      {"symmetric four bits", {-15.0F, 3.0F}, {{-8, 7}, true}, {2.0F, 0}},
      // the floor
      {"empty", {0.0F, 0.0F}, asymmetric_u8, {1e-8F, 0}},
      {"empty, symmetric", {0.0F, 0.0F}, full_s8, {1e-8F, 0}},
      {"negative zeros", {-0.0F, -0.0F}, asymmetric_u8, {1e-8F, 0}},
      {"tiny", {-denorm_min, 1e-30F}, asymmetric_u8, {1e-8F, 0}},
      // -1e-7 is 10 steps of the floor: float(1e-7) / 1e-8 = 10.0000001
      {"steps of the floor", {-1e-7F, 1e-7F}, asymmetric_u8, {1e-8F, 10}},
      // 127.5 is a tie
      {"huge", {-flt_max, flt_max}, asymmetric_u8, {twice_flt_max_over_255, 128}},
      {"huge, one side", {0.0F, flt_max}, asymmetric_u8, {flt_max_over_255, 0}},
      {"huge, symmetric", {-flt_max, 0.0F}, full_s8, {twice_flt_max_over_255, 0}},
  };
  check_vectors(scale_rule::ppq, vectors);
}

TEST_CASE("ort") {
  const vector vectors[] = {
      // scale = (upper - lower) / steps, zero_point = round(qmin - lower / scale)
      {"as stored", {0.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"signed", {-128.0F, 127.0F}, asymmetric_s8, {1.0F, 0}},
      {"zero is included from below", {10.0F, 255.0F}, asymmetric_s8, {1.0F, -128}},
      {"zero is included from above", {-255.0F, -10.0F}, asymmetric_s8, {1.0F, 127}},
      {"tie to even, down", {-2.5F, 252.5F}, asymmetric_u8, {1.0F, 2}},
      {"tie to even, up", {-3.5F, 251.5F}, asymmetric_u8, {1.0F, 4}},
      {"tie, signed", {-2.5F, 252.5F}, asymmetric_s8, {1.0F, -126}},
      // -127 + 2.5 = -124.5 rounds to -124; -127 + round(2.5) would be -125
      {"the sum is rounded", {-2.5F, 252.5F}, {{-127, 128}, false}, {1.0F, -124}},
      {"narrow", {-127.0F, 127.0F}, {narrow_grid<s8>, false}, {1.0F, 0}},
      {"reduced", {-3.0F, 124.0F}, reduced_u8, {1.0F, 3}},
      {"four bits", {-3.0F, 12.0F}, {{0, 15}, false}, {1.0F, 3}},
      // (qmin + qmax) / 2 = 0, -0.5, 127, 127.5, 63.5: ties to even
      {"symmetric", {-127.0F, 3.0F}, narrow_s8, {1.0F, 0}},
      {"symmetric, whole grid", {-3.0F, 127.5F}, full_s8, {1.0F, 0}},
      {"symmetric u8 of the tool", {-127.0F, 3.0F}, {{0, 254}, true}, {1.0F, 127}},
      {"symmetric u8", {-127.5F, 3.0F}, symmetric_u8, {1.0F, 128}},
      {"symmetric, reduced u8", {-63.5F, 3.0F}, symmetric_reduced_u8, {1.0F, 64}},
      {"symmetric, reduced s8", {-64.0F, 3.0F}, reduced_s8, {1.0F, 0}},
      {"symmetric, positive range", {100.0F, 127.0F}, narrow_s8, {1.0F, 0}},
      // less than FLT_MIN: scale 1, zero point 0 on every grid
      {"empty", {0.0F, 0.0F}, asymmetric_u8, {1.0F, 0}},
      {"empty s8", {0.0F, 0.0F}, asymmetric_s8, {1.0F, 0}},
      {"empty, symmetric u8", {0.0F, 0.0F}, symmetric_u8, {1.0F, 0}},
      {"empty, symmetric", {-0.0F, 0.0F}, narrow_s8, {1.0F, 0}},
      {"half of FLT_MIN", {0.0F, 127.5F * flt_min}, asymmetric_s8, {1.0F, 0}},
      {"a step below FLT_MIN", {0.0F, 0x1.fdfffep-119F}, asymmetric_s8, {1.0F, 0}},
      // 255 * FLT_MIN - 2^-149: the scale would be FLT_MIN in float, but is less in double
      {"less in double", {-0x1.fcp-143F, 0x1.fdfffep-119F}, asymmetric_s8, {1.0F, 0}},
      {"FLT_MIN", {0.0F, 255.0F * flt_min}, asymmetric_s8, {flt_min, -128}},
      {"the smallest number", {-denorm_min, 0.0F}, asymmetric_u8, {1.0F, 0}},
      // -128 + 127.5 = -0.5, a tie, rounds to 0
      {"huge", {-flt_max, flt_max}, asymmetric_u8, {twice_flt_max_over_255, 128}},
      {"huge, signed", {-flt_max, flt_max}, asymmetric_s8, {twice_flt_max_over_255, 0}},
      {"huge, one side", {0.0F, flt_max}, asymmetric_s8, {flt_max_over_255, -128}},
      {"huge, symmetric", {-flt_max, 0.0F}, narrow_s8, {flt_max_over_127, 0}},
      // In double: 16777219 / 7 = 2396745.571. In float the extent would be 16777220, the quotient
      // 2396745.714 and the scale 2396745.75.
      {"the extent is not rounded", {-1.0F, 16777218.0F}, {{0, 7}, false}, {2396745.5F, 0}},
  };
  static_assert(std::bit_cast<std::uint32_t>(0x1.fdfffep-119F) + 1 ==
                std::bit_cast<std::uint32_t>(255.0F * flt_min));
  check_vectors(scale_rule::ort, vectors);
}

TEST_CASE("inc") {
  const vector vectors[] = {
      {"scale 1 forces zero point 0", {-2.0F, 253.0F}, asymmetric_u8, {1.0F, 0}},
      {"scale 1, all negative", {-255.0F, -1.0F}, asymmetric_u8, {1.0F, 0}},
      {"scale 1, reduced", {-2.0F, 125.0F}, reduced_u8, {1.0F, 0}},
      // scale = 1 + 2^-22 / 255 in double, which is 1 only in float
      {"nearly 1", {-0x1.000002p+1F, 253.0F}, asymmetric_u8, {1.0F, 2}},
      {"scale 2", {-4.0F, 506.0F}, asymmetric_u8, {2.0F, 2}},
      {"tie to even, down", {-5.0F, 505.0F}, asymmetric_u8, {2.0F, 2}},
      {"tie to even, up", {-7.0F, 503.0F}, asymmetric_u8, {2.0F, 4}},
      {"zero is included from below", {3.0F, 510.0F}, asymmetric_u8, {2.0F, 0}},
      {"zero is included from above", {-510.0F, -3.0F}, asymmetric_u8, {2.0F, 255}},
      {"reduced", {-2.0F, 252.0F}, reduced_u8, {2.0F, 1}},
      {"reduced, all negative", {-254.0F, -2.0F}, reduced_u8, {2.0F, 127}},
      {"symmetric divides by 127", {-127.0F, 3.0F}, narrow_s8, {1.0F, 0}},
      {"symmetric, upper counts", {-3.0F, 254.0F}, narrow_s8, {2.0F, 0}},
      {"symmetric, reduced divides by 64", {-128.0F, 3.0F}, reduced_s8, {2.0F, 0}},
      {"empty", {0.0F, 0.0F}, asymmetric_u8, {1.0F, 0}},
      {"empty, symmetric", {-0.0F, 0.0F}, narrow_s8, {1.0F, 0}},
      {"the smallest scale", {0.0F, 255.0F * denorm_min}, asymmetric_u8, {denorm_min, 0}},
      {"the smallest scale, below", {-255.0F * denorm_min, 0.0F}, asymmetric_u8, {denorm_min, 255}},
      {"huge", {-flt_max, flt_max}, asymmetric_u8, {twice_flt_max_over_255, 128}},
      {"huge, symmetric", {-flt_max, flt_max}, narrow_s8, {flt_max_over_127, 0}},
  };
  check_vectors(scale_rule::inc, vectors);
}

TEST_CASE("nncf, symmetric") {
  const vector vectors[] = {
      // narrow: low = -127, scale = 254 / 254
      {"narrow", {-127.0F, 5.0F}, narrow_s8, {1.0F, 0}},
      {"narrow, all positive", {5.0F, 127.0F}, narrow_s8, {1.0F, 0}},
      // full: low = -127 * 256 / 254 = -128, scale = 255 / 255
      {"full", {-127.0F, 5.0F}, full_s8, {1.0F, 0}},
      {"full, all positive", {0.0F, 254.0F}, full_s8, {2.0F, 0}},
      {"full, four bits", {-7.0F, 5.0F}, {{-8, 7}, true}, {1.0F, 0}},
      {"narrow, four bits", {-14.0F, 5.0F}, {{-7, 7}, true}, {2.0F, 0}},
      // unsigned: low = 0, scale = 255 / 255
      {"unsigned", {0.0F, 255.0F}, symmetric_u8, {1.0F, 0}},
      {"unsigned, one side", {3.0F, 510.0F}, symmetric_u8, {2.0F, 0}},
      {"unsigned, negative zero", {-0.0F, 255.0F}, symmetric_u8, {1.0F, 0}},
      {"unsigned with negative values", {-1.0F, 127.0F}, symmetric_u8, {1.0F, 128}},
      {"unsigned, all negative", {-127.0F, -1.0F}, symmetric_u8, {1.0F, 128}},
      // high = 8e-5: 2 * 8e-5 / 254
      {"empty", {0.0F, 0.0F}, narrow_s8, {8e-5F / 127.0F, 0}},
      {"empty, unsigned", {0.0F, 0.0F}, symmetric_u8, {8e-5F / 255.0F, 0}},
      {"tiny", {-1e-30F, denorm_min}, narrow_s8, {8e-5F / 127.0F, 0}},
      {"at the floor", {-8e-5F, 0.0F}, narrow_s8, {8e-5F / 127.0F, 0}},
      // The doubled end must fit a float.
      {"huge", {-0x1.fcp+126F, 0.0F}, narrow_s8, {0x1p+120F, 0}},
      {"huge, unsigned", {0.0F, flt_max}, symmetric_u8, {flt_max_over_255, 0}},
      // FLT_EPSILON is the smallest scale: low / scale is -8e-5 * 65536 / 65534 * 2^23 = -671.1.
      {"smallest scale, 16 bits", {0.0F, 1e-6F}, {{-32768, 32767}, true}, {0x1p-23F, -32097}},
      {"smallest scale, narrow", {0.0F, 1e-6F}, {{-32767, 32767}, true}, {0x1p-23F, -32096}},
      {"smallest scale, unsigned", {0.0F, 1e-6F}, {{0, 65535}, true}, {0x1p-23F, 0}},
  };
  check_vectors(scale_rule::nncf, vectors);
}

TEST_CASE("nncf: dead channels") {
  const auto scale = [](value_range range, float largest_magnitude) {
    const quant_params p = params_from_range(range, narrow_s8, scale_rule::nncf, largest_magnitude);
    CHECK(p.zero_point == 0);
    return p.scale;
  };
  // 0.01F = 0.00999999977648, so that 0.01F * 12700 = 126.9999972; a float's step there is 7.6e-6.
  CHECK(scale({0.0F, 0.0F}, 12700.0F) == 1.0F);
  CHECK(scale({-1.0F, 2.0F}, 12700.0F) == 1.0F);
  CHECK(scale({-254.0F, 2.0F}, 12700.0F) == 2.0F);
  // 0.01F * 0.004F is under 8e-5.
  CHECK(scale({0.0F, 0.0F}, 0.004F) == 8e-5F / 127.0F);
  CHECK(scale({0.0F, 0.0F}, 0.0F) == 8e-5F / 127.0F);
  // The product in float. With the double 0.01 these would end in ...06, ...36 and ...90.
  CHECK(scale({0.0F, 0.0F}, 0x1.4bbc4ap+0F) == 0x1.abf704p-14F);
  CHECK(scale({0.0F, 0.0F}, 0x1.0417b2p+2F) == 0x1.4f8a34p-12F);
  CHECK(scale({0.0F, 0.0F}, 0x1.56eb52p+1F) == 0x1.ba648ep-13F);
  // No other rule looks at it, nor does an asymmetric scheme.
  for (const scale_rule rule : all_rules) {
    for (const bool symmetric : {false, true}) {
      if (rule != scale_rule::nncf || !symmetric) {
        const quant_scheme scheme = scheme_for(rule, symmetric);
        CHECK(params_from_range({-1.0F, 3.0F}, scheme, rule, 12700.0F) ==
              params_from_range({-1.0F, 3.0F}, scheme, rule));
      }
    }
  }
}

TEST_CASE("nncf, asymmetric") {
  const vector vectors[] = {
      // q = 51: lower' = 51 / -204 * 204 = -51, upper' = -204 / 51 * -51 = 204, as they are
      {"tuned already", {-51.0F, 204.0F}, asymmetric_u8, {1.0F, 51}},
      {"tuned already, signed", {-51.0F, 204.0F}, asymmetric_s8, {1.0F, -77}},
      // q = round(51.5 * 255 / 255.5 = 51.4) = 51: lower' = -51 would shrink, upper' = 4 * 51.5 =
      // 206
      {"upper moves", {-51.5F, 204.0F}, asymmetric_u8, {257.5F / 255.0F, 51}},
      // q = round(50.5 * 255 / 254.5 = 50.6) = 51: lower' = -51, upper' = 202 would shrink
      {"lower moves", {-50.5F, 204.0F}, asymmetric_u8, {1.0F, 51}},
      // mirrored: q = 204, q / (q - 255) = -4
      {"lower moves, mirrored", {-204.0F, 51.5F}, asymmetric_u8, {257.5F / 255.0F, 204}},
      {"upper moves, mirrored", {-204.0F, 50.5F}, asymmetric_u8, {1.0F, 204}},
      // q = round(2.5) = 2: upper' = 253 / 2 * 2.5 = 316.25, and 318.75 / 255 = 1.25
      {"tie to even", {-2.5F, 252.5F}, asymmetric_u8, {1.25F, 2}},
      // four bits, q = 3: q / (q - 15) = -1 / 4
      {"four bits", {-3.0F, 11.75F}, {{0, 15}, false}, {1.0F, 3}},
      // q = 0 and q = 255: nothing to divide by
      {"one side", {0.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"one side, signed", {10.0F, 255.0F}, asymmetric_s8, {1.0F, -128}},
      {"one side, below", {-255.0F, 0.0F}, asymmetric_u8, {1.0F, 255}},
      {"one side, below, signed", {-255.0F, -10.0F}, asymmetric_s8, {1.0F, 127}},
      // q = 0 with a lower end: lower' = 0 would shrink, upper is kept; 255.25 / 255
      {"lower rounds to level 0", {-0.25F, 255.0F}, asymmetric_u8, {255.25F / 255.0F, 0}},
      // c = 8e-4: -c .. c; q = round(127.5) = 128: lower' = -128 / 127 c, upper' = 127 / 128 c
      // would
      // shrink; scale = (255 / 127 c) / 255 = c / 127 = 6.2992e-6
      {"empty", {0.0F, 0.0F}, asymmetric_u8, {8e-4F / 127.0F, 128}},
      {"empty, signed", {-0.0F, 0.0F}, asymmetric_s8, {8e-4F / 127.0F, 0}},
      // c in length is still widened: -c .. 2c, q = 85, so that lower' = -c and upper' = 2c
      {"at the floor", {0.0F, 8e-4F}, asymmetric_u8, {3.0F * 8e-4F / 255.0F, 85}},
      // just over it nothing is
      {"above the floor", {0.0F, 0x1.a36e3p-11F}, asymmetric_u8, {0x1.a36e3p-11F / 255.0F, 0}},
      // widened by 8e-4 at both ends, then extended to zero
      {"one point", {255.0F, 255.0F}, asymmetric_u8, {(255.0F + 8e-4F) / 255.0F, 0}},
      // upper - lower overflows
      {"huge", {-flt_max, flt_max}, asymmetric_u8, {flt_epsilon, 0}},
      {"huge, signed", {-flt_max, flt_max}, asymmetric_s8, {flt_epsilon, -128}},
      {"huge, one side", {0.0F, flt_max}, asymmetric_u8, {flt_max_over_255, 0}},
      {"huge, one side, below", {-flt_max, 0.0F}, asymmetric_s8, {flt_max_over_255, 127}},
  };
  static_assert(std::bit_cast<std::uint32_t>(0x1.a36e3p-11F) - 1 ==
                std::bit_cast<std::uint32_t>(8e-4F));
  check_vectors(scale_rule::nncf, vectors);
}

TEST_CASE("nncf: tuning never shrinks the range, and makes zero a level") {
  random_source random(12);
  INFO("seed ", random.seed());
  int moved = 0;
  int kept = 0;
  for (int i = 0; i < 20000; ++i) {
    const value_range range = reference::including_zero(
        {random.real(-9.0F, 1.0F) * random.real(0.0F, 9.0F), random.real(-1.0F, 9.0F)});
    const float length = range.upper - range.lower;
    if (length == 0.0F) {
      continue;
    }
    const value_range tuned = reference::nncf::tuned(range, 255.0F);
    INFO("range ", range.lower, " .. ", range.upper, " tuned ", tuned.lower, " .. ", tuned.upper);
    CHECK(tuned.lower <= range.lower + length * 1e-6F);
    CHECK(tuned.upper >= range.upper - length * 1e-6F);
    CHECK((tuned.lower == range.lower || tuned.upper == range.upper));
    moved += tuned == range ? 0 : 1;
    // A shorter side of less than half a step is left as it is, and zero beside the end level.
    if (-range.lower < 0.499F / 255.0F * length || range.upper < 0.499F / 255.0F * length) {
      CHECK(tuned == range);
      ++kept;
    } else if (-range.lower > 0.501F / 255.0F * length && range.upper > 0.501F / 255.0F * length) {
      const double level = -255.0 * static_cast<double>(tuned.lower) /
                           (static_cast<double>(tuned.upper) - static_cast<double>(tuned.lower));
      CHECK(std::fabs(level - std::nearbyint(level)) < 1e-4);
    }
  }
  CHECK(moved > 10000);
  CHECK(kept > 100);
}

TEST_CASE("torch") {
  const vector vectors[] = {
      {"as stored", {0.0F, 255.0F}, asymmetric_u8, {1.0F, 0}},
      {"signed", {-128.0F, 127.0F}, asymmetric_s8, {1.0F, 0}},
      {"zero is included from below", {10.0F, 255.0F}, asymmetric_s8, {1.0F, -128}},
      {"zero is included from above", {-255.0F, -10.0F}, asymmetric_u8, {1.0F, 255}},
      {"tie to even, down", {-2.5F, 252.5F}, asymmetric_u8, {1.0F, 2}},
      {"tie to even, up", {-3.5F, 251.5F}, asymmetric_u8, {1.0F, 4}},
      // qmin - round(lower / scale): -127 + 2, where ort has -124
      {"the quotient is rounded", {-2.5F, 252.5F}, {{-127, 128}, false}, {1.0F, -125}},
      {"reduced", {-3.0F, 124.0F}, reduced_u8, {1.0F, 3}},
      {"reduced, signed", {-64.0F, 63.0F}, {{-64, 63}, false}, {1.0F, 0}},
      {"symmetric divides by 127.5", {-127.5F, 3.0F}, full_s8, {1.0F, 0}},
      {"narrow divides by 127", {-3.0F, 127.0F}, narrow_s8, {1.0F, 0}},
      {"symmetric u8", {-127.5F, 3.0F}, symmetric_u8, {1.0F, 128}},
      {"symmetric, reduced u8", {-63.5F, 3.0F}, symmetric_reduced_u8, {1.0F, 63}},
      {"symmetric, 0..254", {-127.0F, 3.0F}, {{0, 254}, true}, {1.0F, 127}},
      // the floor, 2^-23
      {"empty", {0.0F, 0.0F}, asymmetric_u8, {flt_epsilon, 0}},
      {"empty, signed", {-0.0F, 0.0F}, asymmetric_s8, {flt_epsilon, -128}},
      {"empty, symmetric", {0.0F, 0.0F}, full_s8, {flt_epsilon, 0}},
      {"empty, symmetric u8", {0.0F, 0.0F}, symmetric_u8, {flt_epsilon, 128}},
      {"tiny", {0.0F, denorm_min}, asymmetric_u8, {flt_epsilon, 0}},
      {"half the floor", {0.0F, 127.5F * flt_epsilon}, asymmetric_u8, {flt_epsilon, 0}},
      {"the floor", {-255.0F * flt_epsilon, 0.0F}, asymmetric_u8, {flt_epsilon, 255}},
      {"steps of the floor", {-3.0F * flt_epsilon, 0.0F}, asymmetric_s8, {flt_epsilon, -125}},
      {"twice the floor", {-2.0F * 127.5F * flt_epsilon, 0.0F}, full_s8, {0x1p-22F, 0}},
      // The extent 16777219 is a tie and becomes 16777220, the quotient 2396745.714; see ort.
      {"the extent is rounded", {-1.0F, 16777218.0F}, {{0, 7}, false}, {2396745.75F, 0}},
      {"huge, one side", {0.0F, flt_max}, asymmetric_u8, {flt_max_over_255, 0}},
      {"huge, one side, below", {-flt_max, 0.0F}, asymmetric_s8, {flt_max_over_255, 127}},
      {"huge, symmetric", {-flt_max, flt_max}, full_s8, {twice_flt_max_over_255, 0}},
  };
  check_vectors(scale_rule::torch, vectors);
}

TEST_CASE("tensorrt") {
  const vector vectors[] = {
      {"lower counts", {-127.0F, 3.0F}, full_s8, {1.0F, 0}},
      {"upper counts", {-3.0F, 254.0F}, full_s8, {2.0F, 0}},
      {"narrow is the same", {-3.0F, 254.0F}, narrow_s8, {2.0F, 0}},
      {"one side", {3.0F, 127.0F}, full_s8, {1.0F, 0}},
      {"one side, below", {-127.0F, -3.0F}, full_s8, {1.0F, 0}},
      {"tiny", {-127.0F * denorm_min, 0.0F}, full_s8, {denorm_min, 0}},
      {"huge", {-flt_max, flt_max}, full_s8, {flt_max_over_127, 0}},
  };
  check_vectors(scale_rule::tensorrt, vectors);
}

// ------------------------------------------------------------------------- from the tools
// themselves

TEST_CASE("ort: the golden data") {
  struct entry {
    const char* name;
    value_range range;
    quant_params asymmetric_u8, asymmetric_s8, symmetric_s8, symmetric_reduced_s8, reduced_u8;
  };
  const entry entries[] = {
      {"normal",
       {-4.1189494132995605F, 3.690223217010498F},
       {0.030624207109212875F, 134},
       {0.030624207109212875F, 6},
       {0.032432671636343F, 0},
       {0.06435858458280563F, 0},
       {0.06148954853415489F, 67}},
      {"uniform",
       {-2.9993679523468018F, 4.999330043792725F},
       {0.03136744350194931F, 96},
       {0.03136744350194931F, -32},
       {0.039364803582429886F, 0},
       {0.07811453193426132F, 0},
       {0.06298187375068665F, 48}},
      {"outlier",
       {-37.0F, 60.0F},
       {0.3803921639919281F, 97},
       {0.3803921639919281F, -31},
       {0.4724409580230713F, 0},
       {0.9375F, 0},
       {0.7637795209884644F, 48}},
      {"relu_normal",
       {0.0F, 3.739854097366333F},
       {0.014666094444692135F, 0},
       {0.014666094444692135F, -128},
       {0.02944766916334629F, 0},
       {0.05843522027134895F, 0},
       {0.02944766916334629F, 0}},
  };
  for (const entry& e : entries) {
    INFO(std::string(e.name));
    const auto params = [&e](quant_scheme scheme) {
      return params_from_range(e.range, scheme, scale_rule::ort);
    };
    CHECK(params(asymmetric_u8) == e.asymmetric_u8);
    CHECK(params(asymmetric_s8) == e.asymmetric_s8);
    CHECK(params(narrow_s8) == e.symmetric_s8);
    CHECK(params(reduced_s8) == e.symmetric_reduced_s8);
    CHECK(params(reduced_u8) == e.reduced_u8);
  }
}

// What the code of PPQ 0.6.6, ONNX Runtime 1.31, Intel Neural Compressor 2.6 and NNCF 2.14 (on
// NumPy 2) returns for ranges that no arithmetic is exact on.
TEST_CASE("recorded from the tools") {
  constexpr value_range a{-0x1.9fe5cap-1F, 0x1.5eb852p+0F};  // -0.8123 .. 1.37
  constexpr value_range b{-0x1.8cccccp+1F, 0x1p-2F};         // -3.1 .. 0.25
  constexpr value_range c{-0x1.4f8b58p-17F, 0x1.4f8b58p-16F};
  constexpr value_range d{-0x1.34ap+10F, 0x1.35p+6F};
  constexpr value_range e{-0x1.333334p-2F, 0x1.99999ap-4F};
  struct row {
    scale_rule rule;
    value_range range;
    quant_scheme scheme;
    quant_params expected;
  };
  const row rows[] = {
      {scale_rule::ppq, a, asymmetric_u8, {0x1.186e0ap-7F, 95}},
      {scale_rule::ppq, b, asymmetric_s8, {0x1.ae7b48p-7F, 236}},
      {scale_rule::ppq, c, full_s8, {0x1.50dc34p-23F, 0}},
      {scale_rule::ppq, d, full_s8, {0x1.35d5d6p+3F, 0}},
      {scale_rule::ppq, e, full_s8, {0x1.34679cp-9F, 0}},
      {scale_rule::ort, a, asymmetric_s8, {0x1.186e0ap-7F, -33}},
      {scale_rule::ort, b, asymmetric_s8, {0x1.ae7b48p-7F, 108}},
      {scale_rule::ort, c, asymmetric_s8, {0x1.f94a4ep-24F, -43}},
      {scale_rule::ort, d, asymmetric_u8, {0x1.49393ap+2F, 240}},
      {scale_rule::ort, e, asymmetric_u8, {0x1.9b34dp-10F, 191}},
      {scale_rule::inc, a, reduced_u8, {0x1.1988acp-6F, 47}},
      {scale_rule::inc, b, reduced_u8, {0x1.b02d26p-6F, 118}},
      {scale_rule::inc, c, reduced_u8, {0x1.fb4794p-23F, 42}},
      {scale_rule::inc, d, narrow_s8, {0x1.370e1cp+3F, 0}},
      {scale_rule::inc, e, narrow_s8, {0x1.359e7p-9F, 0}},
      {scale_rule::nncf, a, asymmetric_u8, {0x1.189376p-7F, 95}},
      {scale_rule::nncf, b, asymmetric_s8, {0x1.af286cp-7F, 108}},
      {scale_rule::nncf, c, asymmetric_u8, {0x1.adea86p-18F, 127}},
      {scale_rule::nncf, d, asymmetric_s8, {0x1.49999ap+2F, 112}},
      {scale_rule::nncf, e, asymmetric_s8, {0x1.9bbe98p-10F, 63}},
      {scale_rule::nncf, a, symmetric_u8, {0x1.617b48p-7F, 128}},
      // The full grid takes a detour through -128 / 127, which costs the last bit here.
      {scale_rule::nncf, b, full_s8, {0x1.8feca4p-6F, 0}},
      {scale_rule::nncf, b, narrow_s8, {0x1.8feca6p-6F, 0}},
      {scale_rule::nncf, c, narrow_s8, {0x1.522fb8p-21F, 0}},
  };
  for (const row& r : rows) {
    INFO(std::string(detent::name(r.rule)), " ", r.range.lower, " .. ", r.range.upper, " on ",
         r.scheme.levels.qmin, "..", r.scheme.levels.qmax);
    const quant_params p = params_from_range(r.range, r.scheme, r.rule);
    CHECK(p.scale == r.expected.scale);
    CHECK(p.zero_point == r.expected.zero_point);
  }
}

// ---------------------------------------------------------------------------------------- any
// range

TEST_CASE("every rule: a positive scale, a zero point where it belongs, a range that is covered") {
  random_source random(13);
  INFO("seed ", random.seed());
  const quant_scheme schemes[] = {asymmetric_u8, asymmetric_s8, narrow_s8,       full_s8,
                                  symmetric_u8,  reduced_u8,    {{0, 15}, false}};
  int seen[std::size(all_rules)] = {};
  for (int i = 0; i < 20000; ++i) {
    const value_range range = random_range(random, 1e35F);  // nncf multiplies by up to 256
    const quant_scheme scheme = schemes[random.size(0, std::size(schemes) - 1)];
    const scale_rule rule = all_rules[random.size(0, std::size(all_rules) - 1)];
    const value_range r = reference::including_zero(range);
    if (!detent::detail::is_expressible(scheme, rule) || reference::magnitude(r) < 1e-35F) {
      continue;
    }
    ++seen[static_cast<std::size_t>(rule)];
    INFO(std::string(detent::name(rule)), " ", range.lower, " .. ", range.upper, " on ",
         scheme.levels.qmin, "..", scheme.levels.qmax);
    const quant_params p = params_from_range(range, scheme, rule);
    const auto scale = static_cast<double>(p.scale);
    REQUIRE(p.scale > 0.0F);
    // ppq leaves qmin out of the sum, and its unsigned symmetric grid has no negative half; inc has
    // no zero point where the scale is 1.
    const bool shifted = rule == scale_rule::ppq && (scheme.symmetric || scheme.levels.qmin != 0);
    if (!shifted) {
      REQUIRE(p.zero_point >= scheme.levels.qmin);
      REQUIRE(p.zero_point <= scheme.levels.qmax);
      CHECK(reference::quantize(0.0F, p, scheme.levels) == p.zero_point);
      if (!(rule == scale_rule::inc && p.scale == 1.0F)) {
        // Half a step for the zero point, another half where a symmetric grid's longer side counts.
        const double lowest = scale * (scheme.levels.qmin - p.zero_point);
        const double highest = scale * (scheme.levels.qmax - p.zero_point);
        const double slack = scale * 1.0001;
        CHECK(static_cast<double>(r.lower) >= lowest - slack);
        CHECK(static_cast<double>(r.upper) <= highest + slack);
      }
    }
  }
  for (const int n : seen) {
    CHECK(n > 100);
  }
}

// ------------------------------------------------------------------------------------ what is
// refused

TEST_CASE("schemes that a tool does not have") {
  struct row {
    scale_rule rule;
    quant_scheme scheme;
    const char* text;
  };
  const row rows[] = {
      {scale_rule::tensorrt, asymmetric_u8, "rule tensorrt has no asymmetric scheme on 0..255"},
      {scale_rule::tensorrt, asymmetric_s8, "rule tensorrt has no asymmetric scheme on -128..127"},
      {scale_rule::tensorrt, symmetric_u8, "rule tensorrt has no symmetric scheme on 0..255"},
      {scale_rule::tensorrt, reduced_s8, "rule tensorrt has no symmetric scheme on -64..64"},
      {scale_rule::inc, asymmetric_s8, "rule inc has no asymmetric scheme on -128..127"},
      {scale_rule::inc, full_s8, "rule inc has no symmetric scheme on -128..127"},
      {scale_rule::inc, symmetric_u8, "rule inc has no symmetric scheme on 0..255"},
      {scale_rule::inc, {narrow_grid<s8>, false}, "rule inc has no asymmetric scheme on -127..127"},
      {scale_rule::ort, {narrow_grid<u8>, false}, "rule ort has no asymmetric scheme on 1..255"},
      {scale_rule::ort, {{-9, -1}, true}, "rule ort has no symmetric scheme on -9..-1"},
      {scale_rule::torch, {narrow_grid<u8>, true}, "rule torch has no symmetric scheme on 1..255"},
      {scale_rule::torch, {{-9, -1}, false}, "rule torch has no asymmetric scheme on -9..-1"},
      {scale_rule::nncf, {narrow_grid<s8>, false}, "rule nncf has no asymmetric scheme on -127"},
      {scale_rule::nncf, {narrow_grid<u8>, true}, "rule nncf has no symmetric scheme on 1..255"},
      {scale_rule::nncf, reduced_s8, "rule nncf has no symmetric scheme on -64..64"},
      {scale_rule::nncf, {{0, 254}, true}, "rule nncf has no symmetric scheme on 0..254"},
      {scale_rule::nncf, {{-128, 126}, true}, "rule nncf has no symmetric scheme on -128..126"},
      {scale_rule::nncf, {{-7, -1}, false}, "rule nncf has no asymmetric scheme on -7..-1"},
      {scale_rule::nncf, {{-1, 0}, false}, "rule nncf has no asymmetric scheme on -1..0"},
      {static_cast<scale_rule>(99), asymmetric_u8, "rule unknown has no asymmetric scheme"},
  };
  for (const row& r : rows) {
    check_error(error_kind::unsupported, {"params_from_range", r.text}, [&r] {
      (void)params_from_range({-1.0F, 1.0F}, r.scheme, r.rule);
    });
  }
}

TEST_CASE("ranges, grids and magnitudes that no rule takes") {
  for (const scale_rule rule : all_rules) {
    INFO(std::string(detent::name(rule)));
    const quant_scheme scheme = scheme_for(rule, false);
    for (const value_range range : {value_range{quiet_nan, 1.0F}, value_range{-1.0F, infinity},
                                    value_range{-infinity, 1.0F}, value_range{2.0F, 1.0F}}) {
      check_error(error_kind::invalid_argument, {"params_from_range", "is not a finite range"},
                  [&] { (void)params_from_range(range, scheme, rule); });
    }
    check_error(error_kind::invalid_argument, {"grid 5..5"}, [&] {
      (void)params_from_range({-1.0F, 1.0F}, {{5, 5}, scheme.symmetric}, rule);
    });
    for (const float bad : {-1.0F, quiet_nan, infinity}) {
      check_error(error_kind::invalid_argument, {"largest magnitude"}, [&] {
        (void)params_from_range({-1.0F, 1.0F}, scheme, rule, bad);
      });
    }
  }
}

TEST_CASE("scales that are not positive and finite") {
  const auto refused = [](value_range range, quant_scheme scheme, scale_rule rule,
                          const char* text) {
    check_error(error_kind::invalid_argument, {"params_from_range", detent::name(rule), text},
                [&] { (void)params_from_range(range, scheme, rule); });
  };
  refused({0.0F, 0.0F}, full_s8, scale_rule::tensorrt, "the scale 0");
  refused({-denorm_min, 0.0F}, full_s8, scale_rule::tensorrt, "the scale 0");
  // 127 / 255 of the smallest number rounds down, 128 / 255 up.
  refused({0.0F, 127.0F * denorm_min}, asymmetric_u8, scale_rule::inc, "the scale 0");
  CHECK(params_from_range({0.0F, 128.0F * denorm_min}, asymmetric_u8, scale_rule::inc) ==
        quant_params{denorm_min, 0});
  refused({-flt_max, flt_max}, asymmetric_u8, scale_rule::torch, "the scale inf");
  refused({-flt_max, flt_max}, full_s8, scale_rule::nncf, "the scale inf");
  refused({-flt_max, 0.0F}, narrow_s8, scale_rule::nncf, "the scale inf");
}

TEST_CASE("nncf: a tuned end that overflows is refused") {
  // q = 1, so that upper' = 254 * -lower: beyond FLT_MAX.
  const value_range range{-1.4e36F, 0x1.fffffep+127F - 1.4e36F};
  check_error(error_kind::invalid_argument, {"nncf", "the scale inf"},
              [&] { (void)params_from_range(range, asymmetric_u8, scale_rule::nncf); });
}

TEST_CASE("the names of the rules") {
  const char* const names[] = {"canonical", "ppq", "ort", "inc", "nncf", "torch", "tensorrt"};
  for (std::size_t i = 0; i < std::size(all_rules); ++i) {
    CHECK(std::string(detent::name(all_rules[i])) == names[i]);
  }
}

// -------------------------------------------------------------------------------------- powers of
// two

TEST_CASE("project_to_power_of_two: by hand") {
  struct row {
    float scale, up, half_up;
  };
  const row rows[] = {
      {1.0F, 1.0F, 1.0F},
      {0x1.000002p+0F, 2.0F, 1.0F},
      {0x1.fffffep-1F, 1.0F, 1.0F},
      {1.25F, 2.0F, 1.0F},
      {1.5F, 2.0F, 2.0F},
      {3.0F, 4.0F, 4.0F},
      {0.3F, 0.5F, 0.25F},
      // sqrt(2) = 0x1.6a09e667...p0 lies between two floats
      {0x1.6a09e6p+0F, 2.0F, 1.0F},
      {0x1.6a09e8p+0F, 2.0F, 2.0F},
      {0x1.6a09e6p-9F, 0x1p-8F, 0x1p-9F},
      {0x1.6a09e8p-9F, 0x1p-8F, 0x1p-8F},
      {flt_min, flt_min, flt_min},
      {denorm_min, denorm_min, denorm_min},
      {3.0F * denorm_min, 4.0F * denorm_min, 4.0F * denorm_min},
      {5.0F * denorm_min, 8.0F * denorm_min, 4.0F * denorm_min},
      {0x1.fffffcp-127F, flt_min, flt_min},
      {0x1p+127F, 0x1p+127F, 0x1p+127F},
      {0x1.fffffep+126F, 0x1p+127F, 0x1p+127F},
  };
  for (const row& r : rows) {
    INFO("scale ", r.scale);
    CHECK(project_to_power_of_two(r.scale, power_of_two_rounding::up) == r.up);
    CHECK(project_to_power_of_two(r.scale, power_of_two_rounding::half_up) == r.half_up);
  }
  CHECK(project_to_power_of_two(0x1.6a09e6p+127F, power_of_two_rounding::half_up) == 0x1p+127F);
  // The doubles beside sqrt(2) = 0x1.6a09e667f3bcc9...p0, and beside 1.
  const auto half_up = [](double scale) {
    return reference::project_to_power_of_two(scale, power_of_two_rounding::half_up);
  };
  CHECK(half_up(0x1.6a09e667f3bccp+0) == 1.0);
  CHECK(half_up(0x1.6a09e667f3bcdp+0) == 2.0);
  CHECK(reference::project_to_power_of_two(0x1.0000000000001p+0, power_of_two_rounding::up) == 2.0);
  CHECK(reference::project_to_power_of_two(0x1.fffffffffffffp-1, power_of_two_rounding::up) == 1.0);
}

TEST_CASE("project_to_power_of_two: every mantissa against integers") {
  // scale = m / 2^23 with 2^23 <= m < 2^24: over sqrt(2) if m^2 > 2^47, which is never equal.
  std::uint32_t wrong = 0;
  for (std::uint64_t m = 1U << 23; m < 1U << 24; ++m) {
    const double scale = static_cast<double>(m) * 0x1p-23;
    const double up = m == 1U << 23 ? 1.0 : 2.0;
    const double half_up = m * m > std::uint64_t{1} << 47 ? 2.0 : 1.0;
    wrong += reference::project_to_power_of_two(scale, power_of_two_rounding::up) != up ? 1U : 0U;
    wrong += reference::project_to_power_of_two(scale, power_of_two_rounding::half_up) != half_up
                 ? 1U
                 : 0U;
  }
  CHECK(wrong == 0);
}

TEST_CASE("project_to_power_of_two: every power of two and its neighbours") {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    INFO("exponent ", exponent);
    const float power = std::ldexp(1.0F, exponent);
    CHECK(project_to_power_of_two(power, power_of_two_rounding::up) == power);
    CHECK(project_to_power_of_two(power, power_of_two_rounding::half_up) == power);
    if (exponent > -149 && exponent < 127) {
      const float above = std::nextafter(power, infinity);
      const float below = std::nextafter(power, 0.0F);
      CHECK(project_to_power_of_two(above, power_of_two_rounding::up) == 2.0F * power);
      CHECK(project_to_power_of_two(below, power_of_two_rounding::up) ==
            (exponent == -148 ? below : power));
    }
  }
}

TEST_CASE("project_to_power_of_two: PPQ's scale may be rounded to float first") {
  // Magnitudes beside those whose scale is a power of two: the double quotient and the float one
  // project alike.
  for (const grid levels : {full_grid<s8>, narrow_grid<s8>, grid{-8, 7}, grid{-32768, 32767}}) {
    const double steps = static_cast<double>(levels.qmax) - levels.qmin;
    for (int exponent = -20; exponent <= 20; ++exponent) {
      const float exact = std::ldexp(static_cast<float>(steps) / 2.0F, exponent);
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(exact);
      for (std::uint32_t i = bits - 5; i <= bits + 5; ++i) {
        const value_range range{0.0F, std::bit_cast<float>(i)};
        const double in_double = reference::extent(range, true) / steps;
        const float scale = params_from_range(range, {levels, true}, scale_rule::ppq).scale;
        const float projected = project_to_power_of_two(scale, power_of_two_rounding::up);
        CHECK(static_cast<double>(projected) ==
              reference::project_to_power_of_two(in_double, power_of_two_rounding::up));
        CHECK(projected == std::ldexp(1.0F, i > bits ? exponent + 1 : exponent));
      }
    }
  }
}

TEST_CASE("project_to_power_of_two: what it refuses") {
  for (const power_of_two_rounding rounding :
       {power_of_two_rounding::up, power_of_two_rounding::half_up}) {
    for (const float bad : {0.0F, -0.0F, -1.0F, quiet_nan, infinity}) {
      check_error(error_kind::invalid_argument, {"project_to_power_of_two: scale"},
                  [&] { (void)project_to_power_of_two(bad, rounding); });
    }
    check_error(error_kind::invalid_argument, {"project_to_power_of_two: scale", "2^128"},
                [&] { (void)project_to_power_of_two(flt_max, rounding); });
  }
  check_error(error_kind::invalid_argument, {"2^128"},
              [] { (void)project_to_power_of_two(0x1.000002p+127F, power_of_two_rounding::up); });
}

// -------------------------------------------------------------------------------------------
// rounding

TEST_CASE("round_half_even of doubles") {
  const double values[] = {-2.5,
                           -1.5,
                           -0.5,
                           0.5,
                           1.5,
                           2.5,
                           0.0,
                           -0.0,
                           0.49999999999999994,
                           -0.49999999999999994,
                           0.5000000000000001,
                           -0.5000000000000001,
                           4503599627370495.5,
                           -4503599627370495.5,
                           4503599627370497.0,
                           1e300,
                           2147483647.5,
                           -2147483648.5,
                           0x1p-1074,
                           -0x1p-1074};
  for (const double x : values) {
    INFO("x ", x);
    CHECK(std::bit_cast<std::uint64_t>(reference::round_half_even(x)) ==
          std::bit_cast<std::uint64_t>(std::nearbyint(x)));
  }
  random_source random(14);
  INFO("seed ", random.seed());
  for (int i = 0; i < 100000; ++i) {
    const double x =
        std::ldexp(static_cast<double>(random.integer(-4000, 4000)), random.integer(-4, 0)) +
        (random.chance(50) ? 0.0 : std::ldexp(random.chance(50) ? 1.0 : -1.0, -40));
    CHECK(reference::round_half_even(x) == std::nearbyint(x));
  }
  CHECK(std::isnan(reference::round_half_even(std::numeric_limits<double>::quiet_NaN())));
  CHECK(reference::round_half_even(std::numeric_limits<double>::infinity()) ==
        std::numeric_limits<double>::infinity());
}
