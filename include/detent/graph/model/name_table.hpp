// SPDX-License-Identifier: BSD-3-Clause
// A hash table by name, for passes over models with many nodes.
#ifndef DETENT_GRAPH_MODEL_NAME_TABLE_HPP
#define DETENT_GRAPH_MODEL_NAME_TABLE_HPP

#include <cstddef>
#include <functional>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/name_hash.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Values of type T by name. Names are copied. They and the values lie side by side in a few large
/// pieces of memory, which are given back as a whole: in a model of many nodes, a table with an
/// allocation for each name spends most of its time on memory that is in no cache. Values keep
/// their addresses. T must be trivially destructible.
template <class T>
class name_table {
 public:
  /// Makes room for `expected` names; more may be added.
  explicit name_table(std::size_t expected) { entries_->values.reserve(expected); }
  name_table(const name_table& other) { entries_->values = other.entries_->values; }
  name_table(name_table&&) noexcept = default;
  name_table& operator=(const name_table&) = delete;
  name_table& operator=(name_table&&) noexcept = default;
  ~name_table() = default;

  [[nodiscard]] const T* find(std::string_view name) const {
    const auto found = entries_->values.find(name);
    return found == entries_->values.end() ? nullptr : &found->second;
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return entries_->values.find(name) != entries_->values.end();
  }

  /// The value of a name and whether it is new; a new one is `value`.
  std::pair<T*, bool> add(std::string_view name, const T& value = {}) {
    const auto found = entries_->values.find(name);
    if (found != entries_->values.end()) {
      return {&found->second, false};
    }
    return {&entries_->values.emplace(name, value).first->second, true};
  }

 private:
  static_assert(std::is_trivially_destructible_v<T>);

  // Behind a pointer: the values keep their addresses, and their memory, when the table moves.
  struct entries {
    std::pmr::monotonic_buffer_resource memory;
    std::pmr::unordered_map<std::pmr::string, T, name_hash, std::equal_to<>> values{&memory};
  };
  std::unique_ptr<entries> entries_ = std::make_unique<entries>();
};

/// What a name_table holds that is a set.
struct no_value {};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_NAME_TABLE_HPP
