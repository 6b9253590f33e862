// SPDX-License-Identifier: BSD-3-Clause
// PPQ's own file (.native): states, links and values of configurations that the tool does not make.
// ppq_native_test.py reads the files that it does make.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/export_native.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/ppq/target_platform.hpp>

#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "ppq_graphs.hpp"
#include "random.hpp"
#include "read_pickle.hpp"

namespace {

using namespace test;
using value_ptr = std::shared_ptr<python_value>;

/// A file's graph, and how its parts are looked up.
struct native {
  std::string bytes;
  pickle_reader reader;
  value_ptr graph;

  explicit native(const quantized_graph& g) : bytes(ppq::export_native(g)), reader(bytes) {
    CHECK(reader.read()->text == "PPQ GRAPH DEFINITION");
    CHECK(reader.read()->text == "0.6.6");
    graph = reader.read();
    CHECK(reader.at_end());
  }

  [[nodiscard]] value_ptr operation(std::string_view name) const {
    return graph->at("_operations")->at(name);
  }
  [[nodiscard]] value_ptr input(std::string_view operation_name, std::size_t slot) const {
    return operation(operation_name)
        ->at("_config")
        ->at("input_quantization_config")
        ->items.at(slot);
  }
  [[nodiscard]] value_ptr output(std::string_view operation_name) const {
    return operation(operation_name)->at("_config")->at("output_quantization_config")->items.at(0);
  }
  [[nodiscard]] value_ptr variable(std::string_view name) const {
    return graph->at("_variables")->at(name);
  }
};

/// The number of a member of an enumeration.
std::string member(const value_ptr& v) { return v->items.at(1)->items.at(0)->text; }

/// The bytes of the array in a ValueState.
std::string bytes_of(const value_ptr& state) {
  pickle_reader reader(state->at("_value")->text);
  const value_ptr array = reader.read();
  return array->state->items.at(4)->text;
}
std::string bytes_of(const tensor& t) {
  return {reinterpret_cast<const char*>(t.raw()), t.bytes()};
}

graph::model two_layers(random_source& r) {
  model_builder b;
  b.input("x", {1, 3, 4, 4});
  b.constant("w1", random_floats(r, {4, 3, 3, 3}, -0.5F, 0.5F));
  b.constant("b1", random_floats(r, {4}, -0.3F, 0.3F));
  b.constant("w2", random_floats(r, {2, 4, 1, 1}, -0.5F, 0.5F));
  const std::string y = b.add("Relu", {b.add("Conv", {"x", "w1", "b1"})});
  b.output(b.add("Conv", {y, "w2"}));
  return b.get();
}

TEST_CASE("ppq: PPQ's file has constants before and after baking, and what is switched off") {
  random_source r(31);
  INFO("seed ", r.seed());
  quantized_graph g = ppq::make_quantized_graph(two_layers(r), ppq::find_platform("TRT_INT8"));
  const config_id weights = input_config(g, "Conv", 1);
  const tensor before = g.network.initializers.at("w1");
  const tensor baked = random_floats(r, {4, 3, 3, 3}, -0.5F, 0.5F);
  const native first(g);
  const value_ptr fresh = first.variable("w1");
  CHECK(bytes_of(fresh->at("_value")) == bytes_of(before));
  CHECK(bytes_of(fresh->at("_fp32_value")) == bytes_of(before));

  g.configs.set_parameters(weights, {{1, 2, 4, 8}, {0, 0, 0, 0}});
  g.configs.transition(weights, quantization_state::activated);
  g.configs.transition(weights, quantization_state::baked);
  g.network.initializers["w1"] = baked;
  g.float_constants["w1"] = before;
  const native on(g);
  const value_ptr active = on.input("Conv_0", 1);
  CHECK(member(active->at("state")) == "2");
  CHECK(active->at("detail")->items.empty());
  CHECK(active->at("_dominator") == active);
  CHECK(active->at("_channel_axis")->text == "0");
  CHECK(bytes_of(active->at("_scale")) == bytes_of(floats({4}, {1, 2, 4, 8})));
  CHECK(bytes_of(active->at("_offset")) == bytes_of(floats({4}, {0, 0, 0, 0})));
  CHECK(on.operation("Conv_0")->at("_dequantized")->text == "0");
  CHECK(bytes_of(on.variable("w1")->at("_value")) == bytes_of(baked));
  CHECK(bytes_of(on.variable("w1")->at("_fp32_value")) == bytes_of(before));
  // A bias that stays float is not switched off: it has never been quantized.
  CHECK(member(on.input("Conv_0", 2)->at("state")) == "8");
  CHECK(on.input("Conv_0", 2)->at("detail")->items.empty());
  CHECK(on.variable("x")->at("_fp32_value")->type == "None");

  g.configs.dequantize(weights);
  const native off(g);
  CHECK(member(off.input("Conv_0", 1)->at("state")) == "8");
  CHECK(member(off.input("Conv_0", 1)->at("detail")->at("Stored State")) == "2");
  CHECK(off.operation("Conv_0")->at("_dequantized")->text == "1");
  CHECK(off.operation("Conv_2")->at("_dequantized")->text == "0");
  CHECK(bytes_of(off.variable("w1")->at("_value")) == bytes_of(before));
  CHECK(bytes_of(off.variable("w1")->at("_fp32_value")) == bytes_of(baked));
  CHECK(off.bytes == ppq::export_native(g));
}

TEST_CASE("ppq: PPQ's file links configurations to those whose scales they read") {
  random_source r(32);
  INFO("seed ", r.seed());
  quantized_graph g = ppq::make_quantized_graph(two_layers(r), ppq::find_platform("SNPE_INT8"));
  const config_id conv = output_config(g, "Conv");
  const config_id relu_in = input_config(g, "Relu", 0);
  const config_id relu = output_config(g, "Relu");
  const config_id next = input_config(g, "Conv", 0, 1);
  g.configs.dominated_by(relu_in, conv);
  g.configs.dominated_by(conv, relu);
  g.configs.master_by(next, conv);
  g.configs.set_parameters(relu, {{0.5F}, {3}});
  g.configs.transition(relu, quantization_state::activated);
  const native file(g);
  const value_ptr root = file.output("Relu_1");
  CHECK(root->at("_dominator") == root);
  CHECK(bytes_of(root->at("_scale")) == bytes_of(floats({}, {0.5F})));
  CHECK(bytes_of(root->at("_offset")) == bytes_of(floats({}, {3})));
  CHECK(root->at("_scale")->at("_shape")->items.at(1)->items.at(0)->items.empty());  // Size([])
  CHECK(root->at("_hash")->text == std::to_string(static_cast<std::size_t>(relu)));
  for (const value_ptr& c :
       {file.output("Conv_0"), file.input("Relu_1", 0), file.input("Conv_2", 0)}) {
    CHECK(c->at("_dominator") == root);
    CHECK(c->at("_scale")->type == "None");
    CHECK(c->at("_offset")->type == "None");
    CHECK(c->at("_hash")->text != root->at("_hash")->text);
  }
  CHECK(member(file.output("Conv_0")->at("state")) == "3");
  CHECK(member(file.input("Conv_2", 0)->at("state")) == "6");
}

TEST_CASE("ppq: PPQ's file has settings of configurations by PPQ's names and numbers") {
  random_source r(33);
  INFO("seed ", r.seed());
  graph::model m = two_layers(r);
  m.nodes[1].name.clear();
  m.nodes[2].name = "Conv_0";
  quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("NXP_INT8"));
  ppq::quantizer_settings& s = g.configs.settings(input_config(g, "Conv", 0));
  s.observer = "ppq.isotone";
  s.overrides = {.percentile = 0.75, .histogram_bins = 300, .isotone_axis = -2};
  s.visibility = ppq::visibility_policy::internal;
  const native file(g);
  const value_ptr c = file.input("Conv_0", 0);
  CHECK(c->at("observer_algorithm")->text == "isotone");
  CHECK(c->at("detail")->items.size() == 6);
  CHECK(c->at("detail")->at("OBSERVER_PERCENTILE_MANUL_OVERRIDE")->real == 0.75);
  CHECK(c->at("detail")->at("OBSERVER_KL_HIST_BINS_MANUL_OVERRIDE")->text == "300");
  CHECK(c->at("detail")->at("OBSERVER_ISOTONE_OBSERVER_AXIS")->text == "-2");
  CHECK(member(c->at("_visibility")) == "3");
  CHECK(member(c->at("_rounding")) == "1");
  CHECK(c->at("_policy")->at("_policy")->text ==
        "85");  // PER_TENSOR, LINEAR, SYMMETRICAL, POWER_OF_2
  CHECK(c->at("_channel_axis")->type == "None");
  CHECK(c->at("_num_of_bits")->text == "8");
  CHECK(c->at("_quant_min")->text == "-128");
  CHECK(c->at("_quant_max")->text == "127");
  CHECK(c->at("_exponent_bits")->text == "0");
  CHECK(member(file.input("Conv_0_2", 0)->at("_visibility")) == "2");
  CHECK(member(file.operation("Conv_0")->at("_platform")) == "501");
  CHECK(file.variable("x")->at("_dest_ops")->items.at(0)->text == "Conv_0");
  const value_ptr relu = file.variable("Relu_1_out")->at("_source_op");
  CHECK(relu->text == "Relu_1_out");  // the name of a node without one

  g.target.name = "mine";
  CHECK(member(native(g).operation("Conv_0")->at("_platform")) == "4");
}

TEST_CASE("ppq: every configuration of PPQ's file has a number of its own") {
  random_source r(35);
  INFO("seed ", r.seed());
  // Some take no part in the quantization: that of a bias, for example.
  const native file(ppq::make_quantized_graph(two_layers(r), ppq::find_platform("TRT_INT8")));
  std::set<std::string> numbers;
  std::size_t count = 0;
  for (const char* name : {"Conv_0", "Relu_1", "Conv_2"}) {
    const value_ptr config = file.operation(name)->at("_config");
    for (const char* side : {"input_quantization_config", "output_quantization_config"}) {
      for (const value_ptr& c : config->at(side)->items) {
        numbers.insert(c->at("_hash")->text);
        ++count;
      }
    }
  }
  CHECK(count == 9);
  CHECK(numbers.size() == count);
}

TEST_CASE("ppq: operations of shapes have PPQ's platform for them") {
  random_source r(36);
  INFO("seed ", r.seed());
  model_builder b;
  b.input("x", {1, 3, 4, 4});
  b.constant("w", random_floats(r, {3, 3, 1, 1}, -0.5F, 0.5F));
  const std::string y = b.add("Conv", {"x", "w"});
  b.output(b.add("Reshape", {b.add("Sigmoid", {y}), b.add("Shape", {"x"})}));
  const native file(ppq::make_quantized_graph(b.get(), ppq::find_platform("TRT_INT8")));
  const auto platform = [&](const char* name) {
    return member(file.operation(name)->at("_platform"));
  };
  CHECK(platform("Shape_2") == std::to_string(ppq::find_target_platform("SOI")->value));
  CHECK(platform("Conv_0") != platform("Shape_2"));
  CHECK(platform("Reshape_3") != platform("Shape_2"));
}

TEST_CASE("ppq: what PPQ does not have is an error that names it") {
  random_source r(34);
  INFO("seed ", r.seed());
  const quantized_graph made =
      ppq::make_quantized_graph(two_layers(r), ppq::find_platform("TRT_INT8"));
  const auto fails = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         const auto& change) {
    quantized_graph g = made;
    change(g);
    check_graph_error(kind, words, [&] { static_cast<void>(ppq::export_native(g)); });
  };
  fails(error_kind::unsupported, {"Conv_0", "rounding"}, [](quantized_graph& g) {
    g.configs.settings(input_config(g, "Conv", 0)).rounding = ppq::rounding_policy::down;
  });
  fails(error_kind::unsupported, {"Relu_1", "'mine'"}, [](quantized_graph& g) {
    g.network.nodes[1].attributes["mine"].kind = attribute::kind_type::other;
  });
  fails(error_kind::unsupported, {"'other'", "bfloat16"}, [](quantized_graph& g) {
    g.network.initializers["other"] =
        make_tensor<std::uint16_t>(element_type::bf16, {1}, {std::uint16_t{0}});
    g.network.outputs[0].name = "other";
  });
  fails(error_kind::unsupported, {"'other'", "uint32"}, [](quantized_graph& g) {
    g.network.initializers["other"] =
        make_tensor<std::uint32_t>(element_type::u32, {1}, {std::uint32_t{0}});
    g.network.outputs[0].name = "other";
  });
  fails(error_kind::unsupported, {"Conv_0", "functions"}, [](quantized_graph& g) {
    g.network.functions.push_back({"", "Conv", ""});
  });
  fails(error_kind::invalid_argument, {"UTF-8"},
        [](quantized_graph& g) { g.network.nodes[0].name = "\xFF"; });
}

}  // namespace
