// SPDX-License-Identifier: BSD-3-Clause
// PPQ's dispatchers: rules for which of the operators that a platform can quantize do run quantized
// in a network.
#ifndef DETENT_GRAPH_PPQ_DISPATCHER_HPP
#define DETENT_GRAPH_PPQ_DISPATCHER_HPP

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/policy.hpp>
#include <detent/observer_registry.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Which of the operators in a platform's list run quantized; PPQ calls this a dispatcher. Whatever
/// the scope, operators that compute shapes and indices are not quantized.
enum class dispatch_scope : std::uint8_t {
  /// Layers, and operators whose operands are all constants or results of quantized operators.
  conservative,
  /// Layers, and operators that work element by element and whose operands are all constants or
  /// results of quantized operators.
  pointwise,
  /// All operators in the platform's list.
  all_in,
};

/// Whether each element of a node's result depends on one element of every operand: activation
/// functions, Add, Sub, Mul, Div and Sum.
[[nodiscard]] inline bool is_pointwise_operator(const node& n) {
  return is_fused_activation(n) || n.is("Add") || n.is("Sub") || n.is("Mul") || n.is("Div") ||
         n.is("Sum");
}

/// A dispatch scope and the name that PPQ gives it.
struct dispatcher {
  std::string_view name;  ///< PPQ's name, in small letters.
  dispatch_scope scope;   ///< The scope of that name.
};

/// All dispatchers: "conservative", which is PPQ's default, "pointwise" and "allin".
inline constexpr std::array<dispatcher, 3> dispatchers{{
    {"conservative", dispatch_scope::conservative},
    {"pointwise", dispatch_scope::pointwise},
    {"allin", dispatch_scope::all_in},
}};

/// The scope of that name. Capital and small letters are the same; "point" stands for pointwise and
/// "all_in" for allin. Throws unsupported for PPQ's dispatchers whose rules are not known here
/// (pplnn, aggressive, perseus), and invalid_argument for any other name; both list the names that
/// there are.
[[nodiscard]] inline dispatch_scope find_dispatcher(std::string_view name) {
  static constexpr std::string_view not_offered[] = {"pplnn", "aggressive", "perseus"};
  std::string key = detent::detail::lower_case(name);
  key = key == "point" ? "pointwise" : key == "all_in" ? "allin" : key;
  std::string names;
  for (const dispatcher& d : dispatchers) {
    if (d.name == key) {
      return d.scope;
    }
    names.append(names.empty() ? "" : ", ").append(d.name);
  }
  const bool of_ppq =
      std::find(std::begin(not_offered), std::end(not_offered), key) != std::end(not_offered);
  require(!of_ppq, error_kind::unsupported, "PPQ's dispatcher '", name,
          "' is not offered; there are ", names);
  raise(error_kind::invalid_argument,
        detent::detail::message("detent: there is no dispatcher '", name, "'; there are ", names));
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_DISPATCHER_HPP
