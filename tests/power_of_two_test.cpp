// SPDX-License-Identifier: BSD-3-Clause
// Requantization by shifts: values by hand for every rule, rounding against division with remainder
// and against the rules on floats, the buffer functions against the scalar one.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/power_of_two.hpp>
#include <detent/scale_rules.hpp>

#include "check_error.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::grid;
using detent::power_of_two;
using detent::requantize;
using test::random_source;
namespace reference = detent::reference;
namespace rounding = detent::rounding;

constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();

template <class Rounding>
std::vector<std::int64_t> quarters() {
  std::vector<std::int64_t> all;
  for (const std::int32_t acc : {-10, -6, -3, -2, -1, 1, 2, 3, 6, 10}) {
    all.push_back(reference::scale_by<Rounding>(acc, {-2}));
  }
  return all;
}

/// acc * 2^exponent between integers: the one below, and what is left in units of 2^exponent.
struct division {
  std::int64_t below, rest, divisor;
  division(std::int32_t acc, int right) : divisor(std::int64_t{1} << right) {
    below = acc / divisor - (acc % divisor < 0 ? 1 : 0);
    rest = acc - below * divisor;
  }
};

}  // namespace

TEST_CASE("every rule, by hand") {
  using list = std::vector<std::int64_t>;
  // -2.5 -1.5 -0.75 -0.5 -0.25 0.25 0.5 0.75 1.5 2.5, as in the table of rounding.hpp
  CHECK(quarters<rounding::half_even>() == list{-2, -2, -1, 0, 0, 0, 0, 1, 2, 2});
  CHECK(quarters<rounding::half_up>() == list{-2, -1, -1, 0, 0, 0, 1, 1, 2, 3});
  CHECK(quarters<rounding::half_down>() == list{-3, -2, -1, -1, 0, 0, 0, 1, 1, 2});
  CHECK(quarters<rounding::half_toward_zero>() == list{-2, -1, -1, 0, 0, 0, 0, 1, 1, 2});
  CHECK(quarters<rounding::half_away_from_zero>() == list{-3, -2, -1, -1, 0, 0, 1, 1, 2, 3});
  CHECK(quarters<rounding::up>() == list{-2, -1, 0, 0, 0, 1, 1, 1, 2, 3});
  CHECK(quarters<rounding::down>() == list{-3, -2, -1, -1, -1, 0, 0, 0, 1, 2});
  CHECK(quarters<rounding::toward_zero>() == list{-2, -1, 0, 0, 0, 0, 0, 0, 1, 2});
}

TEST_CASE("the ends") {
  CHECK(reference::scale_by(smallest, {31}) == -(std::int64_t{1} << 62));
  CHECK(reference::scale_by(largest, {0}) == largest);
  CHECK(reference::scale_by(smallest, {-31}) == -1);
  CHECK(reference::scale_by(largest, {-31}) == 1);   // 1 - 2^-31
  CHECK(reference::scale_by(smallest, {-32}) == 0);  // -1/2
  CHECK(reference::scale_by<rounding::half_away_from_zero>(smallest, {-32}) == -1);
  CHECK(reference::scale_by<rounding::down>(-1, {-62}) == -1);
  CHECK(reference::scale_by<rounding::up>(1, {-62}) == 1);
  CHECK(reference::scale_by<rounding::up>(0, {-62}) == 0);
}

TEST_CASE("rounding against division with remainder, and against the rules on floats") {
  random_source random(1);
  INFO("seed ", random.seed());
  const auto check = [](std::int32_t acc, int right) {
    const division d(acc, right);
    const bool tie = 2 * d.rest == d.divisor;
    const bool above = 2 * d.rest > d.divisor;
    INFO(acc, " * 2^-", right);
    const power_of_two m{-right};
    CHECK(reference::scale_by(acc, m) == d.below + (above || (tie && d.below % 2 != 0) ? 1 : 0));
    CHECK(reference::scale_by<rounding::half_up>(acc, m) == d.below + (above || tie ? 1 : 0));
    CHECK(reference::scale_by<rounding::half_down>(acc, m) == d.below + (above ? 1 : 0));
    CHECK(reference::scale_by<rounding::down>(acc, m) == d.below);
    CHECK(reference::scale_by<rounding::up>(acc, m) == d.below + (d.rest > 0 ? 1 : 0));
    CHECK(reference::scale_by<rounding::toward_zero>(acc, m) ==
          d.below + (acc < 0 && d.rest > 0 ? 1 : 0));
    if (std::abs(acc / 2) < 1 << 23) {  // acc, and so the product, is a float
      const float product = std::ldexp(static_cast<float>(acc), -right);
      CHECK(static_cast<float>(reference::scale_by<rounding::half_away_from_zero>(acc, m)) ==
            rounding::half_away_from_zero{}(product));
      CHECK(static_cast<float>(reference::scale_by<rounding::half_toward_zero>(acc, m)) ==
            rounding::half_toward_zero{}(product));
    }
  };
  for (int right = 1; right <= 40; ++right) {
    for (const std::int32_t acc : {0, 1, -1, smallest, smallest + 1, largest, largest - 1}) {
      check(acc, right);
    }
    for (int i = 0; i < 300; ++i) {
      const auto any = static_cast<std::int32_t>(random.bits()) >> random.integer(0, 31);
      check(any, right);
      if (right < 31) {  // ties and their neighbours
        const std::int32_t half = std::int32_t{1} << (right - 1);
        const std::int32_t tie =
            static_cast<std::int32_t>(static_cast<std::uint32_t>(any) &
                                      ~(2U * static_cast<std::uint32_t>(half) - 1U)) |
            half;
        check(tie, right);
        check(tie - 1, right);
        check(tie + 1, right);
      }
    }
  }
}

TEST_CASE_TEMPLATE("per tensor and per channel, zero point and grid", Q, std::uint8_t, std::int8_t,
                   std::uint16_t, std::int16_t) {
  random_source random(2);
  INFO("seed ", random.seed());
  for (std::size_t columns = 1; columns < 9; ++columns) {
    for (std::size_t rows = 0; rows < 9; ++rows) {
      std::vector<std::int32_t> acc(rows * columns);
      for (std::int32_t& a : acc) {
        a = static_cast<std::int32_t>(random.bits()) >> random.integer(0, 31);
      }
      std::vector<power_of_two> multipliers(columns);
      for (power_of_two& m : multipliers) {
        m.exponent = random.integer(-24, 3);
      }
      const grid full = detent::full_grid<Q>;
      const grid levels{random.integer(full.qmin, (full.qmin + full.qmax) / 2),
                        random.integer((full.qmin + full.qmax) / 2, full.qmax)};
      const std::int32_t zero_point = random.integer(levels.qmin, levels.qmax);
      std::vector<Q> q(acc.size());
      requantize(acc, q, multipliers, zero_point, levels, rounding::half_up{});
      for (std::size_t i = 0; i < acc.size(); ++i) {
        CHECK(q[i] == reference::requantize<rounding::half_up>(acc[i], multipliers[i % columns],
                                                               zero_point, levels));
      }
      requantize(acc, q, multipliers[0], zero_point, levels);
      for (std::size_t i = 0; i < acc.size(); ++i) {
        CHECK(q[i] == reference::requantize(acc[i], multipliers[0], zero_point, levels));
      }
    }
  }
  // The fp32 dialect agrees where the accumulator is a float.
  for (int i = 0; i < 1000; ++i) {
    const std::int32_t acc = random.integer(-(1 << 24), 1 << 24);
    const int exponent = random.integer(-20, 2);
    const std::int32_t zero_point =
        random.integer(detent::full_grid<Q>.qmin, detent::full_grid<Q>.qmax);
    CHECK(reference::requantize(acc, power_of_two{exponent}, zero_point, detent::full_grid<Q>) ==
          reference::requantize(acc, std::ldexp(1.0F, exponent), zero_point, detent::full_grid<Q>));
  }
}

TEST_CASE("powers of two: exact ones, and errors that name what is wrong") {
  using test::check_error;
  CHECK(detent::exact_power_of_two(1.0) == power_of_two{0});
  CHECK(detent::exact_power_of_two(0x1p-62) == power_of_two{-62});
  CHECK(detent::exact_power_of_two(0x1p31) == power_of_two{31});
  const float projected =
      detent::project_to_power_of_two(0.3F, detent::power_of_two_rounding::half_up);
  CHECK(detent::exact_power_of_two(static_cast<double>(projected)) == power_of_two{-2});
  for (const double wrong :
       {0.0, -1.0, 3.0, 0x1p32, 0x1p-63, std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    check_error(error_kind::invalid_argument, {"no power of two"},
                [&] { static_cast<void>(detent::exact_power_of_two(wrong)); });
  }
  const std::array<std::int32_t, 6> acc{1, 2, 3, 4, 5, 6};
  std::array<std::uint8_t, 6> q{9, 9, 9, 9, 9, 9};
  check_error(error_kind::invalid_argument, {"multiplier 2^32"},
              [&] { requantize(acc, q, power_of_two{32}, 0); });
  check_error(error_kind::invalid_argument, {"multiplier 2^-63"},
              [&] { requantize(acc, q, power_of_two{-63}, 0); });
  check_error(error_kind::invalid_argument, {"zero point 256"},
              [&] { requantize(acc, q, power_of_two{-1}, 256); });
  check_error(error_kind::invalid_argument, {"grid 0..256"}, [&] {
    requantize(acc, q, power_of_two{-1}, 0, {0, 256});
  });
  const std::vector<power_of_two> four(4);
  check_error(error_kind::shape_mismatch, {"4 multipliers for 6 elements"},
              [&] { requantize(acc, q, four, 0); });
  check_error(error_kind::shape_mismatch, {"input has 5 elements, output 6"},
              [&] { requantize(std::span(acc).first(5), q, power_of_two{-1}, 0); });
  CHECK(q == std::array<std::uint8_t, 6>{9, 9, 9, 9, 9, 9});
}
