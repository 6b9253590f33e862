// SPDX-License-Identifier: BSD-3-Clause
// Steps of training: forward, loss, backward, and a step of the optimizers.
#ifndef DETENT_GRAPH_LEARN_TRAINER_HPP
#define DETENT_GRAPH_LEARN_TRAINER_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/learn/choose_segments.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/gradient_memory.hpp>
#include <detent/graph/learn/learning_rate.hpp>
#include <detent/graph/learn/loss.hpp>
#include <detent/graph/learn/node_segments.hpp>
#include <detent/graph/learn/trained_constant.hpp>
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
#include <detent/graph/run/shape_inference.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/solvers/momentum_descent.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// One of the optimizers, for the constants of one role.
class any_optimizer {
 public:
  any_optimizer(std::size_t count, const training_options& o, constant_role role)
      : optimizer_(make(count, o, role)) {}

  void step(std::span<double> x, std::span<const double> gradient, double pace) {
    std::visit([&](auto& optimizer) { optimizer.step(x, gradient, pace); }, optimizer_);
  }
  [[nodiscard]] std::vector<double> state() const {
    return std::visit([](const auto& optimizer) { return optimizer.state(); }, optimizer_);
  }
  void set_state(std::span<const double> state) {
    std::visit([&](auto& optimizer) { optimizer.set_state(state); }, optimizer_);
  }

 private:
  using variant = std::variant<adam, momentum_descent>;
  static variant make(std::size_t count, const training_options& o, constant_role role) {
    const double rate = o.learning_rate * (role == constant_role::bias    ? o.bias_rate
                                           : role == constant_role::scale ? o.scale_rate
                                                                          : 1.0);
    const double decay = role == constant_role::weight ? o.weight_decay : 0.0;
    if (o.optimizer == training_optimizer::sgd) {
      return momentum_descent(
          count, {.learning_rate = rate, .momentum = o.momentum, .weight_decay = decay});
    }
    return adam(count, {.learning_rate = rate,
                        .momentum = o.momentum,
                        .square_momentum = o.square_momentum,
                        .weight_decay = decay,
                        .decoupled = o.optimizer == training_optimizer::adamw});
  }

  variant optimizer_;
};

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

/// False if a float32 tensor holds NaN or infinity.
[[nodiscard]] inline bool is_finite(const tensor& t) {
  if (t.type() != element_type::f32) {
    return true;
  }
  constexpr std::uint32_t exponent = 0x7F800000U;
  std::uint32_t found = 0;
  for (const float v : t.data<float>()) {  // a loop that compilers vectorize
    found |= (std::bit_cast<std::uint32_t>(v) & exponent) == exponent ? 1U : 0U;
  }
  return found == 0;
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
  trainer(model network, std::vector<trained_constant> constants, const training_options& options,
          std::size_t total_steps, std::string output, const model* teacher = nullptr,
          std::string teacher_output = {})
      : constants_(std::move(constants)),
        options_(options),
        total_steps_(total_steps),
        output_(std::move(output)),
        teacher_output_(std::move(teacher_output)),
        graph_(std::move(network), options.executor) {
    require(!constants_.empty(), error_kind::invalid_argument,
            "training: the model has no constants to train");
    for (const trained_constant& c : constants_) {
      add(c);
      wanted_.insert(c.name);
    }
    for (const constant_role role : roles) {
      group& g = groups_[static_cast<std::size_t>(role)];
      g.gradient.resize(g.values.size());
      g.optimizer.emplace(g.values.size(), options_, role);
    }
    require_gradients();
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
  /// gradient is NaN or infinite: the constants are then those before the step. Throws what the
  /// losses throw for labels that do not fit, and what choose_segments() throws.
  double step(const training_batch& batch) {
    divide(batch);
    std::string wrong;    // the first value that is not finite
    bool is_mask = true;  // whether it has no NaN and no +infinity
    graph_.forward(batch.inputs, [&](const std::string& name, const tensor& value) {
      if (is_mask && !detail::is_finite(value) &&
          (wrong.empty() || detail::has_nan_or_infinity(value))) {
        wrong = name;
        is_mask = !detail::has_nan_or_infinity(value);
      }
      if (!has_factors_) {
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
        if (!detail::is_finite(graph_.value(name))) {
          raise_not_finite(wrong);
        }
      }
    }
    gradient_graph::gradient_map seeds;
    const double loss = loss_of(batch, seeds) + penalties();
    require(std::isfinite(loss), error_kind::overflow, "training step ", steps_ + 1,
            ": the loss is ", loss, "; a smaller learning rate may help");
    const gradient_graph::gradient_map found = graph_.backward(seeds, wanted_);
    take_gradients(found, is_mask ? std::string() : wrong);
    const double pace = learning_rate_factor(options_.schedule, steps_, total_steps_);
    for (group& g : groups_) {
      if (!g.values.empty()) {
        g.optimizer->step(g.values, g.gradient, pace);
      }
    }
    ++steps_;
    keep_constants_without_gradient();
    write_constants();
    follow_statistics();
    return loss;
  }

  /// What the next steps depend on besides the options, the samples, and the nodes that use_nodes()
  /// gave.
  [[nodiscard]] trainer_state state() const {
    trainer_state s;
    s.steps = steps_;
    for (const constant_role role : roles) {
      const group& g = groups_[static_cast<std::size_t>(role)];
      s.optimizers[static_cast<std::size_t>(role)] = g.optimizer->state();
      for (const segment& part : g.segments) {
        const auto values = std::span(g.values).subspan(part.first, part.count);
        s.constants[part.name].assign(values.begin(), values.end());
        if (role == constant_role::scale && has_factors_) {
          s.scale_factors.push_back(part.factor);
        }
      }
    }
    s.least_scales = groups_[static_cast<std::size_t>(constant_role::scale)].least;
    for (const std::string& name : others()) {
      s.others[name] = numbers(name);
    }
    return s;
  }
  /// Goes on from a state that a trainer with the same arguments and nodes had. Throws
  /// invalid_argument, naming what does not fit, if it is that of another network or holds values
  /// that are not finite; the trainer must then not be used any more.
  void set_state(const trainer_state& s) {
    std::size_t count = 0;
    std::size_t scales = 0;
    has_factors_ = !s.scale_factors.empty();
    for (const constant_role role : roles) {
      group& g = groups_[static_cast<std::size_t>(role)];
      g.optimizer->set_state(s.optimizers[static_cast<std::size_t>(role)]);
      for (segment& part : g.segments) {
        const auto found = s.constants.find(part.name);
        require_fitting(found != s.constants.end() && found->second.size() == part.count &&
                            all_finite(found->second),
                        part.name);
        std::copy(found->second.begin(), found->second.end(),
                  g.values.begin() + static_cast<std::ptrdiff_t>(part.first));
        ++count;
        if (role == constant_role::scale && has_factors_) {
          require_fitting(scales < s.scale_factors.size() && std::isfinite(s.scale_factors[scales]),
                          part.name);
          part.factor = s.scale_factors[scales++];
        }
      }
    }
    group& g = groups_[static_cast<std::size_t>(constant_role::scale)];
    require_fitting(count == s.constants.size() && scales == s.scale_factors.size() &&
                        s.least_scales.size() == g.least.size() && all_finite(s.least_scales),
                    "the number of constants");
    g.least = s.least_scales;
    set_others(s.others);
    steps_ = s.steps;
    write_constants();
  }
  /// The mean of each trained constant of scales, by name.
  [[nodiscard]] std::map<std::string, double> mean_scales() const {
    const group& g = groups_[static_cast<std::size_t>(constant_role::scale)];
    std::map<std::string, double> means;
    for (const segment& s : g.segments) {
      double sum = 0.0;
      for (const double v : std::span(g.values).subspan(s.first, s.count)) {
        sum += v;
      }
      means[s.name] = s.count == 0 ? 0.0 : sum / static_cast<double>(s.count);
    }
    return means;
  }
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
      require_fitting(found != constants.end(), name);
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
    require_gradients();
    has_factors_ = false;
    counts_.clear();
  }

  /// Gives a constant of the network other elements; if it is trained, training goes on from them,
  /// and a scale may fall to 1/16 of them. Throws invalid_argument if the network has no such
  /// constant, shape_mismatch if type or shape are others.
  void set_constant(const std::string& name, tensor value) {
    graph_.set_constant(name, value);
    if (wanted_.count(name) == 0) {
      given_.insert(name);
    }
    for (group& g : groups_) {
      for (const segment& s : g.segments) {
        for (std::size_t k = 0; s.name == name && k < s.count; ++k) {
          g.values[s.first + k] = static_cast<double>(value.data<float>()[k]);
          g.least[s.first + k] = least_of(value.data<float>()[k]);
        }
      }
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
  static constexpr std::array<constant_role, 3> roles{constant_role::weight, constant_role::bias,
                                                      constant_role::scale};
  /// A scale may not fall below this part of what it was.
  static constexpr double least_part = 1.0 / 16.0;

  /// A constant among those of its role.
  struct segment {
    std::string name;
    shape dims;
    std::size_t first = 0;
    std::size_t count = 0;
    double factor = 1.0;   // of the gradient
    double penalty = 0.0;  // of the squares
  };
  struct group {
    std::vector<segment> segments;
    std::vector<double> values;
    std::vector<double> least;  // of scales
    std::vector<double> gradient;
    std::optional<detail::any_optimizer> optimizer;
  };

  void add(const trained_constant& c) {
    const tensor* t = graph_.graph_model().initializer(c.name);
    require(t != nullptr && t->type() == element_type::f32 && t->has_data(),
            error_kind::invalid_argument, "training: '", c.name,
            "' is no float constant of the model");
    group& g = groups_[static_cast<std::size_t>(c.role)];
    require(std::isfinite(c.penalty) && c.penalty >= 0.0, error_kind::invalid_argument,
            "training: the penalty of '", c.name, "' is ", c.penalty);
    g.segments.push_back({.name = c.name,
                          .dims = t->dims(),
                          .first = g.values.size(),
                          .count = t->count(),
                          .penalty = c.penalty});
    for (const float v : t->data<float>()) {
      g.values.push_back(static_cast<double>(v));
      g.least.push_back(least_of(v));
    }
  }
  [[nodiscard]] static double least_of(float v) {
    return (std::max)(static_cast<double>(v) * least_part,
                      static_cast<double>(std::numeric_limits<float>::min()));
  }

  /// The values that gradients begin with.
  [[nodiscard]] std::set<std::string> seeds() const {
    std::set<std::string> names{output_};
    names.insert(options_.loss.hidden.begin(), options_.loss.hidden.end());
    return names;
  }
  /// The values that a step looks at after its forward run.
  [[nodiscard]] std::set<std::string> kept_values() const {
    std::set<std::string> names = seeds();
    for (const auto& [constant, computed] : computed_statistics()) {
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

  /// The part of the loss that constants with a penalty make.
  [[nodiscard]] double penalties() const {
    double total = 0.0;
    for (const group& g : groups_) {
      for (const segment& s : g.segments) {
        for (std::size_t k = 0; s.penalty > 0.0 && k < s.count; ++k) {
          const double v = g.values[s.first + k];
          total += detent::detail::rounded_product(0.5 * s.penalty, v * v);
        }
      }
    }
    return total;
  }

  /// The values of the network that are known not to hold floats before a run.
  [[nodiscard]] std::set<std::string> values_without_gradient() const {
    static const std::set<std::string, std::less<>> never_floats = {
        "And",  "ArgMax",      "ArgMin",  "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN",
        "Less", "LessOrEqual", "NonZero", "Not",   "Or",      "Shape",          "Size",  "Xor"};
    std::set<std::string> names;
    for (const node& n : graph_.graph_model().nodes) {
      if (n.domain.empty() && never_floats.count(n.op_type) != 0) {
        names.insert(n.outputs.begin(), n.outputs.end());
      }
    }
    try {
      for (const auto& [name, t] : infer_shapes(graph_.graph_model(), {}, training_operators())) {
        if (t.type() != element_type::undefined && !ops::is_floating(t.type())) {
          names.insert(name);
        }
      }
    } catch (const error&) {
      return names;  // the run tells what does not fit together
    }
    return names;
  }

  /// Finds the trained constants that the loss depends on. Throws unsupported for a node without
  /// gradient between a trained constant and a value that the loss depends on. Shapes, indices and
  /// conditions are no such values: they have no gradient.
  void require_gradients() {
    const model& m = graph_.graph_model();
    const std::set<std::string> without = values_without_gradient();
    std::set<std::string> needed = seeds();
    for (std::size_t i = m.nodes.size(); i-- > 0;) {
      if (std::any_of(m.nodes[i].outputs.begin(), m.nodes[i].outputs.end(),
                      [&](const std::string& name) { return needed.count(name) != 0; })) {
        const gradient_definition* gradient = find_gradient(m.nodes[i]);
        for (std::size_t k = 0; k < m.nodes[i].inputs.size(); ++k) {
          const std::string& name = m.nodes[i].inputs[k];
          if (without.count(name) == 0 && (gradient == nullptr || gradient->passes_to(k))) {
            needed.insert(name);
          }
        }
      }
    }
    with_gradient_.clear();
    std::copy_if(wanted_.begin(), wanted_.end(),
                 std::inserter(with_gradient_, with_gradient_.end()),
                 [&](const std::string& name) { return needed.count(name) != 0; });
    require(!with_gradient_.empty(), error_kind::unsupported, "training: output '", output_,
            "' depends on none of the trained constants in a way that has a gradient");
    std::set<std::string> trained = wanted_;
    for (const node& n : m.nodes) {
      const bool depends = std::any_of(
          n.inputs.begin(), n.inputs.end(),
          [&](const std::string& name) { return !name.empty() && trained.count(name) != 0; });
      const bool is_needed =
          std::any_of(n.outputs.begin(), n.outputs.end(),
                      [&](const std::string& name) { return needed.count(name) != 0; });
      require(!depends || !is_needed || find_gradient(n) != nullptr, error_kind::unsupported,
              "training: ", n.label(), ": its operator has no gradient");
      if (depends) {
        trained.insert(n.outputs.begin(), n.outputs.end());
      }
    }
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

  /// `wrong` is the first value with NaN or +infinity; empty if there is none.
  void take_gradients(const gradient_graph::gradient_map& found, const std::string& wrong) {
    if (!has_factors_) {
      find_factors();
      has_factors_ = true;
      counts_.clear();
    }
    std::vector<std::span<double>> all;
    for (group& g : groups_) {
      for (const segment& s : g.segments) {
        const std::vector<double>& own = found.at(s.name);
        for (std::size_t k = 0; k < s.count; ++k) {
          if (!wrong.empty() && !std::isfinite(own[k])) {
            raise_not_finite(wrong);
          }
          require(std::isfinite(own[k]), error_kind::overflow, "training step ", steps_ + 1,
                  ": the gradient of '", s.name, "' is ", own[k],
                  "; a smaller learning rate may help");
          g.gradient[s.first + k] =
              detent::detail::rounded_product(own[k], s.factor) +
              detent::detail::rounded_product(g.values[s.first + k], s.penalty);
        }
      }
      all.emplace_back(g.gradient);
    }
    static_cast<void>(clip_gradients(all, options_.max_gradient_norm));
  }

  /// Sets LSQ's factors of scales. They depend on the sizes of values, which are known after the
  /// first run.
  void find_factors() {
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
    for (segment& s : groups_[static_cast<std::size_t>(constant_role::scale)].segments) {
      const auto found = uses.find(s.name);
      if (found != uses.end()) {
        const std::size_t shared =
            (std::max)(found->second.first / (std::max)(s.count, std::size_t{1}), std::size_t{1});
        s.factor = static_cast<double>(lsq_gradient_factor(shared, found->second.second));
      }
    }
  }

  /// Undoes what the decay of weights has done to those that the loss does not depend on, as those
  /// of a head without labels: nothing would work against it.
  void keep_constants_without_gradient() {
    group& g = groups_[static_cast<std::size_t>(constant_role::weight)];
    for (const segment& s : g.segments) {
      if (with_gradient_.count(s.name) == 0) {
        const auto now = graph_.graph_model().initializers.at(s.name).data<float>();
        std::copy(now.begin(), now.end(), g.values.begin() + static_cast<std::ptrdiff_t>(s.first));
      }
    }
  }

  void write_constants() {
    for (const constant_role role : roles) {
      group& g = groups_[static_cast<std::size_t>(role)];
      for (const segment& s : g.segments) {
        tensor t = tensor::allocate(element_type::f32, s.dims);
        const auto to = t.mutable_data<float>();
        for (std::size_t k = 0; k < s.count; ++k) {
          double& v = g.values[s.first + k];
          if (role == constant_role::scale) {
            v = (std::max)(v, g.least[s.first + k]);
          }
          to[k] = static_cast<float>(v);
        }
        graph_.set_constant(s.name, std::move(t));
      }
    }
  }

  static void require_fitting(bool fits, const std::string& what) {
    require(fits, error_kind::invalid_argument,
            "training: the checkpoint does not fit the network: ", what);
  }
  [[nodiscard]] static bool all_finite(const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
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
    require_fitting(now != nullptr && values.size() == now->count(), name);
    tensor t = tensor::allocate(now->type(), now->dims());
    const bool is_known = visit_type(changing_types{}, now->type(), [&]<class T>() {
      std::transform(values.begin(), values.end(), t.mutable_data<T>().begin(), [&](double v) {
        using limits = std::numeric_limits<T>;
        require_fitting(v >= static_cast<double>(limits::lowest()) &&
                            v <= static_cast<double>((limits::max)()) &&
                            (!limits::is_integer || v == std::nearbyint(v)),
                        name);
        return static_cast<T>(v);
      });
    });
    require_fitting(is_known, name);
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
      require_fitting(constants.count(name) != 0, name);
    }
    for (const auto& [name, values] : constants) {
      require_fitting(wanted_.count(name) == 0, name);
      set_numbers(name, values);
      given_.insert(name);
    }
  }

  /// The means and variances that BatchNormalization nodes in training form follow: the constants,
  /// each with the value that a run computes for it.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> computed_statistics() const {
    std::vector<std::pair<std::string, std::string>> names;
    for (const node& n : graph_.graph_model().nodes) {
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
  [[nodiscard]] std::set<std::string> running_statistics() const {
    std::set<std::string> names;
    for (const auto& [constant, computed] : computed_statistics()) {
      names.insert(constant);
    }
    return names;
  }

  /// Gives BatchNormalization nodes in training form the running statistics that they computed.
  void follow_statistics() {
    for (const auto& [constant, computed] : computed_statistics()) {
      graph_.set_constant(constant, graph_.value(computed));
      given_.insert(constant);
    }
  }

  std::vector<trained_constant> constants_;
  training_options options_;
  std::size_t total_steps_;
  std::string output_;
  std::string teacher_output_;
  gradient_graph graph_;
  std::optional<executor> teacher_;
  std::set<std::string> wanted_;
  std::set<std::string> with_gradient_;  // those of them that the loss depends on
  std::set<std::string> given_;          // constants that changed without being trained
  std::array<group, 3> groups_;
  std::map<std::string, std::size_t> counts_;  // elements of values; empty if nobody asks for them
  gradient_graph::value_observer observer_;
  std::optional<std::size_t> divided_for_;  // bytes of the inputs that segments were chosen for
  std::size_t steps_ = 0;
  bool has_factors_ = false;
};

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINER_HPP
