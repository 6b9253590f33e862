// SPDX-License-Identifier: BSD-3-Clause
// The report of the command line tool: whatever the data are, a well-formed page that shows them.
#include "../../examples/detent/report.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <locale>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/statistics/histogram.hpp>

#include "../../examples/detent/html.hpp"
#include "check_graph_error.hpp"
#include "random.hpp"

namespace {

namespace html = detent_cli::html;
using detent_cli::html_report;
using detent_cli::make_plot_histogram;
using detent_cli::plot_histogram;
using detent_cli::report_activation;
using detent_cli::report_data;
using detent_cli::report_weight;
using detent_cli::step_outcome;
using test::check_graph_error;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// ---------------------------------------------------------------- a small reader of well-formed
// pages

struct element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // of it and of what is in it, entities resolved
  std::size_t depth = 0;
  [[nodiscard]] std::string attribute(const std::string& key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? "" : found->second;
  }
};

/// All elements in the order of their beginnings. `problem` is empty if the page is well-formed:
/// tags are closed in order, attributes stand in quotes and are given once, and only the five
/// entities that XML knows are used.
struct document {
  std::vector<element> elements;
  std::string text;
  std::string problem;

  explicit document(std::string_view page) : page_(page) {
    constexpr std::string_view doctype = "<!DOCTYPE html>";
    if (page_.rfind(doctype, 0) != 0) {
      problem = "no doctype";
      return;
    }
    at_ = doctype.size();
    while (at_ < page_.size() && problem.empty()) {
      page_[at_] == '<' ? read_tag() : read_text();
    }
    if (problem.empty() && !open_.empty()) {
      problem = elements[open_.back()].name + " is not closed";
    }
  }

  [[nodiscard]] std::vector<element> all(std::string_view name, std::string_view kind = "") const {
    std::vector<element> found;
    std::copy_if(elements.begin(), elements.end(), std::back_inserter(found),
                 [&](const element& e) {
                   return e.name == name && (kind.empty() || e.attribute("class") == kind);
                 });
    return found;
  }
  /// The first element of that id, and those in it.
  [[nodiscard]] std::vector<element> inside(const std::string& id) const {
    auto first = std::find_if(elements.begin(), elements.end(),
                              [&](const element& e) { return e.attribute("id") == id; });
    auto last = first;
    while (last != elements.end() && (last == first || last->depth > first->depth)) {
      ++last;
    }
    return {first, last};
  }

 private:
  static bool is_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == ':';
  }
  std::string read_name() {
    const std::size_t begin = at_;
    while (at_ < page_.size() && is_name(page_[at_])) {
      ++at_;
    }
    return std::string(page_.substr(begin, at_ - begin));
  }
  void skip_space() {
    while (at_ < page_.size() && (page_[at_] == ' ' || page_[at_] == '\n')) {
      ++at_;
    }
  }
  char next() { return at_ < page_.size() ? page_[at_] : '\0'; }
  void fail(const std::string& what) {
    problem = what + " near: " + std::string(page_.substr(at_ < 40 ? 0 : at_ - 40, 80));
  }

  std::string resolve(std::string_view raw) {
    std::string out;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '&') {
        out += raw[i];
        continue;
      }
      constexpr std::array<std::pair<std::string_view, char>, 5> entities{
          {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}}};
      const auto known = std::find_if(entities.begin(), entities.end(), [&](const auto& e) {
        return raw.substr(i, e.first.size()) == e.first;
      });
      if (known == entities.end()) {
        fail("an unknown entity");
        return out;
      }
      out += known->second;
      i += known->first.size() - 1;
    }
    return out;
  }

  void read_text() {
    const std::size_t end = (std::min)(page_.find('<', at_), page_.size());
    const std::string found = resolve(page_.substr(at_, end - at_));
    text += found;
    for (const std::size_t i : open_) {
      elements[i].text += found;
    }
    at_ = end;
  }

  void read_tag() {
    ++at_;
    if (next() == '/') {
      ++at_;
      const std::string name = read_name();
      if (open_.empty() || elements[open_.back()].name != name || next() != '>') {
        fail("</" + name + "> closes nothing");
        return;
      }
      open_.pop_back();
      ++at_;
      return;
    }
    element e;
    e.name = read_name();
    e.depth = open_.size();
    if (e.name.empty()) {
      fail("a < that begins no tag");
      return;
    }
    skip_space();
    while (is_name(next())) {
      const std::string key = read_name();
      if (page_.substr(at_, 2) != "=\"") {
        fail("an attribute without quotes");
        return;
      }
      at_ += 2;
      const std::size_t end = page_.find('"', at_);
      if (end == std::string_view::npos || page_.substr(at_, end - at_).find('<') < end - at_) {
        fail("an attribute that does not end or holds <");
        return;
      }
      if (!e.attributes.emplace(key, resolve(page_.substr(at_, end - at_))).second) {
        fail("attribute " + key + " twice");
        return;
      }
      at_ = end + 1;
      skip_space();
    }
    const bool is_empty = next() == '/';
    at_ += is_empty ? 1U : 0U;
    if (next() != '>') {
      fail("a tag that does not end");
      return;
    }
    ++at_;
    if (!is_empty) {
      open_.push_back(elements.size());
    }
    elements.push_back(std::move(e));
  }

  std::string_view page_;
  std::size_t at_ = 0;
  std::vector<std::size_t> open_;
};

// ------------------------------------------------------------------------------------------
// helpers

/// Reads the page and checks what holds for all: it is well-formed, ids are given once, links lead
/// to them, nothing comes from elsewhere, and drawings have only finite numbers.
document read(const std::string& page) {
  document d(page);
  INFO("problem: ", d.problem);
  REQUIRE(d.problem.empty());
  std::map<std::string, int> ids;
  for (const element& e : d.elements) {
    ++ids[e.attribute("id")];
    for (const std::string_view forbidden : {"script", "iframe", "object", "link", "img", "base"}) {
      CHECK(e.name != forbidden);
    }
  }
  ids.erase("");
  std::size_t wrong = 0;
  for (const auto& [id, count] : ids) {
    wrong += count != 1 ? 1U : 0U;
  }
  for (const element& e : d.elements) {
    const std::string link = e.attribute("href");
    wrong += !link.empty() && (link[0] != '#' || ids.count(link.substr(1)) == 0) ? 1U : 0U;
    for (const auto& [key, value] : e.attributes) {
      const bool known = key == "id" || key == "href" || key == "class" || key == "charset" ||
                         key == "content" || key == "http-equiv" || key == "name" ||
                         key == "lang" || key == "role" || key == "viewBox" ||
                         key == "preserveAspectRatio" || key == "tabindex" ||
                         key == "text-anchor" || key.rfind("aria-", 0) == 0;
      if (known) {
        continue;
      }
      // A coordinate, a length or a path: numbers, and letters between them.
      std::string_view rest = value;
      bool numbers = !rest.empty();
      while (numbers && !rest.empty()) {
        if (key == "d" && std::string_view("MHVZ ").find(rest[0]) != std::string_view::npos) {
          rest.remove_prefix(1);
          continue;
        }
        double number = not_a_number;
        const auto r = std::from_chars(rest.data(), rest.data() + rest.size(), number);
        numbers = r.ec == std::errc() && std::isfinite(number);
        rest.remove_prefix(static_cast<std::size_t>(r.ptr - rest.data()));
        numbers = numbers && (key == "d" || rest.empty());
      }
      if (!numbers) {
        const std::string attribute = key + "=" + value;
        CHECK_MESSAGE(numbers, attribute);
      }
    }
  }
  CHECK(wrong == 0);
  return d;
}

double number_of(const element& e, const std::string& key) {
  const std::string text = e.attribute(key);
  double value = not_a_number;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  CHECK(r.ptr == text.data() + text.size());
  return value;
}

/// The texts of the cells of all rows of tables inside an element.
std::vector<std::vector<std::string>> rows(const std::vector<element>& inside) {
  std::vector<std::vector<std::string>> all;
  for (const element& e : inside) {
    if (e.name == "tr") {
      all.emplace_back();
    } else if (e.name == "td") {
      all.back().push_back(e.text);
    }
  }
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& row) { return row.empty(); }),
            all.end());
  return all;
}

std::vector<element> of_kind(const std::vector<element>& all, std::string_view name,
                             std::string_view kind) {
  std::vector<element> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const element& e) { return e.name == name && e.attribute("class") == kind; });
  return found;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Begin, end and height (y) of each horizontal stretch of a path.
struct stretch {
  double begin, end, y;
};
std::vector<stretch> stretches(const std::string& path) {
  std::vector<stretch> all;
  double x = 0.0;
  double y = 0.0;
  const char* at = path.data();
  const char* end = at + path.size();
  const auto number = [&] {
    double value = not_a_number;
    at = std::from_chars(at, end, value).ptr;
    return value;
  };
  while (at < end) {
    const char command = *at++;
    if (command == 'M') {
      x = number();
      ++at;
      y = number();
    } else if (command == 'V') {
      y = number();
    } else {
      REQUIRE(command == 'H');
      const double next = number();
      all.push_back({x, next, y});
      x = next;
    }
  }
  return all;
}

report_activation activation(const std::string& tensor, double snr) {
  report_activation a;
  a.tensor = tensor;
  a.op = "Conv node 'conv'";
  a.scale = 0.5;
  a.zero_point = 128;
  a.grid = "uint8";
  a.method = "minmax";
  a.lower = -64.0;
  a.upper = 63.5;
  a.clip_lower = -64.0;
  a.clip_upper = 63.5;
  a.clipped_fraction = 0.25;
  a.difference = {snr, 0.875, 0.0625};
  a.histogram = {-64.0, 64.0, {1.0, 10.0, 100.0, 0.0}};
  return a;
}

/// Every part of a page, in plain values.
report_data example() {
  report_data d;
  d.model = "float.onnx";
  d.output = "int8.onnx";
  d.bytes_before = 400000;
  d.bytes_after = 102400;
  d.calibration_samples = 1200;
  d.seconds = 2.5;
  d.accuracy = detent_cli::report_accuracy{90.5, 90.25, 99.0, 98.5, 500};
  d.agreement = 98.75;
  d.activations = {activation("first", 40.0), activation("second", 12.0), activation("third", 5.0)};
  report_weight w;
  w.tensor = "kernel";
  w.op = "Conv node 'conv'";
  w.shape = {64, 3, 3, 3};
  w.grid = "int8";
  w.granularity = "per channel, axis 0";
  w.method = "gptq";
  w.scales = 64;
  w.smallest_scale = 0.001;
  w.largest_scale = 0.002;
  w.mse = 0.0001220703125;
  w.snr_db = 41.5;
  w.before = {-1.0, 1.0, {1.0, 8.0, 3.0}};
  w.after = {-1.0, 1.0, {2.0, 7.0, 3.0}};
  d.weights = {w};
  d.outputs = {{"scores", {33.25, 0.999, 0.125}}, {"boxes", {21.5, 0.99, 0.5}}};
  d.steps = {{"Equalization", "7 pairs", "MSE of the outputs", 0.5, 0.25, step_outcome::kept},
             {"AdaRound", "", "MSE of the outputs", 0.25, 0.5, step_outcome::dropped},
             {"Folding", "", "", {}, {}, step_outcome::skipped}};
  d.options = {{"--method", "mse"}};
  d.notes = {"Softmax stays in float."};
  return d;
}

// Each text of a page in turn.
std::vector<std::string*> texts(report_data& d) {
  std::vector<std::string*> all{&d.model, &d.output};
  for (auto& a : d.activations) {
    all.insert(all.end(), {&a.tensor, &a.op, &a.grid, &a.method});
  }
  for (auto& w : d.weights) {
    all.insert(all.end(), {&w.tensor, &w.op, &w.grid, &w.granularity, &w.method});
  }
  for (auto& o : d.outputs) {
    all.push_back(&o.name);
  }
  for (auto& s : d.steps) {
    all.insert(all.end(), {&s.name, &s.detail, &s.measure});
  }
  for (auto& [option, value] : d.options) {
    all.insert(all.end(), {&option, &value});
  }
  for (auto& note : d.notes) {
    all.push_back(&note);
  }
  return all;
}

/// f(number) for each number of a page that is not an integer.
template <class F>
void for_each_number(report_data& d, const F& f) {
  const auto each = [&](auto&... numbers) { (f(numbers), ...); };
  each(d.seconds, d.agreement);
  if (d.accuracy) {
    each(d.accuracy->top1_before, d.accuracy->top1_after, d.accuracy->top5_before,
         d.accuracy->top5_after);
  }
  const auto histogram = [&](plot_histogram& h) {
    each(h.lower, h.upper);
    for (double& count : h.counts) {
      f(count);
    }
  };
  const auto difference = [&](detent_cli::report_difference& e) {
    each(e.snr_db, e.cosine, e.max_error);
  };
  for (auto& a : d.activations) {
    each(a.scale, a.lower, a.upper, a.clip_lower, a.clip_upper, a.clipped_fraction);
    difference(a.difference);
    histogram(a.histogram);
  }
  for (auto& w : d.weights) {
    each(w.smallest_scale, w.largest_scale, w.mse, w.snr_db);
    histogram(w.before);
    histogram(w.after);
  }
  for (auto& o : d.outputs) {
    difference(o.difference);
  }
  for (auto& s : d.steps) {
    each(s.error_before, s.error_after);
  }
}

/// Numbers as ',5' and '1.000': what a page must not take from the process.
struct other_punctuation : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

double sum(const plot_histogram& h) {
  double all = 0.0;
  for (const double count : h.counts) {
    all += count;
  }
  return all;
}

}  // namespace

// --------------------------------------------------------------------------------- text and
// numbers

TEST_CASE("escape: markup, quotes, control characters and bytes that are no text") {
  CHECK(html::escape("plain text, caf\xC3\xA9 \xF0\x9F\x98\x80") ==
        "plain text, caf\xC3\xA9 \xF0\x9F\x98\x80");
  CHECK(html::escape("<a href=\"x\">'&'</a>") ==
        "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  CHECK(html::escape(std::string_view("\0\n\x1b\x7f", 4)) ==
        "\xE2\x90\x80\xE2\x90\x8A\xE2\x90\x9B\xE2\x90\xA1");
  const std::string replaced = "\xEF\xBF\xBD";
  CHECK(html::escape("\xC3") == replaced);                                // ends too early
  CHECK(html::escape("\xC0\xAF") == replaced + replaced);                 // overlong '/'
  CHECK(html::escape("\xE0\x80\x80") == replaced + replaced + replaced);  // overlong
  CHECK(html::escape("\xED\xA0\x80") == replaced + replaced + replaced);  // a surrogate
  CHECK(html::escape("\xF4\x90\x80\x80") == replaced + replaced + replaced + replaced);
  CHECK(html::escape("\xFF<") == replaced + "&lt;");
  CHECK(html::escape("\xC2\x85") == replaced);      // a control character of Latin-1
  CHECK(html::escape("\xEF\xBF\xBF") == replaced);  // U+FFFF
  CHECK(html::escape("\xE2\x82<") == replaced + replaced + "&lt;");
}

TEST_CASE("escape: any bytes stay text, in content and in attributes") {
  test::random_source r(11);
  INFO("seed ", r.seed());
  constexpr std::string_view pieces[] = {"<",    ">",        "\"",           "'",    "&",   "&amp;",
                                         "</p>", "<script>", "]]>",          "<!--", "-->", "\n",
                                         "\xC3", "\xA9",     "\xE2\x82\xAC", "x"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const std::size_t n = r.size(0, 12);
    for (std::size_t k = 0; k < n; ++k) {
      if (r.chance(60)) {
        text += pieces[r.size(0, std::size(pieces) - 1)];
      } else {
        text += static_cast<char>(r.integer(0, 255));
      }
    }
    const std::string safe = html::escape(text);
    const std::string page = "<!DOCTYPE html><p title=\"" + safe + "\">" + safe + "</p>";
    const document d(page);
    INFO("problem: ", d.problem);
    REQUIRE(d.problem.empty());
    REQUIRE(d.elements.size() == 1);
    CHECK(d.elements[0].text == d.elements[0].attribute("title"));
    CHECK(std::none_of(safe.begin(), safe.end(), [](char c) {
      return (c >= 0 && c < 0x20) || c == 0x7F || c == '<' || c == '"';
    }));
    // What came through is UTF-8.
    for (std::string_view rest = safe; !rest.empty();) {
      const html::character c = html::first_character(rest);
      REQUIRE(c.size > 0);
      rest.remove_prefix(c.size);
    }
  }
}

TEST_CASE("numbers of a page") {
  CHECK(html::decimal(33.25, 1) == "33.2");  // to even
  CHECK(html::decimal(-0.04, 1) == "0.0");
  CHECK(html::decimal(-0.06, 1) == "-0.1");
  CHECK(html::decimal(not_a_number, 1) == "NaN");
  CHECK(html::decimal(infinity, 1) == "\xE2\x88\x9E");
  CHECK(html::decimal(-infinity, 1) == "-\xE2\x88\x9E");
  CHECK(html::decimal(1e300, 2) == "1e+300");
  CHECK(html::significant(0.000123456, 3) == "0.000123");
  CHECK(html::significant(-0.0, 3) == "0");
  CHECK(html::significant(std::numeric_limits<double>::denorm_min(), 17) ==
        "4.9406564584124654e-324");
  CHECK(html::coordinate(12.5) == "12.5");
  CHECK(html::coordinate(12.0) == "12");
  CHECK(html::coordinate(100.0) == "100");
  CHECK(html::coordinate(-0.001) == "0");
  CHECK(html::coordinate(not_a_number) == "0");
  CHECK(html::coordinate(infinity) == "0");
  CHECK(html::coordinate(-1e30) == "-100000");
  CHECK(html::grouped(0) == "0");
  CHECK(html::grouped(999) == "999");
  CHECK(html::grouped(1234567) ==
        "1\xE2\x80\xAF"
        "234\xE2\x80\xAF"
        "567");
  CHECK(html::bytes(0) == "0 B");
  CHECK(html::bytes(1023) == "1023 B");
  CHECK(html::bytes(1024) == "1.00 KiB");
  CHECK(html::bytes(10240) == "10.0 KiB");
  CHECK(html::bytes(1048575) == "1.00 MiB");
  CHECK(html::bytes(std::numeric_limits<std::uint64_t>::max()) == "16.0 EiB");
}

// ---------------------------------------------------------------------------------------------
// bars

TEST_CASE("plot bars: of values, counted one by one") {
  const std::vector<float> values{-1.0F, -0.5F, 0.0F, 0.49F, 0.5F, 1.0F, NAN, HUGE_VALF};
  const plot_histogram h = make_plot_histogram(values, detent_cli::equal_bars(-1.0, 1.0, 4));
  CHECK(h.lower == -1.0);
  CHECK(h.upper == 1.0);
  CHECK(h.counts == std::vector<double>{1, 1, 2, 2});
  // What lies outside counts at the ends.
  CHECK(make_plot_histogram(values, detent_cli::equal_bars(-0.25, 0.25, 2)).counts ==
        std::vector<double>{2, 4});

  const plot_histogram same = make_plot_histogram(std::vector<float>(5, 3.0F));
  CHECK(same.lower == 3.0);
  CHECK(same.upper == 3.0);
  CHECK(same.counts == std::vector<double>{5});
  CHECK(make_plot_histogram(std::vector<float>{NAN, -HUGE_VALF}).counts.empty());
  CHECK(make_plot_histogram(std::vector<float>{}).counts.empty());
  const float largest = std::numeric_limits<float>::max();
  const plot_histogram wide = make_plot_histogram(std::vector<float>{-largest, 0.0F, largest});
  CHECK(wide.counts.front() == 1);
  CHECK(wide.counts.back() == 1);
  CHECK(sum(wide) == 3);

  CHECK(detent_cli::bars_for(0) == 24);
  CHECK(detent_cli::bars_for(1000) == 40);
  CHECK(detent_cli::bars_for(1U << 30) == detent_cli::default_plot_bars);
}

TEST_CASE("plot bars: errors") {
  using detent::error_kind;
  check_graph_error(error_kind::invalid_argument, {"plot", "2 .. 1"},
                    [] { static_cast<void>(detent_cli::equal_bars(2.0, 1.0)); });
  check_graph_error(error_kind::invalid_argument, {"plot", "nan"},
                    [] { static_cast<void>(detent_cli::equal_bars(not_a_number, 1.0)); });
  check_graph_error(error_kind::invalid_argument, {"plot", "inf"},
                    [] { static_cast<void>(detent_cli::level_bars(0.0, infinity, 1.0)); });
  check_graph_error(error_kind::invalid_argument, {"no bars"},
                    [] { static_cast<void>(detent_cli::equal_bars(0.0, 1.0, 0)); });
  const detent::count_histogram nothing;
  check_graph_error(error_kind::invalid_argument, {"nothing was observed"},
                    [&] { static_cast<void>(make_plot_histogram(nothing)); });
  detent::histogram bad;
  bad.observe(std::vector<float>{1.0F, NAN});
  check_graph_error(error_kind::invalid_argument, {"NaN"},
                    [&] { static_cast<void>(make_plot_histogram(bad)); });
}

TEST_CASE("level bars: quantized values make no comb that is not there") {
  test::random_source r(12);
  INFO("seed ", r.seed());
  for (int i = 0; i < 300; ++i) {
    const float step = std::ldexp(r.real(1.0F, 2.0F), r.integer(-40, 40));
    const int first = r.integer(-300, 200);
    const int last = first + r.integer(0, 600);
    const std::size_t most = r.size(1, 128);
    std::vector<float> levels;
    for (int k = first; k <= last; ++k) {
      levels.push_back(static_cast<float>(k) * step);
    }
    INFO("step ", step, " levels ", first, " .. ", last, " most ", most);
    const detent_cli::plot_bars bars =
        detent_cli::level_bars(static_cast<double>(levels.front()),
                               static_cast<double>(levels.back()), static_cast<double>(step), most);
    const std::size_t n = levels.size();
    if (n > 64 * most) {
      CHECK(bars.lower == static_cast<double>(levels.front()));
      CHECK(bars.upper == static_cast<double>(levels.back()));
      continue;
    }
    REQUIRE(bars.count <= most);
    const plot_histogram h = make_plot_histogram(levels, bars);
    CHECK(sum(h) == static_cast<double>(n));
    if (n > most) {
      // As many in each, but for the last.
      for (std::size_t k = 0; k + 1 < h.counts.size(); ++k) {
        CHECK(h.counts[k] == h.counts[0]);
      }
      CHECK(h.counts.back() > 0.0);
      CHECK(h.counts.back() <= h.counts[0]);
    } else {
      // One in the middle of every so many.
      REQUIRE(bars.count % n == 0);
      const std::size_t each = bars.count / n;
      CHECK(each % 2 == 1);
      for (std::size_t k = 0; k < h.counts.size(); ++k) {
        CHECK(h.counts[k] == (k % each == each / 2 ? 1.0 : 0.0));
      }
    }
  }
  const detent_cli::plot_bars plain = detent_cli::level_bars(-1.0, 1.0, 0.0, 10);
  CHECK(plain.count == 10);
  CHECK(plain.lower == -1.0);
  CHECK(detent_cli::level_bars(-1.0, 1.0, not_a_number, 10).upper == 1.0);
  CHECK(detent_cli::level_bars(-1.0, 1.0, 1e-300, 10).upper == 1.0);
}

TEST_CASE("weight plots: both on the same bars") {
  const std::vector<float> before{-0.9F, -0.1F, 0.1F, 0.4F, 1.1F};
  const std::vector<float> after{-1.0F, 0.0F, 0.0F, 0.5F, 1.0F};
  const auto [a, b] = detent_cli::make_weight_plots(before, after, 0.5);
  CHECK(a.lower == b.lower);
  CHECK(a.upper == b.upper);
  CHECK(a.lower == -1.25);
  CHECK(a.upper == 1.25);
  REQUIRE(a.counts.size() == 15);  // three for each of five levels: 24 is the most
  REQUIRE(b.counts.size() == 15);
  CHECK(b.counts == std::vector<double>{0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 1, 0});
  CHECK(sum(a) == 5);
  const auto [c, d] = detent_cli::make_weight_plots({}, {}, 0.5);
  CHECK(c.counts.empty());
  CHECK(d.counts.empty());
}

TEST_CASE("plot of an observer's histogram: counts stay, and stay where they are") {
  test::random_source r(13);
  INFO("seed ", r.seed());
  for (int i = 0; i < 60; ++i) {
    const float scale = std::ldexp(1.0F, r.integer(-30, 30));
    const float low = r.chance(30) ? 0.0F : r.real(-1.0F, 0.5F);
    std::vector<float> values = r.reals(r.size(1, 5000), low * scale, scale);
    for (float& x : values) {
      x = r.chance(20) ? 0.0F : r.chance(20) ? x * 0.001F : x;
    }
    INFO("case ", i, " of ", values.size());
    detent::count_histogram counts;
    detent::histogram sums;
    counts.observe(values);
    sums.observe(values);
    const std::size_t bars = r.size(1, 128);
    for (const plot_histogram& h :
         {make_plot_histogram(counts, bars), make_plot_histogram(sums, bars)}) {
      CHECK(h.lower == static_cast<double>(*std::min_element(values.begin(), values.end())));
      CHECK(h.upper == static_cast<double>(*std::max_element(values.begin(), values.end())));
      CHECK(sum(h) == doctest::Approx(static_cast<double>(values.size())).epsilon(1e-12));
      // Below each edge stand the values that are below it, but for those of the bin it cuts, which
      // are within 1/512 of it, or the bin of the smallest of all.
      double below = 0.0;
      for (std::size_t k = 0; k + 1 < h.counts.size(); ++k) {
        below += h.counts[k];
        const double edge = h.lower + (h.upper - h.lower) * static_cast<double>(k + 1) /
                                          static_cast<double>(h.counts.size());
        const double doubt = std::fabs(edge) / 256.0 + 1e-8 * static_cast<double>(scale);
        double least = 0.0;
        double most = 0.0;
        for (const float x : values) {
          least += static_cast<double>(x) < edge - doubt ? 1.0 : 0.0;
          most += static_cast<double>(x) <= edge + doubt ? 1.0 : 0.0;
        }
        CHECK(below >= least - 1e-6);
        CHECK(below <= most + 1e-6);
      }
    }
  }
}

TEST_CASE("plot of an observer's histogram: a bin that is wider than all bars is spread") {
  std::vector<float> values;
  for (int i = 0; i <= 1000; ++i) {
    values.push_back(100.0F + static_cast<float>(i) * 0.0001F);  // one bin: 100 .. 100.125
  }
  detent::count_histogram observer;
  observer.observe(values);
  REQUIRE(observer.bins().size() == 1);
  const plot_histogram h = make_plot_histogram(observer, 10);
  REQUIRE(h.counts.size() == 10);
  for (const double count : h.counts) {
    CHECK(count == doctest::Approx(100.1).epsilon(0.001));
  }
}

// ------------------------------------------------------------------------------------------- pages

TEST_CASE("report: of nothing") {
  const document d = read(html_report({}));
  CHECK(contains(d.text, "No activation was quantized."));
  CHECK(contains(d.text, "No weights were quantized."));
  CHECK(contains(d.text, "No output was compared."));
  CHECK(d.all("dl", "card").empty());
  CHECK(d.all("table").empty());
  CHECK(d.inside("steps").empty());
  CHECK(d.inside("options").empty());
}

TEST_CASE("report: each part is there") {
  const document d = read(html_report(example()));
  std::map<std::string, std::string> cards;
  const std::vector<element> dt = d.all("dt");
  for (const element& card : d.all("dl", "card")) {
    for (const element& title : dt) {
      if (card.text.rfind(title.text, 0) == 0) {
        cards[title.text] = card.text.substr(title.text.size());
      }
    }
  }
  CHECK(cards["File size"] == "100 KiB25.6 % of 391 KiB");
  CHECK(cards["Top-1 accuracy"] ==
        "90.25 %-0.25 from 90.50 %, 500 samples; top-5 98.50 from 99.00 %");
  CHECK(contains(cards["Agreement"], "98.75 %"));
  CHECK(cards["Output SNR"] == "21.5 dBlowest of 2: boxes");
  CHECK(cards["Mean activation SNR"] == "19.0 dBlowest 5.0, third");
  CHECK(cards["Calibration"] ==
        "1\xE2\x80\xAF"
        "200 sampleswhole run 2.5 s");

  const auto layers = rows(d.inside("layers"));
  REQUIRE(layers.size() == 3);
  CHECK(layers[0] == std::vector<std::string>{"1", "firstConv node 'conv'", "40.0", "", "0.875000",
                                              "0.0625", "0.5", "128", "25.000 %"});
  const auto outputs = rows(d.inside("outputs"));
  REQUIRE(outputs.size() == 2);
  CHECK(outputs[1] == std::vector<std::string>{"boxes", "21.5", "", "0.990000", "0.5"});
  const auto steps = rows(d.inside("steps"));
  REQUIRE(steps.size() == 3);
  CHECK(steps[0] == std::vector<std::string>{"Equalization7 pairs", "MSE of the outputs", "0.5",
                                             "0.25", "-50.0 %", "\xE2\x9C\x93 kept"});
  CHECK(steps[1][4] == "+100.0 %");
  CHECK(steps[1][5] == "\xE2\x9C\x95 dropped");
  CHECK(steps[2] == std::vector<std::string>{"Folding", "\xE2\x80\x93", "\xE2\x80\x93",
                                             "\xE2\x80\x93", "\xE2\x80\x93",
                                             "\xE2\x80\x93 skipped"});
  const auto options = rows(d.inside("options"));
  REQUIRE(options.size() == 1);
  CHECK(options[0] == std::vector<std::string>{"--method", "mse"});
  CHECK(contains(d.text, "Softmax stays in float."));

  const std::vector<element> weight = d.inside("w1");
  REQUIRE(!weight.empty());
  for (const char* fact :
       {"kernel", "41.5 dB",
        "64\xE2\x80\xAF\xC3\x97\xE2\x80\xAF"
        "3",
        "int8, per channel, axis 0, gptq", "64 scales", "0.001 \xE2\x80\xA6 0.002", "0.0001221"}) {
    INFO("fact ", fact);
    CHECK(contains(weight[0].text, fact));
  }
  CHECK(of_kind(weight, "path", "area").size() == 1);
  CHECK(of_kind(weight, "path", "outline").size() == 1);
}

TEST_CASE("report: clip points and zero stand where their values do") {
  report_data d;
  report_activation a = activation("tensor", 30.0);
  a.histogram = {-2.0, 6.0, {5.0, 1000.0, 30.0, 1.0}};
  a.clip_lower = -1.0;
  a.clip_upper = 4.0;
  d.activations = {a};
  const std::vector<element> figure = read(html_report(d)).inside("a1");
  const auto axis = of_kind(figure, "line", "axis");
  const auto clip = of_kind(figure, "line", "clip");
  const auto zero = of_kind(figure, "line", "zero");
  const auto cut = of_kind(figure, "rect", "cut");
  REQUIRE(axis.size() == 1);
  REQUIRE(clip.size() == 2);
  REQUIRE(zero.size() == 1);
  REQUIRE(cut.size() == 2);
  const double left = number_of(axis[0], "x1");
  const double right = number_of(axis[0], "x2");
  const auto x_of = [&](double value) { return left + (value + 2.0) / 8.0 * (right - left); };
  CHECK(number_of(clip[0], "x1") == doctest::Approx(x_of(-1.0)).epsilon(1e-4));
  CHECK(number_of(clip[1], "x1") == doctest::Approx(x_of(4.0)).epsilon(1e-4));
  CHECK(number_of(clip[1], "x2") == number_of(clip[1], "x1"));
  CHECK(number_of(zero[0], "x1") == doctest::Approx(x_of(0.0)).epsilon(1e-4));
  CHECK(number_of(cut[0], "x") == left);
  CHECK(number_of(cut[0], "width") == doctest::Approx(x_of(-1.0) - left).epsilon(1e-3));
  CHECK(number_of(cut[1], "x") == doctest::Approx(x_of(4.0)).epsilon(1e-4));
  CHECK(number_of(cut[1], "width") == doctest::Approx(right - x_of(4.0)).epsilon(1e-3));
  CHECK(clip[0].text == "clipped below -1");
  CHECK(clip[1].text == "clipped above 4");

  // Bars: as wide as an eighth of two, as high as log10(1 + count) says.
  const auto area = of_kind(figure, "path", "area");
  REQUIRE(area.size() == 1);
  const auto bars = stretches(area[0].attribute("d"));
  REQUIRE(bars.size() == 4);
  const double bottom = number_of(axis[0], "y1");
  const double top = bars[1].y;  // of the highest
  const double counts[] = {5.0, 1000.0, 30.0, 1.0};
  for (std::size_t i = 0; i < 4; ++i) {
    INFO("bar ", i);
    CHECK(bars[i].begin ==
          doctest::Approx(x_of(-2.0 + 2.0 * static_cast<double>(i))).epsilon(1e-4));
    CHECK(bars[i].end == doctest::Approx(x_of(2.0 * static_cast<double>(i))).epsilon(1e-4));
    CHECK((bottom - bars[i].y) / (bottom - top) ==
          doctest::Approx(std::log(1.0 + counts[i]) / std::log(1001.0)).epsilon(1e-3));
  }
}

TEST_CASE("report: the axis takes in clip points that lie outside of what was seen") {
  report_data d;
  report_activation a = activation("tensor", 30.0);
  a.histogram = {1.0, 2.0, {3.0, 4.0}};
  a.clip_lower = 0.0;
  a.clip_upper = 4.0;
  d.activations = {a};
  const std::vector<element> figure = read(html_report(d)).inside("a1");
  const auto axis = of_kind(figure, "line", "axis");
  const auto clip = of_kind(figure, "line", "clip");
  REQUIRE(axis.size() == 1);
  REQUIRE(clip.size() == 2);
  CHECK(number_of(clip[0], "x1") == number_of(axis[0], "x1"));
  CHECK(number_of(clip[1], "x1") == number_of(axis[0], "x2"));
  const auto bars = stretches(of_kind(figure, "path", "area").at(0).attribute("d"));
  const double width = number_of(axis[0], "x2") - number_of(axis[0], "x1");
  CHECK(bars.front().begin - number_of(axis[0], "x1") ==
        doctest::Approx(width / 4.0).epsilon(1e-3));
  CHECK(bars.back().end - number_of(axis[0], "x1") == doctest::Approx(width / 2.0).epsilon(1e-3));
  for (const element& cut : of_kind(figure, "rect", "cut")) {
    CHECK(number_of(cut, "width") == 0.0);
  }
}

TEST_CASE("report: a tensor of one value is seen") {
  report_data d;
  report_activation a = activation("tensor", 30.0);
  a.histogram = {0.0, 0.0, {7.0}};
  a.lower = a.upper = a.clip_lower = a.clip_upper = 0.0;
  d.activations = {a};
  const std::vector<element> figure = read(html_report(d)).inside("a1");
  const auto bars = stretches(of_kind(figure, "path", "area").at(0).attribute("d"));
  REQUIRE(bars.size() == 1);
  CHECK(bars[0].end - bars[0].begin >= 1.0);
}

TEST_CASE("report: bars are as long as SNR says, the lowest are marked") {
  report_data d;
  const double snr[] = {40.0, 30.0, infinity, 10.0, 20.0, 5.0, 35.0, 15.0, 25.0, 9.0};
  for (const double x : snr) {
    d.activations.push_back(activation("t" + std::to_string(d.activations.size()), x));
  }
  d.activations.push_back(activation("unmeasured", 0.0));
  d.activations.back().difference = {};
  const document page = read(html_report(d));
  const auto layers = rows(page.inside("layers"));
  REQUIRE(layers.size() == 11);
  for (std::size_t i = 0; i < 11; ++i) {
    const std::string& cell = layers[i][1];
    CHECK(contains(cell, "lowest") == (i == 5 || i == 9 || i == 3));
  }
  CHECK(contains(layers[5][1], "t5 lowest"));
  CHECK(contains(layers[9][1], "t9 2nd lowest"));
  CHECK(contains(layers[3][1], "t3 3rd lowest"));
  CHECK(layers[2][2] == "\xE2\x88\x9E");
  CHECK(layers[10][2] == "\xE2\x80\x93");
  const std::string_view kinds[] = {"fine", "fine", "exact", "fair", "fine",
                                    "poor", "fine", "fair",  "fine", "poor"};
  for (std::size_t i = 0; i < 11; ++i) {
    const auto row = page.inside("l" + std::to_string(i + 1));
    const auto track = of_kind(row, "rect", "track");
    REQUIRE(track.size() == 1);
    if (i == 10) {
      CHECK(std::count_if(row.begin(), row.end(),
                          [](const element& e) { return e.name == "rect"; }) == 1);
      continue;
    }
    const auto bar = of_kind(row, "rect", kinds[i]);
    REQUIRE(bar.size() == 1);
    CHECK(number_of(bar[0], "width") / number_of(track[0], "width") ==
          doctest::Approx((std::min)(snr[i], 40.0) / 40.0).epsilon(1e-3));
  }
}

TEST_CASE("report: names are shown, whatever they are") {
  const std::string hostile[] = {
      "</title></style></script><script>alert(1)</script>",
      "\"><img src=x onerror=alert(1)>",
      "' onload='alert(1)",
      "]]><!-- & &lt; &#x3c; -->",
      "two\nlines\tand \x1b[31mred",
      "caf\xC3\xA9 \xE2\x80\xAE"
      "right to left",
      std::string("nul\0inside", 10),
      "\xFF\xFE no text \xC3",
      "",
      std::string(5000, 'x'),
  };
  for (const std::string& text : hostile) {
    INFO("text ", html::escape(text.substr(0, 60)));
    report_data d = example();
    for (std::string* field : texts(d)) {
      *field = "plain";
    }
    // Places where a long name may break come from its separators.
    const auto count = [](const document& page) {
      return page.elements.size() - page.all("wbr").size();
    };
    const std::size_t elements = count(document(html_report(d)));
    for (std::string* field : texts(d)) {
      *field = text;
    }
    const document page = read(html_report(d));
    // No text makes an element; an empty one may leave some out.
    CHECK((text.empty() ? count(page) <= elements : count(page) == elements));
    const document alone("<!DOCTYPE html><p>" + html::escape(text) + "</p>");
    std::size_t shown = 0;
    for (const element& e : page.all("bdi")) {
      shown += e.text == alone.elements.at(0).text ? 1U : 0U;
    }
    CHECK(shown >= texts(d).size() / 2);
    CHECK(contains(page.all("title").at(0).text, alone.elements[0].text));
  }
}

TEST_CASE("report: numbers that are none are shown and break nothing") {
  report_data d = example();
  d.activations[0].scale = not_a_number;
  d.activations[0].difference = {not_a_number, -infinity, infinity};
  d.activations[0].clip_lower = -infinity;
  d.activations[0].clip_upper = not_a_number;
  d.activations[1].difference = {-infinity, {}, {}};
  d.activations[2].difference = {-7.5, {}, {}};
  d.activations[2].histogram = {not_a_number, infinity, {1.0}};
  const document page = read(html_report(d));
  const auto layers = rows(page.inside("layers"));
  CHECK(layers[0][2] == "NaN");
  CHECK(layers[0][4] == "-\xE2\x88\x9E");
  CHECK(layers[0][5] == "\xE2\x88\x9E");
  CHECK(layers[0][6] == "NaN");
  CHECK(contains(layers[0][1], "lowest"));  // nothing is worse than NaN
  CHECK(layers[1][2] == "-\xE2\x88\x9E");
  CHECK(layers[1][4] == "\xE2\x80\x93");
  CHECK(layers[2][2] == "-7.5");
  CHECK(contains(page.inside("a3")[0].text, "no histogram"));
  CHECK(of_kind(page.inside("a1"), "line", "clip").empty());
  CHECK(of_kind(page.inside("a1"), "path", "area").size() == 1);
}

TEST_CASE("report: the order of SNR, from NaN up") {
  report_data d;
  for (const double x : {5.0, -infinity, 7.0, not_a_number, -50.0, infinity, 30.0, 31.0, 32.0}) {
    d.activations.push_back(activation("t", x));
  }
  const auto layers = rows(read(html_report(d)).inside("layers"));
  REQUIRE(layers.size() == 9);
  CHECK(contains(layers[3][1], "t lowest"));
  CHECK(contains(layers[1][1], "t 2nd lowest"));
  CHECK(contains(layers[4][1], "t 3rd lowest"));
}

TEST_CASE("report: counts that are none have no height") {
  report_data d;
  report_activation a = activation("tensor", 30.0);
  a.histogram = {-3.0, 3.0, {not_a_number, 9.0, infinity, 9.0, -5.0, 9.0}};
  d.activations = {a};
  const std::vector<element> figure = read(html_report(d)).inside("a1");
  const double bottom = number_of(of_kind(figure, "line", "axis").at(0), "y1");
  const auto bars = stretches(of_kind(figure, "path", "area").at(0).attribute("d"));
  REQUIRE(bars.size() == 6);
  for (std::size_t i = 0; i < 6; i += 2) {
    CHECK(bars[i].y == bottom);
    CHECK(bars[i + 1].y < bottom - 50.0);
  }
}

TEST_CASE("report: any numbers make a page") {
  test::random_source r(14);
  INFO("seed ", r.seed());
  const double odd[] = {not_a_number, infinity, -infinity, 0.0,  -0.0,  1e308,
                        -1e308,       5e-324,   -1e-300,   1e15, 100.0, -1.0};
  for (int i = 0; i < 400; ++i) {
    report_data d = example();
    const int share = r.integer(1, 100);
    for_each_number(d, [&](auto& x) {
      if (r.chance(share)) {
        x = odd[r.size(0, std::size(odd) - 1)];
      }
      if constexpr (!std::is_same_v<std::remove_reference_t<decltype(x)>, double>) {
        if (r.chance(10)) {
          x.reset();
        }
      }
    });
    if (r.chance(20)) {
      d.bytes_before = r.bits();
      d.bytes_after = r.bits();
      d.weights[0].shape = {std::numeric_limits<std::int64_t>::min(), 0};
      d.activations[0].zero_point = std::numeric_limits<std::int64_t>::min();
    }
    INFO("case ", i);
    const document page = read(html_report(d));
    CHECK(rows(page.inside("layers")).size() == 3);
  }
}

TEST_CASE("report: a thousand layers") {
  report_data d;
  test::random_source r(15);
  INFO("seed ", r.seed());
  for (int i = 0; i < 1000; ++i) {
    report_activation a =
        activation("/model/layer_" + std::to_string(i) + "/out", 10.0 + r.integer(0, 400) / 10.0);
    const std::vector<float> values = r.reals(500, -1.0F, 1.0F);
    a.histogram = make_plot_histogram(values, detent_cli::equal_bars(-1.0, 1.0));
    d.activations.push_back(a);
    report_weight w;
    w.tensor = "weights_" + std::to_string(i);
    w.before = w.after = a.histogram;
    d.weights.push_back(w);
  }
  const std::string text = html_report(d);
  CHECK(text.size() < 12'000'000);
  const document page = read(text);
  const auto layers = rows(page.inside("layers"));
  REQUIRE(layers.size() == 1000);
  std::map<std::string, int> headings;
  for (const element& e : page.all("h3")) {
    ++headings[e.text.substr(0, e.text.find(' '))];
  }
  CHECK(headings.size() == 2000);
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::string& name = d.activations[i].tensor;
    CHECK(layers[i][1].rfind(name, 0) == 0);
    CHECK(headings[name] == 1);
    CHECK(headings[d.weights[i].tensor] == 1);
  }
}

TEST_CASE("report: the locale of the process changes nothing") {
  const report_data d = example();
  const std::string page = html_report(d);
  const std::locale before = std::locale::global(std::locale(std::locale(), new other_punctuation));
  const std::string other = html_report(d);
  std::locale::global(before);
  CHECK(other == page);
}
