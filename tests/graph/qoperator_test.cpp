// SPDX-License-Identifier: BSD-3-Clause
// The operator form: it computes the bits that the QDQ model computes on the integer kernels, has
// only operators of ONNX and com.microsoft, and leaves alone what these cannot say.
#include <algorithm>
#include <cstddef>
#include <cstdint>
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

#include "calibration_samples.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

constexpr element_type types[] = {element_type::u8, element_type::s8};

std::vector<std::vector<std::byte>> bytes_of(const graph::model& m, const tensors& inputs) {
  std::vector<std::vector<std::byte>> all;
  for (const tensor& t : outputs_of(graph::for_execution(m), inputs)) {
    all.emplace_back(t.raw(), t.raw() + t.bytes());
  }
  return all;
}

graph::model converted(graph::model m) {
  graph::to_qoperator(m);
  return m;
}

/// What is true of every conversion. Returns the operators.
std::string check_conversion(const graph::model& m, const tensors& inputs) {
  const graph::model q = converted(m);
  bool has_microsoft = false;
  for (const graph::node& n : q.nodes) {
    CHECK((n.domain.empty() || n.domain == "com.microsoft"));
    has_microsoft = has_microsoft || n.domain == "com.microsoft";
    if (n.op_type.rfind("QLinear", 0) == 0 || n.op_type == "QGemm") {
      for (std::size_t i = 0; i + 1 < n.inputs.size(); ++i) {
        const tensor* scale = q.initializer(n.inputs[i]);
        if (scale != nullptr && scale->type() == element_type::f32) {
          const tensor* zero = q.initializer(n.inputs[i + 1]);
          REQUIRE(zero != nullptr);
          CHECK(zero->dims() == scale->dims());
        }
      }
    }
  }
  CHECK(q.opsets.count("detent") == 0);
  CHECK(q.opsets.count("com.microsoft") == (has_microsoft ? 1 : 0));
  REQUIRE(q.outputs.size() == m.outputs.size());
  for (std::size_t i = 0; i < q.outputs.size(); ++i) {
    CHECK(q.outputs[i].name == m.outputs[i].name);
  }

  const auto expected = bytes_of(m, inputs);
  CHECK(bytes_of(q, inputs) == expected);
  // What it computes is not all the same, or nothing would be compared.
  for (const auto& bytes : expected) {
    CHECK(std::set<std::byte>(bytes.begin(), bytes.end()).size() > 1);
  }
  // Through a file, and again.
  graph::model again = graph::parse_onnx(graph::to_onnx(q), ".");
  graph::sort_and_check(again);
  CHECK(bytes_of(again, inputs) == expected);
  CHECK(graph::to_onnx(converted(q)) == graph::to_onnx(q));
  return sorted_operators(q);
}

/// Constant weights behind DequantizeLinear, int8 unless stated; zero points of 0 for int8.
std::string weights(model_builder& b, test::random_source& r, const std::string& name, shape dims,
                    std::size_t axis, bool per_channel, element_type type = element_type::s8) {
  const std::int64_t channels = per_channel ? dims[axis] : 1;
  const shape params = per_channel ? shape{channels} : shape{};
  const tensor levels =
      test::make_tensor(type, dims, r.integers<std::uint8_t>(graph::element_count(dims)));
  const tensor scales = random_floats(r, params, 0.004F, 0.02F);
  const std::vector<std::uint8_t> zeros(static_cast<std::size_t>(channels),
                                        type == element_type::u8 ? 117 : 0);
  return b.dequantize_constant(name, levels, scales, test::make_tensor(type, params, zeros),
                               static_cast<std::int64_t>(axis));
}

/// An int32 bias with the scale that QLinearConv gives it.
std::string integer_bias(model_builder& b, test::random_source& r, const std::string& w,
                         float x_scale, std::int64_t channels) {
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < channels; ++i) {
    values.push_back(r.integer(-3000, 3000));
  }
  std::vector<float> scales = test::values_of<float>(b.get().initializers.at(w + "_scale"));
  for (float& s : scales) {
    s *= x_scale;
  }
  const shape dims = b.get().initializers.at(w + "_scale").dims();
  b.constant(w + "_b", test::make_tensor(element_type::s32, {channels}, values));
  b.constant(w + "_b_scale", test::floats(dims, scales));
  return b.add("DequantizeLinear", {w + "_b", w + "_b_scale"}, {{"axis", number(0)}});
}

constexpr float x_scale = 0.05F;

}  // namespace

TEST_CASE("qoperator: layers") {
  test::random_source r(300);
  INFO("seed ", r.seed());
  struct kind {
    const char* name;
    shape in, filters;
    std::size_t axis;
    test::attributes attributes;
    const char* becomes;
  };
  const kind kinds[] = {
      {"Conv",
       {2, 5, 9, 8},
       {6, 5, 3, 3},
       0,
       {{"pads", list({1, 0, 2, 1})}, {"strides", list({2, 1})}},
       "QLinearConv"},
      {"Conv depthwise",
       {1, 6, 7, 7},
       {6, 1, 3, 3},
       0,
       {{"group", number(6)}, {"pads", list({1, 1, 1, 1})}},
       "QLinearConv"},
      {"Conv groups",
       {1, 6, 7, 7},
       {4, 3, 3, 3},
       0,
       {{"group", number(2)}, {"dilations", list({2, 1})}},
       "QLinearConv"},
      {"Gemm", {5, 9}, {9, 7}, 1, {}, "com.microsoft.QGemm"},
      {"Gemm transB", {5, 9}, {7, 9}, 0, {{"transB", number(1)}}, "com.microsoft.QGemm"},
      {"MatMul", {5, 9}, {9, 7}, 1, {}, "QLinearMatMul"},
      {"MatMul rank 3", {2, 3, 9}, {9, 7}, 1, {}, "QLinearMatMul"},
  };
  for (const kind& k : kinds) {
    const std::string op = std::string(k.name).substr(0, std::string(k.name).find(' '));
    for (const element_type type : types) {
      for (const bool per_channel : {true, false}) {
        for (const element_type w_type : types) {
          for (const char* variant : {"", "float bias", "int32 bias", "Relu", "Clip"}) {
            const std::string what(variant);
            if ((op == "MatMul" && what.find("bias") != std::string::npos) ||
                (type == element_type::s8 && w_type == element_type::u8)) {
              continue;
            }
            INFO(k.name, " ", graph::name(type), " ", graph::name(w_type), " per channel ",
                 per_channel, " ", what);
            model_builder b;
            b.input("x", k.in);
            std::vector<std::string> in{b.pair("x", x_scale, level(type, 113), type),
                                        weights(b, r, "w", k.filters, k.axis, per_channel, w_type)};
            const std::int64_t channels = k.filters[k.axis];
            if (what == "float bias") {
              in.push_back(b.constant("b", random_floats(r, {channels}, -2.0F, 2.0F)));
            } else if (what == "int32 bias") {
              in.push_back(integer_bias(b, r, "w", x_scale, channels));
            }
            std::string y = b.add(op, in, k.attributes);
            int zero = 100;
            if (what == "Relu") {
              y = b.add("Relu", {y});
              zero = 0;  // clamps what the type clamps
            } else if (what == "Clip") {
              y = b.add("Clip", {y, b.scalar("lo", -10.5F), b.scalar("hi", 17.0F)});
            }
            b.output(b.quantize(y, 0.1F, level(type, zero), type), type);
            const tensors x{{"x", random_floats(r, k.in, -7.0F, 7.0F)}};
            CHECK(check_conversion(b.get(), x) ==
                  (op == "Gemm" ? std::string("QuantizeLinear ") + k.becomes
                                : std::string(k.becomes) + " QuantizeLinear"));
          }
        }
      }
    }
  }
}

TEST_CASE("qoperator: products that are float, and those that a bias is added to") {
  test::random_source r(304);
  INFO("seed ", r.seed());
  for (const element_type type : types) {
    for (const bool per_channel : {true, false}) {
      for (const element_type w_type : types) {
        for (const char* variant : {"no bias", "row", "row, 3 axes", "int32 row", "row first"}) {
          for (const bool is_quantized : {true, false}) {
            const std::string what(variant);
            if (what == "no bias" && is_quantized) {
              continue;  // QLinearMatMul
            }
            INFO(graph::name(type), " ", graph::name(w_type), " per channel ", per_channel, " ",
                 what, " to ", is_quantized ? "8 bits" : "float");
            model_builder b;
            b.input("x", {2, 3, 9});
            std::string y = b.add("MatMul", {b.pair("x", x_scale, level(type, 113), type),
                                             weights(b, r, "w", {9, 7}, 1, per_channel, w_type)});
            if (what == "int32 row") {
              y = b.add("Add", {y, integer_bias(b, r, "w", x_scale, 7)});
            } else if (what != "no bias") {
              const shape dims = what == "row, 3 axes" ? shape{1, 1, 7} : shape{7};
              const std::string bias = b.constant("b", random_floats(r, dims, -2.0F, 2.0F));
              y = what == "row first" ? b.add("Add", {bias, y}) : b.add("Add", {y, bias});
            }
            if (is_quantized) {
              y = b.dequantize(b.quantize(b.add("Relu", {y}), 0.1F, level(type, 100), type), 0.1F,
                               level(type, 100), type);
            }
            b.output(y);
            const tensors x{{"x", random_floats(r, {2, 3, 9}, -7.0F, 7.0F)}};
            graph::model m = converted(b.get());
            if (type == element_type::s8 && w_type == element_type::u8) {  // no kernel for files
              CHECK(test::count(m, "MatMul") == 1);
              continue;
            }
            CHECK(sorted_operators(m) == std::string(is_quantized ? "DequantizeLinear " : "") +
                                             "QuantizeLinear " +
                                             (is_quantized ? "QuantizeLinear Relu " : "") +
                                             "com.microsoft.MatMulIntegerToFloat");
            CHECK(m.opsets.at("com.microsoft") == 1);
            const auto expected = values_of<float>(outputs_of(b.get(), x)[0]);
            m = graph::parse_onnx(graph::to_onnx(m), ".");
            const auto found = values_of<float>(outputs_of(graph::for_execution(m), x)[0]);
            REQUIRE(found.size() == expected.size());
            std::size_t apart = 0;  // by a step, next to a tie
            for (std::size_t i = 0; i < found.size(); ++i) {
              const float difference = std::fabs(found[i] - expected[i]);
              CHECK(difference <= (is_quantized ? 0.101F : 1e-4F));
              apart += difference > 0.05F ? 1U : 0U;
            }
            CHECK(apart <= 1);
          }
        }
      }
    }
  }
}

TEST_CASE("qoperator: Gemm with a float result") {
  test::random_source r(257);
  INFO("seed ", r.seed());
  for (const element_type type : {element_type::u8, element_type::s8}) {
    for (const bool per_channel : {false, true}) {
      for (const std::string_view what : {"no bias", "row", "int32 row"}) {
        INFO(graph::name(type), " per channel ", per_channel, " ", what);
        model_builder b;
        b.input("x", {3, 9});
        std::vector<std::string> inputs{
            b.pair("x", 0.05F, level(type, 113), type),
            weights(b, r, "w", {9, 7}, 1, per_channel, element_type::s8)};
        if (what == "int32 row") {
          inputs.push_back(integer_bias(b, r, "w", 0.05F, 7));
        } else if (what == "row") {
          inputs.push_back(b.constant("b", random_floats(r, {7}, -2.0F, 2.0F)));
        }
        // The Relu is no part of it: QGemm has no clamp.
        b.output(b.add("Sin", {b.add("Relu", {b.add("Gemm", inputs)})}));
        const tensors x{{"x", random_floats(r, {3, 9}, -7.0F, 7.0F)}};
        graph::model m = converted(b.get());
        CHECK(sorted_operators(m) == "QuantizeLinear Relu Sin com.microsoft.QGemm");
        CHECK(m.nodes[1].inputs.size() == (what == "no bias" ? 6 : 7));
        const auto expected = values_of<float>(outputs_of(b.get(), x)[0]);
        m = graph::parse_onnx(graph::to_onnx(m), ".");
        const auto found = values_of<float>(outputs_of(graph::for_execution(m), x)[0]);
        REQUIRE(found.size() == expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
          CHECK(std::fabs(found[i] - expected[i]) <= (what == "row" ? 0.01F : 1e-4F));
        }
      }
    }
  }
}

TEST_CASE("qoperator: the operators of two activations and of one") {
  test::random_source r(301);
  INFO("seed ", r.seed());
  const shape in{2, 4, 6, 6};
  struct kind {
    const char* op;
    test::attributes attributes;
    const char* becomes;
  };
  const kind kinds[] = {
      {"Add", {}, "com.microsoft.QLinearAdd"},
      {"Mul", {}, "com.microsoft.QLinearMul"},
      {"MatMul", {}, "QLinearMatMul"},
      {"Concat", {{"axis", number(1)}}, "com.microsoft.QLinearConcat"},
      {"AveragePool",
       {{"kernel_shape", list({3, 2})}, {"pads", list({1, 1, 0, 1})}, {"strides", list({2, 1})}},
       "com.microsoft.QLinearAveragePool"},
      {"AveragePool",
       {{"kernel_shape", list({3, 2})},
        {"pads", list({1, 1, 0, 1})},
        {"count_include_pad", number(1)}},
       "com.microsoft.QLinearAveragePool"},
      {"GlobalAveragePool", {}, "com.microsoft.QLinearGlobalAveragePool"},
      {"ReduceMean", {{"axes", list({-1, 2})}}, "com.microsoft.QLinearGlobalAveragePool"},
      {"Sigmoid", {}, "com.microsoft.QLinearSigmoid"},
      {"LeakyRelu", {}, "com.microsoft.QLinearLeakyRelu"},
      {"LeakyRelu", {{"alpha", real(0.2F)}}, "com.microsoft.QLinearLeakyRelu"},
  };
  for (const kind& k : kinds) {
    const std::string op(k.op);
    const bool two = op == "Add" || op == "Mul" || op == "MatMul" || op == "Concat";
    for (const element_type type : types) {
      for (const bool relu : {false, true}) {
        if (relu && op != "Add" && op != "Mul") {
          continue;
        }
        INFO(op, " ", graph::name(type), " relu ", relu);
        model_builder b;
        b.input("x", in);
        std::vector<std::string> inputs{b.pair("x", x_scale, level(type, 113), type)};
        tensors values{{"x", random_floats(r, in, -7.0F, 7.0F)}};
        if (two) {
          b.input("y", in);
          inputs.push_back(b.pair("y", 0.03F, level(type, 20), type));
          values["y"] = random_floats(r, in, -1.0F, 7.0F);
        }
        std::string y = b.add(op, inputs, k.attributes);
        if (relu) {
          y = b.add("Relu", {y});
        }
        b.output(b.quantize(y,
                            op == "Sigmoid"  ? 1.0F / 256.0F
                            : op == "MatMul" ? 0.7F
                                             : 0.07F,
                            level(type, relu || op == "Sigmoid" ? 0 : 90), type),
                 type);
        const std::string ends = two ? "QuantizeLinear QuantizeLinear" : "QuantizeLinear";
        const std::string becomes(k.becomes);
        CHECK(check_conversion(b.get(), values) ==
              (op == "MatMul" ? becomes + " " + ends : ends + " " + becomes));
      }
    }
  }
}

TEST_CASE("qoperator: what moves elements") {
  test::random_source r(302);
  INFO("seed ", r.seed());
  struct kind {
    const char* op;
    std::vector<std::int64_t> argument;  // a second input, if not empty
    test::attributes attributes;
  };
  const kind kinds[] = {
      {"Reshape", {2, -1}, {}},
      {"Flatten", {}, {}},
      {"Transpose", {}, {{"perm", list({0, 2, 3, 1})}}},
      {"Unsqueeze", {0}, {}},
      {"Expand", {2, 4, 6, 6}, {}},
      {"Tile", {1, 2, 1, 1}, {}},
      {"Gather", {1, 0}, {{"axis", number(1)}}},
      {"MaxPool", {}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}}},
  };
  for (const kind& k : kinds) {
    for (const element_type type : types) {
      for (const bool same : {true, false}) {
        INFO(k.op, " ", graph::name(type), " same parameters ", same);
        model_builder b;
        b.input("x", {2, 4, 6, 6});
        std::vector<std::string> in{b.pair("x", x_scale, level(type, 113), type)};
        if (!k.argument.empty()) {
          in.push_back(b.constant("argument", k.argument));
        }
        const std::string y = b.add(k.op, in, k.attributes);
        b.output(b.quantize(y, same ? x_scale : 0.04F, level(type, 113), type), type);
        const std::string form =
            check_conversion(b.get(), {{"x", random_floats(r, {2, 4, 6, 6}, -7.0F, 7.0F)}});
        CHECK((form.find("Dequantize") == std::string::npos) == same);
      }
    }
  }
  // ONNX has had int8 and uint8 in MaxPool since opset 12.
  model_builder old(11);
  old.input("x", {1, 2, 6, 6});
  const std::string y =
      old.add("MaxPool", {old.pair("x", x_scale, 113)}, {{"kernel_shape", list({2, 2})}});
  old.output(old.quantize(y, x_scale, 113), element_type::u8);
  CHECK(check_conversion(old.get(), {{"x", random_floats(r, {1, 2, 6, 6}, -7.0F, 7.0F)}}) ==
        "DequantizeLinear MaxPool QuantizeLinear QuantizeLinear");
}

TEST_CASE("qoperator: what the operators cannot say stays between Q and DQ") {
  test::random_source r(303);
  INFO("seed ", r.seed());
  const shape in{2, 4, 6, 6};
  const tensors values{{"x", random_floats(r, in, -7.0F, 7.0F)}};
  const auto stays = [&](const char* what, const auto& build) {
    INFO(what);
    model_builder b;
    b.input("x", in);
    build(b);
    const std::string before = sorted_operators(b.get());
    CHECK(check_conversion(b.get(), values) == before);
  };
  constexpr element_type u8 = element_type::u8;
  constexpr element_type s8 = element_type::s8;
  const auto conv = [&](model_builder& b, element_type x_type = element_type::u8,
                        element_type w_type = element_type::s8) {
    return b.add("Conv", {b.pair("x", x_scale, level(x_type, 113), x_type),
                          weights(b, r, "w", {3, 4, 3, 3}, 0, true, w_type)});
  };
  stays("Relu inside the range",
        [&](model_builder& b) { b.output(b.quantize(b.add("Relu", {conv(b)}), 0.1F, 7), u8); });
  stays("Relu inside the range of int8", [&](model_builder& b) {
    b.output(b.quantize(b.add("Relu", {conv(b, s8)}), 0.1F, 0, s8), s8);
  });
  stays("Clip inside the range", [&](model_builder& b) {
    const std::string y = b.add("Clip", {conv(b), b.scalar("lo", 0.0F), b.scalar("hi", 6.0F)});
    b.output(b.quantize(y, 0.1F, 0), u8);
  });
  stays("Add and Clip", [&](model_builder& b) {
    const std::string x = b.pair("x", x_scale, 113);
    const std::string y =
        b.add("Clip", {b.add("Add", {x, x}), b.scalar("lo", 0.0F), b.scalar("hi", 6.0F)});
    b.output(b.quantize(y, 0.1F, 0), u8);
  });
  stays("float results", [&](model_builder& b) { b.output(conv(b)); });
  stays("results of another type",
        [&](model_builder& b) { b.output(b.quantize(conv(b), 0.1F, -3, s8), s8); });
  stays("int8 results of uint8 averages", [&](model_builder& b) {
    b.output(b.quantize(b.add("GlobalAveragePool", {b.pair("x", x_scale, 113)}), 0.01F, 3, s8), s8);
  });
  stays("uint8 weights of int8 activations",
        [&](model_builder& b) { b.output(b.quantize(conv(b, s8, u8), 0.1F, 0, s8), s8); });
  stays("filters whose zero points differ", [&](model_builder& b) {
    const std::string y = conv(b);
    b.get().initializers["w_zero_point"] = test::make_tensor<std::int8_t>(s8, {3}, {0, 1, 0});
    b.output(b.quantize(y, 0.1F, 100), u8);
  });
  stays("weights scaled along the inputs", [&](model_builder& b) {
    const std::string y =
        b.add("Conv", {b.pair("x", x_scale, 113), weights(b, r, "w", {3, 4, 3, 3}, 1, true)});
    b.output(b.quantize(y, 0.1F, 100), u8);
  });
  for (const char* op : {"Sub", "Div"}) {
    stays(op, [&](model_builder& b) {
      const std::string x = b.pair("x", x_scale, 113);
      b.constant("c", test::make_tensor<std::uint8_t>(u8, {4, 1, 1}, {30, 50, 70, 90}));
      b.output(b.quantize(b.add(op, {x, b.dequantize("c", 0.04F, 10)}), 0.1F, 128), u8);
    });
  }
  for (const char* op : {"Tanh", "Softmax", "HardSwish", "Exp"}) {
    stays(op, [&](model_builder& b) {
      b.output(b.quantize(b.add(op, {b.pair("x", x_scale, 113)}), 0.02F, 30), u8);
    });
  }
  stays("from one scale to another",
        [&](model_builder& b) { b.output(b.quantize(b.pair("x", x_scale, 113), 0.07F, 100), u8); });
  stays("a sum of different types", [&](model_builder& b) {
    const std::string sum = b.add("Add", {b.pair("x", x_scale, 113), b.pair("x", 0.06F, -3, s8)});
    b.output(b.quantize(sum, 0.1F, 100), u8);
  });
  stays("a result that is needed as float too", [&](model_builder& b) {
    const std::string y = conv(b);
    b.output(y);
    b.output(b.quantize(y, 0.1F, 100), u8);
  });
  stays("averages that count what lies beyond the padding", [&](model_builder& b) {
    const std::string y = b.add("AveragePool", {b.pair("x", x_scale, 113)},
                                {{"kernel_shape", list({3, 3})},
                                 {"strides", list({2, 2})},
                                 {"ceil_mode", number(1)},
                                 {"count_include_pad", number(1)}});
    b.output(b.quantize(y, 0.1F, 100), u8);
  });
  stays("SpaceToDepth", [&](model_builder& b) {
    const std::string y =
        b.add("SpaceToDepth", {b.pair("x", x_scale, 113)}, {{"blocksize", number(2)}});
    b.output(b.quantize(y, x_scale, 113), u8);
  });
}

TEST_CASE("qoperator: models that leave zero points out") {
  test::random_source r(304);
  INFO("seed ", r.seed());
  const shape in{1, 4, 6, 6};
  for (const bool per_channel : {true, false}) {
    model_builder b;
    b.input("x", in);
    const auto small_pair = [&](const std::string& v, float scale) { return b.pair(v, scale, 0); };
    const std::string x = small_pair("x", 0.05F);
    std::string y = b.add("Conv", {x, weights(b, r, "w", {4, 4, 3, 3}, 0, per_channel)},
                          {{"pads", list({1, 1, 1, 1})}});
    y = small_pair(y, 0.2F);
    y = small_pair(b.add("Add", {y, x}), 0.2F);
    y = small_pair(b.add("Concat", {y, x}, {{"axis", number(1)}}), 0.2F);
    y = small_pair(b.add("Sigmoid", {y}), 1.0F / 255.0F);
    y = small_pair(b.add("GlobalAveragePool", {y}), 1.0F / 255.0F);
    y = small_pair(b.add("Flatten", {y}), 1.0F / 255.0F);
    y = b.add("Gemm", {y, weights(b, r, "v", {8, 5}, 1, per_channel)});
    b.output(b.quantize(y, 0.01F, 0), element_type::u8);
    graph::model m = b.get();
    const tensors values{{"x", random_floats(r, in, -1.0F, 10.0F)}};
    const auto expected = bytes_of(m, values);
    for (graph::node& n : m.nodes) {
      if (graph::is_quantize_or_dequantize(n)) {
        n.inputs.resize(2);
      }
    }
    graph::remove_unused(m);
    CHECK(bytes_of(m, values) == expected);
    CHECK(check_conversion(m, values) ==
          "Flatten QLinearConv QuantizeLinear com.microsoft.QGemm com.microsoft.QLinearAdd "
          "com.microsoft.QLinearConcat com.microsoft.QLinearGlobalAveragePool "
          "com.microsoft.QLinearSigmoid");
  }
}

TEST_CASE("qoperator: whole networks") {
  for (std::uint64_t seed = 310; seed < 313; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    model_builder b;
    b.input("x", {-1, 3, 10, 10});
    const auto conv = [&](const std::string& x, std::int64_t in, std::int64_t out,
                          std::int64_t group) {
      const std::string id = std::to_string(b.get().nodes.size());
      return b.add("Conv",
                   {x, b.constant("w" + id, random_floats(r, {out, in / group, 3, 3}, -0.4F, 0.4F)),
                    b.constant("b" + id, random_floats(r, {out}, -0.5F, 0.5F))},
                   {{"pads", list({1, 1, 1, 1})}, {"group", number(group)}});
    };
    const std::string stem = b.add("Relu", {conv("x", 3, 6, 1)});
    const std::string wide = b.add("LeakyRelu", {conv(stem, 6, 6, 6)});
    const std::string sum = b.add("Relu", {b.add("Add", {conv(wide, 6, 6, 1), stem})});
    const std::string gate = b.add("Sigmoid", {conv(sum, 6, 6, 2)});
    const std::string gated = b.add("Mul", {sum, gate});
    std::string y = b.add("Concat", {gated, stem}, {{"axis", number(1)}});
    y = b.add("MaxPool", {y}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
    b.output(y);
    y = b.add("Flatten", {b.add("GlobalAveragePool", {y})});
    b.constant("classes", random_floats(r, {12, 5}, -1.0F, 1.0F));
    b.output(b.add("MatMul", {y, "classes"}));
    const auto samples = test::samples_of_x(r, {2, 3, 10, 10}, 3);
    for (const element_type type : types) {
      for (const bool per_channel : {true, false}) {
        INFO(graph::name(type), " per channel ", per_channel);
        const graph::model m = graph::static_quantization(b.get(), test::samples_source(samples),
                                                          {.activations = {.type = type},
                                                           .weights = {.per_channel = per_channel}})
                                   .result;
        const std::string form = check_conversion(m, samples[0]);
        for (const char* op :
             {"QLinearConv", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearSigmoid",
              "QLinearLeakyRelu", "QLinearGlobalAveragePool", "QGemm", "MaxPool"}) {
          INFO(op);
          CHECK(form.find(op) != std::string::npos);
        }
        CHECK(form.find(" Conv") == std::string::npos);
        CHECK(form.find("Relu ") != 0);
      }
    }
  }
}
