// SPDX-License-Identifier: BSD-3-Clause
// The seam between the numerics and the kernels: one table of function pointers per CPU target.
//
// Kernels are noexcept and check nothing; the public headers check. Each of them equals its
// definition in reference.hpp bit for bit. Pointers need no alignment; outputs do not overlap
// inputs.
#ifndef DETENT_KERNELS_TABLE_HPP
#define DETENT_KERNELS_TABLE_HPP

#include <cstddef>
#include <cstdint>

#include <detent/target.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Columns of a weight matrix are packed in panels of this many, on every target.
inline constexpr std::size_t panel_columns = 16;
/// Within a panel of 8-bit weights, this many consecutive k of a column stand together.
inline constexpr std::size_t group_depth = 4;

/// What the epilogue of an integer product writes.
enum class integer_output : std::uint8_t { s32, f32, bf16, u8, s8 };

/// From the 32-bit sum of a raw product (no zero points yet) to what is stored:
///
///   v = sum + column_offset[j] - row_sum[i] * rhs_zero_point[j]
///           - row_zero_point[i] * column_sum[j]                          (modulo 2^32)
///   m = multiplier[j], or row_scale[i] * multiplier[j]
///   s32  v, or v + addend[i, j]                                        (modulo 2^32)
///   f32  clamp(float(v) * m, lower, upper)
///        clamp(fma(float(v), m, bias[j]) + residual[i, j], lower, upper)   if either is there
///   bf16 the same, rounded to bfloat16, half to even
///   u8s8 clamp(round_half_even(float(v) * multiplier[j]) + zero_point, qmin, qmax)
///
/// The per-column arrays are readable up to the next multiple of panel_columns. The rows of a
/// depthwise product are its pixels: it has no per-row arrays and no addend, and its residual is as
/// dense as C. Residual and addend may be C.
struct integer_epilogue {
  integer_output output = integer_output::s32;
  const std::int32_t* column_offset = nullptr;   // bias and the zero-point terms of the column
  const std::int32_t* row_sum = nullptr;         // null when no rhs zero point is set
  const std::int32_t* rhs_zero_point = nullptr;  // null when row_sum is
  const std::int32_t* row_zero_point = nullptr;  // null, or of the left side
  const std::int32_t* column_sum = nullptr;      // read where row_zero_point is not null
  const float* multiplier = nullptr;             // null for s32
  const float* row_scale = nullptr;              // null, or with f32 and bf16 only
  const float* bias = nullptr;                   // null, or with f32 and bf16 only
  const float* residual = nullptr;               // null, or with f32 and bf16 only
  std::size_t residual_stride = 0;
  const std::int32_t* addend = nullptr;  // null, or with s32 only
  std::size_t addend_stride = 0;
  std::int32_t zero_point = 0;
  std::int32_t qmin = 0;
  std::int32_t qmax = 0;
  float lower = 0.0F;
  float upper = 0.0F;
};

/// Signed 8-bit weights, k x n:
///
///   data[((panel * groups + group) * 16 + column) * 4 + depth]
///
/// with groups = ceil(k / 4) and zeros where k or n end early.
///
/// Where an instruction adds the products of two neighbouring k in 16 bits (vpmaddubsw), `paired`
/// is read instead, of which no pair overflows with any u8. Each strip of strip_columns columns has
/// an order of its own of the k within blocks of block_depth, and takes 255 - a in place of some a,
/// with the opposite weights, both chosen so that hardly any pair would:
///
///   k = block * block_depth + order[i]
///   a'(i) = a(k) ^ complement[i]                                         (complement: 0 or 255)
///   paired(block * block_depth + i, j) = data(k, j) - correction         where complement[i] is 0
///                                       -data(k, j) - correction         where it is 255
///   offset[j] = 255 * sum of data(k, j) over those k                     (modulo 2^32)
///
/// with 16 bytes of order and of complement for each block of each strip, and zeros up to a whole
/// block, and offsets up to a whole panel. Corrections are what is left: those of a panel are
/// first_correction[panel] .. first_correction[panel + 1]; number i belongs to group
/// correction_group[i] of that order, ascending within a panel, and is laid out like a group. All
/// but `data` is null for tables without adds_pairs.
struct packed_panels {
  const std::int8_t* data = nullptr;
  const std::int8_t* paired = nullptr;
  const std::uint8_t* order = nullptr;
  const std::uint8_t* complement = nullptr;
  const std::int32_t* offset = nullptr;
  const std::size_t* first_correction = nullptr;
  const std::size_t* correction_group = nullptr;
  const std::int8_t* corrections = nullptr;
};
inline constexpr std::size_t block_depth = 16;
inline constexpr std::size_t strip_columns = 64;

/// Sizes of caches in bytes: of the first level (of data) and the second of a core, and of the
/// third, which cores share. Products are divided so that what they read again stays there; results
/// do not depend on it.
struct cache_sizes {
  std::size_t first_level = 0;
  std::size_t second_level = 0;
  std::size_t third_level = 0;
  friend constexpr bool operator==(const cache_sizes&, const cache_sizes&) = default;
};

/// Those of the processor that runs this; what it does not tell is 32 KB, 1 MB and 16 MB.
/// Thread-safe.
[[nodiscard]] DETENT_DECL const cache_sizes& processor_caches() noexcept;

/// The part of the first level that operands may take which are read again and again, while others
/// pass by: half of it, or up to three quarters of a small one.
[[nodiscard]] inline constexpr std::size_t reused_part(std::size_t first_level) noexcept {
  constexpr std::size_t enough = std::size_t{24} << 10;
  const std::size_t most = first_level - first_level / 4;
  const std::size_t bounded = most < enough ? most : enough;
  return bounded > first_level / 2 ? bounded : first_level / 2;
}

/// C[m x n] = epilogue(A[m x k] * B[k x n]); A unsigned and row-major, or, with `rows`, in segments
/// that may be anywhere: rows[s * m + i] is where segment s of row i is, and has k / segments
/// values, a multiple of group_depth. Tables with adds_pairs do not take those. The bytes of A may
/// be signed ones: tables that do not say multiplies_signed take them as 128 more, and not in
/// segments.
struct gemm_u8s8_args {
  const std::uint8_t* a = nullptr;
  bool lhs_signed = false;
  std::size_t lda = 0;
  const std::uint8_t* const* rows = nullptr;
  std::size_t segments = 1;
  packed_panels b;
  void* c = nullptr;  // of the epilogue's output type
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;
  std::size_t following_columns = 0;  // of B behind the n, which may be wanted next
  integer_epilogue epilogue;
  cache_sizes caches;
  std::byte* workspace = nullptr;  // gemm_workspace() bytes, at a multiple of 64
};

/// The largest rows_per_call of any table.
inline constexpr std::size_t largest_rows_per_call = 256;

/// 4-bit weights, k x n, as codes 0..15 with a zero point and a scale for each column of each group
/// of group_size (a multiple of nibble_depth) k. Eight k of a column stand in four bytes, the first
/// four in their low halves:
///
///   data[((panel * steps + k / 8) * 16 + column) * 4 + k % 4]             steps = ceil(k / 8)
///   scale[(panel * groups + group) * 16 + column]                         groups = ceil(k /
///   group_size)
///
/// zero_point and column_sum (of codes less their zero points) as scale. Panels are filled up to a
/// multiple of strip_columns columns.
struct packed_nibbles {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* zero_point = nullptr;
  const float* scale = nullptr;
  const std::int32_t* column_sum = nullptr;
  std::size_t group_size = 0;
};
inline constexpr std::size_t nibble_depth = 8;
inline constexpr std::size_t nibble_panel_bytes = panel_columns * nibble_depth / 2;

/// Products of so many rows unpack 4-bit weights to memory: at most unpacked_depth k of a strip of
/// columns, with a line of 64 bytes behind each panel. Beside it they keep a sum and a float for
/// each row and column of the strip.
inline constexpr std::size_t fewest_unpacked_rows = 9;
inline constexpr std::size_t unpacked_depth = 2048;
inline constexpr std::size_t unpacked_bytes =
    unpacked_depth * strip_columns + strip_columns / panel_columns * 64;
inline constexpr std::size_t unpacked_workspace =
    unpacked_bytes + largest_rows_per_call * strip_columns * (sizeof(std::int32_t) + sizeof(float));

/// sum[g] = sum_(k in g) A[i, k] * (B[k, j] - zero_point[g, j]) - row_zero_point[i] * column_sum[g,
/// j] real   = fma(float(sum[last]), scale[last, j], ... fma(float(sum[0]), scale[0, j], 0) ...)
/// C[m x n] = clamp(fma(real, row_scale[i], bias[j]) + residual[i, j], lower, upper)
///
/// A unsigned and row-major; bias and residual may be null; the residual may be C.
struct gemm_u8u4_args {
  const std::uint8_t* a = nullptr;
  std::size_t lda = 0;
  packed_nibbles b;
  float* c = nullptr;
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;               // m: at most largest_rows_per_call
  const std::int32_t* row_zero_point = nullptr;  // 0..255
  const float* row_scale = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  std::size_t residual_stride = 0;
  float lower = 0.0F, upper = 0.0F;
  std::byte* workspace = nullptr;  // unpacked_workspace bytes, at a multiple of 64; with
                                   // fewest_unpacked_rows
};

/// C[m x n] = clamp(bias[j] + sum_k A[i, k] * B[k, j], lower, upper), a chain of fused
/// multiply-adds in the order of k. B is packed in panels: packed[(panel * k + depth) * 16 +
/// column].
struct gemm_f32_args {
  const float* a = nullptr;
  std::size_t lda = 0;
  const float* packed_b = nullptr;
  const float* bias = nullptr;  // readable up to the next multiple of panel_columns
  float* c = nullptr;
  std::size_t ldc = 0;
  std::size_t m = 0, n = 0, k = 0;
  float lower = 0.0F, upper = 0.0F;
};

/// Output pixels of a depthwise product that read the same way:
///
///   sum[pixel + i, c] = sum_t taps[tap + t][i * step + c] * weights[t, c]     for 0 <= i < pixels
struct depthwise_run {
  std::size_t tap = 0;    // where the addresses of its taps begin
  std::size_t pixel = 0;  // position in the output
  std::size_t pixels = 0;
};

/// The runs of a depthwise product, and what is the same for all of them.
template <class T>
struct depthwise_rows {
  const T* const* taps = nullptr;
  const depthwise_run* runs = nullptr;
  std::size_t run_count = 0;
  std::size_t tap_count = 0, channels = 0;
  std::size_t step = 0;  // from a tap of one pixel to the same tap of the next, in elements
  // If not 0, then in runs of several pixels the taps 4 * (g * width + i) + 0..3 are those of group
  // g * width, i steps on, for 0 <= i < width.
  std::size_t width = 0;
};

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

/// depthwise_u8_args in float: clamp(bias[c] + chain of fused multiply-adds over t, lower, upper),
/// with weights[t * channel_stride + c].
struct depthwise_f32_args {
  depthwise_rows<float> rows;
  const float* weights = nullptr;
  std::size_t channel_stride = 0;
  const float* bias = nullptr;
  float* c = nullptr;
  float lower = 0.0F, upper = 0.0F;
};

/// A matrix of elements of any type, and where its transpose goes: element (r, c) to
///
///   to[c / line * line_step + c % line * to_stride + r]
///
/// Columns may be the pixels of an image whose lines get room between them. What is read and what
/// is written do not overlap.
struct transpose_args {
  const void* from = nullptr;
  std::size_t from_stride = 0;
  std::size_t rows = 0, columns = 0;  // not 0
  void* to = nullptr;
  std::size_t to_stride = 0;
  std::size_t line = 0, line_step = 0;  // not 0
};

/// The integer types of the elementwise rows. Those of four bits stand two in a byte, the first in
/// the low half.
template <class Storage, int kBits, bool kSigned>
struct code {
  using storage = Storage;
  static constexpr int bits = kBits;
  static constexpr bool is_signed = kSigned;
};
using u4_code = code<std::uint8_t, 4, false>;
using s4_code = code<std::uint8_t, 4, true>;
using u8_code = code<std::uint8_t, 8, false>;
using s8_code = code<std::int8_t, 8, true>;
using u16_code = code<std::uint16_t, 16, false>;
using s16_code = code<std::int16_t, 16, true>;
using s32_code = code<std::int32_t, 32, true>;

/// A block of rows x columns, dense in the columns, and the parameters of its elements:
///
///   element (r, c) has scale[r * parameter_step + (per_column ? c : 0)] and the zero point there
///
/// Strides are in elements (of 4-bit types too, where they and the number of columns are even).
struct elementwise_args {
  std::size_t rows = 1, columns = 0;
  std::ptrdiff_t in_stride = 0, out_stride = 0;
  const float* scale = nullptr;  // quantize, dequantize: the scale; requantize: the multiplier
  const std::int32_t* zero_point = nullptr;
  std::ptrdiff_t parameter_step = 0;
  bool per_column = false;
  const std::int32_t* bias = nullptr;  // requantize: null, or what is added first, as the scale
  std::int32_t qmin = 0, qmax = 0;
  bool stream = false;  // write past the caches, where rows of the output start on cache lines
  std::size_t read_ahead = 0;  // bytes from what is read to what is prefetched; 0: nothing is
};

/// Bytes of an 8-bit type that stand for (byte ^ flip - zero_point) * scale: flip is 0x80 of signed
/// ones, which moves them up by 128, and so is their zero point.
struct quantized_bytes {
  const std::uint8_t* data = nullptr;
  std::uint8_t flip = 0;
  std::int32_t zero_point = 0;
  float scale = 0.0F;
};

enum class binary_function : std::uint8_t { add, sub, mul, div };

[[nodiscard]] inline float combine(binary_function f, float a, float b) noexcept {
  switch (f) {
    case binary_function::add:
      return a + b;
    case binary_function::sub:
      return a - b;
    case binary_function::mul:
      return a * b;
    case binary_function::div:
      break;
  }
  return a / b;
}

/// out[i] = reference::quantized_binary of a[i] and b[i]. `out` has the bytes of u8 or s8, may be
/// the very buffer of an operand, and its zero point is one of its levels.
struct quantized_binary_args {
  binary_function function = binary_function::add;
  quantized_bytes a, b;
  void* out = nullptr;
  bool out_signed = false;
  float scale = 0.0F;
  std::int32_t zero_point = 0;
  std::int32_t qmin = 0, qmax = 0;
  std::size_t count = 0;
};

/// A block of rows x columns, dense in the columns, of which each row is quantized with parameters
/// of its own:
///
///   range of row r = reference::min_max of it, or 0 .. 0 if it has no number
///   scale[r], zero_point[r] = reference::params_from_range of that, on qmin .. qmax
struct dynamic_rows_args {
  std::size_t rows = 0, columns = 0;
  std::ptrdiff_t in_stride = 0, out_stride = 0;
  float* scale = nullptr;
  std::int32_t* zero_point = nullptr;
  bool symmetric = false;
  std::int32_t qmin = 0, qmax = 0;
};

/// What min_max() returns; see reference::min_max.
struct min_max_result {
  float lower;
  float upper;
  std::size_t count_nan;
  friend bool operator==(const min_max_result&, const min_max_result&) = default;
};

/// Bins of floats by the top bits of their patterns: 9 bits of the mantissa, 31 octaves.
inline constexpr int bin_mantissa_bits = 9;
inline constexpr std::uint32_t bin_octaves = 31;
/// The bits of a pattern that a bin's number does not have.
inline constexpr int bin_dropped_bits = 23 - bin_mantissa_bits;

/// What bin_positions() returns; see reference::bin_position.
struct bin_block {
  std::size_t count;  // positions written: values that are not zero
  std::uint32_t
      largest;         // the largest pattern of an |x|: infinity or above where one is not finite
  float lower, upper;  // as min_max_result
  friend bool operator==(const bin_block&, const bin_block&) = default;
};

struct kernel_table {
  target id;
  bool adds_pairs;            // gemm_u8s8 reads packed_panels::paired
  bool multiplies_signed;     // and takes signed left sides as they are
  std::size_t rows_per_call;  // the most rows that it is worth calling gemm_u8s8 with
  std::size_t rows_per_tile;  // rows that it takes at a time; divides rows_per_call
  // What gemm_u8s8_args::workspace has room for; the other arguments are known.
  std::size_t (*gemm_workspace)(const gemm_u8s8_args& args) noexcept;
  min_max_result (*min_max)(const float* x, std::size_t n) noexcept;
  // Of each column of a matrix, into results of what is above it; see reference::min_max.
  void (*min_max_columns)(const float* x, std::size_t rows, std::size_t columns,
                          std::ptrdiff_t row_stride, float* lower, float* upper,
                          std::uint64_t* count_nan) noexcept;
  // Positions of the values that are not zero, in their order; writes up to 16 beyond them.
  bin_block (*bin_positions)(const float* x, std::size_t n, std::uint32_t lowest,
                             std::uint32_t* positions) noexcept;
  // Modulo 2^32.
  std::int32_t (*sum_u8)(const std::uint8_t* q, std::size_t n) noexcept;
  std::int32_t (*sum_s8)(const std::int8_t* q, std::size_t n) noexcept;
  // reference::quantize, dequantize and requantize.
  void (*quantize_u4)(const float* x, const elementwise_args& a, std::uint8_t* q) noexcept;
  void (*quantize_s4)(const float* x, const elementwise_args& a, std::uint8_t* q) noexcept;
  void (*quantize_u8)(const float* x, const elementwise_args& a, std::uint8_t* q) noexcept;
  void (*quantize_s8)(const float* x, const elementwise_args& a, std::int8_t* q) noexcept;
  void (*quantize_u16)(const float* x, const elementwise_args& a, std::uint16_t* q) noexcept;
  void (*quantize_s16)(const float* x, const elementwise_args& a, std::int16_t* q) noexcept;
  // reference::quantize of rows. Returns how many rows are done: those before the first one whose
  // scale would not be finite.
  std::size_t (*dynamic_rows_u8)(const float* x, const dynamic_rows_args& a,
                                 std::uint8_t* q) noexcept;
  std::size_t (*dynamic_rows_s8)(const float* x, const dynamic_rows_args& a,
                                 std::int8_t* q) noexcept;
  std::size_t (*dynamic_rows_u16)(const float* x, const dynamic_rows_args& a,
                                  std::uint16_t* q) noexcept;
  std::size_t (*dynamic_rows_s16)(const float* x, const dynamic_rows_args& a,
                                  std::int16_t* q) noexcept;
  void (*dequantize_u4)(const std::uint8_t* q, const elementwise_args& a, float* x) noexcept;
  void (*dequantize_s4)(const std::uint8_t* q, const elementwise_args& a, float* x) noexcept;
  void (*dequantize_u8)(const std::uint8_t* q, const elementwise_args& a, float* x) noexcept;
  void (*dequantize_s8)(const std::int8_t* q, const elementwise_args& a, float* x) noexcept;
  void (*dequantize_u16)(const std::uint16_t* q, const elementwise_args& a, float* x) noexcept;
  void (*dequantize_s16)(const std::int16_t* q, const elementwise_args& a, float* x) noexcept;
  void (*dequantize_s32)(const std::int32_t* q, const elementwise_args& a, float* x) noexcept;
  void (*requantize_u8)(const std::int32_t* acc, const elementwise_args& a,
                        std::uint8_t* q) noexcept;
  void (*requantize_s8)(const std::int32_t* acc, const elementwise_args& a,
                        std::int8_t* q) noexcept;
  void (*requantize_u16)(const std::int32_t* acc, const elementwise_args& a,
                         std::uint16_t* q) noexcept;
  void (*requantize_s16)(const std::int32_t* acc, const elementwise_args& a,
                         std::int16_t* q) noexcept;
  void (*quantized_binary)(const quantized_binary_args& args) noexcept;
  void (*gemm_f32)(const gemm_f32_args& args) noexcept;
  void (*depthwise_f32)(const depthwise_f32_args& args) noexcept;
  void (*gemm_u8s8)(const gemm_u8s8_args& args) noexcept;
  void (*depthwise_u8)(const depthwise_u8_args& args) noexcept;
  void (*depthwise_lines)(const depthwise_lines_args& args) noexcept;  // null where it is no faster
  void (*gemm_u8u4)(const gemm_u8u4_args& args) noexcept;
  // Of elements of 8, 16 and 32 bits.
  void (*transpose_8)(const transpose_args& args) noexcept;
  void (*transpose_16)(const transpose_args& args) noexcept;
  void (*transpose_32)(const transpose_args& args) noexcept;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_TABLE_HPP
