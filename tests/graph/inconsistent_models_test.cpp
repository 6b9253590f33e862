// SPDX-License-Identifier: BSD-3-Clause
// Models whose attributes, constants and shapes contradict each other. Where an input has an open
// dimension, nothing is refused before a run, so that what rewrites and quantizes models meets them
// as they are: it must leave them alone or throw, and must not believe one part of the other.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/base/byte_format.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/compress_weights.hpp>
#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/channel_sums.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/quantize/weight_only.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/channel_split.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/saved_state.hpp>
#include <detent/runtimes/integer_regions.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
namespace nncf = graph::nncf;

constexpr std::int64_t huge = std::int64_t{1} << 32;

/// A sub-graph of one node that takes an outer value.
graph::graph_body body_of(const std::string& captured) {
  graph::graph_body body;
  graph::node n;
  n.op_type = "Identity";
  n.inputs = {captured};
  n.outputs = {"inner"};
  body.nodes = {n};
  graph::value_info v;
  v.name = "inner";
  body.outputs = {v};
  return body;
}

/// A MatMul whose input has no dimensions, in a model with an open one.
graph::model product_of_a_scalar() {
  model_builder b(21);
  b.input("x", {-1, 4});
  const std::string sum = b.add("ReduceSum", {"x"}, {{"keepdims", number(0)}});
  b.output(b.add("MatMul", {sum, b.constant("w", floats({4, 4}, std::vector<float>(16, 1.0F)))}));
  return b.get();
}

std::vector<tensors> samples_of_ones() {
  return {{{"x", floats({2, 4}, std::vector<float>(8, 1.0F))}}};
}

}  // namespace

TEST_CASE("inconsistent: a node without inputs whose sub-graph takes a value") {
  model_builder b;
  b.input("x", {2});
  const std::string clamped = b.add("Relu", {b.pair("x", 0.1F, 128)});
  b.output(b.add("Unknown", {}, {{"body", attribute::of(body_of(clamped))}}, "elsewhere"));
  b.get().opsets["elsewhere"] = 1;
  graph::model m = b.get();
  graph::lower_quantized(m);
  CHECK(operators(m) == "QuantizeLinear DequantizeLinear Relu elsewhere.Unknown");
  m = b.get();
  graph::to_qoperator(m);
  CHECK(operators(m) == "QuantizeLinear DequantizeLinear Relu elsewhere.Unknown");
}

TEST_CASE("inconsistent: an axis of an old Softmax that no tensor has") {
  for (const std::int64_t axis :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(),
        std::int64_t{2}, std::int64_t{-3}}) {
    model_builder b(9);
    b.input("x", {-1, 4});
    b.output(b.add("Softmax", {"x"}, {{"axis", number(axis)}}));
    check_graph_error(error_kind::bad_file, {"Softmax", "axis", "2 dimensions"},
                      [&] { graph::upgrade_opset(b.get(), 13); });
  }
}

TEST_CASE("inconsistent: dimensions of an empty tensor whose product wraps to 0") {
  const graph::channel_axis at{4, 1, 4};
  CHECK_FALSE(graph::detail::before_reshape({0, 4, huge, huge}, {0, 4, huge, huge}, at));
  CHECK(graph::detail::before_reshape({0, 4, 3, 3}, {0, 4, 9}, {3, 1, 4}).has_value());
}

TEST_CASE("inconsistent: weights without elements and with 2^32 channels") {
  for (const bool gemm : {true, false}) {
    model_builder b;
    b.input("x", gemm ? shape{-1, 4} : shape{-1, 1, 4, 4});
    b.constant("w",
               tensor::allocate(element_type::s8, gemm ? shape{0, huge} : shape{huge, 0, 1, 1}));
    const std::string w = b.add("DequantizeLinear", {"w", b.scalar("w_scale", 0.1F)});
    b.output(b.quantize(b.add(gemm ? "Gemm" : "Conv", {b.pair("x", 0.1F, 128), w,
                                                       b.constant("b", floats({4}, {1, 2, 3, 4}))}),
                        0.1F, 128),
             element_type::u8);
    graph::model m = b.get();
    graph::lower_quantized(m);
    CHECK(count(m, gemm ? "QLinearGemm" : "QLinearConv", "detent") == 0);
  }
}

TEST_CASE("inconsistent: channel split and a slope that does not have the channels") {
  random_source r(1);
  for (const std::int64_t slopes : {1, 3, 8}) {
    model_builder b;
    b.input("x", {-1, 3, 4, 4});
    const std::string first =
        b.add("Conv", {"x", b.constant("a", random_floats(r, {8, 3, 1, 1}, 2.0F, 5.0F))});
    const std::string slope = b.constant("s", random_floats(r, {slopes, 1, 1}, 0.0F, 1.0F));
    b.output(b.add("Conv", {b.add("PRelu", {first, slope}),
                            b.constant("c", random_floats(r, {2, 8, 1, 1}, 2.0F, 5.0F))}));
    graph::model m = b.get();
    CHECK(graph::split_channels(m, {.threshold = 0.5}).size() == (slopes == 3 ? 0 : 1));
    CHECK(m.initializers.at(m.nodes[1].inputs[1]).dim(0) ==
          (slopes == 8 ? m.initializers.at(m.nodes[0].inputs[1]).dim(0) : slopes));
  }
  // What splits channels does not read behind a constant, whoever asks.
  const tensor t = floats({3, 1}, {1, 2, 3});
  const std::vector<std::size_t> origins{0, 1, 2, 3};
  check_graph_error(error_kind::shape_mismatch, {"a node", "3,1"}, [&] {
    static_cast<void>(graph::detail::copy_channels(t, 0, origins, {}, "a node"));
  });
  check_graph_error(error_kind::shape_mismatch, {"a node"}, [&] {
    static_cast<void>(graph::detail::copy_channels(t, 2, origins, {}, "a node"));
  });
}

TEST_CASE("a Gemm with one output may have a bias without dimensions") {
  random_source r(2);
  model_builder b;
  b.input("x", {2, 3});
  const std::string first =
      b.add("Gemm", {"x", b.constant("a", random_floats(r, {3, 1}, 2.0F, 5.0F)),
                     b.constant("b", floats({}, {0.5F}))});
  b.output(b.add("Gemm",
                 {b.add("Relu", {first}), b.constant("c", random_floats(r, {1, 4}, 2.0F, 5.0F))}));
  graph::model m = b.get();
  REQUIRE(graph::split_channels(m, {.threshold = 0.5}).size() == 1);
  const tensors inputs{{"x", random_floats(r, {2, 3}, 0.0F, 1.0F)}};
  const auto before = values_of<float>(outputs_of(b.get(), inputs)[0]);
  const auto after = values_of<float>(outputs_of(m, inputs)[0]);
  REQUIRE(before.size() == after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(std::fabs(before[i] - after[i]) <= 1e-4F * std::fabs(before[i]));
  }
}

TEST_CASE("a Gemm's bias for each row stays one for each row") {
  // As many rows as columns, so that the number of its elements does not tell.
  const tensor x = floats({4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
  const std::vector<float> expected{1, 0, 0, 0, 10, 11, 10, 10, 20, 20, 21, 20, 30, 30, 30, 31};
  const tensor column = floats({4, 1}, {0, 10, 20, 30});
  {
    model_builder b;
    b.input("x", {4, 4});
    const std::string w = b.dequantize_constant(
        "w",
        make_tensor<std::int8_t>(element_type::s8, {4, 4},
                                 {10, 0, 0, 0, 0, 10, 0, 0, 0, 0, 10, 0, 0, 0, 0, 10}),
        floats({}, {0.1F}), make_tensor<std::int8_t>(element_type::s8, {}, {0}), 0);
    b.output(b.add("Gemm", {b.pair("x", 1.0F, 128), w, b.constant("b", column)}));
    const auto y = values_of<float>(outputs_of(graph::for_execution(b.get()), {{"x", x}})[0]);
    REQUIRE(y.size() == 16);
    for (std::size_t i = 0; i < 16; ++i) {
      CHECK(std::fabs(y[i] - expected[i]) < 1e-4F);
    }
  }
  model_builder b;
  b.input("x", {4, 4});
  const std::string product = b.add("Gemm", {"x", b.constant("w", x), b.constant("b", column)});
  const std::string one = b.constant("one", floats({4}, {1, 1, 1, 1}));
  const std::string zero = b.constant("zero", floats({4}, {0, 0, 0, 0}));
  b.output(b.add("BatchNormalization", {product, one, zero, zero, one}, {{"epsilon", real(0.0F)}}));
  CHECK(values_of<float>(outputs_of(graph::for_execution(b.get()), {{"x", x}})[0]) == expected);
}

TEST_CASE("fold_constants leaves calls of a model's functions, whatever their names") {
  const auto folded = [](bool has_function) {
    model_builder b(13);
    b.input("x", {2});
    const std::string stored =
        b.constant("stored", make_tensor<std::uint8_t>(graph::element_type::u8, {2}, {3, 5}));
    const std::string scale = b.constant("scale", floats({}, {2.0F}));
    b.output(b.add("Add", {"x", b.add("DequantizeLinear", {stored, scale})}));
    graph::model m = b.get();
    m.opsets["com.microsoft"] = 1;
    for (graph::node& n : m.nodes) {
      n.domain = n.is("DequantizeLinear") ? "com.microsoft" : n.domain;
    }
    if (has_function) {
      m.functions.push_back({"com.microsoft", "DequantizeLinear", {}});
    }
    graph::fold_constants(m, true);
    return m;
  };
  CHECK(folded(false).nodes.size() == 1);
  const graph::model kept = folded(true);
  REQUIRE(kept.nodes.size() == 2);
  CHECK(kept.nodes[0].op_type == "DequantizeLinear");
}

TEST_CASE("fold_constants leaves nodes that need too much memory or too many multiply-adds") {
  // 200 products of two matrices of 1000 x 1000, made of two numbers.
  model_builder b(13);
  b.input("x", {1});
  b.constant("dims", std::vector<std::int64_t>{1000, 1000});
  const std::string left = b.add("ConstantOfShape", {"dims"});
  const std::string right = b.add("ConstantOfShape", {"dims"});
  std::string sum = "x";
  for (int i = 0; i < 200; ++i) {
    sum = b.add("Add", {sum, b.add("Einsum", {left, right}, {{"equation", text("ij,jk->")}})});
  }
  b.output(sum);
  graph::model m = b.get();
  graph::fold_constants(m, true);
  CHECK(count(m, "Einsum") > 190);
  CHECK(count(m, "Add") == 200);

  // A branch that makes and adds tensors of 2 GiB.
  graph::graph_body body;
  for (const char* name : {"a", "b"}) {
    graph::node n;
    n.op_type = "ConstantOfShape";
    n.inputs = {"size"};
    n.outputs = {name};
    body.nodes.push_back(n);
  }
  graph::node add;
  add.op_type = "Add";
  add.inputs = {"a", "b"};
  add.outputs = {"c"};
  body.nodes.push_back(add);
  graph::node most;
  most.op_type = "ReduceMax";
  most.inputs = {"c"};
  most.outputs = {"inner"};
  most.attributes["keepdims"] = number(0);
  body.nodes.push_back(most);
  graph::value_info v;
  v.name = "inner";
  v.type = element_type::f32;
  body.outputs = {v};
  model_builder large(13);
  large.input("x", {1});
  large.constant("size", std::vector<std::int64_t>{(std::int64_t{1} << 29) - 1});
  large.constant("yes", make_tensor<std::uint8_t>(element_type::boolean, {}, {1}));
  large.output(large.add("Add", {"x", large.add("If", {"yes"},
                                                {{"then_branch", attribute::of(body)},
                                                 {"else_branch", attribute::of(body)}})}));
  m = large.get();
  graph::fold_constants(m, true);
  CHECK(operators(m) == "If Add");
}

TEST_CASE("a value that a sub-graph captures is a way around a region") {
  model_builder b(13);
  b.input("x", {4, 4}, element_type::u8);
  b.input("c", {}, element_type::boolean);
  b.get().opsets["com.microsoft"] = 1;
  b.get().opsets["elsewhere"] = 1;
  b.scalar("s", 0.1F);
  b.constant("z", make_tensor<std::uint8_t>(element_type::u8, {}, {128}));
  b.constant("w", make_tensor(element_type::s8, {4, 4}, std::vector<std::int8_t>(16, 1)));
  b.constant("wz", make_tensor<std::int8_t>(element_type::s8, {}, {0}));
  const std::string first = b.add("QLinearMatMul", {"x", "s", "z", "w", "s", "wz", "s", "z"});
  for (const bool captures : {true, false}) {
    model_builder whole = b;
    const std::string between = captures
                                    ? whole.add("If", {"c"},
                                                {{"then_branch", attribute::of(body_of(first))},
                                                 {"else_branch", attribute::of(body_of(first))}})
                                    : first;
    graph::value_info v;
    v.name = between;
    v.type = element_type::u8;
    v.has_shape = true;
    v.dims = {4, 4};
    whole.get().values.push_back(v);
    const std::string sum = whole.add("QLinearAdd", {first, "s", "z", between, "s", "z", "s", "z"},
                                      {}, "com.microsoft");
    whole.output(whole.add("QLinearMatMul", {sum, "s", "z", "w", "s", "wz", "s", "z"}),
                 element_type::u8);
    detent::runtimes::region_options options;
    options.min_multiply_adds = 0;
    const auto found = detent::runtimes::find_integer_regions(whole.get(), options);
    CHECK(found.regions.size() == (captures ? 2 : 1));
  }
}

TEST_CASE("inconsistent: an input with more elements than a tensor can have") {
  model_builder b;
  b.input("x", {std::int64_t{1} << 40, -1});
  b.output(b.add("Relu", {"x"}));
  CHECK(detent::runtimes::find_integer_regions(b.get()).regions.empty());
}

TEST_CASE("inconsistent: the input of a product has no dimensions") {
  const graph::model m = product_of_a_scalar();
  for (const auto algorithm :
       {graph::weight_only_algorithm::gptq, graph::weight_only_algorithm::awq}) {
    graph::weight_only_options options;
    options.algorithm = algorithm;
    check_graph_error(error_kind::shape_mismatch, {"ReduceSum_0_out", "no dimensions"}, [&] {
      static_cast<void>(
          graph::quantize_weights_only(m, options, samples_source(samples_of_ones())));
    });
  }
  nncf::compress_weights_options options;
  options.mode = nncf::compress_weights_mode::int4_sym;
  options.all_layers = true;
  options.group_size = -1;
  options.scale_estimation = true;
  options.dataset = nncf::dataset(samples_of_ones());
  check_graph_error(error_kind::shape_mismatch, {"ReduceSum_0_out", "no dimensions"},
                    [&] { static_cast<void>(nncf::compress_weights(m, options)); });
}

TEST_CASE("inconsistent: sums of channels that are not those of the layer") {
  graph::detail::channel_sums two(false);
  two.add(floats({1, 2}, {1, 2}));
  graph::detail::channel_sums three(false);
  three.add(floats({1, 3}, {1, 2, 3}));
  CHECK(graph::detail::mean_difference(two, two, "a layer") == std::vector<double>{0.0, 0.0});
  CHECK(graph::detail::mean_difference(two, graph::detail::channel_sums(false), "a layer").empty());
  CHECK(graph::detail::mean_difference(graph::detail::channel_sums(false), two, "a layer").empty());
  for (const bool first : {true, false}) {
    check_graph_error(error_kind::shape_mismatch, {"a layer", "2", "3"}, [&] {
      static_cast<void>(
          graph::detail::mean_difference(first ? two : three, first ? three : two, "a layer"));
    });
  }
  check_graph_error(error_kind::shape_mismatch, {"3 channels", "2"}, [&] {
    two.add(floats({1, 3}, {1, 2, 3}));
  });
  check_graph_error(error_kind::shape_mismatch, {"no channels"}, [&] { two.add(floats({}, {1})); });
  // Counts of saved sums do not wrap when they are merged.
  constexpr detent::detail::byte_format format{"detentxx", 1};
  const auto loaded = [&](std::uint64_t count) {
    detent::detail::byte_writer out(format);
    out.put(std::uint8_t{0});  // no images
    out.put(std::uint8_t{1});  // finite
    out.put(count);
    detent::detail::put_list(out, std::vector<std::int64_t>{1, 2});
    out.put(std::uint64_t{2});
    for (std::size_t i = 0; i < 2 * 6 + 11; ++i) {
      out.put(std::uint64_t{0});
    }
    const std::vector<std::byte> bytes = std::move(out).finish();
    detent::detail::byte_reader in(bytes, format, "test");
    graph::detail::channel_sums sums(false);
    sums.read(in);
    in.require_end();
    return sums;
  };
  const std::uint64_t most = std::uint64_t{1} << 60;
  graph::detail::channel_sums full = loaded(most);
  check_graph_error(error_kind::overflow, {"sums of channels", "2^60"}, [&] { full.merge(two); });
  CHECK(full.means() == std::vector<double>{0.0, 0.0});
  check_graph_error(error_kind::bad_file, {"size", "1152921504606846978"},
                    [&] { static_cast<void>(loaded(most + 2)); });
  graph::detail::channel_sums image(true);
  check_graph_error(error_kind::shape_mismatch, {"no channels"}, [&] {
    image.add(floats({3}, {1, 2, 3}));
  });
}

TEST_CASE("a layer that gets no rows where the network is quantized keeps its bias") {
  // The second layer takes the rows in which the first one is not 0; quantized, there are none.
  model_builder b(13);
  b.input("x", {-1, 4});
  const std::string first =
      b.add("Gemm", {"x", b.constant("a", floats({4, 1}, {1e-6F, 1e-6F, 1e-6F, 1e-6F})),
                     b.constant("ab", floats({1}, {0.0F}))});
  const std::string large = b.add("Gemm", {"x", b.constant("l", floats({4, 1}, {1, 1, 1, 1}))});
  const std::string both = b.add("Concat", {first, large}, {{"axis", number(1)}});
  b.output(both);  // so that it is stored in 8 bits
  const std::string small = b.add(
      "Slice", {both, b.constant("from", {0}), b.constant("to", {1}), b.constant("axis", {1})});
  const std::string rows = b.add(
      "Reshape", {b.add("Greater", {small, b.scalar("zero", 0.0F)}), b.constant("flat", {-1})});
  const std::string chosen = b.add("Compress", {"x", rows}, {{"axis", number(0)}});
  b.output(b.add("Gemm", {chosen, b.constant("c", floats({4, 2}, std::vector<float>(8, 0.5F))),
                          b.constant("cb", floats({2}, {1, 2}))}));
  random_source r(5);
  std::vector<tensors> samples;
  for (int i = 0; i < 4; ++i) {
    samples.push_back({{"x", random_floats(r, {3, 4}, 0.5F, 1.0F)}});
  }
  graph::quantization_plan plan(b.get());
  graph::quantization_parameters parameters;
  const graph::static_quantization_options options;
  parameters.activations = graph::calibrate_activations(plan, samples_source(samples), options);
  parameters.layers = graph::quantize_layers(plan, parameters.activations, options);
  const auto shifts = graph::correct_biases(plan, parameters, samples_source(samples),
                                            {.kind = graph::bias_correction::full});
  REQUIRE(shifts.size() == 3);
  CHECK(shifts[0].shift.size() == 1);
  CHECK(shifts[2].shift.empty());
  CHECK_FALSE(shifts[2].applied);
  const graph::model& after = plan.float_model();
  CHECK(values_of<float>(after.initializers.at(after.nodes.back().inputs[2])) ==
        std::vector<float>{1.0F, 2.0F});
}

TEST_CASE("nncf: long chains of operators that move elements, and results that are taken twice") {
  const auto placed = [](const std::string& input_of, element_type type, int length,
                         const auto& model_of) {
    model_builder b(15);
    const std::string w = b.constant("w", floats({4, 4}, std::vector<float>(16, 0.5F)));
    model_of(b, b.input(input_of, {2, 4}, type), w, length);
    return nncf::place_quantizers(b.get(), {}).size();
  };
  // A chain has as many quantizers as a short one.
  const auto repeated = [](model_builder& b, std::string y, const char* op, int length) {
    for (int i = 0; i < length; ++i) {
      y = b.add(op, {y});
    }
    return y;
  };
  for (const char* op : {"Identity", "Relu"}) {
    INFO(op);
    const auto model_of = [&](model_builder& b, const std::string& x, const std::string& w,
                              int length) {
      b.output(b.add("MatMul", {repeated(b, x, op, length), w}));
    };
    CHECK(placed("x", element_type::f32, 3, model_of) == 2);
    CHECK(placed("x", element_type::f32, 40000, model_of) == 2);
  }
  const auto of_integers = [&](model_builder& b, const std::string& i, const std::string& w,
                               int length) {
    const std::string y = b.add("Cast", {repeated(b, i, "Identity", length)}, {{"to", number(1)}});
    b.output(b.add("MatMul", {y, w}));
  };
  CHECK(placed("i", element_type::s64, 40000, of_integers) ==
        placed("i", element_type::s64, 3, of_integers));
  // A quantizer waits at a result for another one that comes from far away.
  const auto waiting = [&](model_builder& b, const std::string& x, const std::string& w,
                           int length) {
    const std::string branch = b.add("MatMul", {x, w});
    b.output(b.add("MatMul", {repeated(b, branch, "Identity", length), w}));
    b.output(b.add("MatMul", {branch, w}));
  };
  CHECK(placed("x", element_type::f32, 40000, waiting) ==
        placed("x", element_type::f32, 3, waiting));
  // Each value has two ways to the next one: 2^60 ways in all.
  const auto doubled = [](model_builder& b, std::string y, const std::string& w, int length) {
    for (int i = 0; i < length; ++i) {
      y = b.add("CastLike", {y, y});
    }
    b.output(b.add("MatMul", {y, w}));
  };
  CHECK(placed("x", element_type::f32, 60, doubled) == placed("x", element_type::f32, 3, doubled));
}
