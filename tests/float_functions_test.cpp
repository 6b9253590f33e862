// SPDX-License-Identifier: BSD-3-Clause
// The kernels of float functions have the bits of the functions that define them on every target,
// and these are near the exact results.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "bits.hpp"
#include "float_function_cases.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using test::float_function_kernels;

/// Special values, the places where formulas change with their neighbours, and others of all sizes.
std::vector<float> many_values(test::random_source& random) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0F,
                          -0.0F,
                          infinity,
                          -infinity,
                          std::nanf(""),
                          -std::nanf(""),
                          1e30F,
                          -1e30F,
                          std::numeric_limits<float>::denorm_min(),
                          -std::numeric_limits<float>::denorm_min(),
                          std::numeric_limits<float>::max()};
  for (const float edge :
       {0.84375F, 1.0F, 3.9375F, 9.125F, 18.0F, 20.0F, 87.3F, 88.72F, 89.0F, 103.97F, 104.0F,
        0.34657359F, 0.70710677F, 1.4142135F, 0.88137358F, 0x1p-126F, 0x1p-103F}) {
    for (const float value : {edge, std::nextafter(edge, 0.0F), std::nextafter(edge, infinity)}) {
      x.push_back(value);
      x.push_back(-value);
    }
  }
  for (int i = 0; i < 50000; ++i) {
    x.push_back(random.any_float());
    x.push_back(random.real(-20.0F, 20.0F));
    x.push_back(random.real(-110.0F, 110.0F));
  }
  return x;
}

}  // namespace

TEST_CASE("float functions are near the exact results") {
  test::random_source random(31);
  INFO("seed ", random.seed());
  for (const float x : many_values(random)) {
    for (const test::float_function& f : test::float_functions) {
      const float y = f.definition(x);
      const auto value = static_cast<double>(x);
      const double error = test::error_in_units(y, f.exact(value), f.size(value));
      if (!(error <= f.error)) {
        FAIL_CHECK(std::string(f.name), " of ", x, " is ", y, ", off by ", error);
      }
    }
  }
}

TEST_CASE("float functions of all targets have the same bits") {
  test::random_source random(32);
  INFO("seed ", random.seed());
  const std::vector<float> x = many_values(random);
  for (const test::float_function& f : test::float_functions) {
    CAPTURE(f.name);
    std::vector<float> expected(x.size());
    std::transform(x.begin(), x.end(), expected.begin(), f.definition);
    test::for_each_target([&] {
      const auto& kernels = detent::detail::active<float_function_kernels>();
      std::vector<float> y(x.size());
      f.run(kernels, x.data(), x.size(), y.data());
      CHECK(test::bits_of(y) == test::bits_of(expected));
      for (std::size_t n = 0; n < 70; ++n) {  // all tails, in place
        std::vector<float> values(x.begin(), x.begin() + 100);
        std::vector<float> some = values;
        std::copy_n(expected.begin(), n, some.begin());
        f.run(kernels, values.data(), n, values.data());
        CHECK(test::bits_of(values) == test::bits_of(some));
      }
    });
  }
}

TEST_CASE("clamps and exponential linear units of all targets have the same bits") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  test::random_source random(33);
  INFO("seed ", random.seed());
  const std::vector<float> x = many_values(random);
  const float bounds[][2] = {{0.0F, 6.0F}, {-0.0F, 0.0F}, {-1.5F, 1.5F},     {2.0F, -2.0F},
                             {nan, 1.0F},  {1.0F, nan},   {-infinity, 3.0F}, {0.2F, 0.5F}};
  for (const auto& bound : bounds) {
    const float first = bound[0];
    const float second = bound[1];
    CAPTURE(first);
    CAPTURE(second);
    std::vector<float> clamped(x.size());
    std::vector<float> hard(x.size());
    std::vector<float> linear(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      clamped[i] = detent::reference::clamp(x[i], first, second);
      hard[i] = detent::reference::hard_sigmoid(x[i], first, second);
      linear[i] = detent::detail::portable_exponential_linear(x[i], 1.0F, first, second);
    }
    test::for_each_target([&] {
      const auto& kernels = detent::detail::active<float_function_kernels>();
      std::vector<float> y(x.size());
      kernels.clamp(x.data(), x.size(), first, second, y.data());
      CHECK(test::bits_of(y) == test::bits_of(clamped));
      kernels.hard_sigmoid(x.data(), x.size(), first, second, y.data());
      CHECK(test::bits_of(y) == test::bits_of(hard));
      kernels.exponential_linear(x.data(), x.size(), 1.0F, first, second, y.data());
      CHECK(test::bits_of(y) == test::bits_of(linear));
    });
  }
  CHECK(detent::reference::hard_sigmoid(3.0F, 0.2F, 0.5F) == 1.0F);
  CHECK(detent::reference::hard_sigmoid(-3.0F, 0.2F, 0.5F) == 0.0F);
  CHECK(detent::reference::hard_sigmoid(1.0F, 0.25F, 0.5F) == 0.75F);
}

TEST_CASE("float functions at their limits") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  using namespace detent::detail;
  CHECK(portable_exp(0.0F) == 1.0F);
  CHECK(portable_exp(infinity) == infinity);
  CHECK(portable_exp(-infinity) == 0.0F);
  CHECK(portable_exp(88.72284F) == std::numeric_limits<float>::infinity());
  CHECK(portable_exp(88.72283F) < std::numeric_limits<float>::infinity());
  CHECK(portable_exp(-103.9F) == std::numeric_limits<float>::denorm_min());
  CHECK(portable_erf(infinity) == 1.0F);
  CHECK(portable_erf(-4.0F) == -1.0F);
  CHECK(portable_tanh(infinity) == 1.0F);
  CHECK(portable_tanh(-10.0F) == -1.0F);
  CHECK(portable_logistic(infinity) == 1.0F);
  CHECK(portable_logistic(-infinity) == 0.0F);
  CHECK(portable_logistic(-100.0F) > 0.0F);
  CHECK(portable_logistic(0.0F) == 0.5F);
  CHECK(portable_expm1(infinity) == infinity);
  CHECK(portable_expm1(-infinity) == -1.0F);
  CHECK(portable_expm1(1e-40F) == 1e-40F);
  CHECK(portable_log(1.0F) == 0.0F);
  CHECK(portable_log(0.0F) == -infinity);
  CHECK(portable_log(-0.0F) == -infinity);
  CHECK(portable_log(infinity) == infinity);
  CHECK(std::isnan(portable_log(-1.0F)));
  CHECK(std::isnan(portable_log(-infinity)));
  CHECK(portable_log(std::numeric_limits<float>::denorm_min()) == -103.27893F);
  CHECK(portable_softplus(infinity) == infinity);
  CHECK(portable_softplus(-infinity) == 0.0F);
  CHECK(portable_softplus(0.0F) == 0.6931472F);
  CHECK(portable_mish(infinity) == infinity);
  CHECK(portable_mish(25.0F) == 25.0F);
  CHECK(portable_gelu(infinity) == infinity);
  CHECK(portable_gelu(20.0F) == 20.0F);
  CHECK(portable_gelu(-20.0F) == 0.0F);
  CHECK(portable_gelu_tanh(infinity) == infinity);
  CHECK(portable_gelu_tanh(20.0F) == 20.0F);
  CHECK(portable_gelu_tanh(-20.0F) == 0.0F);
  CHECK(std::signbit(portable_erf(-0.0F)));
  CHECK(std::signbit(portable_tanh(-0.0F)));
}
