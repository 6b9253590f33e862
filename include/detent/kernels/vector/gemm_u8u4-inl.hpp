// SPDX-License-Identifier: BSD-3-Clause
// Products of unsigned bytes with 4-bit weights.
//
// Each byte of the packed weights becomes two signed bytes, less the zero point of their column and
// quantization group: -15..15, so that even products that are added in pairs in 16 bits are exact.
// For few rows that is done in registers; the weights come from memory once for all rows, as long
// as four panels fit the second-level cache. For many rows, a chunk of k of a strip is unpacked to
// memory that stays in the second-level cache, in the layout of 8-bit weights, and multiplied by
// the tiles for those.

#ifndef DETENT_KERNELS_VECTOR_GEMM_U8U4_INL_HPP
#define DETENT_KERNELS_VECTOR_GEMM_U8U4_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/nibble_products.hpp>
#include <detent/kernels/vector/integer_tiles-inl.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/tile_operands-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/gemm_u8u4-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// Panels of a tile with kRows rows: enough sums to hide the latency of their additions, few enough
/// for the registers.
template <std::size_t kRows>
inline constexpr std::size_t nibble_panels = lanes == panel_columns ? (kRows == 1   ? 4
                                                                       : kRows == 2 ? 2
                                                                                    : 1)
                                                                    : (kRows == 1 ? 2 : 1);
/// Rows of the largest tile, and panels that all rows pass over before the next ones.
inline constexpr std::size_t nibble_rows = lanes == panel_columns ? 8 : 2;
inline constexpr std::size_t nibble_block_panels = 4;

/// Bytes of a panel between what is multiplied and what is prefetched, for weights that are read
/// only once.
inline constexpr std::size_t fetched_ahead = 2048;

/// The sums of a tile of kRows rows.
template <std::size_t kRows>
struct nibble_sums {
  static constexpr std::size_t panels = nibble_panels<kRows>;
  static constexpr std::size_t vectors = panels * vectors_per_panel;
  // Two sets, for the low and the high halves of bytes, if there are few sums.
  static constexpr std::size_t sets = kRows * vectors <= 5 ? 2 : 1;
  int_vector sum[sets][kRows][vectors];
};

using nibble_vector = hn::Vec<hn::Repartition<std::int8_t, int_tag>>;

/// Loads the zero points of a vector of columns as bytes, each four times, once for each k of a
/// group.
HWY_INLINE nibble_vector spread_zero_points(const std::uint8_t* zero_points) noexcept {
  const int_tag di;
  const hn::Rebind<std::uint8_t, int_tag> d_codes;
  const auto codes = hn::PromoteTo(di, hn::LoadU(d_codes, zero_points));
  return hn::BitCast(hn::Repartition<std::int8_t, int_tag>{},
                     hn::Mul(codes, hn::Set(di, 0x01010101)));
}

/// Splits bytes into the codes of their low and of their high halves, less the zero points.
HWY_INLINE void split_nibbles(const std::uint8_t* bytes, nibble_vector zero_points,
                              nibble_vector& low, nibble_vector& high) noexcept {
  const hn::Repartition<std::uint8_t, int_tag> du8;
  const hn::Repartition<std::int8_t, int_tag> ds8;
  const hn::Repartition<std::uint16_t, int_tag> du16;
  const auto mask = hn::Set(du8, std::uint8_t{0x0F});
  const auto both = hn::LoadU(du8, bytes);
  const auto shifted = hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, both)));
  low = hn::Sub(hn::BitCast(ds8, hn::And(both, mask)), zero_points);
  high = hn::Sub(hn::BitCast(ds8, hn::And(shifted, mask)), zero_points);
}

/// Whether zero points times column sums need only the low 16 bits of both: then one instruction
/// multiplies them instead of a slow one.
HWY_INLINE bool has_small_sums(const gemm_u8u4_args& g) noexcept {
  constexpr std::size_t largest_weight = 15;
  return (std::min)(g.b.group_size, g.k) <= 0x7FFF / largest_weight;
}

/// Adds the term of a quantization group: returns real + scale * (sum - zero_point * column_sum).
template <bool kSmallSums>
HWY_INLINE float_vector add_group(float_vector real, int_vector sum, int_vector zero_point,
                                  int_vector column_sum, float_vector scale) noexcept {
  const int_tag di;
  const hn::Repartition<std::int16_t, int_tag> di16;
  int_vector correction;
  if constexpr (kSmallSums) {
    // Zero points have no bits above the lower 16, so that the products of the upper halves are 0.
    correction =
        hn::WidenMulPairwiseAdd(di, hn::BitCast(di16, zero_point), hn::BitCast(di16, column_sum));
  } else {
    correction = hn::Mul(zero_point, column_sum);
  }
  return hn::MulAdd(hn::ConvertTo(float_tag{}, hn::Sub(sum, correction)), scale, real);
}

/// Applies the rest of the epilogue to `count` columns of a row, once all groups have been added,
/// and stores them.
HWY_INLINE void store_real(const gemm_u8u4_args& g, float_vector real, float_vector bias,
                           std::size_t row, std::size_t column, std::size_t count) noexcept {
  const float_tag df;
  auto x = hn::MulAdd(real, hn::Set(df, g.row_scale[row]), bias);
  if (g.residual != nullptr) {
    x = hn::Add(x, hn::LoadN(df, g.residual + row * g.residual_stride + column, count));
  }
  hn::StoreN(clamp_ordered(x, hn::Set(df, g.lower), hn::Set(df, g.upper)), df,
             g.c + row * g.ldc + column, count);
}

HWY_INLINE float_vector load_bias(const gemm_u8u4_args& g, std::size_t column,
                                  std::size_t count) noexcept {
  const float_tag df;
  return g.bias != nullptr ? hn::LoadN(df, g.bias + column, count) : hn::Zero(df);
}

/// Adds the products of a step of eight k: the values at `offset` of each row, times the bytes at b
/// of each panel.
template <std::size_t kRows>
HWY_INLINE void add_nibbles(const std::uint8_t* const (&a)[kRows], std::size_t offset,
                            const std::uint8_t* b, std::size_t panel_stride,
                            const nibble_vector (&zero_point)[nibble_sums<kRows>::vectors],
                            nibble_sums<kRows>& sums) noexcept {
  constexpr std::size_t kVectors = nibble_sums<kRows>::vectors;
  constexpr std::size_t kLast = nibble_sums<kRows>::sets - 1;
  const int_tag di;
  const hn::Repartition<std::uint8_t, int_tag> du8;
  nibble_vector low[kVectors];
  nibble_vector high[kVectors];
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    split_nibbles(
        b + v / vectors_per_panel * panel_stride + v % vectors_per_panel * lanes * group_depth,
        zero_point[v], low[v], high[v]);
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    std::int32_t four[2];
    std::memcpy(four, a[r] + offset, sizeof four);
    const auto first = hn::BitCast(du8, hn::Set(di, four[0]));
    const auto second = hn::BitCast(du8, hn::Set(di, four[1]));
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sums.sum[0][r][v] = dot(sums.sum[0][r][v], first, low[v]);
      sums.sum[kLast][r][v] = dot(sums.sum[kLast][r][v], second, high[v]);
    }
  }
}

/// Multiplies kRows rows from `first` on by the panels of a tile from `column` on, and stores the
/// results.
template <std::size_t kRows>
HWY_INLINE void multiply_nibbles(const gemm_u8u4_args& g, std::size_t first,
                                 std::size_t column) noexcept {
  using sums_type = nibble_sums<kRows>;
  constexpr std::size_t kVectors = sums_type::vectors;
  const float_tag df;
  const int_tag di;
  const std::size_t steps = (g.k + nibble_depth - 1) / nibble_depth;
  const std::size_t groups = (g.k + g.b.group_size - 1) / g.b.group_size;
  const std::size_t panel = column / panel_columns;
  const std::size_t panel_stride = steps * nibble_panel_bytes;
  const std::uint8_t* b = g.b.data + panel * panel_stride;
  const std::uint8_t* a[kRows];
  // The last one to seven k of each row, with zeros behind them.
  std::uint8_t last[kRows][nibble_depth] = {};
  const std::uint8_t* last_rows[kRows];
  const std::size_t whole_steps = g.k / nibble_depth;
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    a[r] = g.a + (first + r) * g.lda;
    last_rows[r] = last[r];
    if (g.k % nibble_depth != 0) {
      std::memcpy(last[r], a[r] + whole_steps * nibble_depth, g.k % nibble_depth);
    }
  }
  float_vector real[kRows][kVectors];
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) { real[r][v] = hn::Zero(df); }
  }
  std::size_t step = 0;
  for (std::size_t group = 0; group < groups; ++group) {
    // The index of the parameters of vector v's columns.
    const auto parameter = [&](std::size_t v) HWY_ATTR {
      return ((panel + v / vectors_per_panel) * groups + group) * panel_columns +
             v % vectors_per_panel * lanes;
    };
    nibble_vector zero_point[kVectors];
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      zero_point[v] = spread_zero_points(g.b.zero_point + parameter(v));
    }
    sums_type sums;
    DETENT_UNROLL for (std::size_t s = 0; s < sums_type::sets; ++s) {
      DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
          sums.sum[s][r][v] = hn::Zero(di);
        }
      }
    }
    const std::size_t end = (std::min)((group + 1) * (g.b.group_size / nibble_depth), steps);
    const std::size_t whole_end = (std::min)(end, whole_steps);
    for (; step < whole_end; ++step) {
      if constexpr (kRows <= 2) {
        DETENT_UNROLL for (std::size_t p = 0; p < sums_type::panels; ++p) {
          hwy::Prefetch(b + p * panel_stride + step * nibble_panel_bytes + fetched_ahead);
        }
      }
      add_nibbles<kRows>(a, step * nibble_depth, b + step * nibble_panel_bytes, panel_stride,
                         zero_point, sums);
    }
    if (step < end) {
      add_nibbles<kRows>(last_rows, 0, b + step * nibble_panel_bytes, panel_stride, zero_point,
                         sums);
      ++step;
    }
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const auto column_sum = hn::LoadU(di, g.b.column_sum + parameter(v));
      const auto scale = hn::LoadU(df, g.b.scale + parameter(v));
      DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        int_vector all = sums.sum[0][r][v];
        DETENT_UNROLL for (std::size_t s = 1; s < sums_type::sets; ++s) {
          all = hn::Add(all, sums.sum[s][r][v]);
        }
        real[r][v] = add_group<false>(real[r][v], all, hn::Set(di, g.row_zero_point[first + r]),
                                      column_sum, scale);
      }
    }
  }
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t j = column + v * lanes;
    if (j >= g.n) {
      break;
    }
    const std::size_t count = (std::min)(lanes, g.n - j);
    const float_vector bias = load_bias(g, j, count);
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      store_real(g, real[r][v], bias, first + r, j, count);
    }
  }
}

/// Multiplies the rows from `first` on by the columns from `column` to end_column, the last rows in
/// smaller tiles.
template <std::size_t kRows>
HWY_INLINE void multiply_nibble_rows(const gemm_u8u4_args& g, std::size_t first, std::size_t column,
                                     std::size_t end_column) noexcept {
  constexpr std::size_t kColumns = nibble_panels<kRows> * panel_columns;
  for (; first + kRows <= g.m; first += kRows) {
    for (std::size_t j = column; j < end_column; j += kColumns) {
      multiply_nibbles<kRows>(g, first, j);
    }
  }
  if constexpr (kRows > 1) {
    multiply_nibble_rows<kRows / 2>(g, first, column, end_column);
  }
}

/// A chunk: the k that are unpacked at a time, either whole quantization groups or a part of a
/// larger one. Many rows pay for weights that come from the second-level cache; for few rows a
/// chunk fits the first level.
struct nibble_chunk {
  std::size_t begin, end;

  HWY_INLINE nibble_chunk(const gemm_u8u4_args& g, std::size_t k) noexcept : begin(k) {
    constexpr std::size_t few_rows = 64;
    constexpr std::size_t first_level_depth = 256;
    const std::size_t most = g.m < few_rows ? first_level_depth : unpacked_depth;
    const std::size_t group = g.b.group_size;
    const std::size_t groups = (std::max)(most / group, std::size_t{1});
    end = (std::min)({(k / group + groups) * group, k + most, g.k});
  }
  [[nodiscard]] HWY_INLINE std::size_t steps() const noexcept {
    return (end - begin + nibble_depth - 1) / nibble_depth;
  }
  /// Bytes from an unpacked panel to the next one: 64 more than a panel has, so that panels do not
  /// compete for the same places of the cache.
  [[nodiscard]] HWY_INLINE std::size_t panel_stride() const noexcept {
    return steps() * nibble_depth * panel_columns + 64;
  }
};

/// A piece: the k of a chunk, from `first` on, that belong to one quantization group.
struct nibble_piece {
  std::size_t group, k, depth;
  bool begins_group, ends_group;

  HWY_INLINE nibble_piece(const gemm_u8u4_args& g, const nibble_chunk& chunk,
                          std::size_t first) noexcept
      : group(first / g.b.group_size), k(first) {
    const std::size_t begin = group * g.b.group_size;
    const std::size_t end = (std::min)(begin + g.b.group_size, g.k);
    depth = (std::min)(end, chunk.end) - k;
    begins_group = k == begin;
    ends_group = k + depth == end;
  }
};

/// A strip of columns: where the weights and the parameters of its panels are, and what is done
/// with them.
class nibble_strip {
 public:
  HWY_INLINE nibble_strip(const gemm_u8u4_args& g, std::size_t column) noexcept
      : g_(g),
        panel_(column / panel_columns),
        panels_((std::min)((g.n - column + panel_columns - 1) / panel_columns, strip_panels)),
        panel_stride_((g.k + nibble_depth - 1) / nibble_depth * nibble_panel_bytes),
        groups_((g.k + g.b.group_size - 1) / g.b.group_size) {}

  [[nodiscard]] HWY_INLINE std::size_t panels() const noexcept { return panels_; }

  /// Returns the packed weights of a panel from k (a multiple of nibble_depth) on.
  [[nodiscard]] HWY_INLINE const std::uint8_t* data(std::size_t panel,
                                                    std::size_t k) const noexcept {
    return g_.b.data + (panel_ + panel) * panel_stride_ + k / nibble_depth * nibble_panel_bytes;
  }

  /// Unpacks a chunk: writes its codes less their zero points in the layout of packed_panels::data,
  /// up to a multiple of nibble_depth.
  HWY_INLINE void unpack(const nibble_chunk& chunk, std::int8_t* to) const noexcept {
    for (std::size_t p = 0; p < panels_; ++p) {
      for (std::size_t k = chunk.begin; k < chunk.end;) {
        const nibble_piece piece(g_, chunk, k);
        unpack_piece(piece, p, to + p * chunk.panel_stride() + (k - chunk.begin) * panel_columns);
        k += piece.depth;
      }
    }
  }

  /// Adds the sums of a quantization group, times its scales, to `real`, for kRows rows from
  /// `first` on and kPanels panels. Rows of `sums` are kStride elements apart, those of `real`
  /// strip_columns.
  template <std::size_t kRows, std::size_t kPanels, std::size_t kStride, bool kSmallSums>
  HWY_INLINE void add_sums(std::size_t group, std::size_t panel, std::size_t first,
                           const std::int32_t* sums, float* real) const noexcept {
    const float_tag df;
    const int_tag di;
    int_vector zero_point[kRows];
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      zero_point[r] = hn::Set(di, g_.row_zero_point[first + r]);
    }
    DETENT_UNROLL for (std::size_t v = 0; v < kPanels * vectors_per_panel; ++v) {
      const std::size_t at =
          parameter(panel + v / vectors_per_panel, group) + v % vectors_per_panel * lanes;
      const auto column_sum = hn::LoadU(di, g_.b.column_sum + at);
      const auto scale = hn::LoadU(df, g_.b.scale + at);
      DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        float* to = real + r * strip_columns + v * lanes;
        const auto sum = hn::LoadU(di, sums + r * kStride + v * lanes);
        hn::StoreU(add_group<kSmallSums>(hn::LoadU(df, to), sum, zero_point[r], column_sum, scale),
                   df, to);
      }
    }
  }

  /// Sets `rows` rows of `panels` panels of `real` to zero.
  HWY_INLINE void clear(std::size_t rows, std::size_t panels, float* real) const noexcept {
    for (std::size_t r = 0; r < rows; ++r) {
      std::fill_n(real + r * strip_columns, panels * panel_columns, 0.0F);
    }
  }

  /// Applies the rest of the epilogue to `rows` rows of `panels` panels and stores them.
  HWY_INLINE void store(std::size_t first, std::size_t rows, std::size_t panel, std::size_t panels,
                        const float* real) const noexcept {
    const std::size_t begin = (panel_ + panel) * panel_columns;
    const std::size_t end = (std::min)(begin + panels * panel_columns, g_.n);
    for (std::size_t j = begin; j < end; j += lanes) {
      const std::size_t count = (std::min)(lanes, end - j);
      const float_vector bias = load_bias(g_, j, count);
      for (std::size_t r = 0; r < rows; ++r) {
        store_real(g_, hn::LoadU(float_tag{}, real + r * strip_columns + j - begin), bias,
                   first + r, j, count);
      }
    }
  }

 private:
  /// The index of the first parameter of a quantization group of a panel.
  [[nodiscard]] HWY_INLINE std::size_t parameter(std::size_t panel,
                                                 std::size_t group) const noexcept {
    return ((panel_ + panel) * groups_ + group) * panel_columns;
  }
  HWY_INLINE void unpack_piece(const nibble_piece& piece, std::size_t panel,
                               std::int8_t* to) const noexcept {
    const hn::Repartition<std::int8_t, int_tag> ds8;
    constexpr std::size_t bytes = lanes * group_depth;
    constexpr std::size_t half = panel_columns * group_depth;
    nibble_vector zero_points[vectors_per_panel];
    DETENT_UNROLL for (std::size_t v = 0; v < vectors_per_panel; ++v) {
      zero_points[v] =
          spread_zero_points(g_.b.zero_point + parameter(panel, piece.group) + v * lanes);
    }
    const std::uint8_t* from = data(panel, piece.k);
    for (std::size_t k = 0; k < piece.depth; k += nibble_depth) {
      DETENT_UNROLL for (std::size_t v = 0; v < vectors_per_panel; ++v) {
        nibble_vector low, high;
        split_nibbles(from + v * bytes, zero_points[v], low, high);
        hn::StoreU(low, ds8, to + v * bytes);
        hn::StoreU(high, ds8, to + half + v * bytes);
      }
      from += nibble_panel_bytes;
      to += 2 * half;
    }
  }

  const gemm_u8u4_args& g_;
  std::size_t panel_, panels_, panel_stride_, groups_;
};

/// add_tile() and add_rows() for unpacked weights. They are functions of their own in which the
/// compiler does not know the number of segments: otherwise GCC 12 keeps sums of the tile in
/// memory.
template <std::size_t kPanels>
HWY_NOINLINE void add_unpacked_tile(tile_operands t, std::int32_t* sums) noexcept {
  asm("" : "+r"(t.segments));
  add_tile<rows_of_tile, kPanels, strip_columns>(t, sums);
}
template <std::size_t kPanels>
HWY_NOINLINE void add_unpacked_rows(std::size_t rows, const tile_operands& t,
                                    std::int32_t* sums) noexcept {
  constexpr std::size_t kRows = rows_of_tile;
  add_rows<kRows == 6 ? 4 : kRows / 2, kPanels, strip_columns>(rows, t, sums);
}

/// The parts of gemm_u8u4_args::workspace: an unpacked chunk of a strip and, for all rows, the sums
/// of a quantization group that is not complete and the floats (`real`) of those that are.
struct unpacked_strip {
  std::int8_t* weights;
  std::int32_t* sums;
  float* real;

  HWY_INLINE explicit unpacked_strip(std::byte* workspace) noexcept
      : weights(reinterpret_cast<std::int8_t*>(workspace)),
        sums(reinterpret_cast<std::int32_t*>(workspace + unpacked_bytes)),
        real(reinterpret_cast<float*>(sums + largest_rows_per_call * strip_columns)) {}
};

/// An unpacked chunk of a strip, and what is unpacked after it: the chunk of `next` from next_k on.
/// If is_only, the chunk is all of k, and nothing has to be kept for another one.
struct unpacked_chunk {
  const nibble_strip& strip;
  const nibble_chunk& chunk;
  const unpacked_strip& unpacked;
  const nibble_strip& next;
  std::size_t next_k;
  bool is_only;

  /// Returns the unpacked weights of a panel from k on.
  [[nodiscard]] HWY_INLINE const std::int8_t* weights(std::size_t panel,
                                                      std::size_t k) const noexcept {
    return unpacked.weights + panel * chunk.panel_stride() + (k - chunk.begin) * panel_columns;
  }
};

/// Multiplies all rows by the panels of an unpacked chunk from `panel` on, kPanels at a time, the
/// last ones with fewer. Meanwhile it prefetches what is unpacked next.
template <std::size_t kPanels, bool kSmallSums>
void multiply_unpacked(const gemm_u8u4_args& g, const std::uint8_t* const* rows,
                       const unpacked_chunk& u, std::size_t panel) noexcept {
  constexpr std::size_t kRows = rows_of_tile;
  const nibble_strip& strip = u.strip;
  const nibble_chunk& chunk = u.chunk;
  [[maybe_unused]] const std::size_t lines = chunk.steps();
  [[maybe_unused]] std::size_t line = 0;
  for (; panel + kPanels <= strip.panels(); panel += kPanels) {
    for (std::size_t first = 0; first < g.m; first += kRows) {
      const std::size_t count = (std::min)(kRows, g.m - first);
      const std::size_t at = (u.is_only ? 0 : first * strip_columns) + panel * panel_columns;
      std::int32_t* sums = u.unpacked.sums + at;
      float* real = u.unpacked.real + at;
      if (chunk.begin == 0) {
        strip.clear(count, kPanels, real);
      }
      for (std::size_t k = chunk.begin; k < chunk.end;) {
        const nibble_piece piece(g, chunk, k);
        tile_operands t{
            rows + first,      0, 1, k, piece.depth, u.weights(panel, k), chunk.panel_stride(),
            piece.begins_group};
        k += piece.depth;
        if (count == kRows) {
          if constexpr (DETENT_PASS_PAIRS == 0) {
            t.next = reinterpret_cast<const std::int8_t*>(
                u.next.data(line / lines % u.next.panels(), u.next_k) +
                line % lines * nibble_panel_bytes);
            line += t.next_bytes() / nibble_panel_bytes;
          }
          add_unpacked_tile<kPanels>(t, sums);
        } else {
          add_unpacked_rows<kPanels>(count, t, sums);
        }
        if (!piece.ends_group) {
          continue;
        }
        if (count == kRows) {
          strip.add_sums<kRows, kPanels, strip_columns, kSmallSums>(piece.group, panel, first, sums,
                                                                    real);
        } else {
          for (std::size_t r = 0; r < count; ++r) {
            const std::size_t row = r * strip_columns;
            strip.add_sums<1, kPanels, strip_columns, kSmallSums>(piece.group, panel, first + r,
                                                                  sums + row, real + row);
          }
        }
      }
      if (chunk.end == g.k) {
        strip.store(first, count, panel, kPanels, real);
      }
    }
  }
  if constexpr (kPanels > 1) {
    multiply_unpacked<kPanels / 2, kSmallSums>(g, rows, u, panel);
  }
}

/// Unpacks all weights, chunk by chunk, and calls multiply(unpacked_chunk) for each.
template <class Multiply>
void for_unpacked_chunks(const gemm_u8u4_args& g, const Multiply& multiply) noexcept {
  const unpacked_strip unpacked(g.workspace);
  for (std::size_t column = 0; column < g.n; column += strip_columns) {
    const nibble_strip strip(g, column);
    // After the last chunk comes the next strip, or this one again if it is the last.
    const nibble_strip following(g, column + strip_columns < g.n ? column + strip_columns : column);
    std::size_t k = 0;
    do {
      const nibble_chunk chunk(g, k);
      const bool is_only = k == 0 && chunk.end == g.k;
      k = chunk.end;
      strip.unpack(chunk, unpacked.weights);
      multiply(unpacked_chunk{strip, chunk, unpacked, k < g.k ? strip : following, k < g.k ? k : 0,
                              is_only});
    } while (k < g.k);
  }
}

/// The function that for_unpacked_chunks() calls for each chunk: multiplies all rows by it. It is a
/// class, because a lambda would not have the attributes of this pass.
template <bool kSmallSums>
class unpacked_rows {
 public:
  HWY_INLINE explicit unpacked_rows(const gemm_u8u4_args& g) noexcept : g_(g) {
    for (std::size_t r = 0; r < g.m; ++r) {
      rows_[r] = g.a + r * g.lda;
    }
  }
  void operator()(const unpacked_chunk& u) const noexcept {
    multiply_unpacked<panels_of_tile, kSmallSums>(g_, rows_, u, 0);
  }

 private:
  const gemm_u8u4_args& g_;
  const std::uint8_t* rows_[largest_rows_per_call];
};

inline void gemm_u8u4(const gemm_u8u4_args& g) noexcept {
  if (g.m >= fewest_unpacked_rows) {
    return has_small_sums(g) ? for_unpacked_chunks(g, unpacked_rows<true>(g))
                             : for_unpacked_chunks(g, unpacked_rows<false>(g));
  }
  constexpr std::size_t kColumns = nibble_block_panels * panel_columns;
  for (std::size_t column = 0; column < g.n; column += kColumns) {
    multiply_nibble_rows<nibble_rows>(g, 0, column, (std::min)(column + kColumns, g.n));
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
