// SPDX-License-Identifier: BSD-3-Clause
// Moves the pixels under the windows of a convolution into the rows of a matrix and back.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_WINDOW_PATCHES_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_WINDOW_PATCHES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The windows of a convolution over an image of any number of spatial axes, for one channel. A
/// matrix of patches has a row for each tap of the window and a column for each position of the
/// window: the pixel under that tap at that position (im2col).
///
/// Pixels move line by line, where a line is what differs only along the last axis.
class window_patches {
 public:
  /// `image` and `positions` are spatial shapes.
  window_patches(shape image, shape positions, ops::window_attributes w)
      : image_(std::move(image)), positions_(std::move(positions)), w_(std::move(w)) {
    join_last_axes();
    for (std::size_t d = 0; d < w_.rank(); ++d) {
      inside_.emplace_back();
      for (std::int64_t k = 0; k < w_.kernel[d]; ++k) {
        inside_.back().push_back(range_of(d, k));
      }
    }
  }

  /// Number of pixels of an image.
  [[nodiscard]] std::size_t pixels() const { return element_count(image_); }
  /// Number of positions of the window: the columns of the matrix.
  [[nodiscard]] std::size_t positions() const { return element_count(positions_); }
  /// Number of pixels of the window: the rows of the matrix.
  [[nodiscard]] std::size_t taps() const { return element_count(w_.kernel); }

  /// Calls line(tap, from, at, count) for all lines of all taps that lie within the image: the
  /// pixels from, from + step(), ... lie under the tap at the `count` positions from `at` on.
  template <class Line>
  void for_each_line(const Line& line) const {
    std::vector<std::int64_t> tap(w_.rank(), 0);
    for (std::size_t k = 0; k < taps(); ++k) {
      walk(0, tap, 0, 0,
           [&](std::size_t from, std::size_t at, std::size_t count) { line(k, from, at, count); });
      for (std::size_t d = tap.size(); d-- > 0;) {
        if (++tap[d] < w_.kernel[d]) {
          break;
        }
        tap[d] = 0;
      }
    }
  }
  /// The distance of the pixels of a line.
  [[nodiscard]] std::size_t step() const { return static_cast<std::size_t>(w_.strides.back()); }

  /// Writes the patches of an image. Row k begins at rows + k * row_length, and must hold zeros,
  /// which stay where the window is outside of the image.
  void read(const float* image, float* rows, std::size_t row_length) const {
    const std::size_t pixel_step = step();
    for_each_line([&](std::size_t tap, std::size_t from, std::size_t at, std::size_t count) {
      float* to = rows + tap * row_length + at;
      const float* pixels = image + from;
      if (pixel_step == 1) {
        std::copy_n(pixels, count, to);
        return;
      }
      for (std::size_t i = 0; i < count; ++i) {
        to[i] = pixels[i * pixel_step];
      }
    });
  }
  /// Adds each element of a matrix to the pixel from which read() took it (col2im); elements for
  /// which the window is outside of the image are dropped.
  void add_back(const float* rows, std::size_t row_length, double* image) const {
    const std::size_t pixel_step = step();
    for_each_line([&](std::size_t tap, std::size_t to, std::size_t at, std::size_t count) {
      const float* from = rows + tap * row_length + at;
      double* pixels = image + to;
      for (std::size_t i = 0; i < count; ++i) {
        pixels[i * pixel_step] += static_cast<double>(from[i]);
      }
    });
  }

 private:
  /// Positions [first, last).
  struct range {
    std::int64_t first, last;
  };

  /// Makes one axis of the last two as long as the window does nothing along the last and has
  /// stride 1 along the one before, so that lines become longer. A pointwise convolution has a
  /// single line.
  void join_last_axes() {
    for (std::size_t d = w_.rank() - 1; d > 0; --d) {
      const bool idle = w_.kernel[d] == 1 && w_.strides[d] == 1 && w_.pads_begin[d] == 0 &&
                        image_[d] == positions_[d];
      if (!idle || w_.strides[d - 1] != 1) {
        return;
      }
      for (shape* of_pixels : {&image_, &positions_, &w_.dilations, &w_.pads_begin, &w_.pads_end}) {
        (*of_pixels)[d - 1] *= image_.back();
      }
      for (shape* all : {&positions_, &w_.kernel, &w_.strides, &w_.dilations, &w_.pads_begin,
                         &w_.pads_end, &image_}) {
        all->pop_back();
      }
    }
  }

  /// The pixel along axis d that tap k covers when the window is at position 0; it may be negative.
  [[nodiscard]] std::int64_t start(std::size_t d, std::int64_t k) const {
    return k * w_.dilations[d] - w_.pads_begin[d];
  }
  /// The positions along axis d at which tap k is inside the image.
  [[nodiscard]] range range_of(std::size_t d, std::int64_t k) const {
    const std::int64_t stride = w_.strides[d];
    const std::int64_t before = -start(d, k);  // pixels before the image at position 0
    const std::int64_t first = before > 0 ? (before + stride - 1) / stride : 0;
    const std::int64_t behind = image_[d] + before;  // the first place that is behind the image
    const std::int64_t last = behind > 0 ? (behind + stride - 1) / stride : 0;
    return {first, (std::max)(first, (std::min)(last, positions_[d]))};
  }

  /// Calls line(from, at, count) for the lines of one tap. `pixel` and `position` are the indices
  /// along the axes before d.
  template <class Line>
  void walk(std::size_t d, const std::vector<std::int64_t>& tap, std::int64_t pixel,
            std::int64_t position, const Line& line) const {
    const range r = inside_[d][static_cast<std::size_t>(tap[d])];
    const std::int64_t from = pixel * image_[d] + start(d, tap[d]);
    const std::int64_t at = position * positions_[d];
    if (d + 1 == tap.size()) {
      if (r.first < r.last) {
        line(static_cast<std::size_t>(from + r.first * w_.strides[d]),
             static_cast<std::size_t>(at + r.first), static_cast<std::size_t>(r.last - r.first));
      }
      return;
    }
    for (std::int64_t i = r.first; i < r.last; ++i) {
      walk(d + 1, tap, from + i * w_.strides[d], at + i, line);
    }
  }

  shape image_, positions_;
  ops::window_attributes w_;
  std::vector<std::vector<range>> inside_;  // by axis and tap
};

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_WINDOW_PATCHES_HPP
