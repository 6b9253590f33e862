// SPDX-License-Identifier: BSD-3-Clause
// The operators that networks are trained with: which run forwards, and which have a gradient.
#ifndef DETENT_GRAPH_LEARN_TRAINING_OPERATORS_HPP
#define DETENT_GRAPH_LEARN_TRAINING_OPERATORS_HPP

#include <map>
#include <string_view>
#include <utility>

#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/ops/operator.hpp>

#if DETENT_GRAPH_DEFINES_QUANTIZATION
#include <detent/graph/learn/fake_quantize_gradient.hpp>
#include <detent/graph/learn/fake_quantize_operator.hpp>
#include <detent/graph/learn/fold_normalization.hpp>
#include <detent/graph/learn/gradients/attention.hpp>
#include <detent/graph/learn/gradients/convolution.hpp>
#include <detent/graph/learn/gradients/elementwise.hpp>
#include <detent/graph/learn/gradients/matmul.hpp>
#include <detent/graph/learn/gradients/movement.hpp>
#include <detent/graph/learn/gradients/normalization.hpp>
#include <detent/graph/learn/gradients/pooling.hpp>
#include <detent/graph/learn/gradients/recurrent.hpp>
#include <detent/graph/learn/gradients/reduction.hpp>
#include <detent/graph/learn/gradients/resize.hpp>
#include <detent/graph/learn/gradients/slopes.hpp>
#include <detent/graph/run/registry.hpp>
#endif

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The registry of all operators that gradient_graph runs by default: default_operators() and
/// those of make_fake_quantize.hpp and fold_normalization.hpp. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL const operator_registry& training_operators();

/// The gradient of a node's operator, or null if there is none. These operators have one:
///
///   Conv, ConvTranspose, Gemm, MatMul, Einsum, Attention, RotaryEmbedding
///   BatchNormalization (also with training_mode, of opset 14 and later), InstanceNormalization,
///   GroupNormalization, LayerNormalization, RMSNormalization, MeanVarianceNormalization,
///   ImageScaler, LRN, LpNormalization, Softmax, LogSoftmax
///   MaxPool, AveragePool, LpPool and their global forms
///   the functions of single elements (unary_functions.hpp) but Sign, Ceil, Floor and Round; PRelu,
///   SwiGLU, Clip, Add, Sub, Mul, Div, Mod, Pow, Sum, Mean, Max, Min, Where
///   all reductions, CumSum, CumProd
///   RNN, GRU, LSTM
///   Cast and CastLike between floating-point types, Dropout, Identity
///   Reshape, Flatten, Squeeze, Unsqueeze, Expand, Transpose, Concat, Split, Slice, Pad, Tile,
///   DepthToSpace, SpaceToDepth, Resize, Upsample, Gather, GatherElements, GatherND, Scatter,
///   ScatterElements and ScatterND (replacing or adding), TensorScatter, Compress, OneHot, Trilu,
///   ReverseSequence, CenterCropPad, TopK
///   detent.FakeQuantize and detent.FakeQuantizeBias, with rounding treated as the identity
///   (straight-through estimator); detent.StraightThrough, detent.FoldNormalization
///
/// Inputs and outputs that are no floats have none, nor have outputs behind the first, but for
/// Split, RNN, GRU, LSTM and detent.FoldNormalization.
///
/// Where a function has a kink, its gradient is: for Relu 0 at 0, for LeakyRelu and PRelu 1 at 0,
/// for Abs and ReduceL1 0 at 0, for Elu, Selu and Celu that of negative numbers at 0, for Clip 1 at
/// its bounds, for HardSigmoid 0 at its ends; for Max, Min, ReduceMax, ReduceMin and MaxPool all of
/// it goes to the first of the elements that are the result. Thread-safe.
[[nodiscard]] DETENT_GRAPH_DECL const gradient_definition* find_gradient(const node& n);

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL const operator_registry& training_operators() {
  static const operator_registry registry = [] {
    operator_registry r = default_operators();
    r.add(fake_quantize_operator);
    r.add(fake_quantize_bias_operator);
    r.add(offset_zero_point_operator);
    r.add(straight_through_operator);
    r.add(fold_normalization_operator);
    return r;
  }();
  return registry;
}

DETENT_GRAPH_DECL const gradient_definition* find_gradient(const node& n) {
  namespace g = gradients;
  namespace u = ops::unary;
  static const std::map<std::pair<std::string_view, std::string_view>, gradient_definition> table{
      {{"", "Conv"}, {.function = &g::convolution}},
      {{"", "ConvTranspose"}, {.function = &g::transposed_convolution}},
      {{"", "Gemm"}, {.function = &g::gemm_operator}},
      {{"", "MatMul"}, {.function = &g::matmul}},
      {{"", "Einsum"}, {.function = &g::einsum}},
      {{"", "Attention"}, {.function = &g::attention}},
      {{"", "RotaryEmbedding"}, {.function = &g::rotary_embedding}},
      {{"", "BatchNormalization"}, {.function = &g::batch_normalization}},
      {{"", "InstanceNormalization"}, {.function = &g::instance_normalization}},
      {{"", "GroupNormalization"}, {.function = &g::group_normalization}},
      {{"", "LayerNormalization"}, {.function = &g::layer_normalization}},
      {{"", "RMSNormalization"}, {.function = &g::rms_normalization}},
      {{"", "MeanVarianceNormalization"}, {.function = &g::mean_variance_normalization}},
      {{"", "ImageScaler"}, {.function = &g::image_scaler}},
      {{"", "LRN"}, {.function = &g::local_response_normalization}},
      {{"", "LpNormalization"}, {.function = &g::lp_normalization}},
      {{"", "Softmax"}, {.function = &g::softmax}},
      {{"", "LogSoftmax"}, {.function = &g::log_softmax}},
      {{"", "MaxPool"}, {.function = &g::max_pool<false>}},
      {{"", "GlobalMaxPool"}, {.function = &g::max_pool<true>}},
      {{"", "AveragePool"}, {.function = &g::average_pool<false>}},
      {{"", "GlobalAveragePool"}, {.function = &g::average_pool<true>}},
      {{"", "LpPool"}, {.function = &g::norm_pool<false>}},
      {{"", "GlobalLpPool"}, {.function = &g::norm_pool<true>}},
      {{"", "Neg"}, {.function = &g::unary_function<u::neg>, .in_place = true}},
      {{"", "Abs"}, {.function = &g::unary_function<u::abs>, .in_place = true}},
      {{"", "Reciprocal"}, {.function = &g::unary_function<u::reciprocal>, .in_place = true}},
      {{"", "Sqrt"}, {.function = &g::unary_function<u::sqrt>, .in_place = true}},
      {{"", "Exp"}, {.function = &g::unary_function<u::exp>, .in_place = true}},
      {{"", "Log"}, {.function = &g::unary_function<u::log>, .in_place = true}},
      {{"", "Erf"}, {.function = &g::unary_function<u::erf>, .in_place = true}},
      {{"", "Sin"}, {.function = &g::unary_function<u::sin>, .in_place = true}},
      {{"", "Cos"}, {.function = &g::unary_function<u::cos>, .in_place = true}},
      {{"", "Tan"}, {.function = &g::unary_function<u::tan>, .in_place = true}},
      {{"", "Asin"}, {.function = &g::unary_function<u::asin>, .in_place = true}},
      {{"", "Acos"}, {.function = &g::unary_function<u::acos>, .in_place = true}},
      {{"", "Atan"}, {.function = &g::unary_function<u::atan>, .in_place = true}},
      {{"", "Sinh"}, {.function = &g::unary_function<u::sinh>, .in_place = true}},
      {{"", "Cosh"}, {.function = &g::unary_function<u::cosh>, .in_place = true}},
      {{"", "Asinh"}, {.function = &g::unary_function<u::asinh>, .in_place = true}},
      {{"", "Acosh"}, {.function = &g::unary_function<u::acosh>, .in_place = true}},
      {{"", "Atanh"}, {.function = &g::unary_function<u::atanh>, .in_place = true}},
      {{"", "Shrink"}, {.function = &g::unary_function<u::shrink>, .in_place = true}},
      {{"", "Relu"}, {.function = &g::unary_function<u::relu>, .in_place = true}},
      {{"", "LeakyRelu"}, {.function = &g::unary_function<u::leaky_relu>, .in_place = true}},
      {{"", "Elu"}, {.function = &g::unary_function<u::elu>, .in_place = true}},
      {{"", "Selu"}, {.function = &g::unary_function<u::selu>, .in_place = true}},
      {{"", "Celu"}, {.function = &g::unary_function<u::celu>, .in_place = true}},
      {{"", "ThresholdedRelu"},
       {.function = &g::unary_function<u::thresholded_relu>, .in_place = true}},
      {{"", "Sigmoid"}, {.function = &g::unary_function<u::sigmoid>, .in_place = true}},
      {{"", "Tanh"}, {.function = &g::unary_function<u::tanh>, .in_place = true}},
      {{"", "HardSigmoid"}, {.function = &g::unary_function<u::hard_sigmoid>, .in_place = true}},
      {{"", "HardSwish"}, {.function = &g::unary_function<u::hard_swish>, .in_place = true}},
      {{"", "Softplus"}, {.function = &g::unary_function<u::softplus>, .in_place = true}},
      {{"", "Softsign"}, {.function = &g::unary_function<u::softsign>, .in_place = true}},
      {{"", "Gelu"}, {.function = &g::unary_function<u::gelu>, .in_place = true}},
      {{"", "Swish"}, {.function = &g::unary_function<u::swish>, .in_place = true}},
      {{"", "Mish"}, {.function = &g::unary_function<u::mish>, .in_place = true}},
      {{"", "PRelu"}, {.function = &g::prelu}},
      {{"", "SwiGLU"}, {.function = &g::swiglu}},
      {{"", "Clip"}, {.function = &g::clip}},
      {{"", "Add"}, {.function = &g::sum}},
      {{"", "Sum"}, {.function = &g::sum}},
      {{"", "Sub"}, {.function = &g::difference}},
      {{"", "Mean"}, {.function = &g::mean}},
      {{"", "Mul"}, {.function = &g::multiplication}},
      {{"", "Div"}, {.function = &g::division}},
      {{"", "Mod"}, {.function = &g::modulo}},
      {{"", "Pow"}, {.function = &g::power}},
      {{"", "Max"}, {.function = &g::extremum}},
      {{"", "Min"}, {.function = &g::extremum}},
      {{"", "Where"}, {.function = &g::movement<1, 2>}},
      {{"", "ReduceSum"}, {.function = &g::reduce_sum}},
      {{"", "ReduceMean"}, {.function = &g::reduce_mean}},
      {{"", "ReduceProd"}, {.function = &g::reduce_product}},
      {{"", "ReduceL1"}, {.function = &g::reduce_l1}},
      {{"", "ReduceL2"}, {.function = &g::reduce_l2}},
      {{"", "ReduceSumSquare"}, {.function = &g::reduce_sum_square}},
      {{"", "ReduceLogSum"}, {.function = &g::reduce_log_sum}},
      {{"", "ReduceLogSumExp"}, {.function = &g::reduce_log_sum_exp}},
      {{"", "ReduceMax"}, {.function = &g::reduce_extremum}},
      {{"", "ReduceMin"}, {.function = &g::reduce_extremum}},
      {{"", "CumSum"}, {.function = &g::cumulative_sum}},
      {{"", "CumProd"}, {.function = &g::cumulative_product}},
      {{"", "RNN"}, {.function = &g::rnn, .every_output = true}},
      {{"", "GRU"}, {.function = &g::gru, .every_output = true}},
      {{"", "LSTM"}, {.function = &g::lstm, .every_output = true}},
      {{"", "Split"}, {.function = &g::split, .every_output = true}},
      {{"", "Cast"},
       {.function = &g::same_elements,
        .any_floating = true,
        .in_place = true,
        .applies = &g::casts_to_floating}},
      {{"", "CastLike"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Dropout"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Identity"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Reshape"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Flatten"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Squeeze"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Unsqueeze"}, {.function = &g::same_elements, .any_floating = true, .in_place = true}},
      {{"", "Transpose"}, {.function = &g::transpose}},
      {{"", "Concat"}, {.function = &g::concat}},
      {{"", "Gather"}, {.function = &g::gather}},
      {{"", "TopK"}, {.function = &g::top_k}},
      {{"", "Resize"}, {.function = &g::resize}},
      {{"", "Upsample"}, {.function = &g::resize}},
      {{"", "Expand"}, {.function = &g::movement<0>}},
      {{"", "Slice"}, {.function = &g::movement<0>}},
      {{"", "Tile"}, {.function = &g::movement<0>}},
      {{"", "DepthToSpace"}, {.function = &g::movement<0>}},
      {{"", "SpaceToDepth"}, {.function = &g::movement<0>}},
      {{"", "GatherElements"}, {.function = &g::movement<0>}},
      {{"", "GatherND"}, {.function = &g::movement<0>}},
      {{"", "Compress"}, {.function = &g::movement<0>}},
      {{"", "Trilu"}, {.function = &g::movement<0>}},
      {{"", "ReverseSequence"}, {.function = &g::movement<0>}},
      {{"", "CenterCropPad"}, {.function = &g::movement<0>}},
      {{"", "Pad"}, {.function = &g::movement<0, 2>}},
      {{"", "TensorScatter"}, {.function = &g::movement<0, 1>}},
      {{"", "OneHot"}, {.function = &g::movement<2>}},
      {{"", "Scatter"}, {.function = &g::scatter, .applies = &g::replaces_or_adds}},
      {{"", "ScatterElements"}, {.function = &g::scatter, .applies = &g::replaces_or_adds}},
      {{"", "ScatterND"}, {.function = &g::scatter, .applies = &g::replaces_or_adds}},
      {{"detent", "FakeQuantize"},
       {.function = &g::straight_through, .in_place = true, .inputs_without_gradient = 0b1100}},
      {{"detent", "FakeQuantizeBias"}, {.function = &g::bias_straight_through}},
      {{"detent", "StraightThrough"},
       {.function = &g::same_elements, .in_place = true, .inputs_without_gradient = 0b10}},
      {{"detent", "FoldNormalization"}, {.function = &g::fold_normalization, .every_output = true}},
  };
  const auto found = table.find({n.domain, n.op_type});
  if (found == table.end() || (found->second.applies != nullptr && !found->second.applies(n))) {
    return nullptr;
  }
  return &found->second;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINING_OPERATORS_HPP
