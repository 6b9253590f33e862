// SPDX-License-Identifier: BSD-3-Clause
// Element types, strides and functions of the caller's own: quantized_transform and
// observe_elements.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/observers/elements.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/observers/percentile.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/quantized_transform.hpp>
#include <detent/reference.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::grid;
using detent::quant_params;
using detent::quantized_view;
using detent::tensor_view;
using test::check_error;
using test::difference;
using test::random_source;
namespace reference = detent::reference;
namespace simd = detent::simd;

using u8 = std::uint8_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

constexpr auto add = [](const auto& a, const auto& b) { return a + b; };
constexpr auto same = [](const auto& a) { return a; };

TEST_CASE("a sum of bytes in registers is quantized_add, for all lengths around registers") {
  random_source random(0x0E7E001);
  INFO("seed ", random.seed());
  for (const std::size_t n : {0U, 1U, 3U, 15U, 16U, 17U, 511U, 512U, 513U, 1500U}) {
    const auto a = random.integers<u8>(n);
    const auto b = random.integers<s8>(n);
    const quant_params pa{0.03F, 100};
    const quant_params pb{0.011F, -7};
    const quant_params po{0.05F, 12};
    std::vector<u8> expected(n);
    detent::quantized_add(a, pa, b, pb, expected, po);
    std::vector<u8> actual(n, 77);
    const std::size_t shape[] = {n};
    detent::quantized_transform(add, tensor_view<u8>(actual.data(), shape), po,
                                quantized_view<u8>{{a.data(), shape}, pa},
                                quantized_view<s8>{{b.data(), shape}, pb});
    CHECK(difference(actual, expected) == "");
  }
}

/// A 12-bit code in a word with flags above it.
struct sample {
  std::uint16_t word = 0;

  sample() = default;
  explicit sample(std::int32_t code) : word(static_cast<std::uint16_t>(code & 0x0FFF)) {}
  explicit operator std::int32_t() const { return word & 0x0FFF; }
};

TEST_CASE("codes of an own type, at strides of which one repeats values") {
  random_source random(0x0E7E002);
  constexpr std::size_t rows = 7, columns = 530;
  const auto words = random.integers<std::uint16_t>(rows * columns);
  std::vector<sample> a(words.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i].word = words[i];
  }
  const auto row = random.integers<s16>(columns);
  const quant_params pa{0.25F, 2000};
  const quant_params pb{0.5F, -300};
  const quant_params po{1.5F, 1000};
  const grid levels{16, 4000};
  std::vector<sample> out(2 * rows * columns);
  const std::size_t shape[] = {rows, columns};
  // a is read column by column of its memory, the row again and again; every second element of out
  // is written, from the last row to the first.
  const std::ptrdiff_t by_columns[] = {1, static_cast<std::ptrdiff_t>(rows)};
  const std::ptrdiff_t again[] = {0, 1};
  const std::ptrdiff_t backwards[] = {-2 * static_cast<std::ptrdiff_t>(columns), 2};
  detent::quantized_transform(
      add, tensor_view<sample>(out.data() + 2 * columns * (rows - 1), shape, backwards), po, levels,
      quantized_view<sample>{{a.data(), shape, by_columns}, pa},
      quantized_view<s16>{{row.data(), shape, again}, pb});
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      const std::int32_t expected = reference::quantized_binary(
          std::plus<float>(), words[j * rows + i] & 0x0FFF, pa, row[j], pb, po, levels);
      const std::size_t at = 2 * ((rows - 1 - i) * columns + j);
      CHECK(static_cast<std::int32_t>(out[at]) == expected);
      CHECK(out[at + 1].word == 0);
    }
  }
}

TEST_CASE("transform in place, of rank 0, and with NaN and infinities from the function") {
  std::vector<u8> x{0, 10, 20, 255};
  const std::size_t shape[] = {4};
  const quant_params p{1.0F, 10};
  detent::quantized_transform([](const auto& v) { return v + v; }, tensor_view<u8>(x.data(), shape),
                              p, quantized_view<u8>{{x.data(), shape}, p});
  CHECK(x == std::vector<u8>{0, 10, 30, 255});
  // 1 / 0 and 0 / 0.
  std::vector<u8> y{10, 12, 8, 11};
  detent::quantized_transform([](const auto& v) { return v / (v * decltype(v + v)(0.0F)); },
                              tensor_view<u8>(y.data(), shape), {1.0F, 77},
                              quantized_view<u8>{{y.data(), shape}, p});
  CHECK(y[0] == 77);
  CHECK(y[1] == 255);
  CHECK(y[3] == 255);
  u8 one = 5;
  const tensor_view<u8> scalar(&one, std::span<const std::size_t>());
  detent::quantized_transform(same, scalar, {0.5F, 0},
                              quantized_view{scalar, quant_params{1.0F, 0}});
  CHECK(one == 10);
}

TEST_CASE("quantized_transform: wrong arguments are named") {
  std::vector<u8> x(6);
  const std::size_t shape[] = {6};
  const std::size_t other[] = {2, 3};
  const tensor_view<u8> view(x.data(), shape);
  const quant_params p{1.0F, 0};
  check_error(error_kind::shape_mismatch, {"quantized_transform"}, [&] {
    detent::quantized_transform(same, view, p, quantized_view<u8>{{x.data(), other}, p});
  });
  check_error(error_kind::invalid_argument, {"quantized_transform", "null data with size 6"}, [&] {
    detent::quantized_transform(same, tensor_view<u8>(nullptr, shape), p, quantized_view{view, p});
  });
  check_error(error_kind::invalid_argument, {"quantized_transform", "scale -1"}, [&] {
    detent::quantized_transform(same, view, p, quantized_view{view, quant_params{-1.0F, 0}});
  });
  check_error(error_kind::invalid_argument, {"quantized_transform", "zero point 300"}, [&] {
    detent::quantized_transform(same, view, {1.0F, 300}, quantized_view{view, p});
  });
  check_error(error_kind::invalid_argument, {"quantized_transform", "grid 5 .. 4"}, [&] {
    detent::quantized_transform(same, view, p, grid{5, 4}, quantized_view{view, p});
  });
}

/// An own number format: eighths.
struct eighths {
  std::int32_t count;
};
[[maybe_unused]] float to_float(eighths e) { return static_cast<float>(e.count) * 0.125F; }

TEST_CASE("observers see elements of any type and strides, through a function") {
  random_source random(0x0E7E003);
  INFO("seed ", random.seed());
  for (const std::size_t n : {1U, 7U, 4095U, 4096U, 4097U, 10000U}) {
    std::vector<eighths> x(3 * n);
    std::vector<float> expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i].count = random.integer(-4000, 4000);
    }
    for (std::size_t i = 0; i < n; ++i) {
      expected.push_back(std::fmax(to_float(x[3 * i]), -2.0F));
    }
    const std::size_t shape[] = {n};
    const std::ptrdiff_t strides[] = {3};
    const tensor_view<const eighths> view(x.data(), shape, strides);
    const auto f = [](const auto& v) { return simd::max(v, std::decay_t<decltype(v)>(-2.0F)); };
    detent::min_max_observer range;
    detent::min_max_observer of_values;
    detent::observe_elements(range, view, f);
    of_values.observe(expected);
    CHECK(range == of_values);
    detent::percentile_observer percentile;
    detent::percentile_observer of_all;
    detent::observe_elements(percentile, view, f);
    of_all.observe(expected);
    CHECK(percentile.finalize(detent::asymmetric<u8>).params ==
          of_all.finalize(detent::asymmetric<u8>).params);
  }
}

TEST_CASE_TEMPLATE("min and max of registers and of single values have one rule", T, float,
                   double) {
  const T values[] = {T(quiet_nan), T(-quiet_nan), T(0),        T(-0.0),
                      T(1),         T(-1),         T(infinity), T(-infinity)};
  constexpr std::size_t count = std::size(values);
  std::vector<T> smaller;
  std::vector<T> larger;
  std::vector<T> single_smaller;
  std::vector<T> single_larger;
  std::vector<T> least;
  std::vector<T> most;
  for (const T x : values) {
    for (const T y : values) {
      T lanes[simd::lane_count<T>];
      simd::store<simd::default_arch>(simd::min(simd::lanes<T>(x), simd::lanes<T>(y)), lanes);
      smaller.push_back(lanes[0]);
      simd::store<simd::default_arch>(simd::max(simd::lanes<T>(x), simd::lanes<T>(y)), lanes);
      larger.push_back(lanes[0]);
      single_smaller.push_back(simd::min(x, y));
      single_larger.push_back(simd::max(x, y));
      least.push_back(x < y ? x : y);
      most.push_back(x > y ? x : y);
    }
  }
  REQUIRE(smaller.size() == count * count);
  CHECK(difference(smaller, least) == "");
  CHECK(difference(larger, most) == "");
  CHECK(difference(single_smaller, least) == "");
  CHECK(difference(single_larger, most) == "");
  CHECK(simd::min(3, -4) == -4);
  CHECK(simd::max(std::uint8_t{3}, std::uint8_t{200}) == 200);
}

TEST_CASE("observe_elements in row-major order, with NaN, without values and with null") {
  struct recorder {
    std::vector<float> seen;
    void observe(std::span<const float> x) { seen.insert(seen.end(), x.begin(), x.end()); }
  };
  const std::vector<double> x{0.0, 1.0, 2.0, 3.0, quiet_nan, infinity};
  const std::size_t shape[] = {3, 2};
  const std::ptrdiff_t by_columns[] = {1, 3};
  recorder r;
  detent::observe_elements(r, tensor_view<const double>(x.data(), shape, by_columns));
  CHECK(difference(r.seen, std::vector<float>{0.0F, 3.0F, 1.0F, quiet_nan, 2.0F, infinity}) == "");
  recorder none;
  const std::size_t empty[] = {0, 2};
  detent::observe_elements(none, tensor_view<const double>(nullptr, empty));
  CHECK(none.seen.empty());
  check_error(error_kind::invalid_argument, {"observe_elements", "null data with size 6"},
              [&] { detent::observe_elements(none, tensor_view<const double>(nullptr, shape)); });
}

}  // namespace
