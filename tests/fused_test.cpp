// SPDX-License-Identifier: BSD-3-Clause
// Fused epilogues: the functor gets each result once, with the bits that the product would write.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <detent/base/arithmetic.hpp>
#include <detent/batch.hpp>
#include <detent/detent.hpp>
#include <detent/fused_convolution.hpp>
#include <detent/fused_dynamic_linear.hpp>
#include <detent/fused_gemm.hpp>
#include <detent/kernels/portable/store_sums.hpp>
#include <detent/row_ranges.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "random.hpp"

namespace {

using detent::batch_position;
using detent::epilogue_options;
using detent::error_kind;
using detent::full_grid;
using detent::fused;
using detent::fused_sums;
using detent::matrix_view;
using detent::product_block;
using detent::quant_params;
using test::check_error;
using test::difference;
using test::for_each_target;
using test::random_source;
namespace simd = detent::simd;

using u8 = std::uint8_t;
using s8 = std::int8_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// A matrix that blocks are stored to, which counts how often each element was stored.
template <class T>
class collector {
 public:
  collector(std::size_t rows, std::size_t columns)
      : rows_(rows), columns_(columns), values_(rows * columns, T{-77}), counts_(rows * columns) {}

  /// Stores a block element by element.
  void store(const product_block<T>& block) {
    CHECK(block.row() + block.rows() <= rows_);
    CHECK(block.column() + block.columns() <= columns_);
    CHECK(block.stride() >= block.columns());
    for (std::size_t i = 0; i < block.rows(); ++i) {
      for (std::size_t j = 0; j < block.columns(); ++j) {
        const std::size_t at = (block.row() + i) * columns_ + block.column() + j;
        values_[at] = block[i][j];
        ++counts_[at];
      }
    }
  }
  /// What differs from the expected values; also if an element was not stored exactly once.
  [[nodiscard]] std::string difference_from(const std::vector<T>& expected) const {
    const bool is_once =
        std::all_of(counts_.begin(), counts_.end(), [](int count) { return count == 1; });
    return is_once ? difference(values_, expected) : "elements are not stored once";
  }

 private:
  std::size_t rows_, columns_;
  std::vector<T> values_;
  std::vector<int> counts_;
};

/// A product's operands with everything that an epilogue can have.
template <class A>
struct operands {
  std::size_t m, n, k;
  std::vector<A> lhs;
  std::vector<s8> rhs;
  std::vector<float> scales, bias, residual, row_scales;
  std::vector<std::int32_t> zero_points, addend, row_zero_points;
  detent::packed_weights weights;

  operands(random_source& random, std::size_t rows, std::size_t columns, std::size_t depth)
      : m(rows),
        n(columns),
        k(depth),
        lhs(random.integers<A>(rows * depth)),
        rhs(random.integers<s8>(depth * columns)),
        scales(random.reals(columns, 0.001F, 0.1F)),
        bias(random.reals(columns, -9.0F, 9.0F)),
        residual(random.reals(rows * columns, -50.0F, 50.0F)),
        row_scales(random.reals(rows, 0.01F, 2.0F)) {
    for (std::size_t i = 0; i < rows; ++i) {
      row_zero_points.push_back(random.integer<std::int32_t>(full_grid<A>.qmin, full_grid<A>.qmax));
    }
    for (std::size_t i = 0; i < rows * columns; ++i) {
      addend.push_back(random.integer(-1000000, 1000000));
    }
    for (std::size_t j = 0; j < columns; ++j) {
      zero_points.push_back(random.integer(-128, 127));
    }
    const bool has_zero_points = random.chance(50);
    weights = detent::pack_weights(
        matrix_view<const s8>(rhs.data(), k, n),
        {.scales = scales,
         .zero_points = has_zero_points ? std::span<const std::int32_t>(zero_points)
                                        : std::span<const std::int32_t>()});
  }
  [[nodiscard]] matrix_view<const A> left() const { return {lhs.data(), m, k}; }
  /// Random options for products to float.
  [[nodiscard]] epilogue_options real_options(random_source& random) const {
    epilogue_options o{
        .lhs_scale = 0.03F,
        .lhs_zero_point = random.integer<std::int32_t>(full_grid<A>.qmin, full_grid<A>.qmax)};
    if (random.chance(30)) {
      o.bias = bias;
    }
    if (random.chance(30)) {
      o.residual = {residual.data(), m, n};
    }
    if (random.chance(30)) {
      o.lower = -20.0F;
      o.upper = 30.0F;
    }
    if (random.chance(30)) {
      o.lhs_scales = row_scales;
    }
    if (random.chance(30)) {
      o.lhs_zero_points = row_zero_points;
    }
    if (random.chance(30)) {
      o.caches = {1024, 4096, 16384};
    }
    return o;
  }
};

/// Sizes around tiles, blocks of rows and strips; the products are small enough for all targets.
constexpr std::array<std::array<std::size_t, 3>, 12> shapes{{{1, 1, 1},
                                                             {1, 5000, 3},
                                                             {2, 70, 9},
                                                             {6, 64, 16},
                                                             {7, 400, 33},
                                                             {24, 128, 64},
                                                             {25, 65, 20},
                                                             {50, 129, 12},
                                                             {128, 96, 40},
                                                             {259, 66, 17},
                                                             {300, 15, 8},
                                                             {31, 17, 100}}};

template <class A>
void check_gemm(std::uint64_t seed) {
  random_source random(seed);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  for (const auto& [m, n, k] : shapes) {
    const operands<A> p(random, m, n, k);
    const epilogue_options o = p.real_options(random);
    epilogue_options of_sums{.lhs_zero_point = o.lhs_zero_point,
                             .lhs_zero_points = o.lhs_zero_points,
                             .caches = o.caches};
    if (random.chance(50)) {
      of_sums.addend = {p.addend.data(), m, n};
    }
    for_each_target([&, m = m, n = n] {
      INFO("m ", m, " n ", n, " k ", p.k);
      std::vector<float> real(m * n);
      std::vector<std::int32_t> sums(m * n);
      detent::gemm(p.left(), p.weights, matrix_view<float>(real.data(), m, n), o);
      detent::gemm(p.left(), p.weights, matrix_view<std::int32_t>(sums.data(), m, n), of_sums);
      for (const detent::parallel_for& parallel : {detent::parallel_for{}, pool.parallel()}) {
        std::mutex mutex;  // doctest's checks are not made for several threads
        collector<float> reals(m, n);
        detent::gemm(p.left(), p.weights, fused([&](const product_block<float>& block) {
                       const std::lock_guard lock(mutex);
                       reals.store(block);
                     }),
                     o, parallel);
        CHECK(reals.difference_from(real) == "");
        collector<std::int32_t> integers(m, n);
        detent::gemm(p.left(), p.weights, fused_sums([&](const product_block<std::int32_t>& block) {
                       const std::lock_guard lock(mutex);
                       integers.store(block);
                     }),
                     of_sums, parallel);
        CHECK(integers.difference_from(sums) == "");
      }
    });
  }
}

TEST_CASE("a fused epilogue gets the floats and the sums that gemm writes, each once") {
  check_gemm<u8>(0xF05ED001);
  check_gemm<s8>(0xF05ED002);
}

TEST_CASE("a fused epilogue of a column-major left side, and of mutable operands") {
  random_source random(0xF05ED003);
  operands<s8> p(random, 53, 130, 21);
  std::vector<s8> columns(p.lhs.size());
  for (std::size_t i = 0; i < p.m; ++i) {
    for (std::size_t c = 0; c < p.k; ++c) {
      columns[c * p.m + i] = p.lhs[i * p.k + c];
    }
  }
  for_each_target([&] {
    std::vector<float> real(p.m * p.n);
    detent::gemm(p.left(), p.weights, matrix_view<float>(real.data(), p.m, p.n));
    collector<float> by_columns(p.m, p.n);
    detent::gemm(matrix_view<s8>(columns.data(), p.k, p.m).transposed(), p.weights,
                 fused([&](const product_block<float>& block) { by_columns.store(block); }));
    CHECK(by_columns.difference_from(real) == "");
  });
}

TEST_CASE("two products of one left side reach one functor together, each with its options") {
  random_source random(0xF05ED004);
  INFO("seed ", random.seed());
  for (const auto& [m, n, k] : shapes) {
    const operands<s8> p(random, m, n, k);
    const operands<s8> other(random, m, n, k);
    const epilogue_options first = p.real_options(random);
    const epilogue_options second = other.real_options(random);
    for_each_target([&, m = m, n = n] {
      INFO("m ", m, " n ", n, " k ", p.k);
      std::vector<float> a(m * n);
      std::vector<float> b(m * n);
      detent::gemm(p.left(), p.weights, matrix_view<float>(a.data(), m, n), first);
      detent::gemm(p.left(), other.weights, matrix_view<float>(b.data(), m, n), second);
      collector<float> firsts(m, n);
      collector<float> seconds(m, n);
      detent::gemm(p.left(), p.weights, other.weights,
                   fused([&](const product_block<float>& x, const product_block<float>& y) {
                     CHECK(x.row() == y.row());
                     CHECK(x.column() == y.column());
                     CHECK(x.rows() == y.rows());
                     CHECK(x.columns() == y.columns());
                     firsts.store(x);
                     seconds.store(y);
                   }),
                   first, second);
      CHECK(firsts.difference_from(a) == "");
      CHECK(seconds.difference_from(b) == "");
    });
  }
}

TEST_CASE("weights of 4 bits have fused epilogues, too") {
  random_source random(0xF05ED005);
  constexpr std::size_t m = 61, n = 150, k = 48;
  std::vector<s8> codes(k * n);
  for (s8& code : codes) {
    code = random.integer<s8>(-8, 7);
  }
  const std::vector<float> scales = random.reals(k / 16 * n, 0.01F, 0.1F);
  const auto weights = detent::pack_int4_weights(
      matrix_view<const s8>(codes.data(), k, n),
      {.group_size = 16, .scales = matrix_view<const float>(scales.data(), k / 16, n)});
  const auto signed_lhs = random.integers<s8>(m * k);
  const auto real_lhs = random.reals(m * k, -1.0F, 3.0F);
  const std::vector<float> bias = random.reals(n, -1.0F, 1.0F);
  const epilogue_options o{.lhs_scale = 0.1F, .lhs_zero_point = -5, .bias = bias};
  const detent::dynamic_linear_options of_linear{.bias = bias};
  for_each_target([&] {
    std::vector<float> real(m * n);
    const matrix_view<float> out(real.data(), m, n);
    collector<float> from_bytes(m, n);
    detent::gemm(matrix_view<const s8>(signed_lhs.data(), m, k), weights, out, o);
    detent::gemm(matrix_view<const s8>(signed_lhs.data(), m, k), weights,
                 fused([&](const product_block<float>& block) { from_bytes.store(block); }), o);
    CHECK(from_bytes.difference_from(real) == "");
    collector<float> from_floats(m, n);
    detent::dynamic_linear(matrix_view<const float>(real_lhs.data(), m, k), weights, out,
                           of_linear);
    detent::dynamic_linear(
        matrix_view<const float>(real_lhs.data(), m, k), weights,
        fused([&](const product_block<float>& block) { from_floats.store(block); }), of_linear);
    CHECK(from_floats.difference_from(real) == "");
  });
}

TEST_CASE("dynamic_linear with fused epilogues of one and of two products") {
  random_source random(0xF05ED006);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  for (const auto& [m, n, k] : shapes) {
    const operands<u8> p(random, m, n, k);
    const operands<u8> other(random, m, n, k);
    std::vector<float> x = random.reals(m * k, -2.0F, 5.0F);
    for (const bool per_row : {false, true}) {
      const detent::dynamic_linear_options o{.per_row = per_row,
                                             .bias = p.bias,
                                             .residual = {p.residual.data(), m, n},
                                             .lower = -40.0F};
      detent::dynamic_linear_options second = o;
      second.bias = other.bias;
      second.residual = {};
      second.upper = 7.0F;
      for_each_target([&, m = m, n = n, k = k] {
        INFO("m ", m, " n ", n, " k ", k, " per_row ", per_row);
        const matrix_view<float> lhs(x.data(), m, k);
        std::vector<float> a(m * n);
        std::vector<float> b(m * n);
        detent::dynamic_linear(lhs, p.weights, matrix_view<float>(a.data(), m, n), o);
        detent::dynamic_linear(lhs, other.weights, matrix_view<float>(b.data(), m, n), second);
        for (const detent::parallel_for& parallel : {detent::parallel_for{}, pool.parallel()}) {
          std::mutex mutex;
          collector<float> one(m, n);
          detent::dynamic_linear(lhs, p.weights, fused([&](const product_block<float>& block) {
                                   const std::lock_guard lock(mutex);
                                   one.store(block);
                                 }),
                                 o, parallel);
          CHECK(one.difference_from(a) == "");
          collector<float> firsts(m, n);
          collector<float> seconds(m, n);
          detent::dynamic_linear(
              lhs, p.weights, other.weights,
              fused([&](const product_block<float>& u, const product_block<float>& v) {
                const std::lock_guard lock(mutex);
                firsts.store(u);
                seconds.store(v);
              }),
              o, second, parallel);
          CHECK(firsts.difference_from(a) == "");
          CHECK(seconds.difference_from(b) == "");
        }
      });
    }
  }
}

TEST_CASE("a fused epilogue of a convolution gets what convolve writes, channels last") {
  random_source random(0xF05ED007);
  INFO("seed ", random.seed());
  detent::thread_pool pool(2);
  struct layer {
    detent::filter_shape f;
    detent::window w;
  };
  const std::vector<layer> layers{
      {{.out_channels = 20, .in_channels = 8, .kernel_height = 3, .kernel_width = 3},
       {.batch = 2,
        .in_height = 13,
        .in_width = 11,
        .pad_top = 1,
        .pad_left = 1,
        .pad_bottom = 1,
        .pad_right = 1}},
      {{.out_channels = 70, .in_channels = 5, .kernel_height = 1, .kernel_width = 1},
       {.batch = 3, .in_height = 9, .in_width = 14}},
      {{.out_channels = 12, .in_channels = 6, .groups = 2, .kernel_height = 3, .kernel_width = 2},
       {.in_height = 20, .in_width = 17, .stride_height = 2, .dilation_width = 2}},
      {{.out_channels = 37, .in_channels = 37, .groups = 37, .kernel_height = 3, .kernel_width = 3},
       {.batch = 2, .in_height = 18, .in_width = 21, .pad_top = 1, .pad_left = 1}},
  };
  for (const layer& l : layers) {
    for (const detent::activation_layout input_layout :
         {detent::activation_layout::nhwc, detent::activation_layout::nchw}) {
      detent::window w = l.w;
      w.input_layout = input_layout;
      const std::size_t pixels = w.batch * w.out_height(l.f) * w.out_width(l.f);
      const std::size_t channels = l.f.out_channels;
      const auto input = random.integers<u8>(w.batch * w.in_height * w.in_width * l.f.in_channels);
      const auto signed_input = random.integers<s8>(input.size());
      const auto weights = random.integers<s8>(l.f.size());
      const auto scales = random.reals(channels, 0.01F, 0.1F);
      const auto bias = random.reals(channels, -9.0F, 9.0F);
      const auto residual = random.reals(pixels * channels, -9.0F, 9.0F);
      const detent::packed_filters filters(l.f, weights, {.scales = scales});
      const epilogue_options o{.lhs_scale = 0.2F,
                               .lhs_zero_point = 77,
                               .bias = bias,
                               .residual = {residual.data(), pixels, channels}};
      for_each_target([&] {
        for (const detent::parallel_for& parallel : {detent::parallel_for{}, pool.parallel()}) {
          std::mutex mutex;
          std::vector<float> real(pixels * channels);
          detent::convolve(input, filters, w, std::span<float>(real), o);
          collector<float> reals(pixels, channels);
          detent::convolve(std::span<const u8>(input), filters, w,
                           fused([&](const product_block<float>& block) {
                             const std::lock_guard lock(mutex);
                             reals.store(block);
                           }),
                           o, parallel);
          CHECK(reals.difference_from(real) == "");
          std::vector<std::int32_t> sums(pixels * channels);
          detent::convolve(signed_input, filters, w, std::span<std::int32_t>(sums),
                           {.lhs_zero_point = -3});
          collector<std::int32_t> integers(pixels, channels);
          detent::convolve(std::span<const s8>(signed_input), filters, w,
                           fused_sums([&](const product_block<std::int32_t>& block) {
                             const std::lock_guard lock(mutex);
                             integers.store(block);
                           }),
                           {.lhs_zero_point = -3}, parallel);
          CHECK(integers.difference_from(sums) == "");
        }
      });
    }
  }
}

TEST_CASE("registers hold the values of a row in order, and 0 behind its end") {
  std::vector<float> x(3 * 40);
  std::vector<std::int32_t> y(3 * 45);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 37; ++j) {
      x[i * 40 + j] = static_cast<float>(100 * i + j);
      y[i * 45 + j] = static_cast<std::int32_t>(1000 + 100 * i + j);
    }
    x[i * 40 + 37] = quiet_nan;  // belongs to nobody
  }
  const product_block<float> reals(5, 9, 3, 37, x.data(), 40);
  const product_block<std::int32_t> integers(5, 9, 3, 37, y.data(), 45);
  std::size_t seen = 0;
  constexpr std::size_t size = simd::lane_count<float>;
  detent::for_each_batch(
      [&](batch_position at, const auto& u, const auto& v) {
        float lanes[size];
        std::int32_t codes[size];
        simd::store(u, lanes);
        simd::store(v, codes);
        CHECK(at.count <= size);
        for (std::size_t i = 0; i < size; ++i) {
          const bool is_result = i < at.count;
          const std::size_t value = 100 * (at.row - 5) + at.column - 9 + i;
          CHECK(lanes[i] == (is_result ? static_cast<float>(value) : 0.0F));
          CHECK(codes[i] == (is_result ? static_cast<std::int32_t>(1000 + value) : 0));
        }
        seen += at.count;
      },
      reals, integers);
  CHECK(seen == 3 * 37);
  detent::transform([](auto u) { return u + decltype(u)(1.0F); }, reals);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(reals[i][0] == static_cast<float>(100 * i + 1));
    CHECK(reals[i][36] == static_cast<float>(100 * i + 37));
    CHECK(std::isnan(x[i * 40 + 37]));  // nothing is written behind a row
    CHECK(x[i * 40 + 38] == 0.0F);
  }
}

TEST_CASE("an activation to bytes in registers and by quantize_block are what two passes give") {
  random_source random(0xF05ED008);
  const operands<u8> p(random, 75, 203, 19);
  const epilogue_options o = p.real_options(random);
  const quant_params params{0.7F, 20};
  const detent::grid levels{3, 250};
  for_each_target([&] {
    std::vector<float> real(p.m * p.n);
    detent::gemm(p.left(), p.weights, matrix_view<float>(real.data(), p.m, p.n), o);
    std::vector<u8> expected(real.size());
    for (float& v : real) {
      v = std::fmax(v, 0.0F) * v;
    }
    detent::quantize(real, expected, params, levels);
    const auto activation = [](auto x) { return simd::max(x, decltype(x)(0.0F)) * x; };

    std::vector<u8> by_kernel(real.size(), 99);
    const matrix_view<u8> out(by_kernel.data(), p.m, p.n);
    std::vector<u8> by_registers(real.size(), 99);
    std::vector<float> second(real.size());
    detent::gemm(p.left(), p.weights, fused([&](const product_block<float>& block) {
                   detent::for_each_batch(
                       [&](batch_position at, auto x) {
                         const auto q = detent::batch::quantize(activation(x), params, levels);
                         detent::batch::store_8bit(&by_registers[at.row * p.n + at.column], q,
                                                   at.count);
                       },
                       block);
                   detent::transform(activation, block);
                   detent::quantize_block(block, out, params, levels);
                   detent::store_block(block, matrix_view<float>(second.data(), p.m, p.n));
                 }),
                 o);
    CHECK(difference(by_kernel, expected) == "");
    CHECK(difference(by_registers, expected) == "");
    CHECK(difference(second, real) == "");
  });
}

TEST_CASE("ranges of rows are those of dynamic_quantize_rows, in any order of blocks") {
  random_source random(0xF05ED009);
  const operands<u8> p(random, 130, 700, 12);
  detent::thread_pool pool(2);
  for_each_target([&] {
    std::vector<float> real(p.m * p.n);
    const matrix_view<float> out(real.data(), p.m, p.n);
    for (const detent::parallel_for& parallel : {detent::parallel_for{}, pool.parallel()}) {
      detent::row_ranges ranges(p.m);
      detent::gemm(p.left(), p.weights, fused([&](const product_block<float>& block) {
                     ranges.include(block);
                     detent::store_block(block, out);
                   }),
                   {.lhs_zero_point = 100}, parallel);
      std::vector<u8> q(real.size());
      std::vector<float> scales(p.m);
      std::vector<std::int32_t> zero_points(p.m);
      detent::dynamic_quantize_rows(matrix_view<const float>(out),
                                    matrix_view<u8>(q.data(), p.m, p.n), std::span(scales),
                                    std::span(zero_points));
      const detent::channel_quant_params params = ranges.finalize(detent::asymmetric<u8>);
      CHECK(params.axis == 0);
      CHECK(difference(params.scales, scales) == "");
      CHECK(difference(params.zero_points, zero_points) == "");
    }
  });
}

TEST_CASE("ranges of rows with NaN, infinities and nothing") {
  std::vector<float> x{quiet_nan, -3.0F, 2.0F,     quiet_nan, quiet_nan,
                       quiet_nan, 1.0F,  infinity, 0.0F};
  detent::row_ranges ranges(4);
  CHECK(ranges.rows() == 4);
  ranges.include(product_block<float>(0, 0, 3, 3, x.data(), 3));
  CHECK(ranges.has_range(0));
  CHECK(ranges.range(0).lower == -3.0F);
  CHECK(ranges.range(0).upper == 2.0F);
  CHECK_FALSE(ranges.has_range(1));
  CHECK(ranges.range(1).upper == 0.0F);
  CHECK(ranges.range(2).upper == infinity);
  CHECK_FALSE(ranges.has_range(3));
  check_error(error_kind::invalid_argument, {"row_ranges", "inf"},
              [&] { static_cast<void>(ranges.finalize(detent::asymmetric<u8>)); });
  check_error(error_kind::shape_mismatch, {"row_ranges", "row 5 of 4"},
              [&] { ranges.include(product_block<float>(4, 0, 1, 3, x.data(), 3)); });
}

TEST_CASE("a functor may call products of its own on the same thread") {
  random_source random(0xF05ED00A);
  const operands<s8> p(random, 70, 130, 24);
  const operands<s8> inner(random, 9, 20, 30);
  const std::vector<float> x = random.reals(p.m * p.k, -1.0F, 1.0F);
  for_each_target([&] {
    std::vector<float> real(p.m * p.n);
    detent::dynamic_linear(matrix_view<const float>(x.data(), p.m, p.k), p.weights,
                           matrix_view<float>(real.data(), p.m, p.n));
    collector<float> all(p.m, p.n);
    detent::dynamic_linear(matrix_view<const float>(x.data(), p.m, p.k), p.weights,
                           fused([&](const product_block<float>& block) {
                             std::vector<float> scratch(inner.m * inner.n);
                             detent::gemm(inner.left(), inner.weights,
                                          matrix_view<float>(scratch.data(), inner.m, inner.n));
                             detent::gemm(inner.left(), inner.weights,
                                          fused([&](const product_block<float>& b) {
                                            detent::transform([](auto v) { return v + v; }, b);
                                          }));
                             all.store(block);
                           }));
    CHECK(all.difference_from(real) == "");
  });
}

TEST_CASE("sums beyond 32 bits: exact floats, and overflow for sums") {
  constexpr std::size_t m = 3, n = 17, k = 70000;
  const std::vector<u8> lhs(m * k, 255);
  const std::vector<s8> rhs(k * n, 127);
  const auto weights = detent::pack_weights(matrix_view<const s8>(rhs.data(), k, n));
  const matrix_view<const u8> left(lhs.data(), m, k);
  for_each_target([&] {
    collector<float> reals(m, n);
    detent::gemm(left, weights,
                 fused([&](const product_block<float>& block) { reals.store(block); }));
    CHECK(reals.difference_from(std::vector<float>(m * n, 255.0F * 127.0F * 70000.0F)) == "");
    check_error(error_kind::overflow, {"gemm: the sum 2266950000 of row 0, column 0"}, [&] {
      detent::gemm(left, weights, fused_sums([](const product_block<std::int32_t>&) {}));
    });
    const detent::packed_filters filters(
        {.out_channels = n, .in_channels = k, .kernel_height = 1, .kernel_width = 1}, rhs);
    check_error(error_kind::overflow, {"convolution: the sum 2266950000 of pixel 0, channel 0"},
                [&] {
                  detent::convolve(std::span<const u8>(lhs), filters,
                                   {.batch = m, .in_height = 1, .in_width = 1},
                                   fused_sums([](const product_block<std::int32_t>&) {}));
                });
  });
}

TEST_CASE("products without rows, columns or depth") {
  const detent::packed_weights none = detent::pack_weights(matrix_view<const s8>(nullptr, 4, 0));
  const std::vector<s8> column(2);
  const detent::packed_weights no_depth = detent::pack_weights(
      matrix_view<const s8>(column.data(), 0, 2), {.bias = std::vector<std::int32_t>{5, -6}});
  const std::vector<u8> lhs(12);
  int calls = 0;
  const auto count = fused([&](const product_block<float>& block) {
    calls += block.rows() * block.columns() != 0 ? 1 : 0;
  });
  for_each_target([&] {
    detent::gemm(matrix_view<const u8>(lhs.data(), 3, 4), none, count);
    CHECK(calls == 0);
    detent::gemm(matrix_view<const u8>(nullptr, 0, 0), no_depth, count);
    CHECK(calls == 0);
    collector<float> biases(2, 2);
    detent::gemm(matrix_view<const u8>(lhs.data(), 2, 0), no_depth,
                 fused([&](const product_block<float>& block) { biases.store(block); }));
    CHECK(biases.difference_from({5.0F, -6.0F, 5.0F, -6.0F}) == "");
  });
}

TEST_CASE("fused epilogues: wrong arguments are named before anything is computed") {
  random_source random(0xF05ED00B);
  const operands<u8> p(random, 3, 4, 5);
  const operands<u8> wider(random, 3, 6, 5);
  int calls = 0;
  const auto f = fused([&](const product_block<float>&) { ++calls; });
  const auto two =
      fused([&](const product_block<float>&, const product_block<float>&) { ++calls; });
  check_error(error_kind::shape_mismatch, {"gemm: K is 4 in the left side, 5 in the weights"},
              [&] { detent::gemm(matrix_view<const u8>(p.lhs.data(), 3, 4), p.weights, f); });
  check_error(error_kind::shape_mismatch, {"4 and 6 columns of weights for one epilogue"},
              [&] { detent::gemm(p.left(), p.weights, wider.weights, two); });
  check_error(error_kind::shape_mismatch, {"2 scales for 3 rows"}, [&] {
    detent::gemm(p.left(), p.weights, f, {.lhs_scales = std::span(p.row_scales).first(2)});
  });
  check_error(error_kind::unsupported, {"integer addends"}, [&] {
    detent::gemm(p.left(), p.weights, f,
                 {.addend = matrix_view<const std::int32_t>(p.addend.data(), 3, 4)});
  });
  check_error(error_kind::invalid_argument, {"null data"},
              [&] { detent::gemm(matrix_view<const u8>(nullptr, 3, 5), p.weights, f); });
  const detent::packed_filters filters(
      {.out_channels = 2, .in_channels = 1, .kernel_height = 1, .kernel_width = 1},
      std::vector<s8>{1, 2});
  const std::vector<u8> image(4);
  check_error(error_kind::unsupported, {"convolution", "channels last"}, [&] {
    detent::convolve(
        std::span<const u8>(image), filters,
        {.in_height = 2, .in_width = 2, .output_layout = detent::activation_layout::nchw}, f);
  });
  check_error(error_kind::shape_mismatch, {"convolution: 4 inputs, not 6"}, [&] {
    detent::convolve(std::span<const u8>(image), filters, {.in_height = 2, .in_width = 3}, f);
  });
  CHECK(calls == 0);
  std::vector<float> x(12);
  std::vector<u8> q(12);
  const product_block<float> block(1, 2, 2, 3, x.data(), 3);
  check_error(error_kind::shape_mismatch, {"quantize_block", "row 3, column 5 of 3 x 4"}, [&] {
    detent::quantize_block(block, matrix_view<u8>(q.data(), 3, 4), {1.0F, 0});
  });
  check_error(error_kind::unsupported, {"store_block", "column stride is 2"},
              [&] { detent::store_block(block, matrix_view<float>(x.data(), 3, 5, 10, 2)); });
  check_error(error_kind::invalid_argument, {"quantize_block", "scale"}, [&] {
    detent::quantize_block(block, matrix_view<u8>(q.data(), 3, 5), {0.0F, 0});
  });
}

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
/// Stores a row of sums with code for processors and compiler flags that contract products and
/// sums.
[[gnu::target("fma"), gnu::optimize("O3", "fp-contract=fast"), gnu::flatten]] void
store_row_with_fma(const detent::kernels::integer_epilogue& e, const std::uint32_t* sums,
                   std::size_t count, float* to) {
  detent::kernels::portable::store_row(e, sums, 0, 0, count, to, 0);
}

TEST_CASE("a scaled sum is rounded before the residual is added, whatever the compiler may use") {
  constexpr std::size_t n = 100;
  random_source random(0xF05ED00D);
  const std::vector<float> multipliers = random.reals(n, 0.001F, 0.01F);
  const std::vector<float> residual = random.reals(n, -100.0F, 100.0F);
  const std::vector<std::int32_t> offsets(n);
  std::vector<std::uint32_t> sums(n);
  for (std::uint32_t& sum : sums) {
    sum = static_cast<std::uint32_t>(random.integer(0, 100000));
  }
  detent::kernels::integer_epilogue e;
  e.output = detent::kernels::integer_output::f32;
  e.column_offset = offsets.data();
  e.multiplier = multipliers.data();
  e.residual = residual.data();
  e.lower = -infinity;
  e.upper = infinity;
  std::vector<float> expected(n), got(n);
  for (std::size_t j = 0; j < n; ++j) {
    const float product =
        detent::detail::rounded_product(static_cast<float>(sums[j]), multipliers[j]);
    expected[j] = product + residual[j];
  }
  if (!__builtin_cpu_supports("fma")) {
    return;
  }
  store_row_with_fma(e, sums.data(), n, got.data());
  CHECK(difference(got, expected) == "");
}
#endif

TEST_CASE("two products have the kernels of one target, whatever set_target() does meanwhile") {
  // A signed left side shows it: some targets need a copy with 128 added, which others misread.
  random_source random(0xF05ED00E);
  constexpr std::size_t m = 5, k = 64, n = 48;
  const std::vector<s8> a = random.integers<s8>(m * k);
  const std::vector<s8> w = random.integers<s8>(k * n);
  const auto weights = detent::pack_weights({w.data(), k, n});
  const matrix_view<const s8> left(a.data(), m, k);
  std::vector<float> expected(m * n), first(m * n), second(m * n);
  detent::gemm(left, weights, matrix_view<float>(expected.data(), m, n));
  const auto targets = detent::available_targets();
  const detent::target before = detent::active_target();
  std::atomic<bool> is_done{false};
  std::thread changes([&] {
    for (std::size_t i = 0; !is_done; ++i) {
      detent::set_target(targets[i % targets.size()]);
    }
  });
  const auto store_both = fused([&](const product_block<float>& x, const product_block<float>& y) {
    detent::store_block(x, matrix_view<float>(first.data(), m, n));
    detent::store_block(y, matrix_view<float>(second.data(), m, n));
  });
  int wrong = 0;
  for (int i = 0; i < 2000; ++i) {
    detent::gemm(left, weights, weights, store_both);
    wrong += first == expected && second == expected ? 0 : 1;
  }
  is_done = true;
  changes.join();
  detent::set_target(before);
  CHECK(wrong == 0);
}

TEST_CASE("an exception of the functor comes out of the product") {
  random_source random(0xF05ED00C);
  const operands<u8> p(random, 100, 300, 10);
  detent::thread_pool pool(2);
  for (const detent::parallel_for& parallel : {detent::parallel_for{}, pool.parallel()}) {
    const auto throws = fused([](const product_block<float>& block) {
      if (block.row() != 0) {
        throw std::runtime_error("enough");
      }
    });
    CHECK_THROWS_AS(detent::gemm(p.left(), p.weights, throws, {}, parallel), std::runtime_error);
    // The memory of the thread is in order afterwards.
    std::vector<float> real(p.m * p.n);
    detent::gemm(p.left(), p.weights, matrix_view<float>(real.data(), p.m, p.n));
    collector<float> again(p.m, p.n);
    std::mutex mutex;
    detent::gemm(p.left(), p.weights, fused([&](const product_block<float>& block) {
                   const std::lock_guard lock(mutex);
                   again.store(block);
                 }),
                 {}, parallel);
    CHECK(again.difference_from(real) == "");
  }
}

}  // namespace
