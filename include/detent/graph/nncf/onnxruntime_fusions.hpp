// SPDX-License-Identifier: BSD-3-Clause
// Where ONNX Runtime fuses quantized operators into one that takes a single scale: scales for each
// channel, which NNCF has there, make it refuse the model or end the run. (Seen with 1.18 to 1.32.)
#ifndef DETENT_GRAPH_NNCF_ONNXRUNTIME_FUSIONS_HPP
#define DETENT_GRAPH_NNCF_ONNXRUNTIME_FUSIONS_HPP

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/placement.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

/// Whether padding, transpositions and nodes without effect have made `value` from `from`, or it is
/// that: ONNX Runtime moves a quantizer past them.
[[nodiscard]] inline bool carries(const model& m, const links& l, const std::string& from,
                                  std::string value) {
  while (value != from) {
    const std::size_t maker = l.producer(value);
    if (maker == links::none) {
      return false;
    }
    const node& n = m.nodes[maker];
    if (!n.is("Pad") && !n.is("Transpose") && !n.is("Identity") && !n.is("Dropout")) {
      return false;
    }
    value = n.inputs[0];
  }
  return true;
}

/// Whether ONNX Runtime would fuse an activation with a scale for each channel into an operator
/// that takes one scale only, and refuse the model or end the run: that of the result of an
/// average pooling, that of a Conv's result if it is uint8, and that of the input of a Conv
/// without bias whose result is quantized if it is uint8.
[[nodiscard]] inline bool stops_fused_operators(const model& m,
                                                const std::vector<placed_quantizer>& quantizers,
                                                const links& l, const placed_quantizer& of,
                                                bool is_u8) {
  const std::size_t maker = l.producer(of.value);
  const auto is_made_by = [&](const char* kind) {
    return maker != links::none && m.nodes[maker].is(kind);
  };
  if (is_made_by("AveragePool") || is_made_by("GlobalAveragePool")) {
    return true;
  }
  if (!is_u8) {
    return false;
  }
  if (is_made_by("Conv")) {
    return true;
  }
  const auto is_quantized = [&](const std::string& value) {
    return std::any_of(quantizers.begin(), quantizers.end(),
                       [&](const placed_quantizer& other) { return other.value == value; });
  };
  const auto fuses = [&](std::size_t i) {
    const node& n = m.nodes[i];
    if (!n.is("Conv") || !carries(m, l, of.value, n.inputs[0]) ||
        (n.inputs.size() > 2 && !n.inputs[2].empty())) {
      return false;
    }
    const auto users = l.consumers(n.outputs[0]);
    return is_quantized(n.outputs[0]) ||
           std::any_of(users.begin(), users.end(), [&](std::size_t user) {
             const node& next = m.nodes[user];
             return (next.is("Relu") || next.is("Clip")) && is_quantized(next.outputs[0]);
           });
  };
  return std::any_of(of.serves.begin(), of.serves.end(), fuses);
}

/// Whether weights are the right side of a product in a shape other than that of a matrix. ONNX
/// Runtime fuses the product of such integers, and then takes no scales for columns.
[[nodiscard]] inline bool is_no_matrix(const model& m, const placed_quantizer& of) {
  return m.nodes[of.weights_of->node].is("MatMul") && of.weights_of->input == 1 &&
         m.initializers.at(of.value).rank() != 2;
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_ONNXRUNTIME_FUSIONS_HPP
