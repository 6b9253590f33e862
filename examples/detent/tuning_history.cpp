// SPDX-License-Identifier: BSD-3-Clause
#include "tuning_history.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>

#include "tuning_json.hpp"

namespace detent_cli {

namespace graph = detent::graph;
using detent::error_kind;
using graph::bias_correction;
using graph::tuning_setting;
using graph::tuning_trial;
using graph::weight_scale;

namespace {

constexpr std::pair<const char*, bias_correction> corrections[] = {{"none", bias_correction::none},
                                                                   {"fast", bias_correction::fast},
                                                                   {"full", bias_correction::full}};
constexpr std::pair<const char*, weight_scale> scales[] = {{"absmax", weight_scale::absmax},
                                                           {"exact-mse", weight_scale::exact_mse}};
constexpr std::pair<const char*, bool> granularities[] = {{"per-channel", true},
                                                          {"per-tensor", false}};

template <class T, std::size_t N>
const char* name_in(const std::pair<const char*, T> (&table)[N], T value) {
  for (const auto& [name, v] : table) {
    if (v == value) {
      return name;
    }
  }
  return "";
}
template <class T, std::size_t N>
T value_in(const std::pair<const char*, T> (&table)[N], const std::string& name) {
  for (const auto& [known, value] : table) {
    if (known == name) {
      return value;
    }
  }
  throw std::invalid_argument("'" + name + "' is unknown");
}

/// JSON has no NaN and no infinity: null stands for NaN.
json_object number(double v) { return std::isfinite(v) ? json_object(v) : json_object(nullptr); }
double number(const json_object& j) {
  return j.is_null() ? std::numeric_limits<double>::quiet_NaN() : j.get<double>();
}

tuning_trial from_json(const json_object& j) {
  tuning_trial t;
  tuning_setting& s = t.setting;
  if (!j.at("samples").is_number_unsigned()) {
    throw std::invalid_argument("'samples' is no number of samples");
  }
  s.samples = j.at("samples").get<std::size_t>();
  s.method = j.at("method").get<std::string>();
  s.symmetric_activations = j.at("symmetric_activations").get<bool>();
  s.per_channel = value_in(granularities, j.at("granularity").get<std::string>());
  s.weights = value_in(scales, j.at("weight_scales").get<std::string>());
  s.correction = value_in(corrections, j.at("bias_correction").get<std::string>());
  for (const json_object& name : j.at("in_float")) {
    s.in_float.insert(name.get<std::string>());
  }
  t.metric = number(j.at("metric"));
  t.objective = number(j.at("objective"));
  t.meets_goal = j.at("meets_goal").get<bool>();
  t.is_best = j.at("is_best").get<bool>();
  return t;
}

}  // namespace

json_object to_json(const tuning_trial& t) {
  return {{"samples", t.setting.samples},
          {"method", t.setting.method},
          {"symmetric_activations", t.setting.symmetric_activations},
          {"granularity", name_in(granularities, t.setting.per_channel)},
          {"weight_scales", name_in(scales, t.setting.weights)},
          {"bias_correction", name_in(corrections, t.setting.correction)},
          {"in_float", t.setting.in_float},
          {"metric", number(t.metric)},
          {"objective", number(t.objective)},
          {"meets_goal", t.meets_goal},
          {"is_best", t.is_best}};
}

std::vector<tuning_trial> tuning_history::read(const std::string& path) {
  const std::string text = graph::read_file(path);
  std::vector<tuning_trial> trials;
  try {
    const json_object j = json_object::parse(text);
    detent::require(j.at("subject").get<std::string>() == subject_, error_kind::invalid_argument,
                    path,
                    ": these trials were made with another model, other data, another metric or "
                    "other options of quantization");
    for (const json_object& t : j.at("trials")) {
      trials.push_back(from_json(t));
    }
  } catch (const nlohmann::json::parse_error& e) {
    detent::raise(error_kind::bad_file, path, ": not a history of trials: no JSON at byte ",
                  e.byte);
  } catch (const nlohmann::json::exception& e) {
    // The text begins with the exception's number in brackets.
    const std::string reason = e.what();
    const std::size_t begin = reason.find("] ");
    detent::raise(error_kind::bad_file, path + ": not a history of trials: " +
                                            reason.substr(begin == reason.npos ? 0 : begin + 2));
  } catch (const std::invalid_argument& e) {
    detent::raise(error_kind::bad_file, path + ": not a history of trials: " + e.what());
  }
  trials_ = trials;
  return trials;
}

void tuning_history::add(const tuning_trial& t) {
  const auto known = std::find_if(trials_.begin(), trials_.end(), [&](const tuning_trial& other) {
    return other.setting == t.setting;
  });
  if (known == trials_.end()) {
    trials_.push_back(t);
  } else {
    *known = t;
  }
  json_object j;
  j["subject"] = subject_;
  j["trials"] = json_object::array();
  for (const tuning_trial& trial : trials_) {
    j["trials"].push_back(to_json(trial));
  }
  graph::write_file(path_, json_text(j, 1) + "\n");
}

}  // namespace detent_cli
