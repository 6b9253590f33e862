// SPDX-License-Identifier: BSD-3-Clause
// Post-training quantization with the interface and the numbers of NNCF's nncf.quantize:
//
//   [SmoothQuant, if the model is a transformer] -> [channel alignment, if enabled] -> placement of
//   quantizers, ranges -> bias correction
//
//   placement    place_quantizers(): the operators of the file as they are; nothing is folded
//   activations  8 bits, one scale for each tensor, for each channel before a depthwise
//                convolution; int8 if the range begins below zero, else uint8. The range is the
//                mean of the samples' smallest values to the mean of their largest ones; per
//                channel it is that of all values
//   weights      int8, -127..127, symmetric, one scale for each output channel
//   Concat       what goes into a Concat before a layer shares the union of the ranges
//
// Models of an opset below 13 get one scale for each tensor, since their operators have no others.
//
// The modes fp8_e4m3 and fp8_e5m2 have floats of 8 bits instead of integers, for the same tensors:
// symmetric, without an overflow fix, with the scales of detail::float8_parameters_of(). Their
// models have opset 19 or later and, where that is an operator, all three operands of Attention
// quantized.
//
// What differs from NNCF: constants that are computed from constants are computed once; sums and
// convolutions round in another order than those of ONNX Runtime, so that ranges of values between
// layers differ by rounding (those of inputs and weights are equal); means are summed in double.
//
// Passes over the samples: one pass collects the statistics of ranges and of fast bias correction.
// SmoothQuant and channel alignment take one more pass each, if the model has values for them to
// look at. Full bias correction takes one pass, and another one for each layer.
//
// Source: NNCF 3.4, quantization/algorithms; results are compared with those of its package in
// tests/graph/nncf_peer.py.
#ifndef DETENT_GRAPH_NNCF_QUANTIZE_HPP
#define DETENT_GRAPH_NNCF_QUANTIZE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/bias_correction.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/ignored_nodes.hpp>
#include <detent/graph/nncf/onnxruntime_fusions.hpp>
#include <detent/graph/nncf/placement.hpp>
#include <detent/graph/nncf/quantize_options.hpp>
#include <detent/graph/nncf/quantized_model.hpp>
#include <detent/graph/nncf/quantizer_parameters.hpp>
#include <detent/graph/nncf/range_estimator.hpp>
#include <detent/graph/nncf/smooth_quant.hpp>
#include <detent/graph/nncf/statistics.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/ignored_scope.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/graph/rewrite/channel_alignment.hpp>
#include <detent/graph/rewrite/channel_statistics.hpp>
#include <detent/graph/rewrite/opset.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/observer.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// Post-training quantization of models with the interface and the numbers of NNCF.
namespace graph::nncf {

/// A model that nncf::quantize() has quantized.
struct quantization {
  /// The float model of the quantizers: with SmoothQuant, channel alignment and corrected biases.
  model float_model;
  std::vector<placed_quantizer> quantizers;      ///< The quantizers of `float_model`.
  std::vector<quantizer_parameters> parameters;  ///< Their numbers, in the same order.
  std::vector<bias_shift> bias_shifts;           ///< What bias correction found, by layers.
  /// For each bias that was corrected, where it is and the name of the constant that was there
  /// before, which `float_model` still has.
  std::map<node_input, std::string> biases_before;
  bool quantize_outputs = false;  ///< Whether outputs of the model are quantized.
  /// Labels of ignored nodes whose weights are quantized nonetheless, because another layer has the
  /// same: as in NNCF, a constant is stored once.
  std::vector<std::string> ignored_in_vain;
  model result;  ///< The model, with QuantizeLinear/DequantizeLinear pairs.
};

namespace detail {

/// The Conv with one group and quantized weights that inputs of the model reach without passing
/// another one.
[[nodiscard]] inline std::set<std::size_t> first_convolutions(
    const model& m, const std::vector<placed_quantizer>& quantizers) {
  const links l(m);
  std::set<std::size_t> layers;
  for (const placed_quantizer& q : quantizers) {
    if (q.weights_of && operator_kind(m, l, m.nodes[q.weights_of->node]) == "Conv") {
      layers.insert(q.weights_of->node);
    }
  }
  std::set<std::string> reached;
  for (const value_info& v : m.inputs) {
    reached.insert(v.name);
  }
  std::set<std::size_t> first;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    const node& n = m.nodes[i];
    std::set<std::string> used = captured_values(n);
    used.insert(n.inputs.begin(), n.inputs.end());
    if (std::none_of(used.begin(), used.end(),
                     [&](const std::string& name) { return reached.count(name) != 0; })) {
      continue;
    }
    if (layers.count(i) != 0) {
      first.insert(i);
    } else {
      reached.insert(n.outputs.begin(), n.outputs.end());
      reached.erase("");  // optional outputs that are absent
    }
  }
  return first;
}

/// What statistics have to be collected for. Options that only say what is made of ranges and means
/// are not among it.
[[nodiscard]] inline graph::detail::state_origin origin_of(const model& m,
                                                           const quantize_options& o) {
  const auto text_of = [](const std::optional<range_estimator>& estimator) {
    if (!estimator) {
      return std::string("the default");
    }
    fingerprint f;
    for (const detent::nncf::end_options& end : {estimator->ends.lower, estimator->ends.upper}) {
      f.add(static_cast<std::uint8_t>(end.of_sample));
      f.add(static_cast<std::uint8_t>(end.of_samples));
      f.add(end.outlier_probability);
    }
    f.add(static_cast<std::uint8_t>(estimator->ends.use_abs_max));
    f.add(static_cast<std::uint8_t>(estimator->histogram));
    f.add(estimator->clipping.value_or(0.0F));
    return f.text();
  };
  const bool smooths = o.model_type == model_type::transformer;
  const auto alpha = [&](float a) {
    return smooths && a >= 0.0F ? graph::detail::shortest_text(a) : std::string("none");
  };
  graph::detail::state_origin origin;
  origin.model = graph::detail::fingerprint_of(m);
  origin.settings = {
      {"release of detent", graph::detail::release_text()},
      {"approach", "nncf"},
      {"fingerprint of the range estimator of activations", text_of(o.activations_range_estimator)},
      {"batchwise statistics", o.batchwise_statistics ? "yes" : "no"},
      {"SmoothQuant alpha of convolutions", alpha(o.smooth_quant_alphas.convolution)},
      {"SmoothQuant alpha of matrix products", alpha(o.smooth_quant_alphas.matmul)}};
  return origin;
}

class quantizer {
 public:
  quantizer(const dataset& samples, const quantize_options& options)
      : samples_(&samples), options_(options) {
    require_options(options);
  }
  /// A quantizer that looks at no samples.
  quantizer(const statistics& seen, const quantize_options& options)
      : seen_(&seen), options_(options) {
    require_options(options);
    require(options.disable_bias_correction || options.fast_bias_correction,
            error_kind::unsupported,
            "full bias correction runs the quantized network on samples, which statistics do not "
            "hold; there is the fast one");
  }

  /// What the samples show of a model.
  [[nodiscard]] collected_statistics collect(model m) {
    collected_statistics found;
    found.origin = origin_of(m, options_);
    const model float_model = prepared(std::move(m), &found.smoothed);
    const std::vector<placed_quantizer> quantizers = placed_in_any_mode(float_model);
    const bool has_means = !options_.disable_bias_correction && options_.fast_bias_correction;
    if (has_means) {
      found.means = biased_means(float_model, biased_layers(float_model, quantizers, true));
    }
    std::vector<observed_value> observed;
    std::vector<range_key> keys;
    for (const placed_quantizer& q : quantizers) {
      for (const bool symmetric : {true, false}) {
        range_key key{q.value, symmetric, q.config.per_channel};
        if (!q.weights_of) {
          quantizer_config config = q.config;
          config.symmetric = symmetric;
          observed.push_back({q.value, any_observer(observer_of(config))});
          keys.push_back(std::move(key));
        }
      }
    }
    const calibration_source source = samples_->samples(options_.subset_size);
    calibrate(
        float_model, observed,
        [&] {
          auto next = source();
          found.progress.samples += next ? 1U : 0U;
          return next;
        },
        options_.executor,
        [&](const std::string& name, const tensor& value) { found.means.add(name, value); });
    for (std::size_t k = 0; k < keys.size(); ++k) {
      found.ranges.emplace(keys[k], ranges_of(observed[k]));
    }
    return found;
  }

  [[nodiscard]] quantization run(model m) {
    if (seen_ != nullptr) {
      origin_of(m, options_).require_same(seen_->content_.origin, seen_->name_);
    }
    quantization q;
    q.quantize_outputs = options_.quantize_outputs;
    q.float_model = prepared(std::move(m));
    q.quantizers = place_quantizers(q.float_model, placement_of(q.float_model));
    const std::vector<biased_layer> layers =
        options_.disable_bias_correction
            ? std::vector<biased_layer>()
            : biased_layers(q.float_model, q.quantizers, options_.fast_bias_correction);
    biased_means means(q.float_model, layers);
    q.parameters =
        parameters(q, options_.fast_bias_correction && !layers.empty() ? &means : nullptr);
    if (!layers.empty()) {
      correct(q, layers, means);
    }
    q.result =
        write_quantized(q.float_model, q.quantizers, q.parameters, options_.quantize_outputs);
    q.ignored_in_vain = ignored_in_vain(q);
    return q;
  }

 private:
  /// The labels of ignored nodes that take quantized weights.
  [[nodiscard]] std::vector<std::string> ignored_in_vain(const quantization& q) const {
    const links l(q.float_model);
    std::set<std::size_t> found;
    for (const placed_quantizer& of : q.quantizers) {
      const std::span<const std::size_t> users = l.consumers(of.value);
      for (const std::size_t i : users.first(of.weights_of ? users.size() : 0)) {
        if (ignored_.count(q.float_model.nodes[i].first_output()) != 0) {
          found.insert(i);
        }
      }
    }
    std::vector<std::string> labels;
    for (const std::size_t i : found) {
      labels.push_back(q.float_model.nodes[i].label());
    }
    return labels;
  }

  /// The quantizers of all presets and modes.
  [[nodiscard]] std::vector<placed_quantizer> placed_in_any_mode(const model& m) const {
    std::vector<placed_quantizer> all;
    std::set<std::tuple<std::string, bool, bool>> seen;  // value, per channel, of weights
    const bool has_attention = std::any_of(m.nodes.begin(), m.nodes.end(),
                                           [](const node& n) { return n.is("Attention"); });
    placement_options options = placement_of(m);
    for (const bool symmetric : {true, false}) {
      for (const bool attention_values : {true, false}) {
        if (attention_values && !has_attention) {
          continue;
        }
        options.symmetric_activations = symmetric;
        options.attention_values = attention_values;
        for (placed_quantizer& q : place_quantizers(m, options)) {
          if (seen.emplace(q.value, q.config.per_channel, q.weights_of.has_value()).second) {
            all.push_back(std::move(q));
          }
        }
      }
    }
    return all;
  }

  /// Does fold_constants(), also for outputs of the model that other nodes take: weights must be
  /// constants. Such an output becomes a constant of its own beside the one that nodes take.
  static void fold_all_constants(model& m) {
    const links l(m);
    graph::detail::graph_writer writer(m);
    std::set<std::string> made_of_constants;
    std::vector<node> apart;
    const auto is_constant = [&](const std::string& value) {
      return value.empty() || m.initializer(value) != nullptr ||
             made_of_constants.count(value) != 0;
    };
    for (node& n : m.nodes) {
      if (has_bodies(n) || !std::all_of(n.inputs.begin(), n.inputs.end(), is_constant)) {
        continue;
      }
      for (std::string& output : n.outputs) {
        const auto users = l.consumers(output);
        const bool is_taken = std::all_of(users.begin(), users.end(), [&](std::size_t user) {
          const std::vector<std::string>& inputs = m.nodes[user].inputs;
          return std::find(inputs.begin(), inputs.end(), output) != inputs.end() &&
                 !has_bodies(m.nodes[user]);  // which may take it in a sub-graph as well
        });
        if (l.is_output(output) && !users.empty() && is_taken) {
          const std::string name = writer.fresh(output + "_constant");
          for (const std::size_t user : users) {
            std::vector<std::string>& inputs = m.nodes[user].inputs;
            std::replace(inputs.begin(), inputs.end(), output, name);
          }
          apart.push_back(writer.make_node("Identity", output + "_Identity", {name}, output));
          output = name;
        }
        made_of_constants.insert(output);
      }
    }
    fold_constants(m, false);
    for (node& n : apart) {
      if (const tensor* const value = m.initializer(n.inputs[0])) {
        m.initializers[n.outputs[0]] = *value;
      } else {
        m.nodes.push_back(std::move(n));
      }
    }
  }

  /// The float model that quantizers are placed in, after SmoothQuant and channel alignment.
  /// With `smoothed`, what SmoothQuant has found in the samples goes there.
  [[nodiscard]] model prepared(model m, std::vector<layer_magnitudes>* smoothed = nullptr) {
    graph::detail::require_not_quantized(m);
    require_known_opset(m);
    require_arity(m);
    const bool is_int8 = options_.mode == quantization_mode::int8;
    has_channels_ = !is_int8 || m.opset() >= 13;
    ignored_ = ignored_results(m, options_.ignored_scope, options_.ignored_subgraphs);
    fold_all_constants(m);
    remove_unused(m);
    upgrade_opset(m, is_int8 ? 13 : 19);
    if (options_.model_type == model_type::transformer) {
      smoother smoothing(m, options_.smooth_quant_alphas);
      if (seen_ != nullptr) {
        graph::detail::with_context(seen_->name_, [&] { smoothing.run(seen_->content_.smoothed); });
      } else {
        smoothing.run(samples_->samples(options_.subset_size), options_.executor);
      }
      if (smoothed != nullptr) {
        *smoothed = smoothing.seen();
      }
    }
    if (!options_.disable_channel_alignment) {
      require(seen_ == nullptr && smoothed == nullptr, error_kind::unsupported,
              "channel alignment looks at samples, which statistics do not hold");
      align(m);
    }
    return m;
  }

  void align(model& m) const {
    const std::map<std::string, std::size_t> axes = alignment_values(m);
    if (!axes.empty()) {
      const channel_statistics seen =
          observe_channels(m, samples_->samples(options_.subset_size), axes,
                           channel_alignment_observer(), options_.executor);
      static_cast<void>(align_channels(m, channel_ranges(seen)));
    }
  }

  [[nodiscard]] placement_options placement_of(const model& m) const {
    placement_options p;
    p.symmetric_activations = is_symmetric(options_);
    p.transformer = options_.model_type == model_type::transformer;
    p.quantize_outputs = options_.quantize_outputs;
    p.attention_values = options_.mode != quantization_mode::int8;
    p.activations = options_.activations_quantization_params;
    p.weights = options_.weights_quantization_params;
    p.rule = options_.quantizer_propagation_rule;
    if (!has_channels_) {
      p.activations.per_channel = false;
      p.weights.per_channel = false;
    }
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      if (ignored_.count(m.nodes[i].first_output()) != 0) {
        p.ignored.insert(i);
      }
    }
    return p;
  }

  /// How the range of the activation of a quantizer is found.
  [[nodiscard]] activation_observer observer_of(const quantizer_config& config) const {
    return {options_.activations_range_estimator.value_or(mean_min_max),
            options_.activations_range_estimator && !options_.activations_range_estimator->histogram
                ? *options_.activations_range_estimator
                : min_max,
            config, options_.batchwise_statistics};
  }

  /// The ranges that an activation_observer has found.
  [[nodiscard]] static std::vector<value_range> ranges_of(const observed_value& v) {
    return of_tensor(v.name, [&] { return v.observer.target<activation_observer>()->ranges(); });
  }

  /// The ranges of activations, at the places of their quantizers, from one pass over the samples.
  /// The pass shows all values to `means` as well, unless that is null.
  [[nodiscard]] std::vector<std::vector<value_range>> ranges_in_samples(const quantization& q,
                                                                        biased_means* means) const {
    std::vector<observed_value> observed;
    std::vector<std::size_t> numbers;
    for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
      if (!q.quantizers[k].weights_of) {
        observed.push_back(
            {q.quantizers[k].value, any_observer(observer_of(q.quantizers[k].config))});
        numbers.push_back(k);
      }
    }
    executor::value_observer also;
    if (means != nullptr) {
      also = [means](const std::string& name, const tensor& value) { means->add(name, value); };
    }
    if (!observed.empty() || means != nullptr) {
      calibrate(q.float_model, observed, samples_->samples(options_.subset_size), options_.executor,
                also);
    }
    std::vector<std::vector<value_range>> ranges(q.quantizers.size());
    for (std::size_t k = 0; k < observed.size(); ++k) {
      ranges[numbers[k]] = ranges_of(observed[k]);
    }
    return ranges;
  }

  /// The same from statistics.
  [[nodiscard]] std::vector<std::vector<value_range>> ranges_in_statistics(
      const quantization& q, biased_means* means) const {
    const collected_statistics& content = seen_->content_;
    std::vector<std::vector<value_range>> ranges(q.quantizers.size());
    for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
      const placed_quantizer& of = q.quantizers[k];
      if (!of.weights_of) {
        const auto found =
            content.ranges.find({of.value, of.config.symmetric, of.config.per_channel});
        require(
            found != content.ranges.end(), error_kind::invalid_argument, seen_->name_,
            ": there is no range of '", of.value, "'",
            of.config.per_channel ? " for each channel" : "",
            "; it was collected for other places of quantizers, as if other nodes were ignored");
        ranges[k] = found->second;
      }
    }
    if (means != nullptr) {
      graph::detail::with_context(seen_->name_, [&] { means->take(content.means); });
    }
    return ranges;
  }

  /// The parameters of all quantizers. All values are shown to `means`, unless that is null.
  [[nodiscard]] std::vector<quantizer_parameters> parameters(const quantization& q,
                                                             biased_means* means) const {
    std::vector<std::vector<value_range>> ranges =
        seen_ != nullptr ? ranges_in_statistics(q, means) : ranges_in_samples(q, means);
    for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
      if (q.quantizers[k].weights_of) {
        ranges[k] = ranges_of_weights(q.float_model, q.quantizers[k]);
      }
    }
    unite(q.quantizers, ranges);
    return parameters_of_ranges(q, ranges);
  }

  [[nodiscard]] std::vector<value_range> ranges_of_weights(const model& m,
                                                           const placed_quantizer& q) const {
    const tensor& weights = m.initializers.at(q.value);
    const std::size_t axis =
        weight_axis(m.nodes[q.weights_of->node], q.weights_of->input, weights.rank());
    return of_tensor(q.value, [&] {
      return weight_ranges(weights, axis, q.config, options_.weights_range_estimator,
                           options_.executor.parallel);
    });
  }

  /// Gives the quantizers of each group the union of their ranges.
  static void unite(const std::vector<placed_quantizer>& quantizers,
                    std::vector<std::vector<value_range>>& ranges) {
    std::map<std::size_t, value_range> united;
    for (std::size_t k = 0; k < quantizers.size(); ++k) {
      for (const value_range& r : ranges[k]) {
        if (quantizers[k].group) {
          const auto [found, added] = united.emplace(*quantizers[k].group, r);
          found->second = {(std::min)(found->second.lower, r.lower),
                           (std::max)(found->second.upper, r.upper)};
        }
      }
    }
    for (std::size_t k = 0; k < quantizers.size(); ++k) {
      if (quantizers[k].group) {
        ranges[k] = {united.at(*quantizers[k].group)};
      }
    }
  }

  [[nodiscard]] std::vector<quantizer_parameters> parameters_of_ranges(
      const quantization& q, std::vector<std::vector<value_range>>& ranges) const {
    const std::set<std::size_t> first = first_convolutions(q.float_model, q.quantizers);
    const links l(q.float_model);
    const element_type type = float8_type(options_.mode);
    const overflow_fix fix = type != element_type::undefined
                                 ? overflow_fix::none
                                 : options_.overflow_fix.value_or(overflow_fix::first_layer);
    std::vector<quantizer_parameters> all;
    for (std::size_t k = 0; k < q.quantizers.size(); ++k) {
      const placed_quantizer& of = q.quantizers[k];
      bool half = false;
      std::size_t axis = 1;
      if (of.weights_of) {
        const node& n = q.float_model.nodes[of.weights_of->node];
        half = fix == overflow_fix::enable
                   ? is_dense_layer(operator_kind(q.float_model, l, n))
                   : fix == overflow_fix::first_layer && first.count(of.weights_of->node) != 0;
        axis = weight_axis(n, of.weights_of->input, q.float_model.initializers.at(of.value).rank());
        if (type == element_type::undefined && is_no_matrix(q.float_model, of)) {
          ranges[k] = {united_range(ranges[k])};
        }
      }
      all.push_back(of_tensor(of.value, [&] {
        return type == element_type::undefined
                   ? parameters_of(std::move(ranges[k]), of.config, of.weights_of.has_value(), half)
                   : float8_parameters_of(std::move(ranges[k]), of.config, type);
      }));
      all.back().axis = axis;
      const auto adjust_type = [&] {
        if (!of.weights_of && options_.unsigned_activations) {
          make_unsigned(all.back());
        }
      };
      adjust_type();
      if (!of.weights_of && all.back().is_per_channel() && type == element_type::undefined &&
          stops_fused_operators(q.float_model, q.quantizers, l, of,
                                all.back().type == element_type::u8)) {
        all.back() = parameters_of({united_range(all.back().ranges)}, of.config, false, false);
        adjust_type();
      }
      if (!of.weights_of && options_.on_parameters) {
        options_.on_parameters(of.value, all.back());
      }
    }
    return all;
  }

  void correct(quantization& q, const std::vector<biased_layer>& layers,
               biased_means& means) const {
    const std::optional<double> threshold = options_.bias_correction_params.threshold;
    bias_corrector corrector(q.float_model, q.quantizers, q.parameters, layers, means, threshold,
                             options_.executor);
    if (options_.fast_bias_correction) {
      q.bias_shifts = corrector.run_fast();
      q.biases_before = corrector.before();
      return;
    }
    const calibration_source samples =
        samples_->samples((std::max)(options_.subset_size / 5, std::size_t{1}));
    executor runner(q.float_model, options_.executor);
    while (const auto inputs = samples()) {
      static_cast<void>(runner.run(
          *inputs, [&](const std::string& name, const tensor& value) { means.add(name, value); }));
    }
    q.bias_shifts = corrector.run_full(samples);
    q.biases_before = corrector.before();
  }

  const dataset* samples_ = nullptr;  // one of these two is there
  const statistics* seen_ = nullptr;
  const quantize_options& options_;
  bool has_channels_ = true;
  std::set<std::string> ignored_;  // first results of ignored nodes
};

}  // namespace detail

/// Quantizes a float model as NNCF's nncf.quantize does: SmoothQuant (for transformers), channel
/// alignment (if enabled), placement of quantizers, their ranges and scales, and bias correction.
/// The result holds the quantizers, their parameters, and the model with
/// QuantizeLinear/DequantizeLinear pairs.
///
/// The result is deterministic. Throws unsupported for an operator that cannot be run, naming it,
/// for a model that is quantized already or whose opset is below 7 or beyond newest_opset, for
/// target_device::cpu_spr, and for options that the mode does not have. Throws invalid_argument if
/// there are no samples, for a NaN or an infinity in a value, naming the value and, unless it is a
/// constant, the sample, for an entry of ignored_scope or ignored_subgraphs that matches nothing,
/// for options out of their domain, for restrictions that leave an operator no quantizer, and for a
/// range whose lower end is above its upper end, which some estimators can produce. Throws
/// overflow, naming the tensor or layer, if SmoothQuant or channel alignment makes a number that is
/// not a finite float, and shape_mismatch if their channels do not fit the weights.
[[nodiscard]] DETENT_GRAPH_DECL quantization quantize(model m, const dataset& samples,
                                                      const quantize_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization quantize(model m, const dataset& samples,
                                        const quantize_options& options) {
  return detail::quantizer(samples, options).run(std::move(m));
}
#endif

/// Runs a float model on samples and keeps what quantize() needs of them. The statistics are for
/// this model, this estimator of ranges, these alphas of SmoothQuant and these places of
/// quantizers. Other presets, modes, overflow fixes, estimators of weights and limits of bias
/// correction can be tried with the same statistics. They have means for fast bias correction
/// unless bias correction is disabled or the full one.
///
/// Throws unsupported for channel alignment, and what quantize() throws.
[[nodiscard]] DETENT_GRAPH_DECL statistics collect_statistics(model m, const dataset& samples,
                                                              const quantize_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL statistics collect_statistics(model m, const dataset& samples,
                                                const quantize_options& options) {
  statistics s;
  s.content_ = detail::quantizer(samples, options).collect(std::move(m));
  return s;
}
#endif

/// Quantizes a float model as quantize() with samples does, with the same result to the bit, but
/// takes what samples show from statistics; `subset_size` has no effect.
///
/// Throws invalid_argument, naming the difference, if the statistics are for another model,
/// release, estimator or SmoothQuant, if they lack the range of a value, or if they lack means for
/// bias correction; unsupported for full bias correction and channel alignment, which look at
/// samples; and what quantize() throws.
[[nodiscard]] DETENT_GRAPH_DECL quantization quantize(model m, const statistics& seen,
                                                      const quantize_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL quantization quantize(model m, const statistics& seen,
                                        const quantize_options& options) {
  return detail::quantizer(seen, options).run(std::move(m));
}
#endif

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZE_HPP
