// SPDX-License-Identifier: BSD-3-Clause
// The kernels quantize and requantize.
//
// How quantize divides at the price of two multiplications. RN rounds to float. The scale is
// s = S * 2^e with a 24-bit integer S. Let
//
//   high = RN(1 / s)
//   low  = RN((1 - high * s) * high)
//   v    = RN(x * high + RN(x * low))         computed instead of
//   w    = RN(x / s)                          the IEEE quotient
//
// v and w may differ. Claim: unless S is close to a multiple of 2^16 (how close is said below),
// they round to the same integer on every 8-bit grid.
//
// Proof. v and w can round differently only if a tie T = k + 1/2 lies between them or equals one of
// them. Then one of the two midpoints m between T and its neighbours among the floats lies between
// x / s and x * high + RN(x * low). Let 2^E <= |T| < 2^(E+1), so that m = T +- 2^(E-24). (T = 1/2
// has a nearer neighbour below; the same argument holds with room to spare.)
//
// First, x / s is not close to m. In units of 2^(e-1), s * T is an integer, and so is x, which is
// as large. In the same units, s * m differs from s * T by S * 2^(E-23); let d be the distance of
// that number from the nearest integer. Then s * m differs from x by at least d, and by at least 1
// if d = 0, because x = s * m would need 25 bits. So |x / s - m| >= d / (2 S), where d is a
// multiple of 2^(E-23).
//
// Second, the error of x * high + RN(x * low) is below 2.5 * 2^(E-23) / S: |1 / s - high| is at
// most 2^-48 * 2^-e, low is that difference with a relative error of 2^-23, and RN(x * low) adds
// another one of 2^-24.
//
// Hence only scales with 0 < d <= 5 * 2^(E-23) can fail, that is, those whose S is within 1 .. 5 of
// a multiple of 2^(23-E). All ties of an 8-bit grid are less than 2^8 steps from the zero point, so
// that E <= 7 and the modulus is 2^16.
//
// Such scales, one in some thousands, and scales whose high or low is not a normal number, are
// divided by. For 16-bit grids the modulus would be 2^8 and one scale in 26 would be hard; there,
// all scales are divided by.

#ifndef DETENT_KERNELS_VECTOR_QUANTIZE_INL_HPP
#define DETENT_KERNELS_VECTOR_QUANTIZE_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/elementwise.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/quantize-inl.hpp>
#include <detent/kernels/vector/for_each_target-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace HWY_NAMESPACE {

/// A number of steps from the zero point that is beyond every grid.
inline constexpr std::int32_t step_limit = 1 << 20;

using word_tag = hn::Repartition<std::int16_t, float_tag>;
using word_vector = hn::Vec<word_tag>;

/// The zero points of a code group, if all elements share one.
class one_zero_point {
 public:
  explicit HWY_INLINE one_zero_point(std::int32_t z) noexcept : z_(z) {}
  HWY_INLINE word_vector words(std::size_t, std::size_t) const noexcept {
    return hn::Set(word_tag{}, static_cast<std::int16_t>(z_));
  }
  HWY_INLINE int_vector vector(std::size_t, std::size_t) const noexcept {
    return hn::Set(int_tag{}, z_);
  }

 private:
  std::int32_t z_;
};

/// Zero points that differ, one for each element, as 32-bit integers; readable up to the next
/// multiple of group_size.
class zero_point_array {
 public:
  explicit HWY_INLINE zero_point_array(const std::int32_t* z) noexcept : z_(z) {}
  HWY_INLINE int_vector vector(std::size_t i, std::size_t k) const noexcept {
    return hn::LoadU(int_tag{}, z_ + i + k * lanes);
  }
  /// The zero points of vectors k and k + 1 as 16-bit words, in the order of code_writer.
  HWY_INLINE word_vector words(std::size_t i, std::size_t k) const noexcept {
    return hn::ReorderDemote2To(word_tag{}, vector(i, k), vector(i, k + 1));
  }

 private:
  const std::int32_t* z_;
};

/// Zero points that differ, for codes of 8 bits: words that zero_point_array::words() made before.
class zero_point_words {
 public:
  explicit HWY_INLINE zero_point_words(const std::int16_t* z) noexcept : z_(z) {}
  HWY_INLINE word_vector words(std::size_t i, std::size_t k) const noexcept {
    return hn::LoadU(word_tag{}, z_ + i + k * lanes);
  }

 private:
  const std::int16_t* z_;
};

/// Adds zero points to the steps of a code group, saturates the sums to a grid and stores them as
/// codes of 8 or 4 bits. Packing works within 128-bit blocks, so the blocks are put in order at the
/// end.
///
/// A step is INT32_MIN if it is NaN's or no int32_t: may_overflow() says whether there may be such
/// steps, which the caller then replaces.
template <class Code>
class code_writer {
  using storage = typename Code::storage;
  static constexpr bool is_nibble = Code::bits == 4;
  using byte = std::conditional_t<Code::is_signed, std::int8_t, std::uint8_t>;
  using byte_tag = hn::Repartition<byte, float_tag>;

 public:
  HWY_INLINE code_writer(std::int32_t qmin, std::int32_t qmax) noexcept
      : qmin_(hn::Set(byte_tag{}, static_cast<byte>(qmin))),
        qmax_(hn::Set(byte_tag{}, static_cast<byte>(qmax))),
        is_narrow_(qmin != std::numeric_limits<byte>::min() ||
                   qmax != std::numeric_limits<byte>::max()) {}

  struct steps {
    word_vector w0, w1;
    HWY_INLINE steps(int_vector n0, int_vector n1, int_vector n2, int_vector n3) noexcept
        : w0(hn::ReorderDemote2To(word_tag{}, n0, n1)),
          w1(hn::ReorderDemote2To(word_tag{}, n2, n3)) {}
    /// The lowest of several steps in each lane, for may_overflow().
    HWY_INLINE word_vector lowest() const noexcept { return hn::Min(w0, w1); }
    HWY_INLINE static bool may_overflow(word_vector lowest) noexcept {
      const word_tag dw;
      return !hn::AllFalse(dw, hn::Eq(lowest, hn::Set(dw, -32768)));
    }
  };

  template <class ZeroPoints>
  HWY_INLINE void store(const steps& n, const ZeroPoints& z, std::size_t i, bool stream,
                        storage* q) const noexcept {
    const word_vector w0 = hn::SaturatedAdd(n.w0, z.words(i, 0));
    const word_vector w1 = hn::SaturatedAdd(n.w1, z.words(i, 2));
    const byte_tag db;
    const hn::Repartition<std::uint32_t, float_tag> d32;
    const auto bytes =
        hn::BitCast(db, hn::TableLookupLanes(hn::BitCast(d32, hn::ReorderDemote2To(db, w0, w1)),
                                             hn::SetTableIndices(d32, block_order)));
    auto codes = bytes;
    if (is_narrow_) {  // full grids are saturated by now
      codes = hn::Min(hn::Max(bytes, qmin_), qmax_);
    }
    if constexpr (is_nibble) {
      const hn::Repartition<std::uint16_t, float_tag> dp;
      const hn::Rebind<std::uint8_t, decltype(dp)> half;
      const auto pair = hn::BitCast(dp, codes);
      const auto nibbles = hn::Or(hn::And(pair, hn::Set(dp, 0x0F)),
                                  hn::And(hn::ShiftRight<4>(pair), hn::Set(dp, 0xF0)));
      store_bytes(hn::TruncateTo(half, nibbles), half, stream, q);
    } else {
      store_bytes(codes, db, stream, q);
    }
  }

 private:
  static constexpr std::uint32_t order(std::size_t i) noexcept {
    return static_cast<std::uint32_t>(i % (lanes / 4) * 4 + i / (lanes / 4));
  }
  alignas(64) static constexpr std::uint32_t block_order[16] = {
      order(0), order(1), order(2),  order(3),  order(4),  order(5),  order(6),  order(7),
      order(8), order(9), order(10), order(11), order(12), order(13), order(14), order(15)};

  hn::Vec<byte_tag> qmin_, qmax_;
  bool is_narrow_;
};

/// code_writer for codes of 16 bits.
template <class Code>
requires(Code::bits == 16) class code_writer<Code> {
  using storage = typename Code::storage;
  using storage_tag = hn::Repartition<storage, float_tag>;

 public:
  HWY_INLINE code_writer(std::int32_t qmin, std::int32_t qmax) noexcept
      : qmin_(hn::Set(int_tag{}, qmin)), qmax_(hn::Set(int_tag{}, qmax)) {}

  struct steps {
    int_vector n0, n1, n2, n3;
    HWY_INLINE int_vector lowest() const noexcept {
      return hn::Min(hn::Min(n0, n1), hn::Min(n2, n3));
    }
    HWY_INLINE static bool may_overflow(int_vector lowest) noexcept {
      const int_tag di;
      return !hn::AllFalse(di, hn::Eq(lowest, hn::Set(di, hwy::LowestValue<std::int32_t>())));
    }
  };

  template <class ZeroPoints>
  HWY_INLINE void store(const steps& n, const ZeroPoints& z, std::size_t i, bool stream,
                        storage* q) const noexcept {
    const storage_tag d;
    const auto low =
        hn::OrderedDemote2To(d, grid(n.n0, z.vector(i, 0)), grid(n.n1, z.vector(i, 1)));
    const auto high =
        hn::OrderedDemote2To(d, grid(n.n2, z.vector(i, 2)), grid(n.n3, z.vector(i, 3)));
    store_bytes(low, d, stream, q);
    store_bytes(high, d, stream, q + 2 * lanes);
  }

 private:
  /// Bounds the steps first: INT32_MAX and INT32_MIN plus a zero point would wrap.
  HWY_INLINE int_vector grid(int_vector n, int_vector z) const noexcept {
    const int_tag di;
    const int_vector bounded =
        hn::Min(hn::Max(n, hn::Set(di, -step_limit)), hn::Set(di, step_limit));
    return hn::Min(hn::Max(hn::Add(bounded, z), qmin_), qmax_);
  }

  int_vector qmin_, qmax_;
};

/// Divides by a scale that the proof at the top of this file covers: multiplies by its reciprocal.
struct product_divisor {
  float_vector high, low;  // parts of 1 / s
  HWY_INLINE float_vector operator()(float_vector x) const noexcept {
    return hn::MulAdd(x, high, hn::Mul(x, low));
  }
};

struct quotient_divisor {
  float_vector scale;
  HWY_INLINE float_vector operator()(float_vector x) const noexcept { return hn::Div(x, scale); }
};

struct multiplier {
  float_vector factor;
  HWY_INLINE float_vector operator()(float_vector x) const noexcept { return hn::Mul(x, factor); }
};

/// One divisor for all vectors.
template <class Divisor>
struct one_divisor {
  Divisor divisor;
  HWY_INLINE Divisor operator()(std::size_t) const noexcept { return divisor; }
};

/// `count` rounded up to a multiple of group_size.
HWY_INLINE constexpr std::size_t padded(std::size_t count) noexcept {
  return (count + group_size - 1) / group_size * group_size;
}

/// The reciprocals of up to kCapacity scales, computed several at a time.
template <std::size_t kCapacity>
class divisor_array {
 public:
  /// Takes `count` scales that are `step` apart. True if the proof at the top of this file covers
  /// all of them. Elements behind them, up to `end`, are set to harmless values.
  HWY_INLINE bool assign(const float* scale, std::ptrdiff_t step, std::size_t count,
                         std::size_t end) noexcept {
    const float_tag df;
    const float_vector one = hn::Set(df, 1.0F);
    bool all = true;
    for (std::size_t i = 0; i < end; i += lanes) {
      const std::size_t left = i > count ? 0 : count - i < lanes ? count - i : lanes;
      all &= assign(df, i,
                    step == 1 ? hn::LoadNOr(one, df, scale + i, left)
                              : gather(scale + static_cast<std::ptrdiff_t>(i) * step, step, left));
    }
    return all;
  }

  /// Takes a vector of scales as numbers i and following. True if the proof covers all of them.
  template <class D>
  HWY_INLINE bool assign(D d, std::size_t i, hn::Vec<D> s) noexcept {
    const hn::RebindToSigned<D> di;
    const auto one = hn::Set(d, 1.0F);
    const auto high = hn::Div(one, s);
    hn::StoreU(high, d, high_ + i);
    hn::StoreU(hn::Mul(hn::NegMulAdd(high, s, one), high), d, low_ + i);
    // 2^-126 <= s <= 2^77: high and low are normal numbers.
    const auto normal = hn::And(hn::Ge(s, hn::Set(d, 0x1p-126F)), hn::Le(s, hn::Set(d, 0x1p+77F)));
    const auto remainder = hn::And(hn::BitCast(di, s), hn::Set(di, modulus - 1));
    const auto beside = hn::And(hn::Add(remainder, hn::Set(di, 5)), hn::Set(di, modulus - 1));
    const auto far = hn::Or(hn::Eq(remainder, hn::Zero(di)), hn::Gt(beside, hn::Set(di, 10)));
    return hn::AllTrue(d, hn::And(normal, hn::RebindMask(d, far)));
  }

  /// The divisor of element i, in all lanes.
  HWY_INLINE product_divisor one(std::size_t i) const noexcept {
    const float_tag df;
    return {hn::Set(df, high_[i]), hn::Set(df, low_[i])};
  }
  /// The divisors of the elements from i on, one in each lane.
  HWY_INLINE product_divisor lanes_at(std::size_t i) const noexcept {
    const float_tag df;
    return {hn::LoadU(df, high_ + i), hn::LoadU(df, low_ + i)};
  }

 private:
  HWY_INLINE static float_vector gather(const float* scale, std::ptrdiff_t step,
                                        std::size_t count) noexcept {
    alignas(64) float some[lanes];
    for (std::size_t k = 0; k < lanes; ++k) {
      some[k] = k < count ? scale[static_cast<std::ptrdiff_t>(k) * step] : 1.0F;
    }
    return hn::Load(float_tag{}, some);
  }

  static constexpr std::int32_t modulus = 1 << 16;
  alignas(64) float high_[padded(kCapacity)];
  alignas(64) float low_[padded(kCapacity)];
};

template <class Array>
struct product_lanes {
  const Array& array;
  HWY_INLINE product_divisor operator()(std::size_t i) const noexcept { return array.lanes_at(i); }
};
struct quotient_lanes {
  const float* scale;
  HWY_INLINE quotient_divisor operator()(std::size_t i) const noexcept {
    return {hn::LoadU(float_tag{}, scale + i)};
  }
};
struct multiplier_lanes {
  const float* factor;
  HWY_INLINE multiplier operator()(std::size_t i) const noexcept {
    return {hn::LoadU(float_tag{}, factor + i)};
  }
};

/// A source loads the elements of a row as the floats that are divided. Floats are loaded as they
/// are.
struct float_source {
  using element = float;
  HWY_INLINE float_vector load(const float* x, std::size_t) const noexcept {
    return hn::LoadU(float_tag{}, x);
  }
};
/// A source of 32-bit sums, to which one bias is added modulo 2^32.
struct biased_source {
  using element = std::int32_t;
  int_vector bias;
  HWY_INLINE float_vector load(const std::int32_t* x, std::size_t) const noexcept {
    return hn::ConvertTo(float_tag{}, hn::Add(hn::LoadU(int_tag{}, x), bias));
  }
};
/// A source of 32-bit sums, to which a bias of each column is added modulo 2^32. The biases are
/// readable up to the next multiple of group_size.
struct column_biased_source {
  using element = std::int32_t;
  const std::int32_t* bias;
  HWY_INLINE float_vector load(const std::int32_t* x, std::size_t i) const noexcept {
    const int_tag di;
    return hn::ConvertTo(float_tag{}, hn::Add(hn::LoadU(di, x), hn::LoadU(di, bias + i)));
  }
};

/// Replaces steps that are INT32_MIN: 0 for NaN, beyond the grid on the side of x otherwise.
HWY_INLINE int_vector replace_overflow(int_vector n, float_vector x) noexcept {
  const float_tag df;
  const int_tag di;
  const auto is_large = hn::RebindMask(di, hn::Gt(x, hn::Zero(df)));
  const auto is_nan = hn::RebindMask(di, hn::IsNaN(x));
  const int_vector replaced =
      hn::IfThenElse(is_large, hn::Set(di, step_limit), hn::IfThenZeroElse(is_nan, n));
  return hn::IfThenElse(hn::Eq(n, hn::Set(di, hwy::LowestValue<std::int32_t>())), replaced, n);
}

/// The four vectors of a code group, whose first element is number i of its row, and the nearest
/// integers to their quotients.
template <class Source, class Divisors>
struct group_steps {
  float_vector x[4];
  int_vector n[4];

  HWY_INLINE group_steps(const typename Source::element* from, const Source& source,
                         const Divisors& divisors, std::size_t i) noexcept {
    DETENT_UNROLL for (std::size_t k = 0; k < 4; ++k) {
      x[k] = source.load(from + k * lanes, i + k * lanes);
      n[k] = nearest(divisors(i + k * lanes)(x[k]));
    }
  }
};

/// Quantizes one code group, whose first element is number i of its row.
template <class Code, class Source, class Divisors, class ZeroPoints>
HWY_INLINE void quantize_group(const typename Source::element* x, const Source& source,
                               const Divisors& divisors, const ZeroPoints& z,
                               const code_writer<Code>& writer, std::size_t i, bool stream,
                               typename Code::storage* q) noexcept {
  using steps = typename code_writer<Code>::steps;
  const group_steps<Source, Divisors> g(x, source, divisors, i);
  steps n{g.n[0], g.n[1], g.n[2], g.n[3]};
  if (HWY_UNLIKELY(steps::may_overflow(n.lowest()))) {
    n = steps{replace_overflow(g.n[0], g.x[0]), replace_overflow(g.n[1], g.x[1]),
              replace_overflow(g.n[2], g.x[2]), replace_overflow(g.n[3], g.x[3])};
  }
  writer.store(n, z, i, stream, q);
}

/// Quantizes the elements of a row from number i on, which are no whole code group: they go through
/// buffers.
template <class Code, class Source, class Divisors, class ZeroPoints>
HWY_NOINLINE void quantize_last(const typename Source::element* x, const Source& source,
                                const Divisors& divisors, const ZeroPoints& z,
                                const code_writer<Code>& writer, std::size_t i, std::size_t columns,
                                typename Code::storage* q) noexcept {
  using element = typename Source::element;
  using storage = typename Code::storage;
  alignas(64) element last[group_size];
  alignas(64) storage codes[group_size];
  const std::size_t left = columns - i;
  for (std::size_t k = 0; k < group_size; ++k) {
    last[k] = k < left ? x[i + k] : element{0};
  }
  quantize_group<Code>(last, source, divisors, z, writer, i, false, codes);
  std::memcpy(q + storage_offset<Code>(static_cast<std::ptrdiff_t>(i)), codes,
              static_cast<std::size_t>(storage_offset<Code>(static_cast<std::ptrdiff_t>(left))) *
                  sizeof(storage));
}

/// Quantizes a row, or a piece of one.
template <class Code, class Source, class Divisors, class ZeroPoints>
HWY_INLINE void quantize_row(const typename Source::element* x, const Source& source,
                             const Divisors& divisors, const ZeroPoints& z,
                             const code_writer<Code>& writer, std::size_t columns,
                             const elementwise_args& a, typename Code::storage* q) noexcept {
  const bool stream = a.stream && starts_line(q);
  std::size_t i = 0;
  for (; i + group_size <= columns; i += group_size) {
    if (a.read_ahead != 0) {
      prefetch_ahead<group_size * sizeof(typename Source::element)>(x + i, a.read_ahead);
    }
    quantize_group<Code>(x + i, source, divisors, z, writer, i, stream,
                         q + storage_offset<Code>(static_cast<std::ptrdiff_t>(i)));
  }
  if (i == columns) {
    return;
  }
  if constexpr (std::is_same_v<ZeroPoints, one_zero_point>) {
    if (columns >= group_size) {  // some are computed again
      i = columns - group_size;
      quantize_group<Code>(x + i, source, divisors, z, writer, i, false,
                           q + storage_offset<Code>(static_cast<std::ptrdiff_t>(i)));
      return;
    }
  }
  quantize_last<Code>(x, source, divisors, z, writer, i, columns, q);
}

/// Rows, and columns, whose parameters are computed at a time.
inline constexpr std::size_t parameter_rows = 64;
inline constexpr std::size_t parameter_columns = 1024;

/// Copies `count` parameters, zeros if `from` is null, and fills the copy up to the next multiple
/// of group_size with harmless values: 1 for scales, 0 for integers.
template <class T>
HWY_INLINE void copy_padded(const T* from, std::size_t count, T* to) noexcept {
  const std::size_t copied = from == nullptr ? 0 : count;
  if (copied > 0) {
    std::memcpy(to, from, copied * sizeof(T));
  }
  for (std::size_t i = copied; i < padded(count); ++i) {
    to[i] = std::is_same_v<T, float> ? T{1} : T{0};
  }
}

/// Divisors and zero points of short rows that are dense and therefore quantized as one long row:
/// they are found by the number of the element. Each row has 2^shift elements: one vector of them
/// if kIsVector, otherwise more.
template <bool kIsVector>
struct short_rows {
  const divisor_array<parameter_rows>& divisors;
  const std::int32_t* zero_points;  // parameter_rows of them
  int shift;

  HWY_INLINE product_divisor operator()(std::size_t i) const noexcept {
    return divisors.one(i >> shift);
  }
  HWY_INLINE word_vector words(std::size_t i, std::size_t k) const noexcept {
    if constexpr (kIsVector) {
      const int_tag di;
      return hn::ReorderDemote2To(word_tag{}, hn::Set(di, zero_points[(i + k * lanes) >> shift]),
                                  hn::Set(di, zero_points[(i + (k + 1) * lanes) >> shift]));
    } else {
      return hn::Set(word_tag{}, static_cast<std::int16_t>(zero_points[(i + k * lanes) >> shift]));
    }
  }
};
inline constexpr std::size_t short_row = 512;

/// Quantizes with one scale for each row.
template <class Code>
void quantize_rows(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a.qmin, a.qmax);
  divisor_array<parameter_rows> divisors;
  const bool one_scale = a.parameter_step == 0;
  const bool are_short = !one_scale && a.columns >= lanes && a.columns <= short_row &&
                         (a.columns & (a.columns - 1)) == 0 &&
                         a.in_stride == static_cast<std::ptrdiff_t>(a.columns) &&
                         a.out_stride == a.in_stride;
  const std::size_t step = one_scale ? a.rows : parameter_rows;
  for (std::size_t first = 0; first < a.rows; first += step) {
    const std::size_t rows = a.rows - first < step ? a.rows - first : step;
    const auto start = static_cast<std::ptrdiff_t>(first);
    const float* scale = a.scale + start * a.parameter_step;
    const std::int32_t* zero_point = a.zero_point + start * a.parameter_step;
    const std::size_t made = one_scale ? 1 : rows;
    const bool regular = Code::bits != 16 && divisors.assign(scale, a.parameter_step, made, made);
    if constexpr (Code::bits != 16) {
      if (regular && are_short) {
        std::int32_t copies[parameter_rows];
        const std::int32_t* zero_points = zero_point;
        if (rows != parameter_rows || a.parameter_step != 1) {
          for (std::size_t r = 0; r < parameter_rows; ++r) {
            copies[r] =
                r < rows ? zero_point[static_cast<std::ptrdiff_t>(r) * a.parameter_step] : 0;
          }
          zero_points = copies;
        }
        const auto quantize_all = [&](const auto& rows_of_group) HWY_ATTR {
          quantize_row<Code>(x + start * a.in_stride, float_source{}, rows_of_group, rows_of_group,
                             writer, rows * a.columns, a,
                             q + storage_offset<Code>(start * a.out_stride));
        };
        int shift = 0;
        while (std::size_t{1} << shift != a.columns) {
          ++shift;
        }
        if (a.columns == lanes) {
          quantize_all(short_rows<true>{divisors, zero_points, shift});
        } else {
          quantize_all(short_rows<false>{divisors, zero_points, shift});
        }
        continue;
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const auto row = static_cast<std::ptrdiff_t>(first + r);
      const float* from = x + row * a.in_stride;
      typename Code::storage* to = q + storage_offset<Code>(row * a.out_stride);
      const std::ptrdiff_t parameter = static_cast<std::ptrdiff_t>(r) * a.parameter_step;
      const one_zero_point z(zero_point[parameter]);
      if (regular) {
        const product_divisor d = divisors.one(one_scale ? 0 : r);
        quantize_row<Code>(from, float_source{}, one_divisor<product_divisor>{d}, z, writer,
                           a.columns, a, to);
      } else {
        const quotient_divisor d{hn::Set(float_tag{}, scale[parameter])};
        quantize_row<Code>(from, float_source{}, one_divisor<quotient_divisor>{d}, z, writer,
                           a.columns, a, to);
      }
    }
  }
}

/// The zero points of columns, in the form that the codes need.
template <class Code>
class zero_point_columns {
 public:
  HWY_INLINE void assign(const std::int32_t* z, std::size_t count) noexcept {
    copy_padded(z, count, wide_);
    if constexpr (Code::bits != 16) {
      const zero_point_array all(wide_);
      for (std::size_t i = 0; i < padded(count); i += 2 * lanes) {
        hn::StoreU(all.words(i, 0), word_tag{}, words_ + i);
      }
    }
  }
  HWY_INLINE auto get() const noexcept {
    if constexpr (Code::bits == 16) {
      return zero_point_array(wide_);
    } else {
      return zero_point_words(words_);
    }
  }

 private:
  alignas(64) std::int32_t wide_[parameter_columns];
  alignas(64) std::int16_t words_[parameter_columns];
};

/// Quantizes with a scale for each column. If parameter_step is 0, all rows have the same scales,
/// whose reciprocals are computed once.
template <class Code>
void quantize_columns(const float* x, const elementwise_args& a,
                      typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a.qmin, a.qmax);
  divisor_array<parameter_columns> divisors;
  zero_point_columns<Code> zero_points;
  alignas(64) float scales[parameter_columns];
  for (std::size_t c = 0; c < a.columns; c += parameter_columns) {
    const std::size_t columns =
        a.columns - c < parameter_columns ? a.columns - c : parameter_columns;
    const auto column = static_cast<std::ptrdiff_t>(c);
    bool regular = false;
    for (std::size_t r = 0; r < a.rows; ++r) {
      const auto row = static_cast<std::ptrdiff_t>(r);
      const float* from = x + row * a.in_stride + column;
      typename Code::storage* to = q + storage_offset<Code>(row * a.out_stride + column);
      if (r == 0 || a.parameter_step != 0) {
        const std::ptrdiff_t parameter = row * a.parameter_step + column;
        zero_points.assign(a.zero_point + parameter, columns);
        // For a single row, dividing takes less time than computing reciprocals.
        regular = Code::bits != 16 && a.parameter_step == 0 && a.rows > 1 &&
                  divisors.assign(a.scale + parameter, 1, columns, padded(columns));
        if (!regular) {
          copy_padded(a.scale + parameter, columns, scales);
        }
      }
      if (regular) {
        quantize_row<Code>(from, float_source{}, product_lanes<decltype(divisors)>{divisors},
                           zero_points.get(), writer, columns, a, to);
      } else {
        quantize_row<Code>(from, float_source{}, quotient_lanes{scales}, zero_points.get(), writer,
                           columns, a, to);
      }
    }
  }
}

template <class Code>
void quantize(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept {
  if (a.per_column) {
    quantize_columns<Code>(x, a, q);
  } else {
    quantize_rows<Code>(x, a, q);
  }
  finish_stores(a);
}

template <class Code>
void requantize_rows(const std::int32_t* acc, const elementwise_args& a,
                     typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a.qmin, a.qmax);
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const std::ptrdiff_t parameter = row * a.parameter_step;
    const std::int32_t bias = a.bias == nullptr ? 0 : a.bias[parameter];
    const multiplier m{hn::Set(float_tag{}, a.scale[parameter])};
    quantize_row<Code>(acc + row * a.in_stride, biased_source{hn::Set(int_tag{}, bias)},
                       one_divisor<multiplier>{m}, one_zero_point(a.zero_point[parameter]), writer,
                       a.columns, a, q + row * a.out_stride);
  }
}

template <class Code>
void requantize_columns(const std::int32_t* acc, const elementwise_args& a,
                        typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a.qmin, a.qmax);
  alignas(64) float factors[parameter_columns];
  zero_point_columns<Code> zero_points;
  alignas(64) std::int32_t biases[parameter_columns];
  for (std::size_t c = 0; c < a.columns; c += parameter_columns) {
    const std::size_t columns =
        a.columns - c < parameter_columns ? a.columns - c : parameter_columns;
    const auto column = static_cast<std::ptrdiff_t>(c);
    for (std::size_t r = 0; r < a.rows; ++r) {
      const auto row = static_cast<std::ptrdiff_t>(r);
      if (r == 0 || a.parameter_step != 0) {
        const std::ptrdiff_t parameter = row * a.parameter_step + column;
        zero_points.assign(a.zero_point + parameter, columns);
        copy_padded(a.bias == nullptr ? nullptr : a.bias + parameter, columns, biases);
        copy_padded(a.scale + parameter, columns, factors);
      }
      quantize_row<Code>(acc + row * a.in_stride + column, column_biased_source{biases},
                         multiplier_lanes{factors}, zero_points.get(), writer, columns, a,
                         q + row * a.out_stride + column);
    }
  }
}

template <class Code>
void requantize(const std::int32_t* acc, const elementwise_args& a,
                typename Code::storage* q) noexcept {
  if (a.per_column) {
    requantize_columns<Code>(acc, a, q);
  } else {
    requantize_rows<Code>(acc, a, q);
  }
  finish_stores(a);
}

}  // namespace HWY_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
