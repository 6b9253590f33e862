// SPDX-License-Identifier: BSD-3-Clause
// packed_weights and packed_floats: weight matrices in the layout that the kernels read, with
// column sums and a certificate that tells whether the sums of a product fit 32 bits.
#ifndef DETENT_PACK_HPP
#define DETENT_PACK_HPP

#include <algorithm>
#include <atomic>
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
#include <detent/base/checked_size.hpp>
#include <detent/base/emptied_by_move.hpp>
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

/// The smallest multiple of `multiple` that is not less than n.
[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t multiple) noexcept {
  return (n + multiple - 1) / multiple * multiple;
}

/// Throws invalid_argument if a matrix with elements has a null pointer, or sizes beyond memory.
template <class T>
void require_matrix(matrix_view<T> m, const char* where) {
  require(m.rows == 0 || m.columns == 0 || m.data != nullptr, error_kind::invalid_argument, where,
          ": null data with size ", m.rows, " x ", m.columns);
  checked_size(where, {m.rows, m.columns});
}

/// Expands a per-column argument to one value for each column. It has no values (each column gets
/// `absent`), one value for all columns, or one for each; else throws shape_mismatch, and
/// invalid_argument for null data with a size that is not 0.
template <class T>
std::vector<T> per_column(std::span<const T> values, std::size_t columns, T absent,
                          const char* what) {
  require(values.size() <= 1 || values.size() == columns, error_kind::shape_mismatch,
          "pack_weights: ", values.size(), " ", what, " for ", columns, " columns");
  require_data(values, "pack_weights", what);
  if (values.size() == columns && columns != 1) {
    return {values.begin(), values.end()};
  }
  return std::vector<T>(columns, values.empty() ? absent : values[0]);
}

/// Calls body(panel) for each panel of a depth x columns matrix. A task takes as many panels as
/// hold 2^16 weights, or one, so that starting it is worth it.
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

/// A bound of all sums that products with a weight matrix can have, proved when it was packed.
struct weights_certificate {
  /// The bound max_j (|bias[j]| + 255 * sum_k |b[k,j] - zero_point[j]|). It is not exceeded by
  /// |bias[j] + sum_k (a[k] - lhs_zero_point) * (b[k,j] - zero_point[j])| for any a and any
  /// lhs_zero_point of 0..255 (or both of -128..127). Products are computed in 32 bits if the bound
  /// is at most 2^31 - 1, and with 64-bit sums otherwise; they are exact either way.
  std::int64_t accumulator_bound = 0;

  /// Whether accumulator_bound is at most 2^31 - 1: all sums fit 32 bits, whatever the left side.

  [[nodiscard]] bool fits_s32() const noexcept {
    return accumulator_bound <= std::numeric_limits<std::int32_t>::max();
  }
};

namespace detail {

/// Per-column arrays of packed weights: N values each, then zeros up to a whole panel, so that
/// kernels may read whole vectors.
struct padded_columns {
  const float* scales;
  const std::int32_t* zero_points;  // of the signed values that are stored
  const std::int32_t* bias;
  const std::int32_t* distance_sums;  // sum_k (b[k,j] - zero_point[j]), modulo 2^32
};

struct packed_access;

}  // namespace detail

/// The quantization parameters of a weight matrix. Each span is empty, has one value for all
/// columns, or has one value for each column. Packing copies the values.
struct weight_options {
  std::span<const float> scales = {};  ///< Scales: positive and finite; empty means 1.
  /// Zero points: values of the weights' type (-128..127 or 0..255); empty means 0.
  std::span<const std::int32_t> zero_points = {};
  /// Integer biases, added to the exact sums: in units of lhs_scale * scale of the column; empty
  /// means 0.
  std::span<const std::int32_t> bias = {};
};

/// An owned K x N matrix of 8-bit weights in the layout of the kernels, with scales, zero points
/// and biases of its columns. Weights are stored as signed bytes: 128 is subtracted from unsigned
/// weights and from their zero points, which changes no product. Constant after construction: many
/// threads may use it at the same time. A copy shares what is made on first use (weight pairs,
/// slices) with the original; a matrix that was moved from is empty. One whose copy assignment ran
/// out of memory may only be assigned to or destroyed.
class packed_weights {
 public:
  /// An empty matrix: K and N are 0.
  packed_weights() = default;

  /// Copies and packs `w`: K rows, N columns, any strides (w.transposed() packs the transpose).
  /// Throws shape_mismatch if an array of the options has neither 0, 1 nor N values, and
  /// invalid_argument for null data, more than 2^48 weights, a scale that is not positive and
  /// finite, or a zero point outside the weights' type. The packed bytes do not depend on
  /// `parallel`.
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
    for (std::size_t j = 0; j < columns_; ++j) {
      detail::require_scale_of("column", j, scales_[j], "pack_weights");
    }
    for (std::size_t j = 0; j < columns_; ++j) {
      std::int32_t& zero_point = zero_points_[j];
      detail::require_zero_point_of("column", j, zero_point, full_grid<W>, "pack_weights");
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

  /// Serializes the weights to bytes for load(), in the envelope of byte_format.hpp (name
  /// "detentW8", version 1, little-endian, with a checksum). The content is:
  ///
  ///     u64 K, u64 N, u32 16 (columns of a panel), u32 4 (k of a group),
  ///     the panels: i8 data[((panel * groups + group) * 16 + column) * 4 + k % 4], with
  ///                 groups = ceil(K / 4), and zeros where K or N end early,
  ///     N scales (f32), N zero points (i32, of the signed values), N biases (i32)
  ///
  /// The bytes are the same on every target; weight pairs, which some targets need besides, are not
  /// saved but made on first use after load(). Thread-safe.
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
  /// Rebuilds weights from the bytes that save() returned, on any machine. Sums and certificate are
  /// computed again, not trusted. Throws bad_file for bytes that are damaged or something else, and
  /// unsupported for a version or a layout that this release does not know.
  [[nodiscard]] static packed_weights load(std::span<const std::byte> bytes) {
    constexpr const char* where = "packed_weights::load";
    detail::byte_reader from(bytes, format, where);
    packed_weights w;
    // The limits keep the product of both from wrapping.
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

  /// Number of rows, K.
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  /// Number of columns, N.
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  /// The bound of all sums, which tells whether products fit 32 bits.
  [[nodiscard]] const weights_certificate& certificate() const noexcept { return certificate_; }
  /// The packed signed bytes, in the order that save() documents: panels of 16 columns, filled up
  /// with zeros.
  [[nodiscard]] std::span<const std::int8_t> data() const noexcept { return data_; }
  /// The weights in slices of up to slice_depth consecutive k. The sum of raw products over one
  /// slice fits 32 bits, whatever 8-bit values it is multiplied by. If K is at most slice_depth,
  /// the only slice is this object itself, with its zero points and biases; otherwise the slices
  /// are a second copy of the weights with scales of 1 and no zero points or biases, made on the
  /// first call and shared by copies of this object. Valid as long as this object. Thread-safe.
  [[nodiscard]] std::span<const packed_weights> slices() const {
    if (depth_ <= slice_depth) {
      return {this, 1};
    }
    std::call_once(derived_->has_slices, [this] {
      std::vector<packed_weights> made;  // all of them, or none: the memory may not suffice
      for (std::size_t k = 0; k < depth_; k += slice_depth) {
        made.push_back(slice(k, (std::min)(slice_depth, depth_ - k)));
      }
      derived_->slices = std::move(made);
    });
    return derived_->slices;
  }
  /// The largest number of k in a slice, 2^16: 255 * 128 * 2^16 < 2^31.
  static constexpr std::size_t slice_depth = std::size_t{1} << 16;
  /// Makes now, on the threads of `parallel`, what products on the active target would make on
  /// first use: the slices of weights whose sums may leave 32 bits, and, on targets that add
  /// products in pairs (avx2, avx512), the weight pairs (see corrected_pairs()). The bytes do not
  /// depend on `parallel`. What is there already, from an earlier call or from products, is not
  /// made again. Thread-safe; calls at the same time may each make the pairs, of which one copy is
  /// kept.
  void prepare(const parallel_for& parallel = {}) const {
    if (derived_ == nullptr) {
      return;
    }
    for (const packed_weights& part :
         certificate_.value().fits_s32() ? std::span(this, 1) : slices()) {
      if (detail::active<kernels::integer_product_kernels>().adds_pairs &&
          !part.derived_->are_pairs_made.load(std::memory_order_acquire)) {
        // The pairs are computed before the flag is taken: if threads of a pool ran inside
        // call_once, two pools could wait for each other.
        detail::weight_pairs made(part.data_, part.depth_, part.columns_, parallel);
        part.keep_pairs([&] { return std::move(made); });
      }
    }
  }
  /// The sum over k of the stored signed weights, for each of the N columns, modulo 2^32.
  [[nodiscard]] std::span<const std::int32_t> column_sums() const noexcept {
    return {column_sums_.data(), columns_};
  }
  /// The scale of each of the N columns.
  [[nodiscard]] std::span<const float> scales() const noexcept {
    return {scales_.data(), columns_};
  }
  /// The zero point of each of the N columns, for the stored signed values: for weights that were
  /// packed unsigned, the given zero point minus 128.
  [[nodiscard]] std::span<const std::int32_t> zero_points() const noexcept {
    return {zero_points_.data(), columns_};
  }
  /// The integer bias of each of the N columns, in units of lhs_scale * scale of the column.
  [[nodiscard]] std::span<const std::int32_t> bias() const noexcept {
    return {bias_.data(), columns_};
  }
  /// Whether a stored zero point is not 0. Products then also need the sums of the left side's
  /// rows.
  [[nodiscard]] bool has_zero_points() const noexcept { return has_zero_points_; }
  /// Number of pairs of weights for which the targets avx2 and avx512 need a correction. These
  /// targets add the products of two neighbouring k in 16 bits with saturation (vpmaddubsw); for a
  /// pair whose sum could leave 16 bits, a part of the weights is multiplied separately, or, if
  /// there are many, all weights are multiplied as 16-bit values. The number is the cost of
  /// exactness there. The first call makes the pairs, whichever target is active. Thread-safe.
  [[nodiscard]] std::size_t corrected_pairs() const { return pairs().corrected(); }

 private:
  friend struct detail::packed_access;
  static constexpr detail::byte_format format{"detentW8", 1};

  /// The weights for kernels that add products in pairs: a second copy, made on the first call.
  [[nodiscard]] const detail::weight_pairs& pairs() const {
    if (derived_ == nullptr) {
      static const detail::weight_pairs none;
      return none;
    }
    keep_pairs([this] { return detail::weight_pairs(data_, depth_, columns_); });
    return derived_->pairs;
  }
  /// Keeps what make() returns as the weight pairs, if there are none yet.
  template <class Make>
  void keep_pairs(const Make& make) const {
    std::call_once(derived_->has_pairs, [&] {
      derived_->pairs = make();
      derived_->pairs.forget_if_slow();
      derived_->are_pairs_made.store(true, std::memory_order_release);
    });
  }

  [[nodiscard]] static std::size_t packed_size(std::size_t depth, std::size_t columns) noexcept {
    return detail::round_up(depth, kernels::group_depth) *
           detail::round_up(columns, kernels::panel_columns);
  }
  /// Where data_ holds the weight of row k and column j.
  [[nodiscard]] std::size_t position(std::size_t k, std::size_t j) const noexcept {
    using kernels::group_depth;
    using kernels::panel_columns;
    return j / panel_columns * detail::round_up(depth_, group_depth) * panel_columns +
           (k / group_depth * panel_columns + j % panel_columns) * group_depth + k % group_depth;
  }
  /// Extends the per-column arrays with zeros to whole panels; see padded_columns.
  void pad_columns() {
    const std::size_t padded = detail::round_up(columns_, kernels::panel_columns);
    scales_.resize(padded);
    zero_points_.resize(padded);
    bias_.resize(padded);
  }
  /// Computes the column sums and the certificate, and makes room for derived data.
  void certify(const parallel_for& parallel) {
    using kernels::panel_columns;
    derived_ = std::make_shared<derived_weights>();
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
        // Reduced modulo 2^32, as the kernels' 32-bit lanes compute; exact for a slice.
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
      certificate_.value().accumulator_bound =
          (std::max)(certificate_.value().accumulator_bound, bound);
    }
  }
  /// Copies `depth` rows from row `first` on, which is a multiple of group_depth, without scales,
  /// zero points and biases.
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

  detail::emptied_by_move<std::size_t> depth_;
  detail::emptied_by_move<std::size_t> columns_;
  detail::aligned_vector<std::int8_t> data_;
  /// Data that is derived from the weights on first use.
  struct derived_weights {
    std::once_flag has_pairs;
    /// Whether has_pairs has been set: a once_flag cannot be asked.
    std::atomic<bool> are_pairs_made{false};
    detail::weight_pairs pairs;
    std::once_flag has_slices;
    std::vector<packed_weights> slices;
  };
  std::shared_ptr<derived_weights> derived_;  // null in a matrix that nothing was packed into
  std::vector<std::int32_t> column_sums_;
  std::vector<std::int32_t> distance_sums_;  // see padded_columns
  std::vector<float> scales_;
  std::vector<std::int32_t> zero_points_;
  std::vector<std::int32_t> bias_;
  detail::emptied_by_move<bool> has_zero_points_;
  detail::emptied_by_move<weights_certificate> certificate_;
};

namespace detail {

/// Gives products access to the private parts of packed weights. Pointers are valid as long as the
/// weights.
struct packed_access {
  /// The panels that kernels read; with `adds_pairs`, including the weight pairs.
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

/// Packs a K x N matrix of signed 8-bit weights for gemm(). Pack once, multiply often.
///
/// @code{.cpp}
/// #include <cstdint>
/// #include <vector>
///
/// #include <detent/pack.hpp>
///
/// // Weights of a layer that are stored as N rows of K (one row for each output), with a scale for
/// // each output: the transposed view is the K x N matrix that gemm() multiplies by.
/// detent::packed_weights pack(const std::vector<std::int8_t>& w, std::size_t n, std::size_t k,
///                             const std::vector<float>& scales) {
///   const detent::matrix_view<const std::int8_t> rows(w.data(), n, k);
///   return detent::pack_weights(rows.transposed(), {.scales = scales});
/// }
/// @endcode
///
/// Throws shape_mismatch if an array of the options has neither 0, 1 nor N values, and
/// invalid_argument for null data, a scale that is not positive and finite, or a zero point outside
/// -128..127. The result does not depend on `parallel`. Thread-safe.
[[nodiscard]] inline packed_weights pack_weights(matrix_view<const std::int8_t> w,
                                                 const weight_options& options = {},
                                                 const parallel_for& parallel = {}) {
  return packed_weights(w, options, parallel);
}
/// Packs a K x N matrix of unsigned 8-bit weights, with zero points of 0..255, for gemm(). Throws
/// shape_mismatch if an array of the options has neither 0, 1 nor N values, and invalid_argument
/// for null data, a scale that is not positive and finite, or a zero point outside 0..255. The
/// result does not depend on `parallel`. Thread-safe.
[[nodiscard]] inline packed_weights pack_weights(matrix_view<const std::uint8_t> w,
                                                 const weight_options& options = {},
                                                 const parallel_for& parallel = {}) {
  return packed_weights(w, options, parallel);
}

/// An owned K x N matrix of floats in the layout of the kernels, with a bias for each column.
/// Constant after construction: many threads may use it at the same time. A matrix that was moved
/// from is empty. One whose copy assignment ran out of memory may only be assigned to or destroyed.
class packed_floats {
 public:
  /// An empty matrix: K and N are 0.
  packed_floats() = default;

  /// Copies and packs `w`, with biases of 0. Throws invalid_argument for null data.
  explicit packed_floats(matrix_view<const float> w) : packed_floats(w, {}) {}
  /// Copies and packs `w`: K rows, N columns, any strides. `bias` is empty (all 0) or has N values.
  /// Throws shape_mismatch for another number of biases, invalid_argument for null data. The result
  /// does not depend on `parallel`.
  packed_floats(matrix_view<const float> w, std::span<const float> bias,
                const parallel_for& parallel = {})
      : depth_(w.rows), columns_(w.columns) {
    constexpr const char* where = "packed_floats";
    detail::require_matrix(w, where);
    require(bias.empty() || bias.size() == columns_, error_kind::shape_mismatch, where, ": ",
            bias.size(), " biases for ", w.columns, " columns");
    detail::require_data(bias, where, "biases");
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

  /// Number of rows, K.
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  /// Number of columns, N.
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  /// The packed values, data[(panel * K + k) * 16 + column]: panels of 16 columns, the last one
  /// filled up with zeros.
  [[nodiscard]] std::span<const float> data() const noexcept { return data_; }
  /// The bias of each column, then zeros up to a multiple of 16 values.
  [[nodiscard]] std::span<const float> bias() const noexcept { return bias_; }

 private:
  detail::emptied_by_move<std::size_t> depth_;
  detail::emptied_by_move<std::size_t> columns_;
  detail::aligned_vector<float> data_;
  std::vector<float> bias_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PACK_HPP
