// SPDX-License-Identifier: BSD-3-Clause
#include "ppq_quantize.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/configuration/ppq_setting_text.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ppq/error_report.hpp>
#include <detent/graph/ppq/export_native.hpp>
#include <detent/graph/ppq/export_ncnn.hpp>
#include <detent/graph/ppq/export_ppl.hpp>
#include <detent/graph/ppq/export_tensorrt.hpp>
#include <detent/graph/ppq/pipeline.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantize_onnx_model.hpp>
#include <detent/graph/ppq/setting_conversion.hpp>
#include <detent/graph/ppq/setting_json.hpp>
#include <detent/observer_registry.hpp>

#include "calibration_data.hpp"
#include "float_model.hpp"
#include "json_output.hpp"
#include "overwriting.hpp"
#include "progress.hpp"
#include "samples.hpp"
#include "usage_error.hpp"
#include "warnings.hpp"

namespace detent_cli {
namespace {

namespace graph = detent::graph;
namespace ppq = graph::ppq;

ppq::quantization_setting setting_of(const ppq_arguments& a,
                                     const detent::observer_registry& observers) {
  if (a.setting.empty()) {
    return ppq::quantization_setting_factory::default_setting();
  }
  const std::string text = graph::read_file(a.setting);
  ppq::quantization_setting setting;
  try {
    setting = ppq::setting_from_json(text, a.setting);
  } catch (const detent::error& e) {
    throw usage_error(e.what());
  }
  // What is wrong with the setting is no fault of the model.
  return graph::with_file_name(a.setting, [&] {
    ppq::pipeline_options base;
    base.calibration.observers = observers;
    static_cast<void>(ppq::to_pipeline_options(setting, std::move(base)));
    const ppq::platform target = ppq::with_setting(ppq::find_platform(a.platform), setting);
    static_cast<void>(ppq::to_quantizer_options(setting, target));
    return setting;
  });
}

/// Writes a file of --export. What had to be left out of it becomes warnings.
void write_export(const ppq_arguments::file& file, const ppq::quantization_setting& setting,
                  ppq::quantized_onnx_model& g) {
  if (file.kind == "onnx") {
    graph::write_onnx(g.network, file.path);
    return;
  }
  if (file.kind == "setting") {
    graph::write_file(file.path, ppq::to_json(setting));
    return;
  }
  if (file.kind == "native") {
    graph::write_file(file.path, ppq::export_native(g));
    return;
  }
  const ppq::exported_text exported = file.kind == "trt-json"     ? ppq::export_tensorrt_json(g)
                                      : file.kind == "ncnn-table" ? ppq::export_ncnn_table(g)
                                                                  : ppq::export_ppl_json(g);
  for (const std::string& warning : exported.warnings) {
    g.warnings.push_back(file.path + ": " + warning);
  }
  graph::write_file(file.path, exported.text);
}

void write_error_report(const quantize_arguments& a, const ppq::quantized_graph& g,
                        const graph::calibration_source& samples) {
  try {
    const ppq::error_report report = ppq::make_error_report(
        g, samples,
        {.method = ppq::find_error_method(a.ppq->error_method), .executor = a.executor_options()});
    graph::write_file(a.ppq->error_report, a.ppq->error_report.ends_with(".json")
                                               ? ppq::error_json(report)
                                               : ppq::error_text(report));
  } catch (const detent::error& e) {
    detent::raise(e.kind(),
                  std::string(e.what()) + " (" + a.output + " is written, but not --error-report)");
  }
}

/// The number of configurations in each state, by PPQ's names.
json_object states_of(const ppq::quantized_graph& g) {
  std::map<std::string, std::size_t> counts;
  g.for_each_config([&](ppq::config_id id) { ++counts[ppq::name(g.configs[id].state())]; });
  return counts;
}

}  // namespace

int quantize_with_ppq(const quantize_arguments& a) {
  const ppq::quantization_setting setting = setting_of(*a.ppq, a.activations.observers);
  graph::model m = read_float_model(a.model, a.read_limits());
  sample_set samples = open_samples(m, a.calibration, "--calib", a);
  require_data_apart(m, a.model, a.output);
  graph::require_writable(a.output);
  for (const ppq_arguments::file& file : a.ppq->exports) {
    graph::require_writable(file.path);
  }
  if (!a.ppq->error_report.empty()) {
    graph::require_writable(a.ppq->error_report);
  }
  if (a.samples != 0) {
    samples.limit(a.samples);
  }
  std::optional<progress> bar(std::in_place, "calibrating", samples.size());
  const graph::calibration_source source = source_of(samples, *bar);
  ppq::quantized_onnx_model g = graph::with_file_name(a.model, [&] {
    return ppq::quantize_onnx_model({.onnx_import_file = std::move(m),
                                     .calib_dataloader = source,
                                     .calib_steps = a.ppq->calib_steps,
                                     .setting = setting,
                                     .platform = ppq::find_platform(a.ppq->platform),
                                     .parity = a.ppq->ppq_observers
                                                   ? ppq::ppq_parity(detent::parity::as_published)
                                                   : ppq::ppq_parity(),
                                     .observers = a.activations.observers,
                                     .executor = a.executor_options()});
  });
  graph::write_onnx(ppq::to_qdq(g), a.output);
  for (const ppq_arguments::file& file : a.ppq->exports) {
    graph::with_file_name(a.output + " is written, but not " + file.path,
                          [&] { write_export(file, setting, g); });
  }
  // After the model is written: an error in measuring must not throw the quantization away.
  if (!a.ppq->error_report.empty()) {
    bar->begin("measuring errors", samples.size(), true);
    write_error_report(a, g, source);
  }
  bar.reset();
  std::size_t layers = 0;
  std::size_t quantized = 0;
  for (std::size_t i = 0; i < g.operators.size(); ++i) {
    quantized += g.operators[i].is_quantized() ? 1U : 0U;
    layers +=
        g.operators[i].is_quantized() && ppq::is_compute_operator(g.network.nodes[i]) ? 1U : 0U;
  }
  if (std::string left = layers_left(a.model, g.network, layers); !left.empty()) {
    g.warnings.push_back(std::move(left));
  }
  for (const std::string& warning : g.warnings) {
    std::fprintf(stderr, "detent: warning: %s\n", detent::one_line(warning).c_str());
  }
  if (a.json) {
    json_object files = json_object::array();
    for (const ppq_arguments::file& file : a.ppq->exports) {
      files.push_back({{"kind", file.kind}, {"file", file.path}});
    }
    print_json({{"model", a.model},
                {"output", a.output},
                {"pipeline", "ppq"},
                {"platform", g.target.name},
                {"samples", samples.size()},
                {"calib_steps", a.ppq->calib_steps},
                {"layers", layers},
                {"operators", g.operators.size()},
                {"quantized_operators", quantized},
                {"states", states_of(g)},
                {"warnings", g.warnings},
                {"exports", files}});
    return 0;
  }
  std::printf("%s", ppq::quantization_report(g).c_str());
  std::printf(
      "%s: %zu layers, %zu of %zu operators quantized, %zu of %zu calibration samples used\n",
      a.output.c_str(), layers, quantized, g.operators.size(),
      (std::min)(samples.size(), a.ppq->calib_steps), samples.size());
  return 0;
}

}  // namespace detent_cli
