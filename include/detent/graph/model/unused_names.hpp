// SPDX-License-Identifier: BSD-3-Clause
// Finds names for the values and nodes that rewrites add to a model.
#ifndef DETENT_GRAPH_MODEL_UNUSED_NAMES_HPP
#define DETENT_GRAPH_MODEL_UNUSED_NAMES_HPP

#include <cstddef>
#include <string>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_table.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Finds names that are not taken, and takes them. A pass over a model makes one of these and asks
/// it for all names that the pass needs: to collect the names that are taken costs as much as a
/// walk through the whole model.
class unused_names {
 public:
  /// No name is taken yet.
  unused_names() = default;
  /// The names of all values of the graph and of its sub-graphs are taken. Names that are added to
  /// the graph afterwards, other than by take(), are not known here.
  explicit unused_names(const graph_body& g) {
    for_each_value_name(g, [this](const std::string& name) { reserve(name); });
    for (const value_info& v : g.outputs) {
      reserve(v.name);
    }
  }

  /// Takes a name, which may be taken already.
  void reserve(const std::string& name) { next_.add(name, 2); }

  /// A name that was not taken: `wish`, or else `wish` followed by _2, _3, and so on. It is taken
  /// from then on.
  [[nodiscard]] std::string take(const std::string& wish) {
    const auto [number, is_new] = next_.add(wish, 2);
    if (is_new) {
      return wish;
    }
    std::string name;
    do {
      name = wish + "_" + std::to_string((*number)++);
    } while (!next_.add(name, 2).second);
    return name;
  }

 private:
  // The names that are taken, each with the number that take() tries next behind it. With these
  // numbers a name that is wished for again and again is not searched from the start each time.
  detail::name_table<std::size_t> next_{0};
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_MODEL_UNUSED_NAMES_HPP
