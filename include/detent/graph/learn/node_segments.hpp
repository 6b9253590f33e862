// SPDX-License-Identifier: BSD-3-Clause
// The nodes of a model in consecutive segments, for gradients that compute values a second time
// instead of keeping them (gradient checkpointing).
#ifndef DETENT_GRAPH_LEARN_NODE_SEGMENTS_HPP
#define DETENT_GRAPH_LEARN_NODE_SEGMENTS_HPP

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

namespace detail {

/// The values in `wanted` and all values that are computed from them: only through these do
/// gradients have to pass.
[[nodiscard]] inline std::set<std::string> values_computed_from(
    const model& m, const std::set<std::string>& wanted) {
  std::set<std::string> active = wanted;
  for (const node& n : m.nodes) {
    if (std::any_of(n.inputs.begin(), n.inputs.end(),
                    [&](const std::string& name) { return active.count(name) != 0; })) {
      active.insert(n.outputs.begin(), n.outputs.end());
    }
  }
  active.erase(std::string());
  return active;
}

}  // namespace detail

/// Divides the nodes of a model, in their order, into segments of as many nodes each, within one.
/// With n nodes and k segments, segment s has the nodes floor(s n / k) to floor((s + 1) n / k) - 1.
///
/// A value that a node makes is kept for the whole run if a node of a later segment takes it, if it
/// is an output of the model, or if it is asked for. The others are inside their segment: they can
/// be computed again from constants, inputs and kept values. With one segment all values are kept.
///
/// Thread-safe.
///
/// Source: Chen, Xu, Zhang, Guestrin, Training deep nets with sublinear memory cost (2016).
class node_segments {
 public:
  /// Divides the nodes of `m` into `count` segments, or into as many as it has nodes, if these are
  /// fewer. `asked_for` names values that are kept as well. Throws invalid_argument for 0 segments,
  /// and for a value, which it names, that the model does not have.
  node_segments(const model& m, std::size_t count, const std::set<std::string>& asked_for = {})
      : nodes_(m.nodes.size()),
        count_((std::min)(count, (std::max)(m.nodes.size(), std::size_t{1}))) {
    require(count > 0, error_kind::invalid_argument, "node_segments: 0 segments");
    std::map<std::string, std::size_t> made_in;  // segments of the values that nodes make
    for (std::size_t s = 0; s < count_; ++s) {
      for (std::size_t i = begin(s); i < end(s); ++i) {
        for (const std::string& name : m.nodes[i].inputs) {
          const auto found = made_in.find(name);
          if (found != made_in.end() && found->second < s) {
            kept_.insert(name);
          }
        }
        for (const std::string& name : m.nodes[i].outputs) {
          made_in.emplace(name, s);
        }
      }
    }
    for (const std::string& name : asked_for) {
      require(made_in.count(name) != 0 || m.initializer(name) != nullptr ||
                  std::any_of(m.inputs.begin(), m.inputs.end(),
                              [&](const value_info& v) { return v.name == name; }),
              error_kind::invalid_argument, "node_segments: there is no value '", name, "'");
      kept_.insert(name);
    }
    for (const value_info& v : m.outputs) {
      kept_.insert(v.name);
    }
  }

  /// The number of segments, at least 1.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// The index of the first node of a segment below count().
  [[nodiscard]] std::size_t begin(std::size_t segment) const noexcept {
    // floor(segment * nodes / count) without the product, which may be beyond std::size_t.
    return segment * (nodes_ / count_) + segment * (nodes_ % count_) / count_;
  }
  /// The index behind the last node of a segment.
  [[nodiscard]] std::size_t end(std::size_t segment) const noexcept { return begin(segment + 1); }
  /// Whether a value is kept for the whole run.
  [[nodiscard]] bool keeps(const std::string& value) const {
    return count_ == 1 || kept_.count(value) != 0;
  }

 private:
  std::size_t nodes_;
  std::size_t count_;
  std::set<std::string> kept_;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_NODE_SEGMENTS_HPP
