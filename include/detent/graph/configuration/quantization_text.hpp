// SPDX-License-Identifier: BSD-3-Clause
// The folder configuration/ turns a text, in JSON or YAML, into a quantized model: it reads the
// text (this file), completes and checks what it says (quantization_job.hpp), and does it
// (quantize_as_told.hpp). The command line tool and the C interface quantize in this way. Headers
// here may include all of graph/; quantization_text.hpp needs yaml-cpp.
//
// This file reads the text. examples/quantize.yaml shows its form; JSON is a form of YAML.
#ifndef DETENT_GRAPH_CONFIGURATION_QUANTIZATION_TEXT_HPP
#define DETENT_GRAPH_CONFIGURATION_QUANTIZATION_TEXT_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/inc/yaml_values.hpp>
#include <detent/graph/quantize/activation_options.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What a text about quantization says: options by their names, and settings that have none.
struct quantization_text {
  /// An option and its values, as they are written.
  struct option {
    std::string name;                 ///< Name, for example "approach".
    std::vector<std::string> values;  ///< One value, or those of a list.
    std::string where;                ///< NAME:LINE, for messages.
  };
  std::vector<option> options;  ///< The options in the order of the text.
  quantization_scope scope;     ///< Sections "ignored" and "operators".
  std::map<std::string, activation_override> activations;  ///< Section "tensors".
};

namespace detail {

class quantization_text_reader : public inc::yaml_values {
 public:
  explicit quantization_text_reader(std::string name) : yaml_values(std::move(name)) {}

  quantization_text run(const std::string& text) {
    try {
      const YAML::Node root = document(text);
      if (!root.IsNull()) {
        entries(root, "the file",
                [this](const YAML::Node& key, const YAML::Node& value) { top_level(key, value); });
      }
    } catch (const YAML::DeepRecursion& e) {  // whose text is "bad file"
      raise(error_kind::invalid_argument,
            where(e.mark) + ": " + std::to_string(e.depth()) + " levels of nesting are too many");
    } catch (const YAML::Exception& e) {
      raise(error_kind::invalid_argument, where(e.mark) + ": " + e.msg);
    }
    return std::move(config_);
  }

 private:
  void top_level(const YAML::Node& name, const YAML::Node& value) {
    const std::string key = name.Scalar();
    if (key == "ignored") {
      read_ignored(value);
    } else if (key == "operators") {
      section(value, key,
              {{"types", [this](const auto& v) { read_rules(v, config_.scope.operators.types); }},
               {"names", [this](const auto& v) { read_rules(v, config_.scope.operators.names); }}});
    } else if (key == "tensors") {
      if (!value.IsNull()) {
        entries(value, key, [this](const YAML::Node& tensor, const YAML::Node& v) {
          config_.activations[tensor.Scalar()] = read_override(v, tensor.Scalar());
        });
      }
    } else if (value.IsNull()) {
      refuse(name, key + " has no value");  // whose own place may be on another line
    } else if (value.IsMap()) {
      refuse(name, "'" + key +
                       "' takes a single value or is unknown; the sections here are ignored, "
                       "operators and tensors. (A file of Neural Compressor 1.x has a section "
                       "model, quantization, evaluation or tuning; what versions from 2.0 on "
                       "take, such as op_type_dict, is not read.)");
    } else {
      config_.options.push_back({key, several(value, key), where(value.Mark())});
    }
  }

  /// The texts of a list of values, or of a single value, which may have commas.
  [[nodiscard]] std::vector<std::string> several(const YAML::Node& value,
                                                 const std::string& key) const {
    std::vector<std::string> all;
    if (!value.IsSequence()) {
      return {text(value, key)};
    }
    for (const YAML::Node& one : value) {
      all.push_back(text(one, key));
    }
    return all;
  }

  void read_ignored(const YAML::Node& map) {
    ignored_scope& ignored = config_.scope.ignored;
    const auto list = [this](const char* key, std::vector<std::string>& to) {
      return [this, key, &to](const YAML::Node& v) { to = several(v, key); };
    };
    const auto flag = [this](const char* key, bool& to) {
      return [this, key, &to](const YAML::Node& v) { to = boolean(v, key); };
    };
    section(map, "ignored",
            {{"names", list("names", ignored.names)},
             {"patterns", list("patterns", ignored.patterns)},
             {"types", list("types", ignored.types)},
             {"first-layer", flag("first-layer", ignored.first_layer)},
             {"last-layer", flag("last-layer", ignored.last_layer)}});
  }

  void read_rules(const YAML::Node& map, std::vector<operator_rule>& rules) const {
    entries(map, "a list of rules", [&](const YAML::Node& pattern, const YAML::Node& settings) {
      rules.push_back(
          {pattern.Scalar(), read_settings(settings, pattern.Scalar()), where(pattern.Mark())});
    });
  }

  [[nodiscard]] operator_settings read_settings(const YAML::Node& map,
                                                const std::string& pattern) const {
    operator_settings s;
    section(
        map, "'" + pattern + "'",
        {{"quantize", [&](const auto& v) { s.quantize = boolean(v, "quantize"); }},
         {"granularity",
          [&](const auto& v) {
            s.per_channel =
                one_of<bool>(v, "granularity", {{"per-channel", true}, {"per-tensor", false}});
          }},
         {"bits",
          [&](const auto& v) { s.weight_bits = as<std::size_t>(v, "bits", "a number of bits"); }},
         {"weight-scales",
          [&](const auto& v) {
            s.weight_scales = one_of<weight_scale>(
                v, "weight-scales",
                {{"absmax", weight_scale::absmax}, {"exact-mse", weight_scale::exact_mse}});
          }},
         {"block-size",
          [&](const auto& v) {
            s.block_size = as<std::int64_t>(v, "block-size", "a whole number");
          }},
         {"method", [&](const auto& v) { s.method = text(v, "method"); }}});
    return s;
  }

  [[nodiscard]] activation_override read_override(const YAML::Node& map,
                                                  const std::string& name) const {
    activation_override own;
    std::optional<float> scale;
    std::optional<std::int32_t> zero_point;
    section(
        map, "'" + name + "'",
        {{"scale", [&](const auto& v) { scale = as<float>(v, "scale", "a number"); }},
         {"zero-point",
          [&](const auto& v) { zero_point = as<std::int32_t>(v, "zero-point", "a whole number"); }},
         {"range",
          [&](const auto& v) {
            if (!v.IsSequence() || v.size() != 2) {
              refuse(v, "range: expected [lower, upper]");
            }
            own.range = value_range{as<float>(v[0], "range", "numbers"),
                                    as<float>(v[1], "range", "numbers")};
          }},
         {"method", [&](const auto& v) { own.method = text(v, "method"); }}});
    if (scale.has_value() != zero_point.has_value()) {
      refuse(map, "'" + name + "' has only one of scale and zero-point");
    }
    if (scale) {
      own.params = quant_params{*scale, *zero_point};
    }
    return own;
  }

  quantization_text config_;
};

}  // namespace detail

/// Reads a text in YAML or JSON. `name` stands for it in messages. Throws invalid_argument, with
/// NAME:LINE, for entries of another form; names and values of options are not checked.
/// Thread-safe.
[[nodiscard]] inline quantization_text parse_quantization_text(const std::string& text,
                                                               const std::string& name) {
  return detail::quantization_text_reader(name).run(text);
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_CONFIGURATION_QUANTIZATION_TEXT_HPP
