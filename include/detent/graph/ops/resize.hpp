// SPDX-License-Identifier: BSD-3-Clause
// The operators Resize and Upsample. Interpolation goes axis by axis in the order in which elements
// are stored, so that one code serves channels-first and channels-last tensors, which keep their
// order.
#ifndef DETENT_GRAPH_OPS_RESIZE_HPP
#define DETENT_GRAPH_OPS_RESIZE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/elements.hpp>
#include <detent/graph/ops/movement.hpp>
#include <detent/graph/ops/operator.hpp>
#include <detent/graph/ops/resize_weights.hpp>
#include <detent/kernels/definitions/float_rows.hpp>
#include <detent/parallel.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph::ops {
namespace resizing {

/// The types of integers that are interpolated. Other modes than `nearest` take these and floats.
using small_integers =
    type_list<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t>;
using interpolated_types =
    type_list<float, double, std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t>;

inline void infer(operator_context& c) {
  const tensor& in = c.input(0);
  if (method_of(c).how != mode::nearest) {
    expect_type(c, interpolated_types{}, in.type());
  }
  shape dims;
  for (const axis_size& s : axis_sizes(c)) {
    dims.push_back(s.out);
  }
  c.set_output(0, in.type(), std::move(dims));
  c.outputs.at(0).set_channels_last(in.channels_last());
}

/// A tensor seen as outer x axis x inner elements, where the axis goes from length `in` to `out`.
struct axis_view {
  std::size_t outer;
  std::size_t in;
  std::size_t out;
  std::size_t inner;
};

/// Computes one row of `inner` output elements as a weighted sum of `taps` input rows; Taps is
/// their number if it is known to the compiler, otherwise 0. Products of floats are exact in
/// double, so that the result has the same bits whether or not the compiler contracts products and
/// sums. The kernel for floats, for rows that are not short, does the same.
template <std::size_t Taps, class T>
void blend_row(const T* in, std::size_t inner, const std::size_t* index, const float* weight,
               std::size_t taps, T* out) {
  const std::size_t count = Taps == 0 ? taps : Taps;
  if constexpr (std::is_same_v<T, float>) {
    if (inner >= 8) {
      detent::detail::active<kernels::float_row_kernels>().blend_rows(in, index, weight, count,
                                                                      inner, out);
      return;
    }
  }
  for (std::size_t i = 0; i < inner; ++i) {
    double sum = 0.0;
    for (std::size_t k = 0; k < count; ++k) {
      sum += static_cast<double>(weight[k]) * static_cast<double>(in[index[k] * inner + i]);
    }
    out[i] = static_cast<T>(sum);
  }
}

/// blend_row() for `count` rows of single elements, one after the other: for so little work, calls
/// and loops over an element would take most of the time. `weight` holds the weights as doubles.
template <std::size_t Taps, class T>
void blend_elements(const T* in, const std::size_t* index, const double* weight, std::size_t taps,
                    std::size_t count, T* out) {
  const std::size_t step = Taps == 0 ? taps : Taps;
  for (std::size_t i = 0; i < count; ++i) {
    double sum = 0.0;
    for (std::size_t k = 0; k < step; ++k) {
      sum += weight[i * step + k] * static_cast<double>(in[index[i * step + k]]);
    }
    out[i] = static_cast<T>(sum);
  }
}

template <std::size_t Taps, class T>
void blend_axis(const operator_context& c, const T* in, T* out, const axis_view& v,
                const weighted_map& map) {
  const parallel_for* const parallel = c.parallel;
  const std::size_t rows = v.outer * v.out;
  std::pmr::vector<double> weights(c.memory);
  if (v.inner == 1) {
    weights.assign(map.weight.begin(), map.weight.end());
  }
  const auto range = [&](std::size_t begin, std::size_t end) {
    std::size_t row = begin;
    while (row < end) {
      const T* from = in + row / v.out * v.in * v.inner;
      // Rows of single elements are many: no division for each.
      const std::size_t first = row % v.out;
      const std::size_t last = (std::min)(v.out, first + (end - row));
      if (v.inner == 1) {
        blend_elements<Taps>(from, &map.index[first * map.taps], &weights[first * map.taps],
                             map.taps, last - first, out + row);
        row += last - first;
        continue;
      }
      for (std::size_t i = first; i < last; ++i, ++row) {
        blend_row<Taps>(from, v.inner, &map.index[i * map.taps], &map.weight[i * map.taps],
                        map.taps, out + row * v.inner);
      }
    }
  };
  if (parallel == nullptr || rows * v.inner * sizeof(T) < movement::parallel_bytes) {
    range(0, rows);
    return;
  }
  const std::size_t parts = (std::min)(rows, movement::parallel_parts);
  detent::detail::run_parallel(*parallel, parts, [&](std::size_t part) {
    range(rows * part / parts, rows * (part + 1) / parts);
  });
}

/// A list with an entry for each axis, reordered to the order in which the tensor stores its axes.
template <class T>
[[nodiscard]] std::vector<T> in_storage_order(const tensor& t, std::vector<T> by_axis) {
  if (t.channels_last() && by_axis.size() > 2) {
    std::rotate(by_axis.begin() + 1, by_axis.begin() + 2, by_axis.end());
  }
  return by_axis;
}

/// Elements in memory that may be owned.
template <class T>
struct interpolated {
  const T* data;
  std::shared_ptr<std::byte> held;  // null if the elements are those of the input
};

/// Interpolates axis after axis, the last one first. The last axis is the slow one, because its
/// rows are single elements; if the output is larger, it is then done while the tensor is still
/// small.
template <class T>
[[nodiscard]] interpolated<T> interpolate(const operator_context& c, const method& m,
                                          const std::vector<axis_size>& sizes, const T* source) {
  interpolated<T> in{source, nullptr};
  std::vector<std::size_t> dims;
  for (const axis_size& s : sizes) {
    dims.push_back(static_cast<std::size_t>(s.in));
  }
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    const weighted_map map = weights(c, m, sizes[axis]);
    if (changes_nothing(map, sizes[axis])) {
      continue;
    }
    axis_view v{1, dims[axis], static_cast<std::size_t>(sizes[axis].out), 1};
    for (std::size_t i = 0; i < dims.size(); ++i) {
      (i < axis ? v.outer : v.inner) *= i == axis ? 1 : dims[i];
    }
    dims[axis] = v.out;
    c.count_multiply_adds({v.outer, v.out, v.inner, map.taps});
    std::shared_ptr<std::byte> made = c.allocate(v.outer * v.out * v.inner * sizeof(T));
    T* out = reinterpret_cast<T*>(made.get());
    if (map.taps == 2) {
      blend_axis<2>(c, in.data, out, v, map);
    } else if (map.taps == 4) {
      blend_axis<4>(c, in.data, out, v, map);
    } else {
      blend_axis<0>(c, in.data, out, v, map);
    }
    in = {out, std::move(made)};
  }
  return in;
}

/// Interpolates a tensor of floating-point elements.
template <class T>
void run_interpolation(operator_context& c, const method& m, const std::vector<axis_size>& sizes) {
  const tensor& source = c.input(0);
  interpolated<T> result = interpolate(c, m, sizes, source.data<T>().data());
  if (result.held) {
    c.outputs.at(0).set_storage(std::move(result.held));
  } else {
    std::copy_n(result.data, source.count(), c.make_output(0).mutable_data<T>().data());
  }
}

/// Interpolates a tensor of integers in float and saturates the results. They are rounded toward
/// zero, as in ONNX Runtime, where the reference of ONNX rounds to nearest even. With antialias
/// they are rounded to nearest even, as in the reference; ONNX Runtime rounds after each axis,
/// which can differ by one.
inline void run_integer_interpolation(operator_context& c, const method& m,
                                      const std::vector<axis_size>& sizes) {
  for_type(c, small_integers{}, c.input(0).type(), [&]<class T>() {
    const std::span<const T> from = c.input(0).data<T>();
    std::pmr::vector<float> source(from.size(), c.memory);
    std::transform(from.begin(), from.end(), source.begin(),
                   [](T x) { return static_cast<float>(x); });
    const interpolated<float> result = interpolate(c, m, sizes, source.data());
    const std::span<T> to = c.make_output(0).mutable_data<T>();
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto x = static_cast<double>(result.data[i]);
      to[i] = saturate_to<T>(m.antialias ? std::nearbyint(x) : x);
    }
  });
}

/// Writes the extrapolation value to the output elements whose coordinates lie outside of the
/// input. `sizes` are in the order in which the tensor stores its axes.
inline void extrapolate(operator_context& c, const method& m, const std::vector<axis_size>& sizes) {
  std::vector<std::pmr::vector<bool>> outside;
  bool any = false;
  for (const axis_size& s : sizes) {
    outside.emplace_back(static_cast<std::size_t>(s.out), false, c.memory);
    for (std::int64_t i = 0; i < s.out; ++i) {
      const float x = coordinate(m.where, s, i);
      const bool is_outside = !(x >= 0.0F && x <= static_cast<float>(s.in - 1));
      outside.back()[static_cast<std::size_t>(i)] = is_outside;
      any = any || is_outside;
    }
  }
  tensor& out = c.outputs.at(0);
  const double value[] = {static_cast<double>(m.extrapolation)};
  std::vector<std::size_t> at(sizes.size(), 0);
  for (std::size_t i = 0; any && i < out.count(); ++i) {
    bool is_outside = false;
    for (std::size_t d = 0; d < at.size(); ++d) {
      is_outside = is_outside || outside[d][at[d]];
    }
    if (is_outside) {
      store(std::span<const double>(value), out, i);
    }
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < outside[d].size()) {
        break;
      }
      at[d] = 0;
    }
  }
}

/// Copies the nearest elements.
inline void run_nearest(operator_context& c, const method& m, const std::vector<axis_size>& sizes) {
  const tensor& in = c.input(0);
  shape in_dims;
  std::vector<movement::index_map> maps;
  for (const axis_size& s : sizes) {
    in_dims.push_back(s.in);
    maps.push_back(nearest_map(c, m, s));
  }
  movement::mapped_copy(element_size(in.type()), in_dims, std::move(maps))
      .run(in.raw(), c.make_output(0).mutable_raw(), c.parallel);
}

inline void run(operator_context& c) {
  const tensor& in = c.input(0);
  if (c.outputs.at(0).count() == 0) {
    c.make_output(0);
    return;
  }
  const method m = method_of(c);
  const std::vector<axis_size> sizes = in_storage_order(in, axis_sizes(c));
  if (m.how != mode::nearest) {
    if (!visit_type(float_types{}, in.type(),
                    [&]<class T>() { run_interpolation<T>(c, m, sizes); })) {
      run_integer_interpolation(c, m, sizes);
    }
  } else {
    run_nearest(c, m, sizes);
  }
  if (m.where == coordinates::tf_crop_and_resize) {
    extrapolate(c, m, sizes);
  }
}

}  // namespace resizing

inline constexpr operator_definition resize_operators[] = {
    {"", "Resize", 1, 4, layout_support::any, resizing::infer, resizing::run},
    {"", "Upsample", 1, 2, layout_support::any, resizing::infer, resizing::run},
};

}  // namespace graph::ops
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_OPS_RESIZE_HPP
