// SPDX-License-Identifier: BSD-3-Clause
// What is different for some operators: who rules speak of, and what each way to quantize makes of
// them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/observer_registry.hpp>
#include <detent/observers/min_max.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::operator_rules;
using graph::operator_settings;
using graph::tensor;
using test::check_graph_error;
using test::list;
using test::model_builder;
using test::random_floats;

/// stem (Conv, batch normalization, Relu), body (Conv), then head (MatMul and an Add).
graph::model network(test::random_source& r) {
  model_builder b;
  b.input("x", {2, 3, 4, 4});
  const auto name = [&](const char* n) { b.get().nodes.back().name = n; };
  std::string y = b.add("Conv", {"x", b.constant("stem_w", random_floats(r, {4, 3, 1, 1}, -1, 1))});
  name("/net/stem");
  b.constant("mean", random_floats(r, {4}, -1, 1));
  b.constant("variance", random_floats(r, {4}, 0.5F, 2));
  y = b.add("BatchNormalization",
            {y, b.constant("scale", random_floats(r, {4}, 0.5F, 2)),
             b.constant("shift", random_floats(r, {4}, -1, 1)), "mean", "variance"});
  name("/net/stem_norm");
  y = b.add("Relu", {y});
  y = b.add("Conv", {y, b.constant("body_w", random_floats(r, {4, 4, 3, 3}, -1, 1))},
            {{"pads", list({1, 1, 1, 1})}});
  name("/net/body");
  y = b.add("Flatten", {y});
  y = b.add("MatMul", {y, b.constant("head_w", random_floats(r, {64, 5}, -1, 1))});
  name("/net/head");
  y = b.add("Add", {y, b.constant("head_b", random_floats(r, {5}, -1, 1))});
  name("/net/offset");
  b.output(y);
  return b.get();
}

/// The layer of a quantization whose node has this name; null if it is not quantized.
const graph::layer_weights* layer(const graph::quantization& q, const std::string& name) {
  for (const auto& [i, weights] : q.parameters.layers) {
    if (q.plan.float_model().nodes[i].name == name) {
      return &weights;
    }
  }
  return nullptr;
}

int largest_code(const tensor& codes) {
  int largest = 0;
  for (const std::int8_t code : codes.data<std::int8_t>()) {
    largest = (std::max)(largest, std::abs(int{code}));
  }
  return largest;
}
int largest_magnitude(const std::vector<int>& values) {
  int largest = 0;
  for (const int v : values) {
    largest = (std::max)(largest, std::abs(v));
  }
  return largest;
}
float largest_magnitude(const tensor& t) {
  float largest = 0;
  for (const float v : t.data<float>()) {
    largest = (std::max)(largest, std::fabs(v));
  }
  return largest;
}

/// Whatever it sees, the range is -100..100.
struct hundred_observer {
  void observe(std::span<const float>) {}
  [[nodiscard]] detent::quant_params finalize(detent::quant_scheme scheme) const {
    return params_from_range({-100.0F, 100.0F}, scheme);
  }
};

TEST_CASE("operator rules: who they speak of") {
  test::random_source r(601);
  INFO("seed ", r.seed());
  graph::model m = network(r);
  m.nodes[2].name = "";  // Relu
  operator_rules rules;
  rules.types = {{"Conv", {.per_channel = false, .weight_bits = 6}},
                 {"Con.|MatMul", {.weight_bits = 5, .method = "kl"}}};
  rules.names = {{"/net/.*", {.method = "mse"}},
                 {"/net/body", {.quantize = false, .method = "isotone"}},
                 {m.nodes[2].outputs[0], {.per_channel = true}}};
  const auto found = graph::matching_settings(m, rules);
  REQUIRE(found.size() == 6);
  // Of each setting: the last rule for the name, then the last one for the type.
  const operator_settings& stem = found.at(0);
  CHECK(!stem.quantize.has_value());
  CHECK(stem.per_channel == false);
  CHECK(stem.weight_bits == std::size_t{5});
  CHECK(stem.method == "mse");
  const operator_settings& body = found.at(3);
  CHECK(body.quantize == false);
  CHECK(body.weight_bits == std::size_t{5});
  CHECK(body.method == "isotone");
  CHECK(found.at(1).method == "mse");
  CHECK(!found.at(1).weight_bits.has_value());
  CHECK(found.at(2).per_channel == true);  // the name of a node without one is its output's
  CHECK(!found.at(2).method.has_value());
  CHECK(found.count(4) == 0);  // Flatten has a name of the builder's

  const auto no = [&](std::initializer_list<std::string_view> words, const operator_rules& bad) {
    check_graph_error(error_kind::invalid_argument, words,
                      [&] { static_cast<void>(graph::matching_settings(m, bad)); });
  };
  no({"rule for names 'body'", "matches no node"}, {.types = {}, .names = {{"body", {}}}});
  no({"rule for types 'Gelu'", "matches no node"}, {.types = {{"Gelu", {}}}, .names = {}});
  no({"rule for types '(Conv'", "regular expression"}, {.types = {{"(Conv", {}}}, .names = {}});
  no({"rules.yaml:3: rule for names 'body'", "matches no node"},
     {.types = {}, .names = {{"body", {}, "rules.yaml:3"}}});
  no({"rules.yaml:4: rule for types '(Conv'", "regular expression"},
     {.types = {{"(Conv", {}, "rules.yaml:4"}}, .names = {}});
  operator_rules lenient;
  lenient.names = {{"nobody", {}}};
  lenient.validate = false;
  CHECK(graph::matching_settings(m, lenient).empty());
}

TEST_CASE("operator rules: patterns and names of any length") {
  model_builder b;
  b.input("x", {1, 4});
  b.output(b.add("Relu", {"x"}));
  std::string& name = b.get().nodes[0].name;
  const auto matches = [&](const std::string& pattern) {
    operator_rules rules;
    rules.names.push_back({pattern, {.per_channel = false}});
    rules.validate = false;
    return !graph::matching_settings(b.get(), rules).empty();
  };
  name = std::string(300000, 'a');
  CHECK(matches("a.*"));
  CHECK(!matches("(a|b)*c"));
  // Each letter doubles the ways to match all but the last one.
  name = std::string(60, 'a') + "!";
  CHECK(!matches("(a+)+"));
  CHECK(matches("(a+)+!"));
  name = "a";
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '(') + "a" + std::string(depth, ')');
  };
  CHECK(matches(nested(499)));
  for (const std::size_t depth : {std::size_t{500}, std::size_t{100000}}) {
    check_graph_error(error_kind::invalid_argument,
                      {std::to_string(2 * depth + 1) + " characters", "'((((((", "...'"},
                      [&] { static_cast<void>(matches(nested(depth))); });
  }
}

TEST_CASE(
    "operator rules: a merged node counts no more than its rule, whatever names tensors have") {
  // A Conv with its normalization, or a MatMul with its bias; the names of the results say which
  // of both comes first in the alphabet.
  const auto made = [](bool is_convolution, const std::string& first, const std::string& second) {
    test::random_source r(607);
    model_builder b;
    b.input("x", is_convolution ? graph::shape{1, 3, 4, 4} : graph::shape{2, 3});
    b.constant("w", random_floats(r, is_convolution ? graph::shape{4, 3, 1, 1} : graph::shape{3, 4},
                                  -1, 1));
    for (const char* constant : {"scale", "shift", "mean"}) {
      b.constant(constant, random_floats(r, {4}, -1, 1));
    }
    b.constant("variance", random_floats(r, {4}, 0.5F, 2));
    graph::model m = b.get();
    const auto add = [&](const char* type, const char* name, std::vector<std::string> inputs,
                         const std::string& output) {
      graph::node n;
      n.op_type = type;
      n.name = name;
      n.inputs = std::move(inputs);
      n.outputs = {output};
      m.nodes.push_back(std::move(n));
    };
    add(is_convolution ? "Conv" : "MatMul", "layer", {"x", "w"}, first);
    if (is_convolution) {
      add("BatchNormalization", "merged", {first, "scale", "shift", "mean", "variance"}, second);
    } else {
      add("Add", "merged", {first, "shift"}, second);
    }
    m.outputs.push_back(m.inputs[0]);
    m.outputs[0].name = second;
    return m;
  };
  using rules = std::vector<graph::operator_rule>;
  const auto settings_of = [&](const graph::quantization_scope& scope) {
    std::vector<operator_settings> all;
    for (const bool is_convolution : {true, false}) {
      for (const bool is_sorted : {true, false}) {
        const graph::quantization_plan plan(
            made(is_convolution, is_sorted ? "a" : "b", is_sorted ? "b" : "a"), scope);
        REQUIRE(plan.float_model().nodes.size() == 1);
        all.push_back(plan.settings(0));
        CHECK(plan.ignores(0) == !all.back().quantize.value_or(true));
        CHECK(plan.quantizes(0) == all.back().quantize.value_or(true));
      }
    }
    return all;
  };
  const auto have_bits = [&](std::size_t bits, const rules& types, const rules& names) {
    for (const operator_settings& s :
         settings_of({.ignored = {}, .operators = {.types = types, .names = names}})) {
      CHECK(s.weight_bits == bits);
    }
  };
  // Names precede types, later rules precede earlier ones, for all nodes that have become one.
  have_bits(7, {{".*", {.weight_bits = 3}}}, {{"layer", {.weight_bits = 7}}});
  have_bits(7, {{"BatchNormalization|Add", {.weight_bits = 3}}}, {{"layer", {.weight_bits = 7}}});
  have_bits(7, {}, {{"layer|merged", {.weight_bits = 3}}, {"layer", {.weight_bits = 7}}});
  have_bits(3, {}, {{"layer", {.weight_bits = 7}}, {"merged", {.weight_bits = 3}}});
  have_bits(3, {{"Conv|MatMul", {.weight_bits = 7}}}, {{"merged", {.weight_bits = 3}}});
  const auto quantize = [&](bool expected, const graph::quantization_scope& scope) {
    for (const operator_settings& s : settings_of(scope)) {
      CHECK(s.quantize == expected);
    }
  };
  quantize(true, {.ignored = {},
                  .operators = {.types = {{".*", {.quantize = false}}},
                                .names = {{"layer", {.quantize = true}}}}});
  // What is ignored precedes all rules.
  for (const char* ignored : {"layer", "merged"}) {
    quantize(false, {.ignored = {.names = {ignored}},
                     .operators = {.types = {{".*", {.quantize = true}}},
                                   .names = {{".*", {.quantize = true}}}}});
  }
}

TEST_CASE("operator rules: static quantization") {
  test::random_source r(602);
  INFO("seed ", r.seed());
  const graph::model m = network(r);
  const auto source = test::samples_source(test::samples_of_x(r, {2, 3, 4, 4}, 3));
  graph::static_quantization_options options;
  options.activations.observers.add("hundred", [](const detent::observer_options&) {
    return detent::any_observer(hundred_observer());
  });
  options.scope.operators.types = {{"Conv", {.per_channel = false, .weight_bits = 4}}};
  options.scope.operators.names = {{"/net/body", {.weight_scales = graph::weight_scale::exact_mse}},
                                   {"/net/offset", {.weight_bits = 6, .method = "hundred"}}};
  const graph::quantization q = graph::static_quantization(m, source, options);
  const graph::layer_weights* stem = layer(q, "/net/stem");
  const graph::layer_weights* body = layer(q, "/net/body");
  const graph::layer_weights* head = layer(q, "/net/head");
  REQUIRE((stem != nullptr && body != nullptr && head != nullptr));
  // One scale, which makes the largest weight 7; with least squares none of the codes is larger.
  CHECK(stem->scales.size() == 1);
  CHECK(largest_code(stem->codes) == 7);
  CHECK(body->scales.size() == 1);
  CHECK(largest_code(body->codes) <= 7);
  CHECK(body->scales[0] < largest_magnitude(m.initializers.at("body_w")) / 7.0F);
  // The rule names the Add that is the bias of the MatMul now.
  CHECK(head->scales.size() == 5);
  CHECK(largest_code(head->codes) == 31);
  const graph::model& real = q.plan.float_model();
  for (const graph::node& n : real.nodes) {
    if (n.name == "/net/head") {
      // Flatten only moves: the observer is that of what it moves.
      CHECK(q.plan.root(n.inputs[0]) != n.inputs[0]);
      CHECK(q.parameters.activations.at(n.inputs[0]).scale == 200.0F / 255.0F);
    }
  }

  options.scope.operators = {};
  options.scope.operators.names = {{"/net/body", {.method = "Hundred"}}};
  const graph::quantization other = graph::static_quantization(m, source, options);
  for (const graph::node& n : other.plan.float_model().nodes) {
    if (n.name == "/net/body") {
      // A Relu makes it, so that the negative half of -100..100 is left out.
      CHECK(other.parameters.activations.at(n.inputs[0]).scale ==
            doctest::Approx(100.0F / 255.0F).epsilon(0.01));
    }
  }
  CHECK(other.parameters.activations.at("x").scale < 0.1F);

  options.scope.operators.names = {{"/net/stem_norm", {.quantize = false}}};
  const graph::quantization left = graph::static_quantization(m, source, options);
  CHECK(layer(left, "/net/stem") == nullptr);  // the normalization is part of it
  CHECK(layer(left, "/net/body") != nullptr);

  const auto no = [&](std::initializer_list<std::string_view> words, const operator_settings& s) {
    options.scope.operators.names = {{"/net/head", s}};
    check_graph_error(error_kind::invalid_argument, words,
                      [&] { static_cast<void>(graph::static_quantization(m, source, options)); });
  };
  no({"/net/head", "1 bits", "2..8"}, {.weight_bits = 1});
  no({"/net/head", "9 bits", "2..8"}, {.weight_bits = 9});
  options.scope.operators.names = {{"/net/body", {.method = "nothing"}}};
  check_graph_error(error_kind::invalid_argument, {"'nothing'", "minmax"},
                    [&] { static_cast<void>(graph::static_quantization(m, source, options)); });
}

TEST_CASE("operator rules: dynamic quantization") {
  test::random_source r(603);
  INFO("seed ", r.seed());
  graph::dynamic_quantization_options options;
  options.scope.operators.types = {{"Conv", {.per_channel = false, .weight_bits = 3}}};
  options.scope.operators.names = {{"/net/stem", {.quantize = false}}};
  const graph::model q = graph::quantize_dynamic(network(r), options);
  int convolutions = 0;
  for (const graph::node& n : q.nodes) {
    CHECK((!n.is("Conv") || n.name == "/net/stem"));
    if (n.is("ConvInteger")) {
      ++convolutions;
      CHECK(largest_magnitude(test::centred_weights(q, n)) == 3);
      CHECK(q.initializers.at(n.inputs[3]).data<std::uint8_t>()[0] == 128);  // symmetric
    }
    if (n.is("MatMulInteger")) {
      CHECK(largest_magnitude(test::centred_weights(q, n)) == 127);
    }
  }
  CHECK(convolutions == 1);
}

TEST_CASE("operator rules: weights only") {
  test::random_source r(604);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 64});
  std::string y = "x";
  b.constant("w", random_floats(r, {64, 64}, -1.0F, 1.0F));
  for (const char* name : {"first", "second", "third", "fourth"}) {
    y = b.add("MatMul", {y, "w"});
    b.get().nodes.back().name = name;
  }
  b.output(y);
  graph::weight_only_options options;
  options.scope.operators.names = {{"second|fourth", {.weight_bits = 8, .block_size = 16}},
                                   {"third", {.quantize = false}}};
  const graph::model q = graph::quantize_weights_only(b.get(), options);
  REQUIRE(q.nodes.size() == 4);
  const auto is = [&](std::size_t i, std::int64_t bits, std::int64_t block) {
    CHECK(q.nodes[i].op_type == "MatMulNBits");
    CHECK(q.nodes[i].get_int("bits", 0) == bits);
    CHECK(q.nodes[i].get_int("block_size", 0) == block);
  };
  is(0, 4, 32);
  is(1, 8, 16);
  CHECK(q.nodes[2].op_type == "MatMul");
  is(3, 8, 16);
  CHECK(q.nodes[1].inputs[1] == q.nodes[3].inputs[1]);  // stored once
  CHECK(q.nodes[0].inputs[1] != q.nodes[1].inputs[1]);

  const auto no = [&](std::initializer_list<std::string_view> words, const operator_settings& s) {
    options.scope.operators.names = {{"second", s}};
    check_graph_error(error_kind::invalid_argument, words,
                      [&] { static_cast<void>(graph::quantize_weights_only(b.get(), options)); });
  };
  no({"second", "5 bits", "4 or 8"}, {.weight_bits = 5});
  no({"second", "block size 17"}, {.block_size = 17});
  options.algorithm = graph::weight_only_algorithm::awq;
  no({"second", "awq"}, {.weight_scales = graph::weight_scale::exact_mse});
}

TEST_CASE("quantization plan: what is left out with a node, and what is not") {
  test::random_source r(605);
  INFO("seed ", r.seed());
  // A sum that nothing merges stays quantized when the pool before it does not.
  model_builder b;
  b.input("x", {1, 3, 4, 4});
  std::string y = b.add("Conv", {"x", b.constant("w", random_floats(r, {3, 3, 1, 1}, -1, 1))});
  const std::string pooled =
      b.add("MaxPool", {y}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  b.get().nodes.back().name = "pool";
  y = b.add("Add", {y, b.constant("plane", random_floats(r, {1, 3, 4, 4}, -1, 1))});
  b.get().nodes.back().name = "sum";
  b.output(y);
  b.output(pooled);
  const auto quantizes = [&](const graph::quantization_plan& plan, const std::string& name) {
    const auto& nodes = plan.float_model().nodes;
    const auto found = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const graph::node& n) { return n.name == name; });
    REQUIRE(found != nodes.end());
    return plan.quantizes(static_cast<std::size_t>(found - nodes.begin()));
  };
  const graph::quantization_plan all(b.get());
  CHECK(quantizes(all, "pool"));
  CHECK(quantizes(all, "sum"));
  const graph::quantization_plan some(b.get(), {.ignored = {.names = {"pool"}}});
  CHECK(!quantizes(some, "pool"));
  CHECK(quantizes(some, "sum"));

  // A constant that varies along the width is not a bias: the Add stays one of its own.
  model_builder chain;
  chain.input("x", {1, 3, 4, 4});
  y = chain.add("Conv", {"x", chain.constant("w", random_floats(r, {3, 3, 1, 1}, -1, 1))});
  chain.get().nodes.back().name = "first";
  y = chain.add("Add", {y, chain.constant("row", random_floats(r, {1, 1, 1, 4}, -1, 1))});
  chain.get().nodes.back().name = "sum";
  y = chain.add("Conv", {y, "w"});
  chain.get().nodes.back().name = "second";
  chain.output(y);
  const graph::quantization_plan left(chain.get(), {.ignored = {.names = {"first"}}});
  CHECK(left.layers().size() == 1);
  CHECK(left.values().count(left.float_model().nodes[2].inputs[0]) == 1);
  graph::operator_rules rules;
  rules.names = {{"first", {.weight_bits = 4}}};
  const graph::quantization_plan ruled(chain.get(), {.operators = rules});
  CHECK(ruled.settings(0).weight_bits == std::size_t{4});
  CHECK(!ruled.settings(1).weight_bits.has_value());
}

TEST_CASE("quantization plan: attention masks stay float") {
  test::random_source r(606);
  INFO("seed ", r.seed());
  for (const float low : {-std::numeric_limits<float>::infinity(), -1e9F, -10000.0F}) {
    CAPTURE(low);
    model_builder b;
    b.input("x", {2, 4});
    std::string y = b.add("MatMul", {"x", b.constant("w", random_floats(r, {4, 4}, -1, 1))});
    y = b.add("Mul", {y, b.scalar("half", 0.5F)});
    y = b.add("Add", {y, b.constant("mask", test::floats({4}, {0, low, 0, low}))});
    y = b.add("Softmax", {y});
    b.output(y);
    const auto source = test::samples_source(test::samples_of_x(r, {2, 4}, 4));
    const graph::quantization q = graph::static_quantization(b.get(), source);
    CHECK(q.plan.values().count("mask") == 0);
    CHECK(q.plan.layers().size() == 1);
    std::size_t sums = 0;
    for (const graph::node& n : q.result.nodes) {
      sums += n.is("Add") && n.inputs[1] == "mask" ? 1U : 0U;
    }
    CHECK(sums == 1);
  }
}

}  // namespace
