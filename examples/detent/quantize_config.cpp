// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_config.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <detent/error.hpp>
#include <detent/graph/inc/yaml_values.hpp>
#include <detent/graph/model/files.hpp>

#include "usage_error.hpp"

namespace detent_cli {
namespace {

using detent::graph::activation_override;
using detent::graph::operator_rule;
using detent::graph::operator_settings;
using detent::graph::weight_scale;

class config_reader : public detent::graph::inc::yaml_values {
 public:
  explicit config_reader(const std::string& path) : yaml_values(path), path_(path) {}

  quantize_config run() {
    const std::string text = detent::graph::read_file(path_);
    try {
      const YAML::Node root = YAML::Load(text);
      if (!root.IsNull()) {
        entries(root, "the file", [this](const YAML::Node& key, const YAML::Node& value) {
          top_level(key.Scalar(), value);
        });
      }
    } catch (const YAML::Exception& e) {
      throw usage_error(where(e.mark) + ": " + e.msg);
    } catch (const detent::error& e) {
      throw usage_error(e.what());
    }
    return std::move(config_);
  }

 private:
  void top_level(const std::string& key, const YAML::Node& value) {
    if (key == "ignored") {
      read_ignored(value);
    } else if (key == "operators") {
      section(value, key,
              {{"types", [this](const auto& v) { read_rules(v, config_.scope.operators.types); }},
               {"names", [this](const auto& v) { read_rules(v, config_.scope.operators.names); }}});
    } else if (key == "tensors") {
      entries(value, key, [this](const YAML::Node& name, const YAML::Node& v) {
        config_.activations[name.Scalar()] = read_override(v, name.Scalar());
      });
    } else {
      config_.flags.push_back({key, several(value, key), where(value.Mark())});
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
    detent::graph::ignored_scope& ignored = config_.scope.ignored;
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
      rules.push_back({pattern.Scalar(), read_settings(settings, pattern.Scalar())});
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
            own.range = detent::value_range{as<float>(v[0], "range", "numbers"),
                                            as<float>(v[1], "range", "numbers")};
          }},
         {"method", [&](const auto& v) { own.method = text(v, "method"); }}});
    if (scale.has_value() != zero_point.has_value()) {
      refuse(map, "'" + name + "' has only one of scale and zero-point");
    }
    if (scale) {
      own.params = detent::quant_params{*scale, *zero_point};
    }
    return own;
  }

  std::string path_;
  quantize_config config_;
};

}  // namespace

quantize_config read_quantize_config(const std::string& path) { return config_reader(path).run(); }

}  // namespace detent_cli
