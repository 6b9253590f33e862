// SPDX-License-Identifier: BSD-3-Clause
// epilogue_options: how integer products (gemm() and convolutions) turn exact sums into outputs,
// and the preparation of the per-column arrays that kernels need for that.
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

/// How an integer product (gemm() or a convolution) reads its left side and writes its output. The
/// element type of the output selects the formula, and thereby the fields that are read. With i a
/// row (or pixel), j a column (or output channel), scale, zero_point and weight_bias the arrays of
/// the weights (what is absent is not added):
///
///     acc = weight_bias[j] + sum_k (a[i,k] - lhs_zero_point) * (b[k,j] - zero_point[j])
///           (exact, of as many bits as it takes)
///
///     int32:       acc + addend[i,j], exact; a sum that does not fit 32 bits is an error
///     float:       clamp(fma(float(acc), lhs_scale * scale[j], bias[j]) + residual[i,j],
///                        lower, upper)
///     bfloat16:    the float result, rounded to bfloat16, ties to even
///     uint8, int8: clamp(round_half_even(float(acc) * m[j]) + output.zero_point,
///                        levels.qmin, levels.qmax)
///                  with m[j] = (lhs_scale * scale[j]) / output.scale, each step rounded to float
///
/// float(acc) rounds to nearest, ties to even, once. All results are the same bits on every target.
struct epilogue_options {
  /// Scale of the left side; positive and finite. Neither used nor checked for int32 outputs.
  float lhs_scale = 1.0F;
  /// Zero point of the left side: a value of its type, 0..255 or -128..127.
  std::int32_t lhs_zero_point = 0;
  /// Scale and zero point of a uint8 or int8 output. A scale that makes a multiplier m[j] infinite
  /// is an invalid_argument.
  quant_params output = {};
  /// Bounds of a uint8 or int8 output, both included; the default is the whole type. A narrower
  /// grid fuses a ReLU or a clip. Not used for other outputs.
  grid levels = {};
  /// Lower bound of a float or bfloat16 output, applied last; not used for other outputs, whose
  /// bounds are `levels`. NaN passes through the clamp, and a bound of NaN is none.
  float lower = -std::numeric_limits<float>::infinity();
  /// Upper bound of a float or bfloat16 output; it wins where it is less than `lower`.
  float upper = std::numeric_limits<float>::infinity();
  /// For gemm() with a float or bfloat16 output: a scale for each of the M rows of the left side,
  /// used instead of lhs_scale. Empty means none.
  std::span<const float> lhs_scales = {};
  /// For gemm(): a zero point for each of the M rows of the left side, used instead of
  /// lhs_zero_point. Empty means none.
  std::span<const std::int32_t> lhs_zero_points = {};
  /// For float and bfloat16 outputs: a real value for each column or output channel, which is added
  /// to the scaled sum in the same fused multiply-add. Empty means 0.
  std::span<const float> bias = {};
  /// For float and bfloat16 outputs: a matrix of real values that is added to the output before the
  /// clamp; null means none. It may be a float output itself. For gemm() it is M x N with dense
  /// rows (a row stride of 0 adds one row to all). For convolutions it is dense and in the layout
  /// of the output: (batch * out_height * out_width) x out_channels with channels last, or (batch *
  /// out_channels) x (out_height * out_width) with channels first.
  matrix_view<const float> residual = {};
  /// For gemm() with an int32 output: an M x N matrix of integers with dense rows that is added to
  /// the sums, as with beta = 1 in BLAS; null means none. It may be the output itself, which then
  /// accumulates.
  matrix_view<const std::int32_t> addend = {};
  /// For gemm() and convolve() with 8-bit weights: sizes of caches in bytes that the product is
  /// divided for; a size of 0 means the size that the processor reports. The results do not depend
  /// on them.
  cache_sizes caches = {};
};

/// What gemm() and convolve() do with float sums: clamp(sum + residual[i,j], lower, upper), where i
/// is a row or pixel and j a column or output channel.
struct float_epilogue_options {
  /// Lower bound of the output, applied last. NaN passes through the clamp.
  float lower = -std::numeric_limits<float>::infinity();
  /// Upper bound of the output; it wins where it is less than `lower`.
  float upper = std::numeric_limits<float>::infinity();
  /// A matrix that is added to the output before the clamp, in the form that
  /// epilogue_options::residual has for float outputs; null means none. It may be the output
  /// itself.
  matrix_view<const float> residual = {};
};

namespace detail {

/// Whether outputs of type T take scales of rows, real biases and residuals.
template <class T>
inline constexpr bool real_output = std::same_as<T, float> || std::same_as<T, bfloat16>;

/// The kernels' name of output type T.
template <class T>
inline constexpr kernels::integer_output output_kind =
    std::same_as<T, std::int32_t>   ? kernels::integer_output::s32
    : std::same_as<T, float>        ? kernels::integer_output::f32
    : std::same_as<T, bfloat16>     ? kernels::integer_output::bf16
    : std::same_as<T, std::uint8_t> ? kernels::integer_output::u8
                                    : kernels::integer_output::s8;

/// The number that is subtracted from values of type A, and from their zero points, for kernels
/// that read unsigned bytes only: -128 for signed bytes, 0 for unsigned ones.
template <quantized_byte A>
inline constexpr std::int32_t lhs_shift = full_grid<A>.qmin;

/// Zero points minus `shift`: the given array if shift is 0, otherwise a copy in `to`. Null stays
/// null.
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

/// Where column_terms keep what they compute: in memory that is leased from the calling thread, so
/// that the object must die on the thread that prepared it, or in memory of their own.
enum class terms_memory : std::uint8_t { leased, owned };

/// The per-column arrays of an integer product, padded to whole panels for the kernels. Arrays of
/// the weights are used directly if they need no change; the others are computed.
class column_terms {
 public:
  column_terms() = default;
  column_terms(const column_terms&) = delete;
  column_terms& operator=(const column_terms&) = delete;

  /// Checks the options and computes the per-column terms of `w` for a left side of type A whose
  /// values are reduced by `shift` before the kernel sees them. The integer terms are computed
  /// modulo 2^32; if sums might not fit 32 bits, wide_sums.hpp does not use them.
  template <class T, class A>
  void prepare(const packed_weights& w, const epilogue_options& o, const char* where,
               std::int32_t shift = lhs_shift<A>, terms_memory memory = terms_memory::leased) {
    if constexpr (!std::same_as<T, std::int32_t>) {  // which are not scaled
      require_scale(o.lhs_scale, where, "lhs_scale");
    }
    require_zero_point(o.lhs_zero_point, full_grid<A>, where);
    const std::size_t columns = w.columns();
    const std::size_t padded = round_up(columns, kernels::panel_columns);
    epilogue_ = {};
    epilogue_.output = output_kind<T>;
    const padded_columns from = packed_access::padded(w);
    epilogue_.rhs_zero_point = w.has_zero_points() ? from.zero_points : nullptr;
    epilogue_.column_sum = from.distance_sums;
    // Zero points of rows are not folded into the columns: the kernel gets them with the rows.
    const auto zero_point =
        o.lhs_zero_points.empty() ? static_cast<std::uint32_t>(o.lhs_zero_point - shift) : 0U;
    constexpr bool scaled = !std::same_as<T, std::int32_t>;
    const float scale = real_output<T> && !o.lhs_scales.empty() ? 1.0F : o.lhs_scale;
    const bool own_multipliers = scaled && !(real_output<T> && scale == 1.0F);
    // What is kept must not depend on the caller's memory.
    const bool own_bias = !o.bias.empty() && (padded != columns || memory == terms_memory::owned);
    const std::size_t own =
        std::size_t{zero_point != 0} + std::size_t{own_multipliers} + std::size_t{own_bias};
    const std::size_t bytes = own * padded * sizeof(float);
    if (memory == terms_memory::owned) {
      owned_.resize(bytes);
    }
    std::byte* free = memory == terms_memory::owned ? owned_.data() : leased_.lease(bytes);
    const auto take = [&]<class Value>(std::type_identity<Value>) {
      return reinterpret_cast<Value*>(std::exchange(free, free + padded * sizeof(Value)));
    };

    epilogue_.column_offset = from.bias;
    if (zero_point != 0) {
      // Modulo 2^32: intermediate values may wrap; the final sums that are used were proved to fit.
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
      const grid levels = checked_grid<T>(o.levels, where);
      require_scale(o.output.scale, where, "output scale");
      require_zero_point(o.output.zero_point, full_grid<T>, where);
      require_finite_multipliers(w, o, where);
      epilogue_.zero_point = o.output.zero_point;
      epilogue_.qmin = levels.qmin;
      epilogue_.qmax = levels.qmax;
    }
  }

  /// The epilogue of the columns from `column` on. `row_sum` is where the sums of the left side's
  /// rows are or will be; it is read only if the weights have zero points.
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
  /// Whether products need the sums of the left side's rows: the weights have zero points.
  [[nodiscard]] bool needs_row_sums() const noexcept { return epilogue_.rhs_zero_point != nullptr; }

 private:
  void require_finite_multipliers(const packed_weights& w, const epilogue_options& o,
                                  const char* where) const {
    // A vectorized pass over all multipliers comes first: they may be many, and hardly ever is one
    // wrong.
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
  /// Sets values[j] = value(j) for all j, a panel at a time, so that compilers vectorize it.
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
  leased_memory<std::byte> leased_;
  aligned_vector<std::byte> owned_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_EPILOGUE_HPP
