// SPDX-License-Identifier: BSD-3-Clause
// If, Loop and Scan: their sub-graphs in files, in runs, and under the passes that rewrite what is
// around them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <protozero/pbf_writer.hpp>

#include <detent/float_formats.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::attribute;
using graph::element_type;
using graph::graph_body;
using graph::model;
using graph::node;
using graph::shape;
using graph::tensor;
using graph::value_info;
using test::check_graph_error;
using test::floats;
using test::list;
using test::model_builder;
using test::number;
using names = std::set<std::string>;
using tensors = std::map<std::string, tensor>;

tensor boolean(bool value) {
  return test::make_tensor<std::uint8_t>(element_type::boolean, {}, {std::uint8_t{value}});
}
tensor integer(std::int64_t value) {
  return test::make_tensor<std::int64_t>(element_type::s64, {}, {value});
}
tensor scalar(float value) { return floats({}, {value}); }

value_info declared(const std::string& name, element_type type = element_type::f32) {
  return {name, type, false, {}, {}};
}
value_info declared(const std::string& name, element_type type, shape dims) {
  const std::vector<std::string> params(dims.size());
  return {name, type, true, std::move(dims), params};
}

node make_node(const std::string& op, std::vector<std::string> inputs,
               std::vector<std::string> outputs, test::attributes a = {}) {
  node n;
  n.op_type = op;
  n.name = op + " of " + outputs[0];
  n.inputs = std::move(inputs);
  n.outputs = std::move(outputs);
  n.attributes = std::move(a);
  return n;
}

graph_body make_body(std::vector<value_info> inputs, std::vector<node> nodes,
                     std::vector<value_info> outputs,
                     std::map<std::string, tensor> initializers = {}) {
  graph_body body;
  body.graph_name = "body";
  body.inputs = std::move(inputs);
  body.nodes = std::move(nodes);
  body.outputs = std::move(outputs);
  body.initializers = std::move(initializers);
  return body;
}

node if_node(const std::string& condition, graph_body yes, graph_body no,
             std::vector<std::string> outputs) {
  return make_node("If", {condition}, std::move(outputs),
                   {{"then_branch", attribute::of(std::move(yes))},
                    {"else_branch", attribute::of(std::move(no))}});
}
node loop_node(std::vector<std::string> inputs, graph_body body, std::vector<std::string> outputs) {
  return make_node("Loop", std::move(inputs), std::move(outputs),
                   {{"body", attribute::of(std::move(body))}});
}

/// A body of one node.
graph_body one(const std::string& op, std::vector<std::string> inputs, const std::string& output,
               test::attributes a = {}) {
  return make_body({}, {make_node(op, std::move(inputs), {output}, std::move(a))},
                   {declared(output)});
}

const graph_body& body_of(const model& m, const std::string& output,
                          const std::string& key = "then_branch") {
  const std::size_t i = graph::links(m).producer(output);
  REQUIRE(i != graph::links::none);
  const attribute* a = m.nodes[i].find(key);
  REQUIRE(a != nullptr);
  REQUIRE(a->g != nullptr);
  return *a->g;
}

std::vector<tensor> run(model m, const tensors& inputs, graph::executor_options options = {}) {
  graph::executor e(std::move(m), std::move(options));
  return e.run(inputs);
}

void check_floats(const tensor& t, const shape& dims, const std::vector<float>& values) {
  CHECK(t.dims() == dims);
  REQUIRE(t.type() == element_type::f32);
  CHECK(test::difference(t.data<float>(), values) == "");
}

double noise(const tensor& expected, const tensor& actual) {
  graph::signal_error e;
  e.add(expected.data<float>(), actual.data<float>());
  return e.noise_to_signal();
}

/// y = If(condition) then |x| else -x, with the branches that a test gives it.
model branching(graph_body yes, graph_body no, std::vector<std::string> outputs = {"y"}) {
  model_builder b;
  b.input("condition", {}, element_type::boolean);
  b.input("x", {2, 2});
  for (const std::string& out : outputs) {
    b.output(out);
  }
  b.get().nodes.push_back(if_node("condition", std::move(yes), std::move(no), std::move(outputs)));
  return b.get();
}

/// Loop(count, "", start): v becomes v * 2 + i, of which each iteration also returns the i-th part.
model doubling(std::vector<std::string> loop_inputs = {"count", "go", "start"}) {
  model_builder b;
  b.input("count", {}, element_type::s64);
  b.input("go", {}, element_type::boolean);
  b.input("start", {});
  b.constant("two", scalar(2.0F));
  b.constant("limit", scalar(100.0F));
  graph_body body = make_body(
      {declared("i", element_type::s64), declared("goes", element_type::boolean), declared("v")},
      {make_node("Cast", {"i"}, {"real"}, {{"to", number(1)}}),
       make_node("Mul", {"v", "two"}, {"doubled"}), make_node("Add", {"doubled", "real"}, {"next"}),
       make_node("Less", {"next", "limit"}, {"small"}), make_node("Identity", {"next"}, {"seen"})},
      {declared("small", element_type::boolean), declared("next"),
       declared("seen", element_type::f32, {})});
  b.get().nodes.push_back(loop_node(std::move(loop_inputs), std::move(body), {"last", "all"}));
  b.output("last");
  b.output("all");
  return b.get();
}

/// The same with plain numbers.
std::vector<float> doubled(float v, std::int64_t count, bool go) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < count && go; ++i) {
    v = v * 2.0F + static_cast<float>(i);
    all.push_back(v);
    go = v < 100.0F;
  }
  return all;
}

/// Bodies within bodies, constants of their own, what is no tensor, lists of graphs.
model rich_model(test::random_source& r) {
  model m = doubling();
  const graph_body inner =
      make_body({}, {make_node("Add", {"k", "last"}, {"sum"})}, {declared("sum")},
                {{"k", test::random_floats(r, {2, 3}, -1.0F, 1.0F)}});
  const graph_body middle =
      make_body({}, {if_node("go", inner, one("Mul", {"last", "own"}, "product"), {"inside"})},
                {declared("inside", element_type::f32, {-1, 3})}, {{"own", scalar(3.0F)}});
  m.nodes.push_back(if_node("go", middle, one("Neg", {"two"}, "minus"), {"chosen"}));
  node custom = make_node("Custom", {"start"}, {"other"});
  custom.domain = "somebody";
  custom.attributes["several"].kind = attribute::kind_type::graphs;
  custom.attributes["several"].graphs = {std::make_shared<const graph_body>(inner),
                                         std::make_shared<const graph_body>(middle)};
  m.nodes.push_back(custom);
  m.opsets["somebody"] = 1;
  m.outputs.push_back(declared("chosen"));
  // A sequence of tensors, as TypeProto has it: field 4, which holds field 1, which is a type.
  m.outputs.push_back(
      {"other", element_type::undefined, false, {}, {}, "\x22\x06\x0A\x04\x0A\x02\x08\x01"});
  return m;
}

/// A chain of Ifs, each in the branch of the one before.
model nested(std::size_t depth) {
  graph_body body = one("Neg", {"x"}, "v0");
  for (std::size_t i = 1; i < depth; ++i) {
    const std::string out = "v" + std::to_string(i);
    node n;
    n.op_type = "If";
    n.inputs = {"condition"};
    n.outputs = {out};
    n.attributes["then_branch"] = attribute::of(body);
    n.attributes["else_branch"] = attribute::of(one("Abs", {"x"}, "a" + std::to_string(i)));
    body = make_body({}, {n}, {declared(out)});
  }
  return branching(body, one("Abs", {"x"}, "other"));
}

}  // namespace

// ------------------------------------------------------------------------------- names and files

TEST_CASE("sub-graphs: written and read back as they were") {
  test::random_source r(1);
  const model m = rich_model(r);
  const std::string bytes = graph::to_onnx(m);
  const model again = graph::parse_onnx(bytes, ".");
  CHECK(graph::to_onnx(again) == bytes);
  REQUIRE(again.nodes.size() == 3);

  const graph_body& loop = body_of(again, "last", "body");
  REQUIRE(loop.nodes.size() == 5);
  CHECK(loop.nodes[1].name == "Mul of doubled");
  CHECK(loop.nodes[1].inputs == std::vector<std::string>{"v", "two"});
  REQUIRE(loop.inputs.size() == 3);
  CHECK(loop.inputs[1].type == element_type::boolean);
  CHECK(loop.outputs[2].has_shape);

  const graph_body& middle = body_of(again, "chosen");
  CHECK(middle.outputs[0].dims == shape{-1, 3});
  const attribute* inner = middle.nodes.at(0).find("then_branch");
  REQUIRE(inner != nullptr);
  const graph_body& before = *body_of(m, "chosen").nodes[0].find("then_branch")->g;
  CHECK(test::difference(inner->g->initializers.at("k").data<float>(),
                         before.initializers.at("k").data<float>()) == "");

  const attribute* several = again.nodes[2].find("several");
  REQUIRE(several != nullptr);
  CHECK(several->kind == attribute::kind_type::graphs);
  REQUIRE(several->graphs.size() == 2);
  CHECK(several->graphs[1]->nodes.at(0).outputs[0] == "inside");
  CHECK(again.outputs.back().other_type == m.outputs.back().other_type);
  CHECK(again.outputs.back().type == element_type::undefined);
}

TEST_CASE("sub-graphs: what they capture") {
  // The inner body has an x of its own; what the middle one makes is not captured from outside.
  const graph_body inner =
      make_body({declared("x")}, {make_node("Sum", {"x", "made", "deep", "k"}, {"inner_sum"})},
                {declared("inner_sum"), declared("returned")}, {{"k", scalar(1.0F)}});
  const graph_body middle =
      make_body({declared("in")},
                {make_node("Sum", {"in", "x", ""}, {"made"}),
                 make_node("Custom", {"w"}, {"inside"}, {{"body", attribute::of(inner)}})},
                {declared("inside")});
  CHECK(graph::captured_values(inner) == names{"made", "deep", "returned"});
  CHECK(graph::captured_values(middle) == names{"x", "w", "deep", "returned"});
  const node outer = make_node("Custom", {"y", "w"}, {"out"},
                               {{"one", attribute::of(middle)}, {"two", attribute::of(inner)}});
  CHECK(graph::captured_values(outer) == names{"x", "w", "deep", "returned", "made"});
  CHECK(graph::captured_values(make_node("Relu", {"x"}, {"y"})).empty());
  CHECK(graph::value_names(middle) == names{"in", "made", "inside", "x", "k", "inner_sum"});

  model m;
  m.nodes = {make_node("Relu", {"in"}, {"x"}), outer};
  const graph::links l(m);
  const auto users = [&](const char* value) {
    const auto found = l.consumers(value);
    return std::vector<std::size_t>(found.begin(), found.end());
  };
  CHECK(users("x") == std::vector<std::size_t>{1});
  CHECK(users("w") == std::vector<std::size_t>{1, 1});  // taken, and captured
  CHECK(l.consumers("inner_sum").empty());
}

TEST_CASE("sub-graphs: nodes are sorted by what is captured, within sub-graphs too") {
  model_builder b;
  b.input("condition", {}, element_type::boolean);
  b.input("x", {2, 2});
  graph_body yes =
      make_body({}, {make_node("Neg", {"second"}, {"t"}), make_node("Abs", {"late"}, {"second"})},
                {declared("t")});
  b.get().nodes = {if_node("condition", yes, one("Neg", {"x"}, "e"), {"y"}),
                   make_node("Relu", {"x"}, {"late"})};
  b.output("y");
  const model m = graph::parse_onnx(graph::to_onnx(b.get()), ".");
  CHECK(m.nodes[0].op_type == "Relu");
  CHECK(body_of(m, "y").nodes[0].op_type == "Abs");
  check_floats(run(m, {{"condition", boolean(true)}, {"x", floats({2, 2}, {-1, 2, -3, 4})}})[0],
               {2, 2}, {-0.0F, -2, -0.0F, -4});
}

TEST_CASE("sub-graphs: names that do not fit together") {
  const auto check = [](std::initializer_list<std::string_view> words, model m) {
    const std::string bytes = graph::to_onnx(m);
    check_graph_error(error_kind::bad_file, words,
                      [&] { static_cast<void>(graph::parse_onnx(bytes, ".")); });
  };
  const graph_body fine = one("Neg", {"x"}, "e");
  check({"Abs of t", "'nowhere'", "nothing makes"}, branching(one("Abs", {"nowhere"}, "t"), fine));
  check({"'nowhere'", "made by nothing"},
        branching(make_body({}, {}, {declared("nowhere")}), fine));
  // What other sub-graphs make is not seen.
  check({"Abs of t", "'e'"}, branching(one("Abs", {"e"}, "t"), fine));
  check({"If of y", "cycle"}, branching(one("Abs", {"y"}, "t"), fine));
  check({"Abs of t", "'t'", "already exists"},
        branching(make_body({}, {make_node("Neg", {"x"}, {"t"}), make_node("Abs", {"x"}, {"t"})},
                            {declared("t")}),
                  fine));
  check({"two inputs", "'i'"},
        branching(make_body({declared("i"), declared("i")}, {make_node("Neg", {"i"}, {"t"})},
                            {declared("t")}),
                  fine));
  check({"no name"},
        branching(make_body({declared("")}, {make_node("Neg", {"x"}, {"t"})}, {declared("t")}),
                  fine));
  model m = branching(one("Abs", {"a"}, "t"), fine);
  m.nodes.push_back(make_node("Relu", {"y"}, {"a"}));
  check({"cycle"}, m);
}

TEST_CASE("sub-graphs: an attribute that says it is a graph and has none") {
  const auto message = [](const auto& fill) {
    std::string bytes;
    protozero::pbf_writer writer(bytes);
    fill(writer);
    return bytes;
  };
  const std::string attribute_bytes = message([](protozero::pbf_writer& w) {
    w.add_string(1, "then_branch");
    w.add_int32(20, 5);  // GRAPH
  });
  const std::string node_bytes = message([&](protozero::pbf_writer& w) {
    w.add_string(2, "y");
    w.add_string(4, "If");
    w.add_message(5, attribute_bytes);
  });
  const std::string bytes = message([&](protozero::pbf_writer& w) {
    w.add_int64(1, 8);
    w.add_message(7, message([&](protozero::pbf_writer& g) { g.add_message(1, node_bytes); }));
  });
  check_graph_error(error_kind::bad_file, {"'then_branch'", "has none"},
                    [&] { static_cast<void>(graph::parse_onnx(bytes, ".")); });
}

TEST_CASE("sub-graphs: how deep they may stand in each other") {
  const tensors inputs{{"condition", boolean(true)}, {"x", floats({2, 2}, {1, 2, 3, 4})}};
  for (const std::size_t depth : {std::size_t{1}, std::size_t{2}, graph::max_body_depth}) {
    INFO("depth ", depth);
    const model m = graph::parse_onnx(graph::to_onnx(nested(depth)), ".");
    check_floats(run(m, inputs)[0], {2, 2}, {-1, -2, -3, -4});
    CHECK(graph::infer_shapes(m).at("y").dims() == shape{2, 2});
  }
  for (const std::size_t depth : {graph::max_body_depth + 1, std::size_t{500}}) {
    INFO("depth ", depth);
    const std::string bytes = graph::to_onnx(nested(depth));
    check_graph_error(error_kind::bad_file, {"32", "deep"},
                      [&] { static_cast<void>(graph::parse_onnx(bytes, ".")); });
  }
  model m = nested(graph::max_body_depth + 1);
  check_graph_error(error_kind::bad_file, {"32", "deep"}, [&] { graph::sort_and_check(m); });
}

// ----------------------------------------------------------------------------------------- runs

TEST_CASE("If: runs one branch, which may make other shapes") {
  graph_body yes = make_body({},
                             {make_node("Mul", {"x", "k"}, {"t"}),
                              make_node("ReduceSum", {"x"}, {"s"}, {{"keepdims", number(0)}})},
                             {declared("t"), declared("s")}, {{"k", scalar(10.0F)}});
  graph_body no = make_body({}, {make_node("Neg", {"x"}, {"n"}), make_node("Abs", {"x"}, {"a"})},
                            {declared("n"), declared("a")});
  const model m = branching(yes, no, {"y", "z"});
  graph::executor e(m);
  const tensor x = floats({2, 2}, {1, -2, 3, -4});
  for (int round = 0; round < 3; ++round) {
    std::vector<tensor> out = e.run({{"condition", boolean(true)}, {"x", x}});
    check_floats(out[0], {2, 2}, {10, -20, 30, -40});
    check_floats(out[1], {}, {-2});
    out = e.run({{"condition", boolean(false)}, {"x", x}});
    check_floats(out[0], {2, 2}, {-1, 2, -3, 4});
    check_floats(out[1], {2, 2}, {1, 2, 3, 4});
  }
}

TEST_CASE("If: an inner name hides an outer one, and a branch may return what it captures") {
  model m = branching(make_body({}, {make_node("Add", {"x", "k"}, {"late"})}, {declared("late")},
                                {{"k", scalar(1.0F)}}),
                      make_body({}, {}, {declared("k")}));
  m.initializers["k"] = scalar(50.0F);
  m.nodes.push_back(make_node("Mul", {"y", "k"}, {"late"}));
  m.outputs.push_back(declared("late"));
  graph::sort_and_check(m);
  const tensor x = floats({2, 2}, {1, 2, 3, 4});
  std::vector<tensor> out = run(m, {{"condition", boolean(true)}, {"x", x}});
  check_floats(out[0], {2, 2}, {2, 3, 4, 5});
  check_floats(out[1], {2, 2}, {100, 150, 200, 250});
  out = run(m, {{"condition", boolean(false)}, {"x", x}});
  check_floats(out[0], {}, {50});
  check_floats(out[1], {}, {2500});
}

TEST_CASE("Loop: iterations, condition, carried values, scan outputs") {
  test::random_source r(11);
  INFO("seed ", r.seed());
  graph::executor e(doubling());
  for (int round = 0; round < 60; ++round) {
    const auto count = static_cast<std::int64_t>(r.size(0, 12)) - 2;
    const bool go = r.size(0, 5) != 0;
    const float start = static_cast<float>(r.integer(-8, 8));
    INFO("count ", count, " go ", go, " start ", start);
    const std::vector<float> expected = doubled(start, count, go);
    const std::vector<tensor> out =
        e.run({{"count", integer(count)}, {"go", boolean(go)}, {"start", scalar(start)}});
    check_floats(out[0], {}, {expected.empty() ? start : expected.back()});
    check_floats(out[1], {static_cast<std::int64_t>(expected.size())}, expected);
  }
}

TEST_CASE("Loop: a constant of 16 bits keeps the type of what is carried") {
  const auto half = [](float value) {
    return graph::detail::float_to_half(scalar(value), element_type::f16);
  };
  for (const bool captured : {false, true}) {
    std::map<std::string, tensor> inside;
    if (!captured) {
      inside["factor"] = half(0.5F);
    }
    model_builder b;
    b.input("v", {}, element_type::f16);
    b.input("count", {}, element_type::s64);
    if (captured) {
      b.constant("factor", half(0.5F));
    }
    b.get().nodes.push_back(loop_node(
        {"count", "", "v"},
        make_body({declared("i", element_type::s64), declared("go", element_type::boolean),
                   declared("u", element_type::f16)},
                  {make_node("Mul", {"factor", "u"}, {"w"}), make_node("Identity", {"go"}, {"on"})},
                  {declared("on", element_type::boolean), declared("w", element_type::f16)},
                  inside),
        {"last"}));
    b.output("last", element_type::f16);
    graph::executor e(b.get());
    for (const std::int64_t count : {1, 3, 2}) {
      const tensor y = e.run({{"v", half(24.0F)}, {"count", integer(count)}})[0];
      CHECK(y.type() == element_type::f16);
      CHECK(test::values_of<std::uint16_t>(y) ==
            test::values_of<std::uint16_t>(half(std::ldexp(24.0F, -static_cast<int>(count)))));
    }
  }
}

TEST_CASE("Loop: without trip count, without condition, without both") {
  const tensors inputs{{"count", integer(3)}, {"go", boolean(true)}, {"start", scalar(5.0F)}};
  const auto check = [&](std::vector<std::string> loop_inputs, std::int64_t count) {
    const std::vector<float> expected = doubled(5.0F, count, true);
    const std::vector<tensor> out = run(doubling(std::move(loop_inputs)), inputs);
    check_floats(out[0], {}, {expected.back()});
    check_floats(out[1], {static_cast<std::int64_t>(expected.size())}, expected);
  };
  check({"count", "", "start"}, 3);
  check({"", "go", "start"}, 1000);  // until it is 100 or more
  check({"", "", "start"}, 1000);
}

TEST_CASE("Loop: carried values may grow; a scan output of no iteration has the declared shape") {
  const auto growing = [](value_info scan) {
    model_builder b;
    b.input("count", {}, element_type::s64);
    b.input("start", {-1});
    graph_body body =
        make_body({declared("i", element_type::s64), declared("goes", element_type::boolean),
                   declared("v", element_type::f32, {1})},
                  {make_node("Identity", {"goes"}, {"still"}),
                   make_node("Concat", {"v", "v"}, {"twice"}, {{"axis", number(0)}}),
                   make_node("ReduceSum", {"twice"}, {"total"})},
                  {declared("still", element_type::boolean), declared("twice"), scan});
    b.get().nodes.push_back(loop_node({"count", "", "start"}, body, {"v_last", "totals"}));
    b.output("v_last");
    b.output("totals");
    return b.get();
  };
  const tensor start = floats({2}, {1, 2});
  std::vector<tensor> out =
      run(growing(declared("total")), {{"count", integer(3)}, {"start", start}});
  CHECK(out[0].dims() == shape{16});
  check_floats(out[1], {3, 1}, {6, 12, 24});
  const auto none = [&](value_info scan) {
    std::vector<tensor> empty =
        run(growing(std::move(scan)), {{"count", integer(0)}, {"start", start}});
    check_floats(empty[0], {2}, {1, 2});
    CHECK(empty[1].count() == 0);
    CHECK(empty[1].type() == element_type::f32);
    return empty[1].dims();
  };
  CHECK(none(declared("total", element_type::f32, {5, -1})) == shape{0, 5, 0});
  CHECK(none(declared("total", element_type::f32, {})) == shape{0});
  CHECK(none(declared("total", element_type::undefined)) == shape{0, 1});  // inferred
}

TEST_CASE("Loop in If in Loop: the innermost sub-graph sees all around it") {
  // total = sum over i < n, over j < i where i is even, of x * (i + j); odd i subtract x.
  graph_body innermost = make_body(
      {declared("j", element_type::s64), declared("inner_goes", element_type::boolean),
       declared("acc")},
      {make_node("Add", {"i", "j"}, {"both"}),
       make_node("Cast", {"both"}, {"real"}, {{"to", number(1)}}),
       make_node("Mul", {"x", "real"}, {"term"}), make_node("Add", {"acc", "term"}, {"acc_out"}),
       make_node("Identity", {"inner_goes"}, {"inner_still"})},
      {declared("inner_still", element_type::boolean), declared("acc_out")});
  graph_body even =
      make_body({}, {loop_node({"i", "", "v"}, innermost, {"even_sum"})}, {declared("even_sum")});
  graph_body odd = one("Sub", {"v", "x"}, "odd_sum");
  graph_body body = make_body(
      {declared("i", element_type::s64), declared("goes", element_type::boolean), declared("v")},
      {make_node("Mod", {"i", "two"}, {"rest"}), make_node("Equal", {"rest", "zero"}, {"is_even"}),
       if_node("is_even", even, odd, {"next"}), make_node("Identity", {"goes"}, {"still"})},
      {declared("still", element_type::boolean), declared("next")});
  model_builder b;
  b.input("n", {}, element_type::s64);
  b.input("x", {2});
  b.constant("two", integer(2));
  b.constant("zero", integer(0));
  b.constant("nothing", floats({2}, {0, 0}));
  b.get().nodes.push_back(loop_node({"n", "", "nothing"}, body, {"total"}));
  b.output("total");
  const model m = graph::parse_onnx(graph::to_onnx(b.get()), ".");
  graph::executor plain(m);
  graph::executor prepared(graph::for_execution(m));
  for (std::int64_t n = 0; n < 9; ++n) {
    INFO("n ", n);
    float a = 0.0F;
    float c = 0.0F;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; i % 2 == 0 && j < i; ++j) {
        a += 0.5F * static_cast<float>(i + j);
        c += -3.0F * static_cast<float>(i + j);
      }
      a -= i % 2 != 0 ? 0.5F : 0.0F;
      c -= i % 2 != 0 ? -3.0F : 0.0F;
    }
    const tensors inputs{{"n", integer(n)}, {"x", floats({2}, {0.5F, -3.0F})}};
    check_floats(plain.run(inputs)[0], {2}, {a, c});
    check_floats(prepared.run(inputs)[0], {2}, {a, c});
  }
}

TEST_CASE("Loop: an executor goes on after a run that failed") {
  graph::executor_options options;
  options.max_iterations = 4;
  graph::executor e(doubling(), options);
  const auto inputs = [](std::int64_t count) {
    return tensors{{"count", integer(count)}, {"go", boolean(true)}, {"start", scalar(1.0F)}};
  };
  for (int round = 0; round < 3; ++round) {
    check_graph_error(error_kind::bad_file, {"begins iteration 5", "limit is 4"},
                      [&] { static_cast<void>(e.run(inputs(6))); });
    check_floats(e.run(inputs(4))[0], {}, {doubled(1.0F, 4, true).back()});
  }
}

TEST_CASE("sub-graphs: half floats go in and come out, each result rounded") {
  const auto halves = [](const std::vector<float>& values) {
    std::vector<std::uint16_t> bits;
    for (const float v : values) {
      bits.push_back(detent::round_to<detent::float16>(v).bits);
    }
    return test::make_tensor<std::uint16_t>(element_type::f16,
                                            {static_cast<std::int64_t>(values.size())}, bits);
  };
  model_builder b;
  b.input("count", {}, element_type::s64);
  b.input("x", {2}, element_type::f16);
  const graph_body body = make_body(
      {declared("i", element_type::s64), declared("goes", element_type::boolean),
       declared("v", element_type::f16)},
      {make_node("Mul", {"v", "third"}, {"next"}), make_node("Identity", {"goes"}, {"still"})},
      {declared("still", element_type::boolean), declared("next", element_type::f16)});
  b.constant("third", halves({1.0F / 3.0F}));
  b.get().nodes.push_back(loop_node({"count", "", "x"}, body, {"last"}));
  b.output("last", element_type::f16);
  std::vector<float> expected{1000.0F, 0.7001953125F};
  const float third = detent::to_float(detent::round_to<detent::float16>(1.0F / 3.0F));
  for (int i = 0; i < 3; ++i) {
    for (float& v : expected) {
      v = detent::to_float(detent::round_to<detent::float16>(v * third));
    }
  }
  const tensor out =
      run(b.get(), {{"count", integer(3)}, {"x", halves({1000.0F, 0.7001953125F})}})[0];
  REQUIRE(out.type() == element_type::f16);
  CHECK(test::values_of<std::uint16_t>(out) == test::values_of<std::uint16_t>(halves(expected)));
}

TEST_CASE("Scan: sums and parts along any axis, in both directions") {
  test::random_source r(12);
  INFO("seed ", r.seed());
  const tensor x = test::make_tensor<float>(element_type::f32, {2, 3, 4}, [&] {
    std::vector<float> v(24);
    for (float& e : v) {
      e = static_cast<float>(r.integer(-9, 9));
    }
    return v;
  }());
  const auto at = [&](std::size_t i, std::size_t j, std::size_t k) {
    return x.data<float>()[(i * 3 + j) * 4 + k];
  };
  for (const bool in_back : {false, true}) {
    for (const bool out_back : {false, true}) {
      for (const std::int64_t out_axis : {0, 1, 2, -1}) {
        INFO("backwards ", in_back, " ", out_back, " to axis ", out_axis);
        // Along axis 1 (3 parts of 2 x 4): the sums so far, all of them along out_axis.
        model_builder b;
        b.input("x", {2, 3, 4});
        b.constant("start", floats({2, 4}, std::vector<float>(8, 1.0F)));
        graph_body body = make_body({declared("state"), declared("part")},
                                    {make_node("Add", {"state", "part"}, {"sum"}),
                                     make_node("Identity", {"sum"}, {"copy"})},
                                    {declared("sum"), declared("copy")});
        b.get().nodes.push_back(make_node("Scan", {"start", "x"}, {"final", "sums"},
                                          {{"body", attribute::of(body)},
                                           {"num_scan_inputs", number(1)},
                                           {"scan_input_axes", list({-2})},
                                           {"scan_input_directions", list({in_back ? 1 : 0})},
                                           {"scan_output_axes", list({out_axis})},
                                           {"scan_output_directions", list({out_back ? 1 : 0})}}));
        b.output("final");
        b.output("sums");
        CHECK(graph::infer_shapes(b.get()).at("final").dims() == shape{2, 4});
        const std::vector<tensor> out = run(b.get(), {{"x", x}});
        std::vector<float> state(8, 1.0F);
        std::vector<std::vector<float>> all(3);
        for (std::size_t t = 0; t < 3; ++t) {
          for (std::size_t i = 0; i < 2; ++i) {
            for (std::size_t k = 0; k < 4; ++k) {
              state[i * 4 + k] += at(i, in_back ? 2 - t : t, k);
            }
          }
          all[out_back ? 2 - t : t] = state;
        }
        check_floats(out[0], {2, 4}, state);
        const std::size_t axis = out_axis < 0 ? 2 : static_cast<std::size_t>(out_axis);
        shape dims{2, 4};
        dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), 3);
        std::vector<float> expected(24);
        for (std::size_t t = 0; t < 3; ++t) {
          for (std::size_t i = 0; i < 2; ++i) {
            for (std::size_t k = 0; k < 4; ++k) {
              const std::size_t place = axis == 0   ? (t * 2 + i) * 4 + k
                                        : axis == 1 ? (i * 3 + t) * 4 + k
                                                    : (i * 4 + k) * 3 + t;
              expected[place] = all[t][i * 4 + k];
            }
          }
        }
        check_floats(out[1], dims, expected);
      }
    }
  }
}

// -------------------------------------------------------------------------------- what is wrong

TEST_CASE("sub-graphs: what is wrong is named, with the node in the sub-graph") {
  const tensors inputs{{"condition", boolean(true)}, {"x", floats({2, 2}, {1, 2, 3, 4})}};
  const auto check_if = [&](std::initializer_list<std::string_view> words, graph_body yes,
                            std::vector<std::string> outputs = {"y"}) {
    const model m = branching(std::move(yes), one("Neg", {"x"}, "e"), std::move(outputs));
    check_graph_error(error_kind::bad_file, words, [&] { static_cast<void>(run(m, inputs)); });
  };
  check_if({"If of y", "Reshape of t", "cannot reshape"},
           make_body({}, {make_node("Reshape", {"x", "to"}, {"t"})}, {declared("t")},
                     {{"to", test::make_tensor<std::int64_t>(element_type::s64, {1}, {3})}}));
  check_if({"If of y", "then_branch has 2 outputs, expected 1"},
           make_body({}, {make_node("Abs", {"x"}, {"t"})}, {declared("t"), declared("x")}));
  check_if({"If of y", "else_branch has 1 outputs, expected 2"},
           make_body({}, {make_node("Abs", {"x"}, {"t"})}, {declared("t"), declared("x")}),
           {"y", "z"});
  check_if({"If of y", "then_branch has 1 inputs"},
           make_body({declared("i")}, {make_node("Abs", {"x"}, {"t"})}, {declared("t")}));
  check_if({"If of y", "output 0 is int64 in then_branch, float32 in else_branch"},
           make_body({}, {make_node("Cast", {"x"}, {"t"}, {{"to", number(7)}})},
                     {declared("t", element_type::s64)}));
  // In memory, nobody has checked the names.
  check_if({"If of y", "'nowhere'", "nothing has made it"}, one("Abs", {"nowhere"}, "t"));

  model m = branching(one("Abs", {"x"}, "t"), one("Neg", {"x"}, "e"));
  m.nodes[0].attributes.erase("else_branch");
  check_graph_error(error_kind::bad_file, {"If of y", "else_branch is not a sub-graph"},
                    [&] { static_cast<void>(run(m, inputs)); });
  m = branching(one("Abs", {"x"}, "t"), one("Neg", {"x"}, "e"));
  m.inputs[0].has_shape = false;
  check_graph_error(error_kind::bad_file, {"If of y", "condition", "bool [2]"}, [&] {
    static_cast<void>(
        run(m, {{"condition", test::make_tensor<std::uint8_t>(element_type::boolean, {2}, {1, 0})},
                {"x", inputs.at("x")}}));
  });

  const tensors counted{{"count", integer(5)}, {"go", boolean(true)}, {"start", scalar(1.0F)}};
  const auto check_loop = [&](std::initializer_list<std::string_view> words, const auto& change,
                              graph::executor_options options = {}) {
    model loop = doubling();
    change(loop);
    check_graph_error(error_kind::bad_file, words,
                      [&] { static_cast<void>(run(loop, counted, options)); });
  };
  const auto in_body = [](model& loop, const auto& change) {
    graph::change_bodies(loop.nodes[0], change);
  };
  check_loop({"Loop of last", "body has 2 outputs, expected 3"}, [&](model& loop) {
    in_body(loop, [](graph_body& body) { body.outputs.pop_back(); });
  });
  check_loop({"Loop of last", "body has 4 inputs, expected 3"}, [&](model& loop) {
    in_body(loop, [](graph_body& body) { body.inputs.push_back(declared("more")); });
  });
  check_loop({"Loop of last", "1 inputs"}, [](model& loop) { loop.nodes[0].inputs.resize(1); });
  check_loop(
      {"Loop of last", "'as_integer' is int64 after iteration 0", "float32"}, [&](model& loop) {
        in_body(loop, [](graph_body& body) {
          body.nodes.push_back(make_node("Cast", {"next"}, {"as_integer"}, {{"to", number(7)}}));
          body.outputs[1] = declared("as_integer", element_type::s64);
        });
      });
  check_loop({"Loop of last", "condition that its body makes is float32"}, [&](model& loop) {
    in_body(loop, [](graph_body& body) { body.outputs[0].name = "next"; });
  });
  check_loop({"Loop of last", "trip count is bool"},
             [](model& loop) { loop.nodes[0].inputs[0] = "go"; });
  check_loop({"Loop of last", "output 1 is float32 [4] in iteration 1, before it was float32 [2]"},
             [&](model& loop) {
               in_body(loop, [](graph_body& body) {
                 body.nodes = {
                     make_node("Reshape", {"v", "as_row"}, {"flat"}),
                     make_node("Concat", {"flat", "flat"}, {"next"}, {{"axis", number(0)}}),
                     make_node("Identity", {"goes"}, {"small"}),
                     make_node("Identity", {"next"}, {"seen"})};
                 body.initializers["as_row"] =
                     test::make_tensor<std::int64_t>(element_type::s64, {1}, {-1});
               });
             });
  graph::executor_options small;
  small.max_iterations = 3;
  check_loop(
      {"Loop of last", "begins iteration 4", "limit is 3"}, [](model&) {}, small);
  small = {};
  small.max_tensor_bytes = 8;
  check_loop(
      {"Loop of last", "'all'", "8 bytes"}, [](model&) {}, small);
}

TEST_CASE("Loop: one that would never end is an error at once") {
  const tensors inputs{{"count", integer(5)}, {"go", boolean(true)}, {"start", scalar(1.0F)}};
  const auto endless = [](std::vector<std::string> loop_inputs, const auto& change) {
    model m = doubling(std::move(loop_inputs));
    graph::change_bodies(m.nodes[0], change);
    return m;
  };
  const auto passed_on = [](graph_body& body) {
    body.nodes.push_back(make_node("Identity", {"goes"}, {"once"}));
    body.nodes.push_back(make_node("Identity", {"once"}, {"still"}));
    body.outputs[0].name = "still";
  };
  const auto always = [](graph_body& body) {
    body.initializers["always"] = boolean(true);
    body.outputs[0].name = "always";
  };
  const auto made_true = [](graph_body& body) {
    attribute value;
    value.kind = attribute::kind_type::t;
    value.t = boolean(true);
    body.nodes.push_back(make_node("Constant", {}, {"constant"}, {{"value", value}}));
    body.outputs[0].name = "constant";
  };
  const auto check = [&](const model& m) {
    check_graph_error(error_kind::bad_file, {"Loop of last", "would never end"},
                      [&] { static_cast<void>(run(m, inputs)); });
  };
  for (const char* condition : {"", "go"}) {
    check(endless({"", condition, "start"}, passed_on));
    check(endless({"", condition, "start"}, always));
    check(endless({"", condition, "start"}, made_true));
  }
  // A condition that is false at once, and a constant false, end.
  CHECK(run(endless({"", "go", "start"}, passed_on),
            {{"count", integer(5)}, {"go", boolean(false)}, {"start", scalar(1.0F)}})[1]
            .count() == 0);
  CHECK(run(endless({"", "", "start"},
                    [](graph_body& body) {
                      body.initializers["never"] = boolean(false);
                      body.outputs[0].name = "never";
                    }),
            inputs)[1]
            .count() == 1);
}

TEST_CASE("sub-graphs: operators in them that are not supported are named") {
  const model m = nested(3);
  CHECK(graph::unsupported_nodes(m).empty());
  model odd = branching(
      make_body({},
                {if_node("condition", one("Oracle", {"x"}, "o"), one("Abs", {"x"}, "a"), {"t"})},
                {declared("t")}),
      one("Mystery", {"x"}, "e"));
  CHECK(
      graph::unsupported_nodes(odd) ==
      std::vector<std::string>{
          "Mystery node 'Mystery of e' in else_branch of If node 'If of y'",
          "Oracle node 'Oracle of o' in then_branch of If node 'If of t' in then_branch of If node "
          "'If of y'"});
  check_graph_error(error_kind::unsupported, {"Mystery of e", "else_branch", "1 more"},
                    [&] { static_cast<void>(graph::executor(odd)); });
}

// ------------------------------------------------------------------------------ shapes and passes

TEST_CASE("sub-graphs: shapes that follow from them") {
  const graph_body same = one("Neg", {"x"}, "e");
  const auto known = [](const model& m) { return graph::infer_shapes(m); };
  CHECK(known(branching(one("Abs", {"x"}, "t"), same)).at("y").dims() == shape{2, 2});
  const graph_body other = one("ReduceSum", {"x"}, "t", {{"keepdims", number(0)}});
  CHECK(known(branching(other, same)).count("y") == 0);
  // Where the condition is known, one branch counts; an error in the other is none.
  model m = branching(other, one("MatMul", {"x", "k"}, "e"));
  m.initializers["k"] = floats({5, 5}, std::vector<float>(25));
  m.inputs.erase(m.inputs.begin());
  m.initializers["condition"] = boolean(true);
  CHECK(known(m).at("y").dims().empty());
  // Elements are known as well, where they take little to compute.
  const auto of_zeros = [](std::int64_t count) {
    model zeros = branching(
        make_body({},
                  {make_node("ConstantOfShape", {"size"}, {"z"}),
                   make_node("ReduceSum", {"z"}, {"sum"}, {{"keepdims", number(0)}})},
                  {declared("sum")},
                  {{"size", test::make_tensor<std::int64_t>(element_type::s64, {1}, {count})}}),
        one("Neg", {"x"}, "e"));
    zeros.inputs.clear();
    zeros.initializers["condition"] = boolean(true);
    zeros.initializers["x"] = scalar(1.0F);
    return zeros;
  };
  CHECK(known(of_zeros(100)).at("y").has_data());
  CHECK(known(of_zeros(1 << 26)).at("y").dims().empty());
  CHECK(!known(of_zeros(1 << 26)).at("y").has_data());
  // What a body makes is not a value of the model.
  CHECK(known(m).count("t") == 0);

  const model loop = doubling();
  CHECK(known(loop).at("last").dims().empty());
  CHECK(known(loop).count("all") == 0);  // as long as it runs
  model grows = loop;
  graph::change_bodies(grows.nodes[0], [](graph_body& body) {
    body.nodes.push_back(make_node("Reshape", {"next", "flat"}, {"row"}));
    body.nodes.push_back(make_node("Concat", {"row", "row"}, {"longer"}, {{"axis", number(0)}}));
    body.initializers["flat"] = test::make_tensor<std::int64_t>(element_type::s64, {1}, {-1});
    body.outputs[1].name = "longer";
  });
  CHECK(known(grows).count("last") == 0);
}

TEST_CASE("sub-graphs: an If that sizes decide tells no rank if the sizes are open") {
  // `special`: the number of rows for which the matrix becomes three-dimensional. `of`: the axis
  // whose length is compared with it.
  const auto choosing = [](std::int64_t special, std::int64_t of, bool is_nested) {
    model_builder b;
    b.input("x", {-1, 2});
    b.constant("of", integer(of));
    b.constant("special", integer(special));
    b.constant("axis", {0});
    const std::string size = b.add("Gather", {b.add("Shape", {b.add("Neg", {"x"})}), "of"});
    const std::string condition = b.add("Equal", {size, "special"});
    const graph_body yes = one("Unsqueeze", {"x", "axis"}, "t");
    const graph_body no = one("Identity", {"x"}, "e");
    node choice = if_node(condition, yes, no, {"y"});
    if (is_nested) {
      // The condition is made in the sub-graph.
      b.constant("go", boolean(true));
      const graph_body around = make_body(
          {},
          {make_node("Shape", {"x"}, {"sizes"}), make_node("Gather", {"sizes", "of"}, {"size"}),
           make_node("Equal", {"size", "special"}, {"is_special"}),
           if_node("is_special", yes, no, {"d"})},
          {declared("d")});
      choice = if_node("go", around, one("Abs", {"x"}, "a"), {"y"});
    }
    b.get().nodes.push_back(choice);
    const std::string rank_of_y = b.add("Neg", {"y"});
    b.output(rank_of_y);
    return graph::value_shapes(b.get()).rank(rank_of_y);
  };
  for (const bool is_nested : {false, true}) {
    CHECK_FALSE(choosing(1, 0, is_nested).has_value());
    CHECK_FALSE(choosing(7, 0, is_nested).has_value());  // a size that is not tried
  }
  // A length that is not open decides.
  CHECK(choosing(2, 1, false) == std::size_t{3});
  CHECK(choosing(7, 1, false) == std::size_t{2});

  // Branches that agree tell the rank, whatever decides.
  model_builder b;
  b.input("x", {-1, 2});
  b.constant("seven", integer(7));
  const std::string size = b.add("ReduceProd", {b.add("Shape", {"x"})}, {{"keepdims", number(0)}});
  b.get().nodes.push_back(if_node(b.add("Equal", {size, "seven"}), one("Neg", {"x"}, "t"),
                                  one("Abs", {"x"}, "e"), {"y"}));
  b.output("y");
  CHECK(graph::value_shapes(b.get()).dims("y") == shape{-1, 2});
}

TEST_CASE("sub-graphs: constants are folded through If, not through Loop") {
  model m = branching(one("Mul", {"k", "k"}, "t"), one("Neg", {"k"}, "e"));
  m.inputs.erase(m.inputs.begin());
  m.initializers["condition"] = boolean(true);
  m.initializers["k"] = floats({2}, {3, 5});
  m.nodes.push_back(make_node("Add", {"x", "y"}, {"z"}));
  m.outputs = {declared("z")};
  model folded = m;
  graph::fold_constants(folded, false);
  REQUIRE(folded.nodes.size() == 1);
  check_floats(folded.initializers.at("y"), {2}, {9, 25});

  // Not where a branch captures what is not constant.
  m = branching(one("Mul", {"x", "x"}, "t"), one("Neg", {"x"}, "e"));
  m.inputs.erase(m.inputs.begin());
  m.initializers["condition"] = boolean(true);
  folded = m;
  graph::fold_constants(folded, false);
  CHECK(folded.nodes.size() == 1);

  model loop = doubling();
  loop.inputs.clear();
  loop.initializers["count"] = integer(std::int64_t{1} << 40);
  loop.initializers["go"] = boolean(true);
  loop.initializers["start"] = scalar(1.0F);
  loop.nodes.push_back(make_node("Neg", {"last"}, {"minus"}));
  loop.outputs = {declared("minus")};
  folded = loop;
  graph::fold_constants(folded, false);
  CHECK(folded.nodes.size() == 2);
  CHECK(graph::infer_shapes(loop).at("minus").dims().empty());
}

TEST_CASE("sub-graphs: what they capture is neither removed, nor renamed away, nor merged") {
  test::random_source r(21);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("condition", {}, element_type::boolean);
  b.input("x", {1, 2, 4, 4});
  const std::string c =
      b.add("Conv", {"x", b.constant("w", test::random_floats(r, {3, 2, 1, 1}, -1.0F, 1.0F))});
  b.constant("ones", floats({3}, {1.5F, -1.0F, 0.5F}));
  b.constant("zeros", floats({3}, {0.1F, 0.2F, 0.3F}));
  const std::string n = b.add("BatchNormalization", {c, "ones", "zeros", "zeros", "ones"});
  const std::string relu = b.add("Relu", {n});
  const std::string same = b.add("Identity", {relu});
  const std::string only_captured = b.add("Neg", {"x"});
  b.output(relu);
  b.get().initializers["ones"] = floats({3}, {1.5F, 1.0F, 0.5F});
  // The middle sub-graph captures all of them, the innermost one hides the name of the Relu.
  const graph_body innermost = make_body({}, {make_node("Mul", {same, relu}, {"hidden_use"})},
                                         {declared("hidden_use")}, {{relu, scalar(2.0F)}});
  const graph_body yes =
      make_body({},
                {if_node("condition", innermost, one("Abs", {same}, "a"), {"chosen"}),
                 make_node("Add", {c, n}, {"sum"}), make_node("Add", {"sum", "chosen"}, {"sums"}),
                 make_node("ReduceSum", {"w"}, {"weights"}, {{"keepdims", number(0)}}),
                 make_node("ReduceSum", {only_captured}, {"dead"}, {{"keepdims", number(0)}}),
                 make_node("Sum", {"sums", "weights", "dead"}, {"t"})},
                {declared("t")});
  b.get().nodes.push_back(if_node("condition", yes, one("Neg", {same}, "e"), {"y"}));
  b.output("y");
  const model m = b.get();
  for (const bool condition : {true, false}) {
    const tensors inputs{{"condition", boolean(condition)},
                         {"x", test::random_floats(r, {1, 2, 4, 4}, -1.0F, 1.0F)}};
    const std::vector<tensor> expected = run(m, inputs);
    const auto check = [&](const model& changed) {
      const std::vector<tensor> actual = run(changed, inputs);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(actual[i].dims() == expected[i].dims());
        CHECK(noise(expected[i], actual[i]) < 1e-10);
      }
    };
    model changed = m;
    graph::simplify(changed);
    CHECK(graph::links(changed).producer(c) != graph::links::none);
    CHECK(graph::links(changed).producer(only_captured) != graph::links::none);
    graph::sort_and_check(changed);
    check(changed);
    check(graph::for_execution(m));
    changed = m;
    graph::fuse_activations(changed);
    check(changed);
  }
}

TEST_CASE("sub-graphs: removing an Identity renames what they capture") {
  const auto with = [](std::map<std::string, tensor> own) {
    model_builder b;
    b.input("condition", {}, element_type::boolean);
    b.input("x", {2, 2});
    const std::string before = b.add("Abs", {"x"});
    const std::string same = b.add("Identity", {before});
    std::vector<node> nodes{make_node("Neg", {same}, {"t"})};
    if (!own.empty()) {
      nodes = {make_node("Mul", {same, before}, {"t"})};
    }
    const graph_body deep = make_body({}, std::move(nodes), {declared("t")}, std::move(own));
    const graph_body yes =
        make_body({}, {if_node("condition", deep, one("Exp", {"x"}, "f"), {"d"})}, {declared("d")});
    b.get().nodes.push_back(if_node("condition", yes, one("Neg", {"x"}, "e"), {"y"}));
    b.output("y");
    return b.get();
  };
  model m = with({});
  graph::remove_no_ops(m);
  CHECK(m.nodes.size() == 2);
  CHECK(graph::captured_values(m.nodes[1]) == names{"Abs_0_out", "condition", "x"});
  const tensors inputs{{"condition", boolean(true)}, {"x", floats({2, 2}, {1, -2, 3, -4})}};
  check_floats(run(m, inputs)[0], {2, 2}, {-1, -2, -3, -4});

  // The innermost sub-graph has a value of its own that is called as the Identity's input.
  m = with({{"Abs_0_out", scalar(10.0F)}});
  graph::remove_no_ops(m);
  CHECK(m.nodes.size() == 3);
  check_floats(run(m, inputs)[0], {2, 2}, {10, 20, 30, 40});

  // An Identity that makes an output of the model: its input takes over the name.
  model_builder b;
  b.input("condition", {}, element_type::boolean);
  b.input("x", {2, 2});
  const std::string absolute = b.add("Abs", {"x"});
  const std::string result = b.add("Identity", {absolute});
  b.get().nodes.push_back(
      if_node("condition", one("Neg", {absolute}, "n"), one("Exp", {"x"}, "f"), {"y"}));
  b.output(result);
  b.output("y");
  model renamed = b.get();
  graph::remove_no_ops(renamed);
  CHECK(renamed.nodes.size() == 2);
  CHECK(graph::captured_values(renamed.nodes[1]) == names{result, "x"});
  check_floats(run(renamed, inputs)[1], {2, 2}, {-1, -2, -3, -4});

  // New names are none that a sub-graph has.
  CHECK(graph::unused_names(m).take("t") == "t_2");
}

TEST_CASE("sub-graphs: equalization leaves them the constants that they capture") {
  test::random_source r(22);
  model_builder b;
  b.input("condition", {}, element_type::boolean);
  b.input("x", {1, 2, 4, 4});
  const tensor w = test::random_floats(r, {3, 2, 1, 1}, -1.0F, 1.0F);
  tensor large = test::random_floats(r, {2, 3, 1, 1}, 20.0F, 30.0F);
  const std::string a = b.add("Relu", {b.add("Conv", {"x", b.constant("w", w)})});
  const std::string out = b.add("Conv", {a, b.constant("large", large)});
  b.output(out);
  b.get().nodes.push_back(
      if_node("condition", one("Neg", {"w"}, "t"), one("Abs", {"large"}, "e"), {"y"}));
  b.output("y");
  model m = b.get();
  static_cast<void>(graph::equalize(m));
  const graph::links l(m);
  CHECK(m.nodes[l.producer(out)].inputs[1] != "large");  // it has been equalized
  for (const auto& [name, before] : {std::pair("w", w), std::pair("large", large)}) {
    CHECK(test::difference(m.initializers.at(name).data<float>(), before.data<float>()) == "");
  }
}

TEST_CASE("sub-graphs: opset upgrades reach them") {
  model_builder b(11);
  b.input("condition", {}, element_type::boolean);
  b.input("x", {2, 3, 2});
  const graph_body yes = make_body({},
                                   {make_node("Softmax", {"x"}, {"s"}),
                                    make_node("Unsqueeze", {"s"}, {"u"}, {{"axes", list({0})}}),
                                    make_node("Squeeze", {"u"}, {"t"}, {{"axes", list({0})}})},
                                   {declared("t")});
  const graph_body no =
      make_body({},
                {if_node("condition", one("Abs", {"x"}, "a"),
                         one("ReduceSum", {"x"}, "sum", {{"axes", list({1})}}), {"e"})},
                {declared("e")});
  b.get().nodes.push_back(if_node("condition", yes, no, {"y"}));
  b.output("y");
  model upgraded = b.get();
  graph::upgrade_opset(upgraded);
  CHECK(upgraded.opset() == 13);
  graph::sort_and_check(upgraded);
  test::random_source r(23);
  for (const bool condition : {true, false}) {
    const tensors inputs{{"condition", boolean(condition)},
                         {"x", test::random_floats(r, {2, 3, 2}, -2.0F, 2.0F)}};
    const tensor before = run(b.get(), inputs)[0];
    const tensor after = run(upgraded, inputs)[0];
    CHECK(after.dims() == before.dims());
    CHECK(test::difference(after.data<float>(), before.data<float>()) == "");
  }
}

// ----------------------------------------------------------------------------------- quantization

namespace {

/// Two layers; sub-graphs capture the result of the first one, the input, and the weights, and the
/// second layer takes what an If makes. `loops`: a Loop is behind it.
model network(test::random_source& r) {
  model_builder b;
  b.input("condition", {}, element_type::boolean);
  b.input("x", {4, 16});
  b.constant("w1", test::random_floats(r, {16, 16}, -0.5F, 0.5F));
  b.constant("b1", test::random_floats(r, {16}, -0.5F, 0.5F));
  b.constant("w2", test::random_floats(r, {16, 8}, -0.5F, 0.5F));
  const std::string hidden = b.add("Relu", {b.add("Gemm", {"x", "w1", "b1"})});
  const graph_body yes = make_body(
      {},
      {make_node("MatMul", {hidden, "w1"}, {"product"}), make_node("Add", {"product", "x"}, {"t"})},
      {declared("t", element_type::f32, {4, 16})});
  b.get().nodes.push_back(if_node("condition", yes, one("Sub", {hidden, "x"}, "e"), {"chosen"}));
  const std::string y = b.add("MatMul", {"chosen", "w2"});
  b.output(y);
  const graph_body body = make_body(
      {declared("i", element_type::s64), declared("goes", element_type::boolean), declared("v")},
      {make_node("Tanh", {y}, {"bent"}), make_node("Add", {"v", "bent"}, {"next"}),
       make_node("Identity", {"goes"}, {"still"})},
      {declared("still", element_type::boolean), declared("next")});
  b.constant("three", integer(3));
  b.get().nodes.push_back(loop_node({"three", "", y}, body, {"last"}));
  b.output("last");
  return b.get();
}

std::vector<test::sample> network_samples(test::random_source& r, std::size_t count) {
  std::vector<test::sample> samples;
  for (std::size_t i = 0; i < count; ++i) {
    samples.push_back(
        {{"condition", boolean(i % 2 == 0)}, {"x", test::random_floats(r, {4, 16}, -1.0F, 1.0F)}});
  }
  return samples;
}

void check_close(const model& expected, const model& actual,
                 const std::vector<test::sample>& samples, double limit) {
  graph::executor a(expected);
  graph::executor b(actual);
  for (const test::sample& s : samples) {
    const std::vector<tensor> e = a.run(s);
    const std::vector<tensor> q = b.run(s);
    REQUIRE(e.size() == q.size());
    for (std::size_t i = 0; i < e.size(); ++i) {
      CHECK(e[i].dims() == q[i].dims());
      CHECK(noise(e[i], q[i]) < limit);
    }
  }
}

std::size_t count_of(const model& m, const std::string& type) {
  return static_cast<std::size_t>(std::count_if(m.nodes.begin(), m.nodes.end(),
                                                [&](const node& n) { return n.op_type == type; }));
}

void check_float_bodies(const model& m) {
  for (const node& n : m.nodes) {
    graph::for_each_body(n, [](const std::string&, const graph_body& body) {
      for (const node& within : body.nodes) {
        CHECK(within.op_type.find("Quantize") == std::string::npos);
        CHECK(within.op_type.find("Integer") == std::string::npos);
      }
    });
  }
}

}  // namespace

TEST_CASE("sub-graphs: static quantization around them") {
  test::random_source r(31);
  INFO("seed ", r.seed());
  const model m = network(r);
  const std::vector<test::sample> samples = network_samples(r, 8);
  const model q = graph::static_quantization(m, test::samples_source(samples)).result;
  check_float_bodies(q);
  CHECK(count_of(q, "QuantizeLinear") == 3);
  // They take what they capture in float, and the weights as they were: the layer has integers of
  // its own.
  const names captured = graph::captured_values(body_of(q, "chosen"));
  CHECK(captured.count("w1") == 1);
  CHECK(captured.count("Relu_1_out") == 1);
  CHECK(q.initializers.count("w1") == 1);
  CHECK(q.initializers.count("w1_quantized") == 1);
  check_close(m, q, samples, 1e-3);
  check_close(m, graph::for_execution(q), samples, 1e-3);
  // What is written is read and runs the same.
  const model again = graph::parse_onnx(graph::to_onnx(q), ".");
  check_close(q, again, samples, 1e-12);
  // An output of the model has its name behind the pair, and that is what the loop captures.
  CHECK(graph::captured_values(body_of(q, "last", "body")).count(m.outputs[0].name) == 1);
  model with_hidden = m;
  with_hidden.outputs.push_back(declared("Relu_1_out"));
  const model more = graph::static_quantization(with_hidden, test::samples_source(samples)).result;
  CHECK(graph::captured_values(body_of(more, "chosen")).count("Relu_1_out") == 1);
  CHECK(more.nodes[graph::links(more).producer("Relu_1_out")].op_type == "DequantizeLinear");
  check_close(with_hidden, more, samples, 1e-3);
  check_close(with_hidden, graph::for_execution(more), samples, 1e-3);
  // The layer whose result they capture still runs on integers.
  const model lowered = graph::for_execution(q);
  CHECK(count_of(lowered, "QLinearGemm") == 2);
}

TEST_CASE("sub-graphs: dynamic and weight-only quantization around them") {
  test::random_source r(32);
  INFO("seed ", r.seed());
  const model m = network(r);
  const std::vector<test::sample> samples = network_samples(r, 6);
  const model dynamic = graph::quantize_dynamic(m);
  check_float_bodies(dynamic);
  CHECK(count_of(dynamic, "MatMulInteger") == 2);
  check_close(m, dynamic, samples, 1e-3);
  check_close(m, graph::for_execution(graph::parse_onnx(graph::to_onnx(dynamic), ".")), samples,
              1e-3);
  for (const auto algorithm :
       {graph::weight_only_algorithm::rtn, graph::weight_only_algorithm::awq}) {
    graph::weight_only_options options;
    options.algorithm = algorithm;
    options.bits = 8;
    options.block_size = 16;
    const model few = graph::quantize_weights_only(m, options, test::samples_source(samples));
    check_float_bodies(few);
    CHECK(count_of(few, "MatMulNBits") == 2);
    CHECK(few.initializers.count("w1") == 1);  // captured
    CHECK(few.initializers.count("w2") == 0);
    check_close(m, few, samples, 1e-3);
    check_close(m, graph::parse_onnx(graph::to_onnx(few), "."), samples, 1e-3);
  }
}

TEST_CASE("sub-graphs: PPQ's system around them") {
  test::random_source r(33);
  INFO("seed ", r.seed());
  model m = network(r);
  m.outputs.push_back(declared("Relu_1_out"));
  const std::vector<test::sample> samples = network_samples(r, 8);
  graph::ppq::quantized_graph g =
      graph::ppq::make_quantized_graph(m, graph::ppq::find_platform("onnxruntime"));
  graph::ppq::pass_context context{test::samples_source(samples), {}};
  graph::ppq::run_pipeline(g, graph::ppq::default_pipeline(), context);
  const model q = graph::ppq::to_qdq(g);
  check_float_bodies(q);
  CHECK(count_of(q, "QuantizeLinear") >= 2);
  CHECK(q.initializers.count("w1") == 1);
  check_close(m, q, samples, 2e-3);
  check_close(m, graph::for_execution(graph::parse_onnx(graph::to_onnx(q), ".")), samples, 2e-3);
}

TEST_CASE("scan: sequences of different lengths") {
  model_builder b;
  b.input("x", {3, 2});
  b.input("y", {2, 2});
  graph_body body = make_body({declared("first"), declared("second")},
                              {make_node("Add", {"first", "second"}, {"sum"})}, {declared("sum")});
  b.get().nodes.push_back(
      make_node("Scan", {"x", "y"}, {"sums"},
                {{"body", attribute::of(body)}, {"num_scan_inputs", number(2)}}));
  b.output("sums");
  check_graph_error(error_kind::bad_file, {"sequence 1 has 2 parts, the first one 3"}, [&] {
    static_cast<void>(run(b.get(), {{"x", floats({3, 2}, std::vector<float>(6, 1.0F))},
                                    {"y", floats({2, 2}, std::vector<float>(4, 1.0F))}}));
  });
}
