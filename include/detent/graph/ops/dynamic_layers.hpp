// SPDX-License-Identifier: BSD-3-Clause
// Layers of the library's own, for models that call them by name: detent.DynamicLinear and
// detent.DynamicConv. Unlike the other operators of the domain "detent", these are meant for files;
// ONNX Runtime runs them with the library's custom operators. (For detent.MatMulNBits see
// matmul_nbits.hpp.) Their real input is quantized to uint8 on the way:
//
//   DynamicLinear(X, B, b_scale, b_zero_point, bias) -> Y          dynamic_linear.hpp
//
//     X  float [..., K]; B  int8 or uint8 [K, N], [N, K] with transB = 1; b_scale  1 or N values;
//     b_zero_point  1 or N values, absent: 0; bias  float [N], absent: 0; Y  float [..., N].
//     per_row = 1 (default): each row of X has a scale and a zero point of its own; 0: one for all.
//     B may also be uint8 [bytes]: what packed_weights::save() or packed_int4_weights::save()
//     returned, which holds the scales and zero points. The attribute N is required then.
//
//   DynamicConv(X, W, w_scale, w_zero_point, bias) -> Y            dynamic_convolution.hpp
//
//     X  float [batch, C, spatial ...], with one or two spatial axes; W  int8 or uint8
//     [M, C / group, kernel ...]; w_scale  1 or M values; w_zero_point  1 or M values, absent: 0;
//     bias  float [M], absent: 0; Y  float [batch, M, spatial ...]. The attributes of Conv, and
//     per_image = 1 (default): each image has a scale and a zero point of its own; 0: one for all.
#ifndef DETENT_GRAPH_OPS_DYNAMIC_LAYERS_HPP
#define DETENT_GRAPH_OPS_DYNAMIC_LAYERS_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/convolution.hpp>
#include <detent/dynamic_convolution.hpp>
#include <detent/dynamic_linear.hpp>
#include <detent/graph/ops/convolution.hpp>
#include <detent/graph/ops/float_inputs.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/int4_weights.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// 8-bit weights as int8 values, with a scale for each of `columns` output channels or one for all,
/// from the inputs weights, scale, zero point of a node: positions 1, 2 and 3.
struct dynamic_layer_weights {
  std::vector<float> scales;
  signed_operand values;

  dynamic_layer_weights(const operator_context& c, std::size_t columns)
      : scales(read_scales(c, 2)),
        values(as_signed(
            c, to_plain(c.input(1)),
            read_zero_points(c, 3, c.has_input(3) && c.inputs[3].count() == 1 ? 1 : columns))) {
    c.require(scales.size() == 1 || scales.size() == columns, scales.size(), " weight scales for ",
              columns, " columns");
  }

  /// The parameters for packing, valid as long as this object.
  [[nodiscard]] weight_options options() const { return {scales, values.zero_points, {}}; }
};

/// Throws unsupported, naming the node, if the real input of a dynamic layer (position 0) or its
/// bias (position 4) holds anything but floats.
inline void require_float_inputs(const operator_context& c) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{4}}) {
    const element_type type = c.has_input(i) ? c.inputs[i].type() : element_type::f32;
    c.require_supported(type == element_type::f32, "input ", i, " of type ", shown(type),
                        " where float is expected");
  }
}

/// Whether the attribute `key` is 1; `otherwise` is its value if it is absent. Throws bad_file,
/// naming the node, for other values than 0 and 1.
inline bool read_flag(const operator_context& c, const char* key, std::int64_t otherwise) {
  const std::int64_t value = c.n().get_int(key, otherwise);
  c.require(value == 0 || value == 1, key, " is ", value, ", expected 0 or 1");
  return value == 1;
}

// ---------------------------------------------------------------------------------- DynamicLinear

/// Depth (K) and columns (N) of the weights of a DynamicLinear.
struct linear_sizes {
  bool is_saved_form = false;  ///< Whether B holds the bytes of a saved form.
  std::size_t depth = 0;       ///< K
  std::size_t columns = 0;     ///< N
};

inline linear_sizes read_linear_sizes(const operator_context& c) {
  const shape& x = c.input(0).dims();
  const tensor& b = c.input(1);
  require_float_inputs(c);
  c.require(!x.empty(), "X is a scalar");
  const auto depth = static_cast<std::size_t>(x.back());
  if (b.rank() == 1) {
    const std::int64_t columns = c.n().get_int("N", 0);
    c.require_supported(b.type() == element_type::u8, "saved weights of type ", shown(b.type()),
                        " where uint8 is expected");
    c.require(columns > 0 && columns <= std::numeric_limits<std::int32_t>::max(), "N is ", columns,
              "; weights in a saved form need the number of columns in it");
    c.require(!c.has_input(2) && !c.has_input(3), "scales and zero points are in the saved form");
    c.require(!read_flag(c, "transB", 0), "transB for weights in a saved form");
    return {true, depth, static_cast<std::size_t>(columns)};
  }
  require_8bit(c, b, "B");
  require_type_of_zero_point(c, 3, b);
  c.require(b.rank() == 2, "B has rank ", b.rank(), ", expected 2, or 1 for a saved form");
  c.require(c.has_input(2), "b_scale is missing");
  const std::size_t of_depth = read_flag(c, "transB", 0) ? 1 : 0;
  c.require(b.dim(of_depth) == x.back(), "X of shape ", shown(x), " and B of shape ",
            shown(b.dims()), " do not fit together");
  const std::int64_t columns = b.dim(1 - of_depth);
  const std::int64_t declared = c.n().get_int("N", columns);
  c.require(declared == columns, "N is ", declared, ", but B of shape ", shown(b.dims()), " has ",
            columns, " columns");
  return {false, depth, static_cast<std::size_t>(columns)};
}

inline void infer_dynamic_linear(operator_context& c) {
  const linear_sizes sizes = read_linear_sizes(c);
  shape out = c.inputs[0].dims();
  out.back() = static_cast<std::int64_t>(sizes.columns);
  c.set_output(0, element_type::f32, std::move(out));
}

/// The weights of a DynamicLinear in the layout of the kernels; one of the two is empty.
struct packed_linear {
  packed_weights of_8_bits;
  packed_int4_weights of_4_bits;
  bool has_4_bits = false;

  /// An upper bound of the bytes of packed_linear(c, sizes). A saved form has padded panels
  /// already.
  [[nodiscard]] static std::size_t bytes(const operator_context& c, const linear_sizes& sizes) {
    constexpr std::size_t forms = 4;
    return sizes.is_saved_form ? forms * c.inputs[1].count()
                               : packed_integer_bytes(sizes.depth, sizes.columns);
  }

  packed_linear() = default;
  packed_linear(const operator_context& c, const linear_sizes& sizes) {
    const tensor& b = c.inputs[1];
    if (!sizes.is_saved_form) {
      const dynamic_layer_weights weights(c, sizes.columns);
      const matrix_view<const std::int8_t> stored(weights.values.values.data<std::int8_t>().data(),
                                                  static_cast<std::size_t>(b.dim(0)),
                                                  static_cast<std::size_t>(b.dim(1)));
      of_8_bits =
          pack_weights(read_flag(c, "transB", 0) ? stored.transposed() : stored, weights.options());
      return;
    }
    const auto bytes = std::as_bytes(b.data<std::uint8_t>());
    has_4_bits = packed_int4_weights::is_saved_form(bytes);
    if (has_4_bits) {
      of_4_bits = packed_int4_weights::load(bytes);
    } else {
      of_8_bits = packed_weights::load(bytes);
    }
  }

  /// Calls f(weights) with those of the two that are there.
  template <class Function>
  void with_weights(const Function& f) const {
    if (has_4_bits) {
      f(of_4_bits);
    } else {
      f(of_8_bits);
    }
  }
};

inline void run_dynamic_linear(operator_context& c) {
  const linear_sizes sizes = read_linear_sizes(c);
  const auto& state =
      cached_state<packed_linear>(c, {1, 2, 3}, packed_linear::bytes(c, sizes),
                                  [&](packed_linear& fresh) { fresh = packed_linear(c, sizes); });
  state.packed->with_weights([&](const auto& weights) {  // those in a saved form may not fit
    c.require(weights.depth() == sizes.depth && weights.columns() == sizes.columns,
              "the saved weights are ", weights.depth(), " x ", weights.columns(),
              ", X and the attribute N ask for ", sizes.depth, " x ", sizes.columns);
  });
  const shape& x = c.inputs[0].dims();
  const std::size_t rows = product(x, 0, x.size() - 1);
  c.count_multiply_adds({rows, sizes.depth, sizes.columns});
  const matrix_view<const float> lhs(c.inputs[0].data<float>().data(), rows, sizes.depth);
  const matrix_view<float> out(c.make_output(0).mutable_data<float>().data(), rows, sizes.columns);
  if (rows == 0) {
    return;
  }
  dynamic_linear_options options;
  options.per_row = read_flag(c, "per_row", 1);
  options.bias = optional_floats(c, 4, sizes.columns);
  state.packed->with_weights(
      [&](const auto& weights) { dynamic_linear(lhs, weights, out, options, *c.parallel); });
}

// ------------------------------------------------------------------------------------ DynamicConv

inline void infer_dynamic_conv(operator_context& c) {
  require_float_inputs(c);
  require_8bit(c, c.input(1), "W");
  require_type_of_zero_point(c, 3, c.inputs[1]);
  c.require(c.has_input(2), "w_scale is missing");
  c.require_supported(c.input(0).rank() <= 4, "X has ", c.input(0).rank(),
                      " dimensions, expected 3 or 4");
  infer_convolution(c, 1, element_type::f32);
}

inline void run_dynamic_conv(operator_context& c) {
  const filter_shape f = read_filters(c, c.inputs[0].dims(), c.inputs[1].dims());
  auto& state = cached_state<packed_filters, window_cache>(
      c, {1, 2, 3}, packed_filter_bytes(f), [&](packed_filters& fresh) {
        const dynamic_layer_weights weights(c, f.out_channels);
        fresh = packed_filters(f, weights.values.values.data<std::int8_t>(), weights.options());
      });
  tensor& y = c.make_output(0);
  count_convolution(c, c.inputs[1].dims());
  dynamic_convolution_options options;
  options.per_image = read_flag(c, "per_image", 1);
  options.bias = optional_floats(c, 4, state.packed->shape().out_channels);
  dynamic_convolve(c.inputs[0].data<float>(), *state.packed, state.own.get(c, 1),
                   y.mutable_data<float>(), options,
                   threads_for(c, state.packed->shape(), integers_worth_threads));
}

inline constexpr operator_definition dynamic_layer_operators[] = {
    {"detent", "DynamicConv", 3, 5, layout_support::any, &infer_dynamic_conv, &run_dynamic_conv,
     true},
    {"detent", "DynamicLinear", 2, 5, layout_support::plain, &infer_dynamic_linear,
     &run_dynamic_linear, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_DYNAMIC_LAYERS_HPP
