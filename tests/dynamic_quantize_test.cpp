// SPDX-License-Identifier: BSD-3-Clause
// Dynamic quantization equals the range, the parameters and quantize() one after the other.
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/dynamic_quantize.hpp>

#include "check_error.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::quant_params;
using test::for_each_target;
using test::random_source;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

quant_params expected_params(std::span<const float> x, detent::quant_scheme scheme) {
  const auto r = detent::reference::min_max(x.data(), x.size());
  return detent::reference::params_from_range(
      r.count_nan < x.size() ? detent::value_range{r.lower, r.upper} : detent::value_range{},
      scheme);
}

std::vector<float> some_floats(random_source& random, std::size_t n) {
  std::vector<float> x = random.reals(n, -3.0F, 5.0F);
  for (float& v : x) {
    v = random.chance(3) ? nan : random.chance(3) ? 0.0F : v;
  }
  return x;
}

}  // namespace

TEST_CASE_TEMPLATE("a tensor", Q, std::uint8_t, std::int8_t, std::uint16_t, std::int16_t) {
  random_source random(1);
  INFO("seed ", random.seed());
  for (const detent::quant_scheme scheme : {detent::asymmetric<Q>, detent::symmetric<Q>}) {
    for (std::size_t n = 0; n < 200; ++n) {
      const std::vector<float> x = some_floats(random, n);
      const quant_params p = expected_params(x, scheme);
      for_each_target([&] {
        std::vector<Q> q(n);
        CHECK(detent::dynamic_quantize<Q>(x, q, scheme) == p);
        for (std::size_t i = 0; i < n; ++i) {
          CHECK(q[i] == detent::reference::quantize(x[i], p, scheme.levels));
        }
      });
    }
  }
}

TEST_CASE_TEMPLATE("sums of codes, modulo 2^32", Q, std::uint8_t, std::int8_t) {
  random_source random(4);
  INFO("seed ", random.seed());
  const auto check = [](std::span<const Q> q) {
    std::int64_t sum = 0;
    for (const Q v : q) {
      sum += v;
    }
    const auto expected = static_cast<std::int32_t>(static_cast<std::uint64_t>(sum));
    for_each_target([&] {
      const auto& table = detent::detail::active_table();
      if constexpr (std::is_signed_v<Q>) {
        CHECK(table.sum_s8(q.data(), q.size()) == expected);
      } else {
        CHECK(table.sum_u8(q.data(), q.size()) == expected);
      }
    });
  };
  std::vector<Q> q(400);
  for (const bool extreme : {false, true}) {
    for (Q& v : q) {
      v = static_cast<Q>(!extreme ? random.integer(0, 255) : std::is_signed_v<Q> ? -128 : 255);
    }
    for (std::size_t n = 0; n < 330; ++n) {
      check(std::span<const Q>(q).subspan(n % 67, n));
    }
  }
  q.assign(34000001, std::numeric_limits<Q>::lowest() == 0 ? Q(255) : Q(-128));
  check(q);
}

TEST_CASE_TEMPLATE("rows, with their sums, in any layout and on any threads", Q, std::uint8_t,
                   std::int8_t) {
  random_source random(2);
  INFO("seed ", random.seed());
  detent::thread_pool pool(3);
  for (int round = 0; round < 60; ++round) {
    const std::size_t rows = random.size(0, 40);
    const std::size_t columns = random.size(0, 90);
    const bool transposed = random.chance(40);
    const std::size_t gap = random.size(0, 3);
    const auto stride = static_cast<std::ptrdiff_t>((transposed ? rows : columns) + gap);
    const std::size_t size = (transposed ? columns : rows) * static_cast<std::size_t>(stride);
    const std::vector<float> x = some_floats(random, size);
    const auto view = [&]<class T>(T* data) {
      return transposed ? detent::matrix_view<T>(data, rows, columns, 1, stride)
                        : detent::matrix_view<T>(data, rows, columns, stride);
    };
    const auto in = view(x.data());
    INFO("round ", round, " rows ", rows, " columns ", columns);
    for_each_target([&] {
      std::vector<Q> q(size, Q{77});
      std::vector<float> scales(rows);
      std::vector<std::int32_t> zero_points(rows);
      std::vector<std::int32_t> sums(rows);
      detent::dynamic_quantize_rows<Q>(in, view(q.data()), scales, zero_points, sums,
                                       detent::asymmetric<Q>, {pool.parallel()});
      std::size_t untouched = 0;
      for (const Q v : q) {
        untouched += v == Q{77} ? 1 : 0;
      }
      CHECK(untouched >= size - rows * columns);
      for (std::size_t r = 0; r < rows; ++r) {
        std::vector<float> row(columns);
        for (std::size_t c = 0; c < columns; ++c) {
          row[c] = in(r, c);
        }
        const quant_params p = expected_params(row, detent::asymmetric<Q>);
        CHECK(scales[r] == p.scale);
        CHECK(zero_points[r] == p.zero_point);
        std::int32_t sum = 0;
        for (std::size_t c = 0; c < columns; ++c) {
          const Q value = view(q.data())(r, c);
          CHECK(value == detent::reference::quantize(row[c], p, detent::full_grid<Q>));
          sum += value;
        }
        CHECK(sums[r] == sum);
      }
    });
  }
}

TEST_CASE("what can't be quantized is an error") {
  using detent::error_kind;
  std::vector<float> x = {1.0F, infinity, 2.0F, 3.0F};
  std::vector<std::uint8_t> q(4, 9);
  std::vector<float> scales(2);
  std::vector<std::int32_t> zero_points(2);
  std::vector<std::int32_t> sums(1);
  const detent::matrix_view<const float> in(x.data(), 2, 2);
  const detent::matrix_view<std::uint8_t> out(q.data(), 2, 2);
  test::check_error(error_kind::invalid_argument, {"is not finite"},
                    [&] { detent::dynamic_quantize<std::uint8_t>(x, q); });
  test::check_error(error_kind::shape_mismatch, {"4 elements, output 3"},
                    [&] { detent::dynamic_quantize<std::uint8_t>(x, std::span(q).first(3)); });
  test::check_error(error_kind::invalid_argument, {"grid"}, [&] {
    detent::dynamic_quantize<std::uint8_t>(x, q, detent::asymmetric<std::int8_t>);
  });
  test::check_error(error_kind::shape_mismatch, {"1 row sums for 2 rows"}, [&] {
    detent::dynamic_quantize_rows<std::uint8_t>(in, out, scales, zero_points, sums);
  });
  test::check_error(error_kind::shape_mismatch, {"1 scales"}, [&] {
    detent::dynamic_quantize_rows<std::uint8_t>(in, out, std::span(scales).first(1), zero_points);
  });
  test::check_error(error_kind::shape_mismatch, {"output 2 x 1"}, [&] {
    detent::dynamic_quantize_rows<std::uint8_t>(
        in, detent::matrix_view<std::uint8_t>(q.data(), 2, 1), scales, zero_points);
  });
  CHECK(q == std::vector<std::uint8_t>(4, 9));
}
