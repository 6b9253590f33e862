// SPDX-License-Identifier: BSD-3-Clause
// Products of 8-bit left sides with 4-bit weights whose scales and zero points are those of groups
// of K (W4A8): half the memory traffic of 8-bit weights, where that is what limits.
//
//   sum[g]   = sum_(k in group g) (lhs[i,k] - lhs_zero_point) * (code[k,j] - zero_point[g,j]) exact
//   real     = fma(float(sum[last]), scale[last,j], ... fma(float(sum[0]), scale[0,j], 0) ...)
//   out[i,j] = clamp(fma(real, lhs_scale, bias[j]) + residual[i,j], lower, upper)
//
// that is, reference::grouped_dot and then what gemm() does to reach a float.
#ifndef DETENT_INT4_WEIGHTS_HPP
#define DETENT_INT4_WEIGHTS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/kernels/definitions/nibble_products.hpp>
#include <detent/kernels/nibble_products.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/sub_byte.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN

/// Everything about 4-bit weights but their codes. Matrices have a row for each group of K and a
/// column for each column of the weights; absent ones mean scale 1 and zero point 0.
struct int4_weight_options {
  std::size_t group_size = 0;  // a multiple of 8; 0, or more than K: all of K is one group
  matrix_view<const float> scales = {};
  matrix_view<const std::int32_t> zero_points = {};  // values of the codes' type
};

/// An owned, packed K x N matrix of 4-bit weights. Immutable; share it freely between threads.
class packed_int4_weights {
 public:
  packed_int4_weights() = default;

  /// `w` has one code in each element, K rows, N columns, any strides: -8..7 if they are signed
  /// (int4), 0..15 if not (uint4). The same bytes for every split into threads.
  template <quantized_byte W>
  packed_int4_weights(matrix_view<const W> w, const int4_weight_options& options,
                      const parallel_for& parallel = {})
      : depth_(w.rows), columns_(w.columns) {
    using kernels::nibble_depth;
    constexpr const char* where = "pack_int4_weights";
    constexpr grid levels = std::is_signed_v<W> ? int4::levels : uint4::levels;
    detail::require_matrix(w, where);
    require(options.group_size % nibble_depth == 0, error_kind::invalid_argument, where,
            ": the group size ", options.group_size, " is not a multiple of ", nibble_depth);
    // More than all of K is all of K.
    group_size_ = detail::round_up((std::max)(depth_, std::size_t{1}), nibble_depth);
    if (options.group_size != 0) {
      group_size_ = (std::min)(group_size_, options.group_size);
    }
    groups_ = (depth_ + group_size_ - 1) / group_size_;
    require((std::min)(group_size_, depth_) <= deepest_group, error_kind::overflow, where,
            ": the sums of groups of ", group_size_, " may not fit 32 bits");
    require_parameters(options.scales, "scales");
    require_parameters(options.zero_points, "zero points");

    data_.resize(data_size());
    scales_.resize(parameter_count());
    zero_points_.resize(parameter_count());
    for (std::size_t j = 0; j < columns_; ++j) {
      for (std::size_t g = 0; g < groups_; ++g) {
        const std::size_t at = parameter(g, j);
        scales_[at] = options.scales.data != nullptr ? options.scales(g, j) : 1.0F;
        detail::require_scale(scales_[at], where);
        const std::int32_t zero_point =
            options.zero_points.data != nullptr ? options.zero_points(g, j) : 0;
        detail::require_zero_point(zero_point, levels, where);
        zero_points_[at] = static_cast<std::uint8_t>(zero_point - levels.qmin);
      }
    }
    // Of each column, the first code that is none; tasks do not throw.
    std::vector<std::size_t> first_bad(columns_, depth_);
    detail::for_panels(depth_, columns_, parallel, [&](std::size_t panel) {
      const std::size_t first = panel * kernels::panel_columns;
      const std::size_t count = (std::min)(kernels::panel_columns, columns_ - first);
      for (std::size_t k = 0; k < depth_; ++k) {
        std::uint8_t* to = data_.data() + position(k, first);
        for (std::size_t i = 0; i < count; ++i) {
          const std::int32_t code = w(k, first + i);
          if (code < levels.qmin || code > levels.qmax) {
            first_bad[first + i] = (std::min)(first_bad[first + i], k);
            continue;
          }
          std::uint8_t& both = to[i * kernels::group_depth];
          both = static_cast<std::uint8_t>(both | (code - levels.qmin) << half(k));
        }
      }
    });
    for (std::size_t j = 0; j < columns_; ++j) {
      const std::size_t k = first_bad[j];
      require(k == depth_, error_kind::invalid_argument, where, ": the code ",
              k == depth_ ? 0 : w(k, j), " of row ", k, ", column ", j, " is outside ", levels.qmin,
              "..", levels.qmax);
    }
    sum_columns();
  }

  /// The weights as bytes, for load(): the envelope of byte_format.hpp around
  ///
  ///   u64 K, u64 N, u64 group size, u32 16 (columns of a panel), u32 8 (k of a step)
  ///   the panels, and in their order (see kernels::packed_nibbles) scales (f32) and zero points
  ///   (u8)
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer to(format);
    to.put(std::uint64_t{depth_});
    to.put(std::uint64_t{columns_});
    to.put(std::uint64_t{group_size_});
    to.put(static_cast<std::uint32_t>(kernels::panel_columns));
    to.put(static_cast<std::uint32_t>(kernels::nibble_depth));
    to.put_array(std::span<const std::uint8_t>(data_));
    to.put_array(std::span<const float>(scales_));
    to.put_array(std::span<const std::uint8_t>(zero_points_));
    return std::move(to).finish();
  }
  /// Whether bytes claim to be those of save(), and not of another class; load() looks at the rest.
  [[nodiscard]] static bool is_saved_form(std::span<const std::byte> bytes) noexcept {
    return detail::begins_with(bytes, format);
  }
  /// What save() returned. Throws bad_file for anything else, unsupported for a version or a layout
  /// that this release does not know.
  [[nodiscard]] static packed_int4_weights load(std::span<const std::byte> bytes) {
    constexpr const char* where = "packed_int4_weights::load";
    detail::byte_reader from(bytes, format, where);
    packed_int4_weights w;
    w.depth_ = from.get_size(std::numeric_limits<std::uint32_t>::max());
    w.columns_ = from.get_size(std::numeric_limits<std::uint32_t>::max());
    w.group_size_ = from.get_size(std::numeric_limits<std::uint32_t>::max());
    const auto panel = from.get<std::uint32_t>();
    const auto step = from.get<std::uint32_t>();
    require(panel == kernels::panel_columns && step == kernels::nibble_depth,
            error_kind::unsupported, where, ": panels of ", panel, " columns and steps of ", step,
            " k are for other kernels");
    require(w.group_size_ != 0 && w.group_size_ % kernels::nibble_depth == 0 &&
                (std::min)(w.group_size_, w.depth_) <= deepest_group,
            error_kind::bad_file, where, ": the group size ", w.group_size_);
    w.groups_ = (w.depth_ + w.group_size_ - 1) / w.group_size_;
    from.get_array(w.data_size(), w.data_);  // less than 2^64, as K and N are less than 2^32
    from.get_array(w.parameter_count(), w.scales_);
    from.get_array(w.parameter_count(), w.zero_points_);
    from.require_end();
    // Without groups there is nothing to look at, however many columns are claimed.
    for (std::size_t j = 0; j < w.columns_ && w.groups_ != 0; ++j) {
      for (std::size_t g = 0; g < w.groups_; ++g) {
        const std::size_t at = w.parameter(g, j);
        require(std::isfinite(w.scales_[at]) && w.scales_[at] > 0.0F, error_kind::bad_file, where,
                ": the scale ", w.scales_[at], " of column ", j);
        require(w.zero_points_[at] <= uint4::levels.qmax, error_kind::bad_file, where,
                ": the zero point ", w.zero_points_[at], " of column ", j);
      }
    }
    w.sum_columns();
    return w;
  }

  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }      // K
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }  // N
  [[nodiscard]] std::size_t group_size() const noexcept { return group_size_; }
  [[nodiscard]] std::size_t groups() const noexcept { return groups_; }
  /// The bytes that a product reads.
  [[nodiscard]] std::size_t size_bytes() const noexcept {
    return data_.size() + zero_points_.size() +
           scales_.size() * (sizeof(float) + sizeof(std::int32_t));
  }
  /// What a kernel reads from a column (a multiple of strip_columns) on; valid as long as this
  /// object.
  [[nodiscard]] kernels::packed_nibbles panels(std::size_t column = 0) const noexcept {
    const std::size_t first = column * groups_;
    return {data_.data() + column * steps() * (kernels::nibble_depth / 2),
            zero_points_.data() + first, scales_.data() + first, column_sums_.data() + first,
            group_size_};
  }

 private:
  template <class T>
  void require_parameters(matrix_view<const T> parameters, const char* what) const {
    require(parameters.data == nullptr ||
                (parameters.rows == groups_ && parameters.columns == columns_),
            error_kind::shape_mismatch, "pack_int4_weights: the ", what, " are ", parameters.rows,
            " x ", parameters.columns, ", not ", groups_, " x ", columns_);
  }
  [[nodiscard]] std::size_t steps() const noexcept {
    return (depth_ + kernels::nibble_depth - 1) / kernels::nibble_depth;
  }
  [[nodiscard]] std::size_t padded_columns() const noexcept {
    return detail::round_up(columns_, kernels::strip_columns);
  }
  [[nodiscard]] std::size_t data_size() const noexcept {
    return steps() * padded_columns() * (kernels::nibble_depth / 2);
  }
  [[nodiscard]] std::size_t parameter_count() const noexcept { return groups_ * padded_columns(); }
  /// Where the parameters of a group of a column are.
  [[nodiscard]] std::size_t parameter(std::size_t group, std::size_t j) const noexcept {
    using kernels::panel_columns;
    return (j / panel_columns * groups_ + group) * panel_columns + j % panel_columns;
  }
  /// The byte that holds a code, and how far it is shifted there.
  [[nodiscard]] std::size_t position(std::size_t k, std::size_t j) const noexcept {
    using namespace kernels;  // NOLINT: the names of the layout
    return (j / panel_columns * steps() + k / nibble_depth) * nibble_panel_bytes +
           j % panel_columns * group_depth + k % group_depth;
  }
  [[nodiscard]] static constexpr int half(std::size_t k) noexcept {
    return k % kernels::nibble_depth < kernels::group_depth ? 0 : 4;
  }
  void sum_columns() {
    column_sums_.assign(parameter_count(), 0);
    for (std::size_t j = 0; j < columns_ && depth_ != 0; ++j) {
      for (std::size_t k = 0; k < depth_; ++k) {
        const std::size_t at = parameter(k / group_size_, j);
        column_sums_[at] += (data_[position(k, j)] >> half(k) & 0x0F) - zero_points_[at];
      }
    }
  }

  static constexpr detail::byte_format format{"detentW4", 1};
  /// No sum of a group is larger than 255 * 15 for each k.
  static constexpr std::size_t deepest_group =
      std::numeric_limits<std::int32_t>::max() / (255 * 15);

  std::size_t depth_ = 0;
  std::size_t columns_ = 0;
  std::size_t group_size_ = kernels::nibble_depth;
  std::size_t groups_ = 0;
  detail::aligned_vector<std::uint8_t> data_;
  detail::aligned_vector<float> scales_;
  detail::aligned_vector<std::uint8_t> zero_points_;
  detail::aligned_vector<std::int32_t> column_sums_;
};

/// Packs K x N codes for gemm() and dynamic_linear(). The same bytes for every split into threads.
/// Throws invalid_argument, shape_mismatch,
/// overflow.
[[nodiscard]] inline packed_int4_weights pack_int4_weights(matrix_view<const std::int8_t> codes,
                                                           const int4_weight_options& options = {},
                                                           const parallel_for& parallel = {}) {
  return packed_int4_weights(codes, options, parallel);
}
[[nodiscard]] inline packed_int4_weights pack_int4_weights(matrix_view<const std::uint8_t> codes,
                                                           const int4_weight_options& options = {},
                                                           const parallel_for& parallel = {}) {
  return packed_int4_weights(codes, options, parallel);
}

namespace detail {

/// What integer_product is for 8-bit weights.
class int4_product {
 public:
  template <class A>
  int4_product(std::type_identity<A> /*lhs*/, std::size_t rows, const packed_int4_weights& weights,
               matrix_view<float> out, const epilogue_options& options)
      : kernels_(active<kernels::nibble_product_kernels>()),
        weights_(weights),
        out_(out),
        options_(options),
        shift_(lhs_shift<A>) {
    require_rows<float, A>(rows, weights.columns(), options);
    require_scale(options.lhs_scale, "gemm");
    require_zero_point(options.lhs_zero_point, full_grid<A>, "gemm");
  }

  static constexpr bool takes_signed = false;

  [[nodiscard]] product_parts parts(std::size_t rows, const parallel_for& parallel) const noexcept {
    return {rows, weights_.columns(), weights_.depth(), kernels_.rows, bool{parallel}};
  }
  [[nodiscard]] even_blocks row_tasks(std::size_t rows,
                                      const parallel_for& parallel) const noexcept {
    return detail::row_tasks(rows, kernels_.rows, bool{parallel});
  }

  /// Sums of groups were proved to fit when the weights were packed.
  void finish() const noexcept {}

  void multiply(const std::uint8_t* a, std::size_t lda, const product_part& part,
                const std::int32_t* zero_points, const float* scales) const {
    const auto [first, rows, column, columns] = part;
    std::int32_t shifted_zero_points[kernels::largest_rows_per_call];
    float same_scales[kernels::largest_rows_per_call];
    zero_points = shifted(zero_points, rows, shift_, shifted_zero_points);
    if (zero_points == nullptr) {
      std::fill_n(shifted_zero_points, rows, options_.lhs_zero_point - shift_);
    }
    if (scales == nullptr) {
      std::fill_n(same_scales, rows, options_.lhs_scale);
    }
    kernels::gemm_u8u4_args g;
    g.a = a;
    g.lda = lda;
    g.b = weights_.panels(column);
    g.ldc = static_cast<std::size_t>(out_.row_stride);
    g.c = out_.data + first * g.ldc + column;
    g.m = rows;
    g.n = columns;
    g.k = weights_.depth();
    g.row_zero_point = zero_points != nullptr ? zero_points : shifted_zero_points;
    g.row_scale = scales != nullptr ? scales : same_scales;
    g.bias = options_.bias.empty() ? nullptr : options_.bias.data() + column;
    if (options_.residual.data != nullptr) {
      g.residual_stride = static_cast<std::size_t>(options_.residual.row_stride);
      g.residual = options_.residual.data + first * g.residual_stride + column;
    }
    g.lower = options_.lower;
    g.upper = options_.upper;
    if (rows >= kernels::fewest_unpacked_rows) {
      g.workspace = block_memory<std::byte>(kernels::unpacked_workspace);
    }
    kernels_.gemm_u8u4(g);
  }

 private:
  const kernels::nibble_product_kernels& kernels_;
  const packed_int4_weights& weights_;
  matrix_view<float> out_;
  epilogue_options options_;
  std::int32_t shift_;
};

template <>
struct product_with<float, packed_int4_weights> {
  using type = int4_product;
};

}  // namespace detail

/// out = epilogue(lhs * weights), as above. Of the options those count that count for float
/// outputs. lhs is M x K, out is M x N, both with dense rows at any row stride, or lhs with dense
/// columns at any column stride; they do not overlap. The same bits on every target and for every
/// split into threads. Throws shape_mismatch, invalid_argument, unsupported. Thread-safe. Each
/// thread keeps 256 KB for unpacked weights and sums where there are 9 or more rows, and for left
/// sides that are signed or column-major up to 256 rows of K bytes.
template <quantized_byte A>
void gemm(matrix_view<const A> lhs, const packed_int4_weights& weights, matrix_view<float> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(lhs, weights, out, options, parallel);
}
template <quantized_byte A>
void gemm(matrix_view<A> lhs, const packed_int4_weights& weights, matrix_view<float> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(matrix_view<const A>(lhs), weights, out, options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_INT4_WEIGHTS_HPP
