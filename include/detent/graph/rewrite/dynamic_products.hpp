// SPDX-License-Identifier: BSD-3-Clause
// Fuses the nodes with which dynamic quantization expresses a layer into one operator.
#ifndef DETENT_GRAPH_REWRITE_DYNAMIC_PRODUCTS_HPP
#define DETENT_GRAPH_REWRITE_DYNAMIC_PRODUCTS_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/rewrite/optimize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace detail {

/// Finds and fuses the layers of dynamic quantization in one model.
class dynamic_products {
 public:
  explicit dynamic_products(model& m) : m_(m), links_(m) {}

  void run() {
    for (std::size_t i = 0; i < m_.nodes.size(); ++i) {
      if (m_.nodes[i].is("ConvInteger") || m_.nodes[i].is("MatMulInteger")) {
        if (const std::optional<layer> found = find(i)) {
          fuse(*found);
        }
      }
    }
    erase_absorbed(m_);
  }

 private:
  /// The nodes of a layer by their index; links::none for those that it does without.
  struct layer {
    std::size_t product, cast, scaling;
    std::size_t scales = links::none;  ///< Multiplies the scales of x and of the weights.
    std::size_t addition = links::none;
    std::size_t quantizer;  ///< The DynamicQuantizeLinear that finds the scale of x.
    std::string scale;
    std::string weight_scale;  ///< Empty if the weights have none.
    std::string bias;          ///< Empty if there is none.
  };

  /// Where the axis of the output channels lies in results.
  struct channels {
    std::int64_t count;
    std::size_t behind;  ///< The number of axes behind it.
    std::size_t rank;    ///< The rank of the result, or 1 for products, whose rank may be unknown.
  };

  /// The layer around product `i`, if the nodes are those that dynamic quantization writes.
  [[nodiscard]] std::optional<layer> find(std::size_t i) const {
    const node& product = m_.nodes[i];
    const tensor* const w = m_.initializer(product.inputs[1]);
    const bool is_conv = product.is("ConvInteger");
    if (w == nullptr || (is_conv ? w->rank() < 3 : w->rank() != 2)) {
      return std::nullopt;
    }
    const channels c =
        is_conv ? channels{w->dim(0), w->rank() - 2, w->rank()} : channels{w->dim(1), 0, 1};
    layer l;
    l.product = i;
    l.cast = next(i, "Cast");
    l.scaling = next(l.cast, "Mul");
    if (l.scaling == links::none ||
        m_.nodes[l.cast].get_int("to", 0) != static_cast<std::int64_t>(element_type::f32)) {
      return std::nullopt;
    }
    l.scale = other_input(l.scaling, l.cast);
    const std::size_t maker = links_.producer(l.scale);
    if (maker != links::none && m_.nodes[maker].is("Mul")) {
      const node& both = m_.nodes[maker];
      const std::size_t constant = m_.initializer(both.inputs[1]) != nullptr ? 1 : 0;
      l.scales = maker;
      l.weight_scale = both.inputs[constant];
      l.scale = both.inputs[1 - constant];
      if (!lies_along(l.weight_scale, c)) {
        return std::nullopt;
      }
    }
    l.quantizer = links_.producer(l.scale);
    if (l.quantizer == links::none || !m_.nodes[l.quantizer].is("DynamicQuantizeLinear") ||
        output(l.quantizer, 1) != l.scale) {
      return std::nullopt;
    }
    l.addition = next(l.scaling, "Add");
    if (l.addition != links::none) {
      l.bias = other_input(l.addition, l.scaling);
      if (!lies_along(l.bias, c)) {
        l.addition = links::none;
        l.bias.clear();
      }
    }
    return l;
  }

  void fuse(const layer& l) {
    const node& product = m_.nodes[l.product];
    const auto zero_point = [&](std::size_t k) {
      return k < product.inputs.size() ? product.inputs[k] : std::string();
    };
    node fused = product;
    fused.domain = "detent";
    std::vector<std::size_t> absorbed{l.product, l.cast, l.scaling};
    if (is_only_for(l)) {
      fused.op_type = product.is("ConvInteger") ? "DynamicQuantizeConv" : "DynamicQuantizeMatMul";
      fused.inputs = {m_.nodes[l.quantizer].inputs[0], product.inputs[1], l.weight_scale,
                      zero_point(3), l.bias};
      absorbed.push_back(l.quantizer);
      if (l.scales != links::none) {
        absorbed.push_back(l.scales);
      }
    } else {
      fused.op_type += "ToFloat";
      fused.inputs = {product.inputs[0], product.inputs[1], l.scale, l.weight_scale,
                      zero_point(2),     zero_point(3),     l.bias};
    }
    // It takes the place of the last node: not all operands stand before the product.
    const std::size_t last = l.addition != links::none ? l.addition : l.scaling;
    fused.outputs = m_.nodes[last].outputs;
    for (const std::size_t k : absorbed) {
      m_.nodes[k].op_type.clear();
    }
    m_.nodes[last] = std::move(fused);
    m_.opsets["detent"] = 1;
  }

  /// Whether nothing but the layer uses what its quantizer makes.
  [[nodiscard]] bool is_only_for(const layer& l) const {
    const node& product = m_.nodes[l.product];
    const auto is_used_by = [&](const std::string& value, std::size_t user) {
      const auto users = links_.consumers(value);
      return !links_.is_output(value) && users.size() == 1 && users[0] == user;
    };
    const std::size_t scale_user = l.scales != links::none ? l.scales : l.scaling;
    return product.inputs.size() > 2 && product.inputs[0] == output(l.quantizer, 0) &&
           product.inputs[2] == output(l.quantizer, 2) &&
           is_used_by(product.inputs[0], l.product) && is_used_by(product.inputs[2], l.product) &&
           is_used_by(l.scale, scale_user) &&
           (l.scales == links::none || is_used_by(output(l.scales, 0), l.scaling));
  }

  /// The node of this type that alone takes the output of node `i`, or links::none.
  [[nodiscard]] std::size_t next(std::size_t i, std::string_view op_type) const {
    const std::size_t user = i == links::none ? i : sole_consumer(m_, links_, i);
    return user != links::none && m_.nodes[user].is(op_type) ? user : links::none;
  }

  /// Output `k` of node `i`, empty if it has none.
  [[nodiscard]] const std::string& output(std::size_t i, std::size_t k) const {
    static const std::string none;
    return k < m_.nodes[i].outputs.size() ? m_.nodes[i].outputs[k] : none;
  }

  /// The input of node `i`, which has two, that node `from` does not make.
  [[nodiscard]] const std::string& other_input(std::size_t i, std::size_t from) const {
    const node& n = m_.nodes[i];
    return n.inputs[n.inputs[0] == m_.nodes[from].outputs[0] ? 1 : 0];
  }

  /// Whether a value is a constant of floats, one for all channels or one for each of them, that
  /// does not change the shape of what it is broadcast to.
  [[nodiscard]] bool lies_along(const std::string& value, const channels& c) const {
    const tensor* const t = m_.initializer(value);
    if (t == nullptr || t->type() != element_type::f32 || t->rank() > c.rank) {
      return false;
    }
    return t->count() == 1 || (t->count() == static_cast<std::size_t>(c.count) &&
                               t->rank() > c.behind && t->dim(t->rank() - 1 - c.behind) == c.count);
  }

  model& m_;
  links links_;
};

}  // namespace detail

/// Fuses what dynamic quantization writes for a layer,
///
///     y = Cast(ConvInteger or MatMulInteger(x, w)) * (x_scale * w_scale) + bias
///
/// where a DynamicQuantizeLinear makes x and x_scale, w, w_scale and bias are constants, and
/// w_scale and bias may be missing. It becomes detent.DynamicQuantizeConv or DynamicQuantizeMatMul,
/// or, if other nodes use the quantized x too, detent.ConvIntegerToFloat or MatMulIntegerToFloat.
/// They compute the same bits. Other products stay as they are. The result is for execution, not
/// for files.
inline void fuse_dynamic_products(model& m) {
  if (detail::has_any(m, {"ConvInteger", "MatMulInteger"})) {
    detail::dynamic_products(m).run();
  }
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_REWRITE_DYNAMIC_PRODUCTS_HPP
