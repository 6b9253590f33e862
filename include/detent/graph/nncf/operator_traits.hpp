// SPDX-License-Identifier: BSD-3-Clause
// What NNCF's tables say about kinds of operators: whether a quantizer belongs on their inputs,
// whether it may pass them, and which quantizers their inputs and weights may have.
//
// NNCF has a table for each target device. For quantizers of 8 bits it uses that of the CPU for all
// devices, and only these have a form in ONNX; so there is one table here.
//
// Source: NNCF 3.4, its tables of hardware and of ONNX operators.
#ifndef DETENT_GRAPH_NNCF_OPERATOR_TRAITS_HPP
#define DETENT_GRAPH_NNCF_OPERATOR_TRAITS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/nncf/operator_graph.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// The form of a quantizer.
struct quantizer_config {
  std::size_t bits = 8;                ///< Number of bits.
  bool symmetric = true;               ///< Whether the range is symmetric about 0.
  bool per_channel = false;            ///< Whether each channel has a scale.
  bool narrow_range = false;           ///< Whether the lowest level is left out: -127..127.
  std::optional<bool> is_signed = {};  ///< Signed or unsigned; by default, the data decide.
  friend bool operator==(const quantizer_config&, const quantizer_config&) = default;
};

/// NNCF's QuantizationParameters: restricts the forms that a group of quantizers may have. A form
/// that an operator's table does not have is an error.
struct quantization_params {
  std::optional<std::size_t> bits = {};   ///< Number of bits; the only one with a form is 8.
  std::optional<bool> symmetric = {};     ///< The mode; by default, the preset decides.
  std::optional<bool> per_channel = {};   ///< Whether each channel has a scale.
  std::optional<bool> narrow_range = {};  ///< Whether the lowest level is left out.
  std::optional<bool> is_signed = {};     ///< Whether the levels are signed.
  /// Whether both restrict the same to the same.
  friend bool operator==(const quantization_params&, const quantization_params&) = default;
};

namespace detail {

/// What a quantizer may do at an operator.
enum class trait : std::uint8_t {
  in_float,        ///< The operator stays in float: quantizers do not pass it.
  takes_integers,  ///< Its inputs are quantized, and quantizers of its result do not pass it.
  moves,           ///< It moves or compares elements: quantizers of its result pass to its inputs.
  concat,          ///< As `moves`; its inputs share one scale if a layer follows.
  looks_up         ///< Its result has the scales of its weights, a table of embeddings.
};

[[nodiscard]] inline bool is_among(std::string_view kind,
                                   std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), kind) != list.end();
}

[[nodiscard]] inline trait trait_of(std::string_view kind) {
  if (kind == "Concat") {
    return trait::concat;
  }
  if (kind == "Embedding") {
    return trait::looks_up;
  }
  if (is_among(kind,
               {"GlobalMaxPool", "MaxPool",      "ReduceMax",       "Reshape",   "Transpose",
                "Squeeze",       "Unsqueeze",    "Split",           "Tile",      "CenterCropPad",
                "Slice",         "Pad",          "Gather",          "GatherND",  "GatherElements",
                "DepthToSpace",  "SpaceToDepth", "ScatterElements", "ScatterND", "Scatter",
                "CastLike",      "Dropout",      "Flatten",         "Expand",    "Identity"})) {
    return trait::moves;
  }
  const bool takes = is_among(kind, {"Conv",
                                     "GroupConv",
                                     "DepthwiseConv",
                                     "ConvTranspose",
                                     "DeformConv",
                                     "Gemm",
                                     "MatMul",
                                     "AveragePool",
                                     "GlobalAveragePool",
                                     "Add",
                                     "Sub",
                                     "Mul",
                                     "Div",
                                     "BatchNormalization",
                                     "HardSigmoid",
                                     "Resize",
                                     "Pow",
                                     "Sqrt",
                                     "Reciprocal",
                                     "Max",
                                     "Min",
                                     "ReduceMean",
                                     "ReduceSum",
                                     "Less",
                                     "LessOrEqual",
                                     "Greater",
                                     "GreaterOrEqual",
                                     "Equal",
                                     "Not",
                                     "And",
                                     "Or",
                                     "Xor",
                                     "Mod",
                                     "Attention"});
  return takes ? trait::takes_integers : trait::in_float;
}

/// Operators on elements of two operands; a quantizer of one beside a constant is taken away.
[[nodiscard]] inline bool is_elementwise(std::string_view kind) {
  return is_among(kind,
                  {"Add", "Mul", "Sub", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
                   "Equal", "Mod", "Or", "Not", "And", "Xor", "Max", "Min", "Mean"});
}

/// Operators that stay in float in a transformer.
[[nodiscard]] inline bool is_in_float_in_transformers(std::string_view kind, bool with_products) {
  return is_among(kind, {"Add", "Pow", "Squeeze", "Sub", "AveragePool", "GlobalAveragePool",
                         "ReduceMean", "ReduceL2", "ReduceSum", "Div", "Max", "Sqrt", "Reciprocal",
                         "BatchNormalization", "Greater", "Less", "Equal"}) ||
         (with_products && kind == "Mul");
}

/// Layers whose Concat inputs share one scale, and whose weights the overflow fix may keep within
/// half of their grid.
[[nodiscard]] inline bool is_dense_layer(std::string_view kind) {
  return is_among(kind, {"Conv", "ConvTranspose", "Gemm", "MatMul"});
}

using configs = std::vector<quantizer_config>;

/// The configurations of a table that restrictions leave. `symmetric` is the preset's mode. Throws
/// invalid_argument, naming the operator, if none is left.
[[nodiscard]] inline configs restricted(const configs& table, const quantization_params& to,
                                        bool symmetric, const std::string& label) {
  configs left;
  std::copy_if(table.begin(), table.end(), std::back_inserter(left),
               [&](const quantizer_config& c) {
                 return c.symmetric == to.symmetric.value_or(symmetric) &&
                        (!to.bits || c.bits == *to.bits) &&
                        (!to.per_channel || c.per_channel == *to.per_channel) &&
                        (!to.narrow_range || c.narrow_range == *to.narrow_range) &&
                        (!to.is_signed || c.is_signed == to.is_signed);
               });
  require(!left.empty(), error_kind::invalid_argument,
          "quantization parameters leave no quantizer for ", label);
  return left;
}

/// The default quantizer with restrictions, for operators that the tables do not have.
[[nodiscard]] inline quantizer_config default_config(const quantization_params& to,
                                                     bool symmetric) {
  return {to.bits.value_or(8), to.symmetric.value_or(symmetric), to.per_channel.value_or(false),
          to.narrow_range.value_or(false), to.is_signed};
}

/// The quantizers that the inputs of an operator may have, the preferred one first. Those of
/// Attention are symmetric, whatever the preset and the restrictions say.
[[nodiscard]] inline configs activation_configs(std::string_view kind, quantization_params to,
                                                bool symmetric, const std::string& label) {
  if (is_among(kind, {"BatchNormalization", "HardSigmoid", "DeformConv", output_kind})) {
    return {default_config(to, symmetric)};
  }
  if (kind == "Attention") {
    to.symmetric = true;
  }
  configs table;
  for (const std::size_t bits : {std::size_t{8}, std::size_t{16}}) {
    for (const bool mode : {true, false}) {
      if ((bits == 16 && kind == "Resize") || (!mode && kind == "Attention")) {
        continue;
      }
      if (kind == "DepthwiseConv") {
        table.push_back({bits, mode, true, false, {}});
      }
      table.push_back({bits, mode, false, false, {}});
    }
  }
  return restricted(table, to, symmetric, label);
}

/// The quantizers that the weights of an operator may have, the preferred one first; none for
/// operators whose weights stay in float.
[[nodiscard]] inline configs weight_configs(std::string_view kind, const quantization_params& to,
                                            bool symmetric, const std::string& label) {
  if (kind == "DeformConv") {
    return {};
  }
  configs table;
  for (const std::size_t bits : {std::size_t{8}, std::size_t{16}}) {
    for (const bool per_channel : {true, false}) {
      table.push_back({bits, true, per_channel, true, true});
      if (kind == "Embedding") {
        table.push_back({bits, true, per_channel, false, true});
      }
    }
    for (const bool per_channel : {true, false}) {
      table.push_back({bits, false, per_channel, false, {}});
    }
  }
  return restricted(table, to, symmetric, label);
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_OPERATOR_TRAITS_HPP
