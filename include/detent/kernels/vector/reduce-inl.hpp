// SPDX-License-Identifier: BSD-3-Clause
// The kernels of statistics: ranges of floats, positions of floats in bins, sums of codes.

#ifndef DETENT_KERNELS_VECTOR_REDUCE_INL_HPP
#define DETENT_KERNELS_VECTOR_REDUCE_INL_HPP

#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/kernels/statistics.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/reduce-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

inline min_max_result min_max(const float* x, std::size_t n) noexcept {
  const float_tag df;
  const float_vector zero = hn::Zero(df);
  range_chains chains;
  std::size_t count_nan = 0;
  const auto partly = [&](std::size_t first, std::size_t count) HWY_ATTR {
    chains.take_some(x + first, count);
    count_nan += hn::CountTrue(df, hn::IsNaN(hn::LoadNOr(zero, df, x + first, count)));
  };
  // Vectors that cross cache lines take twice as long to load, so the loop below begins at a
  // multiple of their size.
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(x) / sizeof(float) % lanes;
  std::size_t i = beyond == 0 || n < lanes ? 0 : lanes - beyond;
  if (i > 0) {
    partly(0, i);
  }
  // Fewer floats are in a cache anyway.
  const std::size_t read_ahead = n >= (std::size_t{1} << 18) ? 2048 : 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    if (read_ahead != 0) {
      prefetch<4 * lanes * sizeof(float)>(x + i, read_ahead);
    }
    const float_vector v0 = hn::LoadU(df, x + i);
    const float_vector v1 = hn::LoadU(df, x + i + lanes);
    const float_vector v2 = hn::LoadU(df, x + i + 2 * lanes);
    const float_vector v3 = hn::LoadU(df, x + i + 3 * lanes);
    chains.take(0, v0);
    chains.take(1, v1);
    chains.take(2, v2);
    chains.take(3, v3);
    const auto any_nan = hn::Or(hn::IsEitherNaN(v0, v1), hn::IsEitherNaN(v2, v3));
    if (HWY_UNLIKELY(!hn::AllFalse(df, any_nan))) {
      count_nan += hn::CountTrue(df, hn::IsNaN(v0)) + hn::CountTrue(df, hn::IsNaN(v1)) +
                   hn::CountTrue(df, hn::IsNaN(v2)) + hn::CountTrue(df, hn::IsNaN(v3));
    }
  }
  for (; i < n; i += lanes) {
    partly(i, n - i < lanes ? n - i : lanes);
  }
  // Adding zero turns -0 into +0.
  return {hn::ReduceMin(df, chains.lowest()) + 0.0F, hn::ReduceMax(df, chains.highest()) + 0.0F,
          count_nan};
}

/// min_max() for each column of a matrix, a vector of columns at a time.
inline void min_max_columns(const float* x, std::size_t rows, std::size_t columns,
                            std::ptrdiff_t row_stride, float* lower, float* upper,
                            std::uint64_t* count_nan) noexcept {
  const float_tag df;
  const auto zero = hn::Zero(df);
  for (std::size_t c = 0; c < columns; c += lanes) {
    const std::size_t count = columns - c < lanes ? columns - c : lanes;
    float_vector low = hn::LoadN(df, lower + c, count);
    float_vector high = hn::LoadN(df, upper + c, count);
    for (std::size_t r = 0; r < rows; ++r) {
      const float* row = x + static_cast<std::ptrdiff_t>(r) * row_stride + c;
      // Adding zero turns -0 into +0. Min and Max return the second operand if either is NaN.
      const float_vector v =
          hn::Add(count == lanes ? hn::LoadU(df, row) : hn::LoadN(df, row, count), zero);
      low = hn::Min(v, low);
      high = hn::Max(v, high);
      if (HWY_UNLIKELY(!hn::AllFalse(df, hn::IsNaN(v)))) {
        for (std::size_t i = 0; i < count; ++i) {
          count_nan[c + i] += row[i] != row[i] ? 1U : 0U;
        }
      }
    }
    hn::StoreN(low, df, lower + c, count);
    hn::StoreN(high, df, upper + c, count);
  }
}

/// Writes reference::bin_position of every value that is not zero.
inline bin_block bin_positions(const float* x, std::size_t n, std::uint32_t lowest,
                               std::uint32_t* positions) noexcept {
  const float_tag df;
  const hn::RebindToUnsigned<float_tag> du;
  const int_tag di;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float_vector plus_infinity = hn::Set(df, infinity);
  const float_vector minus_infinity = hn::Set(df, -infinity);
  const auto sign = hn::Set(du, 0x80000000U);
  const auto first = hn::Set(du, lowest);
  const auto outside = hn::Set(du, bin_octaves << 23);
  float_vector lower = plus_infinity;
  float_vector upper = minus_infinity;
  auto largest = hn::Zero(di);  // bit patterns of |x| are not negative as signed integers
  std::size_t count = 0;
  const auto place = [&](float_vector v) HWY_ATTR {
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::AndNot(sign, bits);
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    largest = hn::Max(largest, signed_magnitude);
    const auto position = hn::Min(hn::Sub(magnitude, first), outside);
    const auto with_sign = hn::Or(position, hn::ShiftRight<3>(hn::And(sign, bits)));
    const auto kept = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Zero(di)));
    // Most data has no zeros, or so many that there are some in nearly every vector.
    if (hn::AllTrue(du, kept)) {
      hn::StoreU(with_sign, du, positions + count);
      count += lanes;
    } else {
      hn::StoreU(hn::Compress(with_sign, kept), du, positions + count);
      count += hn::CountTrue(du, kept);
    }
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const float_vector v = hn::LoadU(df, x + i);
    place(v);
    // Min and Max return the second operand if either is NaN.
    lower = hn::Min(v, lower);
    upper = hn::Max(v, upper);
  }
  if (i < n) {
    place(hn::LoadN(df, x + i, n - i));
    lower = hn::Min(hn::LoadNOr(plus_infinity, df, x + i, n - i), lower);
    upper = hn::Max(hn::LoadNOr(minus_infinity, df, x + i, n - i), upper);
  }
  return {count, static_cast<std::uint32_t>(hn::ReduceMax(di, largest)),
          hn::ReduceMin(df, lower) + 0.0F, hn::ReduceMax(df, upper) + 0.0F};
}

/// Returns the sum of n codes, modulo 2^32.
template <class Q>
std::int32_t sum_codes(const Q* q, std::size_t n) noexcept {
  // SumsOf8 takes unsigned bytes: signed ones with their sign bit inverted are 128 larger.
  const hn::Repartition<std::uint8_t, float_tag> db;
  const hn::Repartition<std::uint64_t, float_tag> d64;
  constexpr std::uint8_t turned = std::is_signed_v<Q> ? 128 : 0;
  const auto bytes = reinterpret_cast<const std::uint8_t*>(q);
  const auto turn = hn::Set(db, turned);
  const std::size_t step = hn::Lanes(db);
  auto sum = hn::Zero(d64);
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    sum = hn::Add(sum, hn::SumsOf8(hn::Xor(hn::LoadU(db, bytes + i), turn)));
  }
  if (i < n) {
    const auto last = hn::LoadNOr(turn, db, bytes + i, n - i);
    sum = hn::Add(sum, hn::SumsOf8(hn::Xor(last, turn)));
  }
  return static_cast<std::int32_t>(
      static_cast<std::uint32_t>(hn::ReduceSum(d64, sum) - std::uint64_t{turned} * n));
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
