// SPDX-License-Identifier: BSD-3-Clause
// The limits on what a model may use: memory, iterations, multiply-adds, and what a file may hold.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_table.hpp>
#include <detent/graph/model/onnx_writer.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/buffer_pool.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>

#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"

namespace {

using namespace test;
using detent::error_kind;

/// A sub-graph with these inputs, which are not declared further, nodes and outputs.
attribute body(const std::vector<std::string>& inputs, std::vector<graph::node> nodes,
               const std::vector<std::string>& outputs) {
  const auto g = std::make_shared<graph::graph_body>();
  for (const std::string& name : inputs) {
    g->inputs.push_back({name, element_type::undefined, false, {}, {}});
  }
  for (const std::string& name : outputs) {
    g->outputs.push_back({name, element_type::undefined, false, {}, {}});
  }
  g->nodes = std::move(nodes);
  attribute a;
  a.kind = attribute::kind_type::g;
  a.g = g;
  return a;
}

graph::node node_of(const std::string& op, std::vector<std::string> inputs, std::string output) {
  graph::node n;
  n.op_type = op;
  n.name = op + "_" + output;
  n.inputs = std::move(inputs);
  n.outputs = {std::move(output)};
  return n;
}

/// A model whose outputs are `outputs` copies of an input of `count` floats.
graph::model copies(std::int64_t count, int outputs) {
  model_builder b;
  b.input("x", {count});
  for (int i = 0; i < outputs; ++i) {
    b.output(b.add("Neg", {"x"}));
  }
  return b.get();
}

std::vector<tensor> run(const graph::model& m, const graph::executor_options& options,
                        const tensors& inputs) {
  return graph::executor(m, options).run(inputs);
}

}  // namespace

TEST_CASE("limits: the memory of all values together, of an executor and of its sub-graphs") {
  const tensor x = floats({10000}, std::vector<float>(10000, 1.0F));
  graph::executor_options options;
  options.max_memory_bytes = 12 * 41000;
  CHECK(run(copies(10000, 12), options, {{"x", x}}).size() == 12);
  options.max_memory_bytes = 11 * 41000;
  check_graph_error(error_kind::bad_file, {"Neg_11", "memory", "451000"}, [&] {
    static_cast<void>(run(copies(10000, 12), options, {{"x", x}}));
  });

  // Values that are dead by then leave room for others, also for others of other sizes.
  model_builder b;
  b.input("x", {10000});
  std::string value = "x";
  for (int i = 0; i < 100; ++i) {
    b.constant("shape" + std::to_string(i), std::vector<std::int64_t>{10000 - 50 * i});
    b.constant("zero" + std::to_string(i), std::vector<std::int64_t>{0});
    value = b.add("Slice", {value, "zero" + std::to_string(i), "shape" + std::to_string(i)});
    value = b.add("Neg", {value});
  }
  b.output(value);
  options.max_memory_bytes = 4 * 41000;
  graph::executor runner(b.get(), options);
  for (int i = 0; i < 3; ++i) {
    CHECK(runner.run({{"x", x}})[0].count() == 5050);
  }

  // What a sub-graph computes counts, too.
  model_builder with_branch;
  with_branch.input("x", {10000});
  with_branch.input("c", {}, element_type::boolean);
  graph::node join = node_of("Concat", {"a", "a"}, "b");
  join.attributes["axis"] = number(0);
  const attribute branch = body({}, {node_of("Neg", {"x"}, "a"), join}, {"b"});
  with_branch.output(
      with_branch.add("If", {"c"}, {{"then_branch", branch}, {"else_branch", branch}}));
  const tensors inputs{{"x", x}, {"c", make_tensor<std::uint8_t>(element_type::boolean, {}, {1})}};
  options.max_memory_bytes = 3 * 41000;
  CHECK(run(with_branch.get(), options, inputs)[0].count() == 20000);
  options.max_memory_bytes = 2 * 41000;
  check_graph_error(error_kind::bad_file, {"If_0", "Concat_b", "memory"},
                    [&] { static_cast<void>(run(with_branch.get(), options, inputs)); });
}

TEST_CASE(
    "limits: buffers begin on cache lines, large ones on pages, and count with all their bytes") {
  constexpr std::size_t page = 4096;
  // Bytes of a tensor, and what its buffer takes: whole cache lines, from 64 KiB on whole pages.
  // The last line counts the owners.
  const std::pair<std::size_t, std::size_t> sizes[] = {{0, 128},
                                                       {1, 128},
                                                       {63, 128},
                                                       {64, 192},
                                                       {4160, 4288},
                                                       {16 * page - 129, 16 * page - 64},
                                                       {16 * page - 128, 16 * page},
                                                       {16 * page - 65, 16 * page},
                                                       {16 * page - 64, 17 * page},
                                                       {200 * page - 65, 200 * page}};
  for (const bool keeps : {false, true}) {
    CAPTURE(keeps);
    for (const auto& size : sizes) {
      const auto bytes = size.first;
      const auto taken = size.second;
      CAPTURE(bytes);
      graph::detail::buffer_pool fitting(taken, keeps);
      for (int round = 0; round < 2; ++round) {  // the second one gets what the first one returned
        const std::shared_ptr<std::byte> buffer = fitting.allocate(bytes);
        const std::size_t alignment = taken < 16 * page ? 64 : page;
        CHECK(reinterpret_cast<std::uintptr_t>(buffer.get()) % alignment == 0);
        check_graph_error(error_kind::bad_file, {"more bytes of memory"},
                          [&] { (void)fitting.allocate(0); });
      }
      graph::detail::buffer_pool small(taken - 1, keeps);
      check_graph_error(error_kind::bad_file, {"more bytes of memory"},
                        [&] { (void)small.allocate(bytes); });
    }
  }
}

TEST_CASE("limits: buffers that four runs did not use are released") {
  constexpr std::size_t large = 100 * 1024;  // what buffers of a little less take
  constexpr std::size_t small = 1024;
  graph::detail::buffer_pool pool(static_cast<std::size_t>(-1), true);
  // One run in five uses the small buffer, and all use the large one.
  for (int run = 0; run < 10; ++run) {
    pool.begin_run();
    const std::shared_ptr<std::byte> buffer = pool.allocate(large - 65);
    if (run % 5 == 0) {
      static_cast<void>(pool.allocate(small - 65));
    }
    CHECK(pool.bytes() == large + small);
  }
  CHECK(pool.allocate(large - 65) != nullptr);
  CHECK(pool.bytes() == large + small);
  // The last run that used the small buffer was five runs ago now, and the large one none.
  pool.begin_run();
  CHECK(pool.bytes() == large);
  for (int run = 0; run < 3; ++run) {
    pool.begin_run();
    CHECK(pool.bytes() == large);
  }
  pool.begin_run();
  CHECK(pool.bytes() == 0);

  // Values of ever new sizes take the memory of a few runs.
  model_builder b;
  b.input("x", {-1, 64});
  b.output(b.add("Relu", {b.add("Exp", {b.add("Neg", {"x"})})}));
  graph::executor_options options;
  options.max_memory_bytes = std::size_t{1} << 30;
  graph::executor grows(b.get(), options);
  for (std::int64_t n = 1; n < 60; ++n) {
    const std::vector<float> values(static_cast<std::size_t>(100 * n * 64), 1.0F);
    CHECK(grows.run({{"x", test::floats({100 * n, 64}, values)}})[0].count() == values.size());
    // At most three values of each of five runs. Of all 59 runs, it would be 90 of the last size.
    CHECK(grows.memory_in_use() <= 16 * values.size() * sizeof(float));
  }
}

TEST_CASE("limits: the scratch memory of operators") {
  // Reflected padding of bytes keeps an index of 8 bytes for each element along the axis.
  model_builder pad(13);
  pad.input("x", {100000}, element_type::u8);
  pad.constant("pads", std::vector<std::int64_t>{50, 50});
  pad.output(pad.add("Pad", {"x", "pads"}, {{"mode", text("reflect")}}), element_type::u8);
  const tensors bytes{
      {"x", make_tensor(element_type::u8, {100000}, std::vector<std::uint8_t>(100000, 1))}};
  graph::executor_options options;
  options.max_memory_bytes = 1000000;
  CHECK(run(pad.get(), options, bytes)[0].count() == 100100);
  options.max_memory_bytes = 500000;
  check_graph_error(error_kind::bad_file, {"Pad_0", "memory"},
                    [&] { static_cast<void>(run(pad.get(), options, bytes)); });

  // Between two axes, of which one shrinks and one grows, Resize makes a larger tensor than both.
  model_builder resize(13);
  resize.input("x", {1000, 1});
  resize.constant("sizes", std::vector<std::int64_t>{1, 1000});
  resize.output(resize.add("Resize", {"x", "", "", "sizes"}, {{"mode", text("linear")}}));
  const tensors column{{"x", floats({1000, 1}, std::vector<float>(1000, 1.0F))}};
  options.max_memory_bytes = 5000000;
  CHECK(run(resize.get(), options, column)[0].count() == 1000);
  options.max_memory_bytes = 1000000;
  check_graph_error(error_kind::bad_file, {"Resize_0", "memory"},
                    [&] { static_cast<void>(run(resize.get(), options, column)); });

  // Operands are dequantized as a whole where both are broadcast.
  model_builder sum;
  sum.input("a", {100000}, element_type::u8);
  sum.constant("s", floats({}, {1.0F}));
  sum.constant("z", make_tensor<std::uint8_t>(element_type::u8, {}, {0}));
  sum.constant("b", make_tensor<std::uint8_t>(element_type::u8, {2, 1}, {3, 3}));
  sum.output(sum.add("QLinearAdd", {"a", "s", "z", "b", "s", "z", "s", "z"}, {}, "com.microsoft"),
             element_type::u8);
  const tensors terms{{"a", bytes.at("x")}};
  options.max_memory_bytes = 2000000;
  CHECK(run(sum.get(), options, terms)[0].data<std::uint8_t>()[199999] == 4);
  options.max_memory_bytes = 1000000;
  check_graph_error(error_kind::bad_file, {"QLinearAdd_0", "memory"},
                    [&] { static_cast<void>(run(sum.get(), options, terms)); });
}

TEST_CASE("limits: iterations of nested loops count together") {
  model_builder b(13);
  b.constant("outer", make_tensor<std::int64_t>(element_type::s64, {}, {10}));
  b.constant("inner", make_tensor<std::int64_t>(element_type::s64, {}, {20}));
  b.input("x", {1});
  graph::node loop = node_of("Loop", {"inner", "", "v"}, "w");
  loop.attributes["body"] =
      body({"j", "go", "u"},
           {node_of("Identity", {"go"}, "still"), node_of("Add", {"u", "x"}, "t")}, {"still", "t"});
  b.output(b.add("Loop", {"outer", "", "x"},
                 {{"body", body({"i", "on", "v"}, {node_of("Identity", {"on"}, "more"), loop},
                                {"more", "w"})}}));
  const tensors inputs{{"x", floats({1}, {1.0F})}};
  graph::executor_options options;
  options.max_iterations = 210;
  graph::executor runner(b.get(), options);
  for (int i = 0; i < 2; ++i) {  // each run counts for itself
    CHECK(runner.run(inputs)[0].data<float>()[0] == 201.0F);
  }
  options.max_iterations = 209;
  check_graph_error(error_kind::bad_file, {"Loop_0", "Loop_w", "iteration 210", "209"},
                    [&] { static_cast<void>(run(b.get(), options, inputs)); });
}

TEST_CASE("limits: multiply-adds are counted before they are made") {
  model_builder b;
  b.input("x", {4, 8});
  b.constant("w", floats({8, 5}, std::vector<float>(40, 1.0F)));
  b.output(b.add("MatMul", {"x", "w"}));
  const tensors inputs{{"x", floats({4, 8}, std::vector<float>(32, 1.0F))}};
  graph::executor_options options;
  options.max_multiply_adds = 4 * 5 + 4 * 5 * 8;  // the elements, and the terms of the product
  CHECK(run(b.get(), options, inputs)[0].data<float>()[19] == 8.0F);
  --options.max_multiply_adds;
  check_graph_error(error_kind::bad_file, {"MatMul_0", "179", "multiply-adds"},
                    [&] { static_cast<void>(run(b.get(), options, inputs)); });

  model_builder conv;
  conv.input("x", {1, 2, 6, 6});
  conv.constant("w", floats({3, 2, 3, 3}, std::vector<float>(54, 1.0F)));
  conv.output(conv.add("Conv", {"x", "w"}));
  const tensors image{{"x", floats({1, 2, 6, 6}, std::vector<float>(72, 1.0F))}};
  options.max_multiply_adds = 48 * 19;
  CHECK(run(conv.get(), options, image)[0].data<float>()[0] == 18.0F);
  --options.max_multiply_adds;
  check_graph_error(error_kind::bad_file, {"Conv_0", "multiply-adds"},
                    [&] { static_cast<void>(run(conv.get(), options, image)); });
}

TEST_CASE("limits: terms of pools, searches and packed products are multiply-adds, too") {
  const auto takes = [](const graph::model& m, const tensors& inputs, std::uint64_t expected) {
    graph::executor_options options;
    options.max_multiply_adds = expected;
    CHECK(run(m, options, inputs).size() == 1);
    --options.max_multiply_adds;
    check_graph_error(error_kind::bad_file, {"multiply-adds"},
                      [&] { static_cast<void>(run(m, options, inputs)); });
  };
  const std::vector<float> ones(16, 1.0F);
  model_builder pool;
  pool.input("x", {1, 2, 2, 4});
  pool.output(pool.add("GlobalMaxPool", {"x"}));
  takes(pool.get(), {{"x", floats({1, 2, 2, 4}, ones)}}, 2 + 16);
  model_builder search;
  search.input("x", {2, 8});
  search.output(search.add("ArgMax", {"x"}, {{"axis", number(1)}}), element_type::s64);
  takes(search.get(), {{"x", floats({2, 8}, ones)}}, 2 + 16);
  model_builder product;
  product.input("x", {1, 16});
  product.constant("w", make_tensor(element_type::u8, {1, 1, 8}, std::vector<std::uint8_t>(8, 1)));
  product.constant("s", floats({1}, {1.0F}));
  product.output(product.add(
      "MatMulNBits", {"x", "w", "s"},
      {{"K", number(16)}, {"N", number(1)}, {"bits", number(4)}, {"block_size", number(16)}},
      "com.microsoft"));
  takes(product.get(), {{"x", floats({1, 16}, ones)}}, 1 + 16);
}

TEST_CASE("limits: a pool whose window has far more places than the image has pixels") {
  // Walking through the places of the window would take hours.
  constexpr std::int64_t width = std::int64_t{1} << 28;
  constexpr std::int64_t windows = 4096;
  for (const char* op : {"AveragePool", "MaxPool"}) {
    INFO(op);
    model_builder b(13);
    b.input("x", {1, 1, 2, 3});
    b.output(b.add(
        op, {"x"},
        {{"kernel_shape", list({2, width})}, {"pads", list({0, width - 3, 0, windows - 1})}}));
    const tensor y = run(b.get(), {}, {{"x", floats({1, 1, 2, 3}, {1, 2, 3, 4, 5, 9})}})[0];
    // All windows cover the whole image and far more.
    const float expected = std::string(op) == "AveragePool" ? 4.0F : 9.0F;
    CHECK(values_of<float>(y) == std::vector<float>(windows, expected));
  }
}

TEST_CASE("limits: constants are folded as long as they do not grow out of proportion") {
  model_builder b(13);
  b.input("x", {1});
  b.constant("many", std::vector<std::int64_t>{std::int64_t{1} << 25});  // 128 MiB of floats
  b.constant("few", std::vector<std::int64_t>{1000});
  const std::string large = b.add("ConstantOfShape", {"many"});
  const std::string small = b.add("ConstantOfShape", {"few"});
  b.output(b.add("Add", {"x", large}));
  b.output(b.add("Add", {"x", small}));
  graph::model m = b.get();
  graph::fold_constants(m, false);
  CHECK(m.initializers.count(large) == 0);
  CHECK(m.initializers.count(small) == 1);
  CHECK(m.nodes.size() == 3);
}

TEST_CASE("limits: what a file may hold") {
  model_builder b(13);
  b.input("x", {4});
  b.constant("a", floats({4}, {1, 2, 3, 4}));
  b.constant("b", floats({8}, std::vector<float>(8, 1.0F)));
  b.output(b.add("Add", {"x", "a"}));
  b.output(b.add("Neg", {"b"}));
  const std::string bytes = graph::to_onnx(b.get());
  CHECK(graph::parse_onnx(bytes, {},
                          {.max_tensor_bytes = 32, .max_constant_bytes = 48, .max_nodes = 2})
            .nodes.size() == 2);
  const auto fails = [&](const graph::read_limits& limits,
                         std::initializer_list<std::string_view> words) {
    check_graph_error(error_kind::bad_file, words,
                      [&] { static_cast<void>(graph::parse_onnx(bytes, {}, limits)); });
  };
  fails({.max_tensor_bytes = 31}, {"'b'", "32", "31"});
  fails({.max_constant_bytes = 47}, {"'b'", "32", "16", "47"});
  fails({.max_nodes = 1}, {"1 nodes"});
}

TEST_CASE("limits: products of stacks that are empty and huge") {
  constexpr std::int64_t huge = std::int64_t{1} << 32;
  for (const char* op : {"MatMul", "MatMulInteger"}) {
    INFO(op);
    const bool is_float = std::string(op) == "MatMul";
    const element_type type = is_float ? element_type::f32 : element_type::u8;
    model_builder b(13);
    b.input("a", {huge, 0, 3}, type);
    b.input("b", {1, 3, 2}, type);
    b.input("c", {huge, 3, 0}, type);
    const std::string y = b.add(op, {"a", "b"});
    const std::string z = b.add(op, {"b2", "c"});
    b.input("b2", {1, 2, 3}, type);
    b.output(y, is_float ? type : element_type::s32);
    b.output(z, is_float ? type : element_type::s32);
    const auto filled = [&](shape dims) {
      tensor t = tensor::allocate(type, dims);
      std::fill_n(t.mutable_raw(), t.bytes(), std::byte{0});
      return t;
    };
    const auto results = run(b.get(), {},
                             {{"a", filled({huge, 0, 3})},
                              {"b", filled({1, 3, 2})},
                              {"c", filled({huge, 3, 0})},
                              {"b2", filled({1, 2, 3})}});
    CHECK(results[0].dims() == shape{huge, 0, 2});
    CHECK(results[1].dims() == shape{huge, 2, 0});
  }
}

TEST_CASE("limits: a block of QuantizeLinear beyond every axis") {
  for (const std::int64_t block :
       {std::int64_t{4}, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()}) {
    INFO(block);
    model_builder b(21);
    b.input("x", {2, 3});
    b.constant("s", floats({2, 1}, {0.5F, 2.0F}));
    b.constant("z", make_tensor<std::uint8_t>(element_type::u8, {2, 1}, {1, 3}));
    const attributes a{{"axis", number(1)}, {"block_size", number(block)}};
    const std::string q = b.add("QuantizeLinear", {"x", "s", "z"}, a);
    b.output(q, element_type::u8);
    b.output(b.add("DequantizeLinear", {q, "s", "z"}, a));
    const auto y = run(b.get(), {}, {{"x", floats({2, 3}, {0, 1, 2, 2, 4, 8})}});
    CHECK(values_of<std::uint8_t>(y[0]) == std::vector<std::uint8_t>{1, 3, 5, 4, 5, 7});
    CHECK(values_of<float>(y[1]) == std::vector<float>{0, 1, 2, 2, 4, 8});
  }
}

TEST_CASE("limits: rows of zeros are not divided by their norm") {
  for (const std::int64_t p : {1, 2}) {
    model_builder b(22);
    b.input("x", {3, 2});
    b.output(b.add("LpNormalization", {"x"}, {{"p", number(p)}}));
    const auto y =
        values_of<float>(run(b.get(), {}, {{"x", floats({3, 2}, {0, 0, 3, 0, 0, 0})}})[0]);
    CHECK(y == std::vector<float>{0, 0, 1, 0, 0, 0});
  }
}

TEST_CASE("unused_names: each name once, whatever is taken") {
  model_builder b;
  b.input("x", {1});
  b.constant("x_2", floats({}, {1.0F}));
  b.output(b.add("Add", {"x", "x_2"}));
  graph::unused_names names(b.get());
  CHECK(names.take("y") == "y");
  CHECK(names.take("y") == "y_2");
  CHECK(names.take("y_2") == "y_2_2");
  CHECK(names.take("y") == "y_3");
  CHECK(names.take("x") == "x_3");
  CHECK(names.take("Add_0_out") == "Add_0_out_2");
  names.reserve("z");
  CHECK(names.take("z") == "z_2");
}

TEST_CASE("name_table: values keep their names and places, in copies too") {
  graph::detail::name_table<int> table(1);
  const auto first = table.add("first", 1);
  CHECK(first.second);
  for (int i = 0; i < 1000; ++i) {
    table.add("a name that is too long for a short string " + std::to_string(i), i);
  }
  CHECK_FALSE(table.add("first", 7).second);
  CHECK(table.find("first") == first.first);
  CHECK(table.find("") == nullptr);
  graph::detail::name_table<int> copy(table);
  *table.add("first").first = 5;
  const graph::detail::name_table<int> moved = std::move(table);
  CHECK(moved.find("first") == first.first);
  CHECK(*moved.find("first") == 5);
  CHECK(*copy.find("first") == 1);
  copy.add("only here");
  CHECK_FALSE(moved.has("only here"));
  CHECK(*copy.find("a name that is too long for a short string 999") == 999);
}

TEST_CASE("remove_no_ops: an output that a Gemm or Transpose takes as well keeps its Identity") {
  for (const char* op : {"Gemm", "MatMul", "Transpose", "Relu"}) {
    model_builder b;
    b.input("x", {4, 4});
    const std::string turned = b.add("Transpose", {"x"});
    const bool is_product = std::string(op) != "Transpose" && std::string(op) != "Relu";
    b.output(b.add(
        op, is_product ? std::vector<std::string>{turned, "x"} : std::vector<std::string>{turned}));
    b.output(b.add("Identity", {turned}));
    graph::model m = b.get();
    graph::remove_no_ops(m);
    CHECK(test::count(m, "Identity") == (std::string(op) == "Relu" ? 0 : 1));
  }
}

TEST_CASE("remove_no_ops: chains, outputs of the graph and values that several nodes use") {
  // x -> a (output) -> b -> c (output): Identity nodes; b is used by Neg as well.
  model_builder b;
  b.input("x", {1});
  b.output("first");
  b.output("second");
  b.output("third");
  graph::model m = b.get();
  m.nodes = {node_of("Neg", {"x"}, "n"),          node_of("Identity", {"n"}, "i"),
             node_of("Identity", {"i"}, "first"), node_of("Identity", {"i"}, "j"),
             node_of("Abs", {"j"}, "k"),          node_of("Identity", {"j"}, "second"),
             node_of("Identity", {"x"}, "third")};
  graph::sort_and_check(m);
  const graph::model before = m;
  graph::remove_no_ops(m);
  // n became "first"; "second" is a second name of it and needs its node, like "third".
  REQUIRE(m.nodes.size() == 4);
  CHECK(m.nodes[0].outputs[0] == "first");
  CHECK(m.nodes[1].inputs[0] == "first");
  CHECK(m.nodes[2].inputs[0] == "first");
  CHECK(m.nodes[2].outputs[0] == "second");
  graph::sort_and_check(m);
  const tensors inputs{{"x", floats({1}, {3.0F})}};
  const auto expected = run(before, {}, inputs);
  const auto actual = run(m, {}, inputs);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(values_of<float>(actual[i]) == values_of<float>(expected[i]));
  }
}
