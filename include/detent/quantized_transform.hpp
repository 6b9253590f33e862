// SPDX-License-Identifier: BSD-3-Clause
// quantized_transform(): an elementwise function of the caller's own on quantized tensors of any
// integer types and strides, in registers.
#ifndef DETENT_QUANTIZED_TRANSFORM_HPP
#define DETENT_QUANTIZED_TRANSFORM_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <detent/base/checked_size.hpp>
#include <detent/base/rows.hpp>
#include <detent/batch.hpp>
#include <detent/error.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/simd.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// A type whose values stand for integers: static_cast converts it to std::int32_t and back.
template <class Q>
concept integer_code = requires(Q q, std::int32_t i) {
  { static_cast<std::int32_t>(q) } -> std::same_as<std::int32_t>;
  { static_cast<Q>(i) } -> std::same_as<Q>;
};

/// A quantized tensor of any integer type and strides (0 repeats its values), and its parameters.
template <integer_code Q>
struct quantized_view {
  tensor_view<const Q> values;  ///< The integers.
  quant_params params;          ///< What they stand for: float(q - zero_point) * scale.
};
/// Deduces the integer type from a view, whether its elements are constant or writable.
template <class Q>
quantized_view(tensor_view<Q>, quant_params) -> quantized_view<std::remove_const_t<Q>>;

namespace detail {

/// Number of elements that are taken together through arrays on the stack.
inline constexpr std::size_t transform_block = 512;

/// Checks the parameters of a tensor of any integer type.
inline void require_any_params(quant_params p, const char* where) {
  require_scale(p.scale, where);
  require_zero_point(p.zero_point, {-65536, 65535}, where);
}

/// to[i] = float(from[i * stride] - zero_point) * scale. It is not inlined, so that no compiler
/// contracts the products with sums in the caller's function.
template <class Q>
#if defined(__GNUC__)
__attribute__((noinline))
#endif
void dequantize_strided(const Q* from, std::ptrdiff_t stride, std::size_t n, quant_params p,
                        float* to) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = reference::dequantize(
        static_cast<std::int32_t>(from[static_cast<std::ptrdiff_t>(i) * stride]), p);
  }
}

/// reference::quantize of all lanes of a register, or of a single value, to out[0], out[1], ...
template <class Arch, class X>
void quantize_lanes(const X& x, quant_params p, grid levels, std::int32_t* out) noexcept {
  if constexpr (std::same_as<X, float>) {
    *out = reference::quantize(x, p, levels);
  } else {
    simd::store<Arch>(batch::quantize(x, p, levels), out);
  }
}

}  // namespace detail

/// Applies a function of the caller's own to quantized tensors of one shape, elementwise:
///
///     out[i] = quantize(f(dequantize(inputs[i])...), out_params, levels)
///
/// with reference::dequantize and reference::quantize; every value is rounded to float before f
/// gets it. f takes as many registers as there are inputs, each an xsimd::batch<float, Arch> (a
/// float without xsimd), and returns one; it is called for whole registers, whose last lanes may be
/// padding. NaN becomes the zero point; infinities saturate.
///
/// Types are those of integer_code: the library's quantized types, or types of the caller's. Views
/// have any strides; a stride of 0 in an input repeats its values. `levels` bounds the results, and
/// must be given if Q is not a type of the library's. `out` may be the very view of an input of the
/// same type, and must not overlap the inputs otherwise.
///
/// @code{.cpp}
/// #include <cstdint>
///
/// #include <detent/quantized_transform.hpp>
///
/// // Rows of 16-bit activations times a gate of bytes.
/// void gate(detent::quantized_view<std::int16_t> x, detent::quantized_view<std::uint8_t> gate,
///           detent::tensor_view<std::int16_t> out, detent::quant_params p) {
///   detent::quantized_transform([](auto a, auto b) { return a * b; }, out, p,
///                               detent::full_grid<std::int16_t>, x, gate);
/// }
/// @endcode
///
/// Throws shape_mismatch if the shapes differ, and invalid_argument for null data, a scale that is
/// not positive and finite, a zero point of an input outside -65536..65535, or one of the output
/// outside `levels`. Nothing is written then. Thread-safe; allocates nothing.
template <class Arch = simd::default_arch, class F, integer_code Q, integer_code... In>
void quantized_transform(const F& f, tensor_view<Q> out, quant_params out_params, grid levels,
                         const quantized_view<In>&... inputs) {
  static_assert(sizeof...(In) > 0, "detent::quantized_transform: there is no input");
  constexpr const char* where = "quantized_transform";
  if constexpr (quantized_type<Q> || requires { Q::levels; }) {
    levels = detail::with_whole_range<Q>(levels);
  }
  require(levels.qmin <= levels.qmax && levels.qmin >= -65536 && levels.qmax <= 65535,
          error_kind::invalid_argument, where, ": the grid ", levels.qmin, " .. ", levels.qmax);
  detail::require_scale(out_params.scale, where);
  detail::require_zero_point(out_params.zero_point, levels, where);
  (detail::require_any_params(inputs.params, where), ...);
  detail::checked_size(where, std::span(out.shape).first(out.rank));
  const auto require_view = [&](const auto& view, std::size_t size) {
    require(size == 0 || view.data != nullptr, error_kind::invalid_argument, where,
            ": null data with size ", size);
    require(view.rank == out.rank &&
                std::equal(view.shape.begin(),
                           view.shape.begin() + static_cast<std::ptrdiff_t>(view.rank),
                           out.shape.begin()),
            error_kind::shape_mismatch, where, ": an input has another shape than the output");
  };
  require_view(out, out.size());
  (require_view(inputs.values, out.size()), ...);
  if (out.size() == 0) {
    return;
  }
  constexpr std::size_t size = simd::lane_count<float, Arch>;
  constexpr std::size_t block = detail::transform_block;
  static_assert(block % size == 0);
  std::array<std::array<float, block>, sizeof...(In)> reals{};
  std::array<std::int32_t, block> codes;
  detail::for_each_row(out, [&](Q* row, std::size_t n, std::ptrdiff_t stride, const auto& index) {
    const auto from = [&](const auto& view, std::size_t first) {
      auto* data = view.data;
      for (std::size_t d = 0; d + 1 < view.rank; ++d) {
        data += static_cast<std::ptrdiff_t>(index[d]) * view.strides[d];
      }
      const std::ptrdiff_t step = view.rank == 0 ? 1 : view.strides[view.rank - 1];
      return std::pair(data + static_cast<std::ptrdiff_t>(first) * step, step);
    };
    for (std::size_t first = 0; first < n; first += block) {
      const std::size_t count = (std::min)(block, n - first);
      std::size_t input = 0;
      const auto load = [&](const auto& view) {
        const auto [data, step] = from(view.values, first);
        detail::dequantize_strided(data, step, count, view.params, reals[input++].data());
      };
      (load(inputs), ...);
      [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        for (std::size_t i = 0; i < count; i += size) {
          detail::quantize_lanes<Arch>(f(simd::load<Arch>(reals[Is].data() + i)...), out_params,
                                       levels, codes.data() + i);
        }
      }
      (std::index_sequence_for<In...>{});
      for (std::size_t i = 0; i < count; ++i) {
        row[static_cast<std::ptrdiff_t>(first + i) * stride] = static_cast<Q>(codes[i]);
      }
    }
  });
}

/// quantized_transform() with all levels of the output's type.
template <class Arch = simd::default_arch, class F, quantized_type Q, integer_code... In>
void quantized_transform(const F& f, tensor_view<Q> out, quant_params out_params,
                         const quantized_view<In>&... inputs) {
  quantized_transform<Arch>(f, out, out_params, full_grid<Q>, inputs...);
}

DETENT_NAMESPACE_END

#endif  // DETENT_QUANTIZED_TRANSFORM_HPP
