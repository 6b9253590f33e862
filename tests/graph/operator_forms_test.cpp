// SPDX-License-Identifier: BSD-3-Clause
// Forms of operators that their specification allows and few models have: absent zero points,
// biases of other shapes, output types that an attribute names, attributes of old opsets. And sizes
// that are refused, or must end at once.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "single_node.hpp"

namespace {

using namespace test;

constexpr const char* microsoft = "com.microsoft";

tensor bytes(shape dims, const std::vector<std::uint8_t>& values) {
  return make_tensor(element_type::u8, std::move(dims), values);
}
tensor signed_bytes(shape dims, const std::vector<std::int8_t>& values) {
  return make_tensor(element_type::s8, std::move(dims), values);
}
tensor scale(float s) { return floats({}, {s}); }
tensor wide_floats(shape dims, const std::vector<double>& values) {
  return make_tensor(element_type::f64, std::move(dims), values);
}
tensor longs(shape dims, const std::vector<std::int64_t>& values) {
  return make_tensor(element_type::s64, std::move(dims), values);
}

/// A tensor of 16-bit floats.
tensor halves(shape dims, const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float v : values) {
    bits.push_back(detent::round_to<detent::float16>(v).bits);
  }
  return make_tensor(element_type::f16, std::move(dims), bits);
}

/// Runs a model without inputs twice in one executor and once in a second one, which must give the
/// same types and elements.
std::vector<tensor> same_in_later_runs(const graph::model& m) {
  graph::executor first(m);
  const std::vector<tensor> once = first.run({});
  const std::vector<tensor> twice = first.run({});
  graph::executor second(first, {});
  const std::vector<tensor> other = second.run({});
  for (std::size_t i = 0; i < once.size(); ++i) {
    for (const tensor* t : {&twice[i], &other[i]}) {
      CHECK(t->type() == once[i].type());
      CHECK(t->dims() == once[i].dims());
      CHECK(std::equal(t->raw(), t->raw() + t->bytes(), once[i].raw(),
                       once[i].raw() + once[i].bytes()));
    }
  }
  return once;
}

/// The first `count` outputs of a node with constant inputs.
std::vector<tensor> outputs_of(const std::string& op, const std::vector<tensor>& inputs,
                               std::size_t count, const attributes& a = {},
                               std::int64_t opset = 23) {
  model_builder b(opset);
  std::vector<std::string> names;
  for (const tensor& t : inputs) {
    names.push_back(t.defined() ? b.constant("in" + std::to_string(names.size()), t) : "");
  }
  static_cast<void>(b.add(op, names, a));
  graph::node& n = b.get().nodes.back();
  n.outputs.resize(1);
  for (std::size_t i = 0; i < count; ++i) {
    n.outputs.resize(i + 1);
    n.outputs[i] = "out" + std::to_string(i);
    b.output(n.outputs[i], element_type::undefined);
  }
  return same_in_later_runs(b.get());
}

/// The types of the first `count` outputs of a node with constant inputs.
std::vector<element_type> types_of_outputs(const std::string& op, const std::vector<tensor>& inputs,
                                           std::size_t count, const attributes& a = {},
                                           std::int64_t opset = 23) {
  std::vector<element_type> types;
  for (const tensor& t : outputs_of(op, inputs, count, a, opset)) {
    types.push_back(t.type());
  }
  return types;
}

/// Checks that a node is refused with an error of this kind, whose message has these words.
void check_refused(error_kind kind, std::initializer_list<std::string_view> words,
                   const std::string& op, const std::vector<tensor>& inputs, const attributes& a,
                   std::int64_t opset = 17, const std::string& domain = "") {
  check_graph_error(kind, words,
                    [&] { static_cast<void>(result_of(op, inputs, a, opset, domain)); });
}

}  // namespace

TEST_CASE("forms: inputs behind the last one that a node lists are absent") {
  const tensor tensors[] = {floats({2}, {1.0F, 2.0F}), floats({1}, {3.0F})};
  graph::operator_context c;
  c.inputs = std::span(tensors).first(1);
  CHECK(c.input_count() == 1);
  CHECK(c.has_input(0));
  for (const std::size_t i : {1U, 2U, 100U}) {
    CHECK(!c.has_input(i));
    CHECK(!c.inputs[i].defined());
    CHECK(c.inputs[i].type() == element_type::undefined);
    CHECK(c.inputs[i].dims().empty());
  }
}

TEST_CASE("forms: integer operators of com.microsoft without zero points") {
  const tensor a = bytes({1, 3}, {0, 2, 200});
  const tensor b = bytes({1, 3}, {4, 3, 100});
  const auto codes = [](const std::string& op, const std::vector<tensor>& inputs,
                        attributes attributes_of_node = {}) {
    return values_of<std::uint8_t>(
        result_of(op, inputs, std::move(attributes_of_node), 17, microsoft));
  };
  // (a / 2 + b / 4) / 0.5 and (a / 2) * (b / 4) / 0.5, ties to even. With and without the place of
  // the last input, which is absent.
  const std::vector<tensor> binary{a, scale(0.5F), {}, b, scale(0.25F), {}, scale(0.5F)};
  CHECK(codes("QLinearAdd", binary) == std::vector<std::uint8_t>{2, 4, 250});
  CHECK(codes("QLinearMul", binary) == std::vector<std::uint8_t>{0, 2, 255});
  std::vector<tensor> one_given = binary;
  one_given[2] = bytes({}, {2});
  one_given.push_back(bytes({}, {10}));
  CHECK(codes("QLinearAdd", one_given) == std::vector<std::uint8_t>{10, 12, 255});

  const tensor s = signed_bytes({1, 4}, {-128, -2, 0, 64});
  CHECK(values_of<std::int8_t>(result_of("QLinearLeakyRelu", {s, scale(0.5F), {}, scale(0.25F)},
                                         {{"alpha", real(0.25F)}}, 17, microsoft)) ==
        std::vector<std::int8_t>{-64, -1, 0, 127});
  CHECK(values_of<std::int8_t>(result_of("QLinearSigmoid", {s, scale(1.0F), {}, scale(0.25F)}, {},
                                         17, microsoft)) == std::vector<std::int8_t>{0, 0, 2, 4});

  const tensor image = bytes({1, 1, 2, 2}, {1, 2, 3, 4});
  CHECK(codes("QLinearGlobalAveragePool", {image, scale(0.5F), {}, scale(0.25F)}) ==
        std::vector<std::uint8_t>{5});
  CHECK(codes("QLinearAveragePool", {image, scale(0.5F), {}, scale(0.25F)},
              {{"kernel_shape", list({1, 2})}}) == std::vector<std::uint8_t>{3, 7});
}

TEST_CASE("forms: an integer operator of com.microsoft needs its scales") {
  const tensor a = bytes({1, 3}, {0, 2, 200});
  const tensor image = bytes({1, 1, 2, 2}, {1, 2, 3, 4});
  const auto refused = [](const std::string& op, const std::vector<tensor>& inputs,
                          std::string_view missing) {
    // As constants, and as values that only a run gives: then inference must notice.
    check_refused(error_kind::bad_file, {op, missing}, op, inputs, {}, 17, microsoft);
    check_graph_error(error_kind::bad_file, {op, missing}, [&] {
      static_cast<void>(
          graph::infer_shapes(single_node(op, inputs, false, {}, microsoft, element_type::u8)));
    });
  };
  refused("QLinearAdd", {a, scale(1)}, "input 3 is missing");
  refused("QLinearAdd", {a, scale(1), {}, a}, "input 4 is missing");
  refused("QLinearMul", {a, scale(1), {}, a, scale(1), {}}, "input 6 is missing");
  refused("QLinearSigmoid", {a, scale(1)}, "input 3 is missing");
  refused("QLinearLeakyRelu", {a, scale(1), bytes({}, {0})}, "input 3 is missing");
  refused("QLinearGlobalAveragePool", {image, scale(1)}, "input 3 is missing");
}

TEST_CASE("forms: QLinearConcat joins bytes only") {
  const tensor words = make_tensor(element_type::s16, {1, 2}, std::vector<std::int16_t>{1, 2});
  const tensor piece = bytes({1, 2}, {1, 2});
  const tensor zero = bytes({}, {0});
  const attributes axis{{"axis", number(1)}};
  const auto joined = [&](const tensor& zero_point, const tensor& first, const tensor& second) {
    return std::vector<tensor>{scale(1), zero_point, first, scale(1), zero, second, scale(1), zero};
  };
  for (const auto& inputs : {joined(zero, words, piece), joined(zero, piece, words)}) {
    check_refused(error_kind::unsupported, {"QLinearConcat", "int16"}, "QLinearConcat", inputs,
                  axis, 17, microsoft);
  }
  const tensor word = make_tensor(element_type::u16, {}, std::vector<std::uint16_t>{1});
  check_refused(error_kind::unsupported, {"QLinearConcat", "uint16"}, "QLinearConcat",
                joined(word, piece, piece), axis, 17, microsoft);
}

TEST_CASE("forms: the bias of QGemm is a row") {
  const auto s32 = [](shape dims, const std::vector<std::int32_t>& values) {
    return make_tensor(element_type::s32, std::move(dims), values);
  };
  const auto inputs = [&](const tensor& bias) {
    return std::vector<tensor>{bytes({2, 2}, {1, 2, 3, 4}),
                               scale(1),
                               bytes({}, {0}),
                               bytes({2, 2}, {1, 0, 0, 1}),
                               scale(1),
                               bytes({}, {0}),
                               bias};
  };
  const std::vector<float> with_row{11, 22, 13, 24};
  for (const shape& dims : {shape{2}, shape{1, 2}}) {
    CHECK(values_of<float>(result_of("QGemm", inputs(s32(dims, {10, 20})), {}, 17, microsoft)) ==
          with_row);
  }
  // A column has as many values as there are columns, but is one value for each row.
  check_refused(error_kind::unsupported, {"QGemm", "[2,1]"}, "QGemm", inputs(s32({2, 1}, {10, 20})),
                {}, 17, microsoft);
  check_refused(error_kind::unsupported, {"QGemm", "[2,2]"}, "QGemm",
                inputs(s32({2, 2}, {1, 2, 3, 4})), {}, 17, microsoft);
}

TEST_CASE("forms: the output type that an attribute of DequantizeLinear names") {
  const tensor codes = bytes({3}, {0, 1, 255});
  const auto to = [](element_type type) {
    return attributes{{"output_dtype", number(static_cast<std::int64_t>(type))}};
  };
  // 1 / 3 and 255 / 3 in float32, rounded to float16: 0.33325 and 85.
  const tensor y =
      result_of("DequantizeLinear", {codes, scale(1.0F / 3)}, to(element_type::f16), 23);
  REQUIRE(y.type() == element_type::f16);
  CHECK(values_of<std::uint16_t>(y) == std::vector<std::uint16_t>{0, 0x3555, 0x5550});
  CHECK(result_of("DequantizeLinear", {codes, scale(1)}, to(element_type::undefined), 23).type() ==
        element_type::f32);
  check_refused(error_kind::unsupported, {"DequantizeLinear", "output_dtype", "int32"},
                "DequantizeLinear", {codes, scale(1)}, to(element_type::s32), 23);
}

TEST_CASE("forms: QuantizeLinear divides in the precision that opset 23 defines") {
  constexpr element_type f16 = element_type::f16;
  // In float the quotients are 16.5077 and 3.15625 / 0.7 = 4.509; in float16 16.5, in bfloat16 4.5.
  const tensor x = halves({2}, {4.19140625F, -4.19140625F});
  const tensor narrow = halves({}, {0.25390625F});
  const tensor zero = bytes({}, {100});
  const auto codes = [&](const std::vector<tensor>& inputs, std::int64_t opset,
                         const attributes& a = {}) {
    return values_of<std::uint8_t>(result_of("QuantizeLinear", inputs, a, opset));
  };
  const auto precision = [](element_type type) {
    return attributes{{"precision", number(static_cast<std::int64_t>(type))}};
  };
  using expected = std::vector<std::uint8_t>;
  CHECK(codes({x, narrow, zero}, 21) == expected{117, 83});
  CHECK(codes({x, narrow, zero}, 23) == expected{116, 84});
  CHECK(codes({x, narrow, zero}, 23, precision(element_type::f32)) == expected{117, 83});
  const tensor wide_x = floats({2}, {4.19140625F, -4.19140625F});
  CHECK(codes({wide_x, narrow, zero}, 23) == expected{116, 84});
  CHECK(codes({wide_x, scale(0.25390625F), zero}, 23) == expected{117, 83});
  CHECK(codes({wide_x, scale(0.25390625F), zero}, 23, precision(f16)) == expected{116, 84});
  // Scales of channels: the second one divides exactly.
  CHECK(codes({halves({1, 2}, {4.19140625F, 4.0F}), halves({2}, {0.25390625F, 0.5F}),
               bytes({2}, {100, 1})},
              23) == expected{116, 9});
  const std::vector<tensor> real{floats({1}, {3.15625F}), scale(0.7F)};
  CHECK(codes(real, 23) == expected{5});
  CHECK(codes(real, 23, precision(element_type::bf16)) == expected{4});
  // Infinite quotients saturate, and NaN gives the zero point.
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(codes({floats({4}, {infinity, -infinity, std::nanf(""), 70000.0F}), scale(0.5F), zero}, 23,
              precision(f16)) == expected{255, 0, 100, 255});
  // Floats of 8 bits: 16.5077 and 16.5 are both 16 in E4M3FN.
  attributes to_float8 = precision(f16);
  to_float8["output_dtype"] = number(static_cast<std::int64_t>(element_type::f8e4m3fn));
  CHECK(codes({x, narrow}, 23, to_float8) == expected{0x58, 0xD8});
  check_refused(error_kind::bad_file, {"QuantizeLinear", "1e-09 is 0 in float16"}, "QuantizeLinear",
                {wide_x, scale(1e-9F), zero}, precision(f16), 23);
  check_refused(error_kind::unsupported, {"QuantizeLinear", "precision", "int32"}, "QuantizeLinear",
                {wide_x, scale(1.0F), zero}, precision(element_type::s32), 23);
}

TEST_CASE("forms: values that are dequantized to float16 are not taken for float32") {
  model_builder b(23);
  b.input("q", {1, 4}, element_type::u8);
  b.constant("s", scale(1.0F / 3));
  const std::string half =
      b.add("DequantizeLinear", {"q", "s"},
            {{"output_dtype", number(static_cast<std::int64_t>(element_type::f16))}});
  const std::string relu = b.add("LeakyRelu", {half});
  b.constant("t", scale(1.0F / 3));
  b.constant("z", bytes({}, {0}));
  b.output(b.add("QuantizeLinear", {relu, "t", "z"}), element_type::u8);
  graph::model m = b.get();
  graph::lower_quantized(m);
  for (const graph::node& n : m.nodes) {
    CHECK(n.op_type != "Lookup");
  }
}

TEST_CASE("forms: Resize leaves axes alone that it does not resize") {
  // tf_half_pixel_for_nn shifts coordinates by half an element even where the scale is 1.
  for (const char* mode : {"linear", "cubic"}) {
    INFO(mode);
    const tensor x = floats({2, 2, 2}, {1, 2, 10, 20, 100, 200, 1000, 2000});
    const attributes a{{"mode", text(mode)},
                       {"coordinate_transformation_mode", text("tf_half_pixel_for_nn")}};
    const auto whole =
        values_of<float>(result_of("Resize", {x, {}, floats({3}, {1, 1, 2})}, a, 11));
    REQUIRE(whole.size() == 16);
    for (std::size_t row = 0; row < 4; ++row) {
      const auto values = values_of<float>(x);
      const tensor part = floats({2}, {values[2 * row], values[2 * row + 1]});
      CHECK(values_of<float>(result_of("Resize", {part, {}, floats({1}, {2})}, a, 11)) ==
            std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(4 * row),
                               whole.begin() + static_cast<std::ptrdiff_t>(4 * row + 4)));
    }
    CHECK(values_of<float>(result_of("Resize", {x, {}, floats({3}, {1, 1, 1})}, a, 11)) ==
          values_of<float>(x));
  }
}

TEST_CASE("forms: where operands go together before opset 7") {
  const tensor x = floats({2, 2}, {1, 2, 3, 4});
  const tensor row = floats({2}, {10, 20});
  const auto broadcast = [](std::int64_t axis) {
    return attributes{{"broadcast", number(1)}, {"axis", number(axis)}};
  };
  const std::vector<float> sums{11, 22, 13, 24};
  CHECK(values_of<float>(result_of("Add", {x, row}, {{"broadcast", number(1)}}, 6)) == sums);
  CHECK(values_of<float>(result_of("Add", {x, row}, broadcast(1), 6)) == sums);
  CHECK(values_of<float>(result_of("Add", {x, floats({1}, {1})}, broadcast(0), 6)) ==
        std::vector<float>{2, 3, 4, 5});
  // Axis 0 would add 10 to the first row and 20 to the second.
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater", "Equal"}) {
    check_refused(error_kind::unsupported, {op, "axis 0", "[2,2]", "opset 6"}, op, {x, row},
                  broadcast(0), 6);
  }
  // Since opset 7 there is no such attribute.
  CHECK(values_of<float>(result_of("Add", {x, row}, broadcast(0), 7)) == sums);

  const tensor negative = floats({1, 2, 2}, {-1, -2, -3, -4});
  CHECK(values_of<float>(result_of("PRelu", {negative, floats({2, 1}, {2, 3})}, {}, 6)) ==
        std::vector<float>{-2, -4, -9, -12});
  check_refused(error_kind::unsupported, {"PRelu", "[2]", "[1,2,2]", "opset 6"}, "PRelu",
                {negative, floats({2}, {2, 3})}, {}, 6);
  CHECK(values_of<float>(result_of("PRelu", {negative, floats({1}, {2})}, {}, 6)) ==
        std::vector<float>{-2, -4, -6, -8});
  CHECK(values_of<float>(result_of("PRelu", {floats({1, 2}, {-1, -2}), floats({2}, {2, 3})}, {},
                                   6)) == std::vector<float>{-2, -6});
}

TEST_CASE("forms: bounds of Clip before opset 11 that integers do not have") {
  const auto s64 = [](const std::vector<std::int64_t>& values) {
    return make_tensor(element_type::s64, {static_cast<std::int64_t>(values.size())}, values);
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto clip = [&](const tensor& x, float lower, float upper) {
    return result_of("Clip", {x}, {{"min", real(lower)}, {"max", real(upper)}}, 6);
  };
  const std::vector<std::int64_t> ends{std::numeric_limits<std::int64_t>::min(), -3, 5,
                                       std::numeric_limits<std::int64_t>::max()};
  CHECK(values_of<std::int64_t>(clip(s64(ends), -infinity, infinity)) == ends);
  CHECK(values_of<std::int64_t>(clip(s64(ends), -3e38F, 4)) ==
        std::vector<std::int64_t>{ends[0], -3, 4, 4});
  CHECK(values_of<std::uint8_t>(clip(bytes({3}, {0, 7, 255}), -1, 300)) ==
        std::vector<std::uint8_t>{0, 7, 255});
}

TEST_CASE("forms: ConvTranspose of sizes that do not exist") {
  const tensor x = floats({1, 1, 2}, {1, 2});
  const tensor w = floats({1, 1, 2}, {1, 1});
  for (const std::int64_t extent :
       {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, std::int64_t{0}}) {
    check_refused(error_kind::bad_file, {"ConvTranspose", "extent"}, "ConvTranspose", {x, w},
                  {{"output_shape", list({extent})}});
  }
  check_refused(error_kind::bad_file, {"ConvTranspose", "groups"}, "ConvTranspose",
                {floats({1, 0, 2}, {}), floats({0, 1, 2}, {})},
                {{"group", number((std::int64_t{1} << 62) + 1)}});
}

TEST_CASE("forms: pools of images without pixels end at once") {
  // The window covers 2^56 places of the first two axes, and none of the last one.
  const std::int64_t far = std::int64_t{1} << 28;
  const auto ends = [](const std::string& op, const std::vector<tensor>& inputs,
                       const attributes& a = {}, const std::string& domain = "") {
    INFO(op);
    try {
      const std::size_t count = result_of(op, inputs, a, 17, domain).count();
      CHECK(count == 1);
    } catch (const detent::error& e) {
      CHECK(std::string_view(e.what()).find(op) != std::string_view::npos);
    }
  };
  const attributes whole{{"kernel_shape", list({far, far, 2})}, {"pads", list({0, 0, 1, 0, 0, 1})}};
  const tensor x = tensor::allocate(element_type::f32, {1, 1, far, far, 0});
  const tensor codes = tensor::allocate(element_type::u8, {1, 1, far, far, 0});
  for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) {
    ends(op, {x}, whole);
  }
  for (const char* op : {"GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"}) {
    ends(op, {x});
  }
  ends("QLinearGlobalAveragePool", {codes, scale(1), {}, scale(1)}, {}, microsoft);
  ends("QLinearAveragePool", {codes, scale(1), {}, scale(1)}, whole, microsoft);
}

TEST_CASE("forms: the types of outputs beside inputs of 16 and of 32 bits") {
  constexpr element_type f16 = element_type::f16;
  constexpr element_type f32 = element_type::f32;
  using types = std::vector<element_type>;
  // 300^2 is beyond float16.
  CHECK(values_of<float>(result_of("Pow", {floats({2}, {300, 2}), halves({}, {2})}, {}, 15)) ==
        std::vector<float>{90000, 4});
  CHECK(result_of("Pow", {halves({2}, {3, 2}), floats({}, {2})}, {}, 15).type() == f16);
  const tensor x = floats({1, 2, 2}, {1, 2, 3, 4});
  const tensor narrow = halves({1, 2, 2}, {1, 2, 3, 4});
  const tensor two = halves({2}, {1, 2});
  const tensor wide_two = floats({2}, {1, 2});
  CHECK(types_of_outputs("BatchNormalization", {x, two, two, two, two}, 1) == types{f32});
  CHECK(types_of_outputs("BatchNormalization", {narrow, two, two, wide_two, wide_two}, 1) ==
        types{f16});
  const attributes training{{"training_mode", number(1)}};
  CHECK(types_of_outputs("BatchNormalization", {narrow, two, two, wide_two, wide_two}, 3,
                         training) == types{f16, f32, f32});
  CHECK(types_of_outputs("LayerNormalization", {narrow, two, two}, 3) == types{f16, f32, f32});
  CHECK(types_of_outputs("RMSNormalization", {narrow, wide_two}, 1) == types{f32});
  CHECK(types_of_outputs("RMSNormalization", {x, two}, 1) == types{f16});
  CHECK(types_of_outputs("Dropout", {x, halves({}, {0.5F})}, 1) == types{f32});
  const tensor index = make_tensor(element_type::s64, {1}, std::vector<std::int64_t>{1});
  CHECK(types_of_outputs("OneHot", {index, halves({}, {3}), wide_two}, 1) == types{f32});
  CHECK(types_of_outputs("OneHot", {floats({1}, {1}), floats({}, {3}), two}, 1) == types{f16});
  CHECK(types_of_outputs(
            "Where",
            {make_tensor(element_type::boolean, {2}, std::vector<std::uint8_t>{0, 1}), two, two},
            1) == types{f16});
  const tensor head = floats({1, 1, 2, 2}, {1, 2, 3, 4});
  const tensor values = halves({1, 1, 2, 2}, {1, 2, 3, 4});
  CHECK(types_of_outputs("Attention", {head, head, values}, 3) == types{f32, f32, f16});
  CHECK(types_of_outputs("Attention", {values, values, head}, 3) == types{f16, f16, f32});
  for (const char* op : {"Sub", "Max", "Pow"}) {
    CHECK(types_of_outputs(op, {two, two}, 1) == types{f16});
  }
  CHECK(types_of_outputs("GatherND", {two, longs({1, 1}, {1})}, 1) == types{f16});
}

TEST_CASE("forms: constants of 16 bits give results of 16 bits in each run") {
  model_builder b(19);
  b.input("x", {2}, element_type::f16);
  b.constant("one", halves({}, {1.0F}));
  const std::string rest = b.add("Sub", {"one", "x"});
  b.output(b.add("Concat", {rest, "x"}, {{"axis", number(0)}}), element_type::f16);
  // 2049 is no float16: it is rounded to 2048.
  b.constant("many", halves({1}, {2048.0F}));
  b.output(b.add("Concat", {b.add("Add", {"many", "one"}), "x"}, {{"axis", number(0)}}),
           element_type::f16);
  const test::tensors inputs{{"x", halves({2}, {0.25F, -3.0F})}};
  const std::vector<std::uint16_t> expected[] = {
      values_of<std::uint16_t>(halves({4}, {0.75F, 4.0F, 0.25F, -3.0F})),
      values_of<std::uint16_t>(halves({3}, {2048.0F, 0.25F, -3.0F}))};
  graph::executor first(b.get());
  static_cast<void>(first.run(inputs));
  graph::executor second(first, {});
  for (graph::executor* e : {&first, &second, &second}) {
    const std::vector<tensor> y = e->run(inputs);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(y[i].type() == element_type::f16);
      CHECK(values_of<std::uint16_t>(y[i]) == expected[i]);
    }
  }
  // Constants that are folded, and the values that are known before a run.
  graph::model folded = b.get();
  graph::simplify(folded);
  for (const auto& [name, t] : folded.initializers) {
    CHECK(t.type() == element_type::f16);
  }
  CHECK(folded.nodes.size() == 3);
  const auto known = graph::infer_shapes(b.get());
  CHECK(known.at(rest).type() == element_type::f16);
  for (const auto& output : b.get().outputs) {
    CHECK(known.at(output.name).type() == element_type::f16);
  }
}

TEST_CASE("forms: types and ranks of images whose sizes are open") {
  model_builder b;
  b.input("x", {-1, 3, -1, -1});
  b.constant("w", floats({4, 3, 3, 3}, std::vector<float>(108, 0.5F)));
  b.constant("v", floats({2, 4, 3, 3}, std::vector<float>(72, 0.5F)));
  const std::string first = b.add("Relu", {b.add("Conv", {"x", "w"})});
  const std::string pooled = b.add("MaxPool", {first}, {{"kernel_shape", list({2, 2})}});
  const std::string last = b.add("Conv", {pooled, "v"});
  const std::string size = b.add("Shape", {last});
  b.output(last);
  b.output(size, element_type::s64);
  CHECK(graph::infer_shapes(b.get()).count(first) == 0);
  const auto known = graph::infer_types(b.get());
  for (const std::string& name : {first, pooled, last}) {
    INFO(name);
    REQUIRE(known.count(name) == 1);
    CHECK(known.at(name).type() == element_type::f32);
    CHECK(known.at(name).rank() == 4);
  }
  // No element that depends on the size is made up.
  CHECK(known.at(size).type() == element_type::s64);
  CHECK_FALSE(known.at(size).has_data());
}

TEST_CASE("forms: masks of Attention before and since opset 24") {
  // Equal scores: without a mask, each query gets the mean of the three values.
  const tensor zeros = floats({1, 1, 2, 1}, {0, 0});
  const tensor keys = floats({1, 1, 3, 1}, {0, 0, 0});
  const tensor values = floats({1, 1, 3, 1}, {3, 6, 9});
  const auto attend = [&](const tensor& mask, std::int64_t opset) {
    return values_of<float>(result_of("Attention", {zeros, keys, values, mask}, {}, opset));
  };
  const tensor column = floats({2, 1}, {0, 5});  // for all keys of a query, or for the first one
  CHECK(attend(column, 23) == std::vector<float>{6, 6});
  CHECK(attend(column, 24) == std::vector<float>{3, 3});
  const tensor shorter = floats({2, 2}, {0, 0, 0, 0});
  CHECK(attend(shorter, 24) == std::vector<float>{4.5F, 4.5F});
  check_refused(error_kind::bad_file, {"Attention", "[2,2]", "[1,1,2,3]"}, "Attention",
                {zeros, keys, values, shorter}, {}, 23);
  const tensor flags = make_tensor(element_type::boolean, {2, 1}, std::vector<std::uint8_t>{1, 0});
  CHECK(attend(flags, 23) == std::vector<float>{6, 0});
  CHECK(attend(flags, 24) == std::vector<float>{3, 0});
}

TEST_CASE("forms: zero points and scales of products that are no row or column") {
  const tensor a = bytes({2, 2}, {1, 2, 3, 4});
  const tensor b = bytes({2, 2}, {1, 0, 0, 1});
  const auto product = [&](const tensor& za, const tensor& zb) {
    return values_of<std::int32_t>(result_of("MatMulInteger", {a, b, za, zb}));
  };
  // Columns of B, in a row; rows of A, in a list or a column.
  CHECK(product({}, bytes({2}, {1, 0})) == std::vector<std::int32_t>{-2, 2, -4, 4});
  CHECK(product({}, bytes({1, 2}, {1, 0})) == std::vector<std::int32_t>{-2, 2, -4, 4});
  CHECK(product(bytes({2}, {1, 3}), {}) == std::vector<std::int32_t>{0, 1, 0, 1});
  CHECK(product(bytes({2, 1}, {1, 3}), {}) == std::vector<std::int32_t>{0, 1, 0, 1});
  for (const bool of_a : {false, true}) {
    const tensor odd = bytes(of_a ? shape{1, 2} : shape{2, 1}, {1, 0});
    check_refused(error_kind::unsupported, {"MatMulInteger", of_a ? "[1,2]" : "[2,1]"},
                  "MatMulInteger", {a, b, of_a ? odd : tensor(), of_a ? tensor() : odd}, {});
  }
  const tensor zero = bytes({}, {0});
  for (const shape& dims : {shape{2}, shape{2, 1}}) {
    const std::vector<tensor> inputs{
        a, scale(1), zero, b, floats(dims, {1, 2}), bytes(dims, {0, 0}), scale(1), zero};
    if (dims.size() == 1) {
      CHECK(values_of<std::uint8_t>(result_of("QLinearMatMul", inputs)) ==
            std::vector<std::uint8_t>{1, 4, 3, 8});
    } else {
      check_refused(error_kind::unsupported, {"QLinearMatMul", "[2,1]"}, "QLinearMatMul", inputs,
                    {});
    }
  }
}

TEST_CASE("forms: integers where an operator takes floats are not read as floats") {
  const tensor a = bytes({1, 2}, {1, 2});
  const tensor b = bytes({2, 2}, {1, 2, 3, 4});
  const tensor integers = make_tensor(element_type::s32, {2}, std::vector<std::int32_t>{1, 2});
  const tensor zero = bytes({}, {0});
  const auto refused = [](const std::string& op, const std::vector<tensor>& inputs,
                          const std::string& domain) {
    check_refused(error_kind::unsupported, {op, "int32"}, op, inputs, {}, 17, domain);
  };
  refused("MatMulIntegerToFloat", {a, b, scale(1), scale(1), zero, zero, integers}, microsoft);
  refused("MatMulIntegerToFloat", {a, b, scale(1), integers, zero, zero, {}}, "detent");
  refused("MatMulIntegerToFloat", {a, b, scale(1), scale(1), zero, zero, integers}, "detent");
  refused("DynamicQuantizeMatMul", {floats({1, 2}, {1, 2}), b, scale(1), zero, integers},
          microsoft);
  // The columns of a right side of rank 1 are not its depth.
  const tensor column = bytes({2}, {3, 4});
  CHECK(values_of<float>(result_of("MatMulIntegerToFloat",
                                   {a, column, scale(1), scale(2), zero, zero, {}}, {}, 17,
                                   "detent")) == std::vector<float>{22});
}

TEST_CASE("forms: what operators need beside their outputs counts against the limit of memory") {
  const auto refused = [](model_builder& b, std::size_t limit) {
    graph::executor_options options;
    options.max_memory_bytes = limit;
    check_graph_error(error_kind::bad_file, {"limit"}, [&] {
      static_cast<void>(
          graph::executor(b.get(), options).run({{"x", floats({1, 64}, std::vector<float>(64))}}));
    });
  };
  // 64 KiB of weights of 2 bits that a node makes: 256 KiB of codes and 1 MiB of floats.
  model_builder b(17);
  b.input("x", {1, 64});
  b.constant("byte", bytes({1, 1, 1}, {0x1B}));
  b.constant("dims", std::vector<std::int64_t>{4096, 4, 4});
  b.constant("scales", floats({4096 * 4}, std::vector<float>(4096 * 4, 1.0F)));
  const std::string weights = b.add("Expand", {"byte", "dims"});
  b.output(b.add(
      "MatMulNBits", {"x", weights, "scales"},
      {{"bits", number(2)}, {"block_size", number(16)}, {"K", number(64)}, {"N", number(4096)}},
      microsoft));
  refused(b, std::size_t{512} << 10U);

  // The same number of weights of 4 bits that are multiplied as integers: packed, they take about
  // half a byte each, 266 KiB with scales and zero points, where floats would take 1 MiB.
  model_builder integers(17);
  integers.input("x", {1, 64});
  integers.constant("byte", bytes({1, 1, 1}, {0x89}));
  integers.constant("dims", std::vector<std::int64_t>{4096, 4, 8});
  integers.constant("scales", floats({4096 * 4}, std::vector<float>(4096 * 4, 1.0F)));
  const std::string codes = integers.add("Expand", {"byte", "dims"});
  integers.output(integers.add("MatMulNBits", {"x", codes, "scales"},
                               {{"bits", number(4)},
                                {"accuracy_level", number(4)},
                                {"block_size", number(16)},
                                {"K", number(64)},
                                {"N", number(4096)}},
                               microsoft));
  graph::executor_options options;
  options.max_memory_bytes = std::size_t{1} << 20U;
  const tensor x = floats({1, 64}, std::vector<float>(64, 255.0F));  // whose scale is 1
  const tensor sums = graph::executor(integers.get(), options).run({{"x", x}})[0];
  // 32 codes of 9 and 32 of 8, which is the zero point.
  CHECK(values_of<float>(sums) == std::vector<float>(4096, 32.0F * 255.0F));
  refused(integers, std::size_t{512} << 10U);
}

TEST_CASE("forms: packed operands and rows that a run computes count against the limit of memory") {
  constexpr std::size_t mib = std::size_t{1} << 20U;
  // A run gets a little more memory than it needs, and then a little less.
  const auto needs = [](const model_builder& b, const tensor& x, std::size_t bytes_of_memory) {
    graph::executor_options options;
    options.max_memory_bytes = bytes_of_memory + mib / 4;
    static_cast<void>(graph::executor(b.get(), options).run({{"x", x}}));
    options.max_memory_bytes = bytes_of_memory - mib / 4;
    check_graph_error(error_kind::bad_file, {"limit"}, [&] {
      static_cast<void>(graph::executor(b.get(), options).run({{"x", x}}));
    });
  };
  // A node makes 1 MiB of floats.
  const auto computed = [](model_builder& b, const std::vector<std::int64_t>& dims) {
    b.constant("one", floats({1}, {1}));
    b.constant("dims", dims);
    return b.add("Expand", {"one", "dims"});
  };
  const tensor row = floats({1, 64}, std::vector<float>(64, 1.0F));
  for (const char* op : {"MatMul", "Gemm", "Einsum"}) {
    INFO(op);
    model_builder b(17);
    b.input("x", row.dims());
    attributes a;
    if (std::string_view(op) == "Einsum") {
      a["equation"] = text("ij,jk->ik");
    }
    b.output(b.add(op, {"x", computed(b, {64, 4096})}, a));
    needs(b, row, (a.empty() ? 2 : 3) * mib);  // Einsum copies the operand before it packs it
  }
  const tensor query = row.reshaped({1, 1, 1, 64});
  model_builder attention(23);
  attention.input("x", query.dims());
  const std::string keys = computed(attention, {1, 1, 4096, 64});
  attention.output(attention.add("Attention", {"x", keys, keys}));
  needs(attention, query, 5 * mib);  // the operand, two copies, and both packed

  // The rows in double are the output, a copy, and their powers.
  const tensor logits = wide_floats({1, 65536}, std::vector<double>(65536, 1.0));
  model_builder b(17);
  b.input("x", logits.dims(), element_type::f64);
  b.output(b.add("LogSoftmax", {"x"}), element_type::f64);
  needs(b, logits, 3 * mib / 2);
}

TEST_CASE("forms: Dropout before opset 7 drops elements unless is_test says otherwise") {
  const tensor x = floats({4}, {1, 2, 3, 4});
  check_refused(error_kind::unsupported, {"Dropout", "is_test"}, "Dropout", {x}, {}, 6);
  CHECK(values_of<float>(result_of("Dropout", {x}, {{"is_test", number(1)}}, 6)) ==
        values_of<float>(x));
  CHECK(values_of<float>(result_of("Dropout", {x}, {{"ratio", real(0.0F)}}, 6)) ==
        values_of<float>(x));
  CHECK(values_of<float>(result_of("Dropout", {x}, {}, 7)) == values_of<float>(x));
  for (const std::int64_t is_test : {0, 1}) {
    model_builder b(6);
    b.input("x", {4});
    const std::string dropped = b.add("Dropout", {"x"}, {{"is_test", number(is_test)}});
    b.output(b.add("Relu", {dropped}));
    graph::remove_no_ops(b.get());
    CHECK(b.get().nodes.size() == (is_test == 1 ? 1U : 2U));
  }
}

TEST_CASE("forms: a zero point has the type of the elements that it is for") {
  const tensor a = bytes({1, 2}, {1, 2});
  const tensor b = bytes({2, 2}, {1, 2, 3, 4});
  const tensor zero = bytes({}, {1});
  const tensor other = signed_bytes({}, {1});
  const tensor image = bytes({1, 1, 1, 2}, {1, 2});
  const tensor filters = bytes({1, 1, 1, 1}, {1});
  const auto refused = [](const std::string& op, const std::vector<tensor>& inputs,
                          const std::string& domain = "") {
    check_refused(error_kind::bad_file, {op, "uint8", "zero point", "int8"}, op, inputs, {}, 17,
                  domain);
  };
  for (const char* domain : {"", microsoft}) {
    refused("DequantizeLinear", {a, scale(1), other}, domain);
  }
  check_refused(error_kind::bad_file, {"DequantizeLinear", "int32", "uint8"}, "DequantizeLinear",
                {make_tensor(element_type::s32, {1}, std::vector<std::int32_t>{5}), scale(1), zero},
                {});
  for (const bool is_first : {false, true}) {
    const tensor& of_a = is_first ? other : zero;
    const tensor& of_b = is_first ? zero : other;
    refused("MatMulInteger", {a, b, of_a, of_b});
    refused("ConvInteger", {image, filters, of_a, of_b});
    refused("QLinearMatMul", {a, scale(1), of_a, b, scale(1), of_b, scale(1), zero});
    refused("QLinearConv", {image, scale(1), of_a, filters, scale(1), of_b, scale(1), zero});
    refused("QGemm", {a, scale(1), of_a, b, scale(1), of_b}, microsoft);
    refused("MatMulIntegerToFloat", {a, b, scale(1), scale(1), of_a, of_b}, microsoft);
    refused("QLinearAdd", {a, scale(1), of_a, b, scale(1), of_b, scale(1), zero}, microsoft);
    refused("MulInteger", {a, of_a, b, of_b}, microsoft);
    refused("QLinearGlobalAveragePool", {image, scale(1), of_a, scale(1), of_b}, microsoft);
  }
  refused("DynamicQuantizeMatMul", {floats({1, 2}, {1, 2}), b, scale(1), other}, microsoft);
  refused("QLinearSigmoid", {a, scale(1), other, scale(1), zero}, microsoft);
  refused("QLinearConcat", {scale(1), zero, a, scale(1), other}, microsoft);
  refused("DynamicLinear", {floats({1, 2}, {1, 2}), b, scale(1), other}, "detent");
}

TEST_CASE("forms: what LayerNormalization returns of its means has the type of stash_type") {
  const tensor x = floats({2, 3}, {0, 1, 2, 3, 4, 5});
  const tensor ones = floats({3}, {1, 1, 1});
  const auto stash = [](std::int64_t type) { return attributes{{"stash_type", number(type)}}; };
  const std::vector<tensor> plain = outputs_of("LayerNormalization", {x, ones}, 3);
  CHECK(values_of<float>(plain[1]) == std::vector<float>{1, 4});
  const float deviation = values_of<float>(plain[2])[0];
  CHECK(deviation == 1.2247357368469238F);

  // bfloat16: 1, 4 and, rounded, 1.2265625.
  const std::vector<tensor> narrow = outputs_of("LayerNormalization", {x, ones}, 3, stash(16));
  CHECK(values_of<float>(narrow[0]) == values_of<float>(plain[0]));
  REQUIRE(narrow[1].type() == element_type::bf16);
  REQUIRE(narrow[2].type() == element_type::bf16);
  CHECK(narrow[1].dims() == shape{2, 1});
  CHECK(values_of<std::uint16_t>(narrow[1]) == std::vector<std::uint16_t>{0x3F80, 0x4080});
  CHECK(values_of<std::uint16_t>(narrow[2]) == std::vector<std::uint16_t>{0x3F9D, 0x3F9D});
  CHECK(types_of_outputs("LayerNormalization", {halves({3}, {0, 1, 2}), halves({3}, {1, 1, 1})}, 3,
                         stash(16)) ==
        std::vector<element_type>{element_type::f16, element_type::bf16, element_type::bf16});
  for (const std::int64_t type : {0, 10, 11}) {
    INFO(type);
    CHECK(values_of<float>(result_of("LayerNormalization", {x, ones}, stash(type))) ==
          values_of<float>(plain[0]));
    check_graph_error(error_kind::unsupported, {"LayerNormalization", "stash_type"}, [&] {
      static_cast<void>(outputs_of("LayerNormalization", {x, ones}, 3, stash(type)));
    });
  }
  check_refused(error_kind::unsupported, {"LayerNormalization", "stash_type int64"},
                "LayerNormalization", {x, ones}, stash(7));
}

TEST_CASE("forms: MeanVarianceNormalization of inputs that are no images") {
  const auto normalized = [](const shape& dims, const attributes& a = {}) {
    std::vector<float> values(graph::element_count(dims));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i);
    }
    return values_of<float>(result_of("MeanVarianceNormalization", {floats(dims, values)}, a, 13));
  };
  CHECK(normalized({2, 2}) == std::vector<float>{-1, -1, 1, 1});
  CHECK(normalized({2, 2, 2}) == normalized({2, 2, 2}, {{"axes", list({0, 2})}}));
  CHECK(normalized({4})[3] == doctest::Approx(1.3416407108306885).epsilon(1e-6));
  CHECK(normalized({2, 2, 2, 2, 2}) == normalized({2, 2, 2, 2, 2}, {{"axes", list({0, 2, 3})}}));
  const tensor x = floats({2, 2, 2}, std::vector<float>(8, 1.0F));
  check_refused(error_kind::bad_file, {"MeanVarianceNormalization", "axis 3", "rank 3"},
                "MeanVarianceNormalization", {x}, {{"axes", list({0, 3})}}, 13);
  check_refused(error_kind::unsupported, {"MeanVarianceNormalization", "no axes"},
                "MeanVarianceNormalization", {x}, {{"axes", list({})}}, 13);
  check_refused(error_kind::unsupported, {"MeanVarianceNormalization", "no axes"},
                "MeanVarianceNormalization", {scale(1)}, {}, 13);
}

TEST_CASE("forms: indices without numbers stand for the whole tensor") {
  const tensor x = floats({2, 3}, {0, 1, 2, 3, 4, 5});
  const tensor gathered = result_of("GatherND", {x, longs({2, 0}, {})}, {}, 13);
  CHECK(gathered.dims() == shape{2, 2, 3});
  CHECK(values_of<float>(gathered) == std::vector<float>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  CHECK(result_of("GatherND", {x, longs({0}, {})}, {}, 13).dims() == shape{2, 3});
  CHECK(values_of<float>(
            result_of("GatherND", {x, longs({2, 2, 0}, {})}, {{"batch_dims", number(1)}}, 13)) ==
        std::vector<float>{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});

  const tensor updates = floats({2, 2, 3}, {10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25});
  const std::vector<tensor> twice{x, longs({2, 0}, {}), updates};
  CHECK(values_of<float>(result_of("ScatterND", twice)) ==
        std::vector<float>{20, 21, 22, 23, 24, 25});
  CHECK(values_of<float>(result_of("ScatterND", twice, {{"reduction", text("add")}})) ==
        std::vector<float>{30, 33, 36, 39, 42, 45});
  CHECK(values_of<float>(
            result_of("ScatterND", {x, longs({0}, {}), floats({2, 3}, {5, 6, 7, 8, 9, 10})})) ==
        std::vector<float>{5, 6, 7, 8, 9, 10});
  CHECK(values_of<float>(result_of("ScatterND", {x, longs({0, 0}, {}), floats({0, 2, 3}, {})})) ==
        values_of<float>(x));
  // Very many updates of nothing end at once.
  const std::int64_t many = std::int64_t{1} << 30;
  CHECK(result_of("ScatterND", {floats({0}, {}), longs({many, 0}, {}), floats({many, 0}, {})})
            .dims() == shape{0});
  check_refused(error_kind::bad_file, {"ScatterND", "scalar"}, "ScatterND",
                {scale(1), longs({1, 0}, {}), floats({1}, {2})}, {});
}

TEST_CASE("forms: a scalar is reduced over no axes") {
  for (const std::int64_t noop : {0, 1}) {
    const attributes a{{"noop_with_empty_axes", number(noop)}};
    CHECK(values_of<float>(result_of("ReduceSum", {scale(3), longs({0}, {})}, a, 18)) ==
          std::vector<float>{3});
    CHECK(values_of<float>(result_of("ReduceSumSquare", {scale(3), longs({0}, {})}, a, 18)) ==
          std::vector<float>{9});
    for (const std::int64_t axis : {0, -1}) {
      check_refused(error_kind::bad_file, {"ReduceMax", "rank 0"}, "ReduceMax",
                    {scale(3), longs({1}, {axis})}, a, 18);
    }
  }
}

TEST_CASE("forms: quantized averages of images whose channels come last") {
  const tensor image = bytes({1, 2, 2, 3}, {3, 10, 200, 4, 20, 201, 5, 30, 202, 7, 40, 255});
  const auto inputs = [&](const tensor& x) {
    return std::vector<tensor>{x, scale(0.5F), bytes({}, {3}), scale(0.75F), bytes({}, {7})};
  };
  const auto averages = [&](const char* op, const tensor& x, attributes a) {
    a["channels_last"] = number(1);
    return result_of(op, inputs(x), std::move(a), 17, microsoft);
  };
  const std::vector<std::uint8_t> of_image{8, 22, 148};
  const tensor whole = averages("QLinearGlobalAveragePool", image, {});
  CHECK(whole.dims() == shape{1, 1, 1, 3});
  CHECK(values_of<std::uint8_t>(whole) == of_image);
  const tensor line = averages("QLinearGlobalAveragePool", image.reshaped({1, 4, 3}), {});
  CHECK(line.dims() == shape{1, 1, 3});
  CHECK(values_of<std::uint8_t>(line) == of_image);

  const tensor down = averages("QLinearAveragePool", image, {{"kernel_shape", list({2, 1})}});
  CHECK(down.dims() == shape{1, 1, 2, 3});
  CHECK(values_of<std::uint8_t>(down) == std::vector<std::uint8_t>{8, 18, 139, 9, 25, 157});
  const tensor across = averages("QLinearAveragePool", image, {{"kernel_shape", list({1, 2})}});
  CHECK(across.dims() == shape{1, 2, 1, 3});
  CHECK(values_of<std::uint8_t>(across) == std::vector<std::uint8_t>{7, 15, 139, 9, 28, 157});
  check_refused(error_kind::bad_file, {"QLinearGlobalAveragePool", "rank 2"},
                "QLinearGlobalAveragePool", inputs(bytes({1, 2}, {1, 2})),
                {{"channels_last", number(1)}}, 17, microsoft);

  // What is before it may have reordered the elements.
  model_builder b;
  b.input("x", {1, 2, 2, 3}, element_type::u8);
  b.scalar("s", 0.5F);
  b.scalar("t", 0.75F);
  b.constant("z", bytes({}, {3}));
  b.constant("w", bytes({}, {7}));
  const std::string same = b.add("MaxPool", {"x"}, {{"kernel_shape", list({1, 1})}});
  b.output(b.add("QLinearGlobalAveragePool", {same, "s", "z", "t", "w"},
                 {{"channels_last", number(1)}}, microsoft),
           element_type::u8);
  CHECK(values_of<std::uint8_t>(graph::executor(b.get()).run({{"x", image}})[0]) == of_image);
}

TEST_CASE("forms: scales and zero points for each matrix of a stack") {
  const tensor a = bytes({2, 2, 3}, {1, 2, 3, 4, 5, 6, 1, 0, 2, 0, 1, 3});
  const tensor b = bytes({2, 3, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const tensor scales = floats({2, 1, 2}, {1, 2, 4, 8});
  const tensor zeros = bytes({2, 1, 2}, {1, 2, 3, 4});
  const tensor one = bytes({}, {1});
  const auto product = [&](const tensor& left, const tensor& right, const tensor& right_scale,
                           const tensor& right_zero) {
    return values_of<float>(result_of("MatMulIntegerToFloat",
                                      {left, right, scale(0.5F), right_scale, one, right_zero}, {},
                                      17, microsoft));
  };
  CHECK(product(a, b, scales, zeros) == std::vector<float>{5, 10, 14, 28, 4, 8, 24, 48});
  CHECK(product(a, b, scales, bytes({}, {0})) ==
        std::vector<float>{6.5F, 16, 20, 52, 4, 8, 30, 64});
  CHECK(product(a, b, floats({2}, {1, 2}), zeros) ==
        std::vector<float>{5, 10, 14, 28, 1, 2, 6, 12});
  CHECK(product(a, b, floats({1, 1, 2}, {1, 2}), bytes({}, {0})) ==
        std::vector<float>{6.5F, 16, 20, 52, 1, 2, 7.5F, 16});
  // The left matrix is multiplied by both right ones.
  CHECK(product(a.reshaped({4, 3}), b, scales, zeros).size() == 16);
  CHECK(product(bytes({2, 3}, {1, 2, 3, 4, 5, 6}), b, scales, zeros) ==
        std::vector<float>{5, 10, 14, 28, 44, 88, 152, 304});
  CHECK(product(a, bytes({2, 3, 1}, {1, 3, 5, 7, 9, 11}), floats({2, 1, 1}, {1, 4}),
                bytes({}, {0})) == std::vector<float>{6.5F, 20, 4, 30});
  check_refused(error_kind::unsupported, {"MatMulIntegerToFloat", "[2,2]"}, "MatMulIntegerToFloat",
                {a, b, scale(0.5F), floats({2, 2}, {1, 2, 4, 8}), one}, {}, 17, microsoft);

  const tensor real = floats({2, 2, 3}, {0, 51, 255, 255, 0, 102, 0, 255, 51, 102, 51, 255});
  CHECK(values_of<float>(result_of(
            "DynamicQuantizeMatMul", {real, b, scales, zeros, floats({2}, {1, 2})}, {}, 17,
            microsoft)) == std::vector<float>{1123, 2246, 409, 818, 7753, 15506, 11017, 22034});
  CHECK(values_of<std::int32_t>(result_of("MatMulInteger", {a, b, one, zeros})) ==
        std::vector<std::int32_t>{10, 10, 28, 28, 2, 2, 12, 12});
  CHECK(values_of<std::uint8_t>(result_of(
            "QLinearMatMul", {a, scale(1), one, b, scales, zeros, scale(4), bytes({}, {100})})) ==
        std::vector<std::uint8_t>{102, 105, 107, 114, 102, 104, 112, 124});
}

TEST_CASE("forms: Attention in double, and masks of other numbers") {
  const std::vector<double> q{0.25, 0.5, 0.75, -0.25};
  const std::vector<double> k{0.5, 0, 0, 0.5, 0.5, 0.5};
  const std::vector<double> v{1, 2, 3, 4, 5, -6};
  const auto narrow = [](shape dims, const std::vector<double>& values) {
    return floats(std::move(dims), std::vector<float>(values.begin(), values.end()));
  };
  const std::vector<tensor> wide{wide_floats({1, 1, 2, 2}, q), wide_floats({1, 1, 3, 2}, k),
                                 wide_floats({1, 1, 3, 2}, v)};
  const std::vector<tensor> single{narrow({1, 1, 2, 2}, q), narrow({1, 1, 3, 2}, k),
                                   narrow({1, 1, 3, 2}, v)};
  const auto attend = [](std::vector<tensor> inputs, const tensor& mask, const attributes& a = {}) {
    inputs.push_back(mask);
    return result_of("Attention", inputs, a, 23);
  };
  // Expected are results of onnx.reference; those with an attribute `scale`, whose root it rounds
  // to float, are the formula's.
  const auto check_near = [](const tensor& t, const std::vector<double>& expected) {
    REQUIRE(t.type() == element_type::f64);
    const auto values = values_of<double>(t);
    REQUIRE(values.size() == expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-13));
    }
  };
  check_near(attend(wide, {}),
             {3.1176979374984417, -0.2405940543146804, 2.9353645417581027, -0.261185621803411});
  check_near(
      attend(wide, {}, {{"softcap", real(2.0F)}, {"scale", real(0.5F)}, {"is_causal", number(1)}}),
      {1.0, 2.0, 1.875926483083296, 2.875926483083296});
  check_near(attend(wide, make_tensor(element_type::boolean, {2, 3},
                                      std::vector<std::uint8_t>{1, 0, 1, 0, 0, 0})),
             {3.176317773396904, -2.352635546793808, 0.0, 0.0});
  const std::vector<double> bias{0, -1, 1, 1, 0, 0};
  const std::vector<double> biased{3.9659960524934013, -3.412971074684793, 2.168391040176177,
                                   0.6349088434314646};
  const tensor numbers = longs({2, 3}, {0, -1, 1, 1, 0, 0});
  for (const tensor& mask : {wide_floats({2, 3}, bias), narrow({2, 3}, bias), numbers}) {
    check_near(attend(wide, mask), biased);
  }
  const auto expected = values_of<float>(attend(single, narrow({2, 3}, bias)));
  for (const tensor& mask :
       {wide_floats({2, 3}, bias), numbers, signed_bytes({2, 3}, {0, -1, 1, 1, 0, 0})}) {
    CHECK(values_of<float>(attend(single, mask)) == expected);
  }

  std::vector<tensor> with_past = wide;
  with_past.insert(with_past.end(), {tensor(), wide_floats({1, 1, 1, 2}, {0.5, 0}),
                                     wide_floats({1, 1, 1, 2}, {1, 2})});
  const std::vector<tensor> all = outputs_of("Attention", with_past, 4);
  check_near(all[0],
             {2.62357563267004, 0.28220359245952886, 2.400377851287508, 0.3638667578632101});
  check_near(all[1], {0.5, 0, 0.5, 0, 0, 0.5, 0.5, 0.5});
  check_near(all[2], {1, 2, 1, 2, 3, 4, 5, -6});
  check_near(all[3],
             {0.08838834764831843, 0.08838834764831843, 0.17677669529663687, 0.2651650429449553,
              0.2651650429449553, 0.2651650429449553, -0.08838834764831843, 0.17677669529663687});

  check_refused(error_kind::unsupported, {"Attention", "float32", "float64"}, "Attention",
                {wide[0], wide[1], single[2]}, {}, 23);
}

TEST_CASE("forms: blocks of MatMulNBits that g_idx names") {
  const auto g_idx = [](std::size_t rows, std::int32_t behind) {
    std::vector<std::int32_t> blocks(rows, behind);
    std::fill_n(blocks.begin(), 8, 0);
    return make_tensor(element_type::s32, {static_cast<std::int64_t>(rows)}, blocks);
  };
  const auto inputs = [](std::int64_t depth, const tensor& zero_points, const tensor& blocks) {
    return std::vector<tensor>{
        floats({1, depth}, std::vector<float>(static_cast<std::size_t>(depth), 1.0F)),
        bytes({1, 2, 8}, std::vector<std::uint8_t>(16, 0x99)), floats({1, 2}, {1, 10}), zero_points,
        blocks};
  };
  const auto sizes = [](std::int64_t depth, std::int64_t accuracy_level = 0) {
    return attributes{{"K", number(depth)},
                      {"N", number(1)},
                      {"block_size", number(16)},
                      {"accuracy_level", number(accuracy_level)}};
  };
  const auto product = [](const std::vector<tensor>& all, const attributes& a) {
    return values_of<float>(result_of("MatMulNBits", all, a, 17, microsoft))[0];
  };
  // Each code is 9, the zero point 8: sums of the scales of the rows.
  CHECK(product(inputs(32, {}, {}), sizes(32)) == 176.0F);
  CHECK(product(inputs(32, {}, g_idx(32, 1)), sizes(32)) == 248.0F);
  CHECK(product(inputs(32, {}, g_idx(32, 1)), sizes(32, 4)) == 248.0F);
  CHECK(product(inputs(32, floats({1, 2}, {8.5F, 7}), g_idx(32, 1)), sizes(32)) == 484.0F);
  CHECK(product(inputs(24, {}, g_idx(24, 1)), sizes(24)) == 168.0F);
  CHECK(product(inputs(24, {}, g_idx(32, 1)), sizes(24)) == 168.0F);

  const auto refused = [&](error_kind kind, std::initializer_list<std::string_view> words,
                           const tensor& zero_points, const tensor& blocks,
                           const std::string& domain = microsoft) {
    check_refused(kind, words, "MatMulNBits", inputs(32, zero_points, blocks), sizes(32), 17,
                  domain);
  };
  refused(error_kind::bad_file, {"MatMulNBits", "block 2 of 2"}, {}, g_idx(32, 2));
  refused(error_kind::bad_file, {"MatMulNBits", "block -1 of 2"}, {}, g_idx(32, -1));
  refused(error_kind::bad_file, {"MatMulNBits", "g_idx", "[31]"}, {}, g_idx(31, 1));
  refused(error_kind::bad_file, {"MatMulNBits", "g_idx", "int64"}, {},
          longs({32}, std::vector<std::int64_t>(32, 0)));
  refused(error_kind::unsupported, {"MatMulNBits", "packed zero points"}, bytes({1, 1}, {0x88}),
          g_idx(32, 1));
  refused(error_kind::unsupported, {"MatMulNBits", "g_idx"}, {}, g_idx(32, 1), "detent");
}
