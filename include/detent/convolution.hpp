// SPDX-License-Identifier: BSD-3-Clause
// 1-D and 2-D convolutions on channels-last tensors: 8-bit integers, exact, and floats.
//
//   input    [batch][in_height][in_width][in_channels]
//   weights  [out_channels][in_channels / groups][kernel_height][kernel_width], as ONNX has them
//   output   [batch][out_height][out_width][out_channels]
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
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <detent/depthwise.hpp>
#include <detent/dispatch.hpp>
#include <detent/epilogue.hpp>
#include <detent/error.hpp>
#include <detent/gemm.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
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

/// [group_out][group_in][taps] to the K x N matrix whose rows go tap by tap, channel by channel.
template <class T>
std::vector<T> filter_matrix(const filter_shape& f, const T* weights) {
  std::vector<T> matrix(f.group_out() * f.group_in() * f.taps());
  for (std::size_t n = 0; n < f.group_out(); ++n) {
    for (std::size_t c = 0; c < f.group_in(); ++c) {
      for (std::size_t t = 0; t < f.taps(); ++t) {
        matrix[(t * f.group_in() + c) * f.group_out() + n] =
            weights[(n * f.group_in() + c) * f.taps() + t];
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

/// Where output pixels read: rows of a product (im2col, block by block) or addresses of taps.
template <class T>
class pixel_reader {
 public:
  pixel_reader(const T* input, const filter_shape& f, const window& w, T padding)
      : input_(input),
        end_(input + w.batch * w.in_height * w.in_width * f.in_channels),
        filter_(f),
        window_(w),
        padding_(padding),
        out_height_(w.out_height(f)),
        out_width_(w.out_width(f)) {}

  [[nodiscard]] std::size_t pixels() const noexcept {
    return window_.batch * out_height_ * out_width_;
  }

  /// 1x1 filters that step pixel by pixel read the input as it stands.
  [[nodiscard]] bool is_matrix() const noexcept {
    return filter_.taps() == 1 && window_.stride_height == 1 && window_.stride_width == 1 &&
           window_.pad_top + window_.pad_left + window_.pad_bottom + window_.pad_right == 0;
  }

  /// Copies what `count` pixels from `first` read of one group: count rows of taps * group_in
  /// values. Up to gather_slack values behind the last one are overwritten.
  void gather(std::size_t first, std::size_t count, std::size_t group, T* rows) const {
    const std::size_t depth = filter_.taps() * filter_.group_in();
    for_pixels(first, count,
               [&](std::size_t i, const T* image, std::ptrdiff_t top, std::ptrdiff_t left) {
                 gather_pixel(image, top, left, group, rows + i * depth);
               });
  }

  /// Whether the rows of a window are dense, and long enough to be read where they are.
  [[nodiscard]] bool has_segments(std::size_t multiple) const noexcept {
    constexpr std::size_t shortest = 32;
    return filter_.groups == 1 && window_.dilation_width == 1 && run() % multiple == 0 &&
           run() >= shortest;
  }
  [[nodiscard]] std::size_t run() const noexcept {
    return filter_.kernel_width * filter_.group_in();
  }

  /// Where `count` pixels from `first` read the rows of their windows: segments[kh * count + i].
  /// `blank` holds run() values of padding; windows that stick out of the image at the sides are
  /// copied to `copies`, which has room for those of all pixels and gather_slack.
  void segments(std::size_t first, std::size_t count, const T* blank, T* copies,
                const T** segments) const {
    const std::size_t kernel_height = filter_.kernel_height;
    const std::size_t size = run();
    const std::ptrdiff_t line = width() * in_channels();
    const auto dilation = static_cast<std::ptrdiff_t>(window_.dilation_height);
    for_pixels(first, count,
               [&](std::size_t i, const T* image, std::ptrdiff_t top, std::ptrdiff_t left) {
                 const T** segment = segments + i;
                 if (!is_inside(left)) {
                   gather_pixel(image, top, left, 0, copies);
                   for (std::size_t kh = 0; kh < kernel_height; ++kh, segment += count) {
                     *segment = copies;
                     copies += size;
                   }
                   return;
                 }
                 std::ptrdiff_t offset = top * line + left * in_channels();
                 std::ptrdiff_t y = top;
                 for (std::size_t kh = 0; kh < kernel_height; ++kh, segment += count) {
                   *segment = y < 0 || y >= height() ? blank : image + offset;
                   y += dilation;
                   offset += dilation * line;
                 }
               });
  }

  /// Values that gather() may write too many.
  static constexpr std::size_t gather_slack = 64 / sizeof(T);

 private:
  [[nodiscard]] bool is_inside(std::ptrdiff_t left) const noexcept {
    return left >= 0 && left + static_cast<std::ptrdiff_t>(filter_.kernel_width) <= width();
  }

  void gather_pixel(const T* image, std::ptrdiff_t top, std::ptrdiff_t left, std::size_t group,
                    T* rows) const {
    // Copies: what is written might be the members, for all that the compiler knows.
    const std::size_t channels = filter_.group_in();
    const std::size_t kernel_height = filter_.kernel_height;
    const std::size_t kernel_width = filter_.kernel_width;
    const std::size_t size = run();
    const std::ptrdiff_t rows_of_image = height();
    const std::ptrdiff_t columns = width();
    const std::ptrdiff_t step = in_channels();
    const auto dilation_height = static_cast<std::ptrdiff_t>(window_.dilation_height);
    const auto dilation_width = static_cast<std::ptrdiff_t>(window_.dilation_width);
    const T padding = padding_;
    const T* const end = end_;
    const bool dense = filter_.groups == 1 && dilation_width == 1 && is_inside(left);
    std::ptrdiff_t y = top;
    for (std::size_t kh = 0; kh < kernel_height; ++kh, rows += size, y += dilation_height) {
      if (y < 0 || y >= rows_of_image) {
        std::fill_n(rows, size, padding);
        continue;
      }
      const T* line = image + y * columns * step + group * channels;
      if (dense) {
        copy_run(line + left * step, size, end, rows);
        continue;
      }
      std::ptrdiff_t x = left;
      for (std::size_t kw = 0; kw < kernel_width; ++kw, x += dilation_width) {
        if (x < 0 || x >= columns) {
          std::fill_n(rows + kw * channels, channels, padding);
        } else {
          copy_run(line + x * step, channels, end, rows + kw * channels);
        }
      }
    }
  }

  /// Copies n values, or more of what follows where that is readable: a copy of constant size is a
  /// few instructions, one of another size a call.
  static void copy_run(const T* from, std::size_t n, const T* end, T* to) noexcept {
    const auto readable = static_cast<std::size_t>(end - from);
    if (n <= gather_slack / 2 && readable >= gather_slack / 2) {
      std::memcpy(to, from, 32);
      return;
    }
    if (n <= 8 * gather_slack && readable >= round_up(n, gather_slack)) {
      for (std::size_t i = 0; i < n; i += gather_slack) {
        std::memcpy(to + i, from + i, 64);
      }
      return;
    }
    std::memcpy(to, from, n * sizeof(T));
  }

  [[nodiscard]] std::ptrdiff_t height() const noexcept {
    return static_cast<std::ptrdiff_t>(window_.in_height);
  }
  [[nodiscard]] std::ptrdiff_t width() const noexcept {
    return static_cast<std::ptrdiff_t>(window_.in_width);
  }
  [[nodiscard]] std::ptrdiff_t in_channels() const noexcept {
    return static_cast<std::ptrdiff_t>(filter_.in_channels);
  }

  /// Calls visit(pixel, image, top, left) with the corner of each pixel's window.
  template <class Visit>
  void for_pixels(std::size_t first, std::size_t count, const Visit& visit) const {
    std::size_t x = first % out_width_;
    std::size_t y = first / out_width_ % out_height_;
    std::size_t n = first / out_width_ / out_height_;
    const std::size_t image = window_.in_height * window_.in_width * filter_.in_channels;
    for (std::size_t i = 0; i < count; ++i) {
      visit(i, input_ + n * image,
            static_cast<std::ptrdiff_t>(y * window_.stride_height) -
                static_cast<std::ptrdiff_t>(window_.pad_top),
            static_cast<std::ptrdiff_t>(x * window_.stride_width) -
                static_cast<std::ptrdiff_t>(window_.pad_left));
      if (++x == out_width_) {
        x = 0;
        if (++y == out_height_) {
          y = 0;
          ++n;
        }
      }
    }
  }

  const T* input_;
  const T* end_;
  filter_shape filter_;
  window window_;
  T padding_;
  std::size_t out_height_;
  std::size_t out_width_;
};

/// Pixels that are gathered at a time: their rows should stay in the first-level cache.
[[nodiscard]] inline std::size_t pixels_per_block(std::size_t row_bytes) noexcept {
  constexpr std::size_t budget = 32 * 1024;
  return std::clamp<std::size_t>(budget / (std::max<std::size_t>)(row_bytes, 1), rows_per_task,
                                 16 * rows_per_task) /
         rows_per_task * rows_per_task;
}

template <class In, class Out>
void require_images(const filter_shape& f, const window& w, std::span<In> input,
                    std::span<Out> output) {
  require(
      w.stride_height > 0 && w.stride_width > 0 && w.dilation_height > 0 && w.dilation_width > 0,
      error_kind::invalid_argument, "convolution: strides and dilations must be positive");
  const std::size_t in = w.batch * w.in_height * w.in_width * f.in_channels;
  const std::size_t out = w.batch * w.out_height(f) * w.out_width(f) * f.out_channels;
  require(input.size() == in && output.size() == out, error_kind::shape_mismatch,
          "convolution: ", input.size(), " inputs and ", output.size(), " outputs, not ", in,
          " and ", out);
  require((in == 0 || input.data() != nullptr) && (out == 0 || output.data() != nullptr),
          error_kind::invalid_argument, "convolution: null data");
}

/// Runs `product(rows, lda, first pixel, pixels, group)` over blocks of gathered pixels.
template <class T, class Product>
void for_gathered_blocks(const pixel_reader<T>& reader, const filter_shape& f, const T* input,
                         const parallel_for& parallel, const Product& product) {
  const std::size_t depth = f.taps() * f.group_in();
  const bool in_place = reader.is_matrix();
  const std::size_t block = pixels_per_block(depth * sizeof(T));
  run_parallel(parallel, (reader.pixels() + block - 1) / block, [&](std::size_t i) {
    const std::size_t first = i * block;
    const std::size_t count = (std::min)(block, reader.pixels() - first);
    const auto rows = std::make_unique_for_overwrite<T[]>(
        in_place ? 0 : count * depth + pixel_reader<T>::gather_slack);
    for (std::size_t group = 0; group < f.groups; ++group) {
      if (in_place) {
        product(input + first * f.in_channels + group * f.group_in(), f.in_channels, first, count,
                group);
      } else {
        reader.gather(first, count, group, rows.get());
        product(rows.get(), depth, first, count, group);
      }
    }
  });
}

/// Runs `product(segments, first pixel, pixels)` over blocks of pixels whose windows are read where
/// they are.
template <class T, class Product>
void for_segmented_blocks(const pixel_reader<T>& reader, const filter_shape& f, T padding,
                          const parallel_for& parallel, const Product& product) {
  constexpr std::size_t block = 4 * rows_per_task;
  const std::vector<T> blank(reader.run(), padding);
  const std::size_t depth = f.kernel_height * reader.run();
  run_parallel(parallel, (reader.pixels() + block - 1) / block, [&](std::size_t i) {
    const std::size_t first = i * block;
    const std::size_t count = (std::min)(block, reader.pixels() - first);
    std::vector<const T*> segments(f.kernel_height * count);
    const auto copies =
        std::make_unique_for_overwrite<T[]>(count * depth + pixel_reader<T>::gather_slack);
    reader.segments(first, count, blank.data(), copies.get(), segments.data());
    product(segments.data(), first, count);
  });
}

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
      depthwise_ = detail::depthwise_weights(matrix.data(), f, groups_[0].zero_points());
      return;
    }
    const std::size_t group_size = f.size() / f.groups;
    for (std::size_t g = 0; g < f.groups; ++g) {
      const std::vector<std::int8_t> matrix =
          detail::filter_matrix(f, weights.data() + g * group_size);
      groups_.emplace_back(
          matrix_view<const std::int8_t>(matrix.data(), f.group_in() * f.taps(), f.group_out()),
          weight_options{detail::group_slice(options.scales, f, g),
                         detail::group_slice(options.zero_points, f, g),
                         detail::group_slice(options.bias, f, g)});
    }
  }

  [[nodiscard]] const filter_shape& shape() const noexcept { return shape_; }
  /// One matrix per group; for depthwise filters, one matrix whose columns are the channels.
  [[nodiscard]] std::span<const packed_weights> groups() const noexcept { return groups_; }
  [[nodiscard]] const detail::depthwise_weights& depthwise() const noexcept { return depthwise_; }

 private:
  filter_shape shape_;
  std::vector<packed_weights> groups_;
  detail::depthwise_weights depthwise_;
};

/// Integer convolution; the epilogue is that of gemm(). Throws what gemm() throws.
template <integer_gemm_output T>
void convolve(std::span<const std::uint8_t> input, const packed_filters& filters, const window& w,
              std::span<T> output, const epilogue_options& options = {},
              const parallel_for& parallel = {}) {
  const filter_shape& f = filters.shape();
  detail::require_images(f, w, input, output);
  detail::require(options.lhs_scales.empty() && options.lhs_zero_points.empty() &&
                      options.bias.empty() && options.residual.data == nullptr,
                  error_kind::unsupported,
                  "convolution: parameters of rows, real biases and residuals are for gemm");
  if (output.empty()) {
    return;
  }
  std::vector<detail::column_terms> terms(filters.groups().size());
  for (std::size_t g = 0; g < terms.size(); ++g) {
    terms[g].prepare<T, std::uint8_t>(filters.groups()[g], options, "convolution");
  }
  const auto padding = static_cast<std::uint8_t>(options.lhs_zero_point);
  const kernels::kernel_table& table = detail::active_table();

  if (f.depthwise()) {
    // The weights carry their zero points; what is left is bias - lhs_zero_point * sum(weights),
    // which is the column offset of the terms.
    kernels::depthwise_u8_args d;
    d.weights = filters.depthwise().panels();
    d.c = output.data();
    d.epilogue = terms[0].epilogue(nullptr);
    d.epilogue.rhs_zero_point = nullptr;
    const detail::tap_order& order = filters.depthwise().order();
    detail::for_depthwise_rows(input.data(), f, w, padding, order.taps(), order.is_vertical(),
                               parallel, [&](const kernels::depthwise_rows<std::uint8_t>& rows) {
                                 kernels::depthwise_u8_args part = d;
                                 part.rows = rows;
                                 table.depthwise_u8(part);
                               });
    return;
  }
  const detail::pixel_reader<std::uint8_t> reader(input.data(), f, w, padding);
  /// Multiplies `count` pixels by the weights of a group; `g` says where they are.
  const auto multiply = [&](kernels::gemm_u8s8_args g, std::size_t group, std::size_t first,
                            std::size_t count, const auto& sum_row) {
    const packed_weights& weights = filters.groups()[group];
    std::vector<std::int32_t> row_sums(terms[group].needs_row_sums() ? count : 0);
    for (std::size_t i = 0; i < row_sums.size(); ++i) {
      row_sums[i] = sum_row(i);
    }
    g.b = weights.panels(table);
    g.c = output.data() + first * f.out_channels + group * f.group_out();
    g.ldc = f.out_channels;
    g.m = count;
    g.n = weights.columns();
    g.k = weights.depth();
    g.epilogue = terms[group].epilogue(row_sums.data());
    detail::run_gemm(table, g);
  };
  if (!table.adds_pairs && !reader.is_matrix() && reader.has_segments(kernels::group_depth)) {
    detail::for_segmented_blocks(
        reader, f, padding, parallel,
        [&](const std::uint8_t* const* segments, std::size_t first, std::size_t count) {
          kernels::gemm_u8s8_args g;
          g.rows = segments;
          g.segments = f.kernel_height;
          multiply(g, 0, first, count, [&](std::size_t i) {
            std::uint32_t sum = 0;
            for (std::size_t kh = 0; kh < f.kernel_height; ++kh) {
              sum +=
                  static_cast<std::uint32_t>(table.sum_u8(segments[kh * count + i], reader.run()));
            }
            return static_cast<std::int32_t>(sum);
          });
        });
    return;
  }
  detail::for_gathered_blocks(reader, f, input.data(), parallel,
                              [&](const std::uint8_t* rows, std::size_t lda, std::size_t first,
                                  std::size_t count, std::size_t group) {
                                kernels::gemm_u8s8_args g;
                                g.a = rows;
                                g.lda = lda;
                                multiply(g, group, first, count, [&](std::size_t i) {
                                  return table.sum_u8(rows + i * lda,
                                                      filters.groups()[group].depth());
                                });
                              });
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
    detail::require(bias.empty() || bias.size() == f.out_channels, error_kind::shape_mismatch,
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
      const std::vector<float> matrix = detail::filter_matrix(f, weights.data() + g * group_size);
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

/// Float convolution, clamped to [lower, upper]. The same bits on every target and split.
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
  const kernels::kernel_table& table = detail::active_table();
  if (f.depthwise()) {
    kernels::depthwise_f32_args d;
    d.weights = filters.depthwise().data() + filters.channel_stride();
    d.channel_stride = filters.channel_stride();
    d.bias = filters.depthwise().data();
    d.c = output.data();
    d.lower = lower;
    d.upper = upper;
    std::vector<detail::tap_position> order;
    for (std::size_t t = 0; t < f.taps(); ++t) {
      order.push_back({t / f.kernel_width, t % f.kernel_width});
    }
    detail::for_depthwise_rows(input.data(), f, w, 0.0F,
                               std::span<const detail::tap_position>(order), false, parallel,
                               [&](const kernels::depthwise_rows<float>& rows) {
                                 kernels::depthwise_f32_args part = d;
                                 part.rows = rows;
                                 table.depthwise_f32(part);
                               });
    return;
  }
  const detail::pixel_reader<float> reader(input.data(), f, w, 0.0F);
  detail::for_gathered_blocks(reader, f, input.data(), parallel,
                              [&](const float* rows, std::size_t lda, std::size_t first,
                                  std::size_t count, std::size_t group) {
                                const packed_floats& weights = filters.groups()[group];
                                kernels::gemm_f32_args g;
                                g.a = rows;
                                g.lda = lda;
                                g.packed_b = weights.data().data();
                                g.bias = weights.bias().data();
                                g.c =
                                    output.data() + first * f.out_channels + group * f.group_out();
                                g.ldc = f.out_channels;
                                g.m = count;
                                g.n = weights.columns();
                                g.k = weights.depth();
                                g.lower = lower;
                                g.upper = upper;
                                table.gemm_f32(g);
                              });
}

DETENT_NAMESPACE_END

#endif  // DETENT_CONVOLUTION_HPP
