// SPDX-License-Identifier: BSD-3-Clause
// The output of --json.
#ifndef DETENT_CLI_JSON_OUTPUT_HPP
#define DETENT_CLI_JSON_OUTPUT_HPP

#include <cstddef>
#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

namespace detent_cli {

using json_object = nlohmann::ordered_json;

/// A JSON value as text. Names in it come from files: bytes that are not UTF-8 are replaced, and
/// control characters from U+007F to U+009F, which terminals may obey, are written as \u00XX. (The
/// library writes those below U+0020 in this way.)
inline std::string json_text(const json_object& j, int indent) {
  const std::string text = j.dump(indent, ' ', false, json_object::error_handler_t::replace);
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    const bool is_pair = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
    if (byte != 0x7f && !is_pair) {
      shown += text[i];
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", is_pair ? unsigned{next} : 0x7fU);
    shown += escaped;
    i += is_pair ? 1U : 0U;
  }
  return shown;
}

/// Prints a JSON value on standard output, as json_text() writes it.
inline void print_json(const json_object& j) { std::printf("%s\n", json_text(j, 2).c_str()); }

}  // namespace detent_cli

#endif  // DETENT_CLI_JSON_OUTPUT_HPP
