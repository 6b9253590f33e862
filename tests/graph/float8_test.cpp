// SPDX-License-Identifier: BSD-3-Clause
// Tensors of 8-bit floats: Cast, QuantizeLinear and DequantizeLinear against the formats'
// definition, files, and operators that have no code for them.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/run/executor.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
using detent::error_kind;

/// The definition of a format: sign, exponent and mantissa from the highest bit down.
struct format {
  element_type type;
  int mantissa_bits;
  int bias;
  bool has_infinity;

  /// The value of a code: an infinity or NaN where the format says so.
  [[nodiscard]] double value(int code) const {
    const double sign = code >= 128 ? -1.0 : 1.0;
    const int magnitude = code % 128;
    const int steps = 1 << mantissa_bits;
    const int exponent = magnitude / steps;
    const int mantissa = magnitude % steps;
    if (has_infinity && magnitude >= 0x7C) {
      return magnitude == 0x7C ? sign * std::numeric_limits<double>::infinity()
                               : std::numeric_limits<double>::quiet_NaN();
    }
    if (!has_infinity && magnitude == 0x7F) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : sign * std::ldexp(steps + mantissa, exponent - bias - mantissa_bits);
  }
  [[nodiscard]] int largest() const { return has_infinity ? 0x7B : 0x7E; }

  /// The code of a float: the nearest value, of two equally near ones that with an even code.
  /// Beyond the largest value the next one would be, as if the exponent went on.
  [[nodiscard]] int code(float x, bool saturate) const {
    const int sign = std::signbit(x) ? 128 : 0;
    if (std::isnan(x)) {
      return sign + 0x7F;
    }
    const double magnitude = std::fabs(static_cast<double>(x));
    const double top = value(largest());
    const double beyond = top + (top - value(largest() - 1));
    // The largest code is odd in e5m2 and even in e4m3fn.
    const bool tie_stays = largest() % 2 == 0;
    const double limit = (top + beyond) / 2.0;
    if (magnitude > limit || (magnitude == limit && !tie_stays)) {
      return sign + (saturate ? largest() : has_infinity ? 0x7C : 0x7F);
    }
    int best = 0;
    for (int c = 1; c <= largest(); ++c) {
      const double now = std::fabs(value(c) - magnitude);
      const double before = std::fabs(value(best) - magnitude);
      if (now < before || (now == before && c % 2 == 0)) {
        best = c;
      }
    }
    return sign + best;
  }
};

constexpr format formats[] = {{element_type::f8e4m3fn, 3, 7, false},
                              {element_type::f8e5m2, 2, 15, true}};

/// All values of a format, the middles between neighbours and their neighbours, and what is
/// outside.
std::vector<float> interesting(const format& f) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0.0F,
                            infinity,
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min()};
  for (int c = 0; c <= f.largest(); ++c) {
    const double here = f.value(c);
    const double step = c == f.largest() ? here - f.value(c - 1) : f.value(c + 1) - here;
    for (const double x : {here, here + step / 2.0, here + step}) {
      const auto exact = static_cast<float>(x);
      values.push_back(exact);
      values.push_back(std::nextafter(exact, infinity));
      values.push_back(std::nextafter(exact, -infinity));
    }
  }
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(-values[i]);
  }
  return values;
}

std::int64_t size(const std::vector<float>& v) { return static_cast<std::int64_t>(v.size()); }

tensor all_codes(element_type type) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(i);
  }
  return make_tensor(type, {256}, codes);
}

/// What a model of one node makes of an input.
tensor result_of(const std::string& op, const tensor& x, attributes a, element_type type,
                 const std::vector<tensor>& constants = {}) {
  model_builder b(23);
  std::vector<std::string> inputs{b.input("x", x.dims(), x.type())};
  for (const tensor& t : constants) {
    inputs.push_back(b.constant("c" + std::to_string(inputs.size()), t));
  }
  b.output(b.add(op, inputs, std::move(a)), type);
  return outputs_of(b.get(), {{"x", x}})[0];
}

tensor zero(element_type type, shape dims = {}) {
  const std::size_t count = graph::element_count(dims);
  return make_tensor(type, std::move(dims), std::vector<std::uint8_t>(count, 0));
}

TEST_CASE("float8: Cast from float rounds to the nearest value, ties to even codes") {
  for (const format& f : formats) {
    const std::vector<float> values = interesting(f);
    for (const int saturate : {1, 0}) {
      const tensor y = result_of(
          "Cast", floats({size(values)}, values),
          {{"to", number(static_cast<int>(f.type))}, {"saturate", number(saturate)}}, f.type);
      CHECK(y.type() == f.type);
      const auto codes = y.data<std::uint8_t>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        INFO(graph::name(f.type), " saturate ", saturate, " of ", values[i]);
        CHECK(int{codes[i]} == f.code(values[i], saturate != 0));
      }
    }
  }
}

TEST_CASE("float8: Cast to other types is exact for all codes") {
  for (const format& f : formats) {
    const tensor codes = all_codes(f.type);
    const auto cast = [&](element_type to) {
      return result_of("Cast", codes, {{"to", number(static_cast<int>(to))}}, to);
    };
    const tensor real = cast(element_type::f32);
    const tensor integer = cast(element_type::s32);
    const tensor truth = cast(element_type::boolean);
    for (int c = 0; c < 256; ++c) {
      INFO(graph::name(f.type), " code ", c);
      const double expected = f.value(c);
      const auto i = static_cast<std::size_t>(c);
      const float y = real.data<float>()[i];
      if (std::isnan(expected)) {
        CHECK(std::isnan(y));
        continue;
      }
      CHECK(static_cast<double>(y) == expected);
      CHECK(std::signbit(y) == (c >= 128));
      CHECK((truth.data<std::uint8_t>()[i] != 0) == (expected != 0.0));
      if (std::isfinite(expected)) {
        CHECK(integer.data<std::int32_t>()[i] == static_cast<std::int32_t>(expected));
      }
    }
    // And back: each code that is not NaN is what its value is rounded to.
    const tensor again = result_of(
        "Cast", real, {{"to", number(static_cast<int>(f.type))}, {"saturate", number(0)}}, f.type);
    for (int c = 0; c < 256; ++c) {
      if (!std::isnan(f.value(c))) {
        CHECK(int{again.data<std::uint8_t>()[static_cast<std::size_t>(c)]} == c);
      }
    }
  }
}

TEST_CASE("float8: Cast from integers rounds once and saturates") {
  const std::vector<std::int64_t> values{
      0, 1, 17, -17, 19, 27, 448, 464, 465, 500, -500, 57344, 1 << 20, std::int64_t{1} << 62};
  const tensor x =
      make_tensor(element_type::s64, {static_cast<std::int64_t>(values.size())}, values);
  for (const format& f : formats) {
    const tensor y = result_of("Cast", x, {{"to", number(static_cast<int>(f.type))}}, f.type);
    for (std::size_t i = 0; i < values.size(); ++i) {
      INFO(graph::name(f.type), " of ", values[i]);
      CHECK(int{y.data<std::uint8_t>()[i]} == f.code(static_cast<float>(values[i]), true));
    }
  }
}

TEST_CASE("float8: CastLike takes the type of its second input") {
  for (const format& f : formats) {
    const std::vector<float> values = interesting(f);
    const tensor y =
        result_of("CastLike", floats({size(values)}, values), {}, f.type, {zero(f.type, {1})});
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(int{y.data<std::uint8_t>()[i]} == f.code(values[i], true));
    }
  }
}

TEST_CASE("float8: QuantizeLinear divides in float, then rounds") {
  for (const format& f : formats) {
    const std::vector<float> values = interesting(f);
    for (const float scale : {1.0F, 0.37F, 3e-5F}) {
      for (const int saturate : {1, 0}) {
        const tensor y = result_of("QuantizeLinear", floats({size(values)}, values),
                                   {{"saturate", number(saturate)}}, f.type,
                                   {floats({}, {scale}), zero(f.type)});
        CHECK(y.type() == f.type);
        for (std::size_t i = 0; i < values.size(); ++i) {
          INFO(graph::name(f.type), " saturate ", saturate, " of ", values[i], " / ", scale);
          CHECK(int{y.data<std::uint8_t>()[i]} == f.code(values[i] / scale, saturate != 0));
        }
      }
    }
    // The type may come from the attribute alone.
    const tensor y = result_of("QuantizeLinear", floats({2}, {1.0F, -2.0F}),
                               {{"output_dtype", number(static_cast<int>(f.type))}}, f.type,
                               {floats({}, {1.0F})});
    CHECK(int{y.data<std::uint8_t>()[1]} == f.code(-2.0F, true));
  }
}

TEST_CASE("float8: DequantizeLinear multiplies in float, for all codes") {
  for (const format& f : formats) {
    for (const float scale : {1.0F, 0.37F}) {
      for (const bool has_zero : {true, false}) {
        std::vector<tensor> constants{floats({}, {scale})};
        if (has_zero) {
          constants.push_back(zero(f.type));
        }
        const tensor y =
            result_of("DequantizeLinear", all_codes(f.type), {}, element_type::f32, constants);
        for (int c = 0; c < 256; ++c) {
          INFO(graph::name(f.type), " code ", c);
          const float expected = static_cast<float>(f.value(c)) * scale;
          const float actual = y.data<float>()[static_cast<std::size_t>(c)];
          CHECK((actual == expected || (std::isnan(actual) && std::isnan(expected))));
        }
      }
    }
  }
}

TEST_CASE("float8: scales of channels and of blocks belong to their elements") {
  test::random_source r(401);
  INFO("seed ", r.seed());
  const tensor x = random_floats(r, {2, 3, 4}, -5.0F, 5.0F);
  const std::vector<float> values = values_of<float>(x);
  for (const format& f : formats) {
    const auto check = [&](const tensor& scales, const attributes& a, const auto& scale_of) {
      const tensor q =
          result_of("QuantizeLinear", x, a, f.type, {scales, zero(f.type, scales.dims())});
      const tensor y = result_of("DequantizeLinear", q, a, element_type::f32,
                                 {scales, zero(f.type, scales.dims())});
      for (std::size_t i = 0; i < 2; ++i) {
        for (std::size_t j = 0; j < 3; ++j) {
          for (std::size_t k = 0; k < 4; ++k) {
            const std::size_t at = (i * 3 + j) * 4 + k;
            const float scale = scales.data<float>()[scale_of(i, j, k)];
            const int code = f.code(values[at] / scale, true);
            CHECK(int{q.data<std::uint8_t>()[at]} == code);
            CHECK(y.data<float>()[at] == static_cast<float>(f.value(code)) * scale);
          }
        }
      }
    };
    const auto scales = [&](const shape& dims) { return random_floats(r, dims, 0.01F, 2.0F); };
    check(scales({3}), {{"axis", number(1)}}, [](auto, auto j, auto) { return j; });
    check(scales({4}), {{"axis", number(-1)}}, [](auto, auto, auto k) { return k; });
    check(scales({2, 2, 4}), {{"axis", number(1)}, {"block_size", number(2)}},
          [](auto i, auto j, auto k) { return (i * 2 + j / 2) * 4 + k; });
  }
}

TEST_CASE("float8: constants and inputs of a file keep their codes") {
  for (const format& f : formats) {
    model_builder b(23);
    b.input("x", {256}, f.type);
    b.constant("c", all_codes(f.type));
    b.output(b.add("Concat", {"x", "c"}, {{"axis", number(0)}}), f.type);
    const graph::model m = graph::parse_onnx(graph::to_onnx(b.get()), {});
    CHECK(m.inputs[0].type == f.type);
    CHECK(m.initializers.at("c").type() == f.type);
    const tensor y = outputs_of(m, {{"x", all_codes(f.type)}})[0];
    CHECK(y.type() == f.type);
    for (std::size_t i = 0; i < 512; ++i) {
      CHECK(y.data<std::uint8_t>()[i] == i % 256);
    }
  }
}

TEST_CASE("float8: what has no code is an error that names it") {
  for (const format& f : formats) {
    const std::string type = graph::name(f.type);
    const tensor codes = all_codes(f.type);
    check_graph_error(error_kind::unsupported, {"Add", type},
                      [&] { static_cast<void>(result_of("Add", codes, {}, f.type, {codes})); });
    check_graph_error(error_kind::unsupported, {"QuantizeLinear", "zero point", type}, [&] {
      static_cast<void>(result_of(
          "QuantizeLinear", floats({1}, {1.0F}), {}, f.type,
          {floats({}, {1.0F}), make_tensor(f.type, {}, std::vector<std::uint8_t>{0x38})}));
    });
    check_graph_error(error_kind::bad_file, {"DequantizeLinear", type, "int8"}, [&] {
      static_cast<void>(result_of(
          "DequantizeLinear", codes, {}, element_type::f32,
          {floats({}, {1.0F}), make_tensor(element_type::s8, {}, std::vector<std::int8_t>{0})}));
    });
  }
}

}  // namespace
