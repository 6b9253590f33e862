// SPDX-License-Identifier: BSD-3-Clause
// The folder graph/inc/ takes the configuration files of Intel Neural Compressor 1.x. It may
// include graph/quantize/ and everything below it.
//
// This header holds what such a file says, and what it means for tune(). yaml.hpp reads the file.
#ifndef DETENT_GRAPH_INC_CONFIGURATION_HPP
#define DETENT_GRAPH_INC_CONFIGURATION_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/learn/training_options.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/tuning_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::inc {

/// How the quantized model is written: the value of `model.framework`.
enum class framework : std::uint8_t {
  integer_operators,  ///< onnxrt_integerops: DynamicQuantizeLinear, ConvInteger, MatMulInteger.
  qlinear_operators,  ///< onnxrt_qlinearops: QLinearConv and its like.
  qdq,                ///< onnxrt_qdq: QuantizeLinear/DequantizeLinear pairs.
};

/// Samples that a `dataset` section names.
struct dataset {
  /// Files or a folder as sample_set takes them, of the dataset type `npy`.
  std::vector<std::string> inputs = {};
  std::string labels = {};     ///< .npy file with a label for each sample; may be empty.
  std::size_t batch_size = 1;  ///< dataloader.batch_size, which counts only for `iteration`.
  /// Dataset types `dummy` and `dummy_v2`: the shapes of the inputs, with the samples as first
  /// axis, and the range of the uniform random values. Empty for files.
  std::vector<shape> dummy_shapes = {};
  float dummy_low = -127.0F;  ///< See `dummy_shapes`.
  float dummy_high = 127.0F;  ///< See `dummy_shapes`.
};

/// What `quantization.train` says, for the approach quant_aware_training.
struct training {
  dataset data;                ///< dataloader, with labels
  training_options options;    ///< epochs, optimizer and criterion
  std::string method = "mse";  ///< Observer that gives the first ranges of the activations.
};

/// What the outputs of a model are measured by.
enum class metric_kind : std::uint8_t {
  top_k,                   ///< top_k_accuracy()
  f1,                      ///< f1_score()
  mean_average_precision,  ///< mean_average_precision()
  roc,                     ///< roc_area()
  mse,                     ///< mean_squared_error(); lower is better
  rmse,                    ///< its square root; lower is better
  mae,                     ///< mean_absolute_error(); lower is better
};

/// One metric of `evaluation.accuracy`.
struct metric {
  metric_kind kind = metric_kind::top_k;  ///< What is computed.
  std::size_t k = 1;                      ///< For top_k.
  int map_points = 0;                     ///< For mean_average_precision: 0, 11 or 101.
  /// For mse, rmse and mae: whether outputs are compared with labels instead of with the outputs of
  /// the float model.
  bool compare_label = true;
  double weight = 0.0;  ///< Among several metrics; 0 if no weights are given.
  /// Whether a higher value is better; without a value, as the kind has it.
  std::optional<bool> higher_is_better = {};

  /// Whether a higher value of the metric is better.
  [[nodiscard]] bool is_higher_better() const noexcept {
    return higher_is_better.value_or(kind != metric_kind::mse && kind != metric_kind::rmse &&
                                     kind != metric_kind::mae);
  }
};

/// What a configuration file says.
struct configuration {
  std::string model_name = {};           ///< model.name
  framework form = framework::qdq;       ///< model.framework
  std::vector<std::string> inputs = {};  ///< model.inputs; empty: any
  /// model.outputs; empty: any. Metrics are computed from the first one.
  std::vector<std::string> outputs = {};
  std::optional<dataset> calibration = {};  ///< quantization.calibration.dataloader
  std::optional<dataset> evaluation = {};   ///< evaluation.accuracy.dataloader
  std::vector<metric> metrics = {};         ///< metric or multi_metrics; may be empty
  /// evaluation.accuracy.iteration times the batch size of its dataloader; 0: all samples.
  std::size_t evaluation_samples = 0;
  /// The approach quant_aware_training: tune() is not for it, and `tuning` holds only the goal and
  /// how weights and activations are quantized.
  std::optional<training> train = {};
  std::string workspace = {};  ///< tuning.workspace.path; may be empty
  std::string resume = {};     ///< tuning.workspace.resume; may be empty
  /// Everything else, as tune() takes it.
  tuning_options tuning = {};
  /// Keys that have no effect here, each with its place in the file and the reason.
  std::vector<std::string> notes = {};
};

}  // namespace graph::inc
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_INC_CONFIGURATION_HPP
