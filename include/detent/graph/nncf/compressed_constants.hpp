// SPDX-License-Identifier: BSD-3-Clause
// Writes compressed weights into a model, in the forms that NNCF chooses for ONNX:
//
//   one scale for each channel       DequantizeLinear(codes, scales[, zero points]) in place of the
//                                    constant
//   groups, opset 21 or above        the same, with block_size
//   groups, opset below 21           com.microsoft.MatMulNBits in place of MatMul or Gemm
//
// What is written differs from NNCF 3.4 where its own result does not run or is wrong: block_size
// goes along the axis of the groups (NNCF always writes axis 0); scales of a convolution are a
// vector; zero points of MatMulNBits are packed; and MatMulNBits gets no bias from an Add, since
// that node stays. Forms that ONNX does not have are errors.
#ifndef DETENT_GRAPH_NNCF_COMPRESSED_CONSTANTS_HPP
#define DETENT_GRAPH_NNCF_COMPRESSED_CONSTANTS_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/nncf/compress_weights_options.hpp>
#include <detent/graph/nncf/weight_groups.hpp>
#include <detent/graph/nncf/weighted_layers.hpp>
#include <detent/graph/ops/nbits_layout.hpp>
#include <detent/graph/quantize/nbits_constants.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/solvers/quantized_weights.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::nncf::detail {

/// How the weights of one layer are stored.
struct storage_format {
  compress_weights_mode mode = compress_weights_mode::int8_asym;
  std::size_t group_size = 0;  ///< 0: one scale for each channel.

  [[nodiscard]] integer_mode integers() const noexcept { return integer_mode::of(mode); }
};

/// Writes compressed weights into a model. The model must outlive the writer.
class compressed_constant_writer {
 public:
  explicit compressed_constant_writer(model& m) : m_(m), links_(m), writer_(m) {}

  /// Throws unsupported, naming the node, if ONNX cannot express the format.
  void check(const weighted_layer& layer, const storage_format& format) const {
    const node& n = m_.nodes[layer.node];
    const bool is_batch = layer.reduced_axis && m_.initializer(layer.weights)->rank() == 3;
    if (m_.opset() >= 21) {
      return;
    }
    require(!is_batch, error_kind::unsupported, n.label(),
            ": scales of weights with three dimensions need opset 21, and the model has ",
            m_.opset());
    require(format.group_size != 0 || format.integers().bits == 8, error_kind::unsupported,
            n.label(),
            ": weights of 4 bits with a scale for each channel need opset 21, and the "
            "model has ",
            m_.opset(), "; a group size can be given instead");
    if (format.group_size == 0) {
      return;
    }
    require(is_plain_product(n, layer), error_kind::unsupported, n.label(),
            ": groups in other nodes than MatMul(x, weights) and Gemm(x, weights, bias) without "
            "transA, alpha and beta need opset 21, and the model has ",
            m_.opset());
    require(format.group_size >= 16 && std::has_single_bit(format.group_size),
            error_kind::unsupported, n.label(), ": group size ", format.group_size,
            " needs opset 21, and the model has ", m_.opset(),
            ", with which it is a power of two of 16 or more");
    for (const std::size_t user : links_.consumers(layer.weights)) {
      require(takes_groups(m_.nodes[user], layer), error_kind::unsupported, n.label(),
              ": its weights are also an input of ", m_.nodes[user].label(),
              ", which takes groups only from opset 21 on, and the model has ", m_.opset());
    }
  }

  /// Writes the weights of a layer, for which check() passed.
  void write(const weighted_layer& layer, const storage_format& format, const integer_weights& q) {
    if (format.group_size != 0 && m_.opset() < 21) {
      write_products(layer, format, q);
    } else {
      write_dequantization(layer, format, q);
    }
  }

  /// Adds the nodes that were made to the model, puts the nodes in order, and removes
  /// what nothing uses any more. Ends the work of the writer.
  void finish() {
    m_.nodes.insert(m_.nodes.begin(), std::make_move_iterator(made_.begin()),
                    std::make_move_iterator(made_.end()));
    made_.clear();
    sort_and_check(m_);
    remove_unused(m_);
  }

 private:
  /// Whether a node computes x * weights, perhaps with a bias added.
  [[nodiscard]] static bool is_plain_product(const node& n, const weighted_layer& layer) {
    return layer.port == 1 && (n.is("MatMul") || (n.is("Gemm") && output_channel_axis(n)));
  }

  void write_dequantization(const weighted_layer& layer, const storage_format& format,
                            const integer_weights& q) {
    const shape dims = m_.initializer(layer.weights)->dims();
    const integer_mode mode = format.integers();
    const element_type type = mode.bits == 4
                                  ? (mode.asymmetric ? element_type::u4 : element_type::s4)
                                  : (mode.asymmetric ? element_type::u8 : element_type::s8);
    const bool has_blocks = format.group_size != 0 || (layer.reduced_axis && dims.size() == 3);
    shape of_scales = {static_cast<std::int64_t>(q.scales.size())};
    node dequantize = writer_.make_node("DequantizeLinear", layer.weights + "_DequantizeLinear", {},
                                        writer_.fresh(layer.weights + "_dequantized"));
    // ONNX Runtime 1.26 and later rounds the inputs of products with 8-bit weights of axis 1, but
    // not with those of axis -1, which NNCF writes.
    std::int64_t written_axis = graph::detail::axis_or_last(layer.channel_axis, dims.size());
    if (has_blocks) {
      const std::size_t axis = *layer.reduced_axis;
      written_axis = static_cast<std::int64_t>(axis);
      const std::int64_t block =
          format.group_size == 0 ? dims[axis] : static_cast<std::int64_t>(format.group_size);
      of_scales = dims;
      of_scales[axis] /= block;
      dequantize.attributes["block_size"] = attribute::of(block);
    }
    dequantize.attributes["axis"] = attribute::of(written_axis);
    dequantize.inputs = {
        add(layer.weights + "_quantized", type, dims, q.codes),
        writer_.add_values(layer.weights + "_scale", element_type::f32, of_scales, q.scales)};
    if (mode.asymmetric) {
      dequantize.inputs.push_back(
          add(layer.weights + "_zero_point", type, of_scales, q.zero_points));
    } else if (is_moved(layer.weights)) {
      const std::vector<std::int32_t> zeros(q.scales.size(), 0);
      dequantize.inputs.push_back(add(layer.weights + "_zero_point", type, of_scales, zeros));
    }
    if (mode.bits == 4) {
      m_.ir_version = (std::max)(m_.ir_version, ir_version_of_int4);
    }
    for (const std::size_t i : links_.consumers(layer.weights)) {
      std::vector<std::string>& inputs = m_.nodes[i].inputs;
      std::replace(inputs.begin(), inputs.end(), layer.weights, dequantize.outputs[0]);
    }
    made_.push_back(std::move(dequantize));
  }

  /// Whether an operator that moves elements takes the weights. Up to 1.26, ONNX Runtime quantizes
  /// what it makes of them once more, by a node without a zero point if these have none, whose type
  /// is then another one.
  [[nodiscard]] bool is_moved(const std::string& weights) const {
    const auto users = links_.consumers(weights);
    return std::any_of(users.begin(), users.end(), [&](std::size_t i) {
      const node& n = m_.nodes[i];
      return n.is("Transpose") || n.is("Reshape") || n.is("Squeeze") || n.is("Unsqueeze") ||
             n.is("Slice");
    });
  }

  /// Adds a constant of 8-bit elements, or of 4-bit ones, which take a byte in memory.
  template <class T>
  std::string add(const std::string& name, element_type type, const shape& dims,
                  const std::vector<T>& values) {
    std::vector<std::uint8_t> bytes(values.size());
    std::transform(values.begin(), values.end(), bytes.begin(),
                   [](T v) { return static_cast<std::uint8_t>(v); });
    return writer_.add_values(name, type, dims, bytes);
  }

  /// Replaces the layer, and all others that use the constant, by MatMulNBits.
  void write_products(const weighted_layer& layer, const storage_format& format,
                      const integer_weights& q) {
    const std::size_t reduced = *layer.reduced_axis;
    const tensor& w = *m_.initializer(layer.weights);
    const integer_mode mode = format.integers();
    const nbits_layout layout{static_cast<std::size_t>(mode.bits), format.group_size,
                              static_cast<std::size_t>(w.dim(reduced)),
                              static_cast<std::size_t>(w.dim(1 - reduced))};
    nbits_constants constants(
        layout, mode.asymmetric ? nbits_zero_points::integers : nbits_zero_points::none);
    constants.put(0, by_columns(layout, q, reduced == 0, mode));
    std::vector<std::string> inputs = {
        "", writer_.add_initializer(layer.weights + "_quantized", constants.codes()),
        writer_.add_initializer(layer.weights + "_scale", constants.scales()), ""};
    if (mode.asymmetric) {
      inputs[3] = writer_.add_initializer(layer.weights + "_zero_point", constants.zero_points());
    }
    m_.opsets.emplace("com.microsoft", 1);
    for (const std::size_t i : links_.consumers(layer.weights)) {
      replace(i, inputs, layout);
    }
  }

  /// Whether a node that uses the weights of the layer can become a MatMulNBits as the layer does:
  /// it multiplies by them along the same axis, and takes them once.
  [[nodiscard]] static bool takes_groups(const node& n, const weighted_layer& layer) {
    const std::size_t axis = n.is("Gemm") && n.get_int("transB", 0) != 0 ? 1 : 0;
    return std::count(n.inputs.begin(), n.inputs.end(), layer.weights) == 1 &&
           n.inputs.size() >= 2 && n.inputs[1] == layer.weights && is_plain_product(n, layer) &&
           axis == layer.reduced_axis;
  }

  /// The codes with a row for each output of the layer, and signed as solvers have them.
  [[nodiscard]] static quantized_weights by_columns(const nbits_layout& layout,
                                                    const integer_weights& q, bool is_turned,
                                                    integer_mode mode) {
    const std::int32_t middle = mode.asymmetric ? layout.default_zero_point() : 0;
    const auto rows = [&](const auto& from, std::size_t width, auto to) {
      for (std::size_t n = 0; n < layout.columns; ++n) {
        for (std::size_t k = 0; k < width; ++k) {
          to(from[is_turned ? k * layout.columns + n : n * width + k]);
        }
      }
    };
    quantized_weights r;
    r.rows = layout.columns;
    r.columns = layout.depth;
    rows(q.codes, layout.depth,
         [&](std::int32_t code) { r.codes.push_back(static_cast<std::int8_t>(code - middle)); });
    rows(q.scales, layout.blocks(), [&](float scale) { r.params.scales.push_back(scale); });
    if (mode.asymmetric) {
      rows(q.zero_points, layout.blocks(),
           [&](std::int32_t z) { r.params.zero_points.push_back(z - middle); });
    }
    return r;
  }

  void replace(std::size_t i, std::vector<std::string> inputs, const nbits_layout& layout) {
    const node old = m_.nodes[i];
    node product = writer_.make_node("MatMulNBits", name_or_output(old) + "_compressed_matmul", {},
                                     old.outputs[0]);
    product.domain = "com.microsoft";
    inputs[0] = old.inputs[0];
    if (old.inputs.size() > 2 && !old.inputs[2].empty()) {
      const tensor* bias = m_.initializer(old.inputs[2]);
      if (bias != nullptr && bias->rank() == 1 && bias->count() == layout.columns) {
        inputs.insert(inputs.end(), {"", old.inputs[2]});
      } else {
        product.outputs[0] = writer_.fresh(old.outputs[0] + "_product");
        made_.push_back(writer_.make_node("Add", name_or_output(old) + "_bias",
                                          {product.outputs[0], old.inputs[2]}, old.outputs[0]));
      }
    }
    while (inputs.back().empty()) {
      inputs.pop_back();
    }
    product.inputs = std::move(inputs);
    graph::detail::set_sizes(product, layout);
    product.attributes["accuracy_level"] = attribute::of(std::int64_t{0});
    m_.nodes[i] = std::move(product);
  }

  static constexpr std::int64_t ir_version_of_int4 = 10;

  model& m_;
  links links_;  // of the model as it was; nodes keep their places until finish()
  graph_writer writer_;
  std::vector<node> made_;
};

}  // namespace graph::nncf::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_NNCF_COMPRESSED_CONSTANTS_HPP
