// SPDX-License-Identifier: BSD-3-Clause
// com.microsoft's MatMulNBits, MatMulIntegerToFloat, DynamicQuantizeMatMul and MulInteger against
// plain loops. Values are small multiples of powers of two where sums matter: then floats add them
// up exactly in any order, and results are compared to the bit.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/float_formats.hpp>
#include <detent/graph/run/executor.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "single_node.hpp"

namespace {

using namespace test;

constexpr const char* microsoft = "com.microsoft";

/// The model of one node of com.microsoft; see test::single_node().
graph::model single_node(const std::string& op, const std::vector<tensor>& inputs, bool constant,
                         test::attributes a = {}, element_type out = element_type::f32) {
  return test::single_node(op, inputs, constant, std::move(a), microsoft, out);
}

tensor run(const std::string& op, const std::vector<tensor>& inputs, bool constant,
           test::attributes a = {}, element_type out = element_type::f32) {
  return run_twice(single_node(op, inputs, constant, std::move(a), out), inputs, constant);
}

// ------------------------------------------------------------------------------------ MatMulNBits

enum class zero_point_kind { none, packed, real };

/// Weights of MatMulNBits as they are meant: numbers, and the bytes that a plain reading of the
/// operator's description makes of them.
struct nbits_case {
  std::size_t bits = 4, block = 32, k = 0, n = 0;
  std::vector<int> codes;           // n x k
  std::vector<float> scales;        // n x blocks
  std::vector<double> zero_points;  // n x blocks
  zero_point_kind kind = zero_point_kind::none;
  std::vector<float> bias;  // or empty

  [[nodiscard]] std::size_t blocks() const { return (k + block - 1) / block; }

  nbits_case(test::random_source& r, std::size_t bits_, std::size_t block_, std::size_t k_,
             std::size_t n_, zero_point_kind kind_, bool has_bias)
      : bits(bits_), block(block_), k(k_), n(n_), kind(kind_) {
    const int top = (1 << bits) - 1;
    for (std::size_t i = 0; i < n * k; ++i) {
      codes.push_back(r.chance(20) ? (r.chance(50) ? top : 0) : r.integer(0, top));
    }
    for (std::size_t i = 0; i < n * blocks(); ++i) {
      scales.push_back(static_cast<float>(r.integer(1, 7)) / 8.0F);
      zero_points.push_back(kind == zero_point_kind::none     ? 1 << (bits - 1)
                            : kind == zero_point_kind::packed ? r.integer(0, top)
                                                              : r.integer(0, 4 * top) / 4.0);
    }
    for (std::size_t i = 0; i < n && has_bias; ++i) {
      bias.push_back(static_cast<float>(r.integer(-32, 32)) / 4.0F);
    }
  }

  /// `width` numbers of each row, one after the other from the lowest bit of its first byte on.
  template <class T>
  [[nodiscard]] std::vector<std::uint8_t> packed(const std::vector<T>& values, std::size_t width,
                                                 std::size_t row_bytes) const {
    std::vector<std::uint8_t> bytes(n * row_bytes, 0);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t bit = 0; bit < bits; ++bit) {
          const std::size_t at = i * bits + bit;
          const auto value = static_cast<unsigned>(values[r * width + i]);
          bytes[r * row_bytes + at / 8] = static_cast<std::uint8_t>(
              bytes[r * row_bytes + at / 8] | ((value >> bit & 1U) << (at % 8)));
        }
      }
    }
    return bytes;
  }

  [[nodiscard]] std::vector<tensor> inputs(const tensor& a, bool flat = false) const {
    const auto columns = static_cast<std::int64_t>(n);
    const auto block_count = static_cast<std::int64_t>(blocks());
    const std::size_t blob = block * bits / 8;
    const std::size_t zero_point_bytes = (blocks() * bits + 7) / 8;
    std::vector<tensor> all{
        a,
        test::make_tensor(element_type::u8, {columns, block_count, static_cast<std::int64_t>(blob)},
                          packed(codes, k, blocks() * blob)),
        floats(flat ? shape{columns * block_count} : shape{columns, block_count}, scales)};
    if (kind == zero_point_kind::packed) {
      const auto width = static_cast<std::int64_t>(zero_point_bytes);
      all.push_back(test::make_tensor(element_type::u8,
                                      flat ? shape{columns * width} : shape{columns, width},
                                      packed(zero_points, blocks(), zero_point_bytes)));
    } else if (kind == zero_point_kind::real) {
      all.push_back(floats({columns, block_count}, {zero_points.begin(), zero_points.end()}));
    }
    if (!bias.empty()) {
      all.resize(5);
      all.push_back(floats({columns}, bias));
    }
    return all;
  }

  [[nodiscard]] test::attributes attributes(std::int64_t accuracy_level = 0) const {
    test::attributes a{{"bits", number(static_cast<std::int64_t>(bits))},
                       {"block_size", number(static_cast<std::int64_t>(block))},
                       {"K", number(static_cast<std::int64_t>(k))},
                       {"N", number(static_cast<std::int64_t>(n))}};
    if (accuracy_level != 0) {
      a["accuracy_level"] = number(accuracy_level);
    }
    return a;
  }

  [[nodiscard]] double weight(std::size_t column, std::size_t row) const {
    const std::size_t at = column * blocks() + row / block;
    return (codes[column * k + row] - zero_points[at]) * static_cast<double>(scales[at]);
  }

  [[nodiscard]] std::vector<float> product(const std::vector<float>& a) const {
    std::vector<float> y;
    for (std::size_t i = 0; i < a.size() / k; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        double sum = bias.empty() ? 0.0 : static_cast<double>(bias[j]);
        for (std::size_t d = 0; d < k; ++d) {
          sum += static_cast<double>(a[i * k + d]) * weight(j, d);
        }
        y.push_back(static_cast<float>(sum));
      }
    }
    return y;
  }
};

std::vector<float> quarters(test::random_source& r, std::size_t count) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(r.integer(-16, 16)) / 4.0F);
  }
  return values;
}

TEST_CASE("MatMulNBits: every width, block and kind of zero point") {
  test::random_source r(61);
  INFO("seed ", r.seed());
  test::for_each_target([&] {
    for (const std::size_t bits : {2U, 4U, 8U}) {
      for (const auto kind :
           {zero_point_kind::none, zero_point_kind::packed, zero_point_kind::real}) {
        for (int i = 0; i < 6; ++i) {
          const std::size_t block = std::size_t{16} << r.size(0, 5);
          const std::size_t k = r.size(1, 150);
          const nbits_case c(r, bits, block, k, r.size(1, 40), kind, r.chance(50));
          const bool constant = r.chance(70);
          INFO("bits ", bits, " block ", block, " K ", k, " N ", c.n, " kind ",
               static_cast<int>(kind), constant ? " constant" : "");
          shape dims;
          for (std::size_t d = r.size(0, 3); d > 0; --d) {
            dims.push_back(r.integer(1, 4));
          }
          dims.push_back(static_cast<std::int64_t>(k));
          const std::vector<float> a = quarters(r, graph::element_count(dims));
          const auto inputs = c.inputs(floats(dims, a), r.chance(30));
          const tensor y = run("MatMulNBits", inputs, constant, c.attributes(r.integer(0, 3)));
          dims.back() = static_cast<std::int64_t>(c.n);
          CHECK(y.dims() == dims);
          CHECK(test::difference(y.data<float>(), c.product(a)) == "");
        }
      }
    }
  });
}

TEST_CASE("MatMulNBits: the documented bytes") {
  // Two columns, K = 17: two blocks of 16, the second with one code. Low nibbles come first.
  std::vector<std::uint8_t> b(2 * 2 * 8, 0xFF);  // what is behind K does not count
  b[0] = 0x2A;                                   // codes 10, 2 of column 0
  for (std::size_t i = 1; i < 8; ++i) {
    b[i] = 0x00;
  }
  b[8] = 0xF7;  // code 7 in block 1
  for (std::size_t i = 16; i < 24; ++i) {
    b[i] = 0x88;
  }
  b[24] = 0x01;
  std::vector<float> a(17, 0.0F);
  a[0] = 1.0F;
  a[1] = 100.0F;
  a[16] = 10000.0F;
  const std::vector<tensor> inputs{
      floats({1, 17}, a), test::make_tensor(element_type::u8, {2, 2, 8}, b),
      floats({2, 2}, {1.0F, 2.0F, 0.5F, 4.0F}),
      test::make_tensor<std::uint8_t>(element_type::u8, {2, 1}, {0x53, 0x08})};
  const tensor y = run("MatMulNBits", inputs, true,
                       {{"block_size", number(16)}, {"K", number(17)}, {"N", number(2)}});
  // Column 0: zero points 3, 5. Column 1: zero points 8, 0.
  CHECK(test::values_of<float>(y) ==
        std::vector<float>{7.0F - 100.0F + 10000.0F * 4.0F, 10000.0F * 4.0F});
}

TEST_CASE("MatMulNBits: negative and zero scales") {
  test::random_source r(62);
  INFO("seed ", r.seed());
  for (const auto kind : {zero_point_kind::none, zero_point_kind::packed}) {
    for (const std::int64_t accuracy_level : {0, 4}) {
      for (const std::size_t bits : {4U, 8U}) {
        nbits_case c(r, bits, 16, 50, 21, kind, true);
        for (float& s : c.scales) {
          s = r.chance(20) ? 0.0F : r.chance(50) ? -1.0F : 0.5F;
        }
        // Rows of whole numbers from -127 to 128 are exact as uint8, too.
        std::vector<float> a;
        for (std::size_t i = 0; i < 4 * c.k; ++i) {
          a.push_back(static_cast<float>(i % c.k == 7    ? -127
                                         : i % c.k == 11 ? 128
                                                         : r.integer(-127, 128)));
        }
        INFO("bits ", bits, " accuracy level ", accuracy_level);
        const tensor y =
            run("MatMulNBits", c.inputs(floats({4, 50}, a)), true, c.attributes(accuracy_level));
        CHECK(test::difference(y.data<float>(), c.product(a)) == "");
      }
    }
  }
}

TEST_CASE("MatMulNBits: accuracy level 4 takes rows as uint8") {
  test::random_source r(63);
  INFO("seed ", r.seed());
  for (const auto kind : {zero_point_kind::none, zero_point_kind::packed, zero_point_kind::real}) {
    for (const std::size_t bits : {4U, 8U}) {
      const nbits_case c(r, bits, 32, 90, 33, kind, true);
      std::vector<float> a = r.reals(5 * c.k, -1.0F, 3.0F);
      const auto inputs = c.inputs(floats({5, 90}, a));
      std::vector<float> real =
          test::values_of<float>(run("MatMulNBits", inputs, true, c.attributes()));
      std::vector<float> integer =
          test::values_of<float>(run("MatMulNBits", inputs, true, c.attributes(4)));
      const bool is_integer = bits == 4 && kind != zero_point_kind::real;
      INFO("bits ", bits, " kind ", static_cast<int>(kind));
      CHECK((real != integer) == is_integer);
      for (std::size_t i = 0; i < 5; ++i) {
        // Rounding moves each element of a row by half a step of its range at most.
        float lower = 0.0F;
        float upper = 0.0F;
        for (std::size_t d = 0; d < c.k; ++d) {
          lower = (std::min)(lower, a[i * c.k + d]);
          upper = (std::max)(upper, a[i * c.k + d]);
        }
        const double half = (static_cast<double>(upper) - static_cast<double>(lower)) / 510.0;
        for (std::size_t j = 0; j < c.n; ++j) {
          double magnitudes = 0.0;
          for (std::size_t d = 0; d < c.k; ++d) {
            magnitudes += std::fabs(c.weight(j, d));
          }
          const std::size_t at = i * c.n + j;
          CHECK(std::fabs(static_cast<double>(integer[at]) - static_cast<double>(real[at])) <=
                half * magnitudes * 1.001 + 1e-3);
        }
      }
    }
  }
}

TEST_CASE("MatMulNBits: float16, no rows, weights that change") {
  test::random_source r(64);
  INFO("seed ", r.seed());
  const nbits_case c(r, 4, 16, 40, 9, zero_point_kind::packed, true);
  const std::vector<float> a = quarters(r, 3 * c.k);
  const std::vector<tensor> inputs = c.inputs(floats({3, 40}, a));
  const std::vector<float> expected = c.product(a);

  std::vector<tensor> halves = inputs;
  for (const std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{5}}) {
    halves[i] = graph::detail::float_to_half(inputs[i], element_type::f16);
  }
  const tensor y = run("MatMulNBits", halves, true, c.attributes(), element_type::f16);
  REQUIRE(y.type() == element_type::f16);
  std::vector<std::uint16_t> rounded;
  for (const float e : expected) {
    rounded.push_back(detent::round_to<detent::float16>(e).bits);
  }
  CHECK(test::values_of<std::uint16_t>(y) == rounded);

  for (const std::int64_t accuracy_level : {0, 4}) {
    std::vector<tensor> empty = inputs;
    empty[0] = floats({2, 0, 40}, {});
    CHECK(run("MatMulNBits", empty, true, c.attributes(accuracy_level)).dims() == shape{2, 0, 9});
  }

  // Whichever of the inputs is no constant may change between runs.
  for (const std::size_t changing :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5}}) {
    graph::model m = single_node("MatMulNBits", inputs, false, c.attributes());
    tensors given = feeds(inputs, false);
    const std::string name = "x" + std::to_string(changing);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      const std::string constant = "x" + std::to_string(i);
      if (i != changing && inputs[i].defined()) {
        m.initializers[constant] = inputs[i];
        given.erase(constant);
        std::erase_if(m.inputs, [&](const graph::value_info& v) { return v.name == constant; });
      }
    }
    graph::executor executor(m);
    CHECK(test::difference(executor.run(given)[0].data<float>(), expected) == "");
    const nbits_case other(r, 4, 16, 40, 9, zero_point_kind::packed, true);
    given[name] = other.inputs(floats({3, 40}, a))[changing];
    nbits_case mixed = c;
    mixed.codes = changing == 1 ? other.codes : c.codes;
    mixed.scales = changing == 2 ? other.scales : c.scales;
    mixed.zero_points = changing == 3 ? other.zero_points : c.zero_points;
    mixed.bias = changing == 5 ? other.bias : c.bias;
    INFO("input ", changing);
    CHECK(test::difference(executor.run(given)[0].data<float>(), mixed.product(a)) == "");
  }
}

TEST_CASE("MatMulNBits: what is wrong is named") {
  test::random_source r(65);
  const nbits_case c(r, 4, 16, 40, 9, zero_point_kind::packed, true);
  const std::vector<tensor> inputs = c.inputs(floats({3, 40}, quarters(r, 120)));
  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         std::vector<tensor> given, test::attributes a) {
    check_graph_error(kind, words, [&] { static_cast<void>(run("MatMulNBits", given, true, a)); });
  };
  const auto with = [&](const char* key, std::int64_t value) {
    test::attributes a = c.attributes();
    a[key] = number(value);
    return a;
  };
  const auto with_input = [&](std::size_t i, tensor t) {
    std::vector<tensor> all = inputs;
    all[i] = std::move(t);
    return all;
  };
  check(error_kind::unsupported, {"MatMulNBits", "3 bits"}, inputs, with("bits", 3));
  check(error_kind::bad_file, {"block_size 24"}, inputs, with("block_size", 24));
  check(error_kind::bad_file, {"block_size 8"}, inputs, with("block_size", 8));
  check(error_kind::bad_file, {"[3,40]", "K = 41"}, inputs, with("K", 41));
  check(error_kind::bad_file, {"K is 0"}, inputs, with("K", 0));
  check(error_kind::bad_file, {"N is -1"}, inputs, with("N", -1));
  check(error_kind::bad_file, {"N is 4611686018427387904"}, inputs,
        with("N", std::int64_t{1} << 62));
  check(error_kind::bad_file, {"B of shape [9,3,8]", "240"}, inputs, with("N", 10));
  check(error_kind::unsupported, {"CUDA"}, inputs, with("weight_prepacked", 1));
  check(error_kind::unsupported, {"B of type int8"},
        with_input(1, tensor::allocate(element_type::s8, {9, 3, 8})), c.attributes());
  check(error_kind::bad_file, {"scales of shape [9,4]", "27"},
        with_input(2, floats({9, 4}, std::vector<float>(36, 1.0F))), c.attributes());
  check(error_kind::bad_file, {"zero points of shape [9,3]", "18"},
        with_input(3, tensor::allocate(element_type::u8, {9, 3})), c.attributes());
  check(error_kind::bad_file, {"zero points of shape [9,2]", "27"},
        with_input(3, floats({9, 2}, std::vector<float>(18, 1.0F))), c.attributes());
  check(error_kind::unsupported, {"zero points of type int8"},
        with_input(3, tensor::allocate(element_type::s8, {9, 2})), c.attributes());
  check(error_kind::unsupported, {"input 0 of type float64"},
        with_input(0, tensor::allocate(element_type::f64, {3, 40})), c.attributes());
  check(error_kind::unsupported, {"g_idx"},
        with_input(4, test::make_tensor<std::int32_t>(element_type::s32, {40},
                                                      std::vector<std::int32_t>(40, 0))),
        c.attributes());
  check(error_kind::bad_file, {"bias of shape [8]", "9"},
        with_input(5, floats({8}, std::vector<float>(8, 1.0F))), c.attributes());
}

// ------------------------------------------------------------------------------- integer products

template <class T>
tensor bytes(test::random_source& r, shape dims) {
  const std::size_t count = graph::element_count(dims);
  std::vector<T> values = r.integers<T>(count);
  for (T& v : values) {
    if (r.chance(20)) {
      v = r.chance(50) ? (std::numeric_limits<T>::min)() : (std::numeric_limits<T>::max)();
    }
  }
  return test::make_tensor(std::is_signed_v<T> ? element_type::s8 : element_type::u8,
                           std::move(dims), values);
}

int element(const tensor& t, std::size_t i) {
  return t.type() == element_type::s8 ? int{t.data<std::int8_t>()[i]}
                                      : int{t.data<std::uint8_t>()[i]};
}
/// The same of a parameter: of one value, or of one for each column.
int zero_point(const tensor& t, std::size_t column) {
  return !t.defined() ? 0 : element(t, t.count() == 1 ? 0 : column);
}
float scale(const tensor& t, std::size_t column) {
  return t.data<float>()[t.count() == 1 ? 0 : column];
}

struct float_product {
  tensor a, b;  // [.., M, K] and [K, N]
  tensor b_scale, b_zero_point, bias;

  /// The definition, with the integers of A as they are given.
  [[nodiscard]] std::vector<float> expected(const std::vector<int>& q, float a_scale,
                                            int a_zero_point) const {
    const auto k = static_cast<std::size_t>(b.dim(0));
    const auto n = static_cast<std::size_t>(b.dim(1));
    std::vector<float> y;
    for (std::size_t i = 0; i < q.size() / k; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        std::int32_t sum = 0;
        for (std::size_t d = 0; d < k; ++d) {
          sum +=
              (q[i * k + d] - a_zero_point) * (element(b, d * n + j) - zero_point(b_zero_point, j));
        }
        y.push_back(std::fma(static_cast<float>(sum), a_scale * scale(b_scale, j),
                             bias.defined() ? bias.data<float>()[j] : 0.0F));
      }
    }
    return y;
  }
};

template <class B>
float_product random_product(test::random_source& r) {
  float_product p;
  const auto k = r.integer<std::int64_t>(1, 70);
  const auto n = r.integer<std::int64_t>(2, 40);
  p.a = test::random_floats(r, {r.integer<std::int64_t>(1, 3), r.integer<std::int64_t>(1, 9), k},
                            -2.0F, 5.0F);
  p.b = bytes<B>(r, {k, n});
  p.b_scale = test::random_floats(r, r.chance(50) ? shape{n} : shape{}, 0.01F, 0.02F);
  if (r.chance(70)) {
    p.b_zero_point = bytes<B>(r, r.chance(50) ? shape{n} : shape{});
  }
  if (r.chance(50)) {
    p.bias = test::random_floats(r, {n}, -1.0F, 1.0F);
  }
  return p;
}

TEST_CASE_TEMPLATE("DynamicQuantizeMatMul: as DynamicQuantizeLinear and exact sums make it", B,
                   std::uint8_t, std::int8_t) {
  test::random_source r(66);
  INFO("seed ", r.seed());
  test::for_each_target([&] {
    for (int i = 0; i < 12; ++i) {
      const float_product p = random_product<B>(r);
      const auto a = p.a.template data<float>();
      float lower = 0.0F;
      float upper = 0.0F;
      for (const float x : a) {
        lower = (std::min)(lower, x);
        upper = (std::max)(upper, x);
      }
      const float a_scale = (upper - lower) / 255.0F;
      const int a_zero_point = static_cast<int>(std::nearbyint(-lower / a_scale));
      std::vector<int> q;
      for (const float x : a) {
        q.push_back(
            std::clamp(static_cast<int>(std::nearbyint(x / a_scale)) + a_zero_point, 0, 255));
      }
      const tensor y =
          run("DynamicQuantizeMatMul", {p.a, p.b, p.b_scale, p.b_zero_point, p.bias}, r.chance(50));
      CHECK(y.dims() == shape{p.a.dim(0), p.a.dim(1), p.b.dim(1)});
      CHECK(test::difference(y.data<float>(), p.expected(q, a_scale, a_zero_point)) == "");
    }
  });
}

TEST_CASE("DynamicQuantizeMatMul: zeros, stacks and errors") {
  test::random_source r(67);
  INFO("seed ", r.seed());
  float_product p = random_product<std::int8_t>(r);
  p.bias = test::random_floats(r, {p.b.dim(1)}, -1.0F, 1.0F);
  const tensor zeros = floats(p.a.dims(), std::vector<float>(p.a.count(), 0.0F));
  const tensor y =
      run("DynamicQuantizeMatMul", {zeros, p.b, p.b_scale, p.b_zero_point, p.bias}, true);
  for (std::size_t i = 0; i < y.count(); ++i) {
    CHECK(y.data<float>()[i] == p.bias.data<float>()[i % p.bias.count()]);
  }
  // Each matrix of a stack on the right has its own turn.
  const tensor a = test::random_floats(r, {2, 3, 5}, -1.0F, 1.0F);
  const tensor b = bytes<std::uint8_t>(r, {2, 5, 4});
  const tensor s = floats({}, {0.5F});
  const std::vector<float> both =
      test::values_of<float>(run("DynamicQuantizeMatMul", {a, b, s}, false));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto first = static_cast<std::ptrdiff_t>(i * 20);
    const std::vector<std::uint8_t> all = test::values_of<std::uint8_t>(b);
    const tensor one = test::make_tensor<std::uint8_t>(
        element_type::u8, {5, 4}, {all.begin() + first, all.begin() + first + 20});
    const std::vector<float> alone =
        test::values_of<float>(run("DynamicQuantizeMatMul", {a, one, s}, false));
    const auto from = static_cast<std::ptrdiff_t>(i * 12);
    CHECK(std::vector<float>(both.begin() + from, both.begin() + from + 12) ==
          std::vector<float>(alone.begin() + from, alone.begin() + from + 12));
  }
  const auto check = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         std::vector<tensor> inputs) {
    check_graph_error(kind, words,
                      [&] { static_cast<void>(run("DynamicQuantizeMatMul", inputs, true)); });
  };
  check(error_kind::bad_file, {"DynamicQuantizeMatMul", "K is 5", "6"},
        {a, bytes<std::uint8_t>(r, {6, 4}), s});
  check(error_kind::bad_file, {"input 4", "3 values", "4"},
        {a, bytes<std::uint8_t>(r, {5, 4}), s, {}, floats({3}, {1.0F, 2.0F, 3.0F})});
  check(error_kind::unsupported, {"3 values for 4 columns", "4 columns"},
        {a, bytes<std::uint8_t>(r, {5, 4}), floats({3}, {1.0F, 2.0F, 3.0F})});
  check(error_kind::unsupported, {"weights of type float32"},
        {a, test::random_floats(r, {5, 4}, 0.0F, 1.0F), s});
  check(error_kind::bad_file, {"not finite"},
        {floats({1, 5}, {1.0F, std::numeric_limits<float>::infinity(), 0.0F, 0.0F, 0.0F}),
         bytes<std::uint8_t>(r, {5, 4}), s});
}

TEST_CASE_TEMPLATE("MatMulIntegerToFloat: exact sums, scales and bias", A, std::uint8_t,
                   std::int8_t) {
  test::random_source r(68);
  INFO("seed ", r.seed());
  test::for_each_target([&] {
    for (int i = 0; i < 24; ++i) {
      float_product p =
          r.chance(50) ? random_product<std::uint8_t>(r) : random_product<std::int8_t>(r);
      p.a = bytes<A>(r, p.a.dims());
      const tensor a_scale = test::random_floats(r, {}, 0.01F, 0.02F);
      const tensor a_zero_point = r.chance(70) ? bytes<A>(r, {}) : tensor();
      std::vector<int> q;
      for (std::size_t k = 0; k < p.a.count(); ++k) {
        q.push_back(element(p.a, k));
      }
      const tensor y =
          run("MatMulIntegerToFloat",
              {p.a, p.b, a_scale, p.b_scale, a_zero_point, p.b_zero_point, p.bias}, r.chance(50));
      CHECK(test::difference(y.data<float>(), p.expected(q, a_scale.data<float>()[0],
                                                         zero_point(a_zero_point, 0))) == "");
    }
  });
}

TEST_CASE("MatMulIntegerToFloat: one column without a bias") {
  // 2 * 3 + 4 * 5 = 26 and 1 * 3 + 0 * 5 = 3, times 0.5 * 0.25.
  const tensor y = run("MatMulIntegerToFloat",
                       {test::make_tensor<std::uint8_t>(element_type::u8, {2, 2}, {2, 4, 1, 0}),
                        test::make_tensor<std::int8_t>(element_type::s8, {2, 1}, {3, 5}),
                        floats({}, {0.5F}), floats({}, {0.25F})},
                       true);
  CHECK(test::values_of<float>(y) == std::vector<float>{3.25F, 0.375F});
}

TEST_CASE("MatMulIntegerToFloat: one scale for A") {
  test::random_source r(69);
  check_graph_error(error_kind::unsupported, {"MatMulIntegerToFloat", "input 2 has 3 scales"}, [&] {
    static_cast<void>(run("MatMulIntegerToFloat",
                          {bytes<std::uint8_t>(r, {3, 5}), bytes<std::int8_t>(r, {5, 4}),
                           floats({3}, {1.0F, 1.0F, 1.0F}), floats({}, {1.0F})},
                          true));
  });
}

TEST_CASE_TEMPLATE("MulInteger: products of differences, broadcast", T, std::uint8_t, std::int8_t) {
  test::random_source r(70);
  INFO("seed ", r.seed());
  for (const auto& [da, db] : std::vector<std::pair<shape, shape>>{
           {{3, 4, 5}, {3, 4, 5}}, {{4, 1}, {3, 1, 6}}, {{}, {7}}, {{2, 5}, {5}}, {{0, 3}, {3}}}) {
    for (const int absent : {0, 1, 2, 3}) {
      const tensor a = bytes<T>(r, da);
      const tensor b = bytes<T>(r, db);
      const tensor za = (absent & 1) != 0 ? tensor() : bytes<T>(r, {});
      const tensor zb = (absent & 2) != 0 ? tensor() : bytes<T>(r, {});
      const tensor y = run("MulInteger", {a, za, b, zb}, false, {}, element_type::s32);
      // Indices of the operands by counting through the output.
      const std::size_t rank = (std::max)(da.size(), db.size());
      shape dims(rank, 1);
      const auto extent = [rank](const shape& d, std::size_t i) {
        return i + d.size() < rank ? std::int64_t{1} : d[i + d.size() - rank];
      };
      for (std::size_t i = 0; i < rank; ++i) {
        dims[i] = extent(da, i) == 1 ? extent(db, i) : extent(da, i);
      }
      REQUIRE(y.dims() == dims);
      std::vector<std::int32_t> expected;
      for (std::size_t at = 0; at < y.count(); ++at) {
        std::size_t rest = at;
        std::size_t ia = 0, ib = 0, step_a = 1, step_b = 1;
        for (std::size_t i = rank; i-- > 0;) {
          const auto index = rest % static_cast<std::size_t>(dims[i]);
          rest /= static_cast<std::size_t>(dims[i]);
          ia += extent(da, i) == 1 ? 0 : index * step_a;
          ib += extent(db, i) == 1 ? 0 : index * step_b;
          step_a *= static_cast<std::size_t>(extent(da, i));
          step_b *= static_cast<std::size_t>(extent(db, i));
        }
        expected.push_back((element(a, ia) - zero_point(za, 0)) *
                           (element(b, ib) - zero_point(zb, 0)));
      }
      CHECK(test::values_of<std::int32_t>(y) == expected);
    }
  }
  check_graph_error(error_kind::bad_file, {"MulInteger", "uint8", "int8"}, [&] {
    static_cast<void>(run("MulInteger",
                          {bytes<std::uint8_t>(r, {2}), tensor(), bytes<std::int8_t>(r, {2})},
                          false, {}, element_type::s32));
  });
  check_graph_error(error_kind::bad_file, {"MulInteger", "input 2 is missing"}, [&] {
    static_cast<void>(
        run("MulInteger", {bytes<std::uint8_t>(r, {2})}, false, {}, element_type::s32));
  });
}

}  // namespace
