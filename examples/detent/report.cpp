// SPDX-License-Identifier: BSD-3-Clause
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/version.hpp>

#include "html.hpp"
#include "report_style.hpp"

namespace detent_cli {
namespace {

using html::coordinate;
using html::decimal;
using html::escape;
using html::grouped;
using html::significant;

constexpr std::string_view dash = "\xE2\x80\x93";
constexpr std::string_view ellipsis = "\xE2\x80\xA6";
constexpr std::string_view times = "\xE2\x80\xAF\xC3\x97\xE2\x80\xAF";

void append(std::string& out, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    out += part;
  }
}

/// An escaped text that lines may break after the separators of long names.
std::string breakable(std::string_view text) {
  std::string out;
  std::size_t done = 0;
  while (done < text.size()) {
    const std::size_t at = text.find_first_of("/._:", done);
    const std::size_t end = at == std::string_view::npos ? text.size() : at + 1;
    // The separators are single bytes in UTF-8 too, so no character is cut.
    out += escape(text.substr(done, end - done));
    out += end < text.size() ? "<wbr/>" : "";
    done = end;
  }
  return out;
}

/// A name in an element `bdi`, so that a name that runs from right to left does not turn around the
/// text beside it.
std::string name(std::string_view text) {
  return "<bdi class=\"name\">" + breakable(text) + "</bdi>";
}
std::string operation(std::string_view label) {
  return label.empty() ? "" : "<bdi class=\"op\">" + breakable(label) + "</bdi>";
}

/// A value as `format` writes it, or a dash if it is unknown.
template <class Format>
std::string known(const std::optional<double>& value, const Format& format) {
  return value ? format(*value) : std::string(dash);
}
std::string decibels(const std::optional<double>& value) {
  return known(value, [](double x) { return decimal(x, 1); });
}
std::string decibels_with_unit(const std::optional<double>& value) {
  return decibels(value) + (value ? " dB" : "");
}
std::string cosine(const std::optional<double>& value) {
  return known(value, [](double x) { return decimal(x, 6); });
}
std::string four_digits(const std::optional<double>& value) {
  return known(value, [](double x) { return significant(x, 4); });
}

/// A fraction in percent. A fraction that is not 0 is not shown as 0 %, nor one below 1 as 100 %.
std::string percent(const std::optional<double>& fraction) {
  return known(fraction, [](double x) -> std::string {
    return x == 0.0                 ? "0 %"
           : x > 0.0 && x < 0.00001 ? "&lt; 0.001 %"
           : x > 0.99999 && x < 1.0 ? "&gt; 99.999 %"
                                    : decimal(100.0 * x, 3) + " %";
  });
}

std::string with_sign(double value, int digits) {
  const std::string text = decimal(value, digits);
  const bool is_zero = text.find_first_of("123456789") == std::string::npos;
  return (std::isfinite(value) && value > 0.0 && !is_zero ? "+" : "") + text;
}

std::string interval(double lower, double upper) {
  return significant(lower, 4) + " " + std::string(ellipsis) + " " + significant(upper, 4);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t dim : shape) {
    text.append(text.empty() ? "" : times).append(std::to_string(dim));
  }
  return shape.empty() ? "scalar" : text;
}

// ------------------------------------------------------------------------------------ judging SNR

/// The SNR in dB below which a value is called fair or poor. At 20 dB the noise has a hundredth of
/// the signal's power, at 10 dB a tenth.
constexpr double fair_snr = 20.0;
constexpr double poor_snr = 10.0;

std::string_view judgement(double snr) {
  return snr == std::numeric_limits<double>::infinity() ? "exact"
         : snr >= fair_snr                              ? "fine"
         : snr >= poor_snr                              ? "fair"
                                                        : "poor";  // NaN is poor, too
}

/// Whether a is worse than b; NaN is worst.
bool is_worse(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; }

/// A summary of the SNRs of a list: the mean of the finite ones, and the items with the lowest
/// ones.
struct snr_summary {
  std::size_t measured = 0;
  std::size_t finite = 0;
  double mean = 0.0;
  double largest = 0.0;  // largest and smallest of the finite ones and 0
  double smallest = 0.0;
  std::vector<std::size_t> lowest;  // indices of at most three items, the worst one first

  template <class Item>
  explicit snr_summary(const std::vector<Item>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::optional<double>& snr = items[i].difference.snr_db;
      if (!snr) {
        continue;
      }
      ++measured;
      if (std::isfinite(*snr)) {
        ++finite;
        mean += (*snr - mean) / static_cast<double>(finite);
        largest = (std::max)(largest, *snr);
        smallest = (std::min)(smallest, *snr);
      }
      if (judgement(*snr) != "exact") {
        lowest.push_back(i);
      }
    }
    std::stable_sort(lowest.begin(), lowest.end(), [&](std::size_t a, std::size_t b) {
      return is_worse(*items[a].difference.snr_db, *items[b].difference.snr_db);
    });
    // In a short list only the lowest item is an exception.
    lowest.resize((std::min)(lowest.size(), std::size_t{items.size() < 8 ? 1U : 3U}));
  }

  /// The words for the rank of an item that is among the lowest; empty for others.
  [[nodiscard]] std::string_view rank(std::size_t i) const {
    constexpr std::string_view words[] = {"lowest", "2nd lowest", "3rd lowest"};
    const auto found = std::find(lowest.begin(), lowest.end(), i);
    return found == lowest.end() ? "" : words[found - lowest.begin()];
  }
};

std::string anchor(std::string_view kind, std::size_t i) {
  return std::string(kind) + std::to_string(i + 1);
}

// -------------------------------------------------------------------------------------- drawings

struct frame {
  double left, right, top, bottom;
};

std::string line(std::string_view kind, double x1, double y1, double x2, double y2,
                 std::string_view title = {}) {
  std::string out;
  append(out, {"<line class=\"", kind, "\" x1=\"", coordinate(x1), "\" y1=\"", coordinate(y1),
               "\" x2=\"", coordinate(x2), "\" y2=\"", coordinate(y2), "\""});
  if (title.empty()) {
    return out + "/>";
  }
  append(out, {"><title>", title, "</title></line>"});
  return out;
}

std::string rectangle(std::string_view kind, double x, double y, double width, double height) {
  std::string out;
  append(out, {"<rect class=\"", kind, "\" x=\"", coordinate(x), "\" y=\"", coordinate(y),
               "\" width=\"", coordinate((std::max)(width, 0.0)), "\" height=\"",
               coordinate((std::max)(height, 0.0)), "\"/>"});
  return out;
}

std::string label(double x, double y, std::string_view anchored, std::string_view text) {
  std::string out;
  append(out, {"<text x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" text-anchor=\"", anchored,
               "\">", text, "</text>"});
  return out;
}

/// A power of ten as 1, 10, 100, 1k, 10k, ...
std::string power_of_ten(int exponent) {
  constexpr std::string_view suffixes[] = {"", "k", "M", "G", "T", "P"};
  const auto group = static_cast<std::size_t>(exponent / 3);
  if (group >= std::size(suffixes)) {
    return "1e" + std::to_string(exponent);
  }
  std::string text = "1";
  text.append(static_cast<std::size_t>(exponent % 3), '0');
  text += suffixes[group];
  return text;
}

double count_of(const plot_histogram& h, std::size_t i) {
  return std::isfinite(h.counts[i]) && h.counts[i] > 0.0 ? h.counts[i] : 0.0;
}

/// The height of the highest bar; 0 if there is nothing to draw.
double peak_of(const plot_histogram& h) {
  double peak = 0.0;
  if (std::isfinite(h.lower) && std::isfinite(h.upper) && h.lower <= h.upper) {
    for (std::size_t i = 0; i < h.counts.size(); ++i) {
      peak = (std::max)(peak, count_of(h, i));
    }
  }
  return peak;
}

/// A drawing of histograms over one axis of values. The axis of counts is logarithmic:
/// log10(1 + count).
class histogram_drawing {
 public:
  void add(std::string_view kind, const plot_histogram& h) {
    const double peak = peak_of(h);
    if (peak > 0.0) {
      histograms_.emplace_back(kind, &h);
      peak_ = (std::max)(peak_, peak);
      include(h.lower);
      include(h.upper);
    }
  }
  /// Marks the ends outside of which values are clipped. Ends that are not finite are not drawn.
  void clip(double lower, double upper) {
    clip_lower_ = lower;
    clip_upper_ = upper;
    include(lower);
    include(upper);
  }

  /// The drawing. `title` must be escaped already.
  [[nodiscard]] std::string svg(std::string_view title) const {
    if (histograms_.empty()) {
      return "<div class=\"empty\">no histogram</div>";
    }
    std::string out;
    append(out, {"<svg viewBox=\"0 0 340 128\" role=\"img\"><title>", title, "</title>"});
    draw_counts_axis(out);
    for (const auto& [kind, h] : histograms_) {
      append(out, {"<path class=\"", kind, "\" d=\"", path(*h), "\"/>"});
    }
    out += line("axis", area_.left, area_.bottom, area_.right, area_.bottom);
    draw_marks(out);
    draw_labels(out);
    return out + "</svg>";
  }

 private:
  static constexpr frame area_{34.0, 334.0, 8.0, 108.0};

  void include(double x) {
    if (std::isfinite(x)) {
      lower_ = (std::min)(lower_, x);
      upper_ = (std::max)(upper_, x);
    }
  }
  [[nodiscard]] double x_of(double value) const {
    // Computed from halves, because the difference of two doubles may be infinite. If there is only
    // one value, it stands in the middle.
    const double width = upper_ / 2 - lower_ / 2;
    const double part = width > 0.0 ? (value / 2 - lower_ / 2) / width : 0.5;
    return area_.left + part * (area_.right - area_.left);
  }
  [[nodiscard]] double y_of(double count) const {
    const double part = std::log10(1.0 + count) / std::log10(1.0 + peak_);
    return area_.bottom - part * (area_.bottom - area_.top);
  }

  /// The outline of the bars, from the axis and back to it.
  [[nodiscard]] std::string path(const plot_histogram& h) const {
    double begin = x_of(h.lower);
    double end = x_of(h.upper);
    if (end - begin < 1.5) {  // so narrow that it could not be seen
      begin -= 0.75;
      end += 0.75;
    }
    const auto edge = [&](std::size_t i) {
      const double part = static_cast<double>(i) / static_cast<double>(h.counts.size());
      return coordinate(begin + part * (end - begin));
    };
    std::string out;
    append(out, {"M", edge(0), " ", coordinate(area_.bottom)});
    std::string height = coordinate(area_.bottom);
    for (std::size_t i = 0; i < h.counts.size(); ++i) {
      std::string next = coordinate(y_of(count_of(h, i)));
      if (next != height) {
        if (i > 0) {
          append(out, {"H", edge(i)});
        }
        append(out, {"V", next});
        height = std::move(next);
      }
    }
    append(out, {"H", edge(h.counts.size()), "V", coordinate(area_.bottom)});
    return out;
  }

  void draw_counts_axis(std::string& out) const {
    const int decades = static_cast<int>(std::log10((std::max)(peak_, 1.0)));
    for (int e = 0; e <= decades; e += 1 + decades / 4) {
      const double y = y_of(std::pow(10.0, e));
      out += line("tick", area_.left, y, area_.right, y);
      out += label(area_.left - 5.0, y + 3.5, "end", power_of_ten(e));
    }
  }
  void draw_marks(std::string& out) const {
    if (std::isfinite(clip_lower_)) {
      const double x = x_of(clip_lower_);
      out += rectangle("cut", area_.left, area_.top, x - area_.left, area_.bottom - area_.top);
      out += line("clip", x, area_.top - 4.0, x, area_.bottom + 4.0,
                  "clipped below " + significant(clip_lower_, 6));
    }
    if (std::isfinite(clip_upper_)) {
      const double x = x_of(clip_upper_);
      out += rectangle("cut", x, area_.top, area_.right - x, area_.bottom - area_.top);
      out += line("clip", x, area_.top - 4.0, x, area_.bottom + 4.0,
                  "clipped above " + significant(clip_upper_, 6));
    }
    if (has_zero()) {
      out += line("zero", x_of(0.0), area_.top - 4.0, x_of(0.0), area_.bottom + 4.0, "zero");
    }
  }
  [[nodiscard]] bool has_zero() const { return lower_ <= 0.0 && upper_ >= 0.0; }

  void draw_labels(std::string& out) const {
    constexpr double room = 50.0;  // the width that a label needs
    const double y = area_.bottom + 15.0;
    if (!(lower_ < upper_)) {
      out += label(x_of(lower_), y, "middle", significant(lower_, 4));
      return;
    }
    out += label(area_.left, y, "start", significant(lower_, 4));
    out += label(area_.right, y, "end", significant(upper_, 4));
    const double zero = x_of(0.0);
    if (has_zero() && zero > area_.left + room && zero < area_.right - room) {
      out += label(zero, y, "middle", "0");
    }
  }

  std::vector<std::pair<std::string_view, const plot_histogram*>> histograms_;
  double peak_ = 0.0;
  double lower_ = std::numeric_limits<double>::infinity();
  double upper_ = -std::numeric_limits<double>::infinity();
  double clip_lower_ = std::numeric_limits<double>::quiet_NaN();
  double clip_upper_ = std::numeric_limits<double>::quiet_NaN();
};

/// The bar of one row of a table, on a scale that all rows share.
std::string snr_bar(const std::optional<double>& snr, const snr_summary& all) {
  constexpr double width = 200.0;
  constexpr double height = 10.0;
  std::string out =
      "<svg viewBox=\"0 0 200 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">";
  out += rectangle("track", 0.0, 0.0, width, height);
  if (snr && !std::isnan(*snr)) {
    const double span = all.largest - all.smallest;
    const double unit = span > 0.0 ? width / span : 0.0;
    const double zero = -all.smallest * unit;
    const double end = std::clamp((std::isfinite(*snr) ? (*snr - all.smallest) * unit
                                   : *snr > 0.0        ? width
                                                       : 0.0),
                                  0.0, width);
    out += rectangle(judgement(*snr), (std::min)(zero, end), 0.0, std::fabs(end - zero), height);
  }
  return out + "</svg>";
}

// ------------------------------------------------------------------------------------------ page

class page {
 public:
  explicit page(const report_data& data)
      : data_(data), activations_(data.activations), outputs_(data.outputs) {}

  std::string make() {
    head();
    cards();
    notes();
    append(out_, {"</header>"});
    navigation();
    append(out_, {"<main>"});
    layers();
    outputs();
    steps();
    activation_plots();
    weight_plots();
    options();
    append(out_, {"</main><footer>Written by detent ", version(), ".</footer></body></html>\n"});
    return std::move(out_);
  }

 private:
  /// Classes of the style sheet, each with its meaning.
  using key_entries = std::vector<std::pair<std::string_view, std::string_view>>;

  static std::string version() {
    return std::to_string(DETENT_VERSION_MAJOR) + "." + std::to_string(DETENT_VERSION_MINOR) + "." +
           std::to_string(DETENT_VERSION_PATCH);
  }

  void head() {
    const std::string& title = data_.output.empty() ? data_.model : data_.output;
    // A safeguard: if a text ever got through as something else, nothing would run or be loaded.
    append(out_, {"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                  "style-src 'unsafe-inline'\"/>"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
                  "<title>Quantization of ",
                  escape(title), "</title><style>", report_style,
                  "</style></head>\n<body><header><h1>Quantization report</h1>"});
    append(out_, {"<p class=\"files\">", name(data_.model)});
    if (!data_.output.empty()) {
      append(out_, {" \xE2\x86\x92 ", name(data_.output)});
    }
    out_ += "</p>";
  }

  void card(std::string_view title, std::string_view value, std::string_view unit,
            std::string_view more) {
    append(cards_, {"<dl class=\"card\"><dt>", title, "</dt><dd class=\"value\">", value});
    if (!unit.empty()) {
      append(cards_, {" <span class=\"unit\">", unit, "</span>"});
    }
    append(cards_, {"</dd><dd class=\"more\">", more, "</dd></dl>\n"});
  }

  void cards() {
    if (data_.bytes_after > 0) {
      size_card();
    }
    if (data_.accuracy) {
      accuracy_card(*data_.accuracy);
    }
    if (data_.agreement) {
      card("Agreement", decimal(*data_.agreement, 2), "%",
           "of samples have the same class first in both models");
    }
    if (outputs_.measured > 0) {
      output_card();
    }
    if (activations_.measured > 0) {
      activation_card();
    }
    if (data_.calibration_samples > 0) {
      card("Calibration", grouped(data_.calibration_samples),
           data_.calibration_samples == 1 ? "sample" : "samples",
           data_.seconds ? "whole run " + significant(*data_.seconds, 3) + " s" : "");
    }
    if (!cards_.empty()) {
      append(out_, {"<div class=\"cards\">\n", cards_, "</div>"});
    }
  }

  void size_card() {
    const std::string size = html::bytes(data_.bytes_after);
    const std::size_t space = size.find(' ');
    std::string more = grouped(data_.bytes_after) + " bytes";
    if (data_.bytes_before > 0) {
      more = decimal(100.0 * static_cast<double>(data_.bytes_after) /
                         static_cast<double>(data_.bytes_before),
                     1) +
             " % of " + html::bytes(data_.bytes_before);
    }
    card("File size", size.substr(0, space), size.substr(space + 1), more);
  }

  void accuracy_card(const report_accuracy& a) {
    std::string more = with_sign(a.top1_after - a.top1_before, 2) + " from " +
                       decimal(a.top1_before, 2) + " %, " + grouped(a.samples) +
                       (a.samples == 1 ? " sample" : " samples");
    if (a.top5_before && a.top5_after) {
      more += "; top-5 " + decimal(*a.top5_after, 2) + " from " + decimal(*a.top5_before, 2) + " %";
    }
    card("Top-1 accuracy", decimal(a.top1_after, 2), "%", more);
  }

  void output_card() {
    if (outputs_.lowest.empty()) {
      card("Output SNR", html::not_finite(HUGE_VAL), "dB", "nothing differs");
      return;
    }
    const report_output& lowest = data_.outputs[outputs_.lowest[0]];
    const bool alone = data_.outputs.size() == 1;
    const std::string more =
        alone ? (lowest.difference.cosine ? "cosine " + cosine(lowest.difference.cosine) : "")
              : "lowest of " + grouped(data_.outputs.size()) + ": " + name(lowest.name);
    card("Output SNR", decibels(lowest.difference.snr_db), "dB", more);
  }

  void activation_card() {
    const bool exact = activations_.lowest.empty();
    const std::string mean = activations_.finite > 0 ? decimal(activations_.mean, 1)
                             : exact                 ? html::not_finite(HUGE_VAL)
                                                     : std::string(dash);
    std::string more = exact ? "nothing differs" : "";
    if (!exact) {
      const std::size_t i = activations_.lowest[0];
      append(more, {"lowest ", decibels(data_.activations[i].difference.snr_db), ", <a href=\"#",
                    anchor("a", i), "\">", name(data_.activations[i].tensor), "</a>"});
    }
    if (activations_.finite > 0 && activations_.finite < activations_.measured) {
      append(more, {"<br/>mean of ", grouped(activations_.finite), " of ",
                    grouped(activations_.measured)});
    }
    card("Mean activation SNR", mean, "dB", more);
  }

  void notes() {
    if (data_.notes.empty()) {
      return;
    }
    out_ += "<div class=\"panel notes\"><ul>";
    for (const std::string& note : data_.notes) {
      append(out_, {"<li><bdi>", escape(note), "</bdi></li>"});
    }
    out_ += "</ul></div>";
  }

  void navigation() {
    out_ += "<nav aria-label=\"Sections\"><ul>";
    const auto entry = [&](std::string_view id, std::string_view title, std::size_t count) {
      append(out_,
             {"<li><a href=\"#", id, "\">", title, " <span>", grouped(count), "</span></a></li>"});
    };
    entry("layers", "Layers", data_.activations.size());
    entry("outputs", "Outputs", data_.outputs.size());
    if (!data_.steps.empty()) {
      entry("steps", "Steps", data_.steps.size());
    }
    if (!data_.activations.empty()) {
      entry("activations", "Activations", data_.activations.size());
    }
    entry("weights", "Weights", data_.weights.size());
    if (!data_.options.empty()) {
      entry("options", "Options", data_.options.size());
    }
    out_ += "</ul></nav>\n";
  }

  void section(std::string_view id, std::string_view title, std::string_view lead) {
    append(out_,
           {"<section id=\"", id, "\"><h2>", title, "</h2><p class=\"lead\">", lead, "</p>\n"});
  }

  // ------------------------------------------------------------------------------------- tables

  void layers() {
    if (data_.activations.empty()) {
      section("layers", "Layers", "No activation was quantized.");
      out_ += "</section>\n";
      return;
    }
    section(
        "layers", "Layers",
        activations_.measured > 0
            ? "Signal-to-noise ratio of each quantized activation against the original model, in "
              "the order of the graph. At 20 dB noise has a hundredth of the signal\xE2\x80\x99s "
              "power, at 10 dB a tenth."
            : "Quantized activations in the order of the graph. Their errors were not measured.");
    if (activations_.measured > 0) {
      judgements_key();
      if (data_.activations.size() > 1) {
        overview();
      }
    }
    out_ +=
        "<div class=\"panel table\"><table class=\"layers\"><thead><tr><th class=\"n\">#</th>"
        "<th>Tensor</th><th class=\"n\">SNR, dB</th><th class=\"bars\"></th><th "
        "class=\"n\">Cosine</th>"
        "<th class=\"n\">Max error</th><th class=\"n\">Scale</th><th class=\"n\">Zero point</th>"
        "<th class=\"n\">Clipped</th></tr></thead><tbody>\n";
    for (std::size_t i = 0; i < data_.activations.size(); ++i) {
      layer_row(i);
    }
    out_ += "</tbody></table></div></section>\n";
  }

  /// Adds the key of the judgements that occur.
  void judgements_key() {
    const key_entries all{{"exact", "no difference"},
                          {"fine", "20 dB and more"},
                          {"fair", "below 20 dB"},
                          {"poor", "below 10 dB"}};
    key_entries found;
    std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const auto& entry) {
      return std::any_of(
          data_.activations.begin(), data_.activations.end(), [&](const report_activation& a) {
            return a.difference.snr_db && judgement(*a.difference.snr_db) == entry.first;
          });
    });
    key(found);
  }

  void layer_row(std::size_t i) {
    const report_activation& a = data_.activations[i];
    const std::string id = anchor("l", i);
    append(out_, {"<tr id=\"",
                  id,
                  "\"><td class=\"n rank\">",
                  std::to_string(i + 1),
                  "</td><td><a href=\"#",
                  anchor("a", i),
                  "\">",
                  name(a.tensor),
                  "</a>",
                  tag(i),
                  operation(a.op),
                  "</td><td class=\"n\">",
                  decibels(a.difference.snr_db),
                  "</td><td class=\"bars\">",
                  snr_bar(a.difference.snr_db, activations_),
                  "</td><td class=\"n\">",
                  cosine(a.difference.cosine),
                  "</td><td class=\"n\">",
                  four_digits(a.difference.max_error),
                  "</td><td class=\"n\">",
                  significant(a.scale, 5),
                  "</td><td class=\"n\">",
                  std::to_string(a.zero_point),
                  "</td><td class=\"n\">",
                  percent(a.clipped_fraction),
                  "</td></tr>\n"});
  }

  [[nodiscard]] std::string tag(std::size_t i) const {
    const std::string_view rank = activations_.rank(i);
    return rank.empty() ? "" : " <span class=\"tag low\">" + std::string(rank) + "</span>";
  }

  /// Draws all layers in one picture, with a column for each.
  void overview() {
    constexpr frame area{30.0, 1000.0, 8.0, 132.0};
    constexpr double widest = 36.0;  // the limit of a column's width
    const double upper = (std::max)(10.0, 10.0 * std::ceil(activations_.largest / 10.0));
    const double lower = 10.0 * std::floor(activations_.smallest / 10.0);
    const auto y_of = [&](double snr) {
      const double x = std::isfinite(snr) ? snr : snr > 0.0 ? upper : lower;
      return area.bottom - (x - lower) / (upper - lower) * (area.bottom - area.top);
    };
    out_ +=
        "<div class=\"panel overview\"><svg viewBox=\"0 0 1000 140\" "
        "role=\"group\"><title>SNR of each layer in dB, in the order of the graph</title>";
    const double step = 10.0 * std::ceil((upper - lower) / 50.0);
    for (int i = 0; lower + i * step <= upper; ++i) {
      const double value = lower + i * step;
      out_ += line("tick", area.left, y_of(value), area.right, y_of(value));
      out_ += label(area.left - 6.0, y_of(value) + 3.5, "end", decimal(value, 0));
    }
    const double pitch = (area.right - area.left) / static_cast<double>(data_.activations.size());
    const double gap = pitch > 6.0 ? 2.0 : pitch > 2.0 ? 0.5 : 0.0;
    const double width = (std::min)(pitch - gap, widest);
    for (std::size_t i = 0; i < data_.activations.size(); ++i) {
      const report_activation& a = data_.activations[i];
      if (!a.difference.snr_db) {
        continue;
      }
      const double snr = *a.difference.snr_db;
      // A column without height is drawn as a thin line, to show that there is one, and a bad one.
      const double y = std::isnan(snr) ? y_of(0.0) : y_of(snr);
      const double from = (std::min)(y, y_of(0.0));
      const double height = (std::max)(std::fabs(y - y_of(0.0)), 1.0);
      append(out_, {"<a href=\"#", anchor("l", i), "\" tabindex=\"-1\"><title>", escape(a.tensor),
                    ": ", decibels(snr), " dB</title>",
                    rectangle(judgement(snr),
                              area.left + pitch * (static_cast<double>(i) + 0.5) - width / 2, from,
                              width, height),
                    "</a>"});
    }
    out_ += line("axis", area.left, y_of(0.0), area.right, y_of(0.0));
    out_ += "</svg></div>\n";
  }

  void outputs() {
    if (data_.outputs.empty()) {
      section("outputs", "Outputs", "No output was compared.");
      out_ += "</section>\n";
      return;
    }
    section("outputs", "Outputs", "What the model returns, against the original model.");
    out_ +=
        "<div class=\"panel table\"><table><thead><tr><th>Output</th><th class=\"n\">SNR, dB</th>"
        "<th class=\"bars\"></th><th class=\"n\">Cosine</th><th class=\"n\">Max error</th></tr>"
        "</thead><tbody>\n";
    for (const report_output& o : data_.outputs) {
      append(out_,
             {"<tr><td>", name(o.name), "</td><td class=\"n\">", decibels(o.difference.snr_db),
              "</td><td class=\"bars\">", snr_bar(o.difference.snr_db, outputs_),
              "</td><td class=\"n\">", cosine(o.difference.cosine), "</td><td class=\"n\">",
              four_digits(o.difference.max_error), "</td></tr>\n"});
    }
    out_ += "</tbody></table></div></section>\n";
  }

  void steps() {
    if (data_.steps.empty()) {
      return;
    }
    section("steps", "Steps of the pipeline",
            "What was tried, in this order, and what it did to the error; smaller is better.");
    out_ +=
        "<div class=\"panel table\"><table><thead><tr><th>Step</th><th>Measured</th>"
        "<th class=\"n\">Before</th><th class=\"n\">After</th><th class=\"n\">Change</th>"
        "<th>Outcome</th></tr></thead><tbody>\n";
    for (const report_step& s : data_.steps) {
      append(out_, {"<tr><td><bdi>", escape(s.name), "</bdi>"});
      if (!s.detail.empty()) {
        append(out_, {"<br/><bdi class=\"op\">", escape(s.detail), "</bdi>"});
      }
      append(out_, {"</td><td><bdi>", s.measure.empty() ? std::string(dash) : escape(s.measure),
                    "</bdi></td><td class=\"n\">", four_digits(s.error_before),
                    "</td><td class=\"n\">", four_digits(s.error_after), "</td><td class=\"n\">",
                    change(s), "</td><td>", outcome(s.outcome), "</td></tr>\n"});
    }
    out_ += "</tbody></table></div></section>\n";
  }

  static std::string change(const report_step& s) {
    if (!s.error_before || !s.error_after) {
      return std::string(dash);
    }
    const double relative = 100.0 * (*s.error_after - *s.error_before) / std::fabs(*s.error_before);
    if (!std::isfinite(relative)) {
      return std::string(dash);
    }
    const std::string text = with_sign(relative, 1) + " %";
    const std::string_view kind = text[0] == '-' ? "better" : text[0] == '+' ? "worse" : "";
    return kind.empty() ? text : "<span class=\"" + std::string(kind) + "\">" + text + "</span>";
  }
  static std::string_view outcome(step_outcome o) {
    return o == step_outcome::kept      ? "<span class=\"tag\">\xE2\x9C\x93 kept</span>"
           : o == step_outcome::dropped ? "<span class=\"tag low\">\xE2\x9C\x95 dropped</span>"
                                        : "<span class=\"none\">\xE2\x80\x93 skipped</span>";
  }

  void options() {
    if (data_.options.empty()) {
      return;
    }
    section("options", "Options", "What this quantization was asked for.");
    out_ += "<div class=\"panel table\"><table class=\"options\"><tbody>\n";
    for (const auto& [option, value] : data_.options) {
      append(out_, {"<tr><td>", name(option), "</td><td>", name(value), "</td></tr>\n"});
    }
    out_ += "</tbody></table></div></section>\n";
  }

  // -------------------------------------------------------------------------------------- plots

  void key(const key_entries& entries) {
    out_ += "<ul class=\"key\">";
    for (const auto& [kind, text] : entries) {
      append(out_, {"<li>"
                    "<svg viewBox=\"0 0 22 10\" aria-hidden=\"true\">",
                    kind == "clip"      ? line(kind, 11.0, 0.0, 11.0, 10.0)
                    : kind == "zero"    ? line(kind, 11.0, 0.0, 11.0, 10.0)
                    : kind == "outline" ? "<path class=\"outline\" d=\"M0 9H6V2H16V9H22\"/>"
                                        : rectangle(kind, 0.0, 0.0, 22.0, 10.0),
                    "</svg>", text, "</li>"});
    }
    out_ += "</ul>\n";
  }

  void fact(std::string_view title, std::string_view value) {
    append(out_, {"<dt>", title, "</dt><dd>", value, "</dd>"});
  }
  /// The texts that are not empty, joined by commas.
  static std::string joined(std::initializer_list<std::string> parts) {
    std::string out;
    for (const std::string& part : parts) {
      if (!part.empty()) {
        out.append(out.empty() ? "" : ", ").append(escape(part));
      }
    }
    return out.empty() ? std::string(dash) : "<bdi>" + out + "</bdi>";
  }

  void figure_head(const std::string& id, std::string_view tensor, std::string_view op,
                   std::string_view marks, const std::optional<double>& snr) {
    append(out_, {"<figure id=\"", id, "\"><figcaption><div><h3>", name(tensor), marks, "</h3>",
                  operation(op), "</div><span class=\"score\">",
                  snr ? decibels_with_unit(snr) : std::string(), "</span></figcaption>\n"});
  }

  void activation_plots() {
    if (data_.activations.empty()) {
      return;
    }
    section(
        "activations", "Activations",
        "The values that calibration saw, counts on a logarithmic scale. What lies beyond the clip "
        "points becomes the smallest or the largest integer.");
    key({{"area", "values seen"}, {"clip", "clip points"}, {"cut", "clipped"}, {"zero", "zero"}});
    out_ += "<div class=\"plots\">\n";
    for (std::size_t i = 0; i < data_.activations.size(); ++i) {
      const report_activation& a = data_.activations[i];
      figure_head(anchor("a", i), a.tensor, a.op, tag(i), a.difference.snr_db);
      histogram_drawing drawing;
      drawing.add("area", a.histogram);
      drawing.clip(a.clip_lower, a.clip_upper);
      out_ += drawing.svg("Values of " + escape(a.tensor) + ", " + interval(a.lower, a.upper) +
                          ", clipped to " + interval(a.clip_lower, a.clip_upper));
      out_ += "<dl class=\"facts\">";
      fact("Values seen", interval(a.lower, a.upper));
      fact("Clip points", interval(a.clip_lower, a.clip_upper));
      fact("Clipped", percent(a.clipped_fraction));
      fact("Scale, zero point", significant(a.scale, 6) + ", " + std::to_string(a.zero_point));
      fact("Grid, method", joined({a.grid, a.method}));
      out_ += "</dl></figure>\n";
    }
    out_ += "</div></section>\n";
  }

  void weight_plots() {
    if (data_.weights.empty()) {
      section("weights", "Weights", "No weights were quantized.");
      out_ += "</section>\n";
      return;
    }
    section(
        "weights", "Weights",
        "Values of each weight tensor before quantization and of its quantized form, counts on a "
        "logarithmic scale.");
    key({{"area", "before"}, {"outline", "quantized"}, {"zero", "zero"}});
    out_ += "<div class=\"plots\">\n";
    for (std::size_t i = 0; i < data_.weights.size(); ++i) {
      const report_weight& w = data_.weights[i];
      figure_head(anchor("w", i), w.tensor, w.op, "", w.snr_db);
      histogram_drawing drawing;
      drawing.add("area", w.before);
      drawing.add("outline", w.after);
      out_ += drawing.svg("Weights " + escape(w.tensor) + " before and after quantization");
      out_ += "<dl class=\"facts\">";
      fact("Shape", shape_text(w.shape));
      fact("Grid", joined({w.grid, w.granularity, w.method}));
      if (w.scales > 0) {
        fact(w.scales == 1 ? "Scale" : grouped(w.scales) + " scales",
             w.scales == 1 ? significant(w.smallest_scale, 6)
                           : interval(w.smallest_scale, w.largest_scale));
      }
      fact("Mean squared error", four_digits(w.mse));
      out_ += "</dl></figure>\n";
    }
    out_ += "</div></section>\n";
  }

  const report_data& data_;
  snr_summary activations_;
  snr_summary outputs_;
  std::string cards_;
  std::string out_;
};

}  // namespace

std::string html_report(const report_data& data) { return page(data).make(); }

}  // namespace detent_cli
