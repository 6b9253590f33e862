// SPDX-License-Identifier: BSD-3-Clause
// What is different for some operators, by their types or names.
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

enum class weight_scale : std::uint8_t {
  absmax,     // the largest magnitude is the end of the grid
  exact_mse,  // the least squared error
};

/// What is different for an operator. What is not set is as for all others; what a way to quantize
/// does not have (methods without calibration, blocks but for weight-only) has no effect there.
struct operator_settings {
  std::optional<bool> quantize = {};            // false: it stays in float
  std::optional<bool> per_channel = {};         // one weight scale for each output channel
  std::optional<std::size_t> weight_bits = {};  // 2..8; weight-only: 4 or 8
  std::optional<weight_scale> weight_scales = {};
  std::optional<std::int64_t> block_size = {};  // of weights that share a scale: weight-only
  /// The observer of the activations that the operator takes. Where several take one, the first of
  /// them, in topological order, that has a method decides.
  std::optional<std::string> method = {};

  /// Settings of `other` where there is none.
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

struct operator_rule {
  std::string pattern;  // regular expression that matches the whole type or name
  operator_settings settings;
};

/// A rule for names goes before one for types, and of several for names or for types the last one.
struct operator_rules {
  std::vector<operator_rule> types = {};
  std::vector<operator_rule> names = {};  // see name_or_output()
  bool validate = true;                   // a rule that matches nothing is an error that names it
};

/// The settings of all nodes that rules speak of, by index. Throws invalid_argument naming a
/// pattern that matches nothing or is not a regular expression.
[[nodiscard]] inline std::map<std::size_t, operator_settings> matching_settings(
    const model& m, const operator_rules& rules) {
  std::map<std::size_t, operator_settings> found;
  const auto apply = [&](const char* what, const std::vector<operator_rule>& list,
                         const auto& text_of) {
    for (auto rule = list.rbegin(); rule != list.rend(); ++rule) {
      const node_pattern pattern(what, rule->pattern);
      bool any = false;
      for (std::size_t i = 0; i < m.nodes.size(); ++i) {
        if (pattern.matches(text_of(m.nodes[i]))) {
          any = true;
          found[i].complete_from(rule->settings);
        }
      }
      require(any || !rules.validate, error_kind::invalid_argument, what, " '", rule->pattern,
              "' matches no node of the model");
    }
  };
  apply("rule for names", rules.names,
        [](const node& n) -> const std::string& { return name_or_output(n); });
  apply("rule for types", rules.types,
        [](const node& n) -> const std::string& { return n.op_type; });
  return found;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_OPERATOR_RULES_HPP
