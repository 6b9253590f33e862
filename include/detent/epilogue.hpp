// SPDX-License-Identifier: BSD-3-Clause
// From exact sums to what the caller wants stored; shared by gemm() and convolutions.
#ifndef DETENT_EPILOGUE_HPP
#define DETENT_EPILOGUE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <detent/cache_sizes.hpp>
#include <detent/error.hpp>
#include <detent/float_formats.hpp>
#include <detent/kernels/table.hpp>
#include <detent/pack.hpp>
#include <detent/quantize.hpp>
#include <detent/reference.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// How an integer product reads its left side and writes its output. The output's element type
/// selects which of the fields count:
///
///   acc   = bias[j] + sum_k (a[i,k] - lhs_zero_point) * (b[k,j] - zero_point[j])        exact
///           (the bias of the weights; gemm() takes any sums, convolutions those of which the
///           certificate of the weights says that they fit 32 bits)
///   s32     acc + addend[i,j], exact: what does not fit 32 bits is an error
///   float   clamp(fma(float(acc), lhs_scale * scale[j], bias[j]) + residual[i,j], lower, upper)
///           (the bias of the options; what is absent is 0)
///   bfloat16  the same, rounded half to even; of gemm() only
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
  /// Of gemm() to float and bfloat16 only: real values that are added to each element. May be an
  /// output of float itself.
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

/// The per-column arrays of an integer product, padded as the kernels want them.
class column_terms {
 public:
  column_terms() = default;
  // epilogue_ points into the vectors: they may move, but not be copied.
  column_terms(const column_terms&) = delete;
  column_terms& operator=(const column_terms&) = delete;
  column_terms(column_terms&&) noexcept = default;
  column_terms& operator=(column_terms&&) noexcept = default;

  /// Checks the options and computes the terms of the columns of `w` for a left side of type A, of
  /// whose values `shift` is subtracted. Throws overflow if sums might not fit 32 bits.
  template <class T, class A>
  void prepare(const packed_weights& w, const epilogue_options& o, const char* where,
               std::int32_t shift = lhs_shift<A>) {
    prepare_any<T, A>(w, o, where, shift);
    require(w.certificate().fits_s32(), error_kind::overflow, where, ": with K = ", w.depth(),
            " the sums may reach ", w.certificate().accumulator_bound,
            ", which does not fit 32 bits");
  }

  /// The same whatever the certificate is. Where sums might not fit 32 bits, the integers are good
  /// for nothing; everything else of the terms is as it should be.
  template <class T, class A>
  void prepare_any(const packed_weights& w, const epilogue_options& o, const char* where,
                   std::int32_t shift = lhs_shift<A>) {
    require_scale(o.lhs_scale, where);
    require_zero_point(o.lhs_zero_point, full_grid<A>, where);
    const std::size_t columns = w.columns();
    const std::size_t padded = round_up(columns, kernels::panel_columns);
    epilogue_ = {};
    epilogue_.output = output_kind<T>;
    offset_ = std::vector<std::int32_t>(padded);
    zero_points_ = std::vector<std::int32_t>(w.has_zero_points() ? padded : 0);
    const auto depth = static_cast<std::uint32_t>(w.depth());
    // Those of the rows come with them.
    const auto lhs_zero_point =
        o.lhs_zero_points.empty() ? static_cast<std::uint32_t>(o.lhs_zero_point - shift) : 0U;
    column_sums_ = std::vector<std::int32_t>(padded);
    for (std::size_t j = 0; j < columns; ++j) {
      // Modulo 2^32: intermediate values may wrap, the final sum was proved to fit.
      const auto bias = static_cast<std::uint32_t>(w.bias()[j]);
      const auto column_sum = static_cast<std::uint32_t>(w.column_sums()[j]);
      const auto zero_point = static_cast<std::uint32_t>(w.zero_points()[j]);
      const std::uint32_t distance_sum = column_sum - depth * zero_point;
      offset_[j] = static_cast<std::int32_t>(bias - lhs_zero_point * distance_sum);
      column_sums_[j] = static_cast<std::int32_t>(distance_sum);
      if (w.has_zero_points()) {
        zero_points_[j] = w.zero_points()[j];
      }
    }
    epilogue_.column_offset = offset_.data();
    epilogue_.rhs_zero_point = w.has_zero_points() ? zero_points_.data() : nullptr;
    epilogue_.column_sum = column_sums_.data();
    if constexpr (!std::same_as<T, std::int32_t>) {
      multiplier_ = std::vector<float>(padded);
      for (std::size_t j = 0; j < columns; ++j) {
        multiplier_[j] =
            real_output<T>
                ? (o.lhs_scales.empty() ? o.lhs_scale : 1.0F) * w.scales()[j]
                : reference::requantize_multiplier(o.lhs_scale, w.scales()[j], o.output.scale);
      }
      epilogue_.multiplier = multiplier_.data();
      epilogue_.lower = o.lower;
      epilogue_.upper = o.upper;
    }
    if (!o.bias.empty()) {
      bias_ = std::vector<float>(padded);
      std::copy(o.bias.begin(), o.bias.end(), bias_.begin());
      epilogue_.bias = bias_.data();
    }
    if constexpr (quantized_byte<T>) {
      const grid levels = o.levels.qmin > o.levels.qmax ? full_grid<T> : o.levels;
      require_grid<T>(levels, where);
      require_scale(o.output.scale, where);
      require_zero_point(o.output.zero_point, full_grid<T>, where);
      for (std::size_t j = 0; j < columns; ++j) {
        require(multiplier_[j] <= std::numeric_limits<float>::max(), error_kind::invalid_argument,
                where, ": the multiplier ", o.lhs_scale, " * ", w.scales()[j], " / ",
                o.output.scale, " is not finite");
      }
      epilogue_.zero_point = o.output.zero_point;
      epilogue_.qmin = levels.qmin;
      epilogue_.qmax = levels.qmax;
    }
  }

  /// For the columns from `column` on. `row_sum`: the sums of the left side's rows, needed where
  /// the weights have zero points.
  [[nodiscard]] kernels::integer_epilogue epilogue(const std::int32_t* row_sum,
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
  kernels::integer_epilogue epilogue_;
  std::vector<std::int32_t> offset_;
  std::vector<std::int32_t> zero_points_;
  std::vector<std::int32_t> column_sums_;
  std::vector<float> multiplier_;
  std::vector<float> bias_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_EPILOGUE_HPP
