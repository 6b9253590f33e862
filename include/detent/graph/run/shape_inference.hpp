// SPDX-License-Identifier: BSD-3-Clause
// What is known of the values of a model before it runs.
#ifndef DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP
#define DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP

#include <cstdint>
#include <map>
#include <string>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/graph/run/value_inference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// What is known of every value before a run: type and shape, and the elements where they do not
/// depend on the inputs. Values whose shape depends on the inputs' elements are missing. Those that
/// an If makes are known where its condition is, or where both branches agree; those that a Loop or
/// a Scan carries, where no iteration changes their shapes. Values of sub-graphs are not listed.
///
/// `input_dims` gives shapes for inputs that do not declare a fixed one; other open dimensions
/// count as 1.
[[nodiscard]] inline std::map<std::string, tensor> infer_shapes(
    const model& m, const std::map<std::string, shape>& input_dims = {},
    const operator_registry& registry = default_operators()) {
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
  // A model may not have sizes of 1 where it leaves them open: what comes of them is unknown.
  detail::infer_values(m, m, known, is_open, registry);
  return known;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP
