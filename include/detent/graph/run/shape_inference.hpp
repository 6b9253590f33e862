// SPDX-License-Identifier: BSD-3-Clause
// Shape inference: infer_shapes() computes what is known of the values of a model before it runs,
// infer_types() only types and ranks.
#ifndef DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP
#define DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
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

/// The types and ranks of the values of a model before it runs, as tensors without meaning in their
/// sizes: those of infer_shapes(), and, of the values that it does not know because windows do not
/// fit into images of one pixel, those that follow where all open dimensions but the first one of
/// each input count as 480. A rank that depends on an open dimension is the one for these sizes;
/// value_types (rewrite/value_shapes.hpp) tells which ranks do not. Throws what infer_shapes()
/// throws. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL std::map<std::string, tensor> infer_types(
    const model& m, const operator_registry& registry = default_operators());

namespace detail {

/// infer_shapes() where nodes whose inputs do not fit together are never an error, and where the
/// choices of `undecided` are unknown; see infer_values().
[[nodiscard]] DETENT_GRAPH_DECL std::map<std::string, tensor> infer_leniently(
    const model& m, const std::map<std::string, shape>& input_dims,
    const operator_registry& registry, const std::set<const node*>& undecided);

}  // namespace detail

#if DETENT_GRAPH_DEFINES_EXECUTION
namespace detail {

/// Adds to `known` the constants of a model, and its inputs with open dimensions as `open_dim`, the
/// first one of each input as 1. Returns whether there are any open dimensions.
inline bool add_given_values(const model& m, const std::map<std::string, shape>& input_dims,
                             std::int64_t open_dim, std::map<std::string, tensor>& known) {
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
    for (std::size_t d = 0; d < dims.size(); ++d) {
      is_open = is_open || dims[d] < 0;
      dims[d] = dims[d] >= 0 ? dims[d] : d == 0 ? 1 : open_dim;
    }
    known[v.name] = tensor(v.type, dims);
  }
  return is_open;
}

/// infer_shapes() where open dimensions count as `open_dim`, the first one of each input as 1.
/// Returns whether there are any.
inline bool infer_with_open_dims(const model& m, const std::map<std::string, shape>& input_dims,
                                 const operator_registry& registry, std::int64_t open_dim,
                                 std::map<std::string, tensor>& known) {
  const bool is_open = add_given_values(m, input_dims, open_dim, known);
  // The model may be wrong for the size that stands for an open dimension, hence lenient.
  infer_values(m, m, known, is_open, registry);
  return is_open;
}

DETENT_GRAPH_DECL std::map<std::string, tensor> infer_leniently(
    const model& m, const std::map<std::string, shape>& input_dims,
    const operator_registry& registry, const std::set<const node*>& undecided) {
  std::map<std::string, tensor> known;
  static_cast<void>(add_given_values(m, input_dims, 1, known));
  infer_values(m, m, known, true, registry, nullptr, &undecided);
  return known;
}

}  // namespace detail

DETENT_GRAPH_DECL std::map<std::string, tensor> infer_shapes(
    const model& m, const std::map<std::string, shape>& input_dims,
    const operator_registry& registry) {
  std::map<std::string, tensor> known;
  static_cast<void>(detail::infer_with_open_dims(m, input_dims, registry, 1, known));
  return known;
}

DETENT_GRAPH_DECL std::map<std::string, tensor> infer_types(const model& m,
                                                            const operator_registry& registry) {
  std::map<std::string, tensor> known;
  const bool is_open = detail::infer_with_open_dims(m, {}, registry, 1, known);
  const auto is_unknown = [&](const std::string& name) {
    return !name.empty() && known.count(name) == 0;
  };
  const bool is_complete = std::none_of(m.nodes.begin(), m.nodes.end(), [&](const node& n) {
    return std::any_of(n.outputs.begin(), n.outputs.end(), is_unknown);
  });
  if (is_open && !is_complete) {
    constexpr std::int64_t larger_size = 480;
    std::map<std::string, tensor> larger;
    static_cast<void>(detail::infer_with_open_dims(m, {}, registry, larger_size, larger));
    for (const auto& [name, t] : larger) {
      known.try_emplace(name, t.form());
    }
  }
  return known;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_SHAPE_INFERENCE_HPP
