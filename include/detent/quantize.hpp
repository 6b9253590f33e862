// SPDX-License-Identifier: BSD-3-Clause
// quantize, dequantize and requantize on spans and strided views, per tensor and per channel.
//
//   quantize    q = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
//   dequantize  x = float(q - zero_point) * scale
//   requantize  q = clamp(round_half_even(float(acc) * multiplier) + zero_point, qmin, qmax)
//
// as the functions of the same names in reference.hpp define them.
//
// NaN becomes the zero point, infinities saturate. Inputs and outputs do not overlap. All functions
// are thread-safe, allocate nothing, and throw detent::error (invalid_argument, shape_mismatch)
// before they write anything.
#ifndef DETENT_QUANTIZE_HPP
#define DETENT_QUANTIZE_HPP

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

inline void require_scale(float scale, const char* where) {
  require(std::isfinite(scale) && scale > 0.0F, error_kind::invalid_argument, where, ": scale ",
          scale, " is not a positive finite number");
}

template <quantized_type Q>
void require_grid(grid levels, const char* where) {
  require(levels.qmin <= levels.qmax && levels.qmin >= full_grid<Q>.qmin &&
              levels.qmax <= full_grid<Q>.qmax,
          error_kind::invalid_argument, where, ": grid ", levels.qmin, "..", levels.qmax,
          " does not fit ", full_grid<Q>.qmin, "..", full_grid<Q>.qmax);
}

inline void require_zero_point(std::int32_t zero_point, grid levels, const char* where) {
  require(zero_point >= levels.qmin && zero_point <= levels.qmax, error_kind::invalid_argument,
          where, ": zero point ", zero_point, " is outside ", levels.qmin, "..", levels.qmax);
}

template <class In, class Out>
void require_spans(std::span<In> in, std::span<Out> out, const char* where) {
  require(in.size() == out.size(), error_kind::shape_mismatch, where, ": input has ", in.size(),
          " elements, output ", out.size());
  require(in.empty() || (in.data() != nullptr && out.data() != nullptr),
          error_kind::invalid_argument, where, ": null data with size ", in.size());
}

inline void require_channels(const channel_quant_params& p, std::size_t rank,
                             std::span<const std::size_t> shape, const char* where) {
  require(p.axis < rank, error_kind::invalid_argument, where, ": axis ", p.axis,
          " of a tensor of rank ", rank);
  require(p.scales.size() == shape[p.axis] && p.zero_points.size() == shape[p.axis],
          error_kind::shape_mismatch, where, ": ", p.scales.size(), " scales and ",
          p.zero_points.size(), " zero points for ", shape[p.axis], " channels");
  for (const float scale : p.scales) {
    require_scale(scale, where);
  }
}

[[nodiscard]] inline kernels::grid_args per_tensor(float scale, std::int32_t zero_point,
                                                   grid levels) noexcept {
  kernels::grid_args g;
  g.scale = scale;
  g.zero_point = zero_point;
  g.qmin = levels.qmin;
  g.qmax = levels.qmax;
  return g;
}

/// One operation of the kernel table, by element type.
template <auto U8, auto S8>
struct kernel_row {
  template <class Q>
  static auto of(const kernels::kernel_table& t) noexcept {
    if constexpr (std::same_as<Q, std::uint8_t>) {
      return t.*U8;
    } else {
      return t.*S8;
    }
  }
};
using quantize_row =
    kernel_row<&kernels::kernel_table::quantize_u8, &kernels::kernel_table::quantize_s8>;
using dequantize_row =
    kernel_row<&kernels::kernel_table::dequantize_u8, &kernels::kernel_table::dequantize_s8>;
using requantize_row =
    kernel_row<&kernels::kernel_table::requantize_u8, &kernels::kernel_table::requantize_s8>;

/// Walks two views of the same shape and hands runs of the innermost dimension to `kernel`, or
/// single elements where that dimension is not dense. Neighbouring dimensions that are dense in
/// both views are merged first, except across `p.axis`.
template <class In, class Out, class Kernel>
void for_each_run(tensor_view<In> in, tensor_view<Out> out, const channel_quant_params* p,
                  kernels::grid_args g, Kernel kernel, const char* where) {
  require(in.rank == out.rank, error_kind::shape_mismatch, where, ": input has rank ", in.rank,
          ", output ", out.rank);
  for (std::size_t i = 0; i < in.rank; ++i) {
    require(in.shape[i] == out.shape[i], error_kind::shape_mismatch, where, ": dimension ", i,
            " is ", in.shape[i], " in the input, ", out.shape[i], " in the output");
  }
  const std::size_t size = in.size();
  if (size == 0) {
    return;
  }
  require(in.data != nullptr && out.data != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", size);

  constexpr std::size_t no_axis = max_rank;
  std::size_t rank = 0;
  std::size_t axis = no_axis;
  std::array<std::size_t, max_rank> shape{};
  std::array<std::ptrdiff_t, max_rank> in_stride{};
  std::array<std::ptrdiff_t, max_rank> out_stride{};
  for (std::size_t i = 0; i < in.rank; ++i) {
    const bool is_axis = p != nullptr && i == p->axis;
    if (in.shape[i] == 1 && !is_axis) {
      continue;
    }
    const auto extent = static_cast<std::ptrdiff_t>(in.shape[i]);
    if (rank > 0 && !is_axis && axis != rank - 1 && in_stride[rank - 1] == in.strides[i] * extent &&
        out_stride[rank - 1] == out.strides[i] * extent) {
      shape[rank - 1] *= in.shape[i];
      in_stride[rank - 1] = in.strides[i];
      out_stride[rank - 1] = out.strides[i];
      continue;
    }
    axis = is_axis ? rank : axis;
    shape[rank] = in.shape[i];
    in_stride[rank] = in.strides[i];
    out_stride[rank] = out.strides[i];
    ++rank;
  }
  if (rank == 0) {
    rank = 1;
    shape[0] = 1;
  }
  const std::size_t inner = rank - 1;
  const bool dense = shape[inner] == 1 || (in_stride[inner] == 1 && out_stride[inner] == 1);
  if (axis == inner) {
    g.column_scale = p->scales.data();
    g.column_zero_point = p->zero_points.data();
  }

  std::array<std::size_t, max_rank> index{};
  while (true) {
    std::ptrdiff_t in_offset = 0;
    std::ptrdiff_t out_offset = 0;
    for (std::size_t i = 0; i < inner; ++i) {
      in_offset += static_cast<std::ptrdiff_t>(index[i]) * in_stride[i];
      out_offset += static_cast<std::ptrdiff_t>(index[i]) * out_stride[i];
    }
    if (axis < inner) {
      g.scale = p->scales[index[axis]];
      g.zero_point = p->zero_points[index[axis]];
    }
    if (dense) {
      kernel(in.data + in_offset, shape[inner], g, out.data + out_offset);
    } else {
      kernels::grid_args one = g;
      one.column_scale = nullptr;
      for (std::size_t j = 0; j < shape[inner]; ++j) {
        if (g.column_scale != nullptr) {
          one.scale = g.column_scale[j];
          one.zero_point = g.column_zero_point[j];
        }
        const auto step = static_cast<std::ptrdiff_t>(j);
        kernel(in.data + in_offset + step * in_stride[inner], 1, one,
               out.data + out_offset + step * out_stride[inner]);
      }
    }
    std::size_t i = inner;
    while (i > 0 && ++index[i - 1] == shape[i - 1]) {
      index[--i] = 0;
    }
    if (i == 0) {
      return;
    }
  }
}

template <class Row, class Q, class In, class Out>
void convert_span(std::span<In> in, std::span<Out> out, kernels::grid_args g, const char* where) {
  require_spans(in, out, where);
  Row::template of<Q>(active_table())(in.data(), in.size(), g, out.data());
}

template <class Row, class Q, class In, class Out>
void convert_view(tensor_view<In> in, tensor_view<Out> out, const quant_params& p, grid levels,
                  const char* where) {
  for_each_run(in, out, nullptr, per_tensor(p.scale, p.zero_point, levels),
               Row::template of<Q>(active_table()), where);
}

template <class Row, class Q, class In, class Out>
void convert_channels(tensor_view<In> in, tensor_view<Out> out, const channel_quant_params& p,
                      grid levels, const char* where) {
  require_grid<Q>(levels, where);
  require_channels(p, in.rank, in.shape, where);
  for (const std::int32_t zero_point : p.zero_points) {
    require_zero_point(zero_point, levels, where);
  }
  for_each_run(in, out, &p, per_tensor(1.0F, 0, levels), Row::template of<Q>(active_table()),
               where);
}

template <class Q>
void require_params(quant_params p, grid levels, const char* where) {
  require_grid<Q>(levels, where);
  require_scale(p.scale, where);
  require_zero_point(p.zero_point, levels, where);
}

}  // namespace detail

// The same functions for the two element types: overloads rather than templates, so that vectors
// and arrays convert to spans.
#define DETENT_QUANTIZE_OVERLOADS(Q)                                                            \
  /* Per tensor. scale > 0 and finite; levels within the type; zero_point within levels. */     \
  inline void quantize(std::span<const float> x, std::span<Q> q, quant_params p,                \
                       grid levels = full_grid<Q>) {                                            \
    detail::require_params<Q>(p, levels, "quantize");                                           \
    detail::convert_span<detail::quantize_row, Q>(                                              \
        x, q, detail::per_tensor(p.scale, p.zero_point, levels), "quantize");                   \
  }                                                                                             \
  inline void quantize(tensor_view<const float> x, tensor_view<Q> q, quant_params p,            \
                       grid levels = full_grid<Q>) {                                            \
    detail::require_params<Q>(p, levels, "quantize");                                           \
    detail::convert_view<detail::quantize_row, Q>(x, q, p, levels, "quantize");                 \
  }                                                                                             \
  /* Per channel along p.axis. */                                                               \
  inline void quantize(tensor_view<const float> x, tensor_view<Q> q,                            \
                       const channel_quant_params& p, grid levels = full_grid<Q>) {             \
    detail::convert_channels<detail::quantize_row, Q>(x, q, p, levels, "quantize");             \
  }                                                                                             \
  inline void dequantize(std::span<const Q> q, std::span<float> x, quant_params p) {            \
    detail::require_params<Q>(p, full_grid<Q>, "dequantize");                                   \
    detail::convert_span<detail::dequantize_row, Q>(                                            \
        q, x, detail::per_tensor(p.scale, p.zero_point, full_grid<Q>), "dequantize");           \
  }                                                                                             \
  inline void dequantize(tensor_view<const Q> q, tensor_view<float> x, quant_params p) {        \
    detail::require_params<Q>(p, full_grid<Q>, "dequantize");                                   \
    detail::convert_view<detail::dequantize_row, Q>(q, x, p, full_grid<Q>, "dequantize");       \
  }                                                                                             \
  inline void dequantize(tensor_view<const Q> q, tensor_view<float> x,                          \
                         const channel_quant_params& p) {                                       \
    detail::convert_channels<detail::dequantize_row, Q>(q, x, p, full_grid<Q>, "dequantize");   \
  }                                                                                             \
  /* p.scale is the multiplier, p.zero_point that of the output. */                             \
  inline void requantize(std::span<const std::int32_t> acc, std::span<Q> q, quant_params p,     \
                         grid levels = full_grid<Q>) {                                          \
    detail::require_params<Q>(p, levels, "requantize");                                         \
    detail::convert_span<detail::requantize_row, Q>(                                            \
        acc, q, detail::per_tensor(p.scale, p.zero_point, levels), "requantize");               \
  }                                                                                             \
  inline void requantize(tensor_view<const std::int32_t> acc, tensor_view<Q> q, quant_params p, \
                         grid levels = full_grid<Q>) {                                          \
    detail::require_params<Q>(p, levels, "requantize");                                         \
    detail::convert_view<detail::requantize_row, Q>(acc, q, p, levels, "requantize");           \
  }                                                                                             \
  inline void requantize(tensor_view<const std::int32_t> acc, tensor_view<Q> q,                 \
                         const channel_quant_params& p, grid levels = full_grid<Q>) {           \
    detail::convert_channels<detail::requantize_row, Q>(acc, q, p, levels, "requantize");       \
  }

DETENT_QUANTIZE_OVERLOADS(std::uint8_t)
DETENT_QUANTIZE_OVERLOADS(std::int8_t)
#undef DETENT_QUANTIZE_OVERLOADS

/// The scale and zero point whose grid covers `range` and zero; see reference::params_from_range
/// for the rule. Throws invalid_argument if the range is not finite or not ordered, if the grid has
/// fewer than two levels (symmetric: fewer than two on one side of its middle) or reaches beyond 16
/// bits, or if the scale would not be finite.
[[nodiscard]] inline quant_params params_from_range(value_range range, quant_scheme scheme) {
  detail::require(
      std::isfinite(range.lower) && std::isfinite(range.upper) && range.lower <= range.upper,
      error_kind::invalid_argument, "params_from_range: ", range.lower, " .. ", range.upper,
      " is not a finite range");
  const grid levels = scheme.levels;
  detail::require(levels.qmin >= -65536 && levels.qmax <= 65535 &&
                      levels.qmax - levels.qmin >= (scheme.symmetric ? 2 : 1),
                  error_kind::invalid_argument, "params_from_range: grid ", levels.qmin, "..",
                  levels.qmax, " is too small or too large");
  const quant_params p = reference::params_from_range(range, scheme);
  detail::require(std::isfinite(p.scale), error_kind::invalid_argument,
                  "params_from_range: ", range.lower, " .. ", range.upper,
                  " needs a scale that is not finite");
  return p;
}

DETENT_NAMESPACE_END

#endif  // DETENT_QUANTIZE_HPP
