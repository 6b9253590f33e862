// SPDX-License-Identifier: BSD-3-Clause
// Integer products with an instruction that adds four of them, and the tiles that kernels of 4-bit
// weights share.
//
// vpdpbusd: latency 5 cycles, two per cycle on 512-bit server cores, so at least ten accumulators
// must be in flight; 6 x 64 columns has 24, with fewer loads and pointers than a higher tile (what
// does not fit the general registers, GCC keeps in vector registers, and moving it back takes the
// multipliers' ports). A tile adds all of k in one go: its weights come from the second-level
// cache, far enough ahead of their use, and its sums never leave the registers. What does without
// it is in gemm_u8s8_pairs-inl.hpp.

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// Rows of a block: its sums stay on the stack while all of k is added to them.
inline constexpr std::size_t block_rows = 48;

/// How many k of `width` operands that are read again fit `bytes` of a cache.
[[nodiscard]] HWY_INLINE std::size_t cached_depth(std::size_t bytes, std::size_t width) noexcept {
  return (std::max)(bytes / width / block_depth, std::size_t{1}) * block_depth;
}

[[nodiscard]] HWY_INLINE constexpr std::size_t round_up(std::size_t n,
                                                        std::size_t multiple) noexcept {
  return (n + multiple - 1) / multiple * multiple;
}

inline constexpr bool adds_pairs = DETENT_PASS_PAIRS != 0;
inline constexpr bool multiplies_signed = false;
inline constexpr std::size_t rows_per_call = adds_pairs ? block_rows : 5 * block_rows;
inline constexpr std::size_t rows_per_tile = DETENT_PASS_ROWS;
static_assert(rows_per_call % rows_per_tile == 0);

/// From one row of turned signs to the next: whole cache lines, and rarely a multiple of 4 KB.
[[nodiscard]] HWY_INLINE std::size_t turned_stride(std::size_t depth) noexcept {
  return round_up(depth, 64) + 64;
}

/// Tables with adds_pairs turn signs on the way to a copy that they make anyway.
inline std::size_t gemm_workspace(const gemm_u8s8_args& g) noexcept {
  return g.lhs_signed && !adds_pairs ? (std::min)(g.m, rows_per_call) * turned_stride(g.k) : 0;
}

inline constexpr std::size_t strip_panels = strip_columns / panel_columns;

/// Sums that are computed side by side, where a tile alone has too few to hide the latency of the
/// additions.
template <std::size_t kSums>
inline constexpr std::size_t parallel_sums = kSums <= 2                                  ? 4
                                             : kSums <= (DETENT_PASS_PAIRS != 0 ? 5 : 6) ? 2
                                                                                         : 1;

/// Adds the products of one group of four k: those at `offset` of each row of a, and those at b.
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
      sum[r][v] = DETENT_PASS_DOT(sum[r][v], av, bv[v]);
    }
  }
}

/// Adds the products of kRows rows and kPanels panels to a tile of sums, whose rows are kStride
/// apart.
template <std::size_t kRows, std::size_t kPanels, std::size_t kStride>
HWY_INLINE void add_tile(const tile_operands& t, std::int32_t* sums) noexcept {
#if DETENT_PASS_ASSEMBLY
  if constexpr (kRows == DETENT_PASS_ROWS && kPanels == DETENT_PASS_PANELS) {
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
      if constexpr (kRows == DETENT_PASS_ROWS && DETENT_PASS_PAIRS == 0) {
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        next += 64;
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

/// Adds products to a block of sums: kRows rows at a time, as often as there are as many. Returns
/// how many rows are done.
template <std::size_t kRows, std::size_t kPanels, std::size_t kStride>
HWY_INLINE std::size_t add_tiles(std::size_t rows, tile_operands t, std::int32_t* sums) noexcept {
  std::size_t done = 0;
  for (; done + kRows <= rows; done += kRows) {
    add_tile<kRows, kPanels, kStride>(t, sums + done * kStride);
    t.rows += kRows;
    if constexpr (kRows == DETENT_PASS_ROWS && DETENT_PASS_PAIRS == 0) {
      t.next += t.next_bytes();
    }
  }
  return done;
}

/// The same for all rows, the last ones with ever smaller tiles: of 6, 4, 2 and 1 rows, so that
/// what is left over rarely needs more than two.
template <std::size_t kRows, std::size_t kPanels, std::size_t kStride>
HWY_INLINE void add_rows(std::size_t rows, tile_operands t, std::int32_t* sums) noexcept {
  const std::size_t done = add_tiles<kRows, kPanels, kStride>(rows, t, sums);
  if constexpr (kRows > 1) {
    if (done < rows) {
      constexpr std::size_t kNext = kRows == 6 ? 4 : kRows / 2;
      t.rows += done;
      add_rows<kNext, kPanels, kStride>(rows - done, t, sums + done * kStride);
    }
  }
}

#if !DETENT_PASS_PAIRS

/// Panels of a block: as many as a tile of few rows needs to keep the multipliers busy.
inline constexpr std::size_t block_panels =
    DETENT_PASS_PANELS * vectors_per_panel >= 4 ? DETENT_PASS_PANELS : 2 * DETENT_PASS_PANELS;

/// Where the rows of a block are: see tile_operands. Of rows_to_turn, the rows behind the last
/// whole tile are turned, too.
struct block_operands {
  const std::uint8_t* const* rows;
  std::size_t row_stride;
  rows_to_turn turn = {};
};

/// How much of k is multiplied at a time: weights that a part of the second-level cache holds while
/// the rows pass over them, several short segments or a piece of a long one.
struct depth_chunks {
  std::size_t depth;     // of a segment
  std::size_t segments;  // at a time
  bool is_whole;         // whether that is all of k

  HWY_INLINE depth_chunks(const gemm_u8s8_args& g, std::size_t columns) noexcept {
    const std::size_t of_segment = g.k / g.segments;
    depth = cached_depth(g.caches.second_level / 8, columns);
    segments = of_segment == 0 ? 1 : (std::max)(depth / of_segment, std::size_t{1});
    is_whole = of_segment <= depth && g.segments <= segments;
  }
};

/// Whether blocks of whole tiles go through multiply_tiles().
[[nodiscard]] HWY_INLINE bool stores_whole_tiles(const gemm_u8s8_args& g) noexcept {
  return DETENT_PASS_ASSEMBLY != 0 && !has_terms_of_rows(g.epilogue) &&
         g.epilogue.addend == nullptr &&
         depth_chunks(g, DETENT_PASS_PANELS * panel_columns).is_whole;
}

/// The rows first .. first + rows of kPanels panels of columns. Rows that fill the largest tiles go
/// through those, panel by panel; the others need more columns to keep the multipliers busy.
template <std::size_t kPanels>
void gemm_u8s8_block(const gemm_u8s8_args& g, const block_operands& a, std::size_t first,
                     std::size_t rows, std::size_t column) noexcept {
  constexpr std::size_t kColumns = kPanels * panel_columns;
  constexpr std::size_t kTilePanels = (std::min)(kPanels, std::size_t{DETENT_PASS_PANELS});
  constexpr std::size_t kRows = DETENT_PASS_ROWS;
  constexpr std::size_t kRest = block_panels == DETENT_PASS_PANELS ? 4 : kRows / 2;
  alignas(64) std::int32_t sums[block_rows * kColumns];
  const std::size_t columns = (std::min)(kColumns, g.n - column);
  const std::size_t panel_stride = round_up(g.k, group_depth) * panel_columns;
  const std::int8_t* panel = g.b.data + column / panel_columns * panel_stride;
  const depth_chunks chunks(g, kColumns);
  const std::size_t segment_depth = g.k / g.segments;
  // The columns that follow are brought into the second-level cache meanwhile.
  const std::int8_t* const end = panel + kPanels * panel_stride;
  const std::int8_t* next = column + kColumns < g.n + g.following_columns ? end : panel;
  // Sums of all of k are stored at once, others when all rows have passed over all weights.
  const std::size_t step = chunks.is_whole ? kRows : block_rows;
  std::size_t done = 0;
#if DETENT_PASS_ASSEMBLY
  if (kPanels == DETENT_PASS_PANELS && columns == kColumns && stores_whole_tiles(g)) {
    const tile_operands t{a.rows, a.row_stride, g.segments, 0,   segment_depth,
                          panel,  panel_stride, true,       next};
    multiply_tiles(g, t, rows / kRows, first, column, next + (end - panel), a.turn);
    done = rows / kRows * kRows;
  }
#endif
  for (; done < rows; done += step) {
    const std::size_t count = (std::min)(step, rows - done);
    const std::size_t tiled = count / kRows * kRows;
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

/// So few columns are multiplied one by one: a tile would mostly multiply the zeros of their panel,
/// and broadcast each group of a row for them. Not for few rows, for which it takes as long to
/// bring a column's weights together, nor with more k than there is room for.
inline constexpr std::size_t lone_columns = 2;
inline constexpr std::size_t lone_rows = 12;
inline constexpr std::size_t lone_depth = 4096;

/// The rows first .. first + rows of the last panel, which has up to lone_columns.
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
    // They meet zeros, but are read.
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
          sum = DETENT_PASS_DOT(sum, hn::LoadU(du8, row + k), hn::Load(ds8, weights[j] + k));
        }
        if (k < g.k) {
          sum =
              DETENT_PASS_DOT(sum, load_part(du8, row + k, g.k - k), hn::Load(ds8, weights[j] + k));
        }
        sums[r * panel_columns + j] = hn::ReduceSum(di, sum);
      }
    }
    store_sums(g.epilogue, sums, panel_columns, first + done, count, column, columns, g.c,
               (first + done) * g.ldc + column, g.ldc);
  }
}

/// The rows first .. first + rows of the columns from `column` to `end`, the last ones with fewer
/// panels.
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

/// The rows first .. first + rows of signed bytes and the first block of columns, which ends at
/// `end`; and `block`, where the rows then are as unsigned bytes. Tiles turn rows that lie one
/// after the other while they multiply those before; other rows are turned a block at a time, so
/// that they are in the first-level cache when they are multiplied.
inline void gemm_turned_rows(const gemm_u8s8_args& g, std::size_t first, std::size_t rows,
                             std::size_t end, const std::uint8_t** block) noexcept {
  constexpr std::size_t kRows = DETENT_PASS_ROWS;
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

inline void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  const std::uint8_t* block[rows_per_call];
  // As many rows pass over the weights, which may come from the third level, as stay in a part of
  // the second one.
  const std::size_t cached_rows = g.caches.second_level / 4 / (std::max)(g.k, std::size_t{1});
  const std::size_t most =
      std::clamp(cached_rows / block_rows * block_rows, block_rows, rows_per_call);
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
