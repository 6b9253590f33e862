// SPDX-License-Identifier: BSD-3-Clause
// A batch normalization that was folded into the layer before it, and is trained together with it.
#ifndef DETENT_GRAPH_QUANTIZE_TRAINED_NORMALIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_TRAINED_NORMALIZATION_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/folded_channels.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// The names and attributes of a normalization whose factor and shift are trained, beside the
/// weights of its layer as they were before they were folded. Names are those of the network that
/// is trained.
struct trained_normalization {
  /// Constants that FoldNormalization takes: the layer's weights; scale, shift, mean and variance.
  std::vector<std::string> inputs;
  /// Constants of the plan's float model: the weights and the bias of the folded layer.
  std::string folded_weights;
  std::string folded_bias;
  /// Results of FoldNormalization: folded weights and bias, and the factor of each channel.
  std::vector<std::string> results;
  /// Values with statistics of the batch: the layer's product, its quotient by the factor, the
  /// batch's mean and its variance.
  std::vector<std::string> batch_values;
  std::size_t axis = 0;  ///< Of the channels in the weights.
  float epsilon = 1e-5F;
  float momentum = 0.9F;

  /// Gives `m`, a model with the constants of the plan, the folded weights and bias that follow
  /// from the constants of `trained`, as folded_channels has it.
  void fold(const model& trained, model& m) const {
    const auto constant = [&](std::size_t k) -> const tensor& {
      return trained.initializers.at(inputs[k]);
    };
    const folded_channels folded{constant(1).data<float>(), constant(2).data<float>(),
                                 constant(3).data<float>(), constant(4).data<float>(),
                                 static_cast<double>(epsilon)};
    const tensor& w = constant(0);
    const auto channels = static_cast<std::size_t>(w.dim(axis));
    std::size_t inner = 1;
    for (std::size_t d = axis + 1; d < w.rank(); ++d) {
      inner *= static_cast<std::size_t>(w.dim(d));
    }
    std::vector<double> factors;
    std::vector<float> bias;
    for (std::size_t k = 0; k < channels; ++k) {
      factors.push_back(folded.factor(k));
      bias.push_back(folded.bias(k, 0.0));
    }
    std::vector<float> weights;
    for (std::size_t i = 0; i < w.count(); ++i) {
      weights.push_back(static_cast<float>(static_cast<double>(w.data<float>()[i]) *
                                           factors[i / inner % channels]));
    }
    m.initializers[folded_weights] = tensor::of<float>(element_type::f32, w.dims(), weights);
    m.initializers[folded_bias] =
        tensor::of<float>(element_type::f32, {static_cast<std::int64_t>(channels)}, bias);
  }

  /// The nodes that take the place of `layer`, which computes with quantized folded weights, where
  /// the statistics of the batch normalize: the layer without its bias, its quotient by the factor,
  /// and the normalization, which returns the layer's result.
  [[nodiscard]] std::vector<node> with_batch_statistics(node layer) const {
    const std::string result = layer.outputs[0];
    layer.inputs.resize(2);
    layer.outputs[0] = batch_values[0];
    const std::string& quotient = batch_values[1];
    node bn = make_node("BatchNormalization", result + "_normalization",
                        {quotient, inputs[1], inputs[2], inputs[3], inputs[4]}, result);
    bn.outputs = {result, batch_values[2], batch_values[3]};
    bn.attributes["training_mode"] = attribute::of(std::int64_t{1});
    bn.attributes["epsilon"] = attribute::of(epsilon);
    bn.attributes["momentum"] = attribute::of(momentum);
    std::vector<node> nodes;
    nodes.push_back(std::move(layer));
    nodes.push_back(make_node("Div", quotient, {batch_values[0], results[2]}, quotient));
    nodes.push_back(std::move(bn));
    return nodes;
  }
};

/// The normalization that was folded into `layer`, a node of a plan's float model. Adds its
/// constants and those of the layer to `network`, which `writer` writes.
[[nodiscard]] inline trained_normalization make_trained_normalization(const folded_normalization& n,
                                                                      const node& layer,
                                                                      model& network,
                                                                      graph_writer& writer) {
  trained_normalization f;
  f.axis = weight_channel_axis(layer);
  f.epsilon = n.normalization.get_float("epsilon", 1e-5F);
  f.momentum = n.normalization.get_float("momentum", 0.9F);
  f.folded_weights = layer.inputs[1];
  f.folded_bias = layer.inputs[2];
  const auto add = [&](const std::string& name) {
    f.inputs.push_back(writer.add_initializer(name + "_trained", n.constants.at(name)));
  };
  add(n.layer.inputs[1]);
  for (std::size_t k = 1; k < 5; ++k) {
    add(n.normalization.inputs[k]);
  }
  // The mean of the layer without its bias: the normalization cancels that.
  if (n.layer.inputs.size() > 2 && !n.layer.inputs[2].empty()) {
    const auto bias = n.constants.at(n.layer.inputs[2]).data<float>();
    tensor& mean = network.initializers.at(f.inputs[3]);
    std::vector<float> without(bias.begin(), bias.end());
    for (std::size_t k = 0; k < without.size(); ++k) {
      without[k] = mean.data<float>()[k] - without[k];
    }
    mean = tensor::of<float>(element_type::f32, mean.dims(), without);
  }
  const std::string& name = n.normalization.first_output();
  for (const char* result : {"_weights", "_bias", "_factor"}) {
    f.results.push_back(writer.fresh(name + result));
  }
  for (const char* value : {"_product", "_quotient", "_mean", "_variance"}) {
    f.batch_values.push_back(writer.fresh(name + value));
  }
  return f;
}

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_TRAINED_NORMALIZATION_HPP
