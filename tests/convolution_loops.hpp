// SPDX-License-Identifier: BSD-3-Clause
// The geometry of convolutions as nested loops that are written from the formula; shared by their
// tests.
#ifndef DETENT_TESTS_CONVOLUTION_LOOPS_HPP
#define DETENT_TESTS_CONVOLUTION_LOOPS_HPP

#include <cstddef>
#include <vector>

#include <detent/detent.hpp>

#include "random.hpp"

namespace test {

struct geometry {
  detent::filter_shape f;
  detent::window w;

  [[nodiscard]] std::size_t in_size() const {
    return w.batch * w.in_height * w.in_width * f.in_channels;
  }
  /// Output extents, counted instead of computed: as many positions as fit.
  [[nodiscard]] std::size_t out_height() const {
    return positions(w.in_height + w.pad_top + w.pad_bottom, f.kernel_height, w.dilation_height,
                     w.stride_height);
  }
  [[nodiscard]] std::size_t out_width() const {
    return positions(w.in_width + w.pad_left + w.pad_right, f.kernel_width, w.dilation_width,
                     w.stride_width);
  }
  [[nodiscard]] std::size_t out_size() const {
    return w.batch * out_height() * out_width() * f.out_channels;
  }

 private:
  static std::size_t positions(std::size_t extent, std::size_t kernel, std::size_t dilation,
                               std::size_t stride) {
    std::size_t count = 0;
    for (std::size_t first = 0; first + dilation * (kernel - 1) < extent; first += stride) {
      ++count;
    }
    return count;
  }
};

/// Values that are channels last, in the layout.
template <class T>
[[nodiscard]] std::vector<T> laid_out(const std::vector<T>& values,
                                      detent::activation_layout layout, std::size_t batch,
                                      std::size_t pixels, std::size_t channels) {
  if (layout == detent::activation_layout::nhwc) {
    return values;
  }
  std::vector<T> planes;
  planes.reserve(values.size());
  for (std::size_t n = 0; n < batch; ++n) {
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t p = 0; p < pixels; ++p) {
        planes.push_back(values[(n * pixels + p) * channels + c]);
      }
    }
  }
  return planes;
}

/// Calls begin(output index, output channel), then add(output index, input index or -1 for padding,
/// weight index) for each product, in the order kernel row, kernel column, channel.
template <class Begin, class Add>
void for_each_product(const geometry& g, const Begin& begin, const Add& add) {
  const detent::filter_shape& f = g.f;
  const detent::window& w = g.w;
  const std::size_t group_in = f.in_channels / f.groups;
  const std::size_t group_out = f.out_channels / f.groups;
  std::size_t out = 0;
  for (std::size_t n = 0; n < w.batch; ++n) {
    for (std::size_t oy = 0; oy < g.out_height(); ++oy) {
      for (std::size_t ox = 0; ox < g.out_width(); ++ox) {
        for (std::size_t oc = 0; oc < f.out_channels; ++oc, ++out) {
          begin(out, oc);
          for (std::size_t kh = 0; kh < f.kernel_height; ++kh) {
            for (std::size_t kw = 0; kw < f.kernel_width; ++kw) {
              for (std::size_t c = 0; c < group_in; ++c) {
                // Shifted by the padding, so that everything stays unsigned.
                const std::size_t y = oy * w.stride_height + kh * w.dilation_height;
                const std::size_t x = ox * w.stride_width + kw * w.dilation_width;
                const bool inside = y >= w.pad_top && y < w.pad_top + w.in_height &&
                                    x >= w.pad_left && x < w.pad_left + w.in_width;
                const std::size_t in =
                    ((n * w.in_height + y - w.pad_top) * w.in_width + x - w.pad_left) *
                        f.in_channels +
                    oc / group_out * group_in + c;
                const std::size_t weight =
                    ((oc * group_in + c) * f.kernel_height + kh) * f.kernel_width + kw;
                add(out, inside ? static_cast<std::ptrdiff_t>(in) : -1, weight);
              }
            }
          }
        }
      }
    }
  }
}

/// The input's and the output's, not both with their channels last.
struct layout_pair {
  detent::activation_layout in, out;

  explicit layout_pair(random_source& random) {
    const std::size_t choice = random.size(1, 3);
    in = choice % 2 == 1 ? detent::activation_layout::nchw : detent::activation_layout::nhwc;
    out = choice >= 2 ? detent::activation_layout::nchw : detent::activation_layout::nhwc;
  }
};

/// A random window over a small image.
inline detent::window random_window(random_source& random) {
  detent::window w;
  w.batch = random.size(1, 3);
  w.in_height = random.size(1, 9);
  w.in_width = random.size(1, 9);
  w.stride_height = random.size(1, 3);
  w.stride_width = random.size(1, 3);
  if (random.chance(40)) {
    w.dilation_height = random.size(1, 3);
    w.dilation_width = random.size(1, 3);
  }
  if (random.chance(70)) {
    w.pad_top = random.size(0, 3);
    w.pad_left = random.size(0, 3);
    w.pad_bottom = random.size(0, 3);
    w.pad_right = random.size(0, 3);
  }
  return w;
}

}  // namespace test

#endif  // DETENT_TESTS_CONVOLUTION_LOOPS_HPP
