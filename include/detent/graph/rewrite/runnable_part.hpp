// SPDX-License-Identifier: BSD-3-Clause
// Divides a model that has operators which the executor lacks: into the part that can be run, which
// is a model of its own, and the rest. A pass that has to run its model works on that part; then
// the two are joined again.
//
//     model: x -> Conv -> Relu -+-> MyOperator -> Conv -> y
//                               +-> Softmax -> z
//     part:  x -> Conv -> Relu -> r, Softmax -> z
//     rest:  r -> MyOperator -> Conv -> y
#ifndef DETENT_GRAPH_REWRITE_RUNNABLE_PART_HPP
#define DETENT_GRAPH_REWRITE_RUNNABLE_PART_HPP

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_hash.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/renaming.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/shape_inference.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Gives values of a sub-graph's own, and of sub-graphs within it, new names where `names` has
/// some. Captured values keep theirs.
inline void rename_own_values(graph_body& body, const std::map<std::string, std::string>& names) {
  std::map<std::string, std::string> own;
  const auto note = [&](const std::string& value) {
    const auto found = names.find(value);
    if (found != names.end()) {
      own.insert(*found);
    }
  };
  std::for_each(body.inputs.begin(), body.inputs.end(), [&](const value_info& v) { note(v.name); });
  for (const auto& [name, t] : body.initializers) {
    note(name);
  }
  for (const node& n : body.nodes) {
    std::for_each(n.outputs.begin(), n.outputs.end(), note);
  }
  const auto replace = [&](std::string& name) {
    const auto found = own.find(name);
    name = found == own.end() ? name : found->second;
  };
  for (std::vector<value_info>* list : {&body.inputs, &body.outputs, &body.values}) {
    std::for_each(list->begin(), list->end(), [&](value_info& v) { replace(v.name); });
  }
  for (const auto& [name, now] : own) {
    if (auto constant = body.initializers.extract(name)) {
      constant.key() = now;
      body.initializers.insert(std::move(constant));
    }
    if (auto unread = body.unread_of_initializers.extract(name)) {
      unread.key() = now;
      body.unread_of_initializers.insert(std::move(unread));
    }
  }
  for (node& n : body.nodes) {
    std::for_each(n.inputs.begin(), n.inputs.end(), replace);
    std::for_each(n.outputs.begin(), n.outputs.end(), replace);
    if (has_bodies(n)) {
      replace_captured(n, own);
      change_bodies(n, [&](graph_body& within) { rename_own_values(within, names); });
    }
  }
}

}  // namespace detail

/// A model in two parts: the nodes that the executor can run, and the nodes that it cannot, because
/// it has no operator for them or because they need the result of such a node.
class divided_model {
 public:
  /// Divides a model, whose nodes must be in topological order. `registry` says which operators can
  /// be run. Throws unsupported if the opset of the model is beyond newest_opset, and bad_file as
  /// require_arity().
  explicit divided_model(model m, const operator_registry& registry = default_operators())
      : part_(std::move(m)) {
    require_known_opset(part_);
    require_arity(part_, registry);
    detail::add_strings(part_, strings_);
    std::vector<node> nodes = std::move(part_.nodes);
    part_.nodes.clear();
    const function_table functions(part_);
    detail::name_map<std::string> causes;
    for (node& n : nodes) {
      const obstacle found = obstacle_of(n, functions, registry, causes);
      if (found.cause.empty()) {
        part_.nodes.push_back(std::move(n));
        continue;
      }
      for (const std::string& out : n.outputs) {
        causes.emplace(out, found.cause);
      }
      reasons_.push_back(found.reason);
      rest_.push_back(std::move(n));
    }
    if (!rest_.empty()) {
      divide(causes);
    }
  }

  /// Whether all nodes can be run, so that runnable() is the whole model.
  [[nodiscard]] bool is_whole() const noexcept { return rest_.empty(); }

  /// The part that can be run. It has all inputs of the model, the outputs that it makes, and, as
  /// further outputs, the values that the rest takes from it.
  [[nodiscard]] const model& runnable() const noexcept { return part_; }

  /// One line for each node that cannot be run, such as "there is no operator for Foo node 'f'" or
  /// "Conv node 'c' needs the result of Foo node 'f'".
  [[nodiscard]] const std::vector<std::string>& reasons() const noexcept { return reasons_; }

  /// The names of the nodes that cannot be run; a node without a name has that of its first output.
  [[nodiscard]] std::set<std::string> names_of_rest() const {
    std::set<std::string> names;
    for (const node& n : rest_) {
      names.insert(name_or_output(n));
    }
    return names;
  }

  /// The whole model again, with `part` in the place of runnable(). `part` must have the inputs and
  /// outputs of runnable(). Values within it get other names where the rest has the same ones, and
  /// so do values of sub-graphs of the rest that are called like an output of the part: the part
  /// stands before the rest, where ONNX lets no sub-graph hide its values.
  [[nodiscard]] model joined(model part) const {
    if (is_whole()) {
      return part;
    }
    unused_names names(part);
    for (const std::string& name : names_of_rest_values()) {
      names.reserve(name);
    }
    rename_apart(part, names);
    detail::name_set outputs;
    for (const value_info& v : part.outputs) {
      outputs.insert(v.name);
    }
    std::map<std::string, std::string> hiding;  // new names for values of sub-graphs of the rest
    for (const node& n : rest_) {
      for_each_body(n, [&](const std::string&, const graph_body& body) {
        for (const std::string& name : value_names(body)) {
          if (outputs.count(name) != 0 && hiding.count(name) == 0) {
            hiding[name] = names.take(name);
          }
        }
      });
    }
    for (const node& n : rest_) {
      part.nodes.push_back(n);
      if (!hiding.empty()) {
        change_bodies(part.nodes.back(),
                      [&](graph_body& body) { detail::rename_own_values(body, hiding); });
      }
    }
    part.initializers.insert(constants_.begin(), constants_.end());
    part.opsets.insert(opsets_.begin(), opsets_.end());
    part.outputs = outputs_;
    sort_and_check(part);
    return part;
  }

 private:
  /// Why a node cannot be run.
  struct obstacle {
    std::string cause;   // the label of the node that has no operator; empty if there is none
    std::string reason;  // in words
  };

  /// `causes`: by the name of a value that cannot be computed, the label of the node that has no
  /// operator.
  [[nodiscard]] obstacle obstacle_of(const node& n, const function_table& functions,
                                     const operator_registry& registry,
                                     const detail::name_map<std::string>& causes) const {
    std::vector<std::string> lacking;
    graph_body alone;
    alone.nodes.push_back(n);
    detail::find_unsupported(alone, functions, std::string(), registry, lacking);
    detail::find_string_nodes(alone, strings_, std::string(), lacking);
    if (!lacking.empty()) {
      return {n.label(), "there is no operator for " + lacking[0]};
    }
    std::vector<std::string> used = n.inputs;
    const std::set<std::string> captured = captured_values(n);
    used.insert(used.end(), captured.begin(), captured.end());
    for (const std::string& value : used) {
      const auto found = causes.find(value);
      if (!value.empty() && found != causes.end()) {
        return {found->second, n.label() + " needs the result of " + found->second};
      }
    }
    return {};
  }

  /// Gives the rest its constants and the part its outputs.
  void divide(const detail::name_map<std::string>& causes) {
    outputs_ = part_.outputs;
    opsets_ = part_.opsets;
    detail::name_set made;
    for (const node& n : part_.nodes) {
      made.insert(n.outputs.begin(), n.outputs.end());
    }
    std::erase_if(part_.outputs, [&](const value_info& v) { return causes.count(v.name) != 0; });
    std::set<std::string> is_output;
    for (const value_info& v : part_.outputs) {
      is_output.insert(v.name);
    }
    const std::map<std::string, tensor> known = infer_types(part_);
    const auto take = [&](const std::string& value) {
      if (const tensor* constant = part_.initializer(value)) {
        constants_.emplace(value, *constant);
      } else if (made.count(value) != 0 && !value.empty() && is_output.insert(value).second) {
        const auto found = known.find(value);
        const element_type type =
            found == known.end() ? element_type::undefined : found->second.type();
        part_.outputs.push_back({value, type, false, {}, {}});
      }
    };
    for (const node& n : rest_) {
      std::for_each(n.inputs.begin(), n.inputs.end(), take);
      for (const std::string& value : captured_values(n)) {
        take(value);
      }
    }
    for (const value_info& v : outputs_) {
      if (const tensor* constant = part_.initializer(v.name)) {
        constants_.emplace(v.name, *constant);
      }
    }
    remove_unused(part_);
  }

  /// The names of all values that the rest makes, those of its sub-graphs included, and of its
  /// constants.
  [[nodiscard]] std::set<std::string> names_of_rest_values() const {
    graph_body rest;
    rest.nodes = rest_;
    rest.initializers = constants_;
    return value_names(rest);
  }

  /// Renames the values of `part` whose names the rest uses for something else, but for outputs of
  /// the part, which the rest and the users of the model know by their names.
  void rename_apart(model& part, unused_names& names) const {
    const std::set<std::string> taken = names_of_rest_values();
    detail::renaming renamed(part);
    std::map<std::string, tensor> constants;
    const auto move_away = [&](const std::string& value) {
      if (taken.count(value) != 0 && !part.is_output(value)) {
        renamed.rename(value, names.take(value));  // nothing hides a name that is new
      }
      return renamed.name_of(value);
    };
    for (auto& [name, t] : part.initializers) {
      const auto same = constants_.find(name);
      const bool is_shared = same != constants_.end() && same->second.raw() == t.raw() &&
                             same->second.dims() == t.dims();
      constants.emplace(is_shared ? name : move_away(name), std::move(t));
    }
    for (const node& n : part.nodes) {
      for (const std::string& out : n.outputs) {
        if (!out.empty()) {
          static_cast<void>(move_away(out));
        }
      }
    }
    renamed.apply_to(part);
    part.initializers = std::move(constants);
  }

  model part_;
  std::set<std::string> strings_;  // constants and inputs of strings
  std::vector<node> rest_;
  std::vector<std::string> reasons_;            // of the nodes of the rest
  std::map<std::string, tensor> constants_;     // that the rest uses
  std::vector<value_info> outputs_;             // of the whole model
  std::map<std::string, std::int64_t> opsets_;  // of the whole model
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_RUNNABLE_PART_HPP
