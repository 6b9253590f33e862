// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit integers with an instruction that adds four of them in 32 bits (vpdpbusd).
// Products without it are in gemm_u8s8_pairs-inl.hpp.
//
// vpdpbusd has a latency of 5 cycles, and 512-bit server cores start two per cycle, so that at
// least ten accumulators must be in flight. A tile of 6 rows x 64 columns has 24, with fewer loads
// and pointers than a tile with more rows: GCC keeps pointers that do not fit the general registers
// in vector registers, and moving them back takes the multipliers' ports. A tile adds all of k in
// one go: its weights come from the second-level cache, are prefetched far enough ahead, and its
// sums never leave the registers.

#ifndef DETENT_KERNELS_VECTOR_GEMM_U8S8_INL_HPP
#define DETENT_KERNELS_VECTOR_GEMM_U8S8_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/vector/integer_tiles-inl.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/tile_operands-inl.hpp>
#include <detent/kernels/vector/tile_vnni512-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/gemm_u8s8-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

inline constexpr bool adds_pairs = DETENT_PASS_PAIRS != 0;
inline constexpr bool multiplies_signed = false;
/// Bytes from one row of turned signs to the next: whole cache lines, and one more, so that it is
/// rarely a multiple of 4 KB.
[[nodiscard]] HWY_INLINE std::size_t turned_stride(std::size_t depth) noexcept {
  return round_up(depth, 64) + 64;
}

/// Room for rows of turned signs. Passes that add pairs need none: they turn signs while they make
/// a copy that they need anyway.
inline std::size_t gemm_workspace(const gemm_u8s8_args& g) noexcept {
  return g.lhs_signed && !adds_pairs ? (std::min)(g.m, rows_per_call) * turned_stride(g.k) : 0;
}

#if !DETENT_PASS_PAIRS

/// Panels that a row block is multiplied by at a time: as many as a tile of few rows needs to keep
/// the multipliers busy.
inline constexpr std::size_t block_panels =
    panels_of_tile * vectors_per_panel >= 4 ? panels_of_tile : 2 * panels_of_tile;

/// The left rows of a row block, as in tile_operands. If `turn` has rows, those behind the last
/// whole tile are already turned, like those of the first one.
struct block_operands {
  const std::uint8_t* const* rows;
  std::size_t row_stride;
  rows_to_turn turn = {};
};

/// How k is divided into chunks: the weights of a chunk stay in a part of the second-level cache
/// while the rows pass over them. A chunk is several short segments or a piece of a long one.
struct depth_chunks {
  std::size_t depth;     // k of each segment in a chunk
  std::size_t segments;  // segments in a chunk
  bool is_whole;         // whether one chunk is all of k

  HWY_INLINE depth_chunks(const gemm_u8s8_args& g, std::size_t columns) noexcept {
    depth = cached_depth(g.caches.second_level / 4, columns);
    segments = 1;
    if (g.segments == 1) {  // products of few rows have no time for divisions
      is_whole = g.k <= depth;
      return;
    }
    const std::size_t of_segment = g.k / g.segments;
    segments = of_segment == 0 ? 1 : (std::max)(depth / of_segment, std::size_t{1});
    is_whole = of_segment <= depth && g.segments <= segments;
  }
};

/// Whether whole tiles go through multiply_tiles(), which stores each tile at once: in assembly
/// passes, if rows and elements have no terms of their own and one chunk is all of k.
[[nodiscard]] HWY_INLINE bool stores_whole_tiles(const gemm_u8s8_args& g) noexcept {
  return DETENT_PASS_ASSEMBLY != 0 && !has_terms_of_rows(g.epilogue) &&
         g.epilogue.addend == nullptr && depth_chunks(g, panels_of_tile * panel_columns).is_whole;
}

/// Multiplies the rows first .. first + rows by kPanels panels from `column` on. Rows that fill the
/// largest tiles are multiplied by the panels of one tile at a time; the remaining rows are
/// multiplied by all kPanels panels, since few rows need more columns to keep the multipliers busy.
template <std::size_t kPanels>
void gemm_u8s8_block(const gemm_u8s8_args& g, const block_operands& a, std::size_t first,
                     std::size_t rows, std::size_t column) noexcept {
  constexpr std::size_t kColumns = kPanels * panel_columns;
  constexpr std::size_t kTilePanels = (std::min)(kPanels, std::size_t{panels_of_tile});
  // A single panel has room for the sums of twice as many rows, for which its weights are loaded
  // once.
  constexpr bool kIsNarrow = DETENT_PASS_ASSEMBLY != 0 && kPanels == 1;
  constexpr std::size_t kRows = kIsNarrow ? 2 * rows_of_tile : rows_of_tile;
  constexpr std::size_t kRest = kIsNarrow                        ? rows_of_tile
                                : DETENT_PASS_ASSEMBLY != 0      ? kRows - 1
                                : block_panels == panels_of_tile ? 4
                                                                 : kRows / 2;
  alignas(64) std::int32_t sums[block_rows * kColumns];
  const std::size_t columns = (std::min)(kColumns, g.n - column);
  const std::size_t panel_stride = round_up(g.k, group_depth) * panel_columns;
  const std::int8_t* panel = g.b.data + column / panel_columns * panel_stride;
  const depth_chunks chunks(g, kColumns);
  const std::size_t segment_depth = g.segments == 1 ? g.k : g.k / g.segments;
  // Meanwhile the weights of the columns that follow are fetched into the second-level cache.
  const std::int8_t* const end = panel + kPanels * panel_stride;
  const std::int8_t* next = column + kColumns < g.n + g.following_columns ? end : panel;
  // If a chunk is all of k, the sums of each tile's rows are complete and stored at once; otherwise
  // they are stored when all rows of the row block have passed over all chunks.
  const std::size_t step = chunks.is_whole ? kRows : block_rows;
  // A tile of one row is limited by the reading of weights: the last 7 rows are better 5 and 2.
  const bool splits = DETENT_PASS_ASSEMBLY != 0 && !kIsNarrow && rows > kRows &&
                      rows % kRows == 1 && chunks.is_whole && a.turn.from == nullptr;
  std::size_t done = 0;
#if DETENT_PASS_ASSEMBLY
  if (kPanels == panels_of_tile && columns == kColumns && stores_whole_tiles(g)) {
    tile_operands t{a.rows, a.row_stride, g.segments, 0,   segment_depth,
                    panel,  panel_stride, true,       next};
    t.zero_segment = g.zero_segment;
    done = (rows / kRows - (splits ? 1 : 0)) * kRows;
    multiply_tiles(g, t, done / kRows, first, column, next + (end - panel), a.turn);
  }
#endif
  for (std::size_t count = 0; done < rows; done += count) {
    const bool is_split = splits && rows - done == kRows + 1;
    count = is_split ? kRows + 1 : (std::min)(step, rows - done);
    const std::size_t tiled = is_split ? 0 : count / kRows * kRows;
    const std::size_t row = first + done;
    for (std::size_t s = 0; s < g.segments; s += chunks.segments) {
      for (std::size_t k = 0; k == 0 || k < segment_depth; k += chunks.depth) {
        const std::int8_t* b = panel + (s * segment_depth + k) * panel_columns;
        tile_operands t{a.rows + s * a.row_stride + done,
                        a.row_stride,
                        (std::min)(chunks.segments, g.segments - s),
                        k,
                        (std::min)(chunks.depth, segment_depth - k),
                        b,
                        panel_stride,
                        s + k == 0};
        t.zero_segment = g.zero_segment;
        for (std::size_t p = 0; p < kPanels && tiled > 0; p += kTilePanels) {
          t.b = b + p * panel_stride;
          t.next = next;
          next += tiled / kRows * t.next_bytes();
          next = next < end + (end - panel) ? next : panel;
          add_tiles<kRows, kTilePanels, kColumns>(tiled, t, sums + p * panel_columns);
        }
        if (tiled < count) {
          t.rows += tiled;
          t.b = b;
          add_rows<kRest, kPanels, kColumns>(count - tiled, t, sums + tiled * kColumns);
        }
      }
    }
    store_sums(g.epilogue, sums, kColumns, row, count, column, columns, g.c, row * g.ldc + column,
               g.ldc);
  }
}

/// Up to lone_columns last columns are multiplied one by one: a tile would mostly multiply the
/// zeros that fill their panel, and broadcast each group of a row for them. This does not pay for
/// fewer than lone_rows rows, for which gathering a column's weights takes as long, and there is no
/// room for more than lone_depth k.
inline constexpr std::size_t lone_columns = 2;
inline constexpr std::size_t lone_rows = 12;
inline constexpr std::size_t lone_depth = 4096;

/// Multiplies the rows first .. first + rows by the columns of the last panel, which has up to
/// lone_columns of them.
inline void gemm_u8s8_lone(const gemm_u8s8_args& g, const block_operands& a, std::size_t first,
                           std::size_t rows, std::size_t column) noexcept {
  const int_tag di;
  const hn::Repartition<std::uint8_t, int_tag> du8;
  const hn::Repartition<std::int8_t, int_tag> ds8;
  const std::size_t step = hn::Lanes(ds8);
  const std::size_t padded = round_up(g.k, group_depth);
  const std::size_t columns = g.n - column;
  alignas(64) std::int8_t weights[lone_columns][lone_depth];
  for (std::size_t j = 0; j < columns; ++j) {
    for (std::size_t k = 0; k < padded; k += group_depth) {
      std::memcpy(weights[j] + k, g.b.data + column * padded + k * panel_columns + j * group_depth,
                  group_depth);
    }
    // Vectors of weights read beyond the last k, where the row has zeros.
    std::memset(weights[j] + padded, 0, round_up(padded, step) - padded);
  }
  alignas(64) std::int32_t sums[block_rows * panel_columns] = {};
  for (std::size_t done = 0; done < rows; done += block_rows) {
    const std::size_t count = (std::min)(block_rows, rows - done);
    for (std::size_t r = 0; r < count; ++r) {
      const std::uint8_t* row = a.rows[done + r];
      for (std::size_t j = 0; j < columns; ++j) {
        int_vector sum = hn::Zero(di);
        std::size_t k = 0;
        for (; k + step <= g.k; k += step) {
          sum = dot(sum, hn::LoadU(du8, row + k), hn::Load(ds8, weights[j] + k));
        }
        if (k < g.k) {
          sum = dot(sum, load_part(du8, row + k, g.k - k), hn::Load(ds8, weights[j] + k));
        }
        sums[r * panel_columns + j] = hn::ReduceSum(di, sum);
      }
    }
    store_sums(g.epilogue, sums, panel_columns, first + done, count, column, columns, g.c,
               (first + done) * g.ldc + column, g.ldc);
  }
}

/// Multiplies the rows first .. first + rows by the columns from `column` to `end`, kPanels panels
/// at a time, the last ones with fewer.
template <std::size_t kPanels>
void gemm_u8s8_columns(const gemm_u8s8_args& g, const block_operands& a, std::size_t first,
                       std::size_t rows, std::size_t column, std::size_t end) noexcept {
  if constexpr (kPanels == 1) {
    if (column < end && end == g.n && end - column <= lone_columns && rows >= lone_rows &&
        g.k <= lone_depth && g.rows == nullptr) {
      return gemm_u8s8_lone(g, a, first, rows, column);
    }
  }
  for (; column + (kPanels - 1) * panel_columns < end; column += kPanels * panel_columns) {
    gemm_u8s8_block<kPanels>(g, a, first, rows, column);
  }
  if constexpr (kPanels > 1) {
    gemm_u8s8_columns<kPanels / 2>(g, a, first, rows, column, end);
  }
}

/// Multiplies the rows first .. first + rows, which have signed bytes, by the first columns, up to
/// `end`, and sets `block` to where the rows then are as unsigned bytes, for the columns that
/// follow. Tiles turn rows that lie one after the other while they multiply the rows before them;
/// other rows are turned one row block at a time, so that they are in the first-level cache when
/// they are multiplied.
inline void gemm_turned_rows(const gemm_u8s8_args& g, std::size_t first, std::size_t rows,
                             std::size_t end, const std::uint8_t** block) noexcept {
  constexpr std::size_t kRows = rows_of_tile;
  const std::uint8_t* from = g.a + first * g.lda;
  auto* to = reinterpret_cast<std::uint8_t*>(g.workspace);
  const bool by_tiles = g.lda == g.k && rows >= 2 * kRows && end == block_panels * panel_columns &&
                        stores_whole_tiles(g);
  const std::size_t stride = by_tiles ? g.k : turned_stride(g.k);
  for (std::size_t r = 0; r < rows; ++r) {
    block[r] = to + r * stride;
  }
  if (by_tiles) {
    const std::size_t tiled = rows / kRows * kRows;
    turn_signs(from, kRows * g.k, to);
    turn_signs(from + tiled * g.k, (rows - tiled) * g.k, to + tiled * g.k);
    gemm_u8s8_block<block_panels>(g, {block, 0, {from, to}}, first, rows, 0);
    return;
  }
  for (std::size_t done = 0; done < rows; done += block_rows) {
    const std::size_t count = (std::min)(block_rows, rows - done);
    for (std::size_t r = done; r < done + count; ++r) {
      turn_signs(from + r * g.lda, g.k, to + r * stride);
    }
    gemm_u8s8_columns<block_panels>(g, {block + done, 0}, first + done, count, 0, end);
  }
}

/// Whether the product has a single row and weights of some megabytes at most. It takes as long as
/// the weights take to read. From the second-level cache, a processor reads one stretch of memory
/// faster than several side by side: 768 x 768 weights in 2.4 us instead of 3.9. From far beyond,
/// it reads several faster.
[[nodiscard]] HWY_INLINE bool is_row_of_near_weights(const gemm_u8s8_args& g) noexcept {
  return g.m == 1 && g.rows == nullptr && g.n * g.k <= 4 * g.caches.second_level;
}

/// Multiplies the single row at `row`, one panel after the other.
inline void gemm_u8s8_row(const gemm_u8s8_args& g, const std::uint8_t* row) noexcept {
  constexpr std::size_t kColumns = 16 * panel_columns;
  alignas(64) std::int32_t sums[kColumns];
  const std::size_t panel_stride = round_up(g.k, group_depth) * panel_columns;
  const std::int8_t* panel = g.b.data;
  for (std::size_t column = 0; column < g.n; column += kColumns) {
    const std::size_t columns = (std::min)(kColumns, g.n - column);
    for (std::size_t c = 0; c < columns; c += panel_columns, panel += panel_stride) {
      add_tile<1, 1, kColumns>({&row, 0, 1, 0, g.k, panel, panel_stride, true}, sums + c);
    }
    store_sums(g.epilogue, sums, kColumns, 0, 1, column, columns, g.c, column, g.ldc);
  }
}

inline void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  if (is_row_of_near_weights(g)) {
    auto* const turned = reinterpret_cast<std::uint8_t*>(g.workspace);
    if (g.lhs_signed) {
      turn_signs(g.a, g.k, turned);
    }
    gemm_u8s8_row(g, g.lhs_signed ? turned : g.a);
    return;
  }
  const std::uint8_t* block[rows_per_call];
  // As many rows pass over the weights together as fit the second-level cache, even if the weights
  // beside them then push some out: weights that come from the third level cost more, among others
  // because prefetching ends with each page of 4096 bytes. A product of 4096 x 4096 x 4096 takes 10
  // percent longer with 48 rows and k divided in two than with 240 rows and all of k.
  std::size_t most = block_rows;
  if (g.m > block_rows) {
    const std::size_t cached_rows = g.caches.second_level / (std::max)(g.k, std::size_t{1});
    most = std::clamp(cached_rows / block_rows * block_rows, block_rows, rows_per_call);
  }
  for (std::size_t first = 0; first < g.m; first += most) {
    const std::size_t rows = (std::min)(most, g.m - first);
    block_operands a{block, 0};
    std::size_t column = 0;
    if (g.rows != nullptr) {
      a = {g.rows + first, g.m};
    } else if (g.lhs_signed) {
      column = (std::min)(block_panels * panel_columns, g.n);
      gemm_turned_rows(g, first, rows, column, block);
    } else {
      for (std::size_t r = 0; r < rows; ++r) {
        block[r] = g.a + (first + r) * g.lda;
      }
    }
    gemm_u8s8_columns<block_panels>(g, a, first, rows, column, g.n);
  }
}

#endif  // !DETENT_PASS_PAIRS

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
