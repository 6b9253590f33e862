// SPDX-License-Identifier: BSD-3-Clause
// Shape inference: infer_shapes() computes what is known of the values of a model before it runs.
#ifndef DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP
#define DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP

#include <cstdint>
#include <map>
#include <string>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/value_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Computes what is known of the values of a model before it runs, by name: type and shape, and the
/// elements too if they are few (up to 4096) and do not depend on the elements of inputs.
///
/// A value is missing from the result if its shape depends on elements of inputs, or if its node or
/// one before it has no operator in `registry` or calls a function of the model. Outputs of an If
/// are known if its condition is, or if both branches agree on type and shape; values that a Loop
/// or Scan carries are known if an iteration does not change their types and shapes. Values of
/// sub-graphs are not listed.
///
/// `input_dims` gives the shapes of inputs by name and takes the place of what they declare. Open
/// dimensions (-1) count as 1; an input without any shape is unknown. `m` must have its nodes in
/// topological order.
///
/// Throws what the operators throw, naming the node, for nodes whose inputs do not fit together. If
/// a dimension of an input is open, such nodes are no error and their outputs are missing, because
/// the 1 in its place may be what does not fit. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL std::map<std::string, tensor> infer_shapes(
    const model& m, const std::map<std::string, shape>& input_dims = {},
    const operator_registry& registry = default_operators());

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL std::map<std::string, tensor> infer_shapes(
    const model& m, const std::map<std::string, shape>& input_dims,
    const operator_registry& registry) {
  std::map<std::string, tensor> known;
  for (const auto& [name, t] : m.initializers) {
    known[name] = t;
  }
  bool is_open = false;
  for (const value_info& v : m.inputs) {
    const auto given = input_dims.find(v.name);
    if (given == input_dims.end() && !v.has_shape) {
      continue;
    }
    shape dims = given != input_dims.end() ? given->second : v.dims;
    for (std::int64_t& d : dims) {
      is_open = is_open || d < 0;
      d = d < 0 ? 1 : d;
    }
    known[v.name] = tensor(v.type, dims);
  }
  // The model may be wrong for the size 1 that stands for an open dimension, hence lenient.
  detail::infer_values(m, m, known, is_open, registry);
  return known;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP
