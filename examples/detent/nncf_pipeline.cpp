// SPDX-License-Identifier: BSD-3-Clause
#include "nncf_pipeline.hpp"

#include <charconv>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/nncf/nncf.hpp>
#include <detent/graph/quantize/qoperator.hpp>

#include "usage_error.hpp"

namespace detent_cli {
namespace {

namespace nncf = detent::graph::nncf;

constexpr std::initializer_list<const char*> own_options = {
    "mode", "preset", "model-type", "target-device", "ignore", "smooth-quant", "overflow-fix"};
constexpr std::initializer_list<const char*> observation_options = {"mode", "model-type", "ignore",
                                                                    "smooth-quant"};

/// An entry of --ignore: re:PATTERN, type:TYPE, or a name.
void add_ignored(const std::string& entry, graph::ignored_scope& to) {
  const auto rest = [&](const std::string& prefix) {
    return entry.rfind(prefix, 0) == 0 ? entry.substr(prefix.size()) : std::string();
  };
  if (!rest("re:").empty()) {
    to.patterns.push_back(rest("re:"));
  } else if (!rest("type:").empty()) {
    to.types.push_back(rest("type:"));
  } else {
    to.names.push_back(entry);
  }
}

nncf::quantize_options nncf_options_of(const nncf_arguments& a) {
  nncf::quantize_options o;
  o.mode = a.mode == "fp8-e4m3"   ? nncf::quantization_mode::fp8_e4m3
           : a.mode == "fp8-e5m2" ? nncf::quantization_mode::fp8_e5m2
                                  : nncf::quantization_mode::int8;
  if (!a.preset.empty()) {
    o.preset = a.preset == "mixed" ? nncf::preset::mixed : nncf::preset::performance;
  }
  o.model_type =
      a.model_type == "transformer" ? nncf::model_type::transformer : nncf::model_type::none;
  o.target_device = a.target_device == "cpu"   ? nncf::target_device::cpu
                    : a.target_device == "gpu" ? nncf::target_device::gpu
                    : a.target_device == "npu" ? nncf::target_device::npu
                                               : nncf::target_device::any;
  if (!a.overflow_fix.empty()) {
    o.overflow_fix = a.overflow_fix == "none"     ? nncf::overflow_fix::none
                     : a.overflow_fix == "enable" ? nncf::overflow_fix::enable
                                                  : nncf::overflow_fix::first_layer;
  }
  o.disable_bias_correction = a.bias_correction == "none";
  o.fast_bias_correction = a.bias_correction != "full";
  o.smooth_quant_alphas.matmul = a.smooth_quant;
  o.ignored_scope = a.ignored;
  o.unsigned_activations = a.unsigned_activations;
  return o;
}

}  // namespace

bool is_state_of_nncf(const graph::saved_state& state) {
  const auto settings = graph::settings_of_state(state);
  const auto approach = settings.find("approach");
  return approach != settings.end() && approach->second == "nncf";
}

nncf_flags::nncf_flags(CLI::App& command, bool observes) : observes_(observes) {
  command
      .add_option("--mode", a_.mode,
                  "Levels: integers, or floats of 8 bits, which need opset 19 (pipeline nncf)")
      ->check(CLI::IsMember({"int8", "fp8-e4m3", "fp8-e5m2"}));
  command.add_option("--model-type", a_.model_type, "Kind of network (pipeline nncf)")
      ->check(CLI::IsMember({"none", "transformer"}));
  command.add_option("--ignore", ignored_,
                     "Nodes that stay in float: a name, re:PATTERN or type:OPERATOR; may be given "
                     "several times (pipeline nncf)");
  command
      .add_option("--smooth-quant", alpha_,
                  "SmoothQuant of transformers, with this alpha (0.95); negative: none (pipeline "
                  "nncf)")
      ->expected(0, 1)
      ->check(CLI::Range(-1.0, 1.0));
  if (observes) {
    return;
  }
  compression_.emplace(command);
  command
      .add_option(
          "--preset", a_.preset,
          "Activations with zero point 0 (performance) or any (mixed); mixed is the default "
          "for transformers (pipeline nncf)")
      ->check(CLI::IsMember({"performance", "mixed"}));
  command
      .add_option("--target-device", a_.target_device, "What is to run the model (pipeline nncf)")
      ->check(CLI::IsMember({"any", "cpu", "gpu", "npu"}));
  command
      .add_option("--overflow-fix", a_.overflow_fix,
                  "Layers whose weights stay within half of their grid; by default the first one, "
                  "with floats of 8 bits none (pipeline nncf)")
      ->check(CLI::IsMember({"none", "enable", "first-layer"}));
}

nncf_arguments nncf_flags::arguments(const std::set<std::string>& given,
                                     const std::string& bias_correction) const {
  for (const char* name :
       {"approach", "weights", "method", "percentile", "granularity", "weight-scales",
        "reduce-range", "symmetric-activations", "bits", "activation-bits", "block-size",
        "weight-algorithm", "budget", "max-drop", "report", "labels", "validation"}) {
    if (given.count(name) != 0) {
      throw usage_error(std::string("--pipeline nncf has no --") + name);
    }
  }
  if (given.count("preset") != 0 && a_.mode.rfind("fp8", 0) == 0 && a_.preset == "mixed") {
    throw usage_error("--mode " + a_.mode + " has no --preset mixed");
  }
  nncf_arguments a = a_;
  if (compression_) {
    a.compression = compression_->arguments(given);
  }
  const bool has_state = observes_ || given.count("states") != 0;
  if (has_state && bias_correction == "full" && given.count("bias-correction") != 0) {
    throw usage_error(
        "--bias-correction full runs the quantized model on samples, which states do not hold");
  }
  if (has_state && a.compression) {
    throw usage_error("--compress takes no --states");
  }
  const bool type_is_open = given.count("states") != 0 && given.count("model-type") == 0;
  if (given.count("smooth-quant") != 0 && a.model_type != "transformer" && !type_is_open) {
    throw usage_error("--smooth-quant needs --model-type transformer");
  }
  if (!alpha_.empty()) {
    a.smooth_quant = alpha_.back();
  }
  if (given.count("bias-correction") != 0 && bias_correction != "auto") {
    a.bias_correction = bias_correction;
  }
  for (const std::string& entry : ignored_) {
    add_ignored(entry, a.ignored);
  }
  return a;
}

void nncf_flags::complete_from_state(nncf_arguments& a, const std::set<std::string>& given,
                                     const graph::saved_state& state) {
  const auto settings = graph::settings_of_state(state);
  const auto found = settings.find("SmoothQuant alpha of matrix products");
  if (found == settings.end()) {
    return;  // not of this release, which the quantization says
  }
  float alpha = -1.0F;  // as it stays for the text "none"
  const std::string& text = found->second;
  static_cast<void>(std::from_chars(text.data(), text.data() + text.size(), alpha));
  if (given.count("model-type") == 0) {
    a.model_type = alpha >= 0.0F ? "transformer" : "none";
  }
  if (given.count("smooth-quant") != 0 && a.model_type != "transformer") {
    throw usage_error("--smooth-quant needs --model-type transformer, and the state is of another");
  }
  // With a model type that the state does not fit, the default alpha lets the quantization say so.
  if (given.count("smooth-quant") == 0 && (alpha >= 0.0F || given.count("model-type") == 0)) {
    a.smooth_quant = alpha;
  }
}

void nncf_flags::require_none(const std::set<std::string>& given,
                              const std::string& pipeline) const {
  const auto& own = observes_ ? observation_options : own_options;
  std::vector<std::string> names(own.begin(), own.end());
  if (compression_) {
    names.insert(names.end(), nncf_compression_flags::names().begin(),
                 nncf_compression_flags::names().end());
  }
  for (const std::string& name : names) {
    if (given.count(name) != 0) {
      throw usage_error("--pipeline " + pipeline + " has no --" + name);
    }
  }
}

graph::observed_state observe_for_nncf(const nncf_arguments& a, const graph::model& m,
                                       const graph::calibration_source& samples,
                                       const graph::executor_options& runner) {
  nncf::quantize_options options = nncf_options_of(a);
  options.executor = runner;
  options.subset_size = nncf::dataset::all;
  nncf::source_items items(samples);
  const nncf::statistics seen = nncf::collect_statistics(m, nncf::dataset(items), options);
  return {seen.save(), seen.samples(), 1, 1};
}

outcome quantize_by_nncf(const quantize_arguments& a, const graph::model& m,
                         const graph::calibration_source& samples) {
  if (a.nncf->compression) {
    return compress_by_nncf(a, m, samples);
  }
  nncf::quantize_options options = nncf_options_of(*a.nncf);
  if (options.mode != nncf::quantization_mode::int8 && a.format == "qoperator") {
    throw usage_error("--mode " + a.nncf->mode + " has no --format qoperator");
  }
  options.executor = a.executor_options();
  options.subset_size = nncf::dataset::all;
  outcome o;
  options.on_parameters = [&o](const std::string& value, const nncf::quantizer_parameters& p) {
    detent::scale_solution& s = o.solutions[value];
    s.params = {p.scales[0], p.zero_points[0]};
    s.evidence.method = "nncf";
    s.evidence.lower = p.ranges[0].lower;
    s.evidence.upper = p.ranges[0].upper;
    o.methods[value] = "nncf";
  };
  nncf::source_items items(samples);
  nncf::quantization q = [&] {
    if (a.states.empty()) {
      return nncf::quantize(m, nncf::dataset(items), options);
    }
    const nncf::statistics seen = nncf::statistics::load(
        graph::read_state_file(a.states[0], a.read_limits().max_constant_bytes));
    o.samples_of_states = seen.samples();
    return nncf::quantize(m, seen, options);
  }();
  for (const nncf::placed_quantizer& quantizer : q.quantizers) {
    o.layers += quantizer.weights_of ? 1U : 0U;
  }
  o.ignored_in_vain = std::move(q.ignored_in_vain);
  o.result = std::move(q.result);
  if (a.format == "qoperator") {
    graph::to_qoperator(o.result);
  }
  return o;
}

}  // namespace detent_cli
