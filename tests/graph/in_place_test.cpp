// SPDX-License-Identifier: BSD-3-Clause
// Operators write their result into the memory of an input that nothing else needs.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/ops/layout.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "recorded_models.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

/// An operator that copies its input to new memory, so that the operator behind it has an input
/// that nothing else needs. With channels_last = 1 the copy of an image is in that order.
void infer_copy(graph::operator_context& c) {
  graph::infer_like_input(c);
  c.outputs[0].set_channels_last(c.n().get_int("channels_last", 0) != 0 && c.input(0).rank() > 2 &&
                                 !graph::has_one_order(c.input(0).dims()));
}
void run_copy(graph::operator_context& c) {
  const bool last = c.outputs[0].channels_last();
  const tensor from = last ? graph::to_channels_last(c.input(0)) : c.input(0);
  tensor& to = c.make_output(0);
  if (to.bytes() > 0) {
    std::memcpy(to.mutable_raw(), from.raw(), to.bytes());
  }
}

const graph::operator_registry& operators_and_copy() {
  static const graph::operator_registry registry = [] {
    graph::operator_registry all = graph::default_operators();
    all.add({"test", "Copy", 1, 1, graph::layout_support::plain, &infer_copy, &run_copy});
    return all;
  }();
  return registry;
}

/// The model with a Copy behind each input.
graph::model with_copies(graph::model m, bool channels_last) {
  std::vector<graph::node> copies;
  for (graph::value_info& v : m.inputs) {
    graph::node n;
    n.domain = "test";
    n.op_type = "Copy";
    n.name = "copy of " + v.name;
    n.inputs = {"given " + v.name};
    n.outputs = {v.name};
    n.attributes["channels_last"] = number(channels_last ? 1 : 0);
    copies.push_back(std::move(n));
    v.name = "given " + v.name;
  }
  m.opsets["test"] = 1;
  m.nodes.insert(m.nodes.begin(), copies.begin(), copies.end());
  return m;
}

bool same_bytes(const tensor& a, const tensor& b) {
  return a.type() == b.type() && a.dims() == b.dims() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

/// Runs a model twice, and returns the operators of the nodes whose result is at the address of an
/// input. The observer of the run keeps nothing.
std::multiset<std::string> operators_in_place(graph::executor& e, const tensors& inputs) {
  static_cast<void>(e.run(inputs));
  std::map<std::string, const void*> place;
  static_cast<void>(e.run(
      inputs, [&](const std::string& name, const tensor& value) { place[name] = value.raw(); }));
  std::multiset<std::string> operators;
  for (const graph::node& n : e.graph_model().nodes) {
    for (const std::string& in : n.inputs) {
      const auto from = place.find(in);
      if (from != place.end() && from->second == place.at(n.outputs[0])) {
        operators.insert(n.op_type);
      }
    }
  }
  return operators;
}

}  // namespace

TEST_CASE("in place: every recorded operator computes the same over its inputs") {
  std::multiset<std::string> in_place;
  const std::size_t models =
      for_each_recorded_model(DETENT_TEST_RECORDED_OPERATORS, [&](graph::model m) {
        INFO(m.producer_name);
        const tensors given = take_constants(m, "given/");
        static_cast<void>(take_constants(m, "expected/"));
        tensors renamed;
        for (const auto& [name, value] : given) {
          renamed["given " + name] = value;
        }
        for (const bool prepared : {false, true}) {
          const graph::model plain = prepared ? graph::for_execution(m) : m;
          const std::vector<tensor> expected = outputs_of(plain, given);
          for (const bool channels_last : {false, true}) {
            INFO(prepared, " ", channels_last);
            graph::executor e(with_copies(plain, channels_last), {}, operators_and_copy());
            in_place.merge(operators_in_place(e, renamed));
            const std::vector<tensor> outputs = e.run(renamed);
            for (std::size_t i = 0; i < expected.size(); ++i) {
              INFO(plain.outputs[i].name);
              CHECK(same_bytes(outputs[i], expected[i]));
            }
          }
        }
      });
  CHECK(models > 1000);
  for (const char* name :
       {"Relu", "Neg", "Exp", "Add", "Sub", "Mul", "Div", "Clip", "Where", "PRelu",

        "Softmax", "LogSoftmax", "BatchNormalization", "InstanceNormalization",
        "LayerNormalization", "RMSNormalization", "BitwiseNot", "QLinearAdd", "QLinearSigmoid"}) {
    INFO(std::string(name));
    CHECK(in_place.count(name) > 0);
  }
}

TEST_CASE("in place: values that are needed again stay") {
  model_builder b;
  b.input("x", {2, 300});
  const std::string y = b.add("Sigmoid", {"x"});
  const std::string minus = b.add("Neg", {y});              // y is needed below
  const std::string square = b.add("Mul", {minus, minus});  // the same input twice
  const std::string sum = b.add("Add", {y, square});
  const std::string twice = b.add("Add", {sum, sum});
  b.output(b.add("Relu", {twice}));
  b.output(sum);  // outputs of the model are never written over
  random_source r(3);
  const tensor x = random_floats(r, {2, 300}, -4.0F, 4.0F);
  const std::vector<float> before = values_of<float>(x);
  const std::vector<float> sigmoid = value_of(b.get(), y, {{"x", x}});

  graph::executor e(b.get());
  for (int k = 0; k < 3; ++k) {
    const std::vector<tensor> outputs = e.run({{"x", x}});
    for (std::size_t i = 0; i < before.size(); ++i) {
      const float expected = sigmoid[i] + sigmoid[i] * sigmoid[i];
      CHECK(outputs[1].data<float>()[i] == expected);
      CHECK(outputs[0].data<float>()[i] == expected + expected);
    }
    CHECK(values_of<float>(x) == before);
  }
}

TEST_CASE("in place: what an observer keeps stays") {
  model_builder b;
  b.input("x", {1000});
  std::string value = b.add("Sigmoid", {"x"});
  for (int i = 0; i < 5; ++i) {
    value = b.add(i % 2 == 0 ? "Neg" : "Exp", {value});
  }
  b.output(value);
  random_source r(4);
  const tensor x = random_floats(r, {1000}, -1.0F, 1.0F);
  graph::executor e(b.get());
  std::map<std::string, tensor> kept;
  std::map<std::string, std::vector<float>> copied;
  static_cast<void>(e.run({{"x", x}}, [&](const std::string& name, const tensor& t) {
    kept[name] = t;
    copied[name] = values_of<float>(t);
  }));
  CHECK(kept.size() == 7);
  for (const auto& entry : kept) {  // clang 14 lets no lambda, as INFO is, use a structured binding
    INFO(entry.first);
    CHECK(values_of<float>(entry.second) == copied[entry.first]);
  }
}

TEST_CASE("in place: a chain of elementwise operators needs one buffer") {
  constexpr std::int64_t count = 1 << 18;  // 1 MiB of floats
  model_builder b;
  b.input("x", {1, count});
  b.constant("c", floats({1, 1}, {0.5F}));
  std::string value = b.add("Add", {"x", "c"});
  for (const char* op : {"Relu", "Sigmoid", "Neg", "Exp", "Tanh", "Abs"}) {
    value = b.add(op, {value});
  }
  value = b.add("Mul", {value, "c"});
  value = b.add("Softmax", {value});
  b.output(b.add("Add", {"c", value}));
  random_source r(5);
  const tensor x = random_floats(r, {1, count}, -4.0F, 4.0F);

  graph::executor_options options;
  options.max_memory_bytes = (std::size_t{1} << 20U) + (std::size_t{1} << 17U);
  graph::executor e(b.get(), options);
  CHECK(same_bytes(e.run({{"x", x}})[0], outputs_of(b.get(), {{"x", x}})[0]));
  CHECK(operators_in_place(e, {{"x", x}}).size() == 9);

  // Where two values live at the same time, the limit is exceeded.
  b.output(b.add("Neg", {value}));
  graph::executor two(b.get(), options);
  check_graph_error(error_kind::bad_file, {"limit"}, [&] {
    static_cast<void>(two.run({{"x", x}}));
  });
}

TEST_CASE("in place: a residual becomes the sum") {
  model_builder b;
  b.input("x", {1, 16, 12, 12});
  random_source r(6);
  b.constant("w", random_floats(r, {16, 16, 3, 3}, -0.2F, 0.2F));
  const attributes same = {{"pads", list({1, 1, 1, 1})}};
  const std::string start = b.add("Conv", {"x", "w"}, same);
  const std::string inner = b.add("Relu", {b.add("Conv", {start, "w"}, same)});
  const std::string sum = b.add("Add", {b.add("Conv", {inner, "w"}, same), start});
  b.output(b.add("Relu", {sum}));
  const tensor x = random_floats(r, {1, 16, 12, 12}, -1.0F, 1.0F);
  graph::executor e(graph::for_execution(b.get()));
  REQUIRE(e.graph_model().nodes.size() == 3);  // the sum is part of the last convolution
  CHECK(operators_in_place(e, {{"x", x}}).size() == 1);
  // The same sums where the residual is needed again.
  b.output(start);
  graph::executor apart(graph::for_execution(b.get()));
  CHECK(operators_in_place(apart, {{"x", x}}).size() == 0);
  CHECK(same_bytes(e.run({{"x", x}})[0], apart.run({{"x", x}})[0]));
}
