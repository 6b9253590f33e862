// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_options.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/configuration/quantization_job.hpp>
#include <detent/graph/configuration/states_as_told.hpp>
#include <detent/graph/inc/yaml.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/graph/quantize/state_file.hpp>

#include "overwriting.hpp"
#include "plugin.hpp"
#include "quantize_config.hpp"
#include "usage_error.hpp"
#include "whole_number.hpp"

namespace detent_cli {
namespace {

namespace graph = detent::graph;

const std::vector<std::string> pipeline_names = {"auto", "nncf", "ppq", "neural-compressor"};

bool is_of_plugin(const std::string& method) {
  return known_observers().find(method) != nullptr &&
         detent::default_observers().find(method) == nullptr;
}

std::string check_method_name(const std::string& v) {
  std::string all = "auto";
  if (lower_case(v) == all || is_of_plugin(v)) {
    return {};
  }
  for (const std::string& name : graph::range_method_names()) {
    if (name == lower_case(v)) {
      return {};
    }
    all += ", " + name;
  }
  return "'" + v + "' is not a value of --method; there are " + all;
}

/// The option that a configuration may have whose name is most like this one.
std::string nearest_option(const CLI::App& command, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& own : option->get_lnames()) {
      if (own != "config" && own != "output" && own != "help" && own != "json") {
        names.push_back(own);
      }
    }
  }
  return graph::nearest_names(name, names, 1);
}

bool has_entries(const graph::ignored_scope& ignored) {
  return !ignored.names.empty() || !ignored.patterns.empty() || !ignored.types.empty() ||
         ignored.first_layer || ignored.last_layer;
}

}  // namespace

std::string lower_case(std::string text) {
  for (char& c : text) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

void apply_flags(CLI::App& command, const std::vector<quantize_config::option>& flags) {
  for (const quantize_config::option& flag : flags) {
    CLI::Option* option = command.get_option_no_throw("--" + flag.name);
    if (flag.name == "config" || flag.name == "output" || flag.name == "help" ||
        flag.name == "json") {
      throw usage_error(flag.where + ": '" + flag.name + "' may not be in a file: --" + flag.name +
                        " is for the command line");
    }
    if (option == nullptr) {
      throw usage_error(flag.where + ": there is no option '" + flag.name + "'; the nearest is " +
                        nearest_option(command, flag.name));
    }
    if (flag.name == "plugin") {
      throw usage_error(flag.where +
                        ": a file may not load code: --plugin is for the command line");
    }
    if (!option->empty()) {
      continue;
    }
    if (flag.values.empty() || (option->get_items_expected_max() == 0 && flag.values.size() > 1)) {
      throw usage_error(flag.where + ": " + flag.name +
                        (flag.values.empty() ? " has no value" : " takes one value"));
    }
    try {
      for (const std::string& value : flag.values) {
        option->add_result(value);
      }
      option->run_callback();
    } catch (const CLI::Error& e) {
      throw usage_error(flag.where + ": " + flag.name + ": " + e.what());
    }
  }
}

void add_range_options(CLI::App& command, graph::quantization_settings& s) {
  command
      .add_option("--approach", s.approach,
                  "When ranges of activations are taken: from samples (static, the default), in "
                  "each run (dynamic), or never (weight-only)")
      ->check(CLI::IsMember(graph::approach_names));
  command
      .add_option("--activations", s.activations,
                  "Type of activations. With --pipeline nncf: u8 makes all of them uint8; without "
                  "the option, each is int8 if its range goes below 0, else uint8")
      ->check(CLI::IsMember(graph::byte_type_names));
  command
      .add_option(
          "--method", s.method,
          "How ranges of activations are found (minmax|percentile|kl|mse|isotone|...); auto "
          "measures what is best, with equalization and bias correction; it is the "
          "default unless --bias-correction, --percentile or --states is given")
      ->check(check_method_name);
  command
      .add_option("--percentile", s.percentile,
                  "Share of the values that --method percentile keeps, in percent")
      ->check(CLI::Range(50.0001, 100.0));
  command
      .add_option(
          "--bias-correction", s.bias_correction,
          "Correct biases for the mean error that rounding causes: layer by layer (fast), or with "
          "the layers before it quantized (full)")
      ->check(CLI::IsMember(graph::bias_correction_names));
  command.add_flag("--symmetric-activations", s.symmetric_activations,
                   "Activations with zero point 0 (s8) or 128 (u8)");
  command.add_option("--activation-bits", s.activation_bits, "Of activations (static)")
      ->transform(whole_number(2, 8));
  command
      .add_option("--weight-algorithm", s.weight_algorithm,
                  "How weights are rounded (weight-only): rtn (the default), or gptq, awq, hqq; "
                  "gptq and awq need samples")
      ->check(CLI::IsMember(graph::weight_only_algorithms()));
}

quantize_options::quantize_options(CLI::App& command) : command_(command), nncf_(command) {
  command.add_option("MODEL", a_.model, "Float ONNX model")->required();
  command
      .add_option("-o,--output", a_.output,
                  "Quantized model to write; it may be MODEL, which is replaced then")
      ->required();
  command.add_option("--config", config_,
                     "YAML file with these options by their names, and rules for single operators "
                     "and tensors; options of the command line go before it. Or a file of Neural "
                     "Compressor 1.x, whose accuracy criterion is then met");
  command.add_option(
      "--calib", a_.calibration,
      "[NAME=]FILE[:axis=K|:fixed] or FOLDER: samples; FILE is .npy or .pb, its axis "
      "K (0) counts samples, or each run takes it whole (:fixed)");
  command.add_option_function<std::vector<std::string>>(
      "--plugin",
      [](const std::vector<std::string>& paths) {
        try {
          std::for_each(paths.begin(), paths.end(), load_plugin);
        } catch (const detent::error& e) {
          throw CLI::ValidationError("--plugin", e.what());
        }
      },
      "Shared library with observers of your own, which --method may then name");
  command
      .add_option(
          "--pipeline", pipeline_,
          "How the model is quantized: as the options say (auto), as NNCF does (nncf), by PPQ's "
          "passes (ppq), or as a configuration of Neural Compressor in --config says "
          "(neural-compressor)")
      ->check(CLI::IsMember(pipeline_names));
  command.add_option("--states", a_.states,
                     "FILE...: the states that detent observe has made of all samples, in any "
                     "order, in the place of --calib; one with --pipeline nncf");
  add_range_options(command, s_);
  command
      .add_option("--format", s_.format,
                  "How the model is written (static: qdq|qoperator, dynamic: integerops, "
                  "weight-only: matmulnbits)")
      ->check(CLI::IsMember(graph::format_names));
  command
      .add_option(
          "--weights", s_.weights,
          "Type of the stored weights (dynamic): u8, the default, or s8, which ONNX Runtime "
          "multiplies faster; on processors without VNNI it needs --reduce-range there")
      ->check(CLI::IsMember(graph::byte_type_names));
  command
      .add_option("--granularity", s_.granularity,
                  "Weight scales: per-channel (the default), or per-tensor")
      ->check(CLI::IsMember(graph::granularity_names));
  command
      .add_option("--weight-scales", s_.weight_scales,
                  "The end of the grid (absmax), or the least squared error (exact-mse)")
      ->check(CLI::IsMember(graph::weight_scale_names));
  command.add_flag("--reduce-range", s_.reduce_range,
                   "Weights of 7 bits: for ONNX Runtime on x86 processors without VNNI, whose "
                   "products of 8 bits saturate");
  command.add_option("--samples", a_.samples, "Use only the first N samples")
      ->transform(whole_number(1, std::uint64_t{1} << 62U));
  command
      .add_option("--bits", s_.bits,
                  "Of weights: 2 to 8 (static, dynamic), a byte each in the file; 4 or 8 "
                  "(weight-only), 4 bits packed in pairs. Default 8; weight-only 4")
      ->transform(whole_number(2, 8));
  command
      .add_option("--block-size", s_.block_size,
                  "Weights that share a scale (weight-only): 16, 32 (the default), 64, 128, 256; "
                  "0: as many as there can be")
      ->check(CLI::IsMember(graph::block_sizes));
  command
      .add_option("--max-drop", a_.max_drop,
                  "Layers stay in float, the most harmful first, until top-1 is at most so many "
                  "points of percent lower (static)")
      ->check(CLI::Range(0.0, 100.0));
  command.add_option(
      "--validation", a_.validation,
      "[NAME=]FILE[:axis=K|:fixed] or FOLDER: samples that accuracy is measured with; "
      "else those of --calib");
  command.add_option("--labels", a_.labels,
                     "Y.npy: one integer for each of these samples, for --max-drop and --report");
  command.add_option("--report", a_.report,
                     "HTML page about the result (pipeline auto; needs samples)");
  command
      .add_option(
          "--external-data-from", a_.external_data_from,
          "A model of so many bytes (or 64M, 2G, ...) or more is written with its constants "
          "of 1024 bytes and more in a second file, OUT.onnx.data; at most 2G, the default")
      ->transform(byte_count(std::uint64_t{1} << 31U));
  command
      .add_option(
          "--budget", s_.budget,
          "Seconds that --method auto may take; the best result so far is written when they "
          "are over")
      ->check([](const std::string& text) {
        double seconds = 0.0;
        const bool is_number = CLI::detail::lexical_cast(text, seconds);
        return is_number && std::isfinite(seconds) && seconds > 0.0
                   ? std::string()
                   : "'" + text + "' is not a positive number of seconds";
      });
  command
      .add_option("--threads", a_.threads,
                  "Threads (1); the result does not depend on their number (with --budget, it "
                  "does)")
      ->transform(whole_number(1, 1024));
  ppq_.emplace(command);
}

void require_no_rules(const std::string& with, const graph::quantization_scope& scope,
                      const activation_overrides& overrides) {
  const bool ignores = has_entries(scope.ignored);
  const bool has_operators = !scope.operators.names.empty() || !scope.operators.types.empty();
  if (ignores || has_operators || !overrides.empty()) {
    throw usage_error(with + " has no '" +
                      (ignores         ? "ignored"
                       : has_operators ? "operators"
                                       : "tensors") +
                      "' in a configuration file");
  }
}

void add_ignored_nodes(nncf_arguments& a, graph::quantization_scope scope,
                       const activation_overrides& overrides) {
  graph::ignored_scope ignored = std::exchange(scope.ignored, {});
  require_no_rules("--pipeline nncf", scope, overrides);
  if (ignored.first_layer || ignored.last_layer) {
    throw usage_error("--pipeline nncf leaves no first or last layer in float");
  }
  const auto append = [](std::vector<std::string>& to, const std::vector<std::string>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(a.ignored.names, ignored.names);
  append(a.ignored.patterns, ignored.patterns);
  append(a.ignored.types, ignored.types);
}

std::set<std::string> given_options(const CLI::App& command) {
  std::set<std::string> given;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->empty() && !option->get_lnames().empty()) {
      given.insert(option->get_lnames()[0]);
    }
  }
  return given;
}

quantize_arguments quantize_options::arguments() {
  a_.activations.observers = known_observers();
  if (pipeline_ == "neural-compressor" && !has("--config")) {
    throw usage_error("--pipeline neural-compressor needs --config with its configuration");
  }
  if (has("--config")) {
    if (config_.empty()) {
      throw usage_error("--config names no file");
    }
    const std::string text = read_config_file(config_);
    if (detent::graph::inc::is_configuration(text)) {
      read_tuning(text);
      require_nothing_overwritten(command_, true);
      return std::move(a_);
    }
    read_config();
    if (pipeline_ == "neural-compressor") {
      throw usage_error("--config " + config_ + " is no configuration of Neural Compressor");
    }
  }
  require_nothing_overwritten(command_, true);
  if (pipeline_ == "ppq") {
    require_no_rules("--pipeline ppq", s_.scope, s_.overrides);
    a_.ppq = ppq_->arguments();
    return std::move(a_);
  }
  ppq_->require_unused();
  s_.given = given_options(command_);
  if (pipeline_ == "nncf") {
    a_.nncf = nncf_.arguments(s_.given, s_.bias_correction);
    a_.nncf->unsigned_activations = s_.given.count("activations") != 0;
    if (a_.nncf->unsigned_activations && s_.activations != "u8") {
      throw usage_error("--pipeline nncf has no --activations " + s_.activations +
                        ": without it, the sign of each range decides");
    }
    if (s_.format != "qdq" && s_.format != "qoperator" && s_.given.count("format") != 0) {
      throw usage_error("--pipeline nncf has no --format " + s_.format);
    }
    add_ignored_nodes(*a_.nncf, s_.scope, s_.overrides);
  } else {
    nncf_.require_none(s_.given, pipeline_);
  }
  try {
    if (has("--states")) {
      require_no_samples();
      complete_from_states();
    }
    static_cast<graph::quantization_job&>(a_) = graph::make_quantization_job(std::move(s_), "--");
    a_.activations.observers = known_observers();
  } catch (const detent::error& e) {
    if (e.kind() == detent::error_kind::invalid_argument) {
      throw usage_error(e.what());
    }
    throw;  // a file with a state
  }
  if (a_.nncf && a_.nncf->compression) {
    a_.needs_samples = reason_for_samples(*a_.nncf->compression);
  }
  require_files();
  return std::move(a_);
}

/// Reads a configuration file of Neural Compressor, which says what most options say.
void quantize_options::read_tuning(const std::string& text) {
  try {
    a_.tuning = detent::graph::inc::parse_yaml(text, config_);
  } catch (const detent::error& e) {
    throw usage_error(e.what());
  }
  if (pipeline_ != "auto" && pipeline_ != "neural-compressor") {
    throw usage_error(config_ + " is a configuration of Neural Compressor, not of --pipeline " +
                      pipeline_);
  }
  for (const CLI::Option* option : command_.get_options()) {
    static const std::set<std::string> allowed = {
        "MODEL",  "--output",  "--config", "--calib",        "--validation",         "--labels",
        "--json", "--threads", "--help",   "--memory-limit", "--external-data-from", "--pipeline"};
    const std::string name =
        option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames()[0];
    if (!option->empty() && allowed.count(name) == 0) {
      throw usage_error(config_ + " is a configuration of Neural Compressor, which has no " + name);
    }
  }
}

void quantize_options::read_config() {
  quantize_config file = read_quantize_config(config_);
  apply_flags(command_, file.options);
  s_.scope = std::move(file.scope);
  s_.overrides = std::move(file.activations);
  s_.source = config_;
}

/// Throws usage_error for options that need samples, which states do not hold.
void quantize_options::require_no_samples() const {
  for (const char* option :
       {"--calib", "--samples", "--report", "--max-drop", "--validation", "--labels"}) {
    if (has(option)) {
      throw usage_error(std::string("--states has no ") + option +
                        ": states hold no samples to measure with");
    }
  }
}

/// Completes the options by what the states were collected with. Throws usage_error for states of
/// another pipeline.
void quantize_options::complete_from_states() {
  const graph::saved_state first = graph::read_state_file(a_.states.at(0));
  if (is_state_of_nncf(first) != a_.nncf.has_value()) {
    throw usage_error(a_.states[0] + (a_.nncf ? " is no state of --pipeline nncf"
                                              : " is a state of --pipeline nncf"));
  }
  if (!a_.nncf) {
    graph::complete_from_state(s_, first, false);
    return;
  }
  if (a_.states.size() > 1) {
    throw usage_error("--pipeline nncf takes one state: its states cannot be merged");
  }
  s_.from_states = true;
  nncf_flags::complete_from_state(*a_.nncf, s_.given, first);
}

/// Throws usage_error for files that do not go together, and says why samples are needed.
void quantize_options::require_files() {
  if (!a_.labels.empty() && a_.report.empty() && !a_.max_drop) {
    throw usage_error("--labels is for --report or --max-drop");
  }
  if (!a_.validation.empty() && a_.labels.empty()) {
    throw usage_error("--validation needs --labels");
  }
  if (a_.max_drop && a_.labels.empty()) {
    throw usage_error("--max-drop needs --labels");
  }
  if (a_.samples != 0 && a_.calibration.empty() && a_.needs_samples.empty()) {
    throw usage_error("--samples needs --calib");
  }
  if (a_.needs_samples.empty() && !a_.report.empty()) {
    a_.needs_samples = "--report measures with samples";
  }
  const bool corrects_biases = a_.approach == "dynamic" && a_.bias_correction != "none";
  if (!a_.nncf && a_.needs_samples.empty() && !corrects_biases && !a_.calibration.empty()) {
    throw usage_error(a_.approach == "dynamic"
                          ? "--approach dynamic with --bias-correction none has no --calib"
                          : "--approach weight-only has no --calib, unless --weight-algorithm is "
                            "gptq or awq");
  }
}

}  // namespace detent_cli
