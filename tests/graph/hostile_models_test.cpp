// SPDX-License-Identifier: BSD-3-Clause
// Models that no tool would write: each must be an error that names the node, never a crash.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"

namespace {

using namespace test;
using detent::error_kind;
using graph::element_type;

/// A model of one node. `constants`: the values of its inputs, undefined ones being absent.
graph::model one_node(const graph::operator_definition& d, std::int64_t opset,
                      const std::vector<tensor>& constants, std::size_t outputs) {
  graph::model m;
  m.opsets = {{"", opset}, {std::string(d.domain), d.domain.empty() ? opset : 1}};
  graph::node n;
  n.name = "odd";
  n.op_type = d.name;
  n.domain = d.domain;
  for (std::size_t i = 0; i < constants.size(); ++i) {
    std::string name;
    if (constants[i].defined()) {
      name = "input" + std::to_string(i);
      m.initializers[name] = constants[i];
    }
    n.inputs.push_back(name);
  }
  for (std::size_t i = 0; i < outputs; ++i) {
    n.outputs.push_back("output" + std::to_string(i));
    graph::value_info v;
    v.name = n.outputs.back();
    m.outputs.push_back(v);
  }
  m.nodes.push_back(std::move(n));
  return m;
}

/// Infers and runs; what is thrown must be a detent::error of one line.
void check_harmless(const graph::model& m) {
  const auto attempt = [&](const char* what, const auto& f) {
    try {
      f();
    } catch (const detent::error& e) {
      CHECK(std::string_view(e.what()).find('\n') == std::string_view::npos);
    } catch (const std::exception& e) {
      FAIL_CHECK(what, ": ", e.what());
    } catch (...) {
      FAIL_CHECK(what, ": an exception of another kind");
    }
  };
  attempt("infer", [&] { static_cast<void>(graph::infer_shapes(m)); });
  attempt("run", [&] {
    graph::executor_options options;
    options.max_tensor_bytes = std::size_t{1} << 20U;
    graph::executor runner(m, options);
    static_cast<void>(runner.run({}));
  });
}

tensor filled(element_type type, graph::shape dims, unsigned char byte) {
  tensor t = tensor::allocate(type, std::move(dims));
  for (std::size_t i = 0; i < t.bytes(); ++i) {
    t.mutable_raw()[i] = static_cast<std::byte>(byte);
  }
  return t;
}

}  // namespace

TEST_CASE(
    "hostile: every operator with inputs of any type, shape and number, and without outputs") {
  const std::vector<std::pair<const char*, tensor>> values = {
      {"absent", tensor()},
      {"string", tensor(element_type::string, {2})},
      {"scalar", floats({}, {2.0F})},
      {"empty", filled(element_type::f32, {0}, 0)},
      {"empty matrix", filled(element_type::f32, {3, 0}, 0)},
      {"floats", floats({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})},
      {"s64 1", filled(element_type::s64, {2}, 0x01)},
      {"s64 -1", filled(element_type::s64, {2}, 0xFF)},
      {"s64 huge", filled(element_type::s64, {1}, 0x7F)},
      {"s64 scalar", filled(element_type::s64, {}, 0)},
      {"s32", filled(element_type::s32, {3}, 0xFF)},
      {"u8", filled(element_type::u8, {2, 3}, 0x81)},
      {"bool", filled(element_type::boolean, {1}, 1)},
      {"f64", filled(element_type::f64, {2, 2}, 0x3F)},
      {"f16", filled(element_type::f16, {2, 2}, 0x3C)},
      {"rank 9", filled(element_type::f32, {1, 1, 1, 1, 1, 1, 1, 1, 2}, 0)},
  };
  for (const auto& entry : graph::default_operators().all()) {
    const graph::operator_definition& d = entry.second;
    const std::size_t most = d.max_inputs == graph::any_number ? 4 : d.max_inputs;
    for (const std::int64_t opset : {7, 21}) {
      INFO(std::string(d.domain), ".", std::string(d.name), " opset ", opset);
      check_harmless(one_node(d, opset, {}, 1));
      check_harmless(one_node(d, opset, {}, 0));
      for (const auto& first : values) {
        const tensor& value = first.second;
        for (std::size_t count = 1; count <= most + 1; ++count) {
          INFO(count, " inputs: ", first.first);
          check_harmless(one_node(d, opset, std::vector<tensor>(count, value), 1));
          check_harmless(one_node(d, opset, std::vector<tensor>(count, value), 0));
        }
        // One odd input after a good one, and before.
        for (const auto& second : values) {
          INFO(first.first, ", then ", second.first);
          check_harmless(one_node(d, opset, {value, second.second}, 1));
          if (most > 2) {
            check_harmless(one_node(d, opset, {value, second.second, second.second}, 1));
          }
        }
      }
    }
  }
}

TEST_CASE("hostile: strings where integers are expected") {
  for (const char* op :
       {"Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "ReduceSum", "Split"}) {
    INFO(op);
    model_builder b(13);
    b.input("x", {2, 2});
    b.constant("s", tensor(element_type::string, {1}));
    b.output(b.add(op, {"x", "s"}));
    check_graph_error(error_kind::bad_file, {op, "string"}, [&] {
      graph::executor runner(b.get());
      static_cast<void>(runner.run({{"x", floats({2, 2}, {1, 2, 3, 4})}}));
    });
  }
}

TEST_CASE("hostile: a rank that a few bytes ask for") {
  const auto refused = [](std::int64_t rank, std::initializer_list<std::string_view> words) {
    model_builder b(13);
    b.input("x", {1});
    b.constant("rank", std::vector<std::int64_t>{rank});
    graph::attribute one;
    one.kind = graph::attribute::kind_type::t;
    one.t = make_tensor(element_type::s64, {1}, std::vector<std::int64_t>{1});
    const std::string ones = b.add("ConstantOfShape", {"rank"}, {{"value", one}});
    b.output(b.add("Reshape", {"x", ones}));
    check_graph_error(error_kind::bad_file, words, [&] {
      graph::executor runner(b.get());
      static_cast<void>(runner.run({{"x", floats({1}, {1.0F})}}));
    });
  };
  refused(65, {"Reshape", "rank 65", "64"});
  refused(200002, {"Reshape", "200002 elements", "128"});
}
