// SPDX-License-Identifier: BSD-3-Clause
// The common part of passes that train a quantized network block by block to compute what the float
// network computes: blocks as the exported model has them, their samples, and their errors.
//
//   for each block, in the order of the network
//     inputs   the values that the block gets from the quantized network, with all blocks that are
//              trained so far
//     targets  the values that the float network makes in place of the block's output
//     loss     the mean squared error of the block's output, after its quantization
//
// Several times during the training, the block is measured as it would be exported. The best one is
// kept if it is nearer to its targets than the block was before.
#ifndef DETENT_GRAPH_PPQ_BLOCK_RECONSTRUCTION_HPP
#define DETENT_GRAPH_PPQ_BLOCK_RECONSTRUCTION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/learn/gradient.hpp>
#include <detent/graph/learn/make_fake_quantize.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ppq/analysis.hpp>
#include <detent/graph/ppq/blocks.hpp>
#include <detent/graph/ppq/config.hpp>
#include <detent/graph/ppq/pass.hpp>
#include <detent/graph/ppq/platform.hpp>
#include <detent/graph/ppq/qdq.hpp>
#include <detent/graph/ppq/quantized_graph.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ppq {

/// How the training of a block ended.
enum class block_outcome : std::uint8_t {
  improved,          ///< The block has learned values with a smaller error.
  not_improved,      ///< No learned values had a smaller error: the block is as it was.
  no_gradient,       ///< The block has an operator without gradient, and was left alone.
  nothing_to_learn,  ///< The block has no weight that may be trained, and was left alone.
};

/// What a pass that trains a network block by block did to one block.
struct block_report {
  /// The value of quantized_graph::network that the block depends on.
  std::string entry;
  /// The value of quantized_graph::network that the block makes.
  std::string exit;
  /// The labels of the block's operators, in the order of the network.
  std::vector<std::string> operators;
  /// How the training ended.
  block_outcome outcome = block_outcome::not_improved;
  /// The first operator without gradient, if the outcome is no_gradient.
  std::string obstacle;
  /// The mean squared error of the block's output in the exported model, over the samples, before
  /// the pass; 0 if the block was left alone.
  double error_before = 0.0;
  /// The mean squared error of the block's output in the exported model, over the samples, after
  /// the pass; 0 if the block was left alone.
  double error_after = 0.0;
};

/// Options of all passes that train a network block by block.
struct block_reconstruction_options {
  /// The largest number of layers in a block, as find_blocks() takes it; at least 1.
  std::size_t block_size = 4;
  /// The largest number of samples; at least 1. So many inputs of the network, and so many inputs
  /// and targets of one block, are kept in memory at a time.
  std::size_t samples = 32;
  /// The number of samples whose gradients are averaged in a step; at least 1. Samples are taken in
  /// turn.
  std::size_t samples_per_step = 1;
  /// If given, it is called with a report of each block, in the order of the network.
  std::function<void(const block_report&)> on_block = {};
};

namespace detail {

inline void require_valid(const block_reconstruction_options& o, std::size_t steps,
                          const char* where) {
  require(o.block_size > 0, error_kind::invalid_argument, where, ": a block_size of 0");
  require(o.samples > 0, error_kind::invalid_argument, where, ": 0 samples");
  require(o.samples_per_step > 0, error_kind::invalid_argument, where, ": 0 samples_per_step");
  require(steps > 0, error_kind::invalid_argument, where, ": 0 steps");
}

/// Throws invalid_argument, naming the configuration, if one does not have its parameters yet.
inline void require_calibrated(const quantized_graph& g, const char* where) {
  g.for_each_config([&](config_id id) {
    const quantization_state state = g.configs[id].state();
    require(state != quantization_state::initial && state != quantization_state::passive_init,
            error_kind::invalid_argument, where, ": ", g.configs[id].name, " is ", ppq::name(state),
            state == quantization_state::initial ? ": the network is not calibrated yet"
                                                 : ": passive parameters are not quantized yet");
  });
}

// ------------------------------------------------------------------------------- parts of models

/// The part of a model that makes one of its values.
[[nodiscard]] inline model upstream_of(const model& m, const std::string& value) {
  model part = m;
  part.outputs = {{value, element_type::f32, false, {}, {}}};
  remove_unused(part);
  return part;
}

/// The part of a model that makes the value `to` from the value `from`.
[[nodiscard]] inline model part_between(const model& m, const std::string& from,
                                        const std::string& to) {
  model part = m;
  part.inputs = {{from, element_type::f32, false, {}, {}}};
  part.outputs = {{to, element_type::f32, false, {}, {}}};
  part.values.clear();
  std::set<std::string> needed{to};
  std::vector<node> nodes;
  for (std::size_t i = part.nodes.size(); i-- > 0;) {
    node& n = part.nodes[i];
    if (std::any_of(n.outputs.begin(), n.outputs.end(),
                    [&](const std::string& out) { return needed.count(out) != 0; })) {
      needed.insert(n.inputs.begin(), n.inputs.end());
      needed.erase(from);
      nodes.push_back(std::move(n));
    }
  }
  std::reverse(nodes.begin(), nodes.end());
  part.nodes = std::move(nodes);
  remove_unused(part);
  return part;
}

/// Whether two models have the same nodes and constants, apart from the biases of layers, which
/// bias correction changes.
[[nodiscard]] inline bool same_but_biases(const model& a, const model& b) {
  if (a.nodes.size() != b.nodes.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    const node& x = a.nodes[i];
    const node& y = b.nodes[i];
    const bool layer = is_compute_operator(x);
    const std::size_t slots = layer ? bias_slot : (std::max)(x.inputs.size(), y.inputs.size());
    if (x.op_type != y.op_type || x.domain != y.domain || x.outputs != y.outputs ||
        x.inputs.size() < (std::min)(slots, y.inputs.size()) ||
        y.inputs.size() < (std::min)(slots, x.inputs.size())) {
      return false;
    }
    for (std::size_t slot = 0; slot < slots && slot < x.inputs.size(); ++slot) {
      const tensor* t = a.initializer(x.inputs[slot]);
      const tensor* u = b.initializer(y.inputs[slot]);
      const bool same =
          t == nullptr || u == nullptr
              ? t == u && x.inputs[slot] == y.inputs[slot]
              : t->raw() == u->raw() || (t->type() == u->type() && t->dims() == u->dims() &&
                                         std::equal(t->raw(), t->raw() + t->bytes(), u->raw()));
      if (!same) {
        return false;
      }
    }
  }
  return true;
}

/// The network whose values are the targets of blocks: quantized_graph::float_model, or, if a pass
/// has changed more of the network than its biases (as equalization does), `network` in float.
[[nodiscard]] inline model float_reference(const quantized_graph& g) {
  model m = g.network;
  for (const auto& [name, values] : g.float_constants) {
    const auto found = m.initializers.find(name);
    if (found != m.initializers.end()) {
      found->second = values;
    }
  }
  return same_but_biases(m, g.float_model) ? g.float_model : m;
}

// ------------------------------------------------------------------------------ blocks of a graph

/// A block as the exported model has it.
struct exported_block {
  qdq_model whole;
  std::string entry;  // the value that the block reads from the network before it
  std::string exit;   // the block's output, after its pair if there is one
  model part;         // the nodes that make `exit` from `entry`
};

[[nodiscard]] inline exported_block export_block(const quantized_graph& g, const network_block& b) {
  exported_block e;
  e.whole = to_qdq_model(g);
  const auto made = e.whole.quantized.find(b.entry);
  const auto computed = e.whole.computed.find(b.entry);
  // A pair where the value is made belongs to the block before; pairs of users belong to this
  // block.
  if (made != e.whole.quantized.end() && e.whole.pairs.at(made->second).at_producer) {
    e.entry = made->second;
  } else {
    e.entry = computed != e.whole.computed.end() ? computed->second : b.entry;
  }
  e.exit = quantized_names(e.whole, {b.exit}).at(b.exit);
  e.part = part_between(e.whole.network, e.entry, e.exit);
  return e;
}

/// The inputs of a block, and the outputs that it is to make of them.
struct block_samples {
  std::string entry;
  std::vector<tensor> inputs;
  std::vector<tensor> targets;
};

[[nodiscard]] inline block_samples collect_samples(const exported_block& e, const std::string& exit,
                                                   const model& reference,
                                                   const std::vector<run_inputs>& network_inputs,
                                                   const executor_options& options) {
  const auto values_of = [&](const model& m, const std::string& value) {
    executor run(simulation(upstream_of(m, value)), options);
    std::vector<tensor> values;
    for (const run_inputs& inputs : network_inputs) {
      values.push_back(run.run(inputs)[0]);
    }
    return values;
  };
  return {e.entry, values_of(e.whole.network, e.entry), values_of(reference, exit)};
}

/// The mean squared error over its samples of a block as it is exported.
[[nodiscard]] inline double block_error(const exported_block& e, const block_samples& samples,
                                        const executor_options& options) {
  executor run(simulation(e.part), options);
  double sum = 0.0;
  for (std::size_t i = 0; i < samples.inputs.size(); ++i) {
    const std::vector<tensor> found = run.run({{samples.entry, samples.inputs[i]}});
    sum += measure_error(found[0], samples.targets[i], error_method::mse);
  }
  return sum / static_cast<double>(samples.inputs.size());
}

// ------------------------------------------------------------------------------- blocks to train

/// A constant of the network that is learned.
struct learned_constant {
  std::string name;        // in quantized_graph::network
  std::string graph_name;  // in the gradient graph
  config_id id = no_config;
};

/// A block as a gradient graph computes it: pairs are FakeQuantize nodes, and biases are float.
/// Weights that are learned are float constants; quantize_weights() sends them through FakeQuantize
/// as well.
class training_block {
 public:
  training_block(const quantized_graph& g, const network_block& b, const exported_block& e)
      : g_(g), block_(b), exported_(e), network_(e.part), names_(network_), links_(g.network) {
    find_constants();
    simulate_pairs();
    remove_unused(network_);
    fold_constants(network_, true);
    remove_unused(network_);
  }

  [[nodiscard]] const model& network() const noexcept { return network_; }
  [[nodiscard]] const std::vector<learned_constant>& weights() const noexcept { return weights_; }
  [[nodiscard]] const std::vector<learned_constant>& biases() const noexcept { return biases_; }

  /// Puts a FakeQuantize after each weight that is learned.
  void quantize_weights() {
    std::vector<node> quantizers;
    for (learned_constant& w : weights_) {
      const std::string raw = names_.take(w.graph_name + "_float");
      network_.initializers[raw] = network_.initializers.at(w.graph_name);
      network_.initializers.erase(w.graph_name);
      quantizers.push_back(make_quantizer(raw, w.graph_name, w.id));
      w.graph_name = raw;
    }
    network_.nodes.insert(network_.nodes.begin(), quantizers.begin(), quantizers.end());
  }

  /// The scales that may be trained with this block: only FakeQuantize nodes of the block read
  /// them, and the rest of the network sees them through the block's output only. Returns their
  /// names in the gradient graph by configuration. To be called after quantize_weights().
  [[nodiscard]] std::map<config_id, std::string> own_scales() const {
    std::map<config_id, std::string> own;
    for (const auto& [id, name] : scales_) {
      const quantizer_settings& s = g_.configs[id];
      if (g_.configs[id].state() == quantization_state::activated &&
          s.policy.has(quantization_property::linear) &&
          !s.policy.has(quantization_property::power_of_2) &&
          !s.policy.has(quantization_property::dynamic) && is_own(id)) {
        own[id] = name;
      }
    }
    return own;
  }

 private:
  [[nodiscard]] bool is_sole_use(const std::string& constant) const {
    return links_.consumers(constant).size() == 1 && !g_.network.is_output(constant);
  }
  [[nodiscard]] static bool has_fake_grid(grid levels) noexcept {
    return levels.qmin >= -32768 && levels.qmax <= 65535;
  }

  /// The name of the result of a constant's DequantizeLinear in the exported model, or the name of
  /// the constant if it has none.
  [[nodiscard]] std::string exported_name(const std::string& constant) const {
    for (const auto& [result, value] : exported_.whole.pairs) {
      if (value.is_constant && value.source == constant) {
        return result;
      }
    }
    return constant;
  }

  void find_constants() {
    for (const std::size_t i : block_.nodes) {
      const node& n = g_.network.nodes[i];
      if (!is_compute_operator(n) || !g_.operators[i].is_quantized()) {
        continue;
      }
      const std::string& weights = n.inputs[weight_slot];
      const config_id id = g_.operators[i].inputs[weight_slot];
      if (g_.network.initializer(weights) == nullptr || id == no_config || !is_sole_use(weights) ||
          g_.configs[id].state() != quantization_state::activated || g_.configs.source(id) != id ||
          !has_fake_grid(g_.configs[id].levels)) {
        continue;
      }
      const std::string exported = exported_name(weights);
      if (exported == weights) {
        continue;  // INTERNAL: it is not quantized in the exported model
      }
      weights_.push_back({weights, exported, id});
      const tensor* bias = n.inputs.size() > bias_slot
                               ? graph::detail::float_constant(g_.network, n, bias_slot)
                               : nullptr;
      if (bias != nullptr && is_sole_use(n.inputs[bias_slot]) &&
          g_.float_constants.count(n.inputs[bias_slot]) == 0) {
        biases_.push_back({n.inputs[bias_slot], exported_name(n.inputs[bias_slot]),
                           g_.operators[i].inputs[bias_slot]});
      }
    }
  }

  [[nodiscard]] bool is_learned(const std::string& graph_name) const {
    const auto has = [&](const learned_constant& c) { return c.graph_name == graph_name; };
    return std::any_of(weights_.begin(), weights_.end(), has) ||
           std::any_of(biases_.begin(), biases_.end(), has);
  }

  void simulate_pairs() {
    std::vector<node> nodes;
    for (const node& n : network_.nodes) {
      const auto pair = exported_.whole.pairs.find(n.outputs[0]);
      if (pair == exported_.whole.pairs.end() || pair->second.is_dynamic ||
          !n.is("DequantizeLinear")) {
        nodes.push_back(n);
      } else if (!pair->second.is_constant) {
        nodes.push_back(make_quantizer(pair->second.source, n.outputs[0], pair->second.id));
      } else if (is_learned(n.outputs[0])) {
        network_.initializers[n.outputs[0]] = *g_.network.initializer(pair->second.source);
      } else {
        nodes.push_back(n);
      }
    }
    network_.nodes = std::move(nodes);
  }

  node make_quantizer(const std::string& from, const std::string& to, config_id id) {
    const config_id source = g_.configs.source(id);
    const quantizer_settings& s = g_.configs[id];
    if (scales_.count(source) == 0) {
      const tensor_parameters& p = g_.configs.parameters(id);
      const shape dims =
          p.scales.size() == 1 ? shape{} : shape{static_cast<std::int64_t>(p.scales.size())};
      const std::string scale = names_.take(to + "_learned_scale");
      network_.initializers[scale] =
          tensor::of<float>(element_type::f32, dims, std::span<const float>(p.scales));
      scales_[source] = scale;
      const std::string zero_point = names_.take(to + "_learned_zero_point");
      network_.initializers[zero_point] = tensor::of<std::int32_t>(
          element_type::s32, dims, std::span<const std::int32_t>(p.zero_points));
      zero_points_[source] = zero_point;
    }
    simulated_.insert(id);
    return make_fake_quantize(from, scales_.at(source), zero_points_.at(source), to, s.levels,
                              static_cast<std::int64_t>(s.channel_axis.value_or(0)));
  }

  [[nodiscard]] bool is_own(config_id source) const {
    std::set<std::string> inside;
    for (const node& n : exported_.part.nodes) {
      inside.insert(n.outputs.begin(), n.outputs.end());
    }
    const links all(exported_.whole.network);
    for (const auto& [result, value] : exported_.whole.pairs) {
      if (g_.configs.source(value.id) != source || all.producer(result) == links::none) {
        continue;
      }
      if (inside.count(result) == 0 || simulated_.count(value.id) == 0) {
        return false;
      }
      for (const std::size_t user : all.consumers(result)) {
        const std::vector<std::string>& outputs = exported_.whole.network.nodes[user].outputs;
        if (result != exported_.exit && inside.count(outputs[0]) == 0) {
          return false;
        }
      }
    }
    return true;
  }

  const quantized_graph& g_;
  const network_block& block_;
  const exported_block& exported_;
  model network_;
  unused_names names_;
  links links_;
  std::vector<learned_constant> weights_;
  std::vector<learned_constant> biases_;
  std::map<config_id, std::string> scales_;
  std::map<config_id, std::string> zero_points_;
  std::set<config_id> simulated_;  // configurations that FakeQuantize nodes stand for
};

/// How often a block is measured while it is trained.
inline constexpr std::size_t measurements = 8;

[[nodiscard]] inline bool is_measured_after(std::size_t step, std::size_t steps) noexcept {
  return step + 1 == steps || (step + 1) % ((steps + measurements - 1) / measurements) == 0;
}

/// Runs a block forwards and backwards on its samples, which are taken in turn.
class block_trainer {
 public:
  /// `unit` is the number that losses are divided by.
  block_trainer(const training_block& block, const exported_block& e, const block_samples& samples,
                double unit, std::size_t samples_per_step, const executor_options& options)
      : graph_(block.network(), options),
        exit_(e.exit),
        samples_(samples),
        unit_(unit),
        samples_per_step_(samples_per_step) {}

  gradient_graph& graph() noexcept { return graph_; }

  /// The gradients of mean squared error / unit, averaged over the samples of one step.
  gradient_graph::gradient_map step(const std::set<std::string>& wanted) {
    gradient_graph::gradient_map sums;
    for (std::size_t k = 0; k < samples_per_step_; ++k) {
      graph_.forward({{samples_.entry, samples_.inputs[next_]}});
      const auto found = graph_.value(exit_).data<float>();
      const auto target = samples_.targets[next_].data<float>();
      next_ = (next_ + 1) % samples_.inputs.size();
      const double factor = 2.0 / (static_cast<double>(found.size()) *
                                   static_cast<double>(samples_per_step_) * unit_);
      std::vector<double> seed(found.size());
      for (std::size_t i = 0; i < seed.size(); ++i) {
        seed[i] = (static_cast<double>(found[i]) - static_cast<double>(target[i])) * factor;
      }
      for (auto& [name, gradient] : graph_.backward({{exit_, std::move(seed)}}, wanted)) {
        std::vector<double>& sum = sums[name];
        sum.resize(gradient.size());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          sum[i] += gradient[i];
        }
      }
    }
    return sums;
  }

 private:
  gradient_graph graph_;
  std::string exit_;
  const block_samples& samples_;
  double unit_;
  std::size_t samples_per_step_;
  std::size_t next_ = 0;
};

[[nodiscard]] inline tensor to_floats(std::span<const double> values, const shape& dims) {
  tensor t = tensor::allocate(element_type::f32, dims);
  const auto to = t.mutable_data<float>();
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(values[i]);
  }
  return t;
}

/// Gives a weight other values. Its first values stay in float_constants.
inline void replace_weights(quantized_graph& g, const std::string& name, tensor values) {
  tensor& held = g.network.initializers.at(name);
  g.float_constants.try_emplace(name, held);
  held = std::move(values);
}

/// Calls learn(graph, training block, exported block, samples, error, offer) for each block that
/// can be trained. `learn` hands graphs to offer(graph), which measures the block of that graph as
/// it is exported. The best graph takes the place of `g` if its error is less than the error of
/// `g`.
template <class Learn>
void reconstruct_blocks(quantized_graph& g, pass_context& context,
                        const block_reconstruction_options& options, const char* where,
                        const Learn& learn) {
  require_calibrated(g, where);
  const std::vector<run_inputs> inputs = take_samples(context.samples, options.samples);
  const model reference = float_reference(g);
  const auto blocks =
      find_blocks(g, options.block_size, [](const node& n) { return find_gradient(n) != nullptr; });
  for (const network_block& b : blocks) {
    block_report report;
    report.entry = b.entry;
    report.exit = b.exit;
    for (const std::size_t i : b.nodes) {
      report.operators.push_back(g.network.nodes[i].label());
    }
    const exported_block e = export_block(g, b);
    const training_block block(g, b, e);
    const std::vector<std::string> obstacles = nodes_without_gradient(block.network());
    if (!obstacles.empty()) {
      report.outcome = block_outcome::no_gradient;
      report.obstacle = obstacles[0];
    } else if (block.weights().empty()) {
      report.outcome = block_outcome::nothing_to_learn;
    } else {
      const block_samples samples = collect_samples(e, b.exit, reference, inputs, context.executor);
      report.error_before = block_error(e, samples, context.executor);
      report.error_after = report.error_before;
      std::optional<quantized_graph> best;
      const auto offer = [&](quantized_graph learned) {
        const double error = block_error(export_block(learned, b), samples, context.executor);
        if (error < report.error_after) {
          report.error_after = error;
          best = std::move(learned);
        }
      };
      if (report.error_before > 0.0 && std::isfinite(report.error_before)) {
        learn(g, block, e, samples, report.error_before, offer);
      }
      if (best) {
        g = std::move(*best);
        report.outcome = block_outcome::improved;
      }
    }
    if (options.on_block) {
      options.on_block(report);
    }
  }
}

}  // namespace detail

}  // namespace ppq
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_PPQ_BLOCK_RECONSTRUCTION_HPP
