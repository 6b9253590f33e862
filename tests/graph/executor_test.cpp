// SPDX-License-Identifier: BSD-3-Clause
// The executor says what is wrong before and while it runs, and the rewrites of graph/optimize.hpp
// keep what a model computes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/rewrite/fuse_additions.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/winograd.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

/// Both models' outputs agree within float rounding, or exactly.
void check_same_results(const graph::model& actual, const graph::model& expected,
                        const tensors& inputs, bool exactly = false) {
  const std::vector<tensor> a = outputs_of(actual, inputs);
  const std::vector<tensor> e = outputs_of(expected, inputs);
  REQUIRE(a.size() == e.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(actual.outputs[i].name == expected.outputs[i].name);
    REQUIRE(a[i].dims() == e[i].dims());
    const auto x = a[i].data<float>();
    const auto y = e[i].data<float>();
    if (exactly) {
      CHECK(test::difference(x, y) == "");
      continue;
    }
    float largest = 1e-30F;
    float error = 0.0F;
    for (std::size_t k = 0; k < x.size(); ++k) {
      largest = (std::max)(largest, std::fabs(y[k]));
      error = (std::max)(error, std::fabs(x[k] - y[k]));
    }
    CHECK(error <= 1e-5F * largest);
  }
}

graph::model simplified(graph::model m) {
  graph::simplify(m);
  graph::sort_and_check(m);
  return m;
}

/// Four parameters of a BatchNormalization over `channels`, and the node.
std::string add_batch_norm(model_builder& b, test::random_source& r, const std::string& x,
                           std::int64_t channels) {
  const std::string base = "bn" + std::to_string(b.get().nodes.size());
  b.constant(base + "_scale", random_floats(r, {channels}, -2.0F, 2.0F));
  b.constant(base + "_shift", random_floats(r, {channels}, -2.0F, 2.0F));
  b.constant(base + "_mean", random_floats(r, {channels}, -2.0F, 2.0F));
  b.constant(base + "_variance", random_floats(r, {channels}, 0.1F, 2.0F));
  return b.add("BatchNormalization",
               {x, base + "_scale", base + "_shift", base + "_mean", base + "_variance"},
               {{"epsilon", real(1e-3F)}});
}

}  // namespace

// --------------------------------------------------------------------------------------------
// errors

TEST_CASE("executor: inputs that are not as declared") {
  model_builder b;
  b.input("x", {-1, 3});
  b.input("n", {2}, element_type::s64);
  b.output(b.add("Relu", {"x"}));
  b.output(b.add("Identity", {"n"}), element_type::s64);
  graph::executor executor(b.get());
  const tensor x = test::floats({4, 3}, std::vector<float>(12, 1.0F));
  const tensor n = test::make_tensor<std::int64_t>(element_type::s64, {2}, {5, 6});

  CHECK(executor.run({{"x", x}, {"n", n}}).size() == 2);
  check_graph_error(error_kind::invalid_argument, {"'n'", "missing"}, [&] {
    static_cast<void>(executor.run({{"x", x}}));
  });
  check_graph_error(error_kind::invalid_argument, {"'z'"}, [&] {
    static_cast<void>(executor.run({{"x", x}, {"n", n}, {"z", x}}));
  });
  check_graph_error(error_kind::invalid_argument, {"'n'", "int64", "float32"}, [&] {
    static_cast<void>(executor.run({{"x", x}, {"n", x}}));
  });
  check_graph_error(error_kind::shape_mismatch, {"'x'", "[-1,3]", "[3,4]"}, [&] {
    static_cast<void>(executor.run({{"x", x.reshaped({3, 4})}, {"n", n}}));
  });
  check_graph_error(error_kind::shape_mismatch, {"'x'", "[4,3,1]"}, [&] {
    static_cast<void>(executor.run({{"x", x.reshaped({4, 3, 1})}, {"n", n}}));
  });
  check_graph_error(error_kind::invalid_argument, {"'x'"}, [&] {
    static_cast<void>(executor.run({{"x", tensor(element_type::f32, {4, 3})}, {"n", n}}));
  });
  // Where the model declares no type, there must still be one.
  model_builder open;
  open.input("x", {}, element_type::undefined);
  open.output(open.add("Identity", {"x"}));
  check_graph_error(error_kind::invalid_argument, {"'x'", "undefined"}, [&] {
    static_cast<void>(
        graph::executor(open.get()).run({{"x", tensor::allocate(element_type::undefined, {})}}));
  });
  // It is as good as new.
  CHECK(test::values_of<std::int64_t>(executor.run({{"x", x}, {"n", n}})[1]) ==
        std::vector<std::int64_t>{5, 6});
}

TEST_CASE("executor: the first operator that is not supported is named before anything runs") {
  model_builder b;
  b.input("x", {3});
  std::string v = b.add("Relu", {"x"});
  v = b.add("Fancy", {v}, {}, "com.example");
  v = b.add("NotAnOperator", {v});
  b.output(v);
  CHECK(graph::unsupported_nodes(b.get()).size() == 2);
  check_graph_error(error_kind::unsupported, {"com.example.Fancy", "Fancy_1", "1 more"},
                    [&] { graph::executor executor(b.get()); });
}

TEST_CASE("executor: opsets that nothing is known of are refused") {
  const auto model_of = [](std::int64_t opset) {
    model_builder b(opset);
    b.output(b.add("Relu", {b.input("x", {2})}));
    return b.get();
  };
  const tensors x{{"x", floats({2}, {-1.0F, 2.0F})}};
  CHECK(outputs_of(model_of(graph::newest_opset), x)[0].data<float>()[1] == 2.0F);
  for (const std::int64_t opset : {graph::newest_opset + 1, std::int64_t{99}}) {
    check_graph_error(detent::error_kind::unsupported,
                      {"the model has opset " + std::to_string(opset),
                       "known up to opset " + std::to_string(graph::newest_opset)},
                      [&] { outputs_of(model_of(opset), x); });
  }
}

TEST_CASE("executor: a wrong node is named") {
  model_builder b;
  b.input("a", {2, 3});
  b.input("b", {-1, -1});
  b.output(b.add("MatMul", {"a", "b"}));
  graph::executor executor(b.get());
  check_graph_error(error_kind::bad_file, {"MatMul_0"}, [&] {
    static_cast<void>(executor.run({{"a", test::floats({2, 3}, std::vector<float>(6))},
                                    {"b", test::floats({4, 2}, std::vector<float>(8))}}));
  });

  model_builder missing;
  missing.input("x", {2});
  missing.output(missing.add("Add", {"x"}));
  check_graph_error(error_kind::bad_file, {"Add_0", "1 inputs"},
                    [&] { const graph::executor add(missing.get()); });
}

TEST_CASE("executor: no output is larger than the caller allows") {
  model_builder b;
  b.input("x", {1});
  b.constant("shape", {1000, 1000});
  b.output(b.add("Expand", {"x", "shape"}));
  const tensors inputs{{"x", test::floats({1}, {1.0F})}};
  graph::executor_options options;
  options.max_tensor_bytes = 4000000;
  graph::executor enough(b.get(), options);
  CHECK(enough.run(inputs)[0].count() == 1000000);
  options.max_tensor_bytes = 3999999;
  graph::executor little(b.get(), options);
  check_graph_error(error_kind::bad_file, {"Expand_0", "4000000", "3999999"},
                    [&] { static_cast<void>(little.run(inputs)); });

  // More than there is in any machine, and more than a size can hold.
  for (const std::int64_t n : {std::int64_t{1} << 19, std::int64_t{1} << 31}) {
    model_builder huge;
    huge.input("x", {1});
    huge.constant("shape", {n, n});
    huge.output(huge.add("Expand", {"x", "shape"}));
    graph::executor executor(huge.get());
    check_graph_error(error_kind::bad_file, {"Expand_0"},
                      [&] { static_cast<void>(executor.run(inputs)); });
  }
}

TEST_CASE("executor: the observer sees every value, and results do not depend on it") {
  test::random_source r(1);
  model_builder b;
  b.input("x", {1, 3, 5, 5});
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  const std::string conv = b.add("Conv", {"x", "w"});
  const std::string relu = b.add("Relu", {conv});
  b.output(relu);
  const tensors inputs{{"x", random_floats(r, {1, 3, 5, 5}, -1.0F, 1.0F)}};
  graph::executor executor(b.get());
  const std::vector<tensor> quiet = executor.run(inputs);
  std::map<std::string, tensor> seen;
  const std::vector<tensor> watched = executor.run(
      inputs, [&](const std::string& name, const tensor& t) { seen[name] = graph::to_plain(t); });
  CHECK(test::difference(watched[0].data<float>(), quiet[0].data<float>()) == "");
  REQUIRE(seen.size() == 3);
  CHECK(test::difference(seen[relu].data<float>(), quiet[0].data<float>()) == "");
  CHECK(seen[conv].dims() == shape{1, 4, 3, 3});
}

TEST_CASE("executor: values are joined in the order in which convolutions leave them") {
  // Along each axis: results of convolutions, which are channels last, with each other and with an
  // input, which is not; the input has more elements than the others, or fewer.
  test::random_source random(71);
  for (const std::size_t axis : {0U, 1U, 2U, 3U}) {
    for (const std::int64_t extent : {1, 9}) {
      model_builder b;
      const shape image{2, 3, 4, 5};
      const std::string x = b.input("x", image);
      shape plain = image;
      plain[axis] = extent;
      const std::string y = b.input("y", plain);
      std::vector<std::string> parts;
      for (const char* name : {"first", "second"}) {
        parts.push_back(
            b.add("Conv", {x, b.constant(name, random_floats(random, {3, 3, 1, 1}, -1.0F, 1.0F))}));
      }
      parts.push_back(y);
      parts.push_back(parts[0]);
      const std::string joined =
          b.add("Concat", parts, {{"axis", number(static_cast<std::int64_t>(axis))}});
      b.output(joined);
      const graph::model m = b.get();
      const tensors inputs{{"x", random_floats(random, image, -1.0F, 1.0F)},
                           {"y", random_floats(random, plain, -1.0F, 1.0F)}};
      std::vector<std::vector<float>> values;
      for (const std::string& part : parts) {
        values.push_back(part == y ? values_of<float>(inputs.at("y")) : value_of(m, part, inputs));
      }
      std::vector<float> expected;
      const std::size_t rows = graph::ops::product(image, 0, axis);
      for (std::size_t row = 0; row < rows; ++row) {
        for (const std::vector<float>& v : values) {
          const auto length = static_cast<std::ptrdiff_t>(v.size() / rows);
          const auto begin = v.begin() + static_cast<std::ptrdiff_t>(row) * length;
          expected.insert(expected.end(), begin, begin + length);
        }
      }
      INFO("axis ", axis, ", extent ", extent);
      CHECK(test::difference(run(m, inputs).at(0), expected) == "");
    }
  }
}

TEST_CASE("executor: an output that is an input or a constant") {
  model_builder b;
  b.input("x", {2});
  b.constant("c", test::floats({2}, {3.0F, 4.0F}));
  b.output("x");
  b.output("c");
  const auto out = outputs_of(b.get(), {{"x", test::floats({2}, {1.0F, 2.0F})}});
  CHECK(test::values_of<float>(out[0]) == std::vector<float>{1.0F, 2.0F});
  CHECK(test::values_of<float>(out[1]) == std::vector<float>{3.0F, 4.0F});
  const auto again = outputs_of(simplified(b.get()), {{"x", test::floats({2}, {1.0F, 2.0F})}});
  CHECK(test::values_of<float>(again[1]) == std::vector<float>{3.0F, 4.0F});
}

TEST_CASE("executor: shapes are inferred as they come out") {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  test::random_source r(2);
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  const std::string conv = b.add("Conv", {"x", "w"}, {{"pads", list({1, 1, 1, 1})}});
  const std::string pool =
      b.add("MaxPool", {conv}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  // Reshape to what Shape, Gather and Concat compute, as PyTorch writes x.view(x.size(0), -1).
  const std::string dims = b.add("Shape", {pool});
  b.constant("zero", {0});
  b.constant("rest", {-1});
  const std::string batch = b.add("Gather", {dims, "zero"});
  const std::string target = b.add("Concat", {batch, "rest"}, {{"axis", number(0)}});
  const std::string flat = b.add("Reshape", {pool, target});
  b.output(flat);
  for (const std::int64_t n : {1, 5}) {
    const auto known = graph::infer_shapes(b.get(), {{"x", {n, 3, 8, 8}}});
    CHECK(known.at(flat).dims() == shape{n, 64});
    CHECK(known.at(flat).type() == element_type::f32);
    graph::executor executor(b.get());
    CHECK(executor.run({{"x", random_floats(r, {n, 3, 8, 8}, -1.0F, 1.0F)}})[0].dims() ==
          shape{n, 64});
  }
}

TEST_CASE("executor: ranks of many open dimensions, and of some that depend on each other") {
  for (const std::size_t rank : {4U, 5U, 6U, 8U, 12U}) {
    INFO("rank ", rank);
    model_builder b;
    shape dims(rank, -1);
    dims.back() = 4;
    b.input("x", dims);
    b.constant("w", tensor::allocate(element_type::f32, {4, 5}));
    const std::string y = b.add("MatMul", {"x", "w"});
    const graph::value_shapes shapes(b.get());
    CHECK(shapes.rank(y) == rank);
    dims.back() = 5;
    CHECK(shapes.dims(y) == dims);
  }
  // Results of more bytes than a run allows.
  model_builder images;
  images.input("x", {-1, 3, -1, -1});
  images.constant("w", tensor::allocate(element_type::f32, {256, 3, 1, 1}));
  const std::string wide = images.add("Conv", {"x", "w"});
  const std::string square = images.add("MatMul", {wide, wide});
  CHECK(graph::value_shapes(images.get()).dims(wide) == shape{-1, 256, -1, -1});
  CHECK(graph::value_shapes(images.get()).rank(square) == std::size_t{4});
  // Constants for one image: the product behind them is that of a matrix.
  model_builder traced;
  traced.input("x", {-1, 4, 2});
  traced.constant("w", tensor::allocate(element_type::f32, {8, 5}));
  traced.constant("b", tensor::allocate(element_type::f32, {5}));
  const std::string flat = traced.add("Reshape", {"x", traced.constant("row", {1, 8})});
  traced.output(traced.add("Add", {traced.add("MatMul", {flat, "w"}), "b"}));
  CHECK(graph::value_shapes(traced.get()).rank(flat) == std::size_t{2});
  graph::model joined = traced.get();
  graph::simplify(joined);
  CHECK(count(joined, "Gemm") == 1);
  // Nodes without enough inputs, and types that do not go together, tell nothing.
  model_builder wrong;
  wrong.input("c", {-1, 3}, element_type::boolean);
  wrong.input("h", {-1, 3}, element_type::f16);
  wrong.constant("k", tensor::allocate(element_type::f16, {2, 5}));
  const std::string lone = wrong.add("Where", {"c"});
  const std::string half = wrong.add("Add", {"h", "k"});
  const auto known = graph::infer_shapes(wrong.get());
  CHECK(known.count(lone) == 0);
  REQUIRE(known.count(half) == 1);
  CHECK(known.at(half).type() == element_type::f16);
  // One name is one size; the size of a mask may be the sum of two others.
  model_builder b;
  b.input("x", {-1, -1, 4});
  b.input("position", {-1, 4});
  b.input("past", {-1, -1, 4});
  b.input("mask", {-1, -1, -1});
  b.get().inputs[0].params = {"batch", "sequence", ""};
  b.get().inputs[1].params = {"sequence", ""};
  b.get().inputs[2].params = {"batch", "past", ""};
  const std::string sum = b.add("Add", {"x", "position"});
  const std::string all = b.add("Concat", {"past", sum}, {{"axis", number(1)}});
  const std::string turned = b.add("Transpose", {all}, {{"perm", list({0, 2, 1})}});
  const std::string scores = b.add("Add", {b.add("MatMul", {sum, turned}), "mask"});
  const std::string masked = b.add("Equal", {scores, "mask"});
  const graph::value_shapes shapes(b.get());
  CHECK(shapes.dims(sum) == shape{-1, -1, 4});
  CHECK(shapes.dims(all) == shape{-1, -1, 4});
  CHECK(shapes.rank(scores) == std::size_t{3});
  CHECK(shapes.rank(masked) == std::size_t{3});
  CHECK(graph::detail::value_types(b.get()).type(masked) == element_type::boolean);
}

TEST_CASE("executor: what a run refuses is known before, and its shape is known all the same") {
  model_builder b;
  b.input("x", {2, 4});
  b.input("z", {2, 4}, element_type::f64);
  b.constant("w", tensor::allocate(element_type::f64, {4, 3}));
  const std::string y = b.add("Relu", {"x"});
  const std::string product = b.add("Gemm", {"z", "w"});
  const std::string behind = b.add("Neg", {product});
  b.output(y);
  b.output(behind, element_type::f64);
  const auto known = graph::infer_shapes(b.get());
  CHECK(known.at(product).dims() == shape{2, 3});
  CHECK(known.at(behind).type() == element_type::f64);
  const tensors inputs{{"x", floats({2, 4}, std::vector<float>(8))},
                       {"z", tensor::allocate(element_type::f64, {2, 4})}};
  check_graph_error(detent::error_kind::unsupported,
                    {"Gemm", "no code for elements of type float64"},
                    [&] { static_cast<void>(graph::executor(b.get()).run(inputs)); });
  // Nothing is computed of results without elements.
  model_builder empty;
  empty.input("x", {0, 4}, element_type::f64);
  empty.constant("w", tensor::allocate(element_type::f64, {4, 3}));
  empty.output(empty.add("Gemm", {"x", "w"}), element_type::f64);
  CHECK(graph::executor(empty.get())
            .run({{"x", tensor::allocate(element_type::f64, {0, 4})}})[0]
            .dims() == shape{0, 3});
}

TEST_CASE("executor: shapes and ranks that depend on open dimensions are not certain") {
  model_builder b;
  b.input("x", {-1, 3, 8});
  for (const auto& [name, value] : std::map<std::string, std::int64_t>{
           {"first", 0}, {"last", std::numeric_limits<std::int64_t>::max()}, {"two", 2}}) {
    b.constant(name, {value});
  }
  // Every other image: one if there are one or two.
  const std::string half = b.add("Slice", {"x", "first", "last", "first", "two"});
  const std::string squeezed = b.add("Squeeze", {half});
  const std::string single = b.add("Reshape", {"x", b.constant("row", {1, 24})});
  const std::string behind = b.add("Neg", {half});
  const graph::value_shapes shapes(b.get());
  CHECK(shapes.dims(half) == shape{-1, 3, 8});
  CHECK(shapes.rank(half) == std::size_t{3});
  CHECK(shapes.dims(behind) == shape{-1, 3, 8});
  CHECK_FALSE(shapes.dims(squeezed).has_value());
  CHECK_FALSE(shapes.rank(squeezed).has_value());
  CHECK(shapes.rank(single) == std::size_t{2});  // it takes one image, and no other number
  const graph::detail::value_types types(b.get());
  CHECK(types.type(squeezed) == element_type::f32);
  CHECK_FALSE(types.rank(squeezed).has_value());

  // Windows do not fit into images of one pixel, but fit into others.
  model_builder windows;
  windows.input("x", {-1, 3, -1, -1});
  windows.constant("w", tensor::allocate(element_type::f32, {4, 3, 3, 3}));
  const std::string conv = windows.add("Conv", {"x", "w"});
  const std::string flat = windows.add("Flatten", {windows.add("GlobalAveragePool", {conv})});
  const graph::value_shapes of_windows(windows.get());
  CHECK(of_windows.rank(conv) == std::size_t{4});
  CHECK(of_windows.rank(flat) == std::size_t{2});
  CHECK(of_windows.rank("x") == std::size_t{4});
}

// ------------------------------------------------------------------------------------------
// rewrites

TEST_CASE("executor: threads share the matrices of a stack, or the rows of large ones") {
  test::random_source r(711);
  INFO("seed ", r.seed());
  detent::thread_pool pool(3);
  std::size_t most = 0;  // tasks
  const detent::parallel_for counting = [&](std::size_t count, const auto& body) {
    most = (std::max)(most, count);
    pool.run(count, body);
  };
  struct stack {
    graph::shape lhs, rhs;
    std::size_t tasks;  // at least
  };
  for (const stack& s :
       {stack{{12, 40, 64}, {12, 64, 48}, 4}, stack{{2, 9, 70, 64}, {9, 64, 65}, 16},
        stack{{1, 30, 20}, {9, 20, 11}, 0}, stack{{5, 2, 3}, {5, 3, 2}, 0},
        stack{{2, 400, 300}, {2, 300, 260}, 3}, stack{{4, 0, 3}, {4, 3, 2}, 0}}) {
    for (const bool is_integer : {false, true}) {
      model_builder b;
      if (is_integer) {
        b.input("x", s.lhs, element_type::u8);
        b.input("y", s.rhs, element_type::u8);
        for (const char* scale : {"a", "b", "c"}) {
          b.constant(scale, floats({}, {scale[0] == 'c' ? 9.0F : 0.1F}));
        }
        b.constant("z", make_tensor<std::uint8_t>(element_type::u8, {}, {100}));
        b.output(b.add("QLinearMatMul", {"x", "a", "z", "y", "b", "z", "c", "z"}),
                 element_type::u8);
      } else {
        b.input("x", s.lhs);
        b.input("y", s.rhs);
        b.output(b.add("MatMul", {"x", "y"}));
      }
      const auto given = [&](const graph::shape& dims) {
        return is_integer ? make_tensor(element_type::u8, dims,
                                        r.integers<std::uint8_t>(graph::element_count(dims)))
                          : random_floats(r, dims, -1.0F, 1.0F);
      };
      const tensors inputs{{"x", given(s.lhs)}, {"y", given(s.rhs)}};
      graph::executor_options o;
      o.parallel = counting;
      most = 0;
      const tensor shared = graph::executor(b.get(), o).run(inputs)[0];
      INFO("left side ", graph::shown(s.lhs), " integers ", is_integer);
      CHECK((is_integer || most >= s.tasks));
      const tensor alone = graph::executor(b.get()).run(inputs)[0];
      REQUIRE(shared.bytes() == alone.bytes());
      CHECK(std::equal(shared.raw(), shared.raw() + shared.bytes(), alone.raw()));
    }
  }
}

TEST_CASE("optimize: batch normalization goes into Conv, ConvTranspose and Gemm") {
  test::random_source r(3);
  INFO("seed ", r.seed());
  for (const bool bias : {false, true}) {
    for (const char* op : {"Conv", "ConvTranspose", "Gemm", "Gemm transB", "Conv group"}) {
      INFO(op, bias ? " with bias" : "");
      model_builder b;
      const bool gemm = std::string(op).rfind("Gemm", 0) == 0;
      const shape in = gemm ? shape{3, 4} : shape{2, 4, 5, 5};
      b.input("x", in);
      test::attributes a;
      shape w;
      if (std::string(op) == "Conv") {
        w = {6, 4, 3, 3};
      } else if (std::string(op) == "Conv group") {
        w = {6, 2, 3, 3};
        a["group"] = number(2);
      } else if (std::string(op) == "ConvTranspose") {
        w = {4, 6, 2, 2};
        a["strides"] = list({2, 2});
      } else if (std::string(op) == "Gemm") {
        w = {4, 6};
      } else {
        w = {6, 4};
        a["transB"] = number(1);
      }
      b.constant("w", random_floats(r, w, -1.0F, 1.0F));
      std::vector<std::string> inputs{"x", "w"};
      if (bias) {
        inputs.push_back(b.constant("b", random_floats(r, {6}, -1.0F, 1.0F)));
      }
      const std::string name = gemm ? "Gemm" : std::string(op).substr(0, std::string(op).find(' '));
      b.output(add_batch_norm(b, r, b.add(name, inputs, a), 6));
      const graph::model m = simplified(b.get());
      CHECK(m.nodes.size() == 1);
      CHECK(count(m, name, "") == 1);
      CHECK(m.initializers.size() == 2);  // what the originals are is not kept
      check_same_results(m, b.get(), {{"x", random_floats(r, in, -2.0F, 2.0F)}});
    }
  }
  // In groups, an output channel of a ConvTranspose is no index of its weights' axis 1.
  model_builder b;
  b.input("x", {2, 4, 5, 5});
  b.constant("w", random_floats(r, {4, 3, 2, 2}, -1.0F, 1.0F));
  b.output(add_batch_norm(b, r, b.add("ConvTranspose", {"x", "w"}, {{"group", number(2)}}), 6));
  check_same_results(simplified(b.get()), b.get(),
                     {{"x", random_floats(r, {2, 4, 5, 5}, -2.0F, 2.0F)}});
  model_builder c;
  c.input("x", {2, 4, 5, 5});
  c.constant("w", random_floats(r, {4, 3, 2, 2}, -1.0F, 1.0F));
  c.output(add_batch_norm(c, r, c.add("ConvTranspose", {"x", "w"}), 3));
  check_same_results(simplified(c.get()), c.get(),
                     {{"x", random_floats(r, {2, 4, 5, 5}, -2.0F, 2.0F)}});
}

TEST_CASE("optimize: folding leaves what others use as it was") {
  test::random_source r(4);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 4, 5, 5});
  b.constant("w", random_floats(r, {4, 4, 3, 3}, -1.0F, 1.0F));
  b.constant("b", random_floats(r, {4}, -1.0F, 1.0F));
  const std::string first = b.add("Conv", {"x", "w", "b"}, {{"pads", list({1, 1, 1, 1})}});
  const std::string folded = add_batch_norm(b, r, first, 4);
  const std::string second = b.add("Conv", {folded, "w", "b"});  // the same weights
  b.output(second);
  const std::string both = b.add("Conv", {"x", "w"});  // its output is used twice
  const std::string normalized = add_batch_norm(b, r, both, 4);
  b.output(b.add("Add", {both, normalized}));
  const std::string seen = b.add("Conv", {"x", "w", "b"});  // its output is the graph's
  b.output(seen);
  b.output(add_batch_norm(b, r, seen, 4));
  const graph::model m = simplified(b.get());
  CHECK(count(m, "BatchNormalization", "") == 2);
  check_same_results(m, b.get(), {{"x", random_floats(r, {1, 4, 5, 5}, -2.0F, 2.0F)}});
}

TEST_CASE("optimize: additions become biases, MatMul becomes Gemm") {
  test::random_source r(5);
  INFO("seed ", r.seed());
  const auto conv = [&](const shape& constant, bool swapped, std::size_t nodes) {
    INFO("constant ", graph::to_string(constant), swapped ? " first" : "");
    model_builder b;
    b.input("x", {2, 3, 4, 6});
    b.constant("w", random_floats(r, {6, 3, 1, 1}, -1.0F, 1.0F));
    b.constant("c", random_floats(r, constant, -1.0F, 1.0F));
    const std::string y = b.add("Conv", {"x", "w"});
    b.output(swapped ? b.add("Add", {"c", y}) : b.add("Add", {y, "c"}));
    const graph::model m = simplified(b.get());
    CHECK(m.nodes.size() == nodes);
    check_same_results(m, b.get(), {{"x", random_floats(r, {2, 3, 4, 6}, -2.0F, 2.0F)}});
  };
  conv({6, 1, 1}, false, 1);
  conv({1, 6, 1, 1}, true, 1);
  conv({6}, false, 2);  // along the width
  conv({1, 1, 6}, false, 2);
  conv({1, 1, 6, 1, 1}, false, 2);  // adds a dimension
  conv({2, 6, 1, 1}, false, 2);
  conv({1}, false, 2);

  const auto matmul = [&](const shape& in, const shape& constant, std::size_t gemms,
                          std::size_t nodes) {
    INFO("input ", graph::to_string(in), " constant ", graph::to_string(constant));
    model_builder b;
    b.input("x", in);
    b.constant("w", random_floats(r, {3, 5}, -1.0F, 1.0F));
    b.constant("c", random_floats(r, constant, -1.0F, 1.0F));
    b.output(b.add("Add", {b.add("MatMul", {"x", "w"}), "c"}));
    const graph::model m = simplified(b.get());
    CHECK(count(m, "Gemm", "") == gemms);
    CHECK(m.nodes.size() == nodes);
    check_same_results(m, b.get(), {{"x", random_floats(r, in, -2.0F, 2.0F)}});
  };
  matmul({4, 3}, {5}, 1, 1);
  matmul({4, 3}, {1, 5}, 1, 1);
  matmul({4, 3}, {4, 5}, 1, 2);
  matmul({4, 3}, {4, 1}, 1, 2);
  matmul({4, 3}, {1, 1, 5}, 1, 2);  // adds a dimension
  matmul({2, 4, 3}, {5}, 0, 2);
  matmul({3}, {5}, 0, 2);

  model_builder b;
  b.input("x", {4, 3});
  b.constant("w", random_floats(r, {3, 5}, -1.0F, 1.0F));
  b.constant("c", random_floats(r, {5}, -1.0F, 1.0F));
  const std::string y = b.add("Gemm", {"x", "w", "c"}, {{"alpha", real(2.0F)}});
  b.output(b.add("Add", {y, "c"}));
  check_same_results(simplified(b.get()), b.get(), {{"x", random_floats(r, {4, 3}, -2.0F, 2.0F)}});
}

TEST_CASE("optimize: a MatMul stays one where only some sizes of a batch make it one of matrices") {
  test::random_source r(51);
  INFO("seed ", r.seed());
  for (const bool is_squeezed : {true, false}) {
    model_builder b;
    b.input("x", is_squeezed ? shape{-1, 4, 8} : shape{-1, 8});
    b.constant("w", random_floats(r, {8, 5}, -1.0F, 1.0F));
    b.constant("c", random_floats(r, {5}, -1.0F, 1.0F));
    const std::string x = is_squeezed ? b.add("Squeeze", {"x"}) : "x";
    b.output(b.add("Add", {b.add("MatMul", {x, "w"}), "c"}));
    const graph::model m = simplified(b.get());
    CHECK(operators(m) == (is_squeezed ? "Squeeze MatMul Add" : "Gemm"));
    for (const std::int64_t n : {1, 3}) {
      const shape in = is_squeezed ? shape{n, 4, 8} : shape{n, 8};
      check_same_results(m, b.get(), {{"x", random_floats(r, in, -1.0F, 1.0F)}});
    }
  }
}

TEST_CASE("optimize: nodes that nothing uses do not keep others from being folded") {
  test::random_source r(52);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 5, 5});
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  const std::string conv = b.add("Conv", {"x", "w"});
  const std::string normal = add_batch_norm(b, r, conv, 4);
  b.output(b.add("Relu", {normal}));
  b.add("Neg", {b.add("Abs", {conv})});
  b.add("Neg", {normal});
  const tensors inputs{{"x", random_floats(r, {1, 3, 5, 5}, -1.0F, 1.0F)}};
  const graph::model m = simplified(b.get());
  CHECK(operators(m) == "Conv Relu");
  check_same_results(m, b.get(), inputs);
  const graph::model fused = graph::for_execution(b.get());
  CHECK(operators(fused) == "detent.Conv");
  check_same_results(fused, b.get(), inputs);
}

TEST_CASE("optimize: an Identity stays between an output and what is multiplied behind others") {
  const tensors inputs{{"x", test::floats({2, 3}, {-1.0F, 2.0F, 3.0F, -4.0F, 5.0F, 6.0F})}};
  for (const bool is_output_first : {true, false}) {
    for (const bool is_transposed : {true, false}) {
      INFO("output first: ", is_output_first, ", Transpose: ", is_transposed);
      model_builder b;
      b.input("x", {2, 3});
      const std::string relu = b.add("Relu", {"x"});
      const std::string early = is_output_first ? b.add("Identity", {relu}) : std::string();
      const std::string same = b.add("Identity", {b.add("Identity", {relu})});
      const std::string y = b.add(is_transposed ? "Transpose" : "Neg", {same});
      const std::string out = is_output_first ? early : b.add("Identity", {relu});
      b.output(y);
      b.output(out);
      graph::model m = b.get();
      graph::remove_no_ops(m);
      graph::sort_and_check(m);
      CHECK(count(m, "Identity") == (is_transposed ? 1U : 0U));
      CHECK(first(m, is_transposed ? "Transpose" : "Neg").inputs[0] ==
            (is_transposed ? relu : out));
      check_same_results(m, b.get(), inputs, true);
    }
  }
}

TEST_CASE("optimize: Identity and Dropout go, names of outputs stay") {
  const tensors inputs{{"x", test::floats({2}, {-1.0F, 2.0F})}};
  model_builder b(13);
  b.input("x", {2});
  b.constant("c", test::floats({2}, {1.0F, -1.0F}));
  const std::string same = b.add("Identity", {"x"});
  const std::string relu = b.add("Relu", {b.add("Dropout", {same})});
  const std::string out = b.add("Identity", {relu});
  b.output(out);
  b.output(b.add("Identity", {out}));                   // an output of an output
  b.output(b.add("Identity", {"x"}));                   // an input as it is
  b.output(b.add("Dropout", {"c"}));                    // a constant as it is
  b.output(b.add("Relu", {b.add("Identity", {"c"})}));  // a constant computed
  const graph::model m = simplified(b.get());
  CHECK(count(m, "Relu", "") <= 2);
  CHECK(count(m, "Dropout", "") + count(m, "Identity", "") <= 4);
  check_same_results(m, b.get(), inputs, true);
}

TEST_CASE("optimize: rows of additions and normalizations go into a layer, at once") {
  test::random_source r(437);
  INFO("seed ", r.seed());
  // What stands behind the layer: additions of a constant and normalizations.
  for (const std::string behind : {"bn", "add bn", "bn bn", "bn add bn", "add bn bn", "bn add"}) {
    for (const bool is_product : {false, true}) {
      CAPTURE(behind);
      CAPTURE(is_product);
      model_builder b(13);
      std::string y;
      if (is_product) {
        b.input("x", {4, 3});
        y = b.add("MatMul", {"x", b.constant("w", random_floats(r, {3, 5}, -1.0F, 1.0F))});
      } else {
        b.input("x", {2, 3, 4, 4});
        y = b.add("Conv", {"x", b.constant("w", random_floats(r, {5, 3, 3, 3}, -1.0F, 1.0F))});
      }
      std::size_t additions = 0;
      for (std::size_t at = 0; at < behind.size(); ++at) {
        if (behind[at] == 'b') {
          y = add_batch_norm(b, r, y, 5);
          at += 1;
        } else if (behind[at] == 'a') {
          const shape dims = is_product ? shape{5} : shape{1, 5, 1, 1};
          y = b.add("Add", {y, b.constant("c" + std::to_string(additions++),
                                          random_floats(r, dims, -1.0F, 1.0F))});
          at += 2;
        }
      }
      b.output(b.add("Relu", {y}));
      const graph::model m = simplified(b.get());
      // A layer that has a bias takes no addition, and so no normalization behind that.
      const bool stays = behind.rfind("bn add", 0) == 0;
      CHECK(count(m, "BatchNormalization", "") == (behind == "bn add bn" ? 1 : 0));
      CHECK(m.nodes.size() == (!stays ? 2U : behind == "bn add" ? 3U : 4U));
      CHECK(graph::to_onnx(simplified(m)) == graph::to_onnx(m));
      const tensors inputs{{"x", random_floats(r, b.get().inputs[0].dims, -2.0F, 2.0F)}};
      check_same_results(m, b.get(), inputs);
      // A second plan leaves alone what the first one does.
      graph::quantization_scope scope;
      scope.ignored.first_layer = true;
      const graph::quantization_plan plan(b.get(), scope);
      CHECK(plan.layers().empty());
      CHECK(graph::quantization_plan(plan, plan.float_model()).layers().empty());
      scope.ignored = {};
      scope.ignored.names = {b.get().nodes[0].name};
      const graph::quantization_plan named(b.get(), scope);
      CHECK(named.layers().empty());
      CHECK(graph::quantization_plan(named, named.float_model()).layers().empty());
    }
  }
}

TEST_CASE("optimize: Pad gets the pads of all dimensions where they are certain") {
  test::random_source r(438);
  const auto pads_after = [](const model_builder& b) {
    const graph::model m = simplified(b.get());
    for (const graph::node& n : m.nodes) {
      if (n.is("Pad") && (n.inputs.size() < 4 || n.inputs[3].empty())) {
        return test::values_of<std::int64_t>(*m.initializer(n.inputs[1]));
      }
    }
    return std::vector<std::int64_t>();
  };
  for (const element_type type : {element_type::s32, element_type::s64}) {
    for (const bool has_value : {false, true}) {
      model_builder b(18);
      b.input("x", {-1, 3, 4, 5});
      b.constant("pads", {1, 2, -1, 3});
      b.constant("value", test::floats({}, {2.5F}));
      b.constant("axes", type == element_type::s64
                             ? test::make_tensor<std::int64_t>(type, {2}, {-1, 2})
                             : test::make_tensor<std::int32_t>(type, {2}, {-1, 2}));
      const std::string value = has_value ? "value" : "";
      b.output(b.add("Pad", {b.add("Relu", {"x"}), "pads", value, "axes"}));
      CHECK(pads_after(b) == std::vector<std::int64_t>{0, 0, 2, 1, 0, 0, 3, -1});
      check_same_results(simplified(b.get()), b.get(),
                         {{"x", random_floats(r, {2, 3, 4, 5}, -2.0F, 2.0F)}}, true);
    }
  }
  // The rank of the squeezed value depends on the open dimension.
  model_builder open(18);
  open.input("x", {-1, 3});
  open.constant("pads", {1, 2});
  open.constant("axes", {0});
  open.output(open.add("Pad", {open.add("Squeeze", {"x"}), "pads", "", "axes"}));
  CHECK(pads_after(open).empty());
  check_same_results(simplified(open.get()), open.get(),
                     {{"x", random_floats(r, {1, 3}, -2.0F, 2.0F)}}, true);
  // Axes that a run gives.
  model_builder given(18);
  given.input("x", {2, 3});
  given.input("axes", {1}, element_type::s64);
  given.constant("pads", {1, 2});
  given.output(given.add("Pad", {"x", "pads", "", "axes"}));
  CHECK(pads_after(given).empty());
  // Wrong axes stay for the run to name.
  for (const std::vector<std::int64_t>& axes :
       std::vector<std::vector<std::int64_t>>{{1, -1}, {0, 2}, {0, -3}, {0}}) {
    model_builder wrong(18);
    wrong.input("x", {-1, 3});
    wrong.constant("pads", {1, 2, 3, 4});
    wrong.constant("axes", axes);
    wrong.output(wrong.add("Pad", {"x", "pads", "", "axes"}));
    CHECK(pads_after(wrong).empty());
  }
}

TEST_CASE("optimize: activations are fused without a change of a bit") {
  test::random_source r(6);
  INFO("seed ", r.seed());
  const std::vector<std::string> activations{"Relu", "Clip", "Clip 0 6", "Clip -1 inf",
                                             "Clip -inf 0.5"};
  for (const char* op : {"Conv", "Conv depthwise", "Conv 1x1", "Gemm"}) {
    for (const std::string& activation : activations) {
      INFO(op, " ", activation);
      model_builder b;
      const bool gemm = std::string(op) == "Gemm";
      const shape in = gemm ? shape{5, 8} : shape{2, 8, 7, 7};
      b.input("x", in);
      test::attributes a;
      shape w{9, 8, 3, 3};
      if (gemm) {
        w = {8, 9};
      } else if (std::string(op) == "Conv depthwise") {
        w = {8, 1, 3, 3};
        a["group"] = number(8);
      } else if (std::string(op) == "Conv 1x1") {
        w = {9, 8, 1, 1};
      }
      b.constant("w", random_floats(r, w, -1.0F, 1.0F));
      b.constant("b", random_floats(r, {gemm ? 9 : w[0]}, -1.0F, 1.0F));
      const std::string y = b.add(gemm ? "Gemm" : "Conv", {"x", "w", "b"}, a);
      std::vector<std::string> inputs{y};
      const std::string bounds = activation.substr(0, 4) == "Clip" ? activation.substr(4) : "";
      if (bounds == " 0 6") {
        inputs = {y, b.scalar("lo", 0.0F), b.scalar("hi", 6.0F)};
      } else if (bounds == " -1 inf") {
        inputs = {y, b.scalar("lo", -1.0F)};
      } else if (bounds == " -inf 0.5") {
        inputs = {y, "", b.scalar("hi", 0.5F)};
      }
      b.output(b.add(activation.substr(0, 4), inputs));
      graph::model fused = b.get();
      graph::fuse_activations(fused);
      CHECK(fused.nodes.size() == 1);
      for (const float size : {1.0F, 100.0F}) {
        check_same_results(fused, b.get(), {{"x", random_floats(r, in, -size, size)}}, true);
      }
      // NaN goes through both alike.
      tensor odd = random_floats(r, in, -1.0F, 1.0F);
      odd.mutable_data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
      odd.mutable_data<float>()[9] = std::numeric_limits<float>::infinity();
      check_same_results(fused, b.get(), {{"x", odd}}, true);
    }
  }
}

TEST_CASE("optimize: sums are fused into convolutions without a change of a bit") {
  test::random_source r(60);
  INFO("seed ", r.seed());
  const auto filters = [&](model_builder& b, const std::string& name, const shape& dims) {
    return b.constant(name, random_floats(r, dims, -1.0F, 1.0F));
  };
  struct sum {
    shape x, w, addend;
    std::int64_t group = 1;
  };
  const sum sums[] = {// The summand has the shape of the result.
                      {{2, 8, 7, 7}, {9, 8, 3, 3}, {2, 9, 5, 5}},
                      {{2, 8, 7, 7}, {8, 1, 3, 3}, {2, 8, 5, 5}, 8},
                      {{1, 8, 6, 6}, {40, 4, 1, 1}, {1, 40, 6, 6}, 2},
                      {{2, 8, 7}, {9, 8, 3}, {2, 9, 5}},
                      // The summand is repeated: a line, and a value for each channel.
                      {{2, 8, 7, 7}, {9, 8, 3, 3}, {5}},
                      {{2, 8, 7, 7}, {9, 8, 3, 3}, {9, 1, 1}},
                      // The result of the convolution is repeated.
                      {{1, 8, 7, 7}, {9, 8, 3, 3}, {2, 9, 5, 5}},
                      {{1, 8, 3, 3}, {9, 8, 3, 3}, {3, 1, 9, 4, 4}},
                      // Three spatial axes, and no images at all.
                      {{1, 8, 4, 4, 4}, {9, 8, 3, 3, 3}, {1, 9, 2, 2, 2}},
                      {{0, 8, 7, 7}, {9, 8, 3, 3}, {1, 9, 5, 5}}};
  for (const sum& s : sums) {
    for (const bool first : {true, false}) {
      for (const std::string activation : {"", "Relu", "Clip"}) {
        INFO(graph::to_string(s.addend), " to ", graph::to_string(s.x), " ", activation);
        model_builder b;
        b.input("x", s.x);
        b.input("z", s.addend);
        const std::string late = b.add("Neg", {"z"});
        filters(b, "w", s.w);
        filters(b, "b", {s.w[0]});
        const std::string y = b.add("Conv", {"x", "w", "b"}, {{"group", number(s.group)}});
        const std::string other = b.add("Abs", {late});
        std::string out = b.add("Add", first ? std::vector{y, other} : std::vector{other, y});
        if (!activation.empty()) {
          out = activation == "Clip" ? b.add("Clip", {out, b.scalar("lo", -1.0F)})
                                     : b.add("Relu", {out});
        }
        b.output(out);
        graph::model fused = b.get();
        graph::fuse_additions(fused);
        graph::fuse_activations(fused);
        CHECK(fused.nodes.size() == 3);
        check_same_results(fused, b.get(),
                           {{"x", random_floats(r, s.x, -2.0F, 2.0F)},
                            {"z", random_floats(r, s.addend, -9.0F, 9.0F)}},
                           true);
      }
    }
  }
  // Two convolutions, of which the first one waits for the second one; a sum that is taken twice.
  model_builder b;
  b.input("x", {1, 4, 6, 6});
  filters(b, "w1", {4, 4, 1, 1});
  filters(b, "w2", {4, 4, 3, 3});
  const test::attributes padded{{"pads", list({1, 1, 1, 1})}};
  const std::string left = b.add("Conv", {"x", "w1"});
  const std::string right = b.add("Conv", {"x", "w2"}, padded);
  const std::string joined = b.add("Relu", {b.add("Add", {left, right})});
  const std::string again = b.add("Add", {b.add("Conv", {joined, "w2"}, padded), joined});
  b.output(b.add("Mul", {again, b.add("Sigmoid", {again})}));
  graph::model fused = b.get();
  graph::fuse_additions(fused);
  graph::fuse_activations(fused);
  CHECK(fused.nodes.size() == 5);
  check_same_results(fused, b.get(), {{"x", random_floats(r, {1, 4, 6, 6}, -2.0F, 2.0F)}}, true);
}

TEST_CASE("optimize: biases and sums are fused into products, bit for bit") {
  test::random_source r(65);
  INFO("seed ", r.seed());
  struct sum {
    shape x, w, addend;
  };
  const sum sums[] = {
      // A bias, with ones in front of it, and for a single row.
      {{2, 5, 7}, {7, 33}, {33}},
      {{2, 5, 7}, {7, 33}, {1, 1, 33}},
      {{7}, {7, 33}, {33}},
      // The summand has the shape of the result.
      {{2, 5, 7}, {7, 33}, {2, 5, 33}},
      {{5, 7}, {7, 1}, {5, 1}},
      // The summand is repeated: one number, one for each row, rows of the second axis.
      {{2, 5, 7}, {7, 33}, {}},
      {{5, 7}, {7, 33}, {5, 1}},
      {{33, 7}, {7, 33}, {33, 1}},
      {{2, 5, 7}, {7, 33}, {5, 33}},
      // The product is repeated.
      {{5, 7}, {7, 33}, {3, 1, 33}},
      {{7}, {7, 33}, {1, 33}},
      {{5, 7}, {7, 1}, {5, 6}},
      // Nothing to add up, and no rows at all.
      {{5, 0}, {0, 33}, {33}},
      {{0, 7}, {7, 33}, {33}}};
  for (const sum& s : sums) {
    for (const bool is_constant : {true, false}) {
      for (const std::string activation : {"", "Relu", "Clip"}) {
        INFO(graph::to_string(s.addend), " to ", graph::to_string(s.x), " ", is_constant,
             activation);
        model_builder b;
        b.input("x", s.x);
        const tensor z = random_floats(r, s.addend, -9.0F, 9.0F);
        if (is_constant) {
          b.constant("z", z);
        } else {
          b.input("z", s.addend);
        }
        b.constant("w", random_floats(r, s.w, -1.0F, 1.0F));
        const std::string y = b.add("MatMul", {"x", "w"});
        std::string out = b.add("Add", is_constant ? std::vector<std::string>{"z", y}
                                                   : std::vector<std::string>{y, "z"});
        if (!activation.empty()) {
          out = activation == "Clip" ? b.add("Clip", {out, b.scalar("lo", -1.0F)})
                                     : b.add("Relu", {out});
        }
        b.output(out);
        graph::model fused = b.get();
        graph::fuse_additions(fused);
        graph::fuse_activations(fused);
        REQUIRE(fused.nodes.size() == 1);
        CHECK(count(fused, "MatMul", "detent") == 1);
        tensors inputs{{"x", random_floats(r, s.x, -2.0F, 2.0F)}};
        if (!is_constant) {
          inputs["z"] = z;
        }
        check_same_results(fused, b.get(), inputs, true);
      }
    }
  }
  // A file may have such a node, too, with a right side that is no matrix.
  for (const shape& w : {shape{2, 7, 33}, shape{7}}) {
    model_builder wrong;
    wrong.input("x", {5, 7});
    wrong.constant("w", random_floats(r, w, -1.0F, 1.0F));
    wrong.constant("z", random_floats(r, {1}, -1.0F, 1.0F));
    wrong.output(wrong.add("MatMul", {"x", "w", "z"}, {}, "detent"));
    test::check_graph_error(detent::error_kind::bad_file, {"detent.MatMul", "axes, not 2"}, [&] {
      static_cast<void>(test::outputs_of(wrong.get(), {{"x", random_floats(r, {5, 7}, -1, 1)}}));
    });
  }
  // Products of stacks, and of right sides that are computed, stay as they are.
  model_builder b;
  b.input("x", {2, 5, 7});
  b.input("v", {7, 3});
  b.constant("w", random_floats(r, {2, 7, 3}, -1.0F, 1.0F));
  b.constant("z", random_floats(r, {3}, -1.0F, 1.0F));
  b.output(b.add("Add", {b.add("MatMul", {"x", "w"}), "z"}));
  b.output(b.add("Add", {b.add("MatMul", {"x", "v"}), "z"}));
  graph::model same = b.get();
  graph::fuse_additions(same);
  CHECK(same.nodes.size() == 4);
}

TEST_CASE("optimize: a fused sum takes summands and images of other shapes in later runs") {
  test::random_source r(62);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 8, -1, -1});
  b.input("z", {});
  b.constant("w", random_floats(r, {9, 8, 3, 3}, -1.0F, 1.0F));
  b.output(b.add("Relu", {b.add("Add", {b.add("Conv", {"x", "w"}), "z"})}));
  graph::model m = b.get();
  m.inputs[1].has_shape = false;
  const graph::model fused = graph::for_execution(m);
  REQUIRE(fused.nodes.size() == 1);
  detent::thread_pool pool(2);
  graph::executor first(fused);
  graph::executor second(first, {.parallel = pool.parallel()});
  graph::executor expected(m);
  const std::pair<shape, shape> runs[] = {
      {{1, 8, 5, 5}, {1, 9, 3, 3}}, {{2, 8, 20, 31}, {2, 9, 18, 29}},
      {{2, 8, 20, 31}, {9, 1, 1}},  {{1, 8, 3, 3}, {4, 9, 2, 2}},
      {{1, 8, 5, 5}, {}},           {{1, 8, 5, 5}, {1, 9, 3, 3}}};
  for (const auto& dims : runs) {
    const shape& x = dims.first;  // clang 14 cannot capture structured bindings
    const shape& z = dims.second;
    INFO(graph::to_string(x), " and ", graph::to_string(z));
    const tensors inputs{{"x", random_floats(r, x, -2.0F, 2.0F)},
                         {"z", random_floats(r, z, -9.0F, 9.0F)}};
    const auto wanted = values_of<float>(expected.run(inputs)[0]);
    for (graph::executor* e : {&first, &second}) {
      const tensor y = e->run(inputs)[0];
      CHECK(y.dims() == expected.run(inputs)[0].dims());
      CHECK(difference(values_of<float>(y), wanted) == "");
    }
  }
}

TEST_CASE("optimize: fusing twice changes no bound") {
  model_builder b;
  b.input("x", {1, 1, 1, 4});
  b.constant("w", test::floats({1, 1, 1, 1}, {1.0F}));
  const std::string y = b.add("Conv", {"x", "w"});
  const std::string z = b.add("Clip", {y, b.scalar("a", 0.0F), b.scalar("b", 1.0F)});
  b.output(b.add("Clip", {z, b.scalar("c", 5.0F), b.scalar("d", 6.0F)}));
  const graph::model twice = graph::for_execution(graph::for_execution(b.get()));
  check_same_results(twice, b.get(), {{"x", test::floats({1, 1, 1, 4}, {-3.0F, 0.5F, 5.5F, 9.0F})}},
                     true);
}

TEST_CASE("executor: tables of codes are those of the types of the run") {
  model_builder b;
  b.input("x", {4}, element_type::undefined);
  b.scalar("s", 0.5F);
  b.scalar("t", 0.25F);
  const std::vector<std::uint8_t> codes{0, 3, 100, 253};
  b.constant("zero", tensor::of<std::uint8_t>(element_type::u8, {}, std::span(codes).first(1)));
  b.constant("c", tensor::of<std::uint8_t>(element_type::u8, {4}, codes));
  b.output(b.add("QLinearConcat", {"t", "zero", "c", "t", "zero", "x", "s", ""},
                 {{"axis", number(0)}}, "com.microsoft"));
  b.output(b.add("QLinearSigmoid", {"x", "s", "", "t", ""}, {}, "com.microsoft"));
  graph::executor e(b.get());
  for (int round = 0; round < 2; ++round) {
    for (const element_type type : {element_type::u8, element_type::s8}) {
      const tensors inputs{{"x", tensor::of<std::uint8_t>(type, {4}, codes)}};
      const std::vector<tensor> again = e.run(inputs);
      const std::vector<tensor> fresh = graph::executor(b.get()).run(inputs);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(again[i].type() == (i == 0 ? element_type::u8 : type));
        CHECK(values_of<std::uint8_t>(again[i]) == values_of<std::uint8_t>(fresh[i]));
      }
    }
  }
}

TEST_CASE("optimize: sums that cannot be fused stay") {
  test::random_source r(61);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 2, 3, 3});
  b.input("v", {2, 2, 1, 1});
  b.constant("w", random_floats(r, {2, 2, 1, 1}, -1.0F, 1.0F));
  b.constant("c", random_floats(r, {1, 2, 3, 3}, -1.0F, 1.0F));
  b.output(b.add("Add", {b.add("Conv", {"x", "w"}), "c"}));  // a constant
  b.output(b.add("Add", {b.add("Conv", {"x", "v"}), "x"}));  // weights of an unknown type
  const std::string doubled = b.add("Conv", {"x", "w"});
  b.output(b.add("Add", {doubled, doubled}));
  const std::string twice = b.add("Conv", {"x", "w"});
  b.output(b.add("Add", {twice, "x"}));
  b.output(b.add("Neg", {twice}));
  const std::string seen = b.add("Conv", {"x", "w"});
  b.output(seen);
  b.output(b.add("Add", {seen, "x"}));
  graph::model fused = b.get();
  graph::fuse_additions(fused);
  CHECK(fused.nodes.size() == b.get().nodes.size());
  CHECK(count(fused, "Conv", "detent") == 0);
  check_same_results(fused, b.get(),
                     {{"x", random_floats(r, {1, 2, 3, 3}, -1.0F, 1.0F)},
                      {"v", random_floats(r, {2, 2, 1, 1}, -1.0F, 1.0F)}},
                     true);

  // Weights of 16 bits: the result is rounded before the sum.
  model_builder half;
  half.input("x", {1, 2, 3, 3}, element_type::f16);
  half.constant("w", graph::detail::float_to_half(random_floats(r, {2, 2, 1, 1}, -1.0F, 1.0F),
                                                  element_type::f16));
  half.output(half.add("Add", {half.add("Conv", {"x", "w"}), "x"}));
  graph::model rounded = half.get();
  graph::fuse_additions(rounded);
  CHECK(rounded.nodes.size() == 2);
}

TEST_CASE("optimize: a sum stays where a sub-graph sees the convolution") {
  // The branch takes the result of the Conv from the model around it.
  for (const bool captured : {false, true}) {
    model_builder b;
    b.input("x", {1, 2, 3, 3});
    b.input("c", {}, element_type::boolean);
    b.constant("w", test::floats({2, 2, 1, 1}, {1.0F, -1.0F, 0.5F, 2.0F}));
    const std::string y = b.add("Conv", {"x", "w"});
    const std::string sum = b.add("Add", {y, "x"});
    b.output(sum);
    const auto branch = [](const std::string& type, const std::string& x) {
      model_builder body;
      body.output(body.add(type, {x}));
      return graph::attribute::of(static_cast<graph::graph_body>(body.get()));
    };
    b.output(b.add(
        "If", {"c"},
        {{"then_branch", branch("Abs", captured ? y : "x")}, {"else_branch", branch("Neg", "x")}}));
    graph::model fused = b.get();
    graph::fuse_additions(fused);
    CHECK(count(fused, "Conv", "detent") == (captured ? 0 : 1));
    test::random_source r(64);
    for (const std::uint8_t c : {std::uint8_t{1}, std::uint8_t{0}}) {
      const tensors inputs{{"x", random_floats(r, {1, 2, 3, 3}, -1.0F, 1.0F)},
                           {"c", test::make_tensor<std::uint8_t>(element_type::boolean, {}, {c})}};
      check_same_results(fused, b.get(), inputs, true);
    }
  }
}

TEST_CASE("optimize: activations that cannot be fused stay") {
  model_builder b;
  b.input("x", {1, 1, 3, 3});
  b.input("lo", {});
  b.constant("w", test::floats({1, 1, 1, 1}, {2.0F}));
  const std::string bounded = b.add("Conv", {"x", "w"});
  b.output(b.add("Clip", {bounded, "lo"}));  // the bound comes from outside
  const std::string twice = b.add("Conv", {"x", "w"});
  b.output(b.add("Relu", {twice}));
  b.output(b.add("Neg", {twice}));
  const std::string seen = b.add("Conv", {"x", "w"});
  b.output(seen);
  b.output(b.add("Relu", {seen}));
  graph::model fused = b.get();
  graph::fuse_activations(fused);
  CHECK(fused.nodes.size() == b.get().nodes.size());
  test::random_source r(7);
  check_same_results(
      fused, b.get(),
      {{"x", random_floats(r, {1, 1, 3, 3}, -1.0F, 1.0F)}, {"lo", test::floats({}, {0.25F})}},
      true);
  // A bound of two elements is wrong, and stays it.
  model_builder two;
  two.input("x", {1, 1, 3, 3});
  two.constant("w", test::floats({1, 1, 1, 1}, {2.0F}));
  two.constant("bounds", test::floats({2}, {0.0F, 1.0F}));
  two.output(two.add("Clip", {two.add("Conv", {"x", "w"}), "bounds"}));
  graph::model wrong = two.get();
  graph::fuse_activations(wrong);
  CHECK(wrong.nodes.size() == 2);
}

TEST_CASE("optimize: constants are computed once, quantization pairs are kept") {
  model_builder b;
  b.input("x", {4});
  b.constant("c", test::floats({4}, {1.0F, 2.0F, 3.0F, 4.0F}));
  const std::string c = b.add("Neg", {b.add("Sqrt", {"c"})});
  const std::string q = b.pair("c", 0.5F, 10);
  b.output(b.add("Add", {b.add("Mul", {"x", c}), q}));
  const graph::model m = simplified(b.get());
  CHECK(count(m, "Sqrt", "") == 0);
  CHECK(count(m, "Neg", "") == 0);
  CHECK(count(m, "DequantizeLinear", "") == 1);
  check_same_results(m, b.get(), {{"x", test::floats({4}, {1.0F, -1.0F, 0.5F, 2.0F})}}, true);
}

TEST_CASE("optimize: random networks compute what they did") {
  for (std::uint64_t seed = 100; seed < 140; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    model_builder b;
    std::int64_t channels = r.integer(1, 5);
    b.input("x", {2, channels, 8, 8});
    std::vector<std::pair<std::string, std::int64_t>> values{{"x", channels}};
    for (int i = 0; i < 12; ++i) {
      const auto [v, c] =
          values[r.size(values.size() < 3 ? 0 : values.size() - 3, values.size() - 1)];
      const std::string id = std::to_string(i);
      std::int64_t made = c;
      std::string out;
      switch (r.integer(0, 8)) {
        case 0:
        case 1:
        case 2: {
          const bool depthwise = r.chance(30);
          made = depthwise ? c : r.integer(1, 6);
          const std::int64_t k = r.chance(50) ? 1 : 3;
          b.constant("w" + id, random_floats(r, {made, depthwise ? 1 : c, k, k}, -1.0F, 1.0F));
          std::vector<std::string> inputs{v, "w" + id};
          if (r.chance(50)) {
            inputs.push_back(b.constant("b" + id, random_floats(r, {made}, -1.0F, 1.0F)));
          }
          out = b.add(
              "Conv", inputs,
              {{"pads", list({k / 2, k / 2, k / 2, k / 2})}, {"group", number(depthwise ? c : 1)}});
          break;
        }
        case 3:
          out = add_batch_norm(b, r, v, c);
          break;
        case 4:
          out = b.add("Relu", {v});
          break;
        case 5:
          out = b.add("Clip", {v, b.scalar("lo" + id, -1.0F), b.scalar("hi" + id, 3.0F)});
          break;
        case 6:
          b.constant("c" + id, random_floats(r, {c, 1, 1}, -1.0F, 1.0F));
          out = b.add("Add", {v, "c" + id});
          break;
        case 7:
          out = b.add("Identity", {v});
          break;
        default: {
          std::string other = v;
          for (const auto& [name, size] : values) {
            other = size == c ? name : other;
          }
          out = b.add("Add", {v, other});
        }
      }
      values.emplace_back(out, made);
      if (r.chance(15)) {
        b.output(out);
      }
    }
    if (!b.get().is_output(values.back().first)) {
      b.output(values.back().first);
    }
    const tensors inputs{{"x", random_floats(r, {2, channels, 8, 8}, -1.0F, 1.0F)}};
    graph::model m = simplified(b.get());
    check_same_results(m, b.get(), inputs);
    graph::model fused = m;
    graph::fuse_additions(fused);
    graph::fuse_activations(fused);
    check_same_results(fused, m, inputs, true);
  }
}

// --------------------------------------------------------------------------------------------
// opsets

TEST_CASE("opset: models of version 7 to 12 compute the same in 13") {
  test::random_source r(8);
  INFO("seed ", r.seed());
  const auto floats_attribute = [](std::vector<float> values) {
    graph::attribute a;
    a.kind = graph::attribute::kind_type::floats;
    a.floats = std::move(values);
    return a;
  };
  const auto check = [&](std::int64_t opset, const shape& in, const std::string& op,
                         const test::attributes& a, std::vector<std::string> more = {},
                         const std::vector<std::vector<float>>& constants = {}) {
    INFO("opset ", opset, " ", op);
    model_builder b(opset);
    b.input("x", in);
    std::vector<std::string> inputs{"x"};
    for (std::size_t i = 0; i < more.size(); ++i) {
      b.constant(more[i],
                 test::floats({static_cast<std::int64_t>(constants[i].size())}, constants[i]));
      inputs.push_back(more[i]);
    }
    b.output(b.add("Neg", {b.add(op, inputs, a)}));
    graph::model upgraded = b.get();
    graph::upgrade_opset(upgraded);
    graph::sort_and_check(upgraded);
    CHECK(upgraded.opset() == 13);
    check_same_results(upgraded, b.get(), {{"x", random_floats(r, in, -3.0F, 3.0F)}}, true);
  };
  for (const std::int64_t opset : {7, 8, 9, 10, 11, 12}) {
    if (opset < 11) {
      check(opset, {2, 3}, "Clip", {{"min", real(-1.0F)}, {"max", real(0.5F)}});
      check(opset, {2, 3}, "Clip", {{"max", real(0.5F)}});
      check(opset, {2, 3}, "Clip", {});
      check(opset, {2, 3}, "Pad", {{"pads", list({1, 0, 0, 2})}, {"value", real(1.5F)}});
      check(opset, {4, 5}, "Pad", {{"pads", list({1, 0, 2, 2})}, {"mode", text("reflect")}});
    }
    if (opset < 10) {
      check(opset, {4, 5}, "Slice",
            {{"starts", list({1, -4})}, {"ends", list({3, 100})}, {"axes", list({0, 1})}});
      check(opset, {4, 5}, "Slice", {{"starts", list({1})}, {"ends", list({3})}});
      const test::attributes linear{{"mode", text("linear")}};
      if (opset < 9) {
        check(opset, {1, 1, 3, 4}, "Upsample", {{"scales", floats_attribute({1, 1, 2, 3})}});
      } else {
        check(opset, {1, 1, 3, 4}, "Upsample", {}, {"scales"}, {{1, 1, 2, 3}});
        check(opset, {1, 1, 3, 4}, "Upsample", linear, {"scales"}, {{1, 1, 2, 2}});
        check(opset, {1, 1, 3, 4}, "Upsample", {{"mode", text("bilinear")}}, {"scales"},
              {{1, 1, 2, 2}});
      }
    }
    if (opset < 10) {
      const graph::attribute bias = floats_attribute({0.5F, -3.25F, 2.0F});
      check(opset, {2, 3, 4, 5}, "ImageScaler", {{"bias", bias}, {"scale", real(0.3F)}});
      check(opset, {1, 3, 2, 2}, "ImageScaler", {{"bias", bias}});
      check(opset, {2, 3, 4}, "ImageScaler", {{"bias", bias}, {"scale", real(-2.0F)}});
    }
    if (opset == 10) {
      check(opset, {1, 1, 3, 4}, "Resize", {}, {"scales"}, {{1, 1, 2, 0.5F}});
      check(opset, {1, 1, 3, 4}, "Resize", {{"mode", text("linear")}}, {"scales"},
            {{1, 1, 1.5F, 2}});
      // Nearest rounds up where an axis shrinks, and down where it grows.
      for (const std::vector<float>& scales :
           {std::vector<float>{1, 1, 0.6F, 0.6F}, std::vector<float>{1, 1, 1, 0.7F},
            std::vector<float>{1, 1, 0.6F, 1.5F}, std::vector<float>{1, 1, 2, 0.6F},
            std::vector<float>{1, 0.7F, 2.5F, 1}}) {
        check(opset, {1, 3, 5, 7}, "Resize", {}, {"scales"}, {scales});
      }
    }
    check(opset, {1, 3, 1}, "Squeeze", {{"axes", list({0, 2})}});
    check(opset, {1, 3, 1}, "Squeeze", {});
    check(opset, {2, 3}, "Unsqueeze", {{"axes", list({0, 3})}});
    check(opset, {2, 3, 4}, "ReduceSum", {{"axes", list({1})}, {"keepdims", number(0)}});
    check(opset, {2, 3, 4}, "ReduceMean", {{"axes", list({1})}});
    check(opset, {2, 3}, "Dropout", {{"ratio", real(0.25F)}});
    for (const char* op : {"Softmax", "LogSoftmax"}) {
      for (const std::int64_t axis : {0, 1, 2}) {
        check(opset, {2, 3, 4}, op, {{"axis", number(axis)}});
      }
      check(opset, {2, 3, 4}, op, {});
      check(opset, {2, 3, 1, 1}, op, {{"axis", number(1)}});
      if (opset >= 11) {
        check(opset, {2, 3, 4}, op, {{"axis", number(-2)}});
      }
    }
  }
  // A softmax behind other nodes, whose shape they tell.
  model_builder b(9);
  b.input("x", {2, 3, 4});
  b.output(b.add("Softmax", {b.add("Relu", {b.add("Neg", {"x"})})}, {{"axis", number(1)}}));
  graph::model upgraded = b.get();
  graph::upgrade_opset(upgraded);
  graph::sort_and_check(upgraded);
  check_same_results(upgraded, b.get(), {{"x", random_floats(r, {2, 3, 4}, -3.0F, 3.0F)}}, true);

  // Split has two outputs.
  model_builder split(11);
  split.input("x", {2, 5});
  split.add("Split", {"x"}, {{"split", list({2, 3})}, {"axis", number(1)}});
  split.get().nodes[0].outputs = {"left", "right"};
  split.output("left");
  split.output("right");
  upgraded = split.get();
  graph::upgrade_opset(upgraded);
  check_same_results(upgraded, split.get(), {{"x", random_floats(r, {2, 5}, -3.0F, 3.0F)}}, true);

  model_builder old(6);
  old.input("x", {2});
  old.output(old.add("Relu", {"x"}));
  check_graph_error(error_kind::unsupported, {"opset 6"}, [&] { graph::upgrade_opset(old.get()); });

  model_builder recent(15);
  recent.input("x", {2});
  recent.output(recent.add("Relu", {"x"}));
  graph::upgrade_opset(recent.get());
  CHECK(recent.get().opset() == 15);
}

TEST_CASE("opset: rows of Softmax with open dimensions, types of bounds, masks, ends of slices") {
  test::random_source r(10);
  INFO("seed ", r.seed());
  const auto check = [&](model_builder& b, const tensors& inputs) {
    graph::model upgraded = b.get();
    graph::upgrade_opset(upgraded);
    graph::sort_and_check(upgraded);
    const std::vector<tensor> expected = test::outputs_of(b.get(), inputs);
    const std::vector<tensor> found = test::outputs_of(upgraded, inputs);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(found[i].type() == expected[i].type());
      REQUIRE(found[i].dims() == expected[i].dims());
      CHECK(std::equal(found[i].raw(), found[i].raw() + found[i].bytes(), expected[i].raw()));
    }
    return upgraded;
  };
  // An open dimension may be 1, but need not.
  for (const char* op : {"Softmax", "LogSoftmax", "Hardmax"}) {
    for (const shape& dims :
         {shape{-1, -1, -1}, shape{5, -1, -1}, shape{5, 4, -1}, shape{-1, 4, 3}, shape{-1, 4, 1}}) {
      INFO(op, " ", graph::to_string(dims));
      model_builder b(11);
      b.input("x", dims);
      b.output(b.add(op, {"x"}, {{"axis", number(1)}}));
      const bool is_one_row = dims[2] == 1;
      const tensor x = random_floats(r, {5, 4, is_one_row ? 1 : 3}, -3.0F, 3.0F);
      CHECK(check(b, {{"x", x}}).nodes.size() == (is_one_row ? 1U : 4U));
    }
  }
  const tensor wide =
      make_tensor(element_type::f64, {2, 3}, std::vector<double>{-3, -1, 0, 1, 2, 5});
  const tensor narrow =
      graph::detail::float_to_half(test::floats({2, 3}, {-3, -1, 0, 1, 2, 5}), element_type::f16);
  for (const tensor& x : {wide, narrow}) {
    model_builder clip(10);
    clip.input("x", {2, 3}, x.type());
    clip.output(clip.add("Clip", {"x"}, {{"min", real(-1.5F)}, {"max", real(1.5F)}}), x.type());
    check(clip, {{"x", x}});
    model_builder pad(10);
    pad.input("x", {2, 3}, x.type());
    pad.output(pad.add("Pad", {"x"}, {{"pads", list({1, 0, 0, 2})}, {"value", real(1.5F)}}),
               x.type());
    check(pad, {{"x", x}});
    if (x.type() == element_type::f64) {  // the mask is of the type of the data
      model_builder drop(9);
      drop.input("x", {2, 3}, x.type());
      drop.add("Dropout", {"x"});
      drop.get().nodes[0].outputs = {"y", "mask"};
      drop.output("y", x.type());
      drop.output(drop.add("Neg", {"mask"}), x.type());
      check(drop, {{"x", x}});
    }
  }
  constexpr std::int64_t int_max = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t end : {int_max, std::numeric_limits<std::int64_t>::max()}) {
    for (const element_type type : {element_type::s64, element_type::s32}) {
      model_builder b(10);
      b.input("x", {5, 2});
      const auto integers = [&](const char* name, const std::vector<std::int64_t>& values) {
        if (type == element_type::s64) {
          return b.constant(name, values);
        }
        std::vector<std::int32_t> short_values;
        for (const std::int64_t v : values) {
          short_values.push_back(static_cast<std::int32_t>(
              std::clamp<std::int64_t>(v, std::numeric_limits<std::int32_t>::min(), int_max)));
        }
        return b.constant(name, make_tensor(type, {2}, short_values));
      };
      b.output(
          b.add("Slice", {"x", integers("starts", {3, -int_max - 1}), integers("ends", {end, end}),
                          integers("axes", {0, 1}), integers("steps", {1, -1})}));
      const tensors inputs{{"x", random_floats(r, {5, 2}, -3.0F, 3.0F)}};
      check(b, inputs);
      // The same with nodes in the place of initializers, and in a sub-graph.
      model_builder nodes(10);
      nodes.input("x", {5, 2});
      for (const auto& [name, t] : b.get().initializers) {
        graph::attribute value;
        value.kind = graph::attribute::kind_type::t;
        value.t = t;
        nodes.add("Constant", {}, {{"value", value}});
        nodes.get().nodes.back().outputs = {name};
      }
      nodes.output(nodes.add("Slice", {"x", "starts", "ends", "axes", "steps"}));
      check(nodes, inputs);
      model_builder body(10);
      body.output(body.add("Slice", {"x", "starts", "ends", "axes", "steps"}));
      body.get().initializers = b.get().initializers;
      model_builder outer(10);
      outer.input("x", {5, 2});
      outer.constant("flag", make_tensor(element_type::boolean, {}, std::vector<std::uint8_t>{1}));
      const auto branch = graph::attribute::of(static_cast<graph::graph_body>(body.get()));
      outer.output(outer.add("If", {"flag"}, {{"then_branch", branch}, {"else_branch", branch}}));
      check(outer, inputs);
    }
  }
}

TEST_CASE("opset: nearest Resize rounds by the direction of each axis, whatever the scales are") {
  test::random_source r(53);
  INFO("seed ", r.seed());
  const auto upgraded = [](const model_builder& b) {
    graph::model m = b.get();
    graph::upgrade_opset(m);
    graph::sort_and_check(m);
    return m;
  };
  // Scales that are an input.
  model_builder given(10);
  given.input("x", {1, 1, 5, 7});
  given.input("scales", {4});
  given.output(given.add("Resize", {"x", "scales"}));
  for (const std::vector<float>& scales :
       {std::vector<float>{1, 1, 0.6F, 0.6F}, std::vector<float>{1, 1, 0.6F, 1.5F},
        std::vector<float>{1, 1, 2, 3}, std::vector<float>{1, 1, 1, 1}}) {
    check_same_results(
        upgraded(given), given.get(),
        {{"x", random_floats(r, {1, 1, 5, 7}, -1.0F, 1.0F)}, {"scales", test::floats({4}, scales)}},
        true);
  }
  // Scales that are computed from sizes, which are known if no dimension is open.
  for (const std::int64_t height : {std::int64_t{5}, std::int64_t{-1}}) {
    model_builder b(10);
    b.input("x", {1, 1, height, 7});
    b.constant("size", test::floats({4}, {1, 1, 3, 7}));
    const std::string dims = b.add("Cast", {b.add("Shape", {"x"})}, {{"to", number(1)}});
    b.output(b.add("Resize", {"x", b.add("Div", {"size", dims})}));
    const graph::model m = upgraded(b);
    CHECK(count(m, "Resize") == (height < 0 ? 2U : 1U));
    check_same_results(m, b.get(), {{"x", random_floats(r, {1, 1, 5, 7}, -1.0F, 1.0F)}}, true);
  }
  // Upsample only enlarges; a linear Resize does not round.
  model_builder upsample(9);
  upsample.input("x", {1, 1, 5, 7});
  upsample.input("scales", {4});
  upsample.output(upsample.add("Upsample", {"x", "scales"}));
  CHECK(operators(upgraded(upsample)) == "Resize");
  CHECK(upgraded(upsample).nodes[0].get_string("nearest_mode", "") == "floor");
  model_builder linear(10);
  linear.input("x", {1, 1, 5, 7});
  linear.input("scales", {4});
  linear.output(linear.add("Resize", {"x", "scales"}, {{"mode", text("linear")}}));
  CHECK(operators(upgraded(linear)) == "Resize");
  // An older name of the mode, which opset 13 does not have.
  model_builder bilinear(9);
  bilinear.input("x", {1, 1, 5, 7});
  bilinear.constant("scales", test::floats({4}, {1, 1, 2, 2}));
  bilinear.output(bilinear.add("Upsample", {"x", "scales"}, {{"mode", text("bilinear")}}));
  CHECK(upgraded(bilinear).nodes[0].get_string("mode", "") == "linear");
}

TEST_CASE("opset: rows of Softmax where the number of dimensions is not known") {
  test::random_source r(54);
  INFO("seed ", r.seed());
  for (const std::int64_t axis : {-3, -2, -1, 0, 1, 2}) {
    for (const char* op : {"Softmax", "LogSoftmax", "Hardmax"}) {
      INFO(std::string(op), " along ", axis);
      model_builder b(11);
      b.input("x", {});
      b.get().inputs[0].has_shape = false;
      b.output(b.add(op, {"x"}, {{"axis", number(axis)}}));
      graph::model m = b.get();
      graph::upgrade_opset(m);
      graph::sort_and_check(m);
      check_same_results(m, b.get(), {{"x", random_floats(r, {2, 3, 4}, -3.0F, 3.0F)}}, true);
    }
  }
  // It has two dimensions for one image, and three for several.
  model_builder b(11);
  b.input("x", {-1, 4, 3});
  b.output(b.add("Softmax", {b.add("Squeeze", {"x"})}, {{"axis", number(1)}}));
  graph::model m = b.get();
  graph::upgrade_opset(m);
  graph::sort_and_check(m);
  for (const std::int64_t n : {1, 3}) {
    check_same_results(m, b.get(), {{"x", random_floats(r, {n, 4, 3}, -3.0F, 3.0F)}}, true);
  }
}

TEST_CASE("opset: operators that ONNX has removed are named") {
  for (const char* op : {"ATen", "Affine", "ConstantFill", "Crop", "DynamicSlice", "GRUUnit",
                         "GivenTensorFill", "ParametricSoftplus", "Scale", "ScaledTanh"}) {
    INFO(std::string(op));
    model_builder b(9);
    b.input("x", {2, 3});
    b.output(b.add(op, {"x"}));
    const std::string label = std::string(op) + "_0";
    graph::graph_body body = b.get();
    body.inputs.clear();
    check_graph_error(error_kind::unsupported, {label, op, "opset 13"},
                      [&] { graph::upgrade_opset(b.get()); });
    model_builder outer(9);
    outer.input("flag", {}, element_type::boolean);
    outer.input("x", {2, 3});
    const auto branch = graph::attribute::of(std::move(body));
    outer.output(outer.add("If", {"flag"}, {{"then_branch", branch}, {"else_branch", branch}}));
    check_graph_error(error_kind::unsupported, {label, op, "opset 13"},
                      [&] { graph::upgrade_opset(outer.get()); });
    // Other domains may have an operator of that name.
    model_builder own(9);
    own.input("x", {2, 3});
    own.output(own.add(op, {"x"}, {}, "somebody"));
    graph::upgrade_opset(own.get());
    CHECK(own.get().nodes[0].op_type == op);
  }
}

TEST_CASE("opset: bounds, paddings and masks in sub-graphs have the type of the data") {
  test::random_source r(55);
  INFO("seed ", r.seed());
  const tensor wide =
      make_tensor(element_type::f64, {2, 3}, std::vector<double>{-3, -1, 0, 1, 2, 5});
  const test::attributes bounds{{"min", real(-1.5F)}, {"max", real(1.5F)}};
  const test::attributes pads{{"pads", list({1, 0, 0, 2})}, {"value", real(1.5F)}};
  const auto check = [&](const model_builder& b, const tensors& inputs) {
    graph::model upgraded = b.get();
    graph::upgrade_opset(upgraded);
    graph::sort_and_check(upgraded);
    const tensor expected = test::outputs_of(b.get(), inputs)[0];
    const tensor found = test::outputs_of(upgraded, inputs)[0];
    CHECK(found.type() == expected.type());
    REQUIRE(found.dims() == expected.dims());
    CHECK(std::equal(found.raw(), found.raw() + found.bytes(), expected.raw()));
  };
  const auto branches = [](model_builder& outer, graph::graph_body body) {
    outer.constant("flag", make_tensor(element_type::boolean, {}, std::vector<std::uint8_t>{1}));
    const auto branch = graph::attribute::of(std::move(body));
    return outer.add("If", {"flag"}, {{"then_branch", branch}, {"else_branch", branch}});
  };
  for (const char* op : {"Clip", "Pad", "Dropout"}) {
    for (const bool is_cast : {true, false}) {
      INFO(std::string(op), ", behind a Cast: ", is_cast);
      const bool is_dropout = std::string(op) == "Dropout";
      const std::int64_t opset = is_dropout ? 9 : 10;
      model_builder body(opset);
      const std::string x =
          is_cast ? body.add("Neg", {body.add("Cast", {"narrow"}, {{"to", number(11)}})})
                  : body.add("Neg", {"x"});
      std::string y = body.add(op, {x},
                               is_dropout     ? test::attributes{}
                               : op[0] == 'C' ? bounds
                                              : pads);
      if (is_dropout) {
        body.get().nodes.back().outputs = {"kept", "mask"};
        y = body.add("Neg", {"mask"});
      }
      body.output(y, element_type::undefined);
      model_builder outer(opset);
      outer.input("x", {2, 3}, element_type::f64);
      outer.input("narrow", {2, 3});
      outer.output(branches(outer, body.get()), element_type::f64);
      check(outer, {{"x", wide}, {"narrow", random_floats(r, {2, 3}, -3.0F, 3.0F)}});
    }
  }
  // A value that a Loop carries has the type that it begins with, if none is declared.
  for (const bool is_declared : {true, false}) {
    model_builder body(10);
    body.input("i", {}, element_type::s64);
    body.input("goes", {}, element_type::boolean);
    body.input("v", {2, 3}, is_declared ? element_type::f64 : element_type::undefined);
    body.get().inputs[2].has_shape = false;
    body.output(body.add("Identity", {"goes"}), element_type::boolean);
    body.output(body.add("Clip", {"v"}, bounds), element_type::undefined);
    model_builder outer(10);
    outer.input("x", {2, 3}, element_type::f64);
    outer.constant("count", make_tensor(element_type::s64, {}, std::vector<std::int64_t>{2}));
    outer.output(
        outer.add("Loop", {"count", "", "x"},
                  {{"body", graph::attribute::of(static_cast<graph::graph_body>(body.get()))}}),
        element_type::f64);
    check(outer, {{"x", wide}});
  }
  // An unknown operator may make any type.
  model_builder body(10);
  body.output(body.add("Clip", {body.add("Foo", {"x"}, {}, "somebody")}, bounds));
  model_builder outer(10);
  outer.input("x", {2, 3});
  outer.output(branches(outer, body.get()));
  check_graph_error(error_kind::unsupported, {"Clip_1", "Foo_0_out", "opset 13"},
                    [&] { graph::upgrade_opset(outer.get()); });
}

TEST_CASE("a BatchNormalization in training is not folded") {
  for (const std::int64_t opset : {9, 13}) {
    for (const std::size_t named : {0U, 1U, 2U, 4U}) {
      INFO("opset ", opset, ", output ", named);
      model_builder b(opset);
      b.input("x", {2, 3, 4, 4});
      test::random_source r(11);
      b.constant("w", random_floats(r, {2, 3, 1, 1}, -1.0F, 1.0F));
      for (const char* name : {"s", "b", "m", "v"}) {
        b.constant(name, random_floats(r, {2}, 0.5F, 1.0F));
      }
      const std::string conv = b.add("Conv", {"x", "w"});
      const std::string y = b.add("BatchNormalization", {conv, "s", "b", "m", "v"});
      graph::node& last = b.get().nodes.back();
      last.outputs.resize(named + 1);
      if (named > 0) {
        last.outputs[named] = "statistics";
      }
      b.output(y);
      graph::model folded = b.get();
      graph::fold_batch_norm(folded);
      CHECK(folded.nodes.size() == (named == 0 ? 1U : 2U));
      if (named > 0) {
        check_graph_error(
            error_kind::unsupported, {"BatchNormalization", "training", "opset"}, [&] {
              graph::executor executor(folded);
              static_cast<void>(executor.run({{"x", random_floats(r, {2, 3, 4, 4}, -1.0F, 1.0F)}}));
            });
      }
    }
  }
}

TEST_CASE("opset: models of version 9 to 18 compute the same in 19") {
  test::random_source r(9);
  INFO("seed ", r.seed());
  const auto check = [&](model_builder& b, const tensors& inputs) {
    graph::model upgraded = b.get();
    graph::upgrade_opset(upgraded, 19);
    graph::sort_and_check(upgraded);
    CHECK(upgraded.opset() == 19);
    CHECK(upgraded.ir_version >= 9);
    check_same_results(upgraded, b.get(), inputs, true);
    return upgraded;
  };
  for (const std::int64_t opset : {9, 12, 13, 15, 17, 18}) {
    INFO("opset ", opset);
    if (opset < 18) {
      for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                             "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"}) {
        INFO(op);
        model_builder b(opset);
        b.input("x", {2, 3, 4});
        b.output(b.add(op, {"x"}, {{"axes", list({0, 2})}, {"keepdims", number(0)}}));
        const graph::model upgraded = check(b, {{"x", random_floats(r, {2, 3, 4}, 0.5F, 3.0F)}});
        CHECK(upgraded.nodes[0].inputs.size() == 2);
        CHECK(upgraded.nodes[0].find("axes") == nullptr);
      }
      model_builder split(opset);
      split.input("x", {2, 6});
      split.add("Split", {"x"}, {{"axis", number(1)}});
      split.get().nodes[0].outputs = {"first", "second", "third"};
      for (const char* part : {"first", "second", "third"}) {
        split.output(part);
      }
      CHECK(check(split, {{"x", random_floats(r, {2, 6}, -1.0F, 1.0F)}})
                .nodes[0]
                .get_int("num_outputs", 0) == 3);
    }
    if (opset >= 11 && opset < 18) {
      model_builder b(opset);
      b.input("x", {1, 2, 3, 4});
      b.constant("roi", test::floats({0}, {}));
      b.constant("scales", test::floats({0}, {}));
      b.constant("sizes", {1, 2, 6, 8});
      b.output(b.add("Resize", {"x", "roi", "scales", "sizes"}, {{"mode", text("linear")}}));
      const graph::model upgraded = check(b, {{"x", random_floats(r, {1, 2, 3, 4}, -1.0F, 1.0F)}});
      CHECK(upgraded.nodes[0].inputs[2].empty());
    }
    if (opset >= 10) {
      model_builder b(opset);
      b.input("x", {1, 2, 8, 8});
      b.constant("rois", test::floats({2, 4}, {0.0F, 1.0F, 5.0F, 6.0F, 2.0F, 2.0F, 7.0F, 4.0F}));
      b.constant("batch", {0, 0});
      b.output(b.add("RoiAlign", {"x", "rois", "batch"},
                     {{"output_height", number(3)}, {"output_width", number(2)}}));
      check(b, {{"x", random_floats(r, {1, 2, 8, 8}, -1.0F, 1.0F)}});
    }
  }
  // Through opset 13 as well.
  model_builder b(11);
  b.input("x", {2, 3, 4});
  b.output(
      b.add("ReduceSum", {b.add("Softmax", {"x"}, {{"axis", number(1)}})}, {{"axes", list({1})}}));
  check(b, {{"x", random_floats(r, {2, 3, 4}, -1.0F, 1.0F)}});

  check_graph_error(error_kind::invalid_argument, {"opset 18", "13", "19"},
                    [&] { graph::upgrade_opset(b.get(), 18); });
}

TEST_CASE("convolutions take threads where they are worth them") {
  test::random_source r(327);
  INFO("seed ", r.seed());
  detent::thread_pool pool(3);
  for (const std::int64_t size : {4, 33}) {
    for (const std::int64_t group : {1, 16}) {
      for (const char* op : {"Conv", "ConvInteger", "DynamicConv"}) {
        const bool is_dynamic = std::string(op) == "DynamicConv";
        const bool is_float = std::string(op) == "Conv";
        const shape x_dims{2, 16, size, size};
        const shape w_dims{16, 16 / group, 3, 3};
        const auto count = static_cast<std::size_t>(16 * (16 / group) * 9);
        model_builder b;
        const auto type = is_float || is_dynamic ? element_type::f32 : element_type::u8;
        std::vector<std::string> inputs{b.input("x", x_dims, type)};
        if (is_float) {
          inputs.push_back(b.constant("w", random_floats(r, w_dims, -1.0F, 1.0F)));
        } else {
          inputs.push_back(b.constant(
              "w", make_tensor(element_type::s8, w_dims, r.integers<std::int8_t>(count))));
        }
        if (is_dynamic) {
          inputs.push_back(b.scalar("w_scale", 0.01F));
        }
        b.output(b.add(op, inputs, {{"group", number(group)}}, is_dynamic ? "detent" : ""),
                 is_float || is_dynamic ? element_type::f32 : element_type::s32);
        const graph::model m = b.get();
        tensors samples;
        samples["x"] =
            type == element_type::f32
                ? random_floats(r, x_dims, -1.0F, 1.0F)
                : make_tensor(
                      element_type::u8, x_dims,
                      r.integers<std::uint8_t>(static_cast<std::size_t>(2 * 16 * size * size)));
        INFO(op, " of ", size, " x ", size, " with ", group, " groups");
        const tensor expected = outputs_of(m, samples)[0];
        test::for_each_target([&] {
          std::size_t tasks = 0;
          graph::executor_options options;
          options.parallel = [&](std::size_t n, const std::function<void(std::size_t)>& body) {
            tasks += n;
            pool.run(n, body);
          };
          const tensor actual = graph::executor(m, options).run(samples)[0];
          CHECK(std::memcmp(actual.raw(), expected.raw(), expected.bytes()) == 0);
          CHECK((tasks > 1) == (size > 4));
        });
      }
    }
  }
}

// --------------------------------------------------------------------------------------------
// Winograd convolutions

TEST_CASE("executor: winograd_tile changes float convolutions of 3x3 filters, and nothing else") {
  test::random_source r(21);
  model_builder b;
  b.input("x", {1, 16, -1, 13});
  b.constant("w", random_floats(r, {16, 16, 3, 3}, -0.3F, 0.3F));
  b.constant("bias", random_floats(r, {16}, -1.0F, 1.0F));
  b.constant("other", random_floats(r, {8, 16, 1, 1}, -0.3F, 0.3F));
  const std::string wide = b.add("Conv", {"x", "w", "bias"}, {{"pads", list({1, 1, 1, 1})}});
  const std::string one = b.add("Conv", {"x", "other"});
  const std::string strided = b.add("Conv", {"x", "w"}, {{"strides", list({2, 2})}});
  for (const std::string& out : {wide, one, strided}) {
    b.output(out);
  }
  const auto image = [&](std::int64_t height) {
    return random_floats(r, {1, 16, height, 13}, -1.0F, 1.0F);
  };
  const tensor x = image(12);
  graph::executor exact(b.get());
  const std::vector<tensor> expected = exact.run({{"x", x}});
  const auto filters = [&](std::size_t tile) {
    return detent::winograd_filters({16, 16, 1, 3, 3}, b.get().initializers.at("w").data<float>(),
                                    b.get().initializers.at("bias").data<float>(), tile);
  };
  for (const std::size_t tile : {2U, 4U}) {
    INFO(tile);
    graph::executor_options options;
    options.winograd_tile = tile;
    // An executor that shares what others have packed has filters of its own where they differ.
    graph::executor alone(b.get(), options);
    graph::executor sharing(exact, options);
    for (graph::executor* e : {&alone, &sharing}) {
      for (int k = 0; k < 3; ++k) {
        const tensor given = k == 1 ? image(9) : x;  // the window changes, too
        const std::vector<tensor> outputs = e->run({{"x", given}});
        detent::window w;
        w.in_height = static_cast<std::size_t>(given.dim(2));
        w.in_width = 13;
        w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = 1;
        w.input_layout = w.output_layout = detent::activation_layout::nchw;
        std::vector<float> sums(outputs[0].count());
        detent::convolve(given.data<float>(), filters(tile), w, std::span<float>(sums));
        CHECK(test::difference(outputs[0].data<float>(), sums) == "");
        const std::vector<tensor> others = exact.run({{"x", given}});
        CHECK(test::difference(outputs[0].data<float>(), others[0].data<float>()) != "");
        CHECK(test::difference(outputs[1].data<float>(), others[1].data<float>()) == "");
        CHECK(test::difference(outputs[2].data<float>(), others[2].data<float>()) == "");
      }
    }
    CHECK(test::difference(exact.run({{"x", x}})[0].data<float>(), expected[0].data<float>()) ==
          "");
  }
  // Whether it is worth it depends on the size of the image: both kinds of filters are kept then.
  model_builder sizes;
  sizes.input("x", {1, 64, -1, -1});
  sizes.constant("w", random_floats(r, {128, 64, 3, 3}, -0.1F, 0.1F));
  sizes.output(sizes.add("Conv", {"x", "w"}, {{"pads", list({1, 1, 1, 1})}}));
  const std::span<const float> weights = sizes.get().initializers.at("w").data<float>();
  const detent::filter_shape shape{128, 64, 1, 3, 3};
  const detent::packed_float_filters direct(shape, weights);
  const detent::winograd_filters winograd(shape, weights, {}, 4);
  graph::executor_options four;
  four.winograd_tile = 4;
  graph::executor alternating(sizes.get(), four);
  for (int k = 0; k < 4; ++k) {
    const std::int64_t side = k % 2 == 0 ? 4 : 24;
    const tensor given = random_floats(r, {1, 64, side, side}, -1.0F, 1.0F);
    detent::window w;
    w.in_height = w.in_width = static_cast<std::size_t>(side);
    w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = 1;
    w.input_layout = w.output_layout = detent::activation_layout::nchw;
    CHECK(detent::winograd_filters::pays(shape, w, 4) == (side == 24));
    std::vector<float> sums(static_cast<std::size_t>(128 * side * side));
    if (side == 24) {
      detent::convolve(given.data<float>(), winograd, w, std::span<float>(sums));
    } else {
      detent::convolve(given.data<float>(), direct, w, std::span<float>(sums));
    }
    CHECK(test::difference(alternating.run({{"x", given}})[0].data<float>(), sums) == "");
  }
  // Too few channels: the transforms would take longer than the products that they save.
  CHECK(!detent::winograd_filters::pays({16, 3, 1, 3, 3}, {.in_height = 32, .in_width = 32}, 4));
  graph::executor_options wrong;
  wrong.winograd_tile = 3;
  check_graph_error(error_kind::invalid_argument, {"winograd_tile", "3"},
                    [&] { graph::executor e(b.get(), wrong); });
}
