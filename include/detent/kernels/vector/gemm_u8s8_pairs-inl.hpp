// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit integers for processors without VNNI, in passes with DETENT_PASS_PAIRS.
//
// vpmaddubsw, vpmaddwd and vpaddd do what vpdpbusd does, but vpmaddubsw saturates. Therefore the
// weights are read in two parts of which neither makes it saturate (packed_panels), the second of
// them sparse, the corrections: a tile adds both parts before its sums leave the registers. The two
// multiplying instructions take most of the time, so tiles are shaped to need few loads for each of
// them: 4 rows x 16 columns in 16 registers, 8 x 32 in 32.
//
// Where many pairs would need a correction, weights and rows are widened to 16 bits instead, and
// vpmaddwd multiplies them exactly. That takes as many multiplications, but more loads.

#ifndef DETENT_KERNELS_VECTOR_GEMM_U8S8_PAIRS_INL_HPP
#define DETENT_KERNELS_VECTOR_GEMM_U8S8_PAIRS_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/vector/gemm_u8s8-inl.hpp>
#include <detent/kernels/vector/integer_tiles-inl.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/gemm_u8s8_pairs-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

#if DETENT_PASS_PAIRS

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// The most k of each row that are put in the order of a strip at a time.
inline constexpr std::size_t pair_chunk = 1024;
/// Rows of a row block: as many as fit a first-level cache, with pair_chunk bytes of each.
inline constexpr std::size_t pair_rows = 24;

/// Panels of a tile with kRows rows: as many as the registers hold, at most a strip.
template <std::size_t kRows>
inline constexpr std::size_t pair_tile_panels = (std::min)(rows_of_tile* panels_of_tile / kRows,
                                                           strip_panels);

/// The 1 to 8 bytes at `from`, the first in the lowest bits.
[[nodiscard]] HWY_INLINE std::uint64_t load_bytes(const std::uint8_t* from,
                                                  std::size_t n) noexcept {
  if (n == 8) {
    std::uint64_t eight;
    std::memcpy(&eight, from, sizeof eight);
    return eight;
  }
  if (n >= 4) {  // both ends, which may overlap
    std::uint32_t first;
    std::uint32_t last;
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&last, from + n - 4, sizeof last);
    return first | std::uint64_t{last} << (8 * (n - 4));
  }
  return from[0] | std::uint64_t{from[n / 2]} << (8 * (n / 2)) |
         std::uint64_t{from[n - 1]} << (8 * (n - 1));
}

/// A block of which only the first n bytes are there, and zeros behind them; n is 1 to 15.
[[nodiscard]] HWY_INLINE hn::Vec<hn::Full128<std::uint8_t>> load_short_block(
    const std::uint8_t* from, std::size_t n) noexcept {
  const hn::Full128<std::uint64_t> d64;
  const std::uint64_t low = load_bytes(from, (std::min)(n, std::size_t{8}));
  const std::uint64_t high = n > 8 ? load_bytes(from + 8, n - 8) : 0;
  return hn::BitCast(hn::Full128<std::uint8_t>(),
                     hn::InterleaveLower(d64, hn::Set(d64, low), hn::Set(d64, high)));
}

/// Copies `depth` bytes of kRows rows in the order of a strip, with its complements, and with the
/// bits of `turned` inverted. The copy is filled up to a whole block with any values, which meet
/// zeros.
template <std::size_t kRows>
HWY_INLINE void reorder_rows(const std::uint8_t* from, std::size_t lda, std::size_t depth,
                             const std::uint8_t* order, const std::uint8_t* complement,
                             std::uint8_t turned, std::uint8_t* to) noexcept {
  const hn::Repartition<std::uint8_t, int_tag> d;
  const hn::Full128<std::uint8_t> d_block;
  static_assert(hn::MaxLanes(d_block) == block_depth);
  const std::size_t step = hn::Lanes(d);
  std::size_t k = 0;
  for (; k + step <= depth; k += step) {
    const auto places = hn::LoadU(d, order + k);
    const auto flips = hn::Xor(hn::LoadU(d, complement + k), hn::Set(d, turned));
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const auto row = hn::TableLookupBytes(hn::LoadU(d, from + r * lda + k), places);
      hn::Store(hn::Xor(row, flips), d, to + r * pair_chunk + k);
    }
  }
  for (; k < depth; k += block_depth) {
    // A last block that is short is loaded as the last 16 of the `depth` bytes, of which `lead`
    // belong to the block before it. If there are fewer than 16, they are loaded in smaller parts.
    const std::size_t left = (std::min)(block_depth, depth - k);
    const std::size_t lead = depth < block_depth ? 0 : block_depth - left;
    const auto places = hn::And(
        hn::Add(hn::LoadU(d_block, order + k), hn::Set(d_block, static_cast<std::uint8_t>(lead))),
        hn::Set(d_block, std::uint8_t{block_depth - 1}));
    const auto flips = hn::Xor(hn::LoadU(d_block, complement + k), hn::Set(d_block, turned));
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::uint8_t* const row = from + r * lda;
      const auto block =
          depth < block_depth ? load_short_block(row, depth) : hn::LoadU(d_block, row + k - lead);
      hn::Store(hn::Xor(hn::TableLookupBytes(block, places), flips), d_block,
                to + r * pair_chunk + k);
    }
  }
}

/// Bytes of a value that the epilogue writes.
[[nodiscard]] HWY_INLINE std::size_t output_size(integer_output output) noexcept {
  switch (output) {
    case integer_output::s32:
    case integer_output::f32:
      return 4;
    case integer_output::bf16:
      return 2;
    case integer_output::u8:
    case integer_output::s8:
      break;
  }
  return 1;
}

/// Which corrections of each panel of a strip belong to the chunk at hand: numbers begin .. end.
struct chunk_corrections {
  std::size_t begin[strip_panels];
  std::size_t end[strip_panels];
  std::size_t first_group;  // the chunk's first group
};

/// The operands of a tile: reordered rows, which are pair_chunk bytes apart, and as many k (whole
/// blocks) of panels that are panel_stride apart.
struct pair_operands {
  const std::uint8_t* a;
  std::size_t depth;
  const std::int8_t* b;
  std::size_t panel_stride;
  const packed_panels* panels;
  const chunk_corrections* corrections;
  std::size_t panel;  // first panel of the tile, counted in the strip
  // The initial sums of the strip, one for each column, or null if the sums in memory are added to.
  const std::int32_t* offset;
  // Where the results of these rows will be stored, which is prefetched; strides in bytes.
  const char* c;
  std::size_t c_stride;
  std::size_t c_panel;
};

/// Adds the products of one group of k to the sums of the kPanels panels from kPanel on.
template <std::size_t kPanel, std::size_t kPanels, std::size_t kRows, std::size_t kVectors>
HWY_INLINE void add_group(const std::uint8_t* a, const std::int8_t* b, std::size_t panel_stride,
                          int_vector (&sum)[kRows][kVectors]) noexcept {
  constexpr std::size_t kGroupVectors = kPanels * vectors_per_panel;
  const int_tag di;
  const hn::Repartition<std::int16_t, int_tag> di16;
  const hn::Repartition<std::uint8_t, int_tag> du8;
  const hn::Repartition<std::int8_t, int_tag> ds8;
  const auto ones = hn::Set(di16, 1);
  hn::Vec<decltype(ds8)> bv[kGroupVectors];
  DETENT_UNROLL for (std::size_t v = 0; v < kGroupVectors; ++v) {
    bv[v] = hn::LoadU(ds8, b + v / vectors_per_panel * panel_stride +
                               v % vectors_per_panel * lanes * group_depth);
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    std::int32_t four;
    std::memcpy(&four, a + r * pair_chunk, sizeof four);
    const auto av = hn::BitCast(du8, hn::Set(di, four));
    DETENT_UNROLL for (std::size_t v = 0; v < kGroupVectors; ++v) {
      const auto pairs = hn::SatWidenMulPairwiseAdd(di16, av, bv[v]);
      add_in_place(sum[r][kPanel * vectors_per_panel + v],
                   hn::WidenMulPairwiseAdd(di, pairs, ones));
    }
  }
}

/// Adds the products with the corrections of the panels from kPanel on.
template <std::size_t kPanel, std::size_t kRows, std::size_t kVectors>
HWY_INLINE void add_corrections(const pair_operands& t,
                                int_vector (&sum)[kRows][kVectors]) noexcept {
  const chunk_corrections& c = *t.corrections;
  for (std::size_t i = c.begin[t.panel + kPanel]; i < c.end[t.panel + kPanel]; ++i) {
    add_group<kPanel, 1>(t.a + (t.panels->correction_group[i] - c.first_group) * group_depth,
                         t.panels->corrections + i * group_depth * panel_columns, 0, sum);
  }
  if constexpr ((kPanel + 1) * vectors_per_panel < kVectors) {
    add_corrections<kPanel + 1>(t, sum);
  }
}

/// Multiplies kRows rows by kPanels panels and adds the products to a tile of a strip's sums. It is
/// a function of its own, because GCC keeps the sums of an inlined one in memory.
template <std::size_t kRows, std::size_t kPanels>
HWY_NOINLINE void add_pair_tile(const pair_operands& t, std::int32_t* sums) noexcept {
  constexpr std::size_t kVectors = kPanels * vectors_per_panel;
  constexpr std::size_t kGroups = block_depth / group_depth;
  const int_tag di;
  int_vector sum[kRows][kVectors];
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::LoadU(di, t.offset != nullptr ? t.offset + t.panel * panel_columns + v * lanes
                                                    : sums + r * strip_columns + v * lanes);
    }
  }
  if (t.offset != nullptr) {
    // Prefetches the results' lines to the second-level cache, for when they are written: rows of a
    // large C are often a multiple of 4 KB apart, so that the first level can't hold all of them.
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      DETENT_UNROLL for (std::size_t p = 0; p < kPanels; ++p) {
        _mm_prefetch(t.c + r * t.c_stride + (t.panel + p) * t.c_panel, _MM_HINT_T1);
      }
    }
  }
  const std::int8_t* b = t.b;
  const std::uint8_t* const end = t.a + t.depth;
  for (const std::uint8_t* a = t.a; a < end; a += block_depth) {
    DETENT_UNROLL for (std::size_t i = 0; i < kGroups; ++i) {
      add_group<0, kPanels>(a + i * group_depth, b + i * group_depth * panel_columns,
                            t.panel_stride, sum);
    }
    b += block_depth * panel_columns;
  }
  add_corrections<0>(t, sum);
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], di, sums + r * strip_columns + v * lanes);
    }
  }
}

/// Multiplies `rows` rows, kRows at a time, by the panels from t.panel to `panels`, the last ones
/// with tiles of fewer panels.
template <std::size_t kRows, std::size_t kPanels>
HWY_INLINE void add_pair_panels(std::size_t rows, std::size_t panels, pair_operands t,
                                std::int32_t* sums) noexcept {
  for (; t.panel + kPanels <= panels; t.panel += kPanels) {
    pair_operands tile = t;
    for (std::size_t done = 0; done + kRows <= rows; done += kRows) {
      add_pair_tile<kRows, kPanels>(tile, sums + done * strip_columns + t.panel * panel_columns);
      tile.a += kRows * pair_chunk;
      tile.c += kRows * t.c_stride;
    }
    t.b += kPanels * t.panel_stride;
  }
  if constexpr (kPanels > 1) {
    add_pair_panels<kRows, kPanels / 2>(rows, panels, t, sums);
  }
}

/// Multiplies all rows, the last ones with tiles of fewer rows and more panels.
template <std::size_t kRows>
HWY_INLINE void add_pair_rows(std::size_t rows, std::size_t panels, pair_operands t,
                              std::int32_t* sums) noexcept {
  const std::size_t tiled = rows / kRows * kRows;
  if (tiled != 0) {
    add_pair_panels<kRows, pair_tile_panels<kRows>>(tiled, panels, t, sums);
  }
  if constexpr (kRows > 1) {
    if (tiled < rows) {
      t.a += tiled * pair_chunk;
      t.c += tiled * t.c_stride;
      add_pair_rows<kRows / 2>(rows - tiled, panels, t, sums + tiled * strip_columns);
    }
  }
}

/// Multiplies the rows first .. first + rows (at most pair_rows) by the strip that begins at
/// `column`.
inline void gemm_u8s8_strip(const gemm_u8s8_args& g, std::size_t first, std::size_t rows,
                            std::size_t column) noexcept {
  alignas(64) std::int32_t sums[pair_rows * strip_columns];
  alignas(64) std::uint8_t chunk[pair_rows * pair_chunk];
  const std::size_t columns = (std::min)(strip_columns, g.n - column);
  const std::size_t panels = (columns + panel_columns - 1) / panel_columns;
  const std::size_t padded = round_up(g.k, block_depth);
  const std::size_t panel_stride = padded * panel_columns;
  const std::size_t first_panel = column / panel_columns;
  const std::size_t first_order = column / strip_columns * padded;
  const std::size_t c_size = output_size(g.epilogue.output);
  const std::uint8_t turned = g.lhs_signed ? 0x80 : 0;
  chunk_corrections corrections;
  for (std::size_t p = 0; p < panels; ++p) {
    corrections.end[p] = g.b.first_correction[first_panel + p];
  }
  const std::size_t chunk_depth =
      (std::min)(cached_depth(reused_part(g.caches.first_level), pair_rows), pair_chunk);
  for (std::size_t k = 0; k == 0 || k < g.k; k += chunk_depth) {
    const std::size_t depth = (std::min)(chunk_depth, g.k - k);
    const std::size_t size = round_up(depth, block_depth);
    const std::uint8_t* order = g.b.order + first_order + k;
    const std::uint8_t* complement = g.b.complement + first_order + k;
    std::size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      reorder_rows<4>(g.a + (first + r) * g.lda + k, g.lda, depth, order, complement, turned,
                      chunk + r * pair_chunk);
    }
    for (; r < rows; ++r) {
      reorder_rows<1>(g.a + (first + r) * g.lda + k, g.lda, depth, order, complement, turned,
                      chunk + r * pair_chunk);
    }
    corrections.first_group = k / group_depth;
    const std::size_t end_group = (k + size) / group_depth;
    for (std::size_t p = 0; p < panels; ++p) {
      std::size_t& end = corrections.end[p];
      corrections.begin[p] = end;
      while (end < g.b.first_correction[first_panel + p + 1] &&
             g.b.correction_group[end] < end_group) {
        ++end;
      }
    }
    const pair_operands t{chunk,
                          size,
                          g.b.paired + first_panel * panel_stride + k * panel_columns,
                          panel_stride,
                          &g.b,
                          &corrections,
                          0,
                          k == 0 ? g.b.offset + column : nullptr,
                          static_cast<const char*>(g.c) + (first * g.ldc + column) * c_size,
                          g.ldc * c_size,
                          panel_columns * c_size};
    add_pair_rows<rows_of_tile>(rows, panels, t, sums);
  }
  store_sums(g.epilogue, sums, strip_columns, first, rows, column, columns, g.c,
             first * g.ldc + column, g.ldc);
}

// --- many unsafe pairs ---------------------------------------------------------------------------

/// The most k of each row that are widened at a time, to 16 bits.
inline constexpr std::size_t wide_chunk = pair_chunk / 2;
/// Rows of the largest tile with widened weights. It has as many columns as a vector has lanes, and
/// two sums for each.
inline constexpr std::size_t wide_rows = lanes == panel_columns ? 8 : 4;

/// Columns that a widened row is multiplied by.
inline constexpr std::size_t wide_columns = 4 * strip_columns;

/// The operands of a tile with widened weights: rows of 16-bit values, which are wide_chunk apart,
/// and as many groups of k of a panel.
struct wide_operands {
  const std::uint16_t* a;
  std::size_t groups;
  const std::int8_t* b;
  bool is_first;  // the tile stores its sums rather than adds them
};

/// Copies `depth` bytes as 16-bit values, after the bits of `turned` are inverted, and zeros up to
/// a whole group.
HWY_INLINE void widen_row(const std::uint8_t* from, std::size_t depth, std::uint8_t turned,
                          std::uint16_t* to) noexcept {
  const hn::Repartition<std::uint16_t, int_tag> d;
  const hn::Rebind<std::uint8_t, decltype(d)> d_bytes;
  const auto flips = hn::Set(d, turned);
  std::size_t k = 0;
  for (; k + hn::Lanes(d) <= depth; k += hn::Lanes(d)) {
    hn::StoreU(hn::Xor(hn::PromoteTo(d, hn::LoadU(d_bytes, from + k)), flips), d, to + k);
  }
  for (; k < round_up(depth, group_depth); ++k) {
    to[k] = k < depth ? static_cast<std::uint16_t>(from[k] ^ turned) : std::uint16_t{0};
  }
}

/// Multiplies kRows rows by a vector of columns and adds the products to a tile of a strip's sums.
/// vpmaddwd adds the products of two neighbouring k: a group of a column has two sums side by side,
/// which are added at the end.
template <std::size_t kRows>
HWY_NOINLINE void add_wide_tile(const wide_operands& t, std::int32_t* sums) noexcept {
  const int_tag di;
  const hn::Repartition<std::uint64_t, int_tag> d_group;
  const hn::Repartition<std::int16_t, int_tag> di16;
  const hn::Rebind<std::int8_t, decltype(di16)> d_bytes;
  int_vector sum[kRows][2];
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) { sum[r][0] = sum[r][1] = hn::Zero(di); }
  const std::int8_t* b = t.b;
  const std::uint16_t* const end = t.a + t.groups * group_depth;
  for (const std::uint16_t* a = t.a; a < end; a += group_depth) {
    const auto low = hn::PromoteTo(di16, hn::LoadU(d_bytes, b));
    const auto high = hn::PromoteTo(di16, hn::LoadU(d_bytes, b + 2 * lanes));
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      std::uint64_t four;
      std::memcpy(&four, a + r * wide_chunk, sizeof four);
      const auto row = hn::BitCast(di16, hn::Set(d_group, four));
      add_in_place(sum[r][0], hn::WidenMulPairwiseAdd(di, row, low));
      add_in_place(sum[r][1], hn::WidenMulPairwiseAdd(di, row, high));
    }
    b += group_depth * panel_columns;
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    auto all =
        hn::Add(hn::ConcatEven(di, sum[r][1], sum[r][0]), hn::ConcatOdd(di, sum[r][1], sum[r][0]));
    std::int32_t* const to = sums + r * wide_columns;
    all = t.is_first ? all : hn::Add(all, hn::LoadU(di, to));
    hn::StoreU(all, di, to);
  }
}

/// Multiplies all rows by a vector of columns, the last rows with smaller tiles.
template <std::size_t kRows>
HWY_INLINE void add_wide_rows(std::size_t rows, wide_operands t, std::int32_t* sums) noexcept {
  std::size_t done = 0;
  for (; done + kRows <= rows; done += kRows) {
    add_wide_tile<kRows>(t, sums + done * wide_columns);
    t.a += kRows * wide_chunk;
  }
  if constexpr (kRows > 1) {
    if (done < rows) {
      add_wide_rows<kRows / 2>(rows - done, t, sums + done * wide_columns);
    }
  }
}

/// Multiplies the rows first .. first + rows (at most pair_rows) by up to wide_columns columns from
/// `column` on, with `data` of the weights.
inline void gemm_wide_columns(const gemm_u8s8_args& g, std::size_t first, std::size_t rows,
                              std::size_t column) noexcept {
  alignas(64) std::int32_t sums[pair_rows * wide_columns];
  alignas(64) std::uint16_t chunk[pair_rows * wide_chunk];
  const std::size_t columns = (std::min)(wide_columns, g.n - column);
  const std::size_t panels = (columns + panel_columns - 1) / panel_columns;
  const std::size_t panel_stride = round_up(g.k, group_depth) * panel_columns;
  const std::int8_t* const b = g.b.data + column / panel_columns * panel_stride;
  const std::uint8_t turned = g.lhs_signed ? 0x80 : 0;
  for (std::size_t k = 0; k == 0 || k < g.k; k += wide_chunk) {
    const std::size_t depth = (std::min)(wide_chunk, g.k - k);
    for (std::size_t r = 0; r < rows; ++r) {
      widen_row(g.a + (first + r) * g.lda + k, depth, turned, chunk + r * wide_chunk);
    }
    for (std::size_t v = 0; v < panels * vectors_per_panel; ++v) {
      const std::size_t place = v / vectors_per_panel * panel_stride + k * panel_columns +
                                v % vectors_per_panel * lanes * group_depth;
      // Without weights (K = 0), b is null: nothing may be added to it.
      const wide_operands t{chunk, (depth + group_depth - 1) / group_depth,
                            depth == 0 ? b : b + place, k == 0};
      add_wide_rows<wide_rows>(rows, t, sums + v * lanes);
    }
  }
  store_sums(g.epilogue, sums, wide_columns, first, rows, column, columns, g.c,
             first * g.ldc + column, g.ldc);
}

inline void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  const bool is_wide = g.b.paired == nullptr;
  for (std::size_t first = 0; first < g.m; first += pair_rows) {
    const std::size_t rows = (std::min)(pair_rows, g.m - first);
    for (std::size_t column = 0; column < g.n; column += is_wide ? wide_columns : strip_columns) {
      if (is_wide) {
        gemm_wide_columns(g, first, rows, column);
      } else {
        gemm_u8s8_strip(g, first, rows, column);
      }
    }
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#endif  // DETENT_PASS_PAIRS

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
