// SPDX-License-Identifier: BSD-3-Clause
// 8-bit depthwise products line by line, for the filters of depthwise_filter.
//
// The two lines of a line pair share what they read: the bytes of four lines of the input, or of
// four columns of one line, are interleaved once for both lines and for all output columns that
// need them. The interleaved bytes stay in registers until they are multiplied or, if registers are
// few or a vector has many pixels, in a buffer of some kilobytes, from which they can be read at
// any column.

#ifndef DETENT_KERNELS_VECTOR_DEPTHWISE_U8_LINES_INL_HPP
#define DETENT_KERNELS_VECTOR_DEPTHWISE_U8_LINES_INL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <detent/kernels/depthwise.hpp>
#include <detent/kernels/vector/depthwise_u8-inl.hpp>
#include <detent/kernels/vector/pass_instructions-inl.hpp>
#include <detent/kernels/vector/store_sums-inl.hpp>
#include <detent/kernels/vector/vectors-inl.hpp>

#define DETENT_KERNELS_TEXT <detent/kernels/vector/depthwise_u8_lines-inl.hpp>
#include <detent/kernels/vector/for_each_pass-inl.hpp>
#endif

#ifdef DETENT_KERNELS_TEXT

#if DETENT_PASS_PAIRS

DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// Null, because sums of pairs of bytes saturate; depthwise_u8 of these passes multiplies words.
inline constexpr void (*depthwise_lines)(const depthwise_lines_args& d) noexcept = nullptr;

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END

#else

HWY_PUSH_ATTRIBUTES(DETENT_PASS_ATTRIBUTES)
DETENT_KERNELS_NAMESPACE_BEGIN
namespace DETENT_PASS_NAMESPACE {

/// A buffer for the interleaved bytes of up to kVectors vectors, quarter by quarter, so that a
/// vector can be read from any pixel on.
template <std::size_t kVectors>
struct interleaved_pixels {
  static constexpr std::size_t bytes_of_quarter = kVectors * part_channels;
  alignas(64) std::uint8_t data[quarters * bytes_of_quarter];

  HWY_INLINE void store(const byte_vector (&x)[quarters], std::size_t vector) noexcept {
    DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
      hn::Store(x[k], byte_tag{}, data + k * bytes_of_quarter + vector * part_channels);
    }
  }
  /// Loads a quarter of a vector of pixels, from this byte of the quarter on.
  HWY_INLINE byte_vector load(std::size_t quarter, std::size_t byte) const noexcept {
    return hn::LoadU(byte_tag{}, data + quarter * bytes_of_quarter + byte);
  }
};

/// Multiplies a part of the channels line by line. A vector holds kPixels pixels: one, or several
/// if there are few channels.
template <depthwise_filter kFilter, std::size_t kPixels>
class line_part {
 public:
  static constexpr std::size_t input_lines = depthwise_input_lines(kFilter);
  using line_array = const std::uint8_t* [input_lines];

  HWY_INLINE line_part(const depthwise_lines_args& d, std::size_t first) noexcept
      : count_((std::min)(period, d.channels - first)),
        channels_(d.channels),
        in_width_(d.in_width),
        out_width_(d.out_width),
        pad_left_(d.pad_left),
        dense_(d.channels == period),
        weights_(d.weights + first / strip_columns * depthwise_groups(kFilter) * weight_group_size +
                 first % strip_columns / quarters * group_depth),
        c_(d.c + first),
        epilogue_(d.epilogue, first, d.channels, period) {
    hn::StoreU(hn::Set(byte_tag{}, d.padding), byte_tag{}, blank_);
  }

  /// Computes kLines lines of the output. `lines` are the addresses, in the lines of the input, of
  /// the part's first channel; `pixel` is the first pixel's index in the output.
  template <std::size_t kLines>
  HWY_INLINE void run(const line_array& lines, std::size_t pixel) noexcept {
    const std::size_t vectors = (out_width_ + kPixels - 1) / kPixels;
    if constexpr (in_registers) {
      run_in_registers<kLines>(lines, vectors, pixel);
    } else {
      const std::size_t segments = (vectors + segment_vectors - 1) / segment_vectors;
      std::size_t begin = 0;
      for (std::size_t s = 1; s <= segments; ++s) {
        const std::size_t end = vectors * s / segments;
        run_segment<kLines>(lines, begin * kPixels, end - begin, pixel);
        begin = end;
      }
    }
  }

 private:
  static constexpr bool is_five = kFilter == depthwise_filter::five;
  static constexpr bool is_stride2 = kFilter == depthwise_filter::three_stride2;
  static constexpr std::size_t stride = depthwise_stride(kFilter);
  /// Channels of each pixel in a vector.
  static constexpr std::size_t period = part_channels / kPixels;
  using pixel_tag = hn::CappedTag<std::uint8_t, period>;
  /// Whether interleaved bytes stay in registers, not in the buffers.
  static constexpr bool in_registers = lanes == 16 && !is_five && kPixels <= 2;
  /// The most vectors of an output line whose interleaved bytes are in the buffers at a time.
  static constexpr std::size_t segment_vectors = 32;
  /// Vectors by which interleaving is ahead of multiplying.
  static constexpr std::size_t ahead = 4;
  /// Vectors after its own whose interleaved bytes a vector reads.
  static constexpr std::size_t behind = is_five ? 4 : !is_stride2 && kPixels == 1 ? 2 : 1;

  /// Loads, from each of kCount lines, the bytes of a vector's pixels: those of its first pixel
  /// from `column`, those of each further pixel `stride` columns on. Numbers of columns before the
  /// image wrap to large ones, and so count as beyond it.
  template <std::size_t kCount>
  HWY_INLINE void load(const std::uint8_t* const* lines, std::size_t column,
                       byte_vector (&row)[kCount]) const noexcept {
    const byte_tag d8;
    const bool at_once = kPixels == 1 ? count_ == period : stride == 1 && dense_;
    if (at_once && column < in_width_ && in_width_ - column >= kPixels) {
      const std::size_t offset = column * channels_;
      DETENT_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
        row[i] = hn::LoadU(d8, lines[i] + offset);
      }
      return;
    }
    DETENT_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
      if constexpr (kPixels == 1) {
        row[i] = load_pixel(lines[i], column);
      } else if constexpr (kPixels == 2) {
        row[i] = load_two(lines[i], column);
      } else {
        row[i] =
            hn::Combine(d8, load_two(lines[i], column + 2 * stride), load_two(lines[i], column));
      }
    }
  }
  HWY_INLINE auto load_two(const std::uint8_t* line, std::size_t column) const noexcept {
    return hn::Combine(hn::Twice<pixel_tag>{}, load_pixel(line, column + stride),
                       load_pixel(line, column));
  }
  HWY_INLINE hn::Vec<pixel_tag> load_pixel(const std::uint8_t* line,
                                           std::size_t column) const noexcept {
    const std::uint8_t* from = column < in_width_ ? line + column * channels_ : blank_;
    return count_ == period ? hn::LoadU(pixel_tag{}, from) : load_part(pixel_tag{}, from, count_);
  }

  /// The interleaved bytes for one vector. With a stride of 1 there is one set for both lines; with
  /// a stride of 2 there are three: for the first line, for the second one, and for both.
  using interleaved = byte_vector[is_stride2 ? 3 : 1][quarters];

  /// Interleaves what a vector's pixels read in one column (two, with a stride of 2), from `column`
  /// on.
  template <std::size_t kLines>
  HWY_INLINE void interleave(const line_array& lines, std::size_t column,
                             interleaved& x) const noexcept {
    if constexpr (is_stride2) {
      constexpr std::size_t used = kLines == 2 ? 5 : 3;
      byte_vector even[used];
      byte_vector odd[used];
      load(lines, column, even);
      load(lines, column + 1, odd);
      interleave_taps(even[0], even[1], even[2], odd[2], x[0]);
      if constexpr (kLines == 2) {
        interleave_taps(even[3], even[4], even[2], odd[2], x[1]);
        interleave_taps(odd[0], odd[1], odd[3], odd[4], x[2]);
      } else {
        interleave_taps(odd[0], odd[1], odd[1], odd[1], x[2]);
        DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) { x[1][k] = x[2][k]; }  // unused
      }
    } else {
      byte_vector row[group_depth];
      load(lines + (is_five ? 1 : 0), column, row);
      interleave_taps(row[0], row[1], row[2], row[3], x[0]);
    }
  }
  /// Interleaves what a vector's pixels read from `column` on, and stores it as vector `vector` of
  /// the buffers.
  template <std::size_t kLines>
  HWY_INLINE void interleave_to(std::size_t vector, const line_array& lines,
                                std::size_t column) noexcept {
    interleaved x;
    interleave<kLines>(lines, column, x);
    first_.store(x[0], vector);
    if constexpr (is_stride2) {
      if constexpr (kLines == 2) {
        second_.store(x[1], vector);
      }
      third_.store(x[2], vector);
    }
  }

  /// Interleaves four columns of each outer line: the first and the last of the lines that a line
  /// pair reads through a 5 x 5 filter.
  template <std::size_t kLines>
  HWY_INLINE void interleave_outer(const line_array& lines, std::size_t column,
                                   std::size_t vector) noexcept {
    const std::uint8_t* const outer[2] = {lines[0], lines[input_lines - 1]};
    byte_vector row[group_depth][kLines];
    DETENT_UNROLL for (std::size_t i = 0; i < group_depth; ++i) { load(outer, column + i, row[i]); }
    byte_vector x[quarters];
    interleave_taps(row[0][0], row[1][0], row[2][0], row[3][0], x);
    second_.store(x, vector);
    if constexpr (kLines == 2) {
      interleave_taps(row[0][1], row[1][1], row[2][1], row[3][1], x);
      third_.store(x, vector);
    }
  }

  /// Adds the products of a group of weights, for one quarter of the channels, to the sum of a
  /// line.
  HWY_INLINE void add(byte_vector x, std::size_t group, std::size_t quarter,
                      int_vector& sum) const noexcept {
    const std::int8_t* w = weights_ + group * weight_group_size + quarter * quarter_size;
    sum = dot(sum, x, hn::LoadU(hn::Repartition<std::int8_t, int_tag>{}, w));
  }

  static constexpr std::size_t operands = is_stride2 ? 5 : 3;

  /// Adds the products of the three groups of each line, for one quarter. Each column is an
  /// operand. With a stride of 2 the operands are the two even columns of the first line, the odd
  /// column of both lines, and the two even columns of the second line.
  template <std::size_t kLines>
  HWY_INLINE void add_three(const byte_vector (&x)[operands], std::size_t quarter,
                            int_vector (&sum)[kLines][quarters]) const noexcept {
    DETENT_UNROLL for (std::size_t r = 0; r < kLines; ++r) {
      DETENT_UNROLL for (std::size_t i = 0; i < 3; ++i) {
        // The odd column is the third group of each line.
        const std::size_t operand = r == 1 && is_stride2 ? (i == 2 ? 2 : 3 + i) : i;
        add(x[operand], r * 3 + i, quarter, sum[r][quarter]);
      }
    }
  }

  /// Multiplies one vector of each line, from the buffers, and stores the results.
  template <std::size_t kLines>
  HWY_INLINE void multiply(const quarter_epilogue<true>& epilogue, std::size_t vector,
                           std::size_t x, std::size_t pixel) const noexcept {
    int_vector sum[kLines][quarters];
    begin(epilogue, sum);
    const std::size_t byte = vector * part_channels;
    DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
      if constexpr (is_five) {
        constexpr std::size_t width = 5;
        DETENT_UNROLL for (std::size_t i = 0; i < width; ++i) {
          const byte_vector both = first_.load(k, byte + i * period);
          DETENT_UNROLL for (std::size_t r = 0; r < kLines; ++r) {
            add(both, r * width + i, k, sum[r][k]);
          }
        }
        const std::size_t outer = vector / group_depth * part_channels;
        const std::size_t group = 2 * width + vector % group_depth * 2;
        add(second_.load(k, outer), group, k, sum[0][k]);
        add(second_.load(k, outer + part_channels), group + 1, k, sum[0][k]);
        if constexpr (kLines == 2) {
          add(third_.load(k, outer), group + 2 * group_depth, k, sum[1][k]);
          add(third_.load(k, outer + part_channels), group + 2 * group_depth + 1, k, sum[1][k]);
        }
      } else if constexpr (is_stride2) {
        const byte_vector both = third_.load(k, byte);
        byte_vector columns[operands] = {first_.load(k, byte), first_.load(k, byte + period), both,
                                         both, both};
        if constexpr (kLines == 2) {
          columns[3] = second_.load(k, byte);
          columns[4] = second_.load(k, byte + period);
        }
        add_three<kLines>(columns, k, sum);
      } else {
        add_three<kLines>({first_.load(k, byte), first_.load(k, byte + period),
                           first_.load(k, byte + 2 * period)},
                          k, sum);
      }
    }
    store(epilogue, sum, x, pixel);
  }

  /// Multiplies one vector of each line from registers, and stores the results. `now` is
  /// interleaved for this vector, `next` for the following one, `last` for the one after that.
  template <std::size_t kLines>
  HWY_INLINE void multiply(const quarter_epilogue<true>& epilogue, const interleaved& now,
                           const interleaved& next, const interleaved& last, std::size_t x,
                           std::size_t pixel) const noexcept {
    int_vector sum[kLines][quarters];
    begin(epilogue, sum);
    // The pixels one to the right of those in `left`.
    const auto right_of = [](byte_vector left, byte_vector right) HWY_ATTR {
      return kPixels == 1 ? right : hn::ConcatLowerUpper(byte_tag{}, right, left);
    };
    DETENT_UNROLL for (std::size_t k = 0; k < quarters; ++k) {
      const byte_vector second = right_of(now[0][k], next[0][k]);
      if constexpr (is_stride2) {
        add_three<kLines>(
            {now[0][k], second, now[2][k], now[1][k], right_of(now[1][k], next[1][k])}, k, sum);
      } else {
        add_three<kLines>({now[0][k], second, kPixels == 1 ? last[0][k] : next[0][k]}, k, sum);
      }
    }
    store(epilogue, sum, x, pixel);
  }

  template <std::size_t kLines>
  static HWY_INLINE void begin(const quarter_epilogue<true>& epilogue,
                               int_vector (&sum)[kLines][quarters]) noexcept {
    DETENT_UNROLL for (std::size_t r = 0; r < kLines; ++r) { epilogue.begin(sum[r]); }
  }
  template <std::size_t kLines>
  HWY_INLINE void store(const quarter_epilogue<true>& epilogue,
                        const int_vector (&sum)[kLines][quarters], std::size_t x,
                        std::size_t pixel) const noexcept {
    DETENT_UNROLL for (std::size_t r = 0; r < kLines; ++r) {
      store_line(epilogue, sum[r], x, (pixel + r * out_width_ + x) * channels_);
    }
  }

  /// Stores the results of one line for the pixels from x on, at element `index` of the output.
  HWY_INLINE void store_line(const quarter_epilogue<true>& epilogue,
                             const int_vector (&sum)[quarters], std::size_t x,
                             std::size_t index) const noexcept {
    if constexpr (kPixels == 1) {
      epilogue.store_bytes(sum, count_, c_, index);
    } else {
      const std::size_t pixels = (std::min)(kPixels, out_width_ - x);
      if (dense_) {
        epilogue.store_bytes(sum, pixels * period, c_, index);
        return;
      }
      alignas(64) std::uint8_t all[part_channels];
      hn::Store(epilogue.bytes(sum), byte_tag{}, all);
      for (std::size_t i = 0; i < pixels; ++i, index += channels_) {
        const hn::Vec<pixel_tag> v = hn::LoadU(pixel_tag{}, all + i * period);
        if (count_ == period) {
          hn::StoreU(v, pixel_tag{}, c_ + index);
        } else {
          store_part(v, pixel_tag{}, c_ + index, count_);
        }
      }
    }
  }

  template <std::size_t kLines>
  HWY_INLINE void run_segment(const line_array& lines, std::size_t x, std::size_t vectors,
                              std::size_t pixel) noexcept {
    // A copy, because for all that the compiler knows, the stores might change the member.
    const quarter_epilogue<true> epilogue = epilogue_;
    const std::size_t column = x * stride - pad_left_;
    constexpr std::size_t step = kPixels * stride;
    const std::size_t all = vectors + behind;
    std::size_t done = 0;
    for (; done < (std::min)(all, behind + ahead); ++done) {
      interleave_to<kLines>(done, lines, column + done * step);
    }
    if constexpr (is_five) {
      interleave_outer<kLines>(lines, column, 0);
      interleave_outer<kLines>(lines, column + group_depth, 1);
    }
    for (std::size_t v = 0; v < vectors; ++v) {
      if (done < all) {
        interleave_to<kLines>(done, lines, column + done * step);
        ++done;
      }
      if constexpr (is_five) {
        if (v % group_depth == 0) {
          const std::size_t next = v / group_depth + 2;
          interleave_outer<kLines>(lines, column + next * group_depth, next);
        }
      }
      multiply<kLines>(epilogue, v, x + v * kPixels, pixel);
    }
  }

  /// Computes whole lines; interleaved bytes stay in registers for all the vectors that need them.
  template <std::size_t kLines>
  HWY_INLINE void run_in_registers(const line_array& lines, std::size_t vectors,
                                   std::size_t pixel) const noexcept {
    const quarter_epilogue<true> epilogue = epilogue_;
    constexpr std::size_t step = kPixels * stride;
    // Vectors that are held at a time: the loop is unrolled as often, so that each has fixed
    // registers.
    constexpr std::size_t held = behind + 1;
    interleaved x[held];
    std::size_t column = std::size_t{0} - pad_left_;
    DETENT_UNROLL for (std::size_t i = 0; i < behind; ++i, column += step) {
      interleave<kLines>(lines, column, x[i]);
    }
    for (std::size_t v = 0; v < vectors; v += held) {
      DETENT_UNROLL for (std::size_t i = 0; i < held; ++i) {
        if (v + i < vectors) {
          interleave<kLines>(lines, column, x[(i + behind) % held]);
          multiply<kLines>(epilogue, x[i], x[(i + 1) % held], x[(i + behind) % held],
                           (v + i) * kPixels, pixel);
          column += step;
        }
      }
    }
  }

  static constexpr std::size_t buffer_vectors = in_registers ? 1 : segment_vectors + group_depth;
  using buffer = interleaved_pixels<buffer_vectors>;
  /// The buffers second_ and third_. For 5 x 5 filters their vectors hold four columns of an outer
  /// line each; 3 x 3 filters with stride 1 have no use for them.
  using outer_buffer = interleaved_pixels<is_stride2 ? buffer_vectors
                                          : is_five  ? segment_vectors / group_depth + 2
                                                     : 1>;

  std::size_t count_, channels_;
  std::size_t in_width_, out_width_, pad_left_;
  bool dense_;
  const std::int8_t* weights_;
  std::uint8_t* c_;
  quarter_epilogue<true> epilogue_;
  alignas(64) std::uint8_t blank_[part_channels];
  buffer first_;
  outer_buffer second_, third_;
};

/// Computes all line pairs, for the part of the channels that begins at `first`.
template <depthwise_filter kFilter, std::size_t kPixels>
void depthwise_line_part(const depthwise_lines_args& d, std::size_t first) noexcept {
  using part_type = line_part<kFilter, kPixels>;
  part_type part(d, first);
  for (std::size_t p = 0; p < d.pair_count; ++p) {
    typename part_type::line_array lines;
    for (std::size_t i = 0; i < part_type::input_lines; ++i) {
      lines[i] = d.lines[p * part_type::input_lines + i] + first;
    }
    if (d.pairs[p].lines == 2) {
      part.template run<2>(lines, d.pairs[p].pixel);
    } else {
      part.template run<1>(lines, d.pairs[p].pixel);
    }
  }
}

template <depthwise_filter kFilter>
void depthwise_lines_of(const depthwise_lines_args& d) noexcept {
  for (std::size_t first = 0; first < d.channels; first += part_channels) {
    if constexpr (kFilter != depthwise_filter::five) {
      const std::size_t period = first % strip_columns == 0
                                     ? depthwise_period(kFilter, d.channels - first)
                                     : strip_columns;
      if (period * 2 == part_channels) {
        depthwise_line_part<kFilter, 2>(d, first);
        continue;
      }
      if constexpr (part_channels == strip_columns) {
        if (period * 4 == part_channels) {
          depthwise_line_part<kFilter, 4>(d, first);
          continue;
        }
      }
    }
    depthwise_line_part<kFilter, 1>(d, first);
  }
}

inline void depthwise_lines(const depthwise_lines_args& d) noexcept {
  switch (d.filter) {
    case depthwise_filter::three:
      return depthwise_lines_of<depthwise_filter::three>(d);
    case depthwise_filter::three_stride2:
      return depthwise_lines_of<depthwise_filter::three_stride2>(d);
    case depthwise_filter::five:
      return depthwise_lines_of<depthwise_filter::five>(d);
  }
}

}  // namespace DETENT_PASS_NAMESPACE
DETENT_KERNELS_NAMESPACE_END
HWY_POP_ATTRIBUTES

#endif  // DETENT_PASS_PAIRS

#include <detent/kernels/vector/end_text-inl.hpp>
#endif  // DETENT_KERNELS_TEXT
