// SPDX-License-Identifier: BSD-3-Clause
// The scale with the least L^p error: against every scale of a dense grid in long double, against
// exact_mse() where p is 2, and what bounds say of values that are known by their bins only.
#include <algorithm>
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
using detent::lp_norm;
using detent::lp_norm_options;
using detent::quant_params;
using detent::quant_scheme;
using detent::scale_solution;
using test::check_error;
using test::random_source;

using real = long double;
using floats = std::vector<float>;

/// The mean of |error|^p, each value at its nearest level.
real error_at(const floats& x, const floats& weights, real scale, grid levels,
              std::int32_t zero_point, double p) {
  real sum = 0.0L;
  real weight = 0.0L;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const real k = std::clamp(std::nearbyint(static_cast<real>(x[i]) / scale),
                              static_cast<real>(levels.qmin - zero_point),
                              static_cast<real>(levels.qmax - zero_point));
    const real w = weights.empty() ? 1.0L : static_cast<real>(weights[i]);
    sum += w * std::pow(std::fabs(static_cast<real>(x[i]) - k * scale), static_cast<real>(p));
    weight += w;
  }
  return sum / weight;
}

/// Close to the least of one zero point: each assignment of levels that occurs between two
/// neighbouring breakpoints has a convex error, whose minimum is found by sections.
real least_error(const floats& x, const floats& weights, grid levels, std::int32_t zero_point,
                 double p) {
  std::vector<real> points{0.0L};
  for (const float value : x) {
    const std::int32_t cap = value < 0.0F ? zero_point - levels.qmin : levels.qmax - zero_point;
    for (std::int32_t k = 1; k <= cap && value != 0.0F; ++k) {
      points.push_back(std::fabs(static_cast<real>(value)) / (static_cast<real>(k) - 0.5L));
    }
  }
  std::sort(points.begin(), points.end());
  const auto at = [&](real scale) { return error_at(x, weights, scale, levels, zero_point, p); };
  real least = std::numeric_limits<real>::infinity();
  for (std::size_t i = 0; i < points.size(); ++i) {
    real low = points[i];
    real high = i + 1 < points.size() ? points[i + 1] : 2.0L * low + 1.0L;
    if (high == low) {
      continue;
    }
    low = std::max(low, high * 1e-9L);
    for (int step = 0; step < 40; ++step) {
      const real a = low + (high - low) / 3.0L;
      const real b = high - (high - low) / 3.0L;
      (at(a) <= at(b) ? high : low) = at(a) <= at(b) ? b : a;
    }
    least = std::min(least, at(0.5L * (low + high)));
  }
  return least;
}

floats sample(random_source& random, int kind, std::size_t n) {
  floats x(n);
  for (float& value : x) {
    const float sum =
        random.real(-1.0F, 1.0F) + random.real(-1.0F, 1.0F) + random.real(-1.0F, 1.0F);
    value = kind == 0   ? sum
            : kind == 1 ? sum * sum * sum
            : kind == 2 ? std::max(sum, 0.0F) - 0.01F
                        : random.real(-1.0F, 2.0F);
  }
  return x;
}

quant_scheme scheme_of(int bits, bool symmetric) {
  const std::int32_t levels = 1 << bits;
  return symmetric ? quant_scheme{{1 - levels / 2, levels / 2 - 1}, true}
                   : quant_scheme{{0, levels - 1}, false};
}

}  // namespace

TEST_CASE("fixed_power is the power") {
  random_source random(1);
  INFO("seed ", random.seed());
  for (const double q : {0.0, 0.25, 0.5, 1.0, 1.4, 2.0, 3.0, 6.9, 7.0}) {
    const detent::detail::fixed_power power(q);
    real worst = 0.0L;
    for (int i = 0; i < 20000; ++i) {
      const double mantissa = 1.0 + static_cast<double>(random.bits() >> 11) * 0x1p-53;
      const double x = std::ldexp(mantissa, random.integer(-95, 2));
      const real expected = std::pow(static_cast<real>(x), static_cast<real>(q));
      worst = std::max(worst, std::fabs(static_cast<real>(power(x)) - expected) / expected);
    }
    INFO("q ", q, " worst ", static_cast<double>(worst));
    CHECK(worst <= (q == 0.0 ? 0.0L : 1e-12L));
    CHECK(power(1.0) == doctest::Approx(1.0).epsilon(1e-12));
    CHECK(power(0.0) == 0.0);
    CHECK(power(0x1p-97) == 0.0);
  }
}

TEST_CASE("lp_norm is next to the least of all scales") {
  random_source random(2);
  INFO("seed ", random.seed());
  for (int round = 0; round < 200; ++round) {
    const int bits = random.integer(2, 4);
    const bool symmetric = random.chance(60);
    const quant_scheme scheme = scheme_of(bits, symmetric);
    const std::size_t n = random.size(1, 9);
    floats x = sample(random, random.integer(0, 3), n);
    if (random.chance(20)) {
      for (float& value : x) {
        value = std::nearbyint(value * 4.0F);
      }
    } else if (random.chance(15)) {
      x[0] *= std::ldexp(1.0F, random.integer(-20, 20));
    }
    floats weights;
    if (random.chance(25)) {
      for (std::size_t i = 0; i < n; ++i) {
        weights.push_back(static_cast<float>(random.integer(i == 0 ? 1 : 0, 16)) / 16.0F);
      }
      weights[0] = 1.0F;
    }
    const double p =
        random.chance(30) ? random.integer(1, 8) : static_cast<double>(random.real(1.0F, 8.0F));
    const scale_solution s =
        lp_norm(weights.empty() ? distribution(x) : distribution(x, weights), scheme, {.p = p});
    real least = std::numeric_limits<real>::infinity();
    for (std::int32_t z = scheme.levels.qmin; z <= scheme.levels.qmax; ++z) {
      if (!symmetric || z == s.params.zero_point) {
        least = std::min(least, least_error(x, weights, scheme.levels, z, p));
      }
    }
    float largest = 0.0F;
    for (const float value : x) {
      largest = std::max(largest, std::fabs(value));
    }
    const real found = error_at(x, weights, s.params.scale, scheme.levels, s.params.zero_point, p);
    // What next to no error is.
    const real slack = std::pow(static_cast<real>(largest) * 0x1p-19L, static_cast<real>(p));
    INFO("round ", round, " p ", p, " bits ", bits, " symmetric ", symmetric, " n ", n, " least ",
         static_cast<double>(least), " found ", static_cast<double>(found), " in [",
         s.evidence.lower_bound, ", ", s.evidence.objective, "]");
    CHECK(found <= least * 1.0011L + slack);
    CHECK(std::fabs(static_cast<real>(s.evidence.objective) - found) <= found * 1e-9L + slack);
    CHECK(static_cast<real>(s.evidence.lower_bound) <= least * (1.0L + 1e-9L) + slack * 1e-6L);
    CHECK(s.evidence.lower_bound <= s.evidence.objective);
    CHECK(static_cast<real>(s.evidence.lower_bound) >= found * 0.9989L - slack);
    CHECK(s.params.zero_point >= scheme.levels.qmin);
    CHECK(s.params.zero_point <= scheme.levels.qmax);
  }
}

TEST_CASE("lp_norm of many values: no scale of a dense grid is below the bound") {
  random_source random(3);
  INFO("seed ", random.seed());
  for (int kind = 0; kind < 4; ++kind) {
    for (const int bits : {2, 3, 5, 6, 7, 8}) {
      for (const bool symmetric : {true, false}) {
        const quant_scheme scheme = scheme_of(bits, symmetric);
        const floats x = sample(random, kind, 1500);
        const double p = random.chance(50) ? 2.4 : static_cast<double>(random.real(1.0F, 8.0F));
        const distribution d(x);
        const scale_solution s = lp_norm(d, scheme, {.p = p});
        INFO("kind ", kind, " bits ", bits, " symmetric ", symmetric, " p ", p, " in [",
             s.evidence.lower_bound, ", ", s.evidence.objective, "]");
        CHECK(s.evidence.lower_bound >= 0.9989 * s.evidence.objective);
        CHECK(s.evidence.lower_bound <= s.evidence.objective);
        CHECK(static_cast<double>(
                  error_at(x, {}, s.params.scale, scheme.levels, s.params.zero_point, p)) ==
              doctest::Approx(s.evidence.objective).epsilon(1e-9));
        CHECK(mean_power_error(d, s.params, scheme.levels, p) == s.evidence.objective);
        for (int i = 0; i < 200; ++i) {
          const std::int32_t z = symmetric ? s.params.zero_point
                                 : random.chance(80)
                                     ? s.params.zero_point
                                     : random.integer(scheme.levels.qmin, scheme.levels.qmax);
          const double factor =
              random.chance(50) ? random.real(0.95F, 1.05F) : random.real(0.02F, 3.0F);
          const real other =
              error_at(x, {}, static_cast<real>(s.params.scale) * factor, scheme.levels, z, p);
          CHECK(other >= static_cast<real>(s.evidence.lower_bound) * (1.0L - 1e-9L));
        }
      }
    }
  }
}

TEST_CASE("lp_norm with p = 2 is exact_mse, and its search agrees") {
  random_source random(4);
  INFO("seed ", random.seed());
  for (int kind = 0; kind < 4; ++kind) {
    for (const int bits : {2, 4, 8}) {
      for (const bool symmetric : {true, false}) {
        const quant_scheme scheme = scheme_of(bits, symmetric);
        const floats x = sample(random, kind, 1000);
        const distribution d(x);
        const scale_solution exact = exact_mse(d, scheme);
        const scale_solution same = lp_norm(d, scheme, {.p = 2.0});
        CHECK(same.params == exact.params);
        CHECK(same.evidence.objective == exact.evidence.objective);
        CHECK(same.evidence.lower_bound == exact.evidence.lower_bound);
        // The search itself, which p = 2 does not reach.
        const detent::detail::fixed_power power(1.0);
        const double unit = detent::detail::unit_of(d);
        const detent::detail::lp_scale found = detent::detail::best_lp_scale(
            d, detent::detail::groups_of(d.negative(), unit),
            detent::detail::groups_of(d.positive(), unit), scheme, {.p = 2.0}, power);
        INFO("kind ", kind, " bits ", bits, " symmetric ", symmetric);
        const double least = exact.evidence.objective;
        const double error = mean_squared_error(d, found.params, scheme.levels);
        CHECK(error >= least * (1.0 - 1e-6));
        CHECK(error <= least * 1.0011);
        const double bound = found.best.bound_of_values / 1000.0 * unit * unit;
        CHECK(bound <= least);
        CHECK(bound >= 0.9985 * least);
        // Powers next to 2 are next to it.
        const scale_solution near = lp_norm(d, scheme, {.p = 2.0 + 1e-9});
        CHECK(near.evidence.objective == doctest::Approx(least).epsilon(0.002));
        const detent::histogram h = [&] {
          detent::histogram seen;
          seen.observe(std::span<const float>(x));
          return seen;
        }();
        CHECK(lp_norm(h, scheme, {.p = 2.0}).evidence.lower_bound ==
              exact_mse(h, scheme).evidence.lower_bound);
      }
    }
  }
}

TEST_CASE("lp_norm of a histogram bounds the error of the values in it") {
  random_source random(5);
  INFO("seed ", random.seed());
  for (int kind = 0; kind < 4; ++kind) {
    for (const int bits : {2, 4, 8}) {
      for (const bool symmetric : {true, false}) {
        for (const double p : {1.0, 2.4, 6.0}) {
          const quant_scheme scheme = scheme_of(bits, symmetric);
          floats x = sample(random, kind, 3000);
          x[7] = 1e-12F;  // smaller than all bins
          x[8] = 0.0F;
          detent::histogram h;
          h.observe(std::span<const float>(x));
          const scale_solution exact = lp_norm(x, scheme, {.p = p});
          const scale_solution binned = lp_norm(h, scheme, {.p = p});
          const double at_binned =
              mean_power_error(distribution(x), binned.params, scheme.levels, p);
          INFO("kind ", kind, " bits ", bits, " symmetric ", symmetric, " p ", p, " exact ",
               exact.evidence.objective, " binned ", at_binned, " in [",
               binned.evidence.lower_bound, ", ", binned.evidence.objective, "]");
          CHECK(binned.evidence.lower_bound <= exact.evidence.objective);
          CHECK(at_binned <= binned.evidence.objective * (1.0 + 1e-9));
          CHECK(at_binned >= exact.evidence.lower_bound * (1.0 - 1e-9));
          CHECK(at_binned <= exact.evidence.objective * 1.02);
          // Near the end of 8 bits, bins are up to a quarter of a level wide.
          const double open = bits == 8 ? 1.2 + 0.05 * p : 1.0 + 0.004 * p;
          CHECK(binned.evidence.objective <= exact.evidence.objective * open);
          CHECK(binned.evidence.lower_bound >= exact.evidence.objective * (2.0 - open));
          CHECK(binned.evidence.count == 3000);
          CHECK(binned.evidence.method == "lp_norm");
        }
      }
    }
  }
  // Values that are bins' first ones leave nothing open.
  const floats x = {0.5F, 0.75F, -1.0F, 3.0F, 2.5F, -0.125F};
  detent::histogram h;
  h.observe(std::span<const float>(x));
  const scale_solution exact = lp_norm(x, scheme_of(3, true), {.p = 3.0});
  const scale_solution binned = lp_norm(h, scheme_of(3, true), {.p = 3.0});
  CHECK(binned.evidence.objective == doctest::Approx(exact.evidence.objective).epsilon(2e-3));
  CHECK(binned.evidence.lower_bound <= exact.evidence.objective);
  detent::count_histogram counts;
  counts.observe(std::span<const float>(x));
  check_error(error_kind::invalid_argument, {"without sums"}, [&] {
    static_cast<void>(lp_norm(counts.bins(), counts.range(), scheme_of(3, true)));
  });
}

TEST_CASE("the larger p, the less is clipped") {
  random_source random(6);
  INFO("seed ", random.seed());
  const distribution d(sample(random, 1, 4000));
  for (const bool symmetric : {true, false}) {
    float before = 0.0F;
    double clipped = 1.0;
    for (const double p : {1.0, 2.0, 4.0, 8.0}) {
      const scale_solution s = lp_norm(d, scheme_of(4, symmetric), {.p = p});
      CHECK(s.params.scale > before);
      CHECK(s.evidence.clipped_fraction <= clipped);
      before = s.params.scale;
      clipped = s.evidence.clipped_fraction;
    }
  }
}

TEST_CASE("many values are joined: both bounds hold still") {
  random_source random(7);
  INFO("seed ", random.seed());
  const floats x = sample(random, 0, 40000);
  for (const int bits : {4, 8}) {
    const quant_scheme scheme = scheme_of(bits, false);
    const scale_solution s = lp_norm(x, scheme, {.p = 1.5});
    CHECK(static_cast<double>(
              error_at(x, {}, s.params.scale, scheme.levels, s.params.zero_point, 1.5)) ==
          doctest::Approx(s.evidence.objective).epsilon(1e-9));
    CHECK(s.evidence.lower_bound >= s.evidence.objective * (bits == 8 ? 0.97 : 0.998));
    for (int i = 0; i < 20; ++i) {
      const real factor = static_cast<real>(random.real(0.97F, 1.03F));
      CHECK(error_at(x, {}, s.params.scale * factor, scheme.levels, s.params.zero_point, 1.5) >=
            static_cast<real>(s.evidence.lower_bound));
    }
  }
}

TEST_CASE("with little work the lower bound is lower, but holds") {
  random_source random(8);
  INFO("seed ", random.seed());
  const floats x = sample(random, 0, 2000);
  const quant_scheme scheme = scheme_of(8, false);
  const scale_solution all = lp_norm(x, scheme);
  double before = 0.0;
  for (const std::uint64_t work : {std::uint64_t{0}, std::uint64_t{200'000},
                                   std::uint64_t{1'000'000}, std::uint64_t{16'000'000}}) {
    const scale_solution some = lp_norm(x, scheme, {.work = work});
    INFO("work ", work, " in [", some.evidence.lower_bound, ", ", some.evidence.objective, "]");
    CHECK(some.evidence.lower_bound <= all.evidence.objective);
    CHECK(some.evidence.lower_bound >= before);
    CHECK(some.evidence.objective >= all.evidence.lower_bound);
    CHECK(some.evidence.objective <= 1.2 * all.evidence.objective);
    before = some.evidence.lower_bound;
  }
  CHECK(lp_norm(x, scheme, {.work = 0}).evidence.lower_bound < 0.5 * all.evidence.lower_bound);
  const scale_solution loose = lp_norm(x, scheme, {.tolerance = 0.05});
  CHECK(loose.evidence.lower_bound >= 0.949 * loose.evidence.objective);
  CHECK(loose.evidence.objective <= 1.06 * all.evidence.objective);
}

TEST_CASE("lp_norm: what is degenerate is defined") {
  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  const quant_scheme s8 = detent::symmetric<std::int8_t>;
  for (const double p : {1.0, 1.7, 2.0, 8.0}) {
    const lp_norm_options options{.p = p};
    for (const quant_scheme& scheme : {u8, s8}) {
      const floats zeros(5, 0.0F);
      const scale_solution none = lp_norm(zeros, scheme, options);
      CHECK(none.params == quant_params{1.0F, 0});
      CHECK(none.evidence.objective == 0.0);
      CHECK(none.evidence.lower_bound == 0.0);
      detent::histogram h;
      h.observe(std::span<const float>(zeros));
      CHECK(lp_norm(h, scheme, options).params == quant_params{1.0F, 0});
      for (const float value : {-3.0F, 1e-30F, 0.7F, std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::denorm_min()}) {
        const floats one = {value};
        const scale_solution s = lp_norm(one, scheme, options);
        const double size = std::fabs(static_cast<double>(value));
        INFO("p ", p, " value ", value, " symmetric ", scheme.symmetric);
        CHECK(std::isfinite(s.params.scale));
        CHECK(s.params.scale >= std::numeric_limits<float>::min());
        CHECK(s.evidence.lower_bound <= s.evidence.objective);
        if (size > 1e-36) {  // else the smallest scale is too large for it
          CHECK(std::pow(s.evidence.objective, 1.0 / p) <= size * 0x1p-19);
        }
      }
      const floats huge = {std::numeric_limits<float>::max(), -1.0F, 3e38F, -2.9e38F};
      CHECK(std::isfinite(lp_norm(huge, scheme, options).params.scale));
    }
    const floats positive = {1.0F, 2.0F, 250.0F};
    CHECK(lp_norm(positive, u8, options).params.zero_point == 0);
    const floats negative = {-1.0F, -2.0F, -250.0F};
    CHECK(lp_norm(negative, u8, options).params.zero_point == 255);
    // Two levels leave no zero point with a level on either side: the largest two values get one,
    // which is best between them.
    const floats both = {-1.0F, 2.0F, 3.0F};
    const scale_solution half = lp_norm(both, {{0, 1}, false}, options);
    CHECK(half.params.zero_point == 0);
    CHECK(half.evidence.objective ==
          doctest::Approx((1.0 + 2.0 * std::pow(0.5, p)) / 3.0).epsilon(1e-4));
  }
  const floats one = {1.0F};
  check_error(error_kind::unsupported, {"lp_norm", "-32768..32767"},
              [&] { static_cast<void>(lp_norm(one, detent::asymmetric<std::int16_t>)); });
  for (const double p : {0.99, 8.01, std::numeric_limits<double>::quiet_NaN()}) {
    check_error(error_kind::invalid_argument, {"lp_norm: p", "is not in 1..8"},
                [&] { static_cast<void>(lp_norm(one, s8, {.p = p})); });
  }
  for (const double tolerance : {0.0, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    check_error(error_kind::invalid_argument, {"lp_norm", "tolerance"},
                [&] { static_cast<void>(lp_norm(one, s8, {.tolerance = tolerance})); });
  }
  check_error(error_kind::invalid_argument, {"mean_power_error", "p 9"}, [&] {
    static_cast<void>(mean_power_error(distribution(one), {1.0F, 0}, s8.levels, 9.0));
  });
  check_error(error_kind::invalid_argument, {"mean_power_error", "-1"}, [&] {
    static_cast<void>(mean_power_error(distribution(one), {-1.0F, 0}, s8.levels, 2.0));
  });
}

TEST_CASE("lp_norm does not depend on the order of the values or the target") {
  random_source random(9);
  INFO("seed ", random.seed());
  floats x = sample(random, 1, 1000);
  const scale_solution first = lp_norm(x, detent::asymmetric<std::int8_t>, {.p = 3.3});
  test::for_each_target([&] {
    for (std::size_t i = x.size(); i > 1; --i) {
      std::swap(x[i - 1], x[random.size(0, i - 1)]);
    }
    const scale_solution second = lp_norm(x, detent::asymmetric<std::int8_t>, {.p = 3.3});
    CHECK(first.params == second.params);
    CHECK(first.evidence.objective == second.evidence.objective);
    CHECK(first.evidence.lower_bound == second.evidence.lower_bound);
  });
  // The same bits from every compiler: values that are defined to the bit, and what they gave.
  floats defined(600);
  std::uint32_t state = 1;
  for (float& value : defined) {
    std::int32_t sum = -524288;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525U + 1013904223U;
      sum += static_cast<std::int32_t>(state >> 14);
    }
    value = static_cast<float>(sum) / 131072.0F;
  }
  struct result {
    double p;
    quant_params params;
    double objective;
    double lower_bound;
  };
  const result results[] = {
      {1.0, {0x1.bb427ep-6F, 138}, 0x1.96586fb17e4b1p-8, 0x1.96037e6e29582p-8},
      {2.4, {0x1.bbcbbcp-6F, 138}, 0x1.110d7855af402p-17, 0x1.10c8bacfa8122p-17},
      {7.5, {0x1.aea12p-6F, 138}, 0x1.f45896e0db65ap-51, 0x1.f405d1292d21p-51}};
  for (const result& expected : results) {
    const scale_solution s = lp_norm(defined, detent::asymmetric<std::uint8_t>, {.p = expected.p});
    INFO("p ", expected.p);
    CHECK(s.params == expected.params);
    CHECK(s.evidence.objective == expected.objective);
    CHECK(s.evidence.lower_bound == expected.lower_bound);
  }
}
