// SPDX-License-Identifier: BSD-3-Clause
// Describes layers with constant weights as connections between channels, and scales their
// channels.
#ifndef DETENT_GRAPH_REWRITE_LINEAR_LAYER_HPP
#define DETENT_GRAPH_REWRITE_LINEAR_LAYER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/name_table.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// A node that multiplies its first input by constant float weights:
///
///     Conv           weights [outputs, inputs / group, kernel ...]
///     ConvTranspose  weights [inputs, outputs / group, kernel ...]
///     Gemm           weights [inputs, outputs], with transB [outputs, inputs]; transA = 0
///     MatMul         weights [inputs, outputs], as the right operand
///
/// It shares the tensors of the model and does not refer to the model itself.
struct linear_layer {
  std::size_t node_index = 0;  ///< Index of the node in the model.
  std::string label;           ///< Label of the node, for messages.
  std::size_t inputs = 0;      ///< Number of input channels.
  std::size_t outputs = 0;     ///< Number of output channels.
  std::size_t group = 1;       ///< Number of groups of a convolution; 1 for products.
  bool outputs_first = true;   ///< Whether axis 0 of the weights is that of the outputs.
  std::size_t kernel = 1;      ///< Number of weights of each connection: the size of the kernel.
  tensor weights;              ///< The weights, float32.
  tensor bias;  ///< The bias, float32; not defined() if there is none or it is not known.
  /// Whether the bias is absent, or a constant with one value or one for each output.
  bool known_bias = true;
  /// True for Conv and ConvTranspose, whose channels are axis 1; else they are the last axis.
  bool is_spatial = false;

  /// Calls f(first, output, input) for each pair of connected channels, in the order of memory. The
  /// weights of the connection are elements first .. first + kernel - 1 of `weights`.
  template <class F>
  void for_each_connection(const F& f) const {
    const auto rows = static_cast<std::size_t>(weights.dim(0));
    const auto columns = static_cast<std::size_t>(weights.dim(1));
    const std::size_t rows_of_group = rows / group;
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t first_of_group = r / rows_of_group * columns;
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t other = first_of_group + c;
        f((r * columns + c) * kernel, outputs_first ? r : other, outputs_first ? other : r);
      }
    }
  }
};

/// Describes node `i` as a linear layer. Returns nothing if it is not a Conv, ConvTranspose, Gemm
/// with transA = 0 or MatMul, if its weights are not a float32 constant, or if they do not have the
/// shape that the operator needs.
[[nodiscard]] inline std::optional<linear_layer> linear_layer_of(const model& m, std::size_t i) {
  const node& n = m.nodes[i];
  const bool transposed = n.is("ConvTranspose");
  const bool gemm = n.is("Gemm");
  linear_layer layer;
  layer.is_spatial = transposed || n.is("Conv");
  const tensor* weights = detail::float_constant(m, n, 1);
  if ((!layer.is_spatial && !gemm && !n.is("MatMul")) || weights == nullptr ||
      weights->count() == 0 || n.inputs[0].empty() || n.outputs.empty() ||
      (gemm && n.get_int("transA", 0) != 0)) {
    return std::nullopt;
  }
  if (layer.is_spatial ? weights->rank() < 3 : weights->rank() != 2) {
    return std::nullopt;
  }
  const std::int64_t group = layer.is_spatial ? n.get_int("group", 1) : 1;
  if (group < 1 || weights->dim(0) % group != 0) {
    return std::nullopt;
  }
  layer.node_index = i;
  layer.label = n.label();
  layer.weights = *weights;
  layer.group = static_cast<std::size_t>(group);
  layer.outputs_first = layer.is_spatial ? !transposed : gemm && n.get_int("transB", 0) != 0;
  const auto first = static_cast<std::size_t>(weights->dim(0));
  const auto second = static_cast<std::size_t>(weights->dim(1)) * layer.group;
  layer.outputs = layer.outputs_first ? first : second;
  layer.inputs = layer.outputs_first ? second : first;
  layer.kernel = weights->count() / (first * second / layer.group);
  if (n.inputs.size() > 2 && !n.inputs[2].empty()) {
    const tensor* bias = detail::float_constant(m, n, 2);
    const auto outputs = static_cast<std::int64_t>(layer.outputs);
    const bool broadcasts = bias != nullptr && gemm && bias->rank() <= 2 && bias->count() > 0 &&
                            (bias->count() == 1 || bias->dims().back() == outputs);
    layer.known_bias =
        broadcasts || (bias != nullptr && bias->rank() == 1 && bias->dim(0) == outputs);
    layer.bias = layer.known_bias ? *bias : tensor();
  }
  return layer;
}

namespace detail {

/// Replaces a constant input of a node; under a new name if anything else uses the constant. This
/// looks at all nodes: a pass that replaces constants of most nodes makes a constant_replacer.
inline void replace_constant(model& m, node& n, std::size_t input, tensor t) {
  const std::string& name = n.inputs[input];
  std::size_t uses = m.is_output(name) ? 2 : 0;
  for (const node& other : m.nodes) {
    uses += static_cast<std::size_t>(std::count(other.inputs.begin(), other.inputs.end(), name));
    uses += captured_values(other).count(name);
  }
  if (uses > 1) {
    n.inputs[input] = unused_names(m).take(name + "_scaled");
  }
  m.initializers[n.inputs[input]] = std::move(t);
}

/// Does replace_constant() for many nodes of a model, each in a time that does not depend on the
/// size of the model. While the object is in use, the inputs of nodes are changed by it alone.
class constant_replacer {
 public:
  explicit constant_replacer(model& m) : m_(m), names_(m), uses_(m.nodes.size()) {
    for (const node& n : m.nodes) {
      for (const std::string& name : n.inputs) {
        ++*uses_.add(name, 0).first;
      }
      for (const std::string& name : captured_values(n)) {
        ++*uses_.add(name, 0).first;
      }
    }
    for (const value_info& v : m.outputs) {
      *uses_.add(v.name, 0).first += 2;
    }
  }

  /// Replaces input `input` of the node `n` of the model.
  void replace(node& n, std::size_t input, tensor t) {
    std::string& name = n.inputs[input];
    std::size_t& uses = *uses_.add(name, 1).first;
    if (uses > 1) {
      --uses;
      name = names_.take(name + "_scaled");
      uses_.add(name, 1);
    }
    m_.initializers[name] = std::move(t);
  }
  /// Removes the inputs of the node `n` from index `count` on.
  void remove_inputs(node& n, std::size_t count) {
    for (std::size_t input = count; input < n.inputs.size(); ++input) {
      --*uses_.add(n.inputs[input], 1).first;
    }
    n.inputs.resize((std::min)(count, n.inputs.size()));
  }

 private:
  model& m_;
  unused_names names_;
  name_table<std::size_t> uses_;  // of each value, by nodes; an output of the model counts as two
};

/// Returns x * factor, rounded once to float. Throws overflow if x is finite and the result is not.
[[nodiscard]] inline float scaled_value(float x, double factor, const std::string& label) {
  const auto y = static_cast<float>(static_cast<double>(x) * factor);
  require(std::isfinite(y) || !std::isfinite(x), error_kind::overflow, label, ": the constant ", x,
          " times ", factor, " is not a float");
  return y;
}

/// A constant that is broadcast to `rank` dimensions, multiplied by one factor for each index along
/// `axis`. If it does not extend along that axis, it is repeated along it first. Throws
/// shape_mismatch if it has another number of indices there.
[[nodiscard]] inline tensor scaled_constant(const tensor& t, std::size_t rank, std::size_t axis,
                                            std::span<const double> factors,
                                            const std::string& label) {
  shape dims = t.dims();
  if (dims.size() < rank - axis) {
    dims.insert(dims.begin(), rank - axis - dims.size(), 1);
  }
  const std::size_t own_axis = dims.size() - (rank - axis);
  const bool grows = dims[own_axis] == 1 && factors.size() != 1;
  require(grows || dims[own_axis] == static_cast<std::int64_t>(factors.size()),
          error_kind::shape_mismatch, label, ": a constant of shape ", shown(t.dims()), " for ",
          factors.size(), " channels");
  dims[own_axis] = static_cast<std::int64_t>(factors.size());
  std::size_t inner = 1;
  for (std::size_t d = own_axis + 1; d < dims.size(); ++d) {
    inner *= static_cast<std::size_t>(dims[d]);
  }
  tensor out = tensor::allocate(element_type::f32, dims);
  const auto from = t.data<float>();
  const auto to = out.mutable_data<float>();
  for (std::size_t k = 0; k < to.size(); ++k) {
    const std::size_t source = grows ? k / (inner * factors.size()) * inner + k % inner : k;
    to[k] = scaled_value(from[source], factors[k / inner % factors.size()], label);
  }
  return out;
}

/// The bias with one value for each output in its last dimension.
[[nodiscard]] inline tensor bias_by_output(const linear_layer& layer) {
  if (layer.bias.rank() > 0 &&
      layer.bias.dims().back() == static_cast<std::int64_t>(layer.outputs)) {
    return layer.bias;
  }
  const std::vector<float> values(layer.outputs, layer.bias.data<float>()[0]);
  return tensor::of<float>(element_type::f32, {static_cast<std::int64_t>(layer.outputs)}, values);
}

/// The largest |w| of each connection, in the order of for_each_connection(). Throws
/// invalid_argument if a weight is not finite.
[[nodiscard]] inline std::vector<float> connection_magnitudes(const linear_layer& layer) {
  const auto w = layer.weights.data<float>();
  std::vector<float> magnitudes;
  magnitudes.reserve(w.size() / layer.kernel);
  layer.for_each_connection([&](std::size_t first, std::size_t output, std::size_t input) {
    float largest = 0.0F;
    for (std::size_t k = first; k < first + layer.kernel; ++k) {
      require(std::isfinite(w[k]), error_kind::invalid_argument, layer.label, ": the weight ", w[k],
              " of output ", output, ", input ", input, " is not finite");
      largest = (std::max)(largest, std::fabs(w[k]));
    }
    magnitudes.push_back(largest);
  });
  return magnitudes;
}

/// The largest |w| of each output channel, or of each input channel.
[[nodiscard]] inline std::vector<float> channel_magnitudes_of(const linear_layer& layer,
                                                              bool of_outputs) {
  const std::vector<float> connections = connection_magnitudes(layer);
  std::vector<float> magnitudes(of_outputs ? layer.outputs : layer.inputs, 0.0F);
  layer.for_each_connection([&](std::size_t first, std::size_t output, std::size_t input) {
    float& largest = magnitudes[of_outputs ? output : input];
    largest = (std::max)(largest, connections[first / layer.kernel]);
  });
  return magnitudes;
}

}  // namespace detail

/// The largest |w| among the weights of each output channel. Throws invalid_argument, naming the
/// node, if a weight is NaN or infinite.
[[nodiscard]] inline std::vector<float> output_magnitudes(const linear_layer& layer) {
  return detail::channel_magnitudes_of(layer, true);
}
/// The largest |w| among the weights of each input channel. Throws invalid_argument, naming the
/// node, if a weight is NaN or infinite.
[[nodiscard]] inline std::vector<float> input_magnitudes(const linear_layer& layer) {
  return detail::channel_magnitudes_of(layer, false);
}

/// Multiplies the weights and the bias of each output channel by `factors[output]`. Products are
/// rounded once to float; they are exact if a factor is a power of two and no value leaves the
/// range of normal floats. Constants that other nodes use as well are not changed: the layer gets
/// new ones.
///
/// Throws, naming the node: shape_mismatch if there are not as many factors as outputs; unsupported
/// if the bias is not a known constant; overflow if a product of a finite value is not finite.
inline void scale_outputs(model& m, const linear_layer& layer, std::span<const double> factors) {
  require(factors.size() == layer.outputs, error_kind::shape_mismatch, layer.label, ": ",
          factors.size(), " factors for ", layer.outputs, " outputs");
  require(layer.known_bias, error_kind::unsupported, layer.label, ": its bias is not a constant");
  tensor weights = tensor::allocate(element_type::f32, layer.weights.dims());
  const auto from = layer.weights.data<float>();
  const auto to = weights.mutable_data<float>();
  layer.for_each_connection([&](std::size_t first, std::size_t output, std::size_t /*input*/) {
    for (std::size_t k = first; k < first + layer.kernel; ++k) {
      to[k] = detail::scaled_value(from[k], factors[output], layer.label);
    }
  });
  node& n = m.nodes[layer.node_index];
  detail::replace_constant(m, n, 1, std::move(weights));
  if (layer.bias.defined()) {
    const tensor bias = detail::bias_by_output(layer);
    detail::replace_constant(m, n, 2, detail::scaled_constant(bias, 1, 0, factors, layer.label));
  }
}

/// Multiplies the weights of each input channel by `factors[input]`; the bias does not change.
/// Products are rounded once to float. A constant that other nodes use as well is not changed: the
/// layer gets a new one. Throws, naming the node: shape_mismatch if there are not as many factors
/// as inputs; overflow if a product of a finite weight is not finite.
inline void scale_inputs(model& m, const linear_layer& layer, std::span<const double> factors) {
  require(factors.size() == layer.inputs, error_kind::shape_mismatch, layer.label, ": ",
          factors.size(), " factors for ", layer.inputs, " inputs");
  tensor weights = tensor::allocate(element_type::f32, layer.weights.dims());
  const auto from = layer.weights.data<float>();
  const auto to = weights.mutable_data<float>();
  layer.for_each_connection([&](std::size_t first, std::size_t /*output*/, std::size_t input) {
    for (std::size_t k = first; k < first + layer.kernel; ++k) {
      to[k] = detail::scaled_value(from[k], factors[input], layer.label);
    }
  });
  detail::replace_constant(m, m.nodes[layer.node_index], 1, std::move(weights));
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_LINEAR_LAYER_HPP
