// SPDX-License-Identifier: BSD-3-Clause
// Models with operators that the executor lacks: what can be quantized is quantized, and the rest
// stays as it is.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/tuning.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/runnable_part.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

/// first -> Relu -+-> Foo -> second -> y
///                +-> third -> z
struct network {
  model_builder b;

  explicit network(test::random_source& r, std::int64_t opset = 17) : b(opset) {
    b.input("x", {1, 3, 6, 6});
    const std::string first = b.add("Relu", {conv(r, "first", "x")});
    const std::string foo = b.add("Foo", {first}, {}, "some.domain");
    b.get().nodes.back().name = "foo";
    b.get().opsets["some.domain"] = 3;
    b.output(conv(r, "second", foo));
    b.output(conv(r, "third", first));
  }

  std::string conv(test::random_source& r, const std::string& name, const std::string& x) {
    b.constant(name + "_w", random_floats(r, {3, 3, 3, 3}, -0.4F, 0.4F));
    b.constant(name + "_b", random_floats(r, {3}, -0.5F, 0.5F));
    const std::string y =
        b.add("Conv", {x, name + "_w", name + "_b"}, {{"pads", list({1, 1, 1, 1})}});
    b.get().nodes.back().name = name;
    return y;
  }
};

/// The model with Foo replaced by Identity, so that it can be run.
graph::model with_identity(graph::model m) {
  for (graph::node& n : m.nodes) {
    if (n.op_type == "Foo") {
      n.op_type = "Identity";
      n.domain.clear();
    }
  }
  return m;
}

/// The largest difference of the outputs, as a share of the largest output.
double farthest(const graph::model& reference, const graph::model& other, const tensors& inputs) {
  const std::vector<tensor> expected = outputs_of(with_identity(reference), inputs);
  const std::vector<tensor> actual = outputs_of(graph::for_execution(with_identity(other)), inputs);
  REQUIRE(actual.size() == expected.size());
  double most = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<double> e = doubles(expected[i]);
    const std::vector<double> a = doubles(actual[i]);
    REQUIRE(a.size() == e.size());
    double largest = 0.0;
    double difference = 0.0;
    for (std::size_t k = 0; k < e.size(); ++k) {
      largest = (std::max)(largest, std::fabs(e[k]));
      difference = (std::max)(difference, std::fabs(e[k] - a[k]));
    }
    most = (std::max)(most, difference / largest);
  }
  return most;
}

const std::vector<std::string> two_reasons = {
    "there is no operator for some.domain.Foo node 'foo'",
    "Conv node 'second' needs the result of some.domain.Foo node 'foo'"};

}  // namespace

TEST_CASE("unknown operators: a model is divided and joined") {
  test::random_source r(900);
  INFO("seed ", r.seed());
  network net(r);
  graph::model m = net.b.get();
  const graph::divided_model divided(m);
  CHECK_FALSE(divided.is_whole());
  CHECK(divided.reasons() == two_reasons);
  CHECK(divided.names_of_rest() == std::set<std::string>{"foo", "second"});
  const graph::model& part = divided.runnable();
  CHECK(operators(part) == "Conv Relu Conv");
  CHECK(part.initializers.size() == 4);
  REQUIRE(part.outputs.size() == 2);
  CHECK(part.outputs[0].name == m.outputs[1].name);
  CHECK(part.outputs[1].name == first(m, "Relu").outputs[0]);
  CHECK(part.outputs[1].type == element_type::f32);

  const graph::model again = divided.joined(part);
  CHECK(sorted_operators(again) == sorted_operators(m));
  CHECK(again.outputs.size() == 2);
  CHECK(again.outputs[0].name == m.outputs[0].name);
  CHECK(again.initializers.size() == m.initializers.size());
  CHECK(again.opsets.at("some.domain") == 3);
  const tensors x{{"x", random_floats(r, {1, 3, 6, 6}, -1.0F, 1.0F)}};
  CHECK(farthest(m, again, x) == 0.0);

  // Values that a pass adds under names that the rest has are renamed, constants too.
  graph::model changed = part;
  const std::string taken = m.nodes[2].outputs[0];  // what Foo makes
  for (graph::node& n : changed.nodes) {
    for (std::string& name : n.inputs) {
      name = name == "first_w" ? "second_w" : name;
    }
  }
  changed.initializers["second_w"] = changed.initializers.at("first_w");
  changed.initializers.erase("first_w");
  const std::string inner = changed.nodes[0].outputs[0];
  changed.nodes[0].outputs[0] = taken;
  changed.nodes[1].inputs[0] = taken;
  CHECK(inner != taken);
  const graph::model apart = divided.joined(changed);
  CHECK(farthest(m, apart, x) == 0.0);

  // A model that can be run is not divided.
  const graph::divided_model whole(with_identity(m));
  CHECK(whole.is_whole());
  CHECK(whole.reasons().empty());
  CHECK(operators(whole.joined(whole.runnable())) == operators(with_identity(m)));
}

TEST_CASE("unknown operators: constants that both parts use are stored once") {
  test::random_source r(901);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -1.0F, 1.0F));
  const std::string y = b.add("Conv", {"x", "w"});
  b.output(b.add("Conv", {b.add("Foo", {y}, {}, "some.domain"), "w"}));
  const graph::divided_model divided(b.get());
  const graph::model joined = divided.joined(divided.runnable());
  CHECK(joined.initializers.size() == 1);
  CHECK(joined.initializers.at("w").raw() == b.get().initializers.at("w").raw());
}

TEST_CASE("unknown operators: in sub-graphs, and values that sub-graphs capture") {
  test::random_source r(902);
  INFO("seed ", r.seed());
  const auto branch = [&](const char* op, const std::string& captured, const char* out) {
    graph::graph_body body;
    graph::node n;
    n.op_type = op;
    n.name = out;
    n.inputs = {captured};
    n.outputs = {out};
    body.nodes.push_back(n);
    graph::value_info v;
    v.name = out;
    v.type = element_type::f32;
    body.outputs.push_back(v);
    return attribute::of(std::move(body));
  };
  network net(r);
  model_builder& b = net.b;
  const std::string inner = first(b.get(), "Relu").outputs[0];
  const std::string foo = b.get().nodes[2].outputs[0];
  b.constant("flag", make_tensor<std::uint8_t>(element_type::boolean, {}, {1}));
  const std::string lacks = b.add(
      "If", {"flag"},
      {{"then_branch", branch("Bar", inner, "t1")}, {"else_branch", branch("Neg", inner, "e1")}});
  const std::string needs = b.add(
      "If", {"flag"},
      {{"then_branch", branch("Neg", foo, "t2")}, {"else_branch", branch("Abs", inner, "e2")}});
  b.output(lacks);
  b.output(needs);
  const graph::divided_model divided(b.get());
  const std::vector<std::string>& reasons = divided.reasons();
  REQUIRE(reasons.size() == 4);
  CHECK(reasons[2].find("there is no operator for Bar node 't1' in then_branch of If") == 0);
  CHECK(reasons[3].find("needs the result of some.domain.Foo node 'foo'") != std::string::npos);
  CHECK(divided.runnable().outputs.size() == 2);  // the third convolution, and what is captured
  const graph::model joined = divided.joined(divided.runnable());
  CHECK(joined.outputs.size() == 4);
}

TEST_CASE("unknown operators: outputs keep their names where sub-graphs have the same ones") {
  test::random_source r(903);
  INFO("seed ", r.seed());
  for (const bool is_output : {true, false}) {
    INFO("the product is ", std::string(is_output ? "an output" : "what the rest takes"));
    model_builder body;
    body.add("Bar", {"x"}, {}, "some.domain");
    body.get().nodes[0].outputs = {"t"};
    // A sub-graph within that captures the name.
    model_builder inner;
    inner.output(inner.add("Neg", {"t"}));
    const auto branch = attribute::of(static_cast<graph::graph_body>(inner.get()));
    body.output(body.add("If", {"flag"}, {{"then_branch", branch}, {"else_branch", branch}}));
    const auto outer_branch = attribute::of(static_cast<graph::graph_body>(body.get()));
    model_builder b;
    b.input("x", {2, 4});
    b.input("flag", {}, element_type::boolean);
    b.get().opsets["some.domain"] = 3;
    const std::string chosen =
        b.add("If", {"flag"}, {{"then_branch", outer_branch}, {"else_branch", outer_branch}});
    b.constant("w", random_floats(r, {4, 4}, -1.0F, 1.0F));
    b.add("MatMul", {"x", "w"});
    b.get().nodes.back().outputs = {"t"};
    b.output(is_output ? chosen : b.add("Add", {chosen, "t"}));
    if (is_output) {
      b.output("t");
    }
    const graph::divided_model divided(b.get());
    CHECK(operators(divided.runnable()) == "MatMul");
    const graph::model joined = divided.joined(divided.runnable());
    CHECK(first(joined, "MatMul").outputs[0] == "t");
    // No value of a sub-graph hides it.
    const graph::node& rest = first(joined, "If");
    CHECK(graph::captured_values(rest) == std::set<std::string>{"flag", "x"});
    for (const char* key : {"then_branch", "else_branch"}) {
      const graph::graph_body& own = *rest.find(key)->g;
      CHECK(own.nodes[0].outputs[0] != "t");
      CHECK(graph::captured_values(own.nodes[1]) == std::set<std::string>{own.nodes[0].outputs[0]});
    }
    if (is_output) {
      CHECK(joined.outputs[1].name == "t");
    } else {
      CHECK(first(joined, "Add").inputs[1] == "t");
    }
  }
}

TEST_CASE("unknown operators: static quantization of what can be calibrated") {
  test::random_source r(910);
  INFO("seed ", r.seed());
  for (const std::int64_t opset : {11, 17}) {
    network net(r, opset);
    const graph::model& m = net.b.get();
    const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 8));
    const tensors x{{"x", random_floats(r, {1, 3, 6, 6}, -0.5F, 1.5F)}};
    const graph::quantization q = graph::static_quantization(m, source);
    CHECK(q.not_run == two_reasons);
    CHECK(q.plan.layers().size() == 2);
    CHECK(q.result.opset() == (opset < 13 ? 13 : opset));
    CHECK(count(q.result, "Foo") == 1);
    CHECK(count(q.result, "Conv") == 3);
    CHECK(named(q.result, "second").inputs[1] == "second_w");  // float weights
    CHECK(named(q.result, "first").inputs[1] != "first_w");
    CHECK(named(q.result, "third").inputs[1] != "third_w");
    CHECK(farthest(m, q.result, x) < 0.03);
    CHECK(farthest(m, q.result, x) > 0.0);
    const graph::model file = graph::parse_onnx(graph::to_onnx(q.result), ".");
    CHECK(farthest(q.result, file, x) == 0.0);
    graph::model integers = q.result;
    graph::to_qoperator(integers);
    CHECK(count(integers, "QLinearConv") == 2);
    CHECK(farthest(m, integers, x) < 0.03);

    std::vector<std::string> steps;
    graph::automatic_quantization_options options;
    options.on_step = [&](const graph::quantization_step& s) { steps.push_back(s.name); };
    const graph::quantization best = graph::automatic_quantization(m, source, options);
    CHECK(steps.size() > 3);
    CHECK(best.not_run == two_reasons);
    CHECK(farthest(m, best.result, x) < 0.03);
    CHECK(named(best.result, "second").inputs[1] == "second_w");
  }
}

TEST_CASE("unknown operators: nodes of strings stay as they are") {
  test::random_source r(909);
  INFO("seed ", r.seed());
  network net(r);
  graph::model m = with_identity(net.b.get());
  model_builder more;
  more.get() = m;
  more.constant("labels", tensor::of_strings({3}, {"cat", "dog", "owl"}));
  more.input("name", {3}, element_type::string);
  more.output(more.add("Equal", {"name", "labels"}), element_type::boolean);
  more.get().nodes.back().name = "compares";
  more.output(more.add("Shape", {"labels"}), element_type::s64);
  const graph::divided_model divided(more.get());
  CHECK(divided.names_of_rest() == std::set<std::string>{"compares"});
  CHECK(graph::unsupported_nodes(more.get()).size() == 1);
  const graph::model whole = divided.joined(divided.runnable());
  CHECK(whole.nodes.size() == more.get().nodes.size());
  const auto labels = whole.initializers.at("labels").strings();
  CHECK(std::vector<std::string>(labels.begin(), labels.end()) ==
        std::vector<std::string>{"cat", "dog", "owl"});
  // The executor refuses the comparison in a run, not before.
  graph::executor runner(more.get());
}

TEST_CASE("unknown operators: the scope is that of the whole model") {
  test::random_source r(920);
  INFO("seed ", r.seed());
  network net(r);
  const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 2));
  const auto quantized = [&](graph::static_quantization_options options) {
    std::string names;
    const graph::quantization q = graph::static_quantization(net.b.get(), source, options);
    for (const std::size_t i : q.plan.layers()) {
      names += q.plan.float_model().nodes[i].name + " ";
    }
    return names;
  };
  CHECK(quantized({}) == "first third ");
  CHECK(quantized({.scope = {.ignored = {.names = {"second"}}}}) == "first third ");
  CHECK(quantized({.scope = {.ignored = {.names = {"third"}}}}) == "first ");
  CHECK(quantized({.scope = {.ignored = {.first_layer = true}}}) == "third ");
  CHECK(quantized({.scope = {.ignored = {.last_layer = true}}}) == "first ");
  CHECK(quantized({.scope = {.operators = {.names = {{"second", {.quantize = false}}}}}}) ==
        "first third ");
  check_graph_error(error_kind::invalid_argument, {"'nobody'"}, [&] {
    static_cast<void>(quantized({.scope = {.ignored = {.names = {"nobody"}}}}));
  });
  check_graph_error(error_kind::invalid_argument, {"'nobody'"}, [&] {
    static_cast<void>(
        quantized({.scope = {.operators = {.names = {{"nobody", {.quantize = false}}}}}}));
  });

  // The last layer of the model is one that cannot be run: no other one stays in float for it.
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -1.0F, 1.0F));
  const std::string y = b.add("Conv", {"x", "w"});
  b.output(b.add("Conv", {b.add("Foo", {y}, {}, "some.domain"), "w"}));
  const graph::quantization q =
      graph::static_quantization(b.get(), source, {.scope = {.ignored = {.last_layer = true}}});
  CHECK(q.plan.layers().size() == 1);
}

TEST_CASE("unknown operators: nothing can be run") {
  test::random_source r(930);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -1.0F, 1.0F));
  b.output(b.add("Conv", {b.add("Foo", {"x"}, {}, "some.domain"), "w"}));
  const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 2));
  const graph::quantization q = graph::static_quantization(b.get(), source);
  CHECK(q.not_run.size() == 2);
  CHECK(q.plan.layers().empty());
  CHECK(operators(q.result) == "some.domain.Foo Conv");
  CHECK(q.result.initializers.at("w").type() == element_type::f32);
  CHECK(graph::automatic_quantization(b.get(), source).not_run.size() == 2);
}

TEST_CASE("unknown operators: dynamic quantization needs to run nothing") {
  test::random_source r(940);
  INFO("seed ", r.seed());
  for (const std::int64_t opset : {11, 17}) {
    network net(r, opset);
    const graph::model q = graph::quantize_dynamic(net.b.get());
    CHECK(count(q, "ConvInteger") == 3);
    CHECK(count(q, "Foo") == 1);
    const tensors x{{"x", random_floats(r, {1, 3, 6, 6}, -0.5F, 1.5F)}};
    CHECK(farthest(net.b.get(), q, x) < 0.03);
    // Samples do not help where the model cannot be run.
    const graph::model other =
        graph::quantize_dynamic(net.b.get(), {}, samples_source(samples_of_x(r, {1, 3, 6, 6}, 4)));
    CHECK(farthest(q, other, x) == 0.0);
  }
}

TEST_CASE("unknown operators: tuning without a metric takes the first setting") {
  test::random_source r(960);
  INFO("seed ", r.seed());
  for (const std::int64_t opset : {11, 17}) {
    network net(r, opset);
    const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 4));
    const tensors x{{"x", random_floats(r, {1, 3, 6, 6}, -0.5F, 1.5F)}};
    for (const bool is_dynamic : {false, true}) {
      graph::tuning_options o;
      o.performance_only = true;
      o.timeout = 100.0;  // would have the latency of models measured
      o.strategy = graph::tuning_strategy::mse;
      o.quantizer.is_dynamic = is_dynamic;
      const graph::tuning_result t = graph::tune(
          net.b.get(), is_dynamic ? graph::calibration_source() : source, graph::model_metric(), o);
      CHECK(t.trials.size() == 1);
      CHECK(t.not_run == (is_dynamic ? std::vector<std::string>() : two_reasons));
      CHECK(count(t.best, "Foo") == 1);
      CHECK(farthest(net.b.get(), t.best, x) < 0.03);
      const graph::model other = is_dynamic
                                     ? graph::quantize_dynamic(net.b.get(), {.weights = {}})
                                     : graph::static_quantization(net.b.get(), source).result;
      CHECK(graph::to_onnx(t.best) == graph::to_onnx(other));
    }
  }
}

TEST_CASE("unknown operators: tuning by a metric that can run the model") {
  test::random_source r(970);
  INFO("seed ", r.seed());
  network net(r);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    net.b.get().initializers.at("third_w").mutable_data<float>()[channel * 27] = 60.0F;
  }
  const graph::model& m = net.b.get();
  const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 4));
  const graph::model_metric metric = [](const graph::model& q) {
    CHECK(count(q, "Foo") == 1);
    return q.initializers.count("third_w") != 0 ? 1.0 : 0.0;  // whether "third" is in float
  };
  using graph::tuning_strategy;
  for (const tuning_strategy strategy :
       {tuning_strategy::basic, tuning_strategy::conservative, tuning_strategy::mse,
        tuning_strategy::mse_v2, tuning_strategy::hawq_v2, tuning_strategy::bayesian,
        tuning_strategy::random, tuning_strategy::exhaustive}) {
    INFO(std::string(graph::name(strategy)));
    graph::tuning_options o;
    o.strategy = strategy;
    const graph::tuning_result t = graph::tune(m, source, metric, o);
    CHECK(t.goal_met);
    CHECK(t.trials.size() > 1);
    CHECK(t.not_run == two_reasons);
    CHECK(t.best_trial.setting.in_float.count(named(m, "third").outputs[0]) == 1);
    CHECK(named(t.best, "third").inputs[1] == "third_w");
    CHECK(metric(t.best) == t.best_trial.metric);
    if (strategy != tuning_strategy::hawq_v2) {  // it leaves "first" in float before "third"
      CHECK(named(t.best, "first").inputs[1] != "first_w");
    }

    const bool ranks = graph::ranks_by_samples(strategy);
    o.quantizer.is_dynamic = true;
    if (ranks) {
      check_graph_error(error_kind::unsupported,
                        {graph::name(strategy), "some.domain.Foo", "'foo'"},
                        [&] { static_cast<void>(graph::tune(m, source, metric, o)); });
    } else {
      const graph::tuning_result d = graph::tune(m, source, metric, o);
      CHECK(d.goal_met);
      CHECK(d.not_run.empty());
      CHECK(count(d.best, "ConvInteger") == 2);
    }
  }
}

TEST_CASE("unknown operators: what tuning would have to run") {
  test::random_source r(980);
  INFO("seed ", r.seed());
  network net(r);
  const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 2));
  const graph::model_metric metric = [](const graph::model& /*m*/) { return 1.0; };
  graph::tuning_options o;
  o.timeout = 1000.0;
  o.max_trials = 2;
  for (const auto objective :
       {graph::tuning_objective::latency, graph::tuning_objective::footprint}) {
    o.objectives = {{graph::tuning_objective::model_size, 1.0}, {objective, 1.0}};
    check_graph_error(error_kind::unsupported, {graph::name(objective), "some.domain.Foo", "'foo'"},
                      [&] { static_cast<void>(graph::tune(net.b.get(), source, metric, o)); });
  }
  o.objectives = {{graph::tuning_objective::model_size, 1.0}};
  CHECK(graph::tune(net.b.get(), source, metric, o).best_trial.objective > 0.0);
  o.quantizer.is_dynamic = true;
  o.space.corrections = {graph::bias_correction::fast};
  check_graph_error(error_kind::unsupported, {"bias correction", "some.domain.Foo", "'foo'"},
                    [&] { static_cast<void>(graph::tune(net.b.get(), source, metric, o)); });
}

TEST_CASE("unknown operators: tuning a model of which nothing can be run") {
  test::random_source r(990);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -1.0F, 1.0F));
  b.output(b.add("Conv", {b.add("Foo", {"x"}, {}, "some.domain"), "w"}));
  const auto source = samples_source(samples_of_x(r, {1, 3, 6, 6}, 2));
  const graph::model_metric metric = [](const graph::model& /*m*/) { return 1.0; };
  using graph::tuning_strategy;
  for (const tuning_strategy strategy :
       {tuning_strategy::basic, tuning_strategy::conservative, tuning_strategy::mse,
        tuning_strategy::mse_v2, tuning_strategy::hawq_v2, tuning_strategy::bayesian,
        tuning_strategy::random, tuning_strategy::exhaustive}) {
    INFO(std::string(graph::name(strategy)));
    graph::tuning_options o;
    o.strategy = strategy;
    o.goal = {.max_drop = -0.5, .drop = graph::drop_type::absolute};
    o.max_trials = 5;
    const graph::tuning_result t = graph::tune(b.get(), source, metric, o);
    CHECK_FALSE(t.goal_met);
    CHECK(t.not_run.size() == 2);
    CHECK(operators(t.best) == "some.domain.Foo Conv");
  }
}

TEST_CASE("unknown operators: weights alone") {
  test::random_source r(950);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {4, 32});
  b.constant("w1", random_floats(r, {32, 32}, -0.3F, 0.3F));
  b.constant("w2", random_floats(r, {32, 32}, -0.3F, 0.3F));
  const std::string y = b.add("MatMul", {"x", "w1"});
  b.output(b.add("MatMul", {b.add("Foo", {y}, {}, "some.domain"), "w2"}));
  const auto source = samples_source(samples_of_x(r, {4, 32}, 8));
  const tensors x{{"x", random_floats(r, {4, 32}, -0.5F, 1.5F)}};
  const graph::model rtn = graph::quantize_weights_only(b.get(), {.bits = 8});
  CHECK(count(rtn, "MatMulNBits") == 2);
  CHECK(count(rtn, "Foo") == 1);
  CHECK(farthest(b.get(), rtn, x) < 0.03);
  for (const auto algorithm :
       {graph::weight_only_algorithm::awq, graph::weight_only_algorithm::gptq}) {
    const graph::model q =
        graph::quantize_weights_only(b.get(), {.bits = 4, .algorithm = algorithm}, source);
    CHECK(count(q, "MatMulNBits") == 2);
    CHECK(farthest(b.get(), q, x) < 0.3);
    // What cannot be observed is rounded to nearest.
    const graph::model plain = graph::quantize_weights_only(b.get(), {.bits = 4});
    CHECK(test::difference(q.initializers.at("w2_quantized").data<std::uint8_t>(),
                           plain.initializers.at("w2_quantized").data<std::uint8_t>()) == "");
    CHECK(test::difference(q.initializers.at("w1_quantized").data<std::uint8_t>(),
                           plain.initializers.at("w1_quantized").data<std::uint8_t>()) != "");
  }
}
