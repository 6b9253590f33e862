// SPDX-License-Identifier: BSD-3-Clause
// Static quantization of models that have operators which the executor lacks: what can be run is
// calibrated and quantized, the rest stays in float.
#ifndef DETENT_GRAPH_QUANTIZE_PARTIAL_QUANTIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_PARTIAL_QUANTIZATION_HPP

#include <optional>
#include <set>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/runnable_part.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The scope that selects, in the runnable part of `whole`, what `scope` selects in `whole`. Throws
/// invalid_argument if an entry of `scope` matches no node of `whole`.
[[nodiscard]] inline quantization_scope scope_of_part(quantization_scope scope, const model& whole,
                                                      const std::set<std::string>& names_of_rest) {
  static_cast<void>(matching_nodes(whole, scope.ignored));
  static_cast<void>(matching_settings(whole, scope.operators));
  scope.ignored.validate = false;  // an entry may match nodes of the rest only
  scope.operators.validate = false;
  const node* first = nullptr;
  const node* last = nullptr;
  for (const node& n : whole.nodes) {
    if (is_quantizable_layer(whole, n)) {
      first = first == nullptr ? &n : first;
      last = &n;
    }
  }
  const auto is_in_part = [&](const node* n) {
    return n != nullptr && names_of_rest.count(name_or_output(*n)) == 0;
  };
  scope.ignored.first_layer = scope.ignored.first_layer && is_in_part(first);
  scope.ignored.last_layer = scope.ignored.last_layer && is_in_part(last);
  return scope;
}

/// Divides a model for static quantization, or returns nothing if all of it can be run. If it is
/// divided, `m` gets the opset that part and rest have, and `scope` becomes that of the part.
/// Throws unsupported if the model is quantized already, what upgrade_opset() throws, and
/// invalid_argument if an entry of `scope` matches nothing in a model that is divided.
[[nodiscard]] inline std::optional<divided_model> divided_for_calibration(
    model& m, quantization_scope& scope) {
  require_not_quantized(m);
  if (unsupported_nodes(m).empty()) {
    return std::nullopt;
  }
  upgrade_opset(m);  // the part and the rest must have one opset
  divided_model divided(m);
  scope = scope_of_part(std::move(scope), m, divided.names_of_rest());
  return divided;
}

/// Calls quantize(model, scope) with the part of a model that can be run, which may be all of it,
/// and joins the result with the rest. Throws what divided_for_calibration() and `quantize` throw.
template <class Quantize>
[[nodiscard]] quantization quantize_runnable_part(model m, quantization_scope scope,
                                                  const Quantize& quantize) {
  const std::optional<divided_model> divided = divided_for_calibration(m, scope);
  if (!divided) {
    return quantize(std::move(m), scope);
  }
  quantization q = quantize(divided->runnable(), scope);
  q.result = divided->joined(std::move(q.result));
  q.not_run = divided->reasons();
  return q;
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_PARTIAL_QUANTIZATION_HPP
