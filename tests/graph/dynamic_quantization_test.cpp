// SPDX-License-Identifier: BSD-3-Clause
// Dynamic quantization against plain loops: the input's range of each run, integer weights, sums.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "plain_layers.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

tensor run_one(const graph::model& m, const tensors& inputs, bool prepared) {
  return outputs_of(prepared ? graph::for_execution(m) : m, inputs)[0];
}

/// DynamicQuantizeLinear as ONNX defines it: zero is in the range, all float.
struct dynamic_codes {
  float scale = 1.0F;
  int zero_point = 0;
  images centred;  // codes - zero point
};
dynamic_codes quantize_dynamically(const tensor& t) {
  dynamic_codes d;
  float lower = 0.0F;
  float upper = 0.0F;
  for (const float v : t.data<float>()) {
    lower = (std::min)(lower, v);
    upper = (std::max)(upper, v);
  }
  if (upper > lower) {
    d.scale = (upper - lower) / 255.0F;
  }
  d.zero_point = static_cast<int>(std::nearbyint(std::clamp(-lower / d.scale, 0.0F, 255.0F)));
  d.centred = test::images_of(t);
  for (double& v : d.centred.values) {
    const float steps = std::nearbyint(static_cast<float>(v) / d.scale);
    v = static_cast<double>(std::clamp(steps + static_cast<float>(d.zero_point), 0.0F, 255.0F)) -
        d.zero_point;
  }
  return d;
}

/// The result of one layer that is quantized dynamically.
std::vector<double> expected_result(const plain_layer& l, const tensor& x, bool per_channel) {
  const dynamic_codes q = quantize_dynamically(x);
  const images sums = l.run(q.centred, l.weight_codes(per_channel), {});
  const std::vector<float> scales = l.weight_scales(per_channel);
  std::vector<double> y = sums.values;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t channel = i / sums.pixels() % sums.channels;
    y[i] *= static_cast<double>(q.scale) * static_cast<double>(scales[channel]);
    y[i] += l.bias.empty() ? 0.0 : static_cast<double>(l.bias[channel]);
  }
  return y;
}

/// How far the result is from the expected one, as a share of its largest value.
double farthest(const tensor& actual, const std::vector<double>& expected) {
  REQUIRE(actual.type() == element_type::f32);
  REQUIRE(actual.count() == expected.size());
  double largest = 1e-6;
  double most = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = (std::max)(largest, std::fabs(expected[i]));
    most = (std::max)(most, std::fabs(expected[i] - static_cast<double>(actual.data<float>()[i])));
  }
  return most / largest;
}

/// The integer weights and scales that a model holds.
void check_weights(const graph::model& m, const plain_layer& l, bool per_channel) {
  const graph::node& n = first(m, l.is_conv ? "ConvInteger" : "MatMulInteger");
  CHECK(m.initializers.at(n.inputs[1]).type() == element_type::u8);
  REQUIRE(n.inputs.size() == 4);
  CHECK(test::values_of<std::uint8_t>(m.initializers.at(n.inputs[3])) ==
        std::vector<std::uint8_t>{128});
  const std::vector<int> codes = test::centred_weights(m, n);
  const std::vector<double> expected = l.weight_codes(per_channel);
  REQUIRE(codes.size() == expected.size());
  int wrong = 0;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    // Products have their weights with the outputs last.
    const std::size_t at = l.is_conv ? k : k % l.inputs * l.outputs + k / l.inputs;
    wrong += static_cast<double>(codes[at]) == expected[k] ? 0 : 1;
  }
  CHECK(wrong == 0);
}

/// Symmetric scales from the largest magnitude.
graph::dynamic_quantization_options symmetric(bool per_channel = true) {
  graph::dynamic_quantization_options options;
  options.weights.per_channel = per_channel;
  options.weights.scale = graph::weight_scale::absmax;
  options.weights.asymmetric = false;
  return options;
}

plain_layer layer_shape(bool is_conv, std::size_t outputs, std::size_t inputs, std::size_t kernel,
                        std::size_t group, std::size_t pad, std::size_t stride) {
  plain_layer l = test::layer_shape("layer", outputs, inputs, kernel, group, pad, stride);
  l.is_conv = is_conv;
  return l;
}

graph::model model_of(const plain_layer& l, const shape& in) {
  model_builder b;
  b.input("x", in);
  b.output(l.add_to(b, "x"));
  return b.get();
}

/// Convolutions "one", "two" and "three", a Relu behind each.
model_builder three_layers(test::random_source& r) {
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  std::string y = "x";
  for (const char* name : {"one", "two", "three"}) {
    plain_layer l = test::random_layer(r, layer_shape(true, 3, 3, 3, 1, 1, 1));
    l.name = name;
    y = b.add("Relu", {l.add_to(b, y)});
  }
  b.output(y);
  return b;
}

}  // namespace

TEST_CASE("dynamic: one layer of each kind, by plain loops") {
  for (std::uint64_t seed = 200; seed < 203; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    struct kind {
      const char* name;
      shape in;
      plain_layer layer;
    };
    std::vector<kind> kinds{
        {"plain", {2, 5, 8, 7}, layer_shape(true, 6, 5, 3, 1, 0, 1)},
        {"padded", {2, 5, 8, 7}, layer_shape(true, 6, 5, 3, 1, 1, 2)},
        {"pointwise", {1, 5, 4, 4}, layer_shape(true, 7, 5, 1, 1, 0, 1)},
        {"depthwise", {1, 6, 7, 7}, layer_shape(true, 6, 6, 3, 6, 1, 1)},
        {"groups", {1, 6, 7, 7}, layer_shape(true, 4, 6, 3, 2, 1, 1)},
        {"gemm", {5, 19}, layer_shape(false, 7, 19, 1, 1, 0, 1)},
        {"gemm transB", {5, 19}, layer_shape(false, 7, 19, 1, 1, 0, 1)},
    };
    kinds[5].layer.transposed = false;
    for (const kind& k : kinds) {
      for (const bool bias : {true, false}) {
        const plain_layer l = test::random_layer(r, k.layer, bias);
        const graph::model m = model_of(l, k.in);
        for (const bool per_channel : {true, false}) {
          INFO(k.name, " bias ", bias, " per channel ", per_channel);
          const graph::model q = graph::quantize_dynamic(m, symmetric(per_channel));
          CHECK(count(q, "Conv") + count(q, "Gemm") == 0);
          check_weights(q, l, per_channel);
          graph::model again = graph::parse_onnx(graph::to_onnx(q), ".");
          // Ranges with zero inside, at either end, outside; a range of nothing.
          const float ranges[][2] = {{-1.0F, 2.0F}, {0.5F, 3.0F}, {-4.0F, -1.0F}, {0.0F, 0.0F}};
          for (const auto& range : ranges) {
            const tensor x = random_floats(r, k.in, range[0], range[1]);
            const tensor y = run_one(q, {{"x", x}}, false);
            CHECK(farthest(y, expected_result(l, x, per_channel)) < 1e-5);
            CHECK(test::difference(run_one(q, {{"x", x}}, true).data<float>(), y.data<float>()) ==
                  "");
            CHECK(test::difference(run_one(again, {{"x", x}}, true).data<float>(),
                                   y.data<float>()) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("dynamic: MatMul of rank 3 and 2") {
  test::random_source r(210);
  INFO("seed ", r.seed());
  const plain_layer l = test::random_layer(r, layer_shape(false, 7, 19, 1, 1, 0, 1), false);
  std::vector<float> columns(l.weights.size());
  for (std::size_t k = 0; k < columns.size(); ++k) {
    columns[k % 19 * 7 + k / 19] = l.weights[k];
  }
  for (const shape& in : {shape{2, 3, 19}, shape{6, 19}}) {
    model_builder b;
    b.input("x", in);
    b.constant("w", test::floats({19, 7}, columns));
    b.output(b.add("MatMul", {"x", "w"}));
    for (const bool per_channel : {true, false}) {
      const graph::model q = graph::quantize_dynamic(b.get(), symmetric(per_channel));
      check_weights(q, l, per_channel);
      const tensor x = random_floats(r, in, -1.0F, 1.5F);
      const tensor y = run_one(q, {{"x", x}}, true);
      shape dims = in;
      dims.back() = 7;
      CHECK(y.dims() == dims);
      CHECK(farthest(y, expected_result(l, x.reshaped({6, 19}), per_channel)) < 1e-5);
    }
  }
}

TEST_CASE("dynamic: what a value is used for more than once is quantized once") {
  test::random_source r(220);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  plain_layer l = test::random_layer(r, layer_shape(true, 4, 3, 3, 1, 1, 1));
  l.name = "a";
  const std::string a = l.add_to(b, "x");
  // The same weights, other layers.
  const std::string c = b.add("Conv", {"x", "a_w", "a_b"}, {{"strides", list({2, 2})}});
  plain_layer other = test::random_layer(r, layer_shape(true, 2, 3, 1, 1, 0, 1), false);
  other.name = "other";
  const std::string d = other.add_to(b, "x");
  b.output(a);
  b.output(c);
  b.output(d);
  b.output(b.add("Relu", {a}));
  const graph::model q = graph::quantize_dynamic(b.get(), symmetric());
  CHECK(count(q, "DynamicQuantizeLinear") == 1);
  CHECK(count(q, "ConvInteger") == 3);
  CHECK(count(q, "Conv") == 0);
  REQUIRE(q.outputs.size() == 4);
  graph::executor e(graph::for_execution(q));
  const tensor x = random_floats(r, {1, 3, 6, 6}, -1.0F, 1.0F);
  const auto y = e.run({{"x", x}});
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(q.outputs[i].name == b.get().outputs[i].name);
    CHECK(q.outputs[i].type == element_type::f32);
  }
  CHECK(farthest(y[0], expected_result(l, x, true)) < 1e-5);
  plain_layer strided = l;
  strided.pad = 0;
  strided.stride = 2;
  CHECK(farthest(y[1], expected_result(strided, x, true)) < 1e-5);
  CHECK(farthest(y[2], expected_result(other, x, true)) < 1e-5);
  std::vector<double> clamped = expected_result(l, x, true);
  for (double& v : clamped) {
    v = (std::max)(v, 0.0);
  }
  CHECK(farthest(y[3], clamped) < 1e-5);

  // Node names are unique as far as they were.
  std::map<std::string, int> names;
  for (const graph::node& n : q.nodes) {
    CHECK(++names[n.name] == 1);
  }
}

TEST_CASE("dynamic: ignored nodes stay as they are") {
  test::random_source r(230);
  INFO("seed ", r.seed());
  const model_builder b = three_layers(r);
  const auto left = [&](const graph::ignored_scope& scope) {
    const graph::model q = graph::quantize_dynamic(b.get(), {.scope = {.ignored = scope}});
    std::string names;
    for (const graph::node& n : q.nodes) {
      if (n.is("Conv")) {
        names += n.name + " ";
        CHECK(test::difference(q.initializers.at(n.inputs[1]).data<float>(),
                               b.get().initializers.at(n.inputs[1]).data<float>()) == "");
      }
    }
    CHECK(count(q, "ConvInteger") + count(q, "Conv") == 3);
    return names;
  };
  CHECK(left({}) == "");
  CHECK(left({.names = {"two"}}) == "two ");
  CHECK(left({.patterns = {"t.*"}}) == "two three ");
  CHECK(left({.types = {"Conv"}}) == "one two three ");
  CHECK(left({.first_layer = true}) == "one ");
  CHECK(left({.last_layer = true}) == "three ");
  CHECK(left({.names = {"two"}, .first_layer = true, .last_layer = true}) == "one two three ");
  CHECK(left({.names = {"nobody"}, .validate = false}) == "");
  check_graph_error(error_kind::invalid_argument, {"'nobody'"},
                    [&] { static_cast<void>(left({.names = {"nobody"}})); });
}

TEST_CASE("dynamic: sources of every opset") {
  test::random_source r(240);
  INFO("seed ", r.seed());
  plain_layer l = test::random_layer(r, layer_shape(true, 4, 3, 3, 1, 1, 1));
  for (std::int64_t opset = 7; opset <= 21; ++opset) {
    INFO("opset ", opset);
    model_builder b(opset);
    b.input("x", {2, 3, 6, 6});
    std::string y = l.add_to(b, "x");
    if (opset < 11) {
      y = b.add("Clip", {y}, {{"min", real(-0.25F)}, {"max", real(0.5F)}});
    } else {
      y = b.add("Clip", {y, b.scalar("lo", -0.25F), b.scalar("hi", 0.5F)});
    }
    y = b.add("Dropout", {y});
    b.output(b.add("Softmax", {y}, {{"axis", number(1)}}));
    const graph::model q = graph::quantize_dynamic(b.get(), symmetric());
    CHECK(q.opset() == (std::max)(opset, std::int64_t{13}));
    CHECK(count(q, "ConvInteger") == 1);
    const tensor x = random_floats(r, {2, 3, 6, 6}, -1.0F, 1.0F);
    std::vector<double> e = expected_result(l, x, true);
    for (double& v : e) {
      v = std::clamp(v, -0.25, 0.5);
    }
    // Before opset 13, Softmax took all dimensions from its axis on as one row.
    const std::size_t pixels = 36;
    const std::size_t stride = opset < 13 ? 1 : pixels;
    const std::size_t length = opset < 13 ? 4 * pixels : 4;
    for (std::size_t first_of = 0; first_of < e.size(); ++first_of) {
      const std::size_t in_image = first_of % (4 * pixels);
      if (opset < 13 ? in_image != 0 : in_image >= pixels) {
        continue;
      }
      double sum = 0.0;
      for (std::size_t k = 0; k < length; ++k) {
        sum += std::exp(e[first_of + k * stride]);
      }
      for (std::size_t k = 0; k < length; ++k) {
        e[first_of + k * stride] = std::exp(e[first_of + k * stride]) / sum;
      }
    }
    CHECK(farthest(run_one(q, {{"x", x}}, true), e) < 1e-5);
  }
}

TEST_CASE("dynamic: the contrib form says the same in one node") {
  test::random_source r(250);
  INFO("seed ", r.seed());
  for (const bool transposed : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const bool per_channel : {false, true}) {
        plain_layer l = test::random_layer(r, layer_shape(false, 7, 19, 1, 1, 0, 1), bias);
        l.transposed = transposed;
        const graph::model m = model_of(l, {5, 19});
        const graph::model plain = graph::quantize_dynamic(m, symmetric(per_channel));
        graph::dynamic_quantization_options options = symmetric(per_channel);
        options.contrib_operators = true;
        const graph::model one = graph::quantize_dynamic(m, options);
        REQUIRE(one.nodes.size() == 1);
        const graph::node& n = one.nodes[0];
        CHECK(n.domain == "com.microsoft");
        CHECK(n.op_type == "DynamicQuantizeMatMul");
        CHECK(one.opsets.at("com.microsoft") == 1);
        REQUIRE(n.inputs.size() == (bias ? 5 : 4));
        CHECK(n.inputs[0] == "x");
        CHECK(n.outputs[0] == m.outputs[0].name);
        const graph::node& product = first(plain, "MatMulInteger");
        for (const std::size_t i : {std::size_t{1}, std::size_t{3}}) {
          CHECK(test::values_of<std::uint8_t>(one.initializers.at(n.inputs[i])) ==
                test::values_of<std::uint8_t>(plain.initializers.at(product.inputs[i])));
        }
        CHECK(one.initializers.at(n.inputs[1]).dims() == shape{19, 7});
        const tensor& scale = one.initializers.at(n.inputs[2]);
        CHECK(scale.dims() == (per_channel ? shape{7} : shape{}));
        const std::vector<float> expected = l.weight_scales(per_channel);
        for (std::size_t i = 0; i < scale.count(); ++i) {
          CHECK(scale.data<float>()[i] == doctest::Approx(expected[i]).epsilon(1e-6));
        }
        if (bias) {
          CHECK(test::difference(one.initializers.at(n.inputs[4]).data<float>(), l.bias) == "");
        }
      }
    }
  }
  // Convolutions have no such operator.
  const plain_layer l = test::random_layer(r, layer_shape(true, 4, 3, 3, 1, 1, 1));
  const graph::model q =
      graph::quantize_dynamic(model_of(l, {1, 3, 6, 6}), {.contrib_operators = true});
  CHECK(count(q, "ConvInteger") == 1);
  CHECK(q.opsets.count("com.microsoft") == 0);
}

TEST_CASE("dynamic: int8 weights give the same results as uint8 weights") {
  test::random_source r(255);
  INFO("seed ", r.seed());
  for (const bool is_conv : {true, false}) {
    plain_layer l = test::random_layer(
        r, is_conv ? layer_shape(true, 4, 3, 3, 1, 1, 1) : layer_shape(false, 7, 19, 1, 1, 0, 1));
    for (float& w : l.weights) {
      w += 0.2F;  // a zero point per tensor
    }
    const shape in = is_conv ? shape{2, 3, 6, 6} : shape{5, 19};
    const graph::model m = model_of(l, in);
    for (const bool per_channel : {true, false}) {
      for (const bool contrib : {true, false}) {
        graph::dynamic_quantization_options options = symmetric(per_channel);
        options.weights.asymmetric = true;
        options.contrib_operators = contrib;
        const graph::model u8 = graph::quantize_dynamic(m, options);
        options.weight_type = element_type::s8;
        const graph::model s8 = graph::quantize_dynamic(m, options);
        const char* name = is_conv ? "ConvInteger" : "MatMulInteger";
        if (is_conv || !contrib) {
          const graph::node& n = first(s8, name);
          CHECK(s8.initializers.at(n.inputs[1]).type() == element_type::s8);
          CHECK(n.inputs.size() == (per_channel ? 3 : 4));
          CHECK(test::centred_weights(s8, n) == test::centred_weights(u8, first(u8, name)));
        }
        const tensor x = random_floats(r, in, -1.0F, 2.0F);
        for (const bool prepared : {true, false}) {
          CHECK(test::difference(run_one(s8, {{"x", x}}, prepared).data<float>(),
                                 run_one(u8, {{"x", x}}, prepared).data<float>()) == "");
        }
      }
    }
    graph::dynamic_quantization_options options;
    options.weight_type = element_type::s16;
    check_graph_error(error_kind::invalid_argument, {"weight_type", "int16", "uint8", "int8"},
                      [&] { static_cast<void>(graph::quantize_dynamic(m, options)); });
  }
}

TEST_CASE("dynamic: LSTM in one and two directions") {
  for (std::uint64_t seed = 270; seed < 273; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    constexpr std::int64_t steps = 6;
    constexpr std::int64_t batch = 3;
    constexpr std::int64_t inputs = 10;
    constexpr std::int64_t hidden = 8;
    for (const std::int64_t directions : {1, 2}) {
      model_builder b;
      b.input("x", {steps, batch, inputs});
      b.constant("w", random_floats(r, {directions, 4 * hidden, inputs}, -0.5F, 0.5F));
      b.constant("r", random_floats(r, {directions, 4 * hidden, hidden}, -0.5F, 0.5F));
      b.constant("b", random_floats(r, {directions, 8 * hidden}, -0.5F, 0.5F));
      const std::string y =
          b.add("LSTM", {"x", "w", "r", "b"},
                {{"hidden_size", number(hidden)},
                 {"direction", test::text(directions == 2 ? "bidirectional" : "forward")}});
      b.get().nodes.back().name = "recurrent";
      b.output(y);
      const tensor x = random_floats(r, {steps, batch, inputs}, -1.0F, 1.5F);
      const std::vector<double> exact = doubles(run_one(b.get(), {{"x", x}}, false));
      for (const bool per_channel : {true, false}) {
        for (const element_type stored : {element_type::u8, element_type::s8}) {
          INFO("directions ", directions, per_channel ? " per channel" : "");
          graph::dynamic_quantization_options options = symmetric(per_channel);
          options.weight_type = stored;
          const graph::model q = graph::quantize_dynamic(b.get(), options);
          REQUIRE(q.nodes.size() == 1);
          const graph::node& n = q.nodes[0];
          CHECK(n.domain == "com.microsoft");
          CHECK(n.op_type == "DynamicQuantizeLSTM");
          CHECK(n.name == "recurrent");
          REQUIRE(n.inputs.size() == 12);
          const tensor& codes = q.initializers.at(n.inputs[1]);
          CHECK(codes.type() == stored);
          CHECK(codes.dims() == shape{directions, inputs, 4 * hidden});
          const tensor& scale = q.initializers.at(n.inputs[8]);
          CHECK(scale.dims() == (per_channel ? shape{directions, 4 * hidden} : shape{directions}));
          CHECK(q.initializers.at(n.inputs[9]).dims() == scale.dims());
          // Each weight is within half a step of its code.
          const auto w = b.get().initializers.at("w").data<float>();
          for (std::int64_t i = 0; i < directions * 4 * hidden * inputs; ++i) {
            const std::int64_t d = i / (4 * hidden * inputs);
            const std::int64_t row = i / inputs % (4 * hidden);
            const std::int64_t column = i % inputs;
            const auto at = static_cast<std::size_t>((d * inputs + column) * 4 * hidden + row);
            const float step = scale.data<float>()[static_cast<std::size_t>(
                per_channel ? d * 4 * hidden + row : d)];
            const int code = stored == element_type::u8 ? codes.data<std::uint8_t>()[at] - 128
                                                        : codes.data<std::int8_t>()[at];
            CHECK(std::fabs(static_cast<float>(code) * step - w[static_cast<std::size_t>(i)]) <=
                  0.501F * step);
          }
          CHECK(farthest(run_one(q, {{"x", x}}, false), exact) < 0.02);
          CHECK(doubles(run_one(graph::parse_onnx(graph::to_onnx(q), "."), {{"x", x}}, true)) ==
                doubles(run_one(q, {{"x", x}}, false)));
        }
      }
      graph::dynamic_quantization_options options;
      options.scope.ignored.names = {"recurrent"};
      CHECK(count(graph::quantize_dynamic(b.get(), options), "LSTM") == 1);
    }
  }
}

TEST_CASE("dynamic: rules for an LSTM of which only the last state is asked for") {
  test::random_source r(275);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 1, 3});
  b.constant("w", random_floats(r, {1, 16, 3}, -0.5F, 0.5F));
  b.constant("r", random_floats(r, {1, 16, 4}, -0.5F, 0.5F));
  b.add("LSTM", {"x", "w", "r"}, {{"hidden_size", number(4)}});
  graph::node& lstm = b.get().nodes.back();
  lstm.outputs = {"", "h", "c"};
  b.output("h");
  b.output("c");
  const auto left = [&](const graph::quantization_scope& scope) {
    return count(graph::quantize_dynamic(b.get(), {.scope = scope}), "LSTM");
  };
  for (const char* name : {"recurrent", ""}) {
    lstm.name = name;
    const std::string known_as = lstm.name.empty() ? "h" : name;
    INFO("known as ", known_as);
    CHECK(left({}) == 0);
    CHECK(left({.ignored = {.names = {known_as}}}) == 1);
    CHECK(left({.ignored = {.types = {"LSTM"}}}) == 1);
    CHECK(left({.operators = {.types = {{"LSTM", {.quantize = false}}}}}) == 1);
    CHECK(left({.operators = {.names = {{known_as, {.quantize = false}}}}}) == 1);
    // One scale for all weights of a direction, where the rule says so.
    const graph::model q = graph::quantize_dynamic(
        b.get(), {.scope = {.operators = {.types = {{"LSTM", {.per_channel = false}}}}}});
    CHECK(q.initializers.at(q.nodes.at(0).inputs.at(8)).dims() == shape{1});
  }
  CHECK(lstm.label() == "LSTM node of 'h'");
}

TEST_CASE("dynamic: 7 bits, and scales of least squared error") {
  test::random_source r(260);
  INFO("seed ", r.seed());
  plain_layer l = test::random_layer(r, layer_shape(true, 4, 8, 3, 1, 1, 1));
  for (float& w : l.weights) {
    w *= w * w * 40.0F;  // long tails: less than the largest magnitude is best
  }
  const graph::model m = model_of(l, {1, 8, 6, 6});
  const auto error = [&](const graph::dynamic_quantization_options& options, int largest) {
    const graph::model q = graph::quantize_dynamic(m, options);
    const std::vector<int> codes = test::centred_weights(q, first(q, "ConvInteger"));
    std::vector<float> scales;
    for (const graph::node& n : q.nodes) {
      if (n.is("Mul") && q.initializer(n.inputs[1]) != nullptr) {
        scales = test::values_of<float>(q.initializers.at(n.inputs[1]));
      }
    }
    REQUIRE(scales.size() == (options.weights.per_channel ? 4 : 1));
    double sum = 0.0;
    int most = 0;
    for (std::size_t k = 0; k < codes.size(); ++k) {
      const int code = codes[k];
      most = (std::max)(most, std::abs(code));
      const double back = static_cast<double>(scales[scales.size() == 1 ? 0 : k / l.filter()]) *
                          static_cast<double>(code);
      sum +=
          (back - static_cast<double>(l.weights[k])) * (back - static_cast<double>(l.weights[k]));
    }
    CHECK(most <= largest);
    CHECK((most == largest || options.weights.scale == graph::weight_scale::exact_mse));
    return sum;
  };
  for (const bool per_channel : {true, false}) {
    graph::dynamic_quantization_options options = symmetric(per_channel);
    const double plain = error(options, 127);
    options.weights.reduce_range = true;
    const double reduced = error(options, 64);
    options.weights.reduce_range = false;
    options.weights.scale = graph::weight_scale::exact_mse;
    const double best = error(options, 127);
    CHECK(best < plain);
    CHECK(plain < reduced);
  }
}

TEST_CASE("dynamic: weights per tensor have a zero point") {
  for (std::uint64_t seed = 280; seed < 284; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    for (const bool is_conv : {true, false}) {
      plain_layer l = test::random_layer(
          r, is_conv ? layer_shape(true, 4, 3, 3, 1, 1, 1) : layer_shape(false, 7, 19, 1, 1, 0, 1));
      for (float& w : l.weights) {
        w = std::fabs(w) + 0.1F;  // a symmetric grid would leave its negative half unused
      }
      const shape in = is_conv ? shape{2, 3, 6, 6} : shape{5, 19};
      const graph::model m = model_of(l, in);
      for (const graph::weight_scale scale :
           {graph::weight_scale::absmax, graph::weight_scale::exact_mse}) {
        graph::dynamic_quantization_options options = symmetric(false);
        options.weights.scale = scale;
        options.weights.asymmetric = true;
        const graph::model q = graph::quantize_dynamic(m, options);
        const graph::node& n = first(q, is_conv ? "ConvInteger" : "MatMulInteger");
        REQUIRE(n.inputs.size() == 4);
        const tensor& zero = q.initializers.at(n.inputs[3]);
        REQUIRE(zero.count() == 1);
        CHECK(zero.data<std::uint8_t>()[0] < 28);
        const std::vector<int> codes = test::centred_weights(q, n);
        float step = 0.0F;
        for (const graph::node& mul : q.nodes) {
          if (mul.is("Mul") && q.initializer(mul.inputs[1]) != nullptr) {
            step = q.initializers.at(mul.inputs[1]).data<float>()[0];
          }
        }
        std::vector<double> centred(codes.size());
        for (std::size_t k = 0; k < codes.size(); ++k) {
          const std::size_t at = l.is_conv ? k : k % l.inputs * l.outputs + k / l.inputs;
          centred[k] = codes[at];
          CHECK(std::fabs(centred[k] * static_cast<double>(step) -
                          static_cast<double>(l.weights[k])) <=
                0.501 * static_cast<double>(step) +
                    (scale == graph::weight_scale::absmax ? 0.0 : static_cast<double>(step)));
        }
        const tensor x = random_floats(r, in, -1.0F, 2.0F);
        const dynamic_codes codes_of_x = quantize_dynamically(x);
        std::vector<double> expected = l.run(codes_of_x.centred, centred, {}).values;
        const std::size_t pixels = is_conv ? 36 : 1;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] *= static_cast<double>(codes_of_x.scale) * static_cast<double>(step);
          expected[i] += l.bias.empty() ? 0.0 : static_cast<double>(l.bias[i / pixels % l.outputs]);
        }
        CHECK(farthest(run_one(q, {{"x", x}}, true), expected) < 1e-5);
      }
    }
  }
}

TEST_CASE("dynamic: samples correct biases where that helps") {
  int corrected = 0;
  for (std::uint64_t seed = 290; seed < 310; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const model_builder b = three_layers(r);
    const auto source = test::samples_source(test::samples_of_x(r, {1, 3, 6, 6}, 12));
    const graph::model without = graph::quantize_dynamic(b.get());
    const graph::model with = graph::quantize_dynamic(b.get(), {}, source);
    const graph::output_judge judge(b.get(), source, 64);
    CHECK(judge.noise_to_signal(with) <= judge.noise_to_signal(without));
    corrected += graph::to_onnx(with) != graph::to_onnx(without) ? 1 : 0;
  }
  CHECK(corrected > 0);
}

TEST_CASE("dynamic: transposed convolutions have no integer operator") {
  test::random_source r(260);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -0.4F, 0.4F));
  b.constant("v", random_floats(r, {4, 2, 2, 2}, -0.4F, 0.4F));
  b.output(b.add("ConvTranspose", {b.add("Conv", {"x", "w"}), "v"}, {{"strides", list({2, 2})}}));
  const auto source = test::samples_source(test::samples_of_x(r, {1, 3, 6, 6}, 4));
  for (const graph::model& q :
       {graph::quantize_dynamic(b.get()), graph::quantize_dynamic(b.get(), {}, source)}) {
    CHECK(count(q, "ConvInteger") == 1);
    CHECK(count(q, "DynamicQuantizeLinear") == 1);
    CHECK(first(q, "ConvTranspose").inputs[1] == "v");
  }
}

TEST_CASE("dynamic: says no") {
  test::random_source r(270);
  const plain_layer l = test::random_layer(r, layer_shape(true, 4, 3, 3, 1, 1, 1));
  const graph::model m = model_of(l, {1, 3, 6, 6});
  const graph::model q = graph::quantize_dynamic(m);
  check_graph_error(error_kind::unsupported, {"already quantized"},
                    [&] { static_cast<void>(graph::quantize_dynamic(q)); });
  plain_layer odd = l;
  odd.weights[7] = std::numeric_limits<float>::quiet_NaN();
  check_graph_error(error_kind::invalid_argument, {"'layer_w'"}, [&] {
    static_cast<void>(graph::quantize_dynamic(model_of(odd, {1, 3, 6, 6})));
  });
  graph::model old = m;
  old.opsets[""] = 6;
  check_graph_error(error_kind::unsupported, {"opset 6"},
                    [&] { static_cast<void>(graph::quantize_dynamic(old)); });
  // Nothing to quantize: the model stays as it is.
  model_builder b;
  b.input("x", {3});
  b.output(b.add("Relu", {"x"}));
  CHECK(graph::quantize_dynamic(b.get()).nodes.size() == 1);
}
