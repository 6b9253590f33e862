// SPDX-License-Identifier: BSD-3-Clause
// From exact sums to what the caller wants stored; shared by gemm() and convolutions.
#ifndef DETENT_EPILOGUE_HPP
#define DETENT_EPILOGUE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include <detent/base/aligned.hpp>
#include <detent/cache_sizes.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/kernels/integer_epilogue.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/pack.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// How an integer product reads its left side and writes its output. The output's element type
/// selects which of the fields count:
///
///   acc   = bias[j] + sum_k (a[i,k] - lhs_zero_point) * (b[k,j] - zero_point[j])        exact
///           (the bias of the weights)
///   s32     acc + addend[i,j], exact: what does not fit 32 bits is an error
///   float   clamp(fma(float(acc), lhs_scale * scale[j], bias[j]) + residual[i,j], lower, upper)
///           (the bias of the options; what is absent is 0)
///   bfloat16  the same, rounded half to even
///   u8, s8  clamp(round_half_even(float(acc) * m[j]) + output.zero_point, levels)
///           m[j] = reference::requantize_multiplier(lhs_scale, scale[j], output.scale)
///
/// lhs_zero_point is a value of the left side's type: 0..255 or -128..127.
struct epilogue_options {
  float lhs_scale = 1.0F;
  std::int32_t lhs_zero_point = 0;
  quant_params output = {};
  /// The grid of a quantized output; the default (qmin > qmax) is the whole type. Narrowing it is
  /// how a ReLU or clip is fused.
  grid levels = {0, -1};
  float lower = -std::numeric_limits<float>::infinity();
  float upper = std::numeric_limits<float>::infinity();
  /// Of gemm() only: parameters of each row of the left side, instead of the two above. Scales are
  /// for outputs of float and bfloat16.
  std::span<const float> lhs_scales = {};
  std::span<const std::int32_t> lhs_zero_points = {};
  /// Of outputs of float and bfloat16: real values that are added to each column.
  std::span<const float> bias = {};
  /// Of outputs of float and bfloat16: real values that are added to each element. May be an output
  /// of float itself. Convolutions take it dense and in the layout of the output: its rows are the
  /// pixels of the batch, or the planes of its images where their channels come first.
  matrix_view<const float> residual = {};
  /// Of gemm() to 32-bit integers only: integers that are added to each element, as with beta = 1
  /// in BLAS. May be the output itself, which then accumulates.
  matrix_view<const std::int32_t> addend = {};
  /// Of gemm() with 8-bit weights only: the caches that the product is divided for, instead of the
  /// processor's where they are not 0. The results do not depend on them.
  cache_sizes caches = {};
};

namespace detail {

/// Outputs that scales of rows, real biases and residuals are for.
template <class T>
inline constexpr bool real_output = std::same_as<T, float> || std::same_as<T, bfloat16>;

template <class T>
inline constexpr kernels::integer_output output_kind =
    std::same_as<T, std::int32_t>   ? kernels::integer_output::s32
    : std::same_as<T, float>        ? kernels::integer_output::f32
    : std::same_as<T, bfloat16>     ? kernels::integer_output::bf16
    : std::same_as<T, std::uint8_t> ? kernels::integer_output::u8
                                    : kernels::integer_output::s8;

/// What is subtracted from the values of a left side of type A, and from their zero points, where
/// kernels read unsigned bytes only.
template <quantized_byte A>
inline constexpr std::int32_t lhs_shift = full_grid<A>.qmin;

/// Zero points less `shift`: themselves, or in `to`. Null stays null.
[[nodiscard]] inline const std::int32_t* shifted(const std::int32_t* zero_points, std::size_t count,
                                                 std::int32_t shift, std::int32_t* to) noexcept {
  if (zero_points == nullptr || shift == 0) {
    return zero_points;
  }
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = zero_points[i] - shift;
  }
  return to;
}

/// The per-column arrays of an integer product, padded as the kernels want them: those of the
/// weights where they are as they should be, others in memory of the calling thread, which they are
/// bound to.
class column_terms {
 public:
  column_terms() = default;
  column_terms(const column_terms&) = delete;
  column_terms& operator=(const column_terms&) = delete;

  /// Checks the options and computes the terms of the columns of `w` for a left side of type A, of
  /// whose values `shift` is subtracted. Where sums might not fit 32 bits, the integers are right
  /// modulo 2^32, and wide_sums.hpp does without them.
  template <class T, class A>
  void prepare(const packed_weights& w, const epilogue_options& o, const char* where,
               std::int32_t shift = lhs_shift<A>) {
    require_scale(o.lhs_scale, where);
    require_zero_point(o.lhs_zero_point, full_grid<A>, where);
    const std::size_t columns = w.columns();
    const std::size_t padded = round_up(columns, kernels::panel_columns);
    epilogue_ = {};
    epilogue_.output = output_kind<T>;
    const padded_columns from = packed_access::padded(w);
    epilogue_.rhs_zero_point = w.has_zero_points() ? from.zero_points : nullptr;
    epilogue_.column_sum = from.distance_sums;
    // Those of the rows come with them.
    const auto zero_point =
        o.lhs_zero_points.empty() ? static_cast<std::uint32_t>(o.lhs_zero_point - shift) : 0U;
    constexpr bool scaled = !std::same_as<T, std::int32_t>;
    const float scale = real_output<T> && !o.lhs_scales.empty() ? 1.0F : o.lhs_scale;
    const bool own_multipliers = scaled && !(real_output<T> && scale == 1.0F);
    const bool own_bias = !o.bias.empty() && padded != columns;
    const std::size_t own =
        std::size_t{zero_point != 0} + std::size_t{own_multipliers} + std::size_t{own_bias};
    std::byte* free = memory_.lease(own * padded * sizeof(float));
    const auto take = [&]<class Value>(std::type_identity<Value>) {
      return reinterpret_cast<Value*>(std::exchange(free, free + padded * sizeof(Value)));
    };

    epilogue_.column_offset = from.bias;
    if (zero_point != 0) {
      // Modulo 2^32: intermediate values may wrap, final sums that are used were proved to fit.
      auto* const offset = take(std::type_identity<std::int32_t>{});
      for_panel_values(padded, offset, [&](std::size_t j) {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(from.bias[j]) -
                                         zero_point *
                                             static_cast<std::uint32_t>(from.distance_sums[j]));
      });
      epilogue_.column_offset = offset;
    }
    if constexpr (scaled) {
      epilogue_.multiplier = from.scales;
      if (own_multipliers) {
        auto* const multiplier = take(std::type_identity<float>{});
        for_panel_values(padded, multiplier, [&](std::size_t j) {
          return real_output<T>
                     ? scale * from.scales[j]
                     : reference::requantize_multiplier(scale, from.scales[j], o.output.scale);
        });
        epilogue_.multiplier = multiplier;
      }
      epilogue_.lower = o.lower;
      epilogue_.upper = o.upper;
    }
    if (!o.bias.empty()) {
      epilogue_.bias = o.bias.data();
      if (own_bias) {
        auto* const bias = take(std::type_identity<float>{});
        std::fill(std::copy(o.bias.begin(), o.bias.end(), bias), bias + padded, 0.0F);
        epilogue_.bias = bias;
      }
    }
    if constexpr (quantized_byte<T>) {
      const grid levels = o.levels.qmin > o.levels.qmax ? full_grid<T> : o.levels;
      require_grid<T>(levels, where);
      require_scale(o.output.scale, where);
      require_zero_point(o.output.zero_point, full_grid<T>, where);
      require_finite_multipliers(w, o, where);
      epilogue_.zero_point = o.output.zero_point;
      epilogue_.qmin = levels.qmin;
      epilogue_.qmax = levels.qmax;
    }
  }

  /// For the columns from `column` on. `row_sum`: where the sums of the left side's rows are or
  /// will be, needed where the weights have zero points.
  [[nodiscard]] kernels::integer_epilogue epilogue(std::int32_t* row_sum,
                                                   std::size_t column = 0) const noexcept {
    const auto from = [column](auto* values) {
      return values != nullptr ? values + column : nullptr;
    };
    kernels::integer_epilogue e = epilogue_;
    e.row_sum = e.rhs_zero_point != nullptr ? row_sum : nullptr;
    e.column_offset = from(e.column_offset);
    e.rhs_zero_point = from(e.rhs_zero_point);
    e.column_sum = from(e.column_sum);
    e.multiplier = from(e.multiplier);
    e.bias = from(e.bias);
    return e;
  }
  [[nodiscard]] bool needs_row_sums() const noexcept { return epilogue_.rhs_zero_point != nullptr; }

 private:
  void require_finite_multipliers(const packed_weights& w, const epilogue_options& o,
                                  const char* where) const {
    // All of them first, in vectors: there may be many, and hardly ever is one wrong.
    std::int32_t beyond[kernels::panel_columns] = {};
    const std::size_t columns = w.columns();
    const float* multiplier = epilogue_.multiplier;
    constexpr float largest = std::numeric_limits<float>::max();
    for (std::size_t first = 0; first < columns; first += kernels::panel_columns) {
      for (std::size_t i = 0; i < kernels::panel_columns; ++i) {
        beyond[i] |= multiplier[first + i] > largest ? 1 : 0;
      }
    }
    if (std::find(std::begin(beyond), std::end(beyond), 1) == std::end(beyond)) {
      return;
    }
    for (std::size_t j = 0; j < columns; ++j) {
      require(multiplier[j] <= largest, error_kind::invalid_argument, where, ": the multiplier ",
              o.lhs_scale, " * ", w.scales()[j], " / ", o.output.scale, " is not finite");
    }
  }
  /// values[j] = value(j), a panel at a time, which compilers make vectors of.
  template <class V, class Value>
  static void for_panel_values(std::size_t padded, V* values, const Value& value) {
    for (std::size_t first = 0; first < padded; first += kernels::panel_columns) {
      V panel[kernels::panel_columns];
      for (std::size_t i = 0; i < kernels::panel_columns; ++i) {
        panel[i] = value(first + i);
      }
      std::memcpy(values + first, panel, sizeof panel);
    }
  }

  kernels::integer_epilogue epilogue_;
  leased_memory<std::byte> memory_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_EPILOGUE_HPP
