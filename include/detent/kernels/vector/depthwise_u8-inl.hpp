// SPDX-License-Identifier: BSD-3-Clause
// 8-bit depthwise products.
//
// The bytes of four taps are interleaved, so that each 32-bit lane holds the four bytes of one
// channel, as vpdpbusd takes them. In passes without vpdpbusd, and for weights that do not fit a
// byte, the lane is read as two pairs of 16-bit words. The unpack instructions work within 16
// bytes, which puts the channels of a depthwise block in the order of depthwise_panels, quarter by
// quarter; packing 32-bit results to bytes restores their order.

#ifndef DETENT_KERNELS_VECTOR_DEPTHWISE_U8_INL_HPP
#define DETENT_KERNELS_VECTOR_DEPTHWISE_U8_INL_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <detent/kernels/depthwise.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/depthwise_u8-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

using byte_tag = hn::Repartition<std::uint8_t, int_tag>;
using byte_vector = hn::Vec<byte_tag>;
using word_tag = hn::Repartition<std::int16_t, int_tag>;
/// Channels that a vector of bytes holds, a part: a whole depthwise block, or half of one.
inline constexpr std::size_t part_channels = hn::MaxLanes(byte_tag{});
/// Vectors of 32-bit lanes that hold the sums of a part, one for each quarter.
inline constexpr std::size_t quarters = 4;

/// Return [a0 b0 a2 b2] and [a1 b1 a3 b3], where a0, a1, ... are the 16-byte blocks of a.
template <class V>
HWY_INLINE V even_blocks(V a, V b) noexcept {
  return hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
}
template <class V>
HWY_INLINE V odd_blocks(V a, V b) noexcept {
  return hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
}

/// Reorders four vectors, of channels in their order, into quarters: quarter k gets the 16-byte
/// blocks k, k + 4, ...
template <class D, class V = hn::Vec<D>>
HWY_INLINE void to_quarters(D d, V (&v)[quarters]) noexcept {
  if constexpr (hn::MaxLanes(D{}) * sizeof(hn::TFromD<D>) == 64) {
    const V even01 = even_blocks(v[0], v[1]);
    const V even23 = even_blocks(v[2], v[3]);
    const V odd01 = odd_blocks(v[0], v[1]);
    const V odd23 = odd_blocks(v[2], v[3]);
    v[0] = hn::ConcatLowerLower(d, even23, even01);
    v[1] = hn::ConcatLowerLower(d, odd23, odd01);
    v[2] = hn::ConcatUpperUpper(d, even23, even01);
    v[3] = hn::ConcatUpperUpper(d, odd23, odd01);
  } else {
    const V low02 = hn::ConcatLowerLower(d, v[2], v[0]);
    const V high02 = hn::ConcatUpperUpper(d, v[2], v[0]);
    const V low13 = hn::ConcatLowerLower(d, v[3], v[1]);
    const V high13 = hn::ConcatUpperUpper(d, v[3], v[1]);
    v[0] = low02, v[1] = high02, v[2] = low13, v[3] = high13;
  }
}

/// Reorders quarters into four vectors of channels in their order.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void from_quarters(D d, V (&v)[quarters]) noexcept {
  if constexpr (hn::MaxLanes(D{}) * sizeof(hn::TFromD<D>) == 64) {
    to_quarters(d, v);
  } else {
    const V low01 = hn::ConcatLowerLower(d, v[1], v[0]);
    const V high01 = hn::ConcatUpperUpper(d, v[1], v[0]);
    const V low23 = hn::ConcatLowerLower(d, v[3], v[2]);
    const V high23 = hn::ConcatUpperUpper(d, v[3], v[2]);
    v[0] = low01, v[1] = low23, v[2] = high01, v[3] = high23;
  }
}

/// The epilogue of a part of the channels, which loads once what depends on the channels only.
/// kIsPlain: there is no residual, and the output is not bfloat16.
template <bool kIsPlain>
class quarter_epilogue {
 public:
  /// For the channels from `first` on. The part holds `period` channels, repeated until it is full;
  /// what lies behind the last panel is zero.
  HWY_INLINE quarter_epilogue(const integer_epilogue& e, std::size_t first, std::size_t channels,
                              std::size_t period) noexcept
      : output_(e.output),
        residual_(e.residual),
        lower_(hn::Set(float_tag{}, e.lower)),
        upper_(hn::Set(float_tag{}, e.upper)) {
    // Signed outputs are computed as unsigned ones that are 128 larger.
    const std::int32_t shift = output_ == integer_output::s8 ? 128 : 0;
    const auto byte = [shift](std::int32_t v) HWY_ATTR {
      return hn::Set(byte_tag{}, static_cast<std::uint8_t>(v + shift));
    };
    zero_point_ = hn::Set(word_tag{}, static_cast<std::int16_t>(e.zero_point + shift));
    lowest_ = byte(e.qmin);
    highest_ = byte(e.qmax);
    demoting_suffices_ = shift == 0 && e.qmin == 0 && e.qmax == 255;
    flip_ = byte(0);
    DETENT_UNROLL for (std::size_t j = 0; j < quarters; ++j) {
      const std::size_t column = first + j * lanes % period;
      const bool inside = column < channels;
      offset_[j] = inside ? hn::LoadU(int_tag{}, e.column_offset + column) : hn::Zero(int_tag{});
      multiplier_[j] = inside && e.multiplier != nullptr
                           ? hn::LoadU(float_tag{}, e.multiplier + column)
                           : hn::Zero(float_tag{});
      bias_[j] = inside && e.bias != nullptr ? hn::LoadU(float_tag{}, e.bias + column)
                                             : hn::Zero(float_tag{});
    }
    auto shrinks = hn::Lt(multiplier_[0], hn::Set(float_tag{}, 1.0F));
    DETENT_UNROLL for (std::size_t j = 1; j < quarters; ++j) {
      shrinks = hn::And(shrinks, hn::Lt(multiplier_[j], hn::Set(float_tag{}, 1.0F)));
    }
    shrinks_ = hn::AllTrue(float_tag{}, shrinks);
    to_quarters(int_tag{}, offset_);
    to_quarters(float_tag{}, multiplier_);
    to_quarters(float_tag{}, bias_);
  }

  [[nodiscard]] HWY_INLINE bool makes_bytes() const noexcept {
    return kIsPlain && (output_ == integer_output::u8 || output_ == integer_output::s8);
  }
  /// Sets the sums to their initial values, which include the columns' offsets.
  HWY_INLINE void begin(int_vector (&sum)[quarters]) const noexcept {
    DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) { sum[k] = offset_[k]; }
  }

  /// Stores the results of `count` channels at element `index` of c.
  HWY_INLINE void store(int_vector (&sum)[quarters], std::size_t count, void* c,
                        std::size_t index) const noexcept {
    if (makes_bytes()) {
      store_bytes(sum, count, c, index);
    } else if (kIsPlain && output_ == integer_output::s32) {
      from_quarters(int_tag{}, sum);
      store_vectors(sum, int_tag{}, count, static_cast<std::int32_t*>(c) + index);
    } else {
      store_reals(sum, count, c, index);
    }
  }

  /// Stores results as floats or bfloat16.
  HWY_INLINE void store_reals(const int_vector (&sum)[quarters], std::size_t count, void* c,
                              std::size_t index) const noexcept {
    const float_tag df;
    float_vector v[quarters];
    DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
      // Without a bias the sum of the product and 0 is rounded to the product.
      v[k] = hn::MulAdd(hn::ConvertTo(df, sum[k]), multiplier_[k], bias_[k]);
    }
    from_quarters(df, v);
    if (!kIsPlain && residual_ != nullptr) {
      const float* from = residual_ + index;
      DETENT_UNROLL for (std::size_t j = 0; j < quarters; ++j) {
        if (count >= (j + 1) * lanes) {
          v[j] = hn::Add(v[j], hn::LoadU(df, from + j * lanes));
        } else if (count > j * lanes) {
          v[j] = hn::Add(v[j], hn::LoadN(df, from + j * lanes, count - j * lanes));
        }
      }
    }
    DETENT_UNROLL for (std::size_t j = 0; j < quarters; ++j) {
      v[j] = clamp_ordered(v[j], lower_, upper_);
    }
    if (kIsPlain || output_ == integer_output::f32) {
      store_vectors(v, df, count, static_cast<float*>(c) + index);
    } else {
      using half_tag = hn::Rebind<std::uint16_t, float_tag>;
      hn::Vec<half_tag> halves[quarters];
      DETENT_UNROLL for (std::size_t j = 0; j < quarters; ++j) { halves[j] = to_bfloat16(v[j]); }
      store_vectors(halves, half_tag{}, count, static_cast<std::uint16_t*>(c) + index);
    }
  }

  /// Stores results as bytes.
  HWY_INLINE void store_bytes(const int_vector (&sum)[quarters], std::size_t count, void* c,
                              std::size_t index) const noexcept {
    const byte_vector v = bytes(sum);
    std::uint8_t* to = static_cast<std::uint8_t*>(c) + index;
    if (count == part_channels) {
      hn::StoreU(v, byte_tag{}, to);
    } else {
      store_part(v, byte_tag{}, to, count);
    }
  }

  /// Returns the results of a whole part as bytes, in the order of the channels.
  HWY_INLINE byte_vector bytes(const int_vector (&sum)[quarters]) const noexcept {
    // Conversions saturate, and the zero point is added to 16-bit words, whose bounds lie beyond
    // the grid on both sides: the result is what clamping the steps would give, in fewer
    // instructions.
    int_vector q[quarters];
    DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
      // The product of an integer and a finite multiplier is never NaN.
      float_vector steps = hn::Mul(hn::ConvertTo(float_tag{}, sum[k]), multiplier_[k]);
      if (!shrinks_) {
        // The conversion returns INT32_MIN also for steps that are too large.
        steps = hn::Min(steps, hn::Set(float_tag{}, 32767.0F));
      }
      q[k] = nearest(steps);
    }
    const byte_tag d8;
    const word_tag d16;
    const auto low = hn::SaturatedAdd(hn::ReorderDemote2To(d16, q[0], q[1]), zero_point_);
    const auto high = hn::SaturatedAdd(hn::ReorderDemote2To(d16, q[2], q[3]), zero_point_);
    const byte_vector result = hn::ReorderDemote2To(d8, low, high);
    if (demoting_suffices_) {
      return result;
    }
    return hn::Xor(hn::Min(hn::Max(result, lowest_), highest_), flip_);
  }

 private:
  template <class V, class D, class T>
  static HWY_INLINE void store_vectors(const V (&v)[quarters], D d, std::size_t count,
                                       T* to) noexcept {
    DETENT_UNROLL for (std::size_t j = 0; j < quarters; ++j) {
      if (count >= (j + 1) * lanes) {
        hn::StoreU(v[j], d, to + j * lanes);
      } else if (count > j * lanes) {
        store_part(v[j], d, to + j * lanes, count - j * lanes);
      }
    }
  }

  integer_output output_;
  const float* residual_;  // null, or as dense as the output
  int_vector offset_[quarters];
  float_vector multiplier_[quarters];
  float_vector bias_[quarters];
  float_vector lower_, upper_;
  bool shrinks_;            // all multipliers are below 1, so that steps fit 32 bits
  bool demoting_suffices_;  // the grid is all values of an unsigned byte
  hn::Vec<word_tag> zero_point_;
  byte_vector lowest_, highest_, flip_;
};

/// Elements of weights from one quarter to the next, and from one group of taps to the next.
inline constexpr std::size_t quarter_size = 16 * group_depth;
inline constexpr std::size_t weight_group_size = quarters * quarter_size;

/// Adds the products of four taps, whose bytes are interleaved in `x`, with one group of weights,
/// as bytes or as words.
[[maybe_unused]] HWY_INLINE void add_group(const byte_vector (&x)[quarters], const std::int8_t* w,
                                           int_vector (&sum)[quarters]) noexcept {
  const hn::Repartition<std::int8_t, int_tag> ds8;
  DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
    sum[k] = dot(sum[k], x[k], hn::LoadU(ds8, w + k * quarter_size));
  }
}
HWY_INLINE void add_group(const byte_vector (&x)[quarters], const std::int16_t* w,
                          int_vector (&sum)[quarters]) noexcept {
  const int_tag di;
  const hn::Repartition<std::int16_t, int_tag> d16;
  const hn::Repartition<std::uint16_t, int_tag> du16;
  DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
    const std::int16_t* pair = w + k * quarter_size;
    const auto words = hn::BitCast(du16, x[k]);
    const auto even = hn::BitCast(d16, hn::And(words, hn::Set(du16, 0xFF)));
    const auto odd = hn::BitCast(d16, hn::ShiftRight<8>(words));
    sum[k] = hn::Add(sum[k], hn::WidenMulPairwiseAdd(di, even, hn::LoadU(d16, pair)));
    sum[k] =
        hn::Add(sum[k], hn::WidenMulPairwiseAdd(di, odd, hn::LoadU(d16, pair + quarter_size / 2)));
  }
}

/// Interleaves the bytes of four taps: lane i of x[k] gets the four bytes of channel i of quarter
/// k.
HWY_INLINE void interleave_taps(byte_vector a, byte_vector b, byte_vector c, byte_vector d,
                                byte_vector (&x)[quarters]) noexcept {
  const byte_tag d8;
  const hn::Repartition<std::uint16_t, int_tag> d16;
  const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d8, a, b));
  const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d8, a, b));
  const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d8, c, d));
  const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d8, c, d));
  x[0] = hn::BitCast(d8, hn::InterleaveLower(d16, low01, low23));
  x[1] = hn::BitCast(d8, hn::InterleaveUpper(d16, low01, low23));
  x[2] = hn::BitCast(d8, hn::InterleaveLower(d16, high01, high23));
  x[3] = hn::BitCast(d8, hn::InterleaveUpper(d16, high01, high23));
}

/// Loads `count` bytes of each of four taps, `offset` behind their addresses, and interleaves them.
HWY_INLINE void load_taps(const std::uint8_t* const* tap, std::size_t offset, std::size_t count,
                          byte_vector (&x)[quarters]) noexcept {
  const byte_tag d8;
  byte_vector row[group_depth];
  DETENT_UNROLL for (std::size_t t = 0; t < group_depth; ++t) {
    row[t] = count == part_channels ? hn::LoadU(d8, tap[t] + offset)
                                    : load_part(d8, tap[t] + offset, count);
  }
  interleave_taps(row[0], row[1], row[2], row[3], x);
}

/// Multiplies a part of the channels of a depthwise product. A vector holds part_channels bytes:
/// one pixel's part of the channels or, if the part repeats all channels, all channels of several
/// pixels. W is the type of the weights; kIsPlain is that of the epilogue.
template <class W, bool kIsPlain>
class depthwise_part {
 public:
  HWY_INLINE depthwise_part(const depthwise_u8_args& d, const W* weights,
                            std::size_t first) noexcept
      : rows_(d.rows),
        groups_((rows_.tap_count + group_depth - 1) / group_depth),
        weights_(weights + first / strip_columns * groups_ * weight_group_size +
                 first % strip_columns / quarters * group_depth / sizeof(W)),
        first_(first),
        repeats_(rows_.channels >= lanes && rows_.channels < part_channels &&
                 part_channels % rows_.channels == 0 && rows_.step == rows_.channels),
        in_step_(repeats_ ? part_channels : rows_.step),
        out_step_(repeats_ ? part_channels : rows_.channels),
        count_(repeats_ ? part_channels : (std::min)(part_channels, rows_.channels - first)),
        c_(d.c),
        epilogue_(d.epilogue, first, rows_.channels, repeats_ ? rows_.channels : part_channels) {}

  HWY_INLINE void run(const depthwise_run& run) const noexcept {
    const std::uint8_t* const* tap = rows_.taps + run.tap;
    const std::size_t out = run.pixel * rows_.channels + first_;
    const std::size_t size = run.pixels * rows_.channels;
    const std::size_t whole = repeats_ ? size / part_channels : run.pixels;
    std::size_t v = 0;
    if constexpr (tile > 1) {
      const std::size_t pixels = repeats_ ? part_channels / rows_.channels : 1;
      if (rows_.width == 3 && epilogue_.makes_bytes() && pixels <= 2) {
        v = pixels == 1 ? tiles<3, 1>(tap, whole, out) : tiles<3, 2>(tap, whole, out);
      } else if (rows_.width == 5 && epilogue_.makes_bytes() && !repeats_) {
        v = tiles<5, 1>(tap, whole, out);
      }
    }
    for (; v < whole; ++v) {
      vector(tap, v, count_, out);
    }
    if (repeats_ && v * part_channels < size) {
      vector(tap, v, size - v * part_channels, out);
    }
  }

 private:
  /// Vectors whose sums the registers hold at the same time. Weights of words are rare in passes
  /// that can multiply bytes.
  static constexpr std::size_t tile = sizeof(W) == 2 ? 1 : lanes == 16 ? 4 : 2;

  /// Computes and stores the first `count` elements of vector v.
  HWY_INLINE void vector(const std::uint8_t* const* tap, std::size_t v, std::size_t count,
                         std::size_t out) const noexcept {
    int_vector sum[quarters];
    epilogue_.begin(sum);
    for (std::size_t g = 0; g < groups_; ++g) {
      byte_vector x[quarters];
      load_taps(tap + g * group_depth, v * in_step_ + first_, count, x);
      add_group(x, weights_ + g * weight_group_size, sum);
    }
    epilogue_.store(sum, count, c_, out + v * out_step_);
  }

  /// Computes and stores tiles of whole vectors, which hold kPixels pixels each; every column of
  /// taps is interleaved once for all the vectors that need it. Returns the number of vectors that
  /// are done.
  template <std::size_t kWidth, std::size_t kPixels>
  HWY_INLINE std::size_t tiles(const std::uint8_t* const* tap, std::size_t vectors,
                               std::size_t out) const noexcept {
    std::size_t v = 0;
    for (; v + tile <= vectors; v += tile) {
      int_vector sum[tile][quarters];
      DETENT_UNROLL for (std::size_t i = 0; i < tile; ++i) { epilogue_.begin(sum[i]); }
      for (std::size_t g = 0; g < groups_; g += kWidth) {
        const W* w = weights_ + g * weight_group_size;
        DETENT_UNROLL for (std::size_t column = 0; column < (tile - 1) * kPixels + kWidth;
                           ++column) {
          byte_vector x[quarters];
          load_taps(tap + g * group_depth, v * in_step_ + column * rows_.step + first_, count_, x);
          DETENT_UNROLL for (std::size_t i = 0; i < tile; ++i) {
            if (column >= i * kPixels && column - i * kPixels < kWidth) {
              add_group(x, w + (column - i * kPixels) * weight_group_size, sum[i]);
            }
          }
        }
      }
      DETENT_UNROLL for (std::size_t i = 0; i < tile; ++i) {
        epilogue_.store_bytes(sum[i], count_, c_, out + (v + i) * out_step_);
      }
    }
    return v;
  }

  const depthwise_rows<std::uint8_t>& rows_;
  std::size_t groups_;
  const W* weights_;
  std::size_t first_;
  bool repeats_;
  std::size_t in_step_, out_step_;  // from one vector to the next
  std::size_t count_;
  void* c_;
  quarter_epilogue<kIsPlain> epilogue_;
};

template <bool kIsPlain, class W>
void depthwise_u8_parts(const depthwise_u8_args& d, const W* weights) noexcept {
  for (std::size_t first = 0; first < d.rows.channels; first += part_channels) {
    const depthwise_part<W, kIsPlain> part(d, weights, first);
    for (std::size_t r = 0; r < d.rows.run_count; ++r) {
      part.run(d.rows.runs[r]);
    }
  }
}

template <class W>
void depthwise_u8_with(const depthwise_u8_args& d, const W* weights) noexcept {
  if (d.epilogue.residual == nullptr && d.epilogue.output != integer_output::bf16) {
    depthwise_u8_parts<true>(d, weights);
  } else {
    depthwise_u8_parts<false>(d, weights);
  }
}

inline void depthwise_u8(const depthwise_u8_args& d) noexcept {
#if !DETENT_PASS_PAIRS
  if (d.weights.bytes != nullptr) {
    return depthwise_u8_with(d, d.weights.bytes);
  }
#endif
  depthwise_u8_with(d, d.weights.words);
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
