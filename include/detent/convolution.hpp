// SPDX-License-Identifier: BSD-3-Clause
// 1-D and 2-D convolutions: 8-bit integers, exact, and floats.
//
//   input    [batch][in_height][in_width][in_channels]
//   weights  [out_channels][in_channels / groups][kernel_height][kernel_width], as ONNX has them
//   output   [batch][out_height][out_width][out_channels]
//
// Where the window says so, input or output have their channels before height and width, as ONNX
// has them; the values are the same bits. The arithmetic is done channels last: such an input is
// transposed by the copy that adds its padding, or block by block, such an output block by block.
//
// A 1-D convolution has height 1. Integer arithmetic and epilogues are those of gemm(); padding
// stands for the real value 0, that is lhs_zero_point. The float sum is a chain of fused
// multiply-adds in the order kernel row, kernel column, channel, starting from the bias.
#ifndef DETENT_CONVOLUTION_HPP
#define DETENT_CONVOLUTION_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/images/convolution_blocks.hpp>
#include <detent/images/depthwise.hpp>
#include <detent/images/output_block.hpp>
#include <detent/images/padded_images.hpp>
#include <detent/images/planes.hpp>
#include <detent/kernels/definitions/depthwise.hpp>
#include <detent/kernels/definitions/float_products.hpp>
#include <detent/kernels/definitions/integer_products.hpp>
#include <detent/kernels/definitions/statistics.hpp>
#include <detent/kernels/depthwise.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/products/left_rows.hpp>
#include <detent/products/raw_products.hpp>
#include <detent/products/wide_sums.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN

namespace detail {

inline void require_filters(const filter_shape& f, std::size_t weights, const void* data) {
  require(f.groups > 0 && f.in_channels % f.groups == 0 && f.out_channels % f.groups == 0,
          error_kind::shape_mismatch, "convolution: ", f.in_channels, " input and ", f.out_channels,
          " output channels do not divide into ", f.groups, " groups");
  require(f.kernel_height > 0 && f.kernel_width > 0, error_kind::invalid_argument,
          "convolution: kernel ", f.kernel_height, " x ", f.kernel_width);
  require(weights == f.size(), error_kind::shape_mismatch, "convolution: ", weights,
          " weights, not ", f.size());
  require(weights == 0 || data != nullptr, error_kind::invalid_argument,
          "convolution: null weights with size ", weights);
}

/// [group_out][group_in][taps] to the K x N matrix whose rows go kernel row by kernel row, tap by
/// tap, channel by channel. A kernel row takes `row` of them; what is behind its last tap is
/// padding[n].
template <class T, class Padding>
std::vector<T> filter_matrix(const filter_shape& f, const T* weights, std::size_t row,
                             const Padding& padding) {
  std::vector<T> matrix(f.group_out() * f.kernel_height * row);
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

/// The values of one group of a per-channel argument (empty and single ones serve every group).
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

inline void require_window(const filter_shape& f, const window& w) {
  require(
      w.stride_height > 0 && w.stride_width > 0 && w.dilation_height > 0 && w.dilation_width > 0,
      error_kind::invalid_argument, "convolution: strides and dilations must be positive");
  // So that no extent wraps.
  constexpr std::size_t largest = std::size_t{1} << 32;
  require((std::max)({w.pad_top, w.pad_left, w.pad_bottom, w.pad_right, w.stride_height,
                      w.stride_width, w.dilation_height, w.dilation_width}) <= largest &&
              (std::max)(w.in_height, w.in_width) <= largest &&
              (std::max)(f.kernel_height, f.kernel_width) < largest / 4,
          error_kind::invalid_argument, "convolution: a window beyond 2^32");
}

template <class In, class Out>
void require_images(const filter_shape& f, const window& w, std::span<In> input,
                    std::span<Out> output) {
  require_window(f, w);
  const std::size_t in = w.batch * w.in_height * w.in_width * f.in_channels;
  const std::size_t out = w.batch * w.out_height(f) * w.out_width(f) * f.out_channels;
  require(input.size() == in && output.size() == out, error_kind::shape_mismatch,
          "convolution: ", input.size(), " inputs and ", output.size(), " outputs, not ", in,
          " and ", out);
  require((in == 0 || input.data() != nullptr) && (out == 0 || output.data() != nullptr),
          error_kind::invalid_argument, "convolution: null data");
}

struct filter_access;

}  // namespace detail

/// An owned, packed filter bank of signed 8-bit weights. weight_options hold one value or one for
/// each output channel. Immutable; share it freely between threads.
class packed_filters {
 public:
  packed_filters() = default;
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
      // So many taps that their products leave 32 bits: like other groups.
      groups_.clear();
    }
    // Segments of rows are multiples of group_depth. What a padded one reads too much is multiplied
    // by nothing: a weight that is its zero point.
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

  [[nodiscard]] const filter_shape& shape() const noexcept { return shape_; }
  /// Whether the filters are kept as depthwise ones: all that are, but for those with so many taps
  /// that their products may leave 32 bits.
  [[nodiscard]] bool is_depthwise() const noexcept { return is_depthwise_; }
  /// One matrix per group; where is_depthwise(), one matrix whose columns are the channels.
  [[nodiscard]] std::span<const packed_weights> groups() const noexcept { return groups_; }

 private:
  friend struct detail::filter_access;

  filter_shape shape_;
  std::vector<packed_weights> groups_;
  detail::depthwise_weights depthwise_;
  bool is_depthwise_ = false;
  std::size_t row_ = 0;
};

namespace detail {

/// What convolutions read of packed filters.
struct filter_access {
  [[nodiscard]] static const depthwise_weights& depthwise(const packed_filters& f) noexcept {
    return f.depthwise_;
  }
  /// Rows of a matrix for each kernel row: its taps times channels, rounded up to group_depth where
  /// there is one group.
  [[nodiscard]] static std::size_t kernel_row(const packed_filters& f) noexcept { return f.row_; }
};

/// Checks what an epilogue has besides what column_terms check.
template <class T>
void require_epilogue(const filter_shape& f, const window& w, const epilogue_options& o) {
  constexpr const char* where = "convolution";
  require(o.lhs_scales.empty() && o.lhs_zero_points.empty() && o.addend.data == nullptr,
          error_kind::unsupported, where, ": parameters of rows and integer addends are for gemm");
  require(real_output<T> || (o.bias.empty() && o.residual.data == nullptr), error_kind::unsupported,
          where, ": real biases and residuals are for outputs of float and bfloat16");
  require(o.bias.empty() || o.bias.size() == f.out_channels, error_kind::shape_mismatch, where,
          ": ", o.bias.size(), " biases for ", f.out_channels, " channels");
  const std::size_t pixels = w.out_height(f) * w.out_width(f);
  const bool planes = w.output_layout == activation_layout::nchw;
  const std::size_t rows = w.batch * (planes ? f.out_channels : pixels);
  const std::size_t columns = planes ? pixels : f.out_channels;
  require_addend(o.residual, "residual", rows, columns, where);
  require(o.residual.data == nullptr || rows <= 1 ||
              o.residual.row_stride == static_cast<std::ptrdiff_t>(columns),
          error_kind::unsupported, where, ": the residual must be dense (its row stride is ",
          o.residual.row_stride, " for ", columns, " columns)");
}

/// What all blocks of an integer convolution have in common.
template <class T>
class integer_convolution {
 public:
  integer_convolution(const kernels::integer_product_kernels& products,
                      const packed_filters& filters, const epilogue_options& options)
      : kernels_(products),
        filters_(filters),
        lhs_zero_point_(options.lhs_zero_point),
        groups_(filters.groups().size()) {
    const filter_shape& f = filters.shape();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const packed_weights& weights = filters.groups()[i];
      epilogue_options of_group = options;
      if (!options.bias.empty() && !filters.is_depthwise()) {
        of_group.bias = options.bias.subspan(i * f.group_out(), f.group_out());
      }
      groups_[i].terms.template prepare<T, std::uint8_t>(weights, of_group, "convolution");
      if (!weights.certificate().fits_s32()) {
        is_wide_ = true;
        if (!filters.is_depthwise()) {
          groups_[i].wide.emplace(kernels_, weights, lhs_zero_point_);
        }
      }
    }
    if (is_wide_ && filters.is_depthwise()) {
      zeros_.resize(round_up(f.out_channels, kernels::panel_columns));
    }
  }

  /// Whether some sums may leave 32 bits.
  [[nodiscard]] bool is_wide() const noexcept { return is_wide_; }

  /// Multiplies a block of pixels by the weights of a group; `g` says where the pixels are. Windows
  /// that are read where they are must not be wide. sum_row(i) is the sum of what pixel i reads.
  template <class SumRow>
  void multiply(kernels::gemm_u8s8_args g, std::size_t group, const output_block<T>& block,
                const SumRow& sum_row) const {
    const packed_weights& weights = filters_.groups()[group];
    const group_terms& of_group = groups_[group];
    const std::size_t first = group * filters_.shape().group_out();
    g.c = block.data() + first;
    g.ldc = filters_.shape().out_channels;
    g.m = block.count();
    g.n = weights.columns();
    g.k = weights.depth();
    if (of_group.wide) {
      multiply_wide(g, of_group, block, first);
      return;
    }
    std::vector<std::int32_t> row_sums(of_group.terms.needs_row_sums() ? g.m : 0);
    for (std::size_t i = 0; i < row_sums.size(); ++i) {
      row_sums[i] = sum_row(i);
    }
    g.b = packed_access::panels(weights, kernels_.adds_pairs);
    g.epilogue = of_group.terms.epilogue(row_sums.data());
    add_residual(block, 0, first, g.epilogue);
    run_gemm(kernels_, g);
  }

  /// Of depthwise filters, without a residual. Their weights carry their zero points; what is left
  /// is bias - lhs_zero_point * sum(weights), which is the column offset of the terms.
  [[nodiscard]] kernels::integer_epilogue depthwise_epilogue() const noexcept {
    kernels::integer_epilogue e = groups_[0].terms.epilogue(nullptr);
    e.rhs_zero_point = nullptr;
    return e;
  }

  /// Multiplies the rows of depthwise filters.
  void multiply(const kernels::depthwise_rows<std::uint8_t>& rows,
                const output_block<T>& block) const {
    kernels::integer_epilogue e = depthwise_epilogue();
    add_residual(block, 0, 0, e);
    kernels::depthwise_u8_args d;
    d.rows = rows;
    d.weights = filter_access::depthwise(filters_).panels();
    if (!is_wide_) {
      d.c = block.data();
      d.epilogue = e;
      active<kernels::depthwise_kernels>().depthwise_u8(d);
      return;
    }
    std::int32_t* products = block_memory<std::int32_t>(block.count() * rows.channels);
    d.c = products;
    d.epilogue.output = kernels::integer_output::s32;
    d.epilogue.column_offset = zeros_.data();
    active<kernels::depthwise_kernels>().depthwise_u8(d);
    store_wide_pixels(products, block.count(), filters_.groups()[0], lhs_zero_point_, e,
                      {overflow_, block.first(), 0}, block.data());
  }

  /// To be called when all blocks are done: throws overflow if a sum did not fit the output.
  void finish() const { overflow_.raise_if_noted("convolution", "pixel", "channel"); }

 private:
  struct group_terms {
    column_terms terms;
    std::optional<wide_product> wide;  // where sums may leave 32 bits
  };

  /// The residual of the pixels and channels of a block from the given ones on.
  void add_residual(const output_block<T>& block, std::size_t pixel, std::size_t channel,
                    kernels::integer_epilogue& e) const noexcept {
    if (block.residual() != nullptr) {
      e.residual_stride = filters_.shape().out_channels;
      e.residual = block.residual() + pixel * e.residual_stride + channel;
    }
  }

  void multiply_wide(const kernels::gemm_u8s8_args& g, const group_terms& of_group,
                     const output_block<T>& block, std::size_t first_channel) const {
    for_row_blocks(g.m, rows_per_task, {}, [&](std::size_t first, std::size_t rows) {
      kernels::gemm_u8s8_args part = g;
      part.a += first * g.lda;
      part.c = static_cast<T*>(g.c) + first * g.ldc;
      part.m = rows;
      part.epilogue = of_group.terms.epilogue(nullptr);
      add_residual(block, first, first_channel, part.epilogue);
      of_group.wide->template multiply<T>(part, 0,
                                          {overflow_, block.first() + first, first_channel});
    });
  }

  const kernels::integer_product_kernels& kernels_;
  const packed_filters& filters_;
  std::int32_t lhs_zero_point_;
  std::vector<group_terms> groups_;
  bool is_wide_ = false;
  std::vector<std::int32_t> zeros_;  // column offsets of raw depthwise products
  mutable overflow_record overflow_;
};

}  // namespace detail

/// Integer convolution; the epilogue is that of gemm(), with a real bias for each output channel
/// and a residual for outputs of float and bfloat16. Input and output do not overlap; the residual
/// may be an output of float itself. Thread-safe.
///
/// Exact on every input, as gemm() is: where the certificate of the filters does not exclude sums
/// beyond 32 bits, windows are gathered, and the products are added up in 64 bits. Throws overflow,
/// with the first such sum, if an output of 32-bit integers has no room for one; elements that have
/// no room are then as they were, all others are written. Throws what gemm() throws besides, and
/// unsupported for padding out of all proportion.
///
/// The calling thread keeps memory of the size of the padded input, where there is padding, rows of
/// the kernel are no multiple of four, or the channels come first and the filters are not 1x1; each
/// thread keeps some 256 KB, or two rows or 48 pixels of the output if that is more, where the
/// output's channels come first (and as many pixels of the residual, in float), and 192 pixels or
/// 32 KB for 1x1 filters where the input's do; for sums beyond 32 bits what gemm() does, or 256
/// pixels or a row of the output of depthwise filters, in 32 bits.
template <integer_gemm_output T>
void convolve(std::span<const std::uint8_t> input, const packed_filters& filters, const window& w,
              std::span<T> output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  detail::require_images(f, w, input, output);
  detail::require_epilogue<T>(f, w, options);
  if (output.empty()) {
    return;
  }
  const auto& products = detail::active<kernels::integer_product_kernels>();
  const auto& statistics = detail::active<kernels::statistics_kernels>();
  const detail::integer_convolution<T> convolution(products, filters, options);
  const auto padding = static_cast<std::uint8_t>(options.lhs_zero_point);
  // 32-bit elements that have no room for their sums keep their values.
  const detail::convolution_output<T> images{
      detail::output_images<T>(f, w, output.data()), options.residual.data,
      std::same_as<T, std::int32_t> && convolution.is_wide()};
  if (filters.is_depthwise()) {
    const std::optional<kernels::depthwise_filter> line_filter = detail::line_filter(f, w);
    const auto depthwise_lines = detail::active<kernels::depthwise_kernels>().depthwise_lines;
    if (sizeof(T) == 1 && line_filter && depthwise_lines != nullptr && !convolution.is_wide()) {
      kernels::depthwise_lines_args lines;
      lines.filter = *line_filter;
      lines.weights = detail::filter_access::depthwise(filters).lines(*line_filter);
      lines.epilogue = convolution.depthwise_epilogue();
      if (lines.weights != nullptr) {
        detail::for_depthwise_lines(input.data(), f, w, padding, images.images, parallel, lines,
                                    depthwise_lines);
        return;
      }
    }
    const detail::tap_order& order = detail::filter_access::depthwise(filters).order();
    detail::for_depthwise_rows(
        input.data(), f, w, padding, order.taps(), order.is_vertical(), images, parallel,
        [&](const kernels::depthwise_rows<std::uint8_t>& rows,
            const detail::output_block<T>& block) { convolution.multiply(rows, block); });
    convolution.finish();
    return;
  }
  const std::size_t row = detail::filter_access::kernel_row(filters);
  if (!products.adds_pairs && !detail::is_matrix(f, w) && f.groups == 1 && w.dilation_width == 1 &&
      row % kernels::group_depth == 0 && !convolution.is_wide()) {
    detail::for_segmented_blocks(
        f, w, input.data(), padding, row, images, parallel,
        [&](const std::uint8_t* const* segments, const detail::output_block<T>& block) {
          kernels::gemm_u8s8_args g;
          g.rows = segments;
          g.segments = f.kernel_height;
          convolution.multiply(g, 0, block, [&](std::size_t i) {
            std::uint32_t sum = 0;
            for (std::size_t kh = 0; kh < f.kernel_height; ++kh) {
              sum += static_cast<std::uint32_t>(
                  statistics.sum_u8(segments[kh * block.count() + i], row));
            }
            return static_cast<std::int32_t>(sum);
          });
        });
    return;
  }
  detail::for_gathered_blocks(f, w, input.data(), padding, row, images, parallel,
                              [&](const std::uint8_t* rows, std::size_t lda, std::size_t group,
                                  const detail::output_block<T>& block) {
                                kernels::gemm_u8s8_args g;
                                g.a = rows;
                                g.lda = lda;
                                convolution.multiply(g, group, block, [&](std::size_t i) {
                                  return statistics.sum_u8(rows + i * lda,
                                                           filters.groups()[group].depth());
                                });
                              });
  convolution.finish();
}

/// The same for signed input, with an lhs_zero_point of -128..127: the calling thread keeps a copy
/// of the input, 128 more.
template <integer_gemm_output T>
void convolve(std::span<const std::int8_t> input, const packed_filters& filters, const window& w,
              std::span<T> output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  detail::require_images(filters.shape(), w, input, output);
  detail::require_zero_point(options.lhs_zero_point, full_grid<std::int8_t>, "convolution");
  detail::leased_memory<std::uint8_t> memory(input.size());
  std::uint8_t* const shifted = memory.data();
  constexpr std::size_t block = std::size_t{1} << 16;
  detail::for_row_blocks(input.size(), block, parallel, [&](std::size_t first, std::size_t count) {
    detail::shift_to_unsigned(input.data() + first, count, shifted + first);
  });
  epilogue_options of_shifted = options;
  of_shifted.lhs_zero_point -= detail::lhs_shift<std::int8_t>;
  convolve(std::span<const std::uint8_t>(shifted, input.size()), filters, w, output, of_shifted,
           parallel);
}

/// An owned, packed filter bank of floats; `bias` is empty or has one value for each output
/// channel.
class packed_float_filters {
 public:
  packed_float_filters() = default;
  packed_float_filters(const filter_shape& f, std::span<const float> weights,
                       std::span<const float> bias)
      : shape_(f) {
    detail::require_filters(f, weights.size(), weights.data());
    require(bias.empty() || bias.size() == f.out_channels, error_kind::shape_mismatch,
            "convolution: ", bias.size(), " biases for ", f.out_channels, " channels");
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

  [[nodiscard]] const filter_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::span<const packed_floats> groups() const noexcept { return groups_; }
  /// Depthwise filters: a row of biases, then [tap][channel].
  [[nodiscard]] std::span<const float> depthwise() const noexcept { return depthwise_; }
  [[nodiscard]] std::size_t channel_stride() const noexcept { return channel_stride_; }

 private:
  filter_shape shape_;
  std::vector<packed_floats> groups_;
  std::vector<float> depthwise_;
  std::size_t channel_stride_ = 0;
};

/// Float convolution, clamped to [lower, upper]. The same bits on every target, layout and split.
/// Keeps memory as the integer one.
inline void convolve(std::span<const float> input, const packed_float_filters& filters,
                     const window& w, std::span<float> output,
                     float lower = -std::numeric_limits<float>::infinity(),
                     float upper = std::numeric_limits<float>::infinity(),
                     const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  detail::require_images(f, w, input, output);
  if (output.empty()) {
    return;
  }
  const auto& products = detail::active<kernels::float_product_kernels>();
  const detail::convolution_output<float> images{detail::output_images<float>(f, w, output.data())};
  if (f.depthwise()) {
    kernels::depthwise_f32_args d;
    d.weights = filters.depthwise().data() + filters.channel_stride();
    d.channel_stride = filters.channel_stride();
    d.bias = filters.depthwise().data();
    d.lower = lower;
    d.upper = upper;
    std::vector<detail::tap_position> order;
    for (std::size_t t = 0; t < f.taps(); ++t) {
      order.push_back({t / f.kernel_width, t % f.kernel_width});
    }
    detail::for_depthwise_rows(
        input.data(), f, w, 0.0F, std::span<const detail::tap_position>(order), false, images,
        parallel,
        [&](const kernels::depthwise_rows<float>& rows, const detail::output_block<float>& block) {
          kernels::depthwise_f32_args part = d;
          part.rows = rows;
          part.c = block.data();
          products.depthwise_f32(part);
        });
    return;
  }
  detail::for_gathered_blocks(f, w, input.data(), 0.0F, f.kernel_width * f.group_in(), images,
                              parallel,
                              [&](const float* rows, std::size_t lda, std::size_t group,
                                  const detail::output_block<float>& block) {
                                const packed_floats& weights = filters.groups()[group];
                                kernels::gemm_f32_args g;
                                g.a = rows;
                                g.lda = lda;
                                g.packed_b = weights.data().data();
                                g.bias = weights.bias().data();
                                g.c = block.data() + group * f.group_out();
                                g.ldc = f.out_channels;
                                g.m = block.count();
                                g.n = weights.columns();
                                g.k = weights.depth();
                                g.lower = lower;
                                g.upper = upper;
                                products.gemm_f32(g);
                              });
}

DETENT_NAMESPACE_END

#endif  // DETENT_CONVOLUTION_HPP
