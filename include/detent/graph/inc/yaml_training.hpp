// SPDX-License-Identifier: BSD-3-Clause
// Reads the section `quantization.train` of a Neural Compressor file.
#ifndef DETENT_GRAPH_INC_YAML_TRAINING_HPP
#define DETENT_GRAPH_INC_YAML_TRAINING_HPP

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <detent/config.hpp>
#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/inc/yaml_evaluation.hpp>
#include <detent/graph/learn/training_options.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::inc {
namespace detail {

/// Reads a `train` section.
class training_reader : public evaluation_reader {
 public:
  using evaluation_reader::evaluation_reader;

  [[nodiscard]] training read_train(const YAML::Node& map) {
    training t;
    training_options& o = t.options;
    o.epochs = 1;
    o.schedule.schedule = learning_rate_schedule::constant;
    std::optional<dataset> data;
    std::optional<std::size_t> end;
    std::size_t start = 0;
    bool has_optimizer = false;
    const std::string what = "quantization.train";
    section(
        map, what,
        {{"dataloader", [&](const auto& v) { data = read_dataloader(v, what + ".dataloader"); }},
         {"epoch", [&](const auto& v) { o.epochs = count(v, what + ".epoch", 1); }},
         {"start_epoch", [&](const auto& v) { start = count(v, what + ".start_epoch", 0); }},
         {"end_epoch", [&](const auto& v) { end = count(v, what + ".end_epoch", 1); }},
         {"iteration",
          [&](const auto& v) { o.steps_per_epoch = count(v, what + ".iteration", 1); }},
         {"optimizer",
          [&](const auto& v) {
            read_optimizer(v, o);
            has_optimizer = true;
          }},
         {"criterion", [&](const auto& v) { read_criterion(v, o.loss); }},
         {"frequency", ignored(what + ".frequency has no effect")},
         {"execution_mode", ignored(what + ".execution_mode has no effect")},
         {"hostfile", ignored(what + ".hostfile has no effect")},
         {"postprocess", not_here(what + ".postprocess needs Python")}});
    if (!data || data->labels.empty() || data->inputs.empty()) {
      refuse(map, what +
                      " has no samples with labels; write dataloader: {dataset: {npy: {inputs: "
                      "X.npy, labels: Y.npy}}}");
    }
    if (!has_optimizer) {
      refuse(map, what + " has no optimizer; write optimizer: {SGD: {learning_rate: 0.001}}");
    }
    const std::size_t last = end.value_or(start + o.epochs);
    if (last <= start) {
      refuse(map, what + ": end_epoch " + std::to_string(last) + " is not above start_epoch " +
                      std::to_string(start));
    }
    o.epochs = last - start;
    o.batch_size = data->batch_size;
    t.data = std::move(*data);
    return t;
  }

 private:
  void read_optimizer(const YAML::Node& map, training_options& o) {
    const std::string what = "quantization.train.optimizer";
    std::size_t given = 0;
    const auto positive = [this](const YAML::Node& v, const std::string& key) {
      const double n = number(v, key);
      if (!(n > 0.0)) {
        refuse(v, key + ": expected a number above 0, not " + text(v, key));
      }
      return n;
    };
    const auto share = [this](const YAML::Node& v, const std::string& key) {
      const double n = number(v, key);
      if (!(n >= 0.0 && n < 1.0)) {
        refuse(v, key + ": expected a number in [0, 1), not " + text(v, key));
      }
      return n;
    };
    // What all optimizers have in common. An entry without a value has the defaults.
    const auto one = [&](training_optimizer kind, const std::string& name, keys own) {
      return [&, kind, name, own = std::move(own)](const YAML::Node& v) mutable {
        o.optimizer = kind;
        o.momentum = kind == training_optimizer::sgd ? 0.0 : o.momentum;
        ++given;
        const std::string key = what + "." + name;
        own.emplace_back("learning_rate", [&, key](const YAML::Node& n) {
          o.learning_rate = positive(n, key + ".learning_rate");
        });
        own.emplace_back("weight_decay", [&, key](const YAML::Node& n) {
          o.weight_decay = number(n, key + ".weight_decay");
          if (o.weight_decay < 0.0) {
            refuse(n, key + ".weight_decay: expected at least 0");
          }
        });
        section(v, key, own);
      };
    };
    const keys moments = {
        {"beta_1", [&](const YAML::Node& v) { o.momentum = share(v, "beta_1"); }},
        {"beta_2", [&](const YAML::Node& v) { o.square_momentum = share(v, "beta_2"); }},
        {"epsilon", ignored(what + ": epsilon has no effect: it is 1e-8")},
        {"amsgrad", [this](const YAML::Node& v) {
           if (boolean(v, "amsgrad")) {
             refuse(v, "amsgrad is not offered");
           }
         }}};
    section(
        map, what,
        {{"SGD", one(training_optimizer::sgd, "SGD",
                     {{"momentum", [&](const YAML::Node& v) { o.momentum = share(v, "momentum"); }},
                      {"nesterov",
                       [this](const YAML::Node& v) {
                         if (boolean(v, "nesterov")) {
                           refuse(v, "nesterov is not offered");
                         }
                       }}})},
         {"Adam", one(training_optimizer::adam, "Adam", moments)},
         {"AdamW", one(training_optimizer::adamw, "AdamW", moments)}},
        true);
    if (given != 1) {
      refuse(map, what + ": expected one of SGD, Adam and AdamW");
    }
  }

  void read_criterion(const YAML::Node& map, training_loss& loss) {
    const std::string what = "quantization.train.criterion";
    const auto cross_entropy = [this, what](const YAML::Node& v) {
      section(v, what,
              {{"reduction",
                [this](const auto& r) {
                  if (!one_of<bool>(r, "reduction",
                                    {{"mean", true},
                                     {"auto", true},
                                     {"sum_over_batch_size", true},
                                     {"sum", false},
                                     {"none", false}})) {
                    refuse(r, "reduction: the loss of a batch is the mean over its samples");
                  }
                }},
               {"from_logits",
                ignored("from_logits has no effect: the loss takes what goes into a Softmax at the "
                        "end of the model, or the output")}});
    };
    std::size_t given = 0;
    const auto counted = [&given](reader read) {
      return [&given, read = std::move(read)](const YAML::Node& v) {
        ++given;
        read(v);
      };
    };
    section(map, what,
            {{"CrossEntropyLoss", counted(cross_entropy)},
             {"SparseCategoricalCrossentropy", counted(cross_entropy)},
             {"KnowledgeDistillationLoss",
              counted([&](const YAML::Node& v) { read_distillation(v, loss); })},
             {"IntermediateLayersKnowledgeDistillationLoss",
              counted([&](const YAML::Node& v) { read_hidden(v, loss); })}},
            true);
    if (given != 1) {
      refuse(map, what + ": expected one criterion");
    }
  }

  void read_distillation(const YAML::Node& map, training_loss& loss) {
    const std::string what = "KnowledgeDistillationLoss";
    std::vector<double> weights{0.5, 0.5};
    loss.temperature = 1.0;
    section(map, what,
            {{"temperature",
              [&](const auto& v) {
                loss.temperature = number(v, "temperature");
                if (!(loss.temperature > 0.0)) {
                  refuse(v, "temperature: expected a number above 0");
                }
              }},
             {"loss_types",
              [&](const auto& v) {
                for (const YAML::Node& one : list(v, "loss_types")) {
                  one_of<int>(one, "loss_types", {{"CE", 0}, {"KL", 1}});
                }
              }},
             {"loss_weights", [&](const auto& v) {
                weights.clear();
                for (const YAML::Node& one : list(v, "loss_weights")) {
                  weights.push_back(number(one, "loss_weights"));
                }
                if (weights.size() != 2 || !(weights[0] >= 0.0) || !(weights[1] >= 0.0) ||
                    !(weights[0] + weights[1] > 0.0)) {
                  refuse(v,
                         "loss_weights: expected the weights of the labels and of the float "
                         "model, of at least 0");
                }
              }}});
    loss.distillation = weights[1] / (weights[0] + weights[1]);
  }

  void read_hidden(const YAML::Node& map, training_loss& loss) {
    const std::string what = "IntermediateLayersKnowledgeDistillationLoss";
    section(
        map, what,
        {{"layer_mappings",
          [&](const auto& v) {
            if (!v.IsSequence()) {
              refuse(v, "layer_mappings is not a list of pairs of values");
            }
            for (const YAML::Node& pair : v) {
              const std::vector<std::string> names = texts(pair, "layer_mappings");
              if (names.size() > 2 || (names.size() == 2 && names[0] != names[1])) {
                refuse(pair,
                       "layer_mappings: expected the name of a value, or that name "
                       "twice: both models have the same values");
              }
              loss.hidden.push_back(names[0]);
            }
          }},
         {"loss_types",
          [&](const auto& v) {
            for (const YAML::Node& one : list(v, "loss_types")) {
              one_of<int>(one, "loss_types", {{"MSE", 0}});
            }
          }},
         {"loss_weights",
          [&](const auto& v) {
            const std::vector<YAML::Node> all = list(v, "loss_weights");
            loss.hidden_weight = number(all[0], "loss_weights");
            for (const YAML::Node& one : all) {
              if (number(one, "loss_weights") != loss.hidden_weight || loss.hidden_weight < 0.0) {
                refuse(one, "loss_weights: expected one weight for all layers, of at least 0");
              }
            }
          }},
         {"add_origin_loss", [&](const auto& v) {
            if (!boolean(v, "add_origin_loss")) {
              note(v, "add_origin_loss: False has no effect: labels always count");
            }
          }}});
    if (loss.hidden.empty()) {
      refuse(map, what + " has no layer_mappings");
    }
  }
};

}  // namespace detail
}  // namespace graph::inc
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_INC_YAML_TRAINING_HPP
