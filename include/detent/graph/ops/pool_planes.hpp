// SPDX-License-Identifier: BSD-3-Clause
// AveragePool of floats over planes: images in the order of their dimensions, where the pixels of a
// channel are neighbours. Other pools work on channels-last images (pooling.hpp), into which larger
// images take longer to convert than to pool.
#ifndef DETENT_GRAPH_OPS_POOL_PLANES_HPP
#define DETENT_GRAPH_OPS_POOL_PLANES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/row_kernels.hpp>
#include <detent/graph/ops/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The windows of a pool along one axis of a plane. An axis that is not there has one pixel.
struct plane_axis {
  std::size_t in = 1;        ///< Pixels.
  std::size_t out = 1;       ///< Windows.
  std::size_t kernel = 1;    ///< Taps of a window.
  std::size_t stride = 1;    ///< Pixels between windows.
  std::size_t dilation = 1;  ///< Pixels between taps.
  std::size_t before = 0;    ///< Pixels of padding before the first pixel.
  std::size_t after = 0;     ///< Pixels of padding behind the last pixel.

  /// Axis i of images of shape `in` and of results of shape `out`.
  [[nodiscard]] static plane_axis of(const shape& in, const shape& out, const window_attributes& w,
                                     std::size_t i) {
    const auto size = [](std::int64_t v) { return static_cast<std::size_t>(v); };
    return {size(in[i + 2]),      size(out[i + 2]),      size(w.kernel[i]),  size(w.strides[i]),
            size(w.dilations[i]), size(w.pads_begin[i]), size(w.pads_end[i])};
  }
  /// The number of pixels from the first to the last that a window covers.
  [[nodiscard]] std::size_t reach() const noexcept { return (kernel - 1) * dilation + 1; }
  /// The number of pixels from the beginning of the padding to the end of the last window.
  [[nodiscard]] std::size_t covered() const noexcept { return (out - 1) * stride + reach(); }
  /// How many taps of window i lie within the input or, with `padded`, within the input or its
  /// padding. Taps behind the padding exist only in ceil mode.
  [[nodiscard]] std::size_t taps_inside(std::size_t i, bool padded) const noexcept {
    std::size_t taps = 0;
    for (std::size_t k = 0; k < kernel; ++k) {
      const std::size_t at = i * stride + k * dilation;
      const bool inside = at >= before && at < before + in;
      taps += inside || (padded && at < before + in + after) ? 1U : 0U;
    }
    return taps;
  }
};

/// The windows of a pool over planes.
struct plane_windows {
  plane_axis y;  ///< From line to line.
  plane_axis x;  ///< Within a line.

  /// For images of shape `in` and results of shape `out`, of one or two spatial axes.
  plane_windows(const shape& in, const shape& out, const window_attributes& w)
      : x(plane_axis::of(in, out, w, w.rank() - 1)) {
    if (w.rank() == 2) {
      y = plane_axis::of(in, out, w, 0);
    }
  }

  /// True if windows of this form are averaged in planes faster than in channels-last images: lines
  /// fill vectors, and kernels know the stride. The padding is not larger than the image.
  [[nodiscard]] static bool fit(const shape& in, const shape& out, const window_attributes& w) {
    constexpr std::size_t least_line = 20;
    constexpr std::size_t most_taps = 64;
    if (w.rank() < 1 || w.rank() > 2) {
      return false;
    }
    const plane_windows v(in, out, w);
    // Lines between far taps would be copied for nothing.
    const bool is_dense = v.y.reach() <= 2 * v.y.kernel;
    return v.x.out >= least_line && v.x.stride <= 2 && v.y.reach() <= v.y.in && is_dense &&
           v.x.reach() <= v.x.in && v.y.kernel <= most_taps && v.x.kernel <= most_taps / v.y.kernel;
  }

  /// The length of a line with its padding.
  [[nodiscard]] std::size_t pitch() const noexcept {
    return (std::max)(x.covered(), x.before + x.in);
  }
  /// The number of lines of results that are computed at a time: as many as leave room for what
  /// they read in the first-level cache.
  [[nodiscard]] std::size_t lines_of_slice() const noexcept {
    constexpr std::size_t most_pixels = std::size_t{1} << 12;
    return (std::min)(y.out, 1 + most_pixels / (pitch() * y.stride));
  }
  /// The number of slices that make up a plane.
  [[nodiscard]] std::size_t slices() const noexcept {
    const std::size_t lines = lines_of_slice();
    return (y.out + lines - 1) / lines;
  }
};

/// How many taps of each window count, along either axis.
struct counted_taps {
  std::pmr::vector<std::size_t> y;  ///< For each line of windows.
  std::pmr::vector<std::size_t> x;  ///< For each window of a line.

  /// With `padded`, taps in the padding count.
  counted_taps(const plane_windows& windows, bool padded, std::pmr::memory_resource* memory)
      : y(windows.y.out, 0, memory), x(windows.x.out, 0, memory) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = windows.y.taps_inside(i, padded);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = windows.x.taps_inside(i, padded);
    }
  }
};

/// The averages of windows in planes, slices of a few lines at a time.
class plane_averages {
 public:
  /// Windows and counts must outlive it. It has working memory for a slice.
  plane_averages(const operator_context& c, const plane_windows& windows,
                 const counted_taps& counts)
      : windows_(windows),
        counts_(counts),
        pitch_(windows.pitch()),
        most_lines_(windows.lines_of_slice()),
        padded_((most_lines_ - 1) * windows.y.stride * pitch_ + windows.y.reach() * pitch_, 0.0F,
                c.memory),
        taps_(c.memory),
        factors_(most_lines_ * windows.x.out, 0.0, c.memory) {
    for (std::size_t y = 0; y < windows.y.kernel; ++y) {
      for (std::size_t x = 0; x < windows.x.kernel; ++x) {
        taps_.push_back(padded_.data() + y * windows.y.dilation * pitch_ + x * windows.x.dilation);
      }
    }
  }

  /// Computes the lines of a slice of a plane. `out` is where the plane of results begins.
  void run(const float* plane, std::size_t slice, float* out) {
    const std::size_t first = slice * most_lines_;
    const std::size_t lines = (std::min)(most_lines_, windows_.y.out - first);
    if (slice != slice_) {
      find_factors(first, lines);
      slice_ = slice;
    }
    pad(plane, first * windows_.y.stride, (lines - 1) * windows_.y.stride + windows_.y.reach());
    row_kernels().means_of_windows(taps_.data(), taps_.size(), windows_.x.stride,
                                   windows_.y.stride * pitch_, lines, windows_.x.out,
                                   factors_.data(), out + first * windows_.x.out);
  }

 private:
  /// Copies `lines` lines of a plane, from line `first` of its padding on. The padding on both
  /// sides of lines is 0 from the beginning, which changes no sum.
  void pad(const float* plane, std::size_t first, std::size_t lines) {
    float* to = padded_.data() + windows_.x.before;
    for (std::size_t line = first; line < first + lines; ++line, to += pitch_) {
      if (line >= windows_.y.before && line < windows_.y.before + windows_.y.in) {
        std::copy_n(plane + (line - windows_.y.before) * windows_.x.in, windows_.x.in, to);
      } else {
        std::fill_n(to, windows_.x.in, 0.0F);
      }
    }
  }
  /// Computes 1 / counted taps for the windows of some lines, which does not depend on the plane.
  /// Most lines have as many taps as the line before.
  void find_factors(std::size_t first, std::size_t lines) {
    const std::size_t line = windows_.x.out;
    for (std::size_t y = 0; y < lines; ++y) {
      double* const to = factors_.data() + y * line;
      const std::size_t down = counts_.y[first + y];
      if (y > 0 && down == counts_.y[first + y - 1]) {
        std::copy_n(to - line, line, to);
        continue;
      }
      for (std::size_t x = 0; x < line; ++x) {
        to[x] = 1.0 / static_cast<double>(counts_.x[x] * down);
      }
    }
  }

  const plane_windows& windows_;
  const counted_taps& counts_;
  std::size_t pitch_;
  std::size_t most_lines_;
  std::size_t slice_ = static_cast<std::size_t>(-1);
  std::pmr::vector<float> padded_;
  std::pmr::vector<const float*> taps_;
  std::pmr::vector<double> factors_;
};

/// Runs AveragePool on planes of floats: sums in double, tap after tap, as mean_of_rows() makes
/// them of channels-last images.
inline void run_average_of_planes(operator_context& c) {
  const tensor& x = c.input(0);
  const plane_windows w(x.dims(), c.outputs[0].dims(), read_window(c, x.dims(), {}));
  c.count_multiply_adds({c.outputs[0].count(), w.y.kernel, w.x.kernel});
  const std::size_t planes =
      static_cast<std::size_t>(x.dim(0)) * static_cast<std::size_t>(x.dim(1));
  const float* const in = x.data<float>().data();
  float* const out = c.make_output(0).mutable_data<float>().data();
  const counted_taps counts(w, c.n().get_int("count_include_pad", 0) != 0, c.memory);
  // A slice of all planes comes before the next slice: the planes share the factors.
  for_pieces(c, w.slices() * planes, rows_of(kernel_piece, w.lines_of_slice() * w.x.out),
             [&](std::size_t begin, std::size_t end) {
               plane_averages averages(c, w, counts);
               for (std::size_t i = begin; i < end; ++i) {
                 const std::size_t plane = i % planes;
                 averages.run(in + plane * w.y.in * w.x.in, i / planes,
                              out + plane * w.y.out * w.x.out);
               }
             });
}

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_POOL_PLANES_HPP
