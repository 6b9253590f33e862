// SPDX-License-Identifier: BSD-3-Clause
// The registry of the operators that come with the library.
#ifndef DETENT_GRAPH_RUN_REGISTRY_HPP
#define DETENT_GRAPH_RUN_REGISTRY_HPP

#include <detent/config.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/ops/operator.hpp>

#if DETENT_GRAPH_DEFINES_EXECUTION
#include <detent/graph/ops/activations.hpp>
#include <detent/graph/ops/attention.hpp>
#include <detent/graph/ops/bitwise.hpp>
#include <detent/graph/ops/cast.hpp>
#include <detent/graph/ops/comparison.hpp>
#include <detent/graph/ops/control_flow.hpp>
#include <detent/graph/ops/convolution.hpp>
#include <detent/graph/ops/detection.hpp>
#include <detent/graph/ops/dynamic_layers.hpp>
#include <detent/graph/ops/dynamic_lstm.hpp>
#include <detent/graph/ops/einsum.hpp>
#include <detent/graph/ops/elementwise.hpp>
#include <detent/graph/ops/gather.hpp>
#include <detent/graph/ops/grid_sample.hpp>
#include <detent/graph/ops/integer_to_float.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/graph/ops/matmul_nbits.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/normalization.hpp>
#include <detent/graph/ops/pooling.hpp>
#include <detent/graph/ops/quantization.hpp>
#include <detent/graph/ops/quantized_elementwise.hpp>
#include <detent/graph/ops/quantized_normalization.hpp>
#include <detent/graph/ops/recurrent.hpp>
#include <detent/graph/ops/reduction.hpp>
#include <detent/graph/ops/resize.hpp>
#include <detent/graph/ops/scatter.hpp>
#include <detent/graph/ops/selection.hpp>
#include <detent/graph/ops/shape.hpp>
#include <detent/graph/ops/softmax.hpp>
#include <detent/graph/ops/sorting.hpp>
#endif

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The registry of all operators that come with the library: those of ONNX, of com.microsoft, and
/// of the library's own domain "detent". To bring operators of your own, copy it and add() to the
/// copy. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL const operator_registry& default_operators();

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL const operator_registry& default_operators() {
  static const operator_registry registry = [] {
    operator_registry r;
    r.add(ops::activation_operators);
    r.add(ops::attention_operators);
    r.add(ops::bitwise_operators);
    r.add(ops::cast_operators);
    r.add(ops::comparison_operators);
    r.add(ops::control_flow_operators);
    r.add(ops::convolution_operators);
    r.add(ops::detection_operators);
    r.add(ops::dynamic_layer_operators);
    r.add(ops::dynamic_lstm_operators);
    r.add(ops::einsum_operators);
    r.add(ops::elementwise_operators);
    r.add(ops::gather_operators);
    r.add(ops::grid_sample_operators);
    r.add(ops::integer_to_float_operators);
    r.add(ops::matmul_nbits_operators);
    r.add(ops::matmul_operators);
    r.add(ops::movement_operators);
    r.add(ops::normalization_operators);
    r.add(ops::softmax_operators);
    r.add(ops::quantized_normalization_operators);
    r.add(ops::pooling_operators);
    r.add(ops::quantization_operators);
    r.add(ops::quantized_elementwise_operators);
    r.add(ops::recurrent_operators);
    r.add(ops::reduction_operators);
    r.add(ops::resize_operators);
    r.add(ops::scatter_operators);
    r.add(ops::selection_operators);
    r.add(ops::shape_operators);
    r.add(ops::sorting_operators);
    return r;
  }();
  return registry;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_RUN_REGISTRY_HPP
