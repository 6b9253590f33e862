// SPDX-License-Identifier: BSD-3-Clause
// What tests of PPQ's passes look up in a quantized_graph, and the platform they calibrate for.
#ifndef DETENT_TESTS_GRAPH_PPQ_GRAPHS_HPP
#define DETENT_TESTS_GRAPH_PPQ_GRAPHS_HPP

#include <cstddef>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <detent/graph/model/ir.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>

#include "model_builder.hpp"

namespace test {

namespace ppq = detent::graph::ppq;
using detent::error_kind;
using ppq::config_id;
using ppq::quantization_state;
using ppq::quantized_graph;

/// The node of an operator of ONNX's, the `which`-th of them.
inline std::size_t index_of(const graph::model& m, std::string_view op, std::size_t which = 0) {
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    if (m.nodes[i].is(op) && which-- == 0) {
      return i;
    }
  }
  FAIL("no such node: ", std::string(op));
  return 0;
}
inline std::size_t index_of(const quantized_graph& g, std::string_view op, std::size_t which = 0) {
  return index_of(g.network, op, which);
}
inline config_id input_config(const quantized_graph& g, std::string_view op, std::size_t slot,
                              std::size_t which = 0) {
  return g.operators.at(index_of(g, op, which)).inputs.at(slot);
}
inline config_id output_config(const quantized_graph& g, std::string_view op,
                               std::size_t which = 0) {
  return g.operators.at(index_of(g, op, which)).outputs.at(0);
}

/// A platform whose activations are observed by their extremes.
inline ppq::platform minmax_platform(const std::string& name) {
  ppq::platform p = ppq::find_platform(name);
  p.activation.observer = "minmax";
  return p;
}

}  // namespace test

#endif  // DETENT_TESTS_GRAPH_PPQ_GRAPHS_HPP
