// SPDX-License-Identifier: BSD-3-Clause
// Replaces quantized regions of a model by integer operators: DequantizeLinear -> operator ->
// QuantizeLinear becomes one operator on 8-bit tensors. An operator that has no integer form stays
// a float operator between its Q and DQ nodes.
//
//   Conv, Gemm, MatMul (+Relu, Clip)    detent.QLinearConv, detent.QLinearGemm
//                                       exact 32-bit sums, one requantization; an Add of a constant
//                                       row behind a MatMul is its bias
//   Add, Sub, Mul, Div (+Relu, Clip)    detent.QLinearAdd ...
//                                       in float, element by element
//   activations, changes of scale       detent.Lookup: a table of all 256 values
//   BatchNormalization (+Relu, Clip)    detent.QLinearBatchNormalization: such a table for each
//                                       channel
//   averages                            detent.QLinearAveragePool ...: exact 32-bit sums
//   Concat                              detent.QLinearConcat: tables where scales differ
//   Reshape, Transpose, MaxPool ...     themselves, on 8-bit tensors
#ifndef DETENT_GRAPH_REWRITE_LOWER_HPP
#define DETENT_GRAPH_REWRITE_LOWER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/separate_compilation.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/model/unused_names.hpp>
#include <detent/graph/ops/element_movement.hpp>
#include <detent/graph/ops/unary_functions.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/graph/rewrite/dynamic_products.hpp>
#include <detent/graph/rewrite/fuse_additions.hpp>
#include <detent/graph/rewrite/integer_operators.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/quantized_values.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Rewrites a model in place; run() repeats until nothing changes.
class lowering {
 public:
  explicit lowering(model& m, integer_operators operators = integer_operators::detent)
      : m_(m), values_(m), form_(operators, m, values_), names_(m) {}
  lowering(const lowering&) = delete;
  lowering& operator=(const lowering&) = delete;
  ~lowering() = default;

  DETENT_GRAPH_DECL void run();

 private:
  bool lower_node(std::size_t i) {
    const node& n = m_.nodes[i];
    if (!n.domain.empty() || n.inputs.empty() || n.outputs.empty()) {
      return false;
    }
    if (n.op_type == "Conv") {
      return lower_conv(i);
    }
    if (n.op_type == "Gemm" || n.op_type == "MatMul") {
      return lower_gemm(i);
    }
    if (n.op_type == "Add" || n.op_type == "Sub" || n.op_type == "Mul" || n.op_type == "Div") {
      return lower_binary(i);
    }
    if (n.op_type == "AveragePool" || n.op_type == "GlobalAveragePool" ||
        n.op_type == "ReduceMean") {
      return lower_average(i);
    }
    if (n.op_type == "Concat") {
      return lower_concat(i);
    }
    if (n.op_type == "BatchNormalization") {
      return lower_batch_normalization(i);
    }
    if (n.op_type == "QuantizeLinear") {
      return lower_change_of_scale(i);
    }
    if (moves_elements(n)) {
      return lower_movement(i);
    }
    if (ops::is_unary_activation(n) || clamping_activation(m_, n)) {
      return lower_unary(i);
    }
    return false;
  }

  /// The name of a value's zero point, which is added where it is missing: QuantizeLinear and
  /// DequantizeLinear may leave it out, but other operators need it, and runtimes need it in the
  /// shape of the scale. "" if the value is not quantized.
  [[nodiscard]] std::string zero_point_of(const quantized_value& q) {
    if (!q.zero_point.empty() || q.scale.empty()) {
      return q.zero_point;
    }
    const std::string name = names_.take(q.name + "_zero_point");
    tensor zero = tensor::allocate(q.type, values_.constant(q.scale)->dims());
    std::memset(zero.mutable_raw(), 0, zero.bytes());
    m_.initializers[name] = std::move(zero);
    return name;
  }

  /// The inputs of an operator with two operands: both with their parameters, and those of the
  /// result.
  [[nodiscard]] std::vector<std::string> inputs_of(const quantized_value& a,
                                                   const quantized_value& b, const destination& d) {
    return {a.name,  a.scale,          zero_point_of(a), b.name,
            b.scale, zero_point_of(b), d.value.scale,    zero_point_of(d.value)};
  }

  /// Replaces node i by its lowered form, with the clamp that d needs. Quantization is monotonic,
  /// so clamping before it equals clamping to the quantized bounds after it.
  void replace(std::size_t i, node n, const destination& d) {
    if (form_.for_files()) {
      // can_make() has checked that the clamp does nothing.
    } else if (d.bounds && !d.is_quantized()) {
      n.attributes["lower"] = attribute::of(d.bounds->lower);
      n.attributes["upper"] = attribute::of(d.bounds->upper);
    } else if (d.bounds) {
      const grid clamp = values_.quantized_bounds(d);
      n.attributes["qmin"] = attribute::of(std::int64_t{clamp.qmin});
      n.attributes["qmax"] = attribute::of(std::int64_t{clamp.qmax});
    }
    n.name = m_.nodes[i].name;
    n.outputs = {d.value.name};
    for (const std::size_t k : d.absorbed) {
      clear(k);
    }
    m_.nodes[i] = std::move(n);
  }

  /// Empties a node, which erase_absorbed() then removes.
  void clear(std::size_t i) {
    m_.nodes[i].op_type.clear();
    m_.nodes[i].inputs.clear();
    m_.nodes[i].outputs.clear();
  }

  /// A layer's bias as inputs of its lowered form; both are empty if it has none.
  struct lowered_bias {
    std::string integers;  // int32 with scale x_scale * w_scale, which is added to the sums
    std::string floats;    // float32, which is added to results that are floats
  };

  /// An 8-bit result may differ by this part of a level because its bias is rounded.
  static constexpr double largest_bias_error = 1.0 / 32.0;

  /// The bias of a layer whose result goes to `d`; nothing if it cannot be represented. A bias that
  /// is already stored as int32 with scale x_scale * w_scale is used as it is. Any other one is
  /// rounded to that form if the result is stored in 8 bits and differs too little by it to matter,
  /// or if files have no other form; to a float result it is added as it is.
  [[nodiscard]] std::optional<lowered_bias> bias(const std::string& value, const quantized_value& x,
                                                 const quantized_value& w, std::size_t channels,
                                                 const destination& d) {
    if (value.empty()) {
      return lowered_bias();
    }
    const float x_scale = values_.constant(x.scale)->data<float>()[0];
    const auto w_scales = values_.constant(w.scale)->data<float>();
    std::vector<double> scales(channels);
    for (std::size_t i = 0; i < channels; ++i) {
      scales[i] = static_cast<double>(x_scale) *
                  static_cast<double>(w_scales[w_scales.size() == 1 ? 0 : i]);
    }
    std::vector<double> values(channels);
    if (const auto b = values_.dequantized(value)) {
      const tensor* q = values_.constant(b->name);
      if (q == nullptr || q->type() != element_type::s32 || !is_row(*q, channels) ||
          !is_zero_or_absent(b->zero_point)) {
        return std::nullopt;
      }
      const auto b_scales = values_.constant(b->scale)->data<float>();
      if (b_scales.size() != 1 && b_scales.size() != channels) {
        return std::nullopt;
      }
      bool same = true;
      for (std::size_t i = 0; i < channels; ++i) {
        const double scale = static_cast<double>(b_scales[b_scales.size() == 1 ? 0 : i]);
        same = same && std::fabs(scale - scales[i]) <= 1e-6 * scales[i];
        values[i] = scale * q->data<std::int32_t>()[i];
      }
      if (same) {
        return lowered_bias{b->name, {}};
      }
    } else {
      const tensor* f = values_.constant(value);
      if (f == nullptr || f->type() != element_type::f32 || !is_row(*f, channels)) {
        return std::nullopt;
      }
      std::copy(f->data<float>().begin(), f->data<float>().end(), values.begin());
    }
    if (!form_.for_files() && !d.is_quantized()) {
      const auto row = float_bias(value);
      return row ? std::optional(lowered_bias{{}, *row}) : std::nullopt;
    }
    const double tolerance =
        d.is_quantized()
            ? largest_bias_error *
                  static_cast<double>(values_.constant(d.value.scale)->data<float>()[0])
            : std::numeric_limits<double>::infinity();
    tensor q = tensor::allocate(element_type::s32, {static_cast<std::int64_t>(channels)});
    for (std::size_t i = 0; i < channels; ++i) {
      const double steps = std::nearbyint(values[i] / scales[i]);
      if (!(std::fabs(steps) < 2147483648.0) ||
          std::fabs(values[i] - steps * scales[i]) > tolerance) {
        return std::nullopt;
      }
      q.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>(steps);
    }
    const std::string name = names_.take(value + "_s32");
    m_.initializers[name] = std::move(q);
    return lowered_bias{name, {}};
  }

  /// Adds a bias to the inputs of a lowered layer that is not for files.
  static void add_bias(node& lowered, const lowered_bias& b) {
    lowered.inputs.push_back(b.integers);
    if (!b.floats.empty()) {
      lowered.inputs.push_back(b.floats);
    }
  }

  /// Whether a constant has one element for each channel, along its last axis: a Gemm may as well
  /// have a bias for each row.
  [[nodiscard]] static bool is_row(const tensor& t, std::size_t channels) {
    return is_row_of_channels(t.dims(), static_cast<std::int64_t>(channels), 0, t.rank());
  }

  /// Whether a zero point is absent or all 0: some tools write zero points of biases although they
  /// are 0.
  [[nodiscard]] bool is_zero_or_absent(const std::string& zero_point) const {
    if (zero_point.empty()) {
      return true;
    }
    const tensor& z = *values_.constant(zero_point);
    return std::all_of(z.raw(), z.raw() + z.bytes(), [](std::byte b) { return b == std::byte{0}; });
  }

  bool lower_conv(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = values_.activation(n.inputs[0]);
    const auto w = x ? values_.weights(input_or_none(n, 1), 0) : std::nullopt;
    if (!w) {
      return false;
    }
    const destination d = values_.destination_of(i);
    if (!form_.can_make(d) || !form_.can_convolve(*x, *w, d)) {
      return false;
    }
    const auto channels = static_cast<std::size_t>(values_.constant(w->name)->dim(0));
    const auto b = bias(input_or_none(n, 2), *x, *w, channels, d);
    if (!b) {
      return false;
    }
    node lowered = form_.make("QLinearConv");
    lowered.attributes = n.attributes;
    lowered.inputs = inputs_of(*x, *w, d);
    if (!form_.for_files()) {
      add_bias(lowered, *b);
    } else if (!b->integers.empty()) {
      lowered.inputs.push_back(b->integers);
    }
    replace(i, std::move(lowered), d);
    return true;
  }

  bool lower_gemm(std::size_t i) {
    const node& n = m_.nodes[i];
    const bool gemm = n.op_type == "Gemm";
    const bool transposed = gemm && n.get_int("transB", 0) != 0;
    if (gemm && !output_channel_axis(n)) {
      return false;
    }
    const auto x = values_.activation(n.inputs[0]);
    if (!x || (!gemm && values_.rank_of(n.inputs[0]) < 2)) {
      return false;
    }
    const auto w = values_.weights(input_or_none(n, 1), transposed ? 0 : 1);
    if (!w || values_.constant(w->name)->rank() != 2) {
      return gemm ? false : lower_activation_product(i, *x);
    }
    const auto channels =
        static_cast<std::size_t>(values_.constant(w->name)->dim(transposed ? 0 : 1));
    destination d = values_.destination_of(i);
    const bool files = form_.for_files();
    if (files && !d.is_quantized()) {
      return gemm ? lower_float_gemm(i, *x, *w, channels)
                  : lower_float_product(i, *x, *w, channels);
    }
    if (!form_.can_make(d) || !form_.can_multiply(*x, *w, d)) {
      return false;
    }
    auto b = bias(input_or_none(n, 2), *x, *w, channels, d);
    if (const auto addition = gemm || files ? std::nullopt : values_.bias_behind(i, channels)) {
      destination behind = values_.destination_of(addition->node);
      if (auto row = bias(addition->bias, *x, *w, channels, behind)) {
        b = std::move(row);
        d = std::move(behind);
        d.absorbed.push_back(addition->node);
      }
    }
    if (!b) {
      return false;
    }
    node lowered = form_.make(!files ? "QLinearGemm" : gemm ? "QGemm" : "QLinearMatMul");
    lowered.inputs = inputs_of(*x, *w, d);
    if (!files) {
      add_bias(lowered, *b);
    } else if (gemm) {  // MatMul has no bias
      lowered.inputs.insert(lowered.inputs.begin() + 6, b->integers);
    }
    if (gemm || !files) {
      lowered.attributes["transB"] = attribute::of(std::int64_t{transposed});
    }
    replace(i, std::move(lowered), d);
    return true;
  }

  /// Lowers a Gemm of constant weights whose result is float to QGemm of com.microsoft, which has
  /// no clamp.
  bool lower_float_gemm(std::size_t i, const quantized_value& x, const quantized_value& w,
                        std::size_t channels) {
    const node& n = m_.nodes[i];
    destination d;
    d.value.name = n.outputs[0];
    const auto b = bias(input_or_none(n, 2), x, w, channels, d);
    if (!form_.can_multiply(x, w) || !b) {
      return false;
    }
    node lowered = form_.make("QGemm");
    lowered.inputs = {x.name, x.scale, zero_point_of(x), w.name, w.scale, zero_point_of(w)};
    if (!b->integers.empty()) {
      lowered.inputs.push_back(b->integers);
    }
    lowered.attributes["transB"] = attribute::of(n.get_int("transB", 0));
    replace(i, std::move(lowered), d);
    return true;
  }

  /// Lowers a MatMul of constant weights whose result is float to MatMulIntegerToFloat of
  /// com.microsoft, together with the addition of a bias.
  bool lower_float_product(std::size_t i, const quantized_value& x, const quantized_value& w,
                           std::size_t channels) {
    if (!form_.can_multiply(x, w)) {
      return false;
    }
    destination d;
    d.value.name = m_.nodes[i].outputs[0];
    node lowered = form_.make("MatMulIntegerToFloat");
    lowered.inputs = {x.name, w.name, x.scale, w.scale, zero_point_of(x), zero_point_of(w)};
    const auto addition = values_.bias_behind(i, channels);
    if (const auto row = addition ? float_bias(addition->bias) : std::nullopt) {
      lowered.inputs.push_back(*row);
      d.value.name = m_.nodes[addition->node].outputs[0];
      d.absorbed.push_back(addition->node);
    }
    replace(i, std::move(lowered), d);
    return true;
  }

  /// The name of a constant bias as float32 of rank 1, which is added to the model if it is stored
  /// in another form; nothing if it is neither float32 nor int32 with zero points of 0.
  [[nodiscard]] std::optional<std::string> float_bias(const std::string& value) {
    const auto b = values_.dequantized(value);
    const tensor& t = *values_.constant(b ? b->name : value);
    const auto count = static_cast<std::int64_t>(t.count());
    if (!b) {
      if (t.type() != element_type::f32) {
        return std::nullopt;
      }
      if (t.rank() == 1) {
        return value;
      }
      const std::string name = names_.take(value + "_row");
      m_.initializers[name] = t.reshaped({count});
      return name;
    }
    const auto scales = values_.constant(b->scale)->data<float>();
    if (t.type() != element_type::s32 || !is_zero_or_absent(b->zero_point) ||
        (scales.size() != 1 && scales.size() != t.count())) {
      return std::nullopt;
    }
    std::vector<float> values;
    for (const std::int32_t code : t.data<std::int32_t>()) {
      values.push_back(static_cast<float>(code) * scales[scales.size() == 1 ? 0 : values.size()]);
    }
    const std::string name = names_.take(value + "_row");
    m_.initializers[name] = tensor::of<float>(element_type::f32, {count}, values);
    return name;
  }

  /// Lowers a MatMul of two activations to ONNX's own QLinearMatMul.
  bool lower_activation_product(std::size_t i, const quantized_value& x) {
    const auto y = values_.activation(input_or_none(m_.nodes[i], 1));
    const destination d = values_.destination_of(i);
    if (!y || !d.is_quantized() || d.bounds || !form_.can_make(d) ||
        !form_.can_multiply(x, *y, d)) {
      return false;
    }
    node lowered;
    lowered.op_type = "QLinearMatMul";
    lowered.inputs = inputs_of(x, *y, d);
    replace(i, std::move(lowered), d);
    return true;
  }

  bool lower_binary(std::size_t i) {
    const node& n = m_.nodes[i];
    if (n.inputs.size() != 2) {
      return false;
    }
    const auto a = values_.activation(n.inputs[0]);
    const auto b = values_.activation(n.inputs[1]);
    const destination d = values_.destination_of(i);
    if (!a || !b || a->type != b->type || !d.is_quantized() || !form_.can_make(d) ||
        (form_.for_files() &&
         ((n.op_type != "Add" && n.op_type != "Mul") || d.value.type != a->type))) {
      return false;
    }
    node lowered = form_.make("QLinear" + n.op_type);
    lowered.inputs = inputs_of(*a, *b, d);
    replace(i, std::move(lowered), d);
    return true;
  }

  bool lower_average(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = values_.activation(n.inputs[0]);
    const destination d = values_.destination_of(i);
    if (!x || !d.is_quantized() || d.bounds || !form_.can_make(d) ||
        values_.rank_of(n.inputs[0]) > 2 + ops::most_pooled_axes || !form_.can_average(n)) {
      return false;
    }
    node lowered = form_.make("QLinear" + n.op_type);
    lowered.attributes = n.attributes;
    if (n.op_type == "ReduceMean") {
      if (!means_over_image(n)) {
        return false;
      }
      lowered.op_type = "QLinearGlobalAveragePool";
      lowered.attributes.clear();
    }
    // In these operators the output has the type of the input.
    if (d.value.type != x->type) {
      return false;
    }
    lowered.inputs = {x->name, x->scale, zero_point_of(*x), d.value.scale, zero_point_of(d.value)};
    replace(i, std::move(lowered), d);
    return true;
  }

  /// Whether a ReduceMean is a global average pool: over all spatial axes, with keepdims.
  [[nodiscard]] bool means_over_image(const node& n) const {
    const std::size_t rank = values_.rank_of(n.inputs[0]);
    std::vector<std::int64_t> axes = n.get_ints("axes");
    if (n.inputs.size() > 1 && !n.inputs[1].empty()) {
      const tensor* given = values_.constant(n.inputs[1]);
      if (given == nullptr || given->type() != element_type::s64) {
        return false;
      }
      axes.assign(given->data<std::int64_t>().begin(), given->data<std::int64_t>().end());
    }
    if (rank < 3 || n.get_int("keepdims", 1) == 0 || axes.size() != rank - 2) {
      return false;
    }
    for (std::int64_t& a : axes) {
      a = a < 0 ? a + static_cast<std::int64_t>(rank) : a;
    }
    std::sort(axes.begin(), axes.end());
    for (std::size_t k = 0; k < axes.size(); ++k) {
      if (axes[k] != static_cast<std::int64_t>(k) + 2) {
        return false;
      }
    }
    return true;
  }

  bool lower_concat(std::size_t i) {
    const node& n = m_.nodes[i];
    const destination d = values_.destination_of(i);
    if (!d.is_quantized() || d.bounds || !form_.can_make(d)) {
      return false;
    }
    std::vector<quantized_value> pieces;
    for (const std::string& in : n.inputs) {
      const auto piece = values_.activation(in);
      if (!piece || (form_.for_files() && piece->type != d.value.type)) {
        return false;
      }
      pieces.push_back(*piece);
    }
    node lowered = form_.make("QLinearConcat");
    lowered.attributes = n.attributes;
    lowered.inputs = {d.value.scale, zero_point_of(d.value)};
    for (const quantized_value& piece : pieces) {
      lowered.inputs.insert(lowered.inputs.end(), {piece.name, piece.scale, zero_point_of(piece)});
    }
    replace(i, std::move(lowered), d);
    return true;
  }

  /// Lowers a BatchNormalization with constant parameters that does not train.
  bool lower_batch_normalization(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = values_.activation(n.inputs[0]);
    destination d = values_.destination_of(i);
    if (form_.for_files() || !x || !d.is_quantized() || n.inputs.size() != 5 ||
        n.outputs.size() != 1 || n.get_int("training_mode", 0) != 0 ||
        n.get_int("spatial", 1) == 0 || values_.rank_of(n.inputs[0]) < 2) {
      return false;
    }
    for (std::size_t k = 1; k < 5; ++k) {
      const tensor* t = values_.constant(n.inputs[k]);
      if (t == nullptr || t->type() != element_type::f32) {
        return false;
      }
    }
    node lowered = form_.make("QLinearBatchNormalization");
    lowered.attributes["epsilon"] = attribute::of(n.get_float("epsilon", 1e-5F));
    lowered.inputs = {x->name, x->scale, zero_point_of(*x)};
    lowered.inputs.insert(lowered.inputs.end(), n.inputs.begin() + 1, n.inputs.end());
    lowered.inputs.insert(lowered.inputs.end(), {d.value.scale, zero_point_of(d.value)});
    if (d.bounds) {  // The tables clamp in float, as the node does that they replace.
      lowered.attributes["lower"] = attribute::of(d.bounds->lower);
      lowered.attributes["upper"] = attribute::of(d.bounds->upper);
      d.bounds.reset();
    }
    replace(i, std::move(lowered), d);
    return true;
  }

  [[nodiscard]] node lookup(const quantized_value& x, const std::string& function) {
    node n;
    n.domain = "detent";
    n.op_type = "Lookup";
    attribute name;
    name.kind = attribute::kind_type::s;
    name.s = function;
    n.attributes["function"] = std::move(name);
    n.inputs = {x.name, x.scale, zero_point_of(x)};
    return n;
  }

  bool lower_unary(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = values_.activation(n.inputs[0]);
    const std::size_t q = values_.sole_quantizer(n.outputs[0]);
    if (!x || q == links::none) {
      return false;
    }
    if (form_.for_files()) {
      return lower_unary_for_files(i, *x, q);
    }
    node lowered;
    if (const auto bounds = clamping_activation(m_, n)) {
      lowered = lookup(*x, "Clip");
      lowered.attributes["lower"] = attribute::of(bounds->lower);
      lowered.attributes["upper"] = attribute::of(bounds->upper);
    } else {
      lowered = lookup(*x, n.op_type);
      lowered.attributes.insert(n.attributes.begin(), n.attributes.end());
      lowered.attributes["function_opset"] = attribute::of(m_.opset());
    }
    finish_lookup(i, std::move(lowered), q);
    return true;
  }

  /// Lowers Sigmoid and LeakyRelu, the two activations that com.microsoft has.
  bool lower_unary_for_files(std::size_t i, const quantized_value& x, std::size_t q) {
    const node& n = m_.nodes[i];
    if ((n.op_type != "Sigmoid" && n.op_type != "LeakyRelu") || values_.made_by(q).type != x.type) {
      return false;
    }
    node lowered = form_.make("QLinear" + n.op_type);
    lowered.attributes = n.attributes;
    lowered.inputs = {x.name, x.scale, zero_point_of(x)};
    finish_lookup(i, std::move(lowered), q);
    return true;
  }

  void finish_lookup(std::size_t i, node lowered, std::size_t q) {
    destination d;
    d.value = values_.made_by(q);
    if (q != i) {
      d.absorbed = {q};
    }
    lowered.inputs.insert(lowered.inputs.end(), {d.value.scale, zero_point_of(d.value)});
    replace(i, std::move(lowered), d);
  }

  /// Lowers a QuantizeLinear of a dequantized value: from one 8-bit grid to another, as a Clip
  /// without bounds.
  bool lower_change_of_scale(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = values_.activation(n.inputs[0]);
    if (form_.for_files() || !x || !values_.is_byte_quantizer(n)) {
      return false;
    }
    finish_lookup(i, lookup(*x, "Clip"), i);
    return true;
  }

  /// Whether windows of a MaxPool may lie in the padding only, as those with dilations may. Their
  /// result is -infinity. On bytes it is the lowest code, which a change of scale would make
  /// another number, not the lowest code of the new scale.
  [[nodiscard]] static bool may_pool_padding(const node& n) {
    const auto dilations = n.get_ints("dilations");
    return n.is("MaxPool") &&
           std::any_of(dilations.begin(), dilations.end(), [](std::int64_t d) { return d != 1; });
  }

  bool lower_movement(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = values_.activation(n.inputs[0]);
    const std::size_t q = values_.sole_quantizer(n.outputs[0]);
    const auto outputs = std::count_if(n.outputs.begin(), n.outputs.end(),
                                       [](const std::string& o) { return !o.empty(); });
    if (!x || q == links::none || outputs != 1) {
      return false;
    }
    const quantized_value result = values_.made_by(q);
    const bool same = values_.params(result) == values_.params(*x) && result.type == x->type;
    if ((form_.for_files() && (!same || !form_.can_move_bytes(n))) ||
        (!same && may_pool_padding(n))) {
      return false;
    }
    node& moved = m_.nodes[i];
    moved.inputs[0] = x->name;
    if (same) {
      moved.outputs[0] = result.name;
      clear(q);
      return true;
    }
    quantized_value between = *x;
    between.name = names_.take(n.outputs[0] + "_moved");
    moved.outputs[0] = between.name;
    finish_lookup(q, lookup(between, "Clip"), q);
    return true;
  }

  model& m_;
  quantized_values values_;
  integer_form form_;
  unused_names names_;
};

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void lowering::run() {
  m_.opsets[form_.for_files() ? "com.microsoft" : "detent"] = 1;
  bool changed = true;
  while (changed) {
    changed = false;
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      // A node may have become part of an earlier one in this sweep.
      changed = (!m_.nodes[i].op_type.empty() && lower_node(i)) || changed;
    }
    erase_absorbed(m_);
    values_.update();
  }
  remove_unused(m_);
  sort_and_check(m_);
  if (form_.for_files() && std::none_of(m_.nodes.begin(), m_.nodes.end(), [](const node& n) {
        return n.domain == "com.microsoft";
      })) {
    m_.opsets.erase("com.microsoft");
  }
}
#endif

/// Turns QuantizeLinear and DequantizeLinear of com.microsoft, which compute the same, into those
/// of ONNX.
inline void use_onnx_quantizers(model& m) {
  for (node& n : m.nodes) {
    if (n.domain == "com.microsoft" &&
        (n.op_type == "QuantizeLinear" || n.op_type == "DequantizeLinear")) {
      n.domain.clear();
    }
  }
}

}  // namespace detail

/// Replaces the quantized regions of a model by integer operators, in place. A region is an
/// operator between DequantizeLinear and QuantizeLinear nodes with constant parameters, all scales
/// finite and positive:
///
/// - Conv, Gemm and MatMul (with a following Relu or Clip) become detent.QLinearConv and
///   detent.QLinearGemm. Their sums are exact 32-bit integers; their result may be float. A bias
///   that is no multiple of x_scale * w_scale is added to float results as it is, and rounded to
///   one for 8-bit results, unless that changes these by more than 1/32 of a level: such a layer
///   stays in float.
/// - Add, Sub, Mul, Div, averages and Concat become the detent.QLinear... operator of that name.
/// - Unary activations and changes of scale become detent.Lookup, a table of all 256 values.
/// - BatchNormalization (with a following Relu or Clip) becomes detent.QLinearBatchNormalization,
///   one such table for each channel.
/// - Operators that only move elements run on the 8-bit tensors themselves.
///
/// All other operators stay in float, between their QuantizeLinear and DequantizeLinear nodes. The
/// result is for execution, not for files; to_qoperator() makes a form for files.
DETENT_GRAPH_DECL void lower_quantized(model& m);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL void lower_quantized(model& m) {
  detail::use_onnx_quantizers(m);
  if (detail::has_any(m, {"QuantizeLinear", "DequantizeLinear"})) {
    detail::lowering(m).run();
  }
}
#endif

/// Prepares a model for an executor: folds and fuses everything that can be, and lowers quantized
/// regions to integer operators if `integer` is true. Returns the rewritten model, which is for
/// execution, not for files: it contains operators of the domain "detent".
[[nodiscard]] DETENT_GRAPH_DECL model for_execution(model m, bool integer = true);

#if DETENT_GRAPH_DEFINES_EXECUTION
DETENT_GRAPH_DECL model for_execution(model m, bool integer) {
  detail::use_onnx_quantizers(m);  // simplify() keeps these apart from what it folds
  simplify(m);
  if (integer) {
    lower_quantized(m);
  }
  fold_constants(m, true);
  fuse_dynamic_products(m);
  fuse_additions(m);
  fuse_activations(m);
  remove_unused(m);
  return m;
}
#endif

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_LOWER_HPP
