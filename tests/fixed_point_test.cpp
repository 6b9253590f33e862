// SPDX-License-Identifier: BSD-3-Clause
// Fixed-point requantization: values derived by hand, rounding against division with remainder in
// wider integers, the buffer functions against the scalar ones.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/fixed_point.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::fixed_point_multiplier;
using detent::grid;
using detent::quantize_multiplier;
using detent::requantize;
using detent::requantize_dialect;
using test::check_error;
using test::difference;
using test::random_source;
namespace reference = detent::reference;

__extension__ typedef __int128 int128;

constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t two_to_29 = 1 << 29;
constexpr std::int32_t two_to_30 = 1 << 30;
constexpr grid any_int32{smallest, largest};

template <class Q>
constexpr grid grid_of{std::numeric_limits<Q>::min(), std::numeric_limits<Q>::max()};

// Rounded quotients by division with remainder; divisor > 0.

int128 floor_quotient(int128 n, int128 divisor) {
  const int128 quotient = n / divisor;
  return n % divisor < 0 ? quotient - 1 : quotient;
}
int128 half_up(int128 n, int128 divisor) {
  const int128 floor = floor_quotient(n, divisor);
  return 2 * (n - floor * divisor) >= divisor ? floor + 1 : floor;
}
int128 half_away_from_zero(int128 n, int128 divisor) {
  return n < 0 ? -half_up(-n, divisor) : half_up(n, divisor);
}
int128 power_of_two(int exponent) { return int128{1} << exponent; }

std::int32_t clamped(int128 x, grid levels) {
  return static_cast<std::int32_t>(
      std::clamp(x, static_cast<int128>(levels.qmin), static_cast<int128>(levels.qmax)));
}

// The dialects with integers of any size: no step saturates before the grid does.

std::int32_t expected_double_rounding(std::int32_t acc, fixed_point_multiplier m,
                                      std::int32_t zero_point, grid levels) {
  const int128 shifted = acc * power_of_two(std::max(m.shift, 0));
  const int128 high = half_up(shifted * m.mantissa, power_of_two(31));
  const int128 scaled = half_away_from_zero(high, power_of_two(std::max(-m.shift, 0)));
  return clamped(scaled + zero_point, levels);
}
std::int32_t expected_single_rounding(std::int32_t acc, fixed_point_multiplier m,
                                      std::int32_t zero_point, grid levels) {
  const int128 product = static_cast<int128>(acc) * m.mantissa;
  return clamped(half_up(product, power_of_two(31 - m.shift)) + zero_point, levels);
}
std::int32_t expected_by(requantize_dialect dialect, std::int32_t acc, fixed_point_multiplier m,
                         std::int32_t zero_point, grid levels) {
  return dialect == requantize_dialect::double_rounding
             ? expected_double_rounding(acc, m, zero_point, levels)
             : expected_single_rounding(acc, m, zero_point, levels);
}

/// Small, large, next to powers of two and to the ends of the type.
std::int32_t any_accumulator(random_source& random) {
  switch (random.integer(0, 3)) {
    case 0: {
      const std::int32_t power = 1 << random.integer(0, 30);
      return (random.chance(50) ? power : -power) + random.integer(-2, 2);
    }
    case 1:
      return random.chance(50) ? smallest + random.integer(0, 2) : largest - random.integer(0, 2);
    default:
      return static_cast<std::int32_t>(random.bits()) >> random.integer(0, 31);
  }
}

/// Any that is valid; often of few bits, so that there are ties.
fixed_point_multiplier any_multiplier(random_source& random) {
  const int shift = random.integer(-31, 30);
  switch (random.integer(0, 9)) {
    case 0:
      return {0, shift};
    case 1:
      return {largest, shift};
    case 2:
    case 3:
    case 4:
      return {two_to_30 + random.integer(0, 15) * (1 << 26), shift};
    default:
      return {random.integer(two_to_30, largest), shift};
  }
}

template <class Q>
grid any_grid(random_source& random) {
  if (random.chance(50)) {
    return grid_of<Q>;
  }
  const std::int32_t qmin = random.integer(grid_of<Q>.qmin, grid_of<Q>.qmax);
  return {qmin, random.integer(qmin, grid_of<Q>.qmax)};
}

constexpr requantize_dialect dialects[] = {requantize_dialect::double_rounding,
                                           requantize_dialect::single_rounding,
                                           requantize_dialect::rndnu};

#define ALL_OUTPUTS std::uint8_t, std::int8_t, std::uint16_t, std::int16_t

}  // namespace

// ------------------------------------------------------------------------------------ definitions

TEST_CASE("saturating_rounding_doubling_high_mul, by hand") {
  struct row {
    std::int32_t a, b, result;
  };
  constexpr row table[] = {
      {0, 0, 0},
      {0, smallest, 0},
      {smallest, smallest, largest},        // 2^62 / 2^31 = 2^31
      {smallest, largest, -largest},        // -(2^31 - 1)
      {smallest, -largest, largest},        // 2^31 - 1
      {largest, largest, largest - 1},      // (2^62 - 2^32 + 1) / 2^31 = 2^31 - 2 + 2^-31
      {largest, -largest, -(largest - 1)},  // -(2^31 - 2) - 2^-31
      {two_to_30, two_to_30, two_to_29},    // 2^60 / 2^31
      {two_to_30, -two_to_30, -two_to_29},
      {smallest, 1, -1},
      {smallest, -1, 1},
      {smallest, two_to_30, -two_to_30},
      {1, two_to_30, 1},   // 0.5
      {-1, two_to_30, 0},  // -0.5
      {1, -two_to_30, 0},
      {-1, -two_to_30, 1},
      {3, two_to_30, 2},                      // 1.5
      {-3, two_to_30, -1},                    // -1.5
      {5, two_to_30, 3},                      // 2.5
      {-5, two_to_30, -2},                    // -2.5
      {1, two_to_30 - 1, 0},                  // 0.5 - 2^-31
      {1, two_to_30 + 1, 1},                  // 0.5 + 2^-31
      {-1, two_to_30 - 1, 0},                 // -0.5 + 2^-31
      {-1, two_to_30 + 1, -1},                // -0.5 - 2^-31
      {-3, two_to_30 + 1, -2},                // -1.5 - 3 * 2^-31
      {largest, two_to_30, two_to_30},        // 2^30 - 0.5
      {-largest, two_to_30, -two_to_30 + 1},  // -2^30 + 0.5
  };
  for (const row& r : table) {
    INFO(r.a, " * ", r.b);
    CHECK(reference::saturating_rounding_doubling_high_mul(r.a, r.b) == r.result);
    CHECK(reference::saturating_rounding_doubling_high_mul(r.b, r.a) == r.result);
  }
}

TEST_CASE("rounding_divide_by_power_of_two, by hand") {
  struct row {
    std::int32_t x;
    int exponent;
    std::int32_t result;
  };
  constexpr row table[] = {
      {0, 0, 0},
      {0, 31, 0},
      {-7, 0, -7},
      {largest, 0, largest},
      {smallest, 0, smallest},
      {1, 1, 1},                // 0.5
      {-1, 1, -1},              // -0.5
      {3, 1, 2},                // 1.5
      {-3, 1, -2},              // -1.5
      {5, 1, 3},                // 2.5
      {-5, 1, -3},              // -2.5
      {1, 2, 0},                // 0.25
      {-1, 2, 0},               // -0.25
      {2, 2, 1},                // 0.5
      {-2, 2, -1},              // -0.5
      {3, 2, 1},                // 0.75
      {-3, 2, -1},              // -0.75
      {6, 2, 2},                // 1.5
      {-6, 2, -2},              // -1.5
      {-5, 2, -1},              // -1.25
      {-7, 2, -2},              // -1.75
      {largest, 1, two_to_30},  // 2^30 - 0.5
      {smallest, 1, -two_to_30},
      {smallest + 1, 1, -two_to_30},  // -2^30 + 0.5
      {largest, 30, 2},               // 2 - 2^-30
      {smallest, 30, -2},
      {largest, 31, 1},  // 1 - 2^-31
      {smallest, 31, -1},
      {two_to_30, 31, 1},    // 0.5
      {-two_to_30, 31, -1},  // -0.5
      {two_to_30 - 1, 31, 0},
      {-two_to_30 + 1, 31, 0},
  };
  for (const row& r : table) {
    INFO(r.x, " / 2^", r.exponent);
    CHECK(reference::rounding_divide_by_power_of_two(r.x, r.exponent) == r.result);
  }
}

TEST_CASE("saturating_left_shift, by hand") {
  CHECK(reference::saturating_left_shift(0, 31) == 0);
  CHECK(reference::saturating_left_shift(-5, 0) == -5);
  CHECK(reference::saturating_left_shift(smallest, 0) == smallest);
  CHECK(reference::saturating_left_shift(3, 4) == 48);
  CHECK(reference::saturating_left_shift(-3, 4) == -48);
  CHECK(reference::saturating_left_shift(1, 30) == two_to_30);
  CHECK(reference::saturating_left_shift(1, 31) == largest);
  CHECK(reference::saturating_left_shift(-1, 31) == smallest);  // exactly
  CHECK(reference::saturating_left_shift(-2, 31) == smallest);
  CHECK(reference::saturating_left_shift(two_to_30, 1) == largest);
  CHECK(reference::saturating_left_shift(-two_to_30, 1) == smallest);
  CHECK(reference::saturating_left_shift(-two_to_30 - 1, 1) == smallest);
  CHECK(reference::saturating_left_shift(largest, 31) == largest);
  CHECK(reference::saturating_left_shift(smallest, 31) == smallest);
}

TEST_CASE("the steps against wide division") {
  random_source random(40);
  INFO("seed ", random.seed());
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const std::int32_t a = any_accumulator(random);
    const std::int32_t b = any_accumulator(random);
    const int n = random.integer(0, 31);
    const int128 product = static_cast<int128>(a) * b;
    wrong += reference::saturating_rounding_doubling_high_mul(a, b) !=
             clamped(half_up(product, power_of_two(31)), any_int32);
    wrong += reference::rounding_divide_by_power_of_two(a, n) !=
             clamped(half_away_from_zero(a, power_of_two(n)), any_int32);
    wrong += reference::saturating_left_shift(a, n) != clamped(a * power_of_two(n), any_int32);
  }
  CHECK(wrong == 0);
}

TEST_CASE("the dialects, by hand") {
  struct row {
    std::int32_t acc;
    fixed_point_multiplier m;
    std::int32_t twice, once;  // rounded
  };
  constexpr fixed_point_multiplier one{two_to_30, 1};
  constexpr fixed_point_multiplier half{two_to_30, 0};
  constexpr fixed_point_multiplier quarter{two_to_30, -1};
  constexpr fixed_point_multiplier three{3 * two_to_29, 2};
  constexpr row table[] = {
      {12345, one, 12345, 12345},
      {-12345, one, -12345, -12345},
      {-7, three, -21, -21},
      {7, {0, 0}, 0, 0},
      {smallest, {0, 30}, 0, 0},
      // 0.5 and -0.5: both round the product upwards.
      {1, half, 1, 1},
      {-1, half, 0, 0},
      {-3, half, -1, -1},
      // 0.25: the product rounds to 1, its half to 1.
      {1, quarter, 1, 0},
      {-1, quarter, 0, 0},
      // 0.5: 1, then 0.5 to 1; -0.5: -1, then -0.5 away from zero.
      {2, quarter, 1, 1},
      {-2, quarter, -1, 0},
      // -0.75: -1.5 to -1, then -0.5 to -1.
      {-3, quarter, -1, -1},
      // 1.25: 2.5 to 3, then 1.5 to 2; -1.25: -2.5 to -2, then -1.
      {5, quarter, 2, 1},
      {-5, quarter, -1, -1},
      // -1.5: -3, then away from zero, or upwards.
      {-6, quarter, -2, -1},
      // 2^31 * 2^-32 = 0.5 less 2^-32, and -0.5.
      {largest, {two_to_30, -31}, 1, 0},
      {smallest, {two_to_30, -31}, -1, 0},
  };
  for (const row& r : table) {
    INFO(r.acc, " * ", r.m.mantissa, " * 2^(", r.m.shift, " - 31)");
    CHECK(reference::requantize_double_rounding(r.acc, r.m, 0, any_int32) == r.twice);
    CHECK(reference::requantize_single_rounding(r.acc, r.m, 0, any_int32) == r.once);
    CHECK(reference::requantize_rndnu(r.acc, r.m, 0, any_int32) == r.once);
  }
}

TEST_CASE("the dialects: zero point, grid, saturation") {
  constexpr grid s8{-128, 127};
  constexpr fixed_point_multiplier one{two_to_30, 1};
  constexpr fixed_point_multiplier most{largest, 30};
  for (const auto& definition :
       {reference::requantize_double_rounding, reference::requantize_single_rounding,
        reference::requantize_rndnu}) {
    CHECK(definition(100, one, 27, s8) == 127);
    CHECK(definition(101, one, 27, s8) == 127);
    CHECK(definition(99, one, 27, s8) == 126);
    CHECK(definition(-100, one, -28, s8) == -128);
    CHECK(definition(-101, one, -28, s8) == -128);
    CHECK(definition(-50, one, 3, {-20, 5}) == -20);
    CHECK(definition(50, one, 3, {-20, 5}) == 5);
    CHECK(definition(1, most, 0, {0, 65535}) == 65535);
    CHECK(definition(-1, most, 65535, {0, 65535}) == 0);
    CHECK(definition(largest, most, -128, s8) == 127);
    CHECK(definition(smallest, most, 127, s8) == -128);
    // The sum with the zero point is beyond 32 bits.
    CHECK(definition(largest, one, 65535, {0, 65535}) == 65535);
    CHECK(definition(smallest, one, -32768, {-32768, 32767}) == -32768);
  }
}

TEST_CASE_TEMPLATE("the dialects against wide division", Q, ALL_OUTPUTS) {
  random_source random(41);
  INFO("seed ", random.seed());
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const fixed_point_multiplier m = any_multiplier(random);
    std::int32_t acc = any_accumulator(random);
    if (random.chance(50)) {
      // One that lands within the grid or beside it.
      const double real = std::ldexp(m.mantissa, m.shift - 31);
      const double near = (random.integer(-70000, 70000) + 0.5) / (real > 0.0 ? real : 1.0);
      acc = std::fabs(near) < 2147483000.0 ? static_cast<std::int32_t>(near) + random.integer(-1, 1)
                                           : acc;
    }
    const grid levels = any_grid<Q>(random);
    const std::int32_t zero_point = random.integer(levels.qmin, levels.qmax);
    wrong += reference::requantize_double_rounding(acc, m, zero_point, levels) !=
             expected_double_rounding(acc, m, zero_point, levels);
    wrong += reference::requantize_single_rounding(acc, m, zero_point, levels) !=
             expected_single_rounding(acc, m, zero_point, levels);
    wrong += reference::requantize_rndnu(acc, m, zero_point, levels) !=
             expected_single_rounding(acc, m, zero_point, levels);
  }
  CHECK(wrong == 0);
}

// ------------------------------------------------------------------------------------ multipliers

TEST_CASE("quantize_multiplier, by hand") {
  struct row {
    double multiplier;
    fixed_point_multiplier result;
  };
  constexpr row table[] = {
      {0.0, {0, 0}},
      {-0.0, {0, 0}},
      {1.0, {two_to_30, 1}},
      {0.5, {two_to_30, 0}},
      {0.75, {3 * two_to_29, 0}},
      {3.0, {3 * two_to_29, 2}},
      {256.0, {two_to_30, 9}},
      {0.1, {1717986918, -3}},              // 0.8 * 2^31 = 1717986918.4
      {1.0 / 3.0, {1431655765, -1}},        // 2^32 / 3 = 1431655765.33
      {0.5 + 0x1p-32, {two_to_30 + 1, 0}},  // 2^30 + 0.5
      {0.5 + 0x1.fp-33, {two_to_30, 0}},    // a little less
      {1.0 - 0x1p-31, {largest, 0}},
      {1.0 - 0x1p-32, {two_to_30, 1}},  // 2^31 - 0.5 carries
      {1.0 - 0x1.1p-32, {largest, 0}},  // a little less does not
      {1.0 - 0x1p-53, {two_to_30, 1}},
      {0x1p-32, {two_to_30, -31}},
      {0x1.ffffffff8p-33, {two_to_30, -31}},  // 2^31 - 2^-3 carries to 2^-32
      {0x1.fffffffcp-33, {0, 0}},             // 2^31 - 1
      {0x1p-33, {0, 0}},
      {std::numeric_limits<double>::denorm_min(), {0, 0}},
      {0x1p29, {two_to_30, 30}},
      {0x1.fffffffcp29, {largest, 30}},
      {0x1.ffffffffp29, {largest, 30}},  // 2^31 - 2^-1 carries to 2^30
      {0x1p30, {largest, 30}},
      {std::numeric_limits<double>::max(), {largest, 30}},
  };
  for (const row& r : table) {
    const fixed_point_multiplier m = quantize_multiplier(r.multiplier);
    INFO(r.multiplier, ": ", m.mantissa, " * 2^(", m.shift, " - 31)");
    CHECK(m == r.result);
  }
}

TEST_CASE("quantize_multiplier is the nearest one") {
  random_source random(42);
  INFO("seed ", random.seed());
  int wrong = 0;
  for (int i = 0; i < 100000; ++i) {
    const double fraction = static_cast<double>(random.bits() >> 11) * 0x1p-53;
    const double multiplier = std::ldexp(0.5 + fraction / 2.0, random.integer(-31, 29));
    const fixed_point_multiplier m = quantize_multiplier(multiplier);
    const double error = multiplier - std::ldexp(m.mantissa, m.shift - 31);  // exact
    wrong += m.mantissa < two_to_30 || m.shift < -31 || m.shift > 30;
    wrong += std::fabs(error) > std::ldexp(0.5, m.shift - 31);
    // Floats are exact.
    const auto narrow = static_cast<float>(multiplier);
    const fixed_point_multiplier exact = quantize_multiplier(static_cast<double>(narrow));
    wrong += std::ldexp(exact.mantissa, exact.shift - 31) != static_cast<double>(narrow);
  }
  CHECK(wrong == 0);
}

TEST_CASE("multipliers beyond the range give what the exact product would give") {
  // Half of 2^-32 and less: no accumulator reaches 0.5. 2^30 and more: every one but 0 saturates.
  const fixed_point_multiplier least = quantize_multiplier(0x1.fp-33);
  const fixed_point_multiplier most = quantize_multiplier(1e12);
  for (const requantize_dialect dialect : dialects) {
    const std::int32_t acc[] = {smallest, -1, 0, 1, largest};
    std::vector<std::int16_t> q(5);
    requantize(acc, q, least, 5, grid_of<std::int16_t>, dialect);
    CHECK(q == std::vector<std::int16_t>{5, 5, 5, 5, 5});
    requantize(acc, q, most, 5, grid_of<std::int16_t>, dialect);
    CHECK(q == std::vector<std::int16_t>{-32768, -32768, 5, 32767, 32767});
  }
}

// ---------------------------------------------------------------------------------------- buffers

TEST_CASE_TEMPLATE("requantize: per tensor and per channel, at every size", Q, ALL_OUTPUTS) {
  random_source random(43);
  INFO("seed ", random.seed());
  test::guarded_memory memory(1200);
  for (std::size_t columns = 1; columns <= 40; ++columns) {
    for (const requantize_dialect dialect : dialects) {
      const std::size_t rows = random.size(0, 5);
      const std::size_t n = rows * columns;
      std::vector<std::int32_t> acc(n);
      for (std::int32_t& a : acc) {
        a = any_accumulator(random);
      }
      std::vector<fixed_point_multiplier> multipliers(columns);
      for (fixed_point_multiplier& m : multipliers) {
        m = any_multiplier(random);
      }
      const grid levels = any_grid<Q>(random);
      const std::int32_t zero_point = random.integer(levels.qmin, levels.qmax);
      INFO(rows, " x ", columns, ", dialect ", static_cast<int>(dialect));
      std::vector<Q> by_tensor(n);
      std::vector<Q> by_channel(n);
      for (std::size_t i = 0; i < n; ++i) {
        by_tensor[i] =
            static_cast<Q>(expected_by(dialect, acc[i], multipliers[0], zero_point, levels));
        by_channel[i] = static_cast<Q>(
            expected_by(dialect, acc[i], multipliers[i % columns], zero_point, levels));
      }
      for (const bool at_end : {false, true}) {
        const std::span<Q> q = at_end ? memory.back<Q>(n) : memory.front<Q>(n, columns % 3);
        memory.repaint();
        requantize(acc, q, multipliers[0], zero_point, levels, dialect);
        CHECK(difference(q, by_tensor) == "");
        CHECK(memory.intact_around(q));
        memory.repaint();
        requantize(acc, q, multipliers, zero_point, levels, dialect);
        CHECK(difference(q, by_channel) == "");
        CHECK(memory.intact_around(q));
      }
    }
  }
}

TEST_CASE_TEMPLATE("requantize: what it refuses", Q, ALL_OUTPUTS) {
  constexpr auto invalid = error_kind::invalid_argument;
  constexpr auto mismatch = error_kind::shape_mismatch;
  constexpr auto dialect = requantize_dialect::double_rounding;
  constexpr grid full = grid_of<Q>;
  constexpr fixed_point_multiplier one{two_to_30, 1};
  const std::vector<std::int32_t> acc(12, 1);
  const std::span<const std::int32_t> in(acc);
  const std::vector<Q> untouched(12, Q{42});
  std::vector<Q> q = untouched;

  for (const grid levels :
       {grid{full.qmin - 1, full.qmax}, grid{full.qmin, full.qmax + 1}, grid{6, 5}}) {
    check_error(
        invalid,
        {"requantize", "grid", std::to_string(levels.qmin) + ".." + std::to_string(levels.qmax)},
        [&] { requantize(acc, q, one, 5, levels, dialect); });
  }
  for (const std::int32_t zero_point : {2, 91, smallest, largest}) {
    check_error(invalid, {"requantize", "zero point " + std::to_string(zero_point), "3..90"}, [&] {
      requantize(acc, q, one, zero_point, {3, 90}, dialect);
    });
  }
  for (const fixed_point_multiplier m : {fixed_point_multiplier{-1, 0},
                                         {1, 0},
                                         {two_to_30 - 1, 0},
                                         {smallest, 0},
                                         {two_to_30, -32},
                                         {two_to_30, 31},
                                         {0, 31}}) {
    const std::string text =
        "multiplier " + std::to_string(m.mantissa) + " * 2^(" + std::to_string(m.shift) + " - 31)";
    check_error(invalid, {"requantize", text}, [&] { requantize(acc, q, m, 5, full, dialect); });
    const std::vector<fixed_point_multiplier> last{one, one, m};
    check_error(invalid, {"requantize", text}, [&] { requantize(acc, q, last, 5, full, dialect); });
  }
  check_error(mismatch, {"requantize", "11", "12"},
              [&] { requantize(in.first(11), q, one, 5, full, dialect); });
  check_error(mismatch, {"requantize", "12", "0"},
              [&] { requantize(in, std::span<Q>(), one, 5, full, dialect); });
  const std::vector<fixed_point_multiplier> five(5, one);
  check_error(mismatch, {"requantize", "5 multipliers", "12 elements"},
              [&] { requantize(acc, q, five, 5, full, dialect); });
  check_error(mismatch, {"requantize", "0 multipliers", "12 elements"}, [&] {
    requantize(acc, q, std::span<const fixed_point_multiplier>(), 5, full, dialect);
  });
  check_error(invalid, {"requantize", "null", "12"}, [&] {
    requantize(std::span<const std::int32_t>(static_cast<const std::int32_t*>(nullptr), 12), q, one,
               5, full, dialect);
  });
  check_error(invalid, {"requantize", "null", "12"}, [&] {
    requantize(acc, std::span<Q>(static_cast<Q*>(nullptr), 12), one, 5, full, dialect);
  });
  check_error(invalid, {"requantize", "null", "3 multipliers"}, [&] {
    requantize(acc, q,
               std::span<const fixed_point_multiplier>(
                   static_cast<const fixed_point_multiplier*>(nullptr), 3),
               5, full, dialect);
  });
  check_error(invalid, {"requantize", "dialect", "9"},
              [&] { requantize(acc, q, one, 5, full, static_cast<requantize_dialect>(9)); });
  CHECK(q == untouched);

  // No elements, with and without channels.
  const std::span<const fixed_point_multiplier> no_multipliers;
  for (const std::span<Q> none : {std::span<Q>(), std::span<Q>(q).subspan(3, 0)}) {
    CHECK_NOTHROW(requantize(in.first(0), none, one, 5, full, dialect));
    CHECK_NOTHROW(requantize(in.first(0), none, five, 5, full, dialect));
    CHECK_NOTHROW(requantize(in.first(0), none, no_multipliers, 5, full, dialect));
  }
  CHECK(q == untouched);
}

TEST_CASE("quantize_multiplier: what it refuses") {
  for (const double multiplier :
       {-1.0, -0x1p-1074, std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    check_error(error_kind::invalid_argument, {"quantize_multiplier", "multiplier"},
                [&] { static_cast<void>(quantize_multiplier(multiplier)); });
  }
}
