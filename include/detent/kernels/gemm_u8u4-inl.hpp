// SPDX-License-Identifier: BSD-3-Clause
// Products with 4-bit weights, re-included by kernels/dispatch.hpp for each pass of
// gemm_u8s8-inl.hpp and behind it.
//
// A byte of the weights becomes two in registers, less the zero point of its column and group:
// -15..15, so that even pairs of products that are added in 16 bits are exact. Weights are read
// once for all rows of a call as long as four panels fit the second-level cache.

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// Panels of a tile with so many rows: enough sums to hide the latency of their additions, few
/// enough for the registers.
template <std::size_t kRows>
inline constexpr std::size_t nibble_panels = lanes == panel_columns ? (kRows == 1   ? 4
                                                                       : kRows == 2 ? 2
                                                                                    : 1)
                                                                    : (kRows == 1 ? 2 : 1);
inline constexpr std::size_t nibble_rows = lanes == panel_columns ? 8 : 2;
inline constexpr std::size_t nibble_block_panels = 4;

/// Bytes of a panel from what is multiplied to what is fetched, where weights are read once only.
inline constexpr std::size_t fetched_ahead = 2048;

/// What a tile of kRows rows and some panels adds up.
template <std::size_t kRows>
struct nibble_sums {
  static constexpr std::size_t panels = nibble_panels<kRows>;
  static constexpr std::size_t vectors = panels * vectors_per_panel;
  // The low and the high halves of bytes apart, where there are few.
  static constexpr std::size_t sets = kRows * vectors <= 5 ? 2 : 1;
  int_vector sum[sets][kRows][vectors];
};

/// Adds the products of eight k: those at `a` of each row.
template <std::size_t kRows>
HWY_INLINE void add_nibbles(
    const std::uint8_t* const (&a)[kRows], std::size_t offset, const std::uint8_t* b,
    std::size_t panel_stride,
    const hn::Vec<hn::Repartition<std::int8_t, int_tag>> (&zero_point)[nibble_sums<kRows>::vectors],
    nibble_sums<kRows>& sums) noexcept {
  constexpr std::size_t kVectors = nibble_sums<kRows>::vectors;
  constexpr std::size_t kLast = nibble_sums<kRows>::sets - 1;
  const int_tag di;
  const hn::Repartition<std::uint8_t, int_tag> du8;
  const hn::Repartition<std::int8_t, int_tag> ds8;
  const hn::Repartition<std::uint16_t, int_tag> du16;
  const auto mask = hn::Set(du8, std::uint8_t{0x0F});
  hn::Vec<decltype(ds8)> low[kVectors];
  hn::Vec<decltype(ds8)> high[kVectors];
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    const auto both = hn::LoadU(du8, b + v / vectors_per_panel * panel_stride +
                                         v % vectors_per_panel * lanes * group_depth);
    const auto shifted = hn::BitCast(du8, hn::ShiftRight<4>(hn::BitCast(du16, both)));
    low[v] = hn::Sub(hn::BitCast(ds8, hn::And(both, mask)), zero_point[v]);
    high[v] = hn::Sub(hn::BitCast(ds8, hn::And(shifted, mask)), zero_point[v]);
  }
  DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    std::int32_t four[2];
    std::memcpy(four, a[r] + offset, sizeof four);
    const auto first = hn::BitCast(du8, hn::Set(di, four[0]));
    const auto second = hn::BitCast(du8, hn::Set(di, four[1]));
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sums.sum[0][r][v] = DETENT_PASS_DOT(sums.sum[0][r][v], first, low[v]);
      sums.sum[kLast][r][v] = DETENT_PASS_DOT(sums.sum[kLast][r][v], second, high[v]);
    }
  }
}

/// kRows rows from `first` on times the panels of a tile from `column` on.
template <std::size_t kRows>
HWY_INLINE void multiply_nibbles(const gemm_u8u4_args& g, std::size_t first,
                                 std::size_t column) noexcept {
  using sums_type = nibble_sums<kRows>;
  constexpr std::size_t kVectors = sums_type::vectors;
  const float_tag df;
  const int_tag di;
  const hn::Rebind<std::uint8_t, int_tag> d_codes;
  const hn::Repartition<std::int8_t, int_tag> ds8;
  const std::size_t steps = (g.k + nibble_depth - 1) / nibble_depth;
  const std::size_t groups = (g.k + g.b.group_size - 1) / g.b.group_size;
  const std::size_t panel = column / panel_columns;
  const std::size_t panel_stride = steps * nibble_panel_bytes;
  const std::uint8_t* b = g.b.data + panel * panel_stride;
  const std::uint8_t* a[kRows];
  // The last one to seven k, with zeros behind them.
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
    // Of vector v: the panel's parameters, and where in them it begins.
    const auto parameter = [&](std::size_t v) HWY_ATTR {
      return ((panel + v / vectors_per_panel) * groups + group) * panel_columns +
             v % vectors_per_panel * lanes;
    };
    hn::Vec<decltype(ds8)> zero_point[kVectors];
    DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      const auto codes = hn::PromoteTo(di, hn::LoadU(d_codes, g.b.zero_point + parameter(v)));
      zero_point[v] = hn::BitCast(ds8, hn::Mul(codes, hn::Set(di, 0x01010101)));
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
        all = hn::Sub(all, hn::Mul(hn::Set(di, g.row_zero_point[first + r]), column_sum));
        real[r][v] = hn::MulAdd(hn::ConvertTo(df, all), scale, real[r][v]);
      }
    }
  }
  const auto lower = hn::Set(df, g.lower);
  const auto upper = hn::Set(df, g.upper);
  DETENT_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t j = column + v * lanes;
    if (j >= g.n) {
      break;
    }
    const std::size_t count = (std::min)(lanes, g.n - j);
    const auto bias = g.bias != nullptr ? hn::LoadN(df, g.bias + j, count) : hn::Zero(df);
    DETENT_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      auto x = hn::MulAdd(real[r][v], hn::Set(df, g.row_scale[first + r]), bias);
      if (g.residual != nullptr) {
        x = hn::Add(x, hn::LoadN(df, g.residual + (first + r) * g.residual_stride + j, count));
      }
      hn::StoreN(clamp_ordered(x, lower, upper), df, g.c + (first + r) * g.ldc + j, count);
    }
  }
}

/// The rows first .. end of the panels of a block of columns, the last rows in smaller tiles.
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

inline void gemm_u8u4(const gemm_u8u4_args& g) noexcept {
  constexpr std::size_t kColumns = nibble_block_panels * panel_columns;
  for (std::size_t column = 0; column < g.n; column += kColumns) {
    multiply_nibble_rows<nibble_rows>(g, 0, column, (std::min)(column + kColumns, g.n));
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES
