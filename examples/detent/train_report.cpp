// SPDX-License-Identifier: BSD-3-Clause
#include "train_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <detent/version.hpp>

#include "html.hpp"
#include "report_style.hpp"

namespace detent_cli {
namespace {

using detent::graph::epoch_report;
using detent::graph::training_score;
using html::coordinate;
using html::decimal;
using html::escape;
using html::significant;

/// A line of a plot: a value for each epoch. Values that are not finite are gaps.
struct curve {
  std::string name;
  std::string style;  // class of the line
  std::vector<double> values;
};

/// A plot of curves over the epochs 1, 2, ..., with the axis of values on the left.
class line_plot {
 public:
  line_plot(const std::vector<curve>& curves, std::size_t epochs)
      : curves_(curves), epochs_(epochs) {
    for (const curve& c : curves) {
      for (const double v : c.values) {
        if (std::isfinite(v)) {
          lower_ = (std::min)(lower_, v);
          upper_ = (std::max)(upper_, v);
        }
      }
    }
  }

  [[nodiscard]] std::string svg() const {
    if (!(lower_ <= upper_)) {
      return "<div class=\"empty\">nothing to draw</div>";
    }
    std::string out = "<svg viewBox=\"0 0 340 180\" role=\"img\">";
    for (const double part : {0.0, 0.5, 1.0}) {
      const double value = lower_ + part * (upper_ - lower_);
      const std::string at = coordinate(y(value));
      out += "<line class=\"tick\" x1=\"52\" x2=\"334\" y1=\"" + at + "\" y2=\"" + at + "\"/>";
      out += "<text x=\"48\" y=\"" + coordinate(y(value) + 3.0) + "\" text-anchor=\"end\">" +
             significant(value, 3) + "</text>";
    }
    for (const std::size_t epoch : {std::size_t{1}, epochs_}) {
      out += "<text x=\"" + coordinate(x(epoch - 1)) + "\" y=\"176\" text-anchor=\"middle\">" +
             std::to_string(epoch) + "</text>";
    }
    for (const curve& c : curves_) {
      out += line(c);
    }
    return out + "</svg>";
  }

 private:
  [[nodiscard]] double x(std::size_t epoch) const {
    const double steps = static_cast<double>((std::max)(epochs_, std::size_t{2}) - 1);
    return 60.0 + 266.0 * static_cast<double>(epoch) / steps;
  }
  [[nodiscard]] double y(double value) const {
    const double part = upper_ > lower_ ? (value - lower_) / (upper_ - lower_) : 0.5;
    return 156.0 - 144.0 * part;
  }
  [[nodiscard]] std::string line(const curve& c) const {
    std::string path;
    bool is_begun = false;
    for (std::size_t i = 0; i < c.values.size(); ++i) {
      if (!std::isfinite(c.values[i])) {
        is_begun = false;
        continue;
      }
      // A point alone is drawn as a dot, by a line of no length with round ends.
      path += (is_begun ? " L" : " M") + coordinate(x(i)) + " " + coordinate(y(c.values[i]));
      path += is_begun ? "" : " l0 0";
      is_begun = true;
    }
    return "<path class=\"curve " + c.style + "\" d=\"" + path + "\"><title>" + escape(c.name) +
           "</title></path>";
  }

  const std::vector<curve>& curves_;
  std::size_t epochs_;
  double lower_ = std::numeric_limits<double>::infinity();
  double upper_ = -std::numeric_limits<double>::infinity();
};

constexpr char curve_style[] = R"css(
.curve { fill: none; stroke: var(--bar); stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.curve.second { stroke: var(--line); stroke-dasharray: 5 3; }
.curve.many { stroke-width: .8; opacity: .55; }
)css";

std::string figure(const std::string& title, const std::string& what,
                   const std::vector<curve>& curves, std::size_t epochs) {
  return "<figure><figcaption><div><h3>" + escape(title) + "</h3><span class=\"op\">" +
         escape(what) + "</span></div></figcaption>" + line_plot(curves, epochs).svg() +
         "</figure>";
}

std::string row(const std::vector<std::string>& cells, const char* kind = "td") {
  std::string out = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    out +=
        std::string("<") + kind + (i == 0 ? ">" : " class=\"n\">") + cells[i] + "</" + kind + ">";
  }
  return out + "</tr>";
}

std::string accuracy(double share) {
  return std::isnan(share) ? "\xE2\x80\x93" : decimal(100.0 * share, 2) + " %";
}

/// The curves of all scales, each as a multiple of its first value.
std::vector<curve> scale_curves(const std::vector<epoch_report>& epochs) {
  std::map<std::string, curve> all;
  std::map<std::string, double> first;
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    for (const auto& [name, scale] : epochs[i].scales) {
      curve& c = all[name];
      c.name = name;
      c.style = "many";
      c.values.resize(epochs.size(), std::numeric_limits<double>::quiet_NaN());
      c.values[i] = scale / first.emplace(name, scale).first->second;
    }
  }
  std::vector<curve> curves;
  for (auto& [name, c] : all) {
    curves.push_back(std::move(c));
  }
  return curves;
}

std::vector<double> over_epochs(const train_report_data& data,
                                const std::function<double(const epoch_report&)>& value) {
  std::vector<double> values;
  for (const epoch_report& e : data.epochs) {
    values.push_back(value(e));
  }
  return values;
}

std::string plots(const train_report_data& data) {
  const std::size_t n = data.epochs.size();
  if (n == 0) {
    return "<p>No epoch was completed.</p>";
  }
  std::string out = "<div class=\"plots\">";
  out += figure("Loss", "solid: samples of training; dashed: samples of validation, by labels",
                {{"training", "", over_epochs(data, [](const auto& e) { return e.loss; })},
                 {"validation", "second",
                  over_epochs(data, [](const auto& e) { return e.validation_loss; })}},
                n);
  if (!std::isnan(data.before.accuracy)) {
    out += figure(
        "Accuracy", "samples of validation, in percent",
        {{"accuracy", "", over_epochs(data, [](const auto& e) { return 100.0 * e.accuracy; })}}, n);
  }
  out += figure(
      "Learning rate", "of the last step of each epoch",
      {{"learning rate", "", over_epochs(data, [](const auto& e) { return e.learning_rate; })}}, n);
  const std::vector<curve> scales = scale_curves(data.epochs);
  if (!scales.empty()) {
    out += figure("Scales", "the mean of each, as a multiple of that behind the first epoch",
                  scales, n);
  }
  return out + "</div>";
}

std::string result_table(const train_report_data& data) {
  const auto line = [](const std::string& what, const training_score& s) {
    return row({what, decimal(s.loss, 4), accuracy(s.accuracy)});
  };
  std::string out = "<div class=\"panel table\"><table><thead>" +
                    row({"model", "loss", "accuracy"}, "th") + "</thead><tbody>";
  if (data.float_score) {
    out += line("float", *data.float_score);
  }
  out += line("before training", data.before);
  if (data.best_epoch) {
    const epoch_report& best = data.epochs[*data.best_epoch];
    out += line("epoch " + std::to_string(*data.best_epoch + 1) + ", which was written",
                {best.validation_loss, best.accuracy});
  }
  return out + "</tbody></table></div>";
}

std::string epoch_table(const train_report_data& data) {
  std::string out =
      "<div class=\"panel table\"><table><thead>" +
      row({"epoch", "loss", "validation loss", "accuracy", "learning rate", ""}, "th") +
      "</thead><tbody>";
  for (const epoch_report& e : data.epochs) {
    out += row({std::to_string(e.epoch + 1), decimal(e.loss, 4), decimal(e.validation_loss, 4),
                accuracy(e.accuracy), significant(e.learning_rate, 3),
                e.is_best ? "<span class=\"tag\">best so far</span>" : ""});
  }
  return out + "</tbody></table></div>";
}

std::string version_text() {
  return std::to_string(DETENT_VERSION_MAJOR) + "." + std::to_string(DETENT_VERSION_MINOR) + "." +
         std::to_string(DETENT_VERSION_PATCH);
}

}  // namespace

std::string html_report(const train_report_data& data) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width\"/>\n<title>" +
      escape(data.model) + ": training</title>\n<style>" + report_style + curve_style +
      "</style>\n</head>\n<body>\n<header><h1>Training of <bdi>" + escape(data.model) +
      "</bdi></h1><p class=\"files\">written to <bdi>" + escape(data.output) + "</bdi>; " +
      std::to_string(data.samples) + " samples, " + std::to_string(data.validation_samples) +
      " of validation</p></header>\n<main>\n";
  if (!data.notes.empty()) {
    out += "<div class=\"panel notes\"><ul>";
    for (const std::string& note : data.notes) {
      out += "<li>" + escape(note) + "</li>";
    }
    out += "</ul></div>\n";
  }
  out += "<h2>Before and after</h2>\n" + result_table(data) + "\n<h2>Over the epochs</h2>\n" +
         plots(data) + "\n<h2>Epochs</h2>\n" + epoch_table(data) + "\n<h2>Options</h2>\n" +
         "<div class=\"panel table options\"><table><tbody>";
  for (const auto& [name, value] : data.options) {
    out += "<tr><td>" + escape(name) + "</td><td>" + escape(value) + "</td></tr>";
  }
  return out + "</tbody></table></div>\n</main>\n<footer>detent " + version_text() +
         "</footer>\n</body>\n</html>\n";
}

}  // namespace detent_cli
