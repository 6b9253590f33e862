// SPDX-License-Identifier: BSD-3-Clause
// Models of 16-bit floats: they become models of float32 with the same inputs and outputs, and can
// be quantized as those.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/float_formats.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/half_weights.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/rewrite/widen_floats.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

tensor half(const tensor& t, element_type type) { return graph::detail::float_to_half(t, type); }

/// x -> Conv -> Relu -> (+ skip) -> Conv -> y, all of `type`.
graph::model residual_network(random_source& r, element_type type) {
  model_builder b(17);
  b.input("x", {-1, 3, 6, 6}, type);
  const auto conv = [&](const std::string& name, const std::string& x) {
    b.constant(name + "_w", half(random_floats(r, {3, 3, 3, 3}, -0.4F, 0.4F), type));
    b.constant(name + "_b", half(random_floats(r, {3}, -0.5F, 0.5F), type));
    return b.add("Conv", {x, name + "_w", name + "_b"}, {{"pads", list({1, 1, 1, 1})}});
  };
  const std::string first = b.add("Relu", {conv("first", "x")});
  const std::string sum = b.add("Add", {first, "x"});
  b.output(conv("second", sum), type);
  return b.get();
}

std::vector<sample> half_samples(random_source& r, std::size_t count, element_type type) {
  std::vector<sample> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back({{"x", half(random_floats(r, {2, 3, 6, 6}, -2.0F, 2.0F), type)}});
  }
  return all;
}

/// The largest difference of two outputs of 16-bit floats, against the largest value.
double distance_of(const tensor& a, const tensor& b) {
  REQUIRE(a.dims() == b.dims());
  REQUIRE(a.type() == b.type());
  const auto x = values_of<float>(graph::as_float32(a));
  const auto y = values_of<float>(graph::as_float32(b));
  double largest = 1e-30;
  double difference = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::fmax(largest, std::fabs(double{x[i]}));
    difference = std::fmax(difference, std::fabs(double{x[i]} - double{y[i]}));
  }
  return difference / largest;
}

}  // namespace

TEST_CASE("widen_floats: constants, inputs, outputs and what lies between") {
  for (const element_type type : {element_type::f16, element_type::bf16}) {
    random_source r(91);
    INFO("seed ", r.seed(), " ", graph::name(type));
    const graph::model m = residual_network(r, type);
    graph::model wide = m;
    CHECK(graph::widen_floats(wide));
    graph::sort_and_check(wide);
    for (const auto& entry : wide.initializers) {
      const std::string& name = entry.first;
      const graph::tensor& t = entry.second;
      INFO(name);
      REQUIRE(t.type() == element_type::f32);
      CHECK(values_of<float>(t) ==
            values_of<float>(graph::detail::half_to_float(m.initializers.at(name))));
    }
    CHECK(wide.inputs[0].name == "x");
    CHECK(wide.inputs[0].type == type);
    CHECK(wide.outputs[0].name == m.outputs[0].name);
    CHECK(wide.outputs[0].type == type);
    CHECK(operators(wide) == "Cast Conv Relu Add Conv Cast");
    const tensor x = half(random_floats(r, {2, 3, 6, 6}, -2.0F, 2.0F), type);
    const tensor expected = outputs_of(m, {{"x", x}})[0];
    CHECK(expected.type() == type);
    // Each layer of the narrow model is rounded.
    CHECK(distance_of(outputs_of(wide, {{"x", x}})[0], expected) <
          (type == element_type::f16 ? 0.002 : 0.02));
    graph::model again = wide;
    CHECK_FALSE(graph::widen_floats(again));
    CHECK(graph::to_onnx(again) == graph::to_onnx(wide));
  }
}

TEST_CASE("widen_floats: Casts, constants that are outputs, inputs that are outputs, attributes") {
  constexpr element_type f16 = element_type::f16;
  model_builder b(17);
  b.input("x", {4});
  b.input("h", {4}, f16);
  b.input("n", {1}, element_type::s64);
  b.constant("c", half(floats({4}, {1.0F, -2.0F, 0.5F, 4.0F}), f16));
  const attributes to_half{{"to", number(static_cast<std::int64_t>(f16))}};
  const attributes to_float{{"to", number(1)}};
  const std::string narrow = b.add("Cast", {"x"}, to_half);
  const std::string sum = b.add("Add", {narrow, "h"});
  b.output(b.add("Cast", {b.add("Mul", {sum, "c"})}, to_float));
  b.output(b.add("Cast", {"n"}, to_half), f16);
  graph::attribute quarter;
  quarter.kind = graph::attribute::kind_type::t;
  quarter.t = half(floats({1}, {0.25F}), f16);
  b.output(b.add("ConstantOfShape", {"n"}, {{"value", quarter}}), f16);
  b.output("c", f16);
  b.output("h", f16);
  b.output(sum, f16);
  const graph::model m = b.get();
  graph::model wide = m;
  REQUIRE(graph::widen_floats(wide));
  graph::sort_and_check(wide);
  CHECK(wide.initializers.size() == 1);
  CHECK(wide.initializers.begin()->second.type() == element_type::f32);
  CHECK(count(wide, "Cast") == 6);      // h; n; four outputs of 16 bits, without the input
  CHECK(count(wide, "Identity") == 2);  // the Casts of float32 to itself
  const tensors inputs{{"x", floats({4}, {1.0F, 2.0F, -3.0F, 0.0F})},
                       {"h", half(floats({4}, {0.5F, -1.5F, 8.0F, 2.0F}), f16)},
                       {"n", make_tensor(element_type::s64, {1}, std::vector<std::int64_t>{3})}};
  const std::vector<tensor> expected = outputs_of(m, inputs);
  const std::vector<tensor> actual = outputs_of(wide, inputs);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(i);
    CHECK(wide.outputs[i].name == m.outputs[i].name);
    CHECK(actual[i].type() == expected[i].type());
    CHECK(distance_of(actual[i], expected[i]) == 0.0);  // the values are short
  }
}

TEST_CASE("widen_floats: sub-graphs, their constants and what they capture") {
  constexpr element_type f16 = element_type::f16;
  model_builder b(17);
  b.input("x", {2}, f16);
  b.input("flag", {}, element_type::boolean);
  b.constant("outer", half(floats({2}, {3.0F, -1.0F}), f16));
  const auto branch = [&](const std::string& op, const std::string& constant) {
    model_builder body(17);
    if (constant == "inner") {
      body.constant(constant, half(floats({2}, {0.5F, 2.0F}), f16));
    }
    body.output(body.add(op, {"x", constant}), f16);
    return graph::attribute::of(static_cast<graph::graph_body>(body.get()));
  };
  const std::string y =
      b.add("If", {"flag"},
            {{"then_branch", branch("Mul", "inner")}, {"else_branch", branch("Sub", "outer")}});
  b.output(b.add("Neg", {y}), f16);
  const graph::model m = b.get();
  graph::model wide = m;
  REQUIRE(graph::widen_floats(wide));
  graph::sort_and_check(wide);
  for (const bool flag : {true, false}) {
    const tensors inputs{
        {"x", half(floats({2}, {5.0F, -6.0F}), f16)},
        {"flag", make_tensor(element_type::boolean, {}, std::vector<std::uint8_t>{flag})}};
    const tensor actual = outputs_of(wide, inputs)[0];
    CHECK(actual.type() == f16);
    CHECK(distance_of(actual, outputs_of(m, inputs)[0]) == 0.0);
  }
  CHECK(m.nodes[0].find("then_branch")->g->initializers.at("inner").type() == f16);
}

TEST_CASE("widen_floats: models that stay as they are") {
  random_source r(92);
  model_builder real(17);
  real.input("x", {2});
  real.output(real.add("Relu", {"x"}));
  const auto stays = [](const graph::model& m) {
    graph::model same = m;
    CHECK_FALSE(graph::widen_floats(same));
    CHECK(graph::to_onnx(same) == graph::to_onnx(m));
  };
  stays(real.get());
  graph::model foreign = residual_network(r, element_type::f16);
  foreign.nodes[1].domain = "some.domain";
  foreign.opsets["some.domain"] = 1;
  stays(foreign);
  model_builder bits(19);
  bits.input("x", {2}, element_type::f16);
  bits.output(bits.add("BitCast", {"x"}, {{"to", number(5)}}), element_type::s16);
  stays(bits.get());
  // What has no operator, or looks at bits, is named.
  CHECK(graph::widening_obstacle(real.get()).empty());
  CHECK(graph::widening_obstacle(residual_network(r, element_type::bf16)).empty());
  CHECK(graph::widening_obstacle(foreign).find("some.domain.Relu node 'Relu_") == 0);
  CHECK(graph::widening_obstacle(bits.get()).find("BitCast node 'BitCast_0' looks at") == 0);
  model_builder body(17);
  body.output(body.add("Foo", {"x"}, {}, "some.domain"), element_type::f16);
  model_builder outer(17);
  outer.input("x", {2}, element_type::f16);
  outer.input("flag", {}, element_type::boolean);
  const auto branch = graph::attribute::of(static_cast<graph::graph_body>(body.get()));
  outer.output(outer.add("If", {"flag"}, {{"then_branch", branch}, {"else_branch", branch}}),
               element_type::f16);
  CHECK(graph::widening_obstacle(outer.get()).find("some.domain.Foo node") == 0);
  stays(outer.get());
  // A function of the model that is called like an operator of the library.
  graph::model own = residual_network(r, element_type::f16);
  REQUIRE(own.nodes[1].is("Relu"));
  CHECK(graph::widening_obstacle(own).empty());
  own.functions.push_back({"", "Relu", ""});
  CHECK(graph::widening_obstacle(own).find("Relu node 'Relu_") == 0);
  stays(own);
  // An input of 16 bits that is also an output, beside a network of float32.
  model_builder beside(17);
  beside.input("x", {2});
  beside.input("h", {2}, element_type::f16);
  beside.output(beside.add("Relu", {"x"}));
  beside.output("h", element_type::f16);
  stays(beside.get());
}

TEST_CASE("widen_floats: an input that no node takes, an output whose type is not declared") {
  random_source r(93);
  graph::model m = residual_network(r, element_type::f16);
  m.inputs.push_back(m.inputs[0]);
  m.inputs.back().name = "unused";
  m.outputs[0].type = element_type::undefined;
  graph::model wide = m;
  REQUIRE(graph::widen_floats(wide));
  // Only x and the output have their Cast, and the output has the 16 bits that it had.
  CHECK(operators(wide) == "Cast Conv Relu Add Conv Cast");
  CHECK(wide.inputs.back().type == element_type::f16);
  const tensor x = half(random_floats(r, {2, 3, 6, 6}, -2.0F, 2.0F), element_type::f16);
  const sample given = {{"x", x}, {"unused", x}};
  CHECK(distance_of(outputs_of(wide, given)[0], outputs_of(m, given)[0]) < 0.002);
}

TEST_CASE("widen_floats: an operator that makes 16 bits of all that it takes") {
  const auto make_half = [](graph::operator_context& c) {
    c.set_output(0, element_type::f16, c.input(0).dims());
  };
  const auto follow = [](graph::operator_context& c) {
    c.set_output(0, c.input(0).type(), c.input(0).dims());
  };
  const auto run = [](graph::operator_context&) {};
  model_builder b(17);
  b.input("x", {2}, element_type::f16);
  b.constant("c", half(floats({2}, {1, 2}), element_type::f16));
  const std::string sum = b.add("Add", {"x", "c"});
  b.output(b.add("Neg", {b.add("Made", {sum})}), element_type::f16);
  const graph::model m = b.get();
  for (const bool makes_half : {true, false}) {
    INFO(makes_half);
    graph::operator_registry registry = graph::default_operators();
    registry.add(graph::operator_definition{"", "Made", 1, 1, graph::layout_support::plain,
                                            makes_half ? +make_half : +follow, run});
    graph::model wide = m;
    CHECK(graph::widening_obstacle(m, registry).empty());
    CHECK(graph::widen_floats(wide, registry) == !makes_half);
    CHECK((graph::to_onnx(wide) == graph::to_onnx(m)) == makes_half);
  }
}

TEST_CASE("widen_floats: statistics, outputs that are listed twice, many captured values") {
  constexpr element_type bf16 = element_type::bf16;
  random_source r(94);
  INFO("seed ", r.seed());
  model_builder b(20);
  b.input("x", {2, 8}, bf16);
  b.constant("s", half(random_floats(r, {8}, 0.5F, 2.0F), bf16));
  const std::string y = b.add("LayerNormalization", {"x", "s"}, {{"stash_type", number(16)}});
  b.get().nodes.back().outputs = {y, "mean"};
  const std::string centred = b.add("Sub", {"x", "mean"});
  b.output(centred, bf16);
  b.output(y, bf16);
  b.output(centred, bf16);
  graph::model wide = b.get();
  REQUIRE(graph::widen_floats(wide));
  graph::sort_and_check(wide);
  CHECK(graph::infer_shapes(wide).at("mean").type() == element_type::f32);
  const tensors x{{"x", half(random_floats(r, {2, 8}, -2.0F, 2.0F), bf16)}};
  const std::vector<tensor> expected = outputs_of(b.get(), x);
  const std::vector<tensor> actual = outputs_of(wide, x);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(distance_of(actual[i], expected[i]) < 0.02);
  }
  // A sub-graph in a sub-graph takes many inputs; one name is that of a value of its own.
  constexpr int many = 300;
  model_builder inner(20);
  model_builder around(20);
  model_builder outer(20);
  std::string sum = "own";
  inner.constant("own", half(floats({1}, {0.5F}), bf16));
  for (int i = 0; i < many; ++i) {
    const std::string name = "v" + std::to_string(i);
    outer.input(name, {1}, bf16);
    sum = inner.add("Max", {sum, name});
  }
  inner.output(sum, bf16);
  outer.input("flag", {}, element_type::boolean);
  const auto both = [](const model_builder& body) {
    const auto branch = graph::attribute::of(static_cast<graph::graph_body>(body.get()));
    return attributes{{"then_branch", branch}, {"else_branch", branch}};
  };
  around.output(around.add("If", {"flag"}, both(inner)), bf16);
  outer.output(outer.add("If", {"flag"}, both(around)), bf16);
  graph::model nested = outer.get();
  REQUIRE(graph::widen_floats(nested));
  graph::sort_and_check(nested);
  tensors inputs{{"flag", make_tensor(element_type::boolean, {}, std::vector<std::uint8_t>{1})}};
  for (int i = 0; i < many; ++i) {
    inputs["v" + std::to_string(i)] = half(floats({1}, {static_cast<float>(i % 7)}), bf16);
  }
  CHECK(values_of<std::uint16_t>(outputs_of(nested, inputs)[0]) ==
        values_of<std::uint16_t>(half(floats({1}, {6.0F}), bf16)));
}

TEST_CASE("models of 16-bit floats are quantized as those of float32") {
  random_source r(93);
  INFO("seed ", r.seed());
  constexpr element_type f16 = element_type::f16;
  const graph::model m = residual_network(r, f16);
  const std::vector<sample> samples = half_samples(r, 8, f16);
  const std::string reason = graph::half_weights_reason(m);
  CHECK(reason.find("2 layers have weights of 16 bits (first: Conv node '") == 0);
  CHECK(reason.find("float16); only float32 weights are quantized") != std::string::npos);
  graph::model wide = m;
  REQUIRE(graph::widen_floats(wide));
  CHECK(graph::half_weights_reason(wide).empty());
  const auto check = [&](const graph::model& quantized, double limit) {
    for (const sample& s : samples) {
      const tensor expected = outputs_of(m, s)[0];
      const tensor actual = outputs_of(quantized, s)[0];
      CHECK(actual.type() == f16);
      CHECK(distance_of(actual, expected) < limit);
      CHECK(distance_of(outputs_of(graph::for_execution(quantized), s)[0], actual) < 0.01);
    }
  };
  graph::static_quantization_options named;
  named.activations.overrides["x"].method = "minmax";
  check_graph_error(
      error_kind::invalid_argument,
      {"activation 'x' has parameters", "not quantized; 'x_float32' is"},
      [&] { static_cast<void>(graph::static_quantization(wide, samples_source(samples), named)); });
  const graph::quantization q = graph::static_quantization(wide, samples_source(samples), {});
  CHECK(q.plan.layers().size() == 2);
  check(q.result, 0.05);
  // Outputs of 16 bits tell the search which model is better.
  std::size_t steps = 0;
  graph::automatic_quantization_options options;
  options.on_step = [&](const graph::quantization_step&) { ++steps; };
  const graph::quantization found =
      graph::automatic_quantization(wide, samples_source(samples), options);
  CHECK(steps > 0);
  check(found.result, 0.05);
  const graph::model dynamic = graph::quantize_dynamic(wide, {}, samples_source(samples));
  CHECK(count(dynamic, "ConvInteger") == 2);
  check(dynamic, 0.05);
  const graph::output_judge judge(m, samples_source(samples), 4);
  CHECK(judge.noise_to_signal(q.result) > 0.0);
  CHECK(judge.noise_to_signal(q.result) < 0.01);
  // Weights of matrices.
  model_builder b(17);
  b.input("x", {2, 32}, f16);
  b.constant("w", half(random_floats(r, {32, 16}, -1.0F, 1.0F), f16));
  b.output(b.add("MatMul", {"x", "w"}), f16);
  check_graph_error(error_kind::invalid_argument,
                    {"constant float32 weights", "1 layer has weights of 16 bits", "MatMul_0"},
                    [&] { static_cast<void>(graph::quantize_weights_only(b.get(), {}, {})); });
  graph::model matrix = b.get();
  REQUIRE(graph::widen_floats(matrix));
  const graph::model stored = graph::quantize_weights_only(matrix, {.bits = 8}, {});
  const tensors x{{"x", half(random_floats(r, {2, 32}, -1.0F, 1.0F), f16)}};
  CHECK(distance_of(outputs_of(stored, x)[0], outputs_of(b.get(), x)[0]) < 0.02);
}
