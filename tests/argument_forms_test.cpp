// SPDX-License-Identifier: BSD-3-Clause
// Forms of arguments that the functions take besides spans and views of constant elements: vectors,
// views of elements that may be written, and what may be left out.
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>
#include <detent/gemm_batch.hpp>
#include <detent/observer_registry.hpp>
#include <detent/observers/channels.hpp>

namespace {

using detent::matrix_view;
using detent::tensor_view;

const std::vector<float> reals = {-1.0F, 0.25F, 0.5F, 3.0F};

}  // namespace

TEST_CASE("dynamic_quantize takes vectors") {
  std::vector<std::uint8_t> expected(reals.size());
  std::vector<std::uint8_t> q(reals.size());
  const auto p =
      detent::dynamic_quantize(std::span<const float>(reals), std::span<std::uint8_t>(expected));
  CHECK(detent::dynamic_quantize(reals, q) == p);
  CHECK(q == expected);
  CHECK(detent::dynamic_quantize(reals, q, {{0, 127}, false}).zero_point == 32);
}

TEST_CASE("observers take views of elements that may be written") {
  const std::size_t shape[] = {2, 2};
  std::vector<double> doubles(reals.begin(), reals.end());
  std::vector<float> floats = reals;
  std::vector<detent::bfloat16> halves;
  for (const float x : reals) {
    halves.push_back(detent::round_to<detent::bfloat16>(x));
  }
  detent::any_observer expected = detent::make_observer("minmax");
  expected.observe(std::span<const float>(reals));
  const auto check = [&](const auto& view) {
    detent::any_observer whole = detent::make_observer("minmax");
    whole.observe(view);
    CHECK(whole.save() == expected.save());
    detent::channel_observer channels(detent::make_observer("minmax"), 0);
    channels.observe(view);
    channels.observe(view, {});
    CHECK(channels.channels().size() == 2);
  };
  check(tensor_view<double>(doubles.data(), shape));
  check(tensor_view<float>(floats.data(), shape));
  check(tensor_view<detent::bfloat16>(halves.data(), shape));
  check(tensor_view<const double>(doubles.data(), shape));
  check(tensor_view<const float>(floats.data(), shape));
  check(tensor_view<const detent::bfloat16>(halves.data(), shape));
}

TEST_CASE("min_max_observer::observe_as takes vectors, arrays and spans of any kind") {
  std::vector<double> x = {-0.5, 7.0};
  std::array<double, 2> y = {-0.5, 7.0};
  const int z[] = {-3, 9};
  detent::min_max_observer expected;
  expected.observe_as(std::span<const double>(x));
  const auto check = [&](auto&& values) {
    detent::min_max_observer o;
    o.observe_as(values);
    CHECK(o == expected);
  };
  check(x);
  check(std::vector<double>(x));
  check(std::span<double>(x));
  check(y);
  check(std::span<double, 2>(y));
  detent::min_max_observer integers;
  integers.observe_as(z);
  CHECK(integers.range().upper == 9.0F);
  integers.observe_as<double>(x);
  CHECK(integers.count() == 4);
}

TEST_CASE("convolve takes vectors of bytes and writes vectors") {
  const detent::packed_filters filters({1, 1, 1, 1, 1}, std::vector<std::int8_t>{2});
  const detent::window w{.in_height = 2, .in_width = 2};
  const std::vector<std::uint8_t> u = {0, 1, 2, 255};
  const std::vector<std::int8_t> s = {0, 1, 2, -128};
  std::vector<std::int32_t> sums(4);
  detent::convolve(u, filters, w, sums);
  CHECK(sums == std::vector<std::int32_t>{0, 2, 4, 510});
  detent::convolve(s, filters, w, sums, {.lhs_zero_point = 1});
  CHECK(sums == std::vector<std::int32_t>{-2, 0, 2, -258});
  std::vector<float> floats(4);
  detent::convolve(u, filters, w, floats, {.lhs_scale = 0.5F}, {});
  CHECK(floats == std::vector<float>{0.0F, 1.0F, 2.0F, 255.0F});
}

TEST_CASE("packed floats and float filters without biases") {
  static_assert(!std::is_convertible_v<matrix_view<const float>, detent::packed_floats>,
                "gemm() of a matrix must not pack it");
  const detent::packed_floats weights(matrix_view<const float>(reals.data(), 4, 1));
  float out = 9.0F;
  detent::gemm(matrix_view<const float>(reals.data(), 1, 4), weights,
               matrix_view<float>(&out, 1, 1));
  CHECK(out == 10.3125F);
  const detent::packed_float_filters filters({1, 1, 1, 1, 1}, std::vector<float>{2.0F});
  std::vector<float> images(4);
  detent::convolve(reals, filters, {.in_height = 2, .in_width = 2}, images);
  CHECK(images == std::vector<float>{-2.0F, 0.5F, 1.0F, 6.0F});
}

TEST_CASE("gemm_batch takes a vector of problems") {
  const std::vector<std::int8_t> w = {1, 2};
  const std::vector<std::uint8_t> a = {3, 4};
  const auto weights = detent::pack_weights(matrix_view<const std::int8_t>(w.data(), 2, 1));
  std::int32_t out = 0;
  std::vector<detent::gemm_problem<std::uint8_t, detent::packed_weights, std::int32_t>> problems;
  problems.push_back({matrix_view<const std::uint8_t>(a.data(), 1, 2), &weights,
                      matrix_view<std::int32_t>(&out, 1, 1)});
  detent::gemm_batch(problems);
  CHECK(out == 11);
  detent::gemm_batch(problems, {});
}

TEST_CASE("fake_quantize of views takes a braced scale") {
  std::vector<float> y(reals.size());
  const std::size_t shape[] = {2, 2};
  const tensor_view<const float> in(reals.data(), shape);
  const tensor_view<float> out(y.data(), shape);
  detent::fake_quantize(in, out, {0.5F}, {-2, 1});
  CHECK(y == std::vector<float>{-1.0F, 0.0F, 0.5F, 0.5F});
  detent::fake_quantize(in, out, {0.5F, -2}, {-2, 1});
  CHECK(y == std::vector<float>{0.0F, 0.0F, 0.5F, 1.5F});
  const detent::channel_quant_params channels{0, {0.5F, 1.0F}, {0, 0}};
  detent::fake_quantize(in, out, channels, {-2, 1});
  CHECK(y == std::vector<float>{-1.0F, 0.0F, 0.0F, 1.0F});
}
