// SPDX-License-Identifier: BSD-3-Clause
// The course of fake quantizers over the steps of training: when they are switched on, and for how
// long the ranges of activations follow the batches.
#ifndef DETENT_GRAPH_QUANTIZE_QUANTIZER_SCHEDULE_HPP
#define DETENT_GRAPH_QUANTIZE_QUANTIZER_SCHEDULE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/trainer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/quantize/fake_quantized_network.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A number of training steps, as epochs and single steps behind them.
struct training_span {
  std::size_t epochs = 0;  ///< Whole epochs.
  std::size_t steps = 0;   ///< Steps beside them.

  /// The steps in all, with `batches` steps in an epoch.
  [[nodiscard]] constexpr std::size_t in_steps(std::size_t batches) const noexcept {
    return epochs * batches + steps;
  }
};

/// When fake quantizers quantize, and when the ranges of activations follow the batches instead of
/// their gradients. The default is that they quantize and learn from the first step on.
struct quantizer_schedule {
  /// Fake quantizers do nothing before this step, so that the float network is trained. The scales
  /// of weights are then found again, for the weights of that step.
  training_span quantize_after = {};
  /// In the steps before this one, the range of each activation follows the batches: behind each
  /// step, lower += averaging * (smallest value of the batch - lower), and so the upper end. It
  /// begins with the range that static quantization gave, and its scale and zero point are those of
  /// params_from_range(). From this step on the range is frozen, or learned as the activation_rule
  /// says. Activations with an override keep their parameters.
  training_span observe_for = {};
  /// If set, BatchNormalization nodes that static quantization folds into quantized layers are
  /// trained: the layer computes with folded and quantized weights in each step, and in the steps
  /// before this one the normalization takes the statistics of the batch, and running ones follow.
  /// From this step on the running statistics are frozen, and what is computed is what is exported.
  /// If not set, the folded weights and biases are trained.
  std::optional<training_span> freeze_statistics_after = {};
  double averaging = 0.01;  ///< Weight of a batch in the moving averages, in (0, 1].
};

namespace detail {

/// Leads the fake quantizers of a network through the steps of a trainer.
class quantizer_course {
 public:
  /// Finds the scales of a layer's weights in a model with the nodes of the plan's float model.
  using weight_scale_finder =
      std::function<layer_weight_scales(const model& m, std::size_t layer_node)>;

  /// The network and the plan must outlive the object. `batches` is the number of steps of an
  /// epoch, `total` of all epochs. `observes(value)` tells whether the range of an activation
  /// follows the batches. Throws invalid_argument for a schedule out of its domain.
  quantizer_course(const fake_quantized_network& network, const quantizer_schedule& schedule,
                   std::size_t batches, std::size_t total, quant_scheme scheme,
                   weight_scale_finder find_weight_scales,
                   const std::function<bool(const std::string&)>& observes)
      : network_(network),
        quantize_after_(schedule.quantize_after.in_steps(batches)),
        observe_for_(schedule.observe_for.in_steps(batches)),
        freeze_after_(schedule.freeze_statistics_after
                          ? schedule.freeze_statistics_after->in_steps(batches)
                          : 0),
        averaging_(schedule.averaging),
        scheme_(scheme),
        find_weight_scales_(std::move(find_weight_scales)) {
    require(averaging_ > 0.0 && averaging_ <= 1.0, error_kind::invalid_argument,
            "training: an averaging of ", averaging_, " is not in (0, 1]");
    require(quantize_after_ < total, error_kind::invalid_argument,
            "training: fake quantizers are off for ", quantize_after_, " of ", total, " steps");
    for (const auto& [value, p] : network.activation_parameters()) {
      if (observes(value)) {
        const grid levels = network.levels();
        ranges_[value] = {static_cast<double>(levels.qmin - p.zero_point) * p.scale,
                          static_cast<double>(levels.qmax - p.zero_point) * p.scale};
      }
    }
  }

  /// The form of the network in a step, counted from 0.
  [[nodiscard]] fake_quantized_form form(std::size_t step) const {
    return {.quantizes = step >= quantize_after_,
            .ranges_learn = step >= observe_for_,
            .batch_statistics = step < freeze_after_};
  }

  /// Call it once before the first step of a trainer. The object must outlive its steps.
  void attach(trainer& t) {
    t.set_observer([this, &t](const std::string& value, const tensor& x) {
      if (t.steps() < observe_for_ && ranges_.count(value) != 0) {
        batch_[value] = range_of(x);
      }
    });
  }

  /// Call it behind each step of the trainer.
  void after_step(trainer& t) {
    const std::size_t next = t.steps();
    if (next - 1 < observe_for_) {
      observe(t);
    }
    const fake_quantized_form now = form(next);
    if (now != form(next - 1)) {
      if (now.quantizes && !form(next - 1).quantizes) {
        prepare_export(t);
      }
      t.use_nodes(network_.network(now));
    }
  }

  /// Call it before the network is exported: while fake quantizers are off, it gives the weights
  /// the scales that they would begin with.
  void prepare_export(trainer& t) const {
    if (t.steps() == 0 || form(t.steps() - 1).quantizes) {
      return;
    }
    for (auto& [name, scales] : network_.fitted_weight_scales(t.network(), find_weight_scales_)) {
      t.set_constant(name, std::move(scales));
    }
  }

  /// The moving averages: the two ends of each range, by value.
  [[nodiscard]] std::map<std::string, std::vector<double>> ranges() const {
    std::map<std::string, std::vector<double>> all;
    for (const auto& [value, r] : ranges_) {
      all[value] = {r.lower, r.upper};
    }
    return all;
  }
  /// Goes on behind so many steps of a trainer, with what ranges() returned then. Throws
  /// invalid_argument, naming it, for a range that is not finite, is missing or is one too many.
  void restore(trainer& t, std::size_t steps,
               const std::map<std::string, std::vector<double>>& ranges) {
    for (auto& [value, r] : ranges_) {
      const auto found = ranges.find(value);
      require(found != ranges.end() && found->second.size() == 2 &&
                  std::isfinite(found->second[0]) && std::isfinite(found->second[1]) &&
                  found->second[0] <= found->second[1] && ranges.size() == ranges_.size(),
              error_kind::invalid_argument,
              "training: the checkpoint does not fit the network: the range of '", value, "'");
      r = {found->second[0], found->second[1]};
    }
    if (form(steps) != form(0)) {
      t.use_nodes(network_.network(form(steps)));
    }
  }

 private:
  struct range {
    double lower = 0.0;
    double upper = 0.0;
  };

  /// The smallest and the largest value; nothing if there is none.
  [[nodiscard]] static std::optional<range> range_of(const tensor& values) {
    const auto x = values.data<float>();
    if (x.empty()) {
      return std::nullopt;
    }
    const auto [least, most] = std::minmax_element(x.begin(), x.end());
    return range{static_cast<double>(*least), static_cast<double>(*most)};
  }

  void observe(trainer& t) {
    for (auto& [value, r] : ranges_) {
      const auto seen = batch_.find(value);
      // What is not computed is a constant.
      const std::optional<range> now =
          seen != batch_.end() ? seen->second : range_of(t.value(value));
      if (!now) {
        continue;
      }
      r.lower += detent::detail::rounded_product(averaging_, now->lower - r.lower);
      r.upper += detent::detail::rounded_product(averaging_, now->upper - r.upper);
      const quant_params p = reference::params_from_range(
          {static_cast<float>(r.lower), static_cast<float>(r.upper)}, scheme_);
      for (auto& [name, constant] : network_.activation_constants(value, p)) {
        t.set_constant(name, std::move(constant));
      }
    }
    batch_.clear();
  }

  const fake_quantized_network& network_;
  std::size_t quantize_after_;
  std::size_t observe_for_;
  std::size_t freeze_after_;
  double averaging_;
  quant_scheme scheme_;
  weight_scale_finder find_weight_scales_;
  std::map<std::string, range> ranges_;                // by value
  std::map<std::string, std::optional<range>> batch_;  // of the last batch
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_QUANTIZER_SCHEDULE_HPP
