// SPDX-License-Identifier: BSD-3-Clause
// The family of 8-bit depthwise products.
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

/// Weights of 8-bit depthwise products, less their zero points, in blocks of strip_columns channels
/// and groups of group_depth taps; zeros where the taps end early. The channels of a block stand in
/// four quarters: instructions that interleave bytes do so within 16 of them.
///
///   channel(quarter, i) = i / 4 * 16 + quarter * 4 + i % 4        for 0 <= i < 16
///   bytes[(((block * groups + group) * 4 + quarter) * 16 + i) * 4 + tap % 4]
///   words[((((block * groups + group) * 4 + quarter) * 2 + tap % 2) * 16 + i) * 2 + tap % 4 / 2]
///
/// `bytes` is null if a weight less its zero point does not fit one. Of up to panel_columns * 2
/// channels that divide a block, the block holds the same channels again and again; in other blocks
/// what lies behind the last channel is zero.
struct depthwise_panels {
  const std::int8_t* bytes = nullptr;
  const std::int16_t* words = nullptr;
};

/// Addresses of taps are readable up to a whole group (those behind the last tap are any address
/// that the last tap could be).
struct depthwise_u8_args {
  depthwise_rows<std::uint8_t> rows;
  depthwise_panels weights;
  void* c = nullptr;  // pixels x channels, dense
  integer_epilogue epilogue;
};

/// Filters whose depthwise products may be done line by line, where the output has bytes and so do
/// the weights less their zero points: 3 x 3, the same with strides of 2, and 5 x 5; no dilation.
enum class depthwise_filter : std::uint8_t { three, three_stride2, five };
inline constexpr std::size_t depthwise_filters = 3;

/// Two lines of the output read so many lines of the input, and have so many groups of four taps
/// between them; line_taps() in depthwise.hpp says which.
[[nodiscard]] inline constexpr std::size_t depthwise_input_lines(depthwise_filter f) noexcept {
  return f == depthwise_filter::three ? 4 : f == depthwise_filter::three_stride2 ? 5 : 6;
}
[[nodiscard]] inline constexpr std::size_t depthwise_groups(depthwise_filter f) noexcept {
  return f == depthwise_filter::five ? 26 : 6;
}
[[nodiscard]] inline constexpr std::size_t depthwise_stride(depthwise_filter f) noexcept {
  return f == depthwise_filter::three_stride2 ? 2 : 1;
}

/// Of `channels` from the beginning of a block on, the block of weights holds so many again and
/// again, and a vector of the block's size so many of each of its pixels.
[[nodiscard]] inline constexpr std::size_t depthwise_period(depthwise_filter f,
                                                            std::size_t channels) noexcept {
  if (f == depthwise_filter::five || channels > strip_columns / 2) {
    return strip_columns;
  }
  return channels > strip_columns / 4 ? strip_columns / 2 : strip_columns / 4;
}

/// Two lines of the output, or one, that read the same lines of the input.
struct depthwise_pair {
  std::size_t pixel = 0;  // position of the first one's first pixel in the output
  std::size_t lines = 0;
};

/// A depthwise product that is done line by line, with an output of bytes. Pair p reads the lines
/// that begin at lines[p * depthwise_input_lines(filter)] and so on; its pixel x reads their
/// columns from x * depthwise_stride(filter) - pad_left on. Columns beyond in_width have the value
/// `padding`; lines beyond the image are lines of that value.
///
///   weights[((block * depthwise_groups(filter) + group) * 4 + quarter) * 64 + i * 4 + place]
///
/// has the blocks and quarters of depthwise_panels.
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
  integer_epilogue epilogue;  // row_sum unused
};

/// The kernels of 8-bit depthwise products.
struct depthwise_kernels {
  void (*depthwise_u8)(const depthwise_u8_args& args) noexcept;
  void (*depthwise_lines)(const depthwise_lines_args& args) noexcept;  // null where it is no faster

  /// The kernels of a target; null if they are not compiled in. Thread-safe.
  [[nodiscard]] static const depthwise_kernels* of(target t) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_DEPTHWISE_HPP
