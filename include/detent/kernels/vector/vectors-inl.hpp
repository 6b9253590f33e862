// SPDX-License-Identifier: BSD-3-Clause
// The vector types of a Highway target, and the small functions that its kernels share.

#ifndef DETENT_KERNELS_VECTOR_VECTORS_INL_HPP
#define DETENT_KERNELS_VECTOR_VECTORS_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <detent/kernels/elementwise.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/kernels/vector/highway.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/vectors-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Vectors of 32-bit lanes: as many as a register has, but at most 16, the columns of a panel.
using float_tag = hn::CappedTag<float, panel_columns>;
using int_tag = hn::RebindToSigned<float_tag>;
using float_vector = hn::Vec<float_tag>;
using int_vector = hn::Vec<int_tag>;
inline constexpr std::size_t lanes = hn::MaxLanes(float_tag{});
inline constexpr std::size_t vectors_per_panel = panel_columns / lanes;

/// Vectors of doubles, as many as a register has.
using double_tag = hn::ScalableTag<double>;
using double_vector = hn::Vec<double_tag>;

/// a * b, rounded. An empty instruction that claims to change the product keeps compilers from
/// fusing it with a sum (see base/arithmetic.hpp).
HWY_INLINE double_vector product(double_vector a, double_vector b) noexcept {
#if defined(__GNUC__)
  double_vector rounded = hn::Mul(a, b);
  __asm__("" : "+v"(rounded.raw));
  return rounded;
#else
  return hn::MulAdd(a, b, hn::Set(double_tag{}, -0.0));
#endif
}

HWY_INLINE float_vector product(float_vector a, float_vector b) noexcept {
#if defined(__GNUC__)
  float_vector rounded = hn::Mul(a, b);
  __asm__("" : "+v"(rounded.raw));
  return rounded;
#else
  return hn::MulAdd(a, b, hn::Set(float_tag{}, -0.0F));
#endif
}

/// The polynomial with these coefficients, the last one constant, by Horner's rule.
template <std::size_t N>
HWY_INLINE float_vector polynomial(const float (&coefficients)[N], float_vector x) noexcept {
  const float_tag df;
  float_vector sum = hn::Set(df, coefficients[0]);
  DETENT_UNROLL for (std::size_t k = 1; k < N; ++k) {
    sum = hn::MulAdd(sum, x, hn::Set(df, coefficients[k]));
  }
  return sum;
}

/// Adding 1.5 * 2^23 to v, |v| < 2^22, rounds v to an integer, half to even, which the low bits of
/// the sum then hold: they are rounding_bias_bits + integer.
inline constexpr float rounding_bias = 12582912.0F;
inline constexpr std::int32_t rounding_bias_bits = 0x4B400000;

/// The bounds of an integer grid, in steps from the zero point, ready for float vectors.
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

  /// Clamps to the grid; NaN stays NaN, because x86's max and min return the second operand if
  /// either is NaN.
  HWY_INLINE float_vector clamp(float_vector steps) const noexcept {
    return hn::Min(highest, hn::Max(lowest, steps));
  }
  /// Rounds a result of clamp() that is not NaN and adds the zero point.
  HWY_INLINE int_vector round(float_vector clamped) const noexcept {
    const float_vector biased = hn::Add(clamped, hn::Set(float_tag{}, rounding_bias));
    return hn::Add(hn::BitCast(int_tag{}, biased), zero_point_minus_bias);
  }
};

/// Rounds v half to even. The result is INT32_MIN for NaN and where no int32_t is near: what the
/// processor's instruction returns, and Highway's NearestInt() would replace.
HWY_INLINE int_vector nearest(float_vector v) noexcept {
#if HWY_TARGET == HWY_AVX2
  return int_vector{_mm256_cvtps_epi32(v.raw)};
#else
  // The masked form, with all lanes: GCC 12 warns that the other form leaves its result
  // uninitialized.
  return int_vector{_mm512_maskz_cvtps_epi32(0xFFFF, v.raw)};
#endif
}

/// reference::clamp. x86's maximum and minimum return the second operand if either is NaN or if
/// both are zeros, so that v stays what it is then.
HWY_INLINE float_vector clamp_ordered(float_vector v, float_vector lower,
                                      float_vector upper) noexcept {
  return hn::Min(upper, hn::Max(lower, v));
}

/// Loads the first `count` elements of a vector of bytes or 16-bit words, and zeros for the rest.
/// AVX2 has no masked loads of such elements, so that hn::LoadN is long there: it is a function of
/// its own. The most frequent cases do without it: half a vector, and multiples of 8 bytes in
/// vectors of 32 bytes.
template <class D, class T>
HWY_NOINLINE hn::Vec<D> load_part_without_mask(D d, const T* from, std::size_t count) noexcept {
  return hn::LoadN(d, from, count);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> load_part(D d, const T* from, std::size_t count) noexcept {
  if constexpr (lanes == panel_columns) {
    return hn::LoadN(d, from, count);
  } else {
    const hn::Half<D> half;
    if (count == hn::Lanes(half)) {
      return hn::ZeroExtendVector(d, hn::LoadU(half, from));
    }
    if constexpr (sizeof(T) == 1 && hn::MaxLanes(D{}) == 32) {
      const hn::Half<decltype(half)> quarter;
      if (count == 8) {
        return hn::ZeroExtendVector(d, hn::ZeroExtendVector(half, hn::LoadU(quarter, from)));
      }
      if (count == 24) {
        return hn::Combine(d, hn::ZeroExtendVector(half, hn::LoadU(quarter, from + 16)),
                           hn::LoadU(half, from));
      }
    }
    return load_part_without_mask(d, from, count);
  }
}

/// Stores the first `count` elements of a vector. hn::StoreN is as long as hn::LoadN without masks;
/// multiples of 8 bytes in vectors of 32 bytes do without it.
template <class D, class T>
HWY_NOINLINE void store_part_without_mask(hn::Vec<D> v, D d, T* to, std::size_t count) noexcept {
  hn::StoreN(v, d, to, count);
}
template <class D, class T>
HWY_INLINE void store_part(hn::Vec<D> v, D d, T* to, std::size_t count) noexcept {
  if constexpr (lanes == panel_columns || sizeof(T) == 4) {
    hn::StoreN(v, d, to, count);
  } else {
    if constexpr (sizeof(T) == 1 && hn::MaxLanes(D{}) == 32) {
      const hn::Half<D> half;
      const hn::Half<decltype(half)> quarter;
      if (count % 8 == 0 && count < 32) {
        if (count >= 16) {
          hn::StoreU(hn::LowerHalf(half, v), half, to);
        }
        if (count % 16 != 0) {
          const auto last = count == 24 ? hn::UpperHalf(half, v) : hn::LowerHalf(half, v);
          hn::StoreU(hn::LowerHalf(quarter, last), quarter, to + count - 8);
        }
        return;
      }
    }
    store_part_without_mask(v, d, to, count);
  }
}

/// Stores a vector of integers, or the first `count`, as bytes; values outside of Q saturate.
template <class Q>
HWY_INLINE void store_8bit(int_vector v, Q* q) noexcept {
  const hn::Rebind<Q, float_tag> dq;
  hn::StoreU(hn::DemoteTo(dq, v), dq, q);
}

template <class Q>
HWY_INLINE void store_8bit(int_vector v, std::size_t count, Q* q) noexcept {
  const hn::Rebind<Q, float_tag> dq;
  store_part(hn::DemoteTo(dq, v), dq, q, count);
}

/// Converts to bfloat16, rounding half to even. NaN keeps its sign and the upper half of its
/// payload, and becomes quiet.
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, float_tag>> to_bfloat16(float_vector x) noexcept {
  const int_tag di;
  const hn::RebindToUnsigned<float_tag> du;
  const auto bits = hn::BitCast(du, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto quiet = hn::Or(high, hn::Set(du, 0x40U));
  const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  return hn::DemoteTo(hn::Rebind<std::uint16_t, float_tag>{}, hn::BitCast(di, chosen));
}

/// The elements of a code group: the four vectors of 32-bit lanes that become one vector of 8-bit
/// codes. (Elementwise kernels only; it is not the group of panels.hpp.)
inline constexpr std::size_t group_size = 4 * lanes;

/// Running minimum and maximum of each lane. There are four chains of each, which are independent,
/// because min and max have a latency of several cycles.
struct range_chains {
  float_vector lower[4], upper[4];

  HWY_INLINE range_chains() noexcept {
    const float_tag df;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < 4; ++i) {
      lower[i] = hn::Set(df, infinity);
      upper[i] = hn::Set(df, -infinity);
    }
  }
  /// Takes a vector into a chain. Min and Max return the second operand if either is NaN, so that
  /// NaN never enters a chain.
  HWY_INLINE void take(std::size_t chain, float_vector v) noexcept {
    lower[chain] = hn::Min(v, lower[chain]);
    upper[chain] = hn::Max(v, upper[chain]);
  }
  /// Takes the first `count` values of a vector into chain 0; count is not 0.
  HWY_INLINE void take_some(const float* x, std::size_t count) noexcept {
    const float_tag df;
    take(0, hn::LoadNOr(hn::Set(df, std::numeric_limits<float>::quiet_NaN()), df, x, count));
  }
  [[nodiscard]] HWY_INLINE float_vector lowest() const noexcept {
    return hn::Min(hn::Min(lower[0], lower[1]), hn::Min(lower[2], lower[3]));
  }
  [[nodiscard]] HWY_INLINE float_vector highest() const noexcept {
    return hn::Max(hn::Max(upper[0], upper[1]), hn::Max(upper[2], upper[3]));
  }
};

/// True if p begins a line of 64 bytes, as streaming stores require.
HWY_INLINE bool starts_line(const void* p) noexcept {
  return reinterpret_cast<std::uintptr_t>(p) % 64 == 0;
}

/// Stores a vector, past the caches if `stream` is true.
template <class D, class T>
HWY_INLINE void store_bytes(hn::Vec<D> v, D d, bool stream, T* to) noexcept {
  if (stream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

/// Prefetches the kBytes that are `distance` bytes behind `from`.
template <std::size_t kBytes>
HWY_INLINE void prefetch(const void* from, std::size_t distance) noexcept {
  constexpr std::size_t line = 64;
  const auto* bytes = static_cast<const char*>(from) + distance;
  for (std::size_t i = 0; i < kBytes; i += line) {
    hwy::Prefetch(bytes + i);
  }
}

/// Prefetches the kBytes that are `distance` bytes behind `from`, and one line of each of the two
/// pages after them: that starts the processor's hardware prefetchers there, which stop at the end
/// of every page.
template <std::size_t kBytes>
HWY_INLINE void prefetch_ahead(const void* from, std::size_t distance) noexcept {
  constexpr std::size_t page = 4096;
  prefetch<kBytes>(from, distance);
  hwy::Prefetch(static_cast<const char*>(from) + distance + page);
  hwy::Prefetch(static_cast<const char*>(from) + distance + 2 * page);
}

/// The distance in storage units (bytes for 4-bit codes) of two codes that are `elements` apart.
template <class Code>
HWY_INLINE constexpr std::ptrdiff_t storage_offset(std::ptrdiff_t elements) noexcept {
  return Code::bits == 4 ? elements / 2 : elements;
}

/// Makes streaming stores visible to other threads before the stores that follow.
HWY_INLINE void finish_stores(const elementwise_args& a) noexcept {
  if (a.stream) {
    hwy::FlushStream();
  }
}

/// sum += products, in the register that holds `sum`. It is assembly, because compilers turn
/// several additions that they see into a tree, whose leaves need more registers than there are.
HWY_INLINE void add_in_place(int_vector& sum, int_vector products) noexcept {
#if defined(__GNUC__)
  __asm__("{vpaddd %1, %0, %0|vpaddd %0, %0, %1}" : "+v"(sum.raw) : "v"(products.raw));
#else
  sum = hn::Add(sum, products);
#endif
}

/// Returns sum + (a0*b0 + a1*b1) + (a2*b2 + a3*b3) in each 32-bit lane, where the sums in brackets
/// saturate at 16 bits. Three instructions: vpmaddubsw, vpmaddwd, vpaddd.
template <class Unsigned, class Signed>
HWY_INLINE int_vector add_pair_products(int_vector sum, Unsigned a, Signed b) noexcept {
  const int_tag di;
  const hn::Repartition<std::int16_t, int_tag> di16;
  const auto pairs = hn::SatWidenMulPairwiseAdd(di16, a, b);
  add_in_place(sum, hn::WidenMulPairwiseAdd(di, pairs, hn::Set(di16, 1)));
  return sum;
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
