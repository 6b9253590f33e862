// SPDX-License-Identifier: BSD-3-Clause
// prepared_product: the bits of gemm() for every number of rows, on every target and thread.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>
#include <detent/prepared_product.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::epilogue_options;
using detent::error_kind;
using detent::matrix_view;
using detent::prepared_product;
using test::check_error;
using test::difference;
using test::for_each_target;
using test::random_source;

using u8 = std::uint8_t;
using s8 = std::int8_t;

/// Compares products of 0 to 9 and of some more rows with those of gemm().
template <class A, class T>
void check(std::uint64_t seed) {
  random_source random(seed);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  for (const auto& [n, k] : std::array<std::array<std::size_t, 2>, 7>{
           {{1, 1}, {16, 40}, {63, 5}, {64, 64}, {130, 33}, {700, 24}, {5, 0}}}) {
    const auto values = random.integers<s8>(k * n);
    const auto scales = random.reals(n, 0.001F, 0.1F);
    const auto bias = random.reals(n, -5.0F, 5.0F);
    std::vector<std::int32_t> zero_points(n);
    for (std::int32_t& zero_point : zero_points) {
      zero_point = random.chance(50) ? random.integer(-128, 127) : 0;
    }
    const auto weights = detent::pack_weights(matrix_view<const s8>(values.data(), k, n),
                                              {.scales = scales, .zero_points = zero_points});
    epilogue_options o{.lhs_scale = 0.7F, .lhs_zero_point = 11, .output = {3.0F, 5}};
    if constexpr (std::is_same_v<T, float>) {
      o.bias = bias;
      o.lower = -100.0F;
    }
    for_each_target([&, n = n, k = k] {
      const prepared_product<A, T> product(weights, o);
      CHECK(&product.weights() == &weights);
      for (const std::size_t m : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 13U, 49U, 300U}) {
        INFO("m ", m, " n ", n, " k ", k);
        const auto lhs = random.integers<A>(m * k);
        const matrix_view<const A> left(lhs.data(), m, k);
        std::vector<T> expected(m * n);
        detent::gemm(left, weights, matrix_view<T>(expected.data(), m, n), o);
        for (const detent::parallel_for& parallel : {detent::parallel_for{}, pool.parallel()}) {
          std::vector<T> actual(m * n, T{77});
          product.run(left, matrix_view<T>(actual.data(), m, n), parallel);
          CHECK(difference(actual, expected) == "");
        }
      }
    });
  }
}

TEST_CASE("a prepared product computes what gemm computes") {
  check<u8, std::int32_t>(0x9EE9001);
  check<u8, float>(0x9EE9002);
  check<u8, u8>(0x9EE9003);
  check<s8, s8>(0x9EE9004);
  check<s8, float>(0x9EE9005);
}

TEST_CASE("a prepared product serves several threads, after a move, and keeps its target") {
  random_source random(0x9EE9006);
  constexpr std::size_t n = 200, k = 70;
  const auto values = random.integers<s8>(k * n);
  const auto weights = detent::pack_weights(matrix_view<const s8>(values.data(), k, n));
  const auto lhs = random.integers<s8>(k);
  const matrix_view<const s8> left(lhs.data(), 1, k);
  const epilogue_options o{.lhs_scale = 0.5F, .lhs_zero_point = -9};
  std::vector<float> expected(n);
  detent::gemm(left, weights, matrix_view<float>(expected.data(), 1, n), o);
  for_each_target([&] {
    prepared_product<s8, float> first(weights, o);
    prepared_product<s8, float> product(std::move(first));
    detent::set_target(detent::target::portable);
    std::array<std::vector<float>, 4> results;
    std::array<std::thread, 4> threads;
    for (std::size_t t = 0; t < threads.size(); ++t) {
      results[t].resize(n);
      threads[t] = std::thread([&, t] {
        for (int i = 0; i < 50; ++i) {
          std::fill(results[t].begin(), results[t].end(), 0.0F);
          product.run(left, matrix_view<float>(results[t].data(), 1, n));
        }
      });
    }
    for (std::size_t t = 0; t < threads.size(); ++t) {
      threads[t].join();
      CHECK(difference(results[t], expected) == "");
    }
  });
}

TEST_CASE("a prepared product keeps its own bias") {
  const std::vector<u8> lhs(4, 1);
  for (const std::size_t n : {1U, 15U, 16U, 17U, 64U}) {
    INFO("n ", n);
    const std::vector<s8> values(4 * n, 1);
    const auto weights = detent::pack_weights(matrix_view<const s8>(values.data(), 4, n), {});
    std::vector<float> bias(n, 100.0F);
    const prepared_product<u8, float> product(weights, epilogue_options{.bias = bias});
    std::fill(bias.begin(), bias.end(), 5.0F);
    std::vector<float> out(n);
    product.run(matrix_view<const u8>(lhs.data(), 1, 4), matrix_view<float>(out.data(), 1, n));
    CHECK(out == std::vector<float>(n, 104.0F));
  }
}

TEST_CASE("a prepared product whose sums may leave 32 bits") {
  constexpr std::size_t n = 3, k = 70000;
  const std::vector<s8> values(k * n, 127);
  const auto weights = detent::pack_weights(matrix_view<const s8>(values.data(), k, n));
  const std::vector<u8> large(k, 255);
  const std::vector<u8> small(k, 1);
  for_each_target([&] {
    const prepared_product<u8, std::int32_t> sums(weights);
    std::vector<std::int32_t> out(n);
    const matrix_view<std::int32_t> to(out.data(), 1, n);
    check_error(error_kind::overflow, {"gemm: the sum 2266950000 of row 0, column 0"},
                [&] { sums.run(matrix_view<const u8>(large.data(), 1, k), to); });
    // The record of one call is not that of the next.
    sums.run(matrix_view<const u8>(small.data(), 1, k), to);
    CHECK(out == std::vector<std::int32_t>(n, 127 * 70000));
    const prepared_product<u8, float> reals(weights);
    std::vector<float> real(n);
    reals.run(matrix_view<const u8>(large.data(), 1, k), matrix_view<float>(real.data(), 1, n));
    CHECK(real == std::vector<float>(n, 2266950000.0F));
  });
}

// It refers to the weights.
static_assert(std::is_constructible_v<prepared_product<u8, float>, const detent::packed_weights&>);
static_assert(!std::is_constructible_v<prepared_product<u8, float>, detent::packed_weights>);
static_assert(!std::is_constructible_v<prepared_product<u8, float>, detent::packed_weights,
                                       const epilogue_options&>);

TEST_CASE("prepared products: wrong arguments are named") {
  const std::vector<s8> values(6);
  const auto weights = detent::pack_weights(matrix_view<const s8>(values.data(), 2, 3));
  const std::vector<float> reals(3, 1.0F);
  const std::vector<std::int32_t> integers(3);
  using to_float = prepared_product<u8, float>;
  using to_sums = prepared_product<u8, std::int32_t>;
  using to_bytes = prepared_product<u8, u8>;
  check_error(error_kind::unsupported, {"prepared_product", "parameters of rows"},
              [&] { to_float(weights, {.lhs_scales = reals}); });
  check_error(error_kind::unsupported, {"prepared_product"},
              [&] { to_float(weights, {.lhs_zero_points = integers}); });
  check_error(error_kind::unsupported, {"prepared_product", "residuals"}, [&] {
    to_float(weights, {.residual = matrix_view<const float>(reals.data(), 1, 3)});
  });
  check_error(error_kind::unsupported, {"prepared_product", "addends"}, [&] {
    to_sums(weights, {.addend = matrix_view<const std::int32_t>(integers.data(), 1, 3)});
  });
  check_error(error_kind::shape_mismatch, {"2 biases for 3 columns"},
              [&] { to_float(weights, {.bias = std::span(reals).first(2)}); });
  check_error(error_kind::invalid_argument, {"scale 0"},
              [&] { to_bytes(weights, {.lhs_scale = 0.0F}); });
  check_error(error_kind::invalid_argument, {"zero point 256"},
              [&] { to_bytes(weights, {.lhs_zero_point = 256}); });
  const to_bytes product(weights);
  std::vector<u8> lhs(6, 1);
  std::vector<u8> out(9, 42);
  check_error(error_kind::shape_mismatch, {"gemm: K is 3 in the left side, 2 in the weights"}, [&] {
    product.run(matrix_view<const u8>(lhs.data(), 2, 3), matrix_view<u8>(out.data(), 2, 3));
  });
  check_error(error_kind::shape_mismatch, {"the output is 3 x 2, not 3 x 3"}, [&] {
    product.run(matrix_view<const u8>(lhs.data(), 3, 2), matrix_view<u8>(out.data(), 3, 2));
  });
  check_error(error_kind::invalid_argument, {"null data"}, [&] {
    product.run(matrix_view<const u8>(nullptr, 3, 2), matrix_view<u8>(out.data(), 3, 3));
  });
  CHECK(out == std::vector<u8>(9, 42));
}

}  // namespace
