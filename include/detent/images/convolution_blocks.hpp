// SPDX-License-Identifier: BSD-3-Clause
// The folder images/ holds what convolutions do with images before and after products: padding,
// layouts, blocks of pixels, gathering of windows, depthwise filters. It may include base/,
// kernels/, weights/, products/, and of the folder above config, dispatch, error, pack, parallel,
// types and window; convolution.hpp includes it.
//
// This file divides the output of a convolution into blocks of pixels and finds the values that
// their windows read.
#ifndef DETENT_IMAGES_CONVOLUTION_BLOCKS_HPP
#define DETENT_IMAGES_CONVOLUTION_BLOCKS_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>

#include <detent/config.hpp>
#include <detent/images/output_block.hpp>
#include <detent/images/padded_images.hpp>
#include <detent/images/planes.hpp>
#include <detent/pack.hpp>
#include <detent/parallel.hpp>
#include <detent/products/product_parts.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Whether the filters are 1x1 with strides of 1 and no padding: the input is then the left side of
/// a matrix product as it stands.
[[nodiscard]] inline bool is_matrix(const filter_shape& f, const window& w) noexcept {
  return f.taps() == 1 && w.stride_height == 1 && w.stride_width == 1 &&
         w.pad_top + w.pad_left + w.pad_bottom + w.pad_right == 0;
}

/// Finds the values that output pixels read, as dense left rows of a product (im2col, block by
/// block) or as segments of such rows where they lie. There are `row` values for each kernel row,
/// which may be more than its taps have.
template <class T>
class pixel_reader {
 public:
  pixel_reader(const padded_images<T>& images, const filter_shape& f, std::size_t row)
      : images_(images),
        filter_(f),
        row_(row),
        out_height_(images.window().out_height(f)),
        out_width_(images.window().out_width(f)) {}

  [[nodiscard]] std::size_t pixels() const noexcept {
    return images_.window().batch * out_height_ * out_width_;
  }

  /// Copies the values of one group that `count` pixels from `first` on read: `count` left rows of
  /// kernel_height * row values. Up to gather_slack values behind the last row are overwritten.
  void gather(std::size_t first, std::size_t count, std::size_t group, T* rows) const {
    // Local copies of members: the compiler must assume that the writes below change members.
    const std::size_t channels = filter_.group_in();
    const std::size_t kernel_height = filter_.kernel_height;
    const std::size_t kernel_width = filter_.kernel_width;
    const std::size_t row = row_;
    const std::size_t line = line_step();
    const std::size_t tap = images_.window().dilation_width * filter_.in_channels;
    const bool dense = filter_.groups == 1 && images_.window().dilation_width == 1;
    const T* const end = images_.end();
    for_rows(first, count,
             [&](std::size_t /*i*/, std::size_t pixels, std::size_t /*top*/, const T* corner,
                 std::size_t step) {
               corner += group * channels;
               for (; pixels > 0; --pixels, corner += step) {
                 const T* from = corner;
                 for (std::size_t kh = 0; kh < kernel_height; ++kh, rows += row, from += line) {
                   if (dense) {
                     copy_run(from, row, end, rows);
                     continue;
                   }
                   for (std::size_t kw = 0; kw < kernel_width; ++kw) {
                     copy_run(from + kw * tap, channels, end, rows + kw * channels);
                   }
                   std::fill_n(rows + kernel_width * channels, row - kernel_width * channels, T{});
                 }
               }
             });
  }

  /// Sets segments[kh * count + i] to the address where pixel first + i reads kernel row kh, for
  /// `count` pixels. Kernel rows that lie in the padding above or below an image are read from
  /// `padding`, unless that is null. The taps of a kernel row must be neighbours: groups and
  /// dilation_width are 1.
  void segments(std::size_t first, std::size_t count, const T* padding, const T** segments) const {
    const std::size_t kernel_height = filter_.kernel_height;
    const std::size_t line = line_step();
    for_rows(
        first, count,
        [&](std::size_t i, std::size_t pixels, std::size_t top, const T* corner, std::size_t step) {
          for (std::size_t kh = 0; kh < kernel_height; ++kh) {
            const T** to = segments + kh * count + i;
            const std::size_t y = top + kh * images_.window().dilation_height;
            if (padding != nullptr && images_.is_padding(y)) {
              std::fill_n(to, pixels, padding);
              continue;
            }
            const T* from = corner + kh * line;
            for (std::size_t p = 0; p < pixels; ++p) {
              to[p] = from + p * step;
            }
          }
        });
  }

  /// Number of values behind the last row that gather() may overwrite.
  static constexpr std::size_t gather_slack = 64 / sizeof(T);

 private:
  /// Copies n values, or more of those that follow if they are readable: a copy of constant size
  /// takes a few instructions, a copy of variable size a call.
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

  /// Distance of a kernel row from the next one, in values.
  [[nodiscard]] std::size_t line_step() const noexcept {
    return images_.window().dilation_height * images_.window().in_width * filter_.in_channels;
  }

  /// Divides `count` pixels from `first` on into parts that lie in one line of the output each, and
  /// calls visit(i, pixels, top, corner, step) for each part: it has `pixels` pixels from number
  /// first + i on, of which pixel p reads from corner + p * step on, in line `top` of its image and
  /// those below.
  template <class Visit>
  void for_rows(std::size_t first, std::size_t count, const Visit& visit) const {
    const detent::window& w = images_.window();
    const std::size_t step = w.stride_width * filter_.in_channels;
    std::size_t x = first % out_width_;
    std::size_t y = first / out_width_ % out_height_;
    std::size_t n = first / out_width_ / out_height_;
    for (std::size_t i = 0; i < count;) {
      const std::size_t pixels = (std::min)(out_width_ - x, count - i);
      const std::size_t top = y * w.stride_height;
      const std::size_t line = n * w.in_height + top;
      visit(i, pixels, top, images_.data() + line * w.in_width * filter_.in_channels + x * step,
            step);
      i += pixels;
      x = 0;
      if (++y == out_height_) {
        y = 0;
        ++n;
      }
    }
  }

  const padded_images<T>& images_;
  filter_shape filter_;
  std::size_t row_;
  std::size_t out_height_;
  std::size_t out_width_;
};

/// Number of pixels that are gathered at a time, a multiple of rows_per_task: their left rows
/// should stay in the first-level cache.
[[nodiscard]] inline std::size_t pixels_per_block(std::size_t row_bytes) noexcept {
  constexpr std::size_t budget = 32 * 1024;
  return std::clamp<std::size_t>(budget / (std::max<std::size_t>)(row_bytes, 1), rows_per_task,
                                 16 * rows_per_task) /
         rows_per_task * rows_per_task;
}

/// The input of a convolution as a batch of images.
template <class T>
[[nodiscard]] image_batch<const T> input_images(const filter_shape& f, const window& w,
                                                const T* data) noexcept {
  return {data, f.in_channels, w.in_height * w.in_width, w.input_layout};
}

/// The output of a convolution as a batch of images.
template <class T>
[[nodiscard]] image_batch<T> output_images(const filter_shape& f, const window& w,
                                           T* data) noexcept {
  return {data, f.out_channels, w.out_height(f) * w.out_width(f), w.output_layout};
}

/// The number of pixels of an output block: `wanted` (at least rows_per_task), or fewer if the
/// output is transposed or consumed and they would leave the cache.
template <class T>
[[nodiscard]] std::size_t block_of_output(std::size_t wanted,
                                          const convolution_output<T>& output) noexcept {
  const std::size_t whole = output.most_pixels() / rows_per_task * rows_per_task;
  return std::clamp(whole, rows_per_task, wanted);
}

/// The fewest pixels that are worth a task of their own: to give another thread a task takes about
/// a microsecond, in which this one computes up to 2^19 products.
[[nodiscard]] inline std::size_t least_pixels_per_task(const filter_shape& f) noexcept {
  constexpr std::size_t products = std::size_t{1} << 19;
  return (std::max)(products / (std::max)(f.size(), std::size_t{1}), std::size_t{16});
}

/// Weights of more bytes than this hardly stay in a second-level cache from one block of pixels to
/// the next.
inline constexpr std::size_t weights_of_cache = std::size_t{1} << 19;

/// Runs product(rows, lda, group, block) for each block of pixels and each group. The left rows,
/// lda values apart, are the input itself if is_matrix(), otherwise gathered windows; see
/// pixel_reader for `row`. call_rows is the number of rows that are worth a call of the kernel.
template <class T, class Out, class Product>
void for_gathered_blocks(const filter_shape& f, const window& w, const T* input, T padding,
                         std::size_t row, const convolution_output<Out>& output,
                         std::size_t call_rows, const parallel_for& parallel,
                         const Product& product) {
  if (f.in_channels == 0 && (!is_matrix(f, w) || w.input_layout == activation_layout::nchw)) {
    // The kernel and the padding may be of any size, since no value belongs to them: they must not
    // be looped over. A 1x1 kernel without padding has the same sums.
    filter_shape point = f;
    point.kernel_height = point.kernel_width = 1;
    window pixels;
    pixels.batch = w.batch;
    pixels.in_height = w.out_height(f);
    pixels.in_width = w.out_width(f);
    for_gathered_blocks(point, pixels, input, padding, row, output, call_rows, parallel, product);
    return;
  }
  if (is_matrix(f, w)) {
    const image_batch<const T> images = input_images<T>(f, w, input);
    const std::size_t pixels = w.batch * w.in_height * w.in_width;
    std::size_t wanted = pixels_per_block(f.in_channels * sizeof(T));
    if (!parallel || pixels >= wanted_tasks * call_rows) {
      wanted = (std::max)(wanted, call_rows);
    }
    if (images.planar && !parallel) {
      // Planes are read faster in longer stretches; with threads, more tasks are worth more.
      wanted = (std::max)(wanted, 4 * rows_per_task);
    }
    if (f.size() * sizeof(T) > weights_of_cache && !parallel) {
      wanted = (std::max)(wanted, 4 * rows_per_task);  // each block reads all weights from memory
    }
    const std::size_t block = rows_of_even_tasks(pixels, least_pixels_per_task(f),
                                                 block_of_output(wanted, output), parallel);
    for_row_blocks(pixels, block, parallel, [&](std::size_t first, std::size_t count) {
      const input_pixels<T> in(images, first, count);
      const output_block<Out> out(output, first, count);
      for (std::size_t group = 0; group < f.groups; ++group) {
        product(in.data() + group * f.group_in(), f.in_channels, group, out);
      }
      out.store();
    });
    return;
  }
  const padded_images<T> images(input, f, w, padding, row - f.kernel_width * f.group_in(),
                                parallel);
  const pixel_reader<T> reader(images, f, row);
  const std::size_t depth = f.kernel_height * row;
  const std::size_t block =
      rows_of_even_tasks(reader.pixels(), least_pixels_per_task(f),
                         block_of_output(pixels_per_block(depth * sizeof(T)), output), parallel);
  for_row_blocks(reader.pixels(), block, parallel, [&](std::size_t first, std::size_t count) {
    const auto rows =
        std::make_unique_for_overwrite<T[]>(count * depth + pixel_reader<T>::gather_slack);
    const output_block<Out> out(output, first, count);
    for (std::size_t group = 0; group < f.groups; ++group) {
      reader.gather(first, count, group, rows.get());
      product(rows.get(), depth, group, out);
    }
    out.store();
  });
}

/// Runs product(segments, zeros, block) for each block of pixels, whose windows are read where they
/// lie; see pixel_reader::segments(). If `zeros` is not null, segments at that address are padding
/// of the integer 0.
template <class T, class Out, class Product>
void for_segmented_blocks(const filter_shape& f, const window& w, const T* input, T padding,
                          std::size_t row, const convolution_output<Out>& output,
                          const parallel_for& parallel, const Product& product) {
  const padded_images<T> images(input, f, w, padding, row - f.kernel_width * f.group_in(),
                                parallel);
  const pixel_reader<T> reader(images, f, row);
  const T* const zeros = std::integral<T> && padding == T{} ? images.padding_values(row) : nullptr;
  const std::size_t block =
      rows_of_even_tasks(reader.pixels(), least_pixels_per_task(f),
                         block_of_output(4 * rows_per_task, output), parallel);
  for_row_blocks(reader.pixels(), block, parallel, [&](std::size_t first, std::size_t count) {
    const T** segments = block_memory<const T*>(f.kernel_height * count);
    reader.segments(first, count, zeros, segments);
    const output_block<Out> out(output, first, count);
    product(segments, zeros, out);
    out.store();
  });
}

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_CONVOLUTION_BLOCKS_HPP
