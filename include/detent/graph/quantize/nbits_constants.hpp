// SPDX-License-Identifier: BSD-3-Clause
// The constants and sizes of a MatMulNBits node, filled from the results of weight solvers.
#ifndef DETENT_GRAPH_QUANTIZE_NBITS_CONSTANTS_HPP
#define DETENT_GRAPH_QUANTIZE_NBITS_CONSTANTS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/nbits_layout.hpp>
#include <detent/solvers/quantized_weights.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::detail {

/// Sets the attributes of a MatMulNBits node that say the sizes of its weights.
inline void set_sizes(node& n, const nbits_layout& layout) {
  const auto set = [&](const char* key, std::size_t value) {
    n.attributes[key] = attribute::of(static_cast<std::int64_t>(value));
  };
  set("K", layout.depth);
  set("N", layout.columns);
  set("bits", layout.bits);
  set("block_size", layout.block_size);
}

/// Which zero points a MatMulNBits node has.
enum class nbits_zero_points : std::uint8_t {
  none,      ///< The operator's default.
  integers,  ///< Packed like the codes.
  reals,     ///< Floats.
};

/// Codes, scales and zero points of one weight matrix in the layout of MatMulNBits. The signed
/// codes and zero points of the solvers become the unsigned ones of the operator: both are
/// increased by 2^(bits - 1).
class nbits_constants {
 public:
  nbits_constants(const nbits_layout& layout, nbits_zero_points kind)
      : layout_(layout), kind_(kind) {
    const auto n = static_cast<std::int64_t>(layout.columns);
    const auto blocks = static_cast<std::int64_t>(layout.blocks());
    codes_ = tensor::allocate(element_type::u8,
                              {n, blocks, static_cast<std::int64_t>(layout.block_bytes())});
    scales_ = tensor::allocate(element_type::f32, {n, blocks});
    if (kind == nbits_zero_points::reals) {
      zero_points_ = tensor::allocate(element_type::f32, {n, blocks});
    } else if (kind == nbits_zero_points::integers) {
      zero_points_ = tensor::allocate(element_type::u8,
                                      {n, static_cast<std::int64_t>(layout.zero_point_bytes())});
    }
  }

  /// Fills the columns of the weights from `first_row` on, which are rows of `q`. Several threads
  /// may fill different columns at a time.
  void put(std::size_t first_row, const quantized_weights& q) {
    const std::size_t blocks = layout_.blocks();
    pack(q.codes, q.rows, layout_.depth, codes_, first_row, layout_.row_bytes());
    std::copy_n(
        q.params.scales.begin(), q.rows * blocks,
        scales_.mutable_data<float>().begin() + static_cast<std::ptrdiff_t>(first_row * blocks));
    if (kind_ == nbits_zero_points::reals) {
      const auto to = zero_points_.mutable_data<float>().subspan(first_row * blocks);
      std::transform(q.real_zero_points.begin(), q.real_zero_points.end(), to.begin(),
                     [&](float z) { return z + static_cast<float>(layout_.default_zero_point()); });
    } else if (kind_ == nbits_zero_points::integers) {
      pack(q.params.zero_points, q.rows, blocks, zero_points_, first_row,
           layout_.zero_point_bytes());
    }
  }

  /// The packed codes, uint8 [N, blocks, bytes of a block].
  [[nodiscard]] const tensor& codes() const noexcept { return codes_; }
  /// The scales, float32 [N, blocks].
  [[nodiscard]] const tensor& scales() const noexcept { return scales_; }
  /// The zero points, uint8 [N, packed bytes] or float32 [N, blocks]; absent if there are none.
  [[nodiscard]] const tensor& zero_points() const noexcept { return zero_points_; }

 private:
  /// Packs `rows` rows of `width` codes into rows of `row_bytes` bytes, from `first_row` on.
  template <class Codes>
  void pack(const Codes& from, std::size_t rows, std::size_t width, tensor& to,
            std::size_t first_row, std::size_t row_bytes) const {
    std::vector<std::uint8_t> codes(width);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < width; ++i) {
        codes[i] = static_cast<std::uint8_t>(from[r * width + i] + layout_.default_zero_point());
      }
      pack_nbits(layout_.bits, codes,
                 to.mutable_data<std::uint8_t>().subspan((first_row + r) * row_bytes, row_bytes));
    }
  }

  nbits_layout layout_;
  nbits_zero_points kind_;
  tensor codes_, scales_, zero_points_;
};

/// Adds the evidence of further rows of a matrix to that of the rows before.
inline void add_rows(solver_evidence& all, const solver_evidence& more) {
  all.objective += more.objective;
  all.nearest_objective += more.nearest_objective;
  all.iterations = (std::max)(all.iterations, more.iterations);
  all.converged = all.converged && more.converged;
  all.kept_nearest += more.kept_nearest;
}

}  // namespace graph::detail
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_NBITS_CONSTANTS_HPP
