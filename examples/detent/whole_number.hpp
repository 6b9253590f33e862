// SPDX-License-Identifier: BSD-3-Clause
// Checks for options that are whole numbers. CLI11's own take "010" for 8.
#ifndef DETENT_CLI_WHOLE_NUMBER_HPP
#define DETENT_CLI_WHOLE_NUMBER_HPP

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

namespace detent_cli {

/// The number, in decimal digits, without the zeros that it begins with.
inline std::string without_leading_zeros(std::string text) {
  const std::size_t first = (std::min)(text.find_first_not_of('0'), text.size());
  const bool is_zero = first == text.size() || text[first] < '0' || text[first] > '9';
  text.erase(0, is_zero && first > 0 ? first - 1 : first);
  return text;
}

/// Takes a whole number in [least, most], in decimal digits. To be given to Option::transform().
inline CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return {[least, most](std::string& text) {
            std::uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, failed] = std::from_chars(text.data(), end, value);
            if (failed != std::errc() || stop != end || value < least || value > most) {
              return "'" + text + "' is not a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most);
            }
            text = without_leading_zeros(text);
            return std::string();
          },
          most > std::uint64_t{1} << 40U ? std::string()
                                         : std::to_string(least) + ".." + std::to_string(most)};
}

/// Takes a number of bytes in [1, most]: a whole number, perhaps with a unit such as M or G. To be
/// given to Option::transform().
inline CLI::Validator byte_count(std::uint64_t most) {
  const CLI::AsSizeValue sizes(false);
  const CLI::Validator bytes = whole_number(1, most);
  return {[sizes, bytes](std::string& text) {
            text = without_leading_zeros(text);
            const std::string refused = sizes(text);
            return refused.empty() ? bytes(text) : refused;
          },
          "bytes, or 512M, 4G, ..."};
}

}  // namespace detent_cli

#endif  // DETENT_CLI_WHOLE_NUMBER_HPP
