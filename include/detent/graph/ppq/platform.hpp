// SPDX-License-Identifier: BSD-3-Clause
// The target platforms of PPQ: which operators each one quantizes, and how. Platforms are data that
// users can copy and edit.
#ifndef DETENT_GRAPH_PPQ_PLATFORM_HPP
#define DETENT_GRAPH_PPQ_PLATFORM_HPP

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/graph/ppq/policy.hpp>
#include <detent/graph/ppq/target_platform.hpp>
#include <detent/observer_registry.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// How a platform quantizes one kind of tensors: activations or weights.
struct tensor_preset {
  /// Granularity, symmetry and the kind of scales.
  quantization_policy policy = {};
  /// The width of the integers in bits.
  int bits = 8;
  /// The smallest and the largest integer.
  grid levels{-128, 127};
  /// The name of the observer that finds the range, among the `observers` of the pass that
  /// calibrates.
  std::string observer = "minmax";
  /// How x / scale is rounded to an integer.
  rounding_policy rounding = rounding_policy::half_even;
};

/// A target platform: which operators run quantized there, and how their tensors are quantized.
struct platform {
  /// The name by which find_platform() finds it, in small letters.
  std::string name;
  /// The types of the ONNX operators that run quantized.
  std::vector<std::string> op_types;
  /// How the inputs and outputs of these operators are quantized.
  tensor_preset activation;
  /// How the weights of layers are quantized. A per-channel policy has a scale for each output
  /// channel.
  tensor_preset weight;
  /// The width in bits of biases, which are symmetric with scale = input scale * weight scale. With
  /// 0, biases stay float.
  int bias_bits = 0;
};

/// Whether a node is a layer: Conv, ConvTranspose, Gemm or MatMul, which sum up products of an
/// activation and weights (or a second activation) in integers.
[[nodiscard]] inline bool is_compute_operator(const node& n) {
  return n.is("Conv") || n.is("ConvTranspose") || n.is("Gemm") || n.is("MatMul");
}

/// Whether a node is an activation function that platforms compute together with the layer before
/// it: Relu, Clip, PRelu, LeakyRelu, Sigmoid, Tanh, HardSigmoid, HardSwish, Softplus, Elu or Gelu.
[[nodiscard]] inline bool is_fused_activation(const node& n) {
  static constexpr std::string_view names[] = {"Relu",     "Clip", "PRelu",       "LeakyRelu",
                                               "Sigmoid",  "Tanh", "HardSigmoid", "HardSwish",
                                               "Softplus", "Elu",  "Gelu"};
  return n.domain.empty() &&
         std::find(std::begin(names), std::end(names), n.op_type) != std::end(names);
}

namespace detail {

inline std::vector<std::string> graph_operators() {
  return {"Conv",         "ConvTranspose",
          "Gemm",         "MatMul",
          "Relu",         "PRelu",
          "LeakyRelu",    "Clip",
          "Elu",          "Sigmoid",
          "Tanh",         "HardSigmoid",
          "HardSwish",    "Softplus",
          "Gelu",         "Add",
          "Sub",          "Mul",
          "Div",          "Sum",
          "Concat",       "Split",
          "MaxPool",      "GlobalMaxPool",
          "AveragePool",  "GlobalAveragePool",
          "ReduceMean",   "Pad",
          "Resize",       "Upsample",
          "Reshape",      "Flatten",
          "Transpose",    "Squeeze",
          "Unsqueeze",    "Slice",
          "Gather",       "Expand",
          "Tile",         "SpaceToDepth",
          "DepthToSpace", "Identity",
          "Dropout"};
}
/// graph_operators(), and what accelerators with a zero point run quantized besides.
inline std::vector<std::string> accelerator_operators() {
  std::vector<std::string> all = graph_operators();
  all.insert(all.end(), {"Softmax", "LogSoftmax"});
  return all;
}

/// The names with commas between them.
[[nodiscard]] inline std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& n : names) {
    all.append(all.empty() ? "" : ", ").append(n);
  }
  return all;
}

inline quantization_policy linear(std::uint32_t more) {
  return quantization_policy(quantization_property::linear | more);
}

inline std::vector<platform> make_platforms() {
  using p = quantization_property;
  constexpr grid s8 = full_grid<std::int8_t>;
  constexpr grid narrow = narrow_grid<std::int8_t>;
  constexpr grid u8 = full_grid<std::uint8_t>;
  constexpr auto even = rounding_policy::half_even;
  constexpr auto away = rounding_policy::half_far_from_zero;
  const auto symmetric_tensor = linear(p::per_tensor | p::symmetrical);
  const auto symmetric_channel = linear(p::per_channel | p::symmetrical);
  const auto asymmetric_tensor = linear(p::per_tensor | p::asymmetrical);

  const auto symmetric_platform = [&](std::string name, grid levels, int bias_bits,
                                      rounding_policy r) {
    return platform{std::move(name),
                    graph_operators(),
                    {symmetric_tensor, 8, levels, "percentile", r},
                    {symmetric_channel, 8, levels, "minmax", r},
                    bias_bits};
  };
  const auto asymmetric_platform = [&](std::string name, rounding_policy r) {
    return platform{std::move(name),
                    accelerator_operators(),
                    {asymmetric_tensor, 8, u8, "percentile", r},
                    {asymmetric_tensor, 8, u8, "minmax", r},
                    30};
  };
  const auto power_of_2_platform = [&](std::string name, std::uint32_t granularity,
                                       rounding_policy activation, rounding_policy weight) {
    const auto policy = linear(p::per_tensor | p::symmetrical | p::power_of_2);
    return platform{std::move(name),
                    graph_operators(),
                    {policy, 8, s8, "percentile", activation},
                    {linear(granularity | p::symmetrical | p::power_of_2), 8, s8, "minmax", weight},
                    32};
  };
  return {
      symmetric_platform("tensorrt", s8, 0, even),
      symmetric_platform("onnxruntime", s8, 0, even),
      symmetric_platform("openvino", s8, 0, even),
      symmetric_platform("ppl_cuda", s8, 32, even),
      symmetric_platform("ncnn", narrow, 0, away),
      symmetric_platform("mnn", narrow, 0, away),
      symmetric_platform("metax_c", narrow, 30, even),
      symmetric_platform("ppl_dsp_ti", s8, 0, even),
      asymmetric_platform("ppl_dsp", even),
      asymmetric_platform("snpe", even),
      asymmetric_platform("qnn", even),
      asymmetric_platform("rknn", even),
      asymmetric_platform("tengine", even),
      asymmetric_platform("ascend", away),
      asymmetric_platform("metax_t", even),
      power_of_2_platform("nxp", p::per_channel, rounding_policy::half_up, away),
      power_of_2_platform("fpga", p::per_tensor, even, even),
  };
}

}  // namespace detail

/// The platforms that PPQ knows, as presets:
///
///   tensorrt, onnxruntime, openvino, ppl_cuda
///                  activations: int8 -128..127, symmetric, per tensor, observer percentile
///                  weights: int8 -128..127, symmetric, per output channel, observer minmax
///                  bias: float (ppl_cuda: 32 bits)
///   ppl_dsp_ti     like tensorrt; PPQ's second calibration of it, with scales for each channel of
///                  activations, is not offered
///   ncnn, mnn      like tensorrt, but on -127..127 and with ties rounded away from zero
///   metax_c        like tensorrt, but on -127..127; bias: 30 bits
///   ppl_dsp, snpe, qnn, rknn, tengine, ascend, metax_t
///                  activations and weights: uint8 0..255, asymmetric, per tensor; observer
///                  percentile for activations, minmax for weights
///                  bias: 30 bits; ascend rounds ties away from zero
///   nxp, fpga      activations and weights: int8 -128..127, symmetric, with powers of 2 as scales,
///                  per tensor; observer percentile for activations, minmax for weights
///                  bias: 32 bits; nxp has weights per channel, and rounds ties of activations up
///                  and ties of weights away from zero
///
/// Ties are rounded to even unless said otherwise. The result is made once and never changes.
/// Source: PPQ 0.6.6. The operators are the ONNX operators that all of PPQ's quantizers have in
/// common.
[[nodiscard]] inline const std::vector<platform>& platforms() {
  static const std::vector<platform> all = detail::make_platforms();
  return all;
}

/// The preset of that name: its own name, such as "tensorrt", or that of a member of PPQ's
/// TargetPlatform, such as "TRT_INT8" or "TargetPlatform.TRT_INT8". Capital and small letters are
/// the same; "ort" stands for onnxruntime. Throws unsupported for members of TargetPlatform without
/// a preset (FP8, and those for which PPQ has no quantizer), and invalid_argument, listing all
/// names and the nearest one, for any other name.
[[nodiscard]] inline const platform& find_platform(std::string_view name) {
  const target_platform* member = find_target_platform(name);
  std::vector<std::string> names = quantizing_platform_names();
  require(member == nullptr || !member->preset.empty(), error_kind::unsupported,
          "PPQ's TargetPlatform.", member == nullptr ? "" : member->name,
          " has no quantizer here; there are ", detail::joined(names));
  std::string key = member == nullptr ? detail::platform_key(name) : std::string(member->preset);
  if (key == "ort") {
    key = "onnxruntime";
  }
  for (const platform& p : platforms()) {
    if (p.name == key) {
      return p;
    }
    names.push_back(p.name);
  }
  std::vector<std::string> keys;
  std::transform(names.begin(), names.end(), std::back_inserter(keys),
                 [](const std::string& n) { return detent::detail::lower_case(n); });
  raise(error_kind::invalid_argument,
        detent::detail::message("detent: there is no platform '", name, "'; the nearest is ",
                                graph::nearest_names(key, keys, 1), "; there are ",
                                detail::joined(names)));
}

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_PLATFORM_HPP
