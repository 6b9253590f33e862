// SPDX-License-Identifier: BSD-3-Clause
// The kernels of half-quadratic quantization have the bits of the portable ones on every target,
// and these are near sums that are added up here.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "bits.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

using detent::kernels::half_quadratic_args;
using detent::kernels::half_quadratic_kernels;
using detent::kernels::half_quadratic_sums;

namespace {

std::vector<double> values_of(const half_quadratic_sums& s) {
  return {s.objective, s.magnitudes, s.distances, s.shrunk};
}

/// Places of some weights: any, ties, codes themselves, tiny ones and ones far from the grid.
std::vector<double> any_places(test::random_source& random, std::size_t n) {
  std::vector<double> places(n);
  for (double& place : places) {
    const int kind = random.integer(0, 9);
    place = kind == 0   ? static_cast<double>(random.integer(-12, 12)) + 0.5
            : kind == 1 ? static_cast<double>(random.integer(-12, 12))
            : kind == 2 ? 1e-310
            : kind == 3 ? static_cast<double>(random.real(-1e30F, 1e30F))
            : kind == 4 ? -0.0
                        : static_cast<double>(random.real(-9.0F, 9.0F));
  }
  return places;
}

}  // namespace

TEST_CASE("half-quadratic sums and codes of all targets have the same bits") {
  test::random_source random(611);
  INFO("seed ", random.seed());
  const half_quadratic_kernels& portable = *half_quadratic_kernels::of(detent::target::portable);
  for (std::size_t n = 0; n < 200; n += n < 80 ? 1 : 17) {  // all tails, and several large steps
    const std::vector<double> some = any_places(random, n);
    const auto some_codes = random.integers<std::int8_t>(n);
    // Neither places nor codes have anything behind them.
    test::guarded_memory memory_of_places(n * sizeof(double) + 1);
    test::guarded_memory memory_of_codes(n + 1);
    const std::span<double> places = memory_of_places.back<double>(n);
    const std::span<std::int8_t> codes = memory_of_codes.back<std::int8_t>(n);
    std::copy(some.begin(), some.end(), places.begin());
    std::copy(some_codes.begin(), some_codes.end(), codes.begin());
    for (const bool has_codes : {false, true}) {
      half_quadratic_args group;
      group.places = places.data();
      group.codes = has_codes ? codes.data() : nullptr;
      group.n = n;
      group.zero_point = random.chance(30) ? static_cast<double>(random.integer(-9, 9))
                                           : static_cast<double>(random.real(-9.0F, 9.0F));
      group.qmin = random.integer(-128, 0);
      group.qmax = random.integer(1, 127);
      group.exponent = random.chance(20) ? 0.0 : -static_cast<double>(random.real(0.0F, 0.99F));
      group.shrinkage = static_cast<double>(random.real(0.0F, 2.0F));
      const half_quadratic_sums expected = portable.sums(group);
      std::vector<std::int8_t> expected_codes(n);
      portable.round(group, expected_codes.data());
      INFO("n ", n, " codes ", has_codes, " z ", group.zero_point);
      test::for_each_target([&] {
        const auto& kernels = detent::detail::active<half_quadratic_kernels>();
        CHECK(test::bits_of(values_of(kernels.sums(group))) == test::bits_of(values_of(expected)));
        test::guarded_memory memory(n + 1);
        const std::span<std::int8_t> rounded = memory.back<std::int8_t>(n);
        kernels.round(group, rounded.data());
        CHECK(std::equal(rounded.begin(), rounded.end(), expected_codes.begin()));
      });
    }
  }
}

TEST_CASE("half-quadratic sums are what their definition says") {
  test::random_source random(612);
  INFO("seed ", random.seed());
  for (int round = 0; round < 300; ++round) {
    const std::size_t n = static_cast<std::size_t>(random.integer(1, 50));
    std::vector<double> places(n);
    for (double& place : places) {
      place = static_cast<double>(random.real(-9.0F, 9.0F));
    }
    half_quadratic_args group;
    group.places = places.data();
    group.n = n;
    group.zero_point = static_cast<double>(random.real(-2.0F, 2.0F));
    group.qmin = -8;
    group.qmax = 7;
    group.exponent = -0.3;
    group.shrinkage = 0.2;
    half_quadratic_sums s{};
    for (const double place : places) {
      const double code = std::nearbyint(std::fmin(std::fmax(place + group.zero_point, -8.0), 7.0));
      const double t = place - (code - group.zero_point);
      s.objective += t == 0.0 ? 0.0 : std::pow(std::fabs(t), 0.7);
      s.magnitudes += std::fabs(t);
      s.distances += code - place;
      const double left = std::fabs(t) - 0.2 * std::pow(std::fabs(t), -0.3);
      s.shrunk += t != 0.0 && left > 0.0 ? std::copysign(left, t) : 0.0;
    }
    const std::vector<double> expected = values_of(s);
    const std::vector<double> found =
        values_of(detent::detail::active<half_quadratic_kernels>().sums(group));
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CHECK(found[k] == doctest::Approx(expected[k]).epsilon(1e-9));
    }
  }
}
