// SPDX-License-Identifier: BSD-3-Clause
// How operators read inputs of floats.
#ifndef DETENT_GRAPH_OPS_FLOAT_INPUTS_HPP
#define DETENT_GRAPH_OPS_FLOAT_INPUTS_HPP

#include <cstddef>
#include <span>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {

/// The elements of input i, a float tensor of `count` elements; empty if the input is absent.
inline std::span<const float> optional_floats(const operator_context& c, std::size_t i,
                                              std::size_t count) {
  if (!c.has_input(i)) {
    return {};
  }
  c.require(c.inputs[i].count() == count, "input ", i, " has ", c.inputs[i].count(),
            " values, not ", count);
  c.require_supported(c.inputs[i].type() == element_type::f32, "input ", i, " of type ",
                      shown(c.inputs[i].type()), ", not float");
  return c.inputs[i].data<float>();
}

/// Throws unsupported, naming the node, if an input is not of floats.
inline void require_floats(const operator_context& c) {
  for (const tensor& t : c.inputs) {
    c.require_supported(!t.defined() || t.type() == element_type::f32,
                        "no code for elements of type ", shown(t.type()));
  }
}

/// The infer() of an operator whose run() calls require_floats(): Infer, and then expect_type() for
/// each input.
template <void (*Infer)(operator_context&)>
void infer_for_floats(operator_context& c) {
  Infer(c);
  for (const tensor& t : c.inputs) {
    if (t.defined()) {
      expect_type(c, type_list<float>{}, t.type());
    }
  }
}

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_FLOAT_INPUTS_HPP
