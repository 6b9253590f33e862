// SPDX-License-Identifier: BSD-3-Clause
// PPQ's QuantizationSetting as one value: all fields of PPQ 0.6.6 by their names, with PPQ's
// defaults, and the factory of the settings that PPQ recommends for platforms.
//
// Each structure lists its fields once, in for_each_field(); what reads and writes settings as JSON
// goes through that list. Fields are as PPQ spells them ("format_paramters").
#ifndef DETENT_GRAPH_PPQ_SETTING_HPP
#define DETENT_GRAPH_PPQ_SETTING_HPP

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/graph/ppq/target_platform.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// Rewrites of the network before it is quantized. The library always makes all of them.
struct graph_format_setting {
  bool format_constant_op = true;  ///< Whether Constant nodes become constants.
  bool fuse_conv_bn = true;        ///< Whether BatchNormalization is folded into layers.
  bool format_paramters = true;    ///< Whether constants with several users are told apart.
  bool format_cast = true;         ///< Whether Cast nodes are tidied up.
  bool delete_isolate = true;      ///< Whether nodes that no result depends on are removed.

  /// Calls f(name, member) for each field of `s`, a graph_format_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("format_constant_op", s.format_constant_op);
    f("fuse_conv_bn", s.fuse_conv_bn);
    f("format_paramters", s.format_paramters);
    f("format_cast", s.format_cast);
    f("delete_isolate", s.delete_isolate);
  }
  /// Whether all fields are equal.
  friend bool operator==(const graph_format_setting&, const graph_format_setting&) = default;
};

/// Settings of ssd_equalization_pass.
struct ssd_setting {
  int opt_level = 1;            ///< Which pairs of layers are equalized: 1.
  double channel_ratio = 0.5;   ///< PPQ's lower limit of weights, over the largest one.
  double loss_threshold = 0.8;  ///< ssd_equalization_pass::loss_threshold.
  bool layer_norm = false;      ///< Whether PPQ normalizes weights first.
  std::size_t iteration = 3;    ///< ssd_equalization_pass::iterations.

  /// Calls f(name, member) for each field of `s`, a ssd_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("opt_level", s.opt_level);
    f("channel_ratio", s.channel_ratio);
    f("loss_threshold", s.loss_threshold);
    f("layer_norm", s.layer_norm);
    f("iteration", s.iteration);
  }
  /// Whether all fields are equal.
  friend bool operator==(const ssd_setting&, const ssd_setting&) = default;
};

/// Settings of layerwise_equalization_pass and of channel_split_pass.
struct channel_setting {
  int opt_level = 1;             ///< Which pairs of layers are rewritten: 1.
  std::size_t iterations = 10;   ///< The largest number of sweeps.
  double value_threshold = 0.5;  ///< The magnitude from which on channels are rewritten.
  bool including_bias = false;   ///< Whether biases count.
  double bias_multiplier = 0.5;  ///< The factor of biases.
  bool including_act = false;    ///< Whether activations count.
  double act_multiplier = 0.5;   ///< The factor of activations.

  /// Calls f(name, member) for each field of `s`, a channel_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("opt_level", s.opt_level);
    f("iterations", s.iterations);
    f("value_threshold", s.value_threshold);
    f("including_bias", s.including_bias);
    f("bias_multiplier", s.bias_multiplier);
    f("including_act", s.including_act);
    f("act_multiplier", s.act_multiplier);
  }
  /// Whether all fields are equal.
  friend bool operator==(const channel_setting&, const channel_setting&) = default;
};

/// Settings of weight_split_pass.
struct weight_split_setting {
  std::vector<std::string> interested_layers = {};  ///< The names of the layers that are split.
  double value_threshold = 2.0;                     ///< The |weight| above which a weight is split.
  std::string method = "balance";                   ///< "balance" or "random".

  /// Calls f(name, member) for each field of `s`, a weight_split_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("interested_layers", s.interested_layers);
    f("value_threshold", s.value_threshold);
    f("method", s.method);
  }
  /// Whether all fields are equal.
  friend bool operator==(const weight_split_setting&, const weight_split_setting&) = default;
};

/// Settings of PPQ's matrix factorization, which no setting of PPQ 0.6.6 starts any more.
struct matrix_factorization_setting {
  std::vector<std::string> interested_layers = {};  ///< The names of the layers.
  std::string method = "svd";                       ///< The decomposition.

  /// Calls f(name, member) for each field of `s`, a matrix_factorization_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("interested_layers", s.interested_layers);
    f("method", s.method);
  }
  /// Whether all fields are equal.
  friend bool operator==(const matrix_factorization_setting&,
                         const matrix_factorization_setting&) = default;
};

/// Settings of runtime_calibration_pass.
struct quantize_activation_setting {
  /// The observer of all activations (minmax, kl, percentile, mse, isotone, or any other that the
  /// library has); without a value, that of the platform.
  std::optional<std::string> calib_algorithm = {};

  /// Calls f(name, member) for each field of `s`, a quantize_activation_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("calib_algorithm", s.calib_algorithm);
  }
  /// Whether all fields are equal.
  friend bool operator==(const quantize_activation_setting&,
                         const quantize_activation_setting&) = default;
};

/// Settings of parameter_quantization_pass, passive_parameter_pass and parameter_baking_pass.
struct quantize_parameter_setting {
  /// The observer of all weights; without a value, that of the platform.
  std::optional<std::string> calib_algorithm = {};
  bool quantize_passive_parameter = true;  ///< Whether biases and bounds are quantized.
  bool baking_parameter = true;            ///< Whether constants are baked in the end.

  /// Calls f(name, member) for each field of `s`, a quantize_parameter_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("calib_algorithm", s.calib_algorithm);
    f("quantize_passive_parameter", s.quantize_passive_parameter);
    f("baking_parameter", s.baking_parameter);
  }
  /// Whether all fields are equal.
  friend bool operator==(const quantize_parameter_setting&,
                         const quantize_parameter_setting&) = default;
};

/// Settings of learned_step_size_pass (LSQ) and, with other defaults, of adaround_pass (blockwise
/// reconstruction).
struct training_setting {
  std::vector<std::string> interested_layers = {};  ///< The layers that are trained; none: all.
  double lr = 1e-5;                                 ///< The learning rate.
  std::string collecting_device = "cuda";  ///< Where PPQ keeps samples; without effect here.
  std::size_t steps = 500;                 ///< The number of steps for each block.
  bool is_scale_trainable = true;          ///< Whether scales are trained.
  double gamma = 0.0;                      ///< The weight of the regularization.
  std::size_t block_size = 4;              ///< The number of layers in a block.

  /// Calls f(name, member) for each field of `s`, a training_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("interested_layers", s.interested_layers);
    f("lr", s.lr);
    f("collecting_device", s.collecting_device);
    f("steps", s.steps);
    f("is_scale_trainable", s.is_scale_trainable);
    f("gamma", s.gamma);
    f("block_size", s.block_size);
  }
  /// Whether all fields are equal.
  friend bool operator==(const training_setting&, const training_setting&) = default;
};

/// Settings of bias_correction_pass.
struct bias_correct_setting {
  std::vector<std::string> interested_layers = {};  ///< The layers that are corrected; none: all.
  std::size_t block_size = 4;                       ///< The number of layers in a block.
  std::size_t steps = 32;                           ///< The largest number of samples.
  std::string collecting_device = "executor";  ///< Where PPQ keeps samples; without effect here.

  /// Calls f(name, member) for each field of `s`, a bias_correct_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("interested_layers", s.interested_layers);
    f("block_size", s.block_size);
    f("steps", s.steps);
    f("collecting_device", s.collecting_device);
  }
  /// Whether all fields are equal.
  friend bool operator==(const bias_correct_setting&, const bias_correct_setting&) = default;
};

/// Settings of fusion_pass and alignment_pass. A way of alignment is "None", "Align to Large",
/// "Align to Input" or "Align to Output".
struct fusion_setting {
  bool remove_useless_quantization = true;              ///< fusion_pass::remove_useless.
  bool fuse_activation = true;                          ///< fusion_pass::fuse_activation.
  bool fuse_passive_op = true;                          ///< fusion_pass::fuse_passive_op.
  bool align_quantization = true;                       ///< Whether anything is aligned.
  std::string align_avgpooling_to = "None";             ///< For pooling by averages.
  std::string align_elementwise_to = "Align to Large";  ///< For Add, Sub and Sum.
  std::string align_concat_to = "Align to Output";      ///< For Concat.
  std::string align_resize_to = "Align to Output";      ///< For Resize and Upsample.
  bool force_alignment_overlap = true;                  ///< alignment_pass::force_overlap.

  /// Calls f(name, member) for each field of `s`, a fusion_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("remove_useless_quantization", s.remove_useless_quantization);
    f("fuse_activation", s.fuse_activation);
    f("fuse_passive_op", s.fuse_passive_op);
    f("align_quantization", s.align_quantization);
    f("align_avgpooling_to", s.align_avgpooling_to);
    f("align_elementwise_to", s.align_elementwise_to);
    f("align_concat_to", s.align_concat_to);
    f("align_resize_to", s.align_resize_to);
    f("force_alignment_overlap", s.force_alignment_overlap);
  }
  /// Whether all fields are equal.
  friend bool operator==(const fusion_setting&, const fusion_setting&) = default;
};

/// Settings of PPQ's template of a pass, which does nothing.
struct extension_setting {
  std::string my_first_parameter = {};  ///< Any text.

  /// Calls f(name, member) for each field of `s`, an extension_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("my_first_parameter", s.my_first_parameter);
  }
  /// Whether all fields are equal.
  friend bool operator==(const extension_setting&, const extension_setting&) = default;
};

/// Settings of the advanced optimization of PPQ before 0.6.5, which LSQ replaced.
struct advanced_optimization_setting {
  std::string collecting_device = "executor";        ///< Where PPQ keeps samples.
  bool auto_check = false;                           ///< Whether each block is checked.
  double limit = 4.0;                                ///< The largest change, in steps.
  double lr = 1e-3;                                  ///< The learning rate.
  std::size_t steps = 2500;                          ///< The number of steps.
  std::vector<std::string> interested_layers = {};   ///< The layers that are trained.
  std::vector<std::string> interested_outputs = {};  ///< The outputs that guide the training.
  bool verbose = true;                               ///< Whether PPQ prints.

  /// Calls f(name, member) for each field of `s`, an advanced_optimization_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("collecting_device", s.collecting_device);
    f("auto_check", s.auto_check);
    f("limit", s.limit);
    f("lr", s.lr);
    f("steps", s.steps);
    f("interested_layers", s.interested_layers);
    f("interested_outputs", s.interested_outputs);
    f("verbose", s.verbose);
  }
  /// Whether all fields are equal.
  friend bool operator==(const advanced_optimization_setting&,
                         const advanced_optimization_setting&) = default;
};

/// Platforms of single operators, by the names of their nodes.
struct dispatching_table {
  /// The numbers of TargetPlatform by the names of nodes.
  std::map<std::string, int> dispatchings = {};

  /// Sends an operator to a platform, given by the name of a member of TargetPlatform. Throws
  /// invalid_argument, with the nearest name, for a name that is none.
  void append(const std::string& operation, std::string_view platform) {
    const target_platform* p = find_target_platform(platform);
    if (p == nullptr) {
      std::vector<std::string> names;
      for (const target_platform& known : target_platforms) {
        names.push_back(detent::detail::lower_case(known.name));
      }
      raise(
          error_kind::invalid_argument,
          detent::detail::message("detent: dispatching_table: TargetPlatform has no member '",
                                  platform, "'; the nearest is ",
                                  graph::nearest_names(detail::platform_key(platform), names, 1)));
    }
    dispatchings[operation] = p->value;
  }
  /// Whether all entries are equal.
  friend bool operator==(const dispatching_table&, const dispatching_table&) = default;
};

/// The version of PPQ whose fields quantization_setting has.
inline constexpr std::string_view setting_version = "0.6.6";

/// PPQ's QuantizationSetting. A switch and its settings have names of one kind: `equalization` and
/// `equalization_setting`. default_pipeline(to_pipeline_options(setting)) is what it says.
struct quantization_setting {
  std::string dispatcher = "conservative";         ///< The name that find_dispatcher() takes.
  ppq::graph_format_setting graph_format_setting;  ///< Rewrites before quantization.
  bool ssd_equalization = false;                   ///< Whether ssd_equalization_pass runs.
  ppq::ssd_setting ssd_setting;                    ///< Its settings.
  bool equalization = false;                       ///< Whether layerwise_equalization_pass runs.
  channel_setting equalization_setting;            ///< Its settings.
  bool weight_split = false;                       ///< Whether weight_split_pass runs.
  ppq::weight_split_setting weight_split_setting;  ///< Its settings.
  bool channel_split = false;                      ///< Whether channel_split_pass runs.
  channel_setting channel_split_setting;           ///< Its settings.
  bool matrix_factorization = false;               ///< Without effect, as in PPQ.
  ppq::matrix_factorization_setting matrix_factorization_setting;  ///< Without effect.
  bool quantize_activation = true;  ///< Whether activations are quantized.
  ppq::quantize_activation_setting quantize_activation_setting;  ///< How.
  bool quantize_parameter = true;  ///< Whether weights and biases are quantized.
  ppq::quantize_parameter_setting quantize_parameter_setting;  ///< How.
  bool lsq_optimization = false;              ///< Whether learned_step_size_pass runs.
  training_setting lsq_optimization_setting;  ///< Its settings.
  bool blockwise_reconstruction = false;      ///< Whether adaround_pass runs.
  /// Its settings.
  training_setting blockwise_reconstruction_setting{
      .lr = 1e-3, .steps = 5000, .is_scale_trainable = false, .gamma = 1.0};
  bool bias_correct = false;                       ///< Whether bias_correction_pass runs.
  ppq::bias_correct_setting bias_correct_setting;  ///< Its settings.
  bool fusion = true;                              ///< Whether fusion_pass and alignment_pass run.
  ppq::fusion_setting fusion_setting;              ///< Their settings.
  bool extension = false;                          ///< PPQ's place for a pass of one's own.
  ppq::extension_setting extension_setting;        ///< Its settings.
  std::string version{setting_version};            ///< The version of PPQ that has these fields.
  std::string signature = "detent";          ///< The name of the program that made the setting.
  ppq::dispatching_table dispatching_table;  ///< Platforms of single operators.
  bool advanced_optimization = false;        ///< A field of PPQ before 0.6.5; must be false.
  ppq::advanced_optimization_setting advanced_optimization_setting;  ///< Its settings.

  /// Calls f(name, member) for each field of `s`, a quantization_setting.
  template <class Self, class Function>
  static void for_each_field(Self& s, const Function& f) {
    f("dispatcher", s.dispatcher);
    f("graph_format_setting", s.graph_format_setting);
    f("ssd_equalization", s.ssd_equalization);
    f("ssd_setting", s.ssd_setting);
    f("equalization", s.equalization);
    f("equalization_setting", s.equalization_setting);
    f("weight_split", s.weight_split);
    f("weight_split_setting", s.weight_split_setting);
    f("channel_split", s.channel_split);
    f("channel_split_setting", s.channel_split_setting);
    f("matrix_factorization", s.matrix_factorization);
    f("matrix_factorization_setting", s.matrix_factorization_setting);
    f("quantize_activation", s.quantize_activation);
    f("quantize_activation_setting", s.quantize_activation_setting);
    f("quantize_parameter", s.quantize_parameter);
    f("quantize_parameter_setting", s.quantize_parameter_setting);
    f("lsq_optimization", s.lsq_optimization);
    f("lsq_optimization_setting", s.lsq_optimization_setting);
    f("blockwise_reconstruction", s.blockwise_reconstruction);
    f("blockwise_reconstruction_setting", s.blockwise_reconstruction_setting);
    f("bias_correct", s.bias_correct);
    f("bias_correct_setting", s.bias_correct_setting);
    f("fusion", s.fusion);
    f("fusion_setting", s.fusion_setting);
    f("extension", s.extension);
    f("extension_setting", s.extension_setting);
    f("version", s.version);
    f("signature", s.signature);
    f("dispatching_table", s.dispatching_table);
    f("advanced_optimization", s.advanced_optimization);
    f("advanced_optimization_setting", s.advanced_optimization_setting);
  }
  /// Whether all fields are equal.
  friend bool operator==(const quantization_setting&, const quantization_setting&) = default;
};

/// PPQ's QuantizationSettingFactory: the settings that PPQ 0.6.6 recommends.
struct quantization_setting_factory {
  /// PPQ's defaults.
  [[nodiscard]] static quantization_setting default_setting() { return {}; }
  /// No fusion: every operator quantizes its inputs and outputs.
  [[nodiscard]] static quantization_setting academic_setting() { return without_fusion(); }
  /// For NCNN_INT8: no fusion.
  [[nodiscard]] static quantization_setting ncnn_setting() { return without_fusion(); }
  /// For MNN_INT8: PPQ's defaults.
  [[nodiscard]] static quantization_setting mnn_setting() { return {}; }
  /// For PPL_CUDA_INT8: PPQ's defaults.
  [[nodiscard]] static quantization_setting pplcuda_setting() { return {}; }
  /// For METAX_INT8_T: with equalization.
  [[nodiscard]] static quantization_setting metax_pertensor_setting() {
    quantization_setting s;
    s.equalization = true;
    return s;
  }
  /// For ASC_INT8: no fusion.
  [[nodiscard]] static quantization_setting ascend_setting() { return without_fusion(); }
  /// For PPL_DSP_INT8, SNPE_INT8 and QNN_DSP_INT8: equalization with three sweeps.
  [[nodiscard]] static quantization_setting dsp_setting() {
    quantization_setting s;
    s.equalization = true;
    s.equalization_setting.iterations = 3;
    return s;
  }
  /// For NXP_INT8: PPQ's defaults.
  [[nodiscard]] static quantization_setting nxp_setting() { return {}; }
  /// For FPGA_INT8: equalization that takes biases into account.
  [[nodiscard]] static quantization_setting fpga_setting() {
    quantization_setting s;
    s.equalization = true;
    s.equalization_setting.including_bias = true;
    return s;
  }
  /// For TRT_INT8: PPQ's defaults.
  [[nodiscard]] static quantization_setting trt_setting() { return {}; }

 private:
  [[nodiscard]] static quantization_setting without_fusion() {
    quantization_setting s;
    s.fusion = false;
    return s;
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_SETTING_HPP
