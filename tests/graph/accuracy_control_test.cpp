// SPDX-License-Identifier: BSD-3-Clause
// Accuracy control: which layers stay in float, and that the search goes as documented.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

#include "check_graph_error.hpp"
#include "compare_models.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

using namespace test;
using graph::trial_kind;

using names = std::vector<std::string>;

constexpr std::int64_t features = 12;

/// Layers "a", "b", ... with Relu between them. Feature 0 of all is 0; where the weights of layer
/// `ruined` take it, one is 1e5: of no effect, unless the weights have one scale.
graph::model network(test::random_source& r, int layers, int ruined) {
  model_builder b;
  std::string y = b.input("x", {-1, features});
  for (int i = 0; i < layers; ++i) {
    const std::string id(1, static_cast<char>('a' + i));
    tensor w = random_floats(r, {features, features}, -0.6F, 0.6F);
    tensor bias = random_floats(r, {features}, -0.1F, 0.3F);
    for (std::size_t k = 0; k < static_cast<std::size_t>(features) && i + 1 < layers; ++k) {
      w.mutable_data<float>()[k * static_cast<std::size_t>(features)] = 0.0F;
      bias.mutable_data<float>()[0] = 0.0F;
    }
    if (i == ruined) {
      w.mutable_data<float>()[5] = 1e5F;
    }
    y = b.add("Gemm", {y, b.constant("w" + id, w), b.constant("b" + id, bias)});
    b.get().nodes.back().name = id;
    if (i + 1 < layers) {
      y = b.add("Relu", {y});
    }
  }
  b.output(y);
  return b.get();
}

std::vector<tensors> inputs_of(test::random_source& r, int count) {
  std::vector<tensors> all;
  for (int i = 0; i < count; ++i) {
    tensor x = random_floats(r, {4, features}, -1.0F, 1.0F);
    for (std::size_t k = 0; k < x.count(); k += static_cast<std::size_t>(features)) {
      x.mutable_data<float>()[k] = 0.0F;
    }
    all.push_back({{"x", x}});
  }
  return all;
}

std::vector<float> results(const graph::model& m, const std::vector<tensors>& inputs) {
  graph::executor e(graph::for_execution(m));
  std::vector<float> all;
  for (const tensors& x : inputs) {
    const std::vector<float> y = test::values_of<float>(e.run(x)[0]);
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

/// How much of the variance of what a model makes another one has: 1 if it makes the same.
graph::model_metric likeness(const graph::model& m, const std::vector<tensors>& inputs) {
  return [expected = results(m, inputs), inputs](const graph::model& other) {
    const std::vector<float> actual = results(other, inputs);
    constexpr auto n = static_cast<std::size_t>(features);
    std::vector<double> sums(n, 0.0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      sums[i % n] += static_cast<double>(expected[i]);
    }
    double variance = 0.0;
    double error = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto e = static_cast<double>(expected[i]);
      const double mean =
          sums[i % n] * static_cast<double>(n) / static_cast<double>(expected.size());
      variance += (e - mean) * (e - mean);
      error += (e - static_cast<double>(actual[i])) * (e - static_cast<double>(actual[i]));
    }
    return 1.0 - error / variance;
  };
}

/// The names of the layers whose weights are float.
std::string float_layers(const graph::model& m) {
  const graph::links l(m);
  std::string all;
  for (const graph::node& n : m.nodes) {
    all += n.is("Gemm") && l.producer(n.inputs[1]) == graph::links::none ? n.name : "";
  }
  return all;
}

/// A metric that looks at nothing but which layers are float, and says what it was asked about.
struct scripted {
  std::map<std::string, double> metrics;
  std::vector<std::string> asked = {};

  double operator()(const graph::model& m) {
    asked.push_back(float_layers(m));
    REQUIRE(metrics.count(asked.back()) == 1);
    return metrics.at(asked.back());
  }
};

std::string short_names(const names& labels) {
  std::string all;
  for (const std::string& label : labels) {
    all += label.at(label.find('\'') + 1);
  }
  return all;
}

/// What was tried: the kind, what was in float, + for accepted, ! if the goal was met.
std::string story(const graph::accuracy_control_result& result) {
  std::string all;
  for (const graph::accuracy_trial& t : result.trials) {
    const char* kinds[] = {"all", "rank", "revert", "quantize"};
    all.append(all.empty() ? "" : " ").append(kinds[static_cast<std::size_t>(t.kind)]);
    all.append(":").append(short_names(t.left_in_float));
    all.append(t.accepted ? "+" : "").append(t.meets_goal ? "!" : "");
  }
  return all;
}

}  // namespace

TEST_CASE("accuracy goal: targets") {
  using graph::accuracy_goal;
  using graph::drop_type;
  struct goal_case {
    accuracy_goal goal;
    double base, target;
  };
  const goal_case cases[] = {
      {{0.01, drop_type::absolute, true}, 0.75, 0.74},
      {{0.01, drop_type::absolute, false}, 2.0, 2.01},
      {{0.25, drop_type::relative, true}, 0.5, 0.375},
      {{0.25, drop_type::relative, false}, 0.5, 0.625},
      {{0.25, drop_type::relative, true}, -4.0, -5.0},
      {{0.25, drop_type::relative, false}, -4.0, -3.0},
      {{-0.5, drop_type::absolute, true}, 1.0, 1.5},
  };
  for (const goal_case& c : cases) {
    INFO(c.base, " ", c.target);
    CHECK(c.goal.target(c.base) == doctest::Approx(c.target));
    const double target = c.goal.target(c.base);
    const double sign = c.goal.higher_is_better ? 1.0 : -1.0;
    CHECK(c.goal.is_met(c.base, target));
    CHECK(c.goal.is_met(c.base, target + sign * 1e-9));
    CHECK_FALSE(c.goal.is_met(c.base, target - sign * 1e-9));
    CHECK_FALSE(c.goal.is_met(c.base, std::numeric_limits<double>::quiet_NaN()));
    CHECK(c.goal.is_better(target + sign, target));
    CHECK_FALSE(c.goal.is_better(target, target));
    CHECK(c.goal.is_better(target, std::numeric_limits<double>::quiet_NaN()));
    CHECK_FALSE(c.goal.is_better(std::numeric_limits<double>::quiet_NaN(), target));
  }
}

TEST_CASE("accuracy control: the one layer that quantization ruins stays in float") {
  for (int ruined = 0; ruined < 5; ++ruined) {
    test::random_source r(300 + static_cast<std::uint64_t>(ruined));
    INFO("seed ", r.seed(), " layer ", ruined);
    const graph::model m = network(r, 5, ruined);
    const auto calibration = inputs_of(r, 30);
    const auto validation = inputs_of(r, 40);
    const graph::model_metric metric = likeness(m, validation);
    const std::string bad(1, static_cast<char>('a' + ruined));
    const graph::static_quantization_options per_tensor{
        .weights = {.per_channel = false}, .bias = {.kind = graph::bias_correction::fast}};
    for (const graph::layer_ranking ranking :
         {graph::layer_ranking::output_error, graph::layer_ranking::metric}) {
      std::size_t told = 0;
      const auto result = graph::quantize_with_accuracy_control(
          m, graph::nncf::dataset(calibration).samples(), metric,
          {.goal = {.max_drop = 0.1},
           .ranking = ranking,
           .on_trial = [&](const graph::accuracy_trial&) { ++told; }},
          per_tensor);
      INFO(story(result));
      CHECK(result.float_metric == 1.0);
      CHECK(result.trials[0].metric < 0.7);
      CHECK(result.goal_met);
      CHECK(result.metric >= 0.9);
      CHECK(result.metric == metric(result.best.result));
      CHECK(short_names(result.left_in_float) == bad);
      CHECK(float_layers(result.best.result) == bad);
      CHECK(told == result.trials.size());
      CHECK(result.trials.back().left_in_float == result.left_in_float);
      // The layer takes and makes float, with the bias that it had.
      const graph::node& n = named(result.best.result, bad);
      CHECK(test::values_of<float>(result.best.result.initializers.at(n.inputs[1])) ==
            test::values_of<float>(m.initializers.at("w" + bad)));
      CHECK(test::values_of<float>(result.best.result.initializers.at(n.inputs[2])) ==
            test::values_of<float>(m.initializers.at("b" + bad)));
      const graph::node* before = producer(result.best.result, n.inputs[0]);
      CHECK((before == nullptr) == (ruined == 0));
      CHECK((ruined == 0 || before->is("Relu")));
      CHECK(result.best.parameters.layers.size() == 4);
    }
    // NNCF's way to it.
    for (const graph::layer_ranking ranking :
         {graph::layer_ranking::output_error, graph::layer_ranking::metric}) {
      const auto result = graph::nncf::quantize_with_accuracy_control(
          m, graph::nncf::dataset(calibration), graph::nncf::dataset(validation),
          [&](const graph::model& other, const graph::calibration_source& samples) {
            std::vector<tensors> all;
            while (auto x = samples()) {
              all.push_back(std::move(*x));
            }
            CHECK(all.size() == validation.size());
            return likeness(m, all)(other);
          },
          {.activations_range_estimator = graph::nncf::min_max,
           .weights_quantization_params = {.per_channel = false}},
          {.goal = {.max_drop = 0.1}, .ranking = ranking, .ranking_subset_size = 10});
      CHECK(result.goal_met);
      CHECK(result.metric == metric(result.best.result));
      CHECK(short_names(result.left_in_float) == bad);
    }
  }
}

TEST_CASE("accuracy control: steps, one back, and layers quantized again") {
  test::random_source r(310);
  INFO("seed ", r.seed());
  const auto samples = inputs_of(r, 3);
  const auto source = [&] { return graph::nncf::dataset(samples).samples(); };
  const graph::model three = network(r, 3, -1);
  const graph::quantization q3 = graph::static_quantization(three, source());
  const graph::model four = network(r, 4, -1);
  const graph::quantization q4 = graph::static_quantization(four, source());
  const auto control = [&](const graph::model& m, const graph::quantization& q, scripted& script,
                           graph::accuracy_control_options o) {
    o.ranking = graph::layer_ranking::metric;
    return graph::control_accuracy(m, q, source(), std::ref(script), o);
  };
  {
    scripted s{{{"abc", 1.0}, {"", 0.995}}};
    const auto result = control(three, q3, s, {});
    CHECK(story(result) == "all:+!");
    CHECK(result.left_in_float.empty());
    CHECK(result.metric == 0.995);
    CHECK(s.asked == names{"abc", ""});
  }
  {
    // "ab" is worse than "a": a step back. All in float: then "b" or "a" quantized again.
    scripted s{{{"abc", 1.0},
                {"", 0.0},
                {"a", 0.5},
                {"b", 0.4},
                {"c", 0.3},
                {"ab", 0.2},
                {"ac", 0.6},
                {"bc", 0.1}}};
    const auto result = control(three, q3, s, {});
    CHECK(story(result) ==
          "all:+ rank:a rank:b rank:c revert:a+ revert:ab revert:ac+ revert:abc+! quantize:ab "
          "quantize:bc");
    CHECK(result.goal_met);
    CHECK(short_names(result.left_in_float) == "abc");
    CHECK(test::different(three, result.best.result, samples[0]).empty());
    // Nothing was asked twice.
    CHECK(std::set<std::string>(s.asked.begin(), s.asked.end()).size() + 1 == s.asked.size());
  }
  {
    // Worse twice: the second time it goes on.
    scripted s{{{"abcd", 1.0},
                {"", 0.0},
                {"a", 0.5},
                {"b", 0.4},
                {"c", 0.3},
                {"d", 0.2},
                {"ab", 0.1},
                {"ac", 0.2},
                {"ad", 0.3},
                {"acd", 0.995},
                {"cd", 0.99},
                {"abd", 0.7}}};
    const auto result = control(four, q4, s, {.goal = {.max_drop = 0.007}});
    // After "ab": the others of "a" ranked, d before c; "ad" is worse than "a", too.
    CHECK(story(result) ==
          "all:+ rank:a rank:b rank:c rank:d revert:a+ revert:ab rank:ac rank:ad revert:ad+ "
          "rank:acd! rank:abd revert:acd+! quantize:ac quantize:cd");
    CHECK(short_names(result.left_in_float) == "acd");
    CHECK(result.metric == 0.995);
  }
  {
    // Each was needed on the way, but not at the end.
    scripted s{{{"abcd", 1.0},
                {"", 0.0},
                {"a", 0.5},
                {"b", 0.4},
                {"c", 0.3},
                {"d", 0.2},
                {"ab", 0.6},
                {"abc", 1.0},
                {"ac", 1.0},
                {"bc", 0.3}}};
    CHECK(story(control(four, q4, s, {.quantize_again = false})) ==
          "all:+ rank:a rank:b rank:c rank:d revert:a+ revert:ab+ revert:abc+!");
    const auto result = control(four, q4, s, {});
    CHECK(story(result) ==
          "all:+ rank:a rank:b rank:c rank:d revert:a+ revert:ab+ revert:abc+! quantize:ac+! "
          "quantize:c");
    CHECK(short_names(result.left_in_float) == "ac");
  }
  {
    // Lower is better, NaN is worst.
    scripted s{{{"abc", 1.0},
                {"", std::numeric_limits<double>::quiet_NaN()},
                {"a", 3.0},
                {"b", 1.05},
                {"c", 2.0}}};
    const auto result = control(
        three, q3, s,
        {.goal = {.max_drop = 0.1, .drop = graph::drop_type::relative, .higher_is_better = false}});
    CHECK(story(result) == "all:+ rank:a rank:b! rank:c revert:b+!");
    CHECK(short_names(result.left_in_float) == "b");
    CHECK(result.metric == 1.05);
  }
}

TEST_CASE("accuracy control: goals that are not met") {
  test::random_source r(320);
  INFO("seed ", r.seed());
  const auto samples = inputs_of(r, 3);
  const auto source = [&] { return graph::nncf::dataset(samples).samples(); };
  const graph::model m = network(r, 3, -1);
  const graph::quantization q = graph::static_quantization(m, source());
  const std::map<std::string, double> metrics{{"abc", 1.0}, {"", 0.5},   {"a", 0.7},  {"b", 0.8},
                                              {"c", 0.75},  {"ab", 0.9}, {"bc", 0.6}, {"ac", 0.6}};
  const auto control = [&](graph::accuracy_control_options o) {
    scripted s{metrics};
    o.ranking = graph::layer_ranking::metric;
    const auto result = graph::control_accuracy(m, q, source(), std::ref(s), o);
    CHECK(s.asked.size() - 1 <= o.max_trials);
    return result;
  };
  // Better than the float model: not even with all in float.
  auto result = control({.goal = {.max_drop = -0.5}});
  CHECK_FALSE(result.goal_met);
  CHECK(result.metric == 1.0);
  CHECK(short_names(result.left_in_float) == "abc");
  for (const graph::accuracy_trial& t : result.trials) {
    CHECK_FALSE(t.meets_goal);
  }
  result = control({.max_trials = 1});
  CHECK(story(result) == "all:+");
  CHECK_FALSE(result.goal_met);
  CHECK(result.metric == 0.5);
  CHECK(result.left_in_float.empty());
  // Two are ranked before the trials are used up: the better one of these is the best.
  result = control({.max_trials = 3});
  CHECK(story(result) == "all:+ rank:a rank:b revert:b+");
  CHECK(short_names(result.left_in_float) == "b");
  CHECK(float_layers(result.best.result) == "b");
  CHECK(result.metric == 0.8);
  result = control({.max_iterations = 0});
  CHECK(story(result) == "all:+");
  result = control({.max_iterations = 1});
  CHECK(story(result) == "all:+ rank:a rank:b rank:c revert:b+");
  CHECK(result.metric == 0.8);
  // "bc" is taken back and "ab" is the best that two more steps find.
  result = control({.max_iterations = 3});
  CHECK(story(result) == "all:+ rank:a rank:b rank:c revert:b+ revert:bc revert:ab+");
  CHECK_FALSE(result.goal_met);
  CHECK(short_names(result.left_in_float) == "ab");
  CHECK(result.metric == 0.9);

  const auto invalid = error_kind::invalid_argument;
  check_graph_error(invalid, {"max_trials 0"}, [&] { control({.max_trials = 0}); });
  check_graph_error(invalid, {"ranking_subset_size 0"},
                    [&] { control({.ranking_subset_size = 0}); });
  check_graph_error(invalid, {"drop of 1", "relative"}, [&] {
    control({.goal = {.max_drop = 1.0, .drop = graph::drop_type::relative}});
  });
  check_graph_error(invalid, {"drop of nan"}, [&] { control({.goal = {.max_drop = NAN}}); });
  check_graph_error(invalid, {"without a metric"},
                    [&] { static_cast<void>(graph::control_accuracy(m, q, source(), {})); });
  check_graph_error(invalid, {"NaN"}, [&] {
    static_cast<void>(graph::control_accuracy(m, q, source(), [](const graph::model&) {
      return std::numeric_limits<double>::quiet_NaN();
    }));
  });
}

TEST_CASE("accuracy control: layers that take the same value, and samples that differ most") {
  test::random_source r(330);
  INFO("seed ", r.seed());
  // Two layers take x, one of them is ruined.
  const auto f = static_cast<std::size_t>(features);
  model_builder b;
  b.input("x", {-1, features});
  tensor bad = random_floats(r, {features, features}, -0.6F, 0.6F);
  bad.mutable_data<float>()[3] = 1e5F;
  const std::string left = b.add("Gemm", {"x", b.constant("wa", bad)});
  b.get().nodes.back().name = "a";
  const std::string right =
      b.add("Gemm", {"x", b.constant("wb", random_floats(r, {features, features}, -0.6F, 0.6F))});
  b.get().nodes.back().name = "b";
  const std::string sum = b.add("Add", {left, right});
  b.output(
      b.add("Gemm", {sum, b.constant("wc", random_floats(r, {features, features}, -0.6F, 0.6F))}));
  b.get().nodes.back().name = "c";
  auto samples = inputs_of(r, 8);
  // Of all samples but one x is 0, on which models do not differ.
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i != 5) {
      samples[i] = {{"x", test::floats({4, features}, std::vector<float>(4 * f, 0.0F))}};
    }
  }
  const auto validation = inputs_of(r, 30);
  const graph::model_metric metric = likeness(b.get(), validation);
  for (const bool together : {false, true}) {
    const auto result = graph::quantize_with_accuracy_control(
        b.get(), graph::nncf::dataset(samples).samples(), metric,
        {.goal = {.max_drop = 0.15}, .ranking_subset_size = 1, .group_by_input = together},
        {.weights = {.per_channel = false}});
    INFO(story(result));
    CHECK(result.goal_met);
    CHECK(short_names(result.left_in_float) == (together ? "ab" : "a"));
    CHECK(result.trials.size() == 2);  // the first step is the right one
    CHECK(result.best.parameters.activations.count("x") == (together ? 0U : 1U));
  }
  // leave_in_float() itself.
  const graph::quantization q =
      graph::static_quantization(b.get(), graph::nncf::dataset(samples).samples());
  const std::vector<std::size_t>& layers = q.plan.layers();
  REQUIRE(layers.size() == 3);
  const graph::quantization none = graph::leave_in_float(q, {layers[0], layers[1], layers[2]});
  CHECK(none.parameters.activations.empty());
  CHECK(test::different(b.get(), none.result, validation[0]).empty());
  const graph::quantization all = graph::leave_in_float(q, {});
  CHECK(test::different(q.result, all.result, validation[0]).empty());
  CHECK(all.parameters.activations == q.parameters.activations);
  check_graph_error(error_kind::invalid_argument, {"node 2", "not a quantized layer"},
                    [&] { static_cast<void>(graph::leave_in_float(q, {2})); });
}

TEST_CASE("accuracy control: layers are ranked by the samples that the judge finds worst") {
  // Two outputs that are off by 1. For sample k they are in[k] and their noise / signal 1 /
  // in[k]^2.
  const auto two_outputs = [](float off) {
    model_builder b;
    for (const char* name : {"x", "y"}) {
      b.output(b.add("Add", {b.input(name, {1}), b.scalar(std::string(name) + "_off", off)}));
    }
    return b.get();
  };
  const std::vector<std::pair<float, float>> in{
      {0.5F, 100.0F},  // sum 4, geometric mean 0.02
      {1.0F, 1.0F},    // sum 2, geometric mean 1
      {8.0F, 8.0F},
      {2.0F, 0.25F},  // geometric mean 2
  };
  const auto samples = [&in, at = std::size_t{0}]() mutable -> std::optional<tensors> {
    if (at == in.size()) {
      at = 0;
      return std::nullopt;
    }
    const auto [x, y] = in[at++];
    return tensors{{"x", floats({1}, {x})}, {"y", floats({1}, {y})}};
  };
  const auto chosen = [&](std::size_t count) {
    const graph::calibration_source some =
        graph::detail::most_different(two_outputs(0.0F), two_outputs(1.0F), samples, count, {});
    std::vector<float> x;
    while (const auto sample = some()) {
      x.push_back(sample->at("x").data<float>()[0]);
    }
    return x;
  };
  CHECK(chosen(1) == std::vector<float>{2.0F});
  CHECK(chosen(2) == std::vector<float>{1.0F, 2.0F});
  CHECK(chosen(3) == std::vector<float>{0.5F, 1.0F, 2.0F});
  CHECK(chosen(9) == std::vector<float>{0.5F, 1.0F, 8.0F, 2.0F});
}
