// SPDX-License-Identifier: BSD-3-Clause
// The gradients of Conv and ConvTranspose over any number of spatial axes.
//
// Images are taken some at a time: the matrices of a piece of the batch stand side by side, so that
// products are long enough for the kernels also where images are small. How many these are depends
// on shapes alone, and so do the bits of the result.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_CONVOLUTION_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_CONVOLUTION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/exact_products.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/padded_lines.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/learn/gradients/window_patches.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/convolution.hpp>
#include <detent/graph/ops/matmul.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// The spatial dimensions of a shape [batch, channel, spatial ...].
[[nodiscard]] inline shape spatial(const shape& dims) { return {dims.begin() + 2, dims.end()}; }

/// Channels of images that are divided into groups: element (n, group, channel, pixel) of a tensor
/// [batch, groups * channels, pixels].
struct grouped_channels {
  std::size_t groups, channels, pixels;
  /// Where the pixels of a channel of image n begin.
  [[nodiscard]] std::size_t at(std::size_t n, std::size_t group, std::size_t channel) const {
    return ((n * groups + group) * channels + channel) * pixels;
  }
};

/// The number of images whose matrices of `elements` floats each are multiplied at once: as many as
/// fit a cache, but one at least.
[[nodiscard]] inline std::size_t images_at_once(std::size_t batch, std::size_t elements) {
  constexpr std::size_t most = std::size_t{1} << 17;
  return (std::max)(std::size_t{1}, (std::min)(batch, most / (std::max)(elements, std::size_t{1})));
}

/// Images [first, first + count) of one group as a matrix [channels, count * pixels]: the images
/// stand side by side.
template <class T>
[[nodiscard]] std::vector<float> side_by_side(std::span<const T> from, const grouped_channels& g,
                                              std::size_t group, std::size_t first,
                                              std::size_t count) {
  std::vector<float> matrix(g.channels * count * g.pixels);
  for (std::size_t channel = 0; channel < g.channels; ++channel) {
    for (std::size_t i = 0; i < count; ++i) {
      const T* image = from.data() + g.at(first + i, group, channel);
      std::transform(image, image + g.pixels, matrix.data() + (channel * count + i) * g.pixels,
                     [](T x) { return static_cast<float>(x); });
    }
  }
  return matrix;
}

/// Calls each(image, channel, rows) for the images and channels of a matrix of patches
/// [channels * taps, count * positions]: `rows` is the index of the first element of the patches of
/// one channel of one image. Several threads may make calls at once, for different channels.
template <class Each>
void for_each_patch(const gradient_context& c, const window_patches& w, std::size_t channels,
                    std::size_t count, const Each& each) {
  ops::for_pieces(c.forward, channels, ops::rows_of(ops::cheap_piece, w.taps() * w.positions()),
                  [&](std::size_t begin, std::size_t end) {
                    for (std::size_t channel = begin; channel < end; ++channel) {
                      for (std::size_t i = 0; i < count; ++i) {
                        each(i, channel, (channel * w.taps() * count + i) * w.positions());
                      }
                    }
                  });
}

/// The patches of images [first, first + count) of one group, as a matrix
/// [channels * taps, count * positions].
[[nodiscard]] inline std::vector<float> patches_of(const gradient_context& c,
                                                   const window_patches& w,
                                                   std::span<const float> from,
                                                   const grouped_channels& g, std::size_t group,
                                                   std::size_t first, std::size_t count) {
  std::vector<float> matrix(g.channels * w.taps() * count * w.positions());
  for_each_patch(c, w, g.channels, count, [&](std::size_t i, std::size_t channel, std::size_t row) {
    w.read(from.data() + g.at(first + i, group, channel), matrix.data() + row,
           count * w.positions());
  });
  return matrix;
}

/// Adds the product A B^T of two matrices [rows_a, depth] and [rows_b, depth] to `sum`
/// [rows_a, rows_b]. The matrix with fewer rows is the one that is packed.
inline void add_product_of_rows(const gradient_context& c, const std::vector<float>& a,
                                std::size_t rows_a, const std::vector<float>& b, std::size_t rows_b,
                                std::span<double> sum) {
  const std::size_t depth = a.size() / rows_a;
  const matrix_view<const float> left(a.data(), rows_a, depth);
  const matrix_view<const float> right(b.data(), rows_b, depth);
  if (rows_a >= rows_b) {
    add_to(sum, product(c, left, right.transposed()));
  } else {
    const std::vector<float> found = product(c, right, left.transposed());
    add_to(sum, ops::transposed_copy(found.data(), rows_b, rows_a));
  }
}

/// The gradient of a convolution's bias: the sums of D over images and pixels.
inline void bias_of_channels(const gradient_context& c) {
  if (!c.wants(2)) {
    return;
  }
  const auto channels = static_cast<std::size_t>(c.output().dim(1));
  const std::size_t pixels = element_count(spatial(c.output().dims()));
  const std::span<const double> d = c.output_gradient();
  for (std::size_t i = 0; pixels > 0 && i < d.size() / pixels; ++i) {
    c.gradient(2)[i % channels] += sum_of(d.subspan(i * pixels, pixels));
  }
}

/// The gradient of a Conv with one input channel and few outputs in each group, such as a depthwise
/// one: products of matrices would have a single row. X and D are laid out (padded_lines) so that
/// the elements under one tap at all positions are neighbours. For each image, output and tap, with
/// the weight w of the tap:
///
///   dw += sum of X D,  dX += w D
///
/// Some groups are taken at once, so that the channels of an image are neighbours in memory.
inline void depthwise_convolution(const gradient_context& c, const padded_lines& lines,
                                  std::size_t outputs) {
  constexpr std::size_t at_once = 8;
  const auto batch = static_cast<std::size_t>(c.input(0).dim(0));
  const auto groups = static_cast<std::size_t>(c.input(0).dim(1));
  const std::size_t taps = lines.offsets().size();
  const std::size_t reach = lines.offsets().back();
  const float* x = c.input(0).data<float>().data();
  const float* weights = c.input(1).data<float>().data();
  const double* upstream = c.output_gradient().data();
  const auto one_image = [&](std::size_t n, std::size_t group, std::vector<double>& image,
                             std::vector<double>& d, std::vector<double>& sum) {
    const std::size_t pixels = (n * groups + group) * lines.pixels();
    if (c.wants(1)) {
      lines.for_each_pixel([&](std::size_t at, std::size_t pixel) {
        image[at] = static_cast<double>(x[pixels + pixel]);
      });
    }
    for (std::size_t o = group * outputs; o < (group + 1) * outputs; ++o) {
      const double* from = upstream + (n * groups * outputs + o) * lines.positions();
      double* const to = d.data() + reach;
      lines.for_each_position([&](std::size_t at, std::size_t position) {
        to[at] = static_cast<double>(static_cast<float>(from[position]));
      });
      if (c.wants(1)) {
        add_all_dots(lines.length(), to, image.data(), lines.offsets(),
                     c.gradient(1).data() + o * taps);
      }
      if (c.wants(0)) {
        add_shifted(lines.size(), weights + o * taps, lines.offsets(), to, sum.data());
      }
    }
    if (c.wants(0)) {
      double* to = c.gradient(0).data() + pixels;
      lines.for_each_pixel([&](std::size_t at, std::size_t pixel) { to[pixel] += sum[at]; });
      std::fill(sum.begin(), sum.end(), 0.0);
    }
  };
  detent::detail::run_parallel(
      *c.forward.parallel, (groups + at_once - 1) / at_once, [&](std::size_t piece) {
        std::vector<double> image(lines.size(), 0.0);
        std::vector<double> d(lines.size() + reach, 0.0);  // zeros before and behind the positions
        std::vector<double> sum(lines.size(), 0.0);
        const std::size_t end = (std::min)(groups, (piece + 1) * at_once);
        for (std::size_t n = 0; n < batch; ++n) {
          for (std::size_t group = piece * at_once; group < end; ++group) {
            one_image(n, group, image, d, sum);
          }
        }
      });
}

/// The gradient of Conv. For each group, with the patches X [K, pixels] of some images side by
/// side, the weights W [outputs, K] and the output gradient D [outputs, pixels]:
///
///   dW += D X^T,  dX = W^T D,  db += sums of the rows of D
///
/// where dX is the gradient of the patches, added back to the images.
inline void convolution(const gradient_context& c) {
  const tensor& x = c.input(0);
  const tensor& weights = c.input(1);
  const filter_shape f = ops::read_filters(c.forward, x.dims(), weights.dims());
  const ops::window_attributes window =
      ops::read_window(c.forward, x.dims(), spatial(weights.dims()));
  bias_of_channels(c);
  if (c.output().count() == 0 || x.count() == 0) {
    return;
  }
  const window_patches w(spatial(x.dims()), spatial(c.output().dims()), window);
  const grouped_channels in{f.groups, f.in_channels / f.groups, w.pixels()};
  const grouped_channels out{f.groups, f.out_channels / f.groups, w.positions()};
  // Padding and strides may be far larger than the image.
  const shape extents = padded_extents(spatial(x.dims()), spatial(c.output().dims()), window);
  if (in.channels == 1 && out.channels < 4 &&
      detail::is_within(extents, 65536 + 64 * (in.pixels + out.pixels))) {
    depthwise_convolution(c, padded_lines(spatial(x.dims()), spatial(c.output().dims()), window),
                          out.channels);
    return;
  }
  const auto batch = static_cast<std::size_t>(x.dim(0));
  const std::size_t length = in.channels * w.taps();
  const std::size_t at_once = images_at_once(batch, (length + out.channels) * w.positions());
  for (std::size_t g = 0; g < f.groups; ++g) {
    const std::size_t first_weight = g * out.channels * length;
    const std::vector<float> columns =
        ops::transposed_copy(weights.data<float>().data() + first_weight, out.channels, length);
    for (std::size_t first = 0; first < batch; first += at_once) {
      const std::size_t count = (std::min)(at_once, batch - first);
      const std::vector<float> d = side_by_side(c.output_gradient(), out, g, first, count);
      const std::size_t positions = count * w.positions();
      if (c.wants(1)) {
        add_product_of_rows(c, d, out.channels,
                            patches_of(c, w, x.data<float>(), in, g, first, count), length,
                            c.gradient(1).subspan(first_weight, out.channels * length));
      }
      if (c.wants(0)) {
        const std::vector<float> patches =
            product(c, matrix_view<const float>(columns.data(), length, out.channels),
                    matrix_view<const float>(d.data(), out.channels, positions));
        for_each_patch(c, w, in.channels, count,
                       [&](std::size_t i, std::size_t channel, std::size_t row) {
                         w.add_back(patches.data() + row, positions,
                                    c.gradient(0).data() + in.at(first + i, g, channel));
                       });
      }
    }
  }
}

/// The gradient of ConvTranspose, which is a convolution read backwards: for each group, with the
/// input X [inputs, pixels] of some images side by side, the weights W [inputs, K] and the patches
/// D [K, pixels] of the output gradient:
///
///   dX = W D,  dW += X D^T,  db += sums of the output gradient
inline void transposed_convolution(const gradient_context& c) {
  const tensor& x = c.input(0);
  const tensor& weights = c.input(1);
  bias_of_channels(c);
  if (c.output().count() == 0 || x.count() == 0) {
    return;
  }
  const auto groups = static_cast<std::size_t>(c.n().get_int("group", 1));
  const window_patches w(spatial(c.output().dims()), spatial(x.dims()),
                         ops::read_transposed(c.forward).a);
  const grouped_channels in{groups, static_cast<std::size_t>(x.dim(1)) / groups, w.positions()};
  const grouped_channels out{groups, static_cast<std::size_t>(weights.dim(1)), w.pixels()};
  const std::vector<float> upstream = as_floats(c.output_gradient());
  const auto batch = static_cast<std::size_t>(x.dim(0));
  const std::size_t length = out.channels * w.taps();
  const std::size_t at_once = images_at_once(batch, (length + in.channels) * w.positions());
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t first_weight = g * in.channels * length;
    for (std::size_t first = 0; first < batch; first += at_once) {
      const std::size_t count = (std::min)(at_once, batch - first);
      const std::vector<float> d = patches_of(c, w, upstream, out, g, first, count);
      if (c.wants(1)) {
        add_product_of_rows(c, side_by_side(x.data<float>(), in, g, first, count), in.channels, d,
                            length, c.gradient(1).subspan(first_weight, in.channels * length));
      }
      if (c.wants(0)) {
        const std::vector<float> found =
            product(c,
                    matrix_view<const float>(weights.data<float>().data() + first_weight,
                                             in.channels, length),
                    matrix_view<const float>(d.data(), length, count * w.positions()));
        for (std::size_t channel = 0; channel < in.channels; ++channel) {
          for (std::size_t i = 0; i < count; ++i) {
            add_to(c.gradient(0).subspan(in.at(first + i, g, channel), in.pixels),
                   std::span(found).subspan((channel * count + i) * in.pixels, in.pixels));
          }
        }
      }
    }
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_CONVOLUTION_HPP
