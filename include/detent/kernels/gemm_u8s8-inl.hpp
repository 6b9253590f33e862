// SPDX-License-Identifier: BSD-3-Clause
// Integer products, re-included by kernels/dispatch.hpp once per Highway target and once more for
// each instruction that Highway's target lacks. The driver has defined
//
//   DETENT_PASS_NAMESPACE    the namespace of this pass
//   DETENT_PASS_ATTRIBUTES   the target string of its functions
//   DETENT_PASS_DOT(sum, a, b)   sum + a0*b0 + a1*b1 + a2*b2 + a3*b3 in each 32-bit lane, modulo
//                                2^32, for unsigned a and signed b
//   DETENT_PASS_PAIRS            1 if it adds a0*b0 + a1*b1 and a2*b2 + a3*b3 in 16 bits
//   DETENT_PASS_ROWS, DETENT_PASS_PANELS   the largest tile that fits the registers
//   DETENT_PASS_ASSEMBLY         1 if that tile is the one of tile_vnni512-inl.hpp
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
namespace hn = hwy::HWY_NAMESPACE;
using namespace HWY_NAMESPACE;  // NOLINT: float_tag, grid_vectors, ... of the pass's target

/// The epilogue of one vector of columns, with what depends on the columns only already loaded.
/// kHasAddend: whether there is an addend, which only 32-bit outputs have. kHasRows: whether rows
/// or elements have terms of their own otherwise.
template <integer_output kOutput, bool kHasAddend, bool kHasRows>
class column_epilogue {
 public:
  HWY_INLINE column_epilogue(const integer_epilogue& e, std::size_t column) noexcept
      : column_(column),
        offset_(hn::LoadU(int_tag{}, e.column_offset + column)),
        rhs_zero_point_(load_or_zero(int_tag{}, e.rhs_zero_point, column, e.row_sum != nullptr)),
        column_sum_(load_or_zero(int_tag{}, e.column_sum, column, e.row_zero_point != nullptr)),
        multiplier_(
            load_or_zero(float_tag{}, e.multiplier, column, kOutput != integer_output::s32)),
        bias_(load_or_zero(float_tag{}, e.bias, column, e.bias != nullptr)),
        lower_(hn::Set(float_tag{}, e.lower)),
        upper_(hn::Set(float_tag{}, e.upper)),
        grid_(hn::Set(int_tag{}, e.zero_point), e.qmin, e.qmax) {}

  /// Stores `count` results for the sums of a row at element `index` of c.
  HWY_INLINE void store(const integer_epilogue& e, const std::int32_t* sums, std::size_t row,
                        std::size_t count, void* c, std::size_t index) const noexcept {
    const float_tag df;
    const int_tag di;
    int_vector v = hn::Add(hn::LoadU(di, sums), offset_);
    if constexpr (kHasRows) {
      if (e.row_sum != nullptr) {
        v = hn::Sub(v, hn::Mul(hn::Set(di, e.row_sum[row]), rhs_zero_point_));
      }
      if (e.row_zero_point != nullptr) {
        v = hn::Sub(v, hn::Mul(hn::Set(di, e.row_zero_point[row]), column_sum_));
      }
    }
    if constexpr (kOutput == integer_output::s32) {
      if constexpr (kHasAddend) {
        const std::int32_t* addend = e.addend + row * e.addend_stride + column_;
        v = hn::Add(v, count == lanes ? hn::LoadU(di, addend) : hn::LoadN(di, addend, count));
      }
      store_lanes(v, di, count, static_cast<std::int32_t*>(c) + index);
      return;
    }
    const float_vector sum = hn::ConvertTo(df, v);
    if constexpr (kOutput == integer_output::f32 || kOutput == integer_output::bf16) {
      float_vector m = multiplier_;
      if (kHasRows && e.row_scale != nullptr) {
        m = hn::Mul(hn::Set(df, e.row_scale[row]), m);
      }
      // Without a bias the sum of the product and 0 is rounded to the product.
      float_vector real = hn::MulAdd(sum, m, bias_);
      if (kHasRows && e.residual != nullptr) {
        const float* residual = e.residual + row * e.residual_stride + column_;
        real = hn::Add(real,
                       count == lanes ? hn::LoadU(df, residual) : hn::LoadN(df, residual, count));
      }
      real = clamp_ordered(real, lower_, upper_);
      if constexpr (kOutput == integer_output::f32) {
        store_lanes(real, df, count, static_cast<float*>(c) + index);
      } else {
        const hn::Rebind<std::uint16_t, float_tag> d16;
        store_lanes(to_bfloat16(real), d16, count, static_cast<std::uint16_t*>(c) + index);
      }
    } else {
      // The product of an integer and a finite multiplier is never NaN.
      const int_vector q = grid_.round(grid_.clamp(hn::Mul(sum, multiplier_)));
      using output_type =
          std::conditional_t<kOutput == integer_output::u8, std::uint8_t, std::int8_t>;
      output_type* to = static_cast<output_type*>(c) + index;
      if (count == lanes) {
        store_8bit(q, to);
      } else {
        store_8bit(q, count, to);
      }
    }
  }

 private:
  template <class D, class T>
  static HWY_INLINE hn::Vec<D> load_or_zero(D d, const T* from, std::size_t column,
                                            bool is_there) noexcept {
    return is_there ? hn::LoadU(d, from + column) : hn::Zero(d);
  }
  template <class V, class D, class T>
  static HWY_INLINE void store_lanes(V v, D d, std::size_t count, T* to) noexcept {
    if (count == lanes) {
      hn::StoreU(v, d, to);
    } else {
      hn::StoreN(v, d, to, count);
    }
  }

  std::size_t column_;
  int_vector offset_, rhs_zero_point_, column_sum_;
  float_vector multiplier_, bias_, lower_, upper_;
  grid_vectors grid_;
};

/// Applies the epilogue to a block of sums, whose rows are `sums_stride` apart, and stores
/// `columns` of each row. c points to the block's first element.
template <integer_output kOutput, bool kHasAddend, bool kHasRows>
void store_block(const integer_epilogue& e, const std::int32_t* sums, std::size_t sums_stride,
                 std::size_t first, std::size_t rows, std::size_t column, std::size_t columns,
                 void* c, std::size_t index, std::size_t ldc) noexcept {
  constexpr std::size_t kRows = DETENT_PASS_ROWS;  // what a tile has
  for (std::size_t j = 0; j < columns; j += lanes) {
    const column_epilogue<kOutput, kHasAddend, kHasRows> epilogue(e, column + j);
    const std::int32_t* from = sums + j;
    std::size_t to = index + j;
    std::size_t r = 0;
    if (columns - j >= lanes) {
      for (; r + kRows <= rows; r += kRows) {
        DETENT_UNROLL for (std::size_t i = 0; i < kRows; ++i) {
          epilogue.store(e, from + i * sums_stride, first + r + i, lanes, c, to);
          to += ldc;
        }
        from += kRows * sums_stride;
      }
    }
    const std::size_t count = (std::min)(lanes, columns - j);
    for (; r < rows; ++r, from += sums_stride, to += ldc) {
      epilogue.store(e, from, first + r, count, c, to);
    }
  }
}

[[nodiscard]] HWY_INLINE bool has_terms_of_rows(const integer_epilogue& e) noexcept {
  return e.row_sum != nullptr || e.row_zero_point != nullptr || e.row_scale != nullptr ||
         e.residual != nullptr;
}

template <integer_output kOutput, bool kHasAddend = false>
void store_block(const integer_epilogue& e, const std::int32_t* sums, std::size_t sums_stride,
                 std::size_t first, std::size_t rows, std::size_t column, std::size_t columns,
                 void* c, std::size_t index, std::size_t ldc) noexcept {
  const auto store = has_terms_of_rows(e) ? store_block<kOutput, kHasAddend, true>
                                          : store_block<kOutput, kHasAddend, false>;
  store(e, sums, sums_stride, first, rows, column, columns, c, index, ldc);
}

inline void store_sums(const integer_epilogue& e, const std::int32_t* sums, std::size_t sums_stride,
                       std::size_t first, std::size_t rows, std::size_t column, std::size_t columns,
                       void* c, std::size_t index, std::size_t ldc) noexcept {
  switch (e.output) {
    case integer_output::s32:
      if (e.addend != nullptr) {
        return store_block<integer_output::s32, true>(e, sums, sums_stride, first, rows, column,
                                                      columns, c, index, ldc);
      }
      return store_block<integer_output::s32>(e, sums, sums_stride, first, rows, column, columns, c,
                                              index, ldc);
    case integer_output::f32:
      return store_block<integer_output::f32>(e, sums, sums_stride, first, rows, column, columns, c,
                                              index, ldc);
    case integer_output::bf16:
      return store_block<integer_output::bf16>(e, sums, sums_stride, first, rows, column, columns,
                                               c, index, ldc);
    case integer_output::u8:
      return store_block<integer_output::u8>(e, sums, sums_stride, first, rows, column, columns, c,
                                             index, ldc);
    case integer_output::s8:
      return store_block<integer_output::s8>(e, sums, sums_stride, first, rows, column, columns, c,
                                             index, ldc);
  }
}

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
inline std::size_t gemm_workspace(const gemm_u8s8_args& g) noexcept {
  return portable::no_workspace(g);
}

inline constexpr std::size_t strip_panels = strip_columns / panel_columns;

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

  /// How much of them one tile asks for.
  [[nodiscard]] std::size_t next_bytes() const noexcept {
    return segments * (depth / group_depth / groups_per_step) * 64;
  }
};

/// Sums that are computed side by side, where a tile alone has too few to hide the latency of the
/// additions.
template <std::size_t kSums>
inline constexpr std::size_t parallel_sums = kSums <= 2                                  ? 4
                                             : kSums <= (DETENT_PASS_PAIRS != 0 ? 5 : 6) ? 2
                                                                                         : 1;

/// What is left of a row behind its last whole group of four k, with zeros behind it, so that
/// nothing past the end of a row is read. Only the last chunk ends early, and has one segment.
HWY_INLINE void copy_last_group(const tile_operands& t, std::size_t row,
                                std::uint8_t (&to)[group_depth]) noexcept {
  const std::size_t rest = t.depth % group_depth;
  std::memset(to, 0, group_depth);
  std::memcpy(to, t.rows[row] + t.offset + t.depth - rest, rest);
}

#if DETENT_PASS_ASSEMBLY
#include <detent/kernels/tile_vnni512-inl.hpp>
#endif

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

/// Where the rows of a block are: see tile_operands.
struct block_operands {
  const std::uint8_t* const* rows;
  std::size_t row_stride;
};

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
  // Weights that a part of the second-level cache holds while the rows pass over them: several
  // short segments, or a piece of a long one.
  const std::size_t chunk_depth = cached_depth(g.caches.second_level / 8, kColumns);
  const std::size_t segment_depth = g.k / g.segments;
  const std::size_t segments_of_chunk =
      segment_depth == 0 ? 1 : (std::max)(chunk_depth / segment_depth, std::size_t{1});
  // The columns that follow are brought into the second-level cache meanwhile.
  const std::int8_t* const end = panel + kPanels * panel_stride;
  const std::int8_t* next = column + kColumns < g.n ? end : panel;
  // Sums of all of k are stored at once, others when all rows have passed over all weights.
  const bool is_whole = segment_depth <= chunk_depth && g.segments <= segments_of_chunk;
  const std::size_t step = is_whole ? kRows : block_rows;
  std::size_t done = 0;
#if DETENT_PASS_ASSEMBLY
  if (kPanels == DETENT_PASS_PANELS && is_whole && columns == kColumns &&
      !has_terms_of_rows(g.epilogue) && g.epilogue.addend == nullptr) {
    const tile_operands t{a.rows, a.row_stride, g.segments, 0,   segment_depth,
                          panel,  panel_stride, true,       next};
    multiply_tiles(g, t, rows / kRows, first, column, next + (end - panel));
    done = rows / kRows * kRows;
  }
#endif
  for (; done < rows; done += step) {
    const std::size_t count = (std::min)(step, rows - done);
    const std::size_t tiled = count / kRows * kRows;
    const std::size_t row = first + done;
    for (std::size_t s = 0; s < g.segments; s += segments_of_chunk) {
      for (std::size_t k = 0; k == 0 || k < segment_depth; k += chunk_depth) {
        const std::int8_t* b = panel + (s * segment_depth + k) * panel_columns;
        tile_operands t{a.rows + s * a.row_stride + done,
                        a.row_stride,
                        (std::min)(segments_of_chunk, g.segments - s),
                        k,
                        (std::min)(chunk_depth, segment_depth - k),
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

/// The rows first .. first + rows of all columns from `column` on, the last ones with fewer panels.
template <std::size_t kPanels>
void gemm_u8s8_columns(const gemm_u8s8_args& g, const block_operands& a, std::size_t first,
                       std::size_t rows, std::size_t column) noexcept {
  for (; column + (kPanels - 1) * panel_columns < g.n; column += kPanels * panel_columns) {
    gemm_u8s8_block<kPanels>(g, a, first, rows, column);
  }
  if constexpr (kPanels > 1) {
    gemm_u8s8_columns<kPanels / 2>(g, a, first, rows, column);
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
    if (g.rows != nullptr) {
      a = {g.rows + first, g.m};
    } else {
      for (std::size_t r = 0; r < rows; ++r) {
        block[r] = g.a + (first + r) * g.lda;
      }
    }
    gemm_u8s8_columns<block_panels>(g, a, first, rows, 0);
  }
}

#endif  // !DETENT_PASS_PAIRS

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES
