// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit integers in AMX tiles, with the epilogue of the AVX-512 VNNI pass.
//
// A tile of weights is a part of a panel as it is stored: sixteen rows of 64 bytes, each row one
// group of each of sixteen columns. Two tiles of left rows times two panels need four loads for
// four products. All steps of k have the same shape, because ldtilecfg, which changes the shape,
// would clear the sums. So k is divided into equal steps if that needs no more of them; otherwise
// the last step begins earlier, where a whole step fits, with zeros in the left tile for the k that
// were done.
#ifndef DETENT_KERNELS_VECTOR_GEMM_AMX_HPP
#define DETENT_KERNELS_VECTOR_GEMM_AMX_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/amx.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/vector/byte_steps-inl.hpp>
#include <detent/kernels/vector/gemm_u8s8-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>

#if DETENT_KERNELS_AMX && (HWY_ATTAINABLE_TARGETS & HWY_AVX3)

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni,amx-tile,amx-int8")
DETENT_KERNELS_NAMESPACE_BEGIN
namespace amx_int8 {

namespace hn = avx512_vnni::hn;
using avx512_vnni::adds_pairs;

inline constexpr bool multiplies_signed = true;

/// Enough rows that weights which are larger than the second-level cache are rarely read.
inline constexpr std::size_t rows_per_call = largest_rows_per_call;
inline constexpr std::size_t rows_per_tile = 32;
static_assert(rows_per_call % rows_per_tile == 0);

template <int kTile>
HWY_INLINE void load_tile(const void* from, std::size_t stride) noexcept {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}

/// load_tile() for data that passes by once while other tiles stay in the first-level cache.
template <int kTile>
HWY_INLINE void stream_tile(const void* from, std::size_t stride) noexcept {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}

/// How tiles of weights are read: as data that passes by, or as data that stays in the first-level
/// cache from one block of rows to the next.
enum class weights_that { pass, stay };

template <int kTile>
HWY_INLINE void store_tile(void* to, std::size_t stride) noexcept {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
HWY_INLINE void clear_tile() noexcept {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile) : "memory");
}

/// Adds tile kLeft times tile kRight to tile kSum, modulo 2^32. The right bytes are signed, the
/// left ones if kSigned.
template <bool kSigned, int kSum, int kLeft, int kRight>
HWY_INLINE void add_tile_product() noexcept {
  if constexpr (kSigned) {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight)
                 : "memory");
  } else {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight)
                 : "memory");
  }
}

/// The operands of one step of k: the addresses of up to two left tiles, bytes from one row to the
/// next in each, and the offset of the weights' tile in a panel.
struct tile_step {
  const std::uint8_t* a[2];
  std::size_t stride[2];
  std::size_t b;
};

/// How k is divided into `count` steps of `depth`. If is_even is false, the last step begins before
/// the end of the one before it.
struct tile_steps {
  std::size_t count;
  std::size_t depth;
  bool is_even;

  HWY_INLINE explicit tile_steps(std::size_t k) noexcept {
    const std::size_t groups = (k + group_depth - 1) / group_depth;
    count = (groups + tile_rows - 1) / tile_rows;
    is_even = count == 0 || groups % count == 0;
    depth = count == 0 ? group_depth : (is_even ? groups / count : tile_rows) * group_depth;
  }
};

/// Tiles 0 to 3 hold sums. One or two left tiles follow, then tiles of weights.
inline constexpr int first_left = 4;
/// Rows that two left tiles hold.
inline constexpr std::size_t left_rows = 2 * tile_rows;

/// The tile that holds the sums of a left tile and a panel.
template <int kLefts>
inline constexpr int sum_tile(int left, int panel) noexcept {
  return left * (first_left / kLefts) + panel;
}

/// The tile that holds weights of a panel. With one left tile, three tiles are left for the weights
/// of four panels: the fourth panel uses that of the first one again.
template <int kLefts>
inline constexpr int weights_tile(int panel) noexcept {
  constexpr int kFirst = first_left + kLefts;
  return kFirst + panel % (static_cast<int>(tile_count) - kFirst);
}

/// Adds the products of a left tile and the panels from kPanel on. With kLoads, it loads the tiles
/// of weights, each before its product.
template <bool kSigned, bool kLoads, weights_that kWeights, int kLefts, int kLeft, int kPanels,
          int kPanel = 0>
HWY_INLINE void add_products(const std::int8_t* b, std::size_t panel_stride) noexcept {
  if constexpr (kPanel < kPanels) {
    constexpr int kTile = weights_tile<kLefts>(kPanel);
    if constexpr (kLoads) {
      if constexpr (kWeights == weights_that::pass) {
        stream_tile<kTile>(b + kPanel * panel_stride, tile_row_bytes);
      } else {
        load_tile<kTile>(b + kPanel * panel_stride, tile_row_bytes);
      }
    }
    add_tile_product<kSigned, sum_tile<kLefts>(kLeft, kPanel), first_left + kLeft, kTile>();
    add_products<kSigned, kLoads, kWeights, kLefts, kLeft, kPanels, kPanel + 1>(b, panel_stride);
  }
}

/// Clear, load and store the tiles of sums of the panels from kPanel on.
template <int kLefts, int kPanels, int kPanel>
HWY_INLINE void clear_sums() noexcept {
  if constexpr (kPanel < kPanels) {
    clear_tile<sum_tile<kLefts>(0, kPanel)>();
    if constexpr (kLefts == 2) {
      clear_tile<sum_tile<kLefts>(1, kPanel)>();
    }
    clear_sums<kLefts, kPanels, kPanel + 1>();
  }
}

template <int kLefts, int kPanels, int kPanel>
HWY_INLINE void load_sums(const std::int32_t* sums) noexcept {
  if constexpr (kPanel < kPanels) {
    constexpr std::size_t row = kPanels * panel_columns;
    load_tile<sum_tile<kLefts>(0, kPanel)>(sums, row * sizeof *sums);
    if constexpr (kLefts == 2) {
      load_tile<sum_tile<kLefts>(1, kPanel)>(sums + tile_rows * row, row * sizeof *sums);
    }
    load_sums<kLefts, kPanels, kPanel + 1>(sums + panel_columns);
  }
}

template <int kLefts, int kPanels, int kPanel>
HWY_INLINE void save_sums(std::int32_t* sums) noexcept {
  if constexpr (kPanel < kPanels) {
    constexpr std::size_t row = kPanels * panel_columns;
    store_tile<sum_tile<kLefts>(0, kPanel)>(sums, row * sizeof *sums);
    if constexpr (kLefts == 2) {
      store_tile<sum_tile<kLefts>(1, kPanel)>(sums + tile_rows * row, row * sizeof *sums);
    }
    save_sums<kLefts, kPanels, kPanel + 1>(sums + panel_columns);
  }
}

/// The steps begin .. end of k. If the left tiles of all steps take much of the second-level cache,
/// k is divided into several such chunks, and the sums are kept in memory between them.
struct step_chunk {
  std::size_t begin, end;
  bool is_first, is_last;
};

/// Nothing to do between the steps of multiply_tiles().
struct nothing_between {
  HWY_INLINE void operator()() const noexcept {}
};

/// Multiplies kLefts tiles of rows by kPanels panels over the steps of a chunk. A row of `sums` has
/// kPanels * 16 elements. between() is called after each step: vectors can work while the tiles are
/// multiplied.
template <bool kSigned, int kLefts, int kPanels, weights_that kWeights = weights_that::pass,
          class Between = nothing_between>
HWY_INLINE void multiply_tiles(const tile_step* steps, const step_chunk& chunk,
                               const std::int8_t* b, std::size_t panel_stride, std::int32_t* sums,
                               Between&& between = {}) noexcept {
  if (chunk.is_first) {
    clear_sums<kLefts, kPanels, 0>();
  } else {
    load_sums<kLefts, kPanels, 0>(sums);
  }
  for (const tile_step* step = steps + chunk.begin; step != steps + chunk.end; ++step) {
    load_tile<first_left>(step->a[0], step->stride[0]);
    add_products<kSigned, true, kWeights, kLefts, 0, kPanels>(b + step->b, panel_stride);
    if constexpr (kLefts == 2) {
      load_tile<first_left + 1>(step->a[1], step->stride[1]);
      add_products<kSigned, false, kWeights, kLefts, 1, kPanels>(b + step->b, panel_stride);
    }
    between();
  }
  save_sums<kLefts, kPanels, 0>(sums);
}

/// Owns the thread's tiles from a kernel's beginning to its end. If the caller uses tiles, their
/// configuration and contents are saved and restored.
class tile_session {
 public:
  HWY_INLINE tile_session() noexcept {
    asm volatile("sttilecfg %0" : "=m"(host_)::"memory");
    if (host_.palette != 0) {
      store_host<0>();
    }
  }
  tile_session(const tile_session&) = delete;
  tile_session& operator=(const tile_session&) = delete;
  HWY_INLINE ~tile_session() {
    if (host_.palette != 0) {
      configure(host_);
      load_host<0>();
    } else {
      asm volatile("tilerelease" ::: "memory");
    }
  }

  /// Configures the tiles for up to 32 rows and steps of `depth` k. This clears them if the shape
  /// was another one before.
  HWY_INLINE void shape(std::size_t rows, std::size_t depth) noexcept {
    if (rows == rows_ && depth == depth_) {
      return;
    }
    rows_ = rows;
    depth_ = depth;
    tile_configuration c;
    c.palette = 1;
    const std::size_t first = (std::min)(rows, tile_rows);
    const std::size_t second = rows - first;
    for (std::size_t tile = 0; tile < first_left; ++tile) {
      c.set(tile, second != 0 && tile >= 2 ? second : first, tile_row_bytes);
    }
    c.set(first_left, first, depth);
    c.set(first_left + 1, second != 0 ? second : depth / group_depth,
          second != 0 ? depth : tile_row_bytes);
    c.set(first_left + 2, depth / group_depth, tile_row_bytes);
    c.set(first_left + 3, depth / group_depth, tile_row_bytes);
    configure(c);
  }

 private:
  static HWY_INLINE void configure(const tile_configuration& c) noexcept {
    asm volatile("ldtilecfg %0" ::"m"(c) : "memory");
  }
  template <int kTile>
  HWY_INLINE void store_host() noexcept {
    if constexpr (kTile < tile_count) {
      if (host_.rows[kTile] != 0) {
        store_tile<kTile>(host_tiles_[kTile], tile_row_bytes);
      }
      store_host<kTile + 1>();
    }
  }
  template <int kTile>
  HWY_INLINE void load_host() noexcept {
    if constexpr (kTile < tile_count) {
      if (host_.rows[kTile] != 0) {
        load_tile<kTile>(host_tiles_[kTile], tile_row_bytes);
      }
      load_host<kTile + 1>();
    }
  }

  tile_configuration host_;
  std::size_t rows_ = 0;
  std::size_t depth_ = 0;
  std::uint8_t host_tiles_[tile_count][tile_rows * tile_row_bytes];
};

/// The k of a chunk: 32 rows of them occupy a quarter of the second-level cache, beside weights
/// that stay there. Left tiles need not fit the first-level cache: to load them from the second one
/// costs less than to store and load the sums of shorter chunks.
HWY_INLINE std::size_t chunk_depth(const gemm_u8s8_args& g) noexcept {
  const std::size_t depth = g.caches.second_level / (left_rows * 4);
  return (std::max)(depth / tile_row_bytes, std::size_t{1}) * tile_row_bytes;
}

/// Number of columns whose weights stay in the second-level cache while the rows pass over them, at
/// most all columns; a multiple of four panels.
HWY_INLINE std::size_t cached_columns(const gemm_u8s8_args& g) noexcept {
  constexpr std::size_t step = 4 * panel_columns;
  const std::size_t weights = g.caches.second_level / 4;
  const std::size_t all = avx512_vnni::round_up((std::max)(g.n, std::size_t{1}), step);
  return (std::min)((std::max)(weights / ((g.k + group_depth) * step), std::size_t{1}) * step, all);
}

/// An upper bound of the number of steps, whether segments are read where they are or copied.
HWY_INLINE std::size_t count_steps(std::size_t k, std::size_t segments) noexcept {
  return (std::max)(tile_steps(k).count, segments * tile_steps(k / segments).count);
}

/// Number of sums in the workspace for 32 rows: those of 32 columns or, if k has several chunks,
/// those of all cached columns.
HWY_INLINE std::size_t count_sums(const gemm_u8s8_args& g) noexcept {
  return left_rows * (g.k > chunk_depth(g) ? cached_columns(g) : 2 * panel_columns);
}

/// A row of a left tile is one cache line, or lies across two. From this many columns on it pays to
/// copy rows that lie across two, since they are read once for every 32 columns.
inline constexpr std::size_t columns_worth_copies = 256;

/// The size of gemm_u8s8_args::workspace: the sums, the steps of 32 rows, and copies of these rows
/// and of their last k, which begin on a cache line.
inline std::size_t gemm_workspace(const gemm_u8s8_args& g) noexcept {
  return count_sums(g) * sizeof(std::int32_t) + count_steps(g.k, g.segments) * sizeof(tile_step) +
         left_rows * (avx512_vnni::round_up(g.k, tile_row_bytes) + tile_row_bytes) + tile_row_bytes;
}

/// Finds or makes the left tiles for up to 32 rows: their steps, and copies of rows where they
/// can't be read in place.
class left_side {
 public:
  HWY_INLINE explicit left_side(const gemm_u8s8_args& g) noexcept
      : g_(g),
        reads_segments_(g.rows != nullptr && suits_places(g)),
        of_segment_(reads_segments_ ? g.k / g.segments : g.k) {
    count_ = of_segment_.count * (reads_segments_ ? g.segments : 1);
    steps_ = reinterpret_cast<tile_step*>(g.workspace + count_sums(g) * sizeof(std::int32_t));
    copies_ = reinterpret_cast<std::uint8_t*>(steps_ + count_);
    copies_ += (tile_row_bytes - address(copies_) % tile_row_bytes) % tile_row_bytes;
  }

  [[nodiscard]] HWY_INLINE std::size_t depth() const noexcept { return of_segment_.depth; }
  [[nodiscard]] HWY_INLINE std::size_t count() const noexcept { return count_; }
  [[nodiscard]] HWY_INLINE const tile_step* steps() const noexcept { return steps_; }

  /// Makes the steps for the rows first .. first + rows.
  void prepare(std::size_t first, std::size_t rows) noexcept {
    if (g_.rows == nullptr) {
      const std::uint8_t* const a = g_.a + first * g_.lda;
      if ((address(a) | g_.lda) % tile_row_bytes == 0 || g_.n < columns_worth_copies) {
        matrix_steps(a, g_.lda, rows, copies_);
        return;
      }
      const std::size_t stride = avx512_vnni::round_up(g_.k, tile_row_bytes);
      for (std::size_t r = 0; r < rows; ++r) {
        std::memcpy(copies_ + r * stride, a + r * g_.lda, g_.k);
      }
      matrix_steps(copies_, stride, rows, copies_ + rows * stride);
    } else if (reads_segments_) {
      segment_steps(first, rows);
    } else {
      const std::size_t stride = avx512_vnni::round_up(g_.k, tile_row_bytes);
      const std::size_t depth = g_.k / g_.segments;
      for (std::size_t s = 0; s < g_.segments; ++s) {
        copy_segments(g_.rows + s * g_.m + first, rows, depth, copies_ + s * depth, stride);
      }
      matrix_steps(copies_, stride, rows, copies_ + rows * stride);
    }
  }

 private:
  /// Whether segments are read where they lie: if they can be divided into equal steps, and short
  /// ones do not leave the tiles so empty that copies of whole rows cost less.
  [[nodiscard]] static HWY_INLINE bool suits_places(const gemm_u8s8_args& g) noexcept {
    const tile_steps of_segment(g.k / g.segments);
    return of_segment.is_even && 2 * g.segments * of_segment.count <= 3 * tile_steps(g.k).count;
  }

  /// Copies `depth` bytes of each of `rows` rows. A call of memcpy() takes longer than a short
  /// copy.
  static HWY_INLINE void copy_segments(const std::uint8_t* const* from, std::size_t rows,
                                       std::size_t depth, std::uint8_t* to,
                                       std::size_t stride) noexcept {
    const hn::FixedTag<std::uint8_t, tile_row_bytes> d;
    for (std::size_t done = 0; done < depth; done += tile_row_bytes) {
      const auto mask = hn::FirstN(d, (std::min)(depth - done, tile_row_bytes));
      for (std::size_t r = 0; r < rows; ++r) {
        hn::BlendedStore(hn::MaskedLoad(mask, d, from[r] + done), mask, d, to + r * stride + done);
      }
    }
  }

  /// Makes steps for rows that are lda apart. `last` has room for one tile row of each.
  HWY_INLINE void matrix_steps(const std::uint8_t* a, std::size_t lda, std::size_t rows,
                               std::uint8_t* last) noexcept {
    const std::size_t depth = of_segment_.depth;
    for (std::size_t i = 0; i < count_; ++i) {
      set_step(i, 0, a + i * depth, lda, i * depth);
      set_step(i, 1, a + i * depth + tile_rows * lda, lda, i * depth);
    }
    if (count_ == 0 || (of_segment_.is_even && g_.k % group_depth == 0)) {
      return;
    }
    const std::size_t fresh = (count_ - 1) * depth;
    const std::size_t begin =
        of_segment_.is_even ? fresh : avx512_vnni::round_up(g_.k, group_depth) - depth;
    std::memset(last, 0, rows * tile_row_bytes);
    for (std::size_t r = 0; r < rows; ++r) {
      std::memcpy(last + r * tile_row_bytes + (fresh - begin), a + r * lda + fresh, g_.k - fresh);
    }
    set_step(count_ - 1, 0, last, tile_row_bytes, begin);
    set_step(count_ - 1, 1, last + tile_rows * tile_row_bytes, tile_row_bytes, begin);
  }

  /// Makes steps for rows in segments. Tiles of neighbouring pixels are read in place: their rows
  /// are equally far apart, except where a line of the image ends; such tiles are copied.
  HWY_INLINE void segment_steps(std::size_t first, std::size_t rows) noexcept {
    const std::size_t segment_depth = g_.k / g_.segments;
    std::uint8_t* copy = copies_;
    for (std::size_t s = 0; s < g_.segments; ++s) {
      for (std::size_t t = 0; t * tile_rows < rows; ++t) {
        const std::uint8_t* const* from = g_.rows + s * g_.m + first + t * tile_rows;
        const std::size_t count = (std::min)(tile_rows, rows - t * tile_rows);
        const std::uint8_t* a = from[0];
        std::size_t stride = count > 1 ? address(from[1]) - address(from[0]) : 0;
        for (std::size_t r = 2; r < count; ++r) {
          if (address(from[r]) - address(from[r - 1]) != stride) {
            a = copy;
            stride = segment_depth;
            for (r = 0; r < count; ++r, copy += segment_depth) {
              std::memcpy(copy, from[r], segment_depth);
            }
            break;
          }
        }
        for (std::size_t i = 0; i < of_segment_.count; ++i) {
          const std::size_t k = i * of_segment_.depth;
          set_step(s * of_segment_.count + i, t, a + k, stride, s * segment_depth + k);
        }
      }
    }
  }

  static HWY_INLINE std::size_t address(const std::uint8_t* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }

  HWY_INLINE void set_step(std::size_t i, std::size_t tile, const std::uint8_t* a,
                           std::size_t stride, std::size_t k) noexcept {
    steps_[i].a[tile] = a;
    steps_[i].stride[tile] = stride;
    steps_[i].b = k * panel_columns;
  }

  const gemm_u8s8_args& g_;
  bool reads_segments_;
  tile_steps of_segment_;
  std::size_t count_;
  tile_step* steps_;
  std::uint8_t* copies_;
};

/// The epilogue of `rows` rows of a panel and the first right_columns columns of the next one. A
/// call has less overhead than one of avx512_vnni::store_block(), because it is for a few rows at a
/// time.
template <integer_output kOutput, bool kHasAddend, bool kHasRows>
void store_two_panels(const integer_epilogue& e, const std::int32_t* sums, std::size_t sums_stride,
                      std::size_t row, std::size_t rows, std::size_t column,
                      std::size_t right_columns, void* c, std::size_t index,
                      std::size_t ldc) noexcept {
  using epilogue = avx512_vnni::column_epilogue<kOutput, kHasAddend, kHasRows>;
  const epilogue left(e, column);
  const epilogue right(e, column + panel_columns);
  const std::size_t end = row + rows;
  if constexpr (avx512_vnni::is_bytes<kOutput>) {
    using byte = avx512_vnni::byte_of<kOutput>;
    const avx512_vnni::byte_steps<byte> grid(e);
    for (; row + 2 <= end; row += 2, sums += 2 * sums_stride, index += 2 * ldc) {
      const std::int32_t* const next = sums + sums_stride;
      byte* const to = static_cast<byte*>(c) + index;
      grid.store(
          {grid.steps(left.with_terms(e, sums, row), left.multiplier()),
           grid.steps(right.with_terms(e, sums + panel_columns, row), right.multiplier()),
           grid.steps(left.with_terms(e, next, row + 1), left.multiplier()),
           grid.steps(right.with_terms(e, next + panel_columns, row + 1), right.multiplier())},
          panel_columns + right_columns, to, to + ldc);
    }
  }
  for (; row != end; ++row, sums += sums_stride, index += ldc) {
    left.store(e, sums, row, panel_columns, c, index);
    right.store(e, sums + panel_columns, row, right_columns, c, index + panel_columns);
  }
}

/// Sums of a block of rows and columns that wait for their epilogue. It is computed a few rows at a
/// time between the steps of the next block, because vectors and tiles can work at the same time.
/// The next block's sums may take the place of those that wait, because they are stored after all
/// steps.
class waiting_sums {
 public:
  HWY_INLINE explicit waiting_sums(const gemm_u8s8_args& g) noexcept
      : g_(g),
        store_two_panels_(avx512_vnni::for_terms_of(
            g.epilogue, []<integer_output kOutput, bool kHasAddend, bool kHasRows>() {
              return &store_two_panels<kOutput, kHasAddend, kHasRows>;
            })) {}

  /// Divides what waits among the next `steps` calls of operator(), after which no sums wait. Few
  /// steps hide nothing: then all of it is computed now.
  HWY_INLINE void spread(std::size_t steps) noexcept {
    constexpr std::size_t fewest = 4;  // fewer are not worth what depends on columns only
    constexpr std::size_t few_steps = 2;
    if (steps <= few_steps) {
      store_all();
    } else {
      const std::size_t pairs = (end_ - row_ + 2 * steps - 1) / (2 * steps);  // of rows
      rows_at_once_ = (std::max)(2 * pairs, fewest);
    }
  }
  /// Computes the epilogue of the next few rows.
  HWY_INLINE void operator()() noexcept {
    if (row_ != end_) {
      store((std::min)(rows_at_once_, end_ - row_));
    }
  }
  /// Computes the epilogue of all sums that wait.
  HWY_INLINE void store_all() noexcept {
    if (row_ != end_) {
      store(end_ - row_);
    }
  }
  /// Sums that wait from now on, sums_stride from one row to the next. None may wait before.
  HWY_INLINE void add(const std::int32_t* sums, std::size_t sums_stride, std::size_t first,
                      std::size_t rows, std::size_t column, std::size_t columns) noexcept {
    sums_ = sums;
    sums_stride_ = sums_stride;
    row_ = first;
    end_ = first + rows;
    column_ = column;
    columns_ = columns;
  }

 private:
  void store(std::size_t rows) noexcept {
    const std::size_t index = row_ * g_.ldc + column_;
    std::size_t done = 0;
    while (columns_ - done > panel_columns) {
      const std::size_t right_columns = (std::min)(columns_ - done - panel_columns, panel_columns);
      store_two_panels_(g_.epilogue, sums_ + done, sums_stride_, row_, rows, column_ + done,
                        right_columns, g_.c, index + done, g_.ldc);
      done += panel_columns + right_columns;
    }
    if (done != columns_) {
      avx512_vnni::store_sums(g_.epilogue, sums_ + done, sums_stride_, row_, rows, column_ + done,
                              columns_ - done, g_.c, index + done, g_.ldc);
    }
    sums_ += rows * sums_stride_;
    row_ += rows;
  }

  const gemm_u8s8_args& g_;
  decltype(&store_two_panels<integer_output::s32, false, false>) store_two_panels_;
  const std::int32_t* sums_ = nullptr;
  std::size_t sums_stride_ = 0, row_ = 0, end_ = 0, column_ = 0, columns_ = 0;
  std::size_t rows_at_once_ = 0;
};

/// The operands of one pass over the weights: a chunk of k of up to 32 rows, and the cached
/// columns.
struct product_block {
  const tile_step* steps;
  step_chunk chunk;
  std::size_t first, rows;
  std::size_t first_column, end_column;
  weights_that weights;
};

/// Multiplies the columns from `column` on, kPanels panels at a time, the last ones with fewer.
/// After the last chunk, the sums wait in `waiting` for their epilogue.
template <bool kSigned, int kLefts, int kPanels>
void multiply_columns(const gemm_u8s8_args& g, const product_block& block, std::size_t column,
                      waiting_sums& waiting) noexcept {
  constexpr std::size_t kColumns = kPanels * panel_columns;
  const std::size_t panel_stride = avx512_vnni::round_up(g.k, group_depth) * panel_columns;
  const bool keeps_sums = !(block.chunk.is_first && block.chunk.is_last);
  for (; column + kColumns < block.end_column + panel_columns; column += kColumns) {
    std::int32_t* sums = reinterpret_cast<std::int32_t*>(g.workspace) +
                         (keeps_sums ? (column - block.first_column) * left_rows : 0);
    const std::int8_t* const b = g.b.data + column / panel_columns * panel_stride;
    waiting.spread(block.chunk.end - block.chunk.begin);
    if (block.weights == weights_that::stay) {
      multiply_tiles<kSigned, kLefts, kPanels, weights_that::stay>(block.steps, block.chunk, b,
                                                                   panel_stride, sums, waiting);
    } else {
      multiply_tiles<kSigned, kLefts, kPanels, weights_that::pass>(block.steps, block.chunk, b,
                                                                   panel_stride, sums, waiting);
    }
    if (block.chunk.is_last) {
      waiting.add(sums, kColumns, block.first, block.rows, column,
                  (std::min)(kColumns, g.n - column));
    }
  }
  if constexpr (kPanels > 1) {
    multiply_columns<kSigned, kLefts, kPanels / 2>(g, block, column, waiting);
  }
}

template <bool kSigned>
void multiply(const gemm_u8s8_args& g) noexcept {
  tile_session tiles;
  left_side left(g);
  waiting_sums waiting(g);
  const std::size_t columns = cached_columns(g);
  const std::size_t steps_of_chunk = (std::max)(chunk_depth(g) / left.depth(), std::size_t{1});
  // Left rows and results pass through the other half of the first-level cache.
  const weights_that weights =
      g.k * g.n <= g.caches.first_level / 2 ? weights_that::stay : weights_that::pass;
  for (std::size_t column = 0; column < g.n; column += columns) {
    for (std::size_t first = 0; first < g.m; first += left_rows) {
      const std::size_t rows = (std::min)(left_rows, g.m - first);
      left.prepare(first, rows);
      tiles.shape(rows, left.depth());
      for (std::size_t step = 0; step == 0 || step < left.count(); step += steps_of_chunk) {
        const std::size_t end = (std::min)(step + steps_of_chunk, left.count());
        const product_block block{
            left.steps(), {step, end, step == 0, end == left.count()}, first,  rows,
            column,       (std::min)(column + columns, g.n),           weights};
        if (rows > tile_rows) {
          multiply_columns<kSigned, 2, 2>(g, block, column, waiting);
        } else {
          multiply_columns<kSigned, 1, 4>(g, block, column, waiting);
        }
      }
    }
  }
  waiting.store_all();
}

/// Whether vectors are faster than tiles, by measurement on a processor that has both.
[[nodiscard]] HWY_INLINE bool suits_vectors(const gemm_u8s8_args& g) noexcept {
  // Vectors read the weights of a single row once and efficiently. To copy very short segments
  // takes longer than tiles save.
  constexpr std::size_t short_segment = 8;
  if (g.m == 1 || (g.rows != nullptr && g.k / g.segments <= short_segment)) {
    return true;
  }
  // To configure and to release the tiles takes as long as a small product, and the epilogue of a
  // short one longer than its multiplications. Few columns leave vectors partly empty.
  const bool fills_vectors = g.n >= 4 * panel_columns;
  const std::size_t small_product = std::size_t{1} << (fills_vectors ? 16 : 14);
  constexpr std::size_t short_depth = 24;
  return g.m * g.n * g.k <= small_product || (fills_vectors && g.k <= short_depth);
}

inline void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  if (g.lhs_signed) {
    multiply<true>(g);
  } else if (suits_vectors(g)) {
    avx512_vnni::gemm_u8s8(g);
  } else {
    multiply<false>(g);
  }
}

}  // namespace amx_int8
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#endif  // DETENT_KERNELS_AMX
#endif  // DETENT_KERNELS_VECTOR_GEMM_AMX_HPP
