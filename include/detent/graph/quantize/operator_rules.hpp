// SPDX-License-Identifier: BSD-3-Clause
// Settings for single operators, selected by type or name.
//
//   operator_rules rules;
//   rules.types.push_back({"Conv", {.per_channel = false}});
//   rules.names.push_back({"/decoder/.*", {.quantize = false}});
//
// Source: the dictionaries of Intel Neural Compressor (op_type_dict, op_name_dict).
#ifndef DETENT_GRAPH_QUANTIZE_OPERATOR_RULES_HPP
#define DETENT_GRAPH_QUANTIZE_OPERATOR_RULES_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/rewrite/node_pattern.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How the scale of weights is chosen.
enum class weight_scale : std::uint8_t {
  absmax,     ///< The largest magnitude is the end of the grid.
  exact_mse,  ///< The scale with the least squared rounding error.
};

/// Settings of one operator. Members without a value take the setting of the whole model. Settings
/// that a kind of quantization does not have are ignored there: observers where there is no
/// calibration, block sizes other than in weight-only quantization.
struct operator_settings {
  /// Whether the operator is quantized; false: it stays in float.
  std::optional<bool> quantize = {};
  /// Whether weights have one scale for each output channel.
  std::optional<bool> per_channel = {};
  /// Bits of the weights: 2..8; in weight-only quantization 4 or 8.
  std::optional<std::size_t> weight_bits = {};
  std::optional<weight_scale> weight_scales = {};  ///< How the scales of the weights are chosen.
  /// Number of weights along K that share a scale (weight-only quantization).
  std::optional<std::int64_t> block_size = {};
  /// Name of the observer of the activations that the operator takes. If several operators take one
  /// activation, the first of them in topological order that has a method decides.
  std::optional<std::string> method = {};

  /// Takes over the settings of `other` for all members that have no value.
  void complete_from(const operator_settings& other) {
    complete(quantize, other.quantize);
    complete(per_channel, other.per_channel);
    complete(weight_bits, other.weight_bits);
    complete(weight_scales, other.weight_scales);
    complete(block_size, other.block_size);
    complete(method, other.method);
  }

 private:
  template <class T>
  static void complete(std::optional<T>& mine, const std::optional<T>& other) {
    if (!mine) {
      mine = other;
    }
  }
};

/// Settings for all operators that a pattern matches.
struct operator_rule {
  std::string pattern;  ///< Regular expression (ECMAScript) that matches the whole type or name.
  operator_settings settings;  ///< Their settings.
  std::string where = {};      ///< Where it was written, such as FILE:LINE, for messages.
};

/// Rules by operator type and by node name. If several rules match an operator, rules for names
/// take precedence over rules for types, and later rules over earlier ones of the same list;
/// members that a rule leaves open are filled in from the next one. An operator that others are
/// merged into, as a normalization or a bias is into a layer, has the rules of all of them, in the
/// same order.
struct operator_rules {
  /// Rules whose patterns match operator types, such as "Conv".
  std::vector<operator_rule> types = {};
  /// Rules whose patterns match node names, or the first output of a node without a name.
  std::vector<operator_rule> names = {};
  bool validate = true;  ///< Whether a rule that matches no node is an error.
};

/// The settings of the rules that match one node, by rank: of two rules that set one member, the
/// one with the lower rank decides. No rule has rank 0, which is left for what precedes all rules.
using ranked_settings = std::map<std::size_t, operator_settings>;

/// What all rules together set: each member as the first rule sets it that has a value for it.
[[nodiscard]] inline operator_settings combined(const ranked_settings& ranked) {
  operator_settings all;
  for (const auto& [rank, settings] : ranked) {
    all.complete_from(settings);
  }
  return all;
}

/// The rules that match each node, by the index of the node; nodes without a rule are left out. A
/// rule has the same rank for all nodes. Throws invalid_argument, naming the pattern and
/// where it was written, if one is not a regular expression, or if it matches no node and
/// `validate` is set.
[[nodiscard]] inline std::map<std::size_t, ranked_settings> matching_rules(
    const model& m, const operator_rules& rules) {
  std::map<std::size_t, ranked_settings> found;
  std::size_t rank = 0;
  const auto apply = [&](const char* what, const std::vector<operator_rule>& list,
                         const auto& text_of) {
    for (auto rule = list.rbegin(); rule != list.rend(); ++rule) {
      ++rank;
      const std::string name = (rule->where.empty() ? "" : rule->where + ": ") + what;
      const node_pattern pattern(name.c_str(), rule->pattern);
      bool any = false;
      for (std::size_t i = 0; i < m.nodes.size(); ++i) {
        if (pattern.matches(text_of(m.nodes[i]))) {
          any = true;
          found[i].emplace(rank, rule->settings);
        }
      }
      require(any || !rules.validate, error_kind::invalid_argument, name, " '", rule->pattern,
              "' matches no node of the model");
    }
  };
  apply("rule for names", rules.names,
        [](const node& n) -> const std::string& { return name_or_output(n); });
  apply("rule for types", rules.types,
        [](const node& n) -> const std::string& { return n.op_type; });
  return found;
}

/// The settings of all nodes that rules match, by the index of the node. Throws as
/// matching_rules().
[[nodiscard]] inline std::map<std::size_t, operator_settings> matching_settings(
    const model& m, const operator_rules& rules) {
  std::map<std::size_t, operator_settings> found;
  for (const auto& [i, ranked] : matching_rules(m, rules)) {
    found.emplace(i, combined(ranked));
  }
  return found;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_OPERATOR_RULES_HPP
