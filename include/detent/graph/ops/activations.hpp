// SPDX-License-Identifier: BSD-3-Clause
// The operators of the activation functions (unary_functions.hpp), PRelu and SwiGLU.
#ifndef DETENT_GRAPH_OPS_ACTIVATIONS_HPP
#define DETENT_GRAPH_OPS_ACTIVATIONS_HPP

#include <span>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/unary_functions.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Infers the output of PRelu. The slope is broadcast to the input; an input that would have to be
/// broadcast to the slope is an error.
inline void infer_prelu(operator_context& c) {
  infer_broadcast(c);
  const shape& x = c.input(0).dims();
  // Before opset 7, the slopes are those of the channels: axis 1.
  c.require_supported(
      c.opset >= 7 || c.input(1).count() == 1 || x.size() == 2 || c.input(1).rank() + 1 == x.size(),
      "slopes of shape ", shown(c.input(1).dims()), " for an input of shape ", shown(x),
      " in opset ", c.opset);
  c.require(c.outputs[0].dims() == x, "a slope of shape ", shown(c.input(1).dims()),
            " for an input of shape ", shown(x));
}

struct prelu {
  template <class T>
  [[nodiscard]] T operator()(T x, T slope) const {
    return unary::scale_negative(x, slope);
  }
};

inline void run_prelu(operator_context& c) {
  for_type(c, wide_types{}, widened(c.input(0).type()), [&]<class T>() {
    const elements<T> x(c, c.input(0));
    const elements<T> slope(c, c.input(1));
    fill_output<T>(c,
                   [&](std::span<T> out) {
                     map_broadcast(c, prelu{}, x.as_operand(), slope.as_operand(), out,
                                   c.outputs[0].dims());
                   },
                   {0});
  });
}

inline void infer_swiglu(operator_context& c) {
  c.require(c.input(0).type() == c.input(1).type() && c.input(0).dims() == c.input(1).dims(),
            "the gate is ", shown(c.input(0).type()), " ", shown(c.input(0).dims()),
            ", the other input ", shown(c.input(1).type()), " ", shown(c.input(1).dims()));
  infer_like_input(c);
}

/// Computes swish(gate) * x.
inline void run_swiglu(operator_context& c) {
  const unary::swish swish(c.n());
  const auto f = [&swish](auto gate, auto x) {
    return static_cast<decltype(x)>(swish(static_cast<double>(gate)) * static_cast<double>(x));
  };
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() {
    map_broadcast(c, f, operand_of<T>(c.input(0)), operand_of<T>(c.input(1)),
                  c.make_output_over(0, {0, 1}).mutable_data<T>(), c.outputs[0].dims(),
                  costly_piece);
  });
}

inline constexpr operator_definition activation_operators[] = {
    unary_operator<unary::relu>(),
    unary_operator<unary::leaky_relu>(),
    unary_operator<unary::elu>(),
    unary_operator<unary::selu>(),
    unary_operator<unary::celu>(),
    unary_operator<unary::thresholded_relu>(),
    unary_operator<unary::sigmoid>(),
    unary_operator<unary::tanh>(),
    unary_operator<unary::hard_sigmoid>(),
    unary_operator<unary::hard_swish>(),
    unary_operator<unary::softplus>(),
    unary_operator<unary::softsign>(),
    unary_operator<unary::gelu>(),
    unary_operator<unary::swish>(),
    unary_operator<unary::mish>(),
    {"", "PRelu", 2, 2, layout_support::plain, &infer_widened<wide_types, &infer_prelu>, &run_prelu,
     true},
    {"", "SwiGLU", 2, 2, layout_support::elementwise, &infer_for<float_types, &infer_swiglu>,
     &run_swiglu, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_ACTIVATIONS_HPP
