// SPDX-License-Identifier: BSD-3-Clause
// {} for a grid means the whole range of the output's type, in every function that has such a type.
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/detent.hpp>
#include <detent/fixed_point.hpp>
#include <detent/fused_epilogue.hpp>
#include <detent/power_of_two.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/quantized_transform.hpp>
#include <detent/sub_byte.hpp>

#include "check_error.hpp"

namespace {

using detent::full_grid;
using detent::grid;
using detent::matrix_view;
using detent::quant_params;

const std::vector<float> far_floats = {-1e6F, 0.25F, 3.0F, 1e6F};
const std::vector<std::int32_t> far_sums = {-1000000, 7, 100, 1000000};

/// Calls f(levels, to) for the whole range of Q's type as it is written in full, then for {}, and
/// compares what it writes.
template <class Q, class F>
void check_grids(const F& f) {
  std::vector<Q> expected(far_floats.size(), Q{1});
  std::vector<Q> out(far_floats.size(), Q{1});
  f(full_grid<Q>, expected);
  f({}, out);
  CHECK(out == expected);
  CHECK(out.front() != out.back());
}

}  // namespace

TEST_CASE_TEMPLATE("a default grid: quantize and requantize", Q, std::int8_t, std::uint8_t,
                   std::int16_t, std::uint16_t) {
  const quant_params p{0.5F, 1};
  const detent::channel_quant_params of_channels{0, std::vector<float>(4, 0.5F),
                                                 std::vector<std::int32_t>(4, 1)};
  const std::vector<std::int32_t> bias = {7};
  check_grids<Q>([&](grid g, std::vector<Q>& q) { detent::quantize(far_floats, q, p, g); });
  check_grids<Q>(
      [&](grid g, std::vector<Q>& q) { detent::quantize(far_floats, q, of_channels, g); });
  check_grids<Q>([&](grid g, std::vector<Q>& q) { detent::requantize(far_sums, q, p, g, bias); });
  check_grids<Q>(
      [&](grid g, std::vector<Q>& q) { detent::requantize(far_sums, q, of_channels, g); });
  check_grids<Q>([&](grid g, std::vector<Q>& q) {
    detent::requantize(far_sums, q, detent::fixed_point_multiplier{1 << 30, 0}, 1, g,
                       detent::requantize_dialect::double_rounding);
  });
  check_grids<Q>([&](grid g, std::vector<Q>& q) {
    detent::requantize(far_sums, q, detent::power_of_two{-1}, 1, g);
  });
  check_grids<Q>([&](grid g, std::vector<Q>& q) {
    const std::size_t shape[] = {far_floats.size()};
    std::vector<Q> in(far_floats.size());
    in.back() = Q{100};
    detent::quantized_transform(
        [](auto x) { return x * decltype(x)(1e6F); }, detent::tensor_view<Q>(q.data(), shape), p, g,
        detent::quantized_view<Q>{detent::tensor_view<const Q>(in.data(), shape), {1.0F, 0}});
  });
  check_grids<Q>([&](grid g, std::vector<Q>& q) {
    detent::dynamic_quantize<Q>(far_floats, q, detent::quant_scheme{g, false});
  });
}

TEST_CASE_TEMPLATE("a default grid: bytes", Q, std::int8_t, std::uint8_t) {
  const std::vector<std::uint8_t> a = {0, 100, 200, 255};
  check_grids<Q>([&](grid g, std::vector<Q>& out) {
    detent::quantized_add(std::span<const std::uint8_t>(a), {1.0F, 128},
                          std::span<const std::uint8_t>(a), {1.0F, 128}, std::span<Q>(out),
                          {1.0F, 3}, g);
  });
  const std::vector<std::int8_t> ones(4, 1);
  const auto w = detent::pack_weights(matrix_view<const std::int8_t>(ones.data(), 1, 4));
  check_grids<Q>([&](grid g, std::vector<Q>& out) {
    std::vector<Q> row(16);
    detent::gemm(matrix_view<const std::uint8_t>(a.data(), 4, 1), w,
                 matrix_view<Q>(row.data(), 4, 4), {.lhs_zero_point = 128, .levels = g});
    for (std::size_t i = 0; i < 4; ++i) {
      out[i] = row[4 * i];
    }
  });
  check_grids<Q>([&](grid g, std::vector<Q>& out) {
    const detent::packed_filters filters({1, 1, 1, 1, 1}, std::vector<std::int8_t>{1});
    detent::convolve(std::span<const std::uint8_t>(a), filters, {.in_height = 2, .in_width = 2},
                     std::span<Q>(out), {.lhs_zero_point = 128, .levels = g});
  });
  test::check_error(detent::error_kind::invalid_argument, {"1..0"}, [] {
    std::vector<Q> q(4);
    detent::quantize(far_floats, q, {0.5F, 0}, {1, 0});
  });
}

TEST_CASE("a default grid: left sides of dynamic products") {
  const std::vector<std::int8_t> values = {1, 2, 3, 4};
  const auto w = detent::pack_weights(matrix_view<const std::int8_t>(values.data(), 4, 1));
  for (const bool per_row : {false, true}) {
    float expected = 0.0F;
    float out = 1.0F;
    const matrix_view<const float> x(far_floats.data(), 1, 4);
    detent::dynamic_linear(x, w, matrix_view<float>(&expected, 1, 1), {.per_row = per_row});
    detent::dynamic_linear(x, w, matrix_view<float>(&out, 1, 1),
                           {.per_row = per_row, .lhs_scheme = {}});
    CHECK(out == expected);
    CHECK(out != 0.0F);
  }
  const detent::packed_filters filters({1, 1, 1, 1, 1}, std::vector<std::int8_t>{1});
  std::vector<float> expected(4);
  std::vector<float> out(4);
  const detent::window window{.in_height = 2, .in_width = 2};
  detent::dynamic_convolve(std::span<const float>(far_floats), filters, window,
                           std::span(expected));
  detent::dynamic_convolve(std::span<const float>(far_floats), filters, window, std::span(out),
                           {.input_scheme = {}});
  CHECK(out == expected);
}

TEST_CASE("a default grid: refused where no type says what the whole range is") {
  std::vector<float> y(far_floats.size());
  test::check_error(detent::error_kind::invalid_argument, {"fake_quantize", "0..-1"}, [&] {
    detent::fake_quantize(far_floats, y, {0.5F, 0}, {});
  });
  test::check_error(detent::error_kind::invalid_argument, {"params_from_range", "0..-1"}, [] {
    static_cast<void>(detent::params_from_range({0.0F, 1.0F}, detent::quant_scheme{}));
  });
}
