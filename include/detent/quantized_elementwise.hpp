// SPDX-License-Identifier: BSD-3-Clause
// Elementwise functions, lookup tables, concatenation and averages of 8-bit tensors, each of which
// has its own scale and zero point. D stands for reference::dequantize and Q for
// reference::quantize:
//
//   quantized_add, _sub, _mul, _div   Q(D(a) op D(b)), as com.microsoft.QLinearAdd and QLinearMul
//   lookup_table, apply_table         Q(f(D(q))) for all 256 values of q, then one load per element
//   rescale                           Q(D(q)), by a lookup table
//   quantized_concat                  rescale() of each input into one output
//   quantized_average                 exact integer sums, then one multiplication
//
// Every operation in these formulas is rounded to float by itself; nothing is contracted. NaN
// becomes the zero point, infinities saturate. All functions are thread-safe, allocate nothing, and
// throw detent::error (invalid_argument, shape_mismatch, overflow) before they write anything.
// Elements do not depend on each other, so that a caller may split spans among threads.
#ifndef DETENT_QUANTIZED_ELEMENTWISE_HPP
#define DETENT_QUANTIZED_ELEMENTWISE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <variant>

#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/byte_lookup.hpp>
#include <detent/kernels/definitions/byte_lookup.hpp>
#include <detent/kernels/definitions/quantized_binary.hpp>
#include <detent/kernels/quantized_binary.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace reference {

/// x = float(q - zero_point) * scale, the bits of dequantize(), for use in a sum. The result goes
/// through memory, so that the compiler cannot contract the product with a following addition.
[[nodiscard]] inline float dequantize_rounded(std::int32_t q, quant_params p) noexcept {
  const volatile float x = dequantize(q, p);
  return x;
}

/// A function of two quantized values: dequantizes a and b, combines them with f (such as
/// `std::plus<float>`) and quantizes the result with out_params on the grid `levels`. Every step is
/// computed in float and rounded by itself. NaN becomes the zero point; infinities saturate.
template <class F>
[[nodiscard]] std::int32_t quantized_binary(const F& f, std::int32_t a, quant_params a_params,
                                            std::int32_t b, quant_params b_params,
                                            quant_params out_params, grid levels) noexcept {
  const float value = f(dequantize_rounded(a, a_params), dequantize_rounded(b, b_params));
  return quantize(value, out_params, levels);
}

/// The multiplier that turns a sum of (q - zero_point) into a mean in steps of the output:
/// input_scale / (output_scale * float(count)), each operation rounded to float.
[[nodiscard]] inline float average_multiplier(float input_scale, float output_scale,
                                              std::size_t count) noexcept {
  const float divisor = output_scale * static_cast<float>(count);
  return input_scale / divisor;
}

}  // namespace reference

namespace detail {

/// Number of elements that are processed together through arrays on the stack.
inline constexpr std::size_t elementwise_block = 512;

/// quantize() with a zero point that need not be one of the levels. Saturating to the whole type
/// and then to the levels gives the same integers as saturating to the levels at once.
template <quantized_byte Q>
void quantize_levels(std::span<const float> x, std::span<Q> q, quant_params p, grid levels) {
  if (p.zero_point >= levels.qmin && p.zero_point <= levels.qmax) {
    quantize(x, q, p, levels);
    return;
  }
  quantize(x, q, p);
  const auto lowest = static_cast<Q>(levels.qmin);
  const auto highest = static_cast<Q>(levels.qmax);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const bool is_nan = x[i] != x[i];
    q[i] = is_nan ? q[i] : (std::clamp)(q[i], lowest, highest);
  }
}

using kernels::binary_function;

template <quantized_byte Q>
[[nodiscard]] kernels::quantized_bytes bytes_of(std::span<const Q> q, quant_params p) noexcept {
  constexpr bool is_signed = std::same_as<Q, std::int8_t>;
  return {reinterpret_cast<const std::uint8_t*>(q.data()),
          static_cast<std::uint8_t>(is_signed ? 0x80 : 0), p.zero_point + (is_signed ? 128 : 0),
          p.scale};
}

template <binary_function F, quantized_byte A, quantized_byte B, quantized_byte Out>
void quantized_binary(std::span<const A> a, quant_params a_params, std::span<const B> b,
                      quant_params b_params, std::span<Out> out, quant_params out_params,
                      grid levels, const char* where) {
  require_params<A>(a_params, full_grid<A>, where);
  require_params<B>(b_params, full_grid<B>, where);
  require_params<Out>(out_params, full_grid<Out>, where);
  levels = checked_grid<Out>(levels, where);
  require_spans(a, out, where);
  require_spans(b, out, where);
  if (out_params.zero_point >= levels.qmin && out_params.zero_point <= levels.qmax) {
    kernels::quantized_binary_args args;
    args.function = F;
    args.a = bytes_of(a, a_params);
    args.b = bytes_of(b, b_params);
    args.out = out.data();
    args.out_signed = std::same_as<Out, std::int8_t>;
    args.scale = out_params.scale;
    args.zero_point = out_params.zero_point;
    args.qmin = levels.qmin;
    args.qmax = levels.qmax;
    args.count = out.size();
    active<kernels::quantized_binary_kernels>().quantized_binary(args);
    return;
  }
  std::array<float, elementwise_block> left;
  std::array<float, elementwise_block> right;
  for (std::size_t i = 0; i < out.size(); i += elementwise_block) {
    const std::size_t n = (std::min)(elementwise_block, out.size() - i);
    const std::span<float> x(left.data(), n);
    const std::span<float> y(right.data(), n);
    dequantize(a.subspan(i, n), x, a_params);
    dequantize(b.subspan(i, n), y, b_params);
    std::transform(x.begin(), x.end(), y.begin(), x.begin(),
                   [](float u, float v) { return kernels::combine(F, u, v); });
    quantize_levels<Out>(x, out.subspan(i, n), out_params, levels);
  }
}

}  // namespace detail

// The functions below are overloads rather than templates, so that vectors and arrays convert to
// spans. In the comment, `function` is the macro's argument: add, sub, mul or div.
#define DETENT_QUANTIZED_BINARY(name, function, A, B, Out)                                     \
  /** Combines two 8-bit tensors elementwise: out[i] = Q(D(a[i]) op D(b[i])), where op is      \
     `function`, D dequantizes with a_params or b_params, and Q quantizes with out_params;     \
     bit for bit reference::quantized_binary. The spans have the same size. `levels` narrows   \
     the values that are written, as a fused clip does. The zero point of the output may lie   \
     outside of `levels`; NaN (inf - inf, 0 / 0) becomes the zero point even then, and         \
     infinities saturate. `out` may be the very buffer of a or b, and must not overlap them    \
     otherwise. Throws shape_mismatch if the sizes differ; invalid_argument if data is null,   \
     a scale is not positive and finite, a zero point is not in the range of its type, or      \
     `levels` is not within the type of out. Nothing is written then. Thread-safe; allocates   \
     nothing. */                                                                               \
  inline void name(std::span<const A> a, quant_params a_params, std::span<const B> b,          \
                   quant_params b_params, std::span<Out> out, quant_params out_params,         \
                   grid levels = full_grid<Out>) {                                             \
    detail::quantized_binary<detail::binary_function::function>(a, a_params, b, b_params, out, \
                                                                out_params, levels, #name);    \
  }
#define DETENT_QUANTIZED_BINARIES(A, B, Out)             \
  DETENT_QUANTIZED_BINARY(quantized_add, add, A, B, Out) \
  DETENT_QUANTIZED_BINARY(quantized_sub, sub, A, B, Out) \
  DETENT_QUANTIZED_BINARY(quantized_mul, mul, A, B, Out) \
  DETENT_QUANTIZED_BINARY(quantized_div, div, A, B, Out)

DETENT_QUANTIZED_BINARIES(std::uint8_t, std::uint8_t, std::uint8_t)
DETENT_QUANTIZED_BINARIES(std::uint8_t, std::uint8_t, std::int8_t)
DETENT_QUANTIZED_BINARIES(std::uint8_t, std::int8_t, std::uint8_t)
DETENT_QUANTIZED_BINARIES(std::uint8_t, std::int8_t, std::int8_t)
DETENT_QUANTIZED_BINARIES(std::int8_t, std::uint8_t, std::uint8_t)
DETENT_QUANTIZED_BINARIES(std::int8_t, std::uint8_t, std::int8_t)
DETENT_QUANTIZED_BINARIES(std::int8_t, std::int8_t, std::uint8_t)
DETENT_QUANTIZED_BINARIES(std::int8_t, std::int8_t, std::int8_t)
#undef DETENT_QUANTIZED_BINARIES
#undef DETENT_QUANTIZED_BINARY

// ----------------------------------------------------------------------------------------- tables

/// The table of a function f of one 8-bit value. The entry of q is Q(f(D(q))), where D dequantizes
/// with the parameters of the input and Q quantizes with those of the output.
template <quantized_byte In, quantized_byte Out = In>
class lookup_table {
 public:
  /// Computes the table: calls f, which takes and returns float, once for each of the 256 values in
  /// the order of their bytes. The argument of f is rounded to float in memory, so that the
  /// compiler cannot contract its computation with sums in f; products inside f may be contracted.
  /// NaN becomes the zero point of the output; infinities saturate. Throws invalid_argument if a
  /// scale is not positive and finite or a zero point is not in the range of its type.
  template <class F>
  requires std::is_invocable_r_v<float, const F&, float> lookup_table(const F& f,
                                                                      quant_params in_params,
                                                                      quant_params out_params) {
    detail::require_params<In>(in_params, full_grid<In>, "lookup_table");
    detail::require_params<Out>(out_params, full_grid<Out>, "lookup_table");
    std::array<In, 256> all;
    for (std::size_t byte = 0; byte < all.size(); ++byte) {
      all[byte] = static_cast<In>(byte);
    }
    std::array<float, 256> values;
    dequantize(std::span<const In>(all), std::span<float>(values), in_params);
    for (float& value : values) {
      value = f(value);
    }
    quantize(std::span<const float>(values), std::span<Out>(entries_), out_params);
  }

  /// The entry of q.
  [[nodiscard]] Out operator[](In q) const noexcept {
    return entries_[static_cast<std::uint8_t>(q)];
  }
  /// All 256 entries, in the order of the bytes that q is stored in: 0..255, or 0..127 and then
  /// -128..-1 if In is signed.
  [[nodiscard]] const std::array<Out, 256>& entries() const noexcept { return entries_; }

 private:
  std::array<Out, 256> entries_;
};

namespace detail {

/// Looks `columns` elements of each of `rows` rows up in a table.
template <quantized_byte In, quantized_byte Out>
void look_up(const In* in, std::size_t in_stride, Out* out, std::size_t out_stride,
             const lookup_table<In, Out>& table, std::size_t rows, std::size_t columns) {
  const auto bytes = []<class T>(T* data) {
    using byte = std::conditional_t<std::is_const_v<T>, const std::uint8_t, std::uint8_t>;
    return reinterpret_cast<byte*>(data);
  };
  active<kernels::byte_lookup_kernels>().look_up({.in = bytes(in),
                                                  .in_stride = in_stride,
                                                  .table = bytes(table.entries().data()),
                                                  .out = bytes(out),
                                                  .out_stride = out_stride,
                                                  .rows = rows,
                                                  .columns = columns});
}

}  // namespace detail

/// Looks every element up in a table: out[i] = table[in[i]]. `out` may be the very buffer of `in`,
/// and must not overlap it otherwise. Throws shape_mismatch if the sizes differ and
/// invalid_argument if data is null. Thread-safe; allocates nothing.
template <quantized_byte In, quantized_byte Out>
void apply_table(std::type_identity_t<std::span<const In>> in,
                 std::type_identity_t<std::span<Out>> out, const lookup_table<In, Out>& table) {
  detail::require_spans(in, out, "apply_table");
  detail::look_up(in.data(), in.size(), out.data(), out.size(), table, 1, in.size());
}

namespace detail {

/// The table of rescale(): Q(D(q)).
template <quantized_byte In, quantized_byte Out>
[[nodiscard]] lookup_table<In, Out> rescale_table(quant_params in_params, quant_params out_params) {
  return {[](float x) { return x; }, in_params, out_params};
}

template <quantized_byte In, quantized_byte Out>
void rescale(std::span<const In> in, quant_params in_params, std::span<Out> out,
             quant_params out_params) {
  require_params<In>(in_params, full_grid<In>, "rescale");
  require_params<Out>(out_params, full_grid<Out>, "rescale");
  require_spans(in, out, "rescale");
  apply_table(in, out, rescale_table<In, Out>(in_params, out_params));
}

}  // namespace detail

// rescale() for all pairs of element types.
#define DETENT_RESCALE(In, Out)                                                               \
  /** Changes the parameters of an 8-bit tensor: out[i] = Q(D(in[i])), where D dequantizes    \
     with in_params and Q quantizes with out_params. `out` may be the very buffer of `in`,    \
     and must not overlap it otherwise. Throws shape_mismatch if the sizes differ;            \
     invalid_argument if data is null, a scale is not positive and finite, or a zero point is \
     not in the range of its type. Nothing is written then. Thread-safe; allocates nothing.   \
     */                                                                                       \
  inline void rescale(std::span<const In> in, quant_params in_params, std::span<Out> out,     \
                      quant_params out_params) {                                              \
    detail::rescale(in, in_params, out, out_params);                                          \
  }
DETENT_RESCALE(std::uint8_t, std::uint8_t)
DETENT_RESCALE(std::uint8_t, std::int8_t)
DETENT_RESCALE(std::int8_t, std::uint8_t)
DETENT_RESCALE(std::int8_t, std::int8_t)
#undef DETENT_RESCALE

// ------------------------------------------------------------------------------------------ concat

/// An input of quantized_concat(): dense 8-bit values, signed or unsigned, and their parameters.
struct concat_input {
  /// The values.
  std::variant<std::span<const std::uint8_t>, std::span<const std::int8_t>> values;
  quant_params params;  ///< Scale and zero point of the values.

  /// An input of unsigned values.
  concat_input(std::span<const std::uint8_t> values_, quant_params params_)
      : values(values_), params(params_) {}
  /// An input of signed values.
  concat_input(std::span<const std::int8_t> values_, quant_params params_)
      : values(values_), params(params_) {}
};

namespace detail {

template <quantized_byte Out>
void require_concat(std::span<const concat_input> inputs, std::size_t rows, std::span<Out> out,
                    quant_params out_params) {
  constexpr const char* where = "quantized_concat";
  require_params<Out>(out_params, full_grid<Out>, where);
  std::size_t total = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::visit(
        [&]<class In>(std::span<const In> values) {
          require_params<In>(inputs[i].params, full_grid<In>, where);
          require(rows == 0 ? values.empty() : values.size() % rows == 0,
                  error_kind::shape_mismatch, where, ": input ", i, " has ", values.size(),
                  " elements, which are not ", rows, " rows");
          require(values.empty() || values.data() != nullptr, error_kind::invalid_argument, where,
                  ": null data with size ", values.size());
          total += values.size();
        },
        inputs[i].values);
  }
  require(total == out.size(), error_kind::shape_mismatch, where, ": the inputs have ", total,
          " elements, the output ", out.size());
  require(out.empty() || out.data() != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", out.size());
}

template <quantized_byte Out>
void quantized_concat(std::span<const concat_input> inputs, std::size_t rows, std::span<Out> out,
                      quant_params out_params) {
  require_concat(inputs, rows, out, out_params);
  if (rows == 0) {
    return;
  }
  std::size_t offset = 0;
  for (const concat_input& input : inputs) {
    std::visit(
        [&]<class In>(std::span<const In> values) {
          const std::size_t row = values.size() / rows;
          const std::size_t out_row = out.size() / rows;
          if constexpr (std::same_as<In, Out>) {
            if (input.params == out_params) {
              for (std::size_t r = 0; r < rows; ++r) {
                std::copy_n(values.data() + r * row, row, out.data() + r * out_row + offset);
              }
              offset += row;
              return;
            }
          }
          look_up(values.data(), row, out.data() + offset, out_row,
                  rescale_table<In, Out>(input.params, out_params), rows, row);
          offset += row;
        },
        input.values);
  }
}

}  // namespace detail

// quantized_concat() for both types of the output.
#define DETENT_QUANTIZED_CONCAT(Out)                                                         \
  /** Concatenates tensors along an axis: row r of the output is row r of each input, one    \
     after the other, rescaled to out_params as rescale() does. An input whose type and      \
     parameters are those of the output is copied. All tensors are dense; `rows` is the      \
     product of the dimensions before the axis, so that an input has size / rows elements in \
     a row. The output must not overlap an input. Throws shape_mismatch if an input is not   \
     `rows` rows or the sizes do not add up to that of the output; invalid_argument if data  \
     is null, a scale is not positive and finite, or a zero point is not in the range of its \
     type. Nothing is written then. Thread-safe; allocates nothing. */                       \
  inline void quantized_concat(std::span<const concat_input> inputs, std::size_t rows,       \
                               std::span<Out> out, quant_params out_params) {                \
    detail::quantized_concat(inputs, rows, out, out_params);                                 \
  }
DETENT_QUANTIZED_CONCAT(std::uint8_t)
DETENT_QUANTIZED_CONCAT(std::int8_t)
#undef DETENT_QUANTIZED_CONCAT

// ----------------------------------------------------------------------------------------- average

namespace detail {

/// The largest number of values of magnitude 255 whose sum fits 32 bits.
inline constexpr std::size_t max_average_count = std::numeric_limits<std::int32_t>::max() / 255;

template <quantized_byte Q>
void add_row(const Q* row, std::ptrdiff_t stride, std::span<std::int32_t> sums) noexcept {
  if (stride == 1) {  // the loop that compilers vectorize
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += row[i];
    }
    return;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] += row[static_cast<std::ptrdiff_t>(i) * stride];
  }
}

/// Averages `rows` rows for each channel of `out`. row(i, channel) is the address of that channel
/// in row i, and the following channels are `stride` elements apart.
template <quantized_byte Q, class Row>
void quantized_average(std::size_t rows, std::size_t count, const Row& row, std::ptrdiff_t stride,
                       quant_params in_params, std::span<Q> out, quant_params out_params) {
  constexpr const char* where = "quantized_average";
  require_params<Q>(in_params, full_grid<Q>, where);
  require_params<Q>(out_params, full_grid<Q>, where);
  require(out.empty() || out.data() != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", out.size());
  require(rows <= max_average_count, error_kind::overflow, where, ": the sum of ", rows,
          " values may not fit 32 bits");
  require(rows == 0 || count > 0, error_kind::invalid_argument, where, ": ", rows,
          " values, but count is 0");
  const float multiplier =
      rows == 0 ? 0.0F : reference::average_multiplier(in_params.scale, out_params.scale, count);
  require(std::isfinite(multiplier), error_kind::invalid_argument, where, ": the multiplier ",
          in_params.scale, " / (", out_params.scale, " * ", count, ") is not finite");
  if (multiplier == 0.0F) {
    std::fill(out.begin(), out.end(), static_cast<Q>(out_params.zero_point));
    return;
  }
  const std::int32_t offset = static_cast<std::int32_t>(rows) * in_params.zero_point;
  std::array<std::int32_t, elementwise_block> block;
  for (std::size_t first = 0; first < out.size(); first += elementwise_block) {
    const std::size_t n = (std::min)(elementwise_block, out.size() - first);
    const std::span<std::int32_t> sums(block.data(), n);
    std::fill(sums.begin(), sums.end(), -offset);
    for (std::size_t i = 0; i < rows; ++i) {
      add_row(row(i, first), stride, sums);
    }
    requantize(std::span<const std::int32_t>(sums), out.subspan(first, n),
               quant_params{multiplier, out_params.zero_point});
  }
}

template <quantized_byte Q>
void quantized_average(matrix_view<const Q> x, quant_params in_params, std::span<Q> out,
                       quant_params out_params) {
  require(out.size() == x.columns, error_kind::shape_mismatch, "quantized_average: ", x.columns,
          " channels, but the output has ", out.size());
  require(x.rows == 0 || x.columns == 0 || x.data != nullptr, error_kind::invalid_argument,
          "quantized_average: null data with shape ", x.rows, " x ", x.columns);
  quantized_average(
      x.rows, x.rows, [&](std::size_t i, std::size_t channel) { return &x(i, channel); },
      x.column_stride, in_params, out, out_params);
}

template <quantized_byte Q>
void quantized_average(std::span<const Q* const> taps, std::size_t count, quant_params in_params,
                       std::span<Q> out, quant_params out_params) {
  quantized_average(
      taps.size(), count, [&](std::size_t i, std::size_t channel) { return taps[i] + channel; }, 1,
      in_params, out, out_params);
}

}  // namespace detail

// quantized_average() computes the mean of several values of each channel, as
// com.microsoft.QLinearGlobalAveragePool and QLinearAveragePool do:
//
//   sum    = sum of (q - in.zero_point), exact in 32 bits
//   m      = in.scale / (out.scale * float(count)), rounded twice: reference::average_multiplier
//   out[c] = clamp(round_half_even(float(sum) * m) + out.zero_point), reference::requantize
//
// float(sum) rounds half to even above 2^24.
#define DETENT_QUANTIZED_AVERAGE(Q)                                                               \
  /** Averages the rows of x, which has a column for each channel (an image with one pixel        \
     in each row, or the transposed view of planes), as                                           \
     com.microsoft.QLinearGlobalAveragePool does: out[c] = clamp(round_half_even(float(sum) *     \
     m) + out_params.zero_point) with sum = the exact sum of x(i, c) - in_params.zero_point       \
     over i, and m = reference::average_multiplier of both scales and x.rows. Without rows        \
     the mean is the real 0, the zero point of the output. The output must not overlap x.         \
     Throws overflow if there are more than 8421504 rows, whose sum may not fit 32 bits;          \
     shape_mismatch if out does not have an element for each column; invalid_argument if m is     \
     not finite, data is null, a scale is not positive and finite, or a zero point is not in      \
     the range of the type. Nothing is written then. Thread-safe; allocates nothing. */           \
  inline void quantized_average(matrix_view<const Q> x, quant_params in_params, std::span<Q> out, \
                                quant_params out_params) {                                        \
    detail::quantized_average(x, in_params, out, out_params);                                     \
  }                                                                                               \
  /** Averages the pixels of a window, as com.microsoft.QLinearAveragePool does: taps[i]          \
     points to out.size() values, one for each channel, and the sum is divided by `count`,        \
     which is taps.size(), or more where padding counts (as the real 0): out[c] =                 \
     clamp(round_half_even(float(sum) * m) + out_params.zero_point) with sum = the exact sum      \
     of taps[i][c] - in_params.zero_point over i, and m = reference::average_multiplier of        \
     both scales and `count`. Without taps the mean is the real 0, the zero point of the          \
     output. The output must not overlap a tap. Throws overflow if there are more than            \
     8421504 taps, whose sum may not fit 32 bits; invalid_argument if m is not finite, count      \
     is 0 although there are taps, out is null, a scale is not positive and finite, or a zero     \
     point is not in the range of the type. Nothing is written then. Thread-safe; allocates       \
     nothing. */                                                                                  \
  inline void quantized_average(std::span<const Q* const> taps, std::size_t count,                \
                                quant_params in_params, std::span<Q> out,                         \
                                quant_params out_params) {                                        \
    detail::quantized_average(taps, count, in_params, out, out_params);                           \
  }
DETENT_QUANTIZED_AVERAGE(std::uint8_t)
DETENT_QUANTIZED_AVERAGE(std::int8_t)
#undef DETENT_QUANTIZED_AVERAGE

DETENT_NAMESPACE_END

#endif  // DETENT_QUANTIZED_ELEMENTWISE_HPP
