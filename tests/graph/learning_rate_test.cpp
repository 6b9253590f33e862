// SPDX-License-Identifier: BSD-3-Clause
// Factors of the learning rate against their formulas, and the limit on the norm of gradients.
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/learning_rate.hpp>

#include "check_graph_error.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::learning_rate_factor;
using graph::learning_rate_options;
using graph::learning_rate_schedule;
using test::check_graph_error;
using test::random_source;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

/// The factors of the first `count` steps.
std::vector<double> factors(const learning_rate_options& o, std::size_t count, std::size_t total) {
  std::vector<double> all;
  for (std::size_t step = 0; step < count; ++step) {
    all.push_back(learning_rate_factor(o, step, total));
  }
  return all;
}

double clip(std::vector<std::vector<double>>& gradients, double max_norm) {
  const std::vector<std::span<double>> spans(gradients.begin(), gradients.end());
  return graph::clip_gradients(spans, max_norm);
}

}  // namespace

TEST_CASE("learning rate: warm-up and then a constant") {
  CHECK(factors({}, 3, 3) == std::vector<double>{1.0, 1.0, 1.0});
  CHECK(factors({.warmup_steps = 4}, 6, 6) == std::vector<double>{0.25, 0.5, 0.75, 1.0, 1.0, 1.0});
  CHECK(factors({.warmup_steps = 1}, 2, 6) == std::vector<double>{1.0, 1.0});
  CHECK(factors({.warmup_steps = 4}, 2, 2) == std::vector<double>{0.25, 0.5});
}

TEST_CASE("learning rate: steps are counted from the end of the warm-up") {
  const learning_rate_options o{.schedule = learning_rate_schedule::step,
                                .warmup_steps = 2,
                                .step_every = 3,
                                .step_factor = 0.5};
  CHECK(factors(o, 9, 9) == std::vector<double>{0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25});
  learning_rate_options tenths = o;
  tenths.warmup_steps = 0;
  tenths.step_factor = 0.1;
  for (const std::size_t step : {0U, 2U, 3U, 30U, 100U}) {
    CHECK(
        learning_rate_factor(tenths, step, 1000) ==
        doctest::Approx(std::pow(0.1, std::floor(static_cast<double>(step) / 3.0))).epsilon(1e-13));
  }
  CHECK(learning_rate_factor(tenths, std::numeric_limits<std::size_t>::max(), 1) == 0.0);
}

TEST_CASE("learning rate: the cosine is that of its formula, and exact at its ends") {
  const auto cosine = learning_rate_schedule::cosine;
  CHECK(factors({.schedule = cosine, .warmup_steps = 2}, 5, 4) ==
        std::vector<double>{0.5, 1.0, 1.0, 0.5, 0.0});
  for (const double last : {0.0, 0.1, 1.0}) {
    for (const std::size_t total : {1U, 2U, 3U, 97U, 1000U}) {
      for (const std::size_t warmup : {0U, 1U, 50U}) {
        const learning_rate_options o{.schedule = cosine, .warmup_steps = warmup, .last = last};
        for (std::size_t step = warmup; step < total; ++step) {
          const long double pi = std::acos(-1.0L);
          const long double part =
              static_cast<long double>(step - warmup) / static_cast<long double>(total - warmup);
          const long double end = static_cast<long double>(last);
          const long double expected = end + (1.0L - end) * (1.0L + std::cos(pi * part)) / 2.0L;
          const double factor = learning_rate_factor(o, step, total);
          CHECK(std::fabs(factor - static_cast<double>(expected)) < 1e-15);
          CHECK(factor <= (step == warmup ? 1.0 : learning_rate_factor(o, step - 1, total)));
        }
        if (warmup < total) {
          CHECK(learning_rate_factor(o, warmup, total) == 1.0);
        }
        CHECK(learning_rate_factor(o, warmup + total, total) == last);
      }
    }
  }
}

TEST_CASE("learning rate: these bits on every machine") {
  const learning_rate_options o{.schedule = learning_rate_schedule::cosine, .last = 0.125};
  CHECK(learning_rate_factor(o, 1, 7) == 0x1.e9d128a48f871p-1);
  CHECK(learning_rate_factor(o, 2, 7) == 0x1.aba96631d380bp-1);
  CHECK(learning_rate_factor(o, 3, 7) == 0x1.51d83d8d43f9bp-1);
  CHECK(learning_rate_factor(o, 6, 7) == 0x1.58bb5d6dc1e3cp-3);
}

TEST_CASE("learning rate: options that make no sense are named") {
  const auto rejected = [](const learning_rate_options& o, std::string_view word) {
    check_graph_error(error_kind::invalid_argument, {"learning_rate_factor", word},
                      [&] { static_cast<void>(learning_rate_factor(o, 0, 10)); });
  };
  const auto cosine = learning_rate_schedule::cosine;
  const auto step = learning_rate_schedule::step;
  rejected({.schedule = cosine, .last = -0.5}, "last factor of -0.5");
  rejected({.schedule = cosine, .last = quiet_nan}, "last factor of nan");
  rejected({.schedule = step}, "step_every is 0");
  rejected({.schedule = step, .step_every = 1, .step_factor = 0.0}, "step factor of 0");
  rejected({.schedule = step, .step_every = 1, .step_factor = 1.5}, "step factor of 1.5");
  rejected({.schedule = static_cast<learning_rate_schedule>(9)}, "no schedule 9");
}

TEST_CASE("gradients are clipped by their joint norm") {
  std::vector<std::vector<double>> g{{3.0, 0.0}, {}, {-4.0}};
  CHECK(clip(g, 5.0) == 5.0);
  CHECK(g == std::vector<std::vector<double>>{{3.0, 0.0}, {}, {-4.0}});
  CHECK(clip(g, 2.5) == 5.0);
  CHECK(g == std::vector<std::vector<double>>{{1.5, 0.0}, {}, {-2.0}});
  CHECK(clip(g, infinity) == 2.5);
  CHECK(g[2][0] == -2.0);
  random_source r(311);
  INFO("seed ", r.seed());
  for (int i = 0; i < 50; ++i) {
    std::vector<std::vector<double>> some(r.size(1, 4));
    long double sum = 0.0L;
    for (auto& part : some) {
      part.resize(r.size(1, 20));
      for (double& x : part) {
        x = static_cast<double>(r.real(-1.0F, 1.0F));
        sum += static_cast<long double>(x) * static_cast<long double>(x);
      }
    }
    const auto before = some;
    const auto norm = static_cast<double>(std::sqrt(sum));
    CHECK(clip(some, norm / 3.0) == doctest::Approx(norm).epsilon(1e-14));
    for (std::size_t k = 0; k < some.size(); ++k) {
      for (std::size_t j = 0; j < some[k].size(); ++j) {
        CHECK(some[k][j] == doctest::Approx(before[k][j] / 3.0).epsilon(1e-14));
      }
    }
  }
}

TEST_CASE("gradients of any size are clipped; those that are not finite are left alone") {
  std::vector<std::vector<double>> large{{3e300, 4e300}};
  CHECK(clip(large, 1.0) == doctest::Approx(5e300).epsilon(1e-14));
  CHECK(large[0][1] == doctest::Approx(0.8).epsilon(1e-14));
  std::vector<std::vector<double>> small{{3e-300, 4e-300}};
  CHECK(clip(small, 1e-300) == doctest::Approx(5e-300).epsilon(1e-14));
  CHECK(small[0][0] * 1e300 == doctest::Approx(0.6).epsilon(1e-14));
  constexpr double least = std::numeric_limits<double>::denorm_min();
  std::vector<std::vector<double>> least_of_all{{least}};
  CHECK(clip(least_of_all, 1.0) == least);
  CHECK(least_of_all[0][0] == least);
  std::vector<std::vector<double>> none{{}, {0.0}};
  CHECK(clip(none, 1.0) == 0.0);
  std::vector<std::vector<double>> infinite{{2.0, -infinity}};
  CHECK(clip(infinite, 1.0) == infinity);
  CHECK(infinite[0][0] == 2.0);
  std::vector<std::vector<double>> invalid{{quiet_nan, infinity}, {2.0}};
  CHECK(std::isnan(clip(invalid, 1.0)));
  CHECK(invalid[1][0] == 2.0);
  for (const double norm : {0.0, -1.0, quiet_nan}) {
    check_graph_error(error_kind::invalid_argument, {"clip_gradients", "largest norm"},
                      [&] { static_cast<void>(clip(large, norm)); });
  }
}
