// SPDX-License-Identifier: BSD-3-Clause
#include "train.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/onnx.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/qoperator.hpp>
#include <detent/parallel.hpp>

#include "float_model.hpp"
#include "json_output.hpp"
#include "labelled_data.hpp"
#include "model_output.hpp"
#include "overwriting.hpp"
#include "progress.hpp"
#include "signals.hpp"
#include "train_report.hpp"
#include "usage_error.hpp"

namespace detent_cli {

namespace graph = detent::graph;
using detent::one_line;

namespace {

/// An accuracy for people; empty if labels are no classes.
std::string accuracy_text(double share) {
  char text[48];
  std::snprintf(text, sizeof text, ", accuracy %.2f %%", 100.0 * share);
  return std::isnan(share) ? std::string() : text;
}

json_object number_or_null(double value) {
  return std::isfinite(value) ? json_object(value) : json_object(nullptr);
}

json_object score_json(const graph::training_score& s) {
  return {{"loss", number_or_null(s.loss)}, {"accuracy", number_or_null(s.accuracy)}};
}

/// What either kind of training gave.
struct outcome {
  graph::model result;
  std::vector<graph::epoch_report> epochs;
  graph::training_score before;
  std::optional<graph::training_score> float_score;  // if the model that was trained is quantized
  std::optional<std::size_t> best_epoch;
};

/// The command, step by step.
class training_run {
 public:
  explicit training_run(const train_arguments& a)
      : a_(a), o_(a.options), pool_(a.threads), model_(read_float_model(a.model, a.read_limits())) {
    for (const graph::value_info& v : model_.outputs) {
      require(!graph::fits_float(v.type) || v.type == graph::element_type::f32,
              error_kind::unsupported, a.model, ": output '", v.name, "' is ", graph::name(v.type),
              "; training needs outputs of float32, those before the Cast at the end");
    }
    require_data_apart(model_, a.model, a.output);
    graph::require_writable(a.output);
    if (!a.report.empty()) {
      graph::require_writable(a.report);
    }
    graph::training_options& t = o_.training;
    t.executor = a.executor_options();
    if (a.threads > 1) {
      t.executor.parallel = pool_.parallel();
    }
    if (a.memory_limit != 0) {
      t.segments = 0;
    }
    open_data();
    open_checkpoint();
  }

  int run() {
    const signal_guard interrupt(SIGINT);
    const signal_guard termination(SIGTERM);
    follow();
    outcome o;
    try {
      o = graph::with_file_name(a_.model, [&] { return trained(); });
    } catch (const detent::error& e) {
      if (e.kind() == error_kind::overflow && !a_.checkpoint.empty() && epochs_kept_ > 0) {
        detent::raise(e.kind(), e.what(), "; ", checkpoint_path(), " holds the state behind epoch ",
                      epochs_kept_);
      }
      if (e.kind() == error_kind::invalid_argument && resumed_ > 0) {
        detent::raise(e.kind(),
                      std::string(e.what()) + " (going on from " + checkpoint_path() + ")");
      }
      throw;
    }
    bar_.reset();
    if (a_.is_qoperator) {
      graph::to_qoperator(o.result);
    }
    const graph::written_onnx written =
        graph::write_onnx(o.result, a_.output, {.external_data_from = a_.external_data_from});
    if (!a_.report.empty()) {
      graph::write_file(a_.report, html_report(report(o)));
    }
    print(o);
    if (!a_.json) {
      print_external_data(written);
    }
    return interrupted != 0 ? 128 + interrupted : 0;
  }

 private:
  void open_data() {
    const labelled_data given = read_labelled_data(model_, a_.data, "--data", a_.labels, a_);
    require_classes(given.labels, a_.labels);
    graph::fingerprint f;
    f.add(model_);  // which teaches
    given.add_to(f);
    take_batch_size(given);
    if (!a_.validation.empty()) {
      const labelled_data other =
          read_labelled_data(model_, a_.validation, "--validation", a_.validation_labels, a_);
      require(other.labels.type() == given.labels.type(), error_kind::invalid_argument,
              a_.validation_labels, " holds ", graph::name(other.labels.type()), ", ", a_.labels,
              " ", graph::name(given.labels.type()));
      require_classes(other.labels, a_.validation_labels);
      other.add_to(f);
      data_ = given.all();
      validation_ = other.all();
    } else if (a_.hold_out == 0.0) {
      data_ = given.all();
      validation_ = data_;
    } else {
      hold_out(given);
    }
    f.add(a_.hold_out);
    f.add(std::uint64_t{validation_.count});
    f.add(static_cast<std::uint8_t>(a_.is_quantized ? 1 : 0));
    o_.training.subject = f.text();
    o_.training.loss.target = given.labels.type() == graph::element_type::s64
                                  ? graph::training_target::classes
                                  : graph::training_target::values;
    const std::size_t batch = given.fixed_batch;
    for (const auto& [what, count] :
         {std::pair("training", data_.count), std::pair("validation", validation_.count)}) {
      require(batch == 0 || count % batch == 0, error_kind::shape_mismatch, "the model takes ",
              batch, " samples in a run, and there are ", count, " for ", what);
    }
  }

  /// Throws invalid_argument, naming the file and the label, if labels of classes are none of those
  /// that the model declares for its labelled output. Training would tell of it in a later batch,
  /// by a row of that batch.
  void require_classes(const graph::tensor& labels, const std::string& path) const {
    const auto& wanted = o_.training.loss.output;
    const auto output = std::find_if(
        model_.outputs.begin(), model_.outputs.end(),
        [&](const graph::value_info& v) { return wanted.empty() || v.name == wanted; });
    if (labels.type() != graph::element_type::s64 || output == model_.outputs.end() ||
        !output->has_shape || output->dims.empty() || output->dims.back() < 0) {
      return;
    }
    const auto all = labels.data<std::int64_t>();
    const auto wrong = std::find_if(all.begin(), all.end(), [&](std::int64_t label) {
      return label < 0 || label >= output->dims.back();
    });
    require(wrong == all.end(), error_kind::invalid_argument, path, ": label ", wrong - all.begin(),
            " (counted from 0) is ", wrong == all.end() ? 0 : *wrong, ", and output '",
            output->name, "' has ", output->dims.back(), " classes");
  }

  /// Holds out a share of the samples, drawn by the seed, to measure epochs with.
  void hold_out(const labelled_data& given) {
    const std::size_t batch = (std::max)(given.fixed_batch, std::size_t{1});
    const auto wish =
        static_cast<std::size_t>(std::ceil(a_.hold_out * static_cast<double>(given.size())));
    const std::size_t count = (wish + batch - 1) / batch * batch;
    require(count < given.size(), error_kind::invalid_argument, "--hold-out ", a_.hold_out,
            " leaves none of ", given.size(), " samples to train with");
    // No epoch has this number, so that the order is none that training uses.
    std::vector<std::size_t> order =
        graph::shuffled(given.size(), o_.training.seed, (std::numeric_limits<std::size_t>::max)());
    const auto middle = order.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<std::size_t> held(middle, order.end());
    order.erase(middle, order.end());
    std::sort(held.begin(), held.end());
    std::sort(order.begin(), order.end());
    data_ = given.part(std::move(order));
    validation_ = given.part(std::move(held));
  }

  void take_batch_size(const labelled_data& given) {
    std::size_t& batch = o_.training.batch_size;
    require(given.fixed_batch == 0 || !a_.has_batch_size || batch == given.fixed_batch,
            error_kind::invalid_argument, "--batch ", batch, ": the model takes ",
            given.fixed_batch, " samples in a run");
    batch = given.fixed_batch != 0 ? given.fixed_batch : batch;
  }

  [[nodiscard]] std::string checkpoint_path() const { return a_.checkpoint + "/checkpoint"; }

  /// Makes the folder, and reads the checkpoint if there is one.
  void open_checkpoint() {
    if (a_.checkpoint.empty()) {
      return;
    }
    std::error_code failed;
    std::filesystem::create_directories(a_.checkpoint, failed);
    require(!failed, error_kind::io, "cannot make the folder ", a_.checkpoint, ": ",
            failed.message());
    const std::string path = checkpoint_path();
    graph::require_writable(path);
    if (std::filesystem::exists(path)) {
      graph::with_file_name(path, [&] {
        const std::string bytes = graph::read_file(path);
        o_.training.resumed =
            graph::training_checkpoint::load(std::as_bytes(std::span<const char>(bytes)));
      });
      epochs_kept_ = o_.training.resumed->epochs.size();
      resumed_ = epochs_kept_;
    }
  }

  /// Sets what is called while training runs.
  void follow() {
    graph::training_options& t = o_.training;
    t.cancelled = [] { return interrupted != 0; };
    t.on_step = [this, &t](std::size_t done, std::size_t total, double loss) {
      if (!bar_) {
        bar_.emplace("training", total);
      }
      const std::size_t epoch = (done - 1) / (total / t.epochs);
      char text[160];
      std::snprintf(text, sizeof text, "epoch %zu of %zu, loss %.4f%s", epoch + 1, t.epochs, loss,
                    last_.c_str());
      bar_->describe(text);
      bar_->advance(done);
    };
    t.on_segments = [this](const graph::segment_choice& c) {
      segments_ = (std::max)(segments_, c.segments);
      if (c.segments > 1 && !a_.json) {
        bar_.reset();
        std::printf(
            "%zu segments, whose values are computed twice: values and gradients of a batch "
            "take %zu bytes\n",
            c.segments, c.memory.total());
        std::fflush(stdout);
      }
    };
    t.on_epoch = [this](const graph::epoch_report& e) {
      char rate[48];
      std::snprintf(rate, sizeof rate, ", learning rate %.3g", e.learning_rate);
      last_ = accuracy_text(e.accuracy) + rate;
      if (!a_.json) {
        bar_.reset();
        std::printf("epoch %3zu: loss %.4f, validation loss %.4f%s%s%s\n", e.epoch + 1, e.loss,
                    e.validation_loss, accuracy_text(e.accuracy).c_str(), rate,
                    e.is_best ? ", best so far" : "");
        std::fflush(stdout);
      }
    };
    if (!a_.checkpoint.empty()) {
      t.on_checkpoint = [this](const graph::training_checkpoint& c) {
        const std::vector<std::byte> bytes = c.save();
        graph::write_file(checkpoint_path(),
                          {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        epochs_kept_ = c.epochs.size();
      };
    }
  }

  [[nodiscard]] outcome trained() {
    if (!a_.is_quantized) {
      graph::training_result r = graph::train(model_, data_, validation_, o_.training);
      return {std::move(r.trained), std::move(r.epochs), r.before, std::nullopt, r.best_epoch};
    }
    auto r = graph::quantization_aware_training(model_, data_, validation_, o_);
    return {std::move(r.quantized.result), std::move(r.epochs), r.before, float_score(),
            r.best_epoch};
  }

  [[nodiscard]] graph::training_score float_score() const {
    const graph::training_options& t = o_.training;
    return graph::evaluate(model_, validation_, t.loss, t.batch_size, t.executor);
  }

  [[nodiscard]] train_report_data report(const outcome& o) const {
    train_report_data page;
    page.model = a_.model;
    page.output = a_.output;
    page.samples = data_.count;
    page.validation_samples = validation_.count;
    page.float_score = o.float_score;
    page.before = o.before;
    page.epochs = o.epochs;
    page.best_epoch = o.best_epoch;
    const graph::training_options& t = o_.training;
    page.options = {{"approach", a_.is_quantized ? "qat" : "float"},
                    {"epochs", std::to_string(t.epochs)},
                    {"batch", std::to_string(t.batch_size)},
                    {"lr", std::to_string(t.learning_rate)},
                    {"seed", std::to_string(t.seed)},
                    {"segments", std::to_string(segments_)}};
    if (a_.is_quantized) {
      page.options.emplace_back("bits of weights", std::to_string(o_.weights.bits));
      page.options.emplace_back("bits of activations", std::to_string(o_.activations.bits));
      page.options.emplace_back("distillation", std::to_string(t.loss.distillation));
      if (!t.loss.hidden.empty()) {
        std::string names;
        for (const std::string& name : t.loss.hidden) {
          names += (names.empty() ? "" : ", ") + name;
        }
        page.options.emplace_back("hidden values", names);
        page.options.emplace_back("weight of hidden values", std::to_string(t.loss.hidden_weight));
      }
    }
    page.notes = notes(o);
    return page;
  }

  [[nodiscard]] std::vector<std::string> notes(const outcome& o) const {
    std::vector<std::string> all;
    if (interrupted != 0) {
      all.push_back("training was interrupted in epoch " + std::to_string(o.epochs.size() + 1));
    }
    if (a_.goal && o.float_score) {
      graph::accuracy_goal goal = *a_.goal;
      goal.higher_is_better = !std::isnan(o.before.accuracy);
      const auto metric = [&](const graph::training_score& s) {
        return goal.higher_is_better ? s.accuracy : s.loss;
      };
      if (!goal.is_met(metric(*o.float_score), metric(best(o)))) {
        const double target = goal.target(metric(*o.float_score));
        char text[96];
        std::snprintf(text, sizeof text, "the goal of %.6g is missed by %.6g", target,
                      std::fabs(metric(best(o)) - target));
        all.emplace_back(text);
      }
    }
    if (!o.best_epoch) {
      all.push_back(std::string("no epoch was better than the model before training, which was "
                                "written") +
                    (a_.is_quantized ? ": static quantization" : ""));
    }
    return all;
  }

  /// The score of the model that is written.
  [[nodiscard]] static graph::training_score best(const outcome& o) {
    return o.best_epoch ? graph::training_score{o.epochs[*o.best_epoch].validation_loss,
                                                o.epochs[*o.best_epoch].accuracy}
                        : o.before;
  }

  void print(const outcome& o) const {
    for (const std::string& note : notes(o)) {
      std::fprintf(stderr, "detent: warning: %s\n", note.c_str());
    }
    if (a_.json) {
      json_object epochs = json_object::array();
      for (const graph::epoch_report& e : o.epochs) {
        epochs.push_back({{"loss", number_or_null(e.loss)},
                          {"validation_loss", number_or_null(e.validation_loss)},
                          {"accuracy", number_or_null(e.accuracy)},
                          {"learning_rate", e.learning_rate},
                          {"is_best", e.is_best}});
      }
      print_json(
          {{"model", a_.model},
           {"output", a_.output},
           {"approach", a_.is_quantized ? "qat" : "float"},
           {"format", !a_.is_quantized  ? json_object(nullptr)
                      : a_.is_qoperator ? json_object("qoperator")
                                        : json_object("qdq")},
           {"samples", data_.count},
           {"validation_samples", validation_.count},
           {"float", o.float_score ? score_json(*o.float_score) : json_object(nullptr)},
           {"before", score_json(o.before)},
           {"best", score_json(best(o))},
           {"best_epoch", o.best_epoch ? json_object(*o.best_epoch + 1) : json_object(nullptr)},
           {"epochs", epochs},
           {"segments", segments_},
           {"resumed_epochs", resumed_},
           {"interrupted", interrupted != 0},
           {"target", detent::name(detent::active_target())}});
      return;
    }
    if (o.float_score) {
      std::printf("float: loss %.4f%s\n", o.float_score->loss,
                  accuracy_text(o.float_score->accuracy).c_str());
    }
    std::printf("before: loss %.4f%s\n", o.before.loss, accuracy_text(o.before.accuracy).c_str());
    std::printf(
        "%s: %s, loss %.4f%s, %zu samples, %zu of validation\n", a_.output.c_str(),
        o.best_epoch ? ("epoch " + std::to_string(*o.best_epoch + 1)).c_str() : "not trained",
        best(o).loss, accuracy_text(best(o).accuracy).c_str(), data_.count, validation_.count);
  }

  const train_arguments& a_;
  graph::quantization_aware_training_options o_;
  detent::thread_pool pool_;
  graph::model model_;
  graph::training_data data_;
  graph::training_data validation_;
  std::optional<progress> bar_;
  std::string last_;             // what the last epoch gave, for the bar
  std::size_t epochs_kept_ = 0;  // in the checkpoint
  std::size_t resumed_ = 0;      // epochs that a run before this one made
  std::size_t segments_ = 1;     // of the network, at most
};

}  // namespace

int train(const train_arguments& a) { return training_run(a).run(); }

int train_as_configured(const quantize_arguments& a) {
  const graph::inc::configuration& c = *a.tuning;
  if (!a.calibration.empty()) {
    throw usage_error(
        "quant_aware_training has no --calib: its samples are those of "
        "quantization.train");
  }
  for (const std::string& note : c.notes) {
    std::fprintf(stderr, "detent: %s\n", one_line(note).c_str());
  }
  train_arguments t;
  static_cast<common_arguments&>(t) = a;
  t.model = a.model;
  t.output = a.output;
  t.threads = a.threads;
  t.external_data_from = a.external_data_from;
  t.data = c.train->data.inputs;
  t.labels = c.train->data.labels;
  if (!a.validation.empty() || c.evaluation) {
    t.validation = !a.validation.empty() ? a.validation : c.evaluation->inputs;
    t.validation_labels = !a.labels.empty() ? a.labels
                          : c.evaluation    ? c.evaluation->labels
                                            : std::string();
    if (t.validation_labels.empty()) {
      throw usage_error("the samples of the evaluation have no labels: --labels Y.npy");
    }
  }
  t.has_batch_size = c.train->data.batch_size != 1;
  t.is_qoperator = c.form == graph::inc::framework::qlinear_operators;
  t.options.training = c.train->options;
  t.options.method = c.train->method;
  t.options.activations = c.tuning.quantizer.activations;
  t.options.weights = c.tuning.quantizer.weights;
  t.options.scope = c.tuning.quantizer.scope;
  t.goal = c.tuning.goal;
  return train(t);
}

}  // namespace detent_cli
