// SPDX-License-Identifier: BSD-3-Clause
// Finds how the values of a quantized model are quantized: the parameters that the QuantizeLinear
// and DequantizeLinear nodes around an operator give to its operands and its result.
#ifndef DETENT_GRAPH_REWRITE_QUANTIZED_VALUES_HPP
#define DETENT_GRAPH_REWRITE_QUANTIZED_VALUES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/optimize.hpp>
#include <detent/graph/rewrite/value_shapes.hpp>
#include <detent/graph/run/executor.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// A quantized tensor: its name and the names of its scale and zero point ("" if absent).
struct quantized_value {
  std::string name, scale, zero_point;
  element_type type = element_type::undefined;
  std::int64_t axis = 0;
};

/// Where the result of a node goes: through the clamping activation and the quantizer that follow
/// it, if there are such.
struct destination {
  quantized_value value;  // the result of the integer form of the node
  std::optional<activation_bounds> bounds;
  std::vector<std::size_t> absorbed;  // nodes that the integer form replaces

  /// Whether the result is quantized. If not, it stays float, and `value` has a name only.
  [[nodiscard]] bool is_quantized() const noexcept { return !value.scale.empty(); }
};

/// A node that adds a constant to each column of a product, and the name of those constants, which
/// a DequantizeLinear may make.
struct bias_addition {
  std::size_t node;
  std::string bias;
};

/// Whether the type is uint8 or int8.
[[nodiscard]] inline bool is_8bit(element_type t) {
  return t == element_type::u8 || t == element_type::s8;
}

/// All values of int8, or of uint8 for any other type.
[[nodiscard]] inline grid full_grid_of(element_type t) {
  return t == element_type::s8 ? full_grid<std::int8_t> : full_grid<std::uint8_t>;
}

/// The name of input `i` of a node, or "" if it does not have that many.
[[nodiscard]] inline std::string input_or_none(const node& n, std::size_t i) {
  return i < n.inputs.size() ? n.inputs[i] : std::string();
}

/// Looks up quantized values and destinations in a model, which must outlive it and which it does
/// not change. update() must be called after nodes were added, removed or moved.
class quantized_values {
 public:
  explicit quantized_values(const model& m) : m_(m), types_(m), links_(m) {}

  void update() { links_ = links(m_); }

  /// The constant with that name if its elements are in memory, else null.
  [[nodiscard]] const tensor* constant(const std::string& value) const {
    const tensor* t = m_.initializer(value);
    return t != nullptr && t->has_data() ? t : nullptr;
  }
  /// The number of dimensions of a value, or 0 if it is not known or depends on the open dimensions
  /// of the model's inputs.
  [[nodiscard]] std::size_t rank_of(const std::string& value) const {
    return types_.rank(value).value_or(0);
  }

  /// The quantized form of a float32 value that a DequantizeLinear with constant parameters makes;
  /// nothing for other values.
  [[nodiscard]] std::optional<quantized_value> dequantized(const std::string& value) const {
    const std::size_t i = value.empty() ? links::none : links_.producer(value);
    if (i == links::none || !m_.nodes[i].is("DequantizeLinear") || m_.nodes[i].inputs.size() < 2 ||
        m_.nodes[i].get_int("block_size", 0) != 0) {
      return std::nullopt;
    }
    const node& n = m_.nodes[i];
    const tensor* scale = constant(n.inputs[1]);
    const std::string zero_point = input_or_none(n, 2);
    const auto f32 = static_cast<std::int64_t>(element_type::f32);
    if (scale == nullptr || scale->type() != element_type::f32 || scale->count() == 0 ||
        n.get_int("output_dtype", f32) != f32 ||
        (!zero_point.empty() && !is_zero_point_for(*scale, zero_point))) {
      return std::nullopt;
    }
    element_type type = zero_point.empty() ? element_type::undefined : constant(zero_point)->type();
    if (type == element_type::undefined) {
      const tensor* q = constant(n.inputs[0]);
      type = q != nullptr ? q->type() : types_.type(n.inputs[0]);
    }
    return quantized_value{n.inputs[0], n.inputs[1], zero_point, type, n.get_int("axis", 1)};
  }

  /// The quantized form of an activation: as dequantized(), but only with 8 bits and one scale that
  /// has_usable_scales() accepts.
  [[nodiscard]] std::optional<quantized_value> activation(const std::string& value) const {
    const auto q = dequantized(value);
    return q && is_8bit(q->type) && constant(q->scale)->count() == 1 && has_usable_scales(*q)
               ? q
               : std::nullopt;
  }

  /// The quantized form of weights: as dequantized(), but only if they are constant, have 8 bits
  /// and at least one element, and one scale or one for each channel along `axis`, which
  /// has_usable_scales() accepts.
  [[nodiscard]] std::optional<quantized_value> weights(const std::string& value,
                                                       std::int64_t axis) const {
    const auto w = dequantized(value);
    const tensor* q = w ? constant(w->name) : nullptr;
    if (q == nullptr || !is_8bit(q->type()) || q->count() == 0 || !has_usable_scales(*w)) {
      return std::nullopt;
    }
    const auto rank = static_cast<std::int64_t>(q->rank());
    const std::int64_t stated = w->axis < 0 ? w->axis + rank : w->axis;
    const std::size_t scales = constant(w->scale)->count();
    const bool fits =
        axis < rank &&
        (scales == 1 || (stated == axis && static_cast<std::int64_t>(scales) ==
                                               q->dim(static_cast<std::size_t>(axis))));
    return fits ? w : std::nullopt;
  }

  /// The QuantizeLinear that alone uses a value, if it has 8 bits and one constant scale; else
  /// links::none.
  [[nodiscard]] std::size_t sole_quantizer(const std::string& value) const {
    const auto& users = links_.consumers(value);
    if (users.size() != 1 || links_.is_output(value)) {
      return links::none;
    }
    const node& q = m_.nodes[users[0]];
    // A node whose sub-graph takes the value uses it, too, and may have no inputs.
    return is_byte_quantizer(q) && q.inputs[0] == value ? users[0] : links::none;
  }

  /// Whether a node is a QuantizeLinear to 8 bits with one constant float scale.
  [[nodiscard]] bool is_byte_quantizer(const node& q) const {
    if (!q.is("QuantizeLinear") || q.inputs.size() < 2 || q.get_int("block_size", 0) != 0) {
      return false;
    }
    const tensor* scale = constant(q.inputs[1]);
    const std::string zero_point = input_or_none(q, 2);
    if (scale == nullptr || scale->type() != element_type::f32 || scale->count() != 1) {
      return false;
    }
    return zero_point.empty()
               ? q.get_int("output_dtype", 2) == 2
               : is_zero_point_for(*scale, zero_point) && is_8bit(constant(zero_point)->type());
  }

  /// The quantized value that a QuantizeLinear to 8 bits makes.
  [[nodiscard]] quantized_value made_by(std::size_t quantizer) const {
    const node& n = m_.nodes[quantizer];
    const std::string zero_point = input_or_none(n, 2);
    return {n.outputs[0], n.inputs[1], zero_point,
            zero_point.empty() ? element_type::u8 : constant(zero_point)->type()};
  }

  /// Where the result of node `i` goes.
  [[nodiscard]] destination destination_of(std::size_t i) const {
    destination d;
    d.value.name = m_.nodes[i].outputs[0];
    for (std::size_t next = sole_consumer(m_, links_, i);
         next != links::none && !m_.nodes[next].op_type.empty() &&
         m_.nodes[next].inputs[0] == d.value.name;
         next = sole_consumer(m_, links_, next)) {
      const auto clamp = clamping_activation(m_, m_.nodes[next]);
      const auto both =
          clamp ? joined_bounds(d.bounds.value_or(activation_bounds()), *clamp) : std::nullopt;
      if (!both) {
        break;
      }
      d.bounds = both;
      d.value.name = m_.nodes[next].outputs[0];
      d.absorbed.push_back(next);
    }
    const std::size_t q = sole_quantizer(d.value.name);
    if (q != links::none) {
      d.value = made_by(q);
      d.absorbed.push_back(q);
    }
    return d;
  }

  /// The addition of a bias behind a MatMul, node `i`, with `channels` columns: an Add that alone
  /// takes the product, of a constant row. Nothing if the product goes elsewhere.
  [[nodiscard]] std::optional<bias_addition> bias_behind(std::size_t i,
                                                         std::size_t channels) const {
    const std::size_t next = sole_consumer(m_, links_, i);
    if (next == links::none || !m_.nodes[next].is("Add") || m_.nodes[next].inputs.size() != 2) {
      return std::nullopt;
    }
    const std::string& product = m_.nodes[i].outputs[0];
    const std::vector<std::string>& addends = m_.nodes[next].inputs;
    const std::string& bias = addends[addends[0] == product ? 1 : 0];
    const auto q = dequantized(bias);
    const tensor* values = constant(q ? q->name : bias);
    // The product has the rank of its left side, which may be known where the product is not.
    const std::size_t rank = (std::max)(rank_of(product), rank_of(m_.nodes[i].inputs[0]));
    if (values == nullptr ||
        !is_row_of_channels(values->dims(), static_cast<std::int64_t>(channels), 0, rank)) {
      return std::nullopt;
    }
    return bias_addition{next, bias};
  }

  /// The parameters of a quantized value that has one scale.
  [[nodiscard]] quant_params params(const quantized_value& value) const {
    quant_params p;
    p.scale = constant(value.scale)->data<float>()[0];
    if (!value.zero_point.empty()) {
      const tensor& z = *constant(value.zero_point);
      p.zero_point = z.type() == element_type::u8 ? std::int32_t{z.data<std::uint8_t>()[0]}
                                                  : std::int32_t{z.data<std::int8_t>()[0]};
    }
    return p;
  }

  /// The bounds of a quantized destination that has a clamp, as quantized values.
  [[nodiscard]] grid quantized_bounds(const destination& d) const {
    const quant_params p = params(d.value);
    const grid levels = full_grid_of(d.value.type);
    return {reference::quantize(d.bounds->lower, p, levels),
            reference::quantize(d.bounds->upper, p, levels)};
  }

 private:
  /// Whether a value is a constant with one zero point, or one for each scale. Nothing else has
  /// checked that: in a model with open dimensions, nodes that do not fit are found when they run.
  [[nodiscard]] bool is_zero_point_for(const tensor& scale, const std::string& value) const {
    const tensor* t = constant(value);
    return t != nullptr && (t->count() == 1 || t->count() == scale.count());
  }

  /// Whether all scales are finite and positive. DequantizeLinear takes negative ones, too, but
  /// integer operators refuse them: they would turn around the order of levels and bounds.
  [[nodiscard]] bool has_usable_scales(const quantized_value& q) const {
    const auto scales = constant(q.scale)->data<float>();
    return std::all_of(scales.begin(), scales.end(),
                       [](float s) { return std::isfinite(s) && s > 0.0F; });
  }

  const model& m_;
  value_types types_;
  links links_;
};

}  // namespace detail
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_QUANTIZED_VALUES_HPP
