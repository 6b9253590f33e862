// SPDX-License-Identifier: BSD-3-Clause
// Writes the pads of all dimensions where a Pad lists only some of them.
#ifndef DETENT_GRAPH_REWRITE_FULL_PADS_HPP
#define DETENT_GRAPH_REWRITE_FULL_PADS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The elements of input i of a node if it is a constant of int32 or int64 whose elements are in
/// memory, else nothing.
[[nodiscard]] inline std::optional<std::vector<std::int64_t>> constant_integers(const model& m,
                                                                                const node& n,
                                                                                std::size_t i) {
  const tensor* t = i < n.inputs.size() ? m.initializer(n.inputs[i]) : nullptr;
  if (t == nullptr || !t->has_data()) {
    return std::nullopt;
  }
  if (t->type() == element_type::s32) {
    return std::vector<std::int64_t>(t->data<std::int32_t>().begin(),
                                     t->data<std::int32_t>().end());
  }
  if (t->type() == element_type::s64) {
    return std::vector<std::int64_t>(t->data<std::int64_t>().begin(),
                                     t->data<std::int64_t>().end());
  }
  return std::nullopt;
}

/// The pads of all `rank` dimensions, those before the elements first: 0 where `axes` does not name
/// a dimension. Returns nothing if `axes` names one twice or one that there is not, or if there are
/// not two pads for each of them.
[[nodiscard]] inline std::optional<std::vector<std::int64_t>> pads_of_all_dimensions(
    const std::vector<std::int64_t>& pads, const std::vector<std::int64_t>& axes,
    std::size_t rank) {
  if (pads.size() != 2 * axes.size()) {
    return std::nullopt;
  }
  std::vector<std::int64_t> all(2 * rank, 0);
  std::set<std::int64_t> named;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t axis = axes[i] < 0 ? axes[i] + static_cast<std::int64_t>(rank) : axes[i];
    if (axis < 0 || axis >= static_cast<std::int64_t>(rank) || !named.insert(axis).second) {
      return std::nullopt;
    }
    all[static_cast<std::size_t>(axis)] = pads[i];
    all[rank + static_cast<std::size_t>(axis)] = pads[axes.size() + i];
  }
  return all;
}

}  // namespace detail

/// Gives each Pad of opset 18 that lists some dimensions in its input `axes` the pads of all
/// dimensions instead, so that it needs no `axes`. It is done where both are constants and the rank
/// of the padded value is certain (value_shapes); other nodes, and those of sub-graphs, stay.
///
/// ONNX Runtime needs it: where it brings quantized convolutions to channels-last order, it
/// permutes the pads as if there were some for each dimension, and cannot load a model with `axes`
/// (seen with release 1.32).
DETENT_GRAPH_DECL void write_full_pads(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void write_full_pads(model& m) {
  const auto has_axes = [](const node& n) {
    return n.is("Pad") && n.inputs.size() > 3 && !n.inputs[3].empty();
  };
  if (std::none_of(m.nodes.begin(), m.nodes.end(), has_axes)) {
    return;
  }
  const value_shapes shapes(m);
  unused_names names(m);
  for (node& n : m.nodes) {
    if (!has_axes(n)) {
      continue;
    }
    const auto pads = detail::constant_integers(m, n, 1);
    const auto axes = detail::constant_integers(m, n, 3);
    const std::optional<shape> dims = shapes.dims(n.inputs[0]);
    if (!pads || !axes || !dims) {
      continue;
    }
    if (auto all = detail::pads_of_all_dimensions(*pads, *axes, dims->size())) {
      n.inputs[1] = names.take(n.inputs[1] + "_of_all_dimensions");
      m.initializers[n.inputs[1]] = tensor::of<std::int64_t>(
          element_type::s64, {static_cast<std::int64_t>(all->size())}, *all);
      n.inputs.resize(n.inputs[2].empty() ? 2 : 3);
    }
  }
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_FULL_PADS_HPP
