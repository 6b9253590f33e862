// SPDX-License-Identifier: BSD-3-Clause
// The names that are most like another one, for messages about names that do not exist.
#ifndef DETENT_GRAPH_MODEL_NEAREST_NAMES_HPP
#define DETENT_GRAPH_MODEL_NEAREST_NAMES_HPP

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The edit distance of two texts (Levenshtein): the fewest characters to insert, remove or replace
/// that make one of the other. Only the first 256 characters of each count.
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr std::size_t longest = 256;
  a = a.substr(0, longest);
  b = b.substr(0, longest);
  std::vector<std::size_t> row(b.size() + 1);  // distances of the prefixes of b
  for (std::size_t j = 0; j < row.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t before = std::exchange(row[0], i);  // the distance without either last character
    for (std::size_t j = 1; j < row.size(); ++j) {
      const std::size_t replaced = before + (a[i - 1] == b[j - 1] ? 0 : 1);
      before = row[j];
      row[j] = (std::min)({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace detail

/// Up to `count` of the names: those that begin with `name` first, then those with the least edit
/// distance, and of equal ones in their order: 'a', 'b', 'c'. Empty if there are no names.
[[nodiscard]] inline std::string nearest_names(std::string_view name,
                                               const std::vector<std::string>& names,
                                               std::size_t count = 3) {
  std::vector<std::tuple<bool, std::size_t, std::size_t>> order;  // other, distance, index
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool begins = !name.empty() && std::string_view(names[i]).starts_with(name);
    order.emplace_back(!begins, detail::edit_distance(name, names[i]), i);
  }
  std::sort(order.begin(), order.end());
  order.resize((std::min)(order.size(), count));
  std::string text;
  for (const auto& [is_other, distance, i] : order) {
    text += (text.empty() ? "'" : ", '") + names[i] + "'";
  }
  return text;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_NEAREST_NAMES_HPP
