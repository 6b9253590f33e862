// SPDX-License-Identifier: BSD-3-Clause
// Which operators of a platform's list run quantized.
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

/// PPQ calls this a dispatcher. What computes shapes and indices stays float in all of them.
enum class dispatch_scope : std::uint8_t {
  conservative,  // layers, and what only takes results of quantized operators and constants
  pointwise,     // of these only layers and operators that work element by element
  all_in,        // every one
};

/// Operators whose results each depend on one element of every operand.
[[nodiscard]] inline bool is_pointwise_operator(const node& n) {
  return is_fused_activation(n) || n.is("Add") || n.is("Sub") || n.is("Mul") || n.is("Div") ||
         n.is("Sum");
}

/// A scope and what PPQ calls it.
struct dispatcher {
  std::string_view name;
  dispatch_scope scope;
};

/// "conservative", PPQ's default, "pointwise" and "allin".
inline constexpr std::array<dispatcher, 3> dispatchers{{
    {"conservative", dispatch_scope::conservative},
    {"pointwise", dispatch_scope::pointwise},
    {"allin", dispatch_scope::all_in},
}};

/// A scope by its name, in which capital and small letters are the same; "point" is pointwise and
/// "all_in" is allin. Throws, listing the names that there are: unsupported for those of PPQ whose
/// rules are not known here (pplnn, aggressive, perseus), invalid_argument for others.
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
