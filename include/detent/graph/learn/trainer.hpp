// SPDX-License-Identifier: BSD-3-Clause
// Steps of training: forward, loss, backward, and a step of the optimizers.
#ifndef DETENT_GRAPH_LEARN_TRAINER_HPP
#define DETENT_GRAPH_LEARN_TRAINER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/learn/choose_segments.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/gradient_memory.hpp>
#include <detent/graph/learn/gradient_paths.hpp>
#include <detent/graph/learn/learning_rate.hpp>
#include <detent/graph/learn/loss.hpp>
#include <detent/graph/learn/node_segments.hpp>
#include <detent/graph/learn/trained_constant.hpp>
#include <detent/graph/learn/trained_values.hpp>
#include <detent/graph/learn/training_checkpoint.hpp>
#include <detent/graph/learn/training_data.hpp>
#include <detent/graph/learn/training_operators.hpp>
#include <detent/graph/learn/training_options.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/nearest_names.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The loss of an output by its labels alone, as training_loss has it.
[[nodiscard]] inline loss_result label_loss(const tensor& output, const tensor& labels,
                                            const training_loss& o) {
  if (o.target == training_target::values) {
    return mean_squared_error(output, labels);
  }
  require(labels.type() == element_type::s64, error_kind::invalid_argument,
          "training: labels of classes are int64, not ", graph::name(labels.type()));
  return cross_entropy(output, labels.data<std::int64_t>(), {.label_smoothing = o.label_smoothing});
}

/// Whether a float32 tensor holds NaN or +infinity; -infinity may be a mask.
[[nodiscard]] inline bool has_nan_or_infinity(const tensor& t) {
  const auto values = t.type() == element_type::f32 ? t.data<float>() : std::span<const float>{};
  return std::any_of(values.begin(), values.end(),
                     [](float v) { return !(v < std::numeric_limits<float>::infinity()); });
}

/// Throws invalid_argument unless nodes of both models make the value, with the names of the values
/// of both that are most like it.
inline void require_hidden_value(const model& trained, const model& teacher,
                                 const std::string& name) {
  std::set<std::string> made;
  for (const node& n : trained.nodes) {
    made.insert(n.outputs.begin(), n.outputs.end());
  }
  bool is_taught = false;
  std::vector<std::string> both;
  for (const node& n : teacher.nodes) {
    for (const std::string& value : n.outputs) {
      is_taught = is_taught || value == name;
      if (!value.empty() && made.count(value) != 0) {
        both.push_back(value);
      }
    }
  }
  if (is_taught && made.count(name) != 0) {
    return;
  }
  const std::string nearest = nearest_names(name, both);
  detent::raise(error_kind::invalid_argument, "training: the hidden value '", name,
                is_taught ? "' is not in the trained model: folding has removed it"
                          : "' is made by no node of the float model",
                nearest.empty() ? "; no value is in both" : "; the nearest in both: ", nearest);
}

/// A value of a model with what makes it, for messages.
[[nodiscard]] inline std::string with_origin(const model& m, const std::string& value) {
  for (const node& n : m.nodes) {
    if (std::find(n.outputs.begin(), n.outputs.end(), value) != n.outputs.end()) {
      return "'" + value + "', the result of " + n.label();
    }
  }
  return "input '" + value + "'";
}

/// The means and variances that BatchNormalization nodes in training form follow: the constants,
/// each with the value that a run computes for it.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> computed_statistics(
    const model& m) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const node& n : m.nodes) {
    if (n.is("BatchNormalization") && n.get_int("training_mode", 0) != 0) {
      for (std::size_t k = 1; k < n.outputs.size() && k < 3; ++k) {
        if (!n.outputs[k].empty()) {
          names.emplace_back(n.inputs[k + 2], n.outputs[k]);
        }
      }
    }
  }
  return names;
}

}  // namespace detail

/// Trains constants of a network, batch by batch. What the constants are is computed in double; the
/// network gets them rounded to float.
///
/// The gradients of scales of fake quantizers are multiplied by LSQ's factor for the values that
/// share a scale (lsq_gradient_factor()), and a scale never falls below 1/16 of what it was at the
/// beginning, because a step may be larger than a scale. Running means and variances of
/// BatchNormalization nodes in training form follow each batch. A constant with a penalty adds
/// penalty / 2 * the sum of its squares to the loss.
///
/// Deterministic: the constants have the same bits on every processor and for any number of
/// threads and segments. Not thread-safe. Memory: the values of one batch, all of them or as
/// training_options::segments says; their gradients in double; and for each constant up to four
/// numbers in double.
///
/// Source of the factor: Esser et al., Learned step size quantization (2020).
class trainer {
 public:
  /// Prepares to train `constants` of `network`, whose nodes are in topological order, with
  /// `total_steps` steps in all. `teacher` is the float model of distillation and of hidden values;
  /// it may be null if the loss needs none. `output` is the output of the network that has labels;
  /// `teacher_output` is the same output of the teacher.
  ///
  /// Throws unsupported, naming the node, if a gradient would have to pass through an operator
  /// without gradient; invalid_argument, naming it, for an option out of its domain, a constant
  /// that is not in the network, an output or hidden value that does not exist, and if there is
  /// nothing to train.
  trainer(model network, const std::vector<trained_constant>& constants,
          const training_options& options, std::size_t total_steps, std::string output,
          const model* teacher = nullptr, std::string teacher_output = {})
      : options_(options),
        total_steps_(total_steps),
        output_(std::move(output)),
        teacher_output_(std::move(teacher_output)),
        graph_(std::move(network), options.executor),
        values_(graph_.graph_model(), constants, options) {
    require(!constants.empty(), error_kind::invalid_argument,
            "training: the model has no constants to train");
    for (const trained_constant& c : constants) {
      wanted_.insert(c.name);
    }
    find_gradients();
    const training_loss& loss = options_.loss;
    require(teacher != nullptr || (loss.distillation == 0.0 && loss.hidden.empty()),
            error_kind::invalid_argument,
            "training: distillation and hidden values need a float model that teaches");
    for (const std::string& name : loss.hidden) {
      detail::require_hidden_value(graph_.graph_model(), *teacher, name);
    }
    static_cast<void>(
        node_segments(graph_.graph_model(), 1, kept_values()));  // which must be there
    if (teacher != nullptr) {
      teacher_.emplace(*teacher, options_.executor);
    }
  }

  /// Trains with one batch, and returns its loss. Constants that the loss does not depend on stay
  /// as they are. Throws overflow, naming the first value or constant at fault, if the loss or a
  /// gradient is NaN or infinite, or if a constant grows beyond what float32 holds: the constants
  /// of network() are then those before the step. Throws what the losses throw for labels that do
  /// not fit, and what choose_segments() throws.
  double step(const training_batch& batch) {
    divide(batch);
    std::string wrong;    // the first value that is not finite
    bool is_mask = true;  // whether it has no NaN and no +infinity
    graph_.forward(batch.inputs, [&](const std::string& name, const tensor& value) {
      if (is_mask && !is_finite(value) && (wrong.empty() || detail::has_nan_or_infinity(value))) {
        wrong = name;
        is_mask = !detail::has_nan_or_infinity(value);
      }
      if (!values_.has_scale_factors()) {
        counts_[name] = value.count();
      }
      if (observer_) {
        observer_(name, value);
      }
    });
    // A mask of -infinity before a Softmax does no harm. Only what reaches the loss does, or a
    // gradient.
    if (!wrong.empty()) {
      for (const std::string& name : kept_values()) {
        if (!is_finite(graph_.value(name))) {
          raise_not_finite(wrong);
        }
      }
    }
    gradient_graph::gradient_map seeds;
    const double loss = loss_of(batch, seeds) + values_.penalties();
    if (!std::isfinite(loss)) {
      raise_too_large("the loss is ", loss);
    }
    const gradient_graph::gradient_map found = graph_.backward(seeds, wanted_);
    if (!values_.has_scale_factors()) {
      find_scale_factors();
      counts_.clear();
    }
    if (const auto not_finite = values_.first_not_finite(found)) {
      if (!is_mask) {
        raise_not_finite(wrong);
      }
      raise_too_large("the gradient of '" + not_finite->first + "' is ", not_finite->second);
    }
    values_.step(found, options_.max_gradient_norm,
                 learning_rate_factor(options_.schedule, steps_, total_steps_));
    if (const auto too_large = values_.first_overflow()) {
      raise_too_large("constant '" + too_large->first + "' becomes ", too_large->second);
    }
    ++steps_;
    values_.keep_without_gradient(graph_.graph_model(), [&](const std::string& name) {
      return with_gradient_.count(name) != 0;
    });
    write_constants();
    follow_statistics();
    return loss;
  }

  /// What the next steps depend on besides the options, the samples, and the nodes that use_nodes()
  /// gave.
  [[nodiscard]] trainer_state state() const {
    trainer_state s;
    s.steps = steps_;
    values_.save(s);
    for (const std::string& name : others()) {
      s.others[name] = numbers(name);
    }
    return s;
  }
  /// Goes on from a state that a trainer with the same arguments and nodes had. Throws
  /// invalid_argument, naming what does not fit, if it is that of another network or holds values
  /// that are not finite; the trainer must then not be used any more.
  void set_state(const trainer_state& s) {
    values_.load(s);
    set_others(s.others);
    steps_ = s.steps;
    write_constants();
  }
  /// The mean of each trained constant of scales, by name.
  [[nodiscard]] std::map<std::string, double> mean_scales() const { return values_.mean_scales(); }
  /// The constants that training changes as they are now, by name: those that are trained, running
  /// means and variances, and those that set_constant() gave.
  [[nodiscard]] std::map<std::string, std::vector<double>> constants() const {
    std::map<std::string, std::vector<double>> all;
    for (const std::string& name : wanted_) {
      all[name] = numbers(name);
    }
    for (const std::string& name : others()) {
      all[name] = numbers(name);
    }
    return all;
  }
  /// The names of these constants.
  [[nodiscard]] std::set<std::string> constant_names() const {
    std::set<std::string> names = others();
    names.insert(wanted_.begin(), wanted_.end());
    return names;
  }
  /// Gives the network constants that constants() returned, to be read from network(); further
  /// steps go on from the state, not from them. Throws invalid_argument if they are others.
  void show_constants(std::map<std::string, std::vector<double>> constants) {
    for (const std::string& name : wanted_) {
      const auto found = constants.find(name);
      detail::require_fitting(found != constants.end(), name);
      set_numbers(name, found->second);
      constants.erase(found);
    }
    set_others(constants);
  }

  /// Replaces the nodes of the network, and its declared values, by those of another one. Constants
  /// keep what they are; those that only `network` has are added. Throws what the constructor
  /// throws for nodes that are not in order or have no gradient.
  void use_nodes(model network) {
    for (const auto& [name, value] : graph_.graph_model().initializers) {
      network.initializers[name] = value;
    }
    graph_ = gradient_graph(std::move(network), options_.executor);
    divided_for_.reset();
    find_gradients();
    values_.forget_scale_factors();
    counts_.clear();
  }

  /// Gives a constant of the network other elements; if it is trained, training goes on from them,
  /// and a scale may fall to 1/16 of them. Throws invalid_argument if the network has no such
  /// constant, shape_mismatch if type or shape are others.
  void set_constant(const std::string& name, tensor value) {
    graph_.set_constant(name, value);
    if (wanted_.count(name) != 0) {
      values_.assign(name, value.data<float>());
    } else {
      given_.insert(name);
    }
  }

  /// Sets a function that each step shows its inputs and then the values that nodes compute, once,
  /// in the order of the nodes; none if it is empty.
  void set_observer(gradient_graph::value_observer observer) { observer_ = std::move(observer); }

  /// A constant of the network, or a value of the last step's forward run. Throws invalid_argument
  /// if there is none, or if it is inside a segment (gradient_graph::use_segments()).
  [[nodiscard]] const tensor& value(const std::string& name) const { return graph_.value(name); }
  /// What the last step has held at a time, at most.
  [[nodiscard]] const gradient_memory& memory() const noexcept { return graph_.memory(); }
  /// The number of segments of the last step.
  [[nodiscard]] std::size_t segments() const noexcept { return graph_.segments(); }

  /// The network with its constants as they are now.
  [[nodiscard]] const model& network() const noexcept { return graph_.graph_model(); }
  /// Steps made so far.
  [[nodiscard]] std::size_t steps() const noexcept { return steps_; }
  /// The learning rate of the next step, before the factors of roles.
  [[nodiscard]] double learning_rate() const {
    return options_.learning_rate * learning_rate_factor(options_.schedule, steps_, total_steps_);
  }

 private:
  /// The values that gradients begin with.
  [[nodiscard]] std::set<std::string> seeds() const {
    std::set<std::string> names{output_};
    names.insert(options_.loss.hidden.begin(), options_.loss.hidden.end());
    return names;
  }
  /// The values that a step looks at after its forward run.
  [[nodiscard]] std::set<std::string> kept_values() const {
    std::set<std::string> names = seeds();
    for (const auto& [constant, computed] : detail::computed_statistics(graph_.graph_model())) {
      names.insert(computed);
    }
    return names;
  }

  /// Divides the network into segments, unless it is divided for batches of this size.
  void divide(const training_batch& batch) {
    std::size_t bytes = 0;
    for (const auto& [name, t] : batch.inputs) {
      bytes += t.bytes();
    }
    if (divided_for_ && (options_.segments != 0 || bytes <= *divided_for_)) {
      return;
    }
    std::size_t count = options_.segments;
    if (count == 0) {
      const model& m = graph_.graph_model();
      const segment_choice found =
          choose_segments(m, find_forms(m, batch.inputs, options_.executor), kept_values(), seeds(),
                          wanted_, options_.executor.max_memory_bytes);
      count = found.segments;
      if (options_.on_segments) {
        options_.on_segments(found);
      }
    }
    graph_.use_segments(count, kept_values());
    divided_for_ = bytes;
  }

  /// Finds the trained constants that the loss depends on; throws as gradient_paths.hpp says.
  void find_gradients() {
    with_gradient_ =
        detail::constants_with_gradient(graph_.graph_model(), wanted_, seeds(), output_);
  }

  static void add_scaled(std::vector<double>& to, const std::vector<double>& from, double factor) {
    to.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      to[i] += detent::detail::rounded_product(from[i], factor);
    }
  }

  /// The loss of the last forward run, and its gradients by the values of the network.
  double loss_of(const training_batch& batch, gradient_graph::gradient_map& seeds) {
    const training_loss& o = options_.loss;
    const tensor& output = graph_.value(output_);
    double total = 0.0;
    const auto take = [&](const std::string& value, const loss_result& found, double weight) {
      total += detent::detail::rounded_product(found.value, weight);
      add_scaled(seeds[value], found.gradient, weight);
    };
    if (o.distillation < 1.0) {
      take(output_, detail::label_loss(output, batch.labels, o), 1.0 - o.distillation);
    }
    if (o.distillation > 0.0 || !o.hidden.empty()) {
      std::map<std::string, tensor> hidden;
      const std::vector<tensor> taught =
          teacher_->run(batch.inputs, [&](const std::string& name, const tensor& t) {
            if (name == teacher_output_ ||
                std::find(o.hidden.begin(), o.hidden.end(), name) != o.hidden.end()) {
              hidden[name] = to_plain(t);
            }
          });
      if (o.distillation > 0.0) {
        take(output_, distillation(output, hidden.at(teacher_output_), o.temperature),
             o.distillation);
      }
      for (const std::string& name : o.hidden) {
        take(name, mean_squared_error(graph_.value(name), hidden.at(name)), o.hidden_weight);
      }
    }
    return total;
  }

  /// Throws overflow for a value that is not finite, and that the loss or a gradient depends on.
  [[noreturn]] void raise_not_finite(const std::string& value) const {
    const model& m = graph_.graph_model();
    const bool is_input = std::any_of(m.inputs.begin(), m.inputs.end(),
                                      [&](const auto& v) { return v.name == value; });
    detent::raise(error_kind::overflow, "detent: training step ", steps_ + 1, ": ",
                  detail::with_origin(m, value), " is not finite",
                  is_input ? "" : "; a smaller learning rate may help");
  }

  [[noreturn]] void raise_too_large(const std::string& what, double number) const {
    detent::raise(error_kind::overflow, "detent: training step ", steps_ + 1, ": ", what, number,
                  "; a smaller learning rate may help");
  }

  /// Sets LSQ's factors of scales. They depend on the sizes of values, which are known after the
  /// first run.
  void find_scale_factors() {
    std::map<std::string, std::pair<std::size_t, grid>> uses;  // values that share each scale
    for (const node& n : graph_.graph_model().nodes) {
      if (n.op_type == "FakeQuantize") {
        auto& [count, levels] = uses[n.inputs[1]];
        const auto computed = counts_.find(n.inputs[0]);
        count += computed != counts_.end() ? computed->second : graph_.value(n.inputs[0]).count();
        levels = {static_cast<std::int32_t>(n.get_int("qmin", 0)),
                  (std::max)(static_cast<std::int32_t>(n.get_int("qmax", 1)), 1)};
      }
    }
    values_.set_scale_factors([&](const std::string& name, std::size_t scales) {
      const auto found = uses.find(name);
      if (found == uses.end()) {
        return 1.0;
      }
      const std::size_t shared =
          (std::max)(found->second.first / (std::max)(scales, std::size_t{1}), std::size_t{1});
      return static_cast<double>(lsq_gradient_factor(shared, found->second.second));
    });
  }

  void write_constants() {
    values_.write(
        [&](const std::string& name, tensor t) { graph_.set_constant(name, std::move(t)); });
  }

  /// Types of constants that training changes: scales, statistics, zero points.
  using changing_types = type_list<float, std::int32_t, std::uint8_t, std::int8_t>;
  /// The elements of such a constant; none if it is of another type.
  [[nodiscard]] std::vector<double> numbers(const std::string& name) const {
    const tensor& t = graph_.graph_model().initializers.at(name);
    std::vector<double> all;
    static_cast<void>(visit_type(changing_types{}, t.type(), [&]<class T>() {
      all.assign(t.data<T>().begin(), t.data<T>().end());
    }));
    return all;
  }
  /// Gives such a constant these elements. Throws invalid_argument if they are not of its type.
  void set_numbers(const std::string& name, const std::vector<double>& values) {
    const tensor* now = graph_.graph_model().initializer(name);
    detail::require_fitting(now != nullptr && values.size() == now->count(), name);
    tensor t = tensor::allocate(now->type(), now->dims());
    const bool is_known = visit_type(changing_types{}, now->type(), [&]<class T>() {
      std::transform(values.begin(), values.end(), t.mutable_data<T>().begin(), [&](double v) {
        using limits = std::numeric_limits<T>;
        detail::require_fitting(v >= static_cast<double>(limits::lowest()) &&
                                    v <= static_cast<double>((limits::max)()) &&
                                    (!limits::is_integer || v == std::nearbyint(v)),
                                name);
        return static_cast<T>(v);
      });
    });
    detail::require_fitting(is_known, name);
    graph_.set_constant(name, std::move(t));
  }

  /// The names of the constants that change without being trained.
  [[nodiscard]] std::set<std::string> others() const {
    std::set<std::string> names = running_statistics();
    names.insert(given_.begin(), given_.end());
    return names;
  }
  /// Sets these constants, among which all running statistics must be.
  void set_others(const std::map<std::string, std::vector<double>>& constants) {
    for (const std::string& name : running_statistics()) {
      detail::require_fitting(constants.count(name) != 0, name);
    }
    for (const auto& [name, values] : constants) {
      detail::require_fitting(wanted_.count(name) == 0, name);
      set_numbers(name, values);
      given_.insert(name);
    }
  }

  [[nodiscard]] std::set<std::string> running_statistics() const {
    std::set<std::string> names;
    for (const auto& [constant, computed] : detail::computed_statistics(graph_.graph_model())) {
      names.insert(constant);
    }
    return names;
  }

  /// Gives BatchNormalization nodes in training form the running statistics that they computed.
  void follow_statistics() {
    for (const auto& [constant, computed] : detail::computed_statistics(graph_.graph_model())) {
      graph_.set_constant(constant, graph_.value(computed));
      given_.insert(constant);
    }
  }

  training_options options_;
  std::size_t total_steps_;
  std::string output_;
  std::string teacher_output_;
  gradient_graph graph_;
  detail::trained_values values_;
  std::optional<executor> teacher_;
  std::set<std::string> wanted_;
  std::set<std::string> with_gradient_;        // those of them that the loss depends on
  std::set<std::string> given_;                // constants that changed without being trained
  std::map<std::string, std::size_t> counts_;  // elements of values; empty if nobody asks for them
  gradient_graph::value_observer observer_;
  std::optional<std::size_t> divided_for_;  // bytes of the inputs that segments were chosen for
  std::size_t steps_ = 0;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINER_HPP
