// SPDX-License-Identifier: BSD-3-Clause
// Matrix products: every target, every tail, every output type, exact.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "matrix_column.hpp"
#include "oracle.hpp"
#include "random.hpp"

namespace {

using detent::epilogue_options;
using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;
using sizes = std::vector<std::size_t>;

constexpr float infinity = std::numeric_limits<float>::infinity();

constexpr std::size_t max_rows = 50;
constexpr std::size_t max_columns = 70;

/// Around the rows of a tile (6, 2, 1) and of a block (48).
sizes row_tails() { return {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 47, 48, 49, 50}; }
sizes few_rows() { return {1, 2, 5, 6, 7, 8, 13, 49}; }
sizes column_tails() {
  sizes all;
  for (std::size_t n = 0; n <= max_columns; ++n) {
    all.push_back(n);
  }
  return all;
}
sizes few_columns() { return {1, 15, 16, 17, 32, 33, 47, 48, 49, 64, 65, 70}; }

/// A padded row-major matrix: what lies between the rows must stay as it is.
template <class T>
class padded_matrix {
 public:
  padded_matrix(std::size_t rows, std::size_t columns, std::size_t padding, T fill)
      : rows_(rows), columns_(columns), stride_(columns + padding), fill_(fill) {
    values_.assign(rows * stride_, fill);
  }
  [[nodiscard]] matrix_view<T> view() {
    return {values_.data(), rows_, columns_, static_cast<std::ptrdiff_t>(stride_)};
  }
  void clear() { std::fill(values_.begin(), values_.end(), fill_); }
  [[nodiscard]] const std::vector<T>& values() const { return values_; }

  /// The storage that holds the upper left corner of a larger row-major matrix.
  [[nodiscard]] std::vector<T> filled_from(const std::vector<T>& all,
                                           std::size_t all_columns) const {
    std::vector<T> result(values_.size(), fill_);
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t c = 0; c < columns_; ++c) {
        result[r * stride_ + c] = all[r * all_columns + c];
      }
    }
    return result;
  }

 private:
  std::size_t rows_, columns_, stride_;
  T fill_;
  std::vector<T> values_;
};

/// The operands of a product of max_rows x depth and depth x max_columns. A product of fewer rows
/// and columns is a corner of it, so that its values need to be computed only once.
struct integer_operands {
  std::size_t depth = 0;
  std::vector<std::uint8_t> lhs;
  std::vector<std::int8_t> rhs;
  std::vector<float> scales = std::vector<float>(max_columns, 1.0F);
  std::vector<std::int32_t> zero_points = std::vector<std::int32_t>(max_columns, 0);
  std::vector<std::int32_t> bias = std::vector<std::int32_t>(max_columns, 0);

  explicit integer_operands(std::size_t k)
      : depth(k), lhs(max_rows * k, std::uint8_t{0}), rhs(k * max_columns, std::int8_t{0}) {}

  void randomize(random_source& random) {
    lhs = random.integers<std::uint8_t>(lhs.size());
    rhs = random.integers<std::int8_t>(rhs.size());
  }
  void randomize_columns(random_source& random) {
    scales = random.reals(max_columns, 0.001F, 0.1F);
    for (std::size_t j = 0; j < max_columns; ++j) {
      zero_points[j] = random.integer(-128, 127);
      bias[j] = random.integer(-100000, 100000);
    }
  }

  [[nodiscard]] matrix_view<const std::uint8_t> lhs_corner(std::size_t m) const {
    return {lhs.data(), m, depth};
  }
  [[nodiscard]] matrix_view<const std::int8_t> rhs_corner(std::size_t n) const {
    return {rhs.data(), depth, n, static_cast<std::ptrdiff_t>(max_columns)};
  }
  [[nodiscard]] detent::packed_weights pack(std::size_t n) const {
    return detent::pack_weights(rhs_corner(n), {.scales = std::span(scales).first(n),
                                                .zero_points = std::span(zero_points).first(n),
                                                .bias = std::span(bias).first(n)});
  }
  template <class T>
  [[nodiscard]] std::vector<T> product(const epilogue_options& o) const {
    std::vector<T> all;
    for (std::size_t i = 0; i < max_rows; ++i) {
      for (std::size_t j = 0; j < max_columns; ++j) {
        const std::int64_t acc =
            detent::reference::dot(lhs.data() + i * depth, test::column_of(rhs, j), max_columns,
                                   depth, o.lhs_zero_point, zero_points[j], bias[j]);
        all.push_back(test::stored_value<T>(acc, scales[j], o));
      }
    }
    return all;
  }
};

/// Compares the corners of the product with the given sizes.
template <class T>
void check_corners(const integer_operands& p, const epilogue_options& o, const sizes& row_counts,
                   const sizes& column_counts) {
  const std::vector<T> all = p.product<T>(o);
  for (const std::size_t n : column_counts) {
    const detent::packed_weights weights = p.pack(n);
    for (const std::size_t m : row_counts) {
      padded_matrix<T> out(m, n, (m + n) % 4, T{99});
      const std::vector<T> expected = out.filled_from(all, max_columns);
      INFO("m ", m, " n ", n, " k ", p.depth);
      for_each_target([&] {
        out.clear();
        detent::gemm(p.lhs_corner(m), weights, out.view(), o);
        CHECK(difference(out.values(), expected) == "");
      });
    }
  }
}

epilogue_options options_for(random_source& random) {
  epilogue_options o;
  o.lhs_scale = random.real(0.001F, 0.1F);
  o.lhs_zero_point = random.integer(0, 255);
  o.output.scale = random.real(0.05F, 5.0F);
  o.output.zero_point = random.integer(0, 127);
  return o;
}

}  // namespace

TEST_CASE("gemm: every tail of rows and columns, several depths") {
  random_source random(1);
  INFO("seed ", random.seed());
  for (const std::size_t k : sizes{0, 1, 3, 4, 6, 65}) {
    integer_operands p(k);
    p.randomize(random);
    check_corners<std::int32_t>(p, {}, row_tails(), column_tails());
  }
}

TEST_CASE("gemm: every tail of the depth") {
  random_source random(2);
  INFO("seed ", random.seed());
  for (const std::size_t k :
       sizes{0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   63,  64,  65,   66,   255,
             256, 257, 383, 384, 385, 386, 511, 512, 513, 527, 528, 769, 1024, 1030, 1537}) {
    integer_operands p(k);
    p.randomize(random);
    p.randomize_columns(random);
    check_corners<std::int32_t>(p, {.lhs_zero_point = 131}, few_rows(), few_columns());
  }
}

TEST_CASE_TEMPLATE("gemm: every output type at every tail", T, std::int32_t, float, std::uint8_t,
                   std::int8_t) {
  random_source random(3);
  INFO("seed ", random.seed());
  integer_operands p(37);
  p.randomize(random);
  check_corners<T>(p, options_for(random), row_tails(), column_tails());
  p.randomize_columns(random);
  check_corners<T>(p, options_for(random), row_tails(), column_tails());
}

TEST_CASE("gemm: extreme operands") {
  struct pattern {
    const char* name;
    std::uint8_t even_lhs, odd_lhs;  // by depth
    std::int8_t even_rhs, odd_rhs;
    std::int32_t zero_point;
  };
  // vpmaddubsw would saturate on the first three of these.
  constexpr pattern patterns[] = {
      {"255 x -128", 255, 255, -128, -128, 0},
      {"255 x 127", 255, 255, 127, 127, 0},
      {"the largest distances", 255, 255, 127, 127, -128},
      {"alternating signs", 255, 255, 127, -128, 0},
      {"alternating activations", 255, 0, -128, -128, 0},
      {"zeros", 0, 0, 0, 0, 0},
      {"zeros that stand for 128", 0, 0, 0, 0, -128},
  };
  for (const std::size_t k : sizes{1, 2, 4, 7, 64, 386, 514, 1040}) {
    for (const pattern& one : patterns) {
      INFO("k ", k, " ", std::string(one.name));
      integer_operands p(k);
      for (std::size_t i = 0; i < p.lhs.size(); ++i) {
        p.lhs[i] = i % k % 2 == 0 ? one.even_lhs : one.odd_lhs;
      }
      for (std::size_t i = 0; i < p.rhs.size(); ++i) {
        p.rhs[i] = i / max_columns % 2 == 0 ? one.even_rhs : one.odd_rhs;
      }
      std::fill(p.zero_points.begin(), p.zero_points.end(), one.zero_point);
      const sizes rows = {1, 6, 49};
      const sizes columns = {1, 16, 70};
      check_corners<std::int32_t>(p, {}, rows, columns);
      check_corners<std::int32_t>(p, {.lhs_zero_point = 255}, rows, columns);
      check_corners<std::int8_t>(p, {.lhs_zero_point = 128, .output = {7.5F, 0}}, rows, columns);
    }
  }
}

TEST_CASE("gemm: weights that no order of k keeps from saturating vpmaddubsw") {
  random_source random(9);
  INFO("seed ", random.seed());
  for (const std::size_t k : sizes{16, 48, 511, 512, 516, 1025, 1600}) {
    for (const int percent : {2, 50, 100}) {
      integer_operands p(k);
      p.randomize(random);
      // The others are too small to make an unsafe pair with each other.
      for (std::int8_t& weight : p.rhs) {
        weight = static_cast<std::int8_t>(random.chance(percent) ? (random.chance(50) ? 127 : -128)
                                                                 : random.integer(-60, 60));
      }
      p.randomize_columns(random);
      INFO("percent ", percent);
      check_corners<std::int32_t>(p, {.lhs_zero_point = 7}, {1, 4, 13, 50}, {1, 17, 64, 70});
    }
  }
}

TEST_CASE_TEMPLATE("gemm: random epilogues", T, std::int32_t, float, std::uint8_t, std::int8_t) {
  random_source random(4);
  INFO("seed ", random.seed());
  for (int round = 0; round < 60; ++round) {
    integer_operands p(random.size(1, 40));
    p.randomize(random);
    p.randomize_columns(random);
    if (random.chance(40)) {
      std::fill(p.zero_points.begin(), p.zero_points.end(), 0);
    }
    epilogue_options o = options_for(random);
    if constexpr (detent::quantized_type<T>) {
      constexpr detent::grid full = detent::full_grid<T>;
      o.output.zero_point = random.integer(full.qmin, full.qmax);
      if (random.chance(60)) {
        // A fused clip; the zero point may lie outside of it.
        o.levels.qmin = random.integer(full.qmin, full.qmax);
        o.levels.qmax = random.integer(o.levels.qmin, full.qmax);
      }
      if (random.chance(20)) {
        o.output.scale =
            random.chance(50) ? 1e-30F : 1e30F;  // everything saturates, or nothing moves
      }
    }
    if (random.chance(60)) {
      o.lower = random.real(-5.0F, 5.0F);
      o.upper = random.real(-5.0F, 5.0F);  // often crossed: upper wins
    }
    INFO("round ", round);
    check_corners<T>(p, o, {random.size(1, max_rows)}, {random.size(1, max_columns)});
  }
}

TEST_CASE_TEMPLATE("gemm: blocks of 64 columns to bytes", T, std::uint8_t, std::int8_t) {
  // Where neither rows nor columns are left over, and rows have no terms of their own.
  random_source random(12);
  INFO("seed ", random.seed());
  constexpr detent::grid full = detent::full_grid<T>;
  for (int round = 0; round < 40; ++round) {
    integer_operands p(random.size(1, 100));
    p.randomize(random);
    p.randomize_columns(random);
    std::fill(p.zero_points.begin(), p.zero_points.end(), 0);
    epilogue_options o = options_for(random);
    o.output.zero_point = random.integer(full.qmin, full.qmax);
    if (random.chance(50)) {
      o.levels.qmin = random.integer(full.qmin, full.qmax);
      o.levels.qmax = random.integer(o.levels.qmin, full.qmax);
    }
    // Beyond 2^31 steps on either side, ties, and sums that all round to the zero point.
    constexpr float scales[] = {1e-30F, 1e-6F, 0.5F, 64.0F, 1e30F};
    o.output.scale = scales[random.size(0, 4)];
    INFO("round ", round, ", scale ", o.output.scale);
    check_corners<T>(p, o, {6, 25}, {64, 70});
  }
}

TEST_CASE("gemm: large sums are exact, and round to float once") {
  // 33000 * 255 * 255 is a little below 2^31; float has 24 bits for it.
  constexpr std::size_t k = 33000;
  const std::vector<std::uint8_t> lhs(2 * k, 255);
  const std::vector<std::int8_t> rhs(k * 2, 127);
  const std::int32_t zero_points[] = {-128, 127};
  const std::int32_t bias[] = {1, -1};
  const auto weights =
      detent::pack_weights({rhs.data(), k, 2}, {.zero_points = zero_points, .bias = bias});
  const std::int64_t sum = std::int64_t{k} * 255 * 255 + 1;
  REQUIRE(weights.certificate().accumulator_bound == sum);
  for_each_target([&] {
    std::vector<std::int32_t> out(4);
    detent::gemm({lhs.data(), 2, k}, weights, matrix_view(out.data(), 2, 2));
    CHECK(out == std::vector<std::int32_t>{static_cast<std::int32_t>(sum), -1,
                                           static_cast<std::int32_t>(sum), -1});
    detent::gemm({lhs.data(), 2, k}, weights, matrix_view(out.data(), 2, 2),
                 {.lhs_zero_point = 255});
    CHECK(out == std::vector<std::int32_t>{1, -1, 1, -1});
    std::vector<float> real(4);
    detent::gemm({lhs.data(), 2, k}, weights, matrix_view(real.data(), 2, 2), {.lhs_scale = 3.0F});
    CHECK(real[0] == static_cast<float>(static_cast<std::int32_t>(sum)) * 3.0F);
  });
}

TEST_CASE_TEMPLATE("gemm: nothing outside of the operands is touched", T, std::int32_t, float,
                   std::uint8_t, std::int8_t) {
  random_source random(5);
  INFO("seed ", random.seed());
  test::guarded_memory lhs_memory(max_rows * 70);
  test::guarded_memory out_memory(max_rows * max_columns * sizeof(T));
  for (const std::size_t k : sizes{1, 2, 3, 4, 5, 7, 64, 67}) {
    integer_operands p(k);
    p.randomize(random);
    p.randomize_columns(random);
    const epilogue_options o = options_for(random);
    const std::vector<T> all = p.product<T>(o);
    for (const std::size_t n : few_columns()) {
      const detent::packed_weights weights = p.pack(n);
      for (const std::size_t m : few_rows()) {
        const std::vector<T> expected =
            padded_matrix<T>(m, n, 0, T{}).filled_from(all, max_columns);
        for (const bool at_end : {false, true}) {
          const std::span<std::uint8_t> a =
              at_end ? lhs_memory.back<std::uint8_t>(m * k) : lhs_memory.front<std::uint8_t>(m * k);
          const std::span<T> c = at_end ? out_memory.back<T>(m * n) : out_memory.front<T>(m * n);
          std::copy_n(p.lhs.begin(), a.size(), a.begin());
          INFO("m ", m, " n ", n, " k ", k);
          for_each_target([&] {
            out_memory.repaint();
            detent::gemm(matrix_view(a.data(), m, k), weights, matrix_view(c.data(), m, n), o);
            CHECK(difference(c, expected) == "");
            CHECK(out_memory.intact_around(c));
          });
        }
      }
    }
  }
}

TEST_CASE("gemm: nothing behind the last column is touched by deep products") {
  // Deep enough for AMX tiles, which take four, two and one panels of 16 columns at a time.
  constexpr std::size_t depth = 640;
  constexpr std::size_t most_rows = 40;
  constexpr std::size_t most_columns = 120;
  random_source random(8);
  INFO("seed ", random.seed());
  const auto lhs = random.integers<std::uint8_t>(most_rows * depth);
  const auto rhs = random.integers<std::int8_t>(depth * most_columns);
  std::vector<std::int32_t> sums(most_rows * most_columns);
  for (std::size_t i = 0; i < most_rows; ++i) {
    for (std::size_t k = 0; k < depth; ++k) {
      for (std::size_t j = 0; j < most_columns; ++j) {
        sums[i * most_columns + j] += lhs[i * depth + k] * rhs[k * most_columns + j];
      }
    }
  }
  test::guarded_memory out_memory(most_rows * most_columns * sizeof(std::int32_t));
  for (const std::size_t n : {17U, 33U, 40U, 48U, 49U, 97U, 104U, 112U}) {
    const detent::packed_weights weights = detent::pack_weights(matrix_view<const std::int8_t>(
        rhs.data(), depth, n, static_cast<std::ptrdiff_t>(most_columns), 1));
    for (const std::size_t m : {1U, 5U, 16U, 17U, 40U}) {
      INFO("m ", m, " n ", n);
      std::vector<std::int32_t> expected;
      for (std::size_t i = 0; i < m; ++i) {
        const auto row = sums.begin() + static_cast<std::ptrdiff_t>(i * most_columns);
        expected.insert(expected.end(), row, row + static_cast<std::ptrdiff_t>(n));
      }
      for (const bool at_end : {false, true}) {
        const std::span<std::int32_t> c =
            at_end ? out_memory.back<std::int32_t>(m * n) : out_memory.front<std::int32_t>(m * n);
        for_each_target([&] {
          out_memory.repaint();
          detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), m, depth), weights,
                       matrix_view(c.data(), m, n));
          CHECK(difference(c, expected) == "");
          CHECK(out_memory.intact_around(c));
        });
      }
    }
  }
}

TEST_CASE("gemm: padded rows of the left side, packed transposes and other strides") {
  random_source random(6);
  INFO("seed ", random.seed());
  constexpr std::size_t m = 13;
  constexpr std::size_t n = 35;
  constexpr std::size_t k = 29;
  constexpr std::size_t lda = 40;
  integer_operands p(k);
  p.randomize(random);
  p.randomize_columns(random);
  const epilogue_options o{.lhs_zero_point = 9};
  const std::vector<std::int32_t> expected =
      padded_matrix<std::int32_t>(m, n, 0, 0).filled_from(p.product<std::int32_t>(o), max_columns);
  std::vector<std::uint8_t> lhs = random.integers<std::uint8_t>(m * lda);
  for (std::size_t i = 0; i < m; ++i) {
    std::copy_n(p.lhs.begin() + static_cast<std::ptrdiff_t>(i * k), k,
                lhs.begin() + static_cast<std::ptrdiff_t>(i * lda));
  }
  std::vector<std::int8_t> transposed(n * k);
  std::vector<std::int8_t> reversed(k * n * 2);  // rows last to first, every other element
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      transposed[j * k + i] = p.rhs[i * max_columns + j];
      reversed[((k - 1 - i) * n + j) * 2] = p.rhs[i * max_columns + j];
    }
  }
  const std::span columns(p.zero_points);
  const detent::weight_options options{.scales = std::span(p.scales).first(n),
                                       .zero_points = columns.first(n),
                                       .bias = std::span(p.bias).first(n)};
  const matrix_view<const std::int8_t> as_transpose(transposed.data(), n, k);
  const matrix_view<const std::int8_t> as_reversed(reversed.data() + (k - 1) * n * 2, k, n,
                                                   -std::ptrdiff_t{n} * 2, 2);
  for (const auto& weights : {p.pack(n), detent::pack_weights(as_transpose.transposed(), options),
                              detent::pack_weights(as_reversed, options)}) {
    for_each_target([&] {
      std::vector<std::int32_t> out(m * n);
      detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), m, k, lda), weights,
                   matrix_view(out.data(), m, n), o);
      CHECK(difference(out, expected) == "");
    });
  }
}

TEST_CASE("gemm: one value for all columns") {
  const std::uint8_t lhs[] = {3, 5};
  const std::int8_t rhs[] = {1, -2, 3, 4, 5, -6};
  const float scale = 0.5F;
  const std::int32_t zero_point = 2;
  const std::int32_t bias = 100;
  const auto weights = detent::pack_weights(
      {rhs, 2, 3}, {.scales = {&scale, 1}, .zero_points = {&zero_point, 1}, .bias = {&bias, 1}});
  for_each_target([&] {
    float out[3];
    detent::gemm(matrix_view(lhs, 1, 2), weights, matrix_view(out, 1, 3), {.lhs_zero_point = 1});
    // 100 + 2 * (w0 - 2) + 4 * (w1 - 2), halved
    CHECK(out[0] == 53.0F);
    CHECK(out[1] == 52.0F);
    CHECK(out[2] == 35.0F);
  });
}

TEST_CASE_TEMPLATE("gemm: threads do not change a bit", T, std::int32_t, float, std::uint8_t,
                   std::int8_t) {
  random_source random(7);
  INFO("seed ", random.seed());
  constexpr std::size_t n = 37;
  constexpr std::size_t k = 21;
  integer_operands p(k);
  p.randomize_columns(random);
  p.rhs = random.integers<std::int8_t>(p.rhs.size());
  const detent::packed_weights weights = p.pack(n);
  const epilogue_options o = options_for(random);
  for (const std::size_t m : sizes{1, 47, 48, 49, 96, 97, 250}) {
    const std::vector<std::uint8_t> lhs = random.integers<std::uint8_t>(m * k);
    std::vector<T> expected(m * n);
    detent::gemm(matrix_view(lhs.data(), m, k), weights, matrix_view(expected.data(), m, n), o);
    for (const std::size_t threads : sizes{1, 2, 3, 7}) {
      detent::thread_pool pool(threads);
      INFO("m ", m, " threads ", threads);
      for_each_target([&] {
        std::vector<T> out(m * n);
        detent::gemm(matrix_view(lhs.data(), m, k), weights, matrix_view(out.data(), m, n), o,
                     pool.parallel());
        CHECK(difference(out, expected) == "");
      });
    }
  }
}

// ---------------------------------------------------------------------------------- certificates

TEST_CASE("the certificate bounds every sum, tightly") {
  random_source random(8);
  INFO("seed ", random.seed());
  for (int round = 0; round < 200; ++round) {
    const std::size_t k = random.size(0, 3);
    const std::vector<std::int8_t> w = random.integers<std::int8_t>(k);
    const std::int32_t zero_point = random.integer(-128, 127);
    const std::int32_t bias = random.integer(-100000, 100000);
    const auto packed = detent::pack_weights({w.data(), k, 1},
                                             {.zero_points = {&zero_point, 1}, .bias = {&bias, 1}});
    // A sum is linear in each a and in lhs_zero_point, so that its extremes are at the corners.
    std::int64_t largest = 0;
    for (const std::int64_t lhs_zero_point : {0, 255}) {
      for (std::size_t corner = 0; corner < std::size_t{1} << k; ++corner) {
        std::int64_t sum = bias;
        for (std::size_t i = 0; i < k; ++i) {
          const std::int64_t a = (corner >> i & 1) != 0 ? 255 : 0;
          sum += (a - lhs_zero_point) * (w[i] - zero_point);
        }
        largest = std::max(largest, sum < 0 ? -sum : sum);
      }
    }
    const std::int64_t bound = packed.certificate().accumulator_bound;
    CHECK(bound >= largest);
    // What certificates are documented to hold: magnitudes added up, whatever their signs.
    std::int64_t magnitude = 0;
    for (const std::int8_t value : w) {
      magnitude += value < zero_point ? zero_point - value : value - zero_point;
    }
    CHECK(bound == 255 * magnitude + (bias < 0 ? -bias : bias));
  }
}

TEST_CASE("the bound is that of the worst column") {
  const std::int8_t w[] = {1, -128, 3, 2, -128, 3};
  const auto packed = detent::pack_weights({w, 2, 3});
  CHECK(packed.certificate().accumulator_bound == 255 * 256);
  CHECK(packed.certificate().fits_s32());
  CHECK(packed.depth() == 2);
  CHECK(packed.columns() == 3);
  CHECK(packed.column_sums()[1] == -256);
}

TEST_CASE("a product whose sum overflows is refused, one that may not is not") {
  constexpr std::size_t k = 66000;
  const std::vector<std::uint8_t> lhs(k, 255);
  std::vector<std::int8_t> rhs(k, -128);
  const auto large = detent::pack_weights({rhs.data(), k, 1});
  CHECK(!large.certificate().fits_s32());
  std::fill(rhs.begin(), rhs.end(), std::int8_t{-100});
  const auto small = detent::pack_weights({rhs.data(), k, 1});
  CHECK(small.certificate().fits_s32());
  for_each_target([&] {
    std::int32_t out = 42;
    try {
      detent::gemm(matrix_view(lhs.data(), 1, k), large, matrix_view(&out, 1, 1));
      FAIL("no error");
    } catch (const detent::error& e) {
      CHECK(e.kind() == detent::error_kind::overflow);
      CHECK(std::string_view(e.what()).find("2154240000") != std::string_view::npos);
    }
    CHECK(out == 42);
    detent::gemm(matrix_view(lhs.data(), 1, k), small, matrix_view(&out, 1, 1));
    CHECK(out == -1683000000);
  });
}

TEST_CASE("the largest sums that fit") {
  // 255 * 128 * 65792 is a little below 2^31; the bias fills up what is left.
  constexpr std::size_t k = 65792;
  const std::vector<std::uint8_t> lhs(k, 255);
  const std::vector<std::int8_t> rhs(k, -128);
  const std::int64_t product = std::int64_t{255} * 128 * k;
  const auto rest = static_cast<std::int32_t>(std::numeric_limits<std::int32_t>::max() - product);
  REQUIRE(rest >= 0);
  const std::int32_t negative = -rest;
  const auto weights = detent::pack_weights({rhs.data(), k, 1}, {.bias = {&negative, 1}});
  CHECK(weights.certificate().accumulator_bound == std::numeric_limits<std::int32_t>::max());
  for_each_target([&] {
    std::int32_t out = 0;
    detent::gemm(matrix_view(lhs.data(), 1, k), weights, matrix_view(&out, 1, 1));
    CHECK(out == -std::numeric_limits<std::int32_t>::max());
  });
  const std::int32_t one_more = -rest - 1;
  CHECK(
      !detent::pack_weights({rhs.data(), k, 1}, {.bias = {&one_more, 1}}).certificate().fits_s32());
}

// ---------------------------------------------------------------------------------------- floats

namespace {

struct float_operands {
  std::size_t depth;
  std::vector<float> lhs;
  std::vector<float> rhs;
  std::vector<float> bias;

  [[nodiscard]] detent::packed_floats pack(std::size_t n) const {
    return {
        matrix_view<const float>(rhs.data(), depth, n, static_cast<std::ptrdiff_t>(max_columns)),
        std::span(bias).first(bias.empty() ? 0 : n)};
  }
  [[nodiscard]] std::vector<float> product(float lower, float upper) const {
    std::vector<float> all;
    for (std::size_t i = 0; i < max_rows; ++i) {
      for (std::size_t j = 0; j < max_columns; ++j) {
        all.push_back(detent::reference::clamp(
            detent::reference::dot(lhs.data() + i * depth, test::column_of(rhs, j), max_columns,
                                   depth, bias.empty() ? 0.0F : bias[j]),
            lower, upper));
      }
    }
    return all;
  }
};

float_operands random_floats(random_source& random, std::size_t k) {
  return {k, random.reals(max_rows * k, -2.0F, 2.0F), random.reals(k * max_columns, -2.0F, 2.0F),
          random.reals(max_columns, -2.0F, 2.0F)};
}

void check_float_corners(const float_operands& p, float lower, float upper, const sizes& row_counts,
                         const sizes& column_counts) {
  const std::vector<float> all = p.product(lower, upper);
  for (const std::size_t n : column_counts) {
    const detent::packed_floats weights = p.pack(n);
    for (const std::size_t m : row_counts) {
      padded_matrix<float> out(m, n, (m + n) % 4, 99.0F);
      const std::vector<float> expected = out.filled_from(all, max_columns);
      INFO("m ", m, " n ", n, " k ", p.depth);
      for_each_target([&] {
        out.clear();
        detent::gemm(matrix_view<const float>(p.lhs.data(), m, p.depth), weights, out.view(),
                     {lower, upper, {}});
        CHECK(difference(out.values(), expected) == "");
      });
    }
  }
}

}  // namespace

TEST_CASE("float gemm: every tail of rows and columns") {
  random_source random(11);
  INFO("seed ", random.seed());
  for (const std::size_t k : sizes{0, 1, 5, 33}) {
    check_float_corners(random_floats(random, k), -infinity, infinity, row_tails(), column_tails());
  }
}

TEST_CASE("float gemm: every tail of the depth, clamped") {
  random_source random(12);
  INFO("seed ", random.seed());
  for (const std::size_t k : sizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 257, 386, 769}) {
    check_float_corners(random_floats(random, k), -1.0F, 3.0F, few_rows(), few_columns());
  }
}

TEST_CASE(
    "float gemm: NaN, infinities, zeros of both signs, huge and tiny values, crossed bounds") {
  random_source random(13);
  INFO("seed ", random.seed());
  for (int round = 0; round < 40; ++round) {
    float_operands p = random_floats(random, random.size(1, 12));
    const int percent = random.integer(0, 30);
    for (std::vector<float>* values : {&p.lhs, &p.rhs, &p.bias}) {
      for (float& value : *values) {
        if (random.chance(percent)) {
          constexpr float special[] = {
              0.0F,  -0.0F,  infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
              1e30F, -3e38F, 1e-40F,   1e-30F};
          value = special[random.size(0, std::size(special) - 1)];
        }
      }
    }
    if (random.chance(20)) {
      p.bias.clear();
    }
    const float lower = random.chance(50) ? -infinity : random.real(-1.0F, 1.0F);
    const float upper = random.chance(50) ? infinity : random.real(-1.0F, 1.0F);
    INFO("round ", round);
    check_float_corners(p, lower, upper, {7}, {1, 37, 70});
    check_float_corners(p, 0.0F, 6.0F, {7}, {37});
    check_float_corners(p, -0.0F, infinity, {7}, {37});
  }
}

TEST_CASE("float gemm: a residual, a row of it for all, and the output as its own residual") {
  random_source random(15);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  constexpr float lower = -3.0F;
  constexpr float upper = 4.0F;
  for (const std::size_t k : sizes{0, 1, 9}) {
    const float_operands p = random_floats(random, k);
    const std::vector<float> sums = p.product(-infinity, infinity);
    for (const std::size_t n : column_tails()) {
      const detent::packed_floats weights = p.pack(n);
      for (const std::size_t m : few_rows()) {
        const std::size_t stride = random.chance(30) ? 0 : n + random.size(0, 5);
        const std::vector<float> residual =
            random.reals(stride * (std::max<std::size_t>(m, 1) - 1) + n, -2.0F, 2.0F);
        std::vector<float> all(max_rows * max_columns);
        padded_matrix<float> out(m, n, (m + n) % 4, 99.0F);
        for (std::size_t i = 0; i < m; ++i) {
          for (std::size_t j = 0; j < n; ++j) {
            all[i * max_columns + j] = detent::reference::clamp(
                sums[i * max_columns + j] + residual[i * stride + j], lower, upper);
          }
        }
        const std::vector<float> expected = out.filled_from(all, max_columns);
        const matrix_view<const float> lhs(p.lhs.data(), m, k);
        const matrix_view<const float> added(residual.data(), m, n,
                                             static_cast<std::ptrdiff_t>(stride));
        INFO("m ", m, " n ", n, " k ", k, " stride ", stride);
        for_each_target([&] {
          out.clear();
          detent::gemm(lhs, weights, out.view(),
                       detent::float_epilogue_options{lower, upper, added});
          CHECK(difference(out.values(), expected) == "");
          out.clear();
          for (std::size_t i = 0; i < m; ++i) {
            std::copy_n(residual.data() + i * stride, n,
                        out.view().data + static_cast<std::ptrdiff_t>(i) * out.view().row_stride);
          }
          detent::gemm(lhs, weights, out.view(),
                       detent::float_epilogue_options{lower, upper, out.view()}, pool.parallel());
          CHECK(difference(out.values(), expected) == "");
        });
      }
    }
  }
}

TEST_CASE("float gemm: nothing outside of the operands is touched") {
  random_source random(14);
  INFO("seed ", random.seed());
  test::guarded_memory lhs_memory(max_rows * 20 * sizeof(float));
  test::guarded_memory out_memory(max_rows * max_columns * sizeof(float));
  for (const std::size_t k : sizes{1, 2, 17}) {
    const float_operands p = random_floats(random, k);
    const std::vector<float> all = p.product(-infinity, infinity);
    for (const std::size_t n : few_columns()) {
      const detent::packed_floats weights = p.pack(n);
      for (const std::size_t m : few_rows()) {
        const auto expected = padded_matrix<float>(m, n, 0, 0.0F).filled_from(all, max_columns);
        for (const bool at_end : {false, true}) {
          const auto a = at_end ? lhs_memory.back<float>(m * k) : lhs_memory.front<float>(m * k, 1);
          const auto c = at_end ? out_memory.back<float>(m * n) : out_memory.front<float>(m * n, 1);
          std::copy_n(p.lhs.begin(), a.size(), a.begin());
          INFO("m ", m, " n ", n, " k ", k);
          for_each_target([&] {
            out_memory.repaint();
            detent::gemm(matrix_view<const float>(a.data(), m, k), weights,
                         matrix_view(c.data(), m, n));
            CHECK(difference(c, expected) == "");
            CHECK(out_memory.intact_around(c));
          });
        }
      }
    }
  }
}

TEST_CASE("float gemm: {} means the default options, which clamp nothing") {
  const std::vector<float> lhs = {-1.0F, -2.0F};
  const std::vector<float> ones = {1.0F, 1.0F};
  const detent::packed_floats weights(matrix_view<const float>(ones.data(), 2, 1), {});
  float out = 99.0F;
  detent::gemm({lhs.data(), 1, 2}, weights, {&out, 1, 1}, {});
  CHECK(out == -3.0F);
  out = 99.0F;
  detent::gemm({lhs.data(), 1, 2}, weights, {&out, 1, 1}, {}, {});
  CHECK(out == -3.0F);
  detent::gemm({lhs.data(), 1, 2}, weights, {&out, 1, 1}, {.lower = -2.0F});
  CHECK(out == -2.0F);
}

TEST_CASE("float gemm: threads, transposed weights") {
  random_source random(15);
  INFO("seed ", random.seed());
  constexpr std::size_t m = 150;
  constexpr std::size_t n = 41;
  constexpr std::size_t k = 19;
  const std::vector<float> lhs = random.reals(m * k, -1.0F, 1.0F);
  const std::vector<float> rhs = random.reals(n * k, -1.0F, 1.0F);  // N x K
  const matrix_view<const float> transposed(rhs.data(), n, k);
  const detent::packed_floats weights(transposed.transposed(), {});
  std::vector<float> expected;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      expected.push_back(
          detent::reference::dot(lhs.data() + i * k, rhs.data() + j * k, 1, k, 0.0F));
    }
  }
  for (const std::size_t threads : sizes{1, 2, 3, 7}) {
    detent::thread_pool pool(threads);
    for_each_target([&] {
      std::vector<float> out(m * n);
      detent::gemm(matrix_view<const float>(lhs.data(), m, k), weights,
                   matrix_view(out.data(), m, n), {}, pool.parallel());
      CHECK(difference(out, expected) == "");
    });
  }
}
