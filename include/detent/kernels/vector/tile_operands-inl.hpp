// SPDX-License-Identifier: BSD-3-Clause
// What tiles of integer products read.

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

/// Groups of k that are added before a loop's end is looked for: the scalar instructions of a loop
/// take issue slots from vpdpbusd.
inline constexpr std::size_t groups_per_step = 4;

/// What a tile reads: from `offset` on, `depth` values of each segment of its rows, and panels of b
/// that are panel_stride apart, from the same k on.
struct tile_operands {
  const std::uint8_t* const* rows;
  std::size_t row_stride;  // from a row's segment to its next one
  std::size_t segments;
  std::size_t offset;
  std::size_t depth;
  const std::int8_t* b;
  std::size_t panel_stride;
  bool is_first;  // the sums are set rather than added to
  // Weights of later tiles, which the largest tiles ask for, a line of 64 bytes at a time; not with
  // DETENT_PASS_PAIRS.
  const std::int8_t* next = nullptr;
  // If it is not null, a tile in assembly turns signs of what is at `next` instead, and writes it
  // here: turned_step bytes for each step of k.
  std::uint8_t* turned = nullptr;

  /// How much of them one tile asks for.
  [[nodiscard]] std::size_t next_bytes() const noexcept {
    return segments * (depth / group_depth / groups_per_step) * 64;
  }
};

/// What is left of a row behind its last whole group of four k, with zeros behind it, so that
/// nothing past the end of a row is read. Only the last chunk ends early, and has one segment.
HWY_INLINE void copy_last_group(const tile_operands& t, std::size_t row,
                                std::uint8_t (&to)[group_depth]) noexcept {
  const std::size_t rest = t.depth % group_depth;
  std::memset(to, 0, group_depth);
  std::memcpy(to, t.rows[row] + t.offset + t.depth - rest, rest);
}

/// Rows of signed bytes one after the other, of which each tile turns those of the next one. Those
/// of the first tile are turned.
struct rows_to_turn {
  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
};

/// `depth` bytes with their highest bits turned: signed ones as unsigned, 128 more.
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
