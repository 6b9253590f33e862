// SPDX-License-Identifier: BSD-3-Clause
// The gradient of Resize and Upsample.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_RESIZE_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_RESIZE_HPP

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <detent/base/arithmetic.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/movement.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/ops/resize.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// Sets D to zero where tf_crop_and_resize has written the extrapolation value: where the
/// coordinate along any axis lies outside of the input.
inline void drop_outside(const ops::resizing::method& m,
                         const std::vector<ops::resizing::axis_size>& sizes,
                         std::vector<double>& d) {
  std::size_t inner = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    const auto length = static_cast<std::size_t>(sizes[axis].out);
    for (std::size_t i = 0; i < d.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i / inner % length);
      const float x = ops::resizing::coordinate(m.where, sizes[axis], place);
      if (!(x >= 0.0F && x <= static_cast<float>(sizes[axis].in - 1))) {
        d[i] = 0.0;
      }
    }
    inner *= length;
  }
}

/// The gradient of Resize and Upsample. The nearest elements are moved. Interpolation is a product
/// with a matrix of weights along each axis, the last axis first, and its gradient one with the
/// transposed matrices, the first axis first.
inline void resize(const gradient_context& c) {
  const ops::resizing::method m = ops::resizing::method_of(c.forward);
  if (m.how == ops::resizing::mode::nearest) {
    movement<0>(c);
    return;
  }
  if (!c.wants(0) || c.output().count() == 0) {
    return;
  }
  const std::vector<ops::resizing::axis_size> sizes = ops::resizing::axis_sizes(c.forward);
  std::vector<double> d(c.output_gradient().begin(), c.output_gradient().end());
  if (m.where == ops::resizing::coordinates::tf_crop_and_resize) {
    drop_outside(m, sizes, d);
  }
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    const ops::resizing::weighted_map map = ops::resizing::weights(c.forward, m, sizes[axis]);
    if (ops::resizing::changes_nothing(map, sizes[axis])) {
      continue;
    }
    const auto in = static_cast<std::size_t>(sizes[axis].in);
    const auto out = static_cast<std::size_t>(sizes[axis].out);
    std::size_t inner = 1;
    for (std::size_t i = axis + 1; i < sizes.size(); ++i) {
      inner *= static_cast<std::size_t>(sizes[i].out);
    }
    const std::size_t outer = d.size() / (out * inner);
    std::vector<double> before(outer * in * inner, 0.0);
    for (std::size_t row = 0; row < outer * out; ++row) {
      for (std::size_t tap = 0; tap < map.taps; ++tap) {
        const std::size_t at = row % out * map.taps + tap;
        const auto weight = static_cast<double>(map.weight[at]);
        double* to = before.data() + (row / out * in + map.index[at]) * inner;
        detent::detail::add_scaled(inner, weight, d.data() + row * inner, to);
      }
    }
    d = std::move(before);
  }
  for (std::size_t i = 0; i < d.size(); ++i) {
    c.gradient(0)[i] += d[i];
  }
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_RESIZE_HPP
