// SPDX-License-Identifier: BSD-3-Clause
// Convolutions over any number of spatial axes as products of matrices: the elements under the
// window at some positions become the rows of a matrix, which is multiplied by the weights. One and
// two axes have faster ways (detent/convolution.hpp).
#ifndef DETENT_GRAPH_OPS_VOLUME_PATCHES_HPP
#define DETENT_GRAPH_OPS_VOLUME_PATCHES_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/parallel.hpp>
#include <detent/types.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The sizes of a convolution over a volume. Images are channels-last, [spatial ..., channels].
struct volume_sizes {
  std::size_t batch, in_channels, out_channels, groups;
  std::size_t in_pixels, out_pixels, taps;
  [[nodiscard]] std::size_t group_in() const { return in_channels / groups; }
  [[nodiscard]] std::size_t group_out() const { return out_channels / groups; }
  /// The number of elements under the window that one output element depends on.
  [[nodiscard]] std::size_t depth() const { return taps * group_in(); }

  volume_sizes(const shape& in, const shape& weights, const shape& out, std::int64_t group_count)
      : batch(static_cast<std::size_t>(in[0])),
        in_channels(static_cast<std::size_t>(in[1])),
        out_channels(static_cast<std::size_t>(out[1])),
        groups(static_cast<std::size_t>(group_count)),
        in_pixels(product(in, 2, in.size())),
        out_pixels(product(out, 2, out.size())),
        taps(product(weights, 2, weights.size())) {}
};

/// Turns the weights of one group, [group_out, group_in, taps], into a matrix
/// [taps * group_in, group_out].
template <class T>
void volume_matrix(const volume_sizes& s, const T* weights, T* matrix) {
  for (std::size_t o = 0; o < s.group_out(); ++o) {
    for (std::size_t i = 0; i < s.group_in(); ++i) {
      for (std::size_t k = 0; k < s.taps; ++k) {
        matrix[(k * s.group_in() + i) * s.group_out() + o] =
            weights[(o * s.group_in() + i) * s.taps + k];
      }
    }
  }
}

/// Where the pixels under the window at each output position are.
class volume_patches {
 public:
  volume_patches(const shape& in, const shape& out, const window_attributes& w)
      : in_(in.begin() + 2, in.end()), out_(out.begin() + 2, out.end()), window_(w) {}

  /// Writes `channels` channels from `first` on of the pixels under the window at an output
  /// position; `padding` where the window lies outside of the image.
  template <class T>
  void copy(const T* image, std::size_t position, std::size_t pixel_step, std::size_t first,
            std::size_t channels, T padding, T* to) const {
    std::array<std::int64_t, max_tensor_rank> start{};
    for (std::size_t d = out_.size(); d-- > 0;) {
      const auto extent = static_cast<std::size_t>(out_[d]);
      start[d] =
          static_cast<std::int64_t>(position % extent) * window_.strides[d] - window_.pads_begin[d];
      position /= extent;
    }
    std::array<std::int64_t, max_tensor_rank> tap{};
    do {
      std::int64_t pixel = 0;
      bool inside = true;
      for (std::size_t d = 0; d < in_.size(); ++d) {
        const std::int64_t at = start[d] + tap[d] * window_.dilations[d];
        inside = inside && at >= 0 && at < in_[d];
        pixel = inside ? pixel * in_[d] + at : 0;
      }
      if (inside) {
        std::copy_n(image + static_cast<std::size_t>(pixel) * pixel_step + first, channels, to);
      } else {
        std::fill_n(to, channels, padding);
      }
      to += channels;
    } while (next(tap));
  }

 private:
  /// Goes to the next tap of the window, the last axis fastest; false behind the last one.
  [[nodiscard]] bool next(std::array<std::int64_t, max_tensor_rank>& tap) const {
    for (std::size_t d = in_.size(); d-- > 0;) {
      if (++tap[d] < window_.kernel[d]) {
        return true;
      }
      tap[d] = 0;
    }
    return false;
  }

  shape in_, out_;
  window_attributes window_;
};

/// Computes a convolution: multiply(group, rows, out) multiplies rows of a group by its weights and
/// writes them to the columns of the group. `image` and `out` are channels-last. Blocks of
/// positions may be computed by several threads at once.
template <class A, class T, class Multiply>
void convolve_volume(const operator_context& c, const volume_sizes& s,
                     const volume_patches& patches, const A* in, A padding, T* out,
                     const Multiply& multiply) {
  constexpr std::size_t block = 128;
  const std::size_t blocks = (s.out_pixels + block - 1) / block;
  detent::detail::run_parallel(*c.parallel, s.batch * blocks, [&](std::size_t task) {
    const A* image = in + task / blocks * s.in_pixels * s.in_channels;
    const std::size_t begin = task % blocks * block;
    const std::size_t rows = (std::min)(block, s.out_pixels - begin);
    T* to = out + (task / blocks * s.out_pixels + begin) * s.out_channels;
    std::pmr::vector<A> matrix(rows * s.depth(), c.memory);
    for (std::size_t g = 0; g < s.groups; ++g) {
      for (std::size_t row = 0; row < rows; ++row) {
        patches.copy(image, begin + row, s.in_channels, g * s.group_in(), s.group_in(), padding,
                     matrix.data() + row * s.depth());
      }
      multiply(g, matrix_view<const A>(matrix.data(), rows, s.depth()),
               matrix_view<T>(to + g * s.group_out(), rows, s.group_out(),
                              static_cast<std::ptrdiff_t>(s.out_channels)));
    }
  });
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_VOLUME_PATCHES_HPP
