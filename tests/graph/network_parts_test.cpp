// SPDX-License-Identifier: BSD-3-Clause
// Networks that are run part by part, or from a settled front on: the same bits as in one piece,
// whatever the cuts, and after changes of parameters that only some parts see.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/network_parts.hpp>
#include <detent/graph/quantize/settled_front.hpp>
#include <detent/graph/quantize/static_quantization.hpp>
#include <detent/graph/rewrite/renaming.hpp>

#include "calibration_samples.hpp"
#include "check_error.hpp"
#include "compare.hpp"
#include "model_builder.hpp"
#include "random.hpp"

namespace {

namespace graph = detent::graph;
using graph::attribute;
using graph::element_type;
using graph::tensor;
using test::list;
using test::model_builder;
using test::number;
using test::random_floats;
using test::real;
using test::sample;

constexpr std::int64_t channels = 4;

/// A branch of an If: one node that takes `x`, a value of the graph around it.
attribute branch(const std::string& op, const std::string& x) {
  graph::graph_body body;
  graph::node n;
  n.op_type = op;
  n.name = op + " in branch";
  n.inputs = {x};
  n.outputs = {"in_branch"};
  body.nodes = {n};
  body.outputs = {{"in_branch", element_type::f32, false, {}, {}}};
  return attribute::of(std::move(body));
}

/// A random network on images of 4 channels: layers, branches that meet in sums, products and
/// concatenations, operators in float, and an If that captures a value.
graph::model random_network(test::random_source& r, std::size_t size, bool open_batch) {
  model_builder b;
  b.input("x", {open_batch ? -1 : 1, channels, 6, 6});
  b.input("flag", {}, element_type::boolean);
  std::vector<std::string> values{"x"};
  const auto any = [&] {
    // Recent values more often, so that the network is deep, but not always.
    const auto from = r.integer(0, 3) == 0 ? 0 : std::max(0, static_cast<int>(values.size()) - 3);
    return values[static_cast<std::size_t>(r.integer(from, static_cast<int>(values.size()) - 1))];
  };
  const auto conv = [&](const std::string& x, std::int64_t in, std::int64_t group) {
    const std::string name = "conv" + std::to_string(b.get().nodes.size());
    const std::int64_t kernel = r.integer(0, 1) == 0 ? 1 : 3;
    const std::int64_t pad = kernel / 2;
    b.constant(name + "_w", random_floats(r, {channels, in / group, kernel, kernel}, -0.7F, 0.7F));
    b.constant(name + "_b", random_floats(r, {channels}, -0.2F, 0.3F));
    return b.add("Conv", {x, name + "_w", name + "_b"},
                 {{"group", number(group)}, {"pads", list({pad, pad, pad, pad})}});
  };
  values.push_back(b.add("Relu", {conv("x", channels, 1)}));
  while (b.get().nodes.size() < size) {
    const std::string x = any();
    switch (r.integer(0, 12)) {
      case 0:
      case 1:
        values.push_back(b.add("Relu", {conv(x, channels, 1)}));
        break;
      case 2:
        values.push_back(conv(x, channels, channels));
        break;
      case 3:
        values.push_back(b.add("Add", {x, any()}));
        break;
      case 4:
        values.push_back(b.add("Relu", {b.add("Add", {x, any()})}));
        break;
      case 5:
        values.push_back(b.add("Mul", {x, any()}));
        break;
      case 6:
        values.push_back(conv(b.add("Concat", {x, any()}, {{"axis", number(1)}}), 2 * channels, 1));
        break;
      case 7:
        values.push_back(b.add("Sigmoid", {x}));
        break;
      case 8:
        values.push_back(b.add("Tanh", {x}));
        break;  // stays in float
      case 9:
        values.push_back(
            b.add("MaxPool", {x}, {{"kernel_shape", list({3, 3})}, {"pads", list({1, 1, 1, 1})}}));
        break;
      case 10: {  // an integer product with a float result
        const std::string name = "product" + std::to_string(b.get().nodes.size());
        b.constant(name + "_w", random_floats(r, {6, 6}, -0.5F, 0.5F));
        b.constant(name + "_b", random_floats(r, {6}, -0.5F, 0.5F));
        const std::string product = b.add("MatMul", {x, name + "_w"});
        values.push_back(b.add("Tanh", {b.add("Add", {product, name + "_b"})}));
        break;
      }
      case 11:
        values.push_back(
            b.add("If", {"flag"},
                  {{"then_branch", branch("Neg", x)}, {"else_branch", branch("Relu", x)}}));
        break;
      default:
        values.push_back(b.add("Transpose", {x}, {{"perm", list({0, 1, 3, 2})}}));
        break;
    }
  }
  b.output(values.back());
  if (r.integer(0, 1) == 0) {
    b.output(values[values.size() / 2]);
    b.output("x");
    b.output(b.constant("lonely", random_floats(r, {3}, -1.0F, 1.0F)));
  }
  const std::string flat = b.add("Flatten", {b.add("GlobalAveragePool", {values.back()})});
  b.constant("class_w", random_floats(r, {channels, 3}, -1.0F, 1.0F));
  b.output(b.add("Softmax", {b.add("MatMul", {flat, "class_w"})}, {{"axis", number(1)}}));
  return b.get();
}

/// Random inputs of such a network.
sample random_inputs(test::random_source& r, std::int64_t batch, bool flag) {
  return {{"x", random_floats(r, {batch, channels, 6, 6}, -1.0F, 1.5F)},
          {"flag", test::make_tensor<std::uint8_t>(element_type::boolean, {},
                                                   {static_cast<std::uint8_t>(flag)})}};
}

std::vector<std::string> names_of_outputs(graph::model m, bool by_logits) {
  if (by_logits) {
    graph::expose_logits(m);
  }
  std::vector<std::string> names;
  for (const graph::value_info& v : m.outputs) {
    names.push_back(v.name);
  }
  return names;
}

std::vector<tensor> whole(const graph::quantization_plan& plan,
                          const graph::quantization_parameters& p, const sample& inputs,
                          bool by_logits) {
  graph::model m = graph::write_qdq(plan, p);
  if (by_logits) {
    graph::expose_logits(m);
    graph::remove_unused(m);
  }
  return graph::executor(graph::for_execution(std::move(m))).run(inputs);
}

std::string difference(const std::vector<tensor>& a, const std::vector<tensor>& b) {
  std::string all = a.size() == b.size() ? "" : "another number of outputs";
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    all += test::values_of<float>(a[i]) == test::values_of<float>(b[i])
               ? ""
               : "output " + std::to_string(i) + " differs; ";
  }
  return all;
}

}  // namespace

TEST_CASE("network parts: the same bits as the whole network") {
  std::size_t most_parts = 0;
  for (std::uint64_t seed = 700; seed < 725; ++seed) {
    test::random_source r(seed);
    INFO("seed ", seed);
    const bool open_batch = seed % 3 == 0;
    const graph::model m =
        random_network(r, static_cast<std::size_t>(r.integer(6, 40)), open_batch);
    std::vector<sample> samples;
    for (int k = 0; k < 3; ++k) {
      samples.push_back(random_inputs(r, open_batch ? 2 : 1, k % 2 != 0));
    }
    graph::static_quantization_options options;
    options.activations.type = seed % 2 == 0 ? element_type::u8 : element_type::s8;
    const graph::quantization q =
        graph::static_quantization(m, test::samples_source(samples), options);
    for (const bool by_logits : {false, true}) {
      for (const std::size_t least : {std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
        INFO("by logits ", by_logits, ", at least ", least, " nodes");
        graph::detail::network_parts parts(
            q.plan, names_of_outputs(q.plan.float_model(), by_logits), {}, least);
        parts.write(q.parameters);
        most_parts = std::max(most_parts, parts.size());
        for (const sample& inputs : samples) {
          graph::detail::network_values values;
          parts.run(inputs, values);
          CHECK(difference(parts.outputs(inputs, values),
                           whole(q.plan, q.parameters, inputs, by_logits)) == "");
          // Change the range of one activation; only some parts are written and run.
          graph::quantization_parameters other = q.parameters;
          auto at = other.activations.begin();
          std::advance(at, r.integer(0, static_cast<int>(other.activations.size()) - 1));
          const std::string root = q.plan.root(at->first);
          for (auto& [name, p] : other.activations) {
            if (q.plan.root(name) == root) {
              p.scale *= 0.75F;
            }
          }
          INFO("changed: ", root);
          const auto changed = parts.parts_that_differ(q.parameters, other);
          auto written = parts.written(other, changed);
          const auto differing = parts.run_with(written, inputs, values);
          CHECK(difference(parts.outputs(inputs, differing, values),
                           whole(q.plan, other, inputs, by_logits)) == "");
          // Values that no later part takes may be forgotten on the way.
          graph::detail::network_values few;
          for (std::size_t i = 0; i < parts.size(); ++i) {
            parts.run_part(i, inputs, few);
            parts.forget(few, i + 1);
          }
          CHECK(few.size() <= values.size());
          CHECK(difference(parts.outputs(inputs, few), parts.outputs(inputs, values)) == "");
        }
      }
    }
  }
  CHECK(most_parts >= 10);
}

TEST_CASE("network parts: values of layers before they are stored in 8 bits") {
  for (std::uint64_t seed = 750; seed < 756; ++seed) {
    test::random_source r(seed);
    INFO("seed ", seed);
    const graph::model m = random_network(r, 30, false);
    const sample inputs = random_inputs(r, 1, true);
    const graph::quantization q = graph::static_quantization(m, test::samples_source({inputs}));
    graph::detail::network_parts parts(q.plan, names_of_outputs(q.plan.float_model(), false), {},
                                       4);
    parts.write(q.parameters);
    graph::detail::network_values values;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const std::size_t n : parts.nodes(i)) {
        if (!graph::is_layer(q.plan.float_model().nodes[n])) {
          continue;
        }
        const std::string name = q.plan.float_model().nodes[n].outputs[0];
        graph::detail::qdq_writer writer(q.plan, q.parameters);
        graph::model network = writer.run();
        network.outputs = {{writer.name_of(name), element_type::f32, false, {}, {}}};
        graph::remove_unused(network);
        graph::executor beginning(graph::for_execution(parts.model_up_to(q.parameters, i, name)));
        CHECK(difference(parts.run_up_to(beginning, inputs, values),
                         graph::executor(graph::for_execution(std::move(network))).run(inputs)) ==
              "");
      }
      parts.run_part(i, inputs, values);
    }
  }
}

namespace {

/// The network with other names for the results of all nodes but the last one, and these names.
std::pair<graph::model, graph::detail::settled_front::new_names> renamed_network(graph::model m) {
  graph::detail::settled_front::new_names names;
  graph::detail::renaming renamed(m);
  for (const graph::node& n : m.nodes) {
    for (const std::string& out : n.outputs) {
      if (!m.is_output(out)) {
        names[out] = out + "_renamed";
        renamed.rename(out, names[out]);
      }
    }
  }
  renamed.apply_to(m);
  return {std::move(m), std::move(names)};
}

}  // namespace

TEST_CASE("settled front: runs that begin behind it give the same bits") {
  std::size_t fewer_draws = 0;
  for (std::uint64_t seed = 760; seed < 775; ++seed) {
    test::random_source r(seed);
    INFO("seed ", seed);
    const bool open_batch = seed % 2 == 0;
    const graph::model m = random_network(r, 25, open_batch);
    std::vector<sample> samples;
    std::vector<std::vector<tensor>> expected;
    graph::executor network(m);
    for (int k = 0; k < 4; ++k) {
      // Batches of several sizes, if the network takes them.
      samples.push_back(random_inputs(r, open_batch ? 1 + k % 2 : 1, k % 2 != 0));
      expected.push_back(network.run(samples.back()));
    }
    const auto renamed = renamed_network(m);
    // Nothing fits; some samples do; all do.
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{4000}, std::size_t{1} << 20}) {
      INFO("at most ", bytes, " bytes");
      std::size_t draws = 0;
      graph::detail::settled_front front(
          [&draws, source = test::samples_source(samples)]() mutable {
            ++draws;
            return source();
          },
          {}, nullptr, bytes);
      const std::size_t last = m.nodes.size() - 3;  // what is behind makes one of the results
      std::size_t passes = 0;
      for (std::size_t end = 0; end <= last; end += static_cast<std::size_t>(r.integer(1, 8))) {
        INFO("settled: ", end, " nodes");
        // Values keep their meaning in a network where they have other names.
        const bool by_new_names = r.integer(0, 1) == 0;
        const graph::model& settled = by_new_names ? renamed.first : m;
        const graph::detail::settled_front::new_names none;
        const auto& names = by_new_names ? renamed.second : none;
        front.advance(settled, names, graph::detail::values_across(m, end));
        std::size_t k = 0;
        front.run(settled, names, {m.outputs.back().name}, [&](const std::vector<tensor>& results) {
          REQUIRE(k < expected.size());
          CHECK(difference(results, {expected[k++].back()}) == "");
        });
        CHECK(k == samples.size());
        passes += 2;
      }
      const std::size_t draws_of_a_pass = samples.size() + 1;
      CHECK(draws % draws_of_a_pass == 0);
      if (bytes == 0) {
        CHECK(draws == passes * draws_of_a_pass);
      } else if (bytes > 4000) {
        CHECK(draws == draws_of_a_pass);
      } else {
        fewer_draws += draws < passes * draws_of_a_pass ? 1U : 0U;
      }
    }
  }
  CHECK(fewer_draws > 0);
}

TEST_CASE("settled front: what is in front is not run again, and missing inputs have names") {
  model_builder b;
  b.input("x", {2});
  b.input("y", {2});
  const std::string front = b.add("Relu", {"x"});
  b.output(b.add("Add", {b.add("Neg", {front}), "y"}));
  const graph::model m = b.get();
  const auto x = test::floats({2}, {1.0F, -2.0F});
  const auto y = test::floats({2}, {5.0F, 6.0F});
  graph::detail::settled_front runner(test::samples_source({{{"x", x}, {"y", y}}}));
  CHECK(graph::detail::values_across(m, 0) == std::set<std::string>{"x", "y"});
  CHECK(graph::detail::values_across(m, 1) == std::set<std::string>{front, "y"});
  CHECK(graph::detail::values_across(m, 3).empty());
  runner.advance(m, {}, {front, "y", "made nowhere"});
  // In front there is something else now: it would show if it were run.
  graph::model other = m;
  other.nodes[0].op_type = "Exp";
  std::vector<float> result;
  runner.run(other, {}, {m.outputs[0].name},
             [&](const auto& results) { result = test::values_of<float>(results[0]); });
  CHECK(result == std::vector<float>{4.0F, 6.0F});
  for (const std::size_t end : {std::size_t{0}, std::size_t{1}}) {  // without a run, and with one
    test::check_error(detent::error_kind::invalid_argument, {"input 'y' is missing"}, [&] {
      graph::detail::settled_front without_y(test::samples_source({{{"x", x}}}));
      without_y.advance(m, {}, graph::detail::values_across(m, end));
    });
  }
}
