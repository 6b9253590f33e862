// SPDX-License-Identifier: BSD-3-Clause
// Products with 4-bit weights in AMX tiles, for many rows. Few rows go to the AVX-512 VNNI pass.
#ifndef DETENT_KERNELS_VECTOR_GEMM_AMX_U8U4_HPP
#define DETENT_KERNELS_VECTOR_GEMM_AMX_U8U4_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/amx.hpp>
#include <detent/kernels/nibble_products.hpp>
#include <detent/kernels/vector/gemm_amx.hpp>
#include <detent/kernels/vector/gemm_u8u4-inl.hpp>

#if DETENT_KERNELS_AMX && (HWY_ATTAINABLE_TARGETS & HWY_AVX3)

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni,amx-tile,amx-int8")
DETENT_KERNELS_NAMESPACE_BEGIN
namespace amx_int8 {

/// Finds or makes the left tiles of up to 32 rows for a piece of k (nibble_piece).
class nibble_left_side {
 public:
  HWY_INLINE explicit nibble_left_side(const gemm_u8u4_args& g) noexcept : g_(g) {}

  [[nodiscard]] HWY_INLINE std::size_t depth() const noexcept { return depth_; }
  [[nodiscard]] HWY_INLINE std::size_t count() const noexcept { return count_; }
  [[nodiscard]] HWY_INLINE const tile_step* steps() const noexcept { return steps_; }

  /// Makes the steps for the rows first .. first + rows. If the last step is not a whole one, its
  /// left tiles are copies with zeros behind their k, so that it does not matter which weights
  /// these meet.
  void prepare(std::size_t first, std::size_t rows,
               const avx512_vnni::nibble_piece& piece) noexcept {
    const tile_steps even(piece.depth);
    count_ = even.count;
    depth_ = even.depth;
    const std::uint8_t* a = g_.a + first * g_.lda + piece.k;
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uint8_t* at = a + i * depth_;
      steps_[i] = {{at, at + tile_rows * g_.lda}, {g_.lda, g_.lda}, i * depth_ * panel_columns};
    }
    const std::size_t done = (count_ - 1) * depth_;
    const std::size_t rest = piece.depth - done;
    if (rest == depth_) {
      return;
    }
    std::memset(last_, 0, sizeof last_);
    for (std::size_t r = 0; r < rows; ++r) {
      std::memcpy(last_[r], a + r * g_.lda + done, rest);
    }
    steps_[count_ - 1] = {
        {last_[0], last_[tile_rows]}, {tile_row_bytes, tile_row_bytes}, done * panel_columns};
  }

 private:
  const gemm_u8u4_args& g_;
  std::size_t count_ = 0, depth_ = 0;
  tile_step steps_[unpacked_depth / tile_row_bytes];
  std::uint8_t last_[left_rows][tile_row_bytes];
};

/// Multiplies a piece of k by the panels from `panel` on, kPanels at a time, the last ones with
/// fewer. `sums` and `real` belong to these rows.
template <bool kSmallSums, int kLefts, int kPanels>
HWY_INLINE void multiply_unpacked_piece(const avx512_vnni::unpacked_chunk& u,
                                        const avx512_vnni::nibble_piece& piece,
                                        const nibble_left_side& left, std::size_t first,
                                        std::size_t rows, std::size_t panel, std::int32_t* sums,
                                        float* real) noexcept {
  constexpr std::size_t kStride = kPanels * panel_columns;
  constexpr std::size_t kRows = 8;  // rows whose sums are added at a time
  for (; panel + kPanels <= u.strip.panels(); panel += kPanels) {
    std::int32_t* block = sums + panel * panel_columns * kLefts * tile_rows;
    multiply_tiles<false, kLefts, kPanels>(
        left.steps(), {0, left.count(), piece.begins_group, true}, u.weights(panel, piece.k),
        u.chunk.panel_stride(), block);
    if (!piece.ends_group) {
      continue;
    }
    float* to = real + panel * panel_columns;
    std::size_t r = 0;
    for (; r + kRows <= rows; r += kRows) {
      u.strip.add_sums<kRows, kPanels, kStride, kSmallSums>(
          piece.group, panel, first + r, block + r * kStride, to + r * strip_columns);
    }
    for (; r < rows; ++r) {
      u.strip.add_sums<1, kPanels, kStride, kSmallSums>(
          piece.group, panel, first + r, block + r * kStride, to + r * strip_columns);
    }
  }
  if constexpr (kPanels > 1) {
    multiply_unpacked_piece<kSmallSums, kLefts, kPanels / 2>(u, piece, left, first, rows, panel,
                                                             sums, real);
  }
}

/// The function that avx512_vnni::for_unpacked_chunks() calls for each chunk: multiplies all rows
/// by it in AMX tiles.
template <bool kSmallSums>
class unpacked_tiles {
 public:
  HWY_INLINE explicit unpacked_tiles(const gemm_u8u4_args& g) noexcept : g_(g) {}

  void operator()(const avx512_vnni::unpacked_chunk& u) const noexcept {
    tile_session tiles;
    nibble_left_side left(g_);
    for (std::size_t first = 0; first < g_.m; first += left_rows) {
      const std::size_t rows = (std::min)(left_rows, g_.m - first);
      const std::size_t at = u.is_only ? 0 : first * strip_columns;
      std::int32_t* sums = u.unpacked.sums + at;
      float* real = u.unpacked.real + at;
      if (u.chunk.begin == 0) {
        u.strip.clear(rows, u.strip.panels(), real);
      }
      for (std::size_t k = u.chunk.begin; k < u.chunk.end;) {
        const avx512_vnni::nibble_piece piece(g_, u.chunk, k);
        k += piece.depth;
        left.prepare(first, rows, piece);
        tiles.shape(rows, left.depth());
        if (rows > tile_rows) {
          multiply_unpacked_piece<kSmallSums, 2, 2>(u, piece, left, first, rows, 0, sums, real);
        } else {
          multiply_unpacked_piece<kSmallSums, 1, 4>(u, piece, left, first, rows, 0, sums, real);
        }
      }
      if (u.chunk.end == g_.k) {
        u.strip.store(first, rows, 0, u.strip.panels(), real);
      }
    }
  }

 private:
  const gemm_u8u4_args& g_;
};

inline void gemm_u8u4(const gemm_u8u4_args& g) noexcept {
  if (g.m < fewest_unpacked_rows) {
    avx512_vnni::gemm_u8u4(g);
  } else if (avx512_vnni::has_small_sums(g)) {
    avx512_vnni::for_unpacked_chunks(g, unpacked_tiles<true>(g));
  } else {
    avx512_vnni::for_unpacked_chunks(g, unpacked_tiles<false>(g));
  }
}

}  // namespace amx_int8
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#endif  // DETENT_KERNELS_AMX
#endif  // DETENT_KERNELS_VECTOR_GEMM_AMX_U8U4_HPP
