// SPDX-License-Identifier: BSD-3-Clause
// The options of nncf::compress_weights(), and its report on each constant.
#ifndef DETENT_GRAPH_NNCF_COMPRESS_WEIGHTS_OPTIONS_HPP
#define DETENT_GRAPH_NNCF_COMPRESS_WEIGHTS_OPTIONS_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/ignored_nodes.hpp>
#include <detent/graph/quantize/ignored_scope.hpp>
#include <detent/graph/run/executor_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {

/// NNCF's CompressWeightsMode: the primary precision of the weights.
enum class compress_weights_mode : std::uint8_t {
  int8_asym,          ///< uint8 with a zero point for each channel.
  int8_sym,           ///< int8, -128..127, without zero points.
  int4_asym,          ///< uint4 with a zero point for each group.
  int4_sym,           ///< int4, -8..7, without zero points; scales may be negative.
  nf4,                ///< Refused, as NNCF does for ONNX models.
  cb4,                ///< Refused, as NNCF does for ONNX models.
  codebook,           ///< Refused, as NNCF does for ONNX models.
  adaptive_codebook,  ///< Refused, as NNCF does for ONNX models.
  fp4,                ///< Refused, as NNCF does for ONNX models.
  mxfp4,              ///< Refused, as NNCF does for ONNX models.
  nvfp4,              ///< Refused, as NNCF does for ONNX models.
  mxfp8_e4m3,         ///< Refused, as NNCF does for ONNX models.
  fp8_e4m3            ///< Refused: compress_weights() writes no float8 weights.
};

/// NNCF's name of a mode, such as "int8_asym".
[[nodiscard]] constexpr const char* name(compress_weights_mode mode) noexcept {
  switch (mode) {
    case compress_weights_mode::int8_asym:
      return "int8_asym";
    case compress_weights_mode::int8_sym:
      return "int8_sym";
    case compress_weights_mode::int4_asym:
      return "int4_asym";
    case compress_weights_mode::int4_sym:
      return "int4_sym";
    case compress_weights_mode::nf4:
      return "nf4";
    case compress_weights_mode::cb4:
      return "cb4";
    case compress_weights_mode::codebook:
      return "codebook";
    case compress_weights_mode::adaptive_codebook:
      return "adaptive_codebook";
    case compress_weights_mode::fp4:
      return "fp4";
    case compress_weights_mode::mxfp4:
      return "mxfp4";
    case compress_weights_mode::nvfp4:
      return "nvfp4";
    case compress_weights_mode::mxfp8_e4m3:
      return "mxfp8_e4m3";
    case compress_weights_mode::fp8_e4m3:
      return "fp8_e4m3";
  }
  return "unknown";
}

/// NNCF's BackupMode: the precision of weights that do not get the primary one.
enum class backup_mode : std::uint8_t {
  none,      ///< They stay in float.
  int8_sym,  ///< As compress_weights_mode::int8_sym.
  int8_asym  ///< As compress_weights_mode::int8_asym.
};

/// NNCF's SensitivityMetric: how the layers are ranked that may get the primary precision. The
/// least sensitive ones get it first. Let w' be the weights w of a layer, rounded as int8_asym, and
///
///     noise = 2^-23 + the largest, over the channels, of mean((w' - w)^2 over the channel)
enum class sensitivity_metric : std::uint8_t {
  /// 1 / noise. The only one that needs no samples.
  weight_quantization_error,
  /// ||w' - w|| * the mean over the samples of 2 * mean(x^2), where x is the input of the layer and
  /// ||.|| the Frobenius norm.
  hessian_input_activation,
  /// The variance of each channel of the input along the last dimension but one; the mean over the
  /// channels, averaged over the samples; divided by the noise.
  mean_activation_variance,
  /// As mean_activation_variance, but the largest variance of all channels.
  max_activation_variance,
  /// The largest |x| of each channel of the input along the last dimension but one; the mean over
  /// the channels, averaged over the samples; divided by the noise.
  mean_activation_magnitude
};

/// NNCF's GroupSizeFallbackMode: what happens to a layer whose number of inputs is no multiple of
/// the group size.
enum class group_size_fallback_mode : std::uint8_t {
  error,   ///< It is an error.
  ignore,  ///< The layer stays in float.
  /// The layer's group size is the largest power of two that divides its number of inputs; if that
  /// is below min_adjusted_group_size, the layer gets the backup precision.
  adjust
};

/// NNCF's AdvancedAWQParameters.
struct awq_params {
  /// The largest number of samples by which scales are chosen; at least 1.
  std::size_t subset_size = 32;
  /// The part of a layer's inputs, those of the largest magnitudes, whose groups get scales; 0..1,
  /// at least one input.
  double percent_to_apply = 0.002;
  double alpha_min = 0.0;   ///< The first exponent that is tried.
  double alpha_max = 1.0;   ///< The end of the exponents, exclusive; not below alpha_min.
  std::size_t steps = 100;  ///< The number of exponents; at least 1.
  /// Whether samples decide where there are some. If not, the weights alone do.
  bool prefer_data_aware_scaling = true;
};

/// NNCF's AdvancedScaleEstimationParameters.
struct scale_estimation_params {
  /// The largest number of samples by which scales are judged; at least 1.
  std::size_t subset_size = 64;
  std::size_t initial_steps = 5;  ///< The number of steps from the best scale so far.
  std::size_t scale_steps = 5;    ///< The number of steps from smaller scales; at most 20.
  double weight_penalty = -1.0;   ///< The weight of the weights' error; none if not positive.
};

/// The options of nncf::compress_weights(), with NNCF's names and defaults. The int8 modes accept
/// none of the options that are about 4 bits, as in NNCF. Its advanced parameters stand here beside
/// the others.
struct compress_weights_options {
  /// The primary precision.
  compress_weights_mode mode = compress_weights_mode::int8_asym;
  /// The part of the weights that may have the primary precision; above 0, at most 1. The weights
  /// that count are those of the MatMul and Gemm nodes but the last, or with `all_layers` of all
  /// MatMul, Gemm and embeddings. By default 1.
  std::optional<double> ratio = {};
  /// The number of weights along the inputs of a layer that share a scale, or -1 for all of them.
  /// By default 128 for 4 bits.
  std::optional<std::int64_t> group_size = {};
  /// The nodes whose weights stay in float, unless another layer has the same weights.
  /// `first_layer` and `last_layer`, which NNCF does not have, select the first and the last layer
  /// with constant weights.
  graph::ignored_scope ignored_scope = {};
  /// Parts of the model that stay in float: all nodes between others.
  std::vector<ignored_subgraph> ignored_subgraphs = {};
  /// Whether embeddings and the last layer may have the primary precision, too.
  bool all_layers = false;
  /// The calibration samples. Not needed for weight_quantization_error.
  std::optional<nncf::dataset> dataset = {};
  /// How layers are ranked if the ratio is below 1. By default weight_quantization_error without a
  /// dataset, and max_activation_variance with one.
  std::optional<nncf::sensitivity_metric> sensitivity_metric = {};
  /// The largest number of samples that is drawn; at least 1.
  std::size_t subset_size = 128;
  /// The precision of the other weights: those that `ratio` leaves, convolutions, and, without
  /// `all_layers`, embeddings and the last layer. By default int8_asym.
  std::optional<nncf::backup_mode> backup_mode = {};
  /// Whether the inputs of layers with 4 bits that follow an activation function, or a Mul of what
  /// another layer makes, are scaled so that the weights lose less (activation_aware_scaling.hpp);
  /// with samples if there is a dataset.
  bool awq = false;
  /// Options of awq.
  nncf::awq_params awq_params = {};
  /// Whether the scales of weights of 4 bits are chosen by the outputs of the layers on samples
  /// (scale_estimation.hpp); needs a dataset.
  bool scale_estimation = false;
  /// Options of scale_estimation.
  nncf::scale_estimation_params scale_estimation_params = {};
  /// GPTQ, which NNCF refuses for ONNX models, and so does compress_weights().
  bool gptq = false;
  /// What happens to layers that the group size does not divide.
  nncf::group_size_fallback_mode group_size_fallback_mode = nncf::group_size_fallback_mode::error;
  /// The smallest group size that group_size_fallback_mode::adjust chooses.
  std::size_t min_adjusted_group_size = 32;
  /// How the float model is run on samples, and the threads to use. awq and scale_estimation with
  /// samples use them, too; the result does not depend on them.
  executor_options executor = {};
};

/// What compress_weights() did to one constant.
struct compressed_weights {
  std::string node;       ///< Name of the first node that uses it, or of the node's first output.
  std::string weights;    ///< Name of the constant.
  std::size_t count = 0;  ///< Number of weights.
  /// The precision; nothing if the weights stay in float.
  std::optional<compress_weights_mode> mode = {};
  std::size_t group_size = 0;  ///< Number of weights that share a scale; 0 for all of a channel.
  /// The sensitivity by which the layer was ranked; nothing if it was not.
  std::optional<double> sensitivity = {};
};

/// A model whose weights compress_weights() has compressed.
struct weight_compression {
  model result;  ///< The model.
  /// All constants that were looked at: first those that can be compressed, then those that are
  /// ignored or not supported, both in the order of the layers.
  std::vector<compressed_weights> layers;
  /// Labels of ignored nodes whose weights are compressed nonetheless, because another layer has
  /// the same: as in NNCF, a constant is stored once.
  std::vector<std::string> ignored_in_vain;
  /// The number of layers whose inputs awq has scaled.
  std::size_t scaled_layers = 0;
};

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_COMPRESS_WEIGHTS_OPTIONS_HPP
