// SPDX-License-Identifier: BSD-3-Clause
// Error reports of the analyses, as a table of text and as JSON.
#ifndef DETENT_GRAPH_PPQ_ERROR_REPORT_HPP
#define DETENT_GRAPH_PPQ_ERROR_REPORT_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/json_text.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// The name of a measure, as find_error_method() takes it.
[[nodiscard]] constexpr const char* name(error_method method) noexcept {
  return method == error_method::snr ? "snr" : method == error_method::mse ? "mse" : "cosine";
}

/// What both analyses of errors have found in a network.
struct error_report {
  error_method method = error_method::snr;  ///< The measure of all errors.
  double output = 0.0;                      ///< output_error().
  std::vector<operator_error> graphwise;    ///< graphwise_error_analysis().
  std::vector<operator_error> layerwise;    ///< layerwise_error_analysis().
};

/// Runs both analyses and output_error(). `samples` is left at its beginning. Throws what they
/// throw.
[[nodiscard]] inline error_report make_error_report(const quantized_graph& g,
                                                    const calibration_source& samples,
                                                    const analysis_options& options = {}) {
  return {options.method, output_error(g, samples, options),
          graphwise_error_analysis(g, samples, options),
          layerwise_error_analysis(g, samples, options)};
}

namespace detail {

[[nodiscard]] inline std::string six_digits(double value) {
  std::array<char, 40> text;
  const int length = std::snprintf(text.data(), text.size(), "%.6g", value);
  return {text.data(), static_cast<std::size_t>(length)};
}

/// A table with a line for each operator, the worst first, and a bar: the error's share of the
/// worst one.
[[nodiscard]] inline std::string error_table(const std::string& title, error_method method,
                                             std::vector<operator_error> errors) {
  // An error that is not a number is worse than any other.
  const auto badness = [&](const operator_error& e) {
    return std::isnan(e.error)              ? std::numeric_limits<double>::infinity()
           : method == error_method::cosine ? 1.0 - e.error
                                            : e.error;
  };
  std::stable_sort(errors.begin(), errors.end(),
                   [&](const auto& a, const auto& b) { return badness(a) > badness(b); });
  std::size_t width = 0;
  for (const operator_error& e : errors) {
    width = (std::max)(width, one_line(e.operator_name).size());
  }
  const double worst = errors.empty() ? 0.0 : badness(errors.front());
  std::string text = title + " (" + ppq::name(method) + ")\n";
  for (const operator_error& e : errors) {
    std::string label = one_line(e.operator_name);
    label.resize(width, ' ');
    std::string number = six_digits(e.error);
    number.resize((std::max)(number.size(), std::size_t{12}), ' ');
    const double share = badness(e) == worst ? (worst > 0.0 ? 1.0 : 0.0)
                         : worst > 0.0       ? (std::max)(badness(e), 0.0) / worst
                                             : 0.0;
    std::string line = "  " + label + "  " + number + " " +
                       std::string(static_cast<std::size_t>(share * 20.0 + 0.5), '#');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

inline void write_errors(json_text& text, const char* key,
                         const std::vector<operator_error>& errors) {
  text.key(key);
  text.open_list();
  for (const operator_error& e : errors) {
    text.open_object();
    text.key("operator");
    text.value(e.operator_name);
    text.key("value");
    text.value(e.value);
    text.key("error");
    text.value(e.error);
    text.close_object();
  }
  text.close_list();
}

}  // namespace detail

/// The report as a text of lines: the error of the results, then a table of each analysis with the
/// worst operator first. Control characters in names become '?'.
[[nodiscard]] inline std::string error_text(const error_report& report) {
  return "error of the results (" + std::string(name(report.method)) +
         "): " + detail::six_digits(report.output) + "\n\n" +
         detail::error_table("each layer's output, the whole network quantized", report.method,
                             report.graphwise) +
         "\n" +
         detail::error_table("the results, only this layer quantized", report.method,
                             report.layerwise);
}

/// The report as JSON: {"method", "output", "graphwise": [{"operator", "value", "error"}, ...],
/// "layerwise": [...]}, in the order of the network. Throws invalid_argument for an error that is
/// not finite.
[[nodiscard]] inline std::string error_json(const error_report& report) {
  detail::json_text text;
  text.open_object();
  text.key("method");
  text.value(name(report.method));
  text.key("output");
  text.value(report.output);
  detail::write_errors(text, "graphwise", report.graphwise);
  detail::write_errors(text, "layerwise", report.layerwise);
  text.close_object();
  return std::move(text).finish();
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_ERROR_REPORT_HPP
