// SPDX-License-Identifier: BSD-3-Clause
// convolve(): 1-D and 2-D convolutions, grouped, depthwise and dilated, of 8-bit integers (exact on
// every input) and of floats. Internally the arithmetic is done channels last: an input with
// channels first is transposed by the copy that adds its padding, or block by block; an output with
// channels first is transposed block by block.
#ifndef DETENT_CONVOLUTION_HPP
#define DETENT_CONVOLUTION_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <detent/base/aligned.hpp>
#include <detent/base/checked_size.hpp>
#include <detent/cache_sizes.hpp>
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
#include <detent/packed_filters.hpp>
#include <detent/parallel.hpp>
#include <detent/products/left_rows.hpp>
#include <detent/products/raw_products.hpp>
#include <detent/products/wide_sums.hpp>
#include <detent/types.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN

namespace detail {

/// Checks strides, dilations and extents of a window.
inline void require_window(const filter_shape& f, const window& w) {
  require(
      w.stride_height > 0 && w.stride_width > 0 && w.dilation_height > 0 && w.dilation_width > 0,
      error_kind::invalid_argument, "convolution: strides and dilations must be positive");
  // The limit keeps all extents from wrapping.
  constexpr std::size_t largest = std::size_t{1} << 32;
  require((std::max)({w.pad_top, w.pad_left, w.pad_bottom, w.pad_right, w.stride_height,
                      w.stride_width, w.dilation_height, w.dilation_width}) <= largest &&
              (std::max)(w.in_height, w.in_width) <= largest &&
              (std::max)(f.kernel_height, f.kernel_width) < largest / 4,
          error_kind::invalid_argument, "convolution: a window beyond 2^32");
}

/// Checks the window and returns the number of values of the input.
inline std::size_t required_input(const filter_shape& f, const window& w) {
  require_window(f, w);
  return checked_size("convolution", {w.batch, w.in_height, w.in_width, f.in_channels});
}
/// The number of values of the output of a window that was checked.
[[nodiscard]] inline std::size_t required_output(const filter_shape& f, const window& w) {
  return checked_size("convolution", {w.batch, w.out_height(f), w.out_width(f), f.out_channels});
}

/// Checks the window and the sizes of input and output.
template <class In, class Out>
void require_images(const filter_shape& f, const window& w, std::span<In> input,
                    std::span<Out> output) {
  const std::size_t in = required_input(f, w);
  const std::size_t out = required_output(f, w);
  require(input.size() == in && output.size() == out, error_kind::shape_mismatch,
          "convolution: ", input.size(), " inputs and ", output.size(), " outputs, not ", in,
          " and ", out);
  require((in == 0 || input.data() != nullptr) && (out == 0 || output.data() != nullptr),
          error_kind::invalid_argument, "convolution: null data");
}

/// Checks the residual of a convolution: it is null, or dense and of the output's size and layout.
inline void require_residual(const filter_shape& f, const window& w,
                             matrix_view<const float> residual) {
  constexpr const char* where = "convolution";
  const std::size_t pixels = w.out_height(f) * w.out_width(f);
  const bool planes = w.output_layout == activation_layout::nchw;
  const std::size_t rows = w.batch * (planes ? f.out_channels : pixels);
  const std::size_t columns = planes ? pixels : f.out_channels;
  require_addend(residual, "residual", rows, columns, where);
  require(residual.data == nullptr || rows <= 1 ||
              residual.row_stride == static_cast<std::ptrdiff_t>(columns),
          error_kind::unsupported, where, ": the residual must be dense (its row stride is ",
          residual.row_stride, " for ", columns, " columns)");
}

/// Checks those options of a convolution's epilogue that column_terms::prepare() does not check.
template <class T>
void require_epilogue(const filter_shape& f, const window& w, const epilogue_options& o) {
  constexpr const char* where = "convolution";
  require(o.lhs_scales.empty() && o.lhs_zero_points.empty() && o.addend.data == nullptr,
          error_kind::unsupported, where, ": parameters of rows and integer addends are for gemm");
  require(real_output<T> || (o.bias.empty() && o.residual.data == nullptr), error_kind::unsupported,
          where, ": real biases and residuals are for outputs of float and bfloat16");
  require(o.bias.empty() || o.bias.size() == f.out_channels, error_kind::shape_mismatch, where,
          ": ", o.bias.size(), " biases for ", f.out_channels, " channels");
  require_data(o.bias, where, "biases");
  require_residual(f, w, o.residual);
}

/// The checked and prepared state that all blocks of one integer convolution share.
template <class T>
class integer_convolution {
 public:
  integer_convolution(const kernels::integer_product_kernels& products,
                      const packed_filters& filters, const epilogue_options& options)
      : kernels_(products),
        filters_(filters),
        lhs_zero_point_(options.lhs_zero_point),
        caches_(resolved_caches(options.caches)),
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

  /// Multiplies a block of pixels by the weights of a group. `g` says where the left rows are (as
  /// rows or as segments); it must be rows if the group's sums may leave 32 bits. sum_row(i)
  /// returns the sum of the values that pixel i reads.
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
    g.caches = caches_;
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

  /// The epilogue of depthwise filters, without a residual. Their packed weights have the zero
  /// points subtracted already; what remains of the zero-point terms is bias - lhs_zero_point *
  /// sum(weights), which is the column offset.
  [[nodiscard]] kernels::integer_epilogue depthwise_epilogue() const noexcept {
    kernels::integer_epilogue e = groups_[0].terms.epilogue(nullptr);
    e.rhs_zero_point = nullptr;
    return e;
  }

  /// Multiplies the runs of pixels in `rows` by depthwise filters, and stores them in `block`.
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

  /// Throws overflow if a sum did not fit the output. Call it when all blocks are done.
  void finish() const { overflow_.raise_if_noted("convolution", "pixel", "channel"); }

 private:
  struct group_terms {
    column_terms terms;
    std::optional<wide_product> wide;  // set if sums may leave 32 bits
  };

  /// Lets `e` point to the residual of a block, from the given pixel and channel on, if there is
  /// one.
  void add_residual(const output_block<T>& block, std::size_t pixel, std::size_t channel,
                    kernels::integer_epilogue& e) const noexcept {
    if (block.residual() != nullptr) {
      e.residual_stride = filters_.shape().out_channels;
      e.residual = block.residual() + pixel * e.residual_stride + channel;
    }
  }

  /// Multiplies a block whose sums may leave 32 bits, some rows at a time.
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
  cache_sizes caches_;
  std::vector<group_terms> groups_;
  bool is_wide_ = false;
  std::vector<std::int32_t> zeros_;  // column offsets of raw depthwise products
  mutable overflow_record overflow_;
};

/// The body of all integer convolutions, for arguments that were checked. `images` says where the
/// results go.
template <class T>
void convolve_to(std::span<const std::uint8_t> input, const packed_filters& filters,
                 const window& w, convolution_output<T> images, const epilogue_options& options,
                 const parallel_for& parallel) {
  const filter_shape& f = filters.shape();
  const auto& products = active<kernels::integer_product_kernels>();
  const auto& statistics = active<kernels::statistics_kernels>();
  const integer_convolution<T> convolution(products, filters, options);
  const auto padding = static_cast<std::uint8_t>(options.lhs_zero_point);
  // 32-bit elements that have no room for their sums keep their values: blocks must hold those.
  images.keeps_values = std::same_as<T, std::int32_t> && convolution.is_wide();
  if (filters.is_depthwise()) {
    const std::optional<kernels::depthwise_filter> by_lines = line_filter(f, w);
    const auto depthwise_lines = active<kernels::depthwise_kernels>().depthwise_lines;
    if (sizeof(T) == 1 && by_lines && depthwise_lines != nullptr && !convolution.is_wide()) {
      kernels::depthwise_lines_args lines;
      lines.filter = *by_lines;
      lines.weights = filter_access::depthwise(filters).lines(*by_lines);
      lines.epilogue = convolution.depthwise_epilogue();
      if (lines.weights != nullptr) {
        for_depthwise_lines(input.data(), f, w, padding, images.images, parallel, lines,
                            depthwise_lines);
        return;
      }
    }
    const tap_order& order = filter_access::depthwise(filters).order();
    for_depthwise_rows(input.data(), f, w, padding, order.taps(), order.is_vertical(), images,
                       parallel,
                       [&](const kernels::depthwise_rows<std::uint8_t>& rows,
                           const output_block<T>& block) { convolution.multiply(rows, block); });
    convolution.finish();
    return;
  }
  const std::size_t row = filter_access::kernel_row(filters);
  if (!products.adds_pairs && !is_matrix(f, w) && f.groups == 1 && w.dilation_width == 1 &&
      row > 0 && row % kernels::group_depth == 0 && !convolution.is_wide()) {
    for_segmented_blocks(f, w, input.data(), padding, row, images, parallel,
                         [&](const std::uint8_t* const* segments, const std::uint8_t* zeros,
                             const output_block<T>& block) {
                           kernels::gemm_u8s8_args g;
                           g.rows = segments;
                           g.segments = f.kernel_height;
                           g.zero_segment = zeros;
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
  for_gathered_blocks(f, w, input.data(), padding, row, images, products.rows.per_call, parallel,
                      [&](const std::uint8_t* rows, std::size_t lda, std::size_t group,
                          const output_block<T>& block) {
                        kernels::gemm_u8s8_args g;
                        g.a = rows;
                        g.lda = lda;
                        convolution.multiply(g, group, block, [&](std::size_t i) {
                          return statistics.sum_u8(rows + i * lda, filters.groups()[group].depth());
                        });
                      });
  convolution.finish();
}

/// A copy of signed bytes with 128 added to each value, in memory that is leased from the calling
/// thread.
inline std::span<const std::uint8_t> shifted_copy(std::span<const std::int8_t> input,
                                                  leased_memory<std::uint8_t>& memory,
                                                  const parallel_for& parallel) {
  std::uint8_t* const to = memory.lease(input.size());
  constexpr std::size_t block = std::size_t{1} << 16;
  for_row_blocks(input.size(), block, parallel, [&](std::size_t first, std::size_t count) {
    shift_to_unsigned(input.data() + first, count, to + first);
  });
  return {to, input.size()};
}

}  // namespace detail

/// Convolves unsigned 8-bit images with packed 8-bit filters. With y, x a pixel of the output, c an
/// output channel, and the sum over kernel rows, kernel columns and the input channels of c's
/// group:
///
///     iy  = y * stride_height + kh * dilation_height - pad_top
///     ix  = x * stride_width + kw * dilation_width - pad_left
///     acc = weight_bias[c] + sum_(kh, kw, channel) (input[iy][ix][channel] - lhs_zero_point)
///                                        * (weight[c][channel][kh][kw] - zero_point[c])
///     output[y][x][c] = epilogue(acc)
///
/// epilogue_options gives the epilogue for each type of output, with a real bias for each output
/// channel and a residual for outputs of float and bfloat16. Padding has the value lhs_zero_point,
/// the real value 0.
///
/// @code{.cpp}
/// #include <cstdint>
/// #include <vector>
///
/// #include <detent/convolution.hpp>
///
/// // 3 x 3 filters of 8 to 16 channels, on images of 32 x 32 pixels, channels last, padded by 1.
/// std::vector<float> layer(const std::vector<std::uint8_t>& images, std::size_t batch,
///                          const std::vector<std::int8_t>& weights) {
///   const detent::filter_shape shape{
///       .out_channels = 16, .in_channels = 8, .kernel_height = 3, .kernel_width = 3};
///   const detent::packed_filters filters(shape, weights);  // pack once, use often
///   const detent::window w{.batch = batch, .in_height = 32, .in_width = 32, .pad_top = 1,
///                          .pad_left = 1, .pad_bottom = 1, .pad_right = 1};
///   std::vector<float> out(batch * w.out_height(shape) * w.out_width(shape) * 16);
///   detent::convolve(images, filters, w, std::span<float>(out),
///                    {.lhs_scale = 0.02F, .lhs_zero_point = 128});
///   return out;
/// }
/// @endcode
///
/// Layout: input is [batch][in_height][in_width][in_channels] and output
/// [batch][out_height][out_width][out_channels], both dense; each has its channels before the
/// height if the window says so (nchw). The layout does not change any value. Input and output must
/// not overlap; a residual may be a float output itself.
///
/// Exactness: the integer sums are exact on every input, and the results are the same bits on every
/// target and for every split into threads. If the certificate of the filters does not exclude sums
/// beyond 32 bits, products are added up in 64 bits, and each sum is then rounded to float once.
///
/// Errors: shape_mismatch if the input, the output or an array of the options has another size;
/// invalid_argument for null data, strides or dilations of 0, a window beyond 2^32, or a scale,
/// zero point, grid or multiplier out of its domain; unsupported for scales and zero points of
/// rows, integer addends, a bias or residual with an integer output, a residual that is not dense,
/// and padding out of proportion (a padded copy of more than 16 times the input and all that
/// windows read). All of these are thrown before anything is written. overflow is thrown if an
/// output of 32-bit integers has no room for a sum (the message names the first one); such elements
/// keep their values, all others are written.
///
/// Thread-safe. The table lists the memory besides the arguments. Memory that belongs to a thread
/// is kept and used again by its later calls; that of a call or a task is freed; the filters make
/// theirs once. A "matrix" is a 1x1 filter with strides of 1 and no padding. The input is copied
/// with its padding if there is any, if its channels come first, or if there are one group, several
/// taps and a kernel_width * in_channels that is no multiple of 4; but never for a matrix, and for
/// depthwise filters with channels last only if there is padding and out_width is below 16.
///
/// | condition | bytes | owner |
/// |---|---|---|
/// | always | up to 12 * out_channels (groups rounded up to 16) | calling thread |
/// | the input is copied | the padded input | calling thread |
/// | output channels first | 256 KB, or 2 lines or 48 pixels if more | each thread |
/// | output channels first, with a residual | as many pixels in float | each thread |
/// | matrix, input channels first | 32 KB, or 256 pixels if more | each thread |
/// | depthwise, or windows read in place | some KB of pointers | each thread |
/// | windows gathered | 32 KB, or 48 windows if more | task |
/// | target amx_int8, not depthwise | that of gemm() for K values in a window | each thread |
/// | target avx2 or avx512, not depthwise (weight pairs) | up to the weights' size | filters |
/// | sums may leave 32 bits, not depthwise | up to 100 KB | each thread |
/// | sums may leave 32 bits, not depthwise | up to 12 * out_channels | call |
/// | sums may leave 32 bits, not depthwise, K above 65536 | size of the weights | filters |
/// | sums may leave 32 bits, depthwise | 256 pixels or a line, in 32 bits | each thread |
///
/// Windows are gathered (im2col) unless the filters are depthwise or a matrix, or are read in
/// place: with one group, a dilation_width of 1, several taps or a multiple of 4 channels, a target
/// other than avx2 and avx512, and sums that fit 32 bits.
template <integer_gemm_output T>
void convolve(std::span<const std::uint8_t> input, const packed_filters& filters, const window& w,
              std::span<T> output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  detail::require_images(f, w, input, output);
  detail::require_epilogue<T>(f, w, options);
  if (!output.empty()) {
    detail::convolve_to<T>(input, filters, w,
                           {detail::output_images<T>(f, w, output.data()), options.residual.data},
                           options, parallel);
  }
}

/// Convolves signed 8-bit images with packed 8-bit filters, with an lhs_zero_point of -128..127.
/// The calling thread keeps a copy of the input with 128 added to each value; all else is as for
/// convolve() with unsigned images.
template <integer_gemm_output T>
void convolve(std::span<const std::int8_t> input, const packed_filters& filters, const window& w,
              std::span<T> output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  detail::require_images(filters.shape(), w, input, output);
  detail::require_zero_point(options.lhs_zero_point, full_grid<std::int8_t>, "convolution");
  detail::leased_memory<std::uint8_t> memory;
  epilogue_options of_shifted = options;
  of_shifted.lhs_zero_point -= detail::lhs_shift<std::int8_t>;
  convolve(detail::shifted_copy(input, memory, parallel), filters, w, output, of_shifted, parallel);
}

/// Convolves unsigned 8-bit images to a vector of the output's size: convolve() to a span of it.
template <integer_gemm_output T>
void convolve(std::span<const std::uint8_t> input, const packed_filters& filters, const window& w,
              std::vector<T>& output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  convolve(input, filters, w, std::span<T>(output), options, parallel);
}
/// Convolves signed 8-bit images to a vector of the output's size: convolve() to a span of it.
template <integer_gemm_output T>
void convolve(std::span<const std::int8_t> input, const packed_filters& filters, const window& w,
              std::vector<T>& output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  convolve(input, filters, w, std::span<T>(output), options, parallel);
}

/// Convolves float images with packed float filters, as
/// output = clamp((bias + sum of input * weight) + residual, lower, upper).
///
/// The sum in parentheses is one chain of fused multiply-adds in the order kernel row, kernel
/// column, channel that starts from the bias. Then the residual is added, if there is one, and the
/// result clamped (NaN passes through). Padding has the value 0 and takes part in the sum. The bits
/// are the same on every target, for every layout and every split into threads.
///
/// Layouts and sizes are those of convolve() for integers; input and output must not overlap, but
/// the residual may be the output itself. Throws shape_mismatch (sizes), invalid_argument (null
/// data, strides or dilations of 0, a window beyond 2^32) and unsupported (padding out of
/// proportion, a residual that is not dense) before anything is written.
/// Thread-safe. The memory is that of convolve() for integers, in the rows of its table on copies,
/// layouts, pointers and gathered windows, with 4 bytes to a value.
template <class = void>  // so that it is compiled only where it is called
void convolve(std::span<const float> input, const packed_float_filters& filters, const window& w,
              std::span<float> output, const float_epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  detail::require_images(f, w, input, output);
  detail::require_residual(f, w, options.residual);
  if (output.empty()) {
    return;
  }
  const auto& products = detail::active<kernels::float_product_kernels>();
  const detail::convolution_output<float> images{detail::output_images<float>(f, w, output.data()),
                                                 options.residual.data};
  if (f.depthwise()) {
    kernels::depthwise_f32_args d;
    d.weights = filters.depthwise().data() + filters.channel_stride();
    d.channel_stride = filters.channel_stride();
    d.bias = filters.depthwise().data();
    d.lower = options.lower;
    d.upper = options.upper;
    d.row_taps = w.dilation_width == 1 ? f.kernel_width : 0;
    detail::leased_memory<detail::tap_position> order(f.taps());
    for (std::size_t t = 0; t < f.taps(); ++t) {
      order.data()[t] = {t / f.kernel_width, t % f.kernel_width};
    }
    detail::for_depthwise_rows(
        input.data(), f, w, 0.0F, {order.data(), f.taps()}, false, images, parallel,
        [&](const kernels::depthwise_rows<float>& rows, const detail::output_block<float>& block) {
          kernels::depthwise_f32_args part = d;
          part.rows = rows;
          part.residual = block.residual();
          part.c = block.data();
          products.depthwise_f32(part);
        });
    return;
  }
  const std::size_t row = f.kernel_width * f.group_in();
  const auto multiply = [&](kernels::gemm_f32_args g, std::size_t group,
                            const detail::output_block<float>& block) {
    const packed_floats& weights = filters.groups()[group];
    g.packed_b = weights.data().data();
    g.bias = weights.bias().data();
    const std::size_t channel = group * f.group_out();
    if (block.residual() != nullptr) {
      g.residual = block.residual() + channel;
      g.residual_stride = f.out_channels;
    }
    g.c = block.data() + channel;
    g.ldc = f.out_channels;
    g.m = block.count();
    g.n = weights.columns();
    g.k = weights.depth();
    g.lower = options.lower;
    g.upper = options.upper;
    products.gemm_f32(g);
  };
  if (!detail::is_matrix(f, w) && f.groups == 1 && w.dilation_width == 1 && row > 0) {
    detail::for_segmented_blocks(f, w, input.data(), 0.0F, row, images, parallel,
                                 [&](const float* const* segments, const float* /*zeros*/,
                                     const detail::output_block<float>& block) {
                                   kernels::gemm_f32_args g;
                                   g.rows = segments;
                                   g.segments = f.kernel_height;
                                   multiply(g, 0, block);
                                 });
    return;
  }
  detail::for_gathered_blocks(f, w, input.data(), 0.0F, row, images, detail::rows_per_task,
                              parallel,
                              [&](const float* rows, std::size_t lda, std::size_t group,
                                  const detail::output_block<float>& block) {
                                kernels::gemm_f32_args g;
                                g.a = rows;
                                g.lda = lda;
                                multiply(g, group, block);
                              });
}

DETENT_NAMESPACE_END

#endif  // DETENT_CONVOLUTION_HPP
