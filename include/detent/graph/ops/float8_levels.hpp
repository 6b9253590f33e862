// SPDX-License-Identifier: BSD-3-Clause
// Quantizes tensors to floats of 8 bits and back, element by element, as ONNX's QuantizeLinear and
// DequantizeLinear do.
#ifndef DETENT_GRAPH_OPS_FLOAT8_LEVELS_HPP
#define DETENT_GRAPH_OPS_FLOAT8_LEVELS_HPP

#include <cstddef>

#include <detent/config.hpp>
#include <detent/float_formats.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Writes q[i] = round_to(x[i] / scale_of(i)) for the elements [begin, end) in the order in which
/// they are stored. x holds float; q has one of the types of float8_types, as many elements, and
/// memory of its own. The quotient is rounded to float, then to nearest, ties to even; `saturate`
/// is that of round_to().
template <class ScaleOf>
void quantize_float8(const tensor& x, tensor& q, std::size_t begin, std::size_t end,
                     const ScaleOf& scale_of, bool saturate) {
  static_cast<void>(visit_type(float8_types{}, q.type(), [&]<class F>() {
    const float* from = x.data<float>().data();
    F* to = q.mutable_data<F>().data();
    for (std::size_t i = begin; i < end; ++i) {
      to[i] = round_to<F>(from[i] / scale_of(i), saturate);
    }
  }));
}

/// Writes y[i] = q[i] * scale_of(i), rounded to float, for the elements [begin, end) in the order
/// in which they are stored. q has one of the types of float8_types; y holds float and has as many
/// elements.
template <class ScaleOf>
void dequantize_float8(const tensor& q, tensor& y, std::size_t begin, std::size_t end,
                       const ScaleOf& scale_of) {
  static_cast<void>(visit_type(float8_types{}, q.type(), [&]<class F>() {
    const F* from = q.data<F>().data();
    float* to = y.mutable_data<float>().data();
    for (std::size_t i = begin; i < end; ++i) {
      to[i] = to_float(from[i]) * scale_of(i);
    }
  }));
}

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_FLOAT8_LEVELS_HPP
