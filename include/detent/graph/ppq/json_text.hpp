// SPDX-License-Identifier: BSD-3-Clause
// Writes JSON (RFC 8259) for the files of other tools: settings, tables of parameters, reports.
#ifndef DETENT_GRAPH_PPQ_JSON_TEXT_HPP
#define DETENT_GRAPH_PPQ_JSON_TEXT_HPP

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/ppq/utf8.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// The text of a number: the shortest decimal that reads back as the same double, or the same
/// float, with a point or an exponent. Throws invalid_argument for NaN and infinities, which JSON
/// does not have.
template <std::floating_point T>
[[nodiscard]] std::string decimal(T value) {
  require(std::isfinite(value), error_kind::invalid_argument, "JSON has no number ", value);
  std::array<char, 40> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  std::string text(digits.data(), end);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// Builds a JSON text value by value, with four spaces for each level. The caller opens and closes
/// objects and lists in turn, and gives each value in an object a key before it.
class json_text {
 public:
  /// Begins an object.
  void open_object() { open('{'); }
  /// Ends the object that was begun last.
  void close_object() { close('}'); }
  /// Begins a list.
  void open_list() { open('['); }
  /// Ends the list that was begun last.
  void close_list() { close(']'); }
  /// The key of the next value.
  void key(std::string_view name) {
    begin_value();
    append_quoted(name);
    text_ += ": ";
    after_key_ = true;
  }
  /// A text. Bytes that are not UTF-8 become U+FFFD.
  void value(std::string_view text) {
    begin_value();
    append_quoted(text);
  }
  /// A text.
  void value(const char* text) { value(std::string_view(text)); }
  /// true or false.
  void value(bool truth) { plain(truth ? "true" : "false"); }
  /// A whole number.
  template <std::integral T>
  void value(T number) {
    plain(std::to_string(number));
  }
  /// A number, as decimal() writes it.
  template <std::floating_point T>
  void value(T number) {
    plain(decimal(number));
  }
  /// null.
  void null() { plain("null"); }

  /// The text, with a line end.
  [[nodiscard]] std::string finish() && { return std::move(text_) + "\n"; }

 private:
  void open(char bracket) {
    begin_value();
    text_ += bracket;
    ++depth_;
    is_first_ = true;
  }
  void close(char bracket) {
    --depth_;
    if (!is_first_) {
      break_line();
    }
    text_ += bracket;
    is_first_ = false;
  }
  void plain(std::string_view text) {
    begin_value();
    text_ += text;
  }
  void begin_value() {
    if (after_key_) {
      after_key_ = false;
      return;
    }
    if (depth_ > 0) {
      text_ += is_first_ ? "" : ",";
      break_line();
    }
    is_first_ = false;
  }
  void break_line() { text_.append("\n").append(4 * depth_, ' '); }

  void append_quoted(std::string_view text) {
    constexpr std::string_view hex = "0123456789abcdef";
    text_ += '"';
    while (!text.empty()) {
      const std::size_t length = utf8_length(text);
      const auto byte = static_cast<unsigned char>(text[0]);
      if (length == 0) {
        text_ += "\\ufffd";
      } else if (byte < 0x20U || byte == 0x7FU) {
        text_.append("\\u00").append(1, hex[byte >> 4U]).append(1, hex[byte & 15U]);
      } else {
        text_.append(byte == '"' || byte == '\\' ? "\\" : "").append(text.substr(0, length));
      }
      text.remove_prefix(length == 0 ? 1 : length);
    }
    text_ += '"';
  }

  std::string text_;
  std::size_t depth_ = 0;
  bool is_first_ = true;
  bool after_key_ = false;
};

}  // namespace detail
}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_JSON_TEXT_HPP
