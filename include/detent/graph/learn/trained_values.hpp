// SPDX-License-Identifier: BSD-3-Clause
// The numbers that training changes, in double, and the optimizers that change them.
#ifndef DETENT_GRAPH_LEARN_TRAINED_VALUES_HPP
#define DETENT_GRAPH_LEARN_TRAINED_VALUES_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/learning_rate.hpp>
#include <detent/graph/learn/trained_constant.hpp>
#include <detent/graph/learn/training_checkpoint.hpp>
#include <detent/graph/learn/training_options.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
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

/// Throws invalid_argument, naming `what`, for a checkpoint that is not one of the network.
inline void require_fitting(bool fits, const std::string& what) {
  require(fits, error_kind::invalid_argument,
          "training: the checkpoint does not fit the network: ", what);
}

/// The constants that are trained, in double, with their gradients and optimizers. A scale never
/// falls below 1/16 of what it was at the beginning.
class trained_values {
 public:
  /// Takes the constants of a model. Throws invalid_argument, naming it, for one that the model
  /// does not have as float32, and for a penalty that is negative or not finite.
  trained_values(const model& m, const std::vector<trained_constant>& constants,
                 const training_options& o) {
    for (const trained_constant& c : constants) {
      add(m, c);
    }
    for (const constant_role role : roles) {
      group& g = of(role);
      g.gradient.resize(g.values.size());
      g.optimizer.emplace(g.values.size(), o, role);
    }
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

  /// The first constant whose gradient holds NaN or infinity, and that number.
  [[nodiscard]] std::optional<std::pair<std::string, double>> first_not_finite(
      const gradient_graph::gradient_map& found) const {
    for (const group& g : groups_) {
      for (const segment& s : g.segments) {
        for (const double v : found.at(s.name)) {
          if (!std::isfinite(v)) {
            return std::pair(s.name, v);
          }
        }
      }
    }
    return std::nullopt;
  }

  /// The first constant that has become NaN or larger than floats are, and that number.
  [[nodiscard]] std::optional<std::pair<std::string, double>> first_overflow() const {
    for (const group& g : groups_) {
      for (const segment& s : g.segments) {
        for (const double v : std::span(g.values).subspan(s.first, s.count)) {
          if (!std::isfinite(static_cast<float>(v))) {
            return std::pair(s.name, v);
          }
        }
      }
    }
    return std::nullopt;
  }

  /// One step of the optimizers with these gradients, which must be finite. Their norm is clipped
  /// to `max_gradient_norm` (clip_gradients()); `pace` is the factor of the learning rate.
  void step(const gradient_graph::gradient_map& found, double max_gradient_norm, double pace) {
    std::vector<std::span<double>> all;
    for (group& g : groups_) {
      for (const segment& s : g.segments) {
        const std::vector<double>& own = found.at(s.name);
        for (std::size_t k = 0; k < s.count; ++k) {
          g.gradient[s.first + k] =
              detent::detail::rounded_product(own[k], s.factor) +
              detent::detail::rounded_product(g.values[s.first + k], s.penalty);
        }
      }
      all.emplace_back(g.gradient);
    }
    static_cast<void>(clip_gradients(all, max_gradient_norm));
    for (group& g : groups_) {
      if (!g.values.empty()) {
        g.optimizer->step(g.values, g.gradient, pace);
      }
    }
    group& scales = of(constant_role::scale);
    for (std::size_t i = 0; i < scales.values.size(); ++i) {
      scales.values[i] = (std::max)(scales.values[i], scales.least[i]);
    }
  }

  /// Calls take(name, tensor) for each constant, rounded to float.
  template <class Take>
  void write(const Take& take) const {
    for (const group& g : groups_) {
      for (const segment& s : g.segments) {
        tensor t = tensor::allocate(element_type::f32, s.dims);
        const auto to = t.mutable_data<float>();
        for (std::size_t k = 0; k < s.count; ++k) {
          to[k] = static_cast<float>(g.values[s.first + k]);
        }
        take(s.name, std::move(t));
      }
    }
  }

  /// Gives one of the constants other elements. A scale may fall to 1/16 of them.
  void assign(const std::string& name, std::span<const float> values) {
    for (group& g : groups_) {
      for (const segment& s : g.segments) {
        for (std::size_t k = 0; s.name == name && k < s.count; ++k) {
          g.values[s.first + k] = static_cast<double>(values[k]);
          g.least[s.first + k] = least_of(values[k]);
        }
      }
    }
  }
  /// Undoes what the decay of weights has done to those for which `has_gradient` is false, as those
  /// of a head without labels: nothing would work against it. `m` has them as they were.
  template <class HasGradient>
  void keep_without_gradient(const model& m, const HasGradient& has_gradient) {
    group& g = of(constant_role::weight);
    for (const segment& s : g.segments) {
      if (!has_gradient(s.name)) {
        const auto now = m.initializers.at(s.name).data<float>();
        std::copy(now.begin(), now.end(), g.values.begin() + static_cast<std::ptrdiff_t>(s.first));
      }
    }
  }

  /// The mean of each constant of scales, by name.
  [[nodiscard]] std::map<std::string, double> mean_scales() const {
    const group& g = of(constant_role::scale);
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

  /// Whether the gradients of scales have their factors.
  [[nodiscard]] bool has_scale_factors() const noexcept { return has_scale_factors_; }
  /// Multiplies the gradients of scales by factor(name, elements) from now on.
  void set_scale_factors(const std::function<double(const std::string&, std::size_t)>& factor) {
    for (segment& s : of(constant_role::scale).segments) {
      s.factor = factor(s.name, s.count);
    }
    has_scale_factors_ = true;
  }
  /// Has the factors found again.
  void forget_scale_factors() noexcept { has_scale_factors_ = false; }

  /// Writes the constants and what the optimizers keep to a state.
  void save(trainer_state& to) const {
    for (const constant_role role : roles) {
      const group& g = of(role);
      to.optimizers[static_cast<std::size_t>(role)] = g.optimizer->state();
      for (const segment& s : g.segments) {
        const auto values = std::span(g.values).subspan(s.first, s.count);
        to.constants[s.name].assign(values.begin(), values.end());
        if (role == constant_role::scale && has_scale_factors_) {
          to.scale_factors.push_back(s.factor);
        }
      }
    }
    to.least_scales = of(constant_role::scale).least;
  }
  /// Reads them. Throws invalid_argument, naming what does not fit, if they are those of other
  /// constants or not finite; the values must then not be used any more.
  void load(const trainer_state& from) {
    std::size_t count = 0;
    std::size_t scales = 0;
    has_scale_factors_ = !from.scale_factors.empty();
    for (const constant_role role : roles) {
      group& g = of(role);
      g.optimizer->set_state(from.optimizers[static_cast<std::size_t>(role)]);
      for (segment& s : g.segments) {
        const auto found = from.constants.find(s.name);
        require_fitting(found != from.constants.end() && found->second.size() == s.count &&
                            all_finite(found->second),
                        s.name);
        std::copy(found->second.begin(), found->second.end(),
                  g.values.begin() + static_cast<std::ptrdiff_t>(s.first));
        ++count;
        if (role == constant_role::scale && has_scale_factors_) {
          require_fitting(
              scales < from.scale_factors.size() && std::isfinite(from.scale_factors[scales]),
              s.name);
          s.factor = from.scale_factors[scales++];
        }
      }
    }
    group& g = of(constant_role::scale);
    require_fitting(count == from.constants.size() && scales == from.scale_factors.size() &&
                        from.least_scales.size() == g.least.size() && all_finite(from.least_scales),
                    "the number of constants");
    g.least = from.least_scales;
    for (std::size_t i = 0; i < g.values.size(); ++i) {
      g.values[i] = (std::max)(g.values[i], g.least[i]);
    }
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
    std::optional<any_optimizer> optimizer;
  };

  [[nodiscard]] group& of(constant_role role) { return groups_[static_cast<std::size_t>(role)]; }
  [[nodiscard]] const group& of(constant_role role) const {
    return groups_[static_cast<std::size_t>(role)];
  }

  void add(const model& m, const trained_constant& c) {
    const tensor* t = m.initializer(c.name);
    require(t != nullptr && t->type() == element_type::f32 && t->has_data(),
            error_kind::invalid_argument, "training: '", c.name,
            "' is no float constant of the model");
    require(std::isfinite(c.penalty) && c.penalty >= 0.0, error_kind::invalid_argument,
            "training: the penalty of '", c.name, "' is ", c.penalty);
    group& g = of(c.role);
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
  [[nodiscard]] static bool all_finite(const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
  }

  std::array<group, 3> groups_;
  bool has_scale_factors_ = false;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_TRAINED_VALUES_HPP
