// SPDX-License-Identifier: BSD-3-Clause
// Products of signed and unsigned sides, parameters for each row, real biases and residuals, and
// left sides that are quantized on the way.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "matrix_column.hpp"
#include "oracle.hpp"
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

template <class Q>
std::int32_t any_code(random_source& random) {
  return random.integer(detent::full_grid<Q>.qmin, detent::full_grid<Q>.qmax);
}

template <class Q>
std::vector<Q> codes(random_source& random, std::size_t n) {
  switch (random.integer(0, 4)) {
    case 0:
      return std::vector<Q>(n, static_cast<Q>(detent::full_grid<Q>.qmax));
    case 1:
      return std::vector<Q>(n, static_cast<Q>(detent::full_grid<Q>.qmin));
    case 2: {
      std::vector<Q> q(n);
      for (std::size_t i = 0; i < n; ++i) {
        q[i] = static_cast<Q>(i % 2 == 0 ? detent::full_grid<Q>.qmin : detent::full_grid<Q>.qmax);
      }
      return q;
    }
    default:
      return random.integers<Q>(n);
  }
}

constexpr std::size_t residual_gap = 3;

/// A product with everything that an epilogue may have.
template <class A, class W>
struct product_case {
  std::size_t m, n, k;
  std::vector<A> lhs;
  std::vector<W> rhs;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points, weight_bias;
  std::vector<float> lhs_scales, bias, residual;
  std::vector<std::int32_t> lhs_zero_points;
  epilogue_options options;

  product_case(random_source& random, std::size_t m_, std::size_t n_, std::size_t k_)
      : product_case(random, m_, n_, k_, codes<A>(random, m_ * k_), codes<W>(random, k_ * n_)) {}
  product_case(random_source& random, std::size_t m_, std::size_t n_, std::size_t k_,
               std::vector<A> lhs_, std::vector<W> rhs_)
      : m(m_), n(n_), k(k_), lhs(std::move(lhs_)), rhs(std::move(rhs_)) {
    const bool has_zero_points = std::is_unsigned_v<W> || random.chance(50);
    for (std::size_t j = 0; j < n; ++j) {
      scales.push_back(random.real(0.001F, 0.1F));
      zero_points.push_back(has_zero_points ? any_code<W>(random) : 0);
      weight_bias.push_back(random.integer(-100000, 100000));
    }
    options.lhs_scale = random.real(0.001F, 0.1F);
    options.lhs_zero_point = any_code<A>(random);
    options.output = {random.real(0.05F, 5.0F), random.integer(0, 127)};
    if (random.chance(50)) {
      options.lower = random.real(-5.0F, 1.0F);
      options.upper = random.real(1.0F, 5.0F);
    }
    if (random.chance(50)) {
      for (std::size_t i = 0; i < m; ++i) {
        lhs_zero_points.push_back(any_code<A>(random));
      }
    }
  }
  void add_real_terms(random_source& random) {
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
  [[nodiscard]] detent::packed_weights pack() const {
    return detent::pack_weights(
        matrix_view<const W>(rhs.data(), k, n),
        {.scales = scales, .zero_points = zero_points, .bias = weight_bias});
  }
  template <class T>
  [[nodiscard]] std::vector<T> expected() const {
    std::vector<T> all;
    for (std::size_t i = 0; i < m; ++i) {
      epilogue_options o = options;
      o.lhs_zero_point = lhs_zero_points.empty() ? options.lhs_zero_point : lhs_zero_points[i];
      o.lhs_scale = lhs_scales.empty() ? options.lhs_scale : lhs_scales[i];
      for (std::size_t j = 0; j < n; ++j) {
        const std::int64_t acc = detent::reference::dot(
            lhs.data() + i * k, test::column_of(rhs, j), static_cast<std::ptrdiff_t>(n), k,
            o.lhs_zero_point, zero_points[j], weight_bias[j]);
        if constexpr (std::is_same_v<T, float> || std::is_same_v<T, detent::bfloat16>) {
          float real = std::fma(static_cast<float>(static_cast<std::int32_t>(acc)),
                                o.lhs_scale * scales[j], bias.empty() ? 0.0F : bias[j]);
          if (!residual.empty()) {
            real += residual[i * (n + residual_gap) + j];
          }
          real = detent::reference::clamp(real, o.lower, o.upper);
          if constexpr (std::is_same_v<T, float>) {
            all.push_back(real);
          } else {
            all.push_back(detent::round_to<T>(real));
          }
        } else {
          all.push_back(test::stored_value<T>(acc, scales[j], o));
        }
      }
    }
    return all;
  }
  template <class T>
  void check(const detent::parallel_for& parallel = {}) const {
    const std::vector<T> right = expected<T>();
    const detent::packed_weights weights = pack();
    INFO("m ", m, " n ", n, " k ", k, " output of ", sizeof(T), " bytes");
    test::guarded_memory lhs_memory(m * k + 1);
    test::guarded_memory out_memory(m * n * sizeof(T) + 1);
    const std::span<A> a = lhs_memory.back<A>(m * k);
    const std::span<T> c = out_memory.back<T>(m * n);
    std::copy(lhs.begin(), lhs.end(), a.begin());
    const test::guarded_copy row_zero_points(lhs_zero_points);
    const test::guarded_copy row_scales(lhs_scales);
    const test::guarded_copy biases(bias);
    const test::guarded_copy residuals(residual);
    const epilogue_options o = all_options(row_zero_points.values(), row_scales.values(),
                                           biases.values(), residuals.values());
    for_each_target([&] {
      out_memory.repaint();
      detent::gemm(matrix_view<A>(a.data(), m, k), weights, matrix_view<T>(c.data(), m, n), o,
                   parallel);
      CHECK(difference(c, right) == "");
      CHECK(out_memory.intact_around(c));
    });
  }
  void check_all(random_source& random, const detent::parallel_for& parallel = {}) {
    check<std::int32_t>(parallel);
    check<std::uint8_t>(parallel);
    check<std::int8_t>(parallel);
    add_real_terms(random);
    check<float>(parallel);
    check<detent::bfloat16>(parallel);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("gemm: signed and unsigned sides, every tail", Sides,
                   sides<std::uint8_t, std::int8_t>, sides<std::int8_t, std::int8_t>,
                   sides<std::uint8_t, std::uint8_t>, sides<std::int8_t, std::uint8_t>) {
  random_source random(1);
  INFO("seed ", random.seed());
  using case_type = product_case<typename Sides::A, typename Sides::W>;
  for (std::size_t i = 1; i <= 70; ++i) {
    case_type(random, random.size(1, 33), i, random.size(1, 70)).check_all(random);
    case_type(random, random.size(1, 33), random.size(1, 70), i).check_all(random);
    case_type(random, 1 + i % 60, random.size(1, 70), random.size(1, 70)).check_all(random);
  }
  for (const std::size_t k : {255U, 256U, 257U, 513U, 1025U}) {
    case_type(random, 5, 18, k).check_all(random);
  }
}

TEST_CASE_TEMPLATE("gemm: extremes of both sides, every pair of them", Sides,
                   sides<std::uint8_t, std::int8_t>, sides<std::int8_t, std::int8_t>,
                   sides<std::uint8_t, std::uint8_t>, sides<std::int8_t, std::uint8_t>) {
  using A = typename Sides::A;
  using W = typename Sides::W;
  random_source random(6);
  INFO("seed ", random.seed());
  // Of each side: all of it the largest or the smallest code, or one after the other along k.
  const auto extremes = []<class Q>(int kind, std::size_t rows, std::size_t columns, bool by_rows,
                                    std::type_identity<Q>) {
    constexpr detent::grid levels = detent::full_grid<Q>;
    std::vector<Q> q;
    for (std::size_t i = 0; i < rows * columns; ++i) {
      const std::size_t k = by_rows ? i / columns : i % columns;
      q.push_back(
          static_cast<Q>(kind == 0 || (kind == 2 && k % 2 == 0) ? levels.qmax : levels.qmin));
    }
    return q;
  };
  constexpr std::size_t shapes[][2] = {{1, 70}, {6, 17}, {33, 33}};
  for (const std::size_t k : {1U, 3U, 64U, 70U, 255U, 256U, 257U}) {
    for (int kinds = 0; kinds < 9; ++kinds) {
      for (const auto& [m, n] : shapes) {
        INFO("kinds ", kinds);
        product_case<A, W>(random, m, n, k,
                           extremes(kinds / 3, m, k, false, std::type_identity<A>{}),
                           extremes(kinds % 3, k, n, true, std::type_identity<W>{}))
            .check_all(random);
      }
    }
  }
}

TEST_CASE("gemm: parameters of rows and residuals do not depend on threads") {
  random_source random(2);
  INFO("seed ", random.seed());
  for (const std::size_t threads : {1U, 2U, 5U}) {
    detent::thread_pool pool(threads);
    for (int round = 0; round < 6; ++round) {
      product_case<std::int8_t, std::int8_t>(random, random.size(90, 200), 19, 33)
          .check_all(random, pool.parallel());
    }
  }
}

TEST_CASE("gemm: NaN, infinities and overflow on the way to bfloat16") {
  // One row of ones; the residual decides.
  const std::vector<float> special = {std::numeric_limits<float>::quiet_NaN(),
                                      -std::numeric_limits<float>::quiet_NaN(),
                                      std::numeric_limits<float>::infinity(),
                                      -std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::max(),
                                      -std::numeric_limits<float>::max(),
                                      1.0F + 0x1p-8F,      // a tie: to even
                                      1.0F + 3 * 0x1p-8F,  // the other one
                                      0x1.FFFFFEp-126F,
                                      0x1p-149F,
                                      -0.0F};
  const std::size_t n = special.size();
  const std::vector<std::int8_t> w(n);
  const auto weights = detent::pack_weights({w.data(), 1, n});
  const std::uint8_t one = 1;
  for_each_target([&] {
    std::vector<detent::bfloat16> out(n);
    detent::gemm(matrix_view<const std::uint8_t>(&one, 1, 1), weights,
                 matrix_view<detent::bfloat16>(out.data(), 1, n),
                 {.residual = {special.data(), 1, n}});
    for (std::size_t j = 0; j < n; ++j) {
      INFO("value ", special[j]);
      CHECK(out[j].bits == detent::round_to<detent::bfloat16>(0.0F + special[j]).bits);
    }
  });
}

TEST_CASE("few rows are shared out by their columns") {
  random_source random(5);
  INFO("seed ", random.seed());
  std::size_t tasks = 0;
  // Backwards, so that nothing may depend on the order.
  const detent::parallel_for parallel = [&](std::size_t count, const auto& body) {
    tasks = count;
    for (std::size_t i = count; i-- > 0;) {
      body(i);
    }
  };
  const std::size_t shapes[][3] = {{1, 4100, 600}, {3, 1500, 700}, {40, 333, 250}, {130, 200, 90}};
  for (const auto& [m, n, k] : shapes) {
    product_case<std::int8_t, std::uint8_t>(random, m, n, k).check_all(random, parallel);
    CHECK(tasks > 1);
    product_case<std::uint8_t, std::int8_t>(random, m, n, k).check_all(random, parallel);
    CHECK(tasks > 1);
  }
}

TEST_CASE("gemm: the residual may be the output") {
  random_source random(3);
  INFO("seed ", random.seed());
  product_case<std::uint8_t, std::int8_t> p(random, 50, 37, 20);
  p.bias.clear(), p.lhs_zero_points.clear();
  const std::vector<float> before = random.reals(50 * 37, -2.0F, 2.0F);
  const detent::packed_weights weights = p.pack();
  std::vector<float> right(before.size());
  epilogue_options o = p.all_options(p.lhs_zero_points, p.lhs_scales, p.bias, {});
  o.residual = {before.data(), 50, 37};
  const matrix_view<const std::uint8_t> lhs(p.lhs.data(), 50, 20);
  detent::gemm(lhs, weights, matrix_view<float>(right.data(), 50, 37), o);
  for_each_target([&] {
    std::vector<float> out = before;
    o.residual = {out.data(), 50, 37};
    detent::gemm(lhs, weights, matrix_view<float>(out.data(), 50, 37), o);
    CHECK(difference(out, right) == "");
  });
}

TEST_CASE("gemm: what does not fit the rows is refused") {
  const std::vector<std::uint8_t> lhs(6);
  const std::vector<std::int8_t> w(6);
  const auto weights = detent::pack_weights({w.data(), 3, 2});
  std::vector<float> out(4);
  std::vector<std::int32_t> sums(4);
  const matrix_view<const std::uint8_t> a(lhs.data(), 2, 3);
  const matrix_view<float> to_float(out.data(), 2, 2);
  const matrix_view<std::int32_t> to_sums(sums.data(), 2, 2);
  const std::vector<float> one(1, 1.0F), two(2, 1.0F), bad = {1.0F, 0.0F};
  const std::vector<std::int32_t> zero_points = {0, 256}, few(1);
  const auto fails = [&](error_kind kind, const char* text, auto view, const epilogue_options& o) {
    test::check_error(kind, {text}, [&] { detent::gemm(a, weights, view, o); });
  };
  fails(error_kind::shape_mismatch, "1 scales for 2 rows", to_float, {.lhs_scales = one});
  fails(error_kind::shape_mismatch, "1 zero points for 2 rows", to_float, {.lhs_zero_points = few});
  fails(error_kind::shape_mismatch, "1 biases for 2 columns", to_float, {.bias = one});
  fails(error_kind::shape_mismatch, "the residual is 1 x 2", to_float,
        {.residual = {two.data(), 1, 2}});
  fails(error_kind::unsupported, "row stride is -2", to_float,
        {.residual = {two.data(), 2, 2, -2}});
  fails(error_kind::invalid_argument, "scale 0", to_float, {.lhs_scales = bad});
  fails(error_kind::invalid_argument, "zero point 256", to_float, {.lhs_zero_points = zero_points});
  fails(error_kind::unsupported, "scales of rows", to_sums, {.lhs_scales = two});
  fails(error_kind::unsupported, "real biases", to_sums, {.bias = two});
  const std::vector<std::int8_t> signed_lhs(6);
  test::check_error(error_kind::invalid_argument, {"zero point 200"}, [&] {
    detent::gemm(matrix_view<const std::int8_t>(signed_lhs.data(), 2, 3), weights, to_float,
                 {.lhs_zero_point = 200});
  });
}

// ------------------------------------------------------------------------------- dynamic linear

namespace {

template <class F>
std::vector<F> some_reals(random_source& random, std::size_t n) {
  std::vector<F> x;
  for (std::size_t i = 0; i < n; ++i) {
    const float v = random.chance(2)    ? std::numeric_limits<float>::quiet_NaN()
                    : random.chance(10) ? 0.0F
                                        : random.real(-3.0F, 5.0F);
    if constexpr (std::is_same_v<F, float>) {
      x.push_back(v);
    } else {
      x.push_back(detent::round_to<F>(v));
    }
  }
  return x;
}

template <class F>
float as_float(F x) {
  if constexpr (std::is_same_v<F, float>) {
    return x;
  } else {
    return detent::to_float(x);
  }
}

template <class F>
void check_dynamic_linear(random_source& random, std::size_t m, std::size_t n, std::size_t k,
                          const detent::parallel_for& parallel = {}) {
  const std::size_t lda = k + random.size(0, 3);
  const std::vector<F> x = some_reals<F>(random, m * lda);
  const std::vector<std::int8_t> w = random.integers<std::int8_t>(k * n);
  const std::vector<float> scales = random.reals(n, 0.001F, 0.1F);
  std::vector<std::int32_t> zero_points(n);
  if (random.chance(50)) {
    zero_points = std::vector<std::int32_t>(n, random.integer(-128, 127));
  }
  detent::dynamic_linear_options o;
  o.per_row = random.chance(60);
  o.lhs_scheme =
      random.chance(50) ? detent::asymmetric<std::uint8_t> : detent::quant_scheme{{0, 127}, false};
  const std::vector<float> bias = random.reals(n, -1.0F, 1.0F);
  const std::vector<float> residual = random.reals(m * n, -1.0F, 1.0F);
  if (random.chance(50)) {
    o.bias = bias;
  }
  if (random.chance(30)) {
    o.residual = {residual.data(), m, n};
  }
  if (random.chance(30)) {
    o.lower = 0.0F;
  }
  // The formula, step by step.
  std::vector<float> right(m * n);
  const auto params_of = [&](std::size_t first, std::size_t end) {
    std::vector<float> values;
    for (std::size_t i = first; i < end; ++i) {
      for (std::size_t j = 0; j < k; ++j) {
        values.push_back(as_float(x[i * lda + j]));
      }
    }
    const auto r = detent::reference::min_max(values.data(), values.size());
    return detent::reference::params_from_range(
        r.count_nan < values.size() ? detent::value_range{r.lower, r.upper} : detent::value_range{},
        o.lhs_scheme);
  };
  for (std::size_t i = 0; i < m; ++i) {
    const detent::quant_params p = o.per_row ? params_of(i, i + 1) : params_of(0, m);
    std::vector<std::uint8_t> q(k);
    for (std::size_t j = 0; j < k; ++j) {
      q[j] = static_cast<std::uint8_t>(
          detent::reference::quantize(as_float(x[i * lda + j]), p, o.lhs_scheme.levels));
    }
    for (std::size_t j = 0; j < n; ++j) {
      const std::int64_t acc =
          detent::reference::dot(q.data(), test::column_of(w, j), static_cast<std::ptrdiff_t>(n), k,
                                 p.zero_point, zero_points[j], 0);
      float real =
          std::fma(static_cast<float>(acc), p.scale * scales[j], o.bias.empty() ? 0.0F : bias[j]);
      if (o.residual.data != nullptr) {
        real += residual[i * n + j];
      }
      right[i * n + j] = detent::reference::clamp(real, o.lower, o.upper);
    }
  }
  const auto weights =
      detent::pack_weights({w.data(), k, n}, {.scales = scales, .zero_points = zero_points});
  INFO("m ", m, " n ", n, " k ", k, " per row ", o.per_row);
  for_each_target([&] {
    std::vector<float> out(m * n);
    detent::dynamic_linear(matrix_view<const F>(x.data(), m, k, static_cast<std::ptrdiff_t>(lda)),
                           weights, matrix_view<float>(out.data(), m, n), o, parallel);
    CHECK(difference(out, right) == "");
  });
}

}  // namespace

TEST_CASE_TEMPLATE("dynamic linear equals its steps", F, float, detent::bfloat16, detent::float16) {
  random_source random(4);
  INFO("seed ", random.seed());
  for (std::size_t m = 1; m <= 50; ++m) {
    check_dynamic_linear<F>(random, m, random.size(1, 40), random.size(1, 70));
  }
  check_dynamic_linear<F>(random, 3, 5, 0);
  detent::thread_pool pool(3);
  for (int round = 0; round < 10; ++round) {
    check_dynamic_linear<F>(random, random.size(48, 200), 17, 40, pool.parallel());
  }
}

TEST_CASE("dynamic linear: few rows are quantized once and shared out by their columns") {
  random_source random(6);
  INFO("seed ", random.seed());
  std::size_t tasks = 0;
  const detent::parallel_for parallel = [&](std::size_t count, const auto& body) {
    tasks = count;
    for (std::size_t i = count; i-- > 0;) {
      body(i);
    }
  };
  check_dynamic_linear<float>(random, 1, 3000, 800, parallel);
  CHECK(tasks > 1);
  check_dynamic_linear<detent::bfloat16>(random, 7, 700, 500, parallel);
  CHECK(tasks > 1);
}

TEST_CASE("dynamic linear: a thread that waits may do another one meanwhile") {
  random_source random(7);
  const std::size_t m = 8;
  const std::size_t n = 2048;
  const auto x = random.reals(2 * m * n, -3.0F, 5.0F);
  const auto w = random.integers<std::int8_t>(n * n);
  const auto weights = detent::pack_weights({w.data(), n, n});
  const matrix_view<const float> first(x.data(), m, n);
  const matrix_view<const float> second(x.data() + m * n, m, n);
  std::vector<float> alone(m * n), together(m * n), other(m * n);
  detent::dynamic_linear(first, weights, matrix_view<float>(alone.data(), m, n));
  detent::dynamic_linear(first, weights, matrix_view<float>(together.data(), m, n), {},
                         [&](std::size_t count, const auto& body) {
                           REQUIRE(count > 1);
                           for (std::size_t i = 0; i < count; ++i) {
                             body(i);
                             detent::dynamic_linear(second, weights,
                                                    matrix_view<float>(other.data(), m, n));
                           }
                         });
  CHECK(difference(together, alone) == "");
}

TEST_CASE("dynamic linear: infinities and shapes that do not fit are refused") {
  const std::vector<std::int8_t> w(6);
  const auto weights = detent::pack_weights({w.data(), 3, 2});
  std::vector<float> x = {1.0F, std::numeric_limits<float>::infinity(), 0.0F};
  std::vector<float> out(2);
  for (const bool per_row : {false, true}) {
    test::check_error(error_kind::invalid_argument, {"is not finite"}, [&] {
      detent::dynamic_linear(matrix_view<const float>(x.data(), 1, 3), weights,
                             matrix_view<float>(out.data(), 1, 2), {.per_row = per_row});
    });
  }
  test::check_error(error_kind::shape_mismatch, {"K is 2"}, [&] {
    detent::dynamic_linear(matrix_view<const float>(x.data(), 1, 2), weights,
                           matrix_view<float>(out.data(), 1, 2));
  });
  test::check_error(error_kind::invalid_argument, {"grid"}, [&] {
    detent::dynamic_linear(matrix_view<const float>(x.data(), 1, 3), weights,
                           matrix_view<float>(out.data(), 1, 2),
                           {.lhs_scheme = detent::asymmetric<std::int8_t>});
  });
}
