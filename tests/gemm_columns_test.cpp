// SPDX-License-Identifier: BSD-3-Clause
// Column-major left sides: the same bits as row-major ones, whatever multiplies them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::error_kind;
using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;

/// Backwards, so that nothing may depend on the order of tasks.
void run_backwards(std::size_t count, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = count; i-- > 0;) {
    body(i);
  }
}

/// A row-major matrix and the same values column by column, `gap` more than its rows apart, right
/// before memory that must not be read.
template <class T>
class both_orders {
 public:
  both_orders(const std::vector<T>& values, std::size_t rows, std::size_t columns, std::size_t gap)
      : rows_(rows),
        columns_(columns),
        stride_(rows + gap),
        values_(values),
        memory_((size() + 1) * sizeof(T)) {
    const std::span<T> to = memory_.template back<T>(size());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        to[c * stride_ + r] = values[r * columns + c];
      }
    }
    by_columns_ = {to.data(), rows, columns, 1, static_cast<std::ptrdiff_t>(stride_)};
  }
  [[nodiscard]] matrix_view<const T> by_rows() const { return {values_.data(), rows_, columns_}; }
  [[nodiscard]] matrix_view<const T> by_columns() const { return by_columns_; }

 private:
  [[nodiscard]] std::size_t size() const {
    return rows_ == 0 || columns_ == 0 ? 0 : (columns_ - 1) * stride_ + rows_;
  }

  std::size_t rows_, columns_, stride_;
  std::vector<T> values_;
  test::guarded_memory memory_;
  matrix_view<const T> by_columns_;
};

template <class A, class T, class Weights>
void compare(const both_orders<A>& lhs, const Weights& weights,
             const detent::epilogue_options& options, const detent::parallel_for& parallel = {}) {
  const std::size_t m = lhs.by_rows().rows;
  const std::size_t n = weights.columns();
  INFO("m ", m, " n ", n, " k ", weights.depth());
  for_each_target([&] {
    std::vector<T> right(m * n), out(m * n);
    detent::gemm(lhs.by_rows(), weights, matrix_view<T>(right.data(), m, n), options);
    detent::gemm(lhs.by_columns(), weights, matrix_view<T>(out.data(), m, n), options, parallel);
    CHECK(difference(out, right) == "");
  });
}

template <class A>
void check(random_source& random, std::size_t m, std::size_t n, std::size_t k,
           const detent::parallel_for& parallel = {}) {
  const both_orders<A> lhs(random.integers<A>(m * k), m, k, random.size(0, 20));
  const auto rhs = random.integers<std::int8_t>(k * n);
  const auto scales = random.reals(n, 0.001F, 0.1F);
  std::vector<std::int32_t> zero_points(n, random.chance(50) ? random.integer(-128, 127) : 0);
  const auto weights =
      detent::pack_weights({rhs.data(), k, n}, {.scales = scales, .zero_points = zero_points});
  detent::epilogue_options o{.lhs_scale = 0.5F, .lhs_zero_point = random.integer(0, 127)};
  std::vector<std::int32_t> of_rows;
  if (random.chance(50)) {
    for (std::size_t i = 0; i < m; ++i) {
      of_rows.push_back(random.integer(detent::full_grid<A>.qmin, detent::full_grid<A>.qmax));
    }
    o.lhs_zero_points = of_rows;
  }
  compare<A, std::int32_t>(lhs, weights, o, parallel);
  compare<A, float>(lhs, weights, o, parallel);
  compare<A, std::uint8_t>(lhs, weights, o, parallel);
}

}  // namespace

TEST_CASE("bytes are transposed at every tail") {
  random_source random(51);
  INFO("seed ", random.seed());
  for (std::size_t rows = 0; rows <= 34; ++rows) {
    for (std::size_t columns = 0; columns <= 140; columns += columns < 20 ? 1 : 7) {
      const auto values = random.integers<std::uint8_t>(rows * columns);
      const both_orders<std::uint8_t> m(values, rows, columns, random.size(0, 9));
      for (const std::uint8_t flip : {std::uint8_t{0x00}, std::uint8_t{0x80}}) {
        std::vector<std::uint8_t> right = values;
        for (std::uint8_t& value : right) {
          value = static_cast<std::uint8_t>(value ^ flip);
        }
        test::guarded_memory memory(rows * columns + 1);
        const std::span<std::uint8_t> to = memory.back<std::uint8_t>(rows * columns);
        detent::detail::transpose_bytes(m.by_columns().data, m.by_columns().column_stride, rows,
                                        columns, flip, to.data());
        INFO("rows ", rows, " columns ", columns);
        CHECK(difference(to, right) == "");
        CHECK(memory.intact_around(to));
      }
    }
  }
}

TEST_CASE_TEMPLATE("gemm: column-major left sides", A, std::uint8_t, std::int8_t) {
  random_source random(52);
  INFO("seed ", random.seed());
  for (std::size_t i = 1; i <= 70; ++i) {
    check<A>(random, i, random.size(1, 40), random.size(1, 140));
    check<A>(random, random.size(1, 70), random.size(1, 70), i);
  }
  check<A>(random, 0, 3, 5);
  check<A>(random, 5, 3, 0);
  check<A>(random, 5, 0, 3);
  check<A>(random, 300, 20, 100);
  detent::thread_pool pool(3);
  check<A>(random, 300, 20, 100, pool.parallel());
  check<A>(random, 3, 1500, 700, &run_backwards);
  check<A>(random, 130, 200, 90, &run_backwards);
}

TEST_CASE("gemm: column-major left sides with addends and with sums beyond 32 bits") {
  random_source random(53);
  INFO("seed ", random.seed());
  constexpr std::size_t m = 21;
  constexpr std::size_t n = 5;
  constexpr std::size_t k = detent::packed_weights::slice_depth + 25013;
  const both_orders<std::int8_t> lhs(std::vector<std::int8_t>(m * k, 100), m, k, 2);
  const auto deep = detent::pack_weights(matrix_view<const std::int8_t>(lhs.by_rows().data, k, n));
  REQUIRE(!deep.certificate().fits_s32());
  compare<std::int8_t, float>(lhs, deep, {.lhs_zero_point = -128});
  const both_orders<std::uint8_t> few(random.integers<std::uint8_t>(m * 40), m, 40, 3);
  const auto rhs = random.integers<std::int8_t>(40 * n);
  std::vector<std::int32_t> addend(m * n);
  for (std::int32_t& value : addend) {
    value = random.integer(-1000000, 1000000);
  }
  compare<std::uint8_t, std::int32_t>(few, detent::pack_weights({rhs.data(), 40, n}),
                                      {.addend = {addend.data(), m, n}});
}

TEST_CASE_TEMPLATE("gemm: column-major left sides with 4-bit weights", A, std::uint8_t,
                   std::int8_t) {
  random_source random(54);
  INFO("seed ", random.seed());
  for (int round = 0; round < 20; ++round) {
    const std::size_t m = random.size(1, 100);
    const std::size_t n = random.size(1, 70);
    const std::size_t k = random.size(1, 100);
    auto codes = random.integers<std::int8_t>(k * n);
    for (std::int8_t& code : codes) {
      code = static_cast<std::int8_t>(code / 16);
    }
    const auto weights = detent::pack_int4_weights({codes.data(), k, n}, {.group_size = 16});
    const both_orders<A> lhs(random.integers<A>(m * k), m, k, random.size(0, 3));
    compare<A, float>(lhs, weights, {.lhs_zero_point = 5}, &run_backwards);
  }
}

TEST_CASE("float gemm: column-major left sides") {
  random_source random(55);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  for (int round = 0; round < 20; ++round) {
    const std::size_t m = random.size(1, 120);
    const std::size_t n = random.size(1, 40);
    const std::size_t k = random.size(1, 60);
    const both_orders<float> lhs(random.reals(m * k, -2.0F, 2.0F), m, k, random.size(0, 3));
    const auto rhs = random.reals(k * n, -2.0F, 2.0F);
    const detent::packed_floats weights(matrix_view<const float>(rhs.data(), k, n), {});
    for_each_target([&] {
      std::vector<float> right(m * n), out(m * n);
      detent::gemm(lhs.by_rows(), weights, matrix_view<float>(right.data(), m, n));
      detent::gemm(lhs.by_columns(), weights, matrix_view<float>(out.data(), m, n),
                   {-1.0F, 1.0F, {}}, round % 2 == 0 ? detent::parallel_for{} : pool.parallel());
      for (float& value : right) {
        value = std::clamp(value, -1.0F, 1.0F);
      }
      CHECK(difference(out, right) == "");
    });
  }
}

TEST_CASE_TEMPLATE("dynamic linear: column-major left sides", F, float, detent::bfloat16) {
  random_source random(56);
  INFO("seed ", random.seed());
  for (int round = 0; round < 24; ++round) {
    const std::size_t m = random.size(1, 150);
    const std::size_t n = random.size(1, 40);
    const std::size_t k = random.size(1, 90);
    std::vector<F> values(m * k);
    for (F& value : values) {
      const float x = random.real(-3.0F, 5.0F);
      if constexpr (std::is_same_v<F, float>) {
        value = x;
      } else {
        value = detent::round_to<F>(x);
      }
    }
    const both_orders<F> lhs(values, m, k, random.size(0, 3));
    const auto rhs = random.integers<std::int8_t>(k * n);
    const auto weights = detent::pack_weights({rhs.data(), k, n});
    const detent::dynamic_linear_options o{.per_row = round % 2 == 0};
    for_each_target([&] {
      std::vector<float> right(m * n), out(m * n);
      detent::dynamic_linear(lhs.by_rows(), weights, matrix_view<float>(right.data(), m, n), o);
      detent::dynamic_linear(lhs.by_columns(), weights, matrix_view<float>(out.data(), m, n), o,
                             &run_backwards);
      CHECK(difference(out, right) == "");
    });
  }
}

TEST_CASE("gemm: a row whose elements are apart") {
  const std::uint8_t lhs[] = {1, 99, 99, 2, 99, 99, 3};
  const std::int8_t rhs[] = {1, 10, 100};
  const auto weights = detent::pack_weights({rhs, 3, 1});
  for_each_target([&] {
    std::int32_t out = 0;
    detent::gemm(matrix_view<const std::uint8_t>(lhs, 1, 3, 12, 3), weights,
                 matrix_view<std::int32_t>(&out, 1, 1));
    CHECK(out == 321);
  });
}

TEST_CASE("gemm: columns that overlap and other strides are refused") {
  const std::vector<std::uint8_t> lhs(100);
  const std::vector<std::int8_t> w(12);
  const std::vector<float> reals(100);
  const auto weights = detent::pack_weights({w.data(), 3, 4});
  const detent::packed_floats floats(matrix_view<const float>(reals.data(), 3, 4), {});
  std::vector<std::int32_t> out(20, 42);
  std::vector<float> real(20, 42.0F);
  const auto fails = [&](error_kind kind, const char* text, std::ptrdiff_t rows_apart,
                         std::ptrdiff_t columns_apart) {
    test::check_error(kind, {"gemm", text}, [&] {
      detent::gemm(
          matrix_view<const std::uint8_t>(lhs.data() + 50, 5, 3, rows_apart, columns_apart),
          weights, matrix_view<std::int32_t>(out.data(), 5, 4));
    });
    test::check_error(kind, {"gemm", text}, [&] {
      detent::gemm(matrix_view<const float>(reals.data() + 50, 5, 3, rows_apart, columns_apart),
                   floats, matrix_view<float>(real.data(), 5, 4));
    });
    test::check_error(kind, {"gemm", text}, [&] {
      detent::dynamic_linear(
          matrix_view<const float>(reals.data() + 50, 5, 3, rows_apart, columns_apart), weights,
          matrix_view<float>(real.data(), 5, 4));
    });
    CHECK(out == std::vector<std::int32_t>(20, 42));
    CHECK(real == std::vector<float>(20, 42.0F));
  };
  fails(error_kind::invalid_argument, "columns overlap (the column stride is 4 for 5 rows)", 1, 4);
  fails(error_kind::invalid_argument, "the column stride is 0", 1, 0);
  fails(error_kind::invalid_argument, "the column stride is -5", 1, -5);
  fails(error_kind::unsupported, "rows must be dense (the left side's column stride is 10)", 2, 10);
  fails(error_kind::unsupported, "rows must be dense (the left side's column stride is 5)", -1, 5);
  fails(error_kind::invalid_argument, "rows overlap", 1, 1);
}
