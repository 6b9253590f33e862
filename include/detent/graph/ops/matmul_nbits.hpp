// SPDX-License-Identifier: BSD-3-Clause
// com.microsoft.MatMulNBits: a product of real rows and weights of 2, 4 or 8 bits, which have a
// scale and a zero point for each block_size values along K (nbits_layout.hpp).
//
//   Y = A * weight + bias      in float: the weights are dequantized once
//
// If accuracy_level is 4, which allows A to become 8-bit integers, and the weights have 4 bits and
// integer zero points, the product is W4A8 (int4_weights.hpp): each row of A is quantized to uint8
// from its own range. The input g_idx, which is deprecated, names the block whose scale and zero
// point each row of the weights has. Such weights are multiplied in float.
//
// detent.MatMulNBits has the same inputs and attributes, and is always W4A8: a model asks for the
// integer product in every runtime by another domain of its node. It takes weights of 2 and 4 bits
// with integer zero points, and refuses others.
#ifndef DETENT_GRAPH_OPS_MATMUL_NBITS_HPP
#define DETENT_GRAPH_OPS_MATMUL_NBITS_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/dynamic_linear.hpp>
#include <detent/gemm.hpp>
#include <detent/graph/ops/computed_floats.hpp>
#include <detent/graph/ops/float_inputs.hpp>
#include <detent/graph/ops/nbits_layout.hpp>
#include <detent/graph/ops/node_state.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/int4_weights.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// Checks g_idx, input 4: int32, one value for each row of the weights, perhaps with padding up to
/// whole blocks. As in ONNX Runtime, the weights must have 4 bits. Packed zero points beside g_idx
/// are refused: ONNX Runtime ignores them.
inline void require_block_indices(const operator_context& c, const nbits_layout& layout) {
  const tensor& indices = c.inputs[4];
  c.require_supported(layout.bits == 4, "g_idx for weights of ", layout.bits, " bits");
  c.require_supported(!c.has_input(3) || c.inputs[3].type() == element_type::f32,
                      "g_idx beside packed zero points");
  c.require(indices.type() == element_type::s32 &&
                (indices.count() == layout.depth ||
                 indices.count() == layout.blocks() * layout.block_size),
            "g_idx is ", shown(indices.type()), " ", shown(indices.dims()), ", not int32 for ",
            layout.depth, " rows");
}

/// Reads the attributes of MatMulNBits and checks them against each other and against the sizes of
/// the inputs. Scales and zero points may have any shape of the right size, because older models
/// have them flat.
inline nbits_layout read_nbits_layout(const operator_context& c) {
  const auto size = [&](const char* key, std::int64_t otherwise) {
    constexpr std::int64_t largest = std::int64_t{1}
                                     << 31;  // so that sizes of matrices fit 64 bits
    const std::int64_t value = c.n().get_int(key, otherwise);
    c.require(value > 0 && value <= largest, key, " is ", value);
    return static_cast<std::size_t>(value);
  };
  const nbits_layout layout{size("bits", 4), size("block_size", 0), size("K", 0), size("N", 0)};
  c.require_supported(layout.bits == 2 || layout.bits == 4 || layout.bits == 8, "weights of ",
                      layout.bits, " bits, expected 2, 4 or 8");
  c.require(layout.block_size >= 16 && std::has_single_bit(layout.block_size), "block_size ",
            layout.block_size, " is not a power of two of 16 or more");
  c.require_supported(c.n().get_int("weight_prepacked", 0) == 0, "weights in a layout of CUDA");

  const shape& a = c.input(0).dims();
  c.require(!a.empty() && a.back() == static_cast<std::int64_t>(layout.depth), "A of shape ",
            shown(a), " for K = ", layout.depth);
  const auto require_size = [&](std::size_t i, std::size_t expected, const char* what) {
    c.require(c.input(i).count() == expected, what, " of shape ", shown(c.inputs[i].dims()),
              " where ", expected, " values are expected");
  };
  c.require_supported(c.input(1).type() == element_type::u8, "B of type ",
                      graph::name(c.inputs[1].type()));
  require_size(1, layout.columns * layout.row_bytes(), "B");
  require_size(2, layout.columns * layout.blocks(), "scales");
  for (const std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{5}}) {
    const element_type type = c.has_input(i) ? c.inputs[i].type() : element_type::f32;
    c.require_supported(type == element_type::f32, "input ", i, " of type ", graph::name(type));
  }
  if (c.has_input(3)) {
    const bool is_packed = c.inputs[3].type() == element_type::u8;
    c.require_supported(is_packed || c.inputs[3].type() == element_type::f32,
                        "zero points of type ", graph::name(c.inputs[3].type()));
    require_size(3, layout.columns * (is_packed ? layout.zero_point_bytes() : layout.blocks()),
                 "zero points");
  }
  if (c.has_input(4)) {
    require_block_indices(c, layout);
  }
  if (c.has_input(5)) {
    require_size(5, layout.columns, "bias");
  }
  return layout;
}

/// The largest block whose sums fit 32 bits in the integer kernels.
inline constexpr std::size_t largest_integer_block = std::size_t{1} << 16;

/// Throws unsupported if the integer kernels cannot take the weights of a node of
/// detent.MatMulNBits, which is always W4A8.
inline void require_integer_weights(const operator_context& c, const nbits_layout& layout) {
  c.require_supported(layout.bits <= 4, "weights of ", layout.bits,
                      " bits, expected 2 or 4; DynamicLinear takes 8");
  c.require_supported(!c.has_input(3) || c.inputs[3].type() == element_type::u8,
                      "zero points that are no integers");
  c.require_supported(!c.has_input(4),
                      "g_idx, with which the rows of a block may have different scales");
  c.require_supported(layout.block_size <= largest_integer_block, "block_size ", layout.block_size,
                      " is above ", largest_integer_block);
}

/// Whether a node of com.microsoft.MatMulNBits may be W4A8: the model allows it, and the integer
/// kernels can do it. Of `layout`, only bits and block_size are read. Scales whose elements are not
/// known yet count as finite.
inline bool allows_integer_rows(const operator_context& c, const nbits_layout& layout) {
  const auto are_finite = [](const tensor& scales) {
    const std::span<const float> values = scales.data<float>();
    return std::all_of(values.begin(), values.end(), [](float s) { return std::isfinite(s); });
  };
  const tensor& scales = c.inputs[2];
  return c.n().get_int("accuracy_level", 0) == 4 && layout.bits == 4 && !c.has_input(4) &&
         layout.block_size <= largest_integer_block &&
         (!c.has_input(3) || c.inputs[3].type() == element_type::u8) &&
         scales.type() == element_type::f32 && (!scales.has_data() || are_finite(scales));
}

inline void infer_matmul_nbits(operator_context& c) {
  const nbits_layout layout = read_nbits_layout(c);
  if (c.n().domain == "detent") {
    require_integer_weights(c, layout);
  }
  shape out = c.inputs[0].dims();
  out.back() = static_cast<std::int64_t>(layout.columns);
  c.set_output(0, element_type::f32, std::move(out));
}

/// The memory in which weights are unpacked before they are packed for the kernels. Weights that
/// are computed count against the limit of the run; those of the model have their size from its
/// file.
inline std::pmr::memory_resource* unpacking_memory(const operator_context& c) {
  return c.are_constant({1, 2, 3, 4}) ? std::pmr::new_delete_resource() : c.memory;
}

/// The unpacked codes of the weights, [N, K].
inline std::pmr::vector<std::uint8_t> nbits_codes(const operator_context& c,
                                                  const nbits_layout& layout) {
  std::pmr::vector<std::uint8_t> codes(layout.columns * layout.depth, unpacking_memory(c));
  const auto bytes = c.inputs[1].data<std::uint8_t>();
  for (std::size_t n = 0; n < layout.columns; ++n) {
    unpack_nbits(layout.bits, bytes.subspan(n * layout.row_bytes(), layout.row_bytes()),
                 std::span(codes).subspan(n * layout.depth, layout.depth));
  }
  return codes;
}

/// The integer zero points, [N, blocks].
inline std::pmr::vector<std::int32_t> nbits_zero_points(const operator_context& c,
                                                        const nbits_layout& layout) {
  const std::size_t blocks = layout.blocks();
  std::pmr::vector<std::int32_t> zero_points(layout.columns * blocks, layout.default_zero_point(),
                                             unpacking_memory(c));
  if (!c.has_input(3)) {
    return zero_points;
  }
  const auto bytes = c.inputs[3].data<std::uint8_t>();
  std::pmr::vector<std::uint8_t> row(blocks, unpacking_memory(c));
  for (std::size_t n = 0; n < layout.columns; ++n) {
    unpack_nbits(layout.bits,
                 bytes.subspan(n * layout.zero_point_bytes(), layout.zero_point_bytes()), row);
    std::copy(row.begin(), row.end(),
              zero_points.begin() + static_cast<std::ptrdiff_t>(n * blocks));
  }
  return zero_points;
}

struct packed_nbits {
  bool is_integer = false;  // whether `codes` is set, for W4A8; otherwise `reals` is
  packed_int4_weights codes;
  packed_floats reals;
};

/// For each row of the weights, the block whose scale and zero point it has: that in which it lies,
/// or the one that g_idx names.
inline std::pmr::vector<std::size_t> blocks_of_rows(const operator_context& c,
                                                    const nbits_layout& layout) {
  std::pmr::vector<std::size_t> blocks(layout.depth, unpacking_memory(c));
  for (std::size_t k = 0; k < layout.depth; ++k) {
    blocks[k] = k / layout.block_size;
    if (c.has_input(4)) {
      const std::int32_t named = c.inputs[4].data<std::int32_t>()[k];
      c.require(named >= 0 && static_cast<std::size_t>(named) < layout.blocks(),
                "g_idx names block ", named, " of ", layout.blocks());
      blocks[k] = static_cast<std::size_t>(named);
    }
  }
  return blocks;
}

/// The weights and the bias in float: weight = (code - zero_point) * scale, where the difference of
/// integers is exact and the product is rounded once.
inline packed_floats dequantize_nbits(const operator_context& c, const nbits_layout& layout) {
  const std::size_t blocks = layout.blocks();
  const std::pmr::vector<std::uint8_t> codes = nbits_codes(c, layout);
  const bool is_real = c.has_input(3) && c.inputs[3].type() == element_type::f32;
  std::pmr::vector<float> zero_points(unpacking_memory(c));
  if (is_real) {
    const auto values = c.inputs[3].data<float>();
    zero_points.assign(values.begin(), values.end());
  } else {
    for (const std::int32_t z : nbits_zero_points(c, layout)) {
      zero_points.push_back(static_cast<float>(z));
    }
  }
  const auto scales = c.inputs[2].data<float>();
  const std::pmr::vector<std::size_t> block_of = blocks_of_rows(c, layout);
  std::pmr::vector<float> weights(layout.columns * layout.depth, unpacking_memory(c));
  for (std::size_t n = 0; n < layout.columns; ++n) {
    for (std::size_t k = 0; k < layout.depth; ++k) {
      const std::size_t at = n * blocks + block_of[k];
      weights[n * layout.depth + k] =
          (static_cast<float>(codes[n * layout.depth + k]) - zero_points[at]) * scales[at];
    }
  }
  const matrix_view<const float> stored(weights.data(), layout.columns, layout.depth);
  return {stored.transposed(), optional_floats(c, 5, layout.columns)};
}

/// Whether the product is W4A8. That of the domain "detent" always is: infer() has refused what the
/// kernels cannot take, and a scale that is not finite is an error.
inline bool takes_integer_rows(const operator_context& c, const nbits_layout& layout) {
  if (c.n().domain != "detent") {
    return allows_integer_rows(c, layout);
  }
  for (const float s : c.inputs[2].data<float>()) {
    c.require(std::isfinite(s), "scale ", s);
  }
  return true;
}

/// Packs the codes for W4A8. The kernels need positive scales: where a scale is negative, its sign
/// is changed and codes and zero point are mirrored on the grid; where it is 0, the codes are set
/// to the zero point, so that the weights are 0 with a scale of 1.
inline packed_int4_weights pack_nbits_codes(const operator_context& c, const nbits_layout& layout) {
  const std::size_t blocks = layout.blocks();
  std::pmr::vector<std::uint8_t> codes = nbits_codes(c, layout);
  std::pmr::vector<std::int32_t> zero_points = nbits_zero_points(c, layout);
  const auto given = c.inputs[2].data<float>();
  std::pmr::vector<float> scales(given.begin(), given.end(), unpacking_memory(c));
  for (std::size_t at = 0; at < scales.size(); ++at) {
    if (scales[at] > 0.0F) {
      continue;
    }
    std::uint8_t* const row = codes.data() + at / blocks * layout.depth;
    const std::size_t first = at % blocks * layout.block_size;
    const std::size_t last = (std::min)(first + layout.block_size, layout.depth);
    const bool is_zero = scales[at] == 0.0F;
    for (std::size_t k = first; k < last; ++k) {
      row[k] = static_cast<std::uint8_t>(is_zero ? zero_points[at] : uint4::levels.qmax - row[k]);
    }
    zero_points[at] = is_zero ? zero_points[at] : uint4::levels.qmax - zero_points[at];
    scales[at] = is_zero ? 1.0F : -scales[at];
  }
  int4_weight_options options;
  options.group_size = layout.block_size;
  options.scales = matrix_view<const float>(scales.data(), layout.columns, blocks).transposed();
  options.zero_points =
      matrix_view<const std::int32_t>(zero_points.data(), layout.columns, blocks).transposed();
  return pack_int4_weights(
      matrix_view<const std::uint8_t>(codes.data(), layout.columns, layout.depth).transposed(),
      options);
}

/// The bytes that packed weights take: for W4A8 about half a byte each, and a scale and a zero
/// point for each block.
inline std::size_t packed_nbits_bytes(const operator_context& c, const nbits_layout& layout) {
  if (!takes_integer_rows(c, layout)) {
    return packed_bytes(layout.depth, layout.columns);
  }
  constexpr std::size_t panel = kernels::panel_columns;
  const std::size_t columns = (layout.columns + panel - 1) / panel * panel;
  return columns * (layout.depth / 2 + 1 + layout.blocks() * 2 * sizeof(float));
}

inline void run_matmul_nbits(operator_context& c) {
  const nbits_layout layout = read_nbits_layout(c);
  const auto& state = cached_state<packed_nbits>(c, {1, 2, 3, 4, 5}, packed_nbits_bytes(c, layout),
                                                 [&](packed_nbits& fresh) {
                                                   fresh.is_integer = takes_integer_rows(c, layout);
                                                   if (fresh.is_integer) {
                                                     fresh.codes = pack_nbits_codes(c, layout);
                                                   } else {
                                                     fresh.reals = dequantize_nbits(c, layout);
                                                   }
                                                 });
  const std::size_t rows = c.inputs[0].count() / layout.depth;
  const matrix_view<const float> a(c.inputs[0].data<float>().data(), rows, layout.depth);
  c.count_multiply_adds({rows, layout.columns, layout.depth});
  const matrix_view<float> y(c.make_output(0).mutable_data<float>().data(), rows, layout.columns);
  if (rows == 0) {
    return;
  }
  if (state.packed->is_integer) {
    dynamic_linear(a, state.packed->codes, y, {.bias = optional_floats(c, 5, layout.columns)},
                   *c.parallel);
    return;
  }
  gemm(a, state.packed->reals, y, {}, *c.parallel);
}

inline constexpr operator_definition matmul_nbits_operators[] = {
    {"com.microsoft", "MatMulNBits", 3, 6, layout_support::plain, &infer_matmul_nbits,
     &run_matmul_nbits},
    {"detent", "MatMulNBits", 3, 6, layout_support::plain, &infer_matmul_nbits, &run_matmul_nbits},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_MATMUL_NBITS_HPP
