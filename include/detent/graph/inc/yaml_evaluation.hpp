// SPDX-License-Identifier: BSD-3-Clause
// Reads the sections of a Neural Compressor file that name samples and metrics.
#ifndef DETENT_GRAPH_INC_YAML_EVALUATION_HPP
#define DETENT_GRAPH_INC_YAML_EVALUATION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include <detent/config.hpp>
#include <detent/graph/inc/configuration.hpp>
#include <detent/graph/inc/yaml_values.hpp>
#include <detent/graph/model/tensor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::inc {
namespace detail {

/// Reads `dataloader` and `evaluation` sections into a configuration, which must outlive it.
class evaluation_reader : public yaml_values {
 public:
  evaluation_reader(configuration& c, std::string name) : yaml_values(std::move(name)), c_(c) {}

  [[nodiscard]] dataset read_dataloader(const YAML::Node& map, const std::string& what) {
    std::optional<dataset> d;
    std::size_t batch_size = 1;
    section(
        map, what,
        {{"dataset", [&](const auto& v) { d = read_dataset(v, what + ".dataset"); }},
         {"batch_size", [&](const auto& v) { batch_size = count(v, what + ".batch_size", 1); }},
         {"last_batch",
          [&](const auto& v) {
            if (one_of<bool>(v, what + ".last_batch", {{"rollover", false}, {"discard", true}})) {
              note(v, what + ".last_batch: discard has no effect: all samples count");
            }
          }},
         {"filter", not_here(what + ".filter: choose the samples when the file is written")},
         {"transform",
          not_here(what + ".transform: transform the samples when the file is written")},
         {"shuffle",
          [&](const auto& v) {
            if (boolean(v, what + ".shuffle")) {
              note(v, what + ".shuffle has no effect: results do not depend on the order");
            }
          }},
         {"distributed", ignored(what + ".distributed has no effect")}});
    if (!d) {
      refuse(map, what + " has no dataset; write dataset: {npy: {inputs: X.npy}}");
    }
    d->batch_size = batch_size;
    return *d;
  }

  [[nodiscard]] dataset read_dataset(const YAML::Node& map, const std::string& what) {
    dataset d;
    keys known = {
        {"npy",
         [&](const auto& v) {
           section(v, what + ".npy",
                   {{"inputs", [&](const auto& i) { d.inputs = texts(i, what + ".npy.inputs"); }},
                    {"labels", [&](const auto& l) { d.labels = text(l, what + ".npy.labels"); }}});
           if (d.inputs.empty()) {
             refuse(v, what + ".npy has no inputs");
           }
         }},
        {"dummy", [&](const auto& v) { read_dummy(v, what + ".dummy", true, d); }},
        {"dummy_v2", [&](const auto& v) { read_dummy(v, what + ".dummy_v2", false, d); }}};
    for (const char* name :
         {"CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "ImageFolder", "TFRecordDataset",
          "ImageRecord", "VOCRecord", "Imagenet", "ImagenetRaw", "COCORecord", "COCORaw", "COCONpy",
          "sparse_dummy_v2", "bert", "mzbert", "GLUE", "style_transfer"}) {
      known.emplace_back(name, not_here(what + ": " + name +
                                        " is read by Python; write its samples to a .npy file and "
                                        "name it: npy: {inputs: X.npy}"));
    }
    section(map, what, known);
    return d;
  }

 private:
  /// A shape, or a list of shapes.
  [[nodiscard]] std::vector<shape> shapes(const YAML::Node& value, const std::string& key) const {
    const bool is_nested = value.IsSequence() && value.size() > 0 && value[0].IsSequence();
    std::vector<shape> all;
    const auto one = [&](const YAML::Node& dims) {
      shape s;
      for (const YAML::Node& d : list(dims, key)) {
        s.push_back(static_cast<std::int64_t>(count(d, key, 1)));
      }
      all.push_back(std::move(s));
    };
    if (is_nested) {
      for (const YAML::Node& dims : value) {
        one(dims);
      }
    } else {
      one(value);
    }
    return all;
  }

  [[nodiscard]] float float_number(const YAML::Node& value, const std::string& key) const {
    const double n = number(value, key);
    if (std::fabs(n) > static_cast<double>((std::numeric_limits<float>::max)())) {
      refuse(value, key + ": expected a number in the range of float32, not " + text(value, key));
    }
    return static_cast<float>(n);
  }

  void read_dummy(const YAML::Node& map, const std::string& what, bool with_samples, dataset& d) {
    section(map, what,
            {{with_samples ? "shape" : "input_shape",
              [&](const auto& v) {
                d.dummy_shapes = shapes(v, what);
                for (shape& s : d.dummy_shapes) {
                  if (!with_samples) {
                    s.insert(s.begin(), 100);  // as many as a sampling size has by default
                  }
                }
              }},
             {"low", [&](const auto& v) { d.dummy_low = float_number(v, what + ".low"); }},
             {"high", [&](const auto& v) { d.dummy_high = float_number(v, what + ".high"); }},
             {"dtype", ignored(what + ".dtype has no effect: random samples have the types of the "
                                      "model's inputs")},
             {"label", ignored(what + ".label has no effect: random samples have no labels")},
             {"label_shape",
              ignored(what + ".label_shape has no effect: random samples have no labels")}});
    if (d.dummy_shapes.empty()) {
      refuse(map, what + " has no " + (with_samples ? "shape" : "input_shape"));
    }
    if (!(d.dummy_low <= d.dummy_high)) {
      refuse(map, what + ": low exceeds high");
    }
  }

 public:
  void read_evaluation(const YAML::Node& map) {
    section(map, "evaluation",
            {{"accuracy", [this](const auto& v) { read_accuracy(v); }},
             {"performance",
              [this](const auto& v) {
                const auto run = [this](const char* key, std::size_t least, std::size_t& to) {
                  return [this, key, least, &to](const YAML::Node& n) {
                    const auto value = as<std::int64_t>(n, key, "a whole number");
                    if (value != -1) {  // as many as Neural Compressor chooses
                      to = count(n, key, least);
                    }
                  };
                };
                section(v, "evaluation.performance",
                        {{"warmup", run("warmup", 0, c_.tuning.warmup_runs)},
                         {"iteration", run("iteration", 1, c_.tuning.measured_runs)},
                         {"configs", ignored("evaluation.performance.configs has no effect")},
                         {"postprocess", not_here("postprocess needs Python")},
                         {"dataloader",
                          ignored("evaluation.performance.dataloader has no effect: latency is "
                                  "measured with a calibration sample")}});
              }},
             {"diagnosis", ignored("evaluation.diagnosis has no effect")}});
  }

 private:
  void read_accuracy(const YAML::Node& map) {
    section(
        map, "evaluation.accuracy",
        {{"metric",
          [this](const auto& v) {
            require_one_kind(v);
            section(v, "evaluation.accuracy.metric", metric_keys(), true);
            if (c_.metrics.size() > 1) {
              refuse(v, "evaluation.accuracy.metric has several metrics; multi_metrics takes them");
            }
            require_some(v, "evaluation.accuracy.metric");
          }},
         {"multi_metrics",
          [this](const auto& v) {
            require_one_kind(v);
            std::vector<double> weights;
            std::vector<bool> higher;
            keys known = metric_keys();
            known.emplace_back("weight", [&](const YAML::Node& w) {
              if (w.IsNull()) {
                return;
              }
              for (const YAML::Node& one : list(w, "weight")) {
                weights.push_back(number(one, "weight"));
                if (!(weights.back() > 0.0)) {
                  refuse(one, "multi_metrics.weight: expected numbers above 0");
                }
              }
            });
            known.emplace_back("higher_is_better", [&](const YAML::Node& w) {
              if (w.IsNull()) {
                return;
              }
              for (const YAML::Node& one : list(w, "higher_is_better")) {
                higher.push_back(boolean(one, "higher_is_better"));
              }
            });
            section(v, "evaluation.accuracy.multi_metrics", known, true);
            require_some(v, "evaluation.accuracy.multi_metrics");
            const std::size_t n = c_.metrics.size();
            if ((!weights.empty() && weights.size() != n) ||
                (!higher.empty() && higher.size() != n)) {
              refuse(v,
                     "multi_metrics: weight and higher_is_better have one entry for each of the " +
                         std::to_string(n) + " metrics");
            }
            for (std::size_t i = 0; i < n; ++i) {
              c_.metrics[i].weight = weights.empty() ? 0.0 : weights[i];
              if (!higher.empty()) {
                c_.metrics[i].higher_is_better = higher[i];
              }
            }
          }},
         {"dataloader",
          [this](const auto& v) {
            c_.evaluation = read_dataloader(v, "evaluation.accuracy.dataloader");
          }},
         {"iteration",
          [this](const auto& v) {
            const auto n = as<std::int64_t>(v, "evaluation.accuracy.iteration", "a whole number");
            c_.evaluation_samples = n == -1 ? 0 : count(v, "evaluation.accuracy.iteration", 1);
          }},
         {"configs", ignored("evaluation.accuracy.configs has no effect")},
         {"postprocess", not_here("evaluation.accuracy.postprocess needs Python")}});
    if (c_.evaluation && c_.evaluation->batch_size != 1) {
      const std::size_t most =
          (std::numeric_limits<std::size_t>::max)() / c_.evaluation->batch_size;
      c_.evaluation_samples = (std::min)(c_.evaluation_samples, most) * c_.evaluation->batch_size;
    }
  }
  void require_some(const YAML::Node& at, const std::string& what) const {
    if (c_.metrics.empty()) {
      refuse(at, what + " names no metric");
    }
  }
  void require_one_kind(const YAML::Node& at) const {
    if (!c_.metrics.empty()) {
      refuse(at, "evaluation.accuracy has both metric and multi_metrics");
    }
  }

  [[nodiscard]] keys metric_keys() {
    const auto add = [this](metric_kind kind) {
      metric m;
      m.kind = kind;
      c_.metrics.push_back(m);
      return &c_.metrics.back();
    };
    const auto compared = [this, add](metric_kind kind, const char* name) {
      return [this, add, kind, name](const YAML::Node& v) {
        metric* m = add(kind);
        if (v.IsMap()) {
          section(v, name, {{"compare_label", [&](const auto& c) {
                               m->compare_label = boolean(c, "compare_label");
                             }}});
        }
      };
    };
    keys known = {
        {"topk",
         [this, add](const auto& v) {
           add(metric_kind::top_k)->k = v.IsNull() ? 1 : count(v, "topk", 1);
         }},
        {"Accuracy", [add](const auto&) { add(metric_kind::top_k); }},
        {"F1", [add](const auto&) { add(metric_kind::f1); }},
        {"ROC", [add](const auto&) { add(metric_kind::roc); }},
        {"mAP",
         [this, add](const auto& v) {
           metric* m = add(metric_kind::mean_average_precision);
           if (v.IsMap()) {
             section(v, "mAP",
                     {{"anno_path", not_here("mAP.anno_path: labels are a .npy file, one row of 0 "
                                             "and 1 for each sample")},
                      {"iou_thrs", not_here("mAP.iou_thrs: labels are classes, not boxes")},
                      {"map_points", [&](const auto& p) {
                         m->map_points =
                             one_of<int>(p, "map_points", {{"0", 0}, {"11", 11}, {"101", 101}});
                       }}});
           }
         }},
        {"MSE", compared(metric_kind::mse, "MSE")},
        {"RMSE", compared(metric_kind::rmse, "RMSE")},
        {"MAE", compared(metric_kind::mae, "MAE")}};
    for (const char* name :
         {"COCOmAP", "COCOmAPv2", "VOCmAP", "SquadF1", "Loss", "BLEU", "mIOU", "GLUE"}) {
      known.emplace_back(name, not_here("metric " + std::string(name) +
                                        " needs Python; there are topk, F1, mAP, ROC, MSE, RMSE, "
                                        "MAE and Accuracy"));
    }
    return known;
  }

  configuration& c_;
};

}  // namespace detail
}  // namespace graph::inc
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_INC_YAML_EVALUATION_HPP
