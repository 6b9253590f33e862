// SPDX-License-Identifier: BSD-3-Clause
// packed_int4_weights, and gemm() with them: products of 8-bit left sides with 4-bit weights (W4A8)
// that have a scale and a zero point for each group of consecutive k of each column. They need half
// the memory traffic of 8-bit weights, for products that memory bandwidth limits.
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
#include <detent/base/emptied_by_move.hpp>
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

/// The quantization parameters of 4-bit weights. K is divided into ceil(K / group_size)
/// quantization groups. Packing copies the values.
struct int4_weight_options {
  /// Number of consecutive k in a quantization group: a multiple of 8. 0 and sizes above K mean one
  /// group for all of K.
  std::size_t group_size = 0;
  /// Scales, positive and finite: one row for each quantization group, one column for each of the N
  /// columns, any strides. A null view means 1.
  matrix_view<const float> scales = {};
  /// Zero points, in the shape of the scales: -8..7 for signed codes, 0..15 for unsigned ones. A
  /// null view means 0.
  matrix_view<const std::int32_t> zero_points = {};
};

/// An owned K x N matrix of 4-bit weights in the layout of the kernels, two codes to a byte, with a
/// scale and a zero point for each quantization group of each column. Constant after construction:
/// many threads may use it at the same time. A matrix that was moved from is empty. One whose copy
/// assignment ran out of memory may only be assigned to or destroyed.
class packed_int4_weights {
 public:
  /// An empty matrix: K and N are 0.
  packed_int4_weights() = default;

  /// Packs the codes in `w`, one to an element: K rows, N columns, any strides; -8..7 for signed
  /// elements (int4), 0..15 for unsigned ones (uint4). Throws invalid_argument for a code outside
  /// that range, null data, a group size that is no multiple of 8, a scale that is not positive and
  /// finite, or a zero point out of range; shape_mismatch for parameters of another shape; overflow
  /// for more than 561433 k in a quantization group, whose sums may not fit 32 bits. The packed
  /// bytes do not depend on `parallel`.
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
    // A group that is larger than K is cut to all of K.
    group_size_ = detail::round_up((std::max)(depth_.value(), std::size_t{1}), nibble_depth);
    if (options.group_size != 0) {
      group_size_ = (std::min)(group_size_, options.group_size);
    }
    groups_ = (depth_ + group_size_ - 1) / group_size_;
    require((std::min)(group_size_, depth_.value()) <= deepest_group, error_kind::overflow, where,
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
        detail::require_scale_of("column", j, scales_[at], where);
        const std::int32_t zero_point =
            options.zero_points.data != nullptr ? options.zero_points(g, j) : 0;
        detail::require_zero_point_of("column", j, zero_point, levels, where);
        zero_points_[at] = static_cast<std::uint8_t>(zero_point - levels.qmin);
      }
    }
    // The first bad code of each column, or depth_: tasks do not throw.
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

  /// Serializes the weights to bytes for load(), in the envelope of byte_format.hpp (name
  /// "detentW4", version 1, little-endian, with a checksum). The content is:
  ///
  ///     u64 K, u64 N, u64 group size, u32 16 (columns of a panel), u32 8 (k of a step),
  ///     the codes as 0..15: u8 data[((panel * steps + k / 8) * 16 + column) * 4 + k % 4], the
  ///         low half for k % 8 < 4, else the high half, with steps = ceil(K / 8),
  ///     scales: f32 scale[(panel * groups + group) * 16 + column],
  ///     zero points, as 0..15: u8, in the order of the scales
  ///
  /// Panels are filled up to a multiple of 64 columns. The bytes are the same on every target.
  /// Thread-safe.
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
  /// Whether bytes begin like those that packed_int4_weights::save() returns. Only the name in the
  /// envelope is read; load() checks the rest.
  [[nodiscard]] static bool is_saved_form(std::span<const std::byte> bytes) noexcept {
    return detail::begins_with(bytes, format);
  }
  /// Rebuilds weights from the bytes that save() returned, on any machine. Throws bad_file for
  /// bytes that are damaged or something else, and unsupported for a version or a layout that this
  /// release does not know.
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
                (std::min)(w.group_size_, w.depth_.value()) <= deepest_group,
            error_kind::bad_file, where, ": the group size ", w.group_size_);
    w.groups_ = (w.depth_ + w.group_size_ - 1) / w.group_size_;
    from.get_array(w.data_size(), w.data_);  // less than 2^64, as K and N are less than 2^32
    from.get_array(w.parameter_count(), w.scales_);
    from.get_array(w.parameter_count(), w.zero_points_);
    from.require_end();
    // Without groups (K is 0) the arrays are empty, however many columns are claimed.
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

  /// Number of rows, K.
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  /// Number of columns, N.
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  /// Number of k in a quantization group, a multiple of 8; if there is one group, K rounded up to a
  /// multiple of 8 (at least 8). A matrix that was moved from keeps this number.
  [[nodiscard]] std::size_t group_size() const noexcept { return group_size_; }
  /// Number of quantization groups, ceil(K / group_size()).
  [[nodiscard]] std::size_t groups() const noexcept { return groups_; }
  /// Number of bytes that a product reads: codes, scales, zero points and column sums, with
  /// padding.
  [[nodiscard]] std::size_t size_bytes() const noexcept {
    return data_.size() + zero_points_.size() +
           scales_.size() * (sizeof(float) + sizeof(std::int32_t));
  }
  /// The pointers that a kernel reads, from column `column` on, which is a multiple of 64 (a
  /// strip). Valid as long as this object. For use by the library's products.
  [[nodiscard]] kernels::packed_nibbles panels(std::size_t column = 0) const noexcept {
    const std::size_t first = column * groups_;
    return {data_.data() + column * steps() * (kernels::nibble_depth / 2),
            zero_points_.data() + first, scales_.data() + first, column_sums_.data() + first,
            group_size_};
  }

 private:
  /// Checks the shape of scales or zero points.
  template <class T>
  void require_parameters(matrix_view<const T> parameters, const char* what) const {
    require(parameters.data == nullptr ||
                (parameters.rows == groups_ && parameters.columns == columns_),
            error_kind::shape_mismatch, "pack_int4_weights: the ", what, " are ", parameters.rows,
            " x ", parameters.columns, ", not ", groups_.value(), " x ", columns_.value());
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
  /// The index of the parameters of a quantization group of column j.
  [[nodiscard]] std::size_t parameter(std::size_t group, std::size_t j) const noexcept {
    using kernels::panel_columns;
    return (j / panel_columns * groups_ + group) * panel_columns + j % panel_columns;
  }
  /// The index of the byte that holds the code of row k and column j; half() says how far the code
  /// is shifted in it.
  [[nodiscard]] std::size_t position(std::size_t k, std::size_t j) const noexcept {
    using namespace kernels;  // NOLINT: the names of the layout
    return (j / panel_columns * steps() + k / nibble_depth) * nibble_panel_bytes +
           j % panel_columns * group_depth + k % group_depth;
  }
  [[nodiscard]] static constexpr int half(std::size_t k) noexcept {
    return k % kernels::nibble_depth < kernels::group_depth ? 0 : 4;
  }
  /// Computes the sums of codes minus zero points for each quantization group of each column.
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
  /// The most k in a quantization group whose sums surely fit 32 bits: no product is larger than
  /// 255 * 15.
  static constexpr std::size_t deepest_group =
      std::numeric_limits<std::int32_t>::max() / (255 * 15);

  detail::emptied_by_move<std::size_t> depth_;
  detail::emptied_by_move<std::size_t> columns_;
  std::size_t group_size_ = kernels::nibble_depth;
  detail::emptied_by_move<std::size_t> groups_;
  detail::aligned_vector<std::uint8_t> data_;
  detail::aligned_vector<float> scales_;
  detail::aligned_vector<std::uint8_t> zero_points_;
  detail::aligned_vector<std::int32_t> column_sums_;
};

/// Packs a K x N matrix of signed 4-bit codes (-8..7, one to an element) for gemm() and
/// dynamic_linear(). Throws invalid_argument (a code, scale or zero point out of range, null data,
/// a group size that is no multiple of 8), shape_mismatch (parameters of another shape) and
/// overflow (more than 561433 k in a quantization group). The result does not depend on `parallel`.
/// Thread-safe.
[[nodiscard]] inline packed_int4_weights pack_int4_weights(matrix_view<const std::int8_t> codes,
                                                           const int4_weight_options& options = {},
                                                           const parallel_for& parallel = {}) {
  return packed_int4_weights(codes, options, parallel);
}
/// Packs a K x N matrix of unsigned 4-bit codes (0..15, one to an element) for gemm() and
/// dynamic_linear(). Throws invalid_argument (a code, scale or zero point out of range, null data,
/// a group size that is no multiple of 8), shape_mismatch (parameters of another shape) and
/// overflow (more than 561433 k in a quantization group). The result does not depend on `parallel`.
/// Thread-safe.
[[nodiscard]] inline packed_int4_weights pack_int4_weights(matrix_view<const std::uint8_t> codes,
                                                           const int4_weight_options& options = {},
                                                           const parallel_for& parallel = {}) {
  return packed_int4_weights(codes, options, parallel);
}

namespace detail {

/// The checked and prepared state that all parts of one product with 4-bit weights share; it has
/// the interface of integer_product, which multiplies by 8-bit weights.
class int4_product {
 public:
  template <class A>
  int4_product(std::type_identity<A> /*lhs*/, const packed_int4_weights& weights,
               const epilogue_options& options)
      : kernels_(active<kernels::nibble_product_kernels>()),
        weights_(weights),
        options_(options),
        shift_(lhs_shift<A>) {
    require_scale(options.lhs_scale, "gemm", "lhs_scale");
    require_zero_point(options.lhs_zero_point, full_grid<A>, "gemm");
  }

  /// multiply() reads unsigned bytes only: of a signed left side, a copy with 128 added.
  static constexpr bool takes_signed = false;
  [[nodiscard]] bool shifts_rows() const noexcept { return shift_ != 0; }

  [[nodiscard]] product_parts parts(std::size_t rows, const parallel_for& parallel) const noexcept {
    return {rows, weights_.columns(), weights_.depth(), kernels_.rows, bool{parallel}};
  }
  [[nodiscard]] bool is_one_part(std::size_t rows, const parallel_for& parallel) const noexcept {
    return rows != 0 && rows <= kernels_.rows.per_call && weights_.columns() != 0 &&
           stays_on_one_thread(rows, weights_.columns() * weights_.depth(), parallel);
  }
  [[nodiscard]] even_blocks row_tasks(std::size_t rows,
                                      const parallel_for& parallel) const noexcept {
    return detail::row_tasks(rows, weights_.columns() * weights_.depth(), kernels_.rows,
                             bool{parallel});
  }
  [[nodiscard]] const kernels::nibble_product_kernels& target_kernels() const noexcept {
    return kernels_;
  }
  [[nodiscard]] std::size_t tile_rows() const noexcept { return kernels_.rows.per_tile; }

  void multiply(const left_part& left, const product_part& part, const product_output<float>& to,
                float* c, std::size_t ldc) const {
    const std::size_t rows = part.rows;
    std::int32_t shifted_zero_points[kernels::largest_rows_per_call];
    float same_scales[kernels::largest_rows_per_call];
    const std::int32_t* zero_points = shifted(left.zero_points, rows, shift_, shifted_zero_points);
    if (zero_points == nullptr) {
      std::fill_n(shifted_zero_points, rows, options_.lhs_zero_point - shift_);
    }
    if (left.scales == nullptr) {
      std::fill_n(same_scales, rows, options_.lhs_scale);
    }
    kernels::gemm_u8u4_args g;
    g.a = left.a;
    g.lda = left.lda;
    g.b = weights_.panels(part.column);
    g.ldc = ldc;
    g.c = c;
    g.m = rows;
    g.n = part.columns;
    g.k = weights_.depth();
    g.row_zero_point = zero_points != nullptr ? zero_points : shifted_zero_points;
    g.row_scale = left.scales != nullptr ? left.scales : same_scales;
    g.bias = options_.bias.empty() ? nullptr : options_.bias.data() + part.column;
    g.residual_stride = to.residual_stride();
    g.residual = to.residual(part);
    g.lower = options_.lower;
    g.upper = options_.upper;
    if (rows >= kernels::fewest_unpacked_rows) {
      g.workspace = block_memory<std::byte>(kernels::unpacked_workspace);
    }
    kernels_.gemm_u8u4(g);
  }
  void multiply(const left_part& left, const product_part& part,
                const product_output<float>& to) const {
    multiply(left, part, to, to.data(part), to.stride());
  }

 private:
  const kernels::nibble_product_kernels& kernels_;
  const packed_int4_weights& weights_;
  epilogue_options options_;
  std::int32_t shift_;
};

template <>
struct product_with<float, packed_int4_weights> {
  using type = int4_product;
};

}  // namespace detail

/// Multiplies an 8-bit M x K matrix (signed or unsigned) by packed 4-bit K x N weights. With g a
/// quantization group of k, and scale and zero_point those of the weights:
///
///     sum[g]   = sum_(k in g) (lhs[i,k] - lhs_zero_point) * (code[k,j] - zero_point[g,j])  (exact)
///     real     = fma(float(sum[last]), scale[last,j], ... fma(float(sum[0]), scale[0,j], 0) ...)
///     out[i,j] = clamp(fma(real, lhs_scale, bias[j]) + residual[i,j], lower, upper)
///
/// which is reference::grouped_dot, scaled as the float outputs of gemm() with 8-bit weights. Reads
/// from the options: lhs_scale, lhs_zero_point, lhs_scales, lhs_zero_points, bias, residual, lower
/// and upper. The bits are the same on every target and for every split into threads.
///
/// lhs has dense rows at any row stride or dense columns at any column stride; out is M x N with
/// dense rows. They must not overlap; the residual may be out itself. Throws shape_mismatch,
/// invalid_argument and unsupported before anything is written. Thread-safe. Each thread with tasks
/// keeps up to 257 KB for unpacked weights and sums if it multiplies 9 or more rows at a time, and
/// up to 256 rows of K bytes if lhs is signed or column-major.
template <quantized_byte A>
void gemm(matrix_view<const A> lhs, const packed_int4_weights& weights, matrix_view<float> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(lhs, weights, out, options, parallel);
}
/// Accepts a left side that is a view of mutable bytes; it is only read. The product is that of
/// gemm() with a view of const bytes and 4-bit weights.
template <quantized_byte A>
void gemm(matrix_view<A> lhs, const packed_int4_weights& weights, matrix_view<float> out,
          const epilogue_options& options = {}, const parallel_for& parallel = {}) {
  detail::multiply(matrix_view<const A>(lhs), weights, out, options, parallel);
}

DETENT_NAMESPACE_END

#endif  // DETENT_INT4_WEIGHTS_HPP
