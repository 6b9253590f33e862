// SPDX-License-Identifier: BSD-3-Clause
// What of a model is quantized: the nodes that stay in float, and the settings of single operators.
#ifndef DETENT_GRAPH_QUANTIZE_QUANTIZATION_SCOPE_HPP
#define DETENT_GRAPH_QUANTIZE_QUANTIZATION_SCOPE_HPP

#include <detent/config.hpp>
#include <detent/graph/quantize/ignored_scope.hpp>
#include <detent/graph/quantize/operator_rules.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Which nodes of a model are quantized, and how single operators differ from the others: the
/// options that all forms of quantization have in common.
struct quantization_scope {
  ignored_scope ignored = {};     ///< Nodes that stay in float.
  operator_rules operators = {};  ///< Settings for single operators.
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QUANTIZATION_SCOPE_HPP
