// SPDX-License-Identifier: BSD-3-Clause
// Reads values of a YAML file and says where in the file something is wrong.
#ifndef DETENT_GRAPH_INC_YAML_VALUES_HPP
#define DETENT_GRAPH_INC_YAML_VALUES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::inc {

namespace detail {

/// The largest number of keys, scalars, lists and sections of a text. A document in memory takes
/// about a kilobyte for each.
inline constexpr std::ptrdiff_t most_yaml_values = 200000;

/// The largest number of characters of a text between which keys and values stand: commas, colons,
/// brackets that open, and ends of lines. A text of one flow sequence is divided into pieces of
/// some hundred bytes each before the first value of it is known.
inline constexpr std::ptrdiff_t most_yaml_separators = 2 * most_yaml_values;

/// Notes where the documents of a text begin that are not empty. Throws invalid_argument if the
/// text has more than most_yaml_values; `name` stands for it in the message.
class document_starts final : public YAML::EventHandler {
 public:
  explicit document_starts(std::string name) : name_(std::move(name)) {}

  std::vector<YAML::Mark> marks;  ///< In their order.

  void OnDocumentStart(const YAML::Mark& mark) override {
    start_ = mark;
    is_empty_ = true;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override { note(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {
    note(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/,
                       YAML::anchor_t /*anchor*/, YAML::EmitterStyle::value /*style*/) override {
    note(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {
    note(mark);
  }
  void OnMapEnd() override {}

 private:
  void count(const YAML::Mark& mark) {
    require(++values_ <= most_yaml_values, error_kind::invalid_argument, name_, ":", mark.line + 1,
            ": the file has more than ", most_yaml_values, " keys and values, the limit");
  }
  void note(const YAML::Mark& mark) {
    count(mark);
    if (is_empty_) {
      marks.push_back(start_);
    }
    is_empty_ = false;
  }

  std::string name_;
  YAML::Mark start_;
  bool is_empty_ = true;
  std::ptrdiff_t values_ = 0;
};

}  // namespace detail

/// What readers of configuration files have in common: typed values, and errors that say where in
/// the file something is wrong and which name may have been meant. Errors are invalid_argument and
/// begin with FILE:LINE.
class yaml_values {
 public:
  /// `name` stands for the file in messages.
  explicit yaml_values(std::string name) : name_(std::move(name)) {}

  /// A line for each value so far that has no effect.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// The document of a text; null if it has none. Throws invalid_argument if it has several, more
  /// than most_yaml_values or more than most_yaml_separators.
  ///
  /// YAML::LoadAll() never returns for some texts: it takes what no document can begin with for an
  /// empty document, again and again.
  [[nodiscard]] YAML::Node document(const std::string& text) const {
    const auto separators = std::count_if(text.begin(), text.end(), [](char c) {
      return std::string_view(",:[{\n\r").find(c) != std::string_view::npos;
    });
    require(separators <= detail::most_yaml_separators, error_kind::invalid_argument, name_,
            ": the file has ", separators, " commas, colons, brackets and lines, the limit is ",
            detail::most_yaml_separators);
    std::istringstream in(text);
    YAML::Parser parser(in);
    detail::document_starts starts(name_);
    auto most = 2 + std::count(text.begin(), text.end(), '\n');  // documents begin on lines
    while (starts.marks.size() < 2 && most > 0 && parser.HandleNextDocument(starts)) {
      --most;
    }
    YAML::Node first = YAML::Load(text);
    const std::size_t own = first.IsNull() ? 0 : 1;
    require(starts.marks.size() <= own, error_kind::invalid_argument,
            starts.marks.size() <= own ? name_ : where(starts.marks[own]),
            ": a second YAML document begins; a file has one");
    return first;
  }

  /// Reads the value of a key.
  using reader = std::function<void(const YAML::Node&)>;
  /// The keys that a section may have, each with its reader.
  using keys = std::vector<std::pair<const char*, reader>>;

  /// FILE:LINE of a mark. A part of a text "a, b, c" has none: the mark of the text that list() has
  /// last divided stands for it. FILE if there is no such text.
  [[nodiscard]] std::string where(const YAML::Mark& mark) const {
    const YAML::Mark& known = mark.is_null() ? divided_at_ : mark;
    return known.is_null() ? name_ : name_ + ":" + std::to_string(known.line + 1);
  }
  /// Throws invalid_argument: FILE:LINE and the message.
  [[noreturn]] void refuse(const YAML::Node& at, const std::string& message) const {
    raise(error_kind::invalid_argument, where(at.Mark()) + ": " + message);
  }
  /// Adds a line to notes(): FILE:LINE and the message.
  void note(const YAML::Node& at, const std::string& message) {
    notes_.push_back(where(at.Mark()) + ": " + message);
  }

  /// What is said of a name that is none of those that are known.
  [[nodiscard]] static std::string unknown(const std::string& name, const std::string& of,
                                           const std::vector<std::string>& known) {
    std::string all;
    const std::string* nearest = nullptr;
    std::size_t least = 0;
    const std::string lower = detent::detail::lower_case(name);
    for (const std::string& k : known) {
      all.append(all.empty() ? "" : ", ").append(k);
      // Case does not count.
      const std::size_t distance =
          graph::detail::edit_distance(lower, detent::detail::lower_case(k));
      if (nearest == nullptr || distance < least) {
        nearest = &k;
        least = distance;
      }
    }
    return "'" + name + "' is unknown in " + of +
           (nearest != nullptr && least <= (std::max)(name.size() / 2, std::size_t{2})
                ? "; the nearest is '" + *nearest + "'"
                : "; there are " + all);
  }

  /// Calls f(key, value) for the entries of a map in their order. A key that is there twice is an
  /// error, and so is the merge key.
  template <class Function>
  void entries(const YAML::Node& map, const std::string& what, const Function& f) const {
    if (!map.IsMap()) {
      refuse(map, what + " is not a map of names to values");
    }
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const std::string key = text(entry.first, "a key of " + what);
      if (key == "<<") {
        refuse(entry.first, "merge keys (<<) are not read; write the entries of the other map");
      }
      if (!seen.insert(key).second) {
        refuse(entry.first, what + " has '" + key + "' twice");
      }
      f(entry.first, entry.second);
    }
  }

  /// Reads the entries of a map whose keys are known. An entry without a value is skipped, unless
  /// `with_null` says that its name alone means something.
  void section(const YAML::Node& map, const std::string& what, const keys& known,
               bool with_null = false) const {
    if (map.IsNull()) {
      return;
    }
    entries(map, what, [&](const YAML::Node& key, const YAML::Node& value) {
      const std::string name = key.Scalar();
      const auto found =
          std::find_if(known.begin(), known.end(), [&](const auto& k) { return name == k.first; });
      if (found == known.end()) {
        std::vector<std::string> names;
        for (const auto& k : known) {
          names.emplace_back(k.first);
        }
        refuse(key, unknown(name, what, names));
      }
      if (with_null || !value.IsNull()) {
        found->second(value);
      }
    });
  }

  /// Accepts any value and notes `why` it has no effect.
  [[nodiscard]] reader ignored(const std::string& why) {
    return [this, why](const YAML::Node& value) { note(value, why); };
  }
  /// Refuses any value, with a message that says why.
  [[nodiscard]] reader not_here(const std::string& why) const {
    return [this, why](const YAML::Node& value) { refuse(value, why); };
  }

  /// The text of a single value; `what` names it in the message if it is none.
  [[nodiscard]] std::string text(const YAML::Node& value, const std::string& what) const {
    if (!value.IsScalar()) {
      refuse(value, what + " is not a single value");
    }
    return value.Scalar();
  }
  /// A single value as T; `expected` says in the message what was expected.
  template <class T>
  [[nodiscard]] T as(const YAML::Node& value, const std::string& key, const char* expected) const {
    T result{};
    if (!value.IsScalar() || !YAML::convert<T>::decode(value, result)) {
      refuse(value, key + ": expected " + expected +
                        (value.IsScalar() ? ", not '" + value.Scalar() + "'" : ""));
    }
    return result;
  }
  /// A truth value as YAML has them: true, False, yes, off, ...
  [[nodiscard]] bool boolean(const YAML::Node& value, const std::string& key) const {
    return as<bool>(value, key, "true or false");
  }
  /// A whole number that is at least `least`.
  [[nodiscard]] std::size_t count(const YAML::Node& value, const std::string& key,
                                  std::size_t least) const {
    const auto n = as<std::int64_t>(value, key, "a whole number");
    if (n < 0 || static_cast<std::size_t>(n) < least) {
      refuse(value,
             key + ": expected at least " + std::to_string(least) + ", not " + std::to_string(n));
    }
    return static_cast<std::size_t>(n);
  }
  /// A finite number; "1%" is 0.01.
  [[nodiscard]] double number(const YAML::Node& value, const std::string& key) const {
    const std::string t = text(value, key);
    const bool is_percent = !t.empty() && t.back() == '%';
    YAML::Node digits(is_percent ? t.substr(0, t.size() - 1) : t);
    double result = 0.0;
    if (!YAML::convert<double>::decode(digits, result) || !std::isfinite(result)) {
      refuse(value, key + ": expected a number, not '" + t + "'");
    }
    return is_percent ? result / 100.0 : result;
  }
  /// What belongs to a name, which must be one of `known`.
  template <class T>
  T one_of(const YAML::Node& value, const std::string& key,
           const std::vector<std::pair<const char*, T>>& known) const {
    const std::string name = text(value, key);
    std::vector<std::string> names;
    for (const auto& [known_name, result] : known) {
      if (name == known_name) {
        return result;
      }
      names.emplace_back(known_name);
    }
    refuse(value, unknown(name, key, names));
  }
  /// The values of a list, of a text "a, b, c", or of a single value.
  [[nodiscard]] std::vector<YAML::Node> list(const YAML::Node& value,
                                             const std::string& key) const {
    std::vector<YAML::Node> all;
    if (value.IsSequence()) {
      for (const YAML::Node& one : value) {
        all.push_back(one);
      }
    } else {
      const std::string whole = text(value, key);
      if (whole.find(',') == std::string::npos) {
        return {value};
      }
      divided_at_ = value.Mark();
      for (std::size_t at = 0; at <= whole.size();) {
        const std::size_t comma = (std::min)(whole.find(',', at), whole.size());
        std::string part = whole.substr(at, comma - at);
        part.erase(0, part.find_first_not_of(" \t"));
        part.erase(part.find_last_not_of(" \t") + 1);
        all.emplace_back(part);
        at = comma + 1;
      }
    }
    if (all.empty()) {
      refuse(value, key + " is an empty list");
    }
    return all;
  }
  /// The texts of a list as list() reads it.
  [[nodiscard]] std::vector<std::string> texts(const YAML::Node& value,
                                               const std::string& key) const {
    std::vector<std::string> all;
    for (const YAML::Node& one : list(value, key)) {
      all.push_back(text(one, key));
    }
    return all;
  }
  /// The values that one_of() reads from a list, each once.
  template <class T>
  [[nodiscard]] std::vector<T> some_of(const YAML::Node& value, const std::string& key,
                                       const std::vector<std::pair<const char*, T>>& known) const {
    std::vector<T> all;
    for (const YAML::Node& one : list(value, key)) {
      const T v = one_of(one, key, known);
      if (std::find(all.begin(), all.end(), v) == all.end()) {
        all.push_back(v);
      }
    }
    return all;
  }

 private:
  std::string name_;
  std::vector<std::string> notes_;
  mutable YAML::Mark divided_at_ = YAML::Mark::null_mark();
};

}  // namespace graph::inc
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_INC_YAML_VALUES_HPP
