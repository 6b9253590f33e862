// SPDX-License-Identifier: BSD-3-Clause
// GridSample and AffineGrid. GridSample takes an image at points between its pixels: each axis
// gives some pixels and weights, and the result is the sum over all combinations, made in double in
// a fixed order. AffineGrid makes such points.
#ifndef DETENT_GRAPH_OPS_GRID_SAMPLE_HPP
#define DETENT_GRAPH_OPS_GRID_SAMPLE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/broadcast.hpp>
#include <detent/graph/ops/copying.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/resize_weights.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace sampling {

enum class interpolation : std::uint8_t { nearest, linear, cubic };
enum class padding : std::uint8_t { zeros, border, reflection };

struct options {
  interpolation how = interpolation::linear;
  padding outside = padding::zeros;
  bool align_corners = false;

  explicit options(const operator_context& c)
      : align_corners(c.n().get_int("align_corners", 0) != 0) {
    // The names of opset 16 are those of images.
    const std::string mode = c.n().get_string("mode", "linear");
    const bool linear = mode == "linear" || mode == "bilinear";
    const bool cubic = mode == "cubic" || mode == "bicubic";
    c.require(linear || cubic || mode == "nearest", "mode '", mode, "'");
    how = linear ? interpolation::linear : cubic ? interpolation::cubic : interpolation::nearest;
    const std::string name = c.n().get_string("padding_mode", "zeros");
    c.require(name == "zeros" || name == "border" || name == "reflection", "padding_mode '", name,
              "'");
    outside = name == "zeros"    ? padding::zeros
              : name == "border" ? padding::border
                                 : padding::reflection;
  }
};

/// Up to four neighbouring elements along an axis and their weights.
struct axis_taps {
  std::size_t count = 0;
  std::array<std::size_t, 4> index{};
  std::array<double, 4> weight{};
};

/// x mirrored at `low` and `high` until it lies between them.
[[nodiscard]] inline double reflect(double x, double low, double high) {
  const double range = high - low;
  if (range <= 0.0) {
    return low;
  }
  const double distance = std::fmod(std::fabs(x - low), 2.0 * range);
  return low + (distance > range ? 2.0 * range - distance : distance);
}

/// The taps of an axis of `length` elements for a grid coordinate, where -1 and 1 are the ends of
/// the axis. NaN counts as a coordinate before the first element.
[[nodiscard]] inline axis_taps taps_at(const options& o, double coordinate, std::int64_t length) {
  const auto n = static_cast<double>(length);
  const double low = o.align_corners ? 0.0 : -0.5;
  const double high = o.align_corners ? n - 1.0 : n - 0.5;
  // Halving is exact: the same bits with and without contraction.
  double x = o.align_corners ? (coordinate + 1.0) / 2.0 * (n - 1.0)
                             : std::fma(coordinate + 1.0, n, -1.0) / 2.0;
  x = x == x ? std::clamp(x, -0x1p40, 0x1p40) : -0x1p40;
  if (o.how == interpolation::nearest) {
    x = std::nearbyint(x);
  }
  axis_taps t;
  const auto add = [&](double index, double weight) {
    if (o.outside == padding::zeros && (index < 0.0 || index > n - 1.0)) {
      return;
    }
    const double inside = o.outside == padding::reflection ? reflect(index, low, high) : index;
    t.index[t.count] = static_cast<std::size_t>(std::clamp(inside, 0.0, n - 1.0));
    t.weight[t.count++] = weight;
  };
  const double below = std::floor(x);
  if (o.how == interpolation::nearest) {
    add(x, 1.0);
  } else if (o.how == interpolation::linear) {
    add(below, below + 1.0 - x);
    add(below + 1.0, x - below);
  } else {
    double w[4];
    resizing::cubic_weights(-0.75, x - below, w);
    for (std::size_t k = 0; k < 4; ++k) {
      add(below + static_cast<double>(k) - 1.0, w[k]);
    }
  }
  return t;
}

inline void infer(operator_context& c) {
  const shape& in = c.input(0).dims();
  const shape& grid = c.input(1).dims();
  static_cast<void>(options(c));
  c.require(in.size() >= 3 && grid.size() == in.size() && grid[0] == in[0] &&
                grid.back() == static_cast<std::int64_t>(in.size() - 2),
            "an input of shape ", shown(in), " and a grid of shape ", shown(grid));
  c.require_supported(in.size() <= 5, "no code for ", in.size() - 2, " spatial axes");
  shape out = in;
  std::copy(grid.begin() + 1, grid.end() - 1, out.begin() + 2);
  c.set_output(0, c.input(0).type(), std::move(out));
}

/// The pixels of one point and their weights: all combinations of the taps of its axes.
struct point_taps {
  std::size_t count = 0;
  std::array<std::size_t, 64> pixel{};
  std::array<double, 64> weight{};
};

/// The grid lists the coordinates of a point from the last axis to the first.
[[nodiscard]] inline point_taps combine_taps(const options& o, const shape& in,
                                             std::span<const double> point) {
  point_taps all;
  all.count = 1;
  all.weight[0] = 1.0;
  for (std::size_t d = 0; d < point.size(); ++d) {
    const std::int64_t length = in[d + 2];
    const axis_taps t = taps_at(o, point[point.size() - 1 - d], length);
    point_taps next;
    for (std::size_t i = 0; i < all.count; ++i) {
      for (std::size_t k = 0; k < t.count; ++k) {
        next.pixel[next.count] = all.pixel[i] * static_cast<std::size_t>(length) + t.index[k];
        next.weight[next.count++] = all.weight[i] * t.weight[k];
      }
    }
    all = next;
  }
  return all;
}

template <class T>
void run_as(operator_context& c) {
  const options o(c);
  const tensor& in = c.input(0);
  const std::span<T> out = c.make_output(0).mutable_data<T>();
  if (out.empty()) {
    return;
  }
  c.require(in.count() > 0, "the images have no pixels");
  c.count_multiply_adds({out.size(), o.how == interpolation::cubic ? 64U : 8U});
  const std::pmr::vector<double> grid = load_all<double>(c, c.input(1));
  const std::size_t axes = in.rank() - 2;
  const auto channels = static_cast<std::size_t>(in.dim(1));
  const std::size_t pixels = product(in.dims(), 2, in.rank());
  const std::size_t points = product(c.outputs[0].dims(), 2, in.rank());
  const std::span<const T> source = in.data<T>();
  for_pieces(c, grid.size() / axes, costly_piece, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const point_taps taps = combine_taps(o, in.dims(), std::span(grid).subspan(i * axes, axes));
      for (std::size_t ch = 0; ch < channels; ++ch) {
        const std::size_t image = i / points * channels + ch;
        double sum = 0.0;
        for (std::size_t k = 0; k < taps.count; ++k) {
          sum = std::fma(taps.weight[k],
                         static_cast<double>(source[image * pixels + taps.pixel[k]]), sum);
        }
        out[image * points + i % points] = static_cast<T>(sum);
      }
    }
  });
}

inline void run(operator_context& c) {
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() { run_as<T>(c); });
}

// --- AffineGrid ----------------------------------------------------------------------------------

inline void infer_affine_grid(operator_context& c) {
  const tensor& theta = c.input(0);
  static_cast<void>(c.input(1));
  const std::vector<std::int64_t> size = c.integers(1);
  const auto axes = static_cast<std::int64_t>(size.size()) - 2;
  c.require((axes == 2 || axes == 3) && theta.dims() == shape{size[0], axes, axes + 1}, "theta of ",
            shown(theta.dims()), " for an image of shape ", shown(size));
  shape out{size[0]};
  out.insert(out.end(), size.begin() + 2, size.end());
  out.push_back(axes);
  c.set_output(0, theta.type(), std::move(out));
}

/// The grid coordinate of element i of an axis of `length` elements.
[[nodiscard]] inline double grid_coordinate(bool align_corners, std::size_t i, std::size_t length) {
  const auto n = static_cast<double>(length);
  const auto place = static_cast<double>(i);
  if (align_corners) {
    return length > 1 ? 2.0 * place / (n - 1.0) - 1.0 : -1.0;
  }
  return (2.0 * place + 1.0) / n - 1.0;
}

/// Writes theta (x, y, 1) or theta (x, y, z, 1) for each pixel of an image.
template <class T>
void run_affine_grid_as(operator_context& c) {
  const bool corners = c.n().get_int("align_corners", 0) != 0;
  const std::span<const T> theta = c.input(0).data<T>();
  const std::span<T> out = c.make_output(0).mutable_data<T>();
  if (out.empty()) {
    return;
  }
  const shape& dims = c.outputs[0].dims();
  const auto axes = static_cast<std::size_t>(dims.back());
  const std::size_t points = product(dims, 1, dims.size() - 1);
  for (std::size_t i = 0; i < out.size() / axes; ++i) {
    double position[3] = {0.0, 0.0, 0.0};
    std::size_t rest = i % points;
    for (std::size_t d = 0; d < axes; ++d) {  // x is the coordinate of the last axis
      const auto length = static_cast<std::size_t>(dims[axes - d]);
      position[d] = grid_coordinate(corners, rest % length, length);
      rest /= length;
    }
    for (std::size_t row = 0; row < axes; ++row) {
      const T* from = theta.data() + (i / points * axes + row) * (axes + 1);
      auto sum = static_cast<double>(from[axes]);
      for (std::size_t d = 0; d < axes; ++d) {
        sum = std::fma(static_cast<double>(from[d]), position[d], sum);
      }
      out[i * axes + row] = static_cast<T>(sum);
    }
  }
}

inline void run_affine_grid(operator_context& c) {
  for_type(c, float_types{}, c.input(0).type(), [&]<class T>() { run_affine_grid_as<T>(c); });
}

}  // namespace sampling

inline constexpr operator_definition grid_sample_operators[] = {
    {"", "GridSample", 2, 2, layout_support::plain, infer_for<float_types, sampling::infer>,
     sampling::run, true},
    {"", "AffineGrid", 2, 2, layout_support::plain,
     infer_for<float_types, sampling::infer_affine_grid>, sampling::run_affine_grid},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_GRID_SAMPLE_HPP
