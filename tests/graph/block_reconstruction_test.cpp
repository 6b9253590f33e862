// SPDX-License-Identifier: BSD-3-Clause
// Blocks, and the passes that learn them: what they find on small networks, what they leave alone,
// and that exported models compute what the passes measured.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/fake_quantize.hpp>
#include <detent/graph/ppq/adaround.hpp>
#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/blocks.hpp>
#include <detent/graph/ppq/learned_step_size.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/types.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "ppq_graphs.hpp"
#include "random.hpp"
#include "run_model.hpp"

namespace {

using namespace test;
using ppq::block_outcome;
using ppq::block_report;

/// Images whose pixels resemble their neighbours, as those of networks do: where inputs are
/// independent, nearest rounding is hard to improve upon.
std::vector<tensors> smooth_samples(test::random_source& r, const shape& dims, std::size_t n) {
  std::vector<tensors> all;
  for (std::size_t i = 0; i < n; ++i) {
    tensor x = random_floats(r, dims, -1.0F, 1.0F);
    auto values = x.mutable_data<float>();
    const float level = r.real(-0.5F, 0.5F);
    for (std::size_t k = 0; k < values.size(); ++k) {
      values[k] = (k > 0 ? 0.6F * values[k - 1] : 0.0F) + 0.4F * values[k] + 0.3F * level;
    }
    all.push_back({{"x", x}});
  }
  return all;
}

/// x -> Conv -> Relu -> Conv -> Add(Relu's) -> Relu -> MaxPool -> Conv -> GlobalAveragePool ->
/// Flatten -> Gemm
graph::model residual_network(test::random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 8, 8});
  b.constant("w1", random_floats(r, {6, 3, 3, 3}, -0.5F, 0.5F));
  b.constant("b1", random_floats(r, {6}, -0.3F, 0.3F));
  b.constant("w2", random_floats(r, {6, 6, 3, 3}, -0.4F, 0.4F));
  b.constant("b2", random_floats(r, {6}, -0.3F, 0.3F));
  b.constant("w3", random_floats(r, {6, 3, 3, 3}, -0.4F, 0.4F));
  b.constant("w4", random_floats(r, {6, 5}, -0.5F, 0.5F));
  b.constant("b4", random_floats(r, {5}, -0.3F, 0.3F));
  const attributes same{{"pads", list({1, 1, 1, 1})}};
  const std::string first = b.add("Relu", {b.add("Conv", {"x", "w1", "b1"}, same)});
  const std::string second = b.add("Conv", {first, "w2", "b2"}, same);
  const std::string joined = b.add("Relu", {b.add("Add", {second, first})});
  const std::string pooled =
      b.add("MaxPool", {joined}, {{"kernel_shape", list({2, 2})}, {"strides", list({2, 2})}});
  const std::string third = b.add("Conv", {pooled, "w3"}, {{"group", number(2)}});
  b.output(b.add("Gemm", {b.add("Flatten", {b.add("GlobalAveragePool", {third})}), "w4", "b4"}));
  return b.get();
}
const shape residual_input{4, 3, 8, 8};

/// A platform with fewer bits, so that there is something to learn.
ppq::platform coarse_platform(const std::string& name, int weight_bits, int activation_bits) {
  ppq::platform p = minmax_platform(name);
  const auto narrow = [](ppq::tensor_preset& preset, int bits) {
    preset.bits = bits;
    preset.levels = preset.policy.is_symmetrical()
                        ? detent::grid{-(1 << (bits - 1)), (1 << (bits - 1)) - 1}
                        : detent::grid{0, (1 << bits) - 1};
  };
  narrow(p.weight, weight_bits);
  narrow(p.activation, activation_bits);
  return p;
}

/// A network after all passes of PPQ's order but baking.
quantized_graph calibrated(graph::model m, const ppq::platform& p,
                           const std::vector<tensors>& samples,
                           const ppq::quantizer_options& quantizer = {}) {
  quantized_graph g = ppq::make_quantized_graph(std::move(m), p, quantizer);
  ppq::pass_context c{samples_source(samples), {}};
  ppq::pipeline_options options;
  options.bake = false;
  ppq::run_pipeline(g, ppq::default_pipeline(options), c);
  return g;
}

template <class Pass>
std::vector<block_report> learn(quantized_graph& g, Pass pass,
                                const std::vector<tensors>& samples) {
  std::vector<block_report> reports;
  pass.blocks.on_block = [&](const block_report& report) { reports.push_back(report); };
  ppq::pass_context c{samples_source(samples), {}};
  pass(g, c);
  return reports;
}

/// The mean squared error of a value of the exported model, run as a whole.
double exported_error(const quantized_graph& g, const std::string& value,
                      const std::vector<tensors>& samples) {
  const ppq::qdq_model q = ppq::to_qdq_model(g);
  const auto quantized = q.quantized.find(value);
  const auto computed = q.computed.find(value);
  const std::string name = quantized != q.quantized.end() ? quantized->second
                           : computed != q.computed.end() ? computed->second
                                                          : value;
  double sum = 0.0;
  for (const tensors& sample : samples) {
    tensor expected;
    tensor found;
    graph::executor float_run(g.float_model);
    graph::executor quantized_run(q.network);
    const auto keep = [](const std::string& wanted, tensor& to) {
      return [&to, wanted](const std::string& at, const tensor& t) {
        if (at == wanted) {
          to = graph::to_plain(t);
        }
      };
    };
    static_cast<void>(float_run.run(sample, keep(value, expected)));
    static_cast<void>(quantized_run.run(sample, keep(name, found)));
    REQUIRE(expected.count() > 0);
    REQUIRE(expected.count() == found.count());
    double error = 0.0;
    for (std::size_t i = 0; i < expected.count(); ++i) {
      const double d = static_cast<double>(found.data<float>()[i]) -
                       static_cast<double>(expected.data<float>()[i]);
      error += d * d;
    }
    sum += error / static_cast<double>(expected.count());
  }
  return sum / static_cast<double>(samples.size());
}

bool same_bytes(const tensor& a, const tensor& b) {
  return a.type() == b.type() && a.dims() == b.dims() &&
         std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}
bool same_constants(const graph::model& a, const graph::model& b) {
  return a.initializers.size() == b.initializers.size() &&
         std::all_of(a.initializers.begin(), a.initializers.end(), [&](const auto& entry) {
           const tensor* other = b.initializer(entry.first);
           return other != nullptr && same_bytes(entry.second, *other);
         });
}

ppq::adaround_pass quick_adaround() {
  ppq::adaround_pass pass;
  pass.learning_rate = 0.02;
  pass.steps = 400;
  pass.blocks.block_size = 2;
  pass.blocks.samples_per_step = 2;
  return pass;
}
ppq::learned_step_size_pass quick_lsq() {
  ppq::learned_step_size_pass pass;
  pass.learning_rate = 5e-4;
  pass.steps = 200;
  pass.blocks.block_size = 2;
  pass.blocks.samples_per_step = 2;
  return pass;
}

}  // namespace

// ---------------------------------------------------------------------------------------- blocks

namespace {

/// What blocks must be, checked by plain loops over names.
void check_blocks(const quantized_graph& g, const std::vector<ppq::network_block>& blocks,
                  std::size_t block_size) {
  const graph::model& m = g.network;
  std::set<std::size_t> seen;
  for (const ppq::network_block& b : blocks) {
    INFO("block from ", b.entry, " to ", b.exit);
    std::set<std::string> made;
    std::size_t layers = 0;
    for (const std::size_t i : b.nodes) {
      CHECK(seen.insert(i).second);
      layers += ppq::is_compute_operator(m.nodes[i]) ? 1U : 0U;
      for (const std::string& in : m.nodes[i].inputs) {
        CHECK((in.empty() || in == b.entry || made.count(in) != 0 || m.initializer(in) != nullptr));
      }
      made.insert(m.nodes[i].outputs.begin(), m.nodes[i].outputs.end());
    }
    CHECK(layers == b.layers);
    CHECK(layers >= 1);
    CHECK(layers <= block_size);
    CHECK(made.count(b.exit) != 0);
    CHECK(made.count(b.entry) == 0);
    const std::set<std::size_t> inside(b.nodes.begin(), b.nodes.end());
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      for (const std::string& in : m.nodes[i].inputs) {
        CHECK((inside.count(i) != 0 || in == b.exit || made.count(in) == 0));
      }
    }
    for (const graph::value_info& out : m.outputs) {
      CHECK((out.name == b.exit || made.count(out.name) == 0));
    }
  }
}

std::vector<std::string> ends_of(const std::vector<ppq::network_block>& blocks) {
  std::vector<std::string> ends;
  for (const ppq::network_block& b : blocks) {
    ends.push_back(b.entry + " " + b.exit);
  }
  return ends;
}

}  // namespace

TEST_CASE("blocks: of a residual network") {
  test::random_source r(201);
  const quantized_graph g =
      ppq::make_quantized_graph(residual_network(r), ppq::find_platform("tensorrt"));
  using strings = std::vector<std::string>;
  CHECK(ends_of(ppq::find_blocks(g, 1)) == strings{"x Relu_1_out", "Relu_1_out MaxPool_5_out",
                                                   "MaxPool_5_out Flatten_8_out",
                                                   "Flatten_8_out Gemm_9_out"});
  CHECK(ends_of(ppq::find_blocks(g, 2)) == strings{"x MaxPool_5_out", "MaxPool_5_out Gemm_9_out"});
  CHECK(ends_of(ppq::find_blocks(g, 3)) == strings{"x Flatten_8_out", "Flatten_8_out Gemm_9_out"});
  CHECK(ends_of(ppq::find_blocks(g, 100)) == strings{"x Gemm_9_out"});
  // They end before what they must not contain, and a layer of that kind is alone.
  CHECK(ends_of(ppq::find_blocks(g, 2, [](const graph::node& n) { return !n.is("MaxPool"); })) ==
        strings{"x Relu_4_out", "MaxPool_5_out Gemm_9_out"});
  CHECK(ends_of(ppq::find_blocks(g, 2, [](const graph::node& n) { return !n.is("Gemm"); })) ==
        strings{"x MaxPool_5_out", "MaxPool_5_out Flatten_8_out", "Flatten_8_out Gemm_9_out"});
  check_graph_error(error_kind::invalid_argument, {"block_size of 0"},
                    [&] { static_cast<void>(ppq::find_blocks(g, 0)); });
}

TEST_CASE("blocks: of random networks") {
  test::random_source r(202);
  INFO("seed ", r.seed());
  std::size_t joined = 0;
  std::size_t total = 0;
  for (int network = 0; network < 60; ++network) {
    model_builder b;
    b.input("x", {2, 4});
    std::vector<std::string> values{"x"};
    const std::size_t size = r.size(3, 14);
    for (std::size_t i = 0; i < size; ++i) {
      const auto any = [&] {
        return values[r.size(values.size() > 4 ? values.size() - 4 : 0, values.size() - 1)];
      };
      const int kind = r.integer(0, 9);
      if (kind < 5) {
        const std::string w = "w" + std::to_string(i);
        b.constant(w, random_floats(r, {4, 4}, -1.0F, 1.0F));
        values.push_back(b.add("Gemm", {any(), w}));
      } else if (kind < 7) {
        values.push_back(b.add("Relu", {any()}));
      } else {
        values.push_back(b.add("Add", {any(), any()}));
      }
    }
    b.output(values.back());
    b.output(values[r.size(1, values.size() - 1)]);
    graph::model m = b.get();
    if (m.outputs[0].name == m.outputs[1].name) {
      m.outputs.pop_back();
    }
    const quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("tensorrt"));
    for (const std::size_t block_size : {1U, 2U, 3U, 5U}) {
      const auto blocks = ppq::find_blocks(g, block_size);
      check_blocks(g, blocks, block_size);
      // Each layer depends on its one input alone: it is in a block.
      std::size_t layers = 0;
      for (const ppq::network_block& block : blocks) {
        layers += block.layers;
        joined += block.layers > 1 ? 1U : 0U;
      }
      std::size_t expected = 0;
      for (const graph::node& n : g.network.nodes) {
        expected += n.is("Gemm") ? 1U : 0U;
      }
      CHECK(layers == expected);
      total += blocks.size();
    }
  }
  CHECK(total > 200);
  CHECK(joined > 50);
}

// ------------------------------------------------------------------------------------- both passes

TEST_CASE("block reconstruction: coarse weights learn, and the exported model shows it") {
  test::random_source r(204);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 6);
  double rounding_gain = 1.0;
  double step_gain = 1.0;
  double network_gain = 1.0;
  for (const int bits : {3, 4}) {
    const quantized_graph g =
        calibrated(residual_network(r), coarse_platform("tensorrt", bits, 8), samples);
    INFO(bits, " bits");
    for (const bool rounds : {true, false}) {
      quantized_graph learned = g;
      const auto reports =
          rounds ? learn(learned, quick_adaround(), samples) : learn(learned, quick_lsq(), samples);
      REQUIRE(reports.size() == 2);
      CHECK(reports[0].operators.front() == "Conv node 'Conv_0'");
      CHECK(reports[0].operators.size() == 6);
      for (const block_report& report : reports) {
        INFO((rounds ? "adaround" : "learned step size"), " of ", report.exit);
        CHECK((report.outcome == block_outcome::improved) ==
              (report.error_after < report.error_before));
        CHECK(report.error_after <= report.error_before);
        CHECK(report.error_after ==
              doctest::Approx(exported_error(learned, report.exit, samples)).epsilon(1e-12));
        (rounds ? rounding_gain : step_gain) *= report.error_after / report.error_before;
      }
      CHECK(reports[0].error_before ==
            doctest::Approx(exported_error(g, reports[0].exit, samples)).epsilon(1e-12));
      network_gain *=
          exported_error(learned, "Gemm_9_out", samples) / exported_error(g, "Gemm_9_out", samples);
    }
  }
  // The means of four blocks.
  CHECK(std::pow(rounding_gain, 0.25) < 0.8);
  CHECK(std::pow(step_gain, 0.25) < 0.8);
  CHECK(std::pow(network_gain, 0.25) < 0.9);
}

TEST_CASE("block reconstruction: every platform, both passes in PPQ's order, never worse") {
  test::random_source r(205);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 4);
  const graph::model network = residual_network(r);
  for (const ppq::platform& preset : ppq::platforms()) {
    INFO("platform ", preset.name);
    std::vector<block_report> reports;
    const auto tell = [&](const block_report& report) { reports.push_back(report); };
    ppq::pipeline_options options;
    options.learned_step_size = quick_lsq();
    options.learned_step_size->steps = 30;
    options.learned_step_size->blocks.on_block = tell;
    options.adaround = quick_adaround();
    options.adaround->steps = 60;
    options.adaround->learning_rate = 0.1;
    options.adaround->blocks.on_block = tell;
    const ppq::pipeline passes = ppq::default_pipeline(options);
    REQUIRE(passes.size() == 8);
    CHECK(passes[4].name == "passive parameters");
    CHECK(passes[5].name == "learned step size");
    CHECK(passes[6].name == "adaround");
    CHECK(passes[7].name == "baking");
    quantized_graph g = ppq::make_quantized_graph(network, coarse_platform(preset.name, 4, 8));
    ppq::pass_context c{samples_source(samples), {}};
    for (const ppq::quantization_pass& pass : passes) {
      if (pass.name == "baking") {
        // Baking changes nothing of what is exported, but for the last bit of biases.
        const auto before = ppq::to_qdq_model(g).network;
        pass.run(g, c);
        const auto after = ppq::to_qdq_model(g).network;
        for (const auto& entry : before.initializers) {
          INFO("constant ", entry.first);
          const tensor* same = after.initializer(entry.first);
          REQUIRE(same != nullptr);
          CHECK((entry.second.type() == element_type::s32 || same_bytes(entry.second, *same)));
        }
        continue;
      }
      pass.run(g, c);
    }
    REQUIRE(reports.size() == 4);
    std::size_t improved = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      INFO("report ", i);
      CHECK(reports[i].error_after <= reports[i].error_before);
      CHECK(reports[i].outcome != block_outcome::no_gradient);
      CHECK(reports[i].outcome != block_outcome::nothing_to_learn);
      improved += reports[i].outcome == block_outcome::improved ? 1U : 0U;
    }
    CHECK(improved >= 1);
    CHECK(reports[2].error_before == reports[0].error_after);
    for (const std::size_t i : {std::size_t{2}, std::size_t{3}}) {
      CHECK(exported_error(g, reports[i].exit, samples) ==
            doctest::Approx(reports[i].error_after).epsilon(1e-4));
    }
  }
}

TEST_CASE("block reconstruction: twice the same, whoever runs the pieces") {
  test::random_source r(206);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 4);
  const quantized_graph g =
      calibrated(residual_network(r), coarse_platform("ppl_cuda", 4, 8), samples);
  for (const bool rounds : {true, false}) {
    std::vector<graph::model> results;
    for (const bool parallel : {false, true}) {
      quantized_graph learned = g;
      ppq::pass_context c{samples_source(samples), {}};
      if (parallel) {
        c.executor.parallel = [](std::size_t count, const std::function<void(std::size_t)>& body) {
          for (std::size_t i = count; i-- > 0;) {
            body(i);
          }
        };
      }
      if (rounds) {
        ppq::adaround_pass pass = quick_adaround();
        pass.steps = 40;
        pass.learning_rate = 0.1;
        pass.blocks.samples_per_step = 2;
        pass(learned, c);
      } else {
        ppq::learned_step_size_pass pass = quick_lsq();
        pass.steps = 40;
        pass.gamma = 0.5;
        pass.blocks.samples_per_step = 3;
        pass(learned, c);
      }
      results.push_back(ppq::to_qdq(learned));
    }
    CHECK(same_constants(results[0], results[1]));
    CHECK_FALSE(same_constants(results[0], ppq::to_qdq(g)));
  }
}

TEST_CASE("block reconstruction: what does not help is undone") {
  test::random_source r(207);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 3);
  const quantized_graph g =
      calibrated(residual_network(r), coarse_platform("tensorrt", 8, 8), samples);
  for (const double rate : {10.0, 1e30, 1e300}) {
    quantized_graph learned = g;
    ppq::learned_step_size_pass pass = quick_lsq();
    pass.learning_rate = rate;
    pass.steps = 3;
    for (const block_report& report : learn(learned, pass, samples)) {
      CHECK(report.outcome == block_outcome::not_improved);
      CHECK(report.error_after == report.error_before);
      CHECK(report.error_before > 0.0);
    }
    CHECK(same_constants(learned.network, g.network));
    CHECK(same_constants(ppq::to_qdq(learned), ppq::to_qdq(g)));
    CHECK(learned.float_constants.empty());
  }
}

TEST_CASE("block reconstruction: what cannot be learned is left alone and told") {
  test::random_source r(208);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {2, 3, 6, 6});
  b.constant("w1", random_floats(r, {3, 3, 3, 3}, -0.5F, 0.5F));
  b.constant("up", random_floats(r, {3, 3, 2, 2}, -0.5F, 0.5F));
  b.constant("tied", random_floats(r, {8, 8}, -0.5F, 0.5F));
  const std::string first = b.add("Conv", {"x", "w1"}, {{"pads", list({1, 1, 1, 1})}});
  const std::string raised = b.add("ConvTranspose", {first, "up"}, {{"strides", list({2, 2})}});
  const std::string hard = b.add("Hardmax", {raised});
  const std::string rows = b.add(
      "Flatten",
      {b.add("MaxPool", {hard}, {{"kernel_shape", list({6, 3})}, {"strides", list({6, 3})}})});
  b.constant("w4", random_floats(r, {24, 8}, -0.5F, 0.5F));
  const std::string second = b.add("Gemm", {rows, "w4"});
  const std::string third = b.add("Gemm", {second, "tied"});
  b.output(b.add("Gemm", {third, "tied"}));
  const auto samples = smooth_samples(r, {2, 3, 6, 6}, 3);
  const quantized_graph g = calibrated(b.get(), coarse_platform("tensorrt", 4, 8), samples);
  for (const bool rounds : {true, false}) {
    quantized_graph learned = g;
    ppq::adaround_pass rounding = quick_adaround();
    rounding.blocks.block_size = 1;
    ppq::learned_step_size_pass step = quick_lsq();
    step.blocks.block_size = 1;
    INFO((rounds ? "adaround" : "learned step size"));
    const auto reports = rounds ? learn(learned, rounding, samples) : learn(learned, step, samples);
    REQUIRE(reports.size() == 5);
    CHECK(reports[0].exit == first);
    CHECK(reports[0].outcome == block_outcome::improved);
    // Blocks do not reach over an operator without gradient.
    CHECK(reports[1].outcome == block_outcome::improved);
    CHECK(reports[1].operators == std::vector<std::string>{"ConvTranspose node 'ConvTranspose_1'"});
    CHECK(reports[2].entry == rows);
    for (const std::size_t i : {std::size_t{3}, std::size_t{4}}) {
      CHECK(reports[i].outcome == block_outcome::nothing_to_learn);
    }
    CHECK(same_bytes(*learned.network.initializer("tied"), *g.network.initializer("tied")));
    for (const char* name : {"w1", "up"}) {
      CHECK_FALSE(same_bytes(*learned.network.initializer(name), *g.network.initializer(name)));
    }
  }
  // Baked weights are what they are.
  quantized_graph baked = g;
  ppq::pass_context c{samples_source(samples), {}};
  ppq::parameter_baking_pass()(baked, c);
  const graph::model before = ppq::to_qdq(baked);
  for (const block_report& report : learn(baked, quick_adaround(), samples)) {
    CHECK(report.outcome == block_outcome::nothing_to_learn);
  }
  CHECK(same_constants(before, ppq::to_qdq(baked)));
}

TEST_CASE("block reconstruction: bad input") {
  test::random_source r(209);
  const auto samples = smooth_samples(r, residual_input, 2);
  const graph::model network = residual_network(r);
  const quantized_graph g = calibrated(network, ppq::find_platform("ppl_cuda"), samples);
  const auto rejected = [&](const auto& pass, std::initializer_list<std::string_view> words) {
    quantized_graph copy = g;
    ppq::pass_context c{samples_source(samples), {}};
    check_graph_error(error_kind::invalid_argument, words, [&] { pass(copy, c); });
    CHECK(same_constants(copy.network, g.network));
  };
  const auto both = [&](auto change, std::initializer_list<std::string_view> words) {
    ppq::adaround_pass rounding = quick_adaround();
    change(rounding);
    rejected(rounding, words);
    ppq::learned_step_size_pass step = quick_lsq();
    change(step);
    rejected(step, words);
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  both([](auto& p) { p.steps = 0; }, {"_pass", "0 steps"});
  both([](auto& p) { p.blocks.block_size = 0; }, {"_pass", "block_size of 0"});
  both([](auto& p) { p.blocks.samples = 0; }, {"_pass", "0 samples"});
  both([](auto& p) { p.blocks.samples_per_step = 0; }, {"_pass", "0 samples_per_step"});
  both([](auto& p) { p.learning_rate = 0.0; }, {"_pass", "learning rate of 0"});
  both([](auto& p) { p.learning_rate = -1.0; }, {"_pass", "learning rate of -1"});
  both([=](auto& p) { p.learning_rate = infinity; }, {"_pass", "learning rate of inf"});
  both([=](auto& p) { p.learning_rate = nan; }, {"_pass", "learning rate of nan"});
  both([](auto& p) { p.gamma = -1.0; }, {"_pass", "gamma of -1"});
  both([=](auto& p) { p.gamma = nan; }, {"_pass", "gamma of nan"});
  const auto rounding = [&](auto change, std::initializer_list<std::string_view> words) {
    ppq::adaround_pass pass = quick_adaround();
    change(pass);
    rejected(pass, words);
  };
  rounding([](auto& p) { p.warm_up = 1.0; }, {"adaround_pass", "warm-up of 1"});
  rounding([](auto& p) { p.last_beta = 0.5; }, {"adaround_pass", "beta of 0.5"});
  rounding([=](auto& p) { p.first_beta = infinity; }, {"adaround_pass", "beta of inf"});

  // Before calibration, before passive parameters, without samples.
  const auto fails = [&](quantized_graph graph, const graph::calibration_source& source,
                         std::initializer_list<std::string_view> words) {
    ppq::pass_context c{source, {}};
    check_graph_error(error_kind::invalid_argument, words, [&] { quick_adaround()(graph, c); });
    check_graph_error(error_kind::invalid_argument, words, [&] { quick_lsq()(graph, c); });
  };
  quantized_graph fresh = ppq::make_quantized_graph(network, ppq::find_platform("ppl_cuda"));
  fails(fresh, samples_source(samples), {"_pass", "Conv_0", "INITIAL", "not calibrated"});
  ppq::pass_context c{samples_source(samples), {}};
  ppq::pipeline passes = ppq::default_pipeline();
  passes.resize(4);  // up to passive parameters
  ppq::run_pipeline(fresh, passes, c);
  fails(fresh, samples_source(samples), {"_pass", "Conv_0", "PASSIVE_INIT", "passive parameters"});
  fails(g, {}, {"no calibration samples"});
  fails(g, samples_source({}), {"no calibration samples"});
  // In a pipeline the pass is named.
  ppq::adaround_pass none = quick_adaround();
  none.steps = 0;
  quantized_graph copy = g;
  check_graph_error(error_kind::invalid_argument, {"pass 'adaround'", "0 steps"}, [&] {
    ppq::run_pipeline(copy, {{"adaround", none}}, c);
  });
}

TEST_CASE("block reconstruction: samples are bounded and begin anew") {
  test::random_source r(210);
  const auto samples = smooth_samples(r, residual_input, 5);
  const quantized_graph g =
      calibrated(residual_network(r), coarse_platform("tensorrt", 4, 8), samples);
  std::size_t drawn = 0;
  std::size_t ends = 0;
  std::size_t next = 0;
  ppq::pass_context c;
  c.samples = [&]() -> std::optional<tensors> {
    if (next == samples.size()) {
      next = 0;
      ++ends;
      return std::nullopt;
    }
    ++drawn;
    return samples[next++];
  };
  ppq::adaround_pass pass = quick_adaround();
  pass.steps = 5;
  pass.blocks.samples = 2;
  double error = 0.0;
  pass.blocks.on_block = [&](const block_report& report) {
    error = error == 0.0 ? report.error_before : error;
  };
  quantized_graph learned = g;
  pass(learned, c);
  CHECK(next == 0);
  CHECK(ends == 1);
  CHECK(drawn == 5);
  CHECK(
      error ==
      doctest::Approx(exported_error(g, "MaxPool_5_out", {samples[0], samples[1]})).epsilon(1e-12));
}

TEST_CASE("block reconstruction: the float network is the target, whatever was done to biases") {
  test::random_source r(211);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 3);
  const quantized_graph g =
      calibrated(residual_network(r), coarse_platform("tensorrt", 8, 8), samples);
  quantized_graph shifted = g;
  tensor bias = random_floats(r, {6}, 0.0F, 0.0F);
  for (std::size_t i = 0; i < 6; ++i) {
    bias.mutable_data<float>()[i] = g.network.initializer("b2")->data<float>()[i] + 0.05F;
  }
  shifted.network.initializers["b2"] = bias;
  ppq::learned_step_size_pass pass = quick_lsq();
  pass.steps = 300;
  pass.learning_rate = 1e-3;
  const auto reports = learn(shifted, pass, samples);
  CHECK(reports[0].error_before > 5.0 * exported_error(g, reports[0].exit, samples));
  CHECK(reports[0].error_after < 0.2 * reports[0].error_before);

  // A pass that changed weights too (an equalization) left the float model behind: then the network
  // itself, in float, is the target.
  graph::model network = residual_network(r);
  quantized_graph scaled = ppq::make_quantized_graph(network, coarse_platform("tensorrt", 8, 8));
  for (const auto& [name, factor] : std::map<std::string, float>{{"w1", 4.0F}, {"b1", 4.0F}}) {
    tensor t = tensor::allocate(element_type::f32, scaled.network.initializers.at(name).dims());
    for (std::size_t i = 0; i < t.count(); ++i) {
      t.mutable_data<float>()[i] = scaled.network.initializers.at(name).data<float>()[i] * factor;
    }
    scaled.network.initializers[name] = t;
  }
  ppq::pass_context c{samples_source(samples), {}};
  ppq::pipeline_options options;
  options.bake = false;
  ppq::run_pipeline(scaled, ppq::default_pipeline(options), c);
  ppq::adaround_pass rounding = quick_adaround();
  rounding.steps = 20;
  const auto after = learn(scaled, rounding, samples);
  CHECK(after[0].error_before < 0.01 * exported_error(scaled, after[0].exit, samples));
}

// ---------------------------------------------------------------------------------------- adaround

TEST_CASE("adaround: weights of one layer against all roundings there are") {
  test::random_source r(212);
  INFO("seed ", r.seed());
  std::size_t better = 0;
  double found_sum = 0.0;
  double best_sum = 0.0;
  double nearest_sum = 0.0;
  for (int trial = 0; trial < 12; ++trial) {
    // Inputs that nearly agree: what counts is the sum of the weights' errors.
    model_builder b;
    b.input("x", {16, 8});
    tensor w = random_floats(r, {8, 1}, -0.9F, 0.9F);
    w.mutable_data<float>()[0] = 1.0F;
    b.constant("w", w);
    b.output(b.add("Gemm", {"x", "w"}));
    std::vector<tensors> samples;
    for (int s = 0; s < 2; ++s) {
      tensor x = random_floats(r, {16, 8}, -0.2F, 0.2F);
      for (std::size_t i = 0; i < x.count(); ++i) {
        x.mutable_data<float>()[i] += static_cast<float>(i / 8) / 16.0F;
      }
      samples.push_back({{"x", x}});
    }
    ppq::platform p = coarse_platform("tensorrt", 3, 8);
    quantized_graph g = calibrated(b.get(), p, samples);
    const ppq::tensor_parameters params = g.configs.parameters(g.operators[0].inputs[1]);
    REQUIRE(params.scales.size() == 1);
    const auto scale = static_cast<double>(params.scales[0]);
    // All 2^8 ways; the rest of the exported model by plain loops.
    const ppq::tensor_parameters& in = g.configs.parameters(g.operators[0].inputs[0]);
    const ppq::tensor_parameters& out = g.configs.parameters(g.operators[0].outputs[0]);
    const auto fake = [](double v, const ppq::tensor_parameters& q) {
      const auto s = static_cast<double>(q.scales[0]);
      const double level = std::nearbyint(static_cast<double>(static_cast<float>(v) / q.scales[0]));
      return (std::min)((std::max)(level, -128.0), 127.0) * s;
    };
    const auto error_of = [&](const std::vector<double>& weights) {
      double sum = 0.0;
      for (const tensors& sample : samples) {
        const auto x = sample.at("x").data<float>();
        for (std::size_t row = 0; row < 16; ++row) {
          double y = 0.0;
          double exact = 0.0;
          for (std::size_t k = 0; k < 8; ++k) {
            y += fake(static_cast<double>(x[row * 8 + k]), in) * weights[k];
            exact += static_cast<double>(x[row * 8 + k]) * static_cast<double>(w.data<float>()[k]);
          }
          const double d = fake(y, out) - exact;
          sum += d * d;
        }
      }
      return sum / 32.0;
    };
    double best = 1e300;
    for (unsigned mask = 0; mask < 256; ++mask) {
      std::vector<double> weights(8);
      for (std::size_t k = 0; k < 8; ++k) {
        const double below = std::floor(static_cast<double>(w.data<float>()[k]) / scale);
        weights[k] =
            scale * (std::min)((std::max)(below + (mask >> k & 1U ? 1.0 : 0.0), -4.0), 3.0);
      }
      best = (std::min)(best, error_of(weights));
    }
    ppq::adaround_pass pass = quick_adaround();
    pass.steps = 600;
    const auto reports = learn(g, pass, samples);
    REQUIRE(reports.size() == 1);
    INFO("trial ", trial, ": nearest ", reports[0].error_before, ", found ", reports[0].error_after,
         ", best ", best);
    CHECK(reports[0].error_after <= reports[0].error_before);
    CHECK(reports[0].error_after >= best * (1.0 - 1e-3));
    better += reports[0].outcome == block_outcome::improved ? 1U : 0U;
    found_sum += reports[0].error_after;
    best_sum += best;
    nearest_sum += reports[0].error_before;
    if (reports[0].outcome != block_outcome::improved) {
      CHECK(same_bytes(*g.network.initializer("w"), w));
      continue;
    }
    // Each weight is rounded to one of its two neighbours.
    const auto learned = g.network.initializer("w")->data<float>();
    for (std::size_t k = 0; k < 8; ++k) {
      const double steps = static_cast<double>(w.data<float>()[k]) / scale;
      const double level = static_cast<double>(learned[k]) / scale;
      CHECK(level == doctest::Approx(std::round(level)));
      CHECK((std::fabs(level - steps) < 1.0 + 1e-6 || level == doctest::Approx(3.0)));
    }
  }
  CHECK(better >= 4);
  CHECK(found_sum < 0.5 * nearest_sum);
  CHECK(found_sum < best_sum + 0.25 * (nearest_sum - best_sum));
}

TEST_CASE("adaround: the integers it learned are those of later passes and of the export") {
  test::random_source r(213);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 4);
  for (const std::string name : {"tensorrt", "qnn", "ncnn", "nxp"}) {
    INFO("platform ", name);
    const quantized_graph g = calibrated(residual_network(r), coarse_platform(name, 4, 8), samples);
    quantized_graph learned = g;
    ppq::adaround_pass pass = quick_adaround();
    pass.steps = 250;
    pass.learning_rate = 0.03;
    std::size_t improved = 0;
    for (const block_report& report : learn(learned, pass, samples)) {
      improved += report.outcome == block_outcome::improved ? 1U : 0U;
    }
    CHECK(improved > 0);
    const graph::model exported = ppq::to_qdq(learned);
    quantized_graph baked = learned;
    ppq::pass_context c{samples_source(samples), {}};
    ppq::passive_parameter_pass()(baked, c);
    ppq::parameter_baking_pass()(baked, c);
    const graph::model after = ppq::to_qdq(baked);
    std::size_t changed = 0;
    for (const char* weight : {"w1", "w2", "w3", "w4"}) {
      const std::string key = std::string(weight) + "_quantized";
      REQUIRE(exported.initializer(key) != nullptr);
      CHECK(same_bytes(*exported.initializer(key), *after.initializer(key)));
      const bool is_learned = learned.float_constants.count(weight) != 0;
      if (!is_learned) {
        CHECK(same_bytes(*learned.network.initializer(weight), *g.network.initializer(weight)));
        continue;
      }
      // Floats come back where the configuration is switched off, also after baking.
      CHECK(same_bytes(learned.float_constants.at(weight), *g.network.initializer(weight)));
      CHECK(same_bytes(baked.float_constants.at(weight), *g.network.initializer(weight)));
      const tensor nearest = *ppq::to_qdq(g).initializer(key);
      for (std::size_t i = 0; i < nearest.bytes(); ++i) {
        const int apart = std::to_integer<int>(nearest.raw()[i]) -
                          std::to_integer<int>(exported.initializer(key)->raw()[i]);
        CHECK((apart == 0 || std::abs(apart) == 1 || std::abs(apart) == 255));
        changed += apart != 0 ? 1U : 0U;
      }
    }
    CHECK(changed > 10);
    // Nothing but weights has changed.
    for (const char* other : {"b1", "b2", "b4"}) {
      CHECK(same_bytes(*learned.network.initializer(other), *g.network.initializer(other)));
    }
    g.for_each_config([&](ppq::config_id id) {
      CHECK(learned.configs.parameters(id) == g.configs.parameters(id));
      CHECK(learned.configs[id].state() == g.configs[id].state());
    });
    quantized_graph off = baked;
    off.for_each_config([&](ppq::config_id id) { off.configs.dequantize(id); });
    const std::vector<tensor> floats_again = outputs_of(ppq::to_qdq(off), samples[0]);
    const std::vector<tensor> expected = outputs_of(g.float_model, samples[0]);
    CHECK(same_bytes(floats_again[0], expected[0]));
    // What is said of the parameters is about the learned integers.
    for (const ppq::statistics_report& report : ppq::parameter_analysis(learned)) {
      if (learned.float_constants.count(report.name) != 0) {
        const auto values = learned.network.initializer(report.name)->data<float>();
        double sum = 0.0;
        for (const float v : values) {
          sum += static_cast<double>(v);
        }
        CHECK(report.quantized_values.mean ==
              doctest::Approx(sum / static_cast<double>(values.size())).epsilon(1e-6));
      }
    }
  }
}

// ------------------------------------------------------------------------------- learned step size

TEST_CASE("learned step size: which scales move") {
  test::random_source r(214);
  INFO("seed ", r.seed());
  const auto samples = smooth_samples(r, residual_input, 4);
  for (const std::string name : {"tensorrt", "ppl_cuda", "qnn", "nxp"}) {
    INFO("platform ", name);
    const quantized_graph g = calibrated(residual_network(r), coarse_platform(name, 3, 6), samples);
    quantized_graph learned = g;
    ppq::learned_step_size_pass pass = quick_lsq();
    pass.blocks.block_size = 1;
    pass.steps = 100;
    std::size_t improved = 0;
    const auto reports = learn(learned, pass, samples);
    for (const block_report& report : reports) {
      improved += report.outcome == block_outcome::improved ? 1U : 0U;
    }
    CHECK(improved >= 1);
    const bool powers = name == "nxp";
    std::size_t moved = 0;
    g.for_each_config([&](ppq::config_id id) {
      INFO(g.configs[id].name);
      const ppq::tensor_parameters& before = g.configs.parameters(id);
      const ppq::tensor_parameters& after = learned.configs.parameters(id);
      CHECK(after.zero_points == before.zero_points);
      CHECK(after.scales.size() == before.scales.size());
      CHECK(learned.configs[id].state() == g.configs[id].state());
      for (std::size_t i = 0; i < after.scales.size(); ++i) {
        CHECK(after.scales[i] > before.scales[i] / 17.0F);
      }
      moved += after.scales != before.scales ? 1U : 0U;
      if (powers) {
        CHECK(after == before);
      }
    });
    CHECK((powers || moved >= 2));
    // Biases follow.
    for (std::size_t i = 0; i < learned.network.nodes.size(); ++i) {
      if (learned.operators[i].inputs.size() < 3 ||
          learned.operators[i].inputs[2] == ppq::no_config ||
          learned.configs[learned.operators[i].inputs[2]].state() != quantization_state::passive) {
        continue;
      }
      const auto& scales = learned.configs.parameters(learned.operators[i].inputs[2]).scales;
      const auto& x = learned.configs.parameters(learned.operators[i].inputs[0]).scales;
      const auto& w = learned.configs.parameters(learned.operators[i].inputs[1]).scales;
      for (std::size_t k = 0; k < scales.size(); ++k) {
        CHECK(scales[k] == x[0] * w[k % w.size()]);
      }
    }
  }
}

TEST_CASE("learned step size: a scale that others share stays") {
  test::random_source r(215);
  INFO("seed ", r.seed());
  // Two layers whose outputs are added: alignment gives both one scale.
  model_builder b;
  b.input("x", {8, 6});
  b.input("y", {8, 6});
  b.constant("w1", random_floats(r, {6, 6}, -0.5F, 0.5F));
  b.constant("w2", random_floats(r, {6, 6}, -0.5F, 0.5F));
  const std::string first = b.add("Gemm", {"x", "w1"});
  const std::string second = b.add("Gemm", {"y", "w2"});
  b.output(b.add("Add", {first, second}));
  std::vector<tensors> samples;
  for (int i = 0; i < 4; ++i) {
    samples.push_back({{"x", random_floats(r, {8, 6}, -1.0F, 1.0F)},
                       {"y", random_floats(r, {8, 6}, -1.0F, 1.0F)}});
  }
  const quantized_graph g = calibrated(b.get(), coarse_platform("tensorrt", 3, 8), samples);
  const std::size_t add = index_of(g, "Add");
  REQUIRE(g.configs.source(g.operators[add].inputs[0]) ==
          g.configs.source(g.operators[add].inputs[1]));
  quantized_graph learned = g;
  ppq::learned_step_size_pass pass = quick_lsq();
  pass.learning_rate = 1e-4;  // small steps, which seldom overshoot
  const auto reports = learn(learned, pass, samples);
  REQUIRE(reports.size() == 2);
  CHECK((reports[0].outcome == block_outcome::improved ||
         reports[1].outcome == block_outcome::improved));
  CHECK(learned.configs.parameters(g.operators[add].inputs[0]) ==
        g.configs.parameters(g.operators[add].inputs[0]));
  for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
    const std::size_t gemm = index_of(g, "Gemm", which);
    const bool improved = reports[which].outcome == block_outcome::improved;
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const ppq::config_id id = g.operators[gemm].inputs[slot];
      CHECK((learned.configs.parameters(id) != g.configs.parameters(id)) == improved);
    }
  }
}

namespace {

/// What learned_step_size_pass trains in y = x W + b, where W has a scale for each column.
struct learned_layer {
  std::vector<float> weights;  // K x N
  std::vector<float> scales;   // N
  std::vector<float> bias;     // N

  [[nodiscard]] std::vector<float> all() const {
    std::vector<float> values = weights;
    values.insert(values.end(), scales.begin(), scales.end());
    values.insert(values.end(), bias.begin(), bias.end());
    return values;
  }
};

/// What they are after each step of the pass, by its formulas and plain loops, in double. All of
/// its samples are x, whose rows have K elements.
std::vector<learned_layer> trained(const learned_layer& layer, std::span<const float> x,
                                   detent::grid levels, const ppq::learned_step_size_pass& pass) {
  const std::size_t n = layer.bias.size();
  const std::size_t count = layer.weights.size();
  const std::size_t depth = count / n;
  const std::size_t rows = x.size() / depth;
  std::vector<double> values(layer.weights.begin(), layer.weights.end());
  values.insert(values.end(), layer.bias.begin(), layer.bias.end());
  values.insert(values.end(), layer.scales.begin(), layer.scales.end());
  const auto factor = static_cast<double>(detent::lsq_gradient_factor(depth, levels));
  detent::adam optimizer(values.size(), {.learning_rate = pass.learning_rate});
  std::vector<learned_layer> all;
  double unit = 0.0;  // the mean squared error in the beginning
  for (std::size_t step = 0; step < pass.steps; ++step) {
    std::vector<double> w(count);
    std::vector<double> rounded(count);
    std::vector<detent::reference::fake_quantize_partials> slopes(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(values[i]);
      const detent::quant_params p{static_cast<float>(values[count + n + i % n]), 0};
      w[i] = static_cast<double>(value);
      rounded[i] = static_cast<double>(detent::reference::fake_quantize(value, p, levels));
      slopes[i] = detent::reference::fake_quantize_derivatives(value, p, levels);
    }
    double error = 0.0;
    std::vector<double> for_rounded(count);  // the gradient of mean((y^ - y)^2)
    std::vector<double> for_bias(n);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t c = 0; c < n; ++c) {
        double d = static_cast<double>(static_cast<float>(values[count + c])) -
                   static_cast<double>(layer.bias[c]);
        for (std::size_t k = 0; k < depth; ++k) {
          d += static_cast<double>(x[row * depth + k]) *
               (rounded[k * n + c] - static_cast<double>(layer.weights[k * n + c]));
        }
        error += d * d / static_cast<double>(rows * n);
        d *= 2.0 / static_cast<double>(rows * n);
        for_bias[c] += d;
        for (std::size_t k = 0; k < depth; ++k) {
          for_rounded[k * n + c] += d * static_cast<double>(x[row * depth + k]);
        }
      }
    }
    unit = step == 0 ? error : unit;
    std::vector<double> gradient(values.size());
    for (std::size_t i = 0; i < count; ++i) {
      const double to_grid =
          pass.gamma * 2.0 * (rounded[i] - w[i]) / (static_cast<double>(count) * unit);
      const double for_error = for_rounded[i] / unit;
      gradient[i] = for_error * static_cast<double>(slopes[i].x) - to_grid;
      gradient[count + n + i % n] +=
          factor * (for_error + to_grid) * static_cast<double>(slopes[i].scale);
    }
    for (std::size_t c = 0; c < n; ++c) {
      gradient[count + c] = for_bias[c] / unit;
    }
    optimizer.step(values, gradient,
                   1.0 - static_cast<double>(step) / static_cast<double>(pass.steps));
    learned_layer& now = all.emplace_back(layer);
    for (std::size_t i = 0; i < count; ++i) {
      now.weights[i] = static_cast<float>(values[i]);
    }
    for (std::size_t c = 0; c < n; ++c) {
      now.bias[c] = static_cast<float>(values[count + c]);
      now.scales[c] = static_cast<float>(values[count + n + c]);
    }
  }
  return all;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    REQUIRE(std::isfinite(apart));
    largest = std::max(largest, apart);
  }
  return largest;
}

}  // namespace

TEST_CASE("learned step size: gamma draws weights to their grid, as the formulas say") {
  test::random_source r(216);
  INFO("seed ", r.seed());
  // Without quantized activations, nothing is rounded but weights, and small differences of sums
  // stay small.
  model_builder b;
  b.input("x", {40, 6});
  b.constant("w", random_floats(r, {6, 5}, -0.5F, 0.5F));
  b.constant("b", random_floats(r, {5}, -0.01F, 0.01F));
  b.output(b.add("Gemm", {"x", "w", "b"}));
  const std::vector<tensors> samples{{{"x", random_floats(r, {40, 6}, 0.02F, 0.03F)}}};
  quantized_graph g = calibrated(b.get(), coarse_platform("tensorrt", 3, 8), samples);
  const ppq::config_id id = input_config(g, "Gemm", 1);
  const detent::grid levels = g.configs[id].levels;
  g.for_each_config([&](ppq::config_id other) {
    if (other != id) {
      g.configs.dequantize(other);
    }
  });
  // Weights whose codes do not change in a few small steps: they are 0.15 of a scale or more from a
  // tie. Then only biases and scales move the outputs, and both go by the learning rate in the
  // first step, whatever gamma is. A bias moves the outputs of its column by as much towards the
  // targets, a scale by as much times |sum of code * x| <= 4 * 6 * 0.03 < 1, perhaps away from
  // them. So the error falls, and the pass keeps what it has learned.
  const std::vector<float> scales = g.configs.parameters(id).scales;
  REQUIRE(scales.size() == 5);
  tensor w = tensor::allocate(element_type::f32, {6, 5});
  for (std::size_t i = 0; i < w.count(); ++i) {
    const auto code = static_cast<float>(r.integer(levels.qmin, levels.qmax));
    w.mutable_data<float>()[i] = scales[i % 5] * (code + r.real(-0.35F, 0.35F));
  }
  for (graph::model* m : {&g.network, &g.float_model}) {
    REQUIRE(m->initializers.count("w") == 1);
    m->initializers.at("w") = w;
  }
  const auto layer_of = [&](const quantized_graph& of) {
    const auto weights = of.network.initializer("w")->data<float>();
    const auto bias = of.network.initializer("b")->data<float>();
    return learned_layer{{weights.begin(), weights.end()},
                         of.configs.parameters(id).scales,
                         {bias.begin(), bias.end()}};
  };
  const learned_layer layer = layer_of(g);
  const auto distance = [&](const std::vector<float>& weights) {  // from the levels as they were
    double sum = 0.0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float level =
          detent::reference::fake_quantize(weights[i], {layer.scales[i % 5], 0}, levels);
      const double d = static_cast<double>(weights[i]) - static_cast<double>(level);
      sum += d * d;
    }
    return sum;
  };
  for (const double gamma : {0.0, 0.01, 1000.0}) {
    INFO("gamma ", gamma);
    ppq::learned_step_size_pass pass = quick_lsq();
    pass.learning_rate = 1e-4;
    pass.steps = 8;  // each of them is measured
    pass.gamma = gamma;
    quantized_graph learned = g;
    const auto reports = learn(learned, pass, samples);
    REQUIRE(reports.size() == 1);
    REQUIRE(reports[0].outcome == block_outcome::improved);
    const learned_layer found = layer_of(learned);
    // Which step was the best is not told: it is one of them.
    double apart = std::numeric_limits<double>::infinity();
    for (const learned_layer& expected :
         trained(layer, samples[0].at("x").data<float>(), levels, pass)) {
      apart = std::min(apart, largest_difference(found.all(), expected.all()));
    }
    // Both are computed in double but for the sums of the library's executor, and rounded to float:
    // they are the same floats or neighbours, which are 2^-24 or less apart below 1. A step is
    // 1e-4.
    CHECK(apart <= 0x1p-24);
    // Where the error counts for little, weights go towards their levels.
    CHECK((gamma < 1000.0 || distance(found.weights) < distance(layer.weights)));
  }
}
