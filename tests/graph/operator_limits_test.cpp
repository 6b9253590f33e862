// SPDX-License-Identifier: BSD-3-Clause
// Operators at the limits of what they take: values out of range, NaN, work that grows faster than
// the tensors, shapes that only a run knows, and threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/parallel.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

using namespace test;
using detent::error_kind;
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// A model of one node with constant inputs, undefined ones being absent.
graph::model model_of(const std::string& op, const std::vector<tensor>& inputs, attributes a,
                      std::int64_t opset) {
  model_builder b(opset);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    names.push_back(inputs[i].defined() ? "in" + std::to_string(i) : std::string());
    if (inputs[i].defined()) {
      b.constant(names.back(), inputs[i]);
    }
  }
  b.output(b.add(op, names, std::move(a)), element_type::undefined);
  return b.get();
}

tensor result_of(const std::string& op, const std::vector<tensor>& inputs, attributes a = {},
                 std::int64_t opset = 24, const graph::executor_options& options = {}) {
  return graph::executor(model_of(op, inputs, std::move(a), opset), options).run({})[0];
}

tensor longs(shape dims, const std::vector<std::int64_t>& values) {
  return make_tensor(element_type::s64, std::move(dims), values);
}

tensor ones(const shape& dims) {
  return floats(dims, std::vector<float>(graph::element_count(dims), 1.0F));
}

attribute texts(std::vector<std::string> values) {
  attribute a;
  a.kind = attribute::kind_type::strings;
  a.strings = std::move(values);
  return a;
}

void fails(const std::string& op, const std::vector<tensor>& inputs, std::string_view word,
           attributes a = {}, const graph::executor_options& options = {}) {
  INFO(op);
  check_graph_error(error_kind::bad_file, {op, word},
                    [&] { static_cast<void>(result_of(op, inputs, std::move(a), 24, options)); });
}

}  // namespace

TEST_CASE("limits: values out of range are errors that name the node") {
  const tensor x = ones({3, 4});
  fails("TopK", {x, longs({1}, {5})}, "k is 5 for a dimension of 4");
  fails("TopK", {x, longs({1}, {-1})}, "k is -1");
  fails("ScatterElements", {x, longs({1, 1}, {3}), ones({1, 1})}, "index 3 in a dimension of 3");
  fails("ScatterElements", {x, longs({1, 5}, {0, 0, 0, 0, 0}), ones({1, 5})}, "indices of shape");
  fails("ScatterND", {x, longs({1, 2}, {0, -5}), ones({1})}, "index -5 in a dimension of 4");
  fails("ScatterND", {x, longs({1, 3}, {0, 0, 0}), ones({1})}, "indices of 3 numbers");
  fails("ScatterND", {x, longs({1, 1}, {0}), ones({1})}, "updates of shape",
        {{"reduction", text("median")}});
  fails("TensorScatter", {ones({1, 3, 2}), ones({1, 2, 2}), longs({1}, {2})}, "write index 2");
  fails("OneHot", {longs({1}, {0}), longs({1}, {-1}), ones({2})}, "the depth is -1");
  fails("ReverseSequence", {x, longs({4}, {1, 4, 0, 0})}, "a sequence of 4");
  fails("CumProd", {x, longs({1}, {2})}, "axis 2");
  fails("Trilu", {ones({3})}, "holds no matrices");
  fails("BitShift", {x, x}, "the direction is ''");
  fails("CenterCropPad", {x, longs({1}, {2})}, "1 sizes");
  fails("GridSample", {ones({1, 1, 2, 2}), ones({1, 2, 2, 3})}, "a grid of shape");
  fails("RMSNormalization", {x, ones({3})}, "cannot be broadcast");
  fails("RoiAlign", {ones({1, 1, 4, 4}), ones({1, 4}), longs({1}, {1})}, "batch index 1");
  fails("RotaryEmbedding", {ones({1, 1, 1, 2}), ones({2, 1}), ones({2, 1}), longs({1, 1}, {2})},
        "position 2 in caches of 2");
  const tensor head = ones({1, 1, 2, 4});
  fails("Attention", {head, head, head, {}, {}, {}, longs({1}, {3})}, "nonpad_kv_seqlen is 3 of 2");
  fails("Attention", {head, ones({1, 1, 2, 3}), head}, "do not fit together");
  fails("Attention", {head, head, head, ones({3, 2})}, "a mask of shape");
}

TEST_CASE("limits: scores of Attention without its result") {
  for (const char* wanted : {"", "y"}) {
    INFO("first output '", wanted, "'");
    model_builder b(24);
    b.constant("q", floats({1, 1, 1, 2}, {1, 2}));
    b.constant("k", floats({1, 1, 3, 2}, {1, 0, 0, 1, 1, 1}));
    b.constant("v", ones({1, 1, 3, 2}));
    b.add("Attention", {"q", "k", "v"}, {{"scale", real(1.0F)}});
    b.get().nodes[0].outputs = {wanted, "", "", "scores"};
    b.output("scores");
    CHECK(values_of<float>(graph::executor(b.get()).run({})[0]) == std::vector<float>{1, 2, 3});
  }
}

TEST_CASE("limits: a NaN in the mask of Attention hides nothing") {
  const tensor head = floats({1, 1, 2, 1}, {1, 1});
  for (const std::vector<float>& mask :
       {std::vector<float>{quiet_nan, quiet_nan},
        std::vector<float>{quiet_nan, -std::numeric_limits<float>::infinity()},
        std::vector<float>{0.0F, quiet_nan}}) {
    const std::vector<float> y =
        values_of<float>(result_of("Attention", {head, head, head, floats({1, 2}, mask)}));
    CHECK(std::all_of(y.begin(), y.end(), [](float x) { return x != x; }));
  }
}

TEST_CASE("limits: equations of Einsum that mean nothing") {
  const tensor x = ones({3, 4});
  const auto equation = [](const char* value) { return attributes{{"equation", text(value)}}; };
  fails("Einsum", {x}, "a term of 1 letters", equation("i->i"));
  fails("Einsum", {x}, "not one term for each", equation("ij,jk->ik"));
  fails("Einsum", {x}, "no letter", equation("i1->i"));
  fails("Einsum", {x}, "extents 3 and 4", equation("ii->i"));
  fails("Einsum", {x}, "an index twice, or one that no input has", equation("ij->ik"));
  fails("Einsum", {x}, "an index twice", equation("ij->ii"));
  fails("Einsum", {x}, "two ellipses", equation("......->"));
}

TEST_CASE("limits: recurrent layers whose inputs do not fit") {
  const tensor x = ones({2, 1, 3});
  const tensor w = ones({1, 16, 3});
  const tensor r = ones({1, 16, 4});
  const tensor lengths = make_tensor(element_type::s32, {1}, std::vector<std::int32_t>{3});
  fails("LSTM", {x, ones({1, 12, 3}), r}, "input 1 has shape [1,12,3]");
  fails("LSTM", {x, w, r, ones({1, 16})}, "input 3 has shape");
  fails("LSTM", {x, w, r, {}, lengths}, "a sequence of 3 steps where there are 2");
  fails("LSTM", {x, w, r}, "hidden_size is 5", {{"hidden_size", number(5)}});
  fails("LSTM", {x, w, r}, "direction 'up'", {{"direction", text("up")}});
  fails("LSTM", {x, w, r}, "no activation is called 'Sine'",
        {{"activations", texts({"Sigmoid", "Sine", "Tanh"})}});
  fails("LSTM", {x, w, r}, "1 activations, expected 3", {{"activations", texts({"Tanh"})}});
  fails("LSTM", {x, w, r}, "clip is", {{"clip", real(-1.0F)}});
  fails("GRU", {x, w, r}, "input 1 has shape");
}

TEST_CASE("limits: RNN may name more activations than it has directions, LSTM and GRU may not") {
  // The schema's default, which runtimes write into the node, is that of two directions.
  const tensor x = ones({2, 1, 3});
  const tensor r = floats({1, 4, 4}, std::vector<float>(16, 0.125F));
  const tensor w = floats({1, 4, 3}, std::vector<float>(12, 0.25F));
  const auto named = [](std::vector<std::string> names) {
    return attributes{{"activations", texts(std::move(names))}};
  };
  const auto values = [&](attributes a) {
    return values_of<float>(result_of("RNN", {x, w, r}, std::move(a)));
  };
  CHECK(values(named({"Tanh", "Tanh"})) == values({}));
  CHECK(values(named({"Relu", "Tanh"})) == values(named({"Relu"})));
  CHECK(values(named({"Relu", "Tanh"})) != values({}));
  attributes both = named({"Relu"});
  both["direction"] = text("bidirectional");
  fails("RNN", {x, ones({2, 4, 3}), ones({2, 4, 4})}, "1 activations, expected 2", both);
  fails("LSTM", {x, ones({1, 16, 3}), ones({1, 16, 4})}, "6 activations, expected 3",
        named({"Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"}));
  fails("GRU", {x, ones({1, 12, 3}), ones({1, 12, 4})}, "4 activations, expected 2",
        named({"Sigmoid", "Tanh", "Sigmoid", "Tanh"}));
}

TEST_CASE("limits: NaN is the largest element, and no score") {
  const tensor x = floats({5}, {1.0F, quiet_nan, 3.0F, quiet_nan, 2.0F});
  model_builder b(24);
  b.constant("x", x);
  b.constant("k", std::vector<std::int64_t>{3});
  b.output(b.add("TopK", {"x", "k"}));
  b.get().nodes[0].outputs.emplace_back("at");
  b.output("at", element_type::s64);
  CHECK(values_of<std::int64_t>(graph::executor(b.get()).run({})[1]) ==
        std::vector<std::int64_t>{1, 3, 2});
  const std::vector<float> unique = values_of<float>(result_of("Unique", {x}));
  REQUIRE(unique.size() == 4);
  CHECK(unique[2] == 3.0F);
  CHECK(unique[3] != unique[3]);
  const tensor boxes = floats({1, 2, 4}, {0, 0, 1, 1, 2, 2, 3, 3});
  const tensor scores = floats({1, 1, 2}, {quiet_nan, 0.5F});
  CHECK(values_of<std::int64_t>(result_of("NonMaxSuppression", {boxes, scores, longs({1}, {9})})) ==
        std::vector<std::int64_t>{0, 0, 1});
  // A grid of NaN lies outside.
  CHECK(values_of<float>(result_of(
            "GridSample", {ones({1, 1, 2, 2}), floats({1, 1, 1, 2}, {quiet_nan, 0.0F})})) ==
        std::vector<float>{0.0F});
}

TEST_CASE("limits: shifts, remainders and caches worked out by hand") {
  const auto bytes = [](const std::vector<std::int8_t>& v) {
    return make_tensor(element_type::s8, {static_cast<std::int64_t>(v.size())}, v);
  };
  const tensor x = bytes({-128, -1, 64, 3, -5});
  const tensor by = bytes({1, 7, 1, 8, -1});
  CHECK(values_of<std::int8_t>(result_of("BitShift", {x, by}, {{"direction", text("RIGHT")}},
                                         28)) == std::vector<std::int8_t>{-64, -1, 32, 0, -1});
  CHECK(values_of<std::int8_t>(result_of("BitShift", {x, by}, {{"direction", text("LEFT")}}, 28)) ==
        std::vector<std::int8_t>{0, -128, -128, 0, 0});
  CHECK(
      values_of<float>(result_of(
          "Mod", {floats({4}, {5.5F, -5.5F, 6.0F, -1.0F}), floats({4}, {2.0F, 2.0F, -4.0F, 0.25F})},
          {}, 28)) == std::vector<float>{1.5F, 0.5F, -2.0F, 0.0F});
  fails("Mod", {ones({1}), ones({1})}, "before opset 28");
  CHECK(values_of<float>(result_of("TensorScatter",
                                   {ones({1, 3, 1}), floats({1, 2, 1}, {7, 8}), longs({1}, {2})},
                                   {{"mode", text("circular")}})) == std::vector<float>{8, 1, 7});
}

TEST_CASE("limits: reductions of bool, and the depth of OneHot") {
  const auto bools = [](const std::vector<std::uint8_t>& v) {
    return make_tensor(element_type::boolean, {static_cast<std::int64_t>(v.size())}, v);
  };
  const tensor x = bools({0, 0, 1, 1});
  const tensor updates = bools({0, 1, 0, 1});
  const std::vector<std::uint8_t> any{0, 1, 1, 1};
  const std::vector<std::uint8_t> both{0, 0, 0, 1};
  for (const char* how : {"add", "mul", "max", "min"}) {
    INFO(how);
    const attributes a{{"reduction", text(how)}};
    const std::string_view name = how;
    const std::vector<std::uint8_t>& expected = name == "add" || name == "max" ? any : both;
    CHECK(values_of<std::uint8_t>(
              result_of("ScatterElements", {x, longs({4}, {0, 1, 2, 3}), updates}, a)) == expected);
    CHECK(values_of<std::uint8_t>(
              result_of("ScatterND", {x, longs({4, 1}, {0, 1, 2, 3}), updates}, a)) == expected);
  }
  fails("OneHot", {longs({1}, {0}), floats({1}, {quiet_nan}), ones({2})}, "the depth is NaN");
}

TEST_CASE("limits: Resize of integers rounds to nearest with antialias, toward zero without") {
  const auto resized = [](const tensor& x, std::int64_t size, std::int64_t antialias) {
    return result_of("Resize", {x, {}, {}, longs({1}, {size})},
                     {{"mode", text("linear")}, {"antialias", number(antialias)}});
  };
  // In halves, antialias weighs the four elements around the middle with 1, 3, 3 and 1 eighths; at
  // the edges the outermost element counts twice.
  const tensor x = make_tensor(element_type::s8, {6}, std::vector<std::int8_t>{7, 7, 4, 2, -5, -7});
  // 53/8, 20/8 and -41/8.
  CHECK(values_of<std::int8_t>(resized(x, 3, 1)) == std::vector<std::int8_t>{7, 2, -5});
  const tensor pairs = make_tensor(element_type::s8, {4}, std::vector<std::int8_t>{1, 2, -1, -2});
  CHECK(values_of<std::int8_t>(resized(pairs, 2, 0)) == std::vector<std::int8_t>{1, -1});
}

TEST_CASE("limits: work that grows faster than the tensors") {
  graph::executor_options options;
  options.max_multiply_adds = 1'000'000;
  const tensor line = ones({1000});
  fails("Einsum", {line, line, line}, "more than 1000000 multiply-adds",
        {{"equation", text("a,b,c->")}}, options);
  fails("RoiAlign", {ones({1, 1, 4, 4}), floats({1, 4}, {0, 0, 30000, 30000}), longs({1}, {0})},
        "more than 1000000 multiply-adds", {}, options);
  fails("Conv", {ones({1, 1, 60, 60, 60}), ones({1, 1, 9, 9, 9})},
        "more than 1000000 multiply-adds", {}, options);
  fails("LSTM", {ones({2000, 1, 8}), ones({1, 32, 8}), ones({1, 32, 8})},
        "more than 1000000 multiply-adds", {}, options);
  const tensor head = ones({1, 1, 400, 8});
  fails("Attention", {head, head, head}, "more than 1000000 multiply-adds", {}, options);
}

TEST_CASE("limits: empty tensors of very long dimensions") {
  const std::int64_t long_dim = std::int64_t{1} << 28;
  const tensor none = ones({long_dim, 0, 3});
  CHECK(result_of("Unique", {none}, {{"axis", number(1)}}).dims() == none.dims());
  CHECK(result_of("Trilu", {none}).dims() == none.dims());
  CHECK(result_of("TopK", {none, longs({1}, {2})}).dims() == shape{long_dim, 0, 2});
  CHECK(result_of("NonZero", {none}).dims() == shape{3, 0});
  CHECK(result_of("ScatterElements", {none, longs({0, 0, 0}, {}), ones({0, 0, 0})}).dims() ==
        none.dims());
  CHECK(result_of("Compress",
                  {none, make_tensor(element_type::boolean, {1}, std::vector<std::uint8_t>{1})},
                  {{"axis", number(2)}})
            .dims() == shape{long_dim, 0, 1});
}

TEST_CASE("limits: nothing is looped over to make empty results") {
  // Each of these would take years.
  const std::int64_t huge = std::int64_t{1} << 30;
  const tensor heads = ones({huge, huge, 0, 4});
  CHECK(result_of("Attention", {heads, heads, heads}).dims() == heads.dims());
  const tensor images = ones({huge, 0, 4, 4});
  const attributes window{{"kernel_shape", list({2, 2})}};
  for (const char* op : {"LpPool", "AveragePool", "MaxPool"}) {
    INFO(op);
    CHECK(result_of(op, {images}, window).dims() == shape{huge, 0, 3, 3});
  }
  // The kernel has 2^56 places and no channels.
  const std::int64_t side = std::int64_t{1} << 28;
  CHECK(values_of<float>(result_of("ConvTranspose", {ones({1, 0, 1, 1}), ones({0, 1, side, side})},
                                   {{"pads", list({0, 0, side - 1, side - 1})}})) ==
        std::vector<float>{0.0F});
  // These have 2^46 places, and 2^24 lines of padding around the image.
  const std::int64_t less = std::int64_t{1} << 23;
  const attributes padded{{"pads", list({less, less, less, less})}, {"dilations", list({2, 2})}};
  const tensor image = ones({1, 0, 1, 1});
  CHECK(values_of<float>(result_of("Conv", {image, ones({1, 0, less, less}), floats({1}, {7})},
                                   padded)) == std::vector<float>(9, 7.0F));
  const tensor bytes = make_tensor(element_type::u8, {1, 0, 1, 1}, std::vector<std::uint8_t>());
  const tensor filters =
      make_tensor(element_type::s8, {1, 0, less, less}, std::vector<std::int8_t>());
  CHECK(values_of<std::int32_t>(result_of("ConvInteger", {bytes, filters}, padded)) ==
        std::vector<std::int32_t>(9, 0));
}

TEST_CASE("limits: what inference computes has limits of its own") {
  const auto knows = [](const std::string& op, const std::vector<tensor>& inputs,
                        attributes a = {}) {
    return graph::infer_shapes(model_of(op, inputs, std::move(a), 24)).count(op + "_0_out") != 0;
  };
  const tensor few = longs({1}, {3});
  CHECK(knows("NonZero", {few}));
  CHECK(knows("Unique", {few}));
  // Slices without elements are sorted, too.
  const tensor none = ones({std::int64_t{1} << 30, 0});
  CHECK_FALSE(knows("Unique", {none}, {{"axis", number(0)}}));
  graph::executor_options options;
  options.max_multiply_adds = 1'000'000;
  fails("Unique", {none}, "more than 1000000 multiply-adds", {{"axis", number(0)}}, options);
  // 4000 boxes that do not overlap are compared 8 million times.
  const std::int64_t count = 4000;
  std::vector<float> corners;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto left = static_cast<float>(2 * i);
    corners.insert(corners.end(), {left, 0.0F, left + 1.0F, 1.0F});
  }
  const auto boxes = [&](std::int64_t n) {
    return floats({1, n, 4}, {corners.begin(), corners.begin() + 4 * n});
  };
  CHECK(knows("NonMaxSuppression", {boxes(20), ones({1, 1, 20}), few}));
  CHECK_FALSE(knows("NonMaxSuppression", {boxes(count), ones({1, 1, count}), longs({1}, {5000})}));
  // Constants of more than 4096 elements are not looked at.
  CHECK(knows("NonZero", {ones({4096})}));
  CHECK_FALSE(knows("NonZero", {ones({4097})}));
  // Other errors are still errors.
  check_graph_error(error_kind::bad_file, {"TopK_0", "k is 5"}, [&] {
    static_cast<void>(knows("TopK", {ones({3}), longs({1}, {5})}));
  });
}

TEST_CASE("limits: shapes that depend on elements stay open until the run") {
  model_builder b(24);
  b.input("x", {2, 3});
  const std::string found = b.add("NonZero", {"x"});
  b.output(found, element_type::s64);
  static_cast<void>(graph::infer_shapes(b.get()));
  graph::executor runner(b.get());
  CHECK(values_of<std::int64_t>(runner.run({{"x", floats({2, 3}, {0, 5, 0, 0, 0, 7})}})[0]) ==
        std::vector<std::int64_t>{0, 1, 1, 2});
  CHECK(runner.run({{"x", floats({2, 3}, {0, 0, 0, 0, 0, 0})}})[0].dims() == shape{2, 0});
}

TEST_CASE("limits: results do not depend on threads") {
  random_source random(17);
  INFO("seed ", random.seed());
  const auto reals = [&](shape dims) {
    return random_floats(random, std::move(dims), -1.0F, 1.0F);
  };
  const tensor head = reals({2, 4, 70, 8});
  const std::vector<std::pair<std::string, std::vector<tensor>>> nodes = {
      {"Attention", {head, head, head}},
      {"Conv", {reals({2, 4, 9, 9, 9}), reals({6, 4, 3, 3, 3}), reals({6})}},
      {"ConvTranspose", {reals({1, 3, 4, 5, 6}), reals({3, 4, 2, 2, 2})}},
      {"Einsum", {reals({40, 50}), reals({50, 60})}},
      {"GridSample", {reals({2, 3, 20, 20}), reals({2, 40, 40, 2})}},
      {"LSTM", {reals({6, 40, 16}), reals({1, 128, 16}), reals({1, 128, 32})}},
      {"RMSNormalization", {reals({3000, 50}), reals({50})}},
  };
  detent::thread_pool pool(3);
  graph::executor_options options;
  options.parallel = pool.parallel();
  for (const auto& node : nodes) {
    const auto& op = node.first;
    const auto& inputs = node.second;
    INFO(op);
    const attributes a =
        op == "Einsum" ? attributes{{"equation", text("ij,jk->ki")}} : attributes{};
    CHECK((values_of<float>(result_of(op, inputs, a)) ==
           values_of<float>(result_of(op, inputs, a, 24, options))));
  }
}

TEST_CASE("limits: quantizers of com.microsoft around a convolution become an integer one") {
  model_builder b(13);
  b.get().opsets["com.microsoft"] = 1;
  b.input("x", {1, 2, 4, 4});
  b.scalar("s", 0.5F);
  b.constant("z", make_tensor(element_type::u8, {}, std::vector<std::uint8_t>{9}));
  b.constant("w", make_tensor(element_type::s8, {1, 2, 1, 1}, std::vector<std::int8_t>{3, -4}));
  b.constant("wz", make_tensor(element_type::s8, {}, std::vector<std::int8_t>{0}));
  const std::string ms = "com.microsoft";
  const std::string q = b.add("QuantizeLinear", {"x", "s", "z"}, {}, ms);
  const std::string x = b.add("DequantizeLinear", {q, "s", "z"}, {}, ms);
  const std::string w = b.add("DequantizeLinear", {"w", "s", "wz"}, {}, ms);
  const std::string y = b.add("Conv", {x, w});
  b.output(b.add("QuantizeLinear", {y, "s", "z"}, {}, ms), element_type::u8);
  const graph::model lowered = graph::for_execution(b.get());
  CHECK(std::any_of(lowered.nodes.begin(), lowered.nodes.end(), [](const graph::node& n) {
    return n.domain == "detent" && n.op_type == "QLinearConv";
  }));
  random_source random(3);
  const tensors given = {{"x", random_floats(random, {1, 2, 4, 4}, -4.0F, 4.0F)}};
  CHECK(values_of<std::uint8_t>(graph::executor(lowered).run(given)[0]) ==
        values_of<std::uint8_t>(graph::executor(b.get()).run(given)[0]));
}
