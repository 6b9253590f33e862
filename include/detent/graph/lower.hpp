// SPDX-License-Identifier: BSD-3-Clause
// Finds the integer form of a quantized model: DequantizeLinear -> operator -> QuantizeLinear
// becomes one operator on 8-bit tensors. What has no integer form keeps its float operator between
// its Q and DQ nodes.
//
//   Conv, Gemm, MatMul (+Relu, Clip)    detent.QLinearConv, detent.QLinearGemm
//                                       exact 32-bit sums, one requantization
//   Add, Sub, Mul, Div (+Relu, Clip)    detent.QLinearAdd ...
//                                       in float, element by element
//   activations, changes of scale       detent.Lookup: a table of all 256 values
//   averages                            detent.QLinearAveragePool ...: exact 32-bit sums
//   Concat                              detent.QLinearConcat: tables where scales differ
//   Reshape, Transpose, MaxPool ...     themselves, on 8-bit tensors
#ifndef DETENT_GRAPH_LOWER_HPP
#define DETENT_GRAPH_LOWER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/executor.hpp>
#include <detent/graph/ir.hpp>
#include <detent/graph/ops/unary_functions.hpp>
#include <detent/graph/optimize.hpp>
#include <detent/graph/tensor.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// Operators that move elements without looking at them, or that only compare them: they commute
/// with quantization if input and output share their parameters.
[[nodiscard]] inline bool moves_elements(const node& n) {
  static constexpr std::string_view names[] = {
      "Reshape", "Flatten", "Transpose", "Squeeze",      "Unsqueeze",    "Slice",   "Gather",
      "Expand",  "MaxPool", "Tile",      "SpaceToDepth", "DepthToSpace", "Identity"};
  if (n.is("Resize") || n.is("Upsample")) {
    return n.get_string("mode", "nearest") == "nearest";
  }
  return n.domain.empty() &&
         std::find(std::begin(names), std::end(names), n.op_type) != std::end(names);
}

namespace detail {

/// A quantized tensor: its name and those of its scale and zero point ("" where absent).
struct quantized_value {
  std::string name, scale, zero_point;
  element_type type = element_type::undefined;
  std::int64_t axis = 0;
};

/// Whose operators the integer form is made of.
enum class integer_operators : std::uint8_t {
  detent,  // for execution: everything there is a kernel for
  onnx,    // for files: ONNX's own and those of com.microsoft; what they lack stays as it is
};

class lowering {
 public:
  explicit lowering(model& m, integer_operators form = integer_operators::detent)
      : m_(m), for_files_(form == integer_operators::onnx), known_(infer_shapes(m)) {}

  void run() {
    m_.opsets[for_files_ ? "com.microsoft" : "detent"] = 1;
    bool changed = true;
    while (changed) {
      changed = false;
      const links l(m_);
      links_ = &l;
      for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
        // A node may have become part of an earlier one in this sweep.
        changed = (!m_.nodes[i].op_type.empty() && lower_node(i)) || changed;
      }
      erase_absorbed(m_);
    }
    links_ = nullptr;
    remove_unused(m_);
    sort_and_check(m_);
    if (for_files_ && std::none_of(m_.nodes.begin(), m_.nodes.end(),
                                   [](const node& n) { return n.domain == "com.microsoft"; })) {
      m_.opsets.erase("com.microsoft");
    }
  }

 private:
  static bool is_8bit(element_type t) { return t == element_type::u8 || t == element_type::s8; }

  [[nodiscard]] element_type type_of(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() ? element_type::undefined : found->second.type();
  }
  [[nodiscard]] std::size_t rank_of(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() ? 0 : found->second.rank();
  }
  [[nodiscard]] const tensor* constant(const std::string& value) const {
    const tensor* t = m_.initializer(value);
    return t != nullptr && t->has_data() ? t : nullptr;
  }

  static std::string input_or_none(const node& n, std::size_t i) {
    return i < n.inputs.size() ? n.inputs[i] : std::string();
  }

  /// What a float value is the dequantized form of; its scale is constant.
  [[nodiscard]] std::optional<quantized_value> dequantized(const std::string& value) const {
    const std::size_t i = value.empty() ? links::none : links_->producer(value);
    if (i == links::none || !m_.nodes[i].is("DequantizeLinear") || m_.nodes[i].inputs.size() < 2 ||
        m_.nodes[i].get_int("block_size", 0) != 0) {
      return std::nullopt;
    }
    const node& n = m_.nodes[i];
    const tensor* scale = constant(n.inputs[1]);
    const std::string zero_point = input_or_none(n, 2);
    if (scale == nullptr || scale->type() != element_type::f32 ||
        (!zero_point.empty() && constant(zero_point) == nullptr)) {
      return std::nullopt;
    }
    element_type type = zero_point.empty() ? element_type::undefined : constant(zero_point)->type();
    if (type == element_type::undefined) {
      const tensor* q = constant(n.inputs[0]);
      type = q != nullptr ? q->type() : type_of(n.inputs[0]);
    }
    return quantized_value{n.inputs[0], n.inputs[1], zero_point, type, n.get_int("axis", 1)};
  }

  /// The same for activations: 8 bits and one scale.
  [[nodiscard]] std::optional<quantized_value> activation(const std::string& value) const {
    const auto q = dequantized(value);
    return q && is_8bit(q->type) && constant(q->scale)->count() == 1 ? q : std::nullopt;
  }

  /// The one QuantizeLinear that uses a value, if nothing else does: 8 bits and one constant scale.
  [[nodiscard]] std::size_t sole_quantizer(const std::string& value) const {
    const auto& users = links_->consumers(value);
    if (users.size() != 1 || m_.is_output(value)) {
      return links::none;
    }
    const node& q = m_.nodes[users[0]];
    if (!q.is("QuantizeLinear") || q.inputs.size() < 2 || q.inputs[0] != value ||
        q.get_int("block_size", 0) != 0) {
      return links::none;
    }
    const tensor* scale = constant(q.inputs[1]);
    const std::string zero_point = input_or_none(q, 2);
    const element_type type =
        !zero_point.empty() && constant(zero_point) != nullptr    ? constant(zero_point)->type()
        : zero_point.empty() && q.get_int("output_dtype", 2) == 2 ? element_type::u8
                                                                  : element_type::undefined;
    return scale != nullptr && scale->type() == element_type::f32 && scale->count() == 1 &&
                   is_8bit(type)
               ? users[0]
               : links::none;
  }

  [[nodiscard]] quant_params params(const std::string& scale, const std::string& zero_point) const {
    quant_params p;
    p.scale = constant(scale)->data<float>()[0];
    if (!zero_point.empty()) {
      const tensor& z = *constant(zero_point);
      p.zero_point = z.type() == element_type::u8 ? std::int32_t{z.data<std::uint8_t>()[0]}
                                                  : std::int32_t{z.data<std::int8_t>()[0]};
    }
    return p;
  }

  /// Where the result of a node goes: through a clamping activation, if one follows, to a
  /// quantizer, if one follows that.
  struct destination {
    std::string output;             // the value that the lowered node makes
    std::string scale, zero_point;  // "" for float output
    std::optional<activation_bounds> bounds;
    std::vector<std::size_t> absorbed;  // nodes that become part of the lowered one
  };

  /// The zero point of a QuantizeLinear.
  [[nodiscard]] std::string output_zero_point(std::size_t q) {
    const node& n = m_.nodes[q];
    return zero_point_of({n.outputs[0], n.inputs[1], input_or_none(n, 2), element_type::u8});
  }

  [[nodiscard]] destination find_destination(std::size_t i) {
    destination d;
    d.output = m_.nodes[i].outputs[0];
    const std::size_t next = sole_consumer(m_, *links_, i);
    if (next != links::none && !m_.nodes[next].op_type.empty() &&
        m_.nodes[next].inputs[0] == d.output) {
      d.bounds = clamping_activation(m_, m_.nodes[next]);
      if (d.bounds) {
        d.output = m_.nodes[next].outputs[0];
        d.absorbed.push_back(next);
      }
    }
    const std::size_t q = sole_quantizer(d.output);
    if (q != links::none) {
      d.scale = m_.nodes[q].inputs[1];
      d.output = m_.nodes[q].outputs[0];
      d.zero_point = output_zero_point(q);
      d.absorbed.push_back(q);
    }
    return d;
  }

  [[nodiscard]] static grid levels_of(element_type t) {
    return t == element_type::s8 ? full_grid<std::int8_t> : full_grid<std::uint8_t>;
  }
  [[nodiscard]] element_type output_type(const destination& d) const {
    return d.zero_point.empty() ? element_type::u8 : constant(d.zero_point)->type();
  }

  /// The clamp of a quantized destination, in its steps.
  [[nodiscard]] grid quantized_bounds(const destination& d) const {
    const quant_params p = params(d.scale, d.zero_point);
    const grid levels = levels_of(output_type(d));
    return {reference::quantize(d.bounds->lower, p, levels),
            reference::quantize(d.bounds->upper, p, levels)};
  }

  /// Whether the operators at hand can make the destination: those of files have 8-bit outputs, and
  /// no clamp but that of the type.
  [[nodiscard]] bool can_express(const destination& d) const {
    return !for_files_ ||
           (!d.scale.empty() && (!d.bounds || quantized_bounds(d) == levels_of(output_type(d))));
  }

  /// ONNX lets the types of products differ. ONNX Runtime has kernels for results of the type of
  /// the first operand, and with int8 there for int8 only.
  [[nodiscard]] bool runtimes_have(const quantized_value& x, const quantized_value& w,
                                   const destination& d) const {
    return !for_files_ ||
           (output_type(d) == x.type && (x.type == element_type::u8 || w.type == element_type::s8));
  }

  /// ONNX Runtime's QLinearConv takes no others.
  [[nodiscard]] bool has_one_zero_point(const quantized_value& w) const {
    if (w.zero_point.empty()) {
      return true;
    }
    const tensor& zeros = *constant(w.zero_point);
    const std::byte* bytes = zeros.raw();
    return std::all_of(bytes, bytes + zeros.bytes(), [&](std::byte b) { return b == bytes[0]; });
  }

  [[nodiscard]] node integer_node(const char* op) const {
    node n;
    n.op_type = op;
    const bool is_onnx = n.op_type == "QLinearConv" || n.op_type == "QLinearMatMul";
    n.domain = !for_files_ ? "detent" : is_onnx ? "" : "com.microsoft";
    return n;
  }

  /// Puts the lowered form in place of node i, with the clamp that d asks for. Quantization is
  /// monotonic: clamping before it equals clamping to the quantized bounds after it.
  void replace(std::size_t i, node n, const destination& d) {
    if (for_files_) {
      // can_express() saw to it that the clamp does nothing.
    } else if (d.bounds && d.scale.empty()) {
      n.attributes["lower"] = attribute::of(d.bounds->lower);
      n.attributes["upper"] = attribute::of(d.bounds->upper);
    } else if (d.bounds) {
      const grid clamp = quantized_bounds(d);
      n.attributes["qmin"] = attribute::of(std::int64_t{clamp.qmin});
      n.attributes["qmax"] = attribute::of(std::int64_t{clamp.qmax});
    }
    n.name = m_.nodes[i].name;
    n.outputs = {d.output};
    for (const std::size_t k : d.absorbed) {
      m_.nodes[k].op_type.clear();
      m_.nodes[k].inputs.clear();
      m_.nodes[k].outputs.clear();
    }
    m_.nodes[i] = std::move(n);
  }

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

  /// Quantized weights: constant, 8 bits, one scale or one for each channel along `axis`.
  [[nodiscard]] std::optional<quantized_value> weights(const std::string& value,
                                                       std::int64_t axis) const {
    const auto w = dequantized(value);
    const tensor* q = w ? constant(w->name) : nullptr;
    if (q == nullptr || !is_8bit(q->type())) {
      return std::nullopt;
    }
    const auto rank = static_cast<std::int64_t>(q->rank());
    const std::int64_t stated = w->axis < 0 ? w->axis + rank : w->axis;
    if (axis >= rank || (constant(w->scale)->count() != 1 && stated != axis)) {
      return std::nullopt;
    }
    return w;
  }

  /// The bias of a layer as int32 with scale x_scale * w_scale; "" if there is none; nothing if it
  /// cannot be had. A bias that is already stored in that form is taken as it is.
  [[nodiscard]] std::optional<std::string> bias(const std::string& value, const quantized_value& x,
                                                const quantized_value& w, std::size_t channels) {
    if (value.empty()) {
      return std::string();
    }
    const float x_scale = constant(x.scale)->data<float>()[0];
    const auto w_scales = constant(w.scale)->data<float>();
    std::vector<double> scales(channels);
    for (std::size_t i = 0; i < channels; ++i) {
      scales[i] = static_cast<double>(x_scale) *
                  static_cast<double>(w_scales[w_scales.size() == 1 ? 0 : i]);
    }
    std::vector<double> values(channels);
    if (const auto b = dequantized(value)) {
      const tensor* q = constant(b->name);
      if (q == nullptr || q->type() != element_type::s32 || q->count() != channels ||
          !b->zero_point.empty()) {
        return std::nullopt;
      }
      const auto b_scales = constant(b->scale)->data<float>();
      bool same = true;
      for (std::size_t i = 0; i < channels; ++i) {
        const double scale = static_cast<double>(b_scales[b_scales.size() == 1 ? 0 : i]);
        same = same && std::fabs(scale - scales[i]) <= 1e-6 * scales[i];
        values[i] = scale * q->data<std::int32_t>()[i];
      }
      if (same) {
        return b->name;
      }
    } else {
      const tensor* f = constant(value);
      if (f == nullptr || f->type() != element_type::f32 || f->count() != channels) {
        return std::nullopt;
      }
      std::copy(f->data<float>().begin(), f->data<float>().end(), values.begin());
    }
    tensor q = tensor::allocate(element_type::s32, {static_cast<std::int64_t>(channels)});
    for (std::size_t i = 0; i < channels; ++i) {
      const double steps = std::nearbyint(values[i] / scales[i]);
      if (!(std::fabs(steps) < 2147483648.0)) {
        return std::nullopt;
      }
      q.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>(steps);
    }
    const std::string name = unused_name(m_, value + "_s32");
    m_.initializers[name] = std::move(q);
    return name;
  }

  bool lower_conv(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = activation(n.inputs[0]);
    const auto w = x ? weights(input_or_none(n, 1), 0) : std::nullopt;
    if (!w) {
      return false;
    }
    const destination d = find_destination(i);
    if (!can_express(d) || !runtimes_have(*x, *w, d) || (for_files_ && !has_one_zero_point(*w))) {
      return false;
    }
    const auto channels = static_cast<std::size_t>(constant(w->name)->dim(0));
    const auto b = bias(input_or_none(n, 2), *x, *w, channels);
    if (!b) {
      return false;
    }
    node lowered = integer_node("QLinearConv");
    lowered.attributes = n.attributes;
    lowered.inputs = {x->name,           x->scale, zero_point_of(*x), w->name, w->scale,
                      zero_point_of(*w), d.scale,  d.zero_point,      *b};
    if (for_files_ && b->empty()) {
      lowered.inputs.pop_back();
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
    const auto x = activation(n.inputs[0]);
    if (!x || (!gemm && rank_of(n.inputs[0]) < 2)) {
      return false;
    }
    const auto w = weights(input_or_none(n, 1), transposed ? 0 : 1);
    if (!w || constant(w->name)->rank() != 2) {
      return gemm ? false : lower_activation_product(i, *x);
    }
    const auto channels = static_cast<std::size_t>(constant(w->name)->dim(transposed ? 0 : 1));
    const destination d = find_destination(i);
    if (!can_express(d) || !runtimes_have(*x, *w, d)) {
      return false;
    }
    const auto b = bias(input_or_none(n, 2), *x, *w, channels);
    if (!b) {
      return false;
    }
    node lowered = integer_node(!for_files_ ? "QLinearGemm" : gemm ? "QGemm" : "QLinearMatMul");
    lowered.inputs = {x->name,           x->scale, zero_point_of(*x), w->name, w->scale,
                      zero_point_of(*w), d.scale,  d.zero_point,      *b};
    if (for_files_ && gemm) {
      std::rotate(lowered.inputs.begin() + 6, lowered.inputs.begin() + 8, lowered.inputs.end());
    } else if (for_files_) {
      lowered.inputs.pop_back();  // MatMul has no bias
    }
    if (gemm || !for_files_) {
      lowered.attributes["transB"] = attribute::of(std::int64_t{transposed});
    }
    replace(i, std::move(lowered), d);
    return true;
  }

  /// MatMul of two activations: ONNX's own QLinearMatMul.
  bool lower_activation_product(std::size_t i, const quantized_value& x) {
    const auto y = activation(input_or_none(m_.nodes[i], 1));
    destination d = find_destination(i);
    if (!y || d.scale.empty() || d.bounds || !can_express(d) || !runtimes_have(x, *y, d)) {
      return false;
    }
    node lowered;
    lowered.op_type = "QLinearMatMul";
    lowered.inputs = {x.name,   x.scale,           zero_point_of(x), y->name,
                      y->scale, zero_point_of(*y), d.scale,          d.zero_point};
    replace(i, std::move(lowered), d);
    return true;
  }

  /// QuantizeLinear and DequantizeLinear may leave zero points out. Other operators want them, and
  /// runtimes want them in the shape of the scale.
  [[nodiscard]] std::string zero_point_of(const quantized_value& q) {
    if (!q.zero_point.empty()) {
      return q.zero_point;
    }
    const std::string name = unused_name(m_, q.name + "_zero_point");
    tensor zero = tensor::allocate(q.type, constant(q.scale)->dims());
    std::memset(zero.mutable_raw(), 0, zero.bytes());
    m_.initializers[name] = std::move(zero);
    return name;
  }

  bool lower_binary(std::size_t i) {
    const node& n = m_.nodes[i];
    if (n.inputs.size() != 2) {
      return false;
    }
    const auto a = activation(n.inputs[0]);
    const auto b = activation(n.inputs[1]);
    const destination d = find_destination(i);
    if (!a || !b || a->type != b->type || d.scale.empty() || !can_express(d) ||
        (for_files_ && ((n.op_type != "Add" && n.op_type != "Mul") || output_type(d) != a->type))) {
      return false;
    }
    node lowered = integer_node(("QLinear" + n.op_type).c_str());
    lowered.inputs = {a->name,  a->scale,          zero_point_of(*a), b->name,
                      b->scale, zero_point_of(*b), d.scale,           d.zero_point};
    replace(i, std::move(lowered), d);
    return true;
  }

  bool lower_average(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = activation(n.inputs[0]);
    const destination d = find_destination(i);
    if (!x || d.scale.empty() || d.bounds || !can_express(d) ||
        (for_files_ && n.find("dilations") != nullptr)) {
      return false;
    }
    node lowered = integer_node(("QLinear" + n.op_type).c_str());
    lowered.attributes = n.attributes;
    if (n.op_type == "ReduceMean") {
      if (!means_over_image(n)) {
        return false;
      }
      lowered.op_type = "QLinearGlobalAveragePool";
      lowered.attributes.clear();
    }
    // The output has the input's type in these operators.
    if (output_type(d) != x->type) {
      return false;
    }
    lowered.inputs = {x->name, x->scale, zero_point_of(*x), d.scale, d.zero_point};
    replace(i, std::move(lowered), d);
    return true;
  }

  /// ReduceMean over all spatial axes with keepdims is a global average pool.
  [[nodiscard]] bool means_over_image(const node& n) const {
    const std::size_t rank = rank_of(n.inputs[0]);
    std::vector<std::int64_t> axes = n.get_ints("axes");
    if (n.inputs.size() > 1 && !n.inputs[1].empty()) {
      const tensor* given = constant(n.inputs[1]);
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
    const destination d = find_destination(i);
    if (d.scale.empty() || d.bounds || !can_express(d)) {
      return false;
    }
    node lowered = integer_node("QLinearConcat");
    lowered.attributes = n.attributes;
    lowered.inputs = {d.scale, d.zero_point};
    for (const std::string& in : n.inputs) {
      const auto piece = activation(in);
      if (!piece || (for_files_ && piece->type != output_type(d))) {
        return false;
      }
      lowered.inputs.insert(lowered.inputs.end(),
                            {piece->name, piece->scale, zero_point_of(*piece)});
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
    const auto x = activation(n.inputs[0]);
    const std::size_t q = sole_quantizer(n.outputs[0]);
    if (!x || q == links::none) {
      return false;
    }
    if (for_files_) {
      return lower_unary_for_files(i, *x, q);
    }
    node lowered = lookup(*x, n.op_type);
    if (const auto bounds = clamping_activation(m_, n)) {
      lowered = lookup(*x, "Clip");
      lowered.attributes["lower"] = attribute::of(bounds->lower);
      lowered.attributes["upper"] = attribute::of(bounds->upper);
    } else {
      lowered.attributes.insert(n.attributes.begin(), n.attributes.end());
      lowered.attributes["function_opset"] = attribute::of(m_.opset());
    }
    finish_lookup(i, std::move(lowered), q);
    return true;
  }

  /// com.microsoft has two of them.
  bool lower_unary_for_files(std::size_t i, const quantized_value& x, std::size_t q) {
    const node& n = m_.nodes[i];
    const std::string zero_point = input_or_none(m_.nodes[q], 2);
    const element_type out = zero_point.empty() ? element_type::u8 : constant(zero_point)->type();
    if ((n.op_type != "Sigmoid" && n.op_type != "LeakyRelu") || out != x.type) {
      return false;
    }
    node lowered = integer_node(("QLinear" + n.op_type).c_str());
    lowered.attributes = n.attributes;
    lowered.inputs = {x.name, x.scale, zero_point_of(x)};
    finish_lookup(i, std::move(lowered), q);
    return true;
  }

  void finish_lookup(std::size_t i, node lowered, std::size_t q) {
    destination d;
    d.scale = m_.nodes[q].inputs[1];
    d.zero_point = output_zero_point(q);
    d.output = m_.nodes[q].outputs[0];
    if (q != i) {
      d.absorbed = {q};
    }
    lowered.inputs.insert(lowered.inputs.end(), {d.scale, d.zero_point});
    replace(i, std::move(lowered), d);
  }

  /// QuantizeLinear of a dequantized value: from one 8-bit grid to another (a Clip without bounds).
  bool lower_change_of_scale(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = activation(n.inputs[0]);
    const tensor* scale = n.inputs.size() > 1 ? constant(n.inputs[1]) : nullptr;
    const std::string zero_point = input_or_none(n, 2);
    if (for_files_ || !x || scale == nullptr || scale->count() != 1 || zero_point.empty() ||
        constant(zero_point) == nullptr || !is_8bit(constant(zero_point)->type())) {
      return false;
    }
    finish_lookup(i, lookup(*x, "Clip"), i);
    return true;
  }

  /// Runtimes have these for both 8-bit types.
  [[nodiscard]] bool moves_bytes_in_files(const node& n) const {
    static constexpr std::string_view names[] = {"Reshape",   "Flatten", "Transpose", "Squeeze",
                                                 "Unsqueeze", "Slice",   "Gather",    "Expand",
                                                 "MaxPool",   "Tile",    "Identity",  "Resize"};
    return std::find(std::begin(names), std::end(names), n.op_type) != std::end(names) &&
           (!n.is("MaxPool") || m_.opset() >= 12);
  }

  bool lower_movement(std::size_t i) {
    const node& n = m_.nodes[i];
    const auto x = activation(n.inputs[0]);
    const std::size_t q = sole_quantizer(n.outputs[0]);
    const std::size_t outputs = static_cast<std::size_t>(std::count_if(
        n.outputs.begin(), n.outputs.end(), [](const auto& o) { return !o.empty(); }));
    if (!x || q == links::none || outputs != 1) {
      return false;
    }
    const std::string scale = m_.nodes[q].inputs[1];
    const std::string zero_point = input_or_none(m_.nodes[q], 2);
    const element_type out = zero_point.empty() ? element_type::u8 : constant(zero_point)->type();
    const bool same =
        params(scale, zero_point) == params(x->scale, x->zero_point) && out == x->type;
    if (for_files_ && (!same || !moves_bytes_in_files(n))) {
      return false;
    }
    node& moved = m_.nodes[i];
    moved.inputs[0] = x->name;
    if (same) {
      moved.outputs[0] = m_.nodes[q].outputs[0];
      m_.nodes[q].op_type.clear();
      m_.nodes[q].inputs.clear();
      m_.nodes[q].outputs.clear();
      return true;
    }
    quantized_value between = *x;
    between.name = unused_name(m_, n.outputs[0] + "_moved");
    moved.outputs[0] = between.name;
    finish_lookup(q, lookup(between, "Clip"), q);
    return true;
  }

  model& m_;
  bool for_files_;
  std::map<std::string, tensor> known_;
  const links* links_ = nullptr;
};

}  // namespace detail

/// Replaces what is quantized by its integer form; see the table above.
inline void lower_quantized(model& m) { detail::lowering(m).run(); }

/// What an executor should be given: everything folded and fused that can be. The result is for
/// execution, not for files. `integer`: whether quantized regions become integer operators.
[[nodiscard]] inline model for_execution(model m, bool integer = true) {
  simplify(m);
  if (integer) {
    lower_quantized(m);
  }
  fold_constants(m, true);
  fuse_activations(m);
  remove_unused(m);
  return m;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LOWER_HPP
