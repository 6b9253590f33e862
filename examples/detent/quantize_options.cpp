// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_options.hpp"

#include <cmath>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/graph/inc/yaml.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/observer_registry.hpp>

#include "quantize_config.hpp"
#include "usage_error.hpp"

namespace detent_cli {
namespace {

std::string check_method_name(const std::string& v) {
  std::string all = "auto";
  if (lower_case(v) == all) {
    return {};
  }
  for (const std::string& name : method_names()) {
    if (name == lower_case(v)) {
      return {};
    }
    all += ", " + name;
  }
  return "'" + v + "' is not a value of --method; there are " + all;
}

const std::map<std::string, detent::graph::weight_only_algorithm> weight_algorithms = {
    {"awq", detent::graph::weight_only_algorithm::awq},
    {"gptq", detent::graph::weight_only_algorithm::gptq},
    {"hqq", detent::graph::weight_only_algorithm::hqq},
    {"rtn", detent::graph::weight_only_algorithm::rtn}};

std::string approach_of(const std::string& format) {
  return format == "integerops" ? "dynamic" : format == "matmulnbits" ? "weight-only" : "static";
}

}  // namespace

std::vector<std::string> method_names() {
  // Those that can be made for the asymmetric scheme of activations. "constant" finds no range.
  std::vector<std::string> names;
  for (const std::string& name : detent::default_observers().names()) {
    if (name == "constant") {
      continue;
    }
    try {
      static_cast<void>(detent::make_observer(name));
      names.push_back(name);
    } catch (const detent::error&) {
      // The observer has no asymmetric scheme.
    }
  }
  return names;
}

std::string lower_case(std::string text) {
  for (char& c : text) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

void apply_flags(CLI::App& command, const std::vector<quantize_config::flag>& flags) {
  for (const quantize_config::flag& flag : flags) {
    CLI::Option* option = command.get_option_no_throw("--" + flag.name);
    if (option == nullptr || flag.name == "config" || flag.name == "output" ||
        flag.name == "help" || flag.name == "json") {
      throw usage_error(flag.where + ": there is no option '" + flag.name + "'");
    }
    if (!option->empty()) {
      continue;
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

quantize_options::quantize_options(CLI::App& command) : command_(command) {
  command.add_option("MODEL", a_.model, "Float ONNX model")->required();
  command.add_option("-o,--output", a_.output, "Quantized model to write")->required();
  command.add_option("--config", config_,
                     "YAML file with these options by their names, and rules for single operators "
                     "and tensors; options of the command line go before it");
  command.add_option(
      "--calib", a_.calibration,
      "[NAME=]FILE[:axis=K|:fixed] or FOLDER: samples; FILE is .npy or .pb, its axis "
      "K (0) counts samples, or each run takes it whole (:fixed)");
  command
      .add_option("--approach", a_.approach,
                  "When ranges of activations are taken: from samples (static), in each run "
                  "(dynamic), or never (weight-only)")
      ->check(CLI::IsMember({"static", "dynamic", "weight-only"}));
  command
      .add_option("--format", a_.format,
                  "How the model is written (static: qdq|qoperator, dynamic: integerops, "
                  "weight-only: matmulnbits)")
      ->check(CLI::IsMember({"qdq", "qoperator", "integerops", "matmulnbits"}));
  command.add_option("--activations", activations_, "Type of activations")
      ->check(CLI::IsMember({"u8", "s8"}));
  command.add_option("--weights", weights_, "Type of the stored weights (dynamic)")
      ->check(CLI::IsMember({"u8", "s8"}));
  command
      .add_option(
          "--method", a_.method,
          "How ranges of activations are found (minmax|percentile|kl|mse|isotone|...); auto "
          "measures what is best, with equalization and bias correction; it is the "
          "default unless --bias-correction is given")
      ->check(check_method_name);
  command
      .add_option("--percentile", a_.percentile,
                  "Share of the values that --method percentile keeps, in percent")
      ->check(CLI::Range(50.0001, 100.0));
  command
      .add_option("--bias-correction", a_.bias_correction, "Whether biases make up for rounding")
      ->check(CLI::IsMember({"none", "fast", "full"}));
  command.add_option("--granularity", granularity_, "Weight scales (per-channel|per-tensor)")
      ->check(CLI::IsMember({"per-channel", "per-tensor"}));
  command
      .add_option("--weight-scales", weight_scales_,
                  "The end of the grid (absmax), or the least squared error (exact-mse)")
      ->check(CLI::IsMember({"absmax", "exact-mse"}));
  command.add_flag("--reduce-range", reduce_range_, "Weights of 7 bits");
  command.add_flag("--symmetric-activations", a_.activations.symmetric,
                   "Activations with zero point 0 (s8) or 128 (u8)");
  command.add_option("--samples", a_.samples, "Use only the first N samples")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 62));
  command
      .add_option("--bits", a_.bits,
                  "Of weights: 2 to 8 (static, dynamic); 4 or 8 (weight-only). Default 8; "
                  "weight-only 4")
      ->check(CLI::Range(2, 8));
  command.add_option("--activation-bits", a_.activations.bits, "Of activations (static)")
      ->check(CLI::Range(2, 8));
  command
      .add_option("--block-size", a_.block_size,
                  "Weights that share a scale (weight-only): 16, 32, 64, 128, 256; 0: as many as "
                  "there can be")
      ->check(CLI::IsMember({0, 16, 32, 64, 128, 256}));
  command
      .add_option("--weight-algorithm", weight_algorithm_,
                  "How weights are rounded (weight-only); gptq and awq need --calib")
      ->check(CLI::IsMember(weight_algorithms));
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
  command.add_option("--report", a_.report, "HTML page about the result");
  command
      .add_option(
          "--budget", a_.budget,
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
                  "Threads; the result does not depend on their number (with --budget, it does)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1024}));
}

quantize_arguments quantize_options::arguments() {
  if (has("--config")) {
    if (config_.empty()) {
      throw usage_error("--config names no file");
    }
    const std::string text = detent::graph::read_file(config_);
    if (detent::graph::inc::is_configuration(text)) {
      read_tuning(text);
      return std::move(a_);
    }
    read_config();
  }
  complete_approach();
  complete_method();
  require_effect();
  complete_needs();
  a_.activations.type =
      activations_ == "s8" ? detent::graph::element_type::s8 : detent::graph::element_type::u8;
  a_.weight_type =
      weights_ == "s8" ? detent::graph::element_type::s8 : detent::graph::element_type::u8;
  a_.weights = a_.approach == "dynamic" ? detent::graph::dynamic_quantization_options().weights
                                        : detent::graph::layer_weight_options();
  a_.weights.per_channel = granularity_ == "per-channel";
  a_.weights.reduce_range = reduce_range_;
  a_.weights.bits = a_.bits == 0 ? 8 : a_.bits;
  if (!weight_scales_.empty()) {
    a_.weights.scale = weight_scales_ == "exact-mse" ? detent::graph::weight_scale::exact_mse
                                                     : detent::graph::weight_scale::absmax;
  }
  a_.weight_algorithm = weight_algorithms.at(weight_algorithm_);
  return std::move(a_);
}

/// Reads a configuration file of Neural Compressor, which says what most options say.
void quantize_options::read_tuning(const std::string& text) {
  try {
    a_.tuning = detent::graph::inc::parse_yaml(text, config_);
  } catch (const detent::error& e) {
    throw usage_error(e.what());
  }
  for (const CLI::Option* option : command_.get_options()) {
    static const std::set<std::string> allowed = {
        "MODEL",    "--output", "--config",  "--calib", "--validation",
        "--labels", "--json",   "--threads", "--help",  "--memory-limit"};
    const std::string name =
        option->get_lnames().empty() ? option->get_name() : "--" + option->get_lnames()[0];
    if (!option->empty() && allowed.count(name) == 0) {
      throw usage_error(config_ + " is a configuration of Neural Compressor, which has no " + name);
    }
  }
}

void quantize_options::read_config() {
  quantize_config file = read_quantize_config(config_);
  apply_flags(command_, file.flags);
  a_.scope = std::move(file.scope);
  a_.activations.overrides = std::move(file.activations);
}

/// Completes the approach and the format, which imply each other, and checks that they go together.
void quantize_options::complete_approach() {
  if (!has("--format")) {
    a_.format = a_.approach == "dynamic"       ? "integerops"
                : a_.approach == "weight-only" ? "matmulnbits"
                                               : "qdq";
  } else if (!has("--approach")) {
    a_.approach = approach_of(a_.format);
  }
  if (a_.approach != approach_of(a_.format)) {
    throw usage_error("--approach " + a_.approach + " has no --format " + a_.format);
  }
  if (a_.approach == "dynamic" && activations_ == "s8") {
    throw usage_error(
        "--approach dynamic has no --activations s8: DynamicQuantizeLinear makes uint8");
  }
}

/// Completes the method and the bias correction. The method "auto" decides on bias correction
/// itself; other methods have none unless an option asks for it.
void quantize_options::complete_method() {
  a_.method = lower_case(a_.method);
  const bool corrects = has("--bias-correction");
  if (!has("--method") && (corrects || a_.percentile != 0.0)) {
    a_.method = a_.percentile != 0.0 ? "percentile" : "minmax";
  }
  if (a_.approach == "static" && a_.method != "auto" && !corrects) {
    a_.bias_correction = "none";
  }
  if (a_.percentile != 0.0 && a_.method.find("percentile") == std::string::npos) {
    throw usage_error("--method " + a_.method + " has no --percentile");
  }
  if ((a_.approach == "dynamic" && a_.bias_correction == "full") ||
      (a_.approach == "weight-only" && corrects && a_.bias_correction != "none")) {
    throw usage_error("--approach " + a_.approach + " has no --bias-correction " +
                      a_.bias_correction);
  }
}

/// Throws usage_error for options that would have no effect.
void quantize_options::require_effect() const {
  const auto refuse = [this](bool is_so, const std::string& with,
                             std::initializer_list<const char*> flags, const char* why = "") {
    for (const char* flag : flags) {
      if (is_so && has(flag)) {
        throw usage_error(with + " has no " + flag + why);
      }
    }
  };
  const std::string approach = "--approach " + a_.approach;
  refuse(a_.approach != "weight-only", approach, {"--block-size", "--weight-algorithm"});
  refuse(a_.approach == "weight-only" && a_.bits != 0 && a_.bits != 4 && a_.bits != 8, approach,
         {"--bits"}, (" " + std::to_string(a_.bits) + ", but 4 and 8").c_str());
  refuse(a_.format == "qoperator", "--format qoperator", {"--activation-bits"},
         ": its operators saturate at the ends of their types");
  refuse(a_.approach != "dynamic", approach, {"--weights"});
  refuse(
      a_.approach != "static", approach,
      {"--method", "--percentile", "--symmetric-activations", "--activation-bits", "--max-drop"});
  refuse(a_.approach == "weight-only", approach,
         {"--granularity", "--reduce-range", "--activations"});
  refuse(a_.approach != "static", approach, {"--budget"});
  refuse(a_.method != "auto", "--method " + a_.method, {"--budget"}, ": it does not search");
  if (a_.approach == "static" && a_.method == "auto") {
    refuse(true, "--method auto", {"--bias-correction"}, ": it chooses itself");
    refuse(true, "--method auto", {"--weight-scales"}, ": it chooses itself");
  }
  if (a_.approach != "static" && !a_.activations.overrides.empty()) {
    throw usage_error(config_ + ": " + approach + " has no tensors");
  }
  if (!a_.report.empty() && (a_.report == a_.output || a_.report == a_.model)) {
    throw usage_error("--report " + a_.report + " would overwrite a model");
  }
  if (!a_.labels.empty() && a_.report.empty() && !a_.max_drop) {
    throw usage_error("--labels is for --report or --max-drop");
  }
  if (!a_.validation.empty() && a_.labels.empty()) {
    throw usage_error("--validation needs --labels");
  }
  if (a_.max_drop && a_.labels.empty()) {
    throw usage_error("--max-drop needs --labels");
  }
}

/// Says why the options need calibration samples. Whether the model has inputs to give samples for
/// is known only when it has been read.
void quantize_options::complete_needs() {
  if (a_.approach == "static") {
    a_.needs_samples = "--approach static needs calibration samples";
  } else if (weight_algorithm_ == "gptq" || weight_algorithm_ == "awq") {
    a_.needs_samples = "--weight-algorithm " + weight_algorithm_ + " needs calibration samples";
  } else if (!a_.report.empty()) {
    a_.needs_samples = "--report measures with samples";
  }
}

}  // namespace detent_cli
