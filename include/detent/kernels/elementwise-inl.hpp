// SPDX-License-Identifier: BSD-3-Clause
// Elementwise kernels, re-included once per Highway target by kernels/dispatch.hpp, which has
// defined
//
//   DETENT_PASS_NEAREST(v)   v rounded half to even; INT32_MIN where that is no int32_t or v is NaN
//
// Quantizing by division, at the price of two multiplications. Let s = S * 2^e with a 24-bit
// integer S, high = RN(1 / s), low = RN((1 - high * s) * high), and v = RN(x * high + RN(x * low)),
// where RN rounds to float. v and the IEEE quotient w = RN(x / s) may differ, but they round to the
// same integer:
//
// They do not only if a tie T = k + 1/2 lies between them or is one of them, that is, if one of the
// two midpoints m between T and its neighbours among the floats lies between x / s and
// x * high + RN(x * low). Let 2^E <= |T| < 2^(E+1), so that m = T +- 2^(E-24) (T = 1/2 has a nearer
// neighbour below; the same argument holds with room to spare). In units of 2^(e-1), s * T is an
// integer, and so is x, which is as large; s * m is away from an integer by the distance d of
// S * 2^(E-23) from the nearest integer, or by 1 if d = 0, because then x = s * m would need 25
// bits. So |x / s - m| >= d / (2 S), where d is a multiple of 2^(E-23). On the other side, the
// error of x * high + RN(x * low) is below 2.5 * 2^(E-23) / S: 1 / s - high is at most 2^-48 *
// 2^-e, low is that with a relative error of 2^-23, and RN(x * low) adds another of 2^-24. Hence
// only scales with 0 < d <= 5 * 2^(E-23) can fail, that is, those with S within 1 .. 5 of a
// multiple of 2^(23-E). All ties of an 8-bit grid are below 2^8 steps from the zero point, so that
// is 2^16. Such scales, one in some thousands, and those whose high or low is not a normal number
// are divided by. For 16-bit grids the modulus would be 2^8, and one scale in 26 hard: there, all
// are divided by.

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
/// low bits.
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
  /// Rounds what clamp() returned for a number.
  HWY_INLINE int_vector round(float_vector clamped) const noexcept {
    const float_vector biased = hn::Add(clamped, hn::Set(float_tag{}, rounding_bias));
    return hn::Add(hn::BitCast(int_tag{}, biased), zero_point_minus_bias);
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

/// Four vectors become one vector of 8-bit codes.
inline constexpr std::size_t group_size = 4 * lanes;

/// Beyond every grid, in steps from the zero point.
inline constexpr float step_limit = 1048576.0F;

using word_tag = hn::Repartition<std::int16_t, float_tag>;
using word_vector = hn::Vec<word_tag>;

template <class D, class T>
HWY_INLINE void store_bytes(hn::Vec<D> v, D d, bool stream, T* to) noexcept {
  if (stream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

/// Zero points of a group's vectors, which all elements share.
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

/// Zero points that differ; readable up to the next multiple of group_size.
class zero_point_array {
 public:
  explicit HWY_INLINE zero_point_array(const std::int32_t* z) noexcept : z_(z) {}
  HWY_INLINE int_vector vector(std::size_t i, std::size_t k) const noexcept {
    return hn::LoadU(int_tag{}, z_ + i + k * lanes);
  }
  /// Those of vectors k and k + 1, in the order of code_writer.
  HWY_INLINE word_vector words(std::size_t i, std::size_t k) const noexcept {
    return hn::ReorderDemote2To(word_tag{}, vector(i, k), vector(i, k + 1));
  }

 private:
  const std::int32_t* z_;
};

/// Adds zero points to a group of steps, saturates to a grid and stores codes of 8 or 4 bits.
/// Packing works within blocks of 128 bits, so the blocks are put in order at the end.
template <class Code>
class code_writer {
  using storage = typename Code::storage;
  static constexpr bool is_nibble = Code::bits == 4;
  using byte = std::conditional_t<Code::is_signed, std::int8_t, std::uint8_t>;
  using byte_tag = hn::Repartition<byte, float_tag>;

 public:
  HWY_INLINE code_writer(const elementwise_args& a) noexcept
      : qmin_(hn::Set(byte_tag{}, static_cast<byte>(a.qmin))),
        qmax_(hn::Set(byte_tag{}, static_cast<byte>(a.qmax))),
        stream_(a.stream) {}

  template <class ZeroPoints>
  HWY_INLINE void store(int_vector n0, int_vector n1, int_vector n2, int_vector n3,
                        const ZeroPoints& z, std::size_t i, storage* q) const noexcept {
    const word_tag dw;
    const word_vector w0 = hn::SaturatedAdd(hn::ReorderDemote2To(dw, n0, n1), z.words(i, 0));
    const word_vector w1 = hn::SaturatedAdd(hn::ReorderDemote2To(dw, n2, n3), z.words(i, 2));
    const byte_tag db;
    const hn::Repartition<std::uint32_t, float_tag> d32;
    const auto bytes =
        hn::BitCast(db, hn::TableLookupLanes(hn::BitCast(d32, hn::ReorderDemote2To(db, w0, w1)),
                                             hn::SetTableIndices(d32, block_order)));
    const auto codes = hn::Min(hn::Max(bytes, qmin_), qmax_);
    if constexpr (is_nibble) {
      const hn::Repartition<std::uint16_t, float_tag> dp;
      const hn::Rebind<std::uint8_t, decltype(dp)> half;
      const auto pair = hn::BitCast(dp, codes);
      const auto nibbles = hn::Or(hn::And(pair, hn::Set(dp, 0x0F)),
                                  hn::And(hn::ShiftRight<4>(pair), hn::Set(dp, 0xF0)));
      store_bytes(hn::TruncateTo(half, nibbles), half, stream_, q);
    } else {
      store_bytes(codes, db, stream_, q);
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
  bool stream_;
};

/// The same for 16 bits.
template <class Code>
requires(Code::bits == 16) class code_writer<Code> {
  using storage = typename Code::storage;
  using storage_tag = hn::Repartition<storage, float_tag>;

 public:
  HWY_INLINE code_writer(const elementwise_args& a) noexcept
      : qmin_(hn::Set(int_tag{}, a.qmin)), qmax_(hn::Set(int_tag{}, a.qmax)), stream_(a.stream) {}

  template <class ZeroPoints>
  HWY_INLINE void store(int_vector n0, int_vector n1, int_vector n2, int_vector n3,
                        const ZeroPoints& z, std::size_t i, storage* q) const noexcept {
    const storage_tag d;
    const auto low = hn::OrderedDemote2To(d, grid(n0, z.vector(i, 0)), grid(n1, z.vector(i, 1)));
    const auto high = hn::OrderedDemote2To(d, grid(n2, z.vector(i, 2)), grid(n3, z.vector(i, 3)));
    store_bytes(low, d, stream_, q);
    store_bytes(high, d, stream_, q + 2 * lanes);
  }

 private:
  /// INT32_MIN plus a negative zero point would wrap.
  HWY_INLINE int_vector grid(int_vector n, int_vector z) const noexcept {
    const int_vector bounded =
        hn::Max(n, hn::Set(int_tag{}, -static_cast<std::int32_t>(step_limit)));
    return hn::Min(hn::Max(hn::Add(bounded, z), qmin_), qmax_);
  }

  int_vector qmin_, qmax_;
  bool stream_;
};

/// Multiplies by the reciprocal of a scale that the proof at the top covers.
struct product_divisor {
  float_vector highest, high, low;  // of x; of 1 / s
  HWY_INLINE float_vector operator()(float_vector x) const noexcept {
    // Without the bound an infinite x would become NaN, and a large step the smallest integer.
    const float_vector bounded = hn::Min(x, highest);
    return hn::MulAdd(bounded, high, hn::Mul(bounded, low));
  }
};

struct quotient_divisor {
  float_vector scale;
  HWY_INLINE float_vector operator()(float_vector x) const noexcept {
    return hn::Min(hn::Div(x, scale), hn::Set(float_tag{}, step_limit));
  }
};

struct multiplier {
  float_vector factor;
  HWY_INLINE float_vector operator()(float_vector x) const noexcept {
    return hn::Min(hn::Mul(x, factor), hn::Set(float_tag{}, step_limit));
  }
};

/// Of every vector the same.
template <class Divisor>
struct one_divisor {
  Divisor divisor;
  HWY_INLINE Divisor operator()(std::size_t) const noexcept { return divisor; }
};

/// The divisors of up to kCapacity scales, made together.
template <std::size_t kCapacity>
class divisor_array {
 public:
  /// Takes `count` scales that are `step` apart. True if the proof at the top covers all of them.
  HWY_INLINE bool assign(const float* scale, std::ptrdiff_t step, std::size_t count) noexcept {
    const float_tag df;
    const int_tag di;
    const std::size_t padded = (count + group_size - 1) / group_size * group_size;
    for (std::size_t i = 0; i < padded; ++i) {
      scale_[i] = i < count ? scale[static_cast<std::ptrdiff_t>(i) * step] : 1.0F;
    }
    auto all = hn::FirstN(df, lanes);
    for (std::size_t i = 0; i < count; i += lanes) {
      const float_vector s = hn::Load(df, scale_ + i);
      const float_vector one = hn::Set(df, 1.0F);
      const float_vector high = hn::Div(one, s);
      hn::Store(high, df, high_ + i);
      hn::Store(hn::Mul(hn::NegMulAdd(high, s, one), high), df, low_ + i);
      hn::Store(hn::Mul(s, hn::Set(df, step_limit)), df, highest_ + i);
      // 2^-126 <= s <= 2^77: high and low are normal numbers.
      const auto normal =
          hn::And(hn::Ge(s, hn::Set(df, 0x1p-126F)), hn::Le(s, hn::Set(df, 0x1p+77F)));
      const auto remainder = hn::And(hn::BitCast(di, s), hn::Set(di, modulus - 1));
      const auto beside = hn::And(hn::Add(remainder, hn::Set(di, 5)), hn::Set(di, modulus - 1));
      const auto far = hn::Or(hn::Eq(remainder, hn::Zero(di)), hn::Gt(beside, hn::Set(di, 10)));
      all = hn::And(all, hn::And(normal, hn::RebindMask(df, far)));
    }
    return hn::AllTrue(df, all);
  }

  /// As they were given, readable up to the next multiple of group_size.
  HWY_INLINE const float* scales() const noexcept { return scale_; }
  /// Of one element, for all lanes.
  HWY_INLINE product_divisor one(std::size_t i) const noexcept {
    const float_tag df;
    return {hn::Set(df, highest_[i]), hn::Set(df, high_[i]), hn::Set(df, low_[i])};
  }
  /// Of the elements from i on, each lane its own.
  HWY_INLINE product_divisor lanes_at(std::size_t i) const noexcept {
    const float_tag df;
    return {hn::LoadU(df, highest_ + i), hn::LoadU(df, high_ + i), hn::LoadU(df, low_ + i)};
  }

 private:
  static constexpr std::int32_t modulus = 1 << 16;
  static constexpr std::size_t size = (kCapacity + group_size - 1) / group_size * group_size;
  alignas(64) float scale_[size];
  alignas(64) float highest_[size];
  alignas(64) float high_[size];
  alignas(64) float low_[size];
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

/// How the elements of a row become steps before they are divided. Floats do not change.
struct float_source {
  using element = float;
  static constexpr bool may_be_nan = true;
  HWY_INLINE float_vector load(const float* x, std::size_t) const noexcept {
    return hn::LoadU(float_tag{}, x);
  }
};
/// To an accumulator a bias is added modulo 2^32.
struct biased_source {
  using element = std::int32_t;
  static constexpr bool may_be_nan = false;
  int_vector bias;
  HWY_INLINE float_vector load(const std::int32_t* x, std::size_t) const noexcept {
    return hn::ConvertTo(float_tag{}, hn::Add(hn::LoadU(int_tag{}, x), bias));
  }
};
/// Of each column its own; readable up to the next multiple of group_size.
struct column_biased_source {
  using element = std::int32_t;
  static constexpr bool may_be_nan = false;
  const std::int32_t* bias;
  HWY_INLINE float_vector load(const std::int32_t* x, std::size_t i) const noexcept {
    const int_tag di;
    return hn::ConvertTo(float_tag{}, hn::Add(hn::LoadU(di, x), hn::LoadU(di, bias + i)));
  }
};

/// A group, whose first element is number i of its row.
template <class Code, class Source, class Divisors, class ZeroPoints>
HWY_INLINE void quantize_group(const typename Source::element* x, const Source& source,
                               const Divisors& divisors, const ZeroPoints& z,
                               const code_writer<Code>& writer, std::size_t i,
                               typename Code::storage* q) noexcept {
  const float_tag df;
  const float_vector x0 = source.load(x, i);
  const float_vector x1 = source.load(x + lanes, i + lanes);
  const float_vector x2 = source.load(x + 2 * lanes, i + 2 * lanes);
  const float_vector x3 = source.load(x + 3 * lanes, i + 3 * lanes);
  int_vector n0 = DETENT_PASS_NEAREST(divisors(i)(x0));
  int_vector n1 = DETENT_PASS_NEAREST(divisors(i + lanes)(x1));
  int_vector n2 = DETENT_PASS_NEAREST(divisors(i + 2 * lanes)(x2));
  int_vector n3 = DETENT_PASS_NEAREST(divisors(i + 3 * lanes)(x3));
  if constexpr (Source::may_be_nan) {
    const auto any_nan = hn::Or(hn::IsEitherNaN(x0, x1), hn::IsEitherNaN(x2, x3));
    if (HWY_UNLIKELY(!hn::AllFalse(df, any_nan))) {
      n0 = hn::IfThenZeroElse(hn::RebindMask(int_tag{}, hn::IsNaN(x0)), n0);
      n1 = hn::IfThenZeroElse(hn::RebindMask(int_tag{}, hn::IsNaN(x1)), n1);
      n2 = hn::IfThenZeroElse(hn::RebindMask(int_tag{}, hn::IsNaN(x2)), n2);
      n3 = hn::IfThenZeroElse(hn::RebindMask(int_tag{}, hn::IsNaN(x3)), n3);
    }
  }
  writer.store(n0, n1, n2, n3, z, i, q);
}

/// The distance in storage units of elements that are `elements` apart.
template <class Code>
HWY_INLINE constexpr std::ptrdiff_t storage_offset(std::ptrdiff_t elements) noexcept {
  return Code::bits == 4 ? elements / 2 : elements;
}

/// A row, or a piece of one. What is left behind the last whole group goes through buffers.
template <class Code, class Source, class Divisors, class ZeroPoints>
HWY_INLINE void quantize_row(const typename Source::element* x, const Source& source,
                             const Divisors& divisors, const ZeroPoints& z,
                             const code_writer<Code>& writer, std::size_t columns,
                             typename Code::storage* q) noexcept {
  using element = typename Source::element;
  using storage = typename Code::storage;
  alignas(64) element last[group_size];
  alignas(64) storage codes[group_size];
  for (std::size_t i = 0; i < columns; i += group_size) {
    const element* from = x + i;
    storage* to = q + storage_offset<Code>(static_cast<std::ptrdiff_t>(i));
    const std::size_t left = columns - i;
    if (HWY_LIKELY(left >= group_size)) {
      quantize_group<Code>(from, source, divisors, z, writer, i, to);
      continue;
    }
    for (std::size_t k = 0; k < group_size; ++k) {
      last[k] = k < left ? from[k] : element{0};
    }
    quantize_group<Code>(last, source, divisors, z, writer, i, codes);
    std::memcpy(to, codes,
                static_cast<std::size_t>(storage_offset<Code>(static_cast<std::ptrdiff_t>(left))) *
                    sizeof(storage));
  }
}

/// Rows whose parameters are made together, and columns.
inline constexpr std::size_t parameter_rows = 16;
inline constexpr std::size_t parameter_columns = 1024;

/// A piece of a row of parameters that becomes readable up to the next multiple of group_size; what
/// is behind it is harmless: 1 for scales, 0 for integers. From null: zeros.
template <class T>
HWY_INLINE void copy_padded(const T* from, std::size_t count, T* to) noexcept {
  const T padding = std::is_same_v<T, float> ? T{1} : T{0};
  for (std::size_t i = 0; i < (count + group_size - 1) / group_size * group_size; ++i) {
    to[i] = from != nullptr && i < count ? from[i] : padding;
  }
}

/// Streaming stores become visible to other threads in order with what follows.
HWY_INLINE void finish_stores(const elementwise_args& a) noexcept {
  if (a.stream) {
    hwy::FlushStream();
  }
}

/// One scale for each row.
template <class Code>
void quantize_rows(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a);
  divisor_array<parameter_rows> divisors;
  const std::size_t step = a.parameter_step == 0 ? a.rows : parameter_rows;
  for (std::size_t first = 0; first < a.rows; first += step) {
    const std::size_t rows = a.rows - first < step ? a.rows - first : step;
    const std::size_t scales = a.parameter_step == 0 ? 1 : rows;
    const bool regular =
        Code::bits != 16 &&
        divisors.assign(a.scale + static_cast<std::ptrdiff_t>(first) * a.parameter_step,
                        a.parameter_step, scales);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto row = static_cast<std::ptrdiff_t>(first + r);
      const float* from = x + row * a.in_stride;
      typename Code::storage* to = q + storage_offset<Code>(row * a.out_stride);
      const one_zero_point z(a.zero_point[row * a.parameter_step]);
      if (regular) {
        const product_divisor d = divisors.one(scales == 1 ? 0 : r);
        quantize_row<Code>(from, float_source{}, one_divisor<product_divisor>{d}, z, writer,
                           a.columns, to);
      } else {
        const quotient_divisor d{hn::Set(float_tag{}, a.scale[row * a.parameter_step])};
        quantize_row<Code>(from, float_source{}, one_divisor<quotient_divisor>{d}, z, writer,
                           a.columns, to);
      }
    }
  }
}

/// One scale for each column.
template <class Code>
void quantize_columns(const float* x, const elementwise_args& a,
                      typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a);
  divisor_array<parameter_columns> divisors;
  alignas(64) std::int32_t zero_points[parameter_columns];
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
        copy_padded(a.zero_point + parameter, columns, zero_points);
        regular = divisors.assign(a.scale + parameter, 1, columns) && Code::bits != 16;
      }
      if (regular) {
        quantize_row<Code>(from, float_source{}, product_lanes<decltype(divisors)>{divisors},
                           zero_point_array(zero_points), writer, columns, to);
      } else {
        quantize_row<Code>(from, float_source{}, quotient_lanes{divisors.scales()},
                           zero_point_array(zero_points), writer, columns, to);
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
  const code_writer<Code> writer(a);
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const std::ptrdiff_t parameter = row * a.parameter_step;
    const std::int32_t bias = a.bias == nullptr ? 0 : a.bias[parameter];
    const multiplier m{hn::Set(float_tag{}, a.scale[parameter])};
    quantize_row<Code>(acc + row * a.in_stride, biased_source{hn::Set(int_tag{}, bias)},
                       one_divisor<multiplier>{m}, one_zero_point(a.zero_point[parameter]), writer,
                       a.columns, q + row * a.out_stride);
  }
}

template <class Code>
void requantize_columns(const std::int32_t* acc, const elementwise_args& a,
                        typename Code::storage* q) noexcept {
  const code_writer<Code> writer(a);
  alignas(64) float factors[parameter_columns];
  alignas(64) std::int32_t zero_points[parameter_columns];
  alignas(64) std::int32_t biases[parameter_columns];
  for (std::size_t c = 0; c < a.columns; c += parameter_columns) {
    const std::size_t columns =
        a.columns - c < parameter_columns ? a.columns - c : parameter_columns;
    const auto column = static_cast<std::ptrdiff_t>(c);
    for (std::size_t r = 0; r < a.rows; ++r) {
      const auto row = static_cast<std::ptrdiff_t>(r);
      if (r == 0 || a.parameter_step != 0) {
        const std::ptrdiff_t parameter = row * a.parameter_step + column;
        copy_padded(a.zero_point + parameter, columns, zero_points);
        copy_padded(a.bias == nullptr ? nullptr : a.bias + parameter, columns, biases);
        copy_padded(a.scale + parameter, columns, factors);
      }
      quantize_row<Code>(acc + row * a.in_stride + column, column_biased_source{biases},
                         multiplier_lanes{factors}, zero_point_array(zero_points), writer, columns,
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

/// Bytes for pairs of four-bit codes, the low half first; `count` is even.
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

/// Up to a vector of codes of at least 8 bits.
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

/// What all elements of a row share.
struct one_parameter {
  int_vector zero_point_;
  float_vector scale_;
  HWY_INLINE int_vector zero_point(std::size_t, std::size_t) const noexcept { return zero_point_; }
  HWY_INLINE float_vector scale(std::size_t, std::size_t) const noexcept { return scale_; }
};

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

template <class Q, class Parameters>
HWY_INLINE float_vector dequantize_vector(const Q* q, const Parameters& p, std::size_t i,
                                          std::size_t count) noexcept {
  const int_vector steps = hn::Sub(load_codes(q + i, count), p.zero_point(i, count));
  return hn::Mul(hn::ConvertTo(float_tag{}, steps), p.scale(i, count));
}

template <class Q, class Parameters>
HWY_INLINE void dequantize_row(const Q* q, std::size_t columns, const Parameters& p, bool stream,
                               float* x) noexcept {
  const float_tag df;
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

template <class Code>
void dequantize(const typename Code::storage* q, const elementwise_args& a, float* x) noexcept {
  // Pieces of a row: four-bit codes are unpacked before, in a buffer.
  const std::size_t piece = Code::bits == 4 ? parameter_columns : a.columns;
  alignas(64) std::uint8_t bytes[Code::bits == 4 ? parameter_columns : 1];
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const float* scale = a.scale + row * a.parameter_step;
    const std::int32_t* zero_point = a.zero_point + row * a.parameter_step;
    const typename Code::storage* from = q + storage_offset<Code>(row * a.in_stride);
    float* to = x + row * a.out_stride;
    for (std::size_t c = 0; c < a.columns; c += piece) {
      const std::size_t columns = a.columns - c < piece ? a.columns - c : piece;
      const auto* codes = [&]() HWY_ATTR {
        if constexpr (Code::bits == 4) {
          unpack_nibbles<Code>(from + c / 2, columns, bytes);
          using byte = std::conditional_t<Code::is_signed, std::int8_t, std::uint8_t>;
          return reinterpret_cast<const byte*>(bytes);
        } else {
          return from + c;
        }
      }();
      if (a.per_column) {
        dequantize_row(codes, columns, parameter_arrays{zero_point + c, scale + c}, a.stream,
                       to + c);
      } else {
        const one_parameter p{hn::Set(int_tag{}, *zero_point), hn::Set(float_tag{}, *scale)};
        dequantize_row(codes, columns, p, a.stream, to + c);
      }
    }
  }
  finish_stores(a);
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
