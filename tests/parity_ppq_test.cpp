// SPDX-License-Identifier: BSD-3-Clause
// The observers that reproduce PPQ's: what PPQ returned, what the definitions give when they are
// written down once more, cases worked out by hand, and bad input.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "parity_data.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::parity;
using detent::quant_params;
using detent::quant_scheme;
using detent::value_range;
using test::batches;
using test::bell;
using test::check_error;
using test::check_range;
using test::observed;
using test::random_source;
namespace ppq = detent::ppq;

constexpr quant_scheme full_s8{detent::full_grid<std::int8_t>, true};
constexpr quant_scheme narrow_s8 = detent::symmetric<std::int8_t>;
constexpr quant_scheme asymmetric_u8 = detent::asymmetric<std::uint8_t>;

/// Rows of five; what does not fill a row is left out.
ppq::isotone_observer observed_rows(ppq::isotone_observer observer, const batches& data) {
  for (const std::vector<float>& batch : data) {
    observer.observe(std::span(batch).first(batch.size() / 5 * 5), 5);
  }
  return observer;
}

/// Batches of any size and distribution.
batches random_batches(random_source& random) {
  batches data(random.size(1, 5));
  const int kind = random.integer(0, 4);
  for (std::vector<float>& batch : data) {
    batch = random.reals(random.size(1, 2000), -1.0F, 1.0F);
    const float scale = random.real(0.1F, 3.0F);
    for (float& x : batch) {
      const float sum = x + random.real(-1.0F, 1.0F) + random.real(-1.0F, 1.0F);
      x = kind == 0   ? x
          : kind == 1 ? sum
          : kind == 2 ? std::max(sum, 0.0F)
          : kind == 3 ? sum * sum * sum
                      : 2.0F + x;
      x *= scale;
    }
  }
  return data;
}

}  // namespace

// -------------------------------------------------------------------------- what PPQ returned

TEST_CASE("ppq: what PPQ returns") {
  // The observers of PPQ 0.6.6 on the batches of parity_data.hpp, for the isotone one as rows of
  // five; PyTorch 1.13, NumPy 1.24.
  struct vector {
    const char* name;
    quant_params params[8];
  };
  const vector vectors[] = {
      // percentile 0.9999 s8, 0.9 u8; KL s8; MSE s8, u8, -127..127; isotone s8, u8
      {"growing",
       {{0x1.180a42p-5F, 0},
        {0x1.2a2a3ep-6F, 135},
        {0x1.31e56p-4F, 0},
        {0x1.331878p-4F, 0},
        {0x1.2b9e06p-4F, 124},
        {0x1.3319aep-4F, 0},
        {0x1.037f9p-5F, 0},
        {0x1.01f564p-6F, 0}}},
      {"relu",
       {{0x1.15f192p-5F, 0},
        {0x1.2b69cap-7F, 0},
        {0x1.68cep-5F, 0},
        {0x1.6a3838p-5F, 0},
        {0x1.6a3838p-6F, 0},
        {0x1.6a39a6p-5F, 0},
        {0x1.488c36p-5F, 0},
        {0x1.46992ap-6F, 0}}},
      {"positive",
       {{0x1.8de2b4p-5F, 0},
        {0x1.7b8cfep-6F, 0},
        {0x1.172524p-4F, 0},
        {0x1.183d62p-4F, 0},
        {0x1.314cbp-5F, 0},
        {0x1.183e7cp-4F, 0},
        {0x1.0ad7dap-4F, 0},
        {0x1.094286p-5F, 0}}},
      {"rounded",
       {{0x1.515152p-4F, 0},
        {0x1.29292ap-5F, 145},
        {0x1.dp-4F, 0},
        {0x1.d1d1d2p-4F, 0},
        {0x1.69696ap-4F, 164},
        {0x1.d1d3a8p-4F, 0},
        {0x1.43d1fp-5F, 0},
        {0x1.41e612p-6F, 0}}},
      {"zeros",
       {{0x1.4fcb8cp-7F, 0},
        {0x1.2ea854p-8F, 218},
        {0x1.814dcp-6F, 0},
        {0x1.82d09p-6F, 0},
        {0x1.61498ap-6F, 115},
        {0x1.82d216p-6F, 0},
        {0x1.a023bep-7F, 0},
        {0x1.9daba4p-8F, 0}}},
      {"large",
       {{0x1.1ed2bap-5F, 0},
        {0x1.e5c768p-7F, 109},
        {0x1.663a3p-5F, 0},
        {0x1.67a1d2p-5F, 0},
        {0x1.464f1p-5F, 114},
        {0x1.67a33cp-5F, 0},
        {0x1.e6d2d6p-6F, 0},
        {0x1.2b4de4p-6F, 0}}},
      {"dense",
       {{0x1.c1efcp-5F, 0},
        {0x1.0da3c4p-5F, 182},
        {0x1.8cf32p-5F, 0},
        {0x1.f7606p-5F, 0},
        {0x1.5907dcp-5F, 172},
        {0x1.f7625cp-5F, 0},
        {0x1.628bbap-6F, 0},
        {0x1.6ce2fap-7F, 0}}},
  };
  for (const vector& v : vectors) {
    INFO(std::string(v.name));
    const batches data = test::parity_data(v.name);
    const quant_params* p = v.params;
    CHECK(observed(ppq::percentile_observer(), data).finalize(full_s8) == p[0]);
    CHECK(observed(ppq::percentile_observer({.percentile = 0.9}), data).finalize(asymmetric_u8) ==
          p[1]);
    CHECK(observed(ppq::kl_observer(), data).finalize(full_s8) == p[2]);
    CHECK(observed(ppq::mse_observer(), data).finalize(full_s8) == p[3]);
    CHECK(observed(ppq::mse_observer({.scheme = asymmetric_u8}), data).finalize(asymmetric_u8) ==
          p[4]);
    CHECK(observed(ppq::mse_observer({.scheme = narrow_s8}), data).finalize(narrow_s8) == p[5]);
    CHECK(observed_rows(ppq::isotone_observer(), data).finalize(full_s8) == p[6]);
    CHECK(observed_rows(ppq::isotone_observer({.scheme = asymmetric_u8}), data)
              .finalize(asymmetric_u8) == p[7]);
  }
}

// ------------------------------------------------------------------- the definitions once more

namespace {

struct extremes {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
};

extremes extremes_of(const batches& data) {
  extremes e;
  for (const std::vector<float>& batch : data) {
    for (const float x : batch) {
      e.least = std::min(e.least, static_cast<double>(x));
      e.greatest = std::max(e.greatest, static_cast<double>(x));
    }
  }
  return e;
}

/// Counts in equal bins, indices in float as PyTorch finds them.
std::vector<double> histogram_of(const batches& data, std::size_t bins, bool magnitudes,
                                 float first, float last) {
  std::vector<double> counts(bins);
  for (const std::vector<float>& batch : data) {
    for (const float x : batch) {
      const float v = magnitudes ? std::fabs(x) : x;
      const float at = (v - first) / (last - first) * static_cast<float>(bins);
      counts[std::min(static_cast<std::size_t>(at), bins - 1)] += 1.0;
    }
  }
  return counts;
}

/// The divergence of the first r of 4096 counts in 128 groups.
double kl_divergence(std::vector<double> h, std::size_t r) {
  for (std::size_t i = 0; i < 8; ++i) {
    h[i] = 0.0;
  }
  h[8] = 1.0;
  std::vector<double> p(h.begin(), h.begin() + static_cast<std::ptrdiff_t>(r));
  const std::vector<double> kept = p;
  for (std::size_t i = r; i < h.size(); ++i) {
    p.back() += h[i];
  }
  const std::size_t size = r / 128;
  std::vector<double> q(r);
  for (std::size_t i = 0; i < r; ++i) {
    double mass = 0.0;
    double nonzero = 0.0;
    for (std::size_t j = i / size * size; j < (i / size + 1) * size; ++j) {
      mass += kept[j];
      nonzero += kept[j] > 0.0 ? 1.0 : 0.0;
    }
    q[i] = kept[i] > 0.0 ? mass / nonzero : 0.0;
  }
  double p_sum = 0.0;
  double q_sum = 0.0;
  for (std::size_t i = 0; i < r; ++i) {
    p_sum += p[i];
    q_sum += q[i];
  }
  double divergence = 0.0;
  for (std::size_t i = 0; i < r; ++i) {
    divergence +=
        p[i] / p_sum * (std::log10(p[i] / p_sum + 1e-30) - std::log10(q[i] / q_sum + 1e-30));
  }
  return divergence;
}

struct interval {
  double loss;
  double start;
  double end;
};

/// All candidates of the MSE observer.
std::vector<interval> mse_candidates(const std::vector<double>& h, int levels, bool symmetric,
                                     double width, double least) {
  const auto loss = [&h](int start, int step, int end) {
    double total = 0.0;
    double sum = 0.0;
    for (int i = 0; i < static_cast<int>(h.size()); ++i) {
      double error = 0.0;
      if (i < start) {
        error = start - i - 0.5;
      } else if (i > end) {
        error = i - end + 0.5;
      } else {
        const int left = (i - start) % step;
        const int right = step - 1 - left;
        error = left == right ? left + 0.25 : std::min(left, right) + 0.5;
      }
      sum += h[static_cast<std::size_t>(i)] * error * error;
      total += h[static_cast<std::size_t>(i)];
    }
    return sum / total;
  };
  const int bins = static_cast<int>(h.size());
  const int steps = bins / levels;
  std::vector<interval> all;
  const auto add = [&](int start, int step) {
    const int end = start + levels * step;
    all.push_back({loss(start, step, end), static_cast<double>(start), static_cast<double>(end)});
  };
  add(0, steps + 1);
  for (int start = 0; start < (symmetric ? 1 : bins); start += 8) {
    if (!symmetric && start * width + least > 0.0) {
      break;
    }
    for (int step = 1; step <= steps && start + levels * step <= bins + levels; ++step) {
      add(start, step);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("ppq: percentile against sorted batches") {
  random_source random(51);
  INFO("seed ", random.seed());
  for (int round = 0; round < 50; ++round) {
    const batches data = random_batches(random);
    const double percentile = random.chance(20) ? 1.0 : 0.5 + 0.5 * random.real(0.0F, 1.0F);
    double lower = 0.0;
    double upper = 0.0;
    for (std::vector<float> batch : data) {
      std::sort(batch.begin(), batch.end());
      const auto n = static_cast<double>(batch.size());
      const int low = static_cast<int>(n * (1.0 - percentile)) + 1;
      const int high = std::min(static_cast<int>(n * percentile) + 1, static_cast<int>(n));
      lower += batch[static_cast<std::size_t>(low - 1)];
      upper += batch[static_cast<std::size_t>(high - 1)];
    }
    lower /= static_cast<double>(data.size());
    upper /= static_cast<double>(data.size());
    const value_range range =
        observed(ppq::percentile_observer({.percentile = percentile}), data).range();
    INFO("round ", round, " percentile ", percentile);
    // At most five floats below 10 were added up.
    CHECK(std::fabs(range.lower - lower) < 1e-5);
    CHECK(std::fabs(range.upper - upper) < 1e-5);
  }
}

TEST_CASE("ppq: KL against its definition") {
  random_source random(52);
  INFO("seed ", random.seed());
  for (int round = 0; round < 12; ++round) {
    const batches data = random_batches(random);
    const extremes e = extremes_of(data);
    const double magnitude = std::max(-e.least, e.greatest);
    const std::vector<double> h =
        histogram_of(data, 4096, true, 0.0F, static_cast<float>(magnitude));
    std::vector<double> divergences;
    for (std::size_t r = 128; r <= 4096; r += 128) {
      divergences.push_back(kl_divergence(h, r));
    }
    const quant_params p = observed(ppq::kl_observer(), data).finalize(full_s8);
    INFO("round ", round, " scale ", p.scale);
    // scale = r / 4096 * magnitude / 128
    const double r = std::round(static_cast<double>(p.scale) * 128.0 * 4096.0 / magnitude);
    CHECK(p.scale == static_cast<float>(r * (magnitude / 4096.0) / 128.0));
    CHECK(p.zero_point == 0);
    const auto candidate = static_cast<std::size_t>(r) / 128 - 1;
    REQUIRE(static_cast<std::size_t>(r) == (candidate + 1) * 128);
    // P and Q are floats in the observer.
    CHECK(divergences[candidate] <=
          *std::min_element(divergences.begin(), divergences.end()) + 1e-6);
  }
}

TEST_CASE("ppq: MSE against its definition") {
  random_source random(53);
  INFO("seed ", random.seed());
  for (int round = 0; round < 24; ++round) {
    const batches data = random_batches(random);
    const bool symmetric = round % 3 != 0;
    const parity behaviour = round % 3 == 2 ? parity::fixed : parity::as_published;
    const quant_scheme scheme = !symmetric ? asymmetric_u8 : round % 2 == 0 ? full_s8 : narrow_s8;
    const int all_levels = scheme.levels.qmax - scheme.levels.qmin + 1;
    const int levels = behaviour == parity::fixed ? all_levels / 2 : all_levels;
    const extremes e = extremes_of(data);
    const double first = symmetric ? 0.0 : e.least;
    const double length = symmetric ? std::max(-e.least, e.greatest) : e.greatest - e.least;
    const double width = length / 2048.0;
    const std::vector<double> h = histogram_of(data, 2048, symmetric, static_cast<float>(first),
                                               static_cast<float>(first + length));
    const std::vector<interval> all = mse_candidates(h, levels, symmetric, width, e.least);
    const auto less = [](const interval& a, const interval& b) { return a.loss < b.loss; };
    const interval best = *std::min_element(all.begin(), all.end(), less);

    const ppq::mse_observer observer =
        observed(ppq::mse_observer({.scheme = scheme, .behaviour = behaviour}), data);
    const value_range range = observer.range();
    INFO("round ", round, " range ", range.lower, " .. ", range.upper);
    const double upper = best.end * width + first;
    const double lower = symmetric ? -upper : best.start * width + first;
    // Candidates whose losses differ by rounding only are as good.
    const bool is_best = std::any_of(all.begin(), all.end(), [&](const interval& c) {
      return c.loss <= best.loss * (1.0 + 1e-12) &&
             range.upper == static_cast<float>(c.end * width + first);
    });
    CHECK(is_best);
    const quant_params p = observer.finalize(scheme);
    if (range == value_range{static_cast<float>(lower), static_cast<float>(upper)}) {
      const double extent = symmetric ? 2.0 * upper : std::max(upper, 0.0) - std::min(lower, 0.0);
      CHECK(std::fabs(p.scale - extent / (all_levels - 1)) <= 1e-7 * p.scale);
    }
  }
}

// ------------------------------------------------------------------------------------ by hand

TEST_CASE("ppq: percentiles by hand") {
  // 10 * (1 - 0.8) is 1.9999999999999996 in double: rank 1 + 1; 10 * 0.8 + 1 = 9.
  const batches ten = {{9, 0, 8, 1, 7, 2, 6, 3, 5, 4}};
  check_range(observed(ppq::percentile_observer({.percentile = 0.8}), ten).range(), {1, 8});
  // Rank 1 + trunc(10 * 0.0001) = 1, and trunc(9.999) + 1 = 10.
  check_range(observed(ppq::percentile_observer(), ten).range(), {0, 9});
  // Of batches of five: ranks 1 + trunc(0.9999999999999998) = 1 and 5. (0 + 1) / 2, (9 + 8) / 2.
  const batches halves = {{9, 0, 7, 2, 4}, {8, 1, 6, 3, 5}};
  check_range(observed(ppq::percentile_observer({.percentile = 0.8}), halves).range(),
              {0.5F, 8.5F});
  // 1 would be one rank too many.
  check_range(observed(ppq::percentile_observer({.percentile = 1.0}), ten).range(), {0, 9});
}

TEST_CASE("ppq: KL by hand") {
  // All in the last bin: with all bins, P = Q; with fewer, Q is zero where P has nearly all. The
  // scale is max |x| / 128, not / 127.
  const batches data = {{-2.56F, 2.56F}, {2.56F}};
  CHECK(observed(ppq::kl_observer(), data).finalize(full_s8) == quant_params{2.56F / 128.0F, 0});
  check_range(observed(ppq::kl_observer(), data).range(), {-2.56F, 2.56F});
  // 0.02 is less than sqrt(2) * 2^-6 = 0.0221, so that half_up goes down to 2^-6.
  CHECK(observed(ppq::kl_observer({.power_of_two = true}), data).finalize(full_s8) ==
        quant_params{0x1p-6F, 0});
  // Nothing but zeros: the smallest scale.
  const batches zeros = {{0, 0, 0}};
  CHECK(observed(ppq::kl_observer(), zeros).finalize(full_s8) == quant_params{1e-8F, 0});
  // With 4 bits, B = 8: the candidate of the first 8 counts, which are cleared, is passed over.
  const ppq::kl_options four_bits{.scheme = {{-8, 7}, true}};
  CHECK(observed(ppq::kl_observer(four_bits), data).finalize({{-8, 7}, true}) ==
        quant_params{2.56F / 8.0F, 0});
}

TEST_CASE("ppq: MSE by hand") {
  // 2048 bins that are 1 wide: 1000 values in bin 255, one in bin 2047. Symmetric, 256 levels:
  //   step 1  1000 * .25^2 + (2047 - 256 + .5)^2 = 3.2e6
  //   step 8  255 mod 8 = 7: 1000 * .5^2 + .5^2 = 250.25, end 2048
  //   step 9  255 mod 9 = 3: 1000 * 3.5^2
  // and steps between lose more at the end.
  std::vector<float> x(1000, 255.5F);
  x.push_back(-2048.0F);
  check_range(observed(ppq::mse_observer(), {x}).range(), {-2048, 2048});
  CHECK(observed(ppq::mse_observer(), {x}).finalize(full_s8) ==
        quant_params{static_cast<float>(2.0 * 2048.0 / 255.0), 0});
  // 64 values in each of the first 128 bins and one in bin 200, of 2048 that are 1 wide. All levels
  // are one bin: the loss of step 1 is 8193 * .25^2 for what is inside. The tool takes the end to
  // be 256; repaired, step 1 ends at 128 and adds (200 - 128 + .5)^2 = 5256, step 2 ends at 256 and
  // has 8193 * .5^2 = 2048, step 16 and 17 have more.
  std::vector<float> y;
  for (int bin = 0; bin < 128; ++bin) {
    y.insert(y.end(), 64, static_cast<float>(bin) + 0.5F);
  }
  y.push_back(200.5F);
  batches first = {y, {2048.0F}};
  ppq::mse_observer published;
  ppq::mse_observer fixed({.behaviour = parity::fixed});
  for (ppq::mse_observer* observer : {&published, &fixed}) {
    for (const std::vector<float>& batch : first) {
      observer->observe(batch);
    }
    observer->begin_phase(1);
    observer->observe(y);  // without 2048, which is there to make bins 1 wide
    check_range(observer->range(), {-256, 256});
  }
  y.pop_back();
  y.push_back(140.5F);  // (140 - 128 + .5)^2 = 156
  ppq::mse_observer clipped({.behaviour = parity::fixed});
  clipped.observe(std::vector<float>{2048.0F});
  clipped.begin_phase(1);
  clipped.observe(y);
  check_range(clipped.range(), {-128, 128});
  // Asymmetric, bins that are 1 wide from -64 on: 21700 values in bin 318, one in bin 0. Step 1
  // from bin 64 on ends at 320: 21700 * .25^2 + (64 - 0 - 1 + .5)^2 = 5388.5. Step 2 from bin 0 on
  // has them all: 21701 * .5^2 = 5425.25.
  ppq::mse_observer cut({.scheme = asymmetric_u8});
  cut.observe(std::vector<float>{-64.0F, 1984.0F});
  cut.begin_phase(1);
  std::vector<float> z(21700, 254.5F);
  z.push_back(-63.5F);
  cut.observe(z);
  check_range(cut.range(), {0, 256});
  // One value: whatever the interval, its range.
  const batches same = {{3.0F, 3.0F}};
  check_range(observed(ppq::mse_observer({.scheme = asymmetric_u8}), same).range(), {3, 3});
  check_range(observed(ppq::mse_observer(), {{0.0F, 0.0F}}).range(), {0, 0});
}

TEST_CASE("ppq: isotone by hand") {
  // 10 4 1: from 4 / 126.49 = .0316 to 12; 2.5 3: from 2.5 / 126.49 = .0198 to 1. Both from .0316.
  ppq::isotone_observer observer;
  observer.observe(std::vector<float>{10, 4, 1});
  observer.observe(std::vector<float>{2.5F, 3, 0, 3, 2.5F, 0}, 3);
  CHECK(observer.finalize(full_s8) == quant_params{static_cast<float>(4.0 / 126.49), 0});
  // A row of another kind: from 20 / 126.49 = .158 to 2 * (20.05 - 20) = .1: left out.
  observer.observe(std::vector<float>{20.05F, 20, 0});
  CHECK(observer.finalize(full_s8) == quant_params{static_cast<float>(4.0 / 126.49), 0});
  // An interval that begins where another ends does not overlap it: 1 .. 2 and 2 .. 10 and 2.5 .. 9
  // overlap twice first at 2.5.
  ppq::isotone_observer wide({.scheme = {{0, 1}, false}});
  wide.observe(std::vector<float>{1.49F, 0.49F});    // .49 / .49 = 1 .. 2
  wide.observe(std::vector<float>{5.98F, 0.98F});    // 2 .. 10
  wide.observe(std::vector<float>{5.725F, 1.225F});  // 2.5 .. 9
  CHECK(wide.finalize({{0, 1}, false}).scale == doctest::Approx(2.5));
}

TEST_CASE("ppq: isotone's bugs and what repairs them") {
  const auto make = [](parity behaviour) {
    return ppq::isotone_observer({.behaviour = behaviour});
  };
  // No interval: 0 .. 5 of the last row, 0 .. 9 of all, on -128..127.
  for (const auto& [behaviour, upper] :
       {std::pair(parity::as_published, 5.0F), std::pair(parity::fixed, 9.0F)}) {
    ppq::isotone_observer observer = make(behaviour);
    observer.observe(std::vector<float>{9, 9, 5, 5}, 2);
    check_range(observer.range(), {0, upper});
    CHECK(observer.finalize(full_s8) ==
          quant_params{static_cast<float>(2.0 * static_cast<double>(upper) / 255.0), 0});
  }
  // -1 -2: magnitudes 1 < 2 have no interval; repaired, 2 > 1 have one from 1 / 126.49.
  ppq::isotone_observer published = make(parity::as_published);
  published.observe(std::vector<float>{-1, -2});
  CHECK(published.finalize(full_s8) == quant_params{static_cast<float>(2.0 / 255.0), 0});
  ppq::isotone_observer fixed = make(parity::fixed);
  fixed.observe(std::vector<float>{-1, -2});
  CHECK(fixed.finalize(full_s8) == quant_params{static_cast<float>(1.0 / 126.49), 0});
  // 1 0: from 0 to 2. The tool's scale is 0; repaired, it is the end of the interval.
  published = make(parity::as_published);
  published.observe(std::vector<float>{1, 0});
  check_error(error_kind::invalid_argument, {"ppq::isotone_observer", "scale is 0"},
              [&] { static_cast<void>(published.finalize(full_s8)); });
  fixed = make(parity::fixed);
  fixed.observe(std::vector<float>{1, 0});
  CHECK(fixed.finalize(full_s8) == quant_params{2.0F, 0});
  // Merging: in any order.
  ppq::isotone_observer left = make(parity::fixed);
  ppq::isotone_observer right = make(parity::fixed);
  left.observe(std::vector<float>{10, 4, 1});
  right.observe(std::vector<float>{2.5F, 3, 0});
  right.merge(left);
  CHECK(right.finalize(full_s8) == quant_params{static_cast<float>(4.0 / 126.49), 0});
  check_error(error_kind::unsupported, {"ppq::isotone_observer", "merge"},
              [&] { published.merge(published); });
  check_error(error_kind::invalid_argument, {"ppq::isotone_observer", "other options"},
              [&] { right.merge(published); });
}

TEST_CASE("ppq: isotone of a view without dimensions, and of a state at the end of its counters") {
  const float one = 1.0F;
  detent::tensor_view<const float> scalar;
  scalar.data = &one;
  detent::ppq::isotone_observer observer;
  check_error(error_kind::invalid_argument, {"ppq::isotone_observer", "rows of 1"},
              [&] { observer.observe(scalar); });
  constexpr detent::detail::byte_format format{"detentxx", 1};
  detent::detail::byte_writer out(format);
  detent::detail::put_scheme(out, detent::quant_scheme{{-128, 127}, true});
  out.put(std::uint8_t{0});
  out.put(0.0F);
  out.put(0.0F);
  out.put(std::numeric_limits<std::uint64_t>::max());  // values, all of them NaN
  out.put(std::numeric_limits<std::uint64_t>::max());
  out.put(std::uint64_t{0});  // rows
  const std::vector<std::byte> bytes = std::move(out).finish();
  detent::detail::byte_reader in(bytes, format, "test");
  observer.read(in);
  observer.observe(std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 1.0F});
  check_error(error_kind::invalid_argument, {"ppq::isotone_observer", "NaN"},
              [&] { static_cast<void>(observer.range()); });
}

TEST_CASE("ppq: min_max and constant") {
  const batches data = {{-1, 2}, {3, -0.5F}};
  const ppq::min_max_observer min_max = observed(ppq::min_max_observer(), data);
  check_range(min_max.range(), {-1, 3});
  // 4 / 255 and round(1 / (4 / 255)) = round(63.75).
  CHECK(min_max.finalize(asymmetric_u8) == quant_params{static_cast<float>(4.0 / 255.0), 64});
  const ppq::constant_observer constant = observed(ppq::constant_observer(), data);
  CHECK(constant.finalize(asymmetric_u8) == quant_params{1.0F, 0});
  check_range(constant.range(), {-1, 3});
  ppq::min_max_observer merged;
  merged.observe(data[1]);
  ppq::min_max_observer other;
  other.observe(data[0]);
  merged.merge(other);
  CHECK((merged == min_max));
}

TEST_CASE("ppq: batches make a difference to percentiles, and to nothing else") {
  const batches parts = {bell(61, 300, 1, 0), bell(62, 300, 3, 0)};
  std::vector<float> all = parts[0];
  all.insert(all.end(), parts[1].begin(), parts[1].end());
  CHECK_FALSE(observed(ppq::percentile_observer({.percentile = 0.9}), parts).range() ==
              observed(ppq::percentile_observer({.percentile = 0.9}), {all}).range());
  CHECK((observed(ppq::kl_observer(), parts) == observed(ppq::kl_observer(), {all})));
  CHECK((observed(ppq::mse_observer(), parts) == observed(ppq::mse_observer(), {all})));
  CHECK((observed(ppq::min_max_observer(), parts) == observed(ppq::min_max_observer(), {all})));
  CHECK((observed_rows(ppq::isotone_observer(), parts) ==
         observed_rows(ppq::isotone_observer(), {all})));
}

// ------------------------------------------------------------------------------------ bad input

TEST_CASE("ppq: two phases in order") {
  const auto invalid = error_kind::invalid_argument;
  const auto check = [&](auto observer, const char* where) {
    const std::vector<float> x = {-1, 2};
    check_error(invalid, {where, "nothing"}, [&] { observer.begin_phase(1); });
    observer.begin_phase(0);
    observer.observe(x);
    check_error(invalid, {where, "phase 0 of 2"}, [&] { observer.begin_phase(0); });
    check_error(invalid, {where, "phase 2 of 2"}, [&] { observer.begin_phase(2); });
    check_error(invalid, {where, "phase 1 has not begun"},
                [&] { static_cast<void>(observer.range()); });
    observer.begin_phase(1);
    check_error(invalid, {where, "nothing"}, [&] { static_cast<void>(observer.range()); });
    check_error(invalid, {where, "phase 1 of 2", "in phase 1"}, [&] { observer.begin_phase(1); });
    observer.observe(x);
    CHECK(observer.finalize(full_s8).zero_point == 0);
    check_error(invalid, {where, "on 0..255", "on -128..127"},
                [&] { static_cast<void>(observer.finalize(asymmetric_u8)); });
    observer.observe(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
    check_error(invalid, {where, "NaN"}, [&] { static_cast<void>(observer.range()); });
  };
  check(ppq::kl_observer(), "ppq::kl_observer");
  check(ppq::mse_observer(), "ppq::mse_observer");

  ppq::mse_observer observer({.scheme = asymmetric_u8});
  observer.observe(std::vector<float>{-3e38F, 3e38F});
  check_error(invalid, {"ppq::mse_observer", "too long"}, [&] { observer.begin_phase(1); });
  ppq::mse_observer elsewhere;
  elsewhere.observe(std::vector<float>{1.0F});
  elsewhere.begin_phase(1);
  elsewhere.observe(std::vector<float>{2.0F});
  check_error(invalid, {"ppq::mse_observer", "phase 0"},
              [&] { static_cast<void>(elsewhere.range()); });
}

TEST_CASE("ppq: a second phase that is too long for a float, after one of equal values") {
  // PyTorch takes the range of the second phase's values then.
  const std::vector<float> wide = {-3e38F, 3e38F};
  ppq::mse_observer observer({.scheme = asymmetric_u8});
  observer.observe(std::vector<float>{2.0F, 2.0F});
  observer.begin_phase(1);
  const ppq::mse_observer before = observer;
  check_error(error_kind::invalid_argument, {"ppq::mse_observer", "too long for a float"},
              [&] { observer.observe(wide); });
  CHECK((observer == before));  // a batch that is refused was not seen
  observer.observe(std::vector<float>{2.0F, 2.0F});
  CHECK(observer.finalize(asymmetric_u8).scale > 0.0F);
  // Magnitudes are never too long.
  ppq::mse_observer symmetric;
  symmetric.observe(std::vector<float>{0.0F});
  symmetric.begin_phase(1);
  symmetric.observe(wide);
  CHECK(symmetric.finalize(full_s8).scale > 0.0F);
}

TEST_CASE("ppq: options") {
  const auto invalid = error_kind::invalid_argument;
  check_error(error_kind::unsupported, {"ppq::kl_observer", "asymmetric"},
              [] { ppq::kl_observer({.scheme = asymmetric_u8}); });
  check_error(invalid, {"ppq::kl_observer", "4000 bins", "128"},
              [] { ppq::kl_observer({.bins = 4000}); });
  check_error(invalid, {"0 bins"}, [] { ppq::kl_observer({.bins = 0}); });
  check_error(invalid, {"ppq::mse_observer", "0 bins"}, [] { ppq::mse_observer({.bins = 0}); });
  check_error(invalid, {"grid 1..5"}, [] { ppq::mse_observer({.scheme = {{1, 5}, true}}); });
  check_error(invalid, {"ppq::isotone_observer", "grid -4..0"}, [] {
    ppq::isotone_observer({.scheme = {{-4, 0}, true}});
  });
  check_error(invalid, {"ppq::percentile_observer", "1.5"},
              [] { ppq::percentile_observer({.percentile = 1.5}); });
  ppq::isotone_observer rows;
  const std::vector<float> six(6);
  check_error(invalid, {"ppq::isotone_observer", "rows of 1"}, [&] { rows.observe(six, 1); });
  check_error(invalid, {"rows of 0"}, [&] { rows.observe(std::span<const float>()); });
  check_error(error_kind::shape_mismatch, {"6 values", "rows of 4"}, [&] { rows.observe(six, 4); });
  check_error(invalid, {"null", "6"},
              [&] { rows.observe(std::span<const float>(static_cast<float*>(nullptr), 6), 3); });
}
