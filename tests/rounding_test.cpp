// SPDX-License-Identifier: BSD-3-Clause
// The rounding rules against definitions in wider arithmetic, and the policies made of them.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <tuple>
#include <typeinfo>
#include <vector>

#include <doctest/doctest.h>

#include <detent/rounding.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using detent::full_grid;
using detent::grid;
using detent::narrow_grid;
using detent::quant_params;
using detent::quantize_policy;
using test::difference;
using test::random_source;
using test::same;
namespace division = detent::division;
namespace reference = detent::reference;
namespace rounding = detent::rounding;
namespace zero_point_order = detent::zero_point_order;

using u8 = std::uint8_t;
using s8 = std::int8_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

// ------------------------------------------------------------------------------- the definitions

// As the documentation states them. A long double holds x + 1/2 for every float that is not tiny,
// and for those it errs on the right side of the tie.
static_assert(std::numeric_limits<long double>::digits >= 53);

long double define(rounding::half_even, long double x) { return std::nearbyint(x); }
long double define(rounding::half_up, long double x) { return std::floor(x + 0.5L); }
long double define(rounding::half_down, long double x) { return std::ceil(x - 0.5L); }
long double define(rounding::half_toward_zero, long double x) {
  return std::copysign(std::ceil(std::fabs(x) - 0.5L), x);
}
long double define(rounding::half_away_from_zero, long double x) {
  return std::copysign(std::floor(std::fabs(x) + 0.5L), x);
}
long double define(rounding::up, long double x) { return std::ceil(x); }
long double define(rounding::down, long double x) { return std::floor(x); }
long double define(rounding::toward_zero, long double x) { return std::trunc(x); }

template <class Rule>
long double define(Rule rule, long double x, std::uint64_t) {
  return define(rule, x);
}
long double define(rounding::stochastic rule, long double x, std::uint64_t index) {
  const long double below = std::floor(x);
  return below + (static_cast<long double>(rule.uniform(index)) < x - below ? 1.0L : 0.0L);
}

/// The definition's value as a float, with the sign of x on a zero.
template <class Rule>
float defined(Rule rule, float x, std::uint64_t index = 0) {
  if (!std::isfinite(x)) {
    return x;
  }
  return std::copysign(static_cast<float>(define(rule, static_cast<long double>(x), index)), x);
}

// ------------------------------------------------------------------------------------- the inputs

/// Every float from `reach` steps below x to `reach` steps above, and their negatives.
void append_around(std::vector<float>& values, float x, std::uint32_t reach) {
  const auto middle = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t first = middle > reach ? middle - reach : 0;
  for (std::uint32_t bits = first; bits <= middle + reach; ++bits) {
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(-values.back());
  }
}

const std::vector<float>& hard_floats() {
  static const std::vector<float> values = [] {
    std::vector<float> v = {infinity, -infinity, quiet_nan, std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest()};
    for (int halves = 0; halves <= 11; ++halves) {
      append_around(v, static_cast<float>(halves) * 0.5F, 4096);
    }
    // The ends and the middle of each binade from where x + 1/2 is no float to where all are
    // integers and beyond int32.
    for (int exponent = -32; exponent <= 33; ++exponent) {
      append_around(v, std::ldexp(1.0F, exponent), 512);
      append_around(v, std::ldexp(1.5F, exponent), 512);
    }
    append_around(v, std::numeric_limits<float>::min(), 64);
    // Quarters, halves and integers only: 2^21 .. 2^24.
    for (const float first : {0x1p21F, 0x1p22F, 0x1p23F}) {
      append_around(v, first + 32768.0F, 32768);
    }
    random_source random(1);
    for (int i = 0; i < 50000; ++i) {
      v.push_back(random.any_float());
      v.push_back(random.real(-300.0F, 300.0F));
    }
    return v;
  }();
  return values;
}

template <class Function>
std::vector<float> map(const std::vector<float>& x, Function function) {
  std::vector<float> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), function);
  return y;
}

}  // namespace

#define DETENT_VALUE_ROUNDINGS                                                             \
  rounding::half_even, rounding::half_up, rounding::half_down, rounding::half_toward_zero, \
      rounding::half_away_from_zero, rounding::up, rounding::down, rounding::toward_zero

// ------------------------------------------------------------------------------------------ rules

namespace {

constexpr float table_inputs[] = {-2.5F, -1.5F, -0.75F, -0.5F, -0.25F, 0.25F,
                                  0.5F,  0.75F, 1.5F,   2.5F,  -0.0F,  0.0F};

template <class Rule>
void check_row(const char* name, Rule rule, const float (&expected)[std::size(table_inputs)]) {
  for (std::size_t i = 0; i < std::size(table_inputs); ++i) {
    INFO(name, " of ", table_inputs[i], " is ", rule(table_inputs[i]));
    CHECK(same(rule(table_inputs[i]), expected[i]));
    // The definitions that the other tests trust obey the table as well.
    CHECK(same(defined(rule, table_inputs[i]), expected[i]));
  }
}

}  // namespace

TEST_CASE("rounding: the truth table") {
  constexpr float z = -0.0F;
  check_row("half_even", rounding::half_even{}, {-2, -2, -1, z, z, 0, 0, 1, 2, 2, z, 0});
  check_row("half_up", rounding::half_up{}, {-2, -1, -1, z, z, 0, 1, 1, 2, 3, z, 0});
  check_row("half_down", rounding::half_down{}, {-3, -2, -1, -1, z, 0, 0, 1, 1, 2, z, 0});
  check_row("half_toward_zero", rounding::half_toward_zero{},
            {-2, -1, -1, z, z, 0, 0, 1, 1, 2, z, 0});
  check_row("half_away_from_zero", rounding::half_away_from_zero{},
            {-3, -2, -1, -1, z, 0, 1, 1, 2, 3, z, 0});
  check_row("up", rounding::up{}, {-2, -1, z, z, z, 1, 1, 1, 2, 3, z, 0});
  check_row("down", rounding::down{}, {-3, -2, -1, -1, -1, 0, 0, 0, 1, 2, z, 0});
  check_row("toward_zero", rounding::toward_zero{}, {-2, -1, z, z, z, 0, 0, 0, 1, 2, z, 0});
}

TEST_CASE("rounding: x + 0.5F and x - 0.5F would be wrong") {
  CHECK(same(rounding::half_up{}(0.49999997F), 0.0F));
  CHECK(same(rounding::half_down{}(-0.49999997F), -0.0F));
  CHECK(same(rounding::half_away_from_zero{}(0.49999997F), 0.0F));
  CHECK(same(rounding::half_toward_zero{}(-0.49999997F), -0.0F));
  CHECK(rounding::half_up{}(8388609.0F) == 8388609.0F);
  CHECK(rounding::half_away_from_zero{}(-8388609.0F) == -8388609.0F);
  CHECK(rounding::half_down{}(4194304.5F) == 4194304.0F);
  CHECK(rounding::half_up{}(-8388607.5F) == -8388607.0F);
  CHECK(rounding::up{}(8388607.5F) == 8388608.0F);
  CHECK(rounding::down{}(-1e-45F) == -1.0F);
}

TEST_CASE_TEMPLATE("rounding: the definition, wherever it is hard", Rule, DETENT_VALUE_ROUNDINGS) {
  INFO(typeid(Rule).name());
  const Rule rule;
  const auto& x = hard_floats();
  CHECK(difference(map(x, rule), map(x, [&](float v) { return defined(rule, v); })) == "");
  CHECK(std::isnan(rule(quiet_nan)));
  CHECK(rule(infinity) == infinity);
  CHECK(rule(-infinity) == -infinity);
}

TEST_CASE_TEMPLATE("rounding does not depend on the rounding mode", Rule, DETENT_VALUE_ROUNDINGS) {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 262147) {
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (int k = -600; k <= 600; ++k) {
    x.push_back(static_cast<float>(k) / 4.0F);
    x.push_back(std::nextafter(static_cast<float>(k) / 4.0F, infinity));
  }
  const std::vector<float> expected = map(x, [](float v) { return defined(Rule{}, v); });
  for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const std::vector<float> rounded = map(x, Rule{});
    std::fesetround(FE_TONEAREST);
    INFO(typeid(Rule).name(), " mode ", mode);
    CHECK(difference(rounded, expected) == "");
  }
}

// ------------------------------------------------------------------------------------- stochastic

TEST_CASE("stochastic: the generator is SplitMix64") {
  // The first outputs that are published for this seed.
  constexpr std::uint64_t published[] = {6457827717110365317U, 3203168211198807973U,
                                         9817491932198370423U, 4593380528125082431U,
                                         16408922859458223821U};
  for (std::size_t i = 0; i < std::size(published); ++i) {
    CHECK(rounding::stochastic{1234567}.bits(i) == published[i]);
  }
  // An implementation with a state, many steps on.
  random_source random(2);
  INFO("seed ", random.seed());
  const rounding::stochastic rule{random.seed()};
  for (std::uint64_t i = 0; i < 1000; ++i) {
    CHECK(rule.bits(i) == random.bits());
  }
}

TEST_CASE("stochastic: uniform numbers are multiples of 2^-24 in [0, 1)") {
  random_source random(3);
  INFO("seed ", random.seed());
  const rounding::stochastic rule{random.bits()};
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t index = random.bits();
    const float u = rule.uniform(index);
    REQUIRE(u >= 0.0F);
    REQUIRE(u < 1.0F);
    REQUIRE(u == std::ldexp(static_cast<float>(rule.bits(index) >> 40), -24));
  }
}

TEST_CASE("stochastic: the definition, wherever it is hard") {
  random_source random(4);
  INFO("seed ", random.seed());
  const rounding::stochastic rule{random.bits()};
  const auto& x = hard_floats();
  std::vector<float> rounded(x.size());
  std::vector<float> expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint64_t index = random.bits();
    rounded[i] = rule(x[i], index);
    expected[i] = defined(rule, x[i], index);
  }
  CHECK(difference(rounded, expected) == "");
}

TEST_CASE("stochastic: fractions next to the uniform number") {
  // x - floor(x) equal to u must round down, one step more must round up, on both sides of zero.
  random_source random(5);
  INFO("seed ", random.seed());
  const rounding::stochastic rule{random.bits()};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float u = rule.uniform(i);
    for (const float x : {u, std::nextafter(u, 0.0F), std::nextafter(u, 1.0F), u - 1.0F,
                          std::nextafter(u - 1.0F, 0.0F), std::nextafter(u - 1.0F, -1.0F)}) {
      if (!same(rule(x, i), defined(rule, x, i))) {
        FAIL("x ", x, " u ", u, " is rounded to ", rule(x, i));
      }
    }
    if (rule(u, i) != 0.0F || rule(u - 1.0F, i) != -1.0F) {
      FAIL("u ", u, " rounds up");
    }
  }
}

TEST_CASE("stochastic: integers are untouched, whatever the random number") {
  using parts = detent::detail::rounding_parts<float, bool>;
  for (const float u : {0.0F, 0x1p-24F, 0.5F, 1.0F - 0x1p-24F}) {
    for (const bool negative : {false, true}) {
      CHECK_FALSE(rounding::stochastic::rounds_away(parts{0.0F, negative}, u));
    }
  }
  const rounding::stochastic rule{6};
  for (int k = -1000; k <= 1000; ++k) {
    for (std::uint64_t index = 0; index < 100; ++index) {
      if (rule(static_cast<float>(k), index) != static_cast<float>(k)) {
        FAIL(k, " is changed at index ", index);
      }
    }
  }
  CHECK(std::isnan(rule(quiet_nan, 0)));
  CHECK(rule(infinity, 0) == infinity);
  CHECK(rule(-infinity, 0) == -infinity);
  CHECK(same(rule(-0.0F, 0), -0.0F));
  CHECK(rule(-16777217.0F, 0) == -16777217.0F);
}

TEST_CASE("stochastic: the mean is x") {
  random_source random(7);
  INFO("seed ", random.seed());
  constexpr int count = 100000;
  for (const float x : {0.5F, -0.5F, 0.1F, -0.1F, 2.25F, -7.875F, 0.001F, -0.001F, 100.99F}) {
    const rounding::stochastic rule{random.bits()};
    const std::uint64_t first = random.bits();
    double sum = 0.0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const float rounded = rule(x, first + i);
      if (rounded != std::floor(x) && rounded != std::floor(x) + 1.0F) {
        FAIL(x, " is rounded to ", rounded);
      }
      sum += static_cast<double>(rounded);
    }
    const double exact = static_cast<double>(x);
    const double fraction = exact - std::floor(exact);
    const double deviation = std::sqrt(fraction * (1.0 - fraction) / count);
    INFO("x ", x, " mean ", sum / count);
    CHECK(std::fabs(sum / count - exact) < 6.0 * deviation);
  }
}

TEST_CASE("stochastic: neighbouring elements and neighbouring seeds are not correlated") {
  random_source random(8);
  INFO("seed ", random.seed());
  constexpr int count = 100000;
  const std::uint64_t seed = random.bits();
  const auto check = [&](const char* name, auto other) {
    double sum = 0.0;
    for (std::uint64_t i = 0; i < count; ++i) {
      sum += (static_cast<double>(rounding::stochastic{seed}.uniform(i)) - 0.5) *
             (static_cast<double>(other(i)) - 0.5);
    }
    // A product of two such numbers has variance 1/144.
    INFO(name);
    CHECK(std::fabs(sum / count) < 6.0 / 12.0 / std::sqrt(count));
  };
  for (const std::uint64_t lag : {1U, 2U, 4U, 8U, 16U, 1024U}) {
    check("index", [&](std::uint64_t i) { return rounding::stochastic{seed}.uniform(i + lag); });
  }
  for (const std::uint64_t step : {1U, 2U, 65536U}) {
    check("seed", [&](std::uint64_t i) { return rounding::stochastic{seed + step}.uniform(i); });
  }
}

TEST_CASE("stochastic: any split gives the same bits") {
  random_source random(9);
  INFO("seed ", random.seed());
  const quantize_policy<rounding::stochastic> policy{{random.bits()}};
  const quant_params p{0.1F, 3};
  const std::vector<float> x = random.reals(5000, -15.0F, 15.0F);
  std::vector<std::int32_t> whole(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    whole[i] = reference::quantize(x[i], p, full_grid<s8>, policy, i);
  }
  for (int round = 0; round < 10; ++round) {
    // Cut anywhere, work from the last piece to the first, each with a policy of its own.
    std::vector<std::int32_t> pieces(x.size());
    for (std::size_t end = x.size(); end > 0;) {
      const std::size_t first = end - random.size(1, std::min<std::size_t>(end, 700));
      const auto copy = policy;
      for (std::size_t i = first; i < end; ++i) {
        pieces[i] = reference::quantize(x[i], p, full_grid<s8>, copy, i);
      }
      end = first;
    }
    CHECK(difference(pieces, whole) == "");
  }
  // It is the index that decides, and the seed.
  const auto count_same = [&](std::uint64_t seed, std::uint64_t shift) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const quantize_policy<rounding::stochastic> other{{seed}};
      count += reference::quantize(x[i], p, full_grid<s8>, other, i + shift) == whole[i] ? 1U : 0U;
    }
    return count;
  };
  CHECK(count_same(policy.rounding.seed, 0) == x.size());
  CHECK(count_same(policy.rounding.seed, 1) < x.size() * 9 / 10);
  CHECK(count_same(policy.rounding.seed + 1, 0) < x.size() * 9 / 10);
}

// --------------------------------------------------------------------------------------- policies

namespace {

// The documented formulas in double: quotient, product, reciprocal and sum of floats, rounded to
// double and then to float, are rounded correctly, as 53 >= 2 * 24 + 2.

float define_steps(division::divide, float x, float scale) {
  return static_cast<float>(static_cast<double>(x) / static_cast<double>(scale));
}
float define_steps(division::reciprocal, float x, float scale) {
  const auto factor = static_cast<float>(1.0 / static_cast<double>(scale));
  return static_cast<float>(static_cast<double>(x) * static_cast<double>(factor));
}

template <class Rule>
long double define_grid(zero_point_order::after_rounding, float steps, std::int32_t zero_point,
                        Rule rule, std::uint64_t index) {
  return static_cast<long double>(defined(rule, steps, index)) + zero_point;
}
template <class Rule>
long double define_grid(zero_point_order::before_rounding, float steps, std::int32_t zero_point,
                        Rule rule, std::uint64_t index) {
  const auto shifted = static_cast<float>(static_cast<double>(steps) + zero_point);
  return static_cast<long double>(defined(rule, shifted, index));
}

template <class Policy>
std::int32_t define_to_grid(float steps, std::int32_t zero_point, grid levels, const Policy& policy,
                            std::uint64_t index) {
  if (std::isnan(steps)) {
    return zero_point;
  }
  const long double q =
      define_grid(typename Policy::order_type{}, steps, zero_point, policy.rounding, index);
  return static_cast<std::int32_t>(std::clamp<long double>(q, levels.qmin, levels.qmax));
}

/// f(policy) for every combination.
template <class Function>
void for_each_policy(std::uint64_t seed, Function f) {
  const auto with_rules = [&]<class Division, class Order>(Division, Order) {
    const auto with = [&]<class... Rule>(Rule... rule) {
      (f(quantize_policy<Rule, Division, Order>{rule}), ...);
    };
    std::apply(with, std::tuple<DETENT_VALUE_ROUNDINGS>{});
    with(rounding::stochastic{seed});
  };
  with_rules(division::divide{}, zero_point_order::after_rounding{});
  with_rules(division::divide{}, zero_point_order::before_rounding{});
  with_rules(division::reciprocal{}, zero_point_order::after_rounding{});
  with_rules(division::reciprocal{}, zero_point_order::before_rounding{});
}

constexpr grid grids[] = {full_grid<u8>, full_grid<s8>,   narrow_grid<s8>, {0, 15},
                          {5, 5},        {-32768, 32767}, {-65536, 65535}, {-10, -1}};

/// Ties of whatever zero point, their neighbours, bounds, special values, random bits.
std::vector<float> hard_inputs(random_source& random, float scale, grid levels) {
  std::vector<float> x = {0.0F,           -0.0F,         infinity,    -infinity,   quiet_nan,
                          -quiet_nan,     1e-45F,        -1e-45F,     1e-38F,      -1e-38F,
                          3.4e38F,        -3.4e38F,      8388608.0F,  -8388609.0F, 2147483648.0F,
                          -2147483648.0F, 4294967296.0F, 0.49999997F, -0.49999997F};
  for (int i = 0; i < 150; ++i) {
    const int k = random.integer(-levels.qmax + levels.qmin - 3, levels.qmax - levels.qmin + 3);
    const float tie = (static_cast<float>(k) + 0.5F) * scale;
    x.insert(x.end(), {tie, std::nextafter(tie, -infinity), std::nextafter(tie, infinity),
                       static_cast<float>(k) * scale});
    x.push_back(random.any_float());
    x.push_back(random.real(-300.0F, 300.0F) * scale);
  }
  return x;
}

constexpr float scales[] = {1.0F,           0.1F,        1.0F / 3.0F, 0x1.fffffep-8F,
                            0x1.000002p-7F, 0x1.8p-130F, 0x1p-126F,   0x1.6a09e6p+126F};

std::vector<std::int32_t> zero_points(random_source& random, grid levels) {
  return {levels.qmin, levels.qmax, random.integer(levels.qmin, levels.qmax)};
}

}  // namespace

TEST_CASE("policies: quantize is what is documented") {
  random_source random(10);
  INFO("seed ", random.seed());
  for_each_policy(random.bits(), [&]<class Policy>(const Policy& policy) {
    INFO(typeid(Policy).name());
    for (const grid levels : grids) {
      for (const float scale : scales) {
        const std::vector<float> inputs = hard_inputs(random, scale, levels);
        for (const std::int32_t zero_point : zero_points(random, levels)) {
          const std::uint64_t index = random.bits();
          std::vector<std::int32_t> actual;
          std::vector<std::int32_t> expected;
          for (const float x : inputs) {
            const float steps = define_steps(typename Policy::division_type{}, x, scale);
            actual.push_back(reference::quantize(x, {scale, zero_point}, levels, policy, index));
            expected.push_back(define_to_grid(steps, zero_point, levels, policy, index));
          }
          INFO("grid ", levels.qmin, "..", levels.qmax, " zero point ", zero_point, " scale ",
               scale);
          CHECK(difference(actual, expected) == "");
        }
      }
    }
  });
}

TEST_CASE("policies: requantize is what is documented") {
  random_source random(11);
  INFO("seed ", random.seed());
  for_each_policy(random.bits(), [&]<class Policy>(const Policy& policy) {
    INFO(typeid(Policy).name());
    for (const grid levels : grids) {
      for (const float multiplier : {0.5F, 0.1F, 0x1p-24F, 1e-45F, 3e38F, 0.75F}) {
        for (const std::int32_t zero_point : zero_points(random, levels)) {
          std::vector<std::int32_t> actual;
          std::vector<std::int32_t> expected;
          for (int i = 0; i < 100; ++i) {
            const auto accumulator =
                static_cast<std::int32_t>(static_cast<std::uint32_t>(random.bits())) >>
                random.integer(0, 31);
            const auto rounded = static_cast<float>(static_cast<double>(accumulator));
            const auto steps =
                static_cast<float>(static_cast<double>(rounded) * static_cast<double>(multiplier));
            const std::uint64_t index = random.bits();
            actual.push_back(
                reference::requantize(accumulator, multiplier, zero_point, levels, policy, index));
            expected.push_back(define_to_grid(steps, zero_point, levels, policy, index));
          }
          INFO("grid ", levels.qmin, "..", levels.qmax, " zero point ", zero_point, " multiplier ",
               multiplier);
          CHECK(difference(actual, expected) == "");
        }
      }
    }
  });
}

TEST_CASE("policies: the default is the canonical quantizer") {
  random_source random(12);
  INFO("seed ", random.seed());
  constexpr quantize_policy<> policy;
  const auto check = [&](float x, quant_params p, grid levels) {
    if (reference::quantize(x, p, levels, policy) != reference::quantize(x, p, levels) ||
        reference::to_grid(x, p.zero_point, levels, policy) !=
            reference::to_grid(x, p.zero_point, levels)) {
      FAIL("x ", x, " scale ", p.scale, " zero point ", p.zero_point);
    }
  };
  for (const grid levels : grids) {
    for (const float scale : scales) {
      for (const std::int32_t zero_point : zero_points(random, levels)) {
        for (const float x : hard_inputs(random, scale, levels)) {
          check(x, {scale, zero_point}, levels);
        }
      }
    }
  }
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 4099) {
    check(std::bit_cast<float>(static_cast<std::uint32_t>(bits)), {0.1F, 100}, full_grid<u8>);
  }
}

TEST_CASE("policies: NaN, infinities and zeros depend on no rule") {
  random_source random(13);
  INFO("seed ", random.seed());
  for_each_policy(random.bits(), [&](const auto& policy) {
    for (const float scale : scales) {
      const quant_params p{scale, -100};
      CHECK(reference::quantize(quiet_nan, p, full_grid<s8>, policy) == -100);
      CHECK(reference::quantize(infinity, p, full_grid<s8>, policy) == 127);
      CHECK(reference::quantize(-infinity, p, full_grid<s8>, policy) == -128);
      CHECK(reference::quantize(0.0F, p, full_grid<s8>, policy) == -100);
      CHECK(reference::quantize(-0.0F, p, full_grid<s8>, policy) == -100);
    }
  });
}

TEST_CASE("policies: each one makes a difference") {
  const auto q = [](float x, quant_params p, const auto& policy) {
    return reference::quantize(x, p, full_grid<u8>, policy);
  };
  using namespace zero_point_order;
  // An odd zero point moves the tie: 0.5 rounds to 0, 1.5 to 2.
  CHECK(q(0.5F, {1.0F, 1},
          quantize_policy<rounding::half_even, division::divide, after_rounding>{}) == 1);
  CHECK(q(0.5F, {1.0F, 1},
          quantize_policy<rounding::half_even, division::divide, before_rounding>{}) == 2);
  // The sum is rounded to float: 100 + 0.49999997 is the tie 100.5.
  CHECK(q(0.49999997F, {1.0F, 101},
          quantize_policy<rounding::half_even, division::divide, after_rounding>{}) == 101);
  CHECK(q(0.49999997F, {1.0F, 101},
          quantize_policy<rounding::half_even, division::divide, before_rounding>{}) == 102);
  // A quotient and a product on two sides of a tie.
  int different = 0;
  for (int k = 0; k < 200; ++k) {
    for (const float scale : {0.1F, 0.3F, 0.7F}) {
      const float x = (static_cast<float>(k) + 0.5F) * scale;
      different +=
          q(x, {scale, 0}, quantize_policy<rounding::half_up>{}) !=
                  q(x, {scale, 0}, quantize_policy<rounding::half_up, division::reciprocal>{})
              ? 1
              : 0;
    }
  }
  CHECK(different > 0);
}
