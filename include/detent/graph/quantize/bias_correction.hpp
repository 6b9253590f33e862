// SPDX-License-Identifier: BSD-3-Clause
// Bias correction: changes biases to compensate for the effect of rounded weights on the mean of
// each output channel.
//
//   fast   layer by layer: the layer is run with float and with rounded weights on an input that
//          holds the mean of each of its channels; the difference is added to the bias
//   full   in topological order: the quantized network is run up to the layer, with the biases
//          corrected so far; what the mean of each channel lacks is added to the bias
//
// Sources: Nagel et al. 2019 ("empirical bias correction"), and NNCF's FastBiasCorrection and
// BiasCorrection, whose rules `bias_correction_rule::nncf` follows.
#ifndef DETENT_GRAPH_QUANTIZE_BIAS_CORRECTION_HPP
#define DETENT_GRAPH_QUANTIZE_BIAS_CORRECTION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/channel_sums.hpp>
#include <detent/graph/quantize/layer_means.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/network_parts.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/settled_front.hpp>
#include <detent/graph/rewrite/lower.hpp>
#include <detent/graph/run/executor.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// How the shift of the mean of each output channel is found.
enum class bias_correction : std::uint8_t {
  none,  ///< Biases stay as they are.
  fast,  ///< Each layer alone is run on an input that holds the means of its channels.
  full   ///< The quantized network is run up to each layer, on samples.
};

/// Which layers are corrected.
enum class bias_correction_rule : std::uint8_t {
  /// A layer is corrected if the |shift| of no channel exceeds `threshold` standard deviations of
  /// the layer's float output. Convolutions and Gemm without a bias get one.
  absolute,
  /// NNCF's rule: a layer is corrected if |shift / bias| of each channel is less than `threshold`.
  /// MatMul and layers without a bias are left alone, and so are, with the fast kind, layers with a
  /// bias of 0. The fast kind compares with the recorded mean of the float output; the full kind
  /// leaves activations in float.
  nncf,
};

/// Options of correct_biases().
struct bias_correction_options {
  bias_correction kind = bias_correction::fast;                ///< How the shift is found.
  bias_correction_rule rule = bias_correction_rule::absolute;  ///< Which layers are corrected.
  /// Limit of the rule. 0 stands for the default: 1000 for the full kind by the rule of NNCF, else
  /// 2.
  double threshold = 0.0;
  /// Samples that are used, at most; 0: all. The full kind runs each of them once for each layer.
  std::size_t max_samples = 0;
};

/// Report of what correct_biases() did to one layer.
struct bias_shift {
  std::string node;  ///< Label of the node.
  /// The mean of each output channel in the float model minus that in the quantized one, as the
  /// kind of correction measures it.
  std::vector<double> shift;
  bool applied = false;  ///< Whether the shift was added to the bias.
};

namespace detail {

/// Corrects the layers of a plan one after the other, in topological order.
class bias_corrector {
 public:
  bias_corrector(quantization_plan& plan, const quantization_parameters& parameters,
                 const layer_means& means, const bias_correction_options& options,
                 const executor_options& runner)
      : plan_(plan), p_(parameters), means_(means), options_(options), runner_(runner) {
    if (options_.threshold == 0.0) {
      options_.threshold =
          options.kind == bias_correction::full && options.rule == bias_correction_rule::nncf
              ? 1000.0
              : 2.0;
    }
  }

  std::vector<bias_shift> run(const calibration_source& some) {
    if (options_.kind == bias_correction::full) {
      return nncf() ? run_rounded(some) : run_parts(some);
    }
    std::vector<bias_shift> shifts;
    for (const std::size_t i : plan_.layers()) {
      if (has_bias(i)) {
        shifts.push_back(correct(i, fast_shift(i)));
      }
    }
    return shifts;
  }

 private:
  /// Bytes of the values that are kept between two parts of the network, for all samples.
  static constexpr std::size_t largest_bytes = std::size_t{1} << 26;

  /// Whether a layer has a bias or may get one. Throws invalid_argument if there are no samples.
  [[nodiscard]] bool has_bias(std::size_t i) const {
    const node& n = plan_.float_model().nodes[i];
    // This rule of NNCF's is for convolutions and Gemm; nncf/ has the whole algorithm.
    const bool is_product = n.is("MatMul");
    if ((is_product && nncf()) || ((is_product || nncf()) && plan_.bias(i) == nullptr)) {
      return false;
    }
    require(!means_.of(n.inputs[0], is_convolution(n)).empty(), error_kind::invalid_argument,
            "there are no calibration samples");
    return true;
  }

  [[nodiscard]] bias_shift correct(std::size_t i, std::vector<double> shift) {
    bias_shift s;
    s.node = plan_.float_model().nodes[i].label();
    s.shift = std::move(shift);
    s.applied = !s.shift.empty() && is_acceptable(i, s.shift);
    if (s.applied) {
      apply(i, s.shift);
    }
    return s;
  }

  /// Corrects by the full kind, part by part of the network. The values between two parts are kept
  /// for as many samples as `largest_bytes` allows; the network is run up to the part for the rest.
  std::vector<bias_shift> run_parts(const calibration_source& samples) {
    std::vector<std::string> outputs;
    for (const value_info& v : plan_.float_model().outputs) {
      outputs.push_back(v.name);
    }
    network_parts parts(plan_, outputs, runner_);
    const std::set<std::size_t> layers(plan_.layers().begin(), plan_.layers().end());
    std::size_t count = 0;
    while (samples()) {
      ++count;
    }
    std::vector<network_values> kept(count);
    std::vector<bias_shift> shifts;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      for (const std::size_t i : parts.nodes(part)) {
        if (layers.count(i) == 0 || !has_bias(i)) {
          continue;
        }
        const node& n = plan_.float_model().nodes[i];
        executor beginning(for_execution(parts.model_up_to(p_, part, n.outputs[0])), runner_);
        channel_sums sums(is_convolution(n));
        for (std::size_t k = 0; const auto inputs = samples(); ++k) {
          network_values values;
          if (k >= kept.size()) {
            parts.run(*inputs, values, part);
          }
          sums.add(parts.run_up_to(beginning, *inputs, k < kept.size() ? kept[k] : values).front());
        }
        shifts.push_back(correct(
            i, mean_difference(means_.of(n.outputs[0], is_convolution(n)), sums, n.label())));
      }
      parts.write(p_, part);
      std::size_t bytes = 0;
      const bool all_kept = kept.size() == count;
      for (std::size_t k = 0; const auto inputs = samples(); ++k) {
        if (k >= kept.size()) {
          continue;
        }
        parts.run_part(part, *inputs, kept[k]);
        parts.forget(kept[k], part + 1);
        for (const auto& [name, value] : kept[k]) {
          bytes += value.bytes();
        }
        if (bytes > largest_bytes) {
          kept.resize(k);
        }
      }
      if (kept.size() == count) {
        parts.release(part);
      } else if (all_kept) {  // from now on, some samples need all parts
        for (std::size_t before = 0; before < part; ++before) {
          parts.write(p_, before);
        }
      }
    }
    return shifts;
  }

  [[nodiscard]] bool nncf() const noexcept { return options_.rule == bias_correction_rule::nncf; }

  /// The result of a layer alone, with given weights and bias, for one input.
  [[nodiscard]] tensor run_layer(const node& n, const tensor& weights, const tensor* bias,
                                 const tensor& input) const {
    model m;
    m.opsets = plan_.float_model().opsets;
    m.inputs = {{"x", element_type::f32, false, {}, {}}};
    m.initializers["w"] = weights;
    node layer = n;
    layer.inputs = {"x", "w"};
    if (bias != nullptr) {
      m.initializers["b"] = *bias;
      layer.inputs.push_back("b");
    }
    layer.outputs = {"y"};
    m.outputs = {{"y", element_type::f32, false, {}, {}}};
    m.nodes = {std::move(layer)};
    executor one(std::move(m), runner_);
    return one.run({{"x", input}})[0];
  }

  /// The shift of each output channel, from the means of the input channels.
  [[nodiscard]] std::vector<double> fast_shift(std::size_t i) const {
    const model& m = plan_.float_model();
    const node& n = m.nodes[i];
    const tensor input =
        means_.of(n.inputs[0], is_convolution(n)).mean_value(runner_.max_tensor_bytes, n.label());
    const tensor* bias = float_constant(m, n, 2);
    const auto means_of = [&](const tensor& weights) {
      channel_sums sums(is_convolution(n));
      sums.add(run_layer(n, weights, bias, input));
      return sums;
    };
    const channel_sums rounded =
        means_of(dequantized(entry_of(p_.layers, i, "integer weights for the layer with index")));
    return mean_difference(nncf() ? means_.of(n.outputs[0], is_convolution(n))
                                  : means_of(m.initializers.at(n.inputs[1])),
                           rounded, n.label());
  }

  /// Corrects by the full kind with the rule of NNCF: the network has rounded weights and computes
  /// in float.
  std::vector<bias_shift> run_rounded(const calibration_source& samples) {
    model network = plan_.float_model();
    unused_names names(network);
    for (const auto& [layer, weights] : p_.layers) {
      // Layers may share weights, but each one has rounded weights of its own.
      const std::string name = names.take("rounded");
      network.initializers[name] = dequantized(weights);
      network.nodes[layer].inputs[1] = name;
    }
    settled_front runs(samples, runner_);
    std::vector<bias_shift> shifts;
    for (const std::size_t i : plan_.layers()) {
      if (!has_bias(i)) {
        continue;
      }
      const node& n = plan_.float_model().nodes[i];
      runs.advance(network, {}, values_across(network, i));
      channel_sums sums(is_convolution(n));
      runs.run(network, {}, {n.outputs[0]},
               [&](const std::vector<tensor>& results) { sums.add(results[0]); });
      shifts.push_back(
          correct(i, mean_difference(means_.of(n.outputs[0], is_convolution(n)), sums, n.label())));
      network.nodes[i].inputs[2] = n.inputs[2];
      network.initializers[n.inputs[2]] = *plan_.bias(i);
    }
    return shifts;
  }

  [[nodiscard]] bool is_acceptable(std::size_t i, const std::vector<double>& shift) const {
    const model& m = plan_.float_model();
    const node& n = m.nodes[i];
    if (nncf()) {
      const auto bias = float_constant(m, n, 2)->data<float>();
      const bool full = options_.kind == bias_correction::full;
      double largest = 0.0;
      for (std::size_t c = 0; c < shift.size(); ++c) {
        const double b = static_cast<double>(bias[c]) + (full ? 1e-7 : 0.0);
        const double ratio = std::fabs(shift[c] / b);
        largest = ratio > largest || std::isnan(ratio) ? ratio : largest;
      }
      return largest < options_.threshold;
    }
    const double limit =
        options_.threshold * means_.of(n.outputs[0], is_convolution(n)).standard_deviation();
    return std::all_of(shift.begin(), shift.end(), [&](double s) { return std::fabs(s) <= limit; });
  }

  void apply(std::size_t i, const std::vector<double>& shift) {
    const tensor* old = plan_.bias(i);
    tensor bias = tensor::allocate(element_type::f32, {static_cast<std::int64_t>(shift.size())});
    for (std::size_t c = 0; c < shift.size(); ++c) {
      const double before = old == nullptr ? 0.0 : static_cast<double>(old->data<float>()[c]);
      bias.mutable_data<float>()[c] = static_cast<float>(before + shift[c]);
    }
    plan_.set_bias(i, std::move(bias));
  }

  quantization_plan& plan_;
  const quantization_parameters& p_;
  const layer_means& means_;
  bias_correction_options options_;
  executor_options runner_;
};

}  // namespace detail

/// Corrects the biases of the plan's layers with the means that gather_means() has collected from
/// the same samples. Otherwise like the form below. The fast kind draws no samples, so that
/// `samples` may be empty for it. Throws invalid_argument if the means are empty, and for the full
/// kind, which has to run the network, if there are no samples.
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(
    quantization_plan& plan, const quantization_parameters& parameters, const layer_means& means,
    const bias_correction_options& options = {}, const executor_options& runner = {},
    const calibration_source& samples = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(quantization_plan& plan,
                                                         const quantization_parameters& parameters,
                                                         const layer_means& means,
                                                         const bias_correction_options& options,
                                                         const executor_options& runner,
                                                         const calibration_source& samples) {
  require(options.kind != bias_correction::full || samples, error_kind::invalid_argument,
          "full bias correction from means, without samples");
  if (options.kind == bias_correction::none) {
    return {};
  }
  return detail::bias_corrector(plan, parameters, means, options, runner)
      .run(options.kind == bias_correction::full && options.max_samples != 0
               ? first_samples(samples, options.max_samples)
               : samples);
}
#endif

/// Corrects the biases of the plan's layers, so that the mean of each output channel is that of the
/// float model again: bias' = bias + shift, where the shift is the float mean minus the quantized
/// mean. The fast kind draws the samples once; the full kind draws them twice, and once more for
/// each layer and each part of the network (by NNCF's rule twice in all, or twice more for each
/// layer if the values in front of it do not fit); between parts, it keeps up to 64 MiB of values,
/// and runs the network from its inputs for the samples that do not fit. Returns one entry for each
/// layer that has a bias or may get one, in topological order; layers whose shift the rule rejects
/// are in it, too. With kind none, nothing changes and the result is empty. Deterministic; the
/// result does not depend on how many samples are batched in one run.
///
/// Throws invalid_argument if there are no samples.
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(
    quantization_plan& plan, const quantization_parameters& parameters,
    const calibration_source& samples, const bias_correction_options& options = {},
    const executor_options& runner = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL std::vector<bias_shift> correct_biases(quantization_plan& plan,
                                                         const quantization_parameters& parameters,
                                                         const calibration_source& samples,
                                                         const bias_correction_options& options,
                                                         const executor_options& runner) {
  if (options.kind == bias_correction::none) {
    return {};
  }
  const calibration_source some =
      options.max_samples == 0 ? samples : first_samples(samples, options.max_samples);
  return correct_biases(plan, parameters, gather_means(plan, some, runner), options, runner, some);
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_BIAS_CORRECTION_HPP
