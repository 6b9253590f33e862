// SPDX-License-Identifier: BSD-3-Clause
// Products with 4-bit weights in groups, against reference::grouped_dot.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "matrix_column.hpp"
#include "random.hpp"

namespace {

using detent::epilogue_options;
using detent::error_kind;
using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;

template <class A_, class W_>
struct sides {
  using A = A_;
  using W = W_;
};

template <class W>
inline constexpr detent::grid code_levels =
    std::is_signed_v<W> ? detent::int4::levels : detent::uint4::levels;

template <class Q>
std::vector<Q> codes(random_source& random, detent::grid levels, std::size_t n) {
  const std::int32_t kind = random.integer(0, 4);
  std::vector<Q> q;
  for (std::size_t i = 0; i < n; ++i) {
    q.push_back(static_cast<Q>(kind == 0   ? levels.qmax
                               : kind == 1 ? levels.qmin
                               : kind == 2 ? (i % 2 == 0 ? levels.qmin : levels.qmax)
                                           : random.integer(levels.qmin, levels.qmax)));
  }
  return q;
}

constexpr std::size_t residual_gap = 3;

template <class A, class W>
struct product_case {
  std::size_t m, n, k, group_size, groups;
  std::vector<A> lhs;
  std::vector<W> rhs;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
  std::vector<float> lhs_scales, bias, residual;
  std::vector<std::int32_t> lhs_zero_points;
  epilogue_options options;

  product_case(random_source& random, std::size_t m_, std::size_t n_, std::size_t k_,
               std::size_t group_size_)
      : m(m_),
        n(n_),
        k(k_),
        group_size(group_size_),
        groups(group_size == 0 ? (k == 0 ? 0 : 1) : (k + group_size - 1) / group_size),
        lhs(codes<A>(random, detent::full_grid<A>, m * k)),
        rhs(codes<W>(random, code_levels<W>, k * n)) {
    const bool has_zero_points = std::is_unsigned_v<W> || random.chance(50);
    for (std::size_t i = 0; i < groups * n; ++i) {
      scales.push_back(random.real(0.001F, 0.1F));
      zero_points.push_back(
          has_zero_points ? random.integer(code_levels<W>.qmin, code_levels<W>.qmax) : 0);
    }
    const auto any_zero_point = [&] {
      return random.integer(detent::full_grid<A>.qmin, detent::full_grid<A>.qmax);
    };
    options.lhs_scale = random.real(0.001F, 0.1F);
    options.lhs_zero_point = any_zero_point();
    if (random.chance(50)) {
      options.lower = random.real(-5.0F, 1.0F);
      options.upper = random.real(1.0F, 5.0F);
    }
    for (std::size_t i = 0; i < m && random.chance(90); ++i) {
      lhs_zero_points.push_back(any_zero_point());
    }
    lhs_zero_points.resize(lhs_zero_points.size() == m ? m : 0);
    if (random.chance(60)) {
      lhs_scales = random.reals(m, 0.001F, 0.1F);
    }
    if (random.chance(60)) {
      bias = random.reals(n, -3.0F, 3.0F);
    }
    if (random.chance(60)) {
      residual = some_residual(random);
    }
  }
  /// All parameters, in vectors or in memory that nothing may be read beyond.
  [[nodiscard]] epilogue_options all_options(std::span<const std::int32_t> row_zero_points,
                                             std::span<const float> row_scales,
                                             std::span<const float> biases,
                                             std::span<const float> residuals) const {
    epilogue_options o = options;
    o.lhs_zero_points = row_zero_points;
    o.lhs_scales = row_scales;
    o.bias = biases;
    if (!residuals.empty()) {
      o.residual = {residuals.data(), m, n, static_cast<std::ptrdiff_t>(n + residual_gap)};
    }
    return o;
  }
  /// Floats of a residual whose rows are residual_gap apart; nothing follows the last one.
  [[nodiscard]] std::vector<float> some_residual(random_source& random) const {
    return random.reals(m == 0 ? 0 : m * (n + residual_gap) - residual_gap, -3.0F, 3.0F);
  }
  [[nodiscard]] detent::packed_int4_weights pack() const {
    return detent::pack_int4_weights(matrix_view<const W>(rhs.data(), k, n),
                                     {.group_size = group_size,
                                      .scales = {scales.data(), groups, n},
                                      .zero_points = {zero_points.data(), groups, n}});
  }
  [[nodiscard]] std::vector<float> expected() const {
    std::vector<float> all;
    const auto stride = static_cast<std::ptrdiff_t>(n);
    for (std::size_t i = 0; i < m; ++i) {
      const float scale = lhs_scales.empty() ? options.lhs_scale : lhs_scales[i];
      for (std::size_t j = 0; j < n; ++j) {
        const float real = detent::reference::grouped_dot(
            lhs.data() + i * k, test::column_of(rhs, j), stride, k,
            group_size == 0 ? (std::max)(k, std::size_t{1}) : group_size,
            lhs_zero_points.empty() ? options.lhs_zero_point : lhs_zero_points[i],
            test::column_of(scales, j), test::column_of(zero_points, j), stride);
        float x = std::fma(real, scale, bias.empty() ? 0.0F : bias[j]);
        if (!residual.empty()) {
          x += residual[i * (n + residual_gap) + j];
        }
        all.push_back(detent::reference::clamp(x, options.lower, options.upper));
      }
    }
    return all;
  }
  void check(const detent::parallel_for& parallel = {}) const {
    INFO("m ", m, " n ", n, " k ", k, " groups of ", group_size);
    const std::vector<float> right = expected();
    const detent::packed_int4_weights weights = pack();
    test::guarded_memory lhs_memory(m * k + 1);
    test::guarded_memory out_memory(m * n * sizeof(float) + 1);
    const std::span<A> a = lhs_memory.back<A>(m * k);
    const std::span<float> c = out_memory.back<float>(m * n);
    std::copy(lhs.begin(), lhs.end(), a.begin());
    const test::guarded_copy row_zero_points(lhs_zero_points);
    const test::guarded_copy row_scales(lhs_scales);
    const test::guarded_copy biases(bias);
    const test::guarded_copy residuals(residual);
    const epilogue_options o = all_options(row_zero_points.values(), row_scales.values(),
                                           biases.values(), residuals.values());
    for_each_target([&] {
      out_memory.repaint();
      detent::gemm(matrix_view<A>(a.data(), m, k), weights, matrix_view<float>(c.data(), m, n), o,
                   parallel);
      CHECK(difference(c, right) == "");
      CHECK(out_memory.intact_around(c));
    });
  }
};

constexpr std::size_t group_sizes[] = {0, 8, 16, 32, 64, 128};

}  // namespace

TEST_CASE_TEMPLATE("4-bit weights: every tail and group size", Sides,
                   sides<std::uint8_t, std::int8_t>, sides<std::int8_t, std::int8_t>,
                   sides<std::uint8_t, std::uint8_t>, sides<std::int8_t, std::uint8_t>) {
  random_source random(71);
  INFO("seed ", random.seed());
  using case_type = product_case<typename Sides::A, typename Sides::W>;
  for (std::size_t i = 0; i <= 70; ++i) {
    const auto size = [&] { return random.size(1, 70); };
    case_type(random, random.size(1, 33), i, size(), group_sizes[i % 6]).check();
    case_type(random, random.size(1, 33), size(), i, group_sizes[(i + 1) % 6]).check();
    case_type(random, i % 34, size(), size(), group_sizes[(i + 2) % 6]).check();
  }
  for (const std::size_t k : {255U, 256U, 257U, 1000U}) {
    for (const std::size_t group_size : group_sizes) {
      case_type(random, 9, 18, k, group_size).check();
      case_type(random, 33, 18, k, group_size).check();
    }
  }
}

TEST_CASE_TEMPLATE("4-bit weights: many rows, groups and depths around what is unpacked at a time",
                   Sides, sides<std::uint8_t, std::int8_t>, sides<std::int8_t, std::uint8_t>) {
  random_source random(75);
  INFO("seed ", random.seed());
  using case_type = product_case<typename Sides::A, typename Sides::W>;
  struct shape {
    std::size_t m, n, k, group_size;
  };
  // Rows around tiles, blocks and calls, columns around panels and strips.
  constexpr shape shapes[] = {
      {16, 16, 256, 0},    {17, 49, 257, 264},  {18, 80, 520, 256},  {31, 33, 769, 248},
      {32, 64, 512, 504},  {33, 65, 700, 0},    {47, 17, 511, 8},    {48, 15, 528, 24},
      {63, 34, 300, 296},  {64, 48, 2048, 0},   {65, 31, 2049, 128}, {66, 70, 2100, 2048},
      {70, 5, 2300, 2056}, {96, 36, 4100, 0},   {127, 20, 2047, 24}, {241, 18, 90, 32},
      {256, 32, 64, 64},   {257, 19, 130, 128}, {300, 1, 40, 16},    {500, 7, 12, 0}};
  for (const auto& [m, n, k, group_size] : shapes) {
    case_type(random, m, n, k, group_size).check();
  }
}

TEST_CASE("4-bit weights: threads do not change a bit") {
  random_source random(72);
  INFO("seed ", random.seed());
  for (const std::size_t threads : {2U, 5U}) {
    detent::thread_pool pool(threads);
    const detent::parallel_for parallel = pool.parallel();
    product_case<std::int8_t, std::int8_t>(random, 1, 2100, 1100, 32).check(parallel);
    product_case<std::uint8_t, std::uint8_t>(random, 5, 700, 900, 128).check(parallel);
    product_case<std::uint8_t, std::int8_t>(random, 130, 100, 200, 0).check(parallel);
    product_case<std::int8_t, std::uint8_t>(random, 600, 130, 300, 128).check(parallel);
  }
}

TEST_CASE("4-bit weights: strided codes and parameters, one group, no parameters") {
  random_source random(73);
  INFO("seed ", random.seed());
  const std::size_t k = 40;
  const std::size_t n = 21;
  const auto w = codes<std::int8_t>(random, detent::int4::levels, k * n);  // n x k, transposed
  const auto a = random.integers<std::uint8_t>(3 * k);
  const std::vector<float> scales = random.reals(n * 2, 0.01F, 0.1F);  // n x groups
  std::vector<std::int8_t> straight(k * n);
  std::vector<float> straight_scales(n * 2);
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < k; ++i) {
      straight[i * n + j] = w[j * k + i];
    }
    straight_scales[j] = scales[2 * j];
    straight_scales[n + j] = scales[2 * j + 1];
  }
  const matrix_view<const std::uint8_t> lhs(a.data(), 3, k);
  std::vector<float> c(3 * n), right(3 * n), plain(3 * n);
  const auto packed = detent::pack_int4_weights(
      matrix_view<const std::int8_t>(w.data(), n, k).transposed(),
      {.group_size = 24, .scales = matrix_view<const float>(scales.data(), n, 2).transposed()});
  CHECK(packed.groups() == 2);
  CHECK(packed.group_size() == 24);
  detent::gemm(lhs, packed, matrix_view<float>(c.data(), 3, n));
  detent::gemm(
      lhs,
      detent::pack_int4_weights({straight.data(), k, n},
                                {.group_size = 24, .scales = {straight_scales.data(), 2, n}}),
      matrix_view<float>(right.data(), 3, n));
  CHECK(difference(c, right) == "");
  // Without parameters the product is that of the codes.
  detent::gemm(lhs, detent::pack_int4_weights({straight.data(), k, n}),
               matrix_view<float>(c.data(), 3, n));
  detent::gemm(lhs, detent::pack_weights({straight.data(), k, n}),
               matrix_view<float>(plain.data(), 3, n));
  CHECK(difference(c, plain) == "");
}

TEST_CASE("dynamic linear with 4-bit weights quantizes its rows and multiplies") {
  random_source random(74);
  INFO("seed ", random.seed());
  for (int round = 0; round < 20; ++round) {
    const std::size_t m = random.size(1, round < 15 ? 60 : 300);
    const std::size_t n = random.size(1, 90);
    const std::size_t k = random.size(1, 200);
    product_case<std::uint8_t, std::uint8_t> p(random, m, n, k, group_sizes[round % 6]);
    const std::vector<float> x = random.reals(m * k, -3.0F, 5.0F);
    const detent::packed_int4_weights weights = p.pack();
    detent::dynamic_linear_options o;
    o.per_row = random.chance(60);
    o.bias = p.bias;
    // By hand: parameters, codes, product.
    const matrix_view<const float> lhs(x.data(), m, k);
    p.lhs_scales.resize(m);
    p.lhs_zero_points.resize(m);
    for (std::size_t i = 0; i < m; ++i) {
      const auto r = o.per_row ? detent::reference::min_max(&x[i * k], k)
                               : detent::reference::min_max(x.data(), x.size());
      const detent::quant_params q =
          detent::reference::params_from_range({r.lower, r.upper}, o.lhs_scheme);
      p.lhs_scales[i] = q.scale;
      p.lhs_zero_points[i] = q.zero_point;
      for (std::size_t j = 0; j < k; ++j) {
        p.lhs[i * k + j] = static_cast<std::uint8_t>(
            detent::reference::quantize(x[i * k + j], q, o.lhs_scheme.levels));
      }
    }
    p.residual.clear();
    p.options.lower = o.lower;
    p.options.upper = o.upper;
    const std::vector<float> right = p.expected();
    for_each_target([&] {
      std::vector<float> out(m * n);
      detent::dynamic_linear(lhs, weights, matrix_view<float>(out.data(), m, n), o);
      CHECK(difference(out, right) == "");
    });
  }
}

TEST_CASE("4-bit weights: what does not fit is refused") {
  const std::vector<std::int8_t> w(32 * 2);
  const matrix_view<const std::int8_t> codes(w.data(), 32, 2);
  const std::vector<float> scales(4, 1.0F);
  const std::vector<float> bad = {1.0F, 0.0F, 1.0F, 1.0F};
  const std::vector<std::int32_t> zero_points = {0, 0, 0, 8};
  const auto fails = [&](error_kind kind, const char* text,
                         const detent::int4_weight_options& options) {
    test::check_error(kind, {"pack_int4_weights", text},
                      [&] { static_cast<void>(detent::pack_int4_weights(codes, options)); });
  };
  fails(error_kind::invalid_argument, "group size 12", {.group_size = 12});
  fails(error_kind::shape_mismatch, "scales are 2 x 2, not 4 x 2",
        {.group_size = 8, .scales = {scales.data(), 2, 2}});
  fails(error_kind::shape_mismatch, "zero points are 1 x 2, not 2 x 2",
        {.group_size = 16, .zero_points = {zero_points.data(), 1, 2}});
  fails(error_kind::invalid_argument, "scale 0", {.group_size = 16, .scales = {bad.data(), 2, 2}});
  fails(error_kind::invalid_argument, "zero point 8",
        {.group_size = 16, .zero_points = {zero_points.data(), 2, 2}});
  std::vector<std::int8_t> wrong = w;
  wrong[5] = -9;
  wrong[41] = 8;  // of a later row: the first one is named
  test::check_error(error_kind::invalid_argument, {"the code -9 of row 2, column 1"}, [&] {
    static_cast<void>(detent::pack_int4_weights({wrong.data(), 32, 2}));
  });
  const std::vector<std::uint8_t> sixteen(32 * 2, 16);
  test::check_error(error_kind::invalid_argument, {"the code 16", "0..15"}, [&] {
    static_cast<void>(detent::pack_int4_weights({sixteen.data(), 32, 2}));
  });
  const std::vector<std::int8_t> deep(600000);
  test::check_error(error_kind::overflow, {"groups of 600000"}, [&] {
    static_cast<void>(detent::pack_int4_weights({deep.data(), 600000, 1}));
  });
  const auto weights = detent::pack_int4_weights(codes);
  std::vector<float> out(6);
  const std::vector<std::uint8_t> lhs(3 * 31);
  test::check_error(error_kind::shape_mismatch, {"K is 31"}, [&] {
    detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), 3, 31), weights,
                 matrix_view<float>(out.data(), 3, 2));
  });
}

TEST_CASE("4-bit weights: the largest products of zero points and sums of columns") {
  // The largest sums of columns below 2^15, and the first ones above.
  for (const std::size_t k : {2184U, 2185U, 2192U, 4096U}) {
    for (const bool negative : {false, true}) {
      for (const std::size_t m : {1U, 15U, 16U, 33U, 70U}) {
        INFO("k ", k, " m ", m, " negative ", negative);
        const std::vector<std::uint8_t> lhs(m * k);
        const std::vector<std::uint8_t> w(k, negative ? 0 : 15);
        const std::int32_t zero_point = negative ? 15 : 0;
        const auto weights =
            detent::pack_int4_weights({w.data(), k, 1}, {.zero_points = {&zero_point, 1, 1}});
        const std::int64_t sum = (negative ? 255 : -255) * 15 * static_cast<std::int64_t>(k);
        const std::vector<float> right(m, static_cast<float>(sum));
        for_each_target([&] {
          std::vector<float> out(m);
          detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), m, k), weights,
                       matrix_view<float>(out.data(), m, 1), {.lhs_zero_point = 255});
          CHECK(difference(out, right) == "");
        });
      }
    }
  }
}

TEST_CASE("4-bit weights: the largest sums of a group") {
  constexpr std::size_t k = 561000;
  const std::vector<std::uint8_t> w(k, 15);
  const auto weights = detent::pack_int4_weights({w.data(), k, 1});
  const float right = static_cast<float>(255 * 15 * std::int64_t{k});
  for (const std::size_t m : {1U, 17U}) {
    const std::vector<std::uint8_t> lhs(m * k, 255);
    for_each_target([&] {
      std::vector<float> out(m);
      detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), m, k), weights,
                   matrix_view<float>(out.data(), m, 1));
      CHECK(difference(out, std::vector<float>(m, right)) == "");
    });
  }
}
