// SPDX-License-Identifier: BSD-3-Clause
// Tiles of integer products: the sums of some rows times some panels, which stay in registers while
// all of k is added. Products with 8-bit and with 4-bit weights are made of them.

#ifndef DETENT_KERNELS_VECTOR_INTEGER_TILES_INL_HPP
#define DETENT_KERNELS_VECTOR_INTEGER_TILES_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/tile_operands-inl.hpp>
#include <detent/kernels/vector/tile_vnni512-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/integer_tiles-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// The most rows of a row block, whose sums stay on the stack while all of k is added to them.
inline constexpr std::size_t block_rows = 48;

inline constexpr std::size_t rows_per_call = DETENT_PASS_PAIRS != 0 ? block_rows : 5 * block_rows;
inline constexpr std::size_t rows_per_tile = rows_of_tile;
static_assert(rows_per_call % rows_per_tile == 0);

/// How many k of `width` operands (rows or columns of bytes) fit `bytes` of a cache: a multiple of
/// block_depth, not 0.
[[nodiscard]] HWY_INLINE std::size_t cached_depth(std::size_t bytes, std::size_t width) noexcept {
  return (std::max)(bytes / width / block_depth, std::size_t{1}) * block_depth;
}

[[nodiscard]] HWY_INLINE constexpr std::size_t round_up(std::size_t n,
                                                        std::size_t multiple) noexcept {
  return (n + multiple - 1) / multiple * multiple;
}

inline constexpr std::size_t strip_panels = strip_columns / panel_columns;

/// Sets of sums that a tile with kSums vectors of sums computes side by side and adds at the end,
/// because one set would be too few independent additions to hide their latency.
template <std::size_t kSums>
inline constexpr std::size_t parallel_sums = kSums <= 2                                  ? 4
                                             : kSums <= (DETENT_PASS_PAIRS != 0 ? 5 : 6) ? 2
                                                                                         : 1;

/// Adds the products of one group of k: the four values at `offset` of each row of A, times the
/// groups at b of each panel.
template <std::size_t kRows, std::size_t kPanels>
HWY_INLINE void add_products(const std::uint8_t* const (&a)[kRows], std::size_t offset,
                             const std::int8_t* b, std::size_t panel_stride,
                             int_vector (&sum)[kRows][kPanels * vectors_per_panel]) noexcept {
  constexpr std::size_t kVectors = kPanels * vectors_per_panel;
  const int_tag di;
  const hn::Repartition<std::uint8_t, int_tag> du8;
  const hn::Repartition<std::int8_t, int_tag> ds8;
  hn::Vec<decltype(ds8)> bv[kVectors];
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    bv[v] = hn::LoadU(ds8, b + v / vectors_per_panel * panel_stride +
                               v % vectors_per_panel * lanes * group_depth);
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    std::int32_t four;
    std::memcpy(&four, a[r] + offset, sizeof four);
    const auto av = hn::BitCast(du8, hn::Set(di, four));
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = dot(sum[r][v], av, bv[v]);
    }
  }
}

/// p + bytes, for an address that is only prefetched: it may be null, or lie beyond its array.
[[nodiscard]] HWY_INLINE const std::int8_t* address_behind(const std::int8_t* p,
                                                           std::size_t bytes) noexcept {
  return reinterpret_cast<const std::int8_t*>(reinterpret_cast<std::uintptr_t>(p) + bytes);
}

/// Multiplies kRows rows by kPanels panels. The results are stored in `sums` if t.is_first, else
/// added to them; rows of `sums` are kStride elements apart.
template <std::size_t kRows, std::size_t kPanels, std::size_t kStride>
HWY_INLINE void add_tile(const tile_operands& t, std::int32_t* sums) noexcept {
#if DETENT_PASS_ASSEMBLY
  if constexpr (kRows == rows_of_tile && kPanels == panels_of_tile) {
    static_assert(kStride == vnni512_tile::stride);
    add_vnni512_tile(t, sums);
    return;
  }
#endif
  constexpr std::size_t kVectors = kPanels * vectors_per_panel;
  constexpr std::size_t kSets = parallel_sums<kRows * kVectors>;
  const int_tag di;
  const std::uint8_t* a[kRows];
  int_vector sum[kSets][kRows][kVectors];
  DETENT_UNROLL for (std::size_t s = 0; s < kSets; ++s) {
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) { sum[s][r][v] = hn::Zero(di); }
    }
  }
  const std::int8_t* b = t.b;
  [[maybe_unused]] const std::int8_t* next = t.next;
  const std::size_t whole_groups = t.depth / group_depth;
  for (std::size_t segment = 0; segment < t.segments; ++segment) {
    const std::uint8_t* const* rows = t.rows + segment * t.row_stride;
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) { a[r] = rows[r] + t.offset; }
    std::size_t group = 0;
    for (; group + groups_per_step <= whole_groups; group += groups_per_step) {
      if constexpr (kRows == rows_of_tile && DETENT_PASS_PAIRS == 0) {
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        next = address_behind(next, 64);
      }
      DETENT_UNROLL for (std::size_t i = 0; i < groups_per_step; ++i) {
        add_products<kRows, kPanels>(a, (group + i) * group_depth, b, t.panel_stride,
                                     sum[i % kSets]);
        b += group_depth * panel_columns;
      }
    }
    for (; group < whole_groups; ++group) {
      add_products<kRows, kPanels>(a, group * group_depth, b, t.panel_stride, sum[0]);
      b += group_depth * panel_columns;
    }
  }
  if (t.depth % group_depth != 0) {
    std::uint8_t last[kRows][group_depth];
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      copy_last_group(t, r, last[r]);
      a[r] = last[r];
    }
    add_products<kRows, kPanels>(a, 0, b, t.panel_stride, sum[0]);
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      int_vector all = sum[0][r][v];
      DETENT_UNROLL for (std::size_t s = 1; s < kSets; ++s) { all = hn::Add(all, sum[s][r][v]); }
      if (!t.is_first) {
        all = hn::Add(all, hn::LoadU(di, sums + r * kStride + v * lanes));
      }
      hn::StoreU(all, di, sums + r * kStride + v * lanes);
    }
  }
}

/// Multiplies as many whole tiles of kRows rows as `rows` has. Returns the number of rows that are
/// done.
template <std::size_t kRows, std::size_t kPanels, std::size_t kStride>
HWY_INLINE std::size_t add_tiles(std::size_t rows, tile_operands t, std::int32_t* sums) noexcept {
  std::size_t done = 0;
  for (; done + kRows <= rows; done += kRows) {
    tile_operands tile = t;
    if (t.zero_segment == nullptr || leave_out_zeros<kRows>(tile)) {
      add_tile<kRows, kPanels, kStride>(tile, sums + done * kStride);
    }
    t.rows += kRows;
    if constexpr (kRows == rows_of_tile && DETENT_PASS_PAIRS == 0) {
      t.next = address_behind(t.next, t.next_bytes());
    }
  }
  return done;
}

/// Multiplies all rows: whole tiles of kRows rows, then ever smaller tiles for the rest (6 or 8
/// rows are followed by 4, 2 and 1), so that the rest rarely needs more than two tiles. Passes in
/// assembly have a tile for every number of rows.
template <std::size_t kRows, std::size_t kPanels, std::size_t kStride>
HWY_INLINE void add_rows(std::size_t rows, tile_operands t, std::int32_t* sums) noexcept {
  const std::size_t done = add_tiles<kRows, kPanels, kStride>(rows, t, sums);
  if constexpr (kRows > 1) {
    if (done < rows) {
      constexpr std::size_t kNext = DETENT_PASS_ASSEMBLY != 0 ? kRows - 1
                                    : kRows == 6              ? 4
                                                              : kRows / 2;
      t.rows += done;
      add_rows<kNext, kPanels, kStride>(rows - done, t, sums + done * kStride);
    }
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
