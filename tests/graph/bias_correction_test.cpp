// SPDX-License-Identifier: BSD-3-Clause
// Bias correction: NNCF's rules against plain loops, detent's own against what they promise.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "plain_layers.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
using graph::bias_correction;
using graph::bias_correction_options;
using graph::bias_correction_rule;

/// Layers one after the other.
using chain = std::vector<plain_layer>;

graph::model model_of(const chain& layers, const shape& in) {
  model_builder b;
  shape any_batch = in;
  any_batch[0] = -1;
  std::string x = b.input("x", any_batch);
  for (const plain_layer& l : layers) {
    if (!l.is_conv && (l.name == "first gemm")) {
      x = b.add("Flatten", {x});
    }
    x = l.add_to(b, x);
    if (l.relu) {
      x = b.add("Relu", {x});
    }
  }
  b.output(x);
  return b.get();
}

images all_inputs(const std::vector<sample>& samples) {
  return test::images_of(test::one_batch(samples)[0].at("x"));
}

images flattened_for(const plain_layer& l, images x) {
  if (!l.is_conv && x.pixels() != 1) {
    x.channels *= x.pixels();
    x.height = x.width = 1;
  }
  return x;
}

/// Inputs and results (before the Relu) of each layer.
struct trace {
  std::vector<images> in, out;
};
trace run_chain(const chain& layers, images x, const std::vector<std::vector<double>>& weights,
                const std::vector<std::vector<double>>& biases) {
  trace t;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    x = flattened_for(layers[i], std::move(x));
    t.in.push_back(x);
    t.out.push_back(layers[i].run(x, weights[i], biases[i]));
    x = layers[i].relu ? test::relu(t.out.back()) : t.out.back();
  }
  return t;
}

struct expected_shift {
  std::string node;
  std::vector<double> shift;
  std::vector<double> bias;  // afterwards; empty if there is none
  bool applied = false;
};

std::vector<double> subtract(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> d(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    d[i] = a[i] - b[i];
  }
  return d;
}

/// The algorithms as published, in double. The full one by detent's rule needs the integer network:
/// it is tested by what it promises.
std::vector<expected_shift> expected_shifts(const chain& layers, const std::vector<sample>& samples,
                                            const bias_correction_options& options,
                                            bool per_channel) {
  const bool full = options.kind == bias_correction::full;
  const bool nncf = options.rule == bias_correction_rule::nncf;
  std::vector<std::vector<double>> weights, rounded, biases;
  for (const plain_layer& l : layers) {
    weights.push_back(l.float_weights());
    rounded.push_back(l.rounded_weights(per_channel));
    biases.push_back(l.float_bias());
  }
  const images x = all_inputs(samples);
  const trace real = run_chain(layers, x, weights, biases);
  std::vector<expected_shift> all;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const plain_layer& l = layers[i];
    if (nncf && l.bias.empty()) {
      continue;
    }
    expected_shift e;
    e.node = l.name;
    const std::vector<double> mean_out = real.out[i].means();
    if (full) {
      e.shift = subtract(mean_out, run_chain(layers, x, rounded, biases).out[i].means());
    } else {
      images mean_in = real.in[i];
      mean_in.count = 1;
      const std::vector<double> m = real.in[i].means();
      mean_in.values.resize(mean_in.channels * mean_in.pixels());
      for (std::size_t k = 0; k < mean_in.values.size(); ++k) {
        mean_in.values[k] = m[k / mean_in.pixels()];
      }
      const std::vector<double> quantized = l.run(mean_in, rounded[i], biases[i]).means();
      e.shift =
          subtract(nncf ? mean_out : l.run(mean_in, weights[i], biases[i]).means(), quantized);
    }
    e.applied = true;
    for (std::size_t c = 0; c < l.outputs; ++c) {
      if (nncf) {
        const double b = biases[i][c] + (full ? 1e-7 : 0.0);
        e.applied = e.applied && b != 0.0 && std::fabs(e.shift[c] / b) < (full ? 1000.0 : 2.0);
      } else {
        e.applied = e.applied && std::fabs(e.shift[c]) <= 2.0 * real.out[i].standard_deviation();
      }
    }
    if (e.applied) {
      biases[i].resize(l.outputs, 0.0);
      for (std::size_t c = 0; c < l.outputs; ++c) {
        biases[i][c] += e.shift[c];
      }
    }
    e.bias = biases[i];
    all.push_back(std::move(e));
  }
  return all;
}

/// A plan that is calibrated, and its numbers.
struct prepared {
  graph::quantization_plan plan;
  graph::quantization_parameters parameters;

  prepared(const graph::model& m, const std::vector<sample>& samples, bool per_channel = true)
      : plan(m) {
    const graph::static_quantization_options options{.weights = {.per_channel = per_channel}};
    parameters.activations =
        graph::calibrate_activations(plan, test::samples_source(samples), options);
    parameters.layers = graph::quantize_layers(plan, parameters.activations, options);
  }
  std::vector<graph::bias_shift> correct(const std::vector<sample>& samples,
                                         const bias_correction_options& options) {
    return graph::correct_biases(plan, parameters, test::samples_source(samples), options);
  }
  [[nodiscard]] const graph::node& layer(const std::string& name) const {
    return named(plan.float_model(), name);
  }
  [[nodiscard]] std::vector<float> bias(const std::string& name) const {
    const tensor* b = graph::detail::float_constant(plan.float_model(), layer(name), 2);
    return b == nullptr ? std::vector<float>() : test::values_of<float>(*b);
  }
};

const graph::bias_shift* find(const std::vector<graph::bias_shift>& all, const std::string& name) {
  for (const graph::bias_shift& s : all) {
    if (s.node.find("'" + name + "'") != std::string::npos) {
      return &s;
    }
  }
  return nullptr;
}

/// Compares with the plain loops; returns the largest shift that was applied.
double check_chain(const chain& layers, const graph::model& m, const std::vector<sample>& samples,
                   const bias_correction_options& options, bool per_channel) {
  prepared p(m, samples, per_channel);
  const auto actual = p.correct(samples, options);
  const auto expected = expected_shifts(layers, samples, options, per_channel);
  REQUIRE(actual.size() == expected.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const expected_shift& e = expected[i];
    INFO("layer ", e.node);
    CHECK(actual[i].node.find("'" + e.node + "'") != std::string::npos);
    CHECK(actual[i].applied == e.applied);
    REQUIRE(actual[i].shift.size() == e.shift.size());
    const std::vector<float> bias = p.bias(e.node);
    REQUIRE(bias.size() == e.bias.size());
    for (std::size_t c = 0; c < e.shift.size(); ++c) {
      CHECK(std::fabs(actual[i].shift[c] - e.shift[c]) < 2e-5);
      if (!bias.empty()) {
        CHECK(std::fabs(static_cast<double>(bias[c]) - e.bias[c]) < 2e-5);
      }
      largest = (std::max)(largest, e.applied ? std::fabs(e.shift[c]) : 0.0);
    }
  }
  return largest;
}

plain_layer conv(const char* name, std::size_t outputs, std::size_t inputs, std::size_t kernel,
                 std::size_t group = 1, std::size_t pad = 0, std::size_t stride = 1,
                 bool with_relu = false) {
  plain_layer l = test::layer_shape(name, outputs, inputs, kernel, group, pad, stride);
  l.relu = with_relu;
  return l;
}
plain_layer gemm(const char* name, std::size_t outputs, std::size_t inputs, bool transposed,
                 bool with_relu = false) {
  plain_layer l = conv(name, outputs, inputs, 1);
  l.is_conv = false;
  l.transposed = transposed;
  l.relu = with_relu;
  return l;
}

struct network {
  const char* name;
  shape in;
  chain layers;
};

std::vector<network> networks(test::random_source& r) {
  std::vector<network> all;
  all.push_back({"two channels", {1, 2, 6, 5}, {random_layer(r, conv("a", 2, 2, 3))}});
  all.push_back({"padded", {1, 3, 6, 7}, {random_layer(r, conv("a", 4, 3, 3, 1, 1))}});
  all.push_back({"no bias", {1, 3, 6, 7}, {random_layer(r, conv("a", 4, 3, 3, 1, 1), false)}});
  all.push_back({"depthwise", {1, 6, 7, 7}, {random_layer(r, conv("a", 6, 6, 3, 6, 1, 2))}});
  all.push_back({"groups", {1, 6, 7, 6}, {random_layer(r, conv("a", 4, 6, 3, 2))}});
  all.push_back({"gemm", {1, 19}, {random_layer(r, gemm("a", 7, 19, false))}});
  all.push_back({"gemm transB", {1, 19}, {random_layer(r, gemm("a", 7, 19, true))}});
  all.push_back({"gemm without bias", {1, 19}, {random_layer(r, gemm("a", 7, 19, true), false)}});
  all.push_back({"several",
                 {1, 3, 8, 8},
                 {random_layer(r, conv("a", 6, 3, 3, 1, 1, 1, true)),
                  random_layer(r, conv("b", 6, 6, 3, 6, 1, 2, true)),
                  random_layer(r, conv("c", 5, 6, 1, 1, 0, 1, true), false),
                  random_layer(r, conv("d", 4, 5, 3, 1, 1, 1, true)),
                  random_layer(r, gemm("first gemm", 8, 64, false, true)),
                  random_layer(r, gemm("e", 3, 8, true))}});
  return all;
}

}  // namespace

TEST_CASE("bias correction: NNCF's rule and the fast one, by plain loops") {
  for (std::uint64_t seed = 100; seed < 103; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    double largest[3] = {0.0, 0.0, 0.0};
    for (const network& n : networks(r)) {
      const graph::model m = model_of(n.layers, n.in);
      const auto samples = test::samples_of_x(r, n.in, 5);
      for (const bool per_channel : {true, false}) {
        INFO(n.name, per_channel ? " per channel" : " per tensor");
        const bias_correction_options kinds[] = {
            {.kind = bias_correction::fast, .rule = bias_correction_rule::nncf},
            {.kind = bias_correction::full, .rule = bias_correction_rule::nncf},
            {.kind = bias_correction::fast, .rule = bias_correction_rule::absolute}};
        for (std::size_t k = 0; k < 3; ++k) {
          INFO("kind ", k);
          largest[k] =
              (std::max)(largest[k], check_chain(n.layers, m, samples, kinds[k], per_channel));
        }
      }
    }
    // The shifts are far above the tolerance.
    for (const double l : largest) {
      CHECK(l > 1e-3);
    }
  }
}

TEST_CASE("bias correction: batch normalization is corrected where it has gone") {
  test::random_source r(110);
  INFO("seed ", r.seed());
  for (const bool with_bias : {true, false}) {
    plain_layer l = random_layer(r, conv("a", 4, 3, 3, 1, 1), with_bias);
    model_builder b;
    b.input("x", {-1, 3, 6, 6});
    const std::string y = l.add_to(b, "x");
    std::vector<std::vector<float>> p;
    std::vector<std::string> inputs{y};
    for (const char* name : {"scale", "shift", "mean", "variance"}) {
      p.push_back(r.reals(4, 0.5F, 1.5F));
      inputs.push_back(b.constant(name, test::floats({4}, p.back())));
    }
    b.output(b.add("BatchNormalization", inputs, {{"epsilon", test::real(0.01F)}}));
    plain_layer folded = l;
    folded.bias.assign(4, 0.0F);
    for (std::size_t o = 0; o < 4; ++o) {
      const double factor = static_cast<double>(p[0][o]) /
                            std::sqrt(static_cast<double>(p[3][o]) + static_cast<double>(0.01F));
      for (std::size_t k = o * l.filter(); k < (o + 1) * l.filter(); ++k) {
        folded.weights[k] = static_cast<float>(static_cast<double>(l.weights[k]) * factor);
      }
      const double old = with_bias ? static_cast<double>(l.bias[o]) : 0.0;
      folded.bias[o] = static_cast<float>((old - static_cast<double>(p[2][o])) * factor +
                                          static_cast<double>(p[1][o]));
    }
    const auto samples = test::samples_of_x(r, {1, 3, 6, 6}, 4);
    for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
      static_cast<void>(check_chain({folded}, b.get(), samples,
                                    {.kind = kind, .rule = bias_correction_rule::nncf}, true));
    }
    CHECK(check_chain({folded}, b.get(), samples, {.kind = bias_correction::fast}, true) > 0.0);
  }
}

TEST_CASE("bias correction: what NNCF's ratio keeps from being corrected") {
  test::random_source r(111);
  INFO("seed ", r.seed());
  const auto samples = test::samples_of_x(r, {1, 9}, 6);
  const auto applied = [&](const plain_layer& l, const bias_correction_options& options) {
    static_cast<void>(check_chain({l}, model_of({l}, {1, 9}), samples, options, true));
    prepared p(model_of({l}, {1, 9}), samples);
    const bool was = p.correct(samples, options).at(0).applied;
    CHECK((p.bias("a") != l.bias) == was);
    return was;
  };
  const bias_correction_options fast{.kind = bias_correction::fast,
                                     .rule = bias_correction_rule::nncf};
  const bias_correction_options full{.kind = bias_correction::full,
                                     .rule = bias_correction_rule::nncf};
  plain_layer l = random_layer(r, gemm("a", 4, 9, true));
  CHECK(applied(l, fast));
  CHECK(applied(l, full));
  CHECK(applied(l, {.kind = bias_correction::fast}));

  // A bias of zero: infinitely much is added to it.
  l.bias[2] = 0.0F;
  CHECK_FALSE(applied(l, fast));
  // With eps of 1e-7 the ratio is large, not infinite.
  const double added = prepared(model_of({l}, {1, 9}), samples).correct(samples, full)[0].shift[2];
  CHECK(applied(l, full) == (std::fabs(added) < 1e-4));
  CHECK(applied(l, {.kind = bias_correction::fast}));

  // Small ones: between the two thresholds.
  l.bias[2] = 1e-5F;
  const double shift = prepared(model_of({l}, {1, 9}), samples).correct(samples, full)[0].shift[2];
  l.bias[2] = static_cast<float>(std::fabs(shift) / 30.0);
  CHECK_FALSE(applied(l, fast));
  CHECK(applied(l, full));
  l.bias[2] = static_cast<float>(std::fabs(shift) / 1.5);
  CHECK(applied(l, fast));

  // A channel without weights and bias: nothing is added to nothing, which has no ratio.
  l.bias[2] = 0.0F;
  std::fill_n(l.weights.begin() + 2 * 9, 9, 0.0F);
  CHECK_FALSE(applied(l, fast));
  CHECK(applied(l, full));
}

TEST_CASE("bias correction: the absolute threshold") {
  test::random_source r(112);
  INFO("seed ", r.seed());
  const auto samples = test::samples_of_x(r, {1, 9}, 6);
  const plain_layer l = random_layer(r, gemm("a", 4, 9, true), false);
  const graph::model m = model_of({l}, {1, 9});
  const images x = all_inputs(samples);
  const double deviation = l.run(x, l.float_weights(), {}).standard_deviation();
  for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
    prepared p(m, samples);
    const auto shift = p.correct(samples, {.kind = kind}).at(0).shift;
    CHECK(p.bias("a").size() == 4);
    double largest = 0.0;
    for (const double s : shift) {
      largest = (std::max)(largest, std::fabs(s));
    }
    const double edge = largest / deviation;
    for (const bool above : {false, true}) {
      prepared again(m, samples);
      const bool applied =
          again.correct(samples, {.kind = kind, .threshold = edge * (above ? 1.001 : 0.999)})
              .at(0)
              .applied;
      CHECK(applied == above);
      CHECK(again.bias("a").size() == (above ? 4 : 0));
    }
  }
}

namespace {

/// Shared weights, a branch, a Concat, a layer without a bias, a result that is used and returned.
graph::model branches(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  std::string a = random_layer(r, conv("a", 4, 3, 3, 1, 1)).add_to(b, "x");
  const std::string stem = b.add("Relu", {a});
  const plain_layer shared = random_layer(r, conv("left", 4, 4, 3, 1, 1));
  const std::string left = shared.add_to(b, stem);
  const std::string right =
      b.add("Conv", {left, "left_w", "left_b"}, {{"pads", test::list({1, 1, 1, 1})}});
  b.get().nodes.back().name = "right";
  b.output(left);  // and used further
  const std::string sum = b.add("Relu", {b.add("Add", {right, stem})});
  const std::string point = random_layer(r, conv("point", 5, 4, 1), false).add_to(b, sum);
  const std::string joined = b.add("Concat", {sum, point}, {{"axis", number(1)}});
  const std::string deep = random_layer(r, conv("depthwise", 9, 9, 3, 9, 1)).add_to(b, joined);
  const std::string pooled =
      b.add("Flatten", {b.add("GlobalAveragePool", {b.add("Relu", {deep})})});
  b.output(random_layer(r, gemm("class", 6, 9, false)).add_to(b, pooled));
  return b.get();
}

const char* const branch_layers[] = {"a", "left", "right", "point", "depthwise", "class"};

/// What a layer of a model computes, over all samples.
images result_of(graph::model m, const std::string& layer, const std::vector<sample>& samples,
                 bool integer) {
  const std::string value = named(m, layer).outputs[0];
  m.outputs = {{value, element_type::f32, false, {}, {}}};
  graph::remove_unused(m);
  return test::images_of(
      outputs_of(graph::for_execution(std::move(m), integer), test::one_batch(samples)[0])[0]);
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = (std::max)(most, std::fabs(a[i] - b[i]));
  }
  return most;
}

}  // namespace

TEST_CASE("bias correction: full, the means of channels are those of the float network") {
  for (std::uint64_t seed = 120; seed < 124; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = branches(r);
    const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 6);
    for (const bool per_channel : {true, false}) {
      INFO("per channel ", per_channel);
      const graph::static_quantization_options plain{.weights = {.per_channel = per_channel}};
      graph::static_quantization_options corrected = plain;
      corrected.bias.kind = bias_correction::full;
      const auto source = test::samples_source(samples);
      const graph::quantization before = graph::static_quantization(m, source, plain);
      const graph::quantization after = graph::static_quantization(m, source, corrected);
      double gain = 0.0;
      for (const char* name : branch_layers) {
        INFO("layer ", name);
        const std::vector<double> real = result_of(m, name, samples, false).means();
        const double far = farthest(result_of(after.result, name, samples, true).means(), real);
        gain += farthest(result_of(before.result, name, samples, true).means(), real) - far;
        std::size_t index = 0;
        for (const std::size_t i : after.plan.layers()) {
          index = after.plan.float_model().nodes[i].name == name ? i : index;
        }
        const graph::layer_weights& w = after.parameters.layers.at(index);
        const float x_scale =
            after.parameters.activations.at(after.plan.float_model().nodes[index].inputs[0]).scale;
        const double step = static_cast<double>(x_scale) * static_cast<double>(*std::max_element(
                                                               w.scales.begin(), w.scales.end()));
        CHECK(far <= step + 1e-6);
      }
      CHECK(gain > 0.002);
    }
  }
}

TEST_CASE("bias correction: full by NNCF's rule, with weights rounded and activations float") {
  for (std::uint64_t seed = 130; seed < 133; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = branches(r);
    const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 6);
    prepared p(m, samples);
    const auto shifts =
        p.correct(samples, {.kind = bias_correction::full, .rule = bias_correction_rule::nncf});
    CHECK(find(shifts, "point") == nullptr);  // it has no bias
    graph::model rounded = p.plan.float_model();
    for (const auto& [i, w] : p.parameters.layers) {
      const std::string name = graph::unused_names(rounded).take("rounded");
      tensor values = tensor::allocate(element_type::f32, w.codes.dims());
      std::size_t inner = 1;
      for (std::size_t d = w.axis + 1; d < w.codes.rank(); ++d) {
        inner *= static_cast<std::size_t>(w.codes.dim(d));
      }
      for (std::size_t k = 0; k < values.count(); ++k) {
        values.mutable_data<float>()[k] = w.scales[k / inner % w.scales.size()] *
                                          static_cast<float>(w.codes.data<std::int8_t>()[k]);
      }
      rounded.initializers[name] = values;
      rounded.nodes[i].inputs[1] = name;
    }
    for (const char* name : branch_layers) {
      INFO("layer ", name);
      if (std::string(name) == "point") {
        continue;
      }
      REQUIRE(find(shifts, name) != nullptr);
      CHECK(find(shifts, name)->applied);
      CHECK(farthest(result_of(rounded, name, samples, false).means(),
                     result_of(m, name, samples, false).means()) < 1e-5);
    }
    // Layers that share their constants have biases of their own now.
    CHECK(p.bias("left") != p.bias("right"));
    CHECK(p.bias("point").empty());
  }
}

TEST_CASE("bias correction: how samples are cut does not matter, how many does") {
  test::random_source r(140);
  INFO("seed ", r.seed());
  const graph::model m = branches(r);
  const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 6);
  const std::vector<sample> three(samples.begin(), samples.begin() + 3);
  for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
    for (const bias_correction_rule rule :
         {bias_correction_rule::absolute, bias_correction_rule::nncf}) {
      const bias_correction_options options{.kind = kind, .rule = rule};
      const auto of = [&](const std::vector<sample>& some, std::size_t max_samples) {
        prepared p(m, samples);
        bias_correction_options o = options;
        o.max_samples = max_samples;
        std::vector<float> all;
        for (const auto& s : p.correct(some, o)) {
          all.insert(all.end(), s.shift.begin(), s.shift.end());
        }
        for (const char* name : branch_layers) {
          const auto b = p.bias(name);
          all.insert(all.end(), b.begin(), b.end());
        }
        return all;
      };
      const std::vector<float> one_by_one = of(samples, 0);
      CHECK(test::difference(of(test::one_batch(samples), 0), one_by_one) == "");
      CHECK(test::difference(of(samples, 6), one_by_one) == "");
      CHECK(test::difference(of(samples, 100), one_by_one) == "");
      const std::vector<float> first_three = of(three, 0);
      CHECK(test::difference(of(samples, 3), first_three) == "");
      CHECK(test::difference(first_three, one_by_one) != "");
    }
  }
}

TEST_CASE("bias correction: a bias that is added behind a product") {
  test::random_source r(77);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, 9});
  const auto weights = [&](const char* name, shape dims) {
    return b.constant(name, random_floats(r, std::move(dims), -1.0F, 1.0F));
  };
  std::string y = b.add("MatMul", {"x", weights("w", {9, 7})});
  y = b.add("Relu", {b.add("Add", {weights("b", {1, 7}), y})});
  b.output(b.add("MatMul", {y, weights("v", {7, 4})}));  // without a bias
  const auto samples = samples_of_x(r, {4, 3, 9}, 5, 0.0F, 1.0F);
  graph::static_quantization_options coarse;
  coarse.weights.bits = 3;
  const graph::quantization plain =
      graph::static_quantization(b.get(), samples_source(samples), coarse);
  for (const auto kind : {bias_correction::fast, bias_correction::full}) {
    INFO("kind ", static_cast<int>(kind));
    graph::quantization_plan plan = plain.plan;
    const auto before = doubles(*plan.bias(0));
    const auto shifts =
        graph::correct_biases(plan, plain.parameters, samples_source(samples), {.kind = kind});
    REQUIRE(shifts.size() == 1);
    CHECK(shifts[0].node == plan.float_model().nodes[0].label());
    REQUIRE(shifts[0].applied);
    const auto after = doubles(*plan.bias(0));
    for (std::size_t c = 0; c < 7; ++c) {
      CHECK(after[c] == doctest::Approx(before[c] + shifts[0].shift[c]));
    }
    // The mean of each channel is that of the float network, where inputs alone are rounded.
    const auto means_of = [&](const graph::quantization_plan& p, bool quantized) {
      graph::model m = quantized ? graph::write_qdq(p, plain.parameters) : p.float_model();
      const std::string sum = p.float_model().nodes[1].outputs[0];
      m.outputs = {{sum, element_type::f32, false, {}, {}}};
      graph::remove_unused(m);
      std::vector<double> means(7, 0.0);
      graph::executor run(m);
      for (const sample& s : samples) {
        const auto values = doubles(run.run(s)[0]);
        for (std::size_t i = 0; i < values.size(); ++i) {
          means[i % 7] += values[i] / 60.0;
        }
      }
      return means;
    };
    const auto real = means_of(plain.plan, false);
    const auto uncorrected = means_of(plain.plan, true);
    const auto corrected = means_of(plan, true);
    double error_before = 0.0;
    for (std::size_t c = 0; c < 7; ++c) {
      CHECK(std::fabs(corrected[c] - real[c]) < 0.002);
      error_before += std::fabs(uncorrected[c] - real[c]);
    }
    CHECK(error_before > 0.1);
    // What is left in float has its bias as it was, also if first its Add is left out.
    if (kind == bias_correction::full) {
      plan.leave_out({1});
      CHECK(plan.values().count(plan.float_model().nodes[0].outputs[0]) == 0);
      CHECK(plan.bias(0) == nullptr);
    }
    plan.leave_out({0});
    CHECK(plan.float_model().nodes[0].inputs.size() == 2);
    CHECK(doubles(*plain.plan.bias(0)) ==
          doubles(plan.float_model().initializers.at(plan.float_model().nodes[1].inputs[0])));
  }
  graph::quantization_plan plan = plain.plan;
  CHECK(graph::correct_biases(plan, plain.parameters, samples_source(samples),
                              {.kind = bias_correction::fast, .rule = bias_correction_rule::nncf})
            .empty());
  test::check_graph_error(detent::error_kind::invalid_argument, {"has no bias"}, [&] {
    plan.set_bias(3, floats({4}, {0.0F, 0.0F, 0.0F, 0.0F}));
  });
}

TEST_CASE("bias correction: a product that takes vectors") {
  test::random_source r(78);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {9});
  b.output(
      b.add("Add", {b.add("MatMul", {"x", b.constant("w", random_floats(r, {9, 7}, -1.0F, 1.0F))}),
                    b.constant("b", random_floats(r, {7}, -1.0F, 1.0F))}));
  const auto samples = samples_of_x(r, {9}, 40, 0.0F, 1.0F);
  graph::static_quantization_options coarse;
  coarse.weights.bits = 3;
  const graph::quantization q =
      graph::static_quantization(b.get(), samples_source(samples), coarse);
  for (const auto kind : {bias_correction::fast, bias_correction::full}) {
    INFO("kind ", static_cast<int>(kind));
    graph::quantization_plan plan = q.plan;
    const auto shifts =
        graph::correct_biases(plan, q.parameters, samples_source(samples), {.kind = kind});
    REQUIRE(shifts.size() == 1);
    CHECK(shifts[0].applied);
    // The mean that the rounded weights move each column by.
    graph::executor real(b.get());
    graph::executor rounded(graph::write_qdq(q.plan, q.parameters));
    std::vector<double> moved(7, 0.0);
    for (const sample& s : samples) {
      const auto wanted = doubles(real.run(s)[0]);
      const auto found = doubles(rounded.run(s)[0]);
      for (std::size_t c = 0; c < 7; ++c) {
        moved[c] += (wanted[c] - found[c]) / 40.0;
      }
    }
    for (std::size_t c = 0; c < 7; ++c) {
      CHECK(std::fabs(shifts[0].shift[c] - moved[c]) < 0.01);
    }
  }
}

TEST_CASE("bias correction: a bias that two products share and the graph returns") {
  test::random_source r(79);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 2, 9});
  b.constant("b", random_floats(r, {7}, -1.0F, 1.0F));
  const auto product = [&](const std::string& x, const char* name, std::int64_t rows) {
    b.constant(name, random_floats(r, {rows, 7}, -1.0F, 1.0F));
    return b.add("Add", {b.add("MatMul", {x, name}), "b"});
  };
  b.output(product(b.add("Relu", {product("x", "w", 9)}), "v", 7));
  b.output("b");
  const auto samples = samples_of_x(r, {4, 2, 9}, 8, 0.0F, 1.0F);
  graph::static_quantization_options coarse;
  coarse.weights.bits = 3;
  const graph::quantization q =
      graph::static_quantization(b.get(), samples_source(samples), coarse);
  const std::vector<double> shared = doubles(b.get().initializers.at("b"));
  for (const auto kind : {bias_correction::fast, bias_correction::full}) {
    INFO("kind ", static_cast<int>(kind));
    graph::quantization_plan plan = q.plan;
    const auto shifts =
        graph::correct_biases(plan, q.parameters, samples_source(samples), {.kind = kind});
    REQUIRE(shifts.size() == 2);
    std::vector<std::vector<double>> own;
    for (const std::size_t i : plan.layers()) {
      CHECK(plan.float_model().nodes[i].is("MatMul"));
      own.push_back(doubles(*plan.bias(i)));
    }
    REQUIRE(own.size() == 2);
    for (std::size_t k = 0; k < 2; ++k) {
      REQUIRE(shifts[k].applied);
      for (std::size_t c = 0; c < 7; ++c) {
        CHECK(own[k][c] == doctest::Approx(shared[c] + shifts[k].shift[c]));
      }
    }
    CHECK(own[0] != own[1]);
    // The graph returns the bias as it was, in the file and in the executor.
    const graph::model written = graph::write_qdq(plan, q.parameters);
    CHECK(doubles(graph::executor(written).run(samples[0])[1]) == shared);
    CHECK(doubles(graph::executor(graph::for_execution(written)).run(samples[0])[1]) == shared);
  }
}

TEST_CASE("bias correction: a product that a branch of an If takes keeps its Add") {
  test::random_source r(80);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 2, 9});
  b.input("flag", {}, element_type::boolean);
  const std::string product =
      b.add("MatMul", {"x", b.constant("w", random_floats(r, {9, 7}, -1.0F, 1.0F))});
  b.output(b.add("Add", {product, b.constant("b", random_floats(r, {7}, -1.0F, 1.0F))}));
  const auto branch = [&](const char* op) {
    graph::node n;
    n.op_type = op;
    n.name = op;
    n.inputs = {product};
    n.outputs = {"in_branch"};
    graph::graph_body body;
    body.nodes = {n};
    body.outputs = {{"in_branch", element_type::f32, false, {}, {}}};
    return attribute::of(std::move(body));
  };
  b.output(b.add("If", {"flag"}, {{"then_branch", branch("Neg")}, {"else_branch", branch("Abs")}}));
  std::vector<sample> samples = samples_of_x(r, {4, 2, 9}, 6, 0.0F, 1.0F);
  for (std::size_t k = 0; k < samples.size(); ++k) {
    samples[k]["flag"] = test::make_tensor<std::uint8_t>(element_type::boolean, {},
                                                         {static_cast<std::uint8_t>(k % 2)});
  }
  const graph::quantization q = graph::static_quantization(b.get(), samples_source(samples), {});
  CHECK(q.plan.bias(0) == nullptr);
  graph::quantization_plan plan = q.plan;
  CHECK(graph::correct_biases(plan, q.parameters, samples_source(samples),
                              {.kind = bias_correction::fast})
            .empty());
  graph::executor real(b.get());
  graph::executor quantized(graph::for_execution(graph::write_qdq(q.plan, q.parameters)));
  for (const sample& s : samples) {
    const auto wanted = real.run(s);
    const auto found = quantized.run(s);
    for (std::size_t o = 0; o < 2; ++o) {
      const auto a = doubles(wanted[o]);
      const auto c = doubles(found[o]);
      REQUIRE(a.size() == c.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        CHECK(std::fabs(a[i] - c[i]) < 0.1);
      }
    }
  }
}

TEST_CASE("bias correction: a value that a convolution and a product take") {
  for (const bool product_first : {false, true}) {
    INFO("product first: ", product_first);
    test::random_source r(79);
    model_builder b;
    b.input("x", {-1, 6, 16});
    const auto convolve = [&] {
      b.output(b.add("Conv",
                     {"x", b.constant("k", random_floats(r, {4, 6, 3}, -1.0F, 1.0F)),
                      b.constant("c", random_floats(r, {4}, -1.0F, 1.0F))},
                     {{"pads", list({1, 1})}}));
    };
    const auto multiply = [&] {
      b.output(b.add(
          "Add", {b.add("MatMul", {"x", b.constant("w", random_floats(r, {16, 7}, -1.0F, 1.0F))}),
                  b.constant("b", random_floats(r, {7}, -1.0F, 1.0F))}));
    };
    if (product_first) {
      multiply();
      convolve();
    } else {
      convolve();
      multiply();
    }
    // The columns have means from 0 to 15, the channels the same ones.
    std::vector<sample> samples;
    for (int i = 0; i < 20; ++i) {
      std::vector<float> x = r.reals(2 * 6 * 16, -0.5F, 0.5F);
      for (std::size_t k = 0; k < x.size(); ++k) {
        x[k] += static_cast<float>(k % 16);
      }
      samples.push_back({{"x", floats({2, 6, 16}, x)}});
    }
    graph::static_quantization_options coarse;
    coarse.weights.bits = 3;
    graph::quantization q = graph::static_quantization(b.get(), samples_source(samples), coarse);
    const auto shifts = graph::correct_biases(q.plan, q.parameters, samples_source(samples),
                                              {.kind = bias_correction::fast});
    REQUIRE(shifts.size() == 2);
    graph::executor real(b.get());
    graph::executor rounded(graph::write_qdq(q.plan, q.parameters));
    const std::size_t output = product_first ? 0 : 1;
    std::vector<double> apart(7, 0.0);
    for (const sample& s : samples) {
      const auto wanted = doubles(real.run(s)[output]);
      const auto found = doubles(rounded.run(s)[output]);
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        apart[k % 7] += (wanted[k] - found[k]) / 240.0;
      }
    }
    // Activations are rounded, too, to steps of about 1/16: their errors hardly move a mean.
    const graph::bias_shift& shift = shifts[output];
    for (std::size_t c = 0; c < 7; ++c) {
      CHECK(std::fabs(apart[c] - (shift.applied ? 0.0 : shift.shift[c])) < 0.1);
    }
    CHECK(std::fabs(shift.shift[0]) + std::fabs(shift.shift[1]) > 0.2);
  }
}

TEST_CASE("bias correction: none, and no samples") {
  test::random_source r(150);
  const graph::model m = branches(r);
  const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 1);
  prepared p(m, samples);
  const std::vector<float> before = p.bias("a");
  CHECK(p.correct(samples, {.kind = bias_correction::none}).empty());
  CHECK(p.bias("a") == before);
  for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
    test::check_graph_error(error_kind::invalid_argument, {"no calibration samples"},
                            [&] { static_cast<void>(p.correct({}, {.kind = kind})); });
  }
  // From means that were collected before.
  const graph::layer_means none(p.plan);
  const auto correct = [&](bias_correction kind) {
    static_cast<void>(graph::correct_biases(p.plan, p.parameters, none, {.kind = kind}));
  };
  test::check_graph_error(error_kind::invalid_argument, {"no calibration samples"},
                          [&] { correct(bias_correction::fast); });
  test::check_graph_error(error_kind::invalid_argument, {"full", "without samples"},
                          [&] { correct(bias_correction::full); });
}

TEST_CASE("bias correction: only shapes of the last dimension are summed in products") {
  // MatMul of rank 3 has no bias; ranks of 2 become Gemm, which can have one.
  test::random_source r(151);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 4, 7});
  b.constant("w", random_floats(r, {7, 5}, -1.0F, 1.0F));
  b.output(b.add("MatMul", {"x", "w"}));
  const auto samples = test::samples_of_x(r, {2, 4, 7}, 3);
  prepared p(b.get(), samples);
  CHECK(p.plan.layers().size() == 1);
  CHECK(p.correct(samples, {.kind = bias_correction::full}).empty());
  CHECK(p.correct(samples, {.kind = bias_correction::fast}).empty());

  model_builder flat;
  flat.input("x", {-1, 7});
  flat.constant("w", random_floats(r, {7, 5}, -1.0F, 1.0F));
  flat.output(flat.add("MatMul", {"x", "w"}));
  const auto rows = test::samples_of_x(r, {1, 7}, 8);
  prepared q(flat.get(), rows);
  CHECK(q.correct(rows, {.kind = bias_correction::full}).size() == 1);
  CHECK(q.bias("MatMul_0").size() == 5);
}

TEST_CASE("static quantization takes bias correction back where the outputs get worse") {
  int taken_back = 0;
  int kept = 0;
  for (std::uint64_t seed = 820; seed < 844; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    model_builder b;
    std::string x = b.input("x", {-1, 4, 5, 5});
    for (int i = 0; i < 3; ++i) {
      const std::string w = "w" + std::to_string(i);
      b.constant(w, random_floats(r, {4, 4, 3, 3}, -0.5F, 0.5F));
      x = b.add("Relu", {b.add("Conv", {x, w}, {{"pads", list({1, 1, 1, 1})}})});
    }
    b.output(x);
    const graph::model& m = b.get();
    const auto source = samples_source(samples_of_x(r, {1, 4, 5, 5}, 4));
    const graph::output_judge judge(m, source, 4);
    const graph::model plain = graph::static_quantization(m, source).result;
    const double noise = judge.noise_to_signal(plain);
    for (const bias_correction kind : {bias_correction::fast, bias_correction::full}) {
      graph::static_quantization_options options{.bias = {.kind = kind}};
      const graph::quantization judged = graph::static_quantization(m, source, options);
      options.judge_samples = 0;
      const graph::quantization always = graph::static_quantization(m, source, options);
      CHECK(!always.bias_correction_taken_back);
      CHECK(judged.bias_correction_taken_back == (judge.noise_to_signal(always.result) > noise));
      CHECK(graph::to_onnx(judged.result) ==
            graph::to_onnx(judged.bias_correction_taken_back ? plain : always.result));
      ++(judged.bias_correction_taken_back ? taken_back : kept);
    }
  }
  CHECK(taken_back > 0);
  CHECK(kept > 0);
}
