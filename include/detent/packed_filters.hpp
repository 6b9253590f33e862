// SPDX-License-Identifier: BSD-3-Clause
// Filters in the layout of the kernels, for convolve(): packed_filters of 8-bit integers and
// packed_float_filters.
#ifndef DETENT_PACKED_FILTERS_HPP
#define DETENT_PACKED_FILTERS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/base/byte_format.hpp>
#include <detent/base/checked_size.hpp>
#include <detent/base/emptied_by_move.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/images/depthwise.hpp>
#include <detent/pack.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN

namespace detail {

/// Checks the shape of a filter bank and the number of its weights.
inline void require_filters(const filter_shape& f, std::size_t weights, const void* data) {
  // More than one group of no channels is refused, too: nothing else would bound their number.
  const bool divides = f.groups > 0 && f.in_channels % f.groups == 0 &&
                       f.out_channels % f.groups == 0 &&
                       (f.groups == 1 || (f.in_channels > 0 && f.out_channels > 0));
  require(divides, error_kind::shape_mismatch, "convolution: ", f.in_channels, " input and ",
          f.out_channels, " output channels do not divide into ", f.groups, " groups");
  require(f.kernel_height > 0 && f.kernel_width > 0, error_kind::invalid_argument,
          "convolution: kernel ", f.kernel_height, " x ", f.kernel_width);
  // f.size() and all sizes that are computed from the shape do not wrap.
  checked_size("convolution", {f.out_channels, f.group_in(), f.kernel_height, f.kernel_width});
  checked_size("convolution", {f.in_channels});
  require(weights == f.size(), error_kind::shape_mismatch, "convolution: ", weights,
          " weights, not ", f.size());
  require(weights == 0 || data != nullptr, error_kind::invalid_argument,
          "convolution: null weights with size ", weights);
}

/// Turns the weights of one group, [group_out][group_in][taps], into the K x N matrix of a product:
/// N = group_out, and k runs over kernel rows, taps of a row, channels, in this order. A kernel row
/// takes `row` values of k; those behind its last tap hold padding(n) in column n.
template <class T, class Padding>
std::vector<T> filter_matrix(const filter_shape& f, const T* weights, std::size_t row,
                             const Padding& padding) {
  std::vector<T> matrix(f.group_out() * f.kernel_height * row);
  if (matrix.empty()) {
    return matrix;  // a kernel of any size, without channels
  }
  const std::size_t dense = f.kernel_width * f.group_in();
  for (std::size_t n = 0; n < f.group_out(); ++n) {
    for (std::size_t kh = 0; kh < f.kernel_height; ++kh) {
      T* column = matrix.data() + kh * row * f.group_out() + n;
      for (std::size_t i = 0; i < dense; ++i) {
        const std::size_t channel = i % f.group_in();
        const std::size_t tap = kh * f.kernel_width + i / f.group_in();
        column[i * f.group_out()] = weights[(n * f.group_in() + channel) * f.taps() + tap];
      }
      for (std::size_t i = dense; i < row; ++i) {
        column[i * f.group_out()] = padding(n);
      }
    }
  }
  return matrix;
}

/// The part of a per-channel argument that belongs to one group. Arguments with no value or one
/// value serve every group as they are.
template <class T>
std::span<const T> group_slice(std::span<const T> values, const filter_shape& f,
                               std::size_t group) {
  if (values.size() <= 1) {
    return values;
  }
  require(values.size() == f.out_channels, error_kind::shape_mismatch,
          "convolution: ", values.size(), " per-channel values for ", f.out_channels, " channels");
  return values.subspan(group * f.group_out(), f.group_out());
}

struct filter_access;

}  // namespace detail

/// An owned filter bank of signed 8-bit weights in the layout of the kernels, with scales, zero
/// points and biases of its output channels. Constant after construction: many threads may use it
/// at the same time. A filter bank that was moved from is empty. One whose copy assignment ran out
/// of memory may only be assigned to or destroyed.
class packed_filters {
 public:
  /// An empty filter bank, without channels.
  packed_filters() = default;
  /// Copies and packs weights of the shape f: [out_channels][in_channels / groups][kernel_height]
  /// [kernel_width]. Each span of the options has no value, one value, or one for each output
  /// channel; zero points are -128..127. Throws shape_mismatch for channels that do not divide into
  /// the groups and for arrays of another size; invalid_argument for a kernel of size 0, null
  /// weights, a scale that is not positive and finite, or a zero point out of range.
  packed_filters(const filter_shape& f, std::span<const std::int8_t> weights,
                 const weight_options& options = {})
      : shape_(f) {
    detail::require_filters(f, weights.size(), weights.data());
    if (f.depthwise()) {
      // The channels are the columns; packing them as one matrix checks and keeps their parameters.
      std::vector<std::int8_t> matrix(f.taps() * f.out_channels);
      for (std::size_t c = 0; c < f.out_channels; ++c) {
        for (std::size_t t = 0; t < f.taps(); ++t) {
          matrix[t * f.out_channels + c] = weights[c * f.taps() + t];
        }
      }
      groups_.emplace_back(matrix_view<const std::int8_t>(matrix.data(), f.taps(), f.out_channels),
                           options);
      if (groups_[0].certificate().fits_s32() ||
          f.taps() <= detail::depthwise_weights::most_exact_taps) {
        is_depthwise_ = true;
        depthwise_ = detail::depthwise_weights(matrix.data(), f, groups_[0].zero_points());
        return;
      }
      // Products with so many taps may leave 32 bits: treat the filters like other groups.
      groups_.clear();
    }
    // Segments of left rows are multiples of group_depth. A segment that is rounded up reads values
    // that do not belong to the window; their weights equal the zero point, so that they count as
    // 0.
    row_ = f.kernel_width * f.group_in();
    if (f.groups == 1 && f.taps() > 1) {
      row_ = detail::round_up(row_, kernels::group_depth);
    }
    const std::size_t group_size = f.size() / f.groups;
    for (std::size_t g = 0; g < f.groups; ++g) {
      const std::span<const std::int32_t> zero_points =
          detail::group_slice(options.zero_points, f, g);
      const std::vector<std::int8_t> matrix =
          detail::filter_matrix(f, weights.data() + g * group_size, row_, [&](std::size_t n) {
            return static_cast<std::int8_t>(
                zero_points.empty() ? 0 : zero_points[zero_points.size() == 1 ? 0 : n]);
          });
      groups_.emplace_back(
          matrix_view<const std::int8_t>(matrix.data(), row_ * f.kernel_height, f.group_out()),
          weight_options{detail::group_slice(options.scales, f, g), zero_points,
                         detail::group_slice(options.bias, f, g)});
    }
  }

  /// Serializes the filters to bytes for load(), in the envelope of byte_format.hpp (name
  /// "detentF8", version 1, little-endian, with a checksum). The content is:
  ///
  ///     u64 out_channels, in_channels, groups, kernel_height, kernel_width,
  ///     the weights, i8 [out_channels][in_channels / groups][kernel_height][kernel_width],
  ///     for each output channel: f32 scales, then i32 zero points, then i32 biases
  ///
  /// The bytes are the same on every target, and no layout of kernels is in them. Thread-safe.
  [[nodiscard]] std::vector<std::byte> save() const {
    const filter_shape& f = shape_;
    detail::byte_writer to(format);
    for (const std::size_t size :
         {f.out_channels, f.in_channels, f.groups, f.kernel_height, f.kernel_width}) {
      to.put(std::uint64_t{size});
    }
    to.put_array(std::span<const std::int8_t>(unpacked()));
    for (const packed_weights& w : groups_) {
      to.put_array(w.scales());
    }
    for (const packed_weights& w : groups_) {
      to.put_array(w.zero_points());
    }
    for (const packed_weights& w : groups_) {
      to.put_array(w.bias());
    }
    return std::move(to).finish();
  }
  /// Packs filters of the bytes that save() returned, on any machine. Throws bad_file for bytes
  /// that are damaged or something else, and unsupported for a version that this release does not
  /// know.
  [[nodiscard]] static packed_filters load(std::span<const std::byte> bytes) {
    constexpr const char* where = "packed_filters::load";
    detail::byte_reader from(bytes, format, where);
    constexpr std::uint64_t most = std::uint64_t{1} << 31;
    filter_shape f;
    f.out_channels = from.get_size(most);
    f.in_channels = from.get_size(most);
    f.groups = from.get_size(most);
    f.kernel_height = from.get_size(most);
    f.kernel_width = from.get_size(most);
    require(f.groups > 0 && f.in_channels % f.groups == 0 && f.out_channels % f.groups == 0 &&
                (f.groups == 1 || (f.in_channels > 0 && f.out_channels > 0)) &&
                f.kernel_height > 0 && f.kernel_width > 0,
            error_kind::bad_file, where, ": the shape is impossible");
    std::size_t count = f.out_channels;
    for (const std::size_t size : {f.group_in(), f.kernel_height, f.kernel_width}) {
      require(size == 0 || count <= from.rest() / size, error_kind::bad_file, where,
              ": ends early");
      count *= size;
    }
    // Without channels, no bytes bound the other sizes.
    require(count != 0 ||
                (f.taps() <= most && f.taps() * (std::max)(f.group_in(), std::size_t{1}) <= most),
            error_kind::bad_file, where, ": the shape is impossible");
    std::vector<std::int8_t> weights;
    std::vector<float> scales;
    std::vector<std::int32_t> zero_points;
    std::vector<std::int32_t> bias;
    from.get_array(count, weights);
    from.get_array(f.out_channels, scales);
    from.get_array(f.out_channels, zero_points);
    from.get_array(f.out_channels, bias);
    from.require_end();
    for (std::size_t c = 0; c < f.out_channels; ++c) {
      require(std::isfinite(scales[c]) && scales[c] > 0.0F, error_kind::bad_file, where,
              ": the scale ", scales[c], " of channel ", c);
      require(zero_points[c] >= full_grid<std::int8_t>.qmin &&
                  zero_points[c] <= full_grid<std::int8_t>.qmax,
              error_kind::bad_file, where, ": the zero point ", zero_points[c], " of channel ", c);
    }
    return packed_filters(f, weights, {scales, zero_points, bias});
  }

  /// The shape that the filters were packed with.
  [[nodiscard]] const filter_shape& shape() const noexcept { return shape_; }
  /// Whether the filters are stored for the depthwise kernels: shape().depthwise() holds, and they
  /// do not have so many taps (more than 33025, and a certificate above 32 bits) that the products
  /// alone may leave 32 bits.
  [[nodiscard]] bool is_depthwise() const noexcept { return is_depthwise_; }
  /// The weights as matrices. If is_depthwise(), there is one, taps x channels. Otherwise there is
  /// one for each group: its columns are the group's output channels, its rows run over kernel
  /// rows, kernel columns and input channels; if there is one group and more than one tap, each
  /// kernel row is filled up to a multiple of 4 matrix rows with weights that equal their zero
  /// points.
  [[nodiscard]] std::span<const packed_weights> groups() const noexcept { return groups_; }

 private:
  friend struct detail::filter_access;
  static constexpr detail::byte_format format{"detentF8", 1};

  /// The weights in the order in which they were given.
  [[nodiscard]] std::vector<std::int8_t> unpacked() const {
    const filter_shape& f = shape_;
    std::vector<std::int8_t> weights(f.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::size_t tap = i % f.taps();
      const std::size_t channel = i / f.taps() % f.group_in();
      const std::size_t out = i / f.taps() / f.group_in();
      const bool is_one_matrix = is_depthwise_;
      const packed_weights& w = groups_[is_one_matrix ? 0 : out / f.group_out()];
      const std::size_t k = is_one_matrix ? tap
                                          : tap / f.kernel_width * row_ +
                                                tap % f.kernel_width * f.group_in() + channel;
      const std::size_t n = is_one_matrix ? out : out % f.group_out();
      // The order that packed_weights::save() documents.
      const std::size_t groups = (w.depth() + kernels::group_depth - 1) / kernels::group_depth;
      const std::size_t group = n / kernels::panel_columns * groups + k / kernels::group_depth;
      weights[i] = w.data()[(group * kernels::panel_columns + n % kernels::panel_columns) *
                                kernels::group_depth +
                            k % kernels::group_depth];
    }
    return weights;
  }

  detail::emptied_by_move<filter_shape> shape_;
  std::vector<packed_weights> groups_;
  detail::depthwise_weights depthwise_;
  detail::emptied_by_move<bool> is_depthwise_;
  detail::emptied_by_move<std::size_t> row_;  // see filter_access::kernel_row()
};

namespace detail {

/// Gives convolutions access to the private parts of packed filters.
struct filter_access {
  [[nodiscard]] static const depthwise_weights& depthwise(const packed_filters& f) noexcept {
    return f.depthwise_;
  }
  /// Number of matrix rows for each kernel row: its taps times channels, rounded up to group_depth
  /// if there is one group and more than one tap.
  [[nodiscard]] static std::size_t kernel_row(const packed_filters& f) noexcept { return f.row_; }
};

}  // namespace detail

/// An owned filter bank of floats in the layout of the kernels, with a bias for each output
/// channel. Constant after construction: many threads may use it at the same time. A filter bank
/// that was moved from is empty. One whose copy assignment ran out of memory may only be assigned
/// to or destroyed.
class packed_float_filters {
 public:
  /// An empty filter bank, without channels.
  packed_float_filters() = default;
  /// Copies and packs weights of the shape f: [out_channels][in_channels / groups][kernel_height]
  /// [kernel_width]. `bias` is empty (all 0) or has one value for each output channel. Throws
  /// shape_mismatch for channels that do not divide into the groups and for other sizes,
  /// invalid_argument for a kernel of size 0 and null weights.
  packed_float_filters(const filter_shape& f, std::span<const float> weights,
                       std::span<const float> bias = {})
      : shape_(f) {
    detail::require_filters(f, weights.size(), weights.data());
    require(bias.empty() || bias.size() == f.out_channels, error_kind::shape_mismatch,
            "convolution: ", bias.size(), " biases for ", f.out_channels, " channels");
    detail::require_data(bias, "convolution", "biases");
    if (f.depthwise()) {
      channel_stride_ = detail::round_up(f.out_channels, kernels::panel_columns);
      depthwise_.assign((f.taps() + 1) * channel_stride_, 0.0F);
      std::copy(bias.begin(), bias.end(), depthwise_.begin());
      for (std::size_t c = 0; c < f.out_channels; ++c) {
        for (std::size_t t = 0; t < f.taps(); ++t) {
          depthwise_[(t + 1) * channel_stride_ + c] = weights[c * f.taps() + t];
        }
      }
      return;
    }
    const std::size_t group_size = f.size() / f.groups;
    for (std::size_t g = 0; g < f.groups; ++g) {
      const std::vector<float> matrix =
          detail::filter_matrix(f, weights.data() + g * group_size, f.kernel_width * f.group_in(),
                                [](std::size_t /*n*/) { return 0.0F; });
      groups_.emplace_back(
          matrix_view<const float>(matrix.data(), f.group_in() * f.taps(), f.group_out()),
          bias.empty() ? bias : bias.subspan(g * f.group_out(), f.group_out()));
    }
  }

  /// The shape that the filters were packed with.
  [[nodiscard]] const filter_shape& shape() const noexcept { return shape_; }
  /// One matrix for each group, with the group's output channels as columns; its rows run over
  /// kernel rows, kernel columns and input channels. Empty for depthwise filters.
  [[nodiscard]] std::span<const packed_floats> groups() const noexcept { return groups_; }
  /// The values of depthwise filters: a row of biases, then a row of weights for each tap. Rows are
  /// channel_stride() values long. Empty for other filters.
  [[nodiscard]] std::span<const float> depthwise() const noexcept { return depthwise_; }
  /// Length of the rows of depthwise(): out_channels rounded up to a multiple of 16; 0 for other
  /// filters.
  [[nodiscard]] std::size_t channel_stride() const noexcept { return channel_stride_; }

 private:
  detail::emptied_by_move<filter_shape> shape_;
  std::vector<packed_floats> groups_;
  detail::aligned_vector<float> depthwise_;
  detail::emptied_by_move<std::size_t> channel_stride_;
};

DETENT_NAMESPACE_END

#endif  // DETENT_PACKED_FILTERS_HPP
