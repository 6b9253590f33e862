// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/configuration/quantize_as_told.hpp>
#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/model/tensor_store.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/quantize/accuracy_control.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/parallel.hpp>

#include "calibration_data.hpp"
#include "commands.hpp"
#include "comparison.hpp"
#include "float_model.hpp"
#include "json_output.hpp"
#include "model_output.hpp"
#include "nncf_pipeline.hpp"
#include "overwriting.hpp"
#include "ppq_quantize.hpp"
#include "quantize_report.hpp"
#include "report.hpp"
#include "samples.hpp"
#include "train.hpp"
#include "tune.hpp"
#include "warnings.hpp"
#include "weight_facts.hpp"

namespace detent_cli {
namespace {

using detent::one_line;

using graph::element_type;
using graph::node;

std::uintmax_t file_size(const std::string& path) {
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(path, failed);
  return failed ? 0 : size;
}

double snr_of_noise(double noise) {
  return noise > 0.0 ? -10.0 * std::log10(noise) : std::numeric_limits<double>::infinity();
}

/// Shows the step and the best SNR so far. `count` is the number of samples.
void show(const graph::quantization_progress& p, std::size_t count, progress& bar) {
  std::string text = p.step;
  if (p.best_noise > 0.0) {
    char best[32];
    std::snprintf(best, sizeof best, ", best %.2f dB", snr_of_noise(p.best_noise));
    text += best;
  }
  bar.begin(text, p.total > 0 ? p.total : count, p.total == 0);
  bar.advance(p.done);
}

/// Leaves layers in float until top-1 is good enough.
graph::accuracy_control_result control_accuracy(const quantize_arguments& a, const graph::model& m,
                                                std::optional<graph::quantization>& parts,
                                                const graph::calibration_source& samples,
                                                const labelled_samples& labelled) {
  graph::accuracy_control_options options;
  options.executor = a.executor_options();
  options.goal.max_drop = *a.max_drop;
  const auto top1 = [&](const graph::model& tried) {
    return accuracy(tried, labelled, a.executor_options()).first;
  };
  graph::accuracy_control_result found = graph::control_accuracy(m, *parts, samples, top1, options);
  require(found.goal_met, error_kind::invalid_argument, "top-1 ", found.float_metric,
          " % of the float model cannot be kept within ", *a.max_drop, " points; the best is ",
          found.metric, " %");
  parts = found.best;
  return found;
}

/// A folder on a disk that has room for what is written to `output`.
std::filesystem::path folder_of(const std::string& output) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path path(output);
  const fs::path real = fs::is_symlink(path, failed) ? fs::canonical(path, failed) : path;
  const bool is_device = fs::exists(real, failed) && !fs::is_regular_file(real, failed);
  return is_device ? fs::temp_directory_path() : real.parent_path();
}

/// Does the job of the arguments. `labelled` holds the samples for accuracy control; without it, it
/// may be null. `count` is the number of calibration samples.
outcome run_job(const quantize_arguments& a, const graph::model& m,
                const graph::calibration_source& samples, std::size_t count,
                const labelled_samples* labelled, graph::tensor_store& store, progress& bar) {
  if (a.nncf) {
    return quantize_by_nncf(a, m, samples);
  }
  outcome o;
  graph::quantization_run run{.executor = a.executor_options()};
  run.keep_constant = [&](graph::tensor made) { return store.keep(std::move(made)); };
  run.on_progress = [&](const graph::quantization_progress& p) { show(p, count, bar); };
  run.on_parts = [&](std::optional<graph::quantization>& parts) {
    bar.begin("calibrating", count, true);
    if (a.max_drop) {
      o.accuracy = control_accuracy(a, m, parts, samples, *labelled);
    }
  };
  static_cast<graph::quantization_outcome&>(o) =
      a.states.empty()
          ? graph::quantize_as_told(a, m, samples, run)
          : graph::quantize_as_told(
                a, m, graph::states_in_files(a.states, a.read_limits().max_constant_bytes), run);
  return o;
}

std::string step_text(const graph::quantization_step& s) {
  if (s.is_end_of_budget) {
    return s.name;
  }
  char text[160];
  std::snprintf(text, sizeof text, "%-44s %8.2f dB  %s", s.name.c_str(),
                snr_of_noise(s.noise_after), s.kept ? "kept" : "not kept");
  return text;
}

json_object parameters_json(const outcome& o) {
  json_object list = json_object::array();
  for (const auto& [name, s] : o.solutions) {
    if (o.parts && o.parts->parameters.activations.count(name) == 0) {
      continue;  // what takes it has stayed in float
    }
    list.push_back({{"tensor", name},
                    {"scale", s.params.scale},
                    {"zero_point", s.params.zero_point},
                    {"method", o.methods.at(name)},
                    {"objective", s.evidence.objective},
                    {"lower_bound", s.evidence.lower_bound},
                    {"count", s.evidence.count},
                    {"min", s.evidence.lower},
                    {"max", s.evidence.upper},
                    {"clipped_fraction", o.methods.at(name) == "given"
                                             ? json_object(nullptr)  // it was not counted
                                             : json_object(s.evidence.clipped_fraction)}});
  }
  return list;
}

/// Makes and writes the report about a model that is written. Errors of detent say so.
template <class Make>
void write_report(const quantize_arguments& a, const Make& make) {
  try {
    graph::write_file(a.report, html_report(make()));
  } catch (const detent::error& e) {
    detent::raise(e.kind(),
                  std::string(e.what()) + " (" + a.output + " is written, but not --report)");
  }
}

/// The outcome of accuracy control, or null if there was none.
json_object accuracy_json(const outcome& o) {
  if (!o.accuracy) {
    return nullptr;
  }
  return {{"float", o.accuracy->float_metric},
          {"quantized", o.accuracy->metric},
          {"left_in_float", o.accuracy->left_in_float},
          {"trials", o.accuracy->trials.size()}};
}

/// "1 layer", "2 layers".
std::string counted(std::uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// Warns of weights that are not as the options make one expect.
void warn_of_weights(const quantize_arguments& a, const outcome& o) {
  const auto warn = [](const std::string& text) {
    std::fprintf(stderr, "detent: warning: %s\n", one_line(text).c_str());
  };
  const nncf_compression_arguments* const compression =
      a.nncf && a.nncf->compression ? &*a.nncf->compression : nullptr;
  if (!o.ignored_in_vain.empty()) {
    warn("the weights of " + o.ignored_in_vain[0] + " are " +
         (compression != nullptr ? "compressed" : "quantized") +
         " although it is ignored: another layer has the same weights");
  }
  // NNCF and accuracy control leave layers in float on purpose, and other warnings say why nodes
  // could not be run.
  const bool says_what_is_left =
      a.nncf ? compression != nullptr : !o.accuracy && (!o.parts || o.parts->not_run.empty());
  if (o.layers == 0 || !says_what_is_left) {
    return;
  }
  if (compression != nullptr && compression->mode.rfind("int4", 0) == 0 &&
      widths_of_weights(o.result).of_4 == 0) {
    const std::string why =
        compression->ratio.value_or(1.0) < 1.0 ? "--ratio allows none"
        : compression->all_layers
            ? "only MatMul, Gemm and embeddings of matrices may have 4 bits"
            : "NNCF gives 8 bits to embeddings, convolutions and the last layer (--all-layers lets "
              "embeddings and the last layer have 4)";
    warn("no layer has weights of 4 bits: " + why);
  } else if (compression != nullptr && compression->awq && o.scaled_layers == 0) {
    warn(
        "--awq has scaled nothing: no layer with weights of 4 bits takes the result of an "
        "activation or of a gated product that nothing else takes");
  }
  const graph::ignored_scope& ignored = compression != nullptr ? a.nncf->ignored : a.scope.ignored;
  const bool leaves_some = !ignored.names.empty() || !ignored.patterns.empty() ||
                           !ignored.types.empty() || ignored.first_layer || ignored.last_layer ||
                           !a.scope.operators.types.empty() || !a.scope.operators.names.empty() ||
                           (compression != nullptr && compression->backup == "none");
  const bool takes_convolutions = compression != nullptr || a.approach != "weight-only";
  const std::string left = leaves_some ? "" : float_layers(o.result, takes_convolutions).text();
  if (!left.empty()) {
    warn(left);
  }
}

/// What --json says of the weights of a compressed model or of a weight-only one; null for others.
json_object weights_json(const quantize_arguments& a, const outcome& o) {
  const bool is_compression = a.nncf && a.nncf->compression;
  if (!is_compression && a.approach != "weight-only") {
    return nullptr;
  }
  const weight_widths widths = widths_of_weights(o.result);
  json_object facts = {{"of_4_bits", widths.of_4}, {"of_8_bits", widths.of_8}};
  if (is_compression) {
    facts["mode"] = a.nncf->compression->mode;
  } else {
    facts["algorithm"] = graph::name(a.weight_algorithm);
    facts["block_size"] = a.block_size;
  }
  return facts;
}

/// Whether an input is 0 in all samples.
bool is_zero(const sample_set& samples, const std::string& input) {
  const std::size_t batch = batch_size(samples, 0);
  for (std::size_t at = 0; at < samples.size(); at += batch) {
    const auto inputs = samples.batch(at, batch);
    const std::span<const float> values = inputs.at(input).data<float>();
    if (std::any_of(values.begin(), values.end(), [](float x) { return x != 0.0F; })) {
      return false;
    }
  }
  return true;
}

/// Warns of samples that are too few or all zero, and of given ranges that cover less than half of
/// the range that the samples have.
void warn_of_samples(const graph::model& m, const outcome& o, const sample_set& samples) {
  const std::size_t count = samples.size();
  if (count < 8 && !m.inputs.empty()) {
    std::fprintf(stderr, "detent: warning: %s: with fewer than 8, ranges are unreliable\n",
                 counted(count, "calibration sample").c_str());
  }
  const auto& p = o.parts ? o.parts->parameters : graph::quantization_parameters();
  const detent::grid levels = graph::activation_levels(p.activation_type, p.activation_bits);
  for (const auto& [name, s] : o.solutions) {
    const float lower = s.evidence.lower;
    const float upper = s.evidence.upper;
    // Of several inputs, one may be a state that begins with 0.
    if (m.inputs.size() == 1 && m.inputs[0].name == name && lower == 0.0F && upper == 0.0F &&
        m.inputs[0].type == element_type::f32 && is_zero(samples, name)) {
      std::fprintf(stderr, "detent: warning: input '%s' is 0 in all calibration samples\n",
                   one_line(name).c_str());
    }
    if (o.methods.at(name) != "given" || s.evidence.count == 0) {
      continue;
    }
    const float first = s.params.scale * static_cast<float>(levels.qmin - s.params.zero_point);
    const float last = s.params.scale * static_cast<float>(levels.qmax - s.params.zero_point);
    const float inside = (std::min)(last, upper) - (std::max)(first, lower);
    if (inside < 0.5F * (upper - lower)) {
      std::fprintf(stderr,
                   "detent: warning: the range given for '%s' is %g .. %g, the calibration samples "
                   "have values from %g to %g\n",
                   one_line(name).c_str(), static_cast<double>(first), static_cast<double>(last),
                   static_cast<double>(lower), static_cast<double>(upper));
    }
  }
}

}  // namespace

int quantize(const quantize_arguments& given) {
  const auto start = std::chrono::steady_clock::now();
  quantize_arguments a = given;
  detent::thread_pool pool(a.threads);
  if (a.threads > 1) {
    a.parallel = pool.parallel();
  }
  if (a.tuning) {
    return a.tuning->train ? train_as_configured(a) : tune(a);
  }
  if (a.ppq) {
    return quantize_with_ppq(a);
  }
  graph::model m = read_float_model(a.model, a.read_limits());
  const bool is_static = a.approach == "static";
  const bool compresses = a.nncf && a.nncf->compression;
  std::optional<sample_set> samples;
  std::optional<sample_set> validation;
  std::vector<std::int64_t> labels;
  std::optional<labelled_samples> labelled;
  if (!a.calibration.empty() || (m.inputs.empty() && a.states.empty())) {
    samples.emplace(open_samples(m, a.calibration, "--calib", a));
  } else if (!a.needs_samples.empty()) {
    throw usage_error(a.needs_samples + ": --calib " + m.inputs[0].name +
                      "=FILE.npy; the model's inputs are " + list_inputs(m));
  }
  if (!a.validation.empty()) {
    validation.emplace(open_samples(m, a.validation, "--validation", a));
  }
  const std::optional<sample_set>& judged = validation ? validation : samples;
  if (!a.labels.empty() && judged) {
    labels = read_labels(a.labels, judged->size());
    labelled.emplace(labelled_samples{*judged, labels, a.labels + ": a label"});
  }
  if (samples && a.samples != 0) {
    samples->limit(a.samples);
  }
  const std::size_t count = samples ? samples->size() : 0;
  require_data_apart(m, a.model, a.output);
  graph::require_writable(a.output);
  if (!a.report.empty()) {
    graph::require_writable(a.report);
  }
  graph::tensor_store store(folder_of(a.output));
  std::optional<progress> bar(std::in_place, "calibrating", count);
  bool was_read = false;
  graph::calibration_source source;
  if (samples) {
    source = [&was_read, next = source_of(*samples, *bar)]() mutable {
      was_read = true;
      return next();
    };
  }
  const labelled_samples* known = labelled ? &*labelled : nullptr;
  const outcome o = graph::with_file_name(
      a.model, [&] { return run_job(a, m, source, count, known, store, *bar); });
  bar.reset();
  const std::uintmax_t before = file_size(a.model) + m.external_bytes;
  const graph::written_onnx written =
      graph::write_onnx(o.result, a.output, {.external_data_from = a.external_data_from});
  const std::uintmax_t after = written.model_bytes + written.external_bytes;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (o.parts) {
    warn_of_nodes_in_float(o.parts->not_run);
  }
  if (o.parts && o.parts->bias_correction_taken_back) {
    std::fprintf(stderr,
                 "detent: warning: bias correction made the outputs worse and was taken back\n");
  }
  const std::string left = layers_left(a.model, m, o.layers);
  if (!left.empty()) {
    std::fprintf(stderr, "detent: warning: %s\n", detent::one_line(left).c_str());
  }
  if (is_static && !a.nncf && samples && o.layers > 0) {
    warn_of_samples(m, o, *samples);
  }
  warn_of_weights(a, o);
  if (o.layers > 0 && !a.calibration.empty() && !was_read && a.report.empty()) {
    std::fprintf(stderr, "detent: warning: nothing has used the samples of --calib\n");
  }
  if (!a.report.empty()) {
    // After the model is written: an error in measuring must not throw the quantization away.
    write_report(a, [&] {
      report_data page = make_report(a, m, *samples, known, o);
      page.bytes_before = before;
      page.bytes_after = after;
      page.seconds = took.count();
      return page;
    });
  }

  const bool uses_samples = was_read || !a.report.empty();
  const std::uint64_t used = !samples       ? o.samples_of_states
                             : uses_samples ? samples->size()
                                            : std::size_t{0};
  const std::size_t tensors = o.parts ? o.parts->parameters.activations.size() : o.solutions.size();
  if (a.json) {
    json_object steps = json_object::array();
    for (const graph::quantization_step& s : o.steps) {
      steps.push_back({{"step", s.name},
                       {"noise_before", s.noise_before},
                       {"noise_after", s.noise_after},
                       {"kept", s.kept}});
    }
    const json_object weights = weights_json(a, o);
    print_json(
        {{"model", a.model},
         {"output", a.output},
         {"bytes_before", before},
         {"bytes_after", after},
         {"external_data", external_data_json(written)},
         {"samples", used},
         {"layers", o.layers},
         {"quantized_tensors", tensors},
         {"approach", compresses ? "compression" : a.approach},
         {"format", compresses ? json_object(nullptr) : json_object(a.format)},
         {"granularity", weights.is_null()
                             ? json_object(a.weights.per_channel ? "per-channel" : "per-tensor")
                             : json_object(nullptr)},
         {"weights", weights},
         {"pipeline", a.nncf ? "nncf" : "auto"},
         {"method", is_static && !a.nncf ? json_object(a.method) : json_object(nullptr)},
         {"steps", steps},
         {"budget_ended", std::any_of(o.steps.begin(), o.steps.end(),
                                      [](const auto& s) { return s.is_end_of_budget; })},
         {"bias_correction_taken_back", o.parts && o.parts->bias_correction_taken_back},
         {"accuracy", accuracy_json(o)},
         {"not_run", o.parts ? json_object(o.parts->not_run) : json_object::array()},
         {"activations", parameters_json(o)},
         {"target", detent::name(detent::active_target())}});
    return 0;
  }
  if (o.layers > 0) {
    for (const graph::quantization_step& s : o.steps) {
      std::printf("%s\n", one_line(step_text(s)).c_str());
    }
  }
  if (o.accuracy) {
    std::printf("top-1 %.2f %% in float, %.2f %% quantized, %zu layers left in float\n",
                o.accuracy->float_metric, o.accuracy->metric, o.accuracy->left_in_float.size());
    for (const std::string& name : o.accuracy->left_in_float) {
      std::printf("  %s\n", one_line(name).c_str());
    }
  }
  std::string widths;
  if (compresses) {
    const weight_widths w = widths_of_weights(o.result);
    widths = ": " + std::to_string(w.of_4) + " of 4 bits, " + std::to_string(w.of_8) + " of 8 bits";
  }
  std::printf("%s: %s%s, %s, %s\n", a.output.c_str(), counted(o.layers, "layer").c_str(),
              widths.c_str(),
              a.approach == "dynamic" ? "activations quantized in each run"
                                      : counted(tensors, "quantized activation").c_str(),
              counted(used, "calibration sample").c_str());
  std::printf("size %ju -> %ju bytes (%.1f %%)\n", before, after,
              before == 0 ? 0.0 : 100.0 * static_cast<double>(after) / static_cast<double>(before));
  print_external_data(written);
  return 0;
}

}  // namespace detent_cli
