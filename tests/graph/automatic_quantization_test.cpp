// SPDX-License-Identifier: BSD-3-Clause
// Automatic quantization: what it repairs, what it promises, what it tells.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/automatic_quantization.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/parallel.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using detent::error_kind;
using graph::element_type;
using graph::shape;
using graph::tensor;
using test::check_graph_error;
using test::list;
using test::model_builder;
using test::number;
using test::random_floats;
using test::sample;

constexpr std::int64_t channels = 8;

/// Depthwise and pointwise layers in turn, and a classifier.
graph::model depthwise_network(test::random_source& r, bool softmax = false) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  std::string y = "x";
  const auto conv = [&](const std::string& name, std::int64_t in, std::int64_t group,
                        std::int64_t kernel) {
    const float size = std::sqrt(3.0F / static_cast<float>(in / group * kernel * kernel));
    const std::int64_t pad = kernel / 2;
    b.constant(name + "_w", random_floats(r, {channels, in / group, kernel, kernel}, -size, size));
    b.constant(name + "_b", random_floats(r, {channels}, -0.1F, 0.3F));
    y = b.add("Conv", {y, name + "_w", name + "_b"},
              {{"group", number(group)}, {"pads", list({pad, pad, pad, pad})}});
    b.get().nodes.back().name = name;
    y = b.add("Relu", {y});
  };
  conv("stem", 3, 1, 3);
  conv("depthwise1", channels, channels, 3);
  conv("pointwise1", channels, 1, 1);
  conv("depthwise2", channels, channels, 3);
  conv("pointwise2", channels, 1, 1);
  y = b.add("Flatten", {b.add("GlobalAveragePool", {y})});
  b.constant("class_w", random_floats(r, {channels, 5}, -1.0F, 1.0F));
  b.constant("class_b", random_floats(r, {5}, -0.5F, 0.5F));
  y = b.add("Gemm", {y, "class_w", "class_b"});
  b.get().nodes.back().name = "class";
  b.output(softmax ? b.add("Softmax", {y}, {{"axis", number(1)}}) : y);
  return b.get();
}

/// Channel c between two layers times 2^e before, and divided by it behind: the network computes
/// the same bits. The ranges of a tensor's channels differ by up to 1024.
void distort(graph::model& m, test::random_source& r) {
  const char* const layers[] = {"stem", "depthwise1", "pointwise1", "depthwise2", "pointwise2"};
  for (std::size_t i = 0; i + 1 < std::size(layers); ++i) {
    const bool depthwise = std::string(layers[i + 1]).rfind("depthwise", 0) == 0;
    tensor& before = m.initializers.at(std::string(layers[i]) + "_w");
    tensor& bias = m.initializers.at(std::string(layers[i]) + "_b");
    tensor& behind = m.initializers.at(std::string(layers[i + 1]) + "_w");
    before = test::floats(before.dims(), test::values_of<float>(before));
    bias = test::floats(bias.dims(), test::values_of<float>(bias));
    behind = test::floats(behind.dims(), test::values_of<float>(behind));
    for (std::size_t c = 0; c < channels; ++c) {
      const int exponent = c == 0 ? 5 : c == 1 ? -5 : r.integer(-5, 5);
      const float factor = std::ldexp(1.0F, exponent);
      const std::size_t filter = before.count() / channels;
      for (std::size_t k = 0; k < filter; ++k) {
        before.mutable_data<float>()[c * filter + k] *= factor;
      }
      bias.mutable_data<float>()[c] *= factor;
      const std::size_t size = behind.count() / channels;
      for (std::size_t k = 0; k < behind.count(); ++k) {
        const std::size_t input = depthwise ? k / size : k % channels;
        if (input == c) {
          behind.mutable_data<float>()[k] /= factor;
        }
      }
    }
  }
}

double snr(const graph::model& real, const graph::model& quantized,
           const std::vector<sample>& samples) {
  const graph::output_judge judge(real, test::samples_source(samples), samples.size());
  return judge.errors(quantized).at(0).snr_db();
}

TEST_CASE("automatic: what is said of single operators and activations stays as it is said") {
  test::random_source r(911);
  INFO("seed ", r.seed());
  const graph::model m = depthwise_network(r);
  const auto source = test::samples_source(test::samples_of_x(r, {2, 3, 8, 8}, 10));
  graph::automatic_quantization_options options;
  options.weights.reduce_range = true;
  options.scope.operators.names = {{"pointwise1", {.weight_bits = 4, .method = "kl"}},
                                   {"depthwise2", {.quantize = false}}};
  options.activations.overrides["x"].range = detent::value_range{-2.0F, 2.0F};
  std::map<std::string, std::string> methods;
  options.activations.on_parameters = [&](const std::string& value, const std::string& method,
                                          const detent::scale_solution&) {
    methods[value] = method;
  };
  const graph::quantization q = graph::automatic_quantization(m, source, options);
  CHECK(q.parameters.activations.at("x").scale == 4.0F / 255.0F);
  int layers = 0;
  for (const auto& [i, weights] : q.parameters.layers) {
    const graph::node& n = q.plan.float_model().nodes[i];
    int largest = 0;
    for (const std::int8_t code : weights.codes.data<std::int8_t>()) {
      largest = (std::max)(largest, std::abs(int{code}));
    }
    CAPTURE(n.name);
    CHECK(n.name != "depthwise2");
    CHECK(largest <= (n.name == "pointwise1" ? 7 : 64));
    CHECK(largest > 3);
    if (n.name == "pointwise1") {
      CHECK(methods.at(n.inputs[0]) == "kl");
    }
    ++layers;
  }
  CHECK(layers == 5);

  options.activations.overrides["nowhere"].method = "kl";
  check_graph_error(error_kind::invalid_argument, {"'nowhere'", "not quantized"},
                    [&] { static_cast<void>(graph::automatic_quantization(m, source, options)); });
}

}  // namespace

TEST_CASE("automatic: brings back a network whose channels have ranges 1000 times apart") {
  for (std::uint64_t seed = 400; seed < 403; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model good = depthwise_network(r);
    graph::model bad = good;
    distort(bad, r);
    const auto samples = test::samples_of_x(r, {2, 3, 8, 8}, 8);
    const auto others = test::samples_of_x(r, {2, 3, 8, 8}, 24);
    const auto source = test::samples_source(samples);
    CHECK(snr(good, bad, others) > 120.0);  // they compute the same
    const graph::static_quantization_options plain{.weights = {.per_channel = false}};
    const double of_good =
        snr(good, graph::static_quantization(good, source, plain).result, others);
    const double of_bad = snr(good, graph::static_quantization(bad, source, plain).result, others);
    bool equalized = false;
    const double repaired =
        snr(good,
            graph::automatic_quantization(bad, source,
                                          {.weights = {.per_channel = false},
                                           .on_step =
                                               [&](const graph::quantization_step& s) {
                                                 equalized = equalized ||
                                                             (s.name == "equalization" && s.kept);
                                               }})
                .result,
            others);
    INFO("undistorted ", of_good, " dB, distorted ", of_bad, " dB, automatic ", repaired, " dB");
    CHECK(of_bad < of_good - 10.0);
    CHECK(equalized);
    CHECK(repaired > of_good - 1.0);
  }
}

namespace {

/// The steps of the names in `wanted` that a search keeps, and the SNR of its result, with plain
/// ranges and rounding otherwise.
struct search_outcome {
  std::set<std::string> tried;
  std::set<std::string> kept;
  double plain = 0.0;
  double automatic = 0.0;
};
search_outcome search(const graph::model& m, const std::vector<sample>& samples,
                      const std::vector<sample>& others,
                      const graph::activation_options& activations = {}) {
  search_outcome outcome;
  const auto source = test::samples_source(samples);
  graph::automatic_quantization_options options;
  options.methods = {"minmax"};
  options.activations = activations;
  options.rounding.reset();
  options.on_step = [&](const graph::quantization_step& s) {
    outcome.tried.insert(s.name);
    if (s.kept) {
      outcome.kept.insert(s.name);
    }
  };
  outcome.automatic = snr(m, graph::automatic_quantization(m, source, options).result, others);
  outcome.plain =
      snr(m, graph::static_quantization(m, source, {.activations = activations}).result, others);
  return outcome;
}

/// A block of a transformer without its attention: a normalization whose result goes to a layer and
/// past it, and two layers behind it. Two features of the normalization are `factor` times as large
/// as the others, and their weights that much smaller.
graph::model normalized_network(test::random_source& r, float factor) {
  constexpr std::int64_t features = 16;
  model_builder b;
  b.input("x", {-1, 4, features});
  tensor scale = random_floats(r, {features}, 0.8F, 1.2F);
  tensor weights = random_floats(r, {features, 24}, -0.5F, 0.5F);
  for (const std::size_t j : {std::size_t{3}, std::size_t{9}}) {
    scale.mutable_data<float>()[j] *= factor;
    for (std::size_t k = 0; k < 24; ++k) {
      weights.mutable_data<float>()[j * 24 + k] /= factor;
    }
  }
  b.constant("scale", scale);
  b.constant("shift", random_floats(r, {features}, -0.1F, 0.1F));
  const std::string normalized = b.add("LayerNormalization", {"x", "scale", "shift"});
  b.constant("w1", weights);
  const std::string up = b.add("MatMul", {normalized, "w1"});
  b.constant("w2", random_floats(r, {24, features}, -0.3F, 0.3F));
  const std::string down = b.add("MatMul", {b.add("Relu", {up}), "w2"});
  b.constant("past", random_floats(r, {features}, -0.01F, 0.01F));
  b.output(b.add("Add", {down, b.add("Mul", {normalized, "past"})}));
  return b.get();
}

}  // namespace

TEST_CASE("automatic: SmoothQuant where the features behind a normalization differ in size") {
  for (std::uint64_t seed = 404; seed < 407; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = normalized_network(r, 64.0F);
    const auto samples = test::samples_of_x(r, {2, 4, 16}, 12);
    const auto others = test::samples_of_x(r, {2, 4, 16}, 12);
    const search_outcome outcome = search(m, samples, others);
    INFO("plain ", outcome.plain, " dB, automatic ", outcome.automatic, " dB");
    CHECK(outcome.tried.count("SmoothQuant: alpha 0.5") == 1);
    CHECK(outcome.tried.count("SmoothQuant: alpha 0.8") == 1);
    CHECK(outcome.kept.count("SmoothQuant: alpha 0.5") == 1);
    CHECK(outcome.automatic > outcome.plain + 6.0);

    // A range that the caller gives stays the range of that value: it is not smoothed.
    graph::activation_options given;
    given.overrides[m.nodes[0].outputs[0]].range = detent::value_range{-200.0F, 200.0F};
    CHECK(search(m, samples, others, given).tried.count("SmoothQuant: alpha 0.5") == 0);
  }
  // Between two layers, and at the input of the graph, there is nothing for it to do.
  test::random_source r(407);
  const graph::model m = depthwise_network(r);
  const auto others = test::samples_of_x(r, {1, 3, 8, 8}, 4);
  const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 8);
  const search_outcome outcome = search(m, samples, others);
  CHECK(outcome.tried.count("SmoothQuant: alpha 0.5") == 0);
  CHECK(outcome.tried.count("channel alignment") == 0);
}

TEST_CASE("automatic: channel alignment where the channels of two convolutions are far apart") {
  for (std::uint64_t seed = 450; seed < 453; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    model_builder b;
    b.input("x", {-1, 3, 6, 6});
    b.constant("w1", random_floats(r, {8, 3, 3, 3}, -0.3F, 0.3F));
    b.constant("b1", random_floats(r, {8}, -40.0F, 40.0F));
    const std::string first = b.add("Conv", {"x", "w1", "b1"});
    b.constant("w2", random_floats(r, {5, 8, 1, 1}, -0.3F, 0.3F));
    // The second bias takes the constant part of the first layer's outputs away.
    tensor bias = tensor::allocate(element_type::f32, {5});
    for (std::size_t o = 0; o < 5; ++o) {
      float constant = 0.0F;
      for (std::size_t c = 0; c < 8; ++c) {
        constant += b.get().initializers.at("w2").data<float>()[o * 8 + c] *
                    b.get().initializers.at("b1").data<float>()[c];
      }
      bias.mutable_data<float>()[o] = -constant;
    }
    b.constant("b2", bias);
    b.output(b.add("Conv", {first, "w2", "b2"}));
    const auto others = test::samples_of_x(r, {1, 3, 6, 6}, 12);
    const auto samples = test::samples_of_x(r, {1, 3, 6, 6}, 12);
    const search_outcome outcome = search(b.get(), samples, others);
    INFO("plain ", outcome.plain, " dB, automatic ", outcome.automatic, " dB");
    CHECK(outcome.kept.count("channel alignment") == 1);
    CHECK(outcome.automatic > outcome.plain + 10.0);
  }
}

TEST_CASE("automatic: not worse than plain, and steps that tell the truth") {
  for (std::uint64_t seed = 410; seed < 414; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    graph::model m = depthwise_network(r, seed % 2 == 0);
    if (seed >= 412) {
      distort(m, r);
    }
    const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 10);
    const auto source = test::samples_source(samples);
    for (const bool per_channel : {true, false}) {
      for (const element_type type : {element_type::u8, element_type::s8}) {
        INFO("per channel ", per_channel, " ", graph::name(type));
        std::vector<graph::quantization_step> steps;
        std::set<std::string> told;
        const graph::quantization q = graph::automatic_quantization(
            m, source,
            {.activations = {.type = type,
                             .on_parameters =
                                 [&](const std::string& name, const std::string& method,
                                     const detent::scale_solution& s) {
                                   CHECK((method == "minmax" || method == "mse" ||
                                          method == "percentile"));
                                   CHECK(told.insert(name).second);
                                   CHECK(s.params.scale > 0.0F);
                                 }},
             .weights = {.per_channel = per_channel},
             .on_step = [&](const graph::quantization_step& s) { steps.push_back(s); }});
        const graph::model plain =
            graph::static_quantization(
                m, source, {.activations = {.type = type}, .weights = {.per_channel = per_channel}})
                .result;
        const graph::output_judge judge(m, source, 64);
        CHECK(judge.noise_to_signal(q.result) <= judge.noise_to_signal(plain));
        CHECK(q.parameters.activation_type == type);

        // Steps are tried with ranges of one half, and measured with the other.
        const graph::output_judge by_logits(m, graph::every_other_sample(source, true), 64, true);
        const graph::model plain_half =
            graph::static_quantization(
                m, graph::every_other_sample(source, false),
                {.activations = {.type = type}, .weights = {.per_channel = per_channel}})
                .result;
        REQUIRE(!steps.empty());
        CHECK(steps[0].name == "plain");
        CHECK(steps[0].kept);
        CHECK(steps[0].noise_after == by_logits.noise_to_signal(plain_half));
        double best = steps[0].noise_after;
        std::set<std::string> names;
        for (std::size_t i = 1; i < steps.size(); ++i) {
          INFO("step ", steps[i].name);
          CHECK(names.insert(steps[i].name).second);
          if (steps[i].name.rfind("result with ", 0) == 0) {
            CHECK(steps[i].kept == (steps[i].noise_after <= steps[i].noise_before));
            CHECK(steps[i].noise_before == judge.noise_to_signal(plain));
            continue;
          }
          if (steps[i].name == "result: plain min/max, on its own samples") {
            CHECK(steps[i].noise_after == judge.noise_to_signal(plain));
            continue;
          }
          CHECK(steps[i].noise_before == best);
          CHECK(steps[i].kept == (steps[i].noise_after < best));
          best = steps[i].kept ? steps[i].noise_after : best;
        }
        CHECK(steps.back().name.find("on its own samples") != std::string::npos);
        CHECK(steps.back().kept);
        CHECK(steps.back().noise_after == judge.noise_to_signal(q.result));
        for (const char* name :
             {"ranges: mse", "ranges: percentile", "weight scales of least squared error",
              "bias correction: fast", "bias correction: full"}) {
          CHECK(names.count(name) == 1);
        }
        CHECK(told.size() > 4);
        for (const std::string& name : told) {
          CHECK(q.plan.values().count(name) == 1);
        }
      }
    }
  }
}

TEST_CASE("automatic: deterministic, whatever the threads") {
  test::random_source r(420);
  INFO("seed ", r.seed());
  graph::model m = depthwise_network(r, true);
  distort(m, r);
  const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 6);
  const auto source = test::samples_source(samples);
  const std::string once = graph::to_onnx(graph::automatic_quantization(m, source).result);
  CHECK(graph::to_onnx(graph::automatic_quantization(m, source).result) == once);
  for (const std::size_t threads : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    detent::thread_pool pool(threads);
    graph::automatic_quantization_options options;
    options.executor.parallel = pool.parallel();
    CHECK(graph::to_onnx(graph::automatic_quantization(m, source, options).result) == once);
  }
}

TEST_CASE("automatic: a budget ends the search, and what is returned is not worse than plain") {
  for (std::uint64_t seed = 425; seed < 428; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    graph::model m = depthwise_network(r, seed % 2 == 0);
    distort(m, r);
    const auto source = test::samples_source(test::samples_of_x(r, {1, 3, 8, 8}, 10));
    const graph::output_judge judge(m, source, 64);
    const double plain = judge.noise_to_signal(graph::static_quantization(m, source).result);
    // A clock that goes on by a second whenever it is read.
    std::size_t reads = 0;
    bool ended = false;
    double last = 0.0;
    std::size_t steps = 0;
    std::size_t told = 0;
    const auto run = [&](double seconds) {
      graph::automatic_quantization_options options;
      options.budget.limit = graph::search_budget::seconds(seconds);
      options.budget.clock = [&] {
        return graph::search_budget::seconds(static_cast<double>(reads++));
      };
      options.on_step = [&](const graph::quantization_step& s) {
        CHECK(!(ended && s.is_end_of_budget));
        ended = ended || s.is_end_of_budget;
        last = s.kept ? s.noise_after : last;
        ++steps;
      };
      options.on_progress = [&](const graph::quantization_progress& p) {
        CHECK(!p.step.empty());
        CHECK((p.total == 0 || p.done <= p.total));
        ++told;
      };
      reads = 0;
      ended = false;
      steps = 0;
      return graph::automatic_quantization(m, source, options);
    };
    const graph::quantization whole = run(1e9);
    const std::size_t all = reads;
    CHECK(!ended);
    CHECK(told > steps);
    CHECK(all > 100);
    const graph::quantization unlimited = graph::automatic_quantization(m, source);
    CHECK(graph::to_onnx(whole.result) == graph::to_onnx(unlimited.result));
    for (const std::size_t share : {1U, 3U, 6U, 12U, 25U, 50U, 75U, 90U}) {
      const double budget = static_cast<double>(all * share) / 100.0;
      INFO("a budget of ", budget, " of ", all);
      const graph::quantization q = run(budget);
      CHECK(ended);
      CHECK(steps >= 2);
      CHECK(judge.noise_to_signal(q.result) <= plain);
      if (share >= 12) {
        CHECK(static_cast<double>(reads) <= 1.1 * budget);
      }
    }
  }
}

TEST_CASE("automatic: budgets that are none, and a clock that is not read without one") {
  test::random_source r(428);
  const graph::model m = depthwise_network(r);
  const auto source = test::samples_source(test::samples_of_x(r, {1, 3, 8, 8}, 2));
  graph::automatic_quantization_options options;
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    options.budget.limit = graph::search_budget::seconds(seconds);
    check_graph_error(error_kind::invalid_argument, {"a budget of"}, [&] {
      static_cast<void>(graph::automatic_quantization(m, source, options).result);
    });
  }
  options.budget.limit.reset();
  options.budget.clock = [] {
    FAIL("the clock was read");
    return graph::search_budget::seconds(0.0);
  };
  static_cast<void>(graph::automatic_quantization(m, source, options));
}

TEST_CASE("automatic: ignored nodes, by names that simplification merges") {
  test::random_source r(430);
  INFO("seed ", r.seed());
  graph::model m = depthwise_network(r);
  distort(m, r);
  // A batch normalization behind the first pointwise layer, which takes it in.
  for (const char* name : {"scale", "shift", "mean", "variance"}) {
    m.initializers[name] = random_floats(r, {channels}, 0.5F, 1.5F);
  }
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (m.nodes[i].name == "pointwise1") {
      graph::node bn;
      bn.op_type = "BatchNormalization";
      bn.name = "normalization";
      bn.outputs = m.nodes[i].outputs;
      m.nodes[i].outputs = {"before_normalization"};
      bn.inputs = {"before_normalization", "scale", "shift", "mean", "variance"};
      m.nodes.insert(m.nodes.begin() + static_cast<std::ptrdiff_t>(i) + 1, bn);
      break;
    }
  }
  const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 6);
  const auto source = test::samples_source(samples);
  const auto left = [&](const graph::ignored_scope& scope) {
    bool equalization = false;
    const graph::model q = graph::automatic_quantization(
                               m, source,
                               {.weights = {.per_channel = false},
                                .scope = {.ignored = scope},
                                .on_step =
                                    [&](const graph::quantization_step& s) {
                                      equalization = equalization || s.name == "equalization";
                                    }})
                               .result;
    CHECK(equalization);
    std::string names;
    for (const graph::node& n : q.nodes) {
      if ((n.is("Conv") || n.is("Gemm")) && q.initializer(n.inputs[1]) != nullptr) {
        names += n.name + " ";
      }
    }
    return names;
  };
  CHECK(left({}) == "");
  CHECK(left({.names = {"normalization"}}) == "pointwise1 ");
  CHECK(left({.names = {"pointwise1"}}) == "pointwise1 ");
  CHECK(left({.types = {"BatchNormalization"}, .last_layer = true}) == "pointwise1 class ");
  CHECK(left({.patterns = {"depth.*[12]"}, .first_layer = true}) == "stem depthwise1 depthwise2 ");
  check_graph_error(error_kind::invalid_argument, {"'nobody'"},
                    [&] { static_cast<void>(left({.names = {"nobody"}})); });
}

TEST_CASE("automatic: says no") {
  test::random_source r(440);
  const graph::model m = depthwise_network(r);
  const auto samples = test::samples_of_x(r, {1, 3, 8, 8}, 2);
  const auto source = test::samples_source(samples);
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"}, [&] {
    static_cast<void>(graph::automatic_quantization(m, test::samples_source({})).result);
  });
  check_graph_error(error_kind::unsupported, {"already quantized"}, [&] {
    static_cast<void>(
        graph::automatic_quantization(graph::static_quantization(m, source).result, source).result);
  });
  check_graph_error(error_kind::invalid_argument, {"'magic'", "minmax"}, [&] {
    static_cast<void>(graph::automatic_quantization(m, source, {.methods = {"magic"}}).result);
  });
  check_graph_error(error_kind::invalid_argument, {"float32", "uint8"}, [&] {
    static_cast<void>(
        graph::automatic_quantization(m, source, {.activations = {.type = element_type::f32}})
            .result);
  });
  graph::model shapes = m;
  graph::node shape_of;
  shape_of.op_type = "Shape";
  shape_of.inputs = {m.outputs[0].name};
  shape_of.outputs = {"shape"};
  shapes.nodes.push_back(shape_of);
  shapes.outputs = {{"shape", element_type::s64, false, {}, {}}};
  check_graph_error(error_kind::unsupported, {"no float tensor"}, [&] {
    static_cast<void>(graph::automatic_quantization(shapes, source).result);
  });
}

TEST_CASE("automatic: minmax named again is not tried again") {
  test::random_source r(450);
  const graph::model m = depthwise_network(r);
  const auto source = test::samples_source(test::samples_of_x(r, {1, 3, 8, 8}, 3));
  std::set<std::string> names;
  static_cast<void>(
      graph::automatic_quantization(
          m, source,
          {.methods = {"MinMax", "kl"},
           .on_step = [&](const graph::quantization_step& s) { names.insert(s.name); }})
          .result);
  CHECK(names.count("ranges: kl") == 1);
  for (const std::string& name : names) {
    CHECK(name.find("inmax") == std::string::npos);
  }
}

TEST_CASE("error analysis: signal and noise by hand") {
  graph::signal_error e;
  CHECK(e.noise_to_signal() == 0.0);
  CHECK(e.mean_squared_error() == 0.0);
  const std::vector<float> a{3.0F, -4.0F, 0.0F};
  const std::vector<float> b{3.0F, -3.0F, 2.0F};
  e.add(a, b);
  CHECK(e.count() == 3);
  CHECK(e.noise_to_signal() == 0.2);
  CHECK(e.snr_db() == doctest::Approx(10.0 * std::log10(5.0)).epsilon(1e-12));
  CHECK(e.mean_squared_error() == doctest::Approx(5.0 / 3.0).epsilon(1e-12));
  CHECK(e.cosine() == doctest::Approx(21.0 / std::sqrt(25.0 * 22.0)).epsilon(1e-12));
  CHECK(e.largest() == 2.0);
  // However the stream is cut.
  test::random_source r(451);
  const auto x = r.reals(1000, -1.0F, 1.0F);
  const auto y = r.reals(1000, -1.0F, 1.0F);
  graph::signal_error whole, pieces;
  whole.add(x, y);
  for (std::size_t i = 0; i < 1000; i += 125) {
    pieces.add({x.data() + i, 125}, {y.data() + i, 125});
  }
  CHECK(whole.noise_to_signal() == pieces.noise_to_signal());
  CHECK(whole.cosine() == pieces.cosine());
  // Noise without a signal.
  graph::signal_error nothing;
  nothing.add(std::vector<float>{0.0F}, std::vector<float>{1.0F});
  CHECK(std::isinf(nothing.noise_to_signal()));
  CHECK(nothing.cosine() == 0.0);
}

TEST_CASE("error analysis: several outputs are judged by the mean of their dB") {
  const std::vector<float> values{3.0F, -4.0F};
  // x, and x plus a constant for each output; the outputs of the other model add something to it.
  const auto model_with = [&](const std::vector<float>& added) {
    model_builder b;
    b.input("x", {2});
    for (std::size_t i = 0; i < added.size(); ++i) {
      b.output(b.add("Add", {"x", b.scalar("c" + std::to_string(i), added[i])}));
    }
    return b.get();
  };
  const auto source = test::samples_source({{{"x", test::floats({2}, values)}}});
  const auto noise = [&](const std::vector<float>& added) {
    const graph::model exact = model_with(std::vector<float>(added.size(), 0.0F));
    return graph::output_judge(exact, source, 1).noise_to_signal(model_with(added));
  };
  CHECK(noise({0.0F}) == 0.0);
  CHECK(noise({1.0F}) == 2.0 / 25.0);
  CHECK(noise({1.0F, 5.0F}) == doctest::Approx(std::sqrt(2.0 / 25.0 * 50.0 / 25.0)).epsilon(1e-12));
  CHECK(noise({1.0F, 5.0F, 0.5F}) ==
        doctest::Approx(std::cbrt(2.0 * 50.0 * 0.5 / 15625.0)).epsilon(1e-12));
  CHECK(noise({1.0F, 0.0F}) == doctest::Approx(std::sqrt(2.0 / 25.0 * 1e-12)).epsilon(1e-12));
  CHECK(std::isinf(noise({1.0F, std::numeric_limits<float>::quiet_NaN()})));
  CHECK(std::isinf(noise({std::numeric_limits<float>::infinity()})));
}

TEST_CASE("automatic: convolutions over volumes") {
  test::random_source r(77);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 2, 6, 6, 6});
  const std::string w = b.constant("w", random_floats(r, {6, 2, 3, 3, 3}, -0.3F, 0.3F));
  const std::string bias = b.constant("b", random_floats(r, {6}, -0.5F, 0.5F));
  const std::string hidden =
      b.add("Relu", {b.add("Conv", {"x", w, bias}, {{"pads", list({1, 1, 1, 1, 1, 1})}})});
  b.output(
      b.add("Conv", {hidden, b.constant("v", random_floats(r, {4, 6, 1, 1, 1}, -1.0F, 1.0F))}));
  const auto samples = test::samples_of_x(r, {2, 2, 6, 6, 6}, 4);
  const graph::quantization found =
      graph::automatic_quantization(b.get(), test::samples_source(samples));
  const graph::output_judge judge(b.get(), test::samples_source(samples), samples.size());
  CHECK(judge.errors(found.result).at(0).snr_db() > 30.0);
  const graph::model lowered = graph::for_execution(found.result);
  CHECK(std::count_if(lowered.nodes.begin(), lowered.nodes.end(), [](const graph::node& n) {
          return n.domain == "detent" && n.op_type == "QLinearConv";
        }) == 2);
}
