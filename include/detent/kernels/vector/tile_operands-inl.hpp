// SPDX-License-Identifier: BSD-3-Clause
// The operands of tiles of integer products, and the preparation of left rows: ends of rows, signs.

#ifndef DETENT_KERNELS_VECTOR_TILE_OPERANDS_INL_HPP
#define DETENT_KERNELS_VECTOR_TILE_OPERANDS_INL_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/panels.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/tile_operands-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// Groups of k in one step of a tile's loop, that is, between two tests of the loop's end: its
/// scalar instructions take issue slots from vpdpbusd.
inline constexpr std::size_t groups_per_step = 4;

/// The operands of a tile: `depth` values, from `offset` on, of each segment of its rows, and the
/// same k of panels of B, which are panel_stride apart.
struct tile_operands {
  const std::uint8_t* const* rows;
  std::size_t row_stride;  // pointers from a row's segment to its next one
  std::size_t segments;
  std::size_t offset;
  std::size_t depth;
  const std::int8_t* b;
  std::size_t panel_stride;
  bool is_first;  // the tile stores its sums rather than adds them
  // Weights of later tiles, which the largest tiles prefetch, one line of 64 bytes for each step;
  // unused with DETENT_PASS_PAIRS.
  const std::int8_t* next = nullptr;
  // If it is not null, `next` points to rows of signed bytes instead. A tile in assembly then adds
  // 128 to these and writes them here, turned_step bytes for each step.
  std::uint8_t* turned = nullptr;
  // If it is not null, segments at this address are zeros.
  const std::uint8_t* zero_segment = nullptr;

  /// How many bytes at `next` one tile prefetches.
  [[nodiscard]] std::size_t next_bytes() const noexcept {
    return segments * (depth / group_depth / groups_per_step) * 64;
  }
};

/// Leaves out the first and last segments of a tile that are zeros in all its kRows rows. A tile
/// that stores its sums keeps one. Returns whether there are segments left.
template <std::size_t kRows>
HWY_INLINE bool leave_out_zeros(tile_operands& t) noexcept {
  const auto is_zero = [&t](std::size_t segment) {
    const std::uint8_t* const* rows = t.rows + segment * t.row_stride;
    for (std::size_t r = 0; r < kRows; ++r) {
      if (rows[r] != t.zero_segment) {
        return false;
      }
    }
    return true;
  };
  const std::size_t least = t.is_first ? 1 : 0;
  while (t.segments > least && is_zero(t.segments - 1)) {
    --t.segments;
  }
  while (t.segments > least && is_zero(0)) {
    t.rows += t.row_stride;
    t.b += t.depth * panel_columns;
    --t.segments;
  }
  return t.segments > 0;
}

/// Copies the one to three values of a row behind its last whole group, and zeros behind them, so
/// that nothing past the end of a row is read. Segments consist of whole groups; only rows without
/// segments can need this, in their last chunk.
HWY_INLINE void copy_last_group(const tile_operands& t, std::size_t row,
                                std::uint8_t (&to)[group_depth]) noexcept {
  const std::size_t rest = t.depth % group_depth;
  std::memset(to, 0, group_depth);
  std::memcpy(to, t.rows[row] + t.offset + t.depth - rest, rest);
}

/// Dense rows of signed bytes that are turned to unsigned ones while tiles multiply: each tile
/// turns the rows of the next tile. The rows of the first tile have been turned before.
struct rows_to_turn {
  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
};

/// Copies `depth` bytes with their highest bits inverted: the signed byte x becomes the unsigned
/// byte x + 128.
HWY_INLINE void turn_signs(const std::uint8_t* from, std::size_t depth, std::uint8_t* to) noexcept {
  const hn::Repartition<std::uint8_t, int_tag> d;
  const auto sign = hn::Set(d, std::uint8_t{0x80});
  const std::size_t step = hn::Lanes(d);
  std::size_t k = 0;
  for (; k + step <= depth; k += step) {
    hn::StoreU(hn::Xor(hn::LoadU(d, from + k), sign), d, to + k);
  }
  for (; k < depth; ++k) {
    to[k] = from[k] ^ 0x80U;
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
