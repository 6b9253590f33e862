// SPDX-License-Identifier: BSD-3-Clause
// The kernel dequantize: codes of 4 to 32 bits to floats.

#ifndef DETENT_KERNELS_VECTOR_DEQUANTIZE_INL_HPP
#define DETENT_KERNELS_VECTOR_DEQUANTIZE_INL_HPP

#include <cstddef>
#include <cstdint>

#include <detent/kernels/elementwise.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/dequantize-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// Unpacks `count` codes of four bits, an even number, to bytes; the low half of a packed byte
/// comes first.
template <class Code>
HWY_INLINE void unpack_nibbles(const std::uint8_t* packed, std::size_t count,
                               std::uint8_t* bytes) noexcept {
  const hn::Repartition<std::uint16_t, float_tag> dp;
  const hn::Rebind<std::uint8_t, decltype(dp)> half;
  const hn::Repartition<std::uint8_t, float_tag> db;
  constexpr std::size_t pairs = 2 * lanes;
  for (std::size_t i = 0; i < count / 2; i += pairs) {
    const std::size_t left = count / 2 - i < pairs ? count / 2 - i : pairs;
    const auto pair = hn::PromoteTo(dp, hn::LoadN(half, packed + i, left));
    auto v = hn::BitCast(db, hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(dp, 0x0F0F)));
    if constexpr (Code::is_signed) {
      v = hn::Sub(hn::Xor(v, hn::Set(db, 8)), hn::Set(db, 8));
    }
    hn::Store(v, db, bytes + 2 * i);
  }
}

/// Loads `count` codes of at least 8 bits, at most a vector, as 32-bit integers.
template <class Q>
HWY_INLINE int_vector load_codes(const Q* q, std::size_t count) noexcept {
  const hn::Rebind<Q, float_tag> dq;
  const auto codes = count == lanes ? hn::LoadU(dq, q) : hn::LoadN(dq, q, count);
  if constexpr (sizeof(Q) == sizeof(std::int32_t)) {
    return codes;
  } else {
    return hn::PromoteTo(int_tag{}, codes);
  }
}

/// Parameters that all elements of a row share.
struct one_parameter {
  int_vector zero_point_;
  float_vector scale_;
  HWY_INLINE int_vector zero_point(std::size_t, std::size_t) const noexcept { return zero_point_; }
  HWY_INLINE float_vector scale(std::size_t, std::size_t) const noexcept { return scale_; }
};

/// Parameters that differ, one of each for every element.
struct parameter_arrays {
  const std::int32_t* zero_point_;
  const float* scale_;
  HWY_INLINE int_vector zero_point(std::size_t i, std::size_t count) const noexcept {
    const int_tag di;
    return count == lanes ? hn::LoadU(di, zero_point_ + i) : hn::LoadN(di, zero_point_ + i, count);
  }
  HWY_INLINE float_vector scale(std::size_t i, std::size_t count) const noexcept {
    const float_tag df;
    return count == lanes ? hn::LoadU(df, scale_ + i) : hn::LoadN(df, scale_ + i, count);
  }
};

/// Returns the real values of `count` codes from number i on, at most a vector.
template <class Q, class Parameters>
HWY_INLINE float_vector dequantize_vector(const Q* q, const Parameters& p, std::size_t i,
                                          std::size_t count) noexcept {
  const int_vector steps = hn::Sub(load_codes(q + i, count), p.zero_point(i, count));
  return hn::Mul(hn::ConvertTo(float_tag{}, steps), p.scale(i, count));
}

/// Dequantizes a row, or a piece of one, whose codes have at least 8 bits.
template <class Q, class Parameters>
HWY_INLINE void dequantize_row(const Q* q, std::size_t columns, const Parameters& p,
                               bool may_stream, float* x) noexcept {
  const float_tag df;
  const bool stream = may_stream && starts_line(x);
  std::size_t i = 0;
  if (stream) {
    for (; i + lanes <= columns; i += lanes) {
      hn::Stream(dequantize_vector(q, p, i, lanes), df, x + i);
    }
  } else {
    for (; i + lanes <= columns; i += lanes) {
      hn::StoreU(dequantize_vector(q, p, i, lanes), df, x + i);
    }
  }
  if (i < columns) {
    hn::StoreN(dequantize_vector(q, p, i, columns - i), df, x + i, columns - i);
  }
}

/// Dequantizes `columns` columns, from `column` on, of `rows` rows from `row` on. `codes` has only
/// these codes, row after row, unpacked to bytes if they have four bits.
template <class Code, class Q>
HWY_INLINE void dequantize_rows(const Q* codes, const elementwise_args& a, std::size_t row,
                                std::size_t rows, std::size_t column, std::size_t columns,
                                float* x) noexcept {
  for (std::size_t r = 0; r < rows; ++r) {
    const auto at = static_cast<std::ptrdiff_t>(row + r);
    const float* scale = a.scale + at * a.parameter_step;
    const std::int32_t* zero_point = a.zero_point + at * a.parameter_step;
    float* to = x + at * a.out_stride + static_cast<std::ptrdiff_t>(column);
    if (a.per_column) {
      dequantize_row(codes + r * columns, columns,
                     parameter_arrays{zero_point + column, scale + column}, a.stream, to);
    } else {
      const one_parameter p{hn::Set(int_tag{}, *zero_point), hn::Set(float_tag{}, *scale)};
      dequantize_row(codes + r * columns, columns, p, a.stream, to);
    }
  }
}

template <class Code>
void dequantize(const typename Code::storage* q, const elementwise_args& a, float* x) noexcept {
  // A piece of a row, or several short rows, are taken at a time: codes of four bits are unpacked
  // to a buffer first.
  constexpr std::size_t piece = 1024;
  alignas(64) std::uint8_t bytes[Code::bits == 4 ? piece : 1];
  const bool are_short = a.columns > 0 && a.columns <= piece / 2 &&
                         a.in_stride == static_cast<std::ptrdiff_t>(a.columns);
  const std::size_t rows_of_piece = are_short ? piece / a.columns : 1;
  for (std::size_t r = 0; r < a.rows; r += rows_of_piece) {
    const std::size_t rows = a.rows - r < rows_of_piece ? a.rows - r : rows_of_piece;
    const typename Code::storage* from =
        q + storage_offset<Code>(static_cast<std::ptrdiff_t>(r) * a.in_stride);
    for (std::size_t c = 0; c < a.columns; c += piece) {
      const std::size_t columns = a.columns - c < piece ? a.columns - c : piece;
      const auto* codes = from + storage_offset<Code>(static_cast<std::ptrdiff_t>(c));
      if (a.read_ahead != 0 && rows * columns == piece) {
        prefetch_ahead<piece * Code::bits / 8>(codes, a.read_ahead);
      }
      if constexpr (Code::bits == 4) {
        using byte = std::conditional_t<Code::is_signed, std::int8_t, std::uint8_t>;
        unpack_nibbles<Code>(codes, rows * columns, bytes);
        dequantize_rows<Code>(reinterpret_cast<const byte*>(bytes), a, r, rows, c, columns, x);
      } else {
        dequantize_rows<Code>(codes, a, r, rows, c, columns, x);
      }
    }
  }
  finish_stores(a);
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
