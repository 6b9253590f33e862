// SPDX-License-Identifier: BSD-3-Clause
// Operators of object detectors: NonMaxSuppression and RoiAlign.
#ifndef DETENT_GRAPH_OPS_DETECTION_HPP
#define DETENT_GRAPH_OPS_DETECTION_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/inferred_result.hpp>
#include <detent/graph/ops/operator.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace detection {

// --- NonMaxSuppression ---------------------------------------------------------------------------

/// A box by its corners, and its area.
struct box {
  double top, left, bottom, right;
  [[nodiscard]] double area() const { return (bottom - top) * (right - left); }
};

/// The box that four floats stand for: two opposite corners (y, x, y, x), or with `centers` the
/// centre, width and height (x, y, width, height).
[[nodiscard]] inline box read_box(const float* p, bool centers) {
  const auto at = [p](std::size_t i) { return static_cast<double>(p[i]); };
  if (centers) {
    return {at(1) - at(3) / 2.0, at(0) - at(2) / 2.0, at(1) + at(3) / 2.0, at(0) + at(2) / 2.0};
  }
  return {(std::min)(at(0), at(2)), (std::min)(at(1), at(3)), (std::max)(at(0), at(2)),
          (std::max)(at(1), at(3))};
}

/// Whether the area that two boxes share is more than `threshold` of what they cover together. The
/// quotient is rounded to float, as it would be if it were computed in float. Boxes without an area
/// share nothing.
[[nodiscard]] inline bool overlap(const box& a, const box& b, float threshold) {
  const double height = (std::min)(a.bottom, b.bottom) - (std::max)(a.top, b.top);
  const double width = (std::min)(a.right, b.right) - (std::max)(a.left, b.left);
  if (!(height > 0.0 && width > 0.0 && a.area() > 0.0 && b.area() > 0.0)) {
    return false;
  }
  const double shared = height * width;
  // std::fma fixes which of the products is rounded, so that contraction changes nothing.
  const double first = std::fma(a.bottom - a.top, a.right - a.left, -shared);
  const double both = std::fma(b.bottom - b.top, b.right - b.left, first);
  return static_cast<float>(shared / both) > threshold;
}

/// Input i as a single float; `otherwise` if it is absent.
[[nodiscard]] inline float optional_float(const operator_context& c, std::size_t i,
                                          float otherwise) {
  if (!c.has_input(i)) {
    return otherwise;
  }
  const tensor& t = c.inputs[i];
  c.require(t.type() == element_type::f32 && t.count() == 1, "input ", i, " is ", shown(t.type()),
            " ", shown(t.dims()), ", not a single float");
  require_known(t);
  return t.data<float>()[0];
}

using box_list = std::pmr::vector<std::int64_t>;  // triples of batch, class and box

/// Takes the boxes of one class in descending order of their scores, those with the lower index
/// first among equals, and leaves out those that overlap with one already taken.
inline void suppress(const operator_context& c, const float* boxes, std::span<const float> scores,
                     std::size_t most, std::array<std::int64_t, 2> batch_and_class,
                     box_list& selected) {
  const float overlap_threshold = optional_float(c, 3, 0.0F);
  const bool has_threshold = c.has_input(4);
  const float score_threshold = optional_float(c, 4, 0.0F);
  const bool centers = c.n().get_int("center_point_box", 0) != 0;
  std::pmr::vector<std::size_t> candidates(c.memory);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (has_threshold ? scores[i] > score_threshold : scores[i] == scores[i]) {
      candidates.push_back(i);
    }
  }
  std::sort(candidates.begin(), candidates.end(), [&](std::size_t i, std::size_t j) {
    return scores[i] > scores[j] || (scores[i] == scores[j] && i < j);
  });
  std::pmr::vector<box> taken(c.memory);
  for (const std::size_t i : candidates) {
    if (taken.size() == most) {
      return;
    }
    c.count_multiply_adds({taken.size()});
    const box b = read_box(boxes + 4 * i, centers);
    if (std::none_of(taken.begin(), taken.end(),
                     [&](const box& t) { return overlap(b, t, overlap_threshold); })) {
      taken.push_back(b);
      selected.insert(selected.end(),
                      {batch_and_class[0], batch_and_class[1], static_cast<std::int64_t>(i)});
    }
  }
}

inline void infer_non_max_suppression(operator_context& c) {
  const tensor& boxes = c.input(0);
  const tensor& scores = c.input(1);
  c.require(boxes.type() == element_type::f32 && scores.type() == element_type::f32, "boxes are ",
            shown(boxes.type()), " and scores ", shown(scores.type()), ", not float");
  c.require(boxes.rank() == 3 && scores.rank() == 3 && boxes.dim(2) == 4 &&
                boxes.dim(0) == scores.dim(0) && boxes.dim(1) == scores.dim(2),
            "boxes of shape ", shown(boxes.dims()), " and scores of shape ", shown(scores.dims()),
            " do not fit together");
  const std::vector<std::int64_t> most = c.integers(2);
  c.require(!c.has_input(2) || most.size() == 1, "max_output_boxes_per_class has ", most.size(),
            " values");
  require_known(boxes);
  require_known(scores);
  box_list selected(c.memory);
  if (!most.empty() && most[0] > 0 && scores.count() > 0) {
    const auto count = static_cast<std::size_t>(scores.dim(2));
    c.count_multiply_adds({scores.count()});
    for (std::int64_t n = 0; n < scores.dim(0); ++n) {
      for (std::int64_t k = 0; k < scores.dim(1); ++k) {
        const auto row = static_cast<std::size_t>(n * scores.dim(1) + k);
        suppress(c, boxes.data<float>().data() + static_cast<std::size_t>(n) * count * 4,
                 scores.data<float>().subspan(row * count, count),
                 static_cast<std::size_t>(most[0]), {n, k}, selected);
      }
    }
  }
  c.set_output(0, element_type::s64, {static_cast<std::int64_t>(selected.size() / 3), 3});
  keep_result(c, std::move(selected));
}

inline void run_non_max_suppression(operator_context& c) {
  const box_list selected = take_result<box_list>(c);
  std::copy(selected.begin(), selected.end(),
            c.make_output(0).mutable_data<std::int64_t>().begin());
}

// --- RoiAlign ------------------------------------------------------------------------------------

/// The attributes of RoiAlign.
struct align_options {
  std::int64_t height, width, samples;
  double scale, offset;
  bool maximum, keeps_small;

  explicit align_options(const operator_context& c)
      : height(c.n().get_int("output_height", 1)),
        width(c.n().get_int("output_width", 1)),
        samples(c.n().get_int("sampling_ratio", 0)),
        scale(static_cast<double>(c.n().get_float("spatial_scale", 1.0F))) {
    const std::string mode = c.n().get_string("mode", "avg");
    c.require(mode == "avg" || mode == "max", "mode '", mode, "'");
    maximum = mode == "max";
    // Before opset 16 there was one way, which now has the name output_half_pixel.
    const std::string transformation =
        c.opset < 16 ? "output_half_pixel"
                     : c.n().get_string("coordinate_transformation_mode", "half_pixel");
    c.require(transformation == "half_pixel" || transformation == "output_half_pixel",
              "coordinate_transformation_mode '", transformation, "'");
    keeps_small = transformation == "half_pixel";
    offset = keeps_small ? 0.5 : 0.0;
    c.require(height > 0 && width > 0 && samples >= 0, "output ", height, " x ", width,
              " with sampling_ratio ", samples);
  }
};

inline void require_regions(const operator_context& c, std::int64_t columns) {
  const tensor& x = c.input(0);
  const tensor& rois = c.input(1);
  c.require_supported(x.type() == element_type::f32 && rois.type() == element_type::f32,
                      "no code for elements of type ", shown(x.type()), " and regions of type ",
                      shown(rois.type()));
  c.require(x.rank() == 4 && rois.rank() == 2 && rois.dim(1) == columns, "an input of shape ",
            shown(x.dims()), " and regions of shape ", shown(rois.dims()));
}

inline void infer_roi_align(operator_context& c) {
  require_regions(c, 4);
  const align_options o(c);
  const std::int64_t regions = c.input(1).dim(0);
  const tensor& batch = c.input(2);
  c.require(batch.type() == element_type::s64 && batch.dims() == shape{regions},
            "batch_indices are ", shown(batch.type()), " ", shown(batch.dims()), " for ", regions,
            " regions");
  c.set_output(0, element_type::f32, {regions, c.input(0).dim(1), o.height, o.width});
}

/// Four pixels and their weights in bilinear interpolation; no pixels for a point outside.
struct bilinear_point {
  std::array<std::size_t, 4> pixel{};
  std::array<double, 4> weight{};
};

/// The pixels around (y, x) of an image. Points up to one pixel outside take the border's value.
[[nodiscard]] inline bilinear_point surround(double y, double x, std::int64_t height,
                                             std::int64_t width) {
  bilinear_point p;
  const auto h = static_cast<double>(height);
  const auto w = static_cast<double>(width);
  if (!(y >= -1.0 && y <= h && x >= -1.0 && x <= w)) {
    return p;
  }
  const double cy = std::clamp(y, 0.0, h - 1.0);
  const double cx = std::clamp(x, 0.0, w - 1.0);
  const auto top = static_cast<std::size_t>(cy);
  const auto left = static_cast<std::size_t>(cx);
  const std::size_t bottom = (std::min)(top + 1, static_cast<std::size_t>(height) - 1);
  const std::size_t right = (std::min)(left + 1, static_cast<std::size_t>(width) - 1);
  const double dy = cy - static_cast<double>(top);
  const double dx = cx - static_cast<double>(left);
  const auto row = static_cast<std::size_t>(width);
  p.pixel = {top * row + left, top * row + right, bottom * row + left, bottom * row + right};
  p.weight = {(1.0 - dy) * (1.0 - dx), (1.0 - dy) * dx, dy * (1.0 - dx), dy * dx};
  return p;
}

/// The samples of one region: those of output bin (i, j) begin at (i * width + j) * rows * columns.
struct region_samples {
  std::pmr::vector<bilinear_point> points;
  std::size_t per_bin = 0;
};

/// The number of samples along one side of a bin.
[[nodiscard]] inline std::size_t samples_along(const operator_context& c, const align_options& o,
                                               double bin) {
  const double count = o.samples > 0 ? static_cast<double>(o.samples) : std::ceil(bin);
  c.require(count <= 0x1p20, "a region needs ", count, " samples along a side of a bin");
  return count > 0.0 ? static_cast<std::size_t>(count) : 0;
}

[[nodiscard]] inline region_samples sample_region(const operator_context& c, const float* region,
                                                  const align_options& o) {
  const auto edge = [&](std::size_t i) {
    return std::fma(static_cast<double>(region[i]), o.scale, -o.offset);
  };
  const double left = edge(0);
  const double top = edge(1);
  double width = edge(2) - left;
  double height = edge(3) - top;
  c.require(
      std::isfinite(top) && std::isfinite(left) && std::isfinite(width) && std::isfinite(height),
      "a region is not finite");
  if (!o.keeps_small) {
    width = (std::max)(width, 1.0);
    height = (std::max)(height, 1.0);
  }
  const double bin_height = height / static_cast<double>(o.height);
  const double bin_width = width / static_cast<double>(o.width);
  const std::size_t rows = samples_along(c, o, bin_height);
  const std::size_t columns = samples_along(c, o, bin_width);
  const auto bins = static_cast<std::size_t>(o.height) * static_cast<std::size_t>(o.width);
  c.count_multiply_adds({bins, rows, columns, static_cast<std::size_t>(c.input(0).dim(1))});
  region_samples s{std::pmr::vector<bilinear_point>(c.memory), rows * columns};
  s.points.reserve(bins * rows * columns);
  const auto position = [](double start, double bin, std::int64_t i, std::size_t k,
                           std::size_t count) {
    const double within = (static_cast<double>(k) + 0.5) / static_cast<double>(count);
    return std::fma(static_cast<double>(i) + within, bin, start);
  };
  for (std::int64_t i = 0; i < o.height; ++i) {
    for (std::int64_t j = 0; j < o.width; ++j) {
      for (std::size_t ky = 0; ky < rows; ++ky) {
        for (std::size_t kx = 0; kx < columns; ++kx) {
          s.points.push_back(surround(position(top, bin_height, i, ky, rows),
                                      position(left, bin_width, j, kx, columns), c.input(0).dim(2),
                                      c.input(0).dim(3)));
        }
      }
    }
  }
  return s;
}

/// The mean of the interpolated samples of a bin; with `maximum`, the largest of the weighted
/// pixels, as ONNX defines it. 0 if there are no samples.
[[nodiscard]] inline double pool_samples(const float* image, std::span<const bilinear_point> bin,
                                         bool maximum) {
  double sum = 0.0;
  double best = bin.empty() ? 0.0 : -std::numeric_limits<double>::infinity();
  for (const bilinear_point& p : bin) {
    for (std::size_t k = 0; k < 4; ++k) {
      const auto pixel = static_cast<double>(image[p.pixel[k]]);
      best = (std::max)(best, p.weight[k] * pixel);
      sum = std::fma(p.weight[k], pixel, sum);
    }
  }
  return maximum ? best : sum / static_cast<double>((std::max)(bin.size(), std::size_t{1}));
}

inline void run_roi_align(operator_context& c) {
  const align_options o(c);
  const tensor& x = c.input(0);
  const std::span<const float> regions = c.input(1).data<float>();
  const std::span<const std::int64_t> batch = c.input(2).data<std::int64_t>();
  const std::span<float> out = c.make_output(0).mutable_data<float>();
  if (out.empty()) {
    return;
  }
  c.require(x.count() > 0, "the images have no pixels");
  const auto channels = static_cast<std::size_t>(x.dim(1));
  const auto pixels = static_cast<std::size_t>(x.dim(2) * x.dim(3));
  const std::size_t bins = out.size() / batch.size() / channels;
  for (std::size_t r = 0; r < batch.size(); ++r) {
    c.require(batch[r] >= 0 && batch[r] < x.dim(0), "batch index ", batch[r], " for ", x.dim(0),
              " images");
    const region_samples samples = sample_region(c, regions.data() + 4 * r, o);
    const float* image =
        x.data<float>().data() + static_cast<std::size_t>(batch[r]) * channels * pixels;
    for (std::size_t ch = 0; ch < channels; ++ch) {
      for (std::size_t bin = 0; bin < bins; ++bin) {
        out[(r * channels + ch) * bins + bin] = static_cast<float>(pool_samples(
            image + ch * pixels,
            std::span(samples.points).subspan(bin * samples.per_bin, samples.per_bin), o.maximum));
      }
    }
  }
}

}  // namespace detection

inline constexpr operator_definition detection_operators[] = {
    {"", "NonMaxSuppression", 2, 5, layout_support::plain, detection::infer_non_max_suppression,
     detection::run_non_max_suppression},
    {"", "RoiAlign", 3, 3, layout_support::plain, detection::infer_roi_align,
     detection::run_roi_align, true},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_DETECTION_HPP
