// SPDX-License-Identifier: BSD-3-Clause
// Between which layers channels can be scaled, and that models compute the same after it; the
// factors of cross-layer equalization and of the scaling search against plain loops.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/rewrite/channel_path.hpp>
#include <detent/graph/rewrite/equalization.hpp>
#include <detent/graph/rewrite/linear_layer.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/scaling_search.hpp>
#include <detent/graph/run/executor.hpp>

#include "check_graph_error.hpp"
#include "compare.hpp"
#include "compare_models.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

std::string conv(model_builder& b, test::random_source& r, const std::string& x,
                 const std::string& name, const shape& filters, test::attributes a = {},
                 bool bias = true) {
  return test::uneven_convolution(b, r, x, name, filters, std::move(a), bias);
}

const test::attributes same_size{{"pads", list({1, 1, 1, 1})}};

/// What stands between two convolutions, and whether channels can be scaled through it.
struct bridge {
  const char* name;
  bool passes;
  std::int64_t channels;  // that the second convolution takes
  std::function<std::string(model_builder&, test::random_source&, const std::string&)> add;
};

using adder = decltype(bridge::add);

adder op(const char* type, test::attributes a = {}) {
  return [=](model_builder& b, test::random_source&, const std::string& x) {
    return b.add(type, {x}, a);
  };
}
adder with_constant(const char* type, shape dims, float lower, float upper, bool first = false) {
  return [=](model_builder& b, test::random_source& r, const std::string& x) {
    const std::string c = b.constant("constant", random_floats(r, dims, lower, upper));
    return b.add(type, first ? std::vector<std::string>{c, x} : std::vector<std::string>{x, c});
  };
}
adder reshape(std::vector<std::int64_t> dims) {
  return [=](model_builder& b, test::random_source&, const std::string& x) {
    return b.add("Reshape", {x, b.constant("dims", dims)});
  };
}
adder pad(std::vector<std::int64_t> pads, float value, const char* mode = "constant") {
  return [=](model_builder& b, test::random_source&, const std::string& x) {
    return b.add("Pad", {x, b.constant("pads", pads), b.scalar("value", value)},
                 {{"mode", test::text(mode)}});
  };
}
adder clip(float lower, float upper) {
  return [=](model_builder& b, test::random_source&, const std::string& x) {
    return b.add("Clip", {x, b.scalar("lower", lower), b.scalar("upper", upper)});
  };
}

std::vector<bridge> bridges() {
  constexpr float huge = std::numeric_limits<float>::max();
  return {
      {"nothing", true, 8,
       [](model_builder&, test::random_source&, const std::string& x) { return x; }},
      {"Relu", true, 8, op("Relu")},
      {"Identity", true, 8, op("Identity")},
      {"Abs", true, 8, op("Abs")},
      {"Neg", true, 8, op("Neg")},
      {"LeakyRelu", true, 8, op("LeakyRelu", {{"alpha", real(0.3F)}})},
      {"PRelu", true, 8, with_constant("PRelu", {8, 1, 1}, -0.5F, 0.5F)},
      {"PRelu, one slope", true, 8, with_constant("PRelu", {1}, -0.5F, 0.5F)},
      {"Clip, a Relu", true, 8, clip(0.0F, huge)},
      {"Clip to infinity", true, 8, clip(0.0F, std::numeric_limits<float>::infinity())},
      {"Clip, a Relu6", false, 8, clip(0.0F, 6.0F)},
      {"Clip from below zero", false, 8, clip(-1.0F, huge)},
      {"Sigmoid", false, 8, op("Sigmoid")},
      {"Tanh", false, 8, op("Tanh")},
      {"Elu", false, 8, op("Elu")},
      {"HardSwish", false, 8, op("HardSwish")},
      {"Exp", false, 8, op("Exp")},
      {"Softmax", false, 8, op("Softmax", {{"axis", number(1)}})},
      {"MaxPool", true, 8,
       op("MaxPool", {{"kernel_shape", list({2, 2})}, {"pads", list({0, 1, 1, 0})}})},
      {"AveragePool", true, 8,
       op("AveragePool", {{"kernel_shape", list({3, 3})}, {"pads", list({1, 1, 1, 1})}})},
      {"AveragePool with padding", true, 8,
       op("AveragePool", {{"kernel_shape", list({3, 3})},
                          {"pads", list({1, 1, 1, 1})},
                          {"count_include_pad", number(1)}})},
      {"GlobalAveragePool", true, 8, op("GlobalAveragePool")},
      {"GlobalMaxPool", true, 8, op("GlobalMaxPool")},
      {"Pad with zero", true, 8, pad({0, 0, 1, 2, 0, 0, 0, 1}, 0.0F)},
      {"Pad that cuts", true, 8, pad({0, 0, -1, 0, 0, 0, 0, -1}, 0.0F)},
      {"Pad with one", false, 8, pad({0, 0, 1, 2, 0, 0, 0, 1}, 1.0F)},
      {"Pad with what is there", true, 8, pad({0, 0, 1, 2, 0, 0, 0, 1}, 1.0F, "reflect")},
      {"Pad of channels", false, 9, pad({0, 1, 0, 0, 0, 0, 0, 0}, 0.0F)},
      {"Add of a constant", true, 8, with_constant("Add", {8, 1, 1}, -1.0F, 1.0F)},
      {"Add of a scalar", true, 8, with_constant("Add", {}, 0.5F, 1.0F)},
      {"Add of a plane", true, 8, with_constant("Add", {1, 6, 6}, -1.0F, 1.0F, true)},
      {"Add of everything", true, 8, with_constant("Add", {2, 8, 6, 6}, -1.0F, 1.0F)},
      {"Add of more dimensions", false, 8,
       [](model_builder& b, test::random_source& r, const std::string& x) {
         const auto c = b.constant("constant", random_floats(r, {1, 1, 8, 1, 1}, -1.0F, 1.0F));
         const auto axes = b.constant("axes", {0});
         return b.add("Squeeze", {b.add("Add", {x, c}), axes});
       }},
      {"Sub of a constant", false, 8, with_constant("Sub", {8, 1, 1}, -1.0F, 1.0F)},
      {"Mul", true, 8, with_constant("Mul", {8, 1, 1}, -1.0F, 1.0F)},
      {"Mul with a scalar", true, 8, with_constant("Mul", {}, 0.5F, 1.0F, true)},
      {"Div", true, 8, with_constant("Div", {8, 1, 1}, 0.5F, 1.0F)},
      {"Div of a constant", false, 8, with_constant("Div", {8, 1, 1}, 0.5F, 1.0F, true)},
      {"Mul with itself", false, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         return b.add("Mul", {x, x});
       }},
      {"residual Add", false, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         return b.add("Add", {b.add("Relu", {x}), x});
       }},
      {"second consumer", false, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         b.output(b.add("Sigmoid", {x}));
         return b.add("Relu", {x});
       }},
      {"graph output", false, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         const std::string y = b.add("Relu", {x});
         b.output(y);
         return y;
       }},
      {"graph output before Relu", false, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         b.output(x);
         return b.add("Relu", {x});
       }},
      {"indices of MaxPool", false, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         const std::string y = b.add("MaxPool", {x}, {{"kernel_shape", list({2, 2})}});
         b.get().nodes.back().outputs.push_back("indices");
         b.output("indices", element_type::s64);
         return y;
       }},
      {"Transpose there and back", true, 8,
       [](model_builder& b, test::random_source&, const std::string& x) {
         const std::string y = b.add("Transpose", {x}, {{"perm", list({0, 2, 3, 1})}});
         return b.add("Transpose", {b.add("Relu", {y})}, {{"perm", list({0, 3, 1, 2})}});
       }},
      {"Transpose of space", true, 8, op("Transpose", {{"perm", list({0, 1, 3, 2})}})},
      {"Transpose of channels", false, 6, op("Transpose", {{"perm", list({0, 2, 1, 3})}})},
      {"channels in parts", true, 16, reshape({2, 16, 3, 6})},
      {"channels taken together", false, 4, reshape({2, 4, 12, 6})},
      {"channels mixed", false, 12, reshape({2, 12, 4, 6})},
      {"batch and channels mixed", false, 4, reshape({4, 4, 6, 6})},
      {"Concat with itself", false, 16,
       [](model_builder& b, test::random_source&, const std::string& x) {
         return b.add("Concat", {x, x}, {{"axis", number(1)}});
       }},
  };
}

graph::equalization_options exactly() {
  graph::equalization_options options;
  options.power_of_two = true;
  return options;
}

/// equalize() with powers of two changes something and no bit of the outputs.
void check_exact(const graph::model& m, const tensors& inputs, std::size_t pairs) {
  graph::model equalized = m;
  const graph::equalization_result result = graph::equalize(equalized, exactly());
  REQUIRE(result.pairs.size() == pairs);
  std::size_t changed = 0;
  for (const graph::equalized_pair& pair : result.pairs) {
    changed += pair.changed;
    CHECK(pair.imbalance_after <= 4.0);  // a factor of sqrt(2) each for three roundings
    for (const double factor : pair.factors) {
      int exponent = 0;
      CHECK(std::frexp(factor, &exponent) == 0.5);
    }
  }
  CHECK(changed > 0);
  CHECK(different(equalized, m, inputs) == "");
  CHECK(constants(equalized) != constants(m));
}

}  // namespace

TEST_CASE("cross-layer pairs: what factors pass, and that outputs are the same to the bit") {
  test::random_source r(1);
  INFO("seed ", r.seed());
  for (const bridge& way : bridges()) {
    INFO("between: ", way.name);
    model_builder b;
    b.input("x", {2, 3, 6, 6});
    const std::string y = way.add(b, r, conv(b, r, "x", "first", {8, 3, 3, 3}, same_size));
    b.output(conv(b, r, y, "second", {5, way.channels, 3, 3}, same_size));
    const tensors inputs{{"x", random_floats(r, {2, 3, 6, 6}, -1.0F, 1.0F)}};
    const auto pairs = graph::cross_layer_pairs(b.get());
    REQUIRE(pairs.size() == (way.passes ? 1 : 0));
    if (way.passes) {
      CHECK(pairs[0].upstream.label == "Conv node 'Conv_0'");
      check_exact(b.get(), inputs, 1);
    } else {
      graph::model same = b.get();
      CHECK(graph::equalize(same).pairs.empty());
      CHECK(constants(same) == constants(b.get()));
    }
  }
}

TEST_CASE("cross-layer pairs: layers of every kind") {
  test::random_source r(2);
  INFO("seed ", r.seed());
  SUBCASE("groups, depthwise and transposed convolutions, one pair behind the other") {
    for (const bool bias : {false, true}) {
      model_builder b;
      b.input("x", {2, 4, 7, 5});
      auto a = same_size;
      a["group"] = number(2);
      std::string y = b.add("Relu", {conv(b, r, "x", "a", {6, 2, 3, 3}, a, bias)});
      a["group"] = number(6);
      y = b.add("LeakyRelu", {conv(b, r, y, "b", {6, 1, 3, 3}, a, bias)});
      a["group"] = number(3);
      y = b.add("Relu", {conv(b, r, y, "c", {9, 2, 3, 3}, a, bias)});
      y = b.add("Relu", {conv(b, r, y, "d", {4, 9, 1, 1}, {}, bias)});
      // A channel multiplier: two outputs of each input.
      y = b.add("Relu", {conv(b, r, y, "e", {8, 1, 3, 3}, {{"group", number(4)}}, bias)});
      b.constant("f_w", uneven(r, {8, 3, 2, 2}, 0));
      b.constant("f_b", random_floats(r, {6}, -1.0F, 1.0F));
      y = b.add(
          "ConvTranspose",
          bias ? std::vector<std::string>{y, "f_w", "f_b"} : std::vector<std::string>{y, "f_w"},
          {{"group", number(2)}, {"strides", list({2, 2})}});
      y = b.add("Relu", {y});
      b.output(conv(b, r, y, "g", {3, 6, 1, 1}, {}, bias));
      check_exact(b.get(), {{"x", random_floats(r, {2, 4, 7, 5}, -1.0F, 1.0F)}}, 6);
    }
  }
  SUBCASE("one axis of space") {
    model_builder b;
    b.input("x", {2, 3, 12});
    std::string y = b.add("Relu", {conv(b, r, "x", "a", {6, 3, 3})});
    y = b.add("MaxPool", {y}, {{"kernel_shape", list({2})}, {"strides", list({2})}});
    b.output(conv(b, r, y, "b", {4, 6, 3}));
    check_exact(b.get(), {{"x", random_floats(r, {2, 3, 12}, -1.0F, 1.0F)}}, 1);
  }
  SUBCASE("Gemm, transposed or not, with every bias") {
    const shape biases[] = {{}, {6}, {1, 6}, {3, 6}, {1}, {1, 1}};
    for (const bool first : {false, true}) {
      for (const bool second : {false, true}) {
        for (std::size_t bias = 0; bias <= std::size(biases); ++bias) {
          INFO("transB ", first, " ", second, ", bias ", bias);
          model_builder b;
          b.input("x", {3, 5});
          std::vector<std::string> inputs{
              "x", b.constant("w", first ? uneven(r, {6, 5}, 0) : uneven(r, {5, 6}, 1))};
          if (bias > 0) {
            inputs.push_back(b.constant("b", random_floats(r, biases[bias - 1], -1.0F, 1.0F)));
          }
          std::string y = b.add(
              "Gemm", inputs,
              {{"transB", number(first ? 1 : 0)}, {"alpha", real(0.7F)}, {"beta", real(1.3F)}});
          y = b.add("Relu", {y});
          b.constant("v", random_floats(r, second ? shape{4, 6} : shape{6, 4}, -1.0F, 1.0F));
          b.output(b.add("Gemm", {y, "v"}, {{"transB", number(second ? 1 : 0)}}));
          check_exact(b.get(), {{"x", random_floats(r, {3, 5}, -1.0F, 1.0F)}}, 1);
        }
      }
    }
  }
  SUBCASE("Gemm whose bias cannot be scaled, or whose left side is transposed") {
    for (const int variant : {0, 1, 2}) {
      model_builder b;
      b.input("x", {4, 4});
      b.input("c", {4});
      b.constant("w", uneven(r, {4, 4}, 0));
      b.constant("column", random_floats(r, {4, 1}, -1.0F, 1.0F));
      std::vector<std::string> inputs{"x", "w"};
      if (variant < 2) {
        inputs.push_back(variant == 0 ? "column" : "c");
      }
      std::string y = b.add("Gemm", inputs);
      b.constant("v", uneven(r, {4, 4}, 0));
      y = b.add("Gemm", {b.add("Relu", {y}), "v"}, {{"transA", number(variant == 2 ? 1 : 0)}});
      b.output(y);
      CHECK(graph::cross_layer_pairs(b.get()).empty());
    }
  }
  SUBCASE("MatMul of stacks, with Add for its bias") {
    model_builder b;
    b.input("x", {2, 5, 7});
    b.constant("w", uneven(r, {7, 8}, 1));
    b.constant("b", random_floats(r, {8}, -1.0F, 1.0F));
    b.constant("v", random_floats(r, {8, 3}, -1.0F, 1.0F));
    const std::string y = b.add("Add", {"b", b.add("MatMul", {"x", "w"})});
    b.output(b.add("MatMul", {b.add("Relu", {y}), "v"}));
    check_exact(b.get(), {{"x", random_floats(r, {2, 5, 7}, -1.0F, 1.0F)}}, 1);
  }
  SUBCASE("MatMul with a constant on the left") {
    model_builder b;
    b.input("x", {5, 4});
    b.constant("w", uneven(r, {6, 5}, 0));
    b.constant("v", uneven(r, {3, 6}, 0));
    b.output(b.add("MatMul", {"v", b.add("Relu", {b.add("MatMul", {"w", "x"})})}));
    CHECK(graph::cross_layer_pairs(b.get()).empty());
  }
  SUBCASE("weights that other layers use too") {
    model_builder b;
    b.input("x", {1, 4, 5, 5});
    b.constant("w", uneven(r, {4, 4, 3, 3}, 0));
    b.constant("b", random_floats(r, {4}, -1.0F, 1.0F));
    std::string y = b.add("Relu", {b.add("Conv", {"x", "w", "b"}, same_size)});
    b.output(b.add("Conv", {y, "w", "b"}, same_size));
    b.output(b.add("Sigmoid", {b.add("Conv", {"x", "w", "b"}, same_size)}));
    b.output("b");
    const tensors inputs{{"x", random_floats(r, {1, 4, 5, 5}, -1.0F, 1.0F)}};
    check_exact(b.get(), inputs, 1);
    graph::model m = b.get();
    graph::equalize(m);
    CHECK(test::difference(m.initializers.at("w").data<float>(),
                           b.get().initializers.at("w").data<float>()) == "");
  }
  SUBCASE("names stay where nothing else uses them") {
    model_builder b;
    b.input("x", {1, 3, 5, 5});
    b.output(conv(b, r, b.add("Relu", {conv(b, r, "x", "a", {4, 3, 3, 3})}), "c", {2, 4, 3, 3}));
    graph::model m = b.get();
    graph::equalize(m);
    CHECK(m.initializers.size() == b.get().initializers.size());
    for (const auto& [name, t] : b.get().initializers) {
      CHECK(m.initializers.count(name) == 1);
    }
  }
}

TEST_CASE("cross-layer pairs: from space to features, with dimensions left open") {
  test::random_source r(3);
  INFO("seed ", r.seed());
  struct kind {
    const char* name;
    shape in;
    std::vector<std::string> between;
    std::vector<std::int64_t> dims;  // of Reshape
    std::int64_t features;
    std::size_t pairs;
    std::int64_t stride = 1;
  };
  const kind kinds[] = {
      {"fixed, Flatten", {2, 3, 4, 5}, {"Relu", "Flatten"}, {}, 120, 1},
      {"fixed, Reshape", {2, 3, 4, 5}, {"Relu", "Reshape"}, {2, 120}, 120, 1},
      {"open batch, Flatten", {-1, 3, 4, 5}, {"Flatten", "Relu"}, {}, 120, 1},
      {"open batch, Reshape", {-1, 3, 4, 5}, {"Reshape"}, {-1, 120}, 120, 1},
      {"open batch, kept", {-1, 3, 4, 5}, {"Reshape"}, {0, -1}, 120, 1},
      {"open batch, one value each", {-1, 3, 4, 5}, {"GlobalAveragePool", "Flatten"}, {}, 6, 1},
      {"open space, one value each", {-1, 3, -1, -1}, {"GlobalAveragePool", "Flatten"}, {}, 6, 1},
      {"open space, one value each",
       {-1, 3, -1, -1},
       {"Relu", "GlobalMaxPool", "Reshape"},
       {-1, 6},
       6,
       1},
      {"Squeeze and Unsqueeze",
       {2, 3, 4, 5},
       {"GlobalMaxPool", "Squeeze", "Unsqueeze", "Squeeze"},
       {},
       6,
       1},
      // With one pixel this looks like channels; with more, pixels are taken for channels.
      {"open space", {-1, 3, -1, -1}, {"Relu", "Reshape"}, {-1, 6}, 6, 0},
      {"open space, strides", {-1, 3, -1, -1}, {"Relu", "Reshape"}, {-1, 6}, 6, 0, 2},
      {"open space, more strides",
       {2, 3, -1, 4},
       {"MaxPool", "Relu", "MaxPool", "MaxPool", "Reshape"},
       {-1, 6},
       6,
       0,
       4},
      {"all of it", {2, 3, 4, 5}, {"Reshape"}, {1, 240}, 240, 0},
      {"pixels first", {2, 3, 4, 5}, {"Transpose", "Flatten"}, {}, 120, 0},
  };
  for (const kind& k : kinds) {
    INFO(k.name);
    model_builder b;
    b.input("x", k.in);
    auto a = same_size;
    if (k.stride > 1) {
      a["strides"] = list({k.stride, k.stride});
    }
    std::string y = conv(b, r, "x", "a", {6, 3, 3, 3}, a);
    for (const std::string& type : k.between) {
      if (type == "Reshape") {
        y = b.add(type, {y, b.constant("dims", k.dims)});
      } else if (type == "Squeeze" || type == "Unsqueeze") {
        y = b.add(type, {y, b.constant("axes", {2, 3})});
      } else if (type == "Transpose") {
        y = b.add(type, {y}, {{"perm", list({0, 2, 3, 1})}});
      } else if (type == "MaxPool") {
        y = b.add(type, {y},
                  {{"kernel_shape", list({3, 3})},
                   {"strides", list({2, 2})},
                   {"pads", list({1, 1, 1, 1})}});
      } else {
        y = b.add(type, {y});
      }
    }
    b.constant("w", random_floats(r, {k.features, 5}, -1.0F, 1.0F));
    b.output(b.add("Gemm", {y, "w"}));
    shape in = k.in;
    for (std::size_t d = 0; d < in.size(); ++d) {
      in[d] = in[d] < 0 ? (d == 0 ? 3 : 40) : in[d];
    }
    const tensors inputs{{"x", random_floats(r, in, -1.0F, 1.0F)}};
    REQUIRE(graph::cross_layer_pairs(b.get()).size() == k.pairs);
    if (k.pairs > 0) {
      check_exact(b.get(), inputs, k.pairs);
    } else {
      graph::model same = b.get();
      graph::equalize(same);
      CHECK(different(same, b.get(), inputs) == "");
      CHECK(constants(same) == constants(b.get()));
    }
  }
}

TEST_CASE("cross-layer pairs: models whose shapes cannot be told beforehand") {
  test::random_source r(11);
  INFO("seed ", r.seed());
  // With one pixel, these convolutions have nothing to stand on.
  model_builder b;
  b.input("x", {-1, 3, -1, -1});
  std::string y = b.add("Relu", {conv(b, r, "x", "a", {6, 3, 5, 5})});
  y = b.add("Relu", {conv(b, r, y, "b", {4, 6, 3, 3})});
  y = b.add("Flatten", {b.add("GlobalMaxPool", {y})});
  b.constant("w", random_floats(r, {4, 5}, -1.0F, 1.0F));
  b.output(b.add("Gemm", {y, "w"}));
  check_exact(b.get(), {{"x", random_floats(r, {2, 3, 9, 8}, -1.0F, 1.0F)}}, 1);
}

// -------------------------------------------------------------------------------------------
// the factors

namespace {

/// Gemm, Relu, Gemm: weights {5, 6} and {6, 4}.
model_builder two_layers(const tensor& first, const tensor& bias, const tensor& second) {
  model_builder b;
  b.input("x", {3, first.dim(0)});
  b.constant("w", first);
  b.constant("b", bias);
  b.constant("v", second);
  b.output(b.add("Gemm", {b.add("Relu", {b.add("Gemm", {"x", "w", "b"})}), "v"}));
  return b;
}

std::vector<double> columns_magnitudes(const std::vector<double>& w, std::size_t columns) {
  std::vector<double> largest(columns, 0.0);
  for (std::size_t k = 0; k < w.size(); ++k) {
    largest[k % columns] = (std::max)(largest[k % columns], std::fabs(w[k]));
  }
  return largest;
}
std::vector<double> rows_magnitudes(const std::vector<double>& w, std::size_t columns) {
  std::vector<double> largest(w.size() / columns, 0.0);
  for (std::size_t k = 0; k < w.size(); ++k) {
    largest[k / columns] = (std::max)(largest[k / columns], std::fabs(w[k]));
  }
  return largest;
}

void check_close(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    INFO("element ", i, ": ", actual[i], ", expected ", expected[i]);
    CHECK(std::fabs(actual[i] - expected[i]) <= tolerance * std::fabs(expected[i]));
  }
}

}  // namespace

TEST_CASE("equalize: factors of one pair") {
  test::random_source r(4);
  INFO("seed ", r.seed());
  for (int trial = 0; trial < 20; ++trial) {
    tensor w = uneven(r, {5, 6}, 1);
    tensor v = uneven(r, {6, 4}, 0);
    const tensor bias = random_floats(r, {6}, -2.0F, 2.0F);
    for (std::size_t i = 0; i < 5; ++i) {
      w.mutable_data<float>()[i * 6 + 2] = 0.0F;  // a dead channel
    }
    for (std::size_t i = 0; i < 4; ++i) {
      v.mutable_data<float>()[3 * 4 + i] = 0.0F;  // another one
    }
    const auto u = columns_magnitudes(doubles(w), 6);
    const auto d = rows_magnitudes(doubles(v), 4);
    const graph::model m = two_layers(w, bias, v).get();
    const tensors inputs{{"x", random_floats(r, {3, 5}, -1.0F, 1.0F)}};

    std::vector<double> expected(6, 1.0);
    double before = 1.0;
    for (const std::size_t c : {0U, 1U, 4U, 5U}) {
      expected[c] = std::sqrt(d[c] / u[c]);
      before = (std::max)(before, (std::max)(u[c] / d[c], d[c] / u[c]));
    }
    graph::equalization_options options;
    graph::model equalized = m;
    const auto result = graph::equalize(equalized, options);
    REQUIRE(result.pairs.size() == 1);
    check_close(result.pairs[0].factors, expected, 1e-12);
    CHECK(result.pairs[0].changed == 4);
    CHECK(result.pairs[0].imbalance_before == doctest::Approx(before).epsilon(1e-9));
    CHECK(result.pairs[0].imbalance_after == doctest::Approx(1.0).epsilon(1e-9));
    CHECK(result.pairs[0].precision_after >= result.pairs[0].precision_before - 1e-9);
    CHECK(result.iterations == 2);
    CHECK(result.last_change <= 1e-12);
    CHECK(distance(m, equalized, inputs) < 1e-5);
    const auto new_w = doubles(equalized.initializers.at("w"));
    const auto new_v = doubles(equalized.initializers.at("v"));
    const auto new_b = doubles(equalized.initializers.at("b"));
    for (std::size_t k = 0; k < new_w.size(); ++k) {
      CHECK(new_w[k] == doctest::Approx(doubles(w)[k] * expected[k % 6]).epsilon(1e-6));
    }
    for (std::size_t k = 0; k < new_v.size(); ++k) {
      CHECK(new_v[k] == doctest::Approx(doubles(v)[k] / expected[k / 4]).epsilon(1e-6));
    }
    for (std::size_t k = 0; k < 6; ++k) {
      CHECK(new_b[k] == doctest::Approx(doubles(bias)[k] * expected[k]).epsilon(1e-6));
    }

    {  // powers of two
      equalized = m;
      const auto power = graph::equalize(equalized, exactly());
      for (std::size_t c = 0; c < 6; ++c) {
        const double ratio = power.pairs[0].factors[c] / expected[c];
        CHECK(ratio <= std::sqrt(2.0) * (1.0 + 1e-12));
        CHECK(ratio >= std::sqrt(0.5) * (1.0 - 1e-12));
      }
      CHECK(different(equalized, m, inputs) == "");
    }
    {  // limits of a sweep and of all
      options.iterations = 1;
      options.largest_step = 1.5;
      equalized = m;
      auto limited = graph::equalize(equalized, options).pairs[0].factors;
      std::vector<double> clamped = expected;
      for (double& c : clamped) {
        c = (std::min)((std::max)(c, 1.0 / 1.5), 1.5);
      }
      check_close(limited, clamped, 1e-12);
      options.iterations = 50;
      options.largest_factor = 2.0;
      for (std::size_t c = 0; c < 6; ++c) {
        clamped[c] = (std::min)((std::max)(expected[c], 0.5), 2.0);
      }
      equalized = m;
      check_close(graph::equalize(equalized, options).pairs[0].factors, clamped, 1e-12);
    }
    {  // threshold, bias and activations
      options = {};
      options.value_threshold = 0.75;
      options.bias_multiplier = 0.5;
      options.activation_multiplier = 0.25;
      for (int i = 0; i < 6; ++i) {
        options.activations["Relu_1_out"].push_back(r.real(0.0F, 9.0F));
      }
      std::vector<double> with_floor(6, 1.0);
      for (std::size_t c = 0; c < 6; ++c) {
        const double key =
            (std::max)({u[c], 0.5 * std::fabs(doubles(bias)[c]),
                        0.25 * static_cast<double>(options.activations["Relu_1_out"][c])});
        if (key > 0.0 && d[c] > 0.0 && key + d[c] >= 0.75) {
          with_floor[c] = std::sqrt(d[c] / key);
        }
      }
      equalized = m;
      check_close(graph::equalize(equalized, options).pairs[0].factors, with_floor, 1e-12);
    }
  }
}

TEST_CASE("equalize: the sweeps of PPQ over a chain, and their convergence") {
  test::random_source r(5);
  INFO("seed ", r.seed());
  constexpr std::size_t c = 7;
  for (int trial = 0; trial < 10; ++trial) {
    // Convolution 1 x 1, depthwise 3 x 3, convolution 1 x 1.
    model_builder b;
    b.input("x", {1, 3, 5, 5});
    std::string y = b.add("Relu", {conv(b, r, "x", "a", {c, 3, 1, 1}, {}, false)});
    auto depthwise = same_size;
    depthwise["group"] = number(c);
    y = b.add("Relu", {conv(b, r, y, "b", {c, 1, 3, 3}, depthwise, false)});
    b.output(conv(b, r, y, "c", {4, c, 1, 1}, {}, false));
    const graph::model m = b.get();
    auto wa = doubles(m.initializers.at("a_w"));
    auto wb = doubles(m.initializers.at("b_w"));
    auto wc = doubles(m.initializers.at("c_w"));
    std::vector<double> first(c, 1.0);
    std::vector<double> second(c, 1.0);
    const auto factor = [](double u, double d) {
      return u + d < 0.5 ? 1.0 : (std::min)((std::max)(1.0 / std::sqrt(u / d), 0.1), 10.0);
    };
    for (int sweep = 0; sweep < 10; ++sweep) {
      const auto ua = rows_magnitudes(wa, 3);
      const auto db = rows_magnitudes(wb, 9);
      for (std::size_t i = 0; i < c; ++i) {
        const double f = factor(ua[i], db[i]);
        first[i] *= f;
        for (std::size_t k = 0; k < 3; ++k) {
          wa[i * 3 + k] *= f;
        }
        for (std::size_t k = 0; k < 9; ++k) {
          wb[i * 9 + k] /= f;
        }
      }
      const auto ub = rows_magnitudes(wb, 9);
      const auto dc = columns_magnitudes(wc, c);
      for (std::size_t i = 0; i < c; ++i) {
        const double f = factor(ub[i], dc[i]);
        second[i] *= f;
        for (std::size_t k = 0; k < 9; ++k) {
          wb[i * 9 + k] *= f;
        }
        for (std::size_t k = 0; k < 4; ++k) {
          wc[k * c + i] /= f;
        }
      }
    }
    graph::model equalized = m;
    const auto result = graph::equalize(equalized, graph::equalization_options::ppq());
    REQUIRE(result.pairs.size() == 2);
    CHECK(result.iterations <= 10);
    check_close(result.pairs[0].factors, first, 1e-9);
    check_close(result.pairs[1].factors, second, 1e-9);
    check_close(doubles(equalized.initializers.at("a_w")), wa, 1e-6);
    check_close(doubles(equalized.initializers.at("b_w")), wb, 1e-6);
    check_close(doubles(equalized.initializers.at("c_w")), wc, 1e-6);
    const tensors inputs{{"x", random_floats(r, {1, 3, 5, 5}, -1.0F, 1.0F)}};
    CHECK(distance(m, equalized, inputs) < 1e-5);

    // Without limits the three ranges of a channel become their geometric mean.
    graph::equalization_options options;
    options.tolerance = 1e-9;
    options.largest_factor = std::numeric_limits<double>::infinity();
    equalized = m;
    const auto converged = graph::equalize(equalized, options);
    CHECK(converged.last_change <= 1e-9);
    CHECK(converged.pairs[0].imbalance_after == doctest::Approx(1.0).epsilon(1e-6));
    const auto ranges_a = rows_magnitudes(doubles(m.initializers.at("a_w")), 3);
    const auto ranges_b = rows_magnitudes(doubles(m.initializers.at("b_w")), 9);
    const auto ranges_c = columns_magnitudes(doubles(m.initializers.at("c_w")), c);
    const auto equal = rows_magnitudes(doubles(equalized.initializers.at("b_w")), 9);
    for (std::size_t i = 0; i < c; ++i) {
      CHECK(equal[i] ==
            doctest::Approx(std::cbrt(ranges_a[i] * ranges_b[i] * ranges_c[i])).epsilon(1e-5));
    }
  }
}

namespace {

/// Convolution, then depthwise and pointwise ones, pooled, Gemm: as in MobileNet.
model_builder separable(test::random_source& r) {
  model_builder b;
  b.input("x", {2, 3, 12, 12});
  const auto layer = [&](const std::string& x, const std::string& name, shape filters,
                         std::int64_t group) {
    b.constant(name + "_w", random_floats(r, filters, -1.0F, 1.0F));
    b.constant(name + "_b", random_floats(r, {filters[0]}, -0.1F, 0.1F));
    test::attributes a;
    if (filters[2] == 3) {
      a["pads"] = list({1, 1, 1, 1});
    }
    a["group"] = number(group);
    return b.add("Relu", {b.add("Conv", {x, name + "_w", name + "_b"}, a)});
  };
  std::string y = layer("x", "a", {16, 3, 3, 3}, 1);
  y = layer(y, "b", {16, 1, 3, 3}, 16);
  y = layer(y, "c", {24, 16, 1, 1}, 1);
  y = layer(y, "d", {24, 1, 3, 3}, 24);
  y = layer(y, "e", {32, 24, 1, 1}, 1);
  y = b.add("Flatten", {b.add("GlobalAveragePool", {y})});
  b.constant("f_w", random_floats(r, {32, 10}, -1.0F, 1.0F));
  b.output(b.add("Gemm", {y, "f_w"}));
  return b;
}

/// The model with its weights rounded to 8 bits, one scale for each tensor.
graph::model with_rounded_weights(graph::model m) {
  for (auto& [name, t] : m.initializers) {
    if (name.back() != 'w') {
      continue;
    }
    tensor rounded = tensor::allocate(element_type::f32, t.dims());
    double largest = 0.0;
    for (const float w : t.data<float>()) {
      largest = (std::max)(largest, std::fabs(static_cast<double>(w)));
    }
    const double scale = largest / 127.0;
    for (std::size_t k = 0; k < t.count(); ++k) {
      rounded.mutable_data<float>()[k] = static_cast<float>(
          std::nearbyint(static_cast<double>(t.data<float>()[k]) / scale) * scale);
    }
    t = rounded;
  }
  return m;
}

double snr_db(const std::vector<float>& signal, const std::vector<float>& noisy) {
  double energy = 0.0;
  double noise = 1e-30;
  for (std::size_t k = 0; k < signal.size(); ++k) {
    const double d = static_cast<double>(signal[k]) - static_cast<double>(noisy[k]);
    energy += static_cast<double>(signal[k]) * static_cast<double>(signal[k]);
    noise += d * d;
  }
  return 10.0 * std::log10(energy / noise);
}

/// The mean SNR, in dB, of the first axis's slices of all weights.
double weights_snr(const graph::model& m) {
  const graph::model rounded = with_rounded_weights(m);
  double sum = 0.0;
  std::size_t count = 0;
  for (const auto& [name, t] : m.initializers) {
    const auto channels = static_cast<std::size_t>(t.dim(0));
    const std::size_t size = t.count() / channels;
    for (std::size_t c = 0; c < channels && name.back() == 'w'; ++c) {
      const auto part = [&](const tensor& from) {
        const auto values = from.data<float>().subspan(c * size, size);
        return std::vector<float>(values.begin(), values.end());
      };
      sum += snr_db(part(t), part(rounded.initializers.at(name)));
      ++count;
    }
  }
  return sum / static_cast<double>(count);
}

}  // namespace

TEST_CASE("equalize: channels of ranges up to 1000 apart quantize as if they were not") {
  test::random_source r(6);
  INFO("seed ", r.seed());
  for (int trial = 0; trial < 5; ++trial) {
    const graph::model m = separable(r).get();
    const tensors inputs{{"x", random_floats(r, {2, 3, 12, 12}, -1.0F, 1.0F)}};
    graph::model distorted = m;
    const auto pairs = graph::cross_layer_pairs(m);
    REQUIRE(pairs.size() == 5);
    // By plain loops: rows of one layer times a factor, what takes them divided by it.
    const std::vector<std::string> names{"a", "b", "c", "d", "e", "f"};
    for (std::size_t p = 0; p + 1 < names.size(); ++p) {
      tensor& w = distorted.initializers.at(names[p] + "_w");
      tensor& bias = distorted.initializers.at(names[p] + "_b");
      tensor& v = distorted.initializers.at(names[p + 1] + "_w");
      w = floats(w.dims(), test::values_of<float>(w));
      bias = floats(bias.dims(), test::values_of<float>(bias));
      v = floats(v.dims(), test::values_of<float>(v));
      const auto channels = static_cast<std::size_t>(w.dim(0));
      for (std::size_t c = 0; c < channels; ++c) {
        // Up to 1000 between the smallest and the largest.
        const float factor = std::exp2(r.real(-5.0F, 5.0F));
        const std::size_t size = w.count() / channels;
        for (std::size_t k = c * size; k < (c + 1) * size; ++k) {
          w.mutable_data<float>()[k] *= factor;
        }
        bias.mutable_data<float>()[c] *= factor;
        const bool rows = names[p + 1] == "f" || names[p + 1] == "b" || names[p + 1] == "d";
        const std::size_t inner = rows ? v.count() / channels : 1;
        for (std::size_t k = 0; k < v.count(); ++k) {
          if (k / inner % channels == c) {
            v.mutable_data<float>()[k] /= factor;
          }
        }
      }
    }
    CHECK(distance(m, distorted, inputs) < 1e-5);
    const auto output = [&](const graph::model& model) { return run(model, inputs)[0]; };
    const auto output_snr = [&](const graph::model& model) {
      return snr_db(output(m), output(with_rounded_weights(model)));
    };
    graph::model powers = distorted;
    const auto evidence = graph::equalize(powers, exactly());
    graph::model exact = distorted;
    graph::equalize(exact);
    for (const graph::equalized_pair& pair : evidence.pairs) {
      CHECK(pair.imbalance_before > 30.0);
      CHECK(pair.imbalance_after < 4.01);
      CHECK(pair.precision_after > 4.0 * pair.precision_before);
    }
    const double before = weights_snr(m);
    CHECK(weights_snr(distorted) < before - 10.0);
    CHECK(weights_snr(exact) > before - 1.0);
    CHECK(weights_snr(powers) > before - 6.0);  // a range may be twice what it has to be
    CHECK(output_snr(distorted) < output_snr(m) - 10.0);
    CHECK(output_snr(exact) > output_snr(m) - 10.0);  // one draw of the rounding errors
    CHECK(output_snr(powers) > output_snr(distorted) + 20.0);
    CHECK(different(powers, distorted, inputs) == "");
    CHECK(distance(m, exact, inputs) < 1e-5);
  }
}

TEST_CASE("equalize: hostile weights and options") {
  test::random_source r(7);
  INFO("seed ", r.seed());
  const tensor w = uneven(r, {5, 6}, 1);
  const tensor v = uneven(r, {6, 4}, 0);
  const tensor bias = random_floats(r, {6}, -1.0F, 1.0F);
  const auto with = [&](const tensor& t, std::size_t i, float x) {
    tensor other = floats(t.dims(), test::values_of<float>(t));
    other.mutable_data<float>()[i] = x;
    return other;
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto equalized = [](graph::model m, const graph::equalization_options& options = {}) {
    const graph::model before = m;
    try {
      graph::equalize(m, options);
    } catch (const detent::error&) {
      CHECK(constants(m).size() == constants(before).size());
      CHECK(m.nodes[0].inputs == before.nodes[0].inputs);
      for (const auto& [name, t] : before.initializers) {
        CHECK(test::difference(m.initializers.at(name).data<float>(), t.data<float>()) == "");
      }
      throw;
    }
  };
  const auto invalid = error_kind::invalid_argument;
  check_graph_error(invalid, {"Gemm node 'Gemm_0'", "nan", "output 1, input 2"},
                    [&] { equalized(two_layers(with(w, 2 * 6 + 1, nan), bias, v).get()); });
  check_graph_error(invalid, {"Gemm node 'Gemm_2'", "-inf", "output 3, input 1"},
                    [&] { equalized(two_layers(w, bias, with(v, 1 * 4 + 3, -infinity)).get()); });
  // The factor of the first channel is large, and so is its bias.
  tensor small = floats(w.dims(), test::values_of<float>(w));
  for (std::size_t i = 0; i < 5; ++i) {
    small.mutable_data<float>()[i * 6] *= 1e-4F;
  }
  check_graph_error(error_kind::overflow, {"Gemm node 'Gemm_0'", "3e+38"},
                    [&] { equalized(two_layers(small, with(bias, 0, 3e38F), v).get()); });
  const graph::model m = two_layers(w, bias, v).get();
  graph::equalization_options options;
  options.largest_factor = 0.5;
  check_graph_error(invalid, {"equalize", "0.5"}, [&] { equalized(m, options); });
  options = {};
  options.largest_step = std::numeric_limits<double>::quiet_NaN();
  check_graph_error(invalid, {"equalize", "nan"}, [&] { equalized(m, options); });
  options = {};
  options.tolerance = -1.0;
  check_graph_error(invalid, {"equalize", "negative"}, [&] { equalized(m, options); });
  options = {};
  options.bias_multiplier = 0.5;
  check_graph_error(invalid, {"Gemm node 'Gemm_0'", "bias holds inf"},
                    [&] { equalized(two_layers(w, with(bias, 3, infinity), v).get(), options); });
  options = {};
  options.activation_multiplier = 0.5;
  options.activations["Relu_1_out"] = {1, 2, 3};
  check_graph_error(error_kind::shape_mismatch, {"Gemm node 'Gemm_2'", "3 magnitudes", "6 inputs"},
                    [&] { equalized(m, options); });
  options.activations["Relu_1_out"] = {1, 2, 3, -4, 5, 6};
  check_graph_error(invalid, {"tensor 'Relu_1_out'", "channel 3", "-4"},
                    [&] { equalized(m, options); });
  // A NaN in a bias is none of equalization's business.
  graph::model with_nan = two_layers(w, with(bias, 0, nan), v).get();
  CHECK(graph::equalize(with_nan).pairs.size() == 1);
}

// -------------------------------------------------------------------------------------------
// scaling search

TEST_CASE("scaling search: factors by each rule") {
  test::random_source r(8);
  INFO("seed ", r.seed());
  for (int trial = 0; trial < 50; ++trial) {
    const std::size_t n = r.size(1, 12);
    std::vector<float> w(n);
    std::vector<float> a(n);
    std::vector<float> v(n);
    for (std::size_t c = 0; c < n; ++c) {
      w[c] = r.chance(10) ? 0.0F : std::ldexp(r.real(0.5F, 1.0F), r.integer(-4, 4));
      a[c] = r.chance(10) ? 0.0F : std::ldexp(r.real(0.5F, 1.0F), r.integer(-4, 4));
      v[c] = r.chance(10) ? 0.0F : std::ldexp(r.real(0.5F, 1.0F), r.integer(-4, 4));
    }
    const auto largest = [](const std::vector<float>& x) {
      return static_cast<double>(*std::max_element(x.begin(), x.end()));
    };
    std::vector<double> ssd(n, 1.0);
    std::vector<double> root(n, 1.0);
    std::vector<double> equal(n, 1.0);
    double least = 1e300;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t c = 0; c < n; ++c) {
        if (w[c] == 0.0F || a[c] == 0.0F || v[c] == 0.0F) {
          continue;
        }
        const double wc = static_cast<double>(w[c]);
        const double ac = static_cast<double>(a[c]);
        const double vc = static_cast<double>(v[c]);
        const double k_over_n = largest(w) / wc / (largest(v) / vc);
        const double a_over_n = largest(a) / ac / (largest(v) / vc);
        const double f = (std::min)((std::min)(k_over_n, a_over_n), 8.0);
        least = (std::min)(least, f);
        ssd[c] = (std::min)((std::max)(f / least, 1.0), 2.0);
        root[c] =
            (std::min)((std::max)(std::sqrt(largest(a) / ac * std::sqrt(k_over_n)), 1.0), 2.0);
        equal[c] = (std::min)((std::max)(std::sqrt(vc / wc), 0.1), 10.0);
      }
    }
    check_close(graph::scaling_factors(graph::scaling_rule::ssd, w, a, v), ssd, 1e-12);
    check_close(graph::scaling_factors(graph::scaling_rule::ssd_root, w, a, v), root, 1e-12);
    check_close(graph::scaling_factors(graph::scaling_rule::equalization, w, a, v), equal, 1e-12);
  }
  const std::vector<float> one{1.0F};
  const std::vector<float> bad{-2.0F};
  check_graph_error(error_kind::invalid_argument, {"scaling_factors", "-2"}, [&] {
    static_cast<void>(graph::scaling_factors(graph::scaling_rule::ssd, one, bad, one));
  });
  check_graph_error(error_kind::shape_mismatch, {"scaling_factors", "1, 1 and 0"}, [&] {
    static_cast<void>(graph::scaling_factors(graph::scaling_rule::ssd, one, one, {}));
  });
}

TEST_CASE("scaling search: the loss decides") {
  test::random_source r(9);
  INFO("seed ", r.seed());
  const tensor w = uneven(r, {5, 6}, 1);
  const tensor v = uneven(r, {6, 4}, 0);
  const graph::model m = two_layers(w, random_floats(r, {6}, -1.0F, 1.0F), v).get();
  const tensors inputs{{"x", random_floats(r, {3, 5}, -1.0F, 1.0F)}};
  const graph::channel_magnitude_map activations{{"Relu_1_out", {3, 1, 4, 1, 5, 9}}};
  CHECK(graph::pair_values(m) == std::map<std::string, std::size_t>{{"Relu_1_out", 1}});

  SUBCASE("attempts are kept as long as each one is good enough") {
    // Losses of the model and of what comes after each attempt.
    const std::vector<double> losses{10.0, 7.9, 6.33, 0.0};
    std::size_t calls = 0;
    graph::scaling_search_options options;
    options.rule = graph::scaling_rule::ssd_root;
    graph::model searched = m;
    graph::model last;
    const auto result = graph::search_scaling(
        searched, activations,
        [&](const graph::model& candidate) {
          CHECK(distance(m, candidate, inputs) < 1e-5);
          last = calls < 2 ? candidate : last;
          return losses.at(calls++);
        },
        options);
    // 7.9 < 8 is kept; 6.33 >= 0.8 * 7.9 is not, and there is no third attempt.
    CHECK(calls == 3);
    REQUIRE(result.pairs.size() == 1);
    CHECK(result.pairs[0].kept == 1);
    CHECK(result.loss_before == 10.0);
    CHECK(result.loss_after == 7.9);
    CHECK(constants(searched) == constants(last));
    CHECK(constants(searched) != constants(m));
    const auto u = columns_magnitudes(doubles(w), 6);
    const auto after = columns_magnitudes(doubles(searched.initializers.at("w")), 6);
    for (std::size_t c = 0; c < 6; ++c) {
      CHECK(after[c] == doctest::Approx(u[c] * result.pairs[0].factors[c]).epsilon(1e-6));
    }
  }
  SUBCASE("nothing is kept") {
    graph::model searched = m;
    const auto result =
        graph::search_scaling(searched, activations, [](const graph::model&) { return 1.0; });
    CHECK(result.pairs[0].kept == 0);
    CHECK(result.pairs[0].factors == std::vector<double>(6, 1.0));
    CHECK(constants(searched) == constants(m));
  }
  SUBCASE("all three attempts, with what the ones before have done to the magnitudes") {
    double loss = 1.0;
    graph::scaling_search_options options;
    options.rule = graph::scaling_rule::ssd_root;
    graph::model searched = m;
    const auto result = graph::search_scaling(
        searched, activations, [&](const graph::model&) { return loss *= 0.5; }, options);
    CHECK(result.pairs[0].kept == 3);
    auto u = columns_magnitudes(doubles(w), 6);
    auto a = std::vector<double>{3, 1, 4, 1, 5, 9};
    auto d = rows_magnitudes(doubles(v), 4);
    std::vector<double> product(6, 1.0);
    for (int i = 0; i < 3; ++i) {
      const double mu = *std::max_element(u.begin(), u.end());
      const double ma = *std::max_element(a.begin(), a.end());
      const double md = *std::max_element(d.begin(), d.end());
      for (std::size_t c = 0; c < 6; ++c) {
        const double f = std::sqrt(ma / a[c] * std::sqrt(mu / u[c] / (md / d[c])));
        const double clamped = (std::min)((std::max)(f, 1.0), 2.0);
        product[c] *= clamped;
        u[c] *= clamped;
        a[c] *= clamped;
        d[c] /= clamped;
      }
    }
    check_close(result.pairs[0].factors, product, 1e-5);
  }
  SUBCASE("pairs of which nothing is known, errors") {
    graph::model searched = m;
    const auto one = [](const graph::model&) { return 1.0; };
    CHECK(graph::search_scaling(searched, {}, one).pairs.empty());
    check_graph_error(error_kind::invalid_argument, {"search_scaling", "loss is NaN"}, [&] {
      graph::search_scaling(searched, activations, [](const graph::model&) {
        return std::numeric_limits<double>::quiet_NaN();
      });
    });
    check_graph_error(error_kind::shape_mismatch, {"Gemm node 'Gemm_2'", "2 magnitudes"}, [&] {
      graph::search_scaling(searched, {{"Relu_1_out", {1, 2}}}, one);
    });
    graph::scaling_search_options options;
    options.loss_threshold = -1.0;
    check_graph_error(error_kind::invalid_argument, {"search_scaling", "-1"},
                      [&] { graph::search_scaling(searched, activations, one, options); });
    CHECK(constants(searched) == constants(m));
  }
}

// -------------------------------------------------------------------------------------------
// models of others

TEST_CASE("equalize: a keyword spotter of depthwise separable convolutions") {
  const char* given = std::getenv("DETENT_SHARED");
  const std::filesystem::path path =
      (given != nullptr ? std::filesystem::path(given)
                        : std::filesystem::path(__FILE__).parent_path() / "../../../shared") /
      "models/kws_dscnn_mlperf.onnx";
  if (!std::filesystem::exists(path)) {
    const char* ci = std::getenv("CI");
    REQUIRE_MESSAGE((ci == nullptr || std::string(ci) != "true"), "no file ", path.string());
    MESSAGE("skipped: no file ", path.string());
    return;
  }
  test::random_source r(10);
  INFO("seed ", r.seed());
  graph::model m = graph::read_onnx(path);
  graph::simplify(m);
  // Nine convolutions and a Gemm behind the global pooling, in one line.
  CHECK(graph::cross_layer_pairs(m).size() == 9);
  const tensors inputs{{"input", random_floats(r, {3, 1, 49, 10}, -2.0F, 2.0F)}};
  graph::model powers = m;
  const auto result = graph::equalize(powers, exactly());
  CHECK(result.pairs.size() == 9);
  for (const graph::equalized_pair& pair : result.pairs) {
    INFO(pair.upstream, " to ", pair.downstream);
    CHECK(pair.changed > 0);
    CHECK(pair.imbalance_after <= pair.imbalance_before);
  }
  CHECK(different(powers, m, inputs) == "");
  graph::model ppq = m;
  graph::equalize(ppq, graph::equalization_options::ppq());
  CHECK(distance(m, ppq, inputs) < 1e-4);
}
