// SPDX-License-Identifier: BSD-3-Clause
// Byte lookups: a shuffle looks 4 bits of each index up in a piece of 16 entries, and the upper
// 4 bits choose among the 16 results, pair by pair.

#ifndef DETENT_KERNELS_VECTOR_BYTE_LOOKUP_INL_HPP
#define DETENT_KERNELS_VECTOR_BYTE_LOOKUP_INL_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/byte_lookup.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/byte_lookup-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// A vector of indices, ready for lookups.
template <class D>
struct lookup_index {
  using signed_tag = hn::RebindToSigned<D>;
  using signed_vector = hn::Vec<signed_tag>;

  hn::Vec<D> low;           // bits 0..3
  signed_vector choice[4];  // the sign of an element is bit 4, 5, 6 or 7 of its index

  HWY_INLINE explicit lookup_index(hn::Vec<D> index) noexcept
      : low(hn::And(index, hn::Set(D{}, 15))),
        choice{sign_of<3>(index), sign_of<2>(index), sign_of<1>(index),
               hn::BitCast(signed_tag{}, index)} {}

 private:
  /// Shifts elements of 16 bits: what crosses from one byte to the next does not reach its sign.
  template <int kBits>
  static HWY_INLINE signed_vector sign_of(hn::Vec<D> index) noexcept {
    const hn::RepartitionToWide<D> wide;
    return hn::BitCast(signed_tag{}, hn::ShiftLeft<kBits>(hn::BitCast(wide, index)));
  }
};

/// The table in pieces of 16 entries, each repeated in all blocks of a vector. It is loaded once,
/// into registers as far as there are enough. The compiler could not do this by itself, because a
/// byte that is written might belong to the table.
struct lookup_pieces {
  using tag = hn::ScalableTag<std::uint8_t>;

  hn::Vec<tag> entries[16];

  HWY_INLINE explicit lookup_pieces(const std::uint8_t* table) noexcept {
    DETENT_UNROLL for (std::size_t k = 0; k < 16; ++k) {
      entries[k] = hn::LoadDup128(tag{}, table + 16 * k);
    }
  }
};

/// Looks indices up in the 2^kLevels pieces from piece kFirst on.
template <std::size_t kLevels, std::size_t kFirst, class D>
HWY_INLINE hn::Vec<D> look_up_pieces(const lookup_pieces& pieces,
                                     const lookup_index<D>& index) noexcept {
  const D d;
  if constexpr (kLevels == 0) {
    return hn::TableLookupBytes(hn::ResizeBitCast(d, pieces.entries[kFirst]), index.low);
  } else {
    constexpr std::size_t half = std::size_t{1} << (kLevels - 1);
    const typename lookup_index<D>::signed_tag ds;
    const auto lower = look_up_pieces<kLevels - 1, kFirst>(pieces, index);
    const auto upper = look_up_pieces<kLevels - 1, kFirst + half>(pieces, index);
    return hn::BitCast(d, hn::IfNegativeThenElse(index.choice[kLevels - 1], hn::BitCast(ds, upper),
                                                 hn::BitCast(ds, lower)));
  }
}

/// Looks up as many of the bytes [i, columns) of a row as fill vectors of D, and returns the first
/// one that is left.
template <class D>
HWY_INLINE std::size_t look_up_vectors(D d, const lookup_pieces& pieces, const std::uint8_t* in,
                                       std::uint8_t* out, std::size_t i,
                                       std::size_t columns) noexcept {
  for (; i + hn::MaxLanes(d) <= columns; i += hn::MaxLanes(d)) {
    const lookup_index<D> index(hn::LoadU(d, in + i));
    hn::StoreU(look_up_pieces<4, 0>(pieces, index), d, out + i);
  }
  return i;
}

inline void look_up(const byte_lookup_args& args) noexcept {
  const byte_lookup_args a = args;
  const lookup_pieces pieces(a.table);
  for (std::size_t r = 0; r < a.rows; ++r) {
    const std::uint8_t* in = a.in + r * a.in_stride;
    std::uint8_t* out = a.out + r * a.out_stride;
    std::size_t i = look_up_vectors(lookup_pieces::tag{}, pieces, in, out, 0, a.columns);
    i = look_up_vectors(hn::CappedTag<std::uint8_t, 32>{}, pieces, in, out, i, a.columns);
    i = look_up_vectors(hn::CappedTag<std::uint8_t, 16>{}, pieces, in, out, i, a.columns);
    for (; i < a.columns; ++i) {
      out[i] = a.table[in[i]];
    }
  }
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
