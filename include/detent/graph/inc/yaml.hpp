// SPDX-License-Identifier: BSD-3-Clause
// Reads the YAML configuration files of Intel Neural Compressor 1.x (schema of version 1.14). Needs
// yaml-cpp, which the program has to link.
//
//   model:        name, framework, inputs, outputs
//   quantization: approach, calibration, train, recipes, model_wise, optype_wise, op_wise
//   evaluation:   accuracy (metric or multi_metrics, dataloader), performance
//   tuning:       strategy, accuracy_criterion, objective or multi_objectives, exit_policy, seed,
//                 workspace
//
// A dataset is a file or a folder: `dataset: {npy: {inputs: X.npy, labels: Y.npy}}`, where inputs
// is one text or a list of texts as sample_set takes them. Datasets and transforms that Neural
// Compressor computes in Python are errors.
#ifndef DETENT_GRAPH_INC_YAML_HPP
#define DETENT_GRAPH_INC_YAML_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/inc/yaml_training.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/operator_rules.hpp>
#include <detent/graph/quantize/tuning_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::inc {
namespace detail {

/// Reads one file into a configuration, which must outlive it.
class yaml_reader : public training_reader {
 public:
  yaml_reader(configuration& c, const std::string& name) : training_reader(c, name), c_(c) {}

  void run(const std::string& text) {
    try {
      const YAML::Node root = document(text);
      section(root, "the file",
              {{"model", [this](const auto& v) { read_model(v); }},
               {"version", [this](const auto& v) { read_version(v); }},
               {"device",
                [this](const auto& v) {
                  one_of<int>(v, "device", {{"cpu", 0}});
                }},
               {"quantization", [this](const auto& v) { read_quantization(v); }},
               {"tuning", [this](const auto& v) { read_tuning(v); }},
               {"evaluation", [this](const auto& v) { read_evaluation(v); }},
               {"pruning", not_here("pruning needs Python")},
               {"distillation", not_here("distillation needs Python")},
               {"nas", not_here("architecture search needs Python")},
               {"mixed_precision", not_here("there are no float16 models here")},
               {"model_conversion", not_here("it is for TensorFlow")},
               {"graph_optimization", [this](const auto& v) { read_optimization(v); }}});
      if (!has_framework_) {
        refuse(root,
               "model.framework is missing; it is onnxrt_integerops, onnxrt_qlinearops or "
               "onnxrt_qdqops");
      }
      complete(root);
      c_.notes = notes();
    } catch (const YAML::Exception& e) {
      raise(error_kind::invalid_argument, where(e.mark) + ": " + e.msg);
    }
  }

 private:
  void read_version(const YAML::Node& v) {
    const std::string version = text(v, "version");
    if (version != "1" && version.rfind("1.", 0) != 0) {
      note(v, "version " + version + " has no effect: the file is read as one of version 1.x");
    }
  }

  // ------------------------------------------------------------------------------------ model

  void read_model(const YAML::Node& map) {
    section(map, "model",
            {{"name", [this](const auto& v) { c_.model_name = text(v, "model.name"); }},
             {"framework",
              [this](const auto& v) {
                has_framework_ = true;
                c_.form = one_of<framework>(v, "model.framework",
                                            {{"onnxrt_integerops", framework::integer_operators},
                                             {"onnxrt_qlinearops", framework::qlinear_operators},
                                             {"onnxrt_qdqops", framework::qdq},
                                             {"onnxrt_qdq", framework::qdq}});
              }},
             {"inputs", [this](const auto& v) { c_.inputs = texts(v, "model.inputs"); }},
             {"outputs", [this](const auto& v) { c_.outputs = texts(v, "model.outputs"); }}});
  }

  void read_optimization(const YAML::Node& map) {
    section(map, "graph_optimization",
            {{"level", [this](const auto& v) { read_level(v, "graph_optimization.level"); }},
             {"precisions", ignored("graph_optimization.precisions has no effect")},
             {"op_wise", ignored("graph_optimization.op_wise has no effect")}});
  }
  void read_level(const YAML::Node& v, const std::string& key) {
    one_of<int>(v, key,
                {{"DISABLE_ALL", 0},
                 {"ENABLE_BASIC", 1},
                 {"ENABLE_EXTENDED", 2},
                 {"ENABLE_ALL", 3},
                 {"disable_all", 0},
                 {"basic", 1},
                 {"extended", 2},
                 {"all", 3}});
    note(v, key + " has no effect: models are always simplified by rewrites that keep results");
  }

  // ----------------------------------------------------------------------------- quantization

  void read_quantization(const YAML::Node& map) {
    section(
        map, "quantization",
        {{"approach", [this](const auto& v) { read_approach(v); }},
         {"train",
          [this](const auto& v) {
            c_.train = read_train(v);
            train_at_ = v;
          }},
         {"advance",
          [this](const auto& v) {
            section(v, "quantization.advance",
                    {{"bias_correction", [this](const auto& b) {
                        one_of<int>(b, "bias_correction", {{"weight_empirical", 0}});
                        corrections_ = {bias_correction::fast};
                      }}});
          }},
         {"calibration", [this](const auto& v) { read_calibration(v); }},
         {"recipes", [this](const auto& v) { read_recipes(v); }},
         {"optimization_level",
          [this](const auto& v) { read_level(v, "quantization.optimization_level"); }},
         {"model_wise", [this](const auto& v) { read_model_wise(v); }},
         {"optype_wise",
          [this](const auto& v) { read_rules(v, "optype_wise", scope().operators.types); }},
         {"op_wise", [this](const auto& v) { read_rules(v, "op_wise", scope().operators.names); }},
         {"op_type_dict", of_later_version("op_type_dict", "optype_wise")},
         {"op_name_dict", of_later_version("op_name_dict", "op_wise")}});
  }

  /// Refuses a key of Neural Compressor 2.x, which has no such files.
  [[nodiscard]] reader of_later_version(const std::string& key, const std::string& instead) const {
    return not_here(key +
                    " is of Neural Compressor 2.x, and files have the form of version 1.x; "
                    "write " +
                    instead);
  }
  [[nodiscard]] quantization_scope& scope() { return c_.tuning.quantizer.scope; }

  void read_approach(const YAML::Node& v) {
    const int approach = one_of<int>(v, "quantization.approach",
                                     {{"post_training_static_quant", 0},
                                      {"post_training_dynamic_quant", 1},
                                      {"quant_aware_training", 2},
                                      {"static", 0},
                                      {"dynamic", 1},
                                      {"qat", 2}});
    is_training_ = approach == 2;
    approach_ = approach == 1;
    approach_at_ = v;
  }

  void read_calibration(const YAML::Node& map) {
    section(map, "quantization.calibration",
            {{"sampling_size",
              [this](const auto& v) {
                c_.tuning.space.samples.clear();
                for (const YAML::Node& one : list(v, "sampling_size")) {
                  c_.tuning.space.samples.push_back(count(one, "sampling_size", 1));
                }
              }},
             {"dataloader", [this](const auto& v) {
                c_.calibration = read_dataloader(v, "quantization.calibration.dataloader");
              }}});
  }

  void read_recipes(const YAML::Node& map) {
    const auto always = [this](const char* key) {
      return [this, key](const YAML::Node& v) {
        if (!boolean(v, key)) {
          note(v, std::string(key) +
                      ": False has no effect: operators that only move or select "
                      "values always keep their scale");
        }
      };
    };
    section(map, "quantization.recipes",
            {{"scale_propagation_max_pooling", always("scale_propagation_max_pooling")},
             {"scale_propagation_concat", always("scale_propagation_concat")},
             {"first_conv_or_matmul_quantization",
              [this](const auto& v) {
                scope().ignored.first_layer = !boolean(v, "first_conv_or_matmul_quantization");
              }},
             {"last_conv_or_matmul_quantization",
              [this](const auto& v) {
                scope().ignored.last_layer = !boolean(v, "last_conv_or_matmul_quantization");
              }},
             {"pre_post_process_quantization", ignored("pre_post_process_quantization has no "
                                                       "effect")},
             {"fast_bias_correction",
              [this](const auto& v) {
                corrections_ = {boolean(v, "fast_bias_correction") ? bias_correction::fast
                                                                   : bias_correction::none};
              }},
             {"weight_correction", [this](const auto& v) {
                if (boolean(v, "weight_correction")) {
                  refuse(v,
                         "weight_correction is not offered; fast_bias_correction corrects the "
                         "means of outputs");
                }
              }}});
  }

  /// The settings of weights or activations, of a whole model or of an operator.
  struct tensor_settings {
    std::vector<bool> per_channel;
    std::vector<bool> symmetric;
    std::vector<std::string> types;
    std::vector<std::string> algorithms;
    std::optional<std::size_t> bits;
  };
  [[nodiscard]] tensor_settings read_tensor(const YAML::Node& map, const std::string& what,
                                            bool is_weight) {
    tensor_settings s;
    section(map, what,
            {{"granularity",
              [&](const auto& v) {
                s.per_channel = some_of<bool>(v, what + ".granularity",
                                              {{"per_channel", true}, {"per_tensor", false}});
                if (!is_weight && s.per_channel != std::vector<bool>{false}) {
                  refuse(v, what + ".granularity: activations are per_tensor");
                }
              }},
             {"scheme",
              [&](const auto& v) {
                s.symmetric = some_of<bool>(
                    v, what + ".scheme", {{"sym", true}, {"asym", false}, {"asym_float", false}});
              }},
             {"dtype",
              [&](const auto& v) {
                s.types = some_of<std::string>(v, what + ".dtype",
                                               {{"int8", "int8"},
                                                {"uint8", "uint8"},
                                                {"fp32", "fp32"},
                                                {"bf16", "bf16"},
                                                {"fp16", "fp16"}});
                const std::size_t other = std::erase_if(
                    s.types, [](const std::string& t) { return t == "bf16" || t == "fp16"; });
                if (s.types.empty()) {
                  refuse(v, what + ".dtype: there are int8, uint8 and fp32 here, not bf16 or fp16");
                }
                if (other != 0) {
                  note(v, what + ".dtype: bf16 and fp16 have no effect");
                }
              }},
             {"compute_dtype",
              ignored(what + ".compute_dtype has no effect: dtype says what is computed with")},
             {"algorithm",
              [&](const auto& v) {
                if (is_weight) {
                  s.algorithms = some_of<std::string>(
                      v, what + ".algorithm",
                      {{"minmax", "absmax"}, {"absmax", "absmax"}, {"exact-mse", "exact-mse"}});
                  return;
                }
                s.algorithms = some_of<std::string>(v, what + ".algorithm",
                                                    {{"minmax", "minmax"},
                                                     {"kl", "kl"},
                                                     {"percentile", "percentile"},
                                                     {"mse", "mse"},
                                                     {"placeholder", "minmax"}});
              }},
             {"bit", [&](const auto& v) {
                if (!is_weight) {
                  refuse(v, what + ".bit: bits are for weights");
                }
                const double bit = number(v, what + ".bit");
                if (bit < 1.0 || bit > 7.0 || bit != std::floor(bit)) {
                  refuse(v, what +
                                ".bit: expected a whole number from 1 to 7, without the sign, "
                                "not " +
                                text(v, "bit"));
                }
                s.bits = static_cast<std::size_t>(bit) + 1;
              }}});
    return s;
  }

  void read_model_wise(const YAML::Node& map) {
    section(map, "quantization.model_wise",
            {{"weight",
              [this](const auto& v) {
                weight_ = read_tensor(v, "quantization.model_wise.weight", true);
                weight_at_ = v;
                refuse_float(v, weight_.types);
              }},
             {"activation", [this](const auto& v) {
                activation_ = read_tensor(v, "quantization.model_wise.activation", false);
                activation_at_ = v;
                refuse_float(v, activation_.types);
              }}});
  }
  void refuse_float(const YAML::Node& at, const std::vector<std::string>& types) const {
    if (types == std::vector<std::string>{"fp32"}) {
      refuse(at, "quantization.model_wise: with dtype fp32 alone nothing is quantized");
    }
  }

  void read_rules(const YAML::Node& map, const std::string& what,
                  std::vector<operator_rule>& rules) {
    if (!map.IsMap()) {
      refuse(map, "quantization." + what + " is not a map of patterns to settings");
    }
    entries(map, "quantization." + what, [&](const YAML::Node& key, const YAML::Node& value) {
      operator_rule rule;
      rule.pattern = key.Scalar();
      rule.where = where(key.Mark());
      const std::string place = "quantization." + what + "." + rule.pattern;
      section(value, place,
              {{"weight",
                [&](const auto& v) {
                  const tensor_settings s = read_tensor(v, place + ".weight", true);
                  if (!s.per_channel.empty()) {
                    rule.settings.per_channel = s.per_channel[0];
                  }
                  rule.settings.weight_bits = s.bits;
                  if (!s.algorithms.empty()) {
                    rule.settings.weight_scales = scale_of(s.algorithms[0]);
                  }
                  quantize_by_type(s, rule);
                  single_.push_back({v, place + ".weight", s, true});
                }},
               {"activation", [&](const auto& v) {
                  const tensor_settings s = read_tensor(v, place + ".activation", false);
                  if (!s.algorithms.empty()) {
                    rule.settings.method = s.algorithms[0];
                  }
                  quantize_by_type(s, rule);
                  single_.push_back({v, place + ".activation", s, false});
                }}});
      rules.push_back(std::move(rule));
    });
  }
  /// The settings of a single operator that were read.
  struct single_settings {
    YAML::Node at;
    std::string place;
    tensor_settings settings;
    bool is_weight;
  };
  /// Notes that of a list of `size` values only the first one counts, if there are more.
  void note_first_only(const YAML::Node& at, const std::string& key, std::size_t size,
                       const char* why) {
    if (size > 1) {
      note(at, key + ": only the first entry has an effect: " + why);
    }
  }
  /// Notes that dynamic quantization has no methods for ranges, if some are given.
  void note_algorithms(const YAML::Node& at, const std::string& place, const tensor_settings& s) {
    if (c_.tuning.quantizer.is_dynamic &&
        std::any_of(s.algorithms.begin(), s.algorithms.end(),
                    [](const std::string& algorithm) { return algorithm != "minmax"; })) {
      note(at, place +
                   ".algorithm has no effect: DynamicQuantizeLinear takes the range of each "
                   "run");
    }
  }
  /// Notes what of the settings of single operators has no effect: all but the first of a list, and
  /// types and schemes that differ from those of the whole model. To be called after complete() has
  /// set these.
  void note_single_settings() {
    const setting_quantizer_options& q = c_.tuning.quantizer;
    for (const single_settings& one : single_) {
      const tensor_settings& s = one.settings;
      const auto first_only = [&](const char* key, std::size_t size) {
        note_first_only(one.at, one.place + "." + key, size,
                        "settings of single operators are not varied");
      };
      first_only("granularity", s.per_channel.size());
      first_only("algorithm", s.algorithms.size());
      first_only("dtype", s.types.size());
      first_only("scheme", s.symmetric.size());
      if (!one.is_weight) {
        note_algorithms(one.at, one.place, s);
      }
      const element_type weight_type = q.is_dynamic ? q.weight_type : element_type::s8;
      const std::string type = name(one.is_weight ? weight_type : q.activations.type);
      if (!s.types.empty() && s.types[0] != "fp32" && s.types[0] != type) {
        note(one.at, one.place + ".dtype " + s.types[0] + " has no effect: all " +
                         (one.is_weight ? "weights are " : "activations are ") + type);
      }
      const std::vector<bool> symmetric = one.is_weight  ? std::vector<bool>{!q.weights.asymmetric}
                                          : q.is_dynamic ? std::vector<bool>{false}
                                                         : c_.tuning.space.symmetric_activations;
      if (!s.symmetric.empty() && symmetric != std::vector<bool>{s.symmetric[0]}) {
        note(one.at, one.place + ".scheme has no effect: the scheme is one for the whole model");
      }
    }
  }
  /// An operator is left in float if its weights or its activations are to be fp32. It is
  /// quantized, also where a rule of less precedence leaves it in float, if another type is given.
  static void quantize_by_type(const tensor_settings& s, operator_rule& rule) {
    if (!s.types.empty()) {
      rule.settings.quantize = rule.settings.quantize.value_or(true) && s.types[0] != "fp32";
    }
  }
  [[nodiscard]] static weight_scale scale_of(const std::string& algorithm) {
    return algorithm == "exact-mse" ? weight_scale::exact_mse : weight_scale::absmax;
  }

  // ----------------------------------------------------------------------------------- tuning

  void read_tuning(const YAML::Node& map) {
    tuning_options& t = c_.tuning;
    section(
        map, "tuning",
        {{"strategy", [this](const auto& v) { read_strategy(v); }},
         {"accuracy_criterion",
          [this](const auto& v) {
            bool has_one = false;
            const auto goal = [&](drop_type drop) {
              return [this, &has_one, drop](const YAML::Node& n) {
                if (has_one) {
                  refuse(n, "accuracy_criterion has both relative and absolute");
                }
                has_one = true;
                c_.tuning.goal.drop = drop;
                c_.tuning.goal.max_drop = number(n, "accuracy_criterion");
                if (drop == drop_type::relative && std::fabs(c_.tuning.goal.max_drop) >= 1.0) {
                  refuse(n,
                         "accuracy_criterion.relative: expected a share below 1, such as 0.01 "
                         "or 1%");
                }
              };
            };
            section(v, "tuning.accuracy_criterion",
                    {{"relative", goal(drop_type::relative)},
                     {"absolute", goal(drop_type::absolute)},
                     {"higher_is_better", [this](const auto& h) {
                        higher_is_better_ = boolean(h, "higher_is_better");
                        higher_is_better_at_ = h;
                      }}});
          }},
         {"objective",
          [this](const auto& v) {
            require_one_objective(v);
            c_.tuning.objectives = {{objective(v, "tuning.objective"), 1.0}};
          }},
         {"multi_objectives", [this](const auto& v) { read_objectives(v); }},
         {"exit_policy",
          [this, &t](const auto& v) {
            section(v, "tuning.exit_policy",
                    {{"timeout",
                      [this, &t](const auto& n) {
                        t.timeout = number(n, "timeout");
                        if (t.timeout < 0.0) {
                          refuse(n, "timeout: expected seconds, not " + text(n, "timeout"));
                        }
                      }},
                     {"max_trials",
                      [this, &t](const auto& n) { t.max_trials = count(n, "max_trials", 1); }},
                     {"performance_only", [this, &t](const auto& n) {
                        t.performance_only = boolean(n, "performance_only");
                      }}});
          }},
         {"random_seed", [this, &t](const auto& v) { t.seed = count(v, "tuning.random_seed", 0); }},
         {"tensorboard",
          [this](const auto& v) {
            if (boolean(v, "tuning.tensorboard")) {
              note(v, "tuning.tensorboard has no effect");
            }
          }},
         {"diagnosis", ignored("tuning.diagnosis has no effect")},
         {"workspace", [this](const auto& v) {
            section(
                v, "tuning.workspace",
                {{"path", [this](const auto& p) { c_.workspace = text(p, "workspace.path"); }},
                 {"resume", [this](const auto& p) { c_.resume = text(p, "workspace.resume"); }}});
          }}});
  }

  void read_strategy(const YAML::Node& v) {
    const std::vector<std::pair<const char*, tuning_strategy>> known = {
        {"basic", tuning_strategy::basic},     {"conservative", tuning_strategy::conservative},
        {"mse", tuning_strategy::mse},         {"mse_v2", tuning_strategy::mse_v2},
        {"hawq_v2", tuning_strategy::hawq_v2}, {"bayesian", tuning_strategy::bayesian},
        {"random", tuning_strategy::random},   {"exhaustive", tuning_strategy::exhaustive}};
    if (v.IsScalar()) {
      c_.tuning.strategy = one_of(v, "tuning.strategy", known);
      return;
    }
    const auto other = ignored("this key of tuning.strategy has no effect");
    section(
        v, "tuning.strategy",
        {{"name",
          [&](const auto& n) { c_.tuning.strategy = one_of(n, "tuning.strategy.name", known); }},
         {"accuracy_weight", other},
         {"latency_weight", other},
         {"confidence_batches",
          [&](const auto& n) {
            c_.tuning.ranking_samples = count(n, "tuning.strategy.confidence_batches", 1);
          }},
         {"hawq_v2_loss", other},
         {"sigopt_api_token", other},
         {"sigopt_project_id", other},
         {"sigopt_experiment_name", other}});
  }

  [[nodiscard]] tuning_objective objective(const YAML::Node& v, const std::string& key) const {
    return one_of<tuning_objective>(v, key,
                                    {{"performance", tuning_objective::latency},
                                     {"accuracy", tuning_objective::metric},
                                     {"modelsize", tuning_objective::model_size},
                                     {"footprint", tuning_objective::footprint}});
  }

  void require_one_objective(const YAML::Node& at) {
    if (has_objective_) {
      refuse(at, "tuning has both objective and multi_objectives");
    }
    has_objective_ = true;
  }

  void read_objectives(const YAML::Node& map) {
    require_one_objective(map);
    std::vector<weighted_objective> all;
    std::vector<double> weights;
    section(map, "tuning.multi_objectives",
            {{"objective",
              [&](const auto& v) {
                for (const YAML::Node& one : list(v, "objective")) {
                  all.push_back({objective(one, "tuning.multi_objectives.objective"), 1.0});
                }
              }},
             {"weight",
              [&](const auto& v) {
                for (const YAML::Node& one : list(v, "weight")) {
                  weights.push_back(number(one, "weight"));
                  if (weights.back() < 0.0) {
                    refuse(one, "multi_objectives.weight: expected numbers of at least 0, not " +
                                    text(one, "weight"));
                  }
                }
              }},
             {"higher_is_better",
              ignored("tuning.multi_objectives.higher_is_better has no effect: accuracy is made "
                      "high where the metric says so, all others low")}});
    if (all.empty() || (!weights.empty() && weights.size() != all.size())) {
      refuse(map, "tuning.multi_objectives: expected objectives and as many weights");
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      all[i].weight = weights[i];
    }
    c_.tuning.objectives = std::move(all);
  }

  // ------------------------------------------------------------------------------- completion

  /// Turns what was read into the options of tune().
  void complete(const YAML::Node& root) {
    tuning_options& t = c_.tuning;
    require_training();
    const bool is_dynamic = approach_.value_or(c_.form == framework::integer_operators);
    if (approach_ && is_dynamic != (c_.form == framework::integer_operators)) {
      refuse(approach_at_, is_training_ ? "quant_aware_training needs the framework "
                                          "onnxrt_qlinearops or onnxrt_qdqops"
                           : is_dynamic
                               ? "post_training_dynamic_quant needs the framework onnxrt_integerops"
                               : "post_training_static_quant needs the framework "
                                 "onnxrt_qlinearops or onnxrt_qdqops");
    }
    t.quantizer.is_dynamic = is_dynamic;
    t.quantizer.weights =
        is_dynamic ? dynamic_quantization_options().weights : layer_weight_options();
    const auto some = [](auto wanted, auto otherwise) {
      return wanted.empty() ? otherwise : wanted;
    };
    if (t.space.samples == std::vector<std::size_t>{0}) {
      t.space.samples = {100};
    }
    if (is_dynamic) {
      t.space.samples = {0};  // nothing is calibrated
    }
    t.space.per_channel = some(weight_.per_channel, std::vector<bool>{true, false});
    t.space.methods = is_dynamic ? std::vector<std::string>{"minmax"}
                                 : some(activation_.algorithms,
                                        std::vector<std::string>{"percentile", "minmax", "kl"});
    note_algorithms(activation_at_, "activation", activation_);
    t.space.symmetric_activations = {false};
    if (!activation_.symmetric.empty() && !is_dynamic) {
      t.space.symmetric_activations = activation_.symmetric;
    } else if (is_dynamic && activation_.symmetric == std::vector<bool>{true}) {
      note(activation_at_, "activation.scheme sym has no effect: DynamicQuantizeLinear is asym");
    }
    t.space.weights.clear();
    for (const std::string& a :
         some(weight_.algorithms, is_dynamic ? std::vector<std::string>{"exact-mse", "absmax"}
                                             : std::vector<std::string>{"absmax", "exact-mse"})) {
      t.space.weights.push_back(scale_of(a));
    }
    t.space.corrections = some(
        corrections_,
        is_dynamic ? std::vector<bias_correction>{bias_correction::none}
                   : std::vector<bias_correction>{bias_correction::fast, bias_correction::none});
    if (weight_.bits) {
      t.quantizer.weights.bits = *weight_.bits;
    }
    if (!weight_.symmetric.empty()) {
      const bool any_asymmetric = std::find(weight_.symmetric.begin(), weight_.symmetric.end(),
                                            false) != weight_.symmetric.end();
      t.quantizer.weights.asymmetric = any_asymmetric && is_dynamic;
      if (any_asymmetric && !is_dynamic) {
        note(weight_at_, "weight.scheme asym has no effect: static weights are sym");
      } else if (any_asymmetric && weight_.symmetric.size() > 1) {
        note(weight_at_,
             "weight.scheme sym has no effect beside asym: schemes of weights are not "
             "varied");
      }
    }
    // Nodes may stay in float in any case, so that fp32 beside another type says nothing new.
    const auto first_type = [this](tensor_settings& s, const YAML::Node& at, const char* what) {
      std::erase(s.types, "fp32");
      if (s.types.size() > 1) {
        note(at, std::string(what) + ".dtype: only " + s.types[0] +
                     " has an effect: types are not varied");
      }
      return s.types.empty() ? std::string() : s.types[0];
    };
    const std::string weight_type = first_type(weight_, weight_at_, "weight");
    const std::string activation_type = first_type(activation_, activation_at_, "activation");
    if (is_dynamic && weight_type == "int8") {
      t.quantizer.weight_type = element_type::s8;
    } else if (!is_dynamic && weight_type == "uint8") {
      note(weight_at_, "weight.dtype uint8 has no effect: static weights are int8");
    }
    if (!is_dynamic && activation_type == "int8") {
      t.quantizer.activations.type = element_type::s8;
    } else if (is_dynamic && activation_type == "int8") {
      note(activation_at_, "activation.dtype int8 has no effect: DynamicQuantizeLinear is uint8");
    }
    note_single_settings();
    if (c_.outputs.size() > 1 && !c_.metrics.empty()) {
      note(root["model"],
           "model.outputs: metrics are computed from the first one, '" + c_.outputs[0] + "'");
    }
    if (higher_is_better_ && (c_.metrics.size() != 1 || is_training_)) {
      note(higher_is_better_at_,
           std::string("tuning.accuracy_criterion.higher_is_better has no effect ") +
               (is_training_         ? "on training"
                : c_.metrics.empty() ? "without evaluation.accuracy.metric"
                                     : "beside multi_metrics, which have their own"));
    }
    if (c_.metrics.size() == 1) {
      t.goal.higher_is_better = higher_is_better_.value_or(c_.metrics[0].is_higher_better());
      c_.metrics[0].higher_is_better = t.goal.higher_is_better;
    }
    if (!c_.metrics.empty() && !c_.evaluation && !t.performance_only) {
      refuse(root["evaluation"],
             "evaluation.accuracy has a metric and no dataloader; write "
             "dataloader: {dataset: {npy: {inputs: X.npy, labels: Y.npy}}}");
    }
    if (c_.evaluation && !c_.evaluation->dummy_shapes.empty()) {
      refuse(root["evaluation"], "evaluation.accuracy: random samples have no labels");
    }
    if (is_training_) {
      complete_training(root);
    }
  }

  /// Compares the approach and the section that it needs.
  void require_training() {
    if (is_training_ && !c_.train) {
      refuse(approach_at_,
             "quant_aware_training needs the section quantization.train: optimizer, epoch, and "
             "dataloader: {dataset: {npy: {inputs: X.npy, labels: Y.npy}}}");
    }
    if (!is_training_ && c_.train) {
      note(train_at_, "quantization.train has no effect without approach: quant_aware_training");
      c_.train.reset();
    }
  }
  /// Takes what training needs of what was read for tune(), and notes the rest.
  void complete_training(const YAML::Node& root) {
    tuning_options& t = c_.tuning;
    c_.train->options.seed = t.seed;
    t.quantizer.weights.per_channel = t.space.per_channel[0];
    t.quantizer.weights.scale =
        weight_.algorithms.empty() ? weight_scale::exact_mse : t.space.weights[0];
    t.quantizer.activations.symmetric = t.space.symmetric_activations[0];
    if (!activation_.algorithms.empty()) {
      c_.train->method = activation_.algorithms[0];
    }
    if (c_.outputs.size() > 0) {
      c_.train->options.loss.output = c_.outputs[0];
    }
    if (c_.calibration) {
      note(root["quantization"]["calibration"],
           "quantization.calibration has no effect: ranges begin with samples of training");
    }
    const bool is_top_1 =
        c_.metrics.empty() || (c_.metrics.size() == 1 && c_.metrics[0].kind == metric_kind::top_k &&
                               c_.metrics[0].k == 1);
    if (!is_top_1) {
      note(root["evaluation"]["accuracy"],
           "evaluation.accuracy: epochs of training are measured by top-1 and the loss");
    }
    const YAML::Node quantization = root["quantization"];
    note_keys(quantization, "quantization", {"advance"}, "biases are trained");
    if (corrections_ == std::vector<bias_correction>{bias_correction::fast}) {
      note_keys(child(quantization, "recipes"), "quantization.recipes", {"fast_bias_correction"},
                "biases are trained");
    }
    note_keys(child(root["evaluation"], "accuracy"), "evaluation.accuracy", {"iteration"},
              "epochs are measured by all samples");
    note_keys(root["tuning"], "tuning",
              {"strategy", "objective", "multi_objectives", "exit_policy", "workspace"},
              "training makes no trials");
    const auto first_only = [this](const YAML::Node& at, const std::string& key, std::size_t size) {
      note_first_only(at, "quantization.model_wise." + key, size, "training varies no settings");
    };
    first_only(weight_at_, "weight.granularity", weight_.per_channel.size());
    first_only(weight_at_, "weight.algorithm", weight_.algorithms.size());
    first_only(activation_at_, "activation.algorithm", activation_.algorithms.size());
    first_only(activation_at_, "activation.scheme", activation_.symmetric.size());
  }

  /// The value of a key; undefined if there is none.
  [[nodiscard]] static YAML::Node child(const YAML::Node& map, const char* key) {
    return map.IsDefined() && map.IsMap() ? map[key] : YAML::Node(YAML::NodeType::Undefined);
  }
  /// Notes the keys of a section, if the file has them, that have no effect on training.
  void note_keys(const YAML::Node& map, const std::string& what,
                 std::initializer_list<const char*> unused, const std::string& why) {
    for (const char* key : unused) {
      const YAML::Node value = child(map, key);
      if (value.IsDefined() && !value.IsNull()) {
        note(value, what + "." + key + " has no effect: " + why);
      }
    }
  }

  configuration& c_;
  bool has_framework_ = false;
  std::optional<bool> approach_;  // whether it is dynamic
  bool is_training_ = false;
  YAML::Node train_at_;
  YAML::Node approach_at_;
  tensor_settings weight_;
  tensor_settings activation_;
  std::vector<single_settings> single_;
  YAML::Node weight_at_;
  YAML::Node activation_at_;
  std::vector<bias_correction> corrections_;
  std::optional<bool> higher_is_better_;
  YAML::Node higher_is_better_at_;
  bool has_objective_ = false;
};

}  // namespace detail

/// Reads a configuration file from its text. `name` stands for the file in messages. Throws
/// invalid_argument, with name:line, for text that is not YAML, for unknown keys and values (naming
/// the nearest one that is known), for values of another form, for a second YAML document, and for
/// what needs Python.
[[nodiscard]] inline configuration parse_yaml(const std::string& text, const std::string& name) {
  configuration c;
  detail::yaml_reader(c, name).run(text);
  return c;
}

/// Whether a YAML text has the form of Neural Compressor's configuration files: a map with a key
/// `model`, `quantization`, `evaluation` or `tuning` that has no value or a map as value. Text that
/// is not one YAML document has not.
[[nodiscard]] inline bool is_configuration(const std::string& text) {
  try {
    const YAML::Node root = yaml_values("configuration").document(text);
    const auto is_section = [&](const char* key) {
      return root[key].IsDefined() && (root[key].IsMap() || root[key].IsNull());
    };
    return root.IsMap() && (is_section("model") || is_section("quantization") ||
                            is_section("evaluation") || is_section("tuning"));
  } catch (const YAML::Exception&) {
    return false;
  } catch (const error&) {
    return false;
  }
}

}  // namespace graph::inc
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_INC_YAML_HPP
