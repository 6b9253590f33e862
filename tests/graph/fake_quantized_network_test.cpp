// SPDX-License-Identifier: BSD-3-Clause
// The network that a quantized model is trained as computes what the quantized model computes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/learn/fold_normalization.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/make_fake_quantize.hpp>
#include <detent/graph/learn/train.hpp>
#include <detent/graph/learn/trainer.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ops/bias_code.hpp>
#include <detent/graph/quantize/fake_quantized_network.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

/// A network that has every kind of layer, each with a bias, and what runs on codes between them:
/// a grouped convolution, a residual sum, a clamp, a Concat, pools, transposed convolutions with
/// groups and without, MatMul and Add, a product of two activations, and a Gemm.
graph::model every_layer(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 2, 6, 6});
  const auto conv = [&](const char* op, const std::string& x, const shape& w, std::int64_t out,
                        attributes a) {
    const std::string n = std::to_string(b.get().nodes.size());
    return b.add(op,
                 {x, b.constant("w" + n, random_floats(r, w, -0.5F, 0.5F)),
                  b.constant("b" + n, random_floats(r, {out}, -0.5F, 0.5F))},
                 std::move(a));
  };
  std::string y = conv("Conv", "x", {4, 2, 3, 3}, 4, {{"pads", list({1, 1, 1, 1})}});
  const std::string left = b.add("Relu", {y});
  y = conv("Conv", left, {4, 2, 3, 3}, 4, {{"pads", list({1, 1, 1, 1})}, {"group", number(2)}});
  y = b.add("Clip", {y, b.scalar("lower", -0.25F), b.scalar("upper", 0.75F)});
  y = b.add("Relu", {b.add("Add", {y, left})});
  const std::string wide =
      conv("ConvTranspose", y, {4, 1, 2, 2}, 2, {{"group", number(2)}, {"strides", list({2, 2})}});
  const std::string half =
      b.add("AveragePool", {wide}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  y = conv("ConvTranspose", b.add("Concat", {y, half}, {{"axis", number(1)}}), {6, 3, 2, 2}, 3, {});
  y = b.add("MaxPool", {y}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  y = b.add("Reshape",
            {y, b.constant("dims", make_tensor<std::int64_t>(element_type::s64, {3}, {-1, 3, 9}))});
  const std::string q =
      b.add("MatMul", {y, b.constant("q_w", random_floats(r, {9, 9}, -0.5F, 0.5F))});
  const std::string q_b = b.add("Add", {q, b.constant("q_b", random_floats(r, {9}, -0.5F, 0.5F))});
  // The bias of both products is one constant.
  const std::string k =
      b.add("MatMul", {y, b.constant("k_w", random_floats(r, {9, 9}, -0.5F, 0.5F))});
  const std::string k_b = b.add("Add", {k, "q_b"});
  const std::string product =
      b.add("MatMul", {q_b, b.add("Transpose", {k_b}, {{"perm", list({0, 2, 1})}})});
  y = b.add("MatMul", {product, b.constant("v_w", random_floats(r, {3, 4}, -1.0F, 1.0F))});
  y = b.add("Gemm",
            {b.add("Flatten", {y}), b.constant("class_w", random_floats(r, {4, 12}, -1.0F, 1.0F)),
             b.constant("class_b", random_floats(r, {4}, -1.0F, 1.0F))},
            {{"transB", number(1)}});
  b.output(y);
  return b.get();
}

struct quantized_network {
  graph::quantization q;
  std::map<std::size_t, graph::layer_weight_scales> scales;

  quantized_network(const graph::model& m, const std::vector<sample>& samples,
                    const graph::static_quantization_options& o)
      : q(graph::static_quantization(m, samples_source(samples), o)) {
    const graph::model& f = q.plan.float_model();
    for (const std::size_t i : q.plan.layers()) {
      scales.emplace(i, graph::find_weight_scales(f, f.nodes[i], o.weights));
    }
  }
};

/// How many elements of a network's output differ from those of a quantized model in their bits.
std::size_t bits_apart(graph::gradient_graph& network, const std::string& output,
                       const graph::model& quantized, const sample& inputs) {
  network.forward(inputs);
  const auto a = values_of<float>(network.value(output));
  graph::executor run(quantized);
  const auto b = values_of<float>(graph::to_plain(run.run(inputs)[0]));
  REQUIRE(a.size() == b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 ? 1U : 0U;
  }
  return count;
}

/// Changes all constants that training changes, as a step of it may do.
void disturb(graph::model& m, const std::vector<graph::trained_constant>& constants,
             test::random_source& r) {
  for (const graph::trained_constant& c : constants) {
    tensor& t = m.initializers.at(c.name);
    std::vector<float> values = values_of<float>(t);
    for (float& v : values) {
      v = c.role == graph::constant_role::scale ? v * r.real(0.8F, 1.25F)
                                                : v + r.real(-0.05F, 0.05F);
    }
    t = floats(t.dims(), values);
  }
}

}  // namespace

TEST_CASE("fake-quantized network: the bits of the exported model, in integers and in float") {
  test::random_source r(902);
  INFO("seed ", r.seed());
  const graph::model m = every_layer(r);
  const auto samples = samples_of_x(r, {3, 2, 6, 6}, 3);
  for (std::size_t bits = 2; bits <= 8; ++bits) {
    for (const bool per_channel : {false, true}) {
      for (const element_type type : {element_type::u8, element_type::s8}) {
        INFO(bits, " bits, per channel ", per_channel, ", ", graph::name(type));
        const quantized_network n(m, samples,
                                  {.activations = {.type = type, .bits = bits},
                                   .weights = {.per_channel = per_channel, .bits = bits}});
        const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales);
        CHECK(graph::to_onnx(network.exported(network.network()).result) ==
              graph::to_onnx(n.q.result));
        graph::model trained = network.network();
        for (std::size_t step = 0; step < 3; ++step) {
          const graph::model now = network.exported(trained).result;
          const graph::model integers = graph::for_execution(now);
          CHECK(test::count(integers, "QLinearConv") == 2);
          CHECK(test::count(integers, "QLinearGemm") == 4);
          CHECK(test::count(integers, "QLinearMatMul") == (bits == 8 ? 1 : 0));
          CHECK(test::count(integers, "QLinearAveragePool") == (bits == 8 ? 1 : 0));
          CHECK(test::count(trained, "QLinearConv") == 2);
          CHECK(test::count(trained, "FakeQuantizeBias") == 7);  // those of MatMul in the Add
          graph::gradient_graph simulated(trained);
          for (const auto& sample : samples) {
            CHECK(bits_apart(simulated, trained.outputs[0].name, integers, sample) == 0);
            CHECK(bits_apart(simulated, trained.outputs[0].name, graph::for_execution(now, false),
                             sample) == 0);
          }
          disturb(trained, network.constants(true, true), r);
        }
      }
    }
  }
}

TEST_CASE("fake-quantized network: float results of products have the bits of the exported model") {
  test::random_source r(938);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, 9});
  const auto random = [&](const char* name, const shape& dims) {
    return b.constant(name, random_floats(r, dims, -1.0F, 1.0F));
  };
  std::string y = b.add("Add", {b.add("MatMul", {"x", random("w", {9, 8})}), random("wb", {8})});
  const std::string z = b.add("Softmax", {b.add("Add", {y, b.add("Sin", {y})})});
  // The Relu and the Clip are part of the integer product in the exported model. The sum takes z as
  // it is.
  y = b.add("Relu", {b.add("Add", {b.add("MatMul", {z, random("v", {8, 8})}), random("vb", {8})})});
  y = b.add("Clip", {y, "", b.scalar("most", 1.5F)});
  y = b.add("MatMul", {b.add("Sin", {b.add("Add", {y, z})}), random("u", {8, 5})});
  y = b.add("Relu", {b.add("Gemm", {b.add("Flatten", {b.add("Exp", {y})}), random("t", {15, 4}),
                                    random("tb", {4})})});
  b.output(b.add("Sin", {b.add("Clip", {y, b.scalar("least", 0.25F), ""})}));
  const auto samples = samples_of_x(r, {4, 3, 9}, 3);
  for (std::size_t bits = 2; bits <= 8; ++bits) {
    for (const element_type type : {element_type::u8, element_type::s8}) {
      INFO(bits, " bits, ", graph::name(type));
      const quantized_network n(
          b.get(), samples,
          {.activations = {.type = type, .bits = bits}, .weights = {.bits = bits}});
      CHECK(n.q.plan.values().size() == 4);  // what the layers take
      const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales);
      CHECK(graph::to_onnx(network.exported(network.network()).result) ==
            graph::to_onnx(n.q.result));
      graph::model trained = network.network();
      CHECK(test::count(trained, "StraightThrough") == 4);
      for (std::size_t step = 0; step < 3; ++step) {
        const graph::model integers = graph::for_execution(network.exported(trained).result);
        CHECK(test::count(integers, "QLinearGemm") == 4);
        // With fewer bits, a Clip is before the QuantizeLinear of each of the four values.
        CHECK(test::count(integers, "Relu") == 0);
        CHECK(test::count(integers, "Clip") == (bits == 8 ? 0 : 4));
        graph::gradient_graph simulated(trained);
        for (const auto& sample : samples) {
          CHECK(bits_apart(simulated, trained.outputs[0].name, integers, sample) == 0);
        }
        disturb(trained, network.constants(true, true), r);
      }
      if (bits < 8) {
        continue;
      }
      // Gradients pass as if the float operators had the results; those have them but for rounding,
      // which can change a level.
      graph::model in_float = trained;
      std::erase_if(in_float.nodes,
                    [](const graph::node& o) { return o.op_type == "QLinearGemm"; });
      for (graph::node& o : in_float.nodes) {
        if (o.op_type == "StraightThrough") {
          o.op_type = "Identity";
          o.domain.clear();
          o.inputs.resize(1);
        }
      }
      std::set<std::string> wanted;
      for (const graph::trained_constant& c : network.constants(true, true)) {
        wanted.insert(c.name);
      }
      const auto gradients_of = [&](const graph::model& m) {
        graph::gradient_graph g(m);
        g.forward(samples[0]);
        const std::string& output = m.outputs[0].name;
        return g.backward({{output, std::vector<double>(g.value(output).count(), 1.0)}}, wanted);
      };
      const auto found = gradients_of(trained);
      const auto expected = gradients_of(in_float);
      REQUIRE(found.size() == expected.size());
      for (const std::string& name :
           {std::string("w"), std::string("v"), std::string("u"), std::string("t")}) {
        INFO(name);
        double size = 0.0;
        double apart = 0.0;
        for (std::size_t i = 0; i < expected.at(name).size(); ++i) {
          size += std::fabs(expected.at(name)[i]);
          apart += std::fabs(expected.at(name)[i] - found.at(name)[i]);
        }
        CHECK(size > 0.0);
        CHECK(apart < 0.01 * size);
      }
    }
  }
}

TEST_CASE("fake-quantized network: nodes that stay in float have the bits of the exported model") {
  test::random_source r(939);
  INFO("seed ", r.seed());
  for (const bool is_stored : {false, true}) {
    model_builder b;
    b.input("x", {-1, 3, 9});
    const auto random = [&](const char* name, const shape& dims) {
      return b.constant(name, random_floats(r, dims, -1.0F, 1.0F));
    };
    // The executor makes the Add part of the product before it, also where it is to stay in float,
    // and where 8 bits store the sum.
    std::string y = b.add("Add", {b.add("MatMul", {"x", random("w", {9, 8})}), random("wb", {8})});
    const std::string sum = b.get().nodes.back().name;
    y = is_stored ? b.add("MatMul", {y, random("v", {8, 8})}) : b.add("Sin", {y});
    b.add("Gemm", {b.add("Flatten", {y}), random("t", {24, 4}), random("tb", {4})});
    const std::string last = b.get().nodes.back().name;
    b.output(b.add("Sin", {b.get().nodes.back().outputs[0]}));
    const auto samples = samples_of_x(r, {4, 3, 9}, 3);
    graph::static_quantization_options o;
    o.scope.ignored.names = {sum, last};
    const quantized_network n(b.get(), samples, o);
    CHECK(n.q.plan.layers().size() == (is_stored ? 2 : 1));
    const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales);
    graph::model trained = network.network();
    for (std::size_t step = 0; step < 3; ++step) {
      const graph::model integers = graph::for_execution(network.exported(trained).result);
      CHECK(test::count(integers, "Add", "") == 0);
      graph::gradient_graph simulated(trained);
      for (const auto& sample : samples) {
        CHECK(bits_apart(simulated, trained.outputs[0].name, integers, sample) == 0);
      }
      disturb(trained, network.constants(true, true), r);
    }
  }
}

TEST_CASE("fake-quantized network: ties round as in integers") {
  // Scales of 0.1 and a result in steps of 0.02: half of the sums are ties of the requantization,
  // and sums in float fall to either side of them.
  test::random_source r(907);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 40});
  const std::string hidden =
      b.add("Relu", {b.add("Gemm", {"x", b.constant("w", random_floats(r, {40, 30}, -1.0F, 1.0F)),
                                    b.constant("b", random_floats(r, {30}, -1.0F, 1.0F))})});
  b.output(b.add("Gemm", {hidden, b.constant("v", random_floats(r, {30, 20}, -1.0F, 1.0F)),
                          b.constant("c", random_floats(r, {20}, -1.0F, 1.0F))}));
  const auto samples = samples_of_x(r, {20, 40}, 3, -1.0F, 1.0F);
  quantized_network n(b.get(), samples, {});
  for (auto& [name, p] : n.q.parameters.activations) {
    p.scale = name == "x" ? 0.1F : 0.02F;
  }
  for (auto& [layer, scales] : n.scales) {
    scales.scales.assign(scales.scales.size(), 0.1F);
  }
  const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales);
  const graph::model written = network.exported(network.network()).result;
  graph::gradient_graph simulated(network.network());
  const std::string& output = network.network().outputs[0].name;
  std::size_t apart = 0;
  for (const auto& sample : samples) {
    CHECK(bits_apart(simulated, output, graph::for_execution(written), sample) == 0);
    apart += bits_apart(simulated, output, graph::for_execution(written, false), sample);
  }
  CHECK(apart > 10);  // the float reading of the file rounds some of them to the other side
}

TEST_CASE("fake-quantized network: biases are rounded, and gradients pass through") {
  test::random_source r(908);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("bias", {6});
  b.input("x_scale", {});
  b.input("w_scale", {3});
  b.get().nodes.push_back(
      graph::make_fake_quantize_bias("bias", "x_scale", "w_scale", "y", "codes"));
  b.get().opsets["detent"] = 1;
  b.output("y");
  graph::gradient_graph g(b.get());
  const std::vector<float> bias{0.3F, -0.26F, 1e30F, -0.05F, 0.0F, -1e30F};
  const std::vector<float> scales{0.5F, 0.25F, 2.0F};
  g.forward({{"bias", floats({6}, bias)},
             {"x_scale", floats({}, {0.2F})},
             {"w_scale", floats({3}, scales)}});
  // 0.3 / 0.1 = 3; -0.26 / 0.05 = -5.2; saturated; -0.05 / 0.1 = -0.5, in double next to a tie.
  const auto codes = values_of<std::int32_t>(g.value("codes"));
  CHECK(codes[0] == 3);
  CHECK(codes[1] == -5);
  CHECK(codes[2] == 2147483647);
  CHECK(codes[3] == graph::bias_code(-0.05F, 0.2F, 0.5F));
  CHECK(codes[4] == 0);
  CHECK(codes[5] == -2147483647);
  const auto y = values_of<float>(g.value("y"));
  for (std::size_t i = 0; i < y.size(); ++i) {
    CHECK(y[i] == static_cast<float>(codes[i]) * (0.2F * scales[i % 3]));
  }
  const std::vector<double> d{1.0, -2.0, 3.0, 4.0, 5.0, -6.0};
  const auto gradients = g.backward({{"y", d}}, {"bias", "x_scale", "w_scale"});
  CHECK(gradients.at("bias") == d);
  CHECK(gradients.at("x_scale") == std::vector<double>(1, 0.0));
  CHECK(gradients.at("w_scale") == std::vector<double>(3, 0.0));
}

TEST_CASE("fake-quantized network: every rule of activations trains what is exported") {
  test::random_source r(909);
  INFO("seed ", r.seed());
  const graph::model m = every_layer(r);
  const auto samples = samples_of_x(r, {3, 2, 6, 6}, 2);
  using rule = graph::activation_rule;
  for (const auto which : {rule::straight_through, rule::lsq_plus, rule::pact}) {
    for (const std::size_t bits : std::initializer_list<std::size_t>{2, 4, 8}) {
      for (const element_type type : {element_type::u8, element_type::s8}) {
        INFO("rule ", static_cast<int>(which), ", ", bits, " bits, ", graph::name(type));
        const quantized_network n(
            m, samples, {.activations = {.type = type, .bits = bits}, .weights = {.bits = bits}});
        const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales, which);
        const auto constants = network.constants(true, true, 0.5);
        std::size_t clips = 0;
        std::size_t offsets = 0;
        for (const graph::trained_constant& c : constants) {
          clips += c.name.ends_with("_clip") && c.penalty == 0.5 ? 1U : 0U;
          offsets += c.name.ends_with("_offset") && c.penalty == 0.0 ? 1U : 0U;
        }
        CHECK(clips == (which == rule::pact ? 2 : 0));  // behind the two Relus
        CHECK(offsets == (which == rule::lsq_plus ? network.activation_parameters().size() : 0));
        graph::model trained = network.network();
        std::size_t moved = 0;
        for (std::size_t step = 0; step < 3; ++step) {
          const graph::quantization now = network.exported(trained);
          graph::gradient_graph simulated(trained);
          for (const auto& sample : samples) {
            CHECK(bits_apart(simulated, trained.outputs[0].name, graph::for_execution(now.result),
                             sample) == 0);
          }
          for (const auto& [value, p] : now.parameters.activations) {
            moved += p.zero_point != n.q.parameters.activations.at(value).zero_point ? 1U : 0U;
          }
          disturb(trained, constants, r);
        }
        // Steps of 2 bits are too large for most offsets that move this little.
        if (which != rule::lsq_plus || bits > 2) {
          CHECK((moved > 0) == (which == rule::lsq_plus));
        }
      }
    }
  }
}

TEST_CASE("fake-quantized network: gradients of LSQ, LSQ+ and PACT beside finite differences") {
  test::random_source r(910);
  INFO("seed ", r.seed());
  const detent::grid levels{-8, 7};
  for (const std::string_view rule : {"lsq", "lsq_plus", "pact", "fixed"}) {
    INFO(rule);
    model_builder builder;
    builder.input("x", {400});
    graph::model m = builder.get();
    m.opsets["detent"] = 1;
    // The grid spans -0.9 .. 2.1 or so: many values are beyond it on both sides.
    const float scale = 0.2F;
    const float offset = rule == "pact" ? 1.6F : 0.73F;
    const float clip = 3.0F;
    m.initializers["scale"] = floats({}, {scale});
    m.initializers["offset"] = floats({}, {offset});
    m.initializers["clip"] = floats({}, {clip});
    m.initializers["steps"] = floats({}, {15.0F});
    m.initializers["zero_point"] = make_tensor<std::int32_t>(element_type::s32, {}, {-4});
    graph::node n = graph::make_fake_quantize("x", "scale", "zero_point", "y", levels);
    if (rule == "lsq_plus" || rule == "fixed") {
      n.inputs[2] = "z";
      graph::add_offset(n, "offset");
      m.nodes.push_back(graph::make_offset_zero_point("offset", "scale", "z", "typed", levels));
    }
    if (rule == "pact") {
      m.initializers["zero_point"] = make_tensor<std::int32_t>(element_type::s32, {}, {-8});
      graph::node div;
      div.op_type = "Div";
      div.inputs = {"clip", "steps"};
      div.outputs = {"s"};
      m.nodes.push_back(div);
      n.inputs[1] = "s";
      n.attributes["clips"] = graph::attribute::of(std::int64_t{1});
    }
    if (rule == "fixed") {
      n.attributes["fixed"] = graph::attribute::of(std::int64_t{1});
    }
    m.nodes.push_back(n);
    const tensor x = random_floats(r, {400}, -3.0F, 4.0F);
    std::vector<double> d;
    for (std::size_t i = 0; i < x.count(); ++i) {
      d.push_back(static_cast<double>(r.real(-1.0F, 1.5F)));
    }
    graph::gradient_graph g(m);
    g.forward({{"x", x}});
    const auto found = g.backward({{"y", d}}, {"x", "scale", "offset", "clip"});

    // With the errors of rounding and the sides of the grid held, the loss is a smooth function of
    // the parameters.
    const double s0 =
        rule == "pact" ? static_cast<double>(clip) / 15.0 : static_cast<double>(scale);
    const double b0 = static_cast<double>(offset);
    const double z = rule == "pact" ? -8.0 : rule == "lsq" ? -4.0 : std::nearbyint(-b0 / s0);
    const auto loss = [&](double s, double b, double shift) {
      double sum = 0.0;
      for (std::size_t i = 0; i < x.count(); ++i) {
        const auto v = static_cast<double>(x.data<float>()[i]);
        const double level = std::nearbyint(v / s0) + z;
        const auto outer = [&](double end) {
          return rule == "lsq" || rule == "pact" ? (end - z) * s : end * s + b;
        };
        const double inside =
            rule == "pact" ? v + shift : v + shift + (std::nearbyint(v / s0) - v / s0) * s;
        sum += d[i] * (level < -8.0 ? outer(-8.0) : level > 7.0 ? outer(7.0) : inside);
      }
      return sum;
    };
    const double h = 1e-4;
    const double of_scale = (loss(s0 + h, b0, 0.0) - loss(s0 - h, b0, 0.0)) / (2.0 * h);
    const double of_offset = (loss(s0, b0 + h, 0.0) - loss(s0, b0 - h, 0.0)) / (2.0 * h);
    const double of_x = (loss(s0, b0, h) - loss(s0, b0, -h)) / (2.0 * h);
    double sum_x = 0.0;
    for (const double v : found.at("x")) {
      sum_x += v;
    }
    CHECK(std::fabs(of_scale) > 1.0);
    CHECK(sum_x == doctest::Approx(of_x).epsilon(1e-4));
    if (rule == "pact") {
      CHECK(found.at("clip")[0] == doctest::Approx(of_scale / 15.0).epsilon(1e-4));
      CHECK(found.at("offset")[0] == 0.0);
      continue;
    }
    CHECK(found.at("clip")[0] == 0.0);
    CHECK(found.at("scale")[0] ==
          (rule == "fixed" ? doctest::Approx(0.0) : doctest::Approx(of_scale).epsilon(1e-4)));
    CHECK(found.at("offset")[0] ==
          (rule == "lsq_plus" ? doctest::Approx(of_offset).epsilon(1e-4) : doctest::Approx(0.0)));
    if (rule == "lsq_plus") {
      CHECK(std::fabs(of_offset) > 1.0);
    }
  }
}

TEST_CASE("fake-quantized network: while quantizers are off, it is the float network") {
  test::random_source r(911);
  INFO("seed ", r.seed());
  const graph::model m = every_layer(r);
  const auto samples = samples_of_x(r, {3, 2, 6, 6}, 2);
  for (const auto rule : {graph::activation_rule::lsq_plus, graph::activation_rule::pact}) {
    const quantized_network n(m, samples, {.activations = {.bits = 4}, .weights = {.bits = 3}});
    const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales, rule);
    graph::gradient_graph off(network.network({.quantizes = false}));
    graph::gradient_graph real(n.q.plan.float_model());
    off.forward(samples[0]);
    real.forward(samples[0]);
    CHECK(difference(off.value(network.network().outputs[0].name).data<float>(),
                     real.value(n.q.plan.float_model().outputs[0].name).data<float>()) == "");
    // Observed ranges get no gradients, weights do.
    graph::gradient_graph observed(network.network({.ranges_learn = false}));
    observed.forward(samples[0]);
    std::set<std::string> wanted;
    for (const graph::trained_constant& c : network.constants(true, true)) {
      wanted.insert(c.name);
    }
    const std::string& output = network.network().outputs[0].name;
    const auto found = observed.backward(
        {{output, std::vector<double>(observed.value(output).count(), 1.0)}}, wanted);
    std::set<std::string> ranges = wanted;
    for (const graph::trained_constant& c : network.constants(true, false)) {
      ranges.erase(c.name);
    }
    std::size_t scales_of_weights = 0;
    for (const auto& entry : found) {
      const auto& name = entry.first;
      const auto& gradient = entry.second;
      const bool is_zero =
          std::all_of(gradient.begin(), gradient.end(), [](double v) { return v == 0.0; });
      const bool of_range = ranges.count(name) != 0;
      INFO(name);
      CHECK((!of_range || is_zero));
      scales_of_weights += name.ends_with("_scale") && !is_zero ? 1U : 0U;
    }
    CHECK(scales_of_weights >= 5);
  }
}

namespace {

/// A convolution, a grouped one and a Gemm, each with a BatchNormalization behind it. With
/// `to_float`, a float operator takes the result of the Gemm, which is not stored in 8 bits then.
graph::model normalized_layers(test::random_source& r, bool to_float) {
  model_builder b;
  b.input("x", {-1, 2, 5, 5});
  std::size_t count = 0;
  const auto normalized = [&](const std::string& y, std::int64_t channels) {
    const std::string n = std::to_string(count++);
    return b.add("BatchNormalization",
                 {y, b.constant("gamma" + n, random_floats(r, {channels}, 0.5F, 1.5F)),
                  b.constant("beta" + n, random_floats(r, {channels}, -0.5F, 0.5F)),
                  b.constant("mean" + n, random_floats(r, {channels}, -0.5F, 0.5F)),
                  b.constant("variance" + n, random_floats(r, {channels}, 0.5F, 1.5F))},
                 {{"epsilon", real(0.01F)}, {"momentum", real(0.75F)}});
  };
  std::string y = b.add("Conv", {"x", b.constant("w0", random_floats(r, {4, 2, 3, 3}, -0.5F, 0.5F)),
                                 b.constant("b0", random_floats(r, {4}, -0.5F, 0.5F))});
  y = b.add("Relu", {normalized(y, 4)});
  y = b.add("Conv", {y, b.constant("w1", random_floats(r, {6, 2, 3, 3}, -0.5F, 0.5F))},
            {{"group", number(2)}});
  y = b.add("Flatten", {b.add("Relu", {normalized(y, 6)})});
  y = b.add("Gemm", {y, b.constant("w2", random_floats(r, {6, 3}, -0.5F, 0.5F))});
  y = normalized(y, 3);
  b.output(to_float ? b.add("Sin", {y}) : y);
  return b.get();
}

std::vector<graph::folded_normalization> normalizations_of(graph::model m) {
  std::vector<graph::folded_normalization> found;
  graph::fold_batch_norm(m, &found);
  return found;
}

}  // namespace

TEST_CASE("fake-quantized network: trained normalizations are folded as they are exported") {
  test::random_source r(914);
  INFO("seed ", r.seed());
  for (const bool to_float : {false, true}) {
    const graph::model m = normalized_layers(r, to_float);
    const auto samples = samples_of_x(r, {16, 2, 5, 5}, 2);
    for (const auto& [bits, per_channel] : std::initializer_list<std::pair<std::size_t, bool>>{
             {3, false}, {3, true}, {8, false}, {8, true}}) {
      const quantized_network n(
          m, samples,
          {.activations = {.bits = bits}, .weights = {.per_channel = per_channel, .bits = bits}});
      const graph::fake_quantized_network network(
          n.q.plan, n.q.parameters, n.scales, graph::activation_rule::lsq, normalizations_of(m));
      const auto constants = network.constants(true, true);
      std::set<std::string> names;
      for (const graph::trained_constant& c : constants) {
        CHECK(names.insert(c.name).second);
      }
      for (const char* name :
           {"w0", "gamma0", "beta0", "w1", "gamma1", "beta1", "w2", "gamma2", "beta2"}) {
        CHECK(names.count(std::string(name) + "_trained") == 1);
      }
      CHECK(test::count(network.network(), "FoldNormalization") == 3);
      CHECK(test::count(network.network(), "StraightThrough") == (to_float ? 1 : 0));
      graph::model trained = network.network();
      for (std::size_t step = 0; step < 3; ++step) {
        const graph::model now = network.exported(trained).result;
        CHECK(test::count(now, "BatchNormalization") == 0);
        graph::gradient_graph simulated(trained);
        for (const auto& sample : samples) {
          CHECK(bits_apart(simulated, trained.outputs[0].name, graph::for_execution(now), sample) ==
                0);
        }
        disturb(trained, constants, r);
      }
    }
  }
}

TEST_CASE("fake-quantized network: normalizations take the statistics of the batch, then freeze") {
  test::random_source r(915);
  INFO("seed ", r.seed());
  for (const bool to_float : {false, true}) {
    const graph::model m = normalized_layers(r, to_float);
    const auto samples = samples_of_x(r, {16, 2, 5, 5}, 2);
    const quantized_network n(m, samples, {});
    const graph::fake_quantized_network network(n.q.plan, n.q.parameters, n.scales,
                                                graph::activation_rule::lsq, normalizations_of(m));
    const auto near = [](const tensor& a, const tensor& b, float bound) {
      const auto x = values_of<float>(a);
      const auto y = values_of<float>(b);
      REQUIRE(x.size() == y.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        CHECK(std::fabs(x[i] - y[i]) <= bound);
      }
    };
    // Without fake quantizers it is the float network in training form, and so are the statistics,
    // but for the bias of the first layer; with 8 bits its variance is close.
    graph::gradient_graph real(graph::training_form(m));
    real.forward(samples[0]);
    for (const bool quantizes : {false, true}) {
      const graph::model batch =
          network.network({.quantizes = quantizes, .batch_statistics = true});
      CHECK(test::count(batch, "BatchNormalization") == 3);
      CHECK(test::count(batch, "QLinearConv") == 0);
      CHECK(test::count(batch, "QLinearGemm") == 0);
      graph::gradient_graph g(batch);
      g.forward(samples[0]);
      if (!quantizes) {
        near(g.value(batch.outputs[0].name), real.value(m.outputs[0].name), 1e-4F);
      }
      // Values behind the first quantized normalization leave the ranges of the running statistics.
      for (std::size_t i = 0; i < (quantizes ? 1 : 3); ++i) {
        std::size_t at = 0;
        const auto statistics = [&](const graph::model& from) -> const graph::node& {
          at = 0;
          for (const graph::node& node : from.nodes) {
            if (node.is("BatchNormalization") && at++ == i) {
              return node;
            }
          }
          return from.nodes.front();
        };
        const graph::node& a = statistics(batch);
        const graph::node& e = statistics(real.graph_model());
        near(g.value(a.outputs[2]), real.value(e.outputs[2]), quantizes ? 0.02F : 1e-4F);
        if (i > 0) {
          near(g.value(a.outputs[1]), real.value(e.outputs[1]), quantizes ? 0.02F : 1e-4F);
        }
      }
    }
    // Running statistics follow the batches of a trainer until they are frozen.
    graph::training_options o;
    o.loss.target = graph::training_target::values;
    const graph::model batch = network.network({.batch_statistics = true});
    graph::trainer t(batch, network.constants(true, true), o, 4, batch.outputs[0].name);
    const graph::training_batch of{samples[0], random_floats(r, {16, 3}, -1.0F, 1.0F)};
    const auto mean = [&] {
      return values_of<float>(t.network().initializers.at("mean1_trained"));
    };
    const auto begin = mean();
    static_cast<void>(t.step(of));
    const auto moved = mean();
    CHECK(moved != begin);
    t.use_nodes(network.network());
    static_cast<void>(t.step(of));
    CHECK(mean() == moved);
    const auto gamma = values_of<float>(t.network().initializers.at("gamma1_trained"));
    static_cast<void>(t.step(of));
    CHECK(values_of<float>(t.network().initializers.at("gamma1_trained")) != gamma);
  }
}

TEST_CASE("operators of training refuse attributes that no tool writes, and biases have codes") {
  CHECK(graph::bias_code(0.0F, 0.0F, 1.0F) == 0);
  CHECK(graph::bias_code(std::numeric_limits<float>::quiet_NaN(), 1.0F, 1.0F) == 0);
  CHECK(graph::bias_code(1.0F, 0.0F, 1.0F) == 2147483647);
  for (const std::int64_t ones : {std::int64_t{-1}, std::int64_t{64}}) {
    model_builder b;
    for (const char* name : {"w", "scale", "shift", "mean", "variance"}) {
      b.constant(name, floats({3}, {1, 2, 3}));
    }
    graph::node n = graph::make_fold_normalization({"w", "scale", "shift", "mean", "variance"},
                                                   {"y", "b", "f"}, 0, 0, 0.05F);
    n.attributes["ones"] = number(ones);
    b.get().nodes.push_back(std::move(n));
    b.get().opsets["detent"] = 1;
    b.output("y");
    test::check_graph_error(detent::error_kind::bad_file, {"FoldNormalization", "ones"}, [&] {
      graph::gradient_graph g(b.get());
      g.forward({});
    });
  }
  for (const auto& [qmin, qmax] :
       {std::pair(5, 4), std::pair(-129, 127), std::pair(0, 256), std::pair(-1, 128)}) {
    model_builder b;
    b.constant("offset", floats({}, {1}));
    b.constant("scale", floats({}, {1}));
    graph::node n = graph::make_offset_zero_point("offset", "scale", "z", "typed", {0, 255});
    n.attributes["qmin"] = number(qmin);
    n.attributes["qmax"] = number(qmax);
    b.get().nodes.push_back(std::move(n));
    b.get().opsets["detent"] = 1;
    b.output("z", element_type::s32);
    test::check_graph_error(detent::error_kind::bad_file, {"OffsetZeroPoint", "grid"}, [&] {
      graph::gradient_graph g(b.get());
      g.forward({});
    });
  }
}

TEST_CASE("fake-quantized network: the gradient of a folded normalization") {
  test::random_source r(916);
  INFO("seed ", r.seed());
  model_builder b;
  for (const char* name : {"w", "scale", "shift", "mean", "variance"}) {
    b.input(name, {});
  }
  b.get().nodes.push_back(
      graph::make_fold_normalization({"w", "scale", "shift", "mean", "variance"},
                                     {"w_folded", "b_folded", "factor"}, 1, 2, 0.05F));
  b.get().opsets["detent"] = 1;
  b.output("w_folded");
  tensors inputs{{"w", random_floats(r, {2, 3, 4}, -1.0F, 1.0F)}};
  for (const char* name : {"scale", "shift", "mean", "variance"}) {
    inputs[name] = random_floats(r, {3}, 0.5F, 1.5F);
  }
  graph::gradient_graph g(b.get());
  g.forward(inputs);
  CHECK(g.value("factor").dims() == shape{3, 1, 1});
  const auto random = [&](std::size_t count) {
    std::vector<double> d;
    for (std::size_t i = 0; i < count; ++i) {
      d.push_back(static_cast<double>(r.real(-1.0F, 1.0F)));
    }
    return d;
  };
  const std::vector<double> dw = random(24);
  const std::vector<double> db = random(3);
  const std::vector<double> df = random(3);
  std::map<std::string, std::vector<double>> at;
  for (const auto& [name, t] : inputs) {
    at[name] = doubles(t);
  }
  const auto loss = [&] {
    double sum = 0.0;
    for (std::size_t i = 0; i < 24; ++i) {
      const std::size_t k = i / 4 % 3;
      const double factor =
          at["scale"][k] / std::sqrt(at["variance"][k] + static_cast<double>(0.05F));
      sum += dw[i] * at["w"][i] * factor;
      if (i < 12 && i % 4 == 0) {
        sum += df[k] * factor + db[k] * (at["shift"][k] - at["mean"][k] * factor);
      }
    }
    return sum;
  };
  const auto found = g.backward({{"w_folded", dw}, {"b_folded", db}, {"factor", df}},
                                {"w", "scale", "shift", "mean", "variance"});
  for (const char* name : {"w", "scale", "shift"}) {
    for (std::size_t i = 0; i < at[name].size(); ++i) {
      const double x = at[name][i];
      at[name][i] = x + 1e-5;
      const double up = loss();
      at[name][i] = x - 1e-5;
      const double down = loss();
      at[name][i] = x;
      INFO(name, " ", i);
      CHECK(found.at(name)[i] == doctest::Approx((up - down) / 2e-5).epsilon(1e-5));
    }
  }
  CHECK(found.at("mean") == std::vector<double>(3, 0.0));
  CHECK(found.at("variance") == std::vector<double>(3, 0.0));
}
