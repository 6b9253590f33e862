// SPDX-License-Identifier: BSD-3-Clause
// The observers that reproduce the calibrators of ONNX Runtime and Intel Neural Compressor: what
// the tools returned, cases worked out by hand, and bad input.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/all.hpp>

#include "check_error.hpp"
#include "parity_data.hpp"

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
namespace ort = detent::ort;
namespace inc = detent::inc;

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

template <std::size_t N>
struct vector {
  const char* name;
  value_range ranges[N];
};

}  // namespace

// ------------------------------------------------------------------------ what the tools returned

TEST_CASE("ort: what ONNX Runtime returns") {
  // HistogramCollector.collect() for each batch of parity_data.hpp, then
  // compute_collection_result(); MinMaxCalibrater.collect_data() for each batch with
  // moving_average, and once for all batches with moving_average and symmetric. ONNX Runtime 1.31,
  // NumPy 2.4.
  const vector<8> vectors[] = {
      // entropy 128/128, 256/32; percentile symmetric 2048 99.999, 100 90, asymmetric the same two;
      // moving average, symmetric mean
      {"growing",
       {{-0x1.738d1p+2F, 0x1.76219cp+2F},
        {-0x1.3c138cp+2F, 0x1.3d5dd4p+2F},
        {-0x1.22ff7p+3F, 0x1.31dde4p+3F},
        {-0x1.c8a792p+1F, 0x1.c8a792p+1F},
        {-0x1.22ff7p+3F, 0x1.31d61p+3F},
        {-0x1.0836cep+2F, 0x1.a0232p+1F},
        {-0x1.52e652p+1F, 0x1.1797ccp+1F},
        {-0x1.16f238p+2F, 0x1.16f238p+2F}}},
      {"relu",
       {{0.0F, 0x1.87d9c8p+1F},
        {0.0F, 0x1.0c445cp+2F},
        {0.0F, 0x1.68c31ep+2F},
        {0.0F, 0x1.11ef0ep+1F},
        {0.0F, 0x1.68c438p+2F},
        {0.0F, 0x1.a0b02p+1F},
        {0.0F, 0x1.852e1ep+1F},
        {-0x1.14dbap+2F, 0x1.14dbap+2F}}},
      {"positive",
       {{0x1.3dcccp+1F, 0x1.297434p+2F},
        {0x1.3dcccp+1F, 0x1.13b784p+3F},
        {0x1.3dcccp+1F, 0x1.172226p+3F},
        {0x1.3dcccp+1F, 0x1.02bab2p+3F},
        {0x1.3dcccp+1F, 0x1.17018cp+3F},
        {0x1.b1758p+1F, 0x1.04a93ep+3F},
        {0x1.b67aap+1F, 0x1.27fa1p+2F},
        {-0x1.8c54d2p+2F, 0x1.8c54d2p+2F}}},
      {"rounded",
       {{-0x1.c08p+2F, 0x1.c7p+2F},
        {-0x1.da8p+2F, 0x1.ddcp+2F},
        {-0x1.cffp+3F, 0x1p+3F},
        {-0x1.9bd70ap+2F, 0x1.9bd70ap+2F},
        {-0x1.dp+3F, 0x1.ffep+2F},
        {-0x1.c147acp+2F, 0x1.5d70ap+2F},
        {-0x1.a51eb8p+2F, 0x1.41eb86p+2F},
        {-0x1.5p+3F, 0x1.5p+3F}}},
      {"zeros",
       {{-0x1.3e82cp+1F, 0x1.814dcp+1F},
        {-0x1.3e82cp+1F, 0x1.814dcp+1F},
        {-0x1.3e82cp+1F, 0x1.814p+1F},
        {-0x1.9c28e4p+0F, 0x1.9c28e4p+0F},
        {-0x1.3e82cp+1F, 0x1.80ed6cp+1F},
        {-0x1.a020c6p+0F, 0x1.90b74p+0F},
        {-0x1.3f10ccp-5F, 0x1.583334p-6F},
        {-0x1.4e7bcp+0F, 0x1.4e7bcp+0F}}},
      {"large",
       {{-0x1.c30ep+1F, 0x1.ca1a38p+1F},
        {-0x1.23d75p+2F, 0x1.5b19c8p+2F},
        {-0x1.23d75p+2F, 0x1.6634fp+2F},
        {-0x1.3bc06p+1F, 0x1.3bc06p+1F},
        {-0x1.23d75p+2F, 0x1.661cdcp+2F},
        {-0x1.0ea202p+1F, 0x1.68d8p+1F},
        {-0x1.c46186p+1F, 0x1.ad41e6p+1F},
        {-0x1.1db3e8p+2F, 0x1.1db3e8p+2F}}},
      {"dense",
       {{-0x1.efe1cp+1F, 0x1.efe1cp+1F},
        {-0x1.f3c184p+1F, 0x1.efe1cp+1F},
        {-0x1.efa3c4p+1F, 0x1.efa3c4p+1F},
        {-0x1.e5f6d6p+0F, 0x1.e5f6d6p+0F},
        {-0x1.870a26p+2F, 0x1.e2ce9p+1F},
        {-0x1.efe1cp+0F, 0x1.dc0bfp+0F},
        {-0x1.f8279cp+1F, 0x1.ef2c52p+1F},
        {-0x1.ca357p+2F, 0x1.ca357p+2F}}},
  };
  for (const vector<8>& v : vectors) {
    INFO(std::string(v.name));
    const batches data = test::parity_data(v.name);
    const value_range* r = v.ranges;
    check_range(observed(ort::entropy_observer(), data).range(), r[0]);
    check_range(
        observed(ort::entropy_observer({.num_bins = 256, .num_quantized_bins = 32}), data).range(),
        r[1]);
    check_range(observed(ort::percentile_observer(), data).range(), r[2]);
    check_range(
        observed(ort::percentile_observer({.num_bins = 100, .percentile = 90.0}), data).range(),
        r[3]);
    check_range(observed(ort::percentile_observer({.symmetric = false}), data).range(), r[4]);
    check_range(observed(ort::percentile_observer(
                             {.num_bins = 100, .percentile = 90.0, .symmetric = false}),
                         data)
                    .range(),
                r[5]);
    check_range(observed(ort::min_max_observer({.moving_average = true}), data).range(), r[6]);
    check_range(
        observed(ort::min_max_observer(
                     {.symmetric = true, .moving_average = true, .batches_per_collection = 0}),
                 data)
            .range(),
        r[7]);
    // The tool's symmetric makes no difference to entropy.
    check_range(observed(ort::entropy_observer({.symmetric = true}), data).range(), r[0]);
  }
}

TEST_CASE("inc: what Intel Neural Compressor returns") {
  // collect_calib_data() for each batch of parity_data.hpp, then calib_range. Intel Neural
  // Compressor 2.6, NumPy 2.4, SciPy 1.17.
  const vector<4> vectors[] = {
      // KL 128/128, 256/32; percentile 2048 99.999, 100 90
      {"growing",
       {{-0x1.738d1p+2F, 0x1.76219cp+2F},
        {-0x1.3c138cp+2F, 0x1.3d5dd4p+2F},
        {-0x1.22ff7p+3F, 0x1.31d61p+3F},
        {-0x1.0836cep+2F, 0x1.a0232p+1F}}},
      {"relu",
       {{0.0F, 0x1.87d9c8p+1F},
        {0.0F, 0x1.0c445cp+2F},
        {0.0F, 0x1.68c438p+2F},
        {0.0F, 0x1.a0b02p+1F}}},
      {"positive",
       {{0x1.3dcccp+1F, 0x1.297434p+2F},
        {0x1.3dcccp+1F, 0x1.13b784p+3F},
        {0x1.3dcccp+1F, 0x1.17018cp+3F},
        {0x1.b1758p+1F, 0x1.04a93ep+3F}}},
      {"rounded",
       {{-0x1.c08p+2F, 0x1.c7p+2F},
        {-0x1.da8p+2F, 0x1.ddcp+2F},
        {-0x1.dp+3F, 0x1.ffep+2F},
        {-0x1.c147acp+2F, 0x1.5d70ap+2F}}},
      {"zeros",
       {{-0x1.3e82cp+1F, 0x1.814dcp+1F},
        {-0x1.3e82cp+1F, 0x1.814dcp+1F},
        {-0x1.3e82cp+1F, 0x1.80ed6cp+1F},
        {-0x1.a020c6p+0F, 0x1.90b74p+0F}}},
      {"large",
       {{-0x1.c30ep+1F, 0x1.ca1a38p+1F},
        {-0x1.23d75p+2F, 0x1.5b19c8p+2F},
        {-0x1.23d75p+2F, 0x1.661cdcp+2F},
        {-0x1.0ea202p+1F, 0x1.68d8p+1F}}},
      {"dense",
       {{-0x1.efe1cp+1F, 0x1.efe1cp+1F},
        {-0x1.f3c184p+1F, 0x1.efe1cp+1F},
        {-0x1.870a26p+2F, 0x1.e2ce9p+1F},
        {-0x1.efe1cp+0F, 0x1.dc0bfp+0F}}},
  };
  for (const vector<4>& v : vectors) {
    INFO(std::string(v.name));
    const batches data = test::parity_data(v.name);
    check_range(observed(inc::kl_observer(), data).range(), v.ranges[0]);
    check_range(
        observed(inc::kl_observer({.num_bins = 256, .num_quantized_bins = 32}), data).range(),
        v.ranges[1]);
    check_range(observed(inc::percentile_observer(), data).range(), v.ranges[2]);
    check_range(
        observed(inc::percentile_observer({.num_bins = 100, .percentile = 90.0}), data).range(),
        v.ranges[3]);
  }
}

namespace {

/// The golden data: arrays, and what ONNX Runtime 1.23 returned for them. DETENT_SHARED may say
/// which folder holds golden/.
class golden_data {
 public:
  golden_data() {
    const char* given = std::getenv("DETENT_SHARED");
#ifdef DETENT_TEST_SHARED
    const std::filesystem::path beside = DETENT_TEST_SHARED;
#else
    const std::filesystem::path beside = "../shared";
#endif
    folder_ = (given != nullptr ? std::filesystem::path(given) : beside) / "golden";
    std::ifstream file(folder_ / "ort_calibration.json");
    text_.assign(std::istreambuf_iterator<char>(file), {});
  }

  /// False where the data is not there, which is an error in continuous integration.
  [[nodiscard]] bool is_here() const {
    if (!text_.empty()) {
      return true;
    }
    const char* ci = std::getenv("CI");
    if (ci != nullptr && std::string(ci) == "true") {
      FAIL_CHECK("no golden data in ", folder_.string());
    } else {
      MESSAGE("skipped: no golden data in ", folder_.string(),
              "; DETENT_SHARED may say where they are");
    }
    return false;
  }

  [[nodiscard]] batches array(const std::string& name) const {
    constexpr std::size_t batch_count = 4;
    constexpr std::size_t batch_size = 4096;
    std::ifstream file(folder_ / (name + ".f32"), std::ios::binary);
    batches data(batch_count, std::vector<float>(batch_size));
    for (std::vector<float>& batch : data) {
      for (float& value : batch) {
        std::uint32_t bits = 0;
        for (unsigned i = 0; i < 4; ++i) {
          bits |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(file.get())) << (8 * i);
        }
        value = std::bit_cast<float>(bits);
      }
    }
    REQUIRE(file.good());
    return data;
  }

  /// The text behind "key": in the object of `name`.
  [[nodiscard]] const char* value(const std::string& name, const std::string& key) const {
    const std::size_t object = text_.find("\n \"" + name + "\":");
    REQUIRE(object != std::string::npos);
    const std::string quoted = "\"" + key + "\":";
    const std::size_t at = text_.find(quoted, object);
    const std::size_t end = text_.find("\n }", object);
    INFO(name, " ", key);
    REQUIRE(at < end);
    return text_.c_str() + at + quoted.size();
  }
  [[nodiscard]] value_range range(const std::string& name, const std::string& key) const {
    const char* at = value(name, key);
    char* end = nullptr;
    double ends[2] = {};
    for (double& e : ends) {
      while (*at != '-' && (*at < '0' || *at > '9')) {
        REQUIRE(*at != '"');
        ++at;
      }
      e = std::strtod(at, &end);
      at = end;
    }
    return {static_cast<float>(ends[0]), static_cast<float>(ends[1])};
  }
  [[nodiscard]] quant_params params(const std::string& name, const std::string& scheme) const {
    const std::string object = value(name, scheme);
    const auto number = [&](const std::string& key) {
      return std::strtod(object.c_str() + object.find("\"" + key + "\":") + key.size() + 3,
                         nullptr);
    };
    return {static_cast<float>(number("scale")), static_cast<std::int32_t>(number("zp"))};
  }

 private:
  std::filesystem::path folder_;
  std::string text_;
};

void check_near(value_range actual, value_range expected) {
  CHECK(std::fabs(actual.lower - expected.lower) <= 1e-6F * std::fabs(expected.lower));
  CHECK(std::fabs(actual.upper - expected.upper) <= 1e-6F * std::fabs(expected.upper));
}

}  // namespace

TEST_CASE("ort: the golden data of the calibrators") {
  const golden_data golden;
  if (!golden.is_here()) {
    return;
  }
  for (const std::string name : {"normal", "uniform", "outlier", "relu_normal"}) {
    const batches data = golden.array(name);
    for (const std::size_t bins : {128U, 2048U}) {
      // The tool's symmetric makes no difference.
      const value_range range = observed(ort::entropy_observer({.num_bins = bins}), data).range();
      for (const char* suffix : {"}_sym0", "}_sym1"}) {
        const std::string key =
            "entropy_{num_bins:" + std::to_string(bins) + ",num_quantized_bins:128" + suffix;
        INFO(name, " ", key);
        check_near(range, golden.range(name, key));
      }
    }
    for (const bool symmetric : {false, true}) {
      const std::string suffix = std::string("}_sym") + (symmetric ? "1" : "0");
      for (const auto& [percentile, text] :
           {std::pair(99.999, "99.999"), std::pair(99.99, "99.99"), std::pair(99.0, "99.0")}) {
        const std::string key =
            std::string("percentile_{num_bins:2048,percentile:") + text + suffix;
        INFO(name, " ", key);
        check_near(
            observed(ort::percentile_observer({.percentile = percentile, .symmetric = symmetric}),
                     data)
                .range(),
            golden.range(name, key));
      }
    }
    INFO(name);
    const ort::min_max_observer min_max = observed(ort::min_max_observer(), data);
    check_range(min_max.range(), golden.range(name, "minmax"));
    const std::pair<const char*, quant_scheme> schemes[] = {
        {"u8_asym", detent::asymmetric<std::uint8_t>},
        {"s8_asym", detent::asymmetric<std::int8_t>},
        {"s8_sym", detent::symmetric<std::int8_t>},
        {"s8_sym_reduced", {{-64, 64}, true}},
        {"u8_reduced", {{0, 127}, false}}};
    for (const auto& entry : schemes) {
      INFO(std::string(entry.first));
      const quant_params expected = golden.params(name, entry.first);
      const quant_params p = min_max.finalize(entry.second);
      CHECK(std::fabs(p.scale - expected.scale) <= 1e-6F * expected.scale);
      CHECK(p.zero_point == expected.zero_point);
    }
  }
}

// ------------------------------------------------------------------------------------ by hand

TEST_CASE("ort: min_max by hand") {
  const batches data = {{-1, 1}, {-3, 5}, {0, 2}};
  check_range(observed(ort::min_max_observer(), data).range(), {-3, 5});
  check_range(observed(ort::min_max_observer({.symmetric = true}), data).range(), {-5, 5});
  // -1, -1 + (-3 + 1) / 2 = -2, -2 + (0 + 2) / 2 = -1; 1, 1 + (5 - 1) / 2 = 3, 3 + (2 - 3) / 2.
  check_range(
      observed(ort::min_max_observer({.moving_average = true, .averaging_constant = 0.5F}), data)
          .range(),
      {-1.0F, 2.5F});
  // Collections {-1..1, -3..5} and {0..2}: means -2..3 and 0..2; -2 + (0 + 2) / 2, 3 + (2 - 3) / 2.
  const ort::min_max_options two{
      .moving_average = true, .averaging_constant = 0.5F, .batches_per_collection = 2};
  check_range(observed(ort::min_max_observer(two), data).range(), {-1.0F, 2.5F});
  // One collection: (-1 - 3 + 0) / 3 and (1 + 5 + 2) / 3.
  check_range(
      observed(ort::min_max_observer({.moving_average = true, .batches_per_collection = 0}), data)
          .range(),
      {-4.0F / 3.0F, 8.0F / 3.0F});
  // Symmetric before it is averaged: 1, 1 + (5 - 1) / 2 = 3, 3 + (2 - 3) / 2 = 2.5.
  check_range(observed(ort::min_max_observer(
                           {.symmetric = true, .moving_average = true, .averaging_constant = 0.5F}),
                       data)
                  .range(),
              {-2.5F, 2.5F});
  // A range that is asked for before a collection is complete does not complete it.
  ort::min_max_observer half(two);
  half.observe(data[0]);
  check_range(half.range(), {-1, 1});
  half.observe(data[1]);
  check_range(half.range(), {-2, 3});
}

TEST_CASE("ort: plain min_max observers merge, in any order") {
  const batches data = test::parity_data("growing");
  const ort::min_max_observer whole = observed(ort::min_max_observer({.symmetric = true}), data);
  ort::min_max_observer left({.symmetric = true});
  ort::min_max_observer right({.symmetric = true});
  left.observe(data[3]);
  right.observe(data[2]);
  left.observe(data[0]);
  right.observe(data[1]);
  right.merge(left);
  CHECK((right == whole));
  check_error(error_kind::invalid_argument, {"ort::min_max_observer", "merging"},
              [&] { right.merge(ort::min_max_observer()); });
  ort::min_max_observer average({.moving_average = true});
  check_error(error_kind::unsupported, {"merge"}, [&] { average.merge(average); });
}

TEST_CASE("ort, inc: percentiles by hand") {
  // 4 bins on -2 .. 2 with one value each, 50 %: the shares .25 .5 .75 1 reach .25 in the first
  // bin, whose lower edge is -2, and .75 in the third.
  const batches first = {{-2, -1, 0, 1}};
  const ort::percentile_options half{.num_bins = 4, .percentile = 50.0, .symmetric = false};
  check_range(observed(ort::percentile_observer(half), first).range(), {-2, 0});
  // 3 exceeds that by (3 - 2) / 1 = 1, hence 1 + 1 more bins at each end: 8 bins on -4 .. 4 that
  // hold 0 0 1 1 1 1 0 1; of five, .25 is reached in bin 3 and .75 in bin 5.
  batches second = first;
  second.push_back({3});
  check_range(observed(ort::percentile_observer(half), second).range(), {-1, 1});
  check_range(
      observed(inc::percentile_observer({.num_bins = 4, .percentile = 50.0}), second).range(),
      {-1, 1});
  // In one batch: 4 bins on -3 .. 3 that hold 1 1 2 1; .25 is reached in bin 1, .75 in bin 2.
  const batches at_once = {{-2, -1, 0, 1, 3}};
  check_range(observed(ort::percentile_observer(half), at_once).range(), {-1.5F, 0});
  check_range(
      observed(inc::percentile_observer({.num_bins = 4, .percentile = 50.0}), at_once).range(),
      {-1.5F, 0});

  // |x| in 4 bins on 0 .. 4: 1 1 1 2. The shares .2 .4 .6 1 reach .6 in bin 2. The lower end is cut
  // to the least value.
  const batches third = {{0, 1, -2, 3, 4}};
  const ort::percentile_options sixty{.num_bins = 4, .percentile = 60.0};
  check_range(observed(ort::percentile_observer(sixty), third).range(), {-2, 2});
  // 5.5 appends edges 5 and 6: 1 1 1 2 0 1. All are reached in bin 5, whose lower edge is 5.
  batches fourth = third;
  fourth.push_back({5.5F});
  check_range(
      observed(ort::percentile_observer({.num_bins = 4, .percentile = 90.0}), fourth).range(),
      {-2, 5});
  // The histogram begins at the least |x| of the first batch, 1, and 0.5 does not count: 4 bins on
  // 1 .. 5 with 1 1 1 1; 75 % is reached in bin 2, whose lower edge is 3.
  check_range(observed(ort::percentile_observer({.num_bins = 4, .percentile = 75.0}),
                       {{1, -2, 3, 5}, {0.5F, -0.5F}})
                  .range(),
              {-2, 3});
}

TEST_CASE("ort, inc: entropy by hand") {
  // 4 bins on -2 .. 2 that hold 3 3 3 0, 2 quantized ones. Candidate edges 1..4: P = 6 3 0, Q = 3 3
  // 0, divergence 2/3 log(4/3) + 1/3 log(2/3) = .057. Candidate edges 0..4: P = 3 3 3 0, Q = 3 3 3
  // 3, divergence log(4/3) = .29. So -1 .. 2, cut to the greatest value.
  const batches data = {{-2, -1.5F, -1.5F, -0.5F, -0.5F, -0.5F, 0.5F, 0.5F, 0.5F}};
  check_range(
      observed(ort::entropy_observer({.num_bins = 4, .num_quantized_bins = 2}), data).range(),
      {-1, 0.5F});
  check_range(observed(inc::kl_observer({.num_bins = 4, .num_quantized_bins = 2}), data).range(),
              {-1, 0.5F});
}

TEST_CASE("ort, inc: 128 bins are one candidate until the histogram grows") {
  std::vector<float> x = bell(31, 20000, 1, 0);
  x.push_back(20.0F);
  const batches data = {x};
  const ort::min_max_observer min_max = observed(ort::min_max_observer(), data);
  // The lower end is cut to the least value, the upper edge is the greatest one.
  check_range(observed(ort::entropy_observer(), data).range(), min_max.range());
  check_range(observed(inc::kl_observer(), data).range(), min_max.range());
  const value_range fixed =
      observed(ort::entropy_observer({.behaviour = parity::fixed}), data).range();
  CHECK(fixed.upper < 8.0F);
  check_range(observed(inc::kl_observer({.behaviour = parity::fixed}), data).range(), fixed);
  // Growth makes a difference: the same values in another order of batches.
  std::vector<float> rest(x.begin(), x.end() - 1);
  const value_range grown = observed(ort::entropy_observer(), {rest, {20.0F}}).range();
  CHECK(grown.upper < 8.0F);
}

namespace {

/// The search of parity::fixed, written down in doubles: the divergence of each candidate.
std::vector<double> divergences_fixed(const std::vector<double>& counts, std::size_t quantized) {
  std::vector<double> result;
  const std::size_t bins = counts.size();
  for (std::size_t half = quantized / 2; half <= bins / 2; ++half) {
    const std::size_t first = bins / 2 - half;
    const std::size_t last = std::min(bins / 2 + half + 1, bins);
    std::vector<double> inside(counts.begin() + static_cast<std::ptrdiff_t>(first),
                               counts.begin() + static_cast<std::ptrdiff_t>(last));
    std::vector<double> p = inside;
    for (std::size_t i = 0; i < bins; ++i) {
      (i < first ? p.front() : p.back()) += i < first || i >= last ? counts[i] : 0.0;
    }
    std::vector<double> q(p.size());
    const std::size_t merged = p.size() / quantized;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t group = std::min(i / merged, quantized - 1);
      double mass = 0.0;
      double nonzero = 0.0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        if (std::min(j / merged, quantized - 1) == group) {
          mass += inside[j];
          nonzero += p[j] != 0.0 ? 1.0 : 0.0;
        }
      }
      q[i] = p[i] != 0.0 ? mass / nonzero : 0.0;
    }
    for (std::vector<double>* v : {&p, &q}) {
      const auto zeros = static_cast<double>(std::count(v->begin(), v->end(), 0.0));
      const double taken = 1e-4 * zeros / (static_cast<double>(v->size()) - zeros);
      double sum = 0.0;
      for (double& x : *v) {
        x += x == 0.0 ? 1e-4 : -taken;
        sum += x;
      }
      for (double& x : *v) {
        x /= sum;
      }
    }
    double divergence = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      divergence += p[i] * std::log(p[i] / q[i]);
    }
    result.push_back(divergence);
  }
  return result;
}

}  // namespace

TEST_CASE("ort: the repaired entropy search against one that is written down") {
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U}) {
    INFO("seed ", seed);
    // 8 quantized bins, so that the repaired histogram has 128 bins on -4 .. 4, 1/16 wide.
    std::vector<float> x = bell(seed, 800, 0.5F, 0.0F);
    x.push_back(4.0F);
    x.push_back(-4.0F);
    std::vector<double> counts(128);
    for (const float value : x) {
      const auto bin = static_cast<std::size_t>((value + 4.0F) * 16.0F);
      counts[std::min<std::size_t>(bin, 127)] += 1.0;
    }
    const std::vector<double> divergences = divergences_fixed(counts, 8);
    const value_range range =
        observed(ort::entropy_observer(
                     {.num_bins = 16, .num_quantized_bins = 8, .behaviour = parity::fixed}),
                 {x})
            .range();
    const auto candidate = static_cast<std::size_t>(-range.lower * 16.0F) - 4;
    CHECK(range.upper == std::min(4.0F, (static_cast<float>(candidate) + 5.0F) / 16.0F));
    CHECK(divergences[candidate] <=
          *std::min_element(divergences.begin(), divergences.end()) + 1e-6);
    CHECK(range.upper < 4.0F);
  }
}

TEST_CASE("ort, inc: batches make a difference") {
  const std::vector<float> small = bell(41, 300, 1, 0);
  const std::vector<float> big = bell(42, 300, 4, 0);
  std::vector<float> all = small;
  all.insert(all.end(), big.begin(), big.end());
  const auto differs = [&](auto observer) {
    CHECK_FALSE(observed(observer, {small, big}).range() == observed(observer, {all}).range());
    CHECK_FALSE(observed(observer, {small, big}).range() ==
                observed(observer, {big, small}).range());
  };
  differs(ort::entropy_observer());
  differs(ort::percentile_observer({.percentile = 99.0}));
  differs(ort::percentile_observer({.percentile = 99.0, .symmetric = false}));
  differs(ort::min_max_observer({.moving_average = true}));
  differs(inc::kl_observer());
  differs(inc::percentile_observer({.percentile = 99.0}));
}

TEST_CASE("ort: a batch of the same magnitude adds no bins") {
  const std::vector<float> x = bell(43, 300, 1, 0);
  ort::entropy_observer once;
  once.observe(x);
  ort::entropy_observer twice = once;
  twice.observe(x);
  const auto size = [](const auto& observer) {
    detent::detail::byte_writer out({"detenttt", 1});
    observer.write(out);
    return std::move(out).finish().size();
  };
  CHECK(size(twice) == size(once));
  CHECK(twice.range() == once.range());
}

// ------------------------------------------------------------------------------------ bad input

TEST_CASE("ort: what the tool's assertion refuses") {
  // One candidate of 2^15 bins, two of which are not empty: 1e-4 * (2^15 - 2) / 2 > 1.
  ort::entropy_observer published({.num_bins = 32768, .num_quantized_bins = 32768});
  published.observe(std::vector<float>{-1.0F, 1.0F});
  check_error(error_kind::unsupported, {"ort::entropy_observer", "assertion"},
              [&] { static_cast<void>(published.range()); });
}

TEST_CASE("ort, inc: histograms that can't be") {
  const auto refuses = [](auto observer) {
    observer.observe(std::vector<float>{1e-3F, -1e-3F});
    check_error(error_kind::unsupported, {"would grow to", "bins"},
                [&] { observer.observe(std::vector<float>{1e6F}); });
  };
  refuses(ort::entropy_observer());
  refuses(ort::percentile_observer());
  refuses(ort::percentile_observer({.symmetric = false}));
  refuses(inc::kl_observer());
  refuses(inc::percentile_observer());
  // Between 1 and the next float there is no other.
  ort::percentile_observer narrow;
  check_error(error_kind::invalid_argument, {"ort::percentile_observer", "2048 bins", "too many"},
              [&] {
                narrow.observe(std::vector<float>{1.0F, 1.0000001F});
              });
  ort::entropy_observer wide;
  check_error(error_kind::invalid_argument, {"too long"},
              [&] { wide.observe(std::vector<float>{3e38F}); });
}

TEST_CASE("ort, inc: where all values lie in the last bin, the range is extended by 0") {
  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  const auto check = [&](auto observer, detent::scale_rule rule, const std::vector<float>& x) {
    observer.observe(x);
    const value_range range = observer.range();
    INFO("range ", range.lower, " .. ", range.upper);
    CHECK(observer.finalize(u8) == detent::params_from_range({0.0F, range.upper}, u8, rule));
  };
  for (const std::vector<float>& x :
       {std::vector<float>{5.0F, 5.0F, 5.0F}, std::vector<float>{100.0F, 100.01F, 100.02F}}) {
    check(detent::ort::percentile_observer({.symmetric = false}), detent::scale_rule::ort, x);
    check(detent::inc::percentile_observer(), detent::scale_rule::inc, x);
    check(detent::ort::percentile_observer(), detent::scale_rule::ort, x);
    check(detent::ort::entropy_observer({.behaviour = parity::fixed}), detent::scale_rule::ort, x);
    check(detent::inc::kl_observer({.behaviour = parity::fixed}), detent::scale_rule::inc, x);
  }
  // By hand: the last of 2048 bins on -5 .. 5 begins at 5 - 10 / 2048.
  detent::inc::percentile_observer constant;
  constant.observe(std::vector<float>{5.0F, 5.0F, 5.0F});
  CHECK(constant.range() == value_range{5.0F, 4.9951171875F});
  CHECK(constant.finalize(u8) == quant_params{static_cast<float>(4.9951171875 / 255.0), 0});
}

TEST_CASE("ort, inc: options") {
  const auto invalid = error_kind::invalid_argument;
  check_error(invalid, {"ort::min_max_observer", "1.5"},
              [] { ort::min_max_observer({.averaging_constant = 1.5F}); });
  check_error(invalid, {"ort::min_max_observer", "nan"},
              [] { ort::min_max_observer({.averaging_constant = quiet_nan}); });
  check_error(invalid, {"ort::percentile_observer", "101"},
              [] { ort::percentile_observer({.percentile = 101.0}); });
  check_error(invalid, {"0 bins"}, [] { ort::percentile_observer({.num_bins = 0}); });
  check_error(invalid, {"100 bins for 128"}, [] { ort::entropy_observer({.num_bins = 100}); });
  check_error(invalid, {"for 0"}, [] { ort::entropy_observer({.num_quantized_bins = 0}); });
  check_error(invalid, {"inc::kl_observer", "100 bins"},
              [] { inc::kl_observer({.num_bins = 100}); });
  check_error(invalid, {"inc::percentile_observer", "-1"},
              [] { inc::percentile_observer({.percentile = -1.0}); });
  check_error(invalid, {"0 bins"}, [] { inc::percentile_observer({.num_bins = 0}); });
}

TEST_CASE("ort, inc: scales are those of the tool's rule") {
  const batches data = test::parity_data("growing");
  const auto check = [&](auto observer, detent::scale_rule rule, quant_scheme scheme) {
    const auto seen = observed(observer, data);
    CHECK(seen.finalize(scheme) == detent::params_from_range(seen.range(), scheme, rule));
  };
  const quant_scheme u8 = detent::asymmetric<std::uint8_t>;
  check(ort::min_max_observer(), detent::scale_rule::ort, u8);
  check(ort::entropy_observer(), detent::scale_rule::ort, u8);
  check(ort::percentile_observer(), detent::scale_rule::ort, detent::symmetric<std::int8_t>);
  check(inc::kl_observer(), detent::scale_rule::inc, u8);
  check(inc::percentile_observer(), detent::scale_rule::inc, u8);
}
