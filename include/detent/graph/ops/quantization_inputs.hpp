// SPDX-License-Identifier: BSD-3-Clause
// Reads scales and zero points from the inputs of nodes, and converts 8-bit operands to the
// signedness that integer products take: weights are always signed, and the left side of a
// convolution is unsigned.
#ifndef DETENT_GRAPH_OPS_QUANTIZATION_INPUTS_HPP
#define DETENT_GRAPH_OPS_QUANTIZATION_INPUTS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/epilogue.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Calls f(k, scale) for each scale of a tensor as a float, whatever type it is stored in. Throws
/// bad_file, naming the node, for a scale that is not positive and finite.
template <class Function>
void for_each_scale(const operator_context& c, const tensor& t, const Function& f) {
  const auto check = [&](std::size_t k, float s) {
    c.require(std::isfinite(s) && s > 0.0F, "scale ", s, " is not a positive finite number");
    f(k, s);
  };
  const bool known = visit_type(float_types{}, t.type(), [&]<class T>() {
    const auto values = t.data<T>();
    for (std::size_t k = 0; k < values.size(); ++k) {
      check(k, static_cast<float>(values[k]));
    }
  });
  if (!known) {
    c.require_supported(t.type() == element_type::f16 || t.type() == element_type::bf16,
                        "scales of type ", shown(t.type()));
    const auto bits = t.data<std::uint16_t>();
    for (std::size_t k = 0; k < bits.size(); ++k) {
      check(k, t.type() == element_type::f16 ? to_float(float16{bits[k]})
                                             : to_float(bfloat16{bits[k]}));
    }
  }
}

/// All scales of input i as floats. Throws as for_each_scale().
inline std::vector<float> read_scales(const operator_context& c, std::size_t i) {
  const tensor& t = c.input(i);
  std::vector<float> scales(t.count());
  for_each_scale(c, t, [&](std::size_t k, float s) { scales[k] = s; });
  return scales;
}

/// Calls f(k, zero_point) for each zero point of a tensor as an int32.
template <class Function>
void for_each_zero_point(const operator_context& c, const tensor& t, const Function& f) {
  using small_types =
      type_list<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t>;
  const element_type type = t.type() == element_type::u4   ? element_type::u8
                            : t.type() == element_type::s4 ? element_type::s8
                                                           : t.type();
  for_type(c, small_types{}, type, [&]<class T>() {
    const auto data = t.data<T>();
    for (std::size_t k = 0; k < data.size(); ++k) {
      f(k, std::int32_t{data[k]});
    }
  });
}

inline void require_zero_points(const operator_context& c, const tensor& t, std::size_t count) {
  c.require(t.count() == count || t.count() == 1, t.count(), " zero points for ", count, " scales");
}

/// The `count` zero points of input i: zeros if the input is absent, `count` copies if it has a
/// single one. Throws bad_file, naming the node, for any other number.
inline std::vector<std::int32_t> read_zero_points(const operator_context& c, std::size_t i,
                                                  std::size_t count) {
  if (!c.has_input(i)) {
    return std::vector<std::int32_t>(count, 0);
  }
  const tensor& t = c.inputs[i];
  require_zero_points(c, t, count);
  std::vector<std::int32_t> values(t.count());
  for_each_zero_point(c, t, [&](std::size_t k, std::int32_t z) { values[k] = z; });
  if (values.size() != count) {
    values.assign(count, values[0]);
  }
  return values;
}

/// Why read_params() does not support the scales at input `scale`; empty if it does.
inline std::string unsupported_scales(const operator_context& c, std::size_t scale) {
  const std::size_t scales = c.input(scale).count();
  return scales == 1 ? std::string()
                     : detent::detail::message("input ", scale, " has ", scales,
                                               " scales where one is expected");
}

/// The scale (input `scale`) and zero point (input `zero_point`, 0 if absent) of a whole tensor.
/// Throws unsupported, naming the node, if there is more than one scale.
inline quant_params read_params(const operator_context& c, std::size_t scale,
                                std::size_t zero_point) {
  const std::string unsupported = unsupported_scales(c, scale);
  c.require_supported(unsupported.empty(), unsupported);
  quant_params p;
  for_each_scale(c, c.input(scale), [&](std::size_t, float s) { p.scale = s; });
  if (c.has_input(zero_point)) {
    const tensor& z = c.inputs[zero_point];
    require_zero_points(c, z, 1);
    for_each_zero_point(c, z, [&](std::size_t, std::int32_t value) { p.zero_point = value; });
  }
  return p;
}

/// Says in infer() where read_params() will throw unsupported. Only the number of constant scales
/// is certain: that of others may follow from sizes that stand for open dimensions.
inline void expect_one_scale(const operator_context& c, std::size_t scale) {
  if (c.input(scale).has_data()) {
    const std::string unsupported = unsupported_scales(c, scale);
    c.expect_supported(unsupported.empty(), unsupported);
  }
}

/// An 8-bit tensor as uint8 values. An int8 tensor becomes one by adding 128 to its values and to
/// its zero point.
struct unsigned_operand {
  tensor values;
  std::int32_t zero_point = 0;
};

/// A copy of an 8-bit tensor with the top bit of each value flipped, as elements of `type`: int8
/// plus 128 as uint8, or uint8 minus 128 as int8.
inline tensor flip_sign(const tensor& t,
                        const std::function<std::shared_ptr<std::byte>(std::size_t)>& allocate,
                        element_type type) {
  tensor out = t.form().retyped(type);
  out.set_storage(allocate(out.bytes()));
  const auto* from = reinterpret_cast<const std::uint8_t*>(t.raw());
  auto* to = reinterpret_cast<std::uint8_t*>(out.mutable_raw());
  // A copy of the count: for all the compiler knows, a written byte might be part of the tensor
  // object, and it would read the count again in each turn of the loop.
  const std::size_t count = t.count();
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = from[i] ^ 0x80U;
  }
  return out;
}

inline void require_8bit(const operator_context& c, const tensor& t, const char* what) {
  c.require_supported(t.type() == element_type::u8 || t.type() == element_type::s8, what,
                      " of type ", shown(t.type()), " where uint8 or int8 is expected");
}

inline unsigned_operand as_unsigned(const operator_context& c, const tensor& t,
                                    std::int32_t zero_point) {
  require_8bit(c, t, "operand");
  if (t.type() == element_type::u8) {
    return {t, zero_point};
  }
  return {flip_sign(t, c.allocate, element_type::u8), zero_point + 128};
}

/// 8-bit weights as int8 values. uint8 weights become these by subtracting 128 from the values and
/// the zero points.
struct signed_operand {
  tensor values;
  std::vector<std::int32_t> zero_points;
};

inline signed_operand as_signed(const operator_context& c, const tensor& t,
                                std::vector<std::int32_t> zero_points) {
  require_8bit(c, t, "weights");
  if (t.type() == element_type::s8) {
    return {t, std::move(zero_points)};
  }
  for (std::int32_t& z : zero_points) {
    z -= 128;
  }
  return {flip_sign(t, c.allocate, element_type::s8), std::move(zero_points)};
}

/// Throws bad_file unless input i, a zero point, is absent or has the type of the elements that it
/// is for, those of `t`.
inline void require_type_of_zero_point(const operator_context& c, std::size_t i, const tensor& t) {
  if (c.has_input(i)) {
    c.require(c.inputs[i].type() == t.type(), "elements are ", shown(t.type()),
              ", the zero point is ", shown(c.inputs[i].type()));
  }
}

/// At which position a node of an integer product or convolution has each of its inputs;
/// absent_input for those that the operator does not have.
struct integer_product_inputs {
  std::size_t lhs, lhs_scale, lhs_zero_point, rhs, rhs_scale, rhs_zero_point, out_scale,
      out_zero_point, bias;
  std::size_t float_bias = static_cast<std::size_t>(-1);  // bias that is added to float outputs
};
inline constexpr std::size_t absent_input = static_cast<std::size_t>(-1);
/// The inputs of QLinearConv, QLinearMatMul and the library's own forms of them, which alone have a
/// float bias.
inline constexpr integer_product_inputs qlinear_inputs{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
/// The inputs of ConvInteger and MatMulInteger, which have zero points but no scales.
inline constexpr integer_product_inputs integer_inputs{
    0, absent_input, 2, 1, absent_input, 3, absent_input, absent_input, absent_input};
/// The inputs of com.microsoft.QGemm.
inline constexpr integer_product_inputs qgemm_inputs{0, 1, 2, 3, 4, 5, 7, 8, 6};
/// The inputs of com.microsoft.MatMulIntegerToFloat.
inline constexpr integer_product_inputs integer_to_float_inputs{
    0, 2, 4, 1, 3, 5, absent_input, absent_input, absent_input, 6};

/// Throws bad_file unless the zero points of both sides of a product have the types of the sides.
inline void require_types_of_zero_points(const operator_context& c,
                                         const integer_product_inputs& at) {
  require_type_of_zero_point(c, at.lhs_zero_point, c.input(at.lhs));
  require_type_of_zero_point(c, at.rhs_zero_point, c.input(at.rhs));
}

/// The bounds of a clamp that a rewrite fused into a node, in its attributes `lower` and `upper`;
/// infinite if absent.
struct fused_clamp {
  float lower, upper;
  explicit fused_clamp(const node& n)
      : lower(n.get_float("lower", -std::numeric_limits<float>::infinity())),
        upper(n.get_float("upper", std::numeric_limits<float>::infinity())) {}
};

/// The part of the output grid that a rewrite fused into a node as a clamp, in its attributes
/// `qmin` and `qmax`. Without them qmin > qmax, which stands for the whole grid of the output type.
inline grid fused_levels(const node& n) {
  return {static_cast<std::int32_t>(n.get_int("qmin", 0)),
          static_cast<std::int32_t>(n.get_int("qmax", -1))};
}

/// The epilogue that follows from a node's scales, output zero point and fused clamps. The caller
/// sets the zero point of the left side.
inline epilogue_options product_epilogue(const operator_context& c,
                                         const integer_product_inputs& at) {
  epilogue_options options;
  if (c.has_input(at.lhs_scale)) {
    options.lhs_scale = read_params(c, at.lhs_scale, at.lhs_zero_point).scale;
  }
  if (c.has_input(at.out_scale)) {
    options.output = read_params(c, at.out_scale, at.out_zero_point);
  }
  options.levels = fused_levels(c.n());
  if (c.has_input(at.lhs_scale)) {  // bounds are given in units of the result, not of the sums
    const fused_clamp clamp(c.n());
    options.lower = clamp.lower;
    options.upper = clamp.upper;
  }
  return options;
}

/// product_epilogue() with the zero point of a left side that has one zero point for all rows. It
/// is kept in `kept` and computed again only if an input that it depends on is not constant.
inline const epilogue_options& cached_epilogue(const operator_context& c,
                                               const integer_product_inputs& at,
                                               std::optional<epilogue_options>& kept) {
  if (!kept ||
      !c.are_constant({at.lhs_scale, at.lhs_zero_point, at.out_scale, at.out_zero_point})) {
    kept.reset();
    epilogue_options options = product_epilogue(c, at);
    options.lhs_zero_point = read_zero_points(c, at.lhs_zero_point, 1)[0];
    kept = options;  // whole, or not at all: a later run may follow one that failed
  }
  return *kept;
}

/// Throws unsupported unless input i has one value or `columns` values in a row: [..., columns]
/// with ones in front.
inline void require_row(const operator_context& c, std::size_t i, std::size_t columns) {
  const tensor& t = c.inputs[i];
  const std::size_t count = t.count();
  c.require_supported(
      count == 1 || (count == columns && t.dims().back() == static_cast<std::int64_t>(columns)),
      "input ", i, " has ", count, " values for ", columns, " columns, in shape ", shown(t.dims()));
}

/// The scales of the right side, one or one for each column, and its int32 bias, empty if there is
/// none.
struct rhs_terms {
  std::vector<float> scales{1.0F};
  std::span<const std::int32_t> bias;

  rhs_terms(const operator_context& c, const integer_product_inputs& at, std::size_t columns) {
    if (c.has_input(at.rhs_scale)) {
      require_row(c, at.rhs_scale, columns);
      scales = read_scales(c, at.rhs_scale);
    }
    if (c.has_input(at.bias)) {
      const tensor& t = c.inputs[at.bias];
      c.require_supported(
          t.type() == element_type::s32 && t.count() == columns &&
              (columns == 1 || t.dims().back() == static_cast<std::int64_t>(columns)),
          "a bias of type ", shown(t.type()), " and shape ", shown(t.dims()),
          ", not int32 with a value for each of ", columns, " columns");
      bias = c.inputs[at.bias].data<std::int32_t>();
    }
  }
};

using quantized_types = type_list<std::uint8_t, std::int8_t>;

/// Calls f.operator()<T>() with the C++ type of the output of an integer product: float, uint8,
/// int8 or int32.
template <class Function>
void for_integer_output(const operator_context& c, element_type type, const Function& f) {
  using outputs = type_list<float, std::uint8_t, std::int8_t, std::int32_t>;
  for_type(c, outputs{}, type, f);
}

/// Calls f.operator()<A, T>() with the C++ types of the left side (uint8 or int8) and of the output
/// of an integer product.
template <class Function>
void for_integer_product(const operator_context& c, const tensor& lhs, element_type type,
                         const Function& f) {
  require_8bit(c, lhs, "operand");
  for_type(c, quantized_types{}, lhs.type(), [&]<class A>() {
    for_integer_output(c, type, [&]<class T>() { f.template operator()<A, T>(); });
  });
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_QUANTIZATION_INPUTS_HPP
