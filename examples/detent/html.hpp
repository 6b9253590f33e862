// SPDX-License-Identifier: BSD-3-Clause
// Text and numbers for an HTML page and for the SVG drawings in it.
//
// Texts come from files that are not trusted: the result of html::escape() is nothing but text,
// whatever its argument is. Numbers are written by std::to_chars and do not depend on the locale of
// the process.
#ifndef DETENT_CLI_HTML_HPP
#define DETENT_CLI_HTML_HPP

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace detent_cli::html {

/// A UTF-8 character: its number of bytes and its code point. The size is 0 if there is no valid
/// character; overlong forms, surrogates and code points beyond U+10FFFF are not valid.
struct character {
  std::size_t size = 0;
  std::uint32_t code = 0;
};

[[nodiscard]] inline character first_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) {
    return std::uint32_t{static_cast<std::uint8_t>(text[i])};
  };
  if (text.empty()) {
    return {};
  }
  const std::uint32_t lead = byte(0);
  if (lead < 0x80U) {
    return {1, lead};
  }
  const std::size_t size = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
  if (lead < 0xC2U || lead > 0xF4U || text.size() < size) {
    return {};
  }
  std::uint32_t code = lead & (0x7FU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return {};
    }
    code = code << 6U | (byte(i) & 0x3FU);
  }
  const bool overlong = (size == 3 && code < 0x800U) || (size == 4 && code < 0x10000U);
  const bool surrogate = code >= 0xD800U && code <= 0xDFFFU;
  return overlong || surrogate || code > 0x10FFFFU ? character{} : character{size, code};
}

/// A text as it can stand in the content of an element and in attributes in double quotes. Control
/// characters become their pictures (a newline is U+240A), so that a name stays on its line. Bytes
/// that are not UTF-8 and characters that no document may hold become U+FFFD.
[[nodiscard]] inline std::string escape(std::string_view text) {
  constexpr std::string_view replacement = "\xEF\xBF\xBD";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const character c = first_character(text);
    if (c.size == 0 || (c.code >= 0x80U && c.code < 0xA0U) || (c.code & 0xFFFEU) == 0xFFFEU) {
      out += replacement;
    } else if (c.code < 0x20U || c.code == 0x7FU) {
      out += "\xE2\x90";
      out += static_cast<char>(c.code == 0x7FU ? 0xA1U : 0x80U + c.code);
    } else if (c.code == '&') {
      out += "&amp;";
    } else if (c.code == '<') {
      out += "&lt;";
    } else if (c.code == '>') {
      out += "&gt;";
    } else if (c.code == '"') {
      out += "&quot;";
    } else if (c.code == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, c.size);
    }
    text.remove_prefix((std::max)(c.size, std::size_t{1}));
  }
  return out;
}

/// "NaN", or the sign of infinity with or without a minus sign; empty for finite numbers.
[[nodiscard]] inline std::string not_finite(double value) {
  return std::isnan(value)   ? "NaN"
         : std::isinf(value) ? (value < 0.0 ? "-\xE2\x88\x9E" : "\xE2\x88\x9E")
                             : "";
}

/// A number as printf's %.*g writes it, with at most 17 digits; not_finite() if it is not finite.
[[nodiscard]] inline std::string significant(double value, int digits) {
  if (!std::isfinite(value)) {
    return not_finite(value);
  }
  char buffer[32];
  // -0 is written as 0.
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value == 0.0 ? 0.0 : value,
                                 std::chars_format::general, (std::min)(digits, 17));
  return {buffer, end.ptr};
}

/// A number as printf's %.*f writes it, with at most 17 digits after the point. Numbers of
/// magnitude 10^15 or more are written by significant(), and numbers that are not finite by
/// not_finite().
[[nodiscard]] inline std::string decimal(double value, int digits) {
  if (!std::isfinite(value) || std::fabs(value) >= 1e15) {
    return significant(value, 6);
  }
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed,
                                 (std::min)(digits, 17));
  std::string text(buffer, end.ptr);
  // A number that rounds to 0 has no sign.
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) {
    text.erase(0, 1);
  }
  return text;
}

/// A coordinate or a length with at most two digits after the point. A number that is not finite is
/// written as 0, because it would make a drawing invalid; others are clamped to -100000 .. 100000.
[[nodiscard]] inline std::string coordinate(double value) {
  std::string text =
      decimal(std::isfinite(value) ? std::clamp(value, -100000.0, 100000.0) : 0.0, 2);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') {
    text.pop_back();
  }
  return text;
}

/// An integer with its digits in groups of three, separated by narrow no-break spaces.
[[nodiscard]] inline std::string grouped(std::uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      out += "\xE2\x80\xAF";
    }
    out += digits[i];
  }
  return out;
}

/// A number of bytes with about three digits, in units that are powers of 1024.
[[nodiscard]] inline std::string bytes(std::uint64_t count) {
  constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (count < 1024) {
    return std::to_string(count) + " B";
  }
  double value = static_cast<double>(count) / 1024.0;
  std::size_t unit = 0;
  for (; value >= 1023.5 && unit + 1 < std::size(units); ++unit) {
    value /= 1024.0;
  }
  return decimal(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + std::string(units[unit]);
}

}  // namespace detent_cli::html

#endif  // DETENT_CLI_HTML_HPP
