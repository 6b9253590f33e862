// SPDX-License-Identifier: BSD-3-Clause
// Post-training quantization with the interface and the numbers of NNCF's nncf.quantize:
//
//   [SmoothQuant, if the model is a transformer] -> [channel alignment, if enabled] -> ranges
//   -> bias correction
//
//   activations  8 bits, one scale per tensor, quantized before operators that compute with them;
//                the range is the mean of the samples' smallest values to the mean of their largest
//                ones; scale and zero point by scale_rule::nncf
//   weights      int8, -127..127, symmetric, one scale per output channel, by scale_rule::nncf
//   Concat       all inputs and the output share one range, the union of their ranges
//
// Passes over the samples: one pass collects the statistics of ranges and of fast bias correction.
// SmoothQuant and channel alignment take one more pass each, if the model has values for them to
// look at. Full bias correction takes one pass, and another one for each layer.
//
// NNCF differs in two points: it quantizes both operands of a product of two activations (MatMul
// without constant weights), which stay float here; and for cpu_spr it removes quantizers before
// additions, which stay here.
//
// Source: NNCF 3.1, quantization/algorithms and its documentation; it was not run.
#ifndef DETENT_GRAPH_NNCF_QUANTIZE_HPP
#define DETENT_GRAPH_NNCF_QUANTIZE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/dataset.hpp>
#include <detent/graph/nncf/range_estimator.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/channel_alignment.hpp>
#include <detent/graph/rewrite/channel_statistics.hpp>
#include <detent/graph/rewrite/smooth_quant.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/channels.hpp>
#include <detent/observers/observer.hpp>
#include <detent/quantize.hpp>
#include <detent/scale_rules.hpp>
#include <detent/statistics/distribution.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
/// Post-training quantization of models with the interface and the numbers of NNCF.
namespace graph::nncf {

/// NNCF's QuantizationPreset: whether activations are quantized symmetrically. Weights are
/// symmetric in either case.
enum class preset : std::uint8_t {
  /// Activations are symmetric. Their zero point is 0, but 128 for uint8 activations whose range
  /// has negative values.
  performance,
  /// Activations are asymmetric: the zero point follows from the range.
  mixed,
};

/// NNCF's TargetDevice, the processor that is to run the model. It decides nothing but the default
/// of quantize_options::overflow_fix.
enum class target_device : std::uint8_t {
  any,     ///< Any device. The default overflow_fix is first_layer.
  cpu,     ///< A CPU, which may lack VNNI. The default overflow_fix is first_layer.
  gpu,     ///< A GPU. The default overflow_fix is none.
  npu,     ///< A neural processor. The default overflow_fix is none.
  cpu_spr  ///< Intel's Sapphire Rapids, a CPU with AMX. The default overflow_fix is none.
};

/// NNCF's ModelType: what kind of network the model is.
enum class model_type : std::uint8_t {
  none,        ///< No particular kind: no SmoothQuant, and the default preset is performance.
  transformer  ///< A transformer: SmoothQuant is applied, and the default preset is mixed.
};

/// NNCF's OverflowFix: in which layers weights stay within half of their grid, by a scale that is
/// doubled. With ranges that hold all weights, the integers are in -64..64, and a sum of two
/// products with uint8 activations fits in 16 bits, as CPUs without VNNI need it.
enum class overflow_fix : std::uint8_t {
  none,         ///< No layer: weights use their whole grid.
  enable,       ///< All layers.
  first_layer,  ///< The convolutions that graph inputs reach without passing another quantized one.
};

/// The exponent alpha of SmoothQuant for each kind of layer, at most 1: the larger alpha is, the
/// more of the activations' outliers moves to the weights. A negative alpha switches SmoothQuant
/// off for that kind.
struct smooth_quant_alphas {
  float convolution = -1.0F;  ///< The alpha of Conv; off by default.
  float matmul = 0.95F;       ///< The alpha of MatMul and Gemm.
};

/// The options of nncf::quantize(), with NNCF's names and, unless a comment says otherwise, its
/// defaults.
struct quantize_options {
  /// Whether activations are symmetric. By default performance; mixed for transformers.
  std::optional<nncf::preset> preset = {};
  /// The processor that is to run the model; it decides the default of overflow_fix.
  nncf::target_device target_device = nncf::target_device::any;
  /// The largest number of samples that is drawn in a pass; at least 1. Full bias correction draws
  /// a fifth of it, but at least 1.
  std::size_t subset_size = 300;
  /// Whether biases are corrected by the fast method, on recorded means of the layers' inputs. If
  /// not, the full method runs the quantized network once for each layer and sample.
  bool fast_bias_correction = true;
  /// Whether biases are left as they are.
  bool disable_bias_correction = false;
  /// The kind of network: transformer enables SmoothQuant.
  nncf::model_type model_type = nncf::model_type::none;
  /// The nodes that stay in float.
  graph::ignored_scope ignored_scope = {};
  /// The layers whose weights stay within half of their grid. By default first_layer for the
  /// devices any and cpu, none for the others.
  std::optional<nncf::overflow_fix> overflow_fix = {};
  /// The strength of SmoothQuant, which only transformers get.
  nncf::smooth_quant_alphas smooth_quant_alphas = {};
  /// Whether channel alignment is off. It shifts and scales the channels between two convolutions
  /// so that one scale and zero point fit all of them.
  bool disable_channel_alignment = true;
  /// Whether the results of the model are quantized as well.
  bool quantize_outputs = false;
  /// How the range of an activation is found.
  range_estimator activations_range_estimator = mean_min_max;
  /// How the range of a layer's weights is found: of each output channel, or of the whole tensor.
  range_estimator weights_range_estimator = min_max;
  /// Whether each index of the first dimension of an activation counts as a sample. If not, each
  /// run of the model does.
  bool batchwise_statistics = false;
  /// Whether weights have a scale for each output channel. If not, they have one for the tensor.
  bool per_channel_weights = true;
  /// The type of quantized activations, u8 or s8. NNCF chooses the type for each tensor by whether
  /// it has negative values; here one type serves all.
  element_type activation_type = element_type::u8;
  /// Which layers bias correction changes. NNCF's own rule, bias_correction_rule::nncf, does not
  /// change a layer without a bias or, with the fast method, one where a bias is 0.
  bias_correction_rule bias_rule = bias_correction_rule::absolute;
  /// If given, it is called with each activation that has parameters of its own, in the order of
  /// the activations' names.
  std::function<void(const std::string& value, const scale_solution& solution)> on_parameters = {};
  /// How float and quantized networks are run, for example the threads to use.
  executor_options executor = {};
};

namespace detail {

[[nodiscard]] inline bool is_symmetric(const quantize_options& o) {
  const preset otherwise =
      o.model_type == model_type::transformer ? preset::mixed : preset::performance;
  return o.preset.value_or(otherwise) == preset::performance;
}

[[nodiscard]] inline quant_scheme activation_scheme(const quantize_options& o) {
  require(o.activation_type == element_type::u8 || o.activation_type == element_type::s8,
          error_kind::invalid_argument, "activations of type ", graph::name(o.activation_type),
          "; they are uint8 or int8");
  return {o.activation_type == element_type::u8 ? full_grid<std::uint8_t> : full_grid<std::int8_t>,
          is_symmetric(o)};
}

[[nodiscard]] inline overflow_fix overflow_fix_of(const quantize_options& o) {
  const bool may_overflow =
      o.target_device == target_device::any || o.target_device == target_device::cpu;
  return o.overflow_fix.value_or(may_overflow ? overflow_fix::first_layer : overflow_fix::none);
}

/// The convolutions of a plan that graph inputs reach without passing another quantized
/// convolution.
[[nodiscard]] inline std::set<std::size_t> first_convolutions(const quantization_plan& plan) {
  const model& m = plan.float_model();
  const std::set<std::size_t> layers(plan.layers().begin(), plan.layers().end());
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
    if (n.is("Conv") && layers.count(i) != 0) {
      first.insert(i);
    } else {
      reached.insert(n.outputs.begin(), n.outputs.end());
      reached.erase("");  // optional outputs that are absent
    }
  }
  return first;
}

/// Quantizes the weights of a layer by scale_rule::nncf. With `half`, scales are doubled, so that
/// integers fill half of the grid, 7 bits.
[[nodiscard]] inline layer_weights quantize_weights(const model& m, const node& n, float x_scale,
                                                    const quantize_options& options, bool half) {
  const tensor& weights = m.initializers.at(n.inputs[1]);
  const std::size_t axis = weight_channel_axis(n);
  const auto channels = static_cast<std::size_t>(weights.dim(axis));
  const tensor_view<const float> view = tensor_view_of<float>(weights);
  const range_estimator_observer estimator(options.weights_range_estimator, true);
  layer_weights result{tensor::allocate(element_type::s8, weights.dims()), axis, {}};
  of_tensor(n.inputs[1], [&] {
    std::vector<value_range> ranges;
    if (options.per_channel_weights) {
      channel_observer observer(any_observer(estimator), axis);
      observer.observe(view, options.executor.parallel);
      for (const any_observer& channel : observer.channels()) {
        ranges.push_back(channel.target<range_estimator_observer>()->range());
      }
    } else {
      range_estimator_observer whole = estimator;
      whole.observe(view);
      ranges.assign(channels, whole.range());
    }
    float largest = 0.0F;
    for (const value_range& r : ranges) {
      largest = (std::max)(largest, reference::magnitude(reference::including_zero(r)));
    }
    for (const value_range& r : ranges) {
      const float scale =
          params_from_range(r, symmetric<std::int8_t>, scale_rule::nncf, largest).scale;
      result.scales.push_back(half ? 2.0F * scale : scale);
      require(std::isfinite(result.scales.back()), error_kind::invalid_argument, "twice the scale ",
              scale, " is not a float");
    }
  });
  fit_bias(result.scales, std::vector<bool>(channels, false), options.per_channel_weights, x_scale,
           float_constant(m, n, 2), n);
  detent::quantize(
      view, mutable_view_of<std::int8_t>(result.codes),
      channel_quant_params{axis, result.scales, std::vector<std::int32_t>(channels, 0)},
      symmetric<std::int8_t>.levels);
  if (!options.per_channel_weights) {
    result.scales.resize(1);
  }
  return result;
}

/// Sets of values that share one range, each represented by one of its values, the leader. A set
/// holds the inputs and the output of a Concat, and the values that operators make of them by
/// moving elements only.
class unified_ranges {
 public:
  unified_ranges(const quantization_plan& plan, const std::set<std::string>& values) : plan_(plan) {
    const model& m = plan.float_model();
    for (std::size_t i = 0; i < m.nodes.size(); ++i) {
      const node& n = m.nodes[i];
      if (!plan.quantizes(i) || !n.is("Concat") || values.count(n.outputs[0]) == 0) {
        continue;
      }
      for (const std::string& input : n.inputs) {
        const std::string from = leader(input);
        const std::string to = leader(n.outputs[0]);
        if (from != to) {
          leaders_[from] = to;
        }
      }
    }
  }

  [[nodiscard]] std::string leader(const std::string& value) const {
    std::string name = plan_.root(value);
    for (auto found = leaders_.find(name); found != leaders_.end(); found = leaders_.find(name)) {
      name = found->second;
    }
    return name;
  }

 private:
  const quantization_plan& plan_;
  std::map<std::string, std::string> leaders_;
};

class quantizer {
 public:
  quantizer(const dataset& samples, const quantize_options& options)
      : samples_(samples), options_(options), scheme_(activation_scheme(options)) {
    require(options.subset_size > 0, error_kind::invalid_argument, "subset_size 0: no samples");
    static_cast<void>(range_estimator_observer(options.activations_range_estimator));
    static_cast<void>(range_estimator_observer(options.weights_range_estimator));
    for (const float alpha :
         {options.smooth_quant_alphas.convolution, options.smooth_quant_alphas.matmul}) {
      require(alpha <= 1.0F, error_kind::invalid_argument, "a SmoothQuant alpha of ", alpha,
              "; it is at most 1, and negative for none");
    }
  }

  [[nodiscard]] quantization run(model m) const {
    quantization q{prepared_plan(std::move(m)), {}, {}};
    q.parameters.activation_type = options_.activation_type;
    layer_means means(q.plan);
    const bool corrects = !options_.disable_bias_correction && !q.plan.layers().empty();
    const bool fast = corrects && options_.fast_bias_correction;
    q.parameters.activations = activation_params(q.plan, fast ? &means : nullptr);
    const overflow_fix fix = overflow_fix_of(options_);
    const std::set<std::size_t> first = first_convolutions(q.plan);
    for (const std::size_t i : q.plan.layers()) {
      const node& n = q.plan.float_model().nodes[i];
      const bool half =
          fix == overflow_fix::enable || (fix == overflow_fix::first_layer && first.count(i) != 0);
      q.parameters.layers.emplace(
          i, quantize_weights(q.plan.float_model(), n,
                              q.parameters.activations.at(n.inputs[0]).scale, options_, half));
    }
    if (fast) {
      static_cast<void>(correct_biases(q.plan, q.parameters, means, {.rule = options_.bias_rule},
                                       options_.executor));
    } else if (corrects) {
      const std::size_t fifth = (std::max)(options_.subset_size / 5, std::size_t{1});
      static_cast<void>(correct_biases(q.plan, q.parameters, samples_.samples(fifth),
                                       {.kind = bias_correction::full, .rule = options_.bias_rule},
                                       options_.executor));
    }
    q.result = write_qdq(q.plan, q.parameters);
    return q;
  }

 private:
  /// The plan of the float model that is to be quantized, after SmoothQuant and channel alignment.
  [[nodiscard]] quantization_plan prepared_plan(model m) const {
    const bool smooths = options_.model_type == model_type::transformer &&
                         (options_.smooth_quant_alphas.matmul >= 0.0F ||
                          options_.smooth_quant_alphas.convolution >= 0.0F);
    if (!smooths && options_.disable_channel_alignment) {
      return quantization_plan(std::move(m), {.ignored = options_.ignored_scope});
    }
    // The ignored scope names nodes of the file, so it is looked up before the rewrites. In the
    // rewritten model, the ignored nodes are found by the values that they make.
    const quantization_plan before(m, {.ignored = options_.ignored_scope});
    const quantization_plan unrestricted(std::move(m));
    std::set<std::string> left_out;
    for (std::size_t i = 0; i < before.float_model().nodes.size(); ++i) {
      if (unrestricted.quantizes(i) && !before.quantizes(i)) {
        left_out.insert(before.float_model().nodes[i].outputs[0]);
      }
    }
    model rewritten = before.float_model();
    if (smooths) {
      smooth(rewritten, before);
    }
    if (!options_.disable_channel_alignment) {
      align(rewritten);
    }
    const links known(before.float_model());
    quantization_plan plan(std::move(rewritten));
    std::set<std::size_t> nodes;
    for (std::size_t i = 0; i < plan.float_model().nodes.size(); ++i) {
      const node& n = plan.float_model().nodes[i];
      // A Mul that SmoothQuant has inserted takes values with outliers and makes even ones: its
      // result is quantized, not its input, so the Mul itself stays float.
      const bool smooths_values = n.is("Mul") && known.producer(n.outputs[0]) == links::none;
      if (!n.outputs.empty() && (smooths_values || left_out.count(n.outputs[0]) != 0)) {
        nodes.insert(i);
      }
    }
    plan.leave_out(nodes);
    return plan;
  }

  void smooth(model& m, const quantization_plan& plan) const {
    graph_smoothing_options smoothing = graph_smoothing_options::nncf();
    const smooth_quant_alphas& alphas = options_.smooth_quant_alphas;
    smoothing.scales.alpha = (std::max)(alphas.matmul, 0.0F);
    if (alphas.convolution >= 0.0F) {
      smoothing.convolution_alpha = alphas.convolution;
    }
    std::set<std::string> wanted;
    for (const std::size_t i : plan.layers()) {
      const node& n = plan.float_model().nodes[i];
      if ((is_convolution(n) ? alphas.convolution : alphas.matmul) >= 0.0F) {
        wanted.insert(n.inputs[0]);
      }
    }
    std::map<std::string, std::size_t> axes = smoothing_values(m, smoothing);
    std::erase_if(axes, [&](const auto& entry) { return wanted.count(entry.first) == 0; });
    if (!axes.empty()) {
      const channel_statistics seen =
          observe_channels(m, samples_.samples(options_.subset_size), axes,
                           any_observer(min_max_observer()), options_.executor);
      static_cast<void>(smooth_quant(m, channel_magnitudes(seen), smoothing));
    }
  }

  void align(model& m) const {
    const std::map<std::string, std::size_t> axes = alignment_values(m);
    if (!axes.empty()) {
      const channel_statistics seen =
          observe_channels(m, samples_.samples(options_.subset_size), axes,
                           channel_alignment_observer(), options_.executor);
      static_cast<void>(align_channels(m, channel_ranges(seen)));
    }
  }

  /// The parameters of all activations, from one pass over the samples. The pass shows all values
  /// to `means` as well, unless that is null.
  [[nodiscard]] std::map<std::string, quant_params> activation_params(const quantization_plan& plan,
                                                                      layer_means* means) const {
    std::set<std::string> outputs;
    if (options_.quantize_outputs) {
      for (const value_info& v : plan.float_model().outputs) {
        outputs.insert(v.name);
      }
    }
    const std::set<std::string> values = plan.consumed_values(outputs);
    std::vector<observed_value> observed;
    for (const std::string& name : values) {
      const bool constant = plan.float_model().initializer(name) != nullptr;
      // Where operators only move elements, the range is that of the value they came from.
      if (plan.root(name) == name) {
        observed.push_back(
            {name, any_observer(constant ? range_estimator_observer(min_max, scheme_.symmetric)
                                         : range_estimator_observer(
                                               options_.activations_range_estimator,
                                               scheme_.symmetric, options_.batchwise_statistics))});
      }
    }
    if (observed.empty()) {
      return {};
    }
    executor::value_observer also;
    if (means != nullptr) {
      also = [means](const std::string& name, const tensor& value) { means->add(name, value); };
    }
    calibrate(plan.float_model(), observed, samples_.samples(options_.subset_size),
              options_.executor, also);

    const unified_ranges unified(plan, values);
    std::map<std::string, value_range> ranges;
    for (const observed_value& v : observed) {
      const value_range r =
          of_tensor(v.name, [&] { return v.observer.target<range_estimator_observer>()->range(); });
      const auto [found, added] = ranges.emplace(unified.leader(v.name), r);
      found->second = {(std::min)(found->second.lower, r.lower),
                       (std::max)(found->second.upper, r.upper)};
    }
    std::map<std::string, quant_params> params;
    for (const std::string& name : values) {
      scale_solution s;
      const value_range r = ranges.at(unified.leader(name));
      s.params = of_tensor(name, [&] { return params_from_range(r, scheme_, scale_rule::nncf); });
      s.evidence.method = "nncf";
      s.evidence.lower = r.lower;
      s.evidence.upper = r.upper;
      params[name] = s.params;
      if (options_.on_parameters && plan.root(name) == name) {
        options_.on_parameters(name, s);
      }
    }
    return params;
  }

  const dataset& samples_;
  const quantize_options& options_;
  quant_scheme scheme_;
};

}  // namespace detail

/// Quantizes a float model as NNCF's nncf.quantize does. The steps are SmoothQuant (for
/// transformers), channel alignment (if enabled), ranges and scales of activations and weights by
/// scale_rule::nncf, and bias correction. The result holds the plan, the parameters, and the model
/// with QuantizeLinear/DequantizeLinear pairs.
///
/// The result is deterministic. Throws unsupported for an operator that cannot be run, naming it,
/// and for a model that is quantized already. Throws invalid_argument if there are no samples, for
/// a NaN or an infinity in a value, naming the value and the sample, for an entry of ignored_scope
/// that matches nothing, for options out of their domain, and for a range whose lower end is above
/// its upper end, which some estimators can produce.
[[nodiscard]] inline quantization quantize(model m, const dataset& samples,
                                           const quantize_options& options = {}) {
  return detail::quantizer(samples, options).run(std::move(m));
}

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZE_HPP
