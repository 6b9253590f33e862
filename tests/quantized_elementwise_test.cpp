// SPDX-License-Identifier: BSD-3-Clause
// Quantized add, sub, mul, div, tables, concat and averages: the bits of the definitions on every
// target, and values derived by hand.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <detent/quantize.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

#include "check_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "guarded_memory.hpp"
#include "random.hpp"

namespace {

using detent::apply_table;
using detent::concat_input;
using detent::error_kind;
using detent::full_grid;
using detent::grid;
using detent::lookup_table;
using detent::matrix_view;
using detent::quant_params;
using detent::quantized_average;
using detent::quantized_concat;
using detent::rescale;
using test::check_error;
using test::difference;
using test::random_source;
namespace reference = detent::reference;

using u8 = std::uint8_t;
using s8 = std::int8_t;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float flt_max = std::numeric_limits<float>::max();
constexpr float denorm_min = std::numeric_limits<float>::denorm_min();

/// Every value of the type, in the order of its bytes.
template <class Q>
std::vector<Q> all_values() {
  std::vector<Q> values(256);
  for (std::size_t byte = 0; byte < values.size(); ++byte) {
    values[byte] = static_cast<Q>(byte);
  }
  return values;
}

template <class Q>
std::int32_t random_zero_point(random_source& random) {
  return random.integer(full_grid<Q>.qmin, full_grid<Q>.qmax);
}

// The four functions with one signature.

struct adding {
  using function = std::plus<float>;
  static constexpr const char* name = "quantized_add";
  template <class... Args>
  static void run(Args... args) {
    detent::quantized_add(args...);
  }
};
struct subtracting {
  using function = std::minus<float>;
  static constexpr const char* name = "quantized_sub";
  template <class... Args>
  static void run(Args... args) {
    detent::quantized_sub(args...);
  }
};
struct multiplying {
  using function = std::multiplies<float>;
  static constexpr const char* name = "quantized_mul";
  template <class... Args>
  static void run(Args... args) {
    detent::quantized_mul(args...);
  }
};
struct dividing {
  using function = std::divides<float>;
  static constexpr const char* name = "quantized_div";
  template <class... Args>
  static void run(Args... args) {
    detent::quantized_div(args...);
  }
};

#define ALL_FUNCTIONS adding, subtracting, multiplying, dividing

template <class Function>
void for_each_type_pair(const Function& f) {
  f.template operator()<u8, u8>();
  f.template operator()<u8, s8>();
  f.template operator()<s8, u8>();
  f.template operator()<s8, s8>();
}

}  // namespace

// ----------------------------------------------------------------------------------------- binary

TEST_CASE("add, sub, mul, div: by hand") {
  const std::vector<u8> a = {10, 11, 0, 255, 12};
  const std::vector<u8> b = {20, 20, 20, 0, 22};
  std::vector<u8> out(5);
  const quant_params pa{0.5F, 10};   // 0, 0.5, -5, 122.5, 1
  const quant_params pb{0.25F, 20};  // 0, 0, 0, -5, 0.5
  const quant_params po{0.5F, 4};
  detent::quantized_add(a, pa, b, pb, out, po);  // 0, 0.5, -5, 117.5, 1.5
  CHECK(out == std::vector<u8>{4, 5, 0, 239, 7});
  detent::quantized_sub(a, pa, b, pb, out, po);  // 0, 0.5, -5, 127.5, 0.5
  CHECK(out == std::vector<u8>{4, 5, 0, 255, 5});
  detent::quantized_mul(a, pa, b, pb, out, po);  // 0, 0, 0, -612.5, 0.5
  CHECK(out == std::vector<u8>{4, 4, 4, 0, 5});
  detent::quantized_div(a, pa, b, pb, out, po);  // NaN, inf, -inf, -24.5, 2
  CHECK(out == std::vector<u8>{4, 255, 0, 0, 8});

  // Ties go to even before the zero point is added: 2.5 -> 2, 3.5 -> 4.
  const std::vector<s8> c = {5, 7, -5};
  std::vector<s8> sum(3);
  detent::quantized_add(c, {1.0F, 0}, std::vector<u8>(3, 9), {1.0F, 9}, sum, {2.0F, 1});
  CHECK(sum == std::vector<s8>{3, 5, -1});

  // A narrower range of levels, of which the zero point is none.
  detent::quantized_add(a, pa, b, pb, out, po, {5, 200});
  CHECK(out == std::vector<u8>{5, 5, 5, 200, 7});
  detent::quantized_div(a, pa, b, pb, out, po, {6, 9});
  CHECK(out == std::vector<u8>{4, 9, 6, 6, 8});  // NaN is the zero point all the same
}

TEST_CASE_TEMPLATE("binary functions of all pairs of values", Op, ALL_FUNCTIONS) {
  random_source random(1);
  INFO("seed ", random.seed());
  constexpr float scales[] = {0.1F, 0.3F, 1.0F / 3.0F, 0x1p-7F, 0.7F, 1e-40F, 1e37F, 1.0F};
  for_each_type_pair([&]<class A, class B>() {
    std::vector<A> a;
    std::vector<B> b;
    for (const A x : all_values<A>()) {
      for (const B y : all_values<B>()) {
        a.push_back(x);
        b.push_back(y);
      }
    }
    const auto check = [&]<class Out>(Out, float scale) {
      const quant_params pa{scale, random_zero_point<A>(random)};
      const quant_params pb{scales[random.size(0, 7)], random_zero_point<B>(random)};
      const quant_params po{scales[random.size(0, 7)], random_zero_point<Out>(random)};
      grid levels = full_grid<Out>;
      if (random.chance(50)) {
        levels.qmin += random.integer(0, 100);
        levels.qmax -= random.integer(0, 100);
      }
      std::vector<Out> expected(a.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        expected[i] = static_cast<Out>(
            reference::quantized_binary(typename Op::function{}, a[i], pa, b[i], pb, po, levels));
      }
      INFO("scales ", pa.scale, " ", pb.scale, " ", po.scale, " zero points ", pa.zero_point, " ",
           pb.zero_point, " ", po.zero_point, " levels ", levels.qmin, "..", levels.qmax);
      test::for_each_target([&] {
        std::vector<Out> out(a.size());
        Op::run(std::span<const A>(a), pa, std::span<const B>(b), pb, std::span<Out>(out), po,
                levels);
        CHECK(difference(out, expected) == "");
      });
    };
    check(u8{}, scales[random.size(0, 7)]);
    check(s8{}, scales[random.size(0, 7)]);
  });
}

TEST_CASE("products are rounded before they are added") {
  // What a fused multiply-add would store, at scales that make ties likely.
  const quant_params pa{0.1F, 3};
  const quant_params pb{0.3F, 200};
  const quant_params po{0.2F, 100};
  int fused_differs = 0;
  int sequence_differs = 0;
  for (std::int32_t a = 0; a < 256; ++a) {
    for (std::int32_t b = 0; b < 256; ++b) {
      const volatile float left = reference::dequantize(a, pa);
      const volatile float right = reference::dequantize(b, pb);
      const volatile float sum = left + right;
      const std::int32_t expected = reference::quantize(sum, po, full_grid<u8>);
      const std::int32_t fused = reference::quantize(
          std::fma(static_cast<float>(a - pa.zero_point), pa.scale, right), po, full_grid<u8>);
      fused_differs += fused != expected ? 1 : 0;
      sequence_differs += reference::quantized_binary(std::plus<float>{}, a, pa, b, pb, po,
                                                      full_grid<u8>) != expected
                              ? 1
                              : 0;
    }
  }
  CHECK(sequence_differs == 0);
  CHECK(fused_differs > 0);  // else this has shown nothing
}

TEST_CASE("binary functions: every size, in place, nothing beside") {
  random_source random(2);
  INFO("seed ", random.seed());
  const quant_params pa{0.1F, 100};
  const quant_params pb{0.2F, 150};
  const quant_params po{0.15F, 120};
  const std::vector<u8> a = random.integers<u8>(1100);
  const std::vector<u8> b = random.integers<u8>(1100);
  std::vector<u8> expected(1100);
  for (std::size_t i = 0; i < a.size(); ++i) {
    expected[i] = static_cast<u8>(reference::quantized_binary(std::multiplies<float>{}, a[i], pa,
                                                              b[i], pb, po, full_grid<u8>));
  }
  test::guarded_memory memory(2000);
  for (std::size_t n = 0; n <= 1100; n += n < 70 || (n > 500 && n < 530) ? 1 : 37) {
    const std::span<const u8> x = std::span(a).first(n);
    const std::span<const u8> y = std::span(b).first(n);
    for (const std::span<u8> out : {memory.front<u8>(n, 1), memory.back<u8>(n)}) {
      memory.repaint();
      detent::quantized_mul(x, pa, y, pb, out, po);
      REQUIRE(memory.intact_around(out));
      REQUIRE(difference(out, std::span(expected).first(n)) == "");
      // Over the left operand, then over the right one.
      std::copy(x.begin(), x.end(), out.begin());
      detent::quantized_mul(out, pa, y, pb, out, po);
      REQUIRE(difference(out, std::span(expected).first(n)) == "");
      std::copy(y.begin(), y.end(), out.begin());
      detent::quantized_mul(x, pa, out, pb, out, po);
      REQUIRE(difference(out, std::span(expected).first(n)) == "");
    }
  }
}

TEST_CASE_TEMPLATE("binary functions refuse", Op, ALL_FUNCTIONS) {
  constexpr auto invalid = error_kind::invalid_argument;
  constexpr auto mismatch = error_kind::shape_mismatch;
  const std::vector<u8> a(4, 1);
  const std::vector<s8> b(4, 1);
  std::vector<u8> out(4, 42);
  const auto attempt = [&](quant_params pa, quant_params pb, quant_params po, grid levels) {
    return [&, pa, pb, po, levels] {
      Op::run(std::span<const u8>(a), pa, std::span<const s8>(b), pb, std::span<u8>(out), po,
              levels);
    };
  };
  constexpr grid full = full_grid<u8>;
  const quant_params good{1.0F, 1};
  for (const float scale : {0.0F, -1.0F, quiet_nan, infinity}) {
    check_error(invalid, {Op::name, "scale"}, attempt({scale, 1}, good, good, full));
    check_error(invalid, {Op::name, "scale"}, attempt(good, {scale, 1}, good, full));
    check_error(invalid, {Op::name, "scale"}, attempt(good, good, {scale, 1}, full));
  }
  check_error(invalid, {Op::name, "zero point -1"}, attempt({1.0F, -1}, good, good, full));
  check_error(invalid, {Op::name, "zero point 128"}, attempt(good, {1.0F, 128}, good, full));
  check_error(invalid, {Op::name, "zero point 256"}, attempt(good, good, {1.0F, 256}, full));
  check_error(invalid, {Op::name, "grid -1..5"}, attempt(good, good, good, {-1, 5}));
  check_error(invalid, {Op::name, "grid 5..256"}, attempt(good, good, good, {5, 256}));
  check_error(invalid, {Op::name, "grid 5..4"}, attempt(good, good, good, {5, 4}));
  const std::span<const u8> x(a);
  const std::span<const s8> y(b);
  check_error(mismatch, {Op::name, "3", "4"},
              [&] { Op::run(x.first(3), good, y, good, std::span<u8>(out), good); });
  check_error(mismatch, {Op::name, "3", "4"},
              [&] { Op::run(x, good, y.first(3), good, std::span<u8>(out), good); });
  check_error(invalid, {Op::name, "null", "4"}, [&] {
    Op::run(x, good, std::span<const s8>(static_cast<const s8*>(nullptr), 4), good,
            std::span<u8>(out), good);
  });
  CHECK(out == std::vector<u8>(4, 42));
}

// ----------------------------------------------------------------------------------------- tables

namespace {

/// Checks the entries of f's table against the definition, and its application to all values.
template <class In, class Out, class F>
void check_table(const F& f, quant_params in, quant_params out) {
  std::array<Out, 256> expected{};
  for (std::int32_t q = full_grid<In>.qmin; q <= full_grid<In>.qmax; ++q) {
    const volatile float x = reference::dequantize(q, in);
    expected[static_cast<u8>(q)] = static_cast<Out>(reference::quantize(f(x), out, full_grid<Out>));
  }
  test::for_each_target([&] {
    const lookup_table<In, Out> table(f, in, out);
    CHECK(difference(table.entries(), expected) == "");
    const std::vector<In> values = all_values<In>();
    std::vector<Out> results(values.size());
    apply_table(values, results, table);
    CHECK(difference(results, expected) == "");
    for (const In q : values) {
      REQUIRE(table[q] == expected[static_cast<u8>(q)]);
    }
  });
}

}  // namespace

TEST_CASE("lookup_table: entries are Q(f(D(q)))") {
  random_source random(3);
  INFO("seed ", random.seed());
  for_each_type_pair([&]<class In, class Out>() {
    for (int round = 0; round < 10; ++round) {
      const quant_params in{random.real(0.001F, 0.3F), random_zero_point<In>(random)};
      const quant_params out{random.real(0.001F, 0.3F), random_zero_point<Out>(random)};
      INFO("scales ", in.scale, " ", out.scale, " zero points ", in.zero_point, " ",
           out.zero_point);
      check_table<In, Out>([](float x) { return std::tanh(x); }, in, out);
      check_table<In, Out>([](float x) { return 1.0F / (1.0F + std::exp(-x)); }, in, out);
      check_table<In, Out>([](float x) { return x < 0.0F ? 0.01F * x : x; }, in, out);
      check_table<In, Out>([](float x) { return x + 0.7F; }, in, out);
      check_table<In, Out>([](float x) { return std::sqrt(x); }, in, out);  // NaN below 0
      check_table<In, Out>([](float x) { return 1.0F / x; }, in, out);      // infinities
      // Overflows before f sees it.
      check_table<In, Out>([](float x) { return x; }, {flt_max, in.zero_point}, out);
      check_table<In, Out>([](float x) { return x; }, in, {denorm_min, out.zero_point});
    }
  });
}

TEST_CASE("lookup_table: by hand") {
  // sigmoid(0) = 0.5; sigmoid is 1 for large x: 256 steps, which saturate.
  const auto sigmoid = [](float x) { return 1.0F / (1.0F + std::exp(-x)); };
  const lookup_table<s8, u8> table(sigmoid, {1.0F, -1}, {1.0F / 256.0F, 0});
  CHECK(table[-1] == 128);
  CHECK(table[127] == 255);
  CHECK(table[-128] == 0);
  CHECK(table[0] == 187);              // 0.7311 * 256 = 187.15
  CHECK(table.entries()[255] == 128);  // the byte of -1
  CHECK(table.entries()[128] == 0);    // the byte of -128

  const auto leaky = [](float x) { return x < 0.0F ? x * 0.25F : x; };
  const lookup_table<s8> same_type(leaky, {1.0F, 10}, {0.5F, -3});
  static_assert(std::is_same_v<decltype(same_type[0]), s8>);
  CHECK(same_type[10] == -3);
  CHECK(same_type[12] == 1);  // 2 / 0.5 - 3
  CHECK(same_type[6] == -5);  // -1 / 0.5 - 3
  CHECK(same_type[9] == -3);  // -0.25 / 0.5 is a tie
  CHECK(same_type[7] == -5);  // -0.75 / 0.5 is a tie: -2
  CHECK(same_type[127] == 127);

  const lookup_table<u8> root([](float x) { return std::sqrt(x); }, {1.0F, 4}, {0.5F, 9});
  CHECK(root[3] == 9);  // NaN
  CHECK(root[8] == 13);
}

TEST_CASE("lookup_table calls the function once for each value, in order") {
  std::vector<float> seen;
  const lookup_table<s8> table(
      [&seen](float x) {
        seen.push_back(x);
        return x;
      },
      {0.5F, 1}, {0.5F, 1});
  CHECK(table[5] == 5);
  REQUIRE(seen.size() == 256);
  CHECK(seen[0] == -0.5F);
  CHECK(seen[127] == 63.0F);
  CHECK(seen[128] == -64.5F);
  CHECK(seen[255] == -1.0F);
}

TEST_CASE("apply_table: every size, in place, nothing beside") {
  random_source random(4);
  INFO("seed ", random.seed());
  const lookup_table<u8> table([](float x) { return std::tanh(x); }, {0.02F, 99}, {0.007F, 130});
  test::guarded_memory memory(400);
  for (std::size_t n = 0; n <= 300; ++n) {
    const std::vector<u8> in = random.integers<u8>(n);
    std::vector<u8> expected;
    for (const u8 q : in) {
      expected.push_back(table[q]);
    }
    test::for_each_target([&] {
      for (const bool at_end : {true, false}) {
        memory.repaint();
        const std::span<u8> out = at_end ? memory.back<u8>(n) : memory.front<u8>(n);
        apply_table(in, out, table);
        REQUIRE(memory.intact_around(out));
        REQUIRE(difference(out, expected) == "");
        std::copy(in.begin(), in.end(), out.begin());
        apply_table(out, out, table);
        REQUIRE(difference(out, expected) == "");
      }
    });
  }
}

TEST_CASE("lookup_table and apply_table refuse") {
  constexpr auto invalid = error_kind::invalid_argument;
  const auto identity = [](float x) { return x; };
  const auto attempt = [&](quant_params in, quant_params out) {
    return [&identity, in, out] { static_cast<void>(lookup_table<u8, s8>(identity, in, out)); };
  };
  check_error(invalid, {"lookup_table", "scale 0"}, attempt({0.0F, 0}, {1.0F, 0}));
  check_error(invalid, {"lookup_table", "scale nan"}, attempt({1.0F, 0}, {quiet_nan, 0}));
  check_error(invalid, {"lookup_table", "zero point 256"}, attempt({1.0F, 256}, {1.0F, 0}));
  check_error(invalid, {"lookup_table", "zero point 128"}, attempt({1.0F, 0}, {1.0F, 128}));
  const lookup_table<u8, s8> table(identity, {1.0F, 0}, {1.0F, 0});
  const std::vector<u8> in(3);
  std::vector<s8> out(4, 42);
  check_error(error_kind::shape_mismatch, {"apply_table", "3", "4"},
              [&] { apply_table(in, out, table); });
  CHECK(out == std::vector<s8>(4, 42));
}

// ---------------------------------------------------------------------------------------- rescale

TEST_CASE("rescale is Q(D(q))") {
  random_source random(5);
  INFO("seed ", random.seed());
  constexpr float scales[] = {0.1F, 0.3F, 1.0F, 2.0F, 1e-40F, 1e30F, flt_max, denorm_min};
  for_each_type_pair([&]<class In, class Out>() {
    const std::vector<In> in = all_values<In>();
    for (int round = 0; round < 60; ++round) {
      const quant_params from{scales[random.size(0, 7)], random_zero_point<In>(random)};
      const quant_params to{scales[random.size(0, 7)], random_zero_point<Out>(random)};
      std::vector<Out> expected;
      for (const In q : in) {
        expected.push_back(static_cast<Out>(
            reference::quantize(reference::dequantize(q, from), to, full_grid<Out>)));
      }
      INFO("scales ", from.scale, " ", to.scale, " zero points ", from.zero_point, " ",
           to.zero_point);
      std::vector<Out> out(in.size());
      rescale(in, from, out, to);
      CHECK(difference(out, expected) == "");
    }
    std::vector<Out> out(2);
    check_error(error_kind::shape_mismatch, {"rescale", "256", "2"},
                [&] { rescale(in, {}, out, {}); });
    check_error(error_kind::invalid_argument, {"rescale", "scale"}, [&] {
      rescale(in, {-1.0F, 0}, out, {});
    });
    check_error(error_kind::invalid_argument, {"rescale", "zero point 300"}, [&] {
      rescale(in, {}, out, {1.0F, 300});
    });
  });
  // 2 * (5 - 1) = 8 -> 8 / 4 + 3; 2 * (8 - 1) / 4 = 3.5 -> 4; saturation
  std::vector<s8> out(4);
  rescale(std::vector<u8>{5, 8, 255, 0}, {2.0F, 1}, out, {4.0F, 3});
  CHECK(out == std::vector<s8>{5, 7, 127, 3});
}

TEST_CASE("rescale to the same parameters changes nothing") {
  for (const float scale : {0.1F, 1.0F / 3.0F, 1e-40F, denorm_min, 1e35F, 0x1.fffffep-3F}) {
    for (std::int32_t z = -128; z <= 127; z += 15) {
      std::vector<s8> in = all_values<s8>();
      const std::vector<s8> before = in;
      rescale(in, {scale, z}, in, {scale, z});
      CHECK(difference(in, before) == "");
    }
  }
}

// ----------------------------------------------------------------------------------------- concat

TEST_CASE("quantized_concat: by hand") {
  const std::vector<u8> a = {1, 2, 3, 4};              // 2 rows of 2
  const std::vector<s8> b = {-4, 4};                   // 2 rows of 1
  const std::vector<u8> c = {10, 20, 30, 40, 50, 60};  // 2 rows of 3
  const concat_input inputs[] = {{a, {2.0F, 1}}, {b, {0.5F, 0}}, {c, {1.0F, 7}}};
  std::vector<u8> out(12);
  quantized_concat(inputs, 2, out, {1.0F, 7});
  CHECK(out == std::vector<u8>{7, 9, 5, 10, 20, 30, 11, 13, 9, 40, 50, 60});
  std::vector<u8> one_row(12);
  quantized_concat(inputs, 1, one_row, {1.0F, 7});
  CHECK(one_row == std::vector<u8>{7, 9, 11, 13, 5, 9, 10, 20, 30, 40, 50, 60});
}

TEST_CASE_TEMPLATE("quantized_concat rescales each input", Out, u8, s8) {
  random_source random(6);
  INFO("seed ", random.seed());
  for (int round = 0; round < 300; ++round) {
    const std::size_t rows = random.size(0, 6);
    const std::size_t longest = round % 2 == 0 ? 40 : 200;
    const quant_params to{random.real(0.05F, 0.2F), random_zero_point<Out>(random)};
    const std::size_t count = random.size(0, 5);
    std::vector<std::vector<u8>> unsigned_values(count);
    std::vector<std::vector<s8>> signed_values(count);
    std::vector<concat_input> inputs;
    std::vector<std::vector<Out>> expected_rows(rows);
    std::size_t total = 0;
    const auto add = [&]<class In>(std::vector<In>& values) {
      const std::size_t run = random.size(0, longest);
      values = random.integers<In>(rows * run);
      const bool copied = std::is_same_v<In, Out> && random.chance(50);
      const quant_params from =
          copied ? to : quant_params{random.real(0.05F, 0.2F), random_zero_point<In>(random)};
      inputs.emplace_back(values, from);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float x = reference::dequantize(values[i], from);
        expected_rows[i / run].push_back(
            static_cast<Out>(reference::quantize(x, to, full_grid<Out>)));
      }
      total += values.size();
    };
    for (std::size_t i = 0; i < count; ++i) {
      if (random.chance(50)) {
        add(unsigned_values[i]);
      } else {
        add(signed_values[i]);
      }
    }
    std::vector<Out> expected;
    for (const auto& row : expected_rows) {
      expected.insert(expected.end(), row.begin(), row.end());
    }
    test::for_each_target([&] {
      std::vector<Out> out(total);
      quantized_concat(inputs, rows, out, to);
      REQUIRE(difference(out, expected) == "");
    });
  }
}

TEST_CASE("quantized_concat copies what has the parameters of the output") {
  // At this scale all but the zero point overflows.
  const std::vector<s8> values = all_values<s8>();
  const concat_input inputs[] = {{values, {flt_max, 3}}};
  std::vector<s8> out(256);
  quantized_concat(inputs, 4, out, {flt_max, 3});
  CHECK(out == values);
}

TEST_CASE("quantized_concat refuses") {
  constexpr auto invalid = error_kind::invalid_argument;
  constexpr auto mismatch = error_kind::shape_mismatch;
  const std::vector<u8> a(6);
  const std::vector<s8> b(4);
  std::vector<u8> out(10, 42);
  const auto attempt = [&](std::vector<concat_input> inputs, std::size_t rows, std::size_t size,
                           quant_params to) {
    return [&out, inputs, rows, size, to] {
      quantized_concat(inputs, rows, std::span<u8>(out).first(size), to);
    };
  };
  const quant_params good{1.0F, 0};
  check_error(mismatch, {"quantized_concat", "input 1", "4", "3 rows"},
              attempt({{a, good}, {b, good}}, 3, 10, good));
  check_error(mismatch, {"quantized_concat", "10", "9"},
              attempt({{a, good}, {b, good}}, 2, 9, good));
  check_error(mismatch, {"quantized_concat", "0", "1"}, attempt({}, 2, 1, good));
  check_error(mismatch, {"quantized_concat", "input 0", "6", "0 rows"},
              attempt({{a, good}}, 0, 6, good));
  check_error(invalid, {"quantized_concat", "scale 0"},
              attempt({{a, good}, {b, {0.0F, 0}}}, 2, 10, good));
  check_error(invalid, {"quantized_concat", "zero point -1"},
              attempt({{a, {1.0F, -1}}, {b, good}}, 2, 10, good));
  check_error(invalid, {"quantized_concat", "zero point 128"},
              attempt({{a, good}, {b, {1.0F, 128}}}, 2, 10, good));
  check_error(invalid, {"quantized_concat", "scale inf"},
              attempt({{a, good}, {b, good}}, 2, 10, {infinity, 0}));
  check_error(invalid, {"quantized_concat", "null", "6"},
              attempt({{std::span<const u8>(static_cast<const u8*>(nullptr), 6), good}, {b, good}},
                      2, 10, good));
  check_error(invalid, {"quantized_concat", "null", "6"}, [&] {
    const concat_input inputs[] = {{a, good}};
    quantized_concat(inputs, 2, std::span<u8>(static_cast<u8*>(nullptr), 6), good);
  });
  CHECK(out == std::vector<u8>(10, 42));
}

// ---------------------------------------------------------------------------------------- average

TEST_CASE("quantized_average: by hand") {
  // 3 pixels of 4 channels
  const std::vector<u8> x = {10, 0, 255, 11,  //
                             13, 0, 255, 10,  //
                             10, 0, 255, 10};
  std::vector<u8> out(4);
  // sums of q - 10: 3, -30, 735, 1; m = 0.5 / (0.25 * 3) = 2 / 3
  quantized_average(matrix_view<const u8>(x.data(), 3, 4), {0.5F, 10}, out, {0.25F, 7});
  CHECK(out == std::vector<u8>{9, 0, 255, 8});
  // The first and the last pixel, divided by 4 as if there were padding: sums 0, -20, 490, 1;
  // m = 1 / 2, and 0.5 goes to 0.
  const u8* taps[] = {x.data(), x.data() + 8};
  quantized_average(taps, 4, {0.5F, 10}, out, {0.25F, 25});
  CHECK(out == std::vector<u8>{25, 15, 255, 25});
  // One channel per row: the transposed view.
  std::vector<u8> means(3);
  quantized_average(matrix_view<const u8>(x.data(), 3, 4).transposed(), {1.0F, 0}, means,
                    {1.0F, 0});
  CHECK(means == std::vector<u8>{69, 70, 69});  // 276 / 4, 278 / 4 = 69.5, 275 / 4 = 68.75
}

TEST_CASE("average_multiplier rounds twice") {
  CHECK(reference::average_multiplier(0.5F, 0.25F, 8) == 0.25F);
  random_source random(7);
  INFO("seed ", random.seed());
  int rounded_twice = 0;
  for (int i = 0; i < 1000; ++i) {
    const float in = random.real(0.001F, 1.0F);
    const float out = random.real(0.001F, 1.0F);
    const std::size_t count = random.size(1, 1000);
    const double exact_divisor = static_cast<double>(out) * static_cast<double>(count);
    const auto divisor = static_cast<float>(exact_divisor);
    const auto twice = static_cast<float>(static_cast<double>(in) / static_cast<double>(divisor));
    CHECK(reference::average_multiplier(in, out, count) == twice);
    rounded_twice += static_cast<float>(static_cast<double>(in) / exact_divisor) != twice ? 1 : 0;
  }
  CHECK(rounded_twice > 0);  // else this has shown nothing
}

namespace {

template <class Q>
std::vector<Q> expected_average(const std::vector<std::int64_t>& sums, std::size_t count,
                                quant_params in, quant_params out) {
  const float m = reference::average_multiplier(in.scale, out.scale, count);
  std::vector<Q> expected;
  for (const std::int64_t sum : sums) {
    expected.push_back(static_cast<Q>(
        reference::requantize(static_cast<std::int32_t>(sum), m, out.zero_point, full_grid<Q>)));
  }
  return expected;
}

}  // namespace

TEST_CASE_TEMPLATE("quantized_average is an exact sum and one requantization", Q, u8, s8) {
  random_source random(8);
  INFO("seed ", random.seed());
  for (int round = 0; round < 150; ++round) {
    const std::size_t rows = random.size(1, 30);
    const std::size_t channels = random.chance(30) ? random.size(500, 1100) : random.size(0, 70);
    const std::size_t gap = random.size(0, 3);
    const std::size_t count = rows + (random.chance(50) ? random.size(0, 9) : 0);
    const quant_params in{random.real(0.01F, 0.2F), random_zero_point<Q>(random)};
    const quant_params out{random.real(0.01F, 0.2F), random_zero_point<Q>(random)};
    const std::vector<Q> storage = random.integers<Q>(rows * (channels + gap) + 1);
    const std::size_t stride = channels + gap;
    std::vector<std::int64_t> sums(channels);
    std::vector<const Q*> taps;
    for (std::size_t r = 0; r < rows; ++r) {
      taps.push_back(storage.data() + r * stride);
      for (std::size_t c = 0; c < channels; ++c) {
        sums[c] += storage[r * stride + c] - in.zero_point;
      }
    }
    const std::vector<Q> padded = expected_average<Q>(sums, count, in, out);
    const std::vector<Q> expected = expected_average<Q>(sums, rows, in, out);
    // The same pixels as planes, one channel after the other.
    std::vector<Q> planes(rows * channels + 1);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < channels; ++c) {
        planes[c * rows + r] = storage[r * stride + c];
      }
    }
    test::for_each_target([&] {
      std::vector<Q> y(channels);
      quantized_average(std::span<const Q* const>(taps), count, in, y, out);
      CHECK(difference(y, padded) == "");
      y.assign(channels, Q{42});
      quantized_average(
          matrix_view<const Q>(storage.data(), rows, channels, static_cast<std::ptrdiff_t>(stride)),
          in, y, out);
      CHECK(difference(y, expected) == "");
      y.assign(channels, Q{42});
      quantized_average(matrix_view<const Q>(planes.data(), channels, rows).transposed(), in, y,
                        out);
      CHECK(difference(y, expected) == "");
    });
  }
}

TEST_CASE("quantized_average: the largest sums, and one more value") {
  // A row stride of 0 makes any number of rows of a few bytes.
  constexpr std::size_t most = 8421504;
  const auto check = [&]<class Q>(Q value, std::int32_t in_zero_point, Q expected) {
    const std::vector<Q> row(3, value);
    std::vector<Q> out(3, Q{42});
    quantized_average(matrix_view<const Q>(row.data(), most, 3, 0), {1.0F, in_zero_point}, out,
                      {2.0F, 0});
    CHECK(out == std::vector<Q>(3, expected));
    out.assign(3, Q{42});
    check_error(error_kind::overflow, {"quantized_average", "8421505"}, [&] {
      quantized_average(matrix_view<const Q>(row.data(), most + 1, 3, 0), {1.0F, in_zero_point},
                        out, {2.0F, 0});
    });
    CHECK(out == std::vector<Q>(3, Q{42}));
  };
  check(u8{255}, 0, u8{128});      // 127.5
  check(u8{0}, 255, u8{0});        // -127.5
  check(s8{127}, -128, s8{127});   // 127.5
  check(s8{-128}, 127, s8{-128});  // -127.5
}

TEST_CASE("quantized_average: nothing to average, and multipliers at the ends of float") {
  std::vector<u8> out(3, 42);
  quantized_average(std::span<const u8* const>(), 0, {0.1F, 3}, out, {0.1F, 9});
  CHECK(out == std::vector<u8>(3, 9));
  quantized_average(std::span<const u8* const>(), 4, {0.1F, 3}, out, {0.1F, 8});
  CHECK(out == std::vector<u8>(3, 8));
  quantized_average(matrix_view<const u8>(nullptr, 0, 3), {0.1F, 3}, out, {0.1F, 7});
  CHECK(out == std::vector<u8>(3, 7));
  const std::vector<u8> x = {0, 100, 255};
  const matrix_view<const u8> row(x.data(), 1, 3);
  quantized_average(row, {denorm_min, 3}, out, {flt_max, 6});  // the multiplier is 0
  CHECK(out == std::vector<u8>(3, 6));
  quantized_average(row, {1e38F, 100}, out, {1.0F, 6});
  CHECK(out == std::vector<u8>{0, 6, 255});
  check_error(error_kind::invalid_argument, {"quantized_average", "multiplier", "not finite"}, [&] {
    quantized_average(row, {flt_max, 3}, out, {0.5F, 6});
  });
}

TEST_CASE("quantized_average refuses") {
  constexpr auto invalid = error_kind::invalid_argument;
  const std::vector<s8> x(6);
  std::vector<s8> out(3, 42);
  const matrix_view<const s8> view(x.data(), 2, 3);
  const quant_params good{1.0F, 0};
  check_error(error_kind::shape_mismatch, {"quantized_average", "3 channels", "2"},
              [&] { quantized_average(view, good, std::span<s8>(out).first(2), good); });
  check_error(invalid, {"quantized_average", "scale 0"}, [&] {
    quantized_average(view, {0.0F, 0}, out, good);
  });
  check_error(invalid, {"quantized_average", "scale nan"}, [&] {
    quantized_average(view, good, out, {quiet_nan, 0});
  });
  check_error(invalid, {"quantized_average", "zero point 128"}, [&] {
    quantized_average(view, {1.0F, 128}, out, good);
  });
  check_error(invalid, {"quantized_average", "zero point -129"}, [&] {
    quantized_average(view, good, out, {1.0F, -129});
  });
  check_error(invalid, {"quantized_average", "null", "2 x 3"},
              [&] { quantized_average(matrix_view<const s8>(nullptr, 2, 3), good, out, good); });
  const s8* taps[] = {x.data()};
  check_error(invalid, {"quantized_average", "1 values", "count is 0"},
              [&] { quantized_average(taps, 0, good, out, good); });
  check_error(invalid, {"quantized_average", "null", "3"}, [&] {
    quantized_average(taps, 1, good, std::span<s8>(static_cast<s8*>(nullptr), 3), good);
  });
  CHECK(out == std::vector<s8>(3, 42));
}
