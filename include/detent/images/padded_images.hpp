// SPDX-License-Identifier: BSD-3-Clause
// Copies of images, channels last, with padding around them, so that no window reaches outside.
#ifndef DETENT_IMAGES_PADDED_IMAGES_HPP
#define DETENT_IMAGES_PADDED_IMAGES_HPP

#include <algorithm>
#include <cstddef>

#include <detent/base/aligned.hpp>
#include <detent/error.hpp>
#include <detent/images/planes.hpp>
#include <detent/parallel.hpp>
#include <detent/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace detail {

/// Images with their padding around them, channels last, and the window that moves over them
/// without padding. They are copied if there is padding, slack, or another layout: a copy costs
/// less than looking for the borders at every pixel, and it transposes images whose channels are
/// planes on the way. The copy is leased from the calling thread. Throws unsupported if the padding
/// is out of proportion: if the copy is larger than 16 times the input and all that windows read
/// together, plus 2^20 values.
template <class T>
class padded_images {
 public:
  /// `slack` values behind the last one may be read, too.
  padded_images(const T* input, const filter_shape& f, const window& w, T padding,
                std::size_t slack, const parallel_for& parallel)
      : data_(input),
        size_(w.batch * w.in_height * w.in_width * f.in_channels),
        line_((w.pad_left + w.in_width + w.pad_right) * f.in_channels),
        first_line_(w.pad_top),
        end_line_(w.pad_top + w.in_height),
        window_(w) {
    const bool planar = is_planar(w.input_layout, f.in_channels, w.in_height * w.in_width);
    window_.input_layout = activation_layout::nhwc;
    if (w.pad_top + w.pad_left + w.pad_bottom + w.pad_right + slack == 0 && !planar) {
      return;
    }
    window_.in_height += w.pad_top + w.pad_bottom;
    window_.in_width += w.pad_left + w.pad_right;
    window_.pad_top = window_.pad_left = window_.pad_bottom = window_.pad_right = 0;
    const auto product = [](auto... factors) { return (1.0 * ... * static_cast<double>(factors)); };
    const double padded = product(w.batch, window_.in_height, window_.in_width, f.in_channels);
    const double read = product(w.batch, w.out_height(f), w.out_width(f), f.taps(), f.in_channels);
    require(padded <= 16.0 * (static_cast<double>(size_) + read) + 0x1p20 && padded < 0x1p60,
            error_kind::unsupported, "convolution: images of ", w.in_height, " x ", w.in_width,
            " padded to ", window_.in_height, " x ", window_.in_width);
    const std::size_t lines = w.batch * window_.in_height;
    size_ = lines * line_;
    T* memory = memory_.lease(size_ + slack);
    std::fill_n(memory + size_, slack, padding);
    constexpr std::size_t lines_per_task = 64;
    run_parallel(parallel, (lines + lines_per_task - 1) / lines_per_task, [&](std::size_t task) {
      const std::size_t end = (std::min)((task + 1) * lines_per_task, lines);
      for (std::size_t i = task * lines_per_task; i < end;) {
        T* to = memory + i * line_;
        const std::size_t y = i % window_.in_height;
        if (y < w.pad_top || y >= w.pad_top + w.in_height) {
          std::fill_n(to, line_, padding);
          ++i;
          continue;
        }
        // Number of lines of this image from here on that belong to the task.
        const std::size_t count = (std::min)(end - i, w.pad_top + w.in_height - y);
        for (std::size_t j = 0; j < count; ++j) {
          std::fill_n(to + j * line_, w.pad_left * f.in_channels, padding);
          std::fill_n(to + (j + 1) * line_ - w.pad_right * f.in_channels,
                      w.pad_right * f.in_channels, padding);
        }
        const std::size_t image = i / window_.in_height * w.in_height * w.in_width * f.in_channels;
        copy_lines(input + image, y - w.pad_top, count, f.in_channels, w, planar,
                   to + w.pad_left * f.in_channels);
        i += count;
      }
    });
    data_ = memory;
    size_ += slack;
  }

  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] const T* end() const noexcept { return data_ + size_; }
  /// The window over the padded images: channels last, without padding.
  [[nodiscard]] const detent::window& window() const noexcept { return window_; }
  /// Whether line y of each padded image lies above or below the image: all of it is padding.
  [[nodiscard]] bool is_padding(std::size_t y) const noexcept {
    return y < first_line_ || y >= end_line_;
  }
  /// Where `count` values of padding lie; null if no line of padding has so many.
  [[nodiscard]] const T* padding_values(std::size_t count) const noexcept {
    const std::size_t y = first_line_ > 0 ? 0 : end_line_;
    return y < window_.in_height && is_padding(y) && count <= line_ ? data_ + y * line_ : nullptr;
  }

 private:
  /// Copies `count` lines of an image, from line y on, to the lines of the padded image that begin
  /// at `to`.
  void copy_lines(const T* image, std::size_t y, std::size_t count, std::size_t channels,
                  const detent::window& w, bool planar, T* to) const {
    if (planar) {
      kernels::transpose_args t;
      t.from = image + y * w.in_width;
      t.from_stride = w.in_height * w.in_width;
      t.rows = channels;
      t.columns = count * w.in_width;
      t.to = to;
      t.to_stride = channels;
      t.line = w.in_width;
      t.line_step = line_;
      transpose<T>(t);
      return;
    }
    const std::size_t line = w.in_width * channels;
    for (std::size_t j = 0; j < count; ++j) {
      std::copy_n(image + (y + j) * line, line, to + j * line_);
    }
  }

  leased_memory<T> memory_;
  const T* data_;
  std::size_t size_;
  std::size_t line_;                   // values of a line with its padding
  std::size_t first_line_, end_line_;  // lines of an image that are not padding alone
  detent::window window_;
};

}  // namespace detail
DETENT_NAMESPACE_END

#endif  // DETENT_IMAGES_PADDED_IMAGES_HPP
