// SPDX-License-Identifier: BSD-3-Clause
// The table in quantize.hpp: quantize and requantize; threads, stores, ties, errors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>

#include "check_error.hpp"
#include "elementwise_cells.hpp"
#include "for_each_target.hpp"
#include "random.hpp"
#include "scales.hpp"

using namespace test;  // NOLINT: its other half

TEST_CASE_TEMPLATE("quantize: every cell", X, float, double, float16, bfloat16, float8_e4m3fn,
                   float8_e5m2) {
  check_quantize<X>(100);
}

TEST_CASE_TEMPLATE("requantize: every cell", Q, std::uint8_t, std::int8_t, std::uint16_t,
                   std::int16_t) {
  check_operation<requantizing<Q>>(300);
}

TEST_CASE("threads and streaming stores do not change results") {
  random_source random(400);
  INFO("seed ", random.seed());
  for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
    detent::thread_pool pool(threads);
    for (const detent::store_policy stores :
         {detent::store_policy::cached, detent::store_policy::streaming}) {
      const detent::execution e{pool.parallel(), stores};
      for (const granularity kind :
           {granularity::tensor, granularity::channel, granularity::block}) {
        for (const std::vector<std::size_t>& shape :
             {std::vector<std::size_t>{200003}, {5, 30011}, {7, 3, 9001}, {64, 2048}}) {
          check_cell<quantizing<float, std::uint8_t>>(random, kind, shape, e);
          check_cell<quantizing<float, int4>>(random, kind, shape, e);
          check_cell<quantizing<float, std::int16_t>>(random, kind, shape, e);
          check_cell<dequantizing<std::int8_t, float>>(random, kind, shape, e);
          check_cell<dequantizing<uint4, float>>(random, kind, shape, e);
          check_cell<requantizing<std::uint8_t>>(random, kind, shape, e);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("blocks whose size is a power of two, one behind the other", Q, std::uint8_t,
                   std::int8_t, int4, std::uint16_t) {
  using operation = quantizing<float, Q>;
  random_source random(600);
  INFO("seed ", random.seed());
  for (std::size_t size = 1; size <= 1024; size *= 2) {
    for (const std::size_t blocks : {1U, 2U, 3U, 5U, 63U, 64U, 65U, 131U}) {
      const std::size_t n = blocks * size - (random.chance(50) ? 0 : random.size(0, size - 1));
      detent::block_quant_params p{0, size, {}, {}};
      const bool hard = random.chance(25);
      for (std::size_t i = 0; i < blocks; ++i) {
        p.scales.push_back(hard && random.chance(10)
                               ? test::hard_scales[random.size(0, std::size(test::hard_scales) - 1)]
                               : random.real(1e-4F, 10.0F));
        p.zero_points.push_back(random.integer(full_grid<Q>.qmin, full_grid<Q>.qmax));
      }
      elements<float> in(random, {n});
      std::vector<plain_t<Q>> expected(n);
      for (std::size_t i = 0; i < n; ++i) {
        const quant_params of_block{p.scales[i / size], p.zero_points[i / size]};
        const float x = operation::random_input(random, of_block.scale);
        in.set({i}, x);
        expected[i] = operation::expected(x, of_block, full_grid<Q>, 0);
      }
      for (const detent::store_policy stores :
           {detent::store_policy::cached, detent::store_policy::streaming}) {
        INFO(n, " elements in blocks of ", size);
        for_each_target([&] {
          elements<Q> out(random, {n});
          operation::run(in, out, p, full_grid<Q>, {}, {{}, stores});
          std::size_t wrong = 0;
          for (std::size_t i = 0; i < n; ++i) {
            wrong += out.get({i}) != expected[i] ? 1U : 0U;
          }
          CHECK(wrong == 0);
        });
      }
    }
  }
}

TEST_CASE_TEMPLATE("tasks share no byte of a packed output", Q, detent::int4, detent::int2) {
  const std::size_t per_byte = detent::elements_per_byte<Q>;
  // Every code is 1 in bytes that hold none: each write changes its byte.
  const auto check = [&](const char* what, auto x, std::size_t count, const auto& params) {
    INFO(what);
    std::vector<std::uint8_t> alone(count / per_byte);
    detent::quantize(x, detent::packed_span<Q>(std::span(alone), count), params);
    std::vector<std::uint8_t> shared(alone.size());
    std::size_t tasks = 0;
    std::vector<int> writers(shared.size());
    const detent::parallel_for watch = [&](std::size_t n,
                                           const std::function<void(std::size_t)>& body) {
      tasks += n;
      for (std::size_t i = 0; i < n; ++i) {
        const std::vector<std::uint8_t> before = shared;
        body(i);
        for (std::size_t at = 0; at < shared.size(); ++at) {
          writers[at] += before[at] != shared[at] ? 1 : 0;
        }
      }
    };
    detent::quantize(x, detent::packed_span<Q>(std::span(shared), count), params,
                     detent::full_grid<Q>, detent::execution{watch});
    CHECK(shared == alone);
    CHECK(std::all_of(writers.begin(), writers.end(), [](int n) { return n <= 1; }));
    return tasks;
  };
  constexpr std::size_t count = std::size_t{3} << 16U;
  const std::vector<float> x(count, 1.0F);
  const detent::quant_params one{1.0F, 0};
  CHECK(check("dense", std::span(x), count, one) > 1);
  for (const std::size_t columns : {1U, 3U, 6U, 8U, 1024U}) {
    INFO(columns, " columns");
    const std::size_t rows = count / columns;
    const std::size_t shape[] = {rows, columns};
    const std::ptrdiff_t turned[] = {1, static_cast<std::ptrdiff_t>(rows)};
    CHECK(check("transposed", detent::tensor_view<const float>(x.data(), shape, turned), count,
                one) > 1);
    CHECK(check("rows", detent::tensor_view<const float>(x.data(), shape), count, one) > 1);
  }
  for (const std::size_t block : {1U, 3U, 5U, 1023U}) {
    INFO("blocks of ", block);
    const std::size_t blocks = (count + block - 1) / block;
    detent::block_quant_params p;
    p.axis = 0;
    p.block_size = block;
    p.scales.assign(blocks, 1.0F);
    p.zero_points.assign(blocks, 0);
    static_cast<void>(check("blocks", std::span(x), count, p));
  }
}

// At a tie and beside it, a product with 1 / scale could be rounded otherwise than a quotient.
TEST_CASE("all ties of 16-bit grids") {
  random_source random(500);
  INFO("seed ", random.seed());
  std::vector<float> scales(std::begin(test::hard_scales), std::end(test::hard_scales));
  for (int i = 0; i < 12; ++i) {
    scales.push_back(random.real(1e-6F, 1.0F));
  }
  std::vector<float> x;
  for (const float scale : scales) {
    x.clear();
    for (int k = -65600; k <= 65600; k += 1 + static_cast<int>(random.size(0, 2))) {
      const float tie = (static_cast<float>(k) + 0.5F) * scale;
      const float below = std::nextafter(tie, -infinity);
      const float above = std::nextafter(tie, infinity);
      x.insert(x.end(), {std::nextafter(below, -infinity), below, tie, above,
                         std::nextafter(above, infinity)});
    }
    for (const std::int32_t zero_point : {0, 30000, 65535}) {
      const quant_params p{scale, zero_point};
      std::vector<std::uint16_t> expected(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i] = static_cast<std::uint16_t>(
            detent::reference::quantize(x[i], p, full_grid<std::uint16_t>));
      }
      INFO("scale ", scale, " zero point ", zero_point);
      for_each_target([&] {
        std::vector<std::uint16_t> q(x.size());
        detent::quantize(x, q, p);
        CHECK((q == expected));
      });
    }
  }
}

TEST_CASE("arguments that make no sense are errors that name them") {
  using detent::error_kind;
  std::vector<float> x(24);
  std::vector<std::uint8_t> q(24, 7);
  const detent::tensor_view<const float> in(x.data(), {4, 6});
  const detent::tensor_view<std::uint8_t> out(q.data(), {4, 6});
  const auto block = [](std::size_t axis, std::size_t size, std::size_t count) {
    return detent::block_quant_params{axis, size, std::vector<float>(count, 1.0F),
                                      std::vector<std::int32_t>(count, 0)};
  };
  const auto check = [&](error_kind kind, std::string_view text, const auto& call) {
    test::check_error(kind, {text}, call);
    CHECK(q == std::vector<std::uint8_t>(24, 7));
  };
  check(error_kind::invalid_argument, "axis 2 of a tensor of rank 2",
        [&] { detent::quantize(in, out, block(2, 3, 8)); });
  check(error_kind::invalid_argument, "block size 0",
        [&] { detent::quantize(in, out, block(1, 0, 8)); });
  check(error_kind::shape_mismatch, "8 blocks of 4 along axis 1",
        [&] { detent::quantize(in, out, block(1, 4, 9)); });
  check(error_kind::shape_mismatch, "5 scales", [&] {
    detent::quantize(in, out,
                     detent::channel_quant_params{1, std::vector<float>(5, 1.0F),
                                                  std::vector<std::int32_t>(5, 0)});
  });
  check(error_kind::invalid_argument, "overlap", [&] {
    detent::quantize(x, std::span(reinterpret_cast<std::uint8_t*>(x.data()) + 90, 24), {1.0F, 0});
  });
  check(error_kind::invalid_argument, "does not fit 0..15", [&] {
    detent::quantize(x, packed_span<uint4>(std::span(q).first(12), 24), {1.0F, 0}, {0, 16});
  });
  check(error_kind::invalid_argument, "zero point 9", [&] {
    detent::quantize(x, packed_span<int4>(std::span(q).first(12), 24), {1.0F, 9});
  });
  check(error_kind::shape_mismatch, "24 elements, output 20", [&] {
    detent::quantize(x, packed_span<uint4>(std::span(q).first(10), 20), {1.0F, 0});
  });
  check(error_kind::shape_mismatch, "bytes for 24 elements",
        [&] { static_cast<void>(packed_span<uint4>(std::span(q).first(11), 24)); });
  std::vector<std::int32_t> acc(24);
  const std::vector<std::int32_t> bias(3);
  check(error_kind::shape_mismatch, "3 biases for 1 multipliers", [&] {
    detent::requantize(acc, q, {1.0F, 0}, full_grid<std::uint8_t>, bias);
  });
  check(error_kind::invalid_argument, "zero point 1", [&] {
    detent::dequantize(acc, x, {1.0F, 1});
  });
}
