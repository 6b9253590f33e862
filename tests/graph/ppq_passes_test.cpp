// SPDX-License-Identifier: BSD-3-Clause
// PPQ's passes beside calibration: what rewrites the float network leaves its function as it is and
// comes first, biases are corrected where that helps; dispatchers; ranges that are found in each
// run.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/bias_correction.hpp>
#include <detent/graph/ppq/dispatcher.hpp>
#include <detent/graph/ppq/equalization.hpp>
#include <detent/graph/ppq/error_report.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/quantizing_passes.hpp>
#include <detent/graph/ppq/splitting.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "compare.hpp"
#include "compare_models.hpp"
#include "inspect_model.hpp"
#include "model_builder.hpp"
#include "ppq_graphs.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
using property = ppq::quantization_property;

std::string chosen(const quantized_graph& g) {
  std::string names;
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    names += g.operators[i].is_quantized() ? g.network.nodes[i].op_type + " " : "";
  }
  return names;
}

/// x [n, 6] -> Gemm to 8 -> Relu -> Gemm to 5. Of channel c between the layers, the first one's
/// weights and bias are `factors[c]` times as large, the second one's divided by that.
graph::model perceptron(test::random_source& r, const std::vector<float>& factors) {
  const std::size_t hidden = factors.size();
  const auto h = static_cast<std::int64_t>(hidden);
  tensor w1 = random_floats(r, {6, h}, -1.0F, 1.0F);
  tensor b1 = random_floats(r, {h}, -0.5F, 0.5F);
  tensor w2 = random_floats(r, {h, 5}, -1.0F, 1.0F);
  for (std::size_t k = 0; k < w1.count(); ++k) {
    w1.mutable_data<float>()[k] *= factors[k % hidden];
  }
  for (std::size_t c = 0; c < hidden; ++c) {
    b1.mutable_data<float>()[c] *= factors[c];
  }
  for (std::size_t k = 0; k < w2.count(); ++k) {
    w2.mutable_data<float>()[k] /= factors[k / 5];
  }
  model_builder b;
  b.input("x", {-1, 6});
  b.constant("w1", w1);
  b.constant("b1", b1);
  b.constant("w2", w2);
  b.constant("b2", random_floats(r, {5}, -0.5F, 0.5F));
  const std::string y = b.add("Relu", {b.add("Gemm", {"x", "w1", "b1"})});
  b.output(b.add("Gemm", {y, "w2", "b2"}));
  return b.get();
}
std::vector<float> uneven_factors(test::random_source& r, int exponent) {
  std::vector<float> factors;
  for (int c = 0; c < 8; ++c) {
    factors.push_back(
        std::ldexp(r.real(0.5F, 1.0F), c == 0 ? exponent : r.integer(-exponent, exponent)));
  }
  return factors;
}
std::vector<float> even_factors() { return std::vector<float>(8, 1.0F); }

/// How far two ways to compute a model may be apart, if each result sums up no more than `terms`
/// products and constants on its way, of which each is rounded a few times: the results of the
/// model with magnitudes only, times the number of roundings, times the half unit of each, for
/// both.
std::vector<double> rounding_bounds(graph::model m, tensors inputs, std::size_t terms) {
  const auto magnitudes = [](tensor& t) {
    std::vector<float> values = values_of<float>(t);
    for (float& v : values) {
      v = std::fabs(v);
    }
    t = floats(t.dims(), values);
  };
  for (auto& [name, t] : m.initializers) {
    if (t.type() == element_type::f32) {
      magnitudes(t);
    }
  }
  for (auto& [name, t] : inputs) {
    magnitudes(t);
  }
  std::vector<double> bounds;
  const std::vector<float> sums = run(m, inputs).at(0);
  for (const float sum : sums) {
    bounds.push_back(2.0 * static_cast<double>(terms + 8) * std::ldexp(1.0, -24) *
                     static_cast<double>(sum));
  }
  return bounds;
}
void check_same_function(const graph::model& a, const graph::model& b, const tensors& inputs,
                         std::size_t terms) {
  const std::vector<double> bounds = rounding_bounds(a, inputs, terms);
  const std::vector<float> x = run(a, inputs).at(0);
  const std::vector<float> y = run(b, inputs).at(0);
  REQUIRE(x.size() == y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO("result ", i, ": ", x[i], " and ", y[i]);
    CHECK(std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])) <= bounds[i]);
  }
}

/// The mean of noise / signal of what a quantized model returns, by plain loops.
double noise_of(const graph::model& float_model, const graph::model& quantized,
                const std::vector<sample>& samples) {
  double sum = 0.0;
  double rows = 0.0;
  for (const sample& s : samples) {
    const std::vector<float> f = run(float_model, s).at(0);
    const std::vector<float> q = run(quantized, s).at(0);
    const std::size_t length = f.size() / static_cast<std::size_t>(s.at("x").dim(0));
    for (std::size_t first = 0; first < f.size(); first += length) {
      double noise = 0.0;
      double signal = 0.0;
      for (std::size_t i = first; i < first + length; ++i) {
        const double d = static_cast<double>(q[i]) - static_cast<double>(f[i]);
        noise += d * d;
        signal += static_cast<double>(f[i]) * static_cast<double>(f[i]);
      }
      sum += noise / (signal + 1e-7);
      rows += 1.0;
    }
  }
  return sum / rows;
}

/// As analysis simulates it: constants are dequantized beforehand.
graph::model simulated(const quantized_graph& g) {
  graph::model written = ppq::to_qdq(g);
  graph::fold_constants(written, true);
  return written;
}

template <class Pass>
quantized_graph quantized_after(const Pass& pass, const graph::model& m, const ppq::platform& p,
                                const std::vector<sample>& samples) {
  quantized_graph g = ppq::make_quantized_graph(m, p);
  ppq::pass_context c{samples_source(samples), {}};
  pass(g, c);
  ppq::run_pipeline(g, ppq::default_pipeline(), c);
  return g;
}
const auto no_pass = [](quantized_graph&, ppq::pass_context&) {};

/// Quotients in float where quantization to few bits has them, in double for biases.
std::vector<double> faked(const std::vector<float>& x, const quantized_graph& g, config_id id) {
  const ppq::tensor_parameters& p = g.configs.parameters(id);
  REQUIRE(p.scales.size() == 1);
  const detent::grid levels = g.configs[id].levels;
  const auto scale = static_cast<double>(p.scales[0]);
  std::vector<double> y;
  for (const float v : x) {
    const double quotient =
        levels.qmax > 65535 ? static_cast<double>(v) / scale : static_cast<double>(v / p.scales[0]);
    const double q = std::nearbyint(quotient) + p.zero_points[0];
    const double clamped = (std::min)((std::max)(q, static_cast<double>(levels.qmin)),
                                      static_cast<double>(levels.qmax));
    y.push_back((clamped - p.zero_points[0]) * scale);
  }
  return y;
}

}  // namespace

// -------------------------------------------------------------------------------- equalization

TEST_CASE("ppq passes: equalization keeps the function and brings the error down") {
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = perceptron(r, uneven_factors(r, 6));
    const std::vector<sample> samples = samples_of_x(r, {4, 6}, 10);
    const ppq::platform p = minmax_platform("snpe");
    quantized_graph g = ppq::make_quantized_graph(m, p);
    ppq::pass_context c{samples_source(samples), {}};
    const auto result = ppq::layerwise_equalization_pass{.value_threshold = 0.0}.run(g, c);
    REQUIRE(result.pairs.size() == 1);
    CHECK(result.pairs[0].changed > 0);
    CHECK(different(g.network, g.float_model, samples[0]) == "");
    CHECK(difference(values_of<float>(g.network.initializers.at("w1")),
                     values_of<float>(m.initializers.at("w1"))) != "");
    for (const sample& s : samples) {
      check_same_function(m, g.network, s, 6 + 1 + 8 + 1);
    }
    ppq::run_pipeline(g, ppq::default_pipeline(), c);
    const double before =
        noise_of(m, ppq::to_qdq(quantized_after(no_pass, m, p, samples)), samples);
    const double after = noise_of(m, ppq::to_qdq(g), samples);
    CHECK(after < 0.25 * before);
    CHECK(after < 1e-2);
    CHECK(ppq::output_error(g, samples_source(samples), {.steps = 10}) ==
          doctest::Approx(noise_of(g.float_model, simulated(g), samples)).epsilon(1e-9));
  }
}

TEST_CASE("ppq analysis: results of 16-bit floats are compared as float32") {
  test::random_source r(12);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, even_factors());
  const std::vector<sample> samples = samples_of_x(r, {4, 6}, 6);
  const auto errors_of = [&](const graph::model& network) {
    quantized_graph g = ppq::make_quantized_graph(network, minmax_platform("snpe"));
    ppq::pass_context c{samples_source(samples), {}};
    ppq::run_pipeline(g, ppq::default_pipeline(), c);
    std::vector<double> errors{ppq::output_error(g, samples_source(samples))};
    for (const auto& e : ppq::layerwise_error_analysis(g, samples_source(samples))) {
      errors.push_back(e.error);
    }
    return errors;
  };
  const std::vector<double> expected = errors_of(m);
  REQUIRE(expected.size() == 3);
  for (const element_type type : {element_type::f16, element_type::bf16}) {
    INFO(graph::name(type));
    graph::model narrow = m;
    graph::node cast;
    cast.op_type = "Cast";
    cast.inputs = {m.outputs[0].name};
    cast.outputs = {"narrow"};
    cast.attributes["to"] = graph::attribute::of(static_cast<std::int64_t>(type));
    narrow.nodes.push_back(cast);
    narrow.outputs[0].name = "narrow";
    narrow.outputs[0].type = type;
    const std::vector<double> errors = errors_of(narrow);
    REQUIRE(errors.size() == expected.size());
    for (std::size_t i = 0; i < errors.size(); ++i) {
      CHECK(expected[i] > 0.0);
      // bfloat16 has 8 bits, as the levels of the quantized network have.
      CHECK(errors[i] ==
            doctest::Approx(expected[i]).epsilon(type == element_type::f16 ? 0.05 : 1));
    }
  }
}

TEST_CASE("ppq passes: the factors of a sweep, with biases and activations") {
  test::random_source r(11);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, uneven_factors(r, 3));
  const std::vector<sample> samples = samples_of_x(r, {4, 6}, 5);
  const auto w1 = values_of<float>(m.initializers.at("w1"));
  const auto b1 = values_of<float>(m.initializers.at("b1"));
  const auto w2 = values_of<float>(m.initializers.at("w2"));
  // What the second layer takes: the largest of each channel over the first three samples.
  graph::model hidden = m;
  hidden.outputs[0].name = m.nodes[1].outputs[0];
  std::vector<double> activations(8, 0.0);
  for (std::size_t s = 0; s < 3; ++s) {
    const std::vector<float> y = run(hidden, samples[s]).at(0);
    for (std::size_t k = 0; k < y.size(); ++k) {
      activations[k % 8] = (std::max)(activations[k % 8], static_cast<double>(y[k]));
    }
  }
  const auto expected = [&](double bias, double activation, double threshold) {
    std::vector<double> factors;
    for (std::size_t ch = 0; ch < 8; ++ch) {
      double u = 0.0;
      double d = 0.0;
      for (std::size_t k = 0; k < 6; ++k) {
        u = (std::max)(u, std::fabs(static_cast<double>(w1[k * 8 + ch])));
      }
      for (std::size_t k = 0; k < 5; ++k) {
        d = (std::max)(d, std::fabs(static_cast<double>(w2[ch * 5 + k])));
      }
      u = (std::max)(
          {u, bias * std::fabs(static_cast<double>(b1[ch])), activation * activations[ch]});
      const double f = 1.0 / std::sqrt(u / d);
      factors.push_back(u + d < threshold ? 1.0 : (std::min)((std::max)(f, 0.1), 10.0));
    }
    return factors;
  };
  const auto found = [&](const ppq::layerwise_equalization_pass& pass) {
    quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("tensorrt"));
    ppq::pass_context c{samples_source(samples), {}};
    const auto result = pass.run(g, c);
    CHECK(result.iterations == 1);
    return result.pairs.at(0).factors;
  };
  const auto check = [&](const ppq::layerwise_equalization_pass& pass,
                         const std::vector<double>& factors) {
    const std::vector<double> actual = found(pass);
    REQUIRE(actual.size() == factors.size());
    for (std::size_t i = 0; i < factors.size(); ++i) {
      CHECK(actual[i] == doctest::Approx(factors[i]).epsilon(1e-6));
    }
  };
  check({.iterations = 1}, expected(0.0, 0.0, 0.5));
  check({.iterations = 1, .value_threshold = 3.0}, expected(0.0, 0.0, 3.0));
  check({.iterations = 1, .including_bias = true, .bias_multiplier = 4.0}, expected(4.0, 0.0, 0.5));
  check({.iterations = 1, .including_activation = true, .calib_steps = 3}, expected(0.0, 0.5, 0.5));
  check({.iterations = 1,
         .including_activation = true,
         .activation_multiplier = 8.0,
         .calib_steps = 3},
        expected(0.0, 8.0, 0.5));
  CHECK(expected(0.0, 0.0, 0.5) != expected(0.0, 0.0, 3.0));
  CHECK(expected(0.0, 0.0, 0.5) != expected(4.0, 0.0, 0.5));
  CHECK(expected(0.0, 0.0, 0.5) != expected(0.0, 8.0, 0.5));

  quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("tensorrt"));
  ppq::pass_context none;
  check_graph_error(error_kind::unsupported, {"layerwise_equalization_pass", "optimize_level 2"},
                    [&] { ppq::layerwise_equalization_pass{.optimize_level = 2}(g, none); });
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"}, [&] {
    ppq::layerwise_equalization_pass{.including_activation = true}(g, none);
  });
  CHECK(different(g.network, m, samples[0]) == "");
}

TEST_CASE("ppq passes: SSD keeps what brings the loss down, and nothing else") {
  std::size_t kept = 0;
  for (std::uint64_t seed = 21; seed < 25; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = perceptron(r, uneven_factors(r, 3));
    const std::vector<sample> samples = samples_of_x(r, {4, 6}, 9);
    const ppq::platform p = minmax_platform("snpe");
    quantized_graph g = ppq::make_quantized_graph(m, p);
    ppq::pass_context c{samples_source(samples), {}};
    const ppq::ssd_equalization_pass pass{.iterations = 5, .loss_threshold = 0.95, .loss_steps = 9};
    const auto result = pass.run(g, c);
    REQUIRE(result.pairs.size() == 1);
    kept += result.pairs[0].kept;
    for (const sample& s : samples) {
      check_same_function(m, g.network, s, 6 + 1 + 8 + 1 + 5 * 2);
    }
    // The losses that it tells are those of the network with and without its work.
    quantized_graph plain = ppq::make_quantized_graph(m, p);
    ppq::run_pipeline(plain, ppq::quantizing_passes(), c);
    CHECK(result.loss_before ==
          doctest::Approx(noise_of(m, simulated(plain), samples)).epsilon(1e-6));
    ppq::run_pipeline(g, ppq::quantizing_passes(), c);
    CHECK(result.loss_after == doctest::Approx(noise_of(m, simulated(g), samples)).epsilon(1e-6));
    CHECK(result.loss_after <=
          result.loss_before * std::pow(0.95, static_cast<double>(result.pairs[0].kept)));
    // No loss is below 0.
    quantized_graph same = ppq::make_quantized_graph(m, p);
    CHECK(ppq::ssd_equalization_pass{.loss_threshold = 0.0}.run(same, c).pairs.at(0).kept == 0);
    CHECK(different(same.network, m, samples[0]) == "");
  }
  CHECK(kept > 0);

  test::random_source r(25);
  const graph::model m = perceptron(r, uneven_factors(r, 3));
  quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("snpe"));
  ppq::pass_context none;
  check_graph_error(error_kind::invalid_argument, {"no calibration samples"},
                    [&] { ppq::ssd_equalization_pass{}(g, none); });
  ppq::pass_context c{samples_source(samples_of_x(r, {4, 6}, 9)), {}};
  check_graph_error(error_kind::invalid_argument, {"ssd_equalization_pass", "cosine"},
                    [&] { ppq::ssd_equalization_pass{.loss = ppq::error_method::cosine}(g, c); });
  // The passes that it quantizes with are those that it is given.
  std::size_t runs = 0;
  ppq::pipeline counted = ppq::quantizing_passes();
  counted.push_back({"count", [&](quantized_graph& candidate, ppq::pass_context&) {
                       ++runs;
                       CHECK(candidate.configs[input_config(candidate, "Gemm", 0)].state() ==
                             quantization_state::activated);
                     }});
  ppq::ssd_equalization_pass{.iterations = 1, .quantizing = counted}(g, c);
  CHECK(runs == 2);  // as it was, and one attempt
  check_graph_error(
      error_kind::invalid_argument, {"pass 'runtime calibration'", "calib_steps 3"}, [&] {
        ppq::ssd_equalization_pass{.quantizing =
                                       ppq::quantizing_passes({}, {}, {.calib_steps = 3})}(g, c);
      });
}

// -------------------------------------------------------------------------------------- splits

TEST_CASE("ppq passes: channel split keeps the function, makes configurations anew") {
  double gain = 0.0;  // the logarithm of what the errors are divided by
  for (std::uint64_t seed = 31; seed < 35; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    graph::model m = perceptron(r, even_factors());
    // One channel is large on both sides, and off for all samples: what it costs is the scales.
    std::vector<float> bias = values_of<float>(m.initializers.at("b1"));
    bias[3] = -60.0F;
    m.initializers.at("b1") = floats({8}, bias);
    for (const auto& [name, inner] : {std::pair<std::string, std::size_t>{"w1", 1}, {"w2", 5}}) {
      std::vector<float> w = values_of<float>(m.initializers.at(name));
      for (std::size_t k = 0; k < w.size(); ++k) {
        w[k] *= k / inner % 8 == 3 ? 6.0F : 0.4F;
      }
      m.initializers.at(name) = floats(m.initializers.at(name).dims(), w);
    }
    const std::vector<sample> samples = samples_of_x(r, {4, 6}, 10);
    const ppq::platform p = minmax_platform("fpga");
    const ppq::channel_split_pass pass{.threshold = 1.0, .largest_growth = 10.0};
    quantized_graph g = ppq::make_quantized_graph(m, p);
    ppq::pass_context c{samples_source(samples), {}};
    const auto grown = pass.run(g, c);
    REQUIRE(grown.size() == 1);
    CHECK(grown[0].channels_before == 8);
    CHECK(grown[0].channels_after > 8);
    CHECK(static_cast<std::size_t>(g.network.initializers.at("w1").dim(1)) ==
          grown[0].channels_after);
    for (const sample& s : samples) {
      check_same_function(m, g.network, s, 6 + 1 + grown[0].channels_after + 1 + 10 * 2);
    }
    const double after = noise_of(m, ppq::to_qdq(quantized_after(pass, m, p, samples)), samples);
    const double before =
        noise_of(m, ppq::to_qdq(quantized_after(no_pass, m, p, samples)), samples);
    gain += std::log(before / after);
    // Scales of channels are those of the new ones.
    const quantized_graph channels = quantized_after(pass, m, minmax_platform("tensorrt"), samples);
    CHECK(channels.configs.parameters(input_config(channels, "Gemm", 1)).scales.size() ==
          grown[0].channels_after);
    CHECK(channels.configs.parameters(input_config(channels, "Gemm", 1, 1)).scales.size() == 5);
  }
  CHECK(gain > 4.0 * std::log(2.0));
}

TEST_CASE("ppq passes: weight split makes two layers of one") {
  test::random_source r(41);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, even_factors());
  const std::vector<sample> samples = samples_of_x(r, {4, 6}, 10);
  for (const auto mode : {graph::weight_split_mode::balance, graph::weight_split_mode::random}) {
    quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
    // Settings of the user's own stay with the layer, not with the sum that has its result now.
    const auto edit = [&](config_id id) {
      g.configs.settings(id).rounding = ppq::rounding_policy::up;
    };
    edit(input_config(g, "Gemm", 0, 1));
    edit(output_config(g, "Gemm", 1));
    g.configs.dequantize(input_config(g, "Gemm", 1));
    ppq::pass_context c{samples_source(samples), {}};
    const ppq::weight_split_pass pass{
        .layers = {"Gemm_2"}, .threshold = 0.01F, .mode = mode, .seed = 7};
    const std::vector<std::size_t> split = pass.run(g, c);
    REQUIRE(split.size() == 1);
    CHECK(split[0] > 30);
    CHECK(chosen(g) == "Gemm Relu Gemm Gemm Add ");
    REQUIRE(g.operators.size() == g.network.nodes.size());
    CHECK(g.network.nodes[2].name == "Gemm_2");
    CHECK(g.configs[input_config(g, "Gemm", 0, 1)].rounding == ppq::rounding_policy::up);
    CHECK(g.configs[output_config(g, "Gemm", 1)].rounding == ppq::rounding_policy::up);
    CHECK(g.configs[output_config(g, "Gemm", 1)].variable == g.network.nodes[2].outputs[0]);
    CHECK(g.configs[output_config(g, "Add")].rounding == ppq::rounding_policy::half_even);
    CHECK(g.configs[output_config(g, "Gemm", 2)].rounding == ppq::rounding_policy::half_even);
    CHECK(g.configs[input_config(g, "Gemm", 1)].state() == quantization_state::fp32);
    CHECK(g.configs[input_config(g, "Gemm", 1, 1)].state() == quantization_state::initial);
    for (const sample& s : samples) {
      check_same_function(m, g.network, s, 6 + 1 + 16 + 2);
    }
    ppq::run_pipeline(g, ppq::default_pipeline(), c);
    CHECK(noise_of(m, ppq::to_qdq(g), samples) < 1e-2);
  }
  // A layer that the user leaves in float, and activations that are switched off.
  ppq::pass_context c;
  const ppq::weight_split_pass second{.layers = {"Gemm_2"}, .threshold = 0.01F};
  quantized_graph in_float = ppq::make_quantized_graph(
      m, minmax_platform("tensorrt"),
      {.keep_float = [](const graph::node& n) { return n.name == "Gemm_2"; }});
  CHECK(chosen(in_float) == "Gemm Relu ");
  second(in_float, c);
  CHECK(in_float.network.nodes.size() == 5);
  CHECK(chosen(in_float) == "Gemm Relu ");
  quantized_graph off = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
  off.for_each_config([&](config_id id) {
    if (!off.is_parameter(id)) {
      off.configs.dequantize(id);
    }
  });
  second(off, c);
  CHECK(chosen(off) == "Gemm Relu Gemm Gemm Add ");
  off.for_each_config([&](config_id id) {
    INFO(off.configs[id].name);
    CHECK((off.is_parameter(id) || off.configs[id].state() == quantization_state::fp32));
  });
  // The weights of both parts are on.
  CHECK(off.configs[input_config(off, "Gemm", 1, 1)].state() == quantization_state::initial);
  CHECK(off.configs[input_config(off, "Gemm", 1, 2)].state() == quantization_state::initial);

  // A part that is split again.
  quantized_graph twice = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
  ppq::weight_split_pass{.layers = {"Gemm_2", "Gemm_2_rest"}, .threshold = 0.01F}(twice, c);
  CHECK(chosen(twice) == "Gemm Relu Gemm Gemm Gemm Add Add ");

  quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
  ppq::weight_split_pass{}(g, c);  // no names: nothing happens
  CHECK(chosen(g) == "Gemm Relu Gemm ");
  check_graph_error(error_kind::invalid_argument, {"no node 'Gemm_9'"}, [&] {
    ppq::weight_split_pass{.layers = {"Gemm_2", "Gemm_9"}, .threshold = 0.01F}(g, c);
  });
  CHECK(chosen(g) == "Gemm Relu Gemm ");
}

TEST_CASE("ppq passes: configurations of the user's own outlive a rewrite") {
  test::random_source r(45);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, uneven_factors(r, 3));
  // A bias that stays float by the platform's preset and is wanted in integers, and the reverse.
  for (const bool on : {true, false}) {
    ppq::platform p = minmax_platform(on ? "tensorrt" : "ppl_cuda");
    quantized_graph g = ppq::make_quantized_graph(
        m, p, {.keep_float = [](const graph::node& n) { return n.is("Relu"); }});
    CHECK(chosen(g) == "Gemm Gemm ");
    const config_id bias = input_config(g, "Gemm", 2);
    if (on) {
      g.configs.restore(bias);
    } else {
      g.configs.dequantize(bias);
    }
    const quantization_state wanted = g.configs[bias].state();
    g.configs.settings(input_config(g, "Gemm", 0)).observer = "kl";
    g.configs.settings(input_config(g, "Gemm", 0, 1)).bits = 4;
    g.configs.settings(input_config(g, "Gemm", 0, 1)).levels = {-8, 7};
    ppq::pass_context c;
    ppq::layerwise_equalization_pass{}(g, c);
    CHECK(chosen(g) == "Gemm Gemm ");
    CHECK(g.configs[input_config(g, "Gemm", 2)].state() == wanted);
    CHECK(g.configs[input_config(g, "Gemm", 0)].observer == "kl");
    CHECK(g.configs[input_config(g, "Gemm", 0, 1)].levels == detent::grid{-8, 7});
    CHECK(g.configs[input_config(g, "Gemm", 1, 1)].levels == p.weight.levels);
  }
  // Constants that two layers share get names of their own, which the configurations know.
  graph::model shared = m;
  shared.outputs.push_back(shared.outputs[0]);
  shared.outputs[1].name = "other";
  graph::node other = shared.nodes[0];
  other.name = "other";
  other.outputs = {"other"};
  shared.nodes.push_back(other);
  quantized_graph g = ppq::make_quantized_graph(shared, minmax_platform("tensorrt"));
  const std::vector<sample> samples = samples_of_x(r, {4, 6}, 8);
  ppq::pass_context c{samples_source(samples), {}};
  ppq::layerwise_equalization_pass{}(g, c);
  CHECK(g.network.nodes[0].inputs[1] != "w1");
  CHECK(g.configs[input_config(g, "Gemm", 1)].variable == g.network.nodes[0].inputs[1]);
  CHECK(g.configs[input_config(g, "Gemm", 1, 2)].variable == "w1");
  ppq::run_pipeline(g, ppq::default_pipeline(), c);
  CHECK(noise_of(shared, ppq::to_qdq(g), samples) < 1e-2);
}

TEST_CASE("ppq passes: what rewrites the float network refuses to come late") {
  test::random_source r(46);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, uneven_factors(r, 3));
  ppq::pass_context c{samples_source(samples_of_x(r, {4, 6}, 8)), {}};
  const std::vector<ppq::quantization_pass> early{
      {"layerwise equalization", ppq::layerwise_equalization_pass{}},
      {"weight split", ppq::weight_split_pass{.layers = {"Gemm_2"}}},
      {"channel split", ppq::channel_split_pass{}},
      {"ssd equalization", ppq::ssd_equalization_pass{}}};
  const ppq::pipeline all = ppq::default_pipeline();
  const std::map<std::string, std::vector<std::string_view>> states{
      {"fusion", {"Gemm node 'Gemm_0', output 0 'Gemm_0_out'", "OVERLAPPED"}},
      {"parameter quantization", {"Gemm node 'Gemm_0', input 1 'w1'", "ACTIVATED"}},
      {"runtime calibration", {"Gemm node 'Gemm_0', input 0 'x'", "ACTIVATED"}}};
  for (const ppq::quantization_pass& late : early) {
    for (const auto& state : states) {
      const std::string& name = state.first;
      const std::vector<std::string_view>& words = state.second;
      quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
      const auto pass =
          std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
      ppq::run_pipeline(g, {*pass}, c);
      INFO(late.name, " after ", name);
      check_graph_error(error_kind::invalid_argument,
                        {"pass '" + late.name + "'", words[0], words[1], "come before fusion"},
                        [&] { ppq::run_pipeline(g, {late}, c); });
      CHECK(g.network.nodes.size() == m.nodes.size());
    }
    // After everything, and with everything switched off: off is not unquantized.
    quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
    ppq::run_pipeline(g, all, c);
    g.for_each_config([&](config_id id) { g.configs.dequantize(id); });
    check_graph_error(error_kind::invalid_argument, {"pass '" + late.name + "'", "ACTIVATED"},
                      [&] { ppq::run_pipeline(g, {late}, c); });
    // A scale or a master of the user's own would be lost.
    quantized_graph own = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
    own.configs.set_parameters(input_config(own, "Gemm", 0), {{0.5F}, {0}});
    check_graph_error(error_kind::invalid_argument, {"input 0 'x'", "INITIAL", "scale"},
                      [&] { ppq::run_pipeline(own, {late}, c); });
    quantized_graph slave = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
    slave.configs.master_by(input_config(slave, "Gemm", 0), output_config(slave, "Gemm", 1));
    check_graph_error(error_kind::invalid_argument, {"input 0 'x'", "PASSIVE_INIT", "master"},
                      [&] { ppq::run_pipeline(slave, {late}, c); });
  }
}

// ----------------------------------------------------------------------------- bias correction

namespace {

/// Means of the columns of what the model computes as `value`, over all samples.
std::vector<double> means_of(const graph::model& m, const std::string& value,
                             const std::vector<sample>& samples) {
  graph::executor e(m);
  std::vector<double> sums;
  double rows = 0.0;
  for (const sample& s : samples) {
    static_cast<void>(e.run(s, [&](const std::string& name, const tensor& t) {
      if (name == value) {
        const auto columns = static_cast<std::size_t>(t.dim(1));
        sums.resize(columns, 0.0);
        for (std::size_t k = 0; k < t.count(); ++k) {
          sums[k % columns] += static_cast<double>(t.data<float>()[k]);
        }
        rows += static_cast<double>(t.dim(0));
      }
    }));
  }
  REQUIRE(rows > 0.0);
  for (double& sum : sums) {
    sum /= rows;
  }
  return sums;
}
/// Of what a layer makes, before its own quantization.
std::vector<double> computed_means(const quantized_graph& g, const std::string& value,
                                   const std::vector<sample>& samples) {
  const ppq::qdq_model q = ppq::to_qdq_model(g);
  const auto renamed = q.computed.find(value);
  return means_of(q.network, renamed == q.computed.end() ? value : renamed->second, samples);
}
double largest_distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = (std::max)(largest, std::fabs(a[i] - b[i]));
  }
  return largest;
}

ppq::platform four_bit_platform() {
  ppq::platform p = minmax_platform("snpe");
  p.weight.bits = 4;
  p.weight.levels = {0, 15};
  return p;
}

quantized_graph calibrated(const graph::model& m, const ppq::platform& p,
                           const std::vector<sample>& samples) {
  quantized_graph g = ppq::make_quantized_graph(m, p);
  ppq::pass_context c{samples_source(samples), {}};
  ppq::run_pipeline(g, ppq::quantizing_passes(), c);
  return g;
}

}  // namespace

TEST_CASE("ppq passes: bias correction takes the means back to the float ones") {
  std::size_t kept = 0;
  for (std::uint64_t seed = 51; seed < 55; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    const graph::model m = perceptron(r, even_factors());
    const std::vector<sample> samples = samples_of_x(r, {4, 6}, 8);
    const quantized_graph before = calibrated(m, four_bit_platform(), samples);
    quantized_graph g = before;
    ppq::pass_context c{samples_source(samples), {}};
    const auto blocks = ppq::bias_correction_pass{}.run(g, c);
    REQUIRE(blocks.size() == 1);
    CHECK(blocks[0].layers == std::vector<std::string>{"Gemm node 'Gemm_0'", "Gemm node 'Gemm_2'"});
    CHECK((blocks[0].loss_after <= blocks[0].loss_before) == blocks[0].kept);
    if (!blocks[0].kept) {
      continue;
    }
    ++kept;

    // The first layer by plain loops: its quantized input, weights and bias are known.
    const auto w1 = values_of<float>(m.initializers.at("w1"));
    const auto b1 = values_of<float>(m.initializers.at("b1"));
    const std::vector<double> wq = faked(w1, before, input_config(before, "Gemm", 1));
    const std::vector<double> bq = faked(b1, before, input_config(before, "Gemm", 2));
    std::vector<double> shift(8, 0.0);
    for (const sample& s : samples) {
      const auto x = values_of<float>(s.at("x"));
      const std::vector<double> xq = faked(x, before, input_config(before, "Gemm", 0));
      for (std::size_t row = 0; row < 4; ++row) {
        for (std::size_t ch = 0; ch < 8; ++ch) {
          double y = static_cast<double>(b1[ch]);
          double yq = bq[ch];
          for (std::size_t k = 0; k < 6; ++k) {
            y += static_cast<double>(x[row * 6 + k]) * static_cast<double>(w1[k * 8 + ch]);
            yq += xq[row * 6 + k] * wq[k * 8 + ch];
          }
          shift[ch] += (y - yq) / 32.0;
        }
      }
    }
    const auto corrected = values_of<float>(g.network.initializers.at("b1"));
    for (std::size_t ch = 0; ch < 8; ++ch) {
      CHECK(static_cast<double>(corrected[ch]) ==
            doctest::Approx(static_cast<double>(b1[ch]) + shift[ch]).epsilon(1e-5));
    }
    // Every layer's mean is that of the float network, up to half a step for either bias.
    for (const std::size_t layer : {std::size_t{0}, std::size_t{2}}) {
      const std::string value = m.nodes[layer].outputs[0];
      const std::vector<double> expected = means_of(m, value, samples);
      const double off = largest_distance(computed_means(before, value, samples), expected);
      const double left = largest_distance(computed_means(g, value, samples), expected);
      const config_id bias = g.operators[layer].inputs[2];
      CHECK(off > 1e-2);
      CHECK(left < 1e-5 + static_cast<double>(g.configs.parameters(bias).scales[0]));
      CHECK(left < 0.2 * off);
    }
    // The losses are those of what the block returns.
    const auto loss_of = [&](const quantized_graph& of) {
      const graph::model written = simulated(of);
      double sum = 0.0;
      for (const sample& s : samples) {
        const std::vector<float> f = run(m, s).at(0);
        const std::vector<float> q = run(written, s).at(0);
        for (std::size_t i = 0; i < f.size(); ++i) {
          sum += std::pow(static_cast<double>(q[i]) - static_cast<double>(f[i]), 2.0) /
                 static_cast<double>(f.size() * samples.size());
        }
      }
      return sum;
    };
    CHECK(blocks[0].loss_before == doctest::Approx(loss_of(before)).epsilon(1e-6));
    CHECK(blocks[0].loss_after == doctest::Approx(loss_of(g)).epsilon(1e-6));
    // Scales and the float network are as they were.
    g.for_each_config(
        [&](config_id id) { CHECK(g.configs.parameters(id) == before.configs.parameters(id)); });
    CHECK(different(g.float_model, before.float_model, samples[0]) == "");
  }
  CHECK(kept > 1);
}

TEST_CASE("ppq passes: bias correction of images, in blocks, and of layers without a bias") {
  test::random_source r(56);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 6, 6});
  b.constant("w1", random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  b.constant("b", random_floats(r, {4}, -0.5F, 0.5F));
  b.constant("w2", random_floats(r, {4, 4, 1, 1}, -1.0F, 1.0F));
  b.constant("w3", random_floats(r, {4, 4, 2, 2}, -1.0F, 1.0F));
  b.constant("w4", random_floats(r, {4, 3, 1, 1}, -1.0F, 1.0F));
  std::string y = b.add("Relu", {b.add("Conv", {"x", "w1", "b"})});
  y = b.add("Relu", {b.add("Conv", {y, "w2", "b"})});  // the same bias
  y = b.add("Relu", {b.add("ConvTranspose", {y, "w3", "b"})});
  b.constant("flipped", random_floats(r, {3, 4, 1, 1}, -1.0F, 1.0F));
  b.output(b.add("Conv", {y, "flipped"}));
  const graph::model m = b.get();
  const std::vector<sample> samples = samples_of_x(r, {2, 3, 6, 6}, 4);
  const quantized_graph before = calibrated(m, four_bit_platform(), samples);
  const auto run_with = [&](const ppq::bias_correction_pass& pass) {
    quantized_graph g = before;
    ppq::pass_context c{samples_source(samples), {}};
    return std::pair{pass.run(g, c), g};
  };
  const auto [blocks, g] = run_with({.block_size = 1});
  REQUIRE(blocks.size() == 4);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(blocks[i].layers.size() == 1);
    CHECK((blocks[i].loss_after <= blocks[i].loss_before) == blocks[i].kept);
  }
  CHECK(blocks[0].layers == std::vector<std::string>{"Conv node 'Conv_0'"});
  CHECK(blocks[2].layers == std::vector<std::string>{"ConvTranspose node 'ConvTranspose_4'"});
  CHECK(blocks[3].layers.empty());
  CHECK(blocks[3].loss_after == blocks[3].loss_before);
  CHECK(run_with({.block_size = 2}).first.size() == 2);
  CHECK(run_with({.block_size = 3}).first.size() == 2);
  CHECK(run_with({.block_size = 4}).first.size() == 1);
  // Each corrected layer has a bias of its own now, and the configurations know.
  std::set<std::string> names;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t at = 2 * i;
    CHECK(g.configs[g.operators[at].inputs[2]].variable == g.network.nodes[at].inputs[2]);
    if (blocks[i].kept) {
      ++kept;
      names.insert(g.network.nodes[at].inputs[2]);
      graph::executor float_run(m);
      graph::executor quantized_run(ppq::to_qdq(g));
      const std::string value = m.nodes[at].outputs[0];
      const std::vector<float>& steps = g.configs.parameters(g.operators[at].inputs[2]).scales;
      REQUIRE(steps.size() == 1);
      const auto step = static_cast<double>(steps[0]);
      std::vector<double> difference(4, 0.0);
      for (const sample& s : samples) {
        for (graph::executor* e : {&float_run, &quantized_run}) {
          static_cast<void>(e->run(s, [&](const std::string& name, const tensor& stored) {
            if (name == value) {
              const tensor t = graph::to_plain(stored);
              const std::size_t pixels = t.count() / 8;
              for (std::size_t k = 0; k < t.count(); ++k) {
                const double share =
                    static_cast<double>(t.data<float>()[k]) / static_cast<double>(pixels * 8);
                difference[k / pixels % 4] += e == &float_run ? share : -share;
              }
            }
          }));
        }
      }
      for (const double d : difference) {
        // A step of the bias: half of it for the old one, half for the new one.
        CHECK(std::fabs(d) < 1e-5 + step);
      }
    }
  }
  CHECK(names.size() == kept);
  CHECK(kept > 0);
}

TEST_CASE("ppq passes: bias correction draws the samples as often for many layers as for few") {
  std::set<std::size_t> draws_of_chains;
  for (const std::size_t length : {std::size_t{2}, std::size_t{5}, std::size_t{17}}) {
    test::random_source r(62);
    model_builder b;
    b.input("x", {2, 6});
    std::string y = "x";
    for (std::size_t i = 0; i < length; ++i) {
      const std::string layer = std::to_string(i);
      y = b.add("Relu",
                {b.add("Gemm", {y, b.constant("w" + layer, random_floats(r, {6, 6}, -1.0F, 1.0F)),
                                b.constant("b" + layer, random_floats(r, {6}, -0.5F, 1.0F))})});
    }
    b.output(y);
    const std::vector<sample> samples = samples_of_x(r, {2, 6}, 3);
    quantized_graph g = calibrated(b.get(), four_bit_platform(), samples);
    std::size_t draws = 0;
    ppq::pass_context c{[&draws, source = samples_source(samples)]() mutable {
                          ++draws;
                          return source();
                        },
                        {}};
    const auto blocks = ppq::bias_correction_pass{.block_size = 2}.run(g, c);
    CHECK(blocks.size() == (length + 1) / 2);
    draws_of_chains.insert(draws);
  }
  // The means of the float network; the inputs, for the float network and for the quantized one.
  CHECK(draws_of_chains == std::set<std::size_t>{3 * 4});
}

TEST_CASE("ppq passes: bias correction of a layer that gets no rows leaves it alone") {
  test::random_source r(63);
  model_builder b;
  b.input("x", {2, 4});
  b.output(b.add("Gemm", {"x", b.constant("w1", random_floats(r, {4, 4}, -1.0F, 1.0F)),
                          b.constant("b1", random_floats(r, {4}, -1.0F, 1.0F))}));
  const std::string none = b.add("Slice", {"x", b.constant("from", {0}), b.constant("to", {0})});
  b.output(b.add("Gemm", {none, b.constant("w2", random_floats(r, {4, 5}, -1.0F, 1.0F)),
                          b.constant("b2", random_floats(r, {5}, -1.0F, 1.0F))}));
  quantized_graph g = ppq::make_quantized_graph(b.get(), four_bit_platform());
  for (std::size_t i = 0; i < g.configs.size(); ++i) {
    g.configs.transition(static_cast<ppq::config_id>(i), ppq::quantization_state::fp32);
  }
  ppq::pass_context c{samples_source(samples_of_x(r, {2, 4}, 8)), {}};
  static_cast<void>(ppq::bias_correction_pass{}.run(g, c));
  const graph::node& last = g.network.nodes.back();
  CHECK(values_of<float>(g.network.initializers.at(last.inputs[2])) ==
        values_of<float>(b.get().initializers.at("b2")));
}

TEST_CASE("ppq: the table of errors with numbers that are none") {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& errors :
       {std::vector<double>{0.5, nan, infinity}, std::vector<double>{nan}, std::vector<double>{1.0},
        std::vector<double>{-infinity, 0.0}, std::vector<double>{infinity, 2.0}}) {
    std::vector<ppq::operator_error> all;
    for (const double e : errors) {
      all.push_back({"layer", "y", e});
    }
    for (const auto method : {ppq::error_method::snr, ppq::error_method::cosine}) {
      const std::string text = ppq::detail::error_table("title", method, all);
      CHECK(std::count(text.begin(), text.end(), '\n') ==
            static_cast<std::ptrdiff_t>(all.size()) + 1);
      CHECK(std::count(text.begin(), text.end(), '#') <=
            20 * static_cast<std::ptrdiff_t>(all.size()));
    }
  }
}

TEST_CASE("ppq passes: bias correction that makes a block worse is taken back") {
  // Large negative inputs are clipped. Relu hides that they are; their mean does not.
  model_builder b;
  b.input("x", {4, 1});
  b.constant("w", floats({1, 1}, {1.0F}));
  b.constant("b", floats({1}, {0.5F}));
  b.constant("v", floats({1, 1}, {0.3F}));
  b.constant("c", floats({1}, {0.25F}));
  const std::string y = b.add("Relu", {b.add("Gemm", {"x", "w", "b"})});
  b.output(b.add("Gemm", {y, "v", "c"}));
  const graph::model m = b.get();
  const std::vector<sample> samples{{{"x", floats({4, 1}, {1.0F, 0.75F, 0.5F, -100.0F})}}};
  quantized_graph g = ppq::make_quantized_graph(m, minmax_platform("tensorrt"));
  ppq::pass_context c{samples_source(samples), {}};
  ppq::run_pipeline(g, ppq::quantizing_passes(), c);
  g.configs.set_parameters(input_config(g, "Gemm", 0), {{0.01F}, {0}});
  quantized_graph one_by_one = g;
  const auto single = ppq::bias_correction_pass{.block_size = 1}.run(one_by_one, c);
  REQUIRE(single.size() == 2);
  CHECK(!single[0].kept);
  CHECK(single[0].loss_after > 100.0 * single[0].loss_before);
  CHECK(values_of<float>(one_by_one.network.initializers.at("b")) == std::vector<float>{0.5F});
  // The second block is judged by itself; a shift of a layer without anything behind it helps.
  CHECK(single[1].kept);
  CHECK(single[1].loss_after <= single[1].loss_before);
  // Both in one block: the second layer makes up for the first in the mean, not in what is left.
  const auto both = ppq::bias_correction_pass{.block_size = 2}.run(g, c);
  REQUIRE(both.size() == 1);
  CHECK(both[0].layers.size() == 2);
  CHECK(!both[0].kept);
  CHECK(values_of<float>(g.network.initializers.at("b")) == std::vector<float>{0.5F});
  CHECK(values_of<float>(g.network.initializers.at("c")) == std::vector<float>{0.25F});
}

TEST_CASE("ppq passes: bias correction comes after passive parameters and before baking") {
  test::random_source r(58);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, even_factors());
  const std::vector<sample> samples = samples_of_x(r, {4, 6}, 8);
  ppq::pass_context c{samples_source(samples), {}};
  const auto refused = [&](quantized_graph& g, const ppq::bias_correction_pass& pass,
                           std::initializer_list<std::string_view> words) {
    check_graph_error(error_kind::invalid_argument, words, [&] { pass(g, c); });
    CHECK(difference(values_of<float>(g.float_model.initializers.at("b1")),
                     values_of<float>(m.initializers.at("b1"))) == "");
  };
  quantized_graph fresh = ppq::make_quantized_graph(m, minmax_platform("snpe"));
  refused(fresh, {}, {"Gemm node 'Gemm_0', input 0 'x'", "INITIAL still", "after passive"});
  ppq::pipeline passes = ppq::quantizing_passes();
  passes.pop_back();
  ppq::run_pipeline(fresh, passes, c);
  refused(fresh, {}, {"Gemm node 'Gemm_0', input 2 'b1'", "PASSIVE_INIT still"});
  ppq::passive_parameter_pass{}(fresh, c);
  refused(fresh, {.block_size = 0}, {"block_size 0"});
  refused(fresh, {.steps = 0}, {"steps 0"});
  c.samples = {};
  refused(fresh, {}, {"no calibration samples"});
  c.samples = samples_source(samples);
  ppq::parameter_baking_pass{}(fresh, c);
  refused(fresh, {}, {"Gemm node 'Gemm_0', input 1 'w1'", "BAKED already", "before baking"});
  // What is switched off needs no scale, and is not corrected for.
  quantized_graph off = ppq::make_quantized_graph(m, minmax_platform("snpe"));
  off.for_each_config([&](config_id id) { off.configs.dequantize(id); });
  const auto blocks = ppq::bias_correction_pass{}.run(off, c);
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].loss_before == 0.0);
  CHECK(blocks[0].loss_after == 0.0);
}

TEST_CASE("ppq passes: scales of weights fit biases that stay in float") {
  // ONNX Runtime stores such biases in 32 bits, in steps of the two scales: a channel with tiny
  // weights has steps that are too small.
  test::random_source r(62);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 2, 3, 3});
  tensor w = random_floats(r, {3, 2, 1, 1}, -1.0F, 1.0F);
  w.mutable_data<float>()[2] = 1e-12F;
  w.mutable_data<float>()[3] = -2e-12F;
  b.constant("w", w);
  b.constant("b", floats({3}, {0.5F, -0.43F, 0.25F}));
  b.output(b.add("Conv", {"x", "w", "b"}));
  const std::vector<sample> samples = samples_of_x(r, {1, 2, 3, 3}, 4);
  for (const char* platform : {"onnxruntime", "ppl_cuda"}) {
    for (const bool fits : {true, false}) {
      INFO(platform, " fits ", fits);
      quantized_graph g = ppq::make_quantized_graph(b.get(), minmax_platform(platform));
      ppq::pass_context c{samples_source(samples), {}};
      ppq::pipeline passes = ppq::quantizing_passes();
      passes.pop_back();
      ppq::run_pipeline(g, passes, c);
      ppq::passive_parameter_pass{.fit_weight_scales = fits}(g, c);
      const auto& ids = g.operators[0].inputs;
      const float x = g.configs.parameters(ids[0]).scales[0];
      const float tiny = g.configs.parameters(ids[1]).scales[1];
      CHECK((0.43 / (static_cast<double>(x) * static_cast<double>(tiny)) < 0x1p31) == fits);
    }
  }
  // A bias that the network computes, and that was switched off.
  model_builder computed;
  computed.input("x", {1, 2, 3, 3});
  computed.input("z", {3});
  computed.constant("w", random_floats(r, {3, 2, 1, 1}, -1.0F, 1.0F));
  computed.output(computed.add("Conv", {"x", "w", computed.add("Neg", {"z"})}));
  quantized_graph g = ppq::make_quantized_graph(computed.get(), minmax_platform("ppl_cuda"));
  for (std::size_t i = 0; i < g.network.nodes.size(); ++i) {
    if (g.network.nodes[i].is("Conv")) {
      g.configs.dequantize(g.operators[i].inputs[2]);
    }
  }
  std::vector<sample> both;
  for (int i = 0; i < 3; ++i) {
    both.push_back({{"x", random_floats(r, {1, 2, 3, 3}, -1.0F, 1.0F)},
                    {"z", random_floats(r, {3}, -1.0F, 1.0F)}});
  }
  ppq::pass_context c{samples_source(both), {}};
  ppq::pipeline passes = ppq::quantizing_passes();
  passes.pop_back();
  ppq::run_pipeline(g, passes, c);
  ppq::passive_parameter_pass{}(g, c);
}

// --------------------------------------------------------------------------------- dispatchers

TEST_CASE("ppq passes: dispatchers by name, on a network that computes shapes") {
  test::random_source r(61);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 8, 8});
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  b.constant("v", random_floats(r, {36, 5}, -1.0F, 1.0F));
  b.constant("first", std::vector<std::int64_t>{0});
  b.constant("rest", std::vector<std::int64_t>{-1});
  b.constant("one", floats({1}, {1.0F}));
  const std::string before = b.add("Tanh", {"x"});
  const std::string conv = b.add("Relu", {b.add("Conv", {before, "w"})});
  const std::string gated = b.add("Mul", {conv, b.add("Sigmoid", {conv})});
  const std::string pooled =
      b.add("MaxPool", {gated}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  // [batch, -1], with a product in float on the way.
  const std::string batch = b.add("Gather", {b.add("Shape", {pooled}), "first"});
  const std::string scaled = b.add("Mul", {b.add("Cast", {batch}, {{"to", number(1)}}), "one"});
  const std::string dims = b.add("Concat", {b.add("Cast", {scaled}, {{"to", number(7)}}), "rest"},
                                 {{"axis", number(0)}});
  const std::string rows = b.add("Reshape", {pooled, dims});
  b.output(b.add("Gemm", {rows, "v"}));
  const graph::model m = b.get();
  const ppq::platform& p = ppq::find_platform("tensorrt");
  const std::vector<sample> samples = samples_of_x(r, {2, 3, 8, 8}, 8);
  const std::map<std::string, std::string> expected{
      {"conservative", "Conv Relu Sigmoid Mul MaxPool Reshape Gemm "},
      {"pointwise", "Conv Relu Sigmoid Mul Gemm "},
      {"point", "Conv Relu Sigmoid Mul Gemm "},
      {"allin", "Tanh Conv Relu Sigmoid Mul MaxPool Reshape Gemm "},
      {"ALL_IN", "Tanh Conv Relu Sigmoid Mul MaxPool Reshape Gemm "}};
  for (const auto& entry : expected) {
    const std::string& name = entry.first;
    const std::string& operators = entry.second;
    INFO(name);
    quantized_graph g = ppq::make_quantized_graph(m, p, {.scope = ppq::find_dispatcher(name)});
    CHECK(chosen(g) == operators);
    ppq::pass_context c{samples_source(samples), {}};
    ppq::run_pipeline(
        g, ppq::default_pipeline({.equalization = ppq::layerwise_equalization_pass{}}), c);
    CHECK(chosen(g) == operators);  // a rewrite has the same dispatcher
    CHECK(noise_of(m, ppq::to_qdq(g), samples) < 0.05);
  }
  CHECK(ppq::dispatchers.size() == 3);
  for (const ppq::dispatcher& d : ppq::dispatchers) {
    CHECK(ppq::find_dispatcher(d.name) == d.scope);
  }
  CHECK(ppq::quantizer_options{}.scope == ppq::find_dispatcher("conservative"));
  for (const char* name : {"perseus", "PPLNN", "aggressive"}) {
    check_graph_error(error_kind::unsupported,
                      {std::string("'") + name + "'", "conservative, pointwise, allin"},
                      [&] { static_cast<void>(ppq::find_dispatcher(name)); });
  }
  check_graph_error(error_kind::invalid_argument,
                    {"no dispatcher 'everything'", "conservative, pointwise, allin"},
                    [&] { static_cast<void>(ppq::find_dispatcher("everything")); });
}

// ------------------------------------------------------------------------------ dynamic ranges

namespace {

ppq::platform dynamic_platform(const std::string& name) {
  ppq::platform p = ppq::find_platform(name);
  p.activation.policy =
      ppq::quantization_policy(p.activation.policy.properties() | property::dynamic);
  return p;
}

/// What quantization with the range of these very values makes of them, in float.
std::vector<float> dynamic_fake(const std::vector<float>& x, bool symmetric, float qmax) {
  float lower = 0.0F;
  float upper = 0.0F;
  for (const float v : x) {
    lower = (std::min)(lower, v);
    upper = (std::max)(upper, v);
  }
  float scale = 0.0F;
  float zero_point = 0.0F;
  float qmin = 0.0F;
  if (symmetric) {
    qmin = qmax == 127.0F ? -128.0F : -qmax;
    scale = (std::max)((std::max)(-lower, upper) / ((qmax - qmin) / 2.0F), 1e-8F);
  } else {
    scale = (upper - lower) / 255.0F;
    scale = scale > 0.0F ? scale : 1.0F;
    zero_point = (std::min)((std::max)(std::nearbyint(-lower / scale), 0.0F), 255.0F);
  }
  std::vector<float> y;
  for (const float v : x) {
    const float q = std::nearbyint(v / scale) + zero_point;
    y.push_back(((std::min)((std::max)(q, qmin), qmax) - zero_point) * scale);
  }
  return y;
}

}  // namespace

TEST_CASE("ppq passes: DYNAMIC takes the range of each tensor that runs through") {
  test::random_source r(71);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 7});
  b.output(b.add("Abs", {b.add("Relu", {"x"})}));
  const graph::model m = b.get();
  for (const bool symmetric : {true, false}) {
    for (const int qmax : {127, 7}) {
      ppq::platform p = dynamic_platform(symmetric ? "tensorrt" : "snpe");
      if (qmax == 7) {
        p.activation.bits = symmetric ? 4 : 8;
        p.activation.levels = symmetric ? detent::grid{-7, 7} : p.activation.levels;
      }
      quantized_graph g = ppq::make_quantized_graph(m, p, {.scope = ppq::dispatch_scope::all_in});
      // Samples for calibration are there, and say nothing about the ranges below.
      ppq::pass_context c{samples_source(samples_of_x(r, {2, 7}, 8)), {}};
      ppq::run_pipeline(g, ppq::default_pipeline(), c);
      CHECK(g.configs[input_config(g, "Relu", 0)].state() == quantization_state::activated);
      CHECK(g.configs.parameters(input_config(g, "Relu", 0)).empty());
      CHECK(g.configs.is_dynamic(input_config(g, "Relu", 0)));
      const graph::model written = ppq::to_qdq(g);
      CHECK(count(written, "DequantizeLinear") == 2);
      CHECK(count(written, "DynamicQuantizeLinear") == (symmetric ? 0 : 2));
      CHECK(count(written, "QuantizeLinear") == (symmetric ? 2 : 0));
      for (const float magnitude : {1.0F, 1e3F, 1e-6F, 1e-12F, 0.0F}) {
        const tensor x = random_floats(r, {2, 7}, -magnitude, 0.5F * magnitude);
        const auto top = static_cast<float>(symmetric ? qmax : 255);
        std::vector<float> expected = dynamic_fake(values_of<float>(x), symmetric, top);
        for (float& v : expected) {
          v = (std::max)(v, 0.0F);
        }
        expected = dynamic_fake(expected, symmetric, top);
        INFO("magnitude ", magnitude, ", symmetric ", symmetric);
        CHECK(difference(run(written, {{"x", x}}).at(0), expected) == "");
        for (const bool integer : {true, false}) {
          CHECK(difference(run(graph::for_execution(written, integer), {{"x", x}}).at(0),
                           expected) == "");
        }
      }
    }
  }
}

TEST_CASE("ppq passes: DYNAMIC in whole networks") {
  test::random_source r(72);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 6, 6});
  b.constant("w", random_floats(r, {4, 3, 3, 3}, -1.0F, 1.0F));
  b.constant("b", random_floats(r, {4}, -0.5F, 0.5F));
  b.constant("v", random_floats(r, {4, 4, 1, 1}, -1.0F, 1.0F));
  b.constant("offset", random_floats(r, {1, 4, 1, 1}, -1.0F, 1.0F));
  b.scalar("lower", 0.0F);
  b.scalar("upper", 600.0F);
  const std::string conv = b.add("Clip", {b.add("Conv", {"x", "w", "b"}), "lower", "upper"});
  const std::string pooled =
      b.add("MaxPool", {conv}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  const std::string sum = b.add("Add", {b.add("Conv", {pooled, "v"}), pooled});
  b.output(b.add("Concat", {b.add("Add", {sum, "offset"}), pooled}, {{"axis", number(1)}}));
  const graph::model m = b.get();
  const std::vector<sample> small = samples_of_x(r, {2, 3, 6, 6}, 8);
  std::vector<sample> large = samples_of_x(r, {2, 3, 6, 6}, 4, -50.0F, 100.0F);
  for (const char* name : {"tensorrt", "ppl_cuda", "ncnn", "snpe", "ascend"}) {
    INFO(name);
    quantized_graph g = ppq::make_quantized_graph(m, dynamic_platform(name));
    ppq::pass_context c{samples_source(small), {}};
    ppq::run_pipeline(g, ppq::default_pipeline({.bias_correction = ppq::bias_correction_pass{}}),
                      c);
    // There is no scale that a bias or a bound could have.
    CHECK(g.configs[input_config(g, "Conv", 2)].state() == quantization_state::fp32);
    CHECK(g.configs[input_config(g, "Clip", 1)].state() == quantization_state::fp32);
    CHECK(g.configs[input_config(g, "Add", 1, 1)].state() == quantization_state::baked);
    const graph::model written = ppq::to_qdq(g);
    // x, Clip, Conv, both sums and Concat have ranges of their own; pooling moves values.
    CHECK(count(written, "QuantizeLinear") + count(written, "DynamicQuantizeLinear") == 6);
    CHECK(noise_of(m, written, small) < 1e-2);
    CHECK(noise_of(m, written, large) < 1e-2);
    for (const sample& s : large) {
      CHECK(difference(run(graph::for_execution(written, false), s).at(0), run(written, s).at(0)) ==
            "");
      CHECK(test::distance(graph::for_execution(written, true), written, s) < 0.02);
    }
    const auto errors = ppq::graphwise_error_analysis(g, samples_source(large));
    REQUIRE(errors.size() == 2);
    CHECK(errors[0].error > 0.0);
    CHECK(errors[0].error < 1e-2);
    // Ranges of calibration do not do.
    quantized_graph fixed = ppq::make_quantized_graph(m, minmax_platform(name));
    ppq::run_pipeline(fixed, ppq::default_pipeline(), c);
    CHECK(noise_of(m, ppq::to_qdq(fixed), large) > 0.1);
    // A pair on moved values would have another range.
    CHECK(ppq::to_qdq(g, {.overlapped = true, .moved_values = true}).nodes.size() ==
          written.nodes.size());
    const config_id x = input_config(g, "Conv", 0);
    g.configs.dequantize(x);
    const graph::model without = ppq::to_qdq(g);
    CHECK(count(without, "QuantizeLinear") + count(without, "DynamicQuantizeLinear") == 5);
  }
}

TEST_CASE("ppq passes: DYNAMIC policies that have no form in a model") {
  test::random_source r(73);
  INFO("seed ", r.seed());
  const graph::model m = perceptron(r, even_factors());
  const std::vector<sample> samples = samples_of_x(r, {4, 6}, 8);
  const auto refused = [&](ppq::platform p, std::initializer_list<std::string_view> words) {
    quantized_graph g = ppq::make_quantized_graph(m, p);
    ppq::pass_context c{samples_source(samples), {}};
    ppq::run_pipeline(g, ppq::quantizing_passes(), c);
    check_graph_error(error_kind::unsupported, words, [&] { static_cast<void>(ppq::to_qdq(g)); });
  };
  const char* where = "Gemm node 'Gemm_0', input 0 'x'";
  ppq::platform p = dynamic_platform("snpe");
  p.activation.levels = {-128, 127};
  refused(p, {where, "ASYMMETRICAL | DYNAMIC", "-128..127"});
  p = dynamic_platform("tensorrt");
  p.activation.levels = {-8, 7};
  refused(p, {where, "SYMMETRICAL | DYNAMIC", "-8..7"});
  p = dynamic_platform("tensorrt");
  p.activation.levels = {0, 255};
  refused(p, {where, "0..255"});
  p = dynamic_platform("tensorrt");
  p.activation.bits = 16;
  p.activation.levels = {-32767, 32767};
  refused(p, {where, "-32767..32767"});
  refused(dynamic_platform("fpga"), {where, "POWER_OF_2 | DYNAMIC"});
  p = dynamic_platform("tensorrt");
  p.activation.policy = ppq::quantization_policy(property::per_channel | property::linear |
                                                 property::symmetrical | property::dynamic);
  refused(p, {where, "PER_CHANNEL", "DYNAMIC"});
  // The values of a constant are known: its range is no matter of a run.
  p = minmax_platform("tensorrt");
  p.weight.policy = ppq::quantization_policy(property::per_tensor | property::linear |
                                             property::symmetrical | property::dynamic);
  quantized_graph g = ppq::make_quantized_graph(m, p);
  ppq::pass_context c{samples_source(samples), {}};
  check_graph_error(error_kind::unsupported, {"Gemm node 'Gemm_0', input 1 'w1'", "DYNAMIC"},
                    [&] { ppq::parameter_quantization_pass{}(g, c); });
  // FLOATING has no scale that calibration could find.
  p = minmax_platform("tensorrt");
  p.activation.policy = ppq::quantization_policy(property::per_tensor | property::floating |
                                                 property::symmetrical | property::power_of_2);
  g = ppq::make_quantized_graph(m, p);
  check_graph_error(error_kind::unsupported, {where, "FLOATING"},
                    [&] { ppq::runtime_calibration_pass{}(g, c); });
}

// ------------------------------------------------------------------------------ all of them

TEST_CASE("ppq passes: a pipeline of everything, in PPQ's order") {
  std::map<std::string, double> gain;  // the logarithm of what the errors are divided by
  for (std::uint64_t seed = 81; seed < 86; ++seed) {
    test::random_source r(seed);
    INFO("seed ", r.seed());
    model_builder b;
    b.input("x", {-1, 3, 8, 8});
    const auto convolution = [&](const std::string& x, const std::string& layer,
                                 const shape& filters, const attributes& a = {}) {
      tensor w = random_floats(r, filters, -0.5F, 0.5F);
      const auto of_channel = w.count() / static_cast<std::size_t>(filters[0]);
      const std::vector<float> factors = uneven_factors(r, 3);
      for (std::size_t k = 0; k < w.count(); ++k) {
        w.mutable_data<float>()[k] *= factors[k / of_channel];
      }
      return b.add("Conv",
                   {x, b.constant(layer + "_w", w),
                    b.constant(layer + "_b", random_floats(r, {filters[0]}, -1.0F, 1.0F))},
                   a);
    };
    const attributes same{{"pads", list({1, 1, 1, 1})}};
    std::string y = b.add("Relu", {convolution("x", "a", {6, 3, 3, 3}, same)});
    y = b.add("Relu", {convolution(y, "b", {6, 6, 3, 3}, same)});
    const std::string branch = convolution(y, "c", {6, 6, 1, 1});
    y = b.add("Flatten", {b.add("GlobalAveragePool", {b.add("Add", {branch, y})})});
    b.constant("f_w", random_floats(r, {6, 5}, -1.0F, 1.0F));
    b.constant("f_b", random_floats(r, {5}, -1.0F, 1.0F));
    b.output(b.add("Gemm", {y, "f_w", "f_b"}));
    const graph::model m = b.get();
    const std::vector<sample> samples = samples_of_x(r, {2, 3, 8, 8}, 8);
    const ppq::pipeline_options everything{
        .equalization = ppq::layerwise_equalization_pass{},
        .weight_split = ppq::weight_split_pass{.layers = {m.nodes.back().name}, .threshold = 0.5F},
        .channel_split = ppq::channel_split_pass{.largest_growth = 1.5},
        .ssd_equalization = ppq::ssd_equalization_pass{.iterations = 1},
        .calibration = {.calib_steps = 8},
        .bias_correction = ppq::bias_correction_pass{}};
    std::vector<std::string> names;
    for (const ppq::quantization_pass& pass : ppq::default_pipeline(everything)) {
      names.push_back(pass.name);
    }
    CHECK(names == std::vector<std::string>{"weight split", "channel split",
                                            "layerwise equalization", "ssd equalization", "fusion",
                                            "parameter quantization", "runtime calibration",
                                            "alignment", "passive parameters", "bias correction",
                                            "passive parameters", "baking"});
    for (const char* name : {"tensorrt", "snpe", "ppl_cuda", "ncnn"}) {
      INFO(name);
      const ppq::platform p = minmax_platform(name);
      const auto noise_after = [&](const ppq::pipeline_options& options) {
        quantized_graph g = ppq::make_quantized_graph(m, p);
        ppq::pass_context c{samples_source(samples), {}};
        ppq::run_pipeline(g, ppq::default_pipeline(options), c);
        const graph::model written = ppq::to_qdq(g);
        CHECK(written.outputs[0].name == m.outputs[0].name);
        const double noise = noise_of(m, written, samples);
        CHECK(noise_of(m, graph::for_execution(written, true), samples) < 2.0 * noise + 1e-3);
        return noise;
      };
      const double with_all = noise_after(everything);
      const double without = noise_after({.calibration = {.calib_steps = 8}});
      CHECK(with_all < 4.0 * without);
      gain[name] += std::log(without / with_all);
    }
  }
  REQUIRE(gain.size() == 4);
  for (const auto& entry : gain) {
    INFO(entry.first);
    CHECK(entry.second > 0.0);
  }
}
