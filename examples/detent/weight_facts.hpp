// SPDX-License-Identifier: BSD-3-Clause
// What `detent quantize` says of the weights of a model that it has written.
#ifndef DETENT_CLI_WEIGHT_FACTS_HPP
#define DETENT_CLI_WEIGHT_FACTS_HPP

#include <cstddef>
#include <map>
#include <string>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>

namespace detent_cli {

/// How many constants of a model are weights of 4 and of 8 bits.
struct weight_widths {
  std::size_t of_4 = 0;
  std::size_t of_8 = 0;
};

inline weight_widths widths_of_weights(const detent::graph::model& m) {
  using detent::graph::element_type;
  weight_widths w;
  for (const detent::graph::node& n : m.nodes) {
    if (n.op_type == "MatMulNBits") {
      (n.get_int("bits", 4) == 4 ? w.of_4 : w.of_8) += 1;
    } else if (n.is("DequantizeLinear")) {
      const detent::graph::tensor* const t = m.initializer(n.inputs[0]);
      const bool is_4 =
          t != nullptr && (t->type() == element_type::u4 || t->type() == element_type::s4);
      (is_4 ? w.of_4 : w.of_8) += t != nullptr ? 1U : 0U;
    }
  }
  return w;
}

/// Counts the layers that have constant weights of floats, also in graphs within nodes.
class float_layers {
 public:
  /// Counts the MatMul and Gemm, and if `with_convolutions` is true the Conv and ConvTranspose,
  /// that have weights of float32 or float64.
  float_layers(const detent::graph::model& m, bool with_convolutions)
      : with_convolutions_(with_convolutions) {
    search(m, nullptr);
  }

  /// "2 layers stay in float (first: MatMul node 'm', weights of shape [1,64,64])"; empty if there
  /// are none.
  [[nodiscard]] std::string text() const {
    return count_ == 0 ? std::string()
                       : std::to_string(count_) + (count_ == 1 ? " layer stays" : " layers stay") +
                             " in float (first: " + first_ + ")";
  }

 private:
  /// A graph whose nodes are looked at, and the one around it.
  struct scope {
    const detent::graph::graph_body& graph;
    std::map<std::string, const detent::graph::tensor*> results_of_constants;
    const scope* outer;

    [[nodiscard]] const detent::graph::tensor* constant(const std::string& name) const {
      for (const scope* s = this; s != nullptr; s = s->outer) {
        const auto stored = s->graph.initializers.find(name);
        const auto made = s->results_of_constants.find(name);
        if (stored != s->graph.initializers.end()) {
          return &stored->second;
        }
        if (made != s->results_of_constants.end()) {
          return made->second;
        }
      }
      return nullptr;
    }
  };

  void search(const detent::graph::graph_body& g, const scope* outer) {
    scope here{g, {}, outer};
    for (const detent::graph::node& n : g.nodes) {
      const detent::graph::attribute* const value = n.is("Constant") ? n.find("value") : nullptr;
      if (value != nullptr && !n.outputs.empty()) {
        here.results_of_constants[n.outputs[0]] = &value->t;
      }
      const bool convolves = with_convolutions_ && (n.is("Conv") || n.is("ConvTranspose"));
      if (convolves || n.is("MatMul") || n.is("Gemm")) {
        count(here, n, convolves ? 1 : 0);
      }
      detent::graph::for_each_body(
          n,
          [&](const std::string&, const detent::graph::graph_body& body) { search(body, &here); });
    }
  }

  /// Counts a node if its input `first`, or one up to input 1, is weights.
  void count(const scope& s, const detent::graph::node& n, std::size_t first) {
    using detent::graph::element_type;
    for (std::size_t i = first; i < 2 && i < n.inputs.size(); ++i) {
      const detent::graph::tensor* const w = s.constant(n.inputs[i]);
      if (w != nullptr && w->rank() >= 2 && w->count() > 0 &&
          (w->type() == element_type::f32 || w->type() == element_type::f64)) {
        if (count_++ == 0) {
          first_ = n.label() + ", weights of shape " + detent::graph::to_string(w->dims());
        }
        return;
      }
    }
  }

  bool with_convolutions_;
  std::size_t count_ = 0;
  std::string first_;
};

}  // namespace detent_cli

#endif  // DETENT_CLI_WEIGHT_FACTS_HPP
