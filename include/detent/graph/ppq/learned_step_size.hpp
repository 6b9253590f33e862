// SPDX-License-Identifier: BSD-3-Clause
// The pass that trains scales, weights and biases block by block (LSQ, learned step size
// quantization).
#ifndef DETENT_GRAPH_PPQ_LEARNED_STEP_SIZE_HPP
#define DETENT_GRAPH_PPQ_LEARNED_STEP_SIZE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/fake_quantize.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/block_reconstruction.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/passive_parameters.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Trains one block. Weights and biases are trained with their gradients as they are, scales with
/// LSQ's gradient factor. A scale never falls below a part of what it was, because a step of Adam
/// may be larger than a scale.
class step_size_learner {
 public:
  static constexpr double least_part = 1.0 / 16.0;

  step_size_learner(const quantized_graph& g, const training_block& block, block_trainer& trainer)
      : g_(g), trainer_(trainer) {
    for (const learned_constant& w : block.weights()) {
      add(w, true);
    }
    for (const learned_constant& b : block.biases()) {
      add(b, false);
    }
    for (const auto& [id, name] : block.own_scales()) {
      segment& s = add(name, trainer_.graph().graph_model().initializers.at(name));
      s.is_scale = true;
      s.id = id;
    }
    for (const segment& s : segments_) {
      wanted_.insert(s.graph_name);
    }
    find_quantized_weights();
  }

  /// Makes `steps` steps of training, and calls measure() after some of them. Ends early if
  /// parameters leave the range of floats.
  template <class Measure>
  void run(std::size_t steps, double learning_rate, double gamma, double unit,
           const Measure& measure) {
    adam optimizer(values_.size(), {.learning_rate = learning_rate});
    std::vector<double> gradient(values_.size());
    for (std::size_t i = 0; i < steps; ++i) {
      const gradient_graph::gradient_map found = trainer_.step(wanted_);
      if (i == 0) {
        find_factors();
      }
      for (const segment& s : segments_) {
        const std::vector<double>& own = found.at(s.graph_name);
        for (std::size_t k = 0; k < s.count; ++k) {
          gradient[s.first + k] = own[k];
        }
      }
      if (gamma > 0.0) {
        add_rounding_loss(gamma / unit, gradient);
      }
      for (const segment& s : segments_) {
        for (std::size_t k = 0; s.is_scale && k < s.count; ++k) {
          gradient[s.first + k] *= s.factor;
        }
      }
      // The pace falls to 0: at a constant pace, weights midway between two levels would go on
      // changing from one level to the other.
      const double pace = 1.0 - static_cast<double>(i) / static_cast<double>(steps);
      optimizer.step(values_, gradient, pace);
      if (!are_floats()) {
        return;
      }
      for (const segment& s : segments_) {
        for (std::size_t k = s.first; s.is_scale && k < s.first + s.count; ++k) {
          values_[k] = (std::max)(values_[k], least_[k]);
        }
        trainer_.graph().set_constant(s.graph_name, tensor_of(s));
      }
      if (is_measured_after(i, steps)) {
        measure();
      }
    }
  }

  void write(quantized_graph& to) const {
    for (const segment& s : segments_) {
      const tensor t = tensor_of(s);
      if (s.is_scale) {
        tensor_parameters p = to.configs.parameters(s.id);
        p.scales.assign(t.data<float>().begin(), t.data<float>().end());
        to.configs.set_parameters(s.id, std::move(p));
      } else if (s.is_weight) {
        replace_weights(to, s.name, t);
      } else {
        to.network.initializers.at(s.name) = t;
      }
    }
  }

 private:
  struct segment {
    std::string name;  // the name of the constant in the network
    std::string graph_name;
    config_id id = no_config;
    bool is_weight = false;
    bool is_scale = false;
    shape dims;
    std::size_t first = 0;
    std::size_t count = 0;
    double factor = 1.0;  // the gradient of a scale is multiplied by it
  };

  segment& add(const std::string& graph_name, const tensor& t) {
    segment s;
    s.graph_name = graph_name;
    s.dims = t.dims();
    s.first = values_.size();
    s.count = t.count();
    for (const float v : t.data<float>()) {
      values_.push_back(static_cast<double>(v));
      least_.push_back((std::max)(static_cast<double>(v) * least_part,
                                  static_cast<double>(std::numeric_limits<float>::denorm_min())));
    }
    segments_.push_back(std::move(s));
    return segments_.back();
  }
  void add(const learned_constant& c, bool is_weight) {
    segment& s = add(c.graph_name, *g_.network.initializer(c.name));
    s.name = c.name;
    s.id = c.id;
    s.is_weight = is_weight;
  }
  [[nodiscard]] bool are_floats() const {
    constexpr auto largest = static_cast<double>((std::numeric_limits<float>::max)());
    return std::all_of(values_.begin(), values_.end(),
                       [](double v) { return std::fabs(v) <= largest; });
  }
  [[nodiscard]] tensor tensor_of(const segment& s) const {
    return to_floats(std::span<const double>(values_).subspan(s.first, s.count), s.dims);
  }

  /// Sets LSQ's factors. They depend on the sizes of values, which are known after the first run.
  void find_factors() {
    std::map<std::string, std::size_t> counts;  // values that share each scale
    for (const node& n : trainer_.graph().graph_model().nodes) {
      if (n.op_type == "FakeQuantize") {
        counts[n.inputs[1]] += trainer_.graph().value(n.inputs[0]).count();
      }
    }
    for (segment& s : segments_) {
      if (s.is_scale) {
        grid levels = g_.configs[s.id].levels;
        levels.qmax = (std::max)(levels.qmax, 1);  // the last level of a grid may be 0
        const std::size_t count = (std::max)(counts.at(s.graph_name) / s.count, std::size_t{1});
        s.factor = static_cast<double>(lsq_gradient_factor(count, levels));
      }
    }
  }

  struct quantized_weight {
    std::size_t weight;  // segment
    std::optional<std::size_t> scale;
    std::string quantized_name;
  };
  void find_quantized_weights() {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      for (const node& n : trainer_.graph().graph_model().nodes) {
        if (segments_[i].is_weight && n.op_type == "FakeQuantize" &&
            n.inputs[0] == segments_[i].graph_name) {
          quantized_weight w{i, std::nullopt, n.outputs[0]};
          for (std::size_t k = 0; k < segments_.size(); ++k) {
            if (segments_[k].is_scale && segments_[k].id == segments_[i].id) {
              w.scale = k;
            }
          }
          quantized_.push_back(std::move(w));
        }
      }
    }
  }

  /// Adds the gradients of weight * mean((w - w^)^2) for each tensor of weights. In the gradient
  /// for w, w^ is held fixed; the gradient for the scale goes through w^.
  void add_rounding_loss(double weight, std::vector<double>& gradient) const {
    for (const quantized_weight& q : quantized_) {
      const segment& s = segments_[q.weight];
      const auto w = trainer_.graph().value(s.graph_name).data<float>();
      const auto rounded = trainer_.graph().value(q.quantized_name).data<float>();
      const double factor = 2.0 * weight / static_cast<double>(s.count);
      std::vector<double> slopes(s.count);
      for (std::size_t k = 0; k < s.count; ++k) {
        slopes[k] = (static_cast<double>(rounded[k]) - static_cast<double>(w[k])) * factor;
        gradient[s.first + k] -= slopes[k];
      }
      if (q.scale) {
        const segment& scale = segments_[*q.scale];
        const auto through =
            trainer_.graph().backward({{q.quantized_name, std::move(slopes)}}, {scale.graph_name});
        for (std::size_t k = 0; k < scale.count; ++k) {
          gradient[scale.first + k] += through.at(scale.graph_name)[k];
        }
      }
    }
  }

  const quantized_graph& g_;
  block_trainer& trainer_;
  std::vector<segment> segments_;
  std::vector<double> values_;
  std::vector<double> least_;  // lower bounds; only those of scales count
  std::vector<quantized_weight> quantized_;
  std::set<std::string> wanted_;
};

}  // namespace detail

/// PPQ's LearnedStepSizePass, to be run after calibration and passive parameters. Block by block,
/// as find_blocks() divides the network, it trains the weights, biases and scales of ACTIVATED
/// configurations with Adam to minimize
///
///   mean((y^ - y)^2) + gamma * sum over weights W of mean((W - W^)^2)
///
/// where y^ is the block's quantized output from quantized inputs, y the value that the float
/// network has in its place, and W^ the quantized weights. Gradients pass quantization straight
/// through, as fake_quantize_backward() does, with lsq_gradient_factor() for scales. W^ is held
/// fixed in the gradient for W. A block keeps what it has learned only if its error over the
/// samples, as it is exported, is smaller then.
///
/// Some values are not trained: scales that tensors outside the block share (aligned or dominated
/// tensors), scales that are powers of two, zero points, constants that have other users, and baked
/// constants. Scales do not fall below a sixteenth of what they were. Biases with passive
/// configurations get new scales by passive_parameters. Trained weights replace the constants of
/// `network`; the values before are in float_constants. Blocks with an operator without gradient
/// are left alone, and on_block reports them.
///
/// Differs from PPQ in five points. Samples are taken in turn, not at random. The learning rate
/// falls linearly to 0. The values that are kept are the best ones measured, not the last ones.
/// Losses are divided by the block's error in the beginning, so that results do not change with
/// units. The factor of scales uses qmax, as the paper does, instead of qmax - qmin.
///
/// The pass uses no random numbers and gives the same bits everywhere. Its time for each block is
/// one run of the network up to the block for each sample, and one run of the block forwards and
/// backwards for each sample of each step.
///
/// Throws invalid_argument if steps, block_size, samples or samples_per_step is 0, if the learning
/// rate is not positive and finite, if gamma is negative or not finite, without samples, and for a
/// configuration that is not calibrated yet, naming it; and what the executor and to_qdq() throw.
/// The blocks before the error keep what they have learned.
///
/// Sources: Esser et al., Learned Step Size Quantization (2020); PPQ 0.6.6.
struct learned_step_size_pass {
  /// Adam's learning rate in the first step; positive and finite.
  double learning_rate = 1e-5;
  /// The number of steps for each block; at least 1.
  std::size_t steps = 500;
  /// The weight of the rounding errors of weights in the loss; not negative.
  double gamma = 0.0;
  /// How the network is divided into blocks, and how many samples are used.
  block_reconstruction_options blocks = {};
  /// The pass that computes the scales of biases after each measurement of a block.
  passive_parameter_pass passive_parameters = {};

  /// Runs the pass on the samples of the context.
  void operator()(quantized_graph& g, pass_context& context) const {
    constexpr const char* where = "learned_step_size_pass";
    detail::require_valid(blocks, steps, where);
    detent::detail::require_learning_rate(learning_rate, where);
    require(std::isfinite(gamma) && gamma >= 0.0, error_kind::invalid_argument, where,
            ": a gamma of ", gamma);
    detail::reconstruct_blocks(
        g, context, blocks, where,
        [&](const quantized_graph& from, detail::training_block block,
            const detail::exported_block& e, const detail::block_samples& samples, double error,
            const auto& offer) {
          block.quantize_weights();
          detail::block_trainer trainer(block, e, samples, error, blocks.samples_per_step,
                                        context.executor);
          detail::step_size_learner learner(from, block, trainer);
          learner.run(steps, learning_rate, gamma, error, [&] {
            quantized_graph learned = from;
            learner.write(learned);
            passive_parameters(learned, context);
            offer(std::move(learned));
          });
        });
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_LEARNED_STEP_SIZE_HPP
