// SPDX-License-Identifier: BSD-3-Clause
// The portable target: plain C++ that every compiler can vectorize, and the only target where
// Highway is absent.
#ifndef DETENT_KERNELS_PORTABLE_HPP
#define DETENT_KERNELS_PORTABLE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <detent/kernels/table.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN
namespace portable {

/// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 half to even, and vectorizes.
inline constexpr float rounding_bias = 12582912.0F;

/// reference::to_grid without branches; see there.
inline std::int32_t to_grid(float steps, std::int32_t zero_point, std::int32_t qmin,
                            std::int32_t qmax) noexcept {
  const auto lowest = static_cast<float>(qmin - zero_point);
  const auto highest = static_cast<float>(qmax - zero_point);
  float v = steps == steps ? steps : 0.0F;
  v = v < lowest ? lowest : v;
  v = v > highest ? highest : v;
  v = (v + rounding_bias) - rounding_bias;
  return static_cast<std::int32_t>(v) + zero_point;
}

inline float clamp(float x, float lower, float upper) noexcept {
  x = x < lower ? lower : x;
  return x > upper ? upper : x;
}

/// Sums modulo 2^32: the vector kernels' lanes wrap, and the caller has proved that the final value
/// fits.
inline std::uint32_t wrapping(std::int32_t v) noexcept { return static_cast<std::uint32_t>(v); }

/// Element i of a row of codes.
template <class Code>
std::int32_t get_code(const typename Code::storage* row, std::size_t i) noexcept {
  if constexpr (Code::bits == 4) {
    const std::int32_t nibble = row[i / 2] >> (i % 2 * 4) & 15;
    return Code::is_signed ? (nibble ^ 8) - 8 : nibble;
  } else {
    return row[i];
  }
}

/// Sets it; of the elements of a byte, the lower ones first.
template <class Code>
void set_code(typename Code::storage* row, std::size_t i, std::int32_t v) noexcept {
  using storage = typename Code::storage;
  if constexpr (Code::bits == 4) {
    const unsigned nibble = static_cast<unsigned>(v) & 15U;
    row[i / 2] = static_cast<storage>(i % 2 == 0 ? nibble : row[i / 2] | nibble << 4);
  } else {
    row[i] = static_cast<storage>(v);
  }
}

/// The distance in storage units of elements that are `elements` apart.
template <class Code>
constexpr std::ptrdiff_t storage_offset(std::ptrdiff_t elements) noexcept {
  return Code::bits == 4 ? elements / 2 : elements;
}

/// Calls f(row, first parameter of the row) for each row.
template <class F>
void for_each_row(const elementwise_args& a, const F& f) noexcept {
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    f(row, row * a.parameter_step);
  }
}

template <class Code>
void quantize(const float* x, const elementwise_args& a, typename Code::storage* q) noexcept {
  for_each_row(a, [&](std::ptrdiff_t row, std::ptrdiff_t parameter) {
    const float* from = x + row * a.in_stride;
    typename Code::storage* to = q + storage_offset<Code>(row * a.out_stride);
    const float* scale = a.scale + parameter;
    const std::int32_t* zero_point = a.zero_point + parameter;
    const std::size_t step = a.per_column ? 1 : 0;
    for (std::size_t c = 0; c < a.columns; ++c) {
      set_code<Code>(to, c,
                     to_grid(from[c] / scale[c * step], zero_point[c * step], a.qmin, a.qmax));
    }
  });
}

template <class Code>
void dequantize(const typename Code::storage* q, const elementwise_args& a, float* x) noexcept {
  for_each_row(a, [&](std::ptrdiff_t row, std::ptrdiff_t parameter) {
    const typename Code::storage* from = q + storage_offset<Code>(row * a.in_stride);
    float* to = x + row * a.out_stride;
    const float* scale = a.scale + parameter;
    const std::int32_t* zero_point = a.zero_point + parameter;
    const std::size_t step = a.per_column ? 1 : 0;
    for (std::size_t c = 0; c < a.columns; ++c) {
      const std::int32_t value = get_code<Code>(from, c);
      to[c] = static_cast<float>(value - zero_point[c * step]) * scale[c * step];
    }
  });
}

template <class Code>
void requantize(const std::int32_t* acc, const elementwise_args& a,
                typename Code::storage* q) noexcept {
  for_each_row(a, [&](std::ptrdiff_t row, std::ptrdiff_t parameter) {
    const std::int32_t* from = acc + row * a.in_stride;
    typename Code::storage* to = q + row * a.out_stride;
    const float* multiplier = a.scale + parameter;
    const std::int32_t* zero_point = a.zero_point + parameter;
    const std::size_t step = a.per_column ? 1 : 0;
    for (std::size_t c = 0; c < a.columns; ++c) {
      const std::uint32_t bias =
          a.bias == nullptr ? 0U
                            : wrapping(a.bias[parameter + static_cast<std::ptrdiff_t>(c * step)]);
      const auto sum = static_cast<std::int32_t>(wrapping(from[c]) + bias);
      set_code<Code>(to, c,
                     to_grid(static_cast<float>(sum) * multiplier[c * step], zero_point[c * step],
                             a.qmin, a.qmax));
    }
  });
}

DETENT_DECL min_max_result min_max(const float* x, std::size_t n) noexcept {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  min_max_result r{infinity, -infinity, 0};
  for (std::size_t i = 0; i < n; ++i) {
    const float value = x[i] + 0.0F;
    r.lower = value < r.lower ? value : r.lower;
    r.upper = value > r.upper ? value : r.upper;
    r.count_nan += value != value ? 1U : 0U;
  }
  return r;
}

/// reference::params_from_range without branches on the range; see there.
inline float params_of_range(const min_max_result& range, const dynamic_rows_args& a,
                             std::int32_t* zero_point) noexcept {
  constexpr double rounding_bias_of_doubles = 6755399441055744.0;  // 1.5 * 2^52
  const double lower = range.lower < 0.0F ? static_cast<double>(range.lower) : 0.0;
  const double upper = range.upper > 0.0F ? static_cast<double>(range.upper) : 0.0;
  const std::int32_t middle = (a.qmin + a.qmax + 1) >> 1;
  const std::int32_t half = a.qmax - middle < middle - a.qmin ? a.qmax - middle : middle - a.qmin;
  const double magnitude = -lower > upper ? -lower : upper;
  const double extent = a.symmetric ? magnitude : upper - lower;
  const double steps = a.symmetric ? half : a.qmax - a.qmin;
  float scale = static_cast<float>(extent / steps);
  if (static_cast<double>(scale) * steps < extent) {
    scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
  }
  constexpr float smallest = std::numeric_limits<float>::min();
  scale = extent > 0.0 ? (scale < smallest ? smallest : scale) : 1.0F;
  const double z = (-lower / static_cast<double>(scale) + rounding_bias_of_doubles) -
                   rounding_bias_of_doubles + a.qmin;
  *zero_point = a.symmetric ? middle : z < a.qmax ? static_cast<std::int32_t>(z) : a.qmax;
  return scale;
}

template <class Code>
std::size_t dynamic_rows(const float* x, const dynamic_rows_args& a,
                         typename Code::storage* q) noexcept {
  for (std::size_t r = 0; r < a.rows; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const float* from = x + row * a.in_stride;
    a.scale[r] = params_of_range(min_max(from, a.columns), a, a.zero_point + r);
    if (!(a.scale[r] <= std::numeric_limits<float>::max())) {
      return r;
    }
    elementwise_args e;
    e.columns = a.columns;
    e.scale = a.scale + r;
    e.zero_point = a.zero_point + r;
    e.qmin = a.qmin;
    e.qmax = a.qmax;
    quantize<Code>(from, e, q + row * a.out_stride);
  }
  return a.rows;
}

DETENT_DECL void min_max_columns(const float* x, std::size_t rows, std::size_t columns,
                                 std::ptrdiff_t row_stride, float* lower, float* upper,
                                 std::uint64_t* count_nan) noexcept {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = x + static_cast<std::ptrdiff_t>(r) * row_stride;
    for (std::size_t c = 0; c < columns; ++c) {
      const float value = row[c] + 0.0F;
      lower[c] = value < lower[c] ? value : lower[c];
      upper[c] = value > upper[c] ? value : upper[c];
      count_nan[c] += value != value ? 1U : 0U;
    }
  }
}

DETENT_DECL bin_block bin_positions(const float* x, std::size_t n, std::uint32_t lowest,
                                    std::uint32_t* positions) noexcept {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  bin_block r{0, 0, infinity, -infinity};
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    constexpr std::uint32_t outside = bin_octaves << 23;
    const std::uint32_t above = magnitude - lowest;
    const std::uint32_t place = above < outside ? above : outside;
    positions[r.count] = place | (bits >> 31 << 28);
    r.count += magnitude != 0 ? 1U : 0U;
    r.largest = magnitude > r.largest ? magnitude : r.largest;
    const float value = x[i] + 0.0F;
    r.lower = value < r.lower ? value : r.lower;
    r.upper = value > r.upper ? value : r.upper;
  }
  return r;
}

template <class Q>
std::int32_t sum_codes(const Q* q, std::size_t n) noexcept {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += static_cast<std::uint32_t>(static_cast<std::int32_t>(q[i]));
  }
  return static_cast<std::int32_t>(sum);
}

/// Rounds half to even; NaN keeps its sign and the upper half of its payload, and is quiet.
inline std::uint16_t to_bfloat16(float x) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(std::isnan(x) ? bits >> 16 | 0x40U
                                                  : (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

inline void store(const integer_epilogue& e, std::uint32_t sum, std::size_t row, std::size_t column,
                  void* c, std::size_t index) noexcept {
  sum += wrapping(e.column_offset[column]);
  if (e.row_sum != nullptr) {
    sum -= wrapping(e.row_sum[row]) * wrapping(e.rhs_zero_point[column]);
  }
  if (e.row_zero_point != nullptr) {
    sum -= wrapping(e.row_zero_point[row]) * wrapping(e.column_sum[column]);
  }
  if (e.output == integer_output::s32) {
    if (e.addend != nullptr) {
      sum += wrapping(e.addend[row * e.addend_stride + column]);
    }
    static_cast<std::int32_t*>(c)[index] = static_cast<std::int32_t>(sum);
    return;
  }
  const auto v = static_cast<std::int32_t>(sum);
  if (e.output == integer_output::f32 || e.output == integer_output::bf16) {
    const float multiplier =
        e.row_scale != nullptr ? e.row_scale[row] * e.multiplier[column] : e.multiplier[column];
    float real =
        std::fma(static_cast<float>(v), multiplier, e.bias != nullptr ? e.bias[column] : 0.0F);
    if (e.residual != nullptr) {
      real += e.residual[row * e.residual_stride + column];
    }
    real = clamp(real, e.lower, e.upper);
    if (e.output == integer_output::f32) {
      static_cast<float*>(c)[index] = real;
    } else {
      static_cast<std::uint16_t*>(c)[index] = to_bfloat16(real);
    }
    return;
  }
  const float scaled = static_cast<float>(v) * e.multiplier[column];
  const std::int32_t q = to_grid(scaled, e.zero_point, e.qmin, e.qmax);
  if (e.output == integer_output::u8) {
    static_cast<std::uint8_t*>(c)[index] = static_cast<std::uint8_t>(q);
  } else {
    static_cast<std::int8_t*>(c)[index] = static_cast<std::int8_t>(q);
  }
}

DETENT_DECL void gemm_u8s8(const gemm_u8s8_args& g) noexcept {
  const std::size_t groups = (g.k + group_depth - 1) / group_depth;
  const std::size_t segment = g.k / g.segments;
  const unsigned turned = g.lhs_signed ? 0x80 : 0;
  for (std::size_t column = 0; column < g.n; column += panel_columns) {
    const std::int8_t* panel = g.b.data + column * groups * group_depth;
    const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
    for (std::size_t row = 0; row < g.m; ++row) {
      std::uint32_t sum[panel_columns] = {};
      for (std::size_t k = 0; k < g.k; ++k) {
        const std::uint8_t* from =
            g.rows == nullptr ? g.a + row * g.lda : g.rows[k / segment * g.m + row];
        const auto a = static_cast<std::int32_t>(from[k % segment] ^ turned);
        const std::int8_t* b =
            panel + k / group_depth * group_depth * panel_columns + k % group_depth;
        for (std::size_t j = 0; j < panel_columns; ++j) {
          sum[j] += wrapping(a * b[j * group_depth]);
        }
      }
      for (std::size_t j = 0; j < columns; ++j) {
        store(g.epilogue, sum[j], row, column + j, g.c, row * g.ldc + column + j);
      }
    }
  }
}

/// Calls f(tap addresses, offset from them, output pixel) for each pixel.
template <class T, class F>
void for_each_pixel(const depthwise_rows<T>& rows, const F& f) noexcept {
  for (std::size_t r = 0; r < rows.run_count; ++r) {
    const depthwise_run& run = rows.runs[r];
    for (std::size_t p = 0; p < run.pixels; ++p) {
      f(rows.taps + run.tap, p * rows.step, run.pixel + p);
    }
  }
}

DETENT_DECL void depthwise_u8(const depthwise_u8_args& d) noexcept {
  const std::size_t groups = (d.rows.tap_count + group_depth - 1) / group_depth;
  for_each_pixel(
      d.rows, [&](const std::uint8_t* const* taps, std::size_t offset, std::size_t pixel) {
        for (std::size_t c = 0; c < d.rows.channels; ++c) {
          const std::size_t lane = c % strip_columns;
          const std::size_t i = lane / 16 * 4 + lane % 4;
          const std::size_t quarter = lane % 16 / 4;
          std::uint32_t sum = 0;
          for (std::size_t t = 0; t < d.rows.tap_count; ++t) {
            const std::size_t group = c / strip_columns * groups + t / group_depth;
            const std::int32_t weight =
                d.weights.words[(((group * 4 + quarter) * 2 + t % 2) * 16 + i) * 2 + t % 4 / 2];
            sum += wrapping(taps[t][offset + c] * weight);
          }
          store(d.epilogue, sum, pixel, c, d.c, pixel * d.rows.channels + c);
        }
      });
}

/// What each byte stands for. Values from a table can't be contracted with what is done to them.
DETENT_DECL void dequantize_bytes(const quantized_bytes& q, float (&values)[256]) noexcept {
  for (std::int32_t byte = 0; byte < 256; ++byte) {
    values[byte] = static_cast<float>((byte ^ q.flip) - q.zero_point) * q.scale;
  }
}

DETENT_DECL void quantized_binary(const quantized_binary_args& g) noexcept {
  float a[256];
  float b[256];
  dequantize_bytes(g.a, a);
  dequantize_bytes(g.b, b);
  auto* out = static_cast<std::uint8_t*>(g.out);
  for (std::size_t i = 0; i < g.count; ++i) {
    const float value = combine(g.function, a[g.a.data[i]], b[g.b.data[i]]);
    out[i] = static_cast<std::uint8_t>(to_grid(value / g.scale, g.zero_point, g.qmin, g.qmax));
  }
}

DETENT_DECL void gemm_f32(const gemm_f32_args& g) noexcept {
  for (std::size_t column = 0; column < g.n; column += panel_columns) {
    const float* panel = g.packed_b + column * g.k;
    const std::size_t columns = g.n - column < panel_columns ? g.n - column : panel_columns;
    for (std::size_t row = 0; row < g.m; ++row) {
      float sum[panel_columns];
      std::memcpy(sum, g.bias + column, sizeof sum);
      for (std::size_t k = 0; k < g.k; ++k) {
        const float a = g.a[row * g.lda + k];
        for (std::size_t j = 0; j < panel_columns; ++j) {
          sum[j] = std::fma(a, panel[k * panel_columns + j], sum[j]);
        }
      }
      for (std::size_t j = 0; j < columns; ++j) {
        g.c[row * g.ldc + column + j] = clamp(sum[j], g.lower, g.upper);
      }
    }
  }
}

DETENT_DECL void gemm_u8u4(const gemm_u8u4_args& g) noexcept {
  const std::size_t steps = (g.k + nibble_depth - 1) / nibble_depth;
  const std::size_t groups = (g.k + g.b.group_size - 1) / g.b.group_size;
  for (std::size_t i = 0; i < g.m; ++i) {
    for (std::size_t j = 0; j < g.n; ++j) {
      const std::size_t panel = j / panel_columns;
      const std::size_t first =
          panel * steps * nibble_panel_bytes + j % panel_columns * group_depth;
      float real = 0.0F;
      for (std::size_t group = 0; group < groups; ++group) {
        const std::size_t parameter = (panel * groups + group) * panel_columns + j % panel_columns;
        const std::size_t end = (std::min)((group + 1) * g.b.group_size, g.k);
        // Modulo 2^32, as vector lanes.
        std::uint32_t sum = 0;
        for (std::size_t k = group * g.b.group_size; k < end; ++k) {
          const std::uint8_t both =
              g.b.data[first + k / nibble_depth * nibble_panel_bytes + k % group_depth];
          const int code = k % nibble_depth < group_depth ? both & 0x0F : both >> 4;
          sum +=
              static_cast<std::uint32_t>(g.a[i * g.lda + k] * (code - g.b.zero_point[parameter]));
        }
        sum -= static_cast<std::uint32_t>(g.row_zero_point[i]) *
               static_cast<std::uint32_t>(g.b.column_sum[parameter]);
        real = std::fma(static_cast<float>(static_cast<std::int32_t>(sum)), g.b.scale[parameter],
                        real);
      }
      float x = std::fma(real, g.row_scale[i], g.bias != nullptr ? g.bias[j] : 0.0F);
      if (g.residual != nullptr) {
        x += g.residual[i * g.residual_stride + j];
      }
      g.c[i * g.ldc + j] = clamp(x, g.lower, g.upper);
    }
  }
}

DETENT_DECL void depthwise_f32(const depthwise_f32_args& d) noexcept {
  for_each_pixel(d.rows, [&](const float* const* taps, std::size_t offset, std::size_t pixel) {
    for (std::size_t c = 0; c < d.rows.channels; ++c) {
      float sum = d.bias[c];
      for (std::size_t t = 0; t < d.rows.tap_count; ++t) {
        sum = std::fma(taps[t][offset + c], d.weights[t * d.channel_stride + c], sum);
      }
      d.c[pixel * d.rows.channels + c] = clamp(sum, d.lower, d.upper);
    }
  });
}

DETENT_DECL std::size_t no_workspace(const gemm_u8s8_args& /*g*/) noexcept { return 0; }

template <class T>
void transpose(const transpose_args& a) noexcept {
  // Columns that are written side by side: what is read of a row should be a whole cache line.
  constexpr std::size_t block = 64 / sizeof(T);
  const auto* from = static_cast<const T*>(a.from);
  for (std::size_t first = 0; first < a.columns; first += block) {
    const std::size_t count = a.columns - first < block ? a.columns - first : block;
    T* to[block];
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t column = first + i;
      to[i] = static_cast<T*>(a.to) + column / a.line * a.line_step + column % a.line * a.to_stride;
    }
    for (std::size_t row = 0; row < a.rows; ++row) {
      const T* columns = from + row * a.from_stride + first;
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(to[i] + row, columns + i, sizeof(T));
      }
    }
  }
}

inline constexpr kernel_table table = {
    target::portable,
    false,
    false,
    48,
    4,
    &no_workspace,
    &min_max,
    &min_max_columns,
    &bin_positions,
    &sum_codes<std::uint8_t>,
    &sum_codes<std::int8_t>,
    &quantize<u4_code>,
    &quantize<s4_code>,
    &quantize<u8_code>,
    &quantize<s8_code>,
    &quantize<u16_code>,
    &quantize<s16_code>,
    &dynamic_rows<u8_code>,
    &dynamic_rows<s8_code>,
    &dynamic_rows<u16_code>,
    &dynamic_rows<s16_code>,
    &dequantize<u4_code>,
    &dequantize<s4_code>,
    &dequantize<u8_code>,
    &dequantize<s8_code>,
    &dequantize<u16_code>,
    &dequantize<s16_code>,
    &dequantize<s32_code>,
    &requantize<u8_code>,
    &requantize<s8_code>,
    &requantize<u16_code>,
    &requantize<s16_code>,
    &quantized_binary,
    &gemm_f32,
    &depthwise_f32,
    &gemm_u8s8,
    &depthwise_u8,
    nullptr,
    &gemm_u8u4,
    &transpose<std::uint8_t>,
    &transpose<std::uint16_t>,
    &transpose<std::uint32_t>,
};

}  // namespace portable
DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_PORTABLE_HPP
