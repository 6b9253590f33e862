// SPDX-License-Identifier: BSD-3-Clause
#include "quantize_config.hpp"

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>

#include "usage_error.hpp"

namespace detent_cli {
namespace {

using detent::graph::activation_override;
using detent::graph::operator_rule;
using detent::graph::operator_settings;
using detent::graph::weight_scale;

class config_reader {
 public:
  explicit config_reader(std::string path) : path_(std::move(path)) {}

  quantize_config run() {
    const std::string text = detent::graph::read_file(path_);
    try {
      const YAML::Node root = YAML::Load(text);
      if (!root.IsNull()) {
        entries(root, "the file",
                [this](const std::string& key, const YAML::Node& value) { top_level(key, value); });
      }
    } catch (const YAML::Exception& e) {
      throw usage_error(where(e.mark) + ": " + e.msg);
    }
    return std::move(config_);
  }

 private:
  using on_entry = std::function<void(const std::string& key, const YAML::Node& value)>;

  [[nodiscard]] std::string where(const YAML::Mark& mark) const {
    std::string text = path_;
    if (!mark.is_null()) {
      text.append(":").append(std::to_string(mark.line + 1));
    }
    return text;
  }
  [[noreturn]] void refuse(const YAML::Node& at, const std::string& message) const {
    throw usage_error(where(at.Mark()) + ": " + message);
  }

  /// Calls f(key, value) for the entries of a map in their order. A key that is there twice is an
  /// error.
  void entries(const YAML::Node& map, const std::string& what, const on_entry& f) const {
    if (!map.IsMap()) {
      refuse(map, what + " is not a map of names to values");
    }
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const std::string key = text(entry.first, "a name");
      if (!seen.insert(key).second) {
        refuse(entry.first, "'" + key + "' is there twice");
      }
      f(key, entry.second);
    }
  }

  [[nodiscard]] std::string text(const YAML::Node& value, const std::string& what) const {
    if (!value.IsScalar()) {
      refuse(value, what + " is not a single value");
    }
    return value.Scalar();
  }
  template <class T>
  [[nodiscard]] T as(const YAML::Node& value, const std::string& key, const char* expected) const {
    T result{};
    if (!value.IsScalar() || !YAML::convert<T>::decode(value, result)) {
      refuse(value, key + ": expected " + expected +
                        (value.IsScalar() ? ", not '" + value.Scalar() + "'" : ""));
    }
    return result;
  }
  [[nodiscard]] bool boolean(const YAML::Node& value, const std::string& key) const {
    return as<bool>(value, key, "true or false");
  }
  template <class T>
  [[nodiscard]] T one_of(const YAML::Node& value, const std::string& key,
                         const std::vector<std::pair<const char*, T>>& known) const {
    const std::string name = text(value, key);
    std::string all;
    for (const auto& [known_name, result] : known) {
      if (name == known_name) {
        return result;
      }
      all.append(all.empty() ? "" : ", ").append(known_name);
    }
    refuse(value, key + ": '" + name + "' is none of " + all);
  }
  /// The texts of a list of values, or of a single value.
  [[nodiscard]] std::vector<std::string> texts(const YAML::Node& value,
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

  void top_level(const std::string& key, const YAML::Node& value) {
    if (key == "ignored") {
      entries(value, key,
              [this](const std::string& k, const YAML::Node& v) { read_ignored(k, v); });
    } else if (key == "operators") {
      entries(value, key, [this](const std::string& k, const YAML::Node& v) {
        if (k != "types" && k != "names") {
          refuse(v, "operators has types and names, not '" + k + "'");
        }
        std::vector<operator_rule>& rules =
            k == "types" ? config_.scope.operators.types : config_.scope.operators.names;
        entries(v, k, [&](const std::string& pattern, const YAML::Node& settings) {
          rules.push_back({pattern, read_settings(settings, pattern)});
        });
      });
    } else if (key == "tensors") {
      entries(value, key, [this](const std::string& name, const YAML::Node& v) {
        config_.activations[name] = read_override(v, name);
      });
    } else {
      config_.flags.push_back({key, texts(value, key), where(value.Mark())});
    }
  }

  void read_ignored(const std::string& key, const YAML::Node& value) {
    detent::graph::ignored_scope& ignored = config_.scope.ignored;
    if (key == "names") {
      ignored.names = texts(value, key);
    } else if (key == "patterns") {
      ignored.patterns = texts(value, key);
    } else if (key == "types") {
      ignored.types = texts(value, key);
    } else if (key == "first-layer") {
      ignored.first_layer = boolean(value, key);
    } else if (key == "last-layer") {
      ignored.last_layer = boolean(value, key);
    } else {
      refuse(value,
             "ignored has names, patterns, types, first-layer and last-layer, not '" + key + "'");
    }
  }

  [[nodiscard]] operator_settings read_settings(const YAML::Node& map,
                                                const std::string& pattern) const {
    operator_settings s;
    entries(map, "'" + pattern + "'", [&](const std::string& key, const YAML::Node& value) {
      if (key == "quantize") {
        s.quantize = boolean(value, key);
      } else if (key == "granularity") {
        s.per_channel = one_of<bool>(value, key, {{"per-channel", true}, {"per-tensor", false}});
      } else if (key == "bits") {
        s.weight_bits = as<std::size_t>(value, key, "a number of bits");
      } else if (key == "weight-scales") {
        s.weight_scales = one_of<weight_scale>(
            value, key, {{"absmax", weight_scale::absmax}, {"exact-mse", weight_scale::exact_mse}});
      } else if (key == "block-size") {
        s.block_size = as<std::int64_t>(value, key, "a whole number");
      } else if (key == "method") {
        s.method = text(value, key);
      } else {
        refuse(value,
               "an operator has quantize, granularity, bits, weight-scales, block-size and method, "
               "not '" +
                   key + "'");
      }
    });
    return s;
  }

  [[nodiscard]] activation_override read_override(const YAML::Node& map,
                                                  const std::string& name) const {
    activation_override own;
    bool has_zero_point = false;
    detent::quant_params params;
    entries(map, "'" + name + "'", [&](const std::string& key, const YAML::Node& value) {
      if (key == "scale") {
        params.scale = as<float>(value, key, "a number");
        own.params = params;
      } else if (key == "zero-point") {
        params.zero_point = as<std::int32_t>(value, key, "a whole number");
        has_zero_point = true;
      } else if (key == "range") {
        if (!value.IsSequence() || value.size() != 2) {
          refuse(value, "range: expected [lower, upper]");
        }
        own.range = detent::value_range{as<float>(value[0], key, "numbers"),
                                        as<float>(value[1], key, "numbers")};
      } else if (key == "method") {
        own.method = text(value, key);
      } else {
        refuse(value, "a tensor has scale and zero-point, range, or method, not '" + key + "'");
      }
    });
    if (has_zero_point != own.params.has_value()) {
      refuse(map, "'" + name + "' has only one of scale and zero-point");
    }
    if (own.params) {
      own.params = params;
    }
    return own;
  }

  std::string path_;
  quantize_config config_;
};

}  // namespace

quantize_config read_quantize_config(const std::string& path) { return config_reader(path).run(); }

}  // namespace detent_cli
