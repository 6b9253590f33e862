// SPDX-License-Identifier: BSD-3-Clause
// MaxPool and GlobalMaxPool on floats and 8-bit integers, AveragePool, GlobalAveragePool, LpPool
// and GlobalLpPool on floats, and the quantized averages of com.microsoft (also as domain
// "detent").
//
// A quantized average makes exact integer sums and then one multiplication: see
// quantized_average().
#ifndef DETENT_GRAPH_OPS_POOLING_HPP
#define DETENT_GRAPH_OPS_POOLING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/base/float_rows.hpp>
#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/graph/ops/layout.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/pool_planes.hpp>
#include <detent/graph/ops/quantization_inputs.hpp>
#include <detent/graph/ops/row_kernels.hpp>
#include <detent/graph/ops/window.hpp>
#include <detent/kernels/definitions/float_rows.hpp>
#include <detent/maxima.hpp>
#include <detent/parallel.hpp>
#include <detent/quantized_elementwise.hpp>
#include <detent/reference.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace ops {

/// The windows of a pool over channels-last images of up to three spatial axes.
class pool_windows {
 public:
  pool_windows(const operator_context& c, const shape& in, const shape& out,
               const window_attributes& w)
      : memory_(c.memory), places_{places(c.memory), places(c.memory), places(c.memory)} {
    c.require_supported(w.rank() <= most_pooled_axes, "no code for ", w.rank(), " spatial axes");
    for (std::size_t i = 0; i < w.rank(); ++i) {
      const std::size_t j = 3 - w.rank() + i;  // missing axes come first and have extent 1
      in_[j] = in[i + 2];
      kernel_[j] = w.kernel[i];
      dilation_[j] = w.dilations[i];
      find_places(j, out[i + 2], w.strides[i], w.pads_begin[i], w.pads_end[i]);
    }
    step_ = static_cast<std::size_t>(w.rank() > 0 ? w.strides.back() : 1);
    for (std::size_t j = 0; j + w.rank() < 3; ++j) {
      find_places(j, 1, 1, 0, 0);
    }
  }

  [[nodiscard]] std::size_t in_pixels() const {
    return static_cast<std::size_t>(in_[0] * in_[1] * in_[2]);
  }
  /// The largest number of pixels that a window covers.
  [[nodiscard]] std::size_t most_taps() const {
    std::size_t taps = 1;
    for (std::size_t i = 0; i < 3; ++i) {
      taps *= static_cast<std::size_t>((std::min)(kernel_[i], in_[i]));
    }
    return taps;
  }
  [[nodiscard]] std::size_t out_pixels() const {
    return places_[0].size() * places_[1].size() * places_[2].size();
  }

  /// Calls each(pixel, taps, padded) for the output pixels [begin, end): `taps` are the input
  /// pixels under the window, in row-major order, and `padded` is the number of places of the
  /// window that lie within the input or its padding.
  template <class Each>
  void for_each(std::size_t begin, std::size_t end, const Each& each) const {
    for_each_run(begin, end, 1,
                 [&](std::size_t pixel, std::size_t /*pixels*/, std::span<const std::size_t> taps,
                     std::size_t padded) { each(pixel, taps, padded); });
  }

  /// Calls each(pixel, pixels, taps, padded) for runs of neighbouring output pixels, which together
  /// are [begin, end): `pixels` are at most `longest`, and what pixel + i reads is step() * i
  /// behind `taps`, which pixel reads.
  template <class Each>
  void for_each_run(std::size_t begin, std::size_t end, std::size_t longest,
                    const Each& each) const {
    if (begin >= end) {
      return;
    }
    std::pmr::vector<std::size_t> taps(memory_);
    taps.reserve(most_taps());
    std::size_t x = begin % places_[2].size();
    std::size_t y = begin / places_[2].size() % places_[1].size();
    std::size_t z = begin / places_[2].size() / places_[1].size();
    for (std::size_t pixel = begin; pixel < end;) {
      const place& plane = places_[0][z];
      const place& line = places_[1][y];
      const place& column = places_[2][x];
      taps.clear();
      // Of an image without pixels, one axis is empty and the others may be of any length.
      const bool any = line.first < line.last && column.first < column.last;
      for (std::int64_t iz = plane.first; any && iz < plane.last; iz += dilation_[0]) {
        for (std::int64_t iy = line.first; iy < line.last; iy += dilation_[1]) {
          for (std::int64_t ix = column.first; ix < column.last; ix += dilation_[2]) {
            taps.push_back(static_cast<std::size_t>((iz * in_[1] + iy) * in_[2] + ix));
          }
        }
      }
      const std::size_t pixels = (std::min)({column.run, longest, end - pixel});
      each(pixel, pixels, std::span<const std::size_t>(taps),
           plane.padded * line.padded * column.padded);
      pixel += pixels;
      x += pixels;
      if (x == places_[2].size()) {
        x = 0;
        if (++y == places_[1].size()) {
          y = 0;
          ++z;
        }
      }
    }
  }
  /// Pixels of the input between the windows of a run.
  [[nodiscard]] std::size_t step() const noexcept { return step_; }

 private:
  /// Where a window stands along an axis.
  struct place {
    std::int64_t first, last;  // the first index of the input under the window, the end of them
    std::size_t padded;        // how many of its taps lie within the input or its padding
    std::size_t run = 1;       // how many windows from this one on read the same way
  };
  using places = std::pmr::vector<place>;

  /// Finds the places of the windows along axis i.
  void find_places(std::size_t i, std::int64_t out, std::int64_t stride, std::int64_t pad_begin,
                   std::int64_t pad_end) {
    places_[i].reserve(static_cast<std::size_t>(out));
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t start = o * stride - pad_begin;
      // A window may have far more taps than the input has pixels.
      const std::int64_t first = (std::min)(taps_before(i, start, 0), kernel_[i]);
      const std::int64_t last = (std::min)(taps_before(i, start, in_[i]), kernel_[i]);
      // Taps behind the padding exist only in ceil mode and are never counted.
      const std::int64_t padded = (std::min)(taps_before(i, start, in_[i] + pad_end), kernel_[i]);
      const std::int64_t begin = start + first * dilation_[i];
      const std::int64_t end = first < last ? start + (last - 1) * dilation_[i] + 1 : begin;
      places_[i].push_back({begin, end, static_cast<std::size_t>(padded)});
    }
    for (std::size_t o = places_[i].size(); o-- > 1;) {
      place& before = places_[i][o - 1];
      const place& after = places_[i][o];
      if (after.first == before.first + stride && after.last == before.last + stride &&
          after.padded == before.padded) {
        before.run = after.run + 1;
      }
    }
  }

  /// The number of taps of a window that starts at `start` along axis i before index `end`, if the
  /// window had no end.
  [[nodiscard]] std::int64_t taps_before(std::size_t i, std::int64_t start,
                                         std::int64_t end) const {
    return end <= start ? 0 : (end - start + dilation_[i] - 1) / dilation_[i];
  }

  std::pmr::memory_resource* memory_;
  std::int64_t in_[3] = {1, 1, 1};
  std::int64_t kernel_[3] = {1, 1, 1};
  std::int64_t dilation_[3] = {1, 1, 1};
  std::size_t step_ = 1;
  places places_[3];
};

/// The dimensions of the output of a pool over images of dimensions `in`.
[[nodiscard]] inline shape pooled_dims(const operator_context& c, const shape& in) {
  const window_attributes w = read_window(c, in, {});
  const bool ceil_mode = c.n().get_int("ceil_mode", 0) != 0;
  shape out{in[0], in[1]};
  for (std::size_t i = 0; i < w.rank(); ++i) {
    c.require(w.pads_begin[i] < w.reach(i) && w.pads_end[i] < w.reach(i), "padding ",
              w.pads_begin[i], " and ", w.pads_end[i], " is not smaller than the window's ",
              w.reach(i));
    out.push_back(output_extent(c, w, i, in[i + 2], ceil_mode));
  }
  return out;
}

/// The dimensions of the output of a pool over whole images of dimensions `in`.
[[nodiscard]] inline shape globally_pooled_dims(const operator_context& c, const shape& in) {
  c.require(in.size() >= 3, "input of rank ", in.size(), " has no spatial axes");
  shape out(in.size(), 1);
  std::copy_n(in.begin(), 2, out.begin());
  return out;
}

/// The types of MaxPool and GlobalMaxPool.
using pool_types = type_list<float, double, std::uint8_t, std::int8_t>;

inline void infer_pool(operator_context& c) {
  const shape out = pooled_dims(c, c.input(0).dims());
  c.set_output(0, c.input(0).type(), out);
  c.outputs[0].set_channels_last(true);
  c.set_output(1, element_type::s64, out);
}

/// Infers MaxPool. The indices of its second output count columns first (storage_order 1) in images
/// of two axes only.
inline void infer_max_pool(operator_context& c) {
  infer_pool(c);
  expect_type(c, pool_types{}, c.input(0).type());
  c.expect_supported(
      !c.has_output(1) || c.n().get_int("storage_order", 0) == 0 || c.input(0).rank() == 4,
      "storage_order 1 of rank ", c.input(0).rank());
}

/// Infers AveragePool. Its result is in the order of its dimensions where planes are averaged.
inline void infer_average_pool(operator_context& c) {
  infer_pool(c);
  const tensor& x = c.input(0);
  const bool in_planes =
      x.type() == element_type::f32 && !x.channels_last() && !has_one_order(x.dims()) &&
      plane_windows::fit(x.dims(), c.outputs[0].dims(), read_window(c, x.dims(), {}));
  c.outputs[0].set_channels_last(!in_planes);
}

inline void infer_global_pool(operator_context& c) {
  c.set_output(0, c.input(0).type(), globally_pooled_dims(c, c.input(0).dims()));
}

/// Calls body(image, first, last) for slices [first, last) of the output pixels of each image,
/// perhaps on several threads.
template <class Body>
void for_image_slices(const operator_context& c, std::size_t images, std::size_t pixels,
                      const Body& body) {
  constexpr std::size_t slice = 256;
  const std::size_t slices = (pixels + slice - 1) / slice;
  detent::detail::run_parallel(*c.parallel, images * slices, [&](std::size_t i) {
    const std::size_t first = i % slices * slice;
    body(i / slices, first, (std::min)(first + slice, pixels));
  });
}

struct image_size {
  std::size_t batch, channels;
  explicit image_size(const tensor& t)
      : batch(static_cast<std::size_t>(t.dim(0))), channels(static_cast<std::size_t>(t.dim(1))) {}
};

/// Computes the largest of rows for each of `pixels` pixels as max_of_rows() does; the lowest value
/// if there are no rows.
template <class T>
void largest_of_rows(std::span<const T* const> rows, std::span<T> out, std::size_t pixels,
                     std::size_t step) {
  if (rows.empty()) {
    std::fill(out.begin(), out.end(),
              std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                   : std::numeric_limits<T>::lowest());
  } else if constexpr (std::is_same_v<T, double>) {
    const std::size_t columns = out.size() / pixels;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t from = i / columns * step + i % columns;
      out[i] = rows[0][from];
      for (const T* row : rows.subspan(1)) {
        out[i] = reference::larger(out[i], row[from]);
      }
    }
  } else {
    max_of_rows(rows, out, pixels, step);
  }
}

inline void run_max_pool(operator_context& c) {
  const tensor x = to_channels_last(c.inputs[0], c.allocate);
  const window_attributes w = read_window(c, x.dims(), {});
  const pool_windows windows(c, x.dims(), c.outputs[0].dims(), w);
  const image_size size(x);
  c.count_multiply_adds({c.outputs[0].count(), windows.most_taps()});
  tensor& y = c.make_output(0);
  for_type(c, pool_types{}, x.type(), [&]<class T>() {
    const T* in = x.data<T>().data();
    T* out = y.mutable_data<T>().data();
    for_image_slices(c, size.batch, windows.out_pixels(),
                     [&](std::size_t n, std::size_t first, std::size_t last) {
                       std::pmr::vector<const T*> rows(c.memory);
                       rows.reserve(windows.most_taps());
                       windows.for_each_run(
                           first, last, last - first,
                           [&](std::size_t pixel, std::size_t pixels,
                               std::span<const std::size_t> taps, std::size_t) {
                             rows.clear();
                             for (const std::size_t tap : taps) {
                               rows.push_back(in + (n * windows.in_pixels() + tap) * size.channels);
                             }
                             largest_of_rows(
                                 std::span<const T* const>(rows),
                                 std::span(out + (n * windows.out_pixels() + pixel) * size.channels,
                                           pixels * size.channels),
                                 pixels, windows.step() * size.channels);
                           });
                     });
    if (!c.has_output(1)) {
      return;
    }
    // The indices count the elements of the whole input, in the order of its dimensions or, with
    // storage_order 1, column-major within an image.
    const bool column_major = c.n().get_int("storage_order", 0) != 0;
    c.require_supported(!column_major || x.rank() == 4, "storage_order 1 of rank ", x.rank());
    const std::int64_t height = x.rank() == 4 ? x.dim(2) : 1;
    const std::int64_t width = x.dims().back();
    auto indices = c.make_output(1).mutable_data<std::int64_t>();
    const std::size_t pixels = windows.out_pixels();
    for (std::size_t n = 0; n < size.batch; ++n) {
      windows.for_each(
          0, pixels, [&](std::size_t pixel, std::span<const std::size_t> taps, std::size_t) {
            for (std::size_t ch = 0; ch < size.channels; ++ch) {
              const T best = out[(n * pixels + pixel) * size.channels + ch];
              std::int64_t index = -1;
              for (const std::size_t tap : taps) {
                const T value = in[(n * windows.in_pixels() + tap) * size.channels + ch];
                if (value == best || (value != value && best != best)) {
                  index = static_cast<std::int64_t>(tap);
                  break;
                }
              }
              if (column_major && index >= 0) {
                index = index % width * height + index / width;
              }
              indices[(n * size.channels + ch) * pixels + pixel] =
                  static_cast<std::int64_t>((n * size.channels + ch) * windows.in_pixels()) + index;
            }
          });
    }
  });
}

/// Calls average(taps, divisor, out) for each window of each image: `taps` are the addresses of the
/// pixels under the window (the first channel of each), `out` is the output pixel with all
/// channels. A global pool has one window, the image.
template <class T, class Average>
void for_each_average(const operator_context& c, const tensor& x, const pool_windows& windows,
                      T* out, const Average& average) {
  const image_size size(x);
  c.count_multiply_adds({c.outputs[0].count(), windows.most_taps()});
  const bool count_padding = c.n().get_int("count_include_pad", 0) != 0;
  const T* in = x.data<T>().data();
  for_image_slices(
      c, size.batch, windows.out_pixels(), [&](std::size_t n, std::size_t first, std::size_t last) {
        std::pmr::vector<const T*> pixels(c.memory);
        pixels.reserve(windows.most_taps());
        windows.for_each(
            first, last,
            [&](std::size_t pixel, std::span<const std::size_t> taps, std::size_t padded) {
              pixels.clear();
              for (const std::size_t tap : taps) {
                pixels.push_back(in + (n * windows.in_pixels() + tap) * size.channels);
              }
              average(std::span<const T* const>(pixels), count_padding ? padded : pixels.size(),
                      std::span(out + (n * windows.out_pixels() + pixel) * size.channels,
                                size.channels));
            });
      });
}

/// The attributes of a window that covers the whole image.
inline window_attributes whole_image(const shape& in) {
  window_attributes w;
  w.kernel.assign(in.begin() + 2, in.end());
  w.strides.assign(w.kernel.size(), 1);
  w.dilations = w.strides;
  w.pads_begin.assign(w.kernel.size(), 0);
  w.pads_end = w.pads_begin;
  return w;
}

/// out[i] = (the sum of all rows[k][i], in double) * (1 / divisor) for floats, and / divisor for
/// doubles, as detail::mean_of_rows() has it.
template <class T>
void mean_of_rows(std::span<const T* const> rows, double divisor, std::span<T> out) {
  if constexpr (std::is_same_v<T, float>) {
    row_kernels().mean_of_rows(rows.data(), rows.size(), divisor, out.size(), out.data());
  } else {
    detent::detail::mean_of_rows(rows, divisor, out);
  }
}

inline void run_average(operator_context& c, bool global) {
  if (!global && !c.outputs[0].channels_last()) {
    return run_average_of_planes(c);
  }
  const tensor x = to_channels_last(c.inputs[0], c.allocate);
  const window_attributes w = global ? whole_image(x.dims()) : read_window(c, x.dims(), {});
  const pool_windows windows(c, x.dims(), c.outputs[0].dims(), w);
  tensor& y = c.make_output(0);
  for_type(c, float_types{}, x.type(), [&]<class T>() {
    for_each_average(c, x, windows, y.mutable_data<T>().data(),
                     [](std::span<const T* const> taps, std::size_t divisor, std::span<T> out) {
                       mean_of_rows(taps, static_cast<double>(divisor), out);
                     });
  });
}

/// Computes LpPool and GlobalLpPool: the p-th root of the sum of |x|^p over a window.
inline void run_norm_pool(operator_context& c, bool global) {
  const std::int64_t p = c.n().get_int("p", 2);
  c.require(p >= 1, "p is ", p);
  const tensor x = to_channels_last(c.inputs[0], c.allocate);
  const window_attributes w = global ? whole_image(x.dims()) : read_window(c, x.dims(), {});
  const pool_windows windows(c, x.dims(), c.outputs[0].dims(), w);
  const auto power = static_cast<double>(p);
  tensor& y = c.make_output(0);
  for_type(c, float_types{}, x.type(), [&]<class T>() {
    for_each_average(c, x, windows, y.mutable_data<T>().data(),
                     [&](std::span<const T* const> taps, std::size_t, std::span<T> out) {
                       for (std::size_t i = 0; i < out.size(); ++i) {
                         double sum = 0.0;
                         for (const T* from : taps) {
                           const double element = std::fabs(static_cast<double>(from[i]));
                           sum += p == 1 ? element : std::pow(element, power);
                         }
                         out[i] = static_cast<T>(p == 1   ? sum
                                                 : p == 2 ? std::sqrt(sum)
                                                          : std::pow(sum, 1.0 / power));
                       }
                     });
  });
}

inline void run_global_max(operator_context& c) {
  const tensor x = to_channels_last(c.inputs[0], c.allocate);
  const image_size size(x);
  const std::size_t pixels = x.count() == 0 ? 0 : x.count() / (size.batch * size.channels);
  c.require(pixels > 0 || x.count() == c.outputs[0].count(), "the image has no pixels");
  c.count_multiply_adds({x.count()});
  tensor& y = c.make_output(0);
  for_type(c, pool_types{}, x.type(), [&]<class T>() {
    const T* in = x.data<T>().data();
    T* out = y.mutable_data<T>().data();
    std::pmr::vector<const T*> rows(pixels, c.memory);
    for (std::size_t n = 0; n < size.batch && pixels > 0; ++n) {
      for (std::size_t p = 0; p < pixels; ++p) {
        rows[p] = in + (n * pixels + p) * size.channels;
      }
      largest_of_rows(std::span<const T* const>(rows),
                      std::span(out + n * size.channels, size.channels), 1, 0);
    }
  });
}

/// Whether a node averages images of dimensions [batch, spatial ..., channel] instead of [batch,
/// channel, spatial ...]: the attribute channels_last of com.microsoft's operators.
[[nodiscard]] inline bool takes_channels_behind(const operator_context& c) {
  return c.n().get_int("channels_last", 0) != 0;
}

/// [batch, spatial ..., channel] as [batch, channel, spatial ...].
[[nodiscard]] inline shape with_channels_first(shape dims) {
  if (dims.size() > 2) {
    std::rotate(dims.begin() + 1, dims.end() - 1, dims.end());
  }
  return dims;
}

/// Infers the output of QLinearAveragePool and QLinearGlobalAveragePool, whose inputs are x,
/// x_scale, x_zero_point, y_scale, y_zero_point. Absent zero points are 0. PooledDims makes the
/// dimensions of the output from those of x.
template <shape (*PooledDims)(const operator_context&, const shape&)>
void infer_quantized_average(operator_context& c) {
  static_cast<void>(c.input(3));  // y_scale
  require_type_of_zero_point(c, 2, c.input(0));
  require_type_of_zero_point(c, 4, c.input(0));
  const bool behind = takes_channels_behind(c);
  const shape& in = c.input(0).dims();
  shape out = PooledDims(c, behind ? with_channels_first(in) : in);
  if (behind) {
    std::rotate(out.begin() + 1, out.begin() + 2, out.end());
  }
  c.set_output(0, c.input(0).type(), std::move(out));
  c.outputs[0].set_channels_last(!behind);
}

/// The images that a node averages, as tensors [batch, channel, spatial ...] in channels-last
/// order.
[[nodiscard]] inline tensor averaged_images(const operator_context& c) {
  if (!takes_channels_behind(c)) {
    return to_channels_last(c.inputs[0], c.allocate);
  }
  const tensor plain = to_plain(c.inputs[0], c.allocate);
  tensor images = plain.reshaped(with_channels_first(plain.dims()));
  images.set_channels_last(true);
  return images;
}

inline void run_quantized_average(operator_context& c, bool global) {
  const tensor x = averaged_images(c);
  const quant_params in = read_params(c, 1, 2);
  const quant_params out = read_params(c, 3, 4);
  const window_attributes w = global ? whole_image(x.dims()) : read_window(c, x.dims(), {});
  const shape& dims = c.outputs[0].dims();
  const pool_windows windows(c, x.dims(),
                             takes_channels_behind(c) ? with_channels_first(dims) : dims, w);
  tensor& y = c.make_output(0);
  for_type(c, quantized_types{}, x.type(), [&]<class T>() {
    for_each_average(c, x, windows, y.mutable_data<T>().data(),
                     [&](std::span<const T* const> taps, std::size_t divisor, std::span<T> to) {
                       quantized_average(taps, divisor, in, to, out);
                     });
  });
}

inline void run_quantized_average_pool(operator_context& c) { run_quantized_average(c, false); }
inline void run_quantized_global_average(operator_context& c) { run_quantized_average(c, true); }

inline constexpr operator_definition pooling_operators[] = {
    {"", "MaxPool", 1, 1, layout_support::any, &infer_max_pool, &run_max_pool, true},
    {"", "AveragePool", 1, 1, layout_support::any, &infer_for<float_types, &infer_average_pool>,
     [](operator_context& c) { run_average(c, false); }, true},
    {"", "GlobalAveragePool", 1, 1, layout_support::any,
     &infer_for<float_types, &infer_global_pool>, [](operator_context& c) { run_average(c, true); },
     true},
    {"", "GlobalMaxPool", 1, 1, layout_support::any, &infer_for<pool_types, &infer_global_pool>,
     &run_global_max, true},
    {"", "LpPool", 1, 1, layout_support::any, &infer_for<float_types, &infer_pool>,
     [](operator_context& c) { run_norm_pool(c, false); }, true},
    {"", "GlobalLpPool", 1, 1, layout_support::any, &infer_for<float_types, &infer_global_pool>,
     [](operator_context& c) { run_norm_pool(c, true); }, true},
    {"detent", "QLinearAveragePool", 2, 5, layout_support::any,
     &infer_quantized_average<&pooled_dims>, &run_quantized_average_pool, true},
    {"detent", "QLinearGlobalAveragePool", 2, 5, layout_support::any,
     &infer_quantized_average<&globally_pooled_dims>, &run_quantized_global_average, true},
    {"com.microsoft", "QLinearAveragePool", 2, 5, layout_support::any,
     &infer_quantized_average<&pooled_dims>, &run_quantized_average_pool, true},
    {"com.microsoft", "QLinearGlobalAveragePool", 2, 5, layout_support::any,
     &infer_quantized_average<&globally_pooled_dims>, &run_quantized_global_average, true},
};

}  // namespace ops
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_POOLING_HPP
