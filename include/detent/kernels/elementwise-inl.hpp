// SPDX-License-Identifier: BSD-3-Clause
// Elementwise kernels, re-included once per Highway target by kernels/dispatch.hpp.
//
// Quantizing by division is exact at the price of a multiplication. Let r = RN(1 / s) be a normal
// number. Then v = RN(x * r) differs from RN(x / s) by less than |v| * 2^-22, which is below 2^-13
// for |v| <= 512. Unless v is that close to a tie, both round to the same integer; where a vector
// has such a lane (one in some thousand), the whole group is divided. NaN takes the same way out.

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Vectors of sixteen lanes at the most: one panel of columns.
using float_tag = hn::CappedTag<float, panel_columns>;
using int_tag = hn::RebindToSigned<float_tag>;
using float_vector = hn::Vec<float_tag>;
using int_vector = hn::Vec<int_tag>;
inline constexpr std::size_t lanes = hn::MaxLanes(float_tag{});

/// 1.5 * 2^23: adding it rounds |v| < 2^22 to an integer, half to even, which then stands in the
/// low bits. Cheaper than a conversion, which would have to be repaired for large values.
inline constexpr float rounding_bias = 12582912.0F;
inline constexpr std::int32_t rounding_bias_bits = 0x4B400000;

/// The grid's bounds in steps from the zero point, ready for float vectors.
struct grid_vectors {
  float_vector lowest, highest;
  int_vector zero_point_minus_bias;

  HWY_INLINE grid_vectors(int_vector zero_point, std::int32_t qmin, std::int32_t qmax) noexcept {
    const float_tag df;
    const int_tag di;
    lowest = hn::ConvertTo(df, hn::Sub(hn::Set(di, qmin), zero_point));
    highest = hn::ConvertTo(df, hn::Sub(hn::Set(di, qmax), zero_point));
    zero_point_minus_bias = hn::Sub(zero_point, hn::Set(di, rounding_bias_bits));
  }

  /// x86's max and min return the second operand when either is NaN, so NaN passes.
  HWY_INLINE float_vector clamp(float_vector steps) const noexcept {
    return hn::Min(highest, hn::Max(lowest, steps));
  }
  /// Rounds what clamp() returned; NaN must have been replaced.
  HWY_INLINE int_vector round(float_vector clamped) const noexcept {
    const float_vector biased = hn::Add(clamped, hn::Set(float_tag{}, rounding_bias));
    return hn::Add(hn::BitCast(int_tag{}, biased), zero_point_minus_bias);
  }
  /// reference::to_grid.
  HWY_INLINE int_vector to_grid(float_vector steps) const noexcept {
    return round(clamp(hn::IfThenElseZero(hn::Eq(steps, steps), steps)));
  }
};

template <class Q>
HWY_INLINE void store_8bit(int_vector v, Q* q) noexcept {
  const hn::Rebind<Q, float_tag> dq;
  hn::StoreU(hn::DemoteTo(dq, v), dq, q);
}

template <class Q>
HWY_INLINE void store_8bit(int_vector v, std::size_t count, Q* q) noexcept {
  const hn::Rebind<Q, float_tag> dq;
  hn::StoreN(hn::DemoteTo(dq, v), dq, q, count);
}

/// Four vectors at once: packing them together is cheaper than one by one.
template <class Q>
HWY_INLINE void store_8bit(int_vector v0, int_vector v1, int_vector v2, int_vector v3,
                           Q* q) noexcept {
  const hn::Repartition<std::int16_t, float_tag> d16;
  const hn::Repartition<Q, float_tag> d8;
  hn::StoreU(hn::OrderedDemote2To(d8, hn::OrderedDemote2To(d16, v0, v1),
                                  hn::OrderedDemote2To(d16, v2, v3)),
             d8, q);
}

template <class Q>
void quantize_columns(const float* x, std::size_t n, const grid_args& g, Q* q) noexcept {
  const float_tag df;
  const int_tag di;
  for (std::size_t i = 0; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    const grid_vectors grid(hn::LoadN(di, g.column_zero_point + i, count), g.qmin, g.qmax);
    // Lanes past the end are divided by one, not by zero: no needless floating-point flags.
    const float_vector scale = hn::LoadNOr(hn::Set(df, 1.0F), df, g.column_scale + i, count);
    store_8bit(grid.to_grid(hn::Div(hn::LoadN(df, x + i, count), scale)), count, q + i);
  }
}

template <class Q>
void quantize(const float* x, std::size_t n, const grid_args& g, Q* q) noexcept {
  if (g.column_scale != nullptr) {
    quantize_columns(x, n, g, q);
    return;
  }
  const float_tag df;
  const grid_vectors grid(hn::Set(int_tag{}, g.zero_point), g.qmin, g.qmax);
  const float_vector scale = hn::Set(df, g.scale);
  std::size_t i = 0;
  // 2^-126 <= s, 1/s: both are normal numbers.
  if (g.scale >= 1.17549435e-38F && g.scale <= 8.50705917e37F) {
    const float_vector reciprocal = hn::Set(df, 1.0F / g.scale);
    const float_vector bias = hn::Set(df, rounding_bias);
    const float_vector safe = hn::Set(df, 0.5F - 1.0F / 8192.0F);
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      float_vector v0 = grid.clamp(hn::Mul(hn::LoadU(df, x + i), reciprocal));
      float_vector v1 = grid.clamp(hn::Mul(hn::LoadU(df, x + i + lanes), reciprocal));
      float_vector v2 = grid.clamp(hn::Mul(hn::LoadU(df, x + i + 2 * lanes), reciprocal));
      float_vector v3 = grid.clamp(hn::Mul(hn::LoadU(df, x + i + 3 * lanes), reciprocal));
      const float_vector b0 = hn::Add(v0, bias);
      const float_vector b1 = hn::Add(v1, bias);
      const float_vector b2 = hn::Add(v2, bias);
      const float_vector b3 = hn::Add(v3, bias);
      const auto is_safe0 = hn::Le(hn::Abs(hn::Sub(v0, hn::Sub(b0, bias))), safe);
      const auto is_safe1 = hn::Le(hn::Abs(hn::Sub(v1, hn::Sub(b1, bias))), safe);
      const auto is_safe2 = hn::Le(hn::Abs(hn::Sub(v2, hn::Sub(b2, bias))), safe);
      const auto is_safe3 = hn::Le(hn::Abs(hn::Sub(v3, hn::Sub(b3, bias))), safe);
      if (HWY_LIKELY(
              hn::AllTrue(df, hn::And(hn::And(is_safe0, is_safe1), hn::And(is_safe2, is_safe3))))) {
        const int_tag di;
        store_8bit(hn::Add(hn::BitCast(di, b0), grid.zero_point_minus_bias),
                   hn::Add(hn::BitCast(di, b1), grid.zero_point_minus_bias),
                   hn::Add(hn::BitCast(di, b2), grid.zero_point_minus_bias),
                   hn::Add(hn::BitCast(di, b3), grid.zero_point_minus_bias), q + i);
      } else {
        store_8bit(grid.to_grid(hn::Div(hn::LoadU(df, x + i), scale)),
                   grid.to_grid(hn::Div(hn::LoadU(df, x + i + lanes), scale)),
                   grid.to_grid(hn::Div(hn::LoadU(df, x + i + 2 * lanes), scale)),
                   grid.to_grid(hn::Div(hn::LoadU(df, x + i + 3 * lanes), scale)), q + i);
      }
    }
  }
  for (; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    store_8bit(grid.to_grid(hn::Div(hn::LoadN(df, x + i, count), scale)), count, q + i);
  }
}

template <class Q>
void dequantize(const Q* q, std::size_t n, const grid_args& g, float* x) noexcept {
  const float_tag df;
  const int_tag di;
  const hn::Rebind<Q, float_tag> dq;
  if (g.column_scale != nullptr) {
    for (std::size_t i = 0; i < n; i += lanes) {
      const std::size_t count = n - i < lanes ? n - i : lanes;
      const int_vector steps = hn::Sub(hn::PromoteTo(di, hn::LoadN(dq, q + i, count)),
                                       hn::LoadN(di, g.column_zero_point + i, count));
      hn::StoreN(hn::Mul(hn::ConvertTo(df, steps), hn::LoadN(df, g.column_scale + i, count)), df,
                 x + i, count);
    }
    return;
  }
  const int_vector zero_point = hn::Set(di, g.zero_point);
  const float_vector scale = hn::Set(df, g.scale);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const int_vector steps = hn::Sub(hn::PromoteTo(di, hn::LoadU(dq, q + i)), zero_point);
    hn::StoreU(hn::Mul(hn::ConvertTo(df, steps), scale), df, x + i);
  }
  if (i < n) {
    const int_vector steps = hn::Sub(hn::PromoteTo(di, hn::LoadN(dq, q + i, n - i)), zero_point);
    hn::StoreN(hn::Mul(hn::ConvertTo(df, steps), scale), df, x + i, n - i);
  }
}

template <class Q>
void requantize(const std::int32_t* acc, std::size_t n, const grid_args& g, Q* q) noexcept {
  const float_tag df;
  const int_tag di;
  const bool by_column = g.column_scale != nullptr;
  grid_vectors grid(hn::Set(di, g.zero_point), g.qmin, g.qmax);
  float_vector multiplier = hn::Set(df, g.scale);
  std::size_t i = 0;
  if (!by_column) {
    for (; i + lanes <= n; i += lanes) {
      store_8bit(grid.to_grid(hn::Mul(hn::ConvertTo(df, hn::LoadU(di, acc + i)), multiplier)),
                 q + i);
    }
  }
  for (; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    if (by_column) {
      grid = grid_vectors(hn::LoadN(di, g.column_zero_point + i, count), g.qmin, g.qmax);
      multiplier = hn::LoadN(df, g.column_scale + i, count);
    }
    const float_vector sum = hn::ConvertTo(df, hn::LoadN(di, acc + i, count));
    store_8bit(grid.to_grid(hn::Mul(sum, multiplier)), count, q + i);
  }
}

inline min_max_result min_max(const float* x, std::size_t n) noexcept {
  const float_tag df;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float_vector plus_infinity = hn::Set(df, infinity);
  const float_vector minus_infinity = hn::Set(df, -infinity);
  // Four chains: min and max have a latency of several cycles. As above, the second operand is what
  // is returned next to a NaN, so NaN never enters a chain.
  float_vector lower[4] = {plus_infinity, plus_infinity, plus_infinity, plus_infinity};
  float_vector upper[4] = {minus_infinity, minus_infinity, minus_infinity, minus_infinity};
  std::size_t count_nan = 0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const float_vector v0 = hn::LoadU(df, x + i);
    const float_vector v1 = hn::LoadU(df, x + i + lanes);
    const float_vector v2 = hn::LoadU(df, x + i + 2 * lanes);
    const float_vector v3 = hn::LoadU(df, x + i + 3 * lanes);
    lower[0] = hn::Min(v0, lower[0]);
    lower[1] = hn::Min(v1, lower[1]);
    lower[2] = hn::Min(v2, lower[2]);
    lower[3] = hn::Min(v3, lower[3]);
    upper[0] = hn::Max(v0, upper[0]);
    upper[1] = hn::Max(v1, upper[1]);
    upper[2] = hn::Max(v2, upper[2]);
    upper[3] = hn::Max(v3, upper[3]);
    const auto any_nan =
        hn::Or(hn::Or(hn::IsNaN(v0), hn::IsNaN(v1)), hn::Or(hn::IsNaN(v2), hn::IsNaN(v3)));
    if (HWY_UNLIKELY(!hn::AllFalse(df, any_nan))) {
      count_nan += hn::CountTrue(df, hn::IsNaN(v0)) + hn::CountTrue(df, hn::IsNaN(v1)) +
                   hn::CountTrue(df, hn::IsNaN(v2)) + hn::CountTrue(df, hn::IsNaN(v3));
    }
  }
  float_vector low = hn::Min(hn::Min(lower[0], lower[1]), hn::Min(lower[2], lower[3]));
  float_vector high = hn::Max(hn::Max(upper[0], upper[1]), hn::Max(upper[2], upper[3]));
  for (; i < n; i += lanes) {
    const std::size_t count = n - i < lanes ? n - i : lanes;
    const float_vector v = hn::LoadNOr(plus_infinity, df, x + i, count);
    low = hn::Min(v, low);
    high = hn::Max(hn::LoadNOr(minus_infinity, df, x + i, count), high);
    count_nan += hn::CountTrue(df, hn::IsNaN(v));
  }
  // Adding zero turns -0 into +0.
  return {hn::ReduceMin(df, low) + 0.0F, hn::ReduceMax(df, high) + 0.0F, count_nan};
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES
