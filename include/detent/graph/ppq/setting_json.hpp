// SPDX-License-Identifier: BSD-3-Clause
// Writes a quantization_setting as the JSON that PPQ's QuantizationSettingFactory.from_json()
// reads; graph/configuration/ppq_setting_text.hpp reads it.
#ifndef DETENT_GRAPH_PPQ_SETTING_JSON_HPP
#define DETENT_GRAPH_PPQ_SETTING_JSON_HPP

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/ppq/json_text.hpp>
#include <detent/graph/ppq/setting.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Writes fields, each with its name before it.
class setting_writer {
 public:
  explicit setting_writer(json_text& to) : to_(to) {}

  template <class T>
  void operator()(const char* name, const T& field) const {
    to_.key(name);
    write(field);
  }
  void operator()(const char* name, const dispatching_table& table) const {
    to_.key(name);
    to_.open_object();
    to_.key("dispatchings");
    to_.open_object();
    for (const auto& [operation, platform] : table.dispatchings) {
      to_.key(operation);
      to_.value(platform);
    }
    to_.close_object();
    to_.close_object();
  }
  /// Fields that PPQ 0.6.6 lacks are written if they say something.
  void operator()(const char* name, const advanced_optimization_setting& s) const {
    if (!(s == advanced_optimization_setting())) {
      to_.key(name);
      write(s);
    }
  }

  void write(const std::string& text) const { to_.value(std::string_view(text)); }
  void write(const std::optional<std::string>& text) const {
    if (text) {
      write(*text);
    } else {
      to_.null();
    }
  }
  void write(const std::vector<std::string>& texts) const {
    to_.open_list();
    for (const std::string& text : texts) {
      write(text);
    }
    to_.close_list();
  }
  template <class T>
  void write(const T& value) const {
    if constexpr (requires { to_.value(value); }) {
      to_.value(value);
    } else {
      to_.open_object();
      T::for_each_field(value, *this);
      to_.close_object();
    }
  }

 private:
  json_text& to_;
};

}  // namespace detail

/// The setting as JSON text in UTF-8, with all fields of PPQ 0.6.6 in a fixed order;
/// advanced_optimization and its settings, which PPQ 0.6.6 lacks, are there only if they are not
/// the defaults. Throws invalid_argument for a number that is not finite.
[[nodiscard]] inline std::string to_json(const quantization_setting& setting) {
  detail::json_text text;
  const detail::setting_writer write(text);
  text.open_object();
  quantization_setting::for_each_field(setting, [&](const char* name, const auto& field) {
    if (std::string_view(name) != "advanced_optimization" || setting.advanced_optimization) {
      write(name, field);
    }
  });
  text.close_object();
  return std::move(text).finish();
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_SETTING_JSON_HPP
