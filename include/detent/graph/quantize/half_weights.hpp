// SPDX-License-Identifier: BSD-3-Clause
// Finds layers that stay as they are because their weights are floats of 16 bits.
#ifndef DETENT_GRAPH_QUANTIZE_HALF_WEIGHTS_HPP
#define DETENT_GRAPH_QUANTIZE_HALF_WEIGHTS_HPP

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Says how many layers of a model have constant weights of float16 or bfloat16, and names the
/// first one: "2 layers have weights of 16 bits (first: Conv node 'Conv_0', float16); only float32
/// weights are quantized". Empty if there is none. Layers are Conv, ConvTranspose, Gemm, MatMul,
/// LSTM, GRU and RNN outside sub-graphs. All ways of quantization leave such layers as they are.
[[nodiscard]] inline std::string half_weights_reason(const model& m) {
  static constexpr std::string_view layers[] = {"Conv", "ConvTranspose", "Gemm", "MatMul",
                                                "LSTM", "GRU",           "RNN"};
  const links l(m);
  // A constant is an initializer or the result of a Constant.
  const auto type_of = [&](const std::string& name) {
    const tensor* t = m.initializer(name);
    const std::size_t maker = l.producer(name);
    if (t == nullptr && maker != links::none && m.nodes[maker].is("Constant")) {
      const attribute* value = m.nodes[maker].find("value");
      t = value == nullptr ? nullptr : &value->t;
    }
    return t == nullptr ? element_type::undefined : t->type();
  };
  std::size_t count = 0;
  std::string first;
  for (const node& n : m.nodes) {
    const bool is_layer = n.domain.empty() && std::find(std::begin(layers), std::end(layers),
                                                        n.op_type) != std::end(layers);
    const element_type type =
        is_layer && n.inputs.size() > 1 ? type_of(n.inputs[1]) : element_type::undefined;
    if (detail::is_half(type)) {
      first = count == 0 ? n.label() + ", " + name(type) : first;
      ++count;
    }
  }
  if (count == 0) {
    return {};
  }
  return std::to_string(count) + (count == 1 ? " layer has" : " layers have") +
         " weights of 16 bits (first: " + first + "); only float32 weights are quantized";
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_HALF_WEIGHTS_HPP
