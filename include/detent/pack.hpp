// SPDX-License-Identifier: BSD-3-Clause
// Weight matrices in the layout that the kernels read, with what an exact product needs besides.
#ifndef DETENT_PACK_HPP
#define DETENT_PACK_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/kernels/definitions/integer_products.hpp>
#include <detent/kernels/integer_products.hpp>
#include <detent/kernels/panels.hpp>
#include <detent/parallel.hpp>
#include <detent/quantize.hpp>
#include <detent/types.hpp>
#include <detent/weights/weight_pairs.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t multiple) noexcept {
  return (n + multiple - 1) / multiple * multiple;
}

template <class T>
void require_matrix(matrix_view<T> m, const char* where) {
  require(m.rows == 0 || m.columns == 0 || m.data != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", m.rows, " x ", m.columns);
}

/// A per-column argument: absent, one value for all columns, or one for each.
template <class T>
std::vector<T> per_column(std::span<const T> values, std::size_t columns, T absent,
                          const char* what) {
  require(values.size() <= 1 || values.size() == columns, error_kind::shape_mismatch,
          "pack_weights: ", values.size(), " ", what, " for ", columns, " columns");
  if (values.size() == columns && columns != 1) {
    return {values.begin(), values.end()};
  }
  return std::vector<T>(columns, values.empty() ? absent : values[0]);
}

/// Calls body(panel) for each panel of a matrix; a task has enough of them to be worth it.
template <class Body>
void for_panels(std::size_t depth, std::size_t columns, const parallel_for& parallel,
                const Body& body) {
  constexpr std::size_t weights_per_task = std::size_t{1} << 16;
  const std::size_t panels = (columns + kernels::panel_columns - 1) / kernels::panel_columns;
  const std::size_t panel_size = (std::max)(depth, std::size_t{1}) * kernels::panel_columns;
  const std::size_t together = (std::max)(weights_per_task / panel_size, std::size_t{1});
  run_parallel(parallel, (panels + together - 1) / together, [&](std::size_t task) {
    const std::size_t end = (std::min)((task + 1) * together, panels);
    for (std::size_t panel = task * together; panel < end; ++panel) {
      body(panel);
    }
  });
}

}  // namespace detail

/// What packing proved about a matrix.
struct weights_certificate {
  /// No sum |bias + sum_k (a - lhs_zero_point) * (b - rhs_zero_point)| is larger, for any a and any
  /// lhs_zero_point in 0..255. Up to 2^31 - 1, the product is exact in 32 bits; others are computed
  /// in 64 bits.
  std::int64_t accumulator_bound = 0;

  [[nodiscard]] bool fits_s32() const noexcept {
    return accumulator_bound <= std::numeric_limits<std::int32_t>::max();
  }
};

namespace detail {

/// What packed weights say about their columns: N values each, then zeros up to a whole panel, so
/// that kernels may read whole vectors.
struct padded_columns {
  const float* scales;
  const std::int32_t* zero_points;
  const std::int32_t* bias;
  const std::int32_t* distance_sums;  // sum_k b[k,j] - zero_point[j], modulo 2^32
};

struct packed_access;

}  // namespace detail

/// Everything about the weights but their values. Empty spans mean scale 1, zero point 0, bias 0;
/// one value serves all columns.
struct weight_options {
  std::span<const float> scales = {};
  std::span<const std::int32_t> zero_points = {};  // values of the weights' type
  std::span<const std::int32_t> bias = {};         // in units of lhs_scale * scale of the column
};

/// An owned, packed K x N matrix of 8-bit weights. What it holds is signed: of unsigned weights and
/// their zero points 128 is taken away, which changes no product. Immutable; share it freely
/// between threads.
class packed_weights {
 public:
  packed_weights() = default;

  /// Copies and packs `w` (K rows, N columns, any strides: w.transposed() packs the transpose). The
  /// same bytes for every split into threads.
  template <quantized_byte W>
  packed_weights(matrix_view<const W> w, const weight_options& options,
                 const parallel_for& parallel = {})
      : depth_(w.rows), columns_(w.columns) {
    detail::require_matrix(w, "pack_weights");
    constexpr std::int32_t shift = full_grid<W>.qmin - full_grid<std::int8_t>.qmin;
    scales_ = detail::per_column(options.scales, columns_, 1.0F, "scales");
    zero_points_ =
        detail::per_column(options.zero_points, columns_, std::int32_t{0}, "zero points");
    bias_ = detail::per_column(options.bias, columns_, std::int32_t{0}, "biases");
    for (const float scale : scales_) {
      detail::require_scale(scale, "pack_weights");
    }
    for (std::int32_t& zero_point : zero_points_) {
      detail::require_zero_point(zero_point, full_grid<W>, "pack_weights");
      zero_point -= shift;
      has_zero_points_ = has_zero_points_ || zero_point != 0;
    }
    pad_columns();

    data_.resize(packed_size(depth_, columns_));
    detail::for_panels(depth_, columns_, parallel, [&](std::size_t panel) {
      const std::size_t first = panel * kernels::panel_columns;
      const std::size_t count = (std::min)(kernels::panel_columns, columns_ - first);
      for (std::size_t k = 0; k < depth_; ++k) {
        std::int8_t* to = data_.data() + position(k, first);
        for (std::size_t i = 0; i < count; ++i) {
          to[i * kernels::group_depth] = static_cast<std::int8_t>(w(k, first + i) - shift);
        }
      }
    });
    certify(parallel);
  }

  /// The weights as bytes, for load(): the envelope of byte_format.hpp around
  ///
  ///   u64 K, u64 N, u32 16 (columns of a panel), u32 4 (k of a group)
  ///   the panels (kernels::packed_panels::data), then N scales (f32), zero points (i32) and
  ///   biases (i32)
  ///
  /// All targets read the same panels; what some of them need besides is made when it is first
  /// used.
  [[nodiscard]] std::vector<std::byte> save() const {
    detail::byte_writer to(format);
    to.put(std::uint64_t{depth_});
    to.put(std::uint64_t{columns_});
    to.put(static_cast<std::uint32_t>(kernels::panel_columns));
    to.put(static_cast<std::uint32_t>(kernels::group_depth));
    to.put_array(data());
    to.put_array(scales());
    to.put_array(zero_points());
    to.put_array(bias());
    return std::move(to).finish();
  }
  /// What save() returned. The certificate is computed anew. Throws bad_file for anything else,
  /// unsupported for a version or a layout that this release does not know.
  [[nodiscard]] static packed_weights load(std::span<const std::byte> bytes) {
    constexpr const char* where = "packed_weights::load";
    detail::byte_reader from(bytes, format, where);
    packed_weights w;
    // So that the product of both does not wrap.
    w.depth_ = from.get_size(std::numeric_limits<std::uint32_t>::max() / 2);
    w.columns_ = from.get_size(std::numeric_limits<std::uint32_t>::max() / 2);
    const auto panel = from.get<std::uint32_t>();
    const auto group = from.get<std::uint32_t>();
    require(panel == kernels::panel_columns && group == kernels::group_depth,
            error_kind::unsupported, where, ": panels of ", panel, " columns and groups of ", group,
            " k are for other kernels");
    from.get_array(packed_size(w.depth_, w.columns_), w.data_);
    from.get_array(w.columns_, w.scales_);
    from.get_array(w.columns_, w.zero_points_);
    from.get_array(w.columns_, w.bias_);
    from.require_end();
    for (std::size_t j = 0; j < w.columns_; ++j) {
      require(std::isfinite(w.scales_[j]) && w.scales_[j] > 0.0F, error_kind::bad_file, where,
              ": the scale ", w.scales_[j], " of column ", j);
      require(w.zero_points_[j] >= full_grid<std::int8_t>.qmin &&
                  w.zero_points_[j] <= full_grid<std::int8_t>.qmax,
              error_kind::bad_file, where, ": the zero point ", w.zero_points_[j], " of column ",
              j);
      w.has_zero_points_ = w.has_zero_points_ || w.zero_points_[j] != 0;
    }
    w.pad_columns();
    w.certify({});
    return w;
  }

  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }      // K
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }  // N
  [[nodiscard]] const weights_certificate& certificate() const noexcept { return certificate_; }
  [[nodiscard]] std::span<const std::int8_t> data() const noexcept { return data_; }
  /// The same weights without zero points and biases, in pieces of up to slice_depth k: no sum of a
  /// piece leaves 32 bits, whatever 8-bit values it is multiplied by. Where K is larger, a second
  /// copy of the weights, made when it is first asked for. Thread-safe.
  [[nodiscard]] std::span<const packed_weights> slices() const {
    if (depth_ <= slice_depth) {
      return {this, 1};
    }
    std::call_once(derived_->has_slices, [this] {
      for (std::size_t k = 0; k < depth_; k += slice_depth) {
        derived_->slices.push_back(slice(k, (std::min)(slice_depth, depth_ - k)));
      }
    });
    return derived_->slices;
  }
  /// 255 * 128 * slice_depth < 2^31.
  static constexpr std::size_t slice_depth = std::size_t{1} << 16;
  /// Makes what products on the active target read besides the packed weights, now instead of with
  /// the first product, and on several threads. The same bytes for every split. Thread-safe.
  void prepare(const parallel_for& parallel = {}) const {
    for (const packed_weights& part : certificate_.fits_s32() ? std::span(this, 1) : slices()) {
      if (detail::active<kernels::integer_product_kernels>().adds_pairs) {
        // Threads may not wait for each other's pools: what a pool computes is ready before the
        // flag is taken.
        detail::weight_pairs made(part.data_, part.depth_, part.columns_, parallel);
        std::call_once(part.derived_->has_pairs, [&] { part.derived_->pairs = std::move(made); });
      }
    }
  }
  [[nodiscard]] std::span<const std::int32_t> column_sums() const noexcept {
    return {column_sums_.data(), columns_};
  }
  [[nodiscard]] std::span<const float> scales() const noexcept {
    return {scales_.data(), columns_};
  }
  /// Of the signed values that are packed.
  [[nodiscard]] std::span<const std::int32_t> zero_points() const noexcept {
    return {zero_points_.data(), columns_};
  }
  [[nodiscard]] std::span<const std::int32_t> bias() const noexcept {
    return {bias_.data(), columns_};
  }
  [[nodiscard]] bool has_zero_points() const noexcept { return has_zero_points_; }
  /// How many pairs of neighbouring weights the targets without VNNI multiply apart, because their
  /// sum could leave 16 bits: what exactness costs there. Computes what prepare() does for such a
  /// target, whichever is active. Thread-safe.
  [[nodiscard]] std::size_t corrected_pairs() const { return pairs().corrected(); }

 private:
  friend struct detail::packed_access;
  static constexpr detail::byte_format format{"detentW8", 1};

  /// The weights for kernels that add products in pairs: a second copy, made when it is first asked
  /// for.
  [[nodiscard]] const detail::weight_pairs& pairs() const {
    std::call_once(derived_->has_pairs,
                   [this] { derived_->pairs = detail::weight_pairs(data_, depth_, columns_); });
    return derived_->pairs;
  }

  [[nodiscard]] static std::size_t packed_size(std::size_t depth, std::size_t columns) noexcept {
    return detail::round_up(depth, kernels::group_depth) *
           detail::round_up(columns, kernels::panel_columns);
  }
  [[nodiscard]] std::size_t position(std::size_t k, std::size_t j) const noexcept {
    using kernels::group_depth;
    using kernels::panel_columns;
    return j / panel_columns * detail::round_up(depth_, group_depth) * panel_columns +
           (k / group_depth * panel_columns + j % panel_columns) * group_depth + k % group_depth;
  }
  void pad_columns() {
    const std::size_t padded = detail::round_up(columns_, kernels::panel_columns);
    scales_.resize(padded);
    zero_points_.resize(padded);
    bias_.resize(padded);
  }
  /// Computes the column sums and the certificate.
  void certify(const parallel_for& parallel) {
    using kernels::panel_columns;
    column_sums_.resize(columns_);
    distance_sums_.resize(detail::round_up(columns_, panel_columns));
    std::vector<std::int64_t> bounds(columns_);
    detail::for_panels(depth_, columns_, parallel, [&](std::size_t panel) {
      const std::size_t first = panel * panel_columns;
      const std::size_t count = (std::min)(panel_columns, columns_ - first);
      std::int64_t sum[panel_columns] = {};
      std::int64_t magnitude[panel_columns] = {};
      for (std::size_t k = 0; k < depth_; ++k) {
        const std::int8_t* from = data_.data() + position(k, first);
        for (std::size_t i = 0; i < count; ++i) {
          const std::int32_t value = from[i * kernels::group_depth];
          const std::int32_t distance = value - zero_points_[first + i];
          sum[i] += value;
          magnitude[i] += distance < 0 ? -distance : distance;
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        // Modulo 2^32, as the vector lanes are; exact in a slice.
        const auto column_sum = static_cast<std::uint32_t>(sum[i]);
        column_sums_[first + i] = static_cast<std::int32_t>(column_sum);
        distance_sums_[first + i] = static_cast<std::int32_t>(
            column_sum - static_cast<std::uint32_t>(depth_) *
                             static_cast<std::uint32_t>(zero_points_[first + i]));
        const std::int64_t bias = bias_[first + i];
        bounds[first + i] = 255 * magnitude[i] + (bias < 0 ? -bias : bias);
      }
    });
    for (const std::int64_t bound : bounds) {
      certificate_.accumulator_bound = (std::max)(certificate_.accumulator_bound, bound);
    }
  }
  /// The k from `first` on, which is a multiple of group_depth.
  [[nodiscard]] packed_weights slice(std::size_t first, std::size_t depth) const {
    packed_weights s;
    s.depth_ = depth;
    s.columns_ = columns_;
    s.scales_ = std::vector<float>(columns_, 1.0F);
    s.zero_points_ = std::vector<std::int32_t>(columns_);
    s.bias_ = std::vector<std::int32_t>(columns_);
    s.pad_columns();
    s.data_.resize(packed_size(depth, columns_));
    for (std::size_t j = 0; j < columns_; j += kernels::panel_columns) {
      std::memcpy(s.data_.data() + s.position(0, j), data_.data() + position(first, j),
                  detail::round_up(depth, kernels::group_depth) * kernels::panel_columns);
    }
    s.certify({});
    return s;
  }

  std::size_t depth_ = 0;
  std::size_t columns_ = 0;
  detail::aligned_vector<std::int8_t> data_;
  /// What is made of the weights when it is first asked for.
  struct derived_weights {
    std::once_flag has_pairs;
    detail::weight_pairs pairs;
    std::once_flag has_slices;
    std::vector<packed_weights> slices;
  };
  std::shared_ptr<derived_weights> derived_ = std::make_shared<derived_weights>();
  std::vector<std::int32_t> column_sums_;
  std::vector<std::int32_t> distance_sums_;
  std::vector<float> scales_;
  std::vector<std::int32_t> zero_points_;
  std::vector<std::int32_t> bias_;
  bool has_zero_points_ = false;
  weights_certificate certificate_;
};

namespace detail {

/// What products read of packed weights. Pointers are valid as long as the weights are.
struct packed_access {
  [[nodiscard]] static kernels::packed_panels panels(const packed_weights& w, bool adds_pairs) {
    if (adds_pairs) {
      return w.pairs().panels(w.data_.data());
    }
    kernels::packed_panels panels;
    panels.data = w.data_.data();
    return panels;
  }
  [[nodiscard]] static const weight_pairs& pairs(const packed_weights& w) { return w.pairs(); }
  [[nodiscard]] static padded_columns padded(const packed_weights& w) noexcept {
    return {w.scales_.data(), w.zero_points_.data(), w.bias_.data(), w.distance_sums_.data()};
  }
};

}  // namespace detail

/// Packs K x N weights for gemm(). The same bytes for every split into threads. Throws
/// shape_mismatch or invalid_argument.
[[nodiscard]] inline packed_weights pack_weights(matrix_view<const std::int8_t> w,
                                                 const weight_options& options = {},
                                                 const parallel_for& parallel = {}) {
  return packed_weights(w, options, parallel);
}
[[nodiscard]] inline packed_weights pack_weights(matrix_view<const std::uint8_t> w,
                                                 const weight_options& options = {},
                                                 const parallel_for& parallel = {}) {
  return packed_weights(w, options, parallel);
}

/// An owned, packed K x N matrix of floats with a bias for each column.
class packed_floats {
 public:
  packed_floats() = default;

  /// `bias` is empty or has N values. The same bits for every split into threads.
  packed_floats(matrix_view<const float> w, std::span<const float> bias,
                const parallel_for& parallel = {})
      : depth_(w.rows), columns_(w.columns) {
    detail::require_matrix(w, "pack_floats");
    require(bias.empty() || bias.size() == columns_, error_kind::shape_mismatch,
            "pack_floats: ", bias.size(), " biases for ", columns_, " columns");
    using kernels::panel_columns;
    const std::size_t padded = detail::round_up(columns_, panel_columns);
    bias_.resize(padded);
    std::copy(bias.begin(), bias.end(), bias_.begin());
    data_.resize(depth_ * padded);
    detail::for_panels(depth_, columns_, parallel, [&](std::size_t number) {
      const std::size_t j = number * panel_columns;
      float* panel = data_.data() + j * depth_;
      const std::size_t count = (std::min)(panel_columns, columns_ - j);
      for (std::size_t k = 0; k < depth_; ++k) {
        for (std::size_t i = 0; i < count; ++i) {
          panel[k * panel_columns + i] = w(k, j + i);
        }
      }
    });
  }

  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::span<const float> data() const noexcept { return data_; }
  /// Padded with zeros to whole panels.
  [[nodiscard]] std::span<const float> bias() const noexcept { return bias_; }

 private:
  std::size_t depth_ = 0;
  std::size_t columns_ = 0;
  detail::aligned_vector<float> data_;
  std::vector<float> bias_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PACK_HPP
