// SPDX-License-Identifier: BSD-3-Clause
// The observers that reproduce NNCF's and PyTorch's, what all parity observers refuse, and the
// arithmetic of NumPy and PyTorch that they are made of.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
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
using detent::quant_params;
using detent::quant_scheme;
using detent::value_range;
using test::batches;
using test::bell;
using test::check_error;
using test::check_range;
using test::observed;
using test::random_source;
namespace nncf = detent::nncf;
namespace torch = detent::torch;
namespace numpy = detent::detail::numpy;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

nncf::range_observer nncf_observed(nncf::range_options options, const batches& data) {
  return observed(nncf::range_observer(options), data);
}

}  // namespace

// --------------------------------------------------------------------------------------- PyTorch

TEST_CASE("torch: what PyTorch returns") {
  // The code of HistogramObserver in torchao 0.18 on the batches of parity_data.hpp, run by PyTorch
  // 1.13, and the formula of MovingAverageMinMaxObserver on its tensors.
  struct vector {
    const char* name;
    value_range ranges[3];
  };
  const vector vectors[] = {
      // histogram of 2048 bins, of 100; moving average
      {"growing",
       {{-0x1.22ff7p+3F, 0x1.319ac4p+3F},
        {-0x1.22ff7p+3F, 0x1.2bed54p+3F},
        {-0x1.52e652p+1F, 0x1.1797ccp+1F}}},
      {"relu", {{0.0F, 0x1.68a0e6p+2F}, {0.0F, 0x1.653256p+2F}, {0.0F, 0x1.852e1ep+1F}}},
      {"positive",
       {{0x1.3dcccp+1F, 0x1.170c2ep+3F},
        {0x1.3dcccp+1F, 0x1.1525ecp+3F},
        {0x1.b67aap+1F, 0x1.27fa1p+2F}}},
      {"rounded",
       {{-0x1.dp+3F, 0x1.ff4cp+2F},
        {-0x1.dp+3F, 0x1.f19998p+2F},
        {-0x1.a51eb8p+2F, 0x1.41eb86p+2F}}},
      {"zeros",
       {{-0x1.3e82cp+1F, 0x1.80f5c4p+1F},
        {-0x1.3e82cp+1F, 0x1.7a43fcp+1F},
        {-0x1.3f10ccp-5F, 0x1.583334p-6F}}},
      {"large",
       {{-0x1.23d75p+2F, 0x1.65e8ecp+2F},
        {-0x1.23d75p+2F, 0x1.5fba04p+2F},
        {-0x1.c46186p+1F, 0x1.ad41e6p+1F}}},
      {"dense",
       {{-0x1.efc96p+1F, 0x1.e274e8p+1F},
        {-0x1.00209cp+2F, 0x1.cb38e8p+1F},
        {-0x1.f8279cp+1F, 0x1.ef2c52p+1F}}},
  };
  for (const vector& v : vectors) {
    INFO(std::string(v.name));
    const batches data = test::parity_data(v.name);
    check_range(observed(torch::histogram_observer(), data).range(), v.ranges[0]);
    check_range(observed(torch::histogram_observer({.bins = 100}), data).range(), v.ranges[1]);
    check_range(observed(torch::moving_average_min_max_observer(), data).range(), v.ranges[2]);
  }
}

TEST_CASE("torch: moving average by hand") {
  const batches data = {{-1, 1}, {-3, 5}, {0, 2}};
  // -1, -1 + (-3 + 1) / 2 = -2, -2 + (0 + 2) / 2 = -1; 1, 1 + (5 - 1) / 2 = 3, 3 + (2 - 3) / 2.
  const auto observer =
      observed(torch::moving_average_min_max_observer({.averaging_constant = 0.5F}), data);
  check_range(observer.range(), {-1.0F, 2.5F});
  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  CHECK(observer.finalize(u8) ==
        detent::params_from_range({-1.0F, 2.5F}, u8, detent::scale_rule::torch));
  // The average of the same batches in another order: 0, -1.5, -1.25; 2, 3.5, 2.25.
  check_range(observed(torch::moving_average_min_max_observer({.averaging_constant = 0.5F}),
                       {data[2], data[1], data[0]})
                  .range(),
              {-1.25F, 2.25F});
}

TEST_CASE("torch: histograms by hand") {
  // Two bins of two values each on 0 .. 4. The first step always leaves out what holds the quantile
  // 1 - 1e-5, the last bin; what remains is one bin, which is as far as it goes.
  check_range(observed(torch::histogram_observer({.bins = 2, .bits = 1}), {{0, 1, 3, 4}}).range(),
              {0, 2});
  // All in bin 0 but one of 10^6, which the quantile 1 - 1e-5 leaves out: the upper end moves to
  // the bin's, 1, and the error shrinks, from 10^6 values in one of two levels 2 wide, to levels
  // 1/2 wide.
  std::vector<float> x(1000000, 0.0F);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i) / 1048576.0F;
  }
  x.back() = 4.0F;
  check_range(observed(torch::histogram_observer({.bins = 4, .bits = 1}), {x}).range(), {0, 1});
  // One value: 2048 bins on 3 - 1 .. 3 + 1 in which it is counted, on a range that is empty.
  check_range(observed(torch::histogram_observer(), {{3, 3}, {3}}).range(), {3, 3});
  // A constant so large that 1 more is the same float: it counts, in the last bin.
  check_range(observed(torch::histogram_observer(), {{2e38F, 2e38F}, {2e38F}}).range(),
              {2e38F, 2e38F});
  // Its count moves to the last bin of 0 .. 1e10, 1 0 0 1. The first step leaves that bin out; the
  // next change, to leave out all but the first bin, has a greater error.
  check_range(observed(torch::histogram_observer({.bins = 4, .bits = 2}), {{1e10F}, {0}}).range(),
              {0, 7.5e9F});
  // A constant, then more: the two counts of the constant move to its bin, 1 2 0 1. The first step
  // leaves out the last bin. The next change would be to leave out what lies above the quantile
  // 3/4, all but the first bin, with a greater error: (4 - 0.9)^2 in place of (4 - 2.6)^2.
  check_range(observed(torch::histogram_observer({.bins = 4, .bits = 2}), {{1, 1}, {0, 4}}).range(),
              {0, 3});
  const quant_scheme s8 = detent::symmetric<std::int8_t>;
  const auto observer = observed(torch::histogram_observer(), test::parity_data("large"));
  CHECK(observer.finalize(s8) ==
        detent::params_from_range(observer.range(), s8, detent::scale_rule::torch));
}

namespace {

/// The error of levels on first .. last of a histogram of `width` wide bins, term by term of its
/// definition in double: sum over the bins and, within a bin, over the levels that it touches.
double histogram_error(const std::vector<double>& counts, double width, std::size_t first,
                       std::size_t last, double levels) {
  const double level = width * static_cast<double>(last - first + 1) / levels;
  const auto cubes = [](double begin, double end) {
    return (end * end * end - begin * begin * begin) / 3.0;
  };
  double error = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double begin = (static_cast<double>(i) - static_cast<double>(first)) * width;
    const double end = begin + width;
    const double from = std::clamp(std::floor(begin / level), 0.0, levels - 1.0);
    const double to = std::clamp(std::floor(end / level), 0.0, levels - 1.0);
    double integral = cubes(begin - (from + 0.5) * level, level / 2.0);
    integral += (to - from - 1.0) * cubes(-level / 2.0, level / 2.0);
    integral += cubes(-level / 2.0, end - (to + 0.5) * level);
    error += counts[i] / width * integral;
  }
  return error;
}

}  // namespace

TEST_CASE("torch: the interval of the histogram is better than the whole") {
  // A bell with a few far values: the search leaves them out.
  std::vector<float> x = bell(71, 100000, 1, 0);
  x.push_back(60.0F);
  x.push_back(-4.0F);
  const value_range range =
      observed(torch::histogram_observer({.bins = 512, .bits = 4}), {x}).range();
  const double width = 64.0 / 512.0;
  std::vector<double> counts(512);
  for (const float value : x) {
    counts[std::min<std::size_t>(static_cast<std::size_t>((value + 4.0F) / 64.0F * 512.0F), 511)] +=
        1.0;
  }
  const auto first = static_cast<std::size_t>((range.lower + 4.0F) / 0.125F);
  const auto last = static_cast<std::size_t>((range.upper + 4.0F) / 0.125F) - 1;
  CHECK(range.upper < 10.0F);
  CHECK(histogram_error(counts, width, first, last, 16.0) <
        histogram_error(counts, width, 0, 511, 16.0));
}

// ------------------------------------------------------------------------------------------ NNCF

TEST_CASE("nncf: aggregators by hand") {
  // Least values -1 -2 -6, greatest 1 5 3.
  const batches data = {{-1, 1}, {-2, 5}, {-6, 3}};
  check_range(nncf_observed(nncf::min_max, data).range(), {-6, 5});
  check_range(nncf_observed(nncf::mean_min_max, data).range(), {-3, 3});
  check_range(nncf_observed(nncf::median_min_max, data).range(), {-2, 3});
  // The extremes of three are always outliers: what remains is the median.
  check_range(nncf_observed(nncf::mean_no_outliers_min_max, data).range(), {-2, 3});
  check_range(observed(nncf::range_observer(), data).range(), {-3, 3});
  // Largest magnitudes: 1 5 6.
  nncf::range_options symmetric = nncf::mean_min_max;
  symmetric.use_abs_max = true;
  check_range(nncf_observed(symmetric, data).range(), {-3, 4});
  // Means of samples 0 1.5 -1.5, of their extremes.
  check_range(nncf_observed({.lower = {nncf::statistic::mean, nncf::aggregator::min},
                             .upper = {nncf::statistic::mean, nncf::aggregator::max}},
                            data)
                  .range(),
              {-1.5F, 1.5F});
  // An even number: half of the middle two.
  batches four = data;
  four.push_back({-3, 4});
  check_range(nncf_observed(nncf::median_min_max, four).range(), {-2.5F, 3.5F});
  // Of 4 samples -6 -3 -2 -1 and 1 3 4 5, the extremes go: (-3 - 2) / 2 and (3 + 4) / 2.
  check_range(nncf_observed(nncf::mean_no_outliers_min_max, four).range(), {-2.5F, 3.5F});
  const nncf::range_options median_no_outliers{
      .lower = {nncf::statistic::min, nncf::aggregator::median_no_outliers},
      .upper = {nncf::statistic::max, nncf::aggregator::median_no_outliers}};
  check_range(nncf_observed(median_no_outliers, four).range(), {-2.5F, 3.5F});
  // Bug of NNCF: two samples are both outliers, unless they are equal.
  const batches two = {data[0], data[1]};
  check_range(nncf_observed(nncf::mean_no_outliers_min_max, two).range(), {0, 0});
  check_range(nncf_observed(median_no_outliers, two).range(), {0, 0});
  check_range(nncf_observed(nncf::mean_no_outliers_min_max, {data[0], data[0]}).range(), {-1, 1});
}

TEST_CASE("nncf: quantiles by hand") {
  std::vector<float> x(11);
  std::iota(x.begin(), x.end(), -5.0F);
  // 10 * 0.25 = 2.5: -2.5; 10 * 0.75 = 7.5: 2.5.
  nncf::range_options quarter = nncf::mean_quantile;
  quarter.lower.outlier_probability = 0.25;
  quarter.upper.outlier_probability = 0.25;
  check_range(nncf_observed(quarter, {x}).range(), {-2.5F, 2.5F});
  // Magnitudes 0 1 1 2 2 3 3 4 4 5 5: between 1 and 2, and 4 and 4.
  nncf::range_options magnitudes = quarter;
  magnitudes.lower.of_sample = nncf::statistic::abs_quantile;
  magnitudes.upper.of_sample = nncf::statistic::abs_quantile;
  check_range(nncf_observed(magnitudes, {x}).range(), {1.5F, 4.0F});
  // By default 10 * 1e-4 from the ends.
  const value_range range = nncf_observed(nncf::mean_quantile, {x}).range();
  check_range(range, {static_cast<float>(-5.0 + 1e-3), static_cast<float>(5.0 - 1e-3)});
  // The mean of two samples' quantiles, -2.5 and 0.
  check_range(nncf_observed(quarter, {x, {0, 0}}).range(), {-1.25F, 1.25F});
}

TEST_CASE("nncf: what NumPy returns") {
  // np.mean, np.median, np.quantile (of float64) and np.ma.mean as NNCF 3.4 calls them, for the
  // samples bell(100 + i, 50, 1, 0), i = 0 .. 19. NumPy 2.4.
  batches data;
  for (std::uint32_t i = 0; i < 20; ++i) {
    data.push_back(bell(100 + i, 50, 1, 0));
  }
  nncf::range_options tenth = nncf::mean_no_outliers_min_max;
  tenth.lower.outlier_probability = 0.1;
  tenth.upper.outlier_probability = 0.1;
  const nncf::range_options mean{.lower = {nncf::statistic::mean, nncf::aggregator::mean},
                                 .upper = {nncf::statistic::quantile, nncf::aggregator::median}};
  check_range(nncf_observed(nncf::mean_min_max, data).range(), {-0x1.31c3fp+1F, 0x1.45c684p+1F});
  check_range(nncf_observed(nncf::median_min_max, data).range(), {-0x1.1ce88p+1F, 0x1.31f34p+1F});
  check_range(nncf_observed(nncf::mean_no_outliers_min_max, data).range(),
              {-0x1.31562ap+1F, 0x1.42bc2ap+1F});
  check_range(nncf_observed(tenth, data).range(), {-0x1.3029d8p+1F, 0x1.412fd4p+1F});
  check_range(nncf_observed(nncf::mean_quantile, data).range(), {-0x1.319cbap+1F, 0x1.45792ep+1F});
  check_range(nncf_observed(mean, data).range(), {-0x1.b7c50cp-7F, 0x1.3190cp+1F});
}

TEST_CASE("nncf: merging and scales") {
  const batches data = test::parity_data("growing");
  const nncf::range_observer whole = nncf_observed(nncf::min_max, data);
  nncf::range_observer left(nncf::min_max);
  nncf::range_observer right(nncf::min_max);
  left.observe(data[3]);
  right.observe(data[1]);
  left.observe(data[0]);
  right.observe(data[2]);
  right.merge(left);
  CHECK((right == whole));
  left.merge(nncf::range_observer(nncf::min_max));  // that has seen nothing
  check_error(error_kind::invalid_argument, {"nncf::range_observer", "merging"},
              [&] { right.merge(nncf::range_observer()); });
  nncf::range_observer mean;
  check_error(error_kind::unsupported, {"merge"}, [&] { mean.merge(mean); });
  // A sample is a batch: the mean of one is another than that of several.
  std::vector<float> all;
  for (const std::vector<float>& batch : data) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  CHECK_FALSE(nncf_observed(nncf::mean_min_max, {all}).range() ==
              nncf_observed(nncf::mean_min_max, data).range());

  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  CHECK(whole.finalize(u8) ==
        detent::params_from_range(whole.range(), u8, detent::scale_rule::nncf));
  check_error(error_kind::invalid_argument, {"nncf::range_observer", "0.75"},
              [] { nncf::range_observer({.upper = {.outlier_probability = 0.75}}); });
  check_error(error_kind::invalid_argument, {"-1"},
              [] { nncf::range_observer({.lower = {.outlier_probability = -1.0}}); });
}

// -------------------------------------------------------------------------- all parity observers

namespace {

/// Calls f(observer, name) with one of each that has one phase.
template <class Function>
void for_each_observer(const Function& f) {
  f(detent::ort::min_max_observer(), "ort::min_max_observer");
  f(detent::ort::min_max_observer({.moving_average = true}), "ort::min_max_observer");
  f(detent::ort::entropy_observer(), "ort::entropy_observer");
  f(detent::ort::percentile_observer(), "ort::percentile_observer");
  f(detent::ort::percentile_observer({.symmetric = false}), "ort::percentile_observer");
  f(detent::inc::kl_observer(), "inc::kl_observer");
  f(detent::inc::percentile_observer(), "inc::percentile_observer");
  f(detent::ppq::min_max_observer(), "ppq::min_max_observer");
  f(detent::ppq::constant_observer(), "ppq::constant_observer");
  f(detent::ppq::percentile_observer(), "ppq::percentile_observer");
  f(nncf::range_observer(), "nncf::range_observer");
  f(nncf::range_observer(nncf::mean_quantile), "nncf::range_observer");
  f(torch::moving_average_min_max_observer(), "torch::moving_average_min_max_observer");
  f(torch::histogram_observer(), "torch::histogram_observer");
}

}  // namespace

TEST_CASE("parity observers: what has no range") {
  const auto invalid = error_kind::invalid_argument;
  for_each_observer([&](auto observer, const char* where) {
    INFO(std::string(where));
    check_error(invalid, {where, "nothing"}, [&] { static_cast<void>(observer.range()); });
    check_error(invalid, {where, "null", "5"},
                [&] { observer.observe(std::span<const float>(static_cast<float*>(nullptr), 5)); });
    observer.observe(std::span<const float>());
    check_error(invalid, {where, "nothing"}, [&] { static_cast<void>(observer.range()); });
    auto with_nan = observer;
    with_nan.observe(std::vector<float>{1.0F, quiet_nan});
    with_nan.observe(std::vector<float>{2.0F, 3.0F});
    check_error(invalid, {where, "1 of 4", "NaN"}, [&] { static_cast<void>(with_nan.range()); });
    auto with_infinity = observer;
    with_infinity.observe(std::vector<float>{1.0F, 2.0F});
    with_infinity.observe(std::vector<float>{-infinity});
    check_error(invalid, {where, "-inf", "finite"},
                [&] { static_cast<void>(with_infinity.range()); });
  });
}

TEST_CASE("parity observers: one phase, and empty batches that change nothing") {
  for_each_observer([](auto observer, const char* where) {
    INFO(std::string(where));
    CHECK(observer.phases() == 1);
    check_error(error_kind::invalid_argument, {where, "phase 1 of 1", "nothing"},
                [&] { observer.begin_phase(1); });
    observer.begin_phase(0);
    auto with_empty = observer;
    const batches data = test::parity_data("growing");
    for (const std::vector<float>& batch : data) {
      observer.observe(batch);
      with_empty.observe(std::span<const float>());
      with_empty.observe(batch);
    }
    CHECK((observer == with_empty));
    CHECK(observer.range() == with_empty.range());
    check_error(error_kind::invalid_argument, {where, "phase 0 of 1"},
                [&] { observer.begin_phase(0); });
    check_error(error_kind::invalid_argument, {where, "phase 1 of 1"},
                [&] { observer.begin_phase(1); });
  });
}

namespace {

/// One that is saved and loaded by itself, without any_observer.
template <class Observer>
Observer saved_and_loaded(const Observer& observer, const Observer& other) {
  constexpr detent::detail::byte_format format{"detentxx", 1};
  detent::detail::byte_writer out(format);
  observer.write(out);
  const std::vector<std::byte> bytes = std::move(out).finish();
  detent::detail::byte_reader in(bytes, format, "test");
  Observer loaded = other;
  loaded.read(in);
  in.require_end();
  return loaded;
}

}  // namespace

TEST_CASE("parity observers: saved and loaded with their options, in any state") {
  const auto check = [](auto observer, const auto& other, const batches& data) {
    CHECK((saved_and_loaded(observer, other) == observer));
    for (std::size_t phase = 0; phase < observer.phases(); ++phase) {
      observer.begin_phase(phase);
      CHECK((saved_and_loaded(observer, other) == observer));
      for (const std::vector<float>& batch : data) {
        observer.observe(batch);
        const auto loaded = saved_and_loaded(observer, other);
        CHECK((loaded == observer));
        observer = loaded;
      }
    }
    auto with_nan = observer;
    with_nan.observe(std::vector<float>{1.0F, quiet_nan});
    CHECK((saved_and_loaded(with_nan, other) == with_nan));
    auto with_infinity = observer;
    with_infinity.observe(std::vector<float>{1.0F, infinity});
    CHECK((saved_and_loaded(with_infinity, other) == with_infinity));
    auto first_nan = other;
    first_nan.observe(std::vector<float>{quiet_nan, quiet_nan});
    CHECK((saved_and_loaded(first_nan, observer) == first_nan));
    return observer;
  };
  const auto parity_fixed = detent::parity::fixed;
  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  for (const char* name : {"growing", "relu", "zeros"}) {
    INFO(std::string(name));
    const batches data = test::parity_data(name);
    for_each_observer([&](const auto& observer, const char* where) {
      INFO(std::string(where));
      const auto seen = check(observer, observer, data);
      CHECK(seen.range() == observed(observer, data).range());
    });
    // The options are those that were saved.
    check(detent::ort::min_max_observer(
              {.symmetric = true, .moving_average = true, .batches_per_collection = 3}),
          detent::ort::min_max_observer(), data);
    check(detent::ort::entropy_observer({.num_quantized_bins = 16, .behaviour = parity_fixed}),
          detent::ort::entropy_observer(), data);
    check(detent::ort::percentile_observer({.num_bins = 64, .percentile = 99.0}),
          detent::ort::percentile_observer({.symmetric = false}), data);
    check(detent::inc::kl_observer({.behaviour = parity_fixed}), detent::inc::kl_observer(), data);
    check(detent::inc::percentile_observer({.num_bins = 64, .percentile = 90.0}),
          detent::inc::percentile_observer(), data);
    check(detent::ppq::percentile_observer({.percentile = 0.75}),
          detent::ppq::percentile_observer(), data);
    check(detent::ppq::kl_observer({.bins = 1024, .power_of_two = true}),
          detent::ppq::kl_observer(), data);
    check(detent::ppq::mse_observer({.scheme = u8, .behaviour = parity_fixed}),
          detent::ppq::mse_observer(), data);
    check(detent::ppq::isotone_observer({.scheme = u8}),
          detent::ppq::isotone_observer({.behaviour = parity_fixed}), data);
    check(nncf::range_observer({.lower = {nncf::statistic::quantile, nncf::aggregator::median, 0.1},
                                .upper = {nncf::statistic::max, nncf::aggregator::max},
                                .use_abs_max = true}),
          nncf::range_observer(), data);
    check(torch::moving_average_min_max_observer({.averaging_constant = 0.5F}),
          torch::moving_average_min_max_observer(), data);
    check(torch::histogram_observer({.bins = 100, .upsample_rate = 4, .bits = 4}),
          torch::histogram_observer(), data);
  }
}

TEST_CASE("parity observers: states that can't be") {
  // A state is written by one type and read as another, or put together by hand.
  constexpr detent::detail::byte_format format{"detentxx", 1};
  const auto read = [&](auto observer, const auto& write) {
    detent::detail::byte_writer out(format);
    write(out);
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    observer.read(in);
    in.require_end();
  };
  const auto bad = error_kind::bad_file;
  const auto seen_three = [](detent::detail::byte_writer& out) {
    detent::min_max_observer seen;
    seen.observe(std::vector<float>{-1.0F, 2.0F, 0.5F});
    seen.write(out);
  };
  check_error(bad, {"ort::min_max_observer", "choice 2", "0..1"}, [&] {
    read(detent::ort::min_max_observer(), [](auto& out) { out.put(std::uint8_t{2}); });
  });
  check_error(bad, {"torch::moving_average_min_max_observer", "1.5"}, [&] {
    read(torch::moving_average_min_max_observer(), [](auto& out) { out.put(1.5F); });
  });
  check_error(bad, {"ppq::percentile_observer", "number of batches"}, [&] {
    read(detent::ppq::percentile_observer(), [&](auto& out) {
      out.put(0.5);
      seen_three(out);
      out.put(std::uint64_t{0});
      out.put(std::uint64_t{0});
    });
  });
  check_error(bad, {"ends early"}, [&] {
    read(detent::ppq::percentile_observer(), [&](auto& out) {
      out.put(0.5);
      seen_three(out);
      out.put(std::uint64_t{3});
    });
  });
  check_error(bad, {"4 is larger than 3"}, [&] {
    read(detent::ppq::percentile_observer(), [&](auto& out) {
      out.put(0.5);
      seen_three(out);
      out.put(std::uint64_t{4});
    });
  });
  const auto percentile = [&](std::uint64_t bins, float threshold, std::uint64_t count) {
    read(detent::inc::percentile_observer(), [&](auto& out) {
      out.put(std::uint64_t{2});
      out.put(99.0);
      seen_three(out);
      out.put(std::uint8_t{1});
      out.put(threshold);
      detent::detail::put_list(out, std::vector<std::uint64_t>(bins, count));
    });
  };
  percentile(2, 2.0F, 1);  // which is possible
  percentile(4, 2.0F, 0);
  check_error(bad, {"inc::percentile_observer", "so many bins"}, [&] { percentile(3, 2.0F, 0); });
  check_error(bad, {"so many bins"}, [&] { percentile(0, 2.0F, 0); });
  check_error(bad, {"more was counted"}, [&] { percentile(2, 2.0F, 2); });
  check_error(bad, {"more was counted"}, [&] { percentile(2, 2.0F, ~std::uint64_t{0}); });
  check_error(bad, {"negative"}, [&] { percentile(2, -1.0F, 1); });
  check_error(bad, {"too long"}, [&] { percentile(2, 3e38F, 1); });
  check_error(bad, {"inc::percentile_observer", "0 bins"}, [&] {
    read(detent::inc::percentile_observer(), [&](auto& out) {
      out.put(std::uint64_t{0});
      out.put(99.0);
    });
  });
  check_error(bad, {"ort::entropy_observer", "100 bins for 128"}, [&] {
    read(detent::ort::entropy_observer(), [&](auto& out) {
      out.put(std::uint64_t{100});
      out.put(std::uint64_t{128});
      out.put(std::uint16_t{0});
    });
  });
  check_error(bad, {"ppq::kl_observer", "asymmetric"}, [&] {
    read(detent::ppq::kl_observer(), [&](auto& out) {
      detent::detail::put_scheme(out, detent::asymmetric<std::uint8_t>);
      out.put(std::uint64_t{4096});
      out.put(std::uint8_t{0});
    });
  });
  check_error(bad, {"ppq::mse_observer", "second phase"}, [&] {
    read(detent::ppq::mse_observer(), [&](auto& out) {
      detent::detail::put_scheme(out, detent::symmetric<std::int8_t>);
      out.put(std::uint64_t{16});
      out.put(std::uint8_t{0});
      out.put(std::uint8_t{1});
      detent::min_max_observer().write(out);
    });
  });
  check_error(bad, {"torch::histogram_observer", "not finite"}, [&] {
    read(torch::histogram_observer(), [&](auto& out) {
      out.put(std::uint64_t{2});
      out.put(std::uint64_t{16});
      out.put(std::uint32_t{8});
      seen_three(out);
      out.put(-1.0F);
      out.put(2.0F);
      detent::detail::put_list(out, std::vector<float>{1.0F, infinity});
    });
  });
}

TEST_CASE("parity observers: a batch that is refused was not seen") {
  const auto check = [](auto observer, const std::vector<float>& refused) {
    const auto before = observer;
    CHECK_THROWS_AS(observer.observe(refused), detent::error);
    CHECK((observer == before));
    check_error(error_kind::invalid_argument, {"nothing was observed"},
                [&] { static_cast<void>(observer.range()); });
    observer.observe(std::vector<float>{1e-3F, -1e-3F});
    const auto after = observer;
    CHECK_THROWS_AS(observer.observe(refused), detent::error);
    CHECK((observer == after));
  };
  const std::vector<float> wide = {-3e38F, 3e38F};
  check(torch::histogram_observer(), wide);
  check(detent::ort::entropy_observer(), wide);
  check(detent::inc::kl_observer(), wide);
  check(detent::inc::percentile_observer(), wide);
  check(detent::ort::percentile_observer({.symmetric = false}), wide);
  const std::vector<float> narrow = {1e6F, std::nextafter(1e6F, 2e6F)};
  check(detent::ort::percentile_observer(), narrow);
}

TEST_CASE("parity observers: counters of a loaded state stop at their end") {
  constexpr detent::detail::byte_format format{"detentxx", 1};
  // What an observer that has seen a NaN writes of its range, and the same of 2^64 - 1 values.
  const auto range_of = [&](std::uint64_t count) {
    detent::detail::byte_writer out(format);
    out.put(0.0F);
    out.put(0.0F);
    out.put(count);
    out.put(count);
    const std::vector<std::byte> bytes = std::move(out).finish();
    return std::vector<std::byte>(bytes.begin() + 24, bytes.end() - 8);
  };
  const std::vector<std::byte> one = range_of(1);
  const std::vector<std::byte> most = range_of(std::numeric_limits<std::uint64_t>::max());
  const auto check = [&](auto observer, const char* where, const std::vector<float>& first) {
    INFO(std::string(where));
    observer.observe(first);
    detent::detail::byte_writer out(format);
    observer.write(out);
    const std::vector<std::byte> bytes = std::move(out).finish();
    std::vector<std::byte> content(bytes.begin() + 24, bytes.end() - 8);
    const auto at = std::search(content.begin(), content.end(), one.begin(), one.end());
    REQUIRE(at != content.end());
    std::copy(most.begin(), most.end(), at);
    detent::detail::byte_writer changed(format);
    changed.put_array(std::span<const std::byte>(content));
    const std::vector<std::byte> state = std::move(changed).finish();
    detent::detail::byte_reader in(state, format, "test");
    observer.read(in);
    observer.observe(std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 1.0F});
    check_error(error_kind::invalid_argument, {where, "NaN"},
                [&] { static_cast<void>(observer.range()); });
  };
  for_each_observer([&](const auto& observer, const char* where) {
    check(observer, where, {std::numeric_limits<float>::quiet_NaN()});
  });
}

TEST_CASE("parity observers: more values than a histogram counts are refused") {
  // Of a loaded state, one bin of which holds 2^48 - 1 values: one more fits, and then none.
  constexpr detent::detail::byte_format format{"detentxx", 1};
  const auto most = (std::uint64_t{1} << 48) - 1;
  const auto state_of = [&](const auto& observer, std::uint64_t count) {
    // What has seen one value is written, and the 1 of all counts becomes `count`.
    detent::detail::byte_writer out(format);
    observer.write(out);
    std::vector<std::byte> content = std::move(out).finish();
    content.erase(content.begin(), content.begin() + 24);
    content.resize(content.size() - 8);
    const auto bytes_of = [&](std::uint64_t n) {
      detent::detail::byte_writer w(format);
      w.put(n);
      const std::vector<std::byte> all = std::move(w).finish();
      return std::vector<std::byte>(all.begin() + 24, all.end() - 8);
    };
    // The last 1 in 64 bits is that of the only bin that is not empty, the one before it that of
    // the values seen.
    const std::vector<std::byte> was = bytes_of(1);
    const std::vector<std::byte> is = bytes_of(count);
    const auto counted = std::find_end(content.begin(), content.end(), was.begin(), was.end());
    const auto seen = std::find_end(content.begin(), counted, was.begin(), was.end());
    REQUIRE(counted != content.end());
    REQUIRE(seen != counted);
    std::copy(is.begin(), is.end(), counted);
    std::copy(is.begin(), is.end(), seen);
    detent::detail::byte_writer changed(format);
    changed.put_array(std::span<const std::byte>(content));
    return std::move(changed).finish();
  };
  const auto check = [&](auto observer, const char* where) {
    INFO(std::string(where));
    const std::vector<float> one = {1.0F};
    observer.observe(one);
    if (observer.phases() == 2) {
      observer.begin_phase(1);
      observer.observe(one);
    }
    const auto load = [&](std::uint64_t count) {
      const std::vector<std::byte> state = state_of(observer, count);
      detent::detail::byte_reader in(state, format, "test");
      auto loaded = observer;
      loaded.read(in);
      in.require_end();
      return loaded;
    };
    check_error(error_kind::bad_file, {where, "more than 2^48 values"},
                [&] { static_cast<void>(load(most + 2)); });
    check_error(error_kind::bad_file, {where, "more than 2^48 values"},
                [&] { static_cast<void>(load(std::numeric_limits<std::uint64_t>::max())); });
    auto full = load(most);
    auto twice = full;
    check_error(error_kind::overflow, {where, "more than 2^48 values"}, [&] { twice.merge(full); });
    CHECK((twice == full));
    full.observe(one);
    const auto before = full;
    check_error(error_kind::overflow, {where, "more than 2^48 values"}, [&] { full.observe(one); });
    CHECK((full == before));
    CHECK(full.range().upper > 0.0F);
  };
  check(detent::ort::entropy_observer(), "ort::entropy_observer");
  check(detent::ort::percentile_observer({.num_bins = 4}), "ort::percentile_observer");
  check(detent::ort::percentile_observer({.symmetric = false}), "ort::percentile_observer");
  check(detent::inc::kl_observer(), "inc::kl_observer");
  check(detent::inc::percentile_observer(), "inc::percentile_observer");
  check(detent::ppq::kl_observer(), "ppq::kl_observer");
  check(detent::ppq::mse_observer(), "ppq::mse_observer");
}

TEST_CASE("parity observers: searches that would take hours are refused") {
  const auto invalid = error_kind::invalid_argument;
  const auto bad = error_kind::bad_file;
  constexpr detent::detail::byte_format format{"detentxx", 1};
  // Options are refused when an observer is made, and in the beginning of a saved state.
  const auto read = [&](auto observer, const auto& write) {
    detent::detail::byte_writer out(format);
    write(out);
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    observer.read(in);
  };
  const auto options = [](std::initializer_list<std::uint64_t> sizes) {
    return [sizes = std::vector<std::uint64_t>(sizes)](detent::detail::byte_writer& out) {
      for (const std::uint64_t size : sizes) {
        out.put(size);
      }
      for (int i = 0; i < 64; ++i) {
        out.put(std::uint8_t{0});
      }
    };
  };
  const std::uint64_t k = 1024;

  check_error(invalid, {"torch::histogram_observer", "65537 bins"},
              [] { torch::histogram_observer({.bins = 65537}); });
  check_error(bad, {"65537", "65536"}, [&] {
    read(torch::histogram_observer(), options({65537, 16}));
  });

  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  check_error(invalid, {"ppq::mse_observer", "20736 bins", "too long"},
              [&] { detent::ppq::mse_observer({.scheme = u8, .bins = 20736}); });
  check_error(invalid, {"ppq::mse_observer", "16384 bins"}, [] {
    detent::ppq::mse_observer({.scheme = {{0, 15}, false}, .bins = 16384});
  });
  const auto mse = [](detent::detail::byte_writer& out) {
    detent::detail::put_scheme(out, {{0, 1}, false});
    out.put(std::uint64_t{65536});
    out.put(std::uint8_t{0});
  };
  check_error(bad, {"ppq::mse_observer", "65536 bins", "too long"},
              [&] { read(detent::ppq::mse_observer(), mse); });

  check_error(invalid, {"ppq::kl_observer", "4194304 bins", "too long"},
              [] { detent::ppq::kl_observer({.bins = std::size_t{1} << 22}); });
  const auto kl = [](detent::detail::byte_writer& out) {
    detent::detail::put_scheme(out, {{0, 1}, true});
    out.put(std::uint64_t{131072});
    out.put(std::uint8_t{0});
  };
  check_error(bad, {"ppq::kl_observer", "131072 bins", "too long"},
              [&] { read(detent::ppq::kl_observer(), kl); });

  check_error(invalid, {"ort::entropy_observer", "131073 bins", "131072"},
              [] { detent::ort::entropy_observer({.num_bins = 131073}); });
  check_error(invalid, {"inc::kl_observer", "8193"}, [] {
    detent::inc::kl_observer(
        {.num_bins = 8193, .num_quantized_bins = 8193, .behaviour = detent::parity::fixed});
  });
  check_error(bad, {"131073", "131072"}, [&] {
    read(detent::ort::entropy_observer(), options({128 * k + 1, 128}));
  });
  // Histograms that grow, too. Those of percentiles may have more bins.
  const auto grows = [](auto observer, const char* where) {
    observer.observe(std::vector<float>{1.0F, -1.0F});
    const auto before = observer;
    check_error(error_kind::unsupported, {where, "would grow to", "more than 131072"},
                [&] { observer.observe(std::vector<float>{2000.0F}); });
    check_error(error_kind::unsupported, {where, "would grow to"},
                [&] { observer.follow(detent::batch_extent::of(std::vector<float>{2000.0F})); });
    CHECK((observer == before));
  };
  grows(detent::ort::entropy_observer(), "ort::entropy_observer");
  grows(detent::inc::kl_observer(), "inc::kl_observer");
  detent::inc::percentile_observer percentile;
  percentile.observe(std::vector<float>{1.0F, -1.0F});
  percentile.observe(std::vector<float>{2000.0F});
  CHECK(percentile.range().upper > 1000.0F);

  // What may be asked for, up to the limit.
  torch::histogram_observer({.bins = 65536});
  detent::ppq::mse_observer({.scheme = u8, .bins = 20000});
  detent::ppq::mse_observer({.scheme = {{0, 1}, false}, .bins = 4096});
  detent::ppq::mse_observer({.bins = 65536});
  detent::ppq::mse_observer(
      {.scheme = {{0, 1}, true}, .bins = 65536, .behaviour = detent::parity::fixed});
  detent::ppq::kl_observer({.bins = 741376});
  detent::ort::entropy_observer({.num_bins = 131072, .num_quantized_bins = 131072});
}

TEST_CASE("torch: counts that are more than any number of values are refused") {
  constexpr detent::detail::byte_format format{"detentxx", 1};
  const auto load = [&](float count) {
    detent::detail::byte_writer out(format);
    out.put(std::uint64_t{2});
    out.put(std::uint64_t{1});
    out.put(std::uint32_t{8});
    detent::min_max_observer seen;
    seen.observe(std::vector<float>{0.0F, 1.0F});
    seen.write(out);
    detent::detail::put_range(out, {0.0F, 1.0F});
    detent::detail::put_list(out, std::vector<float>{1.0F, count});
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    torch::histogram_observer observer;
    observer.read(in);
    in.require_end();
    return observer;
  };
  check_error(error_kind::bad_file, {"torch::histogram_observer", "a count is too large"},
              [&] { static_cast<void>(load(3e38F)); });
  // Sums of what is loaded can be saved and loaded again.
  torch::histogram_observer sum = load(0x1p63F);
  sum.append(sum);
  CHECK((saved_and_loaded(sum, torch::histogram_observer()) == sum));
  const torch::histogram_observer before = sum;
  check_error(error_kind::overflow, {"torch::histogram_observer", "2^64"},
              [&] { sum.append(before); });
  CHECK((sum == before));
}

TEST_CASE("parity observers: an average that overflows a float is refused") {
  const auto invalid = error_kind::invalid_argument;
  const std::vector<float> high = {3e38F};
  const std::vector<float> low = {-3e38F};
  detent::torch::moving_average_min_max_observer average;
  average.observe(high);
  const auto before = average;
  check_error(invalid, {"torch::moving_average_min_max_observer", "overflows"},
              [&] { average.observe(low); });
  CHECK((average == before));
  detent::torch::moving_average_min_max_observer later;
  later.observe(low);
  check_error(invalid, {"overflows"}, [&] { average.append(later); });
  CHECK((average == before));
  CHECK((saved_and_loaded(average, later) == average));

  detent::ort::min_max_observer collections({.moving_average = true, .batches_per_collection = 2});
  collections.observe(high);
  const auto begun = collections;
  check_error(invalid, {"ort::min_max_observer", "overflows"}, [&] { collections.observe(high); });
  CHECK((collections == begun));
  CHECK((saved_and_loaded(collections, detent::ort::min_max_observer()) == collections));
  CHECK(collections.range() == value_range{3e38F, 3e38F});
  // A collection that does not end is averaged by range() alone.
  detent::ort::min_max_observer endless({.moving_average = true, .batches_per_collection = 0});
  endless.observe(high);
  endless.observe(high);
  check_error(invalid, {"ort::min_max_observer", "overflows"},
              [&] { static_cast<void>(endless.range()); });
  CHECK((saved_and_loaded(endless, collections) == endless));
}

TEST_CASE("nncf: a sample whose mean overflows a float has no range, in any order") {
  const auto check = [](const detent::nncf::range_observer& observer) {
    check_error(error_kind::invalid_argument, {"nncf::range_observer", "mean", "overflows"},
                [&] { static_cast<void>(observer.range()); });
    CHECK((saved_and_loaded(observer, detent::nncf::range_observer()) == observer));
  };
  // Sums of 8 are interleaved: inf and -inf meet.
  std::vector<float> x(16, 1.0F);
  x[0] = x[8] = 3e38F;
  x[1] = x[9] = -3e38F;
  for (const auto of_samples : {detent::nncf::aggregator::min, detent::nncf::aggregator::max}) {
    const detent::nncf::range_options options{
        .lower = {detent::nncf::statistic::mean, of_samples},
        .upper = {detent::nncf::statistic::max, detent::nncf::aggregator::max}};
    detent::nncf::range_observer left(options);
    detent::nncf::range_observer right(options);
    left.observe(x);
    right.observe(std::vector<float>{1.0F, 2.0F});
    detent::nncf::range_observer both = left;
    both.merge(right);
    right.merge(left);
    CHECK((right == both));
    check(right);
    check(left);
  }
  detent::nncf::range_observer mean(
      {.lower = {detent::nncf::statistic::mean, detent::nncf::aggregator::median}});
  mean.observe(std::vector<float>{1.0F});
  mean.observe(std::vector<float>{3e38F, 3e38F});
  check(mean);
}

TEST_CASE("torch: options") {
  const auto invalid = error_kind::invalid_argument;
  check_error(invalid, {"torch::histogram_observer", "1 bins"},
              [] { torch::histogram_observer({.bins = 1}); });
  check_error(invalid, {"upsample rate 0"},
              [] { torch::histogram_observer({.upsample_rate = 0}); });
  check_error(invalid, {"17 bits"}, [] { torch::histogram_observer({.bits = 17}); });
  check_error(invalid, {"torch::moving_average_min_max_observer", "-1"},
              [] { torch::moving_average_min_max_observer({.averaging_constant = -1.0F}); });
  torch::histogram_observer wide;
  check_error(invalid, {"too long"}, [&] { wide.observe(std::vector<float>{-3e38F, 3e38F}); });
}

// ------------------------------------------------------------------------------------ arithmetic

TEST_CASE("the logarithm that is the same everywhere") {
  using detent::detail::portable_log;
  CHECK(portable_log(1.0) == 0.0);
  random_source random(81);
  INFO("seed ", random.seed());
  double worst = 0.0;
  for (int i = 0; i < 100000; ++i) {
    const double mantissa = 1.0 + static_cast<double>(random.bits() >> 11) * 0x1p-53;
    const double x = i % 2 == 0 ? std::ldexp(mantissa, random.integer(-1000, 1000))
                                : 1.0 + (mantissa - 1.5) * std::ldexp(1.0, -random.integer(0, 40));
    const double expected = std::log(x);
    const double unit = std::ldexp(1.0, std::ilogb(expected) - 52);
    worst = expected == 0.0 ? worst : std::max(worst, std::fabs(portable_log(x) - expected) / unit);
  }
  CHECK(worst <= 3.0);  // two units, and std::log's own
}

TEST_CASE("sums, quantiles and edges of NumPy") {
  // 1 + 1e-8 loses 1e-8; in eight partial sums, those of small values do not.
  std::vector<float> x(16, 1e-8F);
  x[0] = 1.0F;
  // Lanes: 1 (+ 1e-8 lost), and seven of 2e-8; 1 + 2e-8, (2 + 2)e-8: 1 + 8e-8 + 6e-8 -> 1 + 2^-23.
  CHECK(numpy::sum(x) == 1.0F + 0x1p-23F);
  CHECK(std::accumulate(x.begin(), x.end(), 0.0F) == 1.0F);
  // Two halves of 128: what is lost next to 1 in one of them is not in the other.
  std::vector<float> y(256, 0x1p-25F);
  y[0] = 1.0F;
  // The first half: lane 0 keeps 1, seven lanes have 16 * 2^-25; 1 + 7 * 2^-21. The other: 2^-18.
  CHECK(numpy::sum(y) == 1.0F + 7.0F * 0x1p-21F + 0x1p-18F);

  const std::vector<double> sorted = {0.0, 1.0, 10.0};
  CHECK(numpy::quantile(sorted, 0.0) == 0.0);
  CHECK(numpy::quantile(sorted, 0.25) == 0.5);
  CHECK(numpy::quantile(sorted, 0.75) == 5.5);
  CHECK(numpy::quantile(sorted, 1.0) == 10.0);
  // What follows the values is not read.
  const std::vector<double> followed = {0.0, 1.0, std::numeric_limits<double>::infinity()};
  CHECK(numpy::quantile(std::span(followed).first(2), 1.0) == 1.0);
  const std::vector<double> edges = {0.0, 1.0, 2.0};
  const std::vector<float> values = {-0.5F, 0.0F, 1.0F, 2.0F, 2.5F};
  std::vector<std::uint64_t> counts(2);
  numpy::count_between(edges, values, counts);
  CHECK(counts == std::vector<std::uint64_t>{1, 2});

  CHECK(numpy::floor_divide(7.0F, 2.0F) == 3.0F);
  CHECK(numpy::floor_divide(-7.0F, 2.0F) == -4.0F);
  CHECK(numpy::floor_divide(0.7F, 0.1F) == 6.0F);  // 0.7F is below 7 * 0.1F
  CHECK(numpy::arange(5.0F, 6.5F, 1.0F) == std::vector<double>{5.0, 6.0});
  CHECK(numpy::arange(5.0F, 5.0F, 1.0F).empty());
}

TEST_CASE("uniform bins: a value is in the bin whose edges enclose it") {
  random_source random(82);
  INFO("seed ", random.seed());
  for (int round = 0; round < 200; ++round) {
    const std::size_t bins = random.size(1, 300);
    const float first = random.real(-10.0F, 10.0F);
    const float last = first + random.real(0.1F, 20.0F);
    const numpy::uniform_bins uniform(first, last, bins, "test");
    const std::vector<float>& edges = uniform.edges();
    REQUIRE(edges.size() == bins + 1);
    CHECK(edges.front() == first);
    CHECK(edges.back() == last);
    std::vector<float> x = random.reals(100, first - 1.0F, last + 1.0F);
    x.insert(x.end(), edges.begin(), edges.end());
    for (const float edge : edges) {
      x.push_back(std::nextafter(edge, infinity));
      x.push_back(std::nextafter(edge, -infinity));
    }
    std::vector<std::uint64_t> counts(bins);
    uniform.count(x, counts);
    std::vector<std::uint64_t> expected(bins);
    for (const float value : x) {
      for (std::size_t i = 0; i < bins; ++i) {
        const bool in_last = i + 1 == bins && value == last;
        expected[i] += (value >= edges[i] && value < edges[i + 1]) || in_last ? 1U : 0U;
      }
    }
    INFO("round ", round, " bins ", bins, " on ", first, " .. ", last);
    CHECK((counts == expected));
  }
}
