// SPDX-License-Identifier: BSD-3-Clause
// The pass that learns, block by block, whether each weight is rounded up or down.
#ifndef DETENT_GRAPH_PPQ_ADAROUND_HPP
#define DETENT_GRAPH_PPQ_ADAROUND_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ppq/block_reconstruction.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/integers.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/reference.hpp>
#include <detent/solvers/adam.hpp>
#include <detent/solvers/learned_rounding.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {
namespace detail {

/// Learns the rounding of the weights of one block.
class rounding_learner {
 public:
  /// Rounding to nearest has a mean squared error of 1/12 step^2. With this factor, the error of a
  /// whole step costs as much in the regularizer as it does, on average, in the loss.
  static constexpr double squared_steps = 12.0;

  rounding_learner(const quantized_graph& g, const training_block& block, block_trainer& trainer)
      : trainer_(trainer) {
    for (const learned_constant& c : block.weights()) {
      const tensor& t = *g.network.initializer(c.name);
      const grid levels = g.configs[c.id].levels;
      layers_.push_back({c.name, c.graph_name, t.dims(), weights_.size()});
      const auto values = t.data<float>();
      for_each_element(
          t, g.configs[c.id], g.configs.parameters(c.id), [&](std::size_t i, quant_params p) {
            const double steps = static_cast<double>(values[i]) / static_cast<double>(p.scale);
            const auto interval =
                detent::detail::rounding_interval::of(steps, p.zero_point, levels);
            weights_.push_back({interval, p});
            // With this u, h is the fraction that the weight has.
            u_.push_back(detent::detail::rectified_sigmoid::inverse(steps - interval.below));
          });
      wanted_.insert(c.graph_name);
    }
  }

  /// Makes `steps` steps of training, and calls measure() after some of them. Ends early if a
  /// number is not finite any more.
  template <class Measure>
  void run(std::size_t steps, double learning_rate, double gamma,
           const detent::detail::rounding_annealing& annealing, const Measure& measure) {
    using detent::detail::rectified_sigmoid;
    using detent::detail::rounded_product;
    adam optimizer(u_.size(), {.learning_rate = learning_rate});
    std::vector<double> gradient(u_.size());
    std::vector<rectified_sigmoid> up(u_.size(), rectified_sigmoid(0.0));
    const double each = 2.0 * squared_steps * gamma / static_cast<double>(u_.size());
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < up.size(); ++i) {
        up[i] = rectified_sigmoid(u_[i]);
      }
      for (const layer& l : layers_) {
        trainer_.graph().set_constant(l.graph_name, values_of(l, [&](std::size_t i) {
                                        return weights_[i].interval.at(up[i].h);
                                      }));
      }
      const gradient_graph::gradient_map found = trainer_.step(wanted_);
      const auto time = annealing.at(step, steps);
      const double pull = time.is_warm ? each * time.beta : 0.0;
      for (const layer& l : layers_) {
        const std::vector<double>& own = found.at(l.graph_name);
        for (std::size_t k = 0; k < own.size(); ++k) {
          const std::size_t i = l.first + k;
          gradient[i] = 0.0;
          if (weights_[i].interval.is_free(up[i])) {
            double slope = rounded_product(own[k], static_cast<double>(weights_[i].params.scale));
            if (pull > 0.0) {
              slope -= rounded_product(pull, detent::detail::rounding_pull(up[i].h, time.beta));
            }
            gradient[i] = rounded_product(slope, up[i].slope());
          }
        }
      }
      optimizer.step(u_, gradient);
      for (const double u : u_) {
        if (!std::isfinite(u)) {
          return;
        }
      }
      if (is_measured_after(step, steps)) {
        measure();
      }
    }
  }

  /// Replaces the weights of a graph by the values that their learned integers stand for.
  void write(quantized_graph& to) const {
    for (const layer& l : layers_) {
      tensor t = tensor::allocate(element_type::f32, l.dims);
      const auto values = t.mutable_data<float>();
      for (std::size_t k = 0; k < values.size(); ++k) {
        const weight& w = weights_[l.first + k];
        const double level =
            w.interval.rounded(detent::detail::rectified_sigmoid(u_[l.first + k]).h);
        values[k] =
            reference::dequantize(static_cast<std::int32_t>(level) + w.params.zero_point, w.params);
      }
      replace_weights(to, l.name, std::move(t));
    }
  }

 private:
  struct layer {
    std::string name;
    std::string graph_name;
    shape dims;
    std::size_t first;
  };
  struct weight {
    detent::detail::rounding_interval interval;
    quant_params params;
  };

  /// The weights of a layer as scale * steps(i), where i is the index in weights_.
  template <class Steps>
  [[nodiscard]] tensor values_of(const layer& l, const Steps& steps) const {
    tensor t = tensor::allocate(element_type::f32, l.dims);
    const auto values = t.mutable_data<float>();
    for (std::size_t k = 0; k < values.size(); ++k) {
      values[k] = static_cast<float>(detent::detail::rounded_product(
          static_cast<double>(weights_[l.first + k].params.scale), steps(l.first + k)));
    }
    return t;
  }

  block_trainer& trainer_;
  std::vector<layer> layers_;
  std::vector<weight> weights_;
  std::vector<double> u_;
  std::set<std::string> wanted_;
};

}  // namespace detail

/// PPQ's AdaroundPass, to be run after calibration and passive parameters. It learns whether each
/// weight of an ACTIVATED configuration is rounded up or down. Block by block, as find_blocks()
/// divides the network, it trains one u for each weight w with Adam to minimize
///
///   mean((y^ - y)^2) / e + 12 gamma * mean over the weights of (1 - |2h - 1|^beta)
///   h = clamp(1.2 / (1 + exp(-u)) - 0.1, 0, 1), at first the fraction that w / scale has
///   w^ = scale * clamp(floor(w / scale) + h, qmin - zero_point, qmax - zero_point)
///
/// where y^ is the block's quantized output from quantized inputs with the weights w^, y the value
/// that the float network has in its place, and e the block's error with nearest rounding.
/// Gradients pass the quantization of activations straight through. The second term is off during
/// the warm-up; then beta falls linearly from first_beta to last_beta. In the end, a weight with h
/// < 1/2 is rounded down. Eight times during the training, the last time at its end, the block is
/// measured as it would be exported. It keeps the rounding with the least error over the samples,
/// if that error is less than with nearest rounding.
///
/// The weights of `network` become scale * (q - zero_point), where q are the integers that were
/// learned, so that any later quantization of them gives these integers. The values before are in
/// float_constants. Scales, zero points and biases stay. Constants with other users and baked
/// constants are not touched. Blocks with an operator without gradient are left alone, and on_block
/// reports them.
///
/// Differs from PPQ and from the paper, where the second term is a sum times 0.01 and losses have
/// the units of the outputs: here the terms have the same size whatever the network (1/12 step^2 is
/// the mean squared error of rounding to nearest). Samples are taken in turn, not at random.
///
/// The pass uses no random numbers and gives the same bits everywhere. Its time for each block is
/// one run of the network up to the block for each sample, and one run of the block forwards and
/// backwards for each sample of each step.
///
/// Throws invalid_argument if steps, block_size, samples or samples_per_step is 0, if the learning
/// rate is not positive and finite, if gamma is negative or not finite, if warm_up is not in [0,
/// 1), if a beta is below 1 or not finite, without samples, and for a configuration that is not
/// calibrated yet, naming it; and what the executor and to_qdq() throw. The blocks before the error
/// keep what they have learned.
///
/// Sources: Nagel et al., Up or Down? Adaptive Rounding (2020); Li et al., BRECQ (2021); PPQ 0.6.6.
struct adaround_pass {
  /// Adam's learning rate; positive and finite.
  double learning_rate = 1e-3;
  /// The number of steps for each block; at least 1.
  std::size_t steps = 5000;
  /// The factor of the second term, which drives each h to 0 or 1; not negative.
  double gamma = 1.0;
  /// The share of the steps, in [0, 1), during which the second term is off.
  double warm_up = 0.2;
  /// The beta after the warm-up; at least 1.
  double first_beta = 20.0;
  /// The beta at the end of the training; at least 1.
  double last_beta = 2.0;
  /// How the network is divided into blocks, and how many samples are used.
  block_reconstruction_options blocks = {};

  /// Runs the pass on the samples of the context.
  void operator()(quantized_graph& g, pass_context& context) const {
    constexpr const char* where = "adaround_pass";
    detail::require_valid(blocks, steps, where);
    detent::detail::require_learning_rate(learning_rate, where);
    require(std::isfinite(gamma) && gamma >= 0.0, error_kind::invalid_argument, where,
            ": a gamma of ", gamma);
    const detent::detail::rounding_annealing annealing{warm_up, first_beta, last_beta};
    annealing.require_valid(where);
    detail::reconstruct_blocks(
        g, context, blocks, where,
        [&](const quantized_graph& from, const detail::training_block& block,
            const detail::exported_block& e, const detail::block_samples& samples, double error,
            const auto& offer) {
          detail::block_trainer trainer(block, e, samples, error, blocks.samples_per_step,
                                        context.executor);
          detail::rounding_learner learner(from, block, trainer);
          learner.run(steps, learning_rate, gamma, annealing, [&] {
            quantized_graph learned = from;
            learner.write(learned);
            offer(std::move(learned));
          });
        });
  }
};

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_ADAROUND_HPP
