// SPDX-License-Identifier: BSD-3-Clause
// Writes a model with the quantizers that NNCF has placed, as QuantizeLinear/DequantizeLinear
// pairs. Weights are stored as levels, behind a DequantizeLinear. Biases stay in float.
#ifndef DETENT_GRAPH_NNCF_QUANTIZED_MODEL_HPP
#define DETENT_GRAPH_NNCF_QUANTIZED_MODEL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/placement.hpp>
#include <detent/graph/nncf/quantizer_parameters.hpp>
#include <detent/graph/ops/float8_levels.hpp>
#include <detent/graph/rewrite/onnxruntime_guards.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf {
namespace detail {

/// Where the elements of weights find their scales, for ops/float8_levels.hpp.
class weight_scales {
 public:
  weight_scales(const tensor& weights, const quantizer_parameters& p) : scales_(p.scales) {
    if (p.is_per_channel()) {
      for (std::size_t i = p.axis + 1; i < weights.rank(); ++i) {
        inner_ *= static_cast<std::size_t>(weights.dim(i));
      }
    }
  }
  [[nodiscard]] float operator()(std::size_t element) const noexcept {
    return scales_[element / inner_ % scales_.size()];
  }

 private:
  std::span<const float> scales_;
  std::size_t inner_ = 1;
};

/// The levels of float weights.
[[nodiscard]] inline tensor weight_levels(const tensor& weights, const quantizer_parameters& p,
                                          const quantizer_config& config) {
  tensor levels = tensor::allocate(p.type, weights.dims());
  if (is_float8(p.type)) {
    graph::detail::quantize_float8(weights, levels, 0, weights.count(), weight_scales(weights, p),
                                   true);
    return levels;
  }
  grid g = full_grid<std::int8_t>;
  if (config.narrow_range) {
    g.qmin = -g.qmax;
  }
  const tensor_view<const float> from = tensor_view_of<float>(weights);
  const tensor_view<std::int8_t> to = mutable_view_of<std::int8_t>(levels);
  if (p.is_per_channel()) {
    detent::quantize(from, to, channel_quant_params{p.axis, p.scales, p.zero_points}, g);
  } else {
    detent::quantize(from, to, quant_params{p.scales[0], p.zero_points[0]}, g);
  }
  return levels;
}

/// Weights as a quantized layer computes with them.
[[nodiscard]] inline tensor rounded_weights(const tensor& weights, const quantizer_parameters& p,
                                            const quantizer_config& config) {
  const tensor levels = weight_levels(weights, p, config);
  tensor out = tensor::allocate(element_type::f32, weights.dims());
  if (is_float8(p.type)) {
    graph::detail::dequantize_float8(levels, out, 0, levels.count(), weight_scales(weights, p));
    return out;
  }
  const tensor_view<const std::int8_t> from = tensor_view_of<std::int8_t>(levels);
  const tensor_view<float> to = mutable_view_of<float>(out);
  if (p.is_per_channel()) {
    detent::dequantize(from, to, channel_quant_params{p.axis, p.scales, p.zero_points});
  } else {
    detent::dequantize(from, to, quant_params{p.scales[0], p.zero_points[0]});
  }
  return out;
}

/// Adds quantizers to a model.
class quantizer_writer {
 public:
  explicit quantizer_writer(model m) : m_(std::move(m)), links_(m_), writer_(m_) {}

  model run(const std::vector<placed_quantizer>& quantizers,
            const std::vector<quantizer_parameters>& parameters, bool quantize_outputs) {
    for (std::size_t k = 0; k < quantizers.size(); ++k) {
      if (quantizers[k].weights_of) {
        add_weights(quantizers[k], parameters[k]);
      } else {
        add_pair(quantizers[k], parameters[k], quantize_outputs);
      }
    }
    m_.nodes.insert(m_.nodes.end(), added_.begin(), added_.end());
    m_.values.clear();
    set_producer(m_);
    sort_and_check(m_);
    remove_unused(m_);
    add_onnxruntime_guards(m_);
    return std::move(m_);
  }

 private:
  struct names {
    std::string scale;
    std::string zero_point;
  };

  names add_parameters(const std::string& base, const quantizer_parameters& p) {
    const shape dims =
        p.is_per_channel() ? shape{static_cast<std::int64_t>(p.scales.size())} : shape{};
    tensor zero_points = tensor::allocate(p.type, dims);
    for (std::size_t i = 0; i < p.zero_points.size(); ++i) {
      zero_points.mutable_raw()[i] = static_cast<std::byte>(p.zero_points[i] & 0xFF);
    }
    return {writer_.add_values(base + "_scale", element_type::f32, dims, p.scales),
            writer_.add_initializer(base + "_zero_point", std::move(zero_points))};
  }

  node make(const char* op, const std::string& base, const std::string& from, const names& with,
            const std::string& to, const quantizer_parameters& p) {
    node n = writer_.make_node(op, base + "_" + op, {from, with.scale, with.zero_point}, to);
    if (p.is_per_channel()) {
      n.attributes["axis"] = attribute::of(static_cast<std::int64_t>(p.axis));
    }
    return n;
  }

  /// Makes all nodes that take a value take another one.
  void replace(const std::string& value, const std::string& by) {
    for (const std::size_t i : links_.consumers(value)) {
      std::replace(m_.nodes[i].inputs.begin(), m_.nodes[i].inputs.end(), value, by);
    }
  }

  void add_pair(const placed_quantizer& q, const quantizer_parameters& p, bool quantize_outputs) {
    std::string from = q.value;
    if (q.only) {
      from = m_.nodes[q.only->node].inputs[q.only->input];  // behind another quantizer, maybe
    }
    bool makes_output = false;
    if (quantize_outputs && !q.only && links_.is_output(q.value) &&
        links_.producer(q.value) != links::none) {
      std::vector<std::string>& outputs = m_.nodes[links_.producer(q.value)].outputs;
      const auto made = std::find(outputs.begin(), outputs.end(), q.value);
      makes_output = made != outputs.end();  // else another quantizer makes it already
      if (makes_output) {
        from = writer_.fresh(q.value + "_float");
        *made = from;
      }
    }
    const names with = add_parameters(q.value, p);
    const std::string levels = writer_.fresh(q.value + "_quantized");
    const std::string real = makes_output ? q.value : writer_.fresh(q.value + "_dequantized");
    if (q.only) {
      for (std::string& in : m_.nodes[q.only->node].inputs) {
        in = in == from ? real : in;
      }
    } else if (!makes_output) {
      replace(q.value, real);
    }
    added_.push_back(make("QuantizeLinear", q.value, from, with, levels, p));
    added_.push_back(make("DequantizeLinear", q.value, levels, with, real, p));
  }

  void add_weights(const placed_quantizer& q, const quantizer_parameters& p) {
    const names with = add_parameters(q.value, p);
    const std::string levels = writer_.add_initializer(
        q.value + "_quantized", weight_levels(m_.initializers.at(q.value), p, q.config));
    const std::string real = writer_.fresh(q.value + "_dequantized");
    replace(q.value, real);
    node dequantize = make("DequantizeLinear", q.value, levels, with, real, p);
    if (p.is_per_channel()) {
      // Not the axis 1 of a product's weights, for which ONNX Runtime 1.26 and later rounds inputs
      // that are floats.
      dequantize.attributes["axis"] = attribute::of(
          graph::detail::axis_or_last(p.axis, m_.initializers.at(levels).dims().size()));
    }
    added_.push_back(std::move(dequantize));
  }

  model m_;
  links links_;  // of the model as it was given
  graph_writer writer_;
  std::vector<node> added_;
};

}  // namespace detail

/// Writes a float model with quantizers, whose parameters stand in the same order. With
/// `quantize_outputs`, the outputs of the model that a quantizer is for are what it makes; else
/// outputs stay as they are. Inputs and outputs keep their names. Throws invalid_argument if there
/// are not as many parameters as quantizers.
[[nodiscard]] inline model write_quantized(model m, const std::vector<placed_quantizer>& quantizers,
                                           const std::vector<quantizer_parameters>& parameters,
                                           bool quantize_outputs = false) {
  require(quantizers.size() == parameters.size(), error_kind::invalid_argument,
          "write_quantized: ", parameters.size(), " parameters for ", quantizers.size(),
          " quantizers");
  return detail::quantizer_writer(std::move(m)).run(quantizers, parameters, quantize_outputs);
}

}  // namespace graph::nncf
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_QUANTIZED_MODEL_HPP
