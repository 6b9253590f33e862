// SPDX-License-Identifier: BSD-3-Clause
// The elementwise functions quantize(), dequantize() and requantize(), and params_from_range(),
// which makes a scale and a zero point from a range.
//
//   quantize    q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
//   dequantize  x = float(q - zero_point) * scale
//   requantize  q = clamp(round_half_even(float(acc) * multiplier) + zero_point, qmin, qmax)
//
// The functions of the same names in namespace reference define the results bit for bit.
//
//   reals      float, float16, bfloat16, float8_e4m3fn, float8_e5m2; for quantize() also double
//   integers   (u)int8, (u)int16; (u)int4 and (u)int2 through packed_span; for dequantize() also
//              int32
//   views      anything contiguous (std::vector, std::span, ...), tensor_view, and packed_span,
//              whose elements are dense and in the order of the other operand
//   parameters quant_params (per tensor), channel_quant_params (along any axis; along axis 0 of a
//              matrix: per row, per token), block_quant_params (per group)
//
// Every combination is defined. Combinations of float with integers of 4, 8 and 16 bits run on the
// vector kernels, whatever the strides are. The others pass through these kernels in pieces, except
// double, the packing of (u)int2 and float8, which are scalar code.
//
// NaN becomes the zero point, infinities saturate. Inputs and outputs must not overlap. All
// functions are thread-safe, allocate nothing unless they run in parallel, and throw detent::error
// (invalid_argument, shape_mismatch) before they write anything.
#ifndef DETENT_QUANTIZE_HPP
#define DETENT_QUANTIZE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <detent/dispatch.hpp>
#include <detent/elementwise/operands.hpp>
#include <detent/elementwise/walk.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/kernels/definitions/elementwise.hpp>
#include <detent/kernels/elementwise.hpp>
#include <detent/reference.hpp>
#include <detent/sub_byte.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

template <class Q>
void require_params(quant_params p, grid levels, const char* where) {
  levels = checked_grid<Q>(levels, where);
  require_scale(p.scale, where);
  require_zero_point(p.zero_point, levels, where);
}

/// The name that kernels have for the integer type Q.
template <class Q>
struct code_traits;
template <>
struct code_traits<std::uint8_t> {
  using type = kernels::u8_code;
};
template <>
struct code_traits<std::int8_t> {
  using type = kernels::s8_code;
};
template <>
struct code_traits<std::uint16_t> {
  using type = kernels::u16_code;
};
template <>
struct code_traits<std::int16_t> {
  using type = kernels::s16_code;
};
template <>
struct code_traits<std::int32_t> {
  using type = kernels::s32_code;
};
template <>
struct code_traits<uint4> {
  using type = kernels::u4_code;
};
template <>
struct code_traits<int4> {
  using type = kernels::s4_code;
};
template <class Q>
using code_of = typename code_traits<Q>::type;

/// An elementwise operation on elements In -> Out that runs on a kernel. Row names the kernel, and
/// Row::in and Row::out are the types that it works on. Where In or Out differ from them, elements
/// are converted or packed on the way.
template <class In, class Out, class Row>
class row_operation {
  using row_in = typename Row::in;
  using row_out = typename Row::out;
  using in_storage = typename operand<const In>::storage;
  using out_storage = typename operand<Out>::storage;

 public:
  row_operation(in_storage* in, out_storage* out, const parameter_view& p, grid levels,
                const std::int32_t* bias, const execution& e, std::size_t size)
      : in_(in), out_(out), p_(p), levels_(levels), bias_(bias) {
    constexpr std::size_t beyond_caches = std::size_t{32} << 20;
    is_large_ =
        e.stores == store_policy::streaming ||
        (e.stores == store_policy::automatic && size >= beyond_caches / sizeof(out_storage));
  }

  /// Whether the kernel takes a block with these dimensions as it is.
  static bool is_direct(const walk_dimension& rows, const walk_dimension& columns) noexcept {
    if constexpr (!std::same_as<In, row_in> || !std::same_as<Out, row_out>) {
      return false;
    }
    const bool dense = (columns.in == 1 && columns.out == 1) || columns.extent == 1;
    return dense && (columns.parameter == 0 || columns.parameter == 1 || columns.extent == 1) &&
           whole_units<In>(rows.in, columns) && whole_units<Out>(rows.out, columns);
  }

  void operator()(const walk_block& b) const noexcept {
    if (is_direct(b.rows, b.columns) && starts_unit<In>(b.at.in) && starts_unit<Out>(b.at.out)) {
      run_direct(b);
    } else {
      for (std::size_t r = 0; r < b.rows.extent; r += tile_side) {
        for (std::size_t c = 0; c < b.columns.extent; c += tile_columns(b.rows.extent)) {
          walk_block tile{b.rows, b.columns, b.at.moved(b.rows, r).moved(b.columns, c)};
          tile.rows.extent = (std::min)(tile_side, b.rows.extent - r);
          tile.columns.extent = (std::min)(tile_columns(b.rows.extent), b.columns.extent - c);
          run_tile(tile);
        }
      }
    }
  }

 private:
  static constexpr std::size_t tile_size = tile_side * tile_side;
  static constexpr std::size_t tile_columns(std::size_t rows) noexcept {
    return rows == 1 ? tile_size : tile_side;
  }

  template <class T>
  static bool whole_units(std::ptrdiff_t row_stride, const walk_dimension& columns) noexcept {
    return row_stride % static_cast<std::ptrdiff_t>(elements_per_unit<T>) == 0 &&
           columns.extent % elements_per_unit<T> == 0;
  }
  template <class T>
  static bool starts_unit(std::ptrdiff_t offset) noexcept {
    return offset % static_cast<std::ptrdiff_t>(elements_per_unit<T>) == 0;
  }

  /// The hardware prefetchers stop at the end of a page, so that large operations prefetch the page
  /// after it themselves.
  static constexpr std::size_t page_bytes = 4096;

  [[nodiscard]] kernels::elementwise_args arguments(const walk_block& b) const noexcept {
    kernels::elementwise_args a;
    a.rows = b.rows.extent;
    a.columns = b.columns.extent;
    a.scale = p_.scales + b.at.parameter;
    a.zero_point = p_.zero_points + b.at.parameter;
    a.parameter_step = b.rows.parameter;
    a.per_column = b.columns.parameter != 0 && b.columns.extent > 1;
    a.bias = bias_ == nullptr ? nullptr : bias_ + b.at.parameter;
    a.qmin = levels_.qmin;
    a.qmax = levels_.qmax;
    return a;
  }

  void run_direct(const walk_block& b) const noexcept {
    if constexpr (std::same_as<In, row_in> && std::same_as<Out, row_out>) {
      kernels::elementwise_args a = arguments(b);
      a.in_stride = b.rows.in;
      a.out_stride = b.rows.out;
      const auto* in = address<In>(in_, b.at.in);
      auto* out = address<Out>(out_, b.at.out);
      constexpr std::size_t line = 64;
      constexpr std::size_t line_elements = line / sizeof(out_storage) * elements_per_unit<Out>;
      const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(out) % line;
      a.stream = is_large_;
      a.read_ahead = is_large_ ? page_bytes : 0;
      // A SIMD vector that lies across two cache lines takes twice as long to store. Long rows
      // therefore begin with a short head, after which the output is aligned.
      const bool is_long = is_large_ || (misaligned != 0 && a.columns >= 16 * line_elements);
      const std::size_t head = (std::min)(
          a.columns, line_elements - misaligned / sizeof(out_storage) * elements_per_unit<Out>);
      // What follows the head must begin with a whole unit of the input, too.
      if (a.rows == 1 && is_long && misaligned % sizeof(out_storage) == 0 &&
          head % elements_per_unit<In> == 0) {
        kernels::elementwise_args first = a;
        first.columns = head;
        first.stream = false;
        first.read_ahead = 0;
        Row::run(in, first, out);
        a.columns -= head;
        const auto step = static_cast<std::ptrdiff_t>(head);
        if (a.per_column) {
          a.scale += step;
          a.zero_point += step;
          a.bias = a.bias == nullptr ? nullptr : a.bias + step;
        }
        Row::run(address<In>(in, step), a, address<Out>(out, step));
      } else {
        Row::run(in, a, out);
      }
    }
  }

  /// Gathers what the kernel can't read in place, computes, and scatters what it can't write in
  /// place.
  void run_tile(const walk_block& b) const noexcept {
    using widened = unpacked_t<row_in>;
    using narrow = unpacked_t<row_out>;
    alignas(64) std::array<widened, tile_size> gathered;
    alignas(64) std::array<narrow, tile_size> results;
    const std::size_t rows = b.rows.extent;
    const std::size_t columns = b.columns.extent;
    const auto columns_step = static_cast<std::ptrdiff_t>(columns);
    constexpr bool reads = std::same_as<In, widened>;
    constexpr bool writes = std::same_as<Out, narrow>;

    kernels::elementwise_args a = arguments(b);
    const widened* from = gathered.data();
    a.in_stride = columns_step;
    if constexpr (reads) {
      if (b.columns.in == 1) {
        from = in_ + b.at.in;
        a.in_stride = b.rows.in;
      }
    }
    if (from == gathered.data()) {
      for (std::size_t r = 0; r < rows; ++r) {
        const walk_offset row = b.at.moved(b.rows, r);
        for (std::size_t c = 0; c < columns; ++c) {
          gathered[r * columns + c] = static_cast<widened>(
              load_element<In>(in_, row.in + static_cast<std::ptrdiff_t>(c) * b.columns.in));
        }
      }
    }
    narrow* to = results.data();
    a.out_stride = columns_step;
    if constexpr (writes) {
      if (b.columns.out == 1) {
        to = out_ + b.at.out;
        a.out_stride = b.rows.out;
      }
    }
    run_rows(b, a, from, to);
    if (to == results.data()) {
      // Writes along the dimension that is dense in the output.
      const bool across = b.columns.out != 1 && b.rows.out == 1;
      const std::size_t outer = across ? columns : rows;
      const std::size_t inner = across ? rows : columns;
      for (std::size_t i = 0; i < outer; ++i) {
        for (std::size_t j = 0; j < inner; ++j) {
          const std::size_t r = across ? j : i;
          const std::size_t c = across ? i : j;
          store_element<Out>(out_, b.at.moved(b.rows, r).moved(b.columns, c).out,
                             results[r * columns + c]);
        }
      }
    }
  }

  /// Runs the kernel on a tile. Parameters that differ from column to column but are not contiguous
  /// are copied for each row.
  template <class From, class To>
  void run_rows(const walk_block& b, const kernels::elementwise_args& a, const From* from,
                To* to) const noexcept {
    using unpacked_row = typename Row::unpacked_row;
    if (!a.per_column || b.columns.parameter == 1) {
      unpacked_row::run(from, a, to);
      return;
    }
    std::array<float, tile_size> scales;
    std::array<std::int32_t, tile_size> zero_points;
    std::array<std::int32_t, tile_size> biases;
    for (std::size_t r = 0; r < a.rows; ++r) {
      const walk_offset row = b.at.moved(b.rows, r);
      for (std::size_t c = 0; c < a.columns; ++c) {
        const std::ptrdiff_t at = row.moved(b.columns, c).parameter;
        scales[c] = p_.scales[at];
        zero_points[c] = p_.zero_points[at];
        biases[c] = bias_ == nullptr ? 0 : bias_[at];
      }
      kernels::elementwise_args one = a;
      one.rows = 1;
      one.scale = scales.data();
      one.zero_point = zero_points.data();
      one.bias = biases.data();
      const auto step = static_cast<std::ptrdiff_t>(r);
      unpacked_row::run(from + step * a.in_stride, one, to + step * a.out_stride);
    }
  }

  in_storage* in_;
  out_storage* out_;
  parameter_view p_;
  grid levels_;
  const std::int32_t* bias_;
  bool is_large_ = false;
};

/// The integer type whose kernel computes the values of Q. Packed elements of two bits have no
/// kernels of their own: the kernels of bytes compute their values.
template <class Q>
using row_type =
    std::conditional_t<packed_type<Q> && !std::same_as<Q, int4> && !std::same_as<Q, uint4>,
                       unpacked_t<Q>, Q>;

template <class Q>
struct quantize_row {
  using in = float;
  using out = Q;
  using unpacked_row = quantize_row<unpacked_t<Q>>;
  static void run(const float* x, const kernels::elementwise_args& a, auto* q) noexcept {
    active<kernels::quantize_kernels<code_of<Q>>>().quantize(x, a, q);
  }
};
template <class Q>
struct dequantize_row {
  using in = Q;
  using out = float;
  using unpacked_row = dequantize_row<unpacked_t<Q>>;
  static void run(const auto* q, const kernels::elementwise_args& a, float* x) noexcept {
    active<kernels::dequantize_kernels<code_of<Q>>>().dequantize(q, a, x);
  }
};
template <class Q>
struct requantize_row {
  using in = std::int32_t;
  using out = Q;
  using unpacked_row = requantize_row<unpacked_t<Q>>;
  static void run(const std::int32_t* acc, const kernels::elementwise_args& a, Q* q) noexcept {
    active<kernels::requantize_kernels<code_of<Q>>>().requantize(acc, a, q);
  }
};

/// Quantization of doubles, which are divided in double. No kernel does that, hence scalar code.
template <class Q>
class double_operation {
 public:
  double_operation(const double* in, typename operand<Q>::storage* out, const parameter_view& p,
                   grid levels)
      : in_(in), out_(out), p_(p), levels_(levels) {}
  static bool is_direct(const walk_dimension&, const walk_dimension&) noexcept { return true; }
  void operator()(const walk_block& b) const noexcept {
    for (std::size_t r = 0; r < b.rows.extent; ++r) {
      for (std::size_t c = 0; c < b.columns.extent; ++c) {
        const walk_offset at = b.at.moved(b.rows, r).moved(b.columns, c);
        const quant_params p{p_.scales[at.parameter], p_.zero_points[at.parameter]};
        store_element<Q>(out_, at.out,
                         static_cast<unpacked_t<Q>>(reference::quantize(in_[at.in], p, levels_)));
      }
    }
  }

 private:
  const double* in_;
  typename operand<Q>::storage* out_;
  parameter_view p_;
  grid levels_;
};

template <class Row, class T, class Out>
void run_elementwise(const operand<T>& in, const operand<Out>& out, const parameter_view& p,
                     grid levels, const std::int32_t* bias, const execution& e) {
  using In = std::remove_const_t<T>;
  const auto run = [&](const auto& operation) {
    for_each_walk(in, out, p, [&](const walk& w, walk_offset start) {
      run_walk(w, start, e, elements_per_unit<Out>,
               &std::remove_cvref_t<decltype(operation)>::is_direct, operation);
    });
  };
  if constexpr (std::same_as<In, double>) {
    run(double_operation<Out>(in.data, out.data, p, levels));
  } else {
    run(row_operation<In, Out, Row>(in.data, out.data, p, levels, bias, e, in.size));
  }
}

template <class In, class Out, class P>
void quantize_elements(const In& x, Out&& q, const P& p, grid levels, const execution& e) {
  constexpr const char* where = "quantize";
  using Q = element_of<Out>;
  auto in = operand_of(x);
  auto out = operand_of(q);
  levels = checked_grid<Q>(levels, where);
  require_same_shape(in, out, where);
  const parameter_view v = view_of(p, in.rank, in.shape, where);
  require_parameters(v, levels, where);
  run_elementwise<quantize_row<row_type<Q>>>(in, out, v, levels, nullptr, e);
  clear_padding(q);
}

template <class In, class Out, class P>
void dequantize_elements(const In& q, Out&& x, const P& p, const execution& e) {
  constexpr const char* where = "dequantize";
  using Q = std::remove_const_t<element_of<const In>>;
  auto in = operand_of(q);
  auto out = operand_of(x);
  require_same_shape(in, out, where);
  const parameter_view v = view_of(p, in.rank, in.shape, where);
  if constexpr (std::same_as<Q, std::int32_t>) {
    require_parameters(v, {0, 0}, where);
  } else {
    require_parameters(v, full_grid<Q>, where);
  }
  run_elementwise<dequantize_row<row_type<Q>>>(in, out, v, {}, nullptr, e);
}

template <class In, class Out, class P>
void requantize_elements(const In& acc, Out&& q, const P& p, std::span<const std::int32_t> bias,
                         grid levels, const execution& e) {
  constexpr const char* where = "requantize";
  using Q = element_of<Out>;
  auto in = operand_of(acc);
  auto out = operand_of(q);
  levels = checked_grid<Q>(levels, where);
  require_same_shape(in, out, where);
  const parameter_view v = view_of(p, in.rank, in.shape, where);
  require_parameters(v, levels, where);
  require(bias.empty() || bias.size() == v.count, error_kind::shape_mismatch, where, ": ",
          bias.size(), " biases for ", v.count, " multipliers");
  require(bias.empty() || bias.data() != nullptr, error_kind::invalid_argument, where,
          ": null data with ", bias.size(), " biases");
  run_elementwise<requantize_row<Q>>(in, out, v, levels, bias.empty() ? nullptr : bias.data(), e);
}

/// Parameters per channel or per block. The functions below take them as template arguments, so
/// that a braced {scale, zero_point} can only mean quant_params.
template <class P>
concept many_params = std::same_as<P, channel_quant_params> || std::same_as<P, block_quant_params>;

template <class A>
inline constexpr grid grid_of = full_grid<std::remove_const_t<element_of<A>>>;

}  // namespace detail

/// Quantizes the reals x to the integers q with one scale and zero point:
///
///   q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
///
/// with the IEEE quotient, bit for bit reference::quantize on every CPU target. NaN becomes the
/// zero point; infinities saturate. x and q are contiguous ranges or tensor_view, and q may be a
/// packed_span, of whose last byte the bits behind the last element become zero; they have the same
/// shape (only the same size where one is contiguous or packed) and must not overlap.
///
/// The scale must be positive and finite, `levels` (by default the whole range of q's type) within
/// q's type, and the zero point within `levels`. Throws invalid_argument if not, or if data is null
/// or contiguous operands overlap; shape_mismatch if the shapes differ. Nothing is written then.
/// Thread-safe.
///
/// @code{.cpp}
/// const std::vector<float> x = {-1.0F, 0.0F, 0.5F, 3.0F};
/// const detent::quant_params p =  // scale 4 / 255, zero point 64
///     detent::params_from_range({-1.0F, 3.0F}, detent::asymmetric<std::uint8_t>);
/// std::vector<std::uint8_t> q(x.size());
/// detent::quantize(x, q, p);  // q is 0, 64, 96, 255
/// @endcode
template <detail::reals_to_read In, detail::integers_to_write Out>
void quantize(const In& x, Out&& q, const quant_params& p, grid levels = detail::grid_of<Out>,
              const execution& e = {}) {
  detail::quantize_elements(x, q, p, levels, e);
}
/// Quantizes the reals x to the integers q with parameters per channel (channel_quant_params) or
/// per block (block_quant_params): every element is quantized with the scale and zero point of its
/// channel or block,
///
///   q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
///
/// bit for bit reference::quantize. NaN becomes the zero point; infinities saturate. The axis of
/// the parameters is one of the shape, which a contiguous range takes from the other operand; two
/// contiguous ranges have one dimension. x and q must not overlap.
///
/// Throws invalid_argument if a scale is not positive and finite, `levels` is not within q's type,
/// a zero point is not within `levels`, the axis does not exist, the block size is 0, data is null
/// or contiguous operands overlap; shape_mismatch if the shapes differ or the numbers of scales and
/// zero points do not fit the shape. Nothing is written then. Thread-safe.
template <detail::reals_to_read In, detail::integers_to_write Out, detail::many_params P>
void quantize(const In& x, Out&& q, const P& p, grid levels = detail::grid_of<Out>,
              const execution& e = {}) {
  detail::quantize_elements(x, q, p, levels, e);
}

/// Converts the integers q to the reals x with one scale and zero point:
///
///   x = float(q - zero_point) * scale
///
/// bit for bit reference::dequantize on every CPU target. If x holds a smaller float format, the
/// float result is rounded to it, half to even. q and x are contiguous ranges or tensor_view, and q
/// may be a packed_span; they have the same shape (only the same size where one is contiguous or
/// packed) and must not overlap.
///
/// The scale must be positive and finite, and the zero point in the range of q's type, or 0 if that
/// is int32 (a bias). Throws invalid_argument if not, or if data is null or contiguous operands
/// overlap; shape_mismatch if the shapes differ. Nothing is written then. Thread-safe.
template <detail::integers_to_read In, detail::reals_to_write Out>
void dequantize(const In& q, Out&& x, const quant_params& p, const execution& e = {}) {
  detail::dequantize_elements(q, x, p, e);
}
/// Converts the integers q to the reals x with parameters per channel (channel_quant_params) or per
/// block (block_quant_params): x = float(q - zero_point) * scale with the parameters of the
/// element's channel or block, bit for bit reference::dequantize.
///
/// The axis of the parameters is one of the shape, which a contiguous range takes from the other
/// operand; two contiguous ranges have one dimension. Throws invalid_argument if a scale is not
/// positive and finite, a zero point is not in the range of q's type (int32: not 0), the axis does
/// not exist, the block size is 0, data is null or contiguous operands overlap; shape_mismatch if
/// the shapes differ or the numbers of scales and zero points do not fit the shape. Nothing is
/// written then. Thread-safe.
template <detail::integers_to_read In, detail::reals_to_write Out, detail::many_params P>
void dequantize(const In& q, Out&& x, const P& p, const execution& e = {}) {
  detail::dequantize_elements(q, x, p, e);
}

/// Requantizes 32-bit sums of an integer product to the integers q with one multiplier:
///
///   q = clamp(round_half_even(float(acc + bias) * p.scale) + p.zero_point, qmin, qmax)
///
/// bit for bit reference::requantize on every CPU target. p.scale is the multiplier and
/// p.zero_point the zero point of the output. `bias` is empty or one value, which is added to every
/// accumulator modulo 2^32. float() rounds half to even above 2^24. acc and q are contiguous ranges
/// or tensor_view of the same shape (only the same size where one is contiguous) and must not
/// overlap.
///
/// The multiplier must be positive and finite, `levels` (by default the whole range of q's type)
/// within q's type, and the zero point within `levels`. Throws invalid_argument if not, or if data
/// (that of `bias`, too) is null or contiguous operands overlap; shape_mismatch if the shapes
/// differ or `bias` has another size. Nothing is written then. Thread-safe.
template <detail::accumulators_to_read In, detail::integers_to_write Out>
requires quantized_type<detail::element_of<Out>>
void requantize(const In& acc, Out&& q, const quant_params& p, grid levels = detail::grid_of<Out>,
                std::span<const std::int32_t> bias = {}, const execution& e = {}) {
  detail::requantize_elements(acc, q, p, bias, levels, e);
}
/// Requantizes 32-bit sums of an integer product to the integers q with a multiplier, a zero point
/// and optionally a bias for each channel or block:
///
///   q = clamp(round_half_even(float(acc + bias) * scale) + zero_point, qmin, qmax)
///
/// bit for bit reference::requantize. p.scales are the multipliers and p.zero_points the zero
/// points of the output. `bias` is empty or has one value for each multiplier, which is added
/// modulo 2^32.
///
/// The axis of the parameters is one of the shape, which a contiguous range takes from the other
/// operand; two contiguous ranges have one dimension. Throws invalid_argument if a multiplier is
/// not positive and finite, `levels` is not within q's type, a zero point is not within `levels`,
/// the axis does not exist, the block size is 0, data (that of `bias`, too) is null or contiguous
/// operands overlap; shape_mismatch if the shapes differ or the numbers of multipliers, zero points
/// or biases do not fit. Nothing is written then. Thread-safe.
template <detail::accumulators_to_read In, detail::integers_to_write Out, detail::many_params P>
requires quantized_type<detail::element_of<Out>>
void requantize(const In& acc, Out&& q, const P& p, grid levels = detail::grid_of<Out>,
                std::span<const std::int32_t> bias = {}, const execution& e = {}) {
  detail::requantize_elements(acc, q, p, bias, levels, e);
}

namespace detail {

/// Throws an error of `kind` unless a range can be mapped to the grid: it has at least two levels
/// (symmetric schemes: three) and lies within -65536..65535.
inline void require_levels_for_range(quant_scheme scheme, const char* where,
                                     error_kind kind = error_kind::invalid_argument) {
  const grid levels = scheme.levels;
  // Compared before they are subtracted: the difference of a reversed grid may overflow.
  require(levels.qmin >= -65536 && levels.qmax <= 65535 && levels.qmin < levels.qmax &&
              levels.qmax - levels.qmin >= (scheme.symmetric ? 2 : 1),
          kind, where, ": grid ", levels.qmin, "..", levels.qmax, " is too small or too large");
}

}  // namespace detail

/// The scale and zero point whose grid covers `range` and zero, by the canonical rule, which
/// reference::params_from_range defines. Throws invalid_argument if the range is not finite or not
/// ordered, if the grid has fewer than two levels (symmetric schemes: fewer than three) or reaches
/// beyond -65536..65535, or if the scale would not be finite. Thread-safe.
[[nodiscard]] inline quant_params params_from_range(value_range range, quant_scheme scheme) {
  require(std::isfinite(range.lower) && std::isfinite(range.upper) && range.lower <= range.upper,
          error_kind::invalid_argument, "params_from_range: ", range.lower, " .. ", range.upper,
          " is not a finite range");
  detail::require_levels_for_range(scheme, "params_from_range");
  const quant_params p = reference::params_from_range(range, scheme);
  require(std::isfinite(p.scale), error_kind::invalid_argument, "params_from_range: ", range.lower,
          " .. ", range.upper, " needs a scale that is not finite");
  return p;
}

DETENT_NAMESPACE_END

#endif  // DETENT_QUANTIZE_HPP
