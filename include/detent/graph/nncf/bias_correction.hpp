// SPDX-License-Identifier: BSD-3-Clause
// NNCF's correction of biases: what the rounded weights of a layer take from the mean of each
// channel of its output is added to its bias.
//
//   fast   each layer alone: it is run with rounded weights on an input each of whose channels
//          holds its mean over the samples; shift = recorded mean of the float output - mean of the
//          result. Conv with one group, Gemm and MatMul. A layer is changed if its bias has no 0
//          and |shift / bias| is less than `threshold` (2) for each channel.
//   full   in the order of the nodes: the network with rounded weights and float activations, and
//          with the biases corrected so far, is run on samples up to the layer; shift = mean of the
//          float output - mean of that. All layers. A layer is changed if |shift / (bias + 1e-7)|
//          is less than `threshold` (1000) for each channel.
//
// A layer without a bias stays as it is, and so does a product whose output channels are no columns
// (has_bias_of_columns()). The bias of a MatMul is the constant of the Add that alone takes its
// result.
//
// Source: NNCF 3.4, FastBiasCorrection and BiasCorrection.
#ifndef DETENT_GRAPH_NNCF_BIAS_CORRECTION_HPP
#define DETENT_GRAPH_NNCF_BIAS_CORRECTION_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/error_context.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/nncf/operator_graph.hpp>
#include <detent/graph/nncf/operator_traits.hpp>
#include <detent/graph/nncf/placement.hpp>
#include <detent/graph/nncf/quantized_model.hpp>
#include <detent/graph/nncf/quantizer_parameters.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/channel_sums.hpp>
#include <detent/graph/quantize/settled_front.hpp>
#include <detent/graph/quantize/state_file.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/observers/saved_state.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

/// A layer whose bias may be corrected.
struct biased_layer {
  std::size_t node = 0;         ///< Index of the layer.
  node_input bias;              ///< Where its bias is: an input of itself, or of the Add behind it.
  std::size_t input = 0;        ///< The input that is not weights.
  std::size_t weights = 0;      ///< The input that is weights.
  std::size_t quantizer = 0;    ///< Number of the quantizer of its weights.
  bool is_convolution = false;  ///< Whether channels are dimension 1; else they are the last one.
};

/// Whether each output channel of a product is a column of its result, with a bias of its own or
/// one for all: not with weights on the left, transposed inputs, or a bias for each row.
[[nodiscard]] inline bool has_bias_of_columns(const model& m, const node& n, std::string_view kind,
                                              std::size_t weights) {
  if (!is_among(kind, {"Gemm", "MatMul"})) {
    return true;
  }
  if (weights != 1 || n.get_int("transA", 0) != 0) {
    return false;
  }
  const tensor* bias = kind == "Gemm" ? float_constant(m, n, 2) : nullptr;
  const tensor* w = m.initializer(n.inputs[1]);
  if (w != nullptr && w->rank() < 2) {
    return false;
  }
  return bias == nullptr || bias->count() == 1 || w == nullptr || w->rank() != 2 ||
         graph::detail::is_row_of_channels(
             bias->dims(), w->dim(n.get_int("transB", 0) != 0 ? 0 : 1), 0, bias->rank());
}

/// The layers with biases among those whose weights are quantized, in the order of the nodes.
[[nodiscard]] inline std::vector<biased_layer> biased_layers(
    const model& m, const std::vector<placed_quantizer>& quantizers, bool fast) {
  const links l(m);
  std::vector<biased_layer> found;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    const node& n = m.nodes[i];
    const std::string kind = operator_kind(m, l, n);
    const bool is_full_only = is_among(kind, {"DepthwiseConv", "ConvTranspose"});
    if (!is_among(kind, {"Conv", "Gemm", "MatMul"}) && (fast || !is_full_only)) {
      continue;
    }
    const std::vector<std::size_t> weights = weight_inputs(m, l, i, kind);
    if (weights.size() != 1) {
      continue;
    }
    const auto q = std::find_if(quantizers.begin(), quantizers.end(), [&](const auto& other) {
      return other.weights_of && other.value == n.inputs[weights[0]];
    });
    std::optional<node_input> bias;
    if (kind == "MatMul") {
      const auto users = l.consumers(n.outputs[0]);
      if (users.size() == 1 && m.nodes[users[0]].is("Add") && !m.is_output(n.outputs[0])) {
        const std::size_t side = m.nodes[users[0]].inputs[0] == n.outputs[0] ? 1 : 0;
        bias = node_input{users[0], side};
      }
    } else if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
      bias = node_input{i, 2};
    }
    const bool usable = q != quantizers.end() && bias &&
                        float_constant(m, m.nodes[bias->node], bias->input) != nullptr &&
                        has_bias_of_columns(m, n, kind, weights[0]);
    if (usable) {
      const bool is_convolution = !is_among(kind, {"Gemm", "MatMul"});
      found.push_back({i, *bias, is_convolution ? 0 : 1 - weights[0], weights[0],
                       static_cast<std::size_t>(q - quantizers.begin()), is_convolution});
    }
  }
  return found;
}

/// The sums of what biased layers take and make in float.
class biased_means {
 public:
  /// Sums of nothing.
  biased_means() = default;
  biased_means(const model& m, const std::vector<biased_layer>& layers) {
    for (const biased_layer& layer : layers) {
      const node& n = m.nodes[layer.node];
      sums_.emplace(std::pair(n.inputs[layer.input], layer.is_convolution),
                    channel_sums(layer.is_convolution));
      sums_.emplace(std::pair(n.outputs[0], layer.is_convolution),
                    channel_sums(layer.is_convolution));
    }
  }
  void add(const std::string& name, const tensor& value) {
    for (const bool is_convolution : {false, true}) {
      const auto found = sums_.find({name, is_convolution});
      if (found != sums_.end() && value.type() == element_type::f32) {
        found->second.add(value);
      }
    }
  }
  [[nodiscard]] const channel_sums& of(const std::string& name, bool is_convolution) const {
    return sums_.at({name, is_convolution});
  }
  /// Takes the sums that are for the same values from other means. Throws invalid_argument, naming
  /// the value, if one of them is missing there.
  void take(const biased_means& from) {
    for (auto& [key, sums] : sums_) {
      const auto found = from.sums_.find(key);
      require(found != from.sums_.end(), error_kind::invalid_argument, "there are no means of '",
              key.first, "' for bias correction");
      sums = found->second;
    }
  }

  void write(detent::detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(sums_.size()));
    for (const auto& [key, sums] : sums_) {
      graph::detail::put_text(out, key.first);
      detent::detail::put_choice(out, key.second);
      sums.write(out);
    }
  }
  /// Adds the sums that write() appended. Throws bad_file for impossible ones.
  void read(detent::detail::byte_reader& in) {
    // Each entry has more bytes than its text has in front.
    for (std::size_t left = in.get_size(in.rest() / sizeof(std::uint64_t)); left > 0; --left) {
      const std::string name = graph::detail::get_text(in);
      const bool is_convolution = detent::detail::get_choice(in, true, "a mean");
      channel_sums sums(is_convolution);
      of_tensor(name, [&] { sums.read(in); });
      sums_.emplace(std::pair(name, is_convolution), std::move(sums));
    }
  }

 private:
  std::map<std::pair<std::string, bool>, channel_sums> sums_;
};

/// Corrects the biases of a model.
class bias_corrector {
 public:
  bias_corrector(model& m, const std::vector<placed_quantizer>& quantizers,
                 const std::vector<quantizer_parameters>& parameters,
                 const std::vector<biased_layer>& layers, const biased_means& means,
                 std::optional<double> threshold, const executor_options& options)
      : m_(m),
        quantizers_(quantizers),
        parameters_(parameters),
        layers_(layers),
        means_(means),
        threshold_(threshold),
        options_(options),
        names_(m) {}

  /// For each bias that was corrected, where it is and the name of the constant before.
  [[nodiscard]] const std::map<node_input, std::string>& before() const noexcept { return before_; }

  /// Corrects by the fast method.
  std::vector<bias_shift> run_fast() {
    std::vector<bias_shift> shifts;
    for (const biased_layer& layer : layers_) {
      const std::vector<double> shift = fast_shift(layer);
      shifts.push_back(correct(layer, shift, threshold_.value_or(2.0), 0.0));
    }
    return shifts;
  }

  /// Corrects by the full method. Draws the samples once; and twice for each layer, if the values
  /// in front of it need more than settled_front::most_bytes.
  std::vector<bias_shift> run_full(const calibration_source& samples) {
    model rounded = m_;
    for (std::size_t k = 0; k < quantizers_.size(); ++k) {
      if (quantizers_[k].weights_of) {
        tensor& w = rounded.initializers.at(quantizers_[k].value);
        w = rounded_weights(w, parameters_[k], quantizers_[k].config);
      }
    }
    graph::detail::settled_front runs(samples, options_);
    std::vector<bias_shift> shifts;
    for (const biased_layer& layer : layers_) {
      const node& n = m_.nodes[layer.node];
      // The layers behind have their biases behind this node, too.
      runs.advance(rounded, {}, graph::detail::values_across(rounded, layer.node));
      channel_sums sums(layer.is_convolution);
      runs.run(rounded, {}, {n.outputs[0]},
               [&](const std::vector<tensor>& results) { sums.add(results[0]); });
      constexpr double eps = 1e-7;
      shifts.push_back(correct(layer, difference(layer, sums), threshold_.value_or(1000.0), eps));
      const std::string& bias = m_.nodes[layer.bias.node].inputs[layer.bias.input];
      rounded.nodes[layer.bias.node].inputs[layer.bias.input] = bias;
      rounded.initializers[bias] = m_.initializers.at(bias);
    }
    return shifts;
  }

 private:
  [[nodiscard]] std::vector<double> difference(const biased_layer& layer,
                                               const channel_sums& quantized) const {
    const node& n = m_.nodes[layer.node];
    const channel_sums& exact = means_.of(n.outputs[0], layer.is_convolution);
    require(!exact.empty(), error_kind::invalid_argument, "there are no calibration samples");
    return mean_difference(exact, quantized, n.label());
  }

  /// The shift of each output channel, from the means of the input channels.
  [[nodiscard]] std::vector<double> fast_shift(const biased_layer& layer) const {
    const node& n = m_.nodes[layer.node];
    const channel_sums& seen = means_.of(n.inputs[layer.input], layer.is_convolution);
    require(!seen.empty(), error_kind::invalid_argument, "there are no calibration samples");
    const tensor input = seen.mean_value(options_.max_tensor_bytes, n.label());
    channel_sums sums(layer.is_convolution);
    sums.add(run_alone(layer, input));
    return difference(layer, sums);
  }

  /// The result of a layer alone, with rounded weights.
  [[nodiscard]] tensor run_alone(const biased_layer& layer, const tensor& input) const {
    model one;
    one.opsets = m_.opsets;
    one.inputs = {{"x", element_type::f32, false, {}, {}}};
    node n = m_.nodes[layer.node];
    one.initializers["w"] =
        rounded_weights(m_.initializers.at(n.inputs[layer.weights]), parameters_[layer.quantizer],
                        quantizers_[layer.quantizer].config);
    if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
      one.initializers["b"] = m_.initializers.at(n.inputs[2]);
      n.inputs[2] = "b";
    }
    n.inputs[layer.input] = "x";
    n.inputs[layer.weights] = "w";
    n.outputs = {"y"};
    one.outputs = {{"y", element_type::f32, false, {}, {}}};
    one.nodes = {std::move(n)};
    executor runner(std::move(one), options_);
    return runner.run({{"x", input}})[0];
  }

  /// Adds a shift to a bias, if the threshold allows it.
  [[nodiscard]] bias_shift correct(const biased_layer& layer, const std::vector<double>& shift,
                                   double threshold, double eps) {
    node& at = m_.nodes[layer.bias.node];
    bias_shift s{m_.nodes[layer.node].label(), shift, false};
    const tensor& old = m_.initializers.at(at.inputs[layer.bias.input]);
    const bool one_each = graph::detail::is_row_of_channels(
        old.dims(), static_cast<std::int64_t>(shift.size()), 0, old.rank());
    if (shift.empty() || (!one_each && old.count() != 1)) {
      return s;
    }
    const auto b = old.data<float>();
    double largest = 0.0;
    for (std::size_t c = 0; c < shift.size(); ++c) {
      const double base = static_cast<double>(b[one_each ? c : 0]);
      const double ratio = base == 0.0 && eps == 0.0 ? std::numeric_limits<double>::infinity()
                                                     : std::fabs(shift[c] / (base + eps));
      largest = ratio > largest || std::isnan(ratio) ? ratio : largest;
    }
    s.applied = largest < threshold;
    if (s.applied) {
      shape dims = old.dims();
      if (!one_each) {  // one value, whose dimensions count where an Add takes it
        dims.resize((std::max)(dims.size(), std::size_t{1}), 1);
        dims.back() = static_cast<std::int64_t>(shift.size());
      }
      tensor bias = tensor::allocate(element_type::f32, dims);
      for (std::size_t c = 0; c < shift.size(); ++c) {
        bias.mutable_data<float>()[c] =
            static_cast<float>(static_cast<double>(b[one_each ? c : 0]) + shift[c]);
      }
      const std::string name = names_.take(at.inputs[layer.bias.input] + "_corrected");
      m_.initializers[name] = std::move(bias);
      before_.emplace(layer.bias, at.inputs[layer.bias.input]);
      at.inputs[layer.bias.input] = name;
    }
    return s;
  }

  model& m_;
  const std::vector<placed_quantizer>& quantizers_;
  const std::vector<quantizer_parameters>& parameters_;
  const std::vector<biased_layer>& layers_;
  const biased_means& means_;
  std::optional<double> threshold_;
  executor_options options_;
  unused_names names_;
  std::map<node_input, std::string> before_;
};

}  // namespace detail
}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_BIAS_CORRECTION_HPP
