// SPDX-License-Identifier: BSD-3-Clause
// Nodes that change no value, in places of a quantized model where ONNX Runtime's optimizations go
// wrong without them.
#ifndef DETENT_GRAPH_REWRITE_ONNXRUNTIME_GUARDS_HPP
#define DETENT_GRAPH_REWRITE_ONNXRUNTIME_GUARDS_HPP

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/integer_operators.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Adds the nodes of add_onnxruntime_guards().
class onnxruntime_guards {
 public:
  explicit onnxruntime_guards(model& m) : m_(m), links_(m), writer_(m) {
    for (const node& n : m.nodes) {
      if (has_bodies(n)) {
        captured_.merge(captured_values(n));
      }
    }
  }

  void run() {
    for (const node& n : m_.nodes) {
      add(n);
    }
    m_.nodes = std::move(nodes_);
  }

 private:
  void add(const node& n) {
    const std::size_t place = nodes_.size();
    nodes_.push_back(n);
    if (n.is("AveragePool") && !has_integer_average(n) && !n.inputs.empty() &&
        dequantization_of(n.inputs[0]) != links::none) {
      node sum = made("Sum", n.inputs[0], {n.inputs[0]});
      nodes_[place].inputs[0] = sum.outputs[0];
      nodes_.insert(nodes_.begin() + static_cast<std::ptrdiff_t>(place), std::move(sum));
    }
    const std::size_t from = is_mover(n) && captured_.count(n.outputs[0]) != 0
                                 ? dequantization_of(n.outputs[0])
                                 : links::none;
    if (from != links::none) {
      const node& pair = m_.nodes[from];
      const std::string& value = n.outputs[0];
      const std::string moved = writer_.fresh(value + "_moved");
      nodes_[place].outputs[0] = moved;
      node quantize = made("QuantizeLinear", value, {moved, pair.inputs[1], pair.inputs[2]});
      node dequantize =
          made("DequantizeLinear", value, {quantize.outputs[0], pair.inputs[1], pair.inputs[2]});
      quantize.domain = pair.domain;
      dequantize.domain = pair.domain;
      dequantize.attributes = pair.attributes;
      dequantize.outputs = {value};
      nodes_.push_back(std::move(quantize));
      nodes_.push_back(std::move(dequantize));
    }
  }

  /// A node that makes a new value of `value`.
  [[nodiscard]] node made(const char* op, const std::string& value,
                          std::vector<std::string> inputs) {
    const std::string name = value + "_" + op;
    return writer_.make_node(op, name, std::move(inputs), writer_.fresh(name + "_output"));
  }

  /// Whether ONNX Runtime moves a DequantizeLinear from the input of this operator to its output.
  [[nodiscard]] static bool is_mover(const node& n) {
    static constexpr std::string_view movers[] = {"Reshape", "Transpose", "MaxPool",
                                                  "Squeeze", "Unsqueeze", "Slice"};
    return n.domain.empty() && !n.inputs.empty() &&
           std::find(std::begin(movers), std::end(movers), n.op_type) != std::end(movers);
  }

  /// The DequantizeLinear node with one scale and a zero point that makes the value, or of which
  /// is_mover() nodes make it; `links::none` if there is none.
  [[nodiscard]] std::size_t dequantization_of(std::string value) const {
    for (std::size_t i = links_.producer(value); i != links::none; i = links_.producer(value)) {
      const node& n = m_.nodes[i];
      if (n.op_type == "DequantizeLinear") {
        const tensor* const scale = n.inputs.size() == 3 ? m_.initializer(n.inputs[1]) : nullptr;
        return scale != nullptr && scale->count() == 1 ? i : links::none;
      }
      if (!is_mover(n) || n.outputs[0] != value) {  // not the indices of a MaxPool
        return links::none;
      }
      value = n.inputs[0];
    }
    return links::none;
  }

  model& m_;
  links links_;
  graph_writer writer_;
  std::set<std::string> captured_;
  std::vector<node> nodes_;
};

}  // namespace detail

/// Adds nodes that change no value to a quantized model whose nodes are in topological order:
///
///   a QuantizeLinear and a DequantizeLinear, with the scale and zero point of the pair in front,
///     behind each value that a sub-graph takes and that a Reshape, Transpose, MaxPool, Squeeze,
///     Unsqueeze or Slice has made of a dequantized one. ONNX Runtime (1.18 to 1.32) moves the
///     DequantizeLinear behind these operators, does not look at sub-graphs when it does, and ends
///     the process.
///   a Sum of one value in front of an AveragePool of a dequantized value, if there is no operator
///     on integers that averages in this way (detail::has_integer_average()). ONNX Runtime would
///     replace the pool by that operator.
inline void add_onnxruntime_guards(model& m) {
  const bool may_need_any = std::any_of(m.nodes.begin(), m.nodes.end(), [](const node& n) {
    return has_bodies(n) || (n.is("AveragePool") && !detail::has_integer_average(n));
  });
  if (may_need_any) {
    detail::onnxruntime_guards(m).run();
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_ONNXRUNTIME_GUARDS_HPP
