// SPDX-License-Identifier: BSD-3-Clause
// Quantized models: their integer form computes what the float simulation of their Q and DQ nodes
// does, and static_quantization() writes models of the documented structure.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/parallel.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "for_each_target.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

std::vector<int> levels(const tensor& t) {
  std::vector<int> values;
  for (std::size_t i = 0; i < t.count(); ++i) {
    values.push_back(t.type() == element_type::u8 ? int{t.data<std::uint8_t>()[i]}
                                                  : int{t.data<std::int8_t>()[i]});
  }
  return values;
}

/// The integer form and the float simulation of a model with 8-bit or float outputs; how many steps
/// (of size `step` for float outputs) they are apart at most.
double distance(const graph::model& m, const tensors& inputs, double step = 1.0) {
  const std::vector<tensor> a = outputs_of(graph::for_execution(m), inputs);
  const std::vector<tensor> e = outputs_of(graph::for_execution(m, false), inputs);
  double most = 0.0;
  REQUIRE(a.size() == e.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].dims() == e[i].dims());
    REQUIRE(a[i].type() == e[i].type());
    if (a[i].type() == element_type::f32) {
      for (std::size_t k = 0; k < a[i].count(); ++k) {
        const double d =
            static_cast<double>(a[i].data<float>()[k]) - static_cast<double>(e[i].data<float>()[k]);
        most = (std::max)(most, std::fabs(d) / step);
      }
      continue;
    }
    const std::vector<int> x = levels(a[i]);
    const std::vector<int> y = levels(e[i]);
    for (std::size_t k = 0; k < x.size(); ++k) {
      most = (std::max)(most, static_cast<double>(std::abs(x[k] - y[k])));
    }
  }
  return most;
}

/// What the lowered form of a model consists of.
std::string lowered(const graph::model& m) { return operators(graph::for_execution(m)); }

/// A model whose input has an open first dimension makes what it did, but for one level, for one
/// and for several samples.
void check_batches(const graph::model& m, test::random_source& r) {
  for (const std::int64_t n : {1, 3}) {
    INFO("samples ", n);
    shape dims = m.inputs[0].dims;
    dims[0] = n;
    const tensors inputs{{"x", random_floats(r, dims, -1.0F, 1.0F)}};
    const std::vector<tensor> expected = outputs_of(m, inputs);
    const std::vector<tensor> actual = outputs_of(graph::for_execution(m), inputs);
    CHECK(actual[0].dims() == expected[0].dims());
    const std::vector<int> a = levels(actual[0]);
    const std::vector<int> e = levels(expected[0]);
    REQUIRE(a.size() == e.size());
    for (std::size_t i = 0; i < e.size(); ++i) {
      CHECK(std::abs(a[i] - e[i]) <= 1);
    }
  }
}

struct weights {
  element_type type = element_type::s8;
  bool per_channel = true;
  bool zero_points = false;
};

/// DequantizeLinear of constant 8-bit weights.
std::string add_weights(model_builder& b, test::random_source& r, const std::string& name,
                        const shape& dims, std::int64_t axis, const weights& w) {
  const std::int64_t channels = w.per_channel ? dims[static_cast<std::size_t>(axis)] : 1;
  const shape params = w.per_channel ? shape{channels} : shape{};
  const tensor levels =
      test::make_tensor(w.type, dims, r.integers<std::uint8_t>(graph::element_count(dims)));
  const tensor scales = random_floats(r, params, 0.01F, 0.02F);
  std::vector<std::uint8_t> zeros(static_cast<std::size_t>(channels),
                                  w.type == element_type::u8 ? 128 : 0);
  if (w.zero_points) {
    zeros = r.integers<std::uint8_t>(zeros.size());
  }
  return b.dequantize_constant(name, levels, scales, test::make_tensor(w.type, params, zeros),
                               axis);
}

constexpr weights all_weights[] = {
    {element_type::s8, true, false},  {element_type::s8, false, false},
    {element_type::s8, true, true},   {element_type::s8, false, true},
    {element_type::u8, false, false}, {element_type::u8, false, true}};

}  // namespace

// -------------------------------------------------------------------------------------------
// lowering

TEST_CASE("lower: convolutions of every kind") {
  test::random_source r(1);
  INFO("seed ", r.seed());
  struct kind {
    const char* name;
    shape in, filters;
    test::attributes attributes;
  };
  const kind kinds[] = {
      {"plain",
       {2, 5, 9, 8},
       {6, 5, 3, 3},
       {{"pads", list({1, 0, 2, 1})}, {"strides", list({2, 1})}}},
      {"pointwise", {2, 5, 4, 4}, {7, 5, 1, 1}, {}},
      {"depthwise",
       {1, 6, 7, 7},
       {6, 1, 3, 3},
       {{"group", number(6)}, {"pads", list({1, 1, 1, 1})}}},
      {"groups", {1, 6, 7, 7}, {4, 3, 3, 3}, {{"group", number(2)}, {"dilations", list({2, 1})}}},
      {"one axis", {2, 3, 20}, {4, 3, 5}, {{"pads", list({2, 2})}}},
  };
  for (const kind& k : kinds) {
    for (const element_type x_type : {element_type::u8, element_type::s8}) {
      for (const weights& w : all_weights) {
        for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
          // 0: no bias, 1: int32 bias, 2: float bias, Relu, 3: Clip, 4: float output,
          // 5: float, Clip, 6 and 7: Clip that leaves no level for zero
          INFO(k.name, " x ", graph::name(x_type), " w ", graph::name(w.type),
               w.per_channel ? " per channel" : "", w.zero_points ? " with zero points" : "",
               " variant ", variant);
          model_builder b;
          b.input("x", k.in);
          const float x_scale = 0.05F;
          std::vector<std::string> inputs{b.pair("x", x_scale, level(x_type, 113), x_type),
                                          add_weights(b, r, "w", k.filters, 0, w)};
          const std::int64_t channels = k.filters[0];
          if (variant == 1) {
            b.constant("b", test::make_tensor<std::int32_t>(element_type::s32, {channels}, [&] {
                         std::vector<std::int32_t> values;
                         for (std::int64_t i = 0; i < channels; ++i) {
                           values.push_back(r.integer(-3000, 3000));
                         }
                         return values;
                       }()));
            std::vector<float> scales;
            for (const float s : b.get().initializers.at("w_scale").data<float>()) {
              scales.push_back(x_scale * s);
            }
            b.constant("b_scale", test::floats(w.per_channel ? shape{channels} : shape{}, scales));
            inputs.push_back(b.add("DequantizeLinear", {"b", "b_scale"}, {{"axis", number(0)}}));
          } else if (variant != 0) {
            inputs.push_back(b.constant("b", random_floats(r, {channels}, -2.0F, 2.0F)));
          }
          std::string y = b.add("Conv", inputs, k.attributes);
          if (variant == 2) {
            y = b.add("Relu", {y});
          } else if (variant == 3 || variant == 5) {
            y = b.add("Clip", {y, b.scalar("lo", -1.0F), b.scalar("hi", 2.5F)});
          } else if (variant == 6) {
            y = b.add("Clip", {y, b.scalar("lo", 1.0F), b.scalar("hi", 6.0F)});
          } else if (variant == 7) {
            y = b.add("Clip", {y, b.scalar("lo", -3.0F), b.scalar("hi", -1.0F)});
          }
          const float step = 0.11F;
          const bool float_output = variant == 4 || variant == 5;
          if (float_output) {
            b.output(y);
          } else {
            b.output(b.quantize(y, step, level(x_type, 100), x_type), x_type);
          }
          const graph::model lowered_model = graph::for_execution(b.get());
          CHECK(operators(lowered_model) == "QuantizeLinear detent.QLinearConv");
          const tensors x{{"x", random_floats(r, k.in, -7.0F, 7.0F)}};
          CHECK(distance(b.get(), x, static_cast<double>(step)) <= (float_output ? 0.01 : 1.0));
        }
      }
    }
  }
}

TEST_CASE("lower: biases whose zero points are all 0, and others") {
  test::random_source r(8);
  INFO("seed ", r.seed());
  for (const bool gemm : {false, true}) {
    // A scale of the bias that is not that of the sums makes it another integer.
    for (const auto& parameters : {std::pair(0, 1.0F), std::pair(1, 1.0F), std::pair(0, 2.5F)}) {
      const int zero_point = parameters.first;
      const float factor = parameters.second;
      INFO((gemm ? "Gemm" : "Conv"), ", zero point ", zero_point, " scale times ", factor);
      // Of fewer channels, others than 0 are refused when shapes are inferred.
      const std::int64_t channels = zero_point == 0 ? 5 : 4097;
      model_builder b;
      const shape in = gemm ? shape{3, 4} : shape{1, 4, 5, 6};
      b.input("x", in);
      const std::string x = b.pair("x", 0.05F, -3, element_type::s8);
      const std::string w = add_weights(
          b, r, "w", gemm ? shape{4, channels} : shape{channels, 4, 3, 3}, gemm ? 1 : 0, {});
      std::vector<float> scales;
      for (const float s : b.get().initializers.at("w_scale").data<float>()) {
        scales.push_back(factor * 0.05F * s);
      }
      std::vector<std::int32_t> values(scales.size());
      for (std::int32_t& v : values) {
        v = r.integer(-900, 900);
      }
      std::vector<std::int32_t> zero_points(scales.size(), 0);
      zero_points.back() = zero_point;
      const std::string bias = b.dequantize_constant(
          "b", test::make_tensor<std::int32_t>(element_type::s32, {channels}, values),
          test::floats({channels}, scales),
          test::make_tensor<std::int32_t>(element_type::s32, {channels}, zero_points), 0);
      b.output(b.quantize(b.add(gemm ? "Gemm" : "Conv", {x, w, bias}), 0.11F, 9, element_type::s8),
               element_type::s8);
      graph::model m = b.get();
      graph::lower_quantized(m);
      const std::string kind = gemm ? "QLinearGemm" : "QLinearConv";
      CHECK(count(m, kind, "detent") == (zero_point == 0 ? 1 : 0));
      if (zero_point == 0) {
        CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)}}) <= 1.0);
      }
    }
  }
}

TEST_CASE("lower: biases that are no multiples of x_scale * w_scale") {
  test::random_source r(9);
  INFO("seed ", r.seed());
  enum class kind { real, other_scale };
  struct place {
    const char* layer;
    shape in, w;
    std::int64_t axis, group;
  };
  const place places[] = {{"Conv", {1, 4, 5, 6}, {6, 4, 3, 3}, 0, 1},
                          {"Conv", {1, 4, 5, 6}, {8, 1, 3, 3}, 0, 4},
                          {"Conv", {1, 4, 4, 4, 4}, {6, 2, 2, 2, 2}, 0, 2},
                          {"Gemm", {3, 9}, {9, 7}, 1, 1},
                          {"MatMul", {2, 3, 9}, {9, 7}, 1, 1}};
  for (const place& at : places) {
    for (const kind of : {kind::real, kind::other_scale}) {
      // The step of the result: none if it stays float; far from the steps of sums, and near to
      // them.
      for (const float y_scale : {0.0F, 8.0F, 0.02F}) {
        INFO(at.layer, " ", graph::to_string(at.w), " kind ", static_cast<int>(of), " step ",
             y_scale);
        const std::int64_t channels = at.w[static_cast<std::size_t>(at.axis)];
        model_builder b;
        b.input("x", at.in);
        const std::string x = b.pair("x", 0.9F, 128);
        const std::string w = add_weights(b, r, "w", at.w, at.axis, {});
        std::string bias = "b";
        if (of == kind::real) {
          b.constant("b", random_floats(r, {channels}, -2.0F, 2.0F));
        } else {
          bias = b.dequantize_constant(
              "b",
              test::make_tensor<std::int32_t>(
                  element_type::s32, {channels},
                  std::vector<std::int32_t>(static_cast<std::size_t>(channels), 7)),
              floats({}, {0.0013F}), test::make_tensor<std::int32_t>(element_type::s32, {}, {0}),
              0);
        }
        const std::string layer(at.layer);
        std::string y;
        if (layer == "MatMul") {
          y = b.add("Add", {b.add("MatMul", {x, w}), bias});
        } else {
          test::attributes a;
          if (layer == "Conv") {
            a["group"] = number(at.group);
          }
          y = b.add(layer, {x, w, bias}, a);
        }
        if (y_scale == 0.0F) {
          b.output(y);
        } else {
          b.output(b.quantize(y, y_scale, 128), element_type::u8);
        }
        const std::string integers = layer == "Conv" ? "QLinearConv" : "QLinearGemm";
        const graph::model m = graph::for_execution(b.get());
        const tensors inputs{{"x", random_floats(r, at.in, -9.0F, 9.0F)}};
        if (y_scale == 0.02F) {
          // The result in floats, which is exact; of a MatMul the sums alone are integers.
          CHECK(count(m, integers, "detent") == (layer == "MatMul" ? 1 : 0));
          CHECK(distance(b.get(), inputs) <= (layer == "MatMul" ? 1.0 : 0.0));
        } else {
          CHECK(count(m, integers, "detent") == 1);
          CHECK(m.nodes.size() == 2);
          // Sums of float differ by far less than a step of x_scale * w_scale, which is 0.009 and
          // more.
          CHECK(distance(b.get(), inputs, 1e-3) <= 1.0);
        }
      }
    }
  }
}

TEST_CASE("lower: Gemm and MatMul") {
  test::random_source r(2);
  INFO("seed ", r.seed());
  for (const char* op : {"Gemm", "Gemm transB", "MatMul", "MatMul of rank 3"}) {
    for (const weights& w : all_weights) {
      for (const element_type x_type : {element_type::u8, element_type::s8}) {
        for (const bool quantized : {true, false}) {
          INFO(op, " w ", graph::name(w.type), w.per_channel ? " per channel" : "",
               w.zero_points ? " with zero points" : "", quantized ? "" : " to float");
          const std::string name(op);
          const bool transposed = name == "Gemm transB";
          model_builder b;
          const shape in = name == "MatMul of rank 3" ? shape{2, 3, 9} : shape{5, 9};
          b.input("x", in);
          const std::string x = b.pair("x", 0.05F, level(x_type, 113), x_type);
          std::vector<std::string> inputs{
              x, add_weights(b, r, "w", transposed ? shape{7, 9} : shape{9, 7}, transposed ? 0 : 1,
                             w)};
          test::attributes a;
          if (transposed) {
            a["transB"] = number(1);
          }
          if (name.rfind("Gemm", 0) == 0) {
            inputs.push_back(b.constant("b", random_floats(r, {7}, -2.0F, 2.0F)));
          }
          std::string y = b.add(name.substr(0, name.find(' ')), inputs, a);
          if (r.chance(50)) {
            y = b.add("Relu", {y});
          }
          const float step = 0.07F;
          if (quantized) {
            b.output(b.quantize(y, step, level(x_type, 90), x_type), x_type);
          } else {
            b.output(y);
          }
          CHECK(lowered(b.get()) == "QuantizeLinear detent.QLinearGemm");
          CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)}},
                         static_cast<double>(step)) <= (quantized ? 1.0 : 0.01));
        }
      }
    }
  }

  // Two activations.
  model_builder b;
  b.input("x", {2, 3, 5});
  b.input("y", {2, 5, 4});
  const std::string product = b.add("MatMul", {b.pair("x", 0.05F, 120), b.pair("y", 0.04F, 3)});
  b.output(b.quantize(product, 0.2F, 128), element_type::u8);
  CHECK(lowered(b.get()) == "QuantizeLinear QuantizeLinear QLinearMatMul");
  CHECK(distance(b.get(), {{"x", random_floats(r, {2, 3, 5}, -7.0F, 7.0F)},
                           {"y", random_floats(r, {2, 5, 4}, -1.0F, 9.0F)}}) <= 1.0);
}

TEST_CASE("lower: a row that is added behind a MatMul is its bias") {
  test::random_source r(21);
  INFO("seed ", r.seed());
  enum class kind { real, integer, other_scale };
  for (const weights& w : all_weights) {
    for (const shape& row : {shape{7}, shape{1, 7}, shape{1, 1, 7}}) {
      for (const kind of : {kind::real, kind::integer, kind::other_scale}) {
        const bool quantized = r.chance(70);
        const bool clamped = r.chance(50);
        const bool first = r.chance(50);
        INFO(row.size(), " axes, kind ", static_cast<int>(of), quantized ? "" : ", to float",
             clamped ? ", Relu" : "", first ? ", row first" : "", ", w ", graph::name(w.type),
             w.per_channel ? " per channel" : "", w.zero_points ? " with zero points" : "");
        model_builder b;
        const shape in{2, 3, 9};
        b.input("x", in);
        const std::string x = b.pair("x", 0.05F, 113);
        const std::string product = b.add("MatMul", {x, add_weights(b, r, "w", {9, 7}, 1, w)});
        std::string bias;
        if (of == kind::real) {
          bias = b.constant("b", random_floats(r, row, -2.0F, 2.0F));
        } else {
          std::vector<float> scales = values_of<float>(b.get().initializers.at("w_scale"));
          for (float& s : scales) {
            s *= of == kind::integer ? 0.05F : 0.125F;
          }
          const shape params = w.per_channel ? shape{7} : shape{};
          std::vector<std::int32_t> values(7);
          for (std::int32_t& v : values) {
            v = r.integer(-900, 900);
          }
          bias = b.dequantize_constant(
              "b", test::make_tensor<std::int32_t>(element_type::s32, row, values),
              floats(params, scales),
              test::make_tensor<std::int32_t>(element_type::s32, params,
                                              std::vector<std::int32_t>(scales.size(), 0)),
              static_cast<std::int64_t>(row.size()) - 1);
        }
        std::string y = first ? b.add("Add", {bias, product}) : b.add("Add", {product, bias});
        y = clamped ? b.add("Relu", {y}) : y;
        if (quantized) {
          b.output(b.quantize(y, 0.07F, 90), element_type::u8);
        } else {
          b.output(y);
        }
        CHECK(lowered(b.get()) == "QuantizeLinear detent.QLinearGemm");
        CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)}}, 0.07) <=
              (quantized ? 1.0 : 0.05));
      }
    }
  }
}

TEST_CASE("lower: what is added behind a MatMul and is not its bias stays an Add") {
  test::random_source r(22);
  INFO("seed ", r.seed());
  struct addend {
    const char* what;
    shape dims;
    float largest;
  };
  for (const addend& a :
       {addend{"a column", {3, 1}, 1.0F}, addend{"a matrix", {3, 7}, 1.0F},
        addend{"one row for each image", {2, 1, 7}, 1.0F}, addend{"a number", {}, 1.0F},
        addend{"a row with one more axis", {1, 1, 1, 7}, 1.0F}}) {
    INFO(a.what);
    model_builder b;
    b.input("x", {2, 3, 9});
    const std::string product = b.add(
        "MatMul", {b.pair("x", 0.05F, 113), add_weights(b, r, "w", {9, 7}, 1, all_weights[0])});
    b.output(
        b.add("Add", {product, b.constant("b", random_floats(r, a.dims, -a.largest, a.largest))}));
    CHECK(lowered(b.get()) == "QuantizeLinear detent.QLinearGemm Add");
    CHECK(distance(b.get(), {{"x", random_floats(r, {2, 3, 9}, -7.0F, 7.0F)}},
                   static_cast<double>(0.07F * a.largest)) <= 0.01);
  }
  {
    INFO("more than 32 bits hold, in front of 8 bits");
    model_builder b;
    b.input("x", {2, 3, 9});
    const std::string product = b.add(
        "MatMul", {b.pair("x", 0.05F, 113), add_weights(b, r, "w", {9, 7}, 1, all_weights[0])});
    const std::string sum =
        b.add("Add", {product, b.constant("b", random_floats(r, {7}, -1e30F, 1e30F))});
    b.output(b.quantize(sum, 1e28F, 128), element_type::u8);
    CHECK(lowered(b.get()) == "QuantizeLinear detent.QLinearGemm Add QuantizeLinear");
    CHECK(distance(b.get(), {{"x", random_floats(r, {2, 3, 9}, -7.0F, 7.0F)}}) == 0.0);
  }
  for (const bool is_output : {true, false}) {
    INFO("the product goes elsewhere, too", is_output ? ": out of the graph" : "");
    model_builder b;
    b.input("x", {2, 3, 9});
    const std::string product = b.add(
        "MatMul", {b.pair("x", 0.05F, 113), add_weights(b, r, "w", {9, 7}, 1, all_weights[0])});
    const std::string sum =
        b.add("Add", {product, b.constant("b", random_floats(r, {7}, -1.0F, 1.0F))});
    b.output(is_output ? product : b.add("Sub", {sum, product}));
    if (is_output) {
      b.output(sum);
    }
    const std::string all = lowered(b.get());
    CHECK(all.find("detent.QLinearGemm Add") != std::string::npos);
    CHECK(distance(b.get(), {{"x", random_floats(r, {2, 3, 9}, -7.0F, 7.0F)}}, 0.07) <= 0.01);
  }
}

TEST_CASE("lower: means stay where an open dimension decides which axes are those of an image") {
  test::random_source r(41);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 2, 3, 4, 5});
  // Of one image, axes 2 and 3 are the last ones.
  const std::string image = b.pair(b.add("Squeeze", {"x"}), 0.02F, 128);
  b.output(b.quantize(b.add("ReduceMean", {image}, {{"axes", list({2, 3})}}), 0.01F, 9),
           element_type::u8);
  check_batches(b.get(), r);
}

TEST_CASE("lower: a row is no bias where an open dimension decides what it is added to") {
  test::random_source r(43);
  INFO("seed ", r.seed());
  const auto branch = [](const char* op, std::vector<std::string> inputs) {
    model_builder body;
    body.output(body.add(op, std::move(inputs)));
    return attribute::of(static_cast<graph::graph_body>(body.get()));
  };
  // The row of three dimensions adds one to a matrix. The product is one unless there is one row;
  // or only if there are three, a number that no inference tries.
  for (const std::int64_t special : {1, 3}) {
    INFO("special: ", special);
    model_builder b;
    b.input("x", {-1, 8});
    b.constant("zero", make_tensor(element_type::s64, {}, std::vector<std::int64_t>{0}));
    b.constant("special", make_tensor(element_type::s64, {}, std::vector<std::int64_t>{special}));
    b.constant("axis", {0});
    const std::string rows = b.add("Gather", {b.add("Shape", {"x"}), "zero"});
    const attribute three = branch("Unsqueeze", {"x", "axis"});
    const attribute two = branch("Identity", {"x"});
    const std::string chosen = b.add(
        "If", {b.add("Equal", {rows, "special"})},
        {{"then_branch", special == 1 ? three : two}, {"else_branch", special == 1 ? two : three}});
    const std::string product = b.add(
        "MatMul", {b.pair(chosen, 0.02F, 128), add_weights(b, r, "w", {8, 5}, 1, all_weights[0])});
    b.constant("row", random_floats(r, {1, 1, 5}, -1.0F, 1.0F));
    b.output(b.quantize(b.add("Add", {product, "row"}), 0.1F, 120), element_type::u8);
    check_batches(b.get(), r);
  }
}

TEST_CASE("lower: levels of scales that are not positive stay float") {
  test::random_source r(42);
  INFO("seed ", r.seed());
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float wrong : {-0.03F, 0.0F, infinity}) {
    INFO("scale ", wrong);
    for (const char* op : {"Conv", "MatMul", "Sigmoid", "MaxPool"}) {
      INFO(std::string(op));
      const bool has_weights = op[0] == 'C' || std::string(op) == "MatMul";
      const bool is_image = !has_weights || op[0] == 'C';
      model_builder b;
      b.input("x", is_image ? shape{-1, 4, 3, 3} : shape{-1, 4}, element_type::u8);
      std::vector<std::string> inputs{b.dequantize("x", has_weights ? 0.02F : wrong, 113)};
      if (has_weights) {
        const shape dims = is_image ? shape{3, 4, 1, 1} : shape{4, 3};
        inputs.push_back(b.dequantize_constant(
            "w", make_tensor(element_type::s8, dims, r.integers<std::int8_t>(12)),
            floats({3}, {0.01F, wrong, 0.02F}),
            make_tensor(element_type::s8, {3}, std::vector<std::int8_t>{0, 0, 0}),
            is_image ? 0 : 1));
      }
      const test::attributes a = op[1] == 'a' && op[2] == 'x'
                                     ? test::attributes{{"kernel_shape", list({2, 2})}}
                                     : test::attributes{};
      b.output(b.quantize(b.add(op, inputs, a), 0.1F, 128), element_type::u8);
      graph::model lowered = b.get();
      graph::lower_quantized(lowered);
      CHECK(count(lowered, op, "") == 1);
      const tensors x{
          {"x", make_tensor(element_type::u8, is_image ? shape{1, 4, 3, 3} : shape{2, 4},
                            r.integers<std::uint8_t>(is_image ? 36 : 8))}};
      const auto run = [&](const graph::model& m) { return levels(outputs_of(m, x)[0]); };
      if (wrong < 0.0F) {  // a run refuses others
        CHECK(run(graph::for_execution(b.get())) == run(b.get()));
      }
      graph::model written = b.get();
      graph::to_qoperator(written);
      CHECK(count(written, op, "") == 1);
    }
  }
}

TEST_CASE("lower: parameters that do not fit stay where they are, to be refused at run time") {
  // An open dimension, so that nothing is refused when shapes are inferred.
  struct wrong {
    const char* what;
    std::int64_t weight_scales, weight_zeros, bias_scales, input_zeros;
  };
  for (const bool gemm : {true, false}) {
    for (const wrong& n :
         {wrong{"scales of the weights", 2, 2, 5, 1},
          wrong{"scales of the weights, without a bias", 2, 2, -1, 1},
          wrong{"zero points of the weights", 5, 0, 5, 1}, wrong{"scales of the bias", 5, 5, 3, 1},
          wrong{"no scale of the bias", 5, 5, 0, 1},
          wrong{"no zero point of the input", 5, 5, 5, 0}}) {
      INFO((gemm ? "Gemm: " : "Conv: "), n.what);
      model_builder b;
      b.input("x", gemm ? shape{-1, 4} : shape{-1, 4, 3, 3});
      const auto ones = [](std::int64_t count) {
        return floats({count}, std::vector<float>(static_cast<std::size_t>(count), 0.05F));
      };
      const auto zeros = [](element_type type, shape dims) {
        tensor t = tensor::allocate(type, std::move(dims));
        std::fill(t.mutable_raw(), t.mutable_raw() + t.bytes(), std::byte{0});
        return t;
      };
      const std::string scale = b.scalar("x_scale", 0.05F);
      const std::string zero =
          b.constant("x_zero", zeros(element_type::u8, n.input_zeros == 1 ? shape{} : shape{0}));
      const std::string q = b.add("QuantizeLinear", {"x", scale, zero});
      const std::string x = b.add("DequantizeLinear", {q, scale, zero});
      const std::string w = b.dequantize_constant(
          "w", zeros(element_type::s8, gemm ? shape{4, 5} : shape{5, 4, 1, 1}),
          ones(n.weight_scales), zeros(element_type::s8, {n.weight_zeros}), gemm ? 1 : 0);
      const std::string bias =
          n.bias_scales < 0
              ? std::string()
              : b.dequantize_constant("b", zeros(element_type::s32, {5}), ones(n.bias_scales),
                                      zeros(element_type::s32, {n.bias_scales}), 0);
      b.output(b.quantize(b.add(gemm ? "Gemm" : "Conv", {x, w, bias}), 0.11F, 9), element_type::u8);
      graph::model m = b.get();
      graph::lower_quantized(m);
      CHECK(count(m, gemm ? "QLinearGemm" : "QLinearConv", "detent") == 0);
      m = b.get();
      graph::to_qoperator(m);
      CHECK(count(m, gemm ? "QGemm" : "QLinearConv", gemm ? "com.microsoft" : "") == 0);
      const shape in = gemm ? shape{1, 4} : shape{1, 4, 3, 3};
      const auto run = [&] {
        graph::executor runner(graph::for_execution(b.get()));
        static_cast<void>(runner.run({{"x", zeros(element_type::f32, in)}}));
      };
      CHECK_THROWS_AS(run(), detent::error);
    }
  }
}

TEST_CASE("lower: elementwise operators are exact") {
  test::random_source r(3);
  INFO("seed ", r.seed());
  for (const char* op : {"Add", "Sub", "Mul", "Div"}) {
    for (const element_type type : {element_type::u8, element_type::s8}) {
      for (const shape& other : {shape{2, 4, 5}, shape{4, 1}, shape{}}) {
        // The last two leave no level for zero.
        for (const char* activation : {"", "Relu", "Clip", "Clip above", "Clip below"}) {
          INFO(op, " ", graph::name(type), " ", graph::to_string(other), " ", activation);
          model_builder b;
          b.input("x", {2, 4, 5});
          b.input("y", other);
          std::string out = b.add(op, {b.pair("x", 0.031F, level(type, 128), type),
                                       b.pair("y", 0.017F, level(type, 0), type)});
          const std::string name(activation);
          if (name == "Relu") {
            out = b.add("Relu", {out});
          } else if (!name.empty()) {
            const float low = name == "Clip above" ? 0.6F : name == "Clip below" ? -1.9F : -0.5F;
            const float high = name == "Clip below" ? -0.3F : 1.7F;
            out = b.add("Clip", {out, b.scalar("lo", low), b.scalar("hi", high)});
          }
          b.output(b.quantize(out, 0.043F, level(type, 77), type), type);
          CHECK(lowered(b.get()) ==
                std::string("QuantizeLinear QuantizeLinear detent.QLinear") + op);
          CHECK(distance(b.get(), {{"x", random_floats(r, {2, 4, 5}, -5.0F, 5.0F)},
                                   {"y", random_floats(r, other, 0.1F, 5.0F)}}) == 0.0);
        }
      }
    }
  }
}

TEST_CASE("lower: functions of one value become tables, exactly") {
  std::vector<float> x;
  for (int i = 0; i < 256; ++i) {
    x.push_back(static_cast<float>(i - 113) * 0.05F);
  }
  struct function {
    const char* op;
    test::attributes attributes;
  };
  const function functions[] = {
      {"Sigmoid", {}},     {"Tanh", {}},      {"LeakyRelu", {{"alpha", real(0.2F)}}},
      {"HardSigmoid", {}}, {"HardSwish", {}}, {"Elu", {}},
      {"Softplus", {}},    {"Relu", {}},      {"Exp", {}},
      {"Abs", {}},         {"Neg", {}}};
  for (const function& f : functions) {
    for (const element_type type : {element_type::u8, element_type::s8}) {
      INFO(f.op, " ", graph::name(type));
      model_builder b;
      b.input("x", {256});
      const std::string y = b.add(f.op, {b.pair("x", 0.05F, level(type, 113), type)}, f.attributes);
      b.output(b.quantize(y, 0.03F, level(type, 40), type), type);
      CHECK(lowered(b.get()) == "QuantizeLinear detent.Lookup");
      CHECK(distance(b.get(), {{"x", test::floats({256}, x)}}) == 0.0);
    }
  }
  // Clip, and from one grid to another, also of another type.
  for (const element_type to : {element_type::u8, element_type::s8}) {
    model_builder b;
    b.input("x", {256});
    const std::string first = b.pair("x", 0.05F, 113);
    b.output(b.quantize(first, 0.08F, level(to, 99), to), to);
    b.output(b.quantize(b.add("Clip", {first, b.scalar("lo", -1.0F), b.scalar("hi", 1.5F)}), 0.02F,
                        level(to, 99), to),
             to);
    CHECK(count(graph::for_execution(b.get()), "Lookup", "detent") == 2);
    CHECK(count(graph::for_execution(b.get()), "DequantizeLinear", "") == 0);
    CHECK(distance(b.get(), {{"x", test::floats({256}, x)}}) == 0.0);
  }
}

TEST_CASE("lower: a BatchNormalization between quantized values is a table for each channel") {
  // The fourth channel has a variance that gives NaN, which quantizes to the zero point.
  const auto normalized = [](model_builder& b, const std::string& x, const std::string& clamp) {
    const std::string y = b.add("BatchNormalization",
                                {x, b.constant("scale", floats({4}, {0.7F, -1.3F, 25.0F, 1.0F})),
                                 b.constant("bias", floats({4}, {0.1F, -0.4F, 3.0F, 0.0F})),
                                 b.constant("mean", floats({4}, {-0.3F, 0.2F, 1.0F, 0.5F})),
                                 b.constant("variance", floats({4}, {0.9F, 0.002F, 4.0F, -1.0F}))},
                                {{"epsilon", real(0.001F)}});
    if (clamp == "Clip") {
      return b.add("Clip", {y, b.scalar("lo", 0.3F), b.scalar("hi", 1.7F)});
    }
    return clamp.empty() ? y : b.add(clamp, {y});
  };
  test::random_source r(67);
  const tensor image = random_floats(r, {2, 4, 5, 7}, -2.0F, 2.0F);
  const tensor matrix = random_floats(r, {33, 4}, -2.0F, 2.0F);
  for (const std::string clamp : {"", "Relu", "Clip"}) {
    for (const element_type from : {element_type::u8, element_type::s8}) {
      for (const element_type to : {element_type::u8, element_type::s8}) {
        INFO(clamp, " ", graph::name(from), " ", graph::name(to));
        for (const tensor& x : {image, matrix}) {
          model_builder b;
          b.input("x", x.dims());
          const std::string y = normalized(b, b.pair("x", 0.02F, level(from, 119), from), clamp);
          b.output(b.quantize(y, 0.013F, level(to, 77), to), to);
          CHECK(lowered(b.get()) == "QuantizeLinear detent.QLinearBatchNormalization");
          CHECK(distance(b.get(), {{"x", x}}) == 0.0);
        }
        // Behind a convolution, whose output has the channels last.
        model_builder b;
        b.input("x", image.dims());
        const std::string filters =
            b.constant("filters", random_floats(r, {4, 4, 3, 3}, -1.0F, 1.0F));
        const std::string sums = b.add("Conv", {"x", filters});
        const std::string y = normalized(b, b.pair(sums, 0.05F, level(from, 119), from), clamp);
        b.output(b.quantize(y, 0.013F, level(to, 77), to), to);
        CHECK(lowered(b.get()) == "Conv QuantizeLinear detent.QLinearBatchNormalization");
        CHECK(distance(b.get(), {{"x", image}}) == 0.0);
      }
    }
  }
}

TEST_CASE("lower: a BatchNormalization stays float where its parameters are computed") {
  model_builder b;
  b.input("x", {2, 4, 5, 7});
  b.input("bias", {4});
  const std::string one = b.constant("one", floats({4}, {1.0F, 1.0F, 1.0F, 1.0F}));
  const std::string y =
      b.add("BatchNormalization", {b.pair("x", 0.02F, 119), one, "bias", one, one});
  b.output(b.quantize(y, 0.013F, 77), element_type::u8);
  CHECK(lowered(b.get()) == "QuantizeLinear DequantizeLinear BatchNormalization QuantizeLinear");
}

TEST_CASE("lower: a change of scale without an integer form stays as it is") {
  const auto to_scale = [](tensor scale, test::attributes a) {
    model_builder b(23);
    b.input("x", {4});
    b.output(
        b.add("QuantizeLinear",
              {b.pair("x", 0.5F, 3), b.constant("scale", std::move(scale)),
               b.constant("zero_point", make_tensor<std::uint8_t>(element_type::u8, shape{}, {9}))},
              std::move(a)),
        element_type::u8);
    return b.get();
  };
  const std::uint16_t half_one = 0x3C00;
  const tensor one = floats({}, {1.0F});
  CHECK(lowered(to_scale(one, {})) == "QuantizeLinear detent.Lookup");
  CHECK(lowered(to_scale(one, {{"block_size", number(4)}, {"axis", number(0)}})) ==
        "QuantizeLinear DequantizeLinear QuantizeLinear");
  CHECK(lowered(to_scale(make_tensor<std::uint16_t>(element_type::f16, {}, {half_one}), {})) ==
        "QuantizeLinear DequantizeLinear QuantizeLinear");
  CHECK(lowered(to_scale(floats({4}, {1.0F, 2.0F, 4.0F, 8.0F}), {{"axis", number(0)}})) ==
        "QuantizeLinear DequantizeLinear QuantizeLinear");
}

TEST_CASE("lower: what moves elements does so on 8 bits, exactly") {
  test::random_source r(4);
  INFO("seed ", r.seed());
  const shape in{2, 4, 6, 6};
  const std::vector<std::pair<std::string, test::attributes>> movements{
      {"MaxPool",
       {{"kernel_shape", list({3, 3})}, {"strides", list({2, 2})}, {"pads", list({1, 1, 1, 1})}}},
      {"Reshape", {}},
      {"Transpose", {{"perm", list({0, 2, 3, 1})}}},
      {"Flatten", {}},
      {"Slice", {}},
      {"Gather", {{"axis", number(1)}}},
      {"DepthToSpace", {{"blocksize", number(2)}}},
      {"SpaceToDepth", {{"blocksize", number(2)}}},
      {"Resize", {{"mode", test::text("nearest")}}},
  };
  for (const auto& movement : movements) {
    const std::string& op = movement.first;  // clang 14 cannot capture structured bindings
    const test::attributes& attributes = movement.second;
    for (const element_type type : {element_type::u8, element_type::s8}) {
      for (const bool same_scale : {true, false}) {
        INFO(op, " ", graph::name(type), same_scale ? "" : " with another scale");
        model_builder b;
        b.input("x", in);
        std::vector<std::string> inputs{b.pair("x", 0.05F, level(type, 113), type)};
        if (op == "Reshape") {
          inputs.push_back(b.constant("target", {2, -1}));
        } else if (op == "Slice") {
          for (const auto& [name, value] : {std::pair("starts", 1), {"ends", 5}, {"axes", 3}}) {
            inputs.push_back(b.constant(name, {value}));
          }
        } else if (op == "Gather") {
          inputs.push_back(b.constant("indices", {2, 0}));
        } else if (op == "Resize") {
          inputs.push_back("");
          inputs.push_back(b.constant("scales", test::floats({4}, {1, 1, 2, 2})));
        }
        const std::string y = b.add(op, inputs, attributes);
        b.output(b.quantize(y, same_scale ? 0.05F : 0.09F, level(type, 113), type), type);
        CHECK(lowered(b.get()) == "QuantizeLinear " + op + (same_scale ? "" : " detent.Lookup"));
        CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)}}) == 0.0);
      }
    }
  }
}

TEST_CASE("lower: what writes numbers of its own is no movement") {
  test::random_source r(41);
  INFO("seed ", r.seed());
  // A Resize that crops: outside of the image it writes a number of its own.
  for (const float outside : {0.0F, 2.5F}) {
    for (const bool same_scale : {true, false}) {
      INFO(outside, same_scale);
      model_builder b;
      b.input("x", {1, 2, 6, 6});
      b.constant("roi", test::floats({8}, {0.0F, 0.0F, -0.5F, 0.2F, 1.0F, 1.0F, 1.5F, 0.9F}));
      b.constant("sizes", {1, 2, 6, 6});
      const std::string y =
          b.add("Resize", {b.pair("x", 0.05F, 113), "roi", "", "sizes"},
                {{"mode", test::text("nearest")},
                 {"coordinate_transformation_mode", test::text("tf_crop_and_resize")},
                 {"extrapolation_value", graph::attribute::of(outside)}});
      b.output(b.quantize(y, same_scale ? 0.05F : 0.09F, 113), element_type::u8);
      CHECK(lowered(b.get()) == "QuantizeLinear DequantizeLinear Resize QuantizeLinear");
      CHECK(distance(b.get(), {{"x", random_floats(r, {1, 2, 6, 6}, -7.0F, 7.0F)}}) == 0.0);
    }
  }
  // Windows with dilations may lie in the padding only.
  for (const bool same_scale : {true, false}) {
    model_builder b;
    b.input("x", {1, 1, 2});
    const std::string y =
        b.add("MaxPool", {b.pair("x", 0.05F, 113)},
              {{"kernel_shape", list({2})}, {"dilations", list({3})}, {"pads", list({1, 2})}});
    b.output(b.quantize(y, same_scale ? 0.05F : 0.09F, 113), element_type::u8);
    CHECK(lowered(b.get()) == (same_scale ? "QuantizeLinear MaxPool"
                                          : "QuantizeLinear DequantizeLinear MaxPool "
                                            "QuantizeLinear"));
    CHECK(distance(b.get(), {{"x", test::floats({1, 1, 2}, {-1.0F, 3.0F})}}) == 0.0);
  }
}

TEST_CASE("lower: averages over more axes than pools take stay in float") {
  test::random_source r(42);
  INFO("seed ", r.seed());
  const shape in{2, 3, 2, 3, 2, 2};
  model_builder b;
  b.input("x", in);
  const std::string y =
      b.add("ReduceMean", {b.pair("x", 0.05F, 113)}, {{"axes", list({2, 3, 4, 5})}});
  b.output(b.quantize(y, 0.03F, 90), element_type::u8);
  CHECK(lowered(b.get()) == "QuantizeLinear DequantizeLinear ReduceMean QuantizeLinear");
  CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)}}) == 0.0);
}

TEST_CASE("lower: averages and Concat") {
  test::random_source r(5);
  INFO("seed ", r.seed());
  const shape in{2, 5, 7, 6};
  for (const element_type type : {element_type::u8, element_type::s8}) {
    for (const char* op :
         {"AveragePool", "AveragePool with padding", "GlobalAveragePool", "ReduceMean"}) {
      INFO(op, " ", graph::name(type));
      const std::string full(op);
      const std::string name = full.substr(0, full.find(' '));
      model_builder b;
      b.input("x", in);
      test::attributes a;
      if (name == "AveragePool") {
        a["kernel_shape"] = list({3, 2});
        a["strides"] = list({2, 2});
      }
      if (full != name) {
        a["pads"] = list({1, 1, 0, 1});
        a["count_include_pad"] = number(1);
      }
      if (name == "ReduceMean") {
        a["axes"] = list({2, 3});
      }
      const std::string y = b.add(name, {b.pair("x", 0.05F, level(type, 113), type)}, a);
      b.output(b.quantize(y, 0.03F, level(type, 90), type), type);
      CHECK(lowered(b.get()) ==
            "QuantizeLinear detent.QLinear" + (name == "ReduceMean" ? "GlobalAveragePool" : name));
      CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)}}) <= 1.0);
    }
    model_builder b;
    b.input("x", in);
    b.input("y", in);
    const std::string x = b.pair("x", 0.05F, level(type, 113), type);
    const std::string y = b.pair("y", 0.08F, level(type, 90), type);
    const std::string all = b.add("Concat", {x, y, x}, {{"axis", number(1)}});
    b.output(b.quantize(all, 0.08F, level(type, 90), type), type);
    CHECK(lowered(b.get()) == "QuantizeLinear QuantizeLinear detent.QLinearConcat");
    CHECK(distance(b.get(), {{"x", random_floats(r, in, -7.0F, 7.0F)},
                             {"y", random_floats(r, in, -7.0F, 7.0F)}}) == 0.0);
  }
}

TEST_CASE("lower: what has no integer form keeps its float operator") {
  test::random_source r(6);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 6});
  const std::string x = b.pair("x", 0.05F, 113);
  b.output(b.quantize(b.add("Softmax", {x}), 1.0F / 256.0F, 0), element_type::u8);
  b.output(b.add("Add", {x, "x"}));  // one side is float
  const std::string seen = b.add("Sigmoid", {x});
  b.output(seen);  // needed as float too
  b.output(b.quantize(seen, 1.0F / 256.0F, 0), element_type::u8);
  b.constant("m", random_floats(r, {6, 3}, -1.0F, 1.0F));
  b.output(b.add("MatMul", {x, "m"}));  // weights are float
  const graph::model m = graph::for_execution(b.get());
  CHECK(count(m, "Softmax", "") == 1);
  CHECK(count(m, "Add", "") == 1);
  CHECK(count(m, "Sigmoid", "") == 1);
  CHECK(distance(b.get(), {{"x", random_floats(r, {2, 6}, -7.0F, 7.0F)}}, 1e-6) <= 1.0);
}

TEST_CASE("lower: every target and number of threads gives the same bytes") {
  test::random_source r(7);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 19, 13, 11});
  const std::string x = b.pair("x", 0.05F, 113);
  std::string y = b.add("Conv", {x, add_weights(b, r, "w", {37, 19, 3, 3}, 0, {})});
  y = b.pair(b.add("Relu", {y}), 0.2F, 0);
  const std::string z = b.pair(b.add("Conv", {y, add_weights(b, r, "v", {37, 1, 3, 3}, 0, {})},
                                     {{"group", number(37)}, {"pads", list({1, 1, 1, 1})}}),
                               0.15F, 100);
  y = b.pair(b.add("Add", {y, z}), 0.3F, 80);
  y = b.pair(b.add("GlobalAveragePool", {y}), 0.05F, 128);
  y = b.pair(b.add("Flatten", {y}), 0.05F, 128);
  b.output(b.add("Gemm", {y, add_weights(b, r, "u", {37, 10}, 1, {})}));
  b.output(z);
  const tensors inputs{{"x", random_floats(r, {1, 19, 13, 11}, -7.0F, 7.0F)}};
  std::vector<tensor> expected;
  test::for_each_target([&] {
    for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
      detent::thread_pool pool(threads);
      graph::executor_options options;
      options.parallel = pool.parallel();
      graph::executor executor(graph::for_execution(b.get()), options);
      const std::vector<tensor> outputs = executor.run(inputs);
      const std::vector<tensor> again = executor.run(inputs);
      if (expected.empty()) {
        expected = outputs;
      }
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        CHECK(test::difference(outputs[i].data<float>(), expected[i].data<float>()) == "");
        CHECK(test::difference(again[i].data<float>(), expected[i].data<float>()) == "");
      }
    }
  });
}

TEST_CASE("lower: tables are applied by pieces, on any number of threads") {
  // A thread takes 2^16 bytes at a time.
  test::random_source r(8);
  INFO("seed ", r.seed());
  for (const std::int64_t axis : {0, 1, 3}) {
    model_builder b;
    shape joined{1, 5, 150, 157};
    b.input("x", joined);
    joined[static_cast<std::size_t>(axis)] += 3;
    b.input("z", joined);
    const std::string x = b.pair("x", 0.05F, 113);
    const std::string z = b.pair("z", 0.03F, 125);
    b.output(b.quantize(b.add("Tanh", {x}), 1.0F / 128.0F, 128), element_type::u8);
    b.output(b.quantize(b.add("Concat", {x, z, x}, {{"axis", number(axis)}}), 0.05F, 113),
             element_type::u8);
    CHECK(lowered(b.get()) == "QuantizeLinear QuantizeLinear detent.Lookup detent.QLinearConcat");
    const tensors inputs{{"x", random_floats(r, {1, 5, 150, 157}, -7.0F, 7.0F)},
                         {"z", random_floats(r, joined, -4.0F, 4.0F)}};
    const std::vector<tensor> expected = test::outputs_of(b.get(), inputs);
    for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
      detent::thread_pool pool(threads);
      graph::executor_options options;
      options.parallel = pool.parallel();
      const auto actual = graph::executor(graph::for_execution(b.get()), options).run(inputs);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(actual[i].dims() == expected[i].dims());
        CHECK(test::values_of<std::uint8_t>(actual[i]) ==
              test::values_of<std::uint8_t>(expected[i]));
      }
    }
  }
}

// --------------------------------------------------------------------------------- static
// quantization

namespace {

/// Residual network with a depthwise layer, a dead channel in each, and a classifier.
graph::model small_network(test::random_source& r) {
  model_builder b(11);
  b.input("x", {-1, 3, 12, 12});
  const auto conv = [&](const std::string& x, std::int64_t in, std::int64_t out, bool depthwise) {
    const std::string id = std::to_string(b.get().nodes.size());
    tensor w = random_floats(r, {out, depthwise ? 1 : in, 3, 3}, -0.4F, 0.4F);
    const std::size_t filter = w.count() / static_cast<std::size_t>(out);
    std::fill_n(w.mutable_data<float>().begin() + static_cast<std::ptrdiff_t>(filter), filter,
                0.0F);
    b.constant("w" + id, w);
    b.constant("b" + id, random_floats(r, {out}, -0.5F, 0.5F));
    return b.add("Conv", {x, "w" + id, "b" + id},
                 {{"pads", list({1, 1, 1, 1})}, {"group", number(depthwise ? in : 1)}});
  };
  std::string y = b.add("Relu", {conv("x", 3, 8, false)});
  for (const char* p : {"scale", "shift", "mean", "variance"}) {
    b.constant(p, random_floats(r, {8}, 0.5F, 1.0F));
  }
  std::string z = conv(y, 8, 8, true);
  z = b.add("BatchNormalization", {z, "scale", "shift", "mean", "variance"});
  z = b.add("Clip", {z, b.scalar("zero", 0.0F), b.scalar("six", 6.0F)});
  y = b.add("Relu", {b.add("Add", {conv(z, 8, 8, false), y})});
  y = b.add("MaxPool", {y}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  y = b.add("GlobalAveragePool", {y});
  y = b.add("Flatten", {y});
  b.constant("classes", random_floats(r, {8, 5}, -1.0F, 1.0F));
  b.constant("offsets", random_floats(r, {5}, -1.0F, 1.0F));
  y = b.add("Add", {b.add("MatMul", {y, "classes"}), "offsets"});
  b.output(y);
  b.output(b.add("Softmax", {y}, {{"axis", number(1)}}));
  return b.get();
}

/// What the top of static_quantization.hpp promises of every layer.
void check_structure(const graph::model& m, bool per_channel) {
  std::size_t layers = 0;
  for (const graph::node& n : m.nodes) {
    if (n.is("QuantizeLinear")) {
      const tensor& scale = m.initializers.at(n.inputs[1]);
      const tensor& zero = m.initializers.at(n.inputs[2]);
      CHECK(scale.count() == 1);
      CHECK(scale.data<float>()[0] > 0.0F);
      CHECK(zero.type() == element_type::u8);
    }
    if (!n.is("Conv") && !n.is("Gemm") && !n.is("MatMul")) {
      continue;
    }
    ++layers;
    INFO(n.label());
    const graph::node* x = producer(m, n.inputs[0]);
    const graph::node* w = producer(m, n.inputs[1]);
    REQUIRE(x != nullptr);
    REQUIRE(w != nullptr);
    CHECK(x->is("DequantizeLinear"));
    REQUIRE(w->is("DequantizeLinear"));
    const float x_scale = m.initializers.at(x->inputs[1]).data<float>()[0];
    const tensor& q = m.initializers.at(w->inputs[0]);
    const tensor& scales = m.initializers.at(w->inputs[1]);
    const tensor& zeros = m.initializers.at(w->inputs[2]);
    CHECK(q.type() == element_type::s8);
    const std::int64_t axis = n.is("Conv") ? 0 : n.get_int("transB", 0) != 0 ? 0 : 1;
    const std::int64_t channels = q.dim(static_cast<std::size_t>(axis));
    if (per_channel) {
      CHECK(w->get_int("axis", 1) == axis);
      CHECK(scales.dims() == shape{channels});
    } else {
      CHECK(scales.count() == 1);
    }
    CHECK(zeros.dims() == scales.dims());
    for (const std::int8_t z : zeros.data<std::int8_t>()) {
      CHECK(z == 0);
    }
    const auto values = q.data<std::int8_t>();
    CHECK(std::find(values.begin(), values.end(), std::int8_t{-128}) == values.end());
    if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
      const graph::node* b = producer(m, n.inputs[2]);
      REQUIRE(b != nullptr);
      REQUIRE(b->is("DequantizeLinear"));
      CHECK(m.initializers.at(b->inputs[0]).type() == element_type::s32);
      CHECK(m.initializers.at(b->inputs[0]).dims() == shape{channels});
      CHECK((b->inputs.size() < 3 || b->inputs[2].empty()));
      const auto bias_scales = m.initializers.at(b->inputs[1]).data<float>();
      REQUIRE(bias_scales.size() == scales.count());
      for (std::size_t i = 0; i < bias_scales.size(); ++i) {
        CHECK(bias_scales[i] == x_scale * scales.data<float>()[i]);
      }
    }
  }
  CHECK(layers > 0);
}

}  // namespace

TEST_CASE("static_quantization: the model it makes") {
  for (std::uint64_t seed = 20; seed < 24; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model original = small_network(r);
    const auto samples = samples_of_x(r, {2, 3, 12, 12}, 4, -1.0F, 1.0F);
    for (const bool per_channel : {true, false}) {
      INFO("per channel ", per_channel);
      const graph::model m = graph::static_quantization(original, samples_source(samples),
                                                        {.weights = {.per_channel = per_channel}})
                                 .result;
      CHECK(m.opset() >= 13);
      CHECK(m.producer_name == "detent");
      REQUIRE(m.inputs.size() == 1);
      CHECK(m.inputs[0].name == "x");
      CHECK(m.inputs[0].dims == original.inputs[0].dims);
      REQUIRE(m.outputs.size() == 2);
      CHECK(m.outputs[0].name == original.outputs[0].name);
      CHECK(m.outputs[1].name == original.outputs[1].name);
      // It comes through a file, and is in order.
      graph::model again = graph::parse_onnx(graph::to_onnx(m), ".");
      graph::sort_and_check(again);
      check_structure(again, per_channel);

      const graph::model fast = graph::for_execution(again);
      CHECK(count(fast, "Conv", "") + count(fast, "Conv", "detent") == 0);
      CHECK(count(fast, "Gemm", "") + count(fast, "Gemm", "detent") == 0);
      CHECK(count(fast, "QLinearConv", "detent") == 3);
      CHECK(count(fast, "QLinearGemm", "detent") == 1);
      CHECK(count(fast, "QLinearAdd", "detent") == 1);
      CHECK(count(fast, "QuantizeLinear", "") == 1);

      // Close to the float model, and the same on every target.
      graph::executor reference(original);
      double signal = 0.0;
      double noise = 0.0;
      for (const tensors& sample : samples) {
        const auto expected = reference.run(sample);
        std::vector<tensor> first;
        test::for_each_target([&] {
          detent::thread_pool pool(3);
          graph::executor_options options;
          options.parallel = first.empty() ? detent::parallel_for{} : pool.parallel();
          graph::executor executor(fast, options);
          const auto actual = executor.run(sample);
          first = first.empty() ? actual : first;
          CHECK(test::difference(actual[0].data<float>(), first[0].data<float>()) == "");
        });
        for (std::size_t i = 0; i < expected[0].count(); ++i) {
          const double e = static_cast<double>(expected[0].data<float>()[i]);
          const double d = static_cast<double>(first[0].data<float>()[i]) - e;
          signal += e * e;
          noise += d * d;
        }
      }
      CHECK(signal > 100.0 * noise);  // 20 dB
    }
  }
}

namespace {

/// Half the range that the second pass saw; the first pass is told apart.
struct half_range_observer {
  detent::min_max_observer passes[2];
  std::size_t phase = 0;
  [[nodiscard]] std::size_t phases() const { return 2; }
  void begin_phase(std::size_t p) { phase = p; }
  void observe(std::span<const float> x) { passes[phase].observe(x); }
  [[nodiscard]] detent::quant_params finalize(detent::quant_scheme scheme) const {
    REQUIRE(passes[0] == passes[1]);
    const detent::value_range r = passes[1].range();
    return params_from_range({r.lower / 2.0F, r.upper / 2.0F}, scheme);
  }
};

}  // namespace

TEST_CASE("static_quantization: methods by name, two passes, evidence") {
  detent::observer_registry observers = detent::default_observers();
  observers.add("Half_Range", [](const detent::observer_options&) {
    return detent::any_observer(half_range_observer());
  });
  test::random_source r(27);
  INFO("seed ", r.seed());
  const graph::model original = small_network(r);
  const auto samples = samples_of_x(r, {2, 3, 12, 12}, 4, -1.0F, 1.0F);
  std::map<std::string, detent::scale_solution> plain;
  std::map<std::string, detent::scale_solution> half;
  const auto collect = [](std::map<std::string, detent::scale_solution>& to) {
    return [&to](const std::string& name, const std::string& /*method*/,
                 const detent::scale_solution& s) { to[name] = s; };
  };
  static_cast<void>(graph::static_quantization(original, samples_source(samples),
                                               {.activations = {.on_parameters = collect(plain)}})
                        .result);
  static_cast<void>(graph::static_quantization(
                        original, samples_source(samples),
                        {.method = "HALF_range",
                         .activations = {.observers = observers, .on_parameters = collect(half)}})
                        .result);
  REQUIRE(plain.size() > 4);
  REQUIRE(plain.size() == half.size());
  for (const auto& entry : plain) {
    const auto& name = entry.first;
    const auto& s = entry.second;
    INFO(name);
    REQUIRE(half.count(name) == 1);
    const bool constant = original.initializer(name) != nullptr;
    CHECK(half[name].params.scale ==
          doctest::Approx(s.params.scale * (constant ? 1.0F : 0.5F)).epsilon(1e-6));
    CHECK(s.evidence.count > 0);
    CHECK(s.evidence.lower <= s.evidence.upper);
  }
  for (const std::string method : {"percentile", "kl", "mse", "isotone"}) {
    INFO(method);
    const graph::model m =
        graph::static_quantization(original, samples_source(samples), {.method = method}).result;
    check_structure(m, true);
  }
  // A source that is empty the second time.
  std::size_t calls = 0;
  const graph::calibration_source once = [&]() -> std::optional<tensors> {
    return calls++ == 0 ? std::optional(samples[0]) : std::nullopt;
  };
  test::check_graph_error(detent::error_kind::invalid_argument, {"second pass", "0 samples"}, [&] {
    static_cast<void>(
        graph::static_quantization(
            original, once, {.method = "half_range", .activations = {.observers = observers}})
            .result);
  });
  test::check_graph_error(detent::error_kind::invalid_argument, {"'nothing'", "minmax"}, [&] {
    static_cast<void>(
        graph::static_quantization(original, samples_source(samples), {.method = "nothing"})
            .result);
  });
}

TEST_CASE("static_quantization: dead channels and biases far larger than what is added to them") {
  test::random_source r(30);
  INFO("seed ", r.seed());
  for (const bool per_channel : {true, false}) {
    for (const float huge : {50.0F, 1e6F, -1e12F}) {
      INFO("per channel ", per_channel, " bias ", huge);
      model_builder b(13);
      b.input("x", {1, 4, 5, 5});
      tensor w = random_floats(r, {3, 4, 1, 1}, -1e-3F, 1e-3F);
      std::fill_n(w.mutable_data<float>().begin() + 4, 4, 0.0F);  // channel 1 is dead
      b.constant("w", w);
      b.constant("b", test::floats({3}, {huge, 0.375F * huge, 0.0F}));
      b.output(b.add("Conv", {"x", "w", "b"}));
      const auto samples = samples_of_x(r, {1, 4, 5, 5}, 2, -1.0F, 1.0F);
      const graph::model m = graph::static_quantization(b.get(), samples_source(samples),
                                                        {.weights = {.per_channel = per_channel}})
                                 .result;
      check_structure(m, per_channel);
      graph::executor reference(b.get());
      graph::executor integer(graph::for_execution(m));
      const auto e = reference.run(samples[0]);
      const auto a = integer.run(samples[0]);
      const float step = std::fabs(huge) / 255.0F;
      for (std::size_t i = 0; i < e[0].count(); ++i) {
        CHECK(std::fabs(a[0].data<float>()[i] - e[0].data<float>()[i]) <= 1.01F * step);
      }
    }
  }
}

TEST_CASE("every other sample, pass after pass") {
  std::vector<test::sample> samples;
  for (int i = 1; i <= 5; ++i) {
    samples.push_back({{"x", test::floats({1}, {static_cast<float>(i)})}});
  }
  for (const bool second : {false, true}) {
    auto half = graph::every_other_sample(samples_source(samples), second);
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<float> seen;
      while (const auto next = half()) {
        seen.push_back(next->at("x").data<float>()[0]);
      }
      CHECK(seen == (second ? std::vector<float>{2, 4} : std::vector<float>{1, 3, 5}));
    }
  }
}

TEST_CASE("weights in levels of 7 bits have no zero point") {
  test::random_source r(33);
  model_builder b;
  b.input("x", {1, 4});
  b.constant("w", random_floats(r, {4, 5}, -0.2F, 1.0F));
  b.output(b.add("Gemm", {"x", "w"}));
  graph::layer_weight_options options;
  options.per_channel = false;
  options.asymmetric = true;
  CHECK(graph::quantize_layer_weights(b.get(), b.get().nodes[0], 1.0F, options).zero_point != 0);
  options.reduce_range = true;
  const auto w = graph::quantize_layer_weights(b.get(), b.get().nodes[0], 1.0F, options);
  CHECK(w.zero_point == 0);
  CHECK(w.levels.qmin == -64);
  CHECK(w.levels.qmax == 64);
}

TEST_CASE("static_quantization: says no") {
  test::random_source r(31);
  const graph::model m = small_network(r);
  const auto samples = samples_of_x(r, {1, 3, 12, 12}, 1, -1.0F, 1.0F);
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"}, [&] {
    static_cast<void>(graph::static_quantization(m, samples_source({})).result);
  });

  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto bad = samples;
    bad.push_back({{"x", random_floats(r, {1, 3, 12, 12}, -1.0F, 1.0F)}});
    bad[1]["x"].mutable_data<float>()[17] = odd;
    check_graph_error(error_kind::invalid_argument, {"'x'", "sample 2"}, [&] {
      static_cast<void>(graph::static_quantization(m, samples_source(bad)).result);
    });
  }

  graph::model odd_weights = m;
  odd_weights.initializers["w0"] = random_floats(r, {8, 3, 3, 3}, -1.0F, 1.0F);
  odd_weights.initializers["w0"].mutable_data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(
      static_cast<void>(graph::static_quantization(odd_weights, samples_source(samples)).result),
      detent::error);

  const graph::model quantized = graph::static_quantization(m, samples_source(samples)).result;
  check_graph_error(error_kind::unsupported, {"already quantized"}, [&] {
    static_cast<void>(graph::static_quantization(quantized, samples_source(samples)).result);
  });

  for (const char* op : {"QLinearConv", "ConvInteger", "MatMulNBits"}) {
    graph::model integers = m;
    integers.nodes[1].op_type = op;
    check_graph_error(error_kind::unsupported, {"already quantized", op}, [&] {
      static_cast<void>(graph::static_quantization(integers, samples_source(samples)).result);
    });
  }
  graph::model strange = m;
  strange.nodes[1].op_type = "Fancy";
  CHECK(graph::static_quantization(strange, samples_source(samples)).not_run.size() > 0);

  check_graph_error(error_kind::invalid_argument, {"'y'"}, [&] {
    static_cast<void>(
        graph::static_quantization(
            m, samples_source({{{"y", random_floats(r, {1, 3, 12, 12}, -1.0F, 1.0F)}}}))
            .result);
  });
}

TEST_CASE("static_quantization: NaN that arises inside is named") {
  model_builder b(13);
  b.input("x", {1, 2});
  const std::string root = b.add("Sqrt", {"x"});
  b.constant("w", test::floats({2, 2}, {1, 2, 3, 4}));
  b.output(b.add("MatMul", {root, "w"}));
  check_graph_error(error_kind::invalid_argument, {"'" + root + "'", "NaN"}, [&] {
    static_cast<void>(graph::static_quantization(
                          b.get(), samples_source({{{"x", test::floats({1, 2}, {-1.0F, 1.0F})}}}))
                          .result);
  });
}
