// SPDX-License-Identifier: BSD-3-Clause
// Fuses the sums of residual networks into their convolutions.
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

/// Fuses an Add into the Conv whose result it alone takes, if the other summand is not constant and
/// the weights are float32: the Conv moves to the place of the Add, where both summands are known,
/// and to the domain "detent", and takes the other summand as input 3. The result is for execution,
/// not for files, and has the same bits. Call it before fuse_activations().
DETENT_GRAPH_DECL void fuse_additions(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void fuse_additions(model& m) {
  if (!detail::has_any(m, {"Add"})) {
    return;
  }
  const links l(m);
  // The Add behind a Conv, or none. Weights of 16 bits tell that the result of the Conv has 16
  // bits, too, and is rounded before the sum.
  const auto sum_behind = [&](std::size_t i) {
    const node& n = m.nodes[i];
    if (!n.is("Conv") || detail::float_constant(m, n, 1) == nullptr) {
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
    node& convolution = m.nodes[i];
    node& addition = m.nodes[next];
    const std::string& own = convolution.outputs[0];
    const std::string other = addition.inputs[addition.inputs[0] == own ? 1 : 0];
    if (other.empty() || other == own || m.initializer(other) != nullptr) {
      continue;
    }
    // Of two convolutions the later one takes the sum: the inputs of the other one need not wait.
    const std::size_t maker = l.producer(other);
    if (maker != links::none && maker > i && sum_behind(maker) == next) {
      continue;
    }
    convolution.domain = "detent";
    m.opsets["detent"] = 1;
    convolution.inputs.resize(3);
    convolution.inputs.push_back(other);
    convolution.outputs = addition.outputs;
    addition = std::move(convolution);
    convolution = node();  // removed by erase_absorbed()
  }
  detail::erase_absorbed(m);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_FUSE_ADDITIONS_HPP
