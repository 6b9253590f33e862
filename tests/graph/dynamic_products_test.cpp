// SPDX-License-Identifier: BSD-3-Clause
// The layers of dynamic quantization as one operator each: same bits as node by node.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/dynamic_products.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

constexpr std::int64_t to_float = 1;  // what Cast calls float32

/// What a layer of the test models has.
struct layer {
  bool is_conv = true;
  bool channel_scales = true;  ///< One weight scale for each channel, not one for all.
  bool has_weight_scale = true;
  bool has_bias = true;
  bool first_scale_last = false;  ///< The order of the factors in the product of the scales.
  std::string activation = {};
  element_type weights = element_type::s8;
  graph::shape kernel = {3, 3};
};

constexpr std::int64_t channels = 21;  // neither a multiple of a vector nor less than one

/// A constant with one value, or one for each channel, as a layer's scale and bias are stored.
tensor along_channels(random_source& r, const layer& l, bool one_each, float lower, float upper) {
  graph::shape dims{one_each ? channels : 1};
  if (l.is_conv) {
    dims.insert(dims.end(), l.kernel.size(), 1);
  }
  return random_floats(r, one_each ? dims : graph::shape{}, lower, upper);
}

/// The three outputs of a DynamicQuantizeLinear.
struct quantized_input {
  std::string values, scale, zero_point;
};

quantized_input quantize(model_builder& b, const std::string& x) {
  graph::node n;
  n.op_type = "DynamicQuantizeLinear";
  n.inputs = {x};
  n.outputs = {x + "_q", x + "_s", x + "_z"};
  b.get().nodes.push_back(n);
  return {n.outputs[0], n.outputs[1], n.outputs[2]};
}

/// Adds the nodes of a layer whose input has four channels or elements.
std::string add_layer(model_builder& b, random_source& r, const quantized_input& x, const layer& l,
                      const std::string& name) {
  graph::shape dims = l.is_conv ? graph::shape{channels, 4} : graph::shape{4, channels};
  if (l.is_conv) {
    dims.insert(dims.end(), l.kernel.begin(), l.kernel.end());
  }
  const std::size_t count = graph::element_count(dims);
  const std::string w =
      b.constant(name + "_w", l.weights == element_type::s8
                                  ? make_tensor(l.weights, dims, r.integers<std::int8_t>(count))
                                  : make_tensor(l.weights, dims, r.integers<std::uint8_t>(count)));
  const std::string z =
      b.constant(name + "_z", l.weights == element_type::s8
                                  ? make_tensor(l.weights, {}, std::vector<std::int8_t>{-3})
                                  : make_tensor(l.weights, {}, std::vector<std::uint8_t>{131}));
  const std::string sums =
      b.add(l.is_conv ? "ConvInteger" : "MatMulInteger", {x.values, w, x.zero_point, z});
  const std::string real = b.add("Cast", {sums}, {{"to", number(to_float)}});
  std::string scale = x.scale;
  if (l.has_weight_scale) {
    const std::string s =
        b.constant(name + "_s", along_channels(r, l, l.channel_scales, 0.001F, 0.01F));
    scale = b.add("Mul", l.first_scale_last ? std::vector{s, x.scale} : std::vector{x.scale, s});
  }
  std::string y = b.add("Mul", {real, scale});
  if (l.has_bias) {
    y = b.add("Add", {b.constant(name + "_b", along_channels(r, l, true, -1, 1)), y});
  }
  if (!l.activation.empty()) {
    y = b.add(l.activation, {y});
  }
  return y;
}

graph::shape input_dims(const layer& l) {
  graph::shape dims = l.is_conv ? graph::shape{2, 4} : graph::shape{3, 4};
  if (l.is_conv) {
    dims.insert(dims.end(), l.kernel.size(), 7);
  }
  return dims;
}

/// The operator types of the nodes, those of "detent" behind that name.
std::vector<std::string> types(const graph::model& m) {
  std::vector<std::string> result;
  for (const graph::node& n : m.nodes) {
    result.push_back(n.domain == "detent" ? "detent." + n.op_type : n.op_type);
  }
  return result;
}

void check_same_bits(const graph::model& m, const graph::model& fused, const tensor& x) {
  const std::vector<tensor> expected = outputs_of(m, {{"x", x}});
  const std::vector<tensor> got = outputs_of(fused, {{"x", x}});
  REQUIRE(expected.size() == got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const tensor e = graph::to_plain(expected[i]);
    const tensor g = graph::to_plain(got[i]);
    REQUIRE(e.dims() == g.dims());
    CHECK(std::memcmp(e.raw(), g.raw(), e.bytes()) == 0);
  }
}

TEST_CASE("layers of dynamic quantization are one operator with the same bits") {
  random_source r(20261124);
  std::vector<layer> layers;
  for (const bool is_conv : {true, false}) {
    for (const bool has_bias : {true, false}) {
      for (const char* activation : {"", "Relu", "Sigmoid"}) {
        layers.push_back({is_conv, true, true, has_bias, false, activation});
        layers.push_back({is_conv, false, true, has_bias, true, activation});
        layers.push_back({is_conv, false, false, has_bias, false, activation, element_type::u8});
      }
    }
  }
  layers.push_back({.kernel = {3}});
  layers.push_back({.kernel = {2, 1, 3}});
  for (const layer& l : layers) {
    CAPTURE(l.is_conv);
    CAPTURE(l.has_bias);
    CAPTURE(l.channel_scales);
    CAPTURE(l.activation);
    CAPTURE(l.kernel.size());
    model_builder b;
    b.output(add_layer(b, r, quantize(b, b.input("x", input_dims(l))), l, "l"));
    const graph::model prepared = graph::for_execution(b.get());
    std::vector<std::string> expected{l.is_conv ? "detent.DynamicQuantizeConv"
                                                : "detent.DynamicQuantizeMatMul"};
    if (l.activation == "Sigmoid") {
      expected.emplace_back("Sigmoid");
    }
    CHECK(types(prepared) == expected);
    check_same_bits(b.get(), prepared, random_floats(r, input_dims(l), -2, 3));
    check_same_bits(b.get(), prepared, random_floats(r, input_dims(l), 0, 0));
    check_same_bits(b.get(), prepared, random_floats(r, input_dims(l), -1e-39F, 1e-39F));
  }
}

TEST_CASE("layers that share a quantized input keep its quantizer") {
  random_source r(7);
  for (const bool is_conv : {true, false}) {
    layer l;
    l.is_conv = is_conv;
    l.activation = "Relu";
    model_builder b;
    const quantized_input x = quantize(b, b.input("x", input_dims(l)));
    b.output(add_layer(b, r, x, l, "first"));
    b.output(add_layer(b, r, x, l, "second"));
    const graph::model prepared = graph::for_execution(b.get());
    const std::string op = is_conv ? "detent.ConvIntegerToFloat" : "detent.MatMulIntegerToFloat";
    CHECK(types(prepared) == std::vector<std::string>{"DynamicQuantizeLinear", op, op});
    check_same_bits(b.get(), prepared, random_floats(r, input_dims(l), -2, 3));
  }
}

TEST_CASE("what is asked for, or is not what dynamic quantization writes, stays") {
  random_source r(8);
  layer l;
  const auto check_stays = [&](const char* what, graph::model m) {
    CAPTURE(what);
    const graph::model before = m;
    graph::fuse_dynamic_products(m);
    CHECK(types(m) == types(before));
  };
  const auto make = [&](const layer& of) {
    model_builder b;
    b.output(add_layer(b, r, quantize(b, b.input("x", input_dims(of))), of, "l"));
    return b.get();
  };
  const graph::model whole = make(l);
  const auto output_too = [&](std::size_t node, element_type type) {
    graph::model m = whole;
    graph::value_info v = m.outputs[0];
    v.name = m.nodes[node].outputs[0];
    v.type = type;
    m.outputs.push_back(v);
    return m;
  };
  REQUIRE(types(whole) == std::vector<std::string>{"DynamicQuantizeLinear", "ConvInteger", "Cast",
                                                   "Mul", "Mul", "Add"});
  check_stays("the sums are an output", output_too(1, element_type::s32));
  check_stays("the real sums are an output", output_too(2, element_type::f32));
  {
    graph::model m = output_too(4, element_type::f32);
    graph::fuse_dynamic_products(m);  // without the bias
    CHECK(types(m) == std::vector<std::string>{"detent.DynamicQuantizeConv", "Add"});
    check_same_bits(output_too(4, element_type::f32), m, random_floats(r, input_dims(l), -2, 3));
  }
  {
    graph::model m = output_too(0, element_type::u8);
    graph::fuse_dynamic_products(m);
    CHECK(types(m) ==
          std::vector<std::string>{"DynamicQuantizeLinear", "Mul", "detent.ConvIntegerToFloat"});
    check_same_bits(output_too(0, element_type::u8), m, random_floats(r, input_dims(l), -2, 3));
  }
  {
    graph::model m = whole;
    m.nodes[2].attributes["to"] = number(static_cast<std::int64_t>(element_type::f64));
    check_stays("another type", m);
  }
  {
    graph::model m = whole;
    m.initializers["l_s"] = random_floats(r, {channels, 1}, 1, 2);
    check_stays("scales along another axis", m);
  }
  {
    graph::model m = whole;
    m.initializers["l_s"] = random_floats(r, {1, 1, channels, 1, 1}, 1, 2);
    check_stays("scales of a higher rank than the result", m);
  }
  {
    graph::model m = whole;
    m.nodes[0].op_type = "Other";
    check_stays("another quantizer", m);
  }
}

TEST_CASE("sums that overflow float products give what the nodes give") {
  random_source r(9);
  layer l;
  l.is_conv = false;
  model_builder b;
  b.output(add_layer(b, r, quantize(b, b.input("x", input_dims(l))), l, "l"));
  const graph::model prepared = graph::for_execution(b.get());
  graph::model large = b.get();
  const float most = (std::numeric_limits<float>::max)();
  large.initializers["l_s"] = random_floats(r, {channels}, most / 2, most);
  large.initializers["l_b"] = random_floats(r, {channels}, -most, -most);
  check_same_bits(large, graph::for_execution(large), random_floats(r, input_dims(l), 0, 300));
}

}  // namespace
