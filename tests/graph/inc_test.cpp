// SPDX-License-Identifier: BSD-3-Clause
// The configuration files of Neural Compressor: what they say, and what is wrong with them.
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <detent/graph/inc/yaml.hpp>

#include "check_graph_error.hpp"

namespace {

namespace graph = detent::graph;
namespace inc = detent::graph::inc;
using detent::error_kind;
using graph::bias_correction;
using graph::weight_scale;

/// The sections of a file behind a model section.
inc::configuration with(const std::string& text, const char* framework = "onnxrt_qdqops") {
  return inc::parse_yaml("model: {name: m, framework: " + std::string(framework) + "}\n" + text,
                         "c.yaml");
}
void fails(std::initializer_list<std::string_view> words, const std::string& text) {
  INFO(text);
  test::check_graph_error(error_kind::invalid_argument, words,
                          [&] { static_cast<void>(with(text)); });
}
/// The file as it is.
void refuses(std::initializer_list<std::string_view> words, const std::string& text) {
  INFO(text);
  test::check_graph_error(error_kind::invalid_argument, words,
                          [&] { static_cast<void>(inc::parse_yaml(text, "c.yaml")); });
}

}  // namespace

TEST_CASE("inc: a file with so many values that reading it would take much memory") {
  std::string many = "quantization: {op_wise: {a: [1";
  for (int i = 0; i < 200000; ++i) {
    many += i % 100 == 0 ? ",\n1" : ",1";
  }
  many += "]}}\n";
  refuses({"c.yaml:", "more than 200000"}, many);
  refuses({"c.yaml", "500002 commas"}, "a: [" + std::string(499999, ',') + "]\n");
  CHECK_FALSE(inc::is_configuration(many));  // readers of other forms refuse it by its name
  CHECK(inc::is_configuration("quantization: {}\n"));
}

TEST_CASE("inc: the file of the documentation") {
  const inc::configuration c = inc::parse_yaml(R"(# comments stay
model:                                               # mandatory.
  name: bert
  framework: onnxrt_integerops                       # mandatory.

quantization:
  approach: post_training_dynamic_quant              # optional.
  calibration:
    sampling_size: 8, 16, 32
tuning:
  accuracy_criterion:
    relative:  0.01
  exit_policy:
    timeout: 0
  random_seed: 9527
)",
                                               "conf.yaml");
  CHECK(c.model_name == "bert");
  CHECK(c.form == inc::framework::integer_operators);
  CHECK(c.tuning.quantizer.is_dynamic);
  CHECK(c.tuning.quantizer.weight_type == graph::element_type::u8);
  CHECK(c.tuning.goal.max_drop == 0.01);
  CHECK(c.tuning.goal.drop == graph::drop_type::relative);
  CHECK(c.tuning.timeout == 0.0);
  CHECK(c.tuning.seed == 9527);
  CHECK(c.tuning.max_trials == 100);
  CHECK(c.tuning.strategy == graph::tuning_strategy::basic);
  CHECK(c.tuning.space.samples == std::vector<std::size_t>{0});  // nothing to calibrate
  CHECK(c.metrics.empty());
  CHECK(c.notes.empty());
}

TEST_CASE("inc: defaults of a static configuration") {
  const inc::configuration c = with("");
  CHECK(c.form == inc::framework::qdq);
  CHECK_FALSE(c.tuning.quantizer.is_dynamic);
  CHECK(c.tuning.space.samples == std::vector<std::size_t>{100});
  CHECK(c.tuning.space.methods == std::vector<std::string>{"percentile", "minmax", "kl"});
  CHECK(c.tuning.space.per_channel == std::vector<bool>{true, false});
  CHECK(c.tuning.space.symmetric_activations == std::vector<bool>{false});
  CHECK(c.tuning.space.weights ==
        std::vector<weight_scale>{weight_scale::absmax, weight_scale::exact_mse});
  CHECK(with("", "onnxrt_integerops").tuning.space.weights ==
        std::vector<weight_scale>{weight_scale::exact_mse, weight_scale::absmax});
  CHECK(c.tuning.space.corrections ==
        std::vector<bias_correction>{bias_correction::fast, bias_correction::none});
  CHECK(with("", "onnxrt_integerops").tuning.space.corrections ==
        std::vector<bias_correction>{bias_correction::none});
  CHECK(c.tuning.goal.drop == graph::drop_type::relative);
  CHECK(c.tuning.goal.max_drop == 0.01);
  CHECK(c.tuning.seed == 1978);
  CHECK(with("", "onnxrt_qlinearops").form == inc::framework::qlinear_operators);
  CHECK(with("", "onnxrt_qdq").form == inc::framework::qdq);
  CHECK(with("", "onnxrt_integerops").tuning.quantizer.is_dynamic);
}

TEST_CASE("inc: quantization") {
  const inc::configuration c = with(R"(
version: 1.0
device: cpu
quantization:
  approach: static
  advance: {bias_correction: weight_empirical}
  calibration:
    sampling_size: [50, 100]
    dataloader:
      batch_size: 4
      last_batch: rollover
      dataset: {npy: {inputs: [image=X.npy, table=T.npy:fixed], labels: Y.npy}}
  recipes:
    scale_propagation_max_pooling: True
    first_conv_or_matmul_quantization: False
    last_conv_or_matmul_quantization: False
  optimization_level: extended
  model_wise:
    weight: {granularity: per_channel, scheme: sym, dtype: int8, algorithm: [minmax, exact-mse], bit: 6.0}
    activation: {granularity: per_tensor, scheme: [asym, sym], dtype: int8, algorithm: "minmax, kl"}
  optype_wise:
    Gemm|MatMul: {weight: {granularity: per_tensor}}
  op_wise:
    conv1: {activation: {dtype: fp32}}
    ".*head": {weight: {bit: 3, algorithm: exact-mse}, activation: {algorithm: percentile}}
)");
  CHECK(c.tuning.space.samples == std::vector<std::size_t>{50, 100});
  REQUIRE(c.calibration);
  CHECK(c.calibration->inputs == std::vector<std::string>{"image=X.npy", "table=T.npy:fixed"});
  CHECK(c.calibration->labels == "Y.npy");
  CHECK(c.tuning.space.corrections == std::vector<bias_correction>{bias_correction::fast});
  CHECK(c.tuning.quantizer.scope.ignored.first_layer);
  CHECK(c.tuning.quantizer.scope.ignored.last_layer);
  CHECK(c.tuning.space.per_channel == std::vector<bool>{true});
  CHECK(c.tuning.space.weights ==
        std::vector<weight_scale>{weight_scale::absmax, weight_scale::exact_mse});
  CHECK(c.tuning.quantizer.weights.bits == 7);  // with the sign
  CHECK(c.tuning.space.symmetric_activations == std::vector<bool>{false, true});
  CHECK(c.tuning.space.methods == std::vector<std::string>{"minmax", "kl"});
  CHECK(c.tuning.quantizer.activations.type == graph::element_type::s8);
  const graph::operator_rules& rules = c.tuning.quantizer.scope.operators;
  REQUIRE(rules.types.size() == 1);
  CHECK(rules.types[0].pattern == "Gemm|MatMul");
  CHECK(rules.types[0].settings.per_channel == false);
  REQUIRE(rules.names.size() == 2);
  CHECK(rules.names[0].settings.quantize == false);
  CHECK(rules.names[1].settings.weight_bits == 4);
  CHECK(rules.names[1].settings.weight_scales == weight_scale::exact_mse);
  CHECK(rules.names[1].settings.method == "percentile");
  REQUIRE(c.notes.size() == 1);
  CHECK(c.notes[0].find("optimization_level") != std::string::npos);
}

TEST_CASE("inc: types of single operators say whether they are quantized") {
  const auto quantize = [](const std::string& settings) {
    const inc::configuration c = with("quantization:\n  op_wise:\n    a: {" + settings + "}\n");
    const graph::operator_rule& rule = c.tuning.quantizer.scope.operators.names.at(0);
    CHECK(rule.where == "c.yaml:4");
    return rule.settings.quantize;
  };
  // An int8 overrides an fp32 of optype_wise.
  CHECK(quantize("weight: {dtype: int8}") == true);
  CHECK(quantize("activation: {dtype: uint8}") == true);
  CHECK(quantize("weight: {dtype: [int8, fp32]}, activation: {dtype: uint8}") == true);
  CHECK(quantize("weight: {dtype: fp32}") == false);
  CHECK(quantize("weight: {dtype: fp32}, activation: {dtype: uint8}") == false);
  CHECK(quantize("activation: {dtype: fp32}, weight: {dtype: int8}") == false);
  CHECK(quantize("weight: {bit: 3}") == std::nullopt);
  fails({"c.yaml:2:", "first_conv_or_matmul_quantization: expected true"},
        "quantization: {recipes: {first_conv_or_matmul_quantization: maybe}}");
  fails({"c.yaml:2:", "last_conv_or_matmul_quantization: expected true"},
        "quantization: {recipes: {last_conv_or_matmul_quantization: maybe}}");
}

TEST_CASE("inc: random samples") {
  const inc::configuration c = with(R"(
quantization:
  calibration:
    dataloader: {dataset: {dummy: {shape: [[64, 3, 8], [64, 2]], low: -1.0, high: 1.5}}}
)");
  REQUIRE(c.calibration);
  CHECK(c.calibration->dummy_shapes == std::vector<graph::shape>{{64, 3, 8}, {64, 2}});
  CHECK(c.calibration->dummy_low == -1.0F);
  CHECK(c.calibration->dummy_high == 1.5F);
  const inc::configuration v2 = with(
      "quantization: {calibration: {dataloader: {dataset: {dummy_v2: {input_shape: [3, 8]}}}}}");
  CHECK(v2.calibration->dummy_shapes == std::vector<graph::shape>{{100, 3, 8}});
}

TEST_CASE("inc: evaluation and tuning") {
  const inc::configuration c = with(R"(
evaluation:
  accuracy:
    metric: {topk: 5}
    iteration: 200
    dataloader: {dataset: {npy: {inputs: X.npy, labels: Y.npy}}}
    configs: {cores_per_instance: 4, num_of_instance: 1}
  performance: {warmup: 3, iteration: 50}
tuning:
  strategy: {name: mse_v2, confidence_batches: 4}
  accuracy_criterion: {absolute: 0.5%, higher_is_better: True}
  multi_objectives: {objective: [performance, modelsize], weight: [0.75, 0.25]}
  exit_policy: {timeout: 600, max_trials: 40, performance_only: False}
  tensorboard: True
  workspace: {path: tuning, resume: tuning/history.json}
)");
  REQUIRE(c.metrics.size() == 1);
  CHECK(c.metrics[0].kind == inc::metric_kind::top_k);
  CHECK(c.metrics[0].k == 5);
  CHECK(c.evaluation_samples == 200);
  CHECK(c.evaluation->labels == "Y.npy");
  CHECK(c.tuning.warmup_runs == 3);
  CHECK(c.tuning.measured_runs == 50);
  CHECK(c.tuning.strategy == graph::tuning_strategy::mse_v2);
  CHECK(c.tuning.ranking_samples == 4);
  CHECK(c.tuning.goal.drop == graph::drop_type::absolute);
  CHECK(c.tuning.goal.max_drop == doctest::Approx(0.005));
  CHECK(c.tuning.goal.higher_is_better);
  REQUIRE(c.tuning.objectives.size() == 2);
  CHECK(c.tuning.objectives[1].objective == graph::tuning_objective::model_size);
  CHECK(c.tuning.objectives[1].weight == 0.25);
  CHECK(c.tuning.timeout == 600.0);
  CHECK(c.tuning.max_trials == 40);
  CHECK(c.workspace == "tuning");
  CHECK(c.resume == "tuning/history.json");
  CHECK(c.notes.size() == 2);  // configs, tensorboard

  const std::string data = "dataloader: {dataset: {npy: {inputs: X.npy, labels: Y.npy}}}";
  const inc::configuration several = with(
      "evaluation: {accuracy: {multi_metrics: {topk: 1, MSE: {compare_label: False}, weight: "
      "[0.8, 0.2], higher_is_better: [True, False]}, " +
      data + "}}");
  REQUIRE(several.metrics.size() == 2);
  CHECK(several.metrics[0].weight == 0.8);
  CHECK(several.metrics[1].kind == inc::metric_kind::mse);
  CHECK_FALSE(several.metrics[1].compare_label);
  CHECK_FALSE(several.metrics[1].is_higher_better());
  const inc::configuration loss =
      with("evaluation: {accuracy: {metric: {RMSE: {}}, " + data + "}}");
  CHECK_FALSE(loss.tuning.goal.higher_is_better);
  const inc::configuration map =
      with("evaluation: {accuracy: {metric: {mAP: {map_points: 11}}, " + data + "}}");
  CHECK(map.metrics[0].map_points == 11);
  for (const char* name :
       {"basic", "conservative", "mse", "mse_v2", "hawq_v2", "bayesian", "random", "exhaustive"}) {
    CHECK(graph::name(
              with("tuning: {strategy: {name: " + std::string(name) + "}}").tuning.strategy) ==
          std::string(name));
  }
}

TEST_CASE("inc: metrics without a value") {
  const std::string data = "dataloader: {dataset: {npy: {inputs: X.npy, labels: Y.npy}}}";
  for (const auto& metric :
       {std::pair("F1: ", inc::metric_kind::f1), std::pair("ROC:", inc::metric_kind::roc),
        std::pair("mAP: ~", inc::metric_kind::mean_average_precision),
        std::pair("RMSE: null", inc::metric_kind::rmse),
        std::pair("topk:", inc::metric_kind::top_k)}) {
    const std::string text = metric.first;
    INFO(text);
    const inc::configuration c =
        with("evaluation:\n  accuracy:\n    " + data + "\n    metric:\n      " + text);
    REQUIRE(c.metrics.size() == 1);
    CHECK(c.metrics[0].kind == metric.second);
    CHECK(c.metrics[0].k == 1);
  }
  const inc::configuration several =
      with("evaluation: {accuracy: {multi_metrics: {topk: , F1: , weight: , higher_is_better: }, " +
           data + "}}");
  CHECK(several.metrics.size() == 2);
  const inc::configuration outputs = inc::parse_yaml(
      "model: {framework: onnxrt_qdqops, outputs: [y, z]}\nevaluation: {accuracy: {metric: {F1: "
      "}, " +
          data + "}}",
      "c.yaml");
  REQUIRE(outputs.notes.size() == 1);
  CHECK(outputs.notes[0].find("first one, 'y'") != std::string::npos);
  fails({"BLEU", "Python"}, "evaluation: {accuracy: {metric: {BLEU: }}}");
  fails({"metric", "names no metric"}, "evaluation: {accuracy: {metric: {}}}");
  fails({"multi_metrics", "names no metric"},
        "evaluation: {accuracy: {multi_metrics: {weight: [1]}}}");
}

TEST_CASE("inc: iteration counts batches") {
  const auto samples = [](const std::string& iteration, const std::string& batch_size) {
    return with("evaluation: {accuracy: {iteration: " + iteration + ", dataloader: {batch_size: " +
                batch_size + ", dataset: {npy: {inputs: X.npy, labels: Y.npy}}}}}")
        .evaluation_samples;
  };
  CHECK(samples("3", "20") == 60);
  CHECK(samples("3", "1") == 3);
  CHECK(samples("-1", "20") == 0);
  CHECK(samples("9223372036854775807", "9223372036854775807") > std::size_t{1} << 60U);
}

TEST_CASE("inc: settings that have no effect are noted") {
  const auto notes = [](const std::string& quantization, const char* framework) {
    return with("quantization: {" + quantization + "}", framework).notes;
  };
  const auto noted = [&](std::initializer_list<std::string_view> words,
                         const std::string& quantization, const char* framework = "onnxrt_qdqops") {
    INFO(quantization);
    const std::vector<std::string> all = notes(quantization, framework);
    REQUIRE(all.size() == 1);
    CHECK(all[0].find("c.yaml:2: ") == 0);
    for (const std::string_view word : words) {
      INFO(all[0]);
      CHECK(all[0].find(word) != std::string::npos);
    }
  };
  noted({"op_wise.a.activation.scheme"}, "op_wise: {a: {activation: {scheme: sym}}}");
  noted({"op_wise.a.activation.dtype int8", "uint8"}, "op_wise: {a: {activation: {dtype: int8}}}");
  noted({"optype_wise.Conv.weight.scheme"}, "optype_wise: {Conv: {weight: {scheme: asym}}}");
  noted({"op_wise.a.weight.dtype uint8", "int8"}, "op_wise: {a: {weight: {dtype: uint8}}}");
  noted({"op_wise.a.weight.algorithm", "first"},
        "op_wise: {a: {weight: {algorithm: [exact-mse, minmax]}}}");
  noted({"op_wise.a.weight.granularity", "first"},
        "op_wise: {a: {weight: {granularity: [per_tensor, per_channel]}}}");
  noted({"bf16"}, "op_wise: {a: {weight: {dtype: [int8, bf16]}}}");
  noted({"activation.dtype: only uint8"}, "model_wise: {activation: {dtype: [uint8, int8]}}");
  noted({"asym"}, "model_wise: {weight: {scheme: [sym, asym]}}");
  noted({"beside asym"}, "model_wise: {weight: {scheme: [sym, asym]}}", "onnxrt_integerops");
  // What is the same as for the whole model has nothing to note.
  const std::string same =
      "op_wise: {a: {activation: {scheme: sym, dtype: int8}, weight: {scheme: sym, dtype: int8}}}, "
      "model_wise: {activation: {scheme: sym, dtype: [fp32, int8]}, weight: {dtype: [fp32, int8]}}";
  CHECK(notes(same, "onnxrt_qdqops").empty());
  CHECK(with("quantization: {" + same + "}").tuning.quantizer.activations.type ==
        graph::element_type::s8);
  noted({"quantization.calibration.dataloader.last_batch: discard"},
        "calibration: {dataloader: {last_batch: discard, dataset: {npy: {inputs: x}}}}");
  const std::string random = "calibration: {dataloader: {dataset: {dummy: {shape: [2], ";
  noted({"dataset.dummy.dtype"}, random + "dtype: int8}}}}");
  noted({"dataset.dummy.label_shape"}, random + "label_shape: [1]}}}}");
  noted({"quantization.model_wise.activation.compute_dtype"},
        "model_wise: {activation: {compute_dtype: int8}}");
  const std::string kl = "{activation: {algorithm: kl}}";
  noted({"activation.algorithm", "DynamicQuantizeLinear"}, "model_wise: " + kl,
        "onnxrt_integerops");
  noted({"op_wise.a.activation.algorithm", "DynamicQuantizeLinear"}, "op_wise: {a: " + kl + "}",
        "onnxrt_integerops");
  CHECK(notes("model_wise: {activation: {algorithm: minmax}}", "onnxrt_integerops").empty());
  CHECK(notes("op_wise: {a: " + kl + "}", "onnxrt_qdqops").empty());
  fails({"c.yaml:2:", "op_wise has 'a' twice"},
        "quantization: {op_wise: {a: {weight: {bit: 3}}, a: {weight: {bit: 4}}}}");
  CHECK(with("tuning: {tensorboard: True, diagnosis: {}}").notes.size() == 2);
  for (const std::string& note : with("tuning: {tensorboard: True, diagnosis: {}}").notes) {
    CHECK(note.find("--report") == std::string::npos);
  }
}

TEST_CASE("inc: keys of other sections that have no effect are noted") {
  const auto noted = [](std::initializer_list<std::string_view> words, const std::string& text) {
    INFO(text);
    const std::vector<std::string> all = with(text).notes;
    REQUIRE(all.size() == 1);
    for (const std::string_view word : words) {
      INFO(all[0]);
      CHECK(all[0].find(word) != std::string::npos);
    }
  };
  noted({"c.yaml:2: version 2.0", "1.x"}, "version: 2.0");
  CHECK(with("version: 1.0").notes.empty());
  noted({"c.yaml:2: version banana"}, "version: banana");
  CHECK(with("version: 1.13.1").notes.empty());
  const std::string lower = "tuning: {accuracy_criterion: {higher_is_better: False}}\n";
  const std::string data = "dataloader: {dataset: {npy: {inputs: X.npy, labels: Y.npy}}}";
  noted({"c.yaml:2: tuning.accuracy_criterion.higher_is_better", "without"}, lower);
  noted({"c.yaml:2: tuning.accuracy_criterion.higher_is_better", "multi_metrics"},
        lower + "evaluation: {accuracy: {multi_metrics: {topk: 1, F1: {}}, " + data + "}}");
  CHECK(with(lower + "evaluation: {accuracy: {metric: {topk: 1}, " + data + "}}").notes.empty());
}

namespace {

/// A section quantization with training; `more` is in the section train.
std::string trained(const std::string& more, const std::string& quantization = "") {
  return "quantization: {approach: quant_aware_training, " + quantization +
         "train: {dataloader: {batch_size: 8, dataset: {npy: {inputs: x.npy, labels: y.npy}}}" +
         (more.empty() ? "" : ", ") + more + "}}\n";
}

}  // namespace

TEST_CASE("inc: training") {
  const inc::configuration c = inc::parse_yaml(R"(
model: {name: m, framework: onnxrt_qlinearops, outputs: [y]}
quantization:
  approach: quant_aware_training
  train:
    start_epoch: 0
    end_epoch: 7
    iteration: 12
    frequency: 1
    dataloader:
      batch_size: 30
      shuffle: False
      dataset: {npy: {inputs: [a=x.npy, b=z.npy], labels: y.npy}}
    optimizer:
      SGD: {learning_rate: 0.02, momentum: 0.5, nesterov: False, weight_decay: 0.001}
    criterion:
      KnowledgeDistillationLoss: {temperature: 3.0, loss_types: [CE, KL], loss_weights: [1, 3]}
  model_wise:
    weight: {granularity: per_tensor, bit: 3}
    activation: {algorithm: percentile, scheme: sym, dtype: int8}
tuning:
  accuracy_criterion: {absolute: 0.02}
  random_seed: 11
  exit_policy: {max_trials: 3}
)",
                                               "c.yaml");
  REQUIRE(c.train);
  CHECK(c.form == inc::framework::qlinear_operators);
  CHECK(c.train->data.inputs == std::vector<std::string>{"a=x.npy", "b=z.npy"});
  CHECK(c.train->data.labels == "y.npy");
  CHECK(c.train->method == "percentile");
  const graph::training_options& o = c.train->options;
  CHECK(o.epochs == 7);
  CHECK(o.steps_per_epoch == 12);
  CHECK(o.batch_size == 30);
  CHECK(o.optimizer == graph::training_optimizer::sgd);
  CHECK(o.learning_rate == 0.02);
  CHECK(o.momentum == 0.5);
  CHECK(o.weight_decay == 0.001);
  CHECK(o.schedule.schedule == graph::learning_rate_schedule::constant);
  CHECK(o.loss.distillation == 0.75);
  CHECK(o.loss.temperature == 3.0);
  CHECK(o.loss.output == "y");
  CHECK(o.seed == 11);
  CHECK(c.tuning.goal.max_drop == 0.02);
  CHECK(c.tuning.quantizer.weights.bits == 4);
  CHECK(!c.tuning.quantizer.weights.per_channel);
  CHECK(c.tuning.quantizer.activations.symmetric);
  CHECK(c.tuning.quantizer.activations.type == graph::element_type::s8);
  CHECK(c.notes.size() == 2);  // frequency and exit_policy

  // What is not given.
  const auto plain = with(trained("optimizer: {Adam: {}}"));
  CHECK(plain.train->options.epochs == 1);
  CHECK(plain.train->options.optimizer == graph::training_optimizer::adam);
  CHECK(plain.train->options.learning_rate == 1e-3);
  CHECK(plain.train->method == "mse");
  CHECK(plain.tuning.quantizer.weights.per_channel);
  CHECK(plain.tuning.quantizer.weights.scale == weight_scale::exact_mse);
  CHECK(with(trained("optimizer: {SGD: {}}")).train->options.momentum == 0.0);
  CHECK(with(trained("epoch: 3, start_epoch: 2, optimizer: {SGD: {}}")).train->options.epochs == 3);
  CHECK(with(trained("end_epoch: 5, start_epoch: 2, optimizer: {SGD: {}}")).train->options.epochs ==
        3);
  const auto hidden = with(trained("optimizer: {AdamW: {beta_1: 0.8, beta_2: 0.9}}, criterion: "
                                   "{IntermediateLayersKnowledgeDistillationLoss: "
                                   "{layer_mappings: [[a, a], [b]], loss_weights: [2, 2]}}"))
                          .train->options;
  CHECK(hidden.loss.hidden == std::vector<std::string>{"a", "b"});
  CHECK(hidden.loss.hidden_weight == 2.0);
  CHECK(hidden.momentum == 0.8);
  CHECK(hidden.square_momentum == 0.9);
  const auto unused = with(
      "quantization: {train: {optimizer: {SGD: {}}, dataloader: {dataset: {npy: {inputs: x, "
      "labels: y}}}}}");
  CHECK(!unused.train);
  CHECK(unused.notes.size() == 1);

  // What training has no use for.
  const auto notes = [](const std::string& quantization, const std::string& sections = "") {
    return with(trained("optimizer: {SGD: {}}", quantization) + sections).notes;
  };
  const auto noted = [&](std::initializer_list<std::string_view> words,
                         const std::vector<std::string>& all) {
    REQUIRE(all.size() == 1);
    for (const std::string_view word : words) {
      INFO(all[0]);
      CHECK(all[0].find(word) != std::string::npos);
    }
  };
  CHECK(notes("recipes: {fast_bias_correction: False}, ").empty());
  noted({"c.yaml:2: quantization.recipes.fast_bias_correction"},
        notes("recipes: {fast_bias_correction: True}, "));
  CHECK(notes("advance: {bias_correction: weight_empirical}, ")
            .at(0)
            .find("c.yaml:2: quantization.advance") == 0);
  for (const char* list :
       {"weight: {granularity: [per_tensor, per_channel]}",
        "weight: {algorithm: [minmax, exact-mse]}", "activation: {algorithm: [minmax, kl]}",
        "activation: {scheme: [asym, sym]}"}) {
    noted({"c.yaml:2: quantization.model_wise.", "only the first"},
          notes("model_wise: {" + std::string(list) + "}, "));
  }
  noted({"c.yaml:3: tuning.workspace"}, notes("", "tuning: {workspace: {path: work}}"));
  noted({"c.yaml:3: tuning.accuracy_criterion.higher_is_better", "training"},
        notes("", "tuning: {accuracy_criterion: {higher_is_better: True}}"));
  noted({"c.yaml:3: evaluation.accuracy.iteration"},
        notes("",
              "evaluation: {accuracy: {iteration: 3, metric: {topk: 1}, dataloader: {dataset: "
              "{npy: {inputs: X.npy, labels: Y.npy}}}}}"));
  noted({"c.yaml:2: quantization.train.execution_mode"},
        with(trained("optimizer: {SGD: {}}, execution_mode: eager")).notes);

  fails({"c.yaml:2:", "no samples with labels"},
        "quantization: {approach: qat, train: {optimizer: {SGD: {}}}}");
  fails({"no samples with labels"},
        "quantization: {approach: qat, train: {optimizer: {SGD: {}}, dataloader: {dataset: {npy: "
        "{inputs: x}}}}}");
  fails({"no optimizer"}, trained(""));
  fails({"one of SGD"}, trained("optimizer: {SGD: {}, Adam: {}}"));
  fails({"one of SGD"}, trained("optimizer: {}"));
  fails({"'SDG'", "'SGD'"}, trained("optimizer: {SDG: {}}"));
  fails({"learning_rate", "above 0"}, trained("optimizer: {SGD: {learning_rate: 0}}"));
  fails({"[0, 1)", "1.5"}, trained("optimizer: {SGD: {momentum: 1.5}}"));
  fails({"weight_decay"}, trained("optimizer: {SGD: {weight_decay: -1}}"));
  fails({"nesterov"}, trained("optimizer: {SGD: {nesterov: True}}"));
  fails({"amsgrad"}, trained("optimizer: {Adam: {amsgrad: True}}"));
  fails({"end_epoch 2", "start_epoch 2"},
        trained("optimizer: {SGD: {}}, start_epoch: 2, end_epoch: 2"));
  fails({"epoch", "at least 1"}, trained("optimizer: {SGD: {}}, epoch: 0"));
  fails({"one criterion"}, trained("optimizer: {SGD: {}}, criterion: {}"));
  fails({"mean"}, trained("optimizer: {SGD: {}}, criterion: {CrossEntropyLoss: {reduction: sum}}"));
  fails({"loss_weights"}, trained("optimizer: {SGD: {}}, criterion: {KnowledgeDistillationLoss: "
                                  "{loss_weights: [1]}}"));
  fails({"temperature"}, trained("optimizer: {SGD: {}}, criterion: {KnowledgeDistillationLoss: "
                                 "{temperature: 0}}"));
  fails({"layer_mappings"}, trained("optimizer: {SGD: {}}, criterion: "
                                    "{IntermediateLayersKnowledgeDistillationLoss: "
                                    "{layer_mappings: [[a, b]]}}"));
  fails({"postprocess"}, trained("optimizer: {SGD: {}}, postprocess: {transform: {}}"));
  test::check_graph_error(error_kind::invalid_argument, {"quant_aware_training", "qlinearops"}, [] {
    static_cast<void>(with(trained("optimizer: {SGD: {}}"), "onnxrt_integerops"));
  });
}

TEST_CASE("inc: what is wrong has a line and the nearest name") {
  fails({"c.yaml:2:", "'quantisation'", "'quantization'"}, "quantisation: {}");
  fails({"c.yaml:3:", "'aproach'", "'approach'"}, "quantization:\n  aproach: static");
  fails({"c.yaml:2:", "zzzzzzzzzzzzzzzzzz", "there are", "tuning"}, "zzzzzzzzzzzzzzzzzz: 1");
  fails({"c.yaml:2:", "approach", "post_training_static"},
        "quantization: {approach: post_training_static}");
  fails({"c.yaml:2:", "quantization.train", "npy"},
        "quantization: {approach: quant_aware_training}");
  fails({"onnxrt_integerops"}, "quantization: {approach: dynamic}");
  refuses({"framework", "tensorflow"}, "model: {framework: tensorflow}");
  refuses({"model.framework is missing", "onnxrt_qlinearops"}, "quantization: {approach: static}");
  refuses({"c.yaml:1", "not a map"}, "model: 5");
  refuses({"c.yaml:"}, "model: {framework: [");
  fails({"twice"}, "tuning: {}\ntuning: {}");
  fails({"sampling_size", "at least 1", "0"}, "quantization: {calibration: {sampling_size: 0}}");
  fails({"sampling_size", "'many'"}, "quantization: {calibration: {sampling_size: many}}");
  fails({"sampling_size", "whole number", "''"},
        "quantization: {calibration: {sampling_size: '8,,16'}}");
  fails({"ImageFolder", "npy"},
        "quantization: {calibration: {dataloader: {dataset: {ImageFolder: {root: x}}}}}");
  fails({"transform"},
        "quantization: {calibration: {dataloader: {dataset: {npy: {inputs: x}}, transform: "
        "{Resize: 3}}}}");
  fails({"no dataset"}, "quantization: {calibration: {dataloader: {batch_size: 2}}}");
  fails({"no inputs"}, "quantization: {calibration: {dataloader: {dataset: {npy: {labels: x}}}}}");
  fails({"low exceeds high"},
        "quantization: {calibration: {dataloader: {dataset: {dummy: {shape: [2], low: 3, high: "
        "1}}}}}");
  fails({"per_tensor"}, "quantization: {model_wise: {activation: {granularity: per_channel}}}");
  fails({"bit", "1 to 7", "8"}, "quantization: {model_wise: {weight: {bit: 8}}}");
  fails({"fp32", "nothing"}, "quantization: {model_wise: {weight: {dtype: fp32}}}");
  fails({"bf16", "int8"}, "quantization: {op_wise: {a: {weight: {dtype: [bf16]}}}}");
  fails({"'kld'", "'kl'"}, "quantization: {model_wise: {activation: {algorithm: kld}}}");
  fails({"weight_correction"}, "quantization: {recipes: {weight_correction: True}}");
  fails({"'basics'", "'basic'"}, "tuning: {strategy: {name: basics}}");
  fails({"tpe"}, "tuning: {strategy: {name: tpe}}");
  fails({"both"}, "tuning: {accuracy_criterion: {relative: 0.01, absolute: 0.01}}");
  fails({"below 1"}, "tuning: {accuracy_criterion: {relative: 1.0}}");
  fails({"number", "'1.x'"}, "tuning: {accuracy_criterion: {relative: 1.x}}");
  fails({"timeout", "-1"}, "tuning: {exit_policy: {timeout: -1}}");
  fails({"max_trials", "at least 1"}, "tuning: {exit_policy: {max_trials: 0}}");
  fails({"random_seed"}, "tuning: {random_seed: -3}");
  fails({"objectives"}, "tuning: {multi_objectives: {objective: [performance], weight: [1, 2]}}");
  fails({"weight", "at least 0", "-1"},
        "tuning: {multi_objectives: {objective: accuracy, weight: -1}}");
  fails({"c.yaml:2:", "both objective and multi_objectives"},
        "tuning: {objective: accuracy, multi_objectives: {objective: performance}}");
  fails({"c.yaml:2:", "both objective and multi_objectives"},
        "tuning: {multi_objectives: {objective: performance}, objective: accuracy}");
  fails({"c.yaml:3:", "second YAML document"}, "tuning: {}\n---\nmodel: {name: b}\n");
  fails({"second YAML document"}, "---\n---\nmodel: {name: b}\n");
  fails({"c.yaml:4:", "merge keys"},
        "quantization:\n  op_wise:\n    a: {<<: {weight: {bit: 3}}}\n");
  fails({"BLEU", "Python"}, "evaluation: {accuracy: {metric: {BLEU: {}}}}");
  fails({"several", "multi_metrics"}, "evaluation: {accuracy: {metric: {topk: 1, F1: {}}}}");
  fails({"no dataloader"}, "evaluation: {accuracy: {metric: {topk: 1}}}");
  fails({"weight", "2 metrics"},
        "evaluation: {accuracy: {multi_metrics: {topk: 1, F1: {}, weight: [1]}}}");
  fails({"true or false"}, "tuning: {exit_policy: {performance_only: maybe}}");
  fails({"pruning"}, "pruning: {approach: {}}");
  fails({"c.yaml:3:", "'kld'", "'kl'"},
        "quantization:\n  model_wise: {activation: {algorithm: 'minmax, kld'}}");
  fails({"c.yaml:2:", "low", "float32"},
        "quantization: {calibration: {dataloader: {dataset: {dummy: {shape: [2], low: -1e300}}}}}");
}

TEST_CASE("inc: the two kinds of configuration files are told apart") {
  CHECK(inc::is_configuration("model: {name: a}"));
  CHECK(inc::is_configuration("quantization: {approach: static}\n"));
  CHECK(inc::is_configuration("tuning: {strategy: basic}"));
  CHECK(inc::is_configuration("evaluation: {}"));
  CHECK(inc::is_configuration("quantization:"));
  CHECK_FALSE(inc::is_configuration("approach: static"));
  CHECK_FALSE(inc::is_configuration("model: x.onnx"));
  CHECK_FALSE(inc::is_configuration(""));
  CHECK_FALSE(inc::is_configuration("[1, 2]"));
  CHECK_FALSE(inc::is_configuration("model: {"));
  // Case does not count where the nearest name is looked for.
  CHECK(inc::yaml_values::unknown("APROACH", "quantization", {"model", "approach"}) ==
        "'APROACH' is unknown in quantization; the nearest is 'approach'");
}
