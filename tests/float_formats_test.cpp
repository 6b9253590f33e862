// SPDX-License-Identifier: BSD-3-Clause
// The conversions of float16, bfloat16 and the 8-bit formats: every pattern against the formula of
// the format, every midpoint and its neighbours against a search for the nearest value.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/float_formats.hpp>

#include "random.hpp"

namespace {

using detent::bfloat16;
using detent::float16;
using detent::float8_e4m3fn;
using detent::float8_e5m2;
using detent::round_to;
using detent::to_float;
using test::random_source;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

static_assert(detent::float_format<float16> && detent::float_format<bfloat16>);
static_assert(detent::float8_format<float8_e4m3fn> && detent::float8_format<float8_e5m2>);
static_assert(!detent::float8_format<float16> && !detent::float_format<float> &&
              !detent::float_format<const float16>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3fn) == 1 &&
              sizeof(float8_e5m2) == 1);
static_assert(std::is_trivial_v<float16> && std::is_trivial_v<bfloat16> &&
              std::is_trivial_v<float8_e4m3fn> && std::is_trivial_v<float8_e5m2>);
static_assert(round_to<float8_e4m3fn>(-448.0F).bits == 0xFE);
static_assert(to_float(float16{0x0001}) == 0x1p-24F);

/// The layouts once more, from the papers: they share nothing with the header.
template <class F>
struct layout;
template <>
struct layout<float16> {
  static constexpr int exponent = 5, mantissa = 10, bias = 15;
  static constexpr double largest = 65504.0, overflow_from = 65520.0;
  static constexpr bool has_infinity = true;
  static constexpr unsigned nan = 0x7E00;
};
template <>
struct layout<bfloat16> {
  static constexpr int exponent = 8, mantissa = 7, bias = 127;
  static constexpr double largest = 0x1.FEp127, overflow_from = 0x1.FFp127;
  static constexpr bool has_infinity = true;
  static constexpr unsigned nan = 0x7FC0;
};
template <>
struct layout<float8_e4m3fn> {
  static constexpr int exponent = 4, mantissa = 3, bias = 7;
  static constexpr double largest = 448.0, overflow_from = 464.0;  // itself not: 448 is even
  static constexpr bool has_infinity = false;
  static constexpr unsigned nan = 0x7F;
};
template <>
struct layout<float8_e5m2> {
  static constexpr int exponent = 5, mantissa = 2, bias = 15;
  static constexpr double largest = 57344.0, overflow_from = 61440.0;
  static constexpr bool has_infinity = true;
  static constexpr unsigned nan = 0x7F;
};

template <class F>
constexpr unsigned sign_bit = 1U << (layout<F>::exponent + layout<F>::mantissa);

/// The value of a pattern.
template <class F>
double decoded(unsigned pattern) {
  using l = layout<F>;
  const auto mantissa = static_cast<int>(pattern % (1U << l::mantissa));
  const auto exponent = static_cast<int>(pattern >> l::mantissa) % (1 << l::exponent);
  const bool top = exponent == (1 << l::exponent) - 1;
  double magnitude = 0.0;
  if (l::has_infinity && top) {
    magnitude = mantissa == 0 ? infinity : quiet_nan;
  } else if (top && mantissa == (1 << l::mantissa) - 1) {
    magnitude = quiet_nan;
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - l::bias - l::mantissa);
  } else {
    magnitude = std::ldexp(1.0 + std::ldexp(mantissa, -l::mantissa), exponent - l::bias);
  }
  return (pattern & sign_bit<F>) != 0 ? -magnitude : magnitude;
}

/// The finite magnitudes in the order of their patterns.
template <class F>
const std::vector<double>& magnitudes() {
  static const std::vector<double> all = [] {
    std::vector<double> values;
    for (unsigned pattern = 0; pattern < sign_bit<F>; ++pattern) {
      const double value = decoded<F>(pattern);
      if (std::isfinite(value)) {
        values.push_back(value);
      }
    }
    return values;
  }();
  return all;
}

/// The pattern nearest to a real, by search; `overflow` is what a magnitude beyond the finite ones
/// becomes. Sums, halves and comparisons of doubles are exact here.
template <class F>
unsigned nearest(double x, unsigned overflow) {
  const unsigned sign = std::signbit(x) ? sign_bit<F> : 0U;
  if (std::isnan(x)) {
    return sign | layout<F>::nan;
  }
  const double magnitude = std::fabs(x);
  const std::vector<double>& all = magnitudes<F>();
  const auto above = std::upper_bound(all.begin(), all.end(), magnitude);
  const auto lower = static_cast<unsigned>(above - all.begin()) - 1U;
  if (above == all.end()) {
    const bool odd = lower % 2 != 0;
    const bool overflows =
        magnitude > layout<F>::overflow_from || (magnitude == layout<F>::overflow_from && odd);
    return sign | (overflows ? overflow : lower);
  }
  const double middle = (all[lower] + *above) / 2.0;
  const bool up = magnitude > middle || (magnitude == middle && lower % 2 != 0);
  return sign | (up ? lower + 1U : lower);
}

/// Counts disagreements and keeps the first: one assertion for many values.
class disagreements {
 public:
  template <class Real>
  void add(Real x, unsigned actual, unsigned expected) {
    if (actual != expected && ++count_ == 1) {
      first_ << std::hexfloat << x << std::hex << " becomes 0x" << actual << ", not 0x" << expected;
    }
  }
  [[nodiscard]] std::string text() const {
    return count_ == 0 ? std::string() : first_.str() + "; in all " + std::to_string(count_);
  }

 private:
  std::size_t count_ = 0;
  std::ostringstream first_;
};

/// Compares every way to round one value, and its negative, with the search.
template <class F, class Real>
void check_rounding(Real magnitude, disagreements& wrong) {
  constexpr unsigned largest = [] {
    return layout<F>::has_infinity
               ? ((1U << layout<F>::exponent) - 1U) * (1U << layout<F>::mantissa) - 1U
               : sign_bit<F> - 2U;
  }();
  constexpr unsigned beyond = largest + 1U;  // the infinity, or float8_e4m3fn's NaN
  for (const Real x : {magnitude, -magnitude}) {
    if constexpr (detent::float8_format<F>) {
      wrong.add(x, round_to<F>(x).bits, nearest<F>(x, largest));
      wrong.add(x, round_to<F>(x, true).bits, nearest<F>(x, largest));
      wrong.add(x, round_to<F>(x, false).bits, nearest<F>(x, beyond));
    } else {
      wrong.add(x, round_to<F>(x).bits, nearest<F>(x, beyond));
    }
  }
}

template <class F, class Real>
void check_with_neighbours(Real x, disagreements& wrong) {
  constexpr Real largest = std::numeric_limits<Real>::infinity();
  check_rounding<F>(x, wrong);
  check_rounding<F>(std::nextafter(x, -largest), wrong);
  check_rounding<F>(std::nextafter(x, largest), wrong);
}

/// Every value and every midpoint of the format, each with its neighbours.
template <class F, class Real>
void check_all_steps() {
  disagreements wrong;
  const std::vector<double>& all = magnitudes<F>();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double next = i + 1 < all.size() ? all[i + 1] : 2.0 * layout<F>::overflow_from - all[i];
    check_with_neighbours<F>(static_cast<Real>(all[i]), wrong);
    check_with_neighbours<F>(static_cast<Real>((all[i] + next) / 2.0), wrong);
  }
  CHECK(wrong.text() == "");
}

#define ALL_FORMATS float16, bfloat16, float8_e4m3fn, float8_e5m2

}  // namespace

TEST_CASE_TEMPLATE("to_float: every pattern", F, ALL_FORMATS) {
  CHECK(magnitudes<F>().back() == layout<F>::largest);
  disagreements wrong;
  for (unsigned pattern = 0; pattern < 2 * sign_bit<F>; ++pattern) {
    const float x = to_float(F{static_cast<typename F::bits_type>(pattern)});
    const double expected = decoded<F>(pattern);
    const bool same = std::isnan(expected) ? std::isnan(x) : static_cast<double>(x) == expected;
    wrong.add(x, (same && std::signbit(x) == std::signbit(expected)) ? 0U : pattern, 0U);
  }
  CHECK(wrong.text() == "");
}

TEST_CASE("to_float: payloads of NaN keep their place at the top") {
  const auto bits = [](auto x) { return std::bit_cast<std::uint32_t>(to_float(x)); };
  // 0x7E01: exponent 31, mantissa 10 0000 0001; 13 bits are appended.
  CHECK(bits(float16{0x7E01}) == 0x7FC02000U);
  CHECK(bits(float16{0xFFFF}) == 0xFFFFE000U);
  CHECK(bits(bfloat16{0xFFC1}) == 0xFFC10000U);
  CHECK(bits(float8_e4m3fn{0x7F}) == 0x7FF00000U);
  CHECK(bits(float8_e4m3fn{0xFF}) == 0xFFF00000U);
  CHECK(bits(float8_e5m2{0x7E}) == 0x7FC00000U);
  CHECK(bits(float8_e5m2{0xFF}) == 0xFFE00000U);
}

TEST_CASE_TEMPLATE("round_to(to_float(x)) is x", F, ALL_FORMATS) {
  disagreements wrong;
  for (unsigned pattern = 0; pattern < 2 * sign_bit<F>; ++pattern) {
    const F x{static_cast<typename F::bits_type>(pattern)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      continue;
    }
    if constexpr (detent::float8_format<F>) {
      wrong.add(value, round_to<F>(value, false).bits, pattern);
    } else {
      wrong.add(value, round_to<F>(value).bits, pattern);
      wrong.add(value, round_to<F>(static_cast<double>(value)).bits, pattern);
    }
    if (!std::isinf(value)) {
      wrong.add(value, round_to<F>(value).bits, pattern);
    }
  }
  CHECK(wrong.text() == "");
}

TEST_CASE("equality is that of the bits") {
  CHECK(float16{0x7E00} == float16{0x7E00});
  CHECK(float16{0x8000} != float16{0x0000});
  CHECK(float8_e4m3fn{0x7F} == float8_e4m3fn{0x7F});
  CHECK(float8_e5m2{0x7F} != float8_e5m2{0x7E});
  CHECK(bfloat16{0x3F80} == round_to<bfloat16>(1.0F));
}

// --------------------------------------------------------------------------------------- rounding

TEST_CASE("the 8-bit formats: ONNX's table of Cast") {
  struct row {
    float x;
    unsigned e4m3fn_saturated, e4m3fn, e5m2_saturated, e5m2;
  };
  constexpr float f_infinity = std::numeric_limits<float>::infinity();
  constexpr float f_nan = std::numeric_limits<float>::quiet_NaN();
  constexpr row table[] = {
      {0.0F, 0x00, 0x00, 0x00, 0x00},
      {-0.0F, 0x80, 0x80, 0x80, 0x80},
      {f_nan, 0x7F, 0x7F, 0x7F, 0x7F},
      {-f_nan, 0xFF, 0xFF, 0xFF, 0xFF},
      {f_infinity, 0x7E, 0x7F, 0x7B, 0x7C},
      {-f_infinity, 0xFE, 0xFF, 0xFB, 0xFC},
      {std::numeric_limits<float>::max(), 0x7E, 0x7F, 0x7B, 0x7C},
      // 448 = 1.75 * 2^8: exponent 15, mantissa 110. 448 = 1.11 * 2^8 in e5m2: exponent 23.
      {448.0F, 0x7E, 0x7E, 0x5F, 0x5F},
      // Half way to 480, which would be 0x7F: to the even 0x7E. In e5m2 less than half way to 512.
      {464.0F, 0x7E, 0x7E, 0x5F, 0x5F},
      {0x1.d00002p8F, 0x7E, 0x7F, 0x5F, 0x5F},
      {480.0F, 0x7E, 0x7F, 0x60, 0x60},
      {-480.0F, 0xFE, 0xFF, 0xE0, 0xE0},
      // 57344 = 1.75 * 2^15: exponent 30, mantissa 11.
      {57344.0F, 0x7E, 0x7F, 0x7B, 0x7B},
      {0x1.dffffep15F, 0x7E, 0x7F, 0x7B, 0x7B},
      // Half way to 2^16, whose mantissa is even.
      {61440.0F, 0x7E, 0x7F, 0x7B, 0x7C},
      {-61440.0F, 0xFE, 0xFF, 0xFB, 0xFC},
      // The smallest subnormal numbers, and half of them: the tie to zero.
      {0x1p-9F, 0x01, 0x01, 0x18, 0x18},
      {0x1p-10F, 0x00, 0x00, 0x14, 0x14},
      {-0x1p-10F, 0x80, 0x80, 0x94, 0x94},
      {0x1.000002p-10F, 0x01, 0x01, 0x14, 0x14},
      {0x1p-16F, 0x00, 0x00, 0x01, 0x01},
      {0x1p-17F, 0x00, 0x00, 0x00, 0x00},
      {0x1.000002p-17F, 0x00, 0x00, 0x01, 0x01},
      {-0x1p-149F, 0x80, 0x80, 0x80, 0x80},
      // The largest subnormal number and half way to the smallest normal one.
      {0x1.cp-7F, 0x07, 0x07, 0x23, 0x23},
      {0x1.ep-7F, 0x08, 0x08, 0x24, 0x24},
      {0x1.8p-15F, 0x00, 0x00, 0x03, 0x03},
      {0x1.cp-15F, 0x00, 0x00, 0x04, 0x04},
      // Ties among the normal numbers: 1.0625 and 1.1875; 1.125 and 1.375.
      {1.0625F, 0x38, 0x38, 0x3C, 0x3C},
      {1.1875F, 0x3A, 0x3A, 0x3D, 0x3D},
      {1.125F, 0x39, 0x39, 0x3C, 0x3C},
      {1.375F, 0x3B, 0x3B, 0x3E, 0x3E},
  };
  for (const row& r : table) {
    INFO("x ", r.x);
    CHECK(round_to<float8_e4m3fn>(r.x).bits == r.e4m3fn_saturated);
    CHECK(round_to<float8_e4m3fn>(r.x, true).bits == r.e4m3fn_saturated);
    CHECK(round_to<float8_e4m3fn>(r.x, false).bits == r.e4m3fn);
    CHECK(round_to<float8_e5m2>(r.x).bits == r.e5m2_saturated);
    CHECK(round_to<float8_e5m2>(r.x, true).bits == r.e5m2_saturated);
    CHECK(round_to<float8_e5m2>(r.x, false).bits == r.e5m2);
  }
}

TEST_CASE("float16 and bfloat16: overflow, underflow, ties") {
  struct row {
    double x;
    unsigned half, brain;
  };
  constexpr row table[] = {
      {65504.0, 0x7BFF, 0x4780},
      {0x1.ffdffffffffffp15, 0x7BFF, 0x4780},
      {65520.0, 0x7C00, 0x4780},  // half way to 2^16
      {-65520.0, 0xFC00, 0xC780},
      {0x1p-24, 0x0001, 0x3380},
      {0x1p-25, 0x0000, 0x3300},
      {0x1.0000000000001p-25, 0x0001, 0x3300},
      {-0x1.8p-24, 0x8002, 0xB3C0},
      {0x1.ffcp-15, 0x0400, 0x3880},  // half way from the largest subnormal to the smallest normal
      {0x1.fep127, 0x7C00, 0x7F7F},
      {0x1.fefffffffffffp127, 0x7C00, 0x7F7F},
      {0x1.ffp127, 0x7C00, 0x7F80},  // half way to 2^128
      {0x1p128, 0x7C00, 0x7F80},
      {0x1p1023, 0x7C00, 0x7F80},
      {0x1p-133, 0x0000, 0x0001},
      {0x1p-134, 0x0000, 0x0000},
      {0x1.0000000000001p-134, 0x0000, 0x0001},
      {0x1p-1074, 0x0000, 0x0000},
      {-0x1p-1074, 0x8000, 0x8000},
      {infinity, 0x7C00, 0x7F80},
      {-infinity, 0xFC00, 0xFF80},
      // 1 + 2^-11 and 1 + 2^-8 are ties; 2^-40 above them decides, which float cannot hold.
      {0x1.002p0, 0x3C00, 0x3F80},
      {0x1.0020000001p0, 0x3C01, 0x3F80},
      {0x1.01p0, 0x3C04, 0x3F80},
      {0x1.0100000001p0, 0x3C04, 0x3F81},
      {0x1.03p0, 0x3C0C, 0x3F82},
      {0x1.02ffffffffp0, 0x3C0C, 0x3F81},
  };
  for (const row& r : table) {
    INFO("x ", r.x);
    CHECK(round_to<float16>(r.x).bits == r.half);
    CHECK(round_to<bfloat16>(r.x).bits == r.brain);
  }
}

TEST_CASE_TEMPLATE("round_to: every step and midpoint of the format, as floats", F, ALL_FORMATS) {
  check_all_steps<F, float>();
}

TEST_CASE_TEMPLATE("round_to: every step and midpoint of the format, as doubles", F, ALL_FORMATS) {
  check_all_steps<F, double>();
}

TEST_CASE_TEMPLATE("round_to: any floats and doubles", F, ALL_FORMATS) {
  random_source random(20);
  INFO("seed ", random.seed());
  disagreements wrong;
  const auto is_number = [](auto x) { return !std::isnan(x); };
  for (int i = 0; i < 100000; ++i) {
    if (const float x = random.any_float(); is_number(x)) {
      check_rounding<F>(x, wrong);
    }
    if (const auto x = std::bit_cast<double>(random.bits()); is_number(x)) {
      check_rounding<F>(x, wrong);
    }
    // Exponents that the format has.
    const double unit = std::ldexp(1.0, random.integer(-28, 17));
    check_rounding<F>(static_cast<double>(random.real(1.0F, 2.0F)) * unit, wrong);
  }
  for (const float x :
       {0.0F, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::infinity()}) {
    check_rounding<F>(x, wrong);
  }
  for (const double x :
       {0.0, std::numeric_limits<double>::max(), std::numeric_limits<double>::min(),
        std::numeric_limits<double>::denorm_min(), infinity}) {
    check_rounding<F>(x, wrong);
  }
  CHECK(wrong.text() == "");
}

TEST_CASE_TEMPLATE("round_to: every NaN is one of the format, with its sign", F, ALL_FORMATS) {
  random_source random(21);
  INFO("seed ", random.seed());
  disagreements wrong;
  const auto check = [&wrong](auto x, unsigned payload) {
    const unsigned sign = std::signbit(x) ? sign_bit<F> : 0U;
    unsigned expected = sign | layout<F>::nan;
    if constexpr (std::is_same_v<F, bfloat16>) {
      expected |= payload;  // the seven highest bits
    }
    wrong.add(x, round_to<F>(x).bits, expected);
    if constexpr (detent::float8_format<F>) {
      wrong.add(x, round_to<F>(x, false).bits, expected);
      wrong.add(x, round_to<F>(x, true).bits, expected);
    }
  };
  for (int i = 0; i < 10000; ++i) {
    // A payload of few bits, anywhere, is the hard one: where it is cut off, an infinity is left.
    const std::uint64_t bits =
        i % 2 == 0 ? random.bits() : std::uint64_t{1} << random.integer(0, 51);
    const std::uint64_t sign = random.bits() & std::uint64_t{1} << 63;
    const std::uint64_t mantissa = bits & 0xFFFFFFFFFFFFFU;
    if (mantissa != 0) {
      check(std::bit_cast<double>(sign | 0x7FF0000000000000U | mantissa),
            static_cast<unsigned>(mantissa >> 45));
    }
    const auto narrow = static_cast<std::uint32_t>(mantissa >> (i % 3 == 0 ? 29 : 0)) & 0x7FFFFFU;
    if (narrow != 0) {
      check(std::bit_cast<float>(static_cast<std::uint32_t>(sign >> 32) | 0x7F800000U | narrow),
            narrow >> 16);
    }
  }
  CHECK(wrong.text() == "");
}

TEST_CASE_TEMPLATE("conversions do not depend on the rounding mode", F, ALL_FORMATS) {
  random_source random(22);
  INFO("seed ", random.seed());
  std::vector<float> values;
  for (int i = 0; i < 2000; ++i) {
    values.push_back(std::ldexp(random.real(-2.0F, 2.0F), random.integer(-26, 17)));
  }
  std::vector<unsigned> expected;
  for (const float x : values) {
    expected.push_back(round_to<F>(x).bits);
  }
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    disagreements wrong;
    std::fesetround(mode);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const F x = round_to<F>(values[i]);
      wrong.add(values[i], x.bits, expected[i]);
      const float back = to_float(x);
      if (std::isfinite(back)) {
        wrong.add(back, round_to<F>(back).bits, x.bits);
      }
    }
    std::fesetround(FE_TONEAREST);
    INFO("mode ", mode);
    CHECK(wrong.text() == "");
  }
}
