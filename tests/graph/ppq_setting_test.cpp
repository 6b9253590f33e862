// SPDX-License-Identifier: BSD-3-Clause
// What users of PPQ bring along: names of platforms, setting files, the one call, and the files
// that PPQ writes for other engines, which are read back here by another library.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <detent/graph/configuration/ppq_setting_text.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ppq/error_report.hpp>
#include <detent/graph/ppq/export_ncnn.hpp>
#include <detent/graph/ppq/export_ppl.hpp>
#include <detent/graph/ppq/export_tensorrt.hpp>
#include <detent/graph/ppq/quantize_onnx_model.hpp>
#include <detent/graph/ppq/setting_json.hpp>

#include "calibration_samples.hpp"
#include "check_graph_error.hpp"
#include "model_builder.hpp"
#include "ppq_graphs.hpp"
#include "random.hpp"
#include "temporary_folder.hpp"

namespace {

using namespace test;
using json = nlohmann::json;
using factory = ppq::quantization_setting_factory;
using ppq::quantization_setting;

/// What PPQ 0.6.6 writes for its default setting, with other texts for readers.
constexpr const char* ppq_default = R"json({
  "bias_correct": false,
  "bias_correct_setting": {"block_size": 4, "collecting_device": "executor",
    "interested_layers": [], "steps": 32},
  "blockwise_reconstruction": false,
  "blockwise_reconstruction_setting": {"block_size": 4, "collecting_device": "cuda",
    "gamma": 1.0, "interested_layers": [], "is_scale_trainable": false, "lr": 0.001,
    "steps": 5000},
  "channel_split": false,
  "channel_split_setting": {"act_multiplier": 0.5, "bias_multiplier": 0.5,
    "including_act": false, "including_bias": false, "iterations": 10, "opt_level": 1,
    "value_threshold": 0.5},
  "dispatcher": "conservative",
  "dispatching_table": {"attention": "d", "dispatchings": {"FP32 OPERATION NAME": 0,
    "TRT INT8 OPERATION NAME": 101, "YOUR OEPRATION NAME": "TARGET PLATFORM(INT)"},
    "intro_0": "a", "intro_1": "b", "intro_2": "c"},
  "equalization": false,
  "equalization_setting": {"act_multiplier": 0.5, "bias_multiplier": 0.5,
    "including_act": false, "including_bias": false, "iterations": 10, "opt_level": 1,
    "value_threshold": 0.5},
  "extension": false,
  "extension_setting": {"my_first_parameter": "text"},
  "fusion": true,
  "fusion_setting": {"align_avgpooling_to": "None", "align_concat_to": "Align to Output",
    "align_elementwise_to": "Align to Large", "align_quantization": true,
    "align_resize_to": "Align to Output", "force_alignment_overlap": true,
    "fuse_activation": true, "fuse_passive_op": true, "remove_useless_quantization": true},
  "graph_format_setting": {"delete_isolate": true, "format_cast": true,
    "format_constant_op": true, "format_paramters": true, "fuse_conv_bn": true},
  "lsq_optimization": false,
  "lsq_optimization_setting": {"block_size": 4, "collecting_device": "cuda", "gamma": 0.0,
    "interested_layers": [], "is_scale_trainable": true, "lr": 1e-05, "steps": 500},
  "matrix_factorization": false,
  "matrix_factorization_setting": {"interested_layers": [], "method": "svd"},
  "quantize_activation": true,
  "quantize_activation_setting": {"calib_algorithm": null},
  "quantize_parameter": true,
  "quantize_parameter_setting": {"baking_parameter": true, "calib_algorithm": null,
    "quantize_passive_parameter": true},
  "signature": "PPL Quantization Tool",
  "ssd_equalization": false,
  "ssd_setting": {"channel_ratio": 0.5, "iteration": 3, "layer_norm": false,
    "loss_threshold": 0.8, "opt_level": 1},
  "version": "0.6.6",
  "weight_split": false,
  "weight_split_setting": {"interested_layers": [], "method": "balance", "value_threshold": 2.0}
})json";

/// Changes each field of a setting to a value that is not its default.
struct field_changer {
  mutable int changed = 0;

  void operator()(const char*, bool& field) const { change(field, !field); }
  void operator()(const char*, int& field) const { change(field, field + 3); }
  void operator()(const char*, std::size_t& field) const { change(field, field + 5); }
  void operator()(const char*, double& field) const { change(field, field * 1.1 + 1e-17); }
  void operator()(const char*, std::string& field) const {
    change(field, field + " \"\\\t\x01 \xC3\xA9 true");
  }
  void operator()(const char*, std::optional<std::string>& field) const {
    change(field, std::optional<std::string>("null"));
  }
  void operator()(const char*, std::vector<std::string>& field) const {
    change(field, std::vector<std::string>{"a", "", "1.5", "b: c"});
  }
  void operator()(const char*, ppq::dispatching_table& field) const {
    field.append("Conv_0", "FP32");
    field.append("layer \"1\"", "TargetPlatform.trt_int8");
    ++changed;
  }
  template <class Section>
  void operator()(const char*, Section& field) const {
    Section::for_each_field(field, *this);
  }

 private:
  template <class T>
  void change(T& field, const T& value) const {
    field = value;
    ++changed;
  }
};

json parsed(const std::string& text) { return json::parse(text); }

quantization_setting read(const std::string& text) {
  return ppq::setting_from_json(text, "s.json");
}
void refuses(std::initializer_list<std::string_view> words, const std::string& text) {
  INFO(text);
  check_graph_error(error_kind::invalid_argument, words, [&] { static_cast<void>(read(text)); });
}

/// A network with a layer, an activation function, pooling, Add, Concat and a Gemm.
graph::model small_network(random_source& r) {
  model_builder b;
  b.input("x", {-1, 3, 6, 6});
  b.constant("w1", random_floats(r, {4, 3, 3, 3}, -0.5F, 0.5F));
  b.constant("b1", random_floats(r, {4}, -0.3F, 0.3F));
  b.constant("w2", random_floats(r, {4, 1, 3, 3}, -0.5F, 0.5F));
  b.constant("w3", random_floats(r, {8, 5}, -0.5F, 0.5F));
  b.constant("b3", random_floats(r, {5}, -0.3F, 0.3F));
  const attributes same{{"pads", list({1, 1, 1, 1})}};
  const std::string y = b.add("Relu", {b.add("Conv", {"x", "w1", "b1"}, same)});
  const std::string z =
      b.add("Conv", {y, "w2"}, {{"pads", list({1, 1, 1, 1})}, {"group", number(4)}});
  const std::string both = b.add("Concat", {b.add("Add", {z, y}), y}, {{"axis", number(1)}});
  b.output(b.add("Gemm", {b.add("Flatten", {b.add("GlobalAveragePool", {both})}), "w3", "b3"}));
  return b.get();
}

std::size_t count_states(const ppq::quantized_graph& g, quantization_state state, bool parameters) {
  std::size_t count = 0;
  g.for_each_config([&](config_id id) {
    count += g.configs[id].state() == state && g.is_parameter(id) == parameters ? 1U : 0U;
  });
  return count;
}

std::string bytes_of(const graph::model& m) {
  const temporary_folder folder;
  const std::filesystem::path path = folder.path() / "m.onnx";
  graph::write_onnx(m, path);
  return graph::read_file(path);
}

}  // namespace

// ----------------------------------------------------------------------------------- platforms

TEST_CASE("ppq: platforms have the names of TargetPlatform") {
  std::set<int> values;
  std::set<std::string> presets;
  for (const ppq::target_platform& p : ppq::target_platforms) {
    const std::string name(p.name);
    INFO(name);
    CHECK(values.insert(p.value).second);
    CHECK(ppq::find_target_platform(p.value) == &p);
    std::string small = name;
    std::transform(small.begin(), small.end(), small.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    for (const std::string& typed :
         {name, small, "TargetPlatform." + name, "targetplatform." + small}) {
      INFO(typed);
      REQUIRE(ppq::find_target_platform(typed) == &p);
      if (!p.preset.empty()) {
        CHECK(ppq::find_platform(typed).name == p.preset);
      } else {
        check_graph_error(error_kind::unsupported, {name, "TRT_INT8", "ONNXRUNTIME"},
                          [&] { static_cast<void>(ppq::find_platform(typed)); });
      }
    }
    presets.emplace(p.preset);
  }
  for (const ppq::platform& p : ppq::platforms()) {
    CHECK(presets.count(p.name) == 1);
  }
  CHECK(ppq::find_target_platform("TRT_INT8")->value == 101);
  CHECK(ppq::find_target_platform("PPL_CUDA_INT8")->value == 201);
  CHECK(ppq::find_target_platform("SOI")->value == -1);
  CHECK(ppq::find_target_platform("ONNXRUNTIME")->value == -7);
  CHECK(ppq::find_target_platform("EXTENSION")->value == -10086);
  CHECK(ppq::find_target_platform("TargetPlatform.") == nullptr);
  CHECK(ppq::find_target_platform(12345) == nullptr);
  for (const char* name : {"TRT_INT", "TargetPlatform.TRT_INT", "TargetPlatform.trt_int88"}) {
    check_graph_error(error_kind::invalid_argument,
                      {name, "nearest is 'trt_int8'", "PPL_CUDA_INT8", "tensorrt"},
                      [&] { static_cast<void>(ppq::find_platform(name)); });
  }
  check_graph_error(error_kind::invalid_argument, {"''"},
                    [] { static_cast<void>(ppq::find_platform("")); });
  const ppq::platform& metax = ppq::find_platform("METAX_INT8_C");
  CHECK(metax.activation.levels == detent::grid{-127, 127});
  CHECK(metax.weight.policy.is_per_channel());
  CHECK(metax.bias_bits == 30);
}

// ------------------------------------------------------------------------------------ settings

TEST_CASE("ppq: a default setting is that of PPQ 0.6.6") {
  quantization_setting expected = factory::default_setting();
  expected.signature = "PPL Quantization Tool";
  expected.extension_setting.my_first_parameter = "text";
  CHECK(read(ppq_default) == expected);
  json theirs = parsed(ppq_default);
  theirs["dispatching_table"] = {{"dispatchings", json::object()}};
  CHECK(parsed(ppq::to_json(expected)) == theirs);
}

TEST_CASE("ppq: settings survive a round trip through JSON") {
  for (const quantization_setting& s :
       {factory::default_setting(), factory::academic_setting(), factory::ncnn_setting(),
        factory::mnn_setting(), factory::pplcuda_setting(), factory::metax_pertensor_setting(),
        factory::ascend_setting(), factory::dsp_setting(), factory::nxp_setting(),
        factory::fpga_setting(), factory::trt_setting()}) {
    CHECK(read(ppq::to_json(s)) == s);
  }
  CHECK(!factory::ncnn_setting().fusion);
  CHECK(!factory::ascend_setting().fusion);
  CHECK(!factory::academic_setting().fusion);
  CHECK(factory::dsp_setting().equalization_setting.iterations == 3);
  CHECK(factory::fpga_setting().equalization_setting.including_bias);
  CHECK(factory::metax_pertensor_setting().equalization);

  quantization_setting changed;
  const field_changer change;
  quantization_setting::for_each_field(changed, change);
  CHECK(change.changed == 86);
  const std::string text = ppq::to_json(changed);
  CHECK(read(text) == changed);
  const json facts = parsed(text);
  CHECK(facts["dispatching_table"]["dispatchings"]["layer \"1\""] == 101);
  CHECK(facts["advanced_optimization_setting"]["verbose"] == false);
  CHECK(facts["lsq_optimization_setting"]["lr"].get<double>() ==
        changed.lsq_optimization_setting.lr);
  CHECK(facts["signature"].get<std::string>() == changed.signature);
  CHECK(!(changed == quantization_setting()));
  // Every field is in the file, and each one alone makes a difference.
  std::size_t fields = 0;
  const json defaults = parsed(ppq::to_json({}));
  for (const auto& field : facts.items()) {
    const std::string& key = field.key();
    INFO(key);
    CHECK((key.rfind("advanced", 0) == 0 || defaults.contains(key)));
    CHECK((!defaults.contains(key) || defaults[key] != field.value()));
    ++fields;
  }
  CHECK(fields == 31);
}

TEST_CASE("ppq: bytes that are not UTF-8, and numbers that JSON does not have") {
  quantization_setting s;
  s.signature = "a\xFF\xC3(\xE2\x82\xAC\xED\xA0\x80z";
  CHECK(parsed(ppq::to_json(s))["signature"].get<std::string>() ==
        "a\xEF\xBF\xBD\xEF\xBF\xBD(\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    s.equalization_setting.value_threshold = bad;
    check_graph_error(error_kind::invalid_argument, {"JSON has no number"},
                      [&] { static_cast<void>(ppq::to_json(s)); });
  }
}

TEST_CASE("ppq: settings that are wrong") {
  refuses({"s.json:1", "'equalisation'", "nearest is 'equalization'"}, R"({"equalisation": true})");
  refuses({"s.json:2", "'lrr'", "lsq_optimization_setting", "nearest is 'lr'"},
          "{\"lsq_optimization_setting\":\n {\"lrr\": 1}}");
  refuses({"fuse_conv_bn", "'maybe'"}, R"({"graph_format_setting": {"fuse_conv_bn": "maybe"}})");
  refuses({"steps", "whole number", "1.5"}, R"({"bias_correct_setting": {"steps": 1.5}})");
  refuses({"steps", "-1"}, R"({"bias_correct_setting": {"steps": -1}})");
  refuses({"opt_level", "'one'"}, R"({"equalization_setting": {"opt_level": "one"}})");
  refuses({"lr", "number"}, R"({"lsq_optimization_setting": {"lr": .nan}})");
  refuses({"gamma", "number"}, R"({"lsq_optimization_setting": {"gamma": .inf}})");
  refuses({"dispatcher"}, R"({"dispatcher": ["conservative"]})");
  refuses({"interested_layers", "list"}, R"({"weight_split_setting": {"interested_layers": "a"}})");
  refuses({"interested_layers"}, R"({"weight_split_setting": {"interested_layers": [{}]}})");
  refuses({"fusion_setting"}, R"({"fusion_setting": true})");
  refuses({"twice"}, R"({"fusion": true, "fusion": false})");
  refuses({"Conv_0", "4711"}, R"({"dispatching_table": {"dispatchings": {"Conv_0": 4711}}})");
  refuses({"TRT_INT9", "trt_int8"},
          R"({"dispatching_table": {"dispatchings": {"Conv_0": "TRT_INT9"}}})");
  refuses({"intro_3", "intro_"}, R"({"dispatching_table": {"intro_3": ""}})");
  refuses({"object"}, "[]");
  refuses({"object"}, "");
  refuses({"object"}, "7");
  refuses({"s.json:1"}, "{\"fusion\": ");
  refuses({"s.json"}, std::string(100000, '['));
  const quantization_setting s = read(
      R"({"quantize_activation_setting": {"calib_algorithm": null},
          "dispatching_table": {"dispatchings": {"a": "fp32", "b": "TargetPlatform.SOI", "c": -1}}})");
  CHECK(s.dispatching_table.dispatchings ==
        std::map<std::string, int>{{"a", 0}, {"b", -1}, {"c", -1}});
  quantization_setting same = s;
  same.dispatching_table = {};
  CHECK(same == quantization_setting());
}

TEST_CASE("ppq: what settings mean") {
  const ppq::pipeline_options plain = ppq::to_pipeline_options({});
  CHECK((!plain.equalization && !plain.weight_split && !plain.channel_split));
  CHECK((!plain.ssd_equalization && !plain.bias_correction && !plain.learned_step_size));
  CHECK((!plain.adaround && plain.bake && plain.calibration.method.empty()));
  CHECK((plain.fusion.fuse_activation && plain.fusion.fuse_passive_op &&
         plain.fusion.remove_useless));
  CHECK(plain.alignment.elementwise == ppq::alignment_method::to_large);
  CHECK(plain.alignment.concat == ppq::alignment_method::to_output);
  CHECK(plain.alignment.resize == ppq::alignment_method::to_output);
  CHECK(plain.alignment.average_pool == ppq::alignment_method::none);

  quantization_setting s;
  s.ssd_equalization = s.equalization = s.weight_split = s.channel_split = true;
  s.lsq_optimization = s.blockwise_reconstruction = s.bias_correct = true;
  s.ssd_setting.iteration = 4;
  s.ssd_setting.loss_threshold = 0.7;
  s.equalization_setting = {.iterations = 2,
                            .value_threshold = 0.25,
                            .including_bias = true,
                            .bias_multiplier = 0.75,
                            .including_act = true,
                            .act_multiplier = 0.3};
  s.weight_split_setting = {{"Gemm_7"}, 0.125, "Random"};
  s.channel_split_setting.iterations = 3;
  s.channel_split_setting.value_threshold = 2.0;
  s.lsq_optimization_setting.lr = 1e-4;
  s.lsq_optimization_setting.steps = 7;
  s.lsq_optimization_setting.gamma = 0.5;
  s.lsq_optimization_setting.block_size = 2;
  s.bias_correct_setting.block_size = 3;
  s.bias_correct_setting.steps = 9;
  s.quantize_activation_setting.calib_algorithm = "KL";
  s.quantize_parameter_setting.calib_algorithm = "mse";
  s.quantize_parameter_setting.baking_parameter = false;
  s.fusion_setting.align_avgpooling_to = "align to INPUT";
  s.fusion_setting.align_concat_to = "None";
  s.fusion_setting.fuse_activation = false;
  s.fusion_setting.force_alignment_overlap = false;
  ppq::pipeline_options base = ppq::parity_options(detent::parity::fixed);
  base.calibration.calib_steps = 11;
  const ppq::pipeline_options o = ppq::to_pipeline_options(s, base);
  CHECK(o.ssd_equalization->iterations == 4);
  CHECK(o.ssd_equalization->loss_threshold == 0.7);
  CHECK(o.ssd_equalization->calib_steps == 11);
  CHECK(o.equalization->iterations == 2);
  CHECK(o.equalization->value_threshold == 0.25);
  CHECK((o.equalization->including_bias && o.equalization->including_activation));
  CHECK(o.equalization->bias_multiplier == 0.75);
  CHECK(o.equalization->activation_multiplier == 0.3);
  CHECK(o.weight_split->layers == std::vector<std::string>{"Gemm_7"});
  CHECK(o.weight_split->threshold == 0.125F);
  CHECK(o.weight_split->mode == graph::weight_split_mode::random);
  CHECK(o.channel_split->iterations == 3);
  CHECK(o.channel_split->threshold == 2.0);
  CHECK(o.learned_step_size->learning_rate == 1e-4);
  CHECK(o.learned_step_size->steps == 7);
  CHECK(o.learned_step_size->gamma == 0.5);
  CHECK(o.learned_step_size->blocks.block_size == 2);
  CHECK(o.adaround->learning_rate == 1e-3);
  CHECK(o.adaround->steps == 5000);
  CHECK(o.adaround->gamma == 1.0);
  CHECK(o.bias_correction->block_size == 3);
  CHECK(o.bias_correction->steps == 9);
  CHECK((o.calibration.method == "KL" && o.calibration.calib_steps == 11 && !o.bake));
  CHECK(o.calibration.parity == detent::parity::fixed);
  CHECK(!o.passive_parameters.fit_weight_scales);
  CHECK(o.alignment.average_pool == ppq::alignment_method::to_input);
  CHECK(o.alignment.concat == ppq::alignment_method::none);
  CHECK((!o.fusion.fuse_activation && o.fusion.fuse_passive_op && !o.alignment.force_overlap));
  CHECK(ppq::with_setting(ppq::find_platform("TRT_INT8"), s).weight.observer == "mse");
  s.fusion = false;
  const ppq::pipeline_options apart = ppq::to_pipeline_options(s);
  CHECK((!apart.fusion.fuse_passive_op && !apart.fusion.remove_useless));
  CHECK(apart.alignment.elementwise == ppq::alignment_method::none);
  CHECK(apart.alignment.average_pool == ppq::alignment_method::none);
}

TEST_CASE("ppq: settings that are not offered are named") {
  const auto refuses_change = [](error_kind kind, std::initializer_list<std::string_view> words,
                                 const auto& change) {
    quantization_setting s;
    s.ssd_equalization = s.equalization = s.channel_split = s.weight_split = true;
    s.lsq_optimization = s.blockwise_reconstruction = s.bias_correct = true;
    change(s);
    check_graph_error(kind, words, [&] { static_cast<void>(ppq::to_pipeline_options(s)); });
  };
  const auto unknown = error_kind::invalid_argument;
  refuses_change(unknown, {"quantize_activation_setting.calib_algorithm", "'foo'", "isotone"},
                 [](auto& s) { s.quantize_activation_setting.calib_algorithm = "foo"; });
  refuses_change(unknown, {"quantize_parameter_setting.calib_algorithm", "'foo'", "isotone"},
                 [](auto& s) { s.quantize_parameter_setting.calib_algorithm = "foo"; });
  const auto no = error_kind::unsupported;
  refuses_change(no, {"graph_format_setting.fuse_conv_bn", "false"},
                 [](auto& s) { s.graph_format_setting.fuse_conv_bn = false; });
  refuses_change(no, {"graph_format_setting.format_constant_op"},
                 [](auto& s) { s.graph_format_setting.format_constant_op = false; });
  refuses_change(no, {"graph_format_setting.format_paramters"},
                 [](auto& s) { s.graph_format_setting.format_paramters = false; });
  refuses_change(no, {"graph_format_setting.format_cast"},
                 [](auto& s) { s.graph_format_setting.format_cast = false; });
  refuses_change(no, {"graph_format_setting.delete_isolate"},
                 [](auto& s) { s.graph_format_setting.delete_isolate = false; });
  refuses_change(no, {"extension"}, [](auto& s) { s.extension = true; });
  refuses_change(no, {"advanced_optimization", "lsq_optimization"},
                 [](auto& s) { s.advanced_optimization = true; });
  refuses_change(no, {"ssd_setting.opt_level", "2"}, [](auto& s) { s.ssd_setting.opt_level = 2; });
  refuses_change(no, {"ssd_setting.channel_ratio", "0.25"},
                 [](auto& s) { s.ssd_setting.channel_ratio = 0.25; });
  refuses_change(no, {"ssd_setting.layer_norm"}, [](auto& s) { s.ssd_setting.layer_norm = true; });
  refuses_change(no, {"equalization_setting.opt_level"},
                 [](auto& s) { s.equalization_setting.opt_level = 2; });
  refuses_change(no, {"channel_split_setting.opt_level"},
                 [](auto& s) { s.channel_split_setting.opt_level = 2; });
  refuses_change(no, {"channel_split_setting.including_bias"},
                 [](auto& s) { s.channel_split_setting.including_bias = true; });
  refuses_change(no, {"channel_split_setting.including_act"},
                 [](auto& s) { s.channel_split_setting.including_act = true; });
  refuses_change(no, {"lsq_optimization_setting.interested_layers", "Conv_1"},
                 [](auto& s) { s.lsq_optimization_setting.interested_layers = {"Conv_1"}; });
  refuses_change(no, {"lsq_optimization_setting.is_scale_trainable"},
                 [](auto& s) { s.lsq_optimization_setting.is_scale_trainable = false; });
  refuses_change(no, {"blockwise_reconstruction_setting.interested_layers"},
                 [](auto& s) { s.blockwise_reconstruction_setting.interested_layers = {"a"}; });
  refuses_change(no, {"blockwise_reconstruction_setting.is_scale_trainable"},
                 [](auto& s) { s.blockwise_reconstruction_setting.is_scale_trainable = true; });
  refuses_change(no, {"bias_correct_setting.interested_layers"},
                 [](auto& s) { s.bias_correct_setting.interested_layers = {"a"}; });
  refuses_change(error_kind::invalid_argument, {"weight_split_setting.method", "'halves'"},
                 [](auto& s) { s.weight_split_setting.method = "halves"; });
  refuses_change(error_kind::invalid_argument,
                 {"fusion_setting.align_resize_to", "'Align to Outputs'", "'align to output'"},
                 [](auto& s) { s.fusion_setting.align_resize_to = "Align to Outputs"; });
  // A switch that is off makes its settings count for nothing.
  quantization_setting off;
  off.ssd_setting.opt_level = 2;
  off.lsq_optimization_setting.is_scale_trainable = false;
  CHECK_NOTHROW(static_cast<void>(ppq::to_pipeline_options(off)));
}

// ------------------------------------------------------------------------------------ the call

TEST_CASE("ppq: quantize_onnx_model does what the passes do one by one") {
  random_source r(21);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 10);
  ppq::quantized_graph g = ppq::make_quantized_graph(m, ppq::find_platform("tensorrt"));
  ppq::pass_context context{samples_source(samples), {}};
  ppq::run_pipeline(g, ppq::default_pipeline({.calibration = {.calib_steps = 16}}), context);
  const std::string expected = bytes_of(ppq::to_qdq(g));

  const temporary_folder folder;
  const std::filesystem::path path = folder.path() / "float.onnx";
  graph::write_onnx(m, path);
  const ppq::quantized_onnx_model of_file =
      ppq::quantize_onnx_model({.onnx_import_file = path,
                                .calib_dataloader = ppq::samples_in_memory(samples),
                                .calib_steps = 16,
                                .input_shape = {1, 3, 6, 6},
                                .setting = factory::trt_setting(),
                                .collate_fn = [](sample s) { return s; },
                                .platform = ppq::find_platform("TargetPlatform.TRT_INT8"),
                                .device = "cpu",
                                .verbose = 1});
  CHECK(bytes_of(ppq::to_qdq(of_file)) == expected);
  CHECK(of_file.warnings.empty());
  for (const char* words : {"platform       tensorrt\n", "operators      8\n", "quantized      8\n",
                            "ACTIVATED      ", "BAKED          3\n", "INITIAL        0\n"}) {
    INFO(words, "\n", of_file.report);
    CHECK(of_file.report.find(words) != std::string::npos);
  }
  const ppq::quantized_onnx_model of_model =
      ppq::quantize_onnx_model({.onnx_import_file = m,
                                .calib_dataloader = samples_source(samples),
                                .calib_steps = 16,
                                .platform = ppq::find_platform("TRT_INT8"),
                                .device = "cuda:0"});
  CHECK(bytes_of(ppq::to_qdq(of_model)) == expected);
  CHECK(of_model.report.empty());
  REQUIRE(of_model.warnings.size() == 1);
  CHECK(of_model.warnings[0].find("cuda:0") != std::string::npos);

  // The function makes the inputs, of samples that would not do.
  std::vector<sample> named;
  for (const sample& s : samples) {
    named.push_back({{"pixels", s.at("x")}});
  }
  const ppq::quantized_onnx_model collated =
      ppq::quantize_onnx_model({.onnx_import_file = path.string(),
                                .calib_dataloader = samples_source(named),
                                .calib_steps = 16,
                                .collate_fn =
                                    [](sample s) {
                                      return sample{{"x", s.at("pixels")}};
                                    },
                                .platform = ppq::find_platform("TRT_INT8")});
  CHECK(bytes_of(ppq::to_qdq(collated)) == expected);

  const ppq::quantized_onnx_model parity =
      ppq::quantize_onnx_model({.onnx_import_file = m,
                                .calib_dataloader = samples_source(samples),
                                .calib_steps = 16,
                                .platform = ppq::find_platform("TRT_INT8"),
                                .parity = detent::parity::as_published});
  ppq::quantized_graph by_hand = ppq::make_quantized_graph(m, ppq::find_platform("tensorrt"));
  ppq::pipeline_options options = ppq::parity_options(detent::parity::as_published);
  options.calibration.calib_steps = 16;
  ppq::run_pipeline(by_hand, ppq::default_pipeline(options), context);
  CHECK(bytes_of(ppq::to_qdq(parity)) == bytes_of(ppq::to_qdq(by_hand)));
  CHECK(bytes_of(ppq::to_qdq(parity)) != expected);

  const ppq::quantized_onnx_model untouched =
      ppq::quantize_onnx_model({.onnx_import_file = m, .calib_steps = 0, .do_quantize = false});
  CHECK(count_states(untouched, quantization_state::initial, false) > 0);
  CHECK(count_states(untouched, quantization_state::activated, false) == 0);
}

TEST_CASE("ppq: quantize_onnx_model says what does not fit") {
  random_source r(22);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 8);
  const auto call = [&](const auto& change) {
    ppq::quantize_onnx_arguments a{.onnx_import_file = m,
                                   .calib_dataloader = samples_source(samples),
                                   .calib_steps = 8,
                                   .platform = minmax_platform("tensorrt")};
    change(a);
    return ppq::quantize_onnx_model(std::move(a));
  };
  const auto fails = [&](error_kind kind, std::initializer_list<std::string_view> words,
                         const auto& change) {
    check_graph_error(kind, words, [&] { static_cast<void>(call(change)); });
  };
  const auto invalid = error_kind::invalid_argument;
  for (const std::size_t steps : {std::size_t{0}, std::size_t{7}, std::size_t{513}}) {
    fails(invalid, {"calib_steps", std::to_string(steps), "8..512"},
          [&](auto& a) { a.calib_steps = steps; });
  }
  fails(invalid, {"device", "'tpu'"}, [](auto& a) { a.device = "tpu"; });
  fails(invalid, {"calib_dataloader"}, [](auto& a) { a.calib_dataloader = nullptr; });
  fails(invalid, {"no calibration samples"},
        [](auto& a) { a.calib_dataloader = samples_source({}); });
  fails(invalid, {"abacus"},
        [](auto& a) { a.setting.quantize_activation_setting.calib_algorithm = "abacus"; });
  fails(invalid, {"dispatcher 'all'"}, [](auto& a) { a.setting.dispatcher = "all"; });
  fails(error_kind::unsupported, {"pplnn"}, [](auto& a) { a.setting.dispatcher = "pplnn"; });
  fails(error_kind::unsupported, {"fuse_conv_bn"},
        [](auto& a) { a.setting.graph_format_setting.fuse_conv_bn = false; });
  for (const std::vector<std::int64_t>& dims :
       {std::vector<std::int64_t>{1, 3, 6}, {1, 3, 6, 7}, {0, 3, 6, 6}, {1, 4, 6, 6}}) {
    fails(error_kind::shape_mismatch, {"input_shape", "'x'"},
          [&](auto& a) { a.input_shape = dims; });
  }
  fails(error_kind::io, {"missing.onnx"},
        [](auto& a) { a.onnx_import_file = "/tmp/no/missing.onnx"; });
  fails(error_kind::unsupported, {"'Conv_0'", "NCNN_INT8", "tensorrt"},
        [](auto& a) { a.setting.dispatching_table.append("Conv_0", "NCNN_INT8"); });
  fails(invalid, {"'Conv_0'", "4711"},
        [](auto& a) { a.setting.dispatching_table.dispatchings["Conv_0"] = 4711; });
  CHECK_THROWS_AS(ppq::dispatching_table().append("Conv_0", "FP33"), detent::error);

  const auto few = call([&](auto& a) {
    a.calib_dataloader = samples_source({samples.begin(), samples.begin() + 7});
    a.setting.version = "0.6.4";
    a.setting.matrix_factorization = true;
    a.setting.dispatching_table.append("Conv_1", "FP32");
    a.setting.dispatching_table.append("Conv_0", "FP32");
    a.setting.dispatching_table.append("Gemm_7", "TRT_INT8");
  });
  const std::vector<std::vector<std::string>> expected = {{"matrix_factorization"},
                                                          {"0.6.4", "0.6.6"},
                                                          {"'Conv_1'", "nearest"},
                                                          {"7 calibration samples"}};
  REQUIRE(few.warnings.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const std::string& word : expected[i]) {
      INFO(few.warnings[i]);
      CHECK(few.warnings[i].find(word) != std::string::npos);
    }
  }
  CHECK(!few.operators[index_of(few, "Conv", 0)].is_quantized());
  CHECK(few.operators[index_of(few, "Conv", 1)].is_quantized());
  CHECK(call([](auto&) {}).warnings.empty());
}

TEST_CASE("ppq: switches of settings") {
  random_source r(23);
  INFO("seed ", r.seed());
  const graph::model m = small_network(r);
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 8);
  const auto call = [&](const quantization_setting& s, const char* platform = "PPL_CUDA_INT8") {
    return ppq::quantize_onnx_model({.onnx_import_file = m,
                                     .calib_dataloader = samples_source(samples),
                                     .calib_steps = 8,
                                     .setting = s,
                                     .platform = ppq::find_platform(platform)});
  };
  const auto active = [](const ppq::quantized_graph& g, bool parameters) {
    return count_states(g, quantization_state::activated, parameters) +
           count_states(g, quantization_state::passive, parameters);
  };
  const auto baked = [](const ppq::quantized_graph& g) {
    return count_states(g, quantization_state::baked, true);
  };
  const auto all = call({});
  CHECK(baked(all) == 3);
  CHECK(count_states(all, quantization_state::passive_baked, true) == 2);
  CHECK(active(all, false) > 3);

  quantization_setting s;
  s.quantize_activation = false;
  const auto weights = call(s);
  CHECK(baked(weights) == 3);
  CHECK(active(weights, false) == 0);
  CHECK(count_states(weights, quantization_state::passive_baked, true) == 0);
  CHECK(weights.warnings.empty());

  s = {};
  s.quantize_parameter = false;
  const auto activations = call(s);
  CHECK(baked(activations) + active(activations, true) == 0);
  CHECK(active(activations, false) == active(all, false));
  CHECK(activations.warnings.empty());

  s = {};
  s.quantize_parameter_setting.quantize_passive_parameter = false;
  const auto no_bias = call(s);
  CHECK(baked(no_bias) == 3);
  CHECK(count_states(no_bias, quantization_state::passive_baked, true) == 0);
  CHECK(active(no_bias, false) == active(all, false));

  s = {};
  s.quantize_parameter_setting.baking_parameter = false;
  CHECK(active(call(s), true) == 5);

  const auto apart = call(factory::ncnn_setting(), "NCNN_INT8");
  CHECK(count_states(apart, quantization_state::overlapped, false) == 0);
  CHECK(count_states(all, quantization_state::overlapped, false) > 0);
  for (const auto* g : {&all, &weights, &activations, &no_bias, &apart}) {
    CHECK(!ppq::to_qdq(*g).nodes.empty());
  }
}

// ----------------------------------------------------------------------------------- exporters

TEST_CASE("ppq: ranges for TensorRT are read back") {
  random_source r(24);
  INFO("seed ", r.seed());
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 8);
  const auto quantized = [&](const char* platform) {
    return ppq::quantize_onnx_model({.onnx_import_file = small_network(r),
                                     .calib_dataloader = samples_source(samples),
                                     .calib_steps = 8,
                                     .platform = ppq::find_platform(platform)});
  };
  const ppq::quantized_onnx_model g = quantized("TRT_INT8");
  const ppq::exported_text exported = ppq::export_tensorrt_json(g);
  CHECK(exported.warnings.empty());
  const json facts = parsed(exported.text);
  CHECK(facts.size() == 1);
  const json& ranges = facts.at("act_quant_info");
  std::set<std::string> expected;
  for (std::size_t i = 0; i < g.network.nodes.size(); ++i) {
    const graph::node& n = g.network.nodes[i];
    if (n.is("Concat") || n.is("Flatten")) {
      continue;
    }
    g.for_each_config(i, [&](config_id id) {
      if (!g.is_parameter(id)) {
        const std::string& value = g.configs[id].variable;
        INFO(value);
        expected.insert(value);
        REQUIRE(ranges.contains(value));
        CHECK(ranges[value].get<double>() > 0.0);
      }
    });
  }
  CHECK(ranges.size() == expected.size());
  const config_id conv = input_config(g, "Conv", 0);
  CHECK(ranges.at("x").get<double>() ==
        127.0 * static_cast<double>(g.configs.parameters(conv).scales[0]));
  // The output of a layer has the range of the activation function behind it.
  CHECK(ranges.at(g.network.nodes[index_of(g, "Conv")].outputs[0]) ==
        ranges.at(g.network.nodes[index_of(g, "Relu")].outputs[0]));

  for (const char* other : {"SNPE_INT8", "NCNN_INT8"}) {
    const ppq::exported_text none = ppq::export_tensorrt_json(quantized(other));
    CHECK(parsed(none.text).at("act_quant_info").empty());
    CHECK(!none.warnings.empty());
  }
  // Scales that are powers of 2 fit, too.
  const ppq::exported_text powers = ppq::export_tensorrt_json(quantized("NXP_INT8"));
  CHECK(powers.warnings.empty());
  const auto ranges_of_powers = parsed(powers.text).at("act_quant_info");
  CHECK(ranges_of_powers.size() == ranges.size());
  for (const auto& range : ranges_of_powers) {
    int exponent = 0;
    CHECK(std::frexp(range.get<double>() / 127.0, &exponent) == 0.5);
  }
  const ppq::quantized_graph raw =
      ppq::make_quantized_graph(small_network(r), ppq::find_platform("TRT_INT8"));
  CHECK(parsed(ppq::export_tensorrt_json(raw).text).at("act_quant_info").empty());
}

TEST_CASE("ppq: the table for ncnn is read back") {
  random_source r(25);
  INFO("seed ", r.seed());
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 8);
  graph::model m = small_network(r);
  m.nodes[2].name.clear();  // the second Conv
  const std::string second = m.nodes[2].outputs[0];
  REQUIRE(m.nodes[2].is("Conv"));
  const auto quantized = [&](const char* platform, const quantization_setting& s = {}) {
    return ppq::quantize_onnx_model({.onnx_import_file = m,
                                     .calib_dataloader = samples_source(samples),
                                     .calib_steps = 8,
                                     .setting = s,
                                     .platform = ppq::find_platform(platform)});
  };
  const ppq::quantized_onnx_model g = quantized("NCNN_INT8", factory::ncnn_setting());
  const ppq::exported_text exported = ppq::export_ncnn_table(g);
  CHECK(exported.warnings.empty());
  // As ncnn2int8 does: words of a line, the first is the name.
  std::vector<std::pair<std::string, std::vector<float>>> lines;
  std::istringstream stream(exported.text);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name;
    REQUIRE(static_cast<bool>(words >> name));
    lines.emplace_back(name, std::vector<float>());
    for (float scale = 0.0F; words >> scale;) {
      lines.back().second.push_back(scale);
    }
    CHECK(words.eof());
  }
  const auto reciprocals = [&](config_id id) {
    std::vector<float> all;
    for (const float s : g.configs.parameters(id).scales) {
      all.push_back(1.0F / s);
    }
    return all;
  };
  const std::string gemm = g.network.nodes[index_of(g, "Gemm")].name;
  REQUIRE(lines.size() == 6);
  CHECK(lines[0].first == "Conv_0_param_0");
  CHECK(lines[0].second == reciprocals(input_config(g, "Conv", 1)));
  CHECK(lines[0].second.size() == 4);
  CHECK(lines[1].first == second + "_param_0");
  CHECK(lines[1].second == reciprocals(input_config(g, "Conv", 1, 1)));
  CHECK(lines[2].first == gemm + "_param_0");
  CHECK(lines[2].second.size() == 5);
  CHECK(lines[3].first == "Conv_0");
  CHECK(lines[3].second == reciprocals(input_config(g, "Conv", 0)));
  CHECK(lines[4].first == second);
  CHECK(lines[5].first == gemm);
  CHECK(lines[5].second == reciprocals(input_config(g, "Gemm", 0)));
  CHECK(ppq::detail::ncnn_weight_scales(g.network.nodes[index_of(g, "Conv", 1)],
                                        {1, 2, 4, 3, 5, 5, 7, 0}) ==
        std::vector<float>{2, 4, 5, 7});

  check_graph_error(error_kind::unsupported, {"Conv", "symmetric"},
                    [&] { static_cast<void>(ppq::export_ncnn_table(quantized("SNPE_INT8"))); });
  check_graph_error(error_kind::unsupported, {"output channel"},
                    [&] { static_cast<void>(ppq::export_ncnn_table(quantized("FPGA_INT8"))); });
  quantization_setting in_float;
  in_float.dispatching_table.append("Conv_0", "FP32");
  in_float.quantize_parameter = false;
  const ppq::exported_text none = ppq::export_ncnn_table(quantized("NCNN_INT8", in_float));
  CHECK(none.text.empty());
  CHECK(none.warnings.size() == 2);
  m.nodes[0].name = "my conv";
  check_graph_error(error_kind::unsupported, {"my conv", "white space"},
                    [&] { static_cast<void>(ppq::export_ncnn_table(quantized("NCNN_INT8"))); });
}

TEST_CASE("ppq: the parameters for PPL are read back") {
  random_source r(26);
  INFO("seed ", r.seed());
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 8);
  for (const char* platform : {"PPL_CUDA_INT8", "PPL_DSP_INT8"}) {
    INFO(platform);
    const ppq::quantized_onnx_model g =
        ppq::quantize_onnx_model({.onnx_import_file = small_network(r),
                                  .calib_dataloader = samples_source(samples),
                                  .calib_steps = 8,
                                  .platform = ppq::find_platform(platform)});
    const json facts = parsed(ppq::export_ppl_json(g).text);
    CHECK(facts.size() == 2);
    const json& operators = facts.at("op_info");
    CHECK(operators.size() == g.network.nodes.size());
    for (const graph::node& n : g.network.nodes) {
      CHECK(operators.at(n.name) == json{{"data_type", "INT8"}});
    }
    const json& tensors = facts.at("quant_info");
    std::set<std::string> expected;
    g.for_each_config([&](config_id id) {
      if (g.configs.is_exportable(id) && g.configs[id].bits == 8) {
        expected.insert(g.configs[id].variable);
      }
    });
    CHECK(tensors.size() == expected.size());
    CHECK(!tensors.contains("b1"));
    const bool symmetric = std::string_view(platform) == "PPL_CUDA_INT8";
    for (const auto& entry : tensors.items()) {
      const std::string& name = entry.key();
      const json& t = entry.value();
      INFO(name);
      CHECK(expected.count(name) == 1);
      REQUIRE(t.size() == 12);
      CHECK(t.at("bit_width") == 8);
      CHECK(t.at("quant_flag") == true);
      CHECK(t.at("sym") == symmetric);
      CHECK(t.at("q_min") == (symmetric ? -128 : 0));
      CHECK(t.at("q_max") == (symmetric ? 127 : 255));
      const bool per_channel = t.at("per_channel").get<bool>();
      CHECK(per_channel == (symmetric && g.network.initializer(name) != nullptr));
      for (const char* key : {"scale", "zero_point", "tensor_min", "tensor_max"}) {
        CHECK(t.at(key).is_array() == per_channel);
      }
      CHECK(t.at("hash").is_number_unsigned());
      CHECK(t.at("dominator").is_number_unsigned());
      const auto id = static_cast<config_id>(t.at("hash").get<std::size_t>());
      CHECK(g.configs[id].variable == name);
      const ppq::tensor_parameters& p = g.configs.parameters(id);
      const json scales = per_channel ? t.at("scale") : json::array({t.at("scale")});
      const json zeros = per_channel ? t.at("zero_point") : json::array({t.at("zero_point")});
      const json lows = per_channel ? t.at("tensor_min") : json::array({t.at("tensor_min")});
      REQUIRE(scales.size() == p.scales.size());
      for (std::size_t i = 0; i < p.scales.size(); ++i) {
        CHECK(scales[i].get<float>() == p.scales[i]);
        CHECK(zeros[i].get<std::int32_t>() == p.zero_points[i]);
        CHECK(lows[i].get<float>() ==
              p.scales[i] * static_cast<float>((symmetric ? -128 : 0) - p.zero_points[i]));
      }
    }
  }
}

TEST_CASE("ppq: error reports have what the analyses find") {
  random_source r(27);
  INFO("seed ", r.seed());
  const std::vector<sample> samples = samples_of_x(r, {1, 3, 6, 6}, 8);
  const ppq::quantized_onnx_model g =
      ppq::quantize_onnx_model({.onnx_import_file = small_network(r),
                                .calib_dataloader = samples_source(samples),
                                .calib_steps = 8,
                                .platform = ppq::find_platform("TRT_INT8")});
  const graph::calibration_source source = samples_source(samples);
  for (const ppq::error_method method :
       {ppq::error_method::snr, ppq::error_method::mse, ppq::error_method::cosine}) {
    const ppq::analysis_options options{.method = method, .steps = 4};
    const ppq::error_report report = ppq::make_error_report(g, source, options);
    CHECK(ppq::find_error_method(ppq::name(method)) == method);
    const json facts = parsed(ppq::error_json(report));
    CHECK(facts.at("method") == ppq::name(method));
    CHECK(facts.at("output").get<double>() == ppq::output_error(g, source, options));
    const auto check_list = [&](const json& list, const std::vector<ppq::operator_error>& errors) {
      REQUIRE(list.size() == errors.size());
      for (std::size_t i = 0; i < errors.size(); ++i) {
        CHECK(list[i].at("operator") == errors[i].operator_name);
        CHECK(list[i].at("value") == errors[i].value);
        CHECK(list[i].at("error").get<double>() == errors[i].error);
      }
    };
    check_list(facts.at("graphwise"), ppq::graphwise_error_analysis(g, source, options));
    check_list(facts.at("layerwise"), ppq::layerwise_error_analysis(g, source, options));
    const std::string text = ppq::error_text(report);
    for (const ppq::operator_error& e : report.graphwise) {
      CHECK(text.find(e.operator_name) != text.rfind(e.operator_name));
    }
  }
  // The worst comes first, whatever the measure; names cannot break lines.
  const ppq::error_report made{ppq::error_method::cosine,
                               0.5,
                               {{"good", "a", 0.75}, {"b\nad", "b", 0.0}, {"best", "c", 1.0}},
                               {}};
  CHECK(ppq::error_text(made) ==
        "error of the results (cosine): 0.5\n\n"
        "each layer's output, the whole network quantized (cosine)\n"
        "  b?ad  0            ####################\n"
        "  good  0.75         #####\n"
        "  best  1\n\n"
        "the results, only this layer quantized (cosine)\n");
  check_graph_error(error_kind::invalid_argument, {"JSON has no number"}, [] {
    static_cast<void>(ppq::error_json(
        {ppq::error_method::snr, std::numeric_limits<double>::quiet_NaN(), {}, {}}));
  });
}
