// SPDX-License-Identifier: BSD-3-Clause
// Fuses the sums of residual networks, and biases, into convolutions and products.
#ifndef DETENT_GRAPH_REWRITE_FUSE_ADDITIONS_HPP
#define DETENT_GRAPH_REWRITE_FUSE_ADDITIONS_HPP

#include <cstddef>
#include <string>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Fuses an Add into the Conv or MatMul whose result it alone takes, if the right side or the
/// filters are constant and of float32; behind a Conv the other summand must not be constant. The
/// layer moves to the place of the Add, where both summands are known, and to the domain "detent",
/// and takes the other summand as input 3 (Conv) or 2 (MatMul). The result is for execution, not
/// for files, and has the same bits. Call it before fuse_activations().
DETENT_GRAPH_DECL void fuse_additions(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void fuse_additions(model& m) {
  if (!detail::has_any(m, {"Add"})) {
    return;
  }
  const links l(m);
  // The Add behind a layer, or none. Weights of 16 bits tell that the result of the layer has 16
  // bits, too, and is rounded before the sum.
  const auto sum_behind = [&](std::size_t i) {
    const node& n = m.nodes[i];
    const tensor* weights =
        n.is("Conv") || n.is("MatMul") ? detail::float_constant(m, n, 1) : nullptr;
    if (weights == nullptr || (n.is("MatMul") && weights->rank() != 2)) {
      return links::none;
    }
    const std::size_t next = detail::sole_consumer(m, l, i);
    const bool is_sum = next != links::none && m.nodes[next].is("Add") &&
                        m.nodes[next].inputs.size() == 2 && m.nodes[next].attributes.empty();
    return is_sum ? next : links::none;
  };
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    const std::size_t next = sum_behind(i);
    if (next == links::none) {
      continue;
    }
    node& layer = m.nodes[i];
    node& addition = m.nodes[next];
    const std::string& own = layer.outputs[0];
    const std::string other = addition.inputs[addition.inputs[0] == own ? 1 : 0];
    const bool is_product = layer.is("MatMul");
    if (other.empty() || other == own || (!is_product && m.initializer(other) != nullptr)) {
      continue;
    }
    // Of two layers the later one takes the sum: the inputs of the other one need not wait.
    const std::size_t maker = l.producer(other);
    if (maker != links::none && maker > i && sum_behind(maker) == next) {
      continue;
    }
    layer.domain = "detent";
    m.opsets["detent"] = 1;
    layer.inputs.resize(is_product ? 2 : 3);
    layer.inputs.push_back(other);
    layer.outputs = addition.outputs;
    addition = std::move(layer);
    layer = node();  // removed by erase_absorbed()
  }
  detail::erase_absorbed(m);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_FUSE_ADDITIONS_HPP
