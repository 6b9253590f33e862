// SPDX-License-Identifier: BSD-3-Clause
// Where the pixels of a depthwise product read, for integers and floats alike.
#ifndef DETENT_KERNELS_DEPTHWISE_ROWS_HPP
#define DETENT_KERNELS_DEPTHWISE_ROWS_HPP

#include <cstddef>
#include <cstdint>

#include <detent/config.hpp>

DETENT_KERNELS_NAMESPACE_BEGIN

/// Output pixels of a depthwise product that read the same way:
///
///   sum[pixel + i, c] = sum_t taps[tap + t][i * step + c] * weights[t, c]     for 0 <= i < pixels
struct depthwise_run {
  std::size_t tap = 0;    // where the addresses of its taps begin
  std::size_t pixel = 0;  // position in the output
  std::size_t pixels = 0;
};

/// The runs of a depthwise product, and what is the same for all of them.
template <class T>
struct depthwise_rows {
  const T* const* taps = nullptr;
  const depthwise_run* runs = nullptr;
  std::size_t run_count = 0;
  std::size_t tap_count = 0, channels = 0;
  std::size_t step = 0;  // from a tap of one pixel to the same tap of the next, in elements
  // If not 0, then in runs of several pixels the taps 4 * (g * width + i) + 0..3 are those of group
  // g * width, i steps on, for 0 <= i < width.
  std::size_t width = 0;
};

DETENT_KERNELS_NAMESPACE_END

#endif  // DETENT_KERNELS_DEPTHWISE_ROWS_HPP
