// SPDX-License-Identifier: BSD-3-Clause
// Tuning: every strategy where the goal is met at once, after some search, and never; when searches
// end; what is not measured twice.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/gaussian_process.hpp>
#include <detent/graph/quantize/node_ranking.hpp>
#include <detent/graph/quantize/tuning.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/parallel.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
using graph::tuning_strategy;

constexpr tuning_strategy all_strategies[] = {
    tuning_strategy::basic,  tuning_strategy::conservative, tuning_strategy::mse,
    tuning_strategy::mse_v2, tuning_strategy::hawq_v2,      tuning_strategy::bayesian,
    tuning_strategy::random, tuning_strategy::exhaustive};

/// stem -> Relu -> wild -> Add with the Relu -> head. The weights of "wild" have one huge value, so
/// that its other weights are rounded to nothing: it does most of the harm.
graph::model network(test::random_source& r) {
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  const auto conv = [&](const std::string& name, const std::string& x, tensor weights) {
    b.constant(name + "_w", std::move(weights));
    b.constant(name + "_b", random_floats(r, {4}, -0.5F, 0.5F));
    const std::string y =
        b.add("Conv", {x, name + "_w", name + "_b"}, {{"pads", list({1, 1, 1, 1})}});
    b.get().nodes.back().name = name;
    return y;
  };
  const std::string stem =
      b.add("Relu", {conv("stem", "x", random_floats(r, {4, 3, 3, 3}, -0.4F, 0.4F))});
  tensor wild = random_floats(r, {4, 4, 3, 3}, -0.3F, 0.3F);
  for (std::size_t channel = 0; channel < 4; ++channel) {
    wild.mutable_data<float>()[channel * 36] = 60.0F;
  }
  const std::string middle = conv("wild", stem, wild);
  const std::string sum = b.add("Add", {middle, stem});
  b.output(conv("head", sum, random_floats(r, {4, 4, 3, 3}, -0.4F, 0.4F)));
  return b.get();
}

/// A model, samples, and the noise of quantized models as a metric: 0 for the float model, negative
/// for others.
struct task {
  graph::model m;
  std::vector<sample> samples;
  graph::output_judge judge;
  std::size_t calls = 0;

  explicit task(std::uint64_t seed) : task(test::random_source(seed)) {}

  [[nodiscard]] graph::calibration_source source() const { return samples_source(samples); }
  [[nodiscard]] graph::model_metric metric() {
    return [this](const graph::model& q) {
      ++calls;
      return -judge.noise_to_signal(q);
    };
  }

 private:
  explicit task(test::random_source r)
      : m(network(r)),
        samples(samples_of_x(r, {1, 3, 6, 6}, 6)),
        judge(m, samples_source(samples), 6) {}
};

/// Options whose goal is a noise of at most `noise`.
graph::tuning_options goal_of(tuning_strategy strategy, double noise) {
  graph::tuning_options o;
  o.strategy = strategy;
  o.goal = {.max_drop = noise, .drop = graph::drop_type::absolute};
  return o;
}

/// The trials of a result are consistent with it and with each other.
void check_trials(const graph::tuning_result& r, const graph::tuning_options& o) {
  REQUIRE(!r.trials.empty());
  CHECK(r.trials.size() <= o.max_trials);
  std::set<graph::tuning_setting> settings;
  bool has_best = false;
  for (const graph::tuning_trial& t : r.trials) {
    CHECK(settings.insert(t.setting).second);
    CHECK(t.meets_goal == o.goal.is_met(r.float_metric, t.metric));
    has_best = has_best || t.setting == r.best_trial.setting;
    if (!r.goal_met) {
      CHECK_FALSE(t.meets_goal);
      CHECK(t.metric <= r.best_trial.metric);
    }
  }
  CHECK(has_best);
  CHECK(r.goal_met == r.best_trial.meets_goal);
  CHECK((r.missed_by > 0.0) == !r.goal_met);
}

}  // namespace

TEST_CASE("tuning: every strategy, a goal that the first setting meets") {
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1000);
    const graph::tuning_options o = goal_of(strategy, 0.5);
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    check_trials(r, o);
    CHECK(r.goal_met);
    CHECK(r.missed_by == 0.0);
    if (strategy == tuning_strategy::conservative) {
      CHECK(r.end == graph::tuning_end::exhausted);
      CHECK(r.best_trial.setting.in_float.empty());
    } else {
      CHECK(r.end == graph::tuning_end::goal);
      CHECK(r.trials.size() == 1);
    }
    CHECK(-t.judge.noise_to_signal(r.best) == r.best_trial.metric);
    CHECK(test::count(r.best, "QuantizeLinear") > 0);
  }
}

TEST_CASE("tuning: every strategy, a goal that needs the harmful layer in float") {
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1001);
    graph::tuning_options o = goal_of(strategy, 5e-4);
    o.space.per_channel = {true};
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    check_trials(r, o);
    CHECK(r.goal_met);
    REQUIRE(r.trials.size() > 1);
    // The harmful layer is the one that is left in float.
    CHECK(r.best_trial.setting.in_float.count(named(t.m, "wild").outputs[0]) == 1);
    CHECK(named(r.best, "wild").inputs[1] == "wild_w");
    CHECK(-t.judge.noise_to_signal(r.best) == r.best_trial.metric);
    if (strategy == tuning_strategy::mse || strategy == tuning_strategy::mse_v2 ||
        strategy == tuning_strategy::hawq_v2) {
      CHECK(r.best_trial.setting.in_float.size() <= 2);  // they find it soon
    }
  }
}

TEST_CASE("tuning: every strategy, a goal that cannot be met") {
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1002);
    graph::tuning_options o = goal_of(strategy, -1.0);
    o.max_trials = 9;
    o.space.methods = {"minmax", "percentile"};
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    check_trials(r, o);
    CHECK_FALSE(r.goal_met);
    CHECK(r.missed_by == doctest::Approx(1.0 - r.best_trial.metric));
    CHECK((r.end == graph::tuning_end::trials || r.end == graph::tuning_end::exhausted));
    CHECK(t.calls == r.trials.size() + 1);  // and the float model
    CHECK(-t.judge.noise_to_signal(r.best) == r.best_trial.metric);
  }
}

TEST_CASE("tuning: every strategy ends when the time is up") {
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1003);
    graph::tuning_options o = goal_of(strategy, 0.5);
    double now = 100.0;
    o.clock = [&] { return now; };
    o.timeout = 3.0;
    o.objectives = {{graph::tuning_objective::model_size, 1.0}};
    o.on_trial = [&](const graph::tuning_trial&) { now += 1.0; };
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    check_trials(r, o);
    const bool chooses_itself =
        strategy == tuning_strategy::conservative || strategy == tuning_strategy::mse_v2;
    CHECK((r.end == graph::tuning_end::timeout || chooses_itself));
    CHECK(r.trials.size() <= 3);
    CHECK(r.trials.size() > 1);  // it goes on after the goal is met
    CHECK(r.goal_met);
    for (const graph::tuning_trial& trial : r.trials) {
      CHECK(trial.objective > 0.0);
      CHECK((trial.objective >= r.best_trial.objective || chooses_itself));
    }
  }
}

TEST_CASE("tuning: the same on any number of threads, and for the same seed") {
  detent::thread_pool pool(3);
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1004);
    graph::tuning_options o = goal_of(strategy, 1e-6);
    o.max_trials = 14;
    o.space.methods = {"minmax", "mse"};
    o.space.weights = {graph::weight_scale::absmax, graph::weight_scale::exact_mse};
    const graph::tuning_result one = graph::tune(t.m, t.source(), t.metric(), o);
    o.quantizer.executor.parallel = pool.parallel();
    const graph::tuning_result three = graph::tune(t.m, t.source(), t.metric(), o);
    REQUIRE(one.trials.size() == three.trials.size());
    for (std::size_t i = 0; i < one.trials.size(); ++i) {
      CHECK(one.trials[i].setting == three.trials[i].setting);
      CHECK(one.trials[i].metric == three.trials[i].metric);
    }
    CHECK(graph::to_onnx(one.best) == graph::to_onnx(three.best));
  }
  // Another seed, other settings.
  task t(1004);
  graph::tuning_options o = goal_of(tuning_strategy::random, -1.0);
  o.max_trials = 6;
  const graph::tuning_result a = graph::tune(t.m, t.source(), t.metric(), o);
  o.seed = 7;
  const graph::tuning_result b = graph::tune(t.m, t.source(), t.metric(), o);
  CHECK(std::any_of(a.trials.begin(), a.trials.end(), [&](const graph::tuning_trial& x) {
    return std::none_of(b.trials.begin(), b.trials.end(),
                        [&](const graph::tuning_trial& y) { return x.setting == y.setting; });
  }));
}

TEST_CASE("tuning: an earlier search is resumed without measuring again") {
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1005);
    graph::tuning_options o = goal_of(strategy, -1.0);
    o.max_trials = 12;
    o.space.methods = {"minmax", "percentile"};
    const graph::tuning_result whole = graph::tune(t.m, t.source(), t.metric(), o);
    o.known.assign(whole.trials.begin(),
                   whole.trials.begin() + static_cast<std::ptrdiff_t>(whole.trials.size() / 2));
    t.calls = 0;
    std::size_t told = 0;
    o.on_trial = [&](const graph::tuning_trial&) { ++told; };
    const graph::tuning_result resumed = graph::tune(t.m, t.source(), t.metric(), o);
    CHECK(t.calls == whole.trials.size() - o.known.size() + 1);
    CHECK(told == whole.trials.size());
    CHECK(graph::to_onnx(resumed.best) == graph::to_onnx(whole.best));
    CHECK(resumed.best_trial.metric == whole.best_trial.metric);
  }
}

TEST_CASE("tuning: a search that is cancelled returns the best so far") {
  task t(1006);
  graph::tuning_options o = goal_of(tuning_strategy::basic, -1.0);
  std::size_t trials = 0;
  o.on_trial = [&](const graph::tuning_trial&) { ++trials; };
  o.cancelled = [&] { return trials >= 4; };
  const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
  check_trials(r, o);
  CHECK(r.end == graph::tuning_end::cancelled);
  CHECK(r.trials.size() == 4);
  o.cancelled = [] { return true; };  // from the beginning: there is a result all the same
  CHECK(graph::tune(t.m, t.source(), t.metric(), o).trials.size() == 1);
}

TEST_CASE("tuning: nodes in float with the second best setting, where none helps the best one") {
  for (const bool helps : {true, false}) {
    CAPTURE(helps);
    task t(1013);
    // What the models of the search are worth, in their order: float; per channel, per tensor.
    std::vector<double> worth = {1.0, 0.9, 0.8};
    graph::tuning_options o = goal_of(tuning_strategy::basic, -1.0);
    o.space.per_channel = {true, false};
    std::size_t calls = 0;
    std::size_t nodes = 0;
    const graph::model_metric metric = [&](const graph::model&) {
      const std::size_t call = calls++;
      if (call < worth.size()) {
        return worth[call];
      }
      // With the second node behind the first `nodes` ones, if it is to help; no other one does.
      return helps && nodes != 0 && call == worth.size() + nodes + 1 ? 0.95 : 0.85;
    };
    nodes = graph::tune(t.m, t.source(), metric, o).trials.back().setting.in_float.size();
    REQUIRE(nodes >= 3);  // the last trial has them all in float
    calls = 0;
    std::vector<graph::tuning_setting> tried;
    o.on_trial = [&](const graph::tuning_trial& trial) { tried.push_back(trial.setting); };
    const graph::tuning_result r = graph::tune(t.m, t.source(), metric, o);
    check_trials(r, o);
    REQUIRE(tried.size() > 2 + 2 * nodes);
    for (std::size_t i = 0; i < 2 * nodes; ++i) {
      CHECK(tried[2 + i].in_float.size() == 1);
      CHECK(tried[2 + i].per_channel == (i < nodes));
    }
    // What comes next goes on from the setting that a node has helped, or else from the best one.
    const graph::tuning_setting& next = tried[2 + 2 * nodes];
    CHECK(next.in_float.size() == 2);
    CHECK(next.per_channel == !helps);
    CHECK(r.best_trial.metric == (helps ? 0.95 : 0.9));
    CHECK(r.best_trial.setting.per_channel == !helps);
  }
}

TEST_CASE("tuning: performance only takes the first trial and measures nothing") {
  task t(1007);
  graph::tuning_options o = goal_of(tuning_strategy::basic, -1.0);
  o.performance_only = true;
  const graph::tuning_result r = graph::tune(t.m, t.source(), {}, o);
  CHECK(r.trials.size() == 1);
  CHECK(r.end == graph::tuning_end::goal);
  CHECK(r.missed_by == 0.0);
  CHECK(test::count(r.best, "QuantizeLinear") > 0);
}

TEST_CASE("tuning: where lower is better, and relative goals") {
  task t(1008);
  graph::tuning_options o;
  o.goal.higher_is_better = false;
  const graph::model_metric loss = [&](const graph::model& q) {
    return 1.0 + t.judge.noise_to_signal(q);
  };
  o.goal.max_drop = 5e-4;
  o.space.per_channel = {true};
  const graph::tuning_result r = graph::tune(t.m, t.source(), loss, o);
  check_trials({.best = {},
                .best_trial = r.best_trial,
                .float_metric = r.float_metric,
                .goal_met = r.goal_met,
                .missed_by = r.missed_by,
                .trials = r.trials},
               o);
  CHECK(r.goal_met);
  CHECK(r.float_metric == 1.0);
  CHECK(r.best_trial.metric <= 1.0005);
}

TEST_CASE("tuning: dynamic quantization, without samples") {
  for (const tuning_strategy strategy :
       {tuning_strategy::basic, tuning_strategy::conservative, tuning_strategy::bayesian,
        tuning_strategy::random, tuning_strategy::exhaustive}) {
    INFO(std::string(graph::name(strategy)));
    task t(1009);
    graph::tuning_options o = goal_of(strategy, 3e-4);
    o.quantizer.is_dynamic = true;
    const graph::tuning_result r = graph::tune(t.m, {}, t.metric(), o);
    CHECK(r.goal_met);
    CHECK(test::count(r.best, "ConvInteger") > 0);
    CHECK(test::count(r.best, "QuantizeLinear") == 0);
    CHECK(-t.judge.noise_to_signal(r.best) == r.best_trial.metric);
  }
}

TEST_CASE("tuning: ranges are collected only for the methods that trials use") {
  task t(1012);
  graph::tuning_options o = goal_of(tuning_strategy::basic, 0.5);
  o.space.methods = {"minmax", "kl", "percentile"};
  std::size_t passes = 0;
  const graph::calibration_source counted = [source = t.source(), &passes] {
    auto next = source();
    passes += next ? 0U : 1U;
    return next;
  };
  CHECK(graph::tune(t.m, counted, t.metric(), o).trials.size() == 1);
  CHECK(passes == 1);
  // Both trials with minmax share a pass, and both with kl another.
  passes = 0;
  o = goal_of(tuning_strategy::basic, -1.0);
  o.space.methods = {"minmax", "kl", "percentile"};
  o.max_trials = 2;
  CHECK(graph::tune(t.m, counted, t.metric(), o).trials.size() == 2);
  CHECK(passes == 1);
  passes = 0;
  o.max_trials = 4;
  const graph::tuning_result both = graph::tune(t.m, counted, t.metric(), o);
  CHECK(passes == 2);
  // Ranges do not depend on which methods a search has.
  o.space.methods = {"kl"};
  const graph::tuning_result alone = graph::tune(t.m, t.source(), t.metric(), o);
  CHECK(alone.trials[0].metric == both.trials[2].metric);
  CHECK(alone.trials[1].metric == both.trials[3].metric);
}

TEST_CASE("tuning: objectives") {
  task t(1010);
  graph::tuning_options o = goal_of(tuning_strategy::exhaustive, 1.0);
  o.max_trials = 8;
  o.timeout = 1000.0;
  double now = 0.0;
  o.clock = [&] { return now += 0.001; };  // each call takes a millisecond: all models are alike
  for (const graph::tuning_objective objective :
       {graph::tuning_objective::metric, graph::tuning_objective::latency,
        graph::tuning_objective::model_size, graph::tuning_objective::footprint}) {
    o.objectives = {{objective, 2.0}};
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    CHECK(r.trials.size() == 8);
    if (objective == graph::tuning_objective::latency) {
      CHECK(r.best_trial.objective == doctest::Approx(2.0));
    }
    for (const graph::tuning_trial& trial : r.trials) {
      CHECK(trial.objective >= r.best_trial.objective);
    }
  }
}

TEST_CASE("tuning: the memory of a run, and the median of times") {
  // x and a are alive together, then a and b, then b and y; x stays alive, because it is an input.
  model_builder b;
  b.input("x", {1, 4});
  b.constant("w", floats({4, 4}, std::vector<float>(16, 1.0F)));
  const std::string a = b.add("MatMul", {"x", "w"});
  b.output(b.add("Abs", {b.add("Neg", {a})}));
  const tensors x{{"x", floats({1, 4}, {1.0F, 2.0F, 3.0F, 4.0F})}};
  CHECK(graph::detail::footprint(b.get(), x, {}) == 64 + 3 * 16);
  CHECK(graph::detail::median({3.0, 1.0, 2.0}) == 2.0);
  CHECK(graph::detail::median({4.0, 1.0, 3.0, 2.0}) == 2.0);
  double now = 0.0;
  const auto [reference, own] =
      graph::detail::latencies(b.get(), b.get(), x, 1, 3, {}, [&] { return now += 1.0; });
  CHECK(reference == 1.0);
  CHECK(own == 1.0);
}

TEST_CASE("tuning: conservative where nothing can be quantized, and a search without a trial") {
  task t(1012);
  graph::tuning_options o = goal_of(tuning_strategy::conservative, 0.5);
  o.quantizer.scope.operators.types.push_back({.pattern = ".*", .settings = {.quantize = false}});
  const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
  CHECK(r.trials.size() == 1);
  CHECK(test::count(r.best, "QuantizeLinear") == 0);
  const graph::calibration_source source = t.source();
  const graph::model_metric metric = t.metric();
  graph::detail::tuning_search search(t.m, source, metric, o);
  check_graph_error(error_kind::invalid_argument, {"no trial"},
                    [&] { static_cast<void>(search.result()); });
}

TEST_CASE("tuning: metrics that are no numbers") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  using graph::detail::finite_values;
  CHECK(finite_values({nan, 1.0, 3.0, infinity, -infinity}) ==
        std::vector<double>{1.0, 1.0, 3.0, 3.0, 1.0});
  CHECK(finite_values({nan, infinity}) == std::vector<double>{0.0, 0.0});
  for (const tuning_strategy strategy : all_strategies) {
    for (const bool always : {false, true}) {
      INFO(std::string(graph::name(strategy)), " ", always);
      task t(1013);
      graph::tuning_options o = goal_of(strategy, -1.0);
      o.max_trials = 8;
      const graph::model_metric exact = t.metric();
      const graph::tuning_result r = graph::tune(
          t.m, t.source(),
          [&](const graph::model& q) {
            const double value = exact(q);
            // The first quantized model, or all of them; the float model comes before them.
            return t.calls == 2 || (always && t.calls > 2) ? nan : value;
          },
          o);
      CHECK(r.trials.size() >= 5);
      CHECK(std::isnan(r.best_trial.metric) == always);
    }
  }
}

TEST_CASE("tuning: an earlier search had another goal and no objectives") {
  task t(1014);
  graph::tuning_options o = goal_of(tuning_strategy::exhaustive, 1.0);
  o.max_trials = 6;
  o.known = graph::tune(t.m, t.source(), t.metric(), o).trials;
  REQUIRE(o.known.size() == 1);
  CHECK(o.known[0].meets_goal);
  // Nothing meets a goal that is better than the float model.
  o.goal.max_drop = -1.0;
  const graph::tuning_result missed = graph::tune(t.m, t.source(), t.metric(), o);
  check_trials(missed, o);
  CHECK(missed.trials.size() == 6);
  // Objectives are measured where they were not.
  o.goal.max_drop = 1.0;
  o.timeout = 1000.0;
  o.objectives = {{graph::tuning_objective::model_size, 1.0}};
  t.calls = 0;
  const graph::tuning_result resumed = graph::tune(t.m, t.source(), t.metric(), o);
  CHECK(t.calls == resumed.trials.size());  // the float model, and all but the known one
  for (const graph::tuning_trial& trial : resumed.trials) {
    CHECK(trial.objective > 0.0);
    CHECK(trial.objective >= resumed.best_trial.objective);
  }
}

TEST_CASE("tuning: with a timeout, the best model by the objectives is the result") {
  // The first setting meets the goal; those with one scale for a layer have smaller models.
  for (const tuning_strategy strategy : all_strategies) {
    INFO(std::string(graph::name(strategy)));
    task t(1018);
    graph::tuning_options o = goal_of(strategy, 0.5);
    o.timeout = 1000.0;
    o.max_trials = 20;
    o.objectives = {{graph::tuning_objective::model_size, 1.0}};
    o.space.methods = {"minmax"};
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    check_trials(r, o);
    CHECK(r.goal_met);
    for (const graph::tuning_trial& trial : r.trials) {
      CHECK((!trial.meets_goal || trial.objective >= r.best_trial.objective));
    }
    if (strategy == tuning_strategy::mse_v2) {
      // Nothing has to stay in float, so nothing is tried.
      CHECK(r.end == graph::tuning_end::exhausted);
      CHECK(r.trials.size() == o.space.size());
    }
  }
}

TEST_CASE("tuning: conservative keeps a model that the objectives prefer") {
  // The metric drops with each trial, and the goal allows all of them.
  task t(1019);
  graph::tuning_options o = goal_of(tuning_strategy::conservative, 0.5);
  o.timeout = 1000.0;
  o.objectives = {{graph::tuning_objective::metric, 1.0}};
  double metric = 0.1;
  const graph::tuning_result r = graph::tune(
      t.m, t.source(), [&](const graph::model&) { return metric -= 0.1; }, o);
  check_trials(r, o);
  REQUIRE(r.trials.size() == 2);
  CHECK(r.trials[1].meets_goal);
  CHECK(r.trials[1].metric < r.trials[0].metric);
  CHECK(r.best_trial.setting == r.trials[0].setting);
}

TEST_CASE("tuning: the last trial of a strategy meets the goal") {
  task t(1020);
  graph::tuning_options o = goal_of(tuning_strategy::exhaustive, 0.5);
  // Without nodes that may stay in float, the settings of the space are all there is.
  o.quantizer.scope.operators.types = {{".*", {.quantize = false}}};
  o.space.methods = {"minmax"};
  std::size_t calls = 0;
  const std::size_t last = o.space.size() + 1;  // after the float model
  const graph::tuning_result r = graph::tune(
      t.m, t.source(),
      [&](const graph::model&) {
        ++calls;
        return calls == 1 || calls == last ? 0.0 : -1.0;
      },
      o);
  CHECK(r.trials.size() == o.space.size());
  CHECK(r.goal_met);
  CHECK(r.end == graph::tuning_end::goal);
}

TEST_CASE("tuning: the last mark of a best trial is the result") {
  for (const tuning_strategy strategy : all_strategies) {
    for (const double noise : {0.5, 5e-4, -1.0}) {
      INFO(std::string(graph::name(strategy)), " ", noise);
      task t(1015);
      graph::tuning_options o = goal_of(strategy, noise);
      o.max_trials = 12;
      o.space.per_channel = {true};
      const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
      graph::tuning_setting marked;
      for (const graph::tuning_trial& trial : r.trials) {
        marked = trial.is_best ? trial.setting : marked;
      }
      CHECK(marked == r.best_trial.setting);
      CHECK(r.best_trial.is_best);
    }
  }
}

TEST_CASE("tuning: the metric as objective, whatever its sign") {
  for (const double offset : {-1.0, 0.0, 1.0}) {
    for (const bool higher_is_better : {true, false}) {
      INFO(offset, " ", higher_is_better);
      task t(1016);
      graph::tuning_options o = goal_of(tuning_strategy::random, 1.0);
      o.goal.higher_is_better = higher_is_better;
      o.max_trials = 6;
      o.timeout = 1000.0;
      o.objectives = {{graph::tuning_objective::metric, 1.0}};
      const graph::tuning_result r = graph::tune(
          t.m, t.source(),
          [&](const graph::model& q) {
            const double noise = t.judge.noise_to_signal(q);
            return offset + (higher_is_better ? -noise : noise);
          },
          o);
      for (const graph::tuning_trial& trial : r.trials) {
        CHECK_FALSE(o.goal.is_better(trial.metric, r.best_trial.metric));
      }
    }
  }
}

TEST_CASE("tuning: a search that is cancelled while nodes are ranked") {
  for (const tuning_strategy strategy :
       {tuning_strategy::mse, tuning_strategy::mse_v2, tuning_strategy::hawq_v2}) {
    INFO(std::string(graph::name(strategy)));
    task t(1017);
    graph::tuning_options o = goal_of(strategy, -1.0);
    o.space.per_channel = {true};
    std::size_t asked = 0;
    o.cancelled = [&] { return ++asked > 2; };
    const graph::tuning_result r = graph::tune(t.m, t.source(), t.metric(), o);
    CHECK(r.end == graph::tuning_end::cancelled);
    CHECK(r.trials.size() == 1);
  }
}

TEST_CASE("tuning: nodes are ranked by their own results") {
  // The model has values of its own whose names look like those of quantized results.
  const auto made = [](float first, float second) {
    model_builder b;
    b.input("x", {1, 4});
    b.constant("c", floats({1}, {first}));
    b.constant("d", floats({1}, {second}));
    graph::model m = b.get();
    const auto add = [&](const char* type, std::vector<std::string> inputs, const char* output) {
      graph::node n;
      n.op_type = type;
      n.inputs = std::move(inputs);
      n.outputs = {output};
      m.nodes.push_back(std::move(n));
    };
    add("Neg", {"x"}, "a");
    add("Mul", {"a", "c"}, "a_float");
    add("Mul", {"a_float", "c"}, "a_floating");
    add("Mul", {"x", "d"}, "b");
    add("Add", {"a_floating", "b"}, "y");
    m.outputs.push_back(m.inputs[0]);
    m.outputs[0].name = "y";
    return m;
  };
  const std::vector<sample> samples = {{{"x", floats({1, 4}, {1.0F, 2.0F, 3.0F, 4.0F})}}};
  CHECK(graph::detail::rank_by_results(made(1.0F, 1.0F), made(2.0F, 1.125F), {"a", "b"},
                                       samples_source(samples),
                                       {}) == std::vector<std::string>{"b", "a"});
}

TEST_CASE("tuning: errors") {
  task t(1011);
  const auto fails = [&](std::initializer_list<std::string_view> words,
                         const graph::tuning_options& o, bool with_samples = true,
                         bool with_metric = true) {
    check_graph_error(error_kind::invalid_argument, words, [&] {
      static_cast<void>(graph::tune(t.m, with_samples ? t.source() : graph::calibration_source(),
                                    with_metric ? t.metric() : graph::model_metric(), o));
    });
  };
  graph::tuning_options o;
  fails({"samples"}, o, false);
  fails({"metric"}, o, true, false);
  o.max_trials = 0;
  fails({"max_trials"}, o);
  o = {};
  o.space.methods.clear();
  fails({"space"}, o);
  o = {};
  o.timeout = -1.0;
  fails({"timeout", "-1"}, o);
  o = {};
  o.goal.max_drop = 1.0;
  fails({"drop of 1"}, o);
  o.goal.max_drop = std::numeric_limits<double>::quiet_NaN();
  fails({"drop of nan"}, o);
  check_graph_error(error_kind::invalid_argument, {"metric of the float model", "NaN"}, [&] {
    static_cast<void>(graph::tune(t.m, t.source(), [](const graph::model&) {
      return std::numeric_limits<double>::quiet_NaN();
    }));
  });
  o = {};
  o.space.methods = {"minmax", "nothing"};
  fails({"nothing"}, o);
  o = {};
  o.quantizer.is_dynamic = true;
  o.strategy = tuning_strategy::mse;
  fails({"mse", "samples"}, o, false);
  o.strategy = tuning_strategy::basic;
  o.space.corrections = {graph::bias_correction::fast};
  fails({"bias correction", "samples"}, o, false);
}

TEST_CASE("tuning: a space counts its settings") {
  graph::tuning_space space;
  space.samples = {8, 16, 32};
  space.methods = {"minmax", "kl"};
  CHECK(space.size() == 12);
  std::set<graph::tuning_setting> all;
  for (std::size_t i = 0; i < space.size(); ++i) {
    all.insert(space.at(i));
  }
  CHECK(all.size() == 12);
  CHECK(space.at(0).samples == 8);
  CHECK(space.at(11).samples == 32);
  CHECK(space.at(11).method == "kl");
  check_graph_error(error_kind::invalid_argument, {"12 of 12"},
                    [&] { static_cast<void>(space.at(12)); });
}

TEST_CASE("gaussian process: it passes through its points, and knows where it knows nothing") {
  using graph::detail::gaussian_process;
  const std::vector<std::vector<double>> points = {{0.0}, {0.25}, {1.0}};
  const gaussian_process p(points, {1.0, 3.0, 2.0});
  CHECK(p.expected_improvement({0.25}, 3.0) < 0.01);
  CHECK(p.expected_improvement({0.25}, 2.0) ==
        doctest::Approx(1.0 / std::sqrt(2.0 / 3.0)).epsilon(0.01));
  CHECK(p.expected_improvement({0.5}, 3.0) > p.expected_improvement({0.98}, 3.0));
  CHECK(graph::detail::normal_distribution(0.0) == doctest::Approx(0.5));
  CHECK(graph::detail::normal_distribution(1.0) == doctest::Approx(0.8413447461));
  CHECK(graph::detail::normal_distribution(-2.5) == doctest::Approx(0.0062096653).epsilon(1e-4));
}
