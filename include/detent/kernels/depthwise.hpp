// SPDX-License-Identifier: BSD-3-Clause
// The family of 8-bit depthwise products: each channel of an image with a filter of its own. A
// depthwise block is strip_columns (64) neighbouring channels, a group four taps of one channel;
// panels.hpp has a picture of the quarters of a block.
#ifndef DETENT_KERNELS_DEPTHWISE_HPP
#define DETENT_KERNELS_DEPTHWISE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>
#include <detent/kernels/depthwise_rows.hpp>
#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// The weights of an 8-bit depthwise product, less their zero points, in depthwise blocks of 64
/// channels and groups of 4 taps, with zeros behind the last tap. The channels of a block are
/// stored in four quarters, because instructions that interleave bytes do so within 16 bytes. Lane
/// i of a quarter is channel
///
///   channel(quarter, i) = i / 4 * 16 + quarter * 4 + i % 4        for 0 <= i < 16
///
/// of its block. The same weights are stored as bytes for vpdpbusd, and as 16-bit words for
/// vpmaddwd, the even taps of each lane apart from the odd ones:
///
///   bytes[(((block * groups + group) * 4 + quarter) * 16 + i) * 4 + tap % 4]
///   words[((((block * groups + group) * 4 + quarter) * 2 + tap % 2) * 16 + i) * 2 + tap % 4 / 2]
///
/// `bytes` is null if a weight less its zero point does not fit a signed byte. If there are exactly
/// 8, 16 or 32 channels, the block repeats them until it is full, so that one vector can hold
/// several pixels; otherwise what lies behind the last channel is zero.
struct depthwise_panels {
  const std::int8_t* bytes = nullptr;
  const std::int16_t* words = nullptr;
};

/// Arguments of depthwise_u8. The addresses of a run's taps are readable up to a whole group; those
/// behind the last tap, whose weights are 0, may be any address that the last tap could be.
struct depthwise_u8_args {
  depthwise_rows<std::uint8_t> rows;
  depthwise_panels weights;
  void* c = nullptr;  // pixels x channels, dense
  integer_epilogue epilogue;
};

/// Filters whose depthwise products can be computed line by line (depthwise_lines), if the output
/// has bytes and the weights less their zero points fit bytes: 3 x 3 with stride 1, 3 x 3 with
/// stride 2, and 5 x 5 with stride 1. No dilation.
enum class depthwise_filter : std::uint8_t { three, three_stride2, five };
inline constexpr std::size_t depthwise_filters = 3;

/// Number of input lines that two neighbouring output lines read together.
[[nodiscard]] inline constexpr std::size_t depthwise_input_lines(depthwise_filter f) noexcept {
  return f == depthwise_filter::three ? 4 : f == depthwise_filter::three_stride2 ? 5 : 6;
}
/// Number of groups of four taps that two neighbouring output lines have together; line_taps() in
/// images/depthwise.hpp lists them.
[[nodiscard]] inline constexpr std::size_t depthwise_groups(depthwise_filter f) noexcept {
  return f == depthwise_filter::five ? 26 : 6;
}
/// Distance in input columns and lines between neighbouring output pixels.
[[nodiscard]] inline constexpr std::size_t depthwise_stride(depthwise_filter f) noexcept {
  return f == depthwise_filter::three_stride2 ? 2 : 1;
}

/// The number of positions after which the channels of a depthwise block repeat: 16, 32 or 64.
/// `channels` counts the channels from the beginning of the block on. The 64 positions of the block
/// hold these 16 or 32 channels again and again, with zeros where the channels end before; a vector
/// of 64 bytes then holds as many channels of each of 4 or 2 neighbouring pixels.
[[nodiscard]] inline constexpr std::size_t depthwise_period(depthwise_filter f,
                                                            std::size_t channels) noexcept {
  if (f == depthwise_filter::five || channels > strip_columns / 2) {
    return strip_columns;
  }
  return channels > strip_columns / 4 ? strip_columns / 2 : strip_columns / 4;
}

/// A line pair: two neighbouring lines of the output, or the last one alone, that read the same
/// lines of the input.
struct depthwise_pair {
  std::size_t pixel = 0;  // index in the output of the first line's first pixel
  std::size_t lines = 0;  // 2, or 1 for a last line that is alone
};

/// Arguments of depthwise_lines: a depthwise product that is computed line by line, with an output
/// of bytes. Line pair p reads the input lines that lines[p * depthwise_input_lines(filter)] and
/// the pointers after it point to. Pixel x of an output line reads the columns of these from
/// x * depthwise_stride(filter) - pad_left on. Columns before the image and from in_width on have
/// the value `padding`; for lines outside of the image, the caller passes pointers to lines of that
/// value.
///
///   weights[((block * depthwise_groups(filter) + group) * 4 + quarter) * 64 + i * 4 + place]
///
/// are the weights in the blocks and quarters of depthwise_panels; `place` is the byte 0..3 of a
/// group.
struct depthwise_lines_args {
  depthwise_filter filter = depthwise_filter::three;
  const std::int8_t* weights = nullptr;
  const std::uint8_t* const* lines = nullptr;
  const depthwise_pair* pairs = nullptr;
  std::size_t pair_count = 0;
  std::size_t channels = 0;
  std::size_t in_width = 0, out_width = 0, pad_left = 0;
  std::uint8_t padding = 0;
  std::uint8_t* c = nullptr;  // pixels x channels, dense
  integer_epilogue epilogue;  // row_sum is not used
};

/// The kernels of 8-bit depthwise products.
struct depthwise_kernels {
  void (*depthwise_u8)(const depthwise_u8_args& args) noexcept;
  void (*depthwise_lines)(const depthwise_lines_args& args) noexcept;  // null: no faster

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const depthwise_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_DEPTHWISE_HPP
