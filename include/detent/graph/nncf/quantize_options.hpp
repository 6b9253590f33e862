// SPDX-License-Identifier: BSD-3-Clause
// The options of nncf::quantize().
#ifndef DETENT_GRAPH_NNCF_QUANTIZE_OPTIONS_HPP
#define DETENT_GRAPH_NNCF_QUANTIZE_OPTIONS_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/ignored_nodes.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/quantizer_parameters.hpp>
#include <detent/graph/nncf/quantizer_propagation.hpp>
#include <detent/graph/nncf/range_estimator.hpp>
#include <detent/graph/nncf/smooth_quant.hpp>
#include <detent/graph/quantize/ignored_scope.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// NNCF's QuantizationMode: what the levels of quantized tensors are.
enum class quantization_mode : std::uint8_t {
  int8,      ///< Integers of 8 bits, which is what NNCF does without a mode.
  fp8_e4m3,  ///< Floats of 8 bits: ONNX's FLOAT8E4M3FN, finite up to 448.
  fp8_e5m2   ///< Floats of 8 bits: ONNX's FLOAT8E5M2, finite up to 57344.
};

/// NNCF's QuantizationPreset: whether activations are quantized symmetrically. Weights are
/// symmetric in either case.
enum class preset : std::uint8_t {
  /// Activations are symmetric. Their zero point is 0, but 128 for uint8 activations whose range
  /// has negative values.
  performance,
  /// Activations are asymmetric: the zero point follows from the range.
  mixed,
};

/// NNCF's TargetDevice, the processor that is to run the model. For 8 bits, NNCF quantizes for all
/// devices as for a CPU.
enum class target_device : std::uint8_t {
  any,     ///< Any device.
  cpu,     ///< A CPU.
  gpu,     ///< A GPU.
  npu,     ///< A neural processor.
  cpu_spr  ///< Intel's Sapphire Rapids, which NNCF refuses for ONNX models, and so does quantize().
};

/// NNCF's ModelType: what kind of network the model is.
enum class model_type : std::uint8_t {
  none,        ///< No particular kind: no SmoothQuant, and the default preset is performance.
  transformer  ///< A transformer: SmoothQuant is applied, and the default preset is mixed.
};

/// NNCF's OverflowFix: in which layers weights stay within half of their grid, by a scale that is
/// doubled. With ranges that hold all weights, the integers are in -64..64, and a sum of two
/// products with uint8 activations fits in 16 bits, as CPUs without VNNI need it.
enum class overflow_fix : std::uint8_t {
  none,         ///< No layer: weights use their whole grid.
  enable,       ///< All Conv with one group, ConvTranspose, Gemm and MatMul.
  first_layer,  ///< The Conv with one group that inputs reach without passing another one.
};

/// NNCF's AdvancedBiasCorrectionParameters.
struct bias_correction_params {
  /// The largest |shift / bias| of a layer that is corrected, exclusive; by default 2 for the fast
  /// method and 1000 for the full one.
  std::optional<double> threshold = {};
};

/// The options of nncf::quantize(), with NNCF's names and, unless a comment says otherwise, its
/// defaults. Its advanced parameters stand here beside the others.
struct quantize_options {
  /// What the levels are. Those of floats go with the preset performance, the target devices any
  /// and cpu and no overflow fix, which are their defaults, and not with quantize_outputs,
  /// unsigned_activations or restrictions of quantizers; as in NNCF, quantize() throws unsupported
  /// for others.
  nncf::quantization_mode mode = nncf::quantization_mode::int8;
  /// Whether activations are symmetric. By default performance; mixed for transformers, unless the
  /// mode is one of floats.
  std::optional<nncf::preset> preset = {};
  /// The processor that is to run the model.
  nncf::target_device target_device = nncf::target_device::any;
  /// The largest number of samples that is drawn in a pass; at least 1. Full bias correction draws
  /// a fifth of it, but at least 1.
  std::size_t subset_size = 300;
  /// Whether biases are corrected by the fast method, on recorded means of the layers' inputs. If
  /// not, the full method runs the network with rounded weights once for each layer and sample.
  bool fast_bias_correction = true;
  /// Whether biases are left as they are.
  bool disable_bias_correction = false;
  /// The limit of bias correction.
  nncf::bias_correction_params bias_correction_params = {};
  /// The kind of network: transformer enables SmoothQuant, and leaves more operators in float.
  nncf::model_type model_type = nncf::model_type::none;
  /// The nodes that stay in float. `first_layer` and `last_layer`, which NNCF does not have, select
  /// the first and the last layer with constant weights.
  graph::ignored_scope ignored_scope = {};
  /// Parts of the model that stay in float: all nodes between others.
  std::vector<ignored_subgraph> ignored_subgraphs = {};
  /// The layers whose weights stay within half of their grid. By default first_layer; none if the
  /// mode is one of floats.
  std::optional<nncf::overflow_fix> overflow_fix = {};
  /// The strength of SmoothQuant, which only transformers get.
  nncf::smooth_quant_alphas smooth_quant_alphas = {};
  /// Whether channel alignment is off. It shifts and scales the channels between two convolutions
  /// so that one scale and zero point fit all of them.
  bool disable_channel_alignment = true;
  /// Whether the results of the model are quantized as well.
  bool quantize_outputs = false;
  /// How the range of an activation is found. By default mean_min_max, and min_max for those with a
  /// scale for each channel, which have no other than min_max if this one is a histogram.
  std::optional<range_estimator> activations_range_estimator = {};
  /// How the range of a layer's weights is found: of each output channel, or of the whole tensor.
  range_estimator weights_range_estimator = min_max;
  /// Whether each index of the first dimension of an activation counts as a sample. If not, each
  /// run of the model does; so it does in any case for activations with a scale for each channel.
  bool batchwise_statistics = false;
  /// Restrictions of the quantizers of activations.
  quantization_params activations_quantization_params = {};
  /// Whether int8 activations become uint8, which NNCF does not have: levels and zero points are
  /// 128 higher and stand for the same reals. On x86 processors, ONNX Runtime computes a product in
  /// integers if its left side is uint8, or int8 that no other node takes.
  bool unsigned_activations = false;
  /// Restrictions of the quantizers of weights.
  quantization_params weights_quantization_params = {};
  /// What becomes of quantizers below a value that several nodes take.
  propagation_rule quantizer_propagation_rule = propagation_rule::merge_all_in_one;
  /// If given, it is called with the value and the parameters of each quantizer of an activation,
  /// in the order of the nodes.
  std::function<void(const std::string& value, const quantizer_parameters& parameters)>
      on_parameters = {};
  /// How float and quantized networks are run, for example the threads to use.
  executor_options executor = {};
};

namespace detail {

/// The type of the levels of a mode of floats; undefined for integers.
[[nodiscard]] inline element_type float8_type(quantization_mode mode) noexcept {
  return mode == quantization_mode::fp8_e4m3   ? element_type::f8e4m3fn
         : mode == quantization_mode::fp8_e5m2 ? element_type::f8e5m2
                                               : element_type::undefined;
}

[[nodiscard]] inline bool is_symmetric(const quantize_options& o) {
  const preset otherwise =
      o.mode == quantization_mode::int8 && o.model_type == model_type::transformer
          ? preset::mixed
          : preset::performance;
  return o.preset.value_or(otherwise) == preset::performance;
}

/// Throws unsupported for options that NNCF has for integers only.
inline void require_float8_options(const quantize_options& o) {
  const auto require_default = [&](bool is_default, const char* option) {
    require(is_default, error_kind::unsupported, "mode ",
            o.mode == quantization_mode::fp8_e4m3 ? "fp8_e4m3" : "fp8_e5m2", " has no ", option);
  };
  const target_device device = o.target_device;
  require_default(is_symmetric(o), "preset mixed");
  require_default(device == target_device::any || device == target_device::cpu,
                  "target devices other than any and cpu");
  require_default(o.overflow_fix.value_or(overflow_fix::none) == overflow_fix::none,
                  "overflow fix");
  require_default(!o.quantize_outputs, "quantize_outputs");
  require_default(!o.unsigned_activations, "unsigned_activations");
  require_default(o.activations_quantization_params == quantization_params{},
                  "activations_quantization_params");
  require_default(o.weights_quantization_params == quantization_params{},
                  "weights_quantization_params");
}

/// Throws for options out of their domain.
inline void require_options(const quantize_options& o) {
  require(o.subset_size > 0, error_kind::invalid_argument, "subset_size 0: no samples");
  require(o.target_device != target_device::cpu_spr, error_kind::unsupported,
          "target device cpu_spr: NNCF does not support it for ONNX models");
  static_cast<void>(range_estimator_observer(o.activations_range_estimator.value_or(mean_min_max)));
  static_cast<void>(range_estimator_observer(o.weights_range_estimator));
  for (const float alpha : {o.smooth_quant_alphas.convolution, o.smooth_quant_alphas.matmul}) {
    require(alpha <= 1.0F, error_kind::invalid_argument, "a SmoothQuant alpha of ", alpha,
            "; it is at most 1, and negative for none");
  }
  if (o.mode != quantization_mode::int8) {
    require_float8_options(o);
  }
}

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZE_OPTIONS_HPP
