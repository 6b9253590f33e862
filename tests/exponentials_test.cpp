// SPDX-License-Identifier: BSD-3-Clause
// The kernels of exponentials and their relatives have the bits of the functions that define them,
// and these are near those of the standard library.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "bits.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

TEST_CASE("exponentials of all targets have the same bits") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  test::random_source random(21);
  INFO("seed ", random.seed());
  std::vector<double> x = {0.0,    -0.0,   1.0,       -1.0,     709.0,
                           -708.0, 709.01, -708.0001, infinity, -infinity,
                           1e300,  -1e300, 1e-300,    0.5,      std::nan("")};
  for (int i = 0; i < 5000; ++i) {
    x.push_back(std::ldexp(static_cast<double>(random.real(-1.0F, 1.0F)), random.integer(-60, 10)));
  }
  for (std::size_t n = 0; n < 70; ++n) {  // all tails
    const std::vector<double> some(x.end() - static_cast<std::ptrdiff_t>(n), x.end());
    test::for_each_target([&] {
      std::vector<double> values = some;
      values.push_back(7.0);
      detent::detail::active<detent::kernels::exponential_kernels>().exp(values.data(), n);
      CHECK(values.back() == 7.0);
      for (std::size_t i = 0; i < n; ++i) {
        CHECK(values[i] == detent::detail::portable_exp(some[i]));
      }
    });
  }
  std::vector<double> expected;
  for (const double value : x) {
    expected.push_back(detent::detail::portable_exp(value));
    if (value >= -708.0 && value <= 709.0) {
      CHECK(std::fabs(expected.back() / std::exp(value) - 1.0) < 5e-16);
    }
  }
  test::for_each_target([&] {
    std::vector<double> values = x;
    detent::detail::active<detent::kernels::exponential_kernels>().exp(values.data(),
                                                                       values.size());
    CHECK(test::bits_of(values) == test::bits_of(expected));
  });
}

TEST_CASE("logarithms of all targets have the same bits") {
  test::random_source random(22);
  INFO("seed ", random.seed());
  std::vector<double> x = {1.0,
                           2.0,
                           0.5,
                           std::numeric_limits<double>::min(),
                           std::numeric_limits<double>::max(),
                           0x1.6a09e667f3bccp-1,
                           0x1.6a09e667f3bcdp-1,
                           std::nextafter(1.0, 2.0),
                           std::nextafter(1.0, 0.0)};
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t exponent = static_cast<std::uint64_t>(random.integer(1, 2046));
    x.push_back(std::bit_cast<double>(exponent << 52 | random.bits() >> 12));
  }
  std::vector<double> expected;
  for (const double value : x) {
    expected.push_back(detent::detail::portable_log(value));
    CHECK(std::fabs(expected.back() - std::log(value)) <= 1e-15 * std::fabs(std::log(value)));
  }
  test::for_each_target([&] {
    for (const std::size_t n : {x.size(), std::size_t{0}, std::size_t{1}, std::size_t{13}}) {
      std::vector<double> values = x;
      detent::detail::active<detent::kernels::exponential_kernels>().log(values.data(), n);
      std::vector<double> some = x;
      std::copy_n(expected.begin(), n, some.begin());
      CHECK(test::bits_of(values) == test::bits_of(some));
    }
  });
}

namespace {

struct relative {
  const char* name;
  void (*detent::kernels::exponential_kernels::*kernel)(double*, std::size_t) noexcept;
  double (*definition)(double) noexcept;
  long double (*expected)(long double);
  double error;  // relative
};

const relative relatives_of_exp[] = {
    {"erf", &detent::kernels::exponential_kernels::erf, &detent::detail::portable_erf,
     [](long double x) { return std::erf(x); }, 5e-16},
    {"tanh", &detent::kernels::exponential_kernels::tanh, &detent::detail::portable_tanh,
     [](long double x) { return std::tanh(x); }, 5e-16},
    {"logistic", &detent::kernels::exponential_kernels::logistic,
     &detent::detail::portable_logistic, [](long double x) { return 1.0L / (1.0L + std::exp(-x)); },
     5e-16},
};

}  // namespace

TEST_CASE("erf, tanh and the logistic function of all targets have the same bits") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  test::random_source random(23);
  INFO("seed ", random.seed());
  std::vector<double> x = {0.0, -0.0, infinity, -infinity, std::nan(""), 1e300, -1e300, 5e-324};
  // Where the formula changes, and the numbers beside.
  for (const double edge : {0.25, 1.0, 2.0, 6.0, 19.0, 354.0, 354.5, 700.0, 708.0, 709.0, 710.0}) {
    for (const double value : {edge, std::nextafter(edge, 0.0), std::nextafter(edge, infinity)}) {
      x.push_back(value);
      x.push_back(-value);
    }
  }
  for (int i = 0; i < 20000; ++i) {
    x.push_back(std::ldexp(static_cast<double>(random.real(-1.0F, 1.0F)), random.integer(-60, 5)));
  }
  for (const relative& f : relatives_of_exp) {
    CAPTURE(f.name);
    std::vector<double> expected;
    for (const double value : x) {
      CAPTURE(value);
      expected.push_back(f.definition(value));
      CHECK(std::isnan(expected.back()) == std::isnan(value));
      const auto exact = static_cast<double>(f.expected(value));
      // e^-x is 0 where it is below 2^-1021, and logistic with it.
      if (std::isfinite(value) && std::fabs(exact) > 1e-300) {
        CHECK(std::fabs(expected.back() - exact) <= f.error * std::fabs(exact));
        CHECK(std::signbit(expected.back()) == std::signbit(exact));
      }
    }
    test::for_each_target([&] {
      for (std::size_t n = 0; n < 40; ++n) {  // all tails
        std::vector<double> values = x;
        (detent::detail::active<detent::kernels::exponential_kernels>().*f.kernel)(values.data(),
                                                                                   n);
        std::vector<double> some = x;
        std::copy_n(expected.begin(), n, some.begin());
        CHECK(test::bits_of(values) == test::bits_of(some));
      }
      std::vector<double> values = x;
      (detent::detail::active<detent::kernels::exponential_kernels>().*f.kernel)(values.data(),
                                                                                 values.size());
      CHECK(test::bits_of(values) == test::bits_of(expected));
    });
  }
}

TEST_CASE("erf, tanh and the logistic function at their limits") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  using namespace detent::detail;
  CHECK(portable_erf(infinity) == 1.0);
  CHECK(portable_erf(-infinity) == -1.0);
  CHECK(portable_erf(6.0) == 1.0);
  CHECK(portable_tanh(infinity) == 1.0);
  CHECK(portable_tanh(-infinity) == -1.0);
  CHECK(portable_logistic(infinity) == 1.0);
  CHECK(portable_logistic(-infinity) == 0.0);
  CHECK(portable_logistic(0.0) == 0.5);
  CHECK(std::signbit(portable_erf(-0.0)));
  CHECK(std::signbit(portable_tanh(-0.0)));
  CHECK(portable_tanh(5e-324) == 5e-324);
}
