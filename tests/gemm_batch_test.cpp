// SPDX-License-Identifier: BSD-3-Clause
// Batches of products equal the products one by one, whatever their shapes and threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;

/// Products of random shapes, some of them empty.
template <class A, class T>
struct batch_case {
  struct one {
    std::size_t m, n, k;
    std::vector<A> lhs;
    std::vector<std::int8_t> rhs;
    std::vector<T> out, expected;
    detent::packed_weights weights;
    detent::epilogue_options options;
  };
  std::vector<one> all;

  batch_case(random_source& random, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      one p;
      p.m = random.size(0, 70);
      p.n = i == 0 ? 1500 : random.size(0, 90);
      p.k = i == 0 ? 900 : random.size(0, 90);
      p.lhs = random.integers<A>(p.m * p.k);
      p.rhs = random.integers<std::int8_t>(p.k * p.n);
      p.out.resize(p.m * p.n);
      p.expected.resize(p.m * p.n);
      p.weights = detent::pack_weights({p.rhs.data(), p.k, p.n});
      p.options.lhs_zero_point = random.integer(0, 100);
      p.options.lhs_scale = random.real(0.1F, 2.0F);
      all.push_back(std::move(p));
    }
    for (one& p : all) {
      detent::gemm(lhs(p), p.weights, matrix_view<T>(p.expected.data(), p.m, p.n), p.options);
    }
  }
  [[nodiscard]] static matrix_view<const A> lhs(const one& p) { return {p.lhs.data(), p.m, p.k}; }
  std::vector<detent::gemm_problem<A, detent::packed_weights, T>> problems() {
    std::vector<detent::gemm_problem<A, detent::packed_weights, T>> list;
    for (one& p : all) {
      std::fill(p.out.begin(), p.out.end(), T{1});
      list.push_back({lhs(p), &p.weights, {p.out.data(), p.m, p.n}, p.options});
    }
    return list;
  }
};

template <class A, class T>
void check_batches(random_source& random) {
  detent::thread_pool pool(3);
  for (const std::size_t count : {0U, 1U, 2U, 9U}) {
    batch_case<A, T> c(random, count);
    for_each_target([&] {
      for (const bool threads : {false, true}) {
        const auto problems = c.problems();
        detent::gemm_batch(
            std::span<const detent::gemm_problem<A, detent::packed_weights, T>>(problems),
            threads ? pool.parallel() : detent::parallel_for{});
        for (const auto& p : c.all) {
          CHECK(difference(p.out, p.expected) == "");
        }
      }
    });
  }
}

}  // namespace

TEST_CASE("a batch equals its products one by one") {
  random_source random(91);
  INFO("seed ", random.seed());
  check_batches<std::uint8_t, std::int32_t>(random);
  check_batches<std::int8_t, float>(random);
  check_batches<std::uint8_t, std::uint8_t>(random);
}

TEST_CASE("strided batches, with weights of their own and shared, of 8 and 4 bits") {
  random_source random(92);
  INFO("seed ", random.seed());
  constexpr std::size_t count = 5, m = 7, n = 20, k = 33, lhs_step = m * k + 3,
                        out_step = m * n + 2;
  const auto lhs = random.integers<std::uint8_t>(count * lhs_step);
  std::vector<detent::packed_weights> weights;
  std::vector<detent::packed_int4_weights> int4_weights;
  for (std::size_t i = 0; i < count; ++i) {
    auto w = random.integers<std::int8_t>(k * n);
    weights.push_back(detent::pack_weights({w.data(), k, n}));
    for (auto& code : w) {
      code = static_cast<std::int8_t>(code / 16);
    }
    int4_weights.push_back(detent::pack_int4_weights({w.data(), k, n}));
  }
  const matrix_view<const std::uint8_t> first(lhs.data(), m, k);
  const auto check = [&](auto all, bool shared) {
    std::vector<float> out(count * out_step, 1.0F), expected(count * out_step, 1.0F);
    for (std::size_t i = 0; i < count; ++i) {
      detent::gemm(matrix_view<const std::uint8_t>(lhs.data() + i * lhs_step, m, k),
                   all[shared ? 0 : i], matrix_view<float>(expected.data() + i * out_step, m, n));
    }
    detent::gemm_strided_batch(count, first, lhs_step, shared ? all.first(1) : all,
                               matrix_view<float>(out.data(), m, n), out_step);
    CHECK(difference(out, expected) == "");
  };
  for_each_target([&] {
    for (const bool shared : {false, true}) {
      check(std::span<const detent::packed_weights>(weights), shared);
      check(std::span<const detent::packed_int4_weights>(int4_weights), shared);
    }
  });
}

TEST_CASE("a batch with a product that does not fit writes nothing") {
  random_source random(93);
  batch_case<std::uint8_t, float> c(random, 3);
  using problem = detent::gemm_problem<std::uint8_t, detent::packed_weights, float>;
  auto problems = c.problems();
  const auto before = c.all[0].out;
  problems[2].weights = nullptr;
  test::check_error(error_kind::invalid_argument, {"problem 2 has no weights"},
                    [&] { detent::gemm_batch(std::span<const problem>(problems)); });
  problems[2].weights = &c.all[0].weights;
  test::check_error(error_kind::shape_mismatch, {"K is"},
                    [&] { detent::gemm_batch(std::span<const problem>(problems)); });
  CHECK(c.all[0].out == before);
  const std::vector<detent::packed_weights> two(2);
  test::check_error(error_kind::shape_mismatch, {"2 weights for 3 products"}, [&] {
    detent::gemm_strided_batch(3, batch_case<std::uint8_t, float>::lhs(c.all[0]), 0,
                               std::span<const detent::packed_weights>(two),
                               matrix_view<float>(c.all[0].out.data(), 0, 0), 0);
  });
}

TEST_CASE("strided batches of products without elements, on null") {
  // The sanitizers would see that something was added to null.
  const detent::packed_weights columns =
      detent::pack_weights(matrix_view<const std::int8_t>(nullptr, 0, 4));
  const detent::packed_weights none =
      detent::pack_weights(matrix_view<const std::int8_t>(nullptr, 0, 0));
  const auto with = [](const detent::packed_weights& w, std::size_t rows, float* out) {
    detent::gemm_strided_batch(3, matrix_view<const std::uint8_t>(nullptr, rows, 0), 5,
                               std::span<const detent::packed_weights>(&w, 1),
                               matrix_view<float>(out, rows, w.columns()), 8);
  };
  std::vector<float> out(24, 1.0F), expected(24, 1.0F);
  for (std::size_t i = 0; i < 3; ++i) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(8 * i), 8, 0.0F);
  }
  with(none, 2, nullptr);
  with(columns, 0, nullptr);
  with(columns, 2, out.data());
  CHECK(out == expected);
  test::check_error(error_kind::invalid_argument, {"null"}, [&] { with(columns, 2, nullptr); });
}
