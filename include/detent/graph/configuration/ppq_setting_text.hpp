// SPDX-License-Identifier: BSD-3-Clause
// Reads a quantization_setting of PPQ from JSON, as PPQ's to_json() or ours has written it. YAML,
// of which JSON is a form, will do as well.
#ifndef DETENT_GRAPH_CONFIGURATION_PPQ_SETTING_TEXT_HPP
#define DETENT_GRAPH_CONFIGURATION_PPQ_SETTING_TEXT_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/inc/yaml_values.hpp>
#include <detent/graph/ppq/setting.hpp>
#include <detent/graph/ppq/target_platform.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

class setting_text_reader : public inc::yaml_values {
 public:
  explicit setting_text_reader(std::string name) : yaml_values(std::move(name)) {}

  quantization_setting run(const std::string& text) {
    quantization_setting setting;
    try {
      const YAML::Node root = document(text);
      if (!root.IsMap()) {
        refuse(root, "the setting is not an object of names and values");
      }
      read(root, "the setting", setting);
    } catch (const YAML::DeepRecursion& e) {
      raise(error_kind::invalid_argument,
            where(e.mark) + ": " + std::to_string(e.depth()) + " levels of nesting are too many");
    } catch (const YAML::Exception& e) {
      raise(error_kind::invalid_argument, where(e.mark) + ": " + e.msg);
    }
    return setting;
  }

 private:
  void read(const YAML::Node& value, const std::string& key, bool& to) const {
    to = boolean(value, key);
  }
  void read(const YAML::Node& value, const std::string& key, int& to) const {
    to = as<int>(value, key, "a whole number");
  }
  void read(const YAML::Node& value, const std::string& key, std::size_t& to) const {
    to = count(value, key, 0);
  }
  void read(const YAML::Node& value, const std::string& key, double& to) const {
    to = as<double>(value, key, "a number");
    if (!std::isfinite(to)) {
      refuse(value, key + ": expected a number, not '" + value.Scalar() + "'");
    }
  }
  void read(const YAML::Node& value, const std::string& key, std::string& to) const {
    to = text(value, key);
  }
  void read(const YAML::Node& value, const std::string& key, std::optional<std::string>& to) const {
    to = text(value, key);
  }
  void read(const YAML::Node& value, const std::string& key, std::vector<std::string>& to) const {
    if (!value.IsSequence()) {
      refuse(value, key + " is not a list");
    }
    to.clear();
    for (const YAML::Node& one : value) {
      to.push_back(text(one, "an element of " + key));
    }
  }
  void read(const YAML::Node& value, const std::string& key, dispatching_table& to) const {
    const auto comment = [](const YAML::Node&) {};
    section(value, key,
            {{"dispatchings", [&](const YAML::Node& v) { read_dispatchings(v, to); }},
             {"intro_0", comment},
             {"intro_1", comment},
             {"intro_2", comment},
             {"attention", comment}});
  }
  /// A structure: each of its fields by its name.
  template <class Section>
  void read(const YAML::Node& value, const std::string& key, Section& to) const {
    keys known;
    Section::for_each_field(to, [&](const char* name, auto& field) {
      known.emplace_back(name, [this, name, &field](const YAML::Node& v) { read(v, name, field); });
    });
    section(value, key, known);
  }

  void read_dispatchings(const YAML::Node& value, dispatching_table& to) const {
    to.dispatchings.clear();
    entries(value, "dispatchings", [&](const YAML::Node& key, const YAML::Node& platform) {
      // PPQ writes examples, whose names no operator has, into the table of every setting.
      const std::string& operation = key.Scalar();
      if (operation.ends_with(" OPERATION NAME") || operation == "YOUR OEPRATION NAME") {
        return;
      }
      const std::string named = text(platform, operation);
      int number = 0;
      if (!YAML::convert<int>::decode(platform, number)) {
        try {
          to.append(operation, named);
        } catch (const error& e) {
          refuse(platform, e.what());
        }
        return;
      }
      if (find_target_platform(number) == nullptr) {
        refuse(platform, operation + ": TargetPlatform has no member with the number " + named);
      }
      to.dispatchings[operation] = number;
    });
  }
};

}  // namespace detail

/// Reads a setting. `name` stands for the text in messages. Fields that are absent or null keep
/// their defaults. Operators' platforms in the dispatching table are numbers, as PPQ has them, or
/// names; the examples that PPQ writes into every table are left out. Throws invalid_argument, with
/// NAME:LINE, for text that is not JSON (or YAML), for a field that does not exist, naming the
/// nearest one, and for a value of another type.
[[nodiscard]] inline quantization_setting setting_from_json(const std::string& text,
                                                            const std::string& name = "setting") {
  return detail::setting_text_reader(name).run(text);
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_CONFIGURATION_PPQ_SETTING_TEXT_HPP
