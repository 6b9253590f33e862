// SPDX-License-Identifier: BSD-3-Clause
// Compression of weights with the interface and the numbers of NNCF's nncf.compress_weights:
// weights become integers of 4 or 8 bits, activations and arithmetic stay in float.
//
//   layers            weighted_layers.hpp: MatMul, Gemm, embeddings, convolutions with constants
//   int8 modes        all layers, one scale for each output channel
//   int4 modes        MatMul and Gemm but the last, a scale for each group of inputs; all else has
//                     the backup precision (int8_asym). With all_layers, embeddings and the last
//                     layer count, too
//   ratio below 1     layer_sensitivity.hpp: the least sensitive layers get 4 bits, the others the
//                     backup precision
//   awq               activation_aware_scaling.hpp, for layers with 4 bits
//   integers          weight_groups.hpp; with scale_estimation, scale_estimation.hpp for 4 bits
//   form              compressed_constants.hpp
// Weights that are not float32, or have one dimension, stay as they are. All scales, zero points
// and codes are equal to NNCF's to the last bit, for the same choice of layers; with awq or
// scale_estimation, scales agree to about six digits.
//
// Source: NNCF 3.4, quantization/algorithms/weight_compression; results are compared with those of
// its package in tests/graph/nncf_weights_peer.py.
#ifndef DETENT_GRAPH_NNCF_COMPRESS_WEIGHTS_HPP
#define DETENT_GRAPH_NNCF_COMPRESS_WEIGHTS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/activation_aware_scaling.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/compressed_constants.hpp>
#include <detent/graph/nncf/ignored_nodes.hpp>
#include <detent/graph/nncf/layer_input_samples.hpp>
#include <detent/graph/nncf/layer_sensitivity.hpp>
#include <detent/graph/nncf/scale_estimation.hpp>
#include <detent/graph/nncf/weight_groups.hpp>
#include <detent/graph/nncf/weighted_layers.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

[[nodiscard]] inline bool has_8_bits(compress_weights_mode mode) noexcept {
  return mode == compress_weights_mode::int8_asym || mode == compress_weights_mode::int8_sym;
}

/// Throws what compress_weights() throws for options that are out of their domain or do not go
/// together.
inline void check_options(const compress_weights_options& o) {
  constexpr auto invalid = error_kind::invalid_argument;
  require(o.mode <= compress_weights_mode::int4_sym, error_kind::unsupported, "mode ", name(o.mode),
          o.mode == compress_weights_mode::fp8_e4m3 ? ": float8 weights cannot be written"
                                                    : ": NNCF does not support it for ONNX models");
  require(!o.gptq, error_kind::unsupported,
          "gptq: NNCF does not support it for ONNX models; quantize_weights_only() has it");
  require(o.subset_size > 0, invalid, "subset_size 0: no samples");
  if (has_8_bits(o.mode)) {
    const auto refuse = [&](bool given, const char* option) {
      require(!given, invalid, "mode ", name(o.mode), " has no ", option,
              ": all layers have 8 bits and a scale for each channel");
    };
    refuse(o.ratio.value_or(1.0) != 1.0, "ratio");
    refuse(o.group_size.value_or(-1) != -1, "group_size");
    refuse(o.all_layers, "all_layers");
    refuse(o.dataset.has_value(), "dataset");
    refuse(o.sensitivity_metric.has_value(), "sensitivity_metric");
    refuse(o.backup_mode.has_value(), "backup_mode");
    refuse(o.awq, "awq");
    refuse(o.scale_estimation, "scale_estimation");
  }
  require(!o.scale_estimation || o.dataset, invalid, "scale_estimation needs a dataset");
  const awq_params& a = o.awq_params;
  require(a.subset_size > 0 && a.steps > 0, invalid, "awq: subset_size ", a.subset_size,
          " and steps ", a.steps, ", both are at least 1");
  require(a.percent_to_apply >= 0.0 && a.percent_to_apply <= 1.0, invalid, "awq: percent_to_apply ",
          a.percent_to_apply, ", expected 0..1");
  require(std::isfinite(a.alpha_min) && std::isfinite(a.alpha_max) && a.alpha_min <= a.alpha_max,
          invalid, "awq: alphas from ", a.alpha_min, " to ", a.alpha_max);
  const scale_estimation_params& s = o.scale_estimation_params;
  require(s.subset_size > 0, invalid, "scale_estimation: subset_size 0: no samples");
  require(s.scale_steps <= 20, invalid, "scale_estimation: scale_steps ", s.scale_steps,
          ", at most 20: each makes the scale 5 % smaller");
  require(!o.ratio || (*o.ratio > 0.0 && *o.ratio <= 1.0), invalid, "ratio ", o.ratio.value_or(0.0),
          ", expected a number above 0 and at most 1");
  require(!o.group_size || *o.group_size > 0 || *o.group_size == -1, invalid, "group size ",
          o.group_size.value_or(0), ", expected a positive number, or -1 for all inputs");
  require(
      o.dataset || o.sensitivity_metric.value_or(sensitivity_metric::weight_quantization_error) ==
                       sensitivity_metric::weight_quantization_error,
      invalid, "this sensitivity metric needs a dataset");
}

/// Holds the state of compress_weights().
class weight_compressor {
 public:
  weight_compressor(model m, const compress_weights_options& options)
      : m_(std::move(m)), options_(options) {
    check_options(options_);
    graph::detail::require_not_quantized(m_);
    require_known_opset(m_);
    require_arity(m_);
    require(m_.opset() >= 13, error_kind::unsupported, "the model has opset ", m_.opset(),
            "; scales for each channel need 13");
    name_constants();
    ignored_ = ignored_results(m_, options_.ignored_scope, options_.ignored_subgraphs);
    fold_weights();
    group_size_ = has_8_bits(options_.mode) || options_.group_size.value_or(default_group) == -1
                      ? 0
                      : static_cast<std::size_t>(options_.group_size.value_or(default_group));
    find_constants();
  }

  weight_compression run() {
    assign_primary();
    observe_inputs();
    if (is_mixed()) {
      choose_by_sensitivity();
    }
    require_divisible_groups();
    if (options_.awq) {
      scale_activations();
    }
    return write();
  }

 private:
  /// A constant, by the first layer that uses it.
  struct constant {
    weighted_layer layer;
    std::optional<storage_format> format;  // nothing: it stays in float
    std::optional<double> sensitivity;
    layer_input_samples inputs;  // if its scales are found by samples
  };

  [[nodiscard]] const tensor& weights_of(const constant& c) const {
    return *m_.initializer(c.layer.weights);
  }
  [[nodiscard]] std::span<const float> elements_of(const constant& c) const {
    return weights_of(c).data<float>();
  }
  /// The number of weights along the axis that groups divide.
  [[nodiscard]] std::size_t depth_of(const constant& c) const {
    require(c.layer.reduced_axis.has_value(), error_kind::unsupported,
            m_.nodes[c.layer.node].label(), ": groups in weights of shape ",
            shown(weights_of(c).dims()), ", which share scales along several axes");
    return static_cast<std::size_t>(weights_of(c).dim(*c.layer.reduced_axis));
  }

  /// Makes the results of Constant nodes constants of the model.
  void name_constants() {
    std::erase_if(m_.nodes, [&](const node& n) {
      const attribute* value = n.is("Constant") ? n.find("value") : nullptr;
      const bool is_tensor = value != nullptr && value->kind == attribute::kind_type::t &&
                             n.outputs.size() == 1 && !n.outputs[0].empty() &&
                             !m_.is_output(n.outputs[0]);
      if (is_tensor) {
        m_.initializers[n.outputs[0]] = value->t;
      }
      return is_tensor;
    });
  }

  /// Computes the weights of layers that a Transpose, Cast, ... makes of constants, unless these
  /// constants are used elsewhere: then they would be stored twice.
  void fold_weights() {
    model folded = m_;
    fold_constants(folded, false);
    const links l(m_);
    std::set<std::string> made;
    for (const weighted_layer& layer : weighted_layers(folded, links(folded))) {
      const bool is_ignored = ignored_.count(folded.nodes[layer.node].first_output()) != 0;
      if (layer.is_supported && !is_ignored && m_.initializer(layer.weights) == nullptr &&
          is_used_once(l, layer.weights)) {
        made.insert(layer.weights);
      }
    }
    if (made.empty()) {
      return;
    }
    for (const std::string& name : made) {
      m_.initializers[name] = folded.initializers.at(name);
    }
    std::erase_if(m_.nodes, [&](const node& n) { return made.count(n.first_output()) != 0; });
    remove_unused(m_);
  }

  /// Whether a value, and all that it is made of but single numbers, goes to one node only.
  [[nodiscard]] bool is_used_once(const links& l, const std::string& value) const {
    std::vector<std::string> left{value};
    while (!left.empty()) {
      const std::string name = std::move(left.back());
      left.pop_back();
      const tensor* stored = m_.initializer(name);
      if (name.empty() || (stored != nullptr && stored->count() == 1)) {
        continue;
      }
      if (m_.is_output(name) || l.consumers(name).size() != 1) {
        return false;
      }
      const std::size_t maker = l.producer(name);
      if (maker != links::none) {
        left.insert(left.end(), m_.nodes[maker].inputs.begin(), m_.nodes[maker].inputs.end());
      }
    }
    return true;
  }

  void find_constants() {
    const links l(m_);
    const std::set<std::size_t> positional = positional_products(m_, l);
    std::set<std::string> known;
    const std::vector<weighted_layer> layers = weighted_layers(m_, l);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const weighted_layer& layer = layers[i];
      const bool is_last = i + 1 == layers.size();
      const bool is_ignored = ignored_.count(m_.nodes[layer.node].first_output()) != 0;
      if (is_ignored) {
        ignored_layers_.push_back(layer);
      }
      if (known.count(layer.weights) != 0) {
        is_last_left_out_ = is_last;
        continue;
      }
      const bool is_kept = is_ignored || positional.count(layer.node) != 0 || !layer.is_supported;
      if (is_kept) {
        is_last_left_out_ = is_last;
        left_in_float_.push_back({layer, {}, {}, {}});
        continue;
      }
      known.insert(layer.weights);
      constants_.push_back({layer, backup_format(), {}, {}});
      require_finite(layer.weights, weights_of(constants_.back()), 0);
      release_pages(weights_of(constants_.back()));
    }
    // A constant that an ignored node uses as well is compressed for both.
    std::erase_if(left_in_float_,
                  [&](const constant& c) { return known.count(c.layer.weights) != 0; });
  }

  [[nodiscard]] std::optional<storage_format> backup_format() const {
    switch (options_.backup_mode.value_or(backup_mode::int8_asym)) {
      case backup_mode::none:
        return std::nullopt;
      case backup_mode::int8_sym:
        return storage_format{compress_weights_mode::int8_sym, 0};
      case backup_mode::int8_asym:
        break;
    }
    return storage_format{compress_weights_mode::int8_asym, 0};
  }

  /// The constants that may have the primary precision, by index: products in their order, then
  /// embeddings.
  [[nodiscard]] std::vector<std::size_t> candidates() const {
    std::vector<std::size_t> found;
    const auto add = [&](const auto& matches) {
      for (std::size_t i = 0; i < constants_.size(); ++i) {
        if (matches(constants_[i].layer)) {
          found.push_back(i);
        }
      }
    };
    if (has_8_bits(options_.mode)) {
      add([](const weighted_layer&) { return true; });
      return found;
    }
    add([](const weighted_layer& l) { return l.kind == layer_kind::product; });
    if (!options_.all_layers && !is_last_left_out_ && !found.empty()) {
      found.pop_back();
    }
    if (options_.all_layers) {
      add([](const weighted_layer& l) {
        return l.kind == layer_kind::embedding && l.reduced_axis.has_value();
      });
    }
    return found;
  }

  /// Gives the primary precision to all constants that may have it.
  void assign_primary() {
    std::set<std::size_t> in_float;
    for (const std::size_t i : candidates()) {
      std::size_t size = group_size_;
      if (size != 0 && options_.group_size_fallback_mode != group_size_fallback_mode::error &&
          depth_of(constants_[i]) % size != 0) {
        if (options_.group_size_fallback_mode == group_size_fallback_mode::ignore) {
          in_float.insert(i);
          continue;
        }
        const std::size_t depth = depth_of(constants_[i]);
        size = depth & (~depth + 1);  // the largest power of two that divides it
        if (size < options_.min_adjusted_group_size) {
          continue;
        }
      }
      constants_[i].format = storage_format{options_.mode, size};
      primary_.push_back(i);
    }
    for (const std::size_t i : in_float) {
      constants_[i].format.reset();
    }
  }

  [[nodiscard]] bool is_mixed() const { return options_.ratio.value_or(1.0) < 1.0; }
  [[nodiscard]] sensitivity_metric metric() const {
    return options_.sensitivity_metric.value_or(
        options_.dataset ? sensitivity_metric::max_activation_variance
                         : sensitivity_metric::weight_quantization_error);
  }
  [[nodiscard]] bool ranks_by_samples() const {
    return is_mixed() && metric() != sensitivity_metric::weight_quantization_error;
  }
  /// Whether the scales of weights or inputs are found by samples.
  [[nodiscard]] bool scales_by_samples() const {
    return options_.scale_estimation ||
           (options_.awq && options_.dataset && options_.awq_params.prefer_data_aware_scaling);
  }

  void choose_by_sensitivity() {
    std::vector<double> scores;
    std::vector<std::size_t> counts;
    for (const std::size_t i : primary_) {
      constant& c = constants_[i];
      double score = 0.0;  // an embedding has no inputs to be ranked by, and comes first
      if (!ranks_by_samples() || c.layer.kind == layer_kind::product) {
        score = weight_score(elements_of(c), groups_of(c.layer, weights_of(c).dims(), 0), metric());
      }
      if (ranks_by_samples() && c.layer.kind == layer_kind::product) {
        score *= scores_->mean(input_of(c.layer));
      }
      c.sensitivity = score;
      scores.push_back(score);
      counts.push_back(weights_of(c).count());
    }
    const std::set<std::size_t> chosen =
        least_sensitive(scores, counts, options_.ratio.value_or(1.0));
    for (std::size_t k = 0; k < primary_.size(); ++k) {
      if (chosen.count(k) == 0) {
        constants_[primary_[k]].format = backup_format();
      }
    }
  }

  [[nodiscard]] const std::string& input_of(const weighted_layer& layer) const {
    return m_.nodes[layer.node].inputs[layer.activation_port()];
  }

  /// Whether a layer multiplies rows of its input by a matrix.
  [[nodiscard]] bool multiplies_rows(const weighted_layer& layer) const {
    return layer.kind == layer_kind::product && layer.port == 1 &&
           m_.initializer(layer.weights)->rank() == 2 &&
           m_.nodes[layer.node].get_int("transA", 0) == 0;
  }

  /// Runs the model on the samples, once, if anything needs to know the inputs of layers.
  void observe_inputs() {
    if (!ranks_by_samples() && !scales_by_samples()) {
      return;
    }
    std::set<std::string> names;
    std::map<std::string, layer_input_samples> seen;
    for (const std::size_t i : primary_) {
      if (ranks_by_samples() && constants_[i].layer.kind == layer_kind::product) {
        names.insert(input_of(constants_[i].layer));
      }
    }
    for (const constant& c : constants_) {
      if (scales_by_samples() && multiplies_rows(c.layer)) {
        seen[input_of(c.layer)] = {};
      }
    }
    scores_.emplace(metric(), names);
    executor runner(m_, options_.executor);
    const calibration_source samples = options_.dataset->samples(options_.subset_size);
    std::uint64_t sample = 0;
    while (const auto inputs = samples()) {
      ++sample;
      static_cast<void>(runner.run(*inputs, [&](const std::string& name, const tensor& value) {
        const auto wanted = seen.find(name);
        if ((wanted == seen.end() && names.count(name) == 0) ||
            !graph::detail::is_observable(value)) {
          return;
        }
        require_finite(name, value, sample);
        const tensor plain = to_plain(value);
        scores_->add(name, plain);
        if (wanted != seen.end()) {
          wanted->second.add(name, plain);
        }
      }));
    }
    for (constant& c : constants_) {
      const auto found = multiplies_rows(c.layer) ? seen.find(input_of(c.layer)) : seen.end();
      if (found != seen.end()) {
        c.inputs = found->second;
      }
    }
  }

  [[nodiscard]] weight_groups groups_of_format(const constant& c) const {
    return groups_of(c.layer, weights_of(c).dims(), c.format->group_size);
  }

  /// Scales the inputs of layers with 4 bits where that is possible, and their weights.
  void scale_activations() {
    graph_writer names(m_);
    std::vector<std::pair<constant*, std::vector<float>>> scaled;
    std::optional<links> current;  // nothing once the graph has changed
    for (constant& c : constants_) {
      if (!c.format || has_8_bits(c.format->mode) || !multiplies_rows(c.layer)) {
        continue;
      }
      const links& l = current ? *current : current.emplace(m_);
      if (l.consumers(c.layer.weights).size() != 1) {
        continue;
      }
      const auto place = scaling_place_before(m_, l, c.layer.node, input_of(c.layer));
      if (!place) {
        continue;
      }
      const std::size_t maker = l.producer(place->value);
      const auto before = dividable_layer(l, maker, c);
      std::vector<float> scales = input_scales(c, before);
      multiply_weights(c.layer, *c.layer.reduced_axis, scales);
      for (float& s : scales) {
        s = 1.0F / s;
      }
      if (before) {
        multiply_weights(*before, before->channel_axis, scales);
      } else {
        insert_scaling(*place, name_or_output(m_.nodes[maker]), scales, names);
        current.reset();
      }
      scaled.emplace_back(&c, std::move(scales));
    }
    for (auto& [c, factors] : scaled) {
      c->inputs.scale(factors);
    }
    scaled_layers_ = scaled.size();
  }

  /// The layer that a node is, if its weights can be divided in place of the inputs of `c`: they
  /// have the same order, nothing else uses them, and nothing is added.
  [[nodiscard]] std::optional<weighted_layer> dividable_layer(const links& l, std::size_t i,
                                                              const constant& c) const {
    const node& n = m_.nodes[i];
    auto layer = weighted_layer_of(m_, l, i);
    const bool fits = layer && layer->is_supported && multiplies_rows(*layer) &&
                      layer->reduced_axis == c.layer.reduced_axis &&
                      l.consumers(layer->weights).size() == 1 &&
                      m_.initializer(layer->weights)->dim(layer->channel_axis) ==
                          weights_of(c).dim(*c.layer.reduced_axis) &&
                      (n.inputs.size() < 3 || n.inputs[2].empty());
    return fits ? layer : std::nullopt;
  }

  /// The scales of the inputs of a layer. `before` is the layer whose weights they divide, if any.
  [[nodiscard]] std::vector<float> input_scales(const constant& c,
                                                const std::optional<weighted_layer>& before) const {
    const weight_groups groups = groups_of_format(c);
    const weight_rows rows{elements_of(c), groups};
    if (!options_.awq_params.prefer_data_aware_scaling || c.inputs.is_empty()) {
      return scales_of_weights(rows);
    }
    std::vector<float> least;
    const auto known = std::find_if(constants_.begin(), constants_.end(), [&](const constant& k) {
      return before && k.layer.weights == before->weights && !k.inputs.is_empty();
    });
    if (known != constants_.end()) {
      const weight_groups whole = groups_of(*before, weights_of(*known).dims(), 0);
      least = least_scales({elements_of(*known), whole}, known->inputs,
                           static_cast<std::size_t>(weights_of(*known).dims().back()));
    }
    return activation_aware_scaler(rows, c.format->integers(), options_.awq_params, c.inputs, least)
        .run(options_.executor.parallel);
  }

  /// Multiplies the weights of a layer by a factor for each index of an axis.
  void multiply_weights(const weighted_layer& layer, std::size_t axis,
                        std::span<const float> factors) {
    tensor& w = m_.initializers.at(layer.weights);
    const std::size_t inner = axis == 0 ? static_cast<std::size_t>(w.dim(1)) : 1;
    tensor scaled = tensor::of<float>(element_type::f32, w.dims(), w.data<float>());
    const auto elements = scaled.mutable_data<float>();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements[i] *= factors[i / inner % factors.size()];
      require(std::isfinite(elements[i]), error_kind::overflow, "tensor '", layer.weights,
              "': a weight times its AWQ scale is not finite");
    }
    w = std::move(scaled);
  }

  /// Inserts a Mul behind the node that `maker` names.
  void insert_scaling(const scaling_place& place, const std::string& maker,
                      const std::vector<float>& factors, graph_writer& names) {
    const std::string base = maker + "/awq_mul";
    const std::string output = names.fresh(base + "_output");
    std::vector<std::string>& inputs = m_.nodes[place.user].inputs;
    std::replace(inputs.begin(), inputs.end(), place.value, output);
    // At the end: indices of nodes stay valid, and the nodes are put in order when all is written.
    m_.nodes.push_back(names.make_node(
        "Mul", base,
        {place.value, names.add_values(base + "_scale", element_type::f32,
                                       {static_cast<std::int64_t>(factors.size())}, factors)},
        output));
  }

  /// Throws invalid_argument, naming the nodes, unless groups divide the weights.
  void require_divisible_groups() const {
    std::string failed;
    for (const constant& c : constants_) {
      const std::size_t size = c.format ? c.format->group_size : 0;
      if (size != 0 && depth_of(c) % size != 0) {
        failed += (failed.empty() ? "" : ", ") + m_.nodes[c.layer.node].label() + " with " +
                  std::to_string(depth_of(c)) + " inputs";
      }
    }
    require(failed.empty(), error_kind::invalid_argument, "group size ", group_size_,
            " does not divide the weights of ", failed,
            "; group_size_fallback_mode (--group-size-fallback) can ignore or adjust them");
  }

  [[nodiscard]] compressed_weights report_of(const constant& c) const {
    const node& n = m_.nodes[c.layer.node];
    compressed_weights report;
    report.node = name_or_output(n);
    report.weights = c.layer.weights;
    report.count = weights_of(c).count();
    if (c.format) {
      report.mode = c.format->mode;
      report.group_size = c.format->group_size;
    }
    report.sensitivity = c.sensitivity;
    return report;
  }

  weight_compression write() {
    weight_compression done;
    compressed_constant_writer writer(m_);
    for (const constant& c : constants_) {
      done.layers.push_back(report_of(c));
      if (c.format) {
        writer.check(c.layer, *c.format);
      }
    }
    for (const constant& c : left_in_float_) {
      done.layers.push_back(report_of(c));
    }
    std::set<std::string> compressed;
    for (const constant& c : constants_) {
      if (c.format) {
        compressed.insert(c.layer.weights);
      }
    }
    for (const weighted_layer& layer : ignored_layers_) {
      if (compressed.count(layer.weights) != 0) {
        done.ignored_in_vain.push_back(m_.nodes[layer.node].label());
      }
    }
    for (const constant& c : constants_) {
      if (!c.format) {
        continue;
      }
      const weight_groups groups = groups_of_format(c);
      integer_weights q = quantize_by_range(elements_of(c), groups, c.format->integers());
      if (options_.scale_estimation && !has_8_bits(c.format->mode) && !c.inputs.is_empty()) {
        estimate_scales(elements_of(c), groups, c.format->integers(),
                        options_.scale_estimation_params, c.inputs, q, options_.executor.parallel);
      }
      require(
          std::all_of(q.scales.begin(), q.scales.end(), [](float s) { return std::isfinite(s); }),
          error_kind::invalid_argument, "tensor '", c.layer.weights,
          "': the range of its values is too large for a float32 scale");
      release_pages(weights_of(c));
      writer.write(c.layer, *c.format, q);
    }
    writer.finish();
    set_producer(m_);
    done.scaled_layers = scaled_layers_;
    done.result = std::move(m_);
    return done;
  }

  static constexpr std::int64_t default_group = 128;

  model m_;
  const compress_weights_options& options_;
  std::size_t group_size_ = 0;
  std::size_t scaled_layers_ = 0;  // by awq
  std::vector<constant> constants_;
  std::vector<constant> left_in_float_;
  std::vector<std::size_t> primary_;         // indices of those with the primary precision
  std::optional<activation_scores> scores_;  // of the inputs, after observe_inputs()
  bool is_last_left_out_ = false;
  std::set<std::string> ignored_;               // first results of ignored nodes
  std::vector<weighted_layer> ignored_layers_;  // in their order
};

}  // namespace detail

/// Compresses the constant weights of a float model as NNCF's nncf.compress_weights does for ONNX
/// models: weights become integers of 4 or 8 bits with float32 scales, and everything else stays in
/// float. The result holds the model and what was done to each constant. In a model without layers
/// that have constant weights, only the producer changes, Constant nodes become constants of the
/// graph, nodes are put in order, and what nothing uses is removed. Weights w are stored as
///
///     w = (code - zero point) * scale
///
/// with ties rounded to even and codes clamped to their type (weight_groups.hpp has the formulas).
/// Weights with one scale for each channel become a DequantizeLinear node; so do weights with
/// groups in a model of opset 21 or above, and com.microsoft.MatMulNBits in an older one.
///
/// The samples are drawn once, and only if the ratio is below 1 and the metric needs them, or for
/// awq and scale_estimation. Both change MatMul(x, w) and Gemm(x, w) of matrices w alone; awq
/// leaves layers as they are whose input something else takes, too. The result is deterministic.
/// Calls on different models may run at the same time.
///
/// Throws unsupported for a model that is quantized already or has an opset below 13, for modes and
/// options that NNCF refuses for ONNX models, for a form that the model's opset does not have or
/// groups in weights of four or more dimensions, naming the node, and for an operator that cannot
/// be run if samples are needed. Throws invalid_argument for options that are out of their domain
/// or do not go together, for a group size that does not divide a layer's weights, naming the
/// nodes, for an entry of ignored_scope or ignored_subgraphs that matches nothing, for NaN or
/// infinity in weights or inputs and for a range that is too large for a float32 scale, naming the
/// tensor, for an input of fewer than two dimensions if the metric needs samples, and if there are
/// no samples where they are needed. Throws overflow, naming the tensor, if a weight times its AWQ
/// scale is not finite.
///
/// Source: NNCF 3.4, quantization/algorithms/weight_compression.
[[nodiscard]] DETENT_GRAPH_DECL weight_compression
compress_weights(model m, const compress_weights_options& options = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL weight_compression compress_weights(model m,
                                                      const compress_weights_options& options) {
  return detail::weight_compressor(std::move(m), options).run();
}
#endif

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_COMPRESS_WEIGHTS_HPP
