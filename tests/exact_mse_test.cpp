// SPDX-License-Identifier: BSD-3-Clause
// The best scale there is: compared with every breakpoint in long double, with every other method,
// and with what histograms say of it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::distribution;
using detent::error_kind;
using detent::grid;
using detent::quant_scheme;
using detent::scale_solution;
using test::check_error;
using test::random_source;

using real = long double;

/// The sum of squared errors of a scale, each value at its nearest level.
real error_at(std::span<const float> x, std::span<const float> weights, real scale, grid levels,
              std::int32_t zero_point) {
  real sum = 0.0L;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const real steps = std::nearbyint(static_cast<real>(x[i]) / scale);
    const real k = std::clamp(steps, static_cast<real>(levels.qmin - zero_point),
                              static_cast<real>(levels.qmax - zero_point));
    const real e = static_cast<real>(x[i]) - k * scale;
    sum += e * e * (weights.empty() ? 1.0L : static_cast<real>(weights[i]));
  }
  return sum;
}

/// The least of all scales: between two neighbouring breakpoints the levels are fixed, and the best
/// scale for them is known.
real least_error(std::span<const float> x, std::span<const float> weights, grid levels,
                 std::int32_t zero_point) {
  std::vector<real> points{0.0L};
  for (const float value : x) {
    const std::int32_t cap = value < 0.0F ? zero_point - levels.qmin : levels.qmax - zero_point;
    for (std::int32_t k = 1; k <= cap && value != 0.0F; ++k) {
      points.push_back(std::fabs(static_cast<real>(value)) / (static_cast<real>(k) - 0.5L));
    }
  }
  std::sort(points.begin(), points.end());
  real squares = 0.0L;
  for (std::size_t i = 0; i < x.size(); ++i) {
    squares +=
        static_cast<real>(x[i]) * x[i] * (weights.empty() ? 1.0L : static_cast<real>(weights[i]));
  }
  real least = squares;
  for (std::size_t p = 0; p + 1 < points.size(); ++p) {
    const real middle = 0.5L * (points[p] + points[p + 1]);
    if (middle == 0.0L) {
      continue;
    }
    real b = 0.0L;
    real c = 0.0L;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const real k = std::clamp(std::nearbyint(static_cast<real>(x[i]) / middle),
                                static_cast<real>(levels.qmin - zero_point),
                                static_cast<real>(levels.qmax - zero_point));
      const real w = weights.empty() ? 1.0L : static_cast<real>(weights[i]);
      b += w * static_cast<real>(x[i]) * k;
      c += w * k * k;
    }
    least = c > 0.0L ? std::min(least, squares - b * b / c) : least;
  }
  return least;
}

/// The same for many values with weight 1: all breakpoints in falling order, one by one.
real least_error_of_many(std::span<const float> x, grid levels, std::int32_t zero_point) {
  struct breakpoint {
    real scale;
    real magnitude;
    std::int32_t level;
  };
  std::vector<breakpoint> points;
  real squares = 0.0L;
  for (const float value : x) {
    const std::int32_t cap = value < 0.0F ? zero_point - levels.qmin : levels.qmax - zero_point;
    const real magnitude = std::fabs(static_cast<real>(value));
    squares += magnitude * magnitude;
    for (std::int32_t k = 1; k <= cap && value != 0.0F; ++k) {
      points.push_back({magnitude / (static_cast<real>(k) - 0.5L), magnitude, k});
    }
  }
  std::sort(points.begin(), points.end(),
            [](const breakpoint& a, const breakpoint& b) { return a.scale > b.scale; });
  real b = 0.0L;
  real c = 0.0L;
  real most = 0.0L;
  for (const breakpoint& p : points) {
    b += p.magnitude;
    c += static_cast<real>(2 * p.level - 1);
    most = std::max(most, b * b / c);
  }
  return squares - most;
}

std::vector<float> sample(random_source& random, int kind, std::size_t n) {
  const auto gauss = [&] {
    const double u = (static_cast<double>(random.bits() >> 11) + 0.5) * 0x1p-53;
    const double v = static_cast<double>(random.bits() >> 11) * 0x1p-53;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  };
  std::vector<float> x(n);
  for (float& value : x) {
    if (kind == 0) {
      value = static_cast<float>(gauss());
    } else if (kind == 1) {  // Laplace
      const double u = (static_cast<double>(random.bits() >> 11) + 0.5) * 0x1p-53;
      value = static_cast<float>(-std::log(u) * (random.chance(50) ? 1.0 : -1.0));
    } else if (kind == 2) {  // Student with 3 degrees of freedom
      const double a = gauss();
      const double b = gauss();
      const double c = gauss();
      value = static_cast<float>(gauss() / std::sqrt((a * a + b * b + c * c) / 3.0));
    } else {
      value = static_cast<float>(std::max(0.0, gauss()));
    }
  }
  return x;
}

quant_scheme scheme_of(int bits, bool symmetric, bool is_signed) {
  const std::int32_t levels = 1 << bits;
  if (symmetric) {
    return {is_signed ? grid{1 - levels / 2, levels / 2 - 1} : grid{0, levels - 1}, true};
  }
  return {is_signed ? grid{-levels / 2, levels / 2 - 1} : grid{0, levels - 1}, false};
}

}  // namespace

TEST_CASE("128-bit sums") {
  using detent::detail::multiply;
  using detent::detail::uint128;
  constexpr std::uint64_t all = ~std::uint64_t{0};
  CHECK(multiply(all, all) == uint128{all - 1, 1});
  CHECK(multiply(std::uint64_t{1} << 40, std::uint64_t{3} << 30) == uint128{192, 0});
  CHECK(multiply(uint128{1, all}, 2) == uint128{3, all - 1});
  CHECK(uint128{0, all} + uint128{0, 1} == uint128{1, 0});
  CHECK(uint128{1, 0} - uint128{0, 1} == uint128{0, all});
  CHECK(uint128{3, 5}.to_double() == 3.0 * 0x1p64 + 5.0);
}

TEST_CASE("exact_mse is the least of all breakpoints") {
  random_source random(1);
  INFO("seed ", random.seed());
  int cases = 0;
  for (int round = 0; round < 3000; ++round) {
    const int bits = random.integer(2, round % 10 == 0 ? 8 : 5);
    const bool symmetric = random.chance(60);
    const quant_scheme scheme = scheme_of(bits, symmetric, random.chance(50));
    const std::size_t n = random.size(1, bits > 5 ? 6 : 14);
    std::vector<float> x = sample(random, random.integer(0, 3), n);
    if (random.chance(20)) {
      for (float& value : x) {
        value = std::nearbyint(value * 4.0F);  // ties, equal values, zeros
      }
    } else if (random.chance(10)) {
      x[0] *= std::ldexp(1.0F, random.integer(-30, 30));
    }
    std::vector<float> weights;
    if (random.chance(25)) {
      for (std::size_t i = 0; i < n; ++i) {
        weights.push_back(static_cast<float>(random.integer(i == 0 ? 1 : 0, 16)) / 16.0F);
      }
      weights[0] = 1.0F;  // what weights are rounded relative to
    }
    real least = std::numeric_limits<real>::infinity();
    const scale_solution s =
        exact_mse(weights.empty() ? distribution(x) : distribution(x, weights), scheme);
    if (symmetric) {
      least = least_error(x, weights, scheme.levels, s.params.zero_point);
      CHECK(s.params.zero_point == params_from_range({-1.0F, 1.0F}, scheme).zero_point);
    } else {
      for (std::int32_t z = scheme.levels.qmin; z <= scheme.levels.qmax; ++z) {
        least = std::min(least, least_error(x, weights, scheme.levels, z));
      }
    }
    real weight = 0.0L;
    real squares = 0.0L;
    for (std::size_t i = 0; i < n; ++i) {
      const real w = weights.empty() ? 1.0L : static_cast<real>(weights[i]);
      weight += w;
      squares += w * x[i] * x[i];
    }
    least /= weight;
    const real found =
        error_at(x, weights, s.params.scale, scheme.levels, s.params.zero_point) / weight;
    INFO("round ", round, " bits ", bits, " symmetric ", symmetric, " n ", n, " least ",
         static_cast<double>(least), " found ", static_cast<double>(found));
    // The scale is rounded to float, which moves values by half a step of floats at the most.
    const real rounding = squares / weight * 1e-12L;
    CHECK(found <= least * 1.000001L + rounding);
    CHECK(std::fabs(static_cast<real>(s.evidence.objective) - found) <= rounding);
    CHECK(static_cast<real>(s.evidence.lower_bound) <= least + rounding);
    CHECK(static_cast<real>(s.evidence.lower_bound) >= least - rounding);
    ++cases;
  }
  CHECK(cases == 3000);
}

TEST_CASE("exact_mse of many values is the least of all breakpoints") {
  random_source random(11);
  INFO("seed ", random.seed());
  // From 5000 values on, groups of them narrow the search.
  for (const std::size_t n : {200U, 1500U, 6000U, 12000U}) {
    for (int kind = 0; kind < 4; ++kind) {
      for (const int bits : {3, 8}) {
        std::vector<float> x = sample(random, kind, n);
        if (bits == 3) {
          x[n / 2] *= 50.0F;
        }
        real squares = 0.0L;
        for (const float value : x) {
          squares += static_cast<real>(value) * value;
        }
        for (const bool symmetric : {true, false}) {
          const quant_scheme scheme = scheme_of(bits, symmetric, symmetric);
          const scale_solution s = exact_mse(x, scheme);
          real least = least_error_of_many(x, scheme.levels, s.params.zero_point);
          const std::int32_t others = symmetric ? 0 : bits == 3 ? 8 : n < 1000 ? 255 : 3;
          for (std::int32_t d = -others; d <= others; ++d) {
            const std::int32_t z = s.params.zero_point + d;
            if (z >= scheme.levels.qmin && z <= scheme.levels.qmax) {
              least = std::min(least, least_error_of_many(x, scheme.levels, z));
            }
          }
          const real count = static_cast<real>(n);
          INFO("n ", n, " kind ", kind, " bits ", bits, " symmetric ", symmetric);
          const real rounding = squares / count * 1e-12L;
          CHECK(static_cast<real>(s.evidence.objective) <= least / count * 1.000001L + rounding);
          CHECK(static_cast<real>(s.evidence.lower_bound) <= least / count + rounding);
          CHECK(static_cast<real>(s.evidence.lower_bound) >= least / count - rounding);
        }
      }
    }
  }
}

TEST_CASE("exact_mse: values as hard as they come") {
  constexpr float tiny = std::numeric_limits<float>::denorm_min();
  constexpr float huge = std::numeric_limits<float>::max();
  random_source random(12);
  INFO("seed ", random.seed());
  std::vector<std::vector<float>> lists = {std::vector<float>(300, 0.7F),
                                           std::vector<float>(7000, -3.0F),
                                           {tiny, -tiny, 2.0F * tiny},
                                           {huge, -huge, tiny},
                                           {huge, 1.0F, 1.0F, 1.0F},
                                           {-1e30F, 1e-30F, 2e-30F, 3e-30F},
                                           {0.0F, -0.0F, 5.0F}};
  std::vector<float> mixed;
  for (int i = 0; i < 400; ++i) {
    mixed.push_back(std::ldexp(random.real(-1.0F, 1.0F), random.integer(-120, 120)));
  }
  lists.push_back(mixed);
  std::vector<float> integers(6000);  // equal values, ties, no error at several scales
  for (float& value : integers) {
    value = static_cast<float>(random.integer(-9, 9));
  }
  lists.push_back(integers);
  for (const std::vector<float>& x : lists) {
    const distribution d(x);
    for (const int bits : {2, 4, 8}) {
      for (const bool symmetric : {true, false}) {
        for (const bool is_signed : {true, false}) {
          const quant_scheme scheme = scheme_of(bits, symmetric, is_signed);
          const scale_solution s = exact_mse(d, scheme);
          INFO("first ", x[0], " of ", x.size(), " bits ", bits, " symmetric ", symmetric,
               " signed ", is_signed, " scale ", s.params.scale);
          CHECK(std::isfinite(s.params.scale));
          CHECK(s.params.scale >= std::numeric_limits<float>::min());
          CHECK(s.evidence.lower_bound <= s.evidence.objective);
          CHECK(s.evidence.objective == mean_squared_error(d, s.params, scheme.levels));
          CHECK(s.evidence.objective <=
                absmax(d, scheme).evidence.objective * (1.0 + 1e-6) + d.square_sum() * 1e-12);
        }
      }
    }
  }
  // A large value that hardly counts.
  const std::vector<float> x = {1e30F, 1.0F, 2.0F, 3.0F};
  const std::vector<float> weights = {0x1p-24F, 1.0F, 1.0F, 1.0F};
  const scale_solution s = exact_mse(distribution(x, weights), scheme_of(8, false, true));
  CHECK(std::isfinite(s.params.scale));
  CHECK(s.evidence.lower_bound <= s.evidence.objective);
}

TEST_CASE("exact_mse: of zero points that are equally good, that of the range wins") {
  // Two levels are spare on 0..255, wherever the zero point is.
  const std::vector<float> x = {-100.0F, 50.0F, 100.0F, 153.0F};
  for (const std::int32_t low : {-128, 0}) {
    const quant_scheme scheme{{low, low + 255}, false};
    const scale_solution s = exact_mse(x, scheme);
    CHECK(s.evidence.objective <= 1e-9);
    CHECK(s.params.zero_point == params_from_range({-100.0F, 153.0F}, scheme).zero_point);
  }
}

TEST_CASE("magnitudes are sorted") {
  random_source random(13);
  INFO("seed ", random.seed());
  std::vector<std::uint32_t> buffer;
  for (const std::size_t n : {0U, 1U, 2U, 24U, 25U, 63U, 1000U, 8192U, 8193U, 30000U}) {
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<std::uint32_t> x(n);
      for (std::uint32_t& value : x) {
        value = kind == 0   ? static_cast<std::uint32_t>(random.bits())
                : kind == 1 ? 77U
                : kind == 2 ? static_cast<std::uint32_t>(random.integer(0, 300))
                : kind == 3 ? std::bit_cast<std::uint32_t>(random.real(0.0F, 1.0F))
                            : 0x3F800000U + static_cast<std::uint32_t>(random.integer(0, 99999));
      }
      if (n > 1 && kind == 4) {  // all others have one leading digit
        x[0] = 0;
        x[n - 1] = ~0U;
      }
      std::vector<std::uint32_t> expected = x;
      std::sort(expected.begin(), expected.end());
      detent::detail::sort_ascending(x, buffer);
      INFO("n ", n, " kind ", kind);
      CHECK(x == expected);
    }
  }
}

TEST_CASE("exact_mse has the same bits on all targets and for all numbers of threads") {
  random_source random(14);
  INFO("seed ", random.seed());
  const std::vector<float> x = sample(random, 0, 16 * 777);
  const detent::tensor_view<const float> view(x.data(), {16, 777});
  const auto solver = [](const distribution& d, quant_scheme s) { return exact_mse(d, s); };
  for (const bool symmetric : {true, false}) {
    const quant_scheme scheme = scheme_of(8, symmetric, true);
    const auto expected = solve_channels(view, 0, scheme, solver);
    const auto check = [&](const std::vector<scale_solution>& found) {
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i].params == expected[i].params);
        CHECK(found[i].evidence.objective == expected[i].evidence.objective);
        CHECK(found[i].evidence.lower_bound == expected[i].evidence.lower_bound);
        CHECK(found[i].evidence.clipped_fraction == expected[i].evidence.clipped_fraction);
      }
    };
    test::for_each_target([&] { check(solve_channels(view, 0, scheme, solver)); });
    for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
      detent::thread_pool pool(threads);
      INFO("threads ", threads);
      check(solve_channels(view, 0, scheme, solver, pool.parallel()));
    }
  }
}

TEST_CASE("no other method is better") {
  random_source random(2);
  INFO("seed ", random.seed());
  for (int kind = 0; kind < 4; ++kind) {
    for (const int bits : {2, 3, 4, 6, 8}) {
      for (const bool symmetric : {true, false}) {
        const quant_scheme scheme = scheme_of(bits, symmetric, symmetric);
        const std::vector<float> x = sample(random, kind, 4608);
        const distribution d(x);
        const scale_solution best = exact_mse(d, scheme);
        INFO("kind ", kind, " bits ", bits, " symmetric ", symmetric, " exact ",
             best.evidence.objective);
        for (const scale_solution& other :
             {absmax(d, scheme), grid_mse(d, scheme), octav(d, scheme), aciq(d, scheme),
              grid_mse(d, scheme, {40, 0.805})}) {
          INFO(other.evidence.method, " ", other.evidence.objective);
          CHECK(best.evidence.objective <= other.evidence.objective * (1.0 + 1e-9));
          CHECK(best.evidence.lower_bound <= best.evidence.objective);
          CHECK(best.evidence.objective <= best.evidence.lower_bound * 1.00001);
        }
        // The objective is what quantizing makes of the values.
        std::vector<std::uint8_t> q(x.size());
        if (!symmetric && bits == 8) {
          detent::quantize(x, std::span(q), best.params);
          real sum = 0.0L;
          for (std::size_t i = 0; i < x.size(); ++i) {
            const real e = static_cast<real>(x[i]) -
                           (static_cast<real>(q[i]) - best.params.zero_point) * best.params.scale;
            sum += e * e;
          }
          CHECK(static_cast<double>(sum) / 4608.0 ==
                doctest::Approx(best.evidence.objective).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("PPQ's search for the least squared error does not find less") {
  random_source random(9);
  INFO("seed ", random.seed());
  for (int kind = 0; kind < 4; ++kind) {
    for (const quant_scheme& scheme :
         {detent::asymmetric<std::uint8_t>, quant_scheme{{-128, 127}, true}}) {
      for (const auto behaviour : {detent::parity::as_published, detent::parity::fixed}) {
        const std::vector<float> x = sample(random, kind, 4608);
        detent::ppq::mse_observer ppq({.scheme = scheme, .behaviour = behaviour});
        ppq.observe(x);
        ppq.begin_phase(1);
        ppq.observe(x);
        const distribution d(x);
        const detent::quant_params theirs = ppq.finalize(scheme);
        const double error = mean_squared_error(d, theirs, scheme.levels);
        INFO("kind ", kind, " symmetric ", scheme.symmetric, " theirs ", error);
        CHECK(exact_mse(d, scheme).evidence.objective <= error * (1.0 + 1e-9));
      }
    }
  }
}

TEST_CASE("a histogram bounds the error of the values in it") {
  random_source random(3);
  INFO("seed ", random.seed());
  for (int kind = 0; kind < 4; ++kind) {
    for (const int bits : {4, 8}) {
      for (const bool symmetric : {true, false}) {
        const quant_scheme scheme = scheme_of(bits, symmetric, symmetric);
        std::vector<float> x = sample(random, kind, 3000);
        x[7] = 1e-12F;  // smaller than all bins
        x[8] = 0.0F;
        detent::histogram h;
        h.observe(std::span<const float>(x));
        const scale_solution exact = exact_mse(distribution(x), scheme);
        const scale_solution binned = exact_mse(h, scheme);
        const double at_binned = mean_squared_error(distribution(x), binned.params, scheme.levels);
        INFO("kind ", kind, " bits ", bits, " exact ", exact.evidence.objective, " binned ",
             at_binned, " in [", binned.evidence.lower_bound, ", ", binned.evidence.objective, "]");
        CHECK(binned.evidence.lower_bound <= exact.evidence.objective);
        CHECK(at_binned <= binned.evidence.objective * (1.0 + 1e-9));
        CHECK(exact.evidence.objective <= binned.evidence.objective);
        CHECK(at_binned <= exact.evidence.objective * 1.01);
        CHECK(binned.evidence.objective <= exact.evidence.objective * (bits == 4 ? 1.02 : 1.2));
        CHECK(binned.evidence.lower_bound >= exact.evidence.objective * (bits == 4 ? 0.98 : 0.8));
      }
    }
  }
  // Values that are too small for bins add no more than their squares.
  {
    const float x[] = {1.0F, 1e-30F};
    const std::uint64_t counts[] = {1, std::uint64_t{1} << 40};
    detent::histogram h;
    h.observe(std::span<const float>(x), std::span<const std::uint64_t>(counts));
    const scale_solution s = exact_mse(h, detent::symmetric<std::int8_t>);
    CHECK(s.params.scale == 1.0F / 127.0F);
    CHECK(s.evidence.objective < 0x1p-55);  // bins begin some 31 octaves below the largest value
  }
  // Values that are bins' first ones leave nothing open.
  const std::vector<float> x = {0.5F, 0.75F, -1.0F, 3.0F, 2.5F, -0.125F};
  detent::histogram h;
  h.observe(std::span<const float>(x));
  const quant_scheme scheme = scheme_of(3, true, true);
  const scale_solution exact = exact_mse(x, scheme);
  const scale_solution binned = exact_mse(h, scheme);
  CHECK(binned.params == exact.params);
  CHECK(binned.evidence.objective == doctest::Approx(exact.evidence.objective).epsilon(1e-12));
  CHECK(binned.evidence.lower_bound == doctest::Approx(exact.evidence.lower_bound).epsilon(1e-9));
}

TEST_CASE("estimates: published clip values of the models") {
  // Large samples of the models themselves; ratios a / b and a / s as published for a power of two
  // of levels on either side: 128 for 8 bits, 8 for 4.
  random_source random(4);
  INFO("seed ", random.seed());
  const std::vector<float> laplace = sample(random, 1, 200000);
  const std::vector<float> gauss = sample(random, 0, 200000);
  const quant_scheme eight{{-128, 128}, true};
  const quant_scheme four{{-8, 8}, true};
  const auto clip = [](const scale_solution& s, float levels) { return s.params.scale * levels; };
  using detent::aciq_model;
  CHECK(clip(aciq(distribution(laplace), eight, aciq_model::laplace), 128) ==
        doctest::Approx(9.897).epsilon(0.01));
  CHECK(clip(aciq(distribution(laplace), four), 8) == doctest::Approx(5.029).epsilon(0.01));
  CHECK(clip(aciq(distribution(gauss), eight), 128) == doctest::Approx(3.924).epsilon(0.01));
  CHECK(clip(aciq(distribution(gauss), four), 8) == doctest::Approx(2.559).epsilon(0.01));
  // OCTAV does not assume a model; here both apply.
  CHECK(clip(octav(distribution(gauss), four), 8) == doctest::Approx(2.559).epsilon(0.02));
  CHECK(octav(distribution(laplace), four).evidence.objective <=
        absmax(distribution(laplace), four).evidence.objective / 2.0);
}

TEST_CASE("grid_mse: the last candidate is the lowest") {
  std::vector<float> x(1000, 0.5F);
  x.push_back(1.0F);
  const scale_solution s = grid_mse(distribution(x), {{-1, 1}, true}, {.steps = 2, .lowest = 0.5});
  CHECK(s.params.scale == 0.5F);
}

TEST_CASE("solvers: what is degenerate is defined") {
  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  const quant_scheme s8 = detent::symmetric<std::int8_t>;
  const std::vector<float> zeros(5, 0.0F);
  for (const quant_scheme& scheme : {u8, s8}) {
    for (const scale_solution& s :
         {exact_mse(zeros, scheme), absmax(distribution(zeros), scheme),
          grid_mse(distribution(zeros), scheme), octav(distribution(zeros), scheme),
          aciq(distribution(zeros), scheme)}) {
      CHECK(s.params == detent::quant_params{1.0F, 0});
      CHECK(s.evidence.objective == 0.0);
      CHECK(s.evidence.lower_bound == 0.0);
    }
  }
  const std::vector<float> one = {-3.0F};
  CHECK(exact_mse(one, s8).evidence.objective < 1e-12);
  CHECK(exact_mse(one, u8).evidence.objective < 1e-12);
  const std::vector<float> tiny = {std::numeric_limits<float>::denorm_min()};
  CHECK(exact_mse(tiny, s8).params.scale >= std::numeric_limits<float>::min());
  const std::vector<float> huge = {std::numeric_limits<float>::max(), -1.0F};
  CHECK(std::isfinite(exact_mse(huge, u8).params.scale));
  const std::vector<float> positive = {1.0F, 2.0F, 250.0F};
  CHECK(exact_mse(positive, u8).params.zero_point == 0);
  const std::vector<float> negative = {-1.0F, -2.0F, -250.0F};
  CHECK(exact_mse(negative, u8).params.zero_point == 255);

  check_error(error_kind::invalid_argument, {"no values"},
              [&] { static_cast<void>(distribution(std::span<const float>())); });
  const std::vector<float> nan = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  check_error(error_kind::invalid_argument, {"nan", "not finite"},
              [&] { static_cast<void>(distribution{nan}); });
  check_error(error_kind::invalid_argument, {"weight", "-1"},
              [&] { static_cast<void>(distribution(one, std::vector<float>{-1.0F})); });
  check_error(error_kind::invalid_argument, {"no weight is positive"},
              [&] { static_cast<void>(distribution(one, std::vector<float>{0.0F})); });
  check_error(error_kind::shape_mismatch, {"1 values", "2 weights"}, [&] {
    static_cast<void>(distribution(one, std::vector<float>{1.0F, 1.0F}));
  });
  check_error(error_kind::unsupported, {"-32768..32767"},
              [&] { static_cast<void>(exact_mse(one, detent::asymmetric<std::int16_t>)); });
  check_error(error_kind::invalid_argument, {"0 steps"}, [&] {
    static_cast<void>(grid_mse(distribution(one), s8, {0, 0.5}));
  });
  check_error(error_kind::invalid_argument, {"0"}, [&] {
    static_cast<void>(grid_mse(distribution(one), s8, {10, 0.0}));
  });
}

TEST_CASE("errors of a scale: grids beyond 17 bits are refused") {
  const auto invalid = error_kind::invalid_argument;
  const detent::distribution d(std::vector<float>{1.0F, 2.0F, -3.0F});
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  for (const detent::grid levels : {detent::grid{least, most}, detent::grid{-65537, 0},
                                    detent::grid{0, 65536}, detent::grid{0, 0}}) {
    INFO("grid ", levels.qmin, "..", levels.qmax);
    check_error(invalid, {"mean_squared_error", "grid"}, [&] {
      static_cast<void>(detent::mean_squared_error(d, {1.0F, 0}, levels));
    });
    check_error(invalid, {"mean_power_error", "grid"}, [&] {
      static_cast<void>(detent::mean_power_error(d, {1.0F, 0}, levels, 2.4));
    });
  }
  const detent::grid widest{-65536, 65535};
  CHECK(detent::mean_squared_error(d, {1.0F, 0}, widest) == 0.0);
  CHECK(detent::mean_power_error(d, {1.0F, 0}, widest, 2.4) == 0.0);
}

TEST_CASE("bins that no histogram has are refused") {
  using bins = std::vector<detent::value_bin>;
  const detent::quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  const auto refuses = [&](const bins& all, detent::value_range range) {
    const auto invalid = error_kind::invalid_argument;
    check_error(invalid, {"distribution"},
                [&] { static_cast<void>(detent::distribution(all, range)); });
    check_error(invalid, {"distribution"},
                [&] { static_cast<void>(detent::distribution::of_bin_ends(all, range)); });
    check_error(invalid, {}, [&] { static_cast<void>(detent::exact_mse(all, range, u8)); });
    check_error(invalid, {}, [&] { static_cast<void>(detent::lp_norm(all, range, u8)); });
    check_error(invalid, {}, [&] { static_cast<void>(detent::kl(all, range, u8)); });
  };
  const detent::value_bin good{.smallest = 1.0F, .largest = 1.0F, .count = 2};
  const auto with = [&](auto change) {
    detent::value_bin bin = good;
    change(bin);
    return bins{bin};
  };
  const detent::value_range range{-0.5F, 1.0F};
  CHECK(detent::distribution(bins{good}, range).count() == 2);
  CHECK(detent::kl(bins{good}, range, u8).evidence.count == 2);
  refuses({good}, {0.0F, 0.5F});
  refuses({good}, {0.0F, 0.0F});
  refuses({good}, {1.0F, 0.0F});
  refuses({good}, {0.0F, std::numeric_limits<float>::infinity()});
  refuses({good}, {std::numeric_limits<float>::quiet_NaN(), 1.0F});
  refuses(with([](auto& bin) { bin.largest = 1e38F; }), range);
  refuses(with([](auto& bin) { bin.smallest = bin.largest = 1e38F; }), range);
  refuses(with([](auto& bin) { bin.largest = 0.5F; }), range);
  refuses(with([](auto& bin) { bin.smallest = -1.0F; }), range);
  refuses(with([](auto& bin) { bin.smallest = std::numeric_limits<float>::quiet_NaN(); }), range);
  refuses(with([](auto& bin) { bin.count = 0; }), range);
  refuses(with([](auto& bin) { bin.excess = (std::uint64_t{2} << 14) + 1; }), range);
  refuses(with([](auto& bin) { bin.count = (std::uint64_t{1} << 48) + 1; }), range);
  detent::value_bin many = good;
  many.count = std::uint64_t{1} << 63;
  refuses({many, many, good}, range);  // 2^64 + 2
}

TEST_CASE("null weights and parameters of columns are refused") {
  const std::vector<float> x = {1.0F, 2.0F, -3.0F};
  check_error(error_kind::invalid_argument, {"distribution", "null weights", "3"}, [&] {
    static_cast<void>(
        detent::distribution(x, std::span<const float>(static_cast<const float*>(nullptr), 3)));
  });
  const std::vector<std::int8_t> weights(6, 1);
  const detent::matrix_view<const std::int8_t> b(weights.data(), 2, 3);
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}}) {
    check_error(error_kind::invalid_argument, {"pack_weights", "null"}, [&] {
      static_cast<void>(detent::pack_weights(
          b, {.scales = std::span<const float>(static_cast<const float*>(nullptr), size)}));
    });
  }
}

TEST_CASE("estimates on a grid of two levels divide the magnitudes into one") {
  const detent::distribution d(std::vector<float>{1.0F, 2.0F, -3.0F});
  const detent::quant_scheme bit{{0, 1}, false};
  for (const scale_solution& s :
       {octav(d, bit), aciq(d, bit), aciq(d, bit, detent::aciq_model::laplace),
        aciq(d, bit, detent::aciq_model::gauss)}) {
    INFO(std::string(s.evidence.method), " ", s.params.scale);
    CHECK(s.params.scale >= 2.0F);
    CHECK(s.params.scale <= 5.0F);
    CHECK(s.evidence.objective < d.square_sum() / 3.0);
  }
}

TEST_CASE("16-bit formats: a histogram of all patterns leaves nothing open") {
  random_source random(6);
  INFO("seed ", random.seed());
  const auto check = [&]<class F>(F) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<F> x;
      std::vector<float> as_floats;
      for (const float value : sample(random, kind, 2000)) {
        x.push_back(detent::round_to<F>(value));
        as_floats.push_back(to_float(x.back()));
      }
      detent::pattern_histogram<F> h;
      h.observe(std::span<const F>(x).first(700));
      detent::pattern_histogram<F> rest;
      rest.observe(std::span<const F>(x).subspan(700));
      h.merge(rest);
      CHECK(h == detent::pattern_histogram<F>::load(h.save()));
      const scale_solution exact = exact_mse(as_floats, detent::asymmetric<std::uint8_t>);
      const scale_solution binned =
          exact_mse(h.bins(), h.range(), detent::asymmetric<std::uint8_t>);
      CHECK(binned.params == exact.params);
      CHECK(binned.evidence.objective == doctest::Approx(exact.evidence.objective).epsilon(1e-9));
      CHECK(binned.evidence.lower_bound ==
            doctest::Approx(exact.evidence.lower_bound).epsilon(1e-6));
      std::sort(as_floats.begin(), as_floats.end());
      for (const double fraction : {0.0, 0.1, 0.5, 0.999, 1.0}) {
        const auto rank = detent::quantile_rank(fraction, as_floats.size());
        CHECK(h.quantile(fraction) == as_floats[rank - 1]);
      }
      CHECK(h.range() == detent::value_range{as_floats.front(), as_floats.back()});
    }
  };
  check(detent::float16{});
  check(detent::bfloat16{});
  detent::float16_histogram h;
  const detent::float16 values[] = {{0x8000}, {0x0000}, {0x7C00}};  // -0, 0, infinity
  h.observe(std::span(values).first(2));
  CHECK(h.range() == detent::value_range{0.0F, 0.0F});
  const auto saved = h.save();
  for (std::size_t i = 0; i < saved.size(); ++i) {
    auto damaged = saved;
    damaged[i] ^= std::byte{1};
    CHECK_THROWS_AS(static_cast<void>(detent::float16_histogram::load(damaged)), detent::error);
  }
  check_error(error_kind::bad_file, {"another format"},
              [&] { static_cast<void>(detent::bfloat16_histogram::load(saved)); });
  h.observe(std::span(values));
  check_error(error_kind::invalid_argument, {"1 of 5", "inf"},
              [&] { static_cast<void>(h.bins()); });
}

TEST_CASE("16-bit formats: a histogram counts up to 2^48 values, and an error changes nothing") {
  detent::bfloat16_histogram h;
  const detent::bfloat16 one[] = {{0x3F80}};
  h.observe(one);
  const detent::bfloat16_histogram single = h;
  for (int i = 0; i < 47; ++i) {
    h.merge(h);
  }
  check_error(error_kind::overflow, {"pattern_histogram", "2^48"}, [&] {
    detent::bfloat16_histogram more = h;
    more.merge(single);
    more.merge(h);
  });
  h.merge(h);
  CHECK(h.count() == std::uint64_t{1} << 48);
  const auto full = h;
  check_error(error_kind::overflow, {"pattern_histogram", "2^48"}, [&] { h.observe(one); });
  check_error(error_kind::overflow, {"pattern_histogram", "2^48"}, [&] { h.merge(single); });
  CHECK(h == full);
  CHECK(h == detent::bfloat16_histogram::load(h.save()));
  CHECK(h.range() == detent::value_range{1.0F, 1.0F});
}

TEST_CASE("solvers for channels and blocks see the values of each") {
  random_source random(7);
  INFO("seed ", random.seed());
  const std::vector<float> x = sample(random, 0, 3 * 10 * 4);
  const detent::tensor_view<const float> view(x.data(), {3, 10, 4});
  const quant_scheme scheme = scheme_of(4, true, true);
  detent::thread_pool pool(2);
  const auto solver = [](const distribution& d, quant_scheme s) { return exact_mse(d, s); };
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::size_t extent = view.shape[axis];
    const auto channels = solve_channels(view, axis, scheme, solver, pool.parallel());
    const auto blocks = solve_blocks(view, axis, 4, scheme, solver, pool.parallel());
    const std::size_t per_line = (extent + 3) / 4;
    REQUIRE(channels.size() == extent);
    REQUIRE(blocks.size() == 120 / extent * per_line);
    for (std::size_t c = 0; c < extent; ++c) {
      std::vector<float> values;
      for (std::size_t i = 0; i < 120; ++i) {
        const std::size_t index[] = {i / 40, i / 4 % 10, i % 4};
        if (index[axis] == c) {
          values.push_back(x[i]);
        }
      }
      CHECK(channels[c].params == exact_mse(values, scheme).params);
    }
    const auto p = detent::block_params(axis, 4, blocks);
    std::vector<std::vector<float>> parts(blocks.size());
    for (std::size_t i = 0; i < 120; ++i) {
      const std::size_t index[] = {i / 40, i / 4 % 10, i % 4};
      std::size_t at = 0;
      for (std::size_t d = 0; d < 3; ++d) {
        at = d == axis ? at * per_line + index[d] / 4 : at * view.shape[d] + index[d];
      }
      parts[at].push_back(x[i]);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(p.scales[i] == exact_mse(parts[i], scheme).params.scale);
    }
    CHECK(detent::channel_params(axis, channels).scales.size() == extent);
  }
  check_error(error_kind::invalid_argument, {"axis 3", "rank 3"},
              [&] { static_cast<void>(solve_channels(view, 3, scheme, solver)); });
  check_error(error_kind::invalid_argument, {"block size 0"},
              [&] { static_cast<void>(solve_blocks(view, 0, 0, scheme, solver)); });
  check_error(error_kind::invalid_argument, {"no values"}, [&] {
    static_cast<void>(
        solve_channels(detent::tensor_view<const float>(x.data(), {0, 3}), 0, scheme, solver));
  });
}

TEST_CASE("histograms bound errors at the end of the floats and of the counts") {
  std::vector<float> x;
  for (int i = 1; i < 200; ++i) {
    x.push_back(std::numeric_limits<float>::max() / 200.0F * static_cast<float>(i));
  }
  x.push_back(std::numeric_limits<float>::max());
  detent::histogram h;
  h.observe(std::span<const float>(x));
  const scale_solution s = exact_mse(h, detent::asymmetric<std::uint8_t>);
  CHECK(s.evidence.lower_bound <=
        exact_mse(x, detent::asymmetric<std::uint8_t>).evidence.objective);
  // The same values, many times over: the mean error is the same.
  const std::vector<float> three = {0.3F, 0.7001F, -1.1F};
  const auto bounds = [&](std::uint64_t count) {
    detent::histogram many;
    const std::vector<std::uint64_t> counts(3, count);
    many.observe(std::span<const float>(three), std::span<const std::uint64_t>(counts));
    return exact_mse(many, detent::symmetric<std::int8_t>);
  };
  const scale_solution few = bounds(1);
  const scale_solution many = bounds(std::uint64_t{1} << 46);
  CHECK(many.params.scale == doctest::Approx(few.params.scale).epsilon(1e-6));
  CHECK(many.evidence.lower_bound == doctest::Approx(few.evidence.lower_bound).epsilon(1e-6));
  CHECK(few.evidence.lower_bound <= few.evidence.objective);
  detent::count_histogram counts;
  counts.observe(std::span<const float>(three));
  check_error(error_kind::invalid_argument, {"without sums"}, [&] {
    static_cast<void>(exact_mse(counts.bins(), counts.range(), detent::symmetric<std::int8_t>));
  });
}

TEST_CASE("one value, however often, has no error") {
  random_source random(8);
  INFO("seed ", random.seed());
  for (int round = 0; round < 2000; ++round) {
    const float value[] = {random.real(-2.0F, 2.0F)};
    const std::uint64_t count[] = {random.integer(std::uint64_t{1}, std::uint64_t{1} << 45)};
    detent::histogram h;
    h.observe(std::span<const float>(value), std::span<const std::uint64_t>(count));
    for (const quant_scheme& scheme :
         {quant_scheme{{-1, 1}, true}, quant_scheme{{0, 255}, false}}) {
      const scale_solution s = exact_mse(detent::distribution(h), scheme);
      CHECK(s.evidence.objective <=
            1e-12 * static_cast<double>(value[0]) * static_cast<double>(value[0]));
    }
  }
  // Two narrow clusters: next to no error, found without trying all steps.
  std::vector<float> x;
  for (int i = 0; i < 20000; ++i) {
    x.push_back((i % 2 == 0 ? 0.5F : -0.5F) + random.real(0.0F, 1e-6F));
  }
  CHECK(exact_mse(x, detent::asymmetric<std::uint8_t>).evidence.objective < 1e-11);
}

TEST_CASE("exact_mse does not depend on the order of the values") {
  random_source random(5);
  INFO("seed ", random.seed());
  std::vector<float> x = sample(random, 2, 1000);
  const scale_solution first = exact_mse(x, detent::asymmetric<std::int8_t>);
  for (std::size_t i = x.size(); i > 1; --i) {
    std::swap(x[i - 1], x[random.size(0, i - 1)]);
  }
  const scale_solution second = exact_mse(x, detent::asymmetric<std::int8_t>);
  CHECK(first.params == second.params);
  CHECK(first.evidence.objective == second.evidence.objective);
  CHECK(first.evidence.lower_bound == second.evidence.lower_bound);
}

TEST_CASE("the error of many weighted values on a grid of 16 bits") {
  // Weights of 2^24 each: their sums times twice the level do not fit 64 bits.
  constexpr std::size_t count = (std::size_t{1} << 23U) + 4096;
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = 0.999F + 0.001F * static_cast<float>(i) / static_cast<float>(count);
  }
  const std::vector<float> weights(count, 1.0F);
  const detent::quant_params p{1.0F / 65535.0F, 0};
  const grid levels{0, 65535};
  const double weighted = detent::mean_squared_error(distribution(x, weights), p, levels);
  const double plain = detent::mean_squared_error(distribution(x), p, levels);
  CHECK(plain > 1e-12);
  CHECK(std::fabs(weighted - plain) <= 1e-9 * plain);
}
