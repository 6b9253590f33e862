// SPDX-License-Identifier: BSD-3-Clause
// Dynamic quantization: integer weights, and activations that are quantized by the range that they
// have in each run, so that no calibration samples are needed. The result has integer operators:
//
//   q, x_scale, x_zero_point = DynamicQuantizeLinear(x)                     uint8, per tensor
//   y = Cast(ConvInteger or MatMulInteger(q, w)) * (x_scale * w_scale) + bias
//
// Weights have one scale for each output channel and are symmetric, or one for the tensor with a
// zero point. They are stored as uint8, where 128 (or 128 more than an int8 zero point) stands for
// zero: ONNX Runtime has run ConvInteger with uint8 weights since its first release, with int8
// weights only since 1.24. Zero points are never per channel, which runtimes lack. An LSTM becomes
// com.microsoft.DynamicQuantizeLSTM, and tables of embeddings are stored in 8 bits. Everything else
// stays float.
#ifndef DETENT_GRAPH_QUANTIZE_DYNAMIC_QUANTIZATION_HPP
#define DETENT_GRAPH_QUANTIZE_DYNAMIC_QUANTIZATION_HPP

#include <algorithm>
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
#include <detent/graph/model/graph_writer.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/mapped_file.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/half_tensor.hpp>
#include <detent/graph/quantize/bias_correction.hpp>
#include <detent/graph/quantize/calibration.hpp>
#include <detent/graph/quantize/error_analysis.hpp>
#include <detent/graph/quantize/layer_weights.hpp>
#include <detent/graph/quantize/qdq.hpp>
#include <detent/graph/quantize/quantization_plan.hpp>
#include <detent/graph/quantize/quantization_scope.hpp>
#include <detent/graph/quantize/recurrent_weights.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Options of quantize_dynamic().
struct dynamic_quantization_options {
  /// Scales, bits and levels of the weights. By default the scales have the least squared error,
  /// and weights with one scale for the tensor have a zero point.
  layer_weight_options weights = {.scale = weight_scale::exact_mse, .asymmetric = true};
  /// Type that the weights are stored in: u8 or s8. Both give the same results; u8 runs in more
  /// runtimes (older releases of ONNX Runtime refuse ConvInteger with int8 weights).
  element_type weight_type = element_type::u8;
  /// Whether products become com.microsoft.DynamicQuantizeMatMul, one node for each, instead of
  /// ONNX's own operators.
  bool contrib_operators = false;
  quantization_scope scope = {};  ///< Nodes that stay in float, and settings of single operators.
  /// Called with each tensor of codes that is made; the model gets the tensor that it returns,
  /// which must have the same form and elements. tensor_store::keep() puts those of large models in
  /// a file. What it throws ends the quantization.
  std::function<tensor(tensor made)> keep_constant = {};
  /// Options of the executors that run models here; `parallel` is used by solvers, too.
  executor_options executor = {};
};

namespace detail {

/// Returns the quantized weights of the node at an index, or nothing if it is no layer that is
/// quantized.
using find_layer_weights = std::function<std::optional<layer_weights>(std::size_t node)>;

/// Returns the weights of the layers in `parameters`, which must outlive the result.
[[nodiscard]] inline find_layer_weights known_weights(const quantization_parameters& parameters) {
  return [&parameters](std::size_t i) {
    const auto found = parameters.layers.find(i);
    return found == parameters.layers.end() ? std::nullopt
                                            : std::optional<layer_weights>(found->second);
  };
}

/// Writes the model of a plan with dynamically quantized layers. Weights are asked for one layer at
/// a time, and dropped when they are in the model.
class dynamic_quantizer {
 public:
  dynamic_quantizer(const quantization_plan& plan, find_layer_weights weights_of,
                    const dynamic_quantization_options& options)
      : plan_(plan),
        weights_of_(std::move(weights_of)),
        options_(options),
        m_(plan.float_model()),
        writer_(m_) {}

  model run() {
    // Graph outputs keep their names, so intermediate values inside a rewritten layer get new ones.
    const std::vector<node> originals = std::move(m_.nodes);
    m_.nodes.clear();
    for (std::size_t i = 0; i < originals.size(); ++i) {
      if (const std::optional<layer_weights> weights = weights_of_(i)) {
        rewrite(originals[i], *weights);
      } else if (is_quantizable_lstm(m_, originals[i]) && !plan_.ignores(i)) {
        rewrite_lstm(originals[i], with_settings(options_.weights, plan_.settings(i)));
      } else {
        nodes_.push_back(originals[i]);
      }
    }
    m_.nodes = std::move(nodes_);
    m_.values.clear();
    set_producer(m_);
    remove_unused(m_);
    sort_and_check(m_);
    return std::move(m_);
  }

 private:
  struct dynamic_value {
    std::string codes, scale, zero_point;
  };

  /// Quantizes a value once, for all layers that take it.
  const dynamic_value& quantized(const std::string& value) {
    const auto found = quantized_.find(value);
    if (found != quantized_.end()) {
      return found->second;
    }
    const dynamic_value q{writer_.fresh(value + "_quantized"), writer_.fresh(value + "_scale"),
                          writer_.fresh(value + "_zero_point")};
    node n = writer_.make_node("DynamicQuantizeLinear", value + "_DynamicQuantizeLinear", {value},
                               q.codes);
    n.outputs = {q.codes, q.scale, q.zero_point};
    nodes_.push_back(std::move(n));
    return quantized_[value] = q;
  }

  std::string add(const char* op, const node& of, std::vector<std::string> inputs,
                  const std::string& output = {}) {
    const std::string wish = of.outputs[0] + "_" + op;
    nodes_.push_back(writer_.make_node(op, (of.name.empty() ? of.outputs[0] : of.name) + "_" + op,
                                       std::move(inputs),
                                       output.empty() ? writer_.fresh(wish) : output));
    return nodes_.back().outputs[0];
  }

  /// Adds the codes of the constant `name`, whose float elements are not needed in memory any more.
  std::string add_codes(const std::string& name, tensor codes) {
    release_pages(m_.initializers.at(name));
    return writer_.add_initializer(
        name + "_quantized",
        options_.keep_constant ? options_.keep_constant(std::move(codes)) : std::move(codes));
  }

  void rewrite(const node& n, const layer_weights& w) {
    const tensor* bias = float_constant(m_, n, 2);
    const bool is_conv = n.is("Conv");
    const auto channels = static_cast<std::int64_t>(w.codes.dim(w.axis));
    // Shape that broadcasts along the channels of the result: dimension 1 of images, the last of
    // products.
    shape along(is_conv ? w.codes.rank() - 1 : 1, 1);
    along[0] = channels;

    tensor codes = w.codes;
    if (!is_conv && w.axis == 0) {
      codes = transposed(codes);
    }
    const bool is_unsigned = options_.weight_type == element_type::u8;
    const std::string weights =
        add_codes(n.inputs[1], is_unsigned ? shifted_to_unsigned(codes) : std::move(codes));
    std::string zero_point;
    if (is_unsigned) {
      zero_point = writer_.add_values<std::uint8_t>(n.inputs[1] + "_zero_point", element_type::u8,
                                                    {}, {unsigned_code(w.zero_point)});
    } else if (w.zero_point != 0) {
      zero_point = writer_.add_values<std::int8_t>(n.inputs[1] + "_zero_point", element_type::s8,
                                                   {}, {static_cast<std::int8_t>(w.zero_point)});
    }
    if (options_.contrib_operators && !is_conv) {
      const std::string scale = writer_.add_values(n.inputs[1] + "_scale", element_type::f32,
                                                   parameter_shape(w.scales.size()), w.scales);
      std::vector<std::string> inputs{n.inputs[0], weights, scale, zero_point};
      if (bias != nullptr) {
        inputs.push_back(n.inputs[2]);
      } else if (zero_point.empty()) {
        inputs.pop_back();
      }
      add("DynamicQuantizeMatMul", n, std::move(inputs), n.outputs[0]);
      nodes_.back().domain = "com.microsoft";
      m_.opsets["com.microsoft"] = 1;
      return;
    }
    const std::string scale = writer_.add_initializer(
        n.inputs[1] + "_scale",
        tensor::of<float>(element_type::f32, w.scales.size() == 1 ? shape{} : along, w.scales));
    const dynamic_value x = quantized(n.inputs[0]);
    std::vector<std::string> inputs{x.codes, weights, x.zero_point};
    if (!zero_point.empty()) {
      inputs.push_back(zero_point);
    }
    const std::string sums = add(is_conv ? "ConvInteger" : "MatMulInteger", n, std::move(inputs));
    if (is_conv) {
      nodes_.back().attributes = n.attributes;
    }
    const std::string real = add("Cast", n, {sums});
    nodes_.back().attributes["to"] = attribute::of(static_cast<std::int64_t>(element_type::f32));
    const std::string step = add("Mul", n, {x.scale, scale});
    if (bias == nullptr) {
      add("Mul", n, {real, step}, n.outputs[0]);
      return;
    }
    const std::string scaled = add("Mul", n, {real, step});
    add("Add", n, {scaled, writer_.add_initializer(n.inputs[2] + "_along", bias->reshaped(along))},
        n.outputs[0]);
  }

  /// Replaces an LSTM by a DynamicQuantizeLSTM, which takes the weights transposed, and their
  /// scales and zero points behind the inputs of LSTM.
  void rewrite_lstm(node n, const layer_weight_options& weights) {
    n.domain = "com.microsoft";
    n.op_type = "DynamicQuantizeLSTM";
    n.attributes.erase("layout");
    n.inputs.resize(8);
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      const std::string name = n.inputs[i];
      const recurrent_weights w = of_tensor(name, [&] {
        return quantize_recurrent_weights(m_.initializers.at(name), weights.per_channel,
                                          weights.scale);
      });
      const std::int64_t directions = w.codes.dim(0);
      const bool per_channel = static_cast<std::int64_t>(w.scales.size()) > directions;
      const shape dims = per_channel ? shape{directions, w.codes.dim(2)} : shape{directions};
      const bool is_unsigned = options_.weight_type == element_type::u8;
      tensor zeros = tensor::allocate(options_.weight_type, dims);
      std::fill_n(zeros.mutable_raw(), zeros.bytes(), is_unsigned ? std::byte{128} : std::byte{0});
      n.inputs[i] = add_codes(name, is_unsigned ? shifted_to_unsigned(w.codes) : w.codes);
      n.inputs.push_back(writer_.add_values(name + "_scale", element_type::f32, dims, w.scales));
      n.inputs.push_back(writer_.add_initializer(name + "_zero_point", std::move(zeros)));
    }
    m_.opsets["com.microsoft"] = 1;
    nodes_.push_back(std::move(n));
  }

  /// The uint8 code of the int8 code `code` if zero moves by 128.
  [[nodiscard]] static std::uint8_t unsigned_code(std::int32_t code) {
    return static_cast<std::uint8_t>(code + 128);
  }

  [[nodiscard]] static tensor shifted_to_unsigned(const tensor& codes) {
    tensor out = tensor::allocate(element_type::u8, codes.dims());
    const auto from = codes.data<std::int8_t>();
    const auto to = out.mutable_data<std::uint8_t>();
    std::transform(from.begin(), from.end(), to.begin(), &unsigned_code);
    return out;
  }

  [[nodiscard]] static tensor transposed(const tensor& t) {
    tensor out = tensor::allocate(element_type::s8, {t.dim(1), t.dim(0)});
    const auto rows = static_cast<std::size_t>(t.dim(0));
    const auto columns = static_cast<std::size_t>(t.dim(1));
    const auto from = t.data<std::int8_t>();
    auto to = out.mutable_data<std::int8_t>();
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        to[j * rows + i] = from[i * columns + j];
      }
    }
    return out;
  }

  const quantization_plan& plan_;
  find_layer_weights weights_of_;
  const dynamic_quantization_options& options_;
  model m_;
  graph_writer writer_;
  std::vector<node> nodes_;
  std::map<std::string, dynamic_value> quantized_;
};

/// The decisions of dynamic quantization: no layer that lacks an integer operator is quantized.
[[nodiscard]] inline quantization_plan dynamic_plan(model m, const quantization_scope& scope) {
  quantization_plan plan(std::move(m), scope);
  std::set<std::size_t> without;
  for (const std::size_t i : plan.layers()) {
    if (plan.float_model().nodes[i].is("ConvTranspose")) {
      without.insert(i);
    }
  }
  if (!without.empty()) {
    plan.leave_out(without);
  }
  return plan;
}

}  // namespace detail

/// Quantizes a float model so that it needs no calibration samples: the weights of Conv, Gemm,
/// MatMul and LSTM become 8-bit integers, and their inputs are quantized in each run by the range
/// that they have then:
///
///     q, x_scale, x_zero_point = DynamicQuantizeLinear(x)
///     y = Cast(ConvInteger or MatMulInteger(q, w)) * (x_scale * w_scale) + bias
///
/// If samples are given, fast bias correction is tried as well: biases are corrected for the effect
/// of rounded weights on the means. It is kept if the outputs of the model for up to 64 samples
/// come closer to those of the float model; for this, the model must have a float output and only
/// operators that the executor can run. Tables of embeddings are stored in 8 bits, and the model is
/// simplified; other operators stay as they are.
///
/// Throws unsupported if the model is quantized already, or its opset is below 7 or beyond
/// newest_opset; invalid_argument if an entry of the options matches no node, for a weight_type
/// other than u8 and s8, for bits of weights outside of 2..8, or if weights are not finite, naming
/// them.
[[nodiscard]] DETENT_GRAPH_DECL model
quantize_dynamic(model m, const dynamic_quantization_options& options = {},
                 const calibration_source& samples = {});

#if DETENT_GRAPH_DEFINES_QUANTIZATION
DETENT_GRAPH_DECL model quantize_dynamic(model m, const dynamic_quantization_options& options,
                                         const calibration_source& samples) {
  require(options.weight_type == element_type::u8 || options.weight_type == element_type::s8,
          error_kind::invalid_argument, "weight_type is ", name(options.weight_type),
          ", expected uint8 or int8");
  const quantization_plan plan = detail::dynamic_plan(std::move(m), options.scope);
  const auto quantized = [&](std::size_t i) {
    // The bias is added in float, so it puts no limit on the scales of the weights.
    node without_bias = plan.float_model().nodes[i];
    without_bias.inputs.resize(2);
    return quantize_layer_weights(plan.float_model(), without_bias, 1.0F,
                                  with_settings(options.weights, plan.settings(i)),
                                  options.executor.parallel);
  };
  const std::set<std::size_t> layers(plan.layers().begin(), plan.layers().end());
  const bool can_be_judged =
      std::any_of(plan.float_model().outputs.begin(), plan.float_model().outputs.end(),
                  [](const value_info& v) { return fits_float(v.type); });
  if (!samples || layers.empty() || !can_be_judged ||
      !unsupported_nodes(plan.float_model()).empty()) {
    const detail::find_layer_weights one_by_one = [&](std::size_t i) {
      return layers.count(i) == 0 ? std::nullopt : std::optional<layer_weights>(quantized(i));
    };
    return detail::dynamic_quantizer(plan, one_by_one, options).run();
  }
  quantization_parameters p;
  for (const std::size_t i : layers) {
    p.layers.emplace(i, quantized(i));
  }
  const detail::find_layer_weights known = detail::known_weights(p);
  model plain = detail::dynamic_quantizer(plan, known, options).run();
  quantization_plan corrected = plan;
  static_cast<void>(
      correct_biases(corrected, p, samples, {.kind = bias_correction::fast}, options.executor));
  model other = detail::dynamic_quantizer(corrected, known, options).run();
  const output_judge judge(plan.float_model(), samples, 64, true, options.executor);
  return judge.noise_to_signal(other) < judge.noise_to_signal(plain) ? other : plain;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_DYNAMIC_QUANTIZATION_HPP
