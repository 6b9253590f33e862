// SPDX-License-Identifier: BSD-3-Clause
// Small models that ask for much memory or time: they must be refused, or cost no more than their
// size says.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/sample_folder.hpp>
#include <detent/graph/ops/counted_bytes.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>
#include <detent/graph/rewrite/runnable_part.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"

namespace {

using namespace test;
using detent::error_kind;
using graph::element_type;

tensor bytes_of(graph::shape dims) {
  const std::size_t count = graph::element_count(dims);
  return make_tensor(element_type::u8, std::move(dims), std::vector<std::uint8_t>(count, 3));
}
tensor ones(graph::shape dims) {
  const std::size_t count = graph::element_count(dims);
  return floats(std::move(dims), std::vector<float>(count, 1.0F));
}

/// A model of one node whose inputs are inputs of the model, and their values.
struct computed_weights {
  std::string op, domain;
  std::vector<tensor> inputs;  // undefined ones are absent
  std::map<std::string, graph::attribute> attributes;
  std::size_t outputs = 1;  // the last one is the output of the model
  element_type type = element_type::f32;
};

/// A body without inputs but those of a Loop, which passes one value on.
graph::attribute loop_body(std::vector<graph::node> nodes) {
  const auto g = std::make_shared<graph::graph_body>();
  for (const char* name : {"i", "go", "v"}) {
    g->inputs.push_back({name, element_type::undefined, false, {}, {}});
  }
  for (const char* name : {"still", "w"}) {
    g->outputs.push_back({name, element_type::undefined, false, {}, {}});
  }
  g->nodes = std::move(nodes);
  graph::attribute a;
  a.kind = graph::attribute::kind_type::g;
  a.g = g;
  return a;
}

graph::node node_of(std::string op, std::vector<std::string> inputs, std::string output) {
  graph::node n;
  n.op_type = std::move(op);
  n.inputs = std::move(inputs);
  n.outputs = {std::move(output)};
  return n;
}

}  // namespace

TEST_CASE("hostile: packed forms of weights that a run computes count against its memory") {
  // The packed form of one column is that of sixteen.
  constexpr std::int64_t n = 60000;
  const tensor scale = floats({}, {0.5F});
  const tensor zero = make_tensor<std::uint8_t>(element_type::u8, {}, {3});
  const std::vector<computed_weights> forms = {
      {"MatMulInteger", "", {bytes_of({1, n}), bytes_of({n, 1})}, {}, 1, element_type::s32},
      {"MatMulInteger", "", {bytes_of({2, 1, n}), bytes_of({2, n, 1})}, {}, 1, element_type::s32},
      {"QLinearMatMul",
       "",
       {bytes_of({1, n}), scale, zero, bytes_of({n, 1}), scale, zero, scale, zero},
       {},
       1,
       element_type::u8},
      {"QGemm",
       "com.microsoft",
       {bytes_of({1, n}), scale, zero, bytes_of({n, 1}), scale, zero},
       {},
       1,
       element_type::f32},
      {"ConvInteger",
       "",
       {bytes_of({1, n, 1, 1}), bytes_of({1, n, 1, 1})},
       {},
       1,
       element_type::s32},
      {"ConvInteger",
       "",
       {bytes_of({1, n, 1, 1, 1}), bytes_of({1, n, 1, 1, 1})},
       {},
       1,
       element_type::s32},
      {"Conv", "", {ones({1, n, 1, 1}), ones({1, n, 1, 1})}, {}},
      {"Conv", "", {ones({1, n, 1, 1, 1}), ones({1, n, 1, 1, 1})}, {}},
      {"ConvTranspose", "", {ones({1, n, 1, 1}), ones({n, 1, 1, 1})}, {}},
      {"RNN",
       "",
       {ones({1, 1, n}), ones({1, 1, n}), ones({1, 1, 1})},
       {{"hidden_size", number(1)}},
       2},
      {"DynamicLinear", "detent", {ones({1, n}), bytes_of({n, 1}), floats({1}, {0.5F}), zero}, {}},
      {"DynamicConv",
       "detent",
       {ones({1, n, 1, 1}), bytes_of({1, n, 1, 1}), floats({1}, {0.5F}), zero},
       {}},
  };
  for (const computed_weights& f : forms) {
    INFO(f.op, " ", graph::to_string(f.inputs[0].dims()));
    model_builder b(17);
    graph::node node;
    node.op_type = f.op;
    node.domain = f.domain;
    node.name = "packs";
    std::size_t given = 0;
    tensors inputs;
    for (std::size_t i = 0; i < f.inputs.size(); ++i) {
      const std::string name = "x" + std::to_string(i);
      b.input(name, f.inputs[i].dims(), f.inputs[i].type());
      node.inputs.push_back(name);
      inputs[name] = f.inputs[i];
      given += f.inputs[i].bytes();
    }
    for (std::size_t i = 0; i < f.outputs; ++i) {
      node.outputs.push_back(i + 1 < f.outputs ? "" : "y");
    }
    for (const auto& [key, value] : f.attributes) {
      node.attributes[key] = value;
    }
    graph::model m = b.get();
    m.opsets[f.domain] = f.domain.empty() ? 17 : 1;
    m.nodes.push_back(node);
    m.outputs.push_back({"y", f.type, false, {}, {}});
    graph::executor_options options;
    options.max_memory_bytes = std::size_t{32} << 20U;
    CHECK(graph::executor(m, options).run(inputs).size() == 1);
    // Copies of both operands fit, but not what packing makes of one.
    options.max_memory_bytes = 4 * given;
    check_graph_error(error_kind::bad_file, {"packs", "memory"}, [&] {
      graph::executor runner(m, options);
      static_cast<void>(runner.run(inputs));
    });
  }
}

TEST_CASE("hostile: lists of axes, sizes and pads are no longer than ranks allow") {
  const auto refused = [](const char* op, std::size_t inputs, std::size_t at) {
    INFO(std::string(op), " input ", at);
    model_builder b(17);
    std::vector<std::string> names{b.input("x", {4})};
    tensors given{{"x", floats({4}, {1.0F, 2.0F, 3.0F, 4.0F})}};
    for (std::size_t i = 1; i < inputs; ++i) {
      const std::string name = "list" + std::to_string(i);
      const std::int64_t count = i == at ? 129 : 1;
      names.push_back(b.input(name, {count}, element_type::s64));
      given[name] = make_tensor(element_type::s64, {count},
                                std::vector<std::int64_t>(static_cast<std::size_t>(count), 1));
    }
    b.output(b.add(op, names));
    check_graph_error(error_kind::bad_file, {op, "129 elements"}, [&] {
      graph::executor runner(b.get());
      static_cast<void>(runner.run(given));
    });
  };
  refused("Reshape", 2, 1);
  refused("Expand", 2, 1);
  refused("Tile", 2, 1);
  refused("Slice", 5, 1);
  refused("Slice", 5, 4);
  refused("Pad", 2, 1);
  refused("Unsqueeze", 2, 1);
  refused("ReduceSum", 2, 1);
  refused("Split", 2, 1);
  // As many lengths as a Split has outputs are taken, however many these are.
  model_builder b(17);
  constexpr std::size_t parts = 300;
  b.input("x", {parts});
  b.constant("lengths", std::vector<std::int64_t>(parts, 1));
  graph::node split = node_of("Split", {"x", "lengths"}, "part0");
  for (std::size_t i = 1; i < parts; ++i) {
    split.outputs.push_back("part" + std::to_string(i));
  }
  graph::model m = b.get();
  m.nodes.push_back(split);
  m.outputs.push_back({"part299", element_type::f32, false, {}, {}});
  std::vector<float> values(parts, 0.0F);
  values.back() = 7.0F;
  CHECK(graph::executor(m).run({{"x", floats({parts}, values)}})[0].data<float>()[0] == 7.0F);
}

TEST_CASE("hostile: messages and lists of nodes cut long names") {
  graph::node n = node_of("Relu", {"x"}, "y");
  n.name = std::string(256, 'n');
  CHECK(n.label() == "Relu node '" + n.name + "'");
  n.name += "n";
  CHECK(n.label() == "Relu node '" + std::string(256, 'n') + "...'");
  n.name = std::string(255, 'n') + "\xC3\xA9 and more";  // the cut would divide a character
  CHECK(n.label() == "Relu node '" + std::string(255, 'n') + "...'");
  n.op_type = std::string(1000000, 'o');
  n.domain = std::string(1000000, 'd');
  n.name.clear();
  n.outputs = {std::string(1000000, 'y')};
  CHECK(n.label().size() < 1000);

  // The name of a node whose branches cannot be run is part of the texts about all nodes in them.
  model_builder b(17);
  b.input("c", {}, element_type::boolean);
  b.input("x", {1});
  const auto branch = std::make_shared<graph::graph_body>();
  constexpr std::size_t count = 200;
  for (std::size_t i = 0; i < count; ++i) {
    branch->nodes.push_back(node_of("Oracle", {"x"}, "o" + std::to_string(i)));
  }
  branch->outputs.push_back({"o0", element_type::f32, false, {}, {}});
  graph::attribute a;
  a.kind = graph::attribute::kind_type::g;
  a.g = branch;
  graph::node choice = node_of("If", {"c"}, "y");
  choice.name = std::string(1000000, 'i');
  choice.attributes = {{"then_branch", a}, {"else_branch", a}};
  graph::model m = b.get();
  m.nodes.push_back(choice);
  // Nodes that need the results of a missing operator name it, too.
  std::string value = "y";
  for (std::size_t i = 0; i < count; ++i) {
    const std::string next = "z" + std::to_string(i);
    m.nodes.push_back(node_of("Relu", {value}, next));
    value = next;
  }
  m.outputs.push_back({value, element_type::f32, false, {}, {}});
  const std::vector<std::string> all = graph::unsupported_nodes(m);
  REQUIRE(all.size() == 2 * count);
  for (const std::string& text : all) {
    CHECK(text.size() < 1000);
    CHECK(text.find("_branch of If node 'iiii") != std::string::npos);
  }
  const std::vector<std::string> reasons = graph::divided_model(m).reasons();
  REQUIRE(reasons.size() == count + 1);
  for (const std::string& text : reasons) {
    CHECK(text.size() < 2000);
  }
}

TEST_CASE("hostile: nobody can choose names with equal hashes") {
  // SipHash-1-3 with a key of zeros, as Python 3.11 computes it with PYTHONHASHSEED=0.
  using graph::detail::siphash;
  CHECK(siphash({0, 0}, "a") == 0x407448d2b89b1813U);
  CHECK(siphash({0, 0}, "1234567") == 0xa33d651594fdae81U);
  CHECK(siphash({0, 0}, "12345678") == 0x3489982430560a87U);
  CHECK(siphash({0, 0}, "conv1_weight_quantized") == 0x40fdcffb785d7cc5U);
  CHECK(siphash({0, 1}, "a") != siphash({0, 0}, "a"));
  CHECK(siphash({1, 0}, "a") != siphash({0, 0}, "a"));
  // The key is one for the process, and none that is known.
  const std::string name = "conv1_weight_quantized";
  CHECK(graph::detail::name_hash()(name) == graph::detail::name_hash()(std::string(name)));
  CHECK(graph::detail::name_hash()(name) != siphash({0, 0}, name));
}

TEST_CASE("hostile: regular expressions whose repetitions multiply") {
  const auto places = [](const std::string& text) {
    return graph::detail::pattern_places(text, 2000);
  };
  CHECK(places("conv1") == 5);
  CHECK(places("conv[0-9]") == 5);
  CHECK(places("\\(\\[\\{") == 3);
  CHECK(places("a{3}") == 3);
  CHECK(places("a{2,5}") == 5);
  CHECK(places("a{7,}") == 7);
  CHECK(places("[a-z\\]{9}]{4}x") == 5);
  CHECK(places("(ab){3}") == 9);
  CHECK(places("((ab){3}c){10}") == 110);  // a group counts one itself
  CHECK(places("((((a{99}){99}){99}){99}){99}") > 2000);
  CHECK(places("a{99999999999999999999999}") == 2000);
  CHECK(places("a{1") == 1);

  const auto refused = [](const std::string& text) {
    check_graph_error(error_kind::invalid_argument, {"rule", "repeats too much"},
                      [&] { static_cast<void>(graph::node_pattern("rule", text)); });
  };
  refused("(?:a*){20000}");
  refused("((a{50}){50}){50}");
  // An identifier in groups of hexadecimal digits, and what names are mostly compared with.
  const graph::node_pattern identifier("rule", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
  CHECK(identifier.matches("01234567-89ab-cdef-0123-456789abcdef"));
  CHECK_FALSE(identifier.matches("01234567-89ab-cdef-0123"));
  CHECK(graph::node_pattern("rule", "(/model)?/layers\\.[0-9]{1,3}/.*").matches("/layers.12/mlp"));
  CHECK(graph::node_pattern("rule", "a*").matches(std::string(100000, 'a')));
  const graph::node_pattern long_one("rule", "(?:(?:a?){10}){30}");
  CHECK(long_one.matches(std::string(300, 'a')));
  check_graph_error(error_kind::bad_file, {"'aaaa", "20000 characters"},
                    [&] { static_cast<void>(long_one.matches(std::string(20000, 'a'))); });
}

TEST_CASE("hostile: the limits of inference hold for all sub-graphs together") {
  // Each node costs a million multiply-adds, nearly the share of one; all together, 2^30 are made.
  model_builder b(17);
  b.constant("a", ones({500, 1}));
  b.constant("b", ones({1, 1000}));
  b.constant("yes", make_tensor<std::uint8_t>(element_type::boolean, {}, {1}));
  b.constant("trips", make_tensor<std::int64_t>(element_type::s64, {}, {2}));
  b.input("x", {1});
  const auto product = [](const std::string& output) {
    graph::node n = node_of("Einsum", {"a", "b"}, output);
    n.attributes["equation"] = text("ij,jk->");
    return n;
  };
  const auto body = [&](std::size_t products) {
    std::vector<graph::node> nodes{node_of("Identity", {"go"}, "still"),
                                   node_of("Identity", {"v"}, "w")};
    for (std::size_t i = 0; i < products; ++i) {
      nodes.push_back(product("product" + std::to_string(i)));
    }
    return loop_body(std::move(nodes));
  };
  const auto is_known_behind = [&](std::initializer_list<std::size_t> loops) {
    graph::model m = b.get();
    std::string value = "x";
    for (const std::size_t products : loops) {
      graph::node loop = node_of("Loop", {"trips", "yes", value}, value + "'");
      loop.attributes["body"] = body(products);
      m.nodes.push_back(loop);
      value += "'";
    }
    m.nodes.push_back(product("last"));
    for (const std::string& name : {value, std::string("last")}) {
      m.outputs.push_back({name, element_type::f32, false, {}, {}});
    }
    const auto known = graph::infer_shapes(m);
    CHECK(known.count(value) == 1);
    const auto found = known.find("last");
    return found != known.end() && found->second.has_data();
  };
  CHECK(is_known_behind({300, 300}));
  CHECK_FALSE(is_known_behind({600, 600}));
}

TEST_CASE("hostile: what a run infers of sub-graphs counts as multiply-adds of the run") {
  model_builder b(17);
  b.constant("a", ones({500, 1}));
  b.constant("b", ones({1, 1000}));
  b.constant("none", make_tensor<std::int64_t>(element_type::s64, {}, {0}));
  b.input("x", {1});
  b.input("m", {100, 100});
  // A loop without iterations infers the type of what it would have stacked.
  std::vector<graph::node> nodes{node_of("Identity", {"go"}, "still"),
                                 node_of("Identity", {"v"}, "w")};
  for (int i = 0; i < 5; ++i) {
    nodes.push_back(node_of("Einsum", {"a", "b"}, "product" + std::to_string(i)));
    nodes.back().attributes["equation"] = text("ij,jk->");
  }
  graph::attribute body = loop_body(std::move(nodes));
  const auto with_output = std::make_shared<graph::graph_body>(*body.g);
  with_output->outputs.push_back({"product4", element_type::undefined, false, {}, {}});
  body.g = with_output;
  graph::model m = b.get();
  graph::node loop = node_of("Loop", {"none", "", "x"}, "y");
  loop.outputs.push_back("stacked");
  loop.attributes["body"] = body;
  m.nodes.push_back(loop);
  m.nodes.push_back(node_of("MatMul", {"m", "m"}, "z"));
  for (const char* name : {"y", "stacked", "z"}) {
    m.outputs.push_back({name, element_type::f32, false, {}, {}});
  }
  const tensors inputs{{"x", ones({1})}, {"m", ones({100, 100})}};
  graph::executor_options options;
  options.max_multiply_adds = 7000000;
  CHECK(graph::executor(m, options).run(inputs).size() == 3);
  const auto refused = [&](std::uint64_t limit, std::string_view word) {
    options.max_multiply_adds = limit;
    check_graph_error(error_kind::bad_file, {word}, [&] {
      graph::executor runner(m, options);
      static_cast<void>(runner.run(inputs));
    });
  };
  refused(5500000, "multiply-adds");    // the product takes 1010000
  refused(2000000, "is not declared");  // the last Einsum has no share left
}

TEST_CASE("hostile: the bound for packed depthwise filters holds for the largest ones") {
  const detent::filter_shape f{.out_channels = 64,
                               .in_channels = 64,
                               .groups = 64,
                               .kernel_height = 320,
                               .kernel_width = 320};
  // One column of sixteen for each channel, in panels, pairs and slices.
  CHECK(graph::ops::packed_filter_bytes(f) >= f.size() * 16 * 3);
}

TEST_CASE("hostile: names of outputs as names of files") {
  CHECK(graph::file_name_of("a/b") == "a_b");
  CHECK(graph::file_name_of(std::string_view("a\0b", 3)) == "a_b");
  CHECK(graph::file_name_of("a\x1b[31m\n\x7f") == "a_[31m__");
  CHECK(graph::file_name_of("a\xC2\x9B"
                            "31m") == "a_31m");
  CHECK(graph::file_name_of("\xC3\xA9t\xC3\xA9\xC2") == "\xC3\xA9t\xC3\xA9\xC2");
}
