// SPDX-License-Identifier: BSD-3-Clause
// The gradients of pools.
#ifndef DETENT_GRAPH_LEARN_GRADIENTS_POOLING_HPP
#define DETENT_GRAPH_LEARN_GRADIENTS_POOLING_HPP

#include <cmath>
#include <cstddef>
#include <span>

#include <detent/base/arithmetic.hpp>
#include <detent/base/elementary_functions.hpp>
#include <detent/config.hpp>
#include <detent/graph/learn/gradients/gradient_context.hpp>
#include <detent/graph/learn/gradients/sums.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/graph/ops/pooling.hpp>
#include <detent/graph/ops/window.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {
namespace gradients {

/// Calls each(first, output, taps, padded) for every window of a pool: `first` is the index of the
/// first element of the channel of the image, `output` that of the output element, `taps` the
/// pixels under the window (offsets from `first`), `padded` the number of places of the window that
/// lie within the image or its padding. `global`: the window is the whole image.
template <class Each>
void for_each_window(const gradient_context& c, bool global, const Each& each) {
  const shape& in = c.input(0).dims();
  const ops::window_attributes w =
      global ? ops::whole_image(in) : ops::read_window(c.forward, in, {});
  const ops::pool_windows windows(c.forward, in, c.output().dims(), w);
  const std::size_t images =
      c.output().count() == 0 ? 0 : c.output().count() / windows.out_pixels();
  windows.for_each(0, images == 0 ? 0 : windows.out_pixels(),
                   [&](std::size_t pixel, std::span<const std::size_t> taps, std::size_t padded) {
                     for (std::size_t i = 0; i < images; ++i) {
                       each(i * windows.in_pixels(), i * windows.out_pixels() + pixel, taps,
                            padded);
                     }
                   });
}

/// The gradient of AveragePool and GlobalAveragePool: D divided by the number of pixels that were
/// averaged goes to each pixel of the window.
template <bool Global>
void average_pool(const gradient_context& c) {
  const bool count_padding = !Global && c.n().get_int("count_include_pad", 0) != 0;
  if (!c.wants(0)) {
    return;
  }
  for_each_window(c, Global,
                  [&](std::size_t image, std::size_t at, std::span<const std::size_t> taps,
                      std::size_t padded) {
                    const double share = c.output_gradient()[at] /
                                         static_cast<double>(count_padding ? padded : taps.size());
                    for (const std::size_t tap : taps) {
                      c.gradient(0)[image + tap] += share;
                    }
                  });
}

/// The gradient of MaxPool and GlobalMaxPool for the values: D goes to the first of the largest
/// pixels of each window in row-major order.
template <bool Global>
void max_pool(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  for_each_window(
      c, Global,
      [&](std::size_t image, std::size_t at, std::span<const std::size_t> taps, std::size_t) {
        for (const std::size_t tap : taps) {
          if (x[image + tap] == y[at]) {
            c.gradient(0)[image + tap] += c.output_gradient()[at];
            return;
          }
        }
      });
}

/// The gradient of LpPool and GlobalLpPool, y = (sum of |x|^p)^(1/p): D sign(x) (|x| / y)^(p - 1),
/// and 0 where y is 0.
template <bool Global>
void norm_pool(const gradient_context& c) {
  if (!c.wants(0)) {
    return;
  }
  const auto exponent = static_cast<double>(c.n().get_int("p", 2) - 1);
  const auto x = c.input(0).data<float>();
  const auto y = c.output().data<float>();
  for_each_window(
      c, Global,
      [&](std::size_t image, std::size_t at, std::span<const std::size_t> taps, std::size_t) {
        for (const std::size_t tap : taps) {
          const auto value = static_cast<double>(x[image + tap]);
          if (value != 0.0 && y[at] > 0.0F) {
            const double size = detent::detail::portable_power(
                std::fabs(value) / static_cast<double>(y[at]), exponent);
            c.gradient(0)[image + tap] +=
                rounded_product(c.output_gradient()[at], value > 0.0 ? size : -size);
          }
        }
      });
}

}  // namespace gradients
}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_LEARN_GRADIENTS_POOLING_HPP
