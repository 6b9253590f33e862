// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/graph/automatic_quantization.hpp>
#include <detent/graph/dynamic_quantization.hpp>
#include <detent/graph/executor.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/qoperator.hpp>
#include <detent/graph/static_quantization.hpp>
#include <detent/graph/weight_only.hpp>
#include <detent/observers/histogram.hpp>

#include "commands.hpp"
#include "comparison.hpp"
#include "json_output.hpp"
#include "npy.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "samples.hpp"

namespace detent_cli {
namespace {

namespace graph = detent::graph;
using graph::element_type;
using graph::node;

std::uintmax_t file_size(const std::string& path) {
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(path, failed);
  return failed ? 0 : size;
}

/// What came out, and how.
struct outcome {
  graph::model result;
  std::optional<graph::quantization> parts;  // of the static approach
  std::map<std::string, detent::scale_solution> solutions;
  std::map<std::string, std::string> methods;  // that they are from
  std::vector<graph::quantization_step> steps;
  std::size_t layers = 0;
};

/// Calibration samples, run by run, with a progress bar for each pass.
graph::calibration_source source_of(const sample_set& samples) {
  return [&samples, batch = batch_size(samples, 0), next = std::size_t{0},
          bar = std::make_shared<progress>("calibrating", samples.size())]() mutable
         -> std::optional<std::map<std::string, tensor>> {
    bar->advance(next);
    // A batch that samples do not fill repeats the last of them: only if there is no other.
    if (next >= samples.size() || (next > 0 && next + batch > samples.size())) {
      next = 0;  // in case there is another pass
      return std::nullopt;
    }
    const std::size_t at = next;
    next += batch;
    return samples.batch(at, batch);
  };
}

class static_run {
 public:
  static_run(const quantize_arguments& a, const graph::model& m, graph::calibration_source samples)
      : a_(a), model_(m), samples_(std::move(samples)) {}

  outcome run() {
    const auto take = [this](const std::string& name, const std::string& method,
                             const detent::scale_solution& s) {
      outcome_.solutions[name] = s;
      outcome_.methods[name] = method;
    };
    const bool can_be_judged =
        std::any_of(model_.outputs.begin(), model_.outputs.end(),
                    [](const value_info& v) { return v.type == element_type::f32; });
    if (a_.method == "auto" && can_be_judged) {
      graph::automatic_quantization_options options{.per_channel = a_.per_channel,
                                                    .activation_type = type()};
      options.on_step = [this](const graph::quantization_step& s) { outcome_.steps.push_back(s); };
      options.on_parameters = take;
      outcome_.parts = graph::automatic_quantization(model_, samples_, options);
    } else {
      const std::string method = a_.method == "auto" ? "minmax" : a_.method;
      graph::static_quantization_options options{
          .per_channel = a_.per_channel, .method = method, .activation_type = type()};
      if (a_.percentile != 0.0) {
        options.observer.percentile = a_.percentile;
      }
      options.on_parameters = [&](const std::string& name, const detent::scale_solution& s) {
        take(name, method, s);
      };
      options.bias.kind = a_.bias_correction == "fast"   ? graph::bias_correction::fast
                          : a_.bias_correction == "full" ? graph::bias_correction::full
                                                         : graph::bias_correction::none;
      outcome_.parts = graph::static_quantization(model_, samples_, options);
    }
    outcome_.result = outcome_.parts->result;
    outcome_.layers = outcome_.parts->plan.layers().size();
    if (a_.format == "qoperator") {
      graph::to_qoperator(outcome_.result);
    }
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] element_type type() const {
    return a_.activations == "s8" ? element_type::s8 : element_type::u8;
  }

  const quantize_arguments& a_;
  const graph::model& model_;
  graph::calibration_source samples_;
  outcome outcome_;
};

outcome dynamic_run(const quantize_arguments& a, const graph::model& m,
                    const graph::calibration_source& samples) {
  outcome o;
  o.result =
      graph::quantize_dynamic(m, {.per_channel = a.per_channel},
                              a.bias_correction == "none" ? graph::calibration_source() : samples);
  for (const node& n : o.result.nodes) {
    o.layers += n.is("ConvInteger") || n.is("MatMulInteger") ? 1U : 0U;
  }
  return o;
}

outcome weight_only_run(const quantize_arguments& a, const graph::model& m,
                        const graph::calibration_source& samples) {
  outcome o;
  graph::weight_only_options options{
      .bits = a.bits, .block_size = a.block_size, .algorithm = a.weight_algorithm};
  options.on_layer = [&](const graph::weight_only_layer&) { ++o.layers; };
  o.result = graph::quantize_weights_only(m, options, samples);
  return o;
}

std::string step_text(const graph::quantization_step& s) {
  char text[160];
  const auto decibels = [](double noise) {
    return noise > 0.0 ? -10.0 * std::log10(noise) : 999.0;
  };
  std::snprintf(text, sizeof text, "%-44s %8.2f dB  %s", s.name.c_str(), decibels(s.noise_after),
                s.kept ? "kept" : "not kept");
  return text;
}

// ----------------------------------------------------------------------------------------- report

report_difference difference_of(const graph::signal_error& e) {
  return {e.snr_db(), e.cosine(), e.largest()};
}

void add_activations(report_data& data, const outcome& o, const model_comparison& compared,
                     const std::map<std::string, detent::count_histogram>& histograms) {
  const graph::model& m = o.parts->plan.float_model();
  const auto& p = o.parts->parameters;
  const graph::links l(m);
  std::vector<std::string> order;
  for (const value_info& v : m.inputs) {
    order.push_back(v.name);
  }
  for (const node& n : m.nodes) {
    order.insert(order.end(), n.outputs.begin(), n.outputs.end());
  }
  const bool is_signed = p.activation_type == element_type::s8;
  const detent::grid levels =
      is_signed ? detent::full_grid<std::int8_t> : detent::full_grid<std::uint8_t>;
  for (const std::string& name : order) {
    const auto params = p.activations.find(name);
    const auto solution = o.solutions.find(name);
    if (params == p.activations.end() || solution == o.solutions.end()) {
      continue;  // not quantized, or moved elements of another
    }
    report_activation a;
    a.tensor = name;
    a.op = l.producer(name) == graph::links::none ? "" : m.nodes[l.producer(name)].label();
    a.scale = static_cast<double>(params->second.scale);
    a.zero_point = params->second.zero_point;
    a.grid = is_signed ? "int8" : "uint8";
    a.method = o.methods.at(name);
    a.lower = static_cast<double>(solution->second.evidence.lower);
    a.upper = static_cast<double>(solution->second.evidence.upper);
    a.clip_lower = a.scale * static_cast<double>(levels.qmin - a.zero_point);
    a.clip_upper = a.scale * static_cast<double>(levels.qmax - a.zero_point);
    a.clipped_fraction = solution->second.evidence.clipped_fraction;
    for (const named_error& e : compared.tensors) {
      if (e.first == name) {
        a.difference = difference_of(e.second);
      }
    }
    const auto histogram = histograms.find(name);
    if (histogram != histograms.end() && histogram->second.count() > 0) {
      a.histogram = make_plot_histogram(histogram->second);
    }
    data.activations.push_back(std::move(a));
  }
}

void add_weights(report_data& data, const outcome& o) {
  const graph::model& m = o.parts->plan.float_model();
  for (const auto& [index, weights] : o.parts->parameters.layers) {
    const node& n = m.nodes[index];
    const tensor& before = m.initializers.at(n.inputs[1]);
    const tensor after = graph::dequantized(weights);
    const auto [least, most] = std::minmax_element(weights.scales.begin(), weights.scales.end());
    graph::signal_error error;
    error.add(before.data<float>(), after.data<float>());
    const bool per_tensor = weights.scales.size() == 1;
    report_weight w;
    w.tensor = n.inputs[1];
    w.op = n.label();
    w.shape = before.dims();
    w.grid = "int8";
    w.granularity = per_tensor ? "per tensor" : "per channel, axis " + std::to_string(weights.axis);
    w.scales = weights.scales.size();
    w.smallest_scale = static_cast<double>(*least);
    w.largest_scale = static_cast<double>(*most);
    w.mse = error.mean_squared_error();
    w.snr_db = error.snr_db();
    std::tie(w.before, w.after) =
        make_weight_plots(before.data<float>(), after.data<float>(), per_tensor ? *least : 0.0F);
    data.weights.push_back(std::move(w));
  }
}

std::pair<double, double> accuracy(const graph::model& m, const sample_set& samples,
                                   const std::vector<std::int64_t>& labels,
                                   const std::string& where) {
  graph::executor runner(graph::for_execution(m));
  const std::size_t batch = batch_size(samples, 0);
  ranks counted;
  for (std::size_t at = 0; at < samples.size(); at += batch) {
    const std::vector<tensor> outputs = runner.run(samples.batch(at, batch));
    const score_rows scores(outputs, batch);
    for (std::size_t i = 0; i < (std::min)(batch, samples.size() - at); ++i) {
      counted.add(scores.data + i * scores.columns, scores.columns,
                  labels[samples.first() + at + i], where);
    }
  }
  return {percent(counted.top1, samples.size()), percent(counted.top5, samples.size())};
}

void write_report(const quantize_arguments& a, const graph::model& m, const sample_set& samples,
                  const std::vector<std::int64_t>& labels, const outcome& o, double seconds) {
  report_data data;
  data.model = a.model;
  data.output = a.output;
  data.bytes_before = file_size(a.model);
  data.bytes_after = file_size(a.output);
  data.calibration_samples = samples.size();
  data.seconds = seconds;
  std::map<std::string, detent::count_histogram> histograms;
  for (const auto& [name, solution] : o.solutions) {
    histograms[name];
  }
  const model_comparison compared = compare_models(m, o.result, samples, batch_size(samples, 0),
                                                   [&](const std::string& name, const tensor& t) {
                                                     const auto found = histograms.find(name);
                                                     if (found != histograms.end()) {
                                                       found->second.observe(t.data<float>());
                                                     }
                                                   });
  for (const named_error& e : compared.outputs) {
    data.outputs.push_back({e.first, difference_of(e.second)});
  }
  if (compared.judged > 0) {
    data.agreement = percent(compared.agreed, compared.judged);
  }
  if (o.parts) {
    add_activations(data, o, compared, histograms);
    add_weights(data, o);
  }
  for (const graph::quantization_step& s : o.steps) {
    data.steps.push_back({s.name, "", "noise / signal", s.noise_before, s.noise_after,
                          s.kept ? step_outcome::kept : step_outcome::dropped});
  }
  if (!labels.empty()) {
    const std::string where = a.labels + ": a label";
    const auto [top1_before, top5_before] = accuracy(m, samples, labels, where);
    const auto [top1_after, top5_after] = accuracy(o.result, samples, labels, where);
    data.accuracy = {top1_before, top1_after, top5_before, top5_after, samples.size()};
  }
  data.options = {{"approach", a.approach},
                  {"format", a.format},
                  {"activations", a.activations},
                  {"granularity", a.per_channel ? "per-channel" : "per-tensor"},
                  {"method", a.approach == "static" ? a.method : "none"},
                  {"bias correction", a.method == "auto" ? "auto" : a.bias_correction},
                  {"target", detent::name(detent::active_target())}};
  if (a.approach == "weight-only") {
    data.notes.push_back("Only weights of products are quantized; activations stay float.");
  } else if (a.approach == "dynamic") {
    data.notes.push_back("Activations get their ranges in each run; none are stored.");
  }
  graph::detail::write_file(a.report, html_report(data));
}

json_object parameters_json(const outcome& o) {
  json_object list = json_object::array();
  for (const auto& [name, s] : o.solutions) {
    list.push_back({{"tensor", name},
                    {"scale", s.params.scale},
                    {"zero_point", s.params.zero_point},
                    {"method", o.methods.at(name)},
                    {"objective", s.evidence.objective},
                    {"lower_bound", s.evidence.lower_bound},
                    {"count", s.evidence.count},
                    {"min", s.evidence.lower},
                    {"max", s.evidence.upper},
                    {"clipped_fraction", s.evidence.clipped_fraction}});
  }
  return list;
}

}  // namespace

int quantize(const quantize_arguments& a) {
  const auto start = std::chrono::steady_clock::now();
  graph::model m = graph::read_onnx(a.model);
  const bool is_static = a.approach == "static";
  std::optional<sample_set> samples;
  std::vector<std::int64_t> labels;
  if (!a.calibration.empty()) {
    samples.emplace(m, a.calibration, "");
    if (!a.labels.empty()) {
      labels = read_labels(a.labels, samples->size());
    }
    if (a.samples != 0) {
      samples->limit(a.samples);
    }
  }
  require(samples.has_value() || !is_static, error_kind::invalid_argument,
          "static quantization needs calibration samples: --calib X.npy");
  require(samples.has_value() || a.report.empty(), error_kind::invalid_argument,
          "--report measures with samples: --calib X.npy");
  const graph::calibration_source source =
      samples ? source_of(*samples) : graph::calibration_source();
  outcome o = graph::detail::with_file_name(a.model, [&] {
    return is_static                     ? static_run(a, m, source).run()
           : a.approach == "weight-only" ? weight_only_run(a, m, source)
                                         : dynamic_run(a, m, source);
  });
  const auto before = file_size(a.model);
  graph::write_onnx(o.result, a.output);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!a.report.empty()) {
    write_report(a, m, *samples, labels, o, seconds);
  }

  const std::size_t tensors = o.parts ? o.parts->parameters.activations.size() : 0;
  const auto after = file_size(a.output);
  if (a.json) {
    json_object steps = json_object::array();
    for (const graph::quantization_step& s : o.steps) {
      steps.push_back({{"step", s.name},
                       {"noise_before", s.noise_before},
                       {"noise_after", s.noise_after},
                       {"kept", s.kept}});
    }
    print_json({{"model", a.model},
                {"output", a.output},
                {"bytes_before", before},
                {"bytes_after", after},
                {"samples", samples ? samples->size() : 0},
                {"layers", o.layers},
                {"quantized_tensors", tensors},
                {"approach", a.approach},
                {"format", a.format},
                {"granularity", a.per_channel ? "per-channel" : "per-tensor"},
                {"method", is_static ? json_object(a.method) : json_object(nullptr)},
                {"steps", steps},
                {"activations", parameters_json(o)},
                {"target", detent::name(detent::active_target())}});
    return 0;
  }
  for (const graph::quantization_step& s : o.steps) {
    std::printf("%s\n", step_text(s).c_str());
  }
  std::printf("%s: %zu layers, %zu quantized activations, %zu calibration samples\n",
              a.output.c_str(), o.layers, tensors, samples ? samples->size() : 0);
  std::printf("size %ju -> %ju bytes (%.1f %%)\n", before, after,
              before == 0 ? 0.0 : 100.0 * static_cast<double>(after) / static_cast<double>(before));
  return 0;
}

}  // namespace detent_cli
