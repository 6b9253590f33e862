// SPDX-License-Identifier: BSD-3-Clause
// From four vectors of 32-bit sums to 64 bytes on an integer grid, on vectors of 16 lanes: six
// instructions for each vector, where column_epilogue, which does one vector at a time, has ten.

#ifndef DETENT_KERNELS_VECTOR_BYTE_STEPS_INL_HPP
#define DETENT_KERNELS_VECTOR_BYTE_STEPS_INL_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/byte_steps-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

#if HWY_TARGET != HWY_AVX2

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// The elements of an output of bytes.
template <integer_output kOutput>
using byte_of = std::conditional_t<kOutput == integer_output::u8, std::uint8_t, std::int8_t>;

/// Whether an output has bytes on an integer grid.
template <integer_output kOutput>
inline constexpr bool is_bytes = kOutput == integer_output::u8 || kOutput == integer_output::s8;

/// The arithmetic from four vectors of sums to 64 bytes on an integer grid.
template <class Q>
class byte_steps {
  using byte_tag = hn::Repartition<Q, float_tag>;
  using word_tag = hn::Repartition<std::int16_t, float_tag>;

 public:
  explicit HWY_INLINE byte_steps(const integer_epilogue& e) noexcept
      : zero_point_(hn::Set(word_tag{}, static_cast<std::int16_t>(e.zero_point))),
        qmin_(hn::Set(byte_tag{}, static_cast<Q>(e.qmin))),
        qmax_(hn::Set(byte_tag{}, static_cast<Q>(e.qmax))) {}

  /// Returns steps from the zero point. Steps below -2^31 become -2^31; those above 2^15, which is
  /// beyond every grid of bytes, become 2^15.
  HWY_INLINE int_vector steps(int_vector sum, float_vector multiplier) const noexcept {
    const float_tag df;
    const float_vector real = hn::Mul(hn::ConvertTo(df, sum), multiplier);
    return nearest(hn::Min(real, hn::Set(df, 32768.0F)));
  }

  /// Stores the values of four vectors of one row at q.
  HWY_INLINE void store(const int_vector (&steps)[4], Q* q) const noexcept {
    hn::StoreU(values(steps), byte_tag{}, q);
  }
  /// Stores the first `count` values of two vectors of a row at q, and those of two vectors of
  /// another row at next.
  HWY_INLINE void store(const int_vector (&steps)[4], std::size_t count, Q* q,
                        Q* next) const noexcept {
    const hn::Half<byte_tag> half;
    const auto both = values(steps);
    if (count == hn::Lanes(half)) {
      hn::StoreU(hn::LowerHalf(half, both), half, q);
      hn::StoreU(hn::UpperHalf(half, both), half, next);
    } else {
      hn::StoreN(hn::LowerHalf(half, both), half, q, count);
      hn::StoreN(hn::UpperHalf(half, both), half, next, count);
    }
  }

 private:
  HWY_INLINE hn::Vec<byte_tag> values(const int_vector (&steps)[4]) const noexcept {
    const word_tag dw;
    const byte_tag db;
    const hn::Repartition<std::uint32_t, float_tag> d32;
    const auto low = hn::SaturatedAdd(hn::ReorderDemote2To(dw, steps[0], steps[1]), zero_point_);
    const auto high = hn::SaturatedAdd(hn::ReorderDemote2To(dw, steps[2], steps[3]), zero_point_);
    // Packing works within 128-bit blocks, so the blocks are put in order at the end.
    alignas(64) static constexpr std::uint32_t order[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                            2, 6, 10, 14, 3, 7, 11, 15};
    const auto bytes =
        hn::BitCast(db, hn::TableLookupLanes(hn::BitCast(d32, hn::ReorderDemote2To(db, low, high)),
                                             hn::SetTableIndices(d32, order)));
    return hn::Min(hn::Max(bytes, qmin_), qmax_);
  }

  hn::Vec<word_tag> zero_point_;
  hn::Vec<byte_tag> qmin_, qmax_;
};

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#endif  // HWY_TARGET

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
