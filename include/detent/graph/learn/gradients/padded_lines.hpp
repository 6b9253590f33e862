// SPDX-License-Identifier: BSD-3-Clause
// A layout of images and output gradients in which each tap of a convolution's window is a shift.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_PADDED_LINES_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_PADDED_LINES_HPP

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

/// The extents of padded_lines: how many places an image has along each axis.
[[nodiscard]] inline shape padded_extents(const shape& image, const shape& positions,
                                          const ops::window_attributes& w) {
  shape extents(w.rank());
  for (std::size_t d = 0; d < w.rank(); ++d) {
    const std::int64_t last = (positions[d] - 1) * w.strides[d];
    extents[d] = (std::max)(last + w.reach(d), image[d] + w.pads_begin[d]);
  }
  return extents;
}

/// Places for the pixels of an image with its padding, and for what belongs to the positions of a
/// window, such that tap k at position p covers place p + offsets()[k]. Positions are as far apart
/// as the strides; the places between hold zeros.
class padded_lines {
 public:
  /// `image` and `positions` are spatial shapes. There must be at least one position. Throws as
  /// element_count() of the extents.
  padded_lines(const shape& image, const shape& positions, const ops::window_attributes& w) {
    const std::size_t rank = w.rank();
    const shape extents = padded_extents(image, positions, w);
    size_ = element_count(extents);
    std::vector<std::int64_t> step(rank, 1);  // from one place to the next along each axis
    for (std::size_t d = rank; d-- > 0;) {
      const std::int64_t last = (positions[d] - 1) * w.strides[d];
      length_ += static_cast<std::size_t>(last * step[d]);
      if (d > 0) {
        step[d - 1] = extents[d] * step[d];
      }
    }
    std::vector<std::int64_t> strides = step;
    std::vector<std::int64_t> dilations = step;
    std::int64_t first = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      strides[d] *= w.strides[d];
      dilations[d] *= w.dilations[d];
      first += w.pads_begin[d] * step[d];
    }
    pixels_ = places(image, step, first);
    positions_ = places(positions, strides, 0);
    offsets_ = places(w.kernel, dilations, 0);
  }

  /// Number of pixels of an image.
  [[nodiscard]] std::size_t pixels() const { return pixels_.size(); }
  /// Number of positions of the window.
  [[nodiscard]] std::size_t positions() const { return positions_.size(); }
  /// Number of places of an image.
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Number of places up to the last position.
  [[nodiscard]] std::size_t length() const { return length_; }
  /// By how much each tap shifts places.
  [[nodiscard]] const std::vector<std::size_t>& offsets() const { return offsets_; }
  /// Calls each(place, i) for all pixels i.
  template <class Each>
  void for_each_pixel(const Each& each) const {
    for (std::size_t i = 0; i < pixels_.size(); ++i) {
      each(pixels_[i], i);
    }
  }
  /// Calls each(place, i) for all positions i.
  template <class Each>
  void for_each_position(const Each& each) const {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      each(positions_[i], i);
    }
  }

 private:
  /// The places of all elements of a shape, in row-major order.
  [[nodiscard]] static std::vector<std::size_t> places(const shape& dims,
                                                       const std::vector<std::int64_t>& steps,
                                                       std::int64_t first) {
    std::vector<std::size_t> all{static_cast<std::size_t>(first)};
    for (std::size_t d = 0; d < dims.size(); ++d) {
      std::vector<std::size_t> finer;
      for (const std::size_t place : all) {
        for (std::int64_t i = 0; i < dims[d]; ++i) {
          finer.push_back(place + static_cast<std::size_t>(i * steps[d]));
        }
      }
      all = std::move(finer);
    }
    return all;
  }

  std::vector<std::size_t> pixels_, positions_, offsets_;
  std::size_t size_ = 0;
  std::size_t length_ = 1;
};

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_PADDED_LINES_HPP
