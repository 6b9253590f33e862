// SPDX-License-Identifier: BSD-3-Clause
// Sums beyond 32 bits, and 32-bit outputs that accumulate: exact or an error, on every target.
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <functional>
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
#include "matrix_column.hpp"
#include "random.hpp"

namespace {

using detent::epilogue_options;
using detent::error_kind;
using detent::matrix_view;
using test::difference;
using test::for_each_target;
using test::random_source;

constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t smallest = std::numeric_limits<std::int32_t>::min();

bool fits(std::int64_t sum) { return sum >= smallest && sum <= largest; }

template <class Q>
std::int32_t any_code(random_source& random) {
  return random.integer(detent::full_grid<Q>.qmin, detent::full_grid<Q>.qmax);
}

/// Codes that lead far: near one end of the type, or near either end of it.
template <class Q>
std::vector<Q> codes_at_an_end(random_source& random, std::size_t n, bool upper) {
  std::vector<Q> q(n);
  for (Q& code : q) {
    const std::int32_t distance = random.integer(0, 20);
    code = static_cast<Q>(upper ? detent::full_grid<Q>.qmax - distance
                                : detent::full_grid<Q>.qmin + distance);
  }
  return q;
}

/// A product and its sums, computed by plain loops in 64 bits.
template <class A, class W>
struct long_product {
  std::size_t m, n, k;
  std::vector<A> lhs;
  std::vector<W> rhs;
  std::vector<float> scales, lhs_scales, bias, residual;
  std::vector<std::int32_t> zero_points, lhs_zero_points, weight_bias;
  epilogue_options options;
  std::vector<std::int64_t> sums;

  long_product(random_source& random, std::size_t m_, std::size_t n_, std::size_t k_)
      : m(m_), n(n_), k(k_) {
    lhs = codes_at_an_end<A>(random, m * k, random.chance(50));
    rhs = codes_at_an_end<W>(random, k * n, random.chance(50));
    // Columns of other weights: sums of all sizes side by side.
    for (std::size_t j = 0; j < n; ++j) {
      if (random.chance(30)) {
        for (std::size_t i = 0; i < k; ++i) {
          rhs[i * n + j] = static_cast<W>(random.bits());
        }
      }
      scales.push_back(random.real(0.001F, 0.1F));
      zero_points.push_back(std::is_unsigned_v<W> || random.chance(50) ? any_code<W>(random) : 0);
      weight_bias.push_back(random.integer(std::numeric_limits<std::int32_t>::min(),
                                           std::numeric_limits<std::int32_t>::max()));
    }
    weight_bias[random.size(0, n - 1)] = std::numeric_limits<std::int32_t>::min();
    options.lhs_scale = random.real(0.001F, 0.1F);
    options.lhs_zero_point = any_code<A>(random);
    if (random.chance(50)) {
      for (std::size_t i = 0; i < m; ++i) {
        lhs_zero_points.push_back(any_code<A>(random));
      }
    }
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        std::int64_t sum = weight_bias[j];
        for (std::size_t at = 0; at < k; ++at) {
          sum += (std::int64_t{lhs[i * k + at]} - lhs_zero_point(i)) *
                 (std::int64_t{rhs[at * n + j]} - zero_points[j]);
        }
        sums.push_back(sum);
      }
    }
  }

  [[nodiscard]] std::int32_t lhs_zero_point(std::size_t row) const {
    return lhs_zero_points.empty() ? options.lhs_zero_point : lhs_zero_points[row];
  }
  [[nodiscard]] matrix_view<const A> left() const { return {lhs.data(), m, k}; }
  [[nodiscard]] detent::packed_weights pack() const {
    return detent::pack_weights(
        matrix_view<const W>(rhs.data(), k, n),
        {.scales = scales, .zero_points = zero_points, .bias = weight_bias});
  }
  void add_real_terms(random_source& random) {
    lhs_scales = random.chance(50) ? random.reals(m, 0.001F, 0.1F) : std::vector<float>();
    bias = random.chance(50) ? random.reals(n, -1e8F, 1e8F) : std::vector<float>();
    residual = random.chance(50) ? random.reals(m * n, -1e8F, 1e8F) : std::vector<float>();
    if (random.chance(50)) {
      options.lower = random.real(-1e9F, 0.0F);
      options.upper = random.real(0.0F, 1e9F);
    }
  }
  [[nodiscard]] epilogue_options all_options() const {
    epilogue_options o = options;
    o.lhs_zero_points = lhs_zero_points;
    o.lhs_scales = lhs_scales;
    o.bias = bias;
    if (!residual.empty()) {
      o.residual = {residual.data(), m, n};
    }
    return o;
  }

  template <class T>
  [[nodiscard]] T expected(std::size_t i, std::size_t j, const epilogue_options& o) const {
    const std::int64_t sum = sums[i * n + j];
    if constexpr (std::same_as<T, float> || std::same_as<T, detent::bfloat16>) {
      const float multiplier = (lhs_scales.empty() ? o.lhs_scale : lhs_scales[i]) * scales[j];
      float real = std::fma(static_cast<float>(sum), multiplier, bias.empty() ? 0.0F : bias[j]);
      if (!residual.empty()) {
        real += residual[i * n + j];
      }
      real = std::min(std::max(real, o.lower), o.upper);
      if constexpr (std::same_as<T, float>) {
        return real;
      } else {
        return detent::round_to<T>(real);
      }
    } else {
      const float multiplier = o.lhs_scale * scales[j] / o.output.scale;
      const auto steps = static_cast<double>(static_cast<float>(sum) * multiplier);
      const double q = std::nearbyint(steps) + o.output.zero_point;
      return static_cast<T>(std::clamp(q, static_cast<double>(detent::full_grid<T>.qmin),
                                       static_cast<double>(detent::full_grid<T>.qmax)));
    }
  }
  template <class T>
  void check(const detent::packed_weights& weights, const epilogue_options& o,
             const detent::parallel_for& parallel) const {
    std::vector<T> right;
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        right.push_back(expected<T>(i, j, o));
      }
    }
    INFO("m ", m, " n ", n, " k ", k, " output of ", sizeof(T), " bytes");
    for_each_target([&] {
      std::vector<T> out(m * n);
      detent::gemm(left(), weights, matrix_view<T>(out.data(), m, n), o, parallel);
      CHECK(difference(out, right) == "");
    });
  }
  /// Integers: those that fit are there, the first of the others is the error.
  void check_sums(const detent::packed_weights& weights, const detent::parallel_for& parallel) {
    const auto misfit = std::find_if_not(sums.begin(), sums.end(), fits) - sums.begin();
    constexpr std::int32_t before = 42;
    std::vector<std::int32_t> right;
    for (const std::int64_t sum : sums) {
      right.push_back(fits(sum) ? static_cast<std::int32_t>(sum) : before);
    }
    for_each_target([&] {
      std::vector<std::int32_t> out(m * n, before);
      const auto run = [&] {
        detent::gemm(left(), weights, matrix_view<std::int32_t>(out.data(), m, n), all_options(),
                     parallel);
      };
      if (static_cast<std::size_t>(misfit) == sums.size()) {
        run();
      } else {
        const auto at = static_cast<std::size_t>(misfit);
        test::check_error(error_kind::overflow,
                          {"the sum " + std::to_string(sums[at]) + " of row " +
                           std::to_string(at / n) + ", column " + std::to_string(at % n)},
                          run);
      }
      CHECK(difference(out, right) == "");
    });
  }
  void check_all(random_source& random, const detent::parallel_for& parallel = {}) {
    const detent::packed_weights weights = pack();
    REQUIRE(!weights.certificate().fits_s32());
    lhs_scales.clear();
    bias.clear();
    residual.clear();
    check_sums(weights, parallel);
    epilogue_options o = all_options();
    // So that the largest of the outputs are somewhere in the grid, and some are outside.
    std::int64_t extent = 1;
    for (const std::int64_t sum : sums) {
      extent = std::max(extent, std::abs(sum));
    }
    o.output.scale = o.lhs_scale * 0.05F * static_cast<float>(extent) / random.real(50.0F, 300.0F);
    o.output.zero_point = random.integer(0, 127);
    check<std::uint8_t>(weights, o, parallel);
    check<std::int8_t>(weights, o, parallel);
    add_real_terms(random);
    check<float>(weights, all_options(), parallel);
    check<detent::bfloat16>(weights, all_options(), parallel);
  }
};

template <class A_, class W_>
struct sides {
  using A = A_;
  using W = W_;
};
#define ALL_SIDES                                                    \
  sides<std::uint8_t, std::int8_t>, sides<std::int8_t, std::int8_t>, \
      sides<std::uint8_t, std::uint8_t>, sides<std::int8_t, std::uint8_t>

/// Runs tasks backwards, so that nothing may depend on their order.
void run_backwards(std::size_t count, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = count; i-- > 0;) {
    body(i);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("gemm: sums beyond 32 bits because K is large", Sides, ALL_SIDES) {
  random_source random(31);
  INFO("seed ", random.seed());
  using case_type = long_product<typename Sides::A, typename Sides::W>;
  constexpr std::size_t slice = detent::packed_weights::slice_depth;
  for (const std::size_t k : {slice - 1, slice, slice + 1, slice + 2, slice + 3, slice + 4,
                              slice + 70, 2 * slice, 2 * slice + 15, 3 * slice + 1}) {
    case_type(random, random.size(1, 8), random.size(1, 20), k).check_all(random);
  }
  case_type(random, 49, 3, slice + 9).check_all(random);
  case_type(random, 2, 131, slice + 9).check_all(random);
}

TEST_CASE_TEMPLATE("gemm: sums beyond 32 bits because of their biases", Sides, ALL_SIDES) {
  random_source random(32);
  INFO("seed ", random.seed());
  using case_type = long_product<typename Sides::A, typename Sides::W>;
  for (int round = 0; round < 12; ++round) {
    case_type p(random, random.size(1, 70), random.size(1, 150), random.size(0, 300));
    p.check_all(random);
  }
}

TEST_CASE("gemm: sums beyond 32 bits do not depend on threads") {
  random_source random(33);
  INFO("seed ", random.seed());
  constexpr std::size_t k = detent::packed_weights::slice_depth + 21;
  detent::thread_pool pool(3);
  long_product<std::uint8_t, std::int8_t> p(random, 70, 5, k);
  p.check_all(random, pool.parallel());
  p.check_all(random, &run_backwards);
  long_product<std::int8_t, std::uint8_t>(random, 1, 200, k).check_all(random, &run_backwards);
  long_product<std::int8_t, std::uint8_t>(random, 3, 150, k).check_all(random, pool.parallel());
}

TEST_CASE("gemm: the largest and the smallest sum that fit, and the next ones") {
  // The certificate speaks of the worst left side; what counts is the sum itself.
  const std::vector<std::uint8_t> lhs = {1, 0, 2, 255};
  const std::vector<std::int8_t> rhs = {1, -1};
  struct one {
    std::int32_t bias;
    std::size_t row;
    const char* sum;  // in column 0, or null if it fits
  };
  const auto max = std::numeric_limits<std::int32_t>::max();
  const auto min = std::numeric_limits<std::int32_t>::min();
  for (const one& o :
       {one{max - 1, 0, nullptr}, one{max, 0, "2147483648"}, one{max, 1, nullptr},  // 2 - 255
        one{min, 0, nullptr}, one{min + 253, 1, nullptr}, one{min + 252, 1, "-2147483649"},
        one{min, 1, "-2147483901"}}) {
    const auto weights = detent::pack_weights({rhs.data(), 2, 1}, {.bias = {&o.bias, 1}});
    REQUIRE(!weights.certificate().fits_s32());
    const matrix_view<const std::uint8_t> row(lhs.data() + 2 * o.row, 1, 2);
    const std::int64_t sum = std::int64_t{o.bias} + (o.row == 0 ? 1 : -253);
    CHECK(fits(sum) == (o.sum == nullptr));
    for_each_target([&] {
      std::int32_t out = 42;
      const auto run = [&] { detent::gemm(row, weights, matrix_view<std::int32_t>(&out, 1, 1)); };
      if (o.sum == nullptr) {
        run();
        CHECK(out == sum);
      } else {
        test::check_error(error_kind::overflow, {"gemm: the sum", o.sum, "row 0, column 0"}, run);
        CHECK(out == 42);
      }
      float real = 0.0F;
      detent::gemm(row, weights, matrix_view<float>(&real, 1, 1));
      CHECK(real == static_cast<float>(sum));
    });
  }
}

TEST_CASE("gemm: a wide sum is rounded to float once") {
  // 2^32 + 2^8 + 1 lies just above a tie of floats. Rounded in parts, it would lie on it.
  constexpr std::size_t k = 66052;
  std::vector<std::uint8_t> lhs(k, 255);
  std::vector<std::int8_t> rhs(k, 127);
  const std::int32_t zero_point = -128;
  // What all but the last k make is a little less; the bias is the rest.
  const std::int64_t others = std::int64_t{255} * 255 * (k - 1);
  const std::int64_t wanted = (std::int64_t{1} << 32) + (1 << 8) + 1;
  lhs.back() = 0;
  const auto bias = static_cast<std::int32_t>(wanted - others);
  const auto weights = detent::pack_weights({rhs.data(), k, 1},
                                            {.zero_points = {&zero_point, 1}, .bias = {&bias, 1}});
  for_each_target([&] {
    float out = 0.0F;
    detent::gemm(matrix_view<const std::uint8_t>(lhs.data(), 1, k), weights,
                 matrix_view<float>(&out, 1, 1));
    CHECK(out == 4294967808.0F);  // 2^32 + 2^9
  });
}

TEST_CASE("dynamic linear: sums beyond 32 bits") {
  random_source random(34);
  INFO("seed ", random.seed());
  constexpr std::size_t m = 3;
  constexpr std::size_t n = 18;
  constexpr std::size_t k = detent::packed_weights::slice_depth + 20000;
  const std::vector<float> x = random.reals(m * k, 0.9F, 1.0F);
  const std::vector<std::int8_t> w = codes_at_an_end<std::int8_t>(random, k * n, false);
  const auto weights = detent::pack_weights({w.data(), k, n});
  REQUIRE(!weights.certificate().fits_s32());
  for (const bool per_row : {false, true}) {
    std::vector<float> right;
    for (std::size_t i = 0; i < m; ++i) {
      const auto [low, high] =
          per_row ? std::minmax_element(x.begin() + static_cast<std::ptrdiff_t>(i * k),
                                        x.begin() + static_cast<std::ptrdiff_t>((i + 1) * k))
                  : std::minmax_element(x.begin(), x.end());
      const detent::quant_params p =
          detent::reference::params_from_range({*low, *high}, detent::asymmetric<std::uint8_t>);
      std::vector<std::int64_t> distances;
      for (std::size_t at = 0; at < k; ++at) {
        distances.push_back(
            detent::reference::quantize(x[i * k + at], p, detent::full_grid<std::uint8_t>) -
            p.zero_point);
      }
      for (std::size_t j = 0; j < n; ++j) {
        std::int64_t sum = 0;
        for (std::size_t at = 0; at < k; ++at) {
          sum += distances[at] * w[at * n + j];
        }
        CHECK(!fits(sum));
        right.push_back(static_cast<float>(sum) * p.scale);
      }
    }
    for_each_target([&] {
      std::vector<float> out(m * n);
      detent::dynamic_linear(matrix_view<const float>(x.data(), m, k), weights,
                             matrix_view<float>(out.data(), m, n), {.per_row = per_row});
      CHECK(difference(out, right) == "");
    });
  }
}

TEST_CASE(
    "gemm_batch: the first product whose sums do not fit is the error, all others are there") {
  const std::vector<std::uint8_t> lhs = {1, 2};
  const std::vector<std::int8_t> rhs = {3, 4};
  const std::int32_t none = 0;
  const std::int32_t much = std::numeric_limits<std::int32_t>::max() - 5;
  const auto small = detent::pack_weights({rhs.data(), 2, 1}, {.bias = {&none, 1}});
  const auto large = detent::pack_weights({rhs.data(), 2, 1}, {.bias = {&much, 1}});
  using problem = detent::gemm_problem<std::uint8_t, detent::packed_weights, std::int32_t>;
  for_each_target([&] {
    std::vector<std::int32_t> out(3, 42);
    std::vector<problem> problems;
    for (std::size_t i = 0; i < 3; ++i) {
      problems.push_back(
          {{lhs.data(), 1, 2}, i == 1 ? &large : &small, {out.data() + i, 1, 1}, {}});
    }
    test::check_error(error_kind::overflow, {"the sum 2147483653"},
                      [&] { detent::gemm_batch(std::span<const problem>(problems)); });
    CHECK(out == std::vector<std::int32_t>{11, 42, 11});
  });
}

// ------------------------------------------------------------------------------------- addends

namespace {

/// Runs gemm with an addend of `size` magnitude, in place or not, and compares with plain sums.
template <class A>
void check_addend(random_source& random, std::size_t m, std::size_t n, std::size_t k,
                  std::int32_t size, const detent::parallel_for& parallel = {}) {
  const std::size_t padding = random.size(0, 3);
  const std::size_t stride = n + padding;
  const std::vector<A> lhs = random.integers<A>(m * k);
  const std::vector<std::int8_t> rhs = random.integers<std::int8_t>(k * n);
  std::vector<std::int32_t> addend(m * stride), zero_points(n), bias(n);
  for (std::int32_t& value : addend) {
    value = random.integer(-size, size);
  }
  for (std::size_t j = 0; j < n; ++j) {
    zero_points[j] = random.integer(-128, 127);
    bias[j] = random.integer(-1000, 1000);
  }
  const std::int32_t lhs_zero_point = any_code<A>(random);
  std::vector<std::int64_t> sums;
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      sums.push_back(addend[i * stride + j] +
                     detent::reference::dot(lhs.data() + i * k, test::column_of(rhs, j),
                                            static_cast<std::ptrdiff_t>(n), k, lhs_zero_point,
                                            zero_points[j], bias[j]));
    }
  }
  const auto weights =
      detent::pack_weights({rhs.data(), k, n}, {.zero_points = zero_points, .bias = bias});
  REQUIRE(weights.certificate().fits_s32());
  const auto misfit = std::find_if_not(sums.begin(), sums.end(), fits);
  INFO("m ", m, " n ", n, " k ", k, " size ", size);
  for (const bool in_place : {false, true}) {
    std::vector<std::int32_t> right =
        in_place ? addend : std::vector<std::int32_t>(addend.size(), 42);
    const std::vector<std::int32_t> before = right;
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (fits(sums[i * n + j])) {
          right[i * stride + j] = static_cast<std::int32_t>(sums[i * n + j]);
        }
      }
    }
    for_each_target([&] {
      std::vector<std::int32_t> out = before;
      const auto row_stride = static_cast<std::ptrdiff_t>(stride);
      const epilogue_options o{.lhs_zero_point = lhs_zero_point,
                               .addend = {in_place ? out.data() : addend.data(), m, n, row_stride}};
      const auto run = [&] {
        detent::gemm(matrix_view<const A>(lhs.data(), m, k), weights,
                     matrix_view<std::int32_t>(out.data(), m, n, row_stride), o, parallel);
      };
      if (misfit == sums.end()) {
        run();
      } else {
        test::check_error(error_kind::overflow, {"the sum " + std::to_string(*misfit)}, run);
      }
      CHECK(difference(out, right) == "");
    });
  }
}

}  // namespace

TEST_CASE_TEMPLATE("gemm: an addend, every tail", A, std::uint8_t, std::int8_t) {
  random_source random(41);
  INFO("seed ", random.seed());
  for (std::size_t i = 0; i <= 70; ++i) {
    check_addend<A>(random, random.size(1, 20), i, random.size(0, 40), 1000000);
    check_addend<A>(random, i, random.size(1, 70), random.size(0, 40), 1000000000);
  }
  detent::thread_pool pool(3);
  check_addend<A>(random, 200, 37, 40, 1000000, pool.parallel());
  check_addend<A>(random, 3, 1500, 700, 1000000, &run_backwards);
}

TEST_CASE_TEMPLATE("gemm: sums that do not fit with an addend", A, std::uint8_t, std::int8_t) {
  random_source random(42);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  for (int round = 0; round < 40; ++round) {
    check_addend<A>(random, random.size(1, 60), random.size(1, 60), random.size(1, 100),
                    std::numeric_limits<std::int32_t>::max(),
                    round % 2 == 0 ? detent::parallel_for{} : pool.parallel());
  }
}

TEST_CASE("gemm: addends at the ends of 32 bits") {
  const auto max = std::numeric_limits<std::int32_t>::max();
  const auto min = std::numeric_limits<std::int32_t>::min();
  const std::uint8_t lhs[] = {1};
  const std::int8_t rhs[] = {1, -1};
  const auto weights = detent::pack_weights({rhs, 1, 2});
  const matrix_view<const std::uint8_t> one(lhs, 1, 1);
  for_each_target([&] {
    std::int32_t out[] = {max - 1, min + 1};
    const epilogue_options o{.addend = {out, 1, 2}};
    detent::gemm(one, weights, matrix_view<std::int32_t>(out, 1, 2), o);
    CHECK(out[0] == max);
    CHECK(out[1] == min);
    test::check_error(error_kind::overflow, {"the sum 2147483648 of row 0, column 0"},
                      [&] { detent::gemm(one, weights, matrix_view<std::int32_t>(out, 1, 2), o); });
    CHECK(out[0] == max);
    out[0] = 0;
    test::check_error(error_kind::overflow, {"the sum -2147483649 of row 0, column 1"},
                      [&] { detent::gemm(one, weights, matrix_view<std::int32_t>(out, 1, 2), o); });
    CHECK(out[0] == 1);
    CHECK(out[1] == min);
  });
}

TEST_CASE("gemm: K in pieces, one accumulated on the other, is the product") {
  random_source random(43);
  INFO("seed ", random.seed());
  for (int round = 0; round < 10; ++round) {
    const std::size_t m = random.size(1, 60);
    const std::size_t n = random.size(1, 60);
    const std::size_t k = random.size(2, 200);
    const std::size_t cut = random.size(1, k - 1);
    const auto lhs = random.integers<std::int8_t>(m * k);
    const auto rhs = random.integers<std::int8_t>(k * n);
    std::vector<std::int32_t> right;
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        std::int32_t sum = 0;
        for (std::size_t at = 0; at < k; ++at) {
          sum += lhs[i * k + at] * rhs[at * n + j];
        }
        right.push_back(sum);
      }
    }
    const auto upper = detent::pack_weights({rhs.data(), cut, n});
    const auto lower = detent::pack_weights({rhs.data() + cut * n, k - cut, n});
    const auto stride = static_cast<std::ptrdiff_t>(k);
    for_each_target([&] {
      std::vector<std::int32_t> out(m * n);
      const matrix_view<std::int32_t> to(out.data(), m, n);
      detent::gemm(matrix_view<const std::int8_t>(lhs.data(), m, cut, stride), upper, to);
      detent::gemm(matrix_view<const std::int8_t>(lhs.data() + cut, m, k - cut, stride), lower, to,
                   {.addend = to});
      CHECK(difference(out, right) == "");
    });
  }
}

TEST_CASE("gemm: a row of addends for all rows") {
  const std::uint8_t lhs[] = {1, 2, 3};
  const std::int8_t rhs[] = {10, 20};
  const auto weights = detent::pack_weights({rhs, 1, 2});
  const std::int32_t row[] = {5, -5};
  for_each_target([&] {
    std::vector<std::int32_t> out(6);
    detent::gemm(matrix_view<const std::uint8_t>(lhs, 3, 1), weights,
                 matrix_view<std::int32_t>(out.data(), 3, 2), {.addend = {row, 3, 2, 0}});
    CHECK(out == std::vector<std::int32_t>{15, 15, 25, 35, 35, 55});
  });
}

TEST_CASE("gemm: addends that do not fit are refused") {
  const std::vector<std::uint8_t> lhs(6);
  const std::vector<std::int8_t> w(6);
  const auto weights = detent::pack_weights({w.data(), 3, 2});
  std::vector<std::int32_t> out(4, 42);
  std::vector<float> real(4, 42.0F);
  std::vector<std::uint8_t> bytes(4, 42);
  const std::vector<std::int32_t> addend(8);
  const matrix_view<const std::uint8_t> a(lhs.data(), 2, 3);
  const auto fails = [&](error_kind kind, const char* text, auto& to, const epilogue_options& o) {
    test::check_error(kind, {"gemm", text},
                      [&] { detent::gemm(a, weights, matrix_view(to.data(), 2, 2), o); });
    CHECK(to[0] == 42);
  };
  fails(error_kind::shape_mismatch, "the addend is 1 x 2, not 2 x 2", out,
        {.addend = {addend.data(), 1, 2}});
  fails(error_kind::shape_mismatch, "the addend is 2 x 3, not 2 x 2", out,
        {.addend = {addend.data(), 2, 3}});
  fails(error_kind::unsupported, "the addend's column stride is 2", out,
        {.addend = {addend.data(), 2, 2, 4, 2}});
  fails(error_kind::unsupported, "the addend's row stride is -2", out,
        {.addend = {addend.data() + 2, 2, 2, -2}});
  fails(error_kind::unsupported, "integer addends are for products to 32-bit integers", real,
        {.addend = {addend.data(), 2, 2}});
  fails(error_kind::unsupported, "integer addends are for products to 32-bit integers", bytes,
        {.addend = {addend.data(), 2, 2}});
}
