// SPDX-License-Identifier: BSD-3-Clause
// What a user says about a quantization, and the job that follows from it: defaults that depend on
// other options are filled in, and options that would have no effect are refused.
#ifndef DETENT_GRAPH_CONFIGURATION_QUANTIZATION_JOB_HPP
#define DETENT_GRAPH_CONFIGURATION_QUANTIZATION_JOB_HPP

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/configuration/quantization_text.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/dynamic_quantization.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/weight_only_options.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What a user says about a quantization, in the words of the options; examples/quantize.yaml and
/// `detent quantize --help` describe them.
struct quantization_settings {
  std::string approach = "static";          ///< One of approach_names.
  std::string format = "qdq";               ///< One of format_names.
  std::string activations = "u8";           ///< Type of activations, u8 or s8.
  std::string weights = "u8";               ///< Type of stored weights (dynamic), u8 or s8.
  std::string method = "auto";              ///< "auto" or one of range_method_names().
  double percentile = 0.0;                  ///< For percentiles, in (50, 100]; 0: their own.
  std::string bias_correction = "auto";     ///< One of bias_correction_names, or "auto".
  std::string granularity = "per-channel";  ///< One of granularity_names.
  std::string weight_scales;                ///< One of weight_scale_names; empty: the default.
  std::string weight_algorithm = "rtn";     ///< A key of weight_only_algorithms().
  bool reduce_range = false;                ///< Weights of 7 bits.
  bool symmetric_activations = false;       ///< Zero points in the middle of the type.
  std::size_t bits = 0;                     ///< Of weights; 0: the default of the approach.
  std::size_t activation_bits = 8;          ///< Of activations, 2..8.
  std::int64_t block_size = 32;             ///< One of block_sizes.
  std::optional<double> budget;             ///< Seconds that "auto" may take.
  /// Whether samples are known by calibration states alone: the default of `method` is then
  /// "minmax", and what runs the quantized model on samples is refused.
  bool from_states = false;
  quantization_scope scope;  ///< Nodes in float, settings of single operators.
  std::map<std::string, activation_override> overrides;  ///< Settings of single activations.
  /// Names of the options that the user has set; defaults of others may follow from them.
  std::set<std::string> given;
  std::string source;  ///< Name of the text that the settings are from, for messages.
};

/// The approaches: when ranges of activations are taken.
inline const std::vector<std::string> approach_names = {"static", "dynamic", "weight-only"};
/// How quantized models are written.
inline const std::vector<std::string> format_names = {"qdq", "qoperator", "integerops",
                                                      "matmulnbits"};
/// The types of bytes.
inline const std::vector<std::string> byte_type_names = {"u8", "s8"};
/// Whether biases make up for rounding.
inline const std::vector<std::string> bias_correction_names = {"none", "fast", "full"};
/// What has a scale of its own in weights.
inline const std::vector<std::string> granularity_names = {"per-channel", "per-tensor"};
/// How scales of weights are found.
inline const std::vector<std::string> weight_scale_names = {"absmax", "exact-mse"};
/// How many weights may share a scale in weight-only quantization; 0: as many as there can be.
inline const std::vector<std::int64_t> block_sizes = {0, 16, 32, 64, 128, 256};

/// The algorithms of weight-only quantization by their names.
[[nodiscard]] inline const std::map<std::string, weight_only_algorithm>& weight_only_algorithms() {
  static const std::map<std::string, weight_only_algorithm> all = [] {
    std::map<std::string, weight_only_algorithm> names;
    for (const auto a : {weight_only_algorithm::awq, weight_only_algorithm::gptq,
                         weight_only_algorithm::hqq, weight_only_algorithm::rtn}) {
      names[name(a)] = a;
    }
    return names;
  }();
  return all;
}

/// The names of the observers that find ranges of activations: those that can be made for an
/// asymmetric scheme and look for a range, which "constant" does not.
[[nodiscard]] inline std::vector<std::string> range_method_names() {
  std::vector<std::string> names;
  for (const std::string& name : default_observers().names()) {
    if (name == "constant") {
      continue;
    }
    try {
      static_cast<void>(make_observer(name));
      names.push_back(name);
    } catch (const error&) {
      // The observer has no asymmetric scheme.
    }
  }
  return names;
}

/// A complete job: how a model is to be quantized. quantize_as_told() does it.
struct quantization_job {
  std::string approach = "static";       ///< one of approach_names
  std::string format = "qdq";            ///< one of format_names
  std::string method = "auto";           ///< an observer's name, or "auto": chosen by measuring
  double percentile = 0.0;               ///< 0: the default of the method
  std::string bias_correction = "auto";  ///< fast, full, none, or "auto": left to the approach
  activation_options activations;        ///< of static quantization
  layer_weight_options weights;          ///< of layers in integers
  quantization_scope scope;              ///< nodes in float, settings of single operators
  element_type weight_type = element_type::u8;  ///< approach dynamic
  std::size_t bits = 0;                         ///< of weights; 0: the default of the approach
  std::int64_t block_size = 32;                 ///< approach weight-only
  weight_only_algorithm weight_algorithm = weight_only_algorithm::rtn;  ///< approach weight-only
  std::optional<double> budget;  ///< seconds that the method "auto" may take
  std::string needs_samples;     ///< why calibration samples are needed; empty: they are not
  std::string prefix;            ///< what stands before the name of an option in messages
};

namespace detail {

/// Completes and checks settings.
class job_maker {
 public:
  job_maker(quantization_settings s, std::string prefix)
      : s_(std::move(s)), prefix_(std::move(prefix)) {}

  quantization_job run() {
    complete_approach();
    complete_method();
    require_effect();
    quantization_job job;
    job.prefix = prefix_;
    job.approach = s_.approach;
    job.format = s_.format;
    job.method = s_.method;
    job.percentile = s_.percentile;
    job.bias_correction = s_.bias_correction;
    job.bits = s_.bits;
    job.block_size = s_.block_size;
    job.budget = s_.budget;
    job.scope = std::move(s_.scope);
    job.weight_type = s_.weights == "s8" ? element_type::s8 : element_type::u8;
    job.weight_algorithm = weight_only_algorithms().at(s_.weight_algorithm);
    job.activations.type = s_.activations == "s8" ? element_type::s8 : element_type::u8;
    job.activations.bits = s_.activation_bits;
    job.activations.symmetric = s_.symmetric_activations;
    job.activations.overrides = std::move(s_.overrides);
    job.weights =
        s_.approach == "dynamic" ? dynamic_quantization_options().weights : layer_weight_options();
    job.weights.per_channel = s_.granularity == "per-channel";
    job.weights.reduce_range = s_.reduce_range;
    job.weights.bits = s_.bits == 0 ? 8 : s_.bits;
    if (!s_.weight_scales.empty()) {
      job.weights.scale =
          s_.weight_scales == "exact-mse" ? weight_scale::exact_mse : weight_scale::absmax;
    }
    job.needs_samples = s_.from_states ? std::string() : reason_for_samples();
    return job;
  }

 private:
  [[nodiscard]] bool has(const char* option) const { return s_.given.count(option) != 0; }
  /// An option as users write it, with its value.
  [[nodiscard]] std::string option(const char* name, const std::string& value = {}) const {
    return prefix_ + name + (value.empty() ? "" : " " + value);
  }
  [[noreturn]] static void refuse(const std::string& message) {
    raise(error_kind::invalid_argument, message);
  }
  static std::string approach_of(const std::string& format) {
    return format == "integerops" ? "dynamic" : format == "matmulnbits" ? "weight-only" : "static";
  }

  /// Completes the approach and the format, which imply each other, and checks that they go
  /// together.
  void complete_approach() {
    if (!has("format")) {
      s_.format = s_.approach == "dynamic"       ? "integerops"
                  : s_.approach == "weight-only" ? "matmulnbits"
                                                 : "qdq";
    } else if (!has("approach")) {
      s_.approach = approach_of(s_.format);
    }
    if (s_.approach != approach_of(s_.format)) {
      refuse(option("approach", s_.approach) + " has no " + option("format", s_.format));
    }
    if (s_.approach == "dynamic" && s_.activations == "s8") {
      refuse(option("approach", "dynamic") + " has no " + option("activations", "s8") +
             ": DynamicQuantizeLinear makes uint8");
    }
  }

  /// Completes the method and the bias correction. The method "auto" decides on bias correction
  /// itself; other methods have none unless an option asks for it.
  void complete_method() {
    s_.method = detent::detail::lower_case(s_.method);
    const bool corrects = has("bias-correction");
    if (s_.from_states) {
      require_states_suffice();
    }
    if (!has("method") && (corrects || s_.percentile != 0.0)) {
      s_.method = s_.percentile != 0.0 ? "percentile" : "minmax";
    }
    if (s_.approach == "static" && s_.method != "auto" && !corrects) {
      s_.bias_correction = "none";
    }
    if (s_.percentile != 0.0 && s_.method.find("percentile") == std::string::npos) {
      refuse(option("method", s_.method) + " has no " + option("percentile"));
    }
    if ((s_.approach == "dynamic" && s_.bias_correction == "full") ||
        (s_.approach == "weight-only" && corrects && s_.bias_correction != "none")) {
      refuse(option("approach", s_.approach) + " has no " +
             option("bias-correction", s_.bias_correction));
    }
  }

  /// Refuses what cannot be done with calibration states alone, and replaces the method "auto".
  void require_states_suffice() {
    if (s_.approach == "dynamic") {
      refuse(option("approach", "dynamic") + " takes no states: it finds ranges in each run");
    }
    if (s_.approach == "weight-only") {
      if (s_.weight_algorithm != "gptq" && s_.weight_algorithm != "awq") {
        refuse(option("weight-algorithm", s_.weight_algorithm) +
               " needs no samples, and takes no states: those are for gptq and awq");
      }
      return;
    }
    if (has("method") && s_.method == "auto") {
      refuse(option("method", "auto") + " measures with samples, which states do not hold");
    }
    if (s_.bias_correction == "full") {
      refuse(option("bias-correction", "full") +
             " runs the quantized model on samples, which states do not hold");
    }
    if (s_.method == "auto") {
      s_.method = s_.percentile != 0.0 ? "percentile" : "minmax";
    }
  }

  void refuse_if(bool is_so, const std::string& with, std::initializer_list<const char*> options,
                 const std::string& why = {}) const {
    for (const char* name : options) {
      if (is_so && has(name)) {
        refuse(with + " has no " + option(name) + why);
      }
    }
  }

  /// Refuses options that would have no effect.
  void require_effect() const {
    const std::string approach = option("approach", s_.approach);
    const bool weight_only = s_.approach == "weight-only";
    const bool is_static = s_.approach == "static";
    refuse_if(!weight_only, approach, {"block-size", "weight-algorithm"},
              ", which is for " + option("approach", "weight-only"));
    refuse_if(weight_only && s_.bits != 0 && s_.bits != 4 && s_.bits != 8, approach, {"bits"},
              " " + std::to_string(s_.bits) + ", but 4 and 8");
    refuse_if(weight_only && s_.weight_algorithm == "hqq" && s_.bits == 8,
              option("weight-algorithm", "hqq"), {"bits"},
              " 8, whose zero points are integers: with these, it is rtn");
    refuse_if(s_.format == "qoperator", option("format", "qoperator"), {"activation-bits"},
              ": its operators saturate at the ends of their types");
    refuse_if(weight_only && s_.weight_algorithm == "awq" && s_.weight_scales == "exact-mse",
              option("weight-algorithm", "awq"), {"weight-scales"},
              " exact-mse: it finds scales itself");
    refuse_if(s_.approach != "dynamic", approach, {"weights"});
    refuse_if(!is_static, approach,
              {"method", "percentile", "symmetric-activations", "activation-bits", "max-drop"});
    refuse_if(weight_only, approach, {"granularity", "reduce-range", "activations"});
    refuse_if(!is_static, approach, {"budget"});
    refuse_if(s_.method != "auto", option("method", s_.method), {"budget"}, ": it does not search");
    refuse_if(is_static && s_.method == "auto", option("method", "auto"),
              {"bias-correction", "weight-scales"}, ": it chooses itself");
    if (!is_static && !s_.overrides.empty()) {
      refuse(in_source(approach) + " has no tensors");
    }
    require_rules_have_effect(approach);
  }
  /// Puts the name of the text that the settings are from in front of a message, if it has one.
  [[nodiscard]] std::string in_source(const std::string& text) const {
    return s_.source.empty() ? text : s_.source + ": " + text;
  }
  /// Refuses rules for operators with settings that the approach does not have.
  void require_rules_have_effect(const std::string& approach) const {
    const bool weight_only = s_.approach == "weight-only";
    const bool is_static = s_.approach == "static";
    for (const auto* rules : {&s_.scope.operators.types, &s_.scope.operators.names}) {
      for (const operator_rule& rule : *rules) {
        const operator_settings& own = rule.settings;
        const char* useless = own.method && !is_static         ? "method"
                              : own.block_size && !weight_only ? "block-size"
                              : own.per_channel && weight_only ? "granularity"
                                                               : nullptr;
        if (weight_only && s_.weight_algorithm == "hqq" && own.weight_bits == std::size_t{8}) {
          refuse(in_source(option("weight-algorithm", "hqq")) + " has no bits 8 for operators '" +
                 rule.pattern + "': its zero points are integers then; with these, it is rtn");
        }
        if (useless != nullptr) {
          refuse(in_source(approach) + " has no " + useless + " for operators '" + rule.pattern +
                 "'");
        }
      }
    }
  }

  [[nodiscard]] std::string reason_for_samples() const {
    if (s_.approach == "static") {
      return option("approach", "static") + " needs calibration samples";
    }
    if (s_.approach == "dynamic" && s_.bias_correction == "fast") {
      return option("bias-correction", s_.bias_correction) + " needs calibration samples";
    }
    if (s_.weight_algorithm == "gptq" || s_.weight_algorithm == "awq") {
      return option("weight-algorithm", s_.weight_algorithm) + " needs calibration samples";
    }
    return {};
  }

  quantization_settings s_;
  std::string prefix_;
};

/// Sets one option of settings from a text; throws invalid_argument, with the option's place.
class setting_reader {
 public:
  setting_reader(quantization_settings& to, const quantization_text::option& o) : to_(to), o_(o) {}

  void run() {
    using s = quantization_settings;
    const std::map<std::string, std::function<void()>> all = {
        {"approach", [&] { name(&s::approach, approach_names); }},
        {"format", [&] { name(&s::format, format_names); }},
        {"activations", [&] { name(&s::activations, byte_type_names); }},
        {"weights", [&] { name(&s::weights, byte_type_names); }},
        {"method", [&] { read_method(); }},
        {"percentile", [&] { to_.percentile = number(50.0, 100.0); }},
        {"bias-correction", [&] { name(&s::bias_correction, bias_correction_names); }},
        {"granularity", [&] { name(&s::granularity, granularity_names); }},
        {"weight-scales", [&] { name(&s::weight_scales, weight_scale_names); }},
        {"weight-algorithm", [&] { read_algorithm(); }},
        {"reduce-range", [&] { to_.reduce_range = flag(); }},
        {"symmetric-activations", [&] { to_.symmetric_activations = flag(); }},
        {"bits", [&] { to_.bits = bits(); }},
        {"activation-bits", [&] { to_.activation_bits = bits(); }},
        {"block-size", [&] { read_block_size(); }},
        {"budget", [&] { to_.budget = number(0.0, std::numeric_limits<double>::max()); }}};
    const auto found = all.find(o_.name);
    if (found == all.end()) {
      std::vector<std::string> names;
      for (const auto& [known, read] : all) {
        names.push_back(known);
      }
      refuse(inc::yaml_values::unknown(o_.name, "the options", names));
    }
    found->second();
    to_.given.insert(o_.name);
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    raise(error_kind::invalid_argument, o_.where + ": " + message);
  }
  [[noreturn]] void refuse_value(const std::string& expected) const {
    refuse(o_.name + ": expected " + expected + ", not '" + value() + "'");
  }
  [[nodiscard]] const std::string& value() const {
    if (o_.values.size() != 1) {
      refuse(o_.name + " takes one value, not " + std::to_string(o_.values.size()));
    }
    return o_.values[0];
  }
  void name(std::string quantization_settings::*member, const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), value()) == known.end()) {
      refuse(inc::yaml_values::unknown(value(), o_.name, known));
    }
    to_.*member = value();
  }
  void read_method() {
    std::vector<std::string> known = range_method_names();
    known.insert(known.begin(), "auto");
    const std::string lower = detent::detail::lower_case(value());
    if (std::find(known.begin(), known.end(), lower) == known.end()) {
      refuse(inc::yaml_values::unknown(value(), o_.name, known));
    }
    to_.method = lower;
  }
  void read_algorithm() {
    std::vector<std::string> known;
    for (const auto& [algorithm, unused] : weight_only_algorithms()) {
      known.push_back(algorithm);
    }
    name(&quantization_settings::weight_algorithm, known);
  }
  /// A number in (above, most].
  [[nodiscard]] double number(double above, double most) const {
    double result = 0.0;
    const std::string& text = value();
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (failure != std::errc() || end != text.data() + text.size() || !(result > above) ||
        !(result <= most)) {
      refuse_value(most > 1e300 ? "a positive number"
                                : "a number above " + std::to_string(above) + " and up to " +
                                      std::to_string(most));
    }
    return result;
  }
  [[nodiscard]] std::int64_t whole() const {
    std::int64_t result = 0;
    const std::string& text = value();
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (failure != std::errc() || end != text.data() + text.size()) {
      refuse_value("a whole number");
    }
    return result;
  }
  [[nodiscard]] std::size_t bits() const {
    const std::int64_t n = whole();
    if (n < 2 || n > 8) {
      refuse_value("2 to 8");
    }
    return static_cast<std::size_t>(n);
  }
  void read_block_size() {
    to_.block_size = whole();
    if (std::find(block_sizes.begin(), block_sizes.end(), to_.block_size) == block_sizes.end()) {
      refuse_value("0, 16, 32, 64, 128 or 256");
    }
  }
  [[nodiscard]] bool flag() const {
    const std::string lower = detent::detail::lower_case(value());
    if (lower != "true" && lower != "false") {
      refuse_value("true or false");
    }
    return lower == "true";
  }

  quantization_settings& to_;
  const quantization_text::option& o_;
};

}  // namespace detail

/// Completes settings to a job. `prefix` stands before names of options in messages, for example
/// "--". Throws invalid_argument for options that do not go together or would have no effect.
[[nodiscard]] inline quantization_job make_quantization_job(quantization_settings settings,
                                                            std::string prefix = {}) {
  return detail::job_maker(std::move(settings), std::move(prefix)).run();
}

/// The job that a text in YAML or JSON describes; `name` stands for the text in messages. Throws
/// invalid_argument as parse_quantization_text() and make_quantization_job(), and, with NAME:LINE,
/// for options that do not exist and values that they do not take.
[[nodiscard]] inline quantization_job read_quantization_job(const std::string& text,
                                                            const std::string& name) {
  quantization_text said = parse_quantization_text(text, name);
  quantization_settings settings;
  for (const quantization_text::option& o : said.options) {
    detail::setting_reader(settings, o).run();
  }
  settings.scope = std::move(said.scope);
  settings.overrides = std::move(said.activations);
  settings.source = name;
  return make_quantization_job(std::move(settings));
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_CONFIGURATION_QUANTIZATION_JOB_HPP
