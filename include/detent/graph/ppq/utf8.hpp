// SPDX-License-Identifier: BSD-3-Clause
// Tells well-formed UTF-8, which files of other tools must be, from other bytes.
#ifndef DETENT_GRAPH_PPQ_UTF8_HPP
#define DETENT_GRAPH_PPQ_UTF8_HPP

#include <cstddef>
#include <string_view>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// The number of bytes of the well-formed UTF-8 sequence that `text` begins with; 0 if it begins
/// with none (RFC 3629: no surrogates, nothing above U+10FFFF, no longer form than is needed).
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  const unsigned second = byte(1);
  if (first < 0x80U) {
    return text.empty() ? 0 : 1;
  }
  if (first >= 0xC2U && first <= 0xDFU) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0U && first <= 0xEFU) {
    const bool allowed = (first != 0xE0U || second >= 0xA0U) && (first != 0xEDU || second < 0xA0U);
    return allowed && follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0U && first <= 0xF4U) {
    const bool allowed = (first != 0xF0U || second >= 0x90U) && (first != 0xF4U || second < 0x90U);
    return allowed && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

/// Whether the whole text is UTF-8.
[[nodiscard]] inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace detail
}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_UTF8_HPP
