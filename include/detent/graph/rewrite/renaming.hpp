// SPDX-License-Identifier: BSD-3-Clause
// New names for values of a model, also where sub-graphs capture them.
#ifndef DETENT_GRAPH_REWRITE_RENAMING_HPP
#define DETENT_GRAPH_REWRITE_RENAMING_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Gives the values that the sub-graphs of a node capture the names that `names` has for them. No
/// sub-graph may have a value of its own with one of the new names; renaming::may_rename() checks
/// that.
inline void replace_captured(node& n, const std::map<std::string, std::string>& names) {
  if (names.empty()) {
    return;
  }
  change_bodies(n, [&](graph_body& body) {
    // Other names are those of values of the sub-graph's own.
    std::map<std::string, std::string> captured;
    for (const std::string& name : captured_values(body)) {
      const auto found = names.find(name);
      if (found != names.end()) {
        captured.insert(*found);
      }
    }
    if (captured.empty()) {
      return;
    }
    const auto replace = [&](std::string& name) {
      const auto found = captured.find(name);
      name = found == captured.end() ? name : found->second;
    };
    for (node& within : body.nodes) {
      std::for_each(within.inputs.begin(), within.inputs.end(), replace);
      if (has_bodies(within)) {
        replace_captured(within, captured);
      }
    }
    for (value_info& v : body.outputs) {
      replace(v.name);
    }
  });
}

/// New names for values of a model, where they are made and where they are used. Collects the names
/// first and changes the model once, because each change walks through the whole model.
class renaming {
 public:
  /// The model must outlive the renaming, and its nodes with sub-graphs must not change.
  explicit renaming(const model& m) {
    for (const node& n : m.nodes) {
      if (!has_bodies(n)) {
        continue;
      }
      own_names_.emplace_back();
      for_each_body(n, [&](const std::string&, const graph_body& body) {
        own_names_.back().merge(value_names(body));
      });
      for (const std::string& name : captured_values(n)) {
        capturing_[name].push_back(own_names_.size() - 1);
      }
    }
  }

  /// The name that a value of the model has now.
  [[nodiscard]] const std::string& name_of(const std::string& value) const {
    const std::string* name = &value;
    for (auto found = names_.find(*name); found != names_.end(); found = names_.find(*name)) {
      name = &found->second;
    }
    return *name;
  }

  /// Whether `value` may be called `name`: no sub-graph that captures the value has a value of its
  /// own with that name.
  [[nodiscard]] bool may_rename(const std::string& value, const std::string& name) const {
    const auto found = capturing_.find(value);
    return found == capturing_.end() ||
           std::none_of(found->second.begin(), found->second.end(),
                        [&](std::size_t i) { return own_names_[i].count(name) != 0; });
  }

  /// Renames a value, which must not have been renamed before, if may_rename() allows it.
  bool rename(const std::string& value, const std::string& name) {
    if (!may_rename(value, name)) {
      return false;
    }
    names_[value] = name;
    const auto found = capturing_.find(value);
    if (found != capturing_.end()) {
      const std::vector<std::size_t> moved = std::move(found->second);
      capturing_.erase(found);
      std::vector<std::size_t>& all = capturing_[name];
      all.insert(all.end(), moved.begin(), moved.end());
    }
    return true;
  }

  /// Gives the values of `m`, the model of the constructor, their new names.
  void apply_to(model& m) const {
    if (names_.empty()) {
      return;
    }
    for (node& n : m.nodes) {
      for (std::vector<std::string>* list : {&n.inputs, &n.outputs}) {
        for (std::string& name : *list) {
          name = name_of(name);
        }
      }
      std::map<std::string, std::string> captured;
      for (const std::string& name : captured_values(n)) {
        const std::string& now = name_of(name);
        if (now != name) {
          captured[name] = now;
        }
      }
      replace_captured(n, captured);
    }
  }

 private:
  // The names of the values in the sub-graphs of a node, for each node that has sub-graphs.
  std::vector<std::set<std::string>> own_names_;
  // By captured value: the indices in own_names_ of the nodes whose sub-graphs capture it.
  detail::name_map<std::vector<std::size_t>> capturing_;
  detail::name_map<std::string> names_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_RENAMING_HPP
