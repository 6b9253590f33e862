// SPDX-License-Identifier: BSD-3-Clause
// Statistics of channels, and the rewrites that split, smooth and align channels: formulas against
// plain loops, and that models compute the same after them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/rewrite/channel_alignment.hpp>
#include <detent/graph/rewrite/channel_split.hpp>
#include <detent/graph/rewrite/channel_statistics.hpp>
#include <detent/graph/rewrite/smooth_quant.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/moving_average.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "compare_models.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;

const test::attributes same_size{{"pads", list({1, 1, 1, 1})}};

}  // namespace

// -------------------------------------------------------------------------------------------
// statistics

TEST_CASE("channel statistics: ranges of channels over samples") {
  test::random_source r(1);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {-1, 3, 5, 4});
  const std::string first = uneven_convolution(b, r, "x", "a", {6, 3, 3, 3}, same_size);
  const std::string pooled = b.add("MaxPool", {first}, {{"kernel_shape", list({2, 2})}});
  b.output(pooled);
  std::vector<tensors> samples;
  for (int i = 0; i < 5; ++i) {
    const shape dims{r.integer(1, 3), 3, 5, 4};
    samples.push_back({{"x", random_floats(r, dims, -1.0F, static_cast<float>(i))}});
  }
  struct observed {
    std::string name;
    std::size_t axis, channels, inner;
  };
  const observed all[] = {{"x", 1, 3, 20}, {first, 1, 6, 20}, {first, 3, 4, 1}, {pooled, 1, 6, 12}};
  for (const observed& o : all) {
    INFO(o.name, " axis ", o.axis);
    std::vector<float> lower(o.channels, std::numeric_limits<float>::infinity());
    std::vector<float> upper(o.channels, -std::numeric_limits<float>::infinity());
    for (const tensors& sample : samples) {
      const std::vector<float> values = value_of(b.get(), o.name, sample);
      for (std::size_t k = 0; k < values.size(); ++k) {
        const std::size_t c = k / o.inner % o.channels;
        lower[c] = (std::min)(lower[c], values[k]);
        upper[c] = (std::max)(upper[c], values[k]);
      }
    }
    const auto statistics =
        graph::observe_channels(b.get(), samples_source(samples), {{o.name, o.axis}});
    const auto ranges = graph::channel_ranges(statistics);
    const auto magnitudes = graph::channel_magnitudes(statistics);
    REQUIRE(ranges.size() == 1);
    REQUIRE(ranges.at(o.name).size() == o.channels);
    for (std::size_t c = 0; c < o.channels; ++c) {
      CHECK(ranges.at(o.name)[c].lower == lower[c]);
      CHECK(ranges.at(o.name)[c].upper == upper[c]);
      CHECK(magnitudes.at(o.name)[c] == (std::max)(std::fabs(lower[c]), std::fabs(upper[c])));
    }
    // In two passes, the order statistic of rank ceil(0.9 n).
    std::vector<std::vector<float>> sorted(o.channels);
    for (const tensors& sample : samples) {
      const std::vector<float> values = value_of(b.get(), o.name, sample);
      for (std::size_t k = 0; k < values.size(); ++k) {
        sorted[k / o.inner % o.channels].push_back(values[k]);
      }
    }
    const detent::percentile_options exact{.percentile = 90.0, .exact = true};
    const auto percentiles = graph::observe_channels(
        b.get(), samples_source(samples), {{o.name, o.axis}}, detent::percentile_observer(exact));
    const auto of_channels = graph::channel_ranges(percentiles.at(o.name));
    for (std::size_t c = 0; c < o.channels; ++c) {
      std::sort(sorted[c].begin(), sorted[c].end());
      const std::size_t n = sorted[c].size();
      const auto rank = static_cast<std::size_t>(std::ceil(0.9 * static_cast<double>(n)));
      CHECK(of_channels[c].upper == sorted[c][rank - 1]);
      CHECK(of_channels[c].lower == sorted[c][n - rank]);
    }
  }
  const auto invalid = error_kind::invalid_argument;
  const auto observe = [&](const std::function<std::optional<tensors>()>& s,
                           const std::string& name, std::size_t axis = 1,
                           const detent::any_observer& o = detent::min_max_observer()) {
    static_cast<void>(graph::observe_channels(b.get(), s, {{name, axis}}, o));
  };
  check_graph_error(invalid, {"no value 'a_w'"}, [&] { observe(samples_source(samples), "a_w"); });
  check_graph_error(invalid, {"no calibration samples"}, [&] { observe(samples_source({}), "x"); });
  check_graph_error(invalid, {"tensor 'x'", "axis 4", "sample 1"},
                    [&] { observe(samples_source(samples), "x", 4); });
  std::size_t drawn = 0;
  const auto forgetful = [&]() -> std::optional<tensors> {
    ++drawn;
    return drawn == 3 || drawn == 5 ? std::nullopt : std::optional(samples[0]);
  };
  check_graph_error(invalid, {"second pass", "1 samples", "first 2"}, [&] {
    observe(forgetful, "x", 1, detent::percentile_observer({.percentile = 90.0, .exact = true}));
  });
  const auto average = graph::observe_channels(b.get(), samples_source(samples), {{"x", 1}},
                                               detent::moving_average_observer());
  check_graph_error(error_kind::unsupported, {"does not tell a range"},
                    [&] { static_cast<void>(graph::channel_ranges(average)); });
}

// -------------------------------------------------------------------------------------------
// channel split, weight split

TEST_CASE("channel split: copies of large channels") {
  test::random_source r(2);
  INFO("seed ", r.seed());
  struct kind {
    const char* name;
    bool grows;
    std::function<std::string(model_builder&, const std::string&)> between;
  };
  const auto op = [](const char* type) {
    return [=](model_builder& b, const std::string& x) { return b.add(type, {x}); };
  };
  const auto constant = [&](const char* type, const shape& dims) {
    return [=, &r](model_builder& b, const std::string& x) {
      return b.add(type, {x, b.constant("constant", random_floats(r, dims, 0.25F, 1.0F))});
    };
  };
  const kind kinds[] = {
      {"Relu", true, op("Relu")},
      {"PRelu", true, constant("PRelu", {7, 1, 1})},
      {"PRelu, one slope", true, constant("PRelu", {1, 1, 1})},
      {"PRelu, a plane", true, constant("PRelu", {1, 6, 6})},
      {"Add", true, constant("Add", {7, 1, 1})},
      {"Add of a scalar", true, constant("Add", {})},
      {"Mul", true, constant("Mul", {1, 7, 6, 6})},
      {"Mul with a scalar", true, constant("Mul", {1})},
      {"Div", true, constant("Div", {7, 1, 1})},
      {"Flatten", true,
       [](model_builder& b, const std::string& x) {
         const auto y = b.add("Relu", {x});
         return b.add("MaxPool", {y}, {{"kernel_shape", list({3, 2})}});
       }},
      {"Reshape", false,
       [](model_builder& b, const std::string& x) {
         return b.add("Reshape", {x, b.constant("dims", {0, 7, 6, 6})});
       }},
      {"Sigmoid", false, op("Sigmoid")},
      {"PRelu by an input", false,
       [](model_builder& b, const std::string& x) {
         return b.add("PRelu", {x, b.input("slope", {7, 1, 1})});
       }},
  };
  for (const kind& k : kinds) {
    for (int trial = 0; trial < 6; ++trial) {
      INFO(k.name, ", trial ", trial);
      model_builder b;
      b.input("x", {2, 3, 6, 6});
      std::string y = k.between(b, uneven_convolution(b, r, "x", "a", {7, 3, 3, 3}, same_size));
      const bool flat = std::string(k.name) == "Flatten";
      std::size_t repeat = 1;
      if (flat) {
        repeat = 20;
        y = b.add("Flatten", {y});
        b.constant("v", uneven(r, {5, 140}, 1));
        y = b.add("Gemm", {y, "v"}, {{"transB", number(1)}});
      } else {
        b.constant("v", uneven(r, {5, 7, 3, 3}, 0));
        y = b.add("Conv", {y, "v"});
      }
      b.output(y);
      graph::value_info stale;
      stale.name = "Conv_0_out";
      stale.has_shape = true;
      stale.dims = {2, 7, 6, 6};
      b.get().values.push_back(stale);
      tensors inputs{{"x", random_floats(r, {2, 3, 6, 6}, -1.0F, 1.0F)}};
      if (std::string(k.name) == "PRelu by an input") {
        inputs["slope"] = random_floats(r, {7, 1, 1}, -1.0F, 1.0F);
      }
      const graph::channel_split_options options{
          .iterations = 4, .threshold = 0.25, .largest_growth = trial < 3 ? 100.0 : 1.5};
      graph::model m = b.get();
      const auto result = graph::split_channels(m, options);
      CHECK(distance(b.get(), m, inputs) < 1e-5);
      if (!k.grows) {
        CHECK(result.empty());
        CHECK(constants(m) == constants(b.get()));
        continue;
      }
      const auto w = doubles(b.get().initializers.at("a_w"));
      const auto v = doubles(b.get().initializers.at("v"));
      std::vector<std::size_t> copies(7, 1);
      std::size_t all = 0;
      for (std::size_t c = 0; c < 7; ++c) {
        double u = 0.0;
        double d = 0.0;
        for (std::size_t i = 0; i < 27; ++i) {
          u = (std::max)(u, std::fabs(w[c * 27 + i]));
        }
        const std::size_t inner = flat ? repeat : 9;
        for (std::size_t i = 0; i < v.size(); ++i) {
          d = (std::max)(d, i / inner % 7 == c ? std::fabs(v[i]) : 0.0);
        }
        for (int i = 0; i < 4 && (std::min)(u, d) * std::pow(0.5, 0.5 * i) > 0.25; ++i) {
          copies[c] *= 2;
        }
        all += copies[c];
      }
      if (trial >= 3) {
        CHECK((result.empty() || result[0].channels_after <= 10));
        CHECK((result.empty() || all <= 10 || result[0].channels_after == 10));
        continue;
      }
      if (all == 7) {
        CHECK(result.empty());
        continue;
      }
      REQUIRE(result.size() == 1);
      CHECK(result[0].channels_before == 7);
      CHECK(result[0].channels_after == all);
      CHECK(m.values.empty());
      // Each channel of the new weights is one of the old ones, so many times, times a factor.
      const auto grown = doubles(m.initializers.at("a_w"));
      const auto bias = doubles(b.get().initializers.at("a_b"));
      const auto new_bias = doubles(m.initializers.at("a_b"));
      REQUIRE(grown.size() == all * 27);
      REQUIRE(new_bias.size() == all);
      for (std::size_t c = 0; c < 7; ++c) {
        const double factor = std::sqrt(1.0 / static_cast<double>(copies[c]));
        std::size_t found = 0;
        for (std::size_t j = 0; j < all; ++j) {
          bool same = std::fabs(new_bias[j] - bias[c] * factor) <= 1e-6;
          for (std::size_t i = 0; same && i < 27; ++i) {
            same = std::fabs(grown[j * 27 + i] - w[c * 27 + i] * factor) <= 1e-6 * 16.0;
          }
          found += same ? 1 : 0;
        }
        CHECK(found == copies[c]);
      }
    }
  }
}

TEST_CASE("channel split: chains, groups and options") {
  test::random_source r(3);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 6, 6});
  std::string y = b.add("Relu", {uneven_convolution(b, r, "x", "a", {4, 3, 1, 1})});
  y = b.add("Relu", {uneven_convolution(b, r, y, "b", {6, 4, 1, 1}, {}, false)});
  auto depthwise = same_size;
  depthwise["group"] = number(6);
  y = b.add("Relu", {uneven_convolution(b, r, y, "c", {6, 1, 3, 3}, depthwise)});
  b.constant("d_w", uneven(r, {6, 5, 2, 2}, 0));
  y = b.add("Relu", {b.add("ConvTranspose", {y, "d_w"})});
  b.output(uneven_convolution(b, r, y, "e", {2, 5, 1, 1}));
  const tensors inputs{{"x", random_floats(r, {1, 3, 6, 6}, -1.0F, 1.0F)}};
  graph::model m = b.get();
  const auto result = graph::split_channels(m, {.threshold = 0.05});
  REQUIRE(result.size() == 2);
  CHECK(result[0].upstream == "Conv node 'Conv_0'");
  CHECK(result[1].upstream == "ConvTranspose node 'ConvTranspose_6'");
  CHECK(result[0].channels_after <= 8);
  CHECK(m.initializers.at("c_w").dims() == shape{6, 1, 3, 3});
  CHECK(distance(b.get(), m, inputs) < 1e-5);
  check_graph_error(error_kind::invalid_argument, {"split_channels", "threshold 0"},
                    [&] { graph::split_channels(m, {.threshold = 0.0}); });
  check_graph_error(error_kind::invalid_argument, {"split_channels", "growth 0.5"},
                    [&] { graph::split_channels(m, {.largest_growth = 0.5}); });
}

TEST_CASE("weight split: two layers whose weights sum up to those of one") {
  test::random_source r(4);
  INFO("seed ", r.seed());
  for (const char* type : {"Conv", "ConvTranspose", "Gemm", "MatMul"}) {
    for (const auto mode : {graph::weight_split_mode::balance, graph::weight_split_mode::random}) {
      INFO(type, " mode ", static_cast<int>(mode));
      const bool spatial = std::string(type).rfind("Conv", 0) == 0;
      const shape dims = spatial ? shape{4, 4, 3, 3} : shape{4, 4};
      const shape in = spatial ? shape{2, 4, 5, 5} : shape{3, 4};
      model_builder b;
      b.input("x", in);
      tensor weights = random_floats(r, dims, -4.0F, 4.0F);
      weights.mutable_data<float>()[0] = 2.0F;  // not above the threshold
      std::vector<std::string> names{"x", b.constant("w", weights)};
      if (std::string(type) != "MatMul") {
        names.push_back(b.constant("b", random_floats(r, {4}, -1.0F, 1.0F)));
      }
      b.output(b.add(type, names));
      b.output(b.add("Relu", {b.add("Sigmoid", {b.get().outputs[0].name})}));
      const std::string name = b.get().nodes[0].name;
      const tensors inputs{{"x", random_floats(r, in, -1.0F, 1.0F)}};
      graph::model m = b.get();
      const std::size_t split = graph::split_weights(m, name, {.threshold = 2.0F, .mode = mode});
      graph::sort_and_check(m);
      CHECK(distance(b.get(), m, inputs) < 1e-5);
      CHECK(count(m, type) == 2);
      CHECK(count(m, "Add") == 1);
      CHECK(m.nodes[2].outputs == b.get().nodes[0].outputs);
      CHECK(m.nodes[1].inputs.size() == 2);
      const auto w = test::values_of<float>(b.get().initializers.at("w"));
      const auto first = test::values_of<float>(m.initializers.at(m.nodes[0].inputs[1]));
      const auto second = test::values_of<float>(m.initializers.at(m.nodes[1].inputs[1]));
      std::size_t large = 0;
      bool equal = true;
      for (std::size_t k = 0; k < w.size(); ++k) {
        if (std::fabs(w[k]) > 2.0F) {
          ++large;
          equal = equal && first[k] == second[k];
          CHECK(std::fabs(first[k] + second[k] - w[k]) <= 1e-6F);
          CHECK(std::fabs(first[k]) + std::fabs(second[k]) <= std::fabs(w[k]) * 1.000001F);
        } else {
          CHECK(first[k] == w[k]);
          CHECK(second[k] == 0.0F);
        }
      }
      CHECK(split == large);
      CHECK(large > 0);
      CHECK(equal == (mode == graph::weight_split_mode::balance));
      graph::model again = b.get();
      graph::split_weights(again, name, {.threshold = 2.0F, .mode = mode});
      CHECK(constants(again) == constants(m));
      if (mode == graph::weight_split_mode::random) {
        again = b.get();
        graph::split_weights(again, name, {.threshold = 2.0F, .mode = mode, .seed = 1});
        CHECK(constants(again) != constants(m));
      }
      again = b.get();
      CHECK(graph::split_weights(again, name, {.threshold = 5.0F}) == 0);
      CHECK(constants(again) == constants(b.get()));
      CHECK(again.nodes.size() == b.get().nodes.size());
      const auto invalid = error_kind::invalid_argument;
      check_graph_error(invalid, {"no node 'nobody'"}, [&] { graph::split_weights(m, "nobody"); });
      check_graph_error(invalid, {"no node ''"}, [&] { graph::split_weights(m, ""); });
      check_graph_error(invalid, {"Sigmoid node", "not a layer"},
                        [&] { graph::split_weights(m, "Sigmoid_1"); });
      check_graph_error(invalid, {"threshold is -1"},
                        [&] { graph::split_weights(m, name, {.threshold = -1.0F}); });
      again.nodes.push_back(again.nodes[0]);
      check_graph_error(invalid, {"two nodes", name}, [&] { graph::split_weights(again, name); });
    }
  }
}

// -------------------------------------------------------------------------------------------
// SmoothQuant

namespace {

struct smoothing_case {
  const char* name;
  std::string into;  // the operator that takes the inverse; empty: a Mul is inserted
  std::function<std::string(model_builder&, test::random_source&)> make;  // of 6 features, rank 3
};

std::vector<smoothing_case> smoothing_cases() {
  const auto constant = [](model_builder& b, test::random_source& r, const char* name, shape dims) {
    return b.constant(name, random_floats(r, std::move(dims), 0.5F, 2.0F));
  };
  const auto layer = [=](model_builder& b, test::random_source& r) {
    b.constant("p", uneven(r, {6, 6}, 1));
    return b.add("MatMul", {"x", "p"});
  };
  const auto normalization = [=](model_builder& b, test::random_source& r, bool bias) {
    std::vector<std::string> inputs{"x", constant(b, r, "gamma", {6})};
    if (bias) {
      inputs.push_back(constant(b, r, "beta", {6}));
    }
    return b.add("LayerNormalization", inputs);
  };
  return {
      {"an input of the graph", "", [](model_builder&, test::random_source&) { return "x"; }},
      {"LayerNormalization", "LayerNormalization",
       [=](model_builder& b, test::random_source& r) { return normalization(b, r, true); }},
      {"LayerNormalization without bias", "LayerNormalization",
       [=](model_builder& b, test::random_source& r) { return normalization(b, r, false); }},
      {"LayerNormalization of one scale", "LayerNormalization",
       [=](model_builder& b, test::random_source& r) {
         return b.add("LayerNormalization", {"x", constant(b, r, "gamma", {1})});
       }},
      {"LayerNormalization over both axes", "LayerNormalization",
       [=](model_builder& b, test::random_source& r) {
         return b.add("LayerNormalization", {"x", constant(b, r, "gamma", {4, 6})},
                      {{"axis", number(1)}});
       }},
      {"LayerNormalization by an input", "",
       [](model_builder& b, test::random_source&) {
         return b.add("LayerNormalization", {"x", b.input("gamma", {6})});
       }},
      {"LayerNormalization that the graph returns", "",
       [=](model_builder& b, test::random_source& r) {
         const std::string y = normalization(b, r, true);
         b.output(y);
         return y;
       }},
      {"LayerNormalization and a residual", "",
       [=](model_builder& b, test::random_source& r) {
         const std::string y = normalization(b, r, true);
         b.output(b.add("Add", {y, "x"}));
         return y;
       }},
      {"MatMul", "MatMul", layer},
      {"MatMul, Add, Relu", "MatMul",
       [=](model_builder& b, test::random_source& r) {
         const std::string y = layer(b, r);
         return b.add("Relu", {b.add("Add", {constant(b, r, "c", {6}), y})});
       }},
      {"MatMul, Gelu", "",
       [=](model_builder& b, test::random_source& r) { return b.add("Sigmoid", {layer(b, r)}); }},
      {"Mul", "Mul",
       [=](model_builder& b, test::random_source& r) {
         return b.add("Mul", {b.add("Sigmoid", {"x"}), constant(b, r, "c", {6})});
       }},
      {"Mul with a scalar", "Mul",
       [=](model_builder& b, test::random_source& r) {
         return b.add("Mul", {constant(b, r, "c", {}), b.add("Sigmoid", {"x"})});
       }},
      {"Mul of two values", "",
       [=](model_builder& b, test::random_source&) {
         return b.add("Mul", {b.add("Sigmoid", {"x"}), "x"});
       }},
      {"Div", "Div",
       [=](model_builder& b, test::random_source& r) {
         return b.add("Div", {b.add("Sigmoid", {"x"}), constant(b, r, "c", {1, 1, 6})});
       }},
      {"Mul that adds the features", "Mul",
       [=](model_builder& b, test::random_source& r) {
         const auto narrow =
             b.add("ReduceMax", {"x"}, {{"axes", list({2})}, {"keepdims", number(1)}});
         return b.add("Mul", {narrow, constant(b, r, "c", {6})});
       }},
      {"Reshape", "",
       [=](model_builder& b, test::random_source& r) {
         return b.add("Reshape", {normalization(b, r, true), b.constant("dims", {4, 2, 6})});
       }},
  };
}

graph::smoothed_value only(const std::vector<graph::smoothed_value>& all) {
  REQUIRE(all.size() == 1);
  return all[0];
}

}  // namespace

TEST_CASE("smooth_quant: who takes the inverse, and that outputs are the same") {
  test::random_source r(5);
  INFO("seed ", r.seed());
  for (const smoothing_case& c : smoothing_cases()) {
    for (const bool powers : {true, false}) {
      INFO(c.name, powers ? ", powers of two" : "");
      model_builder b;
      b.input("x", {2, 4, 6});
      const std::string value = c.make(b, r);
      // Two layers that share one vector.
      b.output(b.add("MatMul", {value, b.constant("v", uneven(r, {6, 5}, 0))}));
      b.output(b.add("MatMul", {value, b.constant("w", uneven(r, {6, 3}, 0))}));
      tensors inputs{{"x", random_floats(r, {2, 4, 6}, -1.0F, 1.0F)}};
      if (b.get().inputs.size() > 1) {
        inputs["gamma"] = random_floats(r, {6}, 0.5F, 2.0F);
      }
      graph::graph_smoothing_options options;
      options.scales.power_of_two = powers;
      options.scales.alpha = 0.7F;
      const auto values = graph::smoothing_values(b.get(), options);
      CHECK(values.at(value) == 2);
      const auto magnitudes = graph::channel_magnitudes(
          graph::observe_channels(b.get(), samples_source({inputs}), values));
      graph::model m = b.get();
      const graph::channel_magnitude_map only_this{{value, magnitudes.at(value)}};
      const graph::smoothed_value s = only(graph::smooth_quant(m, only_this, options));
      graph::sort_and_check(m);
      CHECK(s.value == value);
      CHECK(s.layers.size() == 2);
      CHECK(s.into.substr(0, s.into.find(' ')) == c.into);
      CHECK(count(m, "Mul") == count(b.get(), "Mul") + (c.into.empty() ? 1 : 0));
      if (powers) {
        CHECK(different(m, b.get(), inputs) == "");
      } else {
        CHECK(distance(b.get(), m, inputs) < 1e-5);
      }
      const auto v = doubles(b.get().initializers.at("v"));
      const auto w = doubles(b.get().initializers.at("w"));
      const std::string now = m.nodes.back().inputs[0];
      const std::vector<float> after = value_of(m, now, inputs);
      const std::vector<float> before = value_of(b.get(), value, inputs);
      REQUIRE(s.scales.size() == 6);
      for (std::size_t j = 0; j < 6; ++j) {
        double largest = 0.0;
        for (std::size_t k = 0; k < 5; ++k) {
          largest = (std::max)(largest, std::fabs(v[j * 5 + k]));
        }
        for (std::size_t k = 0; k < 3; ++k) {
          largest = (std::max)(largest, std::fabs(w[j * 3 + k]));
        }
        const double a = static_cast<double>(magnitudes.at(value)[j]);
        const double expected = std::pow(a, static_cast<double>(0.7F)) /
                                std::pow(largest, 1.0 - static_cast<double>(0.7F));
        const double ratio = static_cast<double>(s.scales[j]) / expected;
        CHECK(ratio <= (powers ? std::sqrt(2.0) : 1.0) + 1e-6);
        CHECK(ratio >= (powers ? std::sqrt(0.5) : 1.0) - 1e-6);
        for (std::size_t k = j; k < before.size(); k += 6) {
          CHECK(after[k] == doctest::Approx(before[k] / s.scales[j]).epsilon(1e-5));
        }
        for (std::size_t k = 0; k < 5; ++k) {
          CHECK(doubles(m.initializers.at("v"))[j * 5 + k] ==
                doctest::Approx(v[j * 5 + k] * static_cast<double>(s.scales[j])).epsilon(1e-6));
        }
      }
      if (c.into.empty()) {
        graph::model untouched = b.get();
        options.insert_mul = false;
        CHECK(graph::smooth_quant(untouched, only_this, options).empty());
        CHECK(constants(untouched) == constants(b.get()));
      }
    }
  }
}

TEST_CASE("smooth_quant: all layers of a model, convolutions, several vectors of one value") {
  test::random_source r(6);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 6, 6});
  std::string y = b.add("Relu", {uneven_convolution(b, r, "x", "a", {8, 3, 3, 3}, same_size)});
  auto depthwise = same_size;
  depthwise["group"] = number(8);
  y = b.add("Relu", {uneven_convolution(b, r, y, "b", {8, 1, 3, 3}, depthwise)});
  y = b.add("Relu", {uneven_convolution(b, r, y, "c", {4, 8, 1, 1})});
  y = b.add("Flatten", {y});
  b.constant("v", uneven(r, {5, 144}, 1));
  y = b.add("Relu", {b.add("Gemm", {y, "v"}, {{"transB", number(1)}})});
  b.constant("w", uneven(r, {5, 3}, 0));
  b.output(b.add("Gemm", {y, "w"}));
  std::vector<tensors> samples;
  for (int i = 0; i < 3; ++i) {
    samples.push_back({{"x", random_floats(r, {2, 3, 6, 6}, -1.0F, 1.0F)}});
  }
  graph::graph_smoothing_options options;
  options.scales.power_of_two = true;
  for (const bool convolutions : {false, true}) {
    options.convolution_alpha = convolutions ? std::optional(0.4F) : std::nullopt;
    const auto values = graph::smoothing_values(b.get(), options);
    CHECK(values.size() == (convolutions ? 5 : 2));
    graph::model m = b.get();
    const auto result = graph::smooth_quant(m,
                                            graph::channel_magnitudes(graph::observe_channels(
                                                b.get(), samples_source(samples), values)),
                                            options);
    graph::sort_and_check(m);
    CHECK(!result.empty());
    // Features behind Flatten have scales of their own, which a convolution cannot take; the input
    // has nobody before it.
    for (const graph::smoothed_value& s : result) {
      INFO(s.value, " into ", s.into);
      const bool nobody = s.value == "x" || s.value.rfind("Flatten", 0) == 0;
      CHECK(s.into.empty() == nobody);
    }
    CHECK(count(m, "Mul") ==
          static_cast<std::size_t>(std::count_if(result.begin(), result.end(),
                                                 [](const auto& s) { return s.into.empty(); })));
    for (const tensors& sample : samples) {
      CHECK(different(m, b.get(), sample) == "");
    }
  }

  // A convolution and a MatMul with the same value: the axes differ, and so do the vectors.
  model_builder both;
  both.input("x", {2, 3, 4, 5});
  both.output(uneven_convolution(both, r, "x", "a", {2, 3, 1, 1}));
  both.constant("w", uneven(r, {5, 3}, 0));
  both.output(both.add("MatMul", {"x", "w"}));
  graph::model m = both.get();
  // One vector of magnitudes cannot serve both.
  check_graph_error(error_kind::shape_mismatch, {"tensor 'x'", "3 magnitudes", "5 channels"}, [&] {
    graph::smooth_quant(m, {{"x", {1, 2, 3}}}, options);
  });
  CHECK(constants(m) == constants(both.get()));
}

TEST_CASE("smooth_quant: presets of NNCF and Intel Neural Compressor, errors") {
  test::random_source r(7);
  INFO("seed ", r.seed());
  for (int trial = 0; trial < 20; ++trial) {
    constexpr std::size_t n = 9;
    model_builder b;
    b.input("x", {4, n});
    b.constant("v", uneven(r, {n, 5}, 0));
    tensor w = uneven(r, {n, 3}, 0);
    for (std::size_t k = 0; k < 3; ++k) {
      w.mutable_data<float>()[4 * 3 + k] = 0.0F;
    }
    b.constant("w", w);
    b.output(b.add("Gemm", {"x", "v"}));
    b.output(b.add("Gemm", {"x", "w"}));
    std::vector<float> a(n);
    for (float& x : a) {
      x = std::ldexp(r.real(0.5F, 1.0F), r.integer(-6, 9));
    }
    a[2] = 0.0F;
    const auto vector_of = [&](const tensor& t, std::size_t columns, double alpha) {
      std::vector<double> s(n, 1.0);
      for (std::size_t j = 0; j < n; ++j) {
        double largest = 0.0;
        for (std::size_t k = 0; k < columns; ++k) {
          largest = (std::max)(largest, std::fabs(doubles(t)[j * columns + k]));
        }
        if (a[j] > 0.0F && largest > 0.0) {
          s[j] = std::pow(static_cast<double>(a[j]), alpha) / std::pow(largest, 1.0 - alpha);
        } else {
          s[j] = 0.0;  // not live
        }
      }
      return s;
    };
    const auto clipped = [&](std::vector<double> s) {
      std::vector<double> live;
      for (const double x : s) {
        if (x > 0.0) {
          live.push_back(x);
        }
      }
      std::sort(live.begin(), live.end());
      const double place = static_cast<double>(0.1F) * static_cast<double>(live.size() - 1);
      const auto i = static_cast<std::size_t>(place);
      const double least = live[i] + (place - std::floor(place)) * (live[i + 1] - live[i]);
      for (double& x : s) {
        x = x == 0.0 ? 1.0 : (std::min)((std::max)(x, (std::min)(least, 100.0)), 100.0);
      }
      return s;
    };
    const auto ratio = [](const std::vector<double>& s) {
      return *std::min_element(s.begin(), s.end()) / *std::max_element(s.begin(), s.end());
    };
    const tensor& v = b.get().initializers.at("v");
    const auto alpha = static_cast<double>(0.95F);
    const auto of_v = clipped(vector_of(v, 5, alpha));
    const auto of_w = clipped(vector_of(w, 3, alpha));
    const auto& expected = ratio(of_w) > ratio(of_v) ? of_w : of_v;
    graph::model m = b.get();
    const auto s = only(graph::smooth_quant(m, {{"x", a}}, graph::graph_smoothing_options::nncf()));
    for (std::size_t j = 0; j < n; ++j) {
      INFO("feature ", j);
      CHECK(static_cast<double>(s.scales[j]) == doctest::Approx(expected[j]).epsilon(1e-5));
    }
    const tensors inputs{{"x", random_floats(r, {4, n}, -1.0F, 1.0F)}};
    CHECK(distance(b.get(), m, inputs) < 1e-5);

    m = b.get();
    const auto inc =
        only(graph::smooth_quant(m, {{"x", a}}, graph::graph_smoothing_options::inc()));
    for (std::size_t j = 0; j < n; ++j) {
      const double both = (std::max)(1e-300, static_cast<double>(a[j]));
      double largest = 0.0;
      for (std::size_t k = 0; k < 5; ++k) {
        largest = (std::max)(largest, std::fabs(doubles(v)[j * 5 + k]));
      }
      for (std::size_t k = 0; k < 3; ++k) {
        largest = (std::max)(largest, std::fabs(doubles(w)[j * 3 + k]));
      }
      CHECK(static_cast<double>(inc.scales[j]) ==
            doctest::Approx(j == 2 ? 1.0 : std::sqrt(both / largest)).epsilon(1e-5));
    }

    m = b.get();
    CHECK(graph::smooth_quant(m, {}).empty());
    const auto smooth = [&](std::vector<float> magnitudes,
                            const graph::graph_smoothing_options& o = {}) {
      graph::smooth_quant(m, {{"x", std::move(magnitudes)}}, o);
    };
    check_graph_error(error_kind::shape_mismatch, {"tensor 'x'", "2 magnitudes", "9 channels"},
                      [&] {
                        smooth({1.0F, 2.0F});
                      });
    auto bad = a;
    bad[7] = -1.0F;
    check_graph_error(error_kind::invalid_argument, {"tensor 'x'", "feature 7", "-1"},
                      [&] { smooth(bad); });
    graph::graph_smoothing_options options;
    options.scales.alpha = 2.0F;
    check_graph_error(error_kind::invalid_argument, {"tensor 'x'", "alpha 2"},
                      [&] { smooth(a, options); });
    CHECK(constants(m) == constants(b.get()));
    CHECK(m.nodes.size() == 2);
  }
}

// -------------------------------------------------------------------------------------------
// channel alignment

TEST_CASE("align_channels: ranges become alike, outputs stay") {
  test::random_source r(8);
  INFO("seed ", r.seed());
  for (const bool bias : {false, true}) {
    for (int trial = 0; trial < 5; ++trial) {
      model_builder b;
      b.input("x", {2, 3, 8, 8});
      auto strided = same_size;
      strided["strides"] = list({2, 1});
      std::string y = uneven_convolution(b, r, "x", "a", {6, 3, 3, 3}, strided, bias);
      const std::string between = y;
      b.output(uneven_convolution(b, r, y, "c", {4, 6, 3, 2}, {}, bias));
      CHECK(graph::alignment_values(b.get()) == std::map<std::string, std::size_t>{{between, 1}});
      std::vector<tensors> samples;
      for (int i = 0; i < 4; ++i) {
        samples.push_back({{"x", random_floats(r, {2, 3, 8, 8}, -1.0F, 2.0F)}});
      }
      const auto statistics = graph::observe_channels(b.get(), samples_source(samples),
                                                      graph::alignment_values(b.get()),
                                                      graph::channel_alignment_observer());
      auto ranges = graph::channel_ranges(statistics);
      // NNCF's quantiles: interpolated in each sample, then the median of an even number.
      for (std::size_t c = 0; c < 6; ++c) {
        std::vector<double> lower;
        std::vector<double> upper;
        for (const tensors& sample : samples) {
          const std::vector<float> values = value_of(b.get(), between, sample);
          std::vector<double> channel;
          for (std::size_t k = 0; k < values.size(); ++k) {
            if (k / 32 % 6 == c) {
              channel.push_back(static_cast<double>(values[k]));
            }
          }
          std::sort(channel.begin(), channel.end());
          REQUIRE(channel.size() == 64);
          lower.push_back(channel[0] + 63 * 1e-4 * (channel[1] - channel[0]));
          upper.push_back(channel[63] - 63 * 1e-4 * (channel[63] - channel[62]));
        }
        std::sort(lower.begin(), lower.end());
        std::sort(upper.begin(), upper.end());
        CHECK(static_cast<double>(ranges.at(between)[c].lower) ==
              doctest::Approx((lower[1] + lower[2]) / 2).epsilon(1e-6));
        CHECK(static_cast<double>(ranges.at(between)[c].upper) ==
              doctest::Approx((upper[1] + upper[2]) / 2).epsilon(1e-6));
      }
      if (trial == 1) {
        ranges.at(between)[4] = {0.5F, 0.5F};  // no range: it is shifted, not scaled
      }
      graph::model m = b.get();
      const auto result = graph::align_channels(m, ranges);
      REQUIRE(result.size() == 1);
      std::vector<double> lengths;
      std::vector<double> live;
      for (const auto& range : ranges.at(between)) {
        lengths.push_back(static_cast<double>(range.upper) - static_cast<double>(range.lower));
        if (lengths.back() > 0.0) {
          live.push_back(lengths.back());
        }
      }
      std::sort(live.begin(), live.end());
      const double median = live.size() % 2 == 1 ? live[live.size() / 2] : (live[2] + live[3]) / 2;
      const auto w = doubles(b.get().initializers.at("a_w"));
      const auto v = doubles(b.get().initializers.at("c_w"));
      std::vector<double> second(4, 0.0);
      const std::string first_bias = m.nodes[0].inputs.at(2);
      const std::string second_bias = m.nodes[1].inputs.at(2);
      for (std::size_t c = 0; c < 6; ++c) {
        INFO("channel ", c);
        const auto range = ranges.at(between)[c];
        const double shift =
            (static_cast<double>(range.lower) + static_cast<double>(range.upper)) / 2;
        const double scale =
            lengths[c] > 0.0 ? (std::min)((std::max)(lengths[c] / median, 0.01), 100.0) : 1.0;
        CHECK(result[0].shifts[c] == doctest::Approx(shift).epsilon(1e-12));
        CHECK(result[0].scales[c] == doctest::Approx(scale).epsilon(1e-12));
        const double old = bias ? doubles(b.get().initializers.at("a_b"))[c] : 0.0;
        CHECK(doubles(m.initializers.at(first_bias))[c] ==
              doctest::Approx((old - shift) / scale).epsilon(1e-5));
        for (std::size_t k = 0; k < 27; ++k) {
          CHECK(doubles(m.initializers.at("a_w"))[c * 27 + k] ==
                doctest::Approx(w[c * 27 + k] / scale).epsilon(1e-6));
        }
        for (std::size_t o = 0; o < 4; ++o) {
          for (std::size_t k = 0; k < 6; ++k) {
            const std::size_t at = (o * 6 + c) * 6 + k;
            second[o] += v[at] * shift;
            CHECK(doubles(m.initializers.at("c_w"))[at] ==
                  doctest::Approx(v[at] * scale).epsilon(1e-6));
          }
        }
      }
      for (std::size_t o = 0; o < 4; ++o) {
        const double old = bias ? doubles(b.get().initializers.at("c_b"))[o] : 0.0;
        CHECK(doubles(m.initializers.at(second_bias))[o] ==
              doctest::Approx(old + second[o]).epsilon(1e-5));
      }
      for (const tensors& sample : samples) {
        CHECK(distance(b.get(), m, sample) < 1e-5);
      }
    }
  }
}

TEST_CASE("align_channels: what is left alone, errors") {
  test::random_source r(9);
  INFO("seed ", r.seed());
  struct kind {
    const char* name;
    bool aligned;
    test::attributes first;
    test::attributes second;
    const char* between;
  };
  const kind kinds[] = {
      {"plain", true, {}, {}, ""},
      {"first one strided and padded",
       true,
       {{"strides", list({2, 2})}, {"pads", list({1, 1, 1, 1})}},
       {},
       ""},
      {"no padding by name", true, {}, {{"auto_pad", test::text("VALID")}}, ""},
      {"second one padded", false, {}, {{"pads", list({0, 0, 1, 0})}}, ""},
      {"second one padded by name", false, {}, {{"auto_pad", test::text("SAME_UPPER")}}, ""},
      {"second one strided", false, {}, {{"strides", list({1, 2})}}, ""},
      {"second one dilated", false, {}, {{"dilations", list({2, 1})}}, ""},
      {"groups first", false, {{"group", number(2)}}, {}, ""},
      {"groups second", false, {}, {{"group", number(2)}}, ""},
      {"Relu", false, {}, {}, "Relu"},
      {"second consumer", false, {}, {}, "consumer"},
      {"graph output", false, {}, {}, "output"},
  };
  for (const kind& k : kinds) {
    INFO(k.name);
    model_builder b;
    b.input("x", {1, 4, 9, 9});
    const std::int64_t first_group = k.first.count("group") != 0 ? 2 : 1;
    const std::int64_t second_group = k.second.count("group") != 0 ? 2 : 1;
    std::string y = uneven_convolution(b, r, "x", "a", {4, 4 / first_group, 3, 3}, k.first);
    if (std::string(k.between) == "Relu") {
      y = b.add("Relu", {y});
    } else if (std::string(k.between) == "consumer") {
      b.output(b.add("Relu", {y}));
    } else if (std::string(k.between) == "output") {
      b.output(y);
    }
    b.output(uneven_convolution(b, r, y, "c", {2, 4 / second_group, 2, 2}, k.second));
    graph::model m = b.get();
    const auto result = graph::align_channels(m, {{y, {{-1, 2}, {0, 3}, {-4, -1}, {1, 2}}}});
    CHECK(result.size() == (k.aligned ? 1 : 0));
    CHECK((constants(m) == constants(b.get())) == !k.aligned);
    CHECK(graph::alignment_values(b.get()).size() == (k.aligned ? 1 : 0));
    const tensors inputs{{"x", random_floats(r, {1, 4, 9, 9}, -1.0F, 1.0F)}};
    CHECK(distance(b.get(), m, inputs) < 1e-5);
  }
  model_builder b;
  b.input("x", {1, 3, 5, 5});
  const std::string y = uneven_convolution(b, r, "x", "a", {2, 3, 1, 1});
  b.output(uneven_convolution(b, r, y, "c", {2, 2, 1, 1}));
  graph::model m = b.get();
  CHECK(graph::align_channels(m, {}).empty());
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto invalid = error_kind::invalid_argument;
  check_graph_error(error_kind::shape_mismatch, {"Conv node 'Conv_0'", "1 ranges", "2 outputs"},
                    [&] {
                      graph::align_channels(m, {{y, {{0, 1}}}});
                    });
  check_graph_error(invalid, {"Conv node 'Conv_0'", "2 .. 1", "output 1"}, [&] {
    graph::align_channels(m, {{y, {{0, 1}, {2, 1}}}});
  });
  check_graph_error(invalid, {"Conv node 'Conv_0'", "inf", "output 0"}, [&] {
    graph::align_channels(m, {{y, {{0, infinity}, {0, 1}}}});
  });
  CHECK(constants(m) == constants(b.get()));
  graph::model huge = b.get();
  huge.initializers.at("c_w") = floats({2, 2, 1, 1}, {3e38F, 3e38F, 1.0F, 1.0F});
  const auto before = constants(huge);
  check_graph_error(error_kind::overflow, {"Conv node 'Conv_1'"}, [&] {
    graph::align_channels(huge, {{y, {{0, 100}, {0, 100}}}});
  });
  CHECK(constants(huge) == before);
}
